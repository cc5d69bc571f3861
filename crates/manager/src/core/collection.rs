//! Collection: chunks to which nothing refers, and blocks beyond what is wanted, are deleted.
//!
//! What versions and the bases of sessions refer to is known at any time ([`super::references`]). A chunk to which nothing refers is
//! garbage once no session holds it and nobody has brought it up for long enough: a client may hold it in a session that isn't open
//! (again) yet. By itself the manager also waits as long after the last version has gone: readers may have it open. Candidates are
//! kept in lists, so a collection looks at these alone, in steps between requests.
//!
//! Where a writer finds no room, an *effort* to make some begins: what is garbage goes at once. Its age is no matter then, since the manager
//! knows all that sessions hold, unless a client that may come back has lost its own. An effort is over once nothing more can
//! come of it: nothing is left to collect, and benefactors have reported behind all that they were told to delete.
//!
//! | an effort | when |
//! |---|---|
//! | begins | a writer finds no room, and none is under way |
//! | is followed by another one | a writer finds no room while one is under way |
//! | goes on | older versions are still looked for that may go, or there is garbage that was brought up just now, or keepers lag, or deletions are on their way |
//! | ends | nothing more comes of it, or it takes too long, or nothing may be collected |

use std::collections::{HashMap, HashSet};

use stdchk_model::message::manager::{CollectionStopped, ManagerReply};
use stdchk_model::{BenefactorId, BlockId, ChunkId, Failure};

use super::locations::Slot;
use super::surplus::Spare;
use super::{Core, Now, unavailable};

/// Pause behind a collection for each of its steps, milliseconds: a step takes some milliseconds, so collections take a small part of
/// the time and never crowd out requests.
const PAUSE_PER_STEP_MS: u64 = 100;

/// Garbage that was brought up so long ago goes in an effort to make room, milliseconds: within that time who committed a version asks again
/// for chunks that it let go of.
const AGE_IN_EFFORT_MS: u64 = 2_000;
/// Longest effort to make room, milliseconds: some heartbeats, with time between them. Writers wait for two at most.
const EFFORT_MS_MAX: u64 = 10_000;
/// Heartbeats after which what was deleted shows in the free space of a benefactor: it is freed beside them.
const BEATS_TO_FREE: u8 = 2;

/// Time for which collection may wait for keepers before that is told, milliseconds: they are seconds behind as a rule.
const WAITS_UNTOLD_MS: u64 = 60_000;

/// How far a collection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cursor {
    /// Chunks to which nothing refers, behind this one.
    Garbage(Option<(u64, Slot)>),
    /// Chunks with blocks to spare, behind this one.
    Surplus(Option<Slot>),
}

/// What was, or would be, deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Collected {
    /// Whole chunks.
    pub chunks: u64,
    /// Blocks of them, and of others.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
}

impl Collected {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            chunks: self.chunks + other.chunks,
            blocks: self.blocks + other.blocks,
            bytes: self.bytes + other.bytes,
        }
    }

    fn block(&mut self, stored_length: u32) {
        self.blocks += 1;
        self.bytes += u64::from(stored_length);
    }
}

impl From<Collected> for ManagerReply {
    fn from(Collected { chunks, blocks, bytes }: Collected) -> Self {
        Self::Collected { chunks, blocks, bytes }
    }
}

/// The collections that the manager does by itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ByItself {
    /// How far the present one has come.
    cursor: Option<Cursor>,
    /// Its steps so far.
    steps: u64,
    /// When the next one may begin, milliseconds of the manager's life.
    next_ms: u64,
    /// The commit that keepers must go beyond before anything else is collected, and since when, milliseconds of the manager's life.
    waits: Option<(u64, u64)>,
    /// Garbage was passed over that was brought up just now.
    passed_over_young: bool,
}

/// Efforts to make room for writers that found none.
#[derive(Debug, Default)]
pub(super) struct Efforts {
    /// When the present one began, milliseconds of the manager's life.
    began_ms: Option<u64>,
    /// How many are over.
    over: u64,
    /// The number of the last one that somebody waits for.
    wanted: u64,
    /// Benefactors that were told to delete blocks, with the heartbeats behind which that shows.
    deleting: HashMap<BenefactorId, u8>,
    /// Until then a client may come back whose sessions were forgotten, milliseconds of the manager's life.
    unsure_until_ms: u64,
    /// Rises whenever whoever waits for room should ask again.
    changes: u64,
}

