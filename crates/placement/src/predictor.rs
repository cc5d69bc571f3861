//! How likely a part of a checkpoint is gone when the compute host fails: learned from every failure, while the pool runs.
//!
//! Relies on being told of every host that comes up or fails, in order of time. The one idea: a failure of a compute host is
//! the moment that counts, so each failure is a lesson. When a host fails, the predictor looks at some other hosts as they were at a random
//! moment within the horizon before (its last snapshot), and at whether they are still there. A logistic model of their
//! session's age, failures, availability, hour of the day, the state of their groups, and whether they share a group with the
//! host that failed, learns from that by AdaGrad. Before it learns from a lesson it is examined by it, beside the availability of the last days;
//! as long as it isn't the better of the two, [`Predictor::has_learned`] says no, and selection doesn't use it.
//!
//! | event | what changes |
//! |---|---|
//! | a host comes up | a session begins |
//! | hosts fail at one time | their sessions end; lessons about others that were there at the snapshot, from each of them |
//! | nobody looks at a host | its time stands still; that it is gone when it is looked at again is no failure, and teaches nothing |
//! | time goes on by a horizon | correlation within groups is measured on the old snapshot; a new one is taken |
//! | the clock has gone back | nothing grows older; all goes on from the new time |
//!
//! Memory is bounded: some 1 KiB for each host and 80 for each group. Work: a step for each lesson, [`LESSONS`] for each failure; a pass over all hosts
//! once in a horizon.

use stdchk_model::exact::{part, part_mut};

use crate::random::Random;
use crate::shocks::{Correlations, Groups, LEVELS, NO_GROUP};

/// Lessons of one failure from anywhere in the pool.
const LESSONS: usize = 12;
/// Lessons of one failure from each group of the host that failed.
const LESSONS_OF_A_GROUP: usize = 4;
/// Lost parts among the lessons before the model can be preferred: fewer say little about thirty weights.
const LOSSES_MIN: f64 = 50.0;
/// Weight of an old lesson's examination against the next one's.
const EXAM_MEMORY: f64 = 0.9995;
/// Step of AdaGrad, in units of a weight. A fifth and two fifths of it lost more on spot traces.
const LEARNING_RATE: f64 = 0.4;
/// Pull of each weight to zero, for each lesson.
const SHRINKAGE: f64 = 1e-6;
/// Time constants of a host's failures and availability, seconds: hours, a day, a week, a month, a season.
const MEMORIES: [f64; 5] = [6.0 * 3600.0, 86_400.0, 7.0 * 86_400.0, 30.0 * 86_400.0, 120.0 * 86_400.0];
/// Time constants of a group's failures, seconds.
const GROUP_MEMORIES: [f64; 2] = [3600.0, 86_400.0];
/// The feature that the model is examined beside: the logarithm of unavailability within a week, plus 3.
const WEEK_FEATURE: usize = 13;
/// Hours of a day.
const HOURS: usize = 24;
/// Weight of an hour's last sight in its availability.
const HOUR_WEIGHT: f64 = 0.15;

/// Features of a host alone.
const OF_HOST: usize = 23 + 3 * LEVELS;
/// Features of a host and the compute host: both in one group, that group's failures, and how often both failed together.
const OF_PAIR: usize = 2 * LEVELS + 2;
/// Failures of each host whose times are kept, the last ones.
const FAILURES_KEPT: usize = 32;
/// All features.
const FEATURES: usize = OF_HOST + OF_PAIR;

/// What the features are, in their order, for explanations.
pub const FEATURE_NAMES: [&str; FEATURES] = [
    "base",
    "age of the session, minutes",
    "age of the session, up to a horizon",
    "age of the session, some horizons",
    "age of the session, ten horizons",
    "age of the session, more",
    "failures within hours",
    "failures within a day",
    "failures within a week",
    "failures within a month",
    "failures within a season",
    "unavailable within hours",
    "unavailable within a day",
    "unavailable within a week",
    "unavailable within a month",
    "unavailable within a season",
    "unavailable at this time of day",
    "length of its sessions",
    "age against the length of its sessions",
    "known for",
    "failures of all hosts within an hour",
    "failures of all hosts within a day",
    "unavailable hosts of all",
    "failures within an hour in its finest group",
    "failures within a day in its finest group",
    "unavailable hosts in its finest group",
    "failures within an hour in its middle group",
    "failures within a day in its middle group",
    "unavailable hosts in its middle group",
    "failures within an hour in its widest group",
    "failures within a day in its widest group",
    "unavailable hosts in its widest group",
    "shares the finest group with the compute host",
    "shares the middle group with the compute host",
    "shares the widest group with the compute host",
    "shares the finest group, which has been failing",
    "shares the middle group, which has been failing",
    "shares the widest group, which has been failing",
    "times that both failed together",
    "share of the compute host's failures in which it failed too",
];

