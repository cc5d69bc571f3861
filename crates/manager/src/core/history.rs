//! The history of the manager's store, and whether the store was set back to an older copy of itself.
//!
//! Each start of the manager gets a random identity and is recorded with the commits that it made, so that a moment
//! (start and commit) is either in the history of a store or not, however far that store has gone on meanwhile.
//! Benefactors remember the last moment that they were told, and tell it when they register, ahead of all else. A moment
//! that the history lacks means that commits are missing, and with them files whose chunks look like garbage: from then
//! on the manager only serves readers, until somebody decides.
//!
//! | state | a benefactor remembers what is in the history | ... what is not | `AcceptOlderStore` | a start |
//! |---|---|---|---|---|
//! | whole | whole | set back | whole | whole, until a benefactor says otherwise |
//! | set back | set back | set back | whole: the missing commits are given up, durably | whole, until ... |
//!
//! In the state "set back" nothing of files is written, and nothing deleted, trimmed, copied or told to be remembered. Nobody's silence
//! means anything, and a session that is closed leaves its versions as they are: once the older store is accepted, clients have their lease
//! to come back as after a start. Who is shut out is written: it holds at once, and the authority's folder knows it as well.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use stdchk_model::message::benefactor::Command;
use stdchk_model::message::manager::{Era, ManagerReply, ManagerRequest, Moment};
use stdchk_model::{BenefactorId, ErrorCode, Failure, Signed, cbor};

use super::{Answer, Core};
use crate::journal::{self, KEEPERS};
use crate::record::{LAYOUT, StartRecord, decode, split_number, start_key};
use crate::store::{Batch, StoreError, Table};

/// Starts that are kept: a benefactor that was away for longer looks as if it remembered another history, and somebody
/// has to decide.
const STARTS_KEPT: usize = 1024;

/// The commits of one start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    first: u64,
    /// `None`: it is still making them.
    last: Option<u64>,
}

/// What the store has been through.
#[derive(Debug)]
pub struct History {
    starts: HashMap<u64, Span>,
    own: u64,
    /// The last moment of the start before.
    before: Moment,
    /// Last commit that is durable.
    commit: u64,
    /// Whether the own start has changed any file or folder, or given up commits: without, nothing would be lost with it.
    wrote: bool,
    /// Starts to be recorded or removed with the next commit.
    changed: BTreeSet<u64>,
    /// Who remembers what is not in the history.
    set_back: BTreeMap<BenefactorId, Moment>,
    /// Benefactors that know an era through which the state hasn't gone.
    others: BTreeMap<BenefactorId, Era>,
    /// When the first of them told, milliseconds of the manager's life.
    set_back_ms: u64,
}

impl History {
    /// Of the start `own`, before the store was read.
    pub fn new(own: u64) -> Self {
        let (starts, changed, set_back) = (HashMap::new(), BTreeSet::new(), BTreeMap::new());
        Self {
            starts,
            own,
            before: Moment { start: 0, commit: 0 },
            commit: 0,
            wrote: false,
            changed,
            set_back,
            others: BTreeMap::new(),
            set_back_ms: 0,
        }
    }

    /// Takes in a stored start.
    pub fn load(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), StoreError> {
        let (start, _) = split_number(key)?;
        let StartRecord { first, last, .. } = decode(bytes, "a start of the manager")?;
        self.starts.insert(start, Span { first, last });
        Ok(())
    }

    /// All was read: the starts before have ended with the commit `sequence`, and the own one begins.
    pub fn begin(&mut self, sequence: u64) {
        self.commit = sequence;
        self.before.commit = sequence;
        for (start, span) in &mut self.starts {
            if span.last.is_none() {
                self.before.start = *start;
                span.last = Some(sequence);
                self.changed.insert(*start);
            }
        }
        self.insert(self.own, Span { first: sequence + 1, last: None });
    }

    fn insert(&mut self, start: u64, span: Span) {
        self.starts.insert(start, span);
        self.changed.insert(start);
        while self.starts.len() > STARTS_KEPT {
            let oldest = self.starts.iter().filter(|(start, _)| **start != self.own);
            let Some(oldest) = oldest.min_by_key(|(_, span)| span.first).map(|(start, _)| *start) else {
                break;
            };
            self.starts.remove(&oldest);
            self.changed.insert(oldest);
        }
    }

    /// Adds what changed since the last call to `batch`.
    pub fn take_changes(&mut self, batch: &mut Batch) {
        for start in std::mem::take(&mut self.changed) {
            match self.starts.get(&start) {
                Some(Span { first, last }) => {
                    let record = StartRecord { layout: LAYOUT, first: *first, last: *last };
                    batch.put(Table::Start, &start_key(start), cbor::encode(&record));
                }
                None => batch.remove(Table::Start, &start_key(start)),
            }
        }
    }

