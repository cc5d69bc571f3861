//! What new pieces take in the pool: packed into chunks and compressed, as a session does it.

use stdchk_model::limits::CHUNK_BYTES_DEFAULT;
use stdchk_reduce::Compressor;
use stdchk_reduce::codec::Effort;

use crate::Error;

/// The policy's `codec=zstd`.
const LEVEL: i32 = 3;

/// Bytes of these pieces, packed in order into chunks of a mebibyte, with `codec=zstd`.
pub fn packed_zstd_bytes(pieces: &[&[u8]]) -> Result<u64, Error> {
    let mut compressor = Compressor::new(Effort::Zstd(LEVEL))?;
    let mut chunk = Vec::with_capacity(CHUNK_BYTES_DEFAULT);
    let mut bytes = 0;
    for piece in pieces {
        if !chunk.is_empty() && chunk.len() + piece.len() > CHUNK_BYTES_DEFAULT {
            bytes += compressor.compress(&chunk).1.len() as u64;
            chunk.clear();
        }
        chunk.extend_from_slice(piece);
    }
    if !chunk.is_empty() {
        bytes += compressor.compress(&chunk).1.len() as u64;
    }
    Ok(bytes)
}

/// Bytes of a whole image as one Zstandard frame.
pub fn whole_zstd_bytes(image: &[u8]) -> Result<u64, Error> {
    Ok(zstd::bulk::compress(image, LEVEL)?.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_compressed_together_and_random_ones_are_kept() {
        let line = b"the same text over and over ".repeat(40);
        let pieces = vec![&line[..]; 100];
        let packed = packed_zstd_bytes(&pieces).unwrap();
        assert!(packed < 1000, "{packed}");
        assert_eq!(packed_zstd_bytes(&[]).unwrap(), 0);
        let random: Vec<u8> = (0..1 << 19_u64)
            .flat_map(|word: u64| {
                (word ^ 7).wrapping_pow(9).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
            })
            .collect();
        let kept = packed_zstd_bytes(&[&random[..random.len() / 2], &random[random.len() / 2..]]).unwrap();
        assert!(kept > random.len() as u64 / 2, "{kept}");
    }
}
