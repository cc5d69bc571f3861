//! Checkpoint sets: complete, incomplete and damaged ones of four ranks, and what comes back of them (I5).

use std::fs;

use stdchk_tests::{Pool, random_bytes, wait_until};

use crate::aggregate::Running;

const RANKS: usize = 4;

fn content(step: u64, rank: usize) -> Vec<u8> {
    random_bytes(300_000 + rank, step * 100 + rank as u64)
}

/// Stores the files of so many ranks of a timestep, in a folder below the application's.
fn put_step(pool: &Pool, step: u64, ranks: usize) {
    for rank in 0..ranks {
        let file = pool.file(&format!("sim.N{rank}.T{step}"), &content(step, rank));
        pool.ok(&["put", &file, "sim/run/"]);
    }
}

fn pool_with_steps(steps: &[(u64, usize)], replicas: u8) -> Pool {
    let pool = Pool::up(3, &[]);
    pool.ok(&[
        "policy",
        "set",
        "sim",
        "ranks=4",
        "naming=run/sim.N{rank}.T{step}",
        &format!("redundancy=replicate:{replicas}"),
    ]);
    steps.iter().for_each(|(step, ranks)| put_step(&pool, *step, *ranks));
    pool
}

#[test]
fn the_newest_complete_set_is_the_latest_and_an_incomplete_one_is_passed_over() {
    let pool = pool_with_steps(&[(10, RANKS), (20, RANKS), (30, RANKS - 1)], 1);
    let latest = pool.json(&["latest", "sim", "--json"]);
    assert_eq!(
        (&latest["app"], &latest["timestep"], &latest["state"]),
        (&"sim".into(), &20.into(), &"complete".into())
    );
    assert!(latest["committed_at"].as_str().unwrap().ends_with('Z'));
    let members = latest["members"].as_array().unwrap();
    assert_eq!(members.len(), RANKS);
    assert_eq!(
        members[3],
        serde_json::json!({"name": "run/sim.N3.T20", "rank": 3, "version": 1, "bytes": 300_003, "aggregated": false})
    );
    assert_eq!(latest["passed_over"][0]["timestep"], 30);
    assert!(latest["passed_over"][0]["reason"].as_str().unwrap().contains("rank 3"));
    let sets = pool.json(&["ls", "sim", "--sets", "--json"]);
    let states: Vec<&str> =
        sets["sets"].as_array().unwrap().iter().map(|s| s["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["incomplete", "complete", "complete"]);
    put_step(&pool, 30, RANKS);
    assert_eq!(pool.json(&["latest", "sim", "--json"])["timestep"], 30);
}

#[test]
fn a_damaged_set_is_passed_over_for_the_one_before() {
    let pool = pool_with_steps(&[(1, RANKS), (2, RANKS)], 1);
    assert_eq!(pool.damage(&content(2, 1)), 1);
    // Nobody has read it since.
    assert_eq!(pool.json(&["latest", "sim", "--json"])["timestep"], 2);
    pool.ok(&["restore", "sim", "-o", "back"]);
    assert!(fs::read(pool.path("back/run/sim.N1.T1")).unwrap() == content(1, 1));
    assert!(!pool.path("back/run/sim.N0.T2").exists(), "what came back of the damaged set");
    let outcome = pool.run(&["latest", "sim", "--check"]);
    assert_eq!(outcome.code, 0);
    assert!(outcome.text().contains("timestep 1"), "{outcome:?}");
    assert!(
        outcome.stderr.contains("passed over timestep 2") && outcome.stderr.contains("sim.N1.T2"),
        "{outcome:?}"
    );
    assert_eq!(pool.damage(&content(1, 0)), 1);
    pool.fails(&["latest", "sim", "--check"], 7, &["no complete set is intact"]);
    pool.fails(&["restore", "sim", "-o", "back2"], 7, &["no complete set is intact"]);
    // What is left of a set can still be fetched by name, and the rest is told.
    pool.fails(&["restore", "sim", "--set", "2", "-o", "back3"], 3, &["sim.N1.T2"]);
    assert!(fs::read(pool.path("back3/run/sim.N0.T2")).unwrap() == content(2, 0));
    assert!(!pool.path("back3/run/sim.N1.T2").exists());
}

#[test]
fn a_set_that_can_not_be_aggregated_is_told_while_the_aggregator_goes_on() {
    let pool = pool_with_steps(&[(1, RANKS)], 1);
    assert_eq!(pool.damage(&content(1, 2)), 1);
    let said = pool.path("said");
    let mut command = pool.command(&["aggregate", "sim"]);
    let mut running = Running(command.stderr(fs::File::create(&said).unwrap()).spawn().unwrap());
    wait_until("the set is told", || fs::read_to_string(&said).unwrap().contains("timestep 1 waits: "));
    put_step(&pool, 2, RANKS);
    wait_until("another set is told", || fs::read_to_string(&said).unwrap().contains("timestep 2, "));
    running.terminate();
    assert!(running.0.wait().unwrap().success());
}

#[test]
fn what_is_there_of_an_incomplete_set_comes_back_when_it_is_named_but_not_as_a_success() {
    let pool = pool_with_steps(&[(1, 2)], 1);
    let told = pool.fails(
        &["restore", "sim", "--set", "1", "-o", "back", "--json"],
        3,
        &["timestep 1 is not complete"],
    );
    assert_eq!(told.json()["members"].as_array().unwrap().len(), 2);
    assert!(fs::read(pool.path("back/run/sim.N1.T1")).unwrap() == content(1, 1));
}

#[test]
fn without_a_complete_set_there_is_no_latest() {
    let pool = pool_with_steps(&[(1, 2)], 1);
    pool.fails(&["latest", "sim"], 4, &["no complete checkpoint set"]);
    pool.fails(&["latest", "sim", "--json"], 4, &["no complete checkpoint set"]);
}

#[test]
fn a_restore_brings_every_file_back_and_goes_on_where_it_stopped() {
    let pool = pool_with_steps(&[(7, RANKS)], 1);
    let first = pool.json(&["restore", "sim", "-o", "back", "--json"]);
    assert_eq!((&first["timestep"], &first["members"][0]["kept"]), (&7.into(), &false.into()));
    for rank in 0..RANKS {
        assert!(fs::read(pool.path(&format!("back/run/sim.N{rank}.T7"))).unwrap() == content(7, rank));
    }
    fs::remove_file(pool.path("back/run/sim.N0.T7")).unwrap();
    fs::write(pool.path("back/run/sim.N2.T7"), b"something else").unwrap();
    let again = pool.json(&["restore", "sim", "--set", "7", "-o", "back", "--json"]);
    let kept: Vec<bool> =
        again["members"].as_array().unwrap().iter().map(|member| member["kept"].as_bool().unwrap()).collect();
    assert_eq!(kept, [false, true, false, true]);
    for rank in 0..RANKS {
        assert!(fs::read(pool.path(&format!("back/run/sim.N{rank}.T7"))).unwrap() == content(7, rank));
    }
    assert_eq!(fs::read_dir(pool.path("back/run")).unwrap().count(), RANKS);
}

#[test]
fn a_restore_of_files_of_small_pieces_is_not_repeated_either() {
    let pool = Pool::up(2, &[]);
    pool.policy("sim", &["ranks=1", "cutter=fsch:4KiB", "redundancy=replicate:1"]);
    let mut content = random_bytes(9 << 20, 1);
    for step in 0..3 {
        for page in (0..content.len()).step_by(32 << 10) {
            content[page..page + 4096].copy_from_slice(&random_bytes(4096, page as u64 + step));
        }
        pool.put(&content, &format!("sim/sim.N0.T{step}"));
    }
    let restored = || pool.json(&["restore", "sim", "-o", "back", "--json"])["members"][0]["kept"] == true;
    assert!(!restored());
    assert!(restored(), "it is there");
    let path = pool.path("back/sim.N0.T2");
    assert!(fs::read(&path).unwrap() == content);
    let mut other = content.clone();
    other[5 << 20] ^= 1;
    fs::write(&path, &other).unwrap();
    assert!(!restored(), "it is another one");
    assert!(fs::read(&path).unwrap() == content);
}

#[test]
fn a_naming_pattern_finds_the_sets_of_other_names() {
    let pool = Pool::up(2, &[]);
    pool.ok(&["policy", "set", "gas", "naming=restart.{step}.{rank}", "ranks=2"]);
    for name in ["restart.000100.0", "restart.000100.1", "restart.000200.0"] {
        let file = pool.file(name, name.as_bytes());
        pool.ok(&["put", &file, "gas/"]);
    }
    let latest = pool.json(&["latest", "gas", "--json"]);
    assert_eq!((&latest["timestep"], &latest["members"][1]["rank"]), (&"000100".into(), &1.into()));
}
