//! A stand-in for the manager and real benefactors around it, on real sockets and files.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stdchk_benefactor::{Config, Error};
use stdchk_model::message::benefactor::{
    BenefactorReply, BenefactorRequest, Check, Command, Make, NewBlock, SourceBlock,
};
use stdchk_model::message::handshake::Role;
use stdchk_model::message::manager::{Era, ManagerReply, ManagerRequest, Term};
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, ChunkRef, Encoding, EncodingId, ErrorCode, Failure, Permit, PermitKey,
    PoolId, Receipt, ReceiptKey, Signed, Tier,
};
use stdchk_net::server::Host;
use stdchk_net::transport::unix_address;
use stdchk_net::{
    Buffer, BufferPool, Bytes, CallError, Caller, Connection, Identity, Listener, Service, serve,
};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

pub const LIMIT: Duration = Duration::from_secs(60);
pub const POOL: PoolId = PoolId([3; 16]);

/// What the manager was told, in order, and what it will order next.
#[derive(Default)]
pub struct Told {
    pub requests: Vec<ManagerRequest>,
    pub commands: Vec<(BenefactorId, Command)>,
    pub stale: bool,
    /// Number of its term.
    pub term: u64,
}

/// Registers everybody, remembers everything.
pub struct Manager {
    pub told: Mutex<Told>,
    folder: TempDir,
}

struct Answers(Arc<Manager>);

impl Service for Answers {
    type Request = ManagerRequest;
    type Reply = ManagerReply;

    async fn handle(
        &self,
        _: Caller,
        request: ManagerRequest,
        _payload: Buffer,
    ) -> Result<(ManagerReply, Bytes), Failure> {
        if let ManagerRequest::Orders { .. } | ManagerRequest::Journal { .. } = &request {
            // Copies are ordered with heartbeats here, and nothing is committed.
            tokio::time::sleep(Duration::from_millis(100)).await;
            let reply = match request {
                ManagerRequest::Orders { .. } => ManagerReply::Commands(Vec::new()),
                _ => ManagerReply::Journal(Vec::new()),
            };
            return Ok((reply, Bytes::new()));
        }
        let mut told = self.0.told.lock();
        let reply = match &request {
            ManagerRequest::Register { registration, .. } => {
                let known =
                    told.requests.iter().filter(|r| matches!(r, ManagerRequest::Register { .. })).count();
                let new = BenefactorId(u32::try_from(known).unwrap() + 1);
                ManagerReply::Registered {
                    id: registration.id.unwrap_or(new),
                    moment: None,
                    registration: 1,
                    term: Signed::not_yet(Term { era: Era::FIRST, number: told.term, start: 1 }),
                    permits: permits(),
                }
            }
            ManagerRequest::Heartbeat { .. } if std::mem::take(&mut told.stale) => {
                return Err(Failure::new(ErrorCode::Stale, "who are you?"));
            }
            ManagerRequest::Heartbeat { id, .. } => {
                let (mine, others) = told.commands.drain(..).partition(|(to, _)| to == id);
                told.commands = others;
                let mine: Vec<(BenefactorId, Command)> = mine;
                ManagerReply::Commands(mine.into_iter().map(|(_, command)| command).collect())
            }
            ManagerRequest::Unreached { .. } => ManagerReply::Benefactors(Vec::new()),
            _ => ManagerReply::Done,
        };
        told.requests.push(request);
        Ok((reply, Bytes::new()))
    }
}

impl Manager {
    pub async fn start() -> Arc<Self> {
        let manager = Arc::new(Self { told: Mutex::default(), folder: TempDir::new().unwrap() });
        let listener = Listener::bind(&manager.address()).await.unwrap();
        let host = Host::new(Role::Manager, POOL, None);
        let answers = Arc::new(Answers(Arc::clone(&manager)));
        tokio::spawn(serve(listener, host, answers, BufferPool::new(1 << 20), std::future::pending()));
        manager
    }

    pub fn address(&self) -> String {
        unix_address(&self.folder.path().join("socket"))
    }

    /// Waits until `test` holds for what was told.
    pub async fn wait(&self, what: &str, test: impl Fn(&Told) -> bool) {
        wait(what, || test(&self.told.lock())).await;
    }

