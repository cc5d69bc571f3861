//! Numbers, bit by bit from the highest, as far down as there is something to know.
//!
//! Relies on [`super::field`], [`super::magnitude`] and [`super::mixer`]. The idea: a bit asks whether the value lies in the
//! upper half of what is still open; for a predictor that was lately off by about 2^s, the answer depends on how far its
//! prediction is from the middle, in units of 2^s. Far below every error the bits of a float are noise, unless the whole
//! value was seen before: there one counter serves in place of the mix.

use super::companions::{COMPANIONS, companions};
use super::field::{Around, Field, PREDICTIONS};
use super::magnitude::Magnitude;
use super::mixer::{Counters, Mixer};
use crate::codec::lane::Lane;
use crate::codec::mix::coder::{BitCoder, Decoder, Encoder};
use crate::codec::mix::echo::Echo;
use crate::codec::mix::mixer::hashed;
use crate::codec::mix::view::View;
use crate::codec::step::{Shape, Side};

/// Predictions with a model of their own: those of the field, the magnitude's, the echo's.
const PREDICTORS: usize = PREDICTIONS + 2;
/// Models of whole values under some context, by hash.
const VALUES: usize = 7;
/// Models by the errors of the neighbours, of the first predictions.
const ERROR_MODELS: usize = 2;
/// Bits that lie together in a hashed table.
const GROUP: u32 = 4;
/// Bits that are mixed below the error of the best predictor, and below the leading bit of a float.
const BELOW_ERROR: u32 = 6;

/// Longest row of which the magnitudes and errors are kept; a longer one counts as several.
const ROW_MAX: usize = 1 << 16;
/// Slots of each model for every number, and the least of all, as powers of two: a small block would otherwise spend its time
/// on empty tables.
const SLOTS_EACH: u32 = 4;
const SLOT_BITS_MIN: u32 = 12;
/// Slots of places where values with the same upper bits stood last.
const SEEN_BITS: u32 = 18;

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

/// What is expected of the next number.
#[derive(Clone, Copy, Default)]
struct Expected {
    /// Of the magnitude's prediction both signs, the negative one last.
    values: [u64; PREDICTORS + 1],
    echo: Option<(u64, u32)>,
    /// Bits of companions and scales that contexts are made of.
    rough: [u64; 4],
}

/// Members of a block, each with those beside it.
struct Run {
    start: usize,
    shape: [usize; 3],
    length: usize,
    beside: [Option<usize>; COMPANIONS],
}

/// How far off the best prediction was around here.
#[derive(Default)]
struct Errors {
    /// Bits of the errors in the row before, and in this one so far.
    before: Vec<u32>,
    current: Vec<u32>,
    /// What the neighbours let expect, in 16ths of a bit.
    scale: u32,
}

impl Errors {
    fn begin(&mut self, width: usize) {
        self.before.clear();
        self.current.clear();
        self.current.reserve(width.min(ROW_MAX));
    }

    /// Takes in the bits of an error; the next number's neighbours say what its own will be.
    fn learn(&mut self, column: usize, bits: u32) {
        self.current.push(bits);
        let at = |row: &[u32], column: Option<usize>| {
            column.and_then(|column| row.get(column)).copied().unwrap_or(bits)
        };
        let next = column + 1;
        let row = [
            at(&self.current, Some(column)),
            at(&self.current, column.checked_sub(1)),
            at(&self.current, column.checked_sub(2)),
        ];
        let above =
            [at(&self.before, Some(column)), at(&self.before, Some(next)), at(&self.before, Some(next + 1))];
        let ([west, west_2, west_3], [north_west, north, north_east]) = (row, above);
        self.scale = west * 4 + west_2 * 2 + west_3 * 2 + north * 4 + north_west * 2 + north_east * 2;
    }

    /// A row ended.
    fn turn(&mut self) {
        std::mem::swap(&mut self.before, &mut self.current);
        self.current.clear();
    }
}

struct Model {
    view: View,
    /// Bits behind the leading one of a float; none for integers.
    mantissa: Option<u32>,
    field: Field,
    magnitude: Magnitude,
    echo: Echo,
    trust: [Trust; PREDICTORS],
    mixer: Mixer,
    noise: Counters,
    /// Where a value with the same upper bits stood last, and how often what is below was the same.
    seen: Vec<(u32, u32)>,
    hashes: [u32; VALUES],
    last: u64,
    last_errors: [u32; 2],
    errors: Errors,
    beside: [Option<usize>; COMPANIONS],
}

