//! Packing and unpacking as users meet them: what comes back, what is said, and what is left when it goes wrong.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use stdchk_tests::{Outcome, binary, command, outcome, random_bytes, wait_until};
use tempfile::TempDir;

use crate::aggregate::Running;
use crate::mistakes::{as_nobody, home_of_nobody};

/// A folder in which commands run.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn file(&self, name: &str, content: &[u8]) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), content).unwrap();
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        let mut command = command(arguments);
        command.current_dir(self.0.path());
        outcome(command)
    }

    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments);
        assert_eq!(ended.code, 0, "stdchk {}: {ended:?}", arguments.join(" "));
        ended.text()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(arguments)).unwrap()
    }

    pub(crate) fn fails(&self, arguments: &[&str], code: i32, says: &str) -> Outcome {
        let ended = self.run(arguments);
        assert_eq!(ended.code, code, "stdchk {}: {ended:?}", arguments.join(" "));
        assert!(ended.stderr.contains(says), "`{says}` is missing in: {}", ended.stderr);
        ended
    }

    /// Names in the folder itself.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Ranks of a smooth field below `folder`, as `.npy`; `time` moves it.
    fn ranks(&self, folder: &str, time: f64) {
        for rank in 0..4 {
            let literal = "{'descr': '<f8', 'fortran_order': False, 'shape': (64, 64), }";
            let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
            bytes.extend(format!("{literal:<117}\n").into_bytes());
            let value = |n: i32| (f64::from(n % 64) / 20.0 + time).sin() + f64::from(n / 64 + rank).sqrt();
            bytes.extend((0..64 * 64).flat_map(|n| value(n).to_le_bytes()));
            self.file(&format!("{folder}/field.{rank}.npy"), &bytes);
        }
    }
}

fn same(one: &Path, other: &Path) -> bool {
    fs::read(one).unwrap() == fs::read(other).unwrap()
}

#[test]
fn a_set_comes_back_at_every_level_and_is_smaller() {
    let place = Place::new();
    place.ranks("set", 0.0);
    place.file("set/below/noise", &random_bytes(100_000, 1));
    place.file("set/empty", b"");
    for level in ["fastest", "default", "auto", "paper", "paper-once"] {
        let packed = place.json(&["pack", "set", "-o", "x.pack", "--level", level, "--json"]);
        assert_eq!((packed["files"].as_u64(), packed["level"].as_str()), (Some(6), Some(level)));
        assert_eq!(
            packed["stored_bytes"].as_u64().unwrap(),
            fs::metadata(place.path("x.pack")).unwrap().len()
        );
        // Before a fast disk the soonest may be to store the bytes as they are.
        let least = if level == "auto" { 0.99 } else { 1.0 };
        assert!(packed["ratio"].as_f64().unwrap() > least, "{packed}");
        let unpacked = place.json(&["unpack", "x.pack", "-o", level, "--json"]);
        assert_eq!((&unpacked["files"], &unpacked["bytes"]), (&packed["files"], &packed["bytes"]));
        for name in ["field.0.npy", "field.3.npy", "below/noise", "empty"] {
            assert!(
                same(&place.path(&format!("set/{name}")), &place.path(&format!("{level}/{name}"))),
                "{name}"
            );
        }
    }
}

