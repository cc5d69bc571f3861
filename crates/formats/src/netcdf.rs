//! netCDF classic, 64-bit offset and 64-bit data (CDF-1, CDF-2, CDF-5), after the Unidata format specification.
//!
//! Relies on the bounded [`Reader`]. The idea: one header names everything; record variables are one extent per record,
//! joined where records follow each other without a gap. Everything is big-endian.

use stdchk_model::exact::to_usize;

use crate::cursor::Cursor;
use crate::parsed::RANK_MAX;
use crate::reader::Reader;
use crate::reason::{Reason, Result, found};
use crate::variable::{ByteOrder, DataType, Extent, Kind, Storage, Variable};

const DIMENSIONS: u32 = 0x0a;
const VARIABLES: u32 = 0x0b;
const ATTRIBUTES: u32 = 0x0c;
/// Padding of names and values, in bytes.
const ALIGNMENT: u64 = 4;
/// Record count of a file that was still being written: the length of the file counts.
const STREAMING: u64 = u32::MAX as u64;

/// Reading the header from front to back, in the widths of its version.
struct Header<'reader, 'source> {
    reader: &'reader Reader<'source>,
    position: u64,
    /// Counts and lengths have 64 bits (CDF-5).
    wide_counts: bool,
    /// Offsets have 64 bits (CDF-2, CDF-5).
    wide_offsets: bool,
    /// Bytes that a value of an unknown type is taken to have, and whether there was one in an attribute.
    unknown_size: u64,
    met_unknown: bool,
}

impl Header<'_, '_> {
    fn cursor(&mut self, length: u64) -> Result<Cursor> {
        let cursor = self.reader.cursor("netCDF header", self.position, length)?;
        self.position += length;
        Ok(cursor)
    }

    fn u32(&mut self) -> Result<u32> {
        self.cursor(4)?.u32_be()
    }

    fn number(&mut self, wide: bool) -> Result<u64> {
        if wide { self.cursor(8)?.u64_be() } else { self.u32().map(u64::from) }
    }

    fn count(&mut self) -> Result<u64> {
        self.number(self.wide_counts)
    }

    fn offset(&mut self) -> Result<u64> {
        self.number(self.wide_offsets)
    }

    fn invalid<T>(&self) -> Result<T> {
        Err(Reason::Invalid { what: "netCDF header", offset: self.position })
    }

    fn name(&mut self) -> Result<String> {
        let length = self.count()?;
        let Ok(bytes) = usize::try_from(length) else { return self.invalid() };
        let Some(padded) = length.checked_next_multiple_of(ALIGNMENT) else { return self.invalid() };
        self.cursor(padded)?.text(bytes)
    }

    /// The number of entries of a list with this tag; absent lists are two zeros.
    fn list(&mut self, tag: u32) -> Result<u64> {
        let (found, count) = (self.u32()?, self.count()?);
        if found == tag || (found == 0 && count == 0) { Ok(count) } else { self.invalid() }
    }

    fn skip_attributes(&mut self) -> Result<()> {
        for _ in 0..self.list(ATTRIBUTES)? {
            self.name()?;
            let element = self.known_type()?;
            self.met_unknown |= element.is_none();
            let size = element.map_or(self.unknown_size, |known| u64::from(known.size));
            let values = self.count()?.checked_mul(size);
            let padded = values.and_then(|bytes| bytes.checked_next_multiple_of(ALIGNMENT));
            let end = padded.and_then(|bytes| self.position.checked_add(bytes));
            match end {
                Some(end) if end <= self.reader.size() => self.position = end,
                _ => return self.invalid(),
            }
        }
        Ok(())
    }

    fn known_type(&mut self) -> Result<Option<DataType>> {
        let (kind, size) = match self.u32()? {
            1 => (Kind::Signed, 1),
            2 => (Kind::Text, 1),
            3 => (Kind::Signed, 2),
            4 => (Kind::Signed, 4),
            5 => (Kind::Float, 4),
            6 => (Kind::Float, 8),
            7 => (Kind::Unsigned, 1),
            8 => (Kind::Unsigned, 2),
            9 => (Kind::Unsigned, 4),
            10 => (Kind::Signed, 8),
            11 => (Kind::Unsigned, 8),
            _ => return Ok(None),
        };
        Ok(Some(DataType::new(kind, size, ByteOrder::Big)))
    }

    fn dimensions(&mut self) -> Result<Vec<u64>> {
        let count = self.list(DIMENSIONS)?;
        let mut lengths = Vec::new();
        for _ in 0..count {
            self.name()?;
            self.reader.keep::<u64>(0)?;
            lengths.push(self.count()?);
        }
        Ok(lengths)
    }

    fn variable(&mut self, dimensions: &[u64]) -> Result<Declared> {
        let name = self.name()?;
        let rank = self.count()?;
        if rank > RANK_MAX as u64 {
            return self.invalid();
        }
        self.reader.keep::<Variable>(name.len() + RANK_MAX * 8)?;
        let mut shape = Vec::new();
        for _ in 0..rank {
            let index = to_usize(self.count()?);
            let Some(length) = dimensions.get(index) else { return self.invalid() };
            shape.push(*length);
        }
        self.skip_attributes()?;
        let data_type = self.known_type()?;
        // Redundant where the type is known, and may overflow its field.
        let padded = self.count()?;
        let begin = self.offset()?;
        let records = shape.first() == Some(&0);
        let inner = shape.iter().skip(usize::from(records));
        let size = |data_type: DataType| u64::from(data_type.size);
        let bytes =
            data_type.map_or(Some(padded), |known| inner.copied().try_fold(size(known), u64::checked_mul));
        let Some(bytes) = bytes else { return self.invalid() };
        let (known, data_type) = (data_type.is_some(), data_type.unwrap_or(DataType::bytes()));
        Ok(Declared { name, data_type, known, shape, begin, bytes, records })
    }
}

