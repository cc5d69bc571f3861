//! The calling side: one connection to one server, shared by any number of concurrent calls.
//!
//! A frame goes to the socket whole, in a task, or at once if it is small: a call that is given up never leaves half a frame
//! behind.
//!
//! How long an answer is waited for is counted from when something moved last on the connection, in either direction: behind a slow
//! link much may stand before a request or its answer, and that says nothing of the server. Only once the request is with the
//! system that lasts no longer than [`ANSWERED_WITHIN`] says: others may be served all the time by a server that never answers this
//! one.
//!
//! A link that was away for a while carries new connections at once, and what waits on an old one only when the system sends that
//! again: after as long as the link was away, or twice that. So a connection on which nothing came for some time while something is asked is raced by new ones. A
//! server that is there says so all the time ([`crate::server`]), so that this happens only where nothing comes through. Once a new one has greeted and the old one
//! is still silent, the old one ends, and its callers ask anew, as they do when a connection breaks.
//!
//! | state of a connection | nothing comes for [`SILENT`] | something comes | another one greets |
//! |---|---|---|---|
//! | nothing was asked since something came last | stays | stays | - |
//! | something was | is raced | nothing was asked | - |
//! | raced | is raced | nothing was asked | ends, unless something comes in a moment |

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use minicbor::{Decode, Encode};
use parking_lot::Mutex;
use stdchk_model::message::handshake::{Greeted, Hello, Leader, PROTOCOL, Role, StandingBy, Welcome};
use stdchk_model::message::manager::Era;
use stdchk_model::{ErrorCode, Failure, Maker, PoolId, cbor};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::buffer::{Buffer, BufferPool};
use crate::frame::{self, Head, Kind};
use crate::keys::Keys;
use crate::patience::{PATIENCE, Patient};
use crate::transport::{Connected, Incoming, Outgoing, Peer, connect, socket_of};

/// Time for connecting and for the handshake: a host that takes longer is as good as gone.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Period in which a server must take some of a request. Longer than [`PATIENCE`]: a server waits for its disk before it
/// reads on, and calls have limits of their own; a server that is stopped must not keep the memory of its requests.
const REQUEST_PATIENCE: Duration = Duration::from_secs(60);

/// Time without anything from a server that was asked something, after which it is tried whether a new connection gets through: it says twice in that time that it is
/// there.
const SILENT: Duration = Duration::from_secs(4);
/// Time between two looks at whether something came.
const SILENCE_LOOK: Duration = Duration::from_secs(1);
/// Pause between two tries to reach a server that refuses, and time that is left to an old connection once a new one has greeted: both may come
/// to a server that stood still.
const RACE_PAUSE: Duration = Duration::from_millis(250);
/// The longest such pause, at a server that refuses again and again.
const RACE_PAUSE_MAX: Duration = Duration::from_secs(2);

/// A call is waited for so many times its limit at most, from when its request is with the system; no longer than this time, unless the limit
/// itself is longer.
const ANSWERED_WITHIN: (u32, Duration) = (6, Duration::from_secs(60));
/// So many looks at what moved are taken within a limit.
const LOOKS: u32 = 4;

/// Who a process is to the others of its pool.
#[derive(Clone, Debug)]
pub struct Identity {
    /// What it is.
    pub role: Role,
    /// Its pool; `None`: whichever the server serves.
    pub pool: Option<PoolId>,
    /// Its keys; `None`: it speaks with processes of its own machine alone.
    pub keys: Option<Arc<Keys>>,
}

impl Identity {
    /// As whom it codes fragments.
    #[must_use]
    pub fn maker(&self) -> Maker {
        self.keys.as_ref().map_or(Maker::LOCAL, |keys| keys.member().maker())
    }
}

