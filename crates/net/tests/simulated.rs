//! A client and a server on a network in memory, which decides what arrives.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
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
use tokio::sync::mpsc;

const LIMIT: Duration = Duration::from_secs(60);

/// Answers with what it was sent.
struct Echo;

impl Service for Echo {
    type Request = u64;
    type Reply = u64;

    async fn handle(&self, _: Caller, request: u64, payload: Buffer) -> Result<(u64, Bytes), Failure> {
        Ok((request, payload.into_bytes()))
    }
}

/// Who listens takes connections here.
type Door = mpsc::UnboundedSender<(Stream, SocketAddr)>;

/// Pipes of a few bytes from everybody to everybody.
#[derive(Default)]
struct Memory(Mutex<HashMap<SocketAddr, Door>>);

impl Network for Memory {
    fn connect(&self, address: &str) -> Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>> {
        let address: SocketAddr = address.parse().unwrap();
        let there = self.0.lock().unwrap().get(&address).cloned();
        Box::pin(async move {
            let ((out, far_in), (far_out, back)) = (tokio::io::duplex(1000), tokio::io::duplex(1000));
            let near = (Incoming::Simulated(Box::new(back)), Outgoing::Simulated(Box::new(out)));
            let far = (Incoming::Simulated(Box::new(far_in)), Outgoing::Simulated(Box::new(far_out)));
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            there.ok_or_else(refused)?.send((far, address)).map_err(|_| refused())?;
            Ok(near)
        })
    }

    fn listen(&self, address: SocketAddr) -> io::Result<(Arrivals, SocketAddr)> {
        let (sender, arrivals) = mpsc::unbounded_channel();
        self.0.lock().unwrap().insert(address, sender);
        Ok((arrivals, address))
    }
}

#[tokio::test]
async fn everything_goes_through_the_network_that_a_thread_was_given() {
    simulate(Some(Rc::new(Memory::default())));
    // Nobody could listen there on a real network.
    let address = "192.0.2.1:7";
    let listener = Listener::bind(address).await.unwrap();
    assert_eq!(listener.addresses().unwrap(), [address]);
    let buffers = BufferPool::new(8 << 20);
    let host = Host::new(Role::Manager, PoolId([1; 16]), None);
    let serving =
        tokio::spawn(serve(listener, host, Arc::new(Echo), Arc::clone(&buffers), std::future::pending()));
    let identity = Identity { role: Role::Client, pool: None, keys: None };
    let connection = Connection::open(Role::Manager, address, &identity, &buffers).await.unwrap();
    for length in [0, 10, 300_000] {
        let sent = vec![7; length];
        let (reply, payload): (u64, Buffer) =
            connection.call(&5u64, sent.clone().into(), LIMIT).await.unwrap();
        assert_eq!((reply, &payload[..]), (5, &sent[..]));
    }
    serving.abort();
    let ended = connection.call::<u64, u64>(&5, Bytes::new(), LIMIT).await.unwrap_err();
    assert!(matches!(ended, CallError::Closed { .. }), "{ended}");
    assert!(Connection::open(Role::Manager, address, &identity, &buffers).await.is_err());
    simulate(None);
}
