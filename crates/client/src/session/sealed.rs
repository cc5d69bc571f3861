//! A cell whose content is fixed: being completed, being sent, or stored.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use stdchk_model::exact::narrow;
use stdchk_model::{ChunkRef, Failure};
use stdchk_net::waits;
use tokio::sync::watch;

use crate::pool::Inner;

/// A run of a sealed cell: bytes of one chunk, or zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) length: usize,
    /// The chunk and the offset in it.
    pub(super) source: Option<(ChunkRef, u32)>,
}

impl Part {
    /// The source that a part must have to be one with this.
    pub(super) fn continues_at(&self) -> Option<(ChunkRef, u32)> {
        let (chunk, offset) = self.source?;
        Some((chunk, offset + narrow::<u32, _>(self.length)))
    }
}

/// How far a sealed cell is.
#[derive(Clone)]
enum Phase {
    /// Gaps are being filled; the bytes aren't known yet.
    Completing,
    /// The bytes are in memory, on their way to benefactors.
    Sending,
    /// All chunks are stored, or the session has failed.
    Done(Result<Arc<[Part]>, Failure>),
}

/// A sealed cell.
pub(crate) struct Sealed {
    length: usize,
    bytes: Mutex<Option<Bytes>>,
    phase: watch::Sender<Phase>,
}

impl Sealed {
    pub(super) fn new(length: usize) -> Self {
        Self { length, bytes: Mutex::new(None), phase: watch::Sender::new(Phase::Completing) }
    }

    /// Bytes of the cell that are known; behind them it is zeros.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// The content is known from now on.
    pub(super) fn completed(&self, bytes: Bytes) {
        *self.bytes.lock() = Some(bytes);
        self.phase.send_replace(Phase::Sending);
    }

    /// Nothing more will happen to the cell.
    pub(super) fn done(&self, outcome: Result<Vec<Part>, Failure>) {
        if outcome.is_err() {
            self.release();
        }
        self.phase.send_replace(Phase::Done(outcome.map(Into::into)));
    }

    /// The bytes, while the window still holds them.
    pub(super) fn bytes(&self) -> Option<Bytes> {
        self.bytes.lock().clone()
    }

    /// Gives the memory back to the window. True if there was any.
    pub(crate) fn release(&self) -> bool {
        self.bytes.lock().take().is_some()
    }

    /// The parts, once the cell is stored.
    pub(super) fn parts(&self) -> Option<Result<Arc<[Part]>, Failure>> {
        match &*self.phase.borrow() {
            Phase::Done(outcome) => Some(outcome.clone()),
            _ => None,
        }
    }

    /// Waits until nothing more happens to the cell.
    pub(super) async fn wait(&self) {
        // The sender is part of the cell, and outlives this.
        let mut phase = self.phase.subscribe();
        let done = phase.wait_for(|phase| matches!(phase, Phase::Done(_)));
        let _ = waits::on(|| "a part of a file to be stored by benefactors".to_owned(), done).await;
    }

    /// The bytes of `range`, which lies within [`Sealed::length`]; from memory, or from the pool.
    pub(super) async fn read(&self, pool: &Inner, range: Range<usize>) -> Result<Bytes, Failure> {
        let mut phase = self.phase.subscribe();
        loop {
            if let Some(bytes) = self.bytes() {
                return Ok(bytes.slice(range));
            }
            if let Some(parts) = self.parts() {
                return read_parts(pool, &parts?, range).await;
            }
            if phase.changed().await.is_err() {
                return Err(crate::unexpected("a sealed cell"));
            }
        }
    }
}

async fn read_parts(pool: &Inner, parts: &[Part], range: Range<usize>) -> Result<Bytes, Failure> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for part in parts {
        let end = start + part.length;
        let common = range.start.max(start)..range.end.min(end);
        if !common.is_empty() {
            let skipped: u32 = narrow(common.start - start);
            let source = part.source.map(|(chunk, offset)| (chunk, offset + skipped));
            pieces.push((common.len(), source));
        }
        start = end;
    }
    pool.gather(&pieces).await
}
