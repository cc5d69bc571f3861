//! Packing: a set of files becomes one container, streaming and in parallel.
//!
//! Relies on [`crate::plan`], [`crate::choose`] and [`crate::container`]. The idea: members that were seen before are
//! dropped; a block's chain is chosen, run, and undone again to see that it can be undone. [`pipeline`] says which thread
//! does what, and keeps the memory budget.

mod assemble;
mod chains;
mod pipeline;
mod runs;
mod spent;
mod write;

use std::num::NonZero;
use std::path::Path;
use std::time::Duration;

use stdchk_formats::{Extent, Parsed, Source, parse};
use stdchk_model::exact::to_usize;

use crate::at_work::AtWork;
use crate::choose::{Choice, Mode, Sample, choose, may_choose, or_searched, record_in_middle};
use crate::codec::{CodecError, Side, Step, encode, gives_back, scratch};
use crate::container::{BlockRecord, Files, SET_ID_BITS, UnfoldedEntry, hash};
use crate::error::{AggregateError, Result};
use crate::holes::bytes_of;
use crate::limits::{
    BLOCK_MIN, BLOCKS_MIN, BUDGET_DEFAULT, BUDGET_MIN, BUDGET_SHARE, BUFFERS_PER_BLOCK, FILES_MAX, HOLES_MAX,
    OPEN_MAX, STREAM_MAX,
};
use crate::new_file::{NewFile, folder_of, sync_folder};
use crate::numbers_in::{Numbers, numbers_in};
use crate::plan::{PlanOptions, PlannedFile, plan};
use crate::source::{Input, Member, SetFile};
use crate::unfold::{MAKERS, Unfolding, unfold};
use crate::unpack::{BaseSet, Container};
use assemble::{Assembler, GroupPart, RawBlock};
pub use chains::Chains;
use chains::{Chosen, LEAD_MIN};
use spent::Lap;
pub use spent::Spent;
pub use write::Output;
use write::Writer;

/// Called with the number of bytes of files that were done since the last call; returns whether to go on.
pub type Watch<'a> = &'a (dyn Fn(u64) -> bool + Sync);

/// Mean length of pieces, in bytes, from which on they are read one by one.
const PIECE_MIN: u64 = 8 << 10;

/// How to pack.
#[derive(Clone)]
pub struct Packing<'a> {
    /// Time or space.
    pub mode: Mode,
    /// How files are cut and merged.
    pub plan: PlanOptions,
    /// Bytes of memory that packing may take; 0 stands for the default.
    pub budget: u64,
    /// Threads that code blocks; 0 stands for one per core.
    pub threads: usize,
    /// Largest block, in bytes; 0: what the mode likes best. Whoever reads a few bytes decodes a block for them.
    pub block_max: u64,
    /// Keep an index of all blocks at the end, 1 % more of the container at most: for readers that are far from it.
    pub index: bool,
    /// A set against which variables may be coded; it is needed to unpack.
    pub base: Option<&'a BaseSet>,
    /// What coded an earlier set, tried before anything else is.
    pub chains: Option<&'a Chains>,
    /// Called as packing goes on.
    pub watch: Watch<'a>,
}

impl Default for Packing<'_> {
    fn default() -> Self {
        let (mode, plan) = (Mode::default(), PlanOptions::default());
        Self {
            mode,
            plan,
            budget: 0,
            threads: 0,
            block_max: 0,
            index: false,
            base: None,
            chains: None,
            watch: &|_| true,
        }
    }
}

impl Packing<'_> {
    /// How many of so many containers are packed at one time: no more than there are threads.
    #[must_use]
    pub fn at_once(&self, containers: usize) -> usize {
        self.shares(containers).min(self.settled_threads())
    }

    /// What each of so many may take of the threads and of the memory. Blocks follow from the memory, so the threads have no part in
    /// how it is shared.
    #[must_use]
    pub fn share(&self, containers: usize) -> Self {
        let threads = self.settled_threads().div_ceil(self.at_once(containers));
        Self { budget: self.settled_budget() / self.shares(containers) as u64, threads, ..self.clone() }
    }

    /// Parts of the memory where so many containers are to be packed.
    fn shares(&self, containers: usize) -> usize {
        let affordable = to_usize(self.settled_budget() / BUDGET_SHARE);
        containers.min(affordable).max(1)
    }

    fn settled_budget(&self) -> u64 {
        if self.budget == 0 { BUDGET_DEFAULT } else { self.budget.max(BUDGET_MIN) }
    }

    fn settled_threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
        if self.threads == 0 { cores() } else { self.threads }
    }
}

