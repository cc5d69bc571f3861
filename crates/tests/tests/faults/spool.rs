//! The write protocols on real processes: what a mount that is killed at any moment owes to those whose files it has
//! closed, a spool that is full, and what can't work.
//!
//! `STDCHK_KILLS` makes the loop of kills longer, as `make soak` does.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use serde_json::json;
use stdchk_tests::{Disk, Mount, Pool, Setup, random_bytes, uncover, wait_until, within};

use crate::program::{Writer, run};

const MIB: usize = 1 << 20;
/// Kills of the mount in the short form of the loop.
const KILLS_DEFAULT: u64 = 5;

/// A mounted pool with a folder `app` of this policy.
fn pool_with(policy: &[&str]) -> Pool {
    let pool = Setup::of(2).up();
    fs::create_dir(pool.at("app")).unwrap();
    pool.policy("app", &[&["redundancy=replicate:1"], policy].concat());
    pool
}

/// The records in the spool of the pool's own mount.
fn waiting(pool: &Pool) -> usize {
    let name = pool.mount_point().to_str().unwrap().replace('/', "%2F");
    let entries = fs::read_dir(pool.data().join("spool").join(name)).unwrap();
    entries
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|kind| kind == "record"))
        .count()
}

fn states(pool: &Pool, name: &str) -> Vec<String> {
    pool.versions(name).iter().map(|version| version["state"].as_str().unwrap().to_owned()).collect()
}

fn write(path: &Path, content: &[u8]) {
    let mut writer = Writer::start(path, &["conv=notrunc"]);
    writer.feed(content);
    let written = within("closing the file", || writer.finish());
    assert!(written.accepted, "{written:?}");
}

#[test]
fn a_mount_may_write_by_another_protocol_than_its_folders_say() {
    let pool = pool_with(&["protocol=sw"]);
    let spool = pool.path("spool");
    let mut second =
        Mount::start_with(&pool, "second", &["--protocol", "clw", "--spool", spool.to_str().unwrap()]);
    ["benefactor-0", "benefactor-1"].iter().for_each(|role| pool.kill(role));
    let content = random_bytes(8 * MIB, 1);
    write(&second.at("app/x"), &content);
    assert_eq!(states(&pool, "app/x"), Vec::<String>::new(), "it is closed, and nowhere but in the spool");
    second.kill();
    pool.ok(&["up"]);
    let _third = Mount::start_with(&pool, "third", &["--spool", spool.to_str().unwrap()]);
    wait_until("what is left in the spool is pushed", || states(&pool, "app/x") == ["closed"]);
    assert!(pool.get("app/x") == content);
}

#[test]
fn a_complete_local_write_is_closed_before_the_pool_has_it_read_here_at_once_and_pushed_when_it_can_be() {
    let pool = pool_with(&["protocol=clw"]);
    let second = Mount::start(&pool, "second");
    let (old, new) = (random_bytes(MIB, 1), random_bytes(8 * MIB, 2));
    write(&pool.at("app/x"), &old);
    wait_until("the first version is pushed", || states(&pool, "app/x") == ["closed"]);
    ["benefactor-0", "benefactor-1"].iter().for_each(|role| pool.kill(role));
    write(&pool.at("app/x"), &new);
    write(&pool.at("app/y"), &new);
    assert!(fs::read(pool.at("app/x")).unwrap() == new && fs::read(pool.at("app/y")).unwrap() == new);
    assert_eq!(fs::metadata(pool.at("app/x")).unwrap().len(), new.len() as u64);
    assert_eq!((states(&pool, "app/x"), states(&pool, "app/y")), (vec!["closed".to_owned()], vec![]));
    assert_eq!(
        fs::metadata(second.at("app/x")).unwrap().len(),
        old.len() as u64,
        "another mount sees the one before"
    );

    pool.kill("mount");
    pool.ok(&["up"]);
    assert!(fs::read(pool.at("app/x")).unwrap() == new, "it is read also before it is pushed");
    wait_until("the rest is pushed", || {
        states(&pool, "app/x") == ["closed", "closed"] && states(&pool, "app/y") == ["closed"]
    });
    wait_until("the spool is empty", || waiting(&pool) == 0);
    assert!(pool.get("app/x") == new && pool.get("app/x@1") == old && pool.get("app/y") == new);
    assert!(fs::read(pool.at("app/x")).unwrap() == new && fs::read(second.at("app/x")).unwrap() == new);
}

