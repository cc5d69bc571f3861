//! Data and ways of cutting it for the tests of the cutters.

use proptest::prelude::*;

use super::{Cutter, pieces};

/// Reproducible bytes without structure (xorshift64*).
pub(crate) fn random(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes()
    };
    let mut bytes: Vec<u8> = std::iter::repeat_with(&mut next).take(length / 8 + 1).flatten().collect();
    bytes.truncate(length);
    bytes
}

/// Stretches of every kind that cutters meet: random, zero, repeating, text-like, arrays of doubles.
pub(super) fn data() -> impl Strategy<Value = Vec<u8>> {
    let stretch = (0usize..12_000, any::<u64>(), 0usize..5).prop_map(|(length, seed, kind)| match kind {
        0 => random(seed, length),
        1 => vec![0; length],
        2 => random(seed, usize::try_from(seed % 90).unwrap() + 1).into_iter().cycle().take(length).collect(),
        3 => text(seed, length),
        _ => doubles(seed, length),
    });
    prop::collection::vec(stretch, 0..8).prop_map(|stretches| stretches.concat())
}

fn text(seed: u64, length: usize) -> Vec<u8> {
    let words = ["chunk ", "benefactor ", "of ", "the ", "manager ", "0.", "1\n", "checkpoint ", "12", "7 "];
    let picks = random(seed, length).into_iter();
    picks.flat_map(|pick| words[usize::from(pick) % words.len()].bytes()).take(length).collect()
}

fn doubles(seed: u64, length: usize) -> Vec<u8> {
    let steps = random(seed, length / 8 + 1).into_iter();
    let walk = steps.scan(300.0, |value: &mut f64, step| {
        *value += f64::from(step) / 1e4;
        Some(value.to_le_bytes())
    });
    walk.flatten().take(length).collect()
}

/// Lengths of the pieces of a stream that is shown at once.
pub(super) fn lengths(cutter: &mut dyn Cutter, data: &[u8]) -> Vec<usize> {
    pieces(cutter, data).map(<[u8]>::len).collect()
}

/// Lengths of the pieces of a stream that arrives in `steps`, used over and over.
pub(super) fn lengths_in_steps(cutter: &mut dyn Cutter, data: &[u8], steps: &[usize]) -> Vec<usize> {
    cutter.restart();
    let (mut lengths, mut start, mut arrived) = (Vec::new(), 0, 0);
    for step in steps.iter().cycle() {
        arrived = data.len().min(arrived + step);
        let ended = arrived == data.len();
        while let Some(length) = cutter.next_cut(&data[start..arrived], ended) {
            lengths.push(length.get());
            start += length.get();
        }
        assert!(arrived - start < cutter.limits().max, "undecided with {} bytes", arrived - start);
        if ended {
            assert_eq!(start, data.len());
            break;
        }
    }
    lengths
}
