//! Which chain codes a block: candidates by type and mode, tried on a sample, judged by size and time.
//!
//! Pure: no clock is read. Relies on [`crate::codec`]. The idea: times are constants measured once per step and machine
//! class, sizes come from the sample; the objective is the time until the bytes are safe behind a sink of some speed, and
//! a mode is nothing but the speed that it assumes.

mod mode;
mod repeats;

use stdchk_formats::{ByteOrder, DataType, Kind, Source};
use stdchk_model::exact::{self, narrow, to_usize};

use crate::codec::{Lane, Repeats, Shape, Side, Step, encode, records_apply, with_zstd};
pub use mode::Mode;
use repeats::repeats;

/// Nanoseconds per input byte of a step and of its undoing, since every block is decoded again; on one core of the
/// measuring machine (`--example steps`), rounded.
fn time_of(step: &Step) -> f64 {
    match step {
        Step::Swap(_) => 0.1,
        Step::Shuffle(_) => 0.4,
        Step::BitShuffle(_) => 1.2,
        Step::XorBase => 0.2,
        Step::Changed(size) => 2.0 / f64::from(*size),
        Step::DifferenceBase(lane) => 2.4 / lane.size() as f64,
        Step::Lorenzo(Lane::F16) => 0.4,
        Step::Difference(lane) | Step::Lorenzo(lane) => 7.5 / lane.size() as f64,
        Step::Ragged => 1.0,
        Step::Distinct(size) => 12.0 / f64::from(*size),
        Step::Lz4 => 1.0,
        Step::Zstd(level) => zstd_time(*level),
        Step::Planes(_, ..=0) => 1.0,
        Step::Planes(_, level) => 0.5 + 0.4 * zstd_time(*level),
        Step::Gzip(_) => 35.0,
        Step::Pco(lane, level) => (20.0 + 4.0 * f64::from(*level)) / lane.size() as f64,
        Step::Fpc(_) => 3.0,
    }
}

fn zstd_time(level: i32) -> f64 {
    match level {
        ..=1 => 2.5,
        2..=4 => 3.5,
        5 => 8.5,
        6..=9 => 13.0,
        10..=15 => 60.0,
        _ => 300.0,
    }
}

/// Part of a block that a search leaves over, from which on it takes all of its time: it goes fast over what repeats.
const SEARCHED_SHARE: f64 = 0.25;

/// The time of a chain that leaves this share of a block.
fn chain_time(steps: &[Step], share: f64) -> f64 {
    let searched = (share / SEARCHED_SHARE).min(1.0);
    let time = |step: &Step| match step {
        Step::Zstd(_) => time_of(step) * searched,
        _ => time_of(step),
    };
    steps.iter().map(time).sum()
}

/// A block that wants a chain.
pub(crate) struct Sample<'block> {
    pub(crate) raw: &'block [u8],
    pub(crate) data_type: Option<DataType>,
    /// Bytes of files that no parser understands.
    pub(crate) opaque: bool,
    pub(crate) shapes: &'block [Shape],
    pub(crate) base: &'block [u8],
}

/// A chain, and what it makes of the block where that was found out on the way.
pub(crate) struct Choice {
    pub(crate) steps: Vec<Step>,
    pub(crate) coded: Option<Vec<u8>>,
    /// Bytes for every coded one, of what was tried.
    pub(crate) ratio: f64,
    /// Chains that were tried on a sample.
    pub(crate) tried: u64,
}

/// A chain that was tried on a part of a block.
struct Trial {
    steps: Vec<Step>,
    coded: Vec<u8>,
    cost: f64,
}

/// Judges chains by the bytes that they leave: a sink so slow that no chain's time counts.
const BY_BYTES: Mode = Mode::Auto(1.0);

