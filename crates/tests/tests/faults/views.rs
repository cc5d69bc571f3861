//! The bytes of a file are the same whatever became of it and however it is read: a table of the states that a file can be in
//! times the ways to read it, each compared with a plain copy on the local disk (I2, I11).
//!
//! The states: in chunks, in pieces, in a container, made past the page cache, left by a killed writer, renamed while it is
//! open, with a copy lost, being written (over each of the first three, by each protocol, step by step), closed in the spool.
//! The ways: those of one process (`views/look.py`: `read`, `pread`, a mapping, `SEEK_DATA` and `SEEK_HOLE`, `stat`), those of
//! programs ([`PROGRAMS`]), and those of commands that ask the pool ([`Committed`]). In each state there are four files: one with
//! data at its begin, middle and end, an empty one, one without any data, and a tiny one.
//!
//! What can't be: a mapping of an empty file, which no file system has; and commands that ask the pool see what is
//! committed, not what is being written or waits in the spool: there they must give the version before, or say that
//! there is none.
//!
//! `STDCHK_VIEWS=all` walks the held files over all bases by all protocols, as `scripts/soak` does; else some of them.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use stdchk_tests::{Mount, Outcome, Pool, Setup, binary, outcome, random_bytes, wait_until, within};

use crate::program::Writer;

const MIB: usize = 1 << 20;
/// Size of the file with holes: of several chunks and cells, and odd.
const SPARSE_BYTES: u64 = 5 * MIB as u64 + 4321;
/// Where it has data: offset and length.
const SPARSE_DATA: [(u64, usize); 3] =
    [(0, 70_001), (2 * MIB as u64 + 777, MIB + 300_003), (SPARSE_BYTES - 9_999, 9_999)];
/// Size of the file that is one hole.
const HOLE_BYTES: u64 = MIB as u64 + 99;
/// The files of a state: ranks of one checkpoint set.
const NAMES: [&str; 4] = ["sim.N0.T1", "sim.N1.T1", "sim.N2.T1", "sim.N3.T1"];

const LOOK: &str = include_str!("views/look.py");
const HOLD: &str = include_str!("views/hold.py");

/// Programs that copy all files of their folder to `$OUT`. The first ones come to a file before anything made the kernel hand
/// over what it holds. That a file which is open for writing seems to change while it is read, `tar` may say.
const PROGRAMS: [(&str, &str); 6] = [
    ("tar -S", "tar -Scf $OUT.tar -- * || [ $? = 1 ]; tar -xf $OUT.tar -C $OUT"),
    ("bsdtar", "bsdtar -cf - -- * | bsdtar -xf - -C $OUT"),
    ("cp", "cp -- * $OUT"),
    ("cp --sparse=always", "cp --sparse=always -- * $OUT"),
    ("rsync -S", "rsync -S -- * $OUT"),
    ("pack", "$STDCHK --quiet pack . -o $OUT.pack; $STDCHK --quiet unpack $OUT.pack -o $OUT"),
];

/// Bytes that a compressor makes half as long.
fn content(length: usize, seed: u64) -> Vec<u8> {
    let mut content = random_bytes(length, seed);
    content.iter_mut().for_each(|byte| *byte &= 0x0f);
    content
}

