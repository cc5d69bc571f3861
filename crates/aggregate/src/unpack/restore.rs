//! Giving files back, in parallel.
//!
//! Relies on [`Container`]. The idea: threads take blocks, not files, so every block is decoded once however many files
//! it serves; sets in many small pieces are put together in memory where that fits, all others are written at offsets. A
//! file with a damaged part, or with a folder in its place, is not written, and every other one is. Blocks that no wanted
//! file needs are not read; blocks of zeros become holes.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stdchk_model::exact::{part, part_mut, to_usize};

use super::map::{BlockSlice, covers};
use super::{Container, slice};
use crate::at_work::AtWork;
use crate::codec::scratch;
use crate::container::{FileEntry, Owner};
use crate::error::{AggregateError, Result};
use crate::limits::{BUDGET_DEFAULT, BUDGET_MIN, BUFFERS_PER_BLOCK, OPEN_MAX};
use crate::name::name_of_text;
use crate::new_file::{NewFile, folder_of, sync_folder};
use crate::pack::Watch;
use crate::parallel::in_parallel;

/// How to unpack.
pub struct Unpacking<'a> {
    /// Names of the files to give back; empty: all.
    pub names: &'a [String],
    /// Bytes of memory that unpacking may take; 0 stands for the default.
    pub budget: u64,
    /// Threads that decode blocks; 0 stands for one per core.
    pub threads: usize,
    /// Called as unpacking goes on.
    pub watch: Watch<'a>,
}

impl Default for Unpacking<'_> {
    fn default() -> Self {
        Self { names: &[], budget: 0, threads: 0, watch: &|_| true }
    }
}

impl Unpacking<'_> {
    /// Bytes of memory, settled.
    pub(super) fn budget(&self) -> u64 {
        if self.budget == 0 { BUDGET_DEFAULT } else { self.budget.max(BUDGET_MIN) }
    }
}

/// What unpacking did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpacked {
    /// Files written.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Mean length of pieces, in bytes, from which on each is written by itself.
const PIECE_MIN: u64 = 8 << 10;

/// A file on its way back.
struct Target<'container> {
    /// Position in the container.
    file: usize,
    entry: &'container FileEntry,
    owner: Option<Owner>,
    path: PathBuf,
    state: Mutex<State>,
}

enum State {
    /// Nothing has arrived.
    Waiting,
    /// Collected in memory, with the bytes that are still missing.
    Memory(Vec<u8>, u64),
    /// Written at offsets, with the bytes that are still missing.
    Disk(NewFile, u64),
    Done,
    Damaged,
    /// Something else has its name, or that of its folder.
    Blocked,
}

/// Where arriving bytes are put together.
#[derive(Clone, Copy)]
enum Assembly {
    Memory,
    OpenFiles,
    /// Too many files to keep all of them open.
    ClosedFiles,
}

/// One file's pieces in a block.
struct Delivery {
    /// Position among the targets.
    target: usize,
    pieces: Vec<BlockSlice>,
}

impl Container {
    /// Writes files below `folder`, each of which appears when it is whole.
    ///
    /// # Errors
    /// [`AggregateError::Incomplete`] names the files that could not be given back, after all others were;
    /// [`AggregateError::NotFound`] a name that the container doesn't have, before anything is written.
    pub fn unpack(&self, folder: &Path, options: &Unpacking<'_>) -> Result<Unpacked> {
        let targets = self.targets(folder, options.names)?;
        let _at_work = AtWork::begin(folder, targets.iter().map(|target| target.path.as_path()));
        let budget = options.budget();
        let total = targets.iter().fold(0_u64, |sum, target| sum.saturating_add(target.entry.size));
        let pieces: usize =
            targets.iter().filter_map(|target| self.maps.get(target.file)).map(Vec::len).sum();
        let scattered = total / (pieces as u64).max(1) < PIECE_MIN;
        let assembly = match targets.len() {
            _ if scattered && total <= budget / 4 => Assembly::Memory,
            ..=OPEN_MAX => Assembly::OpenFiles,
            _ => Assembly::ClosedFiles,
        };
        let deliveries: Vec<_> = self.deliveries(&targets).into_iter().collect();
        in_parallel(&deliveries, self.threads(budget, options.threads), |_, (block, deliveries)| {
            self.deliver(*block, deliveries, &targets, assembly, options.watch)
        })?;
        settle(targets)
    }

