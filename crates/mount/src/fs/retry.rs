//! Opens that are tried again.
//!
//! The kernel opens in two steps: it looks the name up, or remembers where it led, and then opens the inode. If the file
//! was changed elsewhere meanwhile the second step answers `Stale`, upon which the kernel does both again, without
//! believing what it remembers: once. A file that is replaced again and again could be replaced between these two steps
//! as well, and the program would see an error that no local file system gives.
//!
//! So the second look at a name opens the content too. It is known by the task and its user: what a task asks for after its open was
//! refused belongs to the second try, unless it has become another user. A task that doesn't come back for its content loses it
//! after a while.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_client::{Reader, Writer, acting_user};
use stdchk_model::User;
use stdchk_model::message::manager::Attr;

use super::nodes::NodeId;
use crate::caller::UNKNOWN;

/// How long what was prepared waits for its task: the kernel asks for it at once, unless a check of permissions fails.
const PATIENCE: Duration = Duration::from_secs(5);

/// What an open gives to read or write.
pub(crate) enum Content {
    Version(Arc<Reader>),
    Writer(Arc<Writer>),
    /// The writer that is open already.
    Shared,
}

impl Content {
    /// The file when it was opened.
    pub fn opened(&self) -> Option<&Attr> {
        match self {
            Self::Version(reader) => Some(reader.opened()),
            Self::Writer(writer) => Some(writer.opened()),
            Self::Shared => None,
        }
    }

    /// Gives it up.
    pub async fn end(self) {
        if let Self::Writer(writer) = self
            && let Err(failure) = writer.close(false).await
        {
            tracing::warn!(ino = %writer.ino(), %failure, "a session that was not used did not end well");
        }
    }
}

/// A second try under way.
struct Retry {
    writable: bool,
    /// What the last look at the name found; the kernel may look more than once.
    prepared: Option<(NodeId, Content)>,
    /// Tells it from others of the same task.
    number: u64,
}

impl Retry {
    async fn give_up(self) {
        if let Some((_, content)) = self.prepared {
            content.end().await;
        }
    }
}

/// A task, and the user for whom the manager is asked.
type Who = (u32, Option<User>);

/// The second tries under way.
#[derive(Default)]
pub(crate) struct Retries {
    tasks: Mutex<HashMap<Who, Retry>>,
    begun: AtomicU64,
}

impl Retries {
    /// The open of a task was refused: it will look again.
    pub async fn expect(self: &Arc<Self>, task: u32, writable: bool) {
        if task != UNKNOWN {
            self.keep((task, acting_user()), writable, None).await;
        }
    }

    /// Whether a lookup of this task is followed by its second try to open; and whether for writing.
    pub fn expected(&self, task: u32) -> Option<bool> {
        self.tasks.lock().get(&(task, acting_user())).map(|retry| retry.writable)
    }

    /// The task has looked again, and found this.
    pub async fn prepare(self: &Arc<Self>, task: u32, writable: bool, id: NodeId, content: Content) {
        self.keep((task, acting_user()), writable, Some((id, content))).await;
    }

    async fn keep(self: &Arc<Self>, who: Who, writable: bool, prepared: Option<(NodeId, Content)>) {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let before = self.tasks.lock().insert(who.clone(), Retry { writable, prepared, number });
        if let Some(before) = before {
            before.give_up().await;
        }
        let retries = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(PATIENCE).await;
            retries.forget(&who, number).await;
        });
    }

    async fn forget(&self, who: &Who, number: u64) {
        let left = {
            let mut tasks = self.tasks.lock();
            let same = tasks.get(who).is_some_and(|retry| retry.number == number);
            if same { tasks.remove(who) } else { None }
        };
        if let Some(left) = left {
            left.give_up().await;
        }
    }

    /// What was prepared for this open of the task, if it is the one that was meant.
    pub async fn take(&self, task: u32, id: NodeId, writable: bool) -> Option<Content> {
        let retry = self.tasks.lock().remove(&(task, acting_user()))?;
        match retry.prepared {
            Some((prepared, content)) if prepared == id && retry.writable == writable => Some(content),
            Some((_, content)) => {
                content.end().await;
                None
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use stdchk_client::acting_for;

    use super::*;

    #[tokio::test]
    async fn what_was_prepared_is_for_the_task_that_was_refused_and_for_that_file_alone() {
        let retries = Arc::new(Retries::default());
        assert_eq!(retries.expected(7), None);
        retries.expect(7, true).await;
        assert_eq!((retries.expected(7), retries.expected(8)), (Some(true), None));
        retries.prepare(7, true, NodeId(1), Content::Shared).await;
        assert_eq!(retries.expected(7), Some(true), "the kernel may look once more");
        assert!(retries.take(8, NodeId(1), true).await.is_none());
        assert!(retries.take(7, NodeId(1), true).await.is_some());
        retries.prepare(7, false, NodeId(1), Content::Shared).await;
        assert!(retries.take(7, NodeId(2), false).await.is_none());
        assert!(retries.take(7, NodeId(1), false).await.is_none(), "given up with the first open");
    }

    #[tokio::test]
    async fn a_task_that_does_not_come_back_is_forgotten_and_one_that_came_again_is_not() {
        let retries = Arc::new(Retries::default());
        retries.expect(7, false).await;
        retries.expect(7, true).await;
        retries.forget(&(7, None), 0).await;
        assert_eq!(retries.expected(7), Some(true));
        retries.forget(&(7, None), 1).await;
        assert_eq!(retries.expected(7), None);
    }

    #[tokio::test]
    async fn what_was_prepared_for_a_task_is_not_for_it_as_another_user() {
        let retries = Arc::new(Retries::default());
        retries.prepare(7, false, NodeId(1), Content::Shared).await;
        let taken = acting_for(Some(User::new(5, 5)), retries.take(7, NodeId(1), false)).await;
        assert!(taken.is_none());
        assert!(retries.take(7, NodeId(1), false).await.is_some());
    }
}
