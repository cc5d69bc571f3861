//! The binary arithmetic coder, and one trait for both directions.
//!
//! Relies on nothing. The idea: models are written once, against [`BitCoder`]; whether a bit is written or read is the
//! coder's affair, so that the two sides can't drift apart.

/// Bits of a probability.
pub(in crate::codec) const PROBABILITY_BITS: u32 = 16;

/// Codes one bit after the other.
pub(in crate::codec) trait BitCoder {
    /// Codes `bit` (when writing) or finds it (when reading); `one` is the probability of a 1, in 65536ths, 1 to 65535.
    fn code(&mut self, bit: bool, one: u32) -> bool;
}

/// Writes.
pub(in crate::codec) struct Encoder {
    low: u32,
    high: u32,
    pub(in crate::codec) bytes: Vec<u8>,
}

impl Encoder {
    pub(in crate::codec) fn new() -> Self {
        Self { low: 0, high: u32::MAX, bytes: Vec::new() }
    }

    pub(in crate::codec) fn finish(mut self) -> Vec<u8> {
        self.bytes.extend(self.high.to_be_bytes());
        self.bytes
    }
}

/// Where the range between `low` and `high` is divided.
fn middle(low: u32, high: u32, one: u32) -> u32 {
    let range = u64::from(high - low);
    let part = (range * u64::from(one)) >> PROBABILITY_BITS;
    low + u32::try_from(part).unwrap_or(u32::MAX)
}

impl BitCoder for Encoder {
    fn code(&mut self, bit: bool, one: u32) -> bool {
        let middle = middle(self.low, self.high, one);
        if bit {
            self.high = middle
        } else {
            self.low = middle + 1
        }
        while (self.low ^ self.high) >> 24 == 0 {
            self.bytes.push((self.high >> 24) as u8);
            self.low <<= 8;
            self.high = self.high << 8 | 255;
        }
        bit
    }
}

/// Reads; behind the end of its bytes it reads zeros.
pub(in crate::codec) struct Decoder<'bytes> {
    low: u32,
    high: u32,
    value: u32,
    bytes: std::slice::Iter<'bytes, u8>,
}

impl<'bytes> Decoder<'bytes> {
    pub(in crate::codec) fn new(bytes: &'bytes [u8]) -> Self {
        let mut decoder = Self { low: 0, high: u32::MAX, value: 0, bytes: bytes.iter() };
        for _ in 0..4 {
            decoder.shift();
        }
        decoder
    }

    fn shift(&mut self) {
        self.value = self.value << 8 | u32::from(self.bytes.next().copied().unwrap_or_default());
    }
}

impl BitCoder for Decoder<'_> {
    fn code(&mut self, _bit: bool, one: u32) -> bool {
        let middle = middle(self.low, self.high, one);
        let bit = self.value <= middle;
        if bit {
            self.high = middle
        } else {
            self.low = middle + 1
        }
        while (self.low ^ self.high) >> 24 == 0 {
            self.low <<= 8;
            self.high = self.high << 8 | 255;
            self.shift();
        }
        bit
    }
}
