//! Which compressed parts of files are unfolded.
//!
//! Relies on the parsers, which say where compressed parts lie, and on [`crate::choose`]. The idea: of each variable some streams are undone
//! and coded as packing would; only where this is clearly shorter than what is stored are all of them made again, on all threads, and what
//! is made again bit for bit is unfolded.

use std::sync::atomic::AtomicU32;

use stdchk_formats::{Chunks, DataType, Extent, Filtered, Format, Parsed, Source, Storage, Variable, parse};
use stdchk_model::exact::{part, part_mut, to_usize};

use super::filters::{GZIP_TAIL, gzip_head};
use super::view::{LastStreams, UnfoldedView};
use super::{Coding, Stream, Unfolded, check_of};
use crate::choose::{Mode, Sample, choose};
use crate::codec::{Shape, Side, encode};
use crate::error::{AggregateError, Result};
use crate::limits::{BUFFERS_PER_STREAM, RECIPES_MAX, STREAM_MAX, STREAM_MIN};
use crate::numbers_in::numbers_in;
use crate::pack::Watch;
use crate::parallel::in_parallel;
use crate::source::Member;

/// Stored bytes of a variable below which nothing is won by unfolding it.
const STORED_MIN: u64 = 1 << 10;
/// Plain bytes that are coded to see whether unfolding is worth its time.
const SAMPLE: usize = 1 << 20;
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
    for (number, (file, parsed)) in files.iter().zip(parsed.iter()).enumerate() {
        candidates.extend(candidates_of(number, file, parsed)?);
    }
    let files_now = &*files;
    let worth =
        |candidate: &Candidate| is_worth(candidate, part(files_now, candidate.file), parsed, options.mode);
    let longest = candidates.iter().map(Candidate::plain_guess).fold(1, u64::max);
    let fitting = to_usize(options.budget / (BUFFERS_PER_STREAM * longest));
    let threads = options.threads.min(fitting).max(1);
    let goes_on = || if (options.watch)(0) { Ok(()) } else { Err(AggregateError::Stopped) };
    let verdicts =
        in_parallel(&candidates, threads, |_, candidate| goes_on().and_then(|()| worth(candidate)))?;
    let chosen: Vec<Candidate> = candidates
        .into_iter()
        .zip(verdicts)
        .filter(|(_, worth)| *worth)
        .map(|(candidate, _)| candidate)
        .collect();
    let jobs: Vec<(usize, Option<u64>, &(Extent, Coding))> = chosen
        .iter()
        .flat_map(|candidate| {
            candidate.streams.iter().map(|stream| (candidate.file, candidate.plain_length, stream))
        })
        .collect();
    let usual = AtomicU32::new(0);
    let made = in_parallel(&jobs, threads, |_, (file, plain_length, (stored, coding))| {
        goes_on()?;
        let too_long = plain_length.is_some_and(|length| length > options.stream_max);
        if too_long || stored.length > options.stream_max {
            return Ok(None);
        }
        stream_of(part(files_now, *file), *stored, coding, *plain_length, options.stream_max, &usual)
    })?;
    let mut streams: Vec<Vec<Stream>> = files.iter().map(|_| Vec::new()).collect();
    for ((file, ..), stream) in jobs.iter().zip(made) {
        part_mut(&mut streams, *file).extend(stream);
    }
    let last = LastStreams::default();
    for (number, streams) in streams.into_iter().enumerate() {
        show_unfolded(number, files, parsed, streams, &last);
    }
    Ok(())
}

/// Lets a file show its unfolded form, if it has streams.
fn show_unfolded(
    number: usize,
    files: &mut [Member],
    parsed: &mut [Parsed],
    mut streams: Vec<Stream>,
    last: &LastStreams,
) {
    let file = part_mut(files, number);
    let parsed = part_mut(parsed, number);
    if streams.is_empty() {
        return;
    }
    streams.sort_by_key(|stream| stream.stored);
    let Some(unfolded) = Unfolded::new(file.entry.size, streams) else { return };
    let view = UnfoldedView::new(number, unfolded.clone(), last);
    if view.recipes_length() > RECIPES_MAX {
        return;
    }
    file.show_unfolded(view);
    *parsed = moved(parsed, &unfolded, file);
}

/// The compressed parts of a file that can be undone.
fn candidates_of(number: usize, file: &Member, parsed: &Parsed) -> Result<Vec<Candidate>> {
    if parsed.format == Format::Unknown {
        return Ok(gzip_of(number, file)?.into_iter().collect());
    }
    let variables = parsed.variables.iter().enumerate();
    let found = variables.filter_map(|(position, variable)| {
        let (streams, plain_length) = match &variable.storage {
            Storage::Filtered(filtered) => {
                (chunks_of(variable, filtered), Some(chunk_bytes(variable, &filtered.chunks)?))
            }
            Storage::DeflatedNpy => {
                let all = variable.extents.iter().map(|extent| (*extent, Coding::deflated()));
                (all.collect(), None)
            }
            _ => return None,
        };
        Some(Candidate { file: number, variable: Some(position), streams, plain_length })
    });
    Ok(found.filter(|candidate| candidate.stored_bytes() >= STORED_MIN).collect())
}

