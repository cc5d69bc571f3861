//! Which compressed parts of files are unfolded.
//!
//! Relies on the parsers, which say where compressed parts lie, and on [`crate::choose`]. The idea: of each variable some streams are undone
//! and coded as packing would; only where this is clearly shorter than what is stored are all of them made again, on all threads, and what
//! is made again bit for bit is unfolded.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU32;

use stdchk_formats::{
    Chunks, DESCRIPTION_MAX, DataType, Extent, Filtered, Format, Parsed, Source, Storage, Variable,
    ZarrArray, parse, zarr_folder,
};
use stdchk_model::exact::{part, part_mut, to_usize};

use super::filters::{GZIP_TAIL, gzip_head};
use super::tiles::{Grid, Region};
use super::view::{LastUndone, UnfoldedView};
use super::{Coding, Stream, TileBox, Unfolded, check_of};
use crate::choose::{Mode, Sample, choose};
use crate::codec::{Shape, Side, encode};
use crate::error::{AggregateError, Result};
use crate::key::without_numbers;
use crate::limits::{BOX_BYTES, BUFFERS_PER_STREAM, RECIPES_MAX, STREAM_MAX, STREAM_MIN};
use crate::numbers_in::numbers_in;
use crate::pack::Watch;
use crate::parallel::in_parallel;
use crate::source::Member;

/// Stored bytes of like variables below which nothing is won by unfolding them.
const STORED_MIN: u64 = 1 << 10;
/// Plain bytes that are coded to see whether unfolding is worth its time.
const SAMPLE: usize = 1 << 20;
/// Variables of a group of which these are, about.
const SAMPLED: usize = 8;
/// Bytes that the recipe of a stream takes, about, once it is coded.
const RECIPE_BYTES: u64 = 12;
/// Longest result of packing a stream's plain bytes, as a share of its stored bytes, for which it is unfolded. Unfolding 20 MB takes a second.
const GAIN: f64 = 0.95;
/// Plain bytes for every stored one, where the file doesn't say how many.
const RATIO_GUESSED: u64 = 4;

/// The mode and the limits of unfolding.
pub(crate) struct Unfolding<'a> {
    pub(crate) mode: &'a Mode,
    pub(crate) threads: usize,
    /// Bytes of memory.
    pub(crate) budget: u64,
    /// Plain bytes of a stream, most: who reads a byte of it makes all of it.
    pub(crate) stream_max: u64,
    pub(crate) watch: Watch<'a>,
}

/// The compressed streams of a variable, or of a whole file.
struct Candidate {
    file: usize,
    /// Position of the variable among those of the file; none for the whole file.
    variable: Option<usize>,
    /// Where each lies, and how it was made.
    streams: Vec<(Extent, Coding)>,
    /// Plain bytes of each, where that is known.
    plain_length: Option<u64>,
    /// Where each lies in an array, if they are chunks of one.
    chunks: Option<GridOfChunks>,
    /// The form of the plain bytes of the file, if it is a chunk of Zarr.
    typed: Option<Variable>,
}

/// Chunks of an array.
struct GridOfChunks {
    element: u64,
    chunk: Vec<u64>,
    shape: Vec<u64>,
    /// The first element of each.
    origins: Vec<Vec<u64>>,
}

