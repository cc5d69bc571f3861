//! The operations on a bucket that containers need.
//!
//! Relies on [`crate::request`]. The idea: an object is there when its `PUT` or the completion of its upload in parts was
//! answered, whole or not at all; until then nobody sees anything of it.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use sha2::{Digest, Sha256};
use stdchk_aggregate::in_parallel;

use crate::answer::{self, Listed, Upload};
use crate::error::{ObjectError, Result, Trouble};
use crate::request::{Body, Failure, Line, Request};
use crate::settings::Settings;
use crate::sign::hex;
use crate::stop;

/// Objects up to this length are sent by one request, longer ones in parts of at least this length, bytes: short enough to be
/// sent again, long enough that questions and answers cost little.
pub(crate) const PART_BYTES: u64 = 8 << 20;
/// Most parts of one object, by the protocol.
const PARTS_MAX: u64 = 10_000;
/// Parts on their way at one time: one connection seldom fills a line.
pub(crate) const AT_ONCE: usize = 4;
/// Bytes asked for to learn how long an object is: all of a small one.
const BEGINNING_BYTES: u64 = 64 << 10;
/// Bytes read at once to be hashed.
const HASH_BYTES: usize = 256 << 10;
/// Most pages of one listing: a million objects.
const PAGES_MAX: usize = 1000;

/// Whether to go on.
pub(crate) type Going<'a> = &'a (dyn Fn() -> bool + Sync);

/// One bucket of a store.
#[derive(Clone)]
pub(crate) struct Bucket {
    line: Line,
    name: String,
}

/// The end of an object, and what is known of it.
pub(crate) struct Tail {
    /// Of the whole object, bytes.
    pub(crate) size: u64,
    /// Changes when the object is replaced.
    pub(crate) tag: Option<String>,
    pub(crate) bytes: Vec<u8>,
}

impl Bucket {
    pub(crate) fn open(name: &str, settings: Settings) -> Result<Self> {
        Ok(Self { line: Line::to(name, settings)?, name: name.to_owned() })
    }

