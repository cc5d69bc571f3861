//! What is known of all hosts of a pool, and the choice among them by any policy, with the reasons.
//!
//! Relies on being told in order of time which host is in which state; the manager and the replay of traces call the same
//! functions. The one idea: a [`Policy`] is a name, not an object. What all policies need (histories, the predictor) lies here once, so that a folder can
//! change its policy without anything being learned anew.

use std::fmt;
use std::str::FromStr;

use stdchk_model::{duration, exact::part};

use crate::falcon::{self, Constants, Job};
use crate::history::{History, State};
use crate::learned::{self, Price};
use crate::predictor::{Fate, Predictor};
use crate::random::Random;
use crate::shocks::{Groups, Holder, LEVELS, NO_GROUP, recoverable};

/// Seconds of the window that [`Policy::Learned`] falls back to: a week, which covers the days of the week.
pub const FALLBACK_WINDOW: u64 = 7 * 86_400;
/// Days that `pessimistic` looks back: two weeks.
const PESSIMISTIC_DAYS: u64 = 14;
/// Seconds of a day.
const DAY: u64 = 86_400;

/// A way to select hosts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Policy {
    /// Hosts take turns.
    RoundRobin,
    /// Any hosts.
    Random,
    /// Hosts that are marked as dedicated servers.
    Dedicated,
    /// Chosen anew for each checkpoint by the share of the last days on which a host stayed up through the same time of day (Ren et
    /// al., HPDC 2007, as FALCON describes it in sections 2 and 3.3): no correlation, no load.
    Pessimistic,
    /// FALCON, over all that is kept of the histories, or over the last seconds of them.
    Falcon {
        /// How far it looks back, seconds.
        window: Option<u64>,
    },
    /// The predictor's choice; [`Policy::Falcon`] with [`FALLBACK_WINDOW`] until it has learned.
    Learned,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RoundRobin => f.write_str("round-robin"),
            Self::Random => f.write_str("random"),
            Self::Dedicated => f.write_str("dedicated"),
            Self::Pessimistic => f.write_str("pessimistic"),
            Self::Falcon { window: None } => f.write_str("falcon"),
            Self::Falcon { window: Some(window) } => {
                write!(f, "falcon:{}", duration::exact(window.saturating_mul(1000)))
            }
            Self::Learned => f.write_str("learned"),
        }
    }
}

/// Text that names no policy.
#[derive(Debug)]
pub struct NoPolicy(String);

impl fmt::Display for NoPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = "round-robin, random, dedicated, pessimistic, falcon, falcon:WINDOW (such as falcon:7d) or learned";
        write!(f, "{:?} is no way to select hosts; give {known}", self.0)
    }
}

impl std::error::Error for NoPolicy {}

impl FromStr for Policy {
    type Err = NoPolicy;

    fn from_str(text: &str) -> Result<Self, NoPolicy> {
        let refuse = || NoPolicy(text.to_owned());
        match text.split_once(':') {
            None => match text {
                "round-robin" => Ok(Self::RoundRobin),
                "random" => Ok(Self::Random),
                "dedicated" => Ok(Self::Dedicated),
                "pessimistic" => Ok(Self::Pessimistic),
                "falcon" => Ok(Self::Falcon { window: None }),
                "learned" => Ok(Self::Learned),
                _ => Err(refuse()),
            },
            Some(("falcon", window)) => match duration::parse(window).map(|ms| ms / 1000) {
                Some(window) if window > 0 => Ok(Self::Falcon { window: Some(window) }),
                _ => Err(refuse()),
            },
            Some(_) => Err(refuse()),
        }
    }
}

/// A host of the pool.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Its states.
    pub history: History,
    /// Whether it is a dedicated server.
    pub dedicated: bool,
    /// Whether it only computes, and never gets a part.
    pub only_computes: bool,
    /// The state that it is in.
    now: Option<State>,
}

impl Host {
    /// The state that it is in, S0' included, which a history doesn't keep.
    #[must_use]
    pub fn state(&self) -> State {
        self.now.unwrap_or(State::Unknown)
    }
}

/// All hosts, numbered from 0, and what has been learned of them.
#[derive(Clone, Debug)]
pub struct Pool {
    hosts: Vec<Host>,
    predictor: Predictor,
    constants: Constants,
}

