//! What the holders of a chunk's blocks are worth: how far from loss it is, what is to be made anew, what is too much.
//!
//! The measure is the *distance*: how many benefactors have to be lost before the chunk is. For copies that is the number of
//! benefactors that have one. For fragments of an (m, k) encoding it is n - m + 1, where n pairs of a benefactor and a fragment were
//! found that have neither in common: each loss takes one of them at most. Where several fragments lie at one benefactor
//! that may be less than the truth, never more. Blocks of different encodings
//! don't add up, since they may lie at the same benefactors: the best encoding counts. Copies suffice alone, however
//! they were compressed, so all copies are one.
//!
//! What lies in memory counts for nothing in any of this: not for the distance, nor for what is missing, nor for what else is too much. It
//! is asked for by name, where it matters: whether a chunk can be read ([`is_readable`]), whether it is enough for a commit ([`suffices`]), and
//! as what blocks are made from ([`plan`]). So nobody can take memory for a disk by leaving something out.

use std::collections::HashSet;

use stdchk_model::message::manager::Location;
use stdchk_model::{BenefactorId, Durability, EncodingId, Tier};

/// A block at a benefactor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// The benefactor.
    pub benefactor: BenefactorId,
    /// How the block is made.
    pub encoding: EncodingId,
    /// Which block of the encoding.
    pub index: u8,
    /// Where the benefactor keeps it.
    pub tier: Tier,
}

impl From<&Location> for Held {
    fn from(location: &Location) -> Self {
        let Location { benefactor, encoding, index, tier } = *location;
        Self { benefactor, encoding, index, tier }
    }
}

/// What is to be made anew.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Blocks to make it from. Of copies each alone is enough, and stands for its own encoding; else they are of one encoding, and
    /// as many as its code needs are enough.
    pub from: Vec<Held>,
    /// The blocks to make: blocks of the sources' encoding, or `None` for a copy of all encoded bytes.
    pub make: Vec<Option<u8>>,
    /// Benefactors to which the blocks must not go, for what they have counts together with these.
    pub taken: Vec<BenefactorId>,
}

/// The distance of a chunk to loss whose blocks are at `locations`.
pub fn distance_at<'a>(locations: impl IntoIterator<Item = &'a Location, IntoIter: Clone>) -> u8 {
    distance(locations.into_iter().map(Held::from))
}

/// Whether blocks of these encodings count together. No two of those that do should be at one benefactor.
fn count_together(one: EncodingId, other: EncodingId) -> bool {
    one == other || one.code.is_copy() && other.code.is_copy()
}

/// Whether a chunk can be read of which these blocks are there.
pub fn is_readable_at<'a>(locations: impl IntoIterator<Item = &'a Location, IntoIter: Clone>) -> bool {
    is_readable(locations.into_iter().map(Held::from))
}

/// Whether a chunk of which these blocks are there is as safe as a commit needs it.
pub fn suffices_at<'a>(
    locations: impl IntoIterator<Item = &'a Location, IntoIter: Clone>,
    needed: Durability,
) -> bool {
    suffices(locations.into_iter().map(Held::from), needed)
}

/// How many benefactors have to be lost before a chunk is of which these blocks are there; 0: no disk has enough to read it.
pub fn distance(held: impl Iterator<Item = Held> + Clone) -> u8 {
    steps_to_loss(held.filter(on_disk))
}

/// Whether a chunk can be read of which these blocks are there, wherever they lie.
pub fn is_readable(held: impl Iterator<Item = Held> + Clone) -> bool {
    steps_to_loss(held) > 0
}

/// Different benefactors that have a copy of a chunk in memory.
pub fn copies_in_memory(held: impl Iterator<Item = Held> + Clone) -> u8 {
    copies(held.filter(|block| !on_disk(block)))
}

/// Whether a chunk of which these blocks are there is as safe as a commit needs it.
pub fn suffices(held: impl Iterator<Item = Held> + Clone, needed: Durability) -> bool {
    distance(held.clone()) >= needed.distance
        || needed.in_memory.is_some_and(|hosts| copies_in_memory(held) >= hosts.max(1))
}

fn on_disk(block: &Held) -> bool {
    block.tier == Tier::Disk
}

fn on_disks(held: &[Held]) -> Vec<Held> {
    held.iter().filter(|block| on_disk(block)).copied().collect()
}

/// How many benefactors have to be lost before a chunk is of which there are these blocks and no others.
fn steps_to_loss(held: impl Iterator<Item = Held> + Clone) -> u8 {
    let mut best = copies(held.clone());
    for (at, block) in held.clone().enumerate().filter(|(_, block)| !block.encoding.code.is_copy()) {
        let is_first = held.clone().take(at).all(|earlier| earlier.encoding != block.encoding);
        if is_first {
            best = best.max(of_fragments(held.clone(), block.encoding));
        }
    }
    best
}