impl Efforts {
    /// For a manager that may have had sessions before it started, if `is_new` doesn't say that the pool is new.
    pub fn begin(&mut self, is_new: bool, garbage_age_ms: u64) {
        self.unsure_until_ms = if is_new { 0 } else { garbage_age_ms };
    }

    /// Sessions were forgotten of a client that was silent.
    pub fn sessions_forgotten(&mut self, now_ms: u64, garbage_age_ms: u64) {
        self.unsure_until_ms = self.unsure_until_ms.max(now_ms.saturating_add(garbage_age_ms));
    }

    /// A benefactor is told to delete blocks.
    pub fn told_to_delete(&mut self, id: BenefactorId) {
        self.deleting.insert(id, BEATS_TO_FREE);
    }

    /// A benefactor has told its load.
    pub fn heard(&mut self, id: BenefactorId) {
        if self.began_ms.is_some() {
            self.changes += 1;
        }
        if let Some(beats) = self.deleting.get_mut(&id) {
            *beats -= 1;
            if *beats == 0 {
                self.deleting.remove(&id);
            }
        }
    }

    /// The orders of a benefactor are void.
    pub fn forget(&mut self, id: BenefactorId) {
        self.deleting.remove(&id);
    }
}

impl Core {
    /// Deletes a part of what may go, or only counts it; where to go on, if there is more to look at. Somebody asked for it: readers of
    /// versions that were removed moments ago are not waited for.
    ///
    /// # Errors
    /// `Denied`: the manager is set back. `Unavailable`: it is too early after the manager's start. Nothing was deleted.
    pub fn collect(
        &mut self,
        from: Cursor,
        dry_run: bool,
        now: Now,
    ) -> Result<(Collected, Option<Cursor>), Failure> {
        self.collect_some(from, u64::MAX, dry_run, now)
    }

    /// Begins an effort to make room, or another one behind that which is under way. The number of efforts that are over once it is.
    pub fn make_room(&mut self, now: Now) -> u64 {
        self.thinning.hurry();
        let efforts = &mut self.efforts;
        efforts.wanted = match efforts.began_ms {
            Some(_) => efforts.over + 2,
            None => {
                (efforts.began_ms, self.collecting.cursor) = (Some(now.ms), None);
                efforts.over + 1
            }
        };
        efforts.wanted
    }

    /// How many efforts to make room are over, and a number that rises whenever there may be room.
    pub fn efforts(&self) -> (u64, u64) {
        (self.efforts.over, self.efforts.changes)
    }

    /// Whether an effort to make room is under way.
    pub fn makes_room(&self) -> bool {
        self.efforts.began_ms.is_some()
    }

    /// Does a part of the present effort. Tells whether there is more to do at once.
    fn make_effort(&mut self, began_ms: u64, now: Now) -> bool {
        let from = self.collecting.cursor.take().unwrap_or_else(|| {
            self.collecting.passed_over_young = false;
            Cursor::Garbage(None)
        });
        let collected = match now.ms >= self.efforts.unsure_until_ms {
            true => self.collect_at_once(from, now),
            false => self.collect_some(from, now.ms.saturating_sub(AGE_IN_EFFORT_MS), false, now),
        };
        if let Ok((found, Some(rest))) = collected {
            tell(found);
            self.collecting.cursor = Some(rest);
            return true;
        }
        let may_more_come = collected.is_ok() && now.ms.saturating_sub(began_ms) < EFFORT_MS_MAX && {
            let is_online = |id: &BenefactorId| self.registry.is_online(*id);
            let has_orders = self.deletions.iter().any(|(id, queue)| is_online(id) && !queue.is_empty());
            let deletes = self.efforts.deleting.keys().any(is_online);
            let waits = self.locations.holdings.waits_for_keepers().is_some();
            self.collecting.passed_over_young
                || has_orders
                || deletes
                || waits
                || self.settled && self.thinning.is_busy()
        };
        if !may_more_come {
            let efforts = &mut self.efforts;
            (efforts.over, efforts.changes) = (efforts.over + 1, efforts.changes + 1);
            efforts.began_ms = (efforts.wanted > efforts.over).then_some(now.ms);
            if self.makes_room() {
                self.thinning.hurry();
            }
        }
        false
    }

