//! The aggregator as users meet it: complete sets become containers, raw files go only then, and killing it anywhere loses
//! nothing.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use stdchk_tests::{command, wait_until};

use crate::pack::Place;

pub(crate) const RANKS: u64 = 4;

pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// One timestep of all ranks: `.npy` of a smooth field, under names of the paper's convention.
pub(crate) fn set(step: u32) -> Files {
    let file = |rank: u64| {
        let literal = "{'descr': '<f8', 'fortran_order': False, 'shape': (64, 64), }";
        let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        bytes.extend(format!("{literal:<117}\n").into_bytes());
        let moved = f64::from(step) + f64::from(u32::try_from(rank).unwrap()) / 10.0;
        bytes.extend((0..64 * 64).flat_map(|n| (f64::from(n) / 200.0 + moved).sin().to_le_bytes()));
        (format!("wave.N{rank}.T{step}"), bytes)
    };
    (0..RANKS).map(file).collect()
}

pub(crate) fn write(place: &Place, files: &Files) {
    for (name, bytes) in files {
        place.file(&format!("run/{name}"), bytes);
    }
}

/// The arguments for a folder of files that nobody writes to any more.
const ONCE: [&str; 9] = ["aggregate", "run", "-o", "sink", "--ranks", "4", "--settle", "0", "--once"];

fn once(more: &[&'static str]) -> Vec<&'static str> {
    [&ONCE, more].concat()
}

pub(crate) fn raw_is_there(place: &Place, files: &Files) -> bool {
    files
        .iter()
        .all(|(name, bytes)| fs::read(place.path(&format!("run/{name}"))).is_ok_and(|raw| raw == *bytes))
}

/// The set comes back from its two containers.
fn aggregate_is_there(place: &Place, step: u32, files: &Files) -> bool {
    let containers = [1, 2].map(|number| format!("sink/step-{step}.{number}of2.pack"));
    if !containers.iter().all(|container| place.path(container).exists()) {
        return false;
    }
    for container in &containers {
        place.ok(&["unpack", container, "-o", "back"]);
    }
    files.iter().all(|(name, bytes)| fs::read(place.path(&format!("back/{name}"))).unwrap() == *bytes)
}

#[test]
fn complete_sets_become_containers_and_incomplete_ones_wait() {
    let place = Place::new();
    let (first, mut second) = (set(10), set(20));
    second.remove("wave.N3.T20");
    write(&place, &first);
    write(&place, &second);
    place.file("run/log.txt", b"no checkpoint");
    let ended = place.run(&once(&["--containers", "2", "--remove-raw", "--json"]));
    assert_eq!(ended.code, 3, "one set is not complete: {ended:?}");
    let report = ended.json();
    assert_eq!(report["sets"].as_array().unwrap().len(), 1);
    assert_eq!(report["sets"][0]["timestep"], 10);
    assert_eq!(report["sets"][0]["files"], RANKS);
    assert_eq!(report["removed"], RANKS);
    assert_eq!(report["waiting"][0]["timestep"], 20);
    assert!(aggregate_is_there(&place, 10, &first));
    assert!(!raw_is_there(&place, &first));
    assert!(raw_is_there(&place, &second));
    assert!(place.path("run/log.txt").exists());

    // The missing rank comes: now the second set is complete, and the first is left alone.
    write(&place, &set(20));
    let report = place.json(&once(&["--containers", "2", "--json"]));
    assert_eq!(report["sets"].as_array().unwrap().len(), 1);
    assert!(aggregate_is_there(&place, 20, &set(20)));
    assert!(raw_is_there(&place, &set(20)), "without --remove-raw they stay");
}

#[test]
fn a_set_that_is_written_again_is_aggregated_again() {
    let place = Place::new();
    write(&place, &set(10));
    place.ok(&once(&["--containers", "2"]));
    let other: Files = set(10).into_keys().zip(set(11).into_values()).collect();
    write(&place, &other);
    place.ok(&once(&["--containers", "2", "--remove-raw"]));
    assert!(aggregate_is_there(&place, 10, &other));
    assert!(!raw_is_there(&place, &other));
}

#[test]
fn killed_anywhere_it_leaves_the_raw_set_or_the_aggregate() {
    const KILLS: u32 = 12;
    let arguments = once(&["--containers", "2", "--remove-raw"]);
    let files = set(10);
    let mut whole = Duration::ZERO;
    for kill in 0..=KILLS {
        let place = Place::new();
        write(&place, &files);
        let mut command = command(&arguments);
        command.current_dir(place.path("")).stdout(Stdio::null()).stderr(Stdio::null());
        let started = Instant::now();
        let mut running = command.spawn().unwrap();
        if kill == 0 {
            // The first one runs to its end, to know how long that takes.
            assert!(running.wait().unwrap().success());
            whole = started.elapsed();
        } else {
            std::thread::sleep(whole * kill / KILLS);
            running.kill().unwrap();
            running.wait().unwrap();
        }
        let (raw, aggregate) = (raw_is_there(&place, &files), aggregate_is_there(&place, 10, &files));
        assert!(raw || aggregate, "killed after {kill} of {KILLS}");
        // Started again, it goes on to the end and leaves nothing half done.
        place.ok(&arguments);
        assert!(aggregate_is_there(&place, 10, &files), "killed after {kill} of {KILLS}");
        let left = fs::read_dir(place.path("run")).unwrap().count();
        assert_eq!(left, 0, "raw files are left, killed after {kill} of {KILLS}");
        let in_sink = fs::read_dir(place.path("sink")).unwrap().count();
        assert_eq!(in_sink, 3, "two containers and the lock, killed after {kill} of {KILLS}");
    }
}

/// A process that doesn't outlive its test.
pub(crate) struct Running(pub(crate) std::process::Child);

impl Running {
    /// SIGTERM.
    pub(crate) fn terminate(&mut self) {
        self.signal("-TERM");
    }

    pub(crate) fn signal(&mut self, signal: &str) {
        let told =
            std::process::Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap();
        assert!(told.success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn it_waits_for_sets_and_ends_when_told() {
    let place = Place::new();
    fs::create_dir(place.path("run")).unwrap();
    let arguments = ["aggregate", "run", "-o", "sink", "--ranks", "4", "--settle", "0.1"];
    let mut command = command(&arguments);
    command.current_dir(place.path("")).stderr(Stdio::null());
    let mut running = Running(command.spawn().unwrap());
    for step in [10, 20] {
        write(&place, &set(step));
        let container = place.path(&format!("sink/step-{step}.1of1.pack"));
        wait_until("the set is aggregated", || container.exists());
    }
    place.fails(&once(&[]), 2, "another aggregator");
    running.terminate();
    assert!(running.0.wait().unwrap().success(), "being told to stop is its proper end");
}