    /// Takes note that the own start changes files or folders.
    pub fn writes(&mut self) {
        self.wrote = true;
    }

    /// Takes note of the last commit that is durable.
    pub fn committed(&mut self, sequence: u64) {
        assert!(sequence >= self.commit, "commits are counted upwards");
        self.commit = sequence;
    }

    /// The last commit that is durable.
    pub fn commit(&self) -> u64 {
        self.commit
    }

    /// Whether the store went through this moment, and whatever follows on it is the store's own.
    pub fn is_own(&self, moment: Moment) -> bool {
        self.starts.get(&moment.start).is_some_and(|span| match span.last {
            // What was given up there may be of another future.
            Some(u64::MAX) => false,
            Some(last) => moment.commit <= last,
            None => moment.commit <= self.commit,
        })
    }

    fn has(&self, moment: Moment) -> bool {
        let span = self.starts.get(&moment.start);
        span.is_some_and(|span| moment.commit <= span.last.unwrap_or(u64::MAX))
    }

    /// Since when that is so, milliseconds of the manager's life.
    pub fn set_back_ms(&self) -> u64 {
        self.set_back_ms
    }

    /// Whether a benefactor remembers what is not in the history.
    pub fn is_set_back(&self) -> bool {
        !self.set_back.is_empty() || !self.others.is_empty()
    }

    /// The last moment of the start before this one.
    pub fn before(&self) -> Moment {
        self.before
    }

    /// What benefactors are to remember: all that is durable by now. Nothing while set back.
    pub fn to_remember(&self) -> Option<Moment> {
        (!self.is_set_back()).then_some(Moment { start: self.own, commit: self.commit })
    }

    /// The benefactors that remember what is not in the history.
    pub fn witnesses(&self) -> Vec<BenefactorId> {
        let all: BTreeSet<BenefactorId> = self.set_back.keys().chain(self.others.keys()).copied().collect();
        all.into_iter().collect()
    }

    /// Refuses while the manager is set back.
    pub fn check(&self) -> Result<(), Failure> {
        if let Some(witness) = self.others.keys().next() {
            let message = format!(
                "another manager of this pool has its state, and this one an older or another copy: benefactor {witness} has heard of that one, so \
                 nothing is written or collected"
            );
            let next = "stop this manager; or, if the other one and its state are lost for good, go on with this copy with \
                        `stdchk accept-older-store`";
            return Err(Failure::new(ErrorCode::Denied, message).then(next));
        }
        let Some(witness) = self.set_back.keys().next() else { return Ok(()) };
        let message = format!(
            "the manager's store is an older copy: benefactor {witness} remembers commits that it lacks, so nothing is \
             written or collected"
        );
        let next = "put the newer store back while the pool is down, or give up what was stored since with \
                    `stdchk accept-older-store`";
        Err(Failure::new(ErrorCode::Denied, message).then(next))
    }

    /// What is not found in an older copy may be in the newer one: a client must not conclude that it is gone, and give up
    /// what it keeps of it.
    pub fn doubt(&self, failure: Failure) -> Failure {
        match self.check() {
            Err(refused) if failure.code == ErrorCode::NotFound => refused,
            _ => failure,
        }
    }

    /// Gives up the commits that benefactors remember and the store lacks. An older copy would lack that decision.
    fn accept(&mut self) {
        self.wrote = true;
        self.others.clear();
        for moment in std::mem::take(&mut self.set_back).into_values() {
            assert_ne!(moment.start, self.own, "the own start lacks no commit");
            let first = self.starts.get(&moment.start).map_or(self.commit, |span| span.first);
            self.insert(moment.start, Span { first, last: Some(u64::MAX) });
        }
    }
}

/// Whether a benefactor gets the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follows {
    /// It is no keeper.
    Never,
    /// It is one, and there is nothing for it yet.
    Later,
    /// It is one.
    Now,
}

impl Core {
    /// Looks whether what a benefactor remembers is in the history. What was to be deleted stays if it isn't. Nobody is a witness but by
    /// what the manager has signed for it, under the number that it had then.
    pub(super) fn compare_history(
        &mut self,
        id: BenefactorId,
        signed_for: BenefactorId,
        told: Signed<Moment>,
    ) {
        let Some(moment) = self.key.believe(told, signed_for) else {
            tracing::warn!(%id, "a benefactor remembers what no manager of this pool has told it: it is not believed");
            return;
        };
        if self.history.has(moment) {
            return;
        }
        self.begin_set_back();
        if self.history.set_back.insert(id, moment) != Some(moment) {
            tracing::error!(%id, commit = moment.commit, own = self.history.commit, "the store is an older copy");
        }
    }

