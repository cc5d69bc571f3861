//! The pasts of hosts: when each benefactor, and each machine on which clients write, was there.
//!
//! Relies on what the manager sees anyway: registrations, heartbeats and their loss, signs of life of clients. Whoever places parts of
//! checkpoints reads it (`stdchk_placement`). The one idea: only what was seen counts. Time in which the manager was away, stood still or
//! could not trust the calendar is unknown, and enters no probability.
//!
//! | event | what becomes of the pasts |
//! |---|---|
//! | a benefactor is seen in another way than before | a step of its own |
//! | a client writes on a machine without a benefactor | that machine is there |
//! | its last client says goodbye | nobody looks at that machine from now on |
//! | its last client falls silent for a lease | that machine has failed |
//! | the manager starts | all is unknown from the last moment that is stored on |
//! | the calendar jumps ahead, or the manager stood still | what lies between is unknown |
//! | the calendar is set back | nothing is noted until it has caught up; after an hour it is believed, and what lay after it forgotten |
//! | a stored past is damaged | a warning, and that past begins anew |
//! | a benefactor is forgotten | its past goes |
//!
//! Pasts that changed are stored once a minute, in parts; and every ten minutes, until when all of them are known.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{BenefactorState, ManagerReply, TimeNs};
use stdchk_model::{BenefactorId, ClientId, MachineId, cbor};
use stdchk_placement::history::{History, State};

use super::benefactors::Registry;
use super::{Answer, Core, Now};
use crate::ranking::ToldHost;
use crate::record::{KnownUntilRecord, LAYOUT, PastRecord, decode};
use crate::store::{Batch, Table};

/// Seconds by which the calendar may run ahead of the manager's own time, or stand behind the last moment that was noted, and nothing is
/// concluded from it: clocks are corrected by less, and a disk keeps the manager waiting for less.
const SLACK_S: u64 = 60;
/// Time after which a calendar that was set back is believed, milliseconds: a machine whose clock lost its battery has asked others for
/// the time by then.
const BELIEVED_AFTER_MS: u64 = 3_600_000;
/// What changed is stored this often at most, milliseconds.
const STORE_EVERY_MS: u64 = 60_000;
/// Until when the pasts are known is stored this often, milliseconds: so much of each is unknown after a crash.
const STORE_UNTIL_EVERY_MS: u64 = 600_000;
/// Bytes of pasts that one commit takes along, so that it stays short.
const STORED_AT_ONCE_BYTES: usize = 256 << 10;
/// Compute hosts whose pasts are kept: 8 MiB with the longest. The one that was seen least lately gives way.
const COMPUTE_HOSTS_MAX: usize = 4096;

/// Pasts that are told at once to who ranks: some 2 MiB if all are as long as they get.
const TOLD_AT_ONCE: usize = 512;

/// Key of [`KnownUntilRecord`] in its table.
const UNTIL_KEY: &[u8] = &[0];

/// Whose past it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum HostKey {
    /// A benefactor.
    Benefactor(BenefactorId),
    /// A machine without a benefactor on which clients write, told apart by the member of the pool that says so.
    Compute([u8; 16]),
}

impl HostKey {
    fn of_machine(member: Option<MemberId>, machine: MachineId) -> Self {
        let said = [&member.map_or([0; 16], |member| member.0)[..], &machine.0].concat();
        let hash = blake3::derive_key("stdchk compute host 1", &said);
        let (id, _) = hash.split_first_chunk().unwrap_or_else(|| unreachable!("a hash has 32 bytes"));
        Self::Compute(*id)
    }

    /// Its key in the table of pasts.
    fn key(self) -> Vec<u8> {
        match self {
            Self::Benefactor(id) => [&[1][..], &id.0.to_be_bytes()].concat(),
            Self::Compute(id) => [&[2][..], &id].concat(),
        }
    }

    fn of_key(key: &[u8]) -> Option<Self> {
        match key.split_first()? {
            (1, rest) => Some(Self::Benefactor(BenefactorId(u32::from_be_bytes(rest.try_into().ok()?)))),
            (2, rest) => Some(Self::Compute(rest.try_into().ok()?)),
            _ => None,
        }
    }
}

/// A client that writes.
#[derive(Clone, Copy, Debug)]
struct Writer {
    machine: MachineId,
    /// Whose past it is part of; `None`: a benefactor runs on the machine.
    host: Option<HostKey>,
    heard_ms: u64,
}

