//! Bytes go in and come back: sizes, streams, trees, versions, damage.

use std::fs;
use std::os::unix::fs::MetadataExt;

use stdchk_tests::{Pool, random_bytes};

const MIB: usize = 1 << 20;

#[test]
fn files_of_all_sizes_come_back_as_they_were() {
    let pool = Pool::up(3, &[]);
    for (seed, size) in [0, 1, 4095, MIB - 1, MIB, MIB + 1, 5 * MIB + 123].into_iter().enumerate() {
        let content = random_bytes(size, seed as u64);
        let name = format!("size.{size}");
        let file = pool.file(&name, &content);
        pool.ok(&["put", &file, "app/"]);
        pool.ok(&["get", &format!("app/{name}"), "-o", "back"]);
        assert!(fs::read(pool.path("back")).unwrap() == content, "{size}");
        assert!(pool.run(&["get", &format!("app/{name}"), "-o", "-"]).stdout == content, "{size} by stream");
    }
}

#[test]
fn a_stream_is_stored_and_served() {
    let pool = Pool::up(2, &[]);
    let content = random_bytes(3 * MIB + 7, 1);
    assert_eq!(pool.run_with(&["put", "-", "app/stream"], &content).code, 0);
    assert!(pool.run(&["get", "app/stream", "-o", "-"]).stdout == content);
}

#[test]
fn every_version_stays_until_it_is_removed() {
    let pool = Pool::up(2, &[]);
    for content in ["one", "two, longer", "3"] {
        let file = pool.file("x", content.as_bytes());
        pool.ok(&["put", &file, "app/x"]);
    }
    let versions = pool.json(&["ls", "app/x", "--versions", "--json"]);
    let numbers: Vec<u64> = versions[0]["versions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|info| info["version"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [1, 2, 3]);
    for (version, content) in [(1, "one"), (2, "two, longer"), (3, "3")] {
        assert_eq!(pool.ok(&["get", &format!("app/x@{version}"), "-o", "-"]), content);
    }
    pool.ok(&["rm", "app/x@2"]);
    pool.fails(&["get", "app/x@2"], 4, &[]);
    assert_eq!(pool.ok(&["get", "app/x", "-o", "-"]), "3");
}

#[test]
fn permissions_and_times_come_back_and_no_temporary_file_stays() {
    let pool = Pool::up(1, &[]);
    let file = pool.file("x", b"content");
    let set = |path: &str| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o640);
        fs::set_permissions(path, mode).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
        fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    };
    set(&file);
    pool.ok(&["put", &file, "app/x"]);
    fs::remove_file(&file).unwrap();
    pool.ok(&["get", "app/x"]);
    let back = fs::metadata(&file).unwrap();
    assert_eq!((back.mode() & 0o777, back.mtime(), back.mtime_nsec()), (0o640, 1_000_000_000, 123_456_789));
    let left: Vec<_> = fs::read_dir(pool.work()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["x"]);
}

#[test]
fn a_tree_is_stored_only_when_asked_for_and_what_is_no_file_is_told() {
    let pool = Pool::up(1, &[]);
    pool.file("tree/a", b"a");
    pool.file("tree/deep/er/b", b"b");
    fs::create_dir_all(pool.path("tree/empty/in/it")).unwrap();
    pool.fails(&["put", "tree", "app/"], 2, &["-r"]);
    assert_eq!(pool.json(&["put", "-r", "tree", "app/", "--json"])["files"].as_array().unwrap().len(), 2);
    assert_eq!(pool.ok(&["get", "app/tree/deep/er/b", "-o", "-"]), "b");
    assert!(pool.ok(&["ls", "app/tree/empty/in"]).contains("it"));
    std::os::unix::fs::symlink("a", pool.path("tree/link")).unwrap();
    pool.fails(&["put", "-r", "tree", "app/"], 3, &["tree/link"]);
    pool.fails(&["rm", "app/tree"], 2, &["-r"]);
    assert_eq!(pool.ok(&["rm", "-rn", "app/tree"]).lines().count(), 8);
    pool.ok(&["rm", "-r", "app/tree"]);
    assert!(pool.ok(&["ls", "app"]).is_empty());
}

