//! A core in a test: a clock that the test moves, benefactors that only report, and short ways to ask.

use std::collections::{BTreeMap, BTreeSet};

use stdchk_manager::core::{Asker, Collected, Core, Cursor, NewMember, Now, Setting, Timing};
use stdchk_manager::ranking::Ranker;
use stdchk_manager::store::{MemoryStore, Store, Table};
use stdchk_model::labels::Labels;
use stdchk_model::message::benefactor::{BenefactorLoad, Check, Command, Notice, OwnerWish, Seen};
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{
    Attr, BenefactorSecret, Change, ChunkLocations, Existing, Exposed, FileKind, Hold, ManagerReply,
    ManagerRequest, Moment, PoolStatus, Registration, StoredBlock, Term, VersionInfo, VersionState,
};
use stdchk_model::signed::Signable;
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, ChunkMap, ChunkRef, ClientId, Extent, Failure, Incarnation, Ino, KeyId,
    MachineId, Maker, MapRoot, MomentKey, OpId, PermitKey, PoolId, Receipt, ReceiptKey, SessionId, Signed,
    Source, Tier, Timestep,
};

pub const GIB: u64 = 1 << 30;
/// What the manager signs with.
pub const MOMENTS: MomentKey = MomentKey([8; 32]);
pub const CLIENT: ClientId = ClientId([9; 16]);
pub const CHUNK_LENGTH: u32 = 1000;
/// What all benefactors make their receipts with.
pub const KEY: ReceiptKey = ReceiptKey([5; 32]);
/// The put sequence that heartbeats tell at first; receipts are younger.
pub const TOLD: u64 = 77;

pub struct Pool {
    pub store: MemoryStore,
    pub core: Core,
    pub now: Now,
    /// The size of what was committed to the store: bytes of keys and records, and how many of these.
    pub written: (u64, u64),
    operations: u128,
    lives: u64,
    starts: u64,
    /// Put sequence of the last receipt.
    pub receipts: u64,
    /// The put sequence of which heartbeats say that all before is durable.
    pub told: u64,
    /// The present life of each benefactor.
    living: BTreeMap<u32, Incarnation>,
    /// The number of the last registration of a benefactor in each of its lives.
    registrations: BTreeMap<(u32, Incarnation), u64>,
    pub secrets: BTreeMap<u32, BenefactorSecret>,
    /// What the clients say that they encrypt with.
    pub key: Option<KeyId>,
    /// How many changes of their files the clients say that their commits have.
    pub changes: u64,
    /// As whom clients code fragments.
    pub maker: Maker,
    /// The terms under which benefactors have registered.
    pub terms: BTreeMap<u32, Term>,
    /// What owners wish, where that isn't that their benefactors serve.
    pub wishes: BTreeMap<u32, OwnerWish>,
    /// Whose machines are said to go soon.
    pub going: BTreeSet<u32>,
    /// Whose disks have failed.
    pub failed: BTreeSet<u32>,
    /// On which machines benefactors say that they run.
    pub machines: BTreeMap<u32, MachineId>,
    /// The labels that benefactors tell.
    pub labels: BTreeMap<u32, Labels>,
    /// Benefactors that keep blocks in memory.
    pub in_memory: BTreeSet<u32>,
    /// Benefactors that don't show others what they say that they have.
    pub liars: BTreeSet<u32>,
    /// What benefactors were told while [`Pool::trim`] had them answer, until their next heartbeat.
    unheard: BTreeMap<u32, Vec<Command>>,
    /// The life and the load of each benefactor's last heartbeat.
    beaten: BTreeMap<u32, (Incarnation, BenefactorLoad)>,
    /// The number of the last order to see others before this block of a benefactor may go.
    pub looks: BTreeMap<(BenefactorId, BlockId), u64>,
    ranker: Ranker,
}

/// Where others reach a benefactor.
fn address(number: u32) -> String {
    format!("127.0.0.1:{}", 1 + u64::from(number))
}

