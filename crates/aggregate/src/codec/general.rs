//! The general compressors: zstd and gzip.
//!
//! Relies on the `zstd` and `flate2` crates. The idea: nothing but settings; a zstd window always spans the block, so
//! that equal pieces of different ranks are found however far apart they lie.

use std::io::{Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{CParameter, ParamSwitch, Strategy};

use super::scratch;
use super::step::{CodecError, Result};

/// From this level on, time is no object and long-distance matching is switched on.
const LEVEL_DENSE: i32 = 16;
/// From this level on the window is as wide as blocks are, which costs nothing: all of a block is in memory.
const LEVEL_WIDE: i32 = 3;
/// The logarithm of that width.
const WIDE_LOG: u32 = 23;
/// In place of a level: the fastest search, which skips ahead in growing steps where it finds nothing.
pub(crate) const HASTY: i32 = 0;
/// In place of a level: entropy coding alone, without a search for repeats.
pub(crate) const ENTROPY_ONLY: i32 = i32::MIN;
/// Bytes that the search of [`HASTY`] skips at first where it finds nothing.
const HASTE: u32 = 6;
/// Most contexts of a kind that are kept: making one takes longer than coding a small block.
const KEPT_MAX: usize = 8;

/// Contexts that wait for the next block.
struct Contexts {
    compressors: Vec<(i32, Compressor<'static>)>,
    decompressors: Vec<Decompressor<'static>>,
}

static KEPT: Mutex<Contexts> = Mutex::new(Contexts { compressors: Vec::new(), decompressors: Vec::new() });

fn kept() -> MutexGuard<'static, Contexts> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One frame.
pub(crate) fn zstd(bytes: &[u8], level: i32) -> Result<Vec<u8>> {
    // The dense levels' contexts take many times their block, and no time to speak of in theirs.
    if level >= LEVEL_DENSE {
        return compressor(level).and_then(|mut compressor| compressor.compress(bytes)).map_err(refused);
    }
    with_zstd(bytes, level, |packed| {
        let mut kept = scratch::empty(packed.len());
        kept.extend_from_slice(packed);
        kept
    })
}

/// Calls `take` with one frame, in memory that is used again.
pub(crate) fn with_zstd<T>(bytes: &[u8], level: i32, take: impl FnOnce(&[u8]) -> T) -> Result<T> {
    let mut compressor = kept_compressor(level)?;
    let mut packed = scratch::empty(zstd::zstd_safe::compress_bound(bytes.len()));
    compressor.compress_to_buffer(bytes, &mut packed).map_err(refused)?;
    let taken = take(&packed);
    scratch::give_back(packed);
    let mut kept = kept();
    if kept.compressors.len() < KEPT_MAX {
        kept.compressors.push((level, compressor));
    }
    Ok(taken)
}

fn kept_compressor(level: i32) -> Result<Compressor<'static>> {
    let mut kept = kept();
    match kept.compressors.iter().position(|(kept_level, _)| *kept_level == level) {
        Some(at) => Ok(kept.compressors.swap_remove(at).1),
        None => compressor(level).map_err(refused),
    }
}

fn refused(error: std::io::Error) -> CodecError {
    CodecError::damaged("zstd", error)
}

fn compressor(level: i32) -> std::io::Result<Compressor<'static>> {
    let mut compressor = Compressor::new(if matches!(level, ENTROPY_ONLY | HASTY) { 1 } else { level })?;
    if level == HASTY {
        compressor.set_parameter(CParameter::TargetLength(HASTE))?;
        compressor.set_parameter(CParameter::LiteralCompressionMode(ParamSwitch::Enable))?;
    }
    if level == ENTROPY_ONLY {
        // The search gives up after its first look into every 128 KiB, and what is left are literals.
        compressor.set_parameter(CParameter::Strategy(Strategy::ZSTD_fast))?;
        compressor.set_parameter(CParameter::TargetLength(128 << 10))?;
        compressor.set_parameter(CParameter::HashLog(6))?;
        compressor.set_parameter(CParameter::MinMatch(7))?;
        compressor.set_parameter(CParameter::LiteralCompressionMode(ParamSwitch::Enable))?;
    }
    compressor.set_parameter(CParameter::ContentSizeFlag(false))?;
    compressor.set_parameter(CParameter::ChecksumFlag(false))?;
    if (LEVEL_WIDE..LEVEL_DENSE).contains(&level) {
        compressor.set_parameter(CParameter::WindowLog(WIDE_LOG))?;
        compressor.set_parameter(CParameter::EnableLongDistanceMatching(true))?;
    }
    if level >= LEVEL_DENSE {
        compressor.set_parameter(CParameter::WindowLog(27))?;
        compressor.set_parameter(CParameter::EnableLongDistanceMatching(true))?;
    }
    Ok(compressor)
}

