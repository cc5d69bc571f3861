//! The steps by which HDF5 and zip changed bytes before they stored them, undone and done again.
//!
//! Relies on [`super::deflate`]. The idea: a pipeline is a list of reversible steps, in the order in which the writer took them; of each the
//! container keeps what makes it again.

use std::sync::atomic::AtomicU32;

use stdchk_formats::{Filter, ZarrCoder};

use super::blosc::{self, BloscRecipe};
use super::deflate::{Maker, Wrapper, inflate, made, maker_of};
use super::zstandard;
use crate::codec::{shuffle, unshuffle};
use crate::limits::STREAM_MAX;

/// Bytes of the checksum that HDF5 puts behind others.
const CHECKSUM: usize = 4;

/// A step of a writer on the way from plain bytes to stored ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriterStep {
    Shuffle(u32),
    Fletcher32,
    /// With the level that the file tells, if it does.
    Deflate(Wrapper, Option<u32>),
    /// One frame, with the level that the file tells, if it does.
    Zstd(Option<u32>),
    Blosc,
}

/// Registered numbers of filters of HDF5.
const BLOSC: u16 = 32001;
const ZSTD: u16 = 32015;

impl WriterStep {
    /// The input of the step whose output these bytes are.
    fn undone(self, bytes: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Shuffle(size) => Some(unshuffle(bytes, element_size(size)?)),
            Self::Fletcher32 => {
                let (plain, sum) = bytes.split_last_chunk::<CHECKSUM>()?;
                (fletcher_32(plain).to_le_bytes() == *sum).then(|| plain.to_vec())
            }
            Self::Deflate(wrapper, _) => inflate(bytes, wrapper, usize::try_from(STREAM_MAX).ok()?),
            Self::Zstd(_) => zstandard::undone(bytes, usize::try_from(STREAM_MAX).ok()?),
            Self::Blosc => blosc::undone(bytes),
        }
    }
}

/// The steps of a writer, in the order in which it took them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Coding(Vec<WriterStep>);

impl Coding {
    /// That of a chunk of HDF5; none where one of its filters can't be undone here.
    pub(crate) fn of_filters(filters: &[Filter]) -> Option<Self> {
        let step = |filter: &Filter| match filter {
            Filter::Deflate(level) => Some(WriterStep::Deflate(Wrapper::Zlib, Some(*level))),
            Filter::Shuffle(size) => Some(WriterStep::Shuffle(*size)),
            Filter::Fletcher32 => Some(WriterStep::Fletcher32),
            Filter::Other(BLOSC) => Some(WriterStep::Blosc),
            Filter::Other(ZSTD) => Some(WriterStep::Zstd(None)),
            Filter::Other(_) => None,
        };
        filters.iter().map(step).collect::<Option<Vec<_>>>().map(Self)
    }

    /// A chunk of Zarr.
    pub(crate) fn of_zarr(coder: ZarrCoder) -> Self {
        Self(vec![match coder {
            ZarrCoder::Zstd(level) => WriterStep::Zstd(Some(level)),
            ZarrCoder::Zlib(level) => WriterStep::Deflate(Wrapper::Zlib, Some(level)),
            ZarrCoder::Blosc => WriterStep::Blosc,
        }])
    }

    /// A raw deflate stream, as zip and gzip have it.
    pub(crate) fn deflated() -> Self {
        Self(vec![WriterStep::Deflate(Wrapper::Raw, None)])
    }

    /// The plain bytes, if the stored ones are what the steps make.
    pub(crate) fn undone(&self, stored: &[u8]) -> Option<Vec<u8>> {
        self.0.iter().rev().try_fold(stored.to_vec(), |bytes, step| step.undone(&bytes))
    }

    /// How stored bytes are made of their plain ones. `usual` is the level of the streams before them.
    pub(crate) fn folds(&self, stored: &[u8], usual: &AtomicU32) -> Option<(Vec<u8>, Vec<Fold>)> {
        let (mut bytes, mut folds) = (stored.to_vec(), Vec::new());
        for step in self.0.iter().rev() {
            let plain = step.undone(&bytes)?;
            folds.push(match *step {
                WriterStep::Shuffle(size) => Fold::Shuffle(size),
                WriterStep::Fletcher32 => Fold::Fletcher32,
                WriterStep::Deflate(wrapper, level) => {
                    let maker = maker_of(&bytes, &plain, wrapper, level, usual)?;
                    Fold::Deflate { wrapper, maker, length: bytes.len() as u64 }
                }
                WriterStep::Zstd(level) => {
                    let (level, checksum) = zstandard::level_of(&bytes, &plain, level, usual)?;
                    Fold::Zstd { level, checksum }
                }
                WriterStep::Blosc => {
                    let recipe = blosc::recipe_of(&bytes, &plain, usual)?;
                    Fold::Blosc { recipe, length: bytes.len() as u64 }
                }
            });
            bytes = plain;
        }
        folds.reverse();
        Some((bytes, folds))
    }
}

