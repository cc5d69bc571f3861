//! The benefactors: numbers that are stored, and everything else as soft state from registrations and heartbeats.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use stdchk_model::exact::part_mut;
use stdchk_model::labels::Labels;
use stdchk_model::limits::{BENEFACTORS_OF_MEMBER_MAX, CAUSE_BYTES_MAX, HEARTBEAT_MS, PERMITS_MS};
use stdchk_model::message::benefactor::{BenefactorLoad, OwnerWish};
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{
    BenefactorInfo, BenefactorSecret, BenefactorState, DiskFailure, Registration,
};
use stdchk_model::{
    BenefactorId, ChunkId, EncodingId, ErrorCode, Failure, Incarnation, MachineId, Permit, PermitKey,
    ReceiptKey, Tier, cbor, labels,
};
use stdchk_placement::{HostState, Wish, in_turn};

use super::Timing;
use super::cuts::Cuts;
use super::placing::Racks;
use super::twins::RefusedTwin;
use crate::record::{BenefactorRecord, LAYOUT, benefactor_key, decode};
use crate::store::{Batch, StoreError, Table};
use crate::turns::PLACES;

/// Most benefactors of a pool at a time.
const BENEFACTORS_MAX: usize = 1 << 16;
/// A benefactor that presents a number which this manager has not given, since its store is an older copy, is at most so far ahead.
const NUMBERS_AHEAD_MAX: u32 = 1 << 16;
/// A benefactor in memory that was silent for so long is taken out, milliseconds. A machine that starts again comes with a new one, since who
/// the last one was went with its memory.
const MEMORY_GONE_MS: u64 = 3_600_000;
/// Heartbeats of all benefactors in a second, without news; each takes the manager some thirty microseconds ([0750]).
///
/// [0750]: ../../../../docs/design/0750-large-pools.md
const BEATS_PER_SECOND: u64 = 6_000;
/// How many heartbeats may be missing before silence means something.
const BEATS_OF_LEASE: u64 = 4;
/// Time in which as many as have a turn at once tell what they have, milliseconds: many times what they usually take.
const ROUND_MS: u64 = 2_000;
/// Others wait for the inventories of one host's benefactors for one of so many parts of the time at most.
const AWAITED_SHARE: u64 = 10;
/// Longest address, bytes: a host name has at most 253, a port 5 digits.
pub(super) const ADDRESS_BYTES_MAX: usize = 300;

/// What permits for a benefactor's blocks are made with. Keys follow each other; the benefactor takes those of the last two.
#[derive(Clone, Debug)]
struct Permits {
    /// The last one that the benefactor has for certain.
    known: PermitKey,
    /// The last one that it was told, the number of that, and when, milliseconds of the manager's life.
    told: (PermitKey, u64, u64),
}

/// A benefactor as the manager knows it.
#[derive(Clone, Debug)]
pub struct Benefactor {
    pub address: String,
    secret: BenefactorSecret,
    /// The member of the pool that it registered as last; `None`: one of the manager's machine.
    pub member: Option<MemberId>,
    /// That member was shut out since: what is here counts as lost, whatever the benefactor and its clients say.
    pub is_shut_out: bool,
    permits: Option<Permits>,
    pub pid: u32,
    /// The machine on which it runs, if it told.
    machine: Option<MachineId>,
    /// What its owner says of where it stands.
    pub labels: Labels,
    /// Where it keeps blocks, by its last registration, also that at an earlier manager.
    pub tier: Tier,
    pub load: BenefactorLoad,
    /// `None` until it registers with this manager.
    pub incarnation: Option<Incarnation>,
    /// Number of its last registration with this manager.
    registration: Option<u64>,
    /// By which connection it made that; `None`: by one that has ended since.
    pub(super) connection: Option<u64>,
    /// Another process that shows its number and is refused.
    pub(super) twin: Option<RefusedTwin>,
    /// The error of its disk in its present life, and since when, milliseconds of the manager's life.
    pub(super) disk: Option<(String, u64)>,
    /// Whether its whole inventory arrived since it registered.
    pub reported: bool,
    /// Whether its inventory may still come: it is not reported, and not overdue.
    pub awaited: bool,
    /// When it registered, milliseconds of the manager's life.
    pub registered_ms: u64,
    /// When it was last heard of, milliseconds of the manager's life.
    pub heard_ms: u64,
    /// The interval of its heartbeats as it was told, milliseconds.
    beats_ms: u64,
    /// What the receipts of its present life are checked with.
    pub receipt_key: Option<ReceiptKey>,
    /// Number of its last put before all puts were durable last: the manager has heard of all that is durable since then.
    pub durable_sequence: u64,
    /// The highest put sequence on which an order to delete rests that it may have been given in this life, by this manager or
    /// one before, or up to which the benefactor itself has told of blocks that are gone. A receipt that isn't younger says
    /// nothing.
    pub fence: u64,
    /// Number of the inventory that it began last, or of its present life if it has begun none in that.
    pub inventory: u32,
    /// Whether the parts of that inventory are still to come.
    pub tells: bool,
    /// What was last seen by an earlier inventory than this one is known no longer.
    pub valid_inventory: u32,
    /// When it last had no more blocks than the index knows of, milliseconds of the manager's life.
    pub not_more_ms: u64,
    /// When it last had no fewer.
    pub not_fewer_ms: u64,
    /// How it was seen when states were last looked at.
    pub state: BenefactorState,
    /// Whether it is among those that [`Registry::is_pending`] counts.
    is_pending: bool,
}

