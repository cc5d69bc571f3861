//! The sink: containers whose names say of which set they are, and of how many.
//!
//! Relies on [`Container`]. The idea: no list is kept beside the containers. `step-120.2of4.pack` is the second of the four
//! containers of timestep 120, and the set is aggregated when all four are there, with the bases that they need; what is
//! not finished is hidden. A base whose own set is packed anew is called `base-IDENTITY.pack` as long as another needs it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::scan::RawFile;
use crate::container::FileEntry;
use crate::error::{AggregateError, Result};
use crate::new_file::sync_folder;
use crate::unpack::{BaseSet, Container, Described};

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

/// A container that another may be coded against.
pub(super) struct Earlier {
    pub(super) set: Arc<BaseSet>,
    /// Others need it already, so it is not the set just before.
    pub(super) is_used: bool,
}

/// Length, time of modification and inode of a container that was looked into.
type Stamp = (u64, i64, i64, u64);

pub(super) struct Sink {
    folder: PathBuf,
    /// Containers that were looked into.
    known: HashMap<String, (Stamp, Arc<Described>)>,
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
        let mut sink = Self { folder: folder.to_owned(), known: HashMap::new(), _lock: lock };
        for name in sink.names()?.iter().filter(|name| is_draft(name)) {
            sink.remove(name)?;
        }
        sink.remove_unused_bases()?;
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

    /// The containers that can be opened. One that can't counts as if it weren't there.
    fn containers(&mut self) -> Result<Vec<(String, Arc<Described>)>> {
        let mut found = Vec::new();
        for name in self.names()?.into_iter().filter(|name| parts_of(name).is_some() || is_kept_base(name)) {
            if let Some(described) = self.describe(&name) {
                found.push((name, described));
            }
        }
        Ok(found)
    }

    fn describe(&mut self, name: &str) -> Option<Arc<Described>> {
        let path = self.folder.join(name);
        let metadata = fs::metadata(&path).ok()?;
        let stamp = (metadata.len(), metadata.mtime(), metadata.mtime_nsec(), metadata.ino());
        if let Some((_, described)) = self.known.get(name).filter(|(known, _)| *known == stamp) {
            return Some(Arc::clone(described));
        }
        let described = Arc::new(Container::describe(&path).ok()?);
        self.known.insert(name.to_owned(), (stamp, Arc::clone(&described)));
        Some(described)
    }

    /// The sets of which all containers are there and can be opened, and all bases that they need.
    pub(super) fn aggregates(&mut self) -> Result<BTreeMap<u64, Aggregate>> {
        let containers = self.containers()?;
        let bases: HashSet<[u8; 16]> =
            containers.iter().filter_map(|(_, one)| identity_if_base(one)).collect();
        let mut found: BTreeMap<(u64, usize), Vec<&Described>> = BTreeMap::new();
        for (name, one) in &containers {
            let is_whole = one.base.is_none_or(|base| bases.contains(&base));
            if let Some((timestep, _, of)) = parts_of(name).filter(|_| is_whole) {
                found.entry((timestep, of)).or_default().push(one);
            }
        }
        found.retain(|(_, of), parts| parts.len() == *of);
        let files = |parts: Vec<&Described>| parts.iter().flat_map(|one| one.files.iter().cloned()).collect();
        Ok(found
            .into_iter()
            .map(|((timestep, _), parts)| (timestep, Aggregate { files: files(parts) }))
            .collect())
    }

    /// For every container of a set the one that it may be coded against: the same part of the newest earlier set that
    /// has no base itself, unless `reach` others need it already.
    pub(super) fn bases(&mut self, timestep: u64, of: usize, reach: usize) -> Result<Vec<Option<Earlier>>> {
        if reach == 0 {
            return Ok(Vec::new());
        }
        let containers = self.containers()?;
        let base_of = |number| {
            let earlier = containers.iter().filter(|(_, one)| one.base.is_none());
            let steps = earlier.filter_map(|(name, one)| Some((parts_of(name)?, name, one)));
            let fitting =
                steps.filter(|(parts, ..)| parts.0 < timestep && (parts.1, parts.2) == (number, of));
            let (_, name, newest) = fitting.max_by_key(|(parts, ..)| parts.0)?;
            let users = containers.iter().filter(|(_, one)| one.base == Some(newest.identity)).count();
            let set = (users < reach).then(|| BaseSet::open(&self.folder.join(name)).ok()).flatten()?;
            Some(Earlier { set: Arc::new(set), is_used: users > 0 })
        };
        Ok((1..=of).map(base_of).collect())
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

    /// Removes the containers of a timestep whose raw set is to be aggregated anew; what others need stays as their base.
    pub(super) fn forget(&mut self, timestep: u64) -> Result<()> {
        let of_set = |name: &str| parts_of(name).is_some_and(|(step, ..)| step == timestep);
        let (old, others): (Vec<_>, Vec<_>) =
            self.containers()?.into_iter().partition(|(name, _)| of_set(name));
        let needed = needed_bases(&others);
        for (name, one) in &old {
            if needed.contains(&one.identity) {
                let (from, to) = (self.folder.join(name), self.folder.join(kept_base_name(one.identity)));
                fs::rename(&from, &to).map_err(AggregateError::io("rename to", &to))?;
            }
        }
        self.names()?.iter().filter(|name| of_set(name)).try_for_each(|name| self.remove(name))?;
        sync_folder(&self.folder)
    }

    /// Removes bases that were kept for others which are gone.
    pub(super) fn remove_unused_bases(&mut self) -> Result<()> {
        if !self.names()?.iter().any(|name| is_kept_base(name)) {
            return Ok(());
        }
        let containers = self.containers()?;
        let needed = needed_bases(&containers);
        let unused =
            containers.iter().filter(|(name, one)| is_kept_base(name) && !needed.contains(&one.identity));
        unused.map(|(name, _)| name).try_for_each(|name| self.remove(name))
    }
}

fn identity_if_base(one: &Described) -> Option<[u8; 16]> {
    one.base.is_none().then_some(one.identity)
}

fn needed_bases(containers: &[(String, Arc<Described>)]) -> HashSet<[u8; 16]> {
    containers.iter().filter_map(|(_, one)| one.base).collect()
}

fn kept_base_name(identity: [u8; 16]) -> String {
    let identity: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("base-{identity}.pack")
}

fn is_kept_base(name: &str) -> bool {
    let identity = name.strip_prefix("base-").and_then(|rest| rest.strip_suffix(".pack"));
    identity
        .is_some_and(|identity| identity.len() == 32 && identity.bytes().all(|byte| byte.is_ascii_hexdigit()))
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
        assert!(is_kept_base(&kept_base_name([0xa5; 16])));
        assert!(!is_kept_base("base-line.pack"));
    }
}
