//! Pools as they are, in one thread: manager, benefactors and clients on a network in memory, in lives that are drawn from seeds
//! (docs/design/0602).
//!
//! Every process is a runtime with a paused clock of its own ([`host`]), which the life lets go on a few milliseconds at a time, one
//! process after the other. Killing a process drops its runtime with all its tasks; one that is stopped gets no time. What the product
//! does on other threads becomes tasks (`stdchk_net::elsewhere`), and the system's random numbers come from the seed ([`seeded`]), so
//! that a life is the same each time. Not drawn from the seed are the wall clock, which decides nothing here, and the disk, which is
//! a real directory: a killed process leaves there what it wrote, as one that is killed with SIGKILL does.
//!
//! `STDCHK_POOL=SEED` lives that life again, `STDCHK_POOLS=N` so many from there on or from the first one, each in a process of its
//! own. With `STDCHK_POOL_SAYS=1` the history is told as it happens.

// The future of one request to the pool holds those of all steps below, down to the greeting of a manager.
#![recursion_limit = "256"]
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

use std::process::Command;

use life::Failed;
use plant::Plant;

/// The test that lives lives.
const NAME: &str = "what_is_acknowledged_stays_in_pools_as_they_are";
/// What stands before the hash of a life's history.
const HASH: &str = ": its history has the hash ";

/// Lives of the usual run: about half a minute.
const LIVES: u64 = 20;
/// Lives in which a planted mistake must be found.
const LIVES_TO_FIND: u64 = 60;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Lives a life in this process, of which it must be the first: tokio counts the runtimes of a process, and draws from that in which
/// order branches of a `select!` are looked at.
fn live(seed: u64, plant: Plant) -> Result<String, Failed> {
    seeded::with_seed(seed, || life::live(seed, plant))
}

/// Lives a life in a process of its own. The hash of its history, or what the process said of its failure.
fn live_apart(seed: u64, plant: Plant) -> Result<String, String> {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", NAME, "--nocapture"]).env_remove("STDCHK_POOLS");
    child.env("STDCHK_POOL", seed.to_string()).env("STDCHK_PLANT", format!("{plant:?}"));
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find_map(|line| line.split_once(HASH)) {
        Some((_, hash)) if output.status.success() => Ok(hash.to_owned()),
        _ => Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// The mistake that was asked for.
fn planted() -> Option<Plant> {
    let name = std::env::var("STDCHK_PLANT").ok()?;
    let all = Plant::ALL.into_iter().map(|(plant, _)| plant).chain([Plant::Nothing]);
    Some(all.into_iter().find(|plant| format!("{plant:?}") == name).unwrap())
}

#[test]
fn what_is_acknowledged_stays_in_pools_as_they_are() {
    let (first, lives) = (number("STDCHK_POOL"), number("STDCHK_POOLS"));
    if let (Some(seed), None) = (first, lives) {
        match live(seed, planted().unwrap_or(Plant::Nothing)) {
            Ok(hash) => println!("life {seed}{HASH}{hash}"),
            Err(Failed { cause, history }) => {
                panic!("life {seed}, again with `STDCHK_POOL={seed}`: {cause}\n{history}")
            }
        }
        return;
    }
    let first = first.unwrap_or(0);
    for seed in first..first + lives.unwrap_or(LIVES) {
        live_apart(seed, Plant::Nothing).unwrap_or_else(|said| panic!("{said}"));
    }
}

#[test]
fn a_life_is_the_same_each_time() {
    for seed in 0..2 {
        assert_eq!(live_apart(seed, Plant::Nothing), live_apart(seed, Plant::Nothing), "life {seed}");
    }
}

/// A test that finds nothing when something is wrong says nothing when nothing is found.
#[test]
fn every_planted_mistake_is_found() {
    let only = planted();
    for (plant, hint) in Plant::ALL.into_iter().filter(|(plant, _)| only.is_none_or(|only| only == *plant)) {
        let found = (hint..hint + LIVES_TO_FIND).find(|seed| live_apart(*seed, plant).is_err());
        println!("{plant:?}: {found:?}");
        assert!(found.is_some(), "{plant:?} is not found in {LIVES_TO_FIND} lives");
    }
}
