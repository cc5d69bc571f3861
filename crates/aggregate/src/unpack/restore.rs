//! Giving files back, in parallel.
//!
//! Relies on [`Container`]. The idea: threads take blocks, not files, so every block is decoded once however many files
//! it serves; sets in many small pieces are put together in memory where that fits, all others are written at offsets. A
//! file with a damaged part, or with a folder in its place, is not written, and every other one is. Blocks that no wanted
//! file needs are not read; blocks of zeros become holes.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stdchk_formats::Extent;
use stdchk_model::exact::{part, part_mut, to_usize};

use super::map::{BlockSlice, covers};
use super::{Container, slice};
use crate::at_work::AtWork;
use crate::codec::scratch;
use crate::container::{FileEntry, Owner};
use crate::error::{AggregateError, Result};
use crate::limits::{BUDGET_DEFAULT, BUDGET_MIN, BUFFERS_PER_BLOCK, OPEN_MAX, RECIPES_MAX};
use crate::name::name_of_text;
use crate::new_file::{NewFile, become_as, folder_of, sync_folder};
use crate::pack::Watch;
use crate::parallel::in_parallel;
use crate::source::scaled;
use crate::unfold::{Unfolded, Unit};

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
    /// Bytes of what the container has of it, those of them that blocks hold, and whether it is the unfolded form.
    held_bytes: u64,
    data_bytes: u64,
    is_unfolded: bool,
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
    /// All of its unfolded form has arrived.
    Unfolded(Arrived),
    /// Whole, but not made durable yet.
    Written(NewFile),
    Done,
    Damaged,
    /// Something else has its name, or that of its folder.
    Blocked,
}

/// Where the unfolded form of a file is put together.
enum Arrived {
    Memory(Vec<u8>),
    Disk(NewFile),
}

/// A file that has arrived unfolded.
struct Foldable {
    arrived: Arrived,
    recipes: Unfolded,
}

