//! Writing a container: sections one after the other, front to back.
//!
//! Relies on [`crate::container`]. The idea: the files section comes first and again before the end, so that neither a cut nor a
//! damaged beginning loses the names, without which no file comes back. Where readers are far from the bytes, an index before the
//! end saves them the way to every block.

use stdchk_model::cbor;
use zstd::bulk::Compressor;

use crate::codec::scratch;
use crate::container::{
    BlockRecord, End, Files, HEADER_LENGTH, Index, IndexEntry, MAGIC, SectionKind, Trailer, section,
};
use crate::error::{AggregateError, Result};
use crate::limits::{INDEX_BYTES, RECORD_MAX};

/// Bytes that are written at once.
const BUFFER: usize = 256 << 10;

/// Where a container goes, front to back.
pub trait Output: Send {
    /// Takes the bytes that stand at `offset`, right behind those before.
    ///
    /// # Errors
    /// They can't be kept; packing ends with it.
    fn write(&mut self, bytes: &[u8], offset: u64) -> Result<()>;
}

pub(super) struct Writer<'a> {
    output: &'a mut dyn Output,
    /// What is to be written from `position` on.
    buffer: Vec<u8>,
    position: u64,
    end: End,
    /// What the index will hold that was not written yet, if there is to be one.
    index: Option<Index>,
    indexed_bytes: usize,
    files: Files,
    /// For records, of which there may be thousands.
    compressor: Compressor<'static>,
}

impl<'a> Writer<'a> {
    /// `level` is that at which records are compressed.
    pub(super) fn start(
        output: &'a mut dyn Output,
        files: Files,
        with_index: bool,
        level: i32,
    ) -> Result<Self> {
        let (buffer, end) = (scratch::empty(2 * BUFFER), End::default());
        let compressor = Compressor::new(level).map_err(cant_compress)?;
        let index = with_index.then(Index::default);
        let mut writer =
            Self { output, buffer, position: 0, end, index, indexed_bytes: 0, files, compressor };
        writer.put(&MAGIC)?;
        writer.files_section()?;
        Ok(writer)
    }

    /// Blocks written so far, which is the number of the next.
    pub(super) fn blocks(&self) -> u64 {
        self.end.blocks.len() as u64
    }

    pub(super) fn block(&mut self, record: &BlockRecord, payload: &[u8]) -> Result<()> {
        assert_eq!(record.number, self.blocks(), "blocks are written in the order of their numbers");
        self.end.blocks.push(self.length());
        let bytes = record.to_bytes();
        self.section(SectionKind::Block, &bytes, payload)?;
        let Some(index) = &mut self.index else { return Ok(()) };
        let (length, offset) = (payload.len() as u64, self.position + self.buffer.len() as u64);
        self.indexed_bytes += bytes.len() + HEADER_LENGTH;
        index.blocks.push(IndexEntry { offset: offset - length, length, record: bytes });
        Ok(())
    }

    /// Writes the tables; says how long the container is.
    pub(super) fn finish(mut self) -> Result<u64> {
        self.files_section()?;
        self.index_sections()?;
        let trailer = Trailer { end_offset: self.length() };
        let end = cbor::encode(&self.end);
        self.section(SectionKind::End, &end, &[])?;
        self.put(&trailer.to_bytes())?;
        self.flush()?;
        scratch::give_back(self.buffer);
        Ok(self.position)
    }

    fn index_sections(&mut self) -> Result<()> {
        let Some(index) = self.index.take() else { return Ok(()) };
        let count = self.indexed_bytes.div_ceil(INDEX_BYTES).max(1);
        let entries = index.blocks.len().div_ceil(count).max(1);
        for blocks in index.blocks.chunks(entries) {
            self.end.index.push(self.length());
            let record = cbor::encode(&Index { blocks: blocks.to_vec() });
            self.section(SectionKind::Index, &record, &[])?;
        }
        Ok(())
    }

    fn files_section(&mut self) -> Result<()> {
        let record = self.files.to_bytes();
        self.end.files = self.length();
        self.section(SectionKind::Files, &record, &[])
    }

    fn section(&mut self, kind: SectionKind, record: &[u8], payload: &[u8]) -> Result<()> {
        if record.len() as u64 > RECORD_MAX {
            let detail = "the set has more files or variables than one container holds: pack it in parts";
            return Err(AggregateError::Invalid(detail.to_owned()));
        }
        let packed = self.compressor.compress(record).map_err(cant_compress)?;
        let head = section(kind, &packed, payload.len());
        self.put(&head)?;
        if payload.len() < BUFFER / 4 {
            return self.put(payload);
        }
        // What is long enough goes to the file as it is.
        self.flush()?;
        assert!(self.buffer.is_empty(), "what stands before the payload was written");
        self.output.write(payload, self.position)?;
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
        self.output.write(&self.buffer, self.position)?;
        self.position = self.length();
        self.buffer.clear();
        Ok(())
    }
}

fn cant_compress(source: std::io::Error) -> AggregateError {
    AggregateError::Io { action: "compress", path: "a record of the container".into(), source }
}