impl GridOfChunks {
    fn grid(&self) -> Grid<'_> {
        Grid { element: self.element, chunk: &self.chunk, shape: &self.shape }
    }

    /// A chunk as a box of its own; none where it reaches to no edge of the array.
    fn alone(&self, number: usize) -> Option<TileBox> {
        let lengths = self.lengths(number);
        if lengths == self.chunk {
            return None;
        }
        TileBox::new(self.element, self.chunk.clone(), lengths, false, vec![0])
    }

    /// Elements of a chunk in each dimension, as far as they lie in the array.
    fn lengths(&self, number: usize) -> Vec<u64> {
        let Some(origin) = self.origins.get(number) else { return self.chunk.clone() };
        let lengths = origin.iter().zip(&self.chunk).zip(&self.shape);
        lengths.map(|((origin, chunk), shape)| *chunk.min(&shape.saturating_sub(*origin))).collect()
    }

    /// Whether all that a chunk holds beyond the array is zero.
    fn is_zero_beyond(&self, number: usize, plain: &[u8]) -> bool {
        self.alone(number).is_none_or(|alone| alone.is_zero_beyond(0, plain))
    }

    /// The part of a chunk that lies in the array, and its shape.
    fn inside(&self, number: usize, plain: Vec<u8>) -> (Vec<u8>, Shape) {
        let known = plain.len() as u64
            == self.chunk.iter().fold(self.element, |all, length| all.saturating_mul(*length));
        let Some(alone) = self.alone(number).filter(|_| known) else {
            return (plain, Shape(self.chunk.clone()));
        };
        let mut body = vec![0; to_usize(alone.bytes())];
        alone.put(&mut body, 0, &plain);
        (body, Shape(self.lengths(number)))
    }
}

impl Candidate {
    fn stored_bytes(&self) -> u64 {
        self.streams.iter().fold(0, |sum, (stored, _)| sum.saturating_add(stored.length))
    }

    fn plain_guess(&self) -> u64 {
        let longest = self.streams.iter().map(|(stored, _)| stored.length).fold(0, u64::max);
        self.plain_length.unwrap_or_else(|| longest.saturating_mul(RATIO_GUESSED)).min(STREAM_MAX)
    }
}

/// Unfolds what is worth it: the files show their unfolded form from now on, and `parsed` says what is in it.
pub(crate) fn unfold(files: &mut [Member], parsed: &mut [Parsed], options: &Unfolding<'_>) -> Result<()> {
    let mut candidates = Vec::new();
    let zarr = arrays_of_zarr(files)?;
    for (number, (file, parsed)) in files.iter().zip(parsed.iter()).enumerate() {
        match zarr_of(number, file, parsed, &zarr) {
            Some(chunk) => candidates.push(chunk),
            None => candidates.extend(candidates_of(number, file, parsed)?),
        }
    }
    let files_now = &*files;
    let longest = candidates.iter().map(Candidate::plain_guess).fold(1, u64::max);
    let fitting = to_usize(options.budget / (BUFFERS_PER_STREAM * longest));
    let threads = options.threads.min(fitting).max(1);
    let goes_on = || if (options.watch)(0) { Ok(()) } else { Err(AggregateError::Stopped) };
    let groups = alike(&candidates, parsed);
    let verdicts = in_parallel(&groups, threads, |_, group| {
        goes_on()?;
        let members: Vec<&Candidate> =
            group.iter().filter_map(|position| candidates.get(*position)).collect();
        if is_worth(&members, files_now, parsed, options.mode)? {
            return Ok(group.clone());
        }
        // Of those that are not worth it together, some are: most of an array may be constant in some ranks.
        let mut worth = Vec::new();
        for (position, member) in group.iter().zip(members).filter(|_| group.len() > 1) {
            if is_worth(&[member], files_now, parsed, options.mode)? {
                worth.push(*position);
            }
        }
        Ok::<_, AggregateError>(worth)
    })?;
    let chosen: HashSet<usize> = verdicts.into_iter().flatten().collect();
    let candidates = candidates.into_iter().enumerate();
    let chosen: Vec<Candidate> = candidates
        .filter(|(position, _)| chosen.contains(position))
        .map(|(_, candidate)| candidate)
        .collect();
    let jobs: Vec<(&Candidate, usize)> = chosen
        .iter()
        .flat_map(|candidate| (0..candidate.streams.len()).map(move |number| (candidate, number)))
        .collect();
    let usual = AtomicU32::new(0);
    let made = in_parallel(&jobs, threads, |_, (candidate, number)| {
        goes_on()?;
        made_again(part(files_now, candidate.file), candidate, *number, options.stream_max, &usual)
    })?;
    let mut found: Vec<Found> = files.iter().map(|_| Found::default()).collect();
    let mut made = made.into_iter();
    for candidate in chosen {
        let made: Vec<Option<Made>> = made.by_ref().take(candidate.streams.len()).collect();
        part_mut(&mut found, candidate.file).add(candidate, made, options.stream_max.min(BOX_BYTES));
    }
    let last = LastUndone::default();
    for (number, found) in found.into_iter().enumerate() {
        show_unfolded(number, files, parsed, found, &last);
    }
    Ok(())
}

