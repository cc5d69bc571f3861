//! A process: a runtime of its own with a clock of its own, which stands still unless the life lets time pass.
//!
//! Within a step the runtime does all that is to be done, and its clock goes from one timer to the next. Dropping it ends every task at
//! once, wherever it waits: so dies a process.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

pub struct Host(Runtime);

impl Host {
    pub fn new() -> Self {
        Self(Builder::new_current_thread().enable_time().start_paused(true).build().unwrap())
    }

    /// Begins something, which goes on with the next step.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.0.spawn(task)
    }

    /// Lets so much time pass.
    pub fn step(&self, time: Duration) {
        self.0.block_on(async move { tokio::time::sleep(time).await });
    }

    /// What a task that has ended gave back, or how it ended.
    pub fn wait(&self, task: JoinHandle<String>) -> String {
        self.0.block_on(task).unwrap_or_else(|error| error.to_string())
    }

    /// Finds that so much time has passed in which it did not run.
    pub fn skip(&self, time: Duration) {
        self.0.block_on(async move { tokio::time::advance(time).await });
    }
}
