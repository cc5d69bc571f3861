//! Encrypted folders through mount and commands: nothing in the clear at benefactors, damage and theft found out, keys that are lost,
//! changed and copied (I3, docs/design/0702-encryption-at-the-client.md).

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::io::Errno;
use stdchk_model::ChunkRef;
use stdchk_protect::seal::Key;
use stdchk_tests::{Pool, Setup, outcome, random_bytes, wait_until, within};

const MIB: usize = 1 << 20;
/// Length of what must not be found, bytes.
const WINDOW: usize = 32;

/// A mounted pool whose folder `app` is encrypted with a new key; the key.
fn encrypted(setup: Setup, policy: &[&str]) -> (Pool, String) {
    let pool = setup.up();
    let key = pool.ok(&["key", "create"]).trim().to_owned();
    pool.policy("app", &[&[format!("encryption={key}").as_str()], policy].concat());
    (pool, key)
}

fn benefactors(pool: &Pool) -> PathBuf {
    pool.data().join("benefactors")
}

/// How many windows of `content` lie in files below a folder.
fn clear_windows(folder: &Path, content: &[u8]) -> usize {
    let start = |window: &[u8]| u64::from_le_bytes(window[..8].try_into().unwrap());
    let starts: HashSet<u64> = content.windows(WINDOW).map(start).collect();
    let (mut found, mut folders) = (0, vec![folder.to_owned()]);
    while let Some(path) = folders.pop() {
        if path.is_dir() {
            folders.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if let Ok(bytes) = fs::read(&path) {
            found += bytes.windows(WINDOW).filter(|window| starts.contains(&start(window))).count();
        }
    }
    found
}

fn assert_hidden(pool: &Pool, content: &[u8]) {
    assert_eq!(clear_windows(&benefactors(pool), content), 0, "parts of it lie in the clear");
}

/// The sealed bytes of a chunk that is stored as it is.
fn sealed(pool: &Pool, key: &str, content: &[u8]) -> Vec<u8> {
    let text = pool.ok(&["key", "export", key]);
    let digits = text.trim().strip_prefix("stdchk-encryption-key-1:").unwrap();
    let key = Key::new(digits.parse::<stdchk_model::ChunkId>().unwrap().0);
    let chunk = ChunkRef { id: key.name(content), length: u32::try_from(content.len()).unwrap() };
    key.seal(chunk, 0, content).to_vec()
}

#[test]
fn what_a_mount_and_commands_write_lies_encrypted_and_comes_back() {
    let (pool, key) = encrypted(Setup::of(3), &["codec=store"]);
    let (large, small, put) = (random_bytes(3 * MIB + 77, 1), random_bytes(700, 2), random_bytes(MIB, 3));
    fs::write(pool.at("app/large"), &large).unwrap();
    fs::create_dir(pool.at("app/below")).unwrap();
    fs::write(pool.at("app/below/small"), &small).unwrap();
    pool.put(&put, "app/put");
    for (name, content) in [("app/large", &large), ("app/below/small", &small), ("app/put", &put)] {
        assert!(fs::read(pool.at(name)).unwrap() == *content, "{name} through the mount");
        assert!(pool.get(name) == *content, "{name} by a command");
        assert_hidden(&pool, content);
    }
    let stat = pool.json(&["stat", "app/large", "--json"]);
    assert_eq!(
        (&stat["version"]["key"], &stat["lacks_key"]),
        (&key.as_str().into(), &false.into()),
        "{stat}"
    );
    assert!(pool.ok(&["policy", "get", "app/below"]).contains(&format!("encryption={key}")));
    // What is not encrypted would have been found.
    pool.policy("clear", &["codec=store"]);
    pool.put(&put, "clear/put");
    assert!(clear_windows(&benefactors(&pool), &put) > MIB / 2);
}

#[test]
fn a_spool_holds_the_clear_bytes_until_they_are_pushed() {
    let (pool, _) = encrypted(Setup::of(2), &["protocol=clw", "codec=store"]);
    let content = random_bytes(2 * MIB, 4);
    fs::write(pool.at("app/x"), &content).unwrap();
    wait_until("the file is pushed", || !pool.versions("app/x").is_empty());
    assert!(pool.get("app/x") == content);
    assert_hidden(&pool, &content);
    wait_until("the spool is empty", || clear_windows(&pool.data(), &content) == 0);
}

#[test]
fn who_lacks_the_key_is_told_which_and_changes_nothing() {
    let (pool, key) = encrypted(Setup::of(2), &[]);
    let content = random_bytes(MIB, 5);
    pool.put(&content, "app/x");
    let nowhere = pool.path("no-keys");
    let without = |arguments: &[&str]| {
        let mut command = pool.command(arguments);
        command.env("STDCHK_ENCRYPTION_KEYS", &nowhere);
        outcome(command)
    };
    let file = pool.file("new", b"clear");
    let refused = [
        without(&["get", "app/x", "-o", "-"]),
        without(&["put", &file, "app/new"]),
        without(&["put", &file, "app/x"]),
        without(&["policy", "set", "other", &format!("encryption={key}")]),
        without(&["key", "export", &key]),
        without(&["key", "rotate", "nothing-here"]),
    ];
    for (number, refused) in refused.iter().enumerate() {
        assert!(refused.code != 0, "{number}: {refused:?}");
        let says = refused.stderr.contains(&key) && refused.stderr.contains("stdchk key import");
        assert!(says || number == 5, "{number}: {refused:?}");
    }
    assert_eq!(
        pool.json(&["ls", "app", "--json"])["entries"].as_array().unwrap().len(),
        1,
        "nothing was left"
    );
    assert!(pool.get("app/x") == content);
    // Whether all is there can be seen without it.
    let verified = without(&["verify", "--json"]);
    assert_eq!(verified.code, 0, "{verified:?}");
    let verified = verified.json();
    assert_eq!(
        (&verified["bad"], &verified["lacking_keys"][&key]),
        (&serde_json::json!([]), &1.into()),
        "{verified}"
    );
    assert!(without(&["verify"]).text().contains(&format!("needs key {key}")));
    assert!(without(&["stat", "app/x"]).text().contains(&key));
    assert_eq!(without(&["du"]).code, 0);
    // A mount without the key: the same, as error numbers.
    let mut mount =
        stdchk_tests::Mount::start_with(&pool, "stranger", &["--encryption-keys", nowhere.to_str().unwrap()]);
    let [read, new] = [mount.at("app/x"), mount.at("app/new")];
    let error = within("reading", move || fs::read(read)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOKEY.raw_os_error()), "{error}");
    let error = within("writing", move || fs::write(new, b"clear")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOKEY.raw_os_error()), "{error}");
    assert!(!mount.at("app/new").exists());
    // With the key it goes on without a new start.
    let text = pool.ok(&["key", "export", &key]);
    let mut import = pool.command(&["key", "import", &pool.file("key", text.as_bytes())]);
    import.env("STDCHK_ENCRYPTION_KEYS", &nowhere);
    assert_eq!(outcome(import).code, 0);
    assert!(fs::read(mount.at("app/x")).unwrap() == content);
    fs::write(mount.at("app/new"), b"encrypted").unwrap();
    assert!(mount.end());
    assert_eq!(pool.get("app/new"), b"encrypted");
}

