//! The superblock, and what every address and length in the file depends on.
//!
//! Relies on the bounded [`Reader`]. The idea: addresses are relative to a base and have a width that only the
//! superblock knows, so all reading by address goes through [`File`].

use crate::cursor::Cursor;
use crate::reader::Reader;
use crate::reason::{Reason, Result};

const SIGNATURE: [u8; 8] = [0x89, b'H', b'D', b'F', b'\r', b'\n', 0x1a, b'\n'];
/// The superblock may stand at 0, 512, 1024 and so on, doubling; further out than this nobody puts it.
const USER_BLOCK_MAX: u64 = 1 << 20;
/// Longest superblock: version 1 with 8-byte addresses has 100 bytes.
const SUPERBLOCK_MAX: u64 = 128;

/// Where the superblock stands.
pub(crate) fn superblock_offset(reader: &Reader<'_>) -> Option<u64> {
    let doubling = std::iter::successors(Some(512), |offset| Some(offset * 2));
    std::iter::once(0)
        .chain(doubling.take_while(|offset| *offset <= USER_BLOCK_MAX))
        .take_while(|offset| offset + SIGNATURE.len() as u64 <= reader.size())
        .find(|offset| reader.bytes("signature", *offset, 8).is_ok_and(|bytes| bytes == SIGNATURE))
}

/// A file whose superblock was read.
pub(crate) struct File<'reader, 'source> {
    pub(crate) reader: &'reader Reader<'source>,
    base: u64,
    /// Bytes of an address.
    pub(crate) address_width: usize,
    /// Bytes of a length.
    pub(crate) length_width: usize,
}

impl<'reader, 'source> File<'reader, 'source> {
    /// The file and the address of its root group's object header.
    pub(crate) fn open(reader: &'reader Reader<'source>) -> Result<(Self, u64)> {
        let offset = superblock_offset(reader).ok_or(Reason::UnknownFormat)?;
        let mut cursor = reader.cursor_up_to("superblock", offset, SUPERBLOCK_MAX)?;
        cursor.skip(SIGNATURE.len())?;
        let version = cursor.u8()?;
        match version {
            0 | 1 => Self::open_old(reader, cursor, version),
            2 | 3 => Self::open_new(reader, cursor),
            _ => Err(Reason::Unsupported("this version of the HDF5 superblock")),
        }
    }

    fn open_old(reader: &'reader Reader<'source>, mut cursor: Cursor, version: u8) -> Result<(Self, u64)> {
        cursor.skip(4)?; // versions of the free space, of the root group, reserved, version of the shared headers
        let mut file = Self::with_widths(reader, &mut cursor)?;
        cursor.skip(1 + 2 + 2 + 4 + if version == 1 { 4 } else { 0 })?; // reserved, ranks of the trees, flags
        file.base = file.raw_address(&mut cursor)?;
        for _ in 0..3 {
            file.raw_address(&mut cursor)?; // free space, end of file, driver information
        }
        file.raw_address(&mut cursor)?; // name of the root group
        let root = file.address(&mut cursor)?;
        root.map_or_else(|| cursor.invalid(), |root| Ok((file, root)))
    }

    fn open_new(reader: &'reader Reader<'source>, mut cursor: Cursor) -> Result<(Self, u64)> {
        let mut file = Self::with_widths(reader, &mut cursor)?;
        cursor.skip(1)?; // flags
        file.base = file.raw_address(&mut cursor)?;
        file.raw_address(&mut cursor)?; // extension
        file.raw_address(&mut cursor)?; // end of file
        let root = file.address(&mut cursor)?;
        root.map_or_else(|| cursor.invalid(), |root| Ok((file, root)))
    }

    fn with_widths(reader: &'reader Reader<'source>, cursor: &mut Cursor) -> Result<Self> {
        let (address_width, length_width) = (usize::from(cursor.u8()?), usize::from(cursor.u8()?));
        let known = |width| matches!(width, 2 | 4 | 8);
        if !known(address_width) || !known(length_width) {
            return cursor.invalid();
        }
        Ok(Self { reader, base: 0, address_width, length_width })
    }

    fn raw_address(&self, cursor: &mut Cursor) -> Result<u64> {
        cursor.uint_le(self.address_width)
    }

    /// An address as an offset inside the file; `None` for the undefined address.
    pub(crate) fn address(&self, cursor: &mut Cursor) -> Result<Option<u64>> {
        let raw = self.raw_address(cursor)?;
        let undefined = u64::MAX >> (64 - 8 * self.address_width);
        if raw == undefined {
            return Ok(None);
        }
        let address = raw.checked_add(self.base).filter(|address| *address <= self.reader.size());
        address.map_or_else(|| cursor.invalid(), |address| Ok(Some(address)))
    }

    pub(crate) fn length(&self, cursor: &mut Cursor) -> Result<u64> {
        cursor.uint_le(self.length_width)
    }
}
