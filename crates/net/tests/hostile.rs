//! Peers that hold on to what isn't theirs: strangers that announce much, callers that stop within a frame, callers that
//! never take their answers. On real sockets of the machine.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use stdchk_model::limits::{BLOCK_BYTES_MAX, BODY_BYTES_MAX, REQUESTS_IN_FLIGHT_MAX};
use stdchk_model::message::handshake::{Hello, PROTOCOL, Role};
use stdchk_model::{Failure, PoolId, cbor};
use stdchk_net::frame::{HEAD_BYTES, Head, Kind, encode};
use stdchk_net::server::Host;
use stdchk_net::transport::unix_address;
use stdchk_net::{Buffer, BufferPool, Bytes, Caller, Connection, Identity, Listener, Service, serve};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How long a test waits for what must happen.
const LIMIT: Duration = Duration::from_secs(60);
/// How long the servers of these tests bear a stall.
const PATIENCE: Duration = Duration::from_millis(400);

/// Gives back what it is sent, and counts.
#[derive(Default)]
struct Echo {
    handled: AtomicUsize,
}

impl Service for Echo {
    type Request = u64;
    type Reply = u64;

    async fn handle(&self, _: Caller, request: u64, payload: Buffer) -> Result<(u64, Bytes), Failure> {
        self.handled.fetch_add(1, Ordering::Relaxed);
        Ok((request, payload.into_bytes()))
    }
}

struct Server {
    folder: TempDir,
    buffers: Arc<BufferPool>,
    echo: Arc<Echo>,
}

