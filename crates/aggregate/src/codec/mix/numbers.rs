//! Numbers, bit by bit from the highest: where each predictor thinks the value lies is the context of its model.
//!
//! Relies on [`super::stencil`] and [`super::mixer`]. The idea: a bit asks whether the value lies in the upper half of
//! what is still open; for a predictor that was lately off by about 2^s, the answer depends on how far its prediction is
//! from the middle, in units of 2^s. So each model learns the shape of its predictor's error, and the mixer whom to trust.

use super::coder::{BitCoder, Decoder, Encoder};
use super::echo::Echo;
use super::mixer::{Mixer, hashed};
use super::stencil::{Field, PREDICTIONS};
use super::view::View;
use crate::codec::lane::Lane;
use crate::codec::step::{Shape, Side};

/// Models besides two per prediction: by the bits of the value itself, alone and next to its neighbour's.
const VALUE_MODELS: usize = 7;

/// Bits of a number that say roughly how large it is: sign, exponent of a float, the first bit of its mantissa.
const ROUGH_BITS: u32 = 12;

/// One predictor's record: how far off it lately was, and how often it was exactly right.
#[derive(Clone, Copy, Default)]
struct Trust {
    /// Bits of the error, with 4 fractional bits, as a moving average.
    scale: u32,
    hits: u32,
}

impl Trust {
    fn learn(&mut self, error: u64) {
        let length = (64 - error.leading_zeros()) * 16;
        self.scale = (self.scale * 7 + length) / 8;
        self.hits = if error == 0 { (self.hits + 1).min(7) } else { self.hits / 2 };
    }
}

struct Model {
    view: View,
    field: Field,
    echo: Echo,
    trust: [Trust; PREDICTIONS],
    mixer: Mixer,
    last: u64,
    last_errors: [u32; 2],
}

impl Model {
    fn new(lane: Lane) -> Self {
        let tables: Vec<(u32, u32)> = (0..PREDICTIONS)
            .flat_map(|_| [(18, 1023), (14, 255)])
            .chain([(18, 255), (20, 255), (20, 127), (18, 255), (18, 255), (14, 255), (12, 1023)])
            .collect();
        let mixer = Mixer::new(&tables, 64 * 8 * 2);
        let trust = [Trust::default(); PREDICTIONS];
        Self {
            view: View::new(lane),
            field: Field::new(),
            echo: Echo::new(0),
            trust,
            mixer,
            last: 0,
            last_errors: [0; 2],
        }
    }

    /// Codes one number, given as its bits; what comes back is the number.
    fn code(&mut self, coder: &mut impl BitCoder, bits: u64) -> u64 {
        let predictions = self.field.predict().map(|value| self.view.predicted(value));
        let wanted = self.view.ordered(bits);
        let mut prefix = 0_u64;
        for bit in (0..self.view.bits).rev() {
            self.contexts(bit, prefix, &predictions);
            let scale = self.trust.first().map_or(0, |trust| trust.scale / 16);
            let depth = (i64::from(bit) - i64::from(scale)).clamp(-6, 1) + 6;
            let echoing = usize::from(self.echo_context(u64::from(bit), prefix) != 0);
            let selector =
                (usize::try_from(bit).unwrap_or(0) * 8 + usize::try_from(depth).unwrap_or(0)) * 2 + echoing;
            let shade = (self.last_errors.iter().sum::<u32>() / 8).min(15) | (bit.min(31) << 4);
            let found = self.mixer.code(coder, wanted >> bit & 1 == 1, selector, shade);
            prefix |= u64::from(found) << bit;
        }
        self.learn(prefix, &predictions);
        self.view.bits_of(prefix)
    }