/// A choice to be made.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The time, seconds of the clock that histories are kept by.
    pub at: u64,
    /// The compute host, if it is one of the pool's hosts. It never gets a part itself.
    pub compute: Option<usize>,
    /// Parts that are enough.
    pub m: usize,
    /// Parts beyond them.
    pub k: usize,
    /// Bytes of the checkpoint.
    pub bytes: u64,
    /// The time between checkpoints, seconds.
    pub interval: f64,
    /// Useful computation so far, seconds.
    pub worked: f64,
    /// Hosts that may not be chosen, whatever their state.
    pub avoid: &'a [usize],
    /// Decides among hosts where chance or turns do.
    pub turn: u64,
    /// With which of the hosts that may be chosen a ranking begins: of hosts that are alike, the first is preferred.
    pub first: usize,
}

/// Why a host was chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct Terms {
    /// The host.
    pub host: usize,
    /// CR of equation (1), over all history.
    pub reliability: f64,
    /// LI of equation (1), over all history.
    pub idleness: f64,
    /// CRLS of equation (1), over all history.
    pub score: f64,
    /// N of equation (2), seconds.
    pub overhead: f64,
    /// Probability that its part is gone when the compute host fails within the horizon; none before anything is learned.
    pub lost: Option<f64>,
    /// What adds to the logarithm of the odds of that, largest first.
    pub reasons: Vec<(&'static str, f64)>,
}

/// Mean time to failure, seconds, of a compute host that was never seen to fail: a day, as long as nothing is known.
const TIME_TO_FAILURE_UNKNOWN: f64 = 86_400.0;

impl Pool {
    /// A pool without hosts, whose checkpoints are about `horizon` seconds apart.
    #[must_use]
    pub fn new(horizon: u64, fate: Fate, seed: u64) -> Self {
        Self {
            hosts: Vec::new(),
            predictor: Predictor::new(horizon, fate, seed),
            constants: Constants::default(),
        }
    }

    /// Adds a host of which nothing is known yet, or only a history from before; returns its number.
    pub fn add(&mut self, at: u64, groups: Groups, history: History, dedicated: bool) -> usize {
        self.hosts.push(Host { history, dedicated, only_computes: false, now: None });
        let number = self.predictor.add(at, groups);
        assert_eq!(number + 1, self.hosts.len(), "hosts have one number everywhere");
        number
    }

    /// Adds a compute host of which nothing is known yet, and that never gets a part; returns its number.
    pub fn add_compute(&mut self, at: u64) -> usize {
        let history = History::new();
        self.hosts.push(Host { history, dedicated: false, only_computes: true, now: None });
        let number = self.predictor.add_as(at, [NO_GROUP; LEVELS], false);
        assert_eq!(number + 1, self.hosts.len(), "hosts have one number everywhere");
        number
    }

    /// All hosts.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// What has been learned.
    #[must_use]
    pub fn predictor(&self) -> &Predictor {
        &self.predictor
    }

    /// Takes note of the states of hosts at `at`, seconds: all that changed at one time in one call, since hosts that fail together are
    /// told together.
    pub fn record(&mut self, at: u64, states: &[(usize, State)]) {
        for (host, state) in states {
            if let Some(known) = self.hosts.get_mut(*host) {
                known.history.record(at, *state);
                known.now = Some(*state);
            }
        }
        self.tell(at, states);
    }

    /// Takes note of steps of histories, each a time, a host and its state from then on.
    pub fn live(&mut self, mut steps: Vec<(u64, usize, State)>) {
        steps.sort_unstable_by_key(|(at, host, _)| (*at, *host));
        for together in steps.chunk_by(|one, other| one.0 == other.0) {
            let Some((at, _, _)) = together.first() else { continue };
            let states: Vec<(usize, State)> =
                together.iter().map(|(_, host, state)| (*host, *state)).collect();
            self.predictor.tick(*at);
            self.record(*at, &states);
        }
    }

    /// Gives the hosts of a new pool their histories, in the order of their numbers, and learns from what happened from `from` to `until`,
    /// seconds.
    pub fn relive(&mut self, histories: Vec<History>, from: u64, until: u64) {
        let mut steps = Vec::new();
        for (host, history) in histories.iter().enumerate() {
            let before = history.steps().take_while(|(at, _)| *at <= from).last();
            steps.extend(before.map(|(_, state)| (from, host, state)));
            let later = history.steps().filter(|(at, _)| *at > from && *at <= until);
            steps.extend(later.map(|(at, state)| (at, host, state)));
        }
        steps.sort_unstable_by_key(|(at, host, _)| (*at, *host));
        let mut ticked = from;
        for together in steps.chunk_by(|one, other| one.0 == other.0) {
            let Some((at, _, _)) = together.first() else { continue };
            self.tick_up_to(&mut ticked, *at);
            let states: Vec<(usize, State)> =
                together.iter().map(|(_, host, state)| (*host, *state)).collect();
            self.tell(*at, &states);
        }
        self.tick_up_to(&mut ticked, until);
        for (host, history) in self.hosts.iter_mut().zip(histories) {
            host.now = Some(history.state());
            host.history = history;
        }
    }

