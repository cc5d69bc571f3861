//! The Lorenzo predictor in one to three dimensions: every element minus the sum, with alternating signs, of its
//! neighbours in the unit cube behind it (Ibarria, Lindstrom, Rossignac, Szymczak 2003; the predictor of fpzip).
//!
//! Relies on [`Number`]. The idea: predictions are made in the type's own arithmetic, in one fixed order of operations,
//! so that every machine that follows IEEE 754 predicts the same; NaN predictions count as zero.

use super::lane::{Lane, Number};
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
    let mut out: Vec<[u8; N]> = Vec::with_capacity(elements.len());
    let mut rest = elements;
    for shape in shapes {
        let [depth, height, width] = shape.three();
        let length = depth.saturating_mul(height).saturating_mul(width);
        let Some((member, after)) = rest.split_at_checked(length).filter(|_| length > 0) else { break };
        member_rows::<T, N>(member, height, width, forward, &mut out);
        rest = after;
    }
    if !rest.is_empty() {
        member_rows::<T, N>(rest, 1, rest.len(), forward, &mut out);
    }
    let mut flat = out.into_flattened();
    flat.extend_from_slice(tail);
    flat
}

/// One member: rows of `width`, planes of `height` rows.
fn member_rows<T: Number<Bytes = [u8; N]>, const N: usize>(
    member: &[[u8; N]],
    height: usize,
    width: usize,
    forward: bool,
    out: &mut Vec<[u8; N]>,
) {
    let zeros = vec![T::default(); width];
    // The plane before and the plane at hand, as numbers.
    let mut before: Vec<T> = Vec::new();
    let mut plane: Vec<T> = Vec::with_capacity(height * width);
    for (number, row) in member.chunks_exact(width).enumerate() {
        let y = number % height;
        if y == 0 && number > 0 {
            std::mem::swap(&mut before, &mut plane);
            plane.clear();
        }
        let above = y.checked_sub(1).and_then(|y| plane.get(y * width..)).unwrap_or(&zeros);
        let behind = before.get(y * width..(y + 1) * width).unwrap_or(&zeros);
        let behind_above =
            y.checked_sub(1).and_then(|y| before.get(y * width..(y + 1) * width)).unwrap_or(&zeros);
        let values = one_row::<T, N>(row, [above, behind, behind_above], forward, out);
        plane.extend_from_slice(&values);
    }
}

/// One row: distances (or elements) go to `out`, the row's numbers come back.
fn one_row<T: Number<Bytes = [u8; N]>, const N: usize>(
    row: &[[u8; N]],
    [above, behind, behind_above]: [&[T]; 3],
    forward: bool,
    out: &mut Vec<[u8; N]>,
) -> Vec<T> {
    let mut values = Vec::with_capacity(row.len());
    let (mut left, mut corner) = (T::default(), T::default());
    let neighbours = above.iter().zip(behind).zip(behind_above);
    for (bytes, ((above, behind), behind_above)) in row.iter().zip(neighbours) {
        // What the three rows say here; the same one element back is `corner`, so it is computed once.
        let face = above.plus(*behind).minus(*behind_above);
        let prediction = left.plus(face.minus(corner));
        let value = if forward { T::from_bytes(*bytes) } else { T::at_distance(*bytes, prediction) };
        out.push(if forward { value.distance_from(prediction) } else { value.to_bytes() });
        values.push(value);
        (left, corner) = (value, face);
    }
    values
}