/// Benefactors that are seen in another way than before.
#[derive(Debug, Default)]
pub struct StateChanges {
    /// All of them.
    pub seen: Vec<BenefactorId>,
    /// They are on-line no longer.
    pub went: Vec<BenefactorId>,
}

/// All benefactors of the pool.
#[derive(Debug)]
pub struct Registry {
    known: BTreeMap<BenefactorId, Benefactor>,
    pub next: u32,
    /// Number of the last inventory: numbers are never used twice, so that what a benefactor held in one life, or before it was
    /// forgotten, is never taken for what it holds in another.
    inventories: u32,
    /// Number of the last registration.
    registrations: u64,
    /// Rises whenever less may count of what benefactors have said, or other ones are there.
    doubts: u64,
    /// Those that run on each machine.
    machines: HashMap<MachineId, BTreeSet<BenefactorId>>,
    /// What they share with others, by their labels.
    racks: Racks,
    /// Those that are servers which stay.
    dedicated: BTreeSet<BenefactorId>,
    /// Those that are to let go of what they have.
    leaving: BTreeSet<BenefactorId>,
    /// Those whose machines are said to go soon, and until when each takes blocks since too few others can, milliseconds of the manager's
    /// life.
    going: BTreeMap<BenefactorId, u64>,
    /// Added, moved or forgotten since the last commit to the store.
    changed: BTreeSet<BenefactorId>,
    /// Heard of since states were last looked at.
    touched: BTreeSet<BenefactorId>,
    /// No state changes by silence alone before this, milliseconds of the manager's life.
    quiet_until_ms: u64,
    /// Those with disks, in the order of their numbers, as a selection sees them: nothing that is to last is ever placed elsewhere.
    hosts: Arc<Vec<HostState>>,
    /// Those that keep blocks in memory, likewise.
    in_memory: Arc<Vec<HostState>>,
    /// How many may still report blocks that nobody knows of.
    pending: usize,
    /// Over which connections they have registered that have not ended.
    pub(super) connections: HashMap<u64, BenefactorId>,
    /// Since when inventories of a member's benefactors are or were awaited last, milliseconds of the manager's life.
    awaited_since: HashMap<MemberId, u64>,
    /// Which of them can't send to which others.
    pub cuts: Cuts,
}

impl Registry {
    pub fn new() -> Self {
        Self {
            known: BTreeMap::new(),
            next: 0,
            inventories: 0,
            registrations: 0,
            doubts: 0,
            machines: HashMap::new(),
            racks: Racks::default(),
            dedicated: BTreeSet::new(),
            leaving: BTreeSet::new(),
            going: BTreeMap::new(),
            changed: BTreeSet::new(),
            touched: BTreeSet::new(),
            quiet_until_ms: 0,
            hosts: Arc::default(),
            in_memory: Arc::default(),
            pending: 0,
            connections: HashMap::new(),
            awaited_since: HashMap::new(),
            cuts: Cuts::default(),
        }
    }

    /// Adds a benefactor from the store: expected, not heard of yet.
    pub fn load(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), StoreError> {
        let key = <[u8; 4]>::try_from(key).map_err(|error| StoreError::new("reading a key", error))?;
        let record: BenefactorRecord = decode(bytes, "a benefactor")?;
        let id = BenefactorId(u32::from_be_bytes(key));
        let (member, labels, tier) = (record.member, record.labels, record.tier);
        let benefactor = Benefactor { member, labels, tier, ..unheard(record.address, record.secret) };
        self.known.insert(id, benefactor);
        self.note(id);
        self.note_labels(id);
        Ok(())
    }

    /// Adds what must be stored to `batch`; tells whether there was any.
    pub fn take_changes(&mut self, batch: &mut Batch) -> bool {
        let changed = std::mem::take(&mut self.changed);
        for id in &changed {
            let key = benefactor_key(*id);
            match self.known.get(id) {
                Some(benefactor) => {
                    let (address, secret) = (benefactor.address.clone(), benefactor.secret.clone());
                    let (member, labels, tier) =
                        (benefactor.member, benefactor.labels.clone(), benefactor.tier);
                    let record = BenefactorRecord { layout: LAYOUT, address, secret, member, labels, tier };
                    batch.put(Table::Benefactor, &key, cbor::encode(&record));
                }
                None => batch.remove(Table::Benefactor, &key),
            }
        }
        !changed.is_empty()
    }

