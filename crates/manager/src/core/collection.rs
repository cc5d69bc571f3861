//! Collection: mark what versions and sessions refer to, sweep the rest (paper, section IV.A; I4).
//!
//! A marking is a generation. It starts with a list of the maps that only benefactors have; the shell reads them, verified,
//! and hands in what they name; commits that happen meanwhile mark their chunks themselves. Only when every map was
//! read may the sweep remove what the generation didn't reach, and only what nobody brought up for a while. Marking
//! also finds out anew how many copies each chunk should have.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use stdchk_model::message::manager::{BenefactorInfo, ManagerReply, TimeNs};
use stdchk_model::{BenefactorId, BlockId, ChunkId, ChunkRef, ErrorCode, Failure, Ino, MapRoot};

use super::exposure::{SHARED, Span, joined};
use super::hold::NamedBelow;
use super::inode::Body;
use super::locations::{Chunk, Holder};
use super::{Core, Now, unavailable};

/// Memory for chunk lists of maps that were read, bytes; maps beyond are read again in each marking.
const LISTS_BYTES_MAX: usize = 64 << 20;

/// Markings run at most this fraction of the time, so that they never crowd out requests: one part in so many.
const PAUSE_FACTOR: u64 = 20;

/// A chunk map that lies in the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapToRead {
    /// Identity of the map: of its pieces.
    pub key: ChunkId,
    /// Its pieces in order, each with its blocks and the benefactors to ask for them.
    pub pieces: Vec<(ChunkRef, Vec<(BlockId, BenefactorInfo)>)>,
    /// Length of the encoded map, bytes.
    pub length: u64,
    /// The distance to loss that its chunks should have.
    pub wanted: u8,
    /// The versions that it is the map of; `None`: only sessions build on it.
    pub span: Option<Span>,
}

/// What is known of a map that versions or sessions refer to.
struct Root {
    root: MapRoot,
    wanted: u8,
    span: Option<Span>,
}

/// A version, as the markings look at it.
struct Kept {
    root: MapRoot,
    wanted: u8,
    folder: Ino,
    timestep: Option<u64>,
    committed_at: TimeNs,
    /// It got its name after it was committed.
    renamed: bool,
}

/// A marking that was begun.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Marking {
    /// Its number.
    pub generation: u32,
    /// What must be read before the sweep.
    pub maps: Vec<MapToRead>,
}

/// How far marking has come.
#[derive(Debug, Default)]
pub struct Progress {
    generation: u32,
    /// Maps of the present generation that were not handed in yet.
    missing: HashSet<ChunkId>,
    /// The last generation that reached everything; 0: none.
    complete: u32,
    /// Removals that the namespace had seen when the present generation began.
    removals: u64,
    /// Something was too young to be collected, or came from an inventory since.
    pub(super) again: bool,
    begun_ms: u64,
    /// The next one waits so long after the last began, milliseconds.
    pause_ms: u64,
    lists: HashMap<ChunkId, Arc<[ChunkId]>>,
    lists_bytes: usize,
    /// Maps of the present generation, whose lists stay.
    used: HashSet<ChunkId>,
}

impl Progress {
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether all that versions refer to was found out at least once since the manager started.
    pub fn is_complete(&self) -> bool {
        self.complete != 0
    }

    fn keep(&mut self, key: ChunkId, chunks: &[ChunkId]) {
        let bytes = size_of_val(chunks);
        if self.lists_bytes + bytes <= LISTS_BYTES_MAX && !self.lists.contains_key(&key) {
            self.lists_bytes += bytes;
            self.lists.insert(key, chunks.into());
        }
    }

    fn drop_unused_lists(&mut self) {
        let used = &self.used;
        self.lists.retain(|key, _| used.contains(key));
        self.lists_bytes = self.lists.values().map(|chunks| size_of_val(&**chunks)).sum();
    }
}

