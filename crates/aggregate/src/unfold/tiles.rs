//! Chunks put together: the array that they are cut from, as if nobody had cut it.
//!
//! Pure. The idea: a box is a part of an array that neighbouring chunks cover. Its body is the elements that lie in the array, in order of
//! its rows; its fringe is what chunks hold beyond the edges of the array, one chunk after the other, unless that is zeros. Both
//! together are the plain bytes of the chunks, bit for bit.

use stdchk_model::exact::{part, part_mut, to_usize};
use stdchk_reduce::is_zero;

use crate::codec::{put_number, put_signed, take_number, take_signed};
use crate::limits::{RANK_MAX, STREAM_MAX, STREAMS_MAX};

/// A part of an array, and the chunks that cover it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TileBox {
    /// Bytes of an element.
    element: u64,
    /// Elements of a chunk in each dimension, slowest first.
    chunk: Vec<u64>,
    /// Elements of the box in each dimension, as far as it lies in the array.
    region: Vec<u64>,
    /// The bytes of chunks beyond the array are kept: where those of each chunk begin in the fringe. None: they are zeros.
    fringe_starts: Vec<u64>,
    /// Numbers of the streams of its chunks, in row-major order.
    pub(crate) streams: Vec<usize>,
}

impl TileBox {
    /// `None`: it is too large, or its chunks are not as many as cover it.
    pub(crate) fn new(
        element: u64,
        chunk: Vec<u64>,
        region: Vec<u64>,
        keeps_fringe: bool,
        streams: Vec<usize>,
    ) -> Option<Self> {
        let product = |lengths: &[u64], first: u64| {
            lengths.iter().try_fold(first, |product, length| product.checked_mul(*length))
        };
        let sound = |lengths: &[u64]| {
            (1..=RANK_MAX).contains(&lengths.len()) && lengths.iter().all(|length| *length > 0)
        };
        let fits = |bytes: Option<u64>| bytes.is_some_and(|bytes| (1..=STREAM_MAX).contains(&bytes));
        if !sound(&chunk) || chunk.len() != region.len() || element == 0 || streams.len() > STREAMS_MAX {
            return None;
        }
        let counts: Vec<u64> =
            region.iter().zip(&chunk).map(|(region, chunk)| region.div_ceil(*chunk)).collect();
        let chunk_bytes = product(&chunk, element)?;
        let covers = product(&counts, 1) == Some(streams.len() as u64);
        let all = chunk_bytes.checked_mul(streams.len() as u64);
        if !(sound(&region) && covers && fits(all) && fits(product(&region, element))) {
            return None;
        }
        let mut tiles = Self { element, chunk, region, fringe_starts: Vec::new(), streams };
        if keeps_fringe {
            let starts = (0..tiles.streams.len()).scan(0, |end, number| {
                let start = *end;
                *end += tiles.chunk_bytes() - tiles.bytes_inside(number);
                Some(start)
            });
            tiles.fringe_starts = starts.collect();
        }
        Some(tiles)
    }

    /// Bytes of a chunk that lie in the array.
    fn bytes_inside(&self, number: usize) -> u64 {
        let origin = self.origin(number);
        let lengths = origin.iter().zip(&self.chunk).zip(&self.region);
        lengths
            .fold(self.element, |product, ((origin, chunk), region)| product * chunk.min(&(region - origin)))
    }

    /// Bytes of the elements that lie in the array.
    pub(crate) fn body_bytes(&self) -> u64 {
        self.region.iter().fold(self.element, |product, length| product * length)
    }

