//! Finding the sections of a container: by its table, or by looking for them when the table is damaged.
//!
//! Relies on [`crate::container`]. The idea: a section is believed when its header and record verify, wherever it was
//! found; the table at the end only saves the search. What reading may cost in bytes is a multiple of the file, so that
//! records that overlap or unfold enormously end it. What can't be read counts as lost, unless the source says that it is cut
//! off from all of it (`NotConnected`): that says nothing of the container.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use zstd::bulk::Decompressor;

use super::Block;
use crate::container::{
    BlockRecord, End, Files, HEADER_LENGTH, Header, Index, IndexEntry, MAGIC, SectionKind, TRAILER_LENGTH,
    Trailer, find_header, hash,
};
use crate::error::{AggregateError, Result};
use crate::limits::{RANGES_MAX, RECORD_MAX};
use stdchk_formats::{Extent, Source};

/// Bytes that may be read and unfolded besides four times the file: records of a small container may unfold far.
const WORK_FLOOR: u64 = 2 << 30;

type Tables = (Files, BTreeMap<u64, Block>);

/// The files table and the blocks of a container.
pub(super) fn sections(path: &Path, source: &dyn Source) -> Result<Tables> {
    let size = source.size();
    let disk = || Disk {
        source,
        size,
        work: Cell::new(size.saturating_mul(4).saturating_add(WORK_FLOOR)),
        room: Cell::new(RANGES_MAX),
        decompressor: RefCell::new(Decompressor::new().ok()),
        cut_off: RefCell::new(None),
    };
    let cut_off = |disk: Disk<'_>| {
        let error = disk.cut_off.into_inner();
        error.map_or(Ok(()), |error| Err(AggregateError::io("read", path)(error)))
    };
    let table = disk();
    let found = table.by_table();
    cut_off(table)?;
    if let Some(found) = found {
        return Ok(found);
    }
    let begins = disk().bytes(0, MAGIC.len() as u64).is_some_and(|bytes| bytes == MAGIC);
    let search = disk();
    let found = search.by_search();
    cut_off(search)?;
    let detail = if begins { "its table of files is lost" } else { "it begins differently" };
    found.ok_or_else(|| AggregateError::NoContainer { path: path.to_owned(), detail })
}

struct Disk<'source> {
    source: &'source dyn Source,
    size: u64,
    /// Bytes that may still be read and unfolded.
    work: Cell<u64>,
    /// Ranges that blocks may still have.
    room: Cell<usize>,
    decompressor: RefCell<Option<Decompressor<'static>>>,
    /// Why nothing more can be read, whatever the container holds.
    cut_off: RefCell<Option<io::Error>>,
}

/// A section whose header and record verify.
struct Section {
    header: Header,
    record: Vec<u8>,
    offset: u64,
}