/// The chain for a block; the empty chain stores it.
pub(crate) fn choose(mode: &Mode, block: &Sample<'_>) -> Choice {
    let candidates = candidates(mode, block);
    if let [only] = candidates.as_slice() {
        let untried = matches!(only.last(), Some(Step::Planes(_, 0)));
        let by_planes = || {
            let coded = encode(only, block.raw, Side::default()).map_or(block.raw.len(), |coded| coded.len());
            mode.cost(only, coded, block.raw.len()) / block.raw.len().max(1) as f64
        };
        let repeating = if untried {
            repeating(mode, block, by_planes).or_else(|| sparse(mode, only, block))
        } else {
            None
        };
        return repeating.unwrap_or_else(|| Choice {
            steps: only.clone(),
            coded: None,
            ratio: 0.0,
            tried: 0,
        });
    }
    let part = reduced(block, sample_bytes(mode, block));
    let candidates = if lane_of(block.data_type).is_some() {
        promising(mode, block.opaque, candidates, &part)
    } else {
        candidates
    };
    let tried = candidates.len() as u64;
    // Of guessed types and of bytes the default mode promises no more than what zstd at level 3 takes, in bytes and in time, so all that
    // it has time for is judged by the bytes.
    let by_bytes = *mode == Mode::Default && block.opaque;
    let judge = if by_bytes { &BY_BYTES } else { mode };
    let Some(best) = best_of(time_max(mode, block), judge, candidates, &part) else {
        return Choice { steps: Vec::new(), coded: None, ratio: 1.0, tried };
    };
    if let Some(choice) = repeating(judge, block, || best.cost / part.raw.len().max(1) as f64) {
        return Choice { tried, ..choice };
    }
    let whole = part.raw.len() == block.raw.len();
    let ratio = part.raw.len() as f64 / best.coded.len().max(1) as f64;
    Choice { steps: best.steps, coded: whole.then_some(best.coded), ratio, tried }
}

/// Bytes in the middle of a block by which its chain is held against a search alone.
const SEARCHED_SAMPLE: usize = 64 << 10;
/// The largest part that a chain may take of what a search alone is expected to make of the block, for nobody to doubt that it is the better one.
const CLEARLY_BETTER: f64 = 0.7;

/// The choice, or a search alone where that leaves fewer bytes of what no parser understands: its type is guessed from a few places, and its
/// chain was chosen by others.
pub(crate) fn or_searched(choice: Choice, mode: &Mode, block: &Sample<'_>) -> Choice {
    let is_search = matches!(choice.steps.as_slice(), [Step::Zstd(_)]);
    if *mode != Mode::Default || !block.opaque || is_search || choice.steps.iter().any(Step::needs_base) {
        return choice;
    }
    let side = Side { shapes: block.shapes, base: block.base };
    let Choice { steps, coded, ratio, tried } = choice;
    let coded = coded.or_else(|| encode(&steps, block.raw, side).ok());
    let length = coded.as_ref().map_or(block.raw.len(), Vec::len);
    let sample = SEARCHED_SAMPLE.min(block.raw.len());
    let middle = (block.raw.len() - sample) / 2;
    let sample = exact::part(block.raw, middle..middle + sample);
    let searched = with_zstd(sample, 3, <[u8]>::len).unwrap_or(sample.len());
    let expected = block.raw.len() as f64 * searched as f64 / sample.len().max(1) as f64;
    if length as f64 <= CLEARLY_BETTER * expected {
        return Choice { steps, coded, ratio, tried };
    }
    let search = vec![Step::Zstd(if is_short(mode, block) { SHORT_LEVEL } else { 3 })];
    match encode(&search, block.raw, side) {
        Ok(searched) if searched.len() < length => {
            let ratio = block.raw.len() as f64 / searched.len().max(1) as f64;
            Choice { steps: search, coded: Some(searched), ratio, tried: tried + 1 }
        }
        _ => Choice { steps, coded, ratio, tried: tried + 1 },
    }
}

/// Bytes of integers that are tried, as their values repeat far apart.
const INTEGERS_SAMPLE: usize = 96 << 10;
/// Bytes of guessed types that are tried in the default mode: they may be of any kind.
const GUESSED_SAMPLE: usize = 192 << 10;

fn sample_bytes(mode: &Mode, block: &Sample<'_>) -> usize {
    let usual = mode.sample_bytes(block.raw.len());
    let integers = block.data_type.is_some_and(are_integers);
    if *mode == Mode::Default && block.opaque && block.data_type.is_some() {
        return usual.max((block.raw.len() / 16).min(GUESSED_SAMPLE));
    }
    if integers { usual.max((block.raw.len() / 16).min(INTEGERS_SAMPLE)) } else { usual }
}

