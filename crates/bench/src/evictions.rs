//! When jobs are evicted: as FALCON's paper saw it (Table 2), or as hosts of a trace went.
//!
//! Hosts of traces stay for hours or days, and a measured job works for an hour or four: it would see no eviction. So traces run faster, such that a
//! host stays for as long on average as between two evictions of Table 2. In which order hosts go, and how many at once, stays as it was.

use std::path::Path;
use std::sync::Arc;

use stdchk_model::exact::narrow;
use stdchk_placement::random::Random;
use stdchk_replay::trace;
use stdchk_replay::world::{Host, World};

use crate::Error;

/// Table 2: evictions an hour of a job, mean and standard deviation, and their range.
const EVICTIONS: (f64, f64) = (1.3130, 0.2172);
const RANGE: (f64, f64) = (1.0298, 2.3931);
/// Seconds of an hour.
const HOUR: f64 = 3600.0;
/// Decides which of a zone's instances goes, where a trace has only their number.
const SEED: u64 = 1;

/// Where evictions are drawn from.
pub enum Source {
    Table2,
    /// One trace at least, and how much faster time runs in all of them.
    Trace(Arc<World>, Vec<Arc<World>>, f64),
}

impl Source {
    /// The traces of a directory, or the paper's table.
    pub fn of(directory: Option<&Path>) -> Result<Self, Error> {
        let Some(directory) = directory else { return Ok(Self::Table2) };
        let worlds = trace::read(directory, SEED).map_err(|error| Error(error.to_string()))?;
        let is_used = |world: &World| world.hosts.iter().any(|host| !host.up.is_empty());
        let mut used = worlds.into_iter().filter(is_used).map(Arc::new);
        let none = || Error(format!("{} has no trace with hosts that were up", directory.display()));
        let (first, others) = (used.next().ok_or_else(none)?, used.collect::<Vec<_>>());
        let faster = (mean_stay(std::iter::once(&first).chain(&others)) * EVICTIONS.0).max(1.0);
        Ok(Self::Trace(first, others, faster))
    }

    /// What it is called in reports.
    pub fn name(&self) -> String {
        match self {
            Self::Table2 => "the paper's Table 2".to_owned(),
            Self::Trace(first, others, faster) => {
                let worlds = std::iter::once(first).chain(others);
                let names: Vec<&str> = worlds.map(|world| world.name.as_str()).collect();
                format!("trace {}, {faster:.0} times as fast", names.join(", "))
            }
        }
    }

    /// Those of a job, which its number determines.
    pub fn for_job(&self, number: usize) -> Evictions {
        let mut random = Random::new(number as u64);
        let kind = match self {
            Self::Table2 => Kind::Rate(evictions_an_hour(&mut random)),
            Self::Trace(first, others, faster) => {
                let place = number % (1 + others.len());
                let world = Arc::clone(std::iter::once(first).chain(others).nth(place).unwrap_or(first));
                let begun = narrow(random.below(world.ticks as usize));
                Kind::Hosts { world, begun, faster: *faster }
            }
        };
        Evictions { random, kind }
    }
}

/// The evictions of a job.
pub struct Evictions {
    random: Random,
    kind: Kind,
}

enum Kind {
    /// So many an hour, one not knowing of the other.
    Rate(f64),
    /// The job is on some host of those that are up, until that goes. It began at this tick; behind a trace's end is its beginning.
    Hosts { world: Arc<World>, begun: u32, faster: f64 },
}

impl Evictions {
    /// Hours until the next eviction of a job that began so many hours ago and is put on a host now.
    pub fn waiting(&mut self, elapsed: f64) -> f64 {
        match &self.kind {
            Kind::Rate(rate) => -share(&mut self.random).ln() / rate,
            Kind::Hosts { world, begun, faster } => {
                let hours_a_tick = world.tick as f64 / HOUR / faster;
                let now = (f64::from(*begun) + elapsed / hours_a_tick) % f64::from(world.ticks);
                stay(world, now, &mut self.random) * hours_a_tick
            }
        }
    }
}

/// Hours for which a host is up on average.
fn mean_stay<'a>(worlds: impl Iterator<Item = &'a Arc<World>>) -> f64 {
    let (mut hours, mut stays) = (0.0, 0.0);
    for world in worlds {
        for span in world.hosts.iter().flat_map(|host| &host.up) {
            hours += f64::from(span.1 - span.0) * world.tick as f64 / HOUR;
            stays += 1.0;
        }
    }
    hours / stays
}

/// Ticks until one of the hosts goes that are up, any of them. If none is up, the job gets the first that comes, and has it until it goes.
fn stay(world: &World, now: f64, random: &mut Random) -> f64 {
    let goes = |host: &Host| {
        let span = host.up.iter().find(|span| f64::from(span.0) <= now && now < f64::from(span.1))?;
        Some(f64::from(span.1) - now)
    };
    let up: Vec<f64> = world.hosts.iter().filter_map(goes).collect();
    if let Some(stays) = up.get(random.below(up.len())) {
        return *stays;
    }
    let later = world.hosts.iter().flat_map(|host| &host.up).filter(|span| f64::from(span.0) > now);
    let end = f64::from(world.ticks);
    later.min_by_key(|span| span.0).map_or(end, |span| f64::from(span.1)) - now
}

/// Above 0 and up to 1.
fn share(random: &mut Random) -> f64 {
    1.0 - random.unit()
}

/// How often a job is evicted: normally distributed (Box and Muller), within the range that the paper saw.
fn evictions_an_hour(random: &mut Random) -> f64 {
    let normal = (-2.0 * share(random).ln()).sqrt() * (std::f64::consts::TAU * share(random)).cos();
    (EVICTIONS.0 + EVICTIONS.1 * normal).clamp(RANGE.0, RANGE.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evictions_come_as_often_as_the_paper_saw() {
        let mut random = Random::new(7);
        let rates: Vec<f64> = (0..2000).map(|_| evictions_an_hour(&mut random)).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        assert!((mean - EVICTIONS.0).abs() < 0.03, "{mean}");
        assert!(rates.iter().all(|rate| (RANGE.0..=RANGE.1).contains(rate)));
        let mut evictions = Evictions { random, kind: Kind::Rate(2.0) };
        let waits = (0..2000).map(|_| evictions.waiting(0.0)).sum::<f64>() / 2000.0;
        assert!((waits - 0.5).abs() < 0.05, "{waits}");
    }

    #[test]
    fn a_job_is_evicted_when_its_host_goes() {
        let mut world = World::volunteers(1, 1, 1);
        (world.tick, world.ticks) = (1800, 20);
        world.hosts[0].up = vec![(2, 6), (10, 12)];
        assert_eq!(mean_stay(std::iter::once(&Arc::new(world.clone()))), 1.5);
        let evictions_in = |faster, begun| {
            let kind = Kind::Hosts { world: Arc::new(world.clone()), begun, faster };
            Evictions { random: Random::new(1), kind }
        };
        let evictions = |begun| evictions_in(1.0, begun);
        assert_eq!(evictions(2).waiting(0.0), 2.0);
        assert_eq!(evictions(2).waiting(1.5), 0.5);
        assert_eq!(evictions(2).waiting(2.0), 3.0, "nobody is up for two hours, then one for an hour");
        assert_eq!(evictions(13).waiting(0.0), 3.5, "nobody comes any more");
        assert_eq!(evictions(13).waiting(5.0), 1.5, "the trace begins anew");
        assert_eq!(evictions_in(4.0, 2).waiting(0.25), 0.25, "an hour of the trace is a quarter");
    }
}
