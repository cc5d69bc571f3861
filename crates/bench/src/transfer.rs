//! Timed writes and reads of one file, through the system calls that an application makes.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::Error;
use crate::stock::Stock;

/// What a write consists of.
#[derive(Clone, Copy)]
pub struct Content {
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes per system call.
    pub block: usize,
    /// Distinguishes files: two of one salt share their content.
    pub salt: u64,
    /// Salt of every other mebibyte: content that some earlier file had.
    pub repeated: Option<u64>,
}

/// Writes a file and returns the seconds from open to the return of close. With `sync`, fsync comes before close.
pub fn write(path: &Path, content: Content, stock: &mut Stock, sync: bool) -> Result<f64, Error> {
    write_counted(path, content, stock, sync, &AtomicU64::new(0))
}

/// The same; `written` grows with each system call by the bytes that it took.
pub fn write_counted(
    path: &Path,
    content: Content,
    stock: &mut Stock,
    sync: bool,
    written: &AtomicU64,
) -> Result<f64, Error> {
    let started = Instant::now();
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    let mut at = 0;
    while at < content.bytes {
        let length = content.block.min(usize::try_from(content.bytes - at)?);
        file.write_all(stock.at(at, length, content.salt_at(at)))?;
        at += length as u64;
        written.fetch_add(length as u64, Ordering::Relaxed);
    }
    if sync {
        file.sync_all()?;
    }
    // `close` is where a file system may first report that bytes were lost; std's drop would swallow that.
    nix::unistd::close(file).map_err(std::io::Error::from)?;
    Ok(started.elapsed().as_secs_f64())
}

/// Writes a file that is in memory, in system calls of `block` bytes, and returns the seconds from open to the return of close.
pub fn write_bytes(path: &Path, bytes: &[u8], block: usize) -> Result<f64, Error> {
    let started = Instant::now();
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    bytes.chunks(block).try_for_each(|part| file.write_all(part))?;
    nix::unistd::close(file).map_err(std::io::Error::from)?;
    Ok(started.elapsed().as_secs_f64())
}

impl Content {
    fn salt_at(&self, offset: u64) -> u64 {
        self.repeated.filter(|_| (offset >> 20).is_multiple_of(2)).unwrap_or(self.salt)
    }
}

/// Reads a file to its end in pieces of a mebibyte and returns the seconds it took and the bytes.
pub fn read(path: &Path) -> Result<(f64, u64), Error> {
    let mut buffer = vec![0; 1 << 20];
    let started = Instant::now();
    let mut file = File::open(path)?;
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((started.elapsed().as_secs_f64(), bytes)),
            count => bytes += count as u64,
        }
    }
}

/// Empties the page cache, so that the next read is cold. Needs root.
pub fn drop_caches() -> Result<(), Error> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").map_err(|error| {
        Error(format!("the page cache can't be emptied ({error}): run as root to measure cold reads"))
    })
}