#[test]
fn single_files_and_variables_come_out_and_a_list_shows_them() {
    let place = Place::new();
    place.ranks("set", 0.0);
    place.ok(&["pack", "set", "-o", "x.pack", "-q"]);
    place.ok(&["unpack", "x.pack", "-o", "one", "field.2.npy"]);
    assert_eq!(fs::read_dir(place.path("one")).unwrap().count(), 1);
    assert!(same(&place.path("set/field.2.npy"), &place.path("one/field.2.npy")));
    place.ok(&["unpack", "x.pack", "-o", "v", "field.2.npy", "--variable", "array"]);
    let array = fs::read(place.path("v/field.2.npy/array.npy")).unwrap();
    // The same numbers behind a header of our own.
    assert!(array[128..] == fs::read(place.path("set/field.2.npy")).unwrap()[128..]);
    let listed = place.json(&["pack", "--list", "x.pack", "--json"]);
    assert_eq!(listed[2]["name"], "field.2.npy");
    assert_eq!((&listed[2]["format"], &listed[2]["variables"][0]["type"]), (&"npy".into(), &"F64LE".into()));
    assert!(listed[2]["variables"][0]["ratio"].as_f64().unwrap() > 1.0);
    assert!(place.ok(&["pack", "--list", "x.pack"]).contains("F64LE  64x64"));
    place.fails(&["unpack", "x.pack", "-o", "no", "field.9.npy"], 4, "field.9.npy");
    place.fails(&["unpack", "x.pack", "-o", "no", "field.2.npy", "--variable", "b"], 4, "b");
    place.fails(&["unpack", "x.pack", "-o", "no", "field.2.npy", "--variable", "../b"], 2, "../b");
    assert!(!place.path("no").exists());
}

#[test]
fn a_set_against_an_earlier_one_needs_it_to_come_back() {
    let place = Place::new();
    let mut weights = random_bytes(200_000, 3);
    place.file("first/w100.bin", &weights);
    place.file("first/w100.npy", &npy_u16(&weights));
    place.ok(&["pack", "first/w100.npy", "-o", "first.pack"]);
    weights.iter_mut().step_by(997).for_each(|byte| *byte ^= 1);
    place.file("second/w200.npy", &npy_u16(&weights));
    let packed = place.json(&["pack", "second", "-o", "second.pack", "--base", "first.pack", "--json"]);
    assert!(packed["ratio"].as_f64().unwrap() > 10.0, "{packed}");
    place.ok(&["unpack", "second.pack", "-o", "beside"]);
    assert!(same(&place.path("second/w200.npy"), &place.path("beside/w200.npy")));
    std::fs::rename(place.path("first.pack"), place.path("first/elsewhere")).unwrap();
    place.fails(&["unpack", "second.pack", "-o", "back"], 2, "--base");
    place.ok(&["unpack", "second.pack", "--base", "first/elsewhere", "-o", "back"]);
    assert!(same(&place.path("second/w200.npy"), &place.path("back/w200.npy")));
}

fn npy_u16(bytes: &[u8]) -> Vec<u8> {
    let literal = format!("{{'descr': '<u2', 'fortran_order': False, 'shape': ({},), }}", bytes.len() / 2);
    [b"\x93NUMPY\x01\x00\x76\x00", format!("{literal:<117}\n").as_bytes(), bytes].concat()
}

