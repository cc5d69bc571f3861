//! FALCON's selection: correlated reliability and load (equation 1), network overhead (2), objective (3) to (5), greedy choice.
//!
//! Relies on the histories of the compute host and of each storage host. Written as the paper has it (Islam, Bagchi, Eigenmann,
//! JoGC 2014, section 3.2), so that it can be compared with; what this project does better lies in [`crate::learned`].

use crate::history::{History, Span, State};

/// The constants of equation (1), with the paper's values.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Constants {
    /// γ: hosts that are at least this reliable are ranked by their load.
    pub reliable_from: f64,
    /// α: weight of S0 against S1 in the load indicator.
    pub idle_weight: f64,
}

impl Default for Constants {
    fn default() -> Self {
        Self { reliable_from: 0.95, idle_weight: 0.75 }
    }
}

/// How long a storage host was in each state while a compute host was down, and while it was up; seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Together {
    down: [u64; 4],
    up: [u64; 4],
}

/// S0, S1, S2, S3: the four states that FALCON's history server counts; none for time that nobody saw.
const fn counted(state: State) -> Option<usize> {
    match state {
        State::Running | State::Full => Some(0),
        State::Loaded => Some(1),
        State::Refusing => Some(2),
        State::Unavailable => Some(3),
        State::Unknown => None,
    }
}

/// Compares two histories from `from` to `to`, seconds. Costs a step for each step of either.
#[must_use]
pub fn together(storage: &History, compute: &History, from: u64, to: u64) -> Together {
    let mut both = Together::default();
    let (mut storage, mut compute) = (storage.spans(from, to), compute.spans(from, to));
    let (mut of_storage, mut of_compute) = (storage.next(), compute.next());
    while let (Some(here), Some(there)) = (of_storage, of_compute) {
        both.add(here, there);
        if here.to <= there.to {
            of_storage = storage.next();
        }
        if there.to <= here.to {
            of_compute = compute.next();
        }
    }
    both
}

impl Together {
    fn add(&mut self, storage: Span, compute: Span) {
        let seconds = storage.to.min(compute.to).saturating_sub(storage.from.max(compute.from));
        let side = match compute.state {
            State::Unknown => return,
            State::Unavailable => &mut self.down,
            _ => &mut self.up,
        };
        if let Some(sum) = counted(storage.state).and_then(|state| side.get_mut(state)) {
            *sum += seconds;
        }
    }

    /// CR of equation (1): the probability that the storage host is there when the compute host is down; γ if that was never
    /// seen to be down.
    #[must_use]
    pub fn reliability(&self, constants: &Constants) -> f64 {
        let [running, loaded, refusing, unavailable] = self.down;
        match running + loaded + refusing + unavailable {
            0 => constants.reliable_from,
            all => (all - unavailable) as f64 / all as f64,
        }
    }

    /// LI of equation (1): how little loaded the storage host is while the compute host is up; 0 if that was never seen up.
    #[must_use]
    pub fn idleness(&self, constants: &Constants) -> f64 {
        let [running, loaded, refusing, unavailable] = self.up;
        match running + loaded + refusing + unavailable {
            0 => 0.0,
            all => {
                let share = |seconds: u64| seconds as f64 / all as f64;
                constants.idle_weight * share(running) + (1.0 - constants.idle_weight) * share(loaded)
            }
        }
    }

    /// CRLS of equation (1), from 0 to 2.
    #[must_use]
    pub fn score(&self, constants: &Constants) -> f64 {
        let reliability = self.reliability(constants);
        if reliability >= constants.reliable_from {
            constants.reliable_from + self.idleness(constants)
        } else {
            reliability
        }
    }
}

/// Equation (2): seconds to send one of `m` parts of `bytes` at the available bandwidth, bytes per second. Without bandwidth it
/// takes for ever.
#[must_use]
pub fn network_overhead(bytes: u64, m: usize, bandwidth: f64) -> f64 {
    if bandwidth > 0.0 { bytes as f64 / m.max(1) as f64 / bandwidth } else { f64::INFINITY }
}

/// What the objective weighs for one compute host.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Job {
    /// MTTF of the compute host, seconds.
    pub mean_time_to_failure: f64,
    /// CI: time between checkpoints, seconds.
    pub interval: f64,
    /// Tcurr: useful computation so far, seconds.
    pub worked: f64,
}

