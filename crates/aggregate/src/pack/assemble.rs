//! From a plan to raw blocks: members are read in order, and those that were seen before are only referred to.
//!
//! Relies on [`crate::plan`] and `blake3`. The idea: identical variables and replicated arrays are found by a few
//! words and then a hash of their bytes, across names and ranks; what remains fills blocks of one group up to their limit.

use std::collections::{HashMap, VecDeque};
use std::iter::Peekable;
use std::sync::{Arc, OnceLock};

use stdchk_formats::{DataType, Extent};
use stdchk_reduce::CutterSpec;
use stdchk_reduce::cut::pieces;

use crate::choose::{Mode, are_integers};
use crate::codec::{Shape, scratch};
use crate::container::{BlockRecord, Member, Place};
use crate::error::{AggregateError, Result};
use crate::limits::{RANGES_MAX, RANGES_PER_BLOCK};
use crate::plan::{Group, Plan, Planned, cut, part, part_of_extents};
use crate::source::Member as SetFile;
use crate::unpack::BaseSet;

use super::chains::{Chains, Chosen};
use super::{Packing, Resources, Watch};

/// Smallest member that is looked for elsewhere, in bytes: shorter ones cost more to refer to than to repeat.
const SHARED_MIN: u64 = 256;
/// Most members that are remembered: 100 MiB of their places.
const SEEN_MAX: usize = 1 << 20;
/// Bytes of a set that are coded densely at most: half a minute of a core.
const DENSE_MAX: u64 = 64 << 20;
/// Of so many bytes one must be in files that no parser understands for these to be coded densely.
const DENSE_SHARE_MIN: u64 = 8;
/// Mean length of the pieces that repeats are looked for in where no variables are known, in bytes.
const PIECE: usize = 8 << 10;
/// Ranges of a set from which on it is not cut into more such pieces: the others are for variables, and no set is too large
/// to be packed as long as it has few of these.
const PIECES_MAX: usize = RANGES_MAX / 4;
/// Words of a member that are looked at to find out whether it may have been seen.
const SIGNS: usize = 32;

/// A block before it is coded.
pub(super) struct RawBlock {
    pub(super) record: BlockRecord,
    pub(super) raw: Vec<u8>,
    /// The same bytes in the base set; empty unless every member has them.
    pub(super) base: Vec<u8>,
    pub(super) data_type: Option<DataType>,
    /// Bytes of files that no parser understands.
    pub(super) opaque: bool,
    /// As much may be spent on it as a dense compressor takes.
    pub(super) dense: bool,
    /// What repeats may lie in another block.
    in_pieces: bool,
    /// What its group knows of chains.
    pub(super) part: GroupPart,
    /// Ranges of files in its record.
    ranges: usize,
}

/// What blocks of a group share: the first one chooses a chain, and the others wait for it, so that the choice is the
/// same whichever thread is faster.
pub(super) enum GroupPart {
    /// With what coded the group in an earlier set.
    First(Lead, Option<Chosen>),
    Later(Arc<OnceLock<Chosen>>),
}

/// The first block's duty to choose; without it, whatever the reason, the others choose for themselves.
pub(super) struct Lead(Arc<OnceLock<Chosen>>);

impl Lead {
    pub(super) fn decide(&self, chosen: Chosen) {
        let _ = self.0.set(chosen);
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.decide(Chosen { steps: Vec::new(), ratio: f64::INFINITY });
    }
}

/// A member that was seen and may be met again.
struct Seen {
    at: (u64, u32),
    file: u32,
    place: Place,
}

type Pieces = Box<dyn Iterator<Item = Planned> + Send>;

/// The group that is being read.
struct Current {
    key: String,
    data_type: Option<DataType>,
    opaque: bool,
    /// What is left of it, each no longer than a block.
    members: Peekable<Pieces>,
    /// Whether the last block is coded densely; none: there is none yet.
    dense: Option<bool>,
    /// The chain of the blocks that are coded as the last one is.
    chosen: Arc<OnceLock<Chosen>>,
    /// Bytes of all of it.
    bytes: u64,
}

impl Current {
    /// The part of the next block. What is coded densely says nothing of what is not: a dense chain takes too long for that.
    fn part(&mut self, dense: bool, chains: Option<&Chains>) -> GroupPart {
        if self.dense == Some(dense) {
            return GroupPart::Later(Arc::clone(&self.chosen));
        }
        (self.dense, self.chosen) = (Some(dense), Arc::default());
        let before = chains.and_then(|chains| chains.get(&self.key)).cloned();
        GroupPart::First(Lead(Arc::clone(&self.chosen)), before)
    }
}

