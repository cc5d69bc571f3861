//! A life: its world, and the events that happen in it. A life that fails is made short.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::plant::Plant;
use super::world::World;

/// Events of a life before all is quiet.
const EVENTS: u32 = 250;
/// After so many events all comes to rest, and something happens to the pool.
const DISASTER_EVERY: u32 = 125;
/// Lives that are lived at most to make one short.
const TRIES: usize = 600;

/// Letters of a cause that are shown in a list.
const CAUSE_SHOWN: usize = 200;

/// What happens: each event has a number, which decides it together with the seed and the state of the world. So a part
/// of the events is a life, too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Life {
    pub seed: u64,
    pub events: Vec<u32>,
}

/// How a life ended badly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    cause: String,
    history: String,
    /// How many events had begun.
    begun: usize,
}

impl Failure {
    /// What went wrong, in one line.
    pub fn cause(&self) -> String {
        self.cause.chars().take_while(|letter| *letter != '\n').take(CAUSE_SHOWN).collect()
    }
}

impl Life {
    pub fn of(seed: u64) -> Self {
        Self { seed, events: (0..EVENTS).collect() }
    }

    /// Lives it; a hash of all that happened.
    pub fn live(&self, plant: Plant) -> Result<blake3::Hash, Failure> {
        let (mut world, mut begun) = (World::new(self.seed, plant), 0);
        let lived = catch_unwind(AssertUnwindSafe(|| {
            for event in &self.events {
                begun += 1;
                world.begin_event(self.seed, *event);
                match (event + 1).is_multiple_of(DISASTER_EVERY) {
                    true => world.disaster(),
                    false => world.event(),
                }
                world.check();
            }
            world.begin_event(self.seed, EVENTS);
            world.release_backup();
            world.quiet();
        }));
        lived.map(|()| world.hash()).map_err(|cause| {
            let text = cause.downcast_ref::<String>().cloned();
            let text = text.or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Failure { cause: text.unwrap_or_default(), history: world.history(), begun }
        })
    }

    /// The shortest life found that fails as this one does, in one way or another.
    pub fn shortened(&self, plant: Plant, failure: &Failure) -> (Self, Failure) {
        let mut shortest = Self { events: self.events[..failure.begun].to_vec(), ..*self };
        let mut tries = 0;
        let mut failure = shortest.live(plant).err().unwrap_or_else(|| failure.clone());
        let mut size = shortest.events.len().div_ceil(2);
        while size > 0 && tries < TRIES {
            let (before, mut start) = (shortest.events.len(), 0);
            while start < shortest.events.len() && tries < TRIES {
                let end = (start + size).min(shortest.events.len());
                let mut tried = shortest.clone();
                tried.events.drain(start..end);
                tries += 1;
                match tried.live(plant) {
                    Err(other) => (shortest, failure) = (tried, other),
                    Ok(_) => start = end,
                }
            }
            if size > 1 || shortest.events.len() == before {
                size /= 2;
            }
        }
        (shortest, failure)
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events: Vec<String> = self.events.iter().map(u32::to_string).collect();
        write!(f, "STDCHK_LIFE={} STDCHK_LIVES=1 STDCHK_EVENTS={}", self.seed, events.join(","))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.cause, self.history)
    }
}
