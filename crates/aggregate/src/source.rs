//! The files of a set as sources: in memory when the budget allows, else read at offsets.
//!
//! Relies on the standard library. The idea: small sets are read once, front to back; large ones are pulled piece by
//! piece, so that memory does not grow with the set.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use stdchk_formats::{Extent, Source};

use crate::error::{AggregateError, Result};

/// A file to be packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Its name in the container: relative, with `/` between its parts.
    pub name: String,
    /// Where it is now.
    pub path: PathBuf,
}

pub(crate) enum Bytes {
    Memory(Vec<u8>),
    Disk(File, u64),
}

/// One opened file.
pub(crate) struct Opened {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) mode: u32,
    bytes: Bytes,
}

impl Opened {
    pub(crate) fn open(input: &Input) -> Result<Self> {
        let file = File::open(&input.path).map_err(AggregateError::io("open", &input.path))?;
        let metadata = file.metadata().map_err(AggregateError::io("look at", &input.path))?;
        if !metadata.is_file() {
            return Err(AggregateError::Invalid(format!("{} is no regular file", input.path.display())));
        }
        let (mode, size) = (metadata.mode() & 0o7777, metadata.len());
        Ok(Self { name: input.name.clone(), path: input.path.clone(), mode, bytes: Bytes::Disk(file, size) })
    }

    /// Reads the whole file, after which the disk is not touched again.
    pub(crate) fn load(&mut self) -> Result<()> {
        if let Bytes::Disk(file, size) = &self.bytes {
            let mut bytes = vec![0; usize::try_from(*size).unwrap_or(usize::MAX)];
            file.read_exact_at(&mut bytes, 0).map_err(AggregateError::io("read", &self.path))?;
            self.bytes = Bytes::Memory(bytes);
        }
        Ok(())
    }

    /// Appends the bytes of the ranges to `buffer`.
    pub(crate) fn append(&self, extents: &[Extent], buffer: &mut Vec<u8>) -> Result<()> {
        for extent in extents {
            self.append_one(*extent, buffer).map_err(AggregateError::io("read", &self.path))?;
        }
        Ok(())
    }

    fn append_one(&self, extent: Extent, buffer: &mut Vec<u8>) -> io::Result<()> {
        let cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let narrow = |value: u64| usize::try_from(value).map_err(|_| cut());
        match &self.bytes {
            Bytes::Memory(bytes) => {
                let range = narrow(extent.offset)?..narrow(extent.end())?;
                buffer.extend_from_slice(bytes.get(range).ok_or_else(cut)?);
                Ok(())
            }
            Bytes::Disk(file, _) => {
                let start = buffer.len();
                buffer.resize(start + narrow(extent.length)?, 0);
                file.read_exact_at(buffer.get_mut(start..).unwrap_or_default(), extent.offset)
            }
        }
    }
}

impl Source for Opened {
    fn size(&self) -> u64 {
        match &self.bytes {
            Bytes::Memory(bytes) => bytes.size(),
            Bytes::Disk(_, size) => *size,
        }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        match &self.bytes {
            Bytes::Memory(bytes) => bytes.read_at(offset, buffer),
            Bytes::Disk(file, _) => file.read_exact_at(buffer, offset),
        }
    }
}

/// The inputs for files and folders: files by their own name, folders by the paths below them.
///
/// # Errors
/// When a path can't be looked at, or two files would have the same name.
pub fn inputs_of(paths: &[PathBuf]) -> Result<Vec<Input>> {
    let mut inputs = Vec::new();
    for path in paths {
        let metadata = std::fs::metadata(path).map_err(AggregateError::io("look at", path))?;
        if metadata.is_dir() {
            folder(path, "", &mut inputs)?;
        } else {
            inputs.push(Input { name: name_of(path)?, path: path.clone() });
        }
    }
    inputs.sort_by(|one, other| one.name.cmp(&other.name));
    let twice = inputs.windows(2).find_map(|pair| match pair {
        [one, other] if one.name == other.name => Some(one.name.clone()),
        _ => None,
    });
    match twice {
        Some(name) => {
            Err(AggregateError::Invalid(format!("two files would be called '{name}'; pack their folder")))
        }
        None => Ok(inputs),
    }
}

fn name_of(path: &Path) -> Result<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned)
        .ok_or_else(|| AggregateError::Invalid(format!("{} has no UTF-8 name", path.display())))
}

fn folder(path: &Path, prefix: &str, inputs: &mut Vec<Input>) -> Result<()> {
    let entries = std::fs::read_dir(path).map_err(AggregateError::io("list", path))?;
    for entry in entries {
        let entry = entry.map_err(AggregateError::io("list", path))?;
        let kind = entry.file_type().map_err(AggregateError::io("look at", &entry.path()))?;
        let name = format!("{prefix}{}", name_of(&entry.path())?);
        if kind.is_dir() {
            folder(&entry.path(), &format!("{name}/"), inputs)?;
        } else if kind.is_file() {
            inputs.push(Input { name, path: entry.path() });
        }
    }
    Ok(())
}
