//! Lives of a pool, drawn from seeds: the manager's core, benefactors' stores and services as they are, in one thread, on time and
//! messages that the life decides. Links and clients are models of a few lines that keep to docs/PROTOCOL.md.
//!
//! What happens to a life: messages that are late, lost or sent twice; managers, benefactors and clients that stop, come back or lose
//! power; collections between any two messages; several clients that write, overwrite and remove files of the same few chunks.
//! After every event every chunk that a version names must be durable somewhere (I1, I4), and what was acknowledged must be the
//! newest version (I2); at the end everything is found where the manager says, and nothing else is left.
//!
//! `STDCHK_LIVES=N` runs so many lives, from `STDCHK_LIFE` on if that is given; with `STDCHK_LIVES=1` that is the one of a failure.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod client;
mod node;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use world::{Plant, World};

/// Lives of the usual run: some seconds.
const LIVES: u64 = 300;
/// Lives in which a planted mistake must be found; most are within the first hundred.
const LIVES_TO_FIND: u64 = 3000;
/// Events of a life before all is quiet.
const EVENTS: u32 = 250;

/// Lives a life; a hash of all that happened.
fn live(seed: u64, plant: Plant) -> Result<blake3::Hash, String> {
    let mut world = World::new(seed, plant);
    let lived = catch_unwind(AssertUnwindSafe(|| {
        for _ in 0..EVENTS {
            world.event();
            world.check();
        }
        world.quiet();
    }));
    lived.map(|()| world.hash()).map_err(|cause| {
        let cause = cause.downcast_ref::<String>().cloned();
        let cause = cause.or_else(|| Some("a panic".to_owned())).unwrap_or_default();
        format!("life {seed}: {cause}\n{}", world.history())
    })
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn what_is_acknowledged_stays_whatever_happens() {
    let first = number("STDCHK_LIFE").unwrap_or(0);
    for seed in first..first + number("STDCHK_LIVES").unwrap_or(LIVES) {
        live(seed, Plant::Nothing).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn a_life_is_the_same_each_time() {
    for seed in 0..60 {
        assert_eq!(live(seed, Plant::Nothing), live(seed, Plant::Nothing), "life {seed}");
    }
}

/// A simulation that finds nothing when something is wrong says nothing when nothing is found.
#[test]
fn every_planted_mistake_is_found() {
    // What panics here is expected.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let missed: Vec<Plant> = Plant::ALL
        .into_iter()
        .filter(|plant| (0..LIVES_TO_FIND).all(|seed| live(seed, *plant).is_ok()))
        .collect();
    std::panic::set_hook(hook);
    assert!(missed.is_empty(), "not found in {LIVES_TO_FIND} lives: {missed:?}");
}
