//! The world of a life: chance, time, who is there, and what happens next.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;

use stdchk_manager::core::{Core, Now};
use stdchk_manager::store::MemoryStore;
use stdchk_model::exact::to_usize;
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, Ino, Receipt, Redundancy, SessionId, Tier};
use tokio::runtime::Runtime;

use super::adversaries::{self, Adversary};
use super::client::{Client, Step};
use super::content::{Number, REDUNDANCIES};
use super::files::NAMING;
use super::manager::{Backup, Registered, load};
use super::model::Files;
use super::node::Node;
use super::plant::Plant;
use super::stale::Stale;

/// Benefactors of lives without codes.
const NODES: u64 = 3;
const CLIENTS: u8 = 3;
/// Benefactors in memory of those lives that have some, and how many of these are enough for a commit.
pub const MEMORIES: u64 = 2;
/// Lines of the history that are kept.
const SHOWN: usize = 400;

pub struct World {
    random: u64,
    pub plant: Plant,
    /// What the folder asks for.
    pub redundancy: Redundancy,
    /// How far from loss chunks are wanted at least since all was at rest.
    pub least_distance: u8,
    /// What folders may ask for in this life.
    pub redundancies: Vec<Redundancy>,
    /// There are too few benefactors for some of these.
    pub is_narrow: bool,
    pub runtime: Runtime,
    pub core: Core,
    pub disk: MemoryStore,
    /// The store before its last commit.
    pub earlier: Option<MemoryStore>,
    pub backup: Option<Backup>,
    /// Keepers have the manager's journal.
    pub has_keepers: bool,
    /// What they have of it.
    pub kept: Option<Backup>,
    /// A benefactor of ill will told no moment that is so when what keepers have took the place of the manager's store.
    pub hides_moment: bool,
    /// The backup that is registered.
    pub registered: Option<Registered>,
    pub now: Now,
    pub folder: Ino,
    pub starts: u64,
    pub lives: u64,
    pub operations: u128,
    pub sessions: u64,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    pub files: Files,
    /// Chunks that were given up with an older store, or went with all memory that had them, and have not been stored since.
    pub lost: BTreeSet<Number>,
    /// The numbers that benefactors in memory have, or had.
    pub in_memory: BTreeSet<BenefactorId>,
    /// Numbers under which benefactors left whose owners took their disks.
    pub gone: BTreeSet<BenefactorId>,
    /// How often each chunk was lost in memory since a version with it was acknowledged of which enough was there.
    pub lost_in_memory: BTreeMap<Number, usize>,
    /// A manager that stood still while another one took over, and believes that it leads.
    pub stale: Option<Stale>,
    /// Messages of connections that are gone, which the manager has not read.
    pub strays: Vec<ManagerRequest>,
    /// What versions named when a planted mistake looked.
    pub seen: Option<BTreeSet<Number>>,
    /// The chunks of which a benefactor of ill will has claimed blocks.
    pub claimed: BTreeSet<Number>,
    /// Once something was claimed: the chunks that could be read since versions name them.
    pub readable: BTreeSet<Number>,
    /// Receipts that somebody of ill will keeps.
    pub receipts: Vec<(BenefactorId, Receipt)>,
    /// The session of a user of ill will, and the file that it writes.
    pub meddling: Option<(SessionId, Ino)>,
    /// Those of ill will who take part.
    pub adversaries: Vec<Adversary>,
    /// Nothing goes wrong any more.
    pub calm: bool,
    history: VecDeque<String>,
    /// Of the whole history.
    hash: blake3::Hasher,
}

/// What folders ask for in lives with so many benefactors that have room.
fn redundancies(is_coded: bool, hosts: u64) -> Vec<Redundancy> {
    if !is_coded {
        return vec![Redundancy::Replicate(1), Redundancy::Replicate(2)];
    }
    let all = REDUNDANCIES.iter().map(|redundancy| redundancy.parse::<Redundancy>().unwrap());
    all.filter(|redundancy| u64::from(redundancy.hosts()) <= hosts).collect()
}

impl World {
    pub fn new(seed: u64, plant: Plant) -> Self {
        let (disk, now) = (MemoryStore::default(), Now { wall: 1_000, ms: 0 });
        let core = load(&disk, 1, now);
        let has_small = seed % 4 == 3;
        // Some lives know erasure codes, and have more benefactors.
        let is_coded = seed % 3 == 2;
        let nodes = if is_coded { [3, 5, 6][to_usize(seed / 3 % 3)] } else { NODES };
        let is_strict = is_coded && seed.is_multiple_of(5);
        // In few lives there are not enough for all codes.
        let is_narrow = is_coded && nodes == NODES && seed.is_multiple_of(2) && !(is_strict || has_small);
        let redundancies =
            redundancies(is_coded, if is_narrow { u64::MAX } else { nodes - u64::from(has_small) });
        let at = to_usize(seed % redundancies.len() as u64);
        // In some lives memory is enough for a commit.
        let memories = if !is_coded && seed % 7 == 6 { MEMORIES } else { 0 };
        let disks = (1..=nodes).map(|life| Node::new(life, has_small && life == nodes, Tier::Disk, plant));
        let memory = (nodes + 1..=nodes + memories).map(|life| Node::new(life, false, Tier::Memory, plant));
        let all: Vec<Node> = disks.chain(memory).collect();
        let mut world = Self {
            random: 0,
            plant,
            redundancy: redundancies[at],
            least_distance: redundancies[at].distance(),
            redundancies,
            is_narrow,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
            core,
            disk,
            earlier: None,
            backup: None,
            has_keepers: seed % 5 == 4 && memories == 0,
            kept: None,
            hides_moment: false,
            registered: None,
            now,
            folder: Ino::ROOT,
            starts: 1,
            lives: nodes + memories,
            operations: 0,
            sessions: 0,
            nodes: all,
            clients: (1..=CLIENTS).map(Client::new).collect(),
            files: Files::default(),
            lost: BTreeSet::new(),
            in_memory: BTreeSet::new(),
            gone: BTreeSet::new(),
            lost_in_memory: BTreeMap::new(),
            stale: None,
            strays: Vec::new(),
            seen: None,
            claimed: BTreeSet::new(),
            readable: BTreeSet::new(),
            receipts: Vec::new(),
            meddling: None,
            adversaries: adversaries::in_life(seed, plant),
            calm: true,
            history: VecDeque::new(),
            hash: blake3::Hasher::new(),
        };
        world.commit_store();
        world.folder = world.make(Ino::ROOT, "app", FileKind::Directory);
        world.tell_redundancy(world.redundancy);
        // Two files are a set.
        let pairs =
            [("ranks", "2"), ("naming", NAMING)].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let pairs = pairs.to_vec();
        world.change(&Change::SetPolicy { ino: world.folder, pairs });
        if is_strict {
            let pairs = vec![("semantics".to_owned(), "pessimistic".to_owned())];
            world.change(&Change::SetPolicy { ino: world.folder, pairs });
        }
        if memories > 0 {
            let pairs = vec![("semantics".to_owned(), format!("memory:{MEMORIES}"))];
            world.change(&Change::SetPolicy { ino: world.folder, pairs });
        }
        if seed % 4 == 1 {
            world.set_lifetime();
        }
        for node in 0..world.nodes.len() {
            world.connect(node);
            world.deliver_all(node);
        }
        world.keepers_follow();
        world.calm = false;
        world
    }

