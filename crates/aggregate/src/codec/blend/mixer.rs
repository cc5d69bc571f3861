//! Adaptive probabilities, and their mixing in the logistic domain.
//!
//! Relies on [`crate::codec::mix::mixer`] for what did not change. The idea: all tables are one array, and what a value's
//! context says of four bits in a row lies in one cache line, since a bit costs little beside a miss. Weights are floats, which
//! vector instructions multiply; additions and multiplications in a fixed order are the same on every machine that follows
//! IEEE 754, and what would need a logarithm is a table of integers.

use crate::codec::mix::coder::BitCoder;
use crate::codec::mix::mixer::{CERTAIN, share, squash};

/// Inputs of a mix: one for each model, and a constant. A multiple of eight.
pub(super) const INPUTS: usize = 24;
type Row = [f32; INPUTS];

/// Bits of the place in a cache line.
const NODE_BITS: u32 = 4;
/// A probability of one half that was never used.
const FRESH: u32 = 1 << 31;
/// Largest count of a slot.
const COUNT: u32 = 1023;

/// What each model counts at first.
const WEIGHT_FIRST: f32 = 0.13;
/// How fast weights move at first and in the end.
const RATE_FIRST: f32 = 0.02;
const RATE_LAST: f32 = 0.0025;
/// What is left of the difference between both after one bit.
const RATE_FADES: f32 = 0.99998;

/// A model's part of the slots.
#[derive(Clone, Copy)]
struct Table {
    first: u32,
    mask: u32,
    limit: u32,
}

/// Models whose predictions are mixed: one context each.
pub(super) struct Mixer {
    odds: Vec<f32>,
    trust: Vec<f32>,
    /// 22 bits of probability, 10 of how often it was used.
    slots: Vec<u32>,
    tables: Vec<Table>,
    places: Vec<u32>,
    inputs: Row,
    weights: [Vec<Row>; 2],
    rate: f32,
    learned: [Vec<u32>; 2],
}

impl Mixer {
    /// Models of `2^bits` slots each, and how often one is used until it moves no slower; so many rows of weights in each of
    /// two sets.
    pub(super) fn new(models: &[(u32, u32)], rows: [usize; 2]) -> Self {
        let mut tables = Vec::new();
        let mut first = 0;
        for (bits, limit) in models {
            tables.push(Table { first, mask: (1 << bits) - 1, limit: *limit });
            first += 1 << bits;
        }
        let mut even = [0.0; INPUTS];
        even.iter_mut().take(models.len()).for_each(|weight| *weight = WEIGHT_FIRST);
        Self {
            odds: odds(),
            trust: trust(),
            slots: vec![FRESH; usize::try_from(first).unwrap_or(0)],
            places: vec![0; tables.len()],
            tables,
            inputs: [0.0; INPUTS],
            weights: rows.map(|rows| vec![even; rows]),
            rate: RATE_FIRST,
            learned: [vec![FRESH; 1 << 16], vec![FRESH; 1 << 16]],
        }
    }

    /// Sets the context of one model for the next bit.
    pub(super) fn set(&mut self, model: usize, context: u32) {
        if let (Some(place), Some(table)) = (self.places.get_mut(model), self.tables.get(model)) {
            *place = table.first + (context & table.mask);
        }
    }

    /// Sets the context of one model by a hash that holds for four bits, and the one to fifteen that says what is known of them.
    pub(super) fn set_node(&mut self, model: usize, hash: u32, node: u32) {
        self.set(model, hash << NODE_BITS | node);
    }

    fn read(&mut self) {
        for (input, place) in self.inputs.iter_mut().zip(&self.places) {
            let slot = self.slots.get(usize::try_from(*place).unwrap_or(0)).copied().unwrap_or(FRESH);
            let at = |table: &[f32], index: u32| {
                table.get(usize::try_from(index).unwrap_or(0)).copied().unwrap_or(0.0)
            };
            *input = at(&self.odds, slot >> 20) * at(&self.trust, slot & COUNT);
        }
        if let Some(constant) = self.inputs.last_mut() {
            *constant = 0.25;
        }
    }

