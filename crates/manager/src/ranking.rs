//! Ranks benefactors for compute hosts, away from the manager's own thread.
//!
//! Relies on `stdchk_placement` for all thinking, and on the core ([`crate::core`]) for what is known of hosts: the core tells a [`Ranker`]
//! the pasts that changed, and for which folders and compute hosts somebody wants a ranking; it gets the rankings back, and reads them
//! when a file is opened. A ranking of 10,000 hosts takes some 30 ms, a file some 50 µs.
//!
//! Nothing here is stored. A ranker that begins lives through the stored pasts of the last month again, and so learns what one that never
//! ended would know of it.
//!
//! | event | what the ranker does |
//! |---|---|
//! | it begins, a host is forgotten, labels change, a past was cut back | all that it has learned is learned anew from the pasts |
//! | pasts go on, or begin | the steps that are new are lessons |
//! | a ranking is wanted | the best hosts, and as many again to stand in for those that are full or busy |

use std::collections::{BTreeMap, HashMap};

use stdchk_model::labels::{self, Labels};
use stdchk_model::message::benefactor::StorageState;
use stdchk_model::message::manager::{PlacedHost, Placement};
use stdchk_model::{BenefactorId, exact};
use stdchk_placement::history::{History, State};
use stdchk_placement::pool::{FALLBACK_WINDOW, Policy, Pool, Request, Terms};
use stdchk_placement::predictor::Fate;
use stdchk_placement::shocks::{Groups, LEVELS, NO_GROUP};

use crate::core::HostKey;

/// The time between two checkpoints that rankings are made for, seconds. Pools have jobs of all kinds; an hour is the horizon on which
/// most of them lose something.
const HORIZON_S: u64 = 3600;
/// How far back the ranker learns from when it begins, seconds: within a month all days of the week come four times, and the hosts of a
/// large pool are lived through in seconds.
const RELIVED_S: u64 = 30 * 86_400;
/// Bytes of a checkpoint that rankings are made for.
const BYTES: u64 = 1 << 30;
/// Bandwidth between hosts where none is known, bytes per second; where some are, their mean.
const BANDWIDTH: f64 = 1e8;
/// Seconds of a week.
const WEEK_S: u64 = 7 * 86_400;
/// Reasons of the predictor that are told of each host.
const REASONS: usize = 5;

/// What a ranking is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Wanted {
    /// The way to choose.
    pub policy: Policy,
    /// Hosts of a stripe.
    pub width: u16,
    /// How many of them are enough.
    pub enough: u16,
    /// The compute host, if it is known.
    pub compute: Option<HostKey>,
}

/// A host, as the core knows it.
#[derive(Clone, Debug)]
pub struct ToldHost {
    /// Its past.
    pub past: History,
    /// Of a benefactor.
    pub labels: Labels,
}

/// What the core tells.
#[derive(Debug, Default)]
pub struct ToRank {
    /// Hosts that changed since the last time; `None`: forgotten.
    pub hosts: Vec<(HostKey, Option<ToldHost>)>,
    /// Until when all pasts are known, seconds.
    pub until: u64,
    /// There are more of them to be told before anything is ranked.
    pub more: bool,
    /// Rankings that are wanted.
    pub wanted: Vec<Wanted>,
    /// Bandwidths between their compute hosts and benefactors, bytes per second, as far as they are known.
    pub bandwidths: HashMap<HostKey, Known>,
}

/// Bandwidths to benefactors, bytes per second.
type Known = HashMap<BenefactorId, u64>;

/// A ranking.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranking {
    /// Benefactors in the order of preference.
    pub order: Vec<BenefactorId>,
    /// Why.
    pub why: Placement,
}

/// What ranks.
#[derive(Debug)]
pub struct Ranker {
    pool: Pool,
    /// The hosts of the pool by their numbers there.
    keys: Vec<HostKey>,
    numbers: HashMap<HostKey, usize>,
    labels: HashMap<HostKey, Labels>,
    /// Numbers of what hosts share, on each level.
    groups: [HashMap<String, u32>; LEVELS],
    /// Until when pasts are taken in, seconds; `None`: none is yet.
    until: Option<u64>,
    /// Told, and not taken in yet.
    told: BTreeMap<HostKey, Option<ToldHost>>,
    /// Counts rankings, so that hosts that are alike take turns.
    turn: usize,
}

impl Default for Ranker {
    fn default() -> Self {
        Self {
            pool: new_pool(),
            keys: Vec::new(),
            numbers: HashMap::new(),
            labels: HashMap::new(),
            groups: Default::default(),
            until: None,
            told: BTreeMap::new(),
            turn: 0,
        }
    }
}