    fn contexts(&mut self, bit: u32, prefix: u64, predictions: &[u64; PREDICTIONS]) {
        let middle = prefix | 1 << bit;
        let shifted = |value: u64| value.checked_shr(bit + 1).unwrap_or(0);
        for (number, (prediction, trust)) in predictions.iter().zip(&self.trust).enumerate() {
            let distance = prediction.abs_diff(middle);
            // Distance in the scale of the error, with two bits after the leading one.
            let length = 64 - distance.leading_zeros();
            let fine = if length > 3 { (distance >> (length - 3)) & 3 } else { 0 };
            let relative = (length * 16 + 512).saturating_sub(trust.scale).min(1023) / 8;
            let depth = (bit * 16 + 160).saturating_sub(trust.scale).min(319) / 16;
            let side = u32::from(*prediction >= middle);
            let near = side | u32::try_from(fine).unwrap_or(0) << 1 | relative << 3 | depth << 10;
            self.mixer.set(2 * number, near | (trust.scale / 128).min(7) << 15);
            let open = shifted(*prediction) == shifted(prefix);
            let expected = u32::from(prediction >> bit & 1 == 1);
            let exact = if open { 1 | expected << 1 | trust.hits << 2 | bit << 5 } else { bit << 5 };
            self.mixer.set(2 * number + 1, exact);
        }
        let above = shifted(prefix);
        let bit = u64::from(bit);
        let first = 2 * PREDICTIONS;
        self.mixer.set(first, hashed(&[bit, above]));
        self.mixer.set(first + 1, hashed(&[bit, above, self.last]));
        let blended = predictions.first().copied().unwrap_or(0);
        self.mixer.set(
            first + 2,
            hashed(&[bit, above, blended >> (bit + 1).min(63), u64::from(self.last_errors[0] / 2)]),
        );
        // What the members before hold here, roughly: magnitudes go together where values don't.
        let rough = |value| self.view.predicted(value) >> (self.view.bits - ROUGH_BITS);
        let [twin, elder] = self.field.counterparts().map(rough);
        self.mixer.set(first + 3, hashed(&[bit, above, twin]));
        self.mixer.set(first + 4, hashed(&[bit, above, twin, elder >> 1]));
        self.mixer.set(first + 5, self.echo_context(bit, prefix));
        self.mixer
            .set(first + VALUE_MODELS - 1, u32::try_from(bit << 1 | (self.last >> bit & 1)).unwrap_or(0));
    }

    /// Whether the echo still agrees, what it expects here and for how long it was right.
    fn echo_context(&self, bit: u64, prefix: u64) -> u32 {
        let above = |value: u64| value.checked_shr(u32::try_from(bit).unwrap_or(0) + 1).unwrap_or(0);
        match self.echo.predict().filter(|(value, _)| above(*value) == above(prefix)) {
            Some((value, length)) => {
                let length = length.min(15) + u32::from(length > 31);
                let bit = u32::try_from(bit).unwrap_or(0);
                1 | u32::from(value >> bit & 1 == 1) << 1 | length << 2 | bit << 7
            }
            None => 0,
        }
    }

    fn learn(&mut self, ordered: u64, predictions: &[u64; PREDICTIONS]) {
        for (trust, prediction) in self.trust.iter_mut().zip(predictions) {
            trust.learn(prediction.abs_diff(ordered));
        }
        let blended = predictions.first().copied().unwrap_or(0);
        self.last_errors = [64 - blended.abs_diff(ordered).leading_zeros(), self.last_errors[0]];
        self.last = ordered;
        self.echo.learn(ordered);
        self.field.learn(self.view.value(ordered));
    }
}

/// Runs the model over all members.
fn run(lane: Lane, count: usize, shapes: &[Shape], mut each: impl FnMut(&mut Model, usize)) {
    let mut model = Model::new(lane);
    let mut done = 0;
    for shape in shapes.iter().chain([&Shape::default()]) {
        let [depth, height, width] = shape.three();
        let length = depth.saturating_mul(height).saturating_mul(width);
        let flat = shape.0.is_empty() || length > count - done;
        let length = if flat { count - done } else { length };
        model.echo.begin(if flat { 1 } else { height }, if flat { length } else { width });
        model.field.begin(if flat { 1 } else { height }, if flat { length } else { width }, length);
        (0..length).for_each(|offset| each(&mut model, done + offset));
        done += length;
    }
}

/// The numbers of `bytes`, then the tail as it is.
pub(crate) fn compress_numbers(lane: Lane, bytes: &[u8], side: Side<'_>) -> Vec<u8> {
    let size = lane.size();
    let (body, tail) = bytes.split_at(bytes.len() / size * size);
    let mut coder = Encoder::new();
    let numbers: Vec<u64> = body.chunks_exact(size).map(number).collect();
    run(lane, numbers.len(), side.shapes, |model, index| {
        model.code(&mut coder, numbers.get(index).copied().unwrap_or(0));
    });
    [tail, &coder.finish()].concat()
}

fn number(element: &[u8]) -> u64 {
    element.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

pub(crate) fn decompress_numbers(lane: Lane, body: &[u8], length: usize, side: Side<'_>) -> Vec<u8> {
    let size = lane.size();
    let (tail, coded) = body.split_at_checked(length % size).unwrap_or((body, &[]));
    let mut coder = Decoder::new(coded);
    let mut bytes = Vec::with_capacity(length);
    run(lane, length / size, side.shapes, |model, _| {
        let number = model.code(&mut coder, 0);
        bytes.extend(number.to_le_bytes().iter().take(size));
    });
    bytes.extend_from_slice(tail);
    bytes
}
