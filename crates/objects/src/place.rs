//! Where an object is: `s3://BUCKET/KEY`, `az://CONTAINER/KEY` or `gs://BUCKET/KEY`.
//!
//! Relies on nothing. The idea: a place is whatever comes back as it was written.

use std::fmt;
use std::str::FromStr;

use crate::error::{ObjectError, Result, Trouble};

/// Whose protocol a store speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Amazon S3's, which many stores speak.
    S3,
    /// Azure Blob Storage's.
    Azure,
    /// Google Cloud Storage's.
    Google,
}

impl Service {
    pub(crate) const ALL: [Self; 3] = [Self::S3, Self::Azure, Self::Google];

    /// What URLs of its objects begin with.
    fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3://",
            Self::Azure => "az://",
            Self::Google => "gs://",
        }
    }

    /// What the names of its variables begin with.
    pub(crate) fn variables(self) -> &'static str {
        match self {
            Self::S3 => "AWS_",
            Self::Azure => "AZURE_",
            Self::Google => "GOOGLE_",
        }
    }

    /// The service of a URL, and what follows the scheme.
    fn of(text: &str) -> Option<(Self, &str)> {
        Self::ALL.into_iter().find_map(|service| Some((service, text.strip_prefix(service.scheme())?)))
    }
}

/// A bucket, and a key or the beginning of keys in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose bucket it is.
    pub service: Service,
    /// Name of the bucket.
    pub bucket: String,
    /// Without a slash at either end; may be empty.
    pub key: String,
}

impl Place {
    /// Whether a text is meant as one.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        Service::of(text).is_some()
    }

    /// What lies below it under this name.
    #[must_use]
    pub fn below(&self, name: &str) -> Self {
        let key = if self.key.is_empty() { name.to_owned() } else { format!("{}/{name}", self.key) };
        self.with_key(key)
    }

    /// What it lies in, and its name there.
    #[must_use]
    pub fn split(&self) -> (Self, &str) {
        let (folder, name) = self.key.rsplit_once('/').unwrap_or(("", &self.key));
        (self.with_key(folder.to_owned()), name)
    }

    /// Another place in the same bucket.
    pub(crate) fn with_key(&self, key: String) -> Self {
        Self { bucket: self.bucket.clone(), key, ..*self }
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
        let (service, rest) =
            Service::of(text).ok_or_else(|| wrong("it begins with none of s3://, az:// and gs://"))?;
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
        if key.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(wrong("its key has characters that can't be shown"));
        }
        Ok(Self { service, bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}{}", self.service.scheme(), self.bucket)?;
        if self.key.is_empty() { Ok(()) } else { write!(out, "/{}", self.key) }
    }
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
            ("az://ckpt/run7", "ckpt", "run7"),
            ("gs://ckpt/run7", "ckpt", "run7"),
        ] {
            let place: Place = text.parse().unwrap();
            assert_eq!((place.bucket.as_str(), place.key.as_str()), (bucket, key), "{text}");
            assert_eq!(place.to_string(), text.trim_end_matches('/'));
        }
        for text in [
            "",
            "ckpt/x",
            "s3://",
            "s3:///x",
            "s3://a b/x",
            "s3://b/../x",
            "s3://b//x",
            "s3://../x",
            "s3://b/a\nb",
        ] {
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
}