impl Server {
    /// A server with so much memory for payloads.
    async fn start(bytes: usize) -> Self {
        let folder = TempDir::new().unwrap();
        let listener = Listener::bind(&unix_address(&folder.path().join("socket"))).await.unwrap();
        let (buffers, echo) = (BufferPool::new(bytes), Arc::new(Echo::default()));
        let host = Host { patience: PATIENCE, ..Host::new(Role::Manager, PoolId([1; 16]), None) };
        let never = std::future::pending();
        tokio::spawn(serve(listener, host, Arc::clone(&echo), Arc::clone(&buffers), never));
        Self { folder, buffers, echo }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// A caller that belongs to the pool and behaves.
    async fn caller(&self) -> Connection {
        let identity = Identity { role: Role::Client, pool: None, keys: None };
        Connection::open(Role::Manager, &unix_address(&self.socket()), &identity, &BufferPool::new(64 << 20))
            .await
            .unwrap()
    }

    /// A bare connection that was let in.
    async fn let_in(&self) -> UnixStream {
        let mut stream = UnixStream::connect(self.socket()).await.unwrap();
        stream.write_all(&request(&cbor::encode(&hello()), 0)).await.unwrap();
        assert_eq!(answer(&mut stream).await, 1);
        stream
    }

    /// Waits until no payload's memory is in use.
    async fn wait_for_memory(&self, whole: usize) {
        let start = Instant::now();
        while self.buffers.available() < whole {
            assert!(start.elapsed() < LIMIT, "{} of {whole} bytes came back", self.buffers.available());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn hello() -> Hello {
    Hello { protocol: PROTOCOL, role: Role::Client, pool: None, maker: stdchk_model::Maker::LOCAL }
}

/// Head and body of a request that announces a payload.
fn request(body: &[u8], payload: usize) -> Vec<u8> {
    encode(&Head { kind: Kind::Request, id: 1 }, body, payload).unwrap()
}

/// Reads one answer; its kind.
async fn answer(stream: &mut UnixStream) -> u8 {
    let mut head = [0; HEAD_BYTES];
    loop {
        timeout(LIMIT, stream.read_exact(&mut head)).await.unwrap().unwrap();
        // That the server is there is no answer.
        if *head.get(4).unwrap() != Kind::Alive as u8 {
            break;
        }
    }
    let length = |at: usize| head.get(at..at + 4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
    let length = length(16).unwrap() + length(20).unwrap();
    let mut rest = vec![0; usize::try_from(length).unwrap()];
    timeout(LIMIT, stream.read_exact(&mut rest)).await.unwrap().unwrap();
    *head.get(4).unwrap()
}

/// Waits until the server has ended the connection; it must not have answered.
async fn is_dropped(mut stream: UnixStream) {
    let mut byte = [0];
    let read = timeout(LIMIT, stream.read(&mut byte)).await.expect("the server keeps the connection");
    assert!(matches!(read, Ok(0) | Err(_)), "the server answered");
}

#[tokio::test]
async fn before_the_greeting_is_accepted_nobody_gets_a_buffer() {
    // Below the server's time for a greeting: a stranger that got the one buffer would hold it longer than this.
    const SOON: Duration = Duration::from_secs(4);
    let server = Server::start(BLOCK_BYTES_MAX).await;
    let mut strangers = Vec::new();
    for body in [cbor::encode(&hello()), vec![0; 64], vec![0; BODY_BYTES_MAX]] {
        for payload in [1, BLOCK_BYTES_MAX] {
            let mut stranger = UnixStream::connect(server.socket()).await.unwrap();
            let bytes = request(&body, payload);
            stranger.write_all(bytes.get(..bytes.len().min(200)).unwrap()).await.unwrap();
            strangers.push(stranger);
        }
    }
    let caller = server.caller().await;
    let payload = vec![7; BLOCK_BYTES_MAX];
    let (reply, echoed) = caller.call::<u64, u64>(&5, payload.into(), SOON).await.unwrap();
    assert_eq!((reply, echoed.len()), (5, BLOCK_BYTES_MAX));
    for stranger in strangers {
        timeout(SOON, is_dropped(stranger)).await.unwrap();
    }
}

#[tokio::test]
async fn who_stops_within_a_frame_is_dropped_and_who_is_idle_between_frames_stays() {
    let whole = 8 << 20;
    let server = Server::start(whole).await;
    let idle = server.caller().await;
    let frame = [request(&cbor::encode(&5u64), 1 << 20), vec![7; 1 << 20]].concat();
    for length in [1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 1, frame.len() / 2, frame.len() - 1] {
        let mut caller = server.let_in().await;
        caller.write_all(frame.get(..length).unwrap()).await.unwrap();
        is_dropped(caller).await;
        server.wait_for_memory(whole).await;
    }
    let (reply, _) = idle.call::<u64, u64>(&7, Bytes::new(), LIMIT).await.unwrap();
    assert_eq!(reply, 7);
}

#[tokio::test]
async fn a_trickle_is_no_progress() {
    let server = Server::start(8 << 20).await;
    let caller = server.let_in().await;
    let (mut reader, mut writer) = caller.into_split();
    writer.write_all(&request(&cbor::encode(&5u64), 1 << 20)).await.unwrap();
    let trickle = tokio::spawn(async move {
        while writer.write_all(&[7]).await.is_ok() {
            tokio::time::sleep(PATIENCE / 20).await;
        }
    });
    assert!(matches!(timeout(LIMIT, reader.read(&mut [0])).await.unwrap(), Ok(0) | Err(_)));
    timeout(LIMIT, trickle).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_slow_caller_that_makes_progress_is_served() {
    const PARTS: u32 = 50;
    let server = Server::start(8 << 20).await;
    let mut caller = server.let_in().await;
    let part = vec![7; 16 << 10];
    let begun = Instant::now();
    caller.write_all(&request(&cbor::encode(&5u64), part.len() * PARTS as usize)).await.unwrap();
    for _ in 0..PARTS {
        caller.write_all(&part).await.unwrap();
        tokio::time::sleep(PATIENCE / 10).await;
    }
    assert!(begun.elapsed() > 2 * PATIENCE, "slower than a stall is borne");
    assert_eq!(answer(&mut caller).await, 1);
}

#[tokio::test]
async fn who_never_takes_its_answers_comes_to_a_halt_and_is_dropped() {
    /// Answers that the sockets' own buffers may take off the server's hands: some megabytes.
    const IN_SOCKETS: usize = 40;
    let whole = 256 << 20;
    let server = Server::start(whole).await;
    let caller = server.let_in().await;
    let (_unread, mut writer) = caller.into_split();
    let frame = [request(&cbor::encode(&5u64), 256 << 10), vec![7; 256 << 10]].concat();
    let sending = async { while writer.write_all(&frame).await.is_ok() {} };
    timeout(LIMIT, sending).await.expect("the server ends the connection");
    server.wait_for_memory(whole).await;
    let handled = server.echo.handled.load(Ordering::Relaxed);
    assert!(handled <= REQUESTS_IN_FLIGHT_MAX + IN_SOCKETS, "{handled} requests were answered unread");
    let (reply, _) = server.caller().await.call::<u64, u64>(&7, Bytes::new(), LIMIT).await.unwrap();
    assert_eq!(reply, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_strangers_keep_no_member_out() {
    /// More than the connections that a server keeps of members and strangers together.
    const STRANGERS: usize = 5000;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    assert!(limit.maximum.is_none_or(|most| most >= 12_000), "this test needs 12000 descriptors");
    let server = Server::start(8 << 20).await;
    let early = server.caller().await;
    let mut idle = Vec::new();
    for number in 0..STRANGERS {
        let mut stranger = UnixStream::connect(server.socket()).await.unwrap();
        if number % 2 == 0 {
            // One half begins to say hello. The server may have dropped it already.
            let _ = stranger.write_all(request(&cbor::encode(&hello()), 0).get(..HEAD_BYTES).unwrap()).await;
        }
        idle.push(stranger);
        if number % 500 == 499 {
            let (reply, _) = server.caller().await.call::<u64, u64>(&7, Bytes::new(), LIMIT).await.unwrap();
            assert_eq!(reply, 7);
        }
    }
    let members = members_of(&server, 40).await;
    for member in members.iter().chain([&early]) {
        let (reply, _) = member.call::<u64, u64>(&7, Bytes::new(), LIMIT).await.unwrap();
        assert_eq!(reply, 7);
    }
    // The server has dropped nearly all of the strangers.
    let mut kept = 0;
    for stranger in &idle {
        let mut bytes = [0; 1024];
        loop {
            match stranger.try_read(&mut bytes) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    kept += usize::from(error.kind() == std::io::ErrorKind::WouldBlock);
                    break;
                }
            }
        }
    }
    assert!(kept <= 300, "{kept} strangers are kept");
}

/// So many connections of members, opened one behind the other.
async fn members_of(server: &Server, count: usize) -> Vec<Connection> {
    let mut members = Vec::new();
    for _ in 0..count {
        members.push(server.caller().await);
    }
    members
}
