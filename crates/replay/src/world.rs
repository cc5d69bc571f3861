//! Hosts that come and go, as a trace has it or as a seed makes them up.
//!
//! The one idea: whatever a trace looked like, it becomes intervals of ticks in which each host was up. A tick is the trace's own
//! resolution; what happens within one is taken to happen at the same time.

use stdchk_model::exact::{narrow, to_usize};
use stdchk_placement::predictor::Fate;
use stdchk_placement::random::Random;
use stdchk_placement::shocks::{Groups, NO_GROUP};

/// A host of a trace.
#[derive(Clone, Debug)]
pub struct Host {
    /// When it was up: ticks from, to (exclusive); in order of time, apart from each other.
    pub up: Vec<(u32, u32)>,
    /// Its groups.
    pub groups: Groups,
    /// Whether jobs run on it.
    pub computes: bool,
}

/// A trace.
#[derive(Clone, Debug)]
pub struct World {
    /// What it is called in tables.
    pub name: String,
    /// Seconds of a tick.
    pub tick: u64,
    /// Ticks of the whole.
    pub ticks: u32,
    /// Its hosts.
    pub hosts: Vec<Host>,
    /// Ticks in which failures don't count, since the trace isn't sure of them; in order.
    pub doubtful: Vec<u32>,
    /// What becomes of the parts on a host that fails.
    pub fate: Fate,
}

impl Host {
    fn ticks_up(&self, from: u32, to: u32) -> u32 {
        self.up.iter().map(|span| span.1.min(to).saturating_sub(span.0.max(from))).sum()
    }

    /// Whether it belongs to a subset, judged by the ticks before `half` alone; a tick has `tick` seconds.
    fn is_in(&self, subset: Subset, half: u32, tick: u64) -> bool {
        let hours = |ticks: u32| f64::from(ticks) * tick as f64 / 3600.0;
        let week: u32 = narrow(7 * 86_400 / tick.max(1));
        let up = self.ticks_up(0, half);
        let first = self.up.first().map_or(half, |span| span.0.min(half));
        let availability = f64::from(up) / f64::from((half - first).max(1));
        let failures = self.up.iter().filter(|span| span.1 < half).count() as f64;
        let main = hours(up) >= 336.0
            && self.ticks_up(half.saturating_sub(week), half) > 0
            && (0.2..0.98).contains(&availability);
        match subset {
            Subset::All => true,
            Subset::Main => main,
            Subset::Churny => main && availability < 0.95 && failures / (hours(up) / 24.0) >= 0.5,
        }
    }
}

/// Which hosts of a trace take part; chosen by the first half of the trace alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Subset {
    /// All
    All,
    /// Up for 336 hours, seen in the last week, available for 20 to 98 % of the time since first seen
    Main,
    /// Of these, those available for less than 95 %, with a failure in two days or more often
    Churny,
}

impl World {
    /// The hosts of a subset, with jobs on those that are in another one as well.
    #[must_use]
    pub fn subset(mut self, subset: Subset, computing: Subset) -> Self {
        let (half, tick) = (self.ticks / 2, self.tick);
        self.hosts.retain(|host| host.is_in(subset, half, tick));
        for host in &mut self.hosts {
            host.computes = host.is_in(computing, half, tick);
        }
        self
    }

    /// A made-up pool of volunteers: `hosts` hosts, hourly, over `days` days. Groups of up to eight share an address block and fail
    /// together now and then; hosts differ in how often they fail; half of them change their ways in the middle, so that old
    /// history misleads.
    #[must_use]
    pub fn volunteers(hosts: u32, days: u32, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let ticks = days * 24;
        let block = |host: u32| host / 8;
        let shocks: Vec<Vec<bool>> =
            (0..=block(hosts)).map(|_| (0..ticks).map(|_| random.unit() < 0.002).collect()).collect();
        let mut made = Vec::new();
        for host in 0..hosts {
            let hazard = |random: &mut Random| 0.0005 * (5.0 * random.unit()).exp();
            let (before, after) = (hazard(&mut random), hazard(&mut random));
            let changes = random.unit() < 0.5;
            let hit = shocks.get(to_usize(u64::from(block(host))));
            let (mut up, mut since) = (Vec::new(), Some(0));
            for tick in 0..ticks {
                let hazard = if changes && tick > ticks / 2 { after } else { before };
                let shock = hit.and_then(|hit| hit.get(to_usize(u64::from(tick)))) == Some(&true);
                match since {
                    Some(from) if shock && random.unit() < 0.8 || random.unit() < hazard => {
                        up.push((from, tick));
                        since = None;
                    }
                    None if random.unit() < 0.2 => since = Some(tick),
                    _ => {}
                }
            }
            up.extend(since.map(|from| (from, ticks)));
            up.retain(|span| span.0 < span.1);
            made.push(Host { up, groups: [block(host), NO_GROUP, NO_GROUP], computes: true });
        }
        Self {
            name: "made-up volunteers".to_owned(),
            tick: 3600,
            ticks,
            hosts: made,
            doubtful: Vec::new(),
            fate: Fate::Returns,
        }
    }

