//! Taking bytes apart in order: integers of any width and order, text, sub-ranges.
//!
//! Relies on nothing but memory already read. The idea: a position that can't leave the bytes, and errors that give
//! the place in the file rather than in the buffer. Parts of one piece share its memory, since headers have many.

use std::rc::Rc;

use crate::reason::{Reason, Result};

/// Bytes of a file, from `offset` on, and a position in them.
#[derive(Clone)]
pub(crate) struct Cursor {
    what: &'static str,
    offset: u64,
    bytes: Rc<Vec<u8>>,
    position: usize,
    end: usize,
}

impl Cursor {
    pub(crate) fn new(what: &'static str, offset: u64, bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self { what, offset, bytes: Rc::new(bytes), position: 0, end }
    }

    /// The next `length` bytes as a piece of their own.
    pub(crate) fn part(&mut self, what: &'static str, length: usize) -> Result<Self> {
        let position = self.position;
        self.skip(length)?;
        Ok(Self { what, position, end: self.position, ..self.clone() })
    }

    /// Where in the file the next byte lies.
    pub(crate) fn offset(&self) -> u64 {
        self.offset + self.position as u64
    }

    /// Bytes not yet taken.
    pub(crate) fn remaining(&self) -> usize {
        self.end - self.position
    }

    pub(crate) fn invalid<T>(&self) -> Result<T> {
        Err(Reason::Invalid { what: self.what, offset: self.offset() })
    }

    /// The next `length` bytes.
    pub(crate) fn take(&mut self, length: usize) -> Result<&[u8]> {
        let end = self.position.checked_add(length).filter(|end| *end <= self.end);
        let Some(bytes) = end.and_then(|end| self.bytes.get(self.position..end)) else {
            return Err(Reason::Invalid { what: self.what, offset: self.offset + self.position as u64 });
        };
        self.position += length;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn skip(&mut self, length: usize) -> Result<()> {
        self.take(length).map(|_| ())
    }

    /// Fails unless the next bytes are `expected`.
    pub(crate) fn expect(&mut self, expected: &[u8]) -> Result<()> {
        let found = self.take(expected.len())? == expected;
        if found { Ok(()) } else { self.invalid() }
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16_le(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32_le(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64_le(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32_be(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64_be(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// A little-endian unsigned integer of `width` bytes, at most 8.
    pub(crate) fn uint_le(&mut self, width: usize) -> Result<u64> {
        if width > 8 {
            return self.invalid();
        }
        Ok(self.take(width)?.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// A length that must be addressable in memory.
    pub(crate) fn length_le(&mut self, width: usize) -> Result<usize> {
        let value = self.uint_le(width)?;
        usize::try_from(value).or_else(|_| self.invalid())
    }

    /// `length` bytes as text; bytes that are no UTF-8 are replaced, since names only label.
    pub(crate) fn text(&mut self, length: usize) -> Result<String> {
        Ok(String::from_utf8_lossy(self.take(length)?).into_owned())
    }
}
