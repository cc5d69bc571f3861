//! Content for files: bytes that no codec shrinks and no other seed gives.

/// So many bytes of this seed (splitmix64).
pub fn random_bytes(length: usize, seed: u64) -> Vec<u8> {
    // Another factor than the step below, or neighbouring seeds would give the same stream, shifted.
    let mut state = seed.wrapping_mul(0xd134_2543_de82_ef95).rotate_left(31);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend((mixed ^ (mixed >> 31)).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// The bytes with one bit of the one in the middle flipped.
pub fn with_bit_flipped(bytes: &[u8]) -> Vec<u8> {
    let mut flipped = bytes.to_vec();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    flipped
}
