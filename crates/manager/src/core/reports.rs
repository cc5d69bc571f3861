//! What benefactors report: registrations, inventories, heartbeats; and what they are told in answer.
//!
//! Registration is soft state (paper, section IV.A). A new life of a benefactor starts with nothing known of it: what it
//! really has comes with its inventory. Nothing that a benefactor says is trusted further than its own blocks.

use std::collections::BTreeMap;

use stdchk_model::limits::{BLOCK_BYTES_MAX, CHUNK_BYTES_MAX};
use stdchk_model::message::benefactor::{BenefactorLoad, Command, OwnerWish};
use stdchk_model::message::manager::{ManagerReply, ManagerRequest, Registration, StoredBlock};
use stdchk_model::{BenefactorId, BlockId, ErrorCode, Failure, Tier};

use super::benefactors::Benefactor;
use super::chunk::{Care, Chunk, Holder};
use super::locations::BlockAge;
use super::walks::Walk;
use super::{Answer, Core, HostKey, Now, check_length};

/// Most blocks that one answer to a heartbeat tells to delete: keeps the answer small.
const DELETIONS_AT_ONCE: usize = 8192;

/// Most blocks of one chunk at one benefactor: of an encoding it is given one each, and some more while hosts are few.
const BLOCKS_OF_CHUNK_MAX: usize = 64;

/// Memory of the manager for a chunk of one block that no version refers to, bytes, with its places in lists.
const BROUGHT_BYTES: u64 = 320;

/// Time for which a benefactor may have more blocks than the index before its inventory is asked for, milliseconds: an
/// inventory of a large benefactor is some ten megabytes.
const RECOUNT_AFTER_MS: u64 = 600_000;

impl Core {
    pub(super) fn register(&mut self, request: ManagerRequest, now: Now) -> Answer {
        let ManagerRequest::Register { registration, secret, proof } = request else {
            return Err(unexpected());
        };
        // Only who was a benefactor of this pool has something that its manager has signed for that number.
        let is_of_old = |id| {
            let remembers = registration.remembered.is_some_and(|told| self.key.believe(told, id).is_some());
            remembers || registration.term.is_some_and(|told| self.key.believe(told, id).is_some())
        };
        let has_number = registration.id.is_some_and(is_of_old);
        let presented = registration.id;
        let at = (now.ms, &self.setting.timing);
        let id = self.registry.admit(&registration, secret, &proof, (self.asking, has_number), at)?;
        let Registration { incarnation, pid, load, remembered, put_sequence, receipt_key, term, .. } =
            registration;
        let next_inventory = self.registry.next_inventory();
        let Some(known) = self.registry.get(id) else { return Err(unexpected()) };
        let new_life = known.incarnation != Some(incarnation);
        // Nobody waits without end for the inventory of one that ends each time before it is told.
        let is_awaited = known.incarnation.is_some() && !known.reported;
        let awaited_since = match new_life && !is_awaited {
            true => self.registry.awaited_since(self.asking, now.ms, &self.setting.timing),
            false => known.registered_ms,
        };
        let Some(benefactor) = self.registry.get_mut(id) else { return Err(unexpected()) };
        if benefactor.tier == Tier::Memory {
            self.hosts.remove(HostKey::Benefactor(id));
        }
        benefactor.incarnation = Some(incarnation);
        benefactor.pid = pid;
        benefactor.heard_ms = now.ms;
        benefactor.tells = false;
        if new_life {
            benefactor.disk = None;
            benefactor.reported = false;
            benefactor.registered_ms = awaited_since;
            (benefactor.not_more_ms, benefactor.not_fewer_ms) = (now.ms, now.ms);
            benefactor.durable_sequence = 0;
            benefactor.fence = put_sequence;
            benefactor.receipt_key = Some(receipt_key);
            (benefactor.inventory, benefactor.valid_inventory) = (next_inventory, next_inventory);
            self.walk(Walk::Benefactor(id, None));
        }
        self.take_load(id, load);
        // What its last life had on order, it doesn't make, and what was put there may be gone.
        let ended = match new_life {
            true => self.copies.benefactors_changed(&[id]),
            false => self.copies.source_registered(id),
        };
        self.copies_ended(&ended);
        self.checks.forget_orders(&[id]);
        self.proofs.forget_orders(&[id]);
        // Its inventory says what is there. What of that is garbage, the next sweep decides anew.
        self.deletions.remove(&id);
        self.efforts.forget(id);
        self.update_states(now);
        // A manager has signed these for the number that it presents.
        let signed_for = presented.unwrap_or(id);
        if let Some(moment) = remembered {
            self.compare_history(id, signed_for, moment);
        }
        self.hosts.labels_changed(id);
        match term.and_then(|term| self.key.believe(term, signed_for)) {
            Some(told) if !self.terms.went_through(told.era) => self.set_back_by_era(id, told.era),
            told => self.terms.hear(told),
        }
        self.rise_above_told_terms();
        let registration = self.registry.number(id);
        self.registry.connects(id, self.asking_by);
        self.tell_registered(id, new_life);
        let permits = self.registry.begin_permits(id, self.setting.start, now.ms).ok_or_else(unexpected)?;
        let moment = self.history.to_remember().map(|moment| self.key.sign(moment, id));
        let term = self.key.sign(self.terms.own(), id);
        Ok(ManagerReply::Registered { id, moment, registration, term, permits })
    }

