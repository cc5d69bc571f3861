//! The verification list of Metamori (section 5.2), each item its own C program (`tests/programs`), run with and without
//! the library: what it prints must be the same, and so must the tree that it leaves, unless it goes back itself; the
//! tree from before the run is there again after a restore to the start.

use std::num::NonZeroUsize;
use std::path::Path;

use crate::support::{Protected, plain, program, succeed, tree};
use stdchk_filestate::store::{Mode, Options};

/// A tree that is not empty, so that going back has something to be right about.
fn seed(root: &Path) {
    std::fs::write(root.join("file"), "from before").unwrap();
    std::fs::write(root.join("a"), vec![b'q'; 5000]).unwrap();
    std::fs::create_dir(root.join("kept")).unwrap();
}

/// Runs the program both ways and returns what it printed plainly and, beyond that, under the library.
fn both_ways(name: &str, mode: Mode) -> (String, String) {
    both_ways_with(name, &Options { mode, ..Options::default() })
}

fn both_ways_with(name: &str, options: &Options) -> (String, String) {
    let binary = program(name);
    let (without, with) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    seed(without.path());
    seed(with.path());
    let before = tree(with.path());
    let expected = succeed(&mut plain(without.path(), &binary));
    let protected = Protected::new(with.path(), options);
    let printed = succeed(&mut protected.command(&binary));
    let beyond = printed
        .strip_prefix(&expected)
        .unwrap_or_else(|| panic!("{expected}\n--- under the library:\n{printed}"));
    let source =
        std::fs::read_to_string(format!("{}/tests/programs/{name}.c", env!("CARGO_MANIFEST_DIR"))).unwrap();
    if !source.contains("stdchk_restore") {
        assert_eq!(tree(with.path()), tree(without.path()));
    }
    if options.mode != Mode::Single {
        protected.restore(0);
        assert_eq!(tree(with.path()), before);
    }
    (expected, beyond.to_owned())
}

macro_rules! programs {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            both_ways(stringify!($name), Mode::WriteThrough);
        }
    )*};
}

programs! {
    read_sequential read_intermediate read_holes created_disappear dup_across_checkpoints swapped_descriptors
    fdopen_closes stream_flags seeks stream_forms pushed_back processes threads many_files signal_handler
    cancelled busy_stream waiting_pipe large_sparse nameless listings roundabout
    opened_to_write mapping_named_later removed_directory resolved record_locks
}

macro_rules! scenarios {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let (shown, again) = both_ways(stringify!($name), Mode::WriteThrough);
            // Printed after the first change; again after going back there; then the empty file of the start.
            let middle = shown.lines().next().unwrap();
            assert_eq!(again.lines().collect::<Vec<_>>(), [middle, "file:"]);
        }
    )*};
}

scenarios! {
    write_sequential write_interleaved write_overlap_front write_overlap_back write_encompassing write_within
    write_bridging truncate_and_extend punch_and_allocate unlink_and_recreate append_after_close read_then_write
    shared_mapping formatted
}

#[test]
fn a_mapping_is_followed_to_children_and_to_the_files_new_name() {
    let (shown, again) = both_ways("mapping_inherited", Mode::WriteThrough);
    assert_eq!((shown.as_str(), again.as_str()), ("moved: 1x62 8191x61\n", "moved: 8192x61\n"));
}

#[test]
fn of_a_mapped_file_only_what_changed_is_kept_again() {
    for keep in [None, NonZeroUsize::new(3)] {
        let root = tempfile::tempdir().unwrap();
        let protected = Protected::new(root.path(), &Options { keep, ..Options::default() });
        succeed(&mut protected.command(&program("mapped_pieces")));
        let taken = protected.store.log.len().unwrap() + protected.store.kept_bytes(0..u64::MAX).unwrap();
        assert!(taken < 12 << 20, "eight checkpoints of 4 MiB take {taken} bytes");
        let kept: &[u64] = if keep.is_some() { &[7, 6] } else { &[7, 4, 1] };
        for index in kept {
            protected.restore(*index);
            let bytes = std::fs::read(root.path().join("large")).unwrap();
            for (step, number) in (b'0'..b'8').zip(0u64..) {
                let expected = if number + 1 < *index { step } else { b'a' };
                let at = usize::try_from(number * 300_000).unwrap();
                assert_eq!(bytes[at..at + 4], [expected; 4], "step {number} at checkpoint {index}");
            }
        }
    }
}

#[test]
fn a_checkpoint_that_cannot_save_a_mapped_file_does_not_exist() {
    let root = tempfile::tempdir().unwrap();
    let protected = Protected::new(root.path(), &Options::default());
    succeed(&mut protected.command(&program("mapped_full_disk")));
    let taken: Vec<u64> = protected.store.entries().unwrap().iter().map(|entry| entry.index).collect();
    assert_eq!(taken, [0, 1]);
    protected.restore(1);
    let bytes = std::fs::read(root.path().join("large")).unwrap();
    assert!(bytes == vec![b'a'; 4 << 20], "the file is not as it was at the last checkpoint");
}

/// On a file system that only copies, the kernel copies what would be shared.
#[test]
fn contents_whose_blocks_are_shared_come_back() {
    let options = Options { clones: Some(true), ..Options::default() };
    for name in ["children_share", "threads", "shared_mapping", "truncate_and_extend"] {
        both_ways_with(name, &options);
    }
}

#[test]
fn single_mode_gives_the_same_answers_and_keeps_one_checkpoint() {
    for name in ["stream_forms", "pushed_back"] {
        both_ways(name, Mode::Single);
    }
    let root = tempfile::tempdir().unwrap();
    seed(root.path());
    let protected = Protected::new(root.path(), &Options { mode: Mode::Single, ..Options::default() });
    succeed(protected.command(Path::new("/bin/sh")).args(["-c", "echo one > file; rm a"]));
    protected.checkpoint();
    assert_eq!(protected.store.entries().unwrap().len(), 1);
    assert_eq!(std::fs::read_dir(root.path().join(".stdchk-files/kept")).unwrap().count(), 0);
    let at_checkpoint = tree(root.path());
    succeed(protected.command(Path::new("/bin/sh")).args(["-c", "echo two >> file; echo x > a"]));
    protected.restore(1);
    assert_eq!(tree(root.path()), at_checkpoint);
}