/// The width of elements that are single bytes by their type.
fn single_bytes(block: &Sample<'_>) -> Option<u32> {
    block.data_type.filter(|data_type| data_type.size == 1).map(|data_type| data_type.size)
}

/// Elements whose values repeat, other than those of floats.
pub(crate) fn are_integers(data_type: DataType) -> bool {
    matches!(data_type.kind, Kind::Signed | Kind::Unsigned)
}

/// Whether the mode could choose this chain for a block, after trying several.
pub(crate) fn may_choose(mode: &Mode, block: &Sample<'_>, steps: &[Step]) -> bool {
    let tries = matches!(mode, Mode::Default | Mode::Auto(_));
    let distinct = matches!(steps, [Step::Distinct(_)] | [Step::Swap(_), Step::Distinct(_)]);
    tries && (distinct || candidates(mode, block).iter().any(|candidate| candidate == steps))
}

/// Share of a sample that must occur before for a search over all bytes to be tried beside that over byte planes.
const SEARCHED_MIN: f64 = 0.125;

/// Share of a sample that must occur before for a block to be taken for an array with few elements that aren't zero.
const SPARSE_MIN: f64 = 0.75;

/// The block by a search over whole elements, where these repeat so often that to tell where the others are, once for each
/// plane, may cost most. All of it is coded both ways, which goes fast where much repeats.
fn sparse(mode: &Mode, planes: &[Step], block: &Sample<'_>) -> Option<Choice> {
    let part = reduced(block, mode.sample_bytes(block.raw.len()));
    if (Repeats::of(&part.raw).bytes as f64) < SPARSE_MIN * part.raw.len() as f64 {
        return None;
    }
    let steps = vec![Step::Zstd(3)];
    let by_planes = encode(planes, block.raw, Side::default()).ok()?;
    let coded = encode(&steps, block.raw, Side::default()).ok()?;
    let ratio = block.raw.len() as f64 / coded.len().max(1) as f64;
    (coded.len() < by_planes.len()).then_some(Choice { steps, coded: Some(coded), ratio, tried: 1 })
}

/// The candidates for numbers without those that a look at the sample shows to be vain.
fn promising(mode: &Mode, opaque: bool, mut candidates: Vec<Vec<Step>>, part: &Reduced) -> Vec<Vec<Step>> {
    let has_planes = candidates.iter().any(|steps| matches!(steps.last(), Some(Step::Planes(..))));
    if *mode == Mode::Default && has_planes {
        let found = Repeats::of(&part.raw).bytes as f64;
        if !opaque && found < SEARCHED_MIN * part.raw.len() as f64 {
            candidates.retain(|steps| !matches!(steps.last(), Some(Step::Zstd(_))));
        }
    }
    candidates
}

/// The chain for blocks that repeat themselves, if it costs less than `cost` a byte, which is asked for only then. All of the
/// block is coded, since no sample shows repeats.
fn repeating(mode: &Mode, block: &Sample<'_>, cost: impl FnOnce() -> f64) -> Option<Choice> {
    let (data_type, lane) = lane_of(block.data_type)?;
    if !repeats(block.raw, lane) {
        return None;
    }
    let size = narrow(lane.size());
    let steps = [swap(data_type, lane), vec![Step::Distinct(size)]].concat();
    let coded = encode(&steps, block.raw, Side::default()).ok()?;
    let own = mode.cost(&steps, coded.len(), block.raw.len()) / block.raw.len().max(1) as f64;
    let ratio = block.raw.len() as f64 / coded.len().max(1) as f64;
    (own < cost()).then_some(Choice { steps, coded: Some(coded), ratio, tried: 0 })
}

fn lane_of(data_type: Option<DataType>) -> Option<(DataType, Lane)> {
    data_type.and_then(|data_type| Some((data_type, Lane::of(data_type)?)))
}

/// Block of untyped bytes, in bytes, below which the default mode searches it longer: cut off from what stands before, it shows a search
/// less than `zstd` sees of a whole archive.
const SHORT_BLOCK: usize = 2 << 20;
/// The level of that search, and the most nanoseconds per byte that a chain may take then.
const SHORT_LEVEL: i32 = 5;
const SHORT_TIME_MAX: f64 = 9.0;

