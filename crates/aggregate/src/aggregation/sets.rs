//! The sets that a sink holds, by the names of their containers.
//!
//! Relies on [`Sink`] and [`Container`]. The idea: no list is kept beside the containers. A set is aggregated when all of its
//! containers are there, with the bases that they need.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stdchk_model::Timestep;

use super::names::{is_container, is_kept_base, kept_base_name, name_of, parts_of};
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

/// Wait until the sink is asked again for what it withheld: an object store may want money for each question, and takes minutes
/// to days to bring something back from its archive.
const WITHHELD_INTERVAL: Duration = Duration::from_secs(600);

/// What came of looking into a container.
#[derive(Clone)]
enum Look {
    Opened(Arc<Described>),
    /// It can't be opened.
    Damaged,
    /// The sink doesn't give it out for now, though it gives others: why, and when it was asked.
    Withheld(String, Instant),
}

impl Look {
    fn opened(&self) -> Option<&Arc<Described>> {
        if let Self::Opened(described) = self { Some(described) } else { None }
    }

    fn is_over(&self) -> bool {
        matches!(self, Self::Withheld(_, asked) if asked.elapsed() >= WITHHELD_INTERVAL)
    }
}

/// Whether an error says that the sink withholds a container for now.
pub(super) fn is_withheld(error: &AggregateError) -> bool {
    matches!(error, AggregateError::Io { source, .. } if source.kind() == ErrorKind::ResourceBusy)
}

/// What the containers of a set hold.
pub(super) struct Aggregate {
    pub(super) containers: Vec<Looked>,
}

impl Aggregate {
    pub(super) fn files(&self) -> impl Iterator<Item = &FileEntry> {
        self.containers.iter().flat_map(|(_, one)| &one.files)
    }

    /// Tells of files, as they are now, whether they are what was packed.
    pub(super) fn holder(&self) -> impl Fn(&RawFile) -> bool {
        let held: HashMap<&str, &FileEntry> =
            self.files().map(|entry| (entry.name.as_str(), entry)).collect();
        move |file| {
            held.get(file.name.as_str())
                .is_some_and(|entry| entry.size == file.size && entry.modified_ns == file.modified_ns)
        }
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
    known: HashMap<String, (String, Look)>,
    /// Names of the containers that this process compared with the raw files.
    compared: HashSet<String>,
    /// Names of the containers that the sink withholds and that the user was informed of.
    told: HashSet<String>,
    /// Whether the sink may hold bases that were kept for other containers.
    may_keep_bases: bool,
}

impl Sets {
    pub(super) fn of(sink: Box<dyn Sink>) -> Result<Self> {
        let (known, compared, told) = (HashMap::new(), HashSet::new(), HashSet::new());
        let mut sets = Self { sink, known, compared, told, may_keep_bases: true };
        sets.remove_unused_bases()?;
        Ok(sets)
    }

    pub(super) fn sink(&self) -> &dyn Sink {
        &*self.sink
    }

    fn names(&self) -> Result<Vec<Named>> {
        let mut names = self.sink.names()?;
        names.retain(|one| is_container(&one.name));
        Ok(names)
    }

    /// The containers that can be opened. One that can't counts as if it weren't there, and isn't tried again until it changes or,
    /// where the sink withholds it, for a while.
    fn containers(&mut self) -> Result<Vec<Looked>> {
        let names = self.names()?;
        let found = in_parallel(&names, LOOKS_AT_ONCE, |_, one| self.look_into(one))?;
        let known = names
            .iter()
            .zip(&found)
            .map(|(one, found)| (one.name.clone(), (one.stamp.clone(), found.clone())));
        self.known = known.collect();
        self.may_keep_bases |= names.iter().any(|one| is_kept_base(&one.name));
        let opened = names.into_iter().zip(found);
        Ok(opened.filter_map(|(one, found)| Some((one.name, Arc::clone(found.opened()?)))).collect())
    }

    /// The containers that could be opened at the last look, and those that were published since.
    fn opened(&self) -> impl Iterator<Item = (&String, &Arc<Described>)> {
        self.known.iter().filter_map(|(name, (_, look))| Some((name, look.opened()?)))
    }

