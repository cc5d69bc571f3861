//! What compressing, many hosts at once and hosts without load contribute (the paper's Figure 10), and how much of the links a store
//! with a code uses.

use std::fmt::Write as _;

use serde::Serialize;

use super::bed::{Bed, LAN_MBIT, with_busy};
use super::timed::Timed;
use super::{CODED, Plan};
use crate::Error;
use crate::paper::TIGR_I;
use crate::section::{Target, at_least};

const MB: u64 = 1_000_000;
/// Bits of a byte.
const BITS: f64 = 8.0;
/// Share of the processors from which on they are the bound.
const BUSY: f64 = 0.9;
/// Of what the links carry.
const OF_LINKS: f64 = 0.95;
/// Most bytes of an image for fast links.
const BYTES_MAX: u64 = 1_000_000_000;
/// What is left of the link of a host under load, Mbit/s.
const LOADED_MBIT: u32 = 5;
const LOADED: &str = "all, one of five hosts loaded";

/// Schemes, each with its folder and policy: from all techniques to none.
const SCHEMES: [(&str, &str, &str); 5] = [
    ("all: compressed, coded, from five hosts", "all", "redundancy=erasure:3,2 stripe=5 codec=zstd:3"),
    (LOADED, "all", ""),
    ("not compressed", "plain", "redundancy=erasure:3,2 stripe=5 codec=store"),
    ("compressed, on one host", "single", "redundancy=replicate:1 stripe=1 codec=zstd:3"),
    ("not compressed, on one host", "bare", "redundancy=replicate:1 stripe=1 codec=store"),
];

/// Stores and recovers the paper's image with each scheme, and through the dedicated server.
pub fn measure(bed: &Bed, plan: &Plan) -> Result<Vec<Timed>, Error> {
    let folders: Vec<(&str, &str)> =
        SCHEMES.iter().filter(|scheme| !scheme.2.is_empty()).map(|scheme| (scheme.1, scheme.2)).collect();
    bed.folders(&folders)?;
    bed.settle()?;
    let (bytes, shrinks_to) = (TIGR_I.mb * MB / plan.smaller, TIGR_I.shrinks_to());
    let mut rows: Vec<Timed> = SCHEMES.iter().map(|scheme| Timed::new(scheme.0, 0)).collect();
    let mut dedicated = Timed::new("dedicated server", 0);
    let mut stored = Vec::new();
    for _ in 0..plan.rounds {
        for (row, (scheme, folder, _)) in rows.iter_mut().zip(SCHEMES) {
            let image = bed.image(0, bytes, shrinks_to)?;
            if scheme == LOADED {
                let [loaded, ..] = bed.store_at_five(&image, folder)?;
                bed.link(loaded, LOADED_MBIT);
                let seconds = bed.recover(&image, folder);
                bed.link(loaded, LAN_MBIT);
                row.recover_seconds.push(seconds?);
            } else {
                row.store_seconds.push(bed.store(&image, folder)?.0);
                row.recover_seconds.push(bed.recover(&image, folder)?);
            }
            // What was removed would go while it is looked at who gets something.
            stored.push((image, folder));
        }
        let image = bed.image(0, bytes, shrinks_to)?;
        dedicated.store_seconds.push(bed.send(&image)?);
        dedicated.recover_seconds.push(bed.fetch(&image)?);
        bed.unsend(&image)?;
    }
    stored.iter().for_each(|(image, folder)| bed.remove(image, folder));
    rows.push(dedicated);
    Ok(rows)
}

/// A store over links of some speed, of bytes that don't shrink.
#[derive(Serialize)]
pub struct Linked {
    link_mbit: u32,
    mb: f64,
    store_seconds: f64,
    recover_seconds: f64,
    /// What the client sent, and what it received, as a share of what its link carries in that time.
    store_of_link: f64,
    recover_of_link: f64,
    /// Share of the processors' time that was used meanwhile.
    store_busy: f64,
    recover_busy: f64,
}

impl Linked {
    /// What a store is to reach, where the processors aren't the bound.
    pub fn target(&self) -> Option<Target> {
        let what = format!("(3,2) over {} Mbit/s: sent / what the link carries", self.link_mbit);
        (self.store_busy < BUSY).then(|| at_least(what, self.store_of_link, OF_LINKS))
    }
}

/// Stores and recovers over links of each speed.
pub fn links(bed: &Bed, plan: &Plan) -> Result<Vec<Linked>, Error> {
    bed.folders(&[("links", &format!("{CODED} codec=store"))])?;
    plan.links_mbit.iter().map(|mbit| over_links(bed, plan, *mbit)).collect()
}

fn over_links(bed: &Bed, plan: &Plan, link_mbit: u32) -> Result<Linked, Error> {
    bed.all_links(link_mbit);
    bed.settle()?;
    let bytes = (plan.image_bytes * u64::from(link_mbit / LAN_MBIT)).min(BYTES_MAX);
    let image = bed.image(0, bytes, 1.0)?;
    let ((store_seconds, _), store_busy) = with_busy(|| bed.store(&image, "links"))?;
    let (recover_seconds, recover_busy) = with_busy(|| bed.recover(&image, "links"))?;
    bed.remove(&image, "links");
    bed.all_links(LAN_MBIT);
    let link = f64::from(link_mbit) * MB as f64 / BITS;
    Ok(Linked {
        link_mbit,
        mb: bytes as f64 / MB as f64,
        store_seconds,
        recover_seconds,
        store_of_link: bytes as f64 * 5.0 / 3.0 / store_seconds / link,
        recover_of_link: bytes as f64 / recover_seconds / link,
        store_busy,
        recover_busy,
    })
}

/// Rows as text.
pub fn table_of_links(rows: &[Linked]) -> String {
    let mut text = "(3,2) over links of some speed, bytes that don't shrink\n\
                    Mbit/s      MB   store, s  of the link  processors busy   recover, s  of the link  processors busy\n"
        .to_owned();
    for row in rows {
        let _ = writeln!(
            text,
            "{:>6} {:>7.0} {:>10.2} {:>12.2} {:>14.0} % {:>12.2} {:>12.2} {:>14.0} %",
            row.link_mbit,
            row.mb,
            row.store_seconds,
            row.store_of_link,
            100.0 * row.store_busy,
            row.recover_seconds,
            row.recover_of_link,
            100.0 * row.recover_busy,
        );
    }
    text
}
