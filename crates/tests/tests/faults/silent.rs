//! Benefactors that fall silent: they take connections and requests, and answer nothing. Who has another one to turn to waits
//! for them once and briefly.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};
use rustix::process::Signal;
use stdchk_tests::{Pool, Process, Setup, random_bytes, wait_until, within};

const MIB: usize = 1 << 20;
/// Several times what the client reads ahead, so that who pays with every window of chunks pays often.
const CONTENT_BYTES: usize = 96 * MIB;
/// What a writer writes in a step: less than its window, so that it has all of it until it is committed.
const STEP_BYTES: usize = 48 * MIB;
/// Time to read the former, whatever the machine is busy with: less than the limit of a single get.
const READ_WITHIN: Duration = Duration::from_secs(9);
/// Time of a command that need not wait for the silent one.
const COMMAND_WITHIN: Duration = Duration::from_secs(12);
/// Time of the step during which a benefactor falls silent: ten seconds until it is given up, and little more for what it had
/// taken before. Each wait more would take another ten.
const WRITE_WITHIN: Duration = Duration::from_secs(19);
/// Time of a step after that.
const LATER_WITHIN: Duration = Duration::from_secs(8);

/// A pool whose manager goes on to take a silent benefactor for on-line: what a client knows it has found out itself.
fn pool_of_the_patient() -> Pool {
    let setup = Setup { donate: "1GiB".to_owned(), ..Setup::of(3) };
    let pool = setup.with("STDCHK_BENEFACTOR_LEASE_MS", 600_000).up();
    fs::create_dir(pool.at("app")).unwrap();
    pool.policy("app", &["ranks=1"]);
    pool
}

fn stop(pool: &Pool) -> Process {
    let benefactor = pool.process("benefactor-1");
    benefactor.signal(Signal::STOP);
    benefactor
}

/// Reads a file past the page cache; `midway` comes after a quarter of it.
fn read_anew(path: &Path, midway: impl FnOnce()) -> Vec<u8> {
    let mut file = File::open(path).unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let mut bytes = vec![0; CONTENT_BYTES / 4];
    file.read_exact(&mut bytes).unwrap();
    midway();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn timed<T>(what: &str, limit: Duration, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = work();
    let took = started.elapsed();
    eprintln!("{what}: {took:?}");
    assert!(took < limit, "{what}: {took:?}");
    result
}

/// Two copies of all content, and what the mount remembers of it is where the first ones went.
fn written(pool: &Pool) -> Vec<u8> {
    let content = random_bytes(CONTENT_BYTES, 71);
    fs::write(pool.at("app/a.N0.T1"), &content).unwrap();
    pool.wait_for_copies();
    content
}

#[test]
fn a_reader_of_two_copies_waits_once_for_a_benefactor_that_is_silent_and_commands_not_much_longer() {
    let pool = pool_of_the_patient();
    let content = written(&pool);
    let stopped = stop(&pool);
    let path = pool.at("app/a.N0.T1");
    for pass in ["the first pass", "the second pass"] {
        let path = path.clone();
        let read = move || timed(pass, READ_WITHIN, || read_anew(&path, || {}));
        assert!(within(pass, read) == content, "{pass}");
    }
    assert!(timed("get", READ_WITHIN, || pool.get("app/a.N0.T1")) == content);
    for command in [&["latest", "app"][..], &["restore", "app", "-o", "restart"], &["verify", "app"]] {
        timed(command[0], COMMAND_WITHIN, || pool.ok(command));
    }
    assert!(fs::read(pool.path("restart/a.N0.T1")).unwrap() == content);
    stopped.signal(Signal::CONT);
}

#[test]
fn a_reader_goes_on_when_a_benefactor_falls_silent_under_it_and_comes_back_to_it_later() {
    let pool = pool_of_the_patient();
    let content = written(&pool);
    let path = pool.at("app/a.N0.T1");
    let silent = pool.process("benefactor-1");
    let there = path.clone();
    let read = move || timed("reading", READ_WITHIN, || read_anew(&there, || silent.signal(Signal::STOP)));
    assert!(within("a benefactor is stopped midway", read) == content);
    // With only this one left that has some of the chunks, the file can be read if it is asked again.
    silent.signal(Signal::CONT);
    pool.kill("benefactor-0");
    assert!(within("it answers again", move || read_anew(&path, || {})) == content);
}

#[test]
fn a_put_that_no_benefactor_answers_ends_with_the_reason_however_large_it_is() {
    let pool = Setup::of(2).up();
    let file = pool.path("source");
    fs::write(&file, random_bytes(STEP_BYTES, 79)).unwrap();
    let all = ["benefactor-0", "benefactor-1"].map(|role| pool.process(role));
    all.iter().for_each(|benefactor| benefactor.signal(Signal::STOP));
    // One chunk is waited for so long, and no chunk behind it as long again.
    let limit = Duration::from_secs(75);
    let put = timed("put", limit, || pool.run(&["put", file.to_str().unwrap(), "app/x"]));
    all.iter().for_each(|benefactor| benefactor.signal(Signal::CONT));
    assert!(put.code != 0 && put.stderr.contains("benefactor"), "{}", put.stderr);
}

#[test]
fn a_writer_gives_a_silent_benefactor_up_once_and_its_later_steps_are_not_held_up() {
    let pool = pool_of_the_patient();
    let write = |step: usize, midway: &dyn Fn()| {
        let mut file = File::create(pool.at(&format!("app/step{step}"))).unwrap();
        let content = random_bytes(STEP_BYTES, 80 + step as u64);
        let (first, rest) = content.split_at(content.len() / 2);
        file.write_all(first).unwrap();
        midway();
        file.write_all(rest).unwrap();
        file.sync_all().unwrap();
    };
    write(0, &|| ());
    timed("a step in which it is stopped", WRITE_WITHIN, || {
        write(1, &|| {
            stop(&pool);
        })
    });
    for step in 2..=4 {
        timed("a later step", LATER_WITHIN, || write(step, &|| ()));
    }
    pool.process("benefactor-1").signal(Signal::CONT);
    wait_until("the first step can be read", || pool.run(&["verify", "app"]).code == 0);
}
