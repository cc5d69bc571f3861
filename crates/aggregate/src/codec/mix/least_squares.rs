//! Least squares over the recent past: the weights that would have predicted best, older elements counting less.
//!
//! Relies on nothing. The idea: sums of products fade by a constant factor, and the normal equations are solved by
//! Cholesky's method every few elements; additions, multiplications, divisions and square roots are exact in IEEE 754,
//! and their order is fixed.

/// Inputs of the predictor.
pub(super) const TAPS: usize = 24;

/// What is left of the past after one element.
const MEMORY: f64 = 0.9985;
/// Elements between two solutions: solving costs ten times what adding up costs.
const INTERVAL: u32 = 4;
/// Share of the mean square that is added to every square, so that the equations always have a solution.
const RIDGE: f64 = 1e-7;

type Row = [f64; TAPS];

pub(super) struct LeastSquares {
    squares: [Row; TAPS],
    products: Row,
    weights: Row,
    until_solved: u32,
}

impl LeastSquares {
    pub(super) fn new() -> Self {
        let mut weights = [0.0; TAPS];
        // Begins as west + north - north-west.
        for (weight, value) in weights.iter_mut().zip([0.0, 1.0, -1.0]) {
            *weight = value;
        }
        Self { squares: [[0.0; TAPS]; TAPS], products: [0.0; TAPS], weights, until_solved: INTERVAL * 8 }
    }

    pub(super) fn predict(&self, taps: &Row) -> f64 {
        total(taps.iter().zip(&self.weights).map(|(tap, weight)| tap * weight))
    }

    pub(super) fn learn(&mut self, taps: &Row, value: f64) {
        for ((row, tap), product) in self.squares.iter_mut().zip(taps).zip(&mut self.products) {
            for (sum, other) in row.iter_mut().zip(taps) {
                *sum = *sum * MEMORY + tap * other;
            }
            *product = *product * MEMORY + tap * value;
        }
        self.until_solved -= 1;
        if self.until_solved == 0 {
            self.until_solved = INTERVAL;
            self.solve();
        }
    }

    fn solve(&mut self) {
        let trace = total(self.squares.iter().enumerate().filter_map(|(n, row)| row.get(n).copied()));
        if !trace.is_finite() {
            *self = Self::new();
            return;
        }
        let ridge = trace / TAPS as f64 * RIDGE + 1e-290;
        if let Some(weights) = solved(&self.squares, &self.products, ridge) {
            self.weights = weights;
        }
    }
}

/// Weights of the normal equations by Cholesky's method; `None` where rounding left no positive pivot.
fn solved(squares: &[Row; TAPS], products: &Row, ridge: f64) -> Option<Row> {
    let mut lower = [[0.0; TAPS]; TAPS];
    let mut forward = [0.0; TAPS];
    for (n, row) in squares.iter().enumerate() {
        let mut current = [0.0; TAPS];
        for (m, square) in row.iter().enumerate().take(n) {
            let above = lower.get(m)?;
            let sum = dot(&current, above, m);
            *current.get_mut(m)? = (square - sum) / above.get(m)?;
        }
        let pivot = row.get(n)? + ridge - dot(&current, &current, n);
        if !(pivot > 0.0 && pivot.is_finite()) {
            return None;
        }
        *current.get_mut(n)? = pivot.sqrt();
        *forward.get_mut(n)? = (products.get(n)? - dot(&current, &forward, n)) / pivot.sqrt();
        *lower.get_mut(n)? = current;
    }
    let mut weights = [0.0; TAPS];
    for n in (0..TAPS).rev() {
        let below = total((n + 1..TAPS).filter_map(|m| Some(lower.get(m)?.get(n)? * weights.get(m)?)));
        let weight = (forward.get(n)? - below) / lower.get(n)?.get(n)?;
        *weights.get_mut(n)? = if weight.is_finite() { weight } else { return None };
    }
    Some(weights)
}

fn dot(one: &Row, other: &Row, count: usize) -> f64 {
    total(one.iter().zip(other).take(count).map(|(one, other)| one * other))
}

/// The sum in order, from +0: what `Iterator::sum` begins with has changed between releases of the language, and the
/// sign of a zero would be enough to lead a decoder astray.
pub(super) fn total(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_rule_is_learned() {
        let mut predictor = LeastSquares::new();
        let mut state = 1_u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state) / f64::from(u32::MAX) - 0.5
        };
        let mut last_error = f64::INFINITY;
        for _ in 0..2000 {
            let taps: Row = std::array::from_fn(|_| noise());
            let value = 3.0 * taps[4] - 0.5 * taps[17];
            last_error = (predictor.predict(&taps) - value).abs();
            predictor.learn(&taps, value);
        }
        assert!(last_error < 1e-3, "{last_error}");
    }
}