impl Arrived {
    fn append(&self, range: Extent, buffer: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::Memory(bytes) => {
                buffer.extend_from_slice(slice(bytes, range.offset, range.length));
                Ok(())
            }
            Self::Disk(file) => file.append_range(range.offset, to_usize(range.length), buffer),
        }
    }
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
        let total = targets.iter().fold(0_u64, |sum, target| sum.saturating_add(target.held_bytes));
        let pieces: usize =
            targets.iter().filter_map(|target| self.maps.get(target.file)).map(Vec::len).sum();
        let scattered = total / (pieces as u64).max(1) < PIECE_MIN;
        let assembly = match targets.len() {
            _ if scattered && total <= budget / 4 => Assembly::Memory,
            ..=OPEN_MAX => Assembly::OpenFiles,
            _ => Assembly::ClosedFiles,
        };
        for target in targets.iter().filter(|target| target.data_bytes == 0) {
            target.take(&[], &[], if target.held_bytes == 0 { Assembly::Memory } else { assembly })?;
        }
        let deliveries: Vec<_> = self.deliveries(&targets).into_iter().collect();
        in_parallel(&deliveries, self.threads(budget, options.threads), |_, (block, deliveries)| {
            self.deliver(*block, deliveries, &targets, assembly, options.watch)
        })?;
        self.fold_all(&targets, options)?;
        sync_written(&targets)?;
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
        let mut targets: Vec<Target<'_>> = Vec::new();
        for (file, (entry, map)) in self.files.files.iter().zip(&self.maps).enumerate() {
            if !names.is_empty() && !wanted.contains(&file) {
                continue;
            }
            let path = folder.join(safe(&entry.name)?);
            if !paths.insert(path.clone()) {
                return Err(AggregateError::Invalid(format!("two files are called '{}'", entry.name)));
            }
            let (held_bytes, is_unfolded) = (self.held_bytes(file), self.is_unfolded(file));
            let data_bytes = self.data_bytes(file);
            let state = if covers(map, data_bytes) { State::Waiting } else { State::Damaged };
            let owner = self.files.owners.get(&file).copied();
            let state = Mutex::new(state);
            targets.push(Target { file, entry, held_bytes, data_bytes, is_unfolded, owner, path, state });
        }
        fs::create_dir_all(folder).map_err(AggregateError::io("create", folder))?;
        let folders: HashSet<&Path> = targets.iter().map(Target::folder).collect();
        let mut blocked = HashSet::new();
        for folder in folders {
            match fs::create_dir_all(folder) {
                Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotADirectory) => {
                    blocked.insert(folder.to_owned());
                }
                other => other.map_err(AggregateError::io("create", folder))?,
            }
        }
        let has_place = |target: &Target<'_>| {
            let taken = is_folder(&target.path) && !target.entry.is_folder();
            !blocked.contains(target.folder()) && !taken
        };
        targets.iter().filter(|target| !has_place(target)).for_each(|target| target.end(State::Blocked));
        Ok(targets)
    }

    /// Folds the files that have arrived unfolded: several at one time, or the streams of one by several threads.
    fn fold_all(&self, targets: &[Target<'_>], options: &Unpacking<'_>) -> Result<()> {
        let arrived: Vec<&Target<'_>> =
            targets.iter().filter(|target| matches!(*target.state(), State::Unfolded(_))).collect();
        let read = arrived.into_iter().map(|target| Ok((target, self.take_arrived(target)?)));
        let read: Vec<_> = read.collect::<Result<_>>()?;
        let foldable: Vec<(&Target<'_>, Foldable)> =
            read.into_iter().filter_map(|(target, foldable)| Some((target, foldable?))).collect();
        let longest = foldable.iter().map(|(_, foldable)| foldable.recipes.longest()).fold(0, u64::max);
        let threads = self.folding_threads(longest, options.budget(), options.threads);
        let at_once = threads.min(foldable.len()).max(1);
        let threads_of_each = threads / at_once;
        in_parallel(&foldable, at_once, |_, (target, foldable)| {
            self.fold(target, foldable, threads_of_each, options.watch)
        })?;
        Ok(())
    }

    /// The unfolded form of a file that has arrived, and its recipes; none, and the file is damaged, where these can't be read.
    fn take_arrived(&self, target: &Target<'_>) -> Result<Option<Foldable>> {
        let State::Unfolded(arrived) = std::mem::replace(&mut *target.state(), State::Damaged) else {
            unreachable!("only files that have arrived unfolded are folded")
        };
        let Some(entry) = self.files.unfolded.get(&target.file) else { return Ok(None) };
        let plain = entry.size.checked_sub(entry.recipes).filter(|_| entry.recipes <= RECIPES_MAX);
        let Some(offset) = plain else { return Ok(None) };
        let mut recipes = Vec::new();
        arrived.append(Extent { offset, length: entry.recipes }, &mut recipes)?;
        let recipes = self.recipes_in(target.file, *entry, &recipes).ok();
        Ok(recipes.map(|recipes| Foldable { arrived, recipes }))
    }

    /// Folds a file; one whose streams aren't made again stays damaged.
    fn fold(&self, target: &Target<'_>, foldable: &Foldable, threads: usize, watch: Watch<'_>) -> Result<()> {
        let Foldable { arrived, recipes } = foldable;
        let folded = NewFile::start(&target.path, PRIVATE)?;
        let units: Vec<Unit> = recipes.units().collect();
        let read = |range, buffer: &mut Vec<u8>| arrived.append(range, buffer);
        let made = in_parallel(&units, threads, |_, unit| {
            let mut write = |offset, bytes: &[u8]| folded.write_around_zeros(bytes, offset);
            let made = match self.fold_unit(target.file, recipes, unit, &read, &mut write) {
                Err(AggregateError::Damaged { .. }) => false,
                other => other.map(|()| true)?,
            };
            if watch(0) { Ok(made) } else { Err(AggregateError::Stopped) }
        })?;
        if made.contains(&false) {
            return Ok(());
        }
        let written = target.written(folded)?;
        target.end(written);
        Ok(())
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
            let arrived = pieces.iter().map(|piece| piece.file.length).sum();
            if !watch(scaled(arrived, target.entry.size, target.data_bytes)) {
                return Err(AggregateError::Stopped);
            }
        }
        decoded.into_iter().for_each(scratch::give_back);
        Ok(())
    }
}

/// Files that are made durable at one time: each waits for the disk, which takes what several threads wait for together.
const SYNCED_AT_ONCE: usize = 8;