impl Model {
    /// A model for so many numbers.
    fn new(lane: Lane, count: usize) -> Self {
        let bits = |most: u32| (count.max(1).ilog2() + SLOTS_EACH).clamp(SLOT_BITS_MIN, most);
        let tables: Vec<(u32, u32)> = [(bits(19), 1023); PREDICTORS]
            .into_iter()
            .chain([(bits(20), 255); VALUES])
            .chain([(14, 255), (14, 255)])
            .chain([(bits(19), 1023); ERROR_MODELS])
            .collect();
        // What is summed in another order on the other side of a symmetry is rounded otherwise.
        let blur = if lane == Lane::F64 { 8 } else { 0 };
        let mantissa = match lane {
            Lane::F64 => Some(52),
            Lane::F32 => Some(23),
            Lane::F16 => Some(7),
            _ => None,
        };
        Self {
            view: View::new(lane),
            mantissa,
            field: Field::new(),
            magnitude: Magnitude::new(),
            echo: Echo::new(blur),
            trust: [Trust::default(); PREDICTORS],
            mixer: Mixer::new(&tables, [64 * 8 * 2, 64 * 16 * 2]),
            noise: Counters::new(1 << 16),
            seen: vec![(0, 0); 1 << SEEN_BITS],
            hashes: [0; VALUES],
            last: 0,
            last_errors: [0; 2],
            errors: Errors::default(),
            beside: [None; COMPANIONS],
        }
    }

    fn begin(&mut self, run: &Run) {
        let [_, height, width] = run.shape;
        self.echo.begin(height, width);
        let smooth = self.mantissa.is_some_and(|mantissa| self.trust[0].scale / 16 < mantissa);
        self.field.begin(height, width, run.length, smooth);
        self.magnitude.begin(width);
        self.errors.begin(width);
        self.beside = run.beside;
    }

    /// Codes one number, given as its bits; what comes back is the number.
    fn code(&mut self, coder: &mut impl BitCoder, bits: u64) -> u64 {
        let expected = self.expect();
        let wanted = self.view.ordered(bits);
        let end = self.noise_bits();
        let mut prefix = 0_u64;
        for bit in (end..self.view.bits).rev() {
            self.contexts(bit, prefix, &expected);
            let (rows, shades) = self.selectors(bit, prefix, &expected);
            let found = self.mixer.code(coder, wanted >> bit & 1 == 1, rows, shades);
            prefix |= u64::from(found) << bit;
        }
        let value = self.code_noise(coder, end, prefix, wanted, &expected);
        self.learn(value, &expected);
        self.view.bits_of(value)
    }

    /// Bits at the lower end that are noise as far as predictors go.
    fn noise_bits(&self) -> u32 {
        let Some(mantissa) = self.mantissa.filter(|mantissa| *mantissa > 2 * BELOW_ERROR) else { return 0 };
        let best = self.trust.iter().take(PREDICTORS - 1).map(|trust| trust.scale / 16).min();
        best.unwrap_or(0).min(mantissa).saturating_sub(BELOW_ERROR)
    }

    /// The bits below `end`: those of a value that was seen before, or noise.
    fn code_noise(
        &mut self,
        coder: &mut impl BitCoder,
        end: u32,
        prefix: u64,
        wanted: u64,
        expected: &Expected,
    ) -> u64 {
        if end == 0 {
            return prefix;
        }
        let slot = usize::try_from(hashed(&[u64::from(end), prefix]) >> (32 - SEEN_BITS)).unwrap_or(0);
        let (place, right) = self.seen.get(slot).copied().unwrap_or_default();
        let there = place.checked_sub(1).and_then(|place| self.echo.value(usize::try_from(place).ok()?));
        let alike = |value: &u64| value >> end == prefix >> end;
        let echoed = expected.echo.filter(|(value, _)| alike(value));
        let guess = match (echoed, there.filter(alike)) {
            (Some((value, length)), _) => Some((value, 16 + length.min(15))),
            (None, Some(value)) => Some((value, right)),
            (None, None) => None,
        };
        let mut value = prefix;
        let mut zero = true;
        for bit in (0..end).rev() {
            let agrees = guess.filter(|(guess, _)| guess >> (bit + 1) == value >> (bit + 1));
            let context = match agrees {
                Some((guess, trust)) => {
                    let so_far = if bit < 8 { 8 + bit } else { (end - 1 - bit).min(7) };
                    1 | u32::from(guess >> bit & 1 == 1) << 1 | so_far << 2 | trust << 6 | 1 << 12
                }
                None => u32::from(zero) | bit << 1,
            };
            let context = usize::try_from(context).unwrap_or(0);
            let found = self.noise.code(coder, wanted >> bit & 1 == 1, context);
            zero &= !found;
            value |= u64::from(found) << bit;
        }
        let right = match there.filter(alike) {
            Some(there) if there == value => (right + 1).min(15),
            _ => 0,
        };
        if let Some(seen) = self.seen.get_mut(slot) {
            *seen = (u32::try_from(self.echo.len() + 1).unwrap_or(0), right);
        }
        value
    }

