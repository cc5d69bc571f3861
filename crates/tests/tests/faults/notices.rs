//! Machines that are said to go soon: what they have is elsewhere before they go, and nothing new goes there.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use stdchk_tests::{Mount, Pool, Setup, random_bytes, send_signal, wait_until};

const MIB: usize = 1 << 20;
/// So long a benefactor stays at most that is told to go, and longer than any that is through.
const GRACE: [&str; 2] = ["--notice-grace", "300s"];
/// Within this time one has ended that doesn't wait for the end of its grace, on a machine under load.
const ENDED_WITHIN: Duration = Duration::from_secs(60);

/// A benefactor of a pool that runs by itself, with arguments of its own. Ends with the value.
struct Extra {
    child: Child,
    pid: u64,
}

impl Extra {
    /// Starts it in a folder of the test, which it may have had before.
    fn start(pool: &Pool, name: &str, more: &[&str]) -> Self {
        let folder = pool.path(name);
        let folder = folder.to_str().unwrap();
        let mut command =
            pool.command(&["benefactor", "run", folder, "--donate", "256MiB", "--floor", "1MiB"]);
        // It has the disk of the others, and would take their work for its owner's.
        command.args(["--load-limit", "0", "--tier", "disk"]);
        let log =
            fs::File::options().create(true).append(true).open(pool.path(&format!("{name}.log"))).unwrap();
        let child = command.args(more).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let extra = Self { pid: u64::from(child.id()), child };
        wait_until("it is on-line", || {
            entry(pool, extra.pid).is_some_and(|entry| entry["state"] == "online")
        });
        extra
    }

    fn signal(&self, signal: Signal) {
        send_signal(self.child.id(), signal);
    }

    /// Waits for its end; how long that took, and whether it ended well.
    fn end(&mut self) -> (Duration, bool) {
        let begun = Instant::now();
        let mut status = None;
        wait_until("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        (begun.elapsed(), status.unwrap().success())
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Extra {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The line of a benefactor's process in `status`.
fn entry(pool: &Pool, pid: u64) -> Option<Value> {
    let status = pool.status();
    status["benefactors"].as_array().unwrap().iter().find(|entry| entry["pid"] == pid).cloned()
}

fn is_going(pool: &Pool, pid: u64) -> bool {
    entry(pool, pid).is_some_and(|entry| !entry["going"].is_null())
}

/// A pool with a folder of single copies, which go one after the other to all benefactors.
fn pool_of(benefactors: u16) -> Pool {
    let pool = Setup::of(benefactors).up();
    fs::create_dir(pool.at("app")).unwrap();
    pool.policy("app", &["redundancy=replicate:1", "stripe=8"]);
    pool
}

fn blocks(pool: &Pool, pid: u64) -> u64 {
    entry(pool, pid).unwrap()["blocks"].as_u64().unwrap()
}

/// An agent that says over HTTP whether the machine goes.
fn agent() -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, goes) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
    let says = Arc::clone(&goes);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut asked = [0; 4096];
            let length = stream.read(&mut asked).unwrap();
            let asked = String::from_utf8_lossy(&asked[..length]).into_owned();
            let ok = |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let said = match says.load(Ordering::Relaxed) {
                _ if asked.starts_with("PUT /latest/api/token ") => ok("token"),
                true if asked.contains("X-aws-ec2-metadata-token: token") => ok(r#"{"action": "terminate"}"#),
                _ => "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned(),
            };
            let _ = stream.write_all(said.as_bytes());
        }
    });
    (format!("aws:http://{address}"), goes)
}

