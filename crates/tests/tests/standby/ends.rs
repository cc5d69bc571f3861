//! The manager that leads ends in every way there is, again and again, under writers: another one follows within ten seconds, and every
//! version that was acknowledged is there in the end, bit by bit (I7, I12).
//!
//! `STDCHK_TEST_KILLS=N` sets how often; `scripts/soak managers` runs it long.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stdchk_tests::{SetAtEnd, outcome, wait_until};

use super::shared::{SWITCH_MAX, Shared, content};

/// How often the leader ends; a variable for longer runs.
const KILLS: &str = "STDCHK_TEST_KILLS";
/// Each way once.
const KILLS_DEFAULT: usize = WAYS.len();
/// Members of etcd: one of them may be missing.
const MEMBERS: usize = 3;
/// Pause of a writer between two files.
const WRITER_PAUSE: Duration = Duration::from_millis(100);
/// Steps in which a file is written that stays open across a change of managers.
const STEPS: usize = 40;
const STEP_BYTES: usize = 32 << 10;
/// Folders of whoever writes, each below the root.
const LINES: [u64; 2] = [1, 2];

/// How the manager that leads ends, or what it needs.
#[derive(Clone, Copy, Debug)]
enum Way {
    Killed,
    /// It stands still for longer than its lease, and goes on when another one leads.
    StandsStill,
    /// It is told to stop.
    Stopped,
    /// It reaches etcd no more, while all reach it; what it has asked meanwhile comes to etcd later.
    CutOff,
    /// A member of etcd ends, and is started again.
    MemberKilled,
}

const WAYS: [Way; 5] = [Way::Killed, Way::StandsStill, Way::Stopped, Way::CutOff, Way::MemberKilled];

/// Stores version after version of a file until told to stop; all are accepted, whatever becomes of managers.
fn put_on(pool: &Shared, line: u64, done: &AtomicBool) -> usize {
    let mut generation = 0;
    while !done.load(Ordering::Acquire) {
        let outcome = pool.put(&format!("app/line{line}"), &content(line, generation));
        assert_eq!(outcome.code, 0, "line {line}, generation {generation}: {outcome:?}");
        generation += 1;
        std::thread::sleep(WRITER_PAUSE);
    }
    generation
}

/// Copies small files to the mount, each under a name of its own.
fn copy_on(pool: &Shared, mount: &Path, done: &AtomicBool) -> usize {
    let source = pool.path("source");
    let mut made = 0;
    while !done.load(Ordering::Acquire) {
        fs::write(&source, content(77, made)).unwrap();
        let mut copy = Command::new("cp");
        copy.arg(&source).arg(mount.join(format!("app/copied{made}"))).stdin(Stdio::null());
        let outcome = outcome(copy);
        assert_eq!(outcome.code, 0, "copy {made}: {outcome:?}");
        made += 1;
        std::thread::sleep(WRITER_PAUSE);
    }
    made
}

fn long_content(number: usize) -> Vec<u8> {
    stdchk_tests::random_bytes(STEPS * STEP_BYTES, 90_000 + number as u64)
}

/// Writes files through the mount so slowly that managers change while they are open, with a version made durable every few steps.
fn write_slowly(mount: &Path, done: &AtomicBool) -> usize {
    let mut made = 0;
    while !done.load(Ordering::Acquire) {
        let content = long_content(made);
        let mut file = File::create(mount.join(format!("app/slow{made}"))).unwrap();
        for (step, bytes) in content.chunks(STEP_BYTES).enumerate() {
            file.write_all(bytes).unwrap();
            if step % 8 == 7 {
                file.sync_all().unwrap();
                let mut back = vec![0; bytes.len()];
                let reader = File::open(mount.join(format!("app/slow{made}"))).unwrap();
                reader.read_exact_at(&mut back, (step * STEP_BYTES) as u64).unwrap();
                assert!(back == bytes, "file {made}, step {step}");
            }
            std::thread::sleep(WRITER_PAUSE);
        }
        file.sync_all().unwrap();
        drop(file);
        made += 1;
    }
    made
}

