//! Where new files go and why, and how often a job should take checkpoints.

use serde::Serialize;
use stdchk_model::message::manager::{Pace, Placement};
use stdchk_placement::interval::{daly, young};

use crate::error::{About, Result};
use crate::namespace;
use crate::pool::Pool;
use crate::target::Target;

/// Advice on the time between two checkpoints.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Advice {
    /// The folder.
    pub app: String,
    /// What the manager knows.
    #[serde(flatten)]
    pub pace: Pace,
    /// Machines that the job runs on.
    pub hosts: u32,
    /// Mean time to failure of one of them, seconds; absent: this machine was never seen to fail.
    pub mean_time_to_failure_s: Option<f64>,
    /// Young's interval, seconds; absent: something of it isn't known yet.
    pub young_s: Option<f64>,
    /// Daly's interval, seconds.
    pub daly_s: Option<f64>,
    /// What isn't known yet, in words.
    pub unknown: Vec<String>,
}

impl Advice {
    /// By what the manager knows, for a job on so many machines that each fail as this one does, or `mean_time_to_failure_s` after each
    /// other.
    #[must_use]
    pub fn new(app: String, pace: Pace, hosts: u32, mean_time_to_failure_s: Option<f64>) -> Self {
        let seen = (pace.failures > 0).then(|| pace.up_s as f64 / f64::from(pace.failures));
        let mean_time_to_failure_s = mean_time_to_failure_s.or(seen);
        let mut unknown = Vec::new();
        if pace.cost_ms.is_none() {
            let why = "how long a checkpoint takes: the folder has no complete set that was written under the manager's eyes";
            unknown.push(why.to_owned());
        }
        if mean_time_to_failure_s.is_none() {
            unknown.push(match pace.up_s {
                0 => "how often this machine fails: the manager has not seen it write yet".to_owned(),
                up_s => format!("how often this machine fails: it has not failed in {} minutes", up_s / 60),
            });
        }
        let known = pace.cost_ms.zip(mean_time_to_failure_s);
        // A job fails when any of its machines does.
        let known =
            known.map(|(cost_ms, mean)| (cost_ms.max(1) as f64 / 1e3, mean / f64::from(hosts.max(1))));
        Self {
            app,
            pace,
            hosts,
            mean_time_to_failure_s,
            young_s: known.map(|(cost, mean)| young(cost, mean)),
            daly_s: known.map(|(cost, mean)| daly(cost, mean)),
            unknown,
        }
    }
}

impl Pool {
    /// How benefactors are chosen for a file or folder, for clients on this machine, and why.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::Code::NotFound): there is no such thing.
    pub async fn placement(&self, target: &Target) -> Result<Placement> {
        let ino = self.attr(target).await?.ino;
        self.client.placement(ino).await.about(target.shown())
    }

    /// How often a job on `hosts` machines should take checkpoints into a folder; `mean_time_to_failure_s`: of each, if that is known better
    /// than the manager has seen of this machine.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::Code::NotFound): there is no such folder.
    pub async fn advise(
        &self,
        app: &Target,
        hosts: u32,
        mean_time_to_failure_s: Option<f64>,
    ) -> Result<Advice> {
        let ino = namespace::resolve_folder(&self.client, app).await?.ino;
        let pace = self.client.pace(ino).await.about(app.shown())?;
        Ok(Advice::new(app.path(), pace, hosts, mean_time_to_failure_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_says_what_it_does_not_know_and_follows_the_formulas_where_it_knows() {
        let advise = |pace, hosts, mean| Advice::new("app".to_owned(), pace, hosts, mean);
        let nothing = advise(Pace::default(), 1, None);
        assert_eq!((nothing.young_s, nothing.daly_s, nothing.unknown.len()), (None, None, 2));
        let pace = Pace { sets: 3, cost_ms: Some(50_000), interval_ms: None, failures: 2, up_s: 20_000 };
        let known = advise(pace, 1, None);
        assert!(known.unknown.is_empty() && (known.young_s.unwrap() - 1000.0).abs() < 1e-6);
        assert!((known.daly_s.unwrap() - daly(50.0, 10_000.0)).abs() < 1e-9);
        // Four machines fail four times as often.
        assert!((advise(pace, 4, None).young_s.unwrap() - 500.0).abs() < 1e-6);
        let given = advise(Pace { failures: 0, ..pace }, 1, Some(40_000.0));
        assert!((given.young_s.unwrap() - 2000.0).abs() < 1e-6);
    }
}
