//! A client and a server over real loopback sockets.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use stdchk_model::message::handshake::{Challenge, Greeting, Hello, Nonce, PROTOCOL, Proof, Role, Welcome};
use stdchk_model::{ErrorCode, Failure, PoolId, cbor};
use stdchk_net::frame::{HEAD_BYTES, Head, Kind, encode};
use stdchk_net::server::Host;
use stdchk_net::{Buffer, BufferPool, Bytes, CallError, Connection, Identity, Service, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const LIMIT: Duration = Duration::from_secs(60);

/// Answers with the number and payload it was sent; 13 is refused, 0 waits for ever.
struct Echo;

impl Service for Echo {
    type Request = u64;
    type Reply = u64;

    async fn handle(&self, request: u64, payload: Buffer) -> Result<(u64, Bytes), Failure> {
        match request {
            0 => std::future::pending().await,
            13 => Err(Failure::new(ErrorCode::NotFound, "no 13")),
            _ => Ok((request, payload.into_bytes())),
        }
    }
}

async fn start() -> (SocketAddr, Arc<BufferPool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let buffers = BufferPool::new(64 << 20);
    let host = Host::new(Role::Manager, PoolId([1; 16]), b"secret".to_vec());
    tokio::spawn(serve(listener.into(), host, Arc::new(Echo), Arc::clone(&buffers), std::future::pending()));
    (address, buffers)
}

fn identity(token: &[u8]) -> Identity {
    Identity { role: Role::Client, pool: None, token: token.to_vec() }
}

#[tokio::test]
async fn calls_run_concurrently_and_keep_their_payloads() {
    let (address, buffers) = start().await;
    let connection = Connection::open(&address.to_string(), &identity(b"secret"), &buffers).await.unwrap();
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
    let (address, buffers) = start().await;
    let connection = Connection::open(&address.to_string(), &identity(b"secret"), &buffers).await.unwrap();
    let refused = connection.call::<u64, u64>(&13, Bytes::new(), LIMIT).await.unwrap_err();
    assert!(matches!(&refused, CallError::Refused(failure) if failure.code == ErrorCode::NotFound));
    let silent = connection.call::<u64, u64>(&0, Bytes::new(), Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(silent, CallError::Timeout { .. }) && silent.is_transport());
    let (still, _) = connection.call::<u64, u64>(&7, Bytes::new(), LIMIT).await.unwrap();
    assert_eq!(still, 7);
}

#[tokio::test]
async fn strangers_are_turned_away_and_garbage_ends_only_its_own_connection() {
    let (address, buffers) = start().await;
    let stranger = Connection::open(&address.to_string(), &identity(b"guess"), &buffers).await.unwrap_err();
    assert!(matches!(stranger, CallError::Refused(failure) if failure.code == ErrorCode::Denied));
    let mut garbage = tokio::net::TcpStream::connect(address).await.unwrap();
    garbage.write_all(&[0xff; 4096]).await.unwrap();
    let connection = Connection::open(&address.to_string(), &identity(b"secret"), &buffers).await.unwrap();
    let (reply, _) = connection.call::<u64, u64>(&7, Bytes::new(), LIMIT).await.unwrap();
    assert_eq!(reply, 7);
}

#[tokio::test]
async fn who_has_taken_the_port_of_a_server_learns_no_token_and_is_found_out() {
    let secret = b"the secret that nobody hears";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let heard = tokio::spawn(async move {
        let mut heard = Vec::new();
        let (mut stream, _) = listener.accept().await.unwrap();
        // It answers all that it is asked as a server would that knows another token.
        let challenge = Challenge { protocol: PROTOCOL, nonce: Nonce([1; 32]) };
        let hello = Hello { protocol: PROTOCOL, role: Role::Client, pool: None, nonce: Nonce([2; 32]) };
        let greeting = Greeting { hello, challenge: challenge.clone() };
        let (role, pool) = (Role::Manager, PoolId([1; 16]));
        let welcome = Welcome { role, pool, proof: greeting.server_proof(b"guess", role, pool) };
        for answer in [cbor::encode(&challenge), cbor::encode(&welcome)] {
            let mut said = [0; 1024];
            let length = stream.read(&mut said).await.unwrap();
            heard.extend_from_slice(&said[..length]);
            let frame = encode(&Head { kind: Kind::Reply, id: 0 }, &answer, 0).unwrap();
            stream.write_all(&frame).await.unwrap();
        }
        heard
    });
    let buffers = BufferPool::new(1 << 20);
    let error = Connection::open(&address.to_string(), &identity(secret), &buffers).await.unwrap_err();
    // The one who was there may come back, so this is no refusal.
    assert!(error.is_transport() && error.to_string().contains("doesn't know the pool's token"), "{error}");
    let heard = heard.await.unwrap();
    assert!(heard.len() > 100 && !heard.windows(secret.len()).any(|window| window == secret));
}

#[tokio::test]
async fn a_proof_that_was_heard_opens_no_other_connection() {
    let (address, _) = start().await;
    let hello = Hello { protocol: PROTOCOL, role: Role::Client, pool: None, nonce: Nonce([2; 32]) };
    let mut heard = None;
    for _ in 0..2 {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let head = Head { kind: Kind::Request, id: 0 };
        stream.write_all(&encode(&head, &cbor::encode(&hello), 0).unwrap()).await.unwrap();
        let mut said = [0; 1024];
        let length = stream.read(&mut said).await.unwrap();
        let challenge: Challenge = cbor::decode(&said[HEAD_BYTES..length]).unwrap();
        let greeting = Greeting { hello: hello.clone(), challenge };
        let is_first = heard.is_none();
        let proof = *heard.get_or_insert_with(|| greeting.caller_proof(b"secret"));
        stream.write_all(&encode(&head, &cbor::encode(&Proof { proof }), 0).unwrap()).await.unwrap();
        let length = stream.read(&mut said).await.unwrap();
        let body = &said[HEAD_BYTES..length];
        match is_first {
            true => assert_eq!(cbor::decode::<Welcome>(body).unwrap().pool, PoolId([1; 16])),
            false => assert_eq!(cbor::decode::<Failure>(body).unwrap().code, ErrorCode::Denied),
        }
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named() {
    let buffers = BufferPool::new(1 << 20);
    let error = Connection::open("127.0.0.1:1", &identity(b""), &buffers).await.unwrap_err();
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn requests_that_are_given_up_before_they_are_sent_hold_no_memory() {
    const MIB: usize = 1 << 20;
    let (address, _) = start().await;
    // It greets and then reads nothing more: the socket takes what it has room for, and the rest waits here.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut greeting = [0; 1024];
        for turn in 0..4 {
            let (from, to) = if turn % 2 == 0 { (&mut near, &mut far) } else { (&mut far, &mut near) };
            let length = from.read(&mut greeting).await.unwrap();
            to.write_all(&greeting[..length]).await.unwrap();
        }
        std::future::pending::<()>().await;
    });
    let memory = BufferPool::new(64 * MIB);
    let connection =
        Arc::new(Connection::open(&silent.to_string(), &identity(b"secret"), &memory).await.unwrap());
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