#[test]
fn a_file_that_is_in_the_spool_is_renamed_at_once_and_pushed_under_its_new_name() {
    let pool = pool_with(&["protocol=clw"]);
    let second = Mount::start(&pool, "second");
    let [old, new, other] = [3, 4, 9].map(|seed| random_bytes(6 * MIB, seed));
    let renamed = |name: &str, content: &[u8]| {
        write(&pool.at("app/tmp"), content);
        assert_eq!(run("mv", &[&pool.at("app/tmp"), &pool.at(name)]).code, 0);
        assert!(fs::read(pool.at(name)).unwrap() == content, "it is read here at once");
    };
    renamed("app/final", &old);
    wait_until("the first version is pushed", || states(&pool, "app/final") == ["closed"]);
    ["benefactor-0", "benefactor-1"].iter().for_each(|role| pool.kill(role));
    renamed("app/final", &new);
    renamed("app/fresh", &other);
    assert_eq!(states(&pool, "app/final"), ["closed"]);
    let seen = fs::metadata(second.at("app/final")).unwrap();
    assert_eq!(
        (pool.versions("app/final")[0]["size"].as_u64(), seen.len()),
        (Some(seen.len()), old.len() as u64)
    );

    pool.kill("mount");
    pool.ok(&["up"]);
    assert!(
        fs::read(pool.at("app/final")).unwrap() == new && fs::read(pool.at("app/fresh")).unwrap() == other
    );
    wait_until("the rest is pushed", || {
        states(&pool, "app/final") == ["closed", "closed"] && states(&pool, "app/fresh") == ["closed"]
    });
    wait_until("the spool is empty", || waiting(&pool) == 0);
    assert!(pool.get("app/final") == new && pool.get("app/final@1") == old && pool.get("app/fresh") == other);
    assert!(fs::read(second.at("app/final")).unwrap() == new);
    assert!(!pool.at("app/tmp").exists());
}

#[test]
fn every_file_that_is_renamed_onto_a_name_becomes_a_version_of_it() {
    let pool = pool_with(&["protocol=clw"]);
    let content = [10, 11, 12, 13].map(|seed| random_bytes(3 * MIB, seed));
    for content in &content {
        write(&pool.at("app/tmp"), content);
        assert_eq!(run("mv", &[&pool.at("app/tmp"), &pool.at("app/final")]).code, 0);
    }
    wait_until("all are pushed", || states(&pool, "app/final") == ["closed"; 4]);
    for (number, content) in (1..).zip(&content) {
        assert!(pool.get(&format!("app/final@{number}")) == *content, "version {number}");
    }
}

#[test]
fn a_writer_that_is_killed_leaves_an_interrupted_version_by_every_protocol() {
    for protocol in ["protocol=clw", "protocol=iw"] {
        let pool = pool_with(&[protocol, "segment=4MiB"]);
        let mut writer = Writer::start(&pool.at("app/x"), &[]);
        let content = random_bytes(10 * MIB, 5);
        writer.feed(&content);
        wait_until("it has written", || {
            fs::metadata(pool.at("app/x")).unwrap().len() == content.len() as u64
        });
        writer.kill();
        wait_until("its version is there", || states(&pool, "app/x") == ["interrupted"]);
        assert!(pool.get("app/x") == content);
    }
}

/// Writes some, lets a child that has the descriptor as well end, says so, and waits.
const HALF: &str = "
import os, subprocess, sys
to = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o644)
os.write(to, b'half' * (1 << 18))
os.fsync(to)
subprocess.run(['true'], pass_fds=[to])
print('written', flush=True)
sys.stdin.read()
";

#[test]
fn a_child_that_ends_does_not_close_the_file_of_its_parent() {
    let pool = pool_with(&["protocol=clw"]);
    let mut command = Command::new("python3");
    command.args(["-c", HALF]).arg(pool.at("app/x")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut half = command.spawn().unwrap();
    let mut said = [0; 8];
    half.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"written\n");
    pool.kill("mount");
    half.kill().unwrap();
    half.wait().unwrap();
    pool.ok(&["up"]);
    wait_until("what it wrote is pushed", || !states(&pool, "app/x").is_empty());
    assert_eq!(states(&pool, "app/x"), ["interrupted"], "its writer had not finished");
    assert!(pool.get("app/x") == b"half".repeat(1 << 18));
}