pub fn timing() -> Timing {
    Timing {
        client_lease_ms: 30_000,
        benefactor_lease_ms: 5_000,
        benefactor_lost_ms: 30_000,
        garbage_age_ms: 60_000,
        collect_every_ms: 1_000,
    }
}

fn load(store: &MemoryStore, now: Now, start: u64) -> Core {
    let setting = Setting {
        new_pool: PoolId([7; 16]),
        new_key: MOMENTS,
        owner: (1000, 100),
        pid: 1,
        start,
        timing: timing(),
        steps: 64,
    };
    Core::load(store, setting, now).unwrap()
}

pub fn chunk(number: u32) -> ChunkId {
    ChunkId::of(&number.to_le_bytes())
}

pub fn session(number: u8) -> SessionId {
    SessionId([number; 16])
}

pub fn make(parent: Ino, name: &str, kind: FileKind) -> Change {
    let target = if kind == FileKind::Symlink { "target".to_owned() } else { String::new() };
    Change::Make { parent, name: name.to_owned(), kind, mode: 0o755, uid: 0, gid: 0, target }
}

pub fn rename(parent: Ino, name: &str, new_parent: Ino, new_name: &str) -> Change {
    let (name, new_name) = (name.to_owned(), new_name.to_owned());
    Change::Rename { parent, name, new_parent, new_name, existing: Existing::Replace }
}

/// A map of these chunks, each once and whole, inside its root.
pub fn map_of(chunks: &[ChunkId]) -> ChunkMap {
    let table = chunks.iter().map(|id| ChunkRef { id: *id, length: CHUNK_LENGTH }).collect();
    let extents = (0..)
        .take(chunks.len())
        .map(|index| Extent { length: u64::from(CHUNK_LENGTH), source: Source::Chunk { index, offset: 0 } });
    ChunkMap::new(table, extents).unwrap()
}

/// The whole number that a timestep is.
pub fn number(timestep: Timestep) -> u64 {
    timestep.name().parse().unwrap()
}

impl Pool {
    pub fn new() -> Self {
        let (store, now) = (MemoryStore::default(), Now { wall: 1_000, ms: 0 });
        let core = load(&store, now, 1);
        let mut pool = Self {
            store,
            core,
            now,
            written: (0, 0),
            operations: 0,
            lives: 0,
            starts: 1,
            receipts: TOLD,
            told: TOLD,
            living: BTreeMap::new(),
            registrations: BTreeMap::new(),
            secrets: BTreeMap::new(),
            key: None,
            changes: 1,
            maker: Maker::LOCAL,
            terms: BTreeMap::new(),
            wishes: BTreeMap::new(),
            going: BTreeSet::new(),
            failed: BTreeSet::new(),
            liars: BTreeSet::new(),
            unheard: BTreeMap::new(),
            beaten: BTreeMap::new(),
            looks: BTreeMap::new(),
            machines: BTreeMap::new(),
            labels: BTreeMap::new(),
            in_memory: BTreeSet::new(),
            ranker: Ranker::default(),
        };
        pool.sync();
        pool
    }

    /// With so many registered benefactors that have reported.
    pub fn with_benefactors(count: u32) -> Self {
        let mut pool = Self::new();
        (0..count).for_each(|number| assert_eq!(pool.register(None), BenefactorId(number)));
        pool
    }

    fn sync(&mut self) {
        while self.core.walk_on() {}
        let batch = self.core.take_changes();
        for (key, record) in batch.changes() {
            let bytes = key.len() + record.as_ref().map_or(0, Vec::len);
            self.written = (self.written.0 + u64::try_from(bytes).unwrap(), self.written.1 + 1);
        }
        self.store.commit(&batch).unwrap();
        self.core.committed(self.store.sequence());
    }

    /// A manager that was killed and started again: only what was committed to the store is left.
    pub fn restart(&mut self) {
        self.now = Now { wall: self.now.wall, ms: 0 };
        self.starts += 1;
        self.core = load(&self.store, self.now, self.starts);
        self.ranker = Ranker::default();
        self.sync();
    }

