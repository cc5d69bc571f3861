//! The location index: which benefactor holds which block, how many copies there should be, and which are missing.
//!
//! Soft state: built from inventories, heartbeats and the reports of sessions. A holder is *confirmed* once the
//! benefactor itself reported the block durable, or a session committed it; before that it is a session's claim, which
//! no other session may build on. Chunks with fewer usable copies than wanted stand in a queue ordered by how few are left.

use std::collections::{BTreeSet, HashMap};

use stdchk_model::message::manager::{ChunkLocations, Location, StoredBlock};
use stdchk_model::{BenefactorId, BlockId, ChunkId};

use super::benefactors::Registry;

/// A block of a chunk at a benefactor.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    pub benefactor: BenefactorId,
    pub fragment: u16,
    /// Durable: reported by the benefactor itself or committed, not only claimed by a session.
    pub confirmed: bool,
    /// The benefactor's inventory that saw it last.
    pub inventory: u32,
    /// Bytes that it takes there; 0 while unconfirmed.
    pub stored_length: u32,
}

/// What is known of a chunk.
#[derive(Clone, Debug, Default)]
pub struct Chunk {
    pub length: u32,
    /// Copies that the versions referring to it ask for; 0: none is known to.
    pub wanted: u8,
    /// The marking that last reached it.
    pub marked: u32,
    /// When a session or a benefactor last brought it up, milliseconds of the manager's life.
    pub touched_ms: u64,
    pub holders: Vec<Holder>,
    /// Its place in the queue of chunks at risk: usable copies left.
    queued: Option<u8>,
}

/// The index.
#[derive(Debug, Default)]
pub struct Locations {
    chunks: HashMap<ChunkId, Chunk>,
    at_risk: BTreeSet<(u8, ChunkId)>,
    /// Blocks known per benefactor.
    blocks: HashMap<BenefactorId, u64>,
}

