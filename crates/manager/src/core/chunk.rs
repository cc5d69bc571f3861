//! What the index knows of one chunk: its blocks, what refers to it, how far it is from loss, and what is done about that.

use smallvec::SmallVec;
use stdchk_model::message::manager::TimeNs;
use stdchk_model::{BenefactorId, BlockId, ChunkId, Durability, EncodingId, Tier, Trust};
use stdchk_protect::{Held, Plan, distance, distance_among, distance_at_best, is_readable, plan, suffices};

use super::benefactors::Registry;
use super::exposure::{Lacking, Span};
use super::sessions::Session;

/// A block of a chunk at a benefactor.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    pub benefactor: BenefactorId,
    pub encoding: EncodingId,
    pub index: u8,
    /// The benefactor's inventory that saw it last.
    pub inventory: u32,
    /// Bytes that it takes there.
    pub stored_length: u32,
    /// Where the chunk stands in the benefactor's list.
    pub(super) listed: u32,
    pub(super) marks: Marks,
}

/// What else is noted of a block, in one byte: there are tens of millions of blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks(u8);

impl Marks {
    const OWED: u8 = 1;
    const VOUCHED: u8 = 2;
    const BROKEN: u8 = 4;
    const DOUBTED: u8 = 8;
    const BEYOND_NEED: u8 = 16;

    /// Whether the block is to go since the benefactor's owner needs the space.
    pub fn is_owed(self) -> bool {
        self.0 & Self::OWED != 0
    }

    pub(super) fn set_owed(&mut self, is_owed: bool) {
        self.0 = self.0 & !Self::OWED | if is_owed { Self::OWED } else { 0 };
    }

    /// Whether the benefactor didn't show the block to another one.
    fn is_doubted(self) -> bool {
        self.0 & Self::DOUBTED != 0
    }

    pub(super) fn doubt(&mut self) {
        self.0 |= Self::DOUBTED;
    }

    /// Whether the block came when all that is wanted was there without it.
    pub(super) fn is_beyond_need(self) -> bool {
        self.0 & Self::BEYOND_NEED != 0
    }

    pub(super) fn set_beyond_need(&mut self) {
        self.0 |= Self::BEYOND_NEED;
    }

    /// What is known of the encoding of a fragment.
    fn trust(self) -> Trust {
        match (self.0 & Self::BROKEN != 0, self.0 & Self::VOUCHED != 0) {
            (true, _) => Trust::Broken,
            (false, true) => Trust::Trusted,
            (false, false) => Trust::Claimed,
        }
    }

    pub(super) fn set_trust(&mut self, trust: Trust) {
        let bit = match trust {
            Trust::Broken => Self::BROKEN,
            Trust::Trusted => Self::VOUCHED,
            Trust::Claimed => 0,
        };
        self.0 = self.0 & !(Self::BROKEN | Self::VOUCHED) | bit;
    }
}

impl Holder {
    /// Whether the block counts for everybody.
    pub fn trust(&self) -> Trust {
        if self.encoding.code.is_copy() { Trust::Trusted } else { self.marks.trust() }
    }

    /// Whether the block is to go since the benefactor's owner needs the space.
    pub fn is_owed(&self) -> bool {
        self.marks.is_owed()
    }

    /// The block, for `protect`, with what is known of where it lies.
    pub fn held(&self, registry: &Registry) -> Held {
        let Self { benefactor, encoding, index, .. } = *self;
        Held { benefactor, encoding, index, tier: registry.tier(benefactor), trust: self.trust() }
    }

    /// The block as it counts for the writer of a session.
    pub fn held_for(&self, chunk: &ChunkId, session: &Session, registry: &Registry) -> Held {
        let held = self.held(registry);
        match held.trust {
            Trust::Claimed if session.trusts(chunk, held.encoding) => Held { trust: Trust::Trusted, ..held },
            _ => held,
        }
    }

    /// Whether the block lies in memory: then it goes as soon as disks have what is wanted.
    pub fn is_in_memory(&self, registry: &Registry) -> bool {
        registry.tier(self.benefactor) == Tier::Memory
    }