fn is_short(mode: &Mode, block: &Sample<'_>) -> bool {
    *mode == Mode::Default && block.opaque && block.data_type.is_none() && block.raw.len() < SHORT_BLOCK
}

/// Most nanoseconds per byte that a chain may take, forwards and backwards.
fn time_max(mode: &Mode, block: &Sample<'_>) -> f64 {
    if is_short(mode, block) { SHORT_TIME_MAX } else { mode.time_max() }
}

/// The candidate that costs least on a part of the block, among those that the mode has time for. One that needs the base
/// has to be clearly smaller than what does without: a container that leans on another one is the weaker of the two.
fn best_of(time_max: f64, judge: &Mode, candidates: Vec<Vec<Step>>, part: &Reduced) -> Option<Trial> {
    let (based, alone): (Vec<_>, Vec<_>) = candidates
        .into_iter()
        .filter(|steps| chain_time(steps, 1.0) <= time_max)
        .partition(|steps| steps.iter().any(Step::needs_base));
    let alone = cheapest(judge, alone, part);
    let based = cheapest(judge, based, part);
    match (alone, based) {
        (Some(alone), Some(based)) if !clearly_smaller(&based, &alone) => Some(alone),
        (alone, based) => based.or(alone),
    }
}

fn clearly_smaller(trial: &Trial, than: &Trial) -> bool {
    trial.coded.len() as f64 <= BASE_GAIN * than.coded.len() as f64
}

fn cheapest(mode: &Mode, candidates: Vec<Vec<Step>>, part: &Reduced) -> Option<Trial> {
    let side = Side { shapes: &part.shapes, base: &part.base };
    let mut best: Option<Trial> = None;
    for steps in candidates {
        let Ok(coded) = encode(&steps, &part.raw, side) else { continue };
        let cost = mode.cost(&steps, coded.len(), part.raw.len());
        if best.as_ref().is_none_or(|best| cost < best.cost) {
            best = Some(Trial { steps, coded, cost });
        }
    }
    best
}

/// What a chain that needs the base may take at most of what the best other one takes.
const BASE_GAIN: f64 = 0.95;

/// A part of a block that is small enough to be tried.
struct Reduced {
    raw: Vec<u8>,
    shapes: Vec<Shape>,
    base: Vec<u8>,
}

/// Runs from three places of the block; shapes are kept when the whole block is taken, else cut to slabs.
fn reduced(block: &Sample<'_>, limit: usize) -> Reduced {
    if block.raw.len() <= limit {
        return Reduced { raw: block.raw.to_vec(), shapes: block.shapes.to_vec(), base: block.base.to_vec() };
    }
    const PLACES: usize = 3;
    let size = element_size(block);
    let mut part = Reduced { raw: Vec::new(), shapes: Vec::new(), base: Vec::new() };
    let starts = member_starts(block, size);
    for place in 0..PLACES {
        let wanted = block.raw.len() / PLACES * place;
        let (start, length, shape) = slab_at(&starts, wanted, limit / PLACES, block.raw.len(), size);
        let range = start..start + length;
        part.raw.extend_from_slice(exact::part(block.raw, range.clone()));
        if !block.base.is_empty() {
            part.base.extend_from_slice(exact::part(block.base, range));
        }
        part.shapes.push(shape);
    }
    part
}

fn element_size(block: &Sample<'_>) -> usize {
    block.data_type.map_or(1, |data_type| data_type.size as usize)
}

/// First byte and shape of every member.
fn member_starts<'block>(block: &Sample<'block>, size: usize) -> Vec<(usize, &'block Shape)> {
    let mut start = 0;
    let mut starts = Vec::new();
    for shape in block.shapes {
        starts.push((start, shape));
        start += shape.0.iter().fold(size, |bytes, length| bytes.saturating_mul(to_usize(*length)));
    }
    starts
}

