//! The statements of the undo log and their bytes. Pure: encoding and decoding, no files.
//!
//! The one idea: a record says what was true *before* a change, in absolute terms, so making it true twice is the same
//! as once. Each record carries a check keyed with the store's own key, at its head and at its end: a record cut off by
//! a killed writer is recognised, and the records that other processes appended after it are found again.
//!
//! Byte map (integers little-endian):
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | [`MAGIC`] |
//! | 4 | 1 | kind |
//! | 5 | 3 | zero |
//! | 8 | 8 | inode of the file (0 for `Absent`) |
//! | 16 | 8 | offset, size, permission bits, or 1 for a moved directory |
//! | 24 | 8 | modification time, in ns since the epoch (`Size`), or length in bytes (`Hole`, `Cloned`) |
//! | 32 | 4 | payload length |
//! | 36 | 4 | length of the first path in the payload |
//! | 40 | 8 | check over 0..40 and, unless the kind is `Data`, the payload |
//! | 48 | n | payload: path, two paths, or old bytes |
//! | 48+n | 8 | the check again, inverted |

/// The first four bytes of every record: "SFS1".
pub const MAGIC: u32 = 0x3153_4653;
/// Bytes before the payload.
pub const HEAD_BYTES: usize = 48;
/// Bytes after the payload.
pub const TAIL_BYTES: usize = 8;
/// The longest payload of one record: old contents are cut into pieces of this size, so that reading a log back needs
/// no more memory than this. Paths are far shorter.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// The key of a store: makes foreign bytes, such as a protected copy of another log, never look like records.
pub type Key = [u8; 32];

/// An inode number: within one store's file system, the identity of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Inode(pub u64);

/// A path relative to the protected root, as bytes.
pub type RelativePath = Vec<u8>;

/// One statement about the state before a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Nothing stood under this name.
    Absent {
        /// The name.
        path: RelativePath,
    },
    /// The file `inode` stood under `from`; then it was moved to `to`. Files that a program deletes or replaces are
    /// moved into the store, so that their contents and their inode stay. Those that a program moves into the tree are said to
    /// come from the store's trash, where a restore puts them.
    Moved {
        /// The file or directory moved.
        inode: Inode,
        /// Where it stood.
        from: RelativePath,
        /// Where it was moved to.
        to: RelativePath,
        /// Whether it is a directory, so that what lies below it moved too.
        directory: bool,
    },
    /// The file `inode`, then at `path`, was `size` bytes long and last modified at `modified_ns`.
    Size {
        /// The file.
        inode: Inode,
        /// Where it stood then.
        path: RelativePath,
        /// Its length in bytes.
        size: u64,
        /// Its modification time, in nanoseconds since the epoch.
        modified_ns: i64,
    },
    /// The file `inode` held `bytes` at `offset`.
    Data {
        /// The file.
        inode: Inode,
        /// Where in the file.
        offset: u64,
        /// What stood there.
        bytes: Vec<u8>,
    },
    /// The file `inode` had no blocks in `offset..offset + length`: it reads as zeros there.
    Hole {
        /// The file.
        inode: Inode,
        /// Where in the file.
        offset: u64,
        /// How many bytes.
        length: u64,
    },
    /// The file `inode` held in `offset..offset + length` what the kept file `kept` holds there: it shares its blocks.
    Cloned {
        /// The file.
        inode: Inode,
        /// Where in both files.
        offset: u64,
        /// How many bytes.
        length: u64,
        /// The kept file's path, relative to the root.
        kept: RelativePath,
    },
    /// The file `inode`, then at `path`, had these permission bits.
    Mode {
        /// The file.
        inode: Inode,
        /// Where it stood then.
        path: RelativePath,
        /// Permission bits, as in `chmod`.
        bits: u32,
    },
}

/// The fixed part of a record, as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    kind: u8,
    inode: u64,
    number: u64,
    time: i64,
    payload_bytes: u32,
    first_bytes: u32,
    check: u64,
}

const ABSENT: u8 = 1;
const MOVED: u8 = 2;
const SIZE: u8 = 3;
const DATA: u8 = 4;
const MODE: u8 = 5;
const HOLE: u8 = 6;
const CLONED: u8 = 7;

impl Head {
    /// The length of the payload in bytes.
    pub fn payload_len(&self) -> usize {
        self.payload_bytes as usize
    }

    /// The length of the whole record in bytes.
    pub fn record_len(&self) -> u64 {
        HEAD_BYTES as u64 + u64::from(self.payload_bytes) + TAIL_BYTES as u64
    }

    /// For old contents: the file, where in it and how many bytes. Lets a reader pass over them.
    pub fn as_data(&self) -> Option<(Inode, u64, u64)> {
        (self.kind == DATA).then_some((Inode(self.inode), self.number, u64::from(self.payload_bytes)))
    }

