//! The world of a life: what happens next, and what must hold.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write;

use stdchk_manager::core::{Core, Now, Setting, Timing};
use stdchk_manager::store::{MemoryStore, Store as _};
use stdchk_model::message::benefactor::Command;
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, BlockId, ChunkId, ChunkMap, Ino, MapRoot, OpId, PoolId, SessionId};
use tokio::runtime::Runtime;

use super::client::{Client, Step, root_of};
use super::node::Node;

pub const CHUNK_BYTES: usize = 300;
const NODES: u64 = 3;
const CLIENTS: u8 = 3;
const FILES: usize = 4;
/// Different chunks that there are: so few that files share them all the time.
const CHUNKS: usize = 6;
/// Lines of the history that a failure shows.
const SHOWN: usize = 80;

/// A mistake that is made on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    Nothing,
    /// A benefactor gives receipts for what is not on its disk yet.
    ReceiptWithoutSync,
    /// A benefactor gives receipts that no deletion voids, and doesn't keep the blocks from any.
    ReceiptThatProtectsNothing,
    /// The manager answers a commit before it is in its store.
    AnswerBeforeStore,
    /// A benefactor carries out an order to delete when it has said other things since.
    LateDeletion,
    /// A benefactor removes whatever an order names, put again or not.
    DeletionOfWhatWasPutAgain,
    /// A benefactor calls puts durable in its heartbeat that are not.
    AnnouncedBeforeDurable,
}

impl Plant {
    pub const ALL: [Self; 6] = [
        Self::ReceiptWithoutSync,
        Self::ReceiptThatProtectsNothing,
        Self::AnswerBeforeStore,
        Self::LateDeletion,
        Self::DeletionOfWhatWasPutAgain,
        Self::AnnouncedBeforeDurable,
    ];
}

/// A file, as those who write it know it.
#[derive(Default)]
pub struct File {
    pub ino: Option<Ino>,
    /// What it may hold: what was acknowledged last, and what was sent since.
    pub possible: Vec<Vec<u8>>,
    /// Somebody was told that it is stored.
    pub acknowledged: bool,
}

pub struct World {
    random: u64,
    pub plant: Plant,
    /// Copies that the folder asks for: one or two.
    replicas: usize,
    pub runtime: Runtime,
    pub core: Core,
    disk: MemoryStore,
    pub now: Now,
    folder: Ino,
    starts: u64,
    lives: u64,
    operations: u128,
    sessions: u64,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    pub files: Vec<File>,
    /// Messages of connections that are gone, which the manager has not read.
    strays: Vec<ManagerRequest>,
    /// Markings that were begun and not swept behind.
    markings: Vec<u32>,
    /// Nothing goes wrong any more.
    calm: bool,
    history: VecDeque<String>,
    /// Of the whole history.
    hash: blake3::Hasher,
}

pub fn content(number: u8) -> Vec<u8> {
    (0..CHUNK_BYTES).map(|place| u8::try_from(place % 250).unwrap() ^ number).collect()
}

fn load(disk: &MemoryStore, start: u64, now: Now) -> Core {
    let timing = Timing {
        client_lease_ms: 1_500,
        benefactor_lease_ms: 2_000,
        benefactor_lost_ms: 4_000,
        garbage_age_ms: 3_000,
        collect_every_ms: 0,
    };
    let setting = Setting { new_pool: PoolId([7; 16]), owner: (0, 0), pid: 1, start, timing };
    Core::load(disk, setting, now).unwrap()
}