/// A step of a writer, and how it is taken again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fold {
    Shuffle(u32),
    Fletcher32,
    /// To a stream of this length.
    Deflate {
        wrapper: Wrapper,
        maker: Maker,
        length: u64,
    },
    /// To a frame of this level.
    Zstd {
        level: u32,
        checksum: bool,
    },
    /// To a chunk of this length.
    Blosc {
        recipe: BloscRecipe,
        length: u64,
    },
}

impl Fold {
    fn step(&self) -> WriterStep {
        match self {
            Self::Shuffle(size) => WriterStep::Shuffle(*size),
            Self::Fletcher32 => WriterStep::Fletcher32,
            Self::Deflate { wrapper, .. } => WriterStep::Deflate(*wrapper, None),
            Self::Zstd { .. } => WriterStep::Zstd(None),
            Self::Blosc { .. } => WriterStep::Blosc,
        }
    }

    fn taken(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Shuffle(size) => Some(shuffle(bytes, element_size(*size)?)),
            Self::Fletcher32 => Some([bytes, &fletcher_32(bytes).to_le_bytes()].concat()),
            Self::Deflate { wrapper, maker, length } => {
                made(maker, bytes, *wrapper, usize::try_from(*length).ok()?)
            }
            Self::Zstd { level, checksum } => zstandard::made(bytes, i32::try_from(*level).ok()?, *checksum),
            Self::Blosc { recipe, length } => blosc::made(recipe, bytes, usize::try_from(*length).ok()?),
        }
    }
}

/// The stored bytes that these steps make of plain ones.
pub(crate) fn folded(folds: &[Fold], plain: &[u8]) -> Option<Vec<u8>> {
    folds.iter().try_fold(plain.to_vec(), |bytes, fold| fold.taken(&bytes))
}

/// The plain bytes of which these steps make the stored ones.
pub(crate) fn unfolded(folds: &[Fold], stored: &[u8]) -> Option<Vec<u8>> {
    folds.iter().rev().try_fold(stored.to_vec(), |bytes, fold| fold.step().undone(&bytes))
}

/// The size of elements that a filter names, in bytes; a damaged file may name none.
fn element_size(size: u32) -> Option<usize> {
    usize::try_from(size).ok().filter(|size| *size > 0)
}

/// The checksum of HDF5's filter (`H5_checksum_fletcher32`): of big-endian words of 16 bits, modulo 65535.
fn fletcher_32(bytes: &[u8]) -> u32 {
    /// Most words whose sums stay below 2^32.
    const RUN: usize = 360;
    let reduced = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let (mut one, mut other) = (0_u32, 0_u32);
    let (words, odd) = bytes.as_chunks::<2>();
    for run in words.chunks(RUN) {
        for word in run {
            one += u32::from(u16::from_be_bytes(*word));
            other += one;
        }
        (one, other) = (reduced(one), reduced(other));
    }
    if let [last] = odd {
        one += u32::from(*last) << 8;
        other += one;
        (one, other) = (reduced(one), reduced(other));
    }
    reduced(other) << 16 | reduced(one)
}

/// The first bytes of a gzip file before its deflate stream (RFC 1952); `None`: it is none, or not whole.
pub(crate) fn gzip_head(bytes: &[u8]) -> Option<usize> {
    const FIXED: usize = 10;
    let head = bytes.get(..FIXED)?;
    let [0x1f, 0x8b, 8, flags, ..] = *head else { return None };
    let mut at = FIXED;
    if flags & 4 != 0 {
        let length = bytes.get(at..)?.first_chunk::<2>()?;
        at += 2 + usize::from(u16::from_le_bytes(*length));
    }
    for text in [8, 16] {
        if flags & text != 0 {
            at += bytes.get(at..)?.iter().position(|byte| *byte == 0)? + 1;
        }
    }
    at += if flags & 2 != 0 { 2 } else { 0 };
    (at <= bytes.len()).then_some(at)
}

