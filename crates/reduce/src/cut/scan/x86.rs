//! The search with AVX2 and AVX-512.
//!
//! Even and odd lengths are hashed in two vectors of 16-bit lanes, because the instruction that multiplies bytes and
//! adds pairs of products (`maddubs`) yields one sum for every second position. All of a group's bytes are one array
//! reference, so that each load is checked by its type. The vectors of the group before supply the quads and eights
//! that lie 4 and 8 bytes back.

use std::arch::x86_64::*;

use super::{EIGHT_BACK, FOUR_BACK, QUAD, Search, Test};

/// Bytes before the first length of a group that its own quads cover.
const QUAD_BYTES: usize = QUAD.len();

/// Proof that the processor has AVX2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Avx2(());

/// Proof that the processor has AVX-512 with its byte and word instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) struct Avx512(());

impl Avx2 {
    pub(super) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }

    /// Tries whole groups only; see [`super::Scanner::search`].
    pub(super) fn search(self, data: &[u8], from: usize, test: &Test) -> Search {
        // SAFETY: a value of this type exists only where the processor has AVX2.
        unsafe { search_avx2(data, from, test) }
    }
}

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        found.then_some(Self(()))
    }

    /// Tries whole groups only; see [`super::Scanner::search`].
    pub(super) fn search(self, data: &[u8], from: usize, test: &Test) -> Search {
        // SAFETY: a value of this type exists only where the processor has these parts of AVX-512.
        unsafe { search_avx512(data, from, test) }
    }
}

/// Distance at which bytes are asked for ahead of their use. The processor's own prefetching loses its way whenever a
/// cut is followed by the skip of the shortest piece; this reaches well beyond the skip of pieces of 8 KiB.
const PREFETCH_BYTES: usize = 8192;

/// Asks for the bytes that will be searched some groups later, without waiting for them.
#[inline]
fn prefetch<const BYTES: usize>(bytes: &[u8; BYTES]) {
    let ahead = bytes.as_ptr().wrapping_add(PREFETCH_BYTES);
    // SAFETY: a prefetch reads nothing that the program sees, and ignores addresses that are not mapped.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) }
}

/// Two weights as `maddubs` wants them: the earlier byte's below the later one's.
const fn pair(earlier: i8, later: i8) -> i16 {
    i16::from_le_bytes([earlier.cast_unsigned(), later.cast_unsigned()])
}

const NEWER: i16 = pair(QUAD[1], QUAD[0]);
const OLDER: i16 = pair(QUAD[3], QUAD[2]);

/// The bytes that the quads of `GROUP` lengths from `next` on cover, when they are all within `data`.
#[inline]
fn group<const BYTES: usize>(data: &[u8], next: usize) -> Option<&[u8; BYTES]> {
    data.get(next.checked_sub(QUAD_BYTES)?..)?.first_chunk()
}

/// The first of the lengths `next + bit`, for the bits set in `passed`, that the fine test allows.
#[cold]
fn first_fine(data: &[u8], next: usize, mut passed: u64, test: &Test) -> Option<usize> {
    while passed != 0 {
        let length = next + passed.trailing_zeros() as usize;
        if test.fine(data, length) {
            return Some(length);
        }
        passed &= passed - 1;
    }
    None
}

const LENGTHS_512: usize = 64;
const BYTES_512: usize = LENGTHS_512 + QUAD_BYTES - 1;

#[target_feature(enable = "avx512f,avx512bw")]
fn search_avx512(data: &[u8], from: usize, test: &Test) -> Search {
    let Some(before) = from.checked_sub(LENGTHS_512).and_then(|before| group(data, before)) else {
        return Search::TriedBelow(from);
    };
    let limit = _mm512_set1_epi16(test.coarse);
    let [mut even, mut odd] = Lanes512::two(before, [Lanes512::nothing(); 2]);
    let mut next = from;
    while let Some(bytes) = group(data, next) {
        [even, odd] = Lanes512::two(bytes, [even, odd]);
        let evens = _mm512_cmplt_epi16_mask(even.hash, limit);
        let odds = _mm512_cmplt_epi16_mask(odd.hash, limit);
        if evens | odds != 0 {
            let passed = spread(evens) | spread(odds) << 1;
            if let Some(length) = first_fine(data, next, passed, test) {
                return Search::Cut(length);
            }
        }
        prefetch(bytes);
        next += LENGTHS_512;
    }
    Search::TriedBelow(next)
}