/// What packing did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Files of the set.
    pub files: u64,
    /// Their bytes.
    pub raw_bytes: u64,
    /// Bytes of the container.
    pub stored_bytes: u64,
    /// Bytes of members that were not stored because the set holds them elsewhere.
    pub repeated_bytes: u64,
    /// Blocks written.
    pub blocks: u64,
    /// Chains that were tried on samples of them.
    pub tried: u64,
    /// Where the time went.
    pub spent: Spent,
}

/// Memory and threads, settled. What becomes a block follows from the set and the memory alone: the threads only decide how many
/// blocks are coded at one time, as far as there is memory for these, so that a container is the same on every machine.
struct Resources {
    threads: usize,
    /// Bytes for all blocks in flight and their coders.
    for_blocks: u64,
    /// The whole set may be held in memory besides the blocks in flight.
    load: bool,
}

impl Resources {
    fn settle(options: &Packing<'_>, set_bytes: u64) -> Self {
        let (budget, threads) = (options.settled_budget(), options.settled_threads());
        let load = set_bytes <= budget / 4;
        let for_blocks = if load { budget - set_bytes } else { budget };
        Self { threads, for_blocks, load }
    }

    /// The largest block where the mode likes so many bytes: two of them fit into the memory.
    fn block_bytes(&self, likes: u64, options: &Packing<'_>) -> u64 {
        let most = if options.block_max == 0 { likes } else { options.block_max };
        likes.min(most).min(self.for_blocks / (BLOCKS_MIN * BUFFERS_PER_BLOCK)).max(BLOCK_MIN)
    }
}

/// A coded block on its way to the writer.
struct CodedBlock {
    record: BlockRecord,
    payload: Vec<u8>,
    /// Chains that were tried on a sample of it.
    tried: u64,
    spent: Spent,
}

/// Packs a set into `output`, which appears only when it is complete, on disk, and opens as a reader opens it.
///
/// # Errors
/// When a file can't be read or changes meanwhile, the container can't be written, or the watch ends it; nothing is left
/// behind then.
pub fn pack(inputs: &[Input], output: &Path, options: &Packing<'_>) -> Result<Packed> {
    check_count(inputs.len())?;
    let files = inputs.iter().map(Member::look_at).collect::<Result<Vec<_>>>()?;
    let _at_work = AtWork::begin(folder_of(output), std::iter::once(output));
    let mut file = NewFile::start(output, 0o666)?;
    let mut packed = pack_members(files, &mut file, options)?;
    let mut lap = Lap::start();
    Container::verify_written(file.temporary())?;
    file.finish()?;
    sync_folder(folder_of(output))?;
    lap.end(&mut packed.spent.finishing);
    Ok(packed)
}

/// Packs a set that lies anywhere into a container that goes anywhere. The caller makes the container durable, and compares
/// it with the set ([`Container::compare_with`]) before it counts on it.
///
/// # Errors
/// When a file can't be read, `output` takes no more, or the watch ends it.
pub fn pack_into(files: &[SetFile], output: &mut dyn Output, options: &Packing<'_>) -> Result<Packed> {
    check_count(files.len())?;
    let files = files.iter().map(Member::elsewhere).collect::<Result<Vec<_>>>()?;
    pack_members(files, output, options)
}

fn check_count(files: usize) -> Result<()> {
    if (1..=FILES_MAX).contains(&files) {
        return Ok(());
    }
    Err(AggregateError::Invalid(format!("a set of {files} files can't be packed, only 1 to {FILES_MAX}")))
}

