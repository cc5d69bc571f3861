//! The container: sections with hashes, so that each can be read, checked and found again on its own.
//!
//! Pure. Relies on `minicbor`, `blake3` and `zstd`. The idea: every block says in its own record which bytes of which
//! files it holds; the table at the end only makes finding them fast, so losing any part loses only what lay there.

mod frame;
mod record;
mod tables;

pub use frame::{HEADER_LENGTH, Header, SectionKind, TRAILER_LENGTH, Trailer};
pub use record::{BlockRecord, Member, MemberRanges};
pub use tables::{End, FileEntry, Files, Index, IndexEntry, Owner, UnfoldedEntry};

pub(crate) use frame::{find_header, hash, section};
pub(crate) use tables::SET_ID_BITS;

/// First bytes of every container: a name, a byte that is no text, a version.
pub const MAGIC: [u8; 8] = *b"\x8fstdchk\x02";
