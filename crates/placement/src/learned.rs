//! Selection by what the predictor has learned: the hosts with which a checkpoint is most likely recoverable when its compute
//! host fails, and which lost parts are worth making again.
//!
//! Relies on probabilities of loss and on correlations within groups ([`crate::predictor`]). Where FALCON's equation (3) has the
//! product of all scores, which asks for all m + k hosts, this has the probability that at least m parts are there. The first choice is
//! the hosts that are best alone; then hosts are swapped as long as that makes the objective better, so that hosts that share
//! fate give way to others.

use crate::falcon::Job;
use crate::shocks::{Correlations, Holder, NO_GROUP, recoverable};

/// Hosts that swaps are tried with; hosts that are worse alone than this many others are not what a group of five lacks.
const CONSIDERED: usize = 96;
/// Rounds of swaps; each makes the objective better, and two are enough in nearly all cases.
const ROUNDS: usize = 6;
/// What a swap must gain, relative to the re-execution at stake.
const GAIN_MIN: f64 = 1e-9;

/// A host that may get a part.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Candidate {
    /// Probability of loss and groups.
    pub holder: Holder,
    /// N of equation (2), seconds.
    pub overhead: f64,
}

/// What a selection must reach.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Parts that are enough.
    pub m: usize,
    /// Parts that are stored, m + k.
    pub count: usize,
    /// The job that the checkpoint belongs to.
    pub job: &'a Job,
    /// Correlations within groups.
    pub correlations: &'a Correlations,
}

impl Wanted<'_> {
    /// Equation (3) with the probability that at least m parts are there; seconds, less is better.
    fn objective(&self, chosen: &[Candidate]) -> f64 {
        let overhead: f64 = chosen.iter().map(|candidate| candidate.overhead).sum();
        let holders: Vec<Holder> = chosen.iter().map(|candidate| candidate.holder).collect();
        crate::falcon::objective(self.job, overhead, recoverable(self.m, &holders, self.correlations))
    }

    /// A host's own part of the objective, to compare hosts alone.
    fn alone(&self, candidate: &Candidate) -> f64 {
        crate::falcon::objective(self.job, candidate.overhead, 1.0 - candidate.holder.lost)
    }
}

/// Places in `candidates` of the hosts for all parts, best first.
#[must_use]
pub fn choose(candidates: &[Candidate], wanted: &Wanted<'_>) -> Vec<usize> {
    let mut order: Vec<(f64, usize)> =
        candidates.iter().enumerate().map(|(place, candidate)| (wanted.alone(candidate), place)).collect();
    let compare =
        |one: &(f64, usize), other: &(f64, usize)| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1));
    if order.len() > CONSIDERED {
        order.select_nth_unstable_by(CONSIDERED, compare);
        order.truncate(CONSIDERED);
    }
    order.sort_unstable_by(compare);
    let considered: Vec<(usize, Candidate)> =
        order.iter().filter_map(|(_, place)| Some((*place, *candidates.get(*place)?))).collect();
    // Swaps one by one can't leave a group that holds nearly all parts, so they also begin with at most k hosts of each group.
    let best_alone: Vec<(usize, Candidate)> = considered.iter().take(wanted.count).copied().collect();
    let spread = spread(&considered, wanted);
    let (near, far) = (swapped(best_alone, &considered, wanted), swapped(spread, &considered, wanted));
    let mut chosen = if far.1 < near.1 { far.0 } else { near.0 };
    chosen.sort_by(|one, other| wanted.alone(&one.1).total_cmp(&wanted.alone(&other.1)));
    chosen.into_iter().map(|(place, _)| place).collect()
}

/// The best hosts alone of which no more than k share a group whose hosts fail together; filled up where there are too few.
fn spread(considered: &[(usize, Candidate)], wanted: &Wanted<'_>) -> Vec<(usize, Candidate)> {
    let most = wanted.count.saturating_sub(wanted.m).max(1);
    let mut chosen: Vec<(usize, Candidate)> = Vec::new();
    let fits = |chosen: &[(usize, Candidate)], candidate: &Candidate| {
        wanted.correlations.iter().enumerate().all(|(level, correlation)| {
            let group = candidate.holder.groups.get(level).filter(|group| **group != NO_GROUP);
            let shares = |other: &&(usize, Candidate)| other.1.holder.groups.get(level) == group;
            group.is_none() || *correlation <= 0.0 || chosen.iter().filter(shares).count() < most
        })
    };
    for candidate in considered {
        if chosen.len() < wanted.count && fits(&chosen, &candidate.1) {
            chosen.push(*candidate);
        }
    }
    for candidate in considered {
        if chosen.len() < wanted.count && !chosen.iter().any(|known| known.0 == candidate.0) {
            chosen.push(*candidate);
        }
    }
    chosen
}

