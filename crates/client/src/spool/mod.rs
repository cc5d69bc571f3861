//! The spool: files on the local disk that hold what was written and is not at the pool yet (paper, section IV.B).
//!
//! One directory for one mount. A complete local write keeps one image of each file until its version is committed,
//! beside a record from which another process can push it; an incremental write goes through images that vanish with the
//! process. The spool takes no more than it may, all images together.

mod image;
mod ranges;
mod record;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};
use stdchk_model::message::handshake::Role;
use stdchk_model::{ErrorCode, Failure, SessionId};
use stdchk_net::DataDir;
use tokio::sync::Semaphore;

pub(crate) use image::Image;
pub(crate) use record::{Record, Told};

use crate::pool::Pool;

/// Extensions of the spool's files.
const IMAGE: &str = "image";
const RECORD: &str = "record";
/// Images that are synced at a time while they are pushed: what else waits for the local disk has its turn.
const SYNCS_MAX: usize = 4;
/// Smallest spool, bytes: below it a file of some size never fits.
pub const SPOOL_BYTES_MIN: u64 = 16 << 20;
/// Changes with each boot of the machine.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// What the spool may take, and takes: bytes, and descriptors of the process.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes_max: u64,
    taken: AtomicU64,
    images_max: u64,
    images: AtomicU64,
    /// It takes nothing more: what it holds goes with the machine.
    is_closed: AtomicBool,
    syncs: Semaphore,
}

impl Budget {
    fn new(bytes_max: u64) -> Self {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        // A close that is noted needs a descriptor, so do connections: images leave them as many as they take.
        let images_max = descriptors / 2;
        let (taken, images, is_closed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        Self { bytes_max, taken, images_max, images, is_closed, syncs: Semaphore::new(SYNCS_MAX) }
    }

    /// Takes a descriptor, as long as one image more may be open.
    fn take_image(&self) -> bool {
        if self.is_closed.load(Ordering::Acquire) {
            return false;
        }
        let more = |images| (images < self.images_max).then_some(images + 1);
        self.images.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Takes a descriptor, whatever the limit.
    fn force_image(&self) {
        self.images.fetch_add(1, Ordering::AcqRel);
    }

    fn give_image(&self) {
        let images = self.images.fetch_sub(1, Ordering::AcqRel);
        assert!(images > 0, "an image that is given back was taken");
    }

    fn take(&self, bytes: u64) -> bool {
        if bytes > 0 && self.is_closed.load(Ordering::Acquire) {
            return false;
        }
        let more =
            |taken: u64| taken.checked_add(bytes).filter(|taken| bytes == 0 || *taken <= self.bytes_max);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Takes what is there already, whatever the limit.
    fn force(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::AcqRel);
    }

    fn give(&self, bytes: u64) {
        let taken = self.taken.fetch_sub(bytes, Ordering::AcqRel);
        assert!(taken >= bytes, "what is given back was taken");
    }
}

/// A spool, held by this process.
#[derive(Debug)]
pub struct Spool {
    directory: DataDir,
    budget: Arc<Budget>,
    boot: String,
    numbered: AtomicU64,
}

/// A file that an earlier process left in the spool.
pub(crate) struct Left {
    /// Under which the spool knows it.
    pub(crate) id: SessionId,
    pub(crate) record: Record,
    /// `None`: the machine went down before it was synced, or its image is gone; it is lost.
    pub(crate) image: Option<Arc<Image>>,
}

impl Spool {
    /// Takes the directory for this process, makes it if it isn't there; it holds at most `bytes_max` bytes.
    ///
    /// # Errors
    /// It can't be used, belongs to another pool, or is too small.
    pub async fn open(path: &Path, bytes_max: u64, pool: &Pool) -> Result<Arc<Self>, Failure> {
        let boot = fs::read_to_string(BOOT).map_err(|error| failed("reading", Path::new(BOOT), &error))?;
        Self::open_in_boot(path, bytes_max, pool, boot.trim().to_owned()).await
    }

    /// Opens the spool as [`Spool::open`] does, in a given boot of the machine.
    ///
    /// # Errors
    /// Those of [`Spool::open`].
    pub async fn open_in_boot(
        path: &Path,
        bytes_max: u64,
        pool: &Pool,
        boot: String,
    ) -> Result<Arc<Self>, Failure> {
        if bytes_max < SPOOL_BYTES_MIN {
            let least = stdchk_model::size::exact(SPOOL_BYTES_MIN);
            return Err(Failure::new(ErrorCode::Invalid, format!("a spool has at least {least}")));
        }
        let unusable = |error: stdchk_net::DataDirError| Failure::new(ErrorCode::Invalid, error.to_string());
        let mut directory = DataDir::open(path, Role::Client).map_err(unusable)?;
        if let Some(id) = pool.id() {
            directory.claim(id, None).map_err(unusable)?;
        }
        let budget = Arc::new(Budget::new(bytes_max));
        Ok(Arc::new(Self { directory, budget, boot, numbered: AtomicU64::new(0) }))
    }

    /// From now on it takes nothing more, as if it was full, or takes files again.
    pub fn close_for_new(&self, is_closed: bool) {
        self.budget.is_closed.store(is_closed, Ordering::Release);
    }

    fn path(&self, id: SessionId, extension: &str) -> PathBuf {
        self.directory.path().join(format!("{id}.{extension}"))
    }

    /// An image that outlives the process, known by `id`.
    pub(crate) fn lasting(&self, id: SessionId, size: u64) -> io::Result<Image> {
        Image::create(&self.path(id, IMAGE), size, true, &self.budget)
    }

    /// An image that vanishes with the process.
    pub(crate) fn passing(&self, size: u64) -> io::Result<Image> {
        let number = self.numbered.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.path().join(format!("{number}.{IMAGE}"));
        Image::create(&path, size, false, &self.budget)
    }

    /// Notes what is in an image and what the application was told of it.
    pub(crate) fn note(&self, id: SessionId, told: &Told, image: &Image) -> io::Result<()> {
        Record::new(told, &image.shape(), &self.boot).write(&self.path(id, RECORD))
    }

    /// A file is pushed, or given up: its record goes, then its image.
    pub(crate) fn done(&self, id: SessionId, image: Option<&Image>) {
        match fs::remove_file(self.path(id, RECORD)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%id, %error, "a record of the spool that is done with stays");
            }
            _ => {}
        }
        if let Some(image) = image {
            image.remove();
        }
    }

