//! Codecs: the form in which a chunk's bytes are stored, chosen by trying a sample.
//!
//! The number of a codec is part of the stored formats and of the protocol and never changes meaning. A chunk that
//! would hardly shrink is stored as it is: reading it then costs nothing, and already compressed data is told from a
//! few kilobytes of it. Decoding trusts nothing: it is bounded by the length that the chunk map promises, whatever the
//! stored bytes claim.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use stdchk_model::exact::part;

/// How stored bytes become plain ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Codec {
    /// The plain bytes themselves.
    Store = 0,
    /// One LZ4 block (no frame).
    Lz4 = 1,
    /// One Zstandard frame (RFC 8878), no dictionary.
    Zstd = 2,
}

impl Codec {
    /// All codecs, by number.
    pub const ALL: [Self; 3] = [Self::Store, Self::Lz4, Self::Zstd];

    /// The number that stands for it in stored formats and messages.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The codec of a number.
    ///
    /// # Errors
    /// [`BadStored::UnknownCodec`] for a number of a later version, or damage.
    pub fn from_number(number: u8) -> Result<Self, BadStored> {
        Self::ALL.into_iter().find(|codec| codec.number() == number).ok_or(BadStored::UnknownCodec(number))
    }
}

/// Why stored bytes can't be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadStored {
    /// No codec has this number.
    #[error("codec {0} is unknown: the bytes are damaged or were stored by a later stdchk")]
    UnknownCodec(u8),
    /// The plain bytes would be more than the chunk can have.
    #[error(
        "the stored bytes decode to more than the {plain_max} bytes of the chunk: they are damaged or foreign"
    )]
    TooLong {
        /// The bound, bytes.
        plain_max: usize,
    },
    /// The codec can't make sense of the bytes.
    #[error("the stored bytes are not {codec:?}: {reason}")]
    Damaged {
        /// What they should be.
        codec: Codec,
        /// What the codec says.
        reason: String,
    },
}

/// How hard to try to make chunks smaller, as a policy says it: `store`, `lz4`, `zstd:1` to `zstd:19`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// Not at all.
    Store,
    /// LZ4: gigabytes a second, for data with repeats.
    Lz4,
    /// Zstandard at a level from 1 to 19.
    Zstd(i32),
}

/// Strongest level of Zstandard offered; the "ultra" levels above take gigabytes of memory.
const ZSTD_LEVEL_MAX: i32 = 19;
/// Level meant by `zstd` alone: Zstandard's own default.
const ZSTD_LEVEL_DEFAULT: i32 = 3;

/// The text is no effort.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a codec: store, lz4, zstd and zstd:1 to zstd:19 are")]
pub struct NotAnEffort(pub String);

impl FromStr for Effort {
    type Err = NotAnEffort;

    fn from_str(text: &str) -> Result<Self, NotAnEffort> {
        let refuse = || NotAnEffort(text.chars().take(40).collect());
        match text.trim().split_once(':') {
            None => match text.trim() {
                "store" => Ok(Self::Store),
                "lz4" => Ok(Self::Lz4),
                "zstd" => Ok(Self::Zstd(ZSTD_LEVEL_DEFAULT)),
                _ => Err(refuse()),
            },
            Some(("zstd", level)) => match level.parse() {
                Ok(level) if (1..=ZSTD_LEVEL_MAX).contains(&level) => Ok(Self::Zstd(level)),
                _ => Err(refuse()),
            },
            Some(_) => Err(refuse()),
        }
    }
}

