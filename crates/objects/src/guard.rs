//! What stands between `object_store` and the network: every answer is bounded, every wait has an end, every failure a type.
//!
//! Relies on `object_store` for HTTP, signatures and repetition, on `quick-xml` for what a store says of a refusal. The idea:
//! the library hides the answer of a store in the text of its errors. So refusals and lost connections become an
//! [`ObjectError`] here, which travels as the cause of the library's error and is taken out again where that arrives. Every
//! request of this crate may be repeated without harm, so that the type of a failure alone decides whether it is.

use std::cell::Cell;
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService, ReqwestConnector,
};
use serde::Deserialize;
use tokio::time::timeout;

use crate::error::{ObjectError, Trouble, root_of};

/// Longest wait for an answer to begin, and for its next bytes: a store that puts a large object together keeps the line alive.
const PATIENCE: Duration = Duration::from_secs(60);
/// A line slower than this counts as dead while a part is sent, bytes per second.
const RATE_MIN: u64 = 64 << 10;
/// Longest answer, bytes: twice what is asked for of an object at once; a page of a listing has a thousand keys of a kibibyte.
pub(crate) const ANSWER_MAX: usize = 16 << 20;
/// Longest message of a store that is passed on, characters.
const MESSAGE_MAX: usize = 300;

tokio::task_local! {
    /// Tries of the request under way.
    static TRIES: Cell<u32>;
}

/// Counts the tries of a request, for what is said when all of them failed.
pub(crate) fn counting_tries<T>(request: impl Future<Output = T>) -> impl Future<Output = T> {
    TRIES.scope(Cell::new(0), request)
}

/// Makes guarded connections, for stores and for those who lend credentials.
#[derive(Debug)]
pub(crate) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Guard(ReqwestConnector::default().connect(options)?)))
    }
}

#[derive(Debug)]
struct Guard(HttpClient);

impl HttpService for Guard {
    fn call<'a, 'f>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        Box::pin(self.try_once(request))
    }
}

/// Why one try failed.
#[derive(Debug)]
enum Failure {
    /// The next one may succeed.
    Again(ObjectError),
    Final(ObjectError),
}

impl Guard {
    async fn try_once(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let host = request.uri().authority().map(ToString::to_string);
        // Outside of a counted request nothing is said of tries.
        let tries = TRIES.try_with(|tries| tries.replace(tries.get() + 1) + 1);
        match self.answer(request).await {
            Ok(answer) => {
                let _ = TRIES.try_with(|tries| tries.set(0));
                Ok(answer)
            }
            Err(Failure::Final(error)) => Err(HttpError::new(HttpErrorKind::Unknown, error)),
            Err(Failure::Again(mut error)) => {
                if let (Some(host), Ok(tries)) = (host, tries) {
                    let often = if tries == 1 { "once".to_owned() } else { format!("{tries} times") };
                    error.detail = format!("{} ({host}, tried {often})", error.detail);
                }
                // Of this kind is what may be sent again whatever it does.
                Err(HttpError::new(HttpErrorKind::Request, error))
            }
        }
    }

    async fn answer(&self, request: HttpRequest) -> Result<HttpResponse, Failure> {
        let is_get = request.method().as_str() == "GET";
        let is_list = request.uri().query().is_some_and(|query| query.contains("list-type=2"));
        let length = request.body().content_length() as u64;
        let patience = PATIENCE + Duration::from_secs(length / RATE_MIN);
        let answered = timeout(patience, self.0.execute(request)).await.map_err(|_| late())?;
        let (parts, body) = answered.map_err(|error| lost("no answer", &error))?.into_parts();
        // Room for all of it at once: to grow would take twice the memory. Whoever lies about the length costs that much.
        let length = parts.headers.get("content-length").and_then(|value| value.to_str().ok()?.parse().ok());
        let bytes = collected(body, length.filter(|length| *length <= ANSWER_MAX)).await?;
        let is_success = parts.status.is_success();
        if !is_success || !is_get {
            let refusal = Refusal::of(&bytes);
            // A refusal may follow the code of success, when the work took long.
            if !is_success || !refusal.code.is_empty() {
                return Err(refusal.of_status(parts.status.as_u16()));
            }
        }
        if is_list && !is_listing(&bytes) {
            let detail = "the store answered with something else than a listing";
            return Err(Failure::Final(ObjectError::new(Trouble::Other, detail)));
        }
        Ok(HttpResponse::from_parts(parts, bytes.into()))
    }
}

