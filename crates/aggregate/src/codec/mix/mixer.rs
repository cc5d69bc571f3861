//! Adaptive probabilities, and their mixing in the logistic domain.
//!
//! Relies on nothing. The idea: a probability is a counter that moves by a share which shrinks as it learns; mixing is a
//! weighted sum of log odds whose weights move along the error (Mahoney 2005). Everything is integer.

/// Largest log odds, with 8 fractional bits: about 8 in natural units.
const ODDS_MAX: i32 = 2047;

/// 65536 / (1 + exp(-x)) for x = -8, -7.5, ..., 8.
const LOGISTIC: [i32; 33] = [
    22, 36, 60, 98, 162, 267, 439, 720, 1179, 1921, 3108, 4971, 7812, 11955, 17625, 24743, 32768, 40793,
    47911, 53581, 57724, 60565, 62428, 63615, 64357, 64816, 65097, 65269, 65374, 65438, 65476, 65500, 65514,
];

/// Probability in 65536ths of log odds with 8 fractional bits.
pub(in crate::codec) fn squash(odds: i32) -> u32 {
    let shifted = odds.clamp(-ODDS_MAX, ODDS_MAX) + 2048;
    let (index, fraction) = (usize::try_from(shifted >> 7).unwrap_or(0), shifted & 127);
    let at = |index: usize| LOGISTIC.get(index).copied().unwrap_or(65514);
    let value = (at(index) * (128 - fraction) + at(index + 1) * fraction) >> 7;
    u32::try_from(value).unwrap_or(1).clamp(1, 65535)
}

/// The inverse of [`squash`], by the upper 12 bits of a probability.
pub(super) struct Stretch(Vec<i32>);

impl Stretch {
    pub(super) fn new() -> Self {
        let mut table = Vec::with_capacity(4096);
        let mut odds = -ODDS_MAX;
        for probability in 0..4096_u32 {
            while odds < ODDS_MAX && squash(odds) < probability * 16 + 8 {
                odds += 1;
            }
            table.push(odds);
        }
        Self(table)
    }

    fn odds(&self, counter: u32) -> i32 {
        self.0.get(usize::try_from(counter >> 20).unwrap_or(0)).copied().unwrap_or_default()
    }
}

/// A table of adaptive probabilities: 22 bits of probability, 10 bits of how often it was used.
pub(super) struct Counters {
    slots: Vec<u32>,
    /// Uses after which a probability moves no slower: high values suit data that doesn't change its nature.
    limit: u32,
}

const FRESH: u32 = 1 << 31;

impl Counters {
    /// `2^bits` probabilities of one half.
    pub(super) fn new(bits: u32, limit: u32) -> Self {
        Self { slots: vec![FRESH; 1 << bits], limit }
    }

    fn index(&self, context: u32) -> usize {
        // The length is a power of two.
        usize::try_from(context).unwrap_or(0) & (self.slots.len() - 1)
    }

    fn get(&self, context: u32) -> u32 {
        self.slots.get(self.index(context)).copied().unwrap_or(FRESH)
    }

    fn learn(&mut self, context: u32, bit: bool) {
        let (index, limit) = (self.index(context), self.limit);
        let Some(slot) = self.slots.get_mut(index) else { return };
        let (count, probability) = (*slot & 1023, *slot >> 10);
        let moved = if bit {
            probability + share(CERTAIN - probability, count)
        } else {
            probability - share(probability, count)
        };
        *slot = moved << 10 | (count + 1).min(limit);
    }
}

/// The largest probability, with 22 fractional bits.
pub(in crate::codec) const CERTAIN: u32 = (1 << 22) - 1;
/// Fractional bits of [`SHARES`].
const SHARE_BITS: u32 = 40;
/// `2 / (2 n + 3)`, rounded up, for each count.
const SHARES: [u64; 1024] = shares();

#[expect(
    clippy::indexing_slicing,
    reason = "the index is below the length, as is checked when this is compiled"
)]
const fn shares() -> [u64; 1024] {
    let mut shares = [0; 1024];
    let mut count = 0;
    while count < shares.len() {
        shares[count] = (2_u64 << SHARE_BITS).div_ceil(2 * count as u64 + 3);
        count += 1;
    }
    shares
}

/// The part of `distance` by which a probability moves that was used `count` times: `1 / (n + 1.5)` of it, rounded down. A
/// division for each model and bit would take a third of the coder's time.
pub(in crate::codec) fn share(distance: u32, count: u32) -> u32 {
    let share = SHARES.get(usize::try_from(count).unwrap_or(0)).copied().unwrap_or(0);
    u32::try_from((u64::from(distance) * share) >> SHARE_BITS).unwrap_or(0)
}

