//! A region: memory that an agent shares with a trainer, and what it holds.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

use super::protocol::{Answer, Piece, RegionStatus};

/// A connection of a trainer, and its process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Peer {
    /// Number of the connection.
    pub connection: u64,
    /// The process at its other end.
    pub process: u32,
}

/// Memory of a region.
pub struct Memory {
    descriptor: OwnedFd,
    bytes: u64,
}

impl Memory {
    /// Takes all of it at once: memory that is missing is an error here, and not the end of the trainer that touches it.
    pub fn take(bytes: u64) -> io::Result<Self> {
        let available = available()?;
        if bytes > available {
            let text = format!("{bytes} bytes are wanted, and this host has {available} left");
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, text));
        }
        let descriptor = memfd_create("stdchk-region", MemfdFlags::CLOEXEC)?;
        ftruncate(&descriptor, bytes)?;
        fallocate(&descriptor, FallocateFlags::empty(), 0, bytes)?;
        Ok(Self { descriptor, bytes })
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// To be shared.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// Gives the pages back, whoever has them mapped still: they read as zeros from now on.
    pub fn give_up(&self) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = fallocate(&self.descriptor, flags, 0, self.bytes) {
            tracing::warn!(%error, bytes = self.bytes, "memory that is needed no longer stays taken while somebody maps it");
        }
    }

    /// Copies bytes out. The trainer could write to them meanwhile, so that they are never borrowed.
    pub fn read(&self, offset: u64, mut to: &mut [u8]) -> io::Result<()> {
        let mut at = offset;
        while !to.is_empty() {
            let read = rustix::io::pread(&self.descriptor, &mut *to, at)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += read as u64;
            to = std::mem::take(&mut to).split_at_mut(read).1;
        }
        Ok(())
    }
}

/// Memory that can be taken without swapping, as the kernel says, bytes.
fn available() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| io::Error::other("/proc/meminfo does not say what is available"))
}

/// A checkpoint that a region holds whole.
#[derive(Clone)]
pub struct Save {
    /// Its number at this agent.
    pub number: u64,
    /// The file that it becomes.
    pub file: String,
    /// Length of the file, bytes.
    pub length: u64,
    /// The parts of the file that are in the region, in the order of the file; the rest are holes.
    pub pieces: Arc<[Piece]>,
    /// Bytes of the pieces that are stored.
    pub done: Arc<AtomicU64>,
}

impl Save {
    /// Bytes of the pieces.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.2).sum()
    }
}

/// The content of a region.
#[derive(Clone)]
pub enum Content {
    /// Nothing that counts.
    Empty,
    /// Its trainer writes to it; the number of this filling.
    Filling(u64),
    /// A checkpoint that the agent stores; nobody may write to it.
    Storing(Save),
    /// A checkpoint, stored as this version of its file.
    Durable(Save, u64, f64),
    /// A checkpoint that can't be stored, and why.
    Failed(Save, Answer),
}

/// A region.
pub struct Region {
    /// Its memory.
    pub memory: Arc<Memory>,
    /// The connection that may write to it.
    pub owner: Option<Peer>,
    /// Since when nobody may.
    pub left: Option<Instant>,
    /// Connections that read it.
    pub readers: BTreeSet<u64>,
    /// Its content.
    pub content: Content,
}

impl Region {
    /// Whether a new trainer could only load from it, and nobody does.
    pub fn is_left(&self) -> bool {
        self.owner.is_none() && self.readers.is_empty() && !matches!(self.content, Content::Storing(_))
    }

    /// Whether it has been so for this long.
    pub fn is_left_for(&self, long: Duration) -> bool {
        self.is_left() && self.left.is_some_and(|since| since.elapsed() >= long)
    }

    /// How the save of this number is.
    pub fn state_of(&self, number: u64) -> Option<Answer> {
        match &self.content {
            Content::Storing(save) if save.number == number => {
                Some(Answer::Storing { bytes: save.done.load(Ordering::Relaxed), of: save.bytes() })
            }
            Content::Durable(save, version, seconds) if save.number == number => {
                Some(Answer::Durable { version: *version, seconds: *seconds })
            }
            Content::Failed(save, why) if save.number == number => Some(why.clone()),
            _ => None,
        }
    }

    /// For `agent status`.
    pub fn status(&self, key: &str) -> RegionStatus {
        let (state, save, cause) = match &self.content {
            Content::Empty => ("empty", None, None),
            Content::Filling(_) => ("filling", None, None),
            Content::Storing(save) => ("storing", Some(save), None),
            Content::Durable(save, ..) => ("durable", Some(save), None),
            Content::Failed(save, Answer::Failed { cause, .. }) => {
                ("failed", Some(save), Some(cause.clone()))
            }
            Content::Failed(save, _) => ("failed", Some(save), None),
        };
        RegionStatus {
            key: key.to_owned(),
            bytes: self.memory.bytes(),
            state: state.to_owned(),
            file: save.map(|save| save.file.clone()),
            cause,
            process: self.owner.map(|owner| owner.process),
        }
    }
}
