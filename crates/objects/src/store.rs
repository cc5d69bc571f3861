//! The operations on a bucket that containers need.
//!
//! Relies on `object_store`, whose requests pass [`crate::guard`] and are waited for in [`crate::stop`]. The idea: an object is
//! there when its `PUT` or the completion of its upload in parts was answered, whole or not at all; until then nobody sees
//! anything of it.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Once};

use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::HttpConnector;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};
use stdchk_aggregate::in_parallel;

use crate::error::{ObjectError, Result, Trouble};
use crate::guard::{ANSWER_MAX, Connector};
use crate::place::{Place, Service};
use crate::settings::Settings;
use crate::stop::{stopped, wait};
use crate::uploads::Uploads;

/// Objects up to this length are sent by one request, longer ones in parts of at least this length, bytes: short enough to be
/// sent again, long enough that questions and answers cost little.
pub(crate) const PART_BYTES: u64 = 8 << 20;
/// Most parts of one object, by the protocol.
const PARTS_MAX: u64 = 10_000;
/// Parts on their way at one time: one connection seldom fills a line.
pub(crate) const AT_ONCE: usize = 4;
/// Bytes asked for to learn how long an object is: all of a small one.
const BEGINNING_BYTES: u64 = 64 << 10;
/// Most pages of one listing: a million objects.
const PAGES_MAX: usize = 1000;

/// Whether to go on.
pub(crate) type Going<'a> = &'a (dyn Fn() -> bool + Sync);

/// What the stores of the library have in common of what is needed here.
trait Store: ObjectStore + MultipartStore + PaginatedListStore {}
impl<T: ObjectStore + MultipartStore + PaginatedListStore> Store for T {}

/// One bucket of a store.
#[derive(Clone)]
pub(crate) struct Bucket {
    store: Arc<dyn Store>,
    /// None: the service ends uploads that were cut off by itself, or by a rule of the bucket.
    uploads: Option<Arc<Uploads>>,
}

/// An object as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) key: String,
    /// Changes when the object is replaced.
    pub(crate) stamp: String,
}

/// The end of an object, and what is known of it.
pub(crate) struct Tail {
    /// Of the whole object, bytes.
    pub(crate) size: u64,
    /// Changes when the object is replaced.
    pub(crate) tag: Option<String>,
    pub(crate) bytes: Bytes,
}

impl Bucket {
    /// Gets ready for requests to the bucket of a place; says who asks, if that isn't known.
    pub(crate) fn open(place: &Place, settings: &Settings) -> Result<Self> {
        use_ring();
        let (bucket, options, tries) = (&place.bucket, settings.connections(), settings.tries());
        let unusable = |error| ObjectError { trouble: Trouble::Settings, ..ObjectError::from(error) };
        match place.service {
            Service::S3 => {
                // A certificate for *.s3... covers no name with more dots.
                let as_host = !bucket.contains('.')
                    && !settings.has("aws_endpoint_url")
                    && !settings.has("aws_endpoint_url_s3");
                let builder = AmazonS3Builder::new()
                    .with_client_options(options.clone())
                    .with_virtual_hosted_style_request(as_host)
                    .with_disable_bulk_delete(true);
                let builder = settings.told(builder, |builder, key, value| builder.with_config(key, value));
                let builder = builder.with_bucket_name(bucket).with_retry(tries.clone());
                let store = Arc::new(builder.with_http_connector(Connector).build().map_err(unusable)?);
                if !settings.has("aws_skip_signature") {
                    wait(store.credentials().get_credential()).map_err(nobody)?;
                }
                let client = Connector.connect(&options).map_err(unusable)?;
                let uploads = Some(Arc::new(Uploads::of(Arc::clone(&store), client, tries)));
                Ok(Self { store, uploads })
            }
            Service::Azure => {
                let builder = MicrosoftAzureBuilder::new().with_client_options(options);
                let builder = settings.told(builder, |builder, key, value| builder.with_config(key, value));
                let builder = builder.with_container_name(bucket).with_retry(tries);
                let store = builder.with_http_connector(Connector).build().map_err(unusable)?;
                Ok(Self { store: Arc::new(store), uploads: None })
            }
            Service::Google => {
                let builder = GoogleCloudStorageBuilder::new().with_client_options(options);
                let builder = settings.told(builder, |builder, key, value| builder.with_config(key, value));
                let builder = builder.with_bucket_name(bucket).with_retry(tries);
                let store = builder.with_http_connector(Connector).build().map_err(unusable)?;
                Ok(Self { store: Arc::new(store), uploads: None })
            }
        }
    }