    /// A benefactor knows an era of the pool's state through which this store hasn't gone.
    pub(super) fn set_back_by_era(&mut self, id: BenefactorId, era: Era) {
        self.begin_set_back();
        if self.history.others.insert(id, era) != Some(era) {
            tracing::error!(%id, era = era.number, "another manager has this pool's state, and this store is an older or another copy");
        }
    }

    fn begin_set_back(&mut self) {
        if !self.history.is_set_back() {
            self.history.set_back_ms = self.locations.now_ms;
        }
        self.deletions.clear();
        // Clients go on with what they had open as after a start, once somebody has decided.
        (self.settled, self.namespace.unsettled) = (false, true);
    }

    /// The order to remember the present moment. Not of a start that has written nothing: the copy of the store from before it
    /// is as good. Not before all benefactors had their say: one that is told earlier would remember a start that turns out
    /// to be that of an older copy.
    pub(super) fn moment_to_remember(&self, id: BenefactorId) -> Option<Command> {
        let moment = self.history.to_remember().filter(|_| self.may_be_remembered())?;
        Some(Command::Remember(self.key.sign(moment, id)))
    }

    fn may_be_remembered(&self) -> bool {
        self.history.wrote && !self.registry.is_pending() && !self.history.is_set_back()
    }

    /// Whether a benefactor that has the journal up to a moment gets more of it. One that has more than the store is a witness that the
    /// store was set back.
    ///
    /// # Errors
    /// `Stale`: it must register (again).
    pub fn may_follow(
        &mut self,
        id: BenefactorId,
        registration: u64,
        has: Option<Signed<Moment>>,
    ) -> Result<Follows, Failure> {
        self.registry.registered(id, registration)?;
        if let Some(has) = has {
            self.compare_history(id, id, has);
        }
        let is_keeper = self.keepers().any(|keeper| keeper == id);
        Ok(match is_keeper {
            false => Follows::Never,
            true if self.may_be_remembered() => Follows::Now,
            true => Follows::Later,
        })
    }

    /// Whether the state of a moment is one that the store went through.
    pub fn went_through(&self, moment: Moment) -> bool {
        self.history.is_own(moment)
    }

    /// Whether a benefactor is on-line now.
    pub fn is_online(&self, id: BenefactorId) -> bool {
        self.registry.is_online(id)
    }

    /// The benefactors that keep the journal: disks alone, since it has to be there after a blackout.
    pub fn keepers(&self) -> impl Iterator<Item = BenefactorId> {
        let may_keep = self.registry.iter().filter(|(_, one)| journal::may_be_kept(one.tier));
        may_keep.take(KEEPERS).map(|(keeper, _)| keeper)
    }

    /// The benefactors that keep the journal, and where they serve.
    pub fn keeper_addresses(&self) -> Vec<(BenefactorId, String)> {
        let address = |id| self.registry.get(id).map(|known| (id, known.address.clone()));
        self.keepers().filter_map(address).collect()
    }

    /// The last moment of the start before this one.
    pub fn before(&self) -> Moment {
        self.history.before()
    }

    /// Refuses what changes anything while the manager is set back: it would be lost with the older copy.
    pub(super) fn check_not_set_back(&self, request: &ManagerRequest) -> Result<(), Failure> {
        use ManagerRequest as Q;
        match request {
            Q::Change { .. }
            | Q::Create { .. }
            | Q::OpenSession { .. }
            | Q::TakeUp { .. }
            | Q::KeepBase { .. }
            | Q::LetBaseGo { .. }
            | Q::OpenContainer { .. }
            | Q::Reserve { .. }
            | Q::Known { .. }
            | Q::Receipts { .. }
            | Q::Commit { .. }
            | Q::Closing { .. }
            | Q::Aggregate { .. }
            | Q::ReleaseBackup { .. }
            | Q::Forget { .. } => self.history.check(),
            _ => Ok(()),
        }
    }

    pub(super) fn accept_older_store(&mut self) -> Answer {
        if self.history.is_set_back() {
            let commit = self.history.commit;
            tracing::warn!(commit, "the older store is accepted: what was committed since is given up");
            let others: BTreeSet<Era> = self.history.others.values().copied().collect();
            // Members that have heard of it take no manager with another copy for the pool's from now on.
            self.terms.begin_era(&Vec::from_iter(others));
            self.pool_changed = true;
            self.history.accept();
            self.members.forget_tokens(self.namespace.position);
            self.namespace.leave_out_given_up_inos();
            let now_ms = self.locations.now_ms;
            self.sessions.hear_all(now_ms);
            self.unsettled_until_ms = now_ms.saturating_add(self.setting.timing.client_lease_ms);
            self.rise_above_told_terms();
            self.registry.expect_registrations();
        }
        Ok(ManagerReply::Done)
    }
}
