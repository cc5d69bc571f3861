//! The serving side: accept, shake hands, answer requests concurrently, stop when told.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use minicbor::{Decode, Encode};
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use stdchk_model::exact::to_usize;
use stdchk_model::limits::REQUESTS_IN_FLIGHT_MAX;
use stdchk_model::message::handshake::{
    Greeted, Hello, Join, Joined, MemberId, PROTOCOL, Role, StandingBy, Welcome,
};
use stdchk_model::message::manager::Era;
use stdchk_model::{ErrorCode, Failure, Maker, PoolId, User, cbor};
use tokio::io::BufReader;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::buffer::{Buffer, BufferPool};
use crate::connection::{buffered, write_frame};
use crate::frame::{self, Head, Kind};
use crate::gate::{Entered, Gate, Place};
use crate::keys::Keys;
use crate::patience::{PATIENCE, Patient};
use crate::repeats::Repeats;
use crate::transport::{Arrival, Incoming, Listener, Outgoing, Peer};
use crate::waits::permits;

/// Time that a caller has for its greeting: connections that stay silent are closed.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept, for instance when descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections of members of the pool at one time; more are refused.
const MEMBERS_MAX: usize = 65_536;
/// Connections that haven't greeted at one time; for one more the oldest is dropped of the host that has most of them, so that strangers, however many there are,
/// keep no member out that greets sooner than so many others come.
const STRANGERS_MAX: usize = 256;

/// Time after which a server says that it is there, on a connection over which it has sent nothing meanwhile and on which a request waits for its answer.
/// A caller that hears nothing for twice as long tries whether another connection gets through ([`crate::connection`]).
const ALIVE_EVERY: Duration = Duration::from_secs(2);

/// How many requests of one connection wait for their answers, from when their first bytes came.
#[derive(Default)]
struct Waiting {
    count: AtomicUsize,
    /// Told when there is one after there was none.
    began: Notify,
}

/// One of them.
struct Awaited(Arc<Waiting>);

impl Awaited {
    fn new(waiting: &Arc<Waiting>) -> Self {
        if waiting.count.fetch_add(1, Ordering::Relaxed) == 0 {
            waiting.began.notify_one();
        }
        Self(Arc::clone(waiting))
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many connections a server keeps. Of a benefactor's descriptors members take three eighths at most and strangers an eighth; half
/// remain for files. Of a manager's, which has a dozen files, members take three quarters.
struct Limits {
    members: usize,
    strangers: usize,
}

impl Limits {
    fn new(role: Role) -> Self {
        let eighth = getrlimit(Resource::Nofile).current.map_or(usize::MAX, to_usize) / 8;
        let share = if role == Role::Manager { 6 } else { 3 };
        Self {
            members: eighth.saturating_mul(share).clamp(1, MEMBERS_MAX),
            strangers: eighth.clamp(1, STRANGERS_MAX),
        }
    }
}

/// Memory of a manager for requests of members under way, bytes, and as much for answers: those that wait of ten thousand benefactors
/// take half. A benefactor has as much as it receives blocks into.
const MANAGER_REQUESTS_BYTES: u64 = 256 << 20;

/// A connection that hasn't greeted yet.
struct Stranger {
    /// The address of its host, or of its host's network; `None`: this machine.
    host: Option<IpAddr>,
    task: AbortHandle,
    /// Set by whoever is first: the greeting, or one who needs the place.
    settled: Arc<AtomicBool>,
}

/// The connections that haven't greeted, oldest first.
#[derive(Default)]
struct Strangers(VecDeque<Stranger>);

impl Strangers {
    /// Makes room for one more; if there are `most`, drops the oldest of the host that has most of them.
    fn make_room(&mut self, most: usize) {
        self.0.retain(|stranger| !stranger.task.is_finished() && !stranger.settled.load(Ordering::Relaxed));
        while self.0.len() >= most {
            let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
            self.0.iter().for_each(|stranger| *counts.entry(stranger.host).or_default() += 1);
            let crowd = counts.values().max().copied().unwrap_or(0);
            let is_of_most = |stranger: &Stranger| counts.get(&stranger.host) == Some(&crowd);
            let oldest = self.0.iter().position(is_of_most).and_then(|at| self.0.remove(at));
            let Some(oldest) = oldest else { return };
            if !oldest.settled.swap(true, Ordering::Relaxed) {
                oldest.task.abort();
            }
        }
    }
}

/// The address by which strangers of one host are counted: in IPv6 a host has all addresses of its network.
fn host_of(peer: &str) -> Option<IpAddr> {
    const HOST_BITS: u32 = 64;
    let address: SocketAddr = peer.parse().ok()?;
    Some(match address.ip() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> HOST_BITS << HOST_BITS).into()),
        v4 => v4,
    })
}