/// All pasts.
#[derive(Debug, Default)]
pub struct Hosts {
    pasts: BTreeMap<HostKey, History>,
    /// Clients that are there, on each compute host.
    present: HashMap<HostKey, usize>,
    writers: HashMap<ClientId, Writer>,
    /// Until when all pasts are known, seconds since 1970.
    until: u64,
    /// The calendar, seconds, and the manager's own time, milliseconds, when they were read last.
    read: Option<(u64, u64)>,
    /// Since when the calendar has stood behind `until`, milliseconds of the manager's life.
    behind_ms: Option<u64>,
    /// To be stored, or removed from the store.
    changed: BTreeSet<HostKey>,
    /// To be told to who ranks; `None`: nobody does.
    untold: Option<BTreeSet<HostKey>>,
    stored_ms: u64,
    until_stored_ms: u64,
    /// The next batch takes pasts along.
    due: bool,
    until_due: bool,
}

fn seconds(time: TimeNs) -> u64 {
    u64::try_from(time / 1_000_000_000).unwrap_or(0)
}

/// What a benefactor that is seen like this is in.
fn state_of(seen: BenefactorState) -> State {
    match seen {
        BenefactorState::Online => State::Running,
        BenefactorState::Expected => State::Unknown,
        BenefactorState::Offline | BenefactorState::Lost => State::Unavailable,
    }
}

impl Hosts {
    /// Takes in a stored record. One that can't be read costs that past, and no more.
    pub fn load(&mut self, key: &[u8], bytes: &[u8]) {
        if key == UNTIL_KEY {
            match decode::<KnownUntilRecord>(bytes, "until when pasts are known") {
                Ok(record) => self.until = record.until,
                Err(error) => tracing::warn!(%error, "pasts of hosts are unknown since they changed last"),
            }
            return;
        }
        let Some(host) = HostKey::of_key(key) else {
            tracing::warn!("the store has the past of a host that can't exist");
            return;
        };
        let read = |error: &dyn std::fmt::Display| {
            tracing::warn!(?host, %error, "the stored past of a host is damaged: it begins anew");
            History::new()
        };
        let past = match decode::<PastRecord>(bytes, "the past of a host") {
            Ok(record) => History::decode(&record.history).unwrap_or_else(|error| read(&error)),
            Err(error) => read(&error),
        };
        if past.is_empty() {
            self.changed.insert(host);
        }
        self.pasts.insert(host, past);
    }

    /// All was read: what happened since the last moment that is stored, nobody saw.
    pub fn begin(&mut self, is_known: impl Fn(BenefactorId) -> bool) {
        let is_gone = |host: &HostKey| matches!(host, HostKey::Benefactor(id) if !is_known(*id));
        let gone: Vec<HostKey> = self.pasts.keys().copied().filter(is_gone).collect();
        gone.into_iter().for_each(|host| self.remove(host));
        let known_until = self.until;
        for past in self.pasts.values_mut() {
            if past.state() != State::Unknown {
                past.still(past.until().max(known_until));
                past.gap();
            }
            self.until = self.until.max(past.until());
        }
    }

    /// Adds what must be stored to `batch`, if it is time for that.
    pub fn take_changes(&mut self, batch: &mut Batch) {
        if !std::mem::take(&mut self.due) {
            return;
        }
        let mut bytes = 0;
        while bytes < STORED_AT_ONCE_BYTES
            && let Some(host) = self.changed.pop_first()
        {
            match self.pasts.get(&host).filter(|past| !past.is_empty()) {
                Some(past) => {
                    let record = PastRecord { layout: LAYOUT, history: past.encode() };
                    bytes += record.history.len();
                    batch.put(Table::Past, &host.key(), cbor::encode(&record));
                }
                None => batch.remove(Table::Past, &host.key()),
            }
        }
        // Not before all that has happened until then is stored.
        if self.changed.is_empty() && std::mem::take(&mut self.until_due) {
            let record = KnownUntilRecord { layout: LAYOUT, until: self.until };
            batch.put(Table::Past, UNTIL_KEY, cbor::encode(&record));
        }
    }

