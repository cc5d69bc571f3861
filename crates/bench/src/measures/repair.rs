//! Copies that a pool of many machines makes anew when it loses one of them, over the speed of their links.
//!
//! Each machine is a network namespace with a link of its own, as in [`machines`](super::machines), and they share processors and a disk.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;
use stdchk_tests::Machines;

use super::machines::{BUSY, MB, links, pool};
use crate::Error;
use crate::bench::{BLOCK, Bench, Size};
use crate::cpu;
use crate::section::{Section, at_least};
use crate::stock::Stock;
use crate::transfer::{self, Content};

/// Time between two looks at a pool that makes copies.
const LOOK: Duration = Duration::from_millis(100);
/// Longest wait for these copies.
const PATIENCE: Duration = Duration::from_secs(900);

/// What is measured.
struct Loss {
    benefactors: usize,
    /// Speed of each link, and bytes that the pool holds, twice.
    cases: &'static [(u32, u64)],
}

#[derive(Serialize)]
struct Repaired {
    link_mbit: u32,
    benefactors: usize,
    lost_mb: f64,
    /// From the first chunk that lacked a copy until none did.
    seconds: f64,
    mb_per_second: f64,
    /// What the links of those that are left carry, MB/s.
    links_mb_per_second: f64,
    busy: f64,
}

/// Measures it over the links' speeds.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let loss = match bench.size {
        Size::Tiny => Loss { benefactors: 3, cases: &[(100, 8_000_000)] },
        Size::Small => Loss { benefactors: 6, cases: &[(100, 1_500_000_000), (1000, 3_000_000_000)] },
        Size::Full => Loss { benefactors: 6, cases: &[(100, 3_000_000_000), (1000, 12_000_000_000)] },
    };
    let made = |(mbit, bytes): &(u32, u64)| repair(bench, loss.benefactors, *bytes, *mbit);
    let repaired = loss.cases.iter().map(made).collect::<Result<Vec<_>, _>>()?;
    let reached = repaired.iter().filter(|row| row.busy < BUSY).map(|row| {
        let what = format!("copies anew at {} Mbit/s / the links", row.link_mbit);
        at_least(what, row.mb_per_second / row.links_mb_per_second, 0.7)
    });
    let (targets, table) = (reached.collect(), table(&repaired));
    Ok(Section { rows: serde_json::to_value(repaired)?, table, targets })
}

fn table(repaired: &[Repaired]) -> String {
    let mut text =
        "Mbit/s of a link   benefactors   lost MB   seconds    MB/s   the links   processors busy\n"
            .to_owned();
    for row in repaired {
        let Repaired { link_mbit, benefactors, lost_mb, seconds, mb_per_second, links_mb_per_second, busy } =
            row;
        let _ = writeln!(
            text,
            "{link_mbit:>16} {benefactors:>13} {lost_mb:>9.0} {seconds:>9.1} {mb_per_second:>7.1} {links_mb_per_second:>11.1} {:>15.0} %",
            100.0 * busy
        );
    }
    text
}

fn status(machines: &Machines, client: usize) -> Value {
    machines.ok(client, &["status", "--json"]).json()
}

fn number(status: &Value, name: &str) -> Result<u64, Error> {
    status
        .get(name)
        .and_then(Value::as_u64)
        .ok_or_else(|| Error(format!("`status` says no {name}: {status}")))
}

/// Bytes that the benefactor on the first of their machines has.
fn used_by_first(status: &Value) -> Result<u64, Error> {
    let all = status.get("benefactors").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let is_first = |one: &&Value| {
        one.get("address").and_then(Value::as_str).is_some_and(|at| at.starts_with("10.77.0.2:"))
    };
    let first =
        all.iter().find(is_first).ok_or_else(|| Error(format!("no benefactor is on machine 2: {status}")))?;
    number(first, "used_bytes")
}

/// Whether every chunk has its copies.
fn settled(status: &Value) -> Result<bool, Error> {
    Ok(number(status, "chunks_at_risk")? == 0 && number(status, "repairs_pending")? == 0)
}

fn repair(bench: &Bench, benefactors: usize, bytes: u64, link_mbit: u32) -> Result<Repaired, Error> {
    let client = benefactors + 2;
    let (_ended, machines, roots) = pool(bench, benefactors, 1, link_mbit, "redundancy=replicate:2");
    let mut stock = Stock::new();
    let content = Content { bytes, block: BLOCK, salt: 0, repeated: None };
    for root in &roots {
        transfer::write(&root.join("all"), content, &mut stock, false)?;
    }
    let until = |what: &str, is_settled: bool| {
        let began = Instant::now();
        while settled(&status(&machines, client))? != is_settled {
            if began.elapsed() > PATIENCE {
                return Err(Error(format!("after {} s not yet: {what}", PATIENCE.as_secs())));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    };
    until("all has two copies", true)?;
    let lost = used_by_first(&status(&machines, client))?;
    machines.kill(2);
    until("the loss is noticed", false)?;
    let (began, processors) = (Instant::now(), cpu::of_all()?);
    until("all has two copies again", true)?;
    let (seconds, after) = (began.elapsed().as_secs_f64(), cpu::of_all()?);
    let lost_mb = lost as f64 / MB;
    Ok(Repaired {
        link_mbit,
        benefactors,
        lost_mb,
        seconds,
        mb_per_second: lost_mb / seconds,
        links_mb_per_second: links(benefactors - 1, link_mbit),
        busy: cpu::busy(processors, after),
    })
}