    /// As many threads as were asked for, as long as their blocks fit the budget.
    pub(super) fn threads(&self, budget: u64, wanted: usize) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let wanted = if wanted == 0 { cores } else { wanted };
        let largest = self.largest_block().max(1);
        let fitting = to_usize(budget * 3 / 4 / (largest * BUFFERS_PER_BLOCK));
        wanted.min(fitting).max(1)
    }

    /// The wanted files, and the folders that they go to.
    fn targets(&self, folder: &Path, names: &[String]) -> Result<Vec<Target<'_>>> {
        let wanted = names.iter().map(|name| self.position(name)).collect::<Result<HashSet<_>>>()?;
        let mut paths = HashSet::new();
        let mut targets = Vec::new();
        for (file, (entry, map)) in self.files.files.iter().zip(&self.maps).enumerate() {
            if !names.is_empty() && !wanted.contains(&file) {
                continue;
            }
            let path = folder.join(safe(&entry.name)?);
            if !paths.insert(path.clone()) {
                return Err(AggregateError::Invalid(format!("two files are called '{}'", entry.name)));
            }
            let state = if covers(map, entry.size) { State::Waiting } else { State::Damaged };
            let owner = self.files.owners.get(&file).copied();
            targets.push(Target { file, entry, owner, path, state: Mutex::new(state) });
        }
        fs::create_dir_all(folder).map_err(AggregateError::io("create", folder))?;
        let folders: HashSet<&Path> = targets.iter().map(|target| folder_of(&target.path)).collect();
        let mut blocked = HashSet::new();
        for folder in folders {
            match fs::create_dir_all(folder) {
                Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotADirectory) => {
                    blocked.insert(folder.to_owned());
                }
                other => other.map_err(AggregateError::io("create", folder))?,
            }
        }
        let has_place = |path: &Path| !blocked.contains(folder_of(path)) && !is_folder(path);
        targets
            .iter()
            .filter(|target| !has_place(&target.path))
            .for_each(|target| target.end(State::Blocked));
        Ok(targets)
    }

    /// For every block that is needed, the pieces that it delivers, file by file.
    fn deliveries(&self, targets: &[Target<'_>]) -> BTreeMap<u64, Vec<Delivery>> {
        let mut by_block: BTreeMap<u64, Vec<Delivery>> = BTreeMap::new();
        for (target, file) in targets.iter().map(|target| target.file).enumerate() {
            for piece in part(&self.maps, file) {
                let deliveries = by_block.entry(piece.block).or_default();
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
        block: u64,
        deliveries: &[Delivery],
        targets: &[Target<'_>],
        assembly: Assembly,
        watch: Watch<'_>,
    ) -> Result<()> {
        let decoded = match self.decode(block) {
            Err(error @ AggregateError::Io { .. }) => return Err(error),
            other => other.ok(),
        };
        for Delivery { target, pieces } in deliveries {
            let target = part(targets, *target);
            match &decoded {
                Some(block) => target.take(block, pieces, assembly)?,
                None => target.end(State::Damaged),
            }
            if !watch(pieces.iter().map(|piece| piece.file.length).sum()) {
                return Err(AggregateError::Stopped);
            }
        }
        decoded.into_iter().for_each(scratch::give_back);
        Ok(())
    }
}

/// Completes the files that hold no bytes, makes names durable, and reports the files that were not completed.
fn settle(targets: Vec<Target<'_>>) -> Result<Unpacked> {
    let (mut damaged, mut blocked) = (Vec::new(), Vec::new());
    let mut unpacked = Unpacked { files: 0, bytes: 0 };
    let mut folders = HashSet::new();
    for target in targets {
        if target.entry.size == 0 {
            target.take(&[], &[], Assembly::Memory)?;
        }
        match target.state.into_inner().unwrap_or_else(PoisonError::into_inner) {
            State::Done => {
                unpacked.files += 1;
                unpacked.bytes += target.entry.size;
                folders.insert(folder_of(&target.path).to_owned());
            }
            State::Blocked => blocked.push(target.entry.name.clone()),
            State::Damaged => damaged.push(target.entry.name.clone()),
            State::Waiting | State::Memory(..) | State::Disk(..) => {
                unreachable!("all blocks of '{}' were delivered, or found damaged", target.entry.name)
            }
        }
    }
    folders.iter().try_for_each(|folder| sync_folder(folder))?;
    let Unpacked { files: intact, bytes } = unpacked;
    if damaged.is_empty() && blocked.is_empty() {
        Ok(unpacked)
    } else {
        Err(AggregateError::Incomplete { damaged, blocked, intact, bytes })
    }
}

/// Whether a folder stands there, which no file replaces.
fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// A name as a path below a folder, never above or beside it.
pub(super) fn safe(name: &str) -> Result<PathBuf> {
    let path = PathBuf::from(name_of_text(name));
    let inside = !name.is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)));
    if inside {
        Ok(path)
    } else {
        Err(AggregateError::Invalid(format!("the name '{name}' would leave the folder")))
    }
}

