//! What `cutter=auto` learns from two versions: whether anything repeats between them, and at which granularity.
//!
//! Samples of both are cut by each candidate, and the bytes counted that the older one has too. The simplest candidate wins
//! that finds nearly as much as the best; where nothing repeats, that is the one that doesn't search. Zeros don't count:
//! they are never stored.

use std::collections::HashSet;

use stdchk_model::ChunkId;

use crate::cut::{BadCutter, CutterSpec, pieces};
use crate::is_zero;

/// The word for a cutter that is learned.
pub const AUTO: &str = "auto";
/// What cuts before anything was learned: content-defined pieces find both pages and moved bytes, if not all of them.
pub const UNLEARNED: &str = "cdc:16KiB";
/// Candidates, the simplest first: whole chunks, which only find what stayed in place; the grid of pages, wherever it lies
/// in the newer version; content.
pub const CANDIDATES: [&str; 3] = ["fsch:1MiB", "fsch:4KiB", UNLEARNED];
/// Points of a hundred by which a candidate must find more than a simpler one to be worth its search.
const WORTH_PERCENT: u64 = 5;

/// What one candidate found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The candidate.
    pub cutter: &'static str,
    /// Of the newer sample's bytes that aren't zero, those that the older one has, in hundredths.
    pub percent: u64,
}

/// The cutter of a folder: as its policy says, or what was learned.
///
/// # Errors
/// Neither is a cutter.
pub fn cutter_of(policy: &str, learned: &str) -> Result<CutterSpec, BadCutter> {
    match (policy, learned) {
        (AUTO, "") => UNLEARNED.parse(),
        (AUTO, learned) => learned.parse(),
        (policy, _) => policy.parse(),
    }
}

/// What each candidate finds of `new` in `old`: samples of two versions, in pieces of a file each, the old ones around the
/// places of the new ones.
///
/// # Errors
/// A candidate is no cutter, which a test excludes.
pub fn compare(old: &[&[u8]], new: &[&[u8]]) -> Result<Vec<Found>, BadCutter> {
    let found = |cutter: &'static str| Ok(Found { cutter, percent: share(&cutter.parse()?, old, new) });
    CANDIDATES.into_iter().map(found).collect()
}

/// The simplest candidate that finds nearly as much as any.
pub fn choose(found: &[Found]) -> &'static str {
    let mut best = CANDIDATES[0];
    let mut percent = found.iter().find(|one| one.cutter == best).map_or(0, |one| one.percent);
    for one in found {
        if one.percent > percent + WORTH_PERCENT {
            (best, percent) = (one.cutter, one.percent);
        }
    }
    best
}

fn share(cutter: &CutterSpec, old: &[&[u8]], new: &[&[u8]]) -> u64 {
    let seeker = || cutter.seeker().zip(old.first());
    let before = seeker().map_or(0, |(mut seeker, first)| seeker.expect(first));
    let known: HashSet<[u8; 32]> =
        old.iter().flat_map(|part| names(cutter, before, part)).map(|(name, _)| name).collect();
    let now = seeker().and_then(|(mut seeker, _)| {
        let is_known = |piece: &[u8]| known.contains(&ChunkId::of(piece).0);
        new.iter().find_map(|part| seeker.look(part, is_known))
    });
    let (mut all, mut found) = (0u64, 0u64);
    for (name, length) in new.iter().flat_map(|part| names(cutter, now.unwrap_or(before), part)) {
        all += length;
        found += if known.contains(&name) { length } else { 0 };
    }
    (found * 100).checked_div(all).unwrap_or(0)
}

fn names<'a>(cutter: &CutterSpec, phase: usize, part: &'a [u8]) -> Vec<([u8; 32], u64)> {
    let mut cutter = cutter.cutter_at(phase);
    let cut = pieces(&mut *cutter, part).filter(|piece: &&'a [u8]| !is_zero(piece));
    cut.map(|piece| (ChunkId::of(piece).0, piece.len() as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn noise(length: usize, seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            state.wrapping_mul(0x2545_f491_4f6c_dd1d)
        };
        (0..length.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(length).collect()
    }

    fn learned(old: &[u8], new: &[u8]) -> &'static str {
        choose(&compare(&[old], &[new]).unwrap())
    }

    #[test]
    fn where_nothing_repeats_there_is_no_search() {
        assert_eq!(learned(&noise(4 * MIB, 1), &noise(4 * MIB, 2)), "fsch:1MiB");
        assert_eq!(learned(&noise(4 * MIB, 1), &vec![0; 4 * MIB]), "fsch:1MiB");
    }

    #[test]
    fn where_everything_stays_in_place_whole_chunks_do() {
        let old = noise(4 * MIB, 3);
        assert_eq!(learned(&old, &old), "fsch:1MiB");
    }

    #[test]
    fn scattered_changes_of_pages_want_the_grid_of_pages() {
        let old = noise(4 * MIB, 4);
        let mut new = old.clone();
        for page in (0..new.len()).step_by(16 << 10) {
            new[page..page + 4096].copy_from_slice(&noise(4096, page as u64 + 9));
        }
        assert_eq!(learned(&old, &new), "fsch:4KiB");
    }

    #[test]
    fn pages_that_moved_by_a_few_bytes_want_the_grid_of_pages_too() {
        let old = noise(4 * MIB, 7);
        let mut new = noise(314, 8);
        new.extend_from_slice(&old[..4 * MIB - 314]);
        for page in (314..new.len() - 4096).step_by(16 << 10) {
            new[page..page + 4096].copy_from_slice(&noise(4096, page as u64 + 9));
        }
        assert_eq!(learned(&old, &new), "fsch:4KiB");
    }

    #[test]
    fn moved_bytes_want_pieces_that_content_defines() {
        let old = noise(4 * MIB, 5);
        let mut new = old.clone();
        for (number, place) in (0..4 * MIB).step_by(100_000).enumerate().skip(1) {
            new.splice(place..place, noise(123, number as u64));
        }
        assert_eq!(learned(&old, &new), "cdc:16KiB");
    }

    #[test]
    fn a_policy_that_names_a_cutter_is_not_overruled() {
        assert_eq!(cutter_of("fsch:64KiB", "cdc:16KiB"), "fsch:64KiB".parse());
        assert_eq!(cutter_of(AUTO, ""), UNLEARNED.parse());
        assert_eq!(cutter_of(AUTO, "fsch:4KiB"), "fsch:4KiB".parse());
        assert!(cutter_of(AUTO, "scissors").is_err());
    }
}
