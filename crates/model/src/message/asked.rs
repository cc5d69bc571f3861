//! A request with what goes along with it.

use minicbor::decode::{Decode, Decoder, Error as DecodeError};
use minicbor::encode::{Encode, Encoder, Error as EncodeError, Write};

/// A request, and behind it what goes along with it, if anything does: to a manager the user for whom it is asked, to a
/// benefactor the permits of the manager. Two CBOR items, one behind the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked<Q, With> {
    /// What is asked.
    pub request: Q,
    /// What goes along.
    pub with: Option<With>,
}

impl<C, Q: Encode<C>, With: Encode<C>> Encode<C> for Asked<Q, With> {
    fn encode<W: Write>(&self, to: &mut Encoder<W>, context: &mut C) -> Result<(), EncodeError<W::Error>> {
        self.request.encode(to, context)?;
        self.with.as_ref().map_or(Ok(()), |with| with.encode(to, context))
    }
}

impl<'b, C, Q: Decode<'b, C>, With: Decode<'b, C>> Decode<'b, C> for Asked<Q, With> {
    fn decode(from: &mut Decoder<'b>, context: &mut C) -> Result<Self, DecodeError> {
        let request = Q::decode(from, context)?;
        let is_alone = from.position() == from.input().len();
        let with = if is_alone { None } else { Some(With::decode(from, context)?) };
        Ok(Self { request, with })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cbor;

    #[test]
    fn what_goes_along_stands_behind_the_request_and_may_be_missing() {
        let alone = Asked::<u32, String> { request: 7, with: None };
        let both = Asked { request: 7_u32, with: Some("x".to_owned()) };
        assert_eq!((cbor::encode(&alone), cbor::encode(&both)), (vec![7], vec![7, 0x61, b'x']));
        assert_eq!(cbor::decode::<Asked<u32, String>>(&[7]).unwrap(), alone);
        assert_eq!(cbor::decode::<Asked<u32, String>>(&[7, 0x61, b'x']).unwrap(), both);
        assert_eq!(
            cbor::decode::<u32>(&cbor::encode(&both)).unwrap(),
            7,
            "who needs only the request finds it"
        );
        assert!(cbor::decode::<Asked<u32, String>>(&[7, 0x62, b'x']).is_err());
    }
}
