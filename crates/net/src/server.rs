//! The serving side: accept, shake hands, answer requests concurrently, stop when told.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use minicbor::{Decode, Encode};
use rustix::process::{Resource, getrlimit};
use stdchk_model::limits::REQUESTS_IN_FLIGHT_MAX;
use stdchk_model::message::handshake::{Hello, PROTOCOL, Role, Welcome};
use stdchk_model::{ErrorCode, Failure, PoolId, cbor};
use tokio::io::BufReader;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use crate::buffer::{Buffer, BufferPool};
use crate::connection::{buffered, prepare, write_frame};
use crate::frame::{self, Head, Kind};
use crate::patience::{PATIENCE, Patient};

/// Time that a caller has for its greeting: connections that stay silent are closed.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept, for instance when descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections at one time; more are turned away, as are those that would take more than half of the descriptors, so that some
/// remain for files.
const CONNECTIONS_MAX: usize = 4096;

/// What a server does with requests.
pub trait Service: Send + Sync + 'static {
    /// What it is asked.
    type Request: for<'b> Decode<'b, ()> + Send;
    /// What it answers.
    type Reply: Encode<()> + Send;

    /// Answers one request. Called concurrently, also for requests of one connection.
    fn handle(
        &self,
        request: Self::Request,
        payload: Buffer,
    ) -> impl Future<Output = Result<(Self::Reply, Bytes), Failure>> + Send;
}

/// Who serves.
#[derive(Clone, Debug)]
pub struct Host {
    /// What it is.
    pub role: Role,
    /// Its pool.
    pub pool: PoolId,
    /// The pool's shared token; callers must show the same.
    pub token: Vec<u8>,
    /// How long a caller may stop within a frame, see [`crate::patience`].
    pub patience: Duration,
}

impl Host {
    /// A host with the patience of the protocol.
    pub fn new(role: Role, pool: PoolId, token: Vec<u8>) -> Self {
        Self { role, pool, token, patience: PATIENCE }
    }
}

/// Serves `listener` until `stop` resolves; then no new connections are taken and the running ones are dropped.
pub async fn serve<S: Service>(
    listener: TcpListener,
    host: Host,
    service: Arc<S>,
    buffers: Arc<BufferPool>,
    stop: impl Future<Output = ()>,
) {
    let mut connections = tokio::task::JoinSet::new();
    let descriptors = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
    let most = descriptors.map_or(CONNECTIONS_MAX, |limit| CONNECTIONS_MAX.min(limit / 2));
    let room = Arc::new(Semaphore::new(most));
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => return,
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let (Ok((stream, peer)), Ok(place)) = (accepted, Arc::clone(&room).try_acquire_owned()) else {
            tokio::select! {
                () = &mut stop => return,
                () = tokio::time::sleep(ACCEPT_PAUSE) => continue,
            }
        };
        let (host, service, buffers) = (host.clone(), Arc::clone(&service), Arc::clone(&buffers));
        connections.spawn(async move {
            if let Err(error) = converse(stream, &host, service, buffers).await {
                tracing::debug!(%peer, %error, "a connection ended");
            }
            drop(place);
        });
    }
}

async fn converse<S: Service>(
    stream: TcpStream,
    host: &Host,
    service: Arc<S>,
    buffers: Arc<BufferPool>,
) -> io::Result<()> {
    prepare(&stream)?;
    let (reader, writer) = stream.into_split();
    let (mut reader, mut writer) = (Patient::new(reader, host.patience), Patient::new(writer, host.patience));
    let greeting = timeout(HANDSHAKE_TIMEOUT, frame::read_greeting(&mut reader)).await;
    let Some((head, body)) = greeting.map_err(|_| io::ErrorKind::TimedOut)?? else { return Ok(()) };
    let answer = welcome(host, &body);
    let refused = answer.is_err();
    write_frame(&mut writer, &encode_answer(head.id, answer)?, &Bytes::new()).await?;
    if refused {
        return Ok(());
    }
    // Who is known may have memory to read ahead into; a greeting has nothing behind it.
    let reader = Patient::new(buffered(reader.into_half()), host.patience);
    let (answers, queue) = mpsc::channel(REQUESTS_IN_FLIGHT_MAX);
    let writing = write_answers(writer, queue);
    let reading = read_requests(reader, service, buffers, answers);
    // Reading ends first when the peer goes; writing ends when all running requests have dropped their senders. Who
    // takes no answers any more is asked nothing more either.
    tokio::try_join!(reading, writing).map(|_| ())
}