/// Some rows of the member that holds byte `wanted`: first byte, bytes and shape.
fn slab_at(
    starts: &[(usize, &Shape)],
    wanted: usize,
    bytes: usize,
    total: usize,
    size: usize,
) -> (usize, usize, Shape) {
    let index = starts.partition_point(|(start, _)| *start <= wanted).saturating_sub(1);
    let flat_bytes = bytes / size * size;
    let flat = (wanted / size * size, flat_bytes.min(total), Shape(vec![(flat_bytes / size) as u64]));
    let Some((member_start, shape)) = starts.get(index) else { return flat };
    let row = shape.0.last().map_or(size, |width| to_usize(*width).saturating_mul(size)).max(1);
    let end = starts.get(index + 1).map_or(total, |(start, _)| *start);
    let rows = (bytes / row).min((end - member_start) / row);
    if rows < 2 {
        return flat;
    }
    // Two-dimensional slabs keep the neighbourhood along the two fastest dimensions.
    let shape = Shape(vec![rows as u64, (row / size) as u64]);
    let first = (wanted - member_start) / row;
    let first = first.min((end - member_start) / row - rows);
    (member_start + first * row, rows * row, shape)
}

fn candidates(mode: &Mode, block: &Sample<'_>) -> Vec<Vec<Step>> {
    match mode {
        Mode::PaperOnce => return vec![papers_first_pass(block.data_type)],
        Mode::Paper => return vec![[papers_first_pass(block.data_type), vec![Step::Gzip(6)]].concat()],
        // A sample would cut the records, so what their lengths say is believed.
        Mode::Fastest | Mode::Default | Mode::Auto(_) if has_ragged_records(block) => {
            return vec![vec![Step::Ragged, Step::Planes(8, 3)]];
        }
        _ => {}
    }
    let mut chains = match lane_of(block.data_type) {
        Some((data_type, lane)) => numeric(mode, data_type, lane, block),
        None => untyped(mode, block),
    };
    // What doesn't shrink is stored, whatever its chain. Bytes without a type are always tried as a whole: what they
    // repeat lies farther apart than a sample is long.
    if chains.len() > 1 && block.data_type.is_some() {
        chains.push(Vec::new());
    }
    chains
}

fn has_ragged_records(block: &Sample<'_>) -> bool {
    let doubles = block.data_type.is_some_and(|data_type| Lane::of(data_type) == Some(Lane::F64));
    doubles && records_apply(block.raw)
}

fn swap(data_type: DataType, lane: Lane) -> Vec<Step> {
    let size = narrow(lane.size());
    if data_type.order == ByteOrder::Big { vec![Step::Swap(size)] } else { Vec::new() }
}

fn papers_first_pass(data_type: Option<DataType>) -> Vec<Step> {
    let Some((data_type, lane)) = lane_of(data_type) else {
        return vec![Step::Lz4];
    };
    let first = match lane {
        Lane::F64 => vec![Step::Fpc(16)],
        Lane::F32 => vec![Step::Difference(lane), Step::Pco(Lane::U32, 8)],
        _ => vec![Step::Lz4],
    };
    [swap(data_type, lane), first].concat()
}

/// The lane of the distances that a predictor leaves.
fn distances(lane: Lane) -> Lane {
    match lane.size() {
        2 => Lane::U16,
        4 => Lane::U32,
        _ => Lane::U64,
    }
}