fn pack_members(mut files: Vec<Member>, output: &mut dyn Output, options: &Packing<'_>) -> Result<Packed> {
    let (mut lap, mut planning) = (Lap::start(), Duration::ZERO);
    let set_bytes = files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.size()));
    let resources = Resources::settle(options, set_bytes);
    files.iter_mut().fold(HOLES_MAX, |room, file| room - file.keep_holes(room));
    let files_are_many = files.len() > OPEN_MAX;
    if !files_are_many {
        files.iter_mut().try_for_each(Member::keep_open)?;
    }
    let mut parsed = parse_all(&mut files, resources.load, files_are_many)?;
    if options.mode.unfolds() {
        let (mode, threads, budget) = (&options.mode, resources.threads, resources.for_blocks);
        let stream_max = if options.block_max == 0 { STREAM_MAX } else { options.block_max.min(STREAM_MAX) };
        let unfolding = Unfolding { mode, threads, budget, stream_max, watch: options.watch };
        unfold(&mut files, &mut parsed, &unfolding)?;
    }
    let numbers: Vec<_> =
        files.iter().zip(&parsed).map(|(file, parsed)| numbers_of(file, parsed, &options.mode)).collect();
    let named = files.iter().zip(parsed.iter().zip(&numbers)).map(|(file, (parsed, numbers))| {
        let record = record_of(file, parsed, &options.mode);
        let holes = file.holes();
        PlannedFile { name: &file.entry.name, parsed, numbers, record, holes }
    });
    let named: Vec<_> = named.collect();
    let mut plan = plan(&named, &options.plan);
    drop(parsed);
    let table = table_of(&files, std::mem::take(&mut plan.holes), options.base);
    for (file, holes) in table.holes.iter().filter_map(|(file, holes)| Some((files.get(*file)?, holes))) {
        if !(options.watch)(file.bytes_behind(bytes_of(holes))) {
            return Err(AggregateError::Stopped);
        }
    }
    let assembler = Assembler::new(&files, plan, &resources, options);
    let writer = Writer::start(output, table, options.index, options.mode.record_level())?;
    lap.end(&mut planning);
    let pipeline::Done { writer, repeated_bytes, tried, mut spent } =
        pipeline::run(assembler, writer, options, &resources)?;
    let mut lap = Lap::start();
    files.iter().try_for_each(Member::check_unchanged)?;
    let blocks = writer.blocks();
    let stored_bytes = writer.finish()?;
    let count = files.iter().filter(|file| !file.entry.is_folder()).count() as u64;
    files.into_iter().for_each(Member::unload);
    lap.end(&mut spent.finishing);
    spent.planning += planning;
    Ok(Packed { files: count, raw_bytes: set_bytes, stored_bytes, repeated_bytes, blocks, tried, spent })
}

fn table_of(files: &[Member], holes: Vec<Vec<Extent>>, base: Option<&BaseSet>) -> Files {
    let owners = files.iter().enumerate().filter(|(_, file)| file.entry.mode & SET_ID_BITS != 0);
    let unfolded = files.iter().enumerate().filter_map(|(position, file)| {
        let view = file.unfolded()?;
        Some((position, UnfoldedEntry { size: view.size(), recipes: view.recipes_length() }))
    });
    Files {
        files: files.iter().map(|file| file.entry.clone()).collect(),
        owners: owners.filter_map(|(position, file)| Some((position, file.owner?))).collect(),
        base: base.map(BaseSet::identity),
        makers: files.iter().any(|file| file.unfolded().is_some()).then(|| MAKERS.to_owned()),
        unfolded: unfolded.collect(),
        holes: holes.into_iter().enumerate().filter(|(_, holes)| !holes.is_empty()).collect(),
    }
}

/// What is in each file. Those that are read in many small pieces are read once, as a whole, where memory allows it: before
/// they are parsed, if the one before was of that kind.
fn parse_all(files: &mut [Member], load: bool, all_at_once: bool) -> Result<Vec<Parsed>> {
    let mut scattered = all_at_once;
    let mut all = Vec::with_capacity(files.len());
    for file in files {
        if load && (scattered || file.is_elsewhere()) {
            file.load()?;
        }
        let parsed = parse(file);
        scattered = all_at_once || is_scattered(&parsed);
        if load && scattered && !file.is_loaded() {
            file.load()?;
        }
        all.push(parsed);
    }
    Ok(all)
}

/// Arrays in a file that no parser understands; the paper's modes take such a file as it is.
fn numbers_of(file: &Member, parsed: &Parsed, mode: &Mode) -> Vec<Numbers> {
    let unknown = parsed.variables.is_empty() && !mode.is_published();
    if unknown { numbers_in(file, file.holes()) } else { Vec::new() }
}

/// Length of the records that a file looks like which no parser understands.
fn record_of(file: &Member, parsed: &Parsed, mode: &Mode) -> Option<u32> {
    let unknown = parsed.variables.is_empty() && !mode.is_published();
    if unknown { record_in_middle(file) } else { None }
}

/// The file's variables are in so many short pieces that it is better read once, as a whole.
fn is_scattered(parsed: &Parsed) -> bool {
    let pieces: usize = parsed.variables.iter().map(|variable| variable.extents.len()).sum();
    parsed.size / (pieces as u64).max(1) < PIECE_MIN
}

fn code(block: RawBlock, options: &Packing<'_>) -> Result<CodedBlock> {
    let RawBlock { mut record, raw, mut base, data_type, opaque, part, .. } = block;
    if base.len() != raw.len() {
        base.clear();
    }
    let sample = Sample { raw: &raw, data_type, opaque, shapes: &record.shapes, base: &base };
    let (mut lap, mut spent) = (Lap::start(), Spent::default());
    let choice = settled(&part, &options.mode, &sample);
    let Choice { steps, coded, tried, .. } = or_searched(choice, &options.mode, &sample);
    lap.end(&mut spent.coding);
    (record.steps, record.raw_hash) = (steps, hash(&raw));
    lap.end(&mut spent.hashing);
    let payload = payload(&mut record, raw, coded, &base, &mut spent)?;
    Ok(CodedBlock { record, payload, tried, spent })
}

