//! Zip archives (APPNOTE 6.3, zip64 included), as far as checkpoint formats use them.
//!
//! Relies on the bounded [`Reader`]. The idea: only the central directory is believed, found from the end; because it
//! also says where its archive begins, archives that follow each other in one file are found from the last to the first.

use crate::cursor::Cursor;
use crate::reader::Reader;
use crate::reason::{Reason, Result};
use crate::variable::Extent;

const END: &[u8; 4] = b"PK\x05\x06";
const END_64: &[u8; 4] = b"PK\x06\x06";
const LOCATOR_64: &[u8; 4] = b"PK\x06\x07";
const CENTRAL: &[u8; 4] = b"PK\x01\x02";
const LOCAL: &[u8; 4] = b"PK\x03\x04";

const END_LENGTH: u64 = 22;
const LOCATOR_LENGTH: u64 = 20;
const CENTRAL_LENGTH: u64 = 46;
const LOCAL_LENGTH: u64 = 30;
/// Longest comment behind the end record.
const COMMENT_MAX: u64 = 65_535;

/// How the bytes of a member are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// They are the member's.
    Stored,
    /// A raw deflate stream.
    Deflated,
    /// In another way, or encrypted.
    Other,
}

/// One member of an archive.
pub(crate) struct Entry {
    pub(crate) name: String,
    /// How its bytes are coded.
    pub(crate) method: Method,
    /// Where its bytes lie in the file.
    pub(crate) data: Extent,
}

/// An archive inside the file.
pub(crate) struct Archive {
    /// Its first byte.
    pub(crate) start: u64,
    pub(crate) entries: Vec<Entry>,
}

/// What the end record says about the central directory.
struct Directory {
    entries: u64,
    /// Relative to the start of the archive.
    offset: u64,
    length: u64,
    /// Where the directory ends in the file: the end records begin here.
    end: u64,
}

/// The archive that ends at byte `end`.
pub(crate) fn entries(reader: &Reader<'_>, end: u64) -> Result<Archive> {
    let directory = directory(reader, find_end(reader, end)?)?;
    let invalid = Reason::Invalid { what: "zip directory", offset: directory.end };
    let position = directory.end.checked_sub(directory.length).ok_or_else(|| invalid.clone())?;
    let start = position.checked_sub(directory.offset).ok_or(invalid)?;
    let mut cursor = reader.cursor("zip directory", position, directory.length)?;
    let mut entries = Vec::new();
    for _ in 0..directory.entries {
        match entry(reader, &mut cursor, start) {
            Ok(entry) => entries.extend(entry),
            Err(reason) if reason.is_the_end() || entries.is_empty() => return Err(reason),
            // Where the next one begins isn't known.
            Err(_) => break,
        }
    }
    Ok(Archive { start, entries })
}

/// Where the end record of the archive that ends at `end` stands.
fn find_end(reader: &Reader<'_>, end: u64) -> Result<u64> {
    let missing = Reason::Invalid { what: "end of the zip archive", offset: end };
    let nearest = end.checked_sub(END_LENGTH).ok_or_else(|| missing.clone())?;
    if reader.bytes("end of the zip archive", nearest, 4)? == END {
        return Ok(nearest);
    }
    let from = nearest.saturating_sub(COMMENT_MAX);
    let tail = reader.bytes("end of the zip archive", from, end - from)?;
    let found = tail.windows(4).rposition(|window| window == END).ok_or(missing)?;
    Ok(from + found as u64)
}

fn directory(reader: &Reader<'_>, position: u64) -> Result<Directory> {
    let mut cursor = reader.cursor("end of the zip archive", position, END_LENGTH)?;
    cursor.expect(END)?;
    cursor.skip(6)?; // disks, entries on this disk
    let entries = u64::from(cursor.u16_le()?);
    let (length, offset) = (u64::from(cursor.u32_le()?), u64::from(cursor.u32_le()?));
    let narrow = Directory { entries, offset, length, end: position };
    Ok(directory_64(reader, position)?.unwrap_or(narrow))
}