fn numeric(mode: &Mode, data_type: DataType, lane: Lane, block: &Sample<'_>) -> Vec<Vec<Step>> {
    let has_base = !block.base.is_empty();
    let size = narrow(lane.size());
    let plain = match mode {
        // Floats don't shrink by what else could be tried, as far as there is time for it.
        Mode::Fastest if are_integers(data_type) && block.raw.len() >= RECORD_BLOCK_MIN => vec![
            vec![Step::Planes(size, 0)],
            vec![Step::Lorenzo(lane), Step::Planes(size, 0)],
            vec![Step::Zstd(3)],
        ],
        Mode::Fastest => vec![vec![Step::Planes(size, 0)]],
        Mode::Default => vec![
            vec![Step::Planes(size, 1)],
            vec![Step::Lorenzo(lane), Step::Planes(size, 1)],
            vec![Step::Shuffle(size), Step::Zstd(1)],
            vec![Step::Zstd(if block.opaque { 3 } else { 1 })],
        ],
        _ => vec![
            vec![Step::Planes(size, 1)],
            vec![Step::Lorenzo(lane), Step::Planes(size, 1)],
            vec![Step::Shuffle(size), Step::Zstd(3)],
            vec![Step::Lorenzo(lane), Step::Shuffle(size), Step::Zstd(3)],
            vec![Step::Pco(lane, 4)],
            vec![Step::Pco(lane, 8)],
            vec![Step::Lorenzo(lane), Step::Pco(distances(lane), 2)],
            vec![Step::Zstd(1)],
            vec![Step::Zstd(3)],
        ],
    };
    let against = if has_base {
        vec![
            vec![Step::Changed(size)],
            vec![Step::XorBase, Step::Planes(size, 1)],
            vec![Step::DifferenceBase(lane), Step::Planes(size, 1)],
            vec![Step::DifferenceBase(lane), Step::Pco(distances(lane), 8)],
        ]
    } else {
        Vec::new()
    };
    let prefix = swap(data_type, lane);
    // The base is stored in the file's own byte order, so the exclusive or and the distance come before any swap.
    let swapped = plain.into_iter().map(|chain| [prefix.clone(), chain].concat());
    let against = against
        .into_iter()
        .filter(|chain| prefix.is_empty() || matches!(chain.first(), Some(Step::XorBase | Step::Changed(_))));
    swapped.chain(against).collect()
}

/// Bytes without a type: as they are, or as records of the length that the bytes themselves suggest.
fn untyped(mode: &Mode, block: &Sample<'_>) -> Vec<Vec<Step>> {
    if *mode == Mode::Fastest && !block.opaque && block.base.is_empty() {
        return vec![vec![Step::Zstd(1)]];
    }
    let record = record_length(block.raw);
    let levels: &[i32] = match mode {
        // Nothing typed stands beside it that would win what the lowest level misses.
        Mode::Fastest if block.opaque => &[4],
        Mode::Fastest => &[1],
        Mode::Default if is_short(mode, block) => &[SHORT_LEVEL],
        Mode::Default => &[3],
        _ => &[1, 3],
    };
    let mut chains = Vec::new();
    for level in levels {
        chains.push(vec![Step::Zstd(*level)]);
        if let Some(record) = record {
            chains.push(vec![Step::Shuffle(record), Step::Zstd(*level)]);
            chains.push(vec![Step::Planes(record, *level)]);
        }
        if let Some(width) = single_bytes(block) {
            chains.push(vec![Step::Planes(width, *level)]);
        }
    }
    if matches!(mode, Mode::Auto(_)) {
        chains.push(vec![Step::Lz4]);
    }
    if !block.base.is_empty() {
        chains.extend(levels.iter().map(|level| vec![Step::XorBase, Step::Zstd(*level)]));
    }
    chains
}

/// Longest record that is looked for, in bytes.
const RECORD_MAX: usize = 512;
/// Bytes that are looked at for records.
const RECORD_SAMPLE: usize = 4 << 10;
/// Shortest block that is looked at for records, in bytes: every distance takes a pass over the sample.
const RECORD_BLOCK_MIN: usize = 32 << 10;

/// The distance at which most bytes repeat, if it stands out: the length of the records that the bytes are made of.
pub(crate) fn record_length(bytes: &[u8]) -> Option<u32> {
    if bytes.len() < RECORD_BLOCK_MIN {
        return None;
    }
    let middle = bytes.len() / 2;
    record_in(exact::part(bytes, middle..middle + RECORD_SAMPLE))
}

/// The length of the records that a file is made of, seen in its middle; none where it can't be read there, or where a search makes less of the
/// bytes than records do.
pub(crate) fn record_in_middle(source: &dyn Source) -> Option<u32> {
    let size = source.size();
    if size < RECORD_BLOCK_MIN as u64 {
        return None;
    }
    let mut sample = [0; RECORD_SAMPLE];
    source.read_at(size / 2, &mut sample).ok()?;
    let record = record_in(&sample)?;
    let length = (SEARCHED_SAMPLE as u64).min(size);
    let mut bytes = vec![0; to_usize(length)];
    source.read_at((size - length) / 2, &mut bytes).ok()?;
    let coded =
        |steps: &[Step]| encode(steps, &bytes, Side::default()).map_or(bytes.len(), |coded| coded.len());
    let as_records = coded(&[Step::Shuffle(record), Step::Zstd(3)]).min(coded(&[Step::Planes(record, 3)]));
    (as_records < coded(&[Step::Zstd(3)])).then_some(record)
}

