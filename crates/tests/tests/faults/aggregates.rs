//! Sets that move into containers of the pool while somebody reads, and while something dies: every file is there at every
//! moment, whole, and takes less room in the end (I2, I4, I6, I11).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use stdchk_tests::{Mount, Pool, Setup, random_bytes, send_signal, wait_until, within};

const MIB: usize = 1 << 20;
const RANKS: usize = 4;
const LENGTH: usize = 3 * MIB + 12_345;

/// A pool that soon collects what nothing refers to, and soon notices that a client is gone.
fn pool(benefactors: u16) -> Pool {
    let setup = Setup::of(benefactors).with("STDCHK_GARBAGE_AGE_MS", 1000);
    let pool = setup.with("STDCHK_CLIENT_LEASE_MS", 10_000).up();
    fs::create_dir(pool.at("sim")).unwrap();
    pool.policy("sim", &["ranks=4", "codec=store"]);
    pool
}

fn name(rank: usize) -> String {
    format!("sim/sim.N{rank}.T1")
}

/// What a compressor makes half as long; of rank 1 what none does.
fn content(rank: usize) -> Vec<u8> {
    let mut content = random_bytes(LENGTH, 40 + rank as u64);
    if rank != 1 {
        content.iter_mut().for_each(|byte| *byte &= 0x0f);
    }
    content
}

fn write_set(pool: &Pool) {
    for rank in 0..RANKS {
        fs::write(pool.at(&name(rank)), content(rank)).unwrap();
    }
    pool.wait_for_copies();
}

fn aggregate(pool: &Pool) -> Value {
    pool.json(&["aggregate", "sim", "--once", "--json"])
}

fn is_aggregated(pool: &Pool) -> bool {
    let sets = pool.json(&["ls", "sim", "--sets", "--json"]);
    let members = sets["sets"][0]["members"].as_array().unwrap();
    let count = members.iter().filter(|member| member["aggregated"] == true).count();
    assert!(count == 0 || count == RANKS, "all or none: {sets}");
    count == RANKS
}

fn stored(pool: &Pool) -> u64 {
    pool.status()["savings"]["unique_bytes"].as_u64().unwrap()
}

/// Waits until nothing but what the versions lie in is stored.
fn wait_for_collection(pool: &Pool, bytes_max: u64) {
    wait_until(&format!("at most {bytes_max} bytes are stored"), || {
        pool.run(&["gc"]);
        stored(pool) <= bytes_max
    });
}

/// Waits until the benefactors have removed what was collected: bytes of the file's middle are so many times on disk.
fn wait_for_disks(pool: &Pool, content: &[u8], copies: usize) {
    let needle = &content[content.len() / 2..content.len() / 2 + 64];
    let count = |segment: &Path| {
        let bytes = fs::read(segment).unwrap();
        bytes.windows(needle.len()).filter(|window| *window == needle).count()
    };
    wait_until(&format!("the disks hold {copies} copies"), || {
        let stores = fs::read_dir(pool.data().join("benefactors")).unwrap();
        let folders = stores.map(|store| store.unwrap().path().join("segments"));
        let segments = folders.flat_map(|folder| fs::read_dir(folder).unwrap());
        segments.map(|segment| count(&segment.unwrap().path())).sum::<usize>() == copies
    });
}

fn all_come_back(pool: &Pool, when: &str) {
    for rank in 0..RANKS {
        assert!(pool.get(&name(rank)) == content(rank), "rank {rank}, {when}");
    }
}

fn read_here_and_there(file: &Path, content: &[u8]) {
    let open = File::open(file).unwrap();
    read_handle(&open, content);
}

fn read_handle(file: &File, content: &[u8]) {
    assert_eq!(file.metadata().unwrap().len(), content.len() as u64);
    for number in 0..40_usize {
        let offset = number.wrapping_mul(2_654_435_761) % content.len();
        let expected = &content[offset..content.len().min(offset + 70_001)];
        let mut read = vec![0; expected.len()];
        file.read_exact_at(&mut read, offset as u64).unwrap();
        assert!(read == expected, "{} bytes at {offset}", expected.len());
    }
}

