//! FPC (Burtscher and Ratanaworabhan, IEEE TC 2009): two hash-table predictors for doubles, the better one's
//! exclusive-or residual stored without its leading zero bytes. The paper's codec for doubles, kept for comparison.
//!
//! Relies on nothing. The idea: as published: the sizes of the tables are the only parameter; three bits say how many
//! leading bytes are zero (four counts as three), one which predictor was used.

use stdchk_model::exact::{part, part_mut, to_usize};

use super::step::{CodecError, Result};

/// Largest tables: 2^20 entries, 16 MiB for both.
const TABLE_BITS_MAX: u32 = 20;

/// The finite context method and its differential variant.
struct Predictors {
    fcm: Vec<u64>,
    dfcm: Vec<u64>,
    fcm_hash: usize,
    dfcm_hash: usize,
    mask: usize,
    last: u64,
}

impl Predictors {
    fn new(table_bits: u32) -> Self {
        let entries = 1_usize << table_bits.clamp(1, TABLE_BITS_MAX);
        let (fcm, dfcm) = (vec![0; entries], vec![0; entries]);
        Self { fcm, dfcm, fcm_hash: 0, dfcm_hash: 0, mask: entries - 1, last: 0 }
    }

    fn predictions(&self) -> (u64, u64) {
        (*part(&self.fcm, self.fcm_hash), part(&self.dfcm, self.dfcm_hash).wrapping_add(self.last))
    }

    fn learn(&mut self, value: u64) {
        let hashed = |hash: usize, shift: u32, part: u64| (hash << shift) ^ to_usize(part & 0xffff_ffff);
        *part_mut(&mut self.fcm, self.fcm_hash) = value;
        self.fcm_hash = hashed(self.fcm_hash, 6, value >> 48) & self.mask;
        let difference = value.wrapping_sub(self.last);
        *part_mut(&mut self.dfcm, self.dfcm_hash) = difference;
        self.dfcm_hash = hashed(self.dfcm_hash, 2, difference >> 40) & self.mask;
        self.last = value;
    }
}

/// The 4-bit codes of all values, two to a byte, then all residuals, then bytes behind the last whole double.
pub(crate) fn compress(bytes: &[u8], table_bits: u32) -> Vec<u8> {
    let (elements, tail) = bytes.as_chunks::<8>();
    let mut predictors = Predictors::new(table_bits);
    let mut codes: Vec<u8> = Vec::with_capacity(elements.len());
    let mut residuals: Vec<u8> = Vec::with_capacity(bytes.len());
    for element in elements {
        let value = u64::from_le_bytes(*element);
        let (fcm, dfcm) = predictors.predictions();
        let (by_fcm, by_dfcm) = (value ^ fcm, value ^ dfcm);
        let (residual, selector) = if by_fcm <= by_dfcm { (by_fcm, 0) } else { (by_dfcm, 8) };
        let zeros = residual.leading_zeros() / 8;
        let (code, kept) = code_of(zeros);
        codes.push(selector | code);
        residuals.extend(residual.to_le_bytes().iter().take(kept));
        predictors.learn(value);
    }
    let mut out: Vec<u8> =
        codes.chunks(2).map(|pair| pair.iter().rev().fold(0, |byte, code| byte << 4 | code)).collect();
    out.extend(residuals);
    out.extend_from_slice(tail);
    out
}

/// Code and stored bytes for a number of leading zero bytes: four is coded as three, eight as seven.
fn code_of(zeros: u32) -> (u8, usize) {
    match zeros {
        0 => (0, 8),
        1 => (1, 7),
        2 => (2, 6),
        3 | 4 => (3, 5),
        5 => (4, 3),
        6 => (5, 2),
        7 => (6, 1),
        _ => (7, 0),
    }
}

/// Stored bytes of a code.
fn kept_of(code: u8) -> usize {
    match code & 7 {
        low @ 0..=3 => 8 - usize::from(low),
        high => 7 - usize::from(high),
    }
}

pub(crate) fn decompress(body: &[u8], table_bits: u32, length: usize) -> Result<Vec<u8>> {
    let short = || CodecError::damaged("fpc", "fewer bytes than the values need");
    let count = length / 8;
    let (codes, mut residuals) = body.split_at_checked(count.div_ceil(2)).ok_or_else(short)?;
    let mut predictors = Predictors::new(table_bits);
    let mut out = Vec::with_capacity(length);
    let nibbles = codes.iter().flat_map(|byte| [byte & 15, byte >> 4]).take(count);
    for code in nibbles {
        let (kept, rest) = residuals.split_at_checked(kept_of(code)).ok_or_else(short)?;
        residuals = rest;
        let residual = kept.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        let (fcm, dfcm) = predictors.predictions();
        let value = residual ^ if code & 8 == 0 { fcm } else { dfcm };
        predictors.learn(value);
        out.extend_from_slice(&value.to_le_bytes());
    }
    out.extend_from_slice(residuals);
    Ok(out)
}
