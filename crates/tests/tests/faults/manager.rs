//! A manager that is killed, again and again or for good: a pause or a clear error for its clients, nothing lost (I2, I7).

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use stdchk_tests::{Outcome, PATIENCE, Pool, SetAtEnd, Setup, random_bytes, wait_until, within};

use crate::program::{Reader, Writer, run};

const MIB: usize = 1 << 20;
/// How often the manager is killed.
const KILLS: u64 = 14;
/// Longest time for which it lives in between.
const LIFE_MS_MAX: u64 = 500;
/// Pause of a writer between two files: bounds how much there is to compare in the end.
const WRITER_PAUSE: Duration = Duration::from_millis(300);

/// How a writer brings a new version of its file into the pool.
#[derive(Clone, Copy)]
enum How {
    /// Over the old one, through the mount.
    Copy,
    /// Under another name, synced, renamed onto the old one, all through the mount.
    Rename,
    /// `stdchk put`.
    Put,
}

/// One file that is written anew all the time.
struct Line {
    name: &'static str,
    how: How,
    seed: u64,
}

const LINES: [Line; 5] = [
    Line { name: "copied", how: How::Copy, seed: 1000 },
    Line { name: "copied-too", how: How::Copy, seed: 2000 },
    Line { name: "renamed", how: How::Rename, seed: 3000 },
    Line { name: "put", how: How::Put, seed: 4000 },
    Line { name: "put-too", how: How::Put, seed: 5000 },
];

impl Line {
    /// Several chunks, of which the first is the same in all generations: known content, too, must be there in the end.
    fn content(&self, generation: usize) -> Vec<u8> {
        let new = random_bytes(MIB + 4321, self.seed + 1 + generation as u64);
        [random_bytes(MIB, self.seed), new].concat()
    }

    fn path(&self) -> String {
        format!("app/{}", self.name)
    }

    fn write(&self, pool: &Pool, generation: usize) -> Outcome {
        let source = PathBuf::from(pool.file(self.name, &self.content(generation)));
        let target = pool.at(&self.path());
        match self.how {
            How::Copy => run("cp", &[&source, &target]),
            How::Put => pool.run(&["put", source.to_str().unwrap(), &self.path()]),
            How::Rename => {
                let temporary = pool.at(&format!("{}.new", self.path()));
                for (program, arguments) in
                    [("cp", &[source.as_path(), &temporary][..]), ("sync", &[temporary.as_path()])]
                {
                    let outcome = run(program, arguments);
                    if outcome.code != 0 {
                        return outcome;
                    }
                }
                run("mv", &[Path::new("-T"), &temporary, &target])
            }
        }
    }

    /// Writes until told to stop; which generations were accepted.
    fn write_on(&self, pool: &Pool, done: &AtomicBool) -> Vec<bool> {
        let mut accepted = Vec::new();
        while !done.load(Ordering::Acquire) {
            let outcome = self.write(pool, accepted.len());
            if outcome.code != 0 {
                eprintln!("{}, generation {}: {}", self.name, accepted.len(), outcome.stderr);
            }
            accepted.push(outcome.code == 0);
            std::thread::sleep(WRITER_PAUSE);
        }
        accepted
    }

    /// Compares all versions with what was accepted and attempted.
    fn check(&self, pool: &Pool, accepted: &[bool]) {
        let found: Vec<(usize, Value)> = pool
            .versions(&self.path())
            .into_iter()
            .map(|version| {
                let content = pool.get(&format!("{}@{}", self.path(), version["version"]));
                let of = (0..accepted.len()).find(|generation| self.content(*generation) == content);
                let torn = || panic!("{}: {version} is of no generation: {} bytes", self.name, content.len());
                (of.unwrap_or_else(torn), version)
            })
            .collect();
        let (newest, _) = found.last().unwrap();
        let last = accepted.iter().rposition(|accepted| *accepted).unwrap();
        assert!(*newest >= last, "{}: {newest} is the newest, but {last} was accepted", self.name);
        for generation in (0..accepted.len()).filter(|generation| accepted[*generation]) {
            let version = found.iter().find(|(of, _)| *of == generation);
            let (_, version) = version.unwrap_or_else(|| panic!("{}: {generation} is lost", self.name));
            assert_eq!(version["state"], "closed", "{}, generation {generation}: {version}", self.name);
        }
    }
}

/// Makes folders until told to stop: each is made once, however often the manager was asked.
fn make_folders(pool: &Pool, done: &AtomicBool) -> usize {
    let mut made = 0;
    while !done.load(Ordering::Acquire) {
        let outcome = run("mkdir", &[&pool.at(&format!("app/folder{made}"))]);
        assert_eq!(outcome.code, 0, "{outcome:?}");
        made += 1;
        std::thread::sleep(WRITER_PAUSE);
    }
    made
}