/// Swaps hosts as long as that makes the objective better; returns it with the hosts.
fn swapped(
    mut chosen: Vec<(usize, Candidate)>,
    considered: &[(usize, Candidate)],
    wanted: &Wanted<'_>,
) -> (Vec<(usize, Candidate)>, f64) {
    let value = |chosen: &[(usize, Candidate)]| {
        let hosts: Vec<Candidate> = chosen.iter().map(|(_, candidate)| *candidate).collect();
        wanted.objective(&hosts)
    };
    let mut best = value(&chosen);
    for _ in 0..ROUNDS {
        let least_gain = GAIN_MIN * (wanted.job.worked + wanted.job.mean_time_to_failure);
        let mut swap = None;
        for slot in 0..chosen.len() {
            for candidate in considered {
                if chosen.iter().any(|(place, _)| *place == candidate.0) {
                    continue;
                }
                let mut tried = chosen.clone();
                if let Some(slot) = tried.get_mut(slot) {
                    *slot = *candidate;
                }
                let reached = value(&tried);
                if reached < best - least_gain {
                    (best, swap) = (reached, Some(tried));
                }
            }
        }
        let Some(better) = swap else { break };
        chosen = better;
    }
    (chosen, best)
}

/// Which hosts should get parts again while the compute host lives: places in `candidates`, none if it isn't worth it.
///
/// `present` hold parts; at most `wanted.count` hosts hold some afterwards. `hazard` is the probability that the compute host fails before
/// the next checkpoint, `price` the probability of losing a checkpoint that one more part must avert. So a part is made
/// again late: as long as enough others are likely to stay, it costs more than it averts.
#[must_use]
pub fn repair(
    present: &[Candidate],
    candidates: &[Candidate],
    wanted: &Wanted<'_>,
    hazard: f64,
    price: f64,
) -> Vec<usize> {
    let missing = wanted.count.saturating_sub(present.len());
    let probability = |holders: &[Candidate]| {
        let holders: Vec<Holder> = holders.iter().map(|candidate| candidate.holder).collect();
        recoverable(wanted.m, &holders, wanted.correlations)
    };
    let now = probability(present);
    // What a full set of perfect hosts would avert doesn't pay for one part: nothing to compute.
    if missing == 0 || (1.0 - now) * hazard < price {
        return Vec::new();
    }
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    let alone =
        |place: &usize| candidates.get(*place).map_or(f64::INFINITY, |candidate| wanted.alone(candidate));
    order.sort_by(|one, other| alone(one).total_cmp(&alone(other)));
    order.truncate(CONSIDERED);
    let (mut holders, mut added) = (present.to_vec(), Vec::new());
    let (mut best, mut worth) = (Vec::new(), 0.0);
    for parts in 1..=missing {
        let with = |place: &usize| {
            let mut tried = holders.clone();
            tried.extend(candidates.get(*place).copied());
            probability(&tried)
        };
        // While fewer than m parts are there no host makes a difference alone, and the first of the order is taken.
        let left =
            order.iter().copied().filter(|place| !added.contains(place)).map(|place| (place, with(&place)));
        let next = left.fold(None, |best: Option<(usize, f64)>, tried| match best {
            Some(best) if best.1 >= tried.1 => Some(best),
            _ => Some(tried),
        });
        let Some((place, reached)) = next else { break };
        holders.extend(candidates.get(place).copied());
        added.push(place);
        let gain = (reached - now) * hazard - price * parts as f64;
        if gain > worth {
            (best, worth) = (added.clone(), gain);
        }
    }
    best
}

/// Keeps repairs within a budget: the price of a part rises while more are made than wanted, and falls while fewer are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Price {
    price: f64,
    parts_per_checkpoint: f64,
}

/// Relative change of the price for one part too many or too few: some dozens of checkpoints make it felt.
const PRICE_STEP: f64 = 0.05;
/// Where the price begins: averting one lost checkpoint is worth ten thousand parts. A higher one takes days to come down to what a budget allows.
const PRICE_FIRST: f64 = 1e-4;
/// Bounds of the price.
const PRICES: (f64, f64) = (1e-6, 0.5);

