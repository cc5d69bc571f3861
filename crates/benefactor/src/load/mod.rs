//! The states of a storage host (FALCON, section 3.1): how busy its owner keeps the disk, and how many clients send to it.
//!
//! Relies on [`device`] for what the kernel counts, and on [`meter`] to tell others' work from the store's own: what the pool itself reads and
//! writes never makes a benefactor refuse. Every half second the load of the last four is looked at. A state is left only where the load
//! has fallen some way below the threshold by which it was entered, so that none begins and ends again and again.
//!
//! | load, clients | state | new blocks of clients | anything else |
//! |---|---|---|---|
//! | below τ1, fewer than the most | S0, `running` | taken | served |
//! | below τ2, as many as the most | S0', `full` | of those that send already | served |
//! | from τ1 on | S1, `loaded` | taken | served |
//! | from τ2 on | S2, `refusing` | refused at once | served |
//! | it can't be measured | as if there were no load | | |
//!
//! Two things are taken whatever the state: what a client puts that finds nobody else, and copies that the manager orders. It knows the
//! states and orders none there unless it has to.

mod device;
mod meter;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::message::benefactor::StorageState;
use stdchk_model::{ErrorCode, Failure, exact};
use tokio::time::{Instant, sleep};

use self::device::{Device, stalled};
use self::meter::{Meter, Reading, WINDOW};
use crate::pace::Quiet;
use crate::service::{Benefactor, blocking};

/// Pause between two looks at the disk.
const LOOK: Duration = Duration::from_millis(500);
/// Pause before one that failed is made again.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How far the load falls below a threshold before the state ends that began there; half of a threshold at most.
const MARGIN: f64 = 0.1;
/// A client sends for so long after its last block: the next one of a file comes sooner.
const SENDS_FOR: Duration = Duration::from_secs(5);
/// How long the store is quiet where it would else see nothing of what others do.
const QUIET: Duration = Duration::from_millis(550);
/// Longest time until what it has under way has ended.
const QUIET_AFTER_MAX: Duration = Duration::from_secs(1);
/// Time between two looks at whether it has.
const QUIET_LOOK: Duration = Duration::from_millis(5);
/// Usual τ1, percent: half of τ2.
const LOADED_FROM_PERCENT: u8 = 40;
/// Usual τ2, percent (FALCON, section 6.1).
const REFUSING_FROM_PERCENT: u8 = 80;
/// Usual MAX-CLIENTS. Each may have some blocks under way, which share the memory of a benefactor.
const CLIENTS_MAX: u32 = 128;

/// Where the states begin (FALCON, section 3.1).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Thresholds {
    /// τ1, share of the disk's time from 0 to 1.
    pub loaded_from: f64,
    /// τ2. FALCON has 0.8. `None`: no load is a reason to refuse; 0: none is needed.
    pub refusing_from: Option<f64>,
    /// MAX-CLIENTS: so many send at a time; `None`: any number.
    pub clients_max: Option<u32>,
}

impl Default for Thresholds {
    fn default() -> Self {
        let share = |percent: u8| f64::from(percent) / 100.0;
        Self {
            loaded_from: share(LOADED_FROM_PERCENT),
            refusing_from: Some(share(REFUSING_FROM_PERCENT)),
            clients_max: Some(CLIENTS_MAX),
        }
    }
}

/// How much the owner's work keeps the disk busy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Level {
    #[default]
    Free,
    Loaded,
    Refusing,
}

impl Thresholds {
    /// The level at a load that was at another one before.
    fn level(&self, before: Level, load: f64) -> Level {
        let reaches = |level: Level, from: f64| {
            let margin = if before >= level { MARGIN.min(from / 2.0) } else { 0.0 };
            load >= from - margin
        };
        if self.refusing_from.is_some_and(|from| reaches(Level::Refusing, from)) {
            Level::Refusing
        } else if reaches(Level::Loaded, self.loaded_from) {
            Level::Loaded
        } else {
            Level::Free
        }
    }
}

/// How busy a benefactor is.
#[derive(Debug)]
pub struct Busyness {
    thresholds: Thresholds,
    seen: Mutex<Seen>,
    /// Connections of clients, and when each has sent a block last.
    senders: Mutex<HashMap<u64, Instant>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    level: Level,
    /// `None`: it can't be measured.
    load: Option<f64>,
}