    /// For a hole: the file, where in it and how many bytes.
    pub fn as_hole(&self) -> Option<(Inode, u64, u64)> {
        (self.kind == HOLE).then_some((Inode(self.inode), self.number, self.time.cast_unsigned()))
    }

    /// Reads a head; `None` when these bytes do not begin a record.
    pub fn decode(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let kind = *bytes.get(4)?;
        let head = Self {
            kind,
            inode: long(8)?,
            number: long(16)?,
            time: long(24)?.cast_signed(),
            payload_bytes: word(32)?,
            first_bytes: word(36)?,
            check: long(40)?,
        };
        let sane = word(0)? == MAGIC
            && (ABSENT..=CLONED).contains(&kind)
            && head.payload_len() <= PAYLOAD_BYTES_MAX
            && head.first_bytes <= head.payload_bytes;
        sane.then_some(head)
    }

    /// Whether `tail` closes this record.
    pub fn is_closed_by(&self, tail: &[u8; TAIL_BYTES]) -> bool {
        u64::from_le_bytes(*tail) == !self.check
    }

    /// Whether the head, and the payload unless it is old contents, are what was written.
    pub fn is_authentic(&self, key: &Key, payload: &[u8]) -> bool {
        self.check == self.compute_check(key, payload)
    }

    fn compute_check(&self, key: &Key, payload: &[u8]) -> u64 {
        let mut hasher = blake3::Hasher::new_keyed(key);
        hasher.update(&self.fixed_bytes());
        if self.kind != DATA {
            hasher.update(payload);
        }
        let mut check = [0; 8];
        hasher.finalize_xof().fill(&mut check);
        u64::from_le_bytes(check)
    }

    fn fixed_bytes(&self) -> [u8; 40] {
        let mut bytes = [0; 40];
        let fields: [&[u8]; 7] = [
            &MAGIC.to_le_bytes(),
            &[self.kind, 0, 0, 0],
            &self.inode.to_le_bytes(),
            &self.number.to_le_bytes(),
            &self.time.to_le_bytes(),
            &self.payload_bytes.to_le_bytes(),
            &self.first_bytes.to_le_bytes(),
        ];
        for (to, from) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
            *to = *from;
        }
        bytes
    }
}

/// Head and tail of the record that carries `bytes`, the contents of `inode` at `offset`: a writer sends head, contents
/// and tail in one call, without copying the contents. At most [`PAYLOAD_BYTES_MAX`] bytes; more gives `None`.
pub fn frame_data(
    key: &Key,
    inode: Inode,
    offset: u64,
    bytes: &[u8],
) -> Option<([u8; HEAD_BYTES], [u8; TAIL_BYTES])> {
    frame(key, Head { kind: DATA, inode: inode.0, number: offset, ..BLANK }, bytes)
}

const BLANK: Head =
    Head { kind: 0, inode: 0, number: 0, time: 0, payload_bytes: 0, first_bytes: 0, check: 0 };

fn frame(key: &Key, mut head: Head, payload: &[u8]) -> Option<([u8; HEAD_BYTES], [u8; TAIL_BYTES])> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        return None;
    }
    head.payload_bytes = u32::try_from(payload.len()).ok()?;
    head.check = head.compute_check(key, payload);
    let mut bytes = [0; HEAD_BYTES];
    let check = head.check.to_le_bytes();
    for (to, from) in bytes.iter_mut().zip(head.fixed_bytes().iter().chain(&check)) {
        *to = *from;
    }
    Some((bytes, (!head.check).to_le_bytes()))
}

impl Record {
    /// The record's bytes; `None` when a path or the contents are longer than [`PAYLOAD_BYTES_MAX`].
    pub fn encode(&self, key: &Key) -> Option<Vec<u8>> {
        let pair: Vec<u8>;
        let (kind, inode, payload) = match self {
            Self::Absent { path } => (ABSENT, Inode(0), path.as_slice()),
            Self::Moved { inode, from, to, .. } => {
                pair = [from.as_slice(), to].concat();
                (MOVED, *inode, pair.as_slice())
            }
            Self::Size { inode, path, .. } => (SIZE, *inode, path.as_slice()),
            Self::Data { inode, bytes, .. } => (DATA, *inode, bytes.as_slice()),
            Self::Hole { inode, .. } => (HOLE, *inode, b"".as_slice()),
            Self::Mode { inode, path, .. } => (MODE, *inode, path.as_slice()),
            Self::Cloned { inode, kept, .. } => (CLONED, *inode, kept.as_slice()),
        };
        let (number, time, first) = self.numbers();
        let first_bytes = u32::try_from(first).ok()?;
        let (head, tail) =
            frame(key, Head { kind, inode: inode.0, number, time, first_bytes, ..BLANK }, payload)?;
        Some([&head, payload, &tail].concat())
    }

