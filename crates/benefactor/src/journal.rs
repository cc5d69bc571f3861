//! What the benefactor keeps of the manager's store, in the file `journal`, for a manager that loses its disk.
//!
//! The pieces are sealed: the benefactor sees where they belong and nothing else. It follows the journal as long as each piece follows on
//! the one before, and takes a base where none does, or once the commits take more room than a base would. A base is written beside
//! what is there, and takes its place when it is whole and durable. Commits are made durable together, every two seconds while there are any, and within
//! seconds of the last one. A keeper is needed when the manager's disk is lost, and lacks commits only if its host loses its power in
//! the same moment. It tells the manager which are durable: until then nothing is deleted that these commits let go.
//!
//! | event | what is there afterwards |
//! |---|---|
//! | crash while a base is taken | what was there before; the base is taken anew |
//! | the process is killed while commits are appended | all of them; what is torn is cut off |
//! | the host loses its power | all that was durable, and perhaps more; what is torn is cut off |
//! | a byte of the file is damaged | at the next start: all pieces before it |
//! | no room | what was there before, and as many commits as fit into the room that was taken ahead; a base is begun anew once there is room |
//!
//! Room is taken ahead of the commits while there is some. Once the disk or the donation is full, a removal could give nothing back otherwise:
//! what it lets go is deleted only once keepers have its commit. The space that a deletion gives back makes room for more commits.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, fallocate};
use stdchk_model::journal::{self, Journal, Piece, Reach};
use stdchk_model::message::manager::Moment;
use stdchk_model::{BenefactorId, Signed};
use stdchk_net::own::{self, Access};
use tokio::sync::watch;
use tokio::time::Instant;

/// The file in the benefactor's directory.
pub const JOURNAL_FILE: &str = "journal";
/// Commits may take so much more than the base before a new base is asked for, bytes.
const COMMITS_BYTES: u64 = 16 << 20;
/// Most bytes of a frame beside what is sealed in it.
const FRAME_BYTES: u64 = 512;
/// Room that is taken ahead of the commits, bytes: some thousand removals.
const AHEAD_BYTES: u64 = 256 << 10;
/// Bytes in which a file system counts what it has taken for a file.
const BLOCK_BYTES: u64 = 512;
/// It is taken while so many times as much is free.
const AHEAD_PARTS: u64 = 16;
/// Between two times that commits are made durable: each is a wait of the disk that writers wait for, too.
const SYNC_PAUSE: Duration = Duration::from_secs(2);

/// What is kept.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    state: Mutex<State>,
    leaving: watch::Sender<bool>,
    done: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    /// What is there.
    whole: Pieces,
    /// A base on its way.
    new: Pieces,
    /// The benefactor's number.
    keeper: Option<BenefactorId>,
    /// All that the benefactor took when room was taken ahead last, bytes.
    taken_bytes: u64,
    /// There is no room for another base: commits follow on the one that is there.
    lacks_room: bool,
}

/// Pieces in a file.
#[derive(Debug, Default)]
struct Pieces {
    journal: Journal,
    file: Option<File>,
    /// Length of the file, bytes.
    bytes: u64,
    /// Up to where room is taken for it, bytes.
    ahead: u64,
    /// Length of the base in it, bytes.
    base_bytes: u64,
    /// When the first commit was written that isn't durable.
    unsynced: Option<Instant>,
    /// How far the journal goes if the host loses its power now.
    durable: Option<Signed<Moment>>,
    /// The disk has refused to make something durable: what is written since may be lost, whatever it says later.
    is_doubted: bool,
}

