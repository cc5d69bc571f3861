//! The owners of donated disks: what they decide is done, and costs nothing that is stored.

use std::fs;

use stdchk_tests::{Pool, Setup, random_bytes, wait_until};

const MIB: usize = 1 << 20;

/// A benefactor's line in `status`.
fn entry(pool: &Pool, index: u64) -> serde_json::Value {
    let status = pool.json(&["status", "--json"]);
    let entries = status["benefactors"].as_array().unwrap();
    entries.iter().find(|entry| entry["id"] == index).unwrap().clone()
}

fn wait_until_paused(pool: &Pool, index: u64, paused: bool) {
    wait_until("the owner's wish is known to the manager", || entry(pool, index)["paused"] == paused);
}

#[test]
fn a_paused_benefactor_takes_nothing_serves_what_it_has_and_stays_paused_through_a_kill() {
    let pool = Setup::of(3).up();
    fs::create_dir(pool.at("app")).unwrap();
    pool.policy("app", &["redundancy=replicate:1", "stripe=3"]);
    let (before, meanwhile) = (random_bytes(12 * MIB, 50), random_bytes(12 * MIB, 51));
    pool.put(&before, "app/before");
    let status = pool.json(&["status", "--json"]);
    let first = status["benefactors"][0]["id"].as_u64().unwrap();
    let pid = status["benefactors"][0]["pid"].as_u64().unwrap();
    let index = (0..3)
        .find(|index| u64::from(pool.process(&format!("benefactor-{index}")).pid) == pid)
        .expect("one of them has this process");
    let folder = pool.data().join(format!("benefactors/{index}"));
    let folder = folder.to_str().unwrap();
    pool.ok(&["benefactor", "pause", folder]);
    wait_until_paused(&pool, first, true);
    let held = entry(&pool, first)["blocks"].clone();
    assert!(held.as_u64().unwrap() > 0, "it has some of the first file");
    assert_eq!(entry(&pool, first)["free_bytes"], 0);
    assert_eq!(pool.json(&["status", "--json"])["health"], "healthy");
    pool.put(&meanwhile, "app/meanwhile");
    assert!(pool.get("app/before") == before && pool.get("app/meanwhile") == meanwhile);
    assert_eq!(entry(&pool, first)["blocks"], held, "what was written went elsewhere");

    pool.kill(&format!("benefactor-{index}"));
    pool.ok(&["up"]);
    wait_until("it is back, paused", || {
        let entry = entry(&pool, first);
        entry["state"] == "online" && entry["paused"] == true && entry["pid"] != pid
    });
    pool.put(&random_bytes(12 * MIB, 52), "app/after");
    assert_eq!(entry(&pool, first)["blocks"], held);
    assert!(pool.get("app/before") == before);

    pool.ok(&["benefactor", "resume", folder]);
    wait_until_paused(&pool, first, false);
    pool.put(&random_bytes(12 * MIB, 53), "app/again");
    wait_until("it takes blocks again", || entry(&pool, first)["blocks"].as_u64() > held.as_u64());
}

#[test]
fn a_writer_goes_on_elsewhere_when_an_owner_pauses_and_nothing_is_written_where_all_have() {
    let pool = Setup::of(2).up();
    pool.ok(&["put", &pool.file("seed", b"seed"), "app/seed"]);
    pool.policy("app", &["redundancy=replicate:1"]);
    let content = random_bytes(40 * MIB, 54);
    let mut writer = crate::program::Writer::start(&pool.at("app/x"), &[]);
    writer.feed(&content[..10 * MIB]);
    pool.ok(&["benefactor", "pause", pool.data().join("benefactors/0").to_str().unwrap()]);
    wait_until("one has taken note", || (0..2).any(|index| entry(&pool, index)["paused"] == true));
    writer.feed(&content[10 * MIB..]);
    let written = writer.finish();
    assert!(written.accepted, "{written:?}");
    assert!(pool.get("app/x") == content);

    pool.ok(&["benefactor", "pause"]);
    wait_until_paused(&pool, 0, true);
    wait_until_paused(&pool, 1, true);
    let status = pool.json(&["status", "--json"]);
    assert_eq!(status["health"], "full");
    assert!(status["reasons"][0].as_str().unwrap().contains("benefactor resume"), "{status}");
    let new = pool.file("y", &random_bytes(MIB, 55));
    pool.fails(&["put", &new, "app/y"], 6, &["app/y", "benefactor resume"]);
    assert!(pool.get("app/x") == content);
    pool.ok(&["benefactor", "resume"]);
    wait_until_paused(&pool, 0, false);
    pool.ok(&["put", &new, "app/y"]);
    pool.fails(&["benefactor", "pause", pool.work().to_str().unwrap()], 4, &["no benefactor of a pool"]);
}
