//! From a plan to raw blocks: members are read in order, and those that were seen before are only referred to.
//!
//! Relies on [`crate::plan`] and `blake3`. The idea: identical variables and replicated arrays are found by a few
//! words and then a hash of their bytes, across names and ranks; what remains fills blocks of one group up to their limit.

use std::collections::{HashMap, VecDeque};
use std::iter::Peekable;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use stdchk_formats::{ByteOrder, DataType, Extent};
use stdchk_model::exact::{self, narrow, to_usize};

use crate::codec::{Lane, Shape, Side, Step, encode, scratch, with_zstd};
use crate::container::{BlockRecord, Member, MemberRanges};
use crate::error::{AggregateError, Result};
use crate::limits::{RANGES_MAX, RANGES_PER_BLOCK};
use crate::plan::{Group, Plan, Planned, cut, part, part_of_extents, slab};
use crate::source::Member as SetFile;
use crate::unpack::BaseSet;

use super::chains::{Chains, Chosen};
use super::runs::{Look, Run, Runs};
use super::{Packing, Resources, Watch};

/// Smallest member that is looked for elsewhere, in bytes: shorter ones cost more to refer to than to repeat.
const SHARED_MIN: u64 = 256;
/// Most members that are remembered: 100 MiB of their places.
const SEEN_MAX: usize = 1 << 20;
/// Shortest range in which runs that stood elsewhere are looked for, in bytes: those of shorter ones the search in their block finds.
const SEARCHED_MIN: u64 = 32 << 10;
/// Of the memory the table of runs takes one in so many bytes.
const RUNS_SHARE: u64 = 16;
/// Ranges of a set from which on no more runs are looked for: the others are for variables, and no set is too large
/// to be packed as long as it has few of these.
const PIECES_MAX: usize = RANGES_MAX / 4;
/// Words of a member that are looked at to find out whether it may have been seen.
const SIGNS: usize = 32;

/// A block before it is coded.
pub(super) struct RawBlock {
    pub(super) record: BlockRecord,
    pub(super) raw: Vec<u8>,
    /// The bytes in the base set that the block is coded against; empty unless the base has them for every member.
    pub(super) base: Vec<u8>,
    pub(super) data_type: Option<DataType>,
    /// Bytes of files that no parser understands.
    pub(super) opaque: bool,
    /// Runs of it may stand elsewhere.
    searched: bool,
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

/// Held by the first block of a group, which decides the chain for all. Dropped without a decision, as after an error, it lets
/// each of the others choose for itself.
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
    at: (u64, u64),
    file: u32,
    place: MemberRanges,
}

/// A range that is added piece by piece.
struct Piece<'a> {
    planned: &'a Planned,
    /// Where it lies in its file.
    extents: &'a [Extent],
    bytes: &'a [u8],
    /// Bytes of an element.
    unit: usize,
}

impl Piece<'_> {
    /// Bytes of one step along the slowest dimension.
    fn row_bytes(&self) -> usize {
        let steps = self.planned.shape.0.first().map_or(1, |slowest| to_usize(*slowest));
        (self.bytes.len() / steps.max(1)).max(1)
    }

    /// The shape of a part of it: whole rows, if it begins and ends with these.
    fn shape_of(&self, covered: Extent) -> Shape {
        if covered.offset.is_multiple_of(self.row_bytes() as u64) {
            return slab(&self.planned.shape, self.bytes.len() as u64, covered.length);
        }
        Shape(vec![covered.length / self.unit as u64])
    }
}

/// Bytes of a run that are compressed to see whether it is shorter to tell where it stands.
const WORTH_SAMPLE: usize = 4 << 10;
/// Bytes that a run must be expected to take: to tell where it stands takes some sixteen, and those around it, which it cuts apart, are
/// predicted less well.
const WORTH_MIN: usize = 256;

