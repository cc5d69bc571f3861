//! Up to which commit the journals of a pool's keepers tell what its manager's store held. Pure.
//!
//! A commit is agreed on if two thirds of the keepers that the journal itself names have a journal that went through it. What a journal
//! says behind that is true, too, since nobody makes a piece without the key; so the longest journal that went through the agreed
//! commit is taken whole. The agreement says that this is not an old state, or a future that was given up: of three keepers one may be lost, or
//! show less than it has, or nothing of use.

use stdchk_model::BenefactorId;
use stdchk_model::journal::Journal;
use stdchk_model::message::manager::Moment;

/// A journal that opened with the pool's key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vouched {
    /// Who has it.
    pub benefactor: BenefactorId,
    /// What it went through.
    pub journal: Journal,
    /// The keepers that it names.
    pub keepers: Vec<BenefactorId>,
    /// Where they served, as far as that can be read.
    pub addresses: Vec<(BenefactorId, String)>,
}

/// What journals agree on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// Whose journal is taken.
    pub from: BenefactorId,
    /// The last moment in it.
    pub end: Moment,
    /// The last moment that two thirds of the keepers have; `None`: fewer have any.
    pub agreed: Option<Moment>,
    /// The keepers.
    pub keepers: Vec<BenefactorId>,
    /// Those that have the agreed moment, or without one the last.
    pub supporters: Vec<BenefactorId>,
}

impl Vouched {
    fn end(&self) -> Option<Moment> {
        self.journal.reach().map(|reach| reach.moment.what)
    }

    /// The keepers of this journal whose journals went through a moment.
    fn supporters(&self, moment: Moment, all: &[Vouched]) -> Vec<BenefactorId> {
        let has = |keeper: &BenefactorId| {
            all.iter().any(|other| other.benefactor == *keeper && other.journal.has(moment))
        };
        self.keepers.iter().copied().filter(has).collect()
    }
}

/// What the journals agree on; without two thirds the longest one, and `None` if there is none.
pub fn agree(all: &[Vouched]) -> Option<Agreed> {
    let ends: Vec<Moment> = all.iter().filter_map(Vouched::end).collect();
    let mut best: Option<Agreed> = None;
    for one in all {
        let Some(end) = one.end() else { continue };
        for moment in ends.iter().copied().filter(|moment| one.journal.has(*moment)) {
            let supporters = one.supporters(moment, all);
            let is_agreed = supporters.len() * 3 >= one.keepers.len() * 2 && !supporters.is_empty();
            let (from, keepers) = (one.benefactor, one.keepers.clone());
            let found = Agreed { from, end, agreed: is_agreed.then_some(moment), keepers, supporters };
            if best.as_ref().is_none_or(|best| rank(best) < rank(&found)) {
                best = Some(found);
            }
        }
    }
    best
}

