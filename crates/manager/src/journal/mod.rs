//! The journal: what the manager commits goes to a few benefactors as well, the keepers, so that its disk may be lost.
//!
//! A keeper asks for what follows on what it has, and gets commits as long as the manager has them in memory; else a base, which is all of
//! the store at one moment, part by part. Nobody waits for keepers: they lack what was committed in the last moments. They hear
//! nothing of a store that may be an older copy, and nothing of a start that changed nothing, as with moments to remember
//! ([`crate::core`]'s history): a keeper that has more than the store is a witness that it was set back.
//!
//! | a keeper has | it gets |
//! |---|---|
//! | a moment of this start, or its beginning, and what follows is in memory | commits |
//! | another moment of the store's history, another key, or nothing | a base |
//! | what the history lacks | nothing: the manager is set back |

mod seal;

use std::collections::{HashMap, VecDeque};

use stdchk_model::journal::{Piece, Reach};
use stdchk_model::message::manager::{KeeperInfo, Moment};
use stdchk_model::{BenefactorId, Failure, MomentKey, Tier};

pub use self::seal::Sealer;
use crate::backup::{Reading, unreadable};
use crate::store::{Batch, Store};

/// How many benefactors keep the journal, those with the lowest numbers.
pub const KEEPERS: usize = 7;

/// Whether a benefactor that keeps blocks there may keep the journal: it has to be there after a blackout.
#[must_use]
pub fn may_be_kept(at: Tier) -> bool {
    at == Tier::Disk
}
/// Commits that are kept for keepers, bytes; while one of them takes a base it misses those of many seconds.
const MEMORY_BYTES: usize = 8 << 20;
const MEMORY_BYTES_BESIDE_A_BASE: usize = 32 << 20;
/// Commits are handed out until they take so many bytes.
const ANSWER_BYTES: usize = 2 << 20;

/// What keepers are told.
pub struct Journal {
    sealer: Sealer,
    /// Signs the pieces for those who keep them.
    key: MomentKey,
    /// The last commit that is durable.
    now: Moment,
    /// The last commits, the newest last.
    commits: VecDeque<Piece>,
    bytes: usize,
    /// Bases that are being taken.
    bases: HashMap<BenefactorId, (Moment, Reading)>,
    /// The last commit that each benefactor said it has.
    heard: HashMap<BenefactorId, u64>,
}

impl Journal {
    /// Of a start on a store whose last commit, of an earlier start, is `before`.
    pub fn new(sealer: Sealer, key: MomentKey, before: Moment) -> Self {
        let (commits, bases, heard) = (VecDeque::new(), HashMap::new(), HashMap::new());
        Self { sealer, key, now: before, commits, bytes: 0, bases, heard }
    }

    /// A benefactor says that it has this much.
    pub fn note(&mut self, id: BenefactorId, has: Option<Reach>) {
        match has.filter(|has| has.key == self.sealer.id()) {
            Some(has) => self.heard.insert(id, has.moment.commit),
            None => self.heard.remove(&id),
        };
    }

    /// How far a keeper is.
    pub fn keeper(&self, id: BenefactorId) -> KeeperInfo {
        let lacks = self.heard.get(&id).map(|commit| self.now.commit.saturating_sub(*commit));
        KeeperInfo { id, lacks }
    }

    /// A commit has become durable.
    pub fn committed(&mut self, moment: Moment, batch: &Batch) {
        assert_eq!(moment.commit, self.now.commit + 1, "commits follow one another");
        let piece = self.sealer.commit(moment, self.now.start, batch.encode());
        self.now = moment;
        if piece.sealed().len() > MEMORY_BYTES {
            // It fits into no message: keepers take a base that has it.
            (self.commits, self.bytes) = (VecDeque::new(), 0);
            return;
        }
        self.bytes += piece.sealed().len();
        self.commits.push_back(piece);
        let most = if self.bases.is_empty() { MEMORY_BYTES } else { MEMORY_BYTES_BESIDE_A_BASE };
        while self.bytes > most
            && let Some(oldest) = self.commits.pop_front()
        {
            self.bytes -= oldest.sealed().len();
        }
    }

