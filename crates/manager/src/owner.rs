//! The one place where the core and its store change.
//!
//! A request is applied by the task that received it. Changes that gather until the next commit are made durable in one
//! store transaction (group commit), and only then their answers leave: nobody sees what a crash could take back (I2, I7).
//! Requests that change nothing cost no transaction. A store that failed is not used again: the manager stops.
//!
//! A manager runs in one thread: handing a request to another one costs more than most requests take. While a commit waits
//! for the disk, requests gather in their sockets.
//!
//! Two kinds of changes wait for the transaction of another one, or for a moment at most: that a file was made of which
//! nothing is promised yet, and that a session ended whose last version is there ([`Leaves`]). So a small file that is
//! made, written and closed costs one transaction.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use stdchk_model::journal::Reach;
use stdchk_model::message::manager::{Change, Era, ManagerReply, ManagerRequest, Moment, TimeNs};
use stdchk_model::{BenefactorId, ErrorCode, Failure, Signed};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use crate::backup::Backups;
use crate::core::{Asker, Collected, Core, Cursor, Follows, Leaves, NewMember, Now};
use crate::journal::Journal;
use crate::ranking::{Ranking, ToRank, Wanted};
use crate::store::{Batch, Store, StoreError};

/// How long a change that is in no hurry waits for one that is: longer than a small file takes from its making to its commit on
/// a busy machine, and so short that nobody notices.
const LINGER: Duration = Duration::from_millis(20);

/// Most that the manager's time goes on by at once. It looks at the clock with every request, and five times a second without
/// any. If it comes to that later, it did not run, was suspended or waited for its disk: what others said meanwhile lies in
/// their sockets, and their silence is its own.
const STEP_MAX: Duration = Duration::from_secs(1);

/// Time that is spent at once on what follows from events: requests wait for it.
const WORK_MAX: Duration = Duration::from_millis(3);

type Answer<T> = oneshot::Sender<Result<T, Failure>>;

/// What the owner is asked.
pub enum Job {
    /// A request of a client or benefactor.
    Request(Box<ManagerRequest>, Asker, Answer<ManagerReply>),
    /// A host shows a token.
    Admit(Box<NewMember>, Answer<ManagerReply>),
    /// A connection of a benefactor has ended.
    ConnectionEnded(u64),
    /// Which benefactors keep the journal, and where do they serve?
    Keepers(Answer<Vec<(BenefactorId, String)>>),
    /// Time has passed.
    Tick,
    /// Do a part of what follows from events; is there more to do at once?
    Work(Answer<bool>),
    /// What is to be ranked?
    ToRank(Answer<ToRank>),
    /// Take rankings that were made.
    Ranked(Vec<(Wanted, Ranking)>),
    /// Who ranked has failed.
    RankerFailed,
    /// Begin an effort to make room. How many efforts are over once it is?
    MakeRoom(Answer<u64>),
    /// Do a part of a collection, or only count.
    Collect(Cursor, bool, Answer<(Collected, Option<Cursor>)>),
    /// Come upon a bug in the middle of a change.
    #[cfg(test)]
    Panic,
}

/// How the rest of the shell reaches the core.
#[derive(Clone)]
pub struct Owner {
    keeper: Arc<Mutex<Keeper>>,
    /// Told when a commit is due, or due earlier.
    due: Arc<Notify>,
    copies: watch::Receiver<u64>,
    commits: watch::Receiver<u64>,
    efforts: watch::Receiver<(u64, u64)>,
    /// Told when something is to be done beside requests.
    work: Arc<Notify>,
    /// Told when something is to be ranked.
    rank: Arc<Notify>,
}

/// Why commits have ended.
#[derive(Debug)]
pub enum Ended {
    /// The store failed.
    Store(StoreError),
    /// The core panicked within a change: a bug.
    Panicked,
    /// Another manager may lead.
    Deposed,
}

