//! Many simulated benefactors of one real manager: each has a connection, registers, tells an inventory, sends heartbeats and
//! carries out orders to copy, as `stdchk benefactor` does, but has no disk. What it holds follows from its number.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use minicbor::Encode;
use parking_lot::Mutex;
use stdchk_model::exact::to_usize;
use stdchk_model::limits::{HEARTBEAT_MS, LIST_ENTRIES_MAX};
use stdchk_model::message::benefactor::{BenefactorLoad, Command, FailedCopy, Make};
use stdchk_model::message::handshake::Role;
use stdchk_model::message::manager::{
    BenefactorSecret, ManagerReply, ManagerRequest, Registration, StoredBlock,
};
use stdchk_model::{BenefactorId, BlockId, ChunkId, ErrorCode, Incarnation, Receipt, ReceiptKey, Tier};
use stdchk_net::{BufferPool, Bytes, CallError, Connection, Identity, Retry};
use tokio::sync::Notify;

/// Bytes of each simulated chunk.
pub const CHUNK_BYTES: u32 = 1 << 20;
/// What the link of a simulated host carries, bytes a second: 1 Gbit/s.
const LINK: u64 = 125_000_000;
/// One in so many is lost.
pub const LOST_IN: u64 = 20;
/// As of a benefactor.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// The chunk of a number.
pub fn chunk(number: u64) -> ChunkId {
    ChunkId::of(&number.to_le_bytes())
}

fn stored(chunk: ChunkId) -> StoredBlock {
    StoredBlock { block: BlockId::plain(chunk), plain_length: CHUNK_BYTES, stored_length: CHUNK_BYTES }
}

/// Who holds what: `rounds` times as many chunks as there are members, each at two of them.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Simulated benefactors, a multiple of [`LOST_IN`], or 4.
    pub members: u64,
    /// Chunks of each, its second copies of others not counted.
    pub rounds: u64,
}

impl Shape {
    /// Number of all chunks.
    pub fn chunks(self) -> u64 {
        self.members * self.rounds
    }

    /// What a member holds.
    fn held(self, member: u64) -> impl Iterator<Item = u64> {
        let Self { members, rounds } = self;
        (0..rounds).flat_map(move |round| {
            // The second copies of a member's chunks lie at another member each round, and never at one that is lost with it.
            let away = 1 + round % (LOST_IN - 1);
            let other = (member + LOST_IN * members - away) % members;
            [round * members + member, round * members + other]
        })
    }
}

/// One simulated benefactor.
struct Member {
    number: u64,
    secret: BenefactorSecret,
    receipt_key: ReceiptKey,
    id: Mutex<Option<BenefactorId>>,
    added: Mutex<Vec<StoredBlock>>,
    /// What it holds beyond its shape's share.
    copied: Mutex<Vec<StoredBlock>>,
    failed: Mutex<Vec<FailedCopy>>,
    puts: AtomicU64,
    news: Notify,
    stopped: AtomicBool,
    stop: Notify,
}

/// All of them.
pub struct Swarm {
    shape: Shape,
    address: String,
    members: Vec<Arc<Member>>,
    /// Place in `members` by number.
    places: Mutex<HashMap<BenefactorId, usize>>,
    buffers: Arc<BufferPool>,
    /// Those that have told all.
    pub told: AtomicU64,
    /// Copies made.
    pub copies: AtomicU64,
    /// Heartbeats answered, their time in all, and that of the slowest, microseconds.
    pub beats: AtomicU64,
    /// See `beats`.
    pub slowest_beat_us: AtomicU64,
    /// See `beats`.
    pub beats_us: AtomicU64,
}

impl Swarm {
    /// Simulated benefactors of the manager at `address`; they run on the present runtime.
    pub fn start(shape: Shape, address: &str) -> Arc<Self> {
        let member = |number| {
            let key = blake3::hash(&u64::to_le_bytes(number));
            Arc::new(Member {
                number,
                secret: BenefactorSecret(*key.as_bytes()),
                receipt_key: ReceiptKey(*key.as_bytes()),
                id: Mutex::new(None),
                added: Mutex::default(),
                copied: Mutex::default(),
                failed: Mutex::default(),
                puts: AtomicU64::new(1),
                news: Notify::new(),
                stopped: AtomicBool::new(false),
                stop: Notify::new(),
            })
        };
        let swarm = Arc::new(Self {
            shape,
            address: address.to_owned(),
            members: (0..shape.members).map(member).collect(),
            places: Mutex::default(),
            buffers: BufferPool::new(64 << 20),
            told: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            beats: AtomicU64::new(0),
            slowest_beat_us: AtomicU64::new(0),
            beats_us: AtomicU64::new(0),
        });
        for member in &swarm.members {
            let (swarm, member) = (Arc::clone(&swarm), Arc::clone(member));
            tokio::spawn(async move {
                tokio::select! {
                    () = swarm.keep(&member) => {}
                    () = member.stop.notified() => {}
                }
            });
        }
        swarm
    }

