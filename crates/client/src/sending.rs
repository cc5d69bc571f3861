//! What sending blocks to benefactors takes: what is usual, so that what is slow can be told from it, and the bandwidth that is reached.

use std::time::Duration;

use stdchk_model::exact::narrow;
use tokio::time::Instant;

/// A put counts as one of so many bytes at least: smaller ones take as long.
const BYTES_MIN: usize = 256 << 10;
/// Weight of the newest put in what is usual.
const NEWEST: f64 = 0.125;
/// So many times as long as usual is slow. Queues at disks and networks make some puts several times as slow as others.
const SLOW_TIMES: f64 = 8.0;
/// Nothing below that is slow: another benefactor would need some time, too.
const SLOW_MIN: Duration = Duration::from_secs(2);
/// Puts of fewer bytes say more of delays than of bandwidth, and so do few bytes in all.
const COUNTED_BYTES_MIN: usize = 128 << 10;
const TOLD_BYTES_MIN: u64 = 1 << 20;

/// What puts usually take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usual {
    /// Seconds for each byte, the newest puts weighing most; `None`: there was none yet.
    per_byte: Option<f64>,
}

impl Usual {
    /// A put took so long, and the block was taken or not. One that failed at once says nothing.
    pub(crate) fn take(&mut self, bytes: usize, took: Duration, taken: bool) {
        if !taken && took < SLOW_MIN {
            return;
        }
        let newest = took.as_secs_f64() / bytes.max(BYTES_MIN) as f64;
        self.per_byte = Some(self.per_byte.map_or(newest, |usual| usual + (newest - usual) * NEWEST));
    }

    /// How long a put may take before it is slow, if that is known.
    pub(crate) fn limit(&self, bytes: usize) -> Option<Duration> {
        let seconds = self.per_byte? * bytes.max(BYTES_MIN) as f64 * SLOW_TIMES;
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).max(SLOW_MIN))
    }
}

/// Puts to one benefactor.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    /// What they usually take.
    pub(crate) usual: Usual,
    /// Those under way that count.
    running: usize,
    /// Since when some are under way, if some are.
    since: Option<Instant>,
    /// What arrived and has not been told, bytes, and the time for which something was under way meanwhile.
    bytes: u64,
    busy: Duration,
}

impl Sending {
    /// A put begins.
    pub(crate) fn begin(&mut self, bytes: usize) {
        if bytes < COUNTED_BYTES_MIN {
            return;
        }
        self.running += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    /// A put that took so long has ended, and the block was taken or not.
    pub(crate) fn end(&mut self, bytes: usize, took: Duration, taken: bool) {
        self.usual.take(bytes, took, taken);
        if bytes < COUNTED_BYTES_MIN {
            return;
        }
        // The benefactor may have become known after the put began.
        self.running = self.running.saturating_sub(1);
        // The time of one that carried nothing counts only where others carried something meanwhile.
        if taken {
            self.bytes += bytes as u64;
            self.pass();
        }
        if self.running == 0 {
            self.since = None;
            if self.bytes == 0 {
                self.busy = Duration::ZERO;
            }
        }
    }

    /// Counts the time until now.
    fn pass(&mut self) {
        if let Some(since) = &mut self.since {
            let now = Instant::now();
            self.busy += now - *since;
            *since = now;
        }
    }

    /// Bytes that arrived since the last call, and the milliseconds for which something was under way; `None`: too few.
    pub(crate) fn take_sent(&mut self) -> Option<(u64, u32)> {
        if self.bytes < TOLD_BYTES_MIN {
            return None;
        }
        self.pass();
        // More than a month in which too little arrived to be told: it is slow, however much more that was.
        let ms = narrow(self.busy.as_millis().clamp(1, u32::MAX.into()));
        self.busy = Duration::ZERO;
        Some((std::mem::take(&mut self.bytes), ms))
    }

    /// What was taken could not be told.
    pub(crate) fn take_back(&mut self, bytes: u64, ms: u32) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.busy += Duration::from_millis(ms.into());
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn slow_is_against_what_is_usual_and_never_a_moment() {
        let mut usual = Usual::default();
        assert_eq!(usual.limit(MIB), None);
        (0..100).for_each(|_| usual.take(MIB, Duration::from_millis(10), true));
        assert_eq!(usual.limit(MIB), Some(SLOW_MIN));
        (0..100).for_each(|_| usual.take(MIB, Duration::from_millis(500), true));
        let limit = usual.limit(MIB).unwrap();
        assert!((3_900..4_100).contains(&limit.as_millis()), "{limit:?}");
        assert_eq!(usual.limit(1), usual.limit(BYTES_MIN));
        // One that was slow once is waited for longer.
        usual.take(MIB, Duration::from_millis(1), false);
        usual.take(MIB, Duration::from_secs(4), false);
        assert!(usual.limit(MIB).unwrap() > Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn bandwidth_is_of_the_time_in_which_something_is_under_way() {
        let mut sending = Sending::default();
        for _ in 0..2 {
            sending.begin(MIB);
        }
        sleep(Duration::from_millis(100)).await;
        sending.end(MIB, Duration::from_millis(100), true);
        assert_eq!(sending.take_sent(), Some((1 << 20, 100)));
        sleep(Duration::from_millis(100)).await;
        sending.end(MIB, Duration::from_millis(200), true);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(sending.take_sent(), Some((1 << 20, 100)));
        assert_eq!(sending.take_sent(), None);
        // Small ones, and those that weren't taken, carry nothing, and their time doesn't count.
        sending.begin(4096);
        sleep(Duration::from_millis(100)).await;
        sending.end(4096, Duration::from_millis(100), true);
        sending.begin(MIB);
        sleep(Duration::from_secs(2)).await;
        sending.end(MIB, Duration::from_secs(2), false);
        assert_eq!(sending.take_sent(), None);
        sending.begin(MIB);
        sending.begin(MIB);
        sleep(Duration::from_millis(100)).await;
        sending.end(MIB, Duration::from_millis(100), true);
        sending.begin(4096);
        sleep(Duration::from_secs(10)).await;
        sending.end(MIB, Duration::from_secs(10), false);
        sending.end(4096, Duration::from_secs(10), true);
        assert_eq!(sending.take_sent(), Some((1 << 20, 100)));
        // What the manager missed is told the next time.
        sending.take_back(1 << 20, 100);
        assert_eq!(sending.take_sent(), Some((1 << 20, 100)));
    }
}