/// Rows along the slowest dimension that a run of a smooth field must have: behind it the prediction begins anew.
const SMOOTH_ROWS_MIN: usize = 8;

/// The part of a run of elements that is shorter to refer to than to code, if there is one: whole rows of smooth fields, and any
/// elements of others.
fn worth_its_place(run: &Run, piece: &Piece<'_>, data_type: Option<DataType>) -> Option<Run> {
    let bytes = exact::part(piece.bytes, run.range.clone());
    let sample = exact::part(bytes, ..bytes.len().min(WORTH_SAMPLE));
    let searched = with_zstd(sample, 1, <[u8]>::len).unwrap_or(sample.len());
    let (as_planes, as_differences) = match data_type.and_then(|known| Some((known, Lane::of(known)?))) {
        Some((data_type, lane)) => {
            let size = narrow(lane.size());
            let swapped = if data_type.order == ByteOrder::Big { vec![Step::Swap(size)] } else { Vec::new() };
            let coded = |steps: &[Step]| {
                let chain = [swapped.as_slice(), steps].concat();
                encode(&chain, sample, Side::default()).map_or(sample.len(), |coded| coded.len())
            };
            let planes = Step::Planes(size, 1);
            (coded(std::slice::from_ref(&planes)), coded(&[Step::Difference(lane), planes]))
        }
        None => (sample.len(), sample.len()),
    };
    let least = searched.min(as_planes).min(as_differences);
    if least.saturating_mul(bytes.len()) / sample.len().max(1) < WORTH_MIN {
        return None;
    }
    let is_smooth = as_differences * 10 < searched.min(as_planes) * 9;
    let unit = if is_smooth { piece.row_bytes() } else { 1 };
    let (first, end) = (run.range.start.next_multiple_of(unit), run.range.end / unit * unit);
    let skipped = (first - run.range.start) as u64;
    let long_enough = !is_smooth || end >= first.saturating_add(SMOOTH_ROWS_MIN.saturating_mul(unit));
    long_enough.then(|| Run { range: first..end, block: run.block, start: run.start + skipped })
}

type Pieces = Box<dyn Iterator<Item = Planned> + Send>;

/// The group that is being read.
struct Current {
    key: String,
    data_type: Option<DataType>,
    opaque: bool,
    /// What is left of it, each no longer than a block.
    members: Peekable<Pieces>,
    /// The chain of its blocks, once there is one.
    chosen: Option<Arc<OnceLock<Chosen>>>,
    /// Bytes of all of it.
    bytes: u64,
}

