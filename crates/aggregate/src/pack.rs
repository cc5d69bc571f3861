//! Packing: a set of files becomes one container, streaming and in parallel.
//!
//! Relies on [`crate::plan`], [`crate::choose`] and [`crate::container`]. The idea: one thread reads members and drops
//! the ones seen before, workers choose and run chains, one thread writes blocks in order; at most a fixed number of
//! blocks is in flight, which is what keeps the memory budget.

mod assemble;
mod write;

use std::collections::HashMap;
use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use stdchk_formats::{Parsed, parse};

use crate::choose::{Mode, Sample, choose};
use crate::codec::{Side, Step, encode};
use crate::container::{BlockRecord, FileEntry, Files, hash};
use crate::error::{AggregateError, Result};
use crate::limits::{BLOCK_MIN, BUDGET_DEFAULT, BUDGET_MIN, BUFFERS_PER_BLOCK, FILES_MAX};
use crate::plan::{PlanOptions, PlannedFile, plan};
use crate::source::{Input, Opened};
use crate::unpack::BaseSet;
use assemble::{Assembler, RawBlock};
use write::Writer;

/// How to pack.
#[derive(Default)]
pub struct Packing<'a> {
    /// Time or space.
    pub mode: Mode,
    /// How files are cut and merged.
    pub plan: PlanOptions,
    /// Bytes of memory that packing may take; 0 stands for the default.
    pub budget: u64,
    /// Threads that code blocks; 0 stands for one per core.
    pub threads: usize,
    /// A set against which variables may be coded; it is needed to unpack.
    pub base: Option<&'a BaseSet>,
    /// Chains that served the last set, by key: tried along with the others.
    pub remembered: HashMap<String, Vec<Step>>,
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
    /// The chain of every key, to be remembered for the next set.
    pub chains: HashMap<String, Vec<Step>>,
}

/// Memory and threads, settled.
pub(crate) struct Resources {
    pub(crate) threads: usize,
    pub(crate) block_bytes: u64,
    /// The whole set may be held in memory besides the blocks in flight.
    pub(crate) load: bool,
}

impl Resources {
    /// Divides a budget between the blocks in flight; every thread has one, and one is read ahead.
    pub(crate) fn settle(budget: u64, threads: usize, set_bytes: u64, block_bytes: u64) -> Self {
        let budget = if budget == 0 { BUDGET_DEFAULT } else { budget.max(BUDGET_MIN) };
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = if threads == 0 { cores } else { threads };
        let load = set_bytes <= budget / 4;
        let for_blocks = if load { budget - set_bytes } else { budget };
        let in_flight = threads as u64 + 1;
        let share = for_blocks / (in_flight * BUFFERS_PER_BLOCK);
        Self { threads, block_bytes: block_bytes.min(share).max(BLOCK_MIN), load }
    }
}

/// A coded block on its way to the writer.
struct CodedBlock {
    record: BlockRecord,
    payload: Vec<u8>,
}

/// Packs a set into `output`, which appears only when it is complete.
///
/// # Errors
/// When a file can't be read or the container can't be written; nothing is left behind then.
pub fn pack(inputs: &[Input], output: &Path, options: &Packing<'_>) -> Result<Packed> {
    if inputs.is_empty() || inputs.len() > FILES_MAX {
        return Err(AggregateError::Invalid(format!("a set of {} files can't be packed", inputs.len())));
    }
    let mut files = inputs.iter().map(Opened::open).collect::<Result<Vec<_>>>()?;
    let set_bytes = files.iter().map(stdchk_formats::Source::size).sum();
    let resources = Resources::settle(options.budget, options.threads, set_bytes, options.mode.block_bytes());
    if resources.load {
        files.iter_mut().try_for_each(Opened::load)?;
    }
    let parsed: Vec<Parsed> = files.iter().map(|file| parse(file)).collect();
    let planned: Vec<PlannedFile<'_>> =
        files.iter().zip(&parsed).map(|(file, parsed)| PlannedFile { name: &file.name, parsed }).collect();
    let plan = plan(&planned, &options.plan);
    let mut assembler = Assembler::new(&files, plan, resources.block_bytes, options.base);
    let writer = Writer::create(output, table_of(&files, options.base))?;
    let (writer, chains) = run(&mut assembler, writer, options, resources.threads)?;
    let blocks = writer.blocks();
    let stored_bytes = writer.finish()?;
    let files = files.len() as u64;
    Ok(Packed {
        files,
        raw_bytes: set_bytes,
        stored_bytes,
        repeated_bytes: assembler.repeated_bytes,
        blocks,
        chains,
    })
}