    pub fn pass(&mut self, ms: u64) {
        self.now.ms += ms;
        self.now.wall += i64::try_from(ms).unwrap() * 1_000_000;
        self.core.tick(self.now);
        self.sync();
    }

    /// Passes time during which the benefactors and the client show signs of life.
    pub fn pass_alive(&mut self, ms: u64, benefactors: &[u32]) {
        for _ in 0..ms / 1_000 {
            self.pass(1_000);
            self.ask(ManagerRequest::KeepAlive(CLIENT)).unwrap();
            for number in benefactors {
                self.beat(*number, &[], &[]);
            }
        }
    }

    pub fn ask(&mut self, request: ManagerRequest) -> Result<ManagerReply, Failure> {
        let asker = Asker { maker: self.maker, ..Asker::default() };
        let answer = self.core.handle_for(asker, request, self.now);
        self.sync();
        answer
    }

    /// Asks as somebody who may not do all.
    pub fn ask_as(&mut self, asker: &Asker, request: ManagerRequest) -> Result<ManagerReply, Failure> {
        let answer = self.core.handle_for(asker.clone(), request, self.now);
        self.sync();
        answer
    }

    /// Lets a host join.
    pub fn admit(&mut self, new: NewMember) -> Result<ManagerReply, Failure> {
        let answer = self.core.admit(new, self.now);
        self.sync();
        answer
    }

    /// Changes something as somebody who may not do all.
    pub fn change_as(&mut self, asker: &Asker, change: Change) -> Result<ManagerReply, Failure> {
        self.operations += 1;
        let id = OpId(self.operations.to_be_bytes());
        self.ask_as(asker, ManagerRequest::Change { id, change })
    }

    /// Asks; what changes is in the manager's memory alone, until the next request.
    pub fn ask_in_memory(&mut self, request: ManagerRequest) -> Result<ManagerReply, Failure> {
        self.core.handle(request, self.now)
    }

    // --- placement

    /// Ranks what is to be ranked, as the ranker does beside the manager's thread.
    pub fn rank(&mut self) {
        while self.core.has_to_rank() {
            let told = self.core.take_to_rank(self.now);
            let made = self.ranker.work(told);
            self.core.ranked(made);
        }
    }

    // --- namespace

    pub fn change(&mut self, change: Change) -> Result<ManagerReply, Failure> {
        self.operations += 1;
        let id = OpId(self.operations.to_be_bytes());
        self.ask(ManagerRequest::Change { id, change })
    }

    pub fn make(&mut self, parent: Ino, name: &str, kind: FileKind) -> Ino {
        match self.change(make(parent, name, kind)).unwrap() {
            ManagerReply::Entry(attr) => attr.ino,
            other => panic!("{other:?}"),
        }
    }

