//! Arrays of numbers in files that no parser understands: dumps of memory, Fortran records, formats of one code alone.
//!
//! Relies on `stdchk-formats`. The idea: in an array the bytes at one place of all elements are alike, and those at different
//! places are not. So the entropies of the places tell how wide elements are, where they begin and which byte comes first;
//! text and compressed bytes have no such places. A wrong guess costs bytes, never correctness: whatever is found are
//! ranges of the file, whose chain is tried like every other.

use stdchk_formats::{ByteOrder, DataType, Extent, Kind, Source};
use stdchk_model::exact::{narrow, part_mut, to_usize};

use crate::choose::record_in;
use crate::codec::{Lane, Search, Side, Step, encode, with_zstd};
use crate::holes::first_behind;

/// Bytes that are taken to be of one kind.
const WINDOW: u64 = 64 << 10;
/// Bytes in the middle of a window that are looked at.
const SAMPLE: u64 = 4 << 10;
/// Most arrays of a file: what changes more often is left alone, so that memory doesn't grow with the file.
const ARRAYS_MAX: usize = 1 << 16;
/// Fewer bytes tell nothing.
const SAMPLE_MIN: u64 = 2 << 10;
/// Longest record, in bytes, that is a few elements of an array: longer ones are of several types.
const ELEMENTS_MAX: u32 = 32;
/// Widest element, in bytes.
const WIDTH_MAX: usize = 8;
/// What the bytes take when they are told apart by place, at most, of what they take otherwise.
const PLACES_GAIN: f64 = 0.9;
/// What the bytes take as elements of twice the width, at most, of what they take as elements of the width found so far: more
/// places are counted then, from fewer bytes each.
const WIDER_GAIN: f64 = 0.97;
/// Share of printable bytes from which on they are text.
const TEXT_MIN: f64 = 0.97;
/// Bits of a byte below which it is as good as constant.
const CONSTANT: f64 = 0.1;
/// Highest byte of an integer, as a signed number, at most; the exponents of floats are farther from zero.
const INTEGER_TOP_MAX: u8 = 32;

/// A range that holds elements of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) extent: Extent,
    pub(crate) data_type: DataType,
}

/// What a window looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// Elements that begin at this place of every eight bytes.
    Elements(DataType, u64),
    /// One byte again and again: of the kind of its neighbours.
    Constant,
    Bytes,
}

/// The arrays of a file, in order; none where it can't be read. Windows in holes are zeros, and aren't read.
pub(crate) fn numbers_in(source: &dyn Source, holes: &[Extent]) -> Vec<Numbers> {
    let size = source.size();
    let mut found: Vec<(Extent, DataType, u64)> = Vec::new();
    // Whether the last range reaches to the window that is looked at.
    let mut open = false;
    let mut next = 0;
    while next <= size {
        let start = next;
        let hole = first_behind(holes, start).filter(|hole| hole.offset <= start);
        // To the last window that is all hole at once.
        let length =
            hole.map_or(0, |hole| (hole.end() - start) / WINDOW * WINDOW).max(WINDOW).min(size - start);
        next = start + length.max(WINDOW);
        let constant = length < SAMPLE_MIN || hole.is_some_and(|hole| hole.end() >= start + length);
        let look = if constant { Some(Look::Constant) } else { look_at(source, start, length) };
        let Some(look) = look.filter(|_| found.len() < ARRAYS_MAX) else { return Vec::new() };
        let last = found.last_mut().filter(|_| open);
        match (look, last) {
            (Look::Elements(data_type, phase), Some((extent, same, at)))
                if (*same, *at) == (data_type, phase) =>
            {
                extent.length += length;
            }
            (Look::Constant, Some((extent, ..))) => extent.length += length,
            (Look::Elements(data_type, phase), _) => {
                found.push((Extent { offset: start, length }, data_type, phase));
                open = true;
            }
            (Look::Constant | Look::Bytes, _) => open = false,
        }
    }
    let whole = found.into_iter().filter_map(|(extent, data_type, phase)| whole(extent, data_type, phase));
    let arrays = whole.filter(|numbers| beats_search(source, *numbers)).collect();
    beating_context(source, arrays)
}

