//! Lives of a pool, drawn from seeds: the manager's core, benefactors' stores and services as they are, in one thread, on time,
//! messages and disks that the life decides. Links and clients are models that keep to docs/PROTOCOL.md (docs/design/0602).
//!
//! `STDCHK_LIVES=N` runs so many lives, from `STDCHK_LIFE` on if that is given. A life that fails is made short, and the
//! message says how to live the short one again.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod adversaries;
mod checks;
mod client;
mod content;
mod decode;
mod disasters;
mod disk;
mod false_words;
mod files;
mod keepers;
mod liars;
mod life;
mod links;
mod making;
mod manager;
mod meddler;
mod model;
mod node;
mod packing;
mod plant;
mod receipts;
mod segments;
mod stale;
mod trespass;
mod world;

use life::Life;
use plant::Plant;

/// Lives of the usual run: some seconds.
const LIVES: u64 = 400;
/// Lives in which a planted mistake must be found, from the one on that is known to find it.
const LIVES_TO_FIND: u64 = 3000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Does something in which panics are expected.
fn quietly<T>(work: impl FnOnce() -> T) -> T {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let done = work();
    std::panic::set_hook(hook);
    done
}

/// The lives that are asked for.
fn lives() -> impl Iterator<Item = Life> {
    let first = number("STDCHK_LIFE").unwrap_or(0);
    let events = std::env::var("STDCHK_EVENTS").ok();
    let events: Option<Vec<u32>> =
        events.map(|events| events.split(',').map(|event| event.parse().unwrap()).collect());
    (first..first + number("STDCHK_LIVES").unwrap_or(LIVES)).map(move |seed| match &events {
        Some(events) => Life { seed, events: events.clone() },
        None => Life::of(seed),
    })
}

#[test]
fn what_is_acknowledged_stays_whatever_happens() {
    for life in lives() {
        if let Err(failure) = life.live(Plant::Nothing) {
            let (short, failure) = quietly(|| life.shortened(Plant::Nothing, &failure));
            panic!("life {}, in short `{short}`: {failure}", life.seed);
        }
    }
}

#[test]
fn a_life_is_the_same_each_time() {
    let first = number("STDCHK_LIFE").unwrap_or(0);
    for seed in first..first + number("STDCHK_LIVES").unwrap_or(40) {
        assert_eq!(Life::of(seed).live(Plant::Nothing), Life::of(seed).live(Plant::Nothing), "life {seed}");
    }
}

/// A simulation that finds nothing when something is wrong says nothing when nothing is found.
#[test]
fn every_planted_mistake_is_found() {
    let only = std::env::var("STDCHK_PLANT").ok();
    let mut missed = Vec::new();
    for (plant, hint) in Plant::ALL {
        if only.as_ref().is_some_and(|name| *name != format!("{plant:?}")) {
            continue;
        }
        let live = |seed| Some((seed, Life::of(seed).live(plant).err()?));
        match quietly(|| (hint..hint + LIVES_TO_FIND).find_map(live)) {
            Some((seed, failure)) => println!("{plant:?} is found in life {seed}: {}", failure.cause()),
            None => missed.push(plant),
        }
    }
    assert!(missed.is_empty(), "not found in {LIVES_TO_FIND} lives: {missed:?}");
}

/// A long life that fails is made a short one that fails in the same way.
#[test]
fn a_life_that_fails_is_made_short() {
    let plant = Plant::ReceiptWithoutSync;
    let (life, failure) = quietly(|| {
        let lives = (0..LIVES_TO_FIND).map(Life::of);
        lives.filter_map(|life| Some((life.clone(), life.live(plant).err()?))).next().unwrap()
    });
    let (short, failure) = quietly(|| life.shortened(plant, &failure));
    assert!(short.events.len() <= 30, "{} events are left of {}", short.events.len(), life.events.len());
    assert_eq!(quietly(|| short.live(plant)), Err(failure), "it is not the same each time");
}