/// A stream that is made again, and whether its chunk holds only zeros beyond the array.
struct Made {
    stream: Stream,
    is_zero_beyond: bool,
}

/// The streams of a file that are made again, and how they are put together.
#[derive(Default)]
struct Found {
    streams: Vec<Stream>,
    arrays: Vec<Array>,
    typed: Option<Variable>,
}

/// The chunks of a variable that are put together.
struct Array {
    variable: usize,
    /// The boxes of the variable's grid.
    regions: Vec<Region>,
    /// For each, the places of its chunks in the file, and whether what they hold beyond the array is kept; none where some chunk isn't
    /// made again.
    boxes: Vec<Option<(Vec<Extent>, bool)>>,
    /// Boxes that follow each other are rows that follow each other.
    in_order: bool,
}

impl Found {
    fn add(&mut self, candidate: Candidate, made: Vec<Option<Made>>, box_bytes: u64) {
        if let (Some(variable), Some(chunks)) = (candidate.variable, &candidate.chunks) {
            self.arrays.extend(array_of(variable, chunks, &candidate.streams, &made, box_bytes));
        }
        self.streams.extend(made.into_iter().flatten().map(|made| made.stream));
        self.typed = candidate.typed;
    }

    /// The boxes of all arrays; streams are in order of their place.
    fn boxes(&self, parsed: &Parsed) -> Option<Vec<TileBox>> {
        let number = |stored: &Extent| self.streams.binary_search_by_key(stored, |stream| stream.stored).ok();
        let mut boxes = Vec::new();
        for array in &self.arrays {
            let Some((element, Storage::Filtered(filtered))) = parsed
                .variables
                .get(array.variable)
                .map(|variable| (u64::from(variable.data_type.size), &variable.storage))
            else {
                return None;
            };
            for (region, found) in array.regions.iter().zip(&array.boxes) {
                let Some((places, keeps_fringe)) = found else { continue };
                let streams = places.iter().map(number).collect::<Option<Vec<_>>>()?;
                let (chunk, lengths) = (filtered.chunks.shape.clone(), region.lengths.clone());
                boxes.push(TileBox::new(element, chunk, lengths, *keeps_fringe, streams)?);
            }
        }
        Some(boxes)
    }
}

/// How the chunks of a variable are put together; `None`: it is no better than to leave them apart.
fn array_of(
    variable: usize,
    chunks: &GridOfChunks,
    streams: &[(Extent, Coding)],
    made: &[Option<Made>],
    box_bytes: u64,
) -> Option<Array> {
    let places: HashMap<&[u64], (Extent, bool)> = chunks
        .origins
        .iter()
        .zip(streams)
        .zip(made)
        .filter_map(|((origin, (stored, _)), made)| {
            Some((origin.as_slice(), (*stored, made.as_ref()?.is_zero_beyond)))
        })
        .collect();
    let grid = chunks.grid();
    let regions = grid.boxes(box_bytes, chunks.origins.len())?;
    let boxes: Vec<_> = regions
        .iter()
        .map(|region| {
            let chunks = grid.origins_in(region);
            let found = chunks.iter().map(|origin| places.get(origin.as_slice()).copied());
            let found = found.collect::<Option<Vec<_>>>()?;
            let keeps_fringe = found.iter().any(|(_, is_zero_beyond)| !is_zero_beyond);
            Some((found.into_iter().map(|(stored, _)| stored).collect::<Vec<_>>(), keeps_fringe))
        })
        .collect();
    let several = boxes.iter().flatten().any(|(chunks, _)| chunks.len() > 1);
    let reaches_beyond = chunks.shape.iter().zip(&chunks.chunk).any(|(shape, chunk)| shape % chunk != 0);
    let in_order = grid.follow_each_other(&regions);
    (several || reaches_beyond).then_some(Array { variable, regions, boxes, in_order })
}