/// Bytes in front of an array that are searched for what it repeats.
const CONTEXT_MAX: u64 = 256 << 10;
/// The largest part that the elements of a short array may take of what a search makes of them where they stand.
const CONTEXT_GAIN: f64 = 0.95;

/// Those arrays that are worth being cut out of what stands around them. A short one may repeat that, and what stands behind it may repeat
/// the array, so a search over the file tells what its bytes take where they are. Long arrays show their worth by themselves.
fn beating_context(source: &dyn Source, arrays: Vec<Numbers>) -> Vec<Numbers> {
    let Ok(mut search) = Search::begin(3) else { return arrays };
    let mut searched_to = 0;
    let mut is_worth_it = |numbers: &Numbers| {
        let Numbers { extent, data_type } = *numbers;
        if extent.length >= CODED_EVERY {
            return Ok(true);
        }
        let from = searched_to.max(extent.offset.saturating_sub(CONTEXT_MAX));
        search.over(&bytes_of(source, from, extent.offset - from.min(extent.offset))?)?;
        let bytes = bytes_of(source, extent.offset, extent.length)?;
        let in_place = search.over(&bytes)?;
        searched_to = extent.end();
        let typed = least_of_elements(&bytes, data_type);
        Ok::<_, std::io::Error>(typed as f64 <= CONTEXT_GAIN * in_place as f64)
    };
    arrays.into_iter().filter(|numbers| is_worth_it(numbers).unwrap_or(false)).collect()
}

fn bytes_of(source: &dyn Source, offset: u64, length: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; to_usize(length)];
    source.read_at(offset, &mut bytes)?;
    Ok(bytes)
}

/// Bytes that the default mode makes of elements of a type at least.
fn least_of_elements(bytes: &[u8], data_type: DataType) -> usize {
    let Some(lane) = Lane::of(data_type) else { return bytes.len() };
    let size = data_type.size;
    let swapped = if data_type.order == ByteOrder::Big { vec![Step::Swap(size)] } else { Vec::new() };
    let chains = [
        vec![Step::Planes(size, 1)],
        vec![Step::Lorenzo(lane), Step::Planes(size, 1)],
        vec![Step::Shuffle(size), Step::Zstd(1)],
    ];
    let coded = |steps: &Vec<Step>| {
        let steps = [swapped.as_slice(), steps].concat();
        encode(&steps, bytes, Side::default()).map_or(bytes.len(), |coded| coded.len())
    };
    chains.iter().map(coded).min().unwrap_or(bytes.len())
}

/// Bytes at one place of an array that are coded both ways.
const CODED: u64 = 16 << 10;
/// Distance of such places, and how many there are at most.
const CODED_EVERY: u64 = 1 << 20;
const PLACES_MAX: u64 = 4;
/// The largest part that elements may take of the length that a search makes of the same bytes, in a short array: cut out of what stands around it, it shows the
/// search less, as do few bytes.
const SHORT_GAIN: f64 = 0.9;

/// Whether an array takes less as elements of its type than by a search, seen at some places.
fn beats_search(source: &dyn Source, numbers: Numbers) -> bool {
    let Numbers { extent, data_type } = numbers;
    // Elements of floats with an exponent are seldom anything else, and more than a few kilobytes show is won by their repeats.
    if data_type.kind == Kind::Float {
        return true;
    }
    let Some(lane) = Lane::of(data_type) else { return false };
    let swapped =
        if data_type.order == ByteOrder::Big { vec![Step::Swap(data_type.size)] } else { Vec::new() };
    let places = (extent.length / CODED_EVERY).clamp(1, PLACES_MAX);
    let part = extent.length / places;
    let size = u64::from(data_type.size);
    let (mut typed, mut searched) = (0, 0);
    for place in 0..places {
        let length = CODED.min(part) / size * size;
        let offset = extent.offset + (place * part + (part - length) / 2) / size * size;
        let mut bytes = vec![0; to_usize(length)];
        if source.read_at(offset, &mut bytes).is_err() {
            return false;
        }
        let coded = |steps: &[Step]| {
            let steps = [swapped.as_slice(), steps].concat();
            encode(&steps, &bytes, Side::default()).map_or(bytes.len(), |coded| coded.len())
        };
        let planes = Step::Planes(data_type.size, 1);
        typed += coded(std::slice::from_ref(&planes)).min(coded(&[Step::Lorenzo(lane), planes.clone()]));
        searched += with_zstd(&bytes, 3, <[u8]>::len).unwrap_or(bytes.len());
    }
    let gain = if extent.length < CODED_EVERY { SHORT_GAIN } else { 1.0 };
    typed as f64 <= gain * searched as f64
}