impl Disk<'_> {
    fn bytes(&self, offset: u64, length: u64) -> Option<Vec<u8>> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.size);
        self.spend(if inside { length } else { 0 })?;
        let mut bytes = vec![0; usize::try_from(length).ok().filter(|_| inside)?];
        match self.source.read_at(offset, &mut bytes) {
            Ok(()) => Some(bytes),
            Err(error) => {
                if error.kind() == io::ErrorKind::NotConnected {
                    *self.cut_off.borrow_mut() = Some(error);
                }
                None
            }
        }
    }

    fn spend(&self, bytes: u64) -> Option<()> {
        self.work.set(self.work.get().checked_sub(bytes)?);
        Some(())
    }

    fn unpacked(&self, packed: &[u8]) -> Option<Vec<u8>> {
        let announced = zstd::zstd_safe::get_frame_content_size(packed).ok()??;
        self.spend(announced)?;
        let length = usize::try_from(announced).ok().filter(|_| announced <= RECORD_MAX)?;
        self.decompressor.borrow_mut().as_mut()?.decompress(packed, length).ok()
    }

    fn block_of(&self, section: &Section) -> Option<Block> {
        if section.header.kind != SectionKind::Block {
            return None;
        }
        let mut room = self.room.get();
        let record = BlockRecord::from_bytes(&section.record, &mut room)?;
        self.room.set(room);
        let offset = section.offset + HEADER_LENGTH as u64 + section.header.record_length;
        let payload = Extent { offset, length: section.header.payload_length };
        Some(Block { record, payload })
    }

    fn section(&self, offset: u64) -> Option<Section> {
        let header = Header::from_bytes(&self.bytes(offset, HEADER_LENGTH as u64)?)?;
        let packed = self.bytes(offset + HEADER_LENGTH as u64, header.record_length.min(RECORD_MAX))?;
        if hash(&packed) != header.record_hash {
            return None;
        }
        Some(Section { header, record: self.unpacked(&packed)?, offset })
    }

    /// Everything by the trailer and the end section; blocks that don't verify are lost.
    fn by_table(&self) -> Option<Tables> {
        let trailer = self.bytes(self.size.checked_sub(TRAILER_LENGTH as u64)?, TRAILER_LENGTH as u64)?;
        let trailer = Trailer::from_bytes(trailer.first_chunk()?)?;
        let end =
            self.section(trailer.end_offset).filter(|section| section.header.kind == SectionKind::End)?;
        let end: End = minicbor::decode(&end.record).ok()?;
        let files = files_of(&self.section(end.files)?)?;
        if let Some(blocks) = self.by_index(&end) {
            return Some((files, blocks));
        }
        let mut blocks = BTreeMap::new();
        for (number, offset) in (0_u64..).zip(&end.blocks).take_while(|_| self.work.get() > 0) {
            let block = self.section(*offset).and_then(|section| self.block_of(&section));
            if let Some(block) = block.filter(|block| block.record.number == number) {
                blocks.insert(number, block);
            }
        }
        Some((files, blocks))
    }

    /// All blocks by the index, if there is one and all of it verifies.
    fn by_index(&self, end: &End) -> Option<BTreeMap<u64, Block>> {
        let mut blocks = BTreeMap::new();
        for offset in &end.index {
            let section =
                self.section(*offset).filter(|section| section.header.kind == SectionKind::Index)?;
            let index: Index = minicbor::decode(&section.record).ok()?;
            for entry in index.blocks {
                let block = self.indexed(&entry)?;
                blocks.insert(block.record.number, block);
            }
        }
        (!end.index.is_empty() && blocks.len() == end.blocks.len()).then_some(blocks)
    }

    fn indexed(&self, entry: &IndexEntry) -> Option<Block> {
        let mut room = self.room.get();
        let record = BlockRecord::from_bytes(&entry.record, &mut room)?;
        self.room.set(room);
        let payload = Extent { offset: entry.offset, length: entry.length };
        Some(Block { record, payload })
    }

    /// Everything that can be found from front to back.
    fn by_search(&self) -> Option<Tables> {
        let mut files = None;
        let mut blocks = BTreeMap::new();
        let mut position = 0;
        while let Some(offset) = self.next_header(position) {
            let Some(section) = self.section(offset) else {
                position = offset + 1;
                continue;
            };
            position = section.header.section_length().and_then(|length| offset.checked_add(length))?;
            files = files.or_else(|| files_of(&section));
            if let Some(block) = self.block_of(&section) {
                blocks.insert(block.record.number, block);
            }
        }
        Some((files?, blocks))
    }

    /// First byte of the next header that verifies.
    fn next_header(&self, from: u64) -> Option<u64> {
        const WINDOW_MAX: u64 = 4 << 20;
        const STEP: u64 = 256 << 10;
        // Sections follow each other, so nearly always the next one begins right here.
        let (mut start, mut window) = (from, 1);
        while start < self.size {
            let length = (window + HEADER_LENGTH as u64 - 1).min(self.size - start);
            let Some(bytes) = self.bytes(start, length) else {
                // What can't be read is passed over, as little as possible of it.
                if window <= STEP {
                    start += window;
                }
                window = STEP;
                continue;
            };
            let found = find_header(&bytes);
            if let Some(found) = found {
                return Some(start + found as u64);
            }
            start += window;
            window = (window * 64).min(WINDOW_MAX);
        }
        None
    }
}

fn files_of(section: &Section) -> Option<Files> {
    let right = section.header.kind == SectionKind::Files;
    right.then(|| Files::from_bytes(&section.record)).flatten()
}
