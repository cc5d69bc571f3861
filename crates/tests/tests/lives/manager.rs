//! The shell of the manager in a life: its store, requests and answers, collections.

use std::collections::BTreeSet;

use stdchk_manager::core::{Core, Cursor, Now, Setting, Timing};
use stdchk_manager::store::{MemoryStore, Store as _};
use stdchk_model::message::manager::{Change, ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, BlockId, ErrorCode, Failure, MomentKey, OpId, PoolId, Redundancy};

use super::checks::true_distance;
use super::content::{Number, name};
use super::model::Files;
use super::plant::Plant;
use super::world::World;

/// A copy of the manager's store.
pub struct Backup {
    pub store: MemoryStore,
    start: u64,
    pub sequence: u64,
    /// The files as their writers knew them then.
    pub files: Files,
    /// What the folder asked for then.
    pub redundancy: Redundancy,
    /// It is registered, or was.
    registered: Option<Registered>,
}

/// A registered backup, as its operator knows it.
#[derive(Clone)]
pub struct Registered {
    /// The commit that it shows.
    commit: u64,
    /// The chunks that its versions name, all of which could be read when it was made.
    pub listed: BTreeSet<Number>,
    /// How far from loss they are wanted at least.
    pub least_distance: u8,
}

/// For how long backups are registered, milliseconds: longer than lives take.
const KEEP_MS: u64 = 1 << 50;

/// What the manager signs with.
pub const KEY: MomentKey = MomentKey([7; 32]);

pub fn load(disk: &MemoryStore, start: u64, now: Now) -> Core {
    let timing = Timing {
        client_lease_ms: 1_500,
        benefactor_lease_ms: 2_000,
        benefactor_lost_ms: 4_000,
        garbage_age_ms: 3_000,
        collect_every_ms: 0,
    };
    let setting =
        Setting { new_pool: PoolId([7; 16]), new_key: KEY, owner: (0, 0), pid: 1, start, timing, steps: 2 };
    Core::load(disk, setting, now).unwrap()
}

impl World {
    pub fn commit_store(&mut self) {
        let batch = self.core.take_changes();
        if self.plant == Plant::StoreLosesItsTail && !batch.is_empty() {
            self.earlier = Some(self.disk.copy());
        }
        self.disk.commit(&batch).unwrap();
        self.core.committed(self.disk.sequence());
    }

    pub fn ask(&mut self, request: ManagerRequest) -> Result<ManagerReply, Failure> {
        let answer = self.core.handle(request, self.now);
        self.commit_store();
        answer
    }

    /// A change of the namespace, asked for until there is an answer.
    pub fn change(&mut self, change: &Change) -> ManagerReply {
        self.operations += 1;
        loop {
            let id = OpId(self.operations.to_be_bytes());
            let request = ManagerRequest::Change { id, change: change.clone() };
            if self.one_in(20) {
                let _nobody_hears_it = self.core.handle(request, self.now);
                self.crash_in_commit();
            } else {
                let answer = self.ask(request);
                if !self.one_in(20) {
                    return answer.unwrap_or_else(|failure| panic!("{change:?} is refused: {failure:?}"));
                }
                self.note("the answer to a change is lost".to_owned());
                if self.one_in(3) {
                    self.restart_manager();
                }
            }
            if self.plant == Plant::RepeatedUnderAnotherName {
                self.operations += 1;
            }
        }
    }

    /// The manager is killed while it commits: nothing of it is durable, and nobody is told anything.
    pub fn crash_in_commit(&mut self) {
        if self.plant == Plant::HalfABatch {
            let batch = self.core.take_changes();
            let half = batch.changes().len() / 2;
            let mut first = stdchk_manager::store::Batch::default();
            for (key, record) in batch.changes().iter().take(half) {
                let (table, rest) = key.split_first().unwrap();
                let table = stdchk_manager::store::Table::of(*table).unwrap();
                match record {
                    Some(record) => first.put(table, rest, record.clone()),
                    None => first.remove(table, rest),
                }
            }
            self.disk.commit(&first).unwrap();
        }
        self.restart_manager();
    }

