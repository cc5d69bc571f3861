//! How fast the pool may use an owner's disk and network: two token buckets, bytes a second each.
//!
//! Every request takes its bytes from the future, and begins when all before it are paid for. So a rate holds over any time longer
//! than [`BURST`], whoever asks, in the order in which they ask. Nobody waits here with a lock or with memory for an answer; what carries
//! no bytes, such as heartbeats and syncs, doesn't come by. Clients wait for ten seconds in which nothing moves: whoever would wait longer than
//! [`WAIT_MAX`] is sent elsewhere at once, or asks again, and isn't left to take a slow benefactor for a dead one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::{ErrorCode, Failure};
use tokio::sync::{RwLock, RwLockWriteGuard};
use tokio::time::{Instant, sleep_until};

/// So much of what was not used before may be used at once: a small request needn't wait because the last one was a moment ago.
const BURST: Duration = Duration::from_millis(100);
/// Longest wait of a client for its turn: the disk and the network take some of its ten seconds, too.
const WAIT_MAX: Duration = Duration::from_secs(6);
/// Longest wait of a client that has another way.
const SOON: Duration = Duration::from_millis(100);
/// While clients wait, work in the background has one part of so many of the rate.
const BACKGROUND_PARTS: u32 = 4;
/// The same while it hurries: readers, and others that make what is here anew, have the rest.
const HURRIED_PARTS: u32 = 2;
/// Slowest rate, bytes a second: the blocks that one client asks for at a time come within seconds.
pub const RATE_MIN: u64 = 4 << 20;

/// Bytes of a piece of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Read from the disk, or written there.
    pub disk: u64,
    /// Sent to others, or received.
    pub network: u64,
}

/// The rates that an owner sets.
#[derive(Debug)]
pub struct Caps {
    disk: Rate,
    network: Rate,
    /// Work in the background comes first.
    hurries: AtomicBool,
    /// Held while nothing may begin at the disk.
    quiet: RwLock<()>,
}

/// While it lives, no work begins.
pub(crate) type Quiet<'a> = RwLockWriteGuard<'a, ()>;

#[derive(Debug)]
struct Rate {
    /// 0: any.
    bytes_per_second: u64,
    /// When all are paid for that have had their turn.
    paid: Mutex<Paid>,
}

#[derive(Debug)]
struct Paid {
    all: Instant,
    /// When work in the background is paid for that has had its turn, at its share of the rate.
    background: Instant,
}

impl Rate {
    fn new(bytes_per_second: u64) -> Self {
        let now = Instant::now();
        Self { bytes_per_second, paid: Mutex::new(Paid { all: now, background: now }) }
    }

    /// When so many bytes may go, for one who waits for `limit` at most (`None`: in the background, for as long as it takes): they are paid
    /// for then. However many wait, the background has its share, so that copies are made that others wait for.
    fn turn(&self, bytes: u64, now: Instant, limit: Option<Duration>, parts: u32) -> Option<Instant> {
        if self.bytes_per_second == 0 || bytes == 0 {
            return Some(now);
        }
        let mut paid = self.paid.lock();
        let turn = limit.map_or(paid.all.min(paid.background), |_| paid.all);
        let earliest = now.checked_sub(BURST).unwrap_or(turn);
        let begin = earliest.max(turn);
        if limit.is_some_and(|limit| begin.saturating_duration_since(now) > limit) {
            return None;
        }
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        paid.all = earliest.max(paid.all) + takes;
        if limit.is_none() {
            paid.background = begin + parts * takes;
        }
        Some(begin)
    }
}

impl Caps {
    /// At most so many bytes a second from and to the disk, and from and to others; 0: any.
    #[must_use]
    pub fn new(disk: u64, network: u64) -> Self {
        let (disk, network) = (Rate::new(disk), Rate::new(network));
        Self { disk, network, hurries: AtomicBool::new(false), quiet: RwLock::new(()) }
    }

    /// Whether work in the background has half of the rates, if it needs so much, since there will soon be no time for it.
    pub(crate) fn hurry(&self, hurries: bool) {
        self.hurries.store(hurries, Ordering::Relaxed);
    }

    /// Bytes that work in the background does at a time, of `bytes`: what it takes, clients wait for.
    pub(crate) fn step(&self, bytes: u64) -> u64 {
        match self.disk.bytes_per_second {
            0 => bytes,
            rate => bytes.min(rate / 4),
        }
    }

    /// Waits until a client's work may begin.
    ///
    /// # Errors
    /// `Unavailable`: that would take too long.
    pub(crate) async fn admit(&self, cost: Cost) -> Result<(), Failure> {
        self.admit_within(WAIT_MAX, cost).await
    }

    /// Does so if that is at once, or nearly, for a client that does well without it.
    ///
    /// # Errors
    /// As [`Self::admit`].
    pub(crate) async fn admit_soon(&self, cost: Cost) -> Result<(), Failure> {
        self.admit_within(SOON, cost).await
    }

    async fn admit_within(&self, limit: Duration, cost: Cost) -> Result<(), Failure> {
        let Some(begin) = self.turn(cost, Some(limit)) else {
            let message = "this benefactor's owner lets it work no faster: use another one, or ask again";
            return Err(Failure::new(ErrorCode::Unavailable, message));
        };
        wait_until(begin).await;
        self.wait_for_noise(cost).await;
        Ok(())
    }

