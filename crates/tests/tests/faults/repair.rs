//! Second copies that appear by themselves, after a close and after a loss (I6).

use std::fs;

use stdchk_tests::{Pool, Setup, random_bytes, wait_until};

const MIB: usize = 1 << 20;

fn contents() -> Vec<Vec<u8>> {
    (0..3).map(|seed| random_bytes(7 * MIB + 11, 50 + seed)).collect()
}

fn all_read(pool: &Pool, when: &str) {
    for (number, content) in contents().iter().enumerate() {
        assert!(pool.get(&format!("app/x{number}")) == *content, "app/x{number} {when}");
    }
}

#[test]
fn after_an_optimistic_close_the_second_copy_follows_by_itself() {
    let pool = Pool::mounted(3);
    let content = random_bytes(MIB, 1);
    fs::create_dir(pool.at("app")).unwrap();
    fs::write(pool.at("app/x"), &content).unwrap();
    pool.wait_for_copies();
    assert_eq!(pool.holders_of(&content).len(), 2);
    assert!(pool.status()["repairs_done"].as_u64().unwrap() >= 1);
}

#[test]
fn what_a_lost_benefactor_held_is_copied_elsewhere_and_it_is_not_needed_any_more() {
    let short = Setup { mounted: false, ..Setup::of(5) };
    let pool = short.with("STDCHK_BENEFACTOR_LEASE_MS", 2000).with("STDCHK_BENEFACTOR_LOST_MS", 5000).up();
    for (number, content) in contents().iter().enumerate() {
        pool.put(content, &format!("app/x{number}"));
    }
    pool.wait_for_copies();
    pool.kill("benefactor-1");
    all_read(&pool, "with a benefactor gone");
    pool.wait_for_state("lost", 1);
    pool.wait_for_copies();
    fs::remove_dir_all(pool.data().join("benefactors/1")).unwrap();
    // All chunks have two copies again: another loss takes nothing, either.
    pool.kill("benefactor-3");
    all_read(&pool, "with a second one gone");
    let health = pool.json(&["verify", "--json"]);
    assert_eq!((&health["lost_chunks"], &health["unreachable_chunks"]), (&0.into(), &0.into()), "{health}");
    // Told that its disk is gone, the pool doesn't wait for the first one any more; the other one comes back.
    pool.wait_for_state("lost", 2);
    pool.wait_for_copies();
    let online = &pool.benefactors_in("online")[0];
    pool.fails(&["forget", online], 1, &[&format!("benefactor {online}"), "is on-line"]);
    pool.fails(&["forget", "b77"], 4, &["the pool has no benefactor b77"]);
    for name in pool.benefactors_in("lost") {
        assert_eq!(pool.ok(&["forget", &name]).trim(), format!("{name} is forgotten"));
    }
    let status = pool.status();
    assert_eq!((&status["health"], status["benefactors"].as_array().unwrap().len()), (&"healthy".into(), 3));
    pool.ok(&["up"]);
    wait_until("a new benefactor and the one that returned", || {
        pool.shows(|status| {
            status["health"] == "healthy" && status["benefactors"].as_array().unwrap().len() == 5
        })
    });
    all_read(&pool, "with one forgotten, one returned and one new");
}

#[test]
fn copies_that_are_too_many_once_a_lost_benefactor_is_back_go_again() {
    let short = Setup { mounted: false, ..Setup::of(4) };
    let short = short.with("STDCHK_BENEFACTOR_LEASE_MS", 2000).with("STDCHK_BENEFACTOR_LOST_MS", 5000);
    let pool = short.with("STDCHK_GARBAGE_AGE_MS", 2000).up();
    for (number, content) in contents().iter().enumerate() {
        pool.put(content, &format!("app/x{number}"));
    }
    pool.wait_for_copies();
    let whole = pool.status()["savings"]["stored_bytes"].as_u64().unwrap();
    pool.kill("benefactor-1");
    pool.wait_for_state("lost", 1);
    pool.wait_for_copies();
    pool.ok(&["up"]);
    pool.wait_for_state("online", 4);
    wait_until("the surplus is gone, from the manager's books and from the disks", || {
        pool.run(&["gc"]);
        pool.shows(|status| status["savings"]["stored_bytes"] == whole)
            && contents().iter().all(|content| pool.holders_of(&content[..MIB]).len() == 2)
    });
    pool.wait_for_copies();
    all_read(&pool, "with the surplus gone");
    let health = pool.json(&["verify", "--json"]);
    assert_eq!((&health["bad"], &health["at_risk_chunks"]), (&serde_json::json!([]), &0.into()), "{health}");
}
