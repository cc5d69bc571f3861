//! Memory: however large a file is, every process of the pool stays within the budget that it states (I8).

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Stdio};

use stdchk_tests::{Pool, random_bytes};

/// Far more than any process may hold.
const FILE_BYTES: usize = 256 << 20;
/// What a test reads only once it has looked at the memory of who serves it: more than fits into a pipe.
const LAST_BYTES: usize = 1 << 20;
/// The budgets of `docs/ARCHITECTURE.md`: a command's window of 8 MiB, its cache of 32 MiB, its transfers of 24 MiB and 8 MiB
/// of gathered pieces, or a benefactor's 64 MiB of blocks; and on top of them the program, its threads and what the
/// allocator keeps.
const PEAK_BYTES_MAX: u64 = 128 << 20;

/// Most memory that a process ever had (proc_pid_status(5), `VmHWM`), bytes.
fn peak_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn within_budget(what: &str, pid: u32) {
    let peak = peak_bytes(pid);
    assert!(peak < PEAK_BYTES_MAX, "{what} had {} MiB", peak >> 20);
}

fn start(pool: &Pool, arguments: &[&str]) -> Child {
    let mut command = pool.command(&[arguments, &["--window", "8MiB", "--quiet"]].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_file_larger_than_all_memory_budgets_goes_through_without_filling_them() {
    let pool = Pool::up(2, &[]);
    pool.policy("app", &["redundancy=replicate:1"]);
    let content = random_bytes(FILE_BYTES, 1);

    let mut put = start(&pool, &["put", "-", "app/x"]);
    put.stdin.as_mut().unwrap().write_all(&content).unwrap();
    within_budget("put", put.id());
    assert!(put.wait().unwrap().success());

    let mut get = start(&pool, &["get", "app/x", "-o", "-"]);
    let mut back = vec![0; FILE_BYTES - LAST_BYTES];
    let stdout = get.stdout.as_mut().unwrap();
    stdout.read_exact(&mut back).unwrap();
    within_budget("get", get.id());
    get.stdout.as_mut().unwrap().read_to_end(&mut back).unwrap();
    assert!(get.wait().unwrap().success() && back == content);

    pool.pids().iter().for_each(|(role, pid)| within_budget(role, *pid));
}
