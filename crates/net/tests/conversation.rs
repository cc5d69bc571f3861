//! A client and a server over real sockets of the machine.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stdchk_model::message::handshake::Role;
use stdchk_model::{ErrorCode, Failure, PoolId};
use stdchk_net::server::Host;
use stdchk_net::transport::unix_address;
use stdchk_net::{
    Buffer, BufferPool, Bytes, CallError, Caller, Connection, Identity, Listener, Service, serve,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

const LIMIT: Duration = Duration::from_secs(60);

/// Answers with the number and payload it was sent; 13 is refused, 0 waits for ever.
struct Echo;

impl Service for Echo {
    type Request = u64;
    type Reply = u64;

    async fn handle(&self, _: Caller, request: u64, payload: Buffer) -> Result<(u64, Bytes), Failure> {
        match request {
            0 => std::future::pending().await,
            13 => Err(Failure::new(ErrorCode::NotFound, "no 13")),
            _ => Ok((request, payload.into_bytes())),
        }
    }
}

struct Server(TempDir);

impl Server {
    async fn start() -> Self {
        let server = Self(TempDir::new().unwrap());
        let listener = Listener::bind(&unix_address(&server.socket())).await.unwrap();
        let host = Host::new(Role::Manager, PoolId([1; 16]), None);
        tokio::spawn(serve(
            listener,
            host,
            Arc::new(Echo),
            BufferPool::new(64 << 20),
            std::future::pending(),
        ));
        server
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("socket")
    }

    async fn connect(&self) -> Connection {
        connect(&self.socket(), &BufferPool::new(64 << 20)).await
    }
}

async fn connect(socket: &Path, buffers: &Arc<BufferPool>) -> Connection {
    Connection::open(Role::Manager, &unix_address(socket), &identity(), buffers).await.unwrap()
}

fn identity() -> Identity {
    Identity { role: Role::Client, pool: None, keys: None }
}

#[tokio::test]
async fn calls_run_concurrently_and_keep_their_payloads() {
    let server = Server::start().await;
    let connection = server.connect().await;
    let connection = Arc::new(connection);
    let calls = (1..=40u64).filter(|number| *number != 13).map(|number| {
        let connection = Arc::clone(&connection);
        tokio::spawn(async move {
            let sent = vec![u8::try_from(number).unwrap(); 300_000];
            let (reply, payload): (u64, Buffer) =
                connection.call(&number, sent.clone().into(), LIMIT).await.unwrap();
            assert_eq!((reply, &payload[..]), (number, &sent[..]));
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

#[tokio::test]
async fn failures_and_silence_are_told_apart() {
    let server = Server::start().await;
    let connection = server.connect().await;
    let refused = connection.call::<u64, u64>(&13, Bytes::new(), LIMIT).await.unwrap_err();
    assert!(matches!(&refused, CallError::Refused(failure) if failure.code == ErrorCode::NotFound));
    let silent = connection.call::<u64, u64>(&0, Bytes::new(), Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(silent, CallError::Timeout { .. }) && silent.is_transport());
    let (still, _) = connection.call::<u64, u64>(&7, Bytes::new(), LIMIT).await.unwrap();
    assert_eq!(still, 7);
}

#[tokio::test]
async fn garbage_ends_only_its_own_connection() {
    let server = Server::start().await;
    let mut garbage = UnixStream::connect(server.socket()).await.unwrap();
    garbage.write_all(&[0xff; 4096]).await.unwrap();
    let connection = server.connect().await;
    let (reply, _) = connection.call::<u64, u64>(&7, Bytes::new(), LIMIT).await.unwrap();
    assert_eq!(reply, 7);
}

#[tokio::test]
async fn another_pool_and_a_server_of_another_role_are_not_taken_for_those_that_are_meant() {
    let server = Server::start().await;
    let other = Identity { pool: Some(PoolId([2; 16])), ..identity() };
    let open = |role, identity| {
        let address = unix_address(&server.socket());
        async move { Connection::open(role, &address, &identity, &BufferPool::new(1 << 20)).await.unwrap_err() }
    };
    let refused = open(Role::Manager, other).await;
    assert!(
        matches!(&refused, CallError::Refused(failure) if failure.code == ErrorCode::OtherPool),
        "{refused}"
    );
    // Who was there may come back, so this is no refusal.
    let error = open(Role::Benefactor, identity()).await;
    assert!(error.is_transport() && error.to_string().contains("no benefactor"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let buffers = BufferPool::new(1 << 20);
    let error = Connection::open(Role::Manager, "unix:/no/server", &identity(), &buffers).await;
    assert!(error.unwrap_err().to_string().contains("unix:/no/server"));
}

#[tokio::test]
async fn requests_that_are_given_up_before_they_are_sent_hold_no_memory() {
    const MIB: usize = 1 << 20;
    let server = Server::start().await;
    // It greets and then reads nothing more: the socket takes what it has room for, and the rest waits here.
    let (silent, socket) = (server.0.path().join("silent"), server.socket());
    let listener = UnixListener::bind(&silent).unwrap();
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = UnixStream::connect(socket).await.unwrap();
        let mut greeting = [0; 1024];
        for turn in 0..2 {
            let (from, to) = if turn % 2 == 0 { (&mut near, &mut far) } else { (&mut far, &mut near) };
            let length = from.read(&mut greeting).await.unwrap();
            to.write_all(&greeting[..length]).await.unwrap();
        }
        std::future::pending::<()>().await;
    });
    let memory = BufferPool::new(64 * MIB);
    let connection = Arc::new(connect(&silent, &memory).await);
    let calls = (1..=64).map(|number: u64| {
        let (connection, payload) = (Arc::clone(&connection), memory.try_take(MIB).unwrap().into_bytes());
        tokio::spawn(async move {
            connection.call::<u64, u64>(&number, payload, Duration::from_millis(500)).await.is_err()
        })
    });
    for call in calls.collect::<Vec<_>>() {
        assert!(call.await.unwrap());
    }
    let held = 64 * MIB - memory.available();
    assert!(held <= MIB, "only the request within which the socket stands is held, and not {held} bytes");
    drop(connection);
}

#[tokio::test]
async fn a_socket_that_was_left_behind_is_taken_and_anything_else_at_its_path_stays() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("socket");
    let address = unix_address(&path);
    std::fs::write(&path, "precious").unwrap();
    assert!(Listener::bind(&address).await.is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();
    // Somebody listens, also if nobody accepts.
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(Listener::bind(&address).await.is_err());
    drop(listener);
    Listener::bind(&address).await.unwrap();
    assert!(!path.exists(), "it takes its socket away");
}