#[test]
fn of_a_damaged_container_every_intact_file_comes_back_and_the_others_are_named() {
    let place = Place::new();
    for name in ["a", "b", "c"] {
        place.file(&format!("set/{name}"), &random_bytes(300_000, name.as_bytes()[0].into()));
    }
    place.ok(&["pack", "set", "-o", "x.pack"]);
    let mut bytes = fs::read(place.path("x.pack")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    place.file("x.pack", &bytes);
    let ended = place.fails(&["unpack", "x.pack", "-o", "back", "--json"], 3, "b");
    assert_eq!((&ended.json()["damaged"], &ended.json()["files"]), (&serde_json::json!(["b"]), &2.into()));
    let checked = place
        .fails(&["unpack", "x.pack", "--check", "--json"], 3, "1 of the container's files are damaged: b")
        .json();
    assert_eq!(
        (&checked["damaged"], &checked["files"], &checked["folder"]),
        (&serde_json::json!(["b"]), &2.into(), &Value::Null)
    );
    place.ok(&["unpack", "x.pack", "--check", "a", "c"]);
    assert!(
        same(&place.path("set/a"), &place.path("back/a"))
            && same(&place.path("set/c"), &place.path("back/c"))
    );
    assert_eq!(fs::read_dir(place.path("back")).unwrap().count(), 2);
    assert_eq!(place.names(), ["back", "set", "x.pack"], "a check writes nothing");
    place.fails(&["unpack", "x.pack", "-o", "back", "b"], 7, "b");
    place.file("x.pack", &bytes[..middle]);
    let listed = place.fails(&["pack", "--list", "x.pack", "--json"], 3, "damaged: b, c").json();
    let marked = |file: usize| (listed[file]["name"].as_str(), listed[file]["damaged"].as_bool());
    assert_eq!([marked(0), marked(2)], [(Some("a"), Some(false)), (Some("c"), Some(true))]);
    place.file("x.pack", b"something else, and long enough to be looked at for a trailer");
    place.fails(&["unpack", "x.pack", "-o", "back"], 2, "no stdchk container");
}

#[test]
fn a_folder_in_the_way_keeps_back_only_what_belongs_there() {
    let place = Place::new();
    for name in ["a", "b", "below/c", "empty"] {
        let length = if name == "empty" { 0 } else { 5000 };
        place.file(&format!("set/{name}"), &random_bytes(length, 1));
    }
    place.ok(&["pack", "set", "-o", "x.pack"]);
    place.file("back/a/mine", b"stays");
    place.file("back/empty/mine", b"stays");
    place.file("back/below", b"stays");
    let ended = place.fails(&["unpack", "x.pack", "-o", "back", "--json"], 3, "something else has its name");
    assert!(ended.stderr.contains("a, below/c, empty; all others were written; move that away"), "{ended:?}");
    let report = ended.json();
    assert_eq!(report["blocked"], serde_json::json!(["a", "below/c", "empty"]));
    assert_eq!((&report["files"], &report["damaged"]), (&1.into(), &serde_json::json!([])));
    assert!(same(&place.path("set/b"), &place.path("back/b")));
    for mine in ["back/a/mine", "back/empty/mine", "back/below"] {
        assert_eq!(fs::read(place.path(mine)).unwrap(), b"stays");
    }
    place.fails(&["unpack", "x.pack", "-o", "back", "a"], 1, "move that away, then run it again");
    place.fails(&["unpack", "x.pack", "-o", "back/below"], 1, "back/below");
    fs::remove_dir_all(place.path("back")).unwrap();
    place.ok(&["unpack", "x.pack", "-o", "back"]);
}

#[test]
fn names_with_control_characters_take_one_line_each_and_come_back() {
    let place = Place::new();
    let (odd, shown) = ("a\nb\u{1b}[2Jc\td", "a\\nb\\u{1b}[2Jc\\td");
    place.file(&format!("set/{odd}"), &random_bytes(300_000, 1));
    place.file("set/z", &random_bytes(300_000, 2));
    let packed = format!("{odd}.pack");
    // Every line says who speaks.
    let is_plain = |ended: &Outcome| {
        let lines: Vec<&str> = ended.stderr.lines().collect();
        let speaks = |line: &&str| ["stdchk: ", "pack: ", "unpack: "].iter().any(|who| line.starts_with(who));
        assert!(lines.iter().all(speaks) && !ended.stderr.contains('\u{1b}'), "{ended:?}");
    };
    is_plain(&place.run(&["pack", "set", "-o", &packed]));
    let list = place.run(&["pack", "--list", &packed]);
    assert_eq!((list.code, list.text().lines().count()), (0, 3), "{list:?}");
    assert!(list.text().contains(shown) && !list.text().contains('\u{1b}'), "{list:?}");
    let report = place.json(&["pack", "set", "-o", &packed, "--json"]);
    assert_eq!(report["container"], packed);
    assert_eq!(place.json(&["pack", "--list", &packed, "--json"])[0]["name"], odd);
    is_plain(&place.run(&["unpack", &packed, "-o", "back"]));
    assert!(same(&place.path(&format!("set/{odd}")), &place.path(&format!("back/{odd}"))));

    let mut bytes = fs::read(place.path(&packed)).unwrap();
    bytes[100_000] ^= 1;
    place.file(&packed, &bytes);
    let checked = place.fails(&["unpack", &packed, "--check", "--json"], 3, &format!("damaged: {shown}; "));
    is_plain(&checked);
    assert_eq!(checked.json()["damaged"], serde_json::json!([odd]));
    for (arguments, code) in [
        (&["unpack", odd, "-o", "back"][..], 4),
        (&["unpack", &packed, "-o", "back", "e\nf"], 4),
        (&["unpack", &packed, "-o", &packed], 1),
        (&["pack", "e\nf", "-o", "x.pack"], 4),
        (&["pack", "set", "-o", "e\nf/x.pack"], 4),
        (&["pack", "--list", &format!("set/{odd}")], 2),
    ] {
        let ended = place.run(arguments);
        assert_eq!(ended.code, code, "{ended:?}");
        is_plain(&ended);
    }
}

#[test]
fn names_that_are_no_utf_8_are_packed_shown_in_ascii_and_come_back() {
    let place = Place::new();
    let odd = OsStr::from_bytes(b"dump\xff.1");
    place.file("set/z", &random_bytes(300_000, 2));
    fs::write(place.path("set").join(odd), random_bytes(300_000, 1)).unwrap();
    let report = place.json(&["pack", "set", "-o", "x.pack", "--json"]);
    assert_eq!(report["files"], 2);
    assert_eq!(place.json(&["pack", "--list", "x.pack", "--json"])[0]["name"], "dump\\xff.1");
    let list = place.run(&["pack", "--list", "x.pack"]);
    assert!(list.code == 0 && list.text().contains("dump\\xff.1"), "{list:?}");
    for (folder, names) in [("all", &[][..]), ("one", &[odd][..])] {
        let mut unpack = command(&["unpack", "x.pack", "-o", folder]);
        unpack.args(names).current_dir(place.0.path());
        let ended = outcome(unpack);
        assert_eq!(ended.code, 0, "{ended:?}");
        assert!(same(&place.path("set").join(odd), &place.path(folder).join(odd)));
    }
    assert!(place.path("all/z").exists() && !place.path("one/z").exists());
}

#[test]
fn what_no_container_can_be_is_refused_at_once() {
    let place = Place::new();
    fs::create_dir(place.path("folder")).unwrap();
    assert!(Command::new("mkfifo").arg(place.path("pipe")).status().unwrap().success());
    for name in ["folder", "pipe"] {
        place.fails(&["unpack", name, "-o", "back"], 2, "no regular file");
        place.fails(&["pack", "--list", name], 2, "no regular file");
    }
}

#[test]
fn what_a_killed_one_left_goes_with_the_next_and_what_another_is_writing_stays() {
    let place = Place::new();
    place.file("set/x", &random_bytes(96 << 20, 7));
    place.file("small/x", b"1");
    let parts =
        || place.names().into_iter().filter(|name| name.ends_with(".stdchk-part")).collect::<Vec<_>>();
    let pack_for_long = || {
        let slow = ["pack", "set", "-o", "x.pack", "--level", "paper", "--memory", "16MiB"];
        let mut command = command(&slow);
        Running(command.current_dir(place.path("")).stderr(Stdio::null()).spawn().unwrap())
    };
    let mut killed = pack_for_long();
    wait_until("packing has begun", || parts().len() == 1);
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    let left = parts();
    assert_eq!(left.len(), 1);
    let mut other = pack_for_long();
    wait_until("what was left is gone, and packing has begun", || parts().len() == 1 && parts() != left);
    other.signal("-STOP");
    let of_other = parts();
    place.ok(&["pack", "small", "-o", "x.pack"]);
    assert_eq!(parts(), of_other);
    other.signal("-INT");
    other.signal("-CONT");
    assert_eq!(other.0.wait().unwrap().code(), Some(130));
    assert_eq!(place.names(), ["set", "small", "x.pack"]);
    place.ok(&["unpack", "x.pack", "--check"]);
}

#[test]
fn a_second_signal_ends_what_the_first_one_could_not() {
    const PIPE_BYTES: usize = 64 << 10;
    let place = Place::new();
    place.file("set/x", b"1");
    place.ok(&["pack", "set", "-o", "x.pack"]);
    // Its report has no room in a pipe that nobody reads.
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[0; PIPE_BYTES]).unwrap();
    let mut command = command(&["unpack", "x.pack", "-o", "back", "--json"]);
    command.current_dir(place.path("")).stdout(writer).stderr(Stdio::null());
    let mut running = Running(command.spawn().unwrap());
    wait_until("the file is back", || place.path("back/x").exists());
    sleep(Duration::from_millis(200));
    running.terminate();
    sleep(Duration::from_millis(200));
    assert_eq!(running.0.try_wait().unwrap(), None, "the first signal ended it");
    running.terminate();
    wait_until("it ends", || running.0.try_wait().unwrap().is_some());
    assert_eq!(running.0.wait().unwrap().code(), Some(130));
    drop(reader);
}