    /// The number of a benefactor that registers: the one that it presents, or a new one.
    ///
    /// # Errors
    /// `Invalid`: what it says makes no sense. `NotFound`: its secret isn't known, and must come along. `Denied`: it doesn't
    /// prove that it is the one whose number it presents, or its member of the pool has as many benefactors as one may have. `Exists`:
    /// another process serves as that one.
    ///
    /// `has_number`: a manager of this pool has given it its number, which is never given again.
    pub fn admit(
        &mut self,
        registration: &Registration,
        secret: Option<BenefactorSecret>,
        proof: &[u8; 32],
        (member, has_number): (Option<MemberId>, bool),
        (now_ms, timing): (u64, &Timing),
    ) -> Result<BenefactorId, Failure> {
        let address = &registration.address;
        if address.is_empty() || address.len() > ADDRESS_BYTES_MAX || address.contains(char::is_control) {
            let message = "the address of a benefactor is host:port of at most 300 characters";
            return Err(Failure::new(ErrorCode::Invalid, message));
        }
        labels::check(&registration.labels)?;
        let id = self.number_for(registration, (secret.as_ref(), proof), has_number)?;
        if !has_number && id.0 >= self.next.saturating_add(NUMBERS_AHEAD_MAX) {
            let message = format!("{id} can't be a benefactor's number: the next one is {}", self.next);
            return Err(Failure::new(ErrorCode::Invalid, message));
        }
        if self.known.len() >= BENEFACTORS_MAX && !self.known.contains_key(&id) {
            let message = format!("the pool has {BENEFACTORS_MAX} benefactors, as many as it can");
            let next = "have those that are gone taken out (`stdchk forget`)";
            return Err(Failure::new(ErrorCode::Invalid, message).then(next));
        }
        let known = self.known.get(&id).map(|benefactor| benefactor.secret.clone());
        let secret = known.or(secret).ok_or_else(|| unknown(id))?;
        if !registration.is_proved(&secret, proof) {
            return Err(impostor(id));
        }
        self.refuse_twin(id, registration, now_ms, timing)?;
        let is_same_life = |known: &&Benefactor| known.incarnation == Some(registration.incarnation);
        if self.known.get(&id).filter(is_same_life).is_some_and(|known| known.tier != registration.tier) {
            let message = "a benefactor keeps its blocks in one place for all of its life";
            return Err(Failure::new(ErrorCode::Invalid, message));
        }
        if self.known.get(&id).is_none_or(|known| known.member != member) {
            self.check_room_for_another(member)?;
        }
        if has_number || registration.id.is_none() {
            self.next = self.next.max(id.0.saturating_add(1));
        }
        let new = || unheard(String::new(), secret);
        let benefactor = self.known.entry(id).or_insert_with(new);
        // Only who has joined anew is let in again: its old keys may have sent this before they were revoked.
        benefactor.is_shut_out &= benefactor.member == member;
        if benefactor.address != *address
            || benefactor.member != member
            || benefactor.labels != registration.labels
            || benefactor.tier != registration.tier
        {
            benefactor.address.clone_from(address);
            benefactor.member = member;
            benefactor.labels.clone_from(&registration.labels);
            benefactor.tier = registration.tier;
            self.changed.insert(id);
        }
        let before = std::mem::replace(&mut benefactor.machine, registration.machine);
        self.moves(id, before, registration.machine);
        self.note_labels(id);
        self.note(id);
        Ok(id)
    }

    /// The number that a benefactor presents, or the one that it was given and hasn't heard of, or a new one. Once an older store was
    /// put back, its manager may have given the number to another one: then the benefactor gets a new number, and its blocks count on.
    ///
    /// # Errors
    /// `Invalid`: all numbers were given. `NotFound`: it needs a new number, and its secret must come along.
    fn number_for(
        &self,
        registration: &Registration,
        (secret, proof): (Option<&BenefactorSecret>, &[u8; 32]),
        has_number: bool,
    ) -> Result<BenefactorId, Failure> {
        let is_another = |id: &BenefactorId| {
            self.known.get(id).is_some_and(|known| !registration.is_proved(&known.secret, proof))
        };
        let taken = registration.id.filter(|id| has_number && is_another(id));
        match (taken, secret) {
            (Some(id), None) => return Err(unknown(id)),
            (Some(id), Some(secret)) if !registration.is_proved(secret, proof) => return Err(impostor(id)),
            _ => {}
        }
        // Whoever was given a number and didn't hear of it has it.
        let given = || self.known.iter().find(|(_, other)| Some(&other.secret) == secret);
        let presented = registration.id.filter(|_| taken.is_none());
        let given = presented.or_else(|| given().map(|(id, _)| *id));
        given.or_else(|| self.unused()).ok_or_else(none_left)
    }

    /// A number that no benefactor has, or had as far as is known.
    fn unused(&self) -> Option<BenefactorId> {
        (self.next..u32::MAX).map(BenefactorId).find(|id| !self.known.contains_key(id))
    }

    /// Since when the inventory of one that registers in a new life is awaited, milliseconds. Others wait for it, so all benefactors of a
    /// host are awaited together, and not again for a while: one that begins new lives again and again stops nobody.
    pub fn awaited_since(&mut self, member: Option<MemberId>, now_ms: u64, timing: &Timing) -> u64 {
        let Some(member) = member else { return now_ms };
        let pause_ms = awaited_ms(self.known.len(), timing).saturating_mul(AWAITED_SHARE);
        let since = self.awaited_since.entry(member).or_insert(now_ms);
        if now_ms.saturating_sub(*since) >= pause_ms {
            *since = now_ms;
        }
        *since
    }

    /// Takes note that a benefactor runs on another machine than before.
    fn moves(&mut self, id: BenefactorId, from: Option<MachineId>, to: Option<MachineId>) {
        if from == to {
            return;
        }
        if let Some(from) = from
            && let Some(left) = self.machines.get_mut(&from)
        {
            left.remove(&id);
            if left.is_empty() {
                self.machines.remove(&from);
            }
        }
        if let Some(to) = to {
            self.machines.entry(to).or_default().insert(id);
        }
    }

    fn note_labels(&mut self, id: BenefactorId) {
        let labels = self.known.get(&id).map(|benefactor| benefactor.labels.as_slice()).unwrap_or_default();
        self.racks.set(id, labels);
        match labels::is_dedicated(labels) {
            true => self.dedicated.insert(id),
            false => self.dedicated.remove(&id),
        };
    }

    /// What benefactors share with others, by their labels.
    pub fn racks(&self) -> &Racks {
        &self.racks
    }

    /// Those that are servers which stay, in the order of their numbers.
    pub fn dedicated(&self) -> impl Iterator<Item = BenefactorId> {
        self.dedicated.iter().copied()
    }

