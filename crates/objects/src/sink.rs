//! A place in an object store as a sink of the aggregator.
//!
//! Relies on [`crate::store`] and the trait [`Sink`]. The idea: a container is packed and compared with the raw files on a
//! local disk, where that needs no network; then it is uploaded and read back from the store, byte by byte, before it counts.
//! A store may show the name before it was read back, so that the aggregator compares once more whatever it didn't publish
//! itself before raw files go.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use stdchk_aggregate::{AggregateError, Named, Sink, Watch, in_parallel};
use stdchk_formats::Source;

use crate::error::{ObjectError, Trouble};
use crate::place::Place;
use crate::settings::Settings;
use crate::source::ObjectSource;
use crate::stop::stopped;
use crate::store::{AT_ONCE, Bucket, PART_BYTES, read_draft};

/// Held by the aggregator of this machine that works on the sink.
const LOCK: &str = "lock";

type Result<T> = std::result::Result<T, AggregateError>;

/// All objects directly below a place.
pub struct ObjectSink {
    bucket: Bucket,
    place: Place,
    scratch: Scratch,
}

impl ObjectSink {
    /// Opens a place as a sink, whose containers are packed below `scratch`; clears away what a killed aggregator left.
    ///
    /// # Errors
    /// The store can't be reached or refuses to list, the folder can't be used, or another aggregator works with both.
    pub fn open(place: &Place, settings: &Settings, scratch: &Path) -> Result<Self> {
        let bucket = Bucket::open(place, settings).map_err(about("reach", place))?;
        bucket.list(&place.prefix()).map_err(about("list", place))?;
        let sink = Self { bucket, place: place.clone(), scratch: Scratch::open(scratch, place)? };
        let begun = format!("{}step-", place.prefix());
        sink.bucket.abort_uploads(&begun).map_err(about("end uploads to", place))?;
        Ok(sink)
    }

    fn key(&self, name: &str) -> String {
        self.place.below(name).key
    }

    /// Compares an object with what it was made of, of which `ours` gives the bytes of a range.
    fn read_back(
        &self,
        name: &str,
        length: u64,
        ours: impl Fn(Range<u64>) -> std::result::Result<Bytes, ObjectError> + Sync,
        watch: Watch<'_>,
    ) -> std::result::Result<(), ObjectError> {
        let source = ObjectSource::of(self.bucket.clone(), &self.key(name))?;
        let differs = || ObjectError::new(Trouble::Damaged, "other bytes came back than were stored");
        if source.size() != length {
            return Err(differs());
        }
        let starts: Vec<u64> = (0..length.div_ceil(PART_BYTES)).map(|part| part * PART_BYTES).collect();
        in_parallel(&starts, AT_ONCE, |_, start| {
            if !watch(0) {
                return Err(stopped());
            }
            let range = *start..length.min(start + PART_BYTES);
            let given = self.bucket.read(&self.key(name), range.clone(), source.tag())?;
            if given == ours(range)? { Ok(()) } else { Err(differs()) }
        })?;
        Ok(())
    }

    /// Copies an object, and compares the copy.
    fn copy(&self, name: &str, other: &str) -> std::result::Result<(), ObjectError> {
        let from = self.key(name);
        let source = ObjectSource::of(self.bucket.clone(), &from)?;
        self.bucket.copy(&from, &self.key(other))?;
        let ours = |range| self.bucket.read(&from, range, source.tag());
        self.read_back(other, source.size(), ours, &|_| true)
    }

    /// Removes an object that turned out to be damaged: it would be found later, too.
    fn give_up(&self, name: &str, error: &ObjectError) {
        if error.trouble == Trouble::Damaged {
            let _ = self.bucket.remove(&self.key(name));
        }
    }
}

/// An error about a place, as the aggregator's.
pub(crate) fn about(action: &'static str, place: &Place) -> impl FnOnce(ObjectError) -> AggregateError {
    let path = PathBuf::from(place.to_string());
    move |error| match error.trouble {
        Trouble::Stopped => AggregateError::Stopped,
        _ => AggregateError::Io { action, path, source: error.into() },
    }
}

impl Sink for ObjectSink {
    fn names(&self) -> Result<Vec<Named>> {
        let prefix = self.place.prefix();
        let listed = self.bucket.list(&prefix).map_err(about("list", &self.place))?;
        let name = |key: &str| key.strip_prefix(&prefix).map(str::to_owned);
        Ok(listed
            .into_iter()
            .filter_map(|one| Some(Named { name: name(&one.key)?, stamp: one.stamp }))
            .collect())
    }

    fn open(&self, name: &str) -> Result<Box<dyn Source + Send + Sync>> {
        let source = ObjectSource::of(self.bucket.clone(), &self.key(name));
        Ok(Box::new(source.map_err(about("read", &self.place.below(name)))?))
    }

    fn draft(&self, name: &str) -> PathBuf {
        self.scratch.folder.join(name)
    }

    fn publish(&self, draft: &Path, name: &str, watch: Watch<'_>) -> Result<()> {
        let place = self.place.below(name);
        let file = File::open(draft).map_err(AggregateError::io("open", draft))?;
        let length = file.metadata().map_err(AggregateError::io("look at", draft))?.len();
        // However this ends, its bytes take no room any more then.
        fs::remove_file(draft).map_err(AggregateError::io("remove", draft))?;
        let sent = self.bucket.put(&place.key, &file, length, &|| watch(0));
        sent.map_err(about("upload", &place))?;
        let back = self.read_back(name, length, |range| read_draft(&file, range), watch);
        back.inspect_err(|error| self.give_up(name, error)).map_err(about("read back", &place))
    }

    fn keep_as(&self, name: &str, other: &str) -> Result<()> {
        let copied = self.copy(name, other).inspect_err(|error| self.give_up(other, error));
        copied.map_err(about("copy", &self.place.below(name)))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.bucket.remove(&self.key(name)).map_err(about("remove", &self.place.below(name)))
    }

    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn shown(&self, name: &str) -> String {
        self.place.below(name).to_string()
    }
}

/// The folder in which containers are packed before they are uploaded: one for a sink, so that what a killed aggregator
/// left is found and removed.
struct Scratch {
    folder: PathBuf,
    _lock: File,
}

impl Scratch {
    fn open(below: &Path, place: &Place) -> Result<Self> {
        fs::create_dir_all(below).map_err(AggregateError::io("create", below))?;
        let user = rustix::process::geteuid().as_raw();
        let name = blake3::hash(format!("{user} {place}").as_bytes()).to_hex();
        let folder = below.join(format!("stdchk-sink-{:.16}", name.as_str()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other.map_err(AggregateError::io("create", &folder))?,
        }
        // Anybody may make folders in places such as /tmp.
        let metadata = fs::symlink_metadata(&folder).map_err(AggregateError::io("look at", &folder))?;
        if !metadata.is_dir() || metadata.uid() != user {
            return Err(AggregateError::Invalid(format!("{} belongs to somebody else", folder.display())));
        }
        let path = folder.join(LOCK);
        let lock = File::create(&path).map_err(AggregateError::io("create", &path))?;
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            return Err(AggregateError::Invalid(format!("another aggregator works on {place}")));
        }
        let scratch = Self { folder, _lock: lock };
        scratch.clear()?;
        Ok(scratch)
    }

    fn clear(&self) -> Result<()> {
        let failed = |error| AggregateError::io("clear", &self.folder)(error);
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name() != LOCK {
                fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays is removed at the next start.
        let _ = self.clear();
    }
}
