//! `--push`: copies of the files as of each checkpoint, on their way to the pool while the job runs.
//!
//! One thread looks whether there is a newer checkpoint than the last it took up, and copies the newest: what came between
//! two copies is passed over, so nothing queues. Each copy is one version of one file of the pool, committed when it is
//! whole, and cut where its content says so: what did not change since the last copy is in the pool already. A copy that
//! fails harms nobody; the next checkpoint is tried again.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_filestate::control::Control;
use stdchk_filestate::driver::Beside;
use stdchk_filestate::store::Store;
use stdchk_model::exact::to_usize;
use stdchk_operations::{PushedState, Target};
use tokio::runtime::{Handle, Runtime};

use crate::command::files::app_folder;
use crate::command::runtime;
use crate::context::Context;
use crate::exit::Outcome;
use crate::settings::{PoolFlags, Settings};
use crate::{output, signals};

/// How often it is looked whether there is a new checkpoint: a load from shared memory, and soon enough for a copy.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The copying beside a run.
pub struct Push {
    work: Arc<Work>,
    runtime: Runtime,
    wait: Duration,
    thread: Option<Thread>,
}

struct Thread {
    /// Dropped to say that the run has ended.
    run: mpsc::Sender<()>,
    /// Closed when the thread has.
    ended: tokio::sync::oneshot::Receiver<()>,
    handle: JoinHandle<()>,
}

/// What the thread works with.
struct Work {
    app: Target,
    context: Context,
    handle: Handle,
    told: Mutex<Told>,
}

/// What became of the copies.
#[derive(Default)]
struct Told {
    /// The newest checkpoint that is in the pool.
    pushed: Option<u64>,
    /// The newest that was tried.
    tried: Option<u64>,
    /// The one that comes next if none is passed over.
    expected: u64,
    passed_over: u64,
    left_out: u64,
    /// Why the last copy failed, if it did.
    failure: Option<String>,
    has_warned: bool,
}

impl Push {
    /// To the folder `app`; `wait`: how long at the end. The pool need not be there yet.
    pub fn new(app: &str, flags: &PoolFlags, wait: Duration) -> Outcome<Self> {
        let runtime = runtime()?;
        let work = Work {
            app: app_folder(app)?,
            context: Context { settings: Settings::load(flags)? },
            handle: runtime.handle().clone(),
            told: Mutex::default(),
        };
        Ok(Self { work: Arc::new(work), runtime, wait, thread: None })
    }

    /// The newest checkpoint of which the pool has a copy.
    pub fn pushed(&self) -> Option<u64> {
        self.work.told.lock().pushed
    }

    /// Waits for the last copy, until the time is over or a signal comes. Whether it came to an end.
    fn wait(&self, mut ended: tokio::sync::oneshot::Receiver<()>) -> bool {
        self.runtime.block_on(async {
            if tokio::time::timeout(LOOK_EVERY, &mut ended).await.is_ok() {
                return true;
            }
            if !self.wait.is_zero() {
                output::note(format_args!(
                    "stdchk: waiting for the last file state to reach the pool, {} s at most; Ctrl-C leaves it",
                    self.wait.as_secs()
                ));
            }
            tokio::select! {
                _ = &mut ended => true,
                () = tokio::time::sleep(self.wait) => false,
                _ = signals::stop(signals::Hangup::Ends) => false,
            }
        })
    }
}

impl Beside for Push {
    fn begin(&mut self, store: &Arc<Store>, control: &Arc<Control>) {
        self.work.told.lock().expected = control.interval();
        let (run, run_ends) = mpsc::channel();
        let (ends, ended) = tokio::sync::oneshot::channel();
        let (work, store, control) = (Arc::clone(&self.work), Arc::clone(store), Arc::clone(control));
        let handle = std::thread::spawn(move || {
            work.push_all(&store, &control, &run_ends);
            drop(ends);
        });
        self.thread = Some(Thread { run, ended, handle });
    }

    fn end(&mut self) -> Vec<String> {
        let Some(Thread { run, ended, handle }) = self.thread.take() else { return Vec::new() };
        drop(run);
        let is_over = self.wait(ended) && handle.join().is_ok();
        self.work.told.lock().notes(is_over)
    }
}

impl Told {
    fn notes(&self, is_over: bool) -> Vec<String> {
        let newest = self.pushed.map_or("no file state".to_owned(), |index| format!("checkpoint {index}"));
        let mut notes = Vec::new();
        match &self.failure {
            _ if !is_over => {
                notes.push(format!("the last file state did not reach the pool in time; it has {newest}"));
            }
            Some(failure) => notes.push(format!("the pool has {newest}, not the last one: {failure}")),
            None => {}
        }
        if self.passed_over > 0 {
            let passed_over = output::count(to_usize(self.passed_over), "checkpoint");
            notes.push(format!(
                "{passed_over} did not reach the pool: the next came before the copy was made"
            ));
        }
        if self.left_out > 0 {
            let left_out = self.left_out;
            notes.push(format!("{left_out} sockets and devices are not part of the copy in the pool"));
        }
        notes
    }

    /// Takes up `newest`, if it is another one than before; at the end, also one that failed.
    fn takes_up(&mut self, newest: u64, is_over: bool) -> bool {
        if self.tried == Some(newest) && (!is_over || self.pushed == Some(newest)) {
            return false;
        }
        self.tried = Some(newest);
        true
    }
}

impl Work {
    fn push_all(&self, store: &Arc<Store>, control: &Arc<Control>, run_ends: &mpsc::Receiver<()>) {
        loop {
            let is_over = run_ends.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout);
            if self.told.lock().takes_up(control.interval(), is_over) {
                let pushed = self.push(store, control);
                self.note(pushed);
            }
            if is_over {
                return;
            }
        }
    }

    fn note(&self, pushed: Outcome<PushedState>) {
        let mut told = self.told.lock();
        match pushed {
            Ok(PushedState { index, left_out }) => {
                told.passed_over += index.saturating_sub(told.expected);
                told.expected = index + 1;
                (told.pushed, told.tried, told.left_out) = (Some(index), Some(index), left_out);
                told.failure = None;
            }
            Err(error) => {
                if !std::mem::replace(&mut told.has_warned, true) {
                    let what = "a file state did not reach the pool; the next checkpoint is tried again";
                    output::note(format_args!("stdchk: {what}: {}", error.message));
                }
                told.failure = Some(error.message);
            }
        }
    }

    /// Copies the newest checkpoint.
    fn push(&self, store: &Arc<Store>, control: &Arc<Control>) -> Outcome<PushedState> {
        let pool = self.handle.block_on(self.context.pool_to_move())?;
        let pushed = pool.push_file_state(&self.app, store, control);
        self.handle.block_on(pool.leave());
        Ok(pushed?)
    }
}
