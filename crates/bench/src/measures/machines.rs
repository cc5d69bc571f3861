//! Clients of a pool of many machines, each a network namespace with a link of its own (the paper's Figure 8).
//!
//! All machines share the processors and the disk of the one that measures, so for each row it is said how busy its processors
//! were: where they had nothing left, they were the bound and not the links. Every connection is encrypted, as between real machines. A client's file
//! is removed again a few files later, so that one disk carries what the paper's clients wrote to twenty.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use stdchk_tests::Machines;

use crate::Error;
use crate::bench::{BLOCK, Bench, Size};
use crate::cpu;
use crate::ends::AtEnd;
use crate::section::{Section, at_least};
use crate::stock::Stock;
use crate::transfer::{self, Content};

/// Files of a client that stay.
const KEPT: usize = 3;
/// Share of the processors from which on they are the bound.
pub(super) const BUSY: f64 = 0.9;
/// What each benefactor gives.
const DONATED: &str = "8GiB";
/// Bits of a byte, and bytes of a megabyte.
const BITS: f64 = 8.0;
pub(super) const MB: f64 = 1e6;

/// What Figure 8 is measured with.
struct Figure {
    benefactors: usize,
    clients: usize,
    files: u64,
    file_bytes: u64,
    /// Between the first files of two clients.
    joins_after: Duration,
    links_mbit: &'static [u32],
}

#[derive(Serialize)]
struct Scaled {
    link_mbit: u32,
    benefactors: usize,
    clients: usize,
    files: u64,
    file_bytes: u64,
    /// What the clients wrote in each second, MB.
    mb_of_each_second: Vec<f64>,
    /// While all clients wrote, MB/s.
    mb_per_second: f64,
    /// What the links of all clients carry, MB/s.
    links_mb_per_second: f64,
    /// Share of the processors' time that was used while all clients wrote.
    busy: f64,
}

/// Measures it over the links' speeds.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let second = Duration::from_secs(1);
    let figure = match bench.size {
        Size::Tiny => Figure {
            benefactors: 3,
            clients: 2,
            files: 16,
            file_bytes: 4_000_000,
            joins_after: second,
            links_mbit: &[100],
        },
        Size::Small => Figure {
            benefactors: 20,
            clients: 7,
            files: 100,
            file_bytes: 10_000_000,
            joins_after: second,
            links_mbit: &[100, 1000],
        },
        Size::Full => Figure {
            benefactors: 20,
            clients: 7,
            files: 100,
            file_bytes: 100_000_000,
            joins_after: 10 * second,
            links_mbit: &[100, 1000],
        },
    };
    let scaled =
        figure.links_mbit.iter().map(|mbit| scale(bench, &figure, *mbit)).collect::<Result<Vec<_>, _>>()?;
    let reached = scaled.iter().filter(|row| row.busy < BUSY).map(|row| {
        let what = format!("clients at {} Mbit/s / their links", row.link_mbit);
        at_least(what, row.mb_per_second / row.links_mb_per_second, 0.9)
    });
    let (targets, table) = (reached.collect(), table(&scaled));
    Ok(Section { rows: serde_json::to_value(scaled)?, table, targets })
}

fn table(scaled: &[Scaled]) -> String {
    let mut text =
        "Mbit/s of a link   benefactors   clients    MB/s   their links   processors busy\n".to_owned();
    for row in scaled {
        let Scaled { link_mbit, benefactors, clients, mb_per_second, links_mb_per_second, busy, .. } = row;
        let _ = writeln!(
            text,
            "{link_mbit:>16} {benefactors:>13} {clients:>9} {mb_per_second:>7.1} {links_mb_per_second:>13.1} {:>15.0} %",
            100.0 * busy
        );
    }
    text
}