    /// Time goes on: what is to be stored, and which compute hosts are gone. `may_store`: the store may grow.
    pub fn tick(&mut self, now_ms: u64, lease_ms: u64, may_store: bool) {
        let silent = |writer: &Writer| now_ms.saturating_sub(writer.heard_ms) >= lease_ms;
        let gone: Vec<ClientId> =
            self.writers.iter().filter(|(_, writer)| silent(writer)).map(|(client, _)| *client).collect();
        gone.into_iter().for_each(|client| self.end(client, State::Unavailable));
        if now_ms.saturating_sub(self.until_stored_ms) >= STORE_UNTIL_EVERY_MS {
            (self.until_stored_ms, self.until_due) = (now_ms, true);
        }
        if may_store && now_ms.saturating_sub(self.stored_ms) >= STORE_EVERY_MS {
            if self.changed.is_empty() && !self.until_due {
                self.stored_ms = now_ms;
            } else {
                self.due = true;
            }
        }
    }

    /// Reads the clocks. Tells whether how all hosts are seen must be noted again: nobody knows what they did meanwhile.
    pub fn look(&mut self, now: Now) -> bool {
        let wall = seconds(now.wall);
        let jumped = self.read.is_some_and(|(last, last_ms)| {
            wall.saturating_sub(last) > now.ms.saturating_sub(last_ms) / 1000 + SLACK_S
        });
        self.read = Some((wall, now.ms));
        if wall.saturating_add(SLACK_S) < self.until {
            if self.behind_ms.is_none() {
                tracing::warn!("the calendar was set back: pasts of hosts wait until it has caught up");
                self.nobody_looks();
            }
            let since_ms = *self.behind_ms.get_or_insert(now.ms);
            if now.ms.saturating_sub(since_ms) < BELIEVED_AFTER_MS {
                return false;
            }
            tracing::warn!("the calendar stays behind: what was noted of hosts for later is forgotten");
            for (host, past) in self.pasts.iter_mut().filter(|(_, past)| past.until() > wall) {
                past.record(wall, State::Unknown);
                self.changed.insert(*host);
            }
            self.until = wall;
            self.tell_all();
        }
        let waited = self.behind_ms.take().is_some();
        if jumped && !waited {
            self.nobody_looks();
        }
        self.until = self.until.max(wall);
        jumped || waited
    }

    /// From the last moment that was noted on, nobody knows what hosts do.
    fn nobody_looks(&mut self) {
        for (host, past) in self.pasts.iter_mut().filter(|(_, past)| past.state() != State::Unknown) {
            past.still(self.until.max(past.until()));
            past.gap();
            self.changed.insert(*host);
        }
        self.tell_all();
    }

    fn tell_all(&mut self) {
        if let Some(untold) = &mut self.untold {
            untold.extend(self.pasts.keys());
        }
    }

    /// Takes note of the state of a host.
    fn note(&mut self, host: HostKey, state: State) {
        if self.behind_ms.is_some() {
            return;
        }
        let past = self.pasts.entry(host).or_default();
        let before = (past.state(), past.is_empty());
        if before == (State::Unknown, true) && state == State::Unknown {
            // Of one that was never seen, nothing is worth noting.
            self.pasts.remove(&host);
            return;
        }
        past.record(self.until.max(past.until()), state);
        if before != (past.state(), past.is_empty()) {
            self.change(host);
        }
    }

    fn change(&mut self, host: HostKey) {
        self.changed.insert(host);
        if let Some(untold) = &mut self.untold {
            untold.insert(host);
        }
    }

    /// Forgets a host.
    pub fn remove(&mut self, host: HostKey) {
        if self.pasts.remove(&host).is_some() {
            self.change(host);
        }
    }

    /// The past of a host as it is now.
    pub fn past(&self, host: HostKey) -> Option<History> {
        let mut past = self.pasts.get(&host)?.clone();
        if past.state() != State::Unknown {
            past.still(self.until.max(past.until()));
        }
        Some(past)
    }

    /// The pasts that changed since the last call, some at a time, and whether there are more: all of them, if nobody has asked before.
    pub fn take_untold(&mut self, registry: &Registry) -> (Vec<(HostKey, Option<ToldHost>)>, bool) {
        let untold = self.untold.get_or_insert_with(|| self.pasts.keys().copied().collect());
        let mut told = Vec::new();
        while told.len() < TOLD_AT_ONCE
            && let Some(host) = untold.pop_first()
        {
            let labels = match host {
                HostKey::Benefactor(id) => registry.get(id).map(|benefactor| benefactor.labels.clone()),
                HostKey::Compute(_) => None,
            };
            let known = self
                .pasts
                .get(&host)
                .map(|past| ToldHost { past: past.clone(), labels: labels.unwrap_or_default() });
            told.push((host, known));
        }
        (told, !untold.is_empty())
    }