    /// The set whose containers were just published. Unless one needs a base, the sink isn't listed for it, which takes longer the
    /// more it holds: the next look finds its containers with their stamps.
    ///
    /// # Errors
    /// When the sink is away.
    pub(super) fn published(&mut self, timestep: Timestep, names: Vec<String>) -> Result<Option<Aggregate>> {
        let (mut containers, of) = (Vec::new(), names.len());
        for name in names {
            // No stamp that a sink gives, so that the next look looks into it again.
            let look = self.look_into(&Named { name: name.clone(), stamp: String::new() })?;
            containers.extend(look.opened().map(|described| (name.clone(), Arc::clone(described))));
            self.known.insert(name, (String::new(), look));
        }
        if containers.iter().any(|(_, one)| one.base.is_some()) {
            return Ok(self.aggregates()?.remove(&timestep));
        }
        Ok((containers.len() == of).then_some(Aggregate { containers }))
    }

    fn look_into(&self, one: &Named) -> Result<Look> {
        let known = self.known.get(&one.name).filter(|(stamp, _)| *stamp == one.stamp);
        if let Some((_, look)) = known.filter(|(_, look)| !look.is_over()) {
            return Ok(look.clone());
        }
        let described =
            self.sink.open(&one.name).and_then(|source| Container::describe(&self.path(&one.name), source));
        match described {
            Ok(described) => Ok(Look::Opened(Arc::new(described))),
            Err(error) if is_withheld(&error) => Ok(Look::Withheld(error.to_string(), Instant::now())),
            // A sink that is away must not look like one that is empty.
            Err(AggregateError::Io { action, path, source }) if source.kind() != ErrorKind::NotFound => {
                Err(AggregateError::Io { action, path, source })
            }
            Err(error @ AggregateError::Stopped) => Err(error),
            Err(_) => Ok(Look::Damaged),
        }
    }

    /// Containers that the sink withholds, and why.
    fn withheld(&self) -> impl Iterator<Item = (&String, &String)> {
        self.known.iter().filter_map(|(name, (_, look))| match look {
            Look::Withheld(reason, _) => Some((name, reason)),
            Look::Opened(_) | Look::Damaged => None,
        })
    }

    /// The container of this set that the sink withholds, or what may be the base of one, if it does.
    pub(super) fn withheld_of(&self, timestep: Timestep) -> Option<String> {
        let of_set = |name: &str| parts_of(name).is_some_and(|(step, ..)| step == timestep);
        let is_there = |base| self.opened().any(|(_, one)| identity_if_base(one) == Some(base));
        let lacks_base =
            || self.opened().any(|(name, one)| of_set(name) && one.base.is_some_and(|base| !is_there(base)));
        let own = self.withheld().find(|(name, _)| of_set(name));
        let found = own.or_else(|| self.withheld().next().filter(|_| lacks_base()));
        found.map(|(name, _)| self.sink.shown(name))
    }

    /// What the sink withholds and did not before, each said once: names, and why.
    pub(super) fn newly_withheld(&mut self) -> Vec<(String, String)> {
        let now: BTreeMap<String, String> =
            self.withheld().map(|(name, reason)| (name.clone(), reason.clone())).collect();
        let before = std::mem::replace(&mut self.told, now.keys().cloned().collect());
        let new = now.into_iter().filter(|(name, _)| !before.contains(name));
        new.map(|(name, reason)| (self.sink.shown(&name), reason)).collect()
    }

    /// Notes that the sink withholds the container that an error is about, though it was looked into before.
    pub(super) fn note_withheld(&mut self, error: &AggregateError) {
        let AggregateError::Io { path: about, .. } = error else { return };
        let name = self.known.keys().find(|name| self.path(name) == *about).cloned();
        if let Some((_, look)) = name.and_then(|name| self.known.get_mut(&name)) {
            *look = Look::Withheld(error.to_string(), Instant::now());
        }
    }

    /// Changes when a container of the set or one of these files does.
    pub(super) fn stamps(&self, aggregate: &Aggregate, files: &[&RawFile]) -> Vec<String> {
        let known =
            aggregate.containers.iter().filter_map(|(name, _)| Some((name, &self.known.get(name)?.0)));
        let containers = known.map(|(name, stamp)| format!("{name} {stamp}"));
        let raw = files.iter().map(|file| format!("{} {} {}", file.name, file.size, file.modified_ns));
        containers.chain(raw).collect()
    }

