//! The sink: containers whose names say of which set they are, and of how many.
//!
//! Relies on [`Container`]. The idea: no list is kept beside the containers. `step-120.2of4.pack` is the second of the four
//! containers of timestep 120, and the set is aggregated when all four are there; what is not finished is hidden.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::scan::RawFile;
use crate::container::FileEntry;
use crate::error::{AggregateError, Result};
use crate::new_file::sync_folder;
use crate::unpack::Container;

/// Held by the aggregator that works on the sink.
const LOCK: &str = ".aggregate.lock";

/// What the containers of a set hold.
pub(super) struct Aggregate {
    pub(super) files: Vec<FileEntry>,
}

impl Aggregate {
    /// Whether these files, as they are now, are what was packed.
    pub(super) fn holds(&self, files: &[&RawFile]) -> bool {
        let held: HashMap<&str, &FileEntry> =
            self.files.iter().map(|entry| (entry.name.as_str(), entry)).collect();
        files.iter().all(|file| {
            held.get(file.name.as_str())
                .is_some_and(|entry| entry.size == file.size && entry.modified_ns == file.modified_ns)
        })
    }
}

/// Length, time of modification and inode of a container that was looked into.
type Stamp = (u64, i64, i64, u64);

pub(super) struct Sink {
    folder: PathBuf,
    /// Tables of containers that were looked into.
    known: HashMap<PathBuf, (Stamp, Vec<FileEntry>)>,
    _lock: File,
}

impl Sink {
    pub(super) fn open(folder: &Path) -> Result<Self> {
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
        let sink = Self { folder: folder.to_owned(), known: HashMap::new(), _lock: lock };
        for name in sink.names()?.iter().filter(|name| is_draft(name)) {
            sink.remove(name)?;
        }
        Ok(sink)
    }

    fn names(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(&self.folder).map_err(AggregateError::io("list", &self.folder))?;
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        entries.map(name).collect::<io::Result<_>>().map_err(AggregateError::io("list", &self.folder))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.folder.join(name);
        fs::remove_file(&path).map_err(AggregateError::io("remove", &path))
    }

    /// The sets of which all containers are there and can be opened.
    pub(super) fn aggregates(&mut self) -> Result<BTreeMap<u64, Aggregate>> {
        let mut found: BTreeMap<(u64, usize), Vec<String>> = BTreeMap::new();
        for name in self.names()? {
            if let Some((timestep, _, of)) = parts_of(&name) {
                found.entry((timestep, of)).or_default().push(name);
            }
        }
        let mut aggregates = BTreeMap::new();
        for ((timestep, of), names) in found {
            let tables: Option<Vec<_>> = names.iter().map(|name| self.table(name)).collect();
            if let Some(tables) = tables.filter(|tables| tables.len() == of) {
                aggregates.insert(timestep, Aggregate { files: tables.concat() });
            }
        }
        Ok(aggregates)
    }

    /// The files of a container; none if it can't be opened, in which case its set counts as not aggregated.
    fn table(&mut self, name: &str) -> Option<Vec<FileEntry>> {
        let path = self.folder.join(name);
        let metadata = fs::metadata(&path).ok()?;
        let stamp = (metadata.len(), metadata.mtime(), metadata.mtime_nsec(), metadata.ino());
        if let Some((_, files)) = self.known.get(&path).filter(|(known, _)| *known == stamp) {
            return Some(files.clone());
        }
        let files = Container::open(&path).ok()?.entries().to_vec();
        self.known.insert(path, (stamp, files.clone()));
        Some(files)
    }

    /// Where a container is until it is verified.
    pub(super) fn draft(&self, timestep: u64, number: usize, of: usize) -> PathBuf {
        self.folder.join(format!(".{}", name_of(timestep, number, of)))
    }

    /// Gives a verified container its name.
    pub(super) fn publish(&self, draft: &Path, timestep: u64, number: usize, of: usize) -> Result<PathBuf> {
        let path = self.folder.join(name_of(timestep, number, of));
        fs::rename(draft, &path).map_err(AggregateError::io("rename to", &path))?;
        Ok(path)
    }

    /// Removes the containers of a timestep whose raw set is to be aggregated anew.
    pub(super) fn forget(&self, timestep: u64) -> Result<()> {
        let of_set = |name: &&String| parts_of(name).is_some_and(|(step, ..)| step == timestep);
        self.names()?.iter().filter(of_set).try_for_each(|name| self.remove(name))?;
        sync_folder(&self.folder)
    }
}

fn name_of(timestep: u64, number: usize, of: usize) -> String {
    format!("step-{timestep}.{number}of{of}.pack")
}

/// Timestep, number and count that a name says.
fn parts_of(name: &str) -> Option<(u64, usize, usize)> {
    let (timestep, rest) = name.strip_prefix("step-")?.strip_suffix(".pack")?.split_once('.')?;
    let (number, of) = rest.split_once("of")?;
    let parts = (timestep.parse().ok()?, number.parse().ok()?, of.parse().ok()?);
    let (timestep, number, of) = parts;
    (name == name_of(timestep, number, of) && (1..=of).contains(&number)).then_some(parts)
}

/// What a killed aggregator leaves: a container that was not verified, or one that was not written to its end.
fn is_draft(name: &str) -> bool {
    let hidden = name.strip_prefix('.').unwrap_or_default();
    parts_of(hidden).is_some() || (hidden.starts_with(".step-") && hidden.ends_with(".stdchk-part"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_of_which_set_a_container_is() {
        assert_eq!(parts_of(&name_of(120, 2, 4)), Some((120, 2, 4)));
        for other in ["step-1.0of2.pack", "step-1.3of2.pack", "step-01.1of2.pack", "x.pack", "step-1.1of2"] {
            assert_eq!(parts_of(other), None, "{other}");
        }
        assert!(is_draft(".step-1.1of2.pack"));
        assert!(is_draft("..step-1.1of2.packAbC.stdchk-part"));
        assert!(!is_draft("step-1.1of2.pack"));
        assert!(!is_draft(LOCK));
    }
}
