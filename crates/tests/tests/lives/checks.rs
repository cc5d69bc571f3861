//! What must hold in a life, whatever the parts do to see to it.

use std::collections::{BTreeMap, BTreeSet};

use stdchk_model::exact::to_usize;
use stdchk_model::message::benefactor::BlockState;
use stdchk_model::message::manager::{ManagerReply, ManagerRequest, VersionInfo};
use stdchk_model::{BenefactorId, BlockId, EncodingId, ErrorCode, Ino, MapRoot, Tier};
use stdchk_net::Bytes;
use stdchk_protect::{Assembly, BadFragments, Gathered};

use super::client::{Place, Step};
use super::content::{Number, chunk, content, id, is_made_up, lies, make_the_chunk, name, shown};
use super::files::name_of;
use super::model::{Content, NAMES, Shown};
use super::node::Node;
use super::plant::Plant;
use super::world::{MEMORIES, World};

impl World {
    /// The newest version of a file, or the one of a number; `None`: the file is gone.
    pub fn version(
        &mut self,
        ino: Ino,
        version: Option<u64>,
    ) -> Option<(Option<VersionInfo>, Option<MapRoot>)> {
        match self.ask(ManagerRequest::OpenVersion { ino, version, client: None }) {
            Ok(ManagerReply::Version { info, root, .. }) => Some((info, root)),
            Err(failure) if failure.code == ErrorCode::NotFound => None,
            other => panic!("an answer to a question for a version: {other:?}"),
        }
    }

    /// The versions of a file that are shown, the oldest first; `None`: the file is gone.
    pub fn versions_of(&mut self, ino: Ino) -> Option<Vec<Shown>> {
        let versions = match self.ask(ManagerRequest::Versions(ino)) {
            Ok(ManagerReply::Versions(versions)) => versions,
            Err(failure) if failure.code == ErrorCode::NotFound => return None,
            other => panic!("an answer to a question for the versions of {ino}: {other:?}"),
        };
        let mut shown = Vec::new();
        for VersionInfo { version: number, session, .. } in versions {
            let found = self.version(ino, Some(number));
            let Some((_, Some(root))) = found else {
                panic!("version {number} of {ino} is listed: {found:?}")
            };
            shown.push(Shown { number, session, lies: lies(&root) });
        }
        Some(shown)
    }

    /// All versions that there are: those that must be there, those that may be, and no others.
    pub fn all_versions(&mut self) -> Vec<(Ino, Shown)> {
        let mut all = Vec::new();
        for ino in self.files.all() {
            let (shown, has_name) = (self.versions_of(ino), self.files.has_name(ino));
            match shown {
                Some(shown) => {
                    if has_name {
                        self.files.judge(ino, &shown).unwrap_or_else(|why| panic!("{why}"));
                    }
                    all.extend(shown.into_iter().map(|one| (ino, one)));
                }
                None if has_name => panic!("file {ino} has a name, and is gone"),
                None => self.files.gone(ino),
            }
        }
        all
    }

    /// The chunks that versions name.
    pub fn named(&mut self) -> BTreeSet<Number> {
        self.all_versions().iter().flat_map(|(_, one)| one.lies.needs()).collect()
    }

    /// After every event: names lead where they should, files are what they can be, and all that versions name is durable
    /// somewhere.
    pub fn check(&mut self) {
        for place in 0..NAMES {
            self.check_name(place);
        }
        let unreadable = self.unreadable();
        self.lost.retain(|number| unreadable.contains(number));
        // What only memory had may go with all memory that a commit rested on, and not before.
        let counts = |(number, losses): (&Number, &usize)| (*losses >= to_usize(MEMORIES)).then_some(*number);
        let gone_in_memory: BTreeSet<Number> = self.lost_in_memory.iter().filter_map(counts).collect();
        self.lost.extend(unreadable.intersection(&gone_in_memory));
        self.forgive_what_a_liar_had();
        if let Some(number) = unreadable.difference(&self.lost).next() {
            let at = self.holders().remove(number).unwrap_or_default();
            panic!("a version names chunk {number}, of which only this is durable: {}", self.shown_at(&at));
        }
        self.check_registered(&gone_in_memory);
        for node in &self.nodes {
            assert!(node.keeps_within_its_donation(), "{:?} takes more than it was given", node.id);
        }
    }