impl Busyness {
    /// Nothing is measured yet.
    #[must_use]
    pub fn new(thresholds: Thresholds) -> Self {
        let seen = Seen { level: thresholds.level(Level::Free, 0.0), load: None };
        Self { thresholds, seen: Mutex::new(seen), senders: Mutex::default() }
    }

    /// The state, the load by others in percent if it is measured, and how many clients send.
    pub fn told(&self) -> (StorageState, Option<u8>, u32) {
        let seen = *self.seen.lock();
        let clients = self.clients();
        let is_full = self.thresholds.clients_max.is_some_and(|most| clients >= most);
        let state = match seen.level {
            Level::Refusing => StorageState::Refusing,
            _ if is_full => StorageState::Full,
            Level::Loaded => StorageState::Loaded,
            Level::Free => StorageState::Running,
        };
        let percent =
            |load: f64| exact::narrow(Duration::from_secs_f64(load.clamp(0.0, 1.0) * 100.0).as_secs());
        (state, seen.load.map(percent), clients)
    }

    fn clients(&self) -> u32 {
        let mut senders = self.senders.lock();
        senders.retain(|_, last| last.elapsed() < SENDS_FOR);
        exact::narrow(senders.len())
    }

    /// A connection has ended: who had it sends no more.
    pub fn ended(&self, connection: u64) {
        self.senders.lock().remove(&connection);
    }

    /// Whether a client with this connection may put a block now.
    ///
    /// # Errors
    /// `Busy`, unless it `insists`.
    pub fn admit(&self, connection: u64, insists: bool) -> Result<(), Failure> {
        let busy = |why| Err(Failure::new(ErrorCode::Busy, format!("{why}: use another one")));
        if !insists && self.seen.lock().level == Level::Refusing {
            return busy("this benefactor's disk is busy with its owner's work");
        }
        let mut senders = self.senders.lock();
        let now = Instant::now();
        if let Some(last) = senders.get_mut(&connection).filter(|last| last.elapsed() < SENDS_FOR) {
            *last = now;
            return Ok(());
        }
        if let Some(most) = self.thresholds.clients_max.filter(|_| !insists)
            && senders.len() >= exact::to_usize(most.into())
        {
            senders.retain(|_, last| last.elapsed() < SENDS_FOR);
            if senders.len() >= exact::to_usize(most.into()) {
                drop(senders);
                return busy("as many clients send to this benefactor as may");
            }
        }
        senders.insert(connection, now);
        Ok(())
    }

    /// Whether something may be put that nobody needs. Whoever does isn't one of the clients that send.
    ///
    /// # Errors
    /// `Busy`.
    pub fn admit_spare(&self) -> Result<(), Failure> {
        match self.told().0 {
            StorageState::Running | StorageState::Loaded => Ok(()),
            StorageState::Refusing | StorageState::Full => {
                Err(Failure::new(ErrorCode::Busy, "this benefactor has enough to do"))
            }
        }
    }

    /// The owner's load is this share of the disk's time, or can't be measured; `waits`: some program waits for it now and then. Whether
    /// new blocks are taken now and were not before, or the other way round.
    pub fn measured(&self, load: Option<f64>, waits: bool) -> bool {
        let mut seen = self.seen.lock();
        let before = seen.level;
        // One that can't be measured is none.
        let at_none = self.thresholds.level(Level::Free, 0.0);
        let level = match load.map_or(at_none, |load| self.thresholds.level(before, load)) {
            // A disk on which nobody waits is a reason to prefer others, and none to refuse.
            Level::Refusing if !waits && at_none != Level::Refusing => Level::Loaded,
            level => level,
        };
        *seen = Seen { level, load };
        drop(seen);
        if level != before {
            tracing::info!(?level, ?load, "the owner's work on the disk");
        }
        (level == Level::Refusing) != (before == Level::Refusing)
    }

    /// Whether what can wait should, for the owner's sake.
    pub fn gives_way(&self) -> bool {
        self.seen.lock().level == Level::Refusing
    }
}

