//! Links that were away: what waits on an old connection goes on over a new one, and a server that takes long is left alone. On a network in memory.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stdchk_model::message::handshake::Role;
use stdchk_model::{Failure, PoolId};
use stdchk_net::server::Host;
use stdchk_net::transport::{Arrivals, Incoming, Network, Outgoing, Stream, simulate};
use stdchk_net::{
    Buffer, BufferPool, Bytes, CallError, Caller, Connection, Identity, Listener, Service, serve,
};
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

const LIMIT: Duration = Duration::from_secs(60);
const ADDRESS: &str = "192.0.2.1:7";

/// Answers a number after so many seconds; 0: never.
struct Slow;

impl Service for Slow {
    type Request = u64;
    type Reply = u64;

    async fn handle(&self, _: Caller, seconds: u64, _: Buffer) -> Result<(u64, Bytes), Failure> {
        match seconds {
            0 => std::future::pending().await,
            _ => sleep(Duration::from_secs(seconds)).await,
        }
        Ok((seconds, Bytes::new()))
    }
}

/// A link to one server. While it is away nobody connects; what was connected by then never comes on again, as if the system sent it again far
/// too late.
struct Link {
    door: Mutex<Option<mpsc::UnboundedSender<(Stream, SocketAddr)>>>,
    /// Whether it is away, and how often it was.
    away: watch::Sender<(bool, u32)>,
    opened: Mutex<u32>,
}

impl Link {
    fn cut(&self) {
        self.away.send_modify(|(away, times)| (*away, *times) = (true, *times + 1));
    }

    fn heal(&self) {
        self.away.send_modify(|(away, _)| *away = false);
    }
}

struct Shared(Arc<Link>);

impl Network for Shared {
    fn connect(&self, address: &str) -> Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>> {
        let (link, address): (_, SocketAddr) = (Arc::clone(&self.0), address.parse().unwrap());
        Box::pin(async move {
            let mut away = link.away.subscribe();
            let times = away.wait_for(|(away, _)| !away).await.unwrap().1;
            *link.opened.lock().unwrap() += 1;
            let ((out, far_in), (far_out, back)) = (wire(&link, times), wire(&link, times));
            let far = (Incoming::Simulated(Box::new(far_in)), Outgoing::Simulated(Box::new(far_out)));
            link.door.lock().unwrap().as_ref().unwrap().send((far, address)).unwrap();
            Ok((Incoming::Simulated(Box::new(back)), Outgoing::Simulated(Box::new(out))))
        })
    }

    fn listen(&self, address: SocketAddr) -> io::Result<(Arrivals, SocketAddr)> {
        let (sender, arrivals) = mpsc::unbounded_channel();
        *self.0.door.lock().unwrap() = Some(sender);
        Ok((arrivals, address))
    }
}

/// Carries bytes until the link has been away once more than so often.
fn wire(link: &Link, times: u32) -> (DuplexStream, DuplexStream) {
    let ((near, mut entry), (mut exit, far)) = (tokio::io::duplex(64 << 10), tokio::io::duplex(64 << 10));
    let mut away = link.away.subscribe();
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = is_away(&mut away, times) => std::future::pending().await,
            _ = tokio::io::copy(&mut entry, &mut exit) => {}
        }
    });
    (near, far)
}

async fn is_away(away: &mut watch::Receiver<(bool, u32)>, times: u32) {
    drop(away.wait_for(|(_, now)| *now > times).await);
}

async fn start() -> (Arc<Link>, Identity, Arc<BufferPool>) {
    let link = Arc::new(Link {
        door: Mutex::default(),
        away: watch::Sender::new((false, 0)),
        opened: Mutex::default(),
    });
    simulate(Some(Rc::new(Shared(Arc::clone(&link)))));
    let (listener, buffers) = (Listener::bind(ADDRESS).await.unwrap(), BufferPool::new(8 << 20));
    let host = Host::new(Role::Manager, PoolId([1; 16]), None);
    tokio::spawn(serve(listener, host, Arc::new(Slow), Arc::clone(&buffers), std::future::pending()));
    (link, Identity { role: Role::Client, pool: None, keys: None }, buffers)
}

async fn call(connection: &Connection, seconds: u64) -> Result<u64, CallError> {
    connection.call::<u64, u64>(&seconds, Bytes::new(), LIMIT).await.map(|(answer, _)| answer)
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_while_a_link_was_away_can_be_asked_anew_within_two_seconds_of_its_return() {
    let (link, identity, buffers) = start().await;
    for away in [5, 28, 40] {
        let connection = Connection::open(Role::Manager, ADDRESS, &identity, &buffers).await.unwrap();
        assert_eq!(call(&connection, 1).await.unwrap(), 1);
        link.cut();
        let connection = Arc::new(connection);
        let asking = tokio::spawn({
            let connection = Arc::clone(&connection);
            async move { call(&connection, 1).await }
        });
        sleep(Duration::from_secs(away)).await;
        assert!(!asking.is_finished() && !connection.is_closed(), "nothing gets through yet");
        link.heal();
        let healed = Instant::now();
        let ended = asking.await.unwrap().unwrap_err();
        assert!(matches!(ended, CallError::Closed { .. }), "{ended}");
        assert!(connection.is_superseded() && connection.is_closed());
        assert!(healed.elapsed() <= Duration::from_secs(2), "{away} s: {:?}", healed.elapsed());
        let new = Connection::open(Role::Manager, ADDRESS, &identity, &buffers).await.unwrap();
        assert_eq!(call(&new, 1).await.unwrap(), 1);
    }
    simulate(None);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_long_or_is_asked_nothing_is_not_called_anew() {
    let (link, identity, buffers) = start().await;
    let connection = Connection::open(Role::Manager, ADDRESS, &identity, &buffers).await.unwrap();
    assert_eq!(call(&connection, 50).await.unwrap(), 50);
    sleep(Duration::from_secs(100)).await;
    assert_eq!(call(&connection, 1).await.unwrap(), 1);
    assert!(!connection.is_closed());
    assert_eq!(*link.opened.lock().unwrap(), 1, "nobody tried another connection");
    // That a server is there is no answer.
    let (asked, limit) = (Instant::now(), Duration::from_secs(10));
    let late = connection.call::<u64, u64>(&0, Bytes::new(), limit).await.unwrap_err();
    assert!(matches!(late, CallError::Timeout { .. }), "{late}");
    assert!(asked.elapsed() < limit * 2, "{:?}", asked.elapsed());
    simulate(None);
}
