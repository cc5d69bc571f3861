//! Sets coded against earlier ones: never further than told, never where it doesn't pay, and no base goes that another
//! container needs.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::pack::Place;

const ELEMENTS: u64 = 40_000;

fn noise(seed: u64) -> u64 {
    let mixed = (seed ^ (seed >> 31)).wrapping_mul(0x7fb5_d329_728e_a185);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x81da_def4_bc2d_d44d) >> 8
}

/// Two ranks' tensors of random numbers, of which a fiftieth is drawn anew for each step, as `life` counts them.
pub(crate) fn set(step: u64, life: u64) -> BTreeMap<String, Vec<u8>> {
    let file = |rank: u64| {
        let literal = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({ELEMENTS},), }}");
        let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        bytes.extend(format!("{literal:<117}\n").into_bytes());
        for element in 0..ELEMENTS {
            let last_drawn =
                (1..=life).rev().find(|life| noise(element * 100 + life).is_multiple_of(50)).unwrap_or(0);
            let mantissa = u32::try_from(noise(element * 1000 + last_drawn * 10 + rank) & 0x7f_ffff).unwrap();
            bytes.extend(f32::from_bits(0x3f80_0000 | mantissa).to_le_bytes());
        }
        (format!("net.N{rank}.T{step}"), bytes)
    };
    (0..2).map(file).collect()
}

pub(crate) fn write(place: &Place, files: &BTreeMap<String, Vec<u8>>) {
    for (name, bytes) in files {
        place.file(&format!("run/{name}"), bytes);
    }
}

/// Aggregates what is there; the sets that were, as reported.
fn aggregated(place: &Place) -> Vec<Value> {
    let options = ["--ranks", "2", "--settle", "0", "--once", "--json", "--across-time", "2"];
    let report = place.json(&[&["aggregate", "run", "-o", "sink", "--remove-raw"], &options[..]].concat());
    report["sets"].as_array().unwrap().clone()
}

fn container(step: u64) -> String {
    format!("sink/step-{step}.1of1.pack")
}

fn comes_back(place: &Place, step: u64, files: &BTreeMap<String, Vec<u8>>) -> bool {
    place.ok(&["unpack", &container(step), "-o", "back"]);
    files.iter().all(|(name, bytes)| fs::read(place.path(&format!("back/{name}"))).unwrap() == *bytes)
}

fn kept_bases(place: &Place) -> usize {
    let names = fs::read_dir(place.path("sink")).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with("base-")).count()
}

#[test]
fn a_set_needs_at_most_one_other_which_serves_no_more_than_told() {
    let place = Place::new();
    let sets: Vec<_> = (1..=4).map(|step| set(step, step)).collect();
    let mut with_base = Vec::new();
    for files in &sets {
        write(&place, files);
        let done = aggregated(&place);
        assert_eq!(done.len(), 1);
        with_base.push(done[0]["with_base"].as_u64().unwrap());
    }
    assert_eq!(with_base, [0, 1, 1, 0], "two sets against one, then a new one to start from");
    let bytes = |step: u64| fs::metadata(place.path(&container(step))).unwrap().len();
    assert!(bytes(2) * 4 < bytes(1), "{} {}", bytes(2), bytes(1));
    for (step, files) in (1..).zip(&sets) {
        assert!(comes_back(&place, step, files), "timestep {step}");
    }
    // Alone it is of no use, and says what it misses; named, the base may lie anywhere.
    fs::rename(place.path(&container(1)), place.path("elsewhere")).unwrap();
    place.fails(&["unpack", &container(2), "-o", "back"], 2, "--base");
    place.ok(&["unpack", &container(2), "--base", "elsewhere", "-o", "back"]);
    // A set whose base is gone counts as not aggregated, so its files, written again, are packed and not just removed.
    write(&place, &sets[1]);
    assert_eq!(aggregated(&place)[0]["with_base"], 0);
    assert!(comes_back(&place, 2, &sets[1]));
}

#[test]
fn a_base_whose_timestep_is_written_again_stays_as_long_as_it_is_needed() {
    let place = Place::new();
    for step in [1, 2] {
        write(&place, &set(step, step));
        aggregated(&place);
    }
    let again = set(1, 7);
    write(&place, &again);
    assert_eq!(aggregated(&place).len(), 1);
    assert_eq!(kept_bases(&place), 1);
    assert!(comes_back(&place, 1, &again));
    assert!(comes_back(&place, 2, &set(2, 2)));

    // The one that needed it is written again, too, and finds the new one.
    write(&place, &set(2, 8));
    assert_eq!(aggregated(&place)[0]["with_base"], 1);
    assert_eq!(kept_bases(&place), 0);
    assert!(comes_back(&place, 2, &set(2, 8)));
}

#[test]
fn sets_that_have_little_in_common_need_no_other() {
    let place = Place::new();
    for step in 1..=3 {
        let files = set(step, 0).into_iter().map(|(name, bytes)| {
            let (header, numbers) = bytes.split_at(128);
            let salted = numbers.chunks_exact(4).enumerate().flat_map(|(index, _)| {
                u32::try_from(noise(step * 1_000_000 + index as u64) & 0x3fff_ffff).unwrap().to_le_bytes()
            });
            (name, header.iter().copied().chain(salted).collect())
        });
        write(&place, &files.collect());
        assert_eq!(aggregated(&place)[0]["with_base"], 0, "timestep {step}");
    }
    fs::remove_file(place.path(&container(1))).unwrap();
    place.ok(&["unpack", &container(2), "-o", "back"]);
}