impl Owner {
    /// An owner whose changes are made durable by [`Owner::commit_all`].
    pub fn new(core: Core, store: Box<dyn Store>, journal: Journal) -> Self {
        let (made, copies) = watch::channel(core.copies_made());
        let (stored, commits) = watch::channel(store.sequence());
        let (makes_room, efforts) = watch::channel(core.efforts());
        let (clock, store, panicked, deposed) = (Clock::new(), Some(store), false, false);
        let (held, due, urgent, ordered) = (Vec::new(), None, false, HashMap::new());
        let (grows, backups) = (0, Backups::default());
        let mut keeper = Keeper {
            core,
            store,
            backups,
            beginning: Vec::new(),
            journal,
            made,
            ordered,
            stored,
            makes_room,
            clock,
            held,
            due,
            urgent,
            grows,
            had_room: true,
            panicked,
            deposed,
            unanswered: Vec::new(),
        };
        keeper.hear_keepers();
        Self {
            keeper: Arc::new(Mutex::new(keeper)),
            due: Arc::default(),
            copies,
            commits,
            efforts,
            work: Arc::default(),
            rank: Arc::default(),
        }
    }

    /// The owner's answer to a job.
    pub async fn ask<T>(&self, job: impl FnOnce(Answer<T>) -> Job) -> Result<T, Failure> {
        let (sender, answer) = oneshot::channel();
        self.tell(job(sender));
        answer.await.map_err(|_| stopping())?
    }

    /// That of the state.
    pub fn era(&self) -> Era {
        self.keeper.lock().core.era()
    }

    /// Tells whenever copies were made that somebody may wait for.
    pub fn copies(&self) -> watch::Receiver<u64> {
        self.copies.clone()
    }

    /// Tells whenever there may be something new for this benefactor to copy.
    pub fn orders(&self, id: BenefactorId) -> watch::Receiver<u64> {
        self.keeper.lock().ordered.entry(id).or_default().subscribe()
    }

    /// Tells whenever something became durable.
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.commits.clone()
    }

    /// Tells how many efforts to make room are over, whenever there may be some.
    pub fn efforts(&self) -> watch::Receiver<(u64, u64)> {
        self.efforts.clone()
    }

    /// Waits until something is to be done beside requests.
    pub async fn has_work(&self) {
        self.work.notified().await;
    }

    /// Waits until something is to be ranked.
    pub async fn has_to_rank(&self) {
        self.rank.notified().await;
    }

    /// Does a job, whether it has an answer or not. A manager that stops does none.
    pub fn tell(&self, job: Job) {
        let mut keeper = self.keeper.lock();
        if keeper.panicked {
            return;
        }
        if keeper.deposed || keeper.store.as_ref().is_some_and(|store| !store.is_held()) {
            keeper.depose(job);
            return self.due.notify_one();
        }
        if keeper.store.is_none() {
            return;
        }
        let before = (keeper.due, keeper.urgent);
        // What panicked may have changed half of something: it is neither stored nor shown to anybody.
        let makes_room = matches!(job, Job::MakeRoom(_));
        keeper.panicked = catch_unwind(AssertUnwindSafe(|| keeper.apply(job))).is_err();
        keeper.tell_watchers();
        if keeper.core.is_walking() || makes_room {
            self.work.notify_one();
        }
        if keeper.core.has_to_rank() {
            self.rank.notify_one();
        }
        if keeper.panicked || (keeper.due, keeper.urgent) != before {
            self.due.notify_one();
        }
    }

    /// Makes changes durable whenever it is time, until that fails.
    pub async fn commit_all(&self) -> Ended {
        loop {
            let told = self.due.notified();
            let (due, urgent, panicked, deposed) = {
                let keeper = self.keeper.lock();
                (keeper.due, keeper.urgent, keeper.panicked, keeper.deposed)
            };
            match due {
                _ if panicked => return Ended::Panicked,
                _ if deposed => return Ended::Deposed,
                // Requests that have arrived take part.
                _ if urgent => tokio::task::yield_now().await,
                Some(due) if Instant::now() >= due => {}
                Some(due) => {
                    // Whether it is time or something more urgent has come is looked at again.
                    let _ = tokio::time::timeout_at(due, told).await;
                    continue;
                }
                None => {
                    told.await;
                    continue;
                }
            }
            let mut keeper = self.keeper.lock();
            // It may have come to that in the meantime.
            if keeper.panicked {
                return Ended::Panicked;
            }
            match keeper.commit() {
                Ok(()) => {}
                Err(StoreError::Deposed) => return Ended::Deposed,
                Err(error) => return Ended::Store(error),
            }
        }
    }

    /// Makes the last changes durable and closes the store.
    pub fn close(&self) -> Result<(), StoreError> {
        let mut keeper = self.keeper.lock();
        let closed = if keeper.panicked || keeper.deposed { Ok(()) } else { keeper.commit() };
        keeper.store = None;
        // What is being read keeps the store's file.
        keeper.backups = Backups::default();
        keeper.journal.close();
        keeper.held.clear();
        keeper.beginning.clear();
        keeper.unanswered.clear();
        closed
    }
}

