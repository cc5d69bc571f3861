//! What sending blocks to benefactors takes: what is usual, so that what is slow can be told from it, and the bandwidth that is reached.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use stdchk_model::BenefactorId;
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

/// What puts usually take, from when they begin to go out until they are answered, at whichever benefactor.
///
/// A link of this client that is narrow is shared by all to which something goes out: with how many there are, what is usual changes.
/// Where benefactors are what is slow, it doesn't. Both count, and whichever is more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usual {
    /// Seconds for each byte, and those if there were one benefactor, the newest puts weighing most; `None`: there was none yet.
    per_byte: Option<(f64, f64)>,
    /// To whom something is put, and how many blocks.
    under_way: HashMap<BenefactorId, usize>,
}

impl Usual {
    /// A put begins; into how many parts this client's link is divided with it.
    pub(crate) fn begin(&mut self, to: BenefactorId) -> usize {
        *self.under_way.entry(to).or_default() += 1;
        self.shares()
    }

    /// A put has ended that began when the link was divided into so many parts; `took`: since when it went out, if the block was taken.
    pub(crate) fn end(&mut self, to: BenefactorId, (bytes, shares): (usize, usize), took: Option<Duration>) {
        if let Some(took) = took {
            let newest = took.as_secs_f64() / bytes.max(BYTES_MIN) as f64;
            let (usual, alone) = self.per_byte.unwrap_or((newest, newest / shares as f64));
            let with = |usual: f64, newest: f64| usual + (newest - usual) * NEWEST;
            self.per_byte = Some((with(usual, newest), with(alone, newest / shares as f64)));
        }
        if let Entry::Occupied(mut count) = self.under_way.entry(to) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// How long a put may take before it is slow, if that is known.
    pub(crate) fn limit(&self, bytes: usize) -> Option<Duration> {
        let (usual, alone) = self.per_byte?;
        let seconds = usual.max(alone * self.shares() as f64) * bytes.max(BYTES_MIN) as f64 * SLOW_TIMES;
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).max(SLOW_MIN))
    }

    fn shares(&self) -> usize {
        self.under_way.len().max(1)
    }
}

/// Puts to one benefactor.
#[derive(Debug, Default)]
pub(crate) struct Sending {
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

    /// A put has ended, and the block was taken or not.
    pub(crate) fn end(&mut self, bytes: usize, taken: bool) {
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
        let put = |usual: &mut Usual, bytes, took| {
            let shares = usual.begin(BenefactorId(1));
            usual.end(BenefactorId(1), (bytes, shares), took);
        };
        assert_eq!(usual.limit(MIB), None);
        put(&mut usual, MIB, None);
        assert_eq!(usual.limit(MIB), None, "what wasn't taken says nothing");
        (0..100).for_each(|_| put(&mut usual, MIB, Some(Duration::from_millis(10))));
        assert_eq!(usual.limit(MIB), Some(SLOW_MIN));
        (0..100).for_each(|_| put(&mut usual, MIB, Some(Duration::from_millis(500))));
        let limit = usual.limit(MIB).unwrap();
        assert!((3_900..4_100).contains(&limit.as_millis()), "{limit:?}");
        assert_eq!(usual.limit(1), usual.limit(BYTES_MIN));
    }

    #[test]
    fn what_is_usual_takes_as_much_longer_as_there_are_more_who_share_the_link() {
        let mut usual = Usual::default();
        let shares = usual.begin(BenefactorId(0));
        usual.end(BenefactorId(0), (MIB, shares), Some(Duration::from_millis(500)));
        for turn in 0..2 {
            for id in 0..10 {
                let shares = usual.begin(BenefactorId(id));
                assert_eq!(shares, if turn == 0 { id as usize + 1 } else { 10 });
            }
        }
        assert_eq!(usual.limit(MIB), Some(Duration::from_secs(40)));
        // Then each takes ten times as long, and that is nothing new.
        for id in 0..10 {
            usual.end(BenefactorId(id), (MIB, 10), Some(Duration::from_secs(5)));
        }
        let limit = usual.limit(MIB).unwrap().as_secs_f64();
        assert!((39.9..40.1).contains(&limit), "{limit}");
        for id in 0..10 {
            usual.end(BenefactorId(id), (MIB, 10), None);
        }
        // One who is alone then may still be as slow as it was.
        let limit = usual.limit(MIB).unwrap().as_secs_f64();
        assert!(usual.under_way.is_empty() && (25.0..40.0).contains(&limit), "{limit}");
    }

    #[tokio::test(start_paused = true)]
    async fn bandwidth_is_of_the_time_in_which_something_is_under_way() {
        let mut sending = Sending::default();
        for _ in 0..2 {
            sending.begin(MIB);
        }
        sleep(Duration::from_millis(100)).await;
        sending.end(MIB, true);
        assert_eq!(sending.take_sent(), Some((1 << 20, 100)));
        sleep(Duration::from_millis(100)).await;
        sending.end(MIB, true);
        sleep(Duration::from_secs(10)).await;
        assert_eq!(sending.take_sent(), Some((1 << 20, 100)));
        assert_eq!(sending.take_sent(), None);
        // Small ones, and those that weren't taken, carry nothing, and their time doesn't count.
        sending.begin(4096);
        sleep(Duration::from_millis(100)).await;
        sending.end(4096, true);
        sending.begin(MIB);
        sleep(Duration::from_secs(2)).await;
        sending.end(MIB, false);
        assert_eq!(sending.take_sent(), None);
        sending.begin(MIB);
        sending.begin(MIB);
        sleep(Duration::from_millis(100)).await;
        sending.end(MIB, true);
        sending.begin(4096);
        sleep(Duration::from_secs(10)).await;
        sending.end(MIB, false);
        sending.end(4096, true);
        assert_eq!(sending.take_sent(), Some((1 << 20, 100)));
        // What the manager missed is told the next time.
        sending.take_back(1 << 20, 100);
        assert_eq!(sending.take_sent(), Some((1 << 20, 100)));
    }
}