impl Kept {
    /// What is kept in the benefactor's `directory`. What can't be read is taken anew.
    pub fn open(directory: &Path) -> Self {
        let path = directory.join(JOURNAL_FILE);
        drop(fs::remove_file(path.with_added_extension("new")));
        let read = own::file(&path, Access::Write).and_then(Pieces::read);
        let whole = read.unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(path = %path.display(), %error, "what is kept of the manager's store can't be read");
            }
            Pieces::default()
        });
        let state = Mutex::new(State { whole, ..State::default() });
        let (leaving, done) = (watch::Sender::new(false), watch::Sender::new(true));
        Self { path, state, leaving, done }
    }

    /// The benefactor has this number.
    pub fn is_of(&self, keeper: BenefactorId) {
        self.state.lock().keeper = Some(keeper);
    }

    /// Whose it is, once the benefactor has registered.
    pub fn keeper(&self) -> Option<BenefactorId> {
        self.state.lock().keeper
    }

    /// Waits until the last commits are here, for at most `limit`.
    pub(crate) async fn leave(&self, limit: Duration) {
        self.leaving.send_replace(true);
        let mut done = self.done.subscribe();
        // Whichever comes first.
        let _ = tokio::time::timeout(limit, done.wait_for(|done| *done)).await;
    }

    /// Makes what is here durable.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn sync(&self) -> io::Result<()> {
        self.state.lock().whole.sync()
    }

    /// Makes what is here durable if it has waited for long enough.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn sync_due(&self) -> io::Result<()> {
        let whole = &mut self.state.lock().whole;
        let is_due = whole.unsynced.is_some_and(|since| since.elapsed() >= SYNC_PAUSE);
        if is_due { whole.sync() } else { Ok(()) }
    }

    /// How far it goes if the host loses its power now.
    pub fn durable(&self) -> Option<Signed<Moment>> {
        self.state.lock().whole.durable
    }

    /// Told when the benefactor leaves.
    pub(crate) fn leaving(&self) -> watch::Receiver<bool> {
        self.leaving.subscribe()
    }

    /// Whether there is nobody to follow, or all that he has is here.
    pub(crate) fn is_done(&self, done: bool) {
        self.done.send_replace(done);
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How far it goes; `None`: a base is wanted.
    pub fn reach(&self) -> Option<Reach> {
        let State { whole, keeper, lacks_room, .. } = &*self.state.lock();
        let commits = whole.bytes - whole.base_bytes;
        // Not all keepers at once: whoever takes a base doesn't hear of commits.
        let later = keeper.map_or(0, |keeper| u64::from(keeper.0 % 8) * (COMMITS_BYTES / 4));
        whole.journal.reach().filter(|_| *lacks_room || commits <= whole.base_bytes + COMMITS_BYTES + later)
    }

    /// The part of a base that comes next.
    pub fn part(&self) -> u32 {
        match self.state.lock().new.journal {
            Journal::Taking { next, .. } => next,
            _ => 0,
        }
    }

    /// Space of all files, bytes.
    pub fn bytes(&self) -> u64 {
        let State { whole, new, .. } = &*self.state.lock();
        whole.bytes.max(whole.ahead) + new.bytes
    }

    /// Those of the pieces for which there is room if so many bytes are free: all, or as many commits as fit into the room that was
    /// taken ahead.
    pub fn fitting<'a>(&self, pieces: &'a [Piece], free_bytes: u64) -> &'a [Piece] {
        let state = &mut *self.state.lock();
        let length = |piece: &Piece| journal::frame(piece).len() as u64;
        let is_base = matches!(pieces.first(), Some(Piece::Base { .. }));
        // Frames are made to be measured where room is scarce alone.
        let about: u64 = pieces.iter().map(|piece| piece.sealed().len() as u64 + FRAME_BYTES).sum();
        if about <= free_bytes || pieces.iter().map(length).sum::<u64>() <= free_bytes {
            state.lacks_room &= !is_base;
            return pieces;
        }
        if is_base {
            state.lacks_room = true;
            return &[];
        }
        let mut room = free_bytes.max(state.whole.ahead.saturating_sub(state.whole.bytes));
        let fits = |piece: &&Piece| {
            let left = room.checked_sub(length(piece));
            room = left.unwrap_or(0);
            left.is_some()
        };
        let count = pieces.iter().take_while(fits).count();
        pieces.get(..count).unwrap_or_default()
    }

    /// Takes room for commits to come, if enough is free, or if the benefactor has given back so much since it did so last.
    /// `taken_bytes`: all that the benefactor takes. A disk that can't do so has none ahead.
    pub fn go_ahead(&self, free_bytes: u64, taken_bytes: u64) {
        let State { whole, taken_bytes: before, lacks_room, .. } = &mut *self.state.lock();
        *lacks_room &= free_bytes < AHEAD_PARTS * AHEAD_BYTES;
        let has_less = taken_bytes.saturating_add(AHEAD_BYTES) <= *before;
        let is_due = whole.ahead < whole.bytes + AHEAD_BYTES / 2;
        if is_due && (free_bytes >= AHEAD_PARTS * AHEAD_BYTES || has_less) && whole.go_ahead() {
            *before = taken_bytes.saturating_add(AHEAD_BYTES);
        }
    }

    /// Takes pieces; those that don't follow are left out, with all behind them. Parts of a base are durable on return, commits later.
    ///
    /// # Errors
    /// The disk refuses; what was there before is there.
    pub fn take(&self, pieces: &[Piece]) -> io::Result<()> {
        let state = &mut *self.state.lock();
        match pieces.first() {
            None => Ok(()),
            Some(Piece::Commit { .. }) => state.whole.append(pieces),
            Some(Piece::Base { part, .. }) => {
                let taken = self.take_base(state, *part, pieces);
                if !matches!(taken, Ok(true)) {
                    self.give_up(state);
                }
                taken.map(drop)
            }
        }
    }

    /// Takes parts of a base; false: they are not those that come next.
    fn take_base(&self, state: &mut State, part: u32, pieces: &[Piece]) -> io::Result<bool> {
        if part == 0 {
            state.new = Pieces { file: Some(create(&self.new_path())?), ..Pieces::default() };
        }
        let before = state.new.bytes;
        state.new.append(pieces)?;
        let has_followed = state.new.bytes > before;
        if state.new.journal.reach().is_some() {
            fs::rename(self.new_path(), &self.path)?;
            self.path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())?;
            state.whole = std::mem::take(&mut state.new);
        }
        Ok(has_followed)
    }

    /// Begins with the base that is on its way anew, if one is, so that neither its room nor the manager's copy is held up.
    pub fn give_up_base(&self) {
        self.give_up(&mut self.state.lock());
    }

    fn give_up(&self, state: &mut State) {
        if state.new.file.is_some() {
            state.new = Pieces::default();
            drop(fs::remove_file(self.new_path()));
        }
    }

    fn new_path(&self) -> PathBuf {
        self.path.with_added_extension("new")
    }

    /// Bytes of the file from `offset` on, at most so many, and its length.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn read(&self, offset: u64, most: usize) -> io::Result<(u64, Vec<u8>)> {
        let State { whole, .. } = &*self.state.lock();
        let Some(file) = &whole.file else { return Ok((0, Vec::new())) };
        let rest = usize::try_from(whole.bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; rest.min(most)];
        file.read_exact_at(&mut bytes, offset)?;
        Ok((whole.bytes, bytes))
    }
}