    /// The objects whose keys begin with `prefix` and have no slash behind it.
    pub(crate) fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        let mut all = Vec::new();
        let mut page_token = None;
        for _ in 0..PAGES_MAX {
            let options = PaginatedListOptions {
                delimiter: Some("/".into()),
                page_token: page_token.take(),
                ..PaginatedListOptions::default()
            };
            let page = wait(self.store.list_paginated(Some(prefix).filter(|it| !it.is_empty()), options))?;
            all.extend(page.result.objects.into_iter().map(Listed::from).filter(|object| {
                object.key.strip_prefix(prefix).is_some_and(|name| !name.is_empty() && !name.contains('/'))
            }));
            page_token = page.page_token;
            if page_token.is_none() {
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
        let begin = match self.range(key, 0..BEGINNING_BYTES, None) {
            // No range lies within nothing.
            Err(error) if error.trouble == Trouble::NoRange => {
                return Ok(Tail { size: 0, tag: None, bytes: Bytes::new() });
            }
            other => other?,
        };
        if begin.bytes.len() as u64 == begin.size {
            return Ok(begin);
        }
        let range = begin.size - most.min(begin.size)..begin.size;
        let bytes = self.read(key, range, begin.tag.as_deref())?;
        Ok(Tail { bytes, ..begin })
    }

    /// The bytes of a range, all of them, of the object that has this tag.
    pub(crate) fn read(&self, key: &str, range: Range<u64>, tag: Option<&str>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let length = range.end - range.start;
        assert!(length <= ANSWER_MAX as u64, "longer ranges are not answered");
        let bytes = self.range(key, range, tag)?.bytes;
        if bytes.len() as u64 != length {
            return Err(ObjectError::new(Trouble::Damaged, "the store gave less than was asked for"));
        }
        Ok(bytes)
    }

    /// The bytes of a range, less if the object ends within it; the library compares what comes with what was asked for.
    fn range(&self, key: &str, range: Range<u64>, tag: Option<&str>) -> Result<Tail> {
        let range = Some(GetRange::Bounded(range));
        let options = GetOptions { range, if_match: tag.map(str::to_owned), ..GetOptions::default() };
        let path = path(key)?;
        wait(async {
            let answer = self.store.get_opts(&path, options).await?;
            let (size, tag) = (answer.meta.size, answer.meta.e_tag.clone());
            Ok(Tail { size, tag, bytes: answer.bytes().await? })
        })
    }

    /// Stores the bytes of a file under a key.
    pub(crate) fn put(&self, key: &str, file: &File, length: u64, going: Going<'_>) -> Result<()> {
        let path = path(key)?;
        if length <= PART_BYTES {
            let payload = read_draft(file, 0..length)?.into();
            return wait(self.store.put(&path, payload)).map(drop);
        }
        let id = wait(self.store.create_multipart(&path))?;
        let sent = self.put_parts(&path, &id, file, length, going);
        if sent.is_err() {
            // What it fails to clear away is looked for at the next start.
            let _ = wait(self.store.abort_multipart(&path, &id));
        }
        sent
    }

    fn put_parts(&self, path: &Path, id: &String, file: &File, length: u64, going: Going<'_>) -> Result<()> {
        let part_length = PART_BYTES.max(length.div_ceil(PARTS_MAX));
        let starts: Vec<u64> = (0..length.div_ceil(part_length)).map(|part| part * part_length).collect();
        let parts = in_parallel(&starts, AT_ONCE, |number, start| {
            if !going() {
                return Err(stopped());
            }
            let payload = read_draft(file, *start..length.min(start + part_length))?.into();
            wait(self.store.put_part(path, id, number, payload))
        })?;
        match wait(self.store.complete_multipart(path, id, parts)) {
            // The answer to an earlier try was lost: what is read back shows whether it was completed.
            Err(error) if error.trouble == Trouble::NoUpload => Ok(()),
            other => other.map(drop),
        }
    }

    /// Lets a key name what another one names.
    pub(crate) fn copy(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (path(from)?, path(to)?);
        wait(self.store.copy(&from, &to))
    }

    /// Removes an object, if it is there.
    pub(crate) fn remove(&self, key: &str) -> Result<()> {
        let path = path(key)?;
        match wait(self.store.delete(&path)) {
            Err(error) if error.trouble == Trouble::NoObject => Ok(()),
            other => other,
        }
    }

    /// Ends uploads in parts that were begun and neither completed nor aborted, of keys that begin with `prefix`. A store that
    /// doesn't list them, or not for this user, ends them by a rule of the bucket.
    pub(crate) fn abort_uploads(&self, prefix: &str) -> Result<()> {
        let Some(uploads) = &self.uploads else { return Ok(()) };
        let found = match wait(uploads.list(prefix)) {
            Err(error) if matches!(error.trouble, Trouble::Unreachable | Trouble::Stopped) => {
                return Err(error);
            }
            Err(_) => return Ok(()),
            Ok(found) => found,
        };
        for upload in found {
            match wait(self.store.abort_multipart(&path(&upload.key)?, &upload.upload_id)) {
                // It ended meanwhile.
                Err(error) if error.trouble == Trouble::NoUpload => {}
                other => other?,
            }
        }
        Ok(())
    }
}

/// Names the library that TLS calculates with; it is the one that requests are signed with.
fn use_ring() {
    static ONCE: Once = Once::new();
    // Whoever chose another one before had a reason.
    ONCE.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
}

/// An error of whoever lends credentials.
fn nobody(error: ObjectError) -> ObjectError {
    match error.trouble {
        Trouble::Stopped => error,
        _ => ObjectError::new(
            Trouble::NoCredentials,
            format!("no credentials: neither variables nor a file has any, nor this machine: {error}"),
        ),
    }
}

fn path(key: &str) -> Result<Path> {
    Path::parse(key).map_err(|error| ObjectError::from(object_store::Error::from(error)))
}

/// A range of the file from which an object is made.
pub(crate) fn read_draft(file: &File, range: Range<u64>) -> Result<Bytes> {
    let unreadable =
        |error: std::io::Error| ObjectError::new(Trouble::Other, format!("the draft can't be read: {error}"));
    let length = usize::try_from(range.end - range.start)
        .map_err(|_| ObjectError::new(Trouble::Other, "a part of it doesn't fit into memory"))?;
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, range.start).map_err(unreadable)?;
    Ok(bytes.into())
}

