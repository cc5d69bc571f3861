//! Files whose compressed parts are undone, so that their variables are coded by type as if nobody had compressed them.
//!
//! Relies on [`filters`] for the steps that are undone and done again. The idea: an unfolded file is the file with the plain bytes in place
//! of its compressed streams, and behind them the recipes that make the streams again. Streams that are chunks of one array are not in
//! place: the arrays stand between the file and the recipes, put together from their chunks ([`tiles`]). All of packing sees unfolded
//! files; unpacking folds them. A stream is unfolded only after it was made again from its recipe, and its recipe holds a hash of it.

mod blosc;
mod deflate;
mod filters;
mod find;
mod tiles;
mod view;
mod zstandard;

use std::sync::atomic::AtomicU32;

use stdchk_formats::{Extent, ZarrCoder};

use crate::codec::{put_number, take_number};
use crate::container::hash;
use crate::limits::{STREAM_MAX, STREAMS_MAX};
use blosc::BloscRecipe;
pub(crate) use deflate::MAKERS;
use deflate::{Maker, Wrapper};
pub(crate) use filters::Coding;
use filters::{Fold, folded, unfolded};
pub(crate) use find::{Unfolding, unfold};
pub(crate) use tiles::TileBox;
pub(crate) use view::UnfoldedView;

/// Takes a chunk of Zarr apart as packing does, and compares what is made again of it: for the fuzzer, which reaches it in no other way.
///
/// # Panics
/// When a chunk that counts as made again isn't the same.
#[doc(hidden)]
pub fn try_chunk(stored: &[u8]) {
    for coder in [ZarrCoder::Blosc, ZarrCoder::Zstd(3), ZarrCoder::Zlib(6)] {
        let found = Coding::of_zarr(coder).folds(stored, &AtomicU32::new(0));
        let Some((plain, folds)) = found else { continue };
        assert!(
            folded(&folds, &plain).is_some_and(|made| made == stored),
            "a chunk is made again bit for bit"
        );
        let mut bytes = Vec::new();
        folds.iter().for_each(|fold| put_fold(&mut bytes, fold, stored.len() as u64));
        let mut rest = bytes.as_slice();
        let read: Vec<_> = folds.iter().map(|_| take_fold(&mut rest, stored.len() as u64)).collect();
        assert!(read.into_iter().flatten().eq(folds), "a recipe is read as it was written");
    }
}

/// Bytes of a stream's hash that are kept: enough to tell a stream that another version of a maker made.
const CHECK: usize = 8;
/// Steps of one stream: HDF5 has 32 filters, of which three kinds are undone.
const FOLDS_MAX: u64 = 8;

/// A compressed stream of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    /// Where it lies in the file.
    pub(crate) stored: Extent,
    /// Its plain bytes.
    pub(crate) plain_length: u64,
    /// The steps that make it of these.
    folds: Vec<Fold>,
    check: [u8; CHECK],
}

impl Stream {
    /// The plain bytes of the stored ones.
    pub(crate) fn unfolded(&self, stored: &[u8]) -> Option<Vec<u8>> {
        unfolded(&self.folds, stored).filter(|plain| plain.len() as u64 == self.plain_length)
    }

    /// The stored bytes made of plain ones; none if they aren't those that were packed.
    pub(crate) fn folded(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let stored = folded(&self.folds, plain)?;
        (stored.len() as u64 == self.stored.length && check_of(&stored) == self.check).then_some(stored)
    }
}

fn check_of(stored: &[u8]) -> [u8; CHECK] {
    let whole = hash(stored);
    let Some((check, _)) = whole.split_first_chunk() else { unreachable!("a hash has 16 bytes") };
    *check
}

/// A part of an unfolded file, in the order of both forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its range in the file.
    pub(crate) file: Extent,
    /// Its range in the unfolded file.
    pub(crate) unfolded: Extent,
    /// The stream that it is, if it is one; the bytes of other parts are the same in both forms. Of a stream in a box nothing stands in
    /// place, so that its range in the unfolded file is empty.
    pub(crate) stream: Option<usize>,
}

/// A part of a file that is folded at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Bytes that are the same in both forms.
    AsIs(Part),
    /// A stream that stands in its place.
    Stream(usize),
    /// A box, whose chunks are streams here and there in the file.
    Box(usize),
}

/// A box of an unfolded file: where its body stands, and where its fringe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BoxPlace {
    pub(crate) body: Extent,
    pub(crate) fringe: Extent,
}