    /// Lets nothing begin at the disk from now on that waits here for its turn, until what comes back is dropped.
    pub(crate) async fn hold(&self) -> Quiet<'_> {
        self.quiet.write().await
    }

    async fn wait_for_noise(&self, cost: Cost) {
        if cost.disk > 0 {
            drop(self.quiet.read().await);
        }
    }

    /// Waits until work may begin, or go on, that can wait for as long as it takes.
    pub(crate) async fn pay(&self, cost: Cost) {
        if let Some(begin) = self.turn(cost, None) {
            wait_until(begin).await;
        }
        self.wait_for_noise(cost).await;
    }

    /// Does so on a thread that may wait.
    pub(crate) fn pay_on_thread(&self, cost: Cost) {
        if let Some(begin) = self.turn(cost, None) {
            std::thread::sleep(begin.saturating_duration_since(Instant::now()));
        }
        drop(self.quiet.blocking_read());
    }

    fn turn(&self, Cost { disk, network }: Cost, limit: Option<Duration>) -> Option<Instant> {
        let now = Instant::now();
        // What the disk is paid for in vain, it is idle for: the network is asked first, which is slower where both are set.
        let parts = if self.hurries.load(Ordering::Relaxed) { HURRIED_PARTS } else { BACKGROUND_PARTS };
        let network = self.network.turn(network, now, limit, parts)?;
        self.disk.turn(disk, now, limit, parts).map(|disk| disk.max(network))
    }
}

/// Most requests needn't wait, and cost no timer.
async fn wait_until(begin: Instant) {
    if begin > Instant::now() {
        sleep_until(begin).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::JoinSet;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn disk(disk: u64) -> Cost {
        Cost { disk, network: 0 }
    }

    #[tokio::test(start_paused = true)]
    async fn while_the_disk_is_to_be_quiet_nothing_begins_there() {
        let caps = Arc::new(Caps::new(0, 0));
        let quiet = caps.hold().await;
        caps.admit(Cost { disk: 0, network: 1 }).await.unwrap();
        let waits = Arc::clone(&caps);
        let waiting = tokio::spawn(async move { waits.admit(disk(1)).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!waiting.is_finished());
        drop(quiet);
        waiting.await.unwrap().unwrap();
        caps.pay(disk(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_holds_for_all_who_ask_and_who_would_wait_long_is_refused() {
        let caps = Arc::new(Caps::new(10 * MIB, 0));
        let (begin, mut done) = (Instant::now(), 0);
        while begin.elapsed() < Duration::from_secs(10) {
            caps.admit(disk(MIB)).await.unwrap();
            done += 1;
        }
        assert!((98..=103).contains(&done), "{done} MiB in ten seconds");
        let mut all = JoinSet::new();
        for _ in 0..100 {
            let caps = Arc::clone(&caps);
            all.spawn(async move { caps.admit(disk(MIB)).await });
        }
        let refused = all.join_all().await.iter().filter(|answer| answer.is_err()).count();
        assert!((35..=45).contains(&refused), "{refused} of 100 are refused");
        // What can wait is never refused.
        let begin = Instant::now();
        caps.pay(disk(500 * MIB)).await;
        caps.pay(disk(0)).await;
        assert!(begin.elapsed() < Duration::from_secs(1), "who asks for nothing waits for nobody");
        caps.pay(disk(1)).await;
        assert!(begin.elapsed() >= Duration::from_secs(49), "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn work_in_the_background_goes_on_however_many_clients_wait_and_the_rate_holds() {
        let caps = Arc::new(Caps::new(8 * MIB, 0));
        let clients = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let mut all = JoinSet::new();
        for _ in 0..200 {
            let (caps, clients) = (Arc::clone(&caps), Arc::clone(&clients));
            all.spawn(async move {
                loop {
                    match caps.admit(disk(MIB)).await {
                        Ok(()) => drop(clients.fetch_add(1, std::sync::atomic::Ordering::Relaxed)),
                        Err(_) => tokio::time::sleep(Duration::from_millis(300)).await,
                    }
                }
            });
        }
        let (begin, mut copied) = (Instant::now(), 0);
        while begin.elapsed() < Duration::from_secs(60) {
            caps.pay(disk(MIB)).await;
            copied += 1;
        }
        let served = clients.load(std::sync::atomic::Ordering::Relaxed);
        assert!((110..=140).contains(&copied), "{copied} MiB of 480 in the background");
        assert!(served + copied <= (60 + 7) * 8 && served >= 300, "{served} MiB for clients");
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_hurries_has_half_of_the_rate_and_the_rate_holds() {
        let caps = Arc::new(Caps::new(8 * MIB, 0));
        caps.hurry(true);
        for _ in 0..50 {
            let caps = Arc::clone(&caps);
            tokio::spawn(async move {
                loop {
                    if caps.admit(disk(MIB)).await.is_err() {
                        tokio::time::sleep(Duration::from_millis(300)).await;
                    }
                }
            });
        }
        let begin = Instant::now();
        for _ in 0..160 {
            caps.pay(disk(MIB)).await;
        }
        let taken = begin.elapsed();
        assert!((38..=44).contains(&taken.as_secs()), "{taken:?} for 160 MiB");
        caps.hurry(false);
        let begin = Instant::now();
        for _ in 0..40 {
            caps.pay(disk(MIB)).await;
        }
        assert!(begin.elapsed() >= Duration::from_secs(18), "{:?} for 40 MiB", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn the_slower_of_both_rates_holds_and_none_is_no_limit() {
        let cost = Cost { disk: MIB, network: MIB };
        for (caps, seconds) in [((0, 0), 0), ((8, 0), 2), ((0, 8), 2), ((16, 8), 2), ((8, 16), 2)] {
            let caps = Caps::new(caps.0 * MIB, caps.1 * MIB);
            let begin = Instant::now();
            for _ in 0..=16 {
                caps.pay(cost).await;
            }
            let taken = begin.elapsed() + BURST;
            assert!(taken >= Duration::from_secs(seconds), "{caps:?}: {taken:?}");
            assert!(taken <= Duration::from_secs(seconds) + 2 * BURST, "{caps:?}: {taken:?}");
        }
    }
}
