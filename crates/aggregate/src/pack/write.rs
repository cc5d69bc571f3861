//! Writing a container: sections one after the other into a file that gets its name when it is complete and verified.
//!
//! Relies on [`crate::container`]. The idea: the files section comes first and again before the end, so that neither a
//! cut nor a damaged beginning loses the names.

use std::path::Path;

use zstd::bulk::Compressor;

use crate::container::{BlockRecord, End, Files, MAGIC, SectionKind, Trailer, section};
use crate::error::{AggregateError, Result};
use crate::limits::RECORD_MAX;
use crate::new_file::{NewFile, folder_of, sync_folder};
use crate::unpack::Container;

/// Level at which records are compressed: they are short, and every byte of them counts against the ratio.
const RECORD_LEVEL: i32 = 12;
/// Bytes that are written at once.
const BUFFER: usize = 1 << 20;

pub(super) struct Writer {
    file: NewFile,
    /// What is to be written from `position` on.
    buffer: Vec<u8>,
    position: u64,
    end: End,
    files: Files,
    /// For records, of which there may be thousands.
    compressor: Compressor<'static>,
}

impl Writer {
    pub(super) fn create(path: &Path, files: Files) -> Result<Self> {
        let (file, buffer) = (NewFile::start(path, 0o666)?, Vec::with_capacity(BUFFER));
        let compressor = Compressor::new(RECORD_LEVEL).map_err(AggregateError::io("pack", path))?;
        let mut writer = Self { file, buffer, position: 0, end: End::default(), files, compressor };
        writer.put(&MAGIC)?;
        writer.files_section()?;
        Ok(writer)
    }

    /// Blocks written so far, which is the number of the next.
    pub(super) fn blocks(&self) -> u64 {
        self.end.blocks.len() as u64
    }

    pub(super) fn block(&mut self, record: &BlockRecord, payload: &[u8]) -> Result<()> {
        self.end.blocks.push(self.length());
        self.section(SectionKind::Block, &record.to_bytes(), payload)
    }

    /// Writes the tables, reads back what was written and gives the container its name; says how long it is.
    pub(super) fn finish(mut self, path: &Path) -> Result<u64> {
        self.files_section()?;
        let trailer = Trailer { end_offset: self.length() };
        let end = minicbor::to_vec(&self.end).unwrap_or_default();
        self.section(SectionKind::End, &end, &[])?;
        self.put(&trailer.to_bytes())?;
        self.flush()?;
        Container::verify_written(self.file.temporary())?;
        self.file.finish()?;
        sync_folder(folder_of(path))?;
        Ok(self.position)
    }

    fn files_section(&mut self) -> Result<()> {
        let record = minicbor::to_vec(&self.files).unwrap_or_default();
        self.end.files = self.length();
        self.section(SectionKind::Files, &record, &[])
    }

    fn section(&mut self, kind: SectionKind, record: &[u8], payload: &[u8]) -> Result<()> {
        if record.len() as u64 > RECORD_MAX {
            let detail = "the set has more files or variables than one container holds: pack it in parts";
            return Err(AggregateError::Invalid(detail.to_owned()));
        }
        let packed =
            self.compressor.compress(record).map_err(AggregateError::io("pack", self.file.temporary()))?;
        let head = section(kind, &packed, payload);
        self.put(&head)?;
        if payload.len() < BUFFER / 4 {
            return self.put(payload);
        }
        // What is long enough goes to the file as it is.
        self.flush()?;
        self.file.write_at(payload, self.position)?;
        self.position += payload.len() as u64;
        Ok(())
    }

    /// Bytes of the container so far.
    fn length(&self) -> u64 {
        self.position + self.buffer.len() as u64
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() < BUFFER { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_at(&self.buffer, self.position)?;
        self.position = self.length();
        self.buffer.clear();
        Ok(())
    }
}
