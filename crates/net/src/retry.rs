//! Trying again: for how long, and with which pauses in between.

use std::time::Duration;

use tokio::time::Instant;

/// Something that is tried again until it succeeds or its time is over.
#[derive(Clone, Debug)]
pub struct Retry {
    begun: Instant,
    limit: Duration,
    /// The next pause, unless less than that is left.
    pause: Duration,
    /// The first pause and the longest.
    pauses: (Duration, Duration),
}

impl Retry {
    /// Tries for `limit`, with pauses that double from the first to the longest.
    pub fn new(limit: Duration, pauses: (Duration, Duration)) -> Self {
        assert!(pauses.0 <= pauses.1, "the first pause is the shortest");
        Self { begun: Instant::now(), limit, pause: pauses.0, pauses }
    }

    /// Tries for `limit`, with equal pauses.
    pub fn every(pause: Duration, limit: Duration) -> Self {
        Self::new(limit, (pause, pause))
    }

    /// Tries for ever, with pauses that double from the first to the longest.
    pub fn endless(pauses: (Duration, Duration)) -> Self {
        Self::new(Duration::MAX, pauses)
    }

    /// What is tried got further: the time and the pauses begin anew.
    pub fn progressed(&mut self) {
        *self = Self::new(self.limit, self.pauses);
    }

    /// Whether the time is over.
    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Pauses before the next try, which is the last one if the pause ends with the time. False, and at once, if the time is over.
    pub async fn pause(&mut self) -> bool {
        let Some(pause) = self.next() else { return false };
        tokio::time::sleep(pause).await;
        true
    }

    /// Pauses before the next try as [`Retry::pause`] does, on a thread that may block.
    pub fn pause_thread(&mut self) -> bool {
        let Some(pause) = self.next() else { return false };
        std::thread::sleep(pause);
        true
    }

    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.begun.elapsed())
    }

    fn next(&mut self) -> Option<Duration> {
        let (left, pause) = (self.left(), self.pause);
        self.pause = (pause * 2).min(self.pauses.1);
        (!left.is_zero()).then(|| pause.min(left))
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
        let last = Retry::every(LONG * 2, LONG).next().unwrap();
        assert!(LONG - last < Duration::from_secs(60) && last <= LONG, "the last pause ends with the time");
    }

    #[tokio::test]
    async fn progress_begins_the_time_anew() {
        let mut retry = Retry::every(Duration::from_millis(1), LONG);
        retry.begun -= LONG;
        assert!(!retry.pause().await);
        retry.progressed();
        assert!(retry.pause().await && !retry.is_over());
    }
}
