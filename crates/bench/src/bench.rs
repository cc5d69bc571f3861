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
    /// What programs under file states are measured with.
    pub states: FileStates,
}

/// Files and rounds of the measure `files`.
pub struct FileStates {
    /// Bytes of the files of its own programs, and of fio's.
    pub bytes: u64,
    /// Bytes of the files on which a checkpoint and a restore are measured, one after the other.
    pub large_bytes: &'static [u64],
    /// Runs of each row.
    pub rounds: usize,
    /// Bytes of bonnie++'s file; none where neither it nor fio is run.
    pub bonnie_bytes: Option<u64>,
    /// Runs of bonnie++ and fio.
    pub tool_rounds: usize,
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
                states: FileStates {
                    bytes: 2 << 20,
                    large_bytes: &[4 << 20],
                    rounds: 1,
                    bonnie_bytes: None,
                    tool_rounds: 0,
                },
            },
            Self::Small => Sizes {
                file_bytes: 256 << 20,
                rounds: 3,
                benefactors: &[1, 2],
                windows: &[16 << 20, 256 << 20],
                window_benefactors: &[1, 4],
                large_bytes: 1 << 30,
                states: FileStates {
                    bytes: 64 << 20,
                    large_bytes: &[64 << 20, 1 << 30],
                    rounds: 3,
                    bonnie_bytes: Some(1 << 30),
                    tool_rounds: 1,
                },
            },
            Self::Full => Sizes {
                file_bytes: 1 << 30,
                rounds: 5,
                benefactors: &[1, 2, 3, 4, 5, 6, 7, 8],
                windows: &[16 << 20, 32 << 20, 128 << 20, 256 << 20, 512 << 20],
                window_benefactors: &[1, 2, 3, 4, 8],
                large_bytes: 4 << 30,
                // bonnie++'s file is the paper's. Random overwrites of a large file that was written in large pieces take ext4
                // ten microseconds each, with the library and without.
                states: FileStates {
                    bytes: 128 << 20,
                    large_bytes: &[1 << 30, 10 << 30],
                    rounds: 5,
                    bonnie_bytes: Some(2 << 30),
                    tool_rounds: 5,
                },
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
    /// Where pools and files are made, on the disk that is measured; it goes with the run.
    pub dir: PathBuf,
    /// The binary that is measured.
    pub stdchk: PathBuf,
    /// This program, which also serves the do-nothing mount.
    pub own: PathBuf,
    /// Series of images, one in each folder below; without it a small one is made up.
    pub images: Option<PathBuf>,
    /// Checkpoint sets, one in each folder below; without it a small one is made up.
    pub sets: Option<PathBuf>,
    /// Whose hosts' comings and goings evict jobs.
    pub trace: Option<PathBuf>,
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