#[test]
fn whatever_ends_the_manager_that_leads_another_one_follows_and_every_version_is_there() {
    let rounds = std::env::var(KILLS).map_or(KILLS_DEFAULT, |rounds| rounds.parse().unwrap());
    let mut pool = Shared::start_behind_gates(2, MEMBERS);
    let mount = pool.mount();
    fs::create_dir(mount.join("app")).unwrap();
    let (pool, done) = (&pool, AtomicBool::new(false));
    let (times, put, copied, slow) = std::thread::scope(|scope| {
        let lines = LINES.map(|line| {
            scope.spawn({
                let done = &done;
                move || put_on(pool, line, done)
            })
        });
        let copies = scope.spawn(|| copy_on(pool, &mount, &done));
        let slow = scope.spawn(|| write_slowly(&mount, &done));
        let end = SetAtEnd(&done);
        let times: Vec<Duration> = (0..rounds).filter_map(|round| end_leader(pool, round)).collect();
        drop(end);
        (times, lines.map(|line| line.join().unwrap()), copies.join().unwrap(), slow.join().unwrap())
    });
    tell(rounds, times);
    for (line, generations) in LINES.into_iter().zip(put) {
        check_line(pool, line, generations);
    }
    for number in 0..copied {
        assert!(pool.get(&format!("app/copied{number}")) == content(77, number), "copy {number}");
    }
    for number in 0..slow {
        assert!(pool.get(&format!("app/slow{number}")) == long_content(number), "slow file {number}");
    }
    println!(
        "{} versions of {LINES:?}, {copied} copies and {slow} slow files are as they were",
        put.iter().sum::<usize>()
    );
}

/// Every version that was acknowledged is there, and none twice: what is asked for again is asked for under the same identity.
fn check_line(pool: &Shared, line: u64, generations: usize) {
    let name = format!("app/line{line}");
    let listed = pool.run(&["ls", &name, "--versions", "--json"]).json();
    let versions = listed[0]["versions"].as_array().unwrap();
    assert_eq!(versions.len(), generations, "line {line}: {listed}");
    for (generation, version) in versions.iter().enumerate() {
        let version = format!("{name}@{}", version["version"]);
        assert!(pool.get(&version) == content(line, generation), "{version}");
    }
}

fn tell(rounds: usize, mut times: Vec<Duration>) {
    times.sort_unstable();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "{rounds} rounds, {} ends of the manager that leads: followed within {median:.1?} at the median, {worst:.1?} at worst",
        times.len()
    );
}

/// Has the leader end in the way of this round, or a member of etcd; waits until the pool is served, and puts all back. How long it took
/// until another manager led; none: the leader needn't be followed.
fn end_leader(pool: &Shared, round: usize) -> Option<Duration> {
    pool.await_managers(2);
    let leader = pool.await_leader();
    let (way, member) = (WAYS[round % WAYS.len()], round / WAYS.len() % MEMBERS);
    // Not always at the same moment of what the writers do.
    std::thread::sleep(Duration::from_millis(round as u64 * 137 % 1000));
    let cut = |is_cut| pool.gates[leader].iter().for_each(|gate| gate.cut(is_cut));
    let begun = Instant::now();
    match way {
        Way::Killed => pool.kill(leader),
        Way::StandsStill => pool.signal(leader, Signal::STOP),
        Way::Stopped => pool.signal(leader, Signal::TERM),
        Way::CutOff => cut(true),
        Way::MemberKilled => pool.etcd.kill_member(member),
    }
    let leads_on = matches!(way, Way::MemberKilled);
    if leads_on {
        let stored = pool.put(&format!("app/round{round}"), b"round");
        assert_eq!(stored.code, 0, "{stored:?}");
    } else {
        wait_until("another manager leads", || pool.leader().is_some_and(|other| other != leader));
    }
    let took = begun.elapsed();
    println!("round {round}: {way:?}, served again within {took:.1?}");
    assert!(took < SWITCH_MAX, "{way:?}: {took:?}");
    match way {
        Way::Killed => pool.start_manager(leader),
        Way::StandsStill => pool.signal(leader, Signal::CONT),
        Way::Stopped => {
            assert!(pool.end(leader).success());
            pool.start_manager(leader);
        }
        Way::CutOff => cut(false),
        Way::MemberKilled => pool.etcd.go_on(),
    }
    (!leads_on).then_some(took)
}