/// Lets a file show its unfolded form, if it has streams.
fn show_unfolded(
    number: usize,
    files: &mut [Member],
    parsed: &mut [Parsed],
    mut found: Found,
    last: &LastUndone,
) {
    let file = part_mut(files, number);
    let parsed = part_mut(parsed, number);
    if found.streams.is_empty() {
        return;
    }
    found.streams.sort_by_key(|stream| stream.stored);
    let Some(boxes) = found.boxes(parsed) else { return };
    let Found { streams, arrays, typed } = found;
    let Some(unfolded) = Unfolded::new(file.entry.size, streams, boxes) else { return };
    let view = UnfoldedView::new(number, unfolded.clone(), last);
    if view.recipes_length() > RECIPES_MAX {
        return;
    }
    file.show_unfolded(view);
    *parsed = match (typed, unfolded.plain(0)) {
        (Some(variable), Some(plain)) => {
            let variables = vec![Variable { extents: vec![plain], ..variable }];
            Parsed { variables, size: Source::size(&*file), ..parsed.clone() }
        }
        _ => moved(parsed, &unfolded, &arrays, file),
    };
}

/// The compressed parts of a file that can be undone.
fn candidates_of(number: usize, file: &Member, parsed: &Parsed) -> Result<Vec<Candidate>> {
    if parsed.format == Format::Unknown {
        return Ok(gzip_of(number, file)?.into_iter().collect());
    }
    let variables = parsed.variables.iter().enumerate();
    let found = variables.filter_map(|(position, variable)| {
        let variable_number = Some(position);
        match &variable.storage {
            Storage::Filtered(filtered) => {
                let plain_length = Some(chunk_bytes(variable, &filtered.chunks)?);
                let (streams, origins) = chunks_of(variable, filtered);
                let (chunk, shape) = (filtered.chunks.shape.clone(), variable.shape.clone());
                let element = u64::from(variable.data_type.size);
                let chunks = Some(GridOfChunks { element, chunk, shape, origins });
                Some(Candidate {
                    file: number,
                    variable: variable_number,
                    streams,
                    plain_length,
                    chunks,
                    typed: None,
                })
            }
            Storage::DeflatedNpy => {
                let streams = variable.extents.iter().map(|extent| (*extent, Coding::deflated())).collect();
                let (plain_length, chunks) = (None, None);
                Some(Candidate {
                    file: number,
                    variable: variable_number,
                    streams,
                    plain_length,
                    chunks,
                    typed: None,
                })
            }
            _ => None,
        }
    });
    Ok(found.collect())
}

/// The chunks of a variable that went through filters which can be undone, and where each begins.
fn chunks_of(variable: &Variable, filtered: &Filtered) -> (Vec<(Extent, Coding)>, Vec<Vec<u64>>) {
    let chunks = variable.extents.iter().zip(&filtered.chunks.origins).enumerate();
    let coded = chunks.filter_map(|(number, (extent, origin))| {
        let coding = Coding::of_filters(&filtered.of_chunk(number))?;
        (extent.length >= STREAM_MIN).then_some(((*extent, coding), origin.clone()))
    });
    coded.unzip()
}

/// Bytes of a plain chunk.
fn chunk_bytes(variable: &Variable, chunks: &Chunks) -> Option<u64> {
    chunks.bytes(variable.data_type).filter(|bytes| (1..=STREAM_MAX).contains(bytes))
}