impl Target<'_> {
    /// Nothing more is made of it.
    fn end(&self, end: State) {
        *self.state() = end;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes pieces of a block; the last ones complete the file.
    fn take(&self, block: &[u8], pieces: &[BlockSlice], assembly: Assembly) -> Result<()> {
        let mut state = self.state();
        if matches!(*state, State::Waiting) {
            *state = self.begin(assembly)?;
        }
        let missing = match &mut *state {
            State::Memory(bytes, missing) => {
                copy(bytes, block, pieces);
                missing
            }
            State::Disk(file, missing) => {
                write(file, block, pieces)?;
                missing
            }
            State::Waiting | State::Done | State::Damaged | State::Blocked => return Ok(()),
        };
        let arrived = pieces.iter().map(|piece| piece.file.length).sum::<u64>();
        assert!(arrived <= *missing, "no byte of a file comes from two pieces");
        *missing -= arrived;
        if *missing > 0 {
            return Ok(());
        }
        match std::mem::replace(&mut *state, State::Done) {
            State::Memory(bytes, _) => {
                self.write(&bytes)?;
                scratch::give_back(bytes);
                Ok(())
            }
            State::Disk(file, _) => file.finish_as(self.entry, self.owner),
            _ => Ok(()),
        }
    }

    fn begin(&self, assembly: Assembly) -> Result<State> {
        let size = self.entry.size;
        if matches!(assembly, Assembly::Memory) {
            return Ok(State::Memory(scratch::filled(to_usize(size)), size));
        }
        let mut file = NewFile::start(&self.path, PRIVATE)?;
        if matches!(assembly, Assembly::ClosedFiles) {
            file.close();
        }
        Ok(State::Disk(file, size))
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        let file = NewFile::start(&self.path, PRIVATE)?;
        file.write_around_zeros(bytes, 0)?;
        file.finish_as(self.entry, self.owner)
    }
}

/// Permissions of a file until it gets its own.
const PRIVATE: u32 = 0o600;

/// Writes pieces of a block to where they belong in a file.
fn write(file: &NewFile, block: &[u8], pieces: &[BlockSlice]) -> Result<()> {
    pieces.iter().try_for_each(|piece| {
        file.write_around_zeros(slice(block, piece.start, piece.file.length), piece.file.offset)
    })
}

/// Copies pieces of a block to where they belong in the bytes of a file.
fn copy(bytes: &mut [u8], block: &[u8], pieces: &[BlockSlice]) {
    for piece in pieces {
        let target = to_usize(piece.file.offset)..to_usize(piece.file.end());
        part_mut(bytes, target).copy_from_slice(slice(block, piece.start, piece.file.length));
    }
}
