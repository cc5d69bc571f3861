//! The general compressors: zstd and gzip.
//!
//! Relies on the `zstd` and `flate2` crates. The idea: nothing but settings; a zstd window always spans the block, so
//! that equal pieces of different ranks are found however far apart they lie.

use std::cell::RefCell;
use std::io::{Read, Write};

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

use super::step::{CodecError, Result};

/// From this level on, time is no object and long-distance matching is switched on.
const LEVEL_DENSE: i32 = 16;

thread_local! {
    // Making contexts takes longer than a small block, and blocks come by the thousand.
    static COMPRESSORS: RefCell<Vec<(i32, Compressor<'static>)>> = const { RefCell::new(Vec::new()) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// One frame.
pub(crate) fn zstd(bytes: &[u8], level: i32) -> Result<Vec<u8>> {
    let refused = |error| CodecError::damaged("zstd", error);
    // The dense levels' contexts take many times their block, and no time to speak of in theirs.
    if level >= LEVEL_DENSE {
        return compressor(level).and_then(|mut compressor| compressor.compress(bytes)).map_err(refused);
    }
    COMPRESSORS.with_borrow_mut(|kept| {
        if let Some((_, compressor)) = kept.iter_mut().find(|(kept_level, _)| *kept_level == level) {
            return compressor.compress(bytes).map_err(refused);
        }
        let mut compressor = compressor(level).map_err(refused)?;
        let packed = compressor.compress(bytes).map_err(refused);
        kept.push((level, compressor));
        packed
    })
}

fn compressor(level: i32) -> std::io::Result<Compressor<'static>> {
    let mut compressor = Compressor::new(level)?;
    compressor.set_parameter(CParameter::ContentSizeFlag(false))?;
    compressor.set_parameter(CParameter::ChecksumFlag(false))?;
    if level >= LEVEL_DENSE {
        compressor.set_parameter(CParameter::WindowLog(27))?;
        compressor.set_parameter(CParameter::EnableLongDistanceMatching(true))?;
    }
    Ok(compressor)
}

pub(crate) fn unzstd(bytes: &[u8], length: usize) -> Result<Vec<u8>> {
    let damaged = |error| CodecError::Damaged { step: "zstd", detail: format!("{error}") };
    DECOMPRESSOR.with_borrow_mut(|cached| {
        if cached.is_none() {
            let mut decompressor = Decompressor::new().map_err(damaged)?;
            decompressor.set_parameter(zstd::zstd_safe::DParameter::WindowLogMax(27)).map_err(damaged)?;
            *cached = Some(decompressor);
        }
        match cached {
            Some(decompressor) => decompressor.decompress(bytes, length).map_err(damaged),
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
