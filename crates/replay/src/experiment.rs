//! The experiments as they are reported: which part of a trace counts, which jobs, which policies.
//!
//! The one idea: a trace is cut at three quarters. Whoever tunes a policy looks at [`Part::Tuning`], the quarter before the cut; [`Part::Test`], what
//! follows it, is looked at once, at the end. Everything before a part is there for policies to watch.

use serde::Serialize;
use stdchk_placement::pool::Policy;
use stdchk_placement::predictor::Fate;

use crate::run::{Jobs, Keeper, Repair, Settings, Variant, replay};
use crate::summary::{Row, rows};
use crate::world::World;

/// The part of a trace in which failures count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// From a half to three quarters
    Tuning,
    /// From a quarter to three quarters; for traces whose hosts aren't chosen by the first half
    LongTuning,
    /// The last quarter
    Test,
}

impl Part {
    /// Ticks from, to (exclusive).
    #[must_use]
    pub const fn ticks(self, all: u32) -> (u32, u32) {
        let cut = all / 4 * 3;
        match self {
            Self::Tuning => (all / 2, cut),
            Self::LongTuning => (all / 4, cut),
            Self::Test => (cut, all),
        }
    }
}

/// Seconds of an hour and a day.
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// Windows of `falcon` that are compared, days.
const WINDOWS: [u64; 4] = [1, 3, 7, 30];

/// Settings for a trace: for volunteers a checkpoint a day on each host, for instances that take their disk with them one in half an
/// hour and jobs that move on.
#[must_use]
pub fn settings(world: &World, part: Part, seed: u64) -> Settings {
    let (interval, jobs) = match world.fate {
        Fate::Returns => (DAY, Jobs::Stay),
        Fate::Gone => (HOUR / 2, Jobs::Move),
    };
    Settings {
        code: (3, 2),
        interval,
        jobs,
        lanes: None,
        work: 8 * HOUR,
        counted: part.ticks(world.ticks),
        bytes: 500_000_000,
        bandwidth: 12.5e6,
        parts_per_checkpoint: 0.22,
        seed,
        block: stdchk_model::exact::narrow((DAY / world.tick).max(1)),
    }
}

/// All policies, with repair and without, and what bounds them.
#[must_use]
pub fn variants(fate: Fate) -> Vec<Variant> {
    let with = |keeper, repair| Variant { keeper, repair };
    let never = |policy| with(Keeper::Policy(policy), Repair::Never);
    let falcon = |days: u64| Policy::Falcon { window: Some(days * DAY) };
    let mut all = vec![with(Keeper::Perfect, Repair::Never)];
    if fate == Fate::Gone {
        all.extend([Repair::Never, Repair::WhenFew].map(|repair| with(Keeper::Foresight, repair)));
    }
    all.extend([Policy::RoundRobin, Policy::Random, Policy::Pessimistic].map(never));
    all.push(never(Policy::Falcon { window: None }));
    all.extend(WINDOWS.map(|days| never(falcon(days))));
    all.push(never(Policy::Learned));
    let repaired = [Policy::Random, Policy::Falcon { window: None }, falcon(7), Policy::Learned];
    all.extend(repaired.map(|policy| with(Keeper::Policy(policy), Repair::WhenFew)));
    all.push(with(Keeper::Policy(Policy::Learned), Repair::Priced));
    all
}

/// What was replayed and found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The trace.
    pub trace: String,
    /// Hosts.
    pub hosts: usize,
    /// Seconds of a tick.
    pub tick_seconds: u64,
    /// Ticks in which failures counted: from, to (exclusive).
    pub counted_ticks: (u32, u32),
    /// Seconds between checkpoints.
    pub interval_seconds: u64,
    /// Parts that are enough, and parts beyond them.
    pub code: (usize, usize),
    /// What jobs do.
    pub jobs: Jobs,
    /// The first seed.
    pub seed: u64,
    /// How many seeds there were.
    pub seeds: usize,
    /// The figures.
    pub rows: Vec<Row>,
}

/// Replays a trace, for each seed as that makes it: `others` has the worlds of the seeds after the first one's. All is added up, so that a
/// single draw decides little.
#[must_use]
pub fn run(
    world: &World,
    others: &[World],
    settings: &Settings,
    variants: &[Variant],
    progress: impl Fn(u32),
) -> Report {
    let mut blocks = replay(world, settings, variants, &progress);
    for (number, other) in (1..).zip(others) {
        let settings = Settings { seed: settings.seed + number, ..settings.clone() };
        let more = replay(other, &settings, variants, &progress);
        for (sum, block) in blocks.iter_mut().flatten().zip(more.iter().flatten()) {
            sum.add(block);
        }
    }
    Report {
        trace: world.name.clone(),
        hosts: world.hosts.len(),
        tick_seconds: world.tick,
        counted_ticks: settings.counted,
        interval_seconds: settings.interval,
        code: settings.code,
        jobs: settings.jobs,
        seed: settings.seed,
        seeds: 1 + others.len(),
        rows: rows(&blocks, variants, settings),
    }
}
