//! CPU time and memory of processes, from /proc.

use std::fs;

use crate::Error;

/// CPU seconds that this process has used so far, its finished children included.
fn own_seconds() -> f64 {
    of_stat("/proc/self/stat", true).unwrap_or(0.0)
}

/// CPU seconds that these processes have used so far.
fn seconds_of(pids: &[u32]) -> f64 {
    pids.iter().filter_map(|pid| of_stat(&format!("/proc/{pid}/stat"), false)).sum()
}

/// CPU seconds of this process and of these.
pub fn seconds_with(pids: &[u32]) -> f64 {
    own_seconds() + seconds_of(pids)
}

/// Highest resident memory of a process, bytes.
pub fn peak_memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok().map(|kilobytes| kilobytes << 10)
}

fn of_stat(path: &str, children: bool) -> Option<f64> {
    let stat = fs::read_to_string(path).ok()?;
    // Fields 14 to 17 of proc(5), counted behind the command in parentheses, which may hold blanks.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<f64>().ok();
    let own = next()? + next()?;
    let of_children = if children { next()? + next()? } else { 0.0 };
    Some((own + of_children) / rustix::param::clock_ticks_per_second() as f64)
}

/// Seconds that all processors worked, and that they had, since the start of the machine.
pub fn of_all() -> Result<(f64, f64), Error> {
    let text = fs::read_to_string("/proc/stat")?;
    let numbers = text.lines().next().unwrap_or_default().split_whitespace().skip(1).take(8);
    let ticks = numbers.map(str::parse).collect::<Result<Vec<f64>, _>>();
    // user, nice, system, idle, iowait, irq, softirq, steal (proc(5)).
    match ticks.map_err(|error| Error(format!("/proc/stat: {error}")))?[..] {
        [user, nice, system, idle, waiting, irq, softirq, stolen] => {
            let working = user + nice + system + irq + softirq + stolen;
            Ok((working, working + idle + waiting))
        }
        _ => Err(Error("/proc/stat doesn't say what the processors did".to_owned())),
    }
}

/// Share of the processors' time that was used between two readings.
pub fn busy(before: (f64, f64), after: (f64, f64)) -> f64 {
    (after.0 - before.0) / (after.1 - before.1)
}
