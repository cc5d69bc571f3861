//! Memory: packing keeps to its budget (I8), by as many threads as are asked for.
//!
//! Relies on proc_pid_status(5) of this very process, so it is the only test here.
#![expect(clippy::unwrap_used, reason = "a test that meets the unexpected fails here")]

use std::fs;

use stdchk_aggregate::{Packing, inputs_of, pack};
use tempfile::TempDir;

const BUDGET: u64 = 192 << 20;
/// The program, its threads and what the allocator keeps, bytes.
const BESIDES: u64 = 32 << 20;
/// The set: enough for a block of each thread.
const SET_BYTES: usize = 20 << 20;

/// Most memory that this process ever had, bytes.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn what_is_coded_by_many_threads_keeps_to_the_budget() {
    let folder = TempDir::new().unwrap();
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut text = String::new();
    while text.len() < SET_BYTES {
        text += &format!("{:x} ", next() % 50_000);
    }
    fs::write(folder.path().join("table"), &text).unwrap();
    drop(text);
    let inputs = inputs_of(&[folder.path().to_owned()]).unwrap().files;
    let packing = Packing { budget: BUDGET, threads: 16, ..Packing::default() };
    let packed = pack(&inputs, &folder.path().join("container"), &packing).unwrap();
    assert!(packed.stored_bytes < packed.raw_bytes / 5 * 3);
    let peak = peak_bytes();
    assert!(peak < BUDGET + BESIDES, "{} MiB", peak >> 20);
}