/// Benefactors that have a copy.
fn copies(held: impl Iterator<Item = Held> + Clone) -> u8 {
    let copies = held.filter(|block| block.encoding.code.is_copy());
    hosts(copies)
}

/// Different benefactors, at most 255.
fn hosts(held: impl Iterator<Item = Held> + Clone) -> u8 {
    let first = |(at, block): &(usize, Held)| {
        held.clone().take(*at).all(|earlier| earlier.benefactor != block.benefactor)
    };
    let count = held.clone().enumerate().filter(first).count();
    u8::try_from(count.min(usize::from(u8::MAX))).unwrap_or_else(|_| unreachable!("bounded"))
}

/// Different blocks of an encoding, a bit for each.
fn indices(held: impl Iterator<Item = Held>, encoding: EncodingId) -> u32 {
    let own = held.filter(|block| block.encoding == encoding && block.index < encoding.code.blocks());
    own.fold(0, |bits, block| bits | 1 << block.index)
}

/// As many blocks of `encoding` as there are of which no two have the fragment or the benefactor in common. Benefactors that stand
/// first in `held` are among theirs if they can be.
fn paired(held: impl Iterator<Item = Held>, encoding: EncodingId) -> Vec<Held> {
    let is_own = |block: &Held| block.encoding == encoding && block.index < encoding.code.blocks();
    let own: Vec<Held> = held.filter(is_own).collect();
    let mut pairs: Vec<Held> = Vec::new();
    for Held { benefactor, .. } in &own {
        if pairs.iter().all(|pair| pair.benefactor != *benefactor) {
            pair(*benefactor, &own, &mut pairs, &mut 0);
        }
    }
    pairs
}

/// Finds a fragment for a benefactor, if need be by finding another one for the benefactor that has it: an augmenting path of
/// a matching. `seen` has a bit for each fragment that was looked at.
fn pair(benefactor: BenefactorId, own: &[Held], pairs: &mut Vec<Held>, seen: &mut u32) -> bool {
    for block in own.iter().filter(|block| block.benefactor == benefactor) {
        let bit = 1 << block.index;
        if *seen & bit != 0 {
            continue;
        }
        *seen |= bit;
        let other = pairs.iter().find(|pair| pair.index == block.index).map(|pair| pair.benefactor);
        if other.is_none_or(|other| pair(other, own, pairs, seen)) {
            pairs.retain(|pair| pair.benefactor != benefactor);
            pairs.push(*block);
            return true;
        }
    }
    false
}

fn of_fragments(held: impl Iterator<Item = Held> + Clone, encoding: EncodingId) -> u8 {
    let data = usize::from(encoding.code.data());
    if (indices(held.clone(), encoding).count_ones() as usize) < data {
        return 0;
    }
    let distance = (paired(held, encoding).len() + 1).saturating_sub(data).max(1);
    u8::try_from(distance).unwrap_or_else(|_| unreachable!("a code has at most 32 blocks"))
}

/// What to make anew so that the chunk gets to the distance `wanted`, if enough benefactors can take it: the way that stores the
/// fewest bytes. `readable` are the blocks that can be read now, some of those that are `counted`. `None`: nothing is wanted, or
/// nothing can be made now.
pub fn plan(readable: &[Held], counted: &[Held], wanted: u8) -> Option<Plan> {
    plan_at(readable, counted, wanted, None)
}

/// What to make anew if only `hosts`, in the order of their numbers, can take blocks: the way that leads nearest to the distance `wanted`, and among several such ways
/// the one that stores the fewest bytes. So copies stand in for fragments where there are too few hosts for these.
pub fn plan_at(
    readable: &[Held],
    counted: &[Held],
    wanted: u8,
    hosts: Option<&[BenefactorId]>,
) -> Option<Plan> {
    let lacks = usize::from(wanted.saturating_sub(distance(counted.iter().copied())));
    if lacks == 0 {
        return None;
    }
    debug_assert!(hosts.is_none_or(<[_]>::is_sorted), "hosts come in the order of their numbers");
    let mut counted = on_disks(counted);
    // Who can take nothing is paired with a fragment first, so that those who can are left over.
    let is_one = |id: &BenefactorId| hosts.is_some_and(|hosts| hosts.binary_search(id).is_ok());
    counted.sort_by_key(|block| is_one(&block.benefactor));
    let free = |plan: &Plan| match hosts {
        Some(hosts) => hosts.len() - plan.taken.iter().filter(|id| is_one(id)).collect::<HashSet<_>>().len(),
        None => usize::MAX,
    };
    // Each block that is made leads one step nearer.
    let still_lacks = |way: &Way| (way.steps - free(&way.plan).min(way.plan.make.len())).min(lacks);
    let ways = ways(readable, &counted, wanted).into_iter().filter(|way| !way.plan.make.is_empty());
    ways.min_by_key(|way| (still_lacks(way), way.plan.make.len() * way.size)).map(|way| way.plan)
}