fn table_of(files: &[Opened], base: Option<&BaseSet>) -> Files {
    let entry = |file: &Opened| FileEntry {
        name: file.name.clone(),
        size: stdchk_formats::Source::size(file),
        mode: file.mode,
    };
    Files { files: files.iter().map(entry).collect(), base: base.map(BaseSet::identity) }
}

type Chains = HashMap<String, Vec<Step>>;

/// Reads, codes and writes all blocks; gives the writer back, and the chains that were chosen.
fn run(
    assembler: &mut Assembler<'_>,
    writer: Writer,
    options: &Packing<'_>,
    threads: usize,
) -> Result<(Writer, Chains)> {
    // The channels hold nothing: a block is either being read, coded or written.
    let (to_workers, from_reader) = sync_channel::<RawBlock>(0);
    let (to_writer, from_workers) = sync_channel::<Result<CodedBlock>>(threads);
    let from_reader = Mutex::new(from_reader);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (from_reader, to_writer) = (&from_reader, to_writer.clone());
            scope.spawn(move || work(from_reader, &to_writer, options));
        }
        drop(to_writer);
        let writing = scope.spawn(move || write_all(writer, &from_workers));
        let read = assembler.run(|block| to_workers.send(block).is_ok());
        drop(to_workers);
        let written =
            writing.join().unwrap_or_else(|_| Err(AggregateError::Invalid("a thread was lost".to_owned())));
        read.and(written)
    })
}

fn work(
    from_reader: &Mutex<Receiver<RawBlock>>,
    to_writer: &SyncSender<Result<CodedBlock>>,
    options: &Packing<'_>,
) {
    loop {
        let received = from_reader.lock().map(|receiver| receiver.recv());
        let Ok(Ok(block)) = received else { return };
        if to_writer.send(code(block, options)).is_err() {
            return;
        }
    }
}

fn code(block: RawBlock, options: &Packing<'_>) -> Result<CodedBlock> {
    let RawBlock { mut record, raw, mut base, data_type } = block;
    if base.len() != raw.len() {
        base.clear();
    }
    let remembered = options.remembered.get(&record.key).map(Vec::as_slice);
    let sample = Sample { raw: &raw, data_type, shapes: &record.shapes, base: &base };
    record.steps = choose(&options.mode, &sample, remembered);
    let side = Side { shapes: &record.shapes, base: &base };
    let failed = |source| AggregateError::Codec { number: record.number, key: record.key.clone(), source };
    let mut payload = encode(&record.steps, &raw, side).map_err(failed)?;
    if payload.len() >= raw.len() {
        (record.steps, payload) = (Vec::new(), raw.clone());
    }
    record.raw_hash = hash(&raw);
    if !record.steps.iter().any(Step::needs_shapes) {
        record.shapes.clear();
    }
    if !record.steps.iter().any(Step::needs_base) {
        record.members.iter_mut().for_each(|member| member.base_file = None);
    }
    Ok(CodedBlock { record, payload })
}

/// Writes blocks in the order of their numbers, holding back the ones that come early.
fn write_all(mut writer: Writer, from_workers: &Receiver<Result<CodedBlock>>) -> Result<(Writer, Chains)> {
    let mut early = HashMap::new();
    let mut chains = HashMap::new();
    for coded in from_workers {
        let coded = coded?;
        early.insert(coded.record.number, coded);
        while let Some(next) = early.remove(&writer.blocks()) {
            writer.block(&next.record, &next.payload)?;
            chains.insert(next.record.key, next.record.steps);
        }
    }
    Ok((writer, chains))
}
