//! A failure that repeats: said at once, then after pauses that grow, with how often it has failed, and once more when it is over.
//!
//! A process that tries for hours must not fill the log, and a log that says nothing for hours looks like one of a process that is well.
//!
//! | state | it fails | it fails for another reason | it succeeds |
//! |---|---|---|---|
//! | well | fails; said | - | well |
//! | fails | said, if the pause is over | said, if that reason was not said yet or the pause is over | well; said |

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// First and longest pause until it is said again.
const PAUSES: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(3600));
/// Reasons that are said at once in one row of failures, at most: some name a port that is never the same.
const REASONS_MAX: usize = 8;

/// Something that is tried again and again.
#[derive(Debug, Default)]
pub struct Repeats(Option<Failing>);

#[derive(Debug)]
struct Failing {
    since: Instant,
    times: u64,
    reasons: BTreeSet<String>,
    next: Instant,
    pause: Duration,
}

/// A row of failures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// How often it has failed.
    pub times: u64,
    /// Seconds since it failed first.
    pub seconds: u64,
}

impl Repeats {
    /// It has failed; `Some`: that is to be said now.
    pub fn failed(&mut self, reason: &str) -> Option<Row> {
        self.failed_at(reason, Instant::now())
    }

    /// It has succeeded; `Some`: it had failed, which was said.
    pub fn is_well(&mut self) -> Option<Row> {
        self.0.take().map(|failing| failing.row(Instant::now()))
    }

    fn failed_at(&mut self, reason: &str, now: Instant) -> Option<Row> {
        let new = || Failing { since: now, times: 0, reasons: BTreeSet::new(), next: now, pause: PAUSES.0 };
        let failing = self.0.get_or_insert_with(new);
        failing.times += 1;
        let is_new = failing.reasons.len() < REASONS_MAX && failing.reasons.insert(reason.to_owned());
        if now >= failing.next {
            failing.next = now + failing.pause;
            failing.pause = (failing.pause * 2).min(PAUSES.1);
        } else if !is_new {
            return None;
        }
        Some(failing.row(now))
    }
}

impl Failing {
    fn row(&self, now: Instant) -> Row {
        Row { times: self.times, seconds: now.saturating_duration_since(self.since).as_secs() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_failures_is_said_at_once_then_ever_more_seldom_and_each_new_reason_at_once() {
        let (mut repeats, begin) = (Repeats::default(), Instant::now());
        let mut said = Vec::new();
        // Two hours of two tries a second, of which every other one fails in another way.
        for half_second in 0..14_400u64 {
            let reason = if half_second % 2 == 0 { "refused" } else { "no answer" };
            let now = begin + Duration::from_millis(500 * half_second);
            said.extend(repeats.failed_at(reason, now));
        }
        let seconds: Vec<u64> = said.iter().map(|row| row.seconds).collect();
        assert_eq!(seconds, [0, 0, 30, 90, 210, 450, 930, 1_890, 3_810]);
        assert_eq!(said.last().map(|row| row.times), Some(3_810 * 2 + 1));
        assert_eq!(repeats.is_well().map(|row| row.times), Some(14_400));
        assert_eq!(repeats.is_well(), None);
        assert!(repeats.failed("refused").is_some_and(|row| row.times == 1));
        for port in 0..1_000 {
            repeats.failed_at(&format!("port {port}"), begin);
        }
        assert!(repeats.0.is_some_and(|failing| failing.reasons.len() <= REASONS_MAX));
    }
}