/// The whole elements of a range.
fn whole(extent: Extent, data_type: DataType, phase: u64) -> Option<Numbers> {
    let size = u64::from(data_type.size);
    let length = extent.length.checked_sub(phase)? / size * size;
    let extent = Extent { offset: extent.offset + phase, length };
    (length > 0).then_some(Numbers { extent, data_type })
}

fn look_at(source: &dyn Source, start: u64, length: u64) -> Option<Look> {
    let sample = SAMPLE.min(length) / WIDTH_MAX as u64 * WIDTH_MAX as u64;
    let from = (start + (length - sample) / 2) / WIDTH_MAX as u64 * WIDTH_MAX as u64;
    let mut bytes = vec![0; usize::try_from(sample).ok()?];
    source.read_at(from, &mut bytes).ok()?;
    Some(look(&bytes))
}

/// How often each byte occurs.
type Counts = [u32; 256];

fn look(bytes: &[u8]) -> Look {
    let mut places = [[0_u32; 256]; WIDTH_MAX];
    for element in bytes.chunks_exact(WIDTH_MAX) {
        for (counts, byte) in places.iter_mut().zip(element) {
            *part_mut(counts, usize::from(*byte)) += 1;
        }
    }
    let all = folded(&places, 1);
    let plain = mean_entropy(&all);
    if plain < CONSTANT {
        return Look::Constant;
    }
    if all.first().is_some_and(is_text) {
        return Look::Bytes;
    }
    let mut best = (plain * PLACES_GAIN / WIDER_GAIN, None);
    for width in [2, 4, WIDTH_MAX] {
        let counts = folded(&places, width);
        let entropy = mean_entropy(&counts);
        if entropy < best.0 * WIDER_GAIN {
            best = (entropy, Some(counts));
        }
    }
    // To look for records takes longest, so it is asked last.
    let of_records = || record_in(bytes).is_some_and(|record| record > ELEMENTS_MAX);
    best.1.filter(|_| !of_records()).map_or(Look::Bytes, |counts| elements(&counts))
}

/// Counts of the places of narrower elements.
fn folded(places: &[Counts; WIDTH_MAX], width: usize) -> Vec<Counts> {
    let mut sums = vec![[0; 256]; width];
    for (place, counts) in places.iter().enumerate() {
        let sum = sums.get_mut(place % width).into_iter().flatten();
        sum.zip(counts).for_each(|(sum, count)| *sum += count);
    }
    sums
}

fn mean_entropy(places: &[Counts]) -> f64 {
    places.iter().map(entropy).sum::<f64>() / places.len().max(1) as f64
}

/// Bits for a byte; what a small sample misses is added, by the number of different bytes in it (Miller 1955).
fn entropy(counts: &Counts) -> f64 {
    let total = f64::from(counts.iter().sum::<u32>().max(1));
    let present = || counts.iter().filter(|count| **count > 0).map(|count| f64::from(*count));
    let plain = total.log2() - present().map(|count| count * count.log2()).sum::<f64>() / total;
    plain + (present().count().max(1) - 1) as f64 / (2.0 * total * std::f64::consts::LN_2)
}

