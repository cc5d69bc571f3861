//! What stays and what goes: by example, and for random sets under random rules.

use proptest::prelude::*;

use super::*;
use crate::error::ErrorCode;
use SetState::{Complete, Incomplete, Unknown};

fn set(timestep: u64, state: SetState) -> Facts {
    let position = TimeNs::try_from(timestep).unwrap();
    Facts {
        timestep: timestep.into(),
        state,
        position,
        committed: position,
        age_ms: Some(1_000_000 - timestep * 1_000),
        is_sealed: false,
        is_shared: false,
        is_written: false,
    }
}

fn rules(lifetime: &str) -> Rules {
    Rules { lifetime: lifetime.parse().unwrap(), done: None }
}

fn done_with(timestep: u64) -> Option<Done> {
    Some(Done { timestep: timestep.into(), position: TimeNs::MAX })
}

fn number(set: &Facts) -> u64 {
    set.timestep.name().parse().unwrap()
}

/// The timesteps that stay.
fn left(rules: &Rules, sets: &[Facts], is_whole: &[bool]) -> Vec<u64> {
    let fates = rules.fates(sets, is_whole);
    sets.iter().zip(fates).filter(|(_, fate)| !fate.goes()).map(|(set, _)| number(set)).collect()
}

/// Complete sets of these timesteps, all whole.
fn complete(timesteps: &[u64]) -> (Vec<Facts>, Vec<bool>) {
    (timesteps.iter().map(|timestep| set(*timestep, Complete)).collect(), vec![true; timesteps.len()])
}

#[test]
fn a_lifetime_is_read_as_people_write_it_and_printed_the_same() {
    for text in [
        "keep",
        "replace:3",
        "purge:7d",
        "replace:3 purge:12h every:100",
        "purge:90s every:2",
        "replace:2 every:0.1",
    ] {
        assert_eq!(text.parse::<Lifetime>().unwrap().to_string(), text);
    }
    assert_eq!("  every:5   replace:1 ".parse::<Lifetime>().unwrap().to_string(), "replace:1 every:5");
}

#[test]
fn what_says_nothing_or_too_much_is_refused_with_the_reason() {
    for (text, reason) in [
        ("", "nothing says what may go"),
        ("every:100", "nothing says what may go"),
        ("replace", "`keep`, or some of"),
        ("keep replace:3", "`keep`, or some of"),
        ("replace:0", "at least 1 always stays"),
        ("replace:-1", "at least 1"),
        ("purge:soon", "a duration"),
        ("purge:0s", "a duration"),
        ("replace:1 every:1", "write `keep`"),
        ("replace:1 every:0", "write `keep`"),
        ("replace:1 every:-2", "write `keep`"),
        ("replace:1 every:2016-10-13", "write `keep`"),
        ("replace:1 replace:2", "once"),
        ("forget:1", "have a meaning"),
    ] {
        let failure = text.parse::<Lifetime>().unwrap_err();
        assert_eq!(failure.code, ErrorCode::Invalid, "{text}");
        assert!(failure.to_string().contains(reason), "{text}: {failure}");
    }
}

#[test]
fn replace_keeps_the_newest_complete_sets_and_what_every_names() {
    let (sets, whole) = complete(&[1000, 950, 900, 850, 800]);
    assert_eq!(left(&rules("replace:2"), &sets, &whole), [1000, 950]);
    assert_eq!(left(&rules("replace:1 every:400"), &sets, &whole), [1000, 800]);
    assert_eq!(left(&rules("replace:9"), &sets, &whole).len(), 5);
    assert_eq!(left(&rules("keep"), &sets, &whole).len(), 5);
}

#[test]
fn purge_keeps_for_a_time_and_the_newest_for_ever() {
    let (sets, whole) = complete(&[1000, 950, 900]);
    // They are 0, 50 and 100 seconds old.
    assert_eq!(left(&rules("purge:80s"), &sets, &whole), [1000, 950]);
    assert_eq!(left(&rules("purge:1s"), &sets, &whole), [1000]);
    assert_eq!(left(&rules("purge:1s every:450"), &sets, &whole), [1000, 900]);
    // What any of both keeps, stays.
    assert_eq!(left(&rules("replace:1 purge:80s"), &sets, &whole), [1000, 950]);
    assert_eq!(left(&rules("replace:2 purge:1s"), &sets, &whole), [1000, 950]);
    let unwritten = [sets[0], Facts { age_ms: None, ..set(5, Incomplete) }];
    assert_eq!(left(&rules("purge:1s"), &unwritten, &whole[..2]), [1000, 5]);
}