fn create(path: &Path) -> io::Result<File> {
    let file = own::file(path, Access::Make)?;
    file.set_len(0)?;
    Ok(file)
}

impl Pieces {
    /// What is whole in a file; the rest is cut off.
    fn read(file: File) -> io::Result<Self> {
        let mut pieces = Self::default();
        let mut reader = BufReader::with_capacity(1 << 20, &file);
        while let Some((piece, length)) = journal::next(&mut reader)?
            && pieces.journal.follow(&piece).is_ok()
        {
            pieces.count(&piece, length);
        }
        if pieces.journal.reach().is_none() {
            file.set_len(0)?;
            return Ok(Self::default());
        }
        let metadata = file.metadata()?;
        // To set the length that it has would give back the room that was taken ahead.
        if metadata.len() != pieces.bytes {
            file.set_len(pieces.bytes)?;
        }
        pieces.ahead = metadata.blocks().saturating_mul(BLOCK_BYTES);
        // What was read may lie in memory alone: the process was killed before it made it durable.
        file.sync_data()?;
        let durable = pieces.journal.reach().map(|reach| reach.moment);
        Ok(Self { file: Some(file), durable, ..pieces })
    }

    fn count(&mut self, piece: &Piece, length: u64) {
        self.bytes += length;
        if matches!(piece, Piece::Base { .. }) {
            self.base_bytes = self.bytes;
        }
    }