    /// An inventory gets its number before it is taken: a block of which a receipt says meanwhile that it is durable bears that, too,
    /// and is not unlearned when the inventory is complete and lacks it.
    pub(super) fn begin_inventory(&mut self, id: BenefactorId, registration: u64, now: Now) -> Answer {
        let next_inventory = self.registry.next_inventory();
        let benefactor = self.registry.registered(id, registration)?;
        benefactor.heard_ms = now.ms;
        (benefactor.inventory, benefactor.tells) = (next_inventory, true);
        self.update_states(now);
        Ok(ManagerReply::Done)
    }

    pub(super) fn inventory(&mut self, request: ManagerRequest, now: Now) -> Answer {
        let ManagerRequest::Inventory { id, registration, last, blocks, put_sequence } = request else {
            return Err(unexpected());
        };
        check_length("blocks of an inventory", blocks.len())?;
        let benefactor = self.registry.registered(id, registration)?;
        if !benefactor.tells {
            return Err(super::commit::invalid("an inventory that was not begun"));
        }
        benefactor.heard_ms = now.ms;
        let inventory = benefactor.inventory;
        benefactor.reported |= last;
        benefactor.fence = benefactor.fence.max(put_sequence);
        if last {
            (benefactor.valid_inventory, benefactor.tells) = (inventory, false);
            self.registry.take_inventory();
        }
        self.confirm_all(id, (inventory, BlockAge::Unknown), &blocks, now);
        if last {
            self.walk(Walk::Benefactor(id, None));
        }
        self.update_states(now);
        Ok(ManagerReply::Done)
    }

