//! Thousands of damaged and hostile files of every format: no panic, no hang, no read outside the file.
//!
//! Relies on `fixtures/` and on a seeded generator, so that a failure comes again. The idea: whatever the damage, what
//! comes back must still be a partition of the file, so that its bytes can be kept exactly.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that meets the unexpected fails here"
)]

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use stdchk_formats::{Parsed, Source, parse};

/// Files per fixture. Formats whose fixtures are large have several of them, so every format gets ten thousand.
const DAMAGED_FILES: u64 = 10_000;
const DAMAGED_FILES_LARGE: u64 = 3_000;
const LARGE: usize = 4 << 10;
/// A file of some tens of KiB that takes longer than this to read hangs; far more than a loaded machine needs.
const PARSE_TIME_MAX: Duration = Duration::from_secs(30);

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap()
    }

    /// A position, more often near the front, where most structure stands.
    fn position(&mut self, length: usize) -> usize {
        let limit = if self.next().is_multiple_of(2) { length.min(2048) } else { length };
        self.below(limit)
    }
}

/// A source that fails the test when it is asked for bytes that it doesn't have.
struct Strict(Vec<u8>);

impl Source for Strict {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        assert!(offset + buffer.len() as u64 <= self.size(), "read outside the file");
        self.0.read_at(offset, buffer)
    }
}

fn damage(original: &[u8], random: &mut Random) -> Vec<u8> {
    let mut file = original.to_vec();
    for _ in 0..=random.below(4) {
        if file.is_empty() {
            break;
        }
        let at = random.position(file.len());
        match random.below(7) {
            0 => file[at] ^= 1 << random.below(8),
            1 => file[at] = u8::try_from(random.below(256)).unwrap(),
            2 => {
                let width = (1 << random.below(4)).min(file.len() - at);
                file[at..at + width].fill(if random.next().is_multiple_of(2) { 0xff } else { 0 });
            }
            3 => file.truncate(at),
            4 => {
                let from = random.below(file.len());
                let length = random.below(64).min(file.len() - from).min(file.len() - at);
                file.copy_within(from..from + length, at);
            }
            5 => file.insert(at, 0x80),
            _ => {
                let width = 8.min(file.len() - at);
                let address = (random.below(file.len()) as u64).to_le_bytes();
                file[at..at + width].copy_from_slice(&address[..width]);
            }
        }
    }
    file
}

fn assert_partition(parsed: &Parsed, size: u64, name: &str) {
    let variables = parsed.variables.iter().flat_map(|variable| variable.extents.clone());
    let mut all: Vec<_> = variables.chain(parsed.residue()).collect();
    all.sort_unstable();
    let end = all.iter().fold(0, |position, extent| {
        assert_eq!(extent.offset, position, "{name}");
        extent.end()
    });
    assert_eq!(end, size, "{name}");
    assert!(parsed.reason.is_none() || parsed.variables.is_empty(), "{name}");
}

fn fixtures() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension != "py" && extension != "json"));
    paths.sort();
    paths
}

#[test]
fn damaged_files_of_every_format_are_partitioned_without_panic_hang_or_stray_read() {
    let fixtures = fixtures();
    assert!(fixtures.len() >= 15, "fixtures are missing: {fixtures:?}");
    for (number, path) in fixtures.iter().enumerate() {
        let name = path.display().to_string();
        let original = std::fs::read(path).unwrap();
        let mut random = Random(number as u64);
        for _ in 0..if original.len() > LARGE { DAMAGED_FILES_LARGE } else { DAMAGED_FILES } {
            let file = Strict(damage(&original, &mut random));
            let started = Instant::now();
            let parsed = parse(&file);
            assert!(started.elapsed() < PARSE_TIME_MAX, "{name}");
            assert_partition(&parsed, file.size(), &name);
        }
    }
}

#[test]
fn noise_behind_every_magic_is_partitioned() {
    let magics: [&[u8]; 8] = [
        b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0",
        b"\x89HDF\r\n\x1a\n\x02\x08\x08\0",
        b"CDF\x01",
        b"CDF\x05",
        b"\x93NUMPY\x01\0\x20\0",
        b"PK\x03\x04",
        b"\x20\0\0\0\0\0\0\0{",
        b"\0\x02\x9f\x29",
    ];
    let mut random = Random(99);
    for round in 0..2000 {
        let magic = magics[round % magics.len()];
        let small = random.next().is_multiple_of(2);
        let noise =
            (0..random.below(3000)).map(|_| u8::try_from(random.below(if small { 4 } else { 256 })).unwrap());
        let file = Strict(magic.iter().copied().chain(noise).collect());
        assert_partition(&parse(&file), file.size(), "noise");
    }
}