    /// Who ranks must know the labels of a benefactor anew.
    pub fn labels_changed(&mut self, id: BenefactorId) {
        if let Some(untold) = &mut self.untold {
            untold.insert(HostKey::Benefactor(id));
        }
    }

    /// Until when all pasts are known, seconds.
    pub fn until(&self) -> u64 {
        self.until
    }

    // --- clients that write

    fn attend(&mut self, client: ClientId, writer: Writer) {
        let before = self.writers.insert(client, writer);
        if let Some(before) = before.filter(|before| before.host != writer.host) {
            self.count_down(before.host, State::Unknown);
        } else if before.is_some() {
            return;
        }
        let Some(host) = writer.host else { return };
        self.make_room(host);
        *self.present.entry(host).or_default() += 1;
        self.note(host, State::Running);
    }

    /// A sign of life of a client.
    pub fn hear(&mut self, client: ClientId, now_ms: u64) {
        if let Some(writer) = self.writers.get_mut(&client) {
            writer.heard_ms = now_ms;
        }
    }

    /// A client is there no longer; without others, its host is in `state`.
    fn end(&mut self, client: ClientId, state: State) {
        if let Some(writer) = self.writers.remove(&client) {
            self.count_down(writer.host, state);
        }
    }

    fn count_down(&mut self, host: Option<HostKey>, state: State) {
        let Some(host) = host else { return };
        let Some(present) = self.present.get_mut(&host) else { return };
        *present -= 1;
        if *present == 0 {
            self.present.remove(&host);
            self.note(host, state);
        }
    }

    /// Forgets the compute host that was seen least lately if there are too many for one more.
    fn make_room(&mut self, host: HostKey) {
        let is_compute = |host: &HostKey| matches!(host, HostKey::Compute(_));
        if self.pasts.contains_key(&host) || self.pasts.len() < COMPUTE_HOSTS_MAX {
            return;
        }
        let computing = || self.pasts.iter().filter(|(host, _)| is_compute(host));
        if computing().count() < COMPUTE_HOSTS_MAX {
            return;
        }
        let unused = computing().filter(|(host, _)| !self.present.contains_key(host));
        let oldest = unused.min_by_key(|(_, past)| past.until()).map(|(host, _)| *host);
        if let Some(oldest) = oldest {
            self.remove(oldest);
        }
    }
}

impl Core {
    /// Takes note of how these benefactors are seen.
    pub(super) fn note_seen(&mut self, seen: &[BenefactorId]) {
        for id in seen {
            if let Some(benefactor) = self.registry.get(*id) {
                self.hosts.note(HostKey::Benefactor(*id), state_of(benefactor.state));
            }
        }
    }

    /// Reads the clocks for the pasts of hosts.
    pub(super) fn look_at_clocks(&mut self, now: Now) {
        if self.hosts.look(now) {
            let all: Vec<BenefactorId> = self.registry.iter().map(|(id, _)| id).collect();
            self.note_seen(&all);
            let present: Vec<HostKey> = self.hosts.present.keys().copied().collect();
            present.into_iter().for_each(|host| self.hosts.note(host, State::Running));
        }
    }

    /// A client that writes says on which machine it runs.
    pub(super) fn attend(&mut self, client: ClientId, machine: MachineId, now: Now) -> Answer {
        let host = match self.registry.on_machine(machine) {
            Some(_) => None,
            None => Some(HostKey::of_machine(self.asking, machine)),
        };
        self.hosts.attend(client, Writer { machine, host, heard_ms: now.ms });
        self.hosts.hear(client, now.ms);
        Ok(ManagerReply::Done)
    }

    /// A client ends.
    pub(super) fn leave(&mut self, client: ClientId) -> Answer {
        self.hosts.end(client, State::Unknown);
        Ok(ManagerReply::Done)
    }

    /// On which host a client computes, as far as it has said so: a benefactor if one runs there.
    pub(super) fn host_of(&self, client: ClientId) -> Option<HostKey> {
        let writer = self.hosts.writers.get(&client)?;
        let benefactor = self.registry.on_machine(writer.machine).map(HostKey::Benefactor);
        benefactor.or(writer.host)
    }

    /// The host that `machine` is for who asks.
    pub(super) fn host_on(&self, machine: MachineId) -> HostKey {
        let benefactor = self.registry.on_machine(machine).map(HostKey::Benefactor);
        benefactor.unwrap_or_else(|| HostKey::of_machine(self.asking, machine))
    }

