//! Writing a container: sections one after the other into a file that gets its name when it is complete.
//!
//! Relies on [`crate::container`]. The idea: the files section comes first and again before the end, so that neither a
//! cut nor a damaged beginning loses the names.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::container::{BlockRecord, End, Files, MAGIC, SectionKind, Trailer, section};
use crate::error::{AggregateError, Result};

/// Level at which records are compressed: they are short, and every byte of them counts against the ratio.
const RECORD_LEVEL: i32 = 12;

pub(super) struct Writer {
    file: BufWriter<File>,
    partial: PathBuf,
    path: PathBuf,
    position: u64,
    end: End,
    files: Files,
    finished: bool,
}

impl Writer {
    pub(super) fn create(path: &Path, files: Files) -> Result<Self> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".partial");
        let partial = path.with_file_name(name);
        let file = File::create(&partial).map_err(AggregateError::io("create", &partial))?;
        let (file, path) = (BufWriter::with_capacity(1 << 20, file), path.to_owned());
        let mut writer =
            Self { file, partial, path, position: 0, end: End::default(), files, finished: false };
        writer.put(&MAGIC)?;
        writer.files_section()?;
        Ok(writer)
    }

    /// Blocks written so far, which is the number of the next.
    pub(super) fn blocks(&self) -> u64 {
        self.end.blocks.len() as u64
    }

    pub(super) fn block(&mut self, record: &BlockRecord, payload: &[u8]) -> Result<()> {
        self.end.blocks.push(self.position);
        self.section(SectionKind::Block, &record.to_bytes(), payload)
    }

    /// Writes the tables and gives the container its name; says how long it is.
    pub(super) fn finish(mut self) -> Result<u64> {
        self.files_section()?;
        let trailer = Trailer { end_offset: self.position };
        let end = minicbor::to_vec(&self.end).unwrap_or_default();
        self.section(SectionKind::End, &end, &[])?;
        self.put(&trailer.to_bytes())?;
        self.file.flush().map_err(AggregateError::io("write", &self.partial))?;
        self.file.get_ref().sync_all().map_err(AggregateError::io("write", &self.partial))?;
        fs::rename(&self.partial, &self.path).map_err(AggregateError::io("rename to", &self.path))?;
        self.finished = true;
        Ok(self.position)
    }

    fn files_section(&mut self) -> Result<()> {
        let record = minicbor::to_vec(&self.files).unwrap_or_default();
        self.end.files = self.position;
        self.section(SectionKind::Files, &record, &[])
    }

    fn section(&mut self, kind: SectionKind, record: &[u8], payload: &[u8]) -> Result<()> {
        let packed =
            zstd::bulk::compress(record, RECORD_LEVEL).map_err(AggregateError::io("pack", &self.partial))?;
        let head = section(kind, &packed, payload);
        self.put(&head)?;
        self.put(payload)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(AggregateError::io("write", &self.partial))?;
        self.position += bytes.len() as u64;
        Ok(())
    }
}

impl Drop for Writer {
    /// What was not finished is no container.
    fn drop(&mut self) {
        if !self.finished {
            let _ = fs::remove_file(&self.partial);
        }
    }
}