#[test]
fn a_file_that_was_removed_before_it_was_pushed_leaves_nothing_behind() {
    let pool = pool_with(&["protocol=clw"]);
    ["benefactor-0", "benefactor-1"].iter().for_each(|role| pool.kill(role));
    write(&pool.at("app/x"), &random_bytes(MIB, 6));
    pool.kill("mount");
    pool.ok(&["rm", "app/x"]);
    pool.ok(&["up"]);
    wait_until("the spool is empty", || waiting(&pool) == 0);
    assert!(!pool.at("app/x").exists());
}

/// A file of which 25 bytes are written over a version and closed in a spool, whose mount is killed then; what its content is to be.
fn written_over(pool: &Pool, spool: &Path) -> Vec<u8> {
    let mut content = random_bytes(3 * MIB, 21);
    let file = pool.file("first", &content);
    pool.ok(&["put", &file, "app/x"]);
    let mut mount = Mount::start_with(pool, "over", &["--spool", spool.to_str().unwrap()]);
    let written = b"these 25 bytes are closed";
    let open = File::options().write(true).open(mount.at("app/x")).unwrap();
    // The kernel reads the page around them.
    open.write_all_at(written, 2_000_000).unwrap();
    ["benefactor-0", "benefactor-1"].iter().for_each(|role| pool.kill(role));
    drop(open);
    mount.kill();
    content[2_000_000..][..written.len()].copy_from_slice(written);
    pool.ok(&["up"]);
    content
}

/// Another version is put on top, and the one below removed, before the manager starts anew.
fn remove_first_version(pool: &Pool) {
    let other = pool.file("other", b"other");
    pool.ok(&["put", &other, "app/x"]);
    pool.ok(&["rm", "app/x@1"]);
    pool.kill("manager");
    pool.ok(&["up"]);
}

#[test]
fn what_was_closed_in_a_spool_is_pushed_though_the_version_that_it_was_written_over_was_removed() {
    let pool = pool_with(&["protocol=clw"]);
    let spool = pool.path("spool");
    let content = written_over(&pool, &spool);
    remove_first_version(&pool);
    let kept = pool.status()["kept_bases"].clone();
    let base = &kept[0];
    let told = ["path", "version", "version_bytes"].map(|key| base[key].clone());
    assert_eq!(told, [json!("app/x"), json!(1), json!(3 * MIB)], "{kept}");
    // The kernel hands over the page in which they are.
    assert!((25..=8192).contains(&base["spooled_bytes"].as_u64().unwrap()), "{kept}");
    assert!(pool.ok(&["status"]).contains("kept      app/x@1 (3.00 MiB)"));
    let _mount = Mount::start_with(&pool, "again", &["--spool", spool.to_str().unwrap()]);
    wait_until("what is left in the spool is pushed", || states(&pool, "app/x") == ["closed", "closed"]);
    assert!(pool.get("app/x") == content && pool.get("app/x@2") == b"other");
    assert_eq!(pool.status()["kept_bases"], json!([]));
}

#[test]
fn a_version_is_kept_for_no_spool_that_was_given_up_nor_for_a_file_that_is_written_anew() {
    let pool = pool_with(&["protocol=clw"]);
    let spool = pool.path("spool");
    written_over(&pool, &spool);
    let id = pool.status()["kept_bases"][0]["id"].as_str().unwrap().to_owned();
    let said = pool.ok(&["forget", &format!("s{}", &id[..8])]);
    assert!(said.contains("app/x@1 is kept for no spool"), "{said}");
    assert_eq!(pool.status()["kept_bases"], json!([]));
    let refused = pool.run(&["forget", &format!("s{id}")]);
    assert_eq!(refused.code, 4, "{refused:?}");
    // All that was there is written over.
    ["benefactor-0", "benefactor-1"].iter().for_each(|role| pool.kill(role));
    write(&pool.at("app/y"), &random_bytes(MIB, 7));
    assert_eq!(pool.status()["kept_bases"], json!([]));
}

