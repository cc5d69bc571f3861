//! What versions refer to: the names of all chunks of each chunk map, durable beside the versions ([0606]).
//!
//! A version counts as long as it is kept: each chunk of its map is referred to, and wanted as far from loss as the version's
//! folder asks for. A small map says itself what it names. The names of a larger one, which lies in the pool, come with the
//! commit and are one record, however many versions have this map: a list. A list counts for its chunks once, with the most that any of
//! its versions wants, so the members of a container cost as much as one file. So it is known at any time, without reading
//! a map, which chunks nothing refers to.
//!
//! [0606]: ../../../../docs/design/0606-names-of-chunks.md

use std::collections::{BTreeSet, HashMap, HashSet};

use stdchk_model::limits::LIST_ENTRIES_MAX;
use stdchk_model::{ChunkId, ChunkRef, Failure, Ino, MapRoot, cbor};

use super::Core;
use super::benefactors::Registry;
use super::chunk::Wants;
use super::commit::inline_map;
use super::exposure::{Span, joined};
use super::locations::{Locations, Slot};
use super::namespace::Reference;
use crate::record::{LAYOUT, NamesRecord, decode};
use crate::store::{Batch, StoreError, Table};

/// Identity of a map that lies in the pool: of its pieces.
type ListId = ChunkId;

/// How far from loss the base of a session is wanted: it must not be collected.
const BASE: u8 = 1;

/// Who refers to a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// A version whose folder wants its chunks so far from loss.
    Version(u8),
    /// A session that builds on it.
    Session,
}

impl By {
    fn wanted(self) -> u8 {
        match self {
            Self::Version(wanted) => wanted,
            Self::Session => BASE,
        }
    }
}

#[derive(Debug)]
struct List {
    chunks: Box<[Slot]>,
    /// The distance that it wants of its chunks now.
    counted: u8,
    versions: Wants,
    /// Sessions that build on it.
    sessions: u32,
    /// The versions that have it.
    span: Option<Span>,
}

impl List {
    /// A list whose chunks count with the distance `counted`.
    fn new(chunks: Box<[Slot]>, counted: u8) -> Self {
        Self { chunks, counted, versions: Wants::default(), sessions: 0, span: None }
    }

    fn add(&mut self, by: By) {
        match by {
            By::Version(wanted) => self.versions.add(wanted),
            By::Session => self.sessions += 1,
        }
    }

    fn remove(&mut self, by: By) {
        match by {
            By::Version(wanted) => self.versions.remove(wanted),
            By::Session => self.sessions -= 1,
        }
    }

    /// What it wants of its chunks by those that refer to it; 0: nobody does. A base stays as far from loss as it was when its last version
    /// went: a state may name it to which somebody returns.
    fn wanted(&self) -> u8 {
        self.versions.most().max(if self.sessions > 0 { self.counted.max(BASE) } else { 0 })
    }

    /// Lets its chunks be wanted as those that refer to it want it now.
    fn count(&mut self, locations: &mut Locations, registry: &Registry) {
        let wanted = self.wanted();
        let before = std::mem::replace(&mut self.counted, wanted);
        if wanted == before {
            return;
        }
        for slot in &self.chunks {
            if wanted == 0 {
                locations.unname(*slot, before, registry);
            } else {
                locations.rename(*slot, before, wanted);
                locations.count(*slot, registry);
            }
        }
    }
}

/// The lists of all maps that lie in the pool.
#[derive(Debug, Default)]
pub(super) struct References {
    lists: HashMap<ListId, List>,
    /// The names that the present commit brings.
    introduced: Option<(ListId, Vec<ChunkId>)>,
    /// Lists to be written or removed with the next commit to the store.
    changed: BTreeSet<ListId>,
}

/// The chunks of a map.
enum Named {
    /// The map is in its root.
    Inline(Vec<ChunkId>),
    Listed(ListId),
}