/// An answer, by the name of its outermost element.
#[derive(Deserialize)]
enum Answer {
    ListBucketResult(Page),
    Error(Refusal),
}

/// What is looked at of a page of a listing.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Page {
    #[serde(default)]
    is_truncated: bool,
    next_continuation_token: Option<String>,
}

/// The answer in a text that may begin with a mark of its byte order; none: it is no XML, or something else.
fn answer_in(bytes: &[u8]) -> Option<Answer> {
    let text = std::str::from_utf8(bytes).ok()?.trim_start_matches('\u{feff}').trim_start();
    quick_xml::de::from_str(text).ok()
}

/// Whether an answer is a page of a listing, the last one or one that says where the next begins. The library takes any other
/// XML for a listing without objects, and then what is there would count as gone.
fn is_listing(bytes: &[u8]) -> bool {
    let Some(Answer::ListBucketResult(page)) = answer_in(bytes) else { return false };
    !page.is_truncated || page.next_continuation_token.is_some()
}

/// The whole body, if it is no longer than any that was asked for.
async fn collected(body: HttpResponseBody, length: Option<usize>) -> Result<Vec<u8>, Failure> {
    let (mut bytes, mut pieces) = (length.map_or_else(Vec::new, Vec::with_capacity), body.bytes_stream());
    while let Some(piece) = timeout(PATIENCE, pieces.next()).await.map_err(|_| late())? {
        let piece = piece.map_err(|error| lost("the answer broke off", &error))?;
        if bytes.len() + piece.len() > ANSWER_MAX {
            let detail = "the store's answer is longer than any that was asked for";
            return Err(Failure::Final(ObjectError::new(Trouble::Other, detail)));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

fn lost(what: &str, error: &HttpError) -> Failure {
    Failure::Again(ObjectError::new(Trouble::Unreachable, format!("{what}: {}", root_of(error))))
}

fn late() -> Failure {
    Failure::Again(ObjectError::new(Trouble::Unreachable, "no answer in time"))
}

/// What a store says of a request that failed; empty where it says nothing.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Refusal {
    code: String,
    message: String,
}

impl Refusal {
    fn of(bytes: &[u8]) -> Self {
        // Whoever refuses owes no XML: then its status says what there is to say.
        let Some(Answer::Error(found)) = answer_in(bytes) else { return Self::default() };
        let plain = |text: String| text.chars().map(printable).take(MESSAGE_MAX).collect();
        Self { code: plain(found.code), message: plain(found.message) }
    }

    /// What was refused, and whether it is worth asking again.
    fn of_status(self, status: u16) -> Failure {
        let Self { code, message } = self;
        let colon = if message.is_empty() { "" } else { ": " };
        let detail = format!("the store answered {status} {code}{colon}{message}").trim_end().to_owned();
        let again = |trouble| Failure::Again(ObjectError::new(trouble, detail.clone()));
        let is_final = |trouble| Failure::Final(ObjectError::new(trouble, detail.clone()));
        match (status, code.as_str()) {
            (_, "XAmzContentSHA256Mismatch" | "BadDigest" | "InvalidDigest" | "IncompleteBody") => {
                again(Trouble::Damaged)
            }
            (408 | 429 | 500 | 502..=504, _) | (_, "SlowDown" | "RequestTimeout") => {
                again(Trouble::Unreachable)
            }
            (200..=299, _) => again(Trouble::Other),
            (_, "InvalidObjectState" | "BlobArchived") => is_final(Trouble::Archived),
            (_, "NoSuchBucket" | "ContainerNotFound") => is_final(Trouble::NoBucket),
            (_, "NoSuchUpload") => is_final(Trouble::NoUpload),
            (404, _) => is_final(Trouble::NoObject),
            (416, _) => is_final(Trouble::NoRange),
            (
                _,
                "AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraintException",
            )
            | (300..=399, _) => is_final(Trouble::Settings),
            (401 | 403, _) => is_final(Trouble::Denied),
            _ => is_final(Trouble::Other),
        }
    }
}

fn printable(character: char) -> char {
    if character.is_control() { ' ' } else { character }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
        <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name><IsTruncated>true</IsTruncated>\
        <Contents><Key>run/a&amp;b.pack</Key><Size>434234</Size></Contents><Contents><Key>run/c</Key></Contents>\
        <NextContinuationToken>t+/=</NextContinuationToken></ListBucketResult>";

    #[test]
    fn a_listing_is_told_from_all_else_and_whatever_comes_there_is_no_panic() {
        let last = "<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>";
        assert!(is_listing(PAGE.as_bytes()) && is_listing(last.as_bytes()));
        let bomb = format!("<!DOCTYPE x [<!ENTITY a \"{}\">]><ListBucketResult>&a;", "y".repeat(999));
        let deep = format!("{}{}", "<a>".repeat(100_000), "</a>".repeat(100_000));
        let endless = PAGE.replace("<NextContinuationToken>t+/=</NextContinuationToken>", "");
        for hostile in ["", "<", "\u{0}", "<ListBucketResult>", "<html/>", "<Error/>", &bomb, &deep, &endless]
        {
            assert!(!is_listing(hostile.as_bytes()), "{}", &hostile[..hostile.len().min(40)]);
            assert_eq!(Refusal::of(hostile.as_bytes()), Refusal::default());
        }
        for end in 0..PAGE.len() {
            assert!(!is_listing(&PAGE.as_bytes()[..end]), "{end}");
        }
        assert!(!is_listing(&[0xff; 40]));
    }

    #[test]
    fn a_refusal_has_the_type_that_its_user_can_act_on() {
        let text = "\u{feff} <?xml version=\"1.0\"?><Error><Code>NoSuchBucket</Code><Message>gone\n\u{1b}[31m</Message></Error>";
        let Failure::Final(error) = Refusal::of(text.as_bytes()).of_status(404) else { panic!() };
        let detail = "the store answered 404 NoSuchBucket: gone  [31m".to_owned();
        assert_eq!(error, ObjectError { trouble: Trouble::NoBucket, detail });
        for (status, code, trouble, is_again) in [
            (503, "SlowDown", Trouble::Unreachable, true),
            (500, "", Trouble::Unreachable, true),
            (400, "BadDigest", Trouble::Damaged, true),
            (200, "InternalError", Trouble::Other, true),
            (403, "InvalidObjectState", Trouble::Archived, false),
            (409, "BlobArchived", Trouble::Archived, false),
            (403, "SignatureDoesNotMatch", Trouble::Denied, false),
            (404, "NoSuchKey", Trouble::NoObject, false),
            (404, "NoSuchUpload", Trouble::NoUpload, false),
            (416, "InvalidRange", Trouble::NoRange, false),
            (301, "PermanentRedirect", Trouble::Settings, false),
            (400, "AuthorizationHeaderMalformed", Trouble::Settings, false),
            (501, "NotImplemented", Trouble::Other, false),
        ] {
            let refusal = Refusal { code: code.to_owned(), message: String::new() };
            let (again, error) = match refusal.of_status(status) {
                Failure::Again(error) => (true, error),
                Failure::Final(error) => (false, error),
            };
            assert_eq!((again, error.trouble), (is_again, trouble), "{status} {code}");
        }
    }
}
