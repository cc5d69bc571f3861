//! Replays a trace: jobs take checkpoints on hosts that fail as the trace has it, under several policies at once.
//!
//! Relies on [`stdchk_placement::pool::Pool`], the code that a manager runs. The one idea: which host computes when, and when it fails, is
//! the same for all policies; a policy only decides where the parts lie. So policies are compared failure by failure. What a policy
//! sees at a time are the trace's events up to that time, in order; nothing later exists yet for it.
//!
//! Order of events in a tick: hosts fail; the jobs on them are judged by what is left; the pool is told; hosts come up; jobs
//! start, take checkpoints, and get parts made again.

use serde::Serialize;
use stdchk_model::exact::to_usize;
use stdchk_placement::history::{History, State};
use stdchk_placement::learned::Price;
use stdchk_placement::pool::{Policy, Pool, Request};
use stdchk_placement::predictor::Fate;
use stdchk_placement::random::Random;

use crate::world::World;

/// What jobs do when their host fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Jobs {
    /// A job on each host; it takes checkpoints by the calendar, and goes on when its host is back, from the newest one that is not lost
    Stay,
    /// As many jobs as asked for; a job goes on elsewhere, from its newest checkpoint or, if that is lost, from its beginning
    Move,
}

/// Whether parts are made again while the compute host lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Repair {
    /// Never.
    Never,
    /// Once no more than m parts are left.
    WhenFew,
    /// Where it averts more than it costs, within a budget; [`Repair::WhenFew`] before anything is learned.
    Priced,
}

/// What keeps checkpoints.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Keeper {
    /// A store that never loses anything.
    Perfect,
    /// Hosts chosen with knowledge of the future: a checkpoint is lost only if fewer than m hosts last from when it is stored (with
    /// repair: from the tick before) until the failure. What no policy can go below, for hosts whose parts are gone with them.
    Foresight,
    /// Hosts chosen by a policy.
    Policy(Policy),
}

/// A keeper with or without repair.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Variant {
    /// What keeps checkpoints.
    pub keeper: Keeper,
    /// Whether it repairs.
    pub repair: Repair,
}

impl Variant {
    /// What it is called in tables.
    #[must_use]
    pub fn name(&self) -> String {
        let policy = match self.keeper {
            Keeper::Perfect => "perfect store".to_owned(),
            Keeper::Foresight => "foresight".to_owned(),
            Keeper::Policy(policy) => policy.to_string(),
        };
        match self.repair {
            Repair::Never => policy,
            Repair::WhenFew => format!("{policy} + repair"),
            Repair::Priced => format!("{policy} + priced repair"),
        }
    }
}

/// What is replayed.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Parts that are enough, and parts beyond them.
    pub code: (usize, usize),
    /// Seconds of work between checkpoints.
    pub interval: u64,
    /// What jobs do.
    pub jobs: Jobs,
    /// Jobs that move, or hosts of those that compute that have a job each; none: half as many as compute, or all of them.
    pub lanes: Option<usize>,
    /// Seconds of useful work of a job that moves.
    pub work: u64,
    /// Ticks from, to (exclusive) in which failures count. Before it, policies only watch.
    pub counted: (u32, u32),
    /// Bytes of a checkpoint.
    pub bytes: u64,
    /// Bandwidth between any two hosts, bytes per second.
    pub bandwidth: f64,
    /// Parts that may be made again for each checkpoint, with [`Repair::Priced`].
    pub parts_per_checkpoint: f64,
    /// Of chance: which host a job moves to, what `random` chooses, what the predictor looks at.
    pub seed: u64,
    /// Ticks of a block of the bootstrap.
    pub block: u32,
}

/// Sums over a block of time, for one variant.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Block {
    /// Failures of compute hosts whose job had a checkpoint.
    pub failures: f64,
    /// Of these, those after which it could not be recovered.
    pub unrecoverable: f64,
    /// Failures of compute hosts, with or without a checkpoint.
    pub all_failures: f64,
    /// Work lost by them, seconds.
    pub lost: f64,
    /// Time spent computing, seconds.
    pub spent: f64,
    /// Checkpoints stored.
    pub checkpoints: f64,
    /// Parts made again.
    pub repairs: f64,
}

impl Block {
    /// Adds another block's sums.
    pub fn add(&mut self, other: &Self) {
        self.failures += other.failures;
        self.unrecoverable += other.unrecoverable;
        self.all_failures += other.all_failures;
        self.lost += other.lost;
        self.spent += other.spent;
        self.checkpoints += other.checkpoints;
        self.repairs += other.repairs;
    }
}

