//! One variable as a `.npy` file (format version 1.0), with the type and byte order that it has.
//!
//! Relies on `stdchk-formats`. Pure. The idea: elements are put in row-major order, whatever the extents' order was.

use stdchk_formats::{ByteOrder, DataType, Kind, Storage, Variable};
use stdchk_model::exact::{narrow, to_usize};

/// Header and data; `stored` are the bytes of the variable's extents, one after the other, and the length of all elements
/// together fits 64 bits.
///
/// Chunks that are missing read as zero.
pub(crate) fn npy(variable: &Variable, stored: &[u8]) -> Vec<u8> {
    match &variable.storage {
        Storage::Plain => file("False", variable.data_type, &variable.shape, stored),
        Storage::ColumnMajor => file("True", variable.data_type, &variable.shape, stored),
        Storage::Filtered(_) | Storage::DeflatedNpy | Storage::Encoded => {
            unreachable!("what is compressed was undone, or refused")
        }
        Storage::Chunked(chunks) => {
            let size = variable.data_type.size as usize;
            let Some(length) = variable.element_bytes() else { unreachable!("the caller knows the length") };
            let mut array = vec![0; to_usize(length)];
            let elements =
                chunks.shape.iter().fold(size, |product, length| product.saturating_mul(to_usize(*length)));
            for (origin, chunk) in chunks.origins.iter().zip(stored.chunks(elements.max(1))) {
                place_rows(&mut array, &variable.shape, origin, &chunks.shape, chunk, size);
            }
            file("False", variable.data_type, &variable.shape, &array)
        }
    }
}

/// Copies the rows of a chunk to where they belong; what reaches beyond the array's edge is dropped.
fn place_rows(
    array: &mut [u8],
    shape: &[u64],
    origin: &[u64],
    chunk_shape: &[u64],
    chunk: &[u8],
    size: usize,
) {
    let Some(width) =
        chunk_shape.last().and_then(|width| usize::try_from(*width).ok()).filter(|width| *width > 0)
    else {
        return;
    };
    for (number, row) in chunk.chunks_exact(width * size).enumerate() {
        let Some((first, visible)) = row_place(number as u64, shape, origin, chunk_shape) else { continue };
        let (start, length) = (first.saturating_mul(size), visible.saturating_mul(size));
        let target = array.get_mut(start..start.saturating_add(length));
        if let (Some(target), Some(row)) = (target, row.get(..length)) {
            target.copy_from_slice(row);
        }
    }
}

/// First element of a chunk's row in the array, and how many of its elements lie inside.
fn row_place(number: u64, shape: &[u64], origin: &[u64], chunk_shape: &[u64]) -> Option<(usize, usize)> {
    let (mut left, mut index, mut stride) = (number, 0_u64, 1_u64);
    let last = shape.len().checked_sub(1)?;
    let mut visible = 0;
    for dimension in (0..shape.len()).rev() {
        let (length, start) = (*shape.get(dimension)?, *origin.get(dimension)?);
        let extent = (*chunk_shape.get(dimension)?).max(1);
        let coordinate = if dimension == last {
            visible = length.checked_sub(start)?.min(extent);
            start
        } else {
            let within = left % extent;
            left /= extent;
            start.checked_add(within).filter(|coordinate| *coordinate < length)?
        };
        index = index.checked_add(coordinate.checked_mul(stride)?)?;
        stride = stride.checked_mul(length)?;
    }
    Some((usize::try_from(index).ok()?, usize::try_from(visible).ok()?))
}

fn file(fortran_order: &str, data_type: DataType, shape: &[u64], data: &[u8]) -> Vec<u8> {
    let lengths: String = shape.iter().map(|length| format!("{length},")).collect();
    let description = description(data_type);
    let literal =
        format!("{{'descr': '{description}', 'fortran_order': {fortran_order}, 'shape': ({lengths}), }}");
    // The data begins at a multiple of 64 bytes, behind a newline.
    const HEAD: usize = 10;
    let padded = (HEAD + literal.len() + 1).next_multiple_of(64) - HEAD;
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(narrow::<u16, _>(padded).to_le_bytes());
    bytes.extend(format!("{literal:<width$}\n", width = padded - 1).into_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// numpy's name of a type; bfloat16 has none and comes as unsigned integers.
fn description(data_type: DataType) -> String {
    let order = match (data_type.size, data_type.order) {
        (1, _) => '|',
        (_, ByteOrder::Little) => '<',
        (_, ByteOrder::Big) => '>',
    };
    let (order, letter) = match data_type.kind {
        Kind::Signed => (order, 'i'),
        Kind::Unsigned | Kind::BFloat => (order, 'u'),
        Kind::Float => (order, 'f'),
        Kind::Complex => (order, 'c'),
        Kind::Text => ('|', 'S'),
        Kind::Opaque => ('|', 'V'),
    };
    format!("{order}{letter}{}", data_type.size)
}
