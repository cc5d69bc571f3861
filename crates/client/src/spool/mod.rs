//! The spool: files on the local disk that hold what was written and is not at the pool yet (paper, section IV.B).
//!
//! One directory for one mount. A complete local write keeps one image of each file until its version is committed,
//! beside a record from which another process can push it; an incremental write goes through images that vanish with the
//! process. The spool takes no more than it may, all images together.

mod image;
mod ranges;
mod record;

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};
use stdchk_model::message::handshake::Role;
use stdchk_model::{ErrorCode, Failure, Ino, SessionId};
use stdchk_net::DataDir;
use tokio::sync::Semaphore;

pub(crate) use image::{Image, Shape};
pub(crate) use record::{Record, Told};

use crate::pool::Pool;

/// Extensions of the spool's files.
const IMAGE: &str = "image";
const RECORD: &str = "record";
/// What the local disk says when a file must go another way.
pub(crate) const NO_ROOM: [io::ErrorKind; 3] =
    [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded, io::ErrorKind::FileTooLarge];
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

/// What waits in a spool to be pushed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Files that are closed or synced.
    pub files: u64,
    /// What the spool holds of them, bytes.
    pub bytes: u64,
}

/// A file that an earlier process left in the spool.
pub(crate) struct Left {
    /// Under which the spool knows it.
    pub(crate) name: Name,
    pub(crate) found: Found,
}

impl Left {
    /// Nothing of the file need be in the spool any more.
    pub(crate) fn done(&self, spool: &Spool) {
        let image = match &self.found {
            Found::Image(_, image) => Some(&**image),
            _ => None,
        };
        spool.done(self.name, image, self.found.record().is_some_and(|record| record.synced));
    }
}

/// What the spool has of such a file.
pub(crate) enum Found {
    /// All that was promised.
    Image(Record, Arc<Image>),
    /// The machine went down before it was synced, or its image is gone: it is lost. What its record says, if that was synced.
    Lost(Option<Record>),
    /// It can't be read now, for this reason.
    Unreadable(Failure),
}

impl Found {
    /// What its record says, if it could be read.
    pub(crate) fn record(&self) -> Option<&Record> {
        match self {
            Self::Image(record, _) => Some(record),
            Self::Lost(record) => record.as_ref(),
            Self::Unreadable(_) => None,
        }
    }
}

/// The name of a record: it tells whose file is lost if the record itself is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    /// The session that was to commit the file first.
    pub(crate) id: SessionId,
    pub(crate) ino: Ino,
}

impl Name {
    fn of(path: &Path) -> Option<Self> {
        let (id, ino) = path.file_stem()?.to_str()?.split_once('-')?;
        Some(Self { id: id.parse().ok()?, ino: Ino(ino.parse().ok()?) })
    }

    fn record(self) -> String {
        format!("{}-{}.{RECORD}", self.id, self.ino.0)
    }
}

