//! Where an object is: `s3://BUCKET/KEY`, and how that is asked for over HTTP.
//!
//! Relies on nothing. The idea: keys and query strings are encoded by one function, which is also what is signed.

use std::fmt;
use std::str::FromStr;

use crate::error::{ObjectError, Result, Trouble};

const SCHEME: &str = "s3://";

/// A bucket, and a key or the beginning of keys in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of the bucket.
    pub bucket: String,
    /// Without a slash at either end; may be empty.
    pub key: String,
}

impl Place {
    /// Whether a text is meant as one.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// What lies below it under this name.
    #[must_use]
    pub fn below(&self, name: &str) -> Self {
        let key = if self.key.is_empty() { name.to_owned() } else { format!("{}/{name}", self.key) };
        Self { bucket: self.bucket.clone(), key }
    }

    /// What it lies in, and its name there.
    #[must_use]
    pub fn split(&self) -> (Self, &str) {
        let (folder, name) = self.key.rsplit_once('/').unwrap_or(("", &self.key));
        (Self { bucket: self.bucket.clone(), key: folder.to_owned() }, name)
    }

    /// What the keys of all that lies in it begin with.
    pub(crate) fn prefix(&self) -> String {
        if self.key.is_empty() { String::new() } else { format!("{}/", self.key) }
    }
}

impl FromStr for Place {
    type Err = ObjectError;

    fn from_str(text: &str) -> Result<Self> {
        let wrong =
            |cause: &str| ObjectError::new(Trouble::Settings, format!("{cause}: write s3://BUCKET/NAME"));
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| wrong("it doesn't begin with s3://"))?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if bucket.is_empty() || !bucket.bytes().all(is_plain) || bucket.starts_with('.') {
            return Err(wrong("it names no bucket"));
        }
        let key = key.trim_end_matches('/');
        // Stores and what stands between take such keys for paths, each in its own way.
        if !key.is_empty() && key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(wrong("a part of its key is empty, `.` or `..`"));
        }
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{SCHEME}{}", self.bucket)?;
        if self.key.is_empty() { Ok(()) } else { write!(out, "/{}", self.key) }
    }
}

/// Percent-encodes all but the unreserved characters of RFC 3986, and slashes if they are to stay: as Signature Version 4
/// demands of paths and queries.
pub(crate) fn encoded(text: &str, keep_slashes: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte))
            }
            b'/' if keep_slashes => encoded.push('/'),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_bucket_and_a_key_and_comes_back_as_it_was_written() {
        for (text, bucket, key) in [
            ("s3://ckpt", "ckpt", ""),
            ("s3://ckpt/", "ckpt", ""),
            ("s3://my.bucket-1/run 7/a+b/", "my.bucket-1", "run 7/a+b"),
        ] {
            let place: Place = text.parse().unwrap();
            assert_eq!((place.bucket.as_str(), place.key.as_str()), (bucket, key), "{text}");
            assert_eq!(place.to_string(), text.trim_end_matches('/'));
        }
        for text in ["", "ckpt/x", "s3://", "s3:///x", "s3://a b/x", "s3://b/../x", "s3://b//x", "s3://../x"]
        {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_lies_below_is_split_off_again() {
        let folder: Place = "s3://b/run".parse().unwrap();
        let below = folder.below("x.pack");
        assert_eq!(below.to_string(), "s3://b/run/x.pack");
        assert_eq!(below.split(), (folder, "x.pack"));
        let root: Place = "s3://b".parse().unwrap();
        assert_eq!(root.below("x").split(), (root.clone(), "x"));
        assert_eq!(root.prefix(), "");
    }

    #[test]
    fn all_but_unreserved_characters_are_encoded() {
        assert_eq!(encoded("run 7/a+b=é~", true), "run%207/a%2Bb%3D%C3%A9~");
        assert_eq!(encoded("a/b", false), "a%2Fb");
    }
}