/// What becomes of the parts that a host held when it fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The disk comes back with the host: a volunteer's computer that was switched off.
    Returns,
    /// The disk is gone: a preempted instance of a cloud.
    Gone,
}

/// A host as the predictor knows it. Times are seconds.
#[derive(Clone, Debug)]
struct Vital {
    groups: Groups,
    /// Whether it holds parts: one that only computes is no lesson about others.
    stores: bool,
    up: bool,
    /// Nobody looks at it.
    unseen: bool,
    /// Since when it is up, or down.
    since: f64,
    known_from: f64,
    /// When it failed last, oldest first; at most [`FAILURES_KEPT`].
    failed_at: Vec<f64>,
    /// Until when the sums below are right.
    at: f64,
    failures: [f64; 5],
    availability: [f64; 5],
    /// How much of each memory is filled, 0 to 1.
    filled: [f64; 5],
    hours: [f64; HOURS],
    /// Mean of the logarithm of the lengths of its sessions, and how many of them it stands for.
    session: f64,
    sessions: f64,
}

/// A group, or all hosts.
#[derive(Clone, Debug, Default)]
struct Crowd {
    members: Vec<u32>,
    up: f64,
    at: f64,
    failures: [f64; 2],
}

type OfHost = [f64; OF_HOST];
type Features = [f64; FEATURES];

/// A host at the last snapshot.
#[derive(Clone, Debug)]
struct Seen {
    features: OfHost,
}

/// Predicts, for one horizon, which parts are gone when a compute host fails.
#[derive(Clone, Debug)]
pub struct Predictor {
    horizon: f64,
    fate: Fate,
    hosts: Vec<Vital>,
    groups: [Vec<Crowd>; LEVELS],
    all: Crowd,
    weights: Features,
    squares: Features,
    snapshot: Vec<Option<Seen>>,
    snapshot_at: f64,
    random: Random,
    lessons: f64,
    losses: f64,
    own_error: f64,
    other_error: f64,
    together: [f64; LEVELS],
    expected: [f64; LEVELS],
}

impl Vital {
    fn new(groups: Groups, at: f64, stores: bool) -> Self {
        Self {
            groups,
            stores,
            up: false,
            unseen: false,
            since: at,
            known_from: at,
            failed_at: Vec::new(),
            at,
            failures: [0.0; 5],
            availability: [0.0; 5],
            filled: [0.0; 5],
            hours: [0.5; HOURS],
            session: 0.0,
            sessions: 0.0,
        }
    }

    /// Lets time pass until `at` in the state that it is in.
    fn advance(&mut self, at: f64) {
        if self.unseen {
            self.at = at;
            return;
        }
        let elapsed = (at - self.at).max(0.0);
        let present = f64::from(u8::from(self.up));
        let sums = self.failures.iter_mut().zip(&mut self.availability).zip(&mut self.filled);
        for (((failures, availability), filled), memory) in sums.zip(MEMORIES) {
            let kept = (-elapsed / memory).exp();
            *failures *= kept;
            *availability = *availability * kept + present * (1.0 - kept);
            *filled = *filled * kept + (1.0 - kept);
        }
        let (first, last) = ((self.at / 3600.0).ceil(), (at / 3600.0).ceil());
        let mut hour = first.max(last - HOURS as f64);
        while hour < last {
            if let Some(known) = self.hours.get_mut(hour_of_day(hour * 3600.0)) {
                *known += HOUR_WEIGHT * (present - *known);
            }
            hour += 1.0;
        }
        self.at = at;
    }

    fn fail(&mut self, at: f64) {
        self.advance(at);
        self.failures.iter_mut().for_each(|sum| *sum += 1.0);
        let length = (at - self.since).max(1.0).ln();
        self.sessions = (self.sessions + 1.0).min(10.0);
        self.session += (length - self.session) / self.sessions;
        (self.up, self.since) = (false, at);
        if self.failed_at.len() >= FAILURES_KEPT {
            self.failed_at.remove(0);
        }
        self.failed_at.push(at);
    }