impl Current {
    /// The part of the next block.
    fn part(&mut self, chains: Option<&Chains>) -> GroupPart {
        if let Some(chosen) = &self.chosen {
            return GroupPart::Later(Arc::clone(chosen));
        }
        let chosen = self.chosen.insert(Arc::default());
        let before = chains.and_then(|chains| chains.get(&self.key)).cloned();
        GroupPart::First(Lead(Arc::clone(chosen)), before)
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
    /// Whether runs are looked for in variables, too.
    searches_typed: bool,
    runs: Runs,
    /// The paper's modes take a file that no parser understands as a whole.
    as_published: bool,
    base: Option<&'a BaseSet>,
    chains: Option<&'a Chains>,
    /// By signs: the one member that has them, or none once members with these signs are told apart by hashes.
    signs: HashMap<u64, Option<Seen>>,
    /// By hash, those of which several have the same signs.
    hashes: HashMap<[u8; 32], (u64, u64)>,
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
        let limit = |likes| resources.block_bytes(likes, options);
        let is_searched = |group: &&Group| group.opaque || mode.searches_variables();
        let searched = plan.groups.iter().filter(is_searched).map(Group::bytes).sum();
        Self {
            files,
            searches_typed: mode.searches_variables(),
            runs: Runs::new(searched, options.settled_budget() / RUNS_SHARE),
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

    /// Bytes that the next block may have at most; none when all were read.
    pub(super) fn next_bytes(&self) -> Option<u64> {
        let next = self.current.as_ref().map(|current| (current.bytes, current.opaque));
        let (bytes, opaque) =
            next.or_else(|| self.groups.front().map(|group| (group.bytes(), group.opaque)))?;
        Some(bytes.min(self.limit(opaque)))
    }

    /// The next block; none when all were read.
    pub(super) fn next(&mut self, watch: Watch<'_>) -> Result<Option<RawBlock>> {
        let Some(mut group) = self.current.take().or_else(|| self.next_group()) else { return Ok(None) };
        let mut block = self.start(&group);
        while let Some(member) = group.members.next_if(|member| self.has_room(&block, member)) {
            let file = exact::part(self.files, member.member.file as usize);
            let length = file.bytes_behind(member.member.place.length());
            self.add(&mut block, member)?;
            if !watch(length) {
                return Err(AggregateError::Stopped);
            }
        }
        block.part = group.part(self.chains);
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
        let Group { key, data_type, opaque, members, .. } = group;
        let pieces: Pieces = Box::new(members.into_iter().flat_map(move |member| cut(member, limit, unit)));
        let members = pieces.peekable();
        let opaque = opaque && !self.as_published;
        Some(Current { key, data_type, opaque, members, chosen: None, bytes })
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
        let raw = scratch::empty(to_usize(group.bytes.min(self.limit(group.opaque))));
        let (data_type, opaque) = (group.data_type, group.opaque);
        let searched = opaque;
        RawBlock {
            record,
            raw,
            base: Vec::new(),
            data_type,
            opaque,
            searched,
            part: GroupPart::Later(Arc::default()),
            ranges: 0,
        }
    }

    fn add(&mut self, block: &mut RawBlock, planned: Planned) -> Result<()> {
        let searched = self.ranges < PIECES_MAX && planned.member.place.length() >= SEARCHED_MIN;
        if block.searched && searched {
            let mut bytes = scratch::empty(to_usize(planned.member.place.length()));
            self.read(planned.member.file, &planned.member.place, &mut bytes)?;
            return self.add_without_runs(block, &planned, bytes);
        }
        let start = block.raw.len();
        self.read(planned.member.file, &planned.member.place, &mut block.raw)?;
        if !(self.searches_typed && searched && block.data_type.is_some()) {
            return self.add_read(block, planned, start);
        }
        let at = (block.record.number, start as u64);
        let seen = self.seen_before(exact::part(&block.raw, start..), at, &planned.member)?;
        if seen.is_some() {
            return self.add_seen(block, planned, start, seen);
        }
        let bytes = block.raw.split_off(start);
        self.add_without_runs(block, &planned, bytes)
    }

    /// Adds a range, whose bytes these are; of runs that stand in some block it tells only where that is.
    fn add_without_runs(&mut self, block: &mut RawBlock, planned: &Planned, bytes: Vec<u8>) -> Result<()> {
        let whole = &planned.member;
        let unit = block.data_type.map_or(1, |data_type| data_type.size.max(1) as usize);
        let extents = self.extents(whole.file, &whole.place);
        let piece = Piece { planned, extents: &extents, bytes: &bytes, unit };
        let files = self.files;
        let mut read = |file: u32, extent: Extent, buffer: &mut Vec<u8>| read(files, file, &[extent], buffer);
        // Bytes up to here were added; those up to the end of the last extent were looked at.
        let (mut added, mut looked_at) = (0, 0);
        for extent in &extents {
            let within = looked_at..looked_at + to_usize(extent.length);
            let mut from = within.start;
            loop {
                let (number, start) = (block.record.number, block.raw.len() as u64);
                let within = within.clone();
                let look = Look { bytes: &bytes, within, pending: added, block: number, start, unit };
                let run = match block.opaque {
                    true => self.runs.next(&look, from, &mut read)?,
                    false => self.runs.next_of_elements(&look, from, &mut read)?,
                };
                let Some(mut run) = run else { break };
                from = run.range.end;
                // The search in its block finds it, and tells it in fewer bytes.
                if block.data_type.is_none() && run.block == block.record.number {
                    continue;
                }
                if !block.opaque {
                    let Some(worth) = worth_its_place(&run, &piece, block.data_type) else {
                        self.runs.in_vain();
                        continue;
                    };
                    run = worth;
                }
                self.runs.found();
                self.add_new(block, &piece, added..run.range.start)?;
                let member = Member { place: part(&whole.place, extent_of(&run.range)), ..whole.clone() };
                self.repeated_bytes += run.range.len() as u64;
                self.add_member(block, Member { same_as: Some((run.block, run.start)), ..member })?;
                added = run.range.end;
            }
            looked_at = within.end;
        }
        self.add_new(block, &piece, added..bytes.len())?;
        scratch::give_back(bytes);
        Ok(())
    }

    /// Adds a part of a range that is nowhere else, and remembers where in its file that lies.
    fn add_new(&mut self, block: &mut RawBlock, piece: &Piece<'_>, range: Range<usize>) -> Result<()> {
        let (start, covered) = (block.raw.len(), extent_of(&range));
        if range.is_empty() {
            return Ok(());
        }
        let whole = &piece.planned.member;
        block.raw.extend_from_slice(exact::part(piece.bytes, range));
        let mut held = start as u64;
        for extent in part_of_extents(piece.extents, covered) {
            self.runs.hold(block.record.number, held, whole.file, extent);
            held += extent.length;
        }
        let mut member = Member { place: part(&whole.place, covered), ..whole.clone() };
        member.base_file = self.append_base(member.file, &member.place, start, &mut block.base)?;
        block.record.shapes.push(piece.shape_of(covered));
        self.add_member(block, member)
    }

    /// Adds a member whose bytes stand in the block from `start` on.
    fn add_read(&mut self, block: &mut RawBlock, planned: Planned, start: usize) -> Result<()> {
        let bytes = exact::part(&block.raw, start..);
        let at = (block.record.number, start as u64);
        let seen = self.seen_before(bytes, at, &planned.member)?;
        self.add_seen(block, planned, start, seen)
    }

    /// Adds a member whose bytes stand in the block from `start` on, and elsewhere if they were seen.
    fn add_seen(
        &mut self,
        block: &mut RawBlock,
        planned: Planned,
        start: usize,
        seen: Option<(u64, u64)>,
    ) -> Result<()> {
        let Planned { mut member, shape } = planned;
        let length = block.raw.len() - start;
        assert_eq!(length as u64, member.place.length(), "all of the member was read");
        member.same_as = seen;
        if member.same_as.is_some() {
            self.repeated_bytes += length as u64;
            block.raw.truncate(start);
        } else {
            member.base_file = self.append_base(member.file, &member.place, start, &mut block.base)?;
            block.record.shapes.push(shape);
        }
        self.add_member(block, member)
    }

    fn add_member(&mut self, block: &mut RawBlock, member: Member) -> Result<()> {
        let ranges = match &member.place {
            MemberRanges::Extents(extents) => extents.len(),
            MemberRanges::Rest(_) => 1,
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
    fn seen_before(&mut self, bytes: &[u8], at: (u64, u64), member: &Member) -> Result<Option<(u64, u64)>> {
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

    fn read(&self, file: u32, place: &MemberRanges, buffer: &mut Vec<u8>) -> Result<()> {
        read(self.files, file, &self.extents(file, place), buffer)
    }

    /// The ranges of a file that a place of one of its members stands for.
    fn extents(&self, file: u32, place: &MemberRanges) -> Vec<Extent> {
        match place {
            MemberRanges::Extents(extents) => extents.clone(),
            MemberRanges::Rest(range) => {
                part_of_extents(exact::part(self.rests.as_slice(), file as usize).as_slice(), *range)
            }
        }
    }

    /// Appends the member's bytes in the base set, if it has a file of the same name pattern that holds the ranges.
    fn append_base(
        &self,
        file: u32,
        place: &MemberRanges,
        start: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<u32>> {
        let Some(base) = self.base.filter(|_| buffer.len() == start) else { return Ok(None) };
        let MemberRanges::Extents(extents) = place else { return Ok(None) };
        let member = exact::part(self.files, file as usize);
        // A base is read as its files are, and not in their unfolded form.
        if member.unfolded().is_some() {
            return Ok(None);
        }
        let entry = &member.entry;
        let Some(base_file) = base.counterpart(file as usize, &entry.name, entry.size) else {
            return Ok(None);
        };
        base.append(base_file, extents, buffer)?;
        Ok(Some(base_file))
    }
}

/// Appends ranges of a file of the set.
fn read(files: &[SetFile], file: u32, extents: &[Extent], buffer: &mut Vec<u8>) -> Result<()> {
    exact::part(files, file as usize).append(extents, buffer)
}

fn extent_of(range: &Range<usize>) -> Extent {
    Extent { offset: range.start as u64, length: range.len() as u64 }
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
    let row = |planned: &Planned| match planned.shape.0.first() {
        Some(slowest) => planned.member.place.length() / (*slowest).max(1),
        None => planned.member.place.length(),
    };
    group.members.first().map_or(1, row).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PlannedFile, plan};
    use crate::source::Input;

    /// Blocks of a file of an unknown format whose second half repeats the first: bytes, whether they choose a chain, and members.
    fn blocks(bytes: usize, change: impl FnOnce(&mut Assembler<'_>)) -> Result<Vec<(u64, bool, usize)>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let content: Vec<u8> = (0..bytes as u64 / 16)
            .flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
            .collect();
        std::fs::write(&path, content.repeat(2)).unwrap();
        let files = [SetFile::look_at(&Input { name: "state".to_owned(), path }).unwrap()];
        let (parsed, options) = (stdchk_formats::parse(&files[0]), Packing::default());
        let plan = plan(
            &[PlannedFile { name: "state", parsed: &parsed, numbers: &[], record: None, holes: &[] }],
            &options.plan,
        );
        let resources = Resources { threads: 1, for_blocks: 1 << 30, load: false };
        let mut assembler = Assembler::new(&files, plan, &resources, &options);
        change(&mut assembler);
        let next = || assembler.next(&|_| true).transpose();
        let told = |block: RawBlock| {
            let chooses = matches!(block.part, GroupPart::First(..));
            (block.record.raw_length, chooses, block.record.members.len())
        };
        std::iter::from_fn(next).map(|block| block.map(told)).collect()
    }

    #[test]
    fn the_first_block_of_a_group_chooses_its_chain() {
        let blocks = blocks(40 << 20, |_| ()).unwrap();
        assert!(blocks.len() > 2 && blocks.iter().skip(1).all(|(_, chooses, _)| !chooses), "{blocks:?}");
        assert!(blocks.first().is_some_and(|(_, chooses, _)| *chooses));
    }

    #[test]
    fn a_set_of_many_ranges_is_packed_although_no_more_runs_are_looked_for() {
        let left = |blocks: &[(u64, bool, usize)]| blocks.iter().map(|(bytes, ..)| bytes).sum::<u64>();
        let searched = blocks(20 << 20, |_| ()).unwrap();
        // The second half repeats the first; what a block repeats of itself is left to its own search.
        assert!(left(&searched) < 13 << 20, "{searched:?}");
        let blocks = blocks(20 << 20, |assembler| assembler.ranges = RANGES_MAX - 10).unwrap();
        assert!(blocks.iter().all(|(.., members)| *members == 1), "{blocks:?}");
        assert_eq!(left(&blocks), 20 << 20);
    }
}
