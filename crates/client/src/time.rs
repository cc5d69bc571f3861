//! Times as the pool has them: nanoseconds since 1970, UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stdchk_model::message::manager::TimeNs;

/// The present.
pub fn now() -> TimeNs {
    time_ns(SystemTime::now())
}

/// A time of the system; of one before 1677 or after 2262, the nearest that there is.
pub fn time_ns(time: SystemTime) -> TimeNs {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => TimeNs::try_from(after.as_nanos()).unwrap_or(TimeNs::MAX),
        Err(before) => TimeNs::try_from(before.duration().as_nanos()).map_or(TimeNs::MIN, |ns| -ns),
    }
}

/// A time of the pool as the system has it.
pub fn system_time(time: TimeNs) -> SystemTime {
    let distance = Duration::from_nanos(time.unsigned_abs());
    if time < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_the_epoch_come_back_as_they_were() {
        for time in
            [0, 1, -1, 1_700_000_000_123_456_789, -2_000_000_000_987_654_321, TimeNs::MIN, TimeNs::MAX]
        {
            assert_eq!(time_ns(system_time(time)), time);
        }
    }

    #[test]
    fn times_beyond_what_can_be_said_are_the_nearest() {
        assert_eq!(time_ns(UNIX_EPOCH + Duration::from_secs(1 << 40)), TimeNs::MAX);
        assert_eq!(time_ns(UNIX_EPOCH - Duration::from_secs(1 << 40)), TimeNs::MIN);
    }
}
