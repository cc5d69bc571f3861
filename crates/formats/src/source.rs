//! Where a parser gets its bytes from: anything that can be read at an offset.
//!
//! Relies on nothing. The idea: the parsers stay pure because the caller brings the file, as memory or as a handle.

use std::io;

use crate::variable::Extent;

/// Bytes of known length that can be read at any offset.
pub trait Source {
    /// Length in bytes; must not change while a parser works.
    fn size(&self) -> u64;

    /// Fills `buffer` with the bytes that start at `offset`.
    ///
    /// # Errors
    /// Whatever reading meets, and `UnexpectedEof` when the range doesn't lie inside the source.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// All bytes, where they lie in memory; nobody needs to copy more of them than is looked at then.
    fn as_bytes(&self) -> Option<&[u8]> {
        None
    }

    /// Ranges that are known to be zeros without being read, in order; short ones may be missing.
    ///
    /// # Errors
    /// Those of the system, on asking for the holes.
    fn holes(&self) -> io::Result<Vec<Extent>> {
        Ok(Vec::new())
    }
}

impl Source for [u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let outside = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let start = usize::try_from(offset).map_err(|_| outside())?;
        let end = start.checked_add(buffer.len()).ok_or_else(outside)?;
        buffer.copy_from_slice(self.get(start..end).ok_or_else(outside)?);
        Ok(())
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        Some(self)
    }
}

impl<S: Source + ?Sized> Source for std::sync::Arc<S> {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, buffer)
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        (**self).as_bytes()
    }

    fn holes(&self) -> io::Result<Vec<Extent>> {
        (**self).holes()
    }
}

impl Source for Vec<u8> {
    fn size(&self) -> u64 {
        self.as_slice().size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_at(offset, buffer)
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        Some(self)
    }
}
