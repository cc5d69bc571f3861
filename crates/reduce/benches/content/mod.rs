//! Content for the measuring programs: of the kinds that checkpoints hold, the same in every run.
//!
//! What is measured on it holds for files like it; the programs take real files as arguments.

/// Reproducible choices (xorshift64*).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() >> 16).expect("48 bits") % bound
    }

    /// Bytes without structure.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        std::iter::repeat_with(|| self.next().to_be_bytes()).flatten().take(length).collect()
    }

    /// Words of which few are frequent.
    pub fn text(&mut self, length: usize) -> Vec<u8> {
        let words: Vec<Vec<u8>> = (0..4000).map(|_| self.word()).collect();
        let mut text = Vec::with_capacity(length + 16);
        while text.len() < length {
            let rank = self.below(4000).min(self.below(4000)).min(self.below(4000));
            text.extend_from_slice(&words[rank]);
        }
        text.truncate(length);
        text
    }

    fn word(&mut self) -> Vec<u8> {
        let letters = 2 + self.below(9);
        let mut word: Vec<u8> = (0..letters).map(|_| b"etaoinshrdlcumwfgypbvk"[self.below(22)]).collect();
        word.push(b' ');
        word
    }

    /// A smooth field of 64-bit numbers, as simulations keep.
    pub fn doubles(&mut self, length: usize) -> Vec<u8> {
        let mut value = 300.0;
        let mut step = || {
            value += self.below(1000) as f64 / 1e6 - 5e-4;
            f64::to_le_bytes(value)
        };
        std::iter::repeat_with(&mut step).flatten().take(length).collect()
    }

    /// Pages as in a process: zeros, small integers, pointers, noise.
    pub fn image(&mut self, length: usize) -> Vec<u8> {
        let mut image = Vec::with_capacity(length + 4096);
        while image.len() < length {
            match self.below(8) {
                0..4 => image.extend([0; 4096]),
                4 | 5 => image.extend(
                    (0..1024).flat_map(|_| u32::try_from(self.below(200)).expect("small").to_le_bytes()),
                ),
                6 => image.extend(
                    (0..512).flat_map(|_| (0x7f3a_1000_0000 + 16 * self.below(1 << 20) as u64).to_le_bytes()),
                ),
                _ => image.extend(self.bytes(4096)),
            }
        }
        image.truncate(length);
        image
    }
}
