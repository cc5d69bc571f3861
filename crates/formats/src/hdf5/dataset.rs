//! One dataset: dataspace, layout and filters make a variable.
//!
//! Relies on [`super::chunk_index`] for chunked layouts. The idea: the layout message alone says where bytes lie; type
//! and shape only label them, and of filtered chunks it is told what they went through.

use super::chunk_index;
use super::datatype::{self, ElementType};
use super::file::File;
use super::object_header::{Message, ObjectHeader};
use crate::cursor::Cursor;
use crate::reason::Result;
use crate::variable::{Chunks, Extent, Filter, Filtered, Storage, Variable};

const DATASPACE: u16 = 0x01;
const EXTERNAL_FILES: u16 = 0x07;
const LAYOUT: u16 = 0x08;
const FILTERS: u16 = 0x0b;

/// One stored chunk: the index of its first element and where it lies.
pub(crate) struct Chunk {
    pub(crate) origin: Vec<u64>,
    pub(crate) extent: Extent,
    /// A bit for each filter that it did not go through.
    pub(crate) skipped: u32,
}

/// What a layout message says.
pub(crate) enum Layout {
    /// All elements in one place; `None` where nothing was allocated.
    Whole(Option<Extent>),
    /// Chunks of this shape.
    Chunked { shape: Vec<u64>, chunks: Vec<Chunk> },
    /// A layout whose bytes aren't in this file, or that isn't read here.
    Elsewhere,
}

/// What a dataset looks like before its chunks are known.
pub(crate) struct Space {
    /// Lengths of the dataset's dimensions.
    pub(crate) shape: Vec<u64>,
    /// Bytes of one element.
    pub(crate) element_size: u64,
    /// Chunks went through filters, so that their stored length differs from their shape's.
    pub(crate) filtered: bool,
    /// These filters, in order; none where the message that names them isn't understood.
    filters: Option<Vec<Filter>>,
}

/// The variable of an object; `None` for groups and for datasets without bytes in this file.
pub(crate) fn variable(
    file: &File<'_, '_>,
    header: &ObjectHeader,
    group: String,
    name: String,
) -> Result<Option<Variable>> {
    let (Some(layout), Some(dataspace)) = (header.first(LAYOUT), header.first(DATASPACE)) else {
        return Ok(None);
    };
    if header.first(EXTERNAL_FILES).is_some() || dataspace.is_shared() {
        return Ok(None);
    }
    let Some(element) = datatype::element_type(file, header)? else { return Ok(None) };
    let Some(shape) = lengths(file, dataspace)? else { return Ok(None) };
    let filters = header.first(FILTERS);
    let filtered = filters.is_some();
    let filters = filters.filter(|message| !message.is_shared());
    let filters = filters.and_then(|message| read_filters(&mut message.cursor()).ok());
    let space = Space { shape, element_size: element.size, filtered, filters };
    Ok(match read_layout(file, layout, &space)? {
        Layout::Whole(Some(extent)) => whole(group, name, &element, &space, extent),
        Layout::Chunked { shape, chunks } => Some(chunked(group, name, &element, &space, shape, chunks)),
        Layout::Whole(None) | Layout::Elsewhere => None,
    })
}

fn whole(
    group: String,
    name: String,
    element: &ElementType,
    space: &Space,
    extent: Extent,
) -> Option<Variable> {
    let shape = [space.shape.as_slice(), &element.inner_shape].concat();
    let mut variable = Variable {
        group,
        name,
        data_type: element.data_type,
        shape,
        storage: Storage::Plain,
        extents: vec![extent],
    };
    // The library may allocate more than the elements need; the rest is residue.
    let used = variable.element_bytes().filter(|used| *used > 0 && *used <= extent.length)?;
    variable.extents = vec![Extent { length: used, ..extent }];
    Some(variable)
}

fn chunked(
    group: String,
    name: String,
    element: &ElementType,
    space: &Space,
    chunk_shape: Vec<u64>,
    chunks: Vec<Chunk>,
) -> Variable {
    let inner = &element.inner_shape;
    let skipped: Vec<u32> = chunks.iter().map(|chunk| chunk.skipped).collect();
    let (origins, extents) = chunks
        .into_iter()
        .map(|chunk| ([chunk.origin.as_slice(), &vec![0; inner.len()]].concat(), chunk.extent))
        .unzip();
    let chunks = Chunks { shape: [chunk_shape.as_slice(), inner].concat(), origins };
    let storage = match (space.filtered, &space.filters) {
        (false, _) => Storage::Chunked(chunks),
        (true, Some(filters)) => Storage::Filtered(Filtered { chunks, filters: filters.clone(), skipped }),
        (true, None) => Storage::Encoded,
    };
    let shape = [space.shape.as_slice(), inner].concat();
    Variable { group, name, data_type: element.data_type, shape, storage, extents }
}