fn new_pool() -> Pool {
    Pool::new(HORIZON_S, Fate::Returns, 1)
}

impl Ranker {
    /// Takes in what the core tells, and ranks what it wants.
    pub fn work(&mut self, told: ToRank) -> Vec<(Wanted, Ranking)> {
        let ToRank { hosts, until, more, wanted, bandwidths } = told;
        self.told.extend(hosts);
        if more {
            return Vec::new();
        }
        self.take_in(until);
        let none = HashMap::new();
        let rank = |wanted: Wanted| {
            let known = wanted.compute.and_then(|compute| bandwidths.get(&compute)).unwrap_or(&none);
            (wanted, self.rank(&wanted, known, until))
        };
        wanted.into_iter().map(rank).collect()
    }

    fn take_in(&mut self, until: u64) {
        let told = std::mem::take(&mut self.told);
        let mut steps = Vec::new();
        let goes_on = told.iter().all(|(host, told)| self.steps_since(*host, told.as_ref(), &mut steps));
        match goes_on {
            true => self.pool.live(steps),
            false => self.begin_anew(told, until),
        }
        self.pool.tick(until);
        self.until = Some(until);
    }

    /// The steps of a past that are new; false: it doesn't go on from what is known.
    fn steps_since(
        &mut self,
        host: HostKey,
        told: Option<&ToldHost>,
        steps: &mut Vec<(u64, usize, State)>,
    ) -> bool {
        let (told, number) = match (told, self.numbers.get(&host)) {
            (None, None) => return true,
            (Some(told), Some(number)) => (told, *number),
            (Some(told), None) => {
                let first = told.past.steps().next().map(|(at, _)| at);
                // What lies before all that was taken in can't be lived through any more.
                let Some(at) = self.until.filter(|until| first.is_none_or(|first| first >= *until)) else {
                    return false;
                };
                let number = self.add(host, told.labels.clone(), first.unwrap_or(at));
                steps.extend(told.past.steps().map(|(at, state)| (at, number, state)));
                return true;
            }
            (None, Some(_)) => return false,
        };
        let Some(known) = self.pool.hosts().get(number) else { return false };
        if self.labels.get(&host) != Some(&told.labels) {
            return false;
        }
        let last = known.history.steps().last();
        let mut new = told.past.steps();
        // Before the first step all is new.
        if last.is_some_and(|last| !new.any(|step| step == last)) {
            return false;
        }
        steps.extend(new.map(|(at, state)| (at, number, state)));
        true
    }

    fn begin_anew(&mut self, told: BTreeMap<HostKey, Option<ToldHost>>, until: u64) {
        let mut all: BTreeMap<HostKey, ToldHost> = BTreeMap::new();
        for (number, host) in self.keys.iter().enumerate() {
            let labels = self.labels.remove(host).unwrap_or_default();
            if let Some(known) = self.pool.hosts().get(number) {
                all.insert(*host, ToldHost { past: known.history.clone(), labels });
            }
        }
        for (host, told) in told {
            match told {
                Some(told) => drop(all.insert(host, told)),
                None => drop(all.remove(&host)),
            }
        }
        *self = Self { turn: self.turn, ..Self::default() };
        let from = until.saturating_sub(RELIVED_S);
        let mut pasts = Vec::new();
        for (host, ToldHost { past, labels }) in all {
            let at = past.steps().next().map_or(until, |(at, _)| at.max(from));
            self.add(host, labels, at);
            pasts.push(past);
        }
        self.pool.relive(pasts, from, until);
    }

    /// Adds a host of which nothing is known before `at`, seconds; returns its number.
    fn add(&mut self, host: HostKey, labels: Labels, at: u64) -> usize {
        let number = match host {
            HostKey::Benefactor(_) => {
                let (groups, dedicated) =
                    (numbered(&labels, &mut self.groups), labels::is_dedicated(&labels));
                self.pool.add(at, groups, History::new(), dedicated)
            }
            HostKey::Compute(_) => self.pool.add_compute(at),
        };
        self.numbers.insert(host, number);
        self.keys.push(host);
        self.labels.insert(host, labels);
        number
    }

