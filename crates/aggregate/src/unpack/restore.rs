//! Giving all files back, in parallel.
//!
//! Relies on [`Container`]. The idea: threads take blocks, not files, so every block is decoded once however many files
//! it serves; small sets are put together in memory and written once, large ones are written at offsets. A file with a
//! damaged part is not written, and every other one is.

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::map::{Piece, covers};
use super::{Container, slice};
use crate::error::{AggregateError, Result};
use crate::limits::{BUDGET_DEFAULT, BUDGET_MIN, BUFFERS_PER_BLOCK};

/// What unpacking did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// Files written.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A file on its way back.
struct Target {
    path: PathBuf,
    partial: PathBuf,
    mode: u32,
    size: u64,
    state: Mutex<State>,
}

enum State {
    /// Nothing has arrived.
    Waiting,
    /// Collected in memory, with the bytes that are still missing.
    Memory(Vec<u8>, u64),
    /// Written at offsets, with the bytes that are still missing.
    Disk(File, u64),
    Done,
    Damaged,
}

/// One file's pieces in a block.
struct Delivery {
    target: usize,
    pieces: Vec<Piece>,
}

impl Container {
    /// Writes every file below `folder`; `budget` bytes of memory (0: the default), `threads` (0: one per core).
    ///
    /// # Errors
    /// [`AggregateError::SomeDamaged`] names the files that could not be given back, after all others were.
    pub fn unpack(&self, folder: &Path, budget: u64, threads: usize) -> Result<Unpacked> {
        let targets = self.targets(folder)?;
        let budget = if budget == 0 { BUDGET_DEFAULT } else { budget.max(BUDGET_MIN) };
        let total: u64 = targets.iter().map(|target| target.size).sum();
        let in_memory = total <= budget / 4;
        let threads = self.threads(budget, threads);
        let deliveries = self.deliveries();
        let next = AtomicUsize::new(0);
        let first_error = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while let Some(deliveries) = deliveries.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let outcome = self.deliver(deliveries, &targets, in_memory);
                        if let (Err(error), Ok(mut first)) = (outcome, first_error.lock()) {
                            first.get_or_insert(error);
                        }
                    }
                });
            }
        });
        match first_error.into_inner() {
            Ok(Some(error)) => Err(error),
            _ => self.settle(targets),
        }
    }

    /// As many threads as were asked for, as long as their blocks fit the budget.
    fn threads(&self, budget: u64, wanted: usize) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let wanted = if wanted == 0 { cores } else { wanted };
        let largest =
            self.blocks.iter().flatten().map(|block| block.record.raw_length).max().unwrap_or(1).max(1);
        let fitting = usize::try_from(budget * 3 / 4 / (largest * BUFFERS_PER_BLOCK)).unwrap_or(usize::MAX);
        wanted.min(fitting).max(1)
    }

    fn targets(&self, folder: &Path) -> Result<Vec<Target>> {
        fs::create_dir_all(folder).map_err(AggregateError::io("create", folder))?;
        let mut parents = HashSet::new();
        let mut targets = Vec::with_capacity(self.files.files.len());
        for entry in &self.files.files {
            let path = folder.join(safe(&entry.name)?);
            let parent = path.parent().unwrap_or(folder).to_owned();
            if !parents.contains(&parent) {
                fs::create_dir_all(&parent).map_err(AggregateError::io("create", &parent))?;
                parents.insert(parent);
            }
            let mut partial = path.file_name().unwrap_or_default().to_owned();
            partial.push(".partial");
            let partial = path.with_file_name(partial);
            let state = Mutex::new(State::Waiting);
            targets.push(Target { path, partial, mode: entry.mode, size: entry.size, state });
        }
        Ok(targets)
    }

    /// For every block, the pieces that it delivers, file by file.
    fn deliveries(&self) -> Vec<(u64, Vec<Delivery>)> {
        let mut by_block: Vec<(u64, Vec<Delivery>)> =
            (0..self.blocks.len() as u64).map(|number| (number, Vec::new())).collect();
        for (target, map) in self.maps.iter().enumerate() {
            for piece in map {
                let index = usize::try_from(piece.block).unwrap_or(usize::MAX);
                let Some((_, deliveries)) = by_block.get_mut(index) else { continue };
                match deliveries.last_mut() {
                    Some(last) if last.target == target => last.pieces.push(*piece),
                    _ => deliveries.push(Delivery { target, pieces: vec![*piece] }),
                }
            }
        }
        by_block
    }

    /// Decodes a block and hands its pieces out; a damaged block damages the files it serves.
    fn deliver(
        &self,
        (number, deliveries): &(u64, Vec<Delivery>),
        targets: &[Target],
        in_memory: bool,
    ) -> Result<()> {
        if deliveries.is_empty() {
            return Ok(());
        }
        let decoded = match self.decode(*number) {
            Err(AggregateError::Io { action, path, source }) => {
                return Err(AggregateError::Io { action, path, source });
            }
            other => other.ok(),
        };
        for Delivery { target, pieces } in deliveries {
            let Some(target) = targets.get(*target) else { continue };
            match &decoded {
                Some(block) => target.take(block, pieces, in_memory)?,
                None => target.damage(),
            }
        }
        Ok(())
    }

    /// Completes the files that hold no bytes, and reports those that were not completed.
    fn settle(&self, targets: Vec<Target>) -> Result<Unpacked> {
        let mut damaged = Vec::new();
        let mut unpacked = Unpacked { files: 0, bytes: 0 };
        for ((target, entry), map) in targets.into_iter().zip(&self.files.files).zip(&self.maps) {
            if target.size == 0 {
                target.write(&[])?;
            }
            let state = target.state.into_inner().unwrap_or(State::Damaged);
            if target.size == 0 || (matches!(state, State::Done) && covers(map, target.size)) {
                unpacked.files += 1;
                unpacked.bytes += target.size;
            } else {
                let _ = fs::remove_file(&target.partial);
                damaged.push(entry.name.clone());
            }
        }
        if damaged.is_empty() { Ok(unpacked) } else { Err(AggregateError::SomeDamaged { files: damaged }) }
    }
}

