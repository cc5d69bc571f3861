//! Predictions of one element from its neighbours and from the members beside it.
//!
//! Relies on [`crate::codec::mix::least_squares`]. The idea: simple predictors, and several that learn how the neighbours
//! combine in this very field, over a long and a short past; whom to believe is left to the mixer.

use super::local::{self, Local};
use crate::codec::mix::least_squares::{LeastSquares, total};

/// Predictions that are offered.
pub(super) const PREDICTIONS: usize = 9;
/// Elements that are looked at for one.
const TAPS: usize = local::TAPS;
/// Predictors that learn.
const LEARNERS: usize = 5;
/// What an element counts in the local learners for each row and column that it is away.
const NEARNESS: [f64; 2] = [0.65, 0.8];
/// What their errors' means have left of the past after one element.
const ERRORS: f64 = 0.85;
/// Elements near by that the shorter memory looks at.
const NEAR: usize = 10;
/// What the learners have left of the past after one element.
const LONG: f64 = 0.9985;
const SHORT: f64 = 0.98;
/// Least columns and rows of a member for which the local learner is worth its time.
const WIDTH_MIN: usize = 8;
const ROWS_MIN: usize = 4;
/// How fast the slowest learner follows.
const STEP: f64 = 0.004;

/// What the element's predictors see of a member beside it: the elements around the same place.
#[derive(Clone, Copy, Default)]
pub(super) struct Around {
    pub(super) here: f64,
    pub(super) west: f64,
    pub(super) east: f64,
    pub(super) north: f64,
    pub(super) south: f64,
    pub(super) corners: [f64; 4],
}

/// A member's elements as far as they are known.
pub(super) struct Field {
    height: usize,
    width: usize,
    values: Vec<f64>,
    taps: [f64; TAPS],
    near: [f64; NEAR],
    weights: [f64; TAPS],
    /// What the learners predicted, relative to the nearest neighbour, and the mean squares of their errors.
    guesses: [f64; LEARNERS],
    squares: [f64; LEARNERS],
    origin: f64,
    long: LeastSquares<TAPS>,
    short: LeastSquares<NEAR>,
    locals: [Local; 2],
    /// The member is worth the time of the local learner.
    is_local: bool,
}

impl Field {
    pub(super) fn new() -> Self {
        // Both begin as the two-dimensional Lorenzo predictor.
        let mut weights = [0.0; TAPS];
        weights.iter_mut().zip([0.0, 1.0, -1.0]).for_each(|(weight, value)| *weight = value);
        let mut near = [0.0; NEAR];
        near.iter_mut().zip([1.0, -1.0]).for_each(|(weight, value)| *weight = value);
        Self {
            height: 1,
            width: 1,
            values: Vec::new(),
            taps: [0.0; TAPS],
            near,
            weights,
            guesses: [0.0; LEARNERS],
            squares: [0.0; LEARNERS],
            origin: 0.0,
            long: LeastSquares::new(weights, LONG),
            short: LeastSquares::new(near, SHORT),
            locals: NEARNESS.map(|near| Local::new(weights, near)),
            is_local: false,
        }
    }

    /// A member begins; `smooth` says that the last one's neighbours told something of each other.
    pub(super) fn begin(&mut self, height: usize, width: usize, length: usize, smooth: bool) {
        (self.height, self.width) = (height.max(1), width.max(1));
        self.values.clear();
        self.values.reserve(length);
        self.is_local =
            smooth && (WIDTH_MIN..=local::WIDTH_MAX).contains(&width) && length >= ROWS_MIN * width;
        if self.is_local {
            self.locals.iter_mut().for_each(|local| local.begin(width));
        }
    }

