//! Pools as they are, in one thread: manager, benefactors and clients on a network in memory, in lives that are drawn from seeds
//! (docs/design/0602).
//!
//! Every process is a runtime with a paused clock of its own ([`host`]), which the life lets go on a few milliseconds at a time, one
//! process after the other. Killing a process drops its runtime with all its tasks; one that is stopped gets no time. What the product
//! does on other threads becomes tasks (`stdchk_net::elsewhere`), and the system's random numbers come from the seed ([`seeded`]), so
//! that a life is the same each time. Not drawn from the seed are the wall clock, which decides nothing here, and the disk, which is
//! a real directory: a killed process leaves there what it wrote, as one that is killed with SIGKILL does.
//!
//! `STDCHK_POOL=SEED` lives that life again, `STDCHK_POOLS=N` so many from there on or from the first one. With
//! `STDCHK_POOL_SAYS=1` the history is told as it happens.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod content;
mod host;
mod life;
mod log;
mod model;
mod network;
mod plant;
mod random;
mod rest;
mod seeded;
mod work;
mod world;

use life::Failed;
use plant::Plant;

/// Lives of the usual run: about half a minute.
const LIVES: u64 = 20;
/// Lives in which a planted mistake must be found.
const LIVES_TO_FIND: u64 = 60;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

fn live(seed: u64, plant: Plant) -> Result<String, Failed> {
    seeded::with_seed(seed, || life::live(seed, plant))
}

#[test]
fn what_is_acknowledged_stays_in_pools_as_they_are() {
    let first = number("STDCHK_POOL");
    let lives = number("STDCHK_POOLS").unwrap_or(if first.is_some() { 1 } else { LIVES });
    let first = first.unwrap_or(0);
    for seed in first..first + lives {
        match live(seed, Plant::Nothing) {
            Ok(hash) => println!("life {seed}: {}", &hash[..16]),
            Err(Failed { cause, history }) => {
                panic!("life {seed}, again with `STDCHK_POOL={seed}`: {cause}\n{history}")
            }
        }
    }
}

#[test]
fn a_life_is_the_same_each_time() {
    let hash = |seed| live(seed, Plant::Nothing).map_err(|failed| failed.cause);
    (0..2).for_each(|seed| assert_eq!(hash(seed), hash(seed), "life {seed}"));
}

/// A test that finds nothing when something is wrong says nothing when nothing is found.
#[test]
fn every_planted_mistake_is_found() {
    let only = std::env::var("STDCHK_PLANT").ok();
    for plant in
        Plant::ALL.into_iter().filter(|plant| only.as_ref().is_none_or(|name| *name == format!("{plant:?}")))
    {
        let found = (0..LIVES_TO_FIND).find_map(|seed| Some((seed, live(seed, plant).err()?.cause)));
        println!("{plant:?}: {found:?}");
        assert!(found.is_some(), "{plant:?} is not found in {LIVES_TO_FIND} lives");
    }
}