/// Who has asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// What it acts as, and may.
    pub role: Role,
    /// Which member of the pool it is; `None`: a process of this machine that may be all that this user may be.
    pub member: Option<MemberId>,
    /// The user for whom its certificate lets it act; `None`: for whom it says.
    pub user: Option<Arc<User>>,
    /// As whom it codes fragments: its certificate says it, or the process at a socket of this machine, which is believed.
    pub maker: Maker,
    /// By which connection it asks: a number that no other one of this process has. 0: by none.
    pub connection: u64,
}

impl Caller {
    /// A process of this machine in this role.
    #[must_use]
    pub fn of_this_machine(role: Role) -> Self {
        Self { role, member: None, user: None, maker: Maker::LOCAL, connection: 0 }
    }
}

/// Whether a server lets members of its pool in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Readiness {
    /// It does.
    Serves,
    /// It is a manager that stands by for another one.
    StandsBy(StandingBy),
    /// It doesn't; one with [`ErrorCode::Unavailable`] has them try again, or elsewhere.
    Refuses(Failure),
}

/// What a server does with requests.
pub trait Service: Send + Sync + 'static {
    /// What it is asked.
    type Request: for<'b> Decode<'b, ()> + Send;
    /// What it answers.
    type Reply: Encode<()> + Send;

    /// Answers one request. Called concurrently, also for requests of one connection.
    fn handle(
        &self,
        caller: Caller,
        request: Self::Request,
        payload: Buffer,
    ) -> impl Future<Output = Result<(Self::Reply, Bytes), Failure>> + Send;

    /// The caller was let in, and may ask from now on.
    fn began(&self, caller: &Caller) {
        let _ = caller;
    }

    /// The caller has gone: over this connection nothing more is asked. Its requests may be under way still.
    fn ended(&self, caller: &Caller) {
        let _ = caller;
    }

    /// Whether members of the pool are let in now.
    fn readiness(&self) -> Readiness {
        Readiness::Serves
    }

    /// Of a manager: that of the state that it has.
    fn era(&self) -> Option<Era> {
        None
    }

    /// Of a manager that others stand by for: which time of leading it is.
    fn leadership(&self) -> Option<u64> {
        None
    }

    /// Of a manager: where the pool's managers serve; none: nobody has said.
    fn managers(&self) -> Vec<String> {
        Vec::new()
    }

    /// Signs the certificate of a new member, on a connection from the address `from` that is bound to `channel`. Servers without an authority
    /// refuse.
    fn join(
        &self,
        join: Join,
        channel: [u8; 32],
        from: &str,
    ) -> impl Future<Output = Result<Joined, Failure>> + Send {
        let _ = (join, channel, from);
        let message = "new members join at the manager";
        std::future::ready(Err(Failure::new(ErrorCode::Denied, message)))
    }
}

/// Who serves.
#[derive(Clone, Debug)]
pub struct Host {
    /// What it is.
    pub role: Role,
    /// Its pool.
    pub pool: PoolId,
    /// Its keys; `None`: it serves processes of its own machine alone.
    pub keys: Option<Arc<Keys>>,
    /// How long a caller may stop within a frame, see [`crate::patience`].
    pub patience: Duration,
}

impl Host {
    /// A host with the patience of the protocol.
    pub fn new(role: Role, pool: PoolId, keys: Option<Arc<Keys>>) -> Self {
        Self { role, pool, keys, patience: PATIENCE }
    }

