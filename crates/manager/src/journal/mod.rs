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
/// A keeper that lacks commits of so long ago counts as lost when it is asked what a recovery would bring back, milliseconds: it is seconds
/// behind as a rule, and for so long one that lies about it can hold up a collection.
const ABSENT_MS: u64 = 60_000;
/// How often it is noted how far the store is, milliseconds.
const MARK_EVERY_MS: u64 = 5_000;
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
    /// The last commit of this store that each benefactor said is durable there.
    durable: HashMap<BenefactorId, u64>,
    /// The last commit at some times: when, milliseconds of the manager's life, and which. The first is the newest that is older than
    /// [`ABSENT_MS`], or the first of all.
    marks: VecDeque<(u64, u64)>,
}

impl Journal {
    /// Of a start on a store whose last commit, of an earlier start, is `before`.
    pub fn new(sealer: Sealer, key: MomentKey, before: Moment) -> Self {
        let (commits, bases, heard, durable) =
            (VecDeque::new(), HashMap::new(), HashMap::new(), HashMap::new());
        let marks = VecDeque::from([(0, before.commit)]);
        Self { sealer, key, now: before, commits, bytes: 0, bases, heard, durable, marks }
    }

    /// A benefactor says that it has this much.
    pub fn note(&mut self, id: BenefactorId, has: Option<Reach>) {
        match has.filter(|has| has.key == self.sealer.id()) {
            Some(has) => self.heard.insert(id, has.moment.commit),
            None => self.heard.remove(&id),
        };
    }

    /// A benefactor says that this commit of the store, and all before it, are durable there.
    pub fn is_durable(&mut self, id: BenefactorId, commit: Option<u64>) {
        match commit {
            Some(commit) => self.durable.insert(id, commit.min(self.now.commit)),
            None => self.durable.remove(&id),
        };
    }