    /// What messages call a container.
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(self.sink.shown(name))
    }

    /// The sets of which all containers are there and can be opened, and all bases that they need.
    pub(super) fn aggregates(&mut self) -> Result<BTreeMap<Timestep, Aggregate>> {
        let containers = self.containers()?;
        let bases: HashSet<[u8; 16]> =
            containers.iter().filter_map(|(_, one)| identity_if_base(one)).collect();
        let mut found: BTreeMap<(Timestep, usize), Vec<Looked>> = BTreeMap::new();
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

    /// What the containers of all sets hold, whole sets or not, as far as they can be opened.
    pub(super) fn files(&self) -> impl Iterator<Item = &FileEntry> {
        let of_sets = self.known.iter().filter(|(name, _)| !is_kept_base(name));
        of_sets.filter_map(|(_, (_, look))| look.opened()).flat_map(|one| &one.files)
    }

    /// For every container of a set the one that it may be coded against: the same part of the newest earlier set that
    /// has no base itself, unless `reach` others need it already.
    pub(super) fn bases(&self, timestep: Timestep, of: usize, reach: usize) -> Vec<Option<Earlier>> {
        if reach == 0 {
            return Vec::new();
        }
        let base_of = |number| {
            let earlier = self.opened().filter(|(_, one)| one.base.is_none());
            let steps = earlier.filter_map(|(name, one)| Some((parts_of(name)?, name, one)));
            let fitting =
                steps.filter(|(parts, ..)| parts.0 < timestep && (parts.1, parts.2) == (number, of));
            let (_, name, newest) = fitting.max_by_key(|(parts, ..)| parts.0)?;
            let users = self.opened().filter(|(_, one)| one.base == Some(newest.identity)).count();
            let set = (users < reach).then(|| self.open_base(name).ok()).flatten()?;
            Some(Earlier { set: Arc::new(set), is_used: users > 0 })
        };
        (1..=of).map(base_of).collect()
    }

    fn open_base(&self, name: &str) -> Result<BaseSet> {
        BaseSet::open_source(&self.path(name), self.sink.open(name)?)
    }

    /// The part of the newest earlier set that corresponds to each container of a set.
    pub(super) fn earlier(&self, timestep: Timestep, of: usize) -> Vec<Option<Arc<Described>>> {
        let newest = |number| {
            let parts = self.opened().filter_map(|(name, one)| Some((parts_of(name)?, one)));
            let fitting = parts.filter(|(parts, _)| parts.0 < timestep && (parts.1, parts.2) == (number, of));
            fitting.max_by_key(|(parts, _)| parts.0).map(|(_, one)| Arc::clone(one))
        };
        (1..=of).map(newest).collect()
    }

    /// Where a container is until it is verified.
    pub(super) fn draft(&self, timestep: Timestep, number: usize, of: usize) -> PathBuf {
        self.sink.draft(&name_of(timestep, number, of))
    }

    /// Gives a container its name that was compared with the raw files.
    pub(super) fn publish(
        &self,
        draft: &Path,
        timestep: Timestep,
        (number, of): (usize, usize),
        watch: Watch<'_>,
    ) -> Result<String> {
        let name = name_of(timestep, number, of);
        self.sink.publish(draft, &name, watch)?;
        Ok(name)
    }

    /// Forgets that the containers of a set were compared: raw files that come after those which are gone ask for it anew.
    pub(super) fn forget_compared(&mut self, aggregate: &Aggregate) {
        for (name, _) in &aggregate.containers {
            self.compared.remove(name);
        }
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
            let held: HashSet<&str> = described.files.iter().map(|entry| entry.name.as_str()).collect();
            let inputs: Vec<Input> = files
                .iter()
                .filter(|file| held.contains(file.name.as_str()))
                .map(|file| Input { name: file.name.clone(), path: file.path.clone() })
                .collect();
            let find_base = |identity| self.find_base(identity);
            let container =
                Container::open_source_with_base(&self.path(name), self.sink.open(name)?, find_base)?;
            container.compare_some(&inputs, options)?;
            self.compared.insert(name.clone());
        }
        // The names may be those of an aggregator that was killed before it made them durable.
        self.sink.settle()
    }

