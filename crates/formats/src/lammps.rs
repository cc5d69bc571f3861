//! Restart files of LAMMPS, as far as their layout is public (`write_restart.cpp`): the per-process arrays of atoms.
//!
//! Relies on the bounded [`Reader`]. The idea: a file of a multi-file restart is a count of processes and then, per
//! process, a flag, a number and that many doubles; the base file and the header of a single-file restart hold
//! style-dependent records whose length only LAMMPS knows, and are residue.

use crate::reader::Reader;
use crate::reason::{Reason, Result};
use crate::variable::{ByteOrder, DataType, Extent, Kind, Storage, Variable};

const MAGIC: &[u8] = b"LammpS RestartT\0";
const PROCESSES_PER_FILE: i32 = 46;
const PER_PROCESS: i32 = 47;
/// The per-process arrays of a single-file restart begin within this many bytes, behind the header.
const HEADER_MAX: u64 = 1 << 20;
/// Bytes of flag and count before an array.
const ARRAY_HEAD: u64 = 8;

/// Whether a file begins like a restart: by its magic, or as one part of a multi-file restart.
pub(crate) fn is_restart(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
        || (int(head, 0, ByteOrder::Little) == Some(PROCESSES_PER_FILE)
            && int(head, 8, ByteOrder::Little) == Some(PER_PROCESS))
        || (int(head, 0, ByteOrder::Big) == Some(PROCESSES_PER_FILE)
            && int(head, 8, ByteOrder::Big) == Some(PER_PROCESS))
}

fn int(bytes: &[u8], offset: usize, order: ByteOrder) -> Option<i32> {
    let bytes = bytes.get(offset..)?.first_chunk()?;
    Some(match order {
        ByteOrder::Little => i32::from_le_bytes(*bytes),
        ByteOrder::Big => i32::from_be_bytes(*bytes),
    })
}

/// The atoms of every process in the file.
pub(crate) fn parse(reader: &Reader<'_>) -> Result<Vec<Variable>> {
    let start = reader.bytes("restart header", 0, (MAGIC.len() as u64).min(reader.size()))?;
    if start != MAGIC {
        let order = if start.first() == Some(&0) { ByteOrder::Big } else { ByteOrder::Little };
        return arrays(reader, 8, order, 0)?.ok_or(Reason::Invalid { what: "array of atoms", offset: 8 });
    }
    let head = reader.bytes("restart header", 0, HEADER_MAX.min(reader.size()))?;
    let order = if int(&head, 16, ByteOrder::Little) == Some(1) { ByteOrder::Little } else { ByteOrder::Big };
    for offset in 16..head.len() {
        if int(&head, offset, order) != Some(PER_PROCESS) {
            continue;
        }
        // Numbers of the header may look like the beginning of an array.
        if let Some(found) = arrays(reader, offset as u64, order, reader.size() / 2)? {
            return Ok(found);
        }
    }
    Err(Reason::Unsupported("a LAMMPS restart without per-process arrays"))
}

/// Arrays from `offset` to the end of the file, where the magic may stand again, or up to what is no array; `None` unless they fill the file or
/// take more than `most` bytes.
fn arrays(
    reader: &Reader<'_>,
    mut offset: u64,
    order: ByteOrder,
    most: u64,
) -> Result<Option<Vec<Variable>>> {
    let (mut found, start) = (Vec::new(), offset);
    let size = reader.size();
    let tail = size.saturating_sub(MAGIC.len() as u64).max(offset);
    let end = if reader.bytes("end of the restart", tail, size - tail)? == MAGIC { tail } else { size };
    while offset < end {
        let head = match reader.bytes("array of atoms", offset, ARRAY_HEAD) {
            Err(reason) if reason.is_the_end() => return Err(reason),
            head => head.unwrap_or_default(),
        };
        reader.keep::<Variable>(0)?;
        let count = int(&head, 4, order).and_then(|count| u64::try_from(count).ok());
        let (Some(PER_PROCESS), Some(count)) = (int(&head, 0, order), count) else { break };
        let extent = Extent { offset: offset + ARRAY_HEAD, length: count * 8 };
        if extent.end() > end {
            break;
        }
        found.push(atoms(found.len(), extent, order, count));
        offset = extent.end();
    }
    Ok(((offset == end || offset - start > most) && !found.is_empty()).then_some(found))
}

fn atoms(process: usize, extent: Extent, order: ByteOrder, count: u64) -> Variable {
    Variable {
        group: format!("process {process}"),
        name: "atoms".to_owned(),
        data_type: DataType::new(Kind::Float, 8, order),
        shape: vec![count],
        storage: Storage::Plain,
        extents: vec![extent],
    }
}
