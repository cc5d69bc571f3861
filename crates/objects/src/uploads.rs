//! Uploads in parts that were begun and not ended: S3 keeps them, invisible and paid for, until somebody ends them.
//!
//! Relies on `object_store` for a signed address, since it lists objects only. The idea: one request, whose answer is looked
//! through for the two elements that matter.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3;
use object_store::client::{HttpClient, HttpErrorKind, HttpRequest, HttpRequestBody};
use object_store::path::Path;
use object_store::signer::{Method, SignedUrlOptions, Signer, Url};
use object_store::{Error, RetryConfig};
use serde::Deserialize;

/// For how long the signed address is good: for one request.
const VALIDITY: Duration = Duration::from_secs(300);

/// The way to the uploads of a bucket.
pub(crate) struct Uploads {
    store: Arc<AmazonS3>,
    client: HttpClient,
    tries: RetryConfig,
}

/// An upload that was begun and is neither complete nor aborted.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Upload {
    pub(crate) key: String,
    pub(crate) upload_id: String,
}

/// The answer, by the name of its outermost element.
#[derive(Deserialize)]
enum Answer {
    ListMultipartUploadsResult {
        #[serde(rename = "Upload", default)]
        uploads: Vec<Upload>,
    },
}

impl Uploads {
    pub(crate) fn of(store: Arc<AmazonS3>, client: HttpClient, tries: RetryConfig) -> Self {
        Self { store, client, tries }
    }

    /// Where to ask for them.
    pub(crate) async fn address(&self, prefix: &str) -> Result<Url, Error> {
        let options = SignedUrlOptions::new().with_query([("uploads", ""), ("prefix", prefix)]);
        self.store.signed_url_opts(Method::GET, &Path::ROOT, VALIDITY, &options).await
    }

    /// The first thousand, of keys that begin with `prefix`.
    pub(crate) async fn list(&self, prefix: &str) -> Result<Vec<Upload>, Error> {
        let url = self.address(prefix).await?;
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = url.as_str().parse().map_err(generic)?;
        let mut retries = 0..self.tries.max_retries;
        let answer = loop {
            match self.client.execute(request.clone()).await {
                Err(error) if error.kind() == HttpErrorKind::Request && retries.next().is_some() => {
                    tokio::time::sleep(self.tries.backoff.init_backoff).await;
                }
                other => break other.map_err(generic)?,
            }
        };
        let found = uploads(&answer.into_body().bytes().await.map_err(generic)?).map_err(generic)?;
        Ok(found.into_iter().filter(|upload| upload.key.starts_with(prefix)).collect())
    }
}

fn generic(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic { store: "S3", source: error.into() }
}

fn uploads(answer: &[u8]) -> Result<Vec<Upload>, quick_xml::DeError> {
    let Answer::ListMultipartUploadsResult { uploads } = quick_xml::de::from_reader(answer)?;
    Ok(uploads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_are_read_in_any_order_of_their_elements() {
        let list = "<ListMultipartUploadsResult><Upload><Key>k</Key><UploadId>1</UploadId></Upload><IsTruncated/>\
                    <Upload><UploadId>2</UploadId><Key>a&amp;b</Key></Upload></ListMultipartUploadsResult>";
        let second = Upload { key: "a&b".to_owned(), upload_id: "2".to_owned() };
        assert_eq!(uploads(list.as_bytes()).unwrap()[1], second);
        assert!(uploads(b"<ListMultipartUploadsResult></ListMultipartUploadsResult>").unwrap().is_empty());
        assert!(uploads(b"<html></html>").is_err());
    }
}