    /// Ends once the caller's keys are accepted no more.
    async fn revoked(&self, caller: &Caller) {
        match (&self.keys, caller.member) {
            (Some(keys), Some(member)) => keys.revoked(member).await,
            _ => std::future::pending().await,
        }
    }
}

/// Serves `listener` until `stop` resolves; then no new connections are taken and the running ones are dropped.
pub async fn serve<S: Service>(
    mut listener: Listener,
    host: Host,
    service: Arc<S>,
    buffers: Arc<BufferPool>,
    stop: impl Future<Output = ()>,
) {
    let mut connections = tokio::task::JoinSet::new();
    let limits = Limits::new(host.role);
    // The manager has one thread, of which each member has its turns.
    let is_manager = host.role == Role::Manager;
    let bytes = if is_manager { MANAGER_REQUESTS_BYTES } else { buffers.bytes() as u64 };
    let gate = Gate::new(limits.members, bytes, is_manager);
    let mut strangers = Strangers::default();
    let turned_away = Arc::<TurnedAway>::default();
    let rounds = Arc::clone(&gate);
    connections.spawn(async move { rounds.run_rounds().await });
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            () = &mut stop => return,
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((arrival, peer)) = accepted else {
            tokio::select! {
                () = &mut stop => return,
                () = tokio::time::sleep(ACCEPT_PAUSE) => continue,
            }
        };
        strangers.make_room(limits.strangers);
        let settled = Arc::new(AtomicBool::new(false));
        let door = Door {
            host: host.clone(),
            gate: Arc::clone(&gate),
            settled: Arc::clone(&settled),
            from: peer.clone(),
            turned_away: Arc::clone(&turned_away),
        };
        let (service, buffers, caller) = (Arc::clone(&service), Arc::clone(&buffers), host_of(&peer));
        let task = connections.spawn(async move {
            if let Err(error) = converse(arrival, door, service, buffers).await {
                tracing::debug!(%peer, %error, "a connection ended");
            }
        });
        strangers.0.push_back(Stranger { host: caller, task, settled });
    }
}

/// What a connection needs to be let in.
struct Door {
    host: Host,
    gate: Arc<Gate>,
    settled: Arc<AtomicBool>,
    /// The address of who calls.
    from: String,
    turned_away: Arc<TurnedAway>,
}

/// Callers that are not let in, by host and cause, so that one that calls again and again doesn't fill the log.
#[derive(Default)]
struct TurnedAway(Mutex<HashMap<(Option<IpAddr>, String), Repeats>>);

/// Hosts and causes that are told apart; beyond them all are forgotten, and said anew.
const TURNED_AWAY_MAX: usize = 256;

impl TurnedAway {
    fn note(&self, from: &str, failure: &Failure) {
        let mut all = self.0.lock();
        if all.len() >= TURNED_AWAY_MAX {
            all.clear();
        }
        let repeats = all.entry((host_of(from), failure.message.clone())).or_default();
        if let Some(row) = repeats.failed(&failure.message) {
            tracing::warn!(from, tries = row.times, %failure, "a caller is turned away");
        }
    }
}

async fn converse<S: Service>(
    arrival: Arrival,
    door: Door,
    service: Arc<S>,
    buffers: Arc<BufferPool>,
) -> io::Result<()> {
    let patience = door.host.patience;
    let greeting = async {
        let ((reader, writer), peer) = arrival.open(door.host.keys.clone()).await?;
        let (mut reader, mut writer) = (Patient::new(reader, patience), Patient::new(writer, patience));
        let caller = greet(&door, &*service, &peer, &mut reader, &mut writer).await?;
        io::Result::Ok(caller.map(|(caller, place)| (caller, place, reader, writer)))
    };
    let greeted = timeout(HANDSHAKE_TIMEOUT, greeting).await.map_err(|_| io::ErrorKind::TimedOut)??;
    let Some((caller, _place, reader, writer)) = greeted else { return Ok(()) };
    let asking = caller.clone();
    let revoked = door.host.revoked(&asking);
    let asks = Asks { service: Arc::clone(&service), caller };
    service.began(&asking);
    // Who is known may have memory to read ahead into; a greeting has nothing behind it.
    let reader = Patient::new(buffered(reader.into_half()), patience);
    let (answers, queue) = mpsc::channel(REQUESTS_IN_FLIGHT_MAX);
    let waiting = Arc::<Waiting>::default();
    let writing = write_answers(writer, queue, Arc::clone(&waiting));
    let answers = (answers, waiting);
    let reading = read_requests(reader, asks, service, (buffers, door.gate), answers);
    // Reading ends first when the peer goes; writing ends when all running requests have dropped their senders. Who
    // takes no answers any more is asked nothing more either.
    let talking = async { tokio::try_join!(reading, writing).map(|_| ()) };
    tokio::select! {
        ended = talking => ended,
        () = revoked => Err(io::Error::new(io::ErrorKind::PermissionDenied, "the caller's keys were revoked")),
    }
}