    /// Which block of `chunk` it is.
    pub fn block(&self, chunk: ChunkId) -> BlockId {
        BlockId { chunk, encoding: self.encoding, index: self.index }
    }

    /// Whether the benefactor has said in its present life that it has the block, and its last inventory didn't leave it out.
    pub fn is_known(&self, registry: &Registry) -> bool {
        registry.get(self.benefactor).is_some_and(|benefactor| self.inventory >= benefactor.valid_inventory)
    }

    /// Whether the block counts: the benefactor isn't lost.
    pub fn counts(&self, registry: &Registry) -> bool {
        self.is_known(registry) && registry.counts(self.benefactor)
    }

    /// Whether the chunk is to be as far from loss as is wanted without this block. Until then it counts for all but what is planned.
    pub fn leaves(&self, registry: &Registry) -> bool {
        self.is_owed() || self.marks.is_doubted() || registry.leaves(self.benefactor)
    }

    /// Whether the block is to go once that is so. What is on a machine that goes soon stays: it serves for as long as it is there, and
    /// the machine may stay after all.
    pub fn is_to_go(&self, registry: &Registry) -> bool {
        self.is_owed() || self.marks.is_doubted() || registry.lets_go(self.benefactor)
    }

    /// Whether the block can be read now or once its benefactor is back.
    pub fn may_return(&self, registry: &Registry) -> bool {
        self.is_known(registry) && registry.may_return(self.benefactor)
    }

    /// Whether the block can be read now.
    pub fn is_online(&self, registry: &Registry) -> bool {
        self.is_known(registry) && registry.is_online(self.benefactor)
    }
}

/// How many refer to something, by the distance to loss that they want.
#[derive(Clone, Debug, Default)]
pub struct Wants(SmallVec<[(u8, u32); 1]>);

impl Wants {
    /// The greatest distance that any wants; 0: there is none.
    pub fn most(&self) -> u8 {
        self.0.iter().map(|(wanted, _)| *wanted).max().unwrap_or(0)
    }

    /// Whether nothing refers to it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether exactly one refers to it.
    pub fn is_last(&self) -> bool {
        matches!(self.0.as_slice(), [(_, 1)])
    }

    /// One more wants this distance, at least 1.
    pub fn add(&mut self, wanted: u8) {
        assert!(wanted > 0, "whoever refers to a chunk wants it to be there");
        match self.0.iter_mut().find(|(known, _)| *known == wanted) {
            Some((_, count)) => *count += 1,
            None => self.0.push((wanted, 1)),
        }
    }

    /// One of those that want a distance wants another. Nothing is allocated for what is never there at the same time: most chunks have one
    /// distance, and there are millions.
    pub fn change(&mut self, before: u8, wanted: u8) {
        self.remove(before);
        self.add(wanted);
    }

    /// One of those that want this distance is gone.
    pub fn remove(&mut self, wanted: u8) {
        let known = self.0.iter_mut().find(|(known, _)| *known == wanted);
        let Some((_, count)) = known else { unreachable!("nothing wants the distance {wanted}") };
        *count -= 1;
        self.0.retain(|(_, count)| *count > 0);
        if self.0.spilled() {
            self.0.shrink_to_fit();
        }
    }
}

/// What is known of a chunk.
#[derive(Clone, Debug)]
pub struct Chunk {
    pub id: ChunkId,
    pub length: u32,
    /// Its length if some memory has it and no disk, as it is counted; 0 otherwise.
    pub(super) alone_in_memory: u32,
    /// What refers to it.
    pub(super) wants: Wants,
    /// When a session or a benefactor last brought it up, milliseconds of the manager's life.
    pub(super) touched_ms: u64,
    pub holders: Vec<Holder>,
    /// The versions that refer to it; `None`: none is known to.
    pub(super) span: Option<Span>,
    /// How it is counted while it lacks copies, which few do.
    pub(super) risk: Option<Box<Risk>>,
    /// Backups that had begun when a version first named it: later ones may name it, too.
    pub(super) born: u32,
    /// No version refers to it, and a state names it to which somebody may return.
    pub(super) is_held: bool,
    /// Its blocks are counted as those of chunks that no version refers to.
    pub(super) counts_as_brought: bool,
    /// What is being done about it.
    pub care: Care,
    /// Whether it can be read, if anything refers to it.
    pub(super) reach: Option<Reach>,
    /// When it got into the list of what nothing refers to, or was brought up there last; `None`: it is not in it.
    pub(super) unnamed_ms: Option<u64>,
}

