//! Sets of checkpoints that go by their folder's lifetime, on a pool of real processes: what a job needs to restart is there at every moment, and
//! what nobody needs is gone in the end, with its space (I5).

use std::fs;

use serde_json::Value;
use stdchk_tests::{PATIENCE, Pool, Setup, random_bytes, wait_until};

const RANKS: u64 = 2;
const BYTES: usize = 300_000;
/// How long the manager waits after its start for those who have files open, before anything goes.
const CLIENT_LEASE_MS: u64 = 10_000;

fn content(timestep: u64, rank: u64) -> Vec<u8> {
    random_bytes(BYTES, timestep * 100 + rank)
}

fn name(timestep: u64, rank: u64) -> String {
    format!("run.N{rank}.T{timestep}")
}

/// Writes a timestep through the mount, by write-to-temporary-and-rename every other time.
fn write(pool: &Pool, timestep: u64) {
    for rank in 0..RANKS {
        let path = pool.at("sim").join(name(timestep, rank));
        if timestep.is_multiple_of(2) {
            let temporary = pool.at("sim/.new");
            fs::write(&temporary, content(timestep, rank)).unwrap();
            fs::rename(temporary, path).unwrap();
        } else {
            fs::write(path, content(timestep, rank)).unwrap();
        }
    }
}

/// The timesteps that are there, oldest first.
fn left(pool: &Pool) -> Vec<u64> {
    let sets = pool.json(&["ls", "sim", "--sets", "--json"]);
    let mut left: Vec<u64> =
        sets["sets"].as_array().unwrap().iter().map(|set| set["timestep"].as_u64().unwrap()).collect();
    left.reverse();
    left
}

fn wait_until_left(pool: &Pool, timesteps: &[u64]) {
    wait_until(&format!("only {timesteps:?} are left"), || left(pool) == timesteps);
}

/// What can be restarted from comes back as it was written, and isn't older than `timestep`.
fn comes_back(pool: &Pool, timestep: u64) {
    let mut restored = None;
    wait_until("a set can be restored", || {
        restored = Some(pool.run(&["restore", "sim", "-o", "back", "--json"])).filter(|done| done.code == 0);
        restored.is_some()
    });
    let restored: Value = serde_json::from_str(&restored.unwrap().text()).unwrap();
    let found = restored["timestep"].as_u64().unwrap();
    assert!(found >= timestep, "{found} is older than {timestep}");
    for rank in 0..RANKS {
        let back = fs::read(pool.path("back").join(name(found, rank))).unwrap();
        assert!(back == content(found, rank), "rank {rank} of timestep {found}");
    }
}

#[test]
fn sets_go_by_their_lifetime_while_the_job_goes_on_and_everything_is_killed() {
    let pool = Setup::of(3).with("STDCHK_CLIENT_LEASE_MS", CLIENT_LEASE_MS).up();
    fs::create_dir(pool.at("sim")).unwrap();
    fs::write(pool.at("sim/notes"), "of no timestep").unwrap();
    pool.policy("sim", &["lifetime=replace:2 every:10"]);
    for timestep in 1..=12 {
        write(&pool, timestep);
        match timestep {
            5 => {
                pool.kill("manager");
                pool.ok(&["up"]);
            }
            8 => {
                pool.kill("benefactor-1");
                pool.ok(&["up"]);
            }
            _ => {}
        }
        // Whether the first set is complete nothing tells before the second.
        if timestep > 1 {
            comes_back(&pool, timestep - 1);
        }
    }
    wait_until_left(&pool, &[10, 11, 12]);
    assert_eq!(fs::read_to_string(pool.at("sim/notes")).unwrap(), "of no timestep");
    assert!(fs::read(pool.at("sim").join(name(1, 0))).is_err(), "the mount still shows what is gone");
    comes_back(&pool, 12);
}

#[test]
fn the_set_before_stays_while_the_newest_one_is_damaged_or_its_benefactor_away() {
    let setup = Setup::of(2)
        .with("STDCHK_CLIENT_LEASE_MS", CLIENT_LEASE_MS)
        .with("STDCHK_BENEFACTOR_LOST_MS", 600_000);
    let pool = setup.up();
    fs::create_dir(pool.at("sim")).unwrap();
    pool.policy("sim", &["ranks=2"]);
    (1..=3).for_each(|timestep| write(&pool, timestep));
    pool.wait_for_copies();
    pool.kill("benefactor-1");
    pool.wait_for_state("offline", 1);
    pool.policy("sim", &["lifetime=replace:1"]);
    // It says why nothing goes.
    let fates = pool.json(&["policy", "set", "sim", "lifetime=replace:1", "--dry-run", "--json"]);
    assert!(fates["sets"].as_array().unwrap().iter().all(|set| set["goes"] == false), "{fates}");
    std::thread::sleep(PATIENCE / 20);
    assert_eq!(left(&pool), [1, 2, 3]);
    pool.ok(&["up"]);
    wait_until_left(&pool, &[3]);
    comes_back(&pool, 3);
}

#[test]
fn what_a_job_leaves_that_is_done_is_its_last_set_and_the_space_comes_back() {
    let setup = Setup::of(2).with("STDCHK_CLIENT_LEASE_MS", CLIENT_LEASE_MS);
    let pool = setup.with("STDCHK_GARBAGE_AGE_MS", 1000).up();
    fs::create_dir(pool.at("sim")).unwrap();
    pool.fails(&["done", "sim"], 4, &["no complete set"]);
    (1..=6).for_each(|timestep| write(&pool, timestep));
    pool.ok(&["seal", "sim", "--set", "2"]);
    pool.fails(&["seal", "sim", "--set", "7"], 4, &["timestep 7"]);
    pool.wait_for_copies();
    let fates = pool.json(&["done", "sim", "--dry-run", "--json"]);
    let going = fates["sets"].as_array().unwrap().iter().filter(|set| set["goes"] == true);
    assert_eq!(
        going.map(|set| set["bytes"].as_u64().unwrap()).sum::<u64>(),
        4 * RANKS * BYTES as u64,
        "{fates}"
    );
    assert_eq!(left(&pool).len(), 6, "a dry run changes nothing");
    let said = pool.ok(&["done", "sim"]);
    assert!(said.contains("4 of 6 sets go") && said.contains("sealed"), "{said}");
    pool.kill("manager");
    pool.ok(&["up"]);
    wait_until_left(&pool, &[2, 6]);
    let kept = 2 * RANKS * 2 * BYTES as u64;
    wait_until("the space is free", || {
        pool.run(&["gc"]);
        pool.shows(|status| status["savings"]["stored_bytes"].as_u64().unwrap() <= kept + kept / 10)
    });
    comes_back(&pool, 6);
    // Sets of a run that goes on in the folder stay, as it has no lifetime.
    (7..=8).for_each(|timestep| write(&pool, timestep));
    pool.fails(&["policy", "set", "sim", "lifetime=replace:0"], 2, &["at least 1"]);
    pool.fails(&["policy", "set", "sim", "lifetime=replace:1", "ranks=2", "--dry-run"], 2, &["lifetime"]);
    assert_eq!(left(&pool), [2, 6, 7, 8]);
}