    pub(super) fn heartbeat(&mut self, request: ManagerRequest, now: Now) -> Answer {
        let ManagerRequest::Heartbeat {
            id,
            registration,
            load,
            durable_sequence,
            added,
            removed,
            damaged,
            copies_failed,
            put_sequence,
            decoded,
            seen,
            disk,
        } = request
        else {
            return Err(unexpected());
        };
        check_length(
            "blocks of a heartbeat",
            added.len().max(removed.len()).max(copies_failed.len()).max(decoded.len()).max(seen.len()),
        )?;
        let benefactor = self.registry.registered(id, registration)?;
        benefactor.heard_ms = now.ms;
        benefactor.durable_sequence = durable_sequence;
        if damaged > 0 {
            // A receipt of before may name what was found damaged.
            benefactor.fence = benefactor.fence.max(put_sequence);
        }
        let inventory = benefactor.inventory;
        self.take_load(id, load);
        self.registry.take_disk(id, disk, now.ms);
        self.efforts.heard(id);
        self.damaged_found = self.damaged_found.saturating_add(u64::from(damaged).min(removed.len() as u64));
        // Before its order ends.
        self.take_decoded(id, &decoded, now);
        self.take_seen(id, &seen, now);
        for failed in &copies_failed {
            if failed.to.is_none() {
                self.checks.failed(&failed.chunk, id, now.ms);
                self.proofs.failed(&failed.chunk, id, now.ms);
            }
            if let Some(care) = self.copies.failed(failed, id, now.ms) {
                self.locations.care_for(&failed.chunk, care, &self.registry);
            }
        }
        // A block that is gone may be why something failed: then it is planned anew without that.
        self.remove_all(id, &removed);
        self.confirm_all(id, (inventory, self.age_of_news(id)), &added, now);
        self.update_states(now);
        self.give_back(id, now);
        if self.has_let_go(id) {
            self.tell_taken_out(id, "it has left, as its owner wished");
            self.take_out(id);
            return Ok(ManagerReply::Commands(vec![Command::Forgotten]));
        }
        let mut commands = Vec::new();
        commands.extend(self.registry.next_permits(id, self.setting.start, now.ms).map(Command::Permits));
        commands.extend(self.registry.next_interval(id).map(Command::BeatEvery));
        if !self.history.is_set_back() {
            commands.extend(self.deletions_for(id));
            commands.extend(self.plan_blocked(id, now));
            commands.extend(self.plan_copies(id, now));
            commands.extend(self.plan_checks(id, now));
            commands.extend(self.plan_proofs(id, now));
            commands.extend(self.moment_to_remember(id));
        }
        commands.extend(self.recount(id, now));
        commands.extend(self.left_to_do(id, now).map(Command::Goes));
        Ok(ManagerReply::Commands(commands))
    }

    /// A benefactor tells its load, and what its owner wishes.
    fn take_load(&mut self, id: BenefactorId, load: BenefactorLoad) {
        let before = self.registry.get(id).map(|benefactor| benefactor.load.state);
        let heeded = self.heed(id);
        if self.registry.take_load(id, load) {
            self.walk(Walk::Benefactor(id, None));
        }
        self.tell_load(id, heeded);
        if before != Some(load.state) {
            self.note_seen(&[id]);
        }
    }

    /// Whether a benefactor that is to leave the pool has nothing more, by its own word and by the index.
    fn has_let_go(&self, id: BenefactorId) -> bool {
        let told = |benefactor: &Benefactor| {
            let load = &benefactor.load;
            load.wish == OwnerWish::Leave && load.blocks == 0 && benefactor.reported && !benefactor.tells
        };
        self.registry.get(id).is_some_and(told)
            && self.locations.blocks_at(id) == 0
            && !self.history.is_set_back()
    }

    /// Answers a benefactor that is ready to make copies.
    pub(super) fn orders(&mut self, id: BenefactorId, registration: u64, now: Now) -> Answer {
        self.registry.registered(id, registration)?.heard_ms = now.ms;
        let copies = if self.history.is_set_back() { Vec::new() } else { self.plan_copies(id, now) };
        Ok(ManagerReply::Commands(copies))
    }

    /// Asks for the inventory of a benefactor that has had more blocks than the index knows for long, or fewer.
    fn recount(&mut self, id: BenefactorId, now: Now) -> Option<Command> {
        let known = self.locations.blocks_at(id);
        let benefactor = self.registry.get_mut(id)?;
        if benefactor.load.blocks <= known {
            benefactor.not_more_ms = now.ms;
        }
        if benefactor.load.blocks >= known {
            benefactor.not_fewer_ms = now.ms;
        }
        let since_ms = benefactor.not_more_ms.min(benefactor.not_fewer_ms);
        let due = benefactor.reported && now.ms.saturating_sub(since_ms) >= RECOUNT_AFTER_MS;
        due.then(|| {
            (benefactor.not_more_ms, benefactor.not_fewer_ms) = (now.ms, now.ms);
            Command::SendInventory
        })
    }