#[test]
fn a_spool_whose_disk_is_full_sends_the_file_through_memory() {
    let pool = pool_with(&["protocol=clw"]);
    let disk = Disk::start(&pool, "disk", 48, "0");
    let spool = disk.at("spool");
    let mount =
        Mount::start_with(&pool, "small", &["--spool", spool.to_str().unwrap(), "--spool-size", "1GiB"]);
    let (first, second) = (random_bytes(4 * MIB, 7), random_bytes(24 * MIB, 8));
    disk.take(32 << 20);
    write(&mount.at("app/fits"), &first);
    write(&mount.at("app/large"), &second);
    assert_eq!(states(&pool, "app/large"), ["closed"], "it is at the pool when it is closed");
    assert!(pool.get("app/large") == second);
    wait_until("what fitted is pushed", || states(&pool, "app/fits") == ["closed"]);
    assert!(pool.get("app/fits") == first);
    let said = fs::read_to_string(pool.path("small.log")).unwrap();
    assert!(said.contains("the spool takes no more"), "{said}");
    disk.clear();
    write(&mount.at("app/next"), &first);
    wait_until("the next one is pushed from the spool", || states(&pool, "app/next") == ["closed"]);
    assert!(pool.get("app/next") == first);
}

#[test]
fn a_file_is_closed_where_the_disk_has_room_for_its_bytes_and_none_to_take_note_of_them() {
    let pool = pool_with(&["protocol=clw"]);
    let disk = Disk::start(&pool, "disk", 48, "0");
    let spool = disk.at("spool");
    let mount =
        Mount::start_with(&pool, "small", &["--spool", spool.to_str().unwrap(), "--spool-size", "1GiB"]);
    fill(&disk);
    for pages in 1..6 {
        let filling = File::options().write(true).open(disk.at("filling")).unwrap();
        filling.set_len(filling.metadata().unwrap().len() - 4096).unwrap();
        let content = random_bytes(4096, pages);
        let name = format!("app/tiny{pages}");
        write(&mount.at(&name), &content);
        wait_until("it is at the pool", || states(&pool, &name) == ["closed"]);
        assert!(pool.get(&name) == content);
    }
}

/// Leaves no room on a disk.
fn fill(disk: &Disk) {
    let mut filling = File::create(disk.at("filling")).unwrap();
    let bytes = vec![1; MIB];
    while std::io::Write::write_all(&mut filling, &bytes).is_ok() {}
    while std::io::Write::write_all(&mut filling, &bytes[..4096]).is_ok() {}
}

#[test]
fn what_waits_on_a_disk_that_is_full_is_pushed_by_the_next_mount() {
    // One benefactor is on the disk itself, and alone not enough.
    let pool = pool_with(&["protocol=clw"]);
    pool.policy("app", &["redundancy=replicate:2", "semantics=pessimistic"]);
    let disk = Disk::start(&pool, "disk", 48, "0");
    let spool = disk.at("spool");
    let mut first = Mount::start_with(&pool, "first", &["--spool", spool.to_str().unwrap()]);
    ["benefactor-0", "benefactor-1"].iter().for_each(|role| pool.kill(role));
    let contents: Vec<Vec<u8>> = (0..9).map(|number| random_bytes(MIB / 4, number)).collect();
    let name = |number: usize| format!("app/x{number}");
    for (number, content) in contents.iter().enumerate() {
        write(&first.at(&name(number)), content);
    }
    first.kill();
    fill(&disk);
    pool.ok(&["up"]);
    let second = Mount::start_with(&pool, "second", &["--spool", spool.to_str().unwrap()]);
    for (number, content) in contents.iter().enumerate() {
        wait_until("what waits is pushed", || states(&pool, &name(number)) == ["closed"]);
        assert!(pool.get(&name(number)) == *content);
    }
    write(&second.at("app/next"), &contents[0]);
    wait_until("what comes next goes through memory", || states(&pool, "app/next") == ["closed"]);
}

