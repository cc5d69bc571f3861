//! Reading containers: all files at once, single files, ranges of files, variables.
//!
//! Relies on [`crate::container`] and [`crate::codec`]. The idea: a container is a set of sources again, so variables are
//! listed and extracted by the same parsers that found them, reading only the blocks that hold what they look at.

mod base;
mod cache;
mod check;
mod compare;
mod extract;
mod fold;
mod map;
mod open;
mod restore;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use stdchk_formats::{Extent, Source};
use stdchk_model::exact::{part, to_usize};

use crate::codec::{Side, decode, scratch};
use crate::container::{BlockRecord, Files, MemberRanges, hash};
use crate::error::{AggregateError, Result};
use crate::holes::{data_within, first_behind};
use crate::limits::BUDGET_DEFAULT;
use crate::source::FileSource;
use crate::unfold::Unfolded;
pub use base::BaseSet;
pub(crate) use base::Described;
pub use cache::BlockCache;
use cache::Decoded;
pub use extract::{ListedFile, ListedVariable};
use map::BlockSlice;
pub use restore::{Unpacked, Unpacking};

/// A block as it stands in the container.
struct Block {
    record: BlockRecord,
    payload: Extent,
}

impl Block {
    fn damaged(&self, detail: &str) -> AggregateError {
        AggregateError::Damaged { offset: self.payload.offset, detail: detail.to_owned() }
    }
}

/// An opened container.
pub struct Container {
    path: PathBuf,
    source: Box<dyn Source + Send + Sync>,
    files: Files,
    /// By number; those that are lost are missing.
    blocks: BTreeMap<u64, Block>,
    /// For every file, where its bytes are, in order.
    maps: Vec<Vec<BlockSlice>>,
    base: Option<Arc<BaseSet>>,
    cache: Arc<BlockCache>,
    /// Those that were read, of the files that blocks hold unfolded.
    recipes: Mutex<HashMap<usize, Arc<Unfolded>>>,
    /// Tells its blocks from those of other containers in the cache.
    identity: [u8; 16],
}