fn stopping() -> Failure {
    Failure::new(ErrorCode::Unavailable, "the manager is stopping: try again")
}

/// An answer that waits for its changes to be durable.
type Held = Box<dyn FnOnce(Option<&Failure>) + Send>;

fn hold<T: Send + 'static>(answer: Answer<T>, result: Result<T, Failure>) -> Held {
    Box::new(move |refusal| {
        let result = refusal.map_or(result, |failure| Err(failure.clone()));
        // The asker may have gone; then nobody needs the answer.
        let _ = answer.send(result);
    })
}

struct Keeper {
    core: Core,
    /// None once it failed or was closed.
    store: Option<Box<dyn Store>>,
    backups: Backups,
    /// Backups that begin with the next commit, with the number that it will have if they are registered.
    beginning: Vec<(Answer<ManagerReply>, Option<u64>)>,
    journal: Journal,
    made: watch::Sender<u64>,
    /// Of benefactors that wait for orders.
    ordered: HashMap<BenefactorId, watch::Sender<u64>>,
    stored: watch::Sender<u64>,
    makes_room: watch::Sender<(u64, u64)>,
    clock: Clock,
    /// Answers that wait for the next commit.
    held: Vec<Held>,
    /// When there must be one, if there are changes that wait.
    due: Option<Instant>,
    /// There must be one before any other answer leaves.
    urgent: bool,
    /// Bytes by which what waits for the next commit makes the store grow.
    grows: u64,
    /// The store had room when it was looked at last.
    had_room: bool,
    /// The core did within a change.
    panicked: bool,
    /// Another manager may lead: nothing is answered any more, and askers turn to that one when their connections end.
    deposed: bool,
    /// What was asked since.
    unanswered: Vec<Job>,
}

impl Keeper {
    /// Makes all changes durable and lets the answers out that waited for it.
    fn commit(&mut self) -> Result<(), StoreError> {
        let batch = self.core.take_changes();
        let committed = self.store_batch(&batch);
        if let Err(error) = &committed {
            self.store = None;
            tracing::error!(%error, "the store takes no commits: this manager ends");
        }
        if matches!(committed, Err(StoreError::Deposed)) {
            // Whether that is durable, the manager that leads now tells who asks again.
            self.deposed = true;
            return committed;
        }
        let refusal = committed.as_ref().err().map(refusal);
        self.held.drain(..).for_each(|answer| answer(refusal.as_ref()));
        self.begin_backups(refusal.as_ref());
        (self.due, self.urgent, self.grows) = (None, false, 0);
        committed
    }

    /// Takes copies for those who asked for one, or tells them why not.
    fn begin_backups(&mut self, refusal: Option<&Failure>) {
        for (answer, registered) in std::mem::take(&mut self.beginning) {
            let store = self.store.as_deref().ok_or_else(|| refusal.cloned().unwrap_or_else(stopping));
            let now_ms = self.clock.at();
            let begun =
                store.and_then(|store| self.backups.begin(store, self.core.start(), registered, now_ms));
            let left = match &begun {
                Ok((_, left)) => *left,
                Err(_) => registered,
            };
            self.give_up_backup(left);
            // The asker may have gone; then nobody reads the copy, and it is let go.
            let _ = answer.send(begun.map(|(reply, _)| reply));
        }
    }

    /// A copy was not read to its end: what it would name is not kept for it.
    fn give_up_backup(&mut self, commit: Option<u64>) {
        if let Some(commit) = commit
            && self.core.give_up_backup(commit)
        {
            tracing::warn!(commit, "a backup was not read to its end, and is given up");
            self.urgent = true;
        }
    }