    /// A benefactor with a disk that runs on this machine: one that is on-line if there is one.
    pub fn on_machine(&self, machine: MachineId) -> Option<BenefactorId> {
        self.of_machine(machine, Tier::Disk)
    }

    /// The benefactor of this machine for its own clients: one with a disk if there is one.
    pub fn own(&self, machine: MachineId) -> Option<BenefactorId> {
        self.on_machine(machine).or_else(|| self.of_machine(machine, Tier::Memory))
    }

    fn of_machine(&self, machine: MachineId, tier: Tier) -> Option<BenefactorId> {
        let all = self.machines.get(&machine)?;
        let mut those = all.iter().copied().filter(|id| self.tier(*id) == tier);
        those.clone().find(|id| self.is_online(*id)).or_else(|| those.next())
    }

    /// Where a benefactor keeps blocks. Of one that nobody knows nothing is believed to be on a disk.
    pub fn tier(&self, id: BenefactorId) -> Tier {
        self.get(id).map_or(Tier::Memory, |benefactor| benefactor.tier)
    }

    /// A member of the pool is shut out, and so are its benefactors. States are to be updated.
    pub fn shut_out(&mut self, member: MemberId) {
        for (id, benefactor) in self.known.iter_mut().filter(|(_, known)| known.member == Some(member)) {
            benefactor.is_shut_out = true;
            self.touched.insert(*id);
        }
    }

    /// Refuses a member of the pool that has as many benefactors as one may have. Those of the manager's machine are its own affair.
    fn check_room_for_another(&self, member: Option<MemberId>) -> Result<(), Failure> {
        let is_of_member = |benefactor: &&Benefactor| {
            member.is_some() && benefactor.member == member && may_return(benefactor)
        };
        if self.known.values().filter(is_of_member).count() < BENEFACTORS_OF_MEMBER_MAX {
            return Ok(());
        }
        let message =
            format!("this host has registered {BENEFACTORS_OF_MEMBER_MAX} benefactors, as many as one may");
        let next = "have those that are gone taken out (`stdchk forget`), or let the host join once more, as another member";
        Err(Failure::new(ErrorCode::Denied, message).then(next))
    }

    /// Adds one that is on-line.
    #[cfg(test)]
    pub fn add_for_test(&mut self) -> BenefactorId {
        let id = BenefactorId(self.next);
        let new = unheard("127.0.0.1:1".to_owned(), BenefactorSecret([1; 32]));
        self.known.insert(id, Benefactor { incarnation: Some(Incarnation(1)), ..new });
        self.note(id);
        self.next += 1;
        id
    }

    /// Takes a benefactor out. Its number is never given again; if it returns, it has it as before.
    pub fn remove(&mut self, id: BenefactorId) {
        let Some(gone) = self.known.remove(&id) else { return };
        if let Some(connection) = gone.connection {
            self.connections.remove(&connection);
        }
        self.moves(id, gone.machine, None);
        self.note_labels(id);
        self.leaving.remove(&id);
        self.going.remove(&id);
        self.cuts.forget(id);
        self.pending -= usize::from(gone.is_pending);
        for hosts in [&mut self.hosts, &mut self.in_memory] {
            Arc::make_mut(hosts).retain(|host| host.id != id);
        }
        self.doubts += 1;
        self.changed.insert(id);
    }

    pub fn get(&self, id: BenefactorId) -> Option<&Benefactor> {
        self.known.get(&id)
    }

    /// The benefactor, of which nothing was heard.
    pub(super) fn known_mut(&mut self, id: BenefactorId) -> Option<&mut Benefactor> {
        self.known.get_mut(&id)
    }

