//! The cutters that are compared: the paper's, ours, and the `fastcdc` crate.

use fastcdc::v2020::FastCDC;
use stdchk_reduce::cut::pieces;
use stdchk_reduce::{CutLimits, CutterSpec};

use crate::Error;
use crate::bench::Size;

/// The default cutter, in the sizes that a user would choose, bytes.
const AVERAGES: [usize; 4] = [8 << 10, 16 << 10, 64 << 10, 256 << 10];
const FIXED: [&str; 4] = ["fsch:4KiB", "fsch:64KiB", "fsch:256KiB", "fsch:1MiB"];
/// The paper's Table 3: overlap, no-overlap.
const CBCH: [&str; 2] = ["cbch:m=20,k=14,p=1", "cbch:m=20,k=14,p=20"];
/// The paper's Table 4: all windows m with all numbers of zero bits k.
const WINDOWS: [usize; 5] = [20, 32, 64, 128, 256];
const ZERO_BITS: [usize; 4] = [8, 10, 12, 14];

/// A way to cut an image.
pub struct Contender {
    /// A cutter as a policy names it, or the peer's name and size.
    pub name: String,
    /// Of a peer: our cutter of the same average.
    pub peer_of: Option<String>,
    cut: Cut,
}

/// Lengths of the pieces of an image.
type Cut = Box<dyn Fn(&[u8]) -> Vec<usize>>;

impl Contender {
    /// Lengths of the pieces of an image.
    pub fn cut(&self, image: &[u8]) -> Vec<usize> {
        (self.cut)(image)
    }

    fn ours(spec: CutterSpec) -> Self {
        let cut = move |image: &[u8]| pieces(&mut *spec.cutter(), image).map(<[u8]>::len).collect();
        Self { name: spec.to_string(), peer_of: None, cut: Box::new(cut) }
    }

    /// The `fastcdc` crate with the limits of ours.
    fn fastcdc(spec: CutterSpec) -> Self {
        let CutLimits { min, average, max } = spec.limits();
        let cut =
            move |image: &[u8]| FastCDC::new(image, min, average, max).map(|piece| piece.length).collect();
        let name = spec.to_string().replace("cdc:", "fastcdc:");
        Self { name, peer_of: Some(spec.to_string()), cut: Box::new(cut) }
    }
}

/// These cutters of ours.
pub fn of(cutters: &[&str]) -> Result<Vec<Contender>, Error> {
    cutters.iter().map(|cutter| Ok(Contender::ours(cutter.parse()?))).collect()
}

/// All of them, each peer next to ours. Table 4 belongs to the full size; the tiny one takes one of each kind.
pub fn all(size: Size) -> Result<Vec<Contender>, Error> {
    let few = if size == Size::Tiny { 1 } else { usize::MAX };
    let mut specs: Vec<String> = FIXED.iter().take(few).map(|spec| (*spec).to_owned()).collect();
    specs.extend(CBCH.iter().take(few).map(|spec| (*spec).to_owned()));
    if size == Size::Full {
        specs.push("fsch:1KiB".to_owned());
        specs.extend(table_4().filter(|spec| !CBCH.contains(&spec.as_str())));
    }
    let specs = specs.iter().map(|spec| spec.parse()).collect::<Result<Vec<CutterSpec>, _>>()?;
    let mut all: Vec<Contender> = specs.into_iter().map(Contender::ours).collect();
    for average in AVERAGES.into_iter().take(few) {
        let spec = CutterSpec::cdc(average)?;
        all.extend([Contender::ours(spec), Contender::fastcdc(spec)]);
    }
    Ok(all)
}

fn table_4() -> impl Iterator<Item = String> {
    let pairs = ZERO_BITS.into_iter().flat_map(|k| WINDOWS.into_iter().map(move |m| (m, k)));
    pairs.map(|(m, k)| format!("cbch:m={m},k={k},p={m}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_cuts_all_of_an_image() {
        let image: Vec<u8> =
            (0..300_000_u32).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let all = all(Size::Full).unwrap();
        assert_eq!(all.len(), 4 + 2 + 1 + 19 + 8);
        for contender in all {
            assert_eq!(contender.cut(&image).iter().sum::<usize>(), image.len(), "{}", contender.name);
        }
    }
}