/// The length of the records that a sample is made of: the shortest distance at which nearly as many bytes repeat as at any,
/// if it stands out.
pub(crate) fn record_in(sample: &[u8]) -> Option<u32> {
    let repeats = |distance: usize| sample.get(distance..).map_or(0, |later| equal_bytes(sample, later));
    let counts: Vec<usize> = (2..=RECORD_MAX).map(repeats).collect();
    let most = counts.iter().max().copied()?;
    let mean = counts.iter().sum::<usize>() / counts.len().max(1);
    // The shortest distance that comes close to the best: its multiples repeat as often.
    let shortest = counts.iter().position(|count| count * 20 >= most * 19)?;
    let stands_out = most > mean + mean / 4 + sample.len() / 50;
    stands_out.then(|| narrow(shortest + 2))
}

/// How many bytes are the same at the same place; summed in bytes first, as vector instructions do it.
fn equal_bytes(one: &[u8], other: &[u8]) -> usize {
    const RUN: usize = 128;
    let run = |(one, other): (&[u8], &[u8])| {
        let same = one.iter().zip(other).map(|(one, other)| u8::from(one == other));
        usize::from(same.fold(0_u8, u8::wrapping_add))
    };
    one.chunks(RUN).zip(other.chunks(RUN)).map(run).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time that coding a block of some kind takes in the default mode at most, in nanoseconds for each byte: the dearest of the
    /// chains that it may choose, and all of them on the sample.
    fn dearest(data_type: Option<DataType>, opaque: bool, raw: &[u8]) -> f64 {
        let shapes = [Shape(vec![raw.len() as u64 / data_type.map_or(1, |kind| u64::from(kind.size))])];
        let block = Sample { raw, data_type, opaque, shapes: &shapes, base: &[] };
        let times = candidates(&Mode::Default, &block).into_iter().map(|steps| chain_time(&steps, 1.0));
        let allowed: Vec<f64> = times.filter(|time| *time <= time_max(&Mode::Default, &block)).collect();
        let tried = sample_bytes(&Mode::Default, &block) as f64 / raw.len() as f64;
        let dearest = allowed.iter().copied().fold(0.0, f64::max);
        if allowed.len() > 1 { dearest + tried * allowed.iter().sum::<f64>() } else { dearest }
    }

    #[test]
    fn the_default_mode_never_takes_four_times_as_long_as_zstd_at_level_3() {
        let bytes: Vec<u8> =
            (0..1_u32 << 20).flat_map(|n| n.wrapping_mul(0x9e37_79b1).to_be_bytes()).collect();
        let records: Vec<u8> =
            (0..1_u32 << 15).flat_map(|n| [&[7; 44][..], &n.to_le_bytes()].concat()).collect();
        let integers = DataType::new(Kind::Signed, 4, ByteOrder::Little);
        let doubles = DataType::new(Kind::Float, 8, ByteOrder::Big);
        for raw in [bytes.as_slice(), &records, records.get(..1 << 20).unwrap_or_default()] {
            for data_type in [None, Some(integers), Some(doubles)] {
                for opaque in [false, true] {
                    let time = dearest(data_type, opaque, raw);
                    assert!(time < 4.0 * zstd_time(3), "{data_type:?}: {time} ns for each byte");
                }
            }
        }
    }

    #[test]
    fn records_are_found_by_looking_at_the_bytes() {
        let mut state = 1_u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_le_bytes()[3]
        };
        let records: Vec<u8> = (0..1000_u32)
            .flat_map(|n| [&[7_u8; 40][..], &n.to_le_bytes(), &[noise(), noise(), noise(), noise()]].concat())
            .collect();
        assert_eq!(record_length(&records), Some(48));
        let random: Vec<u8> = (0..50_000).map(|_| noise()).collect();
        assert_eq!(record_length(&random), None);
    }
}
