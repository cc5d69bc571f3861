//! How much others keep a disk busy, from what the kernel counts of the disk and the store of its own work.
//!
//! The kernel doesn't say whose requests are in flight. But while the store has none, all are those of others. So the load is the share
//! of that time, within the last seconds, in which the disk was busy. What the store does itself is never part of it; a store that always does something
//! sees nothing, and has to be quiet for a moment ([`Meter::is_blind`]).

use std::collections::VecDeque;
use std::time::Duration;

use super::device::Counters;

/// Time over which loads are averaged: a burst of a second is no reason to send clients away.
pub const WINDOW: Duration = Duration::from_secs(4);
/// Nothing is said before so much of it has been seen.
const SEEN_MIN: Duration = Duration::from_secs(2);
/// Time within it for which the store must have had nothing in flight, or it says nothing of others: less than that
/// may be a moment between two of their requests, or one of them.
const QUIET_MIN: Duration = Duration::from_millis(500);
/// So large a part of the bytes or requests must be those of others that it is worth being quiet to see what they do.
const NOTABLE: f64 = 0.1;
/// Bytes of a request at most, as the kernel splits what the store reads and writes: the least of usual disks.
const REQUEST_BYTES: u64 = 128 << 10;
/// Share of time in which programs wait for disks from which on somebody waits.
const STALLED_MIN: f64 = 0.05;

/// What was counted until one moment.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Reading {
    /// The moment, on a clock that never jumps.
    pub at: Duration,
    /// What the kernel says of the disk.
    pub disk: Counters,
    /// Time in which the store had at least one read, write or sync under way.
    pub own: Duration,
    /// What the store has read and written, bytes.
    pub own_bytes: u64,
    /// Its reads, writes and syncs.
    pub own_requests: u64,
    /// For how long some program of the machine has waited for a disk, if the kernel counts that.
    pub stalled: Option<Duration>,
}

/// Readings of the last seconds, oldest first.
#[derive(Debug, Default)]
pub struct Meter {
    readings: VecDeque<Reading>,
}

impl Meter {
    /// Takes in a reading, later than those before.
    pub fn take(&mut self, reading: Reading) {
        self.readings.push_back(reading);
        // The first one lies at the beginning of the window or before it.
        while self.readings.get(1).is_some_and(|second| reading.at.saturating_sub(second.at) >= WINDOW) {
            self.readings.pop_front();
        }
    }

    fn ends(&self) -> Option<(&Reading, &Reading)> {
        self.readings.front().zip(self.readings.back())
    }

    fn passed(&self) -> Duration {
        self.ends().map_or(Duration::ZERO, |(first, last)| last.at.saturating_sub(first.at))
    }

    /// How long the store had nothing in flight, and for how much of that the disk was busy.
    fn quiet(&self) -> (Duration, Duration) {
        let Some((first, last)) = self.ends() else { return Default::default() };
        let passed = self.passed();
        let own = last.own.saturating_sub(first.own).min(passed);
        (passed - own, self.busy().saturating_sub(own))
    }

    /// For how long the disk was busy.
    fn busy(&self) -> Duration {
        let Some((first, last)) = self.ends() else { return Duration::ZERO };
        let ticked = last.disk.ticked.saturating_sub(first.disk.ticked);
        // A disk that serves short requests is busy for as long as these take, and not for whole ticks.
        ticked.min(last.disk.waited.saturating_sub(first.disk.waited)).min(self.passed())
    }

    /// The share of time for which others keep the disk busy, from 0 to 1; `None`: it can't be told.
    pub fn load(&self) -> Option<f64> {
        if self.passed() < SEEN_MIN {
            return None;
        }
        let (quiet, busy) = self.quiet();
        match quiet >= QUIET_MIN {
            true => Some((busy.as_secs_f64() / quiet.as_secs_f64()).min(1.0)),
            // All that happens at the disk is the store's own.
            false => (self.passed() >= WINDOW && !self.others_are_notable()).then_some(0.0),
        }
    }

    /// Whether the store was busy all the time, and others do something as well.
    pub fn is_blind(&self) -> bool {
        self.passed() >= WINDOW && self.quiet().0 < QUIET_MIN && self.others_are_notable()
    }

    /// The share of time for which the disk was busy with whosever work.
    pub fn busy_share(&self) -> f64 {
        let passed = self.passed().as_secs_f64();
        if passed > 0.0 { self.busy().as_secs_f64() / passed } else { 0.0 }
    }

    fn others_are_notable(&self) -> bool {
        let Some((first, last)) = self.ends() else { return false };
        let own_bytes = last.own_bytes.saturating_sub(first.own_bytes);
        let own_requests =
            last.own_requests.saturating_sub(first.own_requests).saturating_add(own_bytes / REQUEST_BYTES);
        let bytes = last.disk.bytes.saturating_sub(first.disk.bytes);
        let requests = last.disk.requests.saturating_sub(first.disk.requests);
        let notable = |all: u64, own: u64| all.saturating_sub(own) as f64 > all as f64 * NOTABLE;
        notable(bytes, own_bytes) || notable(requests, own_requests)
    }

