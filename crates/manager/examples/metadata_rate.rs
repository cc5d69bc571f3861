//! Measures metadata operations per second: a real manager with its real store, asked over loopback.
//!
//! Each connection works like a checkpointing rank: make a file, open a session, reserve, commit with the receipts of a
//! chunk, close, look the file up and open its version. Usage: `metadata_rate [CONNECTIONS] [SECONDS]`; run it under
//! `taskset -c 0` to see what one core does for manager and clients together.
#![expect(clippy::unwrap_used, reason = "a measurement that fails has nothing to report")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stdchk_manager::{Config, Manager};
use stdchk_model::message::benefactor::BenefactorLoad;
use stdchk_model::message::handshake::Role;
use stdchk_model::message::manager::{
    BenefactorSecret, Change, FileKind, ManagerReply, ManagerRequest, Registration, StoredBlock, VersionState,
};
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, ChunkMap, ChunkRef, ClientId, Extent, Incarnation, Ino, MapRoot, OpId,
    Receipt, ReceiptKey, SessionId, Source,
};
use stdchk_net::transport::unix_address;
use stdchk_net::{BufferPool, Bytes, Connection, Identity};

const LIMIT: Duration = Duration::from_secs(30);
const KEY: ReceiptKey = ReceiptKey([1; 32]);

struct Rank {
    connection: Connection,
    number: u64,
    step: u64,
    directory: Ino,
    operations: Arc<AtomicU64>,
}

impl Rank {
    async fn ask(&self, request: ManagerRequest) -> ManagerReply {
        let (reply, _) = self.connection.call(&request, Bytes::new(), LIMIT).await.unwrap();
        self.operations.fetch_add(1, Ordering::Relaxed);
        reply
    }

    fn identity(&self, kind: u8) -> [u8; 16] {
        let unique = (u128::from(kind) << 120) | (u128::from(self.number) << 64) | u128::from(self.step);
        unique.to_be_bytes()
    }

    async fn checkpoint(&mut self) {
        self.step += 1;
        let name = format!("app.N{}.T{}", self.number, self.step);
        let change = Change::Make {
            parent: self.directory,
            name: name.clone(),
            kind: FileKind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            target: String::new(),
        };
        let id = OpId(self.identity(1));
        let ManagerReply::Entry(attr) = self.ask(ManagerRequest::Change { id, change }).await else { return };
        let session = SessionId(self.identity(2));
        let client = ClientId((u128::from(self.number) + 1).to_be_bytes());
        self.ask(ManagerRequest::OpenSession { session, client, ino: attr.ino, distance: None }).await;
        self.ask(ManagerRequest::Reserve { session, bytes: 1 << 20, avoid: Vec::new() }).await;
        let chunk = ChunkRef { id: ChunkId::of(name.as_bytes()), length: 1 << 20 };
        self.ask(commit(session, chunk)).await;
        self.ask(ManagerRequest::CloseSession { session, interrupted: false }).await;
        self.ask(ManagerRequest::Lookup { parent: self.directory, name }).await;
        self.ask(ManagerRequest::OpenVersion { ino: attr.ino, version: None }).await;
    }
}

fn commit(session: SessionId, chunk: ChunkRef) -> ManagerRequest {
    let size = u64::from(chunk.length);
    let extent = Extent { length: size, source: Source::Chunk { index: 0, offset: 0 } };
    let map = ChunkMap::new(vec![chunk], [extent]).unwrap().encode();
    let root = MapRoot::Inline { map };
    ManagerRequest::Commit {
        session,
        root,
        size,
        mtime: 0,
        stored_bytes: size,
        named: Vec::new(),
        named_before: 0,
        state: VersionState::Open,
        hole_bytes: 0,
        receipts: [0, 1].map(|number| receipt(number, chunk)).to_vec(),
        key: None,
    }
}

/// What the benefactor says of a chunk that it took.
fn receipt(number: u32, chunk: ChunkRef) -> (BenefactorId, Receipt) {
    let (block, length) = (BlockId::plain(chunk.id), chunk.length);
    let stored = StoredBlock { block, plain_length: length, stored_length: length };
    (BenefactorId(number), Receipt::new(&KEY, Incarnation(u64::from(number)), 1, vec![stored]))
}