impl Named {
    fn of(root: &MapRoot) -> Result<Self, Failure> {
        let bad = |error: stdchk_model::chunk_map::BadChunkMap| super::commit::invalid(error.to_string());
        match root.clone().of_chunks().map_err(bad)? {
            MapRoot::Inline { map } => {
                let mut chunks: Vec<ChunkId> =
                    inline_map(&map)?.chunks().iter().map(|chunk| chunk.id).collect();
                chunks.sort_unstable();
                chunks.dedup();
                Ok(Self::Inline(chunks))
            }
            root @ MapRoot::Pieces { .. } => Ok(Self::Listed(list_id(&root))),
        }
    }

    /// The chunks of a map whose root was checked when it came.
    fn of_checked(root: &MapRoot) -> Self {
        Self::of(root).unwrap_or_else(|error| unreachable!("a root was checked when it came: {error}"))
    }
}

/// Maps in the same pieces are the same map.
fn list_id(root: &MapRoot) -> ListId {
    let ids: Vec<u8> = root.pieces().iter().flat_map(|piece| piece.id.0).collect();
    ChunkId::of(&ids)
}

impl References {
    /// Takes in the stored names of a map.
    pub fn load(&mut self, key: &[u8], bytes: &[u8], locations: &mut Locations) -> Result<(), StoreError> {
        let doing = "reading the names of a map's chunks";
        let id = <[u8; 32]>::try_from(key).map_err(|error| StoreError::new(doing, error))?;
        let NamesRecord { names, .. } = decode(bytes, "the names of a map's chunks")?;
        let (names, rest) = names.as_chunks::<32>();
        if !rest.is_empty() {
            return Err(StoreError::new(doing, "they end within a name"));
        }
        let chunks = names.iter().map(|name| locations.name(&ChunkId(*name), BASE)).collect();
        self.lists.insert(ChunkId(id), List::new(chunks, BASE));
        Ok(())
    }

    /// A stored version has this map. Its chunks are counted later.
    pub fn load_version(
        &mut self,
        root: &MapRoot,
        wanted: u8,
        span: Span,
        locations: &mut Locations,
    ) -> Result<(), StoreError> {
        let refused = |cause: String| StoreError::new("reading the map of a version", cause);
        match Named::of(root).map_err(|error| refused(error.to_string()))? {
            Named::Inline(chunks) => {
                for chunk in chunks {
                    let slot = locations.name(&chunk, wanted);
                    locations.extend(slot, Some(span));
                }
            }
            Named::Listed(id) => {
                let list = self.lists.get_mut(&id);
                let list =
                    list.ok_or_else(|| refused(format!("the names of the chunks of map {id} are missing")))?;
                list.versions.add(wanted);
                list.span = joined(list.span, Some(span));
            }
        }
        Ok(())
    }

    /// A version that is stored as kept has this map.
    pub fn load_kept(
        &mut self,
        root: &MapRoot,
        wanted: u8,
        locations: &mut Locations,
    ) -> Result<(), StoreError> {
        let refused = |cause: String| StoreError::new("reading the map of a version that is kept", cause);
        match Named::of(root).map_err(|error| refused(error.to_string()))? {
            Named::Inline(chunks) => {
                for chunk in chunks {
                    locations.name(&chunk, wanted);
                }
            }
            Named::Listed(id) => {
                let list = self.lists.get_mut(&id);
                let list =
                    list.ok_or_else(|| refused(format!("the names of the chunks of map {id} are missing")))?;
                list.versions.add(wanted);
            }
        }
        Ok(())
    }

    /// All versions were read.
    pub fn loaded(&mut self, locations: &mut Locations) -> Result<(), StoreError> {
        for (id, list) in &mut self.lists {
            let wanted = list.wanted();
            if wanted == 0 {
                let cause = format!("no version has the map {id}, whose chunks are named");
                return Err(StoreError::new("reading the names of a map's chunks", cause));
            }
            list.counted = wanted;
            for slot in &list.chunks {
                locations.rename(*slot, BASE, wanted);
                locations.extend(*slot, list.span);
            }
        }
        Ok(())
    }