    /// The value of a companion, `offset` places from the one that stands where the next number will.
    fn companion(&self, companion: usize, offset: isize) -> Option<u64> {
        let place = self.field.len().checked_add_signed(offset)?;
        self.echo.value(companion.checked_add(place)?)
    }

    fn around(&self, companion: usize) -> Option<Around> {
        let row = isize::try_from(self.field.width()).unwrap_or(0);
        let at = |offset| self.companion(companion, offset).map_or(0.0, |value| self.view.value(value));
        self.companion(companion, 0)?;
        let corners = [at(-row - 1), at(1 - row), at(row - 1), at(row + 1)];
        Some(Around { here: at(0), west: at(-1), east: at(1), north: at(-row), south: at(row), corners })
    }

    fn expect(&mut self) -> Expected {
        let around = self.beside.map(|companion| companion.and_then(|companion| self.around(companion)));
        let predictions = self.field.predict(&around);
        let beside =
            self.beside.map(|companion| companion.and_then(|companion| self.companion(companion, 0)));
        let column = self.field.column() % ROW_MAX;
        let octaves = beside.map(|value| value.map(|value| self.octaves(value)));
        let magnitude = if self.mantissa.is_some() { self.magnitude.predict(column, &octaves) } else { 0.0 };
        let echo = self.echo.predict();
        let mut values = [0; PREDICTORS + 1];
        for (value, prediction) in values.iter_mut().zip(predictions) {
            *value = self.view.predicted(prediction);
        }
        let [.., positive, echoed, negative] = &mut values;
        (*positive, *negative) = self.of_magnitude(magnitude);
        *echoed = echo.map_or(0, |(value, _)| value);
        let quantized = |octaves: f64, steps: f64| {
            #[expect(clippy::cast_possible_truncation, reason = "casts saturate, as is meant")]
            let rounded = (octaves * steps) as i64;
            rounded.cast_unsigned() & 0xffff
        };
        let [row, column] = self.magnitude.scales(column);
        let rough = [
            quantized(magnitude, 4.0),
            quantized(row, 4.0) << 16 | quantized(column, 4.0),
            self.rough(beside[0]),
            self.rough(beside[1]),
        ];
        Expected { values, echo, rough }
    }

    /// Sign, exponent and a little more of a number beside this one.
    fn rough(&self, value: Option<u64>) -> u64 {
        let bits = self.mantissa.map_or(self.view.bits / 4, |mantissa| self.view.bits - mantissa + 2);
        value.map_or(u64::MAX, |value| value >> (self.view.bits - bits))
    }

    fn top(&self) -> u64 {
        1 << (self.view.bits - 1)
    }

    /// A float's magnitude as its exponent with a fraction.
    fn octaves(&self, ordered: u64) -> f64 {
        let top = self.top();
        let magnitude = if ordered >= top { ordered - top } else { top - 1 - ordered };
        magnitude as f64 / (1_u64 << self.mantissa.unwrap_or(0)) as f64
    }