impl fmt::Display for Effort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store => f.write_str("store"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

/// A sample that shrinks by less than one part in this many says that the chunk is not worth it; neither is a chunk.
const WORTH_ONE_IN: usize = 16;
/// Places in a chunk that a sample is taken from.
const SAMPLE_PLACES: usize = 4;
/// Bytes taken from each place: enough for repeats within a page to show.
const SAMPLE_PLACE_BYTES: usize = 4096;
/// A chunk of less than this is compressed without a sample, which would be most of it, bytes.
const SAMPLED_FROM: usize = 4 * SAMPLE_PLACES * SAMPLE_PLACE_BYTES;

/// Compresses chunks, one after the other; keeps the tables of the codec, which for Zstandard take from one megabyte
/// (level 1) to some tens (level 19).
pub struct Compressor {
    engine: Engine,
    sample: Vec<u8>,
}

enum Engine {
    Store,
    Lz4,
    Zstd(zstd::bulk::Compressor<'static>),
}

impl Compressor {
    /// A compressor that tries as hard as `effort` says.
    ///
    /// # Errors
    /// Memory for the tables can't be had.
    pub fn new(effort: Effort) -> std::io::Result<Self> {
        let engine = match effort {
            Effort::Store => Engine::Store,
            Effort::Lz4 => Engine::Lz4,
            Effort::Zstd(level) => Engine::Zstd(zstd::bulk::Compressor::new(level)?),
        };
        Ok(Self { engine, sample: Vec::new() })
    }

    /// `plain` in the form in which it should be stored: compressed, or as it is where that gains little.
    pub fn compress<'plain>(&mut self, plain: &'plain [u8]) -> (Codec, Cow<'plain, [u8]>) {
        let stored =
            (plain.len() < SAMPLED_FROM || self.sample_shrinks(plain)).then(|| self.engine.encode(plain));
        match stored.flatten() {
            Some((codec, bytes)) if worth(bytes.len(), plain.len()) => (codec, Cow::Owned(bytes)),
            _ => (Codec::Store, Cow::Borrowed(plain)),
        }
    }

    /// Whether pieces from evenly spread places of `plain`, compressed together, shrink.
    fn sample_shrinks(&mut self, plain: &[u8]) -> bool {
        self.sample.clear();
        for place in plain.chunks(plain.len().div_ceil(SAMPLE_PLACES)) {
            self.sample.extend_from_slice(part(place, ..SAMPLE_PLACE_BYTES.min(place.len())));
        }
        let encoded = self.engine.encode(&self.sample);
        encoded.is_some_and(|(_, bytes)| worth(bytes.len(), self.sample.len()))
    }
}

impl Engine {
    /// `None` when there is nothing to gain or the codec fails, which leaves the plain bytes as the answer.
    fn encode(&mut self, plain: &[u8]) -> Option<(Codec, Vec<u8>)> {
        match self {
            Self::Store => None,
            Self::Lz4 => Some((Codec::Lz4, lz4_flex::block::compress(plain))),
            Self::Zstd(compressor) => compressor.compress(plain).ok().map(|bytes| (Codec::Zstd, bytes)),
        }
    }
}

fn worth(stored: usize, plain: usize) -> bool {
    stored < plain - plain / WORTH_ONE_IN
}

/// The plain bytes of a chunk, at most `plain_max` of them.
///
/// Takes memory for `plain_max` bytes at most. The result is only as true as the stored bytes: compare its name.
///
/// # Errors
/// The stored bytes are damaged, or decode to more than `plain_max` bytes.
pub fn decompress(codec: Codec, stored: &[u8], plain_max: usize) -> Result<Cow<'_, [u8]>, BadStored> {
    match codec {
        Codec::Store if stored.len() > plain_max => Err(BadStored::TooLong { plain_max }),
        Codec::Store => Ok(Cow::Borrowed(stored)),
        Codec::Lz4 => decompress_lz4(stored, plain_max).map(Cow::Owned),
        Codec::Zstd => decompress_zstd(stored, plain_max).map(Cow::Owned),
    }
}

fn decompress_lz4(stored: &[u8], plain_max: usize) -> Result<Vec<u8>, BadStored> {
    use lz4_flex::block::DecompressError;
    let mut plain = vec![0; plain_max];
    let length = lz4_flex::block::decompress_into(stored, &mut plain).map_err(|error| match error {
        DecompressError::OutputTooSmall { .. } => BadStored::TooLong { plain_max },
        other => BadStored::Damaged { codec: Codec::Lz4, reason: other.to_string() },
    })?;
    plain.truncate(length);
    Ok(plain)
}