    /// Bytes of a chunk.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.chunk.iter().fold(self.element, |product, length| product * length)
    }

    /// Bytes that are kept of what lies beyond the array.
    pub(crate) fn fringe_bytes(&self) -> u64 {
        if self.fringe_starts.is_empty() { 0 } else { self.bytes_beyond() }
    }

    /// Bytes of its body and of its fringe.
    pub(crate) fn bytes(&self) -> u64 {
        self.body_bytes() + self.fringe_bytes()
    }

    /// Bytes that chunks hold beyond the array.
    pub(crate) fn bytes_beyond(&self) -> u64 {
        self.chunk_bytes() * self.streams.len() as u64 - self.body_bytes()
    }

    /// Puts the plain bytes of a chunk where they belong in those of the box, body and fringe.
    pub(crate) fn put(&self, plain: &mut [u8], number: usize, chunk: &[u8]) {
        assert_eq!(chunk.len() as u64, self.chunk_bytes(), "a chunk has the bytes of its elements");
        assert_eq!(plain.len() as u64, self.bytes(), "a box is whole");
        let mut beyond = self.fringe_start(number);
        self.each_run(number, |inside, from, length| {
            let run = part(chunk, from..from + length);
            match (inside, &mut beyond) {
                (Some(to), _) => part_mut(plain, to..to + length).copy_from_slice(run),
                (None, Some(to)) => {
                    part_mut(plain, *to..*to + length).copy_from_slice(run);
                    *to += length;
                }
                (None, None) => {}
            }
        });
    }

    /// The plain bytes of a chunk, of those of the box.
    pub(crate) fn chunk(&self, plain: &[u8], number: usize) -> Vec<u8> {
        assert_eq!(plain.len() as u64, self.bytes(), "a box is whole");
        let mut chunk = vec![0; to_usize(self.chunk_bytes())];
        let mut beyond = self.fringe_start(number);
        self.each_run(number, |inside, to, length| {
            let from = match (inside, &mut beyond) {
                (Some(from), _) => from,
                (None, Some(from)) => std::mem::replace(from, *from + length),
                (None, None) => return,
            };
            part_mut(&mut chunk, to..to + length).copy_from_slice(part(plain, from..from + length));
        });
        chunk
    }

    /// Whether all that a chunk holds beyond the array is zero.
    pub(crate) fn is_zero_beyond(&self, number: usize, chunk: &[u8]) -> bool {
        let mut zero = true;
        self.each_run(number, |inside, from, length| {
            zero &= inside.is_some() || is_zero(part(chunk, from..from + length));
        });
        zero
    }

    /// First byte of what a chunk holds beyond the array, in the bytes of the box, if that is kept.
    fn fringe_start(&self, number: usize) -> Option<usize> {
        self.fringe_starts.get(number).map(|start| to_usize(self.body_bytes() + start))
    }

    /// The runs of bytes of a chunk in its order: where each lies in the body, if it lies in the array, where in the chunk, and its
    /// length.
    fn each_run(&self, number: usize, mut run: impl FnMut(Option<usize>, usize, usize)) {
        let rank = self.chunk.len();
        let origin = self.origin(number);
        let length_of = |dimension: usize| {
            let (chunk, region) = (*part(&self.chunk, dimension), *part(&self.region, dimension));
            chunk.min(region - *part(&origin, dimension))
        };
        let (Some(width), Some(last)) = (self.chunk.last(), rank.checked_sub(1)) else { return };
        let row = to_usize(width * self.element);
        let inside_row = to_usize(length_of(last) * self.element);
        let rows = self.chunk.iter().take(last).product::<u64>();
        let mut index = vec![0_u64; last];
        let mut at = 0;
        for _ in 0..rows {
            let is_inside = index.iter().enumerate().all(|(dimension, index)| *index < length_of(dimension));
            if is_inside {
                let place = (0..rank).fold(0, |place, dimension| {
                    let within = index.get(dimension).copied().unwrap_or(0) + *part(&origin, dimension);
                    place * *part(&self.region, dimension) + within
                });
                run(Some(to_usize(place * self.element)), at, inside_row);
                if inside_row < row {
                    run(None, at + inside_row, row - inside_row);
                }
            } else {
                run(None, at, row);
            }
            at += row;
            for dimension in (0..last).rev() {
                let next = part_mut(&mut index, dimension);
                *next += 1;
                if *next < *part(&self.chunk, dimension) {
                    break;
                }
                *next = 0;
            }
        }
    }

    /// The first element of a chunk in the box.
    fn origin(&self, number: usize) -> Vec<u64> {
        let mut left = number as u64;
        let mut origin = vec![0; self.chunk.len()];
        for (dimension, origin) in origin.iter_mut().enumerate().rev() {
            let chunk = *part(&self.chunk, dimension);
            let count = part(&self.region, dimension).div_ceil(chunk);
            *origin = left % count * chunk;
            left /= count;
        }
        assert_eq!(left, 0, "the number is that of a chunk");
        origin
    }

    pub(crate) fn to_bytes(&self, bytes: &mut Vec<u8>) {
        put_number(bytes, self.element);
        put_number(bytes, self.chunk.len() as u64);
        self.chunk.iter().chain(&self.region).for_each(|length| put_number(bytes, *length));
        put_number(bytes, u64::from(!self.fringe_starts.is_empty()));
        let mut expected = 0_u64;
        for stream in &self.streams {
            put_signed(bytes, (*stream as u64).wrapping_sub(expected).cast_signed());
            expected = *stream as u64 + 1;
        }
    }

    /// The box at the beginning of `bytes`, of so many streams at most.
    pub(crate) fn from_bytes(bytes: &mut &[u8], streams: usize) -> Option<Self> {
        let element = take_number(bytes)?;
        let rank = usize::try_from(take_number(bytes)?).ok().filter(|rank| (1..=RANK_MAX).contains(rank))?;
        let mut lengths = || (0..rank).map(|_| take_number(bytes)).collect::<Option<Vec<_>>>();
        let (chunk, region) = (lengths()?, lengths()?);
        let keeps_fringe = match take_number(bytes)? {
            0 => false,
            1 => true,
            _ => return None,
        };
        if chunk.contains(&0) {
            return None;
        }
        let mut counts = region.iter().zip(&chunk).map(|(region, chunk)| region.div_ceil(*chunk));
        let count = counts.try_fold(1_u64, u64::checked_mul);
        let count = count.filter(|count| *count <= streams as u64)?;
        let mut expected = 0_u64;
        let numbers = (0..count).map(|_| {
            let stream = expected.checked_add_signed(take_signed(bytes)?)?;
            expected = stream.checked_add(1)?;
            usize::try_from(stream).ok().filter(|stream| *stream < streams)
        });
        let numbers = numbers.collect::<Option<Vec<_>>>()?;
        Self::new(element, chunk, region, keeps_fringe, numbers)
    }
}