    /// Adds what must be stored to `batch`.
    pub fn take_changes(&mut self, batch: &mut Batch, locations: &Locations) {
        for id in std::mem::take(&mut self.changed) {
            match self.lists.get(&id).filter(|list| !list.versions.is_empty()) {
                Some(list) => {
                    let names = list.chunks.iter().flat_map(|slot| locations.at(*slot).id.0).collect();
                    let record = NamesRecord { layout: LAYOUT, names };
                    batch.put(Table::Names, &id.0, cbor::encode(&record));
                }
                None => batch.remove(Table::Names, &id.0),
            }
        }
    }

    /// The names of a map come along with its commit; until [`References::settled`] a version may be added that has it.
    pub fn introduce(&mut self, root: &MapRoot, names: &HashSet<ChunkId>) {
        if let MapRoot::Pieces { .. } = root {
            let mut names: Vec<ChunkId> = names.iter().copied().collect();
            names.sort_unstable();
            self.introduced = Some((list_id(root), names));
        }
    }

    /// The commit is done with the names that came along.
    pub fn settled(&mut self) {
        self.introduced = None;
    }

    /// One more refers to a map.
    pub fn add(&mut self, root: &MapRoot, by: By, locations: &mut Locations, registry: &Registry) {
        let id = match Named::of_checked(root) {
            Named::Listed(id) => id,
            Named::Inline(chunks) => {
                for chunk in chunks {
                    let slot = locations.name(&chunk, by.wanted());
                    locations.count(slot, registry);
                }
                return;
            }
        };
        if let Some((_, names)) = self.introduced.take_if(|(introduced, _)| *introduced == id) {
            self.enter(id, &names, by, locations, registry);
        }
        self.change(id, |list| list.add(by), locations, registry);
    }

    /// A map has these names. It may have a list already, of which another client has left out some: they don't harm this one.
    fn enter(
        &mut self,
        id: ListId,
        names: &[ChunkId],
        by: By,
        locations: &mut Locations,
        registry: &Registry,
    ) {
        let list = self.lists.entry(id).or_insert_with(|| List::new(Box::default(), by.wanted()));
        let known: HashSet<ChunkId> = list.chunks.iter().map(|slot| locations.at(*slot).id).collect();
        let new = names.iter().filter(|name| !known.contains(name));
        let new: Vec<Slot> = new.map(|name| locations.name(name, list.counted)).collect();
        if new.is_empty() {
            return;
        }
        for slot in &new {
            locations.extend(*slot, list.span);
            locations.count(*slot, registry);
        }
        let mut chunks = std::mem::take(&mut list.chunks).into_vec();
        chunks.extend(new);
        chunks.sort_unstable_by_key(|slot| locations.at(*slot).id);
        list.chunks = chunks.into_boxed_slice();
        self.changed.insert(id);
    }

    /// One of those that refer to a map does so no longer.
    pub fn remove(&mut self, root: &MapRoot, by: By, locations: &mut Locations, registry: &Registry) {
        match Named::of_checked(root) {
            Named::Inline(chunks) => {
                for chunk in chunks {
                    locations.unname(locations.named(&chunk), by.wanted(), registry);
                }
            }
            Named::Listed(id) => {
                self.change(id, |list| list.remove(by), locations, registry);
                if self.list(&id).wanted() == 0 {
                    self.lists.remove(&id);
                }
            }
        }
    }

    fn change(
        &mut self,
        id: ListId,
        change: impl FnOnce(&mut List),
        locations: &mut Locations,
        registry: &Registry,
    ) {
        let list = self.list(&id);
        let was_stored = !list.versions.is_empty();
        change(list);
        list.count(locations, registry);
        if list.versions.is_empty() == was_stored {
            self.changed.insert(id);
        }
    }

    fn list(&mut self, id: &ListId) -> &mut List {
        let Some(list) = self.lists.get_mut(id) else { unreachable!("the chunks of map {id} have no names") };
        list
    }

