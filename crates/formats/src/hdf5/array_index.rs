//! Fixed and extensible arrays: chunk addresses numbered in row-major order.
//!
//! Relies on [`File`]. The idea: both arrays are runs of equal elements at computable places; pages and blocks that
//! were never written are undefined addresses, whose chunks are simply not there.

use stdchk_model::exact::to_usize;

use super::chunk_index::Grid;
use super::dataset::Chunk;
use super::file::File;
use crate::cursor::Cursor;
use crate::reason::{Reason, Result};
use crate::variable::Extent;

/// Bytes of the checksum behind every structure.
const CHECKSUM: u64 = 4;
/// Bytes that say which filters were skipped for a chunk.
const FILTERS: usize = 4;
/// Bits of the number of an element: more are refused.
const NUMBER_BITS_MAX: u32 = 64;

/// One run of elements being read: how they look, and the number of the next.
struct Elements<'grid, 'shape> {
    grid: &'grid Grid<'shape>,
    filtered: bool,
    element_size: u64,
    number: u64,
    chunks: Vec<Chunk>,
}

impl Elements<'_, '_> {
    /// Reads `count` elements at `offset`; says where the next byte lies.
    fn run(&mut self, file: &File<'_, '_>, offset: u64, count: u64) -> Result<u64> {
        let length = count
            .checked_mul(self.element_size)
            .ok_or(Reason::Invalid { what: "array of chunks", offset })?;
        let mut cursor = file.reader.cursor("array of chunks", offset, length)?;
        for _ in 0..count {
            self.one(file, &mut cursor)?;
        }
        Ok(offset + length)
    }

    fn one(&mut self, file: &File<'_, '_>, cursor: &mut Cursor) -> Result<()> {
        let address = file.address(cursor)?;
        let (mut length, mut skipped) = (self.grid.chunk_bytes, 0);
        if self.filtered {
            let Some(width) = to_usize(self.element_size).checked_sub(file.address_width + FILTERS) else {
                return cursor.invalid();
            };
            (length, skipped) = (cursor.uint_le(width)?, cursor.u32_le()?);
        }
        if let Some(offset) = address {
            self.chunks.push(self.grid.chunk(file, self.number, Extent { offset, length }, skipped)?);
        }
        // Blocks that are not there count as many as they would hold, which a hostile header puts near the limit.
        self.number = self.number.saturating_add(1);
        Ok(())
    }
}

/// The chunks of a fixed array.
pub(crate) fn fixed(
    file: &File<'_, '_>,
    address: Option<u64>,
    grid: &Grid<'_>,
    filtered: bool,
) -> Result<Vec<Chunk>> {
    let Some(address) = address else { return Ok(Vec::new()) };
    let mut head = file.reader.cursor_up_to("fixed array", address, 40)?;
    head.expect(b"FAHD\0")?;
    head.skip(1)?;
    let (element_size, page_bits) = (u64::from(head.u8()?), u32::from(head.u8()?));
    let count = file.length(&mut head)?;
    let Some(block) = file.address(&mut head)? else { return Ok(Vec::new()) };
    if page_bits > 32 || element_size < file.address_width as u64 {
        return head.invalid();
    }
    let mut elements = Elements { grid, filtered, element_size, number: 0, chunks: Vec::new() };
    fixed_block(file, block, count, 1 << page_bits, &mut elements)?;
    Ok(elements.chunks)
}

fn fixed_block(
    file: &File<'_, '_>,
    block: u64,
    count: u64,
    page: u64,
    elements: &mut Elements<'_, '_>,
) -> Result<()> {
    file.reader.cursor("fixed array block", block, 4)?.expect(b"FADB")?;
    let head = block + 6 + file.address_width as u64;
    if count <= page {
        return elements.run(file, head, count).map(|_| ());
    }
    let pages = count.div_ceil(page);
    let written = file.reader.bytes("pages of a fixed array", head, pages.div_ceil(8))?;
    let mut offset = head + pages.div_ceil(8) + CHECKSUM;
    for number in 0..pages {
        let in_page = page.min(count - number * page);
        if bit(&written, number) {
            elements.number = number * page;
            elements.run(file, offset, in_page)?;
        }
        offset = next_page(offset, in_page, elements.element_size, block)?;
    }
    Ok(())
}

fn next_page(offset: u64, count: u64, element_size: u64, block: u64) -> Result<u64> {
    let length = count.checked_mul(element_size).and_then(|length| length.checked_add(CHECKSUM));
    length
        .and_then(|length| offset.checked_add(length))
        .ok_or(Reason::Invalid { what: "page", offset: block })
}

/// Bits of page maps are numbered from the highest of each byte.
fn bit(bits: &[u8], number: u64) -> bool {
    let byte = usize::try_from(number / 8).ok().and_then(|index| bits.get(index));
    byte.is_some_and(|byte| byte & (0x80 >> (number % 8)) != 0)
}

/// What the header of an extensible array says.
struct Extensible {
    max_bits: u32,
    index_elements: u64,
    block_elements_min: u64,
    super_pointers_min: u64,
    page: u64,
    /// Elements that were ever set; higher ones are not there.
    limit: u64,
}

