//! What an operation says while it works: how many bytes are done, which part failed, what was passed over.
//!
//! A [`Watch`] is one function that takes [`Event`]s. It is called from the threads of the operation, so it must neither block
//! nor wait for the operation.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;
use crate::latest::PassedOver;

/// What is being done to bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Work {
    /// Files are stored.
    Put,
    /// A file is read.
    Get,
    /// Chunks are compared with their names where they lie.
    Verify,
    /// Two versions are compared.
    Diff,
    /// The files of a set are read.
    Restore,
    /// A file state is read.
    Fetch,
    /// The files of a set are packed.
    Aggregate,
}

/// Something that happened during an operation.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Work on so many bytes begins; 0: nobody knows how many.
    Began {
        /// What is done.
        work: Work,
        /// The bytes to be worked on.
        bytes: u64,
    },
    /// So many more bytes are done.
    Moved {
        /// The bytes since the last such event.
        bytes: u64,
    },
    /// The work that began ends, well or not.
    Ended,
    /// One of several objects failed; the operation goes on with the others.
    Failed(&'a Error),
    /// A set can't be restarted from; an older one is looked at.
    PassedOver {
        /// The application's folder.
        app: &'a str,
        /// The set and the reason.
        set: &'a PassedOver,
    },
    /// The newest complete set is away, and its benefactors are waited for.
    Waiting {
        /// The application's folder.
        app: &'a str,
        /// The set and the reason.
        set: &'a PassedOver,
    },
    /// Copies of so many chunks can't be made now, so that nobody waits for them any longer.
    Stalled {
        /// Chunks with fewer copies than their folders ask for.
        chunks_at_risk: u64,
    },
}

type Told = dyn Fn(&Event<'_>) + Send + Sync;

/// Who is told what happens during an operation; [`Watch::default`] is nobody.
#[derive(Clone, Default)]
pub struct Watch(Option<Arc<Told>>);

impl Watch {
    /// Tells `told` of every event.
    pub fn new(told: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(told)))
    }

    pub(crate) fn tell(&self, event: &Event<'_>) {
        if let Some(told) = &self.0 {
            told(event);
        }
    }

    /// Begins work on so many bytes, which ends when the value is dropped.
    pub(crate) fn begin(&self, work: Work, bytes: u64) -> Stage {
        self.tell(&Event::Began { work, bytes });
        Stage { watch: self.clone() }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(if self.0.is_some() { "Watch" } else { "Watch(nobody)" })
    }
}

/// Work on bytes that is under way.
#[derive(Debug)]
pub(crate) struct Stage {
    watch: Watch,
}

impl Stage {
    pub(crate) fn moved(&self, bytes: u64) {
        self.watch.tell(&Event::Moved { bytes });
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.watch.tell(&Event::Ended);
    }
}