    /// The positive and the negative number of a magnitude.
    fn of_magnitude(&self, octaves: f64) -> (u64, u64) {
        let top = self.top();
        let scaled = octaves * (1_u64 << self.mantissa.unwrap_or(0)) as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "casts saturate, as is meant"
        )]
        let magnitude = (scaled as u64).min(top - 1);
        (top + magnitude, top - 1 - magnitude)
    }

    fn selectors(&self, bit: u32, prefix: u64, expected: &Expected) -> ([usize; 2], [u32; 2]) {
        let scale = self.trust.first().map_or(0, |trust| trust.scale / 16);
        let depth = (i64::from(bit) - i64::from(scale)).clamp(-6, 1) + 6;
        let echoing = usize::from(echo_context(bit, prefix, expected) != 0);
        let place = usize::try_from(bit).unwrap_or(0) * 8;
        let first = (place + usize::try_from(depth).unwrap_or(0)) * 2 + echoing;
        let depth = (bit * 16 + 80).saturating_sub(self.errors.scale).min(127) / 8;
        let second =
            (usize::try_from(bit).unwrap_or(0) * 16 + usize::try_from(depth).unwrap_or(0)) * 2 + echoing;
        let shades = [
            u32::try_from(first / 2).unwrap_or(0),
            (bit * 16 + 120).saturating_sub(self.errors.scale).min(255),
        ];
        ([first, second], shades)
    }

    /// Where a bit lies in the error that the neighbours' errors let expect.
    fn error_context(&self, prediction: u64, middle: u64, bit: u32) -> u32 {
        let scale = self.errors.scale;
        let distance = prediction.abs_diff(middle);
        let length = 64 - distance.leading_zeros();
        let fine = if length > 3 { (distance >> (length - 3)) & 3 } else { 0 };
        let relative = (length * 16 + 512).saturating_sub(scale).min(1023) / 4;
        let depth = (bit * 16 + 160).saturating_sub(scale).min(319) / 8;
        u32::from(prediction >= middle) | u32::try_from(fine).unwrap_or(0) << 1 | relative << 3 | depth << 11
    }

    fn contexts(&mut self, bit: u32, prefix: u64, expected: &Expected) {
        let middle = prefix | 1 << bit;
        let negative = bit + 1 < self.view.bits && prefix < self.top();
        let [values @ .., of_negative] = &expected.values;
        for (number, (value, trust)) in values.iter().zip(&self.trust).enumerate() {
            let is_magnitude = number == PREDICTIONS;
            let is_echo = number == PREDICTIONS + 1;
            if (is_magnitude && self.mantissa.is_none()) || (is_echo && expected.echo.is_none()) {
                self.mixer.set(number, 0);
                continue;
            }
            let prediction = if is_magnitude && negative { *of_negative } else { *value };
            let distance = prediction.abs_diff(middle);
            // Distance in the scale of the error, with two bits after the leading one.
            let length = 64 - distance.leading_zeros();
            let fine = if length > 3 { (distance >> (length - 3)) & 3 } else { 0 };
            let relative = (length * 16 + 512).saturating_sub(trust.scale).min(1023) / 8;
            let depth = (bit * 16 + 160).saturating_sub(trust.scale).min(319) / 16;
            let side = u32::from(prediction >= middle);
            let near = side | u32::try_from(fine).unwrap_or(0) << 1 | relative << 3 | depth << 10;
            let near = near | (trust.scale / 128).min(7) << 15;
            self.mixer.set(number, near | u32::from(negative && is_magnitude) << 18);
        }
        self.value_contexts(bit, prefix, expected);
        let first = PREDICTORS + VALUES;
        self.mixer.set(first, echo_context(bit, prefix, expected));
        // Where the best predictors still agree with what is known: what they say, and how often they were right.
        let hits = |number: usize| {
            let (value, trust) = (values.get(number).copied().unwrap_or(0), self.trust.get(number));
            let open = value.checked_shr(bit + 1).unwrap_or(0) == prefix.checked_shr(bit + 1).unwrap_or(0);
            let hits = trust.map_or(0, |trust| trust.hits.min(3));
            if open { 1 | u32::from(value >> bit & 1 == 1) << 1 | hits << 2 } else { 0 }
        };
        for place in 0..ERROR_MODELS {
            let value = values.get(place).copied().unwrap_or(0);
            self.mixer.set(first + 2 + place, self.error_context(value, middle, bit));
        }
        self.mixer.set(first + 1, hits(0) | hits(PREDICTIONS - 1) << 4 | bit << 8);
    }

    /// The contexts that hold for a group of bits are made when it begins.
    fn value_contexts(&mut self, bit: u32, prefix: u64, expected: &Expected) {
        let into = (self.view.bits - 1 - bit) % GROUP;
        if into == 0 {
            let above = prefix.checked_shr(bit + 1).unwrap_or(0);
            let group = u64::from(bit);
            let blended = expected.values.first().copied().unwrap_or(0);
            let [magnitude, scales, twin, elder] = expected.rough;
            self.hashes = [
                hashed(&[group, above]),
                hashed(&[group, above, self.last]),
                hashed(&[
                    group,
                    above,
                    blended.checked_shr(bit - bit.min(2)).unwrap_or(0),
                    u64::from(self.last_errors[0] / 2),
                ]),
                hashed(&[group, above, twin]),
                hashed(&[group, above, twin, elder >> 1]),
                hashed(&[group, above, magnitude]),
                hashed(&[group, above, scales]),
            ];
        }

        let known = prefix >> (bit + 1).min(63) & ((1 << into) - 1);
        let node = u32::try_from(1 << into | known).unwrap_or(0);

        for (number, hash) in self.hashes.into_iter().enumerate() {
            self.mixer.set_node(PREDICTORS + number, hash >> 4, node);
        }
    }

    fn learn(&mut self, ordered: u64, expected: &Expected) {
        let [values @ .., of_negative] = &expected.values;
        for (number, (trust, value)) in self.trust.iter_mut().zip(values).enumerate() {
            let negative = number == PREDICTIONS && ordered < 1 << (self.view.bits - 1);
            let value = if negative { *of_negative } else { *value };
            if number <= PREDICTIONS || expected.echo.is_some() {
                trust.learn(value.abs_diff(ordered));
            }
        }
        let blended = expected.values.first().copied().unwrap_or(0);
        let column = self.field.column() % ROW_MAX;
        self.errors.learn(column, 64 - blended.abs_diff(ordered).leading_zeros());
        self.last_errors = [64 - blended.abs_diff(ordered).leading_zeros(), self.last_errors[0]];
        self.last = ordered;
        if self.mantissa.is_some() {
            let column = self.field.column() % ROW_MAX;
            let octaves = self.octaves(ordered);
            self.magnitude.learn(column, octaves);
        }
        self.echo.learn(ordered);
        self.field.learn(self.view.value(ordered));
        if self.field.column().is_multiple_of(ROW_MAX) {
            self.errors.turn();
        }
    }
}

