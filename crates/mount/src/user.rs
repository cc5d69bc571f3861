//! For which user the kernel makes a request, with all of its groups.
//!
//! FUSE tells user and group of a task. Its other groups stand in `/proc`, which costs some system calls; so they are remembered for a
//! moment: a program that makes many small files has the same groups for each.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use fuser::Request;
use parking_lot::Mutex;
use stdchk_model::User;
use stdchk_model::user::{GROUPS_MAX, ROOT};

use crate::caller::UNKNOWN;
use crate::proc::text_of;

/// How long groups are remembered: who was just taken into a group starts a new program before.
const REMEMBERED: Duration = Duration::from_secs(1);
/// Tasks whose groups are remembered before those are forgotten that are out of date.
const TASKS_MAX: usize = 1024;

/// The task behind a request, and its user.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Origin {
    pub task: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Origin {
    /// What FUSE says.
    pub fn of(request: &Request) -> Self {
        Self { task: request.pid(), uid: request.uid(), gid: request.gid() }
    }
}

/// The groups of tasks, as far as they were asked for lately.
#[derive(Default)]
pub(crate) struct Groups(Mutex<HashMap<Origin, (Instant, Vec<u32>)>>);

impl Groups {
    /// The user behind a request; `None`: the administrator of this machine, who may do all. Of a task that can't be seen, only the
    /// group is known that FUSE tells.
    pub fn user(&self, origin: Origin) -> Option<User> {
        let Origin { task, uid, gid } = origin;
        if uid == ROOT {
            return None;
        }
        let now = Instant::now();
        let is_fresh = |at: Instant| now.duration_since(at) < REMEMBERED;
        let mut known = self.0.lock();
        if let Some((_, others)) = known.get(&origin).filter(|(at, _)| is_fresh(*at)) {
            return Some(User { uid, gid, others: others.clone() });
        }
        let status = if task == UNKNOWN { None } else { text_of(task, "status") };
        let mut others = status.as_deref().map(others).unwrap_or_default();
        others.retain(|other| *other != gid);
        others.truncate(GROUPS_MAX - 1);
        if known.len() >= TASKS_MAX {
            known.retain(|_, (at, _)| is_fresh(*at));
        }
        known.insert(origin, (now, others.clone()));
        Some(User { uid, gid, others })
    }
}

/// The other groups that the `status` of a task tells (proc_pid_status(5)).
fn others(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.into_iter().flat_map(str::split_whitespace).filter_map(|gid| gid.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn all_groups_of_a_task_are_found_and_those_of_root_not_looked_for() {
        assert_eq!(others("Name:\tx\nGroups:\t4 24 1000 \nSigPnd:\t0\n"), [4, 24, 1000]);
        assert_eq!(others("Groups:\t\n"), [0; 0]);
        let groups = Groups::default();
        assert_eq!(groups.user(Origin { task: 1, uid: 0, gid: 0 }), None);
        let unknown = Origin { task: UNKNOWN, uid: 5, gid: 6 };
        assert_eq!(groups.user(unknown), Some(User::new(5, 6)));
    }

    #[test]
    fn a_real_program_has_the_groups_that_it_was_given() {
        if !rustix::process::geteuid().is_root() {
            // Only root gives others groups; then those of this process do.
            let own = std::process::id();
            let status = text_of(own, "status").unwrap();
            let origin = Origin { task: own, uid: 5, gid: u32::MAX };
            assert_eq!(Groups::default().user(origin).unwrap().others, others(&status));
            return;
        }
        let mut sleeping = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--groups=7001,65534,7002", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let origin = Origin { task: sleeping.id(), uid: 65534, gid: 65534 };
        let give_up = Instant::now() + Duration::from_secs(10);
        let mut found = Vec::new();
        // It changes its groups after it has begun.
        while found != [7001, 7002] && Instant::now() < give_up {
            found = Groups::default().user(origin).unwrap().others;
        }
        sleeping.kill().unwrap();
        sleeping.wait().unwrap();
        assert_eq!(found, [7001, 7002]);
    }
}
