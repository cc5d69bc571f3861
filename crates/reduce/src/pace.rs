//! `auto`: the codec under which a transfer is soonest done, chosen from what was measured on the way.
//!
//! A codec pays when all cores together make bytes fewer much faster than the sink (network and disks) takes them: then
//! fewer bytes are sent and the application waits less. On a fast sink the cores are better spent on sending, and
//! bytes are stored as they are. The numbers come from the caller; there is no clock here.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::codec::{Effort, NotAnEffort};

/// What a policy says about compression: `auto`, or always the same effort.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// Whatever makes the transfer fastest.
    #[default]
    Auto,
    /// This, however long it takes.
    Always(Effort),
}

impl FromStr for Compression {
    type Err = NotAnEffort;

    fn from_str(text: &str) -> Result<Self, NotAnEffort> {
        match text.trim() {
            "" | "auto" => Ok(Self::Auto),
            other => other.parse().map(Self::Always),
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Always(effort) => effort.fmt(f),
        }
    }
}

/// Efforts that `auto` chooses from, the strongest first, each with the bytes that one core takes in a second on data
/// that shrinks, as long as nothing was measured.
const EFFORTS: [(Effort, f64); 3] =
    [(Effort::Zstd(3), 150e6), (Effort::Zstd(1), 300e6), (Effort::Lz4, 500e6)];
/// How much faster than the sink all cores together must be: they also copy, hash and send.
const HEADROOM: f64 = 3.0;
/// Share of a new measurement in the running value.
const WEIGHT: f64 = 0.125;
/// With less than this on its way, bytes, an answer takes its time for other reasons than the speed of the sink, which is
/// at least what was measured.
const BUSY_BYTES: usize = 1 << 20;

/// Running measurements of a sink and of the codecs, bytes per second.
#[derive(Clone, Debug)]
pub struct Pace {
    cores: f64,
    sink: Option<f64>,
    codecs: [Option<f64>; EFFORTS.len()],
}

impl Pace {
    /// Nothing is measured yet; `cores`: threads that can compress at the same time.
    pub fn new(cores: usize) -> Self {
        assert!(cores > 0, "somebody compresses");
        Self { cores: cores as f64, sink: None, codecs: [None; EFFORTS.len()] }
    }

    /// A put was answered after `took`, in which the sink worked on `in_flight` bytes, those of the put included.
    pub fn stored(&mut self, in_flight: usize, took: Duration) {
        let is_known_better = |sink: f64| in_flight < BUSY_BYTES && speed(in_flight, took) < sink;
        if !self.sink.is_some_and(is_known_better) {
            mix(&mut self.sink, in_flight, took);
        }
    }

    /// A core shrank so many plain bytes in `took`.
    pub fn compressed(&mut self, effort: Effort, plain: usize, took: Duration) {
        let place = EFFORTS.iter().position(|(known, _)| *known == effort);
        if let Some(speed) = place.and_then(|place| self.codecs.get_mut(place)) {
            mix(speed, plain, took);
        }
    }

    /// What to do with the next chunk. Nothing, as long as the sink's speed isn't known.
    pub fn choose(&self) -> Effort {
        let Some(sink) = self.sink else { return Effort::Store };
        // What is not measured yet is as much slower or faster than its first guess as what is.
        let known =
            EFFORTS.iter().zip(&self.codecs).filter_map(|((_, guess), speed)| Some((*speed)? / guess));
        let (sum, count) = known.fold((0.0, 0.0), |(sum, count), ratio| (sum + ratio, count + 1.0));
        let scale = if count > 0.0 { sum / count } else { 1.0 };
        let fast = |((_, guess), speed): &(&(Effort, f64), &Option<f64>)| {
            speed.unwrap_or(guess * scale) * self.cores >= HEADROOM * sink
        };
        EFFORTS.iter().zip(&self.codecs).find(fast).map_or(Effort::Store, |((effort, _), _)| *effort)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a speed; a chunk is far below 2^52 bytes")]
fn speed(bytes: usize, took: Duration) -> f64 {
    bytes as f64 / took.as_secs_f64().max(1e-9)
}

fn mix(running: &mut Option<f64>, bytes: usize, took: Duration) {
    let now = speed(bytes, took);
    *running = Some(running.map_or(now, |old| old + WEIGHT * (now - old)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pace(sink: usize) -> Pace {
        let mut pace = Pace::new(2);
        pace.stored(sink, SECOND);
        pace
    }

    #[test]
    fn the_slower_the_sink_the_harder_it_tries() {
        assert_eq!(Pace::new(2).choose(), Effort::Store, "nothing is known");
        assert_eq!(pace(2_000_000_000).choose(), Effort::Store);
        assert_eq!(pace(320_000_000).choose(), Effort::Lz4);
        assert_eq!(pace(117_000_000).choose(), Effort::Zstd(1), "gigabit Ethernet");
        assert_eq!(pace(40_000_000).choose(), Effort::Zstd(3));
    }

    #[test]
    fn a_little_that_takes_its_time_does_not_make_the_sink_slow() {
        let mut pace = pace(320_000_000);
        for _ in 0..100 {
            pace.stored(BUSY_BYTES / 10, Duration::from_millis(10));
        }
        assert_eq!(pace.choose(), Effort::Lz4, "the sink may be as fast as it was");
        for _ in 0..100 {
            pace.stored(BUSY_BYTES / 10, Duration::from_micros(50));
        }
        assert_eq!(pace.choose(), Effort::Store, "it is at least so fast");
        for _ in 0..100 {
            pace.stored(BUSY_BYTES, Duration::from_millis(100));
        }
        assert_eq!(pace.choose(), Effort::Zstd(3), "with enough on its way it shows how fast it is");
    }

    #[test]
    fn measurements_replace_guesses_and_correct_the_others() {
        let mut pace = pace(117_000_000);
        pace.compressed(Effort::Zstd(1), 100_000_000, SECOND);
        assert_eq!(pace.choose(), Effort::Store, "this machine has a third of the guessed speed");
        for _ in 0..100 {
            pace.compressed(Effort::Zstd(1), 900_000_000, SECOND);
        }
        assert_eq!(pace.choose(), Effort::Zstd(3), "three times as fast as guessed");
    }

    #[test]
    fn a_choice_reads_back_what_it_prints() {
        for text in ["auto", "store", "lz4", "zstd:7"] {
            assert_eq!(text.parse::<Compression>().unwrap().to_string(), text);
        }
        assert_eq!("".parse(), Ok(Compression::Auto));
        assert!("gzip".parse::<Compression>().is_err());
    }
}
