//! Measures what the manager's one thread does at a time in a pool of many chunks: how long each request, and each step of what
//! follows from it, keeps all others waiting.
//!
//! Usage: `many_chunks [CHUNKS] [BENEFACTORS]`. Files have a thousand chunks each, with two copies. The manager's core runs by itself,
//! with its store in memory; memory is that of the whole process.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a measurement that fails has nothing to report")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use stdchk_manager::core::{Core, Cursor, Now, Setting, Timing};
use stdchk_manager::store::{MemoryStore, Store};
use stdchk_model::message::benefactor::BenefactorLoad;
use stdchk_model::message::manager::{
    BenefactorSecret, Change, FileKind, ManagerReply, ManagerRequest, Registration, StoredBlock, VersionState,
};
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, ChunkRef, ClientId, Incarnation, Ino, MapRoot, MomentKey, OpId, PoolId,
    Receipt, ReceiptKey, SessionId, Tier,
};

const KEY: ReceiptKey = ReceiptKey([1; 32]);
const PER_FILE: u64 = 1000;
const LENGTH: u32 = 1 << 20;

struct Pool {
    core: Core,
    store: MemoryStore,
    now: Now,
    benefactors: u32,
    lives: u64,
    /// The number of each benefactor's last registration.
    registrations: BTreeMap<u32, u64>,
}

fn setting() -> Setting {
    let timing = Timing { garbage_age_ms: 0, ..Timing::default() };
    Setting {
        new_pool: PoolId([7; 16]),
        new_key: MomentKey([7; 32]),
        owner: (0, 0),
        pid: 1,
        start: 1,
        timing,
        steps: 1024,
    }
}

fn chunk(number: u64) -> ChunkId {
    ChunkId::of(&number.to_le_bytes())
}

fn stored(number: u64) -> StoredBlock {
    StoredBlock { block: BlockId::plain(chunk(number)), plain_length: LENGTH, stored_length: LENGTH }
}

impl Pool {
    fn ask(&mut self, request: ManagerRequest) -> ManagerReply {
        self.now.wall += 1000;
        let reply = self.core.handle(request, self.now).unwrap();
        let batch = self.core.take_changes();
        self.store.commit(&batch).unwrap();
        self.core.committed(self.store.sequence());
        reply
    }

    /// Where a chunk's copies are.
    fn holders(&self, number: u64) -> [u32; 2] {
        let first = u32::try_from(number % u64::from(self.benefactors)).unwrap();
        [first, (first + 1) % self.benefactors]
    }

    fn register(&mut self, number: u32, id: Option<BenefactorId>) {
        self.lives += 1;
        let load =
            BenefactorLoad { donated_bytes: 1 << 50, free_bytes: 1 << 50, ..BenefactorLoad::default() };
        let registration = Registration {
            id,
            incarnation: Incarnation(self.lives),
            address: format!("127.0.0.1:{}", number + 1),
            pid: 0,
            load,
            remembered: None,
            put_sequence: 0,
            receipt_key: KEY,
            term: None,
            machine: None,
            labels: Vec::new(),
            tier: Tier::Disk,
        };
        let secret = BenefactorSecret([u8::try_from(number).unwrap(); 32]);
        let ManagerReply::Registered { registration, .. } = self.ask(registration.introduced(&secret)) else {
            return;
        };
        self.registrations.insert(number, registration);
    }

    /// The longest time that a part of an inventory took.
    fn inventory(&mut self, number: u32, blocks: &[StoredBlock]) -> Duration {
        let (id, registration) = (BenefactorId(number), self.registrations.get(&number).copied().unwrap());
        self.ask(ManagerRequest::BeginInventory { id, registration });
        let parts = blocks.chunks(8192).count().max(1);
        let mut longest = Duration::ZERO;
        for part in 0..parts {
            let blocks = blocks.chunks(8192).nth(part).unwrap_or_default().to_vec();
            let last = part + 1 == parts;
            let start = Instant::now();
            self.ask(ManagerRequest::Inventory { id, registration, last, blocks, put_sequence: 0 });
            longest = longest.max(start.elapsed());
        }
        longest
    }