    /// Lets time go on from `ticked` to `at`, in steps of a quarter of a horizon.
    fn tick_up_to(&mut self, ticked: &mut u64, at: u64) {
        let step = self.predictor.horizon() / 4 + 1;
        while ticked.saturating_add(step) < at {
            *ticked += step;
            self.predictor.tick(*ticked);
        }
        *ticked = at.max(*ticked);
        self.predictor.tick(*ticked);
    }

    /// Tells the predictor.
    fn tell(&mut self, at: u64, states: &[(usize, State)]) {
        let mut failed = Vec::new();
        for (host, state) in states {
            match state {
                State::Unknown => self.predictor.unseen(at, *host),
                State::Unavailable => failed.push(*host),
                State::Running | State::Full | State::Loaded | State::Refusing => {
                    self.predictor.up(at, *host);
                }
            }
        }
        self.predictor.down(at, &failed);
    }

    /// Takes note that time has come to `at`, seconds, and that all hosts are still in their states.
    pub fn tick(&mut self, at: u64) {
        self.hosts.iter_mut().for_each(|host| host.history.still(at));
        self.predictor.tick(at);
    }

    /// Mean time to failure of a host, seconds.
    fn mean_time_to_failure(&self, host: Option<usize>) -> f64 {
        let known = host.and_then(|host| self.hosts.get(host)?.history.mean_time_to_failure());
        known.unwrap_or(TIME_TO_FAILURE_UNKNOWN).max(1.0)
    }

    fn job(&self, request: &Request<'_>) -> Job {
        Job {
            mean_time_to_failure: self.mean_time_to_failure(request.compute),
            interval: request.interval.max(1.0),
            worked: request.worked,
        }
    }

    /// Numbers of the hosts that take new stores and may be chosen.
    fn usable(&self, request: &Request<'_>) -> Vec<usize> {
        let usable = |place: &usize| {
            let accepts =
                self.hosts.get(*place).is_some_and(|host| host.state().accepts() && !host.only_computes);
            accepts && request.compute != Some(*place) && !request.avoid.contains(place)
        };
        let mut usable: Vec<usize> = (0..self.hosts.len()).filter(usable).collect();
        if !usable.is_empty() {
            let first = request.first % usable.len();
            usable.rotate_left(first);
        }
        usable
    }

    /// The hosts for all m + k parts, in the order of preference; fewer where fewer can be used. `bandwidth` gives the available
    /// bandwidth between the compute host and a host, bytes per second.
    #[must_use]
    pub fn choose(
        &self,
        policy: Policy,
        request: &Request<'_>,
        bandwidth: impl Fn(usize) -> f64,
    ) -> Vec<usize> {
        let usable = self.usable(request);
        let count = request.m + request.k;
        let overhead = |host: usize| falcon::network_overhead(request.bytes, request.m, bandwidth(host));
        let chosen = match policy {
            Policy::RoundRobin => turns(usable, count, request.turn),
            Policy::Random => random(usable, count, request.turn),
            Policy::Dedicated => {
                let dedicated = |host: &usize| self.hosts.get(*host).is_some_and(|host| host.dedicated);
                turns(usable.into_iter().filter(dedicated).collect(), count, request.turn)
            }
            Policy::Pessimistic => {
                let score = |host: usize| self.stayed_up(host, request.at, request.interval);
                self.greedy(&usable, count, request, overhead, score)
            }
            Policy::Falcon { window } => self.greedy(&usable, count, request, overhead, |host| {
                self.together(host, request, window).score(&self.constants)
            }),
            Policy::Learned if !self.predictor.has_learned() => {
                return self.choose(Policy::Falcon { window: Some(FALLBACK_WINDOW) }, request, bandwidth);
            }
            Policy::Learned => {
                let candidates: Vec<learned::Candidate> =
                    usable.iter().map(|host| self.candidate(*host, request, overhead(*host))).collect();
                let (job, correlations) = (self.job(request), self.predictor.correlations());
                let wanted = learned::Wanted { m: request.m, count, job: &job, correlations: &correlations };
                hosts_at(&usable, learned::choose(&candidates, &wanted))
            }
        };
        assert!(chosen.len() <= count, "no more hosts than parts");
        chosen
    }