/// Measures the load of the disk under a folder, for as long as there is one.
pub(crate) async fn watch(benefactor: Arc<Benefactor>, folder: Arc<Path>) {
    let place = Arc::clone(&folder);
    let found = blocking(move || Device::under(&place)).await;
    let Ok(Ok(Some(device))) = found else {
        let path = folder.display();
        tracing::info!(%path, ?found, "the kernel counts no disk of its own here: it is never taken for loaded");
        return;
    };
    let (began, mut meter, mut is_told) = (Instant::now(), Meter::default(), false);
    let (mut quiet_at, mut was_in_vain) = (None::<Instant>, false);
    loop {
        let is_seen = benefactor.store().own_work().is_seen();
        // Whoever waits for the disk meanwhile doesn't again before what was seen is forgotten.
        let tries = is_seen && meter.is_blind() && quiet_at.is_none_or(|at| at.elapsed() >= WINDOW);
        let quiet = match tries {
            true => {
                let quiet = be_quiet(&benefactor).await;
                quiet_at = Some(Instant::now());
                quiet
            }
            false => None,
        };
        // All at one moment: what is counted between two of them would be the work of the others.
        let store = Arc::clone(benefactor.store());
        let read = blocking(move || {
            let (disk, done) = (device.counters(), store.own_work().done());
            (disk, done, began.elapsed(), stalled())
        });
        let read = read.await;
        drop(quiet);
        let Ok((Ok(Some(disk)), done, at, stalled)) = read else {
            // The disk is gone, or there were too many open files: the next look may tell more.
            tracing::debug!(?read, "the load of the disk can't be read");
            meter = Meter::default();
            benefactor.measured(None, false);
            sleep(LOOK_AGAIN).await;
            continue;
        };
        let (own, own_bytes, own_requests) = (done.busy, done.bytes, done.requests);
        meter.take(Reading { at, disk, own, own_bytes, own_requests, stalled });
        was_in_vain = if tries { meter.is_blind() } else { was_in_vain };
        if !is_seen && !std::mem::replace(&mut is_told, true) {
            let path = folder.display();
            tracing::info!(%path, "the file system takes no direct writes: its disk is never taken for loaded");
        }
        // Where being quiet didn't help, a disk that others use as well is taken for theirs.
        let load = match meter.load() {
            None if was_in_vain && meter.is_blind() => Some(meter.busy_share()),
            load => load,
        };
        match load {
            // What the file system writes later can't be told from what others do.
            _ if !is_seen => benefactor.measured(None, false),
            // Where nothing could be seen, what was seen before holds.
            None => {}
            load => benefactor.measured(load, meter.somebody_waits()),
        }
        sleep(LOOK).await;
    }
}