/// A checkpoint in the pool.
#[derive(Clone, Debug)]
struct Checkpoint {
    /// Hosts and the tick at which they got their part.
    holders: Vec<(usize, u32)>,
    /// The tick at which it was stored.
    stored: u32,
    /// Work that it stands for, seconds.
    worked: f64,
}

/// A job under one variant.
#[derive(Clone, Debug, Default)]
struct Progress {
    worked: f64,
    checkpoint: Option<Checkpoint>,
}

/// A place where jobs run, one after the other.
#[derive(Clone, Debug)]
struct Lane {
    host: Option<usize>,
    /// Seconds until the next checkpoint.
    next: u64,
    random: Random,
    jobs: Vec<Progress>,
}

/// The replay of one trace.
struct Replay<'a> {
    world: &'a World,
    settings: &'a Settings,
    variants: &'a [Variant],
    pool: Pool,
    /// Since which tick each host is up; none: down.
    up: Vec<Option<u32>>,
    lanes: Vec<Lane>,
    /// Hosts on which jobs run.
    computing: Vec<usize>,
    prices: Vec<Price>,
    blocks: Vec<Vec<Block>>,
    tick: u32,
}

/// Replays `world` and returns, for each variant, its sums block by block. `progress` is told the tick now and then.
#[must_use]
pub fn replay(
    world: &World,
    settings: &Settings,
    variants: &[Variant],
    progress: impl Fn(u32),
) -> Vec<Vec<Block>> {
    let mut replay = Replay::new(world, settings, variants);
    let end = settings.counted.1.min(world.ticks);
    let events = events(world);
    let mut events = events.as_slice();
    for tick in 0..end {
        replay.tick = tick;
        let now = events.iter().take_while(|event| event.0 == tick).count();
        let (these, later) = events.split_at(now);
        events = later;
        replay.step(these);
        if tick.is_multiple_of(64) {
            progress(tick);
        }
    }
    replay.blocks
}

/// Ticks and hosts that go down (false) or come up (true), in order of time, failures first.
fn events(world: &World) -> Vec<(u32, bool, usize)> {
    let mut events = Vec::new();
    for (number, host) in world.hosts.iter().enumerate() {
        for (from, to) in &host.up {
            events.push((*from, true, number));
            events.push((*to, false, number));
        }
    }
    events.sort_unstable();
    events
}

impl<'a> Replay<'a> {
    fn new(world: &'a World, settings: &'a Settings, variants: &'a [Variant]) -> Self {
        let mut pool = Pool::new(settings.interval, world.fate, settings.seed);
        for host in &world.hosts {
            pool.add(0, host.groups, History::new(), false);
        }
        let computing: Vec<usize> = (0..world.hosts.len())
            .filter(|host| world.hosts.get(*host).is_some_and(|host| host.computes))
            .collect();
        let lanes = match settings.jobs {
            Jobs::Stay => settings.lanes.unwrap_or(computing.len()).min(computing.len()),
            Jobs::Move => settings.lanes.unwrap_or(computing.len() / 2),
        };
        let lane = |number: usize| {
            let mut random = Random::new(settings.seed.wrapping_mul(31).wrapping_add(number as u64));
            // By the calendar, but not all at once.
            let ticks = to_usize(settings.interval / world.tick.max(1)).max(1);
            let next = match settings.jobs {
                Jobs::Stay => world.tick * random.below(ticks) as u64,
                Jobs::Move => settings.interval,
            };
            Lane { host: None, next, random, jobs: vec![Progress::default(); variants.len()] }
        };
        let (from, to) = settings.counted;
        let blocks = to.saturating_sub(from).div_ceil(settings.block.max(1));
        let blocks = vec![Block::default(); to_usize(u64::from(blocks))];
        Self {
            world,
            settings,
            variants,
            pool,
            up: vec![None; world.hosts.len()],
            lanes: (0..lanes).map(lane).collect(),
            computing,
            prices: vec![Price::new(settings.parts_per_checkpoint); variants.len()],
            blocks: vec![blocks; variants.len()],
            tick: 0,
        }
    }