    /// The objects whose keys begin with `prefix` and have no slash behind it.
    pub(crate) fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        let mut all = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let mut request = Request::new("GET", "")
                .query("list-type", "2")
                .query("prefix", prefix)
                .query("delimiter", "/");
            if let Some(token) = token {
                request = request.query("continuation-token", token);
            }
            let page = answer::page(&self.line.ask(&request, crate::request::Answer::text)?)?;
            all.extend(page.objects.into_iter().filter(|object| {
                object.key.strip_prefix(prefix).is_some_and(|name| !name.is_empty() && !name.contains('/'))
            }));
            token = page.next;
            if token.is_none() {
                return Ok(all);
            }
        }
        Err(ObjectError::new(
            Trouble::Other,
            "there are more than a million objects: use a prefix of its own",
        ))
    }

    /// The end of an object, `most` bytes of it at least where it has so many. Its beginning is asked for first, which says
    /// how long it is: not every store counts from the end.
    pub(crate) fn tail(&self, key: &str, most: u64) -> Result<Tail> {
        let begin = match self.beginning(key) {
            // No range lies within nothing.
            Err(error) if error.detail.contains(" 416") => {
                return Ok(Tail { size: 0, tag: None, bytes: Vec::new() });
            }
            other => other?,
        };
        if begin.bytes.len() as u64 == begin.size {
            return Ok(begin);
        }
        let length = most.min(begin.size);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.read(key, begin.size - length, begin.tag.as_deref(), &mut bytes)?;
        Ok(Tail { bytes, ..begin })
    }

    fn beginning(&self, key: &str) -> Result<Tail> {
        let request = Request::new("GET", key).header("range", format!("bytes=0-{}", BEGINNING_BYTES - 1));
        self.line.ask(&request, |answer| {
            let strange =
                || Failure::Final(ObjectError::new(Trouble::Other, "the store gives no ranges of objects"));
            let tag = answer.header("etag").map(str::to_owned);
            let (length, size) = match content_range(answer.header("content-range")) {
                Some((range, size)) if range.start == 0 => (range.end, size),
                Some(_) => return Err(strange()),
                // The whole object, as some answer where it is shorter.
                None => {
                    let size = answer.header("content-length").and_then(|text| text.parse().ok());
                    let size = size.ok_or_else(strange)?;
                    (size, size)
                }
            };
            if length > BEGINNING_BYTES {
                return Err(strange());
            }
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
            answer.fill(&mut bytes)?;
            Ok(Tail { size, tag, bytes })
        })
    }

    /// Fills `buffer` with the bytes from `offset` on of the object that has this tag.
    pub(crate) fn read(&self, key: &str, offset: u64, tag: Option<&str>, buffer: &mut [u8]) -> Result<()> {
        let Some(last) = offset.checked_add(buffer.len() as u64).and_then(|end| end.checked_sub(1)) else {
            return Ok(());
        };
        if buffer.is_empty() {
            return Ok(());
        }
        let mut request = Request::new("GET", key).header("range", format!("bytes={offset}-{last}"));
        if let Some(tag) = tag {
            request = request.header("if-match", tag);
        }
        self.line.ask(&request, |answer| {
            let range = content_range(answer.header("content-range"));
            if range.is_none_or(|(range, _)| range != (offset..last + 1)) {
                let detail = "the store gave another range of the object than was asked for";
                return Err(Failure::Final(ObjectError::new(Trouble::Damaged, detail)));
            }
            answer.fill(buffer)
        })
    }

    /// Stores the bytes of a file under a key.
    pub(crate) fn put(&self, key: &str, file: &File, length: u64, going: Going<'_>) -> Result<()> {
        if length <= PART_BYTES {
            return self.put_range(Request::new("PUT", key), file, 0..length).map(drop);
        }
        let begin = Request::new("POST", key).query("uploads", "");
        let id = answer::upload_id(&self.line.ask(&begin, crate::request::Answer::text)?)?;
        let sent = self.put_parts(key, &id, file, length, going);
        if sent.is_err() {
            // What it fails to clear away is looked for at the next start.
            let _ = self.abort(&Upload { key: key.to_owned(), id });
        }
        sent
    }

    fn put_parts(&self, key: &str, id: &str, file: &File, length: u64, going: Going<'_>) -> Result<()> {
        let part_length = PART_BYTES.max(length.div_ceil(PARTS_MAX));
        let parts: Vec<u64> = (0..length.div_ceil(part_length)).collect();
        let tags = in_parallel(&parts, AT_ONCE, |_, part| {
            if !going() {
                return Err(stop::stopped());
            }
            let range = part * part_length..length.min((part + 1) * part_length);
            let request =
                Request::new("PUT", key).query("partNumber", (part + 1).to_string()).query("uploadId", id);
            self.put_range(request, file, range)
        })?;
        let parts: String = tags
            .iter()
            .zip(1..)
            .map(|(tag, number)| {
                format!("<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag></Part>", escaped(tag))
            })
            .collect();
        let list = format!(
            "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{parts}</CompleteMultipartUpload>"
        );
        let reader = || Box::new(list.as_bytes()) as Box<dyn Read>;
        let body = Body { length: list.len() as u64, hash: hex(&Sha256::digest(&list)), reader: &reader };
        let request = Request::new("POST", key).query("uploadId", id).body(body);
        let completed = self.line.ask(&request, |answer| {
            let refusal = answer::refusal(&answer.text()?);
            refusal.map_or(Ok(()), |refusal| {
                let detail = format!("the store answered {}: {}", refusal.code, refusal.message);
                Err(Failure::Again(ObjectError::new(Trouble::Other, detail)))
            })
        });
        match completed {
            // The answer to an earlier try was lost: what is read back shows whether it was completed.
            Err(error) if error.detail.contains("NoSuchUpload") => Ok(()),
            other => other,
        }
    }

    /// Sends a range of a file; says the tag that the store gave it.
    fn put_range(&self, request: Request<'_>, file: &File, range: Range<u64>) -> Result<String> {
        let length = range.end - range.start;
        let hash = hash_of(FileRange { file, range: range.clone() })
            .map_err(|error| ObjectError::new(Trouble::Other, format!("the draft can't be read: {error}")))?;
        let reader = move || Box::new(FileRange { file, range: range.clone() }) as Box<dyn Read>;
        let Request { method, key, query, headers, .. } = request;
        let request =
            Request { method, key, query, headers, body: Some(Body { length, hash, reader: &reader }) };
        self.line.ask(&request, |answer| {
            let tag = answer.header("etag").map(str::to_owned);
            answer.text()?;
            let none = || ObjectError::new(Trouble::Other, "the store gave no tag for what it took");
            tag.ok_or_else(|| Failure::Final(none()))
        })
    }

    /// Lets a key name what another one names.
    pub(crate) fn copy(&self, from: &str, to: &str) -> Result<()> {
        let request = Request::new("PUT", to).header("x-amz-copy-source", Line::source_of(&self.name, from));
        self.line.ask(&request, |answer| {
            let refusal = answer::refusal(&answer.text()?);
            refusal.map_or(Ok(()), |refusal| {
                let detail = format!("the store answered {}: {}", refusal.code, refusal.message);
                Err(Failure::Again(ObjectError::new(Trouble::Other, detail)))
            })
        })
    }

    /// Removes an object, if it is there.
    pub(crate) fn remove(&self, key: &str) -> Result<()> {
        let removed = self.line.ask(&Request::new("DELETE", key), |answer| answer.text().map(drop));
        match removed {
            Err(error) if error.trouble == Trouble::NoObject => Ok(()),
            other => other,
        }
    }

    /// Uploads in parts that were begun and neither completed nor aborted, of keys that begin with `prefix`.
    pub(crate) fn uploads(&self, prefix: &str) -> Result<Vec<Upload>> {
        let request = Request::new("GET", "").query("uploads", "").query("prefix", prefix);
        let found = answer::uploads(&self.line.ask(&request, crate::request::Answer::text)?)?;
        Ok(found.into_iter().filter(|upload| upload.key.starts_with(prefix)).collect())
    }

    pub(crate) fn abort(&self, upload: &Upload) -> Result<()> {
        let request = Request::new("DELETE", &upload.key).query("uploadId", upload.id.as_str());
        self.line.ask(&request, |answer| answer.text().map(drop))
    }
}