/// The streams of a file, and how its unfolded form is laid out: the file, bodies of boxes, fringes of boxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unfolded {
    /// In order of their place; none overlap.
    pub(crate) streams: Vec<Stream>,
    /// Streams that are put together.
    pub(crate) boxes: Vec<TileBox>,
    /// First byte of each one's plain bytes in the unfolded file.
    starts: Vec<u64>,
    /// For each stream the box that it is in, and its number there.
    in_box: Vec<Option<(u32, u32)>>,
    /// Where each box stands.
    places: Vec<BoxPlace>,
    /// Bytes of the file.
    file_size: u64,
    /// Bytes of the unfolded file without boxes and recipes.
    in_place: u64,
    /// Bytes of the unfolded file without the recipes.
    plain_size: u64,
}

impl Unfolded {
    /// `None`: the streams are not in order, overlap, leave the file, are longer than may be, or are not those of their boxes.
    pub(crate) fn new(file_size: u64, streams: Vec<Stream>, boxes: Vec<TileBox>) -> Option<Self> {
        if streams.len() > STREAMS_MAX {
            return None;
        }
        let in_box = streams_in_boxes(&streams, &boxes)?;
        let (mut position, mut unfolded) = (0_u64, 0_u64);
        let mut starts = Vec::with_capacity(streams.len());
        for (stream, in_box) in streams.iter().zip(&in_box) {
            let between = stream.stored.offset.checked_sub(position)?;
            position = stream.stored.offset.checked_add(stream.stored.length)?;
            if stream.stored.length == 0 || stream.plain_length > STREAM_MAX || position > file_size {
                return None;
            }
            let start = unfolded.checked_add(between)?;
            starts.push(start);
            unfolded = start.checked_add(if in_box.is_some() { 0 } else { stream.plain_length })?;
        }
        let in_place = unfolded.checked_add(file_size - position)?;
        let (places, plain_size) = places_of(&boxes, in_place)?;
        Some(Self { streams, boxes, starts, in_box, places, file_size, in_place, plain_size })
    }

    /// All parts of the file that are folded, each once.
    pub(crate) fn units(&self) -> impl Iterator<Item = Unit> {
        let whole = Extent { offset: 0, length: self.file_size };
        let in_place = self.parts_of_file(whole).filter_map(|part| match part.stream {
            None => Some(Unit::AsIs(part)),
            Some(stream) => self.box_of(stream).is_none().then_some(Unit::Stream(stream)),
        });
        in_place.chain((0..self.boxes.len()).map(Unit::Box))
    }

    /// Bytes of the unfolded file in front of its boxes.
    pub(crate) fn in_place(&self) -> u64 {
        self.in_place
    }

    /// The box that a stream is in, and its number there.
    pub(crate) fn box_of(&self, stream: usize) -> Option<(usize, usize)> {
        let (tiles, number) = (*self.in_box.get(stream)?)?;
        Some((tiles as usize, number as usize))
    }

    /// Where a box stands.
    pub(crate) fn place_of_box(&self, tiles: usize) -> Option<BoxPlace> {
        self.places.get(tiles).copied()
    }

    /// The boxes that a range of the unfolded file touches: the number of each, the part of its body and that of its fringe.
    pub(crate) fn boxes_within(&self, range: Extent) -> Vec<(usize, Option<Extent>, Option<Extent>)> {
        let common = |place: Extent| {
            let (start, end) = (range.offset.max(place.offset), range.end().min(place.end()));
            (start < end).then(|| Extent { offset: start - place.offset, length: end - start })
        };
        let of = |(number, place): (usize, &BoxPlace)| (number, common(place.body), common(place.fringe));
        // Bodies stand in order, and fringes do.
        let after = |end: fn(&BoxPlace) -> Extent| {
            self.places.partition_point(move |place| end(place).end() <= range.offset)
        };
        let (bodies, fringes) = (after(|place| place.body), after(|place| place.fringe));
        let touched = |first: usize, end: fn(&BoxPlace) -> Extent| {
            let rest = self.places.iter().enumerate().skip(first);
            rest.take_while(move |(_, place)| end(place).offset < range.end()).map(of)
        };
        let bodies = touched(bodies, |place| place.body).map(|(number, body, _)| (number, body, None));
        let fringes =
            touched(fringes, |place| place.fringe).map(|(number, _, fringe)| (number, None, fringe));
        bodies.chain(fringes).filter(|(_, body, fringe)| body.is_some() || fringe.is_some()).collect()
    }