    /// Which hosts should get parts again while the compute host lives, `held` being the hosts whose parts are there and `left` the seconds
    /// until the next checkpoint. None before anything is learned: use [`Pool::repair_when_few`] then.
    #[must_use]
    pub fn repair(
        &self,
        request: &Request<'_>,
        held: &[usize],
        left: f64,
        price: &Price,
        bandwidth: impl Fn(usize) -> f64,
    ) -> Vec<usize> {
        let overhead = |host: usize| falcon::network_overhead(request.bytes, request.m, bandwidth(host));
        let present: Vec<learned::Candidate> =
            held.iter().map(|host| self.candidate(*host, request, overhead(*host))).collect();
        let usable: Vec<usize> =
            self.usable(request).into_iter().filter(|host| !held.contains(host)).collect();
        let candidates: Vec<learned::Candidate> =
            usable.iter().map(|host| self.candidate(*host, request, overhead(*host))).collect();
        let (job, correlations) = (self.job(request), self.predictor.correlations());
        let count = request.m + request.k;
        let wanted = learned::Wanted { m: request.m, count, job: &job, correlations: &correlations };
        let share = (left / request.interval.max(1.0)).clamp(0.0, 1.0);
        let hazard =
            request.compute.map_or(1.0, |compute| self.predictor.lost(request.at, compute, None)) * share;
        hosts_at(&usable, learned::repair(&present, &candidates, &wanted, hazard, price.now()))
    }

    /// The plain rule of lazy repair: all missing parts, by any policy, once no more than m are left.
    #[must_use]
    pub fn repair_when_few(
        &self,
        policy: Policy,
        request: &Request<'_>,
        held: &[usize],
        bandwidth: impl Fn(usize) -> f64,
    ) -> Vec<usize> {
        if held.len() > request.m {
            return Vec::new();
        }
        let avoid = [request.avoid, held].concat();
        let mut chosen = self.choose(policy, &Request { avoid: &avoid, ..*request }, bandwidth);
        chosen.truncate(request.m + request.k - held.len());
        chosen
    }

    /// Why these hosts, and the probability that the checkpoint is recoverable from them when the compute host fails within
    /// the horizon (none before anything is learned).
    #[must_use]
    pub fn explain(
        &self,
        request: &Request<'_>,
        chosen: &[usize],
        bandwidth: impl Fn(usize) -> f64,
    ) -> (Vec<Terms>, Option<f64>) {
        let learned = self.predictor.has_learned();
        let terms = |host: &usize| {
            let both = self.together(*host, request, None);
            Terms {
                host: *host,
                reliability: both.reliability(&self.constants),
                idleness: both.idleness(&self.constants),
                score: both.score(&self.constants),
                overhead: falcon::network_overhead(request.bytes, request.m, bandwidth(*host)),
                lost: learned.then(|| self.predictor.lost(request.at, *host, request.compute)),
                reasons: if learned {
                    self.predictor.reasons(request.at, *host, request.compute)
                } else {
                    Vec::new()
                },
            }
        };
        let holders: Vec<Holder> =
            chosen.iter().map(|host| self.candidate(*host, request, 0.0).holder).collect();
        let probability = learned.then(|| recoverable(request.m, &holders, &self.predictor.correlations()));
        (chosen.iter().map(terms).collect(), probability)
    }

    fn candidate(&self, host: usize, request: &Request<'_>, overhead: f64) -> learned::Candidate {
        let lost = self.predictor.lost(request.at, host, request.compute);
        learned::Candidate { holder: Holder { lost, groups: self.predictor.groups_of(host) }, overhead }
    }

    fn together(&self, host: usize, request: &Request<'_>, window: Option<u64>) -> falcon::Together {
        let compute = request.compute.and_then(|compute| self.hosts.get(compute));
        let (Some(storage), Some(compute)) = (self.hosts.get(host), compute) else {
            return falcon::Together::default();
        };
        let from = window.map_or(0, |window| request.at.saturating_sub(window));
        falcon::together(&storage.history, &compute.history, from, request.at)
    }