fn decompress_zstd(stored: &[u8], plain_max: usize) -> Result<Vec<u8>, BadStored> {
    let damaged =
        |error: std::io::Error| BadStored::Damaged { codec: Codec::Zstd, reason: error.to_string() };
    match zstd::zstd_safe::get_frame_content_size(stored) {
        Ok(Some(claimed)) if claimed > plain_max as u64 => Err(BadStored::TooLong { plain_max }),
        _ => zstd::bulk::decompress(stored, plain_max).map_err(damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EFFORTS: [Effort; 4] = [Effort::Store, Effort::Lz4, Effort::Zstd(1), Effort::Zstd(9)];

    fn noise(length: usize) -> Vec<u8> {
        let numbers =
            (0u32..).map(|number| *stdchk_model::ChunkId::of(&number.to_be_bytes()).0.first().unwrap());
        numbers.take(length).collect()
    }

    /// Noise and repeats in turn, from nothing to some hundred kilobytes.
    fn plain() -> impl Strategy<Value = Vec<u8>> {
        let stretch = (any::<u8>(), 0usize..20_000, any::<bool>());
        prop::collection::vec(stretch, 0..20).prop_map(|stretches| {
            let stretch = |(byte, length, noisy)| if noisy { noise(length) } else { vec![byte; length] };
            stretches.into_iter().flat_map(stretch).collect()
        })
    }

    #[test]
    fn numbers_of_codecs_never_change() {
        assert_eq!(Codec::ALL.map(Codec::number), [0, 1, 2]);
        for codec in Codec::ALL {
            assert_eq!(Codec::from_number(codec.number()), Ok(codec));
        }
        assert_eq!(Codec::from_number(3), Err(BadStored::UnknownCodec(3)));
        assert_eq!(Codec::from_number(255), Err(BadStored::UnknownCodec(255)));
    }

    #[test]
    fn bytes_stored_by_earlier_versions_decode() {
        let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x03, 0x19, 0x00, 0x00, b'a', b'b', b'c'];
        let lz4 = [0x30, b'a', b'b', b'c'];
        for (codec, stored) in [(Codec::Store, &b"abc"[..]), (Codec::Lz4, &lz4), (Codec::Zstd, &zstd)] {
            assert_eq!(decompress(codec, stored, 3).unwrap(), &b"abc"[..], "{codec:?}");
        }
    }

    #[test]
    fn efforts_read_back_what_they_print() {
        for text in ["store", "lz4", "zstd:1", "zstd:19"] {
            assert_eq!(text.parse::<Effort>().unwrap().to_string(), text);
        }
        assert_eq!("zstd".parse(), Ok(Effort::Zstd(3)));
        for bad in ["", "gzip", "lz4:1", "zstd:0", "zstd:20", "zstd:x", "store:1"] {
            assert!(bad.parse::<Effort>().unwrap_err().to_string().contains(bad));
        }
    }

    #[test]
    fn repeats_shrink_and_noise_is_left_alone() {
        let noise = noise(300_000);
        for effort in EFFORTS.into_iter().filter(|effort| *effort != Effort::Store) {
            let mut compressor = Compressor::new(effort).unwrap();
            let (codec, stored) = compressor.compress(&noise);
            assert!(codec == Codec::Store && matches!(stored, Cow::Borrowed(_)), "{effort}");
            let (codec, stored) = compressor.compress(&[7; 300_000]);
            assert!(codec != Codec::Store && stored.len() < 3000, "{effort}: {}", stored.len());
        }
    }

    #[test]
    fn a_bomb_is_refused_within_the_bound() {
        let plain = vec![0; 4 << 20];
        for effort in EFFORTS.into_iter().filter(|effort| *effort != Effort::Store) {
            let (codec, stored) = Compressor::new(effort).unwrap().compress(&plain);
            assert!(stored.len() < 32 << 10);
            assert_eq!(
                decompress(codec, &stored, plain.len() - 1),
                Err(BadStored::TooLong { plain_max: plain.len() - 1 })
            );
        }
    }

    #[test]
    fn a_bomb_of_many_frames_is_refused() {
        let frame = zstd::bulk::compress(&[0; 1 << 16], 1).unwrap();
        assert!(decompress(Codec::Zstd, &frame.repeat(1000), 1 << 16).is_err());
    }

    #[test]
    fn damage_never_panics_nor_exceeds_the_bound() {
        let plain: Vec<u8> = [noise(3000), vec![1; 3000], noise(500), vec![2; 500]].concat();
        for codec in [Codec::Lz4, Codec::Zstd] {
            let stored = match codec {
                Codec::Lz4 => lz4_flex::block::compress(&plain),
                _ => zstd::bulk::compress(&plain, 3).unwrap(),
            };
            for step in 0..20_000usize {
                let mut damaged = stored.clone();
                let places = noise(step % 251 + 8);
                for place in places.chunks_exact(4).rev().take(1 + step % 3) {
                    let at = usize::from(place[0]) << 8 | usize::from(place[1]) ^ step;
                    let at = at % damaged.len();
                    damaged[at] ^= place[2].rotate_left(u32::from(place[3])) | 1;
                }
                damaged.truncate(if step % 5 == 0 { step % stored.len() } else { stored.len() });
                if let Ok(decoded) = decompress(codec, &damaged, plain.len()) {
                    assert!(decoded.len() <= plain.len());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn what_was_compressed_comes_back(plain in plain(), effort in prop::sample::select(EFFORTS.to_vec())) {
            let mut compressor = Compressor::new(effort).unwrap();
            for _ in 0..2 {
                let (codec, stored) = compressor.compress(&plain);
                prop_assert!(stored.len() <= plain.len());
                prop_assert_eq!(&decompress(codec, &stored, plain.len()).unwrap(), &plain);
            }
        }

        #[test]
        fn any_bytes_decode_to_an_error_or_within_the_bound(
            stored in prop::collection::vec(any::<u8>(), 0..300),
            plain_max in 0usize..1000,
        ) {
            for codec in Codec::ALL {
                if let Ok(plain) = decompress(codec, &stored, plain_max) {
                    prop_assert!(plain.len() <= plain_max);
                }
            }
        }
    }
}
