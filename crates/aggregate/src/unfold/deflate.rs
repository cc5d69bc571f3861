//! Deflate streams: undone, and made again bit for bit.
//!
//! Relies on `flate2` over zlib itself, and on `preflate-rs`. The idea: nearly all programs call zlib, so the same zlib at the same level
//! gives the same stream, and a byte that says the level is all that must be kept. Of other compressors' streams `preflate-rs` keeps
//! what differs from a prediction. Neither is believed: a stream counts only when it was made again and compared.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};
use preflate_rs::{PreflateConfig, preflate_whole_deflate_stream, recreate_whole_deflate_stream};
use stdchk_model::exact::part;

/// The compressors that make streams again, as containers name them. Another version may make other bytes; the check of each stream tells.
pub(crate) const MAKERS: &str = "zlib 1.3.2, preflate-rs 0.7.6, zstd 1.5.7, lz4 1.10.0";
/// Levels of zlib that compress.
const LEVELS: std::ops::RangeInclusive<u32> = 1..=9;
/// Plain bytes that are compressed to see whether a level is the right one.
const PROBE: usize = 64 << 10;
/// Length of the header of a zlib stream, and of the checksum at its end.
const ZLIB_HEAD: usize = 2;
const ZLIB_TAIL: usize = 4;
/// Longest chains that `preflate-rs` may follow: those of zlib's level 9.
const CHAIN_MAX: u32 = 4096;
/// Of a stream's length, what may differ from the prediction at most: one part in so many.
const CORRECTIONS_SHARE: usize = 16;

/// How a deflate stream is made of its plain bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    /// By zlib at this level.
    Zlib(u32),
    /// By `preflate-rs`, with these corrections; a zlib stream begins with these two bytes.
    Preflate { head: [u8; ZLIB_HEAD], corrections: Vec<u8> },
}

/// The format around deflated bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrapper {
    /// Nothing.
    Raw,
    /// Head and checksum of zlib.
    Zlib,
}

/// The plain bytes of a stream that fills `stored`, at most `limit`.
pub(crate) fn inflate(stored: &[u8], wrapper: Wrapper, limit: usize) -> Option<Vec<u8>> {
    /// Room at first: what compresses well grows by doubling.
    const RATIO: usize = 4;
    let mut plain = Vec::with_capacity(stored.len().saturating_mul(RATIO).clamp(1 << 10, limit.max(1 << 10)));
    let mut inflater = Decompress::new(wrapper == Wrapper::Zlib);
    loop {
        let consumed = usize::try_from(inflater.total_in()).ok()?;
        let rest = stored.get(consumed..)?;
        match inflater.decompress_vec(rest, &mut plain, FlushDecompress::Finish).ok()? {
            Status::StreamEnd => break,
            _ if plain.len() < plain.capacity() => return None,
            _ if plain.len() >= limit => return None,
            _ => plain.reserve_exact(plain.len().min(limit - plain.len())),
        }
    }
    let whole = inflater.total_in() == stored.len() as u64 && plain.len() <= limit;
    whole.then_some(plain)
}

/// How the stream is made of these plain bytes: seen by making it. `level` is what the file says of its level; `usual` is the level of
/// the streams before it.
pub(crate) fn maker_of(
    stored: &[u8],
    plain: &[u8],
    wrapper: Wrapper,
    level: Option<u32>,
    usual: &AtomicU32,
) -> Option<Maker> {
    let mut levels: Vec<u32> = match level {
        Some(level) => vec![level],
        None => [usual.load(Ordering::Relaxed), 6, 9, 1].into_iter().chain(LEVELS).collect(),
    };
    levels.retain(|level| LEVELS.contains(level));
    // To look at the beginning first pays where there is another level to be tried.
    let several = levels.len() > 1 && plain.len() > 2 * PROBE;
    let mut tried = Vec::new();
    for level in levels {
        if tried.contains(&level) || (several && !begins_by_level(stored, plain, wrapper, level)) {
            tried.push(level);
            continue;
        }
        tried.push(level);
        if deflated(plain, wrapper, level, stored.len()).is_some_and(|made| made == stored) {
            usual.store(level, Ordering::Relaxed);
            return Some(Maker::Zlib(level));
        }
    }
    by_preflate(stored, plain, wrapper)
}

