//! Least squares over the recent past: the weights that would have predicted best, older elements counting less.
//!
//! Relies on nothing. The idea: sums of products fade by a constant factor, and the normal equations are solved by
//! Cholesky's method every few elements; additions, multiplications, divisions and square roots are exact in IEEE 754,
//! and their order is fixed.

/// Elements between two solutions: solving costs ten times what adding up costs.
const INTERVAL: u32 = 4;
/// Share of the mean square that is added to every square, so that the equations always have a solution.
const RIDGE: f64 = 1e-7;

/// A predictor from so many inputs.
pub(in crate::codec) struct LeastSquares<const TAPS: usize> {
    /// What is left of the past after one element.
    memory: f64,
    first: [f64; TAPS],
    squares: [[f64; TAPS]; TAPS],
    products: [f64; TAPS],
    weights: [f64; TAPS],
    until_solved: u32,
}

impl<const TAPS: usize> LeastSquares<TAPS> {
    /// Begins with these weights.
    pub(in crate::codec) fn new(first: [f64; TAPS], memory: f64) -> Self {
        let (squares, products) = ([[0.0; TAPS]; TAPS], [0.0; TAPS]);
        Self { memory, first, squares, products, weights: first, until_solved: INTERVAL * 8 }
    }

    pub(in crate::codec) fn predict(&self, taps: &[f64; TAPS]) -> f64 {
        total(taps.iter().zip(&self.weights).map(|(tap, weight)| tap * weight))
    }

    pub(in crate::codec) fn learn(&mut self, taps: &[f64; TAPS], value: f64) {
        for ((row, tap), product) in self.squares.iter_mut().zip(taps).zip(&mut self.products) {
            for (sum, other) in row.iter_mut().zip(taps) {
                *sum = *sum * self.memory + tap * other;
            }
            *product = *product * self.memory + tap * value;
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
            *self = Self::new(self.first, self.memory);
            return;
        }
        let ridge = trace / TAPS as f64 * RIDGE + 1e-290;
        if let Some(weights) = solved(&self.squares, &self.products, ridge) {
            self.weights = weights;
        }
    }
}

/// Weights of the normal equations by Cholesky's method; `None` where rounding left no positive pivot.
fn solved<const TAPS: usize>(
    squares: &[[f64; TAPS]; TAPS],
    products: &[f64; TAPS],
    ridge: f64,
) -> Option<[f64; TAPS]> {
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

fn dot(one: &[f64], other: &[f64], count: usize) -> f64 {
    total(one.iter().zip(other).take(count).map(|(one, other)| one * other))
}

/// The sum in order, from +0: what `Iterator::sum` begins with has changed between releases of the language, and the
/// sign of a zero would be enough to lead a decoder astray.
pub(in crate::codec) fn total(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_rule_is_learned() {
        let mut predictor = LeastSquares::new([0.0; 24], 0.9985);
        let mut state = 1_u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state) / f64::from(u32::MAX) - 0.5
        };
        let mut last_error = f64::INFINITY;
        for _ in 0..2000 {
            let taps: [f64; 24] = std::array::from_fn(|_| noise());
            let value = 3.0 * taps[4] - 0.5 * taps[17];
            last_error = (predictor.predict(&taps) - value).abs();
            predictor.learn(&taps, value);
        }
        assert!(last_error < 1e-3, "{last_error}");
    }
}
