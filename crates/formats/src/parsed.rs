//! The one entry: a source in, variables and residue out, and a reason when there are no variables.
//!
//! Relies on the parsers, one per format. The idea: what a parser claims is believed only after it was checked here
//! in one place: every extent inside the file, no two on the same bytes, lengths that agree with type and shape.

use std::collections::HashSet;
use std::fmt;

use stdchk_model::exact::part;

use crate::reader::Reader;
use crate::reason::{Reason, Result};
use crate::source::Source;
use crate::variable::{Extent, Filtered, Storage, Variable};
use crate::{gromacs, hdf5, lammps, netcdf, numpy, safetensors, tensor_file};

/// Most dimensions of a variable; HDF5 allows 32, numpy 64.
pub(crate) const RANK_MAX: usize = 64;

/// A format with a parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// HDF5, which netCDF-4, Enzo, Cactus and `PyTables` write.
    Hdf5,
    /// netCDF classic, 64-bit offset and 64-bit data (CDF-1, CDF-2, CDF-5).
    NetCdf,
    /// safetensors.
    Safetensors,
    /// What `torch.save` writes, once, or several times in a row as in a file of a distributed checkpoint (`.distcp`).
    Torch,
    /// `.npy`.
    Npy,
    /// `.npz`, a zip archive of `.npy`.
    Npz,
    /// Binary restart of LAMMPS.
    Lammps,
    /// Checkpoint of GROMACS (`.cpt`).
    Gromacs,
    /// None of these.
    Unknown,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hdf5 => "HDF5",
            Self::NetCdf => "netCDF-3",
            Self::Safetensors => "safetensors",
            Self::Torch => "PyTorch",
            Self::Npy => "npy",
            Self::Npz => "npz",
            Self::Lammps => "LAMMPS restart",
            Self::Gromacs => "GROMACS checkpoint",
            Self::Unknown => "unknown",
        })
    }
}

/// A file as variables plus residue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// The format that the first bytes announce.
    pub format: Format,
    /// Length of the file in bytes.
    pub size: u64,
    /// What was found, ordered by first byte; no two share a byte.
    pub variables: Vec<Variable>,
    /// Why there are no variables, where the file is all residue.
    pub reason: Option<Reason>,
}

impl Parsed {
    /// The byte ranges that no variable holds, in order.
    #[must_use]
    pub fn residue(&self) -> Vec<Extent> {
        let mut taken: Vec<Extent> =
            self.variables.iter().flat_map(|variable| variable.extents.clone()).collect();
        taken.sort_unstable();
        let mut residue = Vec::new();
        let mut position = 0;
        for extent in taken.into_iter().chain([Extent { offset: self.size, length: 0 }]) {
            if extent.offset > position {
                residue.push(Extent { offset: position, length: extent.offset - position });
            }
            position = extent.end();
        }
        residue
    }
}