    /// Availability within the memory of a place, drawn to the middle while little is known.
    fn available(&self, place: usize) -> f64 {
        let of = |sums: &[f64; 5]| sums.get(place).copied().unwrap_or(0.0);
        (of(&self.availability) + 0.01) / (of(&self.filled) + 0.02)
    }

    fn unavailable_at(&self, from: f64, seconds: f64) -> f64 {
        let slots = (seconds / 3600.0).ceil().clamp(1.0, HOURS as f64);
        let (mut sum, mut slot) = (0.0, 0.0);
        while slot < slots {
            sum += 1.0 - self.hours.get(hour_of_day(from + slot * 3600.0)).copied().unwrap_or(0.5);
            slot += 1.0;
        }
        sum / slots
    }
}

fn hour_of_day(at: f64) -> usize {
    let hour = (at / 3600.0).rem_euclid(HOURS as f64).floor();
    (0..HOURS).rev().find(|number| *number as f64 <= hour).unwrap_or(0)
}

impl Crowd {
    fn decayed(&self, at: f64) -> [f64; 2] {
        let elapsed = (at - self.at).max(0.0);
        std::array::from_fn(|place| {
            part(&self.failures, place) * (-elapsed / part(&GROUP_MEMORIES, place)).exp()
        })
    }

    fn fail(&mut self, at: f64) {
        self.failures = self.decayed(at).map(|sum| sum + 1.0);
        self.at = at;
        self.up -= 1.0;
    }

    /// Failures within an hour and a day for each member, as logarithms, and the share of members that is not there.
    fn features(&self, at: f64) -> [f64; 3] {
        let members = self.members.len() as f64;
        let [hour, day] = self.decayed(at).map(|sum| (1.0 + 50.0 * sum / members.max(1.0)).ln());
        [hour, day, 1.0 - self.up / members.max(1.0)]
    }
}

impl Predictor {
    /// A predictor that has learned nothing, for checkpoints that are `horizon` seconds apart.
    #[must_use]
    pub fn new(horizon: u64, fate: Fate, seed: u64) -> Self {
        Self {
            horizon: (horizon as f64).max(1.0),
            fate,
            hosts: Vec::new(),
            groups: std::array::from_fn(|_| Vec::new()),
            all: Crowd::default(),
            weights: [0.0; FEATURES],
            squares: [1.0; FEATURES],
            snapshot: Vec::new(),
            snapshot_at: f64::NEG_INFINITY,
            random: Random::new(seed),
            lessons: 0.0,
            losses: 0.0,
            own_error: 0.0,
            other_error: 0.0,
            together: [0.0; LEVELS],
            expected: [0.0; LEVELS],
        }
    }

    /// The time between checkpoints that it predicts for, seconds.
    #[must_use]
    pub fn horizon(&self) -> u64 {
        std::time::Duration::try_from_secs_f64(self.horizon).map_or(u64::MAX, |horizon| horizon.as_secs())
    }

    /// Adds a host that is down until it comes up; returns its number, from 0.
    pub fn add(&mut self, at: u64, groups: Groups) -> usize {
        self.add_as(at, groups, true)
    }

    /// Adds a host that is down until it comes up, and may only compute; returns its number, from 0.
    pub fn add_as(&mut self, at: u64, groups: Groups, stores: bool) -> usize {
        let host = self.hosts.len();
        self.hosts.push(Vital::new(groups, at as f64, stores));
        self.snapshot.push(None);
        if !stores {
            return host;
        }
        let number = stdchk_model::exact::narrow(host);
        self.all.members.push(number);
        for (level, group) in self.groups.iter_mut().zip(groups).filter(|(_, group)| *group != NO_GROUP) {
            let group = stdchk_model::exact::to_usize(u64::from(group));
            if level.len() <= group {
                level.resize_with(group + 1, Crowd::default);
            }
            part_mut(level, group).members.push(number);
        }
        host
    }

    /// The groups of which a host is a member, and all hosts; none for one that only computes.
    fn crowds_of(&mut self, groups: Groups, stores: bool) -> impl Iterator<Item = &mut Crowd> {
        let levels = self.groups.iter_mut().zip(groups).filter(move |_| stores);
        let own = levels.filter_map(|(level, group)| level.get_mut(usize::try_from(group).ok()?));
        own.chain(stores.then_some(&mut self.all))
    }

