//! Random programs of file calls under the library and on the plain kernel: every call returns the same, with the same
//! error, and the tree in the end is the same; taken back, it is the tree from before.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;

use stdchk_filestate::store::Options;
use support::{Protected, plain, program, succeed, tree};

/// Fixed, so that a failure can be repeated; `random_calls SEED` is the whole program.
const SEEDS: std::ops::Range<u32> = 1..41;

fn seed(root: &Path) {
    std::fs::create_dir(root.join("dir")).unwrap();
    std::fs::write(root.join("a"), vec![b'a'; 9000]).unwrap();
    std::fs::write(root.join("dir/b"), "short").unwrap();
    std::fs::write(root.join("file"), "a file where a directory is named").unwrap();
    std::fs::write(root.join("kept"), vec![b'k'; 100]).unwrap();
    std::os::unix::fs::symlink("dir/b", root.join("link")).unwrap();
}

#[test]
fn random_programs_get_the_kernels_answers_and_can_be_taken_back() {
    let binary = program("random_calls");
    for number in SEEDS {
        let (without, with) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        seed(without.path());
        seed(with.path());
        let before = tree(with.path());
        let expected = succeed(plain(without.path(), &binary).arg(number.to_string()));
        let protected = Protected::new(with.path(), &Options::default());
        let answers = succeed(protected.command(&binary).arg(number.to_string()));
        let different =
            expected.lines().zip(answers.lines()).enumerate().find(|(_, (kernel, ours))| kernel != ours);
        assert_eq!(different, None, "seed {number}");
        assert_eq!(tree(with.path()), tree(without.path()), "seed {number}");
        protected.restore(0);
        assert_eq!(tree(with.path()), before, "seed {number}");
    }
}