#[test]
fn nothing_goes_until_a_newer_set_is_whole() {
    let (sets, _) = complete(&[4, 3, 2, 1]);
    assert_eq!(left(&rules("replace:1"), &sets, &[false; 4]).len(), 4);
    assert_eq!(left(&rules("replace:1"), &sets, &[false, false, true, false]), [4, 3, 2]);
    // Those between may be whole again once benefactors are back.
    assert_eq!(left(&rules("replace:2"), &sets, &[true, false, true, true]), [4, 3, 2]);
    assert_eq!(left(&rules("replace:2"), &sets, &[true, false, false, false]), [4, 3, 2, 1]);
}

#[test]
fn incomplete_sets_go_with_what_is_older_and_never_before() {
    let sets = [set(5, Incomplete), set(4, Complete), set(3, Incomplete), set(2, Complete), set(1, Unknown)];
    let whole = [false, true, false, true, false];
    assert_eq!(left(&rules("replace:2"), &sets, &whole), [5, 4, 2]);
    assert_eq!(left(&rules("replace:1 every:3"), &sets, &whole), [5, 4]);
    // What may be complete stays as long as what is.
    assert_eq!(left(&rules("replace:3"), &sets, &whole), [5, 4, 2, 1]);
}

#[test]
fn what_was_committed_after_the_newest_set_stays_though_its_timestep_is_smaller() {
    let (mut sets, whole) = complete(&[100, 50, 1]);
    sets[2].position = 101;
    assert_eq!(left(&rules("replace:1"), &sets, &whole), [100, 1]);
    // A file of the newest set was written or named since, but not all that it is made of.
    sets[0].position = 102;
    assert_eq!(left(&rules("replace:1"), &sets, &whole), [100, 1]);
    sets[0].committed = 102;
    assert_eq!(left(&rules("replace:1"), &sets, &whole), [100]);
}

#[test]
fn sealed_shared_and_written_sets_stay() {
    let (mut sets, whole) = complete(&[5, 4, 3, 2, 1]);
    (sets[1].is_sealed, sets[2].is_shared, sets[3].is_written) = (true, true, true);
    assert_eq!(left(&rules("replace:1"), &sets, &whole), [5, 4, 3, 2]);
    let done = Rules { done: done_with(5), ..Rules::default() };
    assert_eq!(left(&done, &sets, &whole), [5, 4, 3, 2]);
}

#[test]
fn a_job_that_is_done_leaves_its_last_set_whatever_came_since() {
    let (sets, whole) = complete(&[6, 5, 4, 3]);
    let done = |lifetime: &str| Rules { done: done_with(5), ..rules(lifetime) };
    assert_eq!(left(&done("keep"), &sets, &whole), [6, 5]);
    assert_eq!(left(&done("purge:30d every:3"), &sets, &whole), [6, 5, 3]);
    assert_eq!(left(&done("keep"), &sets, &[false, false, true, true]), [6, 5, 4]);
    // A later run writes 4 and then 6 anew.
    let (mut sets, whole) = complete(&[6, 5, 4, 3]);
    (sets[2].position, sets[0].committed) = (10, 11);
    let done = Rules { done: Some(Done { timestep: 5.into(), position: 9 }), ..Rules::default() };
    assert_eq!(left(&done, &sets, &whole), [6, 5, 4]);
}

#[test]
fn every_fate_says_in_words_what_becomes_of_the_set() {
    assert_eq!(Fate::For(90_000_000).to_string(), "stays for 25h more");
    assert_eq!(Fate::For(1).to_string(), "stays for 1s more");
    assert_eq!(Fate::Replaced(3).to_string(), "3 newer sets are complete");
    assert_eq!(Fate::Old(604_800_000).to_string(), "older than 7d");
}

