//! Listing what a container holds, and taking out single files and variables.
//!
//! Relies on `stdchk-formats`, reading through the container. The idea: the container keeps no list of variables; the
//! parsers find them again in the bytes, and decode only the blocks that hold a file's structure.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::Path;

use stdchk_formats::{Extent, Format, Parsed, Reason, Source, Storage, Variable, parse};
use stdchk_model::exact::part;

use super::Container;
use crate::at_work::AtWork;
use crate::codec::Step;
use crate::error::{AggregateError, Result};
use crate::holes::data_within;
use crate::limits::EXTRACT_RATIO_MAX;
use crate::new_file::{NewFile, folder_of, sync_folder};
use crate::npy::npy;
use crate::unfold::Coding;

/// A file as `list` shows it.
#[derive(Clone, Debug)]
pub struct ListedFile {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub size: u64,
    /// The format it was read as.
    pub format: Format,
    /// Why it has no variables, where it has none.
    pub reason: Option<String>,
    /// Some of it is in no block that can be read, as far as listing looks: not at the blocks that hold elements alone.
    pub damaged: bool,
    /// Its variables.
    pub variables: Vec<ListedVariable>,
}

/// A variable as `list` shows it.
#[derive(Clone, Debug)]
pub struct ListedVariable {
    /// Group and name.
    pub path: String,
    /// Its type, as in the keys.
    pub data_type: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Bytes in the file.
    pub bytes: u64,
    /// Uncompressed bytes to stored bytes, of the block that holds its first byte.
    pub ratio: f64,
    /// The chain that coded this block.
    pub chain: Vec<Step>,
}

/// One file of a container, as a source.
struct Inside<'container> {
    container: &'container Container,
    file: usize,
    /// What kept the container itself from being read, which says nothing of what it holds.
    cut_off: RefCell<Option<AggregateError>>,
}

impl Source for Inside<'_> {
    fn size(&self) -> u64 {
        part(&self.container.files.files, self.file).size
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(buffer.len());
        let range = Extent { offset, length: buffer.len() as u64 };
        self.container.read(self.file, range, &mut bytes).map_err(|error| {
            let told = io::Error::other(error.to_string());
            if matches!(error, AggregateError::Io { .. }) {
                *self.cut_off.borrow_mut() = Some(error);
            }
            told
        })?;
        if bytes.len() != buffer.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer.copy_from_slice(&bytes);
        Ok(())
    }
}

impl Container {
    fn parsed(&self, file: usize) -> Result<Parsed> {
        let inside = Inside { container: self, file, cut_off: RefCell::default() };
        let parsed = parse(&inside);
        inside.cut_off.into_inner().map_or(Ok(parsed), Err)
    }

    /// Everything that the container holds.
    ///
    /// # Errors
    /// The container can't be read any more; what is damaged in it is no error.
    pub fn list(&self) -> Result<Vec<ListedFile>> {
        let gaps: HashSet<usize> = self.files_with_gaps().collect();
        let files = self.files.files.iter().enumerate();
        files
            .map(|(number, entry)| {
                let parsed = self.parsed(number)?;
                let variables =
                    parsed.variables.iter().map(|variable| self.listed(number, variable)).collect();
                let unreadable = matches!(parsed.reason, Some(Reason::Unreadable { .. }));
                let damaged = unreadable || gaps.contains(&number);
                let reason = match entry.is_folder() {
                    true => Some("empty folder".to_owned()),
                    false => parsed.reason.map(|reason| reason.to_string()),
                };
                Ok(ListedFile {
                    name: entry.name.clone(),
                    size: entry.size,
                    format: parsed.format,
                    reason,
                    damaged,
                    variables,
                })
            })
            .collect()
    }

    fn listed(&self, file: usize, variable: &Variable) -> ListedVariable {
        let first = variable.extents.first().map_or(0, |extent| self.held_offset(file, extent.offset));
        let map = part(&self.maps, file);
        let piece = map.get(map.partition_point(|piece| piece.file.end() <= first));
        // Of a variable that begins with a hole, the first bytes that are there.
        let end = first.saturating_add(variable.stored_bytes());
        let piece = piece.filter(|piece| piece.file.offset < end);
        let block = piece.and_then(|piece| self.blocks.get(&piece.block));
        ListedVariable {
            path: variable.path(),
            data_type: variable.data_type.to_string(),
            shape: variable.shape.clone(),
            bytes: variable.stored_bytes(),
            ratio: block
                .map_or(0.0, |block| block.record.raw_length as f64 / block.payload.length.max(1) as f64),
            chain: block.map_or_else(Vec::new, |block| block.record.steps.clone()),
        }
    }