impl Locations {
    pub fn get(&self, id: &ChunkId) -> Option<&Chunk> {
        self.chunks.get(id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ChunkId, &Chunk)> {
        self.chunks.iter()
    }

    /// Blocks that a benefactor is known to hold.
    pub fn blocks_at(&self, id: BenefactorId) -> u64 {
        self.blocks.get(&id).copied().unwrap_or(0)
    }

    /// Chunks with fewer usable copies than wanted and at least one, those with fewest first.
    pub fn at_risk(&self) -> impl Iterator<Item = ChunkId> {
        self.at_risk.iter().map(|(_, id)| *id)
    }

    pub fn at_risk_count(&self) -> usize {
        self.at_risk.len()
    }

    /// Benefactors with a whole copy that counts; claims count only with `claims`.
    pub fn copies(&self, id: &ChunkId, claims: bool, registry: &Registry) -> usize {
        let holders = self.chunks.get(id).map(|chunk| chunk.holders.iter());
        let counted = holders.into_iter().flatten().filter(|holder| claims || holder.confirmed);
        counted.filter(|holder| is_usable(holder, registry)).count()
    }

    /// A session says that it stored the chunk there.
    pub fn claim(&mut self, id: ChunkId, length: u32, at: BenefactorId, inventory: u32, now_ms: u64) {
        let chunk = self.chunks.entry(id).or_default();
        chunk.length = length;
        chunk.touched_ms = now_ms;
        if let Some(holder) = find(chunk, at, BlockId::WHOLE) {
            holder.inventory = inventory;
            return;
        }
        chunk.holders.push(Holder {
            benefactor: at,
            fragment: BlockId::WHOLE,
            confirmed: false,
            inventory,
            stored_length: 0,
        });
        *self.blocks.entry(at).or_insert(0) += 1;
    }

    /// A session that stored the chunk vouches that all its copies are durable.
    pub fn vouch(&mut self, id: &ChunkId) {
        let holders = self.chunks.get_mut(id).map(|chunk| chunk.holders.iter_mut());
        holders.into_iter().flatten().for_each(|holder| holder.confirmed = true);
    }

    /// A benefactor says that it holds the block, durable.
    pub fn confirm(&mut self, stored: &StoredBlock, at: BenefactorId, inventory: u32, now_ms: u64) {
        let chunk = self
            .chunks
            .entry(stored.block.chunk)
            .or_insert_with(|| Chunk { touched_ms: now_ms, ..Chunk::default() });
        chunk.length = stored.plain_length;
        let confirmed = Holder {
            benefactor: at,
            fragment: stored.block.fragment,
            confirmed: true,
            inventory,
            stored_length: stored.stored_length,
        };
        match find(chunk, at, stored.block.fragment) {
            Some(holder) => *holder = confirmed,
            None => {
                chunk.holders.push(confirmed);
                *self.blocks.entry(at).or_insert(0) += 1;
            }
        }
    }

    /// The block is there no longer. Returns whether it was known.
    pub fn remove(&mut self, block: &BlockId, at: BenefactorId) -> bool {
        let gone = |holder: &Holder| holder.benefactor == at && holder.fragment == block.fragment;
        self.retain_holders(&block.chunk, |holder| !gone(holder)) > 0
    }

    fn retain_holders(&mut self, id: &ChunkId, keep: impl Fn(&Holder) -> bool) -> usize {
        let Some(chunk) = self.chunks.get_mut(id) else { return 0 };
        let before = chunk.holders.len();
        for holder in chunk.holders.iter().filter(|holder| !keep(holder)) {
            let count = self.blocks.entry(holder.benefactor).or_insert(0);
            *count = count.saturating_sub(1);
        }
        chunk.holders.retain(keep);
        let removed = before - chunk.holders.len();
        if chunk.holders.is_empty() && chunk.wanted == 0 {
            self.forget(id);
        }
        removed
    }

    /// Removes the holders of one benefactor that `stays` refuses. Looks at every chunk: for registrations and inventories.
    pub fn sift(&mut self, at: BenefactorId, registry: &Registry, stays: impl Fn(&Holder) -> bool) {
        let gone = |holder: &Holder| holder.benefactor == at && !stays(holder);
        let affected = self.chunks.iter().filter(|(_, chunk)| chunk.holders.iter().any(gone));
        let affected: Vec<ChunkId> = affected.map(|(id, _)| *id).collect();
        for id in affected {
            self.retain_holders(&id, |holder| !gone(holder));
            self.requeue(&id, registry);
        }
    }

    /// Takes a chunk out of the index altogether; its blocks, to be deleted.
    pub fn forget(&mut self, id: &ChunkId) -> Vec<Holder> {
        let Some(chunk) = self.chunks.remove(id) else { return Vec::new() };
        if let Some(count) = chunk.queued {
            self.at_risk.remove(&(count, *id));
        }
        for holder in &chunk.holders {
            let count = self.blocks.entry(holder.benefactor).or_insert(0);
            *count = count.saturating_sub(1);
        }
        chunk.holders
    }

    /// A session counts on the chunk: it is brought up now.
    pub fn touch(&mut self, id: &ChunkId, now_ms: u64) {
        if let Some(chunk) = self.chunks.get_mut(id) {
            chunk.touched_ms = now_ms;
        }
    }

    /// A version refers to the chunk and wants `wanted` copies; `marking` is the present marking.
    pub fn refer(&mut self, id: &ChunkId, wanted: u8, marking: u32, registry: &Registry) {
        let chunk = self.chunks.entry(*id).or_default();
        let wanted = if chunk.marked == marking { chunk.wanted.max(wanted) } else { wanted };
        chunk.marked = marking;
        if chunk.wanted != wanted {
            chunk.wanted = wanted;
            self.requeue(id, registry);
        }
    }

    /// No version refers to the chunk.
    pub fn unwant(&mut self, id: &ChunkId, registry: &Registry) {
        if let Some(chunk) = self.chunks.get_mut(id)
            && chunk.wanted != 0
        {
            chunk.wanted = 0;
            self.requeue(id, registry);
            self.retain_holders(id, |_| true);
        }
    }

    /// Puts the chunk where it belongs in the queue of chunks at risk.
    pub fn requeue(&mut self, id: &ChunkId, registry: &Registry) {
        let Some(chunk) = self.chunks.get_mut(id) else { return };
        let copies = u8::try_from(usable(chunk, registry)).unwrap_or(u8::MAX);
        let place = (copies > 0 && copies < chunk.wanted).then_some(copies);
        if chunk.queued != place {
            if let Some(old) = chunk.queued {
                self.at_risk.remove(&(old, *id));
            }
            if let Some(new) = place {
                self.at_risk.insert((new, *id));
            }
            chunk.queued = place;
        }
    }

    /// Puts every chunk where it belongs: after benefactors were lost or came back.
    pub fn requeue_all(&mut self, registry: &Registry) {
        let ids: Vec<ChunkId> = self.chunks.keys().copied().collect();
        ids.iter().for_each(|id| self.requeue(id, registry));
    }

    /// Where a chunk can be read, on-line benefactors first.
    pub fn locate(&self, id: &ChunkId, registry: &Registry) -> ChunkLocations {
        let holders = self.chunks.get(id).map_or(&[][..], |chunk| &chunk.holders);
        let (online, others): (Vec<&Holder>, Vec<&Holder>) =
            holders.iter().partition(|holder| registry.is_online(holder.benefactor));
        let readable = others.into_iter().filter(|holder| registry.counts(holder.benefactor));
        let pending = online.is_empty() && registry.is_pending();
        let at = online.into_iter().chain(readable).map(location).collect();
        ChunkLocations { at, pending }
    }

    /// Where a chunk is on-line and durable now.
    pub fn locate_durable(&self, id: &ChunkId, registry: &Registry) -> ChunkLocations {
        let holders = self.chunks.get(id).map_or(&[][..], |chunk| &chunk.holders);
        let online =
            holders.iter().filter(|holder| holder.confirmed && registry.is_online(holder.benefactor));
        let at: Vec<Location> = online.map(location).collect();
        let pending = at.is_empty() && registry.is_pending();
        ChunkLocations { at, pending }
    }
}

fn location(holder: &Holder) -> Location {
    Location { benefactor: holder.benefactor, fragment: holder.fragment }
}

fn find(chunk: &mut Chunk, at: BenefactorId, fragment: u16) -> Option<&mut Holder> {
    chunk.holders.iter_mut().find(|holder| holder.benefactor == at && holder.fragment == fragment)
}

fn usable(chunk: &Chunk, registry: &Registry) -> usize {
    chunk.holders.iter().filter(|holder| is_usable(holder, registry)).count()
}

fn is_usable(holder: &Holder, registry: &Registry) -> bool {
    holder.fragment == BlockId::WHOLE && registry.counts(holder.benefactor)
}