fn welcome(host: &Host, body: &[u8]) -> Result<Welcome, Failure> {
    let hello: Hello = cbor::decode(body)
        .map_err(|error| Failure::new(ErrorCode::Malformed, format!("no greeting: {error}")))?;
    if hello.protocol != PROTOCOL {
        let (theirs, ours) = (hello.protocol, PROTOCOL);
        let message =
            format!("the caller speaks protocol {theirs}, this server {ours}: use the same stdchk on both");
        return Err(Failure::new(ErrorCode::Unsupported, message));
    }
    // Compared as hashes, so that the time taken tells nothing about the token.
    if blake3::hash(&hello.token) != blake3::hash(&host.token) {
        let message = "the pool's token doesn't match: use the token file of this pool";
        return Err(Failure::new(ErrorCode::Denied, message));
    }
    if hello.pool.is_some_and(|pool| pool != host.pool) {
        let message = format!("this server belongs to another pool, {}", host.pool);
        return Err(Failure::new(ErrorCode::Denied, message));
    }
    Ok(Welcome { protocol: PROTOCOL, role: host.role, pool: host.pool })
}

fn encode_answer<R: Encode<()>>(id: u64, answer: Result<R, Failure>) -> io::Result<Vec<u8>> {
    match answer {
        Ok(reply) => frame::encode(&Head { kind: Kind::Reply, id }, &cbor::encode(&reply), 0),
        Err(failure) => frame::encode(&Head { kind: Kind::Failure, id }, &cbor::encode(&failure), 0),
    }
}

/// Head and body, payload, and the request's place: given up only when the answer is on its way, so that a caller that
/// sends and never reads comes to a halt.
type Answer = (Vec<u8>, Bytes, OwnedSemaphorePermit);

async fn read_requests<S: Service>(
    mut reader: Patient<BufReader<OwnedReadHalf>>,
    service: Arc<S>,
    buffers: Arc<BufferPool>,
    answers: mpsc::Sender<Answer>,
) -> io::Result<()> {
    let room = Arc::new(Semaphore::new(REQUESTS_IN_FLIGHT_MAX));
    let mut running = tokio::task::JoinSet::new();
    loop {
        // The place comes before the payload: whoever waits for a place holds no buffer that the requests under way need.
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { break };
        let Some((head, body, payload)) = frame::read(&mut reader, &buffers).await? else { break };
        let (service, answers) = (Arc::clone(&service), answers.clone());
        running.spawn(async move {
            let (head, payload) = answer(&*service, head.id, &body, payload).await;
            // A peer that went away needs no answer.
            let _ = answers.send((head, payload, place)).await;
        });
        while running.try_join_next().is_some() {}
    }
    // What was asked is done to its end, also if the asker has gone: a put that was begun is stored.
    while running.join_next().await.is_some() {}
    Ok(())
}

async fn answer<S: Service>(service: &S, id: u64, body: &[u8], payload: Buffer) -> (Vec<u8>, Bytes) {
    let answered = match cbor::decode::<S::Request>(body) {
        Ok(request) => service.handle(request, payload).await,
        Err(error) => Err(Failure::new(
            ErrorCode::Unsupported,
            format!("this server doesn't know the request: {error}"),
        )),
    };
    let framed = match answered {
        Ok((reply, payload)) => {
            frame::encode(&Head { kind: Kind::Reply, id }, &cbor::encode(&reply), payload.len())
                .map(|bytes| (bytes, payload))
        }
        Err(failure) => encode_answer::<()>(id, Err(failure)).map(|bytes| (bytes, Bytes::new())),
    };
    framed.unwrap_or_else(|error| {
        let failure = Failure::new(ErrorCode::TooLong, format!("the answer can't be sent: {error}"));
        (encode_answer::<()>(id, Err(failure)).unwrap_or_default(), Bytes::new())
    })
}

async fn write_answers(
    mut writer: Patient<OwnedWriteHalf>,
    mut queue: mpsc::Receiver<Answer>,
) -> io::Result<()> {
    while let Some((head, payload, place)) = queue.recv().await {
        write_frame(&mut writer, &head, &payload).await?;
        drop(place);
    }
    Ok(())
}