/// Whether zlib at this level makes the first bytes of the stream.
fn begins_by_level(stored: &[u8], plain: &[u8], wrapper: Wrapper, level: u32) -> bool {
    let mut compress = Compress::new(Compression::new(level), wrapper == Wrapper::Zlib);
    let mut made = vec![0; stored.len().min(2 * PROBE)];
    let probe = part(plain, ..plain.len().min(PROBE));
    if compress.compress(probe, &mut made, FlushCompress::None).is_err() {
        return false;
    }
    usize::try_from(compress.total_out())
        .ok()
        .and_then(|length| made.get(..length))
        .is_some_and(|made| stored.starts_with(made))
}

thread_local! {
    /// The compressor that the thread used last: its memory, a quarter of a mebibyte, takes as long to be had as a short stream to be made.
    static LAST: Cell<Option<(u32, Wrapper, Compress)>> = const { Cell::new(None) };
}

/// The stream that zlib makes of the bytes, unless it is longer than `limit`.
pub(super) fn deflated(plain: &[u8], wrapper: Wrapper, level: u32, limit: usize) -> Option<Vec<u8>> {
    /// Where all room is used up, zlib doesn't say that it has ended.
    const ROOM_AT_END: usize = 16;
    if !LEVELS.contains(&level) {
        return None;
    }
    let mut made = Vec::with_capacity(limit + ROOM_AT_END);
    let last = LAST.take().filter(|(last, its, _)| (*last, *its) == (level, wrapper));
    let mut compress = match last {
        Some((.., mut compress)) => {
            compress.reset();
            compress
        }
        None => Compress::new(Compression::new(level), wrapper == Wrapper::Zlib),
    };
    let ended = compress.compress_vec(plain, &mut made, FlushCompress::Finish);
    LAST.set(Some((level, wrapper, compress)));
    matches!(ended, Ok(Status::StreamEnd)).then_some(made)
}

fn by_preflate(stored: &[u8], plain: &[u8], wrapper: Wrapper) -> Option<Maker> {
    let (head, body) = match wrapper {
        Wrapper::Raw => ([0; ZLIB_HEAD], stored),
        Wrapper::Zlib => {
            let (head, rest) = stored.split_first_chunk()?;
            (*head, rest.get(..rest.len().checked_sub(ZLIB_TAIL)?)?)
        }
    };
    let config = PreflateConfig {
        max_chain_length: CHAIN_MAX,
        plain_text_limit: plain.len() + 1,
        verify_compression: false,
    };
    // It refuses a stream that it can't take apart, or panics.
    let analysed = catch_unwind(|| preflate_whole_deflate_stream(body, &config)).ok()?.ok()?.0;
    let (corrections, whole) = (analysed.corrections, analysed.compressed_size == body.len());
    if !whole || corrections.len() > stored.len() / CORRECTIONS_SHARE {
        return None;
    }
    let maker = Maker::Preflate { head, corrections };
    (made(&maker, plain, wrapper, stored.len())? == stored).then_some(maker)
}

/// The stream that the maker makes of these bytes; none if it makes no stream of this length.
pub(crate) fn made(maker: &Maker, plain: &[u8], wrapper: Wrapper, length: usize) -> Option<Vec<u8>> {
    let made = match maker {
        Maker::Zlib(level) => deflated(plain, wrapper, *level, length)?,
        Maker::Preflate { head, corrections } => {
            let recreate = || recreate_whole_deflate_stream(plain, corrections);
            // Corrections from outside may lead it anywhere, a panic included.
            let body = catch_unwind(AssertUnwindSafe(recreate)).ok()?.ok()?;
            match wrapper {
                Wrapper::Raw => body,
                Wrapper::Zlib => [head.as_slice(), &body, &adler_32(plain).to_be_bytes()].concat(),
            }
        }
    };
    (made.len() == length).then_some(made)
}

