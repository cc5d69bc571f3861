//! What compressing, many hosts at once and hosts without load contribute (the paper's Figure 10).

use super::Plan;
use super::bed::{Bed, LAN_MBIT};
use super::timed::Timed;
use crate::Error;
use crate::paper::TIGR_I;

const MB: u64 = 1_000_000;
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