#[test]
fn holes_come_back_as_holes() {
    const SIZE: u64 = 48 << 20;
    let place = Place::new();
    place.file("set/sparse", b"");
    let sparse = fs::File::options().write(true).open(place.path("set/sparse")).unwrap();
    sparse.set_len(SIZE).unwrap();
    for (at, length) in [(0, 100), (20 << 20, 8192), ((30 << 20) + 100, 5000)] {
        sparse.write_all_at(&random_bytes(length, at), at).unwrap();
    }
    place.file("set/none", &random_bytes(300_000, 1));
    place.ok(&["pack", "set", "-o", "x.pack"]);
    place.ok(&["unpack", "x.pack", "-o", "back"]);
    assert!(same(&place.path("set/sparse"), &place.path("back/sparse")));
    assert!(same(&place.path("set/none"), &place.path("back/none")));
    let disk_bytes = |name: &str| fs::metadata(place.path(name)).unwrap().blocks() * 512;
    let (before, after) = (disk_bytes("set/sparse"), disk_bytes("back/sparse"));
    assert!(after <= before.max(1 << 20), "{after} bytes on disk, where there were {before}");
}

/// Packs a folder, and unpacks it as an ordinary user; where to.
fn packed_and_unpacked_by_nobody(home: &Path, set: &Path) -> PathBuf {
    let (container, back) = (home.join("x.pack"), home.join("home/back"));
    let [from, container, to] = [set, &container, &back].map(|path| path.to_str().unwrap());
    let packed = outcome(command(&["pack", from, "-o", container]));
    assert_eq!(packed.code, 0, "{packed:?}");
    fs::set_permissions(container, fs::Permissions::from_mode(0o644)).unwrap();
    let unpacked = outcome(as_nobody(home, &["unpack", container, "-o", to]));
    assert_eq!(unpacked.code, 0, "{unpacked:?}");
    back
}