    /// The host that a machine is for who may do all.
    pub fn host_of_machine(&self, machine: MachineId) -> HostKey {
        self.host_on(machine)
    }

    /// The past of a host, as it is known by now.
    pub fn past(&self, host: HostKey) -> Option<History> {
        self.hosts.past(host)
    }

    /// The store has room for more than what makes room again, or not.
    pub fn store_has_room(&mut self, has_room: bool) {
        self.has_room = has_room;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BENEFACTOR: HostKey = HostKey::Benefactor(BenefactorId(1));

    fn at(second: u64) -> Now {
        Now { wall: i64::try_from(second).unwrap() * 1_000_000_000, ms: second * 1000 }
    }

    fn spent(hosts: &Hosts, state: State) -> u64 {
        let past = hosts.past(BENEFACTOR).unwrap();
        past.spans(0, u64::MAX).filter(|span| span.state == state).map(|span| span.to - span.from).sum()
    }

    /// One that was up from 100 to 200.
    fn seen() -> Hosts {
        let mut hosts = Hosts::default();
        assert!(!hosts.look(at(100)));
        hosts.note(BENEFACTOR, State::Running);
        assert!(!hosts.look(at(200)));
        hosts
    }

    #[test]
    fn a_manager_that_stood_still_knows_nothing_of_that_time() {
        let mut hosts = seen();
        // A machine that slept for an hour.
        assert!(hosts.look(Now { ms: 201_000, ..at(3800) }));
        hosts.note(BENEFACTOR, State::Unavailable);
        hosts.look(Now { ms: 211_000, ..at(3810) });
        assert_eq!((spent(&hosts, State::Running), spent(&hosts, State::Unknown)), (100, 3600));
        assert_eq!(spent(&hosts, State::Unavailable), 10);
    }

    #[test]
    fn a_calendar_that_is_set_back_and_forth_costs_nothing_but_the_time_between() {
        let mut hosts = seen();
        assert!(!hosts.look(Now { ms: 201_000, ..at(0) }));
        hosts.note(BENEFACTOR, State::Unavailable);
        assert!(hosts.look(Now { ms: 202_000, ..at(202) }));
        hosts.note(BENEFACTOR, State::Running);
        hosts.look(at(300));
        assert_eq!((spent(&hosts, State::Running), spent(&hosts, State::Unavailable)), (198, 0));
        // Set ahead by a year, noticed, and set right: the time that was wrong is forgotten.
        let year = 365 * 86_400;
        assert!(hosts.look(Now { ms: 301_000, ..at(301 + year) }));
        hosts.note(BENEFACTOR, State::Running);
        assert!(!hosts.look(Now { ms: 302_000, ..at(302) }));
        assert!(!hosts.look(Now { ms: 302_000 + BELIEVED_AFTER_MS - 1, ..at(3901) }));
        assert!(hosts.look(Now { ms: 302_000 + BELIEVED_AFTER_MS, ..at(3902) }));
        hosts.note(BENEFACTOR, State::Running);
        hosts.look(Now { ms: 302_000 + BELIEVED_AFTER_MS + 10_000, ..at(3912) });
        assert_eq!((hosts.until(), spent(&hosts, State::Running)), (3912, 208));
    }

    #[test]
    fn small_corrections_of_the_clock_leave_no_trace() {
        let mut hosts = seen();
        assert!(!hosts.look(Now { ms: 201_000, ..at(150) }));
        assert!(!hosts.look(Now { ms: 210_000, ..at(209) }));
        assert_eq!((spent(&hosts, State::Running), spent(&hosts, State::Unknown)), (109, 0));
    }

    #[test]
    fn the_compute_host_that_was_seen_least_lately_gives_way_and_none_that_is_there() {
        let mut hosts = Hosts::default();
        let key = |number: u64| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_be_bytes());
            HostKey::Compute(id)
        };
        let client = |number: u64| ClientId(u128::from(number).to_be_bytes());
        let most = u64::try_from(COMPUTE_HOSTS_MAX).unwrap();
        for number in 0..=most {
            hosts.look(at(number + 1));
            let writer = Writer { machine: MachineId([1; 16]), host: Some(key(number)), heard_ms: 0 };
            hosts.attend(client(number), writer);
            if number > 0 {
                hosts.end(client(number), State::Unknown);
            }
        }
        assert_eq!(hosts.pasts.len(), COMPUTE_HOSTS_MAX);
        assert!(hosts.pasts.contains_key(&key(0)) && !hosts.pasts.contains_key(&key(1)));
    }
}