/// A way to make blocks anew.
struct Way {
    plan: Plan,
    /// Blocks that lead to the wanted distance. The code may not have so many.
    steps: usize,
    /// Size of each, in 255ths of the encoded bytes.
    size: usize,
}

/// All ways that lead towards the distance `wanted`.
fn ways(readable: &[Held], counted: &[Held], wanted: u8) -> Vec<Way> {
    const WHOLE: usize = u8::MAX as usize;
    let copies = |from, index| {
        let make: Vec<_> = missing(counted, EncodingId::PLAIN, wanted).into_iter().map(|_| index).collect();
        let taken = taken(counted, EncodingId::PLAIN);
        Way { steps: make.len(), size: WHOLE, plan: Plan { from, make, taken } }
    };
    let mut rest = readable.to_vec();
    // Copies of a copy cost less than copies of fragments: they come first.
    rest.sort_by_key(|block| !block.encoding.code.is_copy());
    let mut ways = Vec::new();
    while let Some(Held { encoding, .. }) = rest.first().copied() {
        let (from, others): (Vec<Held>, _) =
            rest.into_iter().partition(|block| count_together(block.encoding, encoding));
        rest = others;
        let data = usize::from(encoding.code.data());
        if encoding.code.is_copy() {
            ways.push(copies(from, Some(0)));
        } else if indices(from.iter().copied(), encoding).count_ones() as usize >= data {
            let make = missing(counted, encoding, wanted).into_iter().map(Some).collect();
            let taken = taken(counted, encoding);
            let steps = (usize::from(wanted) + data).saturating_sub(1 + taken.len());
            let plan = Plan { from: from.clone(), make, taken };
            ways.push(Way { steps, size: WHOLE / data, plan });
            ways.push(copies(from, None));
        }
    }
    ways
}

/// Benefactors to which further blocks of an encoding must not go, for what they have counts together with these: those that
/// have a copy, or were paired with a fragment. Those that stand first in `held` are among them if they can be.
pub fn taken(held: &[Held], encoding: EncodingId) -> Vec<BenefactorId> {
    let held = on_disks(held);
    let counted = match encoding.code.is_copy() {
        true => held.into_iter().filter(|block| block.encoding.code.is_copy()).collect(),
        false => paired(held.into_iter(), encoding),
    };
    counted.into_iter().map(|block| block.benefactor).collect()
}

/// The blocks of an encoding to store at further benefactors so that the chunk gets to the distance `wanted`, or as far as the code
/// allows: first those that nobody has, then those that share their benefactor with another. Copies, of whatever codec,
/// are all alike.
pub fn missing(held: &[Held], encoding: EncodingId, wanted: u8) -> Vec<u8> {
    let held = on_disks(held);
    let own = held.iter().copied();
    if encoding.code.is_copy() {
        return vec![0; usize::from(wanted.saturating_sub(copies(own)))];
    }
    let (bits, pairs) = (indices(own.clone(), encoding), paired(own, encoding));
    let need = (usize::from(wanted) + usize::from(encoding.code.data())).saturating_sub(1 + pairs.len());
    let all = 0..encoding.code.blocks();
    let absent = all.clone().filter(|index| bits & 1 << index == 0);
    let is_shared = |index: &u8| bits & 1 << index != 0 && pairs.iter().all(|pair| pair.index != *index);
    absent.chain(all.filter(is_shared)).take(need).collect()
}

/// Which of the blocks that surely are there, `certain`, can go so that the others alone keep the distance `wanted`: what lies in memory
/// before all else, copies before fragments, which are smaller, and those that stand first, as far as possible. Where a single copy suffices, fragments go first: they
/// take as much space together, and each of several benefactors could lose them. Nothing goes while the others don't reach `wanted`.
pub fn surplus(certain: &[Held], wanted: u8) -> Vec<Held> {
    let mut kept: Vec<Held> = certain.to_vec();
    let mut gone = Vec::new();
    let mut first: Vec<&Held> = certain.iter().collect();
    first.sort_by_key(|block| (on_disk(block), block.encoding.code.is_copy() == (wanted == 1)));
    for block in first {
        let others = kept.iter().filter(|other| *other != block).copied();
        if wanted > 0 && distance(others.clone()) >= wanted {
            kept = others.collect();
            gone.push(*block);
        }
    }
    assert!(gone.is_empty() || distance(kept.iter().copied()) >= wanted, "what stays is enough");
    gone
}
