//! A job that is killed in the middle of a checkpoint: the torn set never counts (I5).

use std::fs;

use stdchk_tests::{Pool, Setup, random_bytes, within};

use crate::program::Writer;

const MIB: usize = 1 << 20;
const RANKS: u64 = 4;

fn name(step: u64, rank: u64) -> String {
    format!("sim/sim.N{rank}.T{step}")
}

fn content(step: u64, rank: u64) -> Vec<u8> {
    random_bytes(4 * MIB, step * 100 + rank)
}

fn write_member(pool: &Pool, step: u64, rank: u64) {
    let mut writer = Writer::start(&pool.at(&name(step, rank)), &[]);
    writer.feed(&content(step, rank));
    let written = within("writing a member", || writer.finish());
    assert!(written.accepted, "{written:?}");
}

fn write_and_kill(pool: &Pool, step: u64, rank: u64, more: &[&str]) {
    let mut writer = Writer::start(&pool.at(&name(step, rank)), more);
    writer.feed(&content(step, rank)[..3 * MIB]);
    stdchk_tests::wait_until("the writer is in the middle of its file", || {
        fs::metadata(pool.at(&name(step, rank))).is_ok_and(|file| file.len() >= 2 << 20)
    });
    within("killing the writer", || writer.kill());
}

#[test]
fn a_writer_killed_in_the_middle_never_makes_a_set_complete_and_one_that_ends_does() {
    let pool = Setup::of(2).up();
    fs::create_dir(pool.at("sim")).unwrap();
    (0..RANKS).for_each(|rank| write_member(&pool, 1, rank));
    (0..RANKS - 1).for_each(|rank| write_member(&pool, 2, rank));
    // The second with every write made durable at once, so that there are commits before the kill.
    for more in [&[][..], &["oflag=dsync"]] {
        write_and_kill(&pool, 2, RANKS - 1, more);
        let outcome = pool.run(&["latest", "sim", "--json"]);
        assert_eq!(outcome.code, 0, "{outcome:?}");
        let latest = outcome.json();
        assert_eq!((&latest["timestep"], &latest["state"]), (&1.into(), &"complete".into()), "{latest}");
        let passed = &latest["passed_over"][0];
        assert_eq!(passed["timestep"], 2);
        let reason = passed["reason"].as_str().unwrap();
        assert!(reason.contains("rank 3") || reason.contains("sim.N3.T2"), "{reason}");
        let said = pool.run(&["latest", "sim"]).stderr;
        assert!(said.contains("passed over timestep 2"), "{said}");
    }
    write_member(&pool, 2, RANKS - 1);
    assert_eq!(pool.json(&["latest", "sim", "--json"])["timestep"], 2);
    pool.ok(&["restore", "sim", "-o", pool.path("back").to_str().unwrap()]);
    for rank in 0..RANKS {
        assert!(fs::read(pool.path(&format!("back/sim.N{rank}.T2"))).unwrap() == content(2, rank));
    }
}