    /// Chunks that a benefactor of ill will claims may be there by its word alone. Such a chunk is given up if genuine blocks
    /// have never sufficed for it since versions name it. A chunk for which they sufficed once must stay, whatever the liar says.
    fn forgive_what_a_liar_had(&mut self) {
        for node in &mut self.nodes {
            self.claimed.extend(std::mem::take(&mut node.not_stored).iter().map(name));
        }
        if self.claimed.is_empty() {
            return;
        }
        let (genuine, doubtful) = self.genuine();
        let never_genuine = doubtful.difference(&self.readable);
        self.lost.extend(never_genuine.filter(|number| self.claimed.contains(number)));
        self.readable.retain(|number| genuine.contains(number) || doubtful.contains(number));
        self.readable.extend(genuine);
    }

    /// The chunks that versions name: those for which genuine blocks suffice, and the others.
    fn genuine(&mut self) -> (BTreeSet<Number>, BTreeSet<Number>) {
        let (named, holders) = (self.named(), self.holders());
        named.into_iter().partition(|number| {
            let blocks = holders.get(number).into_iter().flatten().map(|(block, _)| block);
            suffice(blocks.filter(|block| !is_made_up(block)))
        })
    }

    /// A benefactor of ill will is about to claim blocks: what can be read by now must stay.
    pub fn claims_begin(&mut self) {
        let (genuine, _) = self.genuine();
        self.readable.extend(genuine);
    }

    /// All that the registered backup lists can be read.
    fn check_registered(&mut self, gone_in_memory: &BTreeSet<Number>) {
        let Some(mut registered) = self.registered.take() else { return };
        registered.listed.retain(|number| !gone_in_memory.contains(number) && !self.lost.contains(number));
        let holders = self.holders();
        for number in &registered.listed {
            let at = holders.get(number).cloned().unwrap_or_default();
            let is_readable = suffice(at.iter().map(|(block, _)| block));
            assert!(
                is_readable,
                "the registered backup lists chunk {number}, of which only this is durable: {}",
                self.shown_at(&at)
            );
        }
        self.registered = Some(registered);
    }

    fn check_name(&mut self, place: usize) {
        let request = ManagerRequest::Lookup { parent: self.folder, name: name_of(place) };
        let found = match self.ask(request) {
            Ok(ManagerReply::Entry(attr)) => Some(attr.ino),
            Err(failure) if failure.code == ErrorCode::NotFound => None,
            other => panic!("an answer to a question for a name: {other:?}"),
        };
        assert_eq!(found, self.files.names[place], "the file {}", name_of(place));
        let Some(ino) = found else { return };
        let Some((info, root)) = self.version(ino, None) else { panic!("{ino} has a name and is not there") };
        let newest = info.zip(root).map(|(info, root)| {
            let VersionInfo { version: number, session, .. } = info;
            Shown { number, session, lies: lies(&root) }
        });
        self.files.judge_newest(ino, newest.as_ref()).unwrap_or_else(|why| panic!("{why}"));
    }

    // --- when all is quiet

    /// A version was acknowledged. What of it is there as a commit asks for it is not to be lost with fewer benefactors from now on.
    pub fn rests_on_memory_anew(&mut self, content: &Content) {
        let holders = self.holders();
        for number in content.needs() {
            let at = holders.get(&number).into_iter().flatten();
            let (on_disks, in_memory): (Vec<_>, Vec<_>) =
                at.partition(|(_, node)| self.nodes[*node].tier == Tier::Disk);
            let hosts: BTreeSet<usize> = in_memory.iter().map(|(_, node)| *node).collect();
            if suffice(on_disks.iter().map(|(block, _)| block)) || hosts.len() >= to_usize(MEMORIES) {
                self.lost_in_memory.remove(&number);
            }
        }
    }