    /// Bytes of the unfolded file without the recipes.
    pub(crate) fn plain_size(&self) -> u64 {
        self.plain_size
    }

    /// Plain bytes of the longest stream, or of the largest box.
    pub(crate) fn longest(&self) -> u64 {
        let boxes = self.boxes.iter().map(TileBox::bytes);
        self.streams.iter().map(|stream| stream.plain_length).chain(boxes).fold(0, u64::max)
    }

    /// The range of a stream's plain bytes, as far as they stand in its place.
    pub(crate) fn plain(&self, stream: usize) -> Option<Extent> {
        let (offset, plain) = (*self.starts.get(stream)?, self.streams.get(stream)?.plain_length);
        let in_box = self.in_box.get(stream)?.is_some();
        Some(Extent { offset, length: if in_box { 0 } else { plain } })
    }

    /// Where a byte of the file that lies in no stream stands in the unfolded file.
    pub(crate) fn moved(&self, offset: u64) -> u64 {
        let after = self.streams.partition_point(|stream| stream.stored.offset <= offset);
        let Some(last) = after.checked_sub(1) else { return offset };
        let (Some(stream), Some(plain)) = (self.streams.get(last), self.plain(last)) else { return offset };
        plain.end() + offset.saturating_sub(stream.stored.end())
    }

    /// The parts that a range of the file touches, in order.
    pub(crate) fn parts_of_file(&self, range: Extent) -> impl Iterator<Item = Part> {
        let first = self.streams.partition_point(|stream| stream.stored.end() <= range.offset);
        let parts = self.parts_from(first);
        parts
            .skip_while(move |part| part.file.end() <= range.offset)
            .take_while(move |part| part.file.offset < range.end())
    }

    /// The parts that a range of the unfolded file touches, in order.
    pub(crate) fn parts_of_unfolded(&self, range: Extent) -> impl Iterator<Item = Part> {
        let first = self.starts.partition_point(|start| *start <= range.offset).saturating_sub(1);
        self.parts_from(first)
            .skip_while(move |part| part.unfolded.end() <= range.offset)
            .take_while(move |part| part.unfolded.offset < range.end())
    }

    /// All parts from what stands before a stream on.
    fn parts_from(&self, first: usize) -> impl Iterator<Item = Part> {
        let (mut file, mut unfolded) = match first.checked_sub(1) {
            Some(before) => (
                self.streams.get(before).map_or(0, |stream| stream.stored.end()),
                self.plain(before).map_or(0, |plain| plain.end()),
            ),
            None => (0, 0),
        };
        let ends = (first..=self.streams.len()).flat_map(move |at| {
            let (stored, plain) = match (self.streams.get(at), self.plain(at)) {
                (Some(stream), Some(plain)) => (stream.stored, plain),
                _ => (
                    Extent { offset: self.file_size, length: 0 },
                    Extent { offset: self.in_place, length: 0 },
                ),
            };
            let between = Part {
                file: Extent { offset: file, length: stored.offset - file },
                unfolded: Extent { offset: unfolded, length: plain.offset - unfolded },
                stream: None,
            };
            (file, unfolded) = (stored.end(), plain.end());
            [between, Part { file: stored, unfolded: plain, stream: Some(at) }]
        });
        ends.filter(|part| part.file.length > 0)
    }