    fn rank(&mut self, wanted: &Wanted, known: &Known, at: u64) -> Ranking {
        let compute = wanted.compute.and_then(|host| self.numbers.get(&host).copied());
        let (width, enough) = (usize::from(wanted.width), usize::from(wanted.enough));
        self.turn += width;
        let spread = wanted.compute.map_or(0, |host| match host {
            HostKey::Benefactor(id) => exact::to_usize(u64::from(id.0)),
            HostKey::Compute(id) => usize::from(u16::from_le_bytes([id[0], id[1]])),
        });
        let request = Request {
            at,
            compute,
            m: enough,
            k: width.saturating_sub(enough),
            bytes: BYTES,
            interval: HORIZON_S as f64,
            worked: HORIZON_S as f64,
            avoid: &[],
            turn: 0,
            first: self.turn.wrapping_add(spread),
        };
        let mean = known.values().map(|rate| *rate as f64).sum::<f64>() / known.len().max(1) as f64;
        let usual = if known.is_empty() { BANDWIDTH } else { mean };
        let bandwidth = |number: usize| {
            let id = self.keys.get(number).and_then(|host| host.benefactor());
            id.and_then(|id| known.get(&id)).map_or(usual, |rate| *rate as f64)
        };
        let first = self.pool.choose(wanted.policy, &request, bandwidth);
        let others = self.pool.choose(wanted.policy, &Request { avoid: &first, ..request }, bandwidth);
        let all = [first.as_slice(), &others].concat();
        let (terms, recoverable) = self.pool.explain(&request, &first, bandwidth);
        let (more, _) = self.pool.explain(&request, &others, bandwidth);
        let proven = self.pool.predictor().has_learned();
        let (lessons, losses) = self.pool.predictor().lessons();
        let in_use = match wanted.policy {
            Policy::Learned if !proven => Policy::Falcon { window: Some(FALLBACK_WINDOW) },
            policy => policy,
        };
        let past = compute.and_then(|compute| self.pool.hosts().get(compute)).map(|host| &host.history);
        let placed = |terms: &Terms| {
            let host = self.placed(terms, wanted, at)?;
            Some(PlacedHost { bandwidth: known.get(&host.id).copied(), ..host })
        };
        let hosts = terms.iter().chain(&more).filter_map(placed).collect();
        let why = Placement {
            policy: wanted.policy.to_string(),
            in_use: in_use.to_string(),
            ranked: true,
            compute: match wanted.compute {
                Some(HostKey::Benefactor(id)) => Some(id),
                _ => None,
            },
            mean_time_to_failure_s: past.and_then(History::mean_time_to_failure).map(whole),
            proven,
            lessons: whole(lessons),
            losses: whole(losses),
            recoverable_ppm: recoverable.map(millionths),
            width: wanted.width,
            hosts,
        };
        let id = |number: &usize| match self.keys.get(*number) {
            Some(HostKey::Benefactor(id)) => Some(*id),
            _ => None,
        };
        Ranking { order: all.iter().filter_map(id).collect(), why }
    }

    fn placed(&self, terms: &Terms, wanted: &Wanted, at: u64) -> Option<PlacedHost> {
        let host = *self.keys.get(terms.host)?;
        let HostKey::Benefactor(id) = host else { return None };
        let past = &self.pool.hosts().get(terms.host)?.history;
        let of_compute = wanted.compute.and_then(|compute| self.labels.get(&compute));
        let own = self.labels.get(&host);
        let shares =
            own.into_iter().flatten().filter(|label| of_compute.is_some_and(|all| all.contains(label)));
        let thousandths = |odds: f64| whole(odds.abs() * 1e3);
        let reason = |(name, odds): &(&str, f64)| {
            let size = i64::try_from(thousandths(*odds)).unwrap_or(i64::MAX);
            ((*name).to_owned(), if *odds < 0.0 { -size } else { size })
        };
        Some(PlacedHost {
            score_ppm: Some(millionths(terms.score)),
            lost_ppm: terms.lost.map(millionths),
            shares: shares.map(|(name, value)| format!("{name}={value}")).collect(),
            reasons: terms
                .reasons
                .iter()
                .filter(|(name, _)| *name != "base")
                .take(REASONS)
                .map(reason)
                .collect(),
            ..seen(id, past, at)
        })
    }
}