    /// The commit to which a recovery from these keepers returns at least; `None`: there are none.
    ///
    /// Recovery takes the longest journal that goes through what two thirds of the keepers have, and a third of them may be lost or lie
    /// ([`crate::recover`]). So it comes back at least as far as the slowest of those that follow. A keeper that isn't on-line, or doesn't
    /// follow for [`ABSENT_MS`], counts as lost, as long as no more than a third does. Beyond that the absent ones decide to what a
    /// recovery returns, and collection waits for them.
    pub fn kept_by(&self, keepers: &[(BenefactorId, bool)]) -> Option<u64> {
        let durable = |id: &BenefactorId| self.durable.get(id).copied().unwrap_or(0);
        let mut all: Vec<u64> = keepers.iter().map(|(id, _)| durable(id)).collect();
        all.sort_unstable_by(|one, other| other.cmp(one));
        let decides = *all.get(keepers.len() / 3)?;
        let followed = self.marks.front().map_or(0, |(_, commit)| *commit);
        let online = keepers.iter().filter(|(_, is_online)| *is_online);
        let slowest = online.map(|(id, _)| durable(id)).filter(|commit| *commit >= followed).min();
        Some(slowest.map_or(decides, |slowest| slowest.min(decides)))
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

    /// Lets go of bases that nobody reads, and notes how far the store is.
    pub(crate) fn tick(&mut self, now_ms: u64) {
        if self.marks.back().is_none_or(|(ms, _)| now_ms.saturating_sub(*ms) >= MARK_EVERY_MS) {
            self.marks.push_back((now_ms, self.now.commit));
        }
        while self.marks.get(1).is_some_and(|(ms, _)| now_ms.saturating_sub(*ms) >= ABSENT_MS) {
            self.marks.pop_front();
        }
        self.bases.retain(|_, (_, reading)| !reading.is_left(now_ms));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stdchk_model::PoolId;
    use stdchk_model::Signed;
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
    fn collection_waits_for_the_slowest_keeper_that_follows_and_for_absent_ones_only_if_they_decide() {
        let mut world = World::new();
        (0..100).for_each(|_| world.commit(10));
        let mut journal = world.journal;
        let ids = |count| (0..count).map(BenefactorId).collect::<Vec<_>>();
        let online = |count| ids(count).into_iter().map(|id| (id, true)).collect::<Vec<_>>();
        let mut kept = |ms: u64, told: &[Option<u64>], away: &[u32]| {
            journal.tick(ms);
            let count = u32::try_from(told.len()).unwrap();
            ids(count).into_iter().zip(told).for_each(|(id, told)| journal.is_durable(id, *told));
            let mut keepers = online(count);
            keepers.iter_mut().for_each(|(id, is_online)| *is_online = !away.contains(&id.0));
            journal.kept_by(&keepers)
        };
        assert_eq!(kept(0, &[], &[]), None, "without keepers nothing waits");
        assert_eq!(kept(0, &[Some(97)], &[]), Some(97));
        assert_eq!(kept(0, &[Some(1_000_000)], &[]), Some(100), "nobody has what there is not");
        assert_eq!(kept(0, &[None, None, None], &[]), Some(0));
        assert_eq!(kept(0, &[Some(100), Some(98), None], &[2]), Some(98));
        assert_eq!(kept(0, &[Some(100), Some(98), Some(97)], &[]), Some(97), "the slowest of all");
        // Commits of so long ago one lacks that follows no more.
        assert_eq!(kept(ABSENT_MS, &[Some(100), Some(98), Some(97)], &[]), Some(97), "nobody knows yet");
        assert_eq!(kept(2 * ABSENT_MS, &[Some(100), Some(100), Some(97)], &[]), Some(100));
        assert_eq!(kept(2 * ABSENT_MS, &[Some(100), Some(3), Some(97)], &[]), Some(97), "two thirds decide");
        assert_eq!(kept(2 * ABSENT_MS, &[Some(100), Some(3)], &[]), Some(100));
        let seven = [Some(100), Some(100), Some(99), Some(5), Some(5), Some(5), Some(5)];
        assert_eq!(kept(2 * ABSENT_MS, &seven, &[]), Some(99));
        assert_eq!(kept(2 * ABSENT_MS, &seven, &[1, 2]), Some(99), "who is away counts by what it had");
    }

    proptest! {
        /// A third of the keepers may say that more is durable than is. What recovery brings back is never before what the collection went by.
        #[test]
        fn no_recovery_comes_back_before_what_collection_went_by(
            ends in prop::collection::vec((10u64..100, 1u64..100), 1..8),
            liars in prop::collection::btree_set(0usize..8, 0..3),
            lost in prop::collection::btree_set(0usize..8, 0..3),
        ) {
            let count = ends.len();
            let spoilt: Vec<usize> = liars.union(&lost).copied().filter(|at| *at < count).collect();
            prop_assume!(spoilt.len() <= count / 3);
            let mut world = World::new();
            (0..100).for_each(|_| world.commit(10));
            let ids: Vec<BenefactorId> = (0..).take(count).map(BenefactorId).collect();
            for (at, (end, _)) in ends.iter().enumerate() {
                let told = if liars.contains(&at) { 100 } else { *end };
                world.journal.is_durable(ids[at], Some(told));
            }
            let keepers: Vec<_> = ids.iter().map(|id| (*id, true)).collect();
            let kept = world.journal.kept_by(&keepers).unwrap();
            let vouched = |at: usize| {
                let (end, base) = (ends[at].0, ends[at].1.min(ends[at].0));
                let mut journal = Pieces::default();
                let moment = |commit| Moment { start: OWN, commit };
                let base_piece = Piece::Base { moment: Signed::not_yet(moment(base)), key: 9, part: 0, last: true, sealed: Vec::new() };
                journal.follow(&base_piece).unwrap();
                for commit in base + 1..=end {
                    journal.follow(&Piece::Commit { moment: Signed::not_yet(moment(commit)), before: OWN, sealed: Vec::new() }).unwrap();
                }
                crate::recover::Vouched { benefactor: ids[at], journal, keepers: ids.clone(), addresses: Vec::new() }
            };
            let found: Vec<_> = (0..count).filter(|at| !lost.contains(at)).map(vouched).collect();
            if let Some(agreed) = crate::recover::agree(&found).filter(|agreed| agreed.agreed.is_some()) {
                prop_assert!(agreed.end.commit >= kept, "{agreed:?} is before {kept}");
            }
        }
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