#[test]
fn files_of_a_set_in_a_container_are_read_like_any_others_and_take_less_room() {
    let pool = pool(3);
    write_set(&pool);
    let raw = stored(&pool);
    let reader = Mount::start(&pool, "reader");
    let before = File::open(reader.at(&name(2))).unwrap();
    let attributes: Vec<_> = (0..RANKS).map(|rank| pool.versions(&name(rank))).collect();
    let report = aggregate(&pool);
    assert_eq!((&report["sets"][0]["files"], &report["sets"][0]["container_count"]), (&4.into(), &1.into()));
    let packed = report["sets"][0]["stored_bytes"].as_u64().unwrap();
    wait_for_collection(&pool, packed + 200_000);
    assert!(stored(&pool) < raw * 7 / 10, "{} of {raw}", stored(&pool));
    assert!(is_aggregated(&pool));
    for (rank, mut before) in attributes.into_iter().enumerate() {
        let mut now = pool.versions(&name(rank));
        for version in [&mut before[0], &mut now[0]] {
            let fields = version.as_object_mut().unwrap();
            fields.remove("stored_bytes");
            fields.remove("aggregated");
        }
        assert_eq!(before, now);
    }
    all_come_back(&pool, "by get");
    for rank in 0..RANKS {
        read_here_and_there(&reader.at(&name(rank)), &content(rank));
    }
    read_handle(&before, &content(2));
    drop(before);
    let names = fs::read_dir(reader.at("sim")).unwrap().count();
    assert_eq!(names, RANKS, "a container has no name");
    let latest = pool.json(&["latest", "sim", "--json"]);
    assert_eq!((&latest["timestep"], &latest["state"]), (&1.into(), &"complete".into()), "{latest}");
    for kept in [&[][..], &[0, 1, 3]] {
        let back = pool.path("back");
        let restored = pool.json(&["restore", "sim", "--set", "1", "--json", "-o", back.to_str().unwrap()]);
        assert_eq!(restored["bytes"], RANKS * LENGTH, "{restored}");
        for rank in 0..RANKS {
            let member = &restored["members"][rank];
            assert_eq!((&member["bytes"], &member["kept"]), (&LENGTH.into(), &kept.contains(&rank).into()));
            assert!(fs::read(back.join(format!("sim.N{rank}.T1"))).unwrap() == content(rank));
        }
        // As long as it was, with another byte: only this one is fetched again.
        let damaged = fs::OpenOptions::new().write(true).open(back.join("sim.N2.T1")).unwrap();
        damaged.write_all_at(b"\xff", LENGTH as u64 - 1).unwrap();
    }
    assert_eq!(aggregate(&pool)["sets"], serde_json::json!([]), "there is nothing left to do");
    pool.ok(&["verify"]);
}

#[test]
fn a_file_in_a_container_is_written_over_in_the_mount_and_the_others_stay() {
    let pool = pool(3);
    write_set(&pool);
    aggregate(&pool);
    wait_for_collection(&pool, (LENGTH * 3) as u64);
    let other = Mount::start(&pool, "other");
    let path = other.at(&name(0));
    within("writing into the middle", move || {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&[0xee; 5000], 1_000_000).unwrap();
        file.sync_all().unwrap();
    });
    let mut expected = content(0);
    expected[1_000_000..1_005_000].fill(0xee);
    assert!(pool.get(&name(0)) == expected);
    for rank in 1..RANKS {
        assert!(pool.get(&name(rank)) == content(rank), "rank {rank}");
    }
    assert!(pool.get(&format!("{}@1", name(0))) == content(0), "the version before");
}