    /// Everybody comes back and ends what was begun; then nothing may be missing, nothing left over, and all can be read.
    pub fn quiet(&mut self) {
        self.calm = true;
        self.note("all is quiet".to_owned());
        self.strays.clear();
        self.lies_end();
        self.nodes.iter_mut().for_each(|node| node.lies.clear());
        // What survives a loss waits for those that are busy for as long as they are.
        self.nodes.iter().filter(|node| node.is_up()).for_each(|node| node.is_loaded(0.0));
        self.settle_owners();
        for client in &mut self.clients {
            client.is_silent = false;
        }
        for round in 0..400 {
            if round > 8 && self.clients.iter().all(|client| client.step == Step::Idle) {
                break;
            }
            self.quiet_round(round);
        }
        let busy: Vec<usize> =
            (0..self.clients.len()).filter(|client| self.clients[*client].step != Step::Idle).collect();
        assert!(busy.is_empty(), "clients {busy:?} never end");
        self.settle();
        self.check_expired();
        self.read_all();
        self.calm = false;
    }

    fn quiet_round(&mut self, round: usize) {
        for node in 0..self.nodes.len() {
            self.link(node);
            self.delete(node);
            self.work(node);
        }
        self.hidden_moment_comes_to_light();
        for client in 0..self.clients.len() {
            if self.clients[client].step != Step::Idle {
                self.client_step(client);
            }
        }
        if round.is_multiple_of(4) {
            self.pass(100);
            self.collect();
        }
        self.check();
    }

    /// Waits until all has its place, for three looks.
    pub fn settle(&mut self) {
        self.calm = true;
        let (mut tidy, mut last) = (0, Ok(()));
        // Numbers of blocks that differ are looked into after ten minutes.
        for _ in 0..160 {
            self.settle_a_little();
            last = self.is_tidy();
            tidy = if last.is_ok() { tidy + 1 } else { 0 };
            if tidy == 3 {
                break;
            }
        }
        self.check();
        last.unwrap_or_else(|why| panic!("{why}"));
        self.least_distance = self.distance();
    }

    pub fn settle_a_little(&mut self) {
        self.meddling_ends();
        self.keepers_follow();
        self.long_time();
        self.collect_all();
        (0..self.nodes.len()).for_each(|node| self.work_all(node));
    }

    /// Whether enough blocks of all these chunks are durable.
    pub fn can_be_read(&self, numbers: &BTreeSet<Number>) -> bool {
        let holders = self.holders();
        let blocks = |number| holders.get(number).into_iter().flatten().map(|(block, _)| block);
        numbers.iter().all(|number| suffice(blocks(number)))
    }

    /// The chunks that versions name and of which not enough blocks are durable.
    pub fn unreadable(&mut self) -> BTreeSet<Number> {
        let holders = self.holders();
        let is_readable = |number: &Number| {
            let blocks = holders.get(number).into_iter().flatten();
            suffice(blocks.map(|(block, _)| block))
        };
        self.named().into_iter().filter(|number| !is_readable(number)).collect()
    }

    /// The durable blocks of every chunk, and the places in `nodes` of who has them.
    pub fn holders(&self) -> BTreeMap<Number, BTreeSet<(BlockId, usize)>> {
        let mut holders: BTreeMap<Number, BTreeSet<(BlockId, usize)>> = BTreeMap::new();
        for (at, node) in self.nodes.iter().enumerate() {
            for block in node.disk.blocks() {
                holders.entry(name(&block)).or_default().insert((block, at));
            }
        }
        holders
    }