impl World {
    pub fn new(seed: u64, plant: Plant) -> Self {
        let (disk, now) = (MemoryStore::default(), Now { wall: 1_000, ms: 0 });
        let core = load(&disk, 1, now);
        let mut world = Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d,
            plant,
            replicas: if seed.is_multiple_of(2) { 1 } else { 2 },
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
            core,
            disk,
            now,
            folder: Ino::ROOT,
            starts: 1,
            lives: NODES,
            operations: 0,
            sessions: 0,
            nodes: (1..=NODES).map(Node::new).collect(),
            clients: (1..=CLIENTS).map(Client::new).collect(),
            files: (0..FILES).map(|_| File::default()).collect(),
            strays: Vec::new(),
            markings: Vec::new(),
            calm: false,
            history: VecDeque::new(),
            hash: blake3::Hasher::new(),
        };
        world.commit_store();
        world.folder = world.make(Ino::ROOT, "app", FileKind::Directory);
        let pairs = vec![("redundancy".to_owned(), format!("replicate:{}", world.replicas))];
        world.change(Change::SetPolicy { ino: world.folder, pairs });
        for node in 0..world.nodes.len() {
            world.connect(node);
            world.deliver_all(node);
        }
        world
    }

    // --- chance, and what is told of it

    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count as u64).unwrap()
    }

    /// Something that goes wrong so often.
    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0 && !self.calm
    }

    pub fn note(&mut self, line: String) {
        self.hash.update(line.as_bytes());
        if self.history.len() == SHOWN {
            self.history.pop_front();
        }
        self.history.push_back(format!("{:>7} ms  {line}", self.now.ms));
    }

    pub fn history(&self) -> String {
        self.history.iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{line}");
            text
        })
    }

    /// Two lives with the same are the same.
    pub fn hash(&self) -> blake3::Hash {
        self.hash.finalize()
    }

    // --- the manager

    pub fn commit_store(&mut self) {
        let batch = self.core.take_changes();
        self.disk.commit(&batch).unwrap();
        self.core.committed(self.disk.sequence());
    }

    fn ask(&mut self, request: ManagerRequest) -> Result<ManagerReply, stdchk_model::Failure> {
        let answer = self.core.handle(request, self.now);
        self.commit_store();
        answer
    }

    fn change(&mut self, change: Change) -> Option<Ino> {
        self.operations += 1;
        let id = OpId(self.operations.to_be_bytes());
        match self.ask(ManagerRequest::Change { id, change }).unwrap() {
            ManagerReply::Entry(attr) => Some(attr.ino),
            _ => None,
        }
    }

    fn make(&mut self, parent: Ino, name: &str, kind: FileKind) -> Ino {
        let (name, target) = (name.to_owned(), String::new());
        self.change(Change::Make { parent, name, kind, mode: 0o755, uid: 0, gid: 0, target }).unwrap()
    }

    /// The manager is killed and started again: what is not in its store is lost, and all connections are.
    pub fn restart_manager(&mut self) {
        self.note("the manager is killed and started again".to_owned());
        self.starts += 1;
        self.now.ms = 0;
        self.core = load(&self.disk, self.starts, self.now);
        self.commit_store();
        self.markings.clear();
        self.strays.clear();
        self.nodes.iter_mut().for_each(Node::disconnect);
    }

    /// Begins a marking, also beside another as `stdchk gc` does, or sweeps behind one.
    fn collect(&mut self) {
        let wanted = self.core.marking_is_due(self.now) || self.one_in(8);
        if wanted && (self.markings.is_empty() || self.one_in(3)) {
            let marking = self.core.begin_marking(self.now).unwrap();
            assert!(marking.maps.is_empty(), "all maps lie in their roots");
            self.markings.push(marking.generation);
            self.note(format!("marking {} begins", marking.generation));
        } else if !self.markings.is_empty() {
            let place = self.below(self.markings.len());
            let generation = self.markings.remove(place);
            let swept = self.core.sweep(generation, false, self.now).map_err(|failure| failure.code);
            self.note(format!("a sweep behind marking {generation}: {swept:?}"));
        }
    }

    // --- links

    fn connect(&mut self, node: usize) {
        let ManagerReply::Registered { id, .. } = self.ask(self.nodes[node].registration()).unwrap() else {
            panic!("not an answer to a registration")
        };
        self.nodes[node].id = Some(id);
        self.nodes[node].sent = self.nodes[node].inventory();
        self.nodes[node].connected = true;
        self.note(format!("{id} registers, to send its inventory in {} parts", self.nodes[node].sent.len()));
    }

    fn delete_all(&mut self, node: usize) {
        while !self.nodes[node].deletions.is_empty() {
            self.delete(node);
        }
    }

    fn delete(&mut self, node: usize) {
        if !self.nodes[node].is_up() || self.nodes[node].deletions.is_empty() {
            return;
        }
        let (blocks, sequence) = self.nodes[node].deletions.remove(0);
        let sequence = if self.plant == Plant::DeletionOfWhatWasPutAgain { u64::MAX } else { sequence };
        self.nodes[node].remove(&blocks, sequence);
        let names: Vec<_> = blocks.iter().map(|block| self.name(block)).collect();
        self.note(format!(
            "{:?} removes what of {names:?} was not put since {sequence:x}",
            self.nodes[node].id
        ));
    }

    fn name(&self, block: &BlockId) -> Option<u8> {
        (0..u8::try_from(CHUNKS).unwrap()).find(|number| ChunkId::of(&content(*number)) == block.chunk)
    }

    fn copy(&mut self, node: usize) {
        if !self.nodes[node].is_up() || self.nodes[node].copies.is_empty() {
            return;
        }
        let (block, to) = self.nodes[node].copies.remove(0);
        let target = self.nodes.iter().position(|node| node.id == Some(to) && node.is_up());
        let (Some(target), Some(number)) = (target, self.name(&block)) else { return };
        if !self.nodes[node].blocks().contains(&block) {
            return;
        }
        self.nodes[target].put(&content(number), false, &self.runtime);
        self.nodes[target].receipt(vec![block], &self.runtime);
        self.note(format!("{number} is copied to {to}"));
    }

    /// The link of a node does the next thing.
    fn link(&mut self, node: usize) {
        if !self.nodes[node].is_up() {
            if self.calm || self.one_in(3) {
                self.lives += 1;
                self.nodes[node].start(self.lives);
                self.note(format!("{:?} starts", self.nodes[node].id));
            }
        } else if !self.nodes[node].connected {
            self.connect(node);
        } else if self.nodes[node].sent.is_empty() {
            let sync = self.calm || self.below(2) == 0;
            if !sync && self.plant == Plant::AnnouncedBeforeDurable {
                self.nodes[node].announce_all();
            }
            match self.nodes[node].heartbeat(sync) {
                Some(beat) => self.nodes[node].sent.push(beat),
                None => self.nodes[node].sent = self.nodes[node].inventory(),
            }
        } else {
            self.deliver(node);
        }
    }

    fn deliver_all(&mut self, node: usize) {
        while self.nodes[node].connected && !self.nodes[node].sent.is_empty() {
            self.deliver(node);
        }
    }

    fn deliver(&mut self, node: usize) {
        let request = self.nodes[node].sent.remove(0);
        let id = self.nodes[node].id;
        if let ManagerRequest::Heartbeat { added, removed, .. } = &request
            && !(added.is_empty() && removed.is_empty())
        {
            let added: Vec<_> = added.iter().map(|stored| self.name(&stored.block)).collect();
            let removed: Vec<_> = removed.iter().map(|block| self.name(block)).collect();
            self.note(format!("{id:?} tells that it has {added:?} and has not {removed:?}"));
        }
        let answer = self.ask(request);
        if self.one_in(20) {
            self.note(format!("{id:?} loses its connection, and an answer with it"));
            self.nodes[node].disconnect();
            return;
        }
        match answer {
            Ok(ManagerReply::Commands(commands)) => self.obey(node, commands),
            Ok(_) => {}
            Err(failure) => {
                self.note(format!("{id:?} is refused {:?}", failure.code));
                self.nodes[node].disconnect();
            }
        }
    }

    fn obey(&mut self, node: usize, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Delete { blocks, put_sequence } => {
                    let names: Vec<_> = blocks.iter().map(|block| self.name(block)).collect();
                    self.note(format!("{:?} is to delete {names:?}", self.nodes[node].id));
                    self.nodes[node].deletions.push((blocks, put_sequence));
                    if self.plant != Plant::LateDeletion {
                        self.delete(node);
                    }
                }
                Command::Make(make) => {
                    let block = BlockId::plain(make.chunk);
                    self.nodes[node].copies.extend(make.blocks.iter().map(|new| (block, new.to)));
                }
                Command::SendInventory => self.nodes[node].sent = self.nodes[node].inventory(),
                Command::Remember(_) => {}
            }
        }
    }

    /// The connection breaks; what was on its way may still be read.
    fn disconnect(&mut self, node: usize) {
        if self.nodes[node].connected {
            self.note(format!("{:?} loses its connection", self.nodes[node].id));
            let sent = std::mem::take(&mut self.nodes[node].sent);
            if self.below(2) == 0 {
                self.strays.extend(sent);
            }
            self.nodes[node].disconnect();
        }
    }

    fn stray(&mut self) {
        if !self.strays.is_empty() {
            let request = self.strays.remove(0);
            self.note("a message of a broken connection is read".to_owned());
            let _nobody_reads_it = self.ask(request);
        }
    }

    // --- time

    fn pass(&mut self, ms: u64) {
        self.now.ms += ms;
        self.now.wall += i64::try_from(ms).unwrap() * 1_000_000;
        self.core.tick(self.now);
        self.commit_store();
        for number in 0..self.clients.len() {
            let client = &self.clients[number];
            if client.silent || client.step == Step::Idle {
                continue;
            }
            let (session, step) = (client.session, client.step);
            if let Ok(ManagerReply::Sessions(known)) = self.ask(ManagerRequest::KeepAlive(client.id))
                && !known.contains(&session)
                && !matches!(step, Step::Open | Step::Close)
                && self.clients[number].sent.is_none()
            {
                self.note(format!("client {number} learns that its session is forgotten"));
                self.clients[number].forgotten();
            }
        }
    }

    /// A while in which whoever can gives signs of life.
    fn long_time(&mut self) {
        if !self.calm {
            self.note("time passes".to_owned());
        }
        for _ in 0..5 {
            self.pass(900);
            for node in 0..self.nodes.len() {
                if self.nodes[node].connected && self.nodes[node].sent.is_empty() {
                    self.link(node);
                }
                self.deliver_all(node);
            }
        }
    }

    // --- events

    pub fn event(&mut self) {
        let (node, client) = (self.below(self.nodes.len()), self.below(self.clients.len()));
        match self.below(100) {
            0..40 => self.client_event(client),
            40..64 => self.link(node),
            64..67 => self.delete(node),
            67..71 => self.copy(node),
            71..77 => {
                let ms = self.next() % 2_000;
                self.pass(ms);
            }
            77..83 => self.collect(),
            83..86 => self.long_time(),
            86 => self.restart_manager(),
            87 | 88 => self.stop(node),
            89..92 => self.disconnect(node),
            92 => self.stray(),
            93 => self.clients[client].silent ^= true,
            94..99 => self.unlink(),
            _ => {}
        }
    }

    fn stop(&mut self, node: usize) {
        let power = self.below(2) == 0;
        if self.nodes[node].is_up() {
            let id = self.nodes[node].id;
            self.note(format!("{id:?} stops, for want of power: {power}"));
            self.nodes[node].stop(power);
            for client in &mut self.clients {
                client.held.retain(|(_, at)| Some(*at) != id);
            }
        }
    }

    fn client_event(&mut self, client: usize) {
        if self.clients[client].step != Step::Idle {
            return self.client_step(client);
        }
        let file = self.below(FILES);
        if self.clients.iter().any(|other| other.step != Step::Idle && other.file == file) {
            return;
        }
        let ino = match self.files[file].ino {
            Some(ino) => ino,
            None => {
                let ino = self.make(self.folder, &format!("file{file}"), FileKind::File);
                self.files[file] = File { ino: Some(ino), ..File::default() };
                ino
            }
        };
        let (count, careless) = (1 + self.below(3), self.below(3) == 0);
        let chunks: Vec<u8> = (0..count).map(|_| u8::try_from(self.below(CHUNKS)).unwrap()).collect();
        self.sessions += 1;
        let session = SessionId(u128::from(self.sessions).to_be_bytes());
        self.note(format!("client {client} begins to write {chunks:?} to file {file}, careless: {careless}"));
        self.clients[client].begin(session, file, ino, chunks, careless);
    }

    fn unlink(&mut self) {
        let file = self.below(FILES);
        let written = self.clients.iter().any(|client| client.step != Step::Idle && client.file == file);
        if !written && self.files[file].ino.is_some() {
            self.note(format!("file {file} is removed"));
            self.files[file] = File::default();
            self.change(Change::Unlink { parent: self.folder, name: format!("file{file}") });
        }
    }

    // --- what must hold

    fn root(&mut self, ino: Ino, version: Option<u64>) -> Option<MapRoot> {
        match self.ask(ManagerRequest::OpenVersion { ino, version }).unwrap() {
            ManagerReply::Version { root, .. } => root,
            other => panic!("{other:?}"),
        }
    }

    /// Looks whether each file is what it can be, and gathers the chunks that its versions name.
    fn named(&mut self) -> BTreeSet<ChunkId> {
        let mut named = BTreeSet::new();
        for file in 0..FILES {
            let Some(ino) = self.files[file].ino else { continue };
            match self.root(ino, None) {
                Some(root) => {
                    let possible = self.files[file].possible.iter().any(|chunks| root_of(chunks) == root);
                    assert!(possible, "file {file} is something that it can't be");
                }
                None => assert!(!self.files[file].acknowledged, "file {file} was stored and is not there"),
            }
            let ManagerReply::Versions(versions) = self.ask(ManagerRequest::Versions(ino)).unwrap() else {
                panic!("not an answer to a question for versions")
            };
            for version in versions {
                let Some(MapRoot::Inline { map }) = self.root(ino, Some(version.version)) else { continue };
                named.extend(ChunkMap::decode(&map).unwrap().chunks().iter().map(|chunk| chunk.id));
            }
        }
        named
    }

    pub fn check(&mut self) {
        for chunk in self.named() {
            let block = BlockId::plain(chunk);
            let durable = self.nodes.iter().any(|node| node.has_durable(block));
            assert!(durable, "a version names chunk {:?}, which is durable nowhere", self.name(&block));
        }
    }

    /// Everybody comes back and ends what was begun; then nothing may be missing, and nothing left over.
    pub fn quiet(&mut self) {
        self.calm = true;
        self.note("all is quiet".to_owned());
        self.strays.clear();
        for client in &mut self.clients {
            client.silent = false;
        }
        for round in 0..400 {
            for node in 0..self.nodes.len() {
                self.link(node);
                self.delete(node);
                self.copy(node);
            }
            for client in 0..self.clients.len() {
                if self.clients[client].step != Step::Idle {
                    self.client_step(client);
                }
            }
            if round % 4 == 0 {
                self.pass(100);
                self.collect();
            }
            self.check();
        }
        let busy: Vec<usize> =
            (0..self.clients.len()).filter(|client| self.clients[*client].step != Step::Idle).collect();
        assert!(busy.is_empty(), "clients {busy:?} never end");
        // Numbers of blocks that differ are looked into after ten minutes.
        for _ in 0..160 {
            self.long_time();
            self.collect();
            for node in 0..self.nodes.len() {
                self.delete_all(node);
                while !self.nodes[node].copies.is_empty() {
                    self.copy(node);
                }
            }
        }
        self.check();
        self.check_tidy();
    }

    fn check_tidy(&mut self) {
        let named = self.named();
        for number in 0..u8::try_from(CHUNKS).unwrap() {
            let block = BlockId::plain(ChunkId::of(&content(number)));
            let at: BTreeSet<BenefactorId> = self
                .nodes
                .iter()
                .filter(|node| node.blocks().contains(&block))
                .filter_map(|node| node.id)
                .collect();
            let copies = if named.contains(&block.chunk) { self.replicas } else { 0 };
            assert_eq!(at.len(), copies, "copies of chunk {number}, at {at:?}");
            let ManagerReply::Locations(found) =
                self.ask(ManagerRequest::Locate { chunks: vec![block.chunk] }).unwrap()
            else {
                panic!("not an answer to a question for places")
            };
            let told: BTreeSet<BenefactorId> =
                found.iter().flat_map(|found| &found.at).map(|location| location.benefactor).collect();
            assert_eq!(told, at, "where chunk {number} is, by the manager and by the benefactors");
        }
    }
}
