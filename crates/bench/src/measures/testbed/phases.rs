//! Images of the paper's sizes (its Table 1), and where the time of a store and of a recovery goes (Figures 4 and 5).
//!
//! Each phase is measured by itself, on one thread; what is sent and fetched is computed from the link. A store and a recovery through the
//! pool do all of that at the same time, so they take less than the sum; how much less is what these rows show.

use std::fmt::Write as _;

use bytes::Bytes;
use serde::Serialize;
use stdchk_model::Redundancy;
use stdchk_reduce::Effort;

use super::bed::{Bed, LAN_MBIT};
use super::{CODED, Plan};
use crate::Error;
use crate::coding::{Phases, Way, phases};
use crate::paper;
use crate::row::median;

const MB: u64 = 1_000_000;
/// Bits of a byte.
const BITS: f64 = 8.0;
/// Where images go; with the codec that a link of 100 Mbit/s makes `auto` choose.
const FOLDER: (&str, &str) = ("phases", "codec=zstd:3");

/// One image.
#[derive(Serialize)]
pub struct Phased {
    image: &'static str,
    stored_mb: f64,
    #[serde(flatten)]
    phases: Phases,
    /// All fragments over the client's link, and as many of them as are enough.
    send_seconds: f64,
    fetch_seconds: f64,
    /// Through the pool, all phases at once.
    store_seconds: f64,
    recover_seconds: f64,
    /// As it is, to a dedicated server and back.
    dedicated_store_seconds: f64,
    dedicated_recover_seconds: f64,
}

/// All images of Table 1.
pub fn measure(bed: &Bed, plan: &Plan) -> Result<Vec<Phased>, Error> {
    bed.folders(&[(FOLDER.0, &format!("{CODED} {}", FOLDER.1))])?;
    bed.settle()?;
    paper::IMAGES.into_iter().map(|image| one(bed, plan, image)).collect()
}

fn one(bed: &Bed, plan: &Plan, of_paper: paper::Image) -> Result<Phased, Error> {
    let (bytes, share) = (of_paper.mb * MB / plan.smaller, of_paper.shrinks_to());
    let (mut stores, mut recoveries) = (Vec::new(), Vec::new());
    let (mut sends, mut fetches, mut stored) = (Vec::new(), Vec::new(), 0);
    for _ in 0..plan.rounds {
        let image = bed.image(0, bytes, share)?;
        let (seconds, encoded) = bed.store(&image, FOLDER.0)?;
        stored = encoded;
        stores.push(seconds);
        recoveries.push(bed.recover(&image, FOLDER.0)?);
        bed.remove(&image, FOLDER.0);
        sends.push(bed.send(&image)?);
        fetches.push(bed.fetch(&image)?);
        bed.unsend(&image)?;
    }
    let image = bed.image(0, bytes, share)?;
    let redundancy: Redundancy = "erasure:3,2".parse()?;
    let way = Way { effort: Effort::Zstd(3), redundancy, lost: 0 };
    let phases = phases(&Bytes::from(image.content()?), 1, way)?;
    let link = f64::from(LAN_MBIT) * MB as f64 / BITS;
    Ok(Phased {
        image: of_paper.name,
        stored_mb: stored as f64 / MB as f64,
        send_seconds: redundancy.stored_bytes(phases.encoded_bytes) as f64 / link,
        fetch_seconds: phases.encoded_bytes as f64 / link,
        phases,
        store_seconds: median(&stores),
        recover_seconds: median(&recoveries),
        dedicated_store_seconds: median(&sends),
        dedicated_recover_seconds: median(&fetches),
    })
}

/// Rows as text.
pub fn table(rows: &[Phased]) -> String {
    let mut text = "Table 1, Figures 4 and 5: seconds of each phase alone, and of all at once\n\
                    image        MB  stored MB   compress  code  send   store  dedicated   fetch  decode  decompress  recover  dedicated\n"
        .to_owned();
    for row in rows {
        let Phases { bytes, compress_seconds, code_seconds, decode_seconds, decompress_seconds, .. } =
            &row.phases;
        let _ = writeln!(
            text,
            "{:9} {:>6.0} {:>10.1} {compress_seconds:>10.2} {code_seconds:>5.2} {:>5.1} {:>7.2} {:>10.2} {:>7.1} {decode_seconds:>7.2} \
             {decompress_seconds:>11.2} {:>8.2} {:>10.2}",
            row.image,
            *bytes as f64 / MB as f64,
            row.stored_mb,
            row.send_seconds,
            row.store_seconds,
            row.dedicated_store_seconds,
            row.fetch_seconds,
            row.recover_seconds,
            row.dedicated_recover_seconds,
        );
    }
    text.push('\n');
    text
}