    fn greedy(
        &self,
        usable: &[usize],
        count: usize,
        request: &Request<'_>,
        overhead: impl Fn(usize) -> f64,
        score: impl Fn(usize) -> f64,
    ) -> Vec<usize> {
        let candidate = |host: &usize| falcon::Candidate { score: score(*host), overhead: overhead(*host) };
        let candidates: Vec<falcon::Candidate> = usable.iter().map(candidate).collect();
        hosts_at(usable, falcon::greedy(&candidates, count, &self.job(request)))
    }

    /// The share of the last days on which a host stayed up from this time of day on for the next seconds.
    fn stayed_up(&self, host: usize, at: u64, seconds: f64) -> f64 {
        let Some(host) = self.hosts.get(host) else { return 0.0 };
        let ahead =
            std::time::Duration::try_from_secs_f64(seconds).map_or(DAY, |ahead| ahead.as_secs()).min(DAY);
        let (mut stayed, mut days) = (0_u32, 0_u32);
        for day in 1..=PESSIMISTIC_DAYS.min(at / DAY) {
            let from = at - day * DAY;
            let mut seen = host.history.spans(from, from + ahead).peekable();
            if seen.peek().is_some() {
                days += 1;
                stayed += u32::from(seen.all(|span| span.state.serves()));
            }
        }
        // One day of even odds, so that a host known for an hour isn't the best of all.
        (f64::from(stayed) + 0.5) / (f64::from(days) + 1.0)
    }
}

fn hosts_at(usable: &[usize], places: Vec<usize>) -> Vec<usize> {
    places.into_iter().map(|place| *part(usable, place)).collect()
}

fn turns(mut usable: Vec<usize>, count: usize, turn: u64) -> Vec<usize> {
    if !usable.is_empty() {
        let first = turn % usable.len() as u64;
        usable.rotate_left(stdchk_model::exact::to_usize(first));
    }
    usable.truncate(count);
    usable
}