/// Why a call has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// No connection.
    #[error("no connection to {address}: {cause}")]
    Connect {
        /// The server.
        address: String,
        /// What the system said.
        cause: String,
    },
    /// The server is of another pool, or doesn't accept the keys that this process has: until that is mended, no try helps.
    #[error("no connection to {address}: {cause}")]
    Stranger {
        /// The server.
        address: String,
        /// The cause.
        cause: String,
    },
    /// A manager that stands by lets nobody in.
    #[error("the manager at {address} stands by, and {}", told_of(standing.leader.as_ref()))]
    StandsBy {
        /// The server.
        address: String,
        /// Its word on the one that leads.
        standing: Box<StandingBy>,
    },
    /// No manager leads at any of several addresses.
    #[error("none of the managers leads: {causes}")]
    NoManager {
        /// Why not, for each address.
        causes: String,
    },
    /// The connection ended before the answer; the request may have been carried out.
    #[error("the connection to {address} ended before an answer came")]
    Closed {
        /// The server.
        address: String,
    },
    /// No answer in time; the request may have been carried out.
    #[error("no answer from {address} within {seconds} s")]
    Timeout {
        /// The server.
        address: String,
        /// The limit.
        seconds: u64,
    },
    /// The server answered with a failure.
    #[error("{0}")]
    Refused(#[from] Failure),
    /// The answer can't be understood.
    #[error("{address} answered with something else than asked: {cause}")]
    Malformed {
        /// The server.
        address: String,
        /// What is wrong with it.
        cause: String,
    },
}

impl CallError {
    /// Whether the server may be asked again, or another one: the failure is one of reaching it.
    pub fn is_transport(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }

    /// The error as a failure with a code.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Refused(failure) => failure.clone(),
            Self::Malformed { .. } => Failure::new(ErrorCode::Malformed, self.to_string()),
            _ => Failure::new(ErrorCode::Unavailable, self.to_string()),
        }
    }
}

/// The word of a manager that stands by on the one that leads.
fn told_of(leader: Option<&Leader>) -> String {
    match leader {
        Some(leader) => format!("the one at {} leads", leader.addresses.join(" or ")),
        None => "none leads for now".to_owned(),
    }
}

/// Whether an error says that the two sides are not of one pool, rather than that one isn't reached: certificates of another authority, none at all,
/// or another user's socket.
fn is_of_strangers(error: &io::Error) -> bool {
    use rustls::AlertDescription as Alert;
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match of_tls {
        Some(rustls::Error::InvalidCertificate(_)) => true,
        Some(rustls::Error::AlertReceived(alert)) => matches!(
            alert,
            Alert::UnknownCA
                | Alert::BadCertificate
                | Alert::CertificateUnknown
                | Alert::CertificateRequired
                | Alert::DecryptError
                | Alert::AccessDenied
        ),
        Some(_) => false,
        // A refusal of the system itself may be a firewall's doing.
        None => error.kind() == io::ErrorKind::PermissionDenied && error.get_ref().is_some(),
    }
}

/// The text of such an error, in words of pools where the library has its own.
fn said_of_strangers(error: &io::Error) -> String {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match of_tls {
        Some(rustls::Error::AlertReceived(_)) => {
            format!("it does not accept the keys of this host ({error})")
        }
        Some(_) => format!("it shows keys of another pool, or of an older authority of this one ({error})"),
        None => error.to_string(),
    }
}

type Answer = Result<(Vec<u8>, Buffer), Failure>;
type Writer = Arc<tokio::sync::Mutex<Patient<Outgoing>>>;
type Pending = Arc<Mutex<Option<HashMap<u64, Call>>>>;

/// What a connection has brought so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Carried {
    /// [Fetches](Connection::fetch) that were sent and are not answered, also those that were given up since.
    pub unanswered: u64,
    /// Answers to fetches, also those that nobody waited for.
    pub answered: u64,
    /// Bytes that came, those of unfinished answers as well.
    pub bytes: u64,
}

/// Fetches that were sent and aren't answered, by their numbers, and how many were.
#[derive(Debug, Default)]
struct Fetches {
    under_way: HashSet<u64>,
    answered: u64,
}

/// How far the request of a call has got.
#[derive(Debug, Default)]
pub struct Progress {
    began: OnceLock<Instant>,
    written: OnceLock<Instant>,
}

impl Progress {
    /// When it began to go out: what was asked for before had gone then.
    pub fn began(&self) -> Option<Instant> {
        self.began.get().copied()
    }

    /// When all of it was with the system.
    pub fn written(&self) -> Option<Instant> {
        self.written.get().copied()
    }

    fn begins(&self) {
        self.began.get_or_init(Instant::now);
    }

    fn ends(&self) {
        self.written.get_or_init(Instant::now);
    }
}

/// A call under way. It is gone from the table with whoever waits for it, and so is its memory.
#[derive(Debug)]
struct Call {
    /// Head, body and payload, while they wait for the socket.
    request: Option<(Vec<u8>, Bytes)>,
    is_fetch: bool,
    progress: Arc<Progress>,
    answer: oneshot::Sender<Answer>,
}

