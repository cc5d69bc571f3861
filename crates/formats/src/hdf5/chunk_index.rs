//! Where the chunks of a dataset lie: the version 1 tree, and the indexes that layout version 4 brought.
//!
//! Relies on [`super::tree`] and [`super::array_index`]. The idea: every index is a list of chunks; the ones that are
//! arrays number the chunks in row-major order, so the number gives the origin.

use super::array_index;
use super::dataset::{Chunk, Layout, Space};
use super::file::File;
use super::tree;
use crate::cursor::Cursor;
use crate::reason::{Reason, Result};
use crate::variable::Extent;

const CHUNK_NODE: u8 = 1;
const CHUNK_TREE_PLAIN: u8 = 10;
const CHUNK_TREE_FILTERED: u8 = 11;

/// The chunks of a dataset as a regular grid.
pub(crate) struct Grid<'shape> {
    pub(crate) chunk: &'shape [u64],
    /// Bytes of a chunk that went through no filter.
    pub(crate) chunk_bytes: u64,
    /// Chunks per dimension.
    counts: Vec<u64>,
}

impl<'shape> Grid<'shape> {
    fn new(chunk: &'shape [u64], space: &Space) -> Result<Self> {
        let invalid = Reason::Invalid { what: "shape of chunks", offset: 0 };
        if chunk.len() != space.shape.len() || chunk.contains(&0) {
            return Err(invalid);
        }
        let product = chunk.iter().try_fold(space.element_size, |all, length| all.checked_mul(*length));
        let counts = space.shape.iter().zip(chunk).map(|(length, chunk)| length.div_ceil(*chunk)).collect();
        Ok(Self { chunk, chunk_bytes: product.ok_or(invalid)?, counts })
    }

    /// Number of chunks in the grid.
    pub(crate) fn len(&self) -> Option<u64> {
        self.counts.iter().try_fold(1_u64, |product, count| product.checked_mul(*count))
    }

    /// Index of the first element of the chunk with this number.
    pub(crate) fn origin(&self, number: u64) -> Vec<u64> {
        let mut left = number;
        let mut origin: Vec<u64> = Vec::with_capacity(self.chunk.len());
        for (count, length) in self.counts.iter().zip(self.chunk).rev() {
            origin.push((left % (*count).max(1)).saturating_mul(*length));
            left /= (*count).max(1);
        }
        origin.reverse();
        origin
    }

    /// The chunk with this number, at this place.
    pub(crate) fn chunk(
        &self,
        file: &File<'_, '_>,
        number: u64,
        extent: Extent,
        skipped: u32,
    ) -> Result<Chunk> {
        kept(file, self.origin(number), extent, skipped)
    }
}

fn kept(file: &File<'_, '_>, origin: Vec<u64>, extent: Extent, skipped: u32) -> Result<Chunk> {
    file.reader.keep::<Chunk>(origin.len() * 8)?;
    Ok(Chunk { origin, extent, skipped })
}

/// Layout versions 1 to 3: a version 1 tree; `shape` is that of one chunk.
pub(crate) fn by_tree_1(
    file: &File<'_, '_>,
    root: Option<u64>,
    shape: &[u64],
    space: &Space,
) -> Result<Layout> {
    let Some(root) = root else { return Ok(Layout::Whole(None)) };
    let grid = Grid::new(shape, space)?;
    let key_length = 8 + 8 * (shape.len() + 1);
    let mut chunks = Vec::new();
    let (leaves, unread) = tree::leaves_1(file, root, CHUNK_NODE, key_length)?;
    // A chunk that isn't found would be taken for one that was never written, and read as zeros.
    if let Some(reason) = unread {
        return Err(reason);
    }
    for (key, offset) in leaves {
        let mut key = Cursor::new("key of a chunk", offset, key);
        let length = u64::from(key.u32_le()?);
        let skipped = key.u32_le()?;
        let origin = shape.iter().map(|_| key.u64_le()).collect::<Result<Vec<_>>>()?;
        if !space.filtered && length != grid.chunk_bytes {
            return key.invalid();
        }
        chunks.push(kept(file, origin, Extent { offset, length }, skipped)?);
    }
    Ok(layout(shape, chunks))
}

