//! A folder as a sink.
//!
//! Relies on the standard library. The idea: drafts have hidden names in the folder itself, so that a rename publishes them.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use stdchk_formats::Source;

use super::names::{is_container, is_draft};
use super::sink::{Named, Sink};
use crate::error::{AggregateError, Result};
use crate::new_file::sync_folder;
use crate::pack::Watch;
use crate::source::FileSource;

/// Held by the aggregator that works on the sink.
const LOCK: &str = ".aggregate.lock";

/// A folder of containers.
pub struct FolderSink {
    folder: PathBuf,
    _lock: File,
}

impl FolderSink {
    /// Makes the folder and clears away what a killed aggregator left half done there.
    ///
    /// # Errors
    /// When it can't be made or another aggregator works on it.
    pub fn open(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).map_err(AggregateError::io("create", folder))?;
        let path = folder.join(LOCK);
        let lock = File::create(&path).map_err(AggregateError::io("create", &path))?;
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let detail = format!("another aggregator works on {}", folder.display());
                return Err(AggregateError::Invalid(detail));
            }
            // Some file systems have no locks.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let sink = Self { folder: folder.to_owned(), _lock: lock };
        let drafts = sink.entries()?.into_iter().filter(|name| is_draft(name));
        drafts.into_iter().try_for_each(|name| sink.remove(&name))?;
        Ok(sink)
    }

    fn entries(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(&self.folder).map_err(AggregateError::io("list", &self.folder))?;
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        entries.map(name).collect::<io::Result<_>>().map_err(AggregateError::io("list", &self.folder))
    }
}

impl Sink for FolderSink {
    fn names(&self) -> Result<Vec<Named>> {
        let named = |name: String| {
            let path = self.folder.join(&name);
            let metadata = match fs::metadata(&path) {
                // One that has just gone is not there.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                other => other.map_err(AggregateError::io("look at", &path))?,
            };
            let (length, inode) = (metadata.len(), metadata.ino());
            let stamp = format!("{length} {}.{:09} {inode}", metadata.mtime(), metadata.mtime_nsec());
            Ok(Some(Named { name, stamp }))
        };
        let containers = self.entries()?.into_iter().filter(|name| is_container(name));
        containers.filter_map(|name| named(name).transpose()).collect()
    }

    fn open(&self, name: &str) -> Result<Box<dyn Source + Send + Sync>> {
        Ok(Box::new(FileSource::open(&self.folder.join(name))?))
    }

    fn draft(&self, name: &str) -> PathBuf {
        self.folder.join(format!(".{name}"))
    }

    fn publish(&self, draft: &Path, name: &str, _watch: Watch<'_>) -> Result<()> {
        let path = self.folder.join(name);
        fs::rename(draft, &path).map_err(AggregateError::io("rename to", &path))
    }

    fn keep_as(&self, name: &str, other: &str) -> Result<()> {
        let other = self.folder.join(other);
        fs::rename(self.folder.join(name), &other).map_err(AggregateError::io("rename to", &other))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(AggregateError::io("remove", &path)),
        }
    }

    fn settle(&self) -> Result<()> {
        sync_folder(&self.folder)
    }

    fn shown(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }
}
