//! The one thread that owns the core and its store.
//!
//! It takes all requests that have queued up, applies them one after the other, commits their changes in one store
//! transaction (group commit), and only then lets the answers out: nobody sees what a crash could take back (I2, I7).
//! Requests that change nothing cost no transaction. A store that failed is not used again: the manager stops.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use stdchk_model::message::manager::{ManagerReply, ManagerRequest, TimeNs};
use stdchk_model::{ChunkId, ErrorCode, Failure};
use tokio::sync::{mpsc, oneshot};

use crate::core::{Core, MapToRead, Marking, Now};
use crate::store::{Store, StoreError};

/// Requests that are applied before a commit, at most: bounds the time that the first of them waits.
const BATCH_MAX: usize = 512;
/// Requests that wait for the owner, at most; who comes later waits before it is queued.
const QUEUE_MAX: usize = 4096;

type Answer<T> = oneshot::Sender<Result<T, Failure>>;

/// What the owner is asked.
pub enum Job {
    /// A request of a client or benefactor.
    Request(Box<ManagerRequest>, Answer<ManagerReply>),
    /// Time has passed.
    Tick,
    /// Is a marking due?
    MarkingIsDue(Answer<bool>),
    /// Begin one.
    BeginMarking(Answer<Marking>),
    /// A map of a marking was read.
    Marked(u32, Box<MapToRead>, Vec<ChunkId>),
    /// Sweep behind a marking, or only count.
    Sweep(u32, bool, Answer<ManagerReply>),
}

/// How the rest of the shell reaches the owner.
#[derive(Clone)]
pub struct Owner {
    jobs: mpsc::Sender<Job>,
}

impl Owner {
    /// Starts the owner's thread. The receiver resolves when it ends: with an error if the store failed.
    pub fn start(core: Core, store: Box<dyn Store>) -> (Self, oneshot::Receiver<Result<(), StoreError>>) {
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        let (end, ended) = oneshot::channel();
        std::thread::spawn(move || {
            let result = Keeper { core, store, started: Instant::now() }.serve(queue);
            // Nobody listens once the manager was told to stop.
            let _ = end.send(result);
        });
        (Self { jobs }, ended)
    }

    /// The owner's answer to a job.
    pub async fn ask<T>(&self, job: impl FnOnce(Answer<T>) -> Job) -> Result<T, Failure> {
        let (sender, answer) = oneshot::channel();
        self.jobs.send(job(sender)).await.map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?
    }

    /// Hands over a job that has no answer.
    pub async fn tell(&self, job: Job) {
        // A manager that stops needs no more jobs.
        let _ = self.jobs.send(job).await;
    }
}

fn stopping() -> Failure {
    Failure::new(ErrorCode::Unavailable, "the manager is stopping: try again")
}

/// An answer that waits for its changes to be durable.
type Held = Box<dyn FnOnce(Option<&Failure>)>;

fn hold<T: 'static>(answer: Answer<T>, result: Result<T, Failure>) -> Held {
    Box::new(move |refusal| {
        let result = refusal.map_or(result, |failure| Err(failure.clone()));
        // The asker may have gone; then nobody needs the answer.
        let _ = answer.send(result);
    })
}

struct Keeper {
    core: Core,
    store: Box<dyn Store>,
    started: Instant,
}

impl Keeper {
    fn serve(mut self, mut queue: mpsc::Receiver<Job>) -> Result<(), StoreError> {
        while let Some(first) = queue.blocking_recv() {
            let mut held: Vec<Held> = Vec::new();
            held.extend(self.apply(first));
            for _ in 1..BATCH_MAX {
                let Ok(job) = queue.try_recv() else { break };
                held.extend(self.apply(job));
            }
            let committed = self.commit();
            let refusal = committed.as_ref().err().map(refusal);
            held.into_iter().for_each(|answer| answer(refusal.as_ref()));
            committed?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        let batch = self.core.take_changes();
        if !batch.is_empty() {
            self.store.commit(&batch)?;
            self.core.committed(self.store.sequence());
        }
        Ok(())
    }

    fn apply(&mut self, job: Job) -> Option<Held> {
        let now = self.now();
        match job {
            Job::Request(request, answer) => Some(hold(answer, self.core.handle(*request, now))),
            Job::Tick => {
                self.core.tick(now);
                None
            }
            Job::MarkingIsDue(answer) => Some(hold(answer, Ok(self.core.marking_is_due(now)))),
            Job::BeginMarking(answer) => Some(hold(answer, self.core.begin_marking(now))),
            Job::Marked(generation, map, chunks) => {
                self.core.marked(generation, &map, &chunks);
                None
            }
            Job::Sweep(generation, dry_run, answer) => {
                Some(hold(answer, self.core.sweep(generation, dry_run, now)))
            }
        }
    }

    fn now(&self) -> Now {
        let ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now { wall: wall_clock(), ms }
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
    use stdchk_model::message::manager::{Change, FileKind};
    use stdchk_model::{Ino, OpId, PoolId};

    use super::*;
    use crate::core::{Setting, Timing};
    use crate::store::{Batch, Visitor};

    /// A store whose disk refuses every write.
    struct Refusing;

    impl Store for Refusing {
        fn load(&self, _visit: &mut Visitor<'_>) -> Result<(), StoreError> {
            Ok(())
        }

        fn commit(&mut self, _batch: &Batch) -> Result<(), StoreError> {
            Err(StoreError::new("writing", "no space left on the disk"))
        }

        fn sequence(&self) -> u64 {
            0
        }
    }

    #[tokio::test]
    async fn what_could_not_be_made_durable_is_not_answered_as_done_and_the_manager_stops() {
        let setting =
            Setting { new_pool: PoolId([7; 16]), owner: (0, 0), pid: 1, start: 1, timing: Timing::default() };
        let core = Core::load(&Refusing, setting, Now::default()).unwrap();
        let (owner, ended) = Owner::start(core, Box::new(Refusing));
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
        let failure = owner.ask(|answer| Job::Request(request, answer)).await.unwrap_err();
        assert_eq!(failure.code, ErrorCode::Internal, "{failure}");
        assert!(ended.await.unwrap().is_err());
    }
}