async fn connect(address: &str) -> Connection {
    connect_as(Role::Client, address).await
}

async fn connect_as(role: Role, address: &str) -> Connection {
    let identity = Identity { role, pool: None, keys: None };
    Connection::open(Role::Manager, address, &identity, &BufferPool::new(1 << 20)).await.unwrap()
}

async fn register_benefactors(address: &str) {
    let connection = connect_as(Role::Benefactor, address).await;
    let load = BenefactorLoad { donated_bytes: 1 << 50, free_bytes: 1 << 50, ..BenefactorLoad::default() };
    for number in 0..2 {
        let incarnation = Incarnation(number);
        let address = format!("127.0.0.1:{}", number + 1);
        let (pid, remembered, put_sequence, receipt_key, term) = (0, None, 0, KEY, None);
        let registration = Registration {
            id: None,
            incarnation,
            address,
            pid,
            load,
            remembered,
            put_sequence,
            receipt_key,
            term,
        };
        let register = registration.introduced(&BenefactorSecret([u8::try_from(number).unwrap_or(0); 32]));
        let (reply, _) = connection.call(&register, Bytes::new(), LIMIT).await.unwrap();
        let ManagerReply::Registered { id, registration, .. } = reply else { return };
        let begin = ManagerRequest::BeginInventory { id, registration };
        let (last, blocks) = (true, Vec::new());
        let report = ManagerRequest::Inventory { id, registration, last, blocks, put_sequence };
        for request in [begin, report] {
            let _: (ManagerReply, _) = connection.call(&request, Bytes::new(), LIMIT).await.unwrap();
        }
    }
}

async fn directory(address: &str, name: &str) -> Ino {
    let change = Change::Make {
        parent: Ino::ROOT,
        name: name.to_owned(),
        kind: FileKind::Directory,
        mode: 0o755,
        uid: 0,
        gid: 0,
        target: String::new(),
    };
    let request = ManagerRequest::Change { id: OpId([0xff; 16]), change };
    let (reply, _) = connect(address).await.call(&request, Bytes::new(), LIMIT).await.unwrap();
    let ManagerReply::Entry(attr) = reply else { return Ino::ROOT };
    attr.ino
}

async fn measure(connections: u64, time: Duration) {
    let data = tempfile::tempdir_in(".").unwrap();
    let mut config = Config::new(
        data.path().join("manager"),
        unix_address(&std::path::absolute(data.path().join("socket")).unwrap()),
    );
    // The two benefactors register and then only lend their names.
    config.timing.benefactor_lease_ms = u64::MAX;
    config.timing.benefactor_lost_ms = u64::MAX;
    let manager = Manager::open(config).await.unwrap();
    let address = manager.addresses().first().cloned().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(manager.serve(async { stopped.await.unwrap_or(()) }));
    register_benefactors(&address).await;
    let directory = directory(&address, "app").await;
    let operations = Arc::new(AtomicU64::new(0));
    let (start, mut ranks) = (Instant::now(), tokio::task::JoinSet::new());
    for number in 0..connections {
        let connection = connect(&address).await;
        let operations = Arc::clone(&operations);
        let mut rank = Rank { connection, number, step: 0, directory, operations };
        ranks.spawn(async move {
            while start.elapsed() < time {
                rank.checkpoint().await;
            }
            rank.step
        });
    }
    let files: u64 = ranks.join_all().await.into_iter().sum();
    let seconds = start.elapsed().as_secs_f64();
    let done = operations.load(Ordering::Relaxed);
    println!(
        "{connections} connections, {seconds:.1} s: {done} operations, {:.0} operations/s, {:.0} files/s",
        done as f64 / seconds,
        files as f64 / seconds
    );
    let _ = stop.send(());
    serving.await.unwrap().unwrap();
}

fn main() {
    let argument = |index: usize, usual: u64| {
        std::env::args().nth(index).and_then(|text| text.parse().ok()).unwrap_or(usual)
    };
    let (connections, seconds) = (argument(1, 32), argument(2, 10));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(measure(connections, Duration::from_secs(seconds)));
}