    // --- chance, and what is told of it

    /// Chance begins anew, so that what an event does depends on its number and the state of the world alone.
    pub fn begin_event(&mut self, seed: u64, event: u32) {
        self.random =
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(event) << 40) ^ 0x5851_f42d_4c95_7f2d;
        self.next();
    }

    pub fn next(&mut self) -> u64 {
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

    /// How far from loss every chunk must be at rest. Where there are too few benefactors, fragments wait for more, as long as
    /// the chunk survives a loss.
    pub fn distance(&self) -> u8 {
        let distance = self.redundancy.distance_with(self.disks());
        if self.is_narrow { distance.min(2) } else { distance }
    }

    /// Benefactors with disks: those come first.
    pub fn disks(&self) -> usize {
        self.nodes.iter().filter(|node| node.tier == Tier::Disk).count()
    }

    /// Whether folders may ask for erasure codes in this life.
    pub fn is_coded(&self) -> bool {
        self.redundancies.iter().any(|redundancy| matches!(redundancy, Redundancy::Erasure(_)))
    }

    // --- time

    pub fn pass(&mut self, ms: u64) {
        self.now.ms += ms;
        self.now.wall += i64::try_from(ms).unwrap() * 1_000_000;
        self.core.tick(self.now);
        self.commit_store();
        for number in 0..self.clients.len() {
            let client = &self.clients[number];
            if client.is_silent || client.step == Step::Idle {
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
    pub fn long_time(&mut self) {
        if !self.calm {
            self.note("time passes".to_owned());
        }
        for _ in 0..5 {
            self.pass(900);
            for node in 0..self.nodes.len() {
                if self.calm || (self.nodes[node].connected && self.nodes[node].sent.is_empty()) {
                    self.link(node);
                }
                self.deliver_all(node);
            }
        }
    }

    // --- events

    pub fn event(&mut self) {
        let (node, client) = (self.below(self.nodes.len()), self.below(self.clients.len()));
        match self.below(if self.adversaries.is_empty() { 127 } else { 134 }) {
            0..40 => self.client_event(client),
            40..58 => self.link(node),
            58..61 => self.delete(node),
            61..65 => self.work(node),
            65..71 => {
                let ms = self.next() % 2_000;
                self.pass(ms);
            }
            71..80 => self.collect(),
            80..84 => self.long_time(),
            84 => self.restart_manager(),
            85..89 => {
                let power = self.below(2) == 0;
                self.stop(node, power);
            }
            89..93 => self.disconnect(node),
            93 | 94 => self.stray(),
            95 => self.clients[client].is_silent ^= true,
            96..100 => self.unlink(),
            100..103 => self.rename(),
            103 => self.set_redundancy(),
            104 => self.back_up(),
            105 => self.back_up_or_release(),
            106 => self.kill_client(client),
            107 => {
                self.now.wall += i64::try_from(self.next() % 2_000_000_000_000).unwrap() - 1_000_000_000_000;
            }
            108 | 109 => self.bad_read(node),
            110 if self.is_coded() => self.begin_to_lie(node),
            110 | 111 => self.set_lifetime(),
            112..115 => self.decide(node),
            115..118 => self.owner_writes(node),
            118 => self.another_manager_follows(),
            119 | 120 => self.late_orders_come(),
            121 | 122 => self.trespass(node, client),
            123 | 124 => self.owner_works(node),
            125 => self.drop_version(),
            126 => self.keepers_event(),
            127..134 => self.adversary(),
            _ => unreachable!("that is all that happens"),
        }
    }

    /// The owner's work begins to keep the disk busy, or ends.
    fn owner_works(&mut self, node: usize) {
        if self.nodes[node].is_up() {
            let load = [0.0, 0.5, 1.0][self.below(3)];
            self.nodes[node].is_loaded(load);
            self.note(format!("{:?} has a load of {load}", self.nodes[node].id));
        }
    }

    fn bad_read(&mut self, node: usize) {
        let number = self.any_chunk();
        if self.nodes[node].is_up() {
            self.nodes[node].read_fails_once(number, &self.runtime);
        }
    }
}
