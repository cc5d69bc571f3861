//! The pasts of hosts: when each benefactor, and each machine on which clients write, was there.
//!
//! Relies on what the manager sees anyway: registrations, heartbeats and their loss, signs of life of clients. Whoever places parts of
//! checkpoints reads it (`stdchk_placement`). The one idea: only what was seen counts. Time in which the manager was away, stood still or
//! could not trust the calendar is unknown, and enters no probability.
//!
//! | event | what becomes of the pasts |
//! |---|---|
//! | a benefactor is seen in another way than before, or says that its load is another one | a step of its own |
//! | a client writes on a machine without a benefactor | that machine is there; a new one only once benefactors had time to register |
//! | its last client says goodbye, and no other writes there for five minutes | nobody looks at that machine from now on |
//! | a client says another machine than before | its former one goes with its past if it was never seen to fail |
//! | its last client falls silent for a lease | that machine has failed |
//! | the manager starts | all is unknown from the last moment that is stored on |
//! | the calendar jumps ahead, or the manager stood still | what lies between is unknown |
//! | the calendar is set back | nothing is noted until it has caught up; after an hour it is believed, and what lay after it forgotten |
//! | a stored past is damaged | a warning, and that past begins anew |
//! | a stored past goes on after the time that is now | what lies after it is forgotten, of this past alone |
//! | a benefactor is forgotten | its past goes |
//!
//! Once a minute, the pasts that changed until then are stored, in parts; and every ten minutes, until when all of them are known.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use stdchk_model::limits::SENT_ENTRIES_MAX;
use stdchk_model::message::benefactor::StorageState;
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{BenefactorState, ManagerReply, Sent, TimeNs};
use stdchk_model::{BenefactorId, ClientId, MachineId, Tier, cbor};
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
/// Bytes of pasts and their keys that one commit takes along, and how many of them, so that it stays short.
const STORED_AT_ONCE_BYTES: usize = 256 << 10;
const STORED_AT_ONCE: usize = 100;
/// Compute hosts whose pasts are kept: 8 MiB with the longest. One that was never seen to fail gives way first, and of these the one that
/// was seen least lately.
const COMPUTE_HOSTS_MAX: usize = 4096;
/// Clients that write whose machines are known: some 5 MiB. Those beyond it write like all others.
const WRITERS_MAX: usize = 65_536;
/// How long a machine still counts as there after its last client said goodbye, milliseconds: commands follow each other, and each step
/// that they leave in a past pushes an older one out of it.
const LINGERS_MS: u64 = 300_000;

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

    /// The benefactor, if it is one.
    pub fn benefactor(self) -> Option<BenefactorId> {
        match self {
            Self::Benefactor(id) => Some(id),
            Self::Compute(_) => None,
        }
    }

    fn is_compute(self) -> bool {
        matches!(self, Self::Compute(_))
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
    /// The compute host on which it counts; `None`: on none, since a benefactor runs there, or there was no room for its past.
    host: Option<HostKey>,
    heard_ms: u64,
}

/// All pasts.
#[derive(Debug, Default)]
pub struct Hosts {
    pasts: BTreeMap<HostKey, History>,
    /// How many of them are those of compute hosts.
    computing: usize,
    /// Clients that are there, on each compute host.
    present: HashMap<HostKey, usize>,
    /// Compute hosts whose last client said goodbye, and when it was heard last, milliseconds of the manager's life.
    left: HashMap<HostKey, u64>,
    writers: HashMap<ClientId, Writer>,
    /// Until when all pasts are known, seconds since 1970.
    until: u64,
    /// The calendar, seconds, and the manager's own time, milliseconds, when they were read last.
    read: Option<(u64, u64)>,
    /// Since when the calendar has stood behind `until`, milliseconds of the manager's life.
    behind_ms: Option<u64>,
    /// To be stored, or removed from the store, in the next round.
    changed: BTreeSet<HostKey>,
    /// Those of this round that are left, and when it began, seconds: what changed until then is stored when it ends.
    storing: BTreeSet<HostKey>,
    round_until: u64,
    /// To be told to who ranks; `None`: nobody does.
    untold: Option<BTreeSet<HostKey>>,
    /// When the last round began, milliseconds of the manager's life.
    stored_ms: u64,
    until_stored_ms: u64,
    /// The next batch takes pasts along.
    due: bool,
    until_due: bool,
}

fn seconds(time: TimeNs) -> u64 {
    u64::try_from(time / 1_000_000_000).unwrap_or(0)
}

