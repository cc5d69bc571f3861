//! One request to a store: signed, sent, tried again where that may help.
//!
//! Relies on `ureq` for HTTP and TLS, on threads that wait. The idea: every request of this crate may be repeated without harm,
//! so that whatever a lost connection or a busy store leaves open is settled by asking again; what a store refuses is not
//! asked again. All waits are bounded, and [`crate::stop`] ends them.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ureq::http::{HeaderMap, Request as HttpRequest, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body as AnswerBody, SendBody};

use crate::answer::{Refusal, refusal};
use crate::error::{ObjectError, Result, Trouble};
use crate::place::encoded;
use crate::settings::Settings;
use crate::sign::{self, NOTHING, Signed};
use crate::stop;

/// Time for a name to be resolved and a connection to be made, each.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// Time for one step of a transfer, in which something must move, and until an answer begins: a store that puts a large object
/// together keeps the line alive.
const STEP_PATIENCE: Duration = Duration::from_secs(60);
/// Wait before the second try; doubled before each later one.
const PAUSE: Duration = Duration::from_millis(200);
/// How often it is doubled.
const DOUBLINGS_MAX: u32 = 5;
/// Longest answer that isn't an object, bytes: a page of a listing has a thousand keys of up to a kibibyte.
const ANSWER_MAX: u64 = 16 << 20;
/// Where systems keep the certificates of the authorities that they trust.
const AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// What is asked of a store.
pub(crate) struct Request<'a> {
    pub(crate) method: &'static str,
    pub(crate) key: &'a str,
    /// Not encoded.
    pub(crate) query: Vec<(&'static str, String)>,
    /// Names in small letters.
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Option<Body<'a>>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(method: &'static str, key: &'a str) -> Self {
        Self { method, key, query: Vec::new(), headers: Vec::new(), body: None }
    }

    pub(crate) fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn body(mut self, body: Body<'a>) -> Self {
        self.body = Some(body);
        self
    }
}

/// Bytes that are sent, as often as it takes.
pub(crate) struct Body<'a> {
    pub(crate) length: u64,
    /// SHA-256, in hexadecimal.
    pub(crate) hash: String,
    /// The bytes from the beginning.
    pub(crate) reader: &'a (dyn Fn() -> Box<dyn Read + 'a> + Sync),
}

/// An answer that isn't a refusal.
pub(crate) struct Answer {
    headers: HeaderMap,
    body: AnswerBody,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Fills the buffer with the body, or the first bytes of it; what follows is not read.
    pub(crate) fn fill(self, buffer: &mut [u8]) -> Tried<()> {
        self.body.into_reader().read_exact(buffer).map_err(|error| Failure::Again(lost(&error)))
    }

    /// The whole body, which is no object.
    pub(crate) fn text(self) -> Tried<Vec<u8>> {
        read_bounded(self.body)
    }
}

fn read_bounded(body: AnswerBody) -> Tried<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = body.into_reader().take(ANSWER_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::Again(lost(&error)))?;
    if bytes.len() as u64 > ANSWER_MAX {
        let detail = "the store's answer is longer than any that was asked for";
        return Err(Failure::Final(ObjectError::new(Trouble::Other, detail)));
    }
    Ok(bytes)
}

fn lost(error: &io::Error) -> ObjectError {
    ObjectError::new(Trouble::Unreachable, format!("the answer broke off: {error}"))
}

/// Why one try failed.
pub(crate) enum Failure {
    /// The next one may succeed.
    Again(ObjectError),
    Final(ObjectError),
}

/// The outcome of one try.
pub(crate) type Tried<T> = std::result::Result<T, Failure>;

/// The way to one bucket of a store.
#[derive(Clone)]
pub(crate) struct Line {
    agent: Agent,
    settings: Arc<Settings>,
    scheme: String,
    host: String,
    /// What all paths begin with.
    root: String,
}