/// Bytes of checksum and length behind the stream of a gzip file.
pub(crate) const GZIP_TAIL: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_of_filters_is_undone_and_done_again() {
        let plain: Vec<u8> = (0..5000_u32).flat_map(|n| (f64::from(n) / 50.0).sin().to_le_bytes()).collect();
        let (shuffled, deflated) = (Filter::Shuffle(8), Filter::Deflate(4));
        for filters in [
            vec![shuffled, deflated, Filter::Fletcher32],
            vec![Filter::Fletcher32, shuffled, deflated],
            vec![deflated],
            vec![shuffled],
            vec![],
        ] {
            let mut stored = plain.clone();
            for filter in &filters {
                stored = match filter {
                    Filter::Shuffle(size) => shuffle(&stored, *size as usize),
                    Filter::Fletcher32 => folded(&[Fold::Fletcher32], &stored).unwrap(),
                    _ => {
                        use std::io::Write;
                        let mut encoder =
                            flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(4));
                        encoder.write_all(&stored).unwrap();
                        encoder.finish().unwrap()
                    }
                };
            }
            let coding = Coding::of_filters(&filters).unwrap();
            assert_eq!(coding.undone(&stored).as_ref(), Some(&plain), "{filters:?}");
            let (again, folds) = coding.folds(&stored, &AtomicU32::new(0)).unwrap();
            assert_eq!(again, plain);
            assert_eq!(folded(&folds, &plain).as_ref(), Some(&stored), "{filters:?}");
            assert_eq!(unfolded(&folds, &stored).as_ref(), Some(&plain), "{filters:?}");
            if filters.contains(&Filter::Fletcher32) {
                let at = stored.len() - 1;
                stored[at] ^= 1;
                assert_eq!(coding.undone(&stored), None, "a wrong checksum is not made again");
            }
        }
    }

    #[test]
    fn the_checksum_is_that_of_hdf5() {
        // h5py stores these behind `numpy.arange(5, dtype="u1")` and behind 1000 times 0xff.
        assert_eq!(fletcher_32(&[0, 1, 2, 3, 4]), 0x0809_0604);
        assert_eq!(fletcher_32(&[0xff; 1000]), 0xffff_ffff);
    }

    #[test]
    fn streams_that_h5py_wrote_are_made_by_zlib_at_the_level_that_the_file_tells() {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../formats/tests/fixtures/filtered.h5");
        let bytes = std::fs::read(fixtures).unwrap();
        let mut made = 0;
        for variable in stdchk_formats::parse(&bytes).variables {
            let stdchk_formats::Storage::Filtered(filtered) = &variable.storage else { continue };
            for (chunk, extent) in variable.extents.iter().enumerate() {
                let Some(coding) = Coding::of_filters(&filtered.of_chunk(chunk)) else { continue };
                let range = usize::try_from(extent.offset).unwrap()..usize::try_from(extent.end()).unwrap();
                let (_, folds) = coding.folds(&bytes[range], &AtomicU32::new(0)).unwrap();
                for fold in folds {
                    let Fold::Deflate { maker, .. } = fold else { continue };
                    assert_eq!(maker, Maker::Zlib(4), "{}", variable.path());
                    made += 1;
                }
            }
        }
        assert_eq!(made, 7, "two chunks of three datasets, and one of a fourth");
    }

    /// `tests/fixtures/zarr` was written by zarr-python 3.1 with numcodecs 0.16 (c-blosc 1.21, zstd 1.5.6).
    #[test]
    fn chunks_that_zarr_python_wrote_are_made_again_bit_for_bit() {
        let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/zarr"));
        let mut names = Vec::new();
        let mut pending = vec![root.to_owned()];
        while let Some(folder) = pending.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { pending.push(path) } else { names.push(path) }
            }
        }
        let name_in = |path: &std::path::Path| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        let mut made = 0;
        for path in &names {
            let name = name_in(path);
            let Some(folder) = stdchk_formats::zarr_folder(&name) else { continue };
            let array = stdchk_formats::ZarrArray::described(&std::fs::read(path).unwrap()).unwrap();
            let coding = Coding::of_zarr(array.coder);
            for chunk in &names {
                let chunk_name = name_in(chunk);
                let rest = chunk_name.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'));
                if !rest.is_some_and(|rest| array.is_chunk(rest)) {
                    continue;
                }
                let stored = std::fs::read(chunk).unwrap();
                let found = coding.folds(&stored, &AtomicU32::new(0));
                let (plain, folds) = found.unwrap_or_else(|| unreachable!("{chunk_name} isn't made again"));
                assert_eq!(Some(plain.len() as u64), array.chunk_bytes(), "{chunk_name}");
                assert_eq!(folded(&folds, &plain), Some(stored));
                made += 1;
            }
        }
        assert_eq!(made, 12, "two chunks of six arrays");
    }

    #[test]
    fn heads_of_gzip_are_passed_over_with_their_name_and_extra_field() {
        let plain = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
        assert_eq!(gzip_head(&plain), Some(10));
        let named = [&[0x1f, 0x8b, 8, 8 | 4, 0, 0, 0, 0, 0, 3, 2, 0, 7, 7], b"name\0x".as_slice()].concat();
        assert_eq!(gzip_head(&named), Some(19));
        assert_eq!((gzip_head(&named[..16]), gzip_head(b"x")), (None, None));
    }
}
