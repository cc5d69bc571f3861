//! Whether a `close()` comes from the program, or from the kernel because the program was killed by a signal or failed.
//!
//! The kernel flushes the files of a dying process like closed ones, in the context of that process; it stays visible in
//! `/proc` until the flush is answered. What tells them apart: a process that exits carries `PF_EXITING` in its flags,
//! the low seven bits of the exit code of its process hold the signal that ended it, and the next eight the status with
//! which it ended itself. The exit code and not `PF_SIGNALED`, because in a process of several threads the kernel ends all but
//! one of them by a signal even at a normal exit. (proc_pid_stat(5); Linux, include/linux/sched.h)
//!
//! A status other than zero says that the program failed, and what it had left open was not finished: where `mpirun` is
//! killed, a thread of Open MPI ends each rank with 195 in the middle of whatever it writes. (docs/design/0004)
//!
//! Descriptors are also closed in the middle of an `execve()`, and there the kernel lets nobody read `stat` before the
//! new program is in place, which waits for our answer. So `statm` is read first, which never waits: a process that
//! still has memory is not exiting, and one that exits gives up its memory before its files. Should `stat` not come all the same,
//! the answer is given without it.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::caller::has_kill_pending;
use crate::proc::text_of;

/// Flag of a task that is exiting.
const PF_EXITING: u64 = 0x4;
/// Flag of a task that a signal ended.
const PF_SIGNALED: u64 = 0x400;
/// Bits of an exit code that hold the signal, zero at a normal exit.
const SIGNAL_BITS: i64 = 0x7f;
/// Bits of an exit code that hold the status of a program that ended itself.
const STATUS_BITS: i64 = 0xff00;
/// Fields 9, 26 and 52 of the line, counted from the first behind the command's name, which is field 3.
const FLAGS_AT: usize = 9 - 3;
const EXIT_CODE_AT: usize = 52 - 3;

/// How long `stat` is waited for: it comes at once, or not before we answer.
const STAT_PATIENCE: Duration = Duration::from_secs(1);

/// How long all closes of a program that was killed may take: what is saved in this time is there once the program is gone.
const CLOSES_PATIENCE: Duration = Duration::from_millis(400);
/// How long a killed program is remembered: longer than the kernel takes to close what it had open, one after the other.
const REMEMBERED: Duration = Duration::from_secs(10);

/// Programs that were killed and are not gone yet, since when. The kernel closes their files one after the other, and waits for
/// each: they wait as little as can be, all files together.
#[derive(Default)]
pub(crate) struct Dying(Mutex<HashMap<u32, Instant>>);

impl Dying {
    /// Comes when a task that was killed has waited for its closes for long enough.
    pub async fn has_waited(&self, task: u32) {
        tokio::time::sleep(CLOSES_PATIENCE.saturating_sub(self.note(task).elapsed())).await;
    }

    /// Whether a task was seen to have been killed.
    pub fn knows(&self, task: u32) -> bool {
        self.0.lock().get(&task).is_some_and(|since| since.elapsed() < REMEMBERED)
    }

    /// Looks whether a task has been killed and isn't gone yet, and remembers it.
    pub async fn look(&self, task: u32) -> bool {
        let killed = has_kill_pending(task) || is_killed(task).await;
        if killed {
            self.note(task);
        }
        killed
    }

    fn note(&self, task: u32) -> Instant {
        let mut tasks = self.0.lock();
        tasks.retain(|_, since| since.elapsed() < REMEMBERED);
        *tasks.entry(task).or_insert_with(Instant::now)
    }
}

/// How a program comes to close a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Closes {
    /// It does it itself, or it ends well and leaves that to the kernel.
    Properly,
    /// It ends itself with a status other than zero, and the kernel closes what it left open.
    Failing,
    /// A signal ends it.
    Killed,
}

/// Whether the task is being ended by a signal right now. `false` if it can't be seen, as from another PID namespace.
pub(crate) async fn is_killed(task: u32) -> bool {
    how_it_closes(task).await == Closes::Killed
}

/// How the task comes to close a file right now; properly if it can't be seen, as from another PID namespace.
pub(crate) async fn how_it_closes(task: u32) -> Closes {
    if !is_exiting(task) {
        return Closes::Properly;
    }
    let judged = tokio::task::spawn_blocking(move || {
        let stat = text_of(task, "stat")?;
        judge(&stat, may_see_exit_code(task))
    });
    match tokio::time::timeout(STAT_PATIENCE, judged).await {
        Ok(Ok(judged)) => judged.unwrap_or(Closes::Properly),
        Ok(Err(_)) | Err(_) => Closes::Properly,
    }
}

fn is_exiting(task: u32) -> bool {
    text_of(task, "statm").is_some_and(|memory| memory.starts_with("0 "))
}

/// The exit code of another user's process reads as zero, unless one is root.
fn may_see_exit_code(task: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::geteuid();
    own.is_root() || fs::metadata(format!("/proc/{task}")).is_ok_and(|task| task.uid() == own.as_raw())
}

fn judge(stat: &str, exit_code_counts: bool) -> Option<Closes> {
    // The command's name may hold anything, also spaces and brackets; nothing behind it does.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let flags: u64 = fields.get(FLAGS_AT)?.parse().ok()?;
    if flags & PF_EXITING == 0 {
        return Some(Closes::Properly);
    }
    if !exit_code_counts {
        return Some(if flags & PF_SIGNALED != 0 { Closes::Killed } else { Closes::Properly });
    }
    let exit_code: i64 = fields.get(EXIT_CODE_AT)?.parse().ok()?;
    Some(match (exit_code & SIGNAL_BITS, exit_code & STATUS_BITS) {
        (0, 0) => Closes::Properly,
        (0, _) => Closes::Failing,
        _ => Closes::Killed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(command: &str, flags: u64, exit_code: i64) -> String {
        let mut fields = vec!["0".to_owned(); 50];
        fields[FLAGS_AT] = flags.to_string();
        fields[EXIT_CODE_AT] = exit_code.to_string();
        format!("42 ({command}) {}", fields.join(" "))
    }

    #[test]
    fn a_running_process_is_not_killed_whatever_it_is_called() {
        let running = fs::read_to_string("/proc/self/stat").unwrap();
        assert_eq!(judge(&running, true), Some(Closes::Properly));
        assert_eq!(judge(&stat(") R 1 2", 0x400, 9), true), Some(Closes::Properly));
    }

    #[test]
    fn the_exit_code_tells_a_kill_from_an_exit_of_many_threads() {
        assert_eq!(judge(&stat("sim", PF_EXITING | PF_SIGNALED, 9), true), Some(Closes::Killed));
        assert_eq!(judge(&stat("sim", PF_EXITING, 139), true), Some(Closes::Killed));
        assert_eq!(judge(&stat("sim", PF_EXITING | PF_SIGNALED, 0), true), Some(Closes::Properly));
        assert_eq!(judge(&stat("sim", PF_EXITING, 195 << 8), true), Some(Closes::Failing));
    }

    #[test]
    fn without_the_exit_code_the_flag_counts() {
        assert_eq!(judge(&stat("sim", PF_EXITING | PF_SIGNALED, 0), false), Some(Closes::Killed));
        assert_eq!(judge(&stat("sim", PF_EXITING, 0), false), Some(Closes::Properly));
    }

    #[tokio::test]
    async fn a_task_that_is_gone_or_at_work_was_not_killed_now() {
        assert_eq!(how_it_closes(u32::MAX).await, Closes::Properly);
        assert_eq!(how_it_closes(std::process::id()).await, Closes::Properly);
    }
}