impl Core {
    /// Begins a marking; an unfinished one before it is void.
    ///
    /// # Errors
    /// The manager is set back, or a root makes no sense.
    pub fn begin_marking(&mut self, now: Now) -> Result<Marking, Failure> {
        self.history.check()?;
        self.marking.generation += 1;
        self.marking.missing.clear();
        self.marking.used.clear();
        self.marking.removals = self.namespace.removals;
        self.marking.again = false;
        self.marking.begun_ms = now.ms;
        self.locations.is_counting = !self.marking.is_complete();
        let mut roots: HashMap<ChunkId, Root> = HashMap::new();
        for Root { root, wanted, span } in self.roots()? {
            let root =
                root.of_chunks().map_err(|error| Failure::new(ErrorCode::Damaged, error.to_string()))?;
            let known = roots.entry(key_of(&root)).or_insert(Root { root, wanted, span });
            known.wanted = known.wanted.max(wanted);
            known.span = joined(known.span, span);
        }
        let mut maps = Vec::new();
        for (key, root) in roots {
            maps.extend(self.mark_root(key, &root, now)?);
        }
        self.marking.missing = maps.iter().map(|map| map.key).collect();
        Ok(Marking { generation: self.marking.generation, maps })
    }

    /// The maps of all versions and of what sessions build on, with the copies that they ask for.
    fn roots(&mut self) -> Result<Vec<Root>, Failure> {
        let kept = self.kept_versions()?;
        let mut alive = HashSet::new();
        for version in &kept {
            if let Some(timestep) = version.timestep {
                alive.insert((version.folder, timestep));
                self.begun.note(version.folder, timestep, version.committed_at);
            }
        }
        self.begun.retain(&alive);
        let mut roots: Vec<Root> = Vec::with_capacity(kept.len());
        for Kept { root, wanted, folder, timestep, committed_at, renamed } in kept {
            let timestep = timestep.filter(|_| !renamed);
            let begun = timestep.map(|timestep| self.begun.note(folder, timestep, committed_at));
            let span = Some(Span::at(folder, begun.unwrap_or(committed_at)));
            roots.push(Root { root, wanted, span });
        }
        let bases = self.sessions.values().filter_map(|session| session.base.clone());
        roots.extend(bases.map(|root| Root { root, wanted: 1, span: None }));
        Ok(roots)
    }