    /// A made-up pool of preemptible instances: `zones` zones of 16, five-minute ticks, over `days` days. A zone loses many at once,
    /// sometimes after it has lost a few; what was on an instance is gone with it.
    #[must_use]
    pub fn spot(zones: u32, days: u32, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let ticks = days * 288;
        let mut hosts = Vec::new();
        for zone in 0..zones {
            let (mut available, mut counts) = (16_usize, Vec::new());
            let mut pressure = 0.0_f64;
            for _ in 0..ticks {
                pressure = (pressure * 0.97 + 0.02 * random.unit().powi(8)).min(1.0);
                if random.unit() < 0.002 + 0.2 * pressure {
                    available = random.below(available + 1);
                } else if random.unit() < 0.05 {
                    available = 16;
                }
                counts.push(available);
            }
            hosts.extend(slots(&counts, [zone, zone / 2, NO_GROUP], &mut random));
        }
        Self {
            name: "made-up spot instances".to_owned(),
            tick: 300,
            ticks,
            hosts,
            doubtful: Vec::new(),
            fate: Fate::Gone,
        }
    }
}

/// Hosts of a zone of which only the number at each tick is known: any of those that are up is taken away, and any that is down comes
/// back.
pub fn slots(counts: &[usize], groups: Groups, random: &mut Random) -> Vec<Host> {
    let most = counts.iter().copied().max().unwrap_or(0);
    let mut hosts = vec![Host { up: Vec::new(), groups, computes: true }; most];
    let mut since: Vec<Option<u32>> = vec![None; most];
    for (tick, count) in (0_u32..).zip(counts.iter().copied()) {
        let mut up = since.iter().flatten().count();
        while up != count {
            let wanted = up > count;
            let among: Vec<usize> = (0..most)
                .filter(|slot| since.get(*slot).is_some_and(|from| from.is_some() == wanted))
                .collect();
            let Some(slot) = among.get(random.below(among.len())).copied() else { break };
            if let (Some(from), Some(host)) = (since.get_mut(slot), hosts.get_mut(slot)) {
                match from.take() {
                    Some(began) => host.up.push((began, tick)),
                    None => *from = Some(tick),
                }
            }
            up = if wanted { up - 1 } else { up + 1 };
        }
    }
    let end = narrow::<u32, _>(counts.len());
    for (host, from) in hosts.iter_mut().zip(since) {
        host.up.extend(from.map(|from| (from, end)));
        host.up.retain(|span| span.0 < span.1);
    }
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_the_trace_s_numbers_at_every_tick() {
        let counts = [0, 3, 3, 1, 2, 0, 4];
        let hosts = slots(&counts, [0; 3], &mut Random::new(1));
        for (tick, count) in (0..).zip(counts) {
            assert_eq!(
                hosts.iter().filter(|host| host.ticks_up(tick, tick + 1) == 1).count(),
                count,
                "tick {tick}"
            );
        }
    }

    #[test]
    fn subsets_are_chosen_by_the_first_half_alone() {
        let world = World::volunteers(200, 60, 3);
        let names = |world: &World| {
            world.hosts.iter().map(|host| host.ticks_up(0, world.ticks / 2)).collect::<Vec<_>>()
        };
        let mut other = world.clone();
        for host in &mut other.hosts {
            host.up.retain(|span| span.1 < other.ticks / 2);
        }
        let mut same = world.clone();
        for host in &mut same.hosts {
            host.up.retain(|span| span.1 < same.ticks / 2);
            host.up.push((same.ticks / 2 + 5, same.ticks - 3));
        }
        let (one, two) =
            (other.subset(Subset::Churny, Subset::All), same.subset(Subset::Churny, Subset::All));
        assert!(!one.hosts.is_empty() && one.hosts.len() < 200);
        assert_eq!(names(&one), names(&two));
    }
}
