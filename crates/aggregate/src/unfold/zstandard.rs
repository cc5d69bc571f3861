//! Frames of Zstandard: undone, and made again by the library of the version that the container names.
//!
//! Relies on `zstd`. The idea: a writer that gives the library all bytes at once leaves a level and a checksum to be known. Versions of the
//! library make other bytes of what is longer than a block of 128 KiB, and the check of the stream tells.

use std::sync::atomic::{AtomicU32, Ordering};

use zstd::bulk::Compressor;
use zstd::zstd_safe::{CParameter, find_frame_compressed_size, get_frame_content_size};

/// The level that stands for level 0.
const DEFAULT: u32 = 3;
/// Levels that are tried where the file names none: writers take seldom others.
const LEVELS: [u32; 6] = [DEFAULT, 1, 5, 6, 9, 22];
/// Where a frame says that a checksum follows: the byte behind its magic, and the bit.
const DESCRIPTOR: usize = 4;
const HAS_CHECKSUM: u8 = 4;

/// The plain bytes of one frame that says how many these are, at most `limit`.
pub(crate) fn undone(stored: &[u8], limit: usize) -> Option<Vec<u8>> {
    let announced = get_frame_content_size(stored).ok()??;
    let length = usize::try_from(announced).ok().filter(|length| *length <= limit)?;
    let alone = find_frame_compressed_size(stored).ok()? == stored.len();
    let plain = if alone { zstd::bulk::decompress(stored, length).ok()? } else { return None };
    (plain.len() == length).then_some(plain)
}

/// The frame of these bytes.
pub(crate) fn made(plain: &[u8], level: i32, checksum: bool) -> Option<Vec<u8>> {
    let mut compressor = Compressor::new(level).ok()?;
    compressor.set_parameter(CParameter::ChecksumFlag(checksum)).ok()?;
    compressor.compress(plain).ok()
}

/// The level at which the frame is made, and whether it has a checksum, seen by making it. `level` is what the file says of its level.
pub(crate) fn level_of(
    stored: &[u8],
    plain: &[u8],
    level: Option<u32>,
    usual: &AtomicU32,
) -> Option<(u32, bool)> {
    let checksum = stored.get(DESCRIPTOR)? & HAS_CHECKSUM != 0;
    let levels = match level {
        Some(level) => vec![if level == 0 { DEFAULT } else { level }],
        None => [usual.load(Ordering::Relaxed)]
            .into_iter()
            .filter(|level| LEVELS.contains(level))
            .chain(LEVELS)
            .collect(),
    };
    let makes = |level: &u32| {
        let level = i32::try_from(*level).ok();
        level.and_then(|level| made(plain, level, checksum)).is_some_and(|made| made == stored)
    };
    let found = levels.into_iter().find(makes)?;
    usual.store(found, Ordering::Relaxed);
    Some((found, checksum))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_by_their_level_and_come_back() {
        let plain: Vec<u8> =
            (0..90_000_u32).flat_map(|n| (f64::from(n) / 500.0).sin().to_le_bytes()).collect();
        for (level, checksum) in [(1, false), (3, true), (9, false)] {
            let stored = made(&plain, level, checksum).unwrap();
            assert_eq!(undone(&stored, plain.len()).as_ref(), Some(&plain));
            assert_eq!(undone(&stored, plain.len() - 1), None);
            assert_eq!(undone(&stored[..stored.len() - 1], plain.len()), None);
            assert_eq!(undone(&[stored.as_slice(), &[0]].concat(), plain.len()), None);
            let (found, has) = level_of(&stored, &plain, None, &AtomicU32::new(0)).unwrap();
            assert_eq!(made(&plain, i32::try_from(found).unwrap(), has), Some(stored));
        }
        let other = zstd::bulk::compress(&plain, 12).unwrap();
        assert_eq!(level_of(&other, &plain, Some(3), &AtomicU32::new(0)), None);
    }
}
