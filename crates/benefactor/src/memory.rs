//! What the benefactor remembers of its managers: the last moment of their history that it was told, and the greatest term under which it
//! has registered, in the file `history`.
//!
//! A manager whose store was set back to an older copy is found out by it when the benefactor registers. So it is written
//! before a block is acknowledged as durable to a manager that was started since the last time, and otherwise when the
//! manager says so, at most once in a while. A greater term is written before the benefactor tells the manager what it has, so that no
//! earlier manager orders it to delete any of that. The file holds two copies that are written in turn, each in its own
//! sector and with a check: one of them is always whole, and writing takes no space on the disk. A start needs the file
//! to be neither there nor writable.
//!
//! | offset | bytes | field of a copy (at 0 and at 512; little-endian) |
//! |---|---|---|
//! | 0 | 8 | how many copies were written by then; the whole copy with the larger number counts |
//! | 8 | 8 | 1 if a moment follows, 0 if none was told yet |
//! | 16 | 8 | start of the manager |
//! | 24 | 8 | commit |
//! | 32 | 32 | the manager's signature of it |
//! | 64 | 8 | number of the greatest term; 0: none |
//! | 72 | 8 | its start |
//! | 80 | 8 | number of its era |
//! | 88 | 8 | identity of its era |
//! | 96 | 32 | the manager's signature of it |
//! | 128 | 8 | first 8 bytes of the BLAKE3-256 of the 128 bytes above |

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::Signed;
use stdchk_model::message::manager::{Era, Moment, Term};
use stdchk_net::own::{self, Access};
use tokio::time::Instant;

/// The file in the benefactor's directory.
pub const HISTORY_FILE: &str = "history";
/// Distance of the copies: the unit that a disk writes whole.
const SECTOR: u64 = 512;
/// The bytes of both sectors, before anything is remembered.
const EMPTY: [u8; 1024] = [0; 1024];
const CHECKED_BYTES: usize = 128;
const COPY_BYTES: usize = 136;
/// Moments of one start are written this often at most: each costs a disk a flush.
const WRITE_EVERY: Duration = Duration::from_secs(2);

/// What a copy holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Kept {
    moment: Option<Signed<Moment>>,
    term: Option<Signed<Term>>,
}

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
    kept: Kept,
    /// By the manager at the registration.
    told: Option<Signed<Moment>>,
    /// When writing was tried last.
    tried: Option<Instant>,
}

