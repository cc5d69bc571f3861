//! How often to take checkpoints: Young, Daly, and a look one step ahead.
//!
//! Pure formulas, for advice. All times are seconds.

/// Young's interval (CACM 1974): the work between two checkpoints that cost `cost` each, under a mean time to failure.
#[must_use]
pub fn young(cost: f64, mean_time_to_failure: f64) -> f64 {
    (2.0 * cost * mean_time_to_failure).sqrt()
}

/// Daly's higher-order interval (FGCS 2006, equation 37); the mean time to failure itself where a checkpoint costs more than twice that.
#[must_use]
pub fn daly(cost: f64, mean_time_to_failure: f64) -> f64 {
    if cost >= 2.0 * mean_time_to_failure {
        return mean_time_to_failure;
    }
    let ratio = cost / (2.0 * mean_time_to_failure);
    young(cost, mean_time_to_failure) * (1.0 + ratio.sqrt() / 3.0 + ratio / 9.0) - cost
}

/// Where a job stands between two checkpoints.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Standing {
    /// Work since the last checkpoint, seconds.
    pub worked: f64,
    /// Work that was to be expected lost so far in this interval, seconds: the sum over its steps of
    /// [`Standing::lost_in_a_step`].
    pub lost: f64,
}

impl Standing {
    /// Work that the next step is expected to lose if no checkpoint is taken before it, seconds.
    #[must_use]
    pub fn lost_in_a_step(&self, failure_probability: f64) -> f64 {
        failure_probability * self.worked
    }

    /// Whether to take a checkpoint now rather than one step later: the one-step look-ahead of the FALCON group (Ren, Eigenmann,
    /// Bagchi, HPDC 2007), which weighs a checkpoint now against one after the next step. That paper isn't at hand; this is the comparison as
    /// FALCON's section 2 describes it, written as cost per second of work: checkpointing now costs (cost + lost) / worked, a
    /// step later (cost + lost + what the step loses) / (worked + step). `failure_probability` is that of the host failing within
    /// the step. Under a constant hazard it is Young's interval.
    #[must_use]
    pub fn is_due(&self, cost: f64, step: f64, failure_probability: f64) -> bool {
        let now = (cost + self.lost) / self.worked;
        let later = (cost + self.lost + self.lost_in_a_step(failure_probability)) / (self.worked + step);
        self.worked > 0.0 && now <= later
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn young_and_daly_by_hand() {
        assert!((young(50.0, 10_000.0) - 1000.0).abs() < 1e-9);
        // sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C
        assert!((daly(50.0, 10_000.0) - (1000.0 * (1.0 + 0.05 / 3.0 + 0.0025 / 9.0) - 50.0)).abs() < 1e-9);
        assert_eq!(daly(300.0, 100.0), 100.0);
    }

    /// Work until the look-ahead takes a checkpoint, with the hazard of each step given.
    fn taken_after(cost: f64, step: f64, hazard: impl Fn(f64) -> f64) -> f64 {
        let mut standing = Standing { worked: 0.0, lost: 0.0 };
        while !standing.is_due(cost, step, hazard(standing.worked)) {
            standing.lost += standing.lost_in_a_step(hazard(standing.worked));
            standing.worked += step;
            assert!(standing.worked < 1e6, "it never takes one");
        }
        standing.worked
    }

    #[test]
    fn the_look_ahead_is_youngs_interval_under_a_constant_hazard_and_hurries_before_a_bad_hour() {
        let constant = taken_after(50.0, 1.0, |_| 1.0 / 10_000.0);
        assert!((constant - young(50.0, 10_000.0)).abs() < 10.0, "{constant}");
        let bad_hour = taken_after(50.0, 1.0, |worked| if worked >= 400.0 { 1.0 / 500.0 } else { 1e-5 });
        assert!((400.0..=401.0).contains(&bad_hour), "{bad_hour}");
        assert!(taken_after(50.0, 1.0, |_| 1.0 / 100_000.0) > 2.0 * constant);
    }
}