/// The arrays of Zarr in a set, by their folders.
fn arrays_of_zarr(files: &[Member]) -> Result<HashMap<String, ZarrArray>> {
    let mut arrays = HashMap::new();
    for file in files {
        let size = file.entry.size;
        let Some(folder) = zarr_folder(&file.entry.name).filter(|_| size <= DESCRIPTION_MAX) else {
            continue;
        };
        let description = stored_of(file, Extent { offset: 0, length: size })?;
        if let Some(array) = ZarrArray::described(&description) {
            arrays.insert(folder.to_owned(), array);
        }
    }
    Ok(arrays)
}

/// A file that is a chunk of an array of Zarr, in the folder of the array or below it.
fn zarr_of(
    number: usize,
    file: &Member,
    parsed: &Parsed,
    arrays: &HashMap<String, ZarrArray>,
) -> Option<Candidate> {
    let (name, size) = (file.entry.name.as_str(), file.entry.size);
    if arrays.is_empty() || parsed.format != Format::Unknown || !(STREAM_MIN..=STREAM_MAX).contains(&size) {
        return None;
    }
    let folders = name
        .rmatch_indices('/')
        .map(|(at, _)| at)
        .filter_map(|at| Some((name.get(..at)?, name.get(at + 1..)?)));
    let (folder, array) = folders.chain([("", name)]).find_map(|(folder, rest)| {
        arrays.get(folder).filter(|array| array.is_chunk(rest)).map(|array| (folder, array))
    })?;
    let plain_length = array.chunk_bytes().filter(|bytes| *bytes <= STREAM_MAX)?;
    let (group, variable) = folder.rsplit_once('/').unwrap_or(("", folder));
    let typed = Variable {
        group: group.to_owned(),
        name: variable.to_owned(),
        data_type: array.data_type,
        shape: array.chunk.clone(),
        storage: Storage::Plain,
        extents: Vec::new(),
    };
    let streams = vec![(Extent { offset: 0, length: size }, Coding::of_zarr(array.coder))];
    let plain_length = Some(plain_length);
    Some(Candidate { file: number, variable: None, streams, plain_length, chunks: None, typed: Some(typed) })
}

/// Longest head of a gzip file that is read: it holds a name and a comment.
const GZIP_HEAD_MAX: u64 = 4 << 10;

/// The stream of a gzip file.
fn gzip_of(number: usize, file: &Member) -> Result<Option<Candidate>> {
    let size = file.entry.size;
    if size < STORED_MIN {
        return Ok(None);
    }
    let head = stored_of(file, Extent { offset: 0, length: GZIP_HEAD_MAX.min(size) })?;
    let Some(start) = gzip_head(&head).map(|start| start as u64) else { return Ok(None) };
    let Some(length) = size.checked_sub(start + GZIP_TAIL).filter(|length| (1..=STREAM_MAX).contains(length))
    else {
        return Ok(None);
    };
    let streams = vec![(Extent { offset: start, length }, Coding::deflated())];
    Ok(Some(Candidate {
        file: number,
        variable: None,
        streams,
        plain_length: None,
        chunks: None,
        typed: None,
    }))
}

/// The candidates that packing codes together, if they are unfolded: chunks of like variables. All others are alone.
fn alike(candidates: &[Candidate], parsed: &[Parsed]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut known: HashMap<(String, DataType, usize), usize> = HashMap::new();
    for (position, candidate) in candidates.iter().enumerate() {
        let variables = &part(parsed, candidate.file).variables;
        let variable = candidate.variable.and_then(|number| variables.get(number));
        let variable = variable.filter(|_| candidate.chunks.is_some()).or(candidate.typed.as_ref());
        let Some(variable) = variable else {
            groups.push(vec![position]);
            continue;
        };
        let key = (without_numbers(&variable.path()), variable.data_type, variable.shape.len());
        let group = *known.entry(key).or_insert(groups.len());
        match groups.get_mut(group) {
            Some(group) => group.push(position),
            None => groups.push(vec![position]),
        }
    }
    groups
}

