//! What the holders of a chunk's blocks are worth: how far from loss it is, what is to be made anew, what is too much.
//!
//! The measure is the *distance*: how many benefactors have to be lost before the chunk is. For copies that is the number of
//! benefactors that have one. For fragments of an (m, k) encoding it is n - m + 1, where n pairs of a benefactor and a fragment were
//! found that have neither in common: each loss takes one of them at most. Where several fragments lie at one benefactor
//! that may be less than the truth, never more. Blocks of different encodings
//! don't add up, since they may lie at the same benefactors: the best encoding counts. Copies suffice alone, however
//! they were compressed, so all copies are one.
//!
//! Not every encoding makes its chunk: somebody may have made it up ([`Trust`]). Copies and trusted encodings count as they are. Only where
//! all of these together can't make the chunk, claimed encodings count, and of those that can be read the *least* does: as long as one of them is
//! right, the truth is no smaller. A broken encoding counts for nothing. So a made-up encoding never makes a chunk look safer than its genuine blocks make
//! it. What a commit rests on ([`suffices`]) is never claimed.
//!
//! Where only some of the blocks count, as without those that are to go, what is asked is what these are worth among all that there are
//! ([`distance_among`]): a made-up encoding that stays is no reason to let a genuine one go.
//!
//! What lies in memory counts for nothing in any of this: not for the distance, nor for what is missing, nor for what else is too much. It
//! is asked for by name, where it matters: whether a chunk can be read ([`is_readable`]), whether it is enough for a commit ([`suffices`]), and
//! as what blocks are made from ([`plan`]). So nobody can take memory for a disk by leaving something out.

use std::collections::HashSet;

use stdchk_model::message::manager::Location;
use stdchk_model::{BenefactorId, Durability, EncodingId, Tier, Trust};

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
    /// Whether it counts.
    pub trust: Trust,
}