impl Line {
    pub(crate) fn to(bucket: &str, settings: Settings) -> Result<Self> {
        let (scheme, host, root) = settings.address(bucket);
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("stdchk/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(CONNECT_PATIENCE))
            .timeout_connect(Some(CONNECT_PATIENCE))
            .timeout_recv_response(Some(STEP_PATIENCE))
            .timeout_per_read(Some(STEP_PATIENCE))
            .timeout_per_write(Some(STEP_PATIENCE));
        if scheme == "https"
            && let Some(roots) = authorities(settings.authorities.as_deref())?
        {
            config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
        }
        let agent = Agent::new_with_config(config.build());
        stop::enlist(&agent);
        Ok(Self { agent, settings: Arc::new(settings), scheme, host, root })
    }

    /// Asks until there is an answer that `take` can use, a refusal, or no more patience.
    pub(crate) fn ask<T>(
        &self,
        request: &Request<'_>,
        mut take: impl FnMut(Answer) -> Tried<T>,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            let error = match self.once(request).and_then(&mut take) {
                Ok(taken) => return Ok(taken),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Again(error)) => error,
            };
            tries += 1;
            let is_last = tries >= self.settings.attempts;
            let longer = 1 << (tries - 1).min(DOUBLINGS_MAX);
            stop::pause(if is_last { Duration::ZERO } else { PAUSE * longer })?;
            if is_last {
                let often = if tries == 1 { "once".to_owned() } else { format!("{tries} times") };
                let detail = format!("{} ({}, tried {often})", error.detail, self.host);
                return Err(ObjectError { detail, ..error });
            }
        }
    }

    fn once(&self, request: &Request<'_>) -> Tried<Answer> {
        let answer = match &request.body {
            None if request.method == "POST" => {
                self.send(request, 0, NOTHING, SendBody::from_reader(&mut io::empty()))
            }
            None => self.send(request, 0, NOTHING, SendBody::none()),
            Some(body) => {
                let mut reader = (body.reader)();
                self.send(request, body.length, &body.hash, SendBody::from_reader(&mut reader))
            }
        };
        let (parts, body) = answer.map_err(failure_of)?.into_parts();
        let status = parts.status.as_u16();
        if parts.status.is_success() {
            return Ok(Answer { headers: parts.headers, body });
        }
        let refusal = read_bounded(body).ok().and_then(|bytes| refusal(&bytes)).unwrap_or_default();
        Err(refused(status, &refusal, request.key.is_empty()))
    }

    fn send(
        &self,
        request: &Request<'_>,
        length: u64,
        body_hash: &str,
        body: SendBody<'_>,
    ) -> std::result::Result<ureq::http::Response<AnswerBody>, ureq::Error> {
        let path = self.path(request.key);
        let mut query: Vec<String> =
            request.query.iter().map(|(name, value)| format!("{name}={}", encoded(value, false))).collect();
        query.sort();
        let query = query.join("&");
        let signed = Signed {
            method: request.method,
            host: &self.host,
            path: &path,
            query: &query,
            body_hash,
            headers: &request.headers,
        };
        let Settings { credentials, region, .. } = &*self.settings;
        let headers = sign::headers(&signed, credentials, region, SystemTime::now());
        let question = if query.is_empty() { "" } else { "?" };
        let uri = format!("{}://{}{path}{question}{query}", self.scheme, self.host);
        let mut http = HttpRequest::builder()
            .method(request.method)
            .uri(uri.parse::<Uri>().map_err(ureq::http::Error::from)?);
        for (name, value) in headers {
            http = http.header(name, value);
        }
        if matches!(request.method, "PUT" | "POST") {
            http = http.header("content-length", length);
        }
        self.agent.run(http.body(body)?)
    }

    fn path(&self, key: &str) -> String {
        let path = format!("{}{}", self.root, encoded(key, true));
        if key.is_empty() && path.len() > 1 { path.trim_end_matches('/').to_owned() } else { path }
    }

    /// What a header that names an object of the bucket says.
    pub(crate) fn source_of(bucket: &str, key: &str) -> String {
        format!("/{bucket}/{}", encoded(key, true))
    }
}

/// Those that a setting names, or else the system's; none: those that are compiled in.
fn authorities(named: Option<&Path>) -> Result<Option<RootCerts>> {
    let wrong = |path: &Path, cause: String| {
        ObjectError::new(Trouble::Settings, format!("certificates of {}: {cause}", path.display()))
    };
    let of_system = || AUTHORITIES.iter().map(Path::new).find(|path| path.exists());
    let Some(path) = named.or_else(of_system) else { return Ok(None) };
    let bytes = fs::read(path).map_err(|error| wrong(path, error.to_string()))?;
    let items = parse_pem(&bytes).collect::<std::result::Result<Vec<_>, _>>();
    let items = items.map_err(|error| wrong(path, error.to_string()))?;
    let certificates: Vec<_> = items
        .into_iter()
        .filter_map(
            |item| if let PemItem::Certificate(certificate) = item { Some(certificate) } else { None },
        )
        .collect();
    if certificates.is_empty() {
        return Err(wrong(path, "there are none".to_owned()));
    }
    Ok(Some(RootCerts::from(certificates)))
}

/// A request that got no answer.
fn failure_of(error: ureq::Error) -> Failure {
    let again = |detail: String| Failure::Again(ObjectError::new(Trouble::Unreachable, detail));
    match error {
        ureq::Error::Io(error) => again(format!("no answer: {error}")),
        ureq::Error::HostNotFound => again("no host has this name".to_owned()),
        ureq::Error::Timeout(step) => again(format!("no answer in time ({step})")),
        ureq::Error::ConnectionFailed => again("no connection".to_owned()),
        ureq::Error::Protocol(error) => again(format!("the answer is no HTTP: {error}")),
        other => Failure::Final(ObjectError::new(Trouble::Other, other.to_string())),
    }
}

/// What a store refused, and whether it is worth asking again.
fn refused(status: u16, refusal: &Refusal, of_bucket: bool) -> Failure {
    let Refusal { code, message } = refusal;
    let colon = if message.is_empty() { "" } else { ": " };
    let detail = format!("the store answered {status} {code}{colon}{message}").trim_end().to_owned();
    let with = |trouble| ObjectError::new(trouble, detail.clone());
    match (status, code.as_str()) {
        (_, "XAmzContentSHA256Mismatch" | "BadDigest" | "InvalidDigest" | "IncompleteBody") => {
            Failure::Again(with(Trouble::Damaged))
        }
        (408 | 429 | 500 | 502..=504, _) | (_, "SlowDown" | "RequestTimeout") => {
            Failure::Again(with(Trouble::Unreachable))
        }
        (_, "InvalidObjectState") => Failure::Final(with(Trouble::Archived)),
        (_, "NoSuchBucket") => Failure::Final(with(Trouble::NoBucket)),
        (_, "NoSuchUpload") => Failure::Final(with(Trouble::Other)),
        (404, _) if of_bucket => Failure::Final(with(Trouble::NoBucket)),
        (404, _) => Failure::Final(with(Trouble::NoObject)),
        (_, "AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraintException") => {
            Failure::Final(with(Trouble::Settings))
        }
        (300..=399, _) => Failure::Final(with(Trouble::Settings)),
        (401 | 403, _) => Failure::Final(with(Trouble::Denied)),
        _ => Failure::Final(with(Trouble::Other)),
    }
}
