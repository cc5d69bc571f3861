//! Data directories that aren't what they should be are refused with a message and left as they were; so is a process
//! that doesn't belong to the pool.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use stdchk_tests::{Pool, wait_until};

/// Every file below a folder with its content, but for locks, which hold the pid of whoever looked last.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.append(&mut contents(&path));
        } else if !path.file_name().unwrap().eq_ignore_ascii_case("lock") {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

/// Runs a role in a folder; it must end with this code and a message that says all of this, and change no file.
fn refused(pool: &Pool, role: &str, folder: &Path, code: i32, says: &[&str]) {
    let before = contents(folder);
    let shown = folder.to_str().unwrap();
    let arguments = match role {
        "manager" => &["manager", "run", shown][..],
        _ => &["benefactor", "run", shown, "--donate", "64MiB", "--floor", "0"],
    };
    let outcome = pool.run(arguments);
    assert_eq!(outcome.code, code, "{role}: {outcome:?}");
    for word in says {
        assert!(outcome.stderr.contains(word), "{role}: `{word}` is missing in: {}", outcome.stderr);
    }
    assert!(contents(folder) == before, "{role} changed files");
}

#[test]
fn directories_of_later_versions_and_with_garbled_marks_are_refused_and_left_as_they_are() {
    let pool = Pool::up(1, &[]);
    pool.put(b"content", "app/x");
    pool.ok(&["down"]);
    for (role, folder) in
        [("manager", pool.data().join("manager")), ("benefactor", pool.data().join("benefactors/0"))]
    {
        let mark = fs::read_to_string(folder.join("STDCHK")).unwrap();
        for (bad, says) in [
            (mark.replacen(" 1\n", " 7\n", 1), "later stdchk"),
            ("not a mark at all".to_owned(), "STDCHK"),
            (String::new(), "STDCHK"),
            (mark.replacen(role, "archive", 1), "archive"),
        ] {
            fs::write(folder.join("STDCHK"), bad).unwrap();
            refused(&pool, role, &folder, 1, &[folder.to_str().unwrap(), says]);
        }
        fs::write(folder.join("STDCHK"), mark).unwrap();
    }
    pool.ok(&["up"]);
    assert_eq!(pool.get("app/x"), b"content");
}

#[test]
fn a_store_that_holds_something_else_is_refused_and_left_as_it_is() {
    let pool = Pool::up(1, &[]);
    pool.put(b"content", "app/x");
    pool.ok(&["down"]);
    let manager = pool.data().join("manager");
    let store = fs::read(manager.join("store.redb")).unwrap();
    for bad in [&b"a file of somebody else"[..], &store[..store.len() / 3], &vec![0; store.len()]] {
        fs::write(manager.join("store.redb"), bad).unwrap();
        refused(&pool, "manager", &manager, 7, &["store.redb", "damaged", "backup"]);
    }
    fs::write(manager.join("store.redb"), store).unwrap();
    pool.ok(&["up"]);
    assert_eq!(pool.get("app/x"), b"content");
}

#[test]
fn a_pool_record_of_a_later_version_is_refused_and_left_as_it_is() {
    let pool = Pool::up(1, &[]);
    let path = pool.data().join("pool.json");
    let record = fs::read_to_string(&path).unwrap();
    for bad in [record.replace("\"layout\": 2", "\"layout\": 7"), "{".to_owned(), String::new()] {
        fs::write(&path, &bad).unwrap();
        for command in ["up", "status", "ls"] {
            pool.fails(&[command], 2, &["pool.json"]);
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), bad);
    }
    fs::write(&path, record).unwrap();
}

#[test]
fn a_benefactor_of_another_pool_is_refused_and_keeps_what_it_has() {
    let (ours, theirs) = (Pool::up(1, &[]), Pool::up(1, &[]));
    theirs.put(b"content", "app/x");
    theirs.ok(&["down"]);
    let folder = theirs.data().join("benefactors/0");
    let log = ours.path("refused.log");
    let mut stray =
        ours.command(&["benefactor", "run", folder.to_str().unwrap(), "--donate", "64MiB", "--floor", "0"]);
    let mut stray = stray.stderr(fs::File::create(&log).unwrap()).stdout(Stdio::null()).spawn().unwrap();
    wait_until("the benefactor is told", || fs::read_to_string(&log).unwrap().contains("another pool"));
    assert_eq!(ours.status()["benefactors"].as_array().unwrap().len(), 1);
    stray.kill().unwrap();
    stray.wait().unwrap();
    theirs.ok(&["up"]);
    assert_eq!(theirs.get("app/x"), b"content");
}
