//! What files hold: parts that several have in common, some of which can be compressed.

use std::sync::Arc;

use super::random::Random;

/// Different parts.
const PARTS: usize = 24;

/// Bytes of one of the parts, always the same for a number.
fn part(number: usize) -> Vec<u8> {
    let mut random = Random::new(number as u64);
    let length = match number % 6 {
        0 => random.within(1..600),
        1 => 4096,
        2 => random.within(4000..40_000),
        3 => 65_536,
        _ => random.within(20_000..90_000),
    };
    match number % 4 {
        0 => vec![u8::try_from(number).unwrap(); length],
        1 => (0..length).map(|at| if at % 64 < 8 { random.next().to_le_bytes()[0] } else { 0x55 }).collect(),
        2 => (0..length.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).take(length).collect(),
        _ => std::iter::repeat_n(&random.next().to_le_bytes(), length.div_ceil(8))
            .flatten()
            .take(length)
            .copied()
            .collect(),
    }
}

/// The content of a new file.
pub fn new_content(random: &mut Random) -> Arc<Vec<u8>> {
    let parts = match random.below(10) {
        0 => 0,
        1..4 => 1,
        4..9 => random.within(2..8),
        _ => random.within(8..20),
    };
    Arc::new((0..parts).flat_map(|_| part(random.below(PARTS))).collect())
}

/// A change of a file: new bytes somewhere, or a new length.
#[derive(Clone, Debug)]
pub enum Edit {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

impl Edit {
    pub fn of(length: usize, random: &mut Random) -> Self {
        match random.below(6) {
            0 => Self::Truncate(random.below(length + 5000)),
            1 => Self::Write(length, part(random.below(PARTS))),
            _ => Self::Write(random.below(length + 1), part(random.below(PARTS))),
        }
    }

    pub fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(offset, new) => {
                bytes.resize(bytes.len().max(offset + new.len()), 0);
                bytes[*offset..offset + new.len()].copy_from_slice(new);
            }
            Self::Truncate(length) => bytes.resize(*length, 0),
        }
    }
}
