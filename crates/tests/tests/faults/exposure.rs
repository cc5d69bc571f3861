//! What a loss costs while copies are still being made: writers don't get further ahead of them than the folder's
//! `exposure` allows, and nobody waits for copies that can't be made (I1, I5, I6).
//!
//! `STDCHK_TIMESTEPS` makes the job longer and its files larger, as `make soak` does.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

use serde_json::Value;
use stdchk_tests::{Pool, Setup, random_bytes, wait_until, within};

const MIB: usize = 1 << 20;
/// What commands exit with when content can't be reached now, and when there is no space.
const UNREACHABLE: i32 = 5;
const NO_SPACE: i32 = 6;

/// A job that writes one timestep after the other.
#[derive(Clone, Copy)]
struct Job {
    ranks: u64,
    timesteps: u64,
    bytes: usize,
}

impl Job {
    fn of_this_run() -> Self {
        let asked = std::env::var("STDCHK_TIMESTEPS").ok().and_then(|steps| steps.parse().ok());
        match asked {
            Some(timesteps) => Self { ranks: 8, timesteps, bytes: 8 * MIB },
            None => Self { ranks: 4, timesteps: 8, bytes: MIB },
        }
    }

    fn content(self, timestep: u64, rank: u64) -> Vec<u8> {
        random_bytes(self.bytes, timestep * 100 + rank)
    }

    /// All ranks write their files of a timestep at the same time, each closed when this returns.
    fn write(self, pool: &Pool, timestep: u64) {
        thread::scope(|scope| {
            for rank in 0..self.ranks {
                let (path, content) =
                    (pool.at(&format!("sim/run.N{rank}.T{timestep}")), self.content(timestep, rank));
                scope.spawn(move || fs::write(path, content).unwrap());
            }
        });
    }

    /// The same by write-to-temporary-and-rename.
    fn replace(self, pool: &Pool, timestep: u64) {
        thread::scope(|scope| {
            for rank in 0..self.ranks {
                let content = self.content(timestep, rank);
                scope.spawn(move || {
                    let temporary = pool.at(&format!("sim/.{rank}.new"));
                    fs::write(&temporary, content).unwrap();
                    fs::rename(temporary, pool.at(&format!("sim/run.N{rank}.T{timestep}"))).unwrap();
                });
            }
        });
    }

    /// A benefactor is gone for good since the last timestep was closed: the one before is there, byte for byte.
    fn comes_back(self, pool: &Pool) {
        let restored = pool.json(&["restore", "sim", "--or-older", "-o", "back", "--json"]);
        let timestep = restored["timestep"].as_u64().unwrap();
        assert!(timestep + 1 >= self.timesteps, "{restored}");
        for rank in 0..self.ranks {
            let back = fs::read(pool.path(&format!("back/run.N{rank}.T{timestep}"))).unwrap();
            assert!(back == self.content(timestep, rank), "rank {rank} of timestep {timestep}");
        }
        let before = (self.timesteps - 1).to_string();
        pool.ok(&["restore", "sim", "--set", &before, "-o", "before"]);
    }
}

fn pool_of(setup: Setup) -> Pool {
    let pool = Setup { donate: "4GiB".to_owned(), ..setup }.up();
    fs::create_dir(pool.at("sim")).unwrap();
    pool
}

#[test]
fn a_job_that_never_pauses_loses_its_last_timestep_at_most_with_a_benefactor() {
    let (job, pool) = (Job::of_this_run(), pool_of(Setup::of(4)));
    for timestep in 1..=job.timesteps {
        job.write(&pool, timestep);
    }
    pool.kill("benefactor-2");
    fs::remove_dir_all(pool.data().join("benefactors/2")).unwrap();
    job.comes_back(&pool);
}

#[test]
fn a_job_that_renames_its_files_into_place_loses_its_last_timestep_at_most() {
    let (job, pool) = (Job::of_this_run(), pool_of(Setup::of(4)));
    for timestep in 1..=job.timesteps {
        job.replace(&pool, timestep);
    }
    pool.kill("benefactor-1");
    fs::remove_dir_all(pool.data().join("benefactors/1")).unwrap();
    job.comes_back(&pool);
}

