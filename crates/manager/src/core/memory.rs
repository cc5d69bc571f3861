//! Memory is given back once disks have what is wanted: it is scarce, and the next checkpoint needs it.
//!
//! What lies in memory counts for nothing, so what may go is simple: disks must keep the chunk as far from loss as is wanted, or have as much
//! of it as they can take, by blocks that are beyond doubt ([`Core::surely_there`]), and that the memory's own benefactor has seen
//! ([`super::proofs`]). A session that counts on copies in memory loses nothing: its commit is as content with the disks.
//!
//! | what happens | what becomes of the copies in memory |
//! |---|---|
//! | disks report the last block that was wanted | they go with the next heartbeats |
//! | no other disk is there with room for what lacks, and one has it | they go as well: else memory would fill for good |
//! | another disk is away for a while, and may take it | they stay |
//! | disks have what is wanted, and it is in doubt | they stay, and are looked at again |
//! | a disk is lost before they went | they stay, and blocks are made of them |
//! | nothing refers to the chunk | they go with a collection, as blocks on disks do |

use stdchk_placement::HostState;
use stdchk_protect::distance_trusted;

use super::chunk::{Holder, held};
use super::locations::Slot;
use super::surplus::Spare;
use super::{Core, Now};

/// Time between two looks at what may go, milliseconds: half a heartbeat, with which it is told. Longer where a look found much that has to stay: a
/// look takes a microsecond or two for each chunk.
const LOOK_EVERY_MS: u64 = 250;
/// Chunks that may be looked at in each millisecond of that time.
const LOOKED_AT_EACH_MS: u64 = 10;

/// How far the present look has come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Emptying {
    after: Option<Slot>,
    /// Chunks that it found and that stay.
    stay: u64,
    /// When the next one may begin, milliseconds of the manager's life.
    next_ms: u64,
}

impl Core {
    /// Has copies in memory deleted that disks have as well, as far as they are wanted. Tells whether there is more to do at once.
    pub(super) fn empty_memory(&mut self, now: Now) -> bool {
        let Emptying { after, mut stay, next_ms } = self.emptying;
        if now.ms < next_ms || self.registry.is_pending() || self.history.is_set_back() {
            return false;
        }
        let slots: Vec<Slot> = self.locations.spare_in_memory(after).take(self.setting.steps).collect();
        let has_more = slots.len() == self.setting.steps;
        let with_room = self.disks_with_room();
        for slot in &slots {
            let Some((Spare { gone, unseen }, enough)) = self.spare_in_memory(*slot, &with_room) else {
                stay += 1;
                continue;
            };
            stay += u64::from(gone.is_empty());
            let chunk = self.locations.at(*slot).id;
            if !gone.is_empty() {
                self.trim(*slot, &gone);
                self.locations.requeue(&chunk, &self.registry);
            }
            self.ask_for_proofs(chunk, &unseen, enough, now);
        }
        self.emptying = match slots.last() {
            Some(last) if has_more => Emptying { after: Some(*last), stay, next_ms },
            _ => {
                let pause = LOOK_EVERY_MS.max(stay / LOOKED_AT_EACH_MS);
                Emptying { after: None, stay: 0, next_ms: now.ms + pause }
            }
        };
        has_more
    }

    /// Disks that take more, or may once they are back. One that is full, paused, or to let go of what it has says that it has no room.
    fn disks_with_room(&self) -> Vec<HostState> {
        let takes = |host: &&HostState| host.free_bytes > 0 && self.registry.counts(host.id);
        self.registry.hosts().iter().filter(takes).copied().collect()
    }

    /// The copies of a chunk in memory, if disks surely have what is wanted of it; or surely some of it, and none of those `with_room` can take
    /// what lacks. With the distance to loss that the disks keep.
    fn spare_in_memory(&self, slot: Slot, with_room: &[HostState]) -> Option<(Spare, u8)> {
        let (chunk, registry) = (self.locations.at(slot), &self.registry);
        let stays = |holder: &&Holder| !holder.leaves(registry);
        let staying: Vec<Holder> = self.surely_there(chunk).filter(stays).copied().collect();
        // What is in memory is a copy: it goes in favour of what surely makes the chunk.
        let on_disks = distance_trusted(held(staying.iter(), registry));
        let takes = |host: &HostState| {
            host.free_bytes >= u64::from(chunk.length)
                && !chunk.holders.iter().any(|holder| holder.benefactor == host.id)
        };
        let is_all = || on_disks == chunk.distance_staying(registry) && !with_room.iter().any(takes);
        let is_enough = on_disks > 0 && (on_disks >= chunk.wanted() || is_all());
        if !is_enough || self.copies.is_running(&chunk.id) {
            return None;
        }
        let enough = on_disks.min(chunk.wanted());
        let in_memory = chunk.known(registry).filter(|holder| holder.is_in_memory(registry)).copied();
        let (gone, unseen) =
            in_memory.partition(|holder| self.has_seen_enough(&chunk.id, holder, &staying, enough));
        Some((Spare { gone, unseen }, enough))
    }
}