    /// The recipes, as they stand behind the unfolded file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut position = 0;
        put_number(&mut bytes, self.streams.len() as u64);
        for stream in &self.streams {
            put_number(&mut bytes, stream.stored.offset - position);
            put_number(&mut bytes, stream.stored.length);
            put_number(&mut bytes, stream.plain_length);
            put_number(&mut bytes, stream.folds.len() as u64);
            stream.folds.iter().for_each(|fold| put_fold(&mut bytes, fold, stream.stored.length));
            bytes.extend_from_slice(&stream.check);
            position = stream.stored.end();
        }
        self.boxes.iter().for_each(|tiles| tiles.to_bytes(&mut bytes));
        bytes
    }

    /// The recipes, if these are some for a file of this length whose unfolded form has, with these, this length.
    pub(crate) fn from_bytes(mut bytes: &[u8], file_size: u64, unfolded_size: u64) -> Option<Self> {
        let length = bytes.len() as u64;
        let (mut streams, mut position) = (Vec::new(), 0_u64);
        let count = take_number(&mut bytes).filter(|count| *count <= STREAMS_MAX as u64)?;
        for _ in 0..count {
            let offset = position.checked_add(take_number(&mut bytes)?)?;
            let stored = Extent { offset, length: take_number(&mut bytes)? };
            let plain_length = take_number(&mut bytes)?;
            let count = take_number(&mut bytes).filter(|count| *count <= FOLDS_MAX)?;
            let folds =
                (0..count).map(|_| take_fold(&mut bytes, stored.length)).collect::<Option<Vec<_>>>()?;
            let (check, rest) = bytes.split_first_chunk()?;
            bytes = rest;
            position = offset.checked_add(stored.length)?;
            streams.push(Stream { stored, plain_length, folds, check: *check });
        }
        let mut boxes = Vec::new();
        while !bytes.is_empty() {
            boxes.push(TileBox::from_bytes(&mut bytes, streams.len())?);
            // Each has a stream of its own.
            if boxes.len() > streams.len() {
                return None;
            }
        }
        let unfolded = Self::new(file_size, streams, boxes)?;
        (unfolded.plain_size.checked_add(length) == Some(unfolded_size)).then_some(unfolded)
    }

    /// Forgets corrections, which only folding needs.
    pub(crate) fn without_corrections(mut self) -> Self {
        for fold in self.streams.iter_mut().flat_map(|stream| &mut stream.folds) {
            if let Fold::Deflate { maker: Maker::Preflate { corrections, .. }, .. } = fold {
                *corrections = Vec::new();
            }
        }
        self
    }
}

/// For each stream the box that it is in, and its number there; `None`: one is in several boxes, or has another length than the chunks of its
/// box.
fn streams_in_boxes(streams: &[Stream], boxes: &[TileBox]) -> Option<Vec<Option<(u32, u32)>>> {
    let mut in_box = vec![None; streams.len()];
    for (number, tiles) in boxes.iter().enumerate() {
        for (chunk, stream) in tiles.streams.iter().enumerate() {
            let fits = streams.get(*stream)?.plain_length == tiles.chunk_bytes();
            let slot = in_box.get_mut(*stream).filter(|slot| fits && slot.is_none())?;
            *slot = Some((u32::try_from(number).ok()?, u32::try_from(chunk).ok()?));
        }
    }
    Some(in_box)
}

/// Where boxes stand behind so many bytes, and where they end.
fn places_of(boxes: &[TileBox], first: u64) -> Option<(Vec<BoxPlace>, u64)> {
    let mut end = first;
    let mut extents = |bytes: fn(&TileBox) -> u64| {
        let extent = |tiles| {
            let extent = Extent { offset: end, length: bytes(tiles) };
            end = end.checked_add(extent.length)?;
            Some(extent)
        };
        boxes.iter().map(extent).collect::<Option<Vec<_>>>()
    };
    let (bodies, fringes) = (extents(TileBox::body_bytes)?, extents(TileBox::fringe_bytes)?);
    let places = bodies.into_iter().zip(fringes).map(|(body, fringe)| BoxPlace { body, fringe });
    Some((places.collect(), end))
}

/// Numbers of steps in recipes.
const SHUFFLE: u64 = 1;
const FLETCHER_32: u64 = 2;
const ZLIB: u64 = 3;
const RAW_DEFLATE: u64 = 4;
const ZLIB_CORRECTED: u64 = 5;
const RAW_DEFLATE_CORRECTED: u64 = 6;
const ZSTD: u64 = 7;
const BLOSC: u64 = 8;

/// The length of what the last step makes, which is that of the stream, is 0: so it is the same for all streams.
fn put_fold(bytes: &mut Vec<u8>, fold: &Fold, stored: u64) {
    let (length, wrapper, maker) = match fold {
        Fold::Shuffle(size) => {
            put_number(bytes, SHUFFLE);
            return put_number(bytes, u64::from(*size));
        }
        Fold::Fletcher32 => return put_number(bytes, FLETCHER_32),
        Fold::Zstd { level, checksum } => {
            put_number(bytes, ZSTD);
            return put_number(bytes, u64::from(*level) << 1 | u64::from(*checksum));
        }
        Fold::Blosc { recipe, length } => {
            put_number(bytes, BLOSC);
            put_number(bytes, if *length == stored { 0 } else { *length });
            return recipe.put(bytes);
        }
        Fold::Deflate { wrapper, maker, length } => {
            (if *length == stored { 0 } else { *length }, *wrapper, maker)
        }
    };
    let zlib = wrapper == Wrapper::Zlib;
    match maker {
        Maker::Zlib(level) => {
            put_number(bytes, if zlib { ZLIB } else { RAW_DEFLATE });
            put_number(bytes, length);
            put_number(bytes, u64::from(*level));
        }
        Maker::Preflate { head, corrections } => {
            put_number(bytes, if zlib { ZLIB_CORRECTED } else { RAW_DEFLATE_CORRECTED });
            put_number(bytes, length);
            bytes.extend_from_slice(if zlib { head } else { &[] });
            put_number(bytes, corrections.len() as u64);
            bytes.extend_from_slice(corrections);
        }
    }
}