/// A storage host as the greedy selection sees it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Candidate {
    /// CRLS.
    pub score: f64,
    /// N, seconds.
    pub overhead: f64,
}

/// Equation (3) for hosts whose overheads add up to `overhead` and whose scores multiply to `product`; seconds, less is better.
#[must_use]
pub fn objective(job: &Job, overhead: f64, product: f64) -> f64 {
    job.mean_time_to_failure / job.interval * overhead - (job.worked + job.mean_time_to_failure) * product
}

/// The greedy selection of section 3.2.4: places in `candidates` of at most `count` hosts, in the order in which they are taken.
/// Hosts are compared by their place where the paper leaves a tie.
#[must_use]
pub fn greedy(candidates: &[Candidate], count: usize, job: &Job) -> Vec<usize> {
    let by_score = best(candidates, count, |one, other| other.score.total_cmp(&one.score));
    // Among hosts of one overhead the paper's second list has no order; that of the first is taken.
    let by_overhead = best(candidates, count, |one, other| {
        one.overhead.total_cmp(&other.overhead).then(other.score.total_cmp(&one.score))
    });
    let mut chosen: Vec<usize> = by_score.into_iter().filter(|place| by_overhead.contains(place)).collect();
    let mut taken = vec![false; candidates.len()];
    let (mut overhead, mut product) = (0.0, 1.0);
    for (place, candidate) in chosen.iter().filter_map(|place| Some((*place, candidates.get(*place)?))) {
        overhead += candidate.overhead;
        product *= candidate.score;
        if let Some(taken) = taken.get_mut(place) {
            *taken = true;
        }
    }
    while chosen.len() < count {
        let value =
            |candidate: &Candidate| objective(job, overhead + candidate.overhead, product * candidate.score);
        let left = candidates.iter().zip(&taken).enumerate().filter(|(_, (_, taken))| !**taken);
        let least = left.map(|(place, (candidate, _))| (value(candidate), place, candidate));
        let Some((_, place, next)) = least.min_by(|one, other| one.0.total_cmp(&other.0)) else { break };
        overhead += next.overhead;
        product *= next.score;
        chosen.push(place);
        if let Some(taken) = taken.get_mut(place) {
            *taken = true;
        }
    }
    assert!(chosen.len() <= count, "no more hosts than were asked for");
    chosen
}

