//! Names of files as text: names on Linux are bytes, and some of them are no UTF-8.
//!
//! Pure. The idea: a byte that is no part of UTF-8 stands as one character of a private range, which no other name holds:
//! where a name has such a character, its bytes stand so, too. So every name has one text and every text one name; text that is
//! UTF-8 stays as it is. What people read shows these bytes as `\xff` ([`shown_byte`]).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Stands for byte 0x80; the others follow up to byte 0xff.
const FIRST: u32 = 0x10_ff80;
/// The lowest byte that may be no UTF-8.
const FIRST_BYTE: u8 = 0x80;

/// A name as text.
#[must_use]
pub fn text_of_name(name: &OsStr) -> String {
    text_of_bytes(name.as_bytes())
}

/// The name that a text stands for.
#[must_use]
pub fn name_of_text(text: &str) -> OsString {
    OsString::from_vec(bytes_of_text(text))
}

/// The byte that a character of a text stands for, if it is none of UTF-8.
#[must_use]
pub fn shown_byte(character: char) -> Option<u8> {
    let place = u32::from(character).checked_sub(FIRST)?;
    u8::try_from(place).ok()?.checked_add(FIRST_BYTE)
}

pub(crate) fn text_of_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match shown_byte(character) {
                None => text.push(character),
                Some(_) => text.extend(character.encode_utf8(&mut [0; 4]).bytes().filter_map(character_of)),
            }
        }
        text.extend(chunk.invalid().iter().copied().filter_map(character_of));
    }
    text
}

pub(crate) fn bytes_of_text(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match shown_byte(character) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

/// The character that stands for a byte from 0x80 on.
fn character_of(byte: u8) -> Option<char> {
    char::from_u32(FIRST + u32::from(byte.checked_sub(FIRST_BYTE)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_name_has_one_text_that_gives_it_back(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(bytes_of_text(&text_of_bytes(&bytes)), bytes);
        }

        #[test]
        fn names_of_utf_8_are_their_own_text(text in "[a-z\\\\é\u{10ff00}-\u{10ff7f}]{0,20}") {
            prop_assert_eq!(text_of_bytes(text.as_bytes()), text);
        }
    }

    #[test]
    fn characters_of_the_private_range_are_told_from_bytes() {
        let one = text_of_bytes("\u{10ff80}".as_bytes());
        assert_eq!(bytes_of_text(&one), "\u{10ff80}".as_bytes());
        assert_ne!(one, text_of_bytes(&[0x80]));
        assert_eq!(text_of_bytes(b"a\xff").chars().filter_map(shown_byte).collect::<Vec<_>>(), [0xff]);
    }
}