#[test]
fn files_that_nobody_may_write_come_back_to_an_ordinary_user_however_many() {
    let home = home_of_nobody();
    let set = home.path().join("set");
    fs::create_dir(&set).unwrap();
    // More than are kept open.
    for number in 0..300 {
        let path = set.join(format!("rank{number}"));
        fs::write(&path, random_bytes(20_000, number)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    }
    let back = packed_and_unpacked_by_nobody(home.path(), &set);
    assert_eq!(fs::read_dir(&back).unwrap().count(), 300);
    let last = back.join("rank299");
    assert!(same(&set.join("rank299"), &last));
    assert_eq!(fs::metadata(&last).unwrap().mode() & 0o777, 0o444);
}

#[test]
fn set_id_bits_of_another_owner_do_not_come_back_to_an_ordinary_user() {
    let home = home_of_nobody();
    let set = home.path().join("set");
    fs::create_dir(&set).unwrap();
    for (name, bits) in [("of-user", 0o4755), ("of-group", 0o2755), ("plain", 0o751)] {
        fs::write(set.join(name), name).unwrap();
        fs::set_permissions(set.join(name), fs::Permissions::from_mode(bits)).unwrap();
    }
    let back = packed_and_unpacked_by_nobody(home.path(), &set);
    // Whose tests are run by an ordinary user is the owner there, too.
    let is_other = fs::metadata(&back).unwrap().uid() != fs::metadata(&set).unwrap().uid();
    let kept = if is_other { 0o777 } else { 0o7777 };
    for name in ["of-user", "of-group", "plain"] {
        let bits = |folder: &Path| fs::metadata(folder.join(name)).unwrap().mode() & 0o7777;
        assert_eq!(bits(&back), bits(&set) & kept, "{name}");
    }
}

#[test]
fn what_cannot_be_packed_is_told_and_leaves_nothing() {
    let place = Place::new();
    place.file("set/x", b"1");
    place.file("other/x", b"2");
    place.fails(&["pack", "missing", "-o", "x.pack"], 4, "missing");
    place.fails(&["pack", "set", "-o", "missing/x.pack"], 4, "missing");
    place.fails(&["pack", "set/x", "other/x", "-o", "x.pack"], 2, "'x'");
    place.fails(&["pack", "set", "-o", "set/x"], 2, "set/x");
    place.fails(&["pack", "set", "-o", "x.pack", "--pattern", "("], 2, "regular expression");
    place.fails(&["pack", "set"], 2, "--output");
    fs::create_dir(place.path("nothing")).unwrap();
    place.fails(&["pack", "nothing", "-o", "x.pack"], 2, "0 files");
    assert_eq!(place.names(), ["nothing", "other", "set"]);
    symlink("x", place.path("set/link")).unwrap();
    let ended = place.fails(&["pack", "set", "-o", "x.pack", "--json"], 3, "set/link");
    assert_eq!(ended.json()["left_out"], serde_json::json!(["set/link"]));
}

#[test]
fn a_disk_that_is_full_ends_it_and_leaves_nothing() {
    let place = Place::new();
    place.file("set/x", &random_bytes(8 << 20, 5));
    let stdchk = binary().display().to_string();
    // A limit on the length of files fails a write in the middle as a full disk does.
    let limited = |arguments: &str| {
        let mut shell = Command::new("bash");
        let line = format!("trap '' XFSZ; ulimit -f 2048; exec {stdchk} {arguments} --memory 16MiB");
        shell.args(["-c", &line]).current_dir(place.0.path()).stdin(Stdio::null());
        outcome(shell)
    };
    let ended = limited("pack set -o x.pack");
    assert!(ended.code == 1 && ended.stderr.contains("x.pack"), "{ended:?}");
    assert_eq!(place.names(), ["set"]);
    place.ok(&["pack", "set", "-o", "x.pack"]);
    let ended = limited("unpack x.pack -o back");
    assert!(ended.code == 1 && ended.stderr.contains("back/x"), "{ended:?}");
    assert_eq!(fs::read_dir(place.path("back")).unwrap().count(), 0);
}

#[test]
fn an_interruption_leaves_nothing_and_has_its_own_code() {
    let place = Place::new();
    place.file("set/x", &random_bytes(96 << 20, 7));
    let mut command = command(&["pack", "set", "-o", "x.pack", "--level", "paper", "--memory", "16MiB"]);
    let mut child = command.current_dir(place.0.path()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("packing has begun", || place.names().iter().any(|name| name.ends_with(".stdchk-part")));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(place.names(), ["set"]);
}