    /// Deletes a part of what may go, however young, unless a session holds it; where to go on.
    fn collect_at_once(&mut self, from: Cursor, now: Now) -> Result<(Collected, Option<Cursor>), Failure> {
        self.history.check()?;
        let until_ms = now.ms.saturating_sub(AGE_IN_EFFORT_MS);
        Ok(match from {
            Cursor::Garbage(_) if self.release_held(now) => (Collected::default(), Some(from)),
            Cursor::Garbage(after) => {
                let (found, rest) = self.collect_garbage(after, (until_ms, until_ms), false, now);
                self.collecting.passed_over_young |= rest.is_none() && self.has_garbage_since(until_ms);
                (found, Some(rest.map_or(Cursor::Surplus(None), |after| Cursor::Garbage(Some(after)))))
            }
            Cursor::Surplus(after) => {
                let (found, rest) = self.collect_surplus(after, false, now);
                (found, rest.map(|after| Cursor::Surplus(Some(after))))
            }
        })
    }

    /// Whether something that no session holds was let go of, or brought up, after `ms`. Not all is looked at if it is much.
    fn has_garbage_since(&self, ms: u64) -> bool {
        let young: Vec<Slot> = self.locations.unnamed_since(ms).take(self.setting.steps).collect();
        let spared = self.spared(young.iter().copied());
        young.iter().any(|slot| !spared.contains(&self.locations.at(*slot).id))
    }

    /// Deletes a part of what nothing has referred to since `unnamed_ms`, or only counts it; where to go on.
    fn collect_some(
        &mut self,
        from: Cursor,
        unnamed_ms: u64,
        dry_run: bool,
        now: Now,
    ) -> Result<(Collected, Option<Cursor>), Failure> {
        self.history.check()?;
        let age_ms = self.setting.timing.garbage_age_ms;
        let Some(until_ms) = now.ms.checked_sub(age_ms) else {
            let message = "the manager started a short while ago and files may still be written that it doesn't know of";
            let wait = (age_ms - now.ms).div_ceil(1000);
            return Err(unavailable(message).then(format!("collect again in {wait} s")));
        };
        Ok(match from {
            Cursor::Garbage(_) if self.release_held(now) => (Collected::default(), Some(from)),
            Cursor::Garbage(after) => {
                let (found, rest) = self.collect_garbage(after, (until_ms, unnamed_ms), dry_run, now);
                (found, Some(rest.map_or(Cursor::Surplus(None), |after| Cursor::Garbage(Some(after)))))
            }
            Cursor::Surplus(after) => {
                let (found, rest) = self.collect_surplus(after, dry_run, now);
                (found, rest.map(|after| Cursor::Surplus(Some(after))))
            }
        })
    }

    /// Lets go of a part of what no state names any more to which somebody may return. Tells whether there is more to do at once.
    fn release_held(&mut self, now: Now) -> bool {
        let is_more = self.locations.release(self.setting.steps, &self.registry) == self.setting.steps;
        let waits_for = self.locations.holdings.waits_for_keepers();
        let before = self.collecting.waits.filter(|(commit, _)| Some(*commit) == waits_for);
        self.collecting.waits = waits_for.map(|commit| before.unwrap_or((commit, now.ms)));
        is_more
    }

    /// Since when nothing can be collected, and why; what is over within a minute isn't told.
    pub(super) fn stopped(&self, now: Now) -> Option<CollectionStopped> {
        if self.history.is_set_back() {
            let why = "the manager's store is an older copy".to_owned();
            return Some(CollectionStopped {
                for_ms: now.ms.saturating_sub(self.history.set_back_ms()),
                why,
            });
        }
        let for_ms = now.ms.saturating_sub(self.collecting.waits?.1);
        (for_ms >= WAITS_UNTOLD_MS).then(|| {
            let why = "benefactors that keep the manager's store lack its last commits, and a recovery from them may bring back \
                       what was removed since";
            CollectionStopped { for_ms, why: why.to_owned() }
        })
    }