#[test]
fn what_is_on_a_machine_with_a_notice_survives_its_end_and_new_checkpoints_avoid_it() {
    let pool = pool_of(2);
    let notice = pool.path("notice");
    let notice_of = notice.to_str().unwrap();
    let mut extra = Extra::start(&pool, "extra", &["--notice", notice_of]);
    let content = random_bytes(24 * MIB, 600);
    pool.put(&content, "app/before");
    wait_until("it has blocks", || blocks(&pool, extra.pid) > 0);
    fs::write(&notice, "preempted").unwrap();
    wait_until("the notice is known", || is_going(&pool, extra.pid));
    let had = blocks(&pool, extra.pid);
    assert!(pool.ok(&["status"]).contains("going"), "{}", pool.ok(&["status"]));
    // Another checkpoint goes elsewhere.
    let next = random_bytes(24 * MIB, 601);
    pool.put(&next, "app/next");
    wait_until("all is elsewhere", || {
        pool.shows(|status| status["chunks_moving"] == 0 && status["repairs_pending"] == 0)
    });
    assert_eq!(blocks(&pool, extra.pid), had, "nothing went there, and nothing was deleted");
    assert_eq!(pool.status()["health"], "healthy");
    extra.kill();
    assert!(pool.get("app/before") == content && pool.get("app/next") == next);
    // The machine comes back, without a notice: it is one as all others.
    fs::remove_file(&notice).unwrap();
    let extra = Extra::start(&pool, "extra", &["--notice", notice_of]);
    assert!(!is_going(&pool, extra.pid));
    let before = blocks(&pool, extra.pid);
    pool.put(&random_bytes(24 * MIB, 602), "app/after");
    wait_until("it takes blocks again", || blocks(&pool, extra.pid) > before);
}

#[test]
fn a_notice_over_http_that_is_taken_back_lets_the_benefactor_serve_again() {
    let pool = pool_of(2);
    let (source, goes) = agent();
    let extra = Extra::start(&pool, "extra", &["--notice", &source]);
    goes.store(true, Ordering::Relaxed);
    wait_until("the notice is known", || is_going(&pool, extra.pid));
    let seconds = entry(&pool, extra.pid).unwrap()["going"]["in_seconds"].as_u64().unwrap();
    assert!((60..=120).contains(&seconds), "{seconds}");
    assert!(pool.ok(&["status"]).contains("going in "));
    pool.kill("manager");
    pool.ok(&["up"]);
    wait_until("the manager that was started again knows", || is_going(&pool, extra.pid));
    goes.store(false, Ordering::Relaxed);
    wait_until("the notice is over", || !is_going(&pool, extra.pid));
    pool.put(&random_bytes(24 * MIB, 610), "app/after");
    wait_until("it takes blocks", || blocks(&pool, extra.pid) > 0);
}

#[test]
fn sigterm_gives_what_is_there_its_time_and_no_more() {
    let pool = pool_of(2);
    let content = random_bytes(24 * MIB, 620);
    let mut extra = Extra::start(&pool, "extra", &GRACE);
    pool.put(&content, "app/before");
    wait_until("it has blocks", || blocks(&pool, extra.pid) > 0);
    extra.signal(Signal::TERM);
    let (took, is_well) = extra.end();
    assert!(is_well && took < ENDED_WITHIN, "{took:?}");
    fs::remove_dir_all(pool.path("extra")).unwrap();
    assert!(pool.get("app/before") == content, "it was elsewhere when it ended");

    // One that has nothing ends within moments, and so does one that is stopped by Control-C.
    for signal in [Signal::TERM, Signal::INT] {
        let mut extra = Extra::start(&pool, "empty", &GRACE);
        extra.signal(signal);
        let (took, is_well) = extra.end();
        assert!(is_well && took < ENDED_WITHIN, "{signal:?}: {took:?}");
    }
}