/// Whether packing makes less of the plain bytes than of the stored ones: seen on the first streams of some of the group.
fn is_worth(group: &[&Candidate], files: &[Member], parsed: &[Parsed], mode: &Mode) -> Result<bool> {
    let stored_bytes =
        group.iter().fold(0_u64, |sum, candidate| sum.saturating_add(candidate.stored_bytes()));
    let Some(first) = group.first().filter(|_| stored_bytes >= STORED_MIN) else { return Ok(false) };
    let (mut plain, mut stored_bytes, mut shapes) = (Vec::new(), 0, Vec::new());
    let step = group.len().div_ceil(SAMPLED);
    let share = SAMPLE / group.len().div_ceil(step);
    for candidate in group.iter().step_by(step) {
        let most = plain.len() + share;
        for (number, (stored, coding)) in candidate.streams.iter().enumerate() {
            let Some(undone) = undone(part(files, candidate.file), *stored, coding)? else { continue };
            stored_bytes += stored.length;
            let (undone, shape) = match (&candidate.chunks, &candidate.typed) {
                (Some(chunks), _) => chunks.inside(number, undone),
                (None, Some(typed)) => (undone, Shape(typed.shape.clone())),
                (None, None) => (undone, Shape(Vec::new())),
            };
            plain.extend_from_slice(&undone);
            shapes.push(shape);
            if plain.len() >= most {
                break;
            }
        }
    }
    if plain.is_empty() {
        return Ok(false);
    }
    let recipes = shapes.len() as u64 * RECIPE_BYTES;
    let variables = &part(parsed, first.file).variables;
    let variable = first.variable.and_then(|position| variables.get(position));
    let variable = variable.filter(|_| first.chunks.is_some()).or(first.typed.as_ref());
    let share = match variable {
        Some(variable) => coded_share(mode, &plain, Some(variable.data_type), false, shapes),
        None => share_of_file(mode, &plain),
    };
    Ok(share * plain.len() as f64 + recipes as f64 <= GAIN * stored_bytes as f64)
}

/// The share of a file's bytes that packing leaves, by the type of most of them.
#[expect(clippy::ptr_arg, reason = "a source has a size, which a slice as a trait object has not")]
fn share_of_file(mode: &Mode, plain: &Vec<u8>) -> f64 {
    let inner = parse(plain);
    let most = |extent: &Extent| extent.length >= plain.len() as u64 / 2;
    let variable = inner.variables.iter().find_map(|variable| {
        let extent = variable.extents.iter().find(|extent| most(extent))?;
        matches!(variable.storage, Storage::Plain | Storage::ColumnMajor)
            .then_some((*extent, variable.data_type))
    });
    let guessed = || {
        numbers_in(plain, &[])
            .iter()
            .map(|numbers| (numbers.extent, numbers.data_type))
            .find(|(extent, _)| most(extent))
    };
    let (typed, opaque) = match variable {
        Some(variable) => (Some(variable), false),
        None => (guessed(), true),
    };
    let (extent, data_type) = match typed {
        Some((extent, data_type)) => (extent, Some(data_type)),
        None => (Extent { offset: 0, length: plain.len() as u64 }, None),
    };
    let length = extent.length.min(4 * SAMPLE as u64);
    let sample = part(plain, to_usize(extent.offset)..to_usize(extent.offset + length));
    coded_share(
        mode,
        sample,
        data_type,
        opaque,
        vec![Shape(vec![sample.len() as u64 / data_type.map_or(1, |known| u64::from(known.size))])],
    )
}

/// The share of a sample that the chain leaves which packing would choose.
fn coded_share(
    mode: &Mode,
    raw: &[u8],
    data_type: Option<DataType>,
    opaque: bool,
    shapes: Vec<Shape>,
) -> f64 {
    let sample = Sample { raw, data_type, opaque, shapes: &shapes, base: &[] };
    let choice = choose(mode, &sample);
    let coded = match choice.coded {
        Some(coded) => coded.len(),
        None => encode(&choice.steps, raw, Side { shapes: &shapes, base: &[] })
            .map_or(raw.len(), |coded| coded.len()),
    };
    coded.min(raw.len()) as f64 / raw.len().max(1) as f64
}