    fn write(&mut self, file: u64) {
        let unique = |kind: u8| ((u128::from(kind) << 120) | u128::from(file)).to_be_bytes();
        let name = format!("app.N0.T{file}");
        let (kind, target) = (FileKind::File, String::new());
        let change = Change::Make { parent: Ino::ROOT, name, kind, mode: 0o644, uid: 0, gid: 0, target };
        let ManagerReply::Entry(attr) = self.ask(ManagerRequest::Change { id: OpId(unique(1)), change })
        else {
            panic!("no file was made")
        };
        let session = SessionId(unique(2));
        self.ask(ManagerRequest::OpenSession {
            session,
            client: ClientId([1; 16]),
            ino: attr.ino,
            durability: None,
        });
        let numbers = file * PER_FILE..(file + 1) * PER_FILE;
        for at in 0..self.benefactors {
            let own = numbers.clone().filter(|number| self.holders(*number).contains(&at));
            let receipt = Receipt::new(&KEY, Incarnation(u64::from(at) + 1), 1, own.map(stored).collect());
            self.ask(ManagerRequest::Receipts { session, receipts: vec![(BenefactorId(at), receipt)] });
        }
        let root = MapRoot::Pieces {
            pieces: vec![ChunkRef { id: chunk(numbers.start), length: LENGTH }],
            length: u64::from(LENGTH),
        };
        self.ask(ManagerRequest::Commit {
            session,
            root,
            size: u64::from(LENGTH) * PER_FILE,
            mtime: 0,
            stored_bytes: 0,
            named: numbers.map(chunk).collect(),
            named_before: 0,
            state: VersionState::Closed,
            hole_bytes: 0,
            receipts: Vec::new(),
            key: None,
            changes: 0,
        });
        self.ask(ManagerRequest::CloseSession { session, interrupted: false });
    }

    /// Does all that follows; how many steps it took, the longest of them, and all together.
    fn follow(&mut self) -> String {
        let (mut steps, mut longest, start) = (0, Duration::ZERO, Instant::now());
        loop {
            let begun = Instant::now();
            if !self.core.walk_on() {
                break;
            }
            (steps, longest) = (steps + 1, longest.max(begun.elapsed()));
        }
        format!("followed by {steps} steps of at most {longest:.1?}, {:.1?} together", start.elapsed())
    }

    fn timed(&mut self, what: &str, work: impl FnOnce(&mut Self)) {
        let start = Instant::now();
        work(self);
        let took = start.elapsed();
        let followed = self.follow();
        println!("{what}: {took:.1?}, {followed}");
    }
}

fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default().to_owned()
}

fn main() {
    let argument = |index: usize, usual: u64| {
        std::env::args().nth(index).and_then(|text| text.parse().ok()).unwrap_or(usual)
    };
    let (chunks, benefactors) = (argument(1, 1_000_000), u32::try_from(argument(2, 20)).unwrap());
    let (store, now) = (MemoryStore::default(), Now { wall: 1, ms: 0 });
    let core = Core::load(&store, setting(), now).unwrap();
    let mut pool = Pool { core, store, now, benefactors, lives: 0, registrations: BTreeMap::new() };
    for number in 0..benefactors {
        pool.register(number, None);
        pool.inventory(number, &[]);
    }
    let start = Instant::now();
    (0..chunks / PER_FILE).for_each(|file| pool.write(file));
    println!("{chunks} chunks in files of {PER_FILE}, two copies at {benefactors} benefactors");
    println!("written in {:.1?}, {}", start.elapsed(), memory());
    pool.timed("status", |pool| drop(pool.ask(ManagerRequest::Status)));
    let own: Vec<StoredBlock> =
        (0..chunks).filter(|number| pool.holders(*number).contains(&0)).map(stored).collect();
    pool.timed("registration of a benefactor in a new life", |pool| pool.register(0, Some(BenefactorId(0))));
    let start = Instant::now();
    let longest = pool.inventory(0, &own);
    println!(
        "its inventory of {} blocks: {:.1?} in parts of at most {longest:.1?}",
        own.len(),
        start.elapsed()
    );
    println!("its inventory, {}", pool.follow());
    pool.timed("all but it are lost", |pool| {
        pool.now.ms += 40_000;
        pool.core.tick(pool.now);
    });
    for number in 0..benefactors {
        pool.register(number, Some(BenefactorId(number)));
        let own: Vec<StoredBlock> =
            (0..chunks).filter(|chunk| pool.holders(*chunk).contains(&number)).map(stored).collect();
        pool.inventory(number, &own);
    }
    println!("all are back, {}", pool.follow());
    pool.timed("one file is removed", |pool| {
        let change = Change::Unlink { parent: Ino::ROOT, name: "app.N0.T0".to_owned() };
        drop(pool.ask(ManagerRequest::Change { id: OpId([9; 16]), change }));
    });
    pool.timed("its chunks are collected", |pool| {
        let mut next = Some(Cursor::Garbage(None));
        while let Some(from) = next {
            next = pool.core.collect(from, false, pool.now).unwrap().1;
        }
    });
    let start = Instant::now();
    let again = Core::load(&pool.store, setting(), pool.now).unwrap();
    println!("the store of pool {} is read in {:.1?}", again.pool(), start.elapsed());
}