    /// Does a part of the collection that the manager does by itself. Tells whether there is more to do at once.
    pub(super) fn collect_by_itself(&mut self, now: Now) -> bool {
        if let Some(began_ms) = self.efforts.began_ms {
            return self.make_effort(began_ms, now);
        }
        let ByItself { cursor, next_ms, .. } = self.collecting;
        if cursor.is_none() && now.ms < next_ms {
            return false;
        }
        self.collecting.cursor = None;
        let unnamed_ms = now.ms.saturating_sub(self.setting.timing.garbage_age_ms);
        let from = cursor.unwrap_or(Cursor::Garbage(None));
        let Ok((found, rest)) = self.collect_some(from, unnamed_ms, false, now) else { return false };
        tell(found);
        self.collecting.cursor = rest;
        self.collecting.steps += 1;
        if rest.is_none() {
            let steps = std::mem::take(&mut self.collecting.steps);
            // The two steps that a collection takes at least are none that it could be spared.
            let pause_ms = steps.saturating_sub(2) * PAUSE_PER_STEP_MS;
            self.collecting.next_ms = now.ms + pause_ms.max(self.setting.timing.collect_every_ms);
        }
        rest.is_some()
    }

    fn collect_garbage(
        &mut self,
        after: Option<(u64, Slot)>,
        (until_ms, unnamed_ms): (u64, u64),
        dry_run: bool,
        now: Now,
    ) -> (Collected, Option<(u64, Slot)>) {
        let old: Vec<(u64, Slot)> =
            self.locations.unnamed(after, unnamed_ms).take(self.setting.steps).collect();
        let mut found = Collected::default();
        let spared = self.spared(old.iter().map(|(_, slot)| *slot));
        for (_, slot) in &old {
            let chunk = self.locations.at(*slot);
            let id = chunk.id;
            if chunk.touched_ms() > until_ms {
                continue;
            }
            if spared.contains(&id) {
                // A session brings it up for as long as it is open.
                if !dry_run {
                    self.locations.touch(&id, now.ms);
                }
                continue;
            }
            found.chunks += 1;
            chunk.known(&self.registry).for_each(|holder| found.block(holder.stored_length));
            if !dry_run {
                self.discard(id, *slot);
            }
        }
        (found, old.last().copied().filter(|_| old.len() == self.setting.steps))
    }

    fn collect_surplus(&mut self, after: Option<Slot>, dry_run: bool, now: Now) -> (Collected, Option<Slot>) {
        let candidates: Vec<Slot> = self.locations.spare(after).take(self.setting.steps).collect();
        let mut found = Collected::default();
        if candidates.is_empty() {
            return (found, None);
        }
        let spared = self.spared(candidates.iter().copied());
        let mut free = self.free_space();
        // All are looked at before any goes: what is to be deleted somewhere casts doubt on the rest there.
        let mut surplus = Vec::new();
        for slot in &candidates {
            match self.surplus(*slot, &spared, &mut free, now) {
                Some(spare) => surplus.push((*slot, spare)),
                None => self.locations.is_not_spare(*slot),
            }
        }
        for (slot, Spare { gone, unseen }) in surplus {
            let counted = if dry_run { unseen.as_slice() } else { &[] };
            gone.iter().chain(counted).for_each(|holder| found.block(holder.stored_length));
            if dry_run {
                continue;
            }
            let chunk = self.locations.at(slot);
            let (id, wanted) = (chunk.id, chunk.wanted());
            self.trim(slot, &gone);
            self.check_broken(id, &unseen, now);
            self.ask_for_proofs(id, &unseen, wanted, now);
        }
        (found, candidates.last().copied().filter(|_| candidates.len() == self.setting.steps))
    }

    /// Those of some chunks that sessions hold, or are about to store. No more names are looked at than there are in the sessions, and none of
    /// a session that has more of them than are asked for.
    fn spared(&self, slots: impl Iterator<Item = Slot>) -> HashSet<ChunkId> {
        let asked: HashSet<ChunkId> = slots.map(|slot| self.locations.at(slot).id).collect();
        let mut spared = HashSet::new();
        for session in self.sessions.values() {
            match session.spared_count() > asked.len() {
                true => spared.extend(asked.iter().filter(|chunk| session.spares(chunk))),
                false => spared.extend(session.spared().filter(|chunk| asked.contains(*chunk))),
            }
        }
        spared
    }

    /// Takes a chunk out of the index and has its blocks deleted; one that is put again from now on stays.
    fn discard(&mut self, id: ChunkId, slot: Slot) {
        for holder in self.locations.forget(slot) {
            if holder.is_known(&self.registry) {
                self.delete(holder.block(id), holder.benefactor);
            }
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

/// Says what was collected.
fn tell(found: Collected) {
    if found != Collected::default() {
        let Collected { chunks, blocks, bytes } = found;
        tracing::info!(chunks, blocks, bytes, "collected what nothing refers to");
    }
}
