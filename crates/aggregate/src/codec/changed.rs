//! What differs from the base set: the elements that changed, and how far each is from the one before.
//!
//! Relies on [`super::planes`] and [`super::general`]. The idea: when few elements change here and there, what costs is to
//! say where, and a count of unchanged elements, entropy-coded, comes within a few percent of the least that it can be.

use stdchk_model::exact::{narrow, part_mut};

use super::step::{CodecError, Result};
use super::{general, planes};

/// Level at which the changed elements are coded.
const LEVEL: i32 = 1;
/// A gap of this many elements and more begins with this byte, and goes on in the next.
const LONG: u8 = 255;

/// The changed elements in planes, the gaps, and bytes behind the last whole element.
pub(crate) fn forward(bytes: &[u8], base: &[u8], size: usize, out: &mut Vec<u8>) -> Result<()> {
    if bytes.len() != base.len() {
        return Err(CodecError::Unsuitable { step: "changed", detail: "the base has another length" });
    }
    let (mut changed, mut gaps) = (Vec::new(), Vec::new());
    let mut unchanged = 0_usize;
    let elements = bytes.chunks_exact(size);
    let tail = elements.remainder();
    for (element, base) in elements.zip(base.chunks_exact(size)) {
        if element == base {
            unchanged += 1;
        } else {
            changed.extend_from_slice(element);
            put_gap(&mut gaps, unchanged);
            unchanged = 0;
        }
    }
    let packed = planes::compress(&changed, size, false, LEVEL, &[])?;
    planes::put_counted(out, changed.len(), &packed);
    general::with_zstd(&gaps, general::ENTROPY_ONLY, |packed| planes::put_counted(out, gaps.len(), packed))?;
    out.extend_from_slice(tail);
    Ok(())
}

fn put_gap(gaps: &mut Vec<u8>, mut gap: usize) {
    while gap >= usize::from(LONG) {
        gaps.push(LONG);
        gap -= usize::from(LONG);
    }
    gaps.push(narrow(gap));
}

/// The inverse of [`forward`].
pub(crate) fn backward(body: &[u8], base: &[u8], size: usize, length: usize) -> Result<Vec<u8>> {
    let damaged = |detail| CodecError::damaged("changed", detail);
    if base.len() != length {
        return Err(damaged("the base has another length"));
    }
    let mut rest = body;
    let counted = |rest: &mut _, limit| planes::take_counted(rest, limit).ok_or_else(|| damaged("it is cut"));
    let (changed_length, packed) = counted(&mut rest, length)?;
    let changed = planes::decompress(packed, size, false, changed_length)?;
    let (gaps_length, packed) = counted(&mut rest, length)?;
    let gaps = general::unzstd(packed, gaps_length)?;
    let mut out = base.to_vec();
    let whole = length / size * size;
    let mut targets = part_mut(&mut out, ..whole).chunks_exact_mut(size);
    let mut gaps = gaps.iter();
    for element in changed.chunks(size) {
        let target = next_gap(&mut gaps).and_then(|gap| targets.nth(gap));
        let target = target.filter(|target| target.len() == element.len());
        target.ok_or_else(|| damaged("a gap leads out of the block"))?.copy_from_slice(element);
    }
    match out.get_mut(whole..).filter(|end| end.len() == rest.len()) {
        Some(end) => end.copy_from_slice(rest),
        None => return Err(damaged("bytes that don't add up")),
    }
    Ok(out)
}

fn next_gap(gaps: &mut std::slice::Iter<'_, u8>) -> Option<usize> {
    let mut gap = 0;
    for byte in gaps {
        gap += usize::from(*byte);
        if *byte != LONG {
            return Some(gap);
        }
    }
    None
}
