//! Where the time of packing goes, step by step.
//!
//! Relies on the standard library. The idea: each thread takes the time between steps and adds it to the step that is
//! over, a few times a block, so that what packing costs can be asked of every run, and no profiler is needed. By the clock:
//! to ask for a thread's processor time takes a call of the kernel, which small blocks would feel.

use std::time::{Duration, Instant};

/// Time by the clock, of all threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Looking at the files: what is in them, and what is merged with what.
    pub planning: Duration,
    /// Reading them into blocks, and finding what was seen before.
    pub reading: Duration,
    /// Choosing chains and coding by them.
    pub coding: Duration,
    /// Hashing what was read.
    pub hashing: Duration,
    /// Decoding again, and comparing that with what was read.
    pub checking: Duration,
    /// Writing the container.
    pub writing: Duration,
    /// Its tables, opening it as a reader does, and waiting until it is durable.
    pub finishing: Duration,
}

impl Spent {
    /// Every step's name and time, in the order in which they are done.
    #[must_use]
    pub fn steps(&self) -> [(&'static str, Duration); 7] {
        [
            ("planning", self.planning),
            ("reading", self.reading),
            ("coding", self.coding),
            ("hashing", self.hashing),
            ("checking", self.checking),
            ("writing", self.writing),
            ("finishing", self.finishing),
        ]
    }

    /// Adds what another thread, or block, took.
    pub(super) fn add(&mut self, other: &Self) {
        self.planning += other.planning;
        self.reading += other.reading;
        self.coding += other.coding;
        self.hashing += other.hashing;
        self.checking += other.checking;
        self.writing += other.writing;
        self.finishing += other.finishing;
    }
}

/// When the step before was over.
pub(super) struct Lap(Instant);

impl Lap {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    /// Adds the time of a step that is over, and begins the next.
    pub(super) fn end(&mut self, step: &mut Duration) {
        let now = Instant::now();
        *step += now - self.0;
        self.0 = now;
    }
}