    /// Stops one in [`LOST_IN`] for good, as if their hosts were lost.
    pub fn lose(&self) {
        for member in self.members.iter().step_by(to_usize(LOST_IN)) {
            member.stopped.store(true, Ordering::Relaxed);
            member.stop.notify_one();
        }
    }

    /// Whether a benefactor was among those that were stopped.
    pub fn is_lost(&self, id: BenefactorId) -> bool {
        let place = self.places.lock().get(&id).copied();
        place
            .and_then(|place| self.members.get(place))
            .is_some_and(|member| member.stopped.load(Ordering::Relaxed))
    }

    /// A receipt of each of two members for a chunk, durable there from now on.
    pub fn receipts(&self, chunk: ChunkId, at: usize) -> Vec<(BenefactorId, Receipt)> {
        let places = [at % self.members.len(), (at + 1) % self.members.len()];
        let receipt = |place: usize| {
            let member = self.members.get(place)?;
            let sequence = member.puts.fetch_add(1, Ordering::Relaxed) + 1;
            let receipt = Receipt::new(&member.receipt_key, Incarnation(1), sequence, vec![stored(chunk)]);
            Some(((*member.id.lock())?, receipt))
        };
        places.into_iter().filter_map(receipt).collect()
    }

    async fn keep(self: &Arc<Self>, member: &Arc<Member>) {
        let mut retry = Retry::endless(PAUSES);
        loop {
            // Its end is that of the manager, or of the measure.
            let _ended = self.life(member, &mut retry).await;
            retry.pause().await;
        }
    }

    async fn life(self: &Arc<Self>, member: &Arc<Member>, retry: &mut Retry) -> Result<(), CallError> {
        let identity = Identity { role: Role::Benefactor, pool: None, keys: None };
        let connection = Connection::open(Role::Manager, &self.address, &identity, &self.buffers).await?;
        let registration = Registration {
            id: *member.id.lock(),
            incarnation: Incarnation(1),
            address: format!("127.0.0.1:{}", 1024 + member.number % 60_000),
            pid: 1,
            load: self.load(member),
            remembered: None,
            put_sequence: member.puts.load(Ordering::Relaxed),
            receipt_key: member.receipt_key.clone(),
            term: None,
            machine: None,
            labels: Vec::new(),
            tier: Tier::Disk,
        };
        let request = registration.introduced(&member.secret);
        let ManagerReply::Registered { id, registration, .. } = ask(&connection, &request).await? else {
            return Ok(());
        };
        *member.id.lock() = Some(id);
        self.places.lock().insert(id, to_usize(member.number));
        loop {
            match ask(&connection, &ManagerRequest::BeginInventory { id, registration }).await {
                Err(CallError::Refused(failure)) if failure.code == ErrorCode::Unavailable => {
                    tokio::time::sleep(PAUSES.0).await;
                }
                answer => break drop(answer?),
            }
        }
        let mut blocks: Vec<StoredBlock> =
            self.shape.held(member.number).map(|number| stored(chunk(number))).collect();
        blocks.extend(member.copied.lock().iter().cloned());
        let put_sequence = member.puts.load(Ordering::Relaxed);
        let parts = blocks.len().div_ceil(LIST_ENTRIES_MAX).max(1);
        for part in 0..parts {
            let blocks =
                blocks.iter().skip(part * LIST_ENTRIES_MAX).take(LIST_ENTRIES_MAX).cloned().collect();
            let last = part + 1 == parts;
            ask(&connection, &ManagerRequest::Inventory { id, registration, last, blocks, put_sequence })
                .await?;
        }
        retry.progressed();
        self.told.fetch_add(1, Ordering::Relaxed);
        let ended = tokio::select! {
            ended = self.beat(&connection, member, id, registration) => ended,
            ended = self.take_orders(&connection, member, id, registration) => ended,
        };
        self.told.fetch_sub(1, Ordering::Relaxed);
        ended
    }

