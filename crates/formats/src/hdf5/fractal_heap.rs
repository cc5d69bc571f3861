//! Fractal heaps, as far as new-style groups need them: managed and tiny objects by their identifier.
//!
//! Relies on [`File`]. The idea: a managed object is an offset in the heap's own space; descending from the root by
//! that offset finds the block, and nothing but the path is read.

use super::file::File;
use crate::cursor::Cursor;
use crate::reason::{Reason, Result};

/// What a heap's header says.
pub(crate) struct FractalHeap {
    offset_width: usize,
    length_width: usize,
    table_width: u64,
    block_start: u64,
    block_direct_max: u64,
    root: Option<u64>,
    root_rows: u64,
}

/// Rows of an indirect block that are believed: block sizes double by row, so 64 cover every size.
const ROWS_MAX: u64 = 64;

impl FractalHeap {
    pub(crate) fn open(file: &File<'_, '_>, address: u64) -> Result<Self> {
        let mut cursor = file.reader.cursor_up_to("fractal heap", address, 192)?;
        cursor.expect(b"FRHP\0")?;
        cursor.skip(2)?; // length of an identifier
        let filtered = cursor.u16_le()? != 0;
        cursor.skip(1)?;
        let object_max = u64::from(cursor.u32_le()?);
        // huge identifiers and tree, free space and its manager, six sizes and two counts of objects
        cursor.skip(10 * file.length_width + 2 * file.address_width)?;
        let table_width = u64::from(cursor.u16_le()?);
        let (block_start, block_direct_max) = (file.length(&mut cursor)?, file.length(&mut cursor)?);
        let address_bits = usize::from(cursor.u16_le()?);
        cursor.skip(2)?;
        let root = file.address(&mut cursor)?;
        let root_rows = u64::from(cursor.u16_le()?);
        let plausible =
            table_width > 0 && block_start.is_power_of_two() && block_direct_max.is_power_of_two();
        if filtered || !plausible || root_rows > ROWS_MAX || address_bits > 64 {
            return cursor.invalid();
        }
        let length_width = byte_width(block_direct_max.min(object_max));
        let offset_width = address_bits.div_ceil(8);
        Ok(Self { offset_width, length_width, table_width, block_start, block_direct_max, root, root_rows })
    }

    /// Where in the file an object lies, and its bytes; `identifier` stands at its first byte.
    pub(crate) fn object(&self, file: &File<'_, '_>, identifier: &mut Cursor) -> Result<(u64, Vec<u8>)> {
        let flags = identifier.u8()?;
        match flags >> 4 & 3 {
            MANAGED => {
                let offset = identifier.uint_le(self.offset_width)?;
                let length = identifier.uint_le(self.length_width)?;
                let address = self.find(file, offset)?;
                Ok((address, file.reader.bytes("object in a heap", address, length)?))
            }
            TINY => {
                let length = usize::from(flags & 15) + 1;
                Ok((identifier.offset(), identifier.take(length)?.to_vec()))
            }
            _ => Err(Reason::Unsupported("a link too long for its fractal heap")),
        }
    }

    /// The place in the file of an offset in the heap's space.
    fn find(&self, file: &File<'_, '_>, offset: u64) -> Result<u64> {
        let invalid = Reason::Invalid { what: "offset in a fractal heap", offset };
        let mut address = self.root.ok_or_else(|| invalid.clone())?;
        let (mut rows, mut within) = (self.root_rows, offset);
        while rows > 0 {
            let (row, column, start) = self.locate(rows, within).ok_or_else(|| invalid.clone())?;
            address = self.child(file, address, row, column)?.ok_or_else(|| invalid.clone())?;
            within -= start;
            let size = self.row_size(row).ok_or_else(|| invalid.clone())?;
            rows = if size <= self.block_direct_max { 0 } else { self.rows_of(size) };
        }
        address.checked_add(within).ok_or(invalid)
    }

    /// Bytes of a block of this row: the first two rows have the smallest ones, each later row has blocks of twice the
    /// length. None where that leaves 64 bits.
    fn row_size(&self, row: u64) -> Option<u64> {
        assert!(row < ROWS_MAX, "blocks have at most {ROWS_MAX} rows");
        self.block_start.checked_mul(1 << row.saturating_sub(1))
    }

    /// Rows of an indirect block that covers `size` bytes, at most [`ROWS_MAX`].
    fn rows_of(&self, size: u64) -> u64 {
        let first_row = self.block_start.saturating_mul(self.table_width).max(1);
        u64::from((size / first_row).max(1).ilog2()) + 1
    }

    /// Row, column and first offset of the block that covers `within`.
    fn locate(&self, rows: u64, within: u64) -> Option<(u64, u64, u64)> {
        let mut start: u64 = 0;
        for row in 0..rows {
            let size = self.row_size(row)?;
            let row_bytes = size.checked_mul(self.table_width)?;
            if within - start < row_bytes {
                let column = (within - start) / size;
                return Some((row, column, start + column * size));
            }
            start = start.checked_add(row_bytes)?;
        }
        None
    }

    /// Address of one child of an indirect block: signature, version, heap and offset come before the pointers.
    fn child(&self, file: &File<'_, '_>, block: u64, row: u64, column: u64) -> Result<Option<u64>> {
        file.reader.cursor("indirect block", block, 5)?.expect(b"FHIB\0")?;
        let head = (5 + file.address_width + self.offset_width) as u64;
        let position = head + (row * self.table_width + column) * file.address_width as u64;
        let offset =
            block.checked_add(position).ok_or(Reason::Invalid { what: "indirect block", offset: block })?;
        file.address(&mut file.reader.cursor("indirect block", offset, file.address_width as u64)?)
    }
}

const MANAGED: u8 = 0;
const TINY: u8 = 2;

/// Bytes that hold numbers up to `limit`.
fn byte_width(limit: u64) -> usize {
    (limit.max(1).ilog2() / 8 + 1) as usize
}
