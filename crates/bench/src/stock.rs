//! Content to write: random bytes made unique per mebibyte, so that no two files of a run share a chunk unless they should.

/// Random bytes that are stamped and written again and again, bytes: large enough that no cache level keeps them all,
/// small enough not to compete with the page cache.
const STOCK_BYTES: usize = 64 << 20;
/// Distance of the stamps, bytes: every piece of this size or more is unique.
const STAMP_EVERY: usize = 4096;

/// A source of content.
pub struct Stock {
    bytes: Vec<u8>,
    stamp: u64,
}

impl Stock {
    /// Fills the stock; the same bytes on every machine.
    pub fn new() -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut bytes = vec![0; STOCK_BYTES];
        for word in bytes.chunks_exact_mut(8) {
            // xorshift64*: incompressible for every codec here, and far faster than the disk.
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            word.copy_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
        }
        Self { bytes, stamp: 0 }
    }

    /// A stock whose pages shrink to this share of their bytes, whichever codec compresses them: what is behind it is zero.
    pub fn shrinking_to(share: f64) -> Self {
        let mut stock = Self::new();
        for page in stock.bytes.chunks_exact_mut(STAMP_EVERY) {
            let zeros = (page.len() as f64 * (1.0 - share)).round();
            page.iter_mut()
                .rev()
                .zip(0..)
                .take_while(|(_, at)| f64::from(*at) < zeros)
                .for_each(|(byte, _)| *byte = 0);
        }
        stock
    }

    /// Makes everything that is taken from now on different from everything before.
    pub fn renew(&mut self) {
        self.stamp += 1;
        for page in self.bytes.chunks_exact_mut(STAMP_EVERY) {
            if let Some(place) = page.first_chunk_mut::<8>() {
                *place = self.stamp.to_le_bytes();
            }
        }
    }

    /// Stamps the bytes that will be written at `offset`, so that rounds through the stock differ, and returns them.
    pub fn at(&mut self, offset: u64, length: usize, salt: u64) -> &[u8] {
        let start = usize::try_from(offset % STOCK_BYTES as u64).unwrap_or(0);
        let end = (start + length).min(STOCK_BYTES);
        let round = offset / STOCK_BYTES as u64;
        let first = start.next_multiple_of(STAMP_EVERY);
        for page in (first..end).step_by(STAMP_EVERY) {
            if let Some(place) = self.bytes.get_mut(page + 8..page + 24) {
                let (low, high) = place.split_at_mut(8);
                low.copy_from_slice(&round.to_le_bytes());
                high.copy_from_slice(&salt.to_le_bytes());
            }
        }
        self.bytes.get(start..end).unwrap_or_default()
    }
}
