//! `stdchk-replay`: what each way to select hosts would have lost, had it been used while a trace was recorded.
//!
//! The library does the work; this reads the command line, tells how far it is, and prints a table or JSON.

use std::cell::Cell;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, Subcommand, ValueEnum};
use stdchk_placement::history::{History, State};
use stdchk_placement::pool::{NoPolicy, Policy, Pool, Request};
use stdchk_placement::predictor::Fate;
use stdchk_placement::random::Random;
use stdchk_placement::shocks::NO_GROUP;
use stdchk_replay::experiment::{self, Part, Report};
use stdchk_replay::run::{Jobs, Keeper, Repair, Variant};
use stdchk_replay::summary::table;
use stdchk_replay::world::{Subset, World};
use stdchk_replay::{Error, trace};

/// Replays traces of availability against the policies that select storage hosts
#[derive(Parser)]
#[command(name = "stdchk-replay")]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replays a trace and prints what each policy lost
    Run(RunOptions),
    /// Measures how long each policy takes to rank many hosts
    Rank {
        /// Hosts of a made-up pool
        #[arg(long, default_value_t = 10_000)]
        hosts: usize,
    },
}

/// What becomes of the parts on a host that fails.
#[derive(Clone, Copy, ValueEnum)]
enum Disk {
    /// They come back with the host
    Returns,
    /// They are gone
    Gone,
}

#[derive(Args)]
struct RunOptions {
    /// Directory of a trace, in one of the formats that docs/design/0800-placement.md lists; two made-up traces if not given
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Which hosts take part, chosen by the first half of the trace
    #[arg(long, value_enum, default_value = "all")]
    subset: Subset,
    /// On which of these jobs run
    #[arg(long, value_enum, default_value = "all")]
    computing: Subset,
    /// What becomes of the parts on a host that fails, if not as its format has it
    #[arg(long, value_enum)]
    disk: Option<Disk>,
    /// The part of the trace in which failures count
    #[arg(long, value_enum, default_value = "tuning")]
    part: Part,
    /// Work between checkpoints, such as 30min or 24h
    #[arg(long)]
    interval: Option<String>,
    /// What jobs do when their host fails
    #[arg(long, value_enum)]
    jobs: Option<Jobs>,
    /// Useful work of a job that moves on, such as 8h
    #[arg(long)]
    work: Option<String>,
    /// Jobs at a time; by default one for each host that stays, or for every second host if they move
    #[arg(long)]
    lanes: Option<usize>,
    /// Only these policies, separated by commas; a policy with `+repair` repairs when few parts are left, with `+priced` where it pays
    #[arg(long, value_delimiter = ',')]
    policies: Vec<String>,
    /// Parts that may be made again for each checkpoint, with priced repair
    #[arg(long)]
    budget: Option<f64>,
    /// Decides all chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Replays with so many seeds, one after the other, and adds up
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let done = match Line::parse().command {
        Command::Run(options) => run(&options),
        Command::Rank { hosts } => rank(hosts),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stdchk-replay: {error}");
            ExitCode::FAILURE
        }
    }
}

fn seconds(text: &str) -> Result<u64, Error> {
    let ms = stdchk_model::duration::parse(text).filter(|ms| *ms >= 1000);
    ms.map(|ms| ms / 1000)
        .ok_or_else(|| Error(format!("{text:?} is no duration of a second or more; write 30min or 24h")))
}

fn variant(text: &str) -> Result<Variant, Error> {
    let (policy, repair) = match text.split_once('+') {
        None => (text, Repair::Never),
        Some((policy, "repair")) => (policy, Repair::WhenFew),
        Some((policy, "priced")) => (policy, Repair::Priced),
        Some((_, other)) => {
            return Err(Error(format!("{other:?} is no way to repair; write +repair or +priced")));
        }
    };
    let keeper = match policy {
        "perfect" => Keeper::Perfect,
        "foresight" => Keeper::Foresight,
        policy => Keeper::Policy(policy.parse().map_err(|error: NoPolicy| Error(error.to_string()))?),
    };
    Ok(Variant { keeper, repair })
}