    /// The manager is killed and started again: what is not in its store is lost, and all connections are.
    pub fn restart_manager(&mut self) {
        self.note("the manager is killed and started again".to_owned());
        if let Some(earlier) = self.earlier.take() {
            self.disk = earlier;
        }
        self.stale = None;
        let _ended = self.begin_manager();
    }

    /// A manager begins; the one before.
    pub fn begin_manager(&mut self) -> Core {
        self.starts += 1;
        self.now.ms = 0;
        let before = std::mem::replace(&mut self.core, load(&self.disk, self.starts, self.now));
        self.commit_store();
        self.tell_of_keepers();
        // Of what no version names any more it learns from benefactors, and those may be away.
        self.nearer_may_do(1);
        self.seen = None;
        self.strays.clear();
        for node in &mut self.nodes {
            node.disconnect();
            node.was_connected = false;
        }
        for client in &mut self.clients {
            client.held.clear();
        }
        before
    }

    // --- copies of the store

    pub fn back_up(&mut self) {
        let registers = self.registered.is_none() && self.below(2) == 0;
        if registers {
            let unreadable = self.unreadable();
            let listed = self.named().difference(&unreadable).copied().collect();
            if let Ok(commit) = self.core.register_backup(KEEP_MS) {
                self.commit_store();
                assert_eq!(commit, self.disk.sequence(), "the copy is of another commit");
                let least_distance = self.least_distance;
                self.registered = Some(Registered { commit, listed, least_distance });
            }
        }
        self.note(format!("the manager's store is copied, and the copy registered: {registers}"));
        // Whether it is this copy that is registered or an earlier one: the copy knows of it.
        let registered = self.registered.clone();
        self.backup = Some(Backup { registered, ..self.copy_of_store() });
        // So keepers know as well what is registered.
        self.keepers_follow();
    }

    /// A copy of the manager's store as it is now.
    pub fn copy_of_store(&self) -> Backup {
        let (files, redundancy) = (self.files.clone(), self.redundancy);
        let (store, start, sequence) = (self.disk.backup().unwrap(), self.starts, self.disk.sequence());
        Backup { store, start, sequence, files, redundancy, registered: None }
    }

    /// A backup is made, or one that is registered given up.
    pub fn back_up_or_release(&mut self) {
        if self.registered.is_none() {
            return self.back_up();
        }
        self.release_backup();
    }

    /// The registered backup is given up.
    pub fn release_backup(&mut self) {
        let Some(Registered { commit, .. }) = self.registered.take() else { return };
        self.note(format!("the backup of commit {commit} is given up"));
        assert_eq!(self.ask(ManagerRequest::ReleaseBackup { commit }), Ok(ManagerReply::Done));
        self.keepers_follow();
    }

    /// So many benefactors may be lost: what the registered backup alone names is kept as far from loss as its versions were, which may be
    /// nearer. What is further away may be trimmed at the same moment.
    pub fn expect_losses(&mut self, losses: usize) {
        let (named, holders, nodes) = (self.named(), self.holders(), self.nodes.len());
        let Some(registered) = &mut self.registered else { return };
        registered.listed.retain(|number| {
            let survives = |at| true_distance(at, nodes) as usize > losses;
            let is_wanted = usize::from(registered.least_distance) > losses;
            named.contains(number) || is_wanted && holders.get(number).is_some_and(survives)
        });
    }

    /// Until all has come to rest, chunks may be wanted as near to loss as this: so a folder asks, or nobody knows more of them.
    pub fn nearer_may_do(&mut self, distance: u8) {
        self.least_distance = self.least_distance.min(distance);
        if let Some(registered) = &mut self.registered {
            registered.least_distance = registered.least_distance.min(self.least_distance);
        }
    }

    /// Whether some benefactor remembers what the copy of the store lacks.
    fn is_backup_found_out(&self) -> bool {
        let Some(backup) = &self.backup else { return false };
        let lacks = |moment: stdchk_model::Signed<stdchk_model::message::manager::Moment>| {
            moment.start > backup.start || (moment.start == backup.start && moment.commit > backup.sequence)
        };
        self.nodes.iter().any(|node| node.remembered().is_some_and(lacks))
    }

