//! What the log says about the contents of files at a position: the oldest old contents behind it, and where files went.
//!
//! The one idea: statements are absolute, so the oldest one about a byte is what stood there at the position, and all later
//! ones about it can be left out. The contents stay in the log until they are asked for.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use stdchk_model::exact::{part_mut, to_usize};

use crate::clones;
use crate::error::{Error, Result};
use crate::extents::Extents;
use crate::log::{Log, Statement};
use crate::paths::below;
use crate::record::{Inode, Record, RelativePath};
use crate::store::Store;

/// What the log says behind a position.
#[derive(Debug)]
pub(crate) struct Overlay {
    /// The log is taken into account up to here.
    next: u64,
    files: HashMap<Inode, OldContents>,
    moves: Vec<Move>,
}

#[derive(Debug, Default)]
struct OldContents {
    covered: Extents,
    /// By offset in the file, disjoint: length, and where the bytes are.
    pieces: BTreeMap<u64, (u64, Source)>,
}

/// Where old contents are.
#[derive(Debug, Clone)]
enum Source {
    /// Nowhere: they are zeros.
    Hole,
    /// From this position of the log on.
    Log(u64),
    /// At the same place in a kept file.
    Kept(Arc<[u8]>),
}

#[derive(Debug)]
struct Move {
    inode: Inode,
    from: RelativePath,
    to: RelativePath,
    directory: bool,
}

impl Move {
    /// Where the file `inode` that stood at `path` stands after the move, if that concerns it.
    fn apply(&self, inode: Inode, path: &[u8]) -> Option<Arc<[u8]>> {
        if self.inode == inode && *self.from == *path {
            return Some(self.to.as_slice().into());
        }
        let rest = below(path, &self.from).filter(|_| self.directory)?;
        Some([&self.to, rest].concat().into())
    }
}

impl Overlay {
    /// For the state at `position`.
    pub(crate) fn new(position: u64) -> Self {
        Self { next: position, files: HashMap::new(), moves: Vec::new() }
    }

    /// Takes into account what the log holds by now about the files that are `wanted`.
    pub(crate) fn follow(&mut self, log: &Log, wanted: impl Fn(Inode) -> bool) -> Result<()> {
        let end = log.len()?;
        if end <= self.next {
            return Ok(());
        }
        for located in log.scan_on(&mut self.next, end)? {
            match located.statement {
                Statement::Small(Record::Moved { inode, from, to, directory }) => {
                    self.moves.push(Move { inode, from, to, directory });
                }
                Statement::Contents { inode, offset, length, payload_at } if wanted(inode) => {
                    self.files.entry(inode).or_default().add(offset, length, &Source::Log(payload_at));
                }
                Statement::Small(Record::Cloned { inode, offset, length, kept }) if wanted(inode) => {
                    self.files.entry(inode).or_default().add(offset, length, &Source::Kept(kept.into()));
                }
                Statement::Hole { inode, offset, length } if wanted(inode) => {
                    self.files.entry(inode).or_default().add(offset, length, &Source::Hole);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Where the file that stood at `path` may stand by now, the likeliest last: each move may have failed.
    pub(crate) fn places(&self, inode: Inode, path: &Arc<[u8]>) -> Vec<Arc<[u8]>> {
        let mut places = vec![Arc::clone(path)];
        for step in &self.moves {
            let moved = places.iter().rev().find_map(|place| step.apply(inode, place));
            if let Some(moved) = moved {
                places.retain(|place| *place != moved);
                places.push(moved);
            }
        }
        places
    }

    /// Lays what is known over the bytes that were read at `offset`.
    pub(crate) fn lay_over(&self, store: &Store, inode: Inode, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let Some(file) = self.files.get(&inode) else { return Ok(()) };
        let end = offset + bytes.len() as u64;
        let first = file.pieces.range(..=offset).next_back().map_or(offset, |(at, _)| *at);
        for (&at, &(length, ref source)) in file.pieces.range(first..end) {
            let (from, to) = (at.max(offset), (at + length).min(end));
            if from >= to {
                continue;
            }
            assert!(offset <= from && to <= end, "only what was asked for is laid over");
            let piece = part_mut(bytes, to_usize(from - offset)..to_usize(to - offset));
            match source {
                Source::Hole => piece.fill(0),
                Source::Kept(kept) => clones::read_exact_at(store, kept, from, piece)?,
                Source::Log(payload_at) if store.log.read_exact_at(payload_at + (from - at), piece)? => {}
                Source::Log(_) => {
                    return Err(Error::Refused("old contents are no longer in the log".into()));
                }
            }
        }
        Ok(())
    }
}

impl OldContents {
    fn add(&mut self, offset: u64, length: u64, source: &Source) {
        let range = offset..offset.saturating_add(length);
        for gap in self.covered.gaps(range.clone()) {
            let source = match source {
                Source::Log(payload_at) => Source::Log(payload_at + (gap.start - offset)),
                other => other.clone(),
            };
            self.pieces.insert(gap.start, (gap.end - gap.start, source));
        }
        self.covered.insert(range);
    }
}
