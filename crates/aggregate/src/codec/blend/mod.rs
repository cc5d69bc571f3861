//! Context mixing over numbers, the second form: fewer bits are worth mixing, and what predicts them sees more.
//!
//! Pure. Relies on the parts of [`super::mix`] that did not change. The ideas beside those of the first form: bits far below
//! every predictor's error are noise, and cost one counter instead of all models; a member is seen beside the members that
//! stand at its place in the sequence of shapes, wherever they are, so that moments of an optimizer meet their weights; and
//! magnitudes are predicted from rows, columns and these members, since they go together where values don't.

mod companions;
mod field;
mod local;
mod magnitude;
mod mixer;
mod numbers;

pub(crate) use numbers::{compress_numbers, decompress_numbers};
