//! The benefactors: numbers that are stored, and everything else as soft state from registrations and heartbeats.

use std::collections::{BTreeMap, BTreeSet};

use stdchk_model::message::benefactor::BenefactorLoad;
use stdchk_model::message::manager::{BenefactorInfo, BenefactorSecret, BenefactorState, Registration};
use stdchk_model::{BenefactorId, ErrorCode, Failure, Incarnation, ReceiptKey, cbor};
use stdchk_placement::HostState;

use super::Timing;
use crate::record::{BenefactorRecord, LAYOUT, benefactor_key, decode};
use crate::store::{Batch, StoreError, Table};

/// Most benefactors of a pool, and one more than the largest number.
const BENEFACTORS_MAX: u32 = 1 << 16;
/// Longest address, bytes: a host name has at most 253, a port 5 digits.
const ADDRESS_BYTES_MAX: usize = 300;

/// A benefactor as the manager knows it.
#[derive(Clone, Debug)]
pub struct Benefactor {
    pub address: String,
    secret: BenefactorSecret,
    pub pid: u32,
    pub load: BenefactorLoad,
    /// `None` until it registers with this manager.
    pub incarnation: Option<Incarnation>,
    /// Number of its last registration with this manager.
    registration: Option<u64>,
    /// Whether its whole inventory arrived since it registered.
    pub reported: bool,
    /// Whether its inventory may still come: it is not reported, and not overdue.
    pub awaited: bool,
    /// When it registered, milliseconds of the manager's life.
    pub registered_ms: u64,
    /// When it was last heard of, milliseconds of the manager's life.
    pub heard_ms: u64,
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
    /// Those that are to let go of what they have.
    leaving: BTreeSet<BenefactorId>,
    /// Added, moved or forgotten since the last commit to the store.
    changed: BTreeSet<BenefactorId>,
}

impl Registry {
    pub fn new() -> Self {
        Self {
            known: BTreeMap::new(),
            next: 0,
            inventories: 0,
            registrations: 0,
            doubts: 0,
            leaving: BTreeSet::new(),
            changed: BTreeSet::new(),
        }
    }

    /// Adds a benefactor from the store: expected, not heard of yet.
    pub fn load(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), StoreError> {
        let key = <[u8; 4]>::try_from(key).map_err(|error| StoreError::new("reading a key", error))?;
        let record: BenefactorRecord = decode(bytes, "a benefactor")?;
        let id = BenefactorId(u32::from_be_bytes(key));
        self.known.insert(id, unheard(record.address, record.secret));
        self.next = self.next.max(id.0.saturating_add(1));
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
                    let record = BenefactorRecord { layout: LAYOUT, address, secret };
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
    /// prove that it is the one whose number it presents.
    pub fn admit(
        &mut self,
        registration: &Registration,
        secret: Option<BenefactorSecret>,
        proof: &[u8; 32],
    ) -> Result<BenefactorId, Failure> {
        let address = &registration.address;
        if address.is_empty() || address.len() > ADDRESS_BYTES_MAX || address.contains(char::is_control) {
            let message = "the address of a benefactor is host:port of at most 300 characters";
            return Err(Failure::new(ErrorCode::Invalid, message));
        }
        // Whoever was given a number and didn't hear of it has it.
        let given = || self.known.iter().find(|(_, other)| Some(&other.secret) == secret.as_ref());
        let given = registration.id.or_else(|| given().map(|(id, _)| *id));
        let id = given.unwrap_or(BenefactorId(self.next));
        if id.0 >= BENEFACTORS_MAX {
            let message =
                format!("{id} can't be a benefactor's number: a pool has at most {BENEFACTORS_MAX}");
            return Err(Failure::new(ErrorCode::Invalid, message));
        }
        let known = self.known.get(&id).map(|benefactor| benefactor.secret.clone());
        let secret = known.or(secret).ok_or_else(|| unknown(id))?;
        if !registration.is_proved(&secret, proof) {
            return Err(impostor(id));
        }
        self.next = self.next.max(id.0 + 1);
        let new = || unheard(String::new(), secret);
        let benefactor = self.known.entry(id).or_insert_with(new);
        if benefactor.address != *address {
            benefactor.address.clone_from(address);
            self.changed.insert(id);
        }
        Ok(id)
    }

    /// Adds one that is on-line.
    #[cfg(test)]
    pub fn add_for_test(&mut self) -> BenefactorId {
        let id = BenefactorId(self.next);
        let new = unheard("127.0.0.1:1".to_owned(), BenefactorSecret([1; 32]));
        self.known.insert(id, Benefactor { incarnation: Some(Incarnation(1)), ..new });
        self.next += 1;
        id
    }

    /// Takes a benefactor out. Its number is never given again; if it returns, it has it as before.
    pub fn remove(&mut self, id: BenefactorId) {
        self.leaving.remove(&id);
        if self.known.remove(&id).is_some() {
            self.doubts += 1;
            self.changed.insert(id);
        }
    }

    pub fn get(&self, id: BenefactorId) -> Option<&Benefactor> {
        self.known.get(&id)
    }

    pub fn get_mut(&mut self, id: BenefactorId) -> Option<&mut Benefactor> {
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
        }
        self.registrations
    }