#[test]
fn a_second_signal_ends_one_that_still_waits_for_its_copies() {
    let pool = pool_of(2);
    let content = random_bytes(24 * MIB, 625);
    for second in [Signal::TERM, Signal::INT] {
        let mut extra = Extra::start(&pool, "extra", &GRACE);
        pool.put(&content, "app/before");
        wait_until("it has blocks", || blocks(&pool, extra.pid) > 0);
        // Nobody has copies made of what it has, nor says that it may end.
        pool.process("manager").signal(Signal::STOP);
        extra.signal(Signal::TERM);
        std::thread::sleep(Duration::from_secs(3));
        assert!(extra.child.try_wait().unwrap().is_none(), "it waits for the manager");
        extra.signal(second);
        let (took, is_well) = extra.end();
        pool.process("manager").signal(Signal::CONT);
        assert!(is_well && took < ENDED_WITHIN, "{took:?}");
    }
}

#[test]
fn where_all_machines_go_the_last_checkpoint_is_taken_all_the_same_and_nobody_waits_for_what_cannot_be() {
    let pool = Setup::of(2).up();
    let notice = pool.path("notice");
    fs::create_dir(pool.at("app")).unwrap();
    pool.ok(&["down"]);
    let mount = pool.mount_point();
    let arguments = ["up", "--notice", notice.to_str().unwrap(), "--mount", mount.to_str().unwrap()];
    pool.ok(&[&arguments[..], &GRACE].concat());
    let before = random_bytes(4 * MIB, 630);
    fs::write(pool.at("app/before"), &before).unwrap();
    pool.wait_for_copies();
    fs::write(&notice, "").unwrap();
    wait_until("all go", || {
        pool.shows(|status| {
            status["benefactors"].as_array().unwrap().iter().all(|entry| !entry["going"].is_null())
        })
    });
    let status = pool.status();
    assert_eq!(status["health"], "degraded");
    assert!(status["reasons"].to_string().contains("said to go soon"), "{status}");
    let last = random_bytes(20 * MIB, 631);
    fs::write(pool.at("app/last"), &last).unwrap();
    assert!(fs::read(pool.at("app/last")).unwrap() == last && pool.get("app/before") == before);
    let begun = Instant::now();
    pool.ok(&["down"]);
    assert!(begun.elapsed() < ENDED_WITHIN, "{:?}", begun.elapsed());
    fs::remove_file(&notice).unwrap();
    pool.ok(&["up", "--notice", "none", "--notice-grace", "0s"]);
    wait_until("all are back", || pool.shows(|status| status["health"] == "healthy"));
    assert!(pool.get("app/last") == last);
}

#[test]
fn a_mount_on_a_machine_that_goes_keeps_nothing_in_its_spool() {
    let pool = Setup::of(2).up();
    let notice = pool.path("notice");
    let spool = pool.path("spool");
    let flags =
        ["--protocol", "clw", "--spool", spool.to_str().unwrap(), "--notice", notice.to_str().unwrap()];
    let mut mount = Mount::start_with(&pool, "second", &flags);
    fs::create_dir(mount.at("app")).unwrap();
    let images = |spool: &Path| {
        let entries = fs::read_dir(spool).unwrap();
        entries
            .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|end| end == "image"))
            .count()
    };
    // Nothing can be pushed: what is closed waits in the spool.
    let (before, after) = (random_bytes(3 * MIB, 640), random_bytes(3 * MIB, 641));
    let benefactors = ["benefactor-0", "benefactor-1"].map(|role| pool.process(role));
    let all = |signal: Signal| benefactors.iter().for_each(|benefactor| benefactor.signal(signal));
    all(Signal::STOP);
    fs::write(mount.at("app/before"), &before).unwrap();
    assert_eq!(images(&spool), 1);
    fs::write(&notice, "").unwrap();
    let log = pool.path("second.log");
    wait_until("the mount knows", || fs::read_to_string(&log).unwrap().contains("said to go soon"));
    all(Signal::CONT);
    // What is closed from now on is at the pool when `close()` returns.
    fs::write(mount.at("app/after"), &after).unwrap();
    assert!(pool.get("app/after") == after);
    wait_until("the spool is empty", || images(&spool) == 0);
    assert!(pool.get("app/before") == before);
    assert!(mount.end());
}