impl Price {
    /// A price that leads to about this many parts for each checkpoint.
    #[must_use]
    pub const fn new(parts_per_checkpoint: f64) -> Self {
        Self { price: PRICE_FIRST, parts_per_checkpoint }
    }

    /// The probability of losing a checkpoint that a part must avert now.
    #[must_use]
    pub const fn now(&self) -> f64 {
        self.price
    }

    /// Takes note of a checkpoint that was stored.
    pub fn stored(&mut self) {
        self.step(-self.parts_per_checkpoint);
    }

    /// Takes note of parts that were made again.
    pub fn repaired(&mut self, parts: usize) {
        self.step(parts as f64);
    }

    fn step(&mut self, parts: f64) {
        self.price = (self.price * (PRICE_STEP * parts).exp()).clamp(PRICES.0, PRICES.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn candidate(lost: f64, group: u32) -> Candidate {
        Candidate { holder: Holder { lost, groups: [group, NO_GROUP, NO_GROUP] }, overhead: 1.0 }
    }

    const JOB: Job = Job { mean_time_to_failure: 10_000.0, interval: 1000.0, worked: 5000.0 };

    #[test]
    fn swaps_find_what_trying_all_sets_finds() {
        let mut random = Random::new(5);
        for _ in 0..40 {
            let candidates: Vec<Candidate> = (0..9)
                .map(|_| candidate(0.01 + 0.3 * random.unit(), stdchk_model::exact::narrow(random.below(3))))
                .collect();
            let wanted = Wanted { m: 2, count: 4, job: &JOB, correlations: &[0.6, 0.0, 0.0] };
            let chosen: Vec<Candidate> =
                choose(&candidates, &wanted).iter().map(|place| candidates[*place]).collect();
            let mut least = f64::INFINITY;
            for set in 0..1_u32 << 9 {
                if set.count_ones() == 4 {
                    let members: Vec<Candidate> =
                        (0..9).filter(|place| set >> place & 1 == 1).map(|place| candidates[place]).collect();
                    least = least.min(wanted.objective(&members));
                }
            }
            let at_stake = JOB.worked + JOB.mean_time_to_failure;
            assert!(wanted.objective(&chosen) < least + 1e-3 * at_stake);
        }
    }

    #[test]
    fn hosts_that_share_fate_give_way_to_slightly_worse_ones() {
        let mut candidates = vec![candidate(0.02, 0); 5];
        candidates.extend((1..6).map(|group| candidate(0.03, group)));
        let chosen = |correlation| {
            let wanted = Wanted { m: 3, count: 5, job: &JOB, correlations: &[correlation, 0.0, 0.0] };
            choose(&candidates, &wanted).into_iter().filter(|place| *place < 5).count()
        };
        assert_eq!(chosen(0.0), 5);
        assert!(chosen(0.8) <= 2);
    }

    #[test]
    fn a_part_is_made_again_when_it_averts_more_than_it_costs() {
        let wanted = Wanted { m: 3, count: 5, job: &JOB, correlations: &[0.0; 3] };
        let spare = [candidate(0.05, 7), candidate(0.01, 8), candidate(0.2, 9)];
        let present = |count: u32| (0..count).map(|group| candidate(0.05, group)).collect::<Vec<_>>();
        let made = |count, hazard, price| repair(&present(count), &spare, &wanted, hazard, price);
        assert!(made(5, 1.0, 0.0).is_empty(), "nothing is missing");
        assert_eq!(made(3, 0.5, 0.01), [1], "the best host alone gets the only part that pays");
        assert!(made(4, 0.5, 0.01).is_empty(), "one of four may still be lost");
        assert_eq!(made(2, 0.5, 0.01), [1, 0], "fewer than m are worth nothing, so two pay together");
        assert!(made(3, 0.01, 0.01).is_empty(), "the compute host will hardly fail");
    }

    #[test]
    fn the_price_leads_to_the_budget() {
        let mut price = Price::new(0.2);
        let mut random = Random::new(9);
        let mut parts = 0;
        for _ in 0..20_000 {
            price.stored();
            // What could be averted differs from checkpoint to checkpoint by orders of magnitude.
            if 10.0_f64.powf(-5.0 * random.unit()) > price.now() {
                price.repaired(1);
                parts += 1;
            }
        }
        assert!((3800..4300).contains(&parts), "{parts}");
    }
}