/// The checksum of a zlib stream (RFC 1950).
fn adler_32(bytes: &[u8]) -> u32 {
    const MODULUS: u32 = 65_521;
    /// Most bytes whose sums stay below 2^32.
    const RUN: usize = 5552;
    let (mut one, mut other) = (1_u32, 0_u32);
    for run in bytes.chunks(RUN) {
        for byte in run {
            one += u32::from(*byte);
            other += one;
        }
        (one, other) = (one % MODULUS, other % MODULUS);
    }
    other << 16 | one
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> Vec<u8> {
        (0..40_000_u32).flat_map(|n| (f64::from(n) / 500.0).sin().to_le_bytes()).collect()
    }

    #[test]
    fn streams_of_every_level_of_zlib_are_told_by_their_level() {
        let plain = plain();
        for wrapper in [Wrapper::Raw, Wrapper::Zlib] {
            for level in LEVELS {
                let stored = deflated(&plain, wrapper, level, 1 << 20).unwrap();
                assert_eq!(inflate(&stored, wrapper, plain.len()).unwrap(), plain);
                let maker = maker_of(&stored, &plain, wrapper, None, &AtomicU32::new(0)).unwrap();
                assert!(matches!(maker, Maker::Zlib(_)), "level {level}: {maker:?}");
                assert_eq!(made(&maker, &plain, wrapper, stored.len()).unwrap(), stored);
            }
        }
    }

    #[test]
    fn the_checksum_is_that_of_zlib() {
        let plain = plain();
        let stored = deflated(&plain, Wrapper::Zlib, 6, 1 << 20).unwrap();
        assert_eq!(stored[stored.len() - ZLIB_TAIL..], adler_32(&plain).to_be_bytes());
    }

    #[test]
    fn a_stream_of_another_level_than_the_file_says_is_made_by_corrections() {
        let plain = plain();
        for wrapper in [Wrapper::Raw, Wrapper::Zlib] {
            let stored = deflated(&plain, wrapper, 6, 1 << 20).unwrap();
            let maker = maker_of(&stored, &plain, wrapper, Some(1), &AtomicU32::new(0)).unwrap();
            assert!(matches!(maker, Maker::Preflate { .. }));
            assert_eq!(made(&maker, &plain, wrapper, stored.len()).unwrap(), stored);
        }
    }

    #[test]
    fn streams_with_bytes_behind_them_cut_ones_and_too_long_ones_are_none() {
        let plain = plain();
        let stored = deflated(&plain, Wrapper::Zlib, 6, 1 << 20).unwrap();
        let longer = [stored.as_slice(), &[0]].concat();
        assert_eq!(inflate(&longer, Wrapper::Zlib, 1 << 20), None);
        assert_eq!(inflate(&stored[..stored.len() - 5], Wrapper::Zlib, 1 << 20), None);
        assert_eq!(inflate(&stored, Wrapper::Zlib, plain.len() - 1), None);
        assert_eq!(inflate(&[], Wrapper::Raw, 1 << 20), None);
    }

    #[test]
    fn damaged_corrections_make_another_stream_or_none() {
        let plain = plain();
        let stored = deflated(&plain, Wrapper::Raw, 6, 1 << 20).unwrap();
        let Some(Maker::Preflate { head, corrections }) = by_preflate(&stored, &plain, Wrapper::Raw) else {
            unreachable!("zlib's streams are predicted")
        };
        for at in 0..corrections.len() {
            let mut damaged = corrections.clone();
            damaged[at] ^= 0x55;
            drop(made(&Maker::Preflate { head, corrections: damaged }, &plain, Wrapper::Raw, stored.len()));
        }
        let shorter = Maker::Preflate { head, corrections };
        assert_ne!(made(&shorter, &plain[..100], Wrapper::Raw, stored.len()), Some(stored));
    }
}