    pub fn attr(&mut self, path: &str) -> Result<Attr, Failure> {
        match self.ask(ManagerRequest::Resolve { path: path.to_owned() })? {
            ManagerReply::Entry(attr) => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub fn versions(&mut self, ino: Ino) -> Vec<VersionInfo> {
        match self.ask(ManagerRequest::Versions(ino)).unwrap() {
            ManagerReply::Versions(versions) => versions,
            other => panic!("{other:?}"),
        }
    }

    pub fn root(&mut self, ino: Ino, version: Option<u64>) -> Option<MapRoot> {
        match self.ask(ManagerRequest::OpenVersion { ino, version, client: None }).unwrap() {
            ManagerReply::Version { root, .. } => root,
            other => panic!("{other:?}"),
        }
    }

    // --- sessions

    pub fn open(&mut self, number: u8, ino: Ino) {
        let request =
            ManagerRequest::OpenSession { session: session(number), client: CLIENT, ino, durability: None };
        self.ask(request).unwrap();
    }

    /// A receipt for these chunks of a benefactor, as it gives it now.
    pub fn receipt(&mut self, at: u32, chunks: &[u32]) -> (BenefactorId, Receipt) {
        self.receipt_of(at, chunks.iter().map(|number| stored(*number)).collect())
    }

    pub fn receipt_of(&mut self, at: u32, blocks: Vec<StoredBlock>) -> (BenefactorId, Receipt) {
        self.receipts += 1;
        let life = self.living.get(&at).copied().unwrap_or(Incarnation(0));
        (BenefactorId(at), Receipt::new(&KEY, life, self.receipts, blocks))
    }

    /// A session brings receipts for these chunks from each of these benefactors.
    pub fn secure(&mut self, number: u8, chunks: &[u32], at: &[u32]) {
        let receipts = at.iter().map(|at| self.receipt(*at, chunks)).collect();
        self.ask(ManagerRequest::Receipts { session: session(number), receipts }).unwrap();
    }

    pub fn commit(&mut self, number: u8, chunks: &[u32]) -> Result<u64, Failure> {
        let ids: Vec<ChunkId> = chunks.iter().map(|number| chunk(*number)).collect();
        let map = map_of(&ids);
        self.commit_root(number, MapRoot::Inline { map: map.encode() }, map.size())
    }

    pub fn commit_root(&mut self, number: u8, root: MapRoot, size: u64) -> Result<u64, Failure> {
        self.commit_naming(number, root, size, &[])
    }

    /// The same for a map that lies in the pool and names these chunks.
    pub fn commit_naming(
        &mut self,
        number: u8,
        root: MapRoot,
        size: u64,
        chunks: &[u32],
    ) -> Result<u64, Failure> {
        self.commit_told(number, root, size, chunks, 0)
    }

    /// The same after so many names that were told before.
    pub fn commit_told(
        &mut self,
        number: u8,
        root: MapRoot,
        size: u64,
        chunks: &[u32],
        named_before: u64,
    ) -> Result<u64, Failure> {
        let (session, mtime, named) =
            (session(number), 5, chunks.iter().map(|number| chunk(*number)).collect());
        let (stored_bytes, state, hole_bytes, receipts) = (size, VersionState::Open, 0, Vec::new());
        let request = ManagerRequest::Commit {
            session,
            root,
            size,
            mtime,
            stored_bytes,
            named,
            named_before,
            state,
            hole_bytes,
            receipts,
            key: self.key,
            changes: self.changes,
        };
        match self.ask(request)? {
            ManagerReply::Version { info: Some(info), .. } => Ok(info.version),
            other => panic!("{other:?}"),
        }
    }

    /// Commits, and tells for what the writer should wait.
    pub fn commit_held(&mut self, number: u8, chunks: &[u32]) -> Option<Hold> {
        let ids: Vec<ChunkId> = chunks.iter().map(|number| chunk(*number)).collect();
        let map = map_of(&ids);
        let (session, size, root) = (session(number), map.size(), MapRoot::Inline { map: map.encode() });
        let (mtime, stored_bytes, named) = (5, size, Vec::new());
        let (state, hole_bytes, receipts) = (VersionState::Open, 0, Vec::new());
        let request = ManagerRequest::Commit {
            session,
            root,
            size,
            mtime,
            stored_bytes,
            named,
            named_before: 0,
            state,
            hole_bytes,
            receipts,
            key: self.key,
            changes: self.changes,
        };
        match self.ask(request).unwrap() {
            ManagerReply::Version { hold, .. } => hold,
            other => panic!("{other:?}"),
        }
    }

    /// Writes a version of these chunks, stored at these benefactors, and tells for what the writer should wait.
    pub fn write_held(&mut self, number: u8, ino: Ino, chunks: &[u32], at: &[u32]) -> Option<Hold> {
        self.open(number, ino);
        self.secure(number, chunks, at);
        let hold = self.commit_held(number, chunks);
        self.close(number);
        hold
    }

    /// How far a writer has come that waits; `None`: the wait is over.
    pub fn waiting(&mut self, ino: Ino, hold: Hold) -> Option<u64> {
        match self.ask(ManagerRequest::AwaitCopies { ino, hold }).unwrap() {
            ManagerReply::Waiting { progress } => Some(progress),
            ManagerReply::Done => None,
            other => panic!("{other:?}"),
        }
    }

    /// The sets of a folder, oldest first: timestep and what lacks copies, if that is known.
    pub fn exposed(&mut self, folder: Ino) -> Vec<(u64, Option<Exposed>)> {
        match self.ask(ManagerRequest::Sets(folder)).unwrap() {
            ManagerReply::Sets(sets) => {
                sets.iter().rev().map(|set| (number(set.timestep), set.exposed)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn close(&mut self, number: u8) {
        let request = ManagerRequest::CloseSession { session: session(number), interrupted: false };
        self.ask(request).unwrap();
    }

    /// Ends a session whose writer was killed, or could not save what it wrote.
    pub fn interrupt(&mut self, number: u8) {
        let request = ManagerRequest::CloseSession { session: session(number), interrupted: true };
        self.ask(request).unwrap();
    }

    /// Writes a version of these chunks, stored at these benefactors, from open to close.
    pub fn write(&mut self, number: u8, ino: Ino, chunks: &[u32], at: &[u32]) -> u64 {
        self.open(number, ino);
        self.secure(number, chunks, at);
        let version = self.commit(number, chunks).unwrap();
        self.close(number);
        version
    }

    pub fn known(&mut self, number: u8, chunk_number: u32) -> ChunkLocations {
        let request = ManagerRequest::Known {
            session: session(number),
            chunks: vec![chunk(chunk_number)],
            room_bytes: 0,
        };
        self.one_location(request)
    }

    pub fn locate(&mut self, chunk_number: u32) -> Vec<u32> {
        let request = ManagerRequest::Locate { chunks: vec![chunk(chunk_number)] };
        self.one_location(request).at.iter().map(|location| location.benefactor.0).collect()
    }

    pub fn one_location(&mut self, request: ManagerRequest) -> ChunkLocations {
        match self.ask(request).unwrap() {
            ManagerReply::Locations(mut found) | ManagerReply::Known { mut found, .. } => {
                found.pop().unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn status(&mut self) -> PoolStatus {
        match self.ask(ManagerRequest::Status).unwrap() {
            ManagerReply::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    // --- benefactors

    pub fn register_only(&mut self, id: Option<u32>) -> BenefactorId {
        self.register_remembering(id, None).0
    }

    /// Registers a benefactor that remembers a moment of the manager's history; its number, and what it is to remember.
    pub fn register_remembering(
        &mut self,
        id: Option<u32>,
        remembered: Option<Moment>,
    ) -> (BenefactorId, Option<Moment>) {
        self.lives += 1;
        self.register_as(id, Incarnation(self.lives), remembered)
    }

    /// Registers a benefactor in this life, new or not.
    pub fn register_as(
        &mut self,
        id: Option<u32>,
        incarnation: Incarnation,
        remembered: Option<Moment>,
    ) -> (BenefactorId, Option<Moment>) {
        let secret = id.and_then(|id| self.secrets.get(&id)).cloned();
        let made = u64::try_from(self.secrets.len()).unwrap();
        let secret =
            secret.unwrap_or_else(|| BenefactorSecret(*blake3::hash(&made.to_le_bytes()).as_bytes()));
        let request = self.registration(id, incarnation, remembered).introduced(&secret);
        match self.ask(request).unwrap() {
            ManagerReply::Registered { id, moment, registration, term, .. } => {
                let known = self.terms.entry(id.0).or_insert(term.what);
                *known = term.what.max(*known);
                self.living.insert(id.0, incarnation);
                self.registrations.insert((id.0, incarnation), registration);
                self.secrets.insert(id.0, secret);
                (id, moment.map(|moment| moment.what))
            }
            other => panic!("{other:?}"),
        }
    }

    /// Registers a benefactor once more, as a member of the pool; the key of its permits.
    pub fn register_member(&mut self, number: u32, member: MemberId) -> PermitKey {
        let (incarnation, secret) =
            (Incarnation(u64::from(number) + 1), self.secrets.get(&number).unwrap().clone());
        let request = self.registration(Some(number), incarnation, None).introduced(&secret);
        let asker = Asker { member: Some(member), ..Asker::default() };
        let ManagerReply::Registered { registration, permits, .. } = self.ask_as(&asker, request).unwrap()
        else {
            panic!("not an answer to a registration")
        };
        self.registrations.insert((number, incarnation), registration);
        self.inventory_as(number, incarnation, &[]).unwrap();
        permits
    }

    pub fn registration(
        &self,
        id: Option<u32>,
        incarnation: Incarnation,
        remembered: Option<Moment>,
    ) -> Registration {
        let number = id.unwrap_or(u32::try_from(self.secrets.len()).unwrap());
        Registration {
            id: id.map(BenefactorId),
            incarnation,
            address: address(number),
            pid: 1,
            load: empty_load(),
            remembered: remembered.map(|moment| self.signed(number, moment)),
            put_sequence: self.receipts,
            receipt_key: KEY,
            term: id.and_then(|id| Some(self.signed(id, *self.terms.get(&id)?))),
            machine: self.machines.get(&number).copied(),
            labels: self.labels.get(&number).cloned().unwrap_or_default(),
            tier: if self.in_memory.contains(&number) { Tier::Memory } else { Tier::Disk },
        }
    }

    /// What the manager has signed for a benefactor.
    pub fn signed<T: Signable>(&self, number: u32, what: T) -> Signed<T> {
        MOMENTS.sign(what, BenefactorId(number))
    }

    /// Registers a benefactor that has nothing; each registration is a new life.
    pub fn register(&mut self, id: Option<u32>) -> BenefactorId {
        let id = self.register_only(id);
        self.inventory(id.0, &[]);
        id
    }

    pub fn inventory(&mut self, number: u32, chunks: &[u32]) {
        self.inventory_as(number, Incarnation(self.lives), chunks).unwrap();
    }

    pub fn inventory_as(
        &mut self,
        number: u32,
        incarnation: Incarnation,
        chunks: &[u32],
    ) -> Result<ManagerReply, Failure> {
        let blocks = chunks.iter().map(|number| stored(*number)).collect();
        let (id, registration) = (BenefactorId(number), self.registration_in(number, incarnation));
        self.ask(ManagerRequest::BeginInventory { id, registration })?;
        self.ask(ManagerRequest::Inventory {
            id,
            registration,
            last: true,
            blocks,
            put_sequence: self.receipts,
        })
    }

    /// A heartbeat of a benefactor in the life `with_benefactors` gave it.
    pub fn beat(&mut self, number: u32, added: &[u32], removed: &[u32]) -> Vec<Command> {
        let mut commands = self.beat_whole(number, added, removed);
        commands.retain(|command| !matches!(command, Command::Remember(_) | Command::Permits(_)));
        commands
    }

    /// A heartbeat as [`Pool::beat`] sends it, and all commands that answer it, also what to remember.
    pub fn beat_whole(&mut self, number: u32, added: &[u32], removed: &[u32]) -> Vec<Command> {
        self.beat_as(number, Incarnation(u64::from(number) + 1), added, removed).unwrap()
    }

    /// The number of a benefactor's last registration in a life.
    pub fn registration_in(&self, number: u32, incarnation: Incarnation) -> u64 {
        self.registrations.get(&(number, incarnation)).copied().unwrap_or(0)
    }

    /// What speaks of a benefactor's first life speaks of this one from now on.
    pub fn goes_on_as(&mut self, number: u32, incarnation: Incarnation) {
        let registration = self.registration_in(number, incarnation);
        self.registrations.insert((number, Incarnation(u64::from(number) + 1)), registration);
    }

    /// The number of a benefactor's last registration in the life that `with_benefactors` gave it.
    pub fn first_registration(&self, number: u32) -> u64 {
        self.registration_in(number, Incarnation(u64::from(number) + 1))
    }

    /// The life of the benefactor that registered last.
    pub fn last_life(&self) -> Incarnation {
        Incarnation(self.lives)
    }

    /// A heartbeat of a benefactor that has these blocks no longer.
    pub fn beat_without(&mut self, number: u32, incarnation: Incarnation, removed: &[BlockId]) {
        let request = ManagerRequest::Heartbeat {
            id: BenefactorId(number),
            registration: self.registration_in(number, incarnation),
            load: empty_load(),
            durable_sequence: self.told,
            added: Vec::new(),
            removed: removed.to_vec(),
            damaged: 0,
            copies_failed: Vec::new(),
            put_sequence: self.receipts,
            decoded: Vec::new(),
            seen: Vec::new(),
            disk: None,
        };
        self.ask(request).unwrap();
    }

    /// How many records a table of the store has.
    pub fn records(&self, table: Table) -> usize {
        let mut found = 0;
        let mut count = |key: &[u8], _: &[u8]| {
            found += usize::from(key.first() == Some(&(table as u8)));
            Ok(())
        };
        self.store.load(&mut count).unwrap();
        found
    }

    /// A heartbeat of the benefactor that registered last.
    pub fn beat_last(&mut self, number: u32, added: &[u32]) -> Vec<Command> {
        self.beat_as(number, Incarnation(self.lives), added, &[]).unwrap()
    }

    pub fn beat_as(
        &mut self,
        number: u32,
        incarnation: Incarnation,
        added: &[u32],
        removed: &[u32],
    ) -> Result<Vec<Command>, Failure> {
        let load = match self.wishes.get(&number) {
            None => empty_load(),
            Some(wish) => BenefactorLoad { wish: *wish, free_bytes: 0, ..empty_load() },
        };
        let notice = self.going.contains(&number).then_some(Notice { in_ms: Some(30_000) });
        let disk_failed = self.failed.contains(&number);
        let load = BenefactorLoad { notice, disk_failed, ..load };
        self.beat_loaded(number, incarnation, load, added, removed)
    }

    /// A heartbeat of a benefactor with this load, in the life `with_benefactors` gave it.
    pub fn beat_with(&mut self, number: u32, load: BenefactorLoad) -> Vec<Command> {
        self.beat_loaded(number, Incarnation(u64::from(number) + 1), load, &[], &[]).unwrap()
    }

    /// A heartbeat of a benefactor that has so much space left, in the life `with_benefactors` gave it.
    pub fn beat_with_free(&mut self, number: u32, free_bytes: u64) -> Vec<Command> {
        let load = BenefactorLoad { free_bytes, ..empty_load() };
        self.beat_loaded(number, Incarnation(u64::from(number) + 1), load, &[], &[]).unwrap()
    }

    /// A heartbeat of a benefactor whose disk has refused something.
    pub fn beat_refused(&mut self, number: u32, cause: &str) {
        let request = ManagerRequest::Heartbeat {
            id: BenefactorId(number),
            registration: self.first_registration(number),
            load: BenefactorLoad { disk_failed: true, ..empty_load() },
            durable_sequence: self.told,
            added: Vec::new(),
            removed: Vec::new(),
            damaged: 0,
            copies_failed: Vec::new(),
            put_sequence: self.receipts,
            decoded: Vec::new(),
            seen: Vec::new(),
            disk: Some(cause.to_owned()),
        };
        self.ask(request).unwrap();
    }

    fn beat_loaded(
        &mut self,
        number: u32,
        incarnation: Incarnation,
        load: BenefactorLoad,
        added: &[u32],
        removed: &[u32],
    ) -> Result<Vec<Command>, Failure> {
        let request = ManagerRequest::Heartbeat {
            id: BenefactorId(number),
            registration: self.registration_in(number, incarnation),
            load,
            durable_sequence: self.told,
            added: added.iter().map(|number| stored(*number)).collect(),
            removed: removed.iter().map(|number| BlockId::plain(chunk(*number))).collect(),
            damaged: 0,
            copies_failed: Vec::new(),
            put_sequence: self.receipts,
            decoded: Vec::new(),
            seen: Vec::new(),
            disk: None,
        };
        self.beaten.insert(number, (incarnation, load));
        let mut commands = self.unheard.remove(&number).unwrap_or_default();
        commands.extend(self.beat_honestly(request, |_| true)?);
        Ok(commands)
    }

    /// Sends a heartbeat. What the benefactor is asked to see of others before blocks of its own go, it answers at once where `sees` says so:
    /// all of them have what they say, but for liars. The commands that answer it then.
    pub fn beat_honestly(
        &mut self,
        request: ManagerRequest,
        sees: impl Fn(&Check) -> bool,
    ) -> Result<Vec<Command>, Failure> {
        let ManagerReply::Commands(mut commands) = self.ask(request.clone())? else {
            panic!("not an answer to a heartbeat")
        };
        let ManagerRequest::Heartbeat { id, .. } = request else { unreachable!("it is a heartbeat") };
        for command in &commands {
            if let Command::Check(Check { own: Some(own), number, .. }) = command {
                self.looks.insert((id, *own), *number);
            }
        }
        let is_look = |command: &mut Command| match command {
            Command::Check(check) => check.own.is_some() && sees(check),
            _ => false,
        };
        let looks: Vec<Command> = commands.extract_if(.., is_look).collect();
        if looks.is_empty() {
            return Ok(commands);
        }
        let told = looks.into_iter().filter_map(|command| self.seen(command)).collect();
        for told in [told, Vec::new()] {
            let mut request = request.clone();
            let ManagerRequest::Heartbeat { added, removed, decoded, copies_failed, seen, .. } = &mut request
            else {
                unreachable!("it is a heartbeat")
            };
            (*added, *removed, *seen) = (Vec::new(), Vec::new(), told);
            (*decoded, *copies_failed) = (Vec::new(), Vec::new());
            let ManagerReply::Commands(more) = self.ask(request)? else {
                panic!("not an answer to a heartbeat")
            };
            commands.extend(more);
            // It may be too early.
            let _ = self.collect();
        }
        Ok(commands)
    }

    /// What a holder sees of others.
    fn seen(&self, command: Command) -> Option<Seen> {
        let Command::Check(Check { from, own, number, .. }) = command else { return None };
        let is_liar = |address: &String| self.liars.iter().any(|liar| *address == self::address(*liar));
        let lacks = (0..).zip(from).filter(|(_, source)| is_liar(&source.address)).map(|(at, _)| at);
        Some(Seen { own: own?, lacks: lacks.collect(), number })
    }

    // --- collection

    /// Deletes what may go, as [`Pool::collect`] does, and what these benefactors let go once they have seen the others, one after the other.
    /// What they are told comes with their next heartbeats.
    pub fn trim(&mut self, present: &[u32]) -> Result<u64, Failure> {
        let chunks = self.collect()?;
        for _ in 0..6 {
            for number in present {
                let first = (Incarnation(u64::from(*number) + 1), empty_load());
                let (life, load) = self.beaten.get(number).copied().unwrap_or(first);
                let mut told = self.beat_loaded(*number, life, load, &[], &[])?;
                told.retain(|command| matches!(command, Command::Delete { .. } | Command::Make(_)));
                self.unheard.insert(*number, told);
            }
            self.collect()?;
        }
        Ok(chunks)
    }

    /// Deletes what may go; how many chunks.
    pub fn collect(&mut self) -> Result<u64, Failure> {
        self.collect_or_count(false)
    }

    pub fn collect_or_count(&mut self, dry_run: bool) -> Result<u64, Failure> {
        let (mut found, mut next) = (Collected::default(), Some(Cursor::Garbage(None)));
        while let Some(from) = next {
            let (part, rest) = self.core.collect(from, dry_run, self.now)?;
            (found, next) = (found.plus(part), rest);
        }
        self.sync();
        Ok(found.chunks)
    }
}

pub fn empty_load() -> BenefactorLoad {
    BenefactorLoad { donated_bytes: GIB, free_bytes: GIB, blocks: 1000, ..BenefactorLoad::default() }
}

pub fn stored(number: u32) -> StoredBlock {
    let block = BlockId::plain(chunk(number));
    StoredBlock { block, plain_length: CHUNK_LENGTH, stored_length: CHUNK_LENGTH }
}