#[test]
fn a_writer_goes_on_when_the_copies_that_it_waits_for_cannot_be_made() {
    let job = Job { ranks: 2, timesteps: 6, bytes: MIB };
    let setup = Setup::of(2).with("STDCHK_BENEFACTOR_LEASE_MS", 1500);
    let pool = pool_of(setup);
    job.write(&pool, 1);
    pool.wait_for_copies();
    // It takes connections and answers nothing: the worst way to be gone.
    let stopped = pool.process("benefactor-1");
    stopped.signal(rustix::process::Signal::STOP);
    let pool = within("writing beside a benefactor that hangs", move || {
        (2..=job.timesteps).for_each(|timestep| job.write(&pool, timestep));
        pool
    });
    wait_until("what is missing is told", || pool.shows(|status| status["chunks_stuck"].as_u64() > Some(0)));
    let status = pool.status();
    assert_eq!(status["health"], "degraded", "{status}");
    assert!(status["exposed"]["sets"][0]["timestep"].as_u64() > Some(1), "{status}");
    let latest = pool.json(&["latest", "sim", "--json"]);
    assert_eq!(latest["timestep"], job.timesteps);
    assert!(
        latest["exposed"]["chunks"].as_u64() > Some(0) && latest["exposed"]["since"].is_string(),
        "{latest}"
    );
    stopped.signal(rustix::process::Signal::CONT);
    pool.wait_for_copies();
    assert_eq!(pool.json(&["latest", "sim", "--json"])["exposed"]["chunks"], 0);
    assert_eq!(pool.status()["exposed"], serde_json::json!({"chunks": 0, "bytes": 0, "sets": []}));
}

#[test]
fn a_writer_that_waits_survives_the_managers_death() {
    let job = Job { ranks: 2, timesteps: 6, bytes: 4 * MIB };
    let pool = pool_of(Setup::of(3));
    let pool = within("writing while the manager is killed", move || {
        for timestep in 1..=job.timesteps {
            thread::scope(|scope| {
                scope.spawn(|| job.write(&pool, timestep));
                if timestep % 3 == 0 {
                    pool.kill("manager");
                    pool.ok(&["up"]);
                }
            });
        }
        pool
    });
    pool.wait_for_copies();
    for rank in 0..job.ranks {
        let name = format!("sim/run.N{rank}.T{}", job.timesteps);
        assert!(pool.get(&name) == job.content(job.timesteps, rank), "{name}");
    }
}

#[test]
fn a_pool_is_healthy_right_after_a_write() {
    let (job, pool) = (Job { ranks: 4, timesteps: 1, bytes: 4 * MIB }, pool_of(Setup::of(3)));
    for timestep in 1..=4 {
        job.write(&pool, timestep);
        let status = pool.status();
        assert_eq!(status["health"], "healthy", "{status}");
    }
}

#[test]
fn a_large_write_that_finds_no_room_leaves_room_for_the_copies_of_what_was_there() {
    let setup = Setup { donate: "48MiB".to_owned(), ..Setup::of(3) };
    let setup = setup.with("STDCHK_CLIENT_LEASE_MS", 8000).with("STDCHK_GARBAGE_AGE_MS", 3000);
    let pool = setup.up();
    let kept = random_bytes(24 * MIB, 1);
    pool.put(&kept, "sim/kept");
    let large = random_bytes(200 * MIB, 2);
    let refused = pool.run_with(&["put", "-", "sim/large"], &large);
    assert_eq!(refused.code, NO_SPACE, "{refused:?}");
    pool.wait_for_copies();
    assert_eq!(pool.holders_of(&kept[..MIB]).len(), 2);
}

// --- what is away

/// A pool without a mount whose benefactors count as gone soon, with a folder whose chunks have one copy.
fn pool_with_short_leases() -> Pool {
    let setup = Setup { mounted: false, ..Setup::of(2) };
    let pool = setup.with("STDCHK_BENEFACTOR_LEASE_MS", 2000).with("STDCHK_BENEFACTOR_LOST_MS", 4000).up();
    pool.policy("sim", &["redundancy=replicate:1", "ranks=1"]);
    pool
}

fn kill_holder_of(pool: &Pool, content: &[u8]) {
    let holder = pool.holder_of(content).unwrap();
    pool.kill(&format!("benefactor-{holder}"));
}

#[test]
fn content_whose_only_holder_is_away_is_stored_anew() {
    let pool = pool_with_short_leases();
    let content = random_bytes(MIB, 7);
    pool.put(&content, "sim/first");
    kill_holder_of(&pool, &content);
    let source = pool.file("again", &content);
    // The manager takes it for on-line, then for away, then for lost.
    for (number, state) in ["online", "offline", "lost"].into_iter().enumerate() {
        if state != "online" {
            pool.wait_for_state(state, 1);
        }
        let name = format!("sim/again{number}");
        pool.ok(&["put", &source, &name]);
        assert!(pool.get(&name) == content, "{state}");
        assert!(pool.get("sim/first") == content, "what is there again is there for all, {state}");
    }
    pool.ok(&["up"]);
    pool.wait_for_state("online", 2);
    assert!(pool.get("sim/first") == content);
}

