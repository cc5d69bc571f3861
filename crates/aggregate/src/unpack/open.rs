//! Finding the sections of a container: by its table, or by looking for them when the table is damaged.
//!
//! Relies on [`crate::container`]. The idea: a section is believed when its header and record verify, wherever it was
//! found; the table at the end only saves the search.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::Block;
use crate::container::{
    BlockRecord, End, Files, HEADER_LENGTH, Header, MAGIC, SectionKind, TRAILER_LENGTH, Trailer, find_header,
    hash,
};
use crate::error::{AggregateError, Result};
use crate::limits::RECORD_MAX;
use stdchk_formats::Extent;

/// The files table and the blocks of a container.
pub(super) fn sections(path: &Path, file: &File) -> Result<(Files, Vec<Option<Block>>)> {
    let size = file.metadata().map_err(AggregateError::io("look at", path))?.len();
    let disk = Disk { file, size };
    if let Some(found) = disk.by_table() {
        return Ok(found);
    }
    let begins = disk.bytes(0, MAGIC.len() as u64).is_some_and(|bytes| bytes == MAGIC);
    let found = disk.by_search();
    let detail = if begins { "its table of files is lost" } else { "it begins differently" };
    found.ok_or_else(|| AggregateError::NoContainer { path: path.to_owned(), detail })
}

struct Disk<'file> {
    file: &'file File,
    size: u64,
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
        let mut bytes = vec![0; usize::try_from(length).ok().filter(|_| inside)?];
        self.file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }

    fn section(&self, offset: u64) -> Option<Section> {
        let header = Header::from_bytes(&self.bytes(offset, HEADER_LENGTH as u64)?)?;
        let packed = self.bytes(offset + HEADER_LENGTH as u64, header.record_length.min(RECORD_MAX))?;
        if hash(&packed) != header.record_hash {
            return None;
        }
        Some(Section { header, record: unpacked(&packed)?, offset })
    }

    /// Everything by the trailer and the end section; blocks that don't verify are lost.
    fn by_table(&self) -> Option<(Files, Vec<Option<Block>>)> {
        let trailer = self.bytes(self.size.checked_sub(TRAILER_LENGTH as u64)?, TRAILER_LENGTH as u64)?;
        let trailer = Trailer::from_bytes(trailer.first_chunk()?)?;
        let end =
            self.section(trailer.end_offset).filter(|section| section.header.kind == SectionKind::End)?;
        let end: End = minicbor::decode(&end.record).ok()?;
        let files = files_of(&self.section(end.files)?)?;
        let blocks =
            end.blocks.iter().map(|offset| self.section(*offset).and_then(|section| block_of(&section)));
        Some((files, blocks.collect()))
    }

    /// Everything that can be found from front to back.
    fn by_search(&self) -> Option<(Files, Vec<Option<Block>>)> {
        let mut files = None;
        let mut blocks: Vec<Option<Block>> = Vec::new();
        let mut position = 0;
        while let Some(offset) = self.next_header(position) {
            let Some(section) = self.section(offset) else {
                position = offset + 1;
                continue;
            };
            position = section.header.section_length().and_then(|length| offset.checked_add(length))?;
            files = files.or_else(|| files_of(&section));
            if let Some(block) = block_of(&section) {
                keep(&mut blocks, block);
            }
        }
        Some((files?, blocks))
    }

    /// First byte of the next header that verifies.
    fn next_header(&self, from: u64) -> Option<u64> {
        const WINDOW: u64 = 4 << 20;
        let mut start = from;
        while start < self.size {
            let length = (WINDOW + HEADER_LENGTH as u64).min(self.size - start);
            let found = find_header(&self.bytes(start, length)?);
            if let Some(found) = found {
                return Some(start + found as u64);
            }
            start += WINDOW;
        }
        None
    }
}

/// Most blocks that a damaged container may claim: their numbers come from records that verify.
const BLOCKS_MAX: usize = 1 << 28;

fn keep(blocks: &mut Vec<Option<Block>>, block: Block) {
    let Ok(number) = usize::try_from(block.record.number) else { return };
    if number >= BLOCKS_MAX {
        return;
    }
    if blocks.len() <= number {
        blocks.resize_with(number + 1, || None);
    }
    if let Some(place) = blocks.get_mut(number) {
        *place = Some(block);
    }
}

fn unpacked(packed: &[u8]) -> Option<Vec<u8>> {
    let limit = usize::try_from(RECORD_MAX).ok()?;
    let announced = zstd::zstd_safe::get_frame_content_size(packed).ok()??;
    let length = usize::try_from(announced).ok().filter(|length| *length <= limit)?;
    zstd::bulk::decompress(packed, length).ok()
}

fn files_of(section: &Section) -> Option<Files> {
    (section.header.kind == SectionKind::Files).then(|| minicbor::decode(&section.record).ok()).flatten()
}

fn block_of(section: &Section) -> Option<Block> {
    if section.header.kind != SectionKind::Block {
        return None;
    }
    let record = BlockRecord::from_bytes(&section.record)?;
    let offset = section.offset + HEADER_LENGTH as u64 + section.header.record_length;
    let payload = Extent { offset, length: section.header.payload_length };
    Some(Block { record, payload, payload_hash: section.header.payload_hash })
}