impl Memory {
    /// What is remembered in the benefactor's `directory`: nothing, if there is no whole copy.
    pub fn open(directory: &Path) -> Self {
        let path = directory.join(HISTORY_FILE);
        let (count, kept) = match read(&path) {
            Ok(Some(copy)) => copy,
            Ok(None) => {
                tracing::error!(path = %path.display(), "what was remembered of the manager's history is damaged");
                (0, Kept::default())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (0, Kept::default()),
            Err(error) => {
                tracing::error!(path = %path.display(), %error, "what was remembered of the manager's history can't be read");
                (0, Kept::default())
            }
        };
        Self { path, state: Mutex::new(State { count, kept, ..State::default() }) }
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The moment that is on the disk.
    pub fn remembered(&self) -> Option<Signed<Moment>> {
        self.state.lock().kept.moment
    }

    /// The greatest term under which the benefactor has registered.
    pub fn term(&self) -> Option<Signed<Term>> {
        self.state.lock().kept.term
    }

    /// Whether a manager of this term may order anything: no greater one is known.
    pub fn obeys(&self, term: Term) -> bool {
        self.state.lock().kept.term.map(|known| known.what) <= Some(term)
    }

    /// A manager of this term has registered the benefactor. To be called before the manager is told what is here.
    ///
    /// # Errors
    /// The disk refuses; then no order of this manager may be obeyed.
    pub fn led_by(&self, term: Signed<Term>) -> io::Result<()> {
        let mut state = self.state.lock();
        match state.kept.term.map(|known| known.what) < Some(term.what) {
            true => {
                let kept = Kept { term: Some(term), ..state.kept };
                self.write(&mut state, kept)
            }
            false => Ok(()),
        }
    }

    /// A manager has registered the benefactor; absent: what is remembered stays whatever is acknowledged.
    pub fn registered(&self, moment: Option<Signed<Moment>>) {
        self.state.lock().told = moment;
    }

    /// Whether a block may be acknowledged as durable without writing.
    pub fn is_current(&self) -> bool {
        let state = self.state.lock();
        state.told.is_none_or(|told| state.kept.moment.is_some_and(|moment| moment.start == told.start))
    }

    /// To be called before a block is acknowledged as durable.
    ///
    /// # Errors
    /// The disk refuses; then nothing may be acknowledged.
    pub fn make_current(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        match state.told {
            Some(told) if state.kept.moment.is_none_or(|moment| moment.start != told.start) => {
                let kept = Kept { moment: Some(told), ..state.kept };
                self.write(&mut state, kept)
            }
            _ => Ok(()),
        }
    }

    /// Remembers a moment as the manager orders, unless another one was written a moment ago.
    ///
    /// # Errors
    /// The disk refuses; the next order tries again.
    pub fn remember(&self, moment: Signed<Moment>) -> io::Result<()> {
        let mut state = self.state.lock();
        state.told = Some(moment);
        let early = state.tried.is_some_and(|tried| tried.elapsed() < WRITE_EVERY);
        if early || state.kept.moment == Some(moment) {
            return Ok(());
        }
        state.tried = Some(Instant::now());
        let kept = Kept { moment: Some(moment), ..state.kept };
        self.write(&mut state, kept)
    }

    fn write(&self, state: &mut State, kept: Kept) -> io::Result<()> {
        let count = state.count + 1;
        let is_new = !self.path.exists();
        let file = own::file(&self.path, Access::Make)?;
        if is_new {
            // Both sectors get their space now, so that none is needed later.
            file.write_all_at(&EMPTY, 0)?;
        }
        file.write_all_at(&encode(count, kept), count % 2 * SECTOR)?;
        file.sync_data()?;
        if is_new && let Some(directory) = self.path.parent() {
            File::open(directory)?.sync_all()?;
        }
        state.count = count;
        state.kept = kept;
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<Option<(u64, Kept)>> {
    let file = own::file(path, Access::Read)?;
    // One that can't be read is as good as a damaged one: the other counts.
    let copy = |index: u64| {
        let mut bytes = [0; COPY_BYTES];
        file.read_exact_at(&mut bytes, index * SECTOR).ok()?;
        decode(&bytes)
    };
    Ok([copy(0), copy(1)].into_iter().flatten().max_by_key(|(count, _)| *count))
}

fn encode(count: u64, kept: Kept) -> Vec<u8> {
    let has_moment = u64::from(kept.moment.is_some());
    let moment = kept.moment.unwrap_or(Signed::not_yet(Moment { start: 0, commit: 0 }));
    let term = kept.term.unwrap_or(Signed::not_yet(Term { era: Era::FIRST, number: 0, start: 0 }));
    let [count, has_moment, start, commit] =
        [count, has_moment, moment.start, moment.commit].map(u64::to_le_bytes);
    let [number, led_by, era, id] =
        [term.number, term.start, term.era.number, term.era.id].map(u64::to_le_bytes);
    let mut bytes = [count, has_moment, start, commit].concat();
    bytes.extend(moment.proof);
    bytes.extend([number, led_by, era, id].concat());
    bytes.extend(term.proof);
    bytes.extend(blake3::hash(&bytes).as_bytes().iter().take(COPY_BYTES - CHECKED_BYTES));
    bytes
}

fn decode(bytes: &[u8; COPY_BYTES]) -> Option<(u64, Kept)> {
    let (checked, check) = bytes.split_at(CHECKED_BYTES);
    let is_intact = blake3::hash(checked).as_bytes().starts_with(check);
    let rest = &mut &*checked;
    let (count, has_moment) = (number(rest)?, number(rest)?);
    let moment = Moment { start: number(rest)?, commit: number(rest)? };
    let moment = Signed { what: moment, proof: take(rest)? };
    let (number_of_term, led_by) = (number(rest)?, number(rest)?);
    let era = Era { number: number(rest)?, id: number(rest)? };
    let term = Term { era, number: number_of_term, start: led_by };
    let term = Signed { what: term, proof: take(rest)? };
    let kept = Kept { moment: (has_moment == 1).then_some(moment), term: (term.number > 0).then_some(term) };
    is_intact.then_some((count, kept))
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    take(rest).map(u64::from_le_bytes)
}

fn take<const BYTES: usize>(rest: &mut &[u8]) -> Option<[u8; BYTES]> {
    let (front, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*front)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(start: u64, commit: u64) -> Option<Signed<Moment>> {
        Some(Signed { what: Moment { start, commit }, proof: [9; 32] })
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
            memory.remember(moment(7, commit).unwrap()).unwrap();
        }
        assert_eq!(Memory::open(directory.path()).remembered(), moment(7, 5));
        let file = std::fs::OpenOptions::new().write(true).open(directory.path().join(HISTORY_FILE)).unwrap();
        file.write_all_at(&[1], SECTOR + 17).unwrap();
        assert_eq!(Memory::open(directory.path()).remembered(), moment(7, 4));
        file.set_len(0).unwrap();
        assert_eq!(Memory::open(directory.path()).remembered(), None);
    }

    #[test]
    fn the_greatest_term_is_known_from_then_on_and_no_lesser_one_is_obeyed() {
        let term = |number, start| Signed { what: Term { era: Era::FIRST, number, start }, proof: [8; 32] };
        let directory = tempfile::tempdir().unwrap();
        let memory = Memory::open(directory.path());
        assert!(memory.obeys(*term(1, 0)), "it knows none");
        memory.remember(moment(7, 1).unwrap()).unwrap();
        memory.led_by(term(3, 7)).unwrap();
        memory.led_by(term(2, 9)).unwrap();
        for memory in [memory, Memory::open(directory.path())] {
            assert_eq!((memory.term(), memory.remembered()), (Some(term(3, 7)), moment(7, 1)));
            assert!(memory.obeys(*term(3, 7)) && memory.obeys(*term(4, 1)));
            assert!(
                !memory.obeys(*term(2, 9)) && !memory.obeys(*term(3, 6)),
                "nor another one of the same number"
            );
        }
    }

    #[test]
    fn orders_that_follow_each_other_closely_cost_one_write() {
        let directory = tempfile::tempdir().unwrap();
        let memory = Memory::open(directory.path());
        memory.remember(moment(7, 1).unwrap()).unwrap();
        memory.remember(moment(7, 2).unwrap()).unwrap();
        assert_eq!(memory.remembered(), moment(7, 1));
    }
}