/// Lets nothing begin at the disk until what comes back is dropped, and waits until it could be seen for a moment what others do there.
/// `None`: what is under way takes too long.
async fn be_quiet(benefactor: &Benefactor) -> Option<Quiet<'_>> {
    let quiet = benefactor.caps().hold().await;
    let waits = Instant::now();
    while !benefactor.store().own_work().is_idle() {
        if waits.elapsed() >= QUIET_AFTER_MAX {
            return None;
        }
        sleep(QUIET_LOOK).await;
    }
    sleep(QUIET).await;
    Some(quiet)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busyness(clients_max: u32) -> Busyness {
        Busyness::new(Thresholds { clients_max: Some(clients_max), ..Thresholds::default() })
    }

    fn state(busyness: &Busyness) -> StorageState {
        busyness.told().0
    }

    #[test]
    fn a_state_ends_only_well_below_the_load_at_which_it_began() {
        use StorageState::{Loaded, Refusing, Running};
        let busyness = busyness(10);
        let steps = [
            (0.39, Running, false),
            (0.40, Loaded, false),
            (0.31, Loaded, false),
            (0.79, Loaded, false),
            (0.80, Refusing, true),
            (0.71, Refusing, false),
            (0.69, Loaded, true),
            (0.79, Loaded, false),
            (0.29, Running, false),
            (0.39, Running, false),
            (1.00, Refusing, true),
            (0.00, Running, true),
        ];
        for (load, then, turns) in steps {
            assert_eq!((busyness.measured(Some(load), true), state(&busyness)), (turns, then), "at {load}");
        }
    }

    #[test]
    fn low_thresholds_are_left_as_well() {
        use StorageState::{Loaded, Refusing, Running};
        for percent in [1, 10, 20] {
            let from = f64::from(percent) / 100.0;
            let busyness = Busyness::new(Thresholds { refusing_from: Some(from), ..Thresholds::default() });
            busyness.measured(Some(from), true);
            assert_eq!(state(&busyness), Refusing, "{percent} %");
            busyness.measured(Some(from * 0.75), true);
            assert_eq!(state(&busyness), Refusing, "{percent} %");
            busyness.measured(Some(from * 0.4), true);
            assert_eq!(state(&busyness), Running, "{percent} %");
            let busyness = Busyness::new(Thresholds { loaded_from: from, ..Thresholds::default() });
            busyness.measured(Some(from), true);
            assert_eq!(state(&busyness), Loaded, "{percent} %");
            busyness.measured(Some(0.0), true);
            assert_eq!(state(&busyness), Running, "{percent} %");
        }
    }

    #[test]
    fn one_that_needs_no_load_to_refuse_always_does() {
        let busyness = Busyness::new(Thresholds { refusing_from: Some(0.0), ..Thresholds::default() });
        for load in [None, Some(0.0), Some(1.0)] {
            assert_eq!(state(&busyness), StorageState::Refusing);
            assert!(!busyness.measured(load, false));
        }
        assert_eq!(state(&busyness), StorageState::Refusing);
    }

    #[test]
    fn a_load_that_goes_up_and_down_around_a_threshold_is_one_change() {
        let busyness = busyness(10);
        let turns =
            (0..1_000).filter(|step| busyness.measured(Some(0.76 + 0.05 * f64::from(step % 2)), true));
        assert_eq!(turns.count(), 1);
    }

    #[test]
    fn a_busy_disk_on_which_nobody_waits_and_one_that_is_not_measured_are_no_reason_to_refuse() {
        let busyness = busyness(10);
        assert!(!busyness.measured(Some(1.0), false));
        assert_eq!(busyness.told(), (StorageState::Loaded, Some(100), 0));
        assert!(busyness.measured(Some(1.0), true) && busyness.gives_way());
        assert!(busyness.measured(None, false) && !busyness.gives_way());
        assert_eq!(busyness.told(), (StorageState::Running, None, 0));
        let any =
            Busyness::new(Thresholds { refusing_from: None, clients_max: None, ..Thresholds::default() });
        assert!(!any.measured(Some(1.0), true) && state(&any) == StorageState::Loaded);
    }

    #[tokio::test(start_paused = true)]
    async fn as_many_clients_as_may_go_on_and_another_one_waits_until_one_has_ended() {
        let busyness = busyness(2);
        busyness.admit(1, false).unwrap();
        assert_eq!(state(&busyness), StorageState::Running);
        busyness.admit(2, false).unwrap();
        assert_eq!(busyness.told(), (StorageState::Full, None, 2));
        assert_eq!(busyness.admit(3, false).unwrap_err().code, ErrorCode::Busy);
        // One that has gone makes room at once.
        busyness.ended(2);
        busyness.admit(4, false).unwrap();
        busyness.ended(4);
        busyness.admit(2, false).unwrap();
        busyness.admit(3, true).unwrap();
        sleep(SENDS_FOR / 2).await;
        busyness.admit(1, false).unwrap();
        busyness.admit(3, false).unwrap();
        sleep(SENDS_FOR / 2).await;
        assert_eq!(busyness.told().2, 2);
        assert_eq!(busyness.admit(2, false).unwrap_err().code, ErrorCode::Busy);
        sleep(SENDS_FOR / 2).await;
        assert_eq!(busyness.told().2, 0);
        busyness.admit(2, false).unwrap();
        // A busy disk is a reason also for those that send.
        busyness.measured(Some(1.0), true);
        assert_eq!(busyness.admit(2, false).unwrap_err().code, ErrorCode::Busy);
        busyness.admit(2, true).unwrap();
    }
}