impl Container {
    /// Opens a container that needs no base set.
    ///
    /// # Errors
    /// When the file can't be read, is no container or needs a base.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_with_base(path, None)
    }

    /// Opens a container, with the set that its variables may be coded against.
    ///
    /// # Errors
    /// When the file can't be read, is no container, or needs another base.
    pub fn open_with_base(path: &Path, base: Option<Arc<BaseSet>>) -> Result<Self> {
        let mut container = Self::read_tables(path)?;
        let needed = container.files.base;
        let needed = needed.filter(|needed| base.as_ref().is_none_or(|base| base.identity() != *needed));
        if let Some(needed) = needed {
            return Err(base::base_missing(needed));
        }
        container.base = base;
        Ok(container)
    }

    /// Opens a container that lies anywhere and needs no base set; `name` is for messages, `identity` tells its blocks from
    /// those of other containers in `cache`.
    ///
    /// # Errors
    /// When the source can't be read, is no container or needs a base.
    pub fn open_source(
        name: &Path,
        source: Box<dyn Source + Send + Sync>,
        cache: Arc<BlockCache>,
        identity: [u8; 16],
    ) -> Result<Self> {
        let container = Self::tables_of(name, source, cache, identity)?;
        match container.files.base {
            Some(_) => Err(AggregateError::Invalid("a container with a base must be a file".to_owned())),
            None => Ok(container),
        }
    }

    fn read_tables(path: &Path) -> Result<Self> {
        Self::tables_alone(path, Box::new(FileSource::open(path)?))
    }

    /// With a cache of its own.
    fn tables_alone(name: &Path, source: Box<dyn Source + Send + Sync>) -> Result<Self> {
        let cache = Arc::new(BlockCache::new(BUDGET_DEFAULT));
        Self::tables_of(name, source, cache, [0; 16])
    }

    fn tables_of(
        path: &Path,
        source: Box<dyn Source + Send + Sync>,
        cache: Arc<BlockCache>,
        identity: [u8; 16],
    ) -> Result<Self> {
        let (files, blocks) = open::sections(path, &*source)?;
        let maps = map::maps(&files, &blocks);
        let path = path.to_owned();
        let recipes = Mutex::default();
        Ok(Self { path, source, files, blocks, maps, base: None, cache, recipes, identity })
    }

    /// Opens a container that was just written, whose bytes were compared as they were: every block must be found, and
    /// every byte of every file in one.
    pub(crate) fn verify_written(path: &Path) -> Result<()> {
        let written = Self::read_tables(path)?;
        let cut = written.blocks.values().find(|block| block.payload.end() > written.source.size());
        if let Some(block) = cut {
            return Err(block.damaged("the payload is cut off"));
        }
        let gap = written.files_with_gaps().next();
        gap.map_or(Ok(()), |file| Err(written.lost(file, 0)))
    }

    /// Names and lengths of the files, in the order of the set.
    pub fn files(&self) -> impl Iterator<Item = (&str, u64)> {
        self.files.files.iter().map(|file| (file.name.as_str(), file.size))
    }

    /// The first run of a file that isn't known to be zeros and ends behind `offset`: what lies between such runs are holes.
    pub fn data_at(&self, file: usize, offset: u64) -> Option<Extent> {
        let size = self.files.files.get(file)?.size;
        let rest = Extent { offset, length: size.checked_sub(offset).filter(|rest| *rest > 0)? };
        // The holes of an unfolded file are those of another form.
        let holes = if self.is_unfolded(file) { &[] } else { self.files.holes_of(file) };
        data_within(rest, holes).next()
    }

    /// Length of the largest block as it is decoded, bytes; 0: there is none.
    pub fn largest_block(&self) -> u64 {
        self.blocks.values().map(|block| block.record.raw_length).fold(0, u64::max)
    }

    /// The pieces of all files by the block that holds them, file by file.
    fn pieces_by_block(&self) -> BTreeMap<u64, Vec<(usize, BlockSlice)>> {
        let mut by_block: BTreeMap<u64, Vec<(usize, BlockSlice)>> = BTreeMap::new();
        for (file, map) in self.maps.iter().enumerate() {
            map.iter().for_each(|piece| by_block.entry(piece.block).or_default().push((file, *piece)));
        }
        by_block
    }

    /// Position of a file by its name.
    pub(crate) fn position(&self, name: &str) -> Result<usize> {
        let found = self.files.files.iter().position(|file| file.name == name);
        found.ok_or_else(|| AggregateError::NotFound { what: "file", name: name.to_owned() })
    }

    /// Appends a range of a file to `buffer`, decoding only the blocks that hold it.
    ///
    /// # Errors
    /// When the range leaves the file, or a block that holds part of it is damaged.
    pub fn read(&self, file: usize, range: Extent, buffer: &mut Vec<u8>) -> Result<()> {
        match self.recipes(file)? {
            Some(recipes) => self.read_folded(file, &recipes, range, buffer),
            None => self.read_held(file, range, buffer),
        }
    }

    /// Appends a range of what blocks hold of a file.
    fn read_held(&self, file: usize, range: Extent, buffer: &mut Vec<u8>) -> Result<()> {
        let outside =
            || AggregateError::Invalid(format!("bytes {} to {} of a file", range.offset, range.end()));
        let map = self.maps.get(file).ok_or_else(outside)?;
        let mut position = range.offset;
        while position < range.end() {
            let index = map.partition_point(|piece| piece.file.end() <= position);
            let piece = map.get(index).filter(|piece| piece.file.offset <= position);
            let Some(piece) = piece else {
                let hole = first_behind(self.files.holes_of(file), position);
                let hole = hole.filter(|hole| hole.offset <= position);
                let end = hole.ok_or_else(|| self.lost(file, position))?.end().min(range.end());
                buffer.resize(buffer.len() + to_usize(end - position), 0);
                position = end;
                continue;
            };
            let skip = position - piece.file.offset;
            let length = (piece.file.length - skip).min(range.end() - position);
            let block = self.cached(piece.block)?;
            buffer.extend_from_slice(slice(&block, piece.start + skip, length));
            position += length;
        }
        Ok(())
    }

    fn lost(&self, file: usize, position: u64) -> AggregateError {
        let name = self.files.files.get(file).map_or("?", |file| &file.name);
        AggregateError::Damaged {
            offset: 0,
            detail: format!("byte {position} of '{name}' is in no readable block"),
        }
    }

    fn cached(&self, number: u64) -> Result<Decoded> {
        self.cache.get((self.identity, number), || self.decode(number))
    }

    /// The bytes of a block, verified once they are decoded: what was damaged before gives other bytes, or none.
    fn decode(&self, number: u64) -> Result<Vec<u8>> {
        let lost = || AggregateError::Damaged { offset: 0, detail: format!("block {number} is lost") };
        let block = self.blocks.get(&number).ok_or_else(lost)?;
        let raw_length = to_usize(block.record.raw_length);
        let mut payload = scratch::filled(to_usize(block.payload.length).min(raw_length));
        self.payload(block, &mut payload)?;
        let raw = if block.record.steps.is_empty() && payload.len() == raw_length {
            payload
        } else {
            let base = self.base_bytes(&block.record)?;
            let side = Side { shapes: &block.record.shapes, base: &base };
            let failed = |source| AggregateError::Codec { number, key: block.record.key.clone(), source };
            let raw = decode(&block.record.steps, &payload, raw_length, side).map_err(failed)?;
            scratch::give_back(payload);
            raw
        };
        if hash(&raw) == block.record.raw_hash {
            Ok(raw)
        } else {
            Err(block.damaged("the bytes don't match their hash"))
        }
    }

    /// The stored bytes of a block in place of what `payload` holds.
    fn payload(&self, block: &Block, payload: &mut Vec<u8>) -> Result<()> {
        // Payloads that don't shrink are stored as they are.
        if block.payload.length > block.record.raw_length {
            return Err(block.damaged("the payload is longer than what it codes"));
        }
        if block.payload.end() > self.source.size() {
            return Err(block.damaged("the payload is cut off"));
        }
        payload.resize(to_usize(block.payload.length), 0);
        self.source.read_at(block.payload.offset, payload).map_err(AggregateError::io("read", &self.path))
    }

    /// The base set's bytes for the members of a block.
    fn base_bytes(&self, record: &BlockRecord) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let Some(base) = &self.base else { return Ok(bytes) };
        for member in record.members.iter().filter(|member| member.same_as.is_none()) {
            if let (Some(file), MemberRanges::Extents(extents)) = (member.base_file, &member.place) {
                base.append(file, extents, &mut bytes)?;
            }
        }
        Ok(bytes)
    }
}

/// The bytes of a piece in its decoded block. Pieces are only made where they lie within the block's length, and a block that
/// decodes to another length is damaged.
fn slice(block: &[u8], start: u64, length: u64) -> &[u8] {
    part(block, to_usize(start)..to_usize(start + length))
}