    /// Versions of `span` have a map.
    pub fn extend(&mut self, root: &MapRoot, span: Span, locations: &mut Locations, registry: &Registry) {
        let (slots, span) = match Named::of_checked(root) {
            Named::Inline(chunks) => {
                (chunks.iter().map(|chunk| locations.named(chunk)).collect(), Some(span))
            }
            Named::Listed(id) => {
                let list = self.list(&id);
                let joined = joined(list.span, Some(span));
                if std::mem::replace(&mut list.span, joined) == joined {
                    return;
                }
                (list.chunks.clone(), joined)
            }
        };
        for slot in slots {
            locations.extend(slot, span);
            locations.count(slot, registry);
        }
    }

    /// Where the chunks of a map stand in the index that somebody refers to.
    pub fn slots_of(&mut self, root: &MapRoot, locations: &Locations) -> Vec<Slot> {
        match Named::of_checked(root) {
            Named::Inline(chunks) => chunks.iter().map(|chunk| locations.named(chunk)).collect(),
            Named::Listed(id) => self.list(&id).chunks.to_vec(),
        }
    }

    /// The chunks of a map that somebody refers to behind `after`, in ascending order, at most `limit`; those that hold the map included.
    fn names_of(
        &self,
        root: &MapRoot,
        after: Option<ChunkId>,
        limit: usize,
        locations: &Locations,
    ) -> Result<Vec<ChunkId>, Failure> {
        let is_behind = |id: &ChunkId| after.is_none_or(|after| *id > after);
        match Named::of(root)? {
            Named::Inline(chunks) => Ok(chunks.into_iter().filter(is_behind).take(limit).collect()),
            Named::Listed(id) => {
                let chunks = self.lists.get(&id).map_or(&[][..], |list| &list.chunks);
                let first = chunks.partition_point(|slot| !is_behind(&locations.at(*slot).id));
                let behind = chunks.iter().skip(first).take(limit);
                Ok(behind.map(|slot| locations.at(*slot).id).collect())
            }
        }
    }

    /// The chunks of a map that somebody refers to.
    pub fn chunks_of(&self, root: &MapRoot, locations: &Locations) -> HashSet<ChunkId> {
        match Named::of_checked(root) {
            Named::Inline(chunks) => chunks.into_iter().collect(),
            Named::Listed(id) => {
                let list = self.lists.get(&id);
                let list =
                    list.unwrap_or_else(|| unreachable!("a map that a session or version has is listed"));
                list.chunks.iter().map(|slot| locations.at(*slot).id).collect()
            }
        }
    }
}

impl Core {
    /// The chunks that a version needs, those behind the name `after`.
    pub(super) fn chunks_of(
        &self,
        ino: Ino,
        version: u64,
        after: Option<ChunkId>,
    ) -> Result<Vec<ChunkRef>, Failure> {
        let found = self.namespace.version(ino, Some(version))?;
        let Some((_, root)) = found else { return Ok(Vec::new()) };
        let names = self.references.names_of(&root, after, LIST_ENTRIES_MAX, &self.locations)?;
        let length = |id| self.locations.at(self.locations.named(&id)).length;
        Ok(names.into_iter().map(|id| ChunkRef { id, length: length(id) }).collect())
    }

    /// Counts for chunks what has happened to versions.
    pub(super) fn settle_references(&mut self) {
        let moved = std::mem::take(&mut self.namespace.references);
        let (locations, registry) = (&mut self.locations, &self.registry);
        // What merely gets another place is referred to all the time.
        for Reference { root, wanted, .. } in moved.iter().filter(|reference| reference.is_new) {
            self.references.add(root, By::Version(*wanted), locations, registry);
        }
        for Reference { root, wanted, .. } in moved.iter().filter(|reference| !reference.is_new) {
            self.references.remove(root, By::Version(*wanted), locations, registry);
        }
        self.references.settled();
    }

    /// A session builds on this map from now on, and on another no longer.
    pub(super) fn build_on(&mut self, base: Option<&MapRoot>, before: Option<&MapRoot>) {
        let (locations, registry) = (&mut self.locations, &self.registry);
        if let Some(base) = base {
            self.references.add(base, By::Session, locations, registry);
        }
        if let Some(before) = before {
            self.references.remove(before, By::Session, locations, registry);
        }
    }
}