/// What a past says of a benefactor in plain figures.
pub fn seen(id: BenefactorId, past: &History, at: u64) -> PlacedHost {
    let (mut up, mut loaded, mut known, mut failures, mut was_up) = (0, 0, 0, 0, false);
    for span in past.spans(at.saturating_sub(WEEK_S), at) {
        let is_up = span.state.serves();
        if span.state != State::Unknown {
            known += span.to - span.from;
            up += if is_up { span.to - span.from } else { 0 };
            let is_loaded = matches!(span.state, State::Loaded | State::Refusing);
            loaded += if is_loaded { span.to - span.from } else { 0 };
        }
        failures += u32::from(was_up && span.state == State::Unavailable);
        was_up = is_up;
    }
    let mut since = None;
    for (step, state) in past.steps() {
        since = if state.serves() { since.or(Some(step)) } else { None };
    }
    PlacedHost {
        id,
        up_s: since.map(|since| at.saturating_sub(since)),
        failures_week: failures,
        up_week_ppm: (known > 0).then(|| millionths(up as f64 / known as f64)),
        score_ppm: None,
        lost_ppm: None,
        shares: Vec::new(),
        reasons: Vec::new(),
        state: StorageState::default(),
        loaded_week_ppm: (up > 0).then(|| millionths(loaded as f64 / up as f64)),
        bandwidth: None,
    }
}

/// The groups of a benefactor with these labels: numbers that stand for their values.
fn numbered(labels: &Labels, known: &mut [HashMap<String, u32>; LEVELS]) -> Groups {
    let mut groups = [NO_GROUP; LEVELS];
    for (level, (slot, known)) in groups.iter_mut().zip(known).enumerate() {
        if let Some(value) = labels::on_level(labels, level) {
            let next = exact::narrow(known.len());
            *slot = *known.entry(value.to_owned()).or_insert(next);
        }
    }
    groups
}

fn millionths(value: f64) -> u32 {
    exact::narrow(whole(value * 1e6).min(u64::from(u32::MAX)))
}

/// The nearest whole number, from 0 on.
pub fn whole(value: f64) -> u64 {
    // Seconds are whole, and so is what is counted here; what is no number counts as none.
    std::time::Duration::try_from_secs_f64(value.round()).map_or(0, |whole| whole.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(steps: &[(u64, State)], rack: &str) -> Option<ToldHost> {
        let mut past = History::new();
        steps.iter().for_each(|(at, state)| past.record(*at, *state));
        Some(ToldHost { past, labels: vec![("rack".to_owned(), rack.to_owned())] })
    }

    fn host(number: u32) -> HostKey {
        HostKey::Benefactor(BenefactorId(number))
    }

    fn take_in(ranker: &mut Ranker, until: u64, hosts: Vec<(HostKey, Option<ToldHost>)>) {
        ranker.work(ToRank { hosts, until, ..ToRank::default() });
    }

    #[test]
    fn a_new_host_is_added_to_what_was_learned_and_only_what_does_not_go_on_is_learned_anew() {
        let (up, down) = (State::Running, State::Unavailable);
        let mut ranker = Ranker::default();
        take_in(
            &mut ranker,
            1_000,
            vec![(host(1), told(&[(100, up)], "a")), (host(2), told(&[(200, up)], "b"))],
        );
        assert_eq!(ranker.keys, [host(1), host(2)]);
        // Those that are added stand behind the others; one that begins anew has them in order.
        let compute = HostKey::Compute([1; 16]);
        let new = (host(0), told(&[(1_500, up)], "b"));
        let gone = (host(1), told(&[(100, up), (1_600, down)], "a"));
        take_in(&mut ranker, 2_000, vec![new, gone, (compute, told(&[(2_000, up)], "x"))]);
        assert_eq!(ranker.keys, [host(1), host(2), host(0), compute]);
        let states: Vec<State> =
            ranker.pool.hosts().iter().map(stdchk_placement::pool::Host::state).collect();
        assert_eq!(states, [down, up, up, up]);
        assert_eq!(ranker.pool.hosts()[2].history.steps().collect::<Vec<_>>(), [(1_500, up)]);
        // It goes on from there.
        take_in(&mut ranker, 3_000, vec![(host(0), told(&[(1_500, up), (2_500, down)], "b"))]);
        assert_eq!((ranker.keys.len(), ranker.pool.hosts()[2].state()), (4, down));
        assert_eq!(ranker.keys[2], host(0));
        let anew = [told(&[(1_500, up)], "b"), told(&[(1_500, up)], "c"), None];
        for (number, anew) in (4..).zip(anew) {
            let until = u64::from(number) * 1_000;
            take_in(&mut ranker, until, vec![(host(number), told(&[(until, up)], "a"))]);
            assert!(!ranker.keys.is_sorted(), "it was added");
            let is_known = anew.is_some();
            take_in(&mut ranker, until, vec![(host(0), anew)]);
            assert!(ranker.keys.is_sorted() && ranker.numbers.contains_key(&host(0)) == is_known);
        }
    }
}