    fn crowd(&self, level: usize, group: u32) -> Option<&Crowd> {
        self.groups.get(level)?.get(usize::try_from(group).ok()?)
    }

    /// A host has come up at `at`, seconds.
    pub fn up(&mut self, at: u64, host: usize) {
        let Some(vital) = self.hosts.get_mut(host) else { return };
        if vital.unseen {
            vital.advance(at as f64);
            vital.unseen = false;
        }
        if vital.up {
            return;
        }
        vital.advance(at as f64);
        (vital.up, vital.since) = (true, at as f64);
        let (groups, stores) = (vital.groups, vital.stores);
        self.crowds_of(groups, stores).for_each(|crowd| crowd.up += 1.0);
    }

    /// From `at` on, seconds, nobody looks at a host, until it is told to be up or down.
    pub fn unseen(&mut self, at: u64, host: usize) {
        let Some(vital) = self.hosts.get_mut(host) else { return };
        vital.advance(at as f64);
        vital.unseen = true;
    }

    /// A host that nobody looked at is gone at `at`; when it went, and with whom, nobody knows.
    fn is_gone(&mut self, at: f64, host: usize) {
        let Some(vital) = self.hosts.get_mut(host) else { return };
        vital.advance(at);
        vital.unseen = false;
        let was_up = std::mem::replace(&mut vital.up, false);
        vital.since = at;
        let (groups, stores) = (vital.groups, vital.stores && was_up);
        self.crowds_of(groups, stores).for_each(|crowd| crowd.up -= 1.0);
        if let Some(seen) = self.snapshot.get_mut(host) {
            *seen = None;
        }
    }

    /// Hosts have failed, all at `at`, seconds: who fails together is told together.
    pub fn down(&mut self, at: u64, failed: &[usize]) {
        let now = at as f64;
        let mut really = Vec::new();
        for host in failed {
            if self.hosts.get(*host).is_some_and(|vital| vital.unseen) {
                self.is_gone(now, *host);
                continue;
            }
            let Some(vital) = self.hosts.get_mut(*host).filter(|vital| vital.up) else { continue };
            vital.fail(now);
            let (groups, stores) = (vital.groups, vital.stores);
            self.crowds_of(groups, stores).for_each(|crowd| crowd.fail(now));
            really.push(*host);
        }
        really.iter().for_each(|host| self.learn_from(*host));
    }

    /// Time has come to `at`, seconds. To be called at least several times within a horizon.
    pub fn tick(&mut self, at: u64) {
        let now = at as f64;
        if now < self.snapshot_at || now >= self.snapshot_at + self.horizon {
            self.measure_together();
            let is_lesson = |vital: &Vital| vital.up && vital.stores && !vital.unseen;
            let see = |vital: &Vital| is_lesson(vital).then(|| Seen { features: self.of_host(vital, now) });
            self.snapshot = self.hosts.iter().map(see).collect();
            self.snapshot_at = now;
        }
    }

    /// Whether the model has been the better judge so far, over enough lessons.
    #[must_use]
    pub fn has_learned(&self) -> bool {
        self.losses >= LOSSES_MIN && self.own_error < self.other_error
    }

    /// Lessons so far, and parts that were lost among them.
    #[must_use]
    pub fn lessons(&self) -> (f64, f64) {
        (self.lessons, self.losses)
    }

    /// How strongly hosts of one group fail together beyond what the model explains, on each level.
    #[must_use]
    pub fn correlations(&self) -> Correlations {
        let of = |(together, expected): (&f64, &f64)| {
            // A prior of no correlation, worth one pair that is even odds.
            (together / (expected + 1.0)).clamp(0.0, 0.95)
        };
        let mut found = [0.0; LEVELS];
        let measured = self.together.iter().zip(&self.expected).map(of);
        found.iter_mut().zip(measured).for_each(|(slot, value)| *slot = value);
        found
    }

    /// Groups of a host.
    #[must_use]
    pub fn groups_of(&self, host: usize) -> Groups {
        self.hosts.get(host).map_or([NO_GROUP; LEVELS], |vital| vital.groups)
    }

    /// The probability that a part that `host` gets at `at` is gone when the compute host fails within the horizon.
    #[must_use]
    pub fn lost(&self, at: u64, host: usize, compute: Option<usize>) -> f64 {
        self.features(at, host, compute).map_or(1.0, |features| self.judge(&features))
    }

