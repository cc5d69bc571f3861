//! Pools as they are, in one thread: manager, benefactors and clients on a network in memory, in lives that are drawn from seeds.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod content;
mod host;
mod life;
mod log;
mod model;
mod network;
mod random;
mod rest;
mod seeded;
mod work;
mod world;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Lives of the usual run.
const LIVES: u64 = 10;

#[test]
fn what_is_acknowledged_stays_whatever_happens() {
    let first = number("STDCHK_POOL").unwrap_or(0);
    let lives = number("STDCHK_POOLS").unwrap_or(if number("STDCHK_POOL").is_some() { 1 } else { LIVES });
    for seed in first..first + lives {
        let begun = std::time::Instant::now();
        match seeded::with_seed(seed, || life::live(seed)) {
            Ok(hash) => println!("life {seed}: {:.1} s, {}", begun.elapsed().as_secs_f64(), &hash[..8]),
            Err(failed) => panic!("life {seed} (`STDCHK_POOL={seed}`): {}\n{}", failed.cause, failed.history),
        }
    }
}