/// A variable as the header declares it.
struct Declared {
    name: String,
    data_type: DataType,
    /// Its type is one of the format's.
    known: bool,
    /// Lengths of the dimensions, 0 for the record dimension.
    shape: Vec<u64>,
    begin: u64,
    /// Bytes of the variable, or of one of its records.
    bytes: u64,
    records: bool,
}

/// Bytes that values of an unknown type may have; the length of an attribute follows from its type.
const UNKNOWN_SIZES: [u64; 5] = [8, 4, 16, 2, 1];

/// All variables of the file. Where an attribute has an unknown type, it is as long as makes the most of what follows.
pub(crate) fn parse(reader: &Reader<'_>) -> Result<Vec<Variable>> {
    let version = reader.cursor("netCDF magic", 3, 1)?.u8()?;
    let (wide_counts, wide_offsets) = (version == 5, version != 1);
    let mut best: Option<Result<Vec<Variable>>> = None;
    for unknown_size in UNKNOWN_SIZES {
        let mut header =
            Header { reader, position: 4, wide_counts, wide_offsets, unknown_size, met_unknown: false };
        let read = read_all(reader, &mut header);
        let found = |read: &Result<Vec<Variable>>| read.as_ref().map_or(0, Vec::len);
        let ends = !header.met_unknown || matches!(&read, Err(reason) if reason.is_the_end());
        if best.as_ref().is_none_or(|best| found(&read) > found(best)) {
            best = Some(read);
        }
        if ends {
            break;
        }
    }
    best.unwrap_or(Err(Reason::Invalid { what: "netCDF header", offset: 4 }))
}

fn read_all(reader: &Reader<'_>, header: &mut Header<'_, '_>) -> Result<Vec<Variable>> {
    let record_count = header.count()?;
    let dimensions = header.dimensions()?;
    header.skip_attributes()?;
    let count = header.list(VARIABLES)?;
    let (mut declared, mut unread) = (Vec::new(), None);
    for _ in 0..count {
        match header.variable(&dimensions) {
            Ok(variable) => declared.push(variable),
            Err(reason) if reason.is_the_end() => return Err(reason),
            Err(reason) => {
                unread = Some(reason);
                break;
            }
        }
    }
    if unread.is_some() {
        // Where records lie depends on all variables.
        declared.retain(|variable| !variable.records);
    }
    let stride = record_stride(&declared).map_or_else(|| header.invalid(), Ok)?;
    let streaming = record_count == STREAMING || record_count == u64::MAX;
    let records = if streaming { records_by_length(reader.size(), &declared, stride) } else { record_count };
    let mut variables = Vec::new();
    for variable in declared.into_iter().filter(|variable| variable.known) {
        match place(reader, variable, records, stride) {
            Ok(variable) => variables.push(variable),
            Err(reason) if reason.is_the_end() => return Err(reason),
            Err(reason) => unread = unread.or(Some(reason)),
        }
    }
    found(variables, unread)
}

/// Bytes from one record to the next: the records of all variables, padded unless there is only one.
fn record_stride(declared: &[Declared]) -> Option<u64> {
    let sizes: Vec<u64> = declared.iter().filter(|variable| variable.records).map(|v| v.bytes).collect();
    match sizes.as_slice() {
        [only] => Some(*only),
        several => several
            .iter()
            .try_fold(0_u64, |sum, bytes| sum.checked_add(bytes.checked_next_multiple_of(ALIGNMENT)?)),
    }
}

/// How many whole records lie behind the first one's first byte; none where no variable has records, or all are empty.
fn records_by_length(size: u64, declared: &[Declared], stride: u64) -> u64 {
    match declared.iter().filter(|variable| variable.records).map(|variable| variable.begin).min() {
        Some(begin) if stride > 0 => size.saturating_sub(begin) / stride,
        _ => 0,
    }
}

fn place(reader: &Reader<'_>, declared: Declared, records: u64, stride: u64) -> Result<Variable> {
    let Declared { name, data_type, mut shape, begin, bytes, records: has_records, .. } = declared;
    let extents = if has_records {
        if let Some(first) = shape.first_mut() {
            *first = records;
        }
        record_extents(reader, begin, bytes, records, stride)?
    } else {
        vec![Extent { offset: begin, length: bytes }]
    };
    Ok(Variable { group: String::new(), name, data_type, shape, storage: Storage::Plain, extents })
}

fn record_extents(
    reader: &Reader<'_>,
    begin: u64,
    bytes: u64,
    records: u64,
    stride: u64,
) -> Result<Vec<Extent>> {
    let invalid = Reason::Invalid { what: "records", offset: begin };
    if bytes == 0 {
        return Ok(Vec::new());
    }
    if stride == bytes {
        let length = bytes.checked_mul(records).ok_or(invalid)?;
        return Ok(vec![Extent { offset: begin, length }]);
    }
    let mut extents = Vec::new();
    for record in 0..records {
        reader.keep::<Extent>(0)?;
        let offset = record.checked_mul(stride).and_then(|skip| begin.checked_add(skip));
        extents.push(Extent { offset: offset.ok_or_else(|| invalid.clone())?, length: bytes });
    }
    Ok(extents)
}