/// Reads a plan block by block.
pub(super) struct Assembler<'a> {
    files: &'a [SetFile],
    groups: VecDeque<Group>,
    rests: Vec<Vec<Extent>>,
    current: Option<Current>,
    block_bytes: u64,
    /// The longest block of what no parser understands, where repeats are sought that lie far apart.
    opaque_bytes: u64,
    /// Bytes that may yet be coded densely.
    dense_bytes: u64,
    /// The paper's modes take a file that no parser understands as a whole.
    as_published: bool,
    base: Option<&'a BaseSet>,
    chains: Option<&'a Chains>,
    /// By signs: the one member that has them, or none once members with these signs are told apart by hashes.
    signs: HashMap<u64, Option<Seen>>,
    /// By hash, those of which several have the same signs.
    hashes: HashMap<[u8; 32], (u64, u32)>,
    next_number: u64,
    /// Ranges of files in all blocks so far.
    ranges: usize,
    /// Bytes of members that were only referred to.
    pub(super) repeated_bytes: u64,
}

impl<'a> Assembler<'a> {
    pub(super) fn new(
        files: &'a [SetFile],
        plan: Plan,
        resources: &Resources,
        options: &Packing<'a>,
    ) -> Self {
        let mode = &options.mode;
        let affordable = *mode == Mode::Default && resources.affords_dense();
        let dense_bytes = if affordable { dense_bytes(&plan) } else { 0 };
        let limit = |likes| resources.block_bytes(likes, dense_bytes > 0, options);
        Self {
            files,
            dense_bytes,
            as_published: mode.is_published(),
            groups: plan.groups.into(),
            rests: plan.rests,
            current: None,
            block_bytes: limit(mode.block_bytes()),
            opaque_bytes: limit(mode.opaque_block_bytes()),
            base: options.base,
            chains: options.chains,
            signs: HashMap::new(),
            hashes: HashMap::new(),
            next_number: 0,
            ranges: 0,
            repeated_bytes: 0,
        }
    }

    /// The next block; none when all were read.
    pub(super) fn next(&mut self, watch: Watch<'_>) -> Result<Option<RawBlock>> {
        let Some(mut group) = self.current.take().or_else(|| self.next_group()) else { return Ok(None) };
        let mut block = self.start(&group);
        while let Some(member) = group.members.next_if(|member| self.has_room(&block, member)) {
            let length = member.member.place.length();
            self.add(&mut block, member)?;
            if !watch(length) {
                return Err(AggregateError::Stopped);
            }
        }
        block.dense = gains(block.opaque, block.data_type) && self.dense_bytes >= block.record.raw_length;
        self.dense_bytes -= if block.dense { block.record.raw_length } else { 0 };
        block.part = group.part(block.dense, self.chains);
        if group.members.peek().is_some() {
            self.current = Some(group);
        }
        Ok(Some(block))
    }

    /// Longest block, in bytes.
    fn limit(&self, opaque: bool) -> u64 {
        if opaque { self.opaque_bytes } else { self.block_bytes }
    }

    fn has_room(&self, block: &RawBlock, member: &Planned) -> bool {
        let fits = block.raw.len() as u64 + member.member.place.length() <= self.limit(block.opaque);
        (fits || block.raw.is_empty()) && block.ranges <= RANGES_PER_BLOCK
    }

    fn next_group(&mut self) -> Option<Current> {
        let group = self.groups.pop_front()?;
        let (unit, limit) = (row_bytes(&group), self.limit(group.opaque));
        let bytes = group.bytes();
        let Group { key, data_type, opaque, members } = group;
        let pieces: Pieces = Box::new(members.into_iter().flat_map(move |member| cut(member, limit, unit)));
        let (members, chosen) = (pieces.peekable(), Arc::default());
        let opaque = opaque && !self.as_published;
        Some(Current { key, data_type, opaque, members, dense: None, chosen, bytes })
    }

    fn start(&mut self, group: &Current) -> RawBlock {
        let record = BlockRecord {
            number: self.next_number,
            key: group.key.clone(),
            steps: Vec::new(),
            raw_length: 0,
            raw_hash: [0; 16],
            members: Vec::new(),
            shapes: Vec::new(),
        };
        self.next_number += 1;
        let raw = scratch::empty(usize::try_from(group.bytes.min(self.limit(group.opaque))).unwrap_or(0));
        let (data_type, opaque) = (group.data_type, group.opaque);
        let in_pieces = opaque && data_type.is_none() && group.bytes > self.limit(opaque);
        RawBlock {
            record,
            raw,
            base: Vec::new(),
            data_type,
            opaque,
            dense: false,
            in_pieces,
            part: GroupPart::Later(Arc::clone(&group.chosen)),
            ranges: 0,
        }
    }

