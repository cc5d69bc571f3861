//! Trying again: for how long, and with which pauses in between.

use std::time::Duration;

use tokio::time::Instant;

/// Something that is tried again until it succeeds or its time is over.
#[derive(Clone, Debug)]
pub struct Retry {
    limit: Duration,
    ends: Instant,
    pause: Duration,
    pause_max: Duration,
}

impl Retry {
    /// Tries for `limit`, with pauses that double from the first to the longest.
    pub fn new(limit: Duration, (pause, pause_max): (Duration, Duration)) -> Self {
        assert!(pause <= pause_max, "the first pause is the shortest");
        Self { limit, ends: Instant::now() + limit, pause, pause_max }
    }

    /// Tries for `limit`, with equal pauses.
    pub fn every(pause: Duration, limit: Duration) -> Self {
        Self::new(limit, (pause, pause))
    }

    /// What is tried got further: the time begins anew.
    pub fn progressed(&mut self) {
        self.ends = Instant::now() + self.limit;
    }

    /// Whether the time is over.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.ends
    }

    /// Pauses before the next try. False, and at once, if the time is over before the pause would be.
    pub async fn pause(&mut self) -> bool {
        match self.next() {
            Some(pause) => {
                tokio::time::sleep(pause).await;
                true
            }
            None => false,
        }
    }

    /// As [`Retry::pause`] does, on a thread that may block.
    pub fn pause_thread(&mut self) -> bool {
        match self.next() {
            Some(pause) => {
                std::thread::sleep(pause);
                true
            }
            None => false,
        }
    }

    fn next(&mut self) -> Option<Duration> {
        let pause = self.pause;
        if Instant::now() + pause > self.ends {
            return None;
        }
        self.pause = (pause * 2).min(self.pause_max);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn pauses_double_up_to_the_longest_and_end_with_the_time() {
        let mut retry = Retry::new(LONG, (Duration::from_secs(1), Duration::from_secs(3)));
        let pauses: Vec<u64> = (0..4).filter_map(|_| retry.next()).map(|pause| pause.as_secs()).collect();
        assert_eq!(pauses, [1, 2, 3, 3]);
        let mut over = Retry::every(Duration::from_millis(1), Duration::ZERO);
        assert!(over.is_over() && !over.pause_thread());
        assert_eq!(Retry::every(LONG * 2, LONG).next(), None, "the pause would be longer than the time");
    }

    #[tokio::test]
    async fn progress_begins_the_time_anew() {
        let mut retry = Retry::every(Duration::from_millis(1), LONG);
        retry.ends = Instant::now();
        assert!(!retry.pause().await);
        retry.progressed();
        assert!(retry.pause().await && !retry.is_over());
    }
}
