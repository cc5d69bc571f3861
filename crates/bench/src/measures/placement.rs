//! What each way to choose benefactors would have lost, on made-up traces of machines that come and go, or with `--trace` on those of a folder.
//!
//! `stdchk-replay run` does the same with more choices. Nothing here depends on the machine that measures.

use stdchk_replay::experiment::{self, Part};
use stdchk_replay::summary::table;
use stdchk_replay::trace;
use stdchk_replay::world::World;

use crate::Error;
use crate::bench::{Bench, Size};
use crate::section::Section;

/// Decides all chance.
const SEED: u64 = 1;

/// Replays both kinds of traces.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    // Hosts and days of volunteers; zones and days of spot instances.
    let (volunteers, spot) = match bench.size {
        Size::Tiny => ((40, 12), (2, 2)),
        Size::Small => ((150, 30), (3, 6)),
        Size::Full => ((300, 60), (4, 12)),
    };
    let worlds = match &bench.trace {
        Some(folder) => trace::read(folder, SEED).map_err(|error| Error(error.to_string()))?,
        None => vec![World::volunteers(volunteers.0, volunteers.1, SEED), World::spot(spot.0, spot.1, SEED)],
    };
    let (mut reports, mut text) = (Vec::new(), String::new());
    for world in worlds {
        let settings = experiment::settings(&world, Part::Test, SEED);
        let report = experiment::run(&world, &[], &settings, &experiment::variants(world.fate), |_| {});
        text.push_str(&format!("{}, {} hosts\n\n{}\n", report.trace, report.hosts, table(&report.rows)));
        reports.push(report);
    }
    Ok(Section { rows: serde_json::to_value(&reports)?, table: text, targets: Vec::new() })
}
