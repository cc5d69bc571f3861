//! How files of a name are written: in large pieces, which are best handed on as they come, or in small ones, which the kernel's
//! page cache has to gather first.
//!
//! Whether a file goes past the page cache must be said when it is created, and nobody knows then how it will be written. But a job
//! writes its checkpoints again and again, under names that differ in numbers. So a file that goes through the page cache
//! shows how the next one of its name shall go: by its size and by how many times its program called `write()` between open
//! and close, which `/proc` counts (proc_pid_io(5)); behind the page cache single calls can't be told apart. A file that went
//! past it shows every call.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use super::{FileSystem, OpenFile};
use crate::proc::text_of;

/// Names that are remembered at most; with more, all are learned anew.
const NAMES_MAX: usize = 4096;
/// A smaller file teaches nothing, bytes: its cost is that of opening it.
const FILE_BYTES_MIN: u64 = 4 << 20;
/// Mean size of a write from which the way past the page cache is the cheaper one, bytes (docs/design/0002).
const LARGE_BYTES_MIN: u64 = 96 << 10;
/// Calls within which nothing counts as small: a header is written before the bulk of a file.
const CALLS_MIN: u64 = 64;

/// How long a count of calls is waited for: it comes at once, or not before the program's close is answered, as in the middle
/// of an `execve()`.
const COUNT_PATIENCE: Duration = Duration::from_millis(50);

/// How files of one name are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Habit {
    Large,
    /// Seen past the page cache, call by call: this is not forgotten for what a count of calls suggests.
    Small,
}

/// How a file was created that is open since.
pub(super) struct Made {
    series: Series,
    /// What its program had called `write()` until then; `None`: unknown, or of no interest.
    calls: Option<u64>,
    pub(super) past_cache: bool,
    /// Of what went past the page cache: calls, and their bytes.
    writes: Mutex<(u64, u64)>,
}

/// A name with its numbers taken out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Series(u64);

impl Series {
    /// The series that a file belongs to: `ckpt.N0.T7` and `ckpt.N12.T8` are of one.
    pub fn of(name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        let mut in_number = false;
        for byte in name.bytes() {
            if !(byte.is_ascii_digit() && in_number) {
                (if byte.is_ascii_digit() { b'0' } else { byte }).hash(&mut hasher);
            }
            in_number = byte.is_ascii_digit();
        }
        Self(hasher.finish())
    }
}

/// What is known of the names that were written here.
#[derive(Default)]
pub(crate) struct Habits {
    known: Mutex<HashMap<Series, Habit>>,
}

impl Habits {
    /// Whether files of this series are written in large pieces, as far as is known.
    pub fn are_large(&self, series: Series) -> bool {
        self.known.lock().get(&series) == Some(&Habit::Large)
    }

    /// A file of `bytes` went through the page cache while its program called `write()` so many times.
    pub fn saw_total(&self, series: Series, bytes: u64, calls: u64) {
        if teaches(bytes) && calls > 0 && bytes / calls >= LARGE_BYTES_MIN {
            self.note(series, |before| before.unwrap_or(Habit::Large));
        }
    }

    /// A file of `bytes` went past the page cache in so many calls.
    pub fn saw_calls(&self, series: Series, bytes: u64, calls: u64) {
        if calls > CALLS_MIN && bytes / calls < LARGE_BYTES_MIN {
            self.note(series, |_| Habit::Small);
        }
    }

    fn note(&self, series: Series, habit: impl FnOnce(Option<Habit>) -> Habit) {
        let mut known = self.known.lock();
        if known.len() >= NAMES_MAX && !known.contains_key(&series) {
            known.clear();
        }
        let habit = habit(known.get(&series).copied());
        known.insert(series, habit);
    }
}

/// Whether a file of this size says anything of how its series is written.
pub(crate) fn teaches(bytes: u64) -> bool {
    bytes >= FILE_BYTES_MIN
}