/// A search that goes on from one range to the next, and says what each takes behind those before.
pub(crate) struct Search(zstd::stream::write::Encoder<'static, Length>);

/// Counts what is written.
struct Length(usize);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Search {
    pub(crate) fn begin(level: i32) -> std::io::Result<Self> {
        let mut encoder = zstd::stream::write::Encoder::new(Length(0), level)?;
        encoder.set_parameter(CParameter::WindowLog(WIDE_LOG))?;
        encoder.set_parameter(CParameter::EnableLongDistanceMatching(true))?;
        Ok(Self(encoder))
    }

    /// Bytes that are left of these.
    pub(crate) fn over(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let before = self.0.get_ref().0;
        self.0.write_all(bytes)?;
        self.0.flush()?;
        Ok(self.0.get_ref().0 - before)
    }
}

pub(crate) fn unzstd(bytes: &[u8], length: usize) -> Result<Vec<u8>> {
    let mut plain = scratch::empty(length);
    with_decompressor(|decompressor| decompressor.decompress_to_buffer(bytes, &mut plain))?;
    Ok(plain)
}

/// A frame that holds exactly the bytes for `plain`.
pub(crate) fn unzstd_into(bytes: &[u8], plain: &mut [u8]) -> Result<()> {
    let length = with_decompressor(|decompressor| decompressor.decompress_to_buffer(bytes, plain))?;
    if length == plain.len() { Ok(()) } else { Err(CodecError::damaged("zstd", "a frame of another length")) }
}

fn with_decompressor<T>(work: impl FnOnce(&mut Decompressor<'static>) -> std::io::Result<T>) -> Result<T> {
    let damaged = |error| CodecError::Damaged { step: "zstd", detail: format!("{error}") };
    let waiting = kept().decompressors.pop();
    let mut decompressor = match waiting {
        Some(decompressor) => decompressor,
        None => decompressor_of_own().map_err(damaged)?,
    };
    let done = work(&mut decompressor).map_err(damaged)?;
    let mut kept = kept();
    if kept.decompressors.len() < KEPT_MAX {
        kept.decompressors.push(decompressor);
    }
    Ok(done)
}

fn decompressor_of_own() -> std::io::Result<Decompressor<'static>> {
    let mut decompressor = Decompressor::new()?;
    decompressor.set_parameter(zstd::zstd_safe::DParameter::WindowLogMax(27))?;
    Ok(decompressor)
}

pub(crate) fn gzip(bytes: &[u8], level: u32) -> Result<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(level.min(9)));
    let written = encoder.write_all(bytes).and_then(|()| encoder.finish());
    written.map_err(|error| CodecError::damaged("gzip", error))
}

pub(crate) fn ungzip(bytes: &[u8], length: usize) -> Result<Vec<u8>> {
    let mut plain = Vec::with_capacity(length);
    let mut decoder = flate2::read::GzDecoder::new(bytes).take(length as u64 + 1);
    decoder.read_to_end(&mut plain).map_err(|error| CodecError::damaged("gzip", error))?;
    Ok(plain)
}