    fn step(&mut self, events: &[(u32, bool, usize)]) {
        let seconds = u64::from(self.tick) * self.world.tick;
        let failed: Vec<usize> = events.iter().filter(|event| !event.1).map(|event| event.2).collect();
        let risen: Vec<usize> = events.iter().filter(|event| event.1).map(|event| event.2).collect();
        for host in &failed {
            if let Some(slot) = self.up.get_mut(*host) {
                *slot = None;
            }
        }
        let counts = self.tick >= self.settings.counted.0;
        if counts && !failed.is_empty() {
            self.judge(&failed);
        }
        let states: Vec<(usize, State)> = failed
            .iter()
            .map(|host| (*host, State::Unavailable))
            .chain(risen.iter().map(|host| (*host, State::Running)))
            .collect();
        self.pool.record(seconds, &states);
        for host in &risen {
            if let Some(slot) = self.up.get_mut(*host) {
                *slot = Some(self.tick);
            }
        }
        self.pool.tick(seconds);
        if counts {
            self.work();
        }
    }

    /// Judges the jobs whose hosts have failed, and takes them off these.
    fn judge(&mut self, failed: &[usize]) {
        let doubtful = self.world.doubtful.binary_search(&self.tick).is_ok();
        let mut lanes = std::mem::take(&mut self.lanes);
        for lane in lanes.iter_mut().filter(|lane| lane.host.is_some_and(|host| failed.contains(&host))) {
            lane.host = None;
            for (number, job) in lane.jobs.iter_mut().enumerate() {
                let kept = match (self.variants.get(number), &job.checkpoint) {
                    (Some(variant), Some(checkpoint)) => Some(self.is_kept(variant, checkpoint)),
                    _ => None,
                };
                let resumed = match (&job.checkpoint, kept) {
                    (Some(checkpoint), Some(true)) => checkpoint.worked,
                    _ => 0.0,
                };
                let lost = job.worked - resumed;
                if !doubtful && let Some(block) = self.block(number) {
                    block.all_failures += 1.0;
                    block.lost += lost;
                    block.failures += f64::from(u8::from(kept.is_some()));
                    block.unrecoverable += f64::from(u8::from(kept == Some(false)));
                }
                job.worked = resumed;
                if kept == Some(false) {
                    job.checkpoint = None;
                }
            }
        }
        self.lanes = lanes;
    }

    fn is_kept(&self, variant: &Variant, checkpoint: &Checkpoint) -> bool {
        let lasted = |from: u32| self.up.iter().flatten().filter(|since| **since <= from).count();
        let parts = match variant.keeper {
            Keeper::Perfect => return true,
            Keeper::Foresight if variant.repair == Repair::Never => lasted(checkpoint.stored),
            Keeper::Foresight => lasted(self.tick - 1),
            Keeper::Policy(_) => self.present(&checkpoint.holders).len(),
        };
        parts >= self.settings.code.0
    }

    fn block(&mut self, variant: usize) -> Option<&mut Block> {
        let place = (self.tick - self.settings.counted.0) / self.settings.block.max(1);
        self.blocks.get_mut(variant)?.get_mut(to_usize(u64::from(place)))
    }

    /// Hosts whose parts are there now.
    fn present(&self, holders: &[(usize, u32)]) -> Vec<usize> {
        let is_there = |(host, stored): &&(usize, u32)| match self.up.get(*host).copied().flatten() {
            Some(since) => self.world.fate == Fate::Returns || since <= *stored,
            None => false,
        };
        holders.iter().filter(is_there).map(|(host, _)| *host).collect()
    }

    fn work(&mut self) {
        let mut lanes = std::mem::take(&mut self.lanes);
        for (number, lane) in lanes.iter_mut().enumerate() {
            let stays = self.settings.jobs == Jobs::Stay;
            if stays || lane.host.is_some() {
                lane.next = lane.next.saturating_sub(self.world.tick);
            }
            let Some(host) = lane.host else {
                lane.host = self.start(number, lane);
                if !stays {
                    lane.next = self.settings.interval;
                }
                continue;
            };
            for (variant, job) in lane.jobs.iter_mut().enumerate() {
                let tick = self.world.tick as f64;
                job.worked += tick;
                if let Some(block) = self.block(variant) {
                    block.spent += tick;
                }
                if self.settings.jobs == Jobs::Move && job.worked >= self.settings.work as f64 {
                    *job = Progress::default();
                }
            }
            let due = lane.next == 0;
            if due {
                lane.next = self.settings.interval;
            }
            for variant in 0..lane.jobs.len() {
                if due {
                    self.store(number, host, variant, lane);
                }
                self.repair(number, host, variant, lane);
            }
        }
        self.lanes = lanes;
    }

