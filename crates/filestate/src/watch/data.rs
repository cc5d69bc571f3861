//! Before calls on open files: which old contents must be in the log before the kernel may overwrite them.
//!
//! A file's length is stated once per interval, before its first change. Only bytes below that length existed at the
//! checkpoint, so appending never saves anything, and neither does anything that is written to a file born in the
//! interval. What is overwritten is saved once per interval, in whole blocks, and where a file is being overwritten
//! all over, blocks are saved ahead: one large copy costs a fraction of many small ones.

use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Advice, Mode, OFlags, Stat};
use rustix::io::{Errno, ReadWriteFlags};

use super::known::{BLOCK_BYTES, Blocks, REGION_BYTES};
use super::table::Free;
use super::{Decision, Next, PhysicalFile, State, Watch};
use crate::clones;
use crate::control::own_pid;
use crate::locks;
use crate::mapped::{self, save_range, size_record};
use crate::reach::{Lifting, link_to};
use crate::record::{Inode, Record, RelativePath};

/// The path of a file that has none in the tree.
const OUTSIDE_TREE: &[u8] = b"";

/// The most that is saved ahead, in blocks, at one change. A region's first saves are as large as what it has saved
/// before, so a change here and there saves no more than it must, and a region is saved whole by 20 changes.
const AHEAD_BLOCKS_MAX: u64 = 16;

/// Blocks are shared from this length on: a kept file costs more than a few blocks to copy.
const SHARED_BYTES_MIN: u64 = 64 * 1024;

/// Old contents that are not in memory are asked for in pieces so many times larger than what is saved: the next ones are on
/// their way while the program goes on.
const READ_AROUND: u64 = 8;