/// A grid of chunks that is cut into boxes.
pub(crate) struct Grid<'a> {
    /// Bytes of an element.
    pub(crate) element: u64,
    pub(crate) chunk: &'a [u64],
    pub(crate) shape: &'a [u64],
}

/// A box of a grid: its first element, and its lengths as far as it lies in the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) origin: Vec<u64>,
    pub(crate) lengths: Vec<u64>,
}

impl Grid<'_> {
    /// The chunks of a box in each dimension: as many of the fastest dimensions as stay within `limit` bytes, one at least.
    fn chunks_of_box(&self, limit: u64) -> Vec<u64> {
        let mut bytes =
            self.chunk.iter().fold(self.element, |product, length| product.saturating_mul(*length));
        let mut counts = vec![1; self.chunk.len()];
        for ((count, chunk), shape) in counts.iter_mut().zip(self.chunk).zip(self.shape).rev() {
            let all = shape.div_ceil(*chunk).max(1);
            *count = all.min(limit / bytes.max(1)).max(1);
            bytes = bytes.saturating_mul(*count);
            if *count < all {
                break;
            }
        }
        counts
    }

    /// The boxes of at most `limit` bytes, in row-major order; `None`: they would be more than `most`.
    pub(crate) fn boxes(&self, limit: u64, most: usize) -> Option<Vec<Region>> {
        let steps: Vec<u64> =
            self.chunks_of_box(limit).iter().zip(self.chunk).map(|(count, chunk)| count * chunk).collect();
        let counts: Vec<u64> =
            self.shape.iter().zip(&steps).map(|(shape, step)| shape.div_ceil(*step)).collect();
        let count = counts.iter().try_fold(1_u64, |product, count| product.checked_mul(*count));
        let count = count.filter(|count| *count <= most as u64)?;
        let region = |number: u64| {
            let (mut left, mut origin) = (number, vec![0; steps.len()]);
            for ((origin, count), step) in origin.iter_mut().zip(&counts).zip(&steps).rev() {
                *origin = left % count * step;
                left /= count;
            }
            let lengths = origin.iter().zip(&steps).zip(self.shape);
            let lengths = lengths.map(|((origin, step), shape)| *step.min(&(shape - origin))).collect();
            Region { origin, lengths }
        };
        Some((0..count).map(region).collect())
    }

    /// Origins of the chunks of a box, in row-major order.
    pub(crate) fn origins_in(&self, region: &Region) -> Vec<Vec<u64>> {
        let counts: Vec<u64> =
            region.lengths.iter().zip(self.chunk).map(|(length, chunk)| length.div_ceil(*chunk)).collect();
        let origin = |number: u64| {
            let (mut left, mut origin) = (number, region.origin.clone());
            for ((origin, count), chunk) in origin.iter_mut().zip(&counts).zip(self.chunk).rev() {
                *origin += left % count * chunk;
                left /= count;
            }
            origin
        };
        (0..counts.iter().product()).map(origin).collect()
    }

    /// Whether boxes that follow each other are rows of the array that follow each other: each is one element long in all dimensions
    /// before the one that is cut.
    pub(crate) fn follow_each_other(&self, regions: &[Region]) -> bool {
        regions.iter().all(|region| {
            let mut lengths = region.lengths.iter().zip(self.shape).skip_while(|(length, _)| **length == 1);
            lengths.next();
            lengths.all(|(length, shape)| length == shape)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An array whose elements are two bytes of their own number, and the chunks that it is cut into, with `beyond` behind its edges.
    fn chunks(shape: &[u64], chunk: &[u64], beyond: u8) -> (Vec<u8>, Vec<Vec<u8>>) {
        let grid = Grid { element: 2, chunk, shape };
        let whole = Region { origin: vec![0; shape.len()], lengths: shape.to_vec() };
        let at = |place: &[u64]| {
            place
                .iter()
                .zip(shape)
                .try_fold(0, |number, (at, length)| (at < length).then(|| number * length + at))
        };
        let element = |number: u64| u16::try_from(number % 65_000 + 1).unwrap().to_le_bytes();
        let of = |origin: Vec<u64>| {
            let elements: u64 = chunk.iter().product();
            let within = |number: u64| {
                let (mut left, mut place) = (number, origin.clone());
                for (place, length) in place.iter_mut().zip(chunk).rev() {
                    *place += left % length;
                    left /= length;
                }
                at(&place).map_or([beyond, number.to_le_bytes()[0] & beyond], element)
            };
            (0..elements).flat_map(within).collect()
        };
        let array = (0..shape.iter().product()).flat_map(element).collect();
        (array, grid.origins_in(&whole).into_iter().map(of).collect())
    }

    const SHAPES: [(&[u64], &[u64]); 6] = [
        (&[7], &[3]),
        (&[5, 4], &[2, 3]),
        (&[6, 4], &[3, 2]),
        (&[3, 5, 7], &[2, 2, 4]),
        (&[1, 1, 9, 2], &[1, 1, 2, 2]),
        (&[2, 3], &[5, 8]),
    ];

    #[test]
    fn chunks_that_are_put_together_are_the_array_and_come_back() {
        for (shape, chunk) in SHAPES {
            for beyond in [0, 0xff] {
                let (array, all) = chunks(shape, chunk, beyond);
                let numbers = || (0..all.len()).collect();
                let tiles = TileBox::new(2, chunk.to_vec(), shape.to_vec(), beyond > 0, numbers()).unwrap();
                let mut plain = vec![7; to_usize(tiles.bytes())];
                all.iter().enumerate().for_each(|(number, chunk)| tiles.put(&mut plain, number, chunk));
                assert_eq!(plain[..array.len()], array, "{shape:?} of {chunk:?}");
                assert_eq!(tiles.fringe_bytes(), if beyond > 0 { tiles.bytes_beyond() } else { 0 });
                let back: Vec<Vec<u8>> = (0..all.len()).map(|number| tiles.chunk(&plain, number)).collect();
                assert_eq!(back, all);
                let zero = all.iter().enumerate().all(|(number, chunk)| tiles.is_zero_beyond(number, chunk));
                assert_eq!(zero, beyond == 0 || tiles.bytes_beyond() == 0);
            }
        }
    }

    #[test]
    fn boxes_cover_the_grid_once_and_say_whether_they_follow_each_other() {
        for (shape, chunk) in SHAPES {
            let grid = Grid { element: 2, chunk, shape };
            let whole = Region { origin: vec![0; shape.len()], lengths: shape.to_vec() };
            let mut expected = grid.origins_in(&whole);
            expected.sort();
            for limit in [1, 20, 50, 100, 1000] {
                let boxes = grid.boxes(limit, 1000).unwrap();
                let mut found: Vec<Vec<u64>> =
                    boxes.iter().flat_map(|region| grid.origins_in(region)).collect();
                found.sort();
                assert_eq!(found, expected, "{shape:?} of {chunk:?} in boxes of {limit}");
                // Where they follow each other, the places of their elements do.
                let places = boxes.iter().flat_map(|region| {
                    let elements: u64 = region.lengths.iter().product();
                    (0..elements).map(|number| {
                        let (mut left, mut place) = (number, region.origin.clone());
                        for (place, length) in place.iter_mut().zip(&region.lengths).rev() {
                            *place += left % length;
                            left /= length;
                        }
                        place.iter().zip(shape).fold(0, |number, (at, length)| number * length + at)
                    })
                });
                let in_order = places.eq(0..shape.iter().product());
                assert_eq!(
                    grid.follow_each_other(&boxes),
                    in_order,
                    "{shape:?} of {chunk:?} in boxes of {limit}"
                );
            }
        }
    }

    #[test]
    fn boxes_come_back_as_they_were_and_changed_ones_are_refused_or_sound() {
        let tiles = TileBox::new(8, vec![2, 3], vec![4, 5], true, vec![5, 6, 2, 9]).unwrap();
        let mut bytes = Vec::new();
        tiles.to_bytes(&mut bytes);
        assert_eq!(TileBox::from_bytes(&mut bytes.as_slice(), 10).as_ref(), Some(&tiles));
        assert_eq!(TileBox::from_bytes(&mut bytes.as_slice(), 9), None);
        for at in 0..bytes.len() {
            assert_eq!(TileBox::from_bytes(&mut &bytes[..at], 10), None);
            for value in [0, 1, 3, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                if let Some(read) = TileBox::from_bytes(&mut changed.as_slice(), 10) {
                    assert!(read.chunk_bytes() * 4 <= STREAM_MAX);
                }
            }
        }
        assert_eq!(TileBox::new(8, vec![2, 3], vec![4, 5], true, vec![1, 2, 3]), None);
        assert_eq!(TileBox::new(u64::MAX, vec![2, 3], vec![4, 5], true, vec![1, 2, 3, 4]), None);
    }
}