fn random(mut usable: Vec<usize>, count: usize, turn: u64) -> Vec<usize> {
    let mut random = Random::new(turn);
    let count = count.min(usable.len());
    for place in 0..count {
        let other = place + random.below(usable.len() - place);
        usable.swap(place, other);
    }
    usable.truncate(count);
    usable
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    /// Forty hosts over some days, each of which fails at its own rate and comes back.
    fn lived(days: u64) -> (Pool, u64) {
        let mut pool = Pool::new(6 * HOUR, Fate::Gone, 1);
        let mut random = Random::new(3);
        for host in 0..40_u32 {
            pool.add(0, [host / 4, NO_GROUP, NO_GROUP], History::new(), host >= 38);
        }
        let mut at = 0;
        for hour in 0..days * 24 {
            at = hour * HOUR;
            let state = |host: usize| match random.unit() {
                drawn if drawn < host as f64 / 200.0 => State::Unavailable,
                drawn if drawn > 0.9 => State::Loaded,
                _ => State::Running,
            };
            let states: Vec<(usize, State)> = (0..40).map(state).enumerate().collect();
            pool.record(at, &states);
            pool.tick(at);
        }
        pool.record(at, &(0..40).map(|host| (host, State::Running)).collect::<Vec<_>>());
        (pool, at)
    }

    fn request(at: u64, avoid: &[usize]) -> Request<'_> {
        Request {
            at,
            compute: Some(7),
            m: 3,
            k: 2,
            bytes: 1 << 20,
            interval: 6.0 * 3600.0,
            worked: 1e4,
            avoid,
            turn: 5,
            first: 0,
        }
    }

    const POLICIES: [Policy; 7] = [
        Policy::RoundRobin,
        Policy::Random,
        Policy::Dedicated,
        Policy::Pessimistic,
        Policy::Falcon { window: None },
        Policy::Falcon { window: Some(FALLBACK_WINDOW) },
        Policy::Learned,
    ];

    #[test]
    fn no_policy_takes_a_host_that_refuses_is_away_avoided_or_computes() {
        let (mut pool, at) = lived(60);
        assert!(pool.predictor().has_learned());
        let states = [State::Full, State::Refusing, State::Unavailable, State::Unknown];
        let refusing: Vec<(usize, State)> = states.into_iter().cycle().take(28).enumerate().collect();
        pool.record(at, &refusing);
        for policy in POLICIES {
            for turn in 0..50 {
                let mut chosen = pool.choose(policy, &Request { turn, ..request(at, &[30, 39]) }, |_| 1e6);
                assert!(
                    chosen.iter().all(|host| *host >= 28 && *host != 30 && *host != 39),
                    "{policy} {chosen:?}"
                );
                assert_eq!(chosen.len(), if policy == Policy::Dedicated { 1 } else { 5 }, "{policy}");
                chosen.sort_unstable();
                chosen.dedup();
                assert!(chosen.len() == 5 || policy == Policy::Dedicated, "{policy}: a host twice");
            }
        }
        let compute = Request { compute: Some(35), ..request(at, &[]) };
        assert!(POLICIES.iter().all(|policy| !pool.choose(*policy, &compute, |_| 1e6).contains(&35)));
    }

    #[test]
    fn before_it_has_learned_it_chooses_as_falcon_with_a_window_does() {
        for days in [0, 1, 2] {
            let (mut pool, at) = lived(days);
            pool.predictor = Predictor::new(6 * HOUR, Fate::Gone, 1);
            assert!(!pool.predictor().has_learned());
            let chosen = |policy| pool.choose(policy, &request(at, &[]), |host| 1e5 + host as f64);
            assert_eq!(chosen(Policy::Learned), chosen(Policy::Falcon { window: Some(FALLBACK_WINDOW) }));
        }
    }

    #[test]
    fn a_choice_is_explained_by_terms_of_each_host() {
        let (pool, at) = lived(60);
        let chosen = pool.choose(Policy::Learned, &request(at, &[]), |_| 1e6);
        let (terms, probability) = pool.explain(&request(at, &[]), &chosen, |_| 1e6);
        assert!(probability.unwrap() > 0.9);
        assert_eq!(terms.iter().map(|terms| terms.host).collect::<Vec<_>>(), chosen);
        assert!(terms.iter().all(|terms| terms.lost.unwrap() < 0.5 && !terms.reasons.is_empty()));
        let worse = pool.explain(&request(at, &[]), &[33, 34, 35, 36, 37], |_| 1e6).1.unwrap();
        assert!(worse < probability.unwrap(), "{worse}");
        let young = Pool::new(HOUR, Fate::Gone, 1).explain(&request(0, &[]), &[], |_| 1e6);
        assert_eq!(young, (Vec::new(), None));
    }

    #[test]
    fn who_lives_through_histories_again_knows_what_one_knows_who_was_there() {
        let (there, at) = lived(60);
        let mut again = Pool::new(6 * HOUR, Fate::Gone, 1);
        for host in 0..40_u32 {
            again.add(0, [host / 4, NO_GROUP, NO_GROUP], History::new(), host >= 38);
        }
        again.relive(there.hosts().iter().map(|host| host.history.clone()).collect(), 0, at);
        assert!(again.predictor().has_learned());
        // Snapshots are taken at other moments, so that lessons differ; what they teach doesn't.
        for pool in [&there, &again] {
            let mean = |hosts: std::ops::Range<usize>| {
                let count = hosts.len() as f64;
                hosts.map(|host| pool.predictor().lost(at, host, Some(39))).sum::<f64>() / count
            };
            let (rarely, often) = (mean(0..10), mean(28..38));
            assert!(rarely < 0.7 * often, "{rarely} {often}");
        }
        // It goes on in the same way.
        let states = [(3, State::Unavailable), (4, State::Unavailable)];
        let mut lives = again.clone();
        lives.live(states.map(|(host, state)| (at + HOUR, host, state)).to_vec());
        again.predictor.tick(at + HOUR);
        again.record(at + HOUR, &states);
        assert_eq!(lives.predictor().lessons(), again.predictor().lessons());
        assert_eq!(lives.hosts()[3].state(), State::Unavailable);
    }

    #[test]
    fn few_parts_are_made_again_elsewhere() {
        let (pool, at) = lived(10);
        let repair = |held: &[usize]| pool.repair_when_few(Policy::Random, &request(at, &[]), held, |_| 1e6);
        assert!(repair(&[1, 2, 3, 4]).is_empty());
        let made = repair(&[1, 2, 3]);
        assert!(made.len() == 2 && made.iter().all(|host| ![1, 2, 3, 7].contains(host)));
    }

    #[test]
    fn policies_are_read_as_they_are_printed() {
        for policy in POLICIES {
            assert_eq!(policy.to_string().parse::<Policy>().unwrap(), policy);
        }
        for text in ["falcon:", "falcon:0s", "random:7d", "falcon:7x", "", "Falcon"] {
            assert!(text.parse::<Policy>().is_err(), "{text}");
        }
    }
}