    fn load(&self, member: &Member) -> BenefactorLoad {
        let blocks = 2 * self.shape.rounds + member.copied.lock().len() as u64;
        let used_bytes = blocks * u64::from(CHUNK_BYTES);
        let free_bytes = 1 << 40;
        BenefactorLoad {
            donated_bytes: used_bytes + free_bytes,
            used_bytes,
            free_bytes,
            blocks,
            ..BenefactorLoad::default()
        }
    }

    async fn beat(
        self: &Arc<Self>,
        connection: &Connection,
        member: &Arc<Member>,
        id: BenefactorId,
        registration: u64,
    ) -> Result<(), CallError> {
        let mut every = Duration::from_millis(HEARTBEAT_MS);
        let mut next = tokio::time::Instant::now();
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(next) => next = tokio::time::Instant::now() + every,
                () = member.news.notified() => {}
            }
            let added = std::mem::take(&mut *member.added.lock());
            let copies_failed = std::mem::take(&mut *member.failed.lock());
            let sequence = member.puts.load(Ordering::Relaxed);
            let request = ManagerRequest::Heartbeat {
                id,
                registration,
                load: self.load(member),
                durable_sequence: sequence,
                added,
                removed: Vec::new(),
                damaged: 0,
                copies_failed,
                put_sequence: sequence,
                decoded: Vec::new(),
                seen: Vec::new(),
                disk: None,
            };
            let began = Instant::now();
            let reply = ask(connection, &request).await?;
            let took = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.beats.fetch_add(1, Ordering::Relaxed);
            self.beats_us.fetch_add(took, Ordering::Relaxed);
            self.slowest_beat_us.fetch_max(took, Ordering::Relaxed);
            if let ManagerReply::Commands(commands) = &reply
                && let Some(ms) = commands.iter().find_map(Command::beat_every)
            {
                every = Duration::from_millis(ms);
                next = tokio::time::Instant::now() + every;
            }
            self.obey(member, reply);
        }
    }

    async fn take_orders(
        self: &Arc<Self>,
        connection: &Connection,
        member: &Arc<Member>,
        id: BenefactorId,
        registration: u64,
    ) -> Result<(), CallError> {
        loop {
            let reply = ask(connection, &ManagerRequest::Orders { id, registration }).await?;
            self.obey(member, reply);
        }
    }

    fn obey(self: &Arc<Self>, member: &Arc<Member>, reply: ManagerReply) {
        let ManagerReply::Commands(commands) = reply else { return };
        let is_make = |command| match command {
            Command::Make(make) => Some(make),
            _ => None,
        };
        let makes: Vec<Make> = commands.into_iter().filter_map(is_make).collect();
        if makes.is_empty() {
            return;
        }
        let (swarm, source) = (Arc::clone(self), Arc::clone(member));
        tokio::spawn(async move { swarm.copy(&source, makes).await });
    }

    /// Copies as fast as the link of the source allows.
    async fn copy(&self, source: &Member, makes: Vec<Make>) {
        for make in makes {
            let bytes = u64::from(CHUNK_BYTES) * make.blocks.len() as u64;
            tokio::time::sleep(Duration::from_nanos(bytes * 1_000_000_000 / LINK)).await;
            for block in &make.blocks {
                let to = self.places.lock().get(&block.to).and_then(|place| self.members.get(*place));
                match to.filter(|member| !member.stopped.load(Ordering::Relaxed)) {
                    Some(to) => {
                        to.puts.fetch_add(1, Ordering::Relaxed);
                        to.copied.lock().push(stored(make.chunk));
                        to.added.lock().push(stored(make.chunk));
                        to.news.notify_one();
                        self.copies.fetch_add(1, Ordering::Relaxed);
                    }
                    None => {
                        source.failed.lock().push(FailedCopy { chunk: make.chunk, to: Some(block.to) });
                        source.news.notify_one();
                    }
                }
            }
        }
    }
}

/// Asks the manager something.
pub async fn ask(connection: &Connection, request: &impl Encode<()>) -> Result<ManagerReply, CallError> {
    Ok(connection.call(request, Bytes::new(), ANSWER_TIMEOUT).await?.0)
}
