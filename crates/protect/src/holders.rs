//! What the holders of a chunk's blocks are worth: how far from loss it is, what is to be made anew, what is too much.
//!
//! The measure is the *distance*: how many benefactors have to be lost before the chunk is. For copies that is the number of
//! benefactors that have one. For fragments of an (m, k) encoding it is n - m + 1, where n pairs of a benefactor and a fragment were
//! found that have neither in common: each loss takes one of them at most. Where several fragments lie at one benefactor
//! that may be less than the truth, never more. Blocks of different encodings
//! don't add up, since they may lie at the same benefactors: the best encoding counts. Copies suffice alone, however
//! they were compressed, so all copies are one.

use stdchk_model::message::manager::Location;
use stdchk_model::{BenefactorId, EncodingId};

/// A block at a benefactor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// The benefactor.
    pub benefactor: BenefactorId,
    /// How the block is made.
    pub encoding: EncodingId,
    /// Which block of the encoding.
    pub index: u8,
}

impl From<&Location> for Held {
    fn from(location: &Location) -> Self {
        Self { benefactor: location.benefactor, encoding: location.encoding, index: location.index }
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
    /// Benefactors that have a block which counts together with these: others are needed.
    pub taken: Vec<BenefactorId>,
}

/// The distance of a chunk to loss whose blocks are at `locations`.
pub fn distance_at<'a>(locations: impl IntoIterator<Item = &'a Location, IntoIter: Clone>) -> u8 {
    distance(locations.into_iter().map(Held::from))
}

/// Whether blocks of these encodings count together. No two of those that do should be at one benefactor.
pub fn count_together(one: EncodingId, other: EncodingId) -> bool {
    one == other || one.code.is_copy() && other.code.is_copy()
}

/// How many benefactors have to be lost before a chunk is of which these blocks are there; 0: it is lost.
pub fn distance(held: impl Iterator<Item = Held> + Clone) -> u8 {
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

/// The fragments of an encoding that were paired with a benefactor each, a bit for each.
fn paired(held: impl Iterator<Item = Held>, encoding: EncodingId) -> u32 {
    let (mut hosts, mut bits) = (Vec::new(), 0);
    for block in held.filter(|block| block.encoding == encoding && block.index < encoding.code.blocks()) {
        let bit = 1 << block.index;
        if bits & bit == 0 && !hosts.contains(&block.benefactor) {
            hosts.push(block.benefactor);
            bits |= bit;
        }
    }
    bits
}

fn of_fragments(held: impl Iterator<Item = Held> + Clone, encoding: EncodingId) -> u8 {
    let data = u32::from(encoding.code.data());
    if indices(held.clone(), encoding).count_ones() < data {
        return 0;
    }
    let pairs = paired(held, encoding).count_ones();
    let distance = (pairs + 1).saturating_sub(data).max(1);
    u8::try_from(distance).unwrap_or_else(|_| unreachable!("a code has at most 32 blocks"))
}

/// What to make anew so that the chunk gets to the distance `wanted`: the cheapest way, by the bytes that it stores. `readable` are
/// the blocks that can be read now, some of those that are `counted`. `None`: nothing is wanted, or nothing can be made now.
pub fn plan(readable: &[Held], counted: &[Held], wanted: u8) -> Option<Plan> {
    if distance(counted.iter().copied()) >= wanted {
        return None;
    }
    let is_copy = |block: &&Held| block.encoding.code.is_copy();
    let taken = |encoding: EncodingId| {
        let together = counted.iter().filter(|block| count_together(block.encoding, encoding));
        together.map(|block| block.benefactor).collect()
    };
    let copies = || missing(counted, EncodingId::PLAIN, wanted);
    let from: Vec<Held> = readable.iter().filter(is_copy).copied().collect();
    let (whole, mut best) = (usize::from(u8::MAX), None);
    if !from.is_empty() {
        let make: Vec<Option<u8>> = copies().into_iter().map(Some).collect();
        best = Some((make.len() * whole, Plan { from, make, taken: taken(EncodingId::PLAIN) }));
    }
    for (at, block) in readable.iter().enumerate().filter(|(_, block)| !is_copy(block)) {
        if readable.iter().take(at).any(|earlier| earlier.encoding == block.encoding) {
            continue; // Its encoding was looked at.
        }
        let from: Vec<Held> =
            readable.iter().filter(|other| other.encoding == block.encoding).copied().collect();
        let (code, bits) = (block.encoding.code, indices(from.iter().copied(), block.encoding));
        if bits.count_ones() < u32::from(code.data()) {
            continue;
        }
        // What the code can't survive, copies have to.
        let (make, size, taken): (Vec<Option<u8>>, usize, _) = match code.parity() < wanted.saturating_sub(1)
        {
            true => (copies().into_iter().map(|_| None).collect(), whole, taken(EncodingId::PLAIN)),
            false => {
                let make = missing(counted, block.encoding, wanted).into_iter().map(Some).collect();
                (make, whole / usize::from(code.data()), taken(block.encoding))
            }
        };
        let cost = make.len() * size;
        if !make.is_empty() && best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, Plan { from, make, taken }));
        }
    }
    best.map(|(_, plan)| plan).filter(|plan| !plan.make.is_empty())
}

/// The blocks of an encoding to store at further benefactors so that the chunk gets to the distance `wanted`, or as far as the code
/// allows: first those that nobody has, then those that share their benefactor with another. Copies, of whatever codec,
/// are all alike.
pub fn missing(held: &[Held], encoding: EncodingId, wanted: u8) -> Vec<u8> {
    let own = held.iter().copied();
    if encoding.code.is_copy() {
        return vec![0; usize::from(wanted.saturating_sub(copies(own)))];
    }
    let (bits, pairs) = (indices(own.clone(), encoding), paired(own, encoding));
    let need = (u32::from(wanted) + u32::from(encoding.code.data())).saturating_sub(1 + pairs.count_ones());
    let all = 0..encoding.code.blocks();
    let absent = all.clone().filter(|index| bits & 1 << index == 0);
    let shared = all.filter(|index| (bits & !pairs) & 1 << index != 0);
    absent.chain(shared).take(need as usize).collect()
}

/// Which of the blocks that surely are there, `certain`, can go so that the others alone keep the distance `wanted`: those that stand
/// first, as far as possible. Nothing goes while they don't reach it.
pub fn surplus(certain: &[Held], wanted: u8) -> Vec<Held> {
    let mut kept: Vec<Held> = certain.to_vec();
    let mut gone = Vec::new();
    for block in certain {
        let others = kept.iter().filter(|other| *other != block).copied();
        if wanted > 0 && distance(others.clone()) >= wanted {
            kept = others.collect();
            gone.push(*block);
        }
    }
    assert!(gone.is_empty() || distance(kept.iter().copied()) >= wanted, "what stays is enough");
    gone
}