fn run(options: &RunOptions) -> Result<(), Error> {
    let worlds = |seed: u64| match &options.trace {
        Some(dir) => trace::read(dir, seed),
        None => Ok(vec![World::volunteers(300, 60, seed), World::spot(4, 12, seed)]),
    };
    let mut by_seed = Vec::new();
    for number in 0..u64::from(options.seeds) {
        by_seed.push(worlds(options.seed.wrapping_add(number))?.into_iter());
    }
    let mut worlds: Vec<Vec<World>> = Vec::new();
    while let Some(one) = by_seed.iter_mut().map(Iterator::next).collect::<Option<Vec<World>>>() {
        worlds.push(one);
    }
    if worlds.is_empty() {
        let known = "up_intervals.csv, event_trace.tab, *.json, or logs as *.csv, *.txt or *.tar.xz";
        return Err(Error(format!("the directory has no trace of a known format: {known}")));
    }
    let asked = options.policies.iter().map(|text| variant(text)).collect::<Result<Vec<_>, _>>()?;
    let mut reports = Vec::new();
    for one in worlds {
        let mut made = one.into_iter().map(|world| {
            let mut world = world.subset(options.subset, options.computing);
            world.fate = match options.disk {
                None => world.fate,
                Some(Disk::Returns) => Fate::Returns,
                Some(Disk::Gone) => Fate::Gone,
            };
            world
        });
        let Some(world) = made.next() else { continue };
        let others: Vec<World> = made.collect();
        if !world.hosts.iter().any(|host| host.computes) || world.ticks < 8 {
            return Err(Error(format!(
                "no host of {} belongs to the subset, or it is too short; try --subset all",
                world.name
            )));
        }
        let mut settings = experiment::settings(&world, options.part, options.seed);
        let variants = if asked.is_empty() { experiment::variants(world.fate) } else { asked.clone() };
        if let Some(interval) = &options.interval {
            settings.interval = seconds(interval)?;
        }
        if let Some(work) = &options.work {
            settings.work = seconds(work)?;
        }
        settings.jobs = options.jobs.unwrap_or(settings.jobs);
        settings.lanes = options.lanes;
        settings.parts_per_checkpoint = options.budget.unwrap_or(settings.parts_per_checkpoint);
        let (began, said) = (Instant::now(), Cell::new(0));
        let progress = |tick: u32| {
            let elapsed = began.elapsed().as_secs();
            if elapsed >= said.get() + 10 {
                said.set(elapsed);
                eprintln!(
                    "stdchk-replay: {}: tick {tick} of {}, {elapsed} s",
                    world.name, settings.counted.1
                );
            }
        };
        let report = experiment::run(&world, &others, &settings, &variants, progress);
        if !options.json {
            print(&report);
        }
        reports.push(report);
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&reports).map_err(|error| Error(error.to_string()))?);
    }
    Ok(())
}

fn print(report: &Report) {
    let (from, to) = report.counted_ticks;
    let hours = |seconds: u64| seconds as f64 / 3600.0;
    println!(
        "\n{}: {} hosts, a checkpoint every {} h, code {:?}, failures of ticks {from} to {to} (of {} s), {} seeds from {}\n",
        report.trace,
        report.hosts,
        hours(report.interval_seconds),
        report.code,
        report.tick_seconds,
        report.seeds,
        report.seed
    );
    print!("{}", table(&report.rows));
}

/// Steps of the history of each host of the pool that is ranked: a host that fails daily, over three months.
const RANKED_STEPS: u64 = 200;
/// Rankings that are timed.
const RANKINGS: u32 = 9;

fn rank(hosts: usize) -> Result<(), Error> {
    let mut random = Random::new(1);
    let mut pool = Pool::new(86_400, Fate::Returns, 1);
    for host in 0..hosts {
        let groups = [stdchk_model::exact::narrow(host / 4), NO_GROUP, NO_GROUP];
        pool.add(0, groups, History::new(), false);
    }
    let hour = 3600;
    let at = RANKED_STEPS * 12 * hour;
    for turn in 0..RANKED_STEPS {
        let mut states = Vec::new();
        for host in 0..hosts {
            let fails = turn % 2 == 1 && random.unit() < 0.5;
            if random.unit() < 0.9 {
                states.push((host, if fails { State::Unavailable } else { State::Running }));
            }
        }
        pool.record(turn * 12 * hour, &states);
        pool.tick(turn * 12 * hour);
    }
    if !pool.predictor().has_learned() {
        return Err(Error(
            "the predictor has learned nothing of the made-up pool; give more hosts".to_owned(),
        ));
    }
    let falcon = |days: u64| Policy::Falcon { window: Some(days * 86_400) };
    let policies = [
        Policy::RoundRobin,
        Policy::Random,
        Policy::Pessimistic,
        Policy::Falcon { window: None },
        falcon(7),
        Policy::Learned,
    ];
    println!(
        "{hosts} hosts, {RANKED_STEPS} steps of history each; median and longest of {RANKINGS} choices of 5 hosts"
    );
    for policy in policies {
        let mut times = Vec::new();
        for turn in 0..RANKINGS {
            let request = Request {
                at,
                compute: Some(0),
                m: 3,
                k: 2,
                bytes: 500_000_000,
                interval: 86_400.0,
                worked: 3600.0,
                avoid: &[],
                turn: u64::from(turn),
                first: 0,
            };
            let began = Instant::now();
            let chosen = pool.choose(policy, &request, |host| 1e6 + (host % 97) as f64 * 1e5);
            times.push(began.elapsed().as_secs_f64() * 1e3);
            assert_eq!(chosen.len(), 5, "there are enough hosts");
        }
        times.sort_by(f64::total_cmp);
        let at = |place: usize| times.get(place).copied().unwrap_or(f64::NAN);
        println!("{:14} {:>8.2} ms {:>8.2} ms", policy.to_string(), at(times.len() / 2), at(times.len() - 1));
    }
    Ok(())
}