/// Chunks in the order of their elements: trees are not visited in order.
fn layout(shape: &[u64], mut chunks: Vec<Chunk>) -> Layout {
    chunks.sort_by(|one, other| one.origin.cmp(&other.origin));
    Layout::Chunked { shape: shape.to_vec(), chunks }
}

/// Layout version 4: the cursor stands behind the class.
pub(crate) fn by_layout_4(file: &File<'_, '_>, cursor: &mut Cursor, space: &Space) -> Result<Layout> {
    let flags = cursor.u8()?;
    let (rank, width) = (usize::from(cursor.u8()?), usize::from(cursor.u8()?));
    let lengths = (0..rank).map(|_| cursor.uint_le(width)).collect::<Result<Vec<_>>>()?;
    let Some((_, shape)) = lengths.split_last() else { return cursor.invalid() };
    let grid = Grid::new(shape, space)?;
    let chunks = match cursor.u8()? {
        1 => single(file, cursor, flags, &grid)?,
        2 => implicit(file, cursor, &grid)?,
        3 => {
            cursor.skip(1)?;
            array_index::fixed(file, file.address(cursor)?, &grid, space.filtered)?
        }
        4 => {
            cursor.skip(5)?;
            array_index::extensible(file, file.address(cursor)?, &grid, space.filtered)?
        }
        5 => {
            cursor.skip(6)?;
            by_tree_2(file, file.address(cursor)?, &grid, space.filtered)?
        }
        _ => return cursor.invalid(),
    };
    Ok(layout(shape, chunks))
}

/// Flag of a single chunk that carries its filtered length.
const SINGLE_FILTERED: u8 = 2;

fn single(file: &File<'_, '_>, cursor: &mut Cursor, flags: u8, grid: &Grid<'_>) -> Result<Vec<Chunk>> {
    let (mut length, mut skipped) = (grid.chunk_bytes, 0);
    if flags & SINGLE_FILTERED != 0 {
        (length, skipped) = (file.length(cursor)?, cursor.u32_le()?);
    }
    let chunk = |offset| grid.chunk(file, 0, Extent { offset, length }, skipped);
    let chunk = file.address(cursor)?.map(chunk).transpose()?;
    Ok(chunk.into_iter().collect())
}

fn implicit(file: &File<'_, '_>, cursor: &mut Cursor, grid: &Grid<'_>) -> Result<Vec<Chunk>> {
    let Some(start) = file.address(cursor)? else { return Ok(Vec::new()) };
    let invalid = Reason::Invalid { what: "number of chunks", offset: cursor.offset() };
    let count = grid.len().ok_or_else(|| invalid.clone())?;
    let mut chunks = Vec::new();
    for number in 0..count {
        let offset = number.checked_mul(grid.chunk_bytes).and_then(|skip| start.checked_add(skip));
        let offset = offset.ok_or_else(|| invalid.clone())?;
        chunks.push(grid.chunk(file, number, Extent { offset, length: grid.chunk_bytes }, 0)?);
    }
    Ok(chunks)
}

fn by_tree_2(file: &File<'_, '_>, root: Option<u64>, grid: &Grid<'_>, filtered: bool) -> Result<Vec<Chunk>> {
    let Some(root) = root else { return Ok(Vec::new()) };
    let tree_type = if filtered { CHUNK_TREE_FILTERED } else { CHUNK_TREE_PLAIN };
    let mut chunks = Vec::new();
    for mut record in tree::records_2(file, root, tree_type)? {
        let Some(offset) = file.address(&mut record)? else { return record.invalid() };
        let scaled = 8 * grid.chunk.len();
        let (mut length, mut skipped) = (grid.chunk_bytes, 0);
        if filtered {
            let Some(width) = record.remaining().checked_sub(4 + scaled) else { return record.invalid() };
            (length, skipped) = (record.uint_le(width)?, record.u32_le()?);
        }
        let mut origin = Vec::with_capacity(grid.chunk.len());
        for chunk in grid.chunk {
            origin.push(record.u64_le()?.saturating_mul(*chunk));
        }
        chunks.push(kept(file, origin, Extent { offset, length }, skipped)?);
    }
    Ok(chunks)
}