fn take_fold(bytes: &mut &[u8], stored: u64) -> Option<Fold> {
    let number = take_number(bytes)?;
    let wrapper = if matches!(number, ZLIB | ZLIB_CORRECTED) { Wrapper::Zlib } else { Wrapper::Raw };
    let length = match number {
        SHUFFLE => return Some(Fold::Shuffle(u32::try_from(take_number(bytes)?).ok()?)),
        FLETCHER_32 => return Some(Fold::Fletcher32),
        ZSTD => {
            let level = take_number(bytes)?;
            return Some(Fold::Zstd { level: u32::try_from(level >> 1).ok()?, checksum: level & 1 == 1 });
        }
        BLOSC | ZLIB | RAW_DEFLATE | ZLIB_CORRECTED | RAW_DEFLATE_CORRECTED => take_number(bytes)?,
        _ => return None,
    };
    let length = if length == 0 { stored } else { length };
    // Bytes that don't shrink grow by a few in a hundred thousand.
    if length > 2 * STREAM_MAX {
        return None;
    }
    if number == BLOSC {
        return Some(Fold::Blosc { recipe: BloscRecipe::take(bytes)?, length });
    }
    let maker = match number {
        ZLIB | RAW_DEFLATE => Maker::Zlib(u32::try_from(take_number(bytes)?).ok()?),
        _ => take_corrections(bytes, wrapper)?,
    };
    Some(Fold::Deflate { wrapper, maker, length })
}