    /// Column of the next element.
    pub(super) fn column(&self) -> usize {
        self.values.len() % self.width
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Elements that are known.
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// The element `planes`, `rows` and `columns` before the next one; zero outside of the member.
    fn at(&self, planes: usize, rows: usize, columns: isize) -> f64 {
        let index = self.values.len();
        let (x, y) = (index % self.width, index / self.width % self.height);
        let inside = x.checked_add_signed(-columns).is_some_and(|x| x < self.width) && y >= rows;
        let back = (planes * self.height + rows) * self.width;
        let place = index.checked_sub(back).and_then(|place| place.checked_add_signed(-columns));
        let value = place.filter(|_| inside).and_then(|place| self.values.get(place));
        value.copied().unwrap_or(0.0)
    }

    /// All predictions for the next element.
    pub(super) fn predict(&mut self, beside: &[Option<Around>; 3]) -> [f64; PREDICTIONS] {
        let (west, north, behind) = (self.at(0, 0, 1), self.at(0, 1, 0), self.at(1, 0, 0));
        let (north_west, north_east, west_2) = (self.at(0, 1, 1), self.at(0, 1, -1), self.at(0, 0, 2));
        let (behind_west, behind_north) = (self.at(1, 0, 1), self.at(1, 1, 0));
        let behind_corner = self.at(1, 1, 1);
        let north_2 = self.at(0, 2, 0);
        let [twin, elder, third] = beside.map(Option::unwrap_or_default);
        let there = |beside: Option<Around>, tap: f64| if beside.is_some() { tap } else { 0.0 };
        let [first, second, last] = *beside;
        let [north_west_there, north_east_there, south_west_there, south_east_there] = twin.corners;
        // Relative to the nearest neighbour, so that the level of the field needs no weight.
        self.origin = west;
        self.near = [
            north - west,
            north_west - west,
            west_2 - west,
            north_east - west,
            north_2 - west,
            behind - west,
            there(first, twin.here - twin.west),
            there(first, twin.east - twin.here),
            there(second, elder.here - elder.west),
            there(last, third.here - third.west),
        ]
        .map(finite);
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
            self.at(0, 2, 1) - west,
            self.at(0, 1, 2) - west,
            there(first, twin.here - twin.west),
            there(first, twin.east - twin.here),
            there(first, twin.north - twin.here),
            there(first, twin.south - twin.here),
            there(first, twin.here - west),
            self.at(0, 0, 4) - west,
            self.at(0, 3, 0) - west,
            self.at(0, 2, -1) - west,
            there(second, elder.here - elder.west),
            there(second, elder.east - elder.here),
            there(second, elder.north - elder.here),
            there(second, elder.south - elder.here),
            there(last, third.here - third.west),
            there(last, third.north - third.here),
            there(last, third.south - third.here),
            there(first, north_west_there - twin.here),
            there(first, north_east_there - twin.here),
            there(first, south_west_there - twin.here),
            there(first, south_east_there - twin.here),
        ]
        .map(finite);
        let slow = total(self.taps.iter().zip(&self.weights).map(|(tap, weight)| tap * weight));
        let (long, short) = (self.long.predict(&self.taps), self.short.predict(&self.near));
        let [near, wide] = if self.is_local { self.guess_locally() } else { [long; 2] };
        self.guesses = [near, wide, long, short, slow].map(finite);
        let blended = finite(west + finite(self.blended()));
        let [near, wide, long, short, _] = self.guesses.map(|guess| finite(west + guess));
        let lorenzo_2 = west + (north - north_west);
        let lorenzo_3 = lorenzo_2 + (behind - behind_west - behind_north + behind_corner);
        let shifted = if first.is_none() { north } else { twin.here + (west - twin.west) };
        let same = if first.is_none() { west + (west - west_2) } else { twin.here };
        let [lorenzo_3, shifted, same] = [lorenzo_3, shifted, same].map(finite);
        [blended, near, wide, long, short, lorenzo_3, west, shifted, same]
    }

    /// The mean of what the learners predict, by how right they lately were.
    fn blended(&self) -> f64 {
        let least = self.squares.iter().fold(f64::INFINITY, |least, square| least.min(*square)) + 1e-290;
        let (mut sum, mut weights) = (0.0, 0.0);
        for (guess, square) in self.guesses.iter().zip(&self.squares) {
            let share = least / (square + 1e-290);
            let weight = share * share;
            (sum, weights) = (sum + guess * weight, weights + weight);
        }
        sum / weights
    }

    fn guess_locally(&mut self) -> [f64; 2] {
        let column = self.column();
        if column == 0 {
            self.locals.iter_mut().for_each(Local::begin_row);
        }
        let taps = self.taps;
        self.locals.each_mut().map(|local| local.predict(column, &taps))
    }

    /// Takes the element in; the learners learn from it.
    pub(super) fn learn(&mut self, value: f64) {
        let value = finite(value);
        let target = finite(value - self.origin);
        self.long.learn(&self.taps, target);
        self.short.learn(&self.near, target);
        if self.is_local {
            let column = self.column();
            self.locals.iter_mut().for_each(|local| local.learn(column, &self.taps, target));
        }
        let power = total(self.taps.iter().map(|tap| tap * tap));
        for (square, guess) in self.squares.iter_mut().zip(&self.guesses) {
            *square = finite(*square * ERRORS + (target - guess) * (target - guess));
        }
        let [.., slow] = self.guesses;
        let share = STEP * (target - slow) / (power / TAPS as f64 + 1e-300);
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