/// A pool whose machines have links of this speed, and a mount on each client's.
pub(super) fn pool(
    bench: &Bench,
    benefactors: usize,
    clients: usize,
    link_mbit: u32,
    policy: &str,
) -> (AtEnd, Machines, Vec<std::path::PathBuf>) {
    let machines = Machines::start_in(&bench.dir, 1 + benefactors + clients);
    let home = machines.home().to_owned();
    let ended = AtEnd::new(move || Machines::kill_all(&home));
    machines.make_pool(benefactors, clients, DONATED);
    let first = benefactors + 2;
    machines.ok(first, &["policy", "set", "app", policy]);
    (1..first + clients).for_each(|machine| machines.shape(machine, link_mbit));
    let roots = (first..first + clients).map(|machine| machines.mount(machine).join("app")).collect();
    (ended, machines, roots)
}

pub(super) fn links(count: usize, link_mbit: u32) -> f64 {
    count as f64 * f64::from(link_mbit) / BITS
}

// --- Figure 8

fn scale(bench: &Bench, figure: &Figure, link_mbit: u32) -> Result<Scaled, Error> {
    let &Figure { benefactors, clients, files, file_bytes, joins_after, .. } = figure;
    let (_ended, _machines, roots) = pool(bench, benefactors, clients, link_mbit, "redundancy=replicate:1");
    let (written, writing, ended) = (AtomicU64::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Barrier::new(clients + 1);
    let mut seconds: Vec<u64> = Vec::new();
    // While all of them wrote: seconds, bytes, what the processors did.
    let mut together = Vec::new();
    let joined = joins_after.as_secs() * (clients as u64 - 1);
    std::thread::scope(|threads| {
        let one = |number: usize, root: &Path| -> Result<(), Error> {
            let mut stock = Stock::new();
            start.wait();
            std::thread::sleep(joins_after * u32::try_from(number)?);
            writing.fetch_add(1, Ordering::Relaxed);
            let done = (0..files).try_for_each(|file| {
                let name = |file: u64| root.join(format!("client{number}.T{file}"));
                let content = Content {
                    bytes: file_bytes,
                    block: BLOCK,
                    salt: 1 + number as u64 + files * file,
                    repeated: None,
                };
                stock.renew();
                transfer::write_counted(&name(file), content, &mut stock, false, &written)?;
                match file.checked_sub(KEPT as u64) {
                    Some(old) => Ok(std::fs::remove_file(name(old))?),
                    None => Ok(()),
                }
            });
            ended.fetch_add(1, Ordering::Relaxed);
            done
        };
        let running: Vec<_> =
            roots.iter().enumerate().map(|(number, root)| threads.spawn(move || one(number, root))).collect();
        start.wait();
        let began = Instant::now();
        while ended.load(Ordering::Relaxed) < clients {
            let next = Duration::from_secs(seconds.len() as u64 + 1);
            std::thread::sleep(next.saturating_sub(began.elapsed()));
            seconds.push(written.load(Ordering::Relaxed));
            if writing.load(Ordering::Relaxed) == clients
                && ended.load(Ordering::Relaxed) == 0
                && seconds.len() as u64 > joined
            {
                let bytes = written.load(Ordering::Relaxed);
                together.push((began.elapsed().as_secs_f64(), bytes, cpu::of_all()?));
            }
        }
        for client in running {
            client.join().map_err(|_| Error("a client ended".to_owned()))??;
        }
        Ok::<(), Error>(())
    })?;
    let (Some(first), Some(last)) = (together.first(), together.last().filter(|_| together.len() > 1)) else {
        return Err(Error("the first client was done before the last one had begun".to_owned()));
    };
    let before = std::iter::once(0).chain(seconds.iter().copied());
    Ok(Scaled {
        link_mbit,
        benefactors,
        clients,
        files,
        file_bytes,
        mb_of_each_second: before.zip(&seconds).map(|(before, after)| (after - before) as f64 / MB).collect(),
        mb_per_second: (last.1 - first.1) as f64 / MB / (last.0 - first.0),
        links_mb_per_second: links(clients, link_mbit),
        busy: cpu::busy(first.2, last.2),
    })
}
