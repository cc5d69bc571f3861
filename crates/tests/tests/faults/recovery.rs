//! A manager that lost its disk: what benefactors keep makes its store anew (I7).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::json;
use stdchk_tests::{Pool, Setup, random_bytes, wait_until};

const KIB: usize = 1 << 10;

/// Everything below a folder of the mount: content, targets and permissions.
fn all(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let about = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
            let content = match about.file_type() {
                kind if kind.is_dir() => {
                    folders.push(path);
                    b"a folder".to_vec()
                }
                kind if kind.is_symlink() => fs::read_link(&path).unwrap().to_str().unwrap().into(),
                _ => fs::read(&path).unwrap(),
            };
            found.insert(name, content);
        }
    }
    found
}

fn lose_manager(pool: &Pool) {
    fs::remove_dir_all(pool.data().join("manager")).unwrap();
}

/// What a pool has been through: files of all sizes, versions, renames, removals, links, policies, an erasure code, a container.
fn live(pool: &Pool) {
    let at = |path: &str| pool.at(path);
    for folder in ["app", "coded", "sets", "gone"] {
        fs::create_dir(at(folder)).unwrap();
    }
    pool.ok(&["policy", "set", "coded", "redundancy=erasure:2,1"]);
    pool.ok(&["policy", "set", "sets", "ranks=2"]);
    pool.ok(&["policy", "set", "app", "semantics=pessimistic"]);
    for (number, length) in [0, 1, 4 * KIB, 300 * KIB, 3000 * KIB].into_iter().enumerate() {
        fs::write(at(&format!("app/file{number}")), random_bytes(length, number as u64)).unwrap();
        fs::write(at(&format!("coded/file{number}")), random_bytes(length, 10 + number as u64)).unwrap();
    }
    for generation in 0..3 {
        fs::write(at("app/versions"), random_bytes(100 * KIB, 20 + generation)).unwrap();
    }
    for rank in 0..2 {
        fs::write(at(&format!("sets/job.N{rank}.T7")), random_bytes(700 * KIB, 30 + rank)).unwrap();
    }
    fs::rename(at("app/file1"), at("gone/moved")).unwrap();
    fs::rename(at("app/file2"), at("app/file3")).unwrap();
    fs::remove_file(at("coded/file0")).unwrap();
    fs::hard_link(at("app/file4"), at("gone/link")).unwrap();
    symlink("file4", at("app/symlink")).unwrap();
    pool.ok(&["aggregate", "sets", "--once"]);
}

#[test]
fn a_pool_without_its_managers_disk_comes_back_byte_for_byte() {
    let pool = Setup::of(4).up();
    live(&pool);
    pool.wait_for_recovery();
    let keepers = pool.json(&["status", "--json"])["recovery"]["keepers"].clone();
    assert_eq!(keepers.as_array().unwrap().len(), 4, "{keepers}");
    let before = all(&pool.mount_point());
    let versions = pool.json(&["ls", "app/versions", "--versions", "--json"]);
    let policies = ["coded", "sets", "app"].map(|folder| pool.json(&["policy", "get", folder, "--json"]));
    pool.ok(&["down"]);
    pool.fails(&["manager", "recover"], 2, &["move it away first"]);
    lose_manager(&pool);
    pool.fails(&["up"], 7, &["manager recover"]);
    let said = pool.json(&["manager", "recover", "--json"]);
    assert_eq!(said["agreed"], said["commit"], "{said}");
    assert_eq!(said["keepers"].as_array().unwrap().len(), 4, "{said}");
    assert!(
        said["folders"]
            .as_array()
            .unwrap()
            .iter()
            .any(|folder| folder["name"] == "coded" && folder["files"] == 4),
        "{said}"
    );
    pool.ok(&["up"]);
    wait_until("the pool is healthy", || pool.shows(|status| status["health"] == "healthy"));
    assert_eq!(all(&pool.mount_point()), before);
    assert_eq!(pool.json(&["ls", "app/versions", "--versions", "--json"]), versions);
    let policies_now = ["coded", "sets", "app"].map(|folder| pool.json(&["policy", "get", folder, "--json"]));
    assert_eq!(policies_now, policies);
    // It goes on, and what it does from now on comes back as well.
    fs::write(pool.at("app/later"), b"later").unwrap();
    pool.ok(&["down"]);
    lose_manager(&pool);
    pool.ok(&["manager", "recover"]);
    pool.ok(&["up"]);
    assert_eq!(fs::read(pool.at("app/later")).unwrap(), b"later");
}

#[test]
fn a_third_of_the_keepers_may_be_lost_and_more_are_told_and_decided_on() {
    let pool = Pool::up(3, &[]);
    let content = random_bytes(2000 * KIB, 1);
    let journal = |index: u16| pool.data().join(format!("benefactors/{index}/journal"));
    pool.put(b"first", "app/first");
    wait_until("all have a base", || (0..3).all(|index| journal(index).exists()));
    pool.put(&content, "app/x");
    pool.wait_for_copies();
    pool.ok(&["down"]);
    lose_manager(&pool);
    fs::remove_file(journal(1)).unwrap();
    // Of another one the last commits are gone: of what it has two keepers agree, and what goes on from there is true.
    let whole = fs::read(journal(2)).unwrap();
    fs::write(journal(2), &whole[..whole.len() - 10]).unwrap();
    let said = pool.json(&["manager", "recover", "--json"]);
    assert!(said["agreed"].as_u64() < said["commit"].as_u64(), "{said}");
    lose_manager(&pool);
    fs::remove_file(journal(2)).unwrap();
    pool.fails(&["manager", "recover"], 5, &["fewer than two thirds", "--trust-fewer"]);
    assert!(!pool.data().join("manager").exists() && !pool.data().join("manager.new").exists());
    let again = pool.json(&["manager", "recover", "--trust-fewer", "--json"]);
    assert_eq!((&again["agreed"], &again["commit"]), (&json!(null), &said["commit"]), "{again}");
    pool.ok(&["up"]);
    assert_eq!(pool.get("app/x"), content);
    pool.ok(&["down"]);
    lose_manager(&pool);
    (0..3).for_each(|index| drop(fs::remove_file(journal(index))));
    pool.fails(&["manager", "recover"], 4, &["no benefactor"]);
}

#[test]
fn of_a_manager_that_is_killed_with_its_disk_all_but_the_last_moments_come_back() {
    let pool = Setup::of(3).up();
    fs::create_dir(pool.at("app")).unwrap();
    let mut written = 0;
    let started = std::time::Instant::now();
    while started.elapsed().as_secs() < 3 {
        fs::write(pool.at(&format!("app/{written}")), random_bytes(1000, written)).unwrap();
        written += 1;
    }
    pool.wait_for_recovery();
    pool.kill("manager");
    lose_manager(&pool);
    // Benefactors go on, and answer as those of other machines do.
    let socket = format!("unix:{}", pool.data().join("run/benefactor-0.sock").display());
    let said = pool.json(&["manager", "recover", "--from", &socket, "--json"]);
    let journals = said["journals"].as_array().unwrap();
    assert_eq!(journals.len(), 4, "{said}");
    assert_eq!(journals[3]["commit"], journals[0]["commit"], "{said}");
    pool.ok(&["up"]);
    for number in 0..written {
        assert_eq!(
            fs::read(pool.at(&format!("app/{number}"))).unwrap(),
            random_bytes(1000, number),
            "{number}"
        );
    }
}