    /// What each feature adds to the logarithm of the odds that the part is lost, largest first.
    #[must_use]
    pub fn reasons(&self, at: u64, host: usize, compute: Option<usize>) -> Vec<(&'static str, f64)> {
        let Some(features) = self.features(at, host, compute) else { return Vec::new() };
        let product = |((name, weight), feature): ((&'static str, &f64), &f64)| (name, weight * feature);
        let mut reasons: Vec<_> =
            FEATURE_NAMES.into_iter().zip(&self.weights).zip(&features).map(product).collect();
        reasons.sort_by(|one, other| other.1.abs().total_cmp(&one.1.abs()));
        reasons
    }

    fn features(&self, at: u64, host: usize, compute: Option<usize>) -> Option<Features> {
        let of_host = self.of_host(self.hosts.get(host)?, at as f64);
        Some(self.with_pair(of_host, host, compute, at as f64))
    }

    fn of_host(&self, vital: &Vital, now: f64) -> OfHost {
        let mut vital = vital.clone();
        vital.advance(now);
        let mut features = [0.0; OF_HOST];
        let mut slots = features.iter_mut();
        let mut put = |value: f64| {
            if let Some(slot) = slots.next() {
                *slot = value;
            }
        };
        let age = ((now - vital.since).max(0.0) + self.horizon / 20.0) / self.horizon;
        let age = age.ln();
        put(1.0);
        put(age.min(-1.5));
        put(age.clamp(-1.5, 0.0));
        put(age.clamp(0.0, 1.5));
        put(age.clamp(1.5, 3.0));
        put(age.max(3.0) - 3.0);
        vital.failures.iter().for_each(|sum| put((1.0 + sum).ln()));
        (0..MEMORIES.len())
            .for_each(|place| put((1.0 - vital.available(place) + 0.003).max(0.003).ln() + 3.0));
        put(vital.unavailable_at(now, self.horizon));
        let session = if vital.sessions > 0.0 { vital.session - self.horizon.ln() } else { 0.0 };
        put(session.clamp(-4.0, 4.0));
        put((age - session).clamp(-3.0, 3.0));
        put(((now - vital.known_from).max(0.0) / self.horizon + 1.0).ln() / 3.0);
        self.all.features(now).into_iter().for_each(&mut put);
        for (level, group) in vital.groups.iter().enumerate() {
            let crowd = self.crowd(level, *group).filter(|crowd| crowd.members.len() > 1);
            crowd.map_or([0.0; 3], |crowd| crowd.features(now)).into_iter().for_each(&mut put);
        }
        features
    }

    /// Adds what host and compute host have in common, by what was known `before` a time.
    fn with_pair(&self, of_host: OfHost, host: usize, compute: Option<usize>, before: f64) -> Features {
        let mut features = [0.0; FEATURES];
        features.iter_mut().zip(of_host).for_each(|(slot, value)| *slot = value);
        let (groups, compute) = (self.groups_of(host), compute.and_then(|compute| self.hosts.get(compute)));
        let Some(compute) = compute else { return features };
        let (together, all) = self.failed_together(host, compute, before);
        *part_mut(&mut features, OF_HOST + 2 * LEVELS) = (1.0 + together).ln();
        *part_mut(&mut features, OF_HOST + 2 * LEVELS + 1) = together / (all + 1.0);
        let compute = compute.groups;
        for (level, (own, other)) in groups.into_iter().zip(compute).enumerate() {
            if own != other || own == NO_GROUP {
                continue;
            }
            let failing = part(&of_host, OF_HOST - 3 * LEVELS + 3 * level);
            *part_mut(&mut features, OF_HOST + level) = 1.0;
            *part_mut(&mut features, OF_HOST + LEVELS + level) = *failing;
        }
        features
    }

    /// How often a host failed together with a compute host before a time, of how many failures of the compute host.
    fn failed_together(&self, host: usize, compute: &Vital, before: f64) -> (f64, f64) {
        let Some(host) = self.hosts.get(host) else { return (0.0, 0.0) };
        let tolerance = (self.horizon / 48.0).max(60.0);
        let (mut together, mut all, mut own) = (0.0, 0.0, host.failed_at.iter().peekable());
        for failure in compute.failed_at.iter().filter(|failure| **failure <= before) {
            all += 1.0;
            while own.next_if(|own| **own < failure - tolerance).is_some() {}
            if own.peek().is_some_and(|own| **own <= failure + tolerance) {
                together += 1.0;
            }
        }
        (together, all)
    }

    fn judge(&self, features: &Features) -> f64 {
        let sum: f64 = self.weights.iter().zip(features).map(|(weight, feature)| weight * feature).sum();
        (1.0 / (1.0 + (-sum).exp())).clamp(1e-6, 1.0 - 1e-6)
    }

    /// Whether a part that `host` held at the snapshot is gone now.
    fn is_lost(&self, host: usize) -> bool {
        self.hosts.get(host).is_none_or(|vital| match self.fate {
            Fate::Returns => !vital.up,
            Fate::Gone => !vital.up || vital.failed_at.last().is_some_and(|last| *last > self.snapshot_at),
        })
    }

    fn learn_from(&mut self, compute: usize) {
        let Some(groups) = self.hosts.get(compute).map(|vital| vital.groups) else { return };
        for _ in 0..LESSONS {
            let host = self.random.below(self.hosts.len());
            self.learn(host, compute);
        }
        for level in 0..LEVELS {
            let Some(members) = groups
                .get(level)
                .and_then(|group| self.crowd(level, *group))
                .map(|crowd| crowd.members.len())
            else {
                continue;
            };
            for _ in 0..LESSONS_OF_A_GROUP.min(members.saturating_sub(1)) {
                let place = self.random.below(members);
                let member = groups
                    .get(level)
                    .and_then(|group| self.crowd(level, *group)?.members.get(place).copied());
                let Some(host) = member.and_then(|member| usize::try_from(member).ok()) else { continue };
                self.learn(host, compute);
            }
        }
    }

    fn learn(&mut self, host: usize, compute: usize) {
        let Some(Some(seen)) = self.snapshot.get(host).filter(|_| host != compute) else { return };
        let features = self.with_pair(seen.features, host, Some(compute), self.snapshot_at);
        let lost = self.is_lost(host);
        let truth = f64::from(u8::from(lost));
        let own = self.judge(&features);
        let week = part(&seen.features, WEEK_FEATURE) - 3.0;
        let other = week.exp().clamp(1e-3, 1.0 - 1e-3);
        let error = |said: f64| -(if lost { said.ln() } else { (1.0 - said).ln() });
        self.own_error = self.own_error * EXAM_MEMORY + error(own);
        self.other_error = self.other_error * EXAM_MEMORY + error(other);
        self.lessons += 1.0;
        self.losses += truth;
        let slope = own - truth;
        for ((weight, square), feature) in self.weights.iter_mut().zip(&mut self.squares).zip(&features) {
            let gradient = slope * feature + SHRINKAGE * *weight;
            *square += gradient * gradient;
            *weight -= LEARNING_RATE * gradient / square.sqrt();
        }
    }

    /// Compares how hosts of one group failed together since the snapshot with what the model expected of each.
    fn measure_together(&mut self) {
        let judged: Vec<Option<(f64, f64)>> = self
            .snapshot
            .iter()
            .enumerate()
            .map(|(host, seen)| {
                let features = self.with_pair(seen.as_ref()?.features, host, None, self.snapshot_at);
                Some((self.judge(&features), f64::from(u8::from(self.is_lost(host)))))
            })
            .collect();
        for level in 0..LEVELS {
            for crowd in self.groups.get(level).into_iter().flatten().filter(|crowd| crowd.members.len() > 1)
            {
                let members = crowd
                    .members
                    .iter()
                    .filter_map(|member| judged.get(usize::try_from(*member).ok()?).copied()?);
                let (mut surplus, mut surplus_alone, mut spread, mut spread_alone) = (0.0, 0.0, 0.0, 0.0);
                for (said, lost) in members {
                    let variance: f64 = said * (1.0 - said);
                    surplus += lost - said;
                    surplus_alone += (lost - said) * (lost - said);
                    spread += variance.sqrt();
                    spread_alone += variance;
                }
                let (together, expected) =
                    (surplus * surplus - surplus_alone, spread * spread - spread_alone);
                if let (Some(sum), Some(weight)) =
                    (self.together.get_mut(level), self.expected.get_mut(level))
                {
                    *sum += together;
                    *weight += expected;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    /// A pool in which the even hosts fail every few hours and come back, the odd ones of group 0 rarely, and hosts of
    /// groups 1 and 2 all at once.
    fn taught(hours: u64, fate: Fate) -> Predictor {
        let mut predictor = Predictor::new(6 * HOUR, fate, 1);
        let mut random = Random::new(2);
        for host in 0..60_u32 {
            predictor.add(0, [host / 20, NO_GROUP, NO_GROUP]);
        }
        let mut up = [false; 60];
        for hour in 0..hours {
            let at = hour * HOUR;
            let shock = [1, 2].map(|_| random.unit() < 0.02);
            let fails = |host: usize, random: &mut Random| match host {
                0..20 => random.unit() < if host.is_multiple_of(2) { 0.2 } else { 0.002 },
                _ => shock[host / 20 - 1],
            };
            let failed: Vec<usize> = (0..60).filter(|host| up[*host] && fails(*host, &mut random)).collect();
            failed.iter().for_each(|host| up[*host] = false);
            predictor.down(at, &failed);
            for (host, is_up) in up.iter_mut().enumerate() {
                if !*is_up && !failed.contains(&host) && random.unit() < 0.3 {
                    *is_up = true;
                    predictor.up(at, host);
                }
            }
            predictor.tick(at);
        }
        for host in 0..60 {
            predictor.up(hours * HOUR, host);
        }
        predictor
    }

    #[test]
    fn nothing_is_learned_from_nothing() {
        assert!(!taught(0, Fate::Gone).has_learned());
        assert!(!taught(2, Fate::Gone).has_learned());
    }

    #[test]
    fn a_host_that_fails_often_and_one_that_shares_fate_are_recognised() {
        for fate in [Fate::Gone, Fate::Returns] {
            let predictor = taught(4000, fate);
            assert!(predictor.has_learned());
            let lost = |host, compute| predictor.lost(4000 * HOUR, host, Some(compute));
            let (flaky, stable) = (lost(0, 3), lost(1, 3));
            assert!(flaky > 3.0 * stable, "{fate:?}: {flaky} {stable}");
            let (near, far) = (lost(25, 30), lost(45, 30));
            assert!(near > 3.0 * far, "{fate:?}: {near} {far}");
        }
    }

    #[test]
    fn what_becomes_of_hosts_while_nobody_looks_is_no_failure_and_no_lesson() {
        let (mut seen, mut unseen) = (taught(500, Fate::Returns), taught(500, Fate::Returns));
        let at = 500 * HOUR;
        for host in 0..60 {
            unseen.unseen(at, host);
            // For no time at all.
            seen.unseen(at, host);
            seen.up(at, host);
        }
        let later = at + 1000 * HOUR;
        unseen.down(later, &(0..30).collect::<Vec<_>>());
        (0..60).for_each(|host| unseen.up(later, host));
        assert_eq!(unseen.lessons(), seen.lessons());
        assert_eq!(unseen.weights, seen.weights);
        let sums = |predictor: &Predictor, host: usize| {
            let vital = &predictor.hosts[host];
            (vital.failures, vital.availability, vital.failed_at.clone())
        };
        assert!((0..60).all(|host| sums(&seen, host) == sums(&unseen, host)));
        let up = |predictor: &Predictor| predictor.all.up;
        assert_eq!(up(&seen), up(&unseen));
        seen.down(later, &(0..30).collect::<Vec<_>>());
        assert_ne!(seen.lessons(), unseen.lessons());
    }

    #[test]
    fn hosts_that_fail_together_are_correlated() {
        let correlation = taught(4000, Fate::Gone).correlations()[0];
        assert!(correlation > 0.3, "{correlation}");
    }

    #[test]
    fn every_feature_has_a_name_and_reasons_add_up_to_the_judgement() {
        let predictor = taught(500, Fate::Gone);
        let sum: f64 = predictor.reasons(500 * HOUR, 5, Some(6)).iter().map(|(_, term)| term).sum();
        assert!((1.0 / (1.0 + (-sum).exp()) - predictor.lost(500 * HOUR, 5, Some(6))).abs() < 1e-5);
    }

    #[test]
    fn a_clock_that_goes_back_leaves_numbers() {
        let mut predictor = taught(500, Fate::Gone);
        predictor.down(3, &[1, 2, 3]);
        predictor.up(2, 1);
        predictor.tick(1);
        assert!((0..60).all(|host| predictor.lost(0, host, Some(2)).is_finite()));
    }
}
