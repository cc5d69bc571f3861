//! Kills: a program that checkpoints for ever is killed at many moments; what it leaves goes back to exactly its last
//! checkpoint, also when the restore is killed as well.

use std::path::Path;
use std::time::Duration;

use crate::support::{Protected, program, tree};
use stdchk_filestate::restore;
use stdchk_filestate::store::{Mode, Options};

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

/// What the changes of `one_commit` change.
fn seed(root: &Path) {
    std::fs::write(root.join("data"), vec![b'o'; 10_000]).unwrap();
    for name in ["log", "gone", "result"] {
        std::fs::write(root.join(name), format!("{name}\n")).unwrap();
    }
}

/// Kills `one_commit` at its `number`th system call after it made the file `from`; false when it ended before.
fn killed_at(protected: &Protected, number: usize, from: &str, arguments: &[&str]) -> bool {
    let mut command = protected.command(&program("kill_at"));
    // The one that kills is not watched; the one that is killed is.
    let watched = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD").and_then(|(_, value)| value);
    let preload = format!("LD_PRELOAD={}", watched.unwrap().display());
    command.env_remove("LD_PRELOAD").arg(number.to_string()).arg(from);
    command.arg("/usr/bin/env").arg(preload).arg(program("one_commit")).args(arguments);
    match command.status().unwrap().code() {
        Some(0) => true,
        Some(3) => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn killed_at_every_system_call_of_a_commit_it_goes_back_to_the_last_whole_checkpoint() {
    let whole = tempfile::tempdir().unwrap();
    seed(whole.path());
    let before = tree(whole.path());
    crate::support::succeed(crate::support::plain(whole.path(), &program("one_commit")).arg("commit"));
    let after = tree(whole.path());
    let mut found = [0; 2];
    for number in 0.. {
        let root = tempfile::tempdir().unwrap();
        seed(root.path());
        let protected = Protected::new(root.path(), &Options::default());
        let killed = killed_at(&protected, number, "begin", &["commit"]);
        let newest = protected.store.entry(None).unwrap().index;
        protected.restore(newest);
        let expected = if newest == 0 { &before } else { &after };
        assert_eq!(&tree(root.path()), expected, "killed at system call {number}, index {newest}");
        found[usize::try_from(newest).unwrap()] += 1;
        if !killed {
            break;
        }
    }
    assert!(found[0] > 40 && found[1] > 1, "kills before and after the commit: {found:?}");
}

#[test]
fn killed_at_every_system_call_of_a_restore_it_is_completed_by_the_next() {
    let whole = tempfile::tempdir().unwrap();
    seed(whole.path());
    crate::support::succeed(crate::support::plain(whole.path(), &program("one_commit")).arg("commit"));
    let committed = tree(whole.path());
    for number in 0.. {
        let root = tempfile::tempdir().unwrap();
        seed(root.path());
        let protected = Protected::new(root.path(), &Options::default());
        let killed = killed_at(&protected, number, "end", &[]);
        protected.restore(1);
        assert_eq!(tree(root.path()), committed, "killed at system call {number}");
        if !killed {
            assert!(number > 40, "{number} system calls");
            break;
        }
    }
}

/// Files are made durable one by one, or all at once where they are many: here all at once.
#[test]
fn a_restore_ends_whose_contents_cannot_be_made_durable_and_is_completed_by_the_next() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..80 {
        std::fs::write(root.path().join(format!("file{number}")), "before").unwrap();
    }
    let before = tree(root.path());
    let protected = Protected::new(root.path(), &Options::default());
    let ended = protected.command(&program("failing_disk")).status().unwrap();
    assert_eq!(ended.code(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
    assert!(restore::is_interrupted(&protected.store).unwrap());
    protected.restore(1);
    assert_eq!(tree(root.path()), before);
}
