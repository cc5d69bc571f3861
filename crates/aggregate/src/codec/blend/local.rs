//! Least squares over what lies near by in two dimensions.
//!
//! Relies on nothing. The idea: fields change from place to place, so the weights that would have predicted the neighbourhood
//! best predict the next element better than those of the last thousand elements, most of which lie far away in the row. Each
//! element counts less by a constant factor for each row and column between; such sums come from those of the columns above
//! by one pass in each direction, so that an element costs a few passes over one small matrix. Elements are summed in a fixed
//! order, and no instruction adds and multiplies at once, so that every machine finds the same weights.

use crate::codec::wide::widely;

/// Inputs of the predictor.
pub(super) const TAPS: usize = 32;
/// Inputs and what is to be predicted.
const ROWS: usize = TAPS + 1;
/// Products of two of these, each pair once.
const PRODUCTS: usize = ROWS * (ROWS + 1) / 2;
/// Share of the mean square that is added to every square, so that the equations have a solution.
const RIDGE: f64 = 1e-6;
/// Columns between two solutions, which cost more than all else.
const INTERVAL: usize = 4;
/// Longest row that is looked at: its sums are kept for each column.
pub(super) const WIDTH_MAX: usize = 1 << 11;

/// Inputs from which on elements are not learned from: their products would be no numbers.
const LARGE: f64 = 1e150;

type Sums = [f64; PRODUCTS];
pub(super) type Row = [f64; TAPS];

/// Sums of products around the next element.
pub(super) struct Local {
    /// Of the rows above, by column.
    columns: Vec<Sums>,
    /// Of the columns from each one on to the right.
    right: Vec<Sums>,
    /// Of the columns above on the left, and of the row so far.
    left: Box<[Sums; 2]>,
    weights: Row,
    /// What an element counts for each row and column that it is away.
    near: f64,
}

impl Local {
    pub(super) fn new(weights: Row, near: f64) -> Self {
        let left = Box::new([[0.0; PRODUCTS]; 2]);
        Self { columns: Vec::new(), right: Vec::new(), left, weights, near }
    }

    /// A member begins with rows of this many columns.
    pub(super) fn begin(&mut self, width: usize) {
        self.columns.clear();
        self.columns.resize(width, [0.0; PRODUCTS]);
        self.right.resize(width, [0.0; PRODUCTS]);
    }

    /// A row begins.
    pub(super) fn begin_row(&mut self) {
        *self.left = [[0.0; PRODUCTS]; 2];
        let mut sums = [0.0; PRODUCTS];
        for (right, column) in self.right.iter_mut().zip(&self.columns).rev() {
            fade(&mut sums, column, self.near);
            *right = sums;
        }
    }

    /// The next element of a column from its inputs.
    pub(super) fn predict(&mut self, column: usize, taps: &Row) -> f64 {
        if column.is_multiple_of(INTERVAL) {
            let [above, beside] = &*self.left;
            let found = self.right.get(column).and_then(|right| around(above, right, beside, self.near));
            self.weights = found.unwrap_or(self.weights);
        }
        taps.iter().zip(&self.weights).fold(0.0, |sum, (tap, weight)| sum + tap * weight)
    }

    pub(super) fn learn(&mut self, column: usize, taps: &Row, value: f64) {
        if taps.iter().chain([&value]).any(|tap| tap.abs() > LARGE) {
            return;
        }
        let [above, beside] = &mut *self.left;
        if let Some(column) = self.columns.get_mut(column) {
            take_in(above, beside, column, &products(taps, value), self.near);
        }
    }
}

/// All pairs of inputs and value.
fn products(taps: &Row, value: f64) -> Sums {
    let mut all = [0.0; ROWS];
    all.iter_mut().zip(taps.iter().chain([&value])).for_each(|(place, tap)| *place = *tap);
    let mut sums = [0.0; PRODUCTS];
    let mut rest = sums.as_mut_slice();
    for (row, one) in all.iter().enumerate() {
        let Some((current, later)) = rest.split_at_mut_checked(row + 1) else { break };
        current.iter_mut().zip(&all).for_each(|(place, other)| *place = one * other);
        rest = later;
    }
    sums
}

widely! {
    /// The sums, less those of what lies farther away, and `next`.
    fade = fade_portable(sums: &mut Sums, next: &Sums, near: f64);
    /// Moves the sums on the left one column on.
    take_in = take_in_portable(above: &mut Sums, beside: &mut Sums, column: &mut Sums, new: &Sums, near: f64);
    /// Weights for the element between the sums on the left above, on the right above, and on the left.
    around = around_portable(above: &Sums, right: &Sums, beside: &Sums, near: f64) -> Option<Row>;
}