/// How many times the process of a task has called `write()` and its like; nothing if that can't be seen.
pub(crate) fn write_calls(task: u32) -> Option<u64> {
    let counts = text_of(task, "io")?;
    counts.lines().find_map(|line| line.strip_prefix("syscw: "))?.trim().parse().ok()
}

impl FileSystem {
    /// How the bytes of a file go that is about to be created for a task of the kernel, if this can be chosen.
    pub(super) fn choose(&self, name: &str, caller: u32) -> Option<Made> {
        if !self.goes_past_cache.load(Ordering::Relaxed) {
            return None;
        }
        let series = Series::of(name);
        let past_cache = self.habits.are_large(series);
        let calls = if past_cache { None } else { write_calls(caller) };
        Some(Made { series, calls, past_cache, writes: Mutex::default() })
    }
}

impl OpenFile {
    /// A program's write of so many bytes is done.
    pub fn took(&self, bytes: usize) {
        if let Some(made) = self.made.get().filter(|made| made.past_cache) {
            let mut writes = made.writes.lock();
            *writes = (writes.0 + 1, writes.1 + bytes as u64);
        }
    }

    /// A task has closed a descriptor: learns how it wrote what went through the page cache.
    pub async fn learn(&self, fs: &FileSystem, caller: u32) {
        let bytes = self.writer().map_or(0, |session| session.size());
        let Some((series, before)) = self.made.get().and_then(|made| Some((made.series, made.calls?))) else {
            return;
        };
        if !teaches(bytes) || fs.habits.are_large(series) {
            return;
        }
        let counted = tokio::task::spawn_blocking(move || write_calls(caller));
        if let Ok(Ok(Some(now))) = tokio::time::timeout(COUNT_PATIENCE, counted).await {
            fs.habits.saw_total(series, bytes, now.saturating_sub(before));
        }
    }

    /// What went past the page cache has shown how it was written.
    pub(super) fn teach(&self, fs: &FileSystem) {
        if let Some(made) = self.made.get().filter(|made| made.past_cache) {
            let (calls, bytes) = *made.writes.lock();
            fs.habits.saw_calls(made.series, bytes, calls);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn names_that_differ_in_numbers_alone_are_of_one_series() {
        assert_eq!(Series::of("ckpt.N0.T7"), Series::of("ckpt.N12.T1000"));
        assert_ne!(Series::of("ckpt.N0.T7"), Series::of("ckpt.N0.M7"));
        assert_ne!(Series::of("a1b"), Series::of("ab"));
    }

    #[test]
    fn a_series_is_large_once_a_file_of_it_was_and_small_for_good_once_that_was_seen() {
        let (habits, series) = (Habits::default(), Series::of("x1"));
        assert!(!habits.are_large(series));
        for (bytes, calls) in [(MIB, 1), (64 * MIB, 16384), (64 * MIB, 0)] {
            habits.saw_total(series, bytes, calls);
            assert!(!habits.are_large(series), "{bytes} in {calls}");
        }
        habits.saw_total(series, 64 * MIB, 64);
        assert!(habits.are_large(series) && !habits.are_large(Series::of("y1")));
        habits.saw_calls(series, 4096, 1);
        assert!(habits.are_large(series), "a header alone");
        habits.saw_calls(series, MIB, 256);
        habits.saw_total(series, 64 * MIB, 64);
        assert!(!habits.are_large(series));
    }

    #[test]
    fn however_many_names_there_are_memory_is_bounded() {
        let habits = Habits::default();
        for number in 0..2 * NAMES_MAX as u64 {
            habits.saw_total(Series(number), 64 * MIB, 64);
        }
        assert!(habits.known.lock().len() <= NAMES_MAX);
    }

    #[test]
    fn calls_of_a_process_are_counted() {
        let before = write_calls(std::process::id()).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        (0..10).for_each(|_| file.write_all(b"x").unwrap());
        assert!(write_calls(std::process::id()).unwrap() >= before + 10);
        assert_eq!(write_calls(u32::MAX), None);
    }
}
