//! The settings of a run, which every measure gets: sizes, the disk, the binary, the images.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;

use crate::Error;
use crate::pool::LocalPool;
use crate::transfer::Content;

/// Window of a pool where nothing else is said, bytes.
pub const WINDOW: u64 = 64 << 20;
/// Benefactors where nothing else is said; the paper's figures use four.
pub const BENEFACTORS: usize = 4;
/// Application's writes where nothing else is said, bytes.
pub const BLOCK: usize = 1 << 20;

/// How much is written and how often.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// Seconds: only shows that everything still runs
    Tiny,
    /// A few minutes
    Small,
    /// 1 GiB files, all numbers of benefactors and windows
    Full,
}

/// What a size means.
pub struct Sizes {
    /// Bytes of an ordinary file.
    pub file_bytes: u64,
    /// Measured rounds, after one that only warms up.
    pub rounds: usize,
    /// Numbers of benefactors to try.
    pub benefactors: &'static [usize],
    /// Windows to try, bytes.
    pub windows: &'static [u64],
    /// Numbers of benefactors to try each window with.
    pub window_benefactors: &'static [usize],
    /// Bytes of the file that memory is measured with.
    pub large_bytes: u64,
    /// Bytes of the files of programs under file states; at full size the paper's.
    pub state_bytes: u64,
    /// Bytes of the file that a checkpoint and a restore are measured on.
    pub state_large_bytes: u64,
    /// Runs of each of them.
    pub state_rounds: usize,
    /// Whether bonnie++ and fio are run as well, where they are installed.
    pub other_benchmarks: bool,
}

impl Size {
    /// The numbers of this size.
    pub fn sizes(self) -> Sizes {
        match self {
            Self::Tiny => Sizes {
                file_bytes: 8 << 20,
                rounds: 1,
                benefactors: &[2],
                windows: &[16 << 20],
                window_benefactors: &[1],
                large_bytes: 16 << 20,
                state_bytes: 2 << 20,
                state_large_bytes: 4 << 20,
                state_rounds: 1,
                other_benchmarks: false,
            },
            Self::Small => Sizes {
                file_bytes: 256 << 20,
                rounds: 3,
                benefactors: &[1, 2],
                windows: &[16 << 20, 256 << 20],
                window_benefactors: &[1, 4],
                large_bytes: 1 << 30,
                state_bytes: 256 << 20,
                state_large_bytes: 1 << 30,
                state_rounds: 5,
                other_benchmarks: true,
            },
            Self::Full => Sizes {
                file_bytes: 1 << 30,
                rounds: 5,
                benefactors: &[1, 2, 3, 4, 5, 6, 7, 8],
                windows: &[16 << 20, 32 << 20, 128 << 20, 256 << 20, 512 << 20],
                window_benefactors: &[1, 2, 3, 4, 8],
                large_bytes: 4 << 30,
                state_bytes: 2 << 30,
                state_large_bytes: 10 << 30,
                state_rounds: 5,
                other_benchmarks: true,
            },
        }
    }
}

/// A run of the benchmark.
pub struct Bench {
    /// What was asked for.
    pub size: Size,
    /// Sizes and numbers of rounds.
    pub sizes: Sizes,
    /// Where pools and files are made: the disk that is measured.
    pub dir: PathBuf,
    /// The binary that is measured.
    pub stdchk: PathBuf,
    /// This program, which also serves the do-nothing mount.
    pub own: PathBuf,
    /// Series of images, one in each folder below; without it a small one is made up.
    pub images: Option<PathBuf>,
    /// Checkpoint sets, one in each folder below; without it a small one is made up.
    pub sets: Option<PathBuf>,
}

impl Bench {
    /// An ordinary file.
    pub fn content(&self) -> Content {
        Content { bytes: self.sizes.file_bytes, block: BLOCK, salt: 0, repeated: None }
    }

    /// Starts a pool.
    pub fn up(&self, benefactors: usize, window: u64) -> Result<LocalPool, Error> {
        LocalPool::up(&self.stdchk, &self.dir, benefactors, window)
    }
}