    pub fn order(&self, to: u32, command: Command) {
        self.told.lock().commands.push((BenefactorId(to), command));
    }
}

pub async fn wait(what: &str, test: impl Fn() -> bool) {
    let start = Instant::now();
    while !test() {
        assert!(start.elapsed() < LIMIT, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl Told {
    pub fn added(&self, block: BlockId) -> bool {
        self.requests.iter().any(|request| match request {
            ManagerRequest::Heartbeat { added, .. } => added.iter().any(|stored| stored.block == block),
            ManagerRequest::Inventory { blocks, .. } => blocks.iter().any(|stored| stored.block == block),
            _ => false,
        })
    }

    pub fn removed(&self, block: BlockId) -> bool {
        let removed = |request: &ManagerRequest| matches!(request, ManagerRequest::Heartbeat { removed, .. } if removed.contains(&block));
        self.requests.iter().any(removed)
    }

    pub fn durable_sequence(&self) -> Option<u64> {
        self.requests.iter().rev().find_map(|request| match request {
            ManagerRequest::Heartbeat { durable_sequence, .. } => Some(*durable_sequence),
            _ => None,
        })
    }

    pub fn receipt_key(&self) -> ReceiptKey {
        let key = self.requests.iter().rev().find_map(|request| match request {
            ManagerRequest::Register { registration, .. } => Some(registration.receipt_key.clone()),
            _ => None,
        });
        key.unwrap()
    }

    pub fn inventories(&self) -> usize {
        let full = |r: &&ManagerRequest| matches!(r, ManagerRequest::Inventory { last: true, .. });
        self.requests.iter().filter(full).count()
    }
}

/// Takes every request and answers none, as a benefactor whose disk hangs.
struct Silent;

impl Service for Silent {
    type Request = BenefactorRequest;
    type Reply = BenefactorReply;

    async fn handle(
        &self,
        _: Caller,
        _request: BenefactorRequest,
        _payload: Buffer,
    ) -> Result<(BenefactorReply, Bytes), Failure> {
        std::future::pending().await
    }
}

/// The address of a benefactor that answers nothing.
pub async fn silent() -> String {
    let folder = TempDir::new().unwrap();
    let address = unix_address(&folder.path().join("socket"));
    let listener = Listener::bind(&address).await.unwrap();
    let host = Host::new(Role::Benefactor, POOL, None);
    tokio::spawn(async move {
        let _stays = folder;
        serve(listener, host, Arc::new(Silent), BufferPool::new(64 << 20), std::future::pending()).await;
    });
    address
}

/// A running benefactor in this process.
pub struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
    pub connection: Arc<Connection>,
}

pub fn config(directory: &Path, manager: &str) -> Config {
    let listen = unix_address(&directory.join("socket"));
    let config = Config::new(directory.to_owned(), manager.to_owned(), listen, 4 << 30);
    let (tier, heartbeat) = (Some(Tier::Disk), Duration::from_millis(20));
    Config { floor_bytes: 0, tier, heartbeat, scrub_bytes_per_second: 0, ..config }
}

pub async fn connect(directory: &Path) -> Arc<Connection> {
    let file = directory.join(stdchk_benefactor::ADDRESS_FILE);
    wait("the address", || file.exists()).await;
    let address = std::fs::read_to_string(file).unwrap();
    let identity = Identity { role: Role::Client, pool: Some(POOL), keys: None };
    Arc::new(
        Connection::open(Role::Benefactor, address.trim(), &identity, &BufferPool::new(64 << 20))
            .await
            .unwrap(),
    )
}

impl Running {
    pub async fn start(config: Config) -> Self {
        let directory = config.data_dir.clone();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(stdchk_benefactor::run(config, async {
            let _ = stopped.await;
        }));
        Self { stop, task, connection: connect(&directory).await }
    }

    pub async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap().unwrap();
    }

    pub fn address(&self) -> String {
        self.connection.address().to_owned()
    }
}

/// `length` bytes that no other seed gives.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// The block of a chunk that is stored as it is.
pub fn whole(bytes: &[u8]) -> (BlockId, Encoding) {
    let chunk = ChunkRef { id: ChunkId::of(bytes), length: u32::try_from(bytes.len()).unwrap() };
    (BlockId::plain(chunk.id), Encoding::plain(chunk))
}

/// The key of the manager's permits, the same for all benefactors.
pub fn permits() -> PermitKey {
    PermitKey::new(&ReceiptKey([6; 32]), 1, 1, 0)
}

/// An order to make blocks of a chunk from those at these addresses.
pub fn make(
    chunk: ChunkId,
    encoding: EncodingId,
    from: &[(u8, String)],
    to: &[(Option<u8>, u32, String)],
) -> Command {
    let permit = Permit::new(&permits(), &chunk, encoding, None);
    let of_copies = Permit::new(&permits(), &chunk, EncodingId::PLAIN, None);
    let source = |(index, address): &(u8, String)| SourceBlock {
        encoding,
        index: *index,
        address: address.clone(),
        permit,
        at: BenefactorId(u32::from(*index)),
    };
    let new = |(index, to, address): &(Option<u8>, u32, String)| NewBlock {
        index: *index,
        to: BenefactorId(*to),
        address: address.clone(),
        permit: if index.is_some() { permit } else { of_copies },
    };
    let (from, blocks) = (from.iter().map(source).collect(), to.iter().map(new).collect());
    Command::Make(Make { chunk, from, blocks })
}

/// An order to check an encoding whose blocks are at these addresses.
pub fn check(chunk: ChunkId, encoding: EncodingId, from: &[(u8, String)]) -> Command {
    let permit = Permit::new(&permits(), &chunk, encoding, None);
    let source = |(index, address): &(u8, String)| SourceBlock {
        encoding,
        index: *index,
        address: address.clone(),
        permit,
        at: BenefactorId(u32::from(*index)),
    };
    Command::Check(Check { chunk, from: from.iter().map(source).collect(), own: None, number: 0 })
}

/// Puts a block; whether it was there before.
pub async fn put(connection: &Connection, bytes: &[u8]) -> Result<bool, CallError> {
    let (block, encoding) = whole(bytes);
    put_block(connection, block, encoding, bytes).await
}

pub async fn put_block(
    connection: &Connection,
    block: BlockId,
    encoding: Encoding,
    stored: &[u8],
) -> Result<bool, CallError> {
    let request = BenefactorRequest::Put { block, encoding, durable: false, insists: false };
    let payload = Bytes::copy_from_slice(stored);
    match connection.call(&request, payload, LIMIT).await?.0 {
        BenefactorReply::Stored { receipt: None, known } => Ok(known),
        other => panic!("{other:?}"),
    }
}

pub async fn sync(connection: &Connection, blocks: &[BlockId]) -> Receipt {
    let request = BenefactorRequest::Sync { blocks: blocks.to_vec(), tell: false };
    match connection.call(&request, Bytes::new(), LIMIT).await.unwrap().0 {
        BenefactorReply::Synced(receipt) => receipt,
        other => panic!("{other:?}"),
    }
}

pub async fn get(connection: &Connection, block: BlockId) -> Result<Buffer, CallError> {
    let request = BenefactorRequest::Get { block };
    let (reply, payload) = connection.call::<_, BenefactorReply>(&request, Bytes::new(), LIMIT).await?;
    assert!(matches!(reply, BenefactorReply::Block { .. }));
    Ok(payload)
}

pub fn code(error: &CallError) -> ErrorCode {
    error.failure().code
}

/// Flips the first byte of the place on disk that holds `wanted`.
pub fn flip(segments: &std::path::Path, wanted: &[u8]) {
    use std::os::unix::fs::FileExt;
    for entry in std::fs::read_dir(segments).unwrap() {
        let path = entry.unwrap().path();
        let content = std::fs::read(&path).unwrap();
        if let Some(offset) = content.windows(wanted.len()).position(|window| window == wanted) {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[!wanted.first().unwrap()], offset as u64).unwrap();
            file.sync_all().unwrap();
            return;
        }
    }
    panic!("the block is in no segment");
}