    /// The host on which a job starts or goes on.
    fn start(&self, number: usize, lane: &mut Lane) -> Option<usize> {
        let is_up = |host: &usize| self.up.get(*host).is_some_and(Option::is_some);
        match self.settings.jobs {
            Jobs::Stay => self.computing.get(number).copied().filter(is_up),
            Jobs::Move => {
                let up: Vec<usize> = self.computing.iter().copied().filter(is_up).collect();
                up.get(lane.random.below(up.len())).copied()
            }
        }
    }

    fn request<'r>(&self, lane: usize, host: usize, worked: f64, avoid: &'r [usize]) -> Request<'r> {
        Request {
            at: u64::from(self.tick) * self.world.tick,
            compute: Some(host),
            m: self.settings.code.0,
            k: self.settings.code.1,
            bytes: self.settings.bytes,
            interval: self.settings.interval as f64,
            worked,
            avoid,
            turn: self.settings.seed
                ^ (u64::from(self.tick) << 20 | lane as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            first: 0,
        }
    }

    fn store(&mut self, lane_number: usize, host: usize, variant: usize, lane: &mut Lane) {
        let (Some(kind), Some(job)) = (self.variants.get(variant), lane.jobs.get_mut(variant)) else {
            return;
        };
        let mut holders = Vec::new();
        if let Keeper::Policy(policy) = kind.keeper
            && (kind.repair != Repair::Never || self.is_last(host))
        {
            let request = self.request(lane_number, host, job.worked, &[]);
            let chosen = self.pool.choose(policy, &request, |_| self.settings.bandwidth);
            holders = chosen.into_iter().map(|host| (host, self.tick)).collect();
        }
        job.checkpoint = Some(Checkpoint { holders, stored: self.tick, worked: job.worked });
        if let Some(block) = self.block(variant) {
            block.checkpoints += 1.0;
        }
        if let Some(price) = self.prices.get_mut(variant) {
            price.stored();
        }
    }

    /// Whether the host fails before its next checkpoint. Policies don't see it: it only saves choosing holders of checkpoints that nobody
    /// asks for, since choices don't depend on earlier ones.
    fn is_last(&self, host: usize) -> bool {
        let next = u64::from(self.tick) * self.world.tick + self.settings.interval;
        let end = self.world.hosts.get(host).and_then(|host| host.up.iter().find(|span| span.1 > self.tick));
        end.is_none_or(|span| u64::from(span.1) * self.world.tick <= next + self.world.tick)
    }

    fn repair(&mut self, lane_number: usize, host: usize, variant: usize, lane: &mut Lane) {
        let (Some(kind), Some(job)) = (self.variants.get(variant), lane.jobs.get_mut(variant)) else {
            return;
        };
        let (Keeper::Policy(policy), Some(checkpoint)) = (kind.keeper, job.checkpoint.as_mut()) else {
            return;
        };
        if kind.repair == Repair::Never {
            return;
        }
        let held = self.present(&checkpoint.holders);
        if held.len() >= self.settings.code.0 + self.settings.code.1 {
            return;
        }
        // A host that is away keeps its part; it isn't given another.
        let away: Vec<usize> = match self.world.fate {
            Fate::Returns => {
                checkpoint.holders.iter().map(|(host, _)| *host).filter(|host| !held.contains(host)).collect()
            }
            Fate::Gone => Vec::new(),
        };
        let request = self.request(lane_number, host, job.worked, &away);
        let bandwidth = |_: usize| self.settings.bandwidth;
        let chosen = match (kind.repair, self.prices.get(variant)) {
            (Repair::Priced, Some(price)) if self.pool.predictor().has_learned() => {
                self.pool.repair(&request, &held, lane.next as f64, price, bandwidth)
            }
            _ => self.pool.repair_when_few(policy, &request, &held, bandwidth),
        };
        if chosen.is_empty() {
            return;
        }
        let count = chosen.len();
        checkpoint.holders.retain(|(host, _)| held.contains(host) || away.contains(host));
        checkpoint.holders.extend(chosen.into_iter().map(|host| (host, self.tick)));
        if let Some(block) = self.block(variant) {
            block.repairs += count as f64;
        }
        if let Some(price) = self.prices.get_mut(variant) {
            price.repaired(count);
        }
    }
}