/// A name as a path below a folder, never above or beside it.
fn safe(name: &str) -> Result<&Path> {
    let path = Path::new(name);
    let inside = !name.is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)));
    if inside {
        Ok(path)
    } else {
        Err(AggregateError::Invalid(format!("the name '{name}' would leave the folder")))
    }
}

impl Target {
    fn damage(&self) {
        if let Ok(mut state) = self.state.lock() {
            *state = State::Damaged;
        }
    }

    /// Takes pieces of a block; the last ones complete the file.
    fn take(&self, block: &[u8], pieces: &[Piece], in_memory: bool) -> Result<()> {
        let Ok(mut state) = self.state.lock() else { return Ok(()) };
        if matches!(*state, State::Waiting) {
            *state = self.begin(in_memory)?;
        }
        let missing = match &mut *state {
            State::Memory(bytes, missing) => {
                *missing -= copy(bytes, block, pieces).min(*missing);
                *missing
            }
            State::Disk(file, missing) => {
                *missing -= self.copy_to(file, block, pieces)?.min(*missing);
                *missing
            }
            State::Waiting | State::Done | State::Damaged => return Ok(()),
        };
        if missing == 0 {
            let complete = std::mem::replace(&mut *state, State::Done);
            self.complete(&complete)?;
        }
        Ok(())
    }

    fn begin(&self, in_memory: bool) -> Result<State> {
        if in_memory {
            let length = usize::try_from(self.size).unwrap_or(usize::MAX);
            return Ok(State::Memory(vec![0; length], self.size));
        }
        let file = File::create(&self.partial).map_err(AggregateError::io("create", &self.partial))?;
        Ok(State::Disk(file, self.size))
    }

    fn copy_to(&self, file: &File, block: &[u8], pieces: &[Piece]) -> Result<u64> {
        let mut copied = 0;
        for piece in pieces {
            let Some(bytes) = slice(block, piece.start, piece.file.length) else { continue };
            file.write_all_at(bytes, piece.file.offset)
                .map_err(AggregateError::io("write", &self.partial))?;
            copied += piece.file.length;
        }
        Ok(copied)
    }

    fn complete(&self, state: &State) -> Result<()> {
        match state {
            State::Memory(bytes, _) => self.write(bytes),
            _ => self.name(),
        }
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut file = File::create(&self.partial).map_err(AggregateError::io("create", &self.partial))?;
        file.write_all(bytes).map_err(AggregateError::io("write", &self.partial))?;
        self.name()
    }

    fn name(&self) -> Result<()> {
        let permissions = Permissions::from_mode(self.mode & 0o7777);
        fs::set_permissions(&self.partial, permissions)
            .map_err(AggregateError::io("change", &self.partial))?;
        fs::rename(&self.partial, &self.path).map_err(AggregateError::io("rename to", &self.path))
    }
}

/// Copies pieces of a block to where they belong; says how many bytes that was.
fn copy(bytes: &mut [u8], block: &[u8], pieces: &[Piece]) -> u64 {
    let mut copied = 0;
    for piece in pieces {
        let start = usize::try_from(piece.file.offset).unwrap_or(usize::MAX);
        let end = usize::try_from(piece.file.end()).unwrap_or(usize::MAX);
        if let (Some(target), Some(source)) =
            (bytes.get_mut(start..end), slice(block, piece.start, piece.file.length))
        {
            target.copy_from_slice(source);
            copied += piece.file.length;
        }
    }
    copied
}