/// Whether the echo still agrees, what it expects here and for how long it was right.
fn echo_context(bit: u32, prefix: u64, expected: &Expected) -> u32 {
    let above = |value: u64| value.checked_shr(bit + 1).unwrap_or(0);
    match expected.echo.filter(|(value, _)| above(*value) == above(prefix)) {
        Some((value, length)) => {
            let length = length.min(15) + u32::from(length > 31);
            1 | u32::from(value >> bit & 1 == 1) << 1 | length << 2 | bit << 7
        }
        None => 0,
    }
}

/// The members of a block; what no shape covers is one more, flat, member.
fn runs(count: usize, shapes: &[Shape]) -> Vec<Run> {
    let mut fitting = Vec::new();
    let mut done = 0;
    for shape in shapes {
        let shape = shape.three();
        let [depth, height, width] = shape;
        let length = depth.saturating_mul(height).saturating_mul(width);
        if length > count - done {
            break;
        }
        fitting.push((done, shape, length));
        done += length;
    }
    if done < count {
        fitting.push((done, [1, 1, count - done], count - done));
    }
    let shapes: Vec<[usize; 3]> = fitting.iter().map(|(_, shape, _)| *shape).collect();
    let starts: Vec<usize> = fitting.iter().map(|(start, ..)| *start).collect();
    let beside = companions(&shapes);
    let start_of = |member: Option<usize>| member.and_then(|member| starts.get(member).copied());
    let runs = fitting.into_iter().zip(beside);
    runs.map(|((start, shape, length), beside)| Run { start, shape, length, beside: beside.map(start_of) })
        .collect()
}

/// Runs the model over all members.
fn run(lane: Lane, count: usize, shapes: &[Shape], mut each: impl FnMut(&mut Model, usize)) {
    let mut model = Model::new(lane, count);
    for run in runs(count, shapes) {
        model.begin(&run);
        (0..run.length).for_each(|offset| each(&mut model, run.start + offset));
    }
}

/// The numbers of `bytes`, then the tail as it is.
pub(crate) fn compress_numbers(lane: Lane, bytes: &[u8], side: Side<'_>) -> Vec<u8> {
    let size = lane.size();
    let (body, tail) = bytes.split_at(bytes.len() / size * size);
    let mut coder = Encoder::new();
    run(lane, body.len() / size, side.shapes, |model, index| {
        let element = body.get(index * size..).and_then(|rest| rest.get(..size));
        model.code(&mut coder, element.map_or(0, number));
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