impl From<ObjectMeta> for Listed {
    fn from(object: ObjectMeta) -> Self {
        let tag = object.e_tag.as_deref().unwrap_or("-");
        let stamp = format!("{} {} {tag}", object.size, object.last_modified.timestamp_micros());
        Self { key: object.location.into(), stamp }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_endpoint_it_is_amazons_and_buckets_are_hosts_unless_they_have_dots() {
        let mut set = vec![
            ("AWS_ACCESS_KEY_ID", "name"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_DEFAULT_REGION", "eu-central-1"),
        ];
        let address = |set: &[(&str, &str)], bucket: &str| {
            let pairs: Vec<(String, String)> =
                set.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            let settings = Settings::from(Service::S3, &pairs).unwrap();
            let bucket = Bucket::open(&format!("s3://{bucket}").parse().unwrap(), &settings).unwrap();
            let url = wait(bucket.uploads.unwrap().address("run 7/")).unwrap();
            assert!(!url.as_str().contains("secret"));
            format!("{}{}", url.origin().ascii_serialization(), url.path())
        };
        assert_eq!(address(&set, "ckpt"), "https://ckpt.s3.eu-central-1.amazonaws.com/");
        assert_eq!(address(&set, "a.b"), "https://s3.eu-central-1.amazonaws.com/a.b/");
        set.push(("AWS_ENDPOINT_URL", "http://127.0.0.1:9000/"));
        assert_eq!(address(&set, "ckpt"), "http://127.0.0.1:9000/ckpt/");
        set.push(("AWS_ENDPOINT_URL_S3", "https://s3.example:443"));
        assert_eq!(address(&set, "ckpt"), "https://s3.example/ckpt/");
    }
}