#[test]
fn what_waits_in_a_spool_is_never_written_over_by_a_mount_that_cannot_take_it_up() {
    let pool = pool_with(&["protocol=clw"]);
    let spool = pool.path("spool");
    let with_spool = ["--spool", spool.to_str().unwrap()];
    let mut first = Mount::start_with(&pool, "first", &with_spool);
    ["benefactor-0", "benefactor-1"].iter().for_each(|role| pool.kill(role));
    let (waiting, other) = (random_bytes(MIB, 1), random_bytes(MIB, 2));
    write(&first.at("app/x"), &waiting);
    first.kill();
    pool.ok(&["up"]);
    let mut images = fs::read_dir(&spool).unwrap().map(|entry| entry.unwrap().path());
    let image = images.find(|path| path.extension().is_some_and(|kind| kind == "image")).unwrap();
    // A folder in its place can't be opened as a file, whoever asks.
    let aside = pool.path("aside");
    fs::rename(&image, &aside).unwrap();
    fs::create_dir(&image).unwrap();
    let mut second = Mount::start_with(&pool, "second", &with_spool);
    assert!(fs::write(second.at("app/x"), &other).is_err(), "it would be pushed above this");
    assert!(fs::read(second.at("app/x")).is_err(), "it is not what the pool has of it");
    write(&second.at("app/z"), &other);
    assert!(
        fs::rename(second.at("app/x"), second.at("app/z")).is_err(),
        "what the pool has of it would cover this"
    );
    wait_until("it is pushed", || states(&pool, "app/z") == ["closed"]);
    assert!(pool.get("app/z") == other);
    write(&second.at("app/y"), &other);
    wait_until("others are pushed", || states(&pool, "app/y") == ["closed"]);
    second.kill();
    fs::remove_dir(&image).unwrap();
    fs::rename(&aside, &image).unwrap();
    let _third = Mount::start_with(&pool, "third", &with_spool);
    wait_until("what waits is pushed", || states(&pool, "app/x") == ["closed"]);
    assert!(pool.get("app/x") == waiting);
}

#[test]
fn a_mount_does_without_its_own_spool_only_if_nothing_waits_there() {
    let pool = pool_with(&["protocol=clw"]);
    ["benefactor-0", "benefactor-1"].iter().for_each(|role| pool.kill(role));
    let waits = random_bytes(MIB, 1);
    write(&pool.at("app/x"), &waits);
    assert_eq!(waiting(&pool), 1);
    pool.kill("mount");
    let point = pool.mount_point().to_str().unwrap().to_owned();
    let marker = pool.data().join("spool").join(point.replace('/', "%2F")).join("STDCHK");
    let marked = fs::read(&marker).unwrap();
    fs::write(&marker, b"of somebody else").unwrap();
    let refused = pool.run(&["mount", &point]);
    assert!(refused.code > 0 && refused.stderr.contains("wait in"), "{refused:?}");
    fs::write(&marker, marked).unwrap();
    pool.ok(&["up"]);
    wait_until("what waits is pushed", || states(&pool, "app/x") == ["closed"]);
    assert!(pool.get("app/x") == waits);
}