/// The chunks of an extensible array.
pub(crate) fn extensible(
    file: &File<'_, '_>,
    address: Option<u64>,
    grid: &Grid<'_>,
    filtered: bool,
) -> Result<Vec<Chunk>> {
    let Some(address) = address else { return Ok(Vec::new()) };
    let mut head = file.reader.cursor_up_to("extensible array", address, 96)?;
    head.expect(b"EAHD\0")?;
    head.skip(1)?;
    let element_size = u64::from(head.u8()?);
    let (max_bits, index_elements) = (u32::from(head.u8()?), u64::from(head.u8()?));
    let (block_elements_min, super_pointers_min) = (u64::from(head.u8()?), u64::from(head.u8()?));
    let page_bits = u32::from(head.u8()?);
    for _ in 0..4 {
        file.length(&mut head)?; // numbers and sizes of blocks
    }
    let limit = file.length(&mut head)?;
    file.length(&mut head)?; // elements realised
    let Some(index) = file.address(&mut head)? else { return Ok(Vec::new()) };
    let powers = block_elements_min.is_power_of_two() && super_pointers_min.is_power_of_two();
    if !powers || max_bits > NUMBER_BITS_MAX || page_bits > 32 || element_size < file.address_width as u64 {
        return head.invalid();
    }
    let page = 1 << page_bits;
    let array = Extensible { max_bits, index_elements, block_elements_min, super_pointers_min, page, limit };
    let mut elements = Elements { grid, filtered, element_size, number: 0, chunks: Vec::new() };
    array.index_block(file, index, &mut elements)?;
    Ok(elements.chunks)
}

impl Extensible {
    /// Number of data blocks and elements of each in the super block with this number.
    fn super_block(&self, number: u32) -> (u64, u64) {
        assert!(
            number <= NUMBER_BITS_MAX,
            "an array has one super block for each bit of the number of its elements"
        );
        // The smallest block has less than 256 elements, so neither leaves 64 bits.
        (1 << (number / 2), self.block_elements_min << number.div_ceil(2))
    }

    fn index_block(&self, file: &File<'_, '_>, address: u64, elements: &mut Elements<'_, '_>) -> Result<()> {
        file.reader.cursor("extensible array index", address, 4)?.expect(b"EAIB")?;
        let head = address + 6 + file.address_width as u64;
        let after_elements = elements.run(file, head, self.index_elements)?;
        let supers = 1 + self.max_bits.saturating_sub(self.block_elements_min.ilog2());
        let direct = 2 * self.super_pointers_min.ilog2();
        let pointers = u64::from(supers.saturating_sub(direct)) + 2 * (self.super_pointers_min - 1);
        let length = pointers * file.address_width as u64;
        let mut cursor = file.reader.cursor("extensible array index", after_elements, length)?;
        for number in 0..supers {
            if elements.number >= self.limit {
                return Ok(());
            }
            if number < direct {
                self.blocks(file, &mut cursor, number, elements)?;
            } else {
                self.secondary(file, &mut cursor, number, elements)?;
            }
        }
        Ok(())
    }

    /// Reads the data blocks of one super block, whose addresses come next.
    fn blocks(
        &self,
        file: &File<'_, '_>,
        cursor: &mut Cursor,
        super_number: u32,
        elements: &mut Elements<'_, '_>,
    ) -> Result<()> {
        let (blocks, count) = self.super_block(super_number);
        for _ in 0..blocks {
            let next = elements.number.saturating_add(count);
            if let Some(address) = file.address(cursor)? {
                self.data_block(file, address, count, elements)?;
            }
            elements.number = next;
        }
        Ok(())
    }

    fn data_block(
        &self,
        file: &File<'_, '_>,
        address: u64,
        count: u64,
        elements: &mut Elements<'_, '_>,
    ) -> Result<()> {
        file.reader.cursor("extensible array block", address, 4)?.expect(b"EADB")?;
        let mut offset = address + 6 + (file.address_width + self.offset_width()) as u64;
        if count <= self.page {
            return elements.run(file, offset, count).map(|_| ());
        }
        offset += CHECKSUM;
        for _ in 0..count / self.page {
            offset = elements.run(file, offset, self.page)? + CHECKSUM;
        }
        Ok(())
    }

    fn offset_width(&self) -> usize {
        self.max_bits.div_ceil(8) as usize
    }

    /// Follows the next address to a super block of its own.
    fn secondary(
        &self,
        file: &File<'_, '_>,
        cursor: &mut Cursor,
        super_number: u32,
        elements: &mut Elements<'_, '_>,
    ) -> Result<()> {
        let (blocks, count) = self.super_block(super_number);
        let Some(address) = file.address(cursor)? else {
            elements.number = elements.number.saturating_add(blocks.saturating_mul(count));
            return Ok(());
        };
        file.reader.cursor("extensible array super block", address, 4)?.expect(b"EASB")?;
        let page_maps =
            if count > self.page { blocks.saturating_mul((count / self.page).div_ceil(8)) } else { 0 };
        let head = (6 + file.address_width + self.offset_width()) as u64;
        let length = blocks.saturating_mul(file.address_width as u64);
        let mut pointers = {
            let start = (address + head).saturating_add(page_maps);
            file.reader.cursor("extensible array super block", start, length)?
        };
        self.blocks(file, &mut pointers, super_number, elements)
    }
}