    /// Tells the core to which commit a recovery from the keepers would return at least.
    fn hear_keepers(&mut self) {
        let keepers: Vec<(BenefactorId, bool)> =
            self.core.keepers().map(|id| (id, self.core.is_online(id))).collect();
        self.core.keepers_have(self.journal.kept_by(&keepers));
    }

    /// Takes note that this manager leads no more.
    fn depose(&mut self, job: Job) {
        self.deposed = true;
        self.unanswered.push(job);
    }

    /// Wakes those who wait for copies that were made, and benefactors for orders that are new.
    fn tell_watchers(&mut self) {
        let made = self.core.copies_made();
        self.made.send_if_modified(|before| std::mem::replace(before, made) != made);
        let efforts = self.core.efforts();
        self.makes_room.send_if_modified(|before| std::mem::replace(before, efforts) != efforts);
        for id in self.core.take_called() {
            if let Some(waits) = self.ordered.get(&id) {
                waits.send_modify(|calls| *calls += 1);
            }
        }
    }

    fn store_batch(&mut self, batch: &Batch) -> Result<(), StoreError> {
        if let Some(store) = self.store.as_mut().filter(|_| !batch.is_empty()) {
            store.commit(batch)?;
            let commit = store.sequence();
            self.core.committed(commit);
            self.journal.committed(Moment { start: self.core.start(), commit }, batch);
            self.stored.send_replace(commit);
        }
        self.hear_keepers();
        Ok(())
    }

    fn apply(&mut self, job: Job) {
        let now = self.now();
        match job {
            Job::Request(request, _, answer) if let ManagerRequest::BeginBackup { keep_ms } = *request => {
                self.begin_backup(answer, keep_ms);
            }
            Job::Request(request, asker, answer) => {
                let leaves = self.core.leaves(&request);
                let mut result = match self.copy(&request, now) {
                    Some(copied) => copied,
                    None => {
                        self.check_room(&request).and_then(|()| self.core.handle_for(asker, *request, now))
                    }
                };
                if let Ok(ManagerReply::Status(status)) = &mut result {
                    status.store_is_full = !self.has_room(0);
                    status.managers = self.store.as_ref().map(|store| store.managers()).unwrap_or_default();
                    status.etcd = self.store.as_ref().and_then(|store| store.etcd());
                    status.keepers = self.core.keepers().map(|id| self.journal.keeper(id)).collect();
                }
                self.answer(answer, result, leaves);
            }
            Job::Admit(new, answer) => {
                let admitted = self.core.admit(*new, now);
                self.answer(answer, admitted, Leaves::Durable);
            }
            Job::ConnectionEnded(connection) => self.core.connection_ended(connection),
            Job::Keepers(answer) => {
                // The asker may have gone; then nobody needs the answer.
                let _ = answer.send(Ok(self.core.keeper_addresses()));
            }
            Job::Tick => {
                let has_room = self.has_room(0);
                match (std::mem::replace(&mut self.had_room, has_room), has_room) {
                    (true, false) => {
                        tracing::error!("the disk of the manager's store is full: nothing new is taken")
                    }
                    (false, true) => tracing::info!("the manager's store has room again"),
                    _ => {}
                }
                self.core.store_has_room(has_room);
                self.core.tick(now);
                let left = self.backups.tick(now.ms);
                self.give_up_backup(left);
                self.journal.tick(now.ms);
                self.hear_keepers();
                self.urgent = true;
            }
            Job::Work(answer) => {
                // With a pause after each step the pauses would take most of the time.
                let began = Instant::now();
                let mut more = self.core.work(now);
                while more && began.elapsed() < WORK_MAX {
                    more = self.core.work(now);
                }
                self.answer(answer, Ok(more), Leaves::AtOnce);
            }
            Job::ToRank(answer) => {
                let told = self.core.take_to_rank(now);
                // Nobody is told of it, and it isn't stored.
                let _ = answer.send(Ok(told));
            }
            Job::Ranked(made) => self.core.ranked(made),
            Job::RankerFailed => self.core.ranker_failed(),
            Job::MakeRoom(answer) => {
                let over = self.core.make_room(now);
                // The asker may have gone; then nobody needs the answer.
                let _ = answer.send(Ok(over));
            }
            Job::Collect(from, dry_run, answer) => {
                let collected = self.core.collect(from, dry_run, now);
                self.answer(answer, collected, Leaves::Durable);
            }
            #[cfg(test)]
            Job::Panic => {
                let made = self.core.handle(tests::create(9, false), now);
                panic!("a bug behind {made:?}");
            }
        }
    }