/// Filters from this number on have a name.
const NAMED_FILTER_MIN: u16 = 256;

/// The filters of a pipeline message, in order.
fn read_filters(cursor: &mut Cursor) -> Result<Vec<Filter>> {
    let (version, count) = (cursor.u8()?, cursor.u8()?);
    match version {
        1 => cursor.skip(6)?,
        2 => {}
        _ => return cursor.invalid(),
    }
    (0..count).map(|_| read_filter(cursor, version)).collect()
}

fn read_filter(cursor: &mut Cursor, version: u8) -> Result<Filter> {
    let number = cursor.u16_le()?;
    let named = version == 1 || number >= NAMED_FILTER_MIN;
    let name_length = if named { cursor.u16_le()? } else { 0 };
    cursor.skip(2)?; // flags
    let count = cursor.u16_le()?;
    cursor.skip(usize::from(name_length))?;
    let values = (0..count).map(|_| cursor.u32_le()).collect::<Result<Vec<_>>>()?;
    cursor.skip(if version == 1 && count % 2 == 1 { 4 } else { 0 })?;
    Ok(match (number, values.first()) {
        (1, Some(level)) => Filter::Deflate(*level),
        (2, Some(size)) => Filter::Shuffle(*size),
        (3, _) => Filter::Fletcher32,
        _ => Filter::Other(number),
    })
}

/// Lengths of the dimensions; empty for a scalar, `None` for the null dataspace.
fn lengths(file: &File<'_, '_>, message: &Message) -> Result<Option<Vec<u64>>> {
    let mut cursor = message.cursor();
    let (version, rank) = (cursor.u8()?, usize::from(cursor.u8()?));
    cursor.skip(1)?; // flags
    match version {
        1 => cursor.skip(5)?,
        2 if cursor.u8()? == NULL_SPACE => return Ok(None),
        2 => {}
        _ => return cursor.invalid(),
    }
    (0..rank).map(|_| file.length(&mut cursor)).collect::<Result<Vec<_>>>().map(Some)
}

const NULL_SPACE: u8 = 2;

const COMPACT: u8 = 0;
const CONTIGUOUS: u8 = 1;
const CHUNKED: u8 = 2;

fn read_layout(file: &File<'_, '_>, message: &Message, space: &Space) -> Result<Layout> {
    let mut cursor = message.cursor();
    match cursor.u8()? {
        1 | 2 => layout_old(file, &mut cursor, space),
        version @ (3 | 4) => layout_new(file, &mut cursor, version, space),
        _ => Ok(Layout::Elsewhere),
    }
}

fn layout_old(file: &File<'_, '_>, cursor: &mut Cursor, space: &Space) -> Result<Layout> {
    let (rank, class) = (usize::from(cursor.u8()?), cursor.u8()?);
    cursor.skip(5)?;
    let address = if class == COMPACT { None } else { file.address(cursor)? };
    let lengths = (0..rank).map(|_| cursor.u32_le().map(u64::from)).collect::<Result<Vec<_>>>()?;
    match class {
        COMPACT => {
            let length = u64::from(cursor.u32_le()?);
            Ok(Layout::Whole(Some(Extent { offset: cursor.offset(), length })))
        }
        CONTIGUOUS => {
            let elements =
                space.shape.iter().try_fold(space.element_size, |all, length| all.checked_mul(*length));
            let Some(length) = elements else { return cursor.invalid() };
            Ok(Layout::Whole(address.map(|offset| Extent { offset, length })))
        }
        CHUNKED => {
            let Some((_, shape)) = lengths.split_last() else { return cursor.invalid() };
            chunk_index::by_tree_1(file, address, shape, space)
        }
        _ => cursor.invalid(),
    }
}

fn layout_new(file: &File<'_, '_>, cursor: &mut Cursor, version: u8, space: &Space) -> Result<Layout> {
    match (cursor.u8()?, version) {
        (COMPACT, _) => {
            let length = u64::from(cursor.u16_le()?);
            Ok(Layout::Whole(Some(Extent { offset: cursor.offset(), length })))
        }
        (CONTIGUOUS, _) => {
            let address = file.address(cursor)?;
            let length = file.length(cursor)?;
            Ok(Layout::Whole(address.map(|offset| Extent { offset, length })))
        }
        (CHUNKED, 3) => {
            let rank = usize::from(cursor.u8()?);
            let address = file.address(cursor)?;
            let lengths = (0..rank).map(|_| cursor.u32_le().map(u64::from)).collect::<Result<Vec<_>>>()?;
            let Some((_, shape)) = lengths.split_last() else { return cursor.invalid() };
            chunk_index::by_tree_1(file, address, shape, space)
        }
        (CHUNKED, _) => chunk_index::by_layout_4(file, cursor, space),
        _ => Ok(Layout::Elsewhere),
    }
}
