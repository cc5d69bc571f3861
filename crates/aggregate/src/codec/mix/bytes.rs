//! Bytes: contexts of the last one to six bytes, of the place in the record, and of the longest match.
//!
//! Relies on [`super::mixer`]. The idea: metadata and opaque records repeat with small changes at regular distances; the
//! byte one record up and the column are contexts like any other.

use super::coder::{BitCoder, Decoder, Encoder};
use super::mixer::{Mixer, hashed};

/// Bytes that a match must agree in before it is followed.
const MATCH_MIN: usize = 6;
const MODELS: usize = 10;

struct Model {
    record: usize,
    history: Vec<u8>,
    mixer: Mixer,
    /// Where the bytes that hash so were seen last.
    places: Vec<usize>,
    /// Next byte of the match that is followed, and how long it has agreed.
    matched: Option<(usize, u32)>,
}

impl Model {
    fn new(record: usize, length: usize) -> Self {
        let bits = (length.max(1).ilog2() + 3).clamp(14, 22);
        let tables: Vec<(u32, u32)> = (0..MODELS).map(|_| (bits, 255)).collect();
        let (mixer, places) = (Mixer::new(&tables, 256 * 3), vec![usize::MAX; 1 << 18]);
        Self { record, history: Vec::with_capacity(length), mixer, places, matched: None }
    }

    /// The byte `back` places before the next one.
    fn back(&self, back: usize) -> u64 {
        let place = self.history.len().checked_sub(back);
        place.and_then(|place| self.history.get(place)).map_or(0, |byte| u64::from(*byte))
    }

    fn last(&self, count: usize) -> u64 {
        (1..=count).rev().fold(0, |bytes, back| bytes << 8 | self.back(back))
    }

    fn code(&mut self, coder: &mut impl BitCoder, byte: u8) -> u8 {
        let hashes = self.byte_contexts();
        let expected = self.matched.and_then(|(place, length)| Some((*self.history.get(place)?, length)));
        let mut partial = 1_u32;
        for bit in (0..8).rev() {
            for (model, hash) in hashes.iter().enumerate() {
                self.mixer.set(model, hash.wrapping_add(partial.wrapping_mul(0x9e37_79b1)) >> 2);
            }
            let guess = expected.filter(|(byte, _)| (u32::from(*byte) | 256) >> (bit + 1) == partial);
            let (state, matching) = match guess {
                Some((byte, length)) => {
                    (u32::from(byte >> bit & 1) | length.min(63) << 1 | 128, 1 + usize::from(length > 16))
                }
                None => (0, 0),
            };
            self.mixer.set(MODELS - 1, state);
            let selector = usize::try_from(partial).unwrap_or(0) * 3 + matching;
            let found = self.mixer.code(coder, byte >> bit & 1 == 1, selector, state & 255);
            partial = partial << 1 | u32::from(found);
        }
        let byte = u8::try_from(partial & 255).unwrap_or(0);
        self.learn(byte);
        byte
    }

    fn byte_contexts(&self) -> [u32; MODELS - 1] {
        let above = self.back(self.record);
        let column = (self.history.len() % self.record.max(1)) as u64;
        [
            hashed(&[1, self.last(1)]),
            hashed(&[2, self.last(2)]),
            hashed(&[3, self.last(3)]),
            hashed(&[4, self.last(4)]),
            hashed(&[5, self.last(6)]),
            hashed(&[6, above, self.back(1)]),
            hashed(&[7, column, above]),
            hashed(&[8, self.back(8), self.back(16)]),
            hashed(&[9, above, self.back(2 * self.record), column]),
        ]
    }

    fn learn(&mut self, byte: u8) {
        self.matched = match self.matched {
            Some((place, length)) if self.history.get(place) == Some(&byte) => Some((place + 1, length + 1)),
            _ => None,
        };
        self.history.push(byte);
        if self.history.len() < MATCH_MIN {
            return;
        }
        let slot = usize::try_from(hashed(&[self.last(MATCH_MIN)])).unwrap_or(0) & (self.places.len() - 1);
        if let Some(place) = self.places.get_mut(slot) {
            if self.matched.is_none() && *place != usize::MAX {
                self.matched = Some((*place, 0));
            }
            *place = self.history.len();
        }
    }
}

pub(crate) fn compress_bytes(record: usize, bytes: &[u8]) -> Vec<u8> {
    let mut coder = Encoder::new();
    let mut model = Model::new(record, bytes.len());
    for byte in bytes {
        model.code(&mut coder, *byte);
    }
    coder.finish()
}

pub(crate) fn decompress_bytes(record: usize, body: &[u8], length: usize) -> Vec<u8> {
    let mut coder = Decoder::new(body);
    let mut model = Model::new(record, length);
    (0..length).map(|_| model.code(&mut coder, 0)).collect()
}
