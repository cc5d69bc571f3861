//! Clients that store at the same time (the paper's Figure 6), through each way to choose hosts and at a dedicated server.

use super::bed::Bed;
use super::timed::{Timed, find};
use super::{CODED, Plan};
use crate::Error;
use crate::paper::TIGR_II;
use crate::section::{Target, at_most};

const DEDICATED: &str = "dedicated server";
/// Ways to choose hosts, each the name of its folder as well.
const PLACEMENTS: [&str; 5] = ["round-robin", "random", "pessimistic", "falcon", "learned"];

/// Each way with each number of clients.
pub fn store_at_once(bed: &Bed, plan: &Plan) -> Result<Vec<Timed>, Error> {
    let policies = PLACEMENTS.map(|placement| format!("{CODED} placement={placement}"));
    let folders: Vec<(&str, &str)> =
        PLACEMENTS.into_iter().zip(policies.iter().map(String::as_str)).collect();
    bed.folders(&folders)?;
    let mut rows = Vec::new();
    for clients in plan.clients {
        for scheme in std::iter::once(DEDICATED).chain(PLACEMENTS) {
            let mut row = Timed::new(scheme, *clients);
            for _ in 0..plan.rounds {
                row.store_seconds.extend(all_at_once(bed, plan, *clients, scheme)?);
            }
            rows.push(row);
        }
    }
    Ok(rows)
}

/// The seconds of each of the clients.
fn all_at_once(bed: &Bed, plan: &Plan, clients: usize, scheme: &str) -> Result<Vec<f64>, Error> {
    let images = (0..clients).map(|client| bed.image(client, plan.image_bytes, TIGR_II.shrinks_to()));
    let images = images.collect::<Result<Vec<_>, _>>()?;
    let one = |image| match scheme {
        DEDICATED => {
            let seconds = bed.send(image)?;
            bed.unsend(image)?;
            Ok(seconds)
        }
        _ => {
            let (seconds, _) = bed.store(image, scheme)?;
            bed.remove(image, scheme);
            Ok(seconds)
        }
    };
    std::thread::scope(|threads| {
        let running: Vec<_> = images.iter().map(|image| threads.spawn(move || one(image))).collect();
        running
            .into_iter()
            .map(|client| client.join().map_err(|_| Error("a client ended".to_owned()))?)
            .collect()
    })
}

/// The orderings of the paper: less than the dedicated server, and no more than with hosts by chance.
pub fn targets(rows: &[Timed]) -> Vec<Target> {
    let most = rows.iter().map(|row| row.over).max().unwrap_or_default();
    let stored = |scheme| find(rows, scheme, most).map_or(f64::NAN, Timed::stored);
    ["falcon", "learned"]
        .into_iter()
        .flat_map(|ours| {
            [DEDICATED, "random"].map(|peer| {
                let what = format!("{ours} / {peer}: storing by {most} clients at once, seconds");
                at_most(what, stored(ours) / stored(peer), 1.0)
            })
        })
        .collect()
}