#[test]
fn what_a_failed_session_took_is_read_by_nobody_once_the_file_is_back_in_the_spool() {
    let pool = pool_with(&["protocol=clw"]);
    let spool = pool.path("spool");
    let small = ["--spool", spool.to_str().unwrap(), "--spool-size", "16MiB"];
    let mount = Mount::start_with(&pool, "small", &small);
    let [old, promised, lost] = [1, 2, 3].map(|seed| random_bytes(6 * MIB, seed));
    write(&mount.at("app/x"), &old);
    wait_until("the first version is pushed", || states(&pool, "app/x") == ["closed"]);
    let reader = File::open(mount.at("app/x")).unwrap();
    let read = || {
        let mut content = vec![0; 12 * MIB];
        reader.read_at(&mut content, 0).map(|length| content[..length].to_vec())
    };
    assert!(read().unwrap() == old);
    let mut command = Command::new("python3");
    command.args(["-c", FED]).arg(mount.at("app/x")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut fed = command.spawn().unwrap();
    let mut feed = |bytes: &[u8]| {
        std::io::Write::write_all(fed.stdin.as_mut().unwrap(), bytes).unwrap();
        let mut said = [0; 8];
        fed.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    };
    feed(&promised);
    ["benefactor-0", "benefactor-1"].iter().for_each(|role| pool.kill(role));
    // More than the spool takes.
    for _ in 0..3 {
        feed(&lost);
    }
    assert!(read().unwrap()[6 * MIB..] == lost, "the kernel has what is lost later");
    drop(fed.stdin.take());
    within("failing", move || fed.wait().unwrap());
    wait_until("it is back in the spool", || {
        fs::read_to_string(pool.path("small.log"))
            .unwrap()
            .contains("what was promised of it stays in the spool")
    });
    // With what came behind the sync, as far as the spool took it.
    let kept = fs::read(mount.at("app/x")).unwrap();
    assert!(kept.starts_with(&promised));
    wait_until("who had it open is told, or reads what was there", || {
        read()
            .map_or_else(|error| Errno::from_io_error(&error) == Some(Errno::STALE), |content| content == old)
    });
    pool.ok(&["up"]);
    wait_until("it is pushed", || states(&pool, "app/x") == ["closed", "interrupted"]);
    assert!(pool.get("app/x") == kept && fs::read(mount.at("app/x")).unwrap() == kept);
}

/// Writes what it is fed by pieces, syncs the first of them, and says so after each.
const FED: &str = "
import os, sys
to = os.open(sys.argv[1], os.O_WRONLY)
piece = 6 << 20
while data := sys.stdin.buffer.read(piece):
    os.write(to, data)
    if os.lseek(to, 0, os.SEEK_CUR) == piece:
        os.fsync(to)
    print('written', flush=True)
";

#[test]
fn what_a_disk_that_fails_takes_with_it_while_the_manager_is_away_is_on_record_once_it_is_back() {
    let pool = Setup::of(2).with("STDCHK_PATIENCE_MS", 1500).up();
    fs::create_dir(pool.at("app")).unwrap();
    pool.policy("app", &["redundancy=replicate:1", "protocol=clw"]);
    let disk = Disk::on_loop(&pool, "disk", 64, &["--donate", "1MiB"]);
    let spool = disk.at("spool");
    let mount = Mount::start_with(&pool, "second", &["--spool", spool.to_str().unwrap()]);
    let mut command = Command::new("python3");
    command.args(["-c", HALF]).arg(mount.at("app/x")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut half = command.spawn().unwrap();
    let mut said = [0; 8];
    half.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    pool.kill("manager");
    disk.shut_down();
    drop(half.stdin.take());
    half.wait().unwrap();
    let log = || fs::read_to_string(pool.path("second.log")).unwrap();
    wait_until("the loss is noticed", || log().contains("can't be put on record yet"));
    pool.ok(&["up"]);
    wait_until("a manager that forgot the file knows it again", || pool.run(&["ls", "app/x"]).code == 0);
    wait_until("the loss is on record", || states(&pool, "app/x") == ["lost"]);
}

#[test]
fn down_and_status_tell_what_waits_in_a_spool_and_which_mount_point_pushes_it() {
    let pool = pool_with(&["protocol=clw"]);
    ["benefactor-0", "benefactor-1"].iter().for_each(|role| pool.kill(role));
    let content = random_bytes(MIB, 1);
    write(&pool.at("app/x"), &content);
    let point = pool.mount_point().to_str().unwrap().to_owned();
    let of = |waiting: &serde_json::Value, mounted: bool| {
        assert_eq!(waiting.as_array().unwrap().len(), 1, "{waiting}");
        let fields = ["mount", "files", "bytes", "mounted"].map(|name| waiting[0][name].clone());
        assert_eq!(fields, [json!(point), json!(1), json!(MIB), json!(mounted)]);
    };
    of(&pool.status()["waiting"], true);
    of(&pool.json(&["down", "--json"])["waiting"], false);
    assert!(
        pool.log("mount").contains("1 file (1.00 MiB) of this mount not pushed"),
        "{}",
        pool.log("mount")
    );
    let again = pool.run(&["down"]);
    assert!(again.stderr.contains(&format!("`stdchk up --mount {point}` pushes them")), "{again:?}");
    let other = pool.path("other");
    let up = pool.run(&["up", "--mount", other.to_str().unwrap()]);
    assert!(up.code == 0 && up.stderr.contains(&format!("`stdchk mount {point}` pushes them")), "{up:?}");
    let status = pool.status();
    of(&status["waiting"], false);
    assert!(status["reasons"].to_string().contains(&point), "{status}");
    pool.ok(&["down"]);
    pool.ok(&["up", "--mount", &point]);
    wait_until("what waits is pushed", || states(&pool, "app/x") == ["closed"]);
    assert!(pool.get("app/x") == content);
    wait_until("nothing waits", || pool.status()["waiting"] == json!([]));
    uncover(&other);
}

#[test]
fn a_mount_ends_though_another_mount_namespace_has_a_copy_of_it() {
    let pool = pool_with(&["protocol=clw"]);
    let spool = pool.path("spool");
    let mut mount = Mount::start_with(&pool, "second", &["--spool", spool.to_str().unwrap()]);
    // A container, or a service with mounts of its own.
    let mut copy = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo ready; exec sleep 300"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    copy.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    write(&mount.at("app/x"), &random_bytes(MIB, 1));
    assert!(mount.end());
    assert_eq!(states(&pool, "app/x"), ["closed"]);
    let _next = Mount::start_with(&pool, "third", &["--spool", spool.to_str().unwrap()]);
    copy.kill().unwrap();
    copy.wait().unwrap();
}

#[test]
fn what_cannot_work_is_refused_with_the_reason() {
    let pool = Setup::of(1).up();
    for (pair, says) in [
        ("protocol=nfs", "give protocol one of `sw` `clw` `iw`"),
        ("close=never", "give close one of"),
        ("segment=64KiB", "at least 4MiB"),
        ("window=64KiB", "at least 4MiB"),
        ("cutter=fsch:100", "512 to 4MiB can"),
        ("cutter=fsch:8MiB", "512 to 4MiB can"),
    ] {
        pool.fails(&["policy", "set", "app", pair], 2, &[says]);
    }
    let point = pool.path("other");
    let inside = point.join("spool");
    let taken = pool.path("taken");
    let _holds_it = Mount::start_with(&pool, "holder", &["--spool", taken.to_str().unwrap()]);
    let foreign = pool.file("foreign/file", b"x");
    for (more, says) in [
        (vec!["--spool-size", "1MiB"], "at least 16MiB"),
        (vec!["--window", "64KiB"], "at least 4MiB"),
        (vec!["--spool", inside.to_str().unwrap()], "below the mount point"),
        (vec!["--spool", taken.to_str().unwrap()], "in use by process"),
        (vec!["--spool", Path::new(&foreign).parent().unwrap().to_str().unwrap()], "not stdchk's"),
    ] {
        let refused = pool.run(&[&["mount", point.to_str().unwrap()], more.as_slice()].concat());
        assert!(refused.code > 0 && refused.stderr.contains(says), "{more:?}: {refused:?}");
    }
}

/// Writes files by turns of five names until its mount is gone, and says which it has closed; some in place, some under
/// another name first. The content of a file follows from its number.
const WRITES: &str = r"
import os, random, sys
folder, first = sys.argv[1], int(sys.argv[2])
def content(number):
    source = random.Random(number)
    return source.randbytes(source.randrange(1, 3000000))
# What is made anew goes past the page cache from here on.
teacher = f'{folder}/f7.tmp'
file = os.open(teacher, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for piece in range(5): os.write(file, os.urandom(1 << 20))
os.close(file)
os.unlink(teacher)
for number in range(first, first + 1000000):
    body, cut = content(number), random.Random(-number).randrange(3)
    try:
        name = f'{folder}/f{number % 5}'
        file = os.open(name + '.tmp' * (cut == 1), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        half = len(body) // 2
        os.write(file, body[:half])
        if cut == 0: os.fsync(file)
        while half < len(body): half += os.pwrite(file, body[half:], half)
        os.close(file)
        if cut == 1: os.rename(name + '.tmp', name)
    except OSError as error:
        print('failed', number, flush=True)
        break
    print('closed', number, flush=True)
";

/// Compares: of each name what was closed last, or what a writer since then was about to close when its mount died.
const READS: &str = r"
import random, sys
folder, lines = sys.argv[1], open(sys.argv[2]).read().split('\n')
def content(number):
    source = random.Random(number)
    return source.randbytes(source.randrange(1, 3000000))
closed, failed = {}, []
for line in lines:
    words = line.split()
    if words and words[0] == 'closed': closed[int(words[1]) % 5] = int(words[1])
    if words and words[0] == 'failed': failed.append(int(words[1]))
for name, number in closed.items():
    body = open(f'{folder}/f{name}', 'rb').read()
    allowed = [content(number)]
    for later in failed:
        # What it had synced, and what it was about to close.
        if later > number and later % 5 == name: allowed += [content(later)[:len(content(later)) // 2], content(later)]
    assert body in allowed, (folder, name, number, len(body))
print(len(closed))
";

/// The folders of the loop: each with what their writers have said.
struct Loop {
    pool: Pool,
    folders: Vec<&'static str>,
}

impl Loop {
    fn said(&self, folder: &str) -> PathBuf {
        self.pool.path(&format!("said-{folder}"))
    }

    fn start_writer(&self, folder: &str, first: u64) -> Child {
        let said = File::options().append(true).create(true).open(self.said(folder)).unwrap();
        let mut command = Command::new("python3");
        command.args(["-c", WRITES]).arg(self.pool.at(folder)).arg(first.to_string());
        command.stdin(Stdio::null()).stdout(said).stderr(Stdio::null()).spawn().unwrap()
    }

    /// How many names of a folder have what was promised.
    fn check(&self, folder: &str) -> usize {
        let mut command = Command::new("python3");
        command.args(["-c", READS]).arg(self.pool.at(folder)).arg(self.said(folder));
        let output = within("reading back", move || command.output().unwrap());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
    }

    fn round(&self, number: u64, moment: Duration) {
        let first = number * 1000;
        let writers: Vec<Child> =
            self.folders.iter().map(|folder| self.start_writer(folder, first)).collect();
        wait_until("something was closed", || {
            self.folders.iter().all(|folder| {
                fs::read_to_string(self.said(folder)).unwrap().contains(&format!("closed {first}\n"))
            })
        });
        // Not a wait for something: the moment at which the mount dies.
        std::thread::sleep(moment);
        self.pool.kill("mount");
        for mut writer in writers {
            within("a writer ends when its mount is gone", move || writer.wait().unwrap());
        }
        self.pool.ok(&["up"]);
        // Before it is pushed, as after.
        self.folders.iter().for_each(|folder| assert!(self.check(folder) > 0));
    }
}

impl Loop {
    /// Old versions are not what this is about, and take space.
    fn begin_anew(&self) {
        wait_until("the spool is empty", || waiting(&self.pool) == 0);
        for folder in &self.folders {
            assert!(self.check(folder) > 0);
            for file in fs::read_dir(self.pool.at(folder)).unwrap() {
                fs::remove_file(file.unwrap().path()).unwrap();
            }
            fs::write(self.said(folder), "").unwrap();
        }
        // What is too young yet goes the next time.
        self.pool.run(&["gc"]);
    }
}

/// Opens some hundred files, writes all of them, then closes all of them; any error ends it.
const MANY_OPEN: &str = r"
import os
files = [os.open(f'f{number}', os.O_WRONLY | os.O_CREAT) for number in range(300)]
for number, file in enumerate(files): assert os.write(file, b'%08d' % number * 600) == 4800
for file in files: os.close(file)
";

/// What a mount needs to note a close in the spool, images don't take: those that there are no descriptors for go through memory.
#[test]
fn a_mount_with_few_descriptors_closes_all_files_that_are_open_at_once() {
    let pool = pool_with(&["protocol=clw"]);
    pool.kill("mount");
    let up = pool.command(&["up"]);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 256 && exec \"$0\" \"$@\""]).arg(up.get_program()).args(up.get_args());
    pool.apply_to(&mut limited);
    assert!(limited.status().unwrap().success());
    let mut many = Command::new("python3");
    many.args(["-c", MANY_OPEN]).current_dir(pool.at("app"));
    assert!(within("300 files are written", move || many.status().unwrap()).success());
    wait_until("the spool is empty", || waiting(&pool) == 0);
    for number in 0..300 {
        assert!(pool.get(&format!("app/f{number}")) == format!("{number:08}").repeat(600).as_bytes());
    }
    assert_eq!(states(&pool, "app/f299").last().unwrap(), "closed");
}

#[test]
fn a_mount_that_is_killed_at_any_moment_keeps_what_each_protocol_promised_at_close() {
    let kills =
        std::env::var("STDCHK_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS_DEFAULT);
    let setup = Setup { donate: "8GiB".to_owned(), ..Setup::of(2) };
    let test = Loop {
        pool: setup.with("STDCHK_CLIENT_LEASE_MS", 8000).with("STDCHK_GARBAGE_AGE_MS", 10_000).up(),
        folders: vec!["sw", "clw", "iw"],
    };
    for folder in &test.folders {
        fs::create_dir(test.pool.at(folder)).unwrap();
        test.pool.policy(folder, &["redundancy=replicate:1", &format!("protocol={folder}"), "segment=4MiB"]);
    }
    let moments = random_bytes(usize::try_from(kills).unwrap(), 77);
    for (number, moment) in (1..=kills).zip(moments) {
        test.round(number, Duration::from_millis(u64::from(moment) * 3));
        if number % 20 == 0 && number < kills {
            test.begin_anew();
        }
    }
    wait_until("the spool is empty", || waiting(&test.pool) == 0);
    test.folders.iter().for_each(|folder| assert!(test.check(folder) > 0));
    assert_eq!(test.pool.json(&["verify", "--json"])["bad"], json!([]));
}