/// Kills the manager and starts it again as a user would.
fn restart(pool: &Pool) {
    let before = pool.process("manager");
    before.kill();
    pool.ok(&["up"]);
    assert_ne!(pool.process("manager"), before);
}

fn restart_often(pool: &Pool) {
    for round in 0..KILLS {
        let random = u64::from(random_bytes(1, 77 + round)[0]);
        std::thread::sleep(Duration::from_millis(random * LIFE_MS_MAX / 256));
        restart(pool);
    }
}

#[test]
fn a_manager_killed_again_and_again_loses_nothing_that_was_accepted() {
    let pool = Setup { donate: "2GiB".to_owned(), ..Setup::of(3) }.up();
    fs::create_dir(pool.at("app")).unwrap();
    let done = AtomicBool::new(false);
    let (accepted, folders) = std::thread::scope(|threads| {
        let writers = LINES.each_ref().map(|line| threads.spawn(|| line.write_on(&pool, &done)));
        let folders = threads.spawn(|| make_folders(&pool, &done));
        let end = SetAtEnd(&done);
        restart_often(&pool);
        drop(end);
        (writers.map(|writer| writer.join().unwrap()), folders.join().unwrap())
    });
    wait_until("no session is left, and no space reserved", || {
        pool.shows(|status| status["sessions"] == 0 && status["space"]["reserved_bytes"] == 0)
    });
    // What counts is what the manager reads from its disk.
    restart(&pool);
    for (line, accepted) in LINES.iter().zip(&accepted) {
        line.check(&pool, accepted);
    }
    assert!((0..folders).all(|number| pool.at(&format!("app/folder{number}")).is_dir()));
    pool.wait_for_copies();
    let (health, status) = (pool.json(&["verify", "--json"]), pool.status());
    assert_eq!((&health["bad"], &health["lost_chunks"]), (&json!([]), &json!(0)), "{health}");
    assert_eq!(status["chunks_lost"], 0, "{status}");
}

/// How a small file comes into the pool.
const SMALL_WAYS: [&str; 3] = ["written", "only made", "made exclusively"];
const SMALL_BYTES: usize = 4096;
/// Writers of small files.
const SMALL_WRITERS: usize = 3;
/// How often the manager is killed while they write.
const SMALL_KILLS: u64 = 4;

fn small_content(writer: usize, number: usize) -> Vec<u8> {
    let is_empty = SMALL_WAYS[number % SMALL_WAYS.len()] == "only made";
    let seed = 10_000 + (writer * 1_000_000 + number) as u64;
    if is_empty { Vec::new() } else { random_bytes(SMALL_BYTES, seed) }
}

/// Makes small files until told to stop. Each is made, whatever becomes of the manager meanwhile.
fn make_small_files(pool: &Pool, writer: usize, done: &AtomicBool) -> usize {
    let mut made = 0;
    while !done.load(Ordering::Acquire) {
        let path = pool.at(&format!("app/small{writer}-{made}"));
        let way = SMALL_WAYS[made % SMALL_WAYS.len()];
        let mut options = fs::OpenOptions::new();
        let options = match way {
            "made exclusively" => options.write(true).create_new(true),
            _ => options.write(true).create(true).truncate(false),
        };
        let written = options.open(&path).and_then(|mut file| {
            file.write_all(&small_content(writer, made))?;
            // `close()` of a dropped file tells nobody what it says.
            file.sync_all()
        });
        written.unwrap_or_else(|error| panic!("{}, {way}: {error}", path.display()));
        made += 1;
        std::thread::sleep(SMALL_PAUSE);
    }
    made
}

/// Pause of a writer of small files: they are to be made at all moments, and not in masses.
const SMALL_PAUSE: Duration = Duration::from_millis(3);