    /// The base of this identity; of two the one that belongs to a set, since one that was kept may have been found damaged.
    fn find_base(&self, identity: [u8; 16]) -> Result<Option<BaseSet>> {
        let found = self.opened().filter(|(_, one)| identity_if_base(one) == Some(identity));
        let Some((name, _)) = found.min_by_key(|(name, _)| is_kept_base(name)) else { return Ok(None) };
        match self.open_base(name) {
            Err(AggregateError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Removes the containers of a timestep whose raw set is to be aggregated anew; what others need, or may need that can't
    /// be looked into, stays as their base. `raw_is_there` is asked before each step: not every sink has locks, and another
    /// aggregator may have been faster.
    ///
    /// # Errors
    /// Of `raw_is_there`, or of the sink.
    pub(super) fn forget(&mut self, timestep: Timestep, raw_is_there: impl Fn() -> Result<()>) -> Result<()> {
        let of_set = |name: &str| parts_of(name).is_some_and(|(step, ..)| step == timestep);
        // What was not there at the last look is of another aggregator, and is found at the next.
        if !self.known.keys().any(|name| of_set(name)) {
            return Ok(());
        }
        let (old, others): (Vec<_>, Vec<_>) =
            self.containers()?.into_iter().partition(|(name, _)| of_set(name));
        let needed = needed_bases(&others);
        let all_known = self.are_known(|name| !of_set(name));
        for (name, one) in &old {
            if needed.contains(&one.identity) || (one.base.is_none() && !all_known) {
                raw_is_there()?;
                self.may_keep_bases = true;
                self.sink.keep_as(name, &kept_base_name(one.identity))?;
            }
        }
        for one in self.names()?.iter().filter(|one| of_set(&one.name)) {
            raw_is_there()?;
            self.sink.remove(&one.name)?;
        }
        self.compared.retain(|name| !of_set(name));
        self.sink.settle()?;
        // What was kept as a base has another name now.
        self.containers().map(|_| ())
    }

    /// Whether all containers with such names could be looked into.
    fn are_known(&self, names: impl Fn(&str) -> bool) -> bool {
        self.known.iter().all(|(name, (_, look))| look.opened().is_some() || !names(name))
    }

    /// Removes bases that were kept for others which are gone, or that belong to a set again; none of them while there is a
    /// container that can't be looked into, since that may need it.
    pub(super) fn remove_unused_bases(&mut self) -> Result<()> {
        if !self.may_keep_bases {
            return Ok(());
        }
        self.may_keep_bases = self.names()?.iter().any(|one| is_kept_base(&one.name));
        if !self.may_keep_bases {
            return Ok(());
        }
        let containers = self.containers()?;
        let sets: Vec<&Looked> = containers.iter().filter(|(name, _)| !is_kept_base(name)).collect();
        let belonging: HashSet<[u8; 16]> = sets.iter().filter_map(|(_, one)| identity_if_base(one)).collect();
        let needed: HashSet<String> = needed_bases(&containers)
            .into_iter()
            .filter(|identity| !belonging.contains(identity))
            .map(kept_base_name)
            .collect();
        if !self.are_known(|name| !is_kept_base(name)) {
            return Ok(());
        }
        // By their names: what can't be read of a base any more has no part in what it is needed for.
        let kept = self.known.keys().filter(|name| is_kept_base(name));
        let unused: Vec<&String> = kept.filter(|name| !needed.contains(*name)).collect();
        if !unused.is_empty() {
            // The name that takes the place of one must outlast a power cut, too.
            self.sink.settle()?;
        }
        unused.into_iter().try_for_each(|name| self.sink.remove(name))
    }
}

fn identity_if_base(one: &Described) -> Option<[u8; 16]> {
    one.base.is_none().then_some(one.identity)
}

fn needed_bases(containers: &[Looked]) -> HashSet<[u8; 16]> {
    containers.iter().filter_map(|(_, one)| one.base).collect()
}
