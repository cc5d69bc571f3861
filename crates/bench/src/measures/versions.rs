//! Restores over many versions of one file: the newest must come back as fast as the first, whatever it grew from.

use std::time::Instant;

use crate::Error;
use crate::bench::{BENEFACTORS, BLOCK, Bench, Size, WINDOW};
use crate::cpu;
use crate::pool::LocalPool;
use crate::row::{Row, at_least, section};
use crate::section::Section;
use crate::transfer;

/// One page in this many changes from version to version.
const CHANGED_ONE_IN: usize = 10;
const PAGE_BYTES: usize = 4096;
/// Rate of the newest version against the first; the rest is the noise of a disk.
const NEWEST_OF_FIRST: f64 = 0.9;

/// Versions, and bytes of each.
fn extent(size: Size) -> (usize, usize) {
    match size {
        Size::Tiny => (4, 4 << 20),
        Size::Small => (50, 64 << 20),
        Size::Full => (50, 256 << 20),
    }
}

/// Writes the versions, a tenth of the pages new in each, and gets the first and the newest in turn, cold.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    let (versions, bytes) = extent(bench.size);
    let pool = bench.up(BENEFACTORS, WINDOW)?;
    let folder = pool.folder("versions", &["redundancy=replicate:1", "cutter=fsch:4KiB"])?;
    let mut content = vec![0; bytes];
    let mut draw = Draw(1);
    content.chunks_mut(PAGE_BYTES).for_each(|page| draw.fill(page));
    let first = content.clone();
    for version in 0..versions {
        if version > 0 {
            change(&mut content, &mut draw);
        }
        transfer::write_bytes(&folder.join("run.N0.T0"), &content, BLOCK)?;
    }
    let mut rows = [
        Row::new("get, first version", BENEFACTORS, WINDOW, BLOCK),
        Row::new(&format!("get, newest of {versions}"), BENEFACTORS, WINDOW, BLOCK),
    ];
    for round in 0..=bench.sizes.rounds {
        for (row, (version, expected)) in rows.iter_mut().zip([(1, &first), (versions, &content)]) {
            let (seconds, cpu) = get(bench, &pool, version, expected)?;
            if round > 0 {
                row.add(bytes as u64, seconds, cpu);
            }
        }
    }
    let [of_first, of_newest] = &rows;
    let target =
        at_least("newest version / first version", of_newest.rate() / of_first.rate(), NEWEST_OF_FIRST);
    section(&rows, vec![target])
}

fn change(content: &mut [u8], draw: &mut Draw) {
    let pages = content.len() / PAGE_BYTES;
    for _ in 0..pages / CHANGED_ONE_IN {
        let at = usize::try_from(draw.next() % pages.max(1) as u64).unwrap_or(0) * PAGE_BYTES;
        if let Some(page) = content.get_mut(at..at + PAGE_BYTES) {
            draw.fill(page);
        }
    }
}

/// Gets a version into a local file, cold; fails if it is not what was written.
fn get(bench: &Bench, pool: &LocalPool, version: usize, expected: &[u8]) -> Result<(f64, f64), Error> {
    let target = tempfile::Builder::new().prefix("got-").tempdir_in(&bench.dir)?;
    let file = target.path().join("file");
    transfer::drop_caches()?;
    let before = cpu::seconds_with(&pool.pids(""));
    let began = Instant::now();
    pool.run(&["get", &format!("versions/run.N0.T0@{version}"), "-o", &file.to_string_lossy()])?;
    let seconds = began.elapsed().as_secs_f64();
    let cpu = cpu::seconds_with(&pool.pids("")) - before;
    if std::fs::read(&file)? != expected {
        return Err(Error(format!("version {version} is not what was written")));
    }
    Ok((seconds, cpu))
}

/// Random numbers that its seed determines (xorshift64*).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes());
        }
    }
}