#[test]
fn files_that_would_get_the_same_name_are_refused_before_one_is_stored() {
    let pool = Pool::up(1, &[]);
    for rank in ["rank0", "rank1"] {
        pool.file(&format!("{rank}/restart"), rank.as_bytes());
    }
    pool.fails(&["put", "rank0/restart", "rank1/restart", "app/"], 2, &["app/restart", "rank0", "rank1"]);
    assert!(pool.ok(&["ls"]).is_empty());
    pool.ok(&["put", "-r", "rank0", "rank1", "app/"]);
    assert_eq!(pool.ok(&["get", "app/rank0/restart", "-o", "-"]), "rank0");
}

#[test]
fn a_moved_file_keeps_its_content_and_hands_on_versions() {
    let pool = Pool::up(1, &[]);
    for (name, content) in [("old", "1"), ("new", "2")] {
        let file = pool.file(name, content.as_bytes());
        pool.ok(&["put", &file, "app/"]);
    }
    pool.fails(&["mv", "-n", "app/new", "app/old"], 1, &["already"]);
    pool.ok(&["mv", "app/new", "app/old"]);
    assert_eq!(pool.ok(&["get", "app/old", "-o", "-"]), "2");
    let versions = pool.json(&["ls", "app/old", "--versions", "--json"]);
    assert_eq!(versions[0]["versions"].as_array().unwrap().len(), 2);
    pool.ok(&["policy", "set", "archive", "redundancy=replicate:1"]);
    pool.ok(&["mv", "app/old", "archive"]);
    assert_eq!(pool.ok(&["get", "archive/old", "-o", "-"]), "2");
}

#[test]
fn a_difference_is_told_by_its_bytes_even_if_the_file_is_cut_in_another_way() {
    let pool = Pool::up(1, &[]);
    let mut content = random_bytes(3 * MIB, 5);
    let file = pool.file("x", &content);
    pool.ok(&["put", &file, "app/x"]);
    pool.ok(&["policy", "set", "app", "cutter=fsch:256KiB"]);
    pool.ok(&["put", &file, "app/x"]);
    assert_eq!(pool.json(&["diff", "app/x", "--json"])["identical"], true);
    content[MIB + 5] ^= 1;
    content.extend([7; 100]);
    let file = pool.file("x", &content);
    pool.ok(&["put", &file, "app/x"]);
    let diff = pool.json(&["diff", "app/x@1", "app/x@3", "--json"]);
    assert_eq!(diff["identical"], false);
    assert_eq!(diff["ranges"][0], serde_json::json!({"offset": MIB + 5, "length": 1}));
    assert_eq!(diff["ranges"][1], serde_json::json!({"offset": 3 * MIB, "length": 100}));
}

#[test]
fn damaged_content_is_never_served_and_is_told_with_its_own_code() {
    let pool = Pool::up(2, &[]);
    pool.ok(&["policy", "set", "app", "redundancy=replicate:1"]);
    let content = random_bytes(MIB, 6);
    let file = pool.file("x", &content);
    pool.ok(&["put", &file, "app/x"]);
    assert_eq!(pool.damage(&content), 1);
    pool.fails(&["get", "app/x", "-o", "back"], 7, &["app/x"]);
    pool.fails(&["get", "app/x", "-o", "back/"], 4, &["back/", "mkdir -p"]);
    assert!(!pool.path("back").exists());
    pool.fails(&["stat", "app/x"], 7, &["app/x"]);
    pool.fails(&["verify"], 7, &["intact copy"]);
}