/// A change to an open file that is about to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// `length` bytes are written at the file offset (at the end, if the descriptor appends).
    Here {
        /// How many bytes.
        length: u64,
    },
    /// `length` bytes are written at `offset`.
    At {
        /// Where.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// The file is cut or extended to `size` bytes.
    Resize {
        /// The new length.
        size: u64,
    },
    /// Everything from `offset` on may move or change.
    From {
        /// Where the change begins.
        offset: u64,
    },
    /// Space is allocated for `length` bytes at `offset`, in holes or behind the end.
    Allocate {
        /// Where.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// Only the length or the times change.
    Touch,
}

impl Watch {
    /// Whether `change` to the file behind the watched descriptor `fd` is already known to destroy nothing: then it
    /// needs no decision. Takes no lock and allocates nothing, so that it is also right inside a signal handler. The
    /// caller must be inside a call ([`Control::enter`](crate::control::Control::enter)).
    #[inline]
    pub fn is_free(&self, fd: BorrowedFd<'_>, change: Change) -> bool {
        let (number, generation) = (fd.as_raw_fd(), self.control.generation());
        let asked = if matches!(change, Change::Here { .. }) { Free::Here } else { Free::All };
        self.table.is_free(number, generation, asked) || self.is_saved(fd, generation, change)
    }

    fn is_saved(&self, fd: BorrowedFd<'_>, generation: u64, change: Change) -> bool {
        let Some(inode) = self.table.inode(fd.as_raw_fd()).filter(|inode| inode.0 != 0) else { return false };
        let overwrites = matches!(change, Change::Here { .. } | Change::At { .. });
        overwrites && destroyed(fd, change).is_ok_and(|range| self.known.covers(inode, generation, &range))
    }

    /// States what `change` to the file behind the watched descriptor `fd` will destroy.
    pub fn before(&self, fd: BorrowedFd<'_>, change: Change) -> Next<'_> {
        self.stating(|| self.state_change(fd, change))
    }

    fn state_change(&self, fd: BorrowedFd<'_>, change: Change) -> Decision<()> {
        let number = fd.as_raw_fd();
        let mut state = self.state();
        let State { generation, files, descriptors, buffer, .. } = &mut *state;
        let Some(descriptor) = descriptors.get(&number).copied() else { return Ok(()) };
        let file = files.entry(descriptor.inode).or_default();
        if !self.has_something_to_lose(file, fd)? {
            self.table.set_free(number, *generation, Free::All);
            return Ok(());
        }
        if descriptor.append && matches!(change, Change::Here { .. }) {
            self.table.set_free(number, *generation, Free::Here);
            return Ok(());
        }
        let range = destroyed(fd, change)?;
        let readable = if descriptor.readable { Readable::Given(fd) } else { Readable::ToBeOpened(fd) };
        if let Change::Allocate { offset, length } = change {
            self.state_holes(file, fd, descriptor.inode, offset..offset.saturating_add(length))?;
        }
        let saving = Saving { inode: descriptor.inode, generation: *generation, buffer };
        self.save(file, readable, saving, range)?;
        if file.saved.covers(0..file.measured_size()) {
            // All that stood there at the checkpoint is in the log.
            self.table.set_free(number, *generation, Free::All);
        }
        Ok(())
    }

    /// States what `change` will destroy of a file that the program has not opened: `probe` is a descriptor without access.
    pub fn before_path(&self, probe: BorrowedFd<'_>, change: Change) -> Next<'_> {
        match rustix::fs::fstat(probe).and_then(|stat| Ok((stat, self.path_of(probe, &stat)?))) {
            Ok((stat, Some(_))) => self.stating(|| self.state_change_of_path(probe, &stat, change)),
            // Nothing of ours. A pipe, say, whose opening may wait for ever: nobody must wait for that.
            Ok((_, None)) => Next::CallReal(None),
            Err(cause) => Next::Fail(cause),
        }
    }

    fn state_change_of_path(&self, probe: BorrowedFd<'_>, stat: &Stat, change: Change) -> Decision<()> {
        let mut state = self.state();
        let State { generation, files, buffer, .. } = &mut *state;
        let inode = Inode(stat.st_ino);
        let file = files.entry(inode).or_default();
        if !self.has_something_to_lose(file, probe)? {
            return Ok(());
        }
        let saving = Saving { inode, generation: *generation, buffer };
        self.save(file, Readable::ToBeOpened(probe), saving, destroyed(probe, change)?)
    }

    /// Measures the file at its first change in this interval; false when it held nothing at the checkpoint.
    fn has_something_to_lose(&self, file: &mut PhysicalFile, fd: BorrowedFd<'_>) -> Decision<bool> {
        if file.born {
            return Ok(false);
        }
        if file.size.is_none() {
            let stat = rustix::fs::fstat(fd)?;
            self.store.log.append(&size_record(&stat, self.recorded_path(fd, &stat)?))?;
            file.size = Some(stat.st_size.cast_unsigned());
        }
        Ok(file.size != Some(0))
    }

    /// The path under which a file is recorded: [`OUTSIDE_TREE`] for one that has left the tree while it was open.
    fn recorded_path(&self, fd: BorrowedFd<'_>, stat: &Stat) -> Decision<RelativePath> {
        Ok(self.path_of(fd, stat)?.unwrap_or_else(|| OUTSIDE_TREE.to_vec()))
    }

    fn save(
        &self,
        file: &mut PhysicalFile,
        readable: Readable<'_>,
        saving: Saving<'_>,
        range: Range<u64>,
    ) -> Decision<()> {
        let needed = file.whole_blocks(&range);
        assert!(
            needed.is_empty() || needed.end <= file.measured_size(),
            "nothing is saved that was not there"
        );
        if !needed.is_empty() && !file.saved.covers(needed.clone()) {
            let readable = readable.open(self)?;
            self.share_region(file, readable.as_fd(), saving.inode, &needed)?;
            let wanted = self.with_blocks_ahead(file, &saving, needed);
            fetch_around(readable.as_fd(), &wanted);
            for gap in file.saved.gaps(wanted) {
                save_range(&self.store.log, readable.as_fd(), saving.inode, gap.clone(), saving.buffer)?;
                file.saved.insert(gap);
            }
        }
        self.make_known(file, &saving, &range);
        Ok(())
    }

    /// States which parts of `range` are holes: space that is allocated there is given back by a restore.
    fn state_holes(
        &self,
        file: &mut PhysicalFile,
        fd: BorrowedFd<'_>,
        inode: Inode,
        range: Range<u64>,
    ) -> Decision<()> {
        let range = range.start..range.end.min(file.measured_size());
        if range.is_empty() {
            return Ok(());
        }
        for gap in file.saved.gaps(range) {
            for hole in mapped::holes(fd, gap)? {
                let (offset, length) = (hole.start, hole.end - hole.start);
                self.store.log.append(&Record::Hole { inode, offset, length })?;
                file.saved.insert(hole);
            }
        }
        Ok(())
    }

    /// Where the file system shares blocks, keeps the regions around `needed` that way: that costs about as much as the copy of
    /// one block. The rest is copied to the log. A process that may write no long files keeps all regions that way, copied where
    /// blocks can't be shared: the kept file is no longer than the file itself, while the log grows.
    fn share_region(
        &self,
        file: &mut PhysicalFile,
        readable: BorrowedFd<'_>,
        inode: Inode,
        needed: &Range<u64>,
    ) -> Decision<()> {
        let limit = self.limit.unwrap_or(u64::MAX);
        let end = rounded_up(needed.end, REGION_BYTES).min(file.measured_size()).min(limit);
        let wanted = needed.start / REGION_BYTES * REGION_BYTES..end;
        let shares =
            (self.limit.is_some() || self.store.options.clones == Some(true)) && !self.store.options.synced;
        let least = if self.limit.is_some() { 1 } else { SHARED_BYTES_MIN };
        if !shares || wanted.end.saturating_sub(wanted.start) < least {
            return Ok(());
        }
        let kept = self.clone_of(file);
        for gap in file.saved.gaps(wanted) {
            let shared = clones::open_to_share(&self.store, &kept)
                .and_then(|clone| clones::share(readable, clone.as_fd(), gap.clone()));
            let Some(end) = shared.ok().filter(|end| *end > gap.start) else { return Ok(()) };
            let (offset, length) = (gap.start, end - gap.start);
            self.store.log.append(&Record::Cloned { inode, offset, length, kept: kept.clone() })?;
            file.saved.insert(gap.start..end);
        }
        Ok(())
    }

    /// The kept file of this process that shares the blocks of `file`.
    fn clone_of(&self, file: &mut PhysicalFile) -> RelativePath {
        let own = own_pid();
        match &file.clone {
            Some((maker, kept)) if *maker == own => kept.clone(),
            _ => file.clone.insert((own, self.new_kept_name())).1.clone(),
        }
    }

    /// `needed`, with the blocks around it if much of its region has been overwritten already.
    fn with_blocks_ahead(&self, file: &PhysicalFile, saving: &Saving<'_>, needed: Range<u64>) -> Range<u64> {
        let region = needed.start / REGION_BYTES;
        let known = self.known.read(saving.inode, saving.generation, region);
        let known = known.unwrap_or_else(|| file.free_blocks(region));
        let saved = u64::from(known.count_before(region, file.measured_size()));
        let window = BLOCK_BYTES << saved.clamp(1, AHEAD_BLOCKS_MAX).ilog2();
        needed.start / window * window..rounded_up(needed.end, window).min(file.measured_size())
    }

    /// Lets calls see without a lock what is free around `range`.
    fn make_known(&self, file: &PhysicalFile, saving: &Saving<'_>, range: &Range<u64>) {
        let ends = [range.start / REGION_BYTES, range.end.saturating_sub(1).max(range.start) / REGION_BYTES];
        for region in ends.into_iter().take(if ends[0] == ends[1] { 1 } else { 2 }) {
            self.known.write(saving.inode, saving.generation, region, file.free_blocks(region));
        }
    }

    /// The file behind `fd` is being mapped shared and writable: its range is saved now and in every later interval.
    pub fn before_mapping(&self, fd: BorrowedFd<'_>, range: Range<u64>) -> Next<'_> {
        let change = Change::At { offset: range.start, length: range.end - range.start };
        self.stating(|| {
            self.state_change(fd, change)?;
            let stat = rustix::fs::fstat(fd)?;
            let path = self.recorded_path(fd, &stat)?;
            mapped::note(&self.store, Inode(stat.st_ino), &path, range)
        })
    }

    /// The file behind the new descriptor came into being with this call.
    pub fn born(&self, fd: BorrowedFd<'_>) {
        if let Ok(stat) = rustix::fs::fstat(fd) {
            self.state().set_born(Inode(stat.st_ino));
        }
    }

    /// The number of files known in this interval: for tests and reports.
    pub fn files_known(&self) -> usize {
        self.state().files.len()
    }
}

/// What saving needs to know beside the file.
struct Saving<'state> {
    inode: Inode,
    generation: u64,
    buffer: &'state mut Vec<u8>,
}

/// The next multiple of `unit`, or the highest offset where there is none: files end before that.
fn rounded_up(offset: u64, unit: u64) -> u64 {
    offset.checked_next_multiple_of(unit).unwrap_or(u64::MAX)
}

impl PhysicalFile {
    /// Bytes that the file had at the checkpoint. It is measured at its first change in the interval, before anything of it is
    /// saved.
    fn measured_size(&self) -> u64 {
        let Some(size) = self.size else { unreachable!("a file is measured before its contents are saved") };
        size
    }

    /// The blocks that `range` touches, as far as the file went.
    fn whole_blocks(&self, range: &Range<u64>) -> Range<u64> {
        let from = range.start / BLOCK_BYTES * BLOCK_BYTES;
        if range.is_empty() {
            from..from
        } else {
            from..rounded_up(range.end, BLOCK_BYTES).min(self.measured_size())
        }
    }

    /// The blocks of a region that hold nothing to lose any more: saved, or beyond the end.
    fn free_blocks(&self, region: u64) -> Blocks {
        let from = region * REGION_BYTES;
        let to = from.saturating_add(REGION_BYTES).min(self.measured_size());
        let gaps = if from < to { self.saved.gaps(from..to) } else { Vec::new() };
        Blocks::all_but(&gaps, region)
    }
}

impl State {
    pub(super) fn set_born(&mut self, inode: Inode) {
        self.files.insert(inode, PhysicalFile { born: true, ..PhysicalFile::default() });
    }

    pub(super) fn is_born(&self, inode: Inode) -> bool {
        self.files.get(&inode).is_some_and(|file| file.born)
    }

    pub(super) fn forget(&mut self, inode: Inode) {
        self.files.remove(&inode);
    }
}

/// The range of old contents that `change` may destroy.
fn destroyed(fd: BorrowedFd<'_>, change: Change) -> Decision<Range<u64>> {
    Ok(match change {
        Change::Here { length } => {
            let offset = rustix::fs::tell(fd)?;
            offset..offset.saturating_add(length)
        }
        Change::At { offset, length } => offset..offset.saturating_add(length),
        Change::Resize { size } => size..u64::MAX,
        Change::From { offset } => offset..u64::MAX,
        Change::Allocate { .. } | Change::Touch => 0..0,
    })
}

/// Has the kernel read more of the region around `range` if that is not in memory. It does not wait, and whatever comes of
/// it, the bytes are read when they are needed. A range as large as a region is read ahead by the kernel itself.
fn fetch_around(file: BorrowedFd<'_>, range: &Range<u64>) {
    let length = range.end - range.start;
    if length >= REGION_BYTES || is_in_memory(file, range.start) {
        return;
    }
    let window = (READ_AROUND * length).next_power_of_two().min(REGION_BYTES);
    let from = range.start / window * window;
    let _ = rustix::fs::fadvise(file, from, NonZeroU64::new(window), Advice::WillNeed);
}

fn is_in_memory(file: BorrowedFd<'_>, offset: u64) -> bool {
    let mut byte = [0];
    let looked = rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], offset, ReadWriteFlags::NOWAIT);
    looked != Err(Errno::AGAIN)
}

/// A descriptor that can read, or the way to one: the same file opened again.
enum Readable<'fd> {
    Given(BorrowedFd<'fd>),
    ToBeOpened(BorrowedFd<'fd>),
    Opened(Arc<OwnedFd>),
}

impl Readable<'_> {
    fn open(self, watch: &Watch) -> Decision<Self> {
        let Self::ToBeOpened(fd) = self else { return Ok(self) };
        let stat = rustix::fs::fstat(fd)?;
        locks::opened(&stat, || open_to_read(watch, fd)).map(Self::Opened)
    }
}

/// Opens the file behind `fd` for reading.
fn open_to_read(watch: &Watch, fd: BorrowedFd<'_>) -> Decision<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    match rustix::fs::open(link_to(fd.as_raw_fd()), flags, Mode::empty()) {
        // Its owner may write to it, but not read.
        Err(Errno::ACCESS) => {
            let lifting = Lifting::begin(&watch.store)?;
            // Stated, for this process may be killed before the mode is put back.
            watch.state_mode(fd)?;
            lifting.open(fd, flags, Mode::RUSR)
        }
        opened => opened,
    }
}

impl AsFd for Readable<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Given(fd) | Self::ToBeOpened(fd) => *fd,
            Self::Opened(fd) => fd.as_fd(),
        }
    }
}
