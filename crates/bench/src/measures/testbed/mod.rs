//! FALCON's testbed (section 6.2 of its paper): hosts on links of 100 Mbit/s, one of them behind a DSL line, and how long storing and
//! recovering an image takes while clients are many, hosts die, fall silent, or are slow; beside a dedicated server and other ways to
//! choose hosts.
//!
//! Hosts are network namespaces that share the processors and the disk of the machine that measures. So a host is made slow by its
//! link, which is its own. Images are made up: each page of them shrinks to the share that the paper's images shrink to. They are stored by
//! `put` and come back by `get` on another machine, each a process of its own; the paper's times include reading and writing local files
//! in the same way.

pub mod bed;
mod clients;
mod contributions;
mod links;
mod losses;
mod phases;
mod timed;

use crate::Error;
use crate::bench::{Bench, Size};
use crate::paper::TIGR_II;
use crate::section::Section;

use self::bed::Bed;
use self::timed::table;

/// The code of all the paper's figures, over as many hosts as it has blocks.
const CODED: &str = "redundancy=erasure:3,2 stripe=5";

/// How much is measured.
struct Plan {
    hosts: usize,
    /// Numbers of clients that store at once.
    clients: &'static [usize],
    image_bytes: u64,
    rounds: usize,
    /// Numbers of hosts that are unavailable when something is stored.
    unavailable: &'static [usize],
    /// By how much the images of Table 1 are smaller than the paper's.
    smaller: u64,
    links_mbit: &'static [u32],
}

fn plan(size: Size) -> Plan {
    match size {
        Size::Tiny => Plan {
            hosts: 6,
            clients: &[2],
            image_bytes: 500_000,
            rounds: 1,
            unavailable: &[1],
            smaller: 1000,
            links_mbit: &[100],
        },
        Size::Small => Plan {
            hosts: 12,
            clients: &[1, 4],
            image_bytes: 100_000_000,
            rounds: 2,
            unavailable: &[0, 2, 4],
            smaller: 10,
            links_mbit: &[100, 1000],
        },
        Size::Full => Plan {
            hosts: 12,
            clients: &[1, 2, 4, 6],
            image_bytes: 500_000_000,
            rounds: 3,
            unavailable: &[0, 1, 2, 3, 4],
            smaller: 1,
            links_mbit: &[100, 1000],
        },
    }
}

/// A testbed for so many clients.
fn bed(bench: &Bench, plan: &Plan, clients: usize) -> Result<Bed, Error> {
    Ok(Bed::start(bench, plan.hosts, clients)?.waiting(bench.size != Size::Tiny))
}

/// Clients that store at the same time, while one of the hosts is behind a DSL line.
pub fn clients(bench: &Bench) -> Result<Section, Error> {
    let plan = plan(bench.size);
    let bed = bed(bench, &plan, plan.clients.iter().copied().max().unwrap_or(1))?;
    bed.link(bed.last_host(), bed::DSL_MBIT);
    let figure_6 = clients::store_at_once(&bed, &plan)?;
    let rows = serde_json::json!({
        "image_bytes": plan.image_bytes, "shrinks_to": TIGR_II.shrinks_to(), "hosts": plan.hosts, "dsl_mbit": bed::DSL_MBIT,
        "figure_6": figure_6,
    });
    let table = table("Figure 6: clients that store at once", &figure_6);
    Ok(Section { rows, table, targets: clients::targets(&figure_6) })
}

/// Hosts that are dead, silent or slow.
pub fn hosts(bench: &Bench) -> Result<Section, Error> {
    let plan = plan(bench.size);
    let bed = bed(bench, &plan, 2)?;
    let figure_7 = losses::store_without(&bed, &plan)?;
    let figure_8 = losses::store_beside_load(&bed, &plan)?;
    let recovery = losses::recover_without(&bed, &plan)?;
    let figure_9 = losses::parallel_or_forced(&bed, &plan)?;
    let parts = [
        ("Figure 7: hosts that are unavailable when something is stored", &figure_7),
        ("Figure 8: the link of one of the hosts is left so many Mbit/s by others", &figure_8),
        ("Recovery while so many hosts are dead, silent or slow", &recovery),
        ("Figure 9: recovery while the links of so many of five hosts are left 5 Mbit/s", &figure_9),
    ];
    let table = parts.iter().map(|(title, rows)| table(title, rows)).collect();
    let targets = losses::targets(&figure_7, &recovery);
    let rows = serde_json::json!({
        "figure_7": figure_7, "figure_8": figure_8, "recovery": recovery, "figure_9": figure_9,
    });
    Ok(Section { rows, table, targets })
}

/// Where the time goes, and what each technique contributes.
pub fn phases(bench: &Bench) -> Result<Section, Error> {
    let plan = plan(bench.size);
    let bed = bed(bench, &plan, 2)?;
    let figure_10 = contributions::measure(&bed, &plan)?;
    let figures_4_5 = phases::measure(&bed, &plan)?;
    let table =
        table("Figure 10: what each technique contributes", &figure_10) + &phases::table(&figures_4_5);
    let rows = serde_json::json!({ "figure_10": figure_10, "figures_4_5": figures_4_5 });
    Ok(Section { rows, table, targets: Vec::new() })
}

/// How much of the links a store with a code uses, and a recovery.
pub fn over_links(bench: &Bench) -> Result<Section, Error> {
    let plan = plan(bench.size);
    let bed = bed(bench, &plan, 2)?;
    let links = links::measure(&bed, &plan)?;
    let targets = links.iter().filter_map(links::Linked::target).collect();
    let table = links::table(&links);
    Ok(Section { rows: serde_json::to_value(links)?, table, targets })
}