    /// What is known of the past of a block of which a benefactor says only now that it has it.
    pub(super) fn age_of_news(&self, id: BenefactorId) -> BlockAge {
        match self.registry.get(id).is_some_and(|benefactor| benefactor.reported) {
            true => BlockAge::New,
            false => BlockAge::Unknown,
        }
    }

    fn confirm_all(
        &mut self,
        id: BenefactorId,
        (inventory, age): (u32, BlockAge),
        blocks: &[StoredBlock],
        now: Now,
    ) {
        let (blocks, absurd): (Vec<&StoredBlock>, Vec<&StoredBlock>) =
            blocks.iter().partition(|stored| can_be(stored));
        if let Some(example) = absurd.first() {
            tracing::warn!(%id, count = absurd.len(), ?example, "a benefactor says that it has what can't be");
        }
        let (mut beyond, mut room) = (0_usize, None);
        for stored in blocks {
            if self.is_made_up(id, &stored.block) {
                let left = room.unwrap_or_else(|| self.room_for_made_up(id));
                room = Some(left.saturating_sub(1));
                if left == 0 {
                    beyond += 1;
                    continue;
                }
            }
            self.confirm_one(id, (inventory, age), stored, now);
            self.keep_block(&stored.block, id);
            match self.copies.arrived(&stored.block.chunk, id) {
                true => self.locations.care_for(&stored.block.chunk, Care::Waits, &self.registry),
                false => self.locations.recount(&stored.block.chunk, &self.registry),
            }
        }
        if beyond > 0 {
            tracing::warn!(%id, beyond, "a benefactor lists more blocks that nothing refers to than its member has a share for");
        }
    }

    /// How many more blocks of chunks that no version refers to a benefactor may list: as many as leave those of its member no more memory than is
    /// then still free. A session takes receipts for its blocks, so these come all the same; and of what a backup names that is registered it is
    /// only known by what benefactors list.
    fn room_for_made_up(&self, id: BenefactorId) -> u64 {
        let all = self.sessions.memory_bytes() / BROUGHT_BYTES;
        let brought = self.locations.brought();
        if self.locations.holdings.is_any_registered() {
            return u64::MAX;
        }
        if brought < all / 4 {
            return all / 4 - brought;
        }
        let member = self.registry.get(id).and_then(|benefactor| benefactor.member);
        let of_member = self.registry.iter().filter(|(_, benefactor)| benefactor.member == member);
        let own: u64 = of_member.map(|(id, _)| self.locations.brought_by(id)).sum();
        all.saturating_sub(brought).saturating_sub(own) / 2
    }

    /// Whether this would be one more block of a chunk that no version refers to.
    fn is_made_up(&self, id: BenefactorId, block: &BlockId) -> bool {
        let is_known = |chunk: &Chunk| {
            let is_it = |holder: &Holder| holder.benefactor == id && holder.block(chunk.id) == *block;
            !chunk.is_brought() || chunk.holders.iter().any(is_it)
        };
        !self.locations.get(&block.chunk).is_some_and(is_known)
    }

