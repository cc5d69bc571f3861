//! How large the next number will be, whatever its sign: from its row, its column and the members beside it.
//!
//! Relies on [`crate::codec::mix::least_squares`]. The idea: a float's bits without the sign are its logarithm, about, so that
//! scales of rows and columns add up; least squares find how.

use crate::codec::mix::least_squares::LeastSquares;

/// What the prediction is made of.
const TAPS: usize = 12;
/// What the weights have left of the past after one element.
const MEMORY: f64 = 0.9998;
/// Octaves beyond which a number says nothing about the scale of others: zeros are far below all.
const OCTAVES_MAX: f64 = 8.0;
/// How fast the means follow: those of a row and a column, and that of all.
const FAST: f64 = 0.125;
const SLOW: f64 = 1.0 / 512.0;

/// What is known of magnitudes, in octaves.
pub(super) struct Magnitude {
    squares: LeastSquares<TAPS>,
    taps: [f64; TAPS],
    mean: f64,
    /// Of the row: a mean that follows, the sum, and how many.
    row: f64,
    row_sum: f64,
    row_count: f64,
    columns: Vec<f64>,
    /// Magnitudes of the last row, and of this one so far.
    before: Vec<f64>,
    current: Vec<f64>,
    /// Means of each companion's magnitudes.
    beside: [f64; super::companions::COMPANIONS],
}

impl Magnitude {
    pub(super) fn new() -> Self {
        Self {
            squares: LeastSquares::new([0.0; TAPS], MEMORY),
            taps: [0.0; TAPS],
            mean: 0.0,
            row: 0.0,
            row_sum: 0.0,
            row_count: 0.0,
            columns: Vec::new(),
            before: Vec::new(),
            current: Vec::new(),
            beside: [0.0; super::companions::COMPANIONS],
        }
    }

    /// A member begins with rows of this many columns.
    pub(super) fn begin(&mut self, width: usize) {
        self.columns = vec![0.0; width.min(1 << 16)];
        self.before.clear();
        self.current.clear();
        (self.row, self.row_sum, self.row_count) = (0.0, 0.0, 0.0);
    }

    /// The next number's magnitude in octaves; `beside` are those of the numbers at its place in the companions.
    pub(super) fn predict(&mut self, column: usize, beside: &[Option<f64>]) -> f64 {
        if column == 0 {
            std::mem::swap(&mut self.before, &mut self.current);
            self.current.clear();
            (self.row_sum, self.row_count) = (self.row * 2.0, 2.0);
        }
        let from = |row: &[f64], column: Option<usize>| {
            column.and_then(|column| row.get(column)).copied().unwrap_or(0.0)
        };
        let west = from(&self.current, column.checked_sub(1));
        let mut taps = [
            1.0,
            self.row,
            self.row_sum / self.row_count.max(1.0),
            from(&self.columns, Some(column)),
            west,
            from(&self.before, Some(column)),
            from(&self.before, column.checked_sub(1)),
            from(&self.before, column.checked_add(1)),
            from(&self.current, column.checked_sub(2)),
            0.0,
            0.0,
            0.0,
        ];
        for ((tap, beside), mean) in taps.iter_mut().skip(9).zip(beside).zip(&mut self.beside) {
            let Some(beside) = beside else { continue };
            *tap = (beside - *mean).clamp(-OCTAVES_MAX, OCTAVES_MAX);
            *mean += *tap * SLOW;
        }
        self.taps = taps;
        let offset = self.squares.predict(&taps);
        let offset = if offset.is_finite() { offset.clamp(-OCTAVES_MAX, OCTAVES_MAX) } else { 0.0 };
        self.mean + offset
    }

    /// Takes the number's magnitude in, in octaves.
    pub(super) fn learn(&mut self, column: usize, magnitude: f64) {
        let offset = (magnitude - self.mean).clamp(-OCTAVES_MAX, OCTAVES_MAX);
        self.squares.learn(&self.taps, offset);
        self.mean += offset * SLOW;
        self.row += (offset - self.row) * FAST;
        self.row_sum += offset;
        self.row_count += 1.0;
        if let Some(place) = self.columns.get_mut(column) {
            *place += (offset - *place) * FAST;
        }
        self.current.push(offset);
    }

    /// Means of the row and of the column, in octaves from the mean of all.
    pub(super) fn scales(&self, column: usize) -> [f64; 2] {
        [self.row_sum / self.row_count.max(1.0), self.columns.get(column).copied().unwrap_or(0.0)]
    }
}
