//! A flipped bit in a stored chunk: never served, made good from the other copy, an error where there is none (I3).

use std::fs;

use stdchk_tests::{Pool, random_bytes, wait_until, within};

const MIB: usize = 1 << 20;

#[test]
fn a_flipped_bit_is_never_served_and_the_other_copy_makes_it_good() {
    let pool = Pool::mounted(3);
    let content = random_bytes(MIB, 1);
    pool.put(&content, "app/x");
    pool.wait_for_copies();
    let holders = pool.holders_of(&content);
    assert_eq!(holders.len(), 2);
    let directory = |holder: u16| pool.data().join("benefactors").join(holder.to_string());
    assert_eq!(pool.damage_below(&directory(holders[0]), &content), 1);
    // Each reader is a new client that picks a holder by itself; the mount is one more.
    for _ in 0..3 {
        assert!(pool.get("app/x") == content);
    }
    assert!(fs::read(pool.at("app/x")).unwrap() == content);
    // The benefactors may find the damage by themselves before this does.
    let verified = pool.run(&["verify", "--repair", "--json"]);
    assert_eq!(verified.code, 0, "{verified:?}");
    wait_until("the damage was found", || pool.shows(|status| status["damaged_found"] == 1));
    pool.wait_for_copies();
    assert_eq!(pool.holders_of(&content).len(), 2, "a second intact copy is there again");
    let intact = pool.json(&["verify", "--json"]);
    assert_eq!((&intact["damaged_copies"], &intact["at_risk_chunks"]), (&0.into(), &0.into()), "{intact}");
}

#[test]
fn without_another_copy_damage_is_an_io_error_of_that_file_alone() {
    let pool = Pool::mounted(2);
    fs::create_dir(pool.at("app")).unwrap();
    pool.policy("app", &["redundancy=replicate:1"]);
    let [damaged, intact] = [2, 3].map(|seed| random_bytes(MIB, seed));
    pool.put(&damaged, "app/damaged");
    pool.put(&intact, "app/intact");
    assert_eq!(pool.damage(&damaged), 1);
    // The second time the benefactor has set it aside; the file is still there.
    for _ in 0..2 {
        let path = pool.at("app/damaged");
        let error = within("reading damaged content", move || fs::read(path)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
    }
    wait_until("the reader's finding was reported", || pool.shows(|status| status["damaged_found"] == 1));
    assert!(fs::read(pool.at("app/intact")).unwrap() == intact);
    pool.fails(&["get", "app/damaged", "-o", "-"], 7, &["app/damaged"]);
    pool.fails(&["verify"], 7, &["intact copy"]);
    // Writing the same content again brings the chunk back, under the same name.
    pool.put(&damaged, "app/damaged");
    assert!(pool.get("app/damaged") == damaged);
}