impl Chunk {
    pub(super) fn new(id: ChunkId, born: u32, now_ms: u64) -> Self {
        Self {
            id,
            length: 0,
            alone_in_memory: 0,
            wants: Wants::default(),
            touched_ms: now_ms,
            holders: Vec::new(),
            span: None,
            risk: None,
            born,
            is_held: false,
            counts_as_brought: false,
            care: Care::default(),
            reach: None,
            unnamed_ms: None,
        }
    }

    /// The distance to loss that the versions referring to it ask for; 0: none refers to it.
    pub fn wanted(&self) -> u8 {
        self.wants.most()
    }

    /// The blocks that benefactors are known to have.
    pub fn known<'a>(&'a self, registry: &'a Registry) -> impl Iterator<Item = &'a Holder> + Clone {
        self.holders.iter().filter(|holder| holder.is_known(registry))
    }

    /// The blocks that count.
    pub fn counted<'a>(&'a self, registry: &'a Registry) -> impl Iterator<Item = &'a Holder> + Clone {
        self.holders.iter().filter(|holder| holder.counts(registry))
    }

    /// The blocks that can be read now.
    pub fn online<'a>(&'a self, registry: &'a Registry) -> impl Iterator<Item = &'a Holder> + Clone {
        self.holders.iter().filter(|holder| holder.is_online(registry))
    }

    /// The blocks that count and are not to go.
    pub fn staying<'a>(&'a self, registry: &'a Registry) -> impl Iterator<Item = &'a Holder> + Clone {
        self.counted(registry).filter(|holder| !holder.leaves(registry))
    }

    /// Those that are to let go of the chunk, whatever becomes of other chunks there.
    pub fn owing(&self) -> impl Iterator<Item = BenefactorId> + Clone {
        let is_to_go = |holder: &&Holder| holder.is_owed() || holder.marks.is_doubted();
        self.holders.iter().filter(is_to_go).map(|holder| holder.benefactor)
    }

    /// When a session or a benefactor last brought it up, milliseconds of the manager's life.
    pub fn touched_ms(&self) -> u64 {
        self.touched_ms
    }

    pub(super) fn place_at_risk(&self) -> Option<(u8, TimeNs)> {
        self.risk.as_ref().map(|risk| risk.place())
    }

    /// How far from loss it is, by the blocks that count; 0: it is on no disk.
    pub fn distance(&self, registry: &Registry) -> u8 {
        distance(held(self.counted(registry), registry))
    }

    /// Whether it is as safe as a commit of this session needs it, by the blocks that count.
    pub fn suffices(&self, registry: &Registry, needed: Durability, session: &Session) -> bool {
        suffices(self.counted(registry).map(|holder| holder.held_for(&self.id, session, registry)), needed)
    }

    /// Whether it may be as safe as a commit needs it, if one of its encodings that aren't known to be broken makes it.
    pub fn may_suffice(&self, registry: &Registry, needed: Durability) -> bool {
        let held = held(self.counted(registry), registry);
        distance_at_best(held.clone()) >= needed.distance || suffices(held, needed)
    }

    /// Whether it can be read, by the blocks that count.
    pub fn is_there(&self, registry: &Registry) -> bool {
        is_readable(held(self.counted(registry), registry))
    }

    /// Whether versions refer to it, and it is as far from loss as they want without the blocks that are to go, if its encodings make it.
    pub fn is_safe(&self, registry: &Registry) -> bool {
        let wanted = self.wanted();
        wanted > 0 && distance_at_best(held(self.staying(registry), registry)) >= wanted
    }

    /// How far from loss it is without the blocks that are to go.
    pub fn distance_staying(&self, registry: &Registry) -> u8 {
        self.distance_by(self.staying(registry), registry)
    }