    /// Whether some program of the machine waits for a disk now and then; so it is where the kernel doesn't count that.
    pub fn somebody_waits(&self) -> bool {
        let waited = self.ends().and_then(|(first, last)| Some(last.stalled?.saturating_sub(first.stalled?)));
        waited.is_none_or(|waited| waited.as_secs_f64() >= self.passed().as_secs_f64() * STALLED_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Duration = Duration::from_millis(500);

    /// Lets half a second pass: for which shares of it the disk was busy, and the store.
    fn pass(meter: &mut Meter, reading: &mut Reading, busy: f64, own: f64) {
        reading.at += HALF;
        reading.disk.ticked += HALF.mul_f64(busy);
        reading.disk.waited += HALF.mul_f64(busy * 3.0);
        reading.own += HALF.mul_f64(own);
        meter.take(*reading);
    }

    fn after(halves: &[(f64, f64)]) -> Meter {
        let (mut meter, mut reading) = (Meter::default(), Reading::default());
        meter.take(reading);
        halves.iter().for_each(|(busy, own)| pass(&mut meter, &mut reading, *busy, *own));
        meter
    }

    fn close(load: Option<f64>, to: f64) {
        assert!(load.is_some_and(|load| (load - to).abs() < 1e-6), "{load:?}, not {to}");
    }

    #[test]
    fn own_work_is_no_load_and_that_of_others_is_seen_beside_it() {
        close(after(&[(0.0, 0.0); 8]).load(), 0.0);
        close(after(&[(0.9, 0.9); 8]).load(), 0.0);
        // What the store waits for beside the disk makes nothing negative.
        close(after(&[(0.5, 0.9); 8]).load(), 0.0);
        close(after(&[(1.0, 0.0); 8]).load(), 1.0);
        close(after(&[(1.0, 0.6); 8]).load(), 1.0);
        // Others at a third of all time, whatever the store does.
        close(after(&[(1.0 / 3.0, 0.0); 8]).load(), 1.0 / 3.0);
        close(after(&[(0.6 + 0.4 / 3.0, 0.6); 8]).load(), 1.0 / 3.0);
    }

    #[test]
    fn only_the_last_seconds_count() {
        let mut halves = vec![(1.0, 0.0); 20];
        halves.extend([(0.0, 0.0); 4]);
        close(after(&halves).load(), 0.5);
        halves.extend([(0.0, 0.0); 4]);
        close(after(&halves).load(), 0.0);
        assert!(after(&halves).readings.len() <= 10);
    }

    #[test]
    fn short_requests_keep_a_disk_busy_for_as_long_as_they_take() {
        let mut meter = Meter::default();
        meter.take(Reading::default());
        // Each of 1000 reads takes a tenth of a millisecond, and a tick of four.
        let disk = Counters {
            ticked: Duration::from_secs(4),
            waited: Duration::from_millis(100),
            ..Counters::default()
        };
        meter.take(Reading { at: Duration::from_secs(4), disk, ..Reading::default() });
        close(meter.load(), 0.025);
    }

    #[test]
    fn a_store_that_is_busy_all_the_time_is_blind_only_if_others_do_something() {
        let of = |bytes, own_bytes, requests, own_requests| {
            let (mut meter, mut last) = (Meter::default(), Reading::default());
            meter.take(last);
            pass(&mut meter, &mut last, 1.0, 1.0);
            last.at = Duration::from_secs(4);
            last.own = last.at;
            (last.disk.bytes, last.own_bytes) = (bytes, own_bytes);
            (last.disk.requests, last.own_requests) = (requests, own_requests);
            meter.take(last);
            assert_eq!(meter.load(), (!meter.is_blind()).then_some(0.0));
            meter.is_blind()
        };
        assert!(!of(1 << 30, 1 << 30, 1024, 1024));
        assert!(!of(1 << 30, 1 << 30, 8192, 1024), "as the kernel splits them");
        assert!(of(2 << 30, 1 << 30, 2048, 1024));
        assert!(of(1 << 30, 1 << 30, 20_000, 1024), "many small ones");
        // One that is quiet for half a second sees.
        let mut quiet = vec![(1.0, 1.0); 7];
        quiet.push((1.0, 0.0));
        assert!(!after(&quiet).is_blind());
        close(after(&quiet).load(), 1.0);
        // Less is no ground for a load.
        quiet.pop();
        quiet.push((1.0, 0.5));
        assert!(after(&quiet).load().is_none_or(|load| load == 0.0));
        close(Some(after(&quiet).busy_share()), 1.0);
        close(Some(Meter::default().busy_share()), 0.0);
    }

    #[test]
    fn nobody_waits_only_where_the_kernel_says_so() {
        let of = |stalled: [Option<u64>; 2]| {
            let mut meter = Meter::default();
            for (second, stalled) in (0..).zip(stalled) {
                let stalled = stalled.map(Duration::from_millis);
                meter.take(Reading { at: Duration::from_secs(second), stalled, ..Reading::default() });
            }
            meter.somebody_waits()
        };
        assert!(of([None, None]) && of([Some(5), None]) && of([Some(100), Some(151)]));
        assert!(!of([Some(100), Some(149)]));
        assert!(Meter::default().somebody_waits());
    }
}
