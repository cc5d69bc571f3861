//! The sets that a sink holds, by the names of their containers.
//!
//! Relies on [`Sink`] and [`Container`]. The idea: no list is kept beside the containers. A set is aggregated when all of its
//! containers are there, with the bases that they need.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::names::{is_kept_base, kept_base_name, name_of, parts_of};
use super::scan::RawFile;
use super::sink::{Named, Sink};
use crate::container::FileEntry;
use crate::error::{AggregateError, Result};
use crate::pack::{Packing, Watch};
use crate::parallel::in_parallel;
use crate::source::Input;
use crate::unpack::{BaseSet, Container, Described};

/// Containers that are looked into at one time: where they are far away, that is waiting for the most part.
const LOOKS_AT_ONCE: usize = 8;

/// A container's name, and what was seen when it was looked into.
type Looked = (String, Arc<Described>);

/// What the containers of a set hold.
pub(super) struct Aggregate {
    pub(super) containers: Vec<Looked>,
}

impl Aggregate {
    pub(super) fn files(&self) -> impl Iterator<Item = &FileEntry> {
        self.containers.iter().flat_map(|(_, one)| &one.files)
    }

    /// Whether these files, as they are now, are what was packed.
    pub(super) fn holds(&self, files: &[&RawFile]) -> bool {
        let held: HashMap<&str, &FileEntry> =
            self.files().map(|entry| (entry.name.as_str(), entry)).collect();
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

/// The containers of a sink.
pub(super) struct Sets {
    sink: Box<dyn Sink>,
    /// Containers that were looked into, with the stamp that they had.
    known: HashMap<String, (String, Arc<Described>)>,
    /// Those that this process compared with the raw files.
    compared: HashSet<String>,
}

impl Sets {
    pub(super) fn of(sink: Box<dyn Sink>) -> Result<Self> {
        let mut sets = Self { sink, known: HashMap::new(), compared: HashSet::new() };
        sets.remove_unused_bases()?;
        Ok(sets)
    }

    pub(super) fn sink(&self) -> &dyn Sink {
        &*self.sink
    }

    fn names(&self) -> Result<Vec<Named>> {
        let mut names = self.sink.names()?;
        names.retain(|one| parts_of(&one.name).is_some() || is_kept_base(&one.name));
        Ok(names)
    }

    /// The containers that can be opened. One that can't counts as if it weren't there.
    fn containers(&mut self) -> Result<Vec<Looked>> {
        let names = self.names()?;
        let found = in_parallel(&names, LOOKS_AT_ONCE, |_, one| self.look_into(one))?;
        let found: Vec<(Named, Arc<Described>)> = found.into_iter().flatten().collect();
        let known = found
            .iter()
            .map(|(one, described)| (one.name.clone(), (one.stamp.clone(), Arc::clone(described))));
        self.known = known.collect();
        Ok(found.into_iter().map(|(one, described)| (one.name, described)).collect())
    }

    fn look_into(&self, one: &Named) -> Result<Option<(Named, Arc<Described>)>> {
        if let Some((_, described)) = self.known.get(&one.name).filter(|(stamp, _)| *stamp == one.stamp) {
            return Ok(Some((one.clone(), Arc::clone(described))));
        }
        let described =
            self.sink.open(&one.name).and_then(|source| Container::describe(&self.path(&one.name), source));
        match described {
            Ok(described) => Ok(Some((one.clone(), Arc::new(described)))),
            // A sink that is away must not look like one that is empty.
            Err(AggregateError::Io { action, path, source }) if source.kind() != ErrorKind::NotFound => {
                Err(AggregateError::Io { action, path, source })
            }
            Err(_) => Ok(None),
        }
    }

    /// What messages call a container.
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(self.sink.shown(name))
    }

    /// The sets of which all containers are there and can be opened, and all bases that they need.
    pub(super) fn aggregates(&mut self) -> Result<BTreeMap<u64, Aggregate>> {
        let containers = self.containers()?;
        let bases: HashSet<[u8; 16]> =
            containers.iter().filter_map(|(_, one)| identity_if_base(one)).collect();
        let mut found: BTreeMap<(u64, usize), Vec<Looked>> = BTreeMap::new();
        for (name, one) in containers {
            let is_whole = one.base.is_none_or(|base| bases.contains(&base));
            if let Some((timestep, _, of)) = parts_of(&name).filter(|_| is_whole) {
                found.entry((timestep, of)).or_default().push((name, one));
            }
        }
        found.retain(|(_, of), parts| parts.len() == *of);
        Ok(found
            .into_iter()
            .map(|((timestep, _), containers)| (timestep, Aggregate { containers }))
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
            let set = (users < reach).then(|| self.open_base(name).ok()).flatten()?;
            Some(Earlier { set: Arc::new(set), is_used: users > 0 })
        };
        Ok((1..=of).map(base_of).collect())
    }

    fn open_base(&self, name: &str) -> Result<BaseSet> {
        BaseSet::open_source(&self.path(name), self.sink.open(name)?)
    }

    /// The part of the newest earlier set that corresponds to each container of a set.
    pub(super) fn earlier(&mut self, timestep: u64, of: usize) -> Result<Vec<Option<Arc<Described>>>> {
        let containers = self.containers()?;
        let newest = |number| {
            let parts = containers.iter().filter_map(|(name, one)| Some((parts_of(name)?, one)));
            let fitting = parts.filter(|(parts, _)| parts.0 < timestep && (parts.1, parts.2) == (number, of));
            fitting.max_by_key(|(parts, _)| parts.0).map(|(_, one)| Arc::clone(one))
        };
        Ok((1..=of).map(newest).collect())
    }

    /// Where a container is until it is verified.
    pub(super) fn draft(&self, timestep: u64, number: usize, of: usize) -> PathBuf {
        self.sink.draft(&name_of(timestep, number, of))
    }

    /// Gives a container its name that was compared with the raw files.
    pub(super) fn publish(
        &self,
        draft: &Path,
        timestep: u64,
        (number, of): (usize, usize),
        watch: Watch<'_>,
    ) -> Result<String> {
        let name = name_of(timestep, number, of);
        self.sink.publish(draft, &name, watch)?;
        Ok(name)
    }

    /// Notes that containers were compared with the raw files by this process.
    pub(super) fn note_compared(&mut self, names: impl IntoIterator<Item = String>) {
        self.compared.extend(names);
    }

    /// Compares the containers that this process didn't publish with those of the raw files that are there: a killed
    /// aggregator may have left one under its name that the sink was not yet shown to give back.
    ///
    /// # Errors
    /// Of whatever shows that a container doesn't hold these files.
    pub(super) fn compare(
        &mut self,
        aggregate: &Aggregate,
        files: &[&RawFile],
        options: &Packing<'_>,
    ) -> Result<()> {
        for (name, described) in &aggregate.containers {
            if self.compared.contains(name) {
                continue;
            }
            let inputs: Vec<Input> = files
                .iter()
                .filter(|file| described.files.iter().any(|entry| entry.name == file.name))
                .map(|file| Input { name: file.name.clone(), path: file.path.clone() })
                .collect();
            let find_base = |identity| self.find_base(identity);
            let container =
                Container::open_source_with_base(&self.path(name), self.sink.open(name)?, find_base)?;
            container.compare_some(&inputs, options)?;
            self.compared.insert(name.clone());
        }
        Ok(())
    }

    fn find_base(&self, identity: [u8; 16]) -> Result<Option<BaseSet>> {
        let found = self.known.iter().find(|(_, (_, one))| identity_if_base(one) == Some(identity));
        found.map(|(name, _)| self.open_base(name)).transpose()
    }

    /// Removes the containers of a timestep whose raw set is to be aggregated anew; what others need stays as their base.
    /// `raw_is_there` is asked at the last moment: not every sink has locks, and another aggregator may have been faster.
    ///
    /// # Errors
    /// Of `raw_is_there`, before anything is removed, or of the sink.
    pub(super) fn forget(&mut self, timestep: u64, raw_is_there: impl FnOnce() -> Result<()>) -> Result<()> {
        let of_set = |name: &str| parts_of(name).is_some_and(|(step, ..)| step == timestep);
        let (old, others): (Vec<_>, Vec<_>) =
            self.containers()?.into_iter().partition(|(name, _)| of_set(name));
        let needed = needed_bases(&others);
        for (name, one) in &old {
            if needed.contains(&one.identity) {
                self.sink.keep_as(name, &kept_base_name(one.identity))?;
            }
        }
        let names = self.names()?;
        raw_is_there()?;
        for one in names.iter().filter(|one| of_set(&one.name)) {
            self.sink.remove(&one.name)?;
        }
        self.compared.retain(|name| !of_set(name));
        self.sink.settle()
    }

    /// Removes bases that were kept for others which are gone.
    pub(super) fn remove_unused_bases(&mut self) -> Result<()> {
        if !self.names()?.iter().any(|one| is_kept_base(&one.name)) {
            return Ok(());
        }
        let containers = self.containers()?;
        let needed = needed_bases(&containers);
        let unused =
            containers.iter().filter(|(name, one)| is_kept_base(name) && !needed.contains(&one.identity));
        unused.map(|(name, _)| name).try_for_each(|name| self.sink.remove(name))
    }
}

fn identity_if_base(one: &Described) -> Option<[u8; 16]> {
    one.base.is_none().then_some(one.identity)
}

fn needed_bases(containers: &[Looked]) -> HashSet<[u8; 16]> {
    containers.iter().filter_map(|(_, one)| one.base).collect()
}
