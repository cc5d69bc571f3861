//! Random operations on files of a mount, compared with a model byte by byte (`scripts/posix/fsx`): by each write protocol,
//! past the page cache, also while a benefactor dies.
//!
//! `STDCHK_FSX_OPERATIONS` makes it longer, as `make soak` does.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use stdchk_tests::{Pool, Setup, wait_until};

use crate::page_cache::learn;

/// Operations of each program in the short form: some seconds.
const OPERATIONS_DEFAULT: u64 = 400;
/// Time for a thousand operations, many times what a slow machine takes.
const PATIENCE_PER_THOUSAND: Duration = Duration::from_secs(200);

fn operations() -> u64 {
    let asked = std::env::var("STDCHK_FSX_OPERATIONS").ok();
    asked.and_then(|operations| operations.parse().ok()).unwrap_or(OPERATIONS_DEFAULT)
}

/// A program that compares one file with its model.
struct Fsx {
    child: Child,
    output: PathBuf,
    expected: PathBuf,
    name: String,
}

impl Fsx {
    fn start(pool: &Pool, name: &str, seed: u64) -> Self {
        Self::start_with(pool, name, seed, &[])
    }

    fn start_with(pool: &Pool, name: &str, seed: u64, options: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/posix/fsx");
        let plain = name.replace('/', "-");
        let (output, expected) = (pool.path(&format!("{plain}.log")), pool.path(&plain));
        let log = std::fs::File::create(&output).unwrap();
        let mut command = Command::new("python3");
        command.arg(script).arg(pool.at(name)).arg("--keep").arg(&expected);
        command.args(["--seed", &seed.to_string(), "--operations", &operations().to_string()]);
        command.args(options);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self { child: command.spawn().unwrap(), output, expected, name: name.to_owned() }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap()
    }

    /// Waits for its end, and compares what another process gets from the pool.
    fn finish(mut self, pool: &Pool) {
        let thousands = u32::try_from(operations() / 1000 + 1).unwrap();
        let deadline = Instant::now() + PATIENCE_PER_THOUSAND * thousands;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "{}: not done in time: {}", self.name, self.said());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(self.child.wait().unwrap().success(), "{}: {}", self.name, self.said());
        let expected = std::fs::read(&self.expected).unwrap();
        wait_until("the pool has what the file held", || pool.get(&self.name) == expected);
    }
}

impl Drop for Fsx {
    fn drop(&mut self) {
        // Both fail if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn random_operations_give_what_a_local_file_gives_by_every_protocol() {
    let pool = Setup { donate: "16GiB".to_owned(), ..Setup::of(2) }.up();
    let protocols = ["sw", "clw", "iw"];
    for protocol in protocols {
        std::fs::create_dir(pool.at(protocol)).unwrap();
        let policy =
            ["redundancy=replicate:1", "cutter=fsch:64KiB", "segment=4MiB", &format!("protocol={protocol}")];
        pool.policy(protocol, &policy);
    }
    let started: Vec<Fsx> = protocols
        .iter()
        .zip(1..)
        .map(|(protocol, seed)| Fsx::start(&pool, &format!("{protocol}/x"), seed))
        .collect();
    started.into_iter().for_each(|fsx| fsx.finish(&pool));
    assert_eq!(pool.json(&["verify", "--json"])["bad"], json!([]));
}

#[test]
fn random_operations_past_the_page_cache_give_what_a_local_file_gives_by_every_protocol() {
    let pool = Setup { donate: "16GiB".to_owned(), ..Setup::of(2) }.up();
    let protocols = ["sw", "clw", "iw"];
    for protocol in protocols {
        std::fs::create_dir(pool.at(protocol)).unwrap();
        // The name is what is learned, wherever it is.
        learn(&pool, &format!("{protocol}-1"));
        let policy =
            ["redundancy=replicate:1", "cutter=fsch:64KiB", "segment=4MiB", &format!("protocol={protocol}")];
        pool.policy(protocol, &policy);
    }
    // What is closed by all is opened again through the page cache.
    let start = |(protocol, seed): (&&str, u64)| {
        Fsx::start_with(&pool, &format!("{protocol}/{protocol}-2"), seed, &["--stay-open"])
    };
    let started: Vec<Fsx> = protocols.iter().zip(5..).map(start).collect();
    started.into_iter().for_each(|fsx| fsx.finish(&pool));
    assert_eq!(pool.json(&["verify", "--json"])["bad"], json!([]));
}

#[test]
fn random_operations_see_nothing_of_a_benefactor_that_dies() {
    let pool = Setup { donate: "16GiB".to_owned(), ..Setup::of(3) }.up();
    std::fs::create_dir(pool.at("app")).unwrap();
    pool.policy("app", &["redundancy=replicate:2", "semantics=pessimistic"]);
    let fsx = Fsx::start(&pool, "app/x", 4);
    wait_until("it has begun", || fsx.said().contains("begun"));
    pool.kill("benefactor-1");
    fsx.finish(&pool);
    pool.ok(&["up"]);
}