/// Places of the first `count` candidates in an order; equal ones by place.
fn best(
    candidates: &[Candidate],
    count: usize,
    order: impl Fn(&Candidate, &Candidate) -> std::cmp::Ordering,
) -> Vec<usize> {
    let compare = |one: &(usize, &Candidate), other: &(usize, &Candidate)| {
        order(one.1, other.1).then(one.0.cmp(&other.0))
    };
    let mut all: Vec<(usize, &Candidate)> = candidates.iter().enumerate().collect();
    if count < all.len() && count > 0 {
        all.select_nth_unstable_by(count - 1, compare);
    }
    all.truncate(count);
    all.sort_unstable_by(compare);
    all.into_iter().map(|(place, _)| place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(steps: &[(u64, State)], until: u64) -> History {
        let mut history = History::new();
        steps.iter().for_each(|(at, state)| history.record(*at, *state));
        history.still(until);
        history
    }

    const CONSTANTS: Constants = Constants { reliable_from: 0.95, idle_weight: 0.75 };

    #[test]
    fn equation_1_by_hand() {
        // Compute host: up 0..100, down 100..200. Storage host: S0 0..50, S1 50..80, S2 80..120, S3 120..130, S0 130..200.
        let compute = of(&[(0, State::Running), (100, State::Unavailable)], 200);
        let steps = [
            (0, State::Running),
            (50, State::Loaded),
            (80, State::Refusing),
            (120, State::Unavailable),
            (130, State::Running),
        ];
        let storage = of(&steps, 200);
        let both = together(&storage, &compute, 0, 200);
        assert_eq!((both.up, both.down), ([50, 30, 20, 0], [70, 0, 20, 10]));
        assert!((both.reliability(&CONSTANTS) - 0.9).abs() < 1e-12);
        assert!((both.idleness(&CONSTANTS) - (0.75 * 0.5 + 0.25 * 0.3)).abs() < 1e-12);
        assert_eq!(
            both.score(&CONSTANTS),
            both.reliability(&CONSTANTS),
            "less reliable than γ: load doesn't count"
        );
        // From 130 on it was always there when the compute host was down, and that was never up.
        let late = together(&storage, &compute, 130, 200);
        assert_eq!((late.reliability(&CONSTANTS), late.score(&CONSTANTS)), (1.0, 0.95));
        // The compute host never failed: γ, and the load counts.
        let early = together(&storage, &compute, 0, 50);
        assert_eq!((early.reliability(&CONSTANTS), early.score(&CONSTANTS)), (0.95, 0.95 + 0.75));
    }

    #[test]
    fn time_that_nobody_saw_enters_no_probability() {
        let compute = of(&[(0, State::Running), (10, State::Unknown), (20, State::Unavailable)], 30);
        let storage = of(&[(0, State::Unknown), (5, State::Running)], 30);
        let both = together(&storage, &compute, 0, 30);
        assert_eq!((both.up, both.down), ([5, 0, 0, 0], [10, 0, 0, 0]));
        assert_eq!(together(&History::new(), &compute, 0, 30), Together::default());
    }

    /// The greedy choice, written again in the plainest way: every host tried, the whole objective computed anew.
    fn plainly(candidates: &[Candidate], count: usize, job: &Job) -> Vec<usize> {
        let mut by_score: Vec<usize> = (0..candidates.len()).collect();
        by_score.sort_by(|a, b| candidates[*b].score.total_cmp(&candidates[*a].score));
        let mut by_overhead = by_score.clone();
        by_overhead.sort_by(|a, b| {
            let (a, b) = (&candidates[*a], &candidates[*b]);
            a.overhead.total_cmp(&b.overhead).then(b.score.total_cmp(&a.score))
        });
        let first = |list: &[usize]| list[..count.min(list.len())].to_vec();
        let mut chosen = first(&by_score);
        chosen.retain(|place| first(&by_overhead).contains(place));
        let value = |chosen: &[usize]| {
            let overhead: f64 = chosen.iter().map(|place| candidates[*place].overhead).sum();
            let product: f64 = chosen.iter().map(|place| candidates[*place].score).product();
            job.mean_time_to_failure / job.interval * overhead
                - (job.worked + job.mean_time_to_failure) * product
        };
        while chosen.len() < count.min(candidates.len()) {
            let with = |place: usize| [chosen.as_slice(), &[place]].concat();
            let left = (0..candidates.len()).filter(|place| !chosen.contains(place));
            let next = left.min_by(|a, b| value(&with(*a)).total_cmp(&value(&with(*b)))).unwrap();
            chosen.push(next);
        }
        chosen
    }

    #[test]
    fn the_greedy_choice_is_the_papers() {
        let mut random = crate::random::Random::new(7);
        for round in 0..300 {
            let candidates: Vec<Candidate> = (0..3 + round % 40)
                .map(|_| Candidate { score: random.unit() * 1.7, overhead: 1.0 + random.unit() * 60.0 })
                .collect();
            let job = Job { mean_time_to_failure: 3000.0, interval: 300.0, worked: random.unit() * 1e5 };
            assert_eq!(greedy(&candidates, 5, &job), plainly(&candidates, 5, &job), "round {round}");
        }
        assert!(greedy(&[], 5, &Job { mean_time_to_failure: 1.0, interval: 1.0, worked: 0.0 }).is_empty());
    }

    #[test]
    fn a_slow_host_is_left_out_although_it_is_reliable() {
        let job = Job { mean_time_to_failure: 2700.0, interval: 300.0, worked: 0.0 };
        let mut candidates =
            vec![Candidate { score: 1.4, overhead: network_overhead(153_000_000, 3, 12.5e6) }; 6];
        candidates[0] = Candidate { score: 1.45, overhead: network_overhead(153_000_000, 3, 0.1e6) };
        assert_eq!(greedy(&candidates, 5, &job), [1, 2, 3, 4, 5]);
        assert_eq!(network_overhead(1, 1, 0.0), f64::INFINITY);
    }
}