/// What a benefactor that is seen like this, and says this of its load, is in.
fn state_of(seen: BenefactorState, told: StorageState) -> State {
    match seen {
        BenefactorState::Online => told.into(),
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
        if self.pasts.insert(host, past).is_none() {
            self.computing += usize::from(host.is_compute());
        }
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
        }
    }

    /// Adds what must be stored to `batch`, if it is time for that.
    pub fn take_changes(&mut self, batch: &mut Batch) {
        if !std::mem::take(&mut self.due) {
            return;
        }
        let (mut bytes, mut count) = (0, 0);
        while bytes < STORED_AT_ONCE_BYTES
            && count < STORED_AT_ONCE
            && let Some(host) = self.storing.pop_first()
        {
            let key = host.key();
            (bytes, count) = (bytes + key.len(), count + 1);
            match self.pasts.get(&host).filter(|past| !past.is_empty()) {
                Some(past) => {
                    let record = cbor::encode(&PastRecord { layout: LAYOUT, history: past.encode() });
                    bytes += record.len();
                    batch.put(Table::Past, &key, record);
                }
                None => batch.remove(Table::Past, &key),
            }
        }
        // Not before all that has happened until then is stored.
        if self.storing.is_empty() && std::mem::take(&mut self.until_due) {
            let until = self.round_until.min(self.until);
            let record = KnownUntilRecord { layout: LAYOUT, until };
            batch.put(Table::Past, UNTIL_KEY, cbor::encode(&record));
        }
    }

    /// Time goes on: what is to be stored, and which compute hosts are gone. `may_store`: the store may grow.
    pub fn tick(&mut self, now_ms: u64, lease_ms: u64, may_store: bool) {
        let silent = |writer: &Writer| now_ms.saturating_sub(writer.heard_ms) >= lease_ms;
        let gone: Vec<ClientId> =
            self.writers.iter().filter(|(_, writer)| silent(writer)).map(|(client, _)| *client).collect();
        gone.into_iter().for_each(|client| self.fall_silent(client));
        let is_over = |since: &u64| now_ms.saturating_sub(*since) >= LINGERS_MS;
        let left: Vec<HostKey> =
            self.left.iter().filter(|(_, since)| is_over(since)).map(|(host, _)| *host).collect();
        for host in left {
            self.left.remove(&host);
            self.note(host, State::Unknown);
        }
        if now_ms.saturating_sub(self.until_stored_ms) >= STORE_UNTIL_EVERY_MS {
            (self.until_stored_ms, self.until_due) = (now_ms, true);
        }
        if !may_store {
            return;
        }
        if self.storing.is_empty() && now_ms.saturating_sub(self.stored_ms) >= STORE_EVERY_MS {
            (self.stored_ms, self.round_until) = (now_ms, self.until);
            self.storing = std::mem::take(&mut self.changed);
            self.due = self.until_due;
        }
        self.due |= !self.storing.is_empty();
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
        if state == State::Unknown && self.pasts.get(&host).is_none_or(History::is_empty) {
            // Of one that was never seen, nothing is worth noting.
            return;
        }
        if !self.pasts.contains_key(&host) {
            self.computing += usize::from(host.is_compute());
        }
        let past = self.pasts.entry(host).or_default();
        let before = (past.state(), past.is_empty());
        // One that goes on after the time that is now is wrong there: it is cut.
        let is_wrong = past.until() > self.until;
        past.record(self.until, state);
        if is_wrong || before != (past.state(), past.is_empty()) {
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
            self.computing -= usize::from(host.is_compute());
            self.left.remove(&host);
            self.change(host);
        }
    }

    /// Whether there is a past of a host.
    pub fn knows(&self, host: HostKey) -> bool {
        self.pasts.contains_key(&host)
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

    /// Who ranks knows nothing any more.
    pub fn nobody_was_told(&mut self) {
        self.untold = None;
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

    /// A client is there, on a machine that is this compute host, if it is one.
    fn attend(&mut self, client: ClientId, writer: Writer) {
        let before = self.writers.get(&client).map(|before| before.host);
        if before.is_none() && self.writers.len() >= WRITERS_MAX {
            return;
        }
        if before.is_some_and(|before| before == writer.host) {
            self.writers.insert(client, writer);
            return;
        }
        if let Some(Some(former)) = before
            && self.count_down(former)
        {
            // A client has one machine: what it said before was another name of the same one, or of none.
            match self.was_seen_to_fail(former) {
                true => self.note(former, State::Unknown),
                false => self.remove(former),
            }
        }
        let host = writer.host.filter(|host| self.make_room(*host));
        self.writers.insert(client, Writer { host, ..writer });
        let Some(host) = host else { return };
        self.left.remove(&host);
        *self.present.entry(host).or_default() += 1;
        self.note(host, State::Running);
    }

    /// A sign of life of a client.
    pub fn hear(&mut self, client: ClientId, now_ms: u64) {
        if let Some(writer) = self.writers.get_mut(&client) {
            writer.heard_ms = now_ms;
        }
    }

    /// A client was not heard of for a lease; if it was the last one on its host, that has failed.
    fn fall_silent(&mut self, client: ClientId) {
        if let Some(host) = self.writers.remove(&client).and_then(|writer| writer.host)
            && self.count_down(host)
        {
            self.note(host, State::Unavailable);
        }
    }

    /// A client says goodbye.
    fn leave(&mut self, client: ClientId) {
        if let Some(Writer { host: Some(host), heard_ms, .. }) = self.writers.remove(&client)
            && self.count_down(host)
            && self.knows(host)
        {
            self.left.insert(host, heard_ms);
        }
    }

    /// One client fewer is there on a compute host; tells whether it was the last one.
    fn count_down(&mut self, host: HostKey) -> bool {
        let Some(present) = self.present.get_mut(&host) else { return false };
        *present -= 1;
        let is_last = *present == 0;
        if is_last {
            self.present.remove(&host);
        }
        is_last
    }

    fn was_seen_to_fail(&self, host: HostKey) -> bool {
        let mut steps = self.pasts.get(&host).into_iter().flat_map(History::steps);
        steps.any(|(_, state)| state == State::Unavailable)
    }

    /// Whether there is room for the past of a compute host, made if there are too many of those that aren't there.
    fn make_room(&mut self, host: HostKey) -> bool {
        if self.knows(host) || self.computing < COMPUTE_HOSTS_MAX {
            return true;
        }
        if self.present.len() >= COMPUTE_HOSTS_MAX {
            return false;
        }
        let may_go =
            self.pasts.iter().filter(|(host, _)| host.is_compute() && !self.present.contains_key(host));
        let worth = |(host, past): &(&HostKey, &History)| (self.was_seen_to_fail(**host), past.until());
        let Some(gone) = may_go.min_by_key(worth).map(|(host, _)| *host) else { return false };
        self.remove(gone);
        true
    }
}

impl Core {
    /// Takes note of how these benefactors are seen.
    pub(super) fn note_seen(&mut self, seen: &[BenefactorId]) {
        for id in seen {
            // Nothing is placed by the pasts of those that keep blocks in memory.
            if let Some(benefactor) = self.registry.get(*id).filter(|one| one.tier == Tier::Disk) {
                self.hosts.note(HostKey::Benefactor(*id), state_of(benefactor.state, benefactor.load.state));
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

    /// A client that writes says on which machine it runs, and what it has sent.
    pub(super) fn attend(&mut self, client: ClientId, machine: MachineId, sent: &[Sent], now: Now) -> Answer {
        if sent.len() > SENT_ENTRIES_MAX {
            return Err(super::commit::invalid("more benefactors than a client tells of at a time"));
        }
        // Which machines have benefactors, a manager that has just begun doesn't know yet. Clients say it again and again.
        let is_early = now.ms < self.setting.timing.benefactor_lost_ms;
        let host = match self.host_on(machine) {
            HostKey::Benefactor(_) => None,
            host => (!is_early || self.hosts.knows(host)).then_some(host),
        };
        self.hosts.attend(client, Writer { machine, host, heard_ms: now.ms });
        let host = self.host_on(machine);
        // Of a machine with a benefactor its own member speaks, and who may do all: others would say it of one that isn't theirs.
        let is_own = match host {
            HostKey::Benefactor(id) => {
                self.registry.get(id).is_some_and(|own| self.asking.is_none() || own.member == self.asking)
            }
            _ => true,
        };
        let known = sent.iter().filter(|sent| is_own && self.registry.get(sent.to).is_some());
        known.for_each(|sent| self.bandwidths.take(host, sent, now.ms));
        Ok(ManagerReply::Done)
    }

    /// A client ends.
    pub(super) fn leave(&mut self, client: ClientId) -> Answer {
        self.hosts.leave(client);
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
            match number {
                0 => {}
                1 => hosts.fall_silent(client(number)),
                _ => hosts.leave(client(number)),
            }
        }
        assert_eq!((hosts.pasts.len(), hosts.computing), (COMPUTE_HOSTS_MAX, COMPUTE_HOSTS_MAX));
        assert!([0, 1, 3].iter().all(|number| hosts.knows(key(*number))) && !hosts.knows(key(2)));
    }

    fn compute(number: u8) -> HostKey {
        HostKey::Compute([number; 16])
    }

    fn attend(hosts: &mut Hosts, client: u8, host: HostKey, now: Now) {
        hosts.look(now);
        let writer = Writer { machine: MachineId([1; 16]), host: Some(host), heard_ms: now.ms };
        hosts.attend(ClientId([client; 16]), writer);
    }

    #[test]
    fn a_client_that_changes_its_machine_leaves_nothing_of_those_that_never_failed() {
        let mut hosts = Hosts::default();
        // One machine failed once.
        attend(&mut hosts, 1, compute(1), at(1));
        hosts.fall_silent(ClientId([1; 16]));
        for (second, number) in (2..).zip((1..=200).chain([2, 3])) {
            attend(&mut hosts, 2, compute(number), at(second));
        }
        assert_eq!((hosts.pasts.len(), hosts.computing), (2, 2));
        assert!(hosts.knows(compute(1)) && hosts.knows(compute(3)));
        assert_eq!(hosts.present, HashMap::from([(compute(3), 1)]));
        // Another client writes there, too: then it isn't this one's alone.
        attend(&mut hosts, 3, compute(3), at(300));
        attend(&mut hosts, 2, compute(4), at(301));
        assert!(
            hosts.knows(compute(3)) && hosts.present == HashMap::from([(compute(3), 1), (compute(4), 1)])
        );
    }

    #[test]
    fn who_finds_no_room_is_kept_without_a_host() {
        let mut hosts = Hosts::default();
        let host = |number: usize| {
            let mut id = [9; 16];
            id[..8].copy_from_slice(&number.to_be_bytes());
            HostKey::Compute(id)
        };
        let client = |number: usize| ClientId(u128::try_from(number).unwrap().to_be_bytes());
        let writer = |host| Writer { machine: MachineId([1; 16]), host, heard_ms: 0 };
        hosts.look(at(1));
        for number in 0..=COMPUTE_HOSTS_MAX {
            hosts.attend(client(number), writer(Some(host(number))));
        }
        assert_eq!((hosts.computing, hosts.present.len()), (COMPUTE_HOSTS_MAX, COMPUTE_HOSTS_MAX));
        assert_eq!(hosts.writers[&client(COMPUTE_HOSTS_MAX)].host, None);
        for number in 0..WRITERS_MAX {
            hosts.attend(client(number), writer(None));
        }
        hosts.attend(client(WRITERS_MAX), writer(Some(host(1))));
        assert_eq!(hosts.writers.len(), WRITERS_MAX);
        assert!(hosts.present.is_empty());
    }

    #[test]
    fn commands_that_follow_each_other_leave_one_step() {
        let mut hosts = Hosts::default();
        for second in 1..1_000 {
            attend(&mut hosts, 1, compute(1), at(second));
            hosts.leave(ClientId([1; 16]));
            hosts.tick(second * 1_000, 30_000, false);
        }
        assert_eq!(hosts.pasts[&compute(1)].len(), 1);
        hosts.look(at(999 + LINGERS_MS / 1000));
        hosts.tick(999_000 + LINGERS_MS, 30_000, false);
        assert_eq!(hosts.pasts[&compute(1)].state(), State::Unknown);
        assert!(hosts.left.is_empty());
    }

    #[test]
    fn pasts_are_stored_in_rounds_of_small_parts_however_often_hosts_change() {
        let mut hosts = Hosts::default();
        let (mut parts, mut ends) = (0, 0);
        for tenth in 0..6_000 {
            hosts.look(Now {
                wall: 100 * i64::from(tenth) * 1_000_000,
                ms: 100 * u64::try_from(tenth).unwrap(),
            });
            for number in 0..150 {
                let state = if tenth % 2 == 0 { State::Running } else { State::Unavailable };
                hosts.note(HostKey::Benefactor(BenefactorId(number)), state);
            }
            hosts.tick(100 * u64::try_from(tenth).unwrap(), 30_000, true);
            let mut batch = Batch::default();
            hosts.take_changes(&mut batch);
            parts += usize::from(!batch.is_empty());
            ends += usize::from(!batch.is_empty() && hosts.storing.is_empty());
        }
        // Ten minutes less the first one, each with two parts.
        assert_eq!((ends, parts), (9, 18));
    }

    #[test]
    fn one_past_that_lies_in_the_future_is_cut_and_no_other_one_waits_for_it() {
        let mut future = History::new();
        future.record(50, State::Running);
        future.record(1_000_000_000, State::Unavailable);
        let record =
            |history: &History| cbor::encode(&PastRecord { layout: LAYOUT, history: history.encode() });
        let mut hosts = Hosts::default();
        let known = KnownUntilRecord { layout: LAYOUT, until: 100 };
        hosts.load(UNTIL_KEY, &cbor::encode(&known));
        hosts.load(&compute(1).key(), &record(&future));
        hosts.load(&BENEFACTOR.key(), &record(&History::new()));
        hosts.begin(|_| true);
        assert_eq!((hosts.until(), hosts.computing), (100, 1));
        assert!(!hosts.look(at(200)));
        hosts.note(BENEFACTOR, State::Running);
        hosts.note(compute(1), State::Running);
        assert!(!hosts.look(at(300)));
        assert_eq!(spent(&hosts, State::Running), 100);
        let past = hosts.past(compute(1)).unwrap();
        assert_eq!((past.until(), past.state()), (300, State::Running));
    }
}
