//! Replays of made-up traces: what holds for every policy, and that each format is read.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write as _;

use stdchk_placement::predictor::Fate;
use stdchk_replay::experiment::{self, Part};
use stdchk_replay::run::{Block, replay};
use stdchk_replay::trace;
use stdchk_replay::world::{Subset, World};

fn blocks(world: &World, part: Part) -> Vec<Vec<Block>> {
    replay(world, &experiment::settings(world, part, 1), &experiment::variants(world.fate), |_| {})
}

#[test]
fn a_seed_gives_the_same_figures_and_the_better_policy_loses_less() {
    for world in [World::volunteers(120, 60, 1), World::spot(4, 12, 1)] {
        let settings = experiment::settings(&world, Part::Test, 1);
        let report = experiment::run(&world, &[], &settings, &experiment::variants(world.fate), |_| {});
        let again = experiment::run(&world, &[], &settings, &experiment::variants(world.fate), |_| {});
        assert_eq!(serde_json::to_string(&report).unwrap(), serde_json::to_string(&again).unwrap());
        let row = |name: &str| report.rows.iter().find(|row| row.name == name).unwrap();
        assert_eq!(row("perfect store").unrecoverable, 0.0);
        assert!(row("random").unrecoverable > 0.0, "{}: nothing is ever lost", world.name);
        let learned = row("learned").unrecoverable_percent.value;
        assert!(learned < row("random").unrecoverable_percent.value, "{}", world.name);
        let falcon = row("falcon").unrecoverable_percent.value;
        assert!(learned <= falcon, "{}", world.name);
        // The made-up volunteers never lose anything with either; preempted instances do with falcon.
        assert!(world.fate == Fate::Returns || learned < falcon, "{}", world.name);
        assert!(row("learned + priced repair").unrecoverable_percent.value <= learned, "{}", world.name);
        assert!(row("learned + priced repair").repairs_per_hundred.value <= 30.0, "{}", world.name);
        assert!(
            report.rows.iter().all(|row| row.makespan.value >= row.makespan.low && row.makespan.value >= 1.0)
        );
    }
}

/// Policies that peeked into the future would choose otherwise once the future is another.
#[test]
fn nothing_before_a_time_depends_on_what_comes_after_it() {
    for world in [World::volunteers(60, 40, 2), World::spot(3, 24, 2)] {
        let settings = experiment::settings(&world, Part::Tuning, 1);
        let change = (settings.counted.0 + settings.counted.1) / 2;
        let mut other = world.clone();
        for (number, host) in other.hosts.iter_mut().enumerate() {
            host.up.retain(|span| span.0 < change);
            if let Some(last) = host.up.last_mut().filter(|last| last.1 > change) {
                last.1 = change + 1 + u32::try_from(number % 50).unwrap();
            }
        }
        // Blocks that end a checkpoint's interval before the change.
        let interval = u32::try_from(settings.interval / world.tick).unwrap();
        let before = usize::try_from((change - interval - settings.counted.0) / settings.block).unwrap();
        assert!(before > 0);
        let (one, two) = (blocks(&world, Part::Tuning), blocks(&other, Part::Tuning));
        for (one, two) in one.iter().zip(&two) {
            assert_eq!(one[..before], two[..before], "{}", world.name);
        }
        assert_ne!(one, two, "{}: the change changes nothing", world.name);
    }
}

fn zipped(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn hourly_presence_is_read_and_damage_is_told_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| fs::write(dir.path().join(name), zipped(text)).unwrap();
    put("hosts.csv.gz", "host,net24,net16,country\n0,0,0,CH\n1,0,0,??\n");
    put("up_intervals.csv.gz", "host,up_from_hour,up_to_hour_exclusive\n0,0,5\n0,7,9\n0,10,11\n1,2,12\n");
    put("snapshot_age_hours.csv.gz", "hour,age\n4,0\n5,1\n");
    let world = trace::read(dir.path(), 1).unwrap().remove(0);
    assert_eq!((world.hosts[0].up.as_slice(), world.ticks), (&[(0, 9), (10, 11)][..], 12));
    assert_eq!((world.doubtful.as_slice(), world.fate), (&[5, 6][..], Fate::Returns));
    assert_eq!(world.hosts[0].groups[0], world.hosts[1].groups[0]);
    put("up_intervals.csv.gz", "host,up_from_hour,up_to_hour_exclusive\n0,5,5\n");
    let error = trace::read(dir.path(), 1).unwrap_err().to_string();
    assert!(error.contains("up_intervals.csv.gz") && error.contains("line 2"), "{error}");
}

#[test]
fn zones_logs_and_archives_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let put = |folder: &str, name: &str, bytes: &[u8]| {
        fs::create_dir_all(dir.path().join(folder)).unwrap();
        fs::write(dir.path().join(folder).join(name), bytes).unwrap();
    };
    let read = |folder: &str| trace::read(&dir.path().join(folder), 1);
    put("spot", "us-west-2a_v100_1.json", br#"{"metadata":{"gap_seconds":300},"data":[0,2,2,1]}"#);
    put("spot", "us-west-2b_v100_1.json", br#"{"metadata":{"gap_seconds":300},"data":[1,1,1,1,1]}"#);
    let spot = read("spot").unwrap().remove(0);
    assert_eq!((spot.hosts.len(), spot.ticks, spot.tick, spot.fate), (3, 5, 300, Fate::Gone));
    assert_eq!(spot.doubtful, [4], "the end of a zone's record is no failure");
    put("spot", "us-west-2c_v100_1.json", br#"{"metadata":{"gap_seconds":60},"data":[1]}"#);
    assert!(read("spot").unwrap_err().to_string().contains("us-west-2c"));

    put("log", "a.csv", b"0,add,node1\n60000,add,node2\n120000,remove,node1\n600000,remove,node2\n");
    put(
        "log",
        "b.txt",
        b"[0, \"add\", {\"nodes\": [\"x\", \"y\"]}]\n[300500, \"remove\", {\"nodes\": [\"x\"]}]\n",
    );
    put("log", "c.txt", b"2021-12-11, 11:11:30, 55\n");
    let logs = read("log").unwrap();
    assert_eq!(logs.iter().map(|world| world.hosts.len()).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(logs[0].hosts[0].up, [(0, 2)]);
    assert_eq!(logs[1].hosts[0].up, [(0, 5)]);

    let table = "event_id component node platform name type start stop reason\n0 0 1 3 a 1 0 7200 1\n1 0 1 3 a 0 7200 10800 1\n\
                 2 0 1 3 a 1 10800 36000 1\n3 0 2 3 b 1 0 36000 1\n";
    put("archive", "event_trace.tab", table.as_bytes());
    let archive = read("archive").unwrap().remove(0);
    assert_eq!(archive.hosts[0].up, [(0, 2), (3, 10)]);
    put("none", "readme.md", b"nothing");
    assert!(read("none").unwrap().is_empty());
}

#[test]
fn a_subset_without_hosts_is_empty() {
    let world = World::spot(1, 1, 1).subset(Subset::Churny, Subset::All);
    assert!(world.hosts.is_empty());
}