#[test]
fn an_aggregator_that_is_killed_anywhere_leaves_every_file_and_the_next_one_goes_on() {
    let pool = pool(3);
    write_set(&pool);
    let raw = stored(&pool);
    let mut done = 0;
    for delay_ms in (0..2000).step_by(130) {
        let mut killed = pool.command(&["aggregate", "sim", "--once", "--quiet"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        killed.kill().unwrap();
        killed.wait().unwrap();
        all_come_back(&pool, &format!("killed after {delay_ms} ms"));
        if is_aggregated(&pool) {
            done += 1;
            // Back to a set that lies in chunks of its own.
            for rank in 0..RANKS {
                pool.put(&content(rank), &name(rank));
                pool.ok(&["rm", &format!("{}@{}", name(rank), pool.versions(&name(rank))[0]["version"])]);
            }
        }
    }
    println!("{done} of the killed ones had finished");
    wait_until("the last one's session is gone", || pool.shows(|status| status["sessions"] == 0));
    wait_for_collection(&pool, raw + 200_000);
    let report = aggregate(&pool);
    assert!(is_aggregated(&pool), "{report}");
    wait_for_collection(&pool, report["sets"][0]["stored_bytes"].as_u64().unwrap() + 200_000);
    all_come_back(&pool, "in the end");
}

#[test]
fn a_manager_that_is_killed_around_the_step_leaves_every_file_and_the_step_is_taken() {
    let pool = pool(3);
    write_set(&pool);
    for delay_ms in [150, 500, 900] {
        let mut aggregator = pool.command(&["aggregate", "sim", "--once", "--quiet"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        pool.kill("manager");
        pool.ok(&["up"]);
        within("the aggregator", move || aggregator.wait()).unwrap();
        all_come_back(&pool, &format!("killed after {delay_ms} ms, before the step or after it"));
        // It may give up when benefactors take long to report what they hold; the next one doesn't.
        wait_until("the step is taken", || {
            is_aggregated(&pool) || pool.run(&["aggregate", "sim", "--once", "--quiet"]).code == 0
        });
        assert!(is_aggregated(&pool));
        all_come_back(&pool, &format!("killed after {delay_ms} ms"));
        for rank in 0..RANKS {
            pool.put(&content(rank), &name(rank));
        }
        assert!(!is_aggregated(&pool));
    }
}

#[test]
fn a_container_goes_with_the_last_file_that_lies_in_it() {
    let pool = pool(3);
    write_set(&pool);
    let report = aggregate(&pool);
    let packed = report["sets"][0]["stored_bytes"].as_u64().unwrap();
    wait_for_collection(&pool, packed + 200_000);
    for rank in 0..RANKS - 1 {
        pool.ok(&["rm", &name(rank)]);
    }
    pool.run(&["gc"]);
    assert!(stored(&pool) >= packed, "{} of {packed}", stored(&pool));
    assert!(pool.get(&name(RANKS - 1)) == content(RANKS - 1));
    pool.ok(&["rm", &name(RANKS - 1)]);
    wait_for_collection(&pool, 0);
}

#[test]
fn a_lost_benefactor_and_a_damaged_copy_cost_nothing() {
    let pool = pool(4);
    write_set(&pool);
    let report = aggregate(&pool);
    wait_for_collection(&pool, report["sets"][0]["stored_bytes"].as_u64().unwrap() + 200_000);
    pool.wait_for_copies();
    let odd = content(1);
    wait_for_disks(&pool, &odd, 2);
    let holders = pool.holders_of(&odd);
    assert_eq!(holders.len(), 2, "the container has its copies");
    let directory = |holder: u16| pool.data().join("benefactors").join(holder.to_string());
    assert_eq!(pool.damage_below(&directory(holders[0]), &odd), 1);
    all_come_back(&pool, "with a damaged copy");
    let verified = pool.run(&["verify", "--repair", "--json"]);
    assert_eq!(verified.code, 0, "{verified:?}");
    pool.wait_for_copies();
    assert_eq!(pool.holders_of(&odd).len(), 2, "a second intact copy is there again");
    pool.kill(&format!("benefactor-{}", holders[1]));
    all_come_back(&pool, "with a benefactor gone");
}

#[test]
fn damage_without_another_copy_is_an_io_error_of_the_files_that_lie_there() {
    let pool = pool(2);
    pool.policy("sim", &["redundancy=replicate:1"]);
    write_set(&pool);
    let report = aggregate(&pool);
    wait_for_collection(&pool, report["sets"][0]["stored_bytes"].as_u64().unwrap() + 200_000);
    let odd = content(1);
    wait_for_disks(&pool, &odd, 1);
    assert_eq!(pool.damage(&odd), 1, "only the container has these bytes");
    pool.fails(&["get", &name(1), "-o", "-"], 7, &["sim.N1.T1"]);
    for rank in [0, 2, 3] {
        assert!(pool.get(&name(rank)) == content(rank), "rank {rank} lies elsewhere");
    }
    let mount = Mount::start(&pool, "fresh");
    let path = mount.at(&name(1));
    let error = within("reading damaged content", move || {
        let file = File::open(path).unwrap();
        let mut begin = [0; 1000];
        file.read_exact_at(&mut begin, 0).unwrap();
        assert!(begin == content(1)[..1000], "the block before it is intact");
        file.read_exact_at(&mut begin, (LENGTH / 2) as u64).unwrap_err()
    });
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()), "{error}");
    pool.fails(&["verify"], 7, &["intact copy"]);
}

#[test]
fn sets_are_aggregated_as_they_come_until_it_is_told_to_stop() {
    let pool = pool(3);
    let mut watcher = pool.command(&["aggregate", "sim", "--quiet"]).spawn().unwrap();
    for step in 1..3 {
        for rank in 0..RANKS {
            pool.put(&content(rank), &format!("sim/sim.N{rank}.T{step}"));
        }
        wait_until(&format!("timestep {step} is aggregated"), || {
            let sets = pool.json(&["ls", "sim", "--sets", "--json"]);
            let members = sets["sets"][0]["members"].as_array().unwrap().clone();
            sets["sets"][0]["timestep"] == step && members.iter().all(|member| member["aggregated"] == true)
        });
    }
    send_signal(watcher.id(), Signal::TERM);
    let ended = within("the aggregator", move || watcher.wait()).unwrap();
    assert!(ended.success(), "{ended:?}");
    all_come_back(&pool, "by the watcher");
}

#[test]
fn a_set_whose_containers_could_fill_the_pool_is_not_packed() {
    let pool = pool(1);
    (0..RANKS).for_each(|rank| pool.put(&random_bytes(5 * MIB, rank as u64), &name(rank)));
    // Twenty mebibytes sixteen times are more than the pool was donated.
    pool.policy("sim", &["redundancy=replicate:16"]);
    pool.fails(&["aggregate", "sim", "--once"], 3, &["timestep 1 waits", "free in the pool"]);
    assert!(!is_aggregated(&pool));
}

#[test]
fn what_can_not_be_aggregated_is_told_and_left_alone() {
    let pool = pool(2);
    (0..RANKS - 1).for_each(|rank| pool.put(&content(rank), &name(rank)));
    let waiting = pool.fails(&["aggregate", "sim", "--once"], 3, &["timestep 1 waits", "rank 3"]);
    assert!(waiting.stdout.is_empty());
    pool.put(b"a note", "sim/note");
    pool.fails(&["aggregate", "sim/note", "--once"], 2, &["sim/note", "not a folder"]);
    pool.fails(&["aggregate", "nothing", "--once"], 4, &["nothing"]);
    pool.fails(&["aggregate", "sim", "--once", "--remove-raw"], 2, &["--output"]);
    pool.fails(&["aggregate", "sim", "--once", "--level", "auto"], 2, &["--level auto"]);
    let noise: Vec<Vec<u8>> = (0..RANKS).map(|rank| random_bytes(MIB, 90 + rank as u64)).collect();
    for (rank, content) in noise.iter().enumerate() {
        pool.put(content, &name(rank));
    }
    let report = aggregate(&pool);
    assert_eq!(report["sets"][0]["container_count"], 0, "{report}");
    assert!(!is_aggregated(&pool), "it would not be smaller");
}