/// The later the agreed moment the better, then the longer the journal.
fn rank(agreed: &Agreed) -> (Option<u64>, u64, usize) {
    (agreed.agreed.map(|moment| moment.commit), agreed.end.commit, agreed.supporters.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use stdchk_model::Signed;
    use stdchk_model::journal::Piece;

    use super::*;

    const KEY: u64 = 9;

    /// The journal of a keeper that took a base at `base` and has all commits to `end` of a manager with these starts: the first commit of each
    /// and its identity.
    fn journal(starts: &[(u64, u64)], base: u64, end: u64) -> Journal {
        let at = |commit| {
            let start = starts.iter().rev().find(|(first, _)| *first <= commit).unwrap().1;
            Moment { start, commit }
        };
        let mut journal = Journal::default();
        journal
            .follow(&Piece::Base {
                moment: Signed::not_yet(at(base)),
                key: KEY,
                part: 0,
                last: true,
                sealed: Vec::new(),
            })
            .unwrap();
        for commit in base + 1..=end {
            let (moment, before) = (at(commit), at(commit - 1).start);
            journal
                .follow(&Piece::Commit { moment: Signed::not_yet(moment), before, sealed: Vec::new() })
                .unwrap();
        }
        journal
    }

    fn keepers(count: u32) -> Vec<BenefactorId> {
        (0..count).map(BenefactorId).collect()
    }

    fn vouched(benefactor: u32, count: u32, journal: Journal) -> Vouched {
        Vouched {
            benefactor: BenefactorId(benefactor),
            journal,
            keepers: keepers(count),
            addresses: Vec::new(),
        }
    }

    #[test]
    fn one_that_was_away_alone_is_not_believed_and_neither_is_a_future_that_was_given_up() {
        let starts = [(1, 1), (50, 2)];
        let given_up = [(1, 1), (40, 3)];
        let all = [
            vouched(0, 3, journal(&starts, 10, 60)),
            vouched(1, 3, journal(&starts, 45, 62)),
            vouched(2, 3, journal(&given_up, 10, 90)),
        ];
        let agreed = agree(&all).unwrap();
        assert_eq!(agreed.agreed, Some(Moment { start: 2, commit: 60 }));
        assert_eq!((agreed.from, agreed.end), (BenefactorId(1), Moment { start: 2, commit: 62 }));
        assert_eq!(agreed.supporters, [BenefactorId(0), BenefactorId(1)]);
        assert_eq!(agree(&all[1..2]).unwrap().agreed, None);
        assert_eq!(agree(&[]), None);
    }

    proptest! {
        /// Of a third of the keepers nothing comes back, or less than they have, or what was true once, or a future that was given up. The
        /// others lag behind by a few commits, as they do. What comes back is the store as it was after a commit of its
        /// history, and not before what two thirds have.
        #[test]
        fn any_third_of_the_keepers_may_be_lost_or_lie(
            count in 1u32..8,
            commits in 20u64..200,
            starts in prop::collection::btree_set(2u64..200, 0..5),
            lags in prop::collection::vec(0u64..8, 8),
            bases in prop::collection::vec(0.0..1.0f64, 8),
            bad in prop::collection::vec((0u32..8, 0u8..4, 0.0..1.0f64), 0..3),
        ) {
            let starts: Vec<(u64, u64)> =
                [(1, 1)].into_iter().chain(starts.into_iter().map(|first| (first, first * 10))).collect();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a share of a small number")]
            let share = |part: f64, of: u64| 1 + (part * of as f64) as u64 % of;
            let end = |keeper: u32| commits - lags[keeper as usize];
            let honest = |keeper: u32| {
                journal(&starts, share(bases[keeper as usize], commits - 8), end(keeper))
            };
            let mut all: Vec<Option<Vouched>> =
                (0..count).map(|keeper| Some(vouched(keeper, count, honest(keeper)))).collect();
            let mut spoilt = 0;
            for (keeper, how, part) in bad {
                if keeper >= count || (spoilt + 1) * 3 > count {
                    continue;
                }
                spoilt += 1;
                let cut = share(part, end(keeper));
                all[keeper as usize] = match how {
                    0 => None,
                    1 => Some(vouched(keeper, count, journal(&starts, cut, end(keeper)))),
                    2 => Some(vouched(keeper, count, journal(&starts, 1, cut))),
                    // It branched off before the others' ends, and went further.
                    _ => {
                        let cut = cut.min(commits - 9);
                        let kept = starts.iter().copied().filter(|(first, _)| *first <= cut);
                        let other: Vec<_> = kept.chain([(cut + 1, 7777)]).collect();
                        Some(vouched(keeper, count, journal(&other, 1, commits + 50)))
                    }
                };
            }
            let all: Vec<Vouched> = all.into_iter().flatten().collect();
            let agreed = agree(&all).unwrap();
            let truth = journal(&starts, 1, commits);
            let honest_ends: Vec<u64> = (0..count).map(end).collect();
            prop_assert!(agreed.agreed.is_some(), "{all:?}");
            prop_assert!(truth.has(agreed.end) || truth.reach().unwrap().moment.what == agreed.end, "{agreed:?} {all:?}");
            prop_assert!(agreed.end.commit >= *honest_ends.iter().min().unwrap(), "{agreed:?} {all:?}");
        }
    }
}