fn take_corrections(bytes: &mut &[u8], wrapper: Wrapper) -> Option<Maker> {
    let mut head = [0; 2];
    if wrapper == Wrapper::Zlib {
        let (first, rest) = bytes.split_first_chunk()?;
        (head, *bytes) = (*first, rest);
    }
    let count = usize::try_from(take_number(bytes)?).ok()?;
    let (corrections, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(Maker::Preflate { head, corrections: corrections.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(offset: u64, length: u64, plain_length: u64) -> Stream {
        let corrections = vec![7; usize::try_from(length % 5).unwrap()];
        let maker = match offset % 3 {
            0 => Maker::Zlib(6),
            _ => Maker::Preflate { head: [1, 2], corrections },
        };
        let wrapper = if offset.is_multiple_of(2) { Wrapper::Zlib } else { Wrapper::Raw };
        let head = if wrapper == Wrapper::Raw { [0, 0] } else { [1, 2] };
        let maker = match maker {
            Maker::Preflate { corrections, .. } => Maker::Preflate { head, corrections },
            zlib @ Maker::Zlib(_) => zlib,
        };
        let folds = vec![Fold::Shuffle(8), Fold::Fletcher32, Fold::Deflate { wrapper, maker, length }];
        Stream { stored: Extent { offset, length }, plain_length, folds, check: [9; CHECK] }
    }

    const FILE: u64 = 1000;

    fn unfolded() -> Unfolded {
        let streams = vec![
            stream(10, 90, 300),
            stream(100, 50, 20),
            stream(150, 20, 48),
            stream(400, 7, 1000),
            stream(420, 7, 48),
            stream(801, 199, 1),
        ];
        let boxes = vec![TileBox::new(8, vec![2, 3], vec![3, 3], true, vec![4, 2]).unwrap()];
        Unfolded::new(FILE, streams, boxes).unwrap()
    }

    fn cover(parts: &[Part], range: Extent, of: fn(&Part) -> Extent) {
        let (first, last) = (of(parts.first().unwrap()), of(parts.last().unwrap()));
        assert!(first.offset <= range.offset && last.end() >= range.end(), "{range:?} in {parts:?}");
        assert!(first.end() > range.offset && last.offset < range.end(), "{range:?} in {parts:?}");
        for pair in parts.windows(2) {
            assert_eq!(pair[0].file.end(), pair[1].file.offset);
            assert_eq!(pair[0].unfolded.end(), pair[1].unfolded.offset);
        }
    }

    #[test]
    fn the_parts_of_every_range_cover_it_in_both_forms() {
        let unfolded = unfolded();
        for start in 0..FILE {
            for length in [1, 13, 300, FILE - start] {
                let range = Extent { offset: start, length: length.min(FILE - start) };
                let parts: Vec<Part> = unfolded.parts_of_file(range).collect();
                cover(&parts, range, |part| part.file);
            }
            let inside = unfolded
                .streams
                .iter()
                .any(|stream| (stream.stored.offset..stream.stored.end()).contains(&start));
            let part = unfolded.parts_of_file(Extent { offset: start, length: 1 }).next().unwrap();
            assert_eq!(part.stream.is_some(), inside);
            if !inside {
                assert_eq!(unfolded.moved(start), part.unfolded.offset + (start - part.file.offset));
            }
        }
        let plain = unfolded.in_place();
        assert_eq!((plain, unfolded.plain_size()), (FILE - 373 + 1321, FILE - 373 + 1321 + 96));
        for start in 0..plain {
            for length in [1, 13, 300, plain - start] {
                let range = Extent { offset: start, length: length.min(plain - start) };
                let parts: Vec<Part> = unfolded.parts_of_unfolded(range).collect();
                cover(&parts, range, |part| part.unfolded);
            }
        }
        let (body, fringe) = (Extent { offset: 0, length: 72 }, Extent { offset: 0, length: 24 });
        let all = unfolded.boxes_within(Extent { offset: 0, length: plain + 96 });
        assert_eq!(all, [(0, Some(body), None), (0, None, Some(fringe))]);
        let last = unfolded.boxes_within(Extent { offset: plain + 95, length: 1 });
        assert_eq!(last, [(0, None, Some(Extent { offset: 23, length: 1 }))]);
        assert_eq!(unfolded.boxes_within(Extent { offset: plain - 1, length: 1 }), []);
        assert_eq!(
            (unfolded.box_of(2), unfolded.box_of(4), unfolded.box_of(3)),
            (Some((0, 1)), Some((0, 0)), None)
        );
    }

    #[test]
    fn recipes_come_back_as_they_were() {
        let unfolded = unfolded();
        let bytes = unfolded.to_bytes();
        let size = unfolded.plain_size() + bytes.len() as u64;
        assert_eq!(Unfolded::from_bytes(&bytes, FILE, size).as_ref(), Some(&unfolded));
        assert_eq!(Unfolded::from_bytes(&bytes, FILE, size + 1), None);
        assert_eq!(Unfolded::from_bytes(&bytes, FILE - 1, size - 1), None);
    }

    #[test]
    fn streams_that_overlap_or_leave_the_file_are_refused() {
        let of = |streams: Vec<Stream>| Unfolded::new(FILE, streams, Vec::new());
        assert_eq!(of(vec![stream(10, 90, 1), stream(99, 9, 1)]), None);
        assert_eq!(of(vec![stream(10, 991, 1)]), None);
        assert_eq!(of(vec![stream(u64::MAX, 9, 1)]), None);
        assert_eq!(of(vec![stream(10, 0, 1)]), None);
        assert_eq!(of(vec![stream(10, 9, STREAM_MAX + 1)]), None);
        let boxed = |streams: Vec<usize>, boxes: usize| {
            let tiles = || TileBox::new(8, vec![3], vec![5], true, streams.clone()).unwrap();
            let boxes = (0..boxes).map(|_| tiles()).collect();
            Unfolded::new(FILE, vec![stream(10, 9, 24), stream(20, 9, 24), stream(30, 9, 23)], boxes)
                .is_some()
        };
        assert!(boxed(vec![0, 1], 1));
        assert!(
            !boxed(vec![0, 1], 2) && !boxed(vec![0, 0], 1) && !boxed(vec![0, 2], 1) && !boxed(vec![0, 3], 1)
        );
    }

    #[test]
    fn cut_and_changed_recipes_are_refused_or_understood_and_make_a_stream_or_none() {
        let bytes = unfolded().to_bytes();
        let size = |bytes: &[u8]| unfolded().plain_size() + bytes.len() as u64;
        for length in 0..bytes.len() {
            drop(Unfolded::from_bytes(&bytes[..length], FILE, size(&bytes[..length])));
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 3, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let Some(read) = Unfolded::from_bytes(&changed, FILE, size(&changed)) else { continue };
                for stream in &read.streams {
                    assert_eq!(stream.folded(&vec![5; 300]), None, "no stream has the check of these");
                }
            }
        }
    }
}
