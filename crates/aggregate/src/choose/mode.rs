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
    /// The least time until the set is safe behind a sink of this many bytes per second and core.
    Auto(f64),
    /// The paper's choices: FPC for doubles, fpzip's predictor for floats, LZ for the rest, gzip as second pass.
    Paper,
    /// The paper's choices without the second pass (its figure 6 compares the two).
    PaperOnce,
}

/// Bytes per second and core of a sink from which on what unfolding saves is written in less time than unfolding takes: a stored byte
/// takes some 60 ns, and a third of it is saved.
const UNFOLDING_SPEED_MAX: f64 = 5e6;

impl Mode {
    /// Bytes per second and core of the sink that the mode assumes.
    pub(super) fn sink_speed(&self) -> f64 {
        match self {
            Self::Fastest => 60e6,
            Self::Auto(speed) => speed.max(1.0),
            Self::Default | Self::Paper | Self::PaperOnce => 60e6,
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

    /// Seconds that a chain costs which makes `coded` bytes of `raw` ones.
    pub(super) fn cost(&self, steps: &[Step], coded: usize, raw: usize) -> f64 {
        let time_ns = raw as f64 * chain_time(steps, coded as f64 / raw.max(1) as f64);
        coded as f64 / self.sink_speed() + time_ns * 1e-9
    }

    /// Bytes of a block that are tried. Several chains are tried, so that a
    /// sixteenth of a small block already costs a quarter of coding it.
    pub(super) fn sample_bytes(&self, block: usize) -> usize {
        let share = (block / 16).max(4 << 10);
        match self {
            Self::Fastest => share.min(12 << 10),
            _ => share.min(32 << 10),
        }
    }

    /// Level at which the records of sections are compressed: they are short, and every byte of them counts against the
    /// ratio where that counts.
    pub(crate) fn record_level(&self) -> i32 {
        match self {
            Self::Fastest => 1,
            _ => 6,
        }
    }

    /// Whether it is [`Mode::Paper`] or [`Mode::PaperOnce`].
    pub(crate) fn is_published(&self) -> bool {
        matches!(self, Self::Paper | Self::PaperOnce)
    }

    /// Whether what repeats elsewhere is looked for in variables, too, and not only in what no parser understands.
    pub(crate) fn searches_variables(&self) -> bool {
        matches!(self, Self::Default | Self::Auto(_))
    }

    /// Whether compressed parts of files are unfolded, which takes some 50 ns for each of their plain bytes.
    pub(crate) fn unfolds(&self) -> bool {
        match self {
            Self::Default => true,
            Self::Auto(speed) => *speed < UNFOLDING_SPEED_MAX,
            Self::Fastest | Self::Paper | Self::PaperOnce => false,
        }
    }

    /// Largest block of bytes that no parser understands: what repeats there is found by nothing but the search.
    pub(crate) fn opaque_block_bytes(&self) -> u64 {
        if *self == Self::Default { 8 << 20 } else { self.block_bytes() }
    }

    /// Largest block, in bytes: wider ones show more of the set to the coder, narrower ones are read sooner.
    pub(crate) fn block_bytes(&self) -> u64 {
        4 << 20
    }
}
