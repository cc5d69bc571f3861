//! Hosts that are dead, silent or slow, when something is stored and when it comes back (the paper's Figures 7 to 9, and what this
//! project wants of recovery).

use std::time::Duration;

use super::bed::{Bed, DSL_MBIT, Image, LAN_MBIT};
use super::timed::{Timed, find};
use super::{CODED, Plan};
use crate::Error;
use crate::paper::TIGR_II;
use crate::section::{Target, at_most};

/// Blocks beyond those that are needed.
const SPARE: usize = 2;
/// Ways to choose hosts that are compared when some are unavailable, each the name of its folder as well.
const PLACEMENTS: [&str; 3] = ["random", "pessimistic", "falcon"];
/// Mbit/s that others leave of a host's link: nothing is taken, half, four fifths, and nearly all, as a loaded disk would leave of its rate.
const LEFT_MBIT: [u32; 4] = [LAN_MBIT, 50, 20, 5];
/// What is left of the link of a host under full load.
const LOADED_MBIT: u32 = 5;

/// Stores while some hosts are unavailable: their daemons are killed at the moment at which storing begins, so that nobody
/// knows; once more, when half of it is done; and once more, they are stopped and don't end.
pub fn store_without(bed: &Bed, plan: &Plan) -> Result<Vec<Timed>, Error> {
    let policies = PLACEMENTS.map(|placement| format!("redundancy=erasure:3,2 placement={placement}"));
    let names = PLACEMENTS.map(|placement| format!("{placement}-7"));
    let folders: Vec<(&str, &str)> =
        names.iter().map(String::as_str).zip(policies.iter().map(String::as_str)).collect();
    bed.folders(&folders)?;
    let mut rows = Vec::new();
    for unavailable in plan.unavailable {
        for (scheme, folder) in PLACEMENTS.into_iter().zip(&names) {
            let mut row = Timed::new(scheme, *unavailable);
            for _ in 0..plan.rounds {
                let dead = (Ill::Dead, *unavailable, Duration::ZERO);
                row.store_seconds.push(store_amid(bed, plan, folder, dead)?);
            }
            rows.push(row);
        }
    }
    let count = plan.unavailable.iter().copied().max().unwrap_or_default().min(SPARE);
    let whole = rows.iter().find(|row| row.scheme == "falcon").map_or(0.0, Timed::stored);
    let half = Duration::try_from_secs_f64(whole / 2.0)?;
    for (scheme, ill, after) in [
        ("falcon, dead when half is stored", Ill::Dead, half),
        ("falcon, accept and never answer", Ill::Silent, Duration::ZERO),
    ] {
        let mut row = Timed::new(scheme, count);
        for _ in 0..plan.rounds {
            row.store_seconds.push(store_amid(bed, plan, "falcon-7", (ill, count, after))?);
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Stores while so many hosts fall ill so long after the beginning.
fn store_amid(
    bed: &Bed,
    plan: &Plan,
    folder: &str,
    (ill, count, after): (Ill, usize, Duration),
) -> Result<f64, Error> {
    bed.settle()?;
    let image = bed.image(0, plan.image_bytes, TIGR_II.shrinks_to())?;
    let hosts: Vec<usize> = bed.hosts().take(count).collect();
    if after.is_zero() {
        ill.begin(bed, &hosts);
    }
    let stored = std::thread::scope(|threads| {
        let storing = threads.spawn(|| bed.store(&image, folder));
        if !after.is_zero() {
            std::thread::sleep(after);
            ill.begin(bed, &hosts);
        }
        storing.join().map_err(|_| Error("a client ended".to_owned()))?
    });
    ill.end(bed, &hosts);
    let (seconds, _) = stored?;
    Ok(seconds)
}

/// Stores over all hosts, one of which has little of its link left.
pub fn store_beside_load(bed: &Bed, plan: &Plan) -> Result<Vec<Timed>, Error> {
    bed.settle()?;
    let policy = format!("redundancy=erasure:3,2 stripe={}", plan.hosts);
    bed.folders(&[("loaded", &policy)])?;
    let mut rows = Vec::new();
    for left in LEFT_MBIT {
        bed.link(bed.last_host(), left);
        let mut row = Timed::new("Mbit/s left", usize::try_from(left)?);
        for _ in 0..plan.rounds {
            let image = bed.image(0, plan.image_bytes, TIGR_II.shrinks_to())?;
            row.store_seconds.push(bed.store(&image, "loaded")?.0);
        }
        rows.push(row);
    }
    bed.link(bed.last_host(), LAN_MBIT);
    Ok(rows)
}

/// What a host can be.
#[derive(Clone, Copy)]
enum Ill {
    Dead,
    Silent,
    Slow,
}

impl Ill {
    const ALL: [Self; 3] = [Self::Dead, Self::Silent, Self::Slow];

    fn name(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Silent => "accept and never answer",
            Self::Slow => "behind DSL",
        }
    }

    fn begin(self, bed: &Bed, hosts: &[usize]) {
        match self {
            Self::Dead => bed.kill(hosts),
            Self::Silent => bed.freeze(hosts, true),
            Self::Slow => hosts.iter().for_each(|host| bed.link(*host, DSL_MBIT)),
        }
    }

    fn end(self, bed: &Bed, hosts: &[usize]) {
        match self {
            Self::Dead => bed.revive(hosts),
            Self::Silent => bed.freeze(hosts, false),
            Self::Slow => hosts.iter().for_each(|host| bed.link(*host, LAN_MBIT)),
        }
    }
}

const HEALTHY: &str = "healthy";

/// Brings an image back that lies on all hosts, while up to as many are ill as the code has spare blocks, and others each time.
pub fn recover_without(bed: &Bed, plan: &Plan) -> Result<Vec<Timed>, Error> {
    let policy = format!("redundancy=erasure:3,2 stripe={}", plan.hosts);
    bed.folders(&[("spread", &policy)])?;
    bed.settle()?;
    let image = bed.image(0, plan.image_bytes, TIGR_II.shrinks_to())?;
    bed.store(&image, "spread")?;
    let mut rows = vec![Timed::new(HEALTHY, 0)];
    rows.extend(Ill::ALL.iter().flat_map(|ill| (1..=SPARE).map(|count| Timed::new(ill.name(), count))));
    for round in 0..plan.rounds {
        let mut at = round;
        for row in &mut rows {
            let count = usize::try_from(row.over)?;
            let hosts: Vec<usize> = bed.hosts().cycle().skip(at).take(count).collect();
            at += count;
            bed.settle()?;
            let ill = Ill::ALL.into_iter().find(|ill| ill.name() == row.scheme);
            ill.inspect(|ill| ill.begin(bed, &hosts));
            let seconds = bed.recover(&image, "spread");
            ill.inspect(|ill| ill.end(bed, &hosts));
            row.recover_seconds.push(seconds?);
        }
    }
    Ok(rows)
}

/// Brings an image back from five hosts, some of which are loaded; and from only three that are left, the loaded ones among them.
/// A client that reads one fragment after the other there isn't, so this is what it would have to wait for.
pub fn parallel_or_forced(bed: &Bed, plan: &Plan) -> Result<Vec<Timed>, Error> {
    bed.folders(&[("five", CODED)])?;
    bed.settle()?;
    let image: Image = bed.image(0, plan.image_bytes, TIGR_II.shrinks_to())?;
    let holders = bed.store_at_five(&image, "five")?;
    let mut rows = Vec::new();
    for loaded in 0..=SPARE {
        let (loaded_hosts, others) = holders.split_at(loaded.min(holders.len()));
        let spare: Vec<usize> = others.iter().copied().take(SPARE).collect();
        let mut parallel = Timed::new("any three of five", loaded);
        let mut forced = Timed::new("the loaded ones among only three", loaded);
        for _ in 0..plan.rounds {
            bed.settle()?;
            loaded_hosts.iter().for_each(|host| bed.link(*host, LOADED_MBIT));
            let first = bed.recover(&image, "five");
            bed.kill(&spare);
            let second = bed.recover(&image, "five");
            bed.revive(&spare);
            loaded_hosts.iter().for_each(|host| bed.link(*host, LAN_MBIT));
            parallel.recover_seconds.push(first?);
            forced.recover_seconds.push(second?);
        }
        rows.extend([parallel, forced]);
    }
    Ok(rows)
}

/// To choose hosts again costs no more than with hosts by chance; recovery takes no more than a tenth longer than with all healthy.
pub fn targets(stores: &[Timed], recovered: &[Timed]) -> Vec<Target> {
    let most = stores.iter().filter(|row| row.scheme == "falcon").map(|row| row.over).max();
    let most = most.unwrap_or_default();
    let stored = |scheme| find(stores, scheme, most).map_or(f64::NAN, Timed::stored);
    let what = format!("falcon / random: storing with {most} hosts unavailable, seconds");
    let chosen = at_most(what, stored("falcon") / stored("random"), 1.05);
    let healthy = find(recovered, HEALTHY, 0).map_or(f64::NAN, Timed::recovered);
    let ill = recovered.iter().filter(|row| row.over > 0).map(|row| {
        let what = format!("recovery while {} {}, seconds / healthy", row.over, row.scheme);
        at_most(what, row.recovered() / healthy, 1.1)
    });
    std::iter::once(chosen).chain(ill).collect()
}