/// `bytes 0-9/100` as a range and the length of the whole.
fn content_range(text: Option<&str>) -> Option<(Range<u64>, u64)> {
    let (range, size) = text?.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, end, size): (u64, u64, u64) =
        (first.parse().ok()?, last.parse::<u64>().ok()?.checked_add(1)?, size.parse().ok()?);
    (first < end && end <= size).then_some((first..end, size))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn hash_of(mut bytes: impl Read) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; HASH_BYTES];
    loop {
        match bytes.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(buffer.get(..read).unwrap_or_default()),
        }
    }
}

/// A range of a file, read without moving its position.
struct FileRange<'a> {
    file: &'a File,
    range: Range<u64>,
}

impl Read for FileRange<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.range.end - self.range.start).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(buffer.get_mut(..left).unwrap_or_default(), self.range.start)?;
        self.range.start += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_makes_no_sense_is_none() {
        assert_eq!(content_range(Some("bytes 3-9/100")), Some((3..10, 100)));
        for text in [
            "",
            "bytes */100",
            "bytes 9-3/100",
            "bytes 0-100/100",
            "bytes 0-9/*",
            "bytes 0-18446744073709551615/1",
        ] {
            assert_eq!(content_range(Some(text)), None, "{text}");
        }
        assert_eq!(content_range(None), None);
    }
}