    /// The copy of the store takes the place of the store for a while; then somebody notices, and puts the newer one back, or
    /// gives up what was stored since.
    pub fn set_manager_back(&mut self) {
        let tampered = matches!(self.plant, Plant::SetBackUnnoticed | Plant::MomentsAreForgotten);
        if self.backup.is_none() || !(self.is_backup_found_out() || tampered) {
            return;
        }
        self.note("an older copy takes the place of the manager's store".to_owned());
        // A moment that comes to light now is of the newer store.
        let hides_moment = std::mem::take(&mut self.hides_moment);
        let Some(backup) = self.backup.take() else { return };
        let named = self.named();
        self.stale = None;
        let newer = std::mem::replace(&mut self.disk, backup.store);
        let files = self.files.clone();
        self.files.set_back_to(backup.files);
        let registered = std::mem::replace(&mut self.registered, backup.registered);
        // What became weak or was given up since, the backup doesn't know.
        let is_kept = match (&mut self.registered, &registered) {
            (Some(then), Some(now)) if then.commit == now.commit => {
                then.listed.clone_from(&now.listed);
                then.least_distance = now.least_distance;
                true
            }
            (Some(then), _) => {
                then.listed.clear();
                false
            }
            (None, _) => false,
        };
        let _ended = self.begin_manager();
        for node in 0..self.nodes.len() {
            if self.nodes[node].is_up() {
                self.connect(node);
            }
        }
        for _ in 0..8 {
            self.long_time();
            self.collect_all();
        }
        if self.plant == Plant::CollectsWhileSetBack {
            let older = self.named();
            self.delete_all_but(&older.difference(&named).copied().collect());
        }
        let refused = self.core.collect(Cursor::Garbage(None), true, self.now);
        let refused = refused.is_err_and(|failure| failure.code == ErrorCode::Denied);
        if refused && self.below(2) == 0 {
            return self.accept_older_store(backup.redundancy, is_kept, &named);
        }
        self.note("the newer store is put back".to_owned());
        (self.disk, self.files, self.registered) = (newer, files, registered);
        self.hides_moment = hides_moment;
        let _ended = self.begin_manager();
        self.check();
        assert!(refused, "nobody notices that the manager's store is an older copy");
    }

    /// What was stored since the store was copied is given up. What versions named until now (`named`) is there. Other chunks may be gone that
    /// versions need which were removed since, unless the copy was registered all the time.
    fn accept_older_store(&mut self, redundancy: Redundancy, is_kept: bool, named: &BTreeSet<Number>) {
        self.note(format!("what was stored since is given up; the backup was kept: {is_kept}"));
        assert_eq!(self.ask(ManagerRequest::AcceptOlderStore), Ok(ManagerReply::Done));
        self.keepers_follow();
        // A benefactor that left remembers what was given up, and tells it once its owner has it serve again.
        self.hides_moment |= self.nodes.iter().any(|node| node.has_left);
        let asks_for_more = redundancy.hosts() > self.redundancy.hosts();
        self.redundancy = redundancy;
        if asks_for_more {
            // An owner may have taken a disk away that the others could do without until now.
            self.settle_owners();
        }
        self.nearer_may_do(self.distance());
        let unreadable = self.unreadable();
        if let Some(registered) = self.registered.as_ref().filter(|_| is_kept) {
            let gone = unreadable.intersection(&registered.listed).next();
            assert_eq!(gone, None, "a chunk that the registered backup lists is gone");
        }
        let missing: Vec<&Number> = unreadable.intersection(named).collect();
        let is_spared = missing.iter().all(|number| self.lost.contains(number));
        assert!(
            is_spared,
            "an older store is accepted, and {missing:?} are gone, which were there for the newer one"
        );
        self.lost = unreadable;
        self.check();
        self.forget_those_that_left();
        if self.below(2) == 0 {
            // Who remembers what was given up tells it once more.
            self.restart_manager();
        }
    }

