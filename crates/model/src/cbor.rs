//! The one way in which messages and stored records become bytes and come back: CBOR by `minicbor`.

use minicbor::{Decode, Encode};

/// `value` as CBOR.
#[expect(clippy::expect_used, reason = "derived encoders never refuse, and a Vec takes any number of bytes")]
pub fn encode<T: Encode<()>>(value: &T) -> Vec<u8> {
    minicbor::to_vec(value).expect("derived encoders write to memory without failing")
}

/// The value at the start of `bytes`. Bytes behind it are ignored, unknown fields skipped: a later stdchk adds there.
///
/// # Errors
/// The bytes are no CBOR or not of this type.
pub fn decode<'b, T: Decode<'b, ()>>(bytes: &'b [u8]) -> Result<T, minicbor::decode::Error> {
    minicbor::decode(bytes)
}
