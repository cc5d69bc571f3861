//! What packing is to win, and what follows from it: the speed of the sink that is assumed, the time that a chain may take, the
//! size of blocks and of samples.

use super::chain_time;
use crate::codec::Step;

/// What to win: time or space.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Mode {
    /// Hundreds of megabytes a second and core.
    Fastest,
    /// About half as fast, and denser.
    #[default]
    Default,
    /// As small as possible with coders that take a megabyte a second and core at least.
    Smallest,
    /// The least time until the set is safe behind a sink of this many bytes per second and core.
    Auto(f64),
    /// The paper's choices: FPC for doubles, fpzip's predictor for floats, LZ for the rest, gzip as second pass.
    Paper,
    /// The paper's choices without the second pass (its figure 6 compares the two).
    PaperOnce,
}

impl Mode {
    /// Bytes per second and core of the sink that the mode assumes.
    pub(super) fn sink_speed(&self) -> f64 {
        match self {
            Self::Fastest => 60e6,
            Self::Auto(speed) => speed.max(1.0),
            Self::Default | Self::Paper | Self::PaperOnce => 60e6,
            Self::Smallest => 0.0,
        }
    }

    /// Most nanoseconds per byte that a chain may take, forwards and backwards.
    pub(super) fn time_max(&self) -> f64 {
        match self {
            Self::Fastest => 3.5,
            Self::Default => 4.0,
            _ => f64::INFINITY,
        }
    }

    /// Seconds, or bytes where time is no object, that a chain costs which makes `coded` bytes of `raw` ones.
    pub(super) fn cost(&self, steps: &[Step], coded: usize, raw: usize) -> f64 {
        match self.sink_speed() {
            0.0 => coded as f64,
            speed => {
                coded as f64 / speed + raw as f64 * chain_time(steps, coded as f64 / raw.max(1) as f64) * 1e-9
            }
        }
    }

    /// Bytes of a block that are tried; all of it where time is no object. Several chains are tried, so that a
    /// sixteenth of a small block already costs a quarter of coding it.
    pub(super) fn sample_bytes(&self, block: usize) -> usize {
        let share = (block / 16).max(4 << 10);
        match self {
            Self::Smallest => block,
            Self::Fastest => share.min(12 << 10),
            _ => share.min(32 << 10),
        }
    }

    /// Level at which the records of sections are compressed: they are short, and every byte of them counts against the
    /// ratio where that counts.
    pub(crate) fn record_level(&self) -> i32 {
        match self {
            Self::Fastest => 1,
            Self::Smallest => 19,
            _ => 6,
        }
    }

    /// Whether it is [`Mode::Paper`] or [`Mode::PaperOnce`].
    pub(crate) fn is_published(&self) -> bool {
        matches!(self, Self::Paper | Self::PaperOnce)
    }

    /// Largest block of bytes that no parser understands: what repeats there is found by nothing but the search.
    pub(crate) fn opaque_block_bytes(&self) -> u64 {
        if *self == Self::Default { 8 << 20 } else { self.block_bytes() }
    }

    /// Largest block, in bytes: wider ones show more of the set to the coder, narrower ones are read sooner.
    pub(crate) fn block_bytes(&self) -> u64 {
        match self {
            Self::Smallest => 32 << 20,
            _ => 4 << 20,
        }
    }
}
