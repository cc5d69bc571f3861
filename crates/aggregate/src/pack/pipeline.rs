//! The threads of packing: each takes the next block, codes it, and writes it when all blocks before it are written.
//!
//! Relies on [`super::assemble`] and [`super::write`]. The idea: a block stays with one thread, whose cache holds it, and
//! no block is handed over, which costs as much as coding a small one. One thread at a time reads, one writes; blocks
//! that are coded early wait. A block takes the memory for coding it before it is read, and keeps what its coded bytes
//! need until they are written, which is what keeps the memory budget. Blocks take it in their order, and one that is to be
//! written next has it, so there is always a block that goes on.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::codec::scratch;
use crate::error::{AggregateError, Result};
use crate::limits::BUFFERS_PER_BLOCK;

use super::assemble::Assembler;
use super::spent::{Lap, Spent};
use super::write::Writer;
use super::{CodedBlock, Packing, Resources, code};

/// What the threads share.
struct Pipeline<'pipeline, 'files, 'out> {
    options: &'pipeline Packing<'pipeline>,
    incoming: Mutex<Assembler<'files>>,
    outgoing: Mutex<Outgoing<'out>>,
    /// Notified when memory is released, or after an error.
    free: Condvar,
    /// Bytes of memory for all blocks.
    memory: u64,
}

struct Outgoing<'out> {
    writer: Writer<'out>,
    /// Coded blocks that wait for blocks before them to be written.
    early: HashMap<u64, CodedBlock>,
    /// Bytes of memory that blocks have taken.
    taken: u64,
    /// Chains that were tried on samples.
    tried: u64,
    spent: Spent,
    /// The first error; nothing is begun after it.
    failure: Option<AggregateError>,
}

/// What is left when all blocks are written.
pub(super) struct Done<'out> {
    pub(super) writer: Writer<'out>,
    /// Bytes that were repeats.
    pub(super) repeated_bytes: u64,
    /// Chains that were tried on samples.
    pub(super) tried: u64,
    pub(super) spent: Spent,
}

/// Reads, codes and writes all blocks.
pub(super) fn run<'out>(
    assembler: Assembler<'_>,
    writer: Writer<'out>,
    options: &Packing<'_>,
    resources: &Resources,
) -> Result<Done<'out>> {
    let (early, spent) = (HashMap::new(), Spent::default());
    let outgoing = Outgoing { writer, early, taken: 0, tried: 0, spent, failure: None };
    let pipeline = Pipeline {
        options,
        incoming: Mutex::new(assembler),
        outgoing: Mutex::new(outgoing),
        free: Condvar::new(),
        memory: resources.for_blocks,
    };
    let lost = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..resources.threads).map(|_| scope.spawn(|| pipeline.work())).collect();
        pipeline.work();
        threads.into_iter().any(|thread| thread.join().is_err())
    });
    let Outgoing { writer, early, tried, spent, failure, .. } =
        pipeline.outgoing.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failure {
        Some(failure) => Err(failure),
        None if lost || !early.is_empty() => Err(AggregateError::Invalid("a thread was lost".to_owned())),
        None => {
            let assembler = pipeline.incoming.into_inner().unwrap_or_else(PoisonError::into_inner);
            Ok(Done { writer, repeated_bytes: assembler.repeated_bytes, tried, spent })
        }
    }
}

/// Ends the pipeline when its thread panics, so that no other thread waits for that one's block.
struct Watched<'a, 'pipeline, 'files, 'out>(&'a Pipeline<'pipeline, 'files, 'out>);

impl Drop for Watched<'_, '_, '_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(AggregateError::Invalid("a thread was lost".to_owned()));
        }
    }
}

impl<'out> Pipeline<'_, '_, 'out> {
    /// Blocks one after the other, until none is left or something fails.
    fn work(&self) {
        let _watched = Watched(self);
        loop {
            let done = match self.read_and_code() {
                Ok(Some((coded, taken))) => self.put(coded, taken),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                return self.fail(error);
            }
        }
    }

    fn outgoing(&self) -> MutexGuard<'_, Outgoing<'out>> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes memory for the next block, if nothing has failed. A block that needs more than there is has all of it for itself.
    fn take(&self, bytes: u64) -> bool {
        let waiting = |outgoing: &mut Outgoing<'_>| {
            let full = outgoing.taken > 0 && outgoing.taken.saturating_add(bytes) > self.memory;
            full && outgoing.failure.is_none()
        };
        let outgoing = self.free.wait_while(self.outgoing(), waiting);
        let mut outgoing = outgoing.unwrap_or_else(PoisonError::into_inner);
        outgoing.taken += bytes;
        outgoing.failure.is_none()
    }

    fn fail(&self, failure: AggregateError) {
        self.outgoing().failure.get_or_insert(failure);
        self.free.notify_all();
    }

    /// The next block, coded, and the memory that it took.
    fn read_and_code(&self) -> Result<Option<(CodedBlock, u64)>> {
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(bytes) = incoming.next_bytes() else { return Ok(None) };
        let taken = bytes.saturating_mul(BUFFERS_PER_BLOCK);
        if !self.take(taken) {
            return Ok(None);
        }
        let (mut lap, mut reading) = (Lap::start(), Duration::ZERO);
        let read = incoming.next(self.options.watch)?;
        drop(incoming);
        lap.end(&mut reading);
        let Some(block) = read else { return Ok(None) };
        let mut coded = code(block, self.options)?;
        coded.spent.reading += reading;
        Ok(Some((coded, taken)))
    }

    /// Writes the block and those that waited for it, in the order of their numbers. Of the memory that it took it keeps what its
    /// coded bytes need until then.
    fn put(&self, coded: CodedBlock, taken: u64) -> Result<()> {
        let mut outgoing = self.outgoing();
        let Outgoing { writer, early, taken: all_taken, tried, spent, .. } = &mut *outgoing;
        let mut lap = Lap::start();
        *tried += coded.tried;
        spent.add(&coded.spent);
        assert!(*all_taken >= taken, "a block gives back memory that it took");
        assert!(coded.record.number >= writer.blocks(), "no block is written twice");
        *all_taken = *all_taken - taken + coded.payload.len() as u64;
        early.insert(coded.record.number, coded);
        while let Some(next) = early.remove(&writer.blocks()) {
            *all_taken -= next.payload.len() as u64;
            writer.block(&next.record, &next.payload)?;
            scratch::give_back(next.payload);
        }
        lap.end(&mut spent.writing);
        drop(outgoing);
        self.free.notify_all();
        Ok(())
    }
}