fn any_sets() -> impl Strategy<Value = (Vec<Facts>, Vec<bool>)> {
    let state = prop_oneof![Just(Complete), Just(Incomplete), Just(Unknown)];
    let flags = (any::<bool>(), prop::array::uniform3(prop::bool::weighted(0.1)));
    let any_set = (state, (0..12i64, 0..3i64), prop::option::of(0..10_000u64), flags);
    prop::collection::vec(any_set, 0..12).prop_map(|sets| {
        let timesteps = (1..=sets.len() as u64).rev();
        let facts =
            sets.iter().zip(timesteps).map(|((state, (position, written), age_ms, (_, flags)), timestep)| {
                let (state, position, age_ms) = (*state, *position, *age_ms);
                let committed = position - *written;
                let [is_sealed, is_shared, is_written] = *flags;
                Facts {
                    timestep: timestep.into(),
                    state,
                    position,
                    committed,
                    age_ms,
                    is_sealed,
                    is_shared,
                    is_written,
                }
            });
        let whole = sets.iter().map(|(state, _, _, (whole, _))| *whole && *state == Complete);
        (facts.collect(), whole.collect())
    })
}

fn any_rules() -> impl Strategy<Value = Rules> {
    let kept = (prop::option::of(1..5u32), prop::option::of(1..10_000u64), prop::option::of(2..5u64));
    let keeping = kept.prop_filter_map("it says what may go", |(newest, within_ms, every)| {
        let every = every.map(Timestep::from);
        let may_go = newest.is_some() || within_ms.is_some();
        may_go.then_some(Lifetime::Keeping(Kept { newest, within_ms, every }))
    });
    (prop_oneof![Just(Lifetime::Keep), keeping], prop::option::of((1..12u64, 0..12i64))).prop_map(
        |(lifetime, done)| {
            let done = done.map(|(timestep, position)| Done { timestep: timestep.into(), position });
            Rules { lifetime, done }
        },
    )
}

proptest! {
    #[test]
    fn what_can_be_restarted_from_stays_and_the_rules_are_kept((sets, whole) in any_sets(), rules in any_rules()) {
        let fates = rules.fates(&sets, &whole);
        let all = || sets.iter().zip(&whole).zip(&fates);
        let newest = all().find(|((_, whole), _)| **whole).map(|((set, _), _)| *set);
        for ((set, _), fate) in all().filter(|(_, fate)| fate.goes()) {
            let newest = newest.expect("something goes only if a newer set can be restarted from");
            prop_assert!(set.timestep < newest.timestep && set.position < newest.committed, "{set:?} {fate:?}");
            prop_assert!(!set.is_sealed && !set.is_shared && !set.is_written);
            prop_assert!(rules.any_goes());
        }
        let Lifetime::Keeping(kept) = rules.lifetime else { return Ok(()) };
        let is_done = |set: &Facts| rules.done.is_some_and(|done| done.covers(set));
        if let Some(every) = kept.every {
            let mut multiples = all().filter(|((set, _), _)| set.state != Incomplete && set.timestep.is_multiple_of(&every));
            prop_assert!(multiples.all(|(_, fate)| !fate.goes()));
        }
        if let Some(count) = kept.newest {
            let newest_whole = all().filter(|((_, whole), _)| **whole).take(count as usize);
            prop_assert!(newest_whole.clone().all(|((set, _), fate)| is_done(set) || !fate.goes()));
            // Nothing else stays that nothing else keeps.
            let is_else = |fate: &Fate| matches!(fate, Fate::Newest | Fate::OfNewest(_));
            let left = all().filter(|((_, whole), fate)| **whole && is_else(fate)).count();
            prop_assert!(left <= newest_whole.count());
        }
    }

    #[test]
    fn what_went_once_is_missed_by_no_later_look((sets, whole) in any_sets(), rules in any_rules()) {
        let fates = rules.fates(&sets, &whole);
        let kept: Vec<usize> = (0..sets.len()).filter(|index| !fates[*index].goes()).collect();
        let left: Vec<Facts> = kept.iter().map(|index| sets[*index]).collect();
        let left_whole: Vec<bool> = kept.iter().map(|index| whole[*index]).collect();
        prop_assert!(rules.fates(&left, &left_whole).iter().all(|fate| !fate.goes()), "a second look takes no more");
    }
}