    /// The benefactor, of which something was heard: [`Registry::update_states`] follows.
    pub fn get_mut(&mut self, id: BenefactorId) -> Option<&mut Benefactor> {
        self.touched.insert(id);
        self.known.get_mut(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (BenefactorId, &Benefactor)> {
        self.known.iter().map(|(id, benefactor)| (*id, benefactor))
    }

    /// Numbers the registration that a benefactor just made. What it said before and nobody has read yet counts no longer: it may
    /// tell of blocks that were deleted since.
    pub fn number(&mut self, id: BenefactorId) -> u64 {
        self.registrations += 1;
        self.doubts += 1;
        if let Some(benefactor) = self.known.get_mut(&id) {
            benefactor.registration = Some(self.registrations);
            benefactor.beats_ms = HEARTBEAT_MS;
        }
        self.cuts.forget(id);
        self.note(id);
        self.registrations
    }

    /// The first key of permits of a registration that was numbered; `start`: identity of the manager's start.
    pub fn begin_permits(&mut self, id: BenefactorId, start: u64, now_ms: u64) -> Option<PermitKey> {
        let benefactor = self.known.get_mut(&id)?;
        let key = PermitKey::new(benefactor.receipt_key.as_ref()?, start, benefactor.registration?, 0);
        benefactor.permits = Some(Permits { known: key.clone(), told: (key.clone(), 0, now_ms) });
        Some(key)
    }

    /// The benefactor has heard all that it was told, and is told this: the next key, if it is time for that.
    pub fn next_permits(&mut self, id: BenefactorId, start: u64, now_ms: u64) -> Option<PermitKey> {
        let benefactor = self.known.get_mut(&id)?;
        let (secret, registration) = (benefactor.receipt_key.as_ref()?, benefactor.registration?);
        let permits = benefactor.permits.as_mut()?;
        let (key, number, told_ms) = &permits.told;
        permits.known = key.clone();
        if now_ms.saturating_sub(*told_ms) < PERMITS_MS {
            return None;
        }
        let number = number + 1;
        let key = PermitKey::new(secret, start, registration, number);
        permits.told = (key.clone(), number, now_ms);
        Some(key)
    }

    /// The interval at which a benefactor is to send heartbeats, milliseconds, if it was told a rather different one: all
    /// heartbeats together are to leave the manager's one thread to those who wait for it.
    pub fn next_interval(&mut self, id: BenefactorId) -> Option<u64> {
        let wanted = HEARTBEAT_MS.max(self.known.len() as u64 * 1_000 / BEATS_PER_SECOND);
        let benefactor = self.known.get_mut(&id)?;
        let told = benefactor.beats_ms;
        if wanted <= told + told / 4 && told <= wanted + wanted / 4 {
            return None;
        }
        benefactor.beats_ms = wanted;
        Some(wanted)
    }

    /// A permit that lets benefactor `to` have blocks of the chunk from benefactor `at`, or put them there.
    pub fn permit(
        &self,
        at: BenefactorId,
        (chunk, encoding): (&ChunkId, EncodingId),
        to: BenefactorId,
    ) -> Option<Permit> {
        let permits = self.get(at)?.permits.as_ref()?;
        Some(Permit::new(&permits.known, chunk, encoding, self.get(to)?.member))
    }

    /// What benefactors say counts once they have registered again.
    pub fn expect_registrations(&mut self) {
        self.doubts += 1;
        self.known.values_mut().for_each(|benefactor| benefactor.registration = None);
    }

    /// The benefactor, of which something was heard, if `registration` is its last: [`Registry::update_states`] follows.
    ///
    /// # Errors
    /// `Stale`: it must register (again).
    pub fn registered(&mut self, id: BenefactorId, registration: u64) -> Result<&mut Benefactor, Failure> {
        let known = self.get_mut(id).filter(|benefactor| benefactor.registration == Some(registration));
        known.ok_or_else(|| {
            Failure::new(
                ErrorCode::Stale,
                format!("benefactor {id} has registered anew since, or not at all: register"),
            )
        })
    }

    /// A benefactor tells its load. Whether what it has is to be elsewhere, or it is to let go of that, and was not before, or the other way
    /// round.
    pub fn take_load(&mut self, id: BenefactorId, load: BenefactorLoad) -> bool {
        let Some(benefactor) = self.known.get_mut(&id) else { return false };
        let was_reliable = is_reliable(&benefactor.load);
        benefactor.load = load;
        if was_reliable && !is_reliable(&benefactor.load) {
            self.doubts += 1;
        }
        let is_other_wish = match load.wish.drains() {
            true => self.leaving.insert(id),
            false => self.leaving.remove(&id),
        };
        let went = self.goes(id);
        match load.notice {
            Some(_) => drop(self.going.entry(id).or_default()),
            None => drop(self.going.remove(&id)),
        }
        is_other_wish || went != self.goes(id)
    }

    /// A benefactor tells what its disk has refused, if it has.
    pub fn take_disk(&mut self, id: BenefactorId, refused: Option<String>, now_ms: u64) {
        let Some(benefactor) = self.known.get_mut(&id) else { return };
        benefactor.disk = refused.map(|mut cause| {
            cause.truncate(cause.floor_char_boundary(CAUSE_BYTES_MAX));
            let since_ms = benefactor.disk.as_ref().map_or(now_ms, |(_, since_ms)| *since_ms);
            (cause, since_ms)
        });
    }

    /// Whether what the benefactor has is to be elsewhere: it is to let go of it, or its machine goes soon.
    pub fn leaves(&self, id: BenefactorId) -> bool {
        self.lets_go(id) || self.goes(id)
    }

    /// Whether the benefactor is to let go of what it has, once others have it.
    pub fn lets_go(&self, id: BenefactorId) -> bool {
        self.leaving.contains(&id)
    }

    /// Whether the benefactor's machine is said to go soon.
    pub fn goes(&self, id: BenefactorId) -> bool {
        self.going.contains_key(&id)
    }

    /// Whether a benefactor keeps what it has for as long as anybody knows: its machine isn't said to go, its disk has not failed, and blocks
    /// were not damaged there again and again.
    pub fn is_reliable(&self, id: BenefactorId) -> bool {
        self.get(id).is_some_and(|benefactor| is_reliable(&benefactor.load))
    }

    /// So many of those whose machines go soon that could take blocks all the same: those on-line with room, in turn.
    pub fn lendable(&self, count: usize, wish: &Wish<'_>) -> Vec<BenefactorId> {
        let is_usable = |id: &BenefactorId| {
            self.get(*id).is_some_and(|one| {
                one.state == BenefactorState::Online
                    && one.tier == Tier::Disk
                    && one.load.free_bytes >= wish.room_bytes
            }) && !self.lets_go(*id)
                && !wish.avoid.contains(id)
        };
        let mut lendable: Vec<_> = self.going.keys().copied().filter(is_usable).collect();
        in_turn(&mut lendable, wish.turn);
        lendable.truncate(count);
        lendable
    }

    /// Has those of a stripe whose machines go soon take blocks until some time.
    pub fn borrow(&mut self, stripe: &[BenefactorId], until_ms: u64) {
        for id in stripe {
            if let Some(takes_until_ms) = self.going.get_mut(id) {
                *takes_until_ms = until_ms.max(*takes_until_ms);
            }
        }
    }

    /// Whether a benefactor whose machine goes soon takes blocks all the same.
    pub fn is_borrowed(&self, id: BenefactorId, now_ms: u64) -> bool {
        self.going.get(&id).is_some_and(|until_ms| now_ms < *until_ms)
    }

    /// What those have free that take blocks though their machines go soon, bytes.
    pub fn borrowed_bytes(&self, now_ms: u64) -> u64 {
        let borrowed = self.going.keys().filter(|id| self.is_borrowed(**id, now_ms));
        let online = borrowed.filter(|id| self.is_online(**id));
        let free = online.filter_map(|id| self.get(*id)).map(|one| one.load.free_bytes);
        free.fold(0, u64::saturating_add)
    }

    pub fn is_online(&self, id: BenefactorId) -> bool {
        self.get(id).is_some_and(|benefactor| benefactor.state == BenefactorState::Online)
    }

    /// A number for an inventory that begins, or for a new life.
    pub fn next_inventory(&mut self) -> u32 {
        self.inventories += 1;
        self.inventories
    }

    /// Whether what the benefactor holds counts: it registered and is not lost.
    pub fn counts(&self, id: BenefactorId) -> bool {
        self.get(id).is_some_and(|benefactor| counts(benefactor.state))
    }

    /// Whether a benefactor may still report blocks that nobody knows of.
    pub fn is_pending(&self) -> bool {
        self.pending > 0
    }

    /// The benefactors that may still report blocks that nobody knows of.
    pub fn awaited(&self) -> impl Iterator<Item = BenefactorId> {
        let awaited =
            |benefactor: &Benefactor| benefactor.awaited && benefactor.state != BenefactorState::Lost;
        self.iter().filter(move |(_, benefactor)| awaited(benefactor)).map(|(id, _)| id)
    }

    /// Benefactors of which nobody knows what they have: they have not reported since the manager started, and may come back with it.
    pub fn unreported(&self) -> impl Iterator<Item = BenefactorId> {
        let is_awaited = |benefactor: &Benefactor| !benefactor.reported && may_return(benefactor);
        self.iter().filter(move |(_, benefactor)| is_awaited(benefactor)).map(|(id, _)| id)
    }

    /// Benefactors whose memory was given up long ago.
    pub fn gone_from_memory(&self, now_ms: u64) -> Vec<BenefactorId> {
        let is_gone = |id: &BenefactorId| {
            self.get(*id).is_some_and(|benefactor| {
                !may_return(benefactor) && now_ms.saturating_sub(benefactor.heard_ms) >= MEMORY_GONE_MS
            })
        };
        self.in_memory.iter().map(|host| host.id).filter(is_gone).collect()
    }

    /// Whether a benefactor may come back with what it had: what is in memory is given up once its benefactor counts as lost.
    pub fn may_return(&self, id: BenefactorId) -> bool {
        self.get(id).is_some_and(may_return)
    }

    /// Looks at those that were heard of, and at all of them once silence may have changed how one is seen; who is seen in another way
    /// than before.
    pub fn update_states(&mut self, now_ms: u64, timing: &Timing) -> StateChanges {
        let mut changes = StateChanges::default();
        let mut looked_at = std::mem::take(&mut self.touched);
        if now_ms >= self.quiet_until_ms {
            looked_at = self.known.keys().copied().collect();
            self.quiet_until_ms = u64::MAX;
        }
        let awaited_ms = awaited_ms(self.known.len(), timing);
        for id in looked_at {
            let Some(benefactor) = self.known.get_mut(&id) else { continue };
            let state = state_of(benefactor, now_ms, timing);
            let overdue = now_ms.saturating_sub(benefactor.registered_ms) >= awaited_ms;
            benefactor.awaited = !benefactor.reported && !overdue;
            if benefactor.state != state {
                changes.seen.push(id);
            }
            if benefactor.state == BenefactorState::Online && state != BenefactorState::Online {
                changes.went.push(id);
            }
            benefactor.state = state;
            self.quiet_until_ms = self.quiet_until_ms.min(changes_at(benefactor, awaited_ms, timing));
            self.note(id);
        }
        if !changes.seen.is_empty() {
            self.doubts += 1;
        }
        changes
    }

    /// Counts a benefactor as it is now.
    pub(super) fn note(&mut self, id: BenefactorId) {
        let Some(benefactor) = self.known.get_mut(&id) else { return };
        let host = HostState {
            id,
            online: benefactor.state == BenefactorState::Online,
            free_bytes: match self.leaving.contains(&id) || self.going.contains_key(&id) {
                true => 0,
                false => benefactor.load.free_bytes,
            },
            requests: benefactor.load.requests,
            // Others could have no copies of what is stored there.
            accepts: benefactor.load.state.accepts() && !self.cuts.is_off(id),
        };
        let (own, others) = match benefactor.tier {
            Tier::Disk => (&mut self.hosts, &mut self.in_memory),
            Tier::Memory => (&mut self.in_memory, &mut self.hosts),
        };
        if let Ok(place) = others.binary_search_by_key(&id, |host| host.id) {
            Arc::make_mut(others).remove(place);
        }
        let hosts = Arc::make_mut(own);
        match hosts.binary_search_by_key(&id, |host| host.id) {
            Ok(place) => *part_mut(hosts, place) = host,
            Err(place) => hosts.insert(place, host),
        }
        let is_pending = benefactor.awaited && benefactor.state != BenefactorState::Lost;
        let was_pending = std::mem::replace(&mut benefactor.is_pending, is_pending);
        self.pending = self.pending + usize::from(is_pending) - usize::from(was_pending);
    }

    /// Rises whenever less may count of what benefactors have said, or other ones are there.
    pub fn doubts(&self) -> u64 {
        self.doubts
    }

    /// An inventory has come whole: what it leaves out counts no longer.
    pub fn take_inventory(&mut self) {
        self.doubts += 1;
    }

    /// How many with disks are there, or may come back.
    pub fn remaining(&self) -> usize {
        let remains = |one: &&Benefactor| one.state != BenefactorState::Lost && one.tier == Tier::Disk;
        self.known.values().filter(remains).count()
    }

    /// Those with disks as a selection sees them, in the order of their numbers.
    pub fn hosts(&self) -> Arc<Vec<HostState>> {
        Arc::clone(&self.hosts)
    }

    /// Those that keep blocks in memory as a selection sees them, in the order of their numbers.
    pub fn hosts_in_memory(&self) -> Arc<Vec<HostState>> {
        Arc::clone(&self.in_memory)
    }

    /// The machine of a benefactor, if it told.
    pub fn machine(&self, id: BenefactorId) -> Option<MachineId> {
        self.get(id)?.machine
    }

    /// A benefactor, without what is told with the pool's status alone.
    pub fn info(&self, id: BenefactorId, now_ms: u64) -> Option<BenefactorInfo> {
        let benefactor = self.get(id)?;
        let mut info = BenefactorInfo {
            id,
            address: benefactor.address.clone(),
            state: benefactor.state,
            load: benefactor.load,
            pid: benefactor.pid,
            silent_ms: now_ms.saturating_sub(benefactor.heard_ms),
            labels: benefactor.labels.clone(),
            tier: benefactor.tier,
            host: String::new(),
            is_shut_out: false,
            disk: None,
            twin: None,
            unreached: Vec::new(),
            unreached_ms: 0,
            is_cut_off: false,
        };
        self.tell_unreached(&mut info, now_ms);
        Some(info)
    }

    /// All that is known of a benefactor but what its host calls itself.
    pub fn info_in_full(&self, id: BenefactorId, now_ms: u64, timing: &Timing) -> Option<BenefactorInfo> {
        let benefactor = self.get(id)?;
        let failure = |(cause, since_ms): &(String, u64)| DiskFailure {
            for_ms: now_ms.saturating_sub(*since_ms),
            cause: cause.clone(),
        };
        let (disk, twin) = (benefactor.disk.as_ref().map(failure), self.twin(id, now_ms, timing));
        Some(BenefactorInfo { is_shut_out: benefactor.is_shut_out, disk, twin, ..self.info(id, now_ms)? })
    }

    pub fn infos(&self, now_ms: u64) -> Vec<BenefactorInfo> {
        self.known.keys().filter_map(|id| self.info(*id, now_ms)).collect()
    }
}

fn unknown(id: BenefactorId) -> Failure {
    Failure::new(
        ErrorCode::NotFound,
        format!("the manager doesn't know the secret of benefactor {id}: send it along"),
    )
}

fn none_left() -> Failure {
    Failure::new(ErrorCode::Invalid, "the pool has given all numbers of benefactors that there are")
}

fn impostor(id: BenefactorId) -> Failure {
    let message = format!(
        "another data directory is benefactor {id} of this pool: start the benefactor with the directory that it had; if that is \
         gone, take {id} out with `stdchk forget {id}`, and start a benefactor in an empty directory"
    );
    Failure::new(ErrorCode::Denied, message)
}

fn unheard(address: String, secret: BenefactorSecret) -> Benefactor {
    Benefactor {
        address,
        secret,
        member: None,
        is_shut_out: false,
        permits: None,
        pid: 0,
        machine: None,
        labels: Vec::new(),
        tier: Tier::Disk,
        load: BenefactorLoad::default(),
        incarnation: None,
        registration: None,
        connection: None,
        twin: None,
        disk: None,
        reported: false,
        awaited: true,
        registered_ms: 0,
        heard_ms: 0,
        beats_ms: HEARTBEAT_MS,
        receipt_key: None,
        durable_sequence: 0,
        fence: 0,
        inventory: 0,
        tells: false,
        valid_inventory: 0,
        not_more_ms: 0,
        not_fewer_ms: 0,
        state: BenefactorState::Expected,
        is_pending: false,
    }
}

fn is_reliable(load: &BenefactorLoad) -> bool {
    load.notice.is_none() && !load.disk_failed && load.wish != OwnerWish::Damaged
}

fn may_return(benefactor: &Benefactor) -> bool {
    benefactor.tier == Tier::Disk || benefactor.state != BenefactorState::Lost
}

fn counts(state: BenefactorState) -> bool {
    matches!(state, BenefactorState::Online | BenefactorState::Offline)
}

/// How long silence means nothing, milliseconds: several heartbeats at least.
pub(super) fn lease_ms(benefactor: &Benefactor, timing: &Timing) -> u64 {
    match benefactor.beats_ms {
        HEARTBEAT_MS => timing.benefactor_lease_ms,
        beats_ms => timing.benefactor_lease_ms.max(BEATS_OF_LEASE * beats_ms),
    }
}

/// After how much silence a benefactor is lost, milliseconds.
fn lost_ms(benefactor: &Benefactor, timing: &Timing) -> u64 {
    match benefactor.beats_ms {
        HEARTBEAT_MS => timing.benefactor_lost_ms,
        _ => timing.benefactor_lost_ms.max(2 * lease_ms(benefactor, timing)),
    }
}

fn state_of(benefactor: &Benefactor, now_ms: u64, timing: &Timing) -> BenefactorState {
    let silent_ms = now_ms.saturating_sub(benefactor.heard_ms);
    match benefactor.incarnation {
        _ if benefactor.is_shut_out || silent_ms >= lost_ms(benefactor, timing) => BenefactorState::Lost,
        None => BenefactorState::Expected,
        Some(_) if silent_ms >= lease_ms(benefactor, timing) => BenefactorState::Offline,
        Some(_) => BenefactorState::Online,
    }
}

/// For how long an inventory is awaited in a pool of so many benefactors, which take turns to tell theirs, milliseconds.
fn awaited_ms(benefactors: usize, timing: &Timing) -> u64 {
    let rounds = (benefactors / PLACES) as u64;
    timing.benefactor_lost_ms.saturating_add(rounds * ROUND_MS)
}

/// When silence alone changes how the benefactor is seen, or whether its inventory is awaited, milliseconds of the manager's life.
fn changes_at(benefactor: &Benefactor, awaited_ms: u64, timing: &Timing) -> u64 {
    let after = match benefactor.state {
        BenefactorState::Online => lease_ms(benefactor, timing).min(lost_ms(benefactor, timing)),
        BenefactorState::Expected | BenefactorState::Offline => lost_ms(benefactor, timing),
        BenefactorState::Lost => u64::MAX,
    };
    let overdue = match benefactor.awaited {
        true => benefactor.registered_ms.saturating_add(awaited_ms),
        false => u64::MAX,
    };
    benefactor.heard_ms.saturating_add(after).min(overdue)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Something that happens to one of the benefactors.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Heard(u32),
        Reported(u32),
        Registered(u32),
        Forgotten(u32),
        Passed(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let one = || 0..6u32;
        prop_oneof![
            4 => one().prop_map(Step::Heard),
            2 => one().prop_map(Step::Reported),
            2 => one().prop_map(Step::Registered),
            1 => one().prop_map(Step::Forgotten),
            6 => (0..20_000u64).prop_map(Step::Passed),
        ]
    }

    #[test]
    fn many_benefactors_send_heartbeats_less_often_and_have_longer_leases() {
        let (timing, mut registry) = (Timing::default(), Registry::new());
        let first = registry.add_for_test();
        assert_eq!(registry.next_interval(first), None);
        (1..12_000).for_each(|_| {
            registry.add_for_test();
        });
        assert_eq!(registry.next_interval(first), Some(2_000));
        assert_eq!(registry.next_interval(first), None, "it was told");
        let one = registry.get(first).unwrap();
        assert_eq!((lease_ms(one, &timing), lost_ms(one, &timing)), (8_000, timing.benefactor_lost_ms));
        (1_000..12_000).for_each(|id| registry.remove(BenefactorId(id)));
        assert_eq!(registry.next_interval(first), Some(HEARTBEAT_MS));
        assert_eq!(lease_ms(registry.get(first).unwrap(), &timing), timing.benefactor_lease_ms);
    }

    #[test]
    fn many_who_take_turns_to_tell_are_awaited_for_longer() {
        let timing = Timing::default();
        assert_eq!(awaited_ms(PLACES - 1, &timing), timing.benefactor_lost_ms);
        assert!(awaited_ms(10_000, &timing) > timing.benefactor_lost_ms + 600_000);
    }

    proptest! {
        #[test]
        fn who_is_looked_at_only_when_heard_of_or_silent_too_long_is_seen_as_if_all_were_looked_at(
            steps in proptest::collection::vec(step(), 1..200),
        ) {
            let (timing, mut registry, mut now) = (Timing::default(), Registry::new(), 0);
            (0..6).for_each(|_| { registry.add_for_test(); });
            for step in steps {
                let heard = |registry: &mut Registry, id, change: &dyn Fn(&mut Benefactor)| {
                    if let Some(benefactor) = registry.get_mut(BenefactorId(id)) {
                        benefactor.heard_ms = now;
                        change(benefactor);
                    }
                };
                match step {
                    Step::Heard(id) => heard(&mut registry, id, &|one| one.load.free_bytes += 1),
                    Step::Reported(id) => heard(&mut registry, id, &|one| one.reported = true),
                    Step::Registered(id) => heard(&mut registry, id, &|one| {
                        (one.reported, one.registered_ms) = (false, now);
                    }),
                    Step::Forgotten(id) => registry.remove(BenefactorId(id)),
                    Step::Passed(ms) => now += ms,
                }
                let before: Vec<_> = registry.iter().map(|(id, one)| (id, one.state)).collect();
                let changes = registry.update_states(now, &timing);
                let mut pending = 0;
                for (id, one) in registry.iter() {
                    prop_assert_eq!(one.state, state_of(one, now, &timing));
                    prop_assert_eq!(changes.seen.contains(&id), !before.contains(&(id, one.state)));
                    let overdue = now - one.registered_ms >= awaited_ms(6, &timing);
                    prop_assert_eq!(one.awaited, !one.reported && !overdue);
                    pending += usize::from(one.awaited && one.state != BenefactorState::Lost);
                }
                prop_assert_eq!(registry.is_pending(), pending > 0);
                prop_assert_eq!(registry.awaited().count(), pending);
                let seen: Vec<HostState> = registry.iter().map(|(id, one)| HostState {
                    id,
                    online: one.state == BenefactorState::Online,
                    free_bytes: one.load.free_bytes,
                    requests: 0,
                    accepts: true,
                }).collect();
                prop_assert_eq!(&*registry.hosts(), &seen);
            }
        }
    }
}
