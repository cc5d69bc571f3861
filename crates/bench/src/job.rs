//! A job that takes checkpoints of itself: random walkers that leave traces on a field.
//!
//! Its image is what the walkers are, which changes with every step and shrinks by no codec, and the field, most of which is zero. What
//! it computes depends on the number of steps alone: a job that was evicted and went on from a checkpoint ends with the same sum as one
//! that was left alone. A step takes a set time, so that many jobs can share a machine as if each had its own processor.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use crate::Error;

/// Bytes of a number.
const WORD: usize = 8;

/// What the job is started with.
#[derive(Args)]
pub struct Job {
    /// Goes on from this checkpoint
    #[arg(long)]
    from: Option<PathBuf>,
    /// Checkpoints are written to this path, with the number of the step behind it
    #[arg(long)]
    checkpoints: PathBuf,
    /// Bytes of its image
    #[arg(long)]
    bytes: usize,
    /// Share of the image that changes with every step
    #[arg(long)]
    walkers: f64,
    /// Steps until it is done
    #[arg(long)]
    steps: u64,
    /// Steps between checkpoints
    #[arg(long)]
    every: u64,
    /// Time of a step
    #[arg(long)]
    step_ms: u64,
}

/// All of its memory.
struct State {
    step: u64,
    walkers: Vec<u64>,
    field: Vec<u64>,
}

impl Job {
    /// Runs it to its end; says `checkpoint STEP` when one is written, and at the end `done SUM`. It computes nothing while it writes.
    pub fn run(&self) -> Result<(), Error> {
        let mut state = match &self.from {
            Some(path) => self.read(path)?,
            None => self.begin(),
        };
        let (began, first, mut wrote) = (Instant::now(), state.step, Duration::ZERO);
        while state.step < self.steps {
            state.advance();
            let due = wrote + Duration::from_millis(self.step_ms) * u32::try_from(state.step - first)?;
            std::thread::sleep(due.saturating_sub(began.elapsed()));
            if state.step.is_multiple_of(self.every) && state.step < self.steps {
                let path = format!("{}{}", self.checkpoints.display(), state.step);
                let begins = Instant::now();
                state.write(Path::new(&path))?;
                wrote += begins.elapsed();
                println!("checkpoint {}", state.step);
                std::io::stdout().flush()?;
            }
        }
        println!("done {}", state.sum());
        Ok(())
    }

    fn lengths(&self) -> (usize, usize) {
        let words = self.bytes / WORD;
        let walkers = (0..words).take_while(|at| (*at as f64) < words as f64 * self.walkers).count();
        (walkers.max(1), (words - walkers).max(1))
    }

    fn begin(&self) -> State {
        let (walkers, field) = self.lengths();
        let walkers = (1..=walkers as u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        State { step: 0, walkers, field: vec![0; field] }
    }

    fn read(&self, path: &Path) -> Result<State, Error> {
        let bytes = std::fs::read(path)?;
        let (walkers, field) = self.lengths();
        let (words, rest) = bytes.as_chunks::<WORD>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let short = || Error(format!("{} is no checkpoint of this job", path.display()));
        let step = words.next().ok_or_else(short)?;
        let state = State {
            step,
            walkers: words.by_ref().take(walkers).collect(),
            field: words.by_ref().take(field).collect(),
        };
        let is_whole = state.field.len() == field && words.next().is_none() && rest.is_empty();
        if is_whole { Ok(state) } else { Err(short()) }
    }
}

impl State {
    /// Every walker draws a number (xorshift64*), and few of them leave a trace.
    fn advance(&mut self) {
        let places = self.field.len() as u64;
        for walker in &mut self.walkers {
            *walker ^= *walker >> 12;
            *walker ^= *walker << 25;
            *walker ^= *walker >> 27;
            if *walker >> 54 == 0
                && let Some(place) =
                    usize::try_from(*walker % places / 64).ok().and_then(|at| self.field.get_mut(at))
            {
                *place += 1;
            }
        }
        self.step += 1;
    }

    fn write(&self, path: &Path) -> Result<(), Error> {
        let words = std::iter::once(&self.step).chain(&self.walkers).chain(&self.field);
        let bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
        Ok(std::fs::write(path, bytes)?)
    }

    fn sum(&self) -> u64 {
        self.walkers
            .iter()
            .chain(&self.field)
            .fold(0, |sum, word| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3))
    }
}