/// A range of the file. Several threads may read at one time.
fn stored_of(file: &Member, stored: Extent) -> Result<Vec<u8>> {
    let mut bytes = vec![0; to_usize(stored.length)];
    file.read_at(stored.offset, &mut bytes).map_err(|error| file.unread(error))?;
    Ok(bytes)
}

fn undone(file: &Member, stored: Extent, coding: &Coding) -> Result<Option<Vec<u8>>> {
    Ok(coding.undone(&stored_of(file, stored)?))
}

/// A stream of a candidate, if it can be made again.
fn made_again(
    file: &Member,
    candidate: &Candidate,
    number: usize,
    stream_max: u64,
    usual: &AtomicU32,
) -> Result<Option<Made>> {
    let (stored, coding) = part(&candidate.streams, number);
    let (stored, plain_length) = (*stored, candidate.plain_length);
    if plain_length.is_some_and(|length| length > stream_max) || stored.length > stream_max {
        return Ok(None);
    }
    let bytes = stored_of(file, stored)?;
    let Some((plain, folds)) = coding.folds(&bytes, usual) else { return Ok(None) };
    let length = plain.len() as u64;
    let expected = plain_length.is_none_or(|expected| length == expected) && length <= stream_max;
    if !expected || plain.is_empty() {
        return Ok(None);
    }
    let is_zero_beyond = candidate.chunks.as_ref().is_none_or(|chunks| chunks.is_zero_beyond(number, &plain));
    let stream = Stream { stored, plain_length: length, folds, check: check_of(&bytes) };
    Ok(Some(Made { stream, is_zero_beyond }))
}

/// The variables of the unfolded form of a file.
fn moved(parsed: &Parsed, unfolded: &Unfolded, arrays: &[Array], file: &Member) -> Parsed {
    let size = Source::size(file);
    let place = |extent: &Extent| {
        let at = unfolded.streams.binary_search_by_key(extent, |stream| stream.stored).ok()?;
        let plain = unfolded.plain(at)?;
        Some(if unfolded.box_of(at).is_some() { Place::InBox } else { Place::Plain(plain) })
    };
    let plain_at = |extent: &Extent| match place(extent) {
        Some(Place::Plain(plain)) => Some(plain),
        Some(Place::InBox) | None => None,
    };
    if parsed.format == Format::Unknown {
        let inner = unfolded.plain(0).map(|plain| parse(&Within { file, plain }));
        let (format, variables) =
            inner.map_or((Format::Unknown, Vec::new()), |inner| (inner.format, inner.variables));
        let start = unfolded.plain(0).map_or(0, |plain| plain.offset);
        let variables = variables.into_iter().map(|variable| shifted(variable, start)).collect();
        return Parsed { format, size, variables, reason: parsed.reason.clone() };
    }
    let mut variables = Vec::with_capacity(parsed.variables.len());
    let (mut arrays, mut next_box) = (arrays.iter().peekable(), 0);
    for (number, variable) in parsed.variables.iter().enumerate() {
        if let Some(array) = arrays.next_if(|array| array.variable == number) {
            variables.extend(of_array(variable, array, unfolded, &mut next_box));
        }
        match &variable.storage {
            Storage::Filtered(filtered) => variables.extend(of_chunks(variable, filtered, unfolded, &place)),
            Storage::DeflatedNpy => match variable.extents.first().and_then(plain_at) {
                Some(plain) => variables.extend(of_npy(variable, file, plain)),
                None => variables.push(in_place(variable, unfolded)),
            },
            _ => variables.push(in_place(variable, unfolded)),
        }
    }
    Parsed { format: parsed.format, size, variables, reason: None }
}

