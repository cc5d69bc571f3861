//! A file system exerciser under the library: whatever it does to a file, at any checkpoint and after any restore the
//! file is what the exerciser's own copy says.

use std::path::Path;

use crate::support::{Protected, plain, program, succeed, tree};
use stdchk_filestate::store::Options;

/// Fixed, so that a failure can be repeated; `exerciser SEED` is the whole program.
const SEEDS: std::ops::Range<u32> = 1..3;

/// A file that is not of whole blocks.
fn seed(root: &Path) {
    let old: Vec<u8> =
        (0..500_025u32).flat_map(|at| at.rotate_left(9).to_le_bytes()).take(2_000_099).collect();
    std::fs::write(root.join("old"), old).unwrap();
}

#[test]
fn every_change_to_a_file_can_be_taken_back_to_every_checkpoint() {
    let binary = program("exerciser");
    for number in SEEDS {
        let (without, with) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        seed(without.path());
        seed(with.path());
        let before = tree(with.path());
        succeed(plain(without.path(), &binary).arg(number.to_string()));
        let protected = Protected::new(with.path(), &Options::default());
        let said = succeed(protected.command(&binary).arg(number.to_string()));
        assert!(!said.starts_with("0 ") && !said.contains(" 0 "), "seed {number} checks nothing: {said}");
        protected.restore(0);
        assert_eq!(tree(with.path()), before, "seed {number}");
    }
}