/// The wide end record, which stands before its locator, which stands before the narrow one.
fn directory_64(reader: &Reader<'_>, position: u64) -> Result<Option<Directory>> {
    let Some(locator) = position.checked_sub(LOCATOR_LENGTH) else { return Ok(None) };
    if reader.bytes("zip64 locator", locator, 4)? != LOCATOR_64 {
        return Ok(None);
    }
    const RECORD_LENGTH: u64 = 56;
    let Some(record) = locator.checked_sub(RECORD_LENGTH) else { return Ok(None) };
    let mut cursor = reader.cursor("zip64 end", record, RECORD_LENGTH)?;
    cursor.expect(END_64)?;
    cursor.skip(28)?; // size, versions, disks, entries on this disk
    let (entries, length, offset) = (cursor.u64_le()?, cursor.u64_le()?, cursor.u64_le()?);
    Ok(Some(Directory { entries, offset, length, end: record }))
}

/// The next member; none where its bytes are not where the directory says.
fn entry(reader: &Reader<'_>, cursor: &mut Cursor, start: u64) -> Result<Option<Entry>> {
    cursor.expect(CENTRAL)?;
    cursor.skip(4)?; // versions
    let encrypted = cursor.u16_le()? & 1 != 0;
    let method = cursor.u16_le()?;
    cursor.skip(8)?; // time, checksum
    let (compressed, plain) = (cursor.u32_le()?, cursor.u32_le()?);
    let name_length = usize::from(cursor.u16_le()?);
    let (extra_length, comment_length) = (usize::from(cursor.u16_le()?), usize::from(cursor.u16_le()?));
    cursor.skip(8)?; // disk, attributes
    let local = cursor.u32_le()?;
    let name = cursor.text(name_length)?;
    let extra = cursor.part("zip64 extra field", extra_length)?;
    cursor.skip(comment_length)?;
    let Ok((length, local)) = widened(extra, compressed, plain, local) else { return Ok(None) };
    let offset = match start.checked_add(local).map(|offset| data_offset(reader, offset)) {
        Some(Ok(offset)) => offset,
        Some(Err(reason)) if reason.is_the_end() => return Err(reason),
        _ => return Ok(None),
    };
    if offset.checked_add(length).is_none_or(|end| end > reader.size()) {
        return Ok(None);
    }
    reader.keep::<Entry>(name.len())?;
    let method = match method {
        _ if encrypted => Method::Other,
        0 => Method::Stored,
        8 => Method::Deflated,
        _ => Method::Other,
    };
    Ok(Some(Entry { name, method, data: Extent { offset, length } }))
}

/// Length and offset, taken from the extra field where the narrow fields overflow.
fn widened(mut extra: Cursor, compressed: u32, plain: u32, local: u32) -> Result<(u64, u64)> {
    const ZIP_64: u16 = 1;
    let (mut length, mut offset) = (u64::from(compressed), u64::from(local));
    while extra.remaining() >= 4 {
        let (kind, field_length) = (extra.u16_le()?, usize::from(extra.u16_le()?));
        if kind != ZIP_64 {
            extra.skip(field_length)?;
            continue;
        }
        if plain == u32::MAX {
            extra.skip(8)?;
        }
        if compressed == u32::MAX {
            length = extra.u64_le()?;
        }
        if local == u32::MAX {
            offset = extra.u64_le()?;
        }
        break;
    }
    Ok((length, offset))
}

/// First byte of the member whose local header stands at `offset`.
fn data_offset(reader: &Reader<'_>, offset: u64) -> Result<u64> {
    let mut cursor = reader.cursor("zip local header", offset, LOCAL_LENGTH)?;
    cursor.expect(LOCAL)?;
    cursor.skip(22)?;
    let skip = u64::from(cursor.u16_le()?) + u64::from(cursor.u16_le()?);
    Ok(offset + LOCAL_LENGTH + skip)
}

/// Name of the first member, as far as it stands in `head`.
pub(crate) fn first_name(head: &[u8]) -> Option<&[u8]> {
    let length = head.get(26..28)?;
    let length = usize::from(u16::from_le_bytes([*length.first()?, *length.last()?]));
    head.get(30..30 + length)
}

// The directory's entries are at least this long, which bounds their number by the length of the directory.
const _: () = assert!(CENTRAL_LENGTH > LOCAL_LENGTH);
