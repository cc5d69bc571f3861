//! The arithmetic of erasure codes: systematic Reed-Solomon over GF(2^8), polynomial 0x11d, with a Cauchy matrix. Its bytes are those of
//! ISA-L with `gf_gen_cauchy1_matrix`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rusty_erasure::{Coder, Matrix};
use stdchk_model::Code;

/// Bytes that a new coder is tried on: whole steps of the widest instructions, and some more.
const TRIED_BYTES: usize = 4096 + 37;

/// The coders that this process has made.
static CODERS: Mutex<BTreeMap<u16, Arc<Coder>>> = Mutex::new(BTreeMap::new());

/// Parity fragments of data fragments, all of one length.
pub(crate) fn parity(code: Code, data: &[&[u8]]) -> Vec<Vec<u8>> {
    let length = data.first().map_or(0, |first| first.len());
    let mut made = vec![vec![0; length]; usize::from(code.parity())];
    encode(&coder(code), data, &mut made);
    made
}

/// Fills data fragments that are missing, given with their numbers, from others that suffice; `fragments` are all of the code in
/// their order, `None` those that aren't there. All have one length.
pub(crate) fn restore(code: Code, fragments: &[Option<&[u8]>], missing: Vec<(usize, &mut [u8])>) {
    if missing.is_empty() {
        return;
    }
    let (numbers, mut places): (Vec<usize>, Vec<&mut [u8]>) = missing.into_iter().unzip();
    let coder = coder(code);
    let present: Vec<bool> = fragments.iter().map(Option::is_some).collect();
    let restored = coder
        .decode_plan(&present, &numbers)
        .and_then(|plan| coder.recover_with(&plan, fragments, &mut places));
    #[expect(clippy::panic, reason = "as many fragments of one length as the code needs suffice")]
    restored.unwrap_or_else(|error| panic!("{code:?}, fragments {numbers:?}: {error}"));
}

fn encode(coder: &Coder, data: &[&[u8]], parity: &mut [Vec<u8>]) {
    let mut places: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    let made = coder.encode(data, &mut places);
    #[expect(clippy::panic, reason = "the numbers and lengths of fragments are those of the code")]
    made.unwrap_or_else(|error| panic!("{} data and {} parity fragments: {error}", data.len(), parity.len()));
}

fn coder(code: Code) -> Arc<Coder> {
    let mut coders = CODERS.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(coders.entry(code.number()).or_insert_with(|| Arc::new(made(code))))
}

/// A coder that uses the processor's widest instructions. Wrong parity would show only when it is needed, so what they make is compared
/// once with what is made byte by byte; if it differs, bytes it is.
fn made(code: Code) -> Coder {
    let by_bytes = with(code, Coder::new);
    let by_words = with(code, rusty_erasure::coder);
    let data: Vec<Vec<u8>> = (0..code.data()).map(|number| pattern(number, TRIED_BYTES)).collect();
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let of = |coder: &Coder| {
        let mut made = vec![vec![0; TRIED_BYTES]; usize::from(code.parity())];
        encode(coder, &data, &mut made);
        made
    };
    if of(&by_words) == of(&by_bytes) { by_words } else { by_bytes }
}

fn with<E: std::fmt::Display>(code: Code, coder: impl FnOnce(Matrix) -> Result<Coder, E>) -> Coder {
    let matrix = Matrix::cauchy(usize::from(code.data()), usize::from(code.parity()));
    #[expect(clippy::panic, reason = "a code has at least two data fragments, and at most 32 fragments")]
    let matrix = matrix.unwrap_or_else(|error| panic!("{code:?}: {error}"));
    #[expect(clippy::panic, reason = "the matrix has more rows than columns")]
    coder(matrix).unwrap_or_else(|error| panic!("{code:?}: {error}"))
}

/// Bytes in which every value comes.
fn pattern(seed: u8, length: usize) -> Vec<u8> {
    let next = |byte: &u8| Some(byte.wrapping_mul(5).wrapping_add(seed | 1));
    std::iter::successors(Some(seed), next).take(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication in GF(2^8) as it is defined, bit by bit.
    fn times(mut a: u8, b: u8) -> u8 {
        let mut product = 0;
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                product ^= a;
            }
            a = (a << 1) ^ if a & 0x80 == 0 { 0 } else { 0x1d };
        }
        product
    }

    fn inverse(a: u8) -> u8 {
        (1..=255).find(|b| times(a, *b) == 1).unwrap()
    }

    /// All codes with these blocks.
    fn codes(blocks_max: u8) -> impl Iterator<Item = Code> {
        (2..blocks_max).flat_map(move |data| {
            (1..=blocks_max - data).filter_map(move |parity| Code::erasure(data, parity))
        })
    }

    #[test]
    fn parity_is_what_the_matrix_says_whatever_instructions_make_it() {
        for code in codes(32) {
            let data: Vec<Vec<u8>> = (0..code.data()).map(|number| pattern(number * 7, 193)).collect();
            let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let made = parity(code, &data);
            for (row, made) in (code.data()..).zip(&made) {
                for (at, byte) in made.iter().enumerate() {
                    let by_hand = (0..)
                        .zip(&data)
                        .fold(0, |sum, (column, data)| sum ^ times(inverse(row ^ column), data[at]));
                    assert_eq!(*byte, by_hand, "{code:?}, row {row}, byte {at}");
                }
            }
            for name in ["scalar", "ssse3", "avx2", "gfni", "neon"] {
                let Some(kernels) = rusty_erasure::kernels_named(name) else { continue };
                let coder = with(code, |matrix| Coder::with_kernels(matrix, kernels));
                let mut other = vec![vec![0; 193]; made.len()];
                encode(&coder, &data, &mut other);
                assert_eq!(other, made, "{code:?} by {name}");
            }
        }
    }

    #[test]
    fn whatever_is_lost_comes_back_from_what_suffices() {
        for code in codes(8) {
            let length = 2 * TRIED_BYTES;
            let mut all: Vec<Vec<u8>> = (0..code.data()).map(|number| pattern(number * 3, length)).collect();
            let made = parity(code, &all.iter().map(Vec::as_slice).collect::<Vec<_>>());
            all.extend(made);
            for lost in 0_u32..1 << code.blocks() {
                if lost.count_ones() > u32::from(code.parity()) {
                    continue;
                }
                let is_lost = |number: usize| lost >> number & 1 == 1;
                let fragments: Vec<Option<&[u8]>> = all
                    .iter()
                    .enumerate()
                    .map(|(number, bytes)| (!is_lost(number)).then_some(bytes.as_slice()))
                    .collect();
                let missing: Vec<usize> =
                    (0..usize::from(code.data())).filter(|number| is_lost(*number)).collect();
                let mut restored = vec![vec![0; length]; missing.len()];
                let places =
                    missing.iter().copied().zip(restored.iter_mut().map(Vec::as_mut_slice)).collect();
                restore(code, &fragments, places);
                for (number, restored) in missing.into_iter().zip(restored) {
                    assert_eq!(restored, all[number], "{code:?}, lost {lost:b}");
                }
            }
        }
    }
}