    /// What a keeper gets that has this much, and takes part `part` of a base if it needs one.
    pub(crate) fn answer(
        &mut self,
        id: BenefactorId,
        has: Option<Reach>,
        part: u32,
        store: &dyn Store,
        now_ms: u64,
    ) -> Result<Vec<Piece>, Failure> {
        let pieces = match has.and_then(|has| self.behind(has)) {
            Some(commits) => {
                self.bases.remove(&id);
                commits
            }
            None => vec![self.base(id, part, store, now_ms)?],
        };
        Ok(pieces.into_iter().map(|piece| piece.signed(&self.key, id)).collect())
    }

    /// The commits that follow; `None`: some of them are not known any more, or what is there is of something else.
    fn behind(&self, has: Reach) -> Option<Vec<Piece>> {
        if has.key != self.sealer.id() {
            return None;
        }
        if has.moment.what == self.now {
            return Some(Vec::new());
        }
        let follows = |piece: &Piece| match piece {
            Piece::Commit { moment, before, .. } => {
                *before == has.moment.start && Some(moment.commit) == has.moment.commit.checked_add(1)
            }
            Piece::Base { .. } => false,
        };
        let first = self.commits.iter().position(follows)?;
        let mut taken = 0;
        let commits = self.commits.iter().skip(first).take_while(|piece| {
            let fits = taken < ANSWER_BYTES;
            taken += piece.sealed().len();
            fits
        });
        Some(commits.cloned().collect())
    }

    fn base(
        &mut self,
        id: BenefactorId,
        part: u32,
        store: &dyn Store,
        now_ms: u64,
    ) -> Result<Piece, Failure> {
        let under_way = self.bases.get(&id).is_some_and(|(_, reading)| part > 0 && reading.gives(part));
        if !under_way {
            let reading = Reading::new(store.snapshot().map_err(unreadable)?, now_ms);
            self.bases.insert(id, (self.now, reading));
        }
        let part = if under_way { part } else { 0 };
        let Some((moment, reading)) = self.bases.get_mut(&id) else {
            unreachable!("it is there, or was made")
        };
        assert_eq!(reading.sequence(), moment.commit, "a base is taken of what is durable");
        let (bytes, last) = reading.part(part, now_ms)?;
        Ok(self.sealer.base(*moment, part, last, bytes))
    }

    /// Lets go of all bases.
    pub(crate) fn close(&mut self) {
        self.bases.clear();
    }

    /// Lets go of bases that nobody reads.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        self.bases.retain(|_, (_, reading)| !reading.is_left(now_ms));
    }
}

#[cfg(test)]
mod tests {
    use stdchk_model::PoolId;
    use stdchk_model::journal::Journal as Pieces;

    use super::*;
    use crate::store::{MemoryStore, Table};

    const ID: BenefactorId = BenefactorId(0);
    const OWN: u64 = 7;
    const KEY: MomentKey = MomentKey([3; 32]);

    /// A manager's store with its journal, and a keeper.
    struct World {
        store: MemoryStore,
        journal: Journal,
        start: u64,
        kept: Pieces,
        /// The opened bytes of what is kept.
        bytes: Vec<u8>,
    }

    impl World {
        fn new() -> Self {
            let (store, start) = (MemoryStore::default(), OWN);
            let journal = Journal::new(sealer(), KEY, Moment { start: 0, commit: 0 });
            Self { store, journal, start, kept: Pieces::default(), bytes: Vec::new() }
        }

        fn restart(&mut self) {
            let before = Moment { start: self.start, commit: self.store.sequence() };
            self.start += 1;
            self.journal = Journal::new(sealer(), KEY, before);
        }

        fn commit(&mut self, length: usize) {
            let mut batch = Batch::default();
            let key = (self.store.sequence() % 3).to_be_bytes();
            batch.put(Table::Inode, &key, vec![1; length]);
            self.store.commit(&batch).unwrap();
            let moment = Moment { start: self.start, commit: self.store.sequence() };
            self.journal.committed(moment, &batch);
        }

