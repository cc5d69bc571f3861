//! What the benefactor remembers of its manager's history: the last moment that it was told, in the file `history`.
//!
//! A manager whose store was set back to an older copy is found out by it when the benefactor registers. So it is written
//! before a block is acknowledged as durable to a manager that was started since the last time, and otherwise when the
//! manager says so, at most once in a while. The file holds two copies that are written in turn, each in its own
//! sector and with a check: one of them is always whole, and writing takes no space on the disk. A start needs the file
//! to be neither there nor writable.
//!
//! | offset | bytes | field of a copy (at 0 and at 512; little-endian) |
//! |---|---|---|
//! | 0 | 8 | how many copies were written by then; the whole copy with the larger number counts |
//! | 8 | 8 | start of the manager |
//! | 16 | 8 | commit |
//! | 24 | 8 | first 8 bytes of the BLAKE3-256 of the 24 bytes above |

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::message::manager::Moment;
use tokio::time::Instant;

/// The file in the benefactor's directory.
pub const HISTORY_FILE: &str = "history";
/// Distance of the copies: the unit that a disk writes whole.
const SECTOR: u64 = 512;
/// The bytes of both sectors, before anything is remembered.
const EMPTY: [u8; 1024] = [0; 1024];
const CHECKED_BYTES: usize = 24;
const COPY_BYTES: usize = 32;
/// Moments of one start are written this often at most: each costs a disk a flush.
const WRITE_EVERY: Duration = Duration::from_secs(2);

/// The benefactor's memory.
#[derive(Debug)]
pub struct Memory {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the last copy.
    count: u64,
    /// On the disk.
    remembered: Option<Moment>,
    /// By the manager at the registration.
    told: Option<Moment>,
    /// When writing was tried last.
    tried: Option<Instant>,
}

impl Memory {
    /// What is remembered in the benefactor's `directory`: nothing, if there is no whole copy.
    pub fn open(directory: &Path) -> Self {
        let path = directory.join(HISTORY_FILE);
        let (count, remembered) = match read(&path) {
            Ok(Some((count, moment))) => (count, Some(moment)),
            Ok(None) => {
                tracing::error!(path = %path.display(), "what was remembered of the manager's history is damaged");
                (0, None)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (0, None),
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "what was remembered of the manager's history can't be read");
                (0, None)
            }
        };
        Self { path, state: Mutex::new(State { count, remembered, ..State::default() }) }
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is on the disk.
    pub fn remembered(&self) -> Option<Moment> {
        self.state.lock().remembered
    }

    /// A manager has registered the benefactor; absent: what is remembered stays whatever is acknowledged.
    pub fn registered(&self, moment: Option<Moment>) {
        self.state.lock().told = moment;
    }

    /// Whether a block may be acknowledged as durable without writing.
    pub fn is_current(&self) -> bool {
        let state = self.state.lock();
        state.told.is_none_or(|told| state.remembered.is_some_and(|moment| moment.start == told.start))
    }

    /// To be called before a block is acknowledged as durable.
    ///
    /// # Errors
    /// The disk refuses; then nothing may be acknowledged.
    pub fn make_current(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        match state.told {
            Some(told) if state.remembered.is_none_or(|moment| moment.start != told.start) => {
                self.write(&mut state, told)
            }
            _ => Ok(()),
        }
    }

    /// Remembers a moment as the manager orders, unless another one was written a moment ago.
    ///
    /// # Errors
    /// The disk refuses; the next order tries again.
    pub fn remember(&self, moment: Moment) -> io::Result<()> {
        let mut state = self.state.lock();
        state.told = Some(moment);
        let early = state.tried.is_some_and(|tried| tried.elapsed() < WRITE_EVERY);
        if early || state.remembered == Some(moment) {
            return Ok(());
        }
        self.write(&mut state, moment)
    }

    fn write(&self, state: &mut State, moment: Moment) -> io::Result<()> {
        state.tried = Some(Instant::now());
        let count = state.count + 1;
        let is_new = !self.path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&self.path)?;
        if is_new {
            // Both sectors get their space now, so that none is needed later.
            file.write_all_at(&EMPTY, 0)?;
        }
        file.write_all_at(&encode(count, moment), count % 2 * SECTOR)?;
        file.sync_data()?;
        if is_new && let Some(directory) = self.path.parent() {
            File::open(directory)?.sync_all()?;
        }
        state.count = count;
        state.remembered = Some(moment);
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<Option<(u64, Moment)>> {
    let file = File::open(path)?;
    // One that can't be read is as good as a damaged one: the other counts.
    let copy = |index: u64| {
        let mut bytes = [0; COPY_BYTES];
        file.read_exact_at(&mut bytes, index * SECTOR).ok()?;
        decode(&bytes)
    };
    Ok([copy(0), copy(1)].into_iter().flatten().max_by_key(|(count, _)| *count))
}

fn encode(count: u64, moment: Moment) -> Vec<u8> {
    let fields = [count, moment.start, moment.commit];
    let mut bytes: Vec<u8> = fields.into_iter().flat_map(u64::to_le_bytes).collect();
    bytes.extend(blake3::hash(&bytes).as_bytes().iter().take(COPY_BYTES - CHECKED_BYTES));
    bytes
}

fn decode(bytes: &[u8; COPY_BYTES]) -> Option<(u64, Moment)> {
    let (checked, check) = bytes.split_at(CHECKED_BYTES);
    let is_intact = blake3::hash(checked).as_bytes().starts_with(check);
    let ([count, start, commit], []) = checked.as_chunks() else { return None };
    let [count, start, commit] = [count, start, commit].map(|field| u64::from_le_bytes(*field));
    is_intact.then_some((count, Moment { start, commit }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(start: u64, commit: u64) -> Option<Moment> {
        Some(Moment { start, commit })
    }

    #[test]
    fn what_was_acknowledged_under_a_start_is_remembered_by_then() {
        let directory = tempfile::tempdir().unwrap();
        let memory = Memory::open(directory.path());
        assert_eq!((memory.remembered(), memory.is_current()), (None, true));
        memory.make_current().unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is to be remembered");
        memory.registered(moment(7, 100));
        assert!(!memory.is_current());
        memory.make_current().unwrap();
        assert!(memory.is_current());
        assert_eq!(Memory::open(directory.path()).remembered(), moment(7, 100));
        memory.registered(None);
        memory.make_current().unwrap();
        assert_eq!(Memory::open(directory.path()).remembered(), moment(7, 100));
    }

    #[test]
    fn a_torn_copy_leaves_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let memory = Memory::open(directory.path());
        for commit in 1..=5 {
            memory.state.lock().tried = None;
            memory.remember(Moment { start: 7, commit }).unwrap();
        }
        assert_eq!(Memory::open(directory.path()).remembered(), moment(7, 5));
        let file = OpenOptions::new().write(true).open(directory.path().join(HISTORY_FILE)).unwrap();
        file.write_all_at(&[1], SECTOR + 17).unwrap();
        assert_eq!(Memory::open(directory.path()).remembered(), moment(7, 4));
        file.set_len(0).unwrap();
        assert_eq!(Memory::open(directory.path()).remembered(), None);
    }

    #[test]
    fn orders_that_follow_each_other_closely_cost_one_write() {
        let directory = tempfile::tempdir().unwrap();
        let memory = Memory::open(directory.path());
        memory.remember(Moment { start: 7, commit: 1 }).unwrap();
        memory.remember(Moment { start: 7, commit: 2 }).unwrap();
        assert_eq!(memory.remembered(), moment(7, 1));
    }
}
