//! Sections: a header of fixed length, a record, a payload.
//!
//! Relies on `blake3`. The idea: the header has a hash of its own, so that after damage the next section is found by
//! looking for a header that verifies, and a length is believed only from such a header.

use stdchk_model::exact::part;

/// Marks the beginning of every section.
const MARK: [u8; 4] = [0x8f, b's', b'c', b'n'];
/// Bytes of a header.
pub const HEADER_LENGTH: usize = 64;
/// Marks the trailer.
const TRAILER_MARK: [u8; 8] = *b"\x8fstdend\x01";
/// Bytes of the trailer, which is the last thing in a container.
pub const TRAILER_LENGTH: usize = 32;

/// Bytes of a hash: half a BLAKE3, enough against every accident; containers are not signed.
pub(crate) const HASH: usize = 16;

/// Truncated BLAKE3-256.
pub(crate) fn hash(bytes: &[u8]) -> [u8; HASH] {
    let mut short = [0; HASH];
    short.copy_from_slice(part(blake3::hash(bytes).as_bytes(), ..HASH));
    short
}

/// What a section is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionKind {
    /// Names and lengths of the files.
    Files,
    /// One block.
    Block,
    /// Where all sections stand.
    End,
    /// The records of blocks once more, next to each other.
    Index,
}

/// The header of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub kind: SectionKind,
    /// Bytes of the record (compressed), which follows the header.
    pub record_length: u64,
    /// Bytes of the payload, which follows the record.
    pub payload_length: u64,
    /// Hash of the record.
    pub record_hash: [u8; HASH],
}

impl Header {
    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_LENGTH] {
        let kind = match self.kind {
            SectionKind::Files => 1_u32,
            SectionKind::Block => 5,
            SectionKind::End => 3,
            SectionKind::Index => 4,
        };
        let mut bytes = Vec::with_capacity(HEADER_LENGTH);
        bytes.extend(MARK);
        bytes.extend(kind.to_le_bytes());
        bytes.extend(self.record_length.to_le_bytes());
        bytes.extend(self.payload_length.to_le_bytes());
        bytes.extend(self.record_hash);
        bytes.extend([0; HASH]);
        let own = hash(&bytes);
        bytes.extend(own.iter().take(8));
        let Ok(bytes) = bytes.try_into() else { unreachable!("the fields are as long as a header") };
        bytes
    }

    /// A header, if these are the bytes of one that verifies.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (body, own) = bytes.get(..HEADER_LENGTH)?.split_at_checked(HEADER_LENGTH - 8)?;
        if !body.starts_with(&MARK) || !hash(body).starts_with(own) {
            return None;
        }
        let kind = match u32::from_le_bytes(*body.get(4..)?.first_chunk()?) {
            1 => SectionKind::Files,
            5 => SectionKind::Block,
            3 => SectionKind::End,
            4 => SectionKind::Index,
            _ => return None,
        };
        Some(Self {
            kind,
            record_length: u64::from_le_bytes(*body.get(8..)?.first_chunk()?),
            payload_length: u64::from_le_bytes(*body.get(16..)?.first_chunk()?),
            record_hash: *body.get(24..)?.first_chunk()?,
        })
    }

    /// Bytes of the whole section; `None` when no file is that long.
    #[must_use]
    pub fn section_length(&self) -> Option<u64> {
        (HEADER_LENGTH as u64).checked_add(self.record_length)?.checked_add(self.payload_length)
    }
}

/// Header and record of a section whose payload, of this length, follows.
pub(crate) fn section(kind: SectionKind, record: &[u8], payload_length: usize) -> Vec<u8> {
    let header = Header {
        kind,
        record_length: record.len() as u64,
        payload_length: payload_length as u64,
        record_hash: hash(record),
    };
    [header.to_bytes().as_slice(), record].concat()
}

/// Where in `bytes` the next header that verifies begins.
pub(crate) fn find_header(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let rest = bytes.get(from..)?;
        let found = from + rest.windows(MARK.len()).position(|window| window == MARK)?;
        if bytes.get(found..).is_some_and(|bytes| Header::from_bytes(bytes).is_some()) {
            return Some(found);
        }
        from = found + 1;
    }
}

/// The last bytes of a container: where the end section begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// First byte of the end section.
    pub end_offset: u64,
}

impl Trailer {
    /// The trailer's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; TRAILER_LENGTH] {
        let mut bytes = Vec::with_capacity(TRAILER_LENGTH);
        bytes.extend(self.end_offset.to_le_bytes());
        let own = hash(&bytes);
        bytes.extend(own);
        bytes.extend(TRAILER_MARK);
        let Ok(bytes) = bytes.try_into() else { unreachable!("the fields are as long as a trailer") };
        bytes
    }

    /// A trailer, if these are the bytes of one that verifies.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; TRAILER_LENGTH]) -> Option<Self> {
        let offset: &[u8; 8] = bytes.first_chunk()?;
        let verifies = bytes.get(8..24)? == hash(offset) && bytes.ends_with(&TRAILER_MARK);
        verifies.then(|| Self { end_offset: u64::from_le_bytes(*offset) })
    }
}
