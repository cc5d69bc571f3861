//! Predictions of one element from its causal neighbours and from the member before.
//!
//! Relies on [`super::least_squares`]. The idea: several simple predictors and two that learn how the neighbours combine in
//! this very field, by least squares and by normalised least mean squares; whom to believe is left to the mixer.

use super::least_squares::{LeastSquares, total};

/// Predictions that are offered.
pub(super) const PREDICTIONS: usize = 7;
/// Elements that are looked at for one.
const TAPS: usize = 24;
/// What the faster learner has left of the past after one element.
const MEMORY: f64 = 0.9985;
/// How fast the slower learner follows.
const STEP: f64 = 0.004;

/// A member's elements as far as they are known, and the last member of the same shape.
pub(super) struct Field {
    height: usize,
    width: usize,
    /// Elements of the current member.
    values: Vec<f64>,
    /// Elements of the member before the last, if it had the same shape.
    elder: Vec<f64>,
    /// Elements of the member before, if it had the same shape.
    twin: Vec<f64>,
    taps: [f64; TAPS],
    weights: [f64; TAPS],
    /// What the two learners predicted, relative to the nearest neighbour.
    guesses: [f64; 2],
    origin: f64,
    squares: LeastSquares<TAPS>,
}

impl Field {
    pub(super) fn new() -> Self {
        let mut weights = [0.0; TAPS];
        // Begins as the two-dimensional Lorenzo predictor.
        for (weight, value) in weights.iter_mut().zip([0.0, 1.0, -1.0]) {
            *weight = value;
        }
        Self {
            height: 1,
            width: 1,
            values: Vec::new(),
            twin: Vec::new(),
            elder: Vec::new(),
            taps: [0.0; TAPS],
            weights,
            guesses: [0.0; 2],
            origin: 0.0,
            squares: LeastSquares::new(weights, MEMORY),
        }
    }

    /// Begins a member; the last one becomes the twin if it had as many elements.
    pub(super) fn begin(&mut self, height: usize, width: usize, length: usize) {
        self.elder = std::mem::replace(&mut self.twin, std::mem::take(&mut self.values));
        for before in [&mut self.twin, &mut self.elder] {
            if before.len() != length || self.width != width {
                before.clear();
            }
        }
        (self.height, self.width) = (height.max(1), width.max(1));
        self.values = Vec::with_capacity(length);
    }

    /// The element `back` places before the next one, if it lies `rows`, `columns` and `planes` away inside the member.
    fn at(&self, planes: usize, rows: usize, columns: isize) -> f64 {
        let index = self.values.len();
        let (x, y) = (index % self.width, index / self.width % self.height);
        let inside = x.checked_add_signed(-columns).is_some_and(|x| x < self.width) && y >= rows;
        let back = (planes * self.height + rows) * self.width;
        let place = index.checked_sub(back).and_then(|place| place.checked_add_signed(-columns));
        let value = place.filter(|_| inside).and_then(|place| self.values.get(place));
        value.copied().unwrap_or(0.0)
    }

    fn twin_at(&self, offset: isize) -> f64 {
        let place = self.values.len().checked_add_signed(offset);
        place.and_then(|place| self.twin.get(place)).copied().unwrap_or(0.0)
    }

    fn elder_at(&self, offset: isize) -> f64 {
        let place = self.values.len().checked_add_signed(offset);
        place.and_then(|place| self.elder.get(place)).copied().unwrap_or(0.0)
    }

    /// The elements at the same place of the two members before; zero where there are none.
    pub(super) fn counterparts(&self) -> [f64; 2] {
        [self.twin_at(0), self.elder_at(0)]
    }

    /// All predictions for the next element.
    pub(super) fn predict(&mut self) -> [f64; PREDICTIONS] {
        let (west, north, behind) = (self.at(0, 0, 1), self.at(0, 1, 0), self.at(1, 0, 0));
        let (north_west, north_east, west_2) = (self.at(0, 1, 1), self.at(0, 1, -1), self.at(0, 0, 2));
        let (behind_west, behind_north) = (self.at(1, 0, 1), self.at(1, 1, 0));
        let behind_corner = self.at(1, 1, 1);
        let (north_2, north_2_west) = (self.at(0, 2, 0), self.at(0, 2, 1));
        let (twin, twin_west) = (self.twin_at(0), self.twin_at(-1));
        let row = isize::try_from(self.width).unwrap_or(0);
        let (twin_east, twin_north, twin_south) = (self.twin_at(1), self.twin_at(-row), self.twin_at(row));
        let (elder, elder_west) = (self.elder_at(0), self.elder_at(-1));
        // Relative to the nearest neighbour, so that the level of the field needs no weight.
        self.origin = west;
        self.taps = [
            self.at(0, 0, 3) - west,
            north - west,
            north_west - west,
            west_2 - west,
            north_east - west,
            north_2 - west,
            behind - west,
            behind_west - west,
            behind_north - west,
            behind_corner - west,
            self.at(0, 1, -2) - west,
            north_2_west - west,
            self.at(0, 1, 2) - west,
            twin - twin_west,
            twin_east - twin,
            twin_north - twin,
            twin_south - twin,
            twin - west,
            self.at(0, 0, 4) - west,
            self.at(0, 3, 0) - west,
            self.at(0, 2, -1) - west,
            elder - elder_west,
            self.elder_at(1) - elder,
            self.elder_at(row) - elder,
        ]
        .map(finite);
        if self.twin.is_empty() {
            self.taps.iter_mut().skip(13).take(5).for_each(|tap| *tap = 0.0);
        }
        let slow = total(self.taps.iter().zip(&self.weights).map(|(tap, weight)| tap * weight));
        self.guesses = [finite(self.squares.predict(&self.taps)), finite(slow)];
        let [fast, slow] = self.guesses.map(|guess| finite(west + guess));
        let lorenzo_2 = west + (north - north_west);
        let lorenzo_3 = lorenzo_2 + (behind - behind_west - behind_north + behind_corner);
        let shifted = if self.twin.is_empty() { north } else { twin + (west - twin_west) };
        let same = if self.twin.is_empty() { west + (west - west_2) } else { twin };
        [fast, finite(lorenzo_3), west, finite(lorenzo_2), finite(shifted), finite(same), slow]
    }

    /// Takes the element in; both learners learn from it.
    pub(super) fn learn(&mut self, value: f64) {
        let value = finite(value);
        let target = finite(value - self.origin);
        self.squares.learn(&self.taps, target);
        let power = total(self.taps.iter().map(|tap| tap * tap));
        let error = target - self.guesses[1];
        let share = STEP * error / (power / TAPS as f64 + 1e-300);
        if share.is_finite() {
            for (weight, tap) in self.weights.iter_mut().zip(&self.taps) {
                *weight = finite(*weight + share * tap).clamp(-16.0, 16.0);
            }
        }
        self.values.push(value);
    }
}

fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}