    /// Has a backup begin with the next commit, which also registers it unless it is kept for no time.
    fn begin_backup(&mut self, answer: Answer<ManagerReply>, keep_ms: u64) {
        let registered = match keep_ms {
            0 => Ok(None),
            _ => self.core.register_backup(keep_ms).map(Some),
        };
        match registered {
            Ok(registered) => {
                self.beginning.push((answer, registered));
                self.urgent = true;
                self.due.get_or_insert_with(Instant::now);
            }
            // The asker may have gone; then nobody needs the answer.
            Err(failure) => drop(answer.send(Err(failure))),
        }
    }

    /// Answers what concerns copies of the store; `None`: something else was asked.
    fn copy(&mut self, request: &ManagerRequest, now: Now) -> Option<Result<ManagerReply, Failure>> {
        match request {
            ManagerRequest::Journal { id, registration, has, part, durable, .. } => {
                Some(self.follow((*id, *registration), (*has, *durable), *part, now))
            }
            ManagerRequest::ReadBackup { id, part } => Some(self.backups.read(*id, *part, now.ms)),
            _ => None,
        }
    }

    fn follow(
        &mut self,
        (id, registration): (BenefactorId, u64),
        (has, durable): (Option<Reach>, Option<Signed<Moment>>),
        part: u32,
        now: Now,
    ) -> Result<ManagerReply, Failure> {
        let may_follow = self.core.may_follow(id, registration, has.map(|has| has.moment))?;
        let has = has.filter(|has| self.core.key().believe(has.moment, id).is_some());
        // A future that was given up is no state of this store, and neither is one that nobody has made.
        let durable = durable.and_then(|moment| self.core.key().believe(moment, id));
        let durable = durable.filter(|moment| self.core.went_through(*moment));
        self.journal.is_durable(id, durable.map(|moment| moment.commit));
        self.hear_keepers();
        let store = self.store.as_deref().ok_or_else(stopping)?;
        Ok(match may_follow {
            Follows::Never => ManagerReply::Done,
            Follows::Later => {
                self.journal.note(id, has);
                ManagerReply::Journal(Vec::new())
            }
            Follows::Now => {
                self.journal.note(id, has);
                ManagerReply::Journal(self.journal.answer(id, has, part, store, now.ms)?)
            }
        })
    }

    /// Refuses what adds to a store whose disk is full.
    fn check_room(&mut self, request: &ManagerRequest) -> Result<(), Failure> {
        let grows = grows_by(request);
        if grows == 0 {
            return Ok(());
        }
        let all = self.grows.saturating_add(grows);
        if !self.has_room(all) {
            let etcd = self.store.as_ref().and_then(|store| store.etcd()).and_then(|etcd| etcd.trouble);
            return Err(match etcd {
                Some(trouble) => Failure::new(ErrorCode::NoSpace, trouble.cause),
                None => {
                    Failure::new(ErrorCode::NoSpace, "the disk on which the manager keeps its store is full")
                        .then("make room on that disk, or remove files from the pool")
                }
            });
        }
        self.grows = all;
        Ok(())
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.store.as_ref().is_none_or(|store| store.has_room(bytes))
    }

    /// What was answered at once shows nothing of changes that came before it in the same batch and must be durable first.
    fn answer<T: Send + 'static>(&mut self, answer: Answer<T>, result: Result<T, Failure>, leaves: Leaves) {
        self.urgent |= leaves == Leaves::Durable || self.core.must_settle();
        if leaves == Leaves::AtOnce && !self.urgent {
            // The asker may have gone; then nobody needs the answer.
            let _ = answer.send(result);
        } else {
            self.held.push(hold(answer, result));
        }
        if self.due.is_none() && (!self.held.is_empty() || self.core.has_waiting_changes()) {
            self.due = Some(Instant::now() + LINGER);
        }
    }

    fn now(&mut self) -> Now {
        Now { wall: wall_clock(), ms: self.clock.read(Instant::now()) }
    }
}

