//! Kills: a program that checkpoints for ever is killed at many moments; what it leaves goes back to exactly its last
//! checkpoint, also when the restore is killed as well.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::time::Duration;

use stdchk_filestate::restore;
use stdchk_filestate::store::{Mode, Options};
use support::{Protected, program, tree};

const KILLS: u32 = 12;

/// Every file of the program says `index`.
fn assert_state(root: &Path, index: u64) {
    let text = format!("{index:08}");
    if index == 0 {
        assert!(tree(root).is_empty(), "{:?}", tree(root));
        return;
    }
    for name in ["counter", "result", "scratch"] {
        assert_eq!(std::fs::read_to_string(root.join(name)).unwrap(), text, "{name}");
    }
    let lines: String = (1..=index).map(|line| format!("{line:08}\n")).collect();
    assert_eq!(std::fs::read_to_string(root.join("log")).unwrap(), lines);
    assert_eq!(tree(root).len(), 4, "{:?}", tree(root));
}

fn killed_after(protected: &Protected, binary: &Path, time: Duration) {
    let mut child = protected.command(binary).spawn().unwrap();
    std::thread::sleep(time);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_killed_program_goes_back_to_exactly_its_last_checkpoint() {
    let binary = program("committer");
    for (kill, mode) in (0..KILLS).zip([Mode::WriteThrough, Mode::Single].into_iter().cycle()) {
        let root = tempfile::tempdir().unwrap();
        let protected = Protected::new(root.path(), &Options { mode, ..Options::default() });
        killed_after(&protected, &binary, Duration::from_micros(3000 + 7300 * u64::from(kill)));
        let newest = protected.store.entry(None).unwrap().index;
        protected.restore(newest);
        assert_state(&protected.root, newest);
    }
}

#[test]
fn after_a_kill_every_index_can_be_restored_by_a_restore_that_is_itself_cut_off() {
    let root = tempfile::tempdir().unwrap();
    let protected = Protected::new(root.path(), &Options::default());
    let binary = program("committer");
    let mut child = protected.command(&binary).spawn().unwrap();
    while protected.store.entry(None).unwrap().index < 4 {
        assert_eq!(child.try_wait().unwrap(), None, "the program runs until it is killed");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let newest = protected.store.entry(None).unwrap().index;
    for (index, budget) in (0..=newest).rev().zip([3, 0, 7, 1].into_iter().cycle()) {
        restore::cut_off(&protected.store, index, budget, budget == 7).unwrap();
        restore::finish_interrupted(&protected.store).unwrap();
        assert_state(&protected.root, index);
    }
}