/// A caller that may ask for more; dropped once it has gone, whatever ended its connection.
struct Asks<S: Service> {
    service: Arc<S>,
    caller: Caller,
}

impl<S: Service> Drop for Asks<S> {
    fn drop(&mut self) {
        self.service.ended(&self.caller);
    }
}

/// The greeting: who calls, and its place; or none if it was refused, has joined, or has gone.
async fn greet<S: Service>(
    door: &Door,
    service: &S,
    peer: &Peer,
    reader: &mut Patient<Incoming>,
    writer: &mut Patient<Outgoing>,
) -> io::Result<Option<(Caller, Place)>> {
    let Some((head, body)) = frame::read_greeting(reader, frame::GREETING_BYTES_MAX).await? else {
        return Ok(None);
    };
    if let Peer::Stranger(channel) = peer {
        let joined = match understood::<Join>(&body, |join| join.protocol) {
            Ok(join) => service.join(join, *channel, &door.from).await,
            Err(failure) => Err(failure),
        };
        write_frame(writer, &encode_answer(head.id, joined, 0)?, &Bytes::new()).await?;
        return Ok(None);
    }
    let hello = understood::<Hello>(&body, |hello| hello.protocol);
    let welcomed = hello.and_then(|hello| door.welcome(&hello, peer));
    // Nobody else is told more.
    let (answer, let_in) = match welcomed.map(|welcomed| (welcomed, service.readiness())) {
        Ok(((welcome, caller, place), Readiness::Serves)) => {
            let (managers, era, leadership) = (service.managers(), service.era(), service.leadership());
            (Ok(Greeted::Welcome(Welcome { managers, era, leadership, ..welcome })), Some((caller, place)))
        }
        Ok((_, Readiness::StandsBy(standing))) => (Ok(Greeted::StandsBy(standing)), None),
        Ok((_, Readiness::Refuses(failure))) | Err(failure) => {
            if failure.code != ErrorCode::Unavailable {
                door.turned_away.note(&door.from, &failure);
            }
            (Err(failure), None)
        }
    };
    write_frame(writer, &encode_answer(head.id, answer, 0)?, &Bytes::new()).await?;
    Ok(let_in)
}

/// What a connection begins with.
fn understood<T: for<'b> Decode<'b, ()>>(body: &[u8], protocol: impl Fn(&T) -> u16) -> Result<T, Failure> {
    let begun: T = cbor::decode(body)
        .map_err(|error| Failure::new(ErrorCode::Malformed, format!("no greeting: {error}")))?;
    match protocol(&begun) {
        PROTOCOL => Ok(begun),
        theirs => {
            let message = format!(
                "the caller speaks protocol {theirs}, this server {PROTOCOL}: use the same stdchk on both"
            );
            Err(Failure::new(ErrorCode::Unsupported, message))
        }
    }
}

/// Numbers connections.
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