#[test]
fn small_files_that_are_made_while_the_manager_is_killed_are_all_there() {
    let pool = Setup::of(2).up();
    fs::create_dir(pool.at("app")).unwrap();
    let done = AtomicBool::new(false);
    let made = std::thread::scope(|threads| {
        let writers: Vec<_> = (0..SMALL_WRITERS)
            .map(|writer| {
                let (pool, done) = (&pool, &done);
                threads.spawn(move || make_small_files(pool, writer, done))
            })
            .collect();
        let end = SetAtEnd(&done);
        for round in 0..SMALL_KILLS {
            std::thread::sleep(Duration::from_millis(100 + u64::from(random_bytes(1, 99 + round)[0])));
            restart(&pool);
        }
        drop(end);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    // What counts is what the manager reads from its disk.
    restart(&pool);
    for (writer, made) in made.into_iter().enumerate() {
        assert!(made > 0, "writer {writer} made nothing");
        for number in 0..made {
            let path = pool.at(&format!("app/small{writer}-{number}"));
            let found = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(found == small_content(writer, number), "{} has other content", path.display());
        }
    }
}

#[test]
fn a_file_that_was_only_made_is_there_once_it_is_closed_or_its_directory_synced() {
    let pool = Pool::mounted(1);
    fs::create_dir(pool.at("app")).unwrap();
    for round in 0..2 {
        let closed = pool.at(&format!("app/closed{round}"));
        drop(fs::OpenOptions::new().write(true).create(true).truncate(false).open(&closed).unwrap());
        restart(&pool);
        assert_eq!(fs::metadata(&closed).unwrap().len(), 0);
        let open = pool.at(&format!("app/open{round}"));
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(&open).unwrap();
        fs::File::open(pool.at("app")).unwrap().sync_all().unwrap();
        restart(&pool);
        assert_eq!(fs::metadata(&open).unwrap().len(), 0);
        drop(file);
    }
}

/// How often the manager is killed under writers that belong to the very program which starts it again.
const RESTARTS: u64 = 4;
/// Files written at the same time meanwhile.
const WRITERS: u64 = 6;
/// Time for `up` to start a manager, on a machine under load. Its own work takes a fraction of a second; who waits for the
/// mount waits for a minute.
const RESTART_PATIENCE: Duration = Duration::from_secs(10);

/// Starts the manager again and says how long it was away.
fn timed_restart(pool: &Pool) -> Duration {
    let before = pool.process("manager");
    before.kill();
    let begun = Instant::now();
    pool.ok(&["up"]);
    assert_ne!(pool.process("manager"), before);
    begun.elapsed()
}

/// Files of this content that are made one after the other until `done`; none may fail. How many there are.
fn write_files(pool: &Pool, writer: usize, content: &[u8], done: &AtomicBool) -> u64 {
    let mut count = 0;
    while !done.load(Ordering::Acquire) {
        let path = pool.at(&format!("app/w{writer}-{count}"));
        let written = fs::File::create(&path).and_then(|mut file| {
            let (first, rest) = content.split_at(content.len() / 2);
            file.write_all(first)?;
            std::thread::sleep(SMALL_PAUSE);
            file.write_all(rest)?;
            // `close()` of a dropped file tells nobody what it says.
            file.sync_all()
        });
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        count += 1;
    }
    count
}

#[test]
fn a_manager_killed_under_writers_is_back_at_once_and_no_program_sees_an_error() {
    let pool = Setup { donate: "4GiB".to_owned(), ..Setup::of(4) }.up();
    fs::create_dir(pool.at("app")).unwrap();
    let restarts = std::env::var("STDCHK_RESTARTS").map_or(RESTARTS, |number| number.parse().unwrap());
    let content: Vec<Vec<u8>> = (0..WRITERS).map(|writer| random_bytes(300_000, writer)).collect();
    let done = AtomicBool::new(false);
    let (times, counts) = std::thread::scope(|threads| {
        let (pool, done) = (&pool, &done);
        let writers: Vec<_> = content
            .iter()
            .enumerate()
            .map(|(writer, content)| threads.spawn(move || write_files(pool, writer, content, done)))
            .collect();
        let end = SetAtEnd(done);
        let restarted = |round: u64| {
            std::thread::sleep(Duration::from_millis(u64::from(random_bytes(1, 500 + round)[0]) * 4));
            timed_restart(pool)
        };
        let times: Vec<Duration> = (0..restarts).map(restarted).collect();
        drop(end);
        (times, writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<u64>>())
    });
    let longest = times.iter().max().unwrap();
    eprintln!("{} restarts, the longest in {longest:?}; files of each writer: {counts:?}", times.len());
    assert!(*longest < RESTART_PATIENCE, "{times:?}");
    for (writer, (count, content)) in counts.into_iter().zip(&content).enumerate() {
        for number in 0..count {
            let name = format!("app/w{writer}-{number}");
            assert!(fs::read(pool.at(&name)).unwrap() == *content, "{name}");
        }
    }
}

/// A program through the mount that needs the manager: it must end, with an I/O error, and not before the patience ends.
fn told(program: &'static str, arguments: Vec<PathBuf>) {
    let begun = Instant::now();
    let arguments: Vec<&Path> = arguments.iter().map(PathBuf::as_path).collect();
    let outcome = run(program, &arguments);
    assert!(outcome.code != 0 && outcome.stderr.contains("Input/output error"), "{program}: {outcome:?}");
    let taken = begun.elapsed();
    assert!(taken >= AWAY_PATIENCE / 2 && taken < PATIENCE, "{program} took {taken:?}");
}

#[test]
fn status_ends_although_the_mount_that_it_asks_waits_for_the_manager() {
    let pool = Pool::mounted(1);
    pool.kill("manager");
    let begun = Instant::now();
    let told = pool.fails(&["status"], 5, &["stdchk up"]);
    let taken = begun.elapsed();
    pool.ok(&["up"]);
    assert!(told.text().contains("waiting"), "{told:?}");
    assert!(taken < MOUNT_PATIENCE / 2, "{taken:?}");
}

/// How long a mount waits for its manager unless told otherwise.
const MOUNT_PATIENCE: Duration = Duration::from_secs(60);
/// How long the mount waits for the manager in the test of one that stays away.
const AWAY_PATIENCE: Duration = Duration::from_secs(4);

#[test]
fn while_the_manager_is_away_open_files_are_read_and_all_else_ends_with_a_clear_error() {
    let pool = Setup::of(2).with("STDCHK_PATIENCE_MS", AWAY_PATIENCE.as_millis()).up();
    fs::create_dir(pool.at("app")).unwrap();
    let [read, other, written] = [1, 2, 12].map(|size| random_bytes(size * MIB, 60 + size as u64));
    pool.put(&read, "app/read");
    pool.put(&other, "app/other");
    assert!(fs::read(pool.at("app/read")).unwrap() == read);
    let reader = Reader::start(&pool.at("app/read"));
    let mut writer = Writer::start(&pool.at("app/written"), &["conv=notrunc"]);
    writer.feed(&written[..MIB]);
    wait_until("the file is being written", || {
        fs::metadata(pool.at("app/written")).is_ok_and(|file| file.len() > 0)
    });

    pool.kill("manager");
    let kept = within("reading an open file without a manager", || reader.finish(MIB));
    assert!(kept == read);
    for command in ["ls", "status", "latest app", "get app/read -o -"] {
        let arguments: Vec<&str> = command.split(' ').collect();
        pool.fails(&arguments, 5, &["stdchk up"]);
    }
    std::thread::scope(|threads| {
        let at = |name: &str| pool.at("app").join(name);
        let told = |program, arguments| threads.spawn(move || told(program, arguments));
        told("cat", vec![at("other")]);
        told("cp", vec![PathBuf::from("/proc/self/stat"), at("new")]);
        told("mkdir", vec![at("folder")]);
        told("mv", vec![at("other"), at("moved")]);
        told("rm", vec!["-f".into(), at("read")]);
        writer.feed(&written[MIB..]);
        let outcome = within("closing a file without a manager", || writer.finish());
        assert!(!outcome.accepted && outcome.message.contains("Input/output error"), "{outcome:?}");
    });
    let log = pool.log("mount");
    assert!(log.contains("the manager can't be reached"), "{log}");

    pool.ok(&["up"]);
    for (name, content) in [("app/read", &read), ("app/other", &other)] {
        assert!(pool.get(name) == *content && fs::read(pool.at(name)).unwrap() == *content, "{name}");
    }
    let source = PathBuf::from(pool.file("again", &written));
    assert_eq!(run("cp", &[&source, &pool.at("app/written")]).code, 0);
    assert!(pool.get("app/written") == written);
}

#[test]
fn a_manager_that_stood_still_blames_nobody() {
    const LEASE_MS: u64 = 8000;
    const STILL: Duration = Duration::from_secs(10);
    let setup = Setup::of(2)
        .with("STDCHK_CLIENT_LEASE_MS", LEASE_MS)
        .with("STDCHK_BENEFACTOR_LEASE_MS", LEASE_MS / 2);
    let pool = setup.up();
    fs::create_dir(pool.at("app")).unwrap();
    let mut file = fs::File::create(pool.at("app/x")).unwrap();
    file.write_all(&random_bytes(MIB, 1)).unwrap();
    file.sync_all().unwrap();
    let registrations = || pool.log("benefactor-0").matches("registered").count();
    let before = registrations();
    for _ in 0..2 {
        pool.process("manager").signal(Signal::STOP);
        std::thread::sleep(STILL);
        pool.process("manager").signal(Signal::CONT);
        // One that is taken for silent is seen as that until its next heartbeat at the earliest.
        for _ in 0..10 {
            let status = pool.status();
            let states: Vec<&Value> =
                status["benefactors"].as_array().unwrap().iter().map(|one| &one["state"]).collect();
            assert_eq!(states, [&json!("online"), &json!("online")]);
            assert_eq!(pool.versions("app/x").last().unwrap()["state"], "open");
        }
    }
    assert_eq!(registrations(), before, "everything was told again");
    drop(file);
    wait_until("its version is closed", || pool.versions("app/x").last().unwrap()["state"] == "closed");
}