/// A connection to a server. Dropping it closes it.
#[derive(Debug)]
pub struct Connection {
    /// Reads answers. With its half of the stream, which it would keep for ever, it ends with the connection.
    reading: AbortHandle,
    /// Looks whether anything comes, where that is not certain.
    watching: Option<AbortHandle>,
    /// It ended since a new one got through and nothing came on this one.
    superseded: Arc<AtomicBool>,
    /// Bytes by which the server only said that it is there.
    alive: Arc<AtomicU64>,
    address: String,
    pool: PoolId,
    managers: Vec<String>,
    era: Option<Era>,
    leadership: Option<u64>,
    /// The address of this machine on the way there.
    here: Option<IpAddr>,
    /// Calls whose requests wait for the socket; those that were given up meanwhile are passed over.
    outgoing: mpsc::UnboundedSender<u64>,
    writer: Writer,
    pending: Pending,
    next_id: AtomicU64,
    fetches: Arc<Mutex<Fetches>>,
    received: Arc<AtomicU64>,
    sent: Arc<AtomicU64>,
    /// Since when the task that writes is at one frame, if it is.
    writing: Arc<Mutex<Option<Instant>>>,
}

impl Connection {
    /// Connects to a server in this role at `address`, and greets it. Payloads of answers go into buffers of `buffers`.
    pub async fn open(
        server: Role,
        address: &str,
        identity: &Identity,
        buffers: &Arc<BufferPool>,
    ) -> Result<Self, CallError> {
        let connect = |cause: String| CallError::Connect { address: address.to_owned(), cause };
        let opened = timeout(CONNECT_TIMEOUT, greet(server, address, identity)).await;
        let late = |_| connect(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()));
        let opened = opened.map_err(late)?.map_err(|error| match error.downcast() {
            Ok(Failure { code: ErrorCode::Unavailable, message, .. }) => connect(message),
            Ok(refused) => refused.into(),
            Err(error) if is_of_strangers(&error) => {
                CallError::Stranger { address: address.to_owned(), cause: said_of_strangers(&error) }
            }
            Err(error) => connect(error.to_string()),
        })?;
        let Opened { reader, writer, pool, managers, era, leadership, here, socket } = match opened {
            Greeting::LetIn(opened) => *opened,
            Greeting::StandsBy(standing) => {
                return Err(CallError::StandsBy { address: address.to_owned(), standing });
            }
        };
        let (outgoing, queue) = mpsc::unbounded_channel();
        let pending: Pending = Arc::new(Mutex::new(Some(HashMap::new())));
        let (received, sent) = (reader.moved_in_all(), writer.moved_in_all());
        let writer = Arc::new(tokio::sync::Mutex::new(writer));
        let (fetches, writing) = (Arc::<Mutex<Fetches>>::default(), Arc::<Mutex<Option<Instant>>>::default());
        let writes = Writes {
            writer: Arc::clone(&writer),
            fetches: Arc::clone(&fetches),
            writing: Arc::clone(&writing),
        };
        tokio::spawn(writes.all(queue, Arc::clone(&pending)));
        let alive = Arc::<AtomicU64>::default();
        let reads = Reads {
            buffers: Arc::clone(buffers),
            pending: Arc::clone(&pending),
            fetches: Arc::clone(&fetches),
            alive: Arc::clone(&alive),
        };
        let reading = tokio::spawn(reads.all(reader)).abort_handle();
        let superseded = Arc::<AtomicBool>::default();
        let watch = Watch {
            server,
            address: address.to_owned(),
            identity: identity.clone(),
            pending: Arc::clone(&pending),
            received: Arc::clone(&received),
            superseded: Arc::clone(&superseded),
            socket,
        };
        // Within a machine nothing is lost.
        let watching = socket_of(address).is_none().then(|| tokio::spawn(watch.keep()).abort_handle());
        let (address, next_id) = (address.to_owned(), AtomicU64::new(1));
        Ok(Self {
            reading,
            watching,
            superseded,
            alive,
            address,
            pool,
            managers,
            era,
            leadership,
            here,
            outgoing,
            writer,
            pending,
            next_id,
            fetches,
            received,
            sent,
            writing,
        })
    }

    /// What it has brought so far.
    pub fn carried(&self) -> Carried {
        let fetches = self.fetches.lock();
        let unanswered = fetches.under_way.len() as u64;
        Carried { unanswered, answered: fetches.answered, bytes: self.received_of_answers() }
    }

    /// The pool that the server serves.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Where the pool's managers serve, as the manager said that greeted; none: nobody has told it.
    pub fn managers(&self) -> &[String] {
        &self.managers
    }

    /// That of the pool's state that the manager has that greeted.
    pub fn era(&self) -> Option<Era> {
        self.era
    }

    /// Which time of leading the manager's is that greeted; `None`: nobody stands by for it.
    pub fn leadership(&self) -> Option<u64> {
        self.leadership
    }

    /// The address of this machine on the way there; `None`: it doesn't lead over the network.
    pub fn here(&self) -> Option<IpAddr> {
        self.here
    }

    /// Where it leads.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether the connection has ended; a new one must be opened.
    pub fn is_closed(&self) -> bool {
        self.pending.lock().is_none()
    }

    /// Whether it ended since nothing came on it and a new connection got through: what was asked may be asked again at once.
    pub fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Relaxed)
    }

    /// Bytes that moved so far, in both directions. That the server is there moves nothing.
    pub fn moved(&self) -> u64 {
        self.received_of_answers().wrapping_add(self.sent.load(Ordering::Relaxed))
    }

    fn received_of_answers(&self) -> u64 {
        // These are counted later than all bytes are, so that nothing is taken away that isn't there.
        let alive = self.alive.load(Ordering::Relaxed);
        self.received.load(Ordering::Relaxed).saturating_sub(alive)
    }

    /// Since when it sends one frame, if it does: that of a call that was given up is sent to its end.
    pub fn writing_since(&self) -> Option<Instant> {
        *self.writing.lock()
    }

    /// Sends `request` with `payload` and waits for the answer and its payload, for at most `limit` without anything moving.
    pub async fn call<Q, R>(
        &self,
        request: &Q,
        payload: Bytes,
        limit: Duration,
    ) -> Result<(R, Buffer), CallError>
    where
        Q: Encode<()>,
        R: for<'b> Decode<'b, ()>,
    {
        self.call_watched(request, payload, limit, Arc::default()).await
    }

    /// As [`Self::call`]; `progress` tells how far it has got.
    pub async fn call_watched<Q, R>(
        &self,
        request: &Q,
        payload: Bytes,
        limit: Duration,
        progress: Arc<Progress>,
    ) -> Result<(R, Buffer), CallError>
    where
        Q: Encode<()>,
        R: for<'b> Decode<'b, ()>,
    {
        self.exchange((cbor::encode(request), payload), false, limit, progress).await
    }

    /// Sends `request` for a payload and waits for it: [`Self::carried`] counts such answers.
    pub async fn fetch<Q, R>(&self, request: &Q, limit: Duration) -> Result<(R, Buffer), CallError>
    where
        Q: Encode<()>,
        R: for<'b> Decode<'b, ()>,
    {
        self.exchange((cbor::encode(request), Bytes::new()), true, limit, Arc::default()).await
    }

    async fn exchange<R: for<'b> Decode<'b, ()>>(
        &self,
        request: (Vec<u8>, Bytes),
        is_fetch: bool,
        limit: Duration,
        progress: Arc<Progress>,
    ) -> Result<(R, Buffer), CallError> {
        let (times, within) = ANSWERED_WITHIN;
        let within = within.min(limit.saturating_mul(times)).max(limit);
        let mut answer = pin!(self.ask(request, is_fetch, Arc::clone(&progress)));
        let (mut moved, mut looks) = (self.moved(), 0);
        let (body, payload) = loop {
            if let Ok(answer) = timeout(limit / LOOKS, &mut answer).await {
                break answer?;
            }
            let now = self.moved();
            looks = if now == std::mem::replace(&mut moved, now) { looks + 1 } else { 0 };
            let is_overdue = progress.written().is_some_and(|written| written.elapsed() >= within);
            if looks >= LOOKS || is_overdue {
                return Err(self.late(limit));
            }
        };
        let reply = cbor::decode(&body).map_err(|error| self.malformed(&error.to_string()))?;
        Ok((reply, payload))
    }

    async fn ask(
        &self,
        (body, payload): (Vec<u8>, Bytes),
        is_fetch: bool,
        progress: Arc<Progress>,
    ) -> Result<(Vec<u8>, Buffer), CallError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let bytes = frame::encode(&Head { kind: Kind::Request, id }, &body, payload.len())
            .map_err(|error| Failure::new(ErrorCode::TooLong, error.to_string()))?;
        let (sender, answer) = oneshot::channel();
        let call = Call { request: None, is_fetch, progress: Arc::clone(&progress), answer: sender };
        let _forget = Forget { id, pending: &self.pending };
        match self.pending.lock().as_mut() {
            Some(pending) => pending.insert(id, call),
            None => return Err(self.closed()),
        };
        if self.is_sent_at_once(&bytes, &payload, is_fetch.then_some(id)) {
            progress.begins();
            progress.ends();
        } else {
            self.line_up(id, (bytes, payload)).ok_or_else(|| self.closed())?;
        }
        answer.await.map_err(|_| self.closed())?.map_err(CallError::Refused)
    }

    /// The task that writes takes the request once the socket is free, unless the call is given up before.
    fn line_up(&self, id: u64, request: (Vec<u8>, Bytes)) -> Option<()> {
        self.pending.lock().as_mut()?.get_mut(&id)?.request = Some(request);
        self.outgoing.send(id).ok()
    }

    /// Whether a small frame went to the socket here and now, since nothing else is being written: then no other thread is woken
    /// for it.
    fn is_sent_at_once(&self, head: &[u8], payload: &Bytes, fetch: Option<u64>) -> bool {
        /// Copying more costs more than a hand-over.
        const BYTES_MAX: usize = 16 << 10;
        if head.len() + payload.len() > BYTES_MAX {
            return false;
        }
        let Ok(mut writer) = Arc::clone(&self.writer).try_lock_owned() else { return false };
        let bytes = [head, payload].concat();
        // Before it is answered.
        self.fetches.lock().under_way.extend(fetch);
        match writer.half_mut().try_write(&bytes) {
            Ok(written) if written == bytes.len() && writer.half_mut().is_flushed() => true,
            Ok(written) => {
                // A call that is given up leaves no half frame behind.
                let (rest, pending) = (Bytes::from(bytes).split_off(written), Arc::clone(&self.pending));
                tokio::spawn(async move { write_or_end(&mut writer, &rest, &Bytes::new(), &pending).await });
                true
            }
            // Nothing was written: the task that writes waits for room, or meets the error and ends the connection.
            Err(_) => {
                let mut fetches = self.fetches.lock();
                fetches.under_way.retain(|id| Some(*id) != fetch);
                false
            }
        }
    }

    fn closed(&self) -> CallError {
        CallError::Closed { address: self.address.clone() }
    }

    fn late(&self, limit: Duration) -> CallError {
        CallError::Timeout { address: self.address.clone(), seconds: limit.as_secs() }
    }

    fn malformed(&self, cause: &str) -> CallError {
        CallError::Malformed { address: self.address.clone(), cause: cause.to_owned() }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reading.abort();
        self.watching.iter().for_each(AbortHandle::abort);
    }
}