impl From<&Location> for Held {
    fn from(location: &Location) -> Self {
        let Location { benefactor, encoding, index, tier, trust } = *location;
        Self { benefactor, encoding, index, tier, trust }
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
    distance_among(held.clone(), held)
}

/// How many benefactors have to be lost before a chunk is of which only the blocks in `part` of `all` that there are count.
pub fn distance_among(
    part: impl Iterator<Item = Held> + Clone,
    all: impl Iterator<Item = Held> + Clone,
) -> u8 {
    let part = part.filter(on_disk);
    match trusted_steps(all.clone()) {
        // None of the claimed encodings that can be read may be the one that is right.
        0 => claimed(all).map(|encoding| of_fragments(part.clone(), encoding)).min().unwrap_or(0),
        _ => trusted_steps(part),
    }
}

/// How many benefactors have to be lost before nothing is left of the chunk on disks that can be trusted to make it.
pub fn distance_trusted(held: impl Iterator<Item = Held> + Clone) -> u8 {
    trusted_steps(held.filter(on_disk))
}

/// How many benefactors have to be lost before no encoding is left that isn't known to be broken: if any of them is right, the best may be.
pub fn distance_at_best(held: impl Iterator<Item = Held> + Clone) -> u8 {
    let disks = held.filter(on_disk);
    let claimed = claimed(disks.clone()).map(|encoding| of_fragments(disks.clone(), encoding));
    claimed.max().unwrap_or(0).max(trusted_steps(disks))
}

/// Whether a chunk can be read of which these blocks are there, wherever they lie, as far as anybody knows.
pub fn is_readable(held: impl Iterator<Item = Held> + Clone) -> bool {
    trusted_steps(held.clone()) > 0 || claimed(held).next().is_some()
}

/// Different benefactors that have a copy of a chunk in memory.
pub fn copies_in_memory(held: impl Iterator<Item = Held> + Clone) -> u8 {
    copies(held.filter(|block| !on_disk(block)))
}

/// Whether a chunk of which these blocks are there is as safe as a commit needs it, by those that can be trusted.
pub fn suffices(held: impl Iterator<Item = Held> + Clone, needed: Durability) -> bool {
    distance_trusted(held.clone()) >= needed.distance
        || needed.in_memory.is_some_and(|hosts| copies_in_memory(held) >= hosts.max(1))
}

fn on_disk(block: &Held) -> bool {
    block.tier == Tier::Disk
}

pub(crate) fn on_disks(held: &[Held]) -> Vec<Held> {
    held.iter().filter(|block| on_disk(block)).copied().collect()
}

/// How many benefactors have to be lost before a chunk is of which there are these blocks, by copies and trusted encodings.
fn trusted_steps(held: impl Iterator<Item = Held> + Clone) -> u8 {
    let fragments =
        encodings(held.clone(), Trust::Trusted).map(|encoding| of_fragments(held.clone(), encoding));
    fragments.max().unwrap_or(0).max(copies(held.clone()))
}

/// The claimed encodings of which there are enough blocks, wherever they lie.
fn claimed(held: impl Iterator<Item = Held> + Clone) -> impl Iterator<Item = EncodingId> + Clone {
    encodings(held.clone(), Trust::Claimed).filter(move |encoding| of_fragments(held.clone(), *encoding) > 0)
}

/// Encodings in fragments that are so far trusted, each once.
fn encodings(
    held: impl Iterator<Item = Held> + Clone,
    trust: Trust,
) -> impl Iterator<Item = EncodingId> + Clone {
    let is_first = move |(at, block): &(usize, Held), held: &mut dyn Iterator<Item = Held>| {
        held.take(*at).all(|earlier| earlier.encoding != block.encoding)
    };
    let is_one = move |block: &Held| !block.encoding.code.is_copy() && block.trust == trust;
    held.clone()
        .enumerate()
        .filter(move |(at, block)| is_one(block) && is_first(&(*at, *block), &mut held.clone()))
        .map(|(_, block)| block.encoding)
}

/// Benefactors that have a copy.
pub(crate) fn copies(held: impl Iterator<Item = Held> + Clone) -> u8 {
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
    let all = counted.iter().chain(readable).copied();
    let lacks = usize::from(wanted.saturating_sub(distance_among(counted.iter().copied(), all)));
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
    // What is made of a claimed encoding can be trusted, and it may turn out that nothing can be made of it.
    let is_claimed = |way: &Way| way.plan.from.first().is_some_and(|block| block.trust != Trust::Trusted);
    ways.min_by_key(|way| (still_lacks(way), is_claimed(way), way.plan.make.len() * way.size))
        .map(|way| way.plan)
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
    let mut rest: Vec<Held> = readable.iter().filter(|block| block.trust != Trust::Broken).copied().collect();
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

/// Which of the blocks that surely are there, `certain`, can go so that the others alone keep the distance `wanted`, and those that stand first
/// as far as possible. Nothing goes in favour of what may not make the chunk: a copy goes in favour of copies, a fragment in favour of copies
/// or of its own encoding. Fragments go in favour of copies only if they don't reach `wanted` themselves, since they take less space; or where a single
/// copy suffices: they take as much space together, and each of several benefactors could lose them. What lies in memory goes once disks have what is wanted,
/// and what is broken once anything has.
///
/// Where several encodings reach `wanted`, or an encoding and copies, all stay until the holders of the one that is to go have decoded the other.
pub fn surplus(certain: &[Held], wanted: u8) -> Vec<Held> {
    let disks = on_disks(certain);
    if wanted == 0 {
        return Vec::new();
    }
    let mut gone: Vec<Held> = Vec::new();
    if distance_trusted(disks.iter().copied()) >= wanted {
        gone.extend(certain.iter().filter(|block| !on_disk(block) || block.trust == Trust::Broken));
    }
    let mut kept: Vec<Held> = disks.iter().filter(|block| block.trust != Trust::Broken).copied().collect();
    let copies_suffice = copies(kept.iter().copied()) >= wanted;
    for block in disks.iter().filter(|block| block.trust != Trust::Broken) {
        let group = |kept: &[Held]| group_distance(kept.iter().copied(), block.encoding);
        let is_worse = wanted == 1 || group(&disks) < wanted;
        let others: Vec<Held> = kept.iter().filter(|other| *other != block).copied().collect();
        if group(&others) >= wanted || copies_suffice && !block.encoding.code.is_copy() && is_worse {
            kept = others;
            gone.push(*block);
        }
    }
    assert!(gone.is_empty() || distance_at_best(kept.iter().copied()) >= wanted, "what stays is enough");
    gone
}

/// The distance by the blocks alone that count together with those of an encoding.
pub(crate) fn group_distance(held: impl Iterator<Item = Held> + Clone, encoding: EncodingId) -> u8 {
    if encoding.code.is_copy() { copies(held) } else { of_fragments(held, encoding) }
}