    /// The number, the time and the length of the first path.
    fn numbers(&self) -> (u64, i64, usize) {
        match self {
            Self::Absent { .. } => (0, 0, 0),
            Self::Moved { from, directory, .. } => (u64::from(*directory), 0, from.len()),
            Self::Size { size, modified_ns, .. } => (*size, *modified_ns, 0),
            Self::Data { offset, .. } => (*offset, 0, 0),
            Self::Hole { offset, length, .. } | Self::Cloned { offset, length, .. } => {
                (*offset, length.cast_signed(), 0)
            }
            Self::Mode { bits, .. } => (u64::from(*bits), 0, 0),
        }
    }

    /// The record with this head and payload; `None` when they do not fit each other.
    pub fn decode(head: &Head, payload: &[u8]) -> Option<Self> {
        let inode = Inode(head.inode);
        let path = || payload.to_vec();
        Some(match head.kind {
            ABSENT => Self::Absent { path: path() },
            MOVED => {
                let (from, to) = payload.split_at_checked(head.first_bytes as usize)?;
                Self::Moved { inode, from: from.to_vec(), to: to.to_vec(), directory: head.number == 1 }
            }
            SIZE => Self::Size { inode, path: path(), size: head.number, modified_ns: head.time },
            DATA => Self::Data { inode, offset: head.number, bytes: path() },
            HOLE => Self::Hole { inode, offset: head.number, length: head.time.cast_unsigned() },
            CLONED => {
                let length = head.time.cast_unsigned();
                Self::Cloned { inode, offset: head.number, length, kept: path() }
            }
            MODE => Self::Mode { inode, path: path(), bits: u32::try_from(head.number).ok()? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    //! Every record comes back as it was; a flipped bit or a foreign key is noticed.

    use super::*;
    use proptest::prelude::*;

    const KEY: Key = [7; 32];

    fn any_path() -> impl Strategy<Value = RelativePath> {
        prop::collection::vec(1u8..=255, 1..60)
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let inode = any::<u64>().prop_map(Inode);
        prop_oneof![
            any_path().prop_map(|path| Record::Absent { path }),
            (inode.clone(), any_path(), any_path(), any::<bool>())
                .prop_map(|(inode, from, to, directory)| Record::Moved { inode, from, to, directory }),
            (inode.clone(), any_path(), any::<u64>(), any::<i64>())
                .prop_map(|(inode, path, size, modified_ns)| Record::Size { inode, path, size, modified_ns }),
            (inode.clone(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..300))
                .prop_map(|(inode, offset, bytes)| Record::Data { inode, offset, bytes }),
            (inode.clone(), any::<u64>(), any::<u64>()).prop_map(|(inode, offset, length)| Record::Hole {
                inode,
                offset,
                length
            }),
            (inode.clone(), any::<u64>(), any::<u64>(), any_path())
                .prop_map(|(inode, offset, length, kept)| Record::Cloned { inode, offset, length, kept }),
            (inode, any_path(), any::<u32>()).prop_map(|(inode, path, bits)| Record::Mode {
                inode,
                path,
                bits
            }),
        ]
    }

    fn decode_all(key: &Key, bytes: &[u8]) -> Option<Record> {
        let head = Head::decode(bytes.get(..HEAD_BYTES)?.try_into().ok()?)?;
        let payload = bytes.get(HEAD_BYTES..HEAD_BYTES + head.payload_len())?;
        let tail = bytes.get(HEAD_BYTES + head.payload_len()..)?.try_into().ok()?;
        (head.is_authentic(key, payload) && head.is_closed_by(tail))
            .then(|| Record::decode(&head, payload))?
    }

    proptest! {
        #[test]
        fn comes_back_as_it_was(record in any_record()) {
            let bytes = record.encode(&KEY).unwrap();
            prop_assert_eq!(decode_all(&KEY, &bytes), Some(record));
        }

        #[test]
        fn a_flipped_bit_outside_the_contents_is_noticed(record in any_record(), at in any::<prop::sample::Index>(), bit in 0..8) {
            let mut bytes = record.encode(&KEY).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= 1u8 << bit;
            let in_contents = matches!(record, Record::Data { .. }) && (HEAD_BYTES..bytes.len() - TAIL_BYTES).contains(&at);
            let padding = (5..8).contains(&at);
            prop_assert!(in_contents || padding || decode_all(&KEY, &bytes).is_none());
        }

        #[test]
        fn a_foreign_key_is_noticed(record in any_record()) {
            prop_assert_eq!(decode_all(&[8; 32], &record.encode(&KEY).unwrap()), None);
        }
    }

    #[test]
    fn contents_longer_than_the_limit_are_refused() {
        let bytes = vec![0; PAYLOAD_BYTES_MAX + 1];
        assert_eq!(Record::Data { inode: Inode(1), offset: 0, bytes: bytes.clone() }.encode(&KEY), None);
        assert_eq!(frame_data(&KEY, Inode(1), 0, &bytes), None);
    }
}
