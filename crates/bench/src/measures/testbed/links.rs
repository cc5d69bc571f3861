//! How much of the links a store with a code uses, and a recovery, of bytes that don't shrink.

use std::fmt::Write as _;

use serde::Serialize;

use super::bed::{Bed, LAN_MBIT, with_busy};
use super::{CODED, Plan};
use crate::Error;
use crate::section::{Target, at_least};

const MB: u64 = 1_000_000;
/// Of an Ethernet frame of 1500 bytes and its head of 14, which is what a shaped link counts, TCP with time stamps leaves so many bytes to what is
/// sent.
const PAYLOAD: f64 = 1448.0 / 1514.0;
/// Bits of a byte.
const BITS: f64 = 8.0;
/// Share of the processors from which on they are the bound.
const BUSY: f64 = 0.9;
/// Of what the links carry.
const OF_LINKS: f64 = 0.95;
/// Most bytes of an image for fast links.
const BYTES_MAX: u64 = 1_000_000_000;

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
pub fn measure(bed: &Bed, plan: &Plan) -> Result<Vec<Linked>, Error> {
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
    let link = f64::from(link_mbit) * MB as f64 / BITS * PAYLOAD;
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
pub fn table(rows: &[Linked]) -> String {
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