    fn add(&mut self, block: &mut RawBlock, planned: Planned) -> Result<()> {
        let few = self.ranges < PIECES_MAX;
        if block.in_pieces && few && planned.member.place.length() > 4 * PIECE as u64 {
            return self.add_in_pieces(block, &planned.member);
        }
        let start = block.raw.len();
        self.read(planned.member.file, &planned.member.place, &mut block.raw)?;
        self.add_read(block, planned, start)
    }

    /// Adds a range in pieces that its bytes determine, so that what repeats is found wherever it lies.
    fn add_in_pieces(&mut self, block: &mut RawBlock, whole: &Member) -> Result<()> {
        let mut bytes = scratch::empty(usize::try_from(whole.place.length()).unwrap_or(0));
        self.read(whole.file, &whole.place, &mut bytes)?;
        let spec = CutterSpec::cdc(PIECE).map_err(|error| AggregateError::Invalid(error.to_string()))?;
        let mut offset = 0;
        for piece in pieces(spec.cutter().as_mut(), &bytes) {
            let length = piece.len() as u64;
            let member = Member { place: part(&whole.place, Extent { offset, length }), ..whole.clone() };
            let start = block.raw.len();
            block.raw.extend_from_slice(piece);
            self.add_read(block, Planned { member, shape: Shape(vec![length]) }, start)?;
            offset += length;
        }
        scratch::give_back(bytes);
        Ok(())
    }

    /// Adds a member whose bytes stand in the block from `start` on.
    fn add_read(&mut self, block: &mut RawBlock, planned: Planned, start: usize) -> Result<()> {
        let Planned { mut member, shape } = planned;
        let bytes = block.raw.get(start..).unwrap_or_default();
        let position = u32::try_from(block.record.members.len()).unwrap_or(u32::MAX);
        member.same_as = self.seen_before(bytes, (block.record.number, position), &member)?;
        if member.same_as.is_some() {
            self.repeated_bytes += bytes.len() as u64;
            block.raw.truncate(start);
        } else {
            member.base_file = self.append_base(member.file, &member.place, start, &mut block.base)?;
            block.record.shapes.push(shape);
        }
        let ranges = match &member.place {
            Place::Extents(extents) => extents.len(),
            Place::Rest(_) => 1,
        };
        (block.ranges, self.ranges) = (block.ranges + ranges, self.ranges + ranges);
        if self.ranges > RANGES_MAX {
            let detail = "the set has more variables and chunks than one container holds: pack it in parts";
            return Err(AggregateError::Invalid(detail.to_owned()));
        }
        block.record.raw_length = block.raw.len() as u64;
        block.record.members.push(member);
        Ok(())
    }

    /// Where the same bytes stand already; remembers them otherwise. Most members differ in a few words that are looked
    /// at, so that only those which don't are hashed.
    fn seen_before(&mut self, bytes: &[u8], at: (u64, u32), member: &Member) -> Result<Option<(u64, u32)>> {
        if (bytes.len() as u64) < SHARED_MIN {
            return Ok(None);
        }
        let signs = signs_of(bytes);
        let full = self.signs.len() + self.hashes.len() >= SEEN_MAX;
        let Some(entry) = self.signs.get_mut(&signs) else {
            if !full {
                let (file, place) = (member.file, member.place.clone());
                self.signs.insert(signs, Some(Seen { at, file, place }));
            }
            return Ok(None);
        };
        if let Some(first) = entry.take() {
            let mut bytes = Vec::new();
            self.read(first.file, &first.place, &mut bytes)?;
            self.hashes.insert(*blake3::hash(&bytes).as_bytes(), first.at);
        }
        let name = *blake3::hash(bytes).as_bytes();
        let found = self.hashes.get(&name).copied();
        if found.is_none() && !full {
            self.hashes.insert(name, at);
        }
        Ok(found)
    }

    fn read(&self, file: u32, place: &Place, buffer: &mut Vec<u8>) -> Result<()> {
        let missing = || AggregateError::Invalid("a plan refers to no file".to_owned());
        let index = usize::try_from(file).unwrap_or(usize::MAX);
        let opened = self.files.get(index).ok_or_else(missing)?;
        opened.append(&self.extents(index, place), buffer)
    }

    fn extents(&self, file: usize, place: &Place) -> Vec<Extent> {
        match place {
            Place::Extents(extents) => extents.clone(),
            Place::Rest(range) => {
                part_of_extents(self.rests.get(file).map(Vec::as_slice).unwrap_or_default(), *range)
            }
        }
    }