/// A set of models whose predictions are mixed: one table and one context each.
pub(super) struct Mixer {
    stretch: Stretch,
    models: Vec<Counters>,
    contexts: Vec<u32>,
    inputs: Vec<i32>,
    /// One row of weights per selector, 16 fractional bits.
    weights: Vec<i32>,
    learned: [Counters; 2],
}

/// How fast weights move, as a shift: smaller is faster.
const RATE_SHIFT: i32 = 14;

impl Mixer {
    /// Models of `2^bits` contexts each, as given, and `selectors` rows of weights.
    pub(super) fn new(bits: &[(u32, u32)], selectors: usize) -> Self {
        let models: Vec<Counters> = bits.iter().map(|(bits, limit)| Counters::new(*bits, *limit)).collect();
        let count = models.len();
        // One input more, which is constant.
        let even = (1 << 16) * 2 / i32::try_from(count.max(1) + 4).unwrap_or(1);
        Self {
            stretch: Stretch::new(),
            models,
            contexts: vec![0; count],
            inputs: vec![0; count + 1],
            weights: vec![even; (count + 1) * selectors],
            learned: [Counters::new(16, 255), Counters::new(16, 1023)],
        }
    }

    /// Sets the context of one model for the next bit.
    pub(super) fn set(&mut self, model: usize, context: u32) {
        if let Some(place) = self.contexts.get_mut(model) {
            *place = context;
        }
    }

    /// Codes one bit under the contexts that were set; `selector` chooses the weights, `shade` refines the result.
    pub(super) fn code(
        &mut self,
        coder: &mut impl super::coder::BitCoder,
        bit: bool,
        selector: usize,
        shade: u32,
    ) -> bool {
        for ((input, model), context) in self.inputs.iter_mut().zip(&self.models).zip(&self.contexts) {
            *input = self.stretch.odds(model.get(*context));
        }
        if let Some(constant) = self.inputs.last_mut() {
            *constant = 256;
        }
        let width = self.inputs.len();
        let start = selector * width;
        let weights = self.weights.get_mut(start..start + width).unwrap_or_default();
        let sum: i64 = weights
            .iter()
            .zip(&self.inputs)
            .map(|(weight, input)| i64::from(*weight) * i64::from(*input))
            .sum();
        let odds = i32::try_from((sum >> 16).clamp(-2047, 2047)).unwrap_or(0);
        let mixed = squash(odds);
        // The mixed prediction as seen before in two settings corrects what the weights get systematically wrong.
        let bucket = u32::try_from((odds + 2048) >> 5).unwrap_or(0);
        let contexts = [bucket | u32::try_from(selector).unwrap_or(0) << 7, bucket | shade << 7];
        let corrected: u32 =
            self.learned.iter().zip(contexts).map(|(table, context)| seeded(table.get(context), mixed)).sum();
        let one = ((mixed * 2 + corrected) / 4).clamp(1, 65535);
        let bit = coder.code(bit, one);
        let error = (if bit { 65535 } else { 0 }) - i32::try_from(mixed).unwrap_or(0);
        for (weight, input) in weights.iter_mut().zip(&self.inputs) {
            let step = (i64::from(*input) * i64::from(error)) >> RATE_SHIFT;
            *weight = weight.saturating_add(i32::try_from(step).unwrap_or(0));
        }
        for (table, context) in self.learned.iter_mut().zip(contexts) {
            table.learn(context, bit);
        }
        for (model, context) in self.models.iter_mut().zip(&self.contexts) {
            model.learn(*context, bit);
        }
        bit
    }
}

/// A counter's probability in 65536ths, leaning on `prior` while it has seen little.
fn seeded(counter: u32, prior: u32) -> u32 {
    let count = (counter & 1023).min(30);
    ((counter >> 16) * count + prior * (30 - count)) / 30
}

/// Mixes values into a context; the upper bits are the well mixed ones.
pub(in crate::codec) fn hashed(values: &[u64]) -> u32 {
    let mixed = values.iter().fold(0x9e37_79b9_7f4a_7c15_u64, |state, value| {
        let state = (state ^ value).wrapping_mul(0xff51_afd7_ed55_8ccd);
        state ^ (state >> 32)
    });
    u32::try_from(mixed >> 32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_division() {
        for count in 0..1024 {
            let divisor = 2 * count + 3;
            // Around multiples of the divisor rounding shows.
            let near = (0..64).flat_map(|part| {
                let multiple = (CERTAIN / 64 * part) / divisor * divisor;
                [multiple.saturating_sub(1), multiple, multiple + 1]
            });
            for distance in near.chain([CERTAIN]) {
                assert_eq!(share(distance, count), distance * 2 / divisor, "{distance} after {count}");
            }
        }
    }
}