    /// How far from loss it is once the machines have gone that are said to go soon.
    pub fn distance_lasting(&self, registry: &Registry) -> u8 {
        let lasting = self.counted(registry).filter(|holder| !registry.goes(holder.benefactor));
        self.distance_by(lasting, registry)
    }

    /// How far from loss it is by the blocks that can be read now and stay where they are for as long as anybody knows.
    pub fn distance_reliable(&self, registry: &Registry) -> u8 {
        let reliable = self.online(registry).filter(|holder| registry.is_reliable(holder.benefactor));
        self.distance_by(reliable, registry)
    }

    /// How far from loss it is by some of its blocks alone.
    pub fn distance_by<'a>(
        &'a self,
        some: impl Iterator<Item = &'a Holder> + Clone,
        registry: &'a Registry,
    ) -> u8 {
        distance_among(held(some, registry), held(self.counted(registry), registry))
    }

    /// Whether it can be read now, or once benefactors are back.
    pub(super) fn reach(&self, registry: &Registry) -> Reach {
        let returning = self.holders.iter().filter(|holder| holder.may_return(registry));
        match is_readable(held(self.online(registry), registry)) {
            true => Reach::Readable,
            false if is_readable(held(returning, registry)) => Reach::Away,
            false => Reach::Gone,
        }
    }

    pub(super) fn find(&mut self, benefactor: BenefactorId, block: &BlockId) -> Option<&mut Holder> {
        self.holders
            .iter_mut()
            .find(|holder| holder.benefactor == benefactor && holder.block(block.chunk) == *block)
    }

    /// The fewest blocks that can have the distance `wanted` if all of them are of one encoding; else 0: it has to be looked at.
    pub(super) fn fewest(&self, wanted: u8) -> usize {
        let Some(first) = self.holders.first() else { return 0 };
        let is_one = self.holders.iter().all(|holder| holder.encoding == first.encoding);
        if is_one { usize::from(wanted) + usize::from(first.encoding.code.data()) - 1 } else { 0 }
    }

    fn plan(&self, registry: &Registry) -> Option<Plan> {
        let staying: Vec<Held> = held(self.staying(registry), registry).collect();
        let readable: Vec<Held> = held(self.online(registry), registry).collect();
        plan(&readable, &staying, self.wanted())
    }

    /// Who can make blocks of it now.
    pub(super) fn sources(&self, registry: &Registry) -> Vec<BenefactorId> {
        self.plan(registry).map_or(Vec::new(), |plan| plan.from.iter().map(|held| held.benefactor).collect())
    }
}

/// Blocks for `protect`.
pub fn held<'a>(
    holders: impl Iterator<Item = &'a Holder> + Clone,
    registry: &'a Registry,
) -> impl Iterator<Item = Held> + Clone {
    holders.map(|holder| holder.held(registry))
}

/// Whether a chunk to which versions refer can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reach {
    Readable,
    /// Once benefactors come back that are known to have it.
    Away,
    /// No known blocks are enough.
    Gone,
}

/// What is done about a chunk that lacks copies, or has some where they are to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Care {
    /// Nothing: it stands in the queues of those who can make blocks of it.
    #[default]
    Waits,
    /// No benefactor had room for a block when one was looked for last.
    Blocked,
    /// None had room that its source may try now, or somebody else was asked to make blocks: it is looked at again in some seconds.
    Postponed,
    /// Blocks are being made.
    Copied,
    /// Blocks are being made over a way on which that takes very long: nobody waits for them.
    CopiedSlowly,
    /// Making blocks failed moments ago; it is tried again soon.
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Risk {
    /// How many benefactors have to be lost before the chunk is, those counted that are to let go of it.
    pub(super) distance: u8,
    /// How many once the machines have gone that are said to go soon: by this chunks stand in the queues.
    pub(super) lasting: u8,
    /// It is nearer to loss than wanted. Else it is only where it is not to stay.
    pub(super) is_exposed: bool,
    pub(super) lacking: Lacking,
}

impl Risk {
    pub(super) fn place(self) -> (u8, TimeNs) {
        (self.lasting, self.lacking.span.first)
    }
}