impl Door {
    /// Lets the caller in if it may be what it says, means this pool, and there is a place for it.
    fn welcome(&self, hello: &Hello, peer: &Peer) -> Result<(Welcome, Caller, Place), Failure> {
        let Host { role, pool, .. } = self.host;
        let caller = match peer {
            // The own user runs the pool.
            Peer::Own => {
                let role = if hello.role == Role::Client { Role::Operator } else { hello.role };
                Caller { maker: hello.maker, ..Caller::of_this_machine(role) }
            }
            Peer::Member(member)
                if self.host.keys.as_ref().is_some_and(|keys| keys.is_revoked(member.id)) =>
            {
                let next = "if that is wrong, ask whoever runs the pool for a token, and join anew";
                return Err(Failure::new(ErrorCode::Denied, "the caller's keys were revoked").then(next));
            }
            Peer::Member(member) if member.may_be(hello.role) => {
                let is_operator = hello.role == Role::Client && member.may_be(Role::Operator);
                let role = if is_operator { Role::Operator } else { hello.role };
                let user = member.user.clone().map(Arc::new);
                Caller { role, member: Some(member.id), user, maker: member.maker(), connection: 0 }
            }
            Peer::Member(_) | Peer::Stranger(_) => {
                let message = format!("the caller's certificate is not that of a {}", hello.role.name());
                return Err(Failure::new(ErrorCode::Denied, message));
            }
        };
        if hello.pool.is_some_and(|meant| meant != pool) {
            let message = format!("this server belongs to another pool, {pool}");
            return Err(Failure::new(ErrorCode::OtherPool, message));
        }
        let busy = |what| Failure::new(ErrorCode::Unavailable, format!("{what}; try again later"));
        let place = self.gate.connect(caller.member);
        let place =
            place.ok_or_else(|| busy("this server has as many connections of this member as it takes"))?;
        if self.settled.swap(true, Ordering::Relaxed) {
            return Err(busy("too many others have called meanwhile"));
        }
        let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        let welcome = Welcome { role, pool, managers: Vec::new(), era: None, leadership: None };
        Ok((welcome, Caller { connection, ..caller }, place))
    }
}

fn encode_answer<R: Encode<()>>(id: u64, answer: Result<R, Failure>, payload: usize) -> io::Result<Vec<u8>> {
    let (kind, body) = match answer {
        Ok(reply) => (Kind::Reply, cbor::encode(&reply)),
        Err(failure) => (Kind::Failure, cbor::encode(&failure)),
    };
    frame::encode(&Head { kind, id }, &body, payload)
}

/// Head and body, payload, and the request's place and memory: given up only when the answer is on its way, so that a caller that
/// sends and never reads comes to a halt.
type Answer = (Vec<u8>, Bytes, (OwnedSemaphorePermit, Entered, Awaited));

async fn read_requests<S: Service>(
    mut reader: Patient<BufReader<Incoming>>,
    asks: Asks<S>,
    service: Arc<S>,
    (buffers, gate): (Arc<BufferPool>, Arc<Gate>),
    (answers, waiting): (mpsc::Sender<Answer>, Arc<Waiting>),
) -> io::Result<()> {
    let room = Arc::new(Semaphore::new(REQUESTS_IN_FLIGHT_MAX));
    let mut running = tokio::task::JoinSet::new();
    let caller = asks.caller.clone();
    loop {
        // The place comes before the payload: whoever waits for a place holds no buffer that the requests under way need.
        let place = permits(&room, 1).await;
        let (gate_in, awaited, member) = (&gate, || Awaited::new(&waiting), caller.member);
        let admit = |lengths| {
            let awaited = awaited();
            async move { (gate_in.enter(member, lengths).await, awaited) }
        };
        let read = frame::read_admitted(&mut reader, &buffers, admit).await?;
        let Some((head, body, payload, (mut entered, awaited))) = read else { break };
        let (service, answers, caller) = (Arc::clone(&service), answers.clone(), caller.clone());
        let gate = Arc::clone(&gate);
        running.spawn(async move {
            let member = caller.member;
            let answering = async {
                let (head, payload) = answer(&*service, caller, head.id, &body, payload).await;
                // Counted before the next one's turn.
                entered.answered(head.len() + payload.len());
                (head, payload)
            };
            let (head, payload) = gate.in_turn(member, answering).await;
            // A peer that went away needs no answer.
            let _ = answers.send((head, payload, (place, entered, awaited))).await;
        });
        while running.try_join_next().is_some() {}
    }
    drop(asks);
    // What was asked is done to its end, also if the asker has gone: a put that was begun is stored.
    while running.join_next().await.is_some() {}
    Ok(())
}