    fn kept_versions(&self) -> Result<Vec<Kept>, Failure> {
        let mut folders: HashMap<Ino, (u8, Option<NamedBelow>)> = HashMap::new();
        let mut kept = Vec::new();
        for (ino, inode) in &self.namespace.inodes {
            let Body::File(file) = &inode.body else { continue };
            let (wanted, below) = match folders.entry(inode.parent) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(unknown) => {
                    let wanted = self.namespace.policy(*ino)?.redundancy.distance();
                    // A file without a name may have outlived its folder.
                    unknown.insert((wanted, self.namespace.named_below(inode.parent).ok()))
                }
            };
            kept.extend(file.versions.iter().map(|(number, version)| Kept {
                root: version.root.clone(),
                wanted: *wanted,
                folder: below.as_ref().map_or(SHARED, NamedBelow::folder),
                timestep: below.as_ref().and_then(|below| below.timestep(&inode.name, *number)),
                committed_at: version.committed_at,
                renamed: inode.named > version.committed_at,
            }));
        }
        Ok(kept)
    }

    /// Marks what is known of a map; what must be read to know more.
    fn mark_root(&mut self, key: ChunkId, root: &Root, now: Now) -> Result<Option<MapToRead>, Failure> {
        let Root { root, wanted, span } = root;
        let (pieces, length) = match root {
            MapRoot::Pieces { pieces, length } => (pieces, *length),
            MapRoot::Inline { map } => {
                let map = super::commit::inline_map(map)?;
                map.chunks().iter().for_each(|chunk| self.mark(&chunk.id, *wanted, *span));
                return Ok(None);
            }
        };
        self.marking.used.insert(key);
        pieces.iter().for_each(|piece| self.mark(&piece.id, *wanted, *span));
        if let Some(chunks) = self.marking.lists.get(&key).cloned() {
            chunks.iter().for_each(|chunk| self.mark(chunk, *wanted, *span));
            return Ok(None);
        }
        let pieces = pieces.iter().map(|piece| (*piece, self.readers_of(&piece.id, now))).collect();
        Ok(Some(MapToRead { key, pieces, length, wanted: *wanted, span: *span }))
    }

    fn mark(&mut self, chunk: &ChunkId, wanted: u8, span: Option<Span>) {
        self.locations.refer(chunk, wanted, span, self.marking.generation, &self.registry);
    }

    fn readers_of(&self, chunk: &ChunkId, now: Now) -> Vec<(BlockId, BenefactorInfo)> {
        let at = self.locations.locate(chunk, &self.registry).at.into_iter();
        at.filter_map(|at| Some((at.block(*chunk), self.registry.info(at.benefactor, now.ms)?))).collect()
    }

    /// Takes in the chunks of a map that a marking asked for.
    pub fn marked(&mut self, generation: u32, map: &MapToRead, chunks: &[ChunkId]) {
        if generation != self.marking.generation || !self.marking.missing.remove(&map.key) {
            return;
        }
        chunks.iter().for_each(|chunk| self.mark(chunk, map.wanted, map.span));
        self.marking.keep(map.key, chunks);
    }

    /// Whether a marking is due: benefactors have reported, and there may be garbage, or nobody has found out yet how many
    /// copies chunks should have.
    pub fn marking_is_due(&self, now: Now) -> bool {
        if self.registry.is_pending() || self.history.is_set_back() {
            return false;
        }
        let wanted = self.marking.complete == 0
            || self.marking.again
            || self.marking.removals != self.namespace.removals;
        let first = self.marking.generation == 0;
        let pause_ms = self.marking.pause_ms.max(self.setting.timing.collect_every_ms);
        wanted && (first || now.ms.saturating_sub(self.marking.begun_ms) >= pause_ms)
    }

    /// Removes what the marking didn't reach and copies that nobody asks for, or only counts them.
    ///
    /// # Errors
    /// `Unavailable`: a map is missing, or it is too early after the manager's start; nothing was removed.
    pub fn sweep(&mut self, generation: u32, dry_run: bool, now: Now) -> Result<ManagerReply, Failure> {
        self.check_sweep(generation).inspect_err(|_| self.marking.again = true)?;
        self.marking.complete = generation;
        self.marking.pause_ms = now.ms.saturating_sub(self.marking.begun_ms).saturating_mul(PAUSE_FACTOR);
        self.marking.drop_unused_lists();
        self.unwant_unreached(generation);
        let age_ms = self.setting.timing.garbage_age_ms;
        if now.ms < age_ms {
            self.marking.again = true;
            let wait = (age_ms - now.ms).div_ceil(1000);
            return Err(unavailable(
                "the manager started a short while ago and files may still be written that it doesn't know of",
            )
            .then(format!("collect again in {wait} s")));
        }
        let held: HashSet<&ChunkId> = self.sessions.values().flat_map(|session| session.spared()).collect();
        let (garbage, young) = self.garbage(generation, &held, now);
        let surplus = self.surplus(generation, &held, now);
        let reply = self.account(&garbage, &surplus.blocks);
        let left = dry_run && !(garbage.is_empty() && surplus.blocks.is_empty());
        self.marking.again |= young || surplus.in_doubt || left;
        if !dry_run {
            garbage.iter().for_each(|chunk| self.discard(chunk));
            self.trim(&surplus.blocks, now);
        }
        Ok(reply)
    }

    fn check_sweep(&self, generation: u32) -> Result<(), Failure> {
        self.history.check()?;
        if generation != self.marking.generation {
            return Err(unavailable("another collection has begun meanwhile: see what it brings"));
        }
        if self.marking.missing.is_empty() {
            return Ok(());
        }
        let message = format!(
            "{} chunk maps can't be read, so nothing is collected: bring the benefactors back that hold them, or \
             remove the files",
            self.marking.missing.len()
        );
        Err(Failure::new(ErrorCode::Unavailable, message))
    }

    fn unwant_unreached(&mut self, generation: u32) {
        let unreached =
            |(id, chunk): (&ChunkId, &Chunk)| (chunk.marked != generation && chunk.wanted > 0).then_some(*id);
        let unreached: Vec<ChunkId> = self.locations.iter().filter_map(unreached).collect();
        unreached.iter().for_each(|id| self.locations.unwant(id, &self.registry));
    }

    /// What may go, and whether something may once it is older.
    fn garbage(&self, generation: u32, held: &HashSet<&ChunkId>, now: Now) -> (Vec<ChunkId>, bool) {
        let age_ms = self.setting.timing.garbage_age_ms;
        let unreached = |(id, chunk): &(&ChunkId, &Chunk)| {
            chunk.marked != generation && !held.contains(id) && !chunk.holders.is_empty()
        };
        let is_old = |(_, chunk): &(&ChunkId, &Chunk)| now.ms.saturating_sub(chunk.touched_ms) >= age_ms;
        let (old, young): (Vec<_>, Vec<_>) = self.locations.iter().filter(unreached).partition(is_old);
        (old.into_iter().map(|(id, _)| *id).collect(), !young.is_empty())
    }

    fn account(&self, garbage: &[ChunkId], surplus: &[(ChunkId, Holder)]) -> ManagerReply {
        let mut blocks = u64::try_from(surplus.len()).unwrap_or(u64::MAX);
        let lengths = surplus.iter().filter_map(|(id, _)| self.locations.get(id));
        let mut bytes: u64 = lengths.map(|chunk| u64::from(chunk.length)).sum();
        for chunk in garbage.iter().filter_map(|id| self.locations.get(id)) {
            let holders = u64::try_from(chunk.holders.len()).unwrap_or(u64::MAX);
            blocks = blocks.saturating_add(holders);
            bytes = bytes.saturating_add(holders.saturating_mul(u64::from(chunk.length)));
        }
        ManagerReply::Collected { chunks: u64::try_from(garbage.len()).unwrap_or(u64::MAX), blocks, bytes }
    }

    /// Takes a chunk out of the index and has its blocks deleted; one that is put again from now on stays.
    fn discard(&mut self, id: &ChunkId) {
        for holder in self.locations.forget(id) {
            self.delete(holder.block(*id), holder.benefactor);
        }
    }

    /// Has a block deleted with the next heartbeat, unless it is put again from now on. From now on receipts of before don't
    /// count.
    pub(super) fn delete(&mut self, block: BlockId, at: BenefactorId) {
        let Some(benefactor) = self.registry.get_mut(at) else { return };
        benefactor.fence = benefactor.fence.max(benefactor.durable_sequence);
        self.deletions.entry(at).or_default().insert(block, benefactor.durable_sequence);
    }

    /// A benefactor says that it has the block: no order of before takes it.
    pub(super) fn keep_block(&mut self, block: &BlockId, at: BenefactorId) {
        if let Some(queue) = self.deletions.get_mut(&at) {
            queue.remove(block);
        }
    }
}

/// Identity of a map: maps in the same pieces are the same map.
fn key_of(root: &MapRoot) -> ChunkId {
    match root {
        MapRoot::Inline { map } => ChunkId::of(map),
        MapRoot::Pieces { pieces, .. } => {
            let ids: Vec<u8> = pieces.iter().flat_map(|piece| piece.id.0).collect();
            ChunkId::of(&ids)
        }
    }
}