    /// Whether every chunk is as far from loss as is wanted with no block more than that takes, and lies where the manager says,
    /// nothing else is there, and owners have the room that they need.
    fn is_tidy(&mut self) -> Result<(), String> {
        let (named, mut holders) = (self.named(), self.holders());
        // A chunk that only the registered backup names stays as far from loss as its last version asked for, which the folder may
        // not ask for any more. Its block can't go if it was made up, if there are too few to make another, or if all with room have one.
        let can_move = |number: &Number| {
            let at = holders.get(number).into_iter().flatten();
            let hosts: BTreeSet<usize> = at.clone().map(|(_, node)| *node).collect();
            let has_room = |node: &usize| !hosts.contains(node) && !self.nodes[*node].is_small();
            suffice(at.map(|(block, _)| block)) && (0..self.nodes.len()).any(|node| has_room(&node))
        };
        let is_kept = |block: &BlockId| {
            let number = name(block);
            self.registered.is_some() && !named.contains(&number) && (is_made_up(block) || !can_move(&number))
        };
        let keeps = |node: &Node| node.disk.blocks().iter().any(is_kept);
        if let Some(node) = self.nodes.iter().find(|node| node.owes() > 0 && !keeps(node)) {
            return Err(format!("{:?} owes its owner {} bytes", node.id, node.owes()));
        }
        let all: BTreeSet<Number> = named.iter().copied().chain(holders.keys().copied()).collect();
        for number in all.difference(&self.lost.clone()).copied() {
            let at = holders.remove(&number).unwrap_or_default();
            let is_named = named.contains(&number);
            if !is_named && self.registered.is_some() {
                // It may be held, for the backup or since its past is unknown.
                continue;
            }
            let distance = if is_named { self.distance() } else { 0 };
            if at.iter().any(|(_, node)| self.nodes[*node].tier == Tier::Memory) {
                return Err(format!("chunk {number} is in memory still: {}", self.shown_at(&at)));
            }
            check_tidy(&at, distance, self.nodes.len(), self.is_narrow)
                .map_err(|why| format!("chunk {number} {why}: {}", self.shown_at(&at)))?;
            let id = |node: usize| self.nodes[node].id;
            let at: BTreeSet<Place> = at.iter().filter_map(|(block, at)| Some((*block, id(*at)?))).collect();
            let told: BTreeSet<Place> = self.located(number).into_iter().collect();
            if told != at {
                return Err(format!("chunk {number} is at {at:?}, the manager believes at {told:?}"));
            }
        }
        Ok(())
    }

    pub fn shown_at(&self, at: &BTreeSet<(BlockId, usize)>) -> String {
        let blocks = at.iter().map(|(block, at)| format!("{} at {:?}", shown(block), self.nodes[*at].id));
        blocks.collect::<Vec<_>>().join(", ")
    }

    pub fn located(&mut self, number: Number) -> Vec<Place> {
        let Ok(ManagerReply::Locations(found)) =
            self.ask(ManagerRequest::Locate { chunks: vec![id(number)] })
        else {
            panic!("not an answer to a question for places")
        };
        let found = found.iter().flat_map(|found| &found.at);
        found.map(|location| (location.block(id(number)), location.benefactor)).collect()
    }

    /// Reads every version as a reader does, and compares it byte for byte.
    pub fn read_all(&mut self) {
        for (ino, one) in self.all_versions() {
            for number in one.lies.needs().difference(&self.lost.clone()).copied() {
                let read = self.read_chunk(number);
                assert!(read.as_deref() == Some(content(number)), "chunk {number} of {ino} can't be read");
            }
        }
    }