/// The bits of `lanes` at the even places of the result.
fn spread(lanes: u32) -> u64 {
    let mut bits = u64::from(lanes);
    bits = (bits | bits << 16) & 0x0000_ffff_0000_ffff;
    bits = (bits | bits << 8) & 0x00ff_00ff_00ff_00ff;
    bits = (bits | bits << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    bits = (bits | bits << 2) & 0x3333_3333_3333_3333;
    (bits | bits << 1) & 0x5555_5555_5555_5555
}

/// Quads, eights and hashes of 32 lengths, each two apart.
#[derive(Clone, Copy)]
struct Lanes512 {
    quad: __m512i,
    eight: __m512i,
    hash: __m512i,
}

impl Lanes512 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn nothing() -> Self {
        let zeros = _mm512_setzero_si512();
        Self { quad: zeros, eight: zeros, hash: zeros }
    }

    /// The even and the odd lengths of a group; `before` are those of the group before.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn two(bytes: &[u8; BYTES_512], before: [Self; 2]) -> [Self; 2] {
        let [even, odd] = before;
        [
            Self::new(load_512::<2>(bytes), load_512::<0>(bytes), even),
            Self::new(load_512::<3>(bytes), load_512::<1>(bytes), odd),
        ]
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn new(newer: __m512i, older: __m512i, before: Self) -> Self {
        let quad = _mm512_add_epi16(
            _mm512_maddubs_epi16(newer, _mm512_set1_epi16(NEWER)),
            _mm512_maddubs_epi16(older, _mm512_set1_epi16(OLDER)),
        );
        let four_back = _mm512_alignr_epi32::<15>(quad, before.quad);
        let weight = _mm512_set1_epi16(FOUR_BACK.cast_signed());
        let eight = _mm512_add_epi16(quad, _mm512_mullo_epi16(four_back, weight));
        let eight_back = _mm512_alignr_epi32::<14>(eight, before.eight);
        let weight = _mm512_set1_epi16(EIGHT_BACK.cast_signed());
        let hash = _mm512_add_epi16(eight, _mm512_mullo_epi16(eight_back, weight));
        Self { quad, eight, hash }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load_512<const AT: usize>(bytes: &[u8; BYTES_512]) -> __m512i {
    const { assert!(AT + LENGTHS_512 <= BYTES_512) };
    // SAFETY: 64 bytes from AT on are within the array, as asserted; the load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().add(AT).cast()) }
}

const LENGTHS_256: usize = 32;
const BYTES_256: usize = LENGTHS_256 + QUAD_BYTES - 1;

#[target_feature(enable = "avx2")]
fn search_avx2(data: &[u8], from: usize, test: &Test) -> Search {
    let Some(before) = from.checked_sub(LENGTHS_256).and_then(|before| group(data, before)) else {
        return Search::TriedBelow(from);
    };
    let limit = _mm256_set1_epi16(test.coarse);
    let even_places = _mm256_set1_epi16(0x00ff);
    let [mut even, mut odd] = Lanes256::two(before, [Lanes256::nothing(); 2]);
    let mut next = from;
    while let Some(bytes) = group(data, next) {
        [even, odd] = Lanes256::two(bytes, [even, odd]);
        let evens = _mm256_cmpgt_epi16(limit, even.hash);
        let odds = _mm256_cmpgt_epi16(limit, odd.hash);
        let passed = _mm256_movemask_epi8(_mm256_blendv_epi8(odds, evens, even_places)).cast_unsigned();
        if passed != 0
            && let Some(length) = first_fine(data, next, passed.into(), test)
        {
            return Search::Cut(length);
        }
        prefetch(bytes);
        next += LENGTHS_256;
    }
    Search::TriedBelow(next)
}

/// Quads, eights and hashes of 16 lengths, each two apart.
#[derive(Clone, Copy)]
struct Lanes256 {
    quad: __m256i,
    eight: __m256i,
    hash: __m256i,
}

impl Lanes256 {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn nothing() -> Self {
        let zeros = _mm256_setzero_si256();
        Self { quad: zeros, eight: zeros, hash: zeros }
    }

    /// The even and the odd lengths of a group; `before` are those of the group before.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn two(bytes: &[u8; BYTES_256], before: [Self; 2]) -> [Self; 2] {
        let [even, odd] = before;
        [
            Self::new(load_256::<2>(bytes), load_256::<0>(bytes), even),
            Self::new(load_256::<3>(bytes), load_256::<1>(bytes), odd),
        ]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn new(newer: __m256i, older: __m256i, before: Self) -> Self {
        let quad = _mm256_add_epi16(
            _mm256_maddubs_epi16(newer, _mm256_set1_epi16(NEWER)),
            _mm256_maddubs_epi16(older, _mm256_set1_epi16(OLDER)),
        );
        let across = _mm256_permute2x128_si256::<0x21>(before.quad, quad);
        let four_back = _mm256_alignr_epi8::<12>(quad, across);
        let weight = _mm256_set1_epi16(FOUR_BACK.cast_signed());
        let eight = _mm256_add_epi16(quad, _mm256_mullo_epi16(four_back, weight));
        let across = _mm256_permute2x128_si256::<0x21>(before.eight, eight);
        let eight_back = _mm256_alignr_epi8::<8>(eight, across);
        let weight = _mm256_set1_epi16(EIGHT_BACK.cast_signed());
        let hash = _mm256_add_epi16(eight, _mm256_mullo_epi16(eight_back, weight));
        Self { quad, eight, hash }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_256<const AT: usize>(bytes: &[u8; BYTES_256]) -> __m256i {
    const { assert!(AT + LENGTHS_256 <= BYTES_256) };
    // SAFETY: 32 bytes from AT on are within the array, as asserted; the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().add(AT).cast()) }
}