/// Looks whether anything comes on a connection.
struct Watch {
    server: Role,
    address: String,
    identity: Identity,
    pending: Pending,
    received: Arc<AtomicU64>,
    superseded: Arc<AtomicBool>,
    socket: Option<OwnedFd>,
}

impl Watch {
    /// Ends the connection once nothing comes on it and a new one gets through.
    async fn keep(self) {
        // Since when something is asked and nothing came; that somebody gives up asking changes nothing.
        let (mut received, mut silent) = (self.received(), None);
        loop {
            tokio::time::sleep(SILENCE_LOOK).await;
            let now = self.received();
            if now != std::mem::replace(&mut received, now) {
                silent = None;
            }
            let is_asked = match &*self.pending.lock() {
                Some(pending) => !pending.is_empty(),
                None => return,
            };
            if is_asked {
                silent.get_or_insert_with(Instant::now);
            }
            if silent.is_some_and(|since| since.elapsed() >= SILENT) && self.is_overtaken(received).await {
                tracing::info!(
                    address = self.address,
                    "a connection on which nothing comes any more is given up for a new one"
                );
                self.superseded.store(true, Ordering::Relaxed);
                self.forget_what_is_sent();
                self.pending.lock().take();
                return;
            }
        }
    }

    /// Ends the socket at once and drops what the system would go on sending: a request that arrived after its repetition on the new
    /// connection, and after what followed that, would be carried out once more.
    fn forget_what_is_sent(&self) {
        if let Some(socket) = &self.socket
            && let Err(error) = rustix::net::connect_unspec(socket)
        {
            tracing::warn!(address = self.address, %error, "a silent connection can't be ended at once");
        }
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Tries new connections until one greets or something comes on the old one; whether the new one came first.
    async fn is_overtaken(&self, before: u64) -> bool {
        let mut pause = RACE_PAUSE;
        loop {
            let greeted = timeout(CONNECT_TIMEOUT, greet(self.server, &self.address, &self.identity)).await;
            tokio::time::sleep(pause).await;
            if self.received() != before || self.pending.lock().is_none() {
                return false;
            }
            match greeted {
                // A manager that stands by now has ended all that it had.
                Ok(Ok(_)) => return true,
                // A server that refuses at once is not asked at once again.
                Ok(Err(_)) => pause = (2 * pause).min(RACE_PAUSE_MAX),
                Err(_) => pause = RACE_PAUSE,
            }
        }
    }
}

/// Takes a call that is given up out of the table.
struct Forget<'a> {
    id: u64,
    pending: &'a Pending,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.lock().as_mut() {
            pending.remove(&self.id);
        }
    }
}