type Parser = fn(&Reader<'_>) -> Result<Vec<Variable>>;

/// The parser for a file that begins with `head` (up to 512 bytes).
fn parser_of(head: &[u8]) -> (Format, Parser) {
    match head {
        [0x89, b'H', b'D', b'F', b'\r', b'\n', 0x1a, b'\n', ..] => (Format::Hdf5, hdf5::parse),
        [b'C', b'D', b'F', 1 | 2 | 5, ..] => (Format::NetCdf, netcdf::parse),
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => (Format::Npy, numpy::parse_npy),
        [b'P', b'K', 3, 4, ..] => tensor_file::zip_parser(head),
        [_, _, _, _, _, 0, 0, 0, b'{', ..] => (Format::Safetensors, safetensors::parse),
        _ if lammps::is_restart(head) => (Format::Lammps, lammps::parse),
        _ if gromacs::is_checkpoint(head) => (Format::Gromacs, gromacs::parse),
        _ => (Format::Unknown, |_| Err(Reason::UnknownFormat)),
    }
}

/// Bytes looked at to tell the format.
const HEAD: u64 = 512;

/// Reads the structure of a file. Never fails: a file that can't be understood is all residue, with the reason.
#[must_use]
pub fn parse(source: &dyn Source) -> Parsed {
    let reader = Reader::new(source);
    let size = reader.size();
    let head = reader.bytes("first bytes", 0, HEAD.min(size));
    let (format, found) = match head {
        Ok(head) => {
            let (format, parser) = with_user_block(&reader, parser_of(&head));
            (format, parser(&reader).and_then(|variables| checked(size, variables)))
        }
        Err(reason) => (Format::Unknown, Err(reason)),
    };
    match found {
        Ok(variables) => Parsed { format, size, variables, reason: None },
        Err(reason) => Parsed { format, size, variables: Vec::new(), reason: Some(reason) },
    }
}

/// HDF5 may begin behind a block of the application's own.
fn with_user_block(reader: &Reader<'_>, known: (Format, Parser)) -> (Format, Parser) {
    let behind_user_block = known.0 == Format::Unknown && hdf5::superblock_offset(reader).is_some();
    if behind_user_block { (Format::Hdf5, hdf5::parse) } else { known }
}

/// The variables that hold bytes and of which nothing is wrong, in order of their first byte. What is wrong with one costs this one.
///
/// # Errors
/// The first fault found, when no variable is left.
fn checked(size: u64, variables: Vec<Variable>) -> Result<Vec<Variable>> {
    let mut wrong = None;
    let mut good = Vec::with_capacity(variables.len());
    for variable in variables.into_iter().filter(|variable| variable.stored_bytes() > 0) {
        match check_variable(size, &variable) {
            Ok(()) => good.push(variable),
            Err(reason) => wrong = wrong.or(Some(reason)),
        }
    }
    good.sort_by_key(|variable| variable.extents.first().copied());
    let overlapping = drop_overlapping(&mut good);
    match wrong.or(overlapping) {
        Some(reason) if good.is_empty() => Err(reason),
        _ => Ok(good),
    }
}

fn check_variable(size: u64, variable: &Variable) -> Result<()> {
    let offset = variable.extents.first().map_or(0, |extent| extent.offset);
    let invalid = |what| Err(Reason::Invalid { what, offset });
    if variable.data_type.size == 0 || variable.shape.len() > RANK_MAX {
        return invalid("type or rank of a variable");
    }
    for Extent { offset, length } in variable.extents.iter().copied() {
        if length == 0 || offset.checked_add(length).is_none_or(|end| end > size) {
            return Err(Reason::Truncated { what: "variable", offset, length, size });
        }
    }
    match &variable.storage {
        Storage::Plain | Storage::ColumnMajor
            if variable.element_bytes() != Some(variable.stored_bytes()) =>
        {
            invalid("length of a variable")
        }
        Storage::Chunked(chunks) | Storage::Filtered(Filtered { chunks, .. })
            if chunks.origins.len() != variable.extents.len()
                || chunks.shape.len() != variable.shape.len() =>
        {
            invalid("chunks of a variable")
        }
        Storage::Filtered(filtered) if filtered.skipped.len() != variable.extents.len() => {
            invalid("filters of a variable")
        }
        _ => Ok(()),
    }
}

/// Drops every variable that has a byte of one that begins before it; says what was wrong with the first.
fn drop_overlapping(variables: &mut Vec<Variable>) -> Option<Reason> {
    let mut extents: Vec<(Extent, usize)> = variables
        .iter()
        .enumerate()
        .flat_map(|(number, variable)| variable.extents.iter().map(move |extent| (*extent, number)))
        .collect();
    extents.sort_unstable();
    let (mut furthest, mut overlapping): (Option<(Extent, usize)>, _) = (None, HashSet::new());
    let mut first = None;
    for (extent, number) in extents {
        if let Some((before, other)) = furthest.filter(|(before, _)| extent.offset < before.end()) {
            overlapping.insert(number);
            let path = |number: usize| part(variables.as_slice(), number).path();
            first.get_or_insert_with(|| Reason::Overlap {
                first: path(other),
                second: path(number),
                offset: extent.offset.max(before.offset),
            });
        }
        if furthest.is_none_or(|(before, _)| extent.end() > before.end()) {
            furthest = Some((extent, number));
        }
    }
    let mut number = 0..;
    variables.retain(|_| number.next().is_some_and(|number| !overlapping.contains(&number)));
    first
}
