//! The chain for a block on which as much time may be spent as a dense compressor takes (docs/design/0203).

use super::{
    Choice, Mode, Sample, cheapest, distances, lane_of, numeric, record_length, reduced, single_bytes, swap,
};
use crate::codec::{Side, Step, encode};

/// Bytes of a block that are tried where a dense compressor may follow.
const DENSE_SAMPLE: usize = 192 << 10;

/// The chain that makes the least of a block, at whatever time.
pub(super) fn choose_densely(block: &Sample<'_>) -> Choice {
    if block.data_type.is_none()
        && let Some(choice) = incompressible(block.raw)
    {
        return choice;
    }
    let (chains, part) = (dense_chains(block), reduced(block, DENSE_SAMPLE));
    let tried = chains.len() as u64;
    let best = cheapest(&Mode::Smallest, chains, &part);
    let ratio = best.as_ref().map_or(1.0, |best| part.raw.len() as f64 / best.coded.len().max(1) as f64);
    Choice { steps: best.map_or_else(Vec::new, |best| best.steps), coded: None, ratio, tried }
}

/// The quick chain for a block of which it wins next to nothing: what was compressed before gives nothing to slow ones either.
fn incompressible(raw: &[u8]) -> Option<Choice> {
    let steps = vec![Step::Zstd(3)];
    let coded = encode(&steps, raw, Side::default()).ok()?;
    let ratio = raw.len() as f64 / coded.len().max(1) as f64;
    (coded.len() + raw.len() / 200 > raw.len()).then_some(Choice {
        steps,
        coded: Some(coded),
        ratio,
        tried: 1,
    })
}

/// What is tried where time doesn't count: for integers, whose values repeat, and for bytes of which nothing is known.
pub(super) fn dense_chains(block: &Sample<'_>) -> Vec<Vec<Step>> {
    let Some((data_type, lane)) = lane_of(block.data_type) else {
        let widths = record_length(block.raw).into_iter().chain(single_bytes(block));
        let by_place = widths
            .flat_map(|width| [vec![Step::Planes(width, 19)], vec![Step::Shuffle(width), Step::Zstd(19)]]);
        return std::iter::once(vec![Step::Zstd(19)]).chain(by_place).collect();
    };
    let size = u32::try_from(lane.size()).unwrap_or(1);
    let own = [
        vec![Step::Pco(lane, 8)],
        vec![Step::Lorenzo(lane), Step::Pco(distances(lane), 8)],
        vec![Step::Lorenzo(lane), Step::Shuffle(size), Step::Zstd(19)],
        vec![Step::Shuffle(size), Step::Zstd(19)],
    ];
    let swapped = own.into_iter().map(|chain| [swap(data_type, lane), chain].concat());
    std::iter::once(vec![Step::Zstd(19)])
        .chain(numeric(&Mode::Default, data_type, lane, block))
        .chain(swapped)
        .collect()
}