#[test]
fn a_flipped_bit_of_a_sealed_chunk_is_found_without_the_key_and_made_good() {
    let (pool, key) = encrypted(Setup::of(3), &["codec=store"]);
    let content = random_bytes(MIB, 6);
    pool.put(&content, "app/x");
    pool.wait_for_copies();
    let stored = sealed(&pool, &key, &content);
    let holders = pool.holders_of(&stored);
    assert_eq!(holders.len(), 2, "it is stored as the format says");
    assert_eq!(pool.damage_below(&benefactors(&pool).join(holders[0].to_string()), &stored), 1);
    for _ in 0..3 {
        assert!(pool.get("app/x") == content);
    }
    let mut verify = pool.command(&["verify", "--repair", "--json"]);
    verify.env("STDCHK_ENCRYPTION_KEYS", pool.path("no-keys"));
    let verified = outcome(verify);
    assert_eq!(verified.code, 0, "{verified:?}");
    wait_until("the damage was found", || pool.shows(|status| status["damaged_found"] == 1));
    pool.wait_for_copies();
    assert_eq!(pool.holders_of(&stored).len(), 2, "a second intact copy is there again");
    assert!(pool.get("app/x") == content);
}

#[test]
fn lost_benefactors_of_a_coded_and_encrypted_folder_cost_nothing() {
    let setup = Setup::of(6).with("STDCHK_BENEFACTOR_LEASE_MS", 2000).with("STDCHK_BENEFACTOR_LOST_MS", 5000);
    let (pool, _) = encrypted(setup, &["redundancy=erasure:3,2"]);
    let content = random_bytes(3 * MIB + 5, 7);
    fs::write(pool.at("app/x"), &content).unwrap();
    pool.wait_for_copies();
    ["benefactor-0", "benefactor-3"].iter().for_each(|victim| pool.kill(victim));
    assert!(pool.get("app/x") == content);
    // What is missing is made anew by benefactors, none of which has the key.
    pool.wait_for_state("lost", 2);
    wait_until("it can be read whatever one more loses", || pool.shows(|status| status["chunks_lost"] == 0));
    assert!(pool.get("app/x") == content);
    assert_hidden(&pool, &content[..MIB]);
}