/// The name of an image that outlives the process.
fn image_of(id: SessionId) -> String {
    format!("{id}.{IMAGE}")
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

    /// Whether a directory has files of a spool that wait to be pushed, or may have: it can't be looked into.
    pub fn has_files(directory: &Path) -> bool {
        match fs::read_dir(directory) {
            Ok(mut entries) => entries.any(|entry| entry.map_or(true, |entry| is_record(&entry.path()))),
            Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        }
    }

    /// What waits in a directory to be pushed, as far as it can be looked into. Of a record that can't be read the bytes aren't known.
    pub fn waiting(directory: &Path) -> Waiting {
        let mut waiting = Waiting::default();
        let Ok(entries) = fs::read_dir(directory) else { return waiting };
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| is_record(path)) {
            match Record::read(&path) {
                Ok(Some(record)) => waiting.bytes += record.shape().ranges.bytes(),
                // It was pushed in this moment.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Ok(None) | Err(_) => {}
            }
            waiting.files += 1;
        }
        waiting
    }

    fn image(&self, id: SessionId) -> PathBuf {
        self.directory.path().join(image_of(id))
    }

    /// An image that outlives the process, known by `id`, of a file of this size; so many bytes of what lies below it count.
    pub(crate) fn lasting(&self, id: SessionId, size: u64, limit: u64) -> io::Result<Image> {
        Image::create((self.directory.folder(), &image_of(id)), (size, limit), true, &self.budget)
    }

    /// An image that vanishes with the process.
    pub(crate) fn passing(&self, size: u64) -> io::Result<Image> {
        let number = self.numbered.fetch_add(1, Ordering::Relaxed);
        let name = format!("{number}.{IMAGE}");
        Image::create((self.directory.folder(), &name), (size, size), false, &self.budget)
    }

    /// Notes what is in an image and what the application was told of it.
    pub(crate) fn note(&self, id: SessionId, told: &Told, shape: &Shape) -> io::Result<()> {
        let name = Name { id, ino: told.ino }.record();
        Record::new(told, shape, &self.boot).write(self.directory.folder(), &name)
    }

    /// A file is pushed, or given up: its record goes, then its image. Of a `synced` record the machine may not bring back that it was there: it
    /// would be pushed above what is written later.
    pub(crate) fn done(&self, name: Name, image: Option<&Image>, synced: bool) {
        let directory = self.directory.path();
        let removed = fs::remove_file(directory.join(name.record())).and_then(|()| match synced {
            true => self.directory.folder().sync(),
            false => Ok(()),
        });
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(?name, %error, "a record of the spool that is done with stays, or may come back");
            }
            _ => {}
        }
        match image {
            Some(image) => image.remove(),
            // One of which nothing counts.
            None => drop(fs::remove_file(self.image(name.id))),
        }
    }

    /// What an earlier process left. What no application was promised is removed.
    pub(crate) fn left(&self) -> Result<Vec<Left>, Failure> {
        let directory = self.directory.path();
        let list = || -> io::Result<Vec<PathBuf>> {
            fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect()
        };
        let paths = list().map_err(|error| failed("listing", directory, &error))?;
        let (records, others): (Vec<_>, Vec<_>) = paths.into_iter().partition(|path| is_record(path));
        // Also by a record whose name this version doesn't understand.
        let promised: HashSet<PathBuf> = records.iter().filter_map(|path| promised_by(path)).collect();
        let named = |path: &PathBuf| match Name::of(path) {
            Some(name) => Some((name, path.clone())),
            None => {
                tracing::error!(path = %path.display(), "a file of the spool has a name that no file has, and is left alone");
                None
            }
        };
        let records: Vec<(Name, PathBuf)> = records.iter().filter_map(named).collect();
        for path in others.iter().filter(|path| is_ours(path) && !promised.contains(*path)) {
            let _ = fs::remove_file(path);
        }
        let left = |(name, path): &(Name, PathBuf)| Left { name: *name, found: self.found(*name, path) };
        Ok(records.iter().map(left).collect())
    }

    /// What there is of the file of a record. Nothing is decided of what can't be read now: only an image that is gone is lost, and a
    /// record that was being written when the machine went down.
    fn found(&self, name: Name, path: &Path) -> Found {
        let record = match Record::read(path) {
            Ok(Some(record)) => record,
            Ok(None) => return Found::Lost(None),
            Err(error) => return Found::Unreadable(failed("reading", path, &error)),
        };
        if !record.holds(&self.boot) {
            return Found::Lost(Some(record));
        }
        let image = self.image(name.id);
        match Image::open(image.clone(), record.shape(), &self.budget) {
            // The disk itself went down, and was mounted again.
            // What was cut by the application is of no closed record.
            Ok(image) if record.closed && image.was_cut_short() => Found::Lost(Some(record)),
            Ok(image) => Found::Image(record, Arc::new(image)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Lost(Some(record)),
            Err(error) => Found::Unreadable(failed("opening", &image, &error)),
        }
    }
}

fn is_record(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == RECORD)
}

/// The image that a record is of: its name begins as that of the record does, up to the file's number.
fn promised_by(record: &Path) -> Option<PathBuf> {
    let stem = record.file_stem()?.to_str()?;
    let id = stem.split_once('-').map_or(stem, |(id, _)| id);
    Some(record.with_file_name(id).with_extension(IMAGE))
}

/// Images, and records that were never finished.
fn is_ours(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    match extension {
        Some(IMAGE) => true,
        Some("new") => path.file_stem().is_some_and(|stem| stem != "STDCHK"),
        _ => false,
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(ErrorCode::Unavailable, format!("{what} {}: {error}", path.display()))
}