/// A later block shrinks this much less than the sample of the first before it gets a choice of its own.
const WORSE: f64 = 0.75;

/// How much more or less than in an earlier set the first block of a group may shrink by the chain of then. A choice of its
/// own is due in either case: another one may be better by now.
const ALIKE: std::ops::Range<f64> = 0.95..1.05;

/// The chain for a block: that of the first block of its group, as long as it serves; for that one, what coded the group in
/// an earlier set.
fn settled(part: &GroupPart, mode: &Mode, sample: &Sample<'_>) -> Choice {
    match part {
        GroupPart::First(lead, before) => {
            // Against a base there are other candidates, which no earlier chain says anything of.
            let before = before
                .as_ref()
                .filter(|before| sample.base.is_empty() && may_choose(mode, sample, &before.steps));
            let again = before.and_then(|before| again(before, sample, |change| ALIKE.contains(&change)));
            let choice = again.unwrap_or_else(|| choose(mode, sample));
            if sample.raw.len() as u64 >= LEAD_MIN {
                lead.decide(Chosen { steps: choice.steps.clone(), ratio: choice.ratio });
            }
            choice
        }
        // A chain that needs a base serves none that hasn't one.
        GroupPart::Later(chosen) => {
            again(chosen.wait(), sample, |change| change > WORSE).unwrap_or_else(|| choose(mode, sample))
        }
    }
}

/// The block coded by a chain that coded others, if what that makes of it compares well with what it made of those.
fn again(chosen: &Chosen, sample: &Sample<'_>, serves: impl Fn(f64) -> bool) -> Option<Choice> {
    let side = Side { shapes: sample.shapes, base: sample.base };
    let coded = encode(&chosen.steps, sample.raw, side).ok().filter(|coded| !coded.is_empty())?;
    let ratio = sample.raw.len() as f64 / coded.len() as f64;
    serves(ratio / chosen.ratio).then(|| Choice {
        steps: chosen.steps.clone(),
        coded: Some(coded),
        ratio,
        tried: 0,
    })
}

/// The block's bytes coded by its chain (`coded`, if that was done before), which is undone to see that it can be; what
/// doesn't shrink is stored.
fn payload(
    record: &mut BlockRecord,
    raw: Vec<u8>,
    coded: Option<Vec<u8>>,
    base: &[u8],
    spent: &mut Spent,
) -> Result<Vec<u8>> {
    assert_eq!(record.raw_length, raw.len() as u64, "the record is of these bytes");
    let mut lap = Lap::start();
    if !record.steps.iter().any(Step::needs_shapes) {
        record.shapes.clear();
    }
    let side = Side { shapes: &record.shapes, base };
    let failed = |source| AggregateError::Codec { number: record.number, key: record.key.clone(), source };
    let mut payload = match coded {
        Some(coded) => coded,
        None => encode(&record.steps, &raw, side).map_err(failed)?,
    };
    lap.end(&mut spent.coding);
    if payload.len() < raw.len() {
        if !gives_back(&record.steps, &payload, &raw, side).map_err(failed)? {
            return Err(failed(CodecError::damaged("chain", "it does not give back what it was given")));
        }
        lap.end(&mut spent.checking);
        scratch::give_back(raw);
    } else {
        payload = raw;
        record.steps.clear();
        record.shapes.clear();
    }
    assert!(payload.len() as u64 <= record.raw_length, "what doesn't shrink is stored");
    if !record.steps.iter().any(Step::needs_base) {
        record.members.iter_mut().for_each(|member| member.base_file = None);
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_that_are_packed_at_one_time_share_threads_and_memory() {
        let packing = |budget, threads| Packing { budget, threads, ..Packing::default() };
        let shares = |packing: Packing<'_>, containers| {
            let share = packing.share(containers);
            (packing.at_once(containers), share.threads, share.budget)
        };
        assert_eq!(shares(packing(4 * BUDGET_SHARE, 4), 8), (4, 1, BUDGET_SHARE));
        assert_eq!(shares(packing(4 * BUDGET_SHARE, 1), 8), (1, 1, BUDGET_SHARE), "as with more threads");
        assert_eq!(shares(packing(4 * BUDGET_SHARE, 4), 3), (3, 2, 4 * BUDGET_SHARE / 3));
        assert_eq!(shares(packing(4 * BUDGET_SHARE, 4), 1), (1, 4, 4 * BUDGET_SHARE));
        assert_eq!(shares(packing(2 * BUDGET_SHARE, 4), 8), (2, 2, BUDGET_SHARE));
        assert_eq!(shares(packing(1, 4), 8), (1, 4, BUDGET_MIN), "too little for two");
    }
}
