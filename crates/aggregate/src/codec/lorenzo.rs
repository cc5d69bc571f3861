//! The Lorenzo predictor in one to three dimensions: every element minus the sum, with alternating signs, of its
//! neighbours in the unit cube behind it (Ibarria, Lindstrom, Rossignac, Szymczak 2003; the predictor of fpzip).
//!
//! Relies on [`Number`]. The idea: predictions are made in the type's own arithmetic, in one fixed order of operations,
//! so that every machine that follows IEEE 754 predicts the same; NaN predictions count as zero.

use stdchk_model::exact::part;

use super::lane::{Lane, Number};
use super::scratch;
use super::step::Shape;

/// Distances from the predictions, in place of the elements.
pub(crate) fn forward(lane: Lane, bytes: &[u8], shapes: &[Shape]) -> Vec<u8> {
    run(lane, bytes, shapes, true)
}

/// The inverse of [`forward`].
pub(crate) fn backward(lane: Lane, bytes: &[u8], shapes: &[Shape]) -> Vec<u8> {
    run(lane, bytes, shapes, false)
}

fn run(lane: Lane, bytes: &[u8], shapes: &[Shape], forward: bool) -> Vec<u8> {
    match lane {
        Lane::U16 | Lane::F16 => members::<u16, 2>(bytes, shapes, forward),
        Lane::U32 => members::<u32, 4>(bytes, shapes, forward),
        Lane::U64 => members::<u64, 8>(bytes, shapes, forward),
        Lane::F32 => members::<f32, 4>(bytes, shapes, forward),
        Lane::F64 => members::<f64, 8>(bytes, shapes, forward),
    }
}

/// Every member by its shape; bytes that no shape covers are one flat member, and less than an element stays as it is.
fn members<T: Number<Bytes = [u8; N]>, const N: usize>(
    bytes: &[u8],
    shapes: &[Shape],
    forward: bool,
) -> Vec<u8> {
    let (elements, tail) = bytes.as_chunks::<N>();
    let mut out = scratch::filled(bytes.len());
    let (targets, out_tail) = out.as_chunks_mut::<N>();
    out_tail.copy_from_slice(tail);
    let (mut rest, mut targets) = (elements, targets);
    for shape in shapes {
        let [depth, height, width] = shape.three();
        let length = depth.saturating_mul(height).saturating_mul(width);
        let Some((member, after)) = rest.split_at_checked(length).filter(|_| length > 0) else { break };
        let (target, targets_after) = targets.split_at_mut(length);
        member_rows::<T, N>(member, height, width, forward, target);
        (rest, targets) = (after, targets_after);
    }
    if !rest.is_empty() {
        member_rows::<T, N>(rest, 1, rest.len(), forward, targets);
    }
    out
}

/// One member: rows of `width`, planes of `height` rows. The neighbours of a row are elements, so they stand in what is
/// read when distances are made, and in what was written when they are undone.
fn member_rows<T: Number<Bytes = [u8; N]>, const N: usize>(
    member: &[[u8; N]],
    height: usize,
    width: usize,
    forward: bool,
    out: &mut [[u8; N]],
) {
    let rows = member.len() / width;
    let zeros = vec![[0; N]; if rows > 1 { width } else { 0 }];
    for (number, row) in member.chunks_exact(width).enumerate() {
        let (done, targets) = out.split_at_mut(number * width);
        let elements = if forward { member } else { done };
        // What lies outside the member is zero.
        let back = |rows: usize| match number.checked_sub(rows) {
            Some(row) => part(elements, row * width..(row + 1) * width),
            None => zeros.as_slice(),
        };
        let has_above = !number.is_multiple_of(height);
        if rows == 1 {
            one_row::<T, N>(row, std::iter::repeat(T::default()), forward, targets);
            continue;
        }
        let above = if has_above { back(1) } else { &zeros };
        let behind = back(height);
        let behind_above = if has_above { back(height + 1) } else { &zeros };
        // What the three rows say: the face of the unit cube.
        let faces = above.iter().zip(behind).zip(behind_above).map(|((above, behind), behind_above)| {
            T::from_bytes(*above).plus(T::from_bytes(*behind)).minus(T::from_bytes(*behind_above))
        });
        one_row::<T, N>(row, faces, forward, targets);
    }
}

/// One row: distances (or elements) go to `out`.
fn one_row<T: Number<Bytes = [u8; N]>, const N: usize>(
    row: &[[u8; N]],
    faces: impl Iterator<Item = T>,
    forward: bool,
    out: &mut [[u8; N]],
) {
    let (mut left, mut corner) = (T::default(), T::default());
    let predicted = |left: T, face: T, corner: T| left.plus(face.minus(corner));
    if forward {
        for ((target, bytes), face) in out.iter_mut().zip(row).zip(faces) {
            let value = T::from_bytes(*bytes);
            *target = value.distance_from(predicted(left, face, corner));
            (left, corner) = (value, face);
        }
    } else {
        for ((target, bytes), face) in out.iter_mut().zip(row).zip(faces) {
            let value = T::at_distance(*bytes, predicted(left, face, corner));
            *target = value.to_bytes();
            (left, corner) = (value, face);
        }
    }
}