    /// The older store knows benefactors that have left since, and chunks that survive a loss wait for them until an operator
    /// has them forgotten.
    fn forget_those_that_left(&mut self) {
        let left = self.nodes.iter().filter(|node| node.has_left).filter_map(|node| node.id);
        // An older store may have given the number of one that left to another one.
        let is_there = |id: &BenefactorId| self.nodes.iter().any(|node| node.id == Some(*id));
        let gone = self.gone.iter().copied().filter(|id| !is_there(id));
        let left: BTreeSet<_> = left.chain(gone).collect();
        for id in left {
            let forgotten = self.ask(ManagerRequest::Forget { id, force: false });
            self.note(format!("{id} has left since, and is to be forgotten: {}", forgotten.is_ok()));
        }
    }

    // --- collection

    /// The manager does a part of what is due beside requests, or somebody has it collect, or count.
    pub fn collect(&mut self) {
        match self.plant {
            Plant::SweepIgnoresSessions => {
                let named = self.named();
                self.delete_all_but(&named);
            }
            Plant::SweepIgnoresContainers => self.let_containers_go(),
            Plant::MadeUpFragmentsCount => self.trim_what_fragments_make(),
            Plant::OlderVersionsGo => self.drop_the_oldest(),
            Plant::SetsGoTooSoon => self.let_a_set_go(),
            Plant::SweepIgnoresBackups => {
                let (named, listed) = (self.named(), self.registered.as_ref().map(|one| one.listed.clone()));
                let goes = |number: &Number| listed.as_ref().is_some_and(|listed| listed.contains(number));
                let stays =
                    self.holders().into_keys().filter(|number| named.contains(number) || !goes(number));
                self.delete_all_but(&stays.collect());
            }
            Plant::EncodingsAddUp | Plant::FragmentsCountAsCopies => self.trim_too_much(),
            Plant::SweepOfWhatIsYounger => match self.seen.take() {
                Some(named) => self.delete_all_but(&named),
                None => self.seen = Some(self.named()),
            },
            _ => {}
        }
        // Without a draw: lives go on as they would without it.
        if self.now.ms.is_multiple_of(5) {
            self.note("a writer finds no room".to_owned());
            let _writers_wait = self.core.make_room(self.now);
        }
        match self.below(8) {
            0 => {
                let dry_run = self.one_in(2);
                let collected = self.core.collect(Cursor::Garbage(None), dry_run, self.now);
                let collected = collected.map(|(collected, _)| collected).map_err(|failure| failure.code);
                self.note(format!("a part of a collection: {collected:?}"));
            }
            _ => {
                let more = (0..self.below(6)).any(|_| !self.manager_works());
                self.note(format!(
                    "the manager does a part of its work{}",
                    if more { "" } else { ", not all" }
                ));
            }
        }
        self.commit_store();
    }

    /// The manager does a part of what is due beside requests; is there more?
    fn manager_works(&mut self) -> bool {
        let more = self.core.work(self.now);
        self.note_expired();
        more
    }

    /// The manager does all that is due beside requests.
    pub fn collect_all(&mut self) {
        while self.manager_works() {}
        self.commit_store();
    }

    /// A collection that knows better than the manager.
    pub fn delete_all_but(&mut self, named: &BTreeSet<Number>) {
        for node in self.nodes.iter_mut().filter(|node| node.is_up()) {
            let gone: Vec<_> =
                node.blocks().into_iter().filter(|block| !named.contains(&name(block))).collect();
            let sequence = node.put_sequence();
            node.remove(&gone, sequence);
        }
    }

    /// The manager believes that blocks are where a client says, though no benefactor has said so.
    pub fn believe(&mut self, claims: &[(BlockId, usize)]) {
        for (block, node) in claims {
            if self.nodes[*node].is_up() && self.nodes[*node].connected {
                let report = self.nodes[*node].false_report(&[*block]);
                let _commands_are_lost = self.ask(report);
            }
        }
    }
}
