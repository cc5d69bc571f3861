//! How fast benefactors send what is asked of them, seen in the bytes that come: a slow one is known long before its first block is complete.

use std::time::Duration;

use stdchk_net::Carried;
use tokio::time::Instant;

/// What came longer ago weighs less, by e for each of these in which something was waited for.
const WINDOW: Duration = Duration::from_millis(500);
/// Before something was waited for so long, nothing is said.
const SEEN_MIN: Duration = Duration::from_millis(50);
/// A benefactor that was asked for nothing for so long may be faster now.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(5);
/// An answer counts as so many bytes at least: smaller ones take as long.
const ANSWER_BYTES_MIN: u64 = 256 << 10;
/// One that is so many times as slow as another one, and takes so much longer for what it was asked, is slow beside it.
const SLOW_TIMES: f64 = 4.0;
const SLOW_MIN: f64 = 0.1;

/// What comes from one benefactor.
#[derive(Debug, Default)]
pub(crate) struct Receiving {
    looked: Option<(Instant, Carried)>,
    /// When something was asked of it, or came, as far as that was seen.
    active: Option<Instant>,
    /// Bytes that came, and the seconds in which they did, the newest weighing most.
    bytes: f64,
    seconds: f64,
}

impl Receiving {
    /// Looks at what its connection carried so far.
    pub(crate) fn look(&mut self, now: Instant, carried: Carried) {
        let Some((at, before)) = self.looked.replace((now, carried)) else { return };
        let is_other = carried.answered < before.answered || carried.bytes < before.bytes;
        if is_other || self.active.is_none_or(|active| now - active >= FORGOTTEN_AFTER) {
            (self.bytes, self.seconds) = (0.0, 0.0);
        }
        let (elapsed, answered) = (now - at, carried.answered.saturating_sub(before.answered));
        if is_other || (before.unanswered, answered) == (0, 0) {
            return;
        }
        self.active = Some(now);
        let bytes = carried.bytes.saturating_sub(before.bytes).max(answered * ANSWER_BYTES_MIN);
        let kept = (-elapsed.as_secs_f64() / WINDOW.as_secs_f64()).exp();
        self.bytes = self.bytes * kept + bytes as f64;
        self.seconds = self.seconds * kept + elapsed.as_secs_f64();
    }

    /// What is to be expected of it; `None`: too little is known.
    pub(crate) fn pace(&self, now: Instant) -> Option<Pace> {
        let (_, carried) = self.looked?;
        let is_active = self.active.is_some_and(|active| now - active < FORGOTTEN_AFTER);
        let is_seen = self.seconds >= SEEN_MIN.as_secs_f64() && is_active;
        // One that sends nothing at all has a pace, too.
        let per_second = self.bytes.max(1.0) / self.seconds;
        is_seen.then_some(Pace { per_second, unanswered: carried.unanswered })
    }
}

/// How fast a benefactor sends, and what it was asked already.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Pace {
    /// Bytes a second.
    pub(crate) per_second: f64,
    /// Answers that are to come before any other.
    pub(crate) unanswered: u64,
}

impl Pace {
    /// Seconds until so many `more` blocks of `bytes` have come as well.
    fn until(&self, more: u64, bytes: u32) -> f64 {
        (self.unanswered + more) as f64 * f64::from(bytes).max(ANSWER_BYTES_MIN as f64) / self.per_second
    }

    /// Whether this one, which has been asked for a block or is to be asked for one `more`, is far slower than `other` is, if that is asked for one.
    pub(crate) fn is_slow_beside(&self, more: u64, other: Pace, bytes: u32) -> bool {
        self.per_second * SLOW_TIMES < other.per_second
            && self.until(more, bytes) > SLOW_TIMES * other.until(1, bytes) + SLOW_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u32 = 1 << 20;

    /// What is seen of a benefactor that was asked for four blocks at once and sends so much in each tenth of a second.
    fn seen(tenths: u32, bytes_in_a_tenth: u64) -> Receiving {
        let (mut receiving, began) = (Receiving::default(), Instant::now());
        for tenth in 0..=tenths {
            let carried = Carried { unanswered: 4, answered: 0, bytes: u64::from(tenth) * bytes_in_a_tenth };
            receiving.look(began + Duration::from_millis(100) * tenth, carried);
        }
        receiving
    }

    #[test]
    fn a_slow_benefactor_is_known_before_its_first_block_is_there() {
        assert_eq!(seen(0, 0).pace(Instant::now()), None);
        let [slow, fast, silent] =
            [25_000, 1_200_000, 0].map(|bytes| seen(1, bytes).pace(Instant::now()).unwrap());
        assert!(
            (slow.per_second - 250e3).abs() < 1.0 && (fast.per_second - 12e6).abs() < 1.0,
            "{slow:?} {fast:?}"
        );
        for late in [slow, silent] {
            assert!(late.is_slow_beside(0, fast, MIB) && !fast.is_slow_beside(0, late, MIB));
        }
        // One that has much to do for this client isn't slow by that.
        let asked = Pace { unanswered: 100, ..fast };
        assert!(!asked.is_slow_beside(1, fast, MIB));
        // Nor is one whose blocks come at once all the same.
        let slower = Pace { per_second: fast.per_second / 5.0, unanswered: 0 };
        assert!(!slower.is_slow_beside(1, Pace { unanswered: 0, ..fast }, MIB / 4));
    }

    #[test]
    fn what_was_seen_gives_way_to_what_is() {
        let mut receiving = seen(20, 1_000_000);
        let (at, mut carried) = receiving.looked.unwrap();
        let before = receiving.pace(at).unwrap().per_second;
        receiving.look(at + Duration::from_secs(2), carried);
        assert!(
            receiving.pace(at + Duration::from_secs(2)).unwrap().per_second < before / 10.0,
            "it stopped"
        );
        // Nothing is asked of it for a while.
        (carried.unanswered, carried.answered) = (0, 4);
        let at = at + Duration::from_secs(3);
        receiving.look(at, carried);
        let known = receiving.pace(at).unwrap();
        for second in 1..5 {
            let at = at + Duration::from_secs(second);
            receiving.look(at, carried);
            assert_eq!(receiving.pace(at), Some(known), "time in which nothing is asked says nothing");
        }
        let at = at + FORGOTTEN_AFTER;
        receiving.look(at, carried);
        assert_eq!(receiving.pace(at), None, "however often it is looked at");
        // Small answers count as larger ones.
        let mut small = Receiving::default();
        small.look(at, Carried::default());
        let carried = Carried { unanswered: 1, answered: 100, bytes: 100 * 4096 };
        small.look(at + Duration::from_millis(100), carried);
        let soon = at + Duration::from_millis(100);
        assert!(small.pace(soon).unwrap().per_second > 200e6);
        // Another connection begins anew.
        small.look(at + Duration::from_millis(200), Carried { unanswered: 1, answered: 0, bytes: 100 });
        assert_eq!(small.pace(soon), None);
    }
}
