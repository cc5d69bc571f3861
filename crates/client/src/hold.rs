//! Waiting for the copies of what was committed before, where the folder's `exposure` says so.
//!
//! The manager says with the answer to a commit for what the writer should wait; the bytes are durable by then, and the
//! wait only keeps the application from getting ahead of the copies. So it never fails and always ends: when the copies
//! are made, when the manager says that they can't be made now, when it can't be asked, or when nothing moves any more.

use std::sync::Arc;
use std::time::Duration;

use stdchk_model::Ino;
use stdchk_model::message::manager::{Hold, ManagerReply, ManagerRequest};
use stdchk_net::Retry;
use stdchk_net::waits::permits;
use tokio::sync::Semaphore;

use crate::manager::ManagerLink;

/// Time without any progress after which the writer goes on: longer than a copy that failed takes to be made elsewhere.
const STALLED: Duration = Duration::from_secs(10);
/// Writers of one client that ask at a time: they share the connection to the manager with everything else, and a question
/// may take a second. The others are asked for one after the other.
const ASKING_MAX: usize = 8;

/// The writers of one client that wait for copies.
pub(crate) struct Holds {
    asking: Arc<Semaphore>,
}

impl Default for Holds {
    fn default() -> Self {
        Self { asking: Arc::new(Semaphore::new(ASKING_MAX)) }
    }
}

impl Holds {
    /// Waits until the copies are made, or no longer should be waited for.
    pub(crate) async fn wait(&self, manager: &ManagerLink, ino: Ino, hold: Hold) {
        // The manager answers when something has moved, or after a second: there is nothing to pause for.
        let (mut progress, mut retry) = (None, Retry::every(Duration::ZERO, STALLED));
        loop {
            let answer = {
                let _permit = permits(&self.asking, 1).await;
                manager.ask(&ManagerRequest::AwaitCopies { ino, hold }).await
            };
            match answer {
                Ok(ManagerReply::Waiting { progress: now }) if progress != Some(now) => {
                    progress = Some(now);
                    retry.progressed();
                }
                Ok(ManagerReply::Waiting { .. }) if !retry.is_over() => {}
                Ok(ManagerReply::Waiting { .. }) => {
                    tracing::warn!(%ino, "copies of earlier versions are not being made; the writer goes on without them");
                    return;
                }
                Ok(_) => return,
                Err(failure) => {
                    tracing::debug!(%ino, %failure, "not waiting for copies");
                    return;
                }
            }
        }
    }
}