    /// One variable of a file as the bytes of a `.npy` file.
    ///
    /// # Errors
    /// When there is no such file or variable, or part of it is damaged.
    pub fn variable_npy(&self, file: &str, path: &str) -> Result<Vec<u8>> {
        let number = self.position(file)?;
        let parsed = self.parsed(number)?;
        let missing = || match &parsed.reason {
            Some(Reason::Unreadable { .. }) => {
                let damaged = vec![file.to_owned()];
                AggregateError::Incomplete { damaged, blocked: Vec::new(), intact: 0, bytes: 0 }
            }
            _ => AggregateError::NotFound { what: "variable", name: format!("{file}: {path}") },
        };
        let variable =
            parsed.variables.iter().find(|variable| variable.path() == path).ok_or_else(missing)?;
        // Holes are as good as chunks that were never written.
        let holes = if self.is_unfolded(number) { &[] } else { self.files.holes_of(number) };
        let data = variable.extents.iter().flat_map(|extent| data_within(*extent, holes));
        let held = data.fold(0_u64, |sum, data| sum.saturating_add(data.length));
        let most = held.saturating_add(1).saturating_mul(EXTRACT_RATIO_MAX);
        if variable.element_bytes().is_none_or(|length| length >= most) {
            let detail =
                format!("'{path}' claims over {most} bytes of elements, nearly all of them never written");
            return Err(AggregateError::Invalid(detail));
        }
        let refuse = |what: &str| {
            let detail =
                format!("'{path}' of {file} is {what}: its values can't be given, unpack the file itself");
            AggregateError::Invalid(detail)
        };
        let mut stored = Vec::new();
        let mut plain = Vec::new();
        for (chunk, extent) in variable.extents.iter().enumerate() {
            stored.clear();
            self.read(number, *extent, &mut stored)?;
            match &variable.storage {
                Storage::Plain | Storage::ColumnMajor | Storage::Chunked(_) => {
                    plain.extend_from_slice(&stored)
                }
                Storage::Encoded => return Err(refuse("compressed in a way that isn't read here")),
                Storage::DeflatedNpy => {
                    let undone = Coding::deflated().undone(&stored);
                    plain.extend(undone.ok_or_else(|| refuse("no whole stream"))?);
                }
                Storage::Filtered(filtered) => {
                    let coding = Coding::of_filters(&filtered.of_chunk(chunk));
                    let coding = coding.ok_or_else(|| refuse("filtered in a way that isn't read here"))?;
                    let undone = coding.undone(&stored).ok_or_else(|| refuse("damaged"))?;
                    if Some(undone.len() as u64) != filtered.chunks.bytes(variable.data_type) {
                        return Err(refuse("of chunks of another length than they should have"));
                    }
                    plain.extend(undone);
                }
            }
        }
        Ok(match &variable.storage {
            // It is a whole `.npy` file.
            Storage::DeflatedNpy => plain,
            Storage::Filtered(filtered) => {
                let storage = Storage::Chunked(filtered.chunks.clone());
                npy(&Variable { storage, ..variable.clone() }, &plain)
            }
            _ => npy(variable, &plain),
        })
    }

    /// Writes one variable to `output` as `.npy`, in a folder that is made if it is missing; the number of bytes.
    ///
    /// # Errors
    /// Those of [`Container::variable_npy`]; and `output` can't be written.
    pub fn extract_variable(&self, file: &str, path: &str, output: &Path) -> Result<u64> {
        let npy = self.variable_npy(file, path)?;
        let folder = folder_of(output);
        fs::create_dir_all(folder).map_err(AggregateError::io("create", folder))?;
        let _at_work = AtWork::begin(folder, std::iter::once(output));
        let new = NewFile::start(output, 0o666)?;
        new.write_at(&npy, 0)?;
        new.finish()?;
        sync_folder(folder)?;
        Ok(npy.len() as u64)
    }
}