    pub fn read_chunk(&mut self, number: Number) -> Option<Bytes> {
        let (mut assembly, mut served) = (Assembly::new(chunk(number)), Vec::new());
        for (block, at) in self.located(number) {
            let Some(node) = self.nodes.iter_mut().find(|node| node.id == Some(at) && node.is_up()) else {
                continue;
            };
            let Some((encoding, bytes)) = node.serve(block, &self.runtime) else { continue };
            served.retain(|(earlier, _)| *earlier != block);
            served.push((block, at));
            match assembly.add(block, encoding, bytes.clone()) {
                Ok(Gathered::Whole(plain)) => return Some(plain),
                Ok(Gathered::Lacks(_)) => {}
                Err(_) if self.plant == Plant::DamagedBytesAreServed => return Some(bytes),
                Err(BadFragments::Fragments(wrong)) => {
                    let is_wrong = |of: &BlockId| of.encoding == block.encoding && wrong.contains(&of.index);
                    let liars: Vec<_> = served.extract_if(.., |(of, _)| is_wrong(of)).collect();
                    liars.into_iter().for_each(|(of, at)| self.found_bad(of, at));
                }
                // Each block is what it is named after, and they don't make the chunk: benefactors find out.
                Err(BadFragments::Encoding) => {
                    let (chunk, encoding) = (block.chunk, block.encoding);
                    self.note(format!("a reader doubts {}", shown(&block)));
                    assert_eq!(self.ask(ManagerRequest::Doubt { chunk, encoding }), Ok(ManagerReply::Done));
                }
                Err(_) => self.found_bad(block, at),
            }
        }
        None
    }

    /// Somebody was served what is not the block that was asked for. The benefactor looks at it itself.
    pub fn found_bad(&mut self, block: BlockId, at: BenefactorId) {
        let Some(node) = self.nodes.iter_mut().find(|node| node.id == Some(at) && node.is_up()) else {
            return;
        };
        let lies = node.lies.contains_key(&block) || node.lies_to_manager.serves.is_some();
        let state = node.verify(block, &self.runtime);
        assert!(lies || state == BlockState::Damaged, "what {at} serves as {} is another", shown(&block));
        self.note(format!("{} is found damaged at {at}", shown(&block)));
    }

    /// Every benefactor looks at all that it has.
    pub fn scrub(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.is_up()) {
            for block in node.blocks() {
                node.verify(block, &self.runtime);
            }
        }
    }
}

/// Whether the chunk can be made of these blocks: whether those of some encoding decode to it.
pub fn suffice<'a>(blocks: impl Iterator<Item = &'a BlockId> + Clone) -> bool {
    blocks.clone().any(|block| {
        let own = blocks.clone().filter(|other| other.encoding == block.encoding);
        make_the_chunk(block.chunk, block.encoding, &own.map(|block| block.index).collect())
    })
}

/// How many of the `nodes` have to be lost before the chunk is: found by losing all sets of them.
pub fn true_distance(at: &BTreeSet<(BlockId, usize)>, nodes: usize) -> u32 {
    let survives = |lost: u32| {
        let left = at.iter().filter(|(_, node)| lost & 1 << node == 0);
        suffice(left.map(|(block, _)| block))
    };
    let fatal = (0..1u32 << nodes).filter(|lost| !survives(*lost));
    fatal.map(u32::count_ones).min().unwrap()
}

/// Whether these blocks give a chunk this distance from loss, with none to spare unless it may be further from loss.
fn check_tidy(
    at: &BTreeSet<(BlockId, usize)>,
    distance: u8,
    nodes: usize,
    may_be_further: bool,
) -> Result<(), String> {
    let Some((first, _)) = at.first() else {
        return if distance == 0 { Ok(()) } else { Err("is nowhere".to_owned()) };
    };
    let reached = true_distance(at, nodes);
    if reached < u32::from(distance) {
        return Err(format!("is lost with {reached} benefactors, the distance should be {distance}"));
    }
    // Blocks that don't count together are of no use to each other.
    let counts =
        |other: EncodingId| other == first.encoding || other.code.is_copy() && first.encoding.code.is_copy();
    let together = at.iter().all(|(block, _)| counts(block.encoding));
    let needed = usize::from(distance) + usize::from(first.encoding.code.data()) - 1;
    match distance > 0 && (may_be_further || together && at.len() == needed) {
        true => Ok(()),
        false => Err(format!("has blocks to spare for the distance {distance}")),
    }
}