#[test]
fn a_damaged_copy_is_made_anew_from_the_other_one() {
    let pool = Pool::up(2, &[]);
    let content = random_bytes(MIB, 7);
    let file = pool.file("x", &content);
    pool.ok(&["put", &file, "app/x"]);
    pool.wait_for_copies();
    pool.kill("benefactor-1");
    assert!(pool.damage(&content) >= 1);
    // Only one copy may be bad: the other one is put right again by hand.
    let intact = pool.data().join("benefactors/1");
    assert!(flip_back(&intact, &content));
    pool.ok(&["up"]);
    let outcome = pool.run(&["verify", "--repair", "--json"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert!(pool.run(&["get", "app/x", "-o", "-"]).stdout == content);
}

/// Undoes the damage in one benefactor's files.
fn flip_back(folder: &std::path::Path, content: &[u8]) -> bool {
    let mut needle = content[content.len() / 2..content.len() / 2 + 64].to_vec();
    needle[0] ^= 1;
    let segments = fs::read_dir(folder.join("segments")).unwrap().map(|entry| entry.unwrap().path());
    for path in segments {
        let mut bytes = fs::read(&path).unwrap();
        if let Some(position) = bytes.windows(64).position(|window| window == needle) {
            bytes[position] ^= 1;
            fs::write(&path, bytes).unwrap();
            return true;
        }
    }
    false
}

#[test]
fn a_sparse_file_comes_back_sparse() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let pool = Pool::up(1, &[]);
    let source = std::fs::File::create(pool.path("sparse")).unwrap();
    source.set_len(96 << 20).unwrap();
    source.write_all_at(b"island", 40 << 20).unwrap();
    pool.ok(&["put", pool.path("sparse").to_str().unwrap(), "app/"]);
    let back = pool.path("back");
    pool.ok(&["get", "app/sparse", "-o", back.to_str().unwrap()]);
    assert!(
        std::fs::read(pool.path("sparse")).unwrap() == std::fs::read(&back).unwrap(),
        "the content differs"
    );
    let blocks = back.metadata().unwrap().blocks();
    assert!(blocks * 512 <= 4 << 20, "{blocks} blocks");
}

#[test]
fn holes_cost_nothing() {
    use std::os::unix::fs::FileExt;
    const SIZE: u64 = 1 << 40;
    const ISLANDS: [(u64, usize); 3] = [(5, 100), (SIZE / 2 + 4097, 3 * MIB), (SIZE - 70_000, 4096)];
    let pool = Pool::up(1, &[]);
    let source = fs::File::create(pool.path("sparse")).unwrap();
    source.set_len(SIZE).unwrap();
    for (at, length) in ISLANDS {
        source.write_all_at(&random_bytes(length, at), at).unwrap();
    }
    let stored = pool.json(&["put", pool.path("sparse").to_str().unwrap(), "app/", "--json"]);
    assert_eq!(stored["files"][0]["bytes"], SIZE);
    pool.ok(&["get", "app/sparse", "-o", "back"]);
    let back = fs::File::open(pool.path("back")).unwrap();
    assert_eq!(back.metadata().unwrap().len(), SIZE);
    let blocks = back.metadata().unwrap().blocks();
    assert!(blocks * 512 <= 8 << 20, "{blocks} blocks");
    for (at, length) in ISLANDS {
        let mut read = vec![0; length + 5];
        back.read_exact_at(&mut read, at).unwrap();
        assert!(read == [random_bytes(length, at), vec![0; 5]].concat(), "at {at}");
    }
    // A file without any data at all.
    source.set_len(0).unwrap();
    source.set_len(SIZE).unwrap();
    pool.ok(&["put", pool.path("sparse").to_str().unwrap(), "app/empty"]);
    pool.ok(&["get", "app/empty", "-o", "back"]);
    let back = fs::metadata(pool.path("back")).unwrap();
    assert_eq!((back.len(), back.blocks()), (SIZE, 0));
}

#[test]
fn the_cutter_is_learned_from_what_put_stores_too() {
    let pool = Pool::up(1, &[]);
    pool.policy("app", &["cutter=auto", "redundancy=replicate:1"]);
    let learned = || pool.json(&["policy", "get", "app", "--json"])["learned"].clone();
    pool.put(&random_bytes(2 << 20, 1), "app/x");
    assert_eq!(learned(), "", "one version says nothing");
    pool.put(&random_bytes(2 << 20, 2), "app/x");
    assert_eq!(learned(), "fsch:1MiB");
}
