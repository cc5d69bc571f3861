//! What a parser finds: variables with their type, shape and the byte ranges that hold them.
//!
//! Relies on nothing. The idea: enough to group like variables (paper: mcrEngine, section III.A), to choose a numeric
//! codec and to write one variable out, and no more; attributes and everything else stay residue.

use std::fmt;

/// Order of the bytes of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

/// What an element stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Two's complement integer.
    Signed,
    /// Unsigned integer; booleans too.
    Unsigned,
    /// IEEE 754 binary floating point.
    Float,
    /// bfloat16: the upper half of a binary32.
    BFloat,
    /// Pair of IEEE 754 numbers, real part first; the size is that of the pair.
    Complex,
    /// Text of fixed length.
    Text,
    /// Bytes without a numeric meaning: records, references, 8-bit floats.
    Opaque,
}

/// Type of the elements of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DataType {
    /// What an element stands for.
    pub kind: Kind,
    /// Bytes of one element, at least 1.
    pub size: u32,
    /// Order of its bytes; `Little` where there is only one.
    pub order: ByteOrder,
}

impl DataType {
    /// A type; single bytes and bytes without a numeric meaning have no order and are called little-endian.
    #[must_use]
    pub fn new(kind: Kind, size: u32, order: ByteOrder) -> Self {
        let ordered = size > 1 && !matches!(kind, Kind::Text | Kind::Opaque);
        Self { kind, size, order: if ordered { order } else { ByteOrder::Little } }
    }

    /// Plain bytes.
    #[must_use]
    pub fn bytes() -> Self {
        Self::new(Kind::Unsigned, 1, ByteOrder::Little)
    }
}

/// As in the paper's keys: `F32LE`, `I64BE`, `U8`, `BF16LE`, `C128LE`; text and opaque types count bytes: `S16`, `V24`.
impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (letter, unit) = match self.kind {
            Kind::Signed => ("I", 8),
            Kind::Unsigned => ("U", 8),
            Kind::Float => ("F", 8),
            Kind::BFloat => ("BF", 8),
            Kind::Complex => ("C", 8),
            Kind::Text => ("S", 1),
            Kind::Opaque => ("V", 1),
        };
        write!(f, "{letter}{}", u64::from(self.size) * unit)?;
        match self.order {
            _ if self.size == 1 || unit == 1 => Ok(()),
            ByteOrder::Little => f.write_str("LE"),
            ByteOrder::Big => f.write_str("BE"),
        }
    }
}

/// A byte range of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Length in bytes; the end never overflows in a checked variable.
    pub length: u64,
}

impl Extent {
    /// The byte after the last, saturating for ranges that were not checked yet.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// How an array is cut into blocks of equal shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// Shape of every chunk, in elements; chunks at the upper edges may reach beyond the array.
    pub shape: Vec<u64>,
    /// Index of the first element of each chunk, one per extent.
    pub origins: Vec<Vec<u64>>,
}

impl Chunks {
    /// Bytes of one chunk of elements of this type; `None` when the product leaves 64 bits.
    #[must_use]
    pub fn bytes(&self, data_type: DataType) -> Option<u64> {
        self.shape.iter().try_fold(u64::from(data_type.size), |product, length| product.checked_mul(*length))
    }
}

/// One step by which HDF5 changed the bytes of a chunk before it stored them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A zlib stream of this level.
    Deflate(u32),
    /// Byte 0 of all elements of so many bytes, then byte 1 of all, and so on.
    Shuffle(u32),
    /// A checksum of four bytes behind the others.
    Fletcher32,
    /// Another filter, by its registered number.
    Other(u16),
}

/// Chunks that went through filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filtered {
    /// The chunks, one per extent.
    pub chunks: Chunks,
    /// The filters, in the order in which they were applied.
    pub filters: Vec<Filter>,
    /// For each chunk a bit for every filter that it did not go through; bit 0 is the first filter.
    pub skipped: Vec<u32>,
}

impl Filtered {
    /// The filters that a chunk went through, in the order in which they were applied.
    #[must_use]
    pub fn of_chunk(&self, chunk: usize) -> Vec<Filter> {
        let skipped = self.skipped.get(chunk).copied().unwrap_or(0);
        let went_through = |number: usize| number >= 32 || skipped >> number & 1 == 0;
        let numbered = self.filters.iter().copied().enumerate();
        numbered.filter(|(number, _)| went_through(*number)).map(|(_, filter)| filter).collect()
    }
}

/// How the extents hold the elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// All elements in row-major order, one extent after the other.
    Plain,
    /// All elements in column-major order (`.npy` calls it Fortran order).
    ColumnMajor,
    /// Every extent is one chunk, row-major inside; chunks that are missing hold the fill value.
    Chunked(Chunks),
    /// Every extent is one chunk, as its filters left it.
    Filtered(Filtered),
    /// A `.npy` file as one raw deflate stream.
    DeflatedNpy,
    /// The bytes are compressed by the application in a way that isn't read here.
    Encoded,
}

/// One variable of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Path of the group, without slashes at its ends; empty at the root.
    pub group: String,
    /// Name inside the group.
    pub name: String,
    /// Type of its elements.
    pub data_type: DataType,
    /// Elements per dimension; empty for an atomic variable (a scalar).
    pub shape: Vec<u64>,
    /// How the extents hold the elements.
    pub storage: Storage,
    /// The byte ranges, in the order of the elements.
    pub extents: Vec<Extent>,
}

impl Variable {
    /// Group and name as one path.
    #[must_use]
    pub fn path(&self) -> String {
        if self.group.is_empty() { self.name.clone() } else { format!("{}/{}", self.group, self.name) }
    }

    /// The paper's class: `Atomic`, or `Array` with the number of dimensions.
    #[must_use]
    pub fn class(&self) -> String {
        if self.shape.is_empty() { "Atomic".to_owned() } else { format!("Array{}D", self.shape.len()) }
    }

    /// Bytes held by the extents.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.extents.iter().fold(0, |sum, extent| sum.saturating_add(extent.length))
    }

    /// Bytes of all elements, or `None` when the product leaves 64 bits.
    #[must_use]
    pub fn element_bytes(&self) -> Option<u64> {
        self.shape
            .iter()
            .try_fold(u64::from(self.data_type.size), |product, length| product.checked_mul(*length))
    }
}