/// Bytes by which a request makes the store grow, generously; 0: it makes room, or changes what is there.
fn grows_by(request: &ManagerRequest) -> u64 {
    /// An inode, its name and a version.
    const FILE: u64 = 8192;
    match request {
        ManagerRequest::Commit { named, named_before, .. } => {
            FILE.saturating_add((named.len() as u64).saturating_add(*named_before).saturating_mul(32))
        }
        ManagerRequest::Create { .. }
        | ManagerRequest::OpenContainer { .. }
        | ManagerRequest::Change { change: Change::Make { .. } | Change::Link { .. }, .. } => FILE,
        _ => 0,
    }
}

/// The time for which the manager has listened.
struct Clock {
    read_at: Instant,
    listened: Duration,
}

impl Clock {
    fn new() -> Self {
        Self { read_at: Instant::now(), listened: Duration::ZERO }
    }

    /// Milliseconds for which the manager has listened.
    fn read(&mut self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.read_at);
        if passed > STEP_MAX {
            tracing::warn!(?passed, "the manager stood still: leases are longer by that");
        }
        self.read_at += passed;
        self.listened += passed.min(STEP_MAX);
        self.at()
    }

    /// Milliseconds for which the manager had listened when the clock was read last.
    fn at(&self) -> u64 {
        self.listened.as_secs() * 1000 + u64::from(self.listened.subsec_millis())
    }
}

/// Nanoseconds since 1970; 0 on a machine whose clock stands before that.
pub fn wall_clock() -> TimeNs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    TimeNs::try_from(since.as_nanos()).unwrap_or(TimeNs::MAX)
}

fn refusal(error: &StoreError) -> Failure {
    let message = format!("the manager can't make changes durable and stops: {error}");
    Failure::new(ErrorCode::Internal, message)
}

#[cfg(test)]
mod tests {
    use stdchk_model::message::manager::{FileKind, VersionState};
    use stdchk_model::{ChunkMap, ClientId, Ino, MapRoot, MomentKey, OpId, PoolId, SessionId};

    use super::*;
    use crate::core::{Setting, Timing};
    use crate::journal::Sealer;
    use crate::store::{Batch, Snapshot, Visitor};

    #[test]
    fn time_in_which_nobody_was_heard_ends_no_lease() {
        let mut clock = Clock::new();
        let start = clock.read_at;
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!([200, 400, 999].map(|ms| clock.read(at(ms))), [200, 400, 999]);
        assert_eq!(clock.read(at(60_999)), 1999, "it stood still for a minute");
        assert_eq!(clock.read(at(61_000)), 2000);
        assert_eq!(clock.read(at(60_000)), 2000, "never back");
    }

    /// A store whose disk refuses every write.
    struct Refusing;

    impl Store for Refusing {
        fn load(&self, _visit: &mut Visitor<'_>) -> Result<(), StoreError> {
            Ok(())
        }

        fn commit(&mut self, _batch: &Batch) -> Result<(), StoreError> {
            Err(StoreError::new("writing", "no space left on the disk"))
        }

        fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
            Err(StoreError::new("reading", "it holds nothing"))
        }