/// A variable whose bytes are the same in both forms.
fn in_place(variable: &Variable, unfolded: &Unfolded) -> Variable {
    let extents =
        variable.extents.iter().map(|extent| Extent { offset: unfolded.moved(extent.offset), ..*extent });
    Variable { extents: extents.collect(), ..variable.clone() }
}

fn shifted(mut variable: Variable, by: u64) -> Variable {
    variable.extents.iter_mut().for_each(|extent| extent.offset += by);
    variable
}

/// Where the plain bytes of a stream are.
enum Place {
    Plain(Extent),
    InBox,
}

/// The arrays that were put together of the chunks of a variable: all of it, or one for each box.
fn of_array(variable: &Variable, array: &Array, unfolded: &Unfolded, next_box: &mut usize) -> Vec<Variable> {
    let mut parts = Vec::new();
    for (region, _) in array.regions.iter().zip(&array.boxes).filter(|(_, found)| found.is_some()) {
        parts.extend(unfolded.place_of_box(*next_box).map(|place| (region.lengths.clone(), place.body)));
        *next_box += 1;
    }
    let whole = array.in_order && parts.len() == array.regions.len();
    if let (true, Some((_, first)), Some((_, last))) = (whole, parts.first(), parts.last()) {
        let body = Extent { offset: first.offset, length: last.end() - first.offset };
        parts = vec![(variable.shape.clone(), body)];
    }
    let of =
        |(shape, body)| Variable { shape, storage: Storage::Plain, extents: vec![body], ..variable.clone() };
    parts.into_iter().map(of).collect()
}

/// The chunks that were unfolded in their place as a variable of their type, and those that weren't unfolded as they were.
fn of_chunks(
    variable: &Variable,
    filtered: &Filtered,
    unfolded: &Unfolded,
    place: &dyn Fn(&Extent) -> Option<Place>,
) -> Vec<Variable> {
    let (mut plain, mut origins) = (Vec::new(), Vec::new());
    let (mut left, mut left_origins, mut left_skipped) = (Vec::new(), Vec::new(), Vec::new());
    let chunks = variable.extents.iter().zip(&filtered.chunks.origins).zip(&filtered.skipped);
    for ((extent, origin), skipped) in chunks {
        match place(extent) {
            Some(Place::InBox) => {}
            Some(Place::Plain(found)) => {
                plain.push(found);
                origins.push(origin.clone());
            }
            None => {
                left.push(Extent { offset: unfolded.moved(extent.offset), ..*extent });
                left_origins.push(origin.clone());
                left_skipped.push(*skipped);
            }
        }
    }
    let shape = filtered.chunks.shape.clone();
    let typed = Storage::Chunked(Chunks { shape: shape.clone(), origins });
    let filters = filtered.filters.clone();
    let rest = Filtered { chunks: Chunks { shape, origins: left_origins }, filters, skipped: left_skipped };
    [(typed, plain), (Storage::Filtered(rest), left)]
        .into_iter()
        .filter(|(_, extents)| !extents.is_empty())
        .map(|(storage, extents)| Variable { storage, extents, ..variable.clone() })
        .collect()
}

/// The array of a `.npy` file that was unfolded.
fn of_npy(variable: &Variable, file: &Member, plain: Extent) -> Option<Variable> {
    let array = parse(&Within { file, plain }).variables.into_iter().next()?;
    let (group, name) = match variable.name.rsplit_once('/') {
        Some((group, name)) => (group.to_owned(), name.to_owned()),
        None => (String::new(), variable.name.clone()),
    };
    Some(Variable { group, name, ..shifted(array, plain.offset) })
}

/// A part of an unfolded file, as a source.
struct Within<'a> {
    file: &'a Member,
    plain: Extent,
}

impl Source for Within<'_> {
    fn size(&self) -> u64 {
        self.plain.length
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        self.file.read_at(self.plain.offset + offset, buffer)
    }
}
