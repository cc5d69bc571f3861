//! The general compressors: zstd and gzip.
//!
//! Relies on the `zstd` and `flate2` crates. The idea: nothing but settings; a zstd window always spans the block, so
//! that equal pieces of different ranks are found however far apart they lie.

use std::cell::RefCell;
use std::io::{Read, Write};

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{CParameter, ParamSwitch, Strategy};

use super::step::{CodecError, Result};

/// From this level on, time is no object and long-distance matching is switched on.
const LEVEL_DENSE: i32 = 16;
/// In place of a level: bytes are only counted and coded, nothing is looked for.
pub(crate) const ENTROPY_ONLY: i32 = i32::MIN;
/// Longest buffer for a frame that is kept for the next, in bytes.
const KEPT_MAX: usize = 8 << 20;

thread_local! {
    // Making contexts takes longer than a small block, and blocks come by the thousand.
    static COMPRESSORS: RefCell<Vec<(i32, Compressor<'static>, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// One frame.
pub(crate) fn zstd(bytes: &[u8], level: i32) -> Result<Vec<u8>> {
    // The dense levels' contexts take many times their block, and no time to speak of in theirs.
    if level >= LEVEL_DENSE {
        return compressor(level).and_then(|mut compressor| compressor.compress(bytes)).map_err(refused);
    }
    with_zstd(bytes, level, <[u8]>::to_vec)
}

/// Calls `take` with one frame, in memory that is used again.
pub(crate) fn with_zstd<T>(bytes: &[u8], level: i32, take: impl FnOnce(&[u8]) -> T) -> Result<T> {
    COMPRESSORS.with_borrow_mut(|kept| {
        let found = kept.iter().position(|(kept_level, ..)| *kept_level == level);
        let at = found.unwrap_or(kept.len());
        if found.is_none() {
            kept.push((level, compressor(level).map_err(refused)?, Vec::new()));
        }
        let Some((_, compressor, packed)) = kept.get_mut(at) else {
            return Err(CodecError::Unsuitable { step: "zstd", detail: "no context" });
        };
        packed.clear();
        packed.reserve(zstd::zstd_safe::compress_bound(bytes.len()));
        compressor.compress_to_buffer(bytes, packed).map_err(refused)?;
        let taken = take(packed);
        if packed.capacity() > KEPT_MAX {
            *packed = Vec::new();
        }
        Ok(taken)
    })
}

fn refused(error: std::io::Error) -> CodecError {
    CodecError::damaged("zstd", error)
}

fn compressor(level: i32) -> std::io::Result<Compressor<'static>> {
    let mut compressor = Compressor::new(if level == ENTROPY_ONLY { 1 } else { level })?;
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
    if level >= LEVEL_DENSE {
        compressor.set_parameter(CParameter::WindowLog(27))?;
        compressor.set_parameter(CParameter::EnableLongDistanceMatching(true))?;
    }
    Ok(compressor)
}

pub(crate) fn unzstd(bytes: &[u8], length: usize) -> Result<Vec<u8>> {
    let mut plain = Vec::with_capacity(length);
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
    DECOMPRESSOR.with_borrow_mut(|cached| {
        if cached.is_none() {
            let mut decompressor = Decompressor::new().map_err(damaged)?;
            decompressor.set_parameter(zstd::zstd_safe::DParameter::WindowLogMax(27)).map_err(damaged)?;
            *cached = Some(decompressor);
        }
        match cached {
            Some(decompressor) => work(decompressor).map_err(damaged),
            None => Err(CodecError::Unsuitable { step: "zstd", detail: "no context" }),
        }
    })
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