        /// Takes what there is; how many parts of bases were among it.
        fn follow(&mut self) -> usize {
            let (mut parts, mut new, mut new_bytes) = (0, Pieces::default(), Vec::new());
            loop {
                let part = match new {
                    Pieces::Taking { next, .. } => next,
                    _ => 0,
                };
                let pieces = self.journal.answer(ID, self.kept.reach(), part, &self.store, 0).unwrap();
                if pieces.is_empty() {
                    return parts;
                }
                for piece in pieces {
                    let opened = sealer().open(piece.clone()).unwrap();
                    if matches!(piece, Piece::Commit { .. }) {
                        self.kept.follow(&piece).unwrap();
                        self.bytes.extend(opened);
                        continue;
                    }
                    parts += 1;
                    new.follow(&piece).unwrap();
                    new_bytes.extend(opened);
                    if new.reach().is_some() {
                        (self.kept, self.bytes) = (std::mem::take(&mut new), std::mem::take(&mut new_bytes));
                    }
                }
            }
        }

        fn check(&self) {
            let mut made = MemoryStore::default();
            made.commit(&Batch::decode(&self.bytes).unwrap()).unwrap();
            let all = |store: &MemoryStore| store.snapshot().unwrap().read(&[], usize::MAX).unwrap();
            assert_eq!(all(&made), all(&self.store));
            let moment = Moment { start: self.start, commit: self.store.sequence() };
            assert_eq!(self.kept.reach().unwrap().moment, KEY.sign(moment, ID));
        }
    }

    fn sealer() -> Sealer {
        Sealer::new(PoolId([1; 16]), None)
    }

    #[test]
    fn a_keeper_takes_a_base_once_and_then_what_is_committed_also_across_a_start() {
        let mut world = World::new();
        (0..5).for_each(|_| world.commit(100));
        assert_eq!(world.journal.keeper(ID).lacks, None);
        assert_eq!(world.follow(), 1);
        (0..5).for_each(|_| world.commit(100));
        world.journal.note(ID, world.kept.reach());
        assert_eq!(world.journal.keeper(ID).lacks, Some(5));
        assert_eq!(world.follow(), 0);
        world.journal.note(ID, world.kept.reach());
        assert_eq!(world.journal.keeper(ID).lacks, Some(0));
        world.check();
        world.restart();
        (0..5).for_each(|_| world.commit(100));
        assert_eq!(world.follow(), 0);
        world.check();
        // What it missed, the next start has no more in memory.
        world.commit(100);
        world.restart();
        world.commit(100);
        assert_eq!(world.follow(), 1);
        world.check();
    }

    #[test]
    fn what_is_not_in_memory_any_more_comes_with_a_base_of_as_many_parts_as_it_takes() {
        let mut world = World::new();
        world.commit(100);
        world.follow();
        (0..5).for_each(|_| world.commit(3 << 20));
        assert!(world.journal.bytes <= MEMORY_BYTES);
        assert!(world.follow() > 8);
        world.check();
        world.commit(MEMORY_BYTES + 1);
        assert!(world.journal.commits.is_empty());
        world.commit(1);
        assert!(world.follow() > 8);
        world.check();
    }

    #[test]
    fn commits_that_come_while_a_base_is_taken_follow_on_it() {
        let mut world = World::new();
        (0..3).for_each(|_| world.commit(1 << 20));
        let first = world.journal.answer(ID, None, 0, &world.store, 0).unwrap();
        world.commit(2 << 20);
        // Its keeper has forgotten that it had begun.
        assert_eq!(world.journal.answer(ID, None, 0, &world.store, 0).unwrap().len(), 1);
        assert_ne!(world.journal.answer(ID, None, 1, &world.store, 0).unwrap(), first);
        world.follow();
        world.check();
        assert!(world.journal.bases.is_empty());
    }

    #[test]
    fn what_is_sealed_with_another_key_or_of_another_history_is_taken_anew() {
        let mut world = World::new();
        world.commit(100);
        world.follow();
        let reach = world.kept.reach().unwrap();
        let moment = KEY.sign(Moment { start: 99, ..reach.moment.what }, ID);
        for other in [Reach { key: reach.key + 1, ..reach }, Reach { moment, ..reach }] {
            let pieces = world.journal.answer(ID, Some(other), 0, &world.store, 0).unwrap();
            assert!(matches!(pieces[..], [Piece::Base { part: 0, .. }]), "{pieces:?}");
        }
        world.journal.note(ID, Some(Reach { key: reach.key + 1, ..reach }));
        assert_eq!(world.journal.keeper(ID).lacks, None);
    }
}
