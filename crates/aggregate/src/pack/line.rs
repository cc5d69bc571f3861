//! The threads of packing: each takes the next block, codes it, and sees that it is written in its turn.
//!
//! Relies on [`super::assemble`] and [`super::write`]. The idea: a block stays with one thread, whose cache holds it, and
//! no block is handed over, which costs as much as coding a small one. One thread at a time reads, one writes; blocks
//! that are coded early wait. A block needs one of a fixed number of tickets from when it is read until it is written,
//! which is what keeps the memory budget.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::codec::scratch;
use crate::error::{AggregateError, Result};

use super::assemble::Assembler;
use super::spent::{Lap, Spent};
use super::write::Writer;
use super::{CodedBlock, Packing, Resources, code};

/// What the threads share.
struct Line<'line, 'files, 'out> {
    options: &'line Packing<'line>,
    incoming: Mutex<Assembler<'files>>,
    outgoing: Mutex<Outgoing<'out>>,
    /// Told when a ticket is free, or all is over.
    free: Condvar,
}

struct Outgoing<'out> {
    writer: Writer<'out>,
    /// Coded blocks whose turn has not come.
    early: HashMap<u64, CodedBlock>,
    tickets: usize,
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
    let (early, tickets, spent) = (HashMap::new(), resources.tickets(), Spent::default());
    let outgoing = Outgoing { writer, early, tickets, tried: 0, spent, failure: None };
    let line = Line {
        options,
        incoming: Mutex::new(assembler),
        outgoing: Mutex::new(outgoing),
        free: Condvar::new(),
    };
    let lost = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..resources.threads).map(|_| scope.spawn(|| line.work())).collect();
        line.work();
        threads.into_iter().any(|thread| thread.join().is_err())
    });
    let Outgoing { writer, early, tried, spent, failure, .. } =
        line.outgoing.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failure {
        Some(failure) => Err(failure),
        None if lost || !early.is_empty() => Err(AggregateError::Invalid("a thread was lost".to_owned())),
        None => {
            let assembler = line.incoming.into_inner().unwrap_or_else(PoisonError::into_inner);
            Ok(Done { writer, repeated_bytes: assembler.repeated_bytes, tried, spent })
        }
    }
}

/// Tells the other threads when this one is lost, so that they don't wait for its block.
struct Watched<'a, 'line, 'files, 'out>(&'a Line<'line, 'files, 'out>);

impl Drop for Watched<'_, '_, '_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.give_ticket(Some(AggregateError::Invalid("a thread was lost".to_owned())));
        }
    }
}

impl<'out> Line<'_, '_, 'out> {
    /// Blocks one after the other, until none is left or something fails.
    fn work(&self) {
        let _watched = Watched(self);
        while self.take_ticket() {
            let done = match self.read_and_code() {
                Ok(Some(coded)) => self.put(coded).map(|()| true),
                Ok(None) => Ok(false),
                Err(error) => Err(error),
            };
            match done {
                Ok(true) => {}
                Ok(false) => return self.give_ticket(None),
                Err(error) => return self.give_ticket(Some(error)),
            }
        }
    }

    fn outgoing(&self) -> MutexGuard<'_, Outgoing<'out>> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a ticket; says whether there is anything left to do. Whoever holds the ticket of the next block to be
    /// written never waits here, so that one comes free.
    fn take_ticket(&self) -> bool {
        let waiting = |outgoing: &mut Outgoing<'_>| outgoing.tickets == 0 && outgoing.failure.is_none();
        let outgoing = self.free.wait_while(self.outgoing(), waiting);
        let mut outgoing = outgoing.unwrap_or_else(PoisonError::into_inner);
        outgoing.tickets = outgoing.tickets.saturating_sub(1);
        outgoing.failure.is_none()
    }

    fn give_ticket(&self, failure: Option<AggregateError>) {
        let mut outgoing = self.outgoing();
        outgoing.tickets += 1;
        if outgoing.failure.is_none() {
            outgoing.failure = failure;
        }
        drop(outgoing);
        self.free.notify_all();
    }

    fn read_and_code(&self) -> Result<Option<CodedBlock>> {
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut lap, mut reading) = (Lap::start(), Duration::ZERO);
        let read = incoming.next(self.options.watch)?;
        drop(incoming);
        lap.end(&mut reading);
        let Some(block) = read else { return Ok(None) };
        let mut coded = code(block, self.options)?;
        coded.spent.reading += reading;
        Ok(Some(coded))
    }

    /// Writes the block and those that waited for it, in the order of their numbers; each gives its ticket back.
    fn put(&self, coded: CodedBlock) -> Result<()> {
        let mut outgoing = self.outgoing();
        let Outgoing { writer, early, tickets, tried, spent, .. } = &mut *outgoing;
        let mut lap = Lap::start();
        *tried += coded.tried;
        spent.add(&coded.spent);
        early.insert(coded.record.number, coded);
        while let Some(next) = early.remove(&writer.blocks()) {
            writer.block(&next.record, &next.payload)?;
            scratch::give_back(next.payload);
            *tickets += 1;
        }
        lap.end(&mut spent.writing);
        drop(outgoing);
        self.free.notify_all();
        Ok(())
    }
}
