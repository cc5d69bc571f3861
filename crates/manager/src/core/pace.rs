//! What is known for advice on how often to take checkpoints: how long the newest sets took to write, and how often their host failed.
//!
//! All times are by the manager's own life, so that what the calendar does changes none of them.

use stdchk_model::message::manager::{CheckpointSet, ManagerReply, Pace, SetState};
use stdchk_model::{Ino, MachineId};
use stdchk_placement::history::State;

use super::{Answer, Core};

/// Sets that are looked at, the newest ones: a job may take longer for each than it did at first.
const SETS_MAX: usize = 16;

impl Core {
    /// What is known for a folder, and for clients on a machine.
    pub(super) fn pace(&self, folder: Ino, machine: MachineId) -> Answer {
        let sets = self.sets(folder)?;
        let complete = sets.iter().filter(|set| set.state == SetState::Complete).take(SETS_MAX);
        let times: Vec<(u64, u64)> = complete.filter_map(|set| self.written(set)).collect();
        let costs = times.iter().map(|(begin, end)| end.saturating_sub(*begin)).collect();
        let ends = times.windows(2).filter_map(|pair| match pair {
            [(later, _), (earlier, _)] => later.checked_sub(*earlier),
            _ => None,
        });
        let (mut failures, mut up_s, mut was_up) = (0, 0, false);
        let past = self.past(self.host_on(machine)).unwrap_or_default();
        for span in past.spans(0, u64::MAX) {
            let is_up = span.state.serves();
            up_s += if is_up { span.to - span.from } else { 0 };
            failures += u32::from(was_up && span.state == State::Unavailable);
            was_up = is_up;
        }
        Ok(ManagerReply::Pace(Pace {
            sets: u32::try_from(times.len()).unwrap_or(u32::MAX),
            interval_ms: middle(ends.collect()),
            cost_ms: middle(costs),
            failures,
            up_s,
        }))
    }

    /// When the first member of a set was opened and the last one committed, milliseconds of the manager's life; `None`: of one of them
    /// that isn't known, since the manager was started anew while it was written.
    fn written(&self, set: &CheckpointSet) -> Option<(u64, u64)> {
        let mut span: Option<(u64, u64)> = None;
        for member in &set.members {
            let version = self.namespace.file(member.ino).ok()?.versions.get(member.version)?;
            let begin = version.lived_ms.checked_sub(version.written_ms?)?;
            let (first, last) = span.unwrap_or((begin, version.lived_ms));
            span = Some((first.min(begin), last.max(version.lived_ms)));
        }
        span
    }
}

/// The one in the middle.
fn middle(mut all: Vec<u64>) -> Option<u64> {
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}