#[inline(always)]
fn fade_portable(sums: &mut Sums, next: &Sums, near: f64) {
    sums.iter_mut().zip(next).for_each(|(sum, next)| *sum = *sum * near + next);
}

#[inline(always)]
fn take_in_portable(above: &mut Sums, beside: &mut Sums, column: &mut Sums, new: &Sums, near: f64) {
    fade_portable(above, column, near);
    fade_portable(column, new, near);
    beside.iter_mut().zip(new).for_each(|(sum, new)| *sum = (*sum + new) * near);
}

#[inline(always)]
fn around_portable(above: &Sums, right: &Sums, beside: &Sums, near: f64) -> Option<Row> {
    let mut matrix = [[0.0; ROWS]; ROWS];
    let mut start = 0;
    for (number, row) in matrix.iter_mut().enumerate() {
        let range = start..start + number + 1;
        let parts = above.get(range.clone())?.iter().zip(right.get(range.clone())?).zip(beside.get(range)?);
        for (place, ((above, right), beside)) in row.iter_mut().zip(parts) {
            *place = (*above * near + right) * near + beside;
        }
        start += number + 1;
    }
    solved(&mut matrix)
}

/// The weights that solve the equations whose lower half is given, with the right side as last row: Cholesky's method without
/// roots. `None` where rounding left no positive pivot.
#[inline(always)]
fn solved(matrix: &mut [[f64; ROWS]; ROWS]) -> Option<Row> {
    let trace = matrix
        .iter()
        .take(TAPS)
        .enumerate()
        .fold(0.0, |sum, (n, row)| sum + row.get(n).copied().unwrap_or(0.0));
    let ridge = trace / TAPS as f64 * RIDGE + 1e-290;
    for pivot_row in 0..TAPS {
        let pivot = matrix.get(pivot_row)?.get(pivot_row)? + ridge;
        if !(pivot > 0.0 && pivot.is_finite()) {
            return None;
        }
        let mut column = [0.0; ROWS];
        for (place, row) in column.iter_mut().zip(matrix.iter()).skip(pivot_row + 1) {
            *place = *row.get(pivot_row)?;
        }
        for (number, row) in matrix.iter_mut().enumerate().skip(pivot_row + 1) {
            let factor = row.get(pivot_row)? / pivot;
            *row.get_mut(pivot_row)? = factor;
            let targets = row.get_mut(pivot_row + 1..=number.min(TAPS - 1))?;
            let others = column.get(pivot_row + 1..)?;
            targets.iter_mut().zip(others).for_each(|(target, other)| *target -= factor * other);
        }
    }
    let mut weights = [0.0; TAPS];
    weights.iter_mut().zip(matrix.last()?).for_each(|(weight, right)| *weight = *right);
    for number in (1..TAPS).rev() {
        let (earlier, rest) = weights.split_at_mut_checked(number)?;
        let weight = *rest.first()?;
        if !weight.is_finite() {
            return None;
        }
        earlier.iter_mut().zip(matrix.get(number)?).for_each(|(target, factor)| *target -= weight * factor);
    }
    Some(weights)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::wide::tests::at_every_width;

    #[test]
    fn a_rule_that_changes_from_place_to_place_is_followed() {
        let mut state = 1_u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state) / f64::from(u32::MAX) - 0.5
        };
        let mut local = Local::new([0.0; TAPS], 0.84);
        local.begin(40);
        let (mut last, mut all) = (0.0, 0.0);
        for y in 0..40 {
            local.begin_row();
            for x in 0..40 {
                let taps: Row = std::array::from_fn(|_| noise());
                let value = f64::from(u8::try_from(x).unwrap()) / 10.0 * taps[3] - 2.0 * taps[20];
                let error = (local.predict(x, &taps) - value).abs();
                if y > 20 {
                    (last, all) = (last + error, all + value.abs());
                }
                local.learn(x, &taps, value);
            }
        }
        assert!(last < all / 5.0, "{last} of {all}");
    }

    #[test]
    fn every_form_finds_the_same_weights() {
        let sums: [Sums; 3] = [3, 5, 7].map(|part| {
            let mut sums = [0.0; PRODUCTS];
            for n in 0..60_u32 {
                let taps: Row =
                    std::array::from_fn(|tap| (f64::from(n * part) * (tap + 1) as f64 / 9.0).sin());
                fade(&mut sums, &products(&taps, f64::from(n)), 0.84);
            }
            sums
        });
        let weights =
            at_every_width(|| around(&sums[0], &sums[1], &sums[2], 0.84).map(|row| row.map(f64::to_bits)));
        assert!(weights.is_some());
    }
}