async fn answer<S: Service>(
    service: &S,
    caller: Caller,
    id: u64,
    body: &[u8],
    payload: Buffer,
) -> (Vec<u8>, Bytes) {
    let answered = match cbor::decode::<S::Request>(body) {
        Ok(request) => service.handle(caller, request, payload).await,
        Err(error) => Err(Failure::new(
            ErrorCode::Unsupported,
            format!("this server doesn't know the request: {error}"),
        )),
    };
    let (answered, payload) = match answered {
        Ok((reply, payload)) => (Ok(reply), payload),
        Err(failure) => (Err(failure), Bytes::new()),
    };
    match encode_answer(id, answered, payload.len()) {
        Ok(head) => (head, payload),
        Err(error) => {
            let failure = Failure::new(ErrorCode::TooLong, format!("the answer can't be sent: {error}"));
            let Ok(head) = encode_answer::<()>(id, Err(failure), 0) else {
                unreachable!("a sentence fits into a frame");
            };
            (head, Bytes::new())
        }
    }
}

/// Bytes of answers from which on no other one joins them.
const TOGETHER_BYTES_MAX: usize = 16 << 10;

async fn write_answers(
    mut writer: Patient<Outgoing>,
    mut queue: mpsc::Receiver<Answer>,
    waiting: Arc<Waiting>,
) -> io::Result<()> {
    let alive = frame::encode(&Head { kind: Kind::Alive, id: 0 }, &[], 0)?;
    let (mut written, mut is_set) = (Instant::now(), false);
    let mut alarm = pin!(sleep_until(written));
    loop {
        let next = tokio::select! {
            biased;
            next = queue.recv() => next,
            () = &mut alarm, if is_set => {
                is_set = waiting.count.load(Ordering::Relaxed) > 0;
                if is_set && written.elapsed() >= ALIVE_EVERY {
                    write_frame(&mut writer, &alive, &Bytes::new()).await?;
                    written = Instant::now();
                }
                alarm.as_mut().reset(written + ALIVE_EVERY);
                continue;
            }
            () = waiting.began.notified(), if !is_set => {
                is_set = true;
                alarm.as_mut().reset(Instant::now() + ALIVE_EVERY);
                continue;
            }
        };
        let Some((mut head, mut payload, place)) = next else { return Ok(()) };
        let mut places = vec![place];
        // Small answers that are due together take one call of the system, and wake who reads them once.
        while payload.is_empty()
            && head.len() < TOGETHER_BYTES_MAX
            && let Ok((next, its_payload, its_place)) = queue.try_recv()
        {
            head.extend(next);
            payload = its_payload;
            places.push(its_place);
        }
        write_frame(&mut writer, &head, &payload).await?;
        written = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn strangers_of_one_host_drop_each_other_and_no_stranger_of_another() {
        let mut strangers = Strangers::default();
        let mut come = |peer: &str, most| {
            let settled = Arc::new(AtomicBool::new(false));
            let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
            strangers.make_room(most);
            strangers.0.push_back(Stranger { host: host_of(peer), task, settled: Arc::clone(&settled) });
            settled
        };
        let first = come("10.0.0.1:5", 8);
        let crowd: Vec<_> = (1..40).map(|port| come(&format!("[2001:db8::{port}]:{port}"), 8)).collect();
        let is_dropped = |settled: &Arc<AtomicBool>| settled.load(Ordering::Relaxed);
        assert!(!is_dropped(&first), "it was there first, and is alone");
        assert_eq!(crowd.iter().filter(|settled| is_dropped(settled)).count(), 32);
        assert!(crowd.iter().take(32).all(is_dropped), "the oldest go");
        let another = come("10.0.0.2:5", 8);
        assert!(!is_dropped(&another) && is_dropped(&crowd[32]));
    }
}