    /// The benefactor, if `registration` is its last.
    ///
    /// # Errors
    /// `Stale`: it must register (again).
    pub fn registered(&mut self, id: BenefactorId, registration: u64) -> Result<&mut Benefactor, Failure> {
        let known =
            self.known.get_mut(&id).filter(|benefactor| benefactor.registration == Some(registration));
        known.ok_or_else(|| {
            Failure::new(
                ErrorCode::Stale,
                format!("benefactor {id} has registered anew since, or not at all: register"),
            )
        })
    }

    /// A benefactor tells its load. Whether it is to let go of what it has, and was not before, or the other way round.
    pub fn take_load(&mut self, id: BenefactorId, load: BenefactorLoad) -> bool {
        let Some(benefactor) = self.known.get_mut(&id) else { return false };
        benefactor.load = load;
        match load.wish.drains() {
            true => self.leaving.insert(id),
            false => self.leaving.remove(&id),
        }
    }

    /// Whether the benefactor is to let go of what it has, once others have it.
    pub fn leaves(&self, id: BenefactorId) -> bool {
        self.leaving.contains(&id)
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
        self.awaited().next().is_some()
    }

    /// The benefactors that may still report blocks that nobody knows of.
    pub fn awaited(&self) -> impl Iterator<Item = BenefactorId> {
        let awaited =
            |benefactor: &Benefactor| benefactor.awaited && benefactor.state != BenefactorState::Lost;
        self.iter().filter(move |(_, benefactor)| awaited(benefactor)).map(|(id, _)| id)
    }

    /// Benefactors of which nobody knows what they have: they have not reported since the manager started.
    pub fn unreported(&self) -> impl Iterator<Item = BenefactorId> {
        self.iter().filter(|(_, benefactor)| !benefactor.reported).map(|(id, _)| id)
    }

    /// Looks at the clock; who is seen in another way than before.
    pub fn update_states(&mut self, now_ms: u64, timing: &Timing) -> StateChanges {
        let mut changes = StateChanges::default();
        for (id, benefactor) in &mut self.known {
            let state = state_of(benefactor, now_ms, timing);
            let overdue = now_ms.saturating_sub(benefactor.registered_ms) >= timing.benefactor_lost_ms;
            benefactor.awaited = !benefactor.reported && !overdue;
            if benefactor.state != state {
                changes.seen.push(*id);
            }
            if benefactor.state == BenefactorState::Online && state != BenefactorState::Online {
                changes.went.push(*id);
            }
            benefactor.state = state;
        }
        if !changes.seen.is_empty() {
            self.doubts += 1;
        }
        changes
    }

    /// Rises whenever less may count of what benefactors have said, or other ones are there.
    pub fn doubts(&self) -> u64 {
        self.doubts
    }

    /// An inventory has come whole: what it leaves out counts no longer.
    pub fn take_inventory(&mut self) {
        self.doubts += 1;
    }

    /// How many are there, or may come back.
    pub fn remaining(&self) -> usize {
        self.known.values().filter(|benefactor| benefactor.state != BenefactorState::Lost).count()
    }

    /// The states that a selection looks at.
    pub fn hosts(&self) -> Vec<HostState> {
        let host = |(id, benefactor): (BenefactorId, &Benefactor)| HostState {
            id,
            online: benefactor.state == BenefactorState::Online,
            free_bytes: if self.leaves(id) { 0 } else { benefactor.load.free_bytes },
            requests: benefactor.load.requests,
        };
        self.iter().map(host).collect()
    }

    pub fn info(&self, id: BenefactorId, now_ms: u64) -> Option<BenefactorInfo> {
        let benefactor = self.get(id)?;
        Some(BenefactorInfo {
            id,
            address: benefactor.address.clone(),
            state: benefactor.state,
            load: benefactor.load,
            pid: benefactor.pid,
            silent_ms: now_ms.saturating_sub(benefactor.heard_ms),
        })
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
        pid: 0,
        load: BenefactorLoad::default(),
        incarnation: None,
        registration: None,
        reported: false,
        awaited: true,
        registered_ms: 0,
        heard_ms: 0,
        receipt_key: None,
        durable_sequence: 0,
        fence: 0,
        inventory: 0,
        tells: false,
        valid_inventory: 0,
        not_more_ms: 0,
        not_fewer_ms: 0,
        state: BenefactorState::Expected,
    }
}

fn counts(state: BenefactorState) -> bool {
    matches!(state, BenefactorState::Online | BenefactorState::Offline)
}

fn state_of(benefactor: &Benefactor, now_ms: u64, timing: &Timing) -> BenefactorState {
    let silent_ms = now_ms.saturating_sub(benefactor.heard_ms);
    match benefactor.incarnation {
        _ if silent_ms >= timing.benefactor_lost_ms => BenefactorState::Lost,
        None => BenefactorState::Expected,
        Some(_) if silent_ms >= timing.benefactor_lease_ms => BenefactorState::Offline,
        Some(_) => BenefactorState::Online,
    }
}