/// Writes the four files.
fn write_files(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let [sparse, _empty, hole, tiny] = NAMES.map(|name| File::create(folder.join(name)).unwrap());
    sparse.set_len(SPARSE_BYTES).unwrap();
    for (seed, (offset, length)) in (1..).zip(SPARSE_DATA) {
        sparse.write_all_at(&content(length, seed), offset).unwrap();
    }
    hole.set_len(HOLE_BYTES).unwrap();
    tiny.write_all_at(b"tiny", 0).unwrap();
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for name in files_of(from) {
        fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
}

fn files_of(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// What differs between a copy and the plain files.
fn differences(copy: &Path, plain: &Path) -> Vec<String> {
    let (there, expected) = (files_of(copy), files_of(plain));
    if there != expected {
        return vec![format!("{there:?} came, not {expected:?}")];
    }
    let differs = |name: &String| {
        let (got, expected) = (fs::read(copy.join(name)).unwrap(), fs::read(plain.join(name)).unwrap());
        (got != expected).then(|| {
            let first = got.iter().zip(&expected).position(|(one, other)| one != other);
            format!("{name}: {} bytes of {}, other ones from {first:?} on", got.len(), expected.len())
        })
    };
    there.iter().filter_map(differs).collect()
}

/// What the pool has committed of the files of a state.
#[derive(Clone, Copy)]
enum Committed<'a> {
    /// These bytes, which the files of the folder `control` have too, as a complete set or not.
    Files { plain: &'a Path, control: &'a str, complete: bool },
    /// None of them has a version, but what has no data and needs nobody to store it.
    Nothing,
}

/// The table: a pool, and the cells that were wrong.
struct Table {
    pool: Pool,
    wrong: Vec<String>,
    copies: usize,
}

impl Table {
    fn new(pool: Pool) -> Self {
        for (name, program) in [("look.py", LOOK), ("hold.py", HOLD)] {
            pool.file(name, program.as_bytes());
        }
        write_files(&pool.path("plain"));
        Self { pool, wrong: Vec::new(), copies: 0 }
    }

    fn plain(&self) -> PathBuf {
        self.pool.path("plain")
    }

    /// A folder of the pool with this policy.
    fn folder(&self, name: &str, policy: &[&str]) -> PathBuf {
        fs::create_dir(self.pool.at(name)).unwrap();
        self.pool.policy(name, &[&["ranks=4", "codec=store"], policy].concat());
        self.pool.at(name)
    }

    /// A folder with the four files, closed: in chunks, in pieces, in a container.
    fn base(&self, base: &str, name: &str, policy: &[&str]) -> PathBuf {
        let cutter = if base == "pieces" { "cutter=fsch:4KiB" } else { "cutter=fsch:1MiB" };
        let folder = self.folder(name, &[&[cutter], policy].concat());
        write_files(&folder);
        if base == "container" {
            self.aggregate(name);
        }
        folder
    }

    fn aggregate(&self, name: &str) {
        // A file is open until the kernel has said that it is closed, which it does after `close` has returned.
        wait_until("the files are closed, and aggregated", || {
            self.pool.run(&["aggregate", name, "--once", "--quiet"]).code == 0
        });
        let sets = self.pool.json(&["ls", name, "--sets", "--json"]);
        let members = sets["sets"][0]["members"].as_array().unwrap();
        assert!(members.iter().all(|member| member["aggregated"] == true), "{sets}");
    }

    fn note(&mut self, state: &str, way: &str, differences: impl IntoIterator<Item = String>) {
        self.wrong.extend(differences.into_iter().map(|what| format!("{state} / {way}: {what}")));
    }

    /// Reads in the ways of one process.
    fn look(&mut self, state: &str, seen: &Path, plain: &Path) {
        let mut command = Command::new("python3");
        command.arg(self.pool.path("look.py")).args([seen, plain]).stdin(Stdio::null());
        let looked = outcome(command);
        assert_eq!(looked.code, 0, "{state}: {looked:?}");
        let lines: Vec<String> = looked.text().lines().map(str::to_owned).collect();
        self.note(state, "one process", lines.into_iter().filter(|line| !line.is_empty()));
    }

    /// An empty folder for a copy.
    fn empty(&mut self) -> PathBuf {
        self.copies += 1;
        let copy = self.pool.path(&format!("copies/{}", self.copies));
        fs::create_dir_all(&copy).unwrap();
        copy
    }

    /// Has programs copy the files of a folder.
    fn copy(&mut self, state: &str, seen: &Path, plain: &Path) {
        for (way, script) in PROGRAMS {
            let copy = self.empty();
            let mut command = Command::new("bash");
            self.pool.apply_to(&mut command);
            command.args(["-c", &format!("set -e -o pipefail; {script}")]).current_dir(seen);
            command.env("OUT", &copy).env("STDCHK", binary()).stdin(Stdio::null());
            let copied = outcome(command);
            let failed = (copied.code != 0).then(|| format!("exit code {}: {}", copied.code, copied.stderr));
            self.note(state, way, failed);
            self.note(state, way, differences(&copy, plain));
            fs::remove_dir_all(&copy).unwrap();
        }
    }

    /// Asks the pool for the files of a folder: `get`, `restore`, `diff`.
    fn ask(&mut self, state: &str, folder: &str, committed: Committed<'_>) {
        let name_of = |name: &str| format!("{folder}/{name}");
        let Committed::Files { plain, control, complete } = committed else {
            for name in NAMES {
                let nothing = self.pool.run(&["get", &name_of(name), "-o", "-"]);
                let gave =
                    nothing.stdout.iter().any(|byte| *byte != 0).then(|| format!("{name}: {nothing:?}"));
                self.note(state, "get", gave);
            }
            return;
        };
        self.get(state, folder, plain);
        for name in files_of(plain) {
            let compared = self.pool.run(&["diff", &name_of(&name), &format!("{control}/{name}"), "--json"]);
            self.note(state, "diff", failure_of(&compared, 0));
            let differs = compared.code == 0 && compared.json()["identical"] != true;
            self.note(state, "diff", differs.then(|| format!("{name}: {}", compared.text())));
        }
        let copy = self.empty();
        let restored = self.pool.run(&["restore", folder, "--set", "1", "-o", copy.to_str().unwrap()]);
        // Of a set that isn't complete comes back what is there.
        self.note(state, "restore", failure_of(&restored, if complete { 0 } else { 3 }));
        self.note(state, "restore", differences(&copy, plain));
        fs::remove_dir_all(&copy).unwrap();
    }

    /// Fetches each file of a folder.
    fn get(&mut self, state: &str, folder: &str, plain: &Path) {
        let copy = self.empty();
        for name in files_of(plain) {
            let target = format!("{folder}/{name}");
            let got = self.pool.run(&["get", &target, "-o", copy.join(&name).to_str().unwrap()]);
            self.note(state, "get", failure_of(&got, 0));
        }
        self.note(state, "get", differences(&copy, plain));
        fs::remove_dir_all(&copy).unwrap();
    }

    /// Fails if any cell was wrong.
    fn end(self) {
        let Self { pool, wrong, .. } = self;
        assert!(wrong.is_empty(), "{} cells are wrong:\n{}", wrong.len(), wrong.join("\n"));
        drop(pool);
    }
}

fn failure_of(outcome: &Outcome, code: i32) -> Option<String> {
    (outcome.code != code).then(|| format!("exit code {}, not {code}: {}", outcome.code, outcome.stderr))
}

/// A program that holds the four files of a folder open, and changes a plain copy of them in the same way.
struct Holder {
    child: Child,
    steps: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Holder {
    fn start(pool: &Pool, folder: &Path, plain: &Path) -> Self {
        let mut command = Command::new("python3");
        command.arg(pool.path("hold.py")).args([folder, plain]).args(NAMES);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (steps, answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, steps, answers }
    }

    fn step(&mut self, step: &str) {
        writeln!(self.steps, "{step}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, "done\n", "{step}");
    }

    /// SIGKILL, with the files open.
    fn kill(mut self) {
        self.child.kill().unwrap();
        within("the end of the holder", move || self.child.wait().unwrap());
    }

    /// Lets it close what is open, and end.
    fn end(self) {
        let Self { mut child, steps, .. } = self;
        drop(steps);
        let ended = within("the end of the holder", move || child.wait().unwrap());
        assert!(ended.success(), "{ended:?}");
    }
}

/// A pool of three benefactors, of which one may go.
fn pool() -> Pool {
    Setup::of(3).with("STDCHK_GARBAGE_AGE_MS", 1000).up()
}

/// Waits until every file of a folder has a version that is in this state.
fn wait_for_versions(pool: &Pool, folder: &str, state: &str) {
    wait_until(&format!("all files of {folder} are {state}"), || {
        NAMES.iter().all(|name| {
            let versions = pool.versions(&format!("{folder}/{name}"));
            versions.last().is_some_and(|version| version["state"] == state)
        })
    });
}

#[test]
fn files_that_are_closed_read_the_same_in_every_way_also_with_a_copy_lost() {
    let mut table = Table::new(pool());
    let plain = table.plain();
    let two = &["redundancy=replicate:2"];
    table.base("chunks", "control", two);
    let mut states: Vec<(&str, PathBuf, bool)> = Vec::new();
    for base in ["chunks", "pieces", "container"] {
        table.base(base, base, two);
        states.push((base, plain.clone(), true));
    }

    // The first file in large pieces teaches how the next ones of its name are made.
    let folder = table.folder("past-cache", two);
    let mut teacher = Writer::start(&folder.join("sim.N0.T0"), &[]);
    teacher.feed(&content(6 * MIB, 9));
    let taught = within("a large file", || teacher.finish());
    assert!(taught.accepted, "{taught:?}");
    fs::remove_file(folder.join("sim.N0.T0")).unwrap();
    let past_cache = table.pool.path("plain.past-cache");
    fs::create_dir(&past_cache).unwrap();
    let mut holder = Holder::start(&table.pool, &folder, &past_cache);
    ["open", "large"].iter().for_each(|step| holder.step(step));
    table.copy("past the page cache, being written", &folder, &past_cache);
    table.look("past the page cache, being written", &folder, &past_cache);
    table.ask("past the page cache, being written", "past-cache", Committed::Nothing);
    holder.end();
    states.push(("past-cache", past_cache, true));

    let folder = table.folder("interrupted", two);
    let interrupted = table.pool.path("plain.interrupted");
    fs::create_dir(&interrupted).unwrap();
    let mut holder = Holder::start(&table.pool, &folder, &interrupted);
    ["open", "write", "extend"].iter().for_each(|step| holder.step(step));
    holder.kill();
    wait_for_versions(&table.pool, "interrupted", "interrupted");
    states.push(("interrupted", interrupted, false));

    for (state, plain, _) in &states[3..] {
        let control = table.folder(&format!("control.{state}"), two);
        copy_files(plain, &control);
    }
    table.pool.wait_for_copies();
    let read_all = |table: &mut Table, state: &str, mount: &Path| {
        for (folder, plain, complete) in &states {
            let here = format!("{folder}{state}");
            table.copy(&here, &mount.join(folder), plain);
            table.look(&here, &mount.join(folder), plain);
            let own = format!("control.{folder}");
            let control =
                if ["chunks", "pieces", "container"].contains(folder) { "control" } else { own.as_str() };
            table.ask(&here, folder, Committed::Files { plain, control, complete: *complete });
        }
    };
    // A mount that has none of it in the kernel's cache.
    let second = Mount::start(&table.pool, "second");
    read_all(&mut table, "", second.point());
    for (folder, plain, _) in &states {
        table.look(&format!("{folder}, where it was written"), &table.pool.at(folder), plain);
    }
    table.pool.kill("benefactor-1");
    let third = Mount::start(&table.pool, "third");
    read_all(&mut table, ", a copy lost", third.point());
    drop((second, third));
    table.end();
}

/// What is done to files that are held open; after each step all is read in the ways of one process, and where it says so by
/// programs before.
const STEPS: [(&str, bool); 9] = [
    ("open", false),
    ("extend", true),
    ("write", true),
    ("cut", false),
    ("extend", false),
    ("sync", false),
    ("map", true),
    ("cut", false),
    ("write", false),
];

#[test]
fn files_that_are_being_written_read_the_same_in_every_way_after_every_step() {
    let all = std::env::var_os("STDCHK_VIEWS").is_some_and(|value| value == "all");
    let mut table = Table::new(pool());
    table.base("chunks", "control", &["redundancy=replicate:1"]);
    for (base, protocol, always) in [
        ("chunks", "sw", true),
        ("container", "sw", true),
        ("container", "clw", true),
        ("pieces", "iw", true),
        ("pieces", "sw", false),
        ("chunks", "clw", false),
        ("pieces", "clw", false),
        ("chunks", "iw", false),
        ("container", "iw", false),
    ] {
        if always || all {
            walk_steps(&mut table, base, protocol);
        }
    }
    table.end();
}

fn walk_steps(table: &mut Table, base: &str, protocol: &str) {
    let state = format!("{base}-{protocol}");
    let folder = table.base(base, &state, &["redundancy=replicate:1"]);
    table.pool.policy(&state, &[&format!("protocol={protocol}")]);
    let before = table.plain();
    let plain = table.pool.path(&format!("plain.{state}"));
    copy_files(&before, &plain);
    let mut holder = Holder::start(&table.pool, &folder, &plain);
    let mut done = format!("in {base}, by {protocol}:");
    let mut is_synced = false;
    for (step, by_programs) in STEPS {
        holder.step(step);
        done = format!("{done} {step}");
        if by_programs {
            table.copy(&done, &folder, &plain);
        }
        table.look(&done, &folder, &plain);
        is_synced |= step == "sync";
        if by_programs && !is_synced {
            let committed = Committed::Files { plain: &before, control: "control", complete: true };
            table.ask(&done, &state, committed);
        }
    }
    holder.step("rename");
    done = format!("{done} rename");
    table.copy(&done, &folder, &plain);
    table.look(&done, &folder, &plain);
    holder.step("write");
    table.look(&format!("{done} write"), &folder, &plain);
    holder.end();
    done = format!("{done} write close");
    table.copy(&done, &folder, &plain);
    table.look(&done, &folder, &plain);
    wait_until("what was closed is committed", || {
        let committed = |name: &String| {
            let versions = table.pool.versions(&format!("{state}/{name}"));
            versions.last().is_some_and(|version| version["state"] == "closed")
        };
        files_of(&plain).iter().all(committed)
    });
    table.get(&done, &state, &plain);
}

#[test]
fn files_that_are_closed_in_the_spool_read_the_same_in_every_way_before_and_after_they_are_pushed() {
    let mut table = Table::new(Setup::of(2).up());
    let plain = table.plain();
    table.base("chunks", "control", &["redundancy=replicate:1"]);
    let folder = table.folder("spooled", &["redundancy=replicate:1", "protocol=clw"]);
    ["benefactor-0", "benefactor-1"].iter().for_each(|role| table.pool.kill(role));
    write_files(&folder);
    table.copy("in the spool", &folder, &plain);
    table.look("in the spool", &folder, &plain);
    table.ask("in the spool", "spooled", Committed::Nothing);
    table.pool.ok(&["up"]);
    wait_for_versions(&table.pool, "spooled", "closed");
    table.copy("pushed", &folder, &plain);
    table.look("pushed", &folder, &plain);
    let committed = Committed::Files { plain: &plain, control: "control", complete: true };
    table.ask("pushed", "spooled", committed);
    table.end();
}