fn is_text(counts: &Counts) -> bool {
    let bytes = || (0_u8..=255).zip(counts);
    let printable = bytes().filter(|(byte, _)| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~'));
    let sum = |counts: &mut dyn Iterator<Item = (u8, &u32)>| {
        counts.map(|(_, count)| f64::from(*count)).sum::<f64>()
    };
    sum(&mut printable.into_iter()) > TEXT_MIN * sum(&mut bytes())
}

/// The type of elements of which the bytes at each place were counted. From the highest byte of one to the lowest of the
/// next the entropy rises as nowhere else; where the highest byte stands first, it falls so from the lowest to that.
fn elements(places: &[Counts]) -> Look {
    let entropies: Vec<f64> = places.iter().map(entropy).collect();
    let next = entropies.iter().cycle().skip(1);
    let steps: Vec<f64> = entropies.iter().zip(next).map(|(here, next)| next - here).collect();
    let largest = |sign: f64| {
        let step = steps.iter().enumerate().max_by(|one, other| (one.1 * sign).total_cmp(&(other.1 * sign)));
        step.map_or((0, 0.0), |(at, step)| (at, step * sign))
    };
    let (rise, fall) = (largest(1.0), largest(-1.0));
    let (before, order) =
        if rise.1 >= fall.1 { (rise.0, ByteOrder::Little) } else { (fall.0, ByteOrder::Big) };
    let first = (before + 1) % places.len();
    let top = if order == ByteOrder::Little { before } else { first };
    let kind = if places.get(top).is_none_or(is_top_of_integers) {
        Kind::Signed
    } else if places.len() == 2 {
        Kind::BFloat
    } else {
        Kind::Float
    };
    let size = narrow(places.len());
    Look::Elements(DataType::new(kind, size, order), first as u64)
}

/// Most of the highest bytes that aren't zero are near it.
fn is_top_of_integers(counts: &Counts) -> bool {
    let bytes = || (1_u8..=255).zip(counts.iter().skip(1));
    let near: u32 =
        bytes().filter(|(byte, _)| byte.cast_signed().unsigned_abs() < INTEGER_TOP_MAX).map(|(_, n)| n).sum();
    2 * near >= bytes().map(|(_, count)| count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(bytes: &[u8]) -> Vec<(u64, u64, String)> {
        let found = numbers_in(&bytes.to_vec(), &[]);
        found.iter().map(|one| (one.extent.offset, one.extent.length, one.data_type.to_string())).collect()
    }

    fn value(n: u32) -> f64 {
        (f64::from(n) / 90.0).sin() * (f64::from(n) / 1700.0).cos() + 3.0
    }

    #[expect(clippy::cast_possible_truncation, reason = "fewer digits are what is wanted")]
    fn single(n: u32) -> f32 {
        value(n) as f32
    }

    fn noise(length: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_le_bytes()[6]
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn arrays_are_found_by_width_order_and_place() {
        type Element = fn(u32) -> Vec<u8>;
        let cases: [(&str, Element); 6] = [
            ("F64LE", |n| value(n).to_le_bytes().to_vec()),
            ("F64BE", |n| value(n).to_be_bytes().to_vec()),
            ("F32LE", |n| single(n).to_le_bytes().to_vec()),
            ("F32BE", |n| single(n).to_be_bytes().to_vec()),
            ("I32LE", |n| (n * 7 + n % 5).to_le_bytes().to_vec()),
            ("I64BE", |n| u64::from(n * 7 + n % 5).to_be_bytes().to_vec()),
        ];
        for (name, element) in cases {
            let array: Vec<u8> = (0..30_000).flat_map(element).collect();
            let width = element(0).len() as u64;
            for head in [0, 4, 12] {
                let bytes = [vec![0; usize::try_from(head).unwrap()], array.clone()].concat();
                let first = head % width;
                let expected = vec![(first, (bytes.len() as u64 - first) / width * width, name.to_owned())];
                assert_eq!(found(&bytes), expected, "{head} bytes in front");
            }
        }
    }

    #[test]
    fn what_follows_another_array_is_a_range_of_its_own() {
        let doubles: Vec<u8> = (0..32 << 10).flat_map(|n| value(n).to_le_bytes()).collect();
        let floats: Vec<u8> = (0..32 << 10).flat_map(|n| single(n).to_le_bytes()).collect();
        let bytes = [doubles, noise(256 << 10), vec![0; 64 << 10], floats].concat();
        let expected =
            vec![(0, 256 << 10, "F64LE".to_owned()), ((256 + 256 + 64) << 10, 128 << 10, "F32LE".to_owned())];
        assert_eq!(found(&bytes), expected);
    }

    #[test]
    fn text_noise_and_what_is_short_or_constant_hold_no_numbers() {
        let text: Vec<u8> = (0..40_000).flat_map(|n| format!("{:>12.5}\n", value(n)).into_bytes()).collect();
        for bytes in [text, noise(300_000), vec![0; 300_000], vec![1, 2, 3], Vec::new()] {
            assert_eq!(found(&bytes), []);
        }
    }
}