/// A server's answer to the greeting.
enum Greeting {
    LetIn(Box<Opened>),
    StandsBy(Box<StandingBy>),
}

/// A connection on which both sides have greeted.
struct Opened {
    reader: Patient<BufReader<Incoming>>,
    writer: Patient<Outgoing>,
    pool: PoolId,
    managers: Vec<String>,
    era: Option<Era>,
    leadership: Option<u64>,
    here: Option<IpAddr>,
    socket: Option<OwnedFd>,
}

/// Connects and greets. A refusal is an error with a [`Failure`] within.
async fn greet(server: Role, address: &str, identity: &Identity) -> io::Result<Greeting> {
    let Connected { stream: (reader, writer), peer, here, socket } =
        connect(address, identity.keys.as_deref()).await?;
    let (mut reader, mut writer) =
        (Patient::new(buffered(reader), PATIENCE), Patient::new(writer, REQUEST_PATIENCE));
    let hello =
        Hello { protocol: PROTOCOL, role: identity.role, pool: identity.pool, maker: identity.maker() };
    let answer = say(&mut reader, &mut writer, &hello).await;
    let greeted: Greeted = answer.map_err(|error| match (&peer, error.kind()) {
        (
            Peer::Own,
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof,
        ) => turned_away(),
        _ => error,
    })?;
    let (role, pool) = match &greeted {
        Greeted::Welcome(welcome) => (welcome.role, welcome.pool),
        Greeted::StandsBy(standing) => (Role::Manager, standing.pool),
    };
    let is_shown = match &peer {
        Peer::Own => true,
        // It has shown a certificate of the pool whose keys are used here.
        Peer::Member(member) => {
            member.may_be(role) && identity.keys.as_ref().is_some_and(|keys| keys.pool() == pool)
        }
        Peer::Stranger(_) => false,
    };
    if role != server || !is_shown {
        // Not for ever, as a refusal is: the server that was there may come back.
        let message =
            format!("no {} of this pool answers there: another one has taken its address", server.name());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(match greeted {
        Greeted::Welcome(Welcome { managers, era, leadership, .. }) => {
            let opened = Opened { reader, writer, pool, managers, era, leadership, here, socket };
            Greeting::LetIn(Box::new(opened))
        }
        Greeted::StandsBy(standing) => Greeting::StandsBy(Box::new(standing)),
    })
}

/// Says what a connection begins with and reads the answer to it.
pub(crate) async fn say<Q: Encode<()>, R: for<'b> Decode<'b, ()>>(
    reader: &mut Patient<BufReader<Incoming>>,
    writer: &mut Patient<Outgoing>,
    said: &Q,
) -> io::Result<R> {
    let bytes = frame::encode(&Head { kind: Kind::Request, id: 0 }, &cbor::encode(said), 0)?;
    write_frame(writer, &bytes, &Bytes::new()).await?;
    let answer = frame::read_greeting(reader, frame::GREETED_BYTES_MAX).await?;
    let (head, body) = answer.ok_or(io::ErrorKind::UnexpectedEof)?;
    let garbled =
        |error: minicbor::decode::Error| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    match head.kind {
        Kind::Failure => Err(io::Error::other(cbor::decode::<Failure>(&body).map_err(garbled)?)),
        _ => cbor::decode(&body).map_err(garbled),
    }
}

/// The server has closed the connection in place of an answer.
fn turned_away() -> io::Error {
    let message = "the server ended the connection: at a socket of the machine it serves processes of its own user and root alone";
    io::Error::new(io::ErrorKind::UnexpectedEof, message)
}

/// What the task that writes has.
struct Writes {
    writer: Writer,
    fetches: Arc<Mutex<Fetches>>,
    writing: Arc<Mutex<Option<Instant>>>,
}

impl Writes {
    /// Writes all requests, one after the other.
    async fn all(self, mut queue: mpsc::UnboundedReceiver<u64>, pending: Pending) {
        while let Some(id) = queue.recv().await {
            let Some(Taken { head, payload, is_fetch, progress }) = take_request(&pending, id) else {
                continue;
            };
            let mut writer = self.writer.lock().await;
            self.fetches.lock().under_way.extend(is_fetch.then_some(id));
            progress.begins();
            *self.writing.lock() = progress.began();
            write_or_end(&mut writer, &head, &payload, &pending).await;
            *self.writing.lock() = None;
            progress.ends();
        }
    }
}

/// Writes a frame, or what is left of one. A connection on which that fails ends, and all its calls with it.
async fn write_or_end(writer: &mut Patient<Outgoing>, head: &[u8], payload: &Bytes, pending: &Pending) {
    if let Err(error) = write_frame(writer, head, payload).await {
        tracing::debug!(%error, "a connection ended while writing");
        pending.lock().take();
    }
}

/// A request that is to be written.
struct Taken {
    head: Vec<u8>,
    payload: Bytes,
    is_fetch: bool,
    progress: Arc<Progress>,
}

fn take_request(pending: &Pending, id: u64) -> Option<Taken> {
    let mut pending = pending.lock();
    let call = pending.as_mut()?.get_mut(&id)?;
    let (head, payload) = call.request.take()?;
    Some(Taken { head, payload, is_fetch: call.is_fetch, progress: Arc::clone(&call.progress) })
}

/// Writes a frame: head and body, then the payload.
pub(crate) async fn write_frame(
    writer: &mut Patient<Outgoing>,
    head: &[u8],
    payload: &Bytes,
) -> io::Result<()> {
    writer.begin();
    writer.write_all_buf(&mut bytes::Buf::chain(head, payload.as_ref())).await?;
    writer.flush().await
}

/// Reads ahead, so that a small frame takes one call of the system.
pub(crate) fn buffered(reader: Incoming) -> BufReader<Incoming> {
    /// A body and a small payload; a large one goes past it to its own buffer.
    const BYTES: usize = 8 << 10;
    BufReader::with_capacity(BYTES, reader)
}

/// The state of the task that reads.
struct Reads {
    buffers: Arc<BufferPool>,
    pending: Pending,
    fetches: Arc<Mutex<Fetches>>,
    alive: Arc<AtomicU64>,
}

impl Reads {
    /// Reads all answers, one after the other.
    async fn all(self, mut reader: Patient<BufReader<Incoming>>) {
        loop {
            match frame::read(&mut reader, &self.buffers).await {
                Ok(Some((Head { kind: Kind::Alive, .. }, ..))) => {
                    self.alive.fetch_add(frame::HEAD_BYTES as u64, Ordering::Relaxed);
                }
                Ok(Some((head, body, payload))) => {
                    {
                        let mut fetches = self.fetches.lock();
                        fetches.answered += u64::from(fetches.under_way.remove(&head.id));
                    }
                    deliver(&self.pending, &head, body, payload);
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(%error, "a connection ended while reading");
                    break;
                }
            }
        }
        self.pending.lock().take();
    }
}

fn deliver(pending: &Pending, head: &Head, body: Vec<u8>, payload: Buffer) {
    let waiting = pending.lock().as_mut().and_then(|pending| pending.remove(&head.id));
    let answer = match head.kind {
        Kind::Failure => Err(cbor::decode(&body).unwrap_or_else(|error| {
            Failure::new(ErrorCode::Malformed, format!("a failure that can't be read: {error}"))
        })),
        _ => Ok((body, payload)),
    };
    if let Some(waiting) = waiting {
        // The caller may have given up in this moment; then nobody needs the answer.
        let _ = waiting.answer.send(answer);
    }
}
