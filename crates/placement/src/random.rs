//! Numbers that look random and follow from a seed: choices can be repeated, and this crate stays pure.
//!
//! SplitMix64 (Steele, Lea, Flood 2014), whose every output is a bijection of a counter.

/// A stream of numbers that follows from its seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// From 0 to 1, without 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From 0 to `bound`, without `bound`; 0 for 0. Its error of at most bound / 2^64 matters nowhere here.
    pub fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.bits()) * bound as u128;
        stdchk_model::exact::narrow(wide >> 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_from_the_seed_and_covers_the_range() {
        let (mut one, mut other) = (Random::new(3), Random::new(3));
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            let place = one.below(10);
            assert_eq!(place, other.below(10));
            seen[place] += 1;
        }
        assert!(seen.iter().all(|count| (900..1100).contains(count)), "{seen:?}");
        assert_eq!(one.below(0), 0);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&one.unit())));
    }
}