    /// Appends the member's bytes in the base set, if it has a file of the same name pattern that holds the ranges.
    fn append_base(
        &self,
        file: u32,
        place: &Place,
        start: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<u32>> {
        let Some(base) = self.base.filter(|_| buffer.len() == start) else { return Ok(None) };
        let Place::Extents(extents) = place else { return Ok(None) };
        let index = usize::try_from(file).unwrap_or(usize::MAX);
        let Some(opened) = self.files.get(index) else { return Ok(None) };
        let Some(base_file) = base.counterpart(index, &opened.entry.name, opened.entry.size) else {
            return Ok(None);
        };
        base.append(base_file, extents, buffer)?;
        Ok(Some(base_file))
    }
}

/// A dense compressor may find what is quickly tried misses.
fn gains(opaque: bool, data_type: Option<DataType>) -> bool {
    opaque || data_type.is_some_and(are_integers)
}

/// Bytes that may be coded densely. Where others are most of the set, what those win is enough.
fn dense_bytes(plan: &Plan) -> u64 {
    let gaining = plan.groups.iter().filter(|group| gains(group.opaque, group.data_type));
    let (gaining, all) =
        (gaining.map(Group::bytes).sum::<u64>(), plan.groups.iter().map(Group::bytes).sum::<u64>());
    if gaining.saturating_mul(DENSE_SHARE_MIN) >= all { DENSE_MAX } else { 0 }
}

/// The length and some words of a member, mixed.
fn signs_of(bytes: &[u8]) -> u64 {
    let mix = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let (words, last) = (bytes.as_chunks::<8>().0, bytes.last_chunk::<8>());
    let step = words.len().div_ceil(SIGNS).max(1);
    let looked_at = words.iter().step_by(step).chain(last);
    looked_at.fold(bytes.len() as u64, |sum, word| mix(sum, u64::from_le_bytes(*word)))
}

/// Bytes of one step along the slowest dimension of the group's first member, where that is the same for all.
fn row_bytes(group: &Group) -> u64 {
    let row = |planned: &Planned| {
        let slowest = planned.shape.0.first().copied().unwrap_or(1).max(1);
        planned.member.place.length() / slowest
    };
    group.members.first().map_or(1, row).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PlannedFile, plan};
    use crate::source::Input;

    /// Blocks of a file of an unknown format that doesn't repeat itself: bytes, whether they are coded densely, whether they
    /// choose a chain, and members.
    fn blocks(
        bytes: usize,
        change: impl FnOnce(&mut Assembler<'_>),
    ) -> Result<Vec<(u64, bool, bool, usize)>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let content: Vec<u8> =
            (0..bytes as u64 / 8).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
        std::fs::write(&path, content).unwrap();
        let files = [SetFile::look_at(&Input { name: "state".to_owned(), path }).unwrap()];
        let (parsed, options) = (stdchk_formats::parse(&files[0]), Packing::default());
        let plan = plan(&[PlannedFile { name: "state", parsed: &parsed, numbers: &[] }], &options.plan);
        let resources = Resources { threads: 1, for_blocks: 1 << 30, load: false };
        let mut assembler = Assembler::new(&files, plan, &resources, &options);
        change(&mut assembler);
        let next = || assembler.next(&|_| true).transpose();
        let told = |block: RawBlock| {
            let chooses = matches!(block.part, GroupPart::First(..));
            (block.record.raw_length, block.dense, chooses, block.record.members.len())
        };
        std::iter::from_fn(next).map(|block| block.map(told)).collect()
    }

    #[test]
    fn blocks_that_are_not_coded_densely_have_a_chain_of_their_own() {
        let blocks = blocks(40 << 20, |assembler| assembler.dense_bytes = 17 << 20).unwrap();
        let parts: Vec<_> = blocks.iter().map(|(_, dense, chooses, _)| (*dense, *chooses)).collect();
        let expected = [(true, true), (true, false), (false, true), (false, false), (false, false)];
        assert_eq!(parts, expected);
    }

    #[test]
    fn a_set_of_many_ranges_is_packed_although_it_can_not_be_cut_into_more() {
        let cut = blocks(20 << 20, |_| ()).unwrap();
        assert!(cut.iter().all(|(.., members)| *members > 100), "{cut:?}");
        let blocks = blocks(20 << 20, |assembler| assembler.ranges = RANGES_MAX - 10).unwrap();
        assert!(blocks.iter().all(|(.., members)| *members == 1), "{blocks:?}");
    }
}