    /// What an earlier process left. What no application was promised is removed.
    pub(crate) fn left(&self) -> Result<Vec<Left>, Failure> {
        let directory = self.directory.path();
        let list = || -> io::Result<Vec<PathBuf>> {
            fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect()
        };
        let paths = list().map_err(|error| failed("listing", directory, &error))?;
        let (records, others): (Vec<_>, Vec<_>) =
            paths.into_iter().partition(|path| path.extension().is_some_and(|extension| extension == RECORD));
        for path in others.iter().filter(|path| is_unpromised(path)) {
            let _ = fs::remove_file(path);
        }
        let left = |path: &PathBuf| {
            let left = self.left_by(path);
            left.inspect_err(
                |error| tracing::error!(path = %path.display(), %error, "a file of the spool is left alone"),
            )
        };
        Ok(records.iter().flat_map(left).collect())
    }

    /// The file of a record. Nothing is decided of one that can't be read now: only an image that is gone is lost.
    fn left_by(&self, path: &Path) -> io::Result<Left> {
        let record = Record::read(path)?;
        let id = path.file_stem().and_then(OsStr::to_str).and_then(|id| id.parse().ok());
        let image = match Image::open(path.with_extension(IMAGE), record.shape(), &self.budget) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened?).filter(|_| record.holds(&self.boot)).map(Arc::new),
        };
        Ok(Left { id: id.ok_or(io::ErrorKind::InvalidFilename)?, record, image })
    }
}

/// Files of which no record tells, and records that were never finished.
fn is_unpromised(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    match extension {
        Some(IMAGE) => matches!(path.with_extension(RECORD).try_exists(), Ok(false)),
        Some("new") => path.file_stem().is_some_and(|stem| stem != "STDCHK"),
        _ => false,
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(ErrorCode::Unavailable, format!("{what} {}: {error}", path.display()))
}