        fn sequence(&self) -> u64 {
            0
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_could_not_be_made_durable_is_not_answered_as_done_and_the_manager_stops() {
        let owner = new_on(Box::new(Refusing));
        let ended = commits(&owner);
        let change = Change::Make {
            parent: Ino::ROOT,
            name: "app".to_owned(),
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            target: String::new(),
        };
        let request = Box::new(ManagerRequest::Change { id: OpId([1; 16]), change });
        let failure = owner.ask(|answer| Job::Request(request, Asker::default(), answer)).await.unwrap_err();
        assert_eq!(failure.code, ErrorCode::Internal, "{failure}");
        assert!(matches!(ended.await.unwrap(), Ended::Store(_)));
        let again = ManagerRequest::GetAttr(Ino::ROOT);
        let refused =
            owner.ask(|answer| Job::Request(Box::new(again), Asker::default(), answer)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Unavailable, "{refused}");
    }

    /// Its changes are made durable in a thread of their own, so that a test goes on while the disk takes its time.
    fn commits(owner: &Owner) -> oneshot::Receiver<Ended> {
        let (owner, (end, ended)) = (owner.clone(), oneshot::channel());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            // Most tests end before.
            let _ = end.send(runtime.block_on(owner.commit_all()));
        });
        ended
    }

    /// A store whose disk takes a write each time that the test lets it.
    struct Slow {
        disk: std::sync::mpsc::Receiver<()>,
        sequence: u64,
    }

    impl Store for Slow {
        fn load(&self, _visit: &mut Visitor<'_>) -> Result<(), StoreError> {
            Ok(())
        }

        fn commit(&mut self, _batch: &Batch) -> Result<(), StoreError> {
            self.disk.recv().map_err(|gone| StoreError::new("writing", gone))?;
            self.sequence += 1;
            Ok(())
        }

        fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
            Err(StoreError::new("reading", "it holds nothing"))
        }

        fn sequence(&self) -> u64 {
            self.sequence
        }
    }

    pub(super) fn create(number: u8, exclusive: bool) -> ManagerRequest {
        ManagerRequest::Create {
            session: SessionId([number; 16]),
            client: ClientId([1; 16]),
            parent: Ino::ROOT,
            name: format!("file{number}"),
            mode: 0o644,
            uid: 0,
            gid: 0,
            exclusive,
            again: None,
            durability: None,
        }
    }

    /// The owner of a new pool.
    fn new_on(store: Box<dyn Store>) -> Owner {
        let setting = Setting {
            new_pool: PoolId([7; 16]),
            new_key: MomentKey([7; 32]),
            owner: (0, 0),
            pid: 1,
            start: 1,
            timing: Timing::default(),
            steps: 64,
        };
        let before = Moment { start: 0, commit: store.sequence() };
        let journal = Journal::new(Sealer::new(setting.new_pool, None), setting.new_key, before);
        Owner::new(Core::load(&Refusing, setting, Now::default()).unwrap(), store, journal)
    }

    /// One whose store writes whenever something is sent.
    fn new_on_a_slow_store() -> (Owner, std::sync::mpsc::Sender<()>) {
        let (disk, written) = std::sync::mpsc::channel();
        (new_on(Box::new(Slow { disk: written, sequence: 0 })), disk)
    }

    /// One that has given out its first numbers of inodes.
    async fn on_a_slow_store() -> (Owner, std::sync::mpsc::Sender<()>) {
        let (owner, disk) = new_on_a_slow_store();
        commits(&owner);
        disk.send(()).unwrap();
        asked(&owner, create(1, true)).await.unwrap();
        (owner, disk)
    }

    async fn asked(owner: &Owner, request: ManagerRequest) -> Result<ManagerReply, Failure> {
        owner.ask(|answer| Job::Request(Box::new(request), Asker::default(), answer)).await
    }

    /// A store with room for three files.
    struct Tight(u64);

    impl Store for Tight {
        fn load(&self, _visit: &mut Visitor<'_>) -> Result<(), StoreError> {
            Ok(())
        }

        fn commit(&mut self, _batch: &Batch) -> Result<(), StoreError> {
            self.0 += 1;
            Ok(())
        }

        fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
            Err(StoreError::new("reading", "it holds nothing"))
        }

        fn sequence(&self) -> u64 {
            self.0
        }

        fn has_room(&self, bytes: u64) -> bool {
            bytes <= 3 * grows_by(&create(1, true))
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_stored_together_must_fit_together() {
        let owner = new_on(Box::new(Tight(1)));
        let asking = |number| {
            let owner = owner.clone();
            tokio::spawn(async move { asked(&owner, create(number, true)).await })
        };
        let waiting: Vec<_> = (1..=5).map(asking).collect();
        tokio::time::sleep(5 * LINGER).await;
        commits(&owner);
        let mut refused = 0;
        for answer in waiting {
            refused += u32::from(answer.await.unwrap().is_err_and(|error| error.code == ErrorCode::NoSpace));
        }
        assert_eq!(refused, 2);
        asked(&owner, create(6, true)).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_first_number_of_a_new_range_is_not_told_before_the_range_is_durable() {
        let (owner, disk) = new_on_a_slow_store();
        commits(&owner);
        let made = tokio::spawn(async move { asked(&owner, create(1, false)).await });
        std::thread::sleep(5 * LINGER);
        assert!(!made.is_finished(), "it is answered before the store has written anything");
        disk.send(()).unwrap();
        made.await.unwrap().unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn after_a_bug_nothing_is_stored_or_answered_and_the_manager_ends() {
        let (owner, disk) = new_on_a_slow_store();
        let (asker, waiting) = oneshot::channel();
        owner.tell(Job::Request(Box::new(create(1, true)), Asker::default(), asker));
        owner.tell(Job::Panic);
        // What comes after it is not even looked at.
        let refused = asked(&owner, create(2, false)).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Unavailable, "{refused}");
        assert!(matches!(owner.commit_all().await, Ended::Panicked));
        owner.close().unwrap();
        waiting.await.unwrap_err();
        // The store would have taken a write.
        disk.send(()).unwrap_err();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_file_is_made_at_once_and_an_exclusive_one_when_it_is_durable() {
        let (owner, disk) = on_a_slow_store().await;
        asked(&owner, create(2, false)).await.unwrap();
        let exclusive = tokio::spawn(async move { asked(&owner, create(3, true)).await });
        std::thread::sleep(5 * LINGER);
        assert!(!exclusive.is_finished(), "it is answered before the store has written anything");
        // One for each of them, should the first have been written before the second came.
        disk.send(()).unwrap();
        disk.send(()).unwrap();
        exclusive.await.unwrap().unwrap();
    }

    /// An empty version.
    fn commit_of_nothing(session: SessionId) -> ManagerRequest {
        let root = MapRoot::Inline { map: ChunkMap::default().encode() };
        let (size, mtime, stored_bytes, hole_bytes) = (0, 1, 0, 0);
        let (named, receipts, state) = (Vec::new(), Vec::new(), VersionState::Open);
        ManagerRequest::Commit {
            session,
            root,
            size,
            mtime,
            stored_bytes,
            named,
            named_before: 0,
            state,
            hole_bytes,
            receipts,
            key: None,
            changes: 0,
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_session_that_has_nothing_to_finish_ends_at_once() {
        let (owner, disk) = on_a_slow_store().await;
        let session = SessionId([1; 16]);
        let close = asked(&owner, ManagerRequest::CloseSession { session, interrupted: false });
        let closed = tokio::time::timeout(Duration::from_secs(60), close).await;
        closed.expect("it waits for the store").unwrap();
        drop(disk);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_end_of_a_session_is_durable_when_it_is_answered_also_if_nothing_follows() {
        let (owner, disk) = on_a_slow_store().await;
        let session = SessionId([1; 16]);
        disk.send(()).unwrap();
        asked(&owner, commit_of_nothing(session)).await.unwrap();
        let close = ManagerRequest::CloseSession { session, interrupted: false };
        let closed = tokio::spawn(async move { asked(&owner, close).await });
        std::thread::sleep(5 * LINGER);
        assert!(!closed.is_finished(), "it is answered before the store has written anything");
        disk.send(()).unwrap();
        disk.send(()).unwrap();
        closed.await.unwrap().unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_file_that_was_made_shows_its_content_and_its_states_only_once_they_are_durable() {
        let (owner, disk) = on_a_slow_store().await;
        asked(&owner, create(2, false)).await.unwrap();
        let versions = tokio::spawn(async move { asked(&owner, ManagerRequest::Versions(Ino(3))).await });
        std::thread::sleep(5 * LINGER);
        assert!(!versions.is_finished(), "it is answered before the store has written anything");
        disk.send(()).unwrap();
        assert_eq!(versions.await.unwrap(), Ok(ManagerReply::Versions(Vec::new())));
    }
}