#[test]
fn a_key_that_is_changed_or_lost() {
    let (pool, old) = encrypted(Setup::of(2), &[]);
    let (first, second) = (random_bytes(MIB, 8), random_bytes(MIB, 9));
    pool.put(&first, "app/first");
    let new = pool.ok(&["key", "rotate", "app"]).trim().to_owned();
    assert_ne!(new, old);
    pool.put(&second, "app/second");
    assert!(pool.get("app/first") == first && pool.get("app/second") == second);
    let keys: Vec<String> = pool.ok(&["key", "list"]).lines().map(str::to_owned).collect();
    assert!(keys.len() == 2 && keys.contains(&old) && keys.contains(&new), "{keys:?}");
    // Whoever has the newer key alone reads what is newer.
    fs::remove_file(pool.data().join("keys/encryption").join(format!("{old}.key"))).unwrap();
    assert!(pool.get("app/second") == second);
    let lost = pool.fails(&["get", "app/first", "-o", "-"], 1, &[&old]);
    assert!(!lost.stderr.contains(&new), "{lost:?}");
    pool.fails(&["key", "rotate", "elsewhere"], 4, &[]);
    pool.policy("clear", &["codec=store"]);
    pool.fails(&["key", "rotate", "clear"], 2, &["isn't encrypted"]);
    pool.fails(&["policy", "set", "app", "encryption=secret"], 2, &["stdchk key create"]);
}

#[test]
fn a_writer_that_is_killed_leaves_the_version_before_and_nothing_in_the_clear() {
    let (pool, _) = encrypted(Setup::of(3), &["codec=store"]);
    let (before, after) = (random_bytes(2 * MIB, 10), random_bytes(48 * MIB, 11));
    pool.put(&before, "app/x");
    let file = pool.file("after", &after);
    for pause_ms in [30, 120, 300] {
        let mut put = pool.command(&["put", &file, "app/x"]);
        let mut put = put.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(pause_ms));
        put.kill().unwrap();
        put.wait().unwrap();
        let now = pool.get("app/x");
        assert!(now == before || now == after, "{pause_ms} ms");
        assert_hidden(&pool, &after[..2 * MIB]);
        assert_hidden(&pool, &before);
    }
    pool.put(&after, "app/x");
    assert!(pool.get("app/x") == after);
}

#[test]
fn a_file_that_is_open_when_its_folder_comes_to_be_encrypted_is_not_kept_in_the_clear() {
    use std::io::Write;
    let pool = Pool::mounted(2);
    pool.policy("app", &["codec=store"]);
    let content = random_bytes(2 * MIB, 12);
    let mut open = fs::File::create(pool.at("app/x")).unwrap();
    open.write_all(&content[..MIB]).unwrap();
    let key = pool.ok(&["key", "create"]).trim().to_owned();
    pool.policy("app", &[&format!("encryption={key}")]);
    open.write_all(&content[MIB..]).unwrap();
    let error = within("syncing", move || open.sync_all()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::NOKEY.raw_os_error()), "{error}");
    // Until the failed one is released it may be joined.
    wait_until("it is written anew", || fs::write(pool.at("app/x"), &content).is_ok());
    assert!(pool.get("app/x") == content);
    assert_eq!(pool.json(&["stat", "app/x", "--json"])["version"]["key"], key.as_str());
}

#[test]
fn file_states_that_are_pushed_into_an_encrypted_folder_lie_there_encrypted() {
    let (pool, _) = encrypted(Setup::of(2), &["codec=store"]);
    let root = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..40_000).flat_map(|n: u32| format!("line {n}\n").into_bytes()).collect();
    fs::write(root.path().join("field"), &content).unwrap();
    let mut run = pool.command(&["run", "--push", "app", "--", "sh", "-c", "echo more >> field"]);
    run.current_dir(root.path()).env("STDCHK_PRELOAD", stdchk_tests::preload_library());
    let ended = outcome(run);
    assert_eq!(ended.code, 0, "{ended:?}");
    let to = root.path().join("fetched");
    pool.ok(&["files", "fetch", "app", "-o", to.to_str().unwrap()]);
    let fetched = fs::read(to.join("field")).unwrap();
    assert!(fetched.starts_with(&content) && fetched.ends_with(b"more\n"));
    assert_hidden(&pool, &content);
}