    /// A benefactor says, itself or by a receipt, that it has a block.
    pub(super) fn confirm_one(
        &mut self,
        id: BenefactorId,
        (inventory, age): (u32, BlockAge),
        stored: &StoredBlock,
        now: Now,
    ) {
        let block = &stored.block;
        let chunk = self.locations.get(&block.chunk);
        let of_it =
            chunk.into_iter().flat_map(|chunk| &chunk.holders).filter(|holder| holder.benefactor == id);
        let is_there = |holder: &Holder| holder.block(block.chunk) == *block;
        // So many are never stored there: whoever lists them has made them up.
        if of_it.clone().count() >= BLOCKS_OF_CHUNK_MAX && !of_it.clone().any(is_there) {
            return;
        }
        let is_ordered = self.copies.is_ordered_for(&block.chunk, id);
        let is_safe = |chunk: &Chunk| match age {
            // A benefactor that is yet to tell what it has may have what seems to be wanting.
            BlockAge::New => {
                chunk.is_safe(&self.registry) || chunk.wanted() > 0 && self.registry.is_pending()
            }
            // While all benefactors tell what they have anew, it is chance who comes first.
            BlockAge::Unknown => chunk.is_safe(&self.registry) && !self.locations.is_counting,
        };
        let is_beyond_need = !is_ordered && chunk.is_some_and(is_safe);
        if !self.locations.confirm(stored, id, inventory, age, now.ms) {
            return;
        }
        if is_beyond_need {
            self.locations.set_beyond_need(block, id);
        }
        if is_ordered {
            self.proofs.no_longer_missed(block, id);
        } else if self.proofs.was_missed(block, id, now.ms) {
            self.locations.doubt(block, id, &self.registry);
        }
        self.proofs.holders_changed(&block.chunk);
        // It may be known already what its encoding is worth.
        self.apply_opinion((block.chunk, block.encoding), now);
    }

    fn remove_all(&mut self, id: BenefactorId, blocks: &[BlockId]) {
        for block in blocks {
            if !self.locations.remove(block, id) {
                continue;
            }
            match self.copies.holders_changed(&block.chunk) {
                true => self.locations.care_for(&block.chunk, Care::Waits, &self.registry),
                false => self.locations.requeue(&block.chunk, &self.registry),
            }
        }
    }

    fn deletions_for(&mut self, id: BenefactorId) -> Vec<Command> {
        let Some(queue) = self.deletions.get_mut(&id) else { return Vec::new() };
        let mut orders: BTreeMap<u64, Vec<BlockId>> = BTreeMap::new();
        for _ in 0..DELETIONS_AT_ONCE {
            let Some((block, put_sequence)) = queue.pop_first() else { break };
            orders.entry(put_sequence).or_default().push(block);
        }
        if !orders.is_empty() {
            self.efforts.told_to_delete(id);
        }
        let delete = |(put_sequence, blocks)| Command::Delete { blocks, put_sequence };
        orders.into_iter().map(delete).collect()
    }

    /// Looks at who is there; what is missing for good, or back, changes which chunks are at risk.
    pub(super) fn update_states(&mut self, now: Now) {
        let was_counting = self.locations.is_counting;
        let was_pending = self.registry.is_pending();
        let changes = self.registry.update_states(now.ms, &self.setting.timing);
        self.locations.is_counting &= self.registry.is_pending();
        if was_pending && !self.registry.is_pending() {
            self.locations.call_all();
        }
        if was_counting && !self.locations.is_counting {
            // Only now it is known what nobody has.
            self.walk(Walk::All(0));
        }
        if self.registry.cuts.is_news() || !changes.seen.is_empty() && self.registry.cuts.is_any() {
            self.look_at_cuts();
        }
        if changes.seen.is_empty() {
            return;
        }
        self.note_seen(&changes.seen);
        self.tell_seen(&changes.seen, now);
        changes.seen.iter().for_each(|id| self.walk(Walk::Benefactor(*id, None)));
        self.walk(Walk::AtRisk(None));
        let ended = self.copies.benefactors_changed(&changes.went);
        self.copies_ended(&ended);
        self.checks.forget_orders(&changes.went);
        self.proofs.forget_orders(&changes.went);
    }
}

/// Whether a block is as long as one can be, and one of its encoding's.
pub(super) fn can_be(stored: &StoredBlock) -> bool {
    let StoredBlock { block, plain_length, stored_length } = stored;
    let plain = usize::try_from(*plain_length).is_ok_and(|length| (1..=CHUNK_BYTES_MAX).contains(&length));
    let is_short = usize::try_from(*stored_length).is_ok_and(|length| length <= BLOCK_BYTES_MAX);
    plain && is_short && block.index < block.encoding.code.blocks()
}

fn unexpected() -> Failure {
    Failure::new(ErrorCode::Internal, "a request was handed to the wrong part of the manager")
}