/// The chunks of a variable that went through filters which can be undone.
fn chunks_of(variable: &Variable, filtered: &Filtered) -> Vec<(Extent, Coding)> {
    let chunks = variable.extents.iter().enumerate();
    let coded = chunks.filter_map(|(number, extent)| {
        let coding = Coding::of_filters(&filtered.of_chunk(number))?;
        (extent.length >= STREAM_MIN).then_some((*extent, coding))
    });
    coded.collect()
}

/// Bytes of a plain chunk.
fn chunk_bytes(variable: &Variable, chunks: &Chunks) -> Option<u64> {
    chunks.bytes(variable.data_type).filter(|bytes| (1..=STREAM_MAX).contains(bytes))
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
    Ok(Some(Candidate { file: number, variable: None, streams, plain_length: None }))
}

/// Whether packing makes less of the plain bytes than of the stored ones: seen on the first streams.
fn is_worth(candidate: &Candidate, file: &Member, parsed: &[Parsed], mode: &Mode) -> Result<bool> {
    let (mut plain, mut stored_bytes) = (Vec::new(), 0);
    for (stored, coding) in &candidate.streams {
        let Some(undone) = undone(file, *stored, coding)? else { continue };
        stored_bytes += stored.length;
        plain.extend_from_slice(&undone);
        if plain.len() >= SAMPLE {
            break;
        }
    }
    if plain.is_empty() {
        return Ok(false);
    }
    let variables = &part(parsed, candidate.file).variables;
    let variable = candidate.variable.and_then(|position| variables.get(position));
    let ratio = match variable.map(|variable| (variable, &variable.storage)) {
        Some((variable, Storage::Filtered(filtered))) => {
            let chunks = plain.len() as u64 / candidate.plain_length.unwrap_or(1).max(1);
            let shape = [&[chunks], filtered.chunks.shape.as_slice()].concat();
            coded_share(mode, &plain, Some(variable.data_type), false, shape)
        }
        _ => share_of_file(mode, &plain),
    };
    Ok(ratio * plain.len() as f64 <= GAIN * stored_bytes as f64)
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
        vec![sample.len() as u64 / data_type.map_or(1, |known| u64::from(known.size))],
    )
}

/// The share of a sample that the chain leaves which packing would choose.
fn coded_share(mode: &Mode, raw: &[u8], data_type: Option<DataType>, opaque: bool, shape: Vec<u64>) -> f64 {
    let shapes = [Shape(shape)];
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

/// The stream at this place, if it can be made again.
fn stream_of(
    file: &Member,
    stored: Extent,
    coding: &Coding,
    plain_length: Option<u64>,
    stream_max: u64,
    usual: &AtomicU32,
) -> Result<Option<Stream>> {
    let bytes = stored_of(file, stored)?;
    let Some((plain, folds)) = coding.folds(&bytes, usual) else { return Ok(None) };
    let length = plain.len() as u64;
    let expected = plain_length.is_none_or(|expected| length == expected) && length <= stream_max;
    let stream = Stream { stored, plain_length: length, folds, check: check_of(&bytes) };
    Ok((expected && !plain.is_empty()).then_some(stream))
}

/// The variables of the unfolded form of a file.
fn moved(parsed: &Parsed, unfolded: &Unfolded, file: &Member) -> Parsed {
    let size = Source::size(file);
    let place = |extent: &Extent| {
        let at = unfolded.streams.binary_search_by_key(extent, |stream| stream.stored).ok()?;
        unfolded.plain(at)
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
    for variable in &parsed.variables {
        match &variable.storage {
            Storage::Filtered(filtered) => variables.extend(of_chunks(variable, filtered, unfolded, &place)),
            Storage::DeflatedNpy => match variable.extents.first().and_then(place) {
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

/// The chunks that were unfolded as a variable of their type, and those that weren't as they were.
fn of_chunks(
    variable: &Variable,
    filtered: &Filtered,
    unfolded: &Unfolded,
    place: &dyn Fn(&Extent) -> Option<Extent>,
) -> Vec<Variable> {
    let (mut plain, mut origins) = (Vec::new(), Vec::new());
    let (mut left, mut left_origins, mut left_skipped) = (Vec::new(), Vec::new(), Vec::new());
    let chunks = variable.extents.iter().zip(&filtered.chunks.origins).zip(&filtered.skipped);
    for ((extent, origin), skipped) in chunks {
        match place(extent) {
            Some(found) => {
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