    fn append(&mut self, pieces: &[Piece]) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let (mut journal, mut frames, mut base_bytes) = (self.journal.clone(), Vec::new(), self.base_bytes);
        for piece in pieces {
            if journal.follow(piece).is_err() {
                break;
            }
            frames.extend(journal::frame(piece));
            if matches!(piece, Piece::Base { .. }) {
                base_bytes = self.bytes + frames.len() as u64;
            }
        }
        if let Err(error) = file.write_all_at(&frames, self.bytes) {
            // What may be there all the same is read by nobody: the next write goes over it.
            drop(file.set_len(self.bytes));
            self.ahead = self.bytes;
            return Err(error);
        }
        (self.journal, self.base_bytes) = (journal, base_bytes);
        self.bytes += frames.len() as u64;
        let is_base = self.bytes == self.base_bytes;
        let since = self.unsynced.get_or_insert_with(Instant::now);
        if is_base || since.elapsed() >= SYNC_PAUSE { self.sync() } else { Ok(()) }
    }

    /// Takes room behind what is here; false: the disk can't.
    fn go_ahead(&mut self) -> bool {
        let Some(file) = &self.file else { return false };
        if fallocate(file, FallocateFlags::KEEP_SIZE, self.bytes, AHEAD_BYTES).is_err() {
            return false;
        }
        self.ahead = self.bytes + AHEAD_BYTES;
        true
    }

    /// Makes what is here durable. After an error it is here all the same, as what was written since the last time is.
    fn sync(&mut self) -> io::Result<()> {
        let (Some(file), Some(_)) = (&self.file, self.unsynced.take()) else { return Ok(()) };
        let synced = file.sync_data();
        self.is_doubted |= synced.is_err();
        if !self.is_doubted {
            self.durable = self.journal.reach().map(|reach| reach.moment);
        }
        synced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(commit: u64) -> Signed<Moment> {
        Signed::not_yet(Moment { start: 1, commit })
    }

    fn base(commit: u64, part: u32, last: bool) -> Piece {
        Piece::Base { moment: at(commit), key: 9, part, last, sealed: vec![7; 1000] }
    }

    fn commits(commits: std::ops::RangeInclusive<u64>) -> Vec<Piece> {
        let commit = |commit| Piece::Commit { moment: at(commit), before: 1, sealed: vec![8; 100] };
        commits.map(commit).collect()
    }

    fn reach(kept: &Kept) -> Option<u64> {
        kept.reach().map(|reach| reach.moment.commit)
    }

    #[test]
    fn a_base_counts_once_it_is_whole_and_commits_once_they_follow() {
        let directory = tempfile::tempdir().unwrap();
        let kept = Kept::open(directory.path());
        kept.take(&commits(1..=2)).unwrap();
        kept.take(&[base(10, 1, true)]).unwrap();
        assert_eq!((reach(&kept), kept.part()), (None, 0));
        kept.take(&[base(10, 0, false)]).unwrap();
        assert_eq!((reach(&kept), kept.part()), (None, 1));
        kept.take(&[base(10, 1, true)]).unwrap();
        kept.take(&commits(11..=14)).unwrap();
        kept.take(&commits(16..=17)).unwrap();
        assert_eq!((reach(&kept), kept.part()), (Some(14), 0));
        // A part of another base than the one that was begun: all of it is asked for again, and takes no room.
        kept.take(&[base(20, 0, false)]).unwrap();
        kept.take(&[base(21, 1, true)]).unwrap();
        assert_eq!((reach(&kept), kept.part()), (Some(14), 0));
        kept.take(&[base(20, 0, false)]).unwrap();
        kept.give_up_base();
        assert_eq!((reach(&kept), kept.part(), kept.new_path().exists()), (Some(14), 0, false));
        // Another base is begun and not finished.
        kept.take(&[base(20, 0, false)]).unwrap();
        kept.take(&commits(15..=15)).unwrap();
        assert_eq!((reach(&kept), kept.part()), (Some(15), 1));
        let kept = Kept::open(directory.path());
        assert_eq!((reach(&kept), kept.part()), (Some(15), 0));
        kept.take(&[base(20, 0, true)]).unwrap();
        assert_eq!((reach(&kept), kept.bytes()), (Some(20), kept.read(0, 1 << 20).unwrap().0));
    }

    #[test]
    fn a_commit_is_told_as_durable_once_it_is_also_where_no_other_follows() {
        let directory = tempfile::tempdir().unwrap();
        let kept = Kept::open(directory.path());
        assert_eq!(kept.durable(), None);
        kept.take(&[base(10, 0, false)]).unwrap();
        assert_eq!(kept.durable(), None, "half a base is nothing");
        kept.take(&[base(10, 1, true)]).unwrap();
        assert_eq!(kept.durable(), Some(at(10)));
        kept.take(&commits(11..=12)).unwrap();
        kept.sync_due().unwrap();
        assert_eq!((reach(&kept), kept.durable()), (Some(12), Some(at(10))), "commits wait for a while");
        std::thread::sleep(SYNC_PAUSE);
        kept.sync_due().unwrap();
        assert_eq!(kept.durable(), Some(at(12)));
        kept.take(&commits(13..=13)).unwrap();
        // It wants a new base, and has what it has.
        kept.take(&[base(20, 0, false)]).unwrap();
        assert_eq!(kept.durable(), Some(at(12)));
        let kept = Kept::open(directory.path());
        assert_eq!(kept.durable(), Some(at(13)), "what was read is made durable first");
        kept.state.lock().whole.is_doubted = true;
        kept.take(&commits(14..=14)).unwrap();
        kept.sync().unwrap();
        assert_eq!(kept.durable(), Some(at(13)), "the disk has refused once");
        kept.take(&[base(30, 0, true)]).unwrap();
        assert_eq!(kept.durable(), Some(at(30)));
    }

    #[test]
    fn what_a_crash_or_a_disk_leaves_is_all_that_is_whole_before_it() {
        let directory = tempfile::tempdir().unwrap();
        let kept = Kept::open(directory.path());
        kept.take(&[base(10, 0, true)]).unwrap();
        kept.take(&commits(11..=12)).unwrap();
        let path = directory.path().join(JOURNAL_FILE);
        let whole = fs::read(&path).unwrap();
        let commit =
            (whole.len() - fs::read(&path).unwrap().len() + journal::frame(&commits(1..=1)[0]).len()) as u64;
        for cut in 1..=commit {
            fs::write(&path, &whole[..whole.len() - usize::try_from(cut).unwrap()]).unwrap();
            let kept = Kept::open(directory.path());
            assert_eq!(reach(&kept), Some(11), "{cut}");
            kept.take(&commits(12..=13)).unwrap();
            assert_eq!(reach(&Kept::open(directory.path())), Some(13), "{cut}");
        }
        let mut bad = whole.clone();
        bad[100] ^= 1;
        fs::write(&path, &bad).unwrap();
        assert_eq!(reach(&Kept::open(directory.path())), None);
    }

    #[test]
    fn commits_go_on_without_room_as_far_as_room_was_taken_ahead() {
        let directory = tempfile::tempdir().unwrap();
        let kept = Kept::open(directory.path());
        kept.take(&[base(10, 0, true)]).unwrap();
        let many = commits(11..=3010);
        assert_eq!(kept.fitting(&many, 0).len(), 0, "nothing is taken ahead");
        kept.go_ahead(AHEAD_PARTS * AHEAD_BYTES - 1, 1 << 20);
        assert_eq!(kept.fitting(&many, 0).len(), 0, "too little is free");
        kept.go_ahead(AHEAD_PARTS * AHEAD_BYTES, 1 << 20);
        let fitting = kept.fitting(&many, 0).to_vec();
        let length = |piece: &Piece| journal::frame(piece).len() as u64;
        let beside = |piece: &Piece| length(piece) - piece.sealed().len() as u64;
        assert!(many.iter().all(|piece| beside(piece) <= FRAME_BYTES));
        let bytes: u64 = fitting.iter().map(length).sum();
        assert!((AHEAD_BYTES - 200..=AHEAD_BYTES).contains(&bytes), "{bytes}");
        kept.take(&fitting).unwrap();
        let taken = kept.bytes();
        assert!(kept.fitting(&many[fitting.len()..], 0).is_empty(), "it is used up");
        // The process starts again: what was taken ahead is found.
        kept.go_ahead(0, (1 << 20) + 1);
        assert_eq!(kept.bytes(), taken, "nothing was given back");
        kept.go_ahead(0, 1 << 20);
        assert!(kept.bytes() > taken, "blocks were");
        let ahead = kept.fitting(&many[fitting.len()..], 0).len();
        assert_eq!(Kept::open(directory.path()).fitting(&many[fitting.len()..], 0).len(), ahead);
    }

    #[test]
    fn without_room_for_a_base_commits_follow_on_the_one_that_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let kept = Kept::open(directory.path());
        kept.take(&[base(10, 0, true)]).unwrap();
        let large = |commit| Piece::Commit { moment: at(commit), before: 1, sealed: vec![8; 9 << 20] };
        kept.take(&[large(11), large(12)]).unwrap();
        assert_eq!(reach(&kept), None);
        assert!(kept.fitting(&[base(12, 0, true)], 10).is_empty());
        assert_eq!(reach(&kept), Some(12));
        kept.go_ahead(AHEAD_PARTS * AHEAD_BYTES, 1 << 30);
        assert_eq!(reach(&kept), None, "there is room again");
    }

    #[test]
    fn a_base_is_wanted_once_the_commits_outgrow_it() {
        let directory = tempfile::tempdir().unwrap();
        let kept = Kept::open(directory.path());
        kept.take(&[base(10, 0, true)]).unwrap();
        let large = |commit| Piece::Commit { moment: at(commit), before: 1, sealed: vec![8; 9 << 20] };
        kept.take(&[large(11)]).unwrap();
        assert_eq!(reach(&kept), Some(11));
        kept.take(&[large(12)]).unwrap();
        assert_eq!(reach(&kept), None);
        kept.take(&[base(12, 0, true)]).unwrap();
        assert_eq!(reach(&kept), Some(12));
    }
}