    /// Codes one bit under the contexts that were set; `rows` choose the weights, `shades` refine the result.
    pub(super) fn code(
        &mut self,
        coder: &mut impl BitCoder,
        bit: bool,
        rows: [usize; 2],
        shades: [u32; 2],
    ) -> bool {
        self.read();
        let sums = [0, 1].map(|set| {
            let weights = self.weights.get(set).zip(rows.get(set)).and_then(|(set, row)| set.get(*row));
            weights.map_or(0.0, |weights| dot(weights, &self.inputs))
        });
        let mixed = sums.map(|sum| squash(fixed(sum)));
        let [one, other] = sums;
        let odds = fixed((one + other) * 0.5);
        let middle = squash(odds);
        let bucket = u32::try_from((odds + 2048) >> 5).unwrap_or(0);
        let contexts = shades.map(|shade| usize::try_from((bucket | shade << 7) & 0xffff).unwrap_or(0));
        let corrected: u32 = self
            .learned
            .iter()
            .zip(contexts)
            .map(|(table, context)| seeded(table.get(context).copied().unwrap_or(FRESH), middle))
            .sum();
        let probability = ((middle * 2 + corrected) / 4).clamp(1, 65535);
        let bit = coder.code(bit, probability);
        self.learn(bit, rows, mixed);
        for (table, context) in self.learned.iter_mut().zip(contexts) {
            table.get_mut(context).into_iter().for_each(|slot| adapt(slot, bit, COUNT));
        }
        bit
    }

    fn learn(&mut self, bit: bool, rows: [usize; 2], mixed: [u32; 2]) {
        let target = if bit { 65536.0 } else { 0.0 };
        for ((set, row), mixed) in self.weights.iter_mut().zip(rows).zip(mixed) {
            let Some(weights) = set.get_mut(row) else { continue };
            let step = (target - mixed as f32) * (self.rate / 65536.0);
            weights.iter_mut().zip(&self.inputs).for_each(|(weight, input)| *weight += step * input);
        }
        self.rate = RATE_LAST + (self.rate - RATE_LAST) * RATE_FADES;
        for (place, table) in self.places.iter().zip(&self.tables) {
            let slot = self.slots.get_mut(usize::try_from(*place).unwrap_or(0));
            slot.into_iter().for_each(|slot| adapt(slot, bit, table.limit));
        }
    }
}

/// Single probabilities without mixing.
pub(super) struct Counters(Vec<u32>);

impl Counters {
    pub(super) fn new(count: usize) -> Self {
        Self(vec![FRESH; count])
    }

    pub(super) fn code(&mut self, coder: &mut impl BitCoder, bit: bool, context: usize) -> bool {
        let mut unused = FRESH;
        let slot = self.0.get_mut(context).unwrap_or(&mut unused);
        let bit = coder.code(bit, (*slot >> 16).clamp(1, 65535));
        adapt(slot, bit, COUNT);
        bit
    }
}

/// Moves a probability towards a bit: by less the more often it was used, up to a limit.
fn adapt(slot: &mut u32, bit: bool, limit: u32) {
    let (count, probability) = (*slot & COUNT, *slot >> 10);
    let moved = if bit {
        probability + share(CERTAIN - probability, count)
    } else {
        probability - share(probability, count)
    };
    *slot = moved << 10 | (count + 1).min(limit);
}

/// Log odds with 8 fractional bits.
fn fixed(odds: f32) -> i32 {
    #[expect(clippy::cast_possible_truncation, reason = "casts saturate, and NaN becomes 0, as is meant")]
    let fixed = (odds * 256.0) as i32;
    fixed.clamp(-2047, 2047)
}

/// The sum of the products, in a fixed order.
fn dot(weights: &Row, inputs: &Row) -> f32 {
    let mut sums = [0.0_f32; 8];
    for (weights, inputs) in weights.as_chunks::<8>().0.iter().zip(inputs.as_chunks::<8>().0) {
        for ((sum, weight), input) in sums.iter_mut().zip(weights).zip(inputs) {
            *sum += weight * input;
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (b + f)) + ((c + g) + (d + h))
}

/// A slot's probability in 65536ths, leaning on `prior` while it has seen little.
fn seeded(slot: u32, prior: u32) -> u32 {
    let count = (slot & COUNT).min(30);
    ((slot >> 16) * count + prior * (30 - count)) / 30
}

/// Log odds by the upper 12 bits of a probability: the inverse of [`squash`].
fn odds() -> Vec<f32> {
    let mut odds = -2047_i16;
    let mut table = Vec::with_capacity(4096);
    for probability in 0..4096_u32 {
        while odds < 2047 && squash(i32::from(odds)) < probability * 16 + 8 {
            odds += 1;
        }
        table.push(f32::from(odds) / 256.0);
    }
    table
}

/// How much a probability counts that was used so often.
fn trust() -> Vec<f32> {
    (0..=1023_u16).map(|count| (f32::from(count) + 0.3) / (f32::from(count) + 1.5)).collect()
}