fn sets_passed_over(latest: &Value) -> Vec<(u64, bool)> {
    let passed_over = latest["passed_over"].as_array().unwrap();
    let set = |set: &Value| (set["timestep"].as_u64().unwrap(), set["unavailable"].as_bool().unwrap());
    passed_over.iter().map(set).collect()
}

#[test]
fn a_set_that_can_come_back_is_not_called_damaged_nor_replaced_by_an_older_one_unasked() {
    let pool = pool_with_short_leases();
    let (old, new) = (random_bytes(MIB, 1), random_bytes(MIB, 2));
    pool.policy("sim", &["redundancy=replicate:2"]);
    pool.put(&old, "sim/run.N0.T1");
    pool.wait_for_copies();
    pool.policy("sim", &["redundancy=replicate:1"]);
    pool.put(&new, "sim/run.N0.T2");
    kill_holder_of(&pool, &new);
    for state in ["offline", "lost"] {
        pool.wait_for_state(state, 1);
        let away = pool.benefactors_in(state).join("");
        let told = format!("{away} is away");
        pool.fails(&["latest", "sim"], UNREACHABLE, &["timestep 2", &told, "--wait", "--or-older"]);
        pool.fails(&["latest", "sim", "--wait=300ms"], UNREACHABLE, &["waiting for timestep 2", &told]);
        pool.fails(&["restore", "sim", "-o", "back"], UNREACHABLE, &["timestep 2", &told]);
        let outcome = pool.run(&["latest", "sim", "--or-older"]);
        assert_eq!(outcome.code, 0, "{outcome:?}");
        assert!(outcome.text().contains("timestep 1"), "{outcome:?}");
        assert!(
            outcome.stderr.contains("passed over timestep 2") && outcome.stderr.contains(&told),
            "{outcome:?}"
        );
        assert_eq!(sets_passed_over(&pool.json(&["latest", "sim", "--or-older", "--json"])), [(2, true)]);
        pool.fails(&["restore", "sim", "--set", "2", "-o", "back"], UNREACHABLE, &[&away, "try again"]);
        pool.fails(&["get", "sim/run.N0.T2", "-o", "x"], UNREACHABLE, &[&away, "try again"]);
        pool.fails(&["verify", "sim"], UNREACHABLE, &["can't be reached now"]);
        pool.fails(&["stat", "sim/run.N0.T2"], UNREACHABLE, &["away"]);
    }
    assert_eq!(pool.status()["health"], "unavailable");
    pool.ok(&["rm", "sim/run.N0.T1"]);
    pool.fails(&["latest", "sim"], UNREACHABLE, &["can't be reached now", "away"]);
    std::thread::scope(|scope| {
        let restore = scope.spawn(|| pool.ok(&["restore", "sim", "--wait", "-o", "back"]));
        pool.ok(&["up"]);
        restore.join().unwrap();
    });
    assert!(fs::read(pool.path("back/run.N0.T2")).unwrap() == new);
    assert_eq!(pool.status()["health"], "healthy");
}

#[test]
fn after_a_restart_of_the_manager_what_an_absent_benefactor_may_have_is_not_called_damaged() {
    let pool = pool_with_short_leases();
    let content = random_bytes(MIB, 3);
    pool.put(&content, "sim/run.N0.T1");
    kill_holder_of(&pool, &content);
    // The benefactor stays away: `up` would start it, too.
    let _manager = restart_alone(&pool, "manager");
    pool.wait_for_state("lost", 1);
    pool.fails(&["latest", "sim"], UNREACHABLE, &["away"]);
    pool.ok(&["forget", "--force", &pool.benefactors_in("lost").join("")]);
    pool.fails(&["latest", "sim"], 7, &["no complete set is intact"]);
}

/// A process that is killed at the end of a test.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills a role's process and starts it again as it was, and nothing else.
fn restart_alone(pool: &Pool, role: &str) -> Started {
    let process = PathBuf::from(format!("/proc/{}", pool.process(role).pid));
    let words = |file: &str| -> Vec<String> {
        let text = String::from_utf8(fs::read(process.join(file)).unwrap()).unwrap();
        text.split_terminator('\0').map(str::to_owned).collect()
    };
    let (arguments, variables) = (words("cmdline"), words("environ"));
    pool.kill(role);
    let mut command = Command::new(&arguments[0]);
    command.args(&arguments[1..]).env_clear().envs(variables.iter().filter_map(|pair| pair.split_once('=')));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Started(command.spawn().unwrap())
}