/// Makes the small files durable, and lets them appear. One after the other, each would wait for the disk by itself.
fn sync_written(targets: &[Target<'_>]) -> Result<()> {
    let written: Vec<&Target<'_>> =
        targets.iter().filter(|target| matches!(*target.state(), State::Written(_))).collect();
    in_parallel(&written, SYNCED_AT_ONCE, |_, target| {
        let mut state = target.state();
        let State::Written(file) = std::mem::replace(&mut *state, State::Done) else {
            unreachable!("only files that were written are made durable")
        };
        file.finish()
    })?;
    Ok(())
}

/// Completes the files that hold no bytes, makes names durable, and reports the files that were not completed.
fn settle(targets: Vec<Target<'_>>) -> Result<Unpacked> {
    let (mut damaged, mut blocked) = (Vec::new(), Vec::new());
    let mut unpacked = Unpacked { files: 0, bytes: 0 };
    let mut folders = HashSet::new();
    for target in targets {
        let is_folder = target.entry.is_folder();
        match target.state.into_inner().unwrap_or_else(PoisonError::into_inner) {
            State::Done if is_folder => {
                // Its permissions may not let anything be made in it, so they come last.
                become_folder(&target.path, target.entry)?;
                folders.insert(folder_of(&target.path).to_owned());
            }
            State::Done => {
                unpacked.files += 1;
                unpacked.bytes += target.entry.size;
                folders.insert(folder_of(&target.path).to_owned());
            }
            State::Blocked => blocked.push(target.entry.name.clone()),
            State::Damaged => damaged.push(target.entry.name.clone()),
            State::Waiting | State::Memory(..) | State::Disk(..) | State::Unfolded(_) | State::Written(_) => {
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

/// Gives an empty folder its permissions and time of modification.
fn become_folder(path: &Path, entry: &FileEntry) -> Result<()> {
    let folder = File::open(path).map_err(AggregateError::io("open", path))?;
    become_as(&folder, entry, None).map_err(AggregateError::io("write", path))
}

impl Target<'_> {
    /// The folder that must be there: itself, if it is one.
    fn folder(&self) -> &Path {
        if self.entry.is_folder() { &self.path } else { folder_of(&self.path) }
    }

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
        if self.entry.is_folder() {
            if matches!(*state, State::Waiting) {
                *state = State::Done;
            }
            return Ok(());
        }
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
            State::Waiting
            | State::Unfolded(_)
            | State::Written(_)
            | State::Done
            | State::Damaged
            | State::Blocked => return Ok(()),
        };
        let arrived = pieces.iter().map(|piece| piece.file.length).sum::<u64>();
        assert!(arrived <= *missing, "no byte of a file comes from two pieces");
        *missing -= arrived;
        if *missing > 0 {
            return Ok(());
        }
        match std::mem::replace(&mut *state, State::Done) {
            State::Memory(bytes, _) if self.is_unfolded => {
                *state = State::Unfolded(Arrived::Memory(bytes));
                Ok(())
            }
            State::Disk(file, _) if self.is_unfolded => {
                file.set_length(self.held_bytes)?;
                *state = State::Unfolded(Arrived::Disk(file));
                Ok(())
            }
            State::Memory(bytes, _) => {
                let file = NewFile::start(&self.path, PRIVATE)?;
                file.write_around_zeros(&bytes, 0)?;
                scratch::give_back(bytes);
                *state = self.written(file)?;
                Ok(())
            }
            State::Disk(file, _) => {
                *state = self.written(file)?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn begin(&self, assembly: Assembly) -> Result<State> {
        let size = self.held_bytes;
        if matches!(assembly, Assembly::Memory) {
            // Holes get no bytes, and are zeros.
            let has_holes = self.data_bytes < size;
            let bytes = if has_holes { vec![0; to_usize(size)] } else { scratch::filled(to_usize(size)) };
            return Ok(State::Memory(bytes, self.data_bytes));
        }
        let mut file = NewFile::start(&self.path, PRIVATE)?;
        if matches!(assembly, Assembly::ClosedFiles) {
            file.close();
        }
        Ok(State::Disk(file, self.data_bytes))
    }

    /// Ends the writing of a whole file. A small one is made durable together with others.
    fn written(&self, mut file: NewFile) -> Result<State> {
        // It is opened again to be made durable.
        let readable = self.entry.mode & 0o400 != 0;
        if self.entry.size > SMALL_MAX || !readable {
            file.finish_as(self.entry, self.owner)?;
            return Ok(State::Done);
        }
        file.becomes(self.entry, self.owner)?;
        file.close();
        Ok(State::Written(file))
    }
}

/// Longest file, in bytes, that is made durable together with others: a longer one takes the disk longer than the wait for it.
const SMALL_MAX: u64 = 1 << 20;

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
