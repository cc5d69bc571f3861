//! One file of the spool: what was written to a file of the pool, at its own offsets, above what lies below.
//!
//! The image is sparse: it holds the ranges that were written and nothing else. It says how much of what lies below still
//! counts, which truncation lowers, and how large the file is with it.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use stdchk_net::own::{self, Access, Folder};

use super::Budget;
use super::ranges::Ranges;

/// What an image says of the file besides its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(super) ranges: Ranges,
    /// Bytes of what lies below that still count.
    pub(super) limit: u64,
    /// Size of the file with this image.
    pub(super) size: u64,
}

/// An image.
#[derive(Debug)]
pub(crate) struct Image {
    file: File,
    /// Where it is, if it is to outlive the process; removed when done with.
    path: Option<PathBuf>,
    shape: Mutex<Shape>,
    /// The disk failed to take what was written: it says so once, and reads as something else from then on.
    is_lost: AtomicBool,
    budget: Arc<Budget>,
}

impl Image {
    /// An empty image above something of `size` bytes; `named`: it stays if the process dies.
    ///
    /// # Errors
    /// `StorageFull` if the spool may not have more images open; no file can be made.
    pub(super) fn create(
        (folder, name): (&Folder, &str),
        (size, limit): (u64, u64),
        named: bool,
        budget: &Arc<Budget>,
    ) -> io::Result<Self> {
        if !budget.take_image() {
            return Err(io::Error::new(ErrorKind::StorageFull, "the spool has as many files open as it may"));
        }
        let made = || -> io::Result<File> {
            // Whose file it is, the pool knows; here nobody else may read it.
            let file = folder.file(name, Access::MakeNew)?;
            if !named {
                folder.remove(name)?;
            }
            Ok(file)
        };
        let file = made().inspect_err(|_| budget.give_image())?;
        let shape = Shape { ranges: Ranges::default(), limit: limit.min(size), size };
        Ok(Self::of(file, named.then(|| folder.path().join(name)), shape, budget))
    }

    /// An image that an earlier process left.
    pub(super) fn open(path: PathBuf, shape: Shape, budget: &Arc<Budget>) -> io::Result<Self> {
        let file = own::file(&path, Access::Write)?;
        budget.force(shape.ranges.bytes());
        budget.force_image();
        Ok(Self::of(file, Some(path), shape, budget))
    }

    fn of(file: File, path: Option<PathBuf>, shape: Shape, budget: &Arc<Budget>) -> Self {
        let is_lost = AtomicBool::new(false);
        Self { file, path, shape: Mutex::new(shape), is_lost, budget: Arc::clone(budget) }
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// `StorageFull` if the spool may not take more, or its disk has no more: then nothing new counts as written.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let range = offset..offset + data.len() as u64;
        let more = self.shape.lock().ranges.missing(&range);
        if !self.budget.take(more) {
            return Err(io::Error::new(ErrorKind::StorageFull, "the spool holds as much as it may"));
        }
        let written = self.file.write_all_at(data, offset);
        let mut shape = self.shape.lock();
        if written.is_ok() {
            // Another write may have covered a part of it meanwhile.
            let more_now = shape.ranges.missing(&range);
            self.budget.give(more.saturating_sub(more_now));
            self.budget.force(more_now.saturating_sub(more));
            shape.ranges.add(range.clone());
            shape.size = shape.size.max(range.end);
        } else {
            self.budget.give(more);
        }
        written
    }

    /// Sets the size of the file.
    pub(crate) fn truncate(&self, size: u64) -> io::Result<()> {
        let mut shape = self.shape.lock();
        if size < shape.size {
            // What comes back when the file grows again is zeros.
            if self.file.metadata()?.len() > size {
                self.file.set_len(size)?;
            }
            let before = shape.ranges.bytes();
            shape.ranges.cut(size);
            self.budget.give(before - shape.ranges.bytes());
            shape.limit = shape.limit.min(size);
        }
        shape.size = size;
        Ok(())
    }

    /// The parts of `range` that this image holds.
    pub(crate) fn held(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.shape.lock().ranges.within(range).collect()
    }

    /// The first range behind `offset` that this image holds.
    pub(crate) fn data_at(&self, offset: u64) -> Option<Range<u64>> {
        self.shape.lock().ranges.within(offset..u64::MAX).next()
    }

    /// Fills `place` with the bytes at `offset`, which the image holds. Bytes that a crash cut off are zeros.
    pub(crate) fn read(&self, offset: u64, place: &mut [u8]) -> io::Result<()> {
        let mut at = 0;
        while let Some(rest) = place.get_mut(at..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset + at as u64) {
                Ok(0) => {
                    rest.fill(0);
                    return Ok(());
                }
                Ok(length) => at += length,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes what was written durable on the local disk. Once that failed, it always does, and no later process finds its file.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if let Err(error) = self.file.sync_data() {
            if !self.is_lost.swap(true, Ordering::AcqRel) {
                self.remove();
            }
            return Err(error);
        }
        match self.is_lost() {
            false => Ok(()),
            true => Err(io::Error::other("the local disk failed to take what was written before")),
        }
    }

    /// Syncs it, a few images of the spool at a time.
    pub(crate) async fn sync_in_turn(self: Arc<Self>) -> io::Result<()> {
        let budget = Arc::clone(&self.budget);
        let _turn = budget.syncs.acquire().await;
        stdchk_net::elsewhere(move || self.sync()).await.map_err(io::Error::other)?
    }

    /// Whether its file ends before what it holds.
    pub(super) fn was_cut_short(&self) -> bool {
        let end = self.shape.lock().ranges.iter().last().map_or(0, |range| range.end);
        self.file.metadata().is_ok_and(|about| about.len() < end)
    }

    /// Whether the local disk failed to take what was written.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// What it holds now.
    pub(crate) fn shape(&self) -> Shape {
        self.shape.lock().clone()
    }

    /// Size of the file with this image, bytes.
    pub(crate) fn size(&self) -> u64 {
        self.shape.lock().size
    }

    /// Bytes of what lies below that still count.
    pub(crate) fn limit(&self) -> u64 {
        self.shape.lock().limit
    }

    /// All ranges that it holds.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        self.shape.lock().ranges.iter().collect()
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.shape.lock().ranges.bytes()
    }

    /// Whether nothing below shows through.
    pub(crate) fn hides_all_below(&self) -> bool {
        let shape = self.shape.lock();
        let below = 0..shape.limit.min(shape.size);
        shape.ranges.missing(&below) == 0
    }

    /// Removes its file. Whoever still reads it can go on.
    pub(crate) fn remove(&self) {
        if let Some(path) = &self.path
            && let Err(error) = std::fs::remove_file(path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "a file of the spool that is done with stays");
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.budget.give(self.shape.get_mut().ranges.bytes());
        self.budget.give_image();
    }
}
