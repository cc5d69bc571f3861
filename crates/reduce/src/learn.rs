//! What `cutter=auto` learns from two versions: whether anything repeats between them, and at which granularity.
//!
//! Samples of both are cut by each candidate, and the bytes counted that the older one has too. The simplest candidate wins
//! that finds nearly as much as the best; where nothing repeats, that is the one that doesn't search. Zeros don't count:
//! they are never stored. Of the older version only names are kept, so that it can be shown stretch by stretch.

use std::collections::HashSet;

use stdchk_model::chunk_map::PieceName;

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

/// Where a grid lies of which nothing is known, in bytes behind a multiple of its length: at the file's beginning.
const PHASE_UNKNOWN: usize = 0;

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

/// What each candidate knows of an older version.
#[derive(Debug)]
pub struct Comparison {
    candidates: Vec<Candidate>,
}

#[derive(Debug)]
struct Candidate {
    name: &'static str,
    cutter: CutterSpec,
    /// Where its grid lies in the older version, once a stretch was seen.
    phase: Option<usize>,
    known: HashSet<PieceName>,
}

impl Comparison {
    /// One that knows nothing yet.
    ///
    /// # Errors
    /// A candidate is no cutter, which a test excludes.
    pub fn new() -> Result<Self, BadCutter> {
        let candidates = CANDIDATES.into_iter().map(Candidate::new).collect::<Result<_, _>>()?;
        Ok(Self { candidates })
    }

    /// Takes in a stretch of the older version, which begins at a multiple of a mebibyte.
    pub fn add(&mut self, stretch: &[u8]) {
        self.candidates.iter_mut().for_each(|candidate| candidate.add(stretch));
    }

    /// What each candidate finds of samples of the newer version, each of which begins at a multiple of a mebibyte.
    pub fn found(&self, new: &[&[u8]]) -> Vec<Found> {
        let found = |one: &Candidate| Found { cutter: one.name, percent: one.percent(new) };
        self.candidates.iter().map(found).collect()
    }
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

impl Candidate {
    fn new(name: &'static str) -> Result<Self, BadCutter> {
        Ok(Self { name, cutter: name.parse()?, phase: None, known: HashSet::new() })
    }

    fn add(&mut self, stretch: &[u8]) {
        let expected = || self.cutter.seeker().map_or(0, |mut seeker| seeker.expect(stretch));
        let phase = *self.phase.get_or_insert_with(expected);
        self.known.extend(names(&self.cutter, phase, stretch).into_iter().map(|(name, _)| name));
    }

    fn percent(&self, new: &[&[u8]]) -> u64 {
        // Where the grid is not found again it lies as in the older version; without one, at the file's beginning.
        let phase = self.phase_in(new).or(self.phase).unwrap_or(PHASE_UNKNOWN);
        let (mut all, mut found) = (0u64, 0u64);
        for (name, length) in new.iter().flat_map(|sample| names(&self.cutter, phase, sample)) {
            all += length;
            found += if self.known.contains(&name) { length } else { 0 };
        }
        assert!(found <= all, "what is found is a part of what is looked for");
        match all {
            // Nothing but zeros: nothing can be found.
            0 => 0,
            all => found * 100 / all,
        }
    }

    fn phase_in(&self, new: &[&[u8]]) -> Option<usize> {
        let mut seeker = self.cutter.seeker().filter(|_| !self.known.is_empty())?;
        new.iter().find_map(|sample| seeker.look(sample, |piece| self.known.contains(&PieceName::of(piece))))
    }
}

/// The pieces of a stretch that aren't zeros: their names and lengths.
fn names(cutter: &CutterSpec, phase: usize, stretch: &[u8]) -> Vec<(PieceName, u64)> {
    let mut cutter = cutter.cutter_at(phase);
    let cut = pieces(&mut *cutter, stretch).filter(|piece| !is_zero(piece));
    cut.map(|piece| (PieceName::of(piece), piece.len() as u64)).collect()
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
        let mut comparison = Comparison::new().unwrap();
        comparison.add(old);
        choose(&comparison.found(&[new]))
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
