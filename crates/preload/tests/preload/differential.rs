//! Random programs of file calls under the library and on the plain kernel: every call returns the same, with the same
//! error, and the tree in the end is the same; taken back to a checkpoint, it is the tree that the plain kernel had when
//! the program was there.

use std::path::Path;

use crate::support::{Protected, Tree, plain, program, succeed, tree};
use stdchk_filestate::store::Options;

/// Fixed, so that a failure can be repeated; `random_calls SEED STEPS` is the whole program. `STDCHK_SEEDS` says how many
/// others are tried in their stead.
const SEEDS: u32 = 25;
const STEPS: u32 = 400;
/// Checkpoints that are gone back to, of each program: the newest and some before it.
const CHECKPOINTS: usize = 2;

fn seed(root: &Path) {
    std::fs::create_dir(root.join("dir")).unwrap();
    std::fs::write(root.join("a"), vec![b'a'; 9000]).unwrap();
    std::fs::write(root.join("dir/b"), "short").unwrap();
    std::fs::write(root.join("file"), "a file where a directory is named").unwrap();
    std::fs::write(root.join("kept"), vec![b'k'; 100]).unwrap();
    std::os::unix::fs::symlink("dir/b", root.join("link")).unwrap();
}

/// The program on the plain kernel, for so many steps: what it printed, and the tree that it left.
fn plainly(binary: &Path, number: u32, steps: u32) -> (String, Tree) {
    let root = tempfile::tempdir().unwrap();
    seed(root.path());
    let printed = succeed(plain(root.path(), binary).args([number, steps].map(|value| value.to_string())));
    (printed, tree(root.path()))
}

/// The steps after which the program took checkpoints.
fn steps_of_checkpoints(printed: &str) -> Vec<u32> {
    let lines = printed.lines().filter_map(|line| line.strip_prefix("checkpoint after "));
    lines.map(|steps| steps.parse().unwrap()).collect()
}

fn check(binary: &Path, number: u32) {
    let root = tempfile::tempdir().unwrap();
    seed(root.path());
    let before = tree(root.path());
    let (expected, left) = plainly(binary, number, STEPS);
    let protected = Protected::new(root.path(), &Options::default());
    let answers = succeed(protected.command(binary).args([number, STEPS].map(|value| value.to_string())));
    let different =
        expected.lines().zip(answers.lines()).enumerate().find(|(_, (kernel, ours))| kernel != ours);
    assert_eq!(different, None, "seed {number}");
    assert_eq!(tree(root.path()), left, "seed {number}");
    let taken: Vec<(u64, u32)> = (1..).zip(steps_of_checkpoints(&expected)).collect();
    for (index, steps) in taken.iter().rev().step_by(taken.len().div_ceil(CHECKPOINTS).max(1)) {
        protected.restore(*index);
        assert_eq!(tree(root.path()), plainly(binary, number, *steps).1, "seed {number}, {steps} steps");
    }
    protected.restore(0);
    assert_eq!(tree(root.path()), before, "seed {number}");
}

#[test]
fn random_programs_get_the_kernels_answers_and_can_be_taken_back() {
    let binary = program("random_calls");
    let wanted = std::env::var("STDCHK_SEEDS").ok().map(|text| text.parse().unwrap());
    let seeds = wanted.map_or(1..=SEEDS, |count: u32| SEEDS + 1..=SEEDS + count);
    seeds.for_each(|number| check(&binary, number));
}
