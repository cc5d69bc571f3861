//! Signature Version 4: what shows a store who asks, and that nothing of it was changed on the way.
//!
//! Relies on `sha2` and `hmac`. The idea: the request line, the headers that matter and the hash of the body are written
//! down in one agreed form and signed with a key that is derived from the secret for one day, region and service. The secret
//! itself is never sent. As described by Amazon ("Authenticating Requests: Using the Authorization Header").

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// SHA-256 of no bytes, in hexadecimal.
pub(crate) const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Who asks.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Names the key.
    pub access_key: String,
    /// Never leaves the process.
    pub secret_key: String,
    /// Goes with keys that are lent for a time.
    pub session_token: Option<String>,
}

/// Secrets are not for logs.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Credentials({})", self.access_key)
    }
}

/// What is signed of a request.
pub(crate) struct Signed<'a> {
    pub(crate) method: &'a str,
    pub(crate) host: &'a str,
    /// Encoded.
    pub(crate) path: &'a str,
    /// Encoded, sorted by name.
    pub(crate) query: &'a str,
    /// SHA-256 of the body, in hexadecimal.
    pub(crate) body_hash: &'a str,
    /// Others whose names begin with `x-amz-`, in small letters.
    pub(crate) headers: &'a [(&'static str, String)],
}

/// The headers that a request needs besides its own: time, hash, token and signature.
pub(crate) fn headers(
    request: &Signed<'_>,
    credentials: &Credentials,
    region: &str,
    now: SystemTime,
) -> Vec<(&'static str, String)> {
    let time = timestamp(now);
    let day = time.get(..8).unwrap_or_default().to_owned();
    let mut headers = request.headers.to_vec();
    headers.push(("host", request.host.to_owned()));
    headers.push(("x-amz-content-sha256", request.body_hash.to_owned()));
    headers.push(("x-amz-date", time.clone()));
    if let Some(token) = &credentials.session_token {
        headers.push(("x-amz-security-token", token.clone()));
    }
    headers.sort();
    let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{}\n", value.trim())).collect();
    let Signed { method, path, query, body_hash, .. } = request;
    let canonical = format!("{method}\n{path}\n{query}\n{lines}\n{names}\n{body_hash}");
    let scope = format!("{day}/{region}/s3/aws4_request");
    let to_sign = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
    let secret = format!("AWS4{}", credentials.secret_key);
    let key = [day.as_str(), region, "s3", "aws4_request"]
        .iter()
        .fold(secret.into_bytes(), |key, part| keyed(&key, part));
    let signature = hex(&keyed(&key, &to_sign));
    let credential = format!("{}/{scope}", credentials.access_key);
    headers.retain(|(name, _)| *name != "host");
    headers.push((
        "authorization",
        format!("AWS4-HMAC-SHA256 Credential={credential},SignedHeaders={names},Signature={signature}"),
    ));
    headers
}

fn keyed(key: &[u8], text: &str) -> Vec<u8> {
    // An HMAC takes keys of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `20130524T000000Z`.
fn timestamp(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// Year, month and day of the Gregorian calendar, so many days after 1970 began: counted in eras of 400 years whose years
/// begin in March, so that the day that leap years have more stands at the end.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of Amazon's own examples.
    const EXAMPLE_TIME_S: u64 = 1_369_353_600;

    fn example(method: &str, path: &str, query: &str, headers: &[(&'static str, String)]) -> String {
        let credentials = Credentials {
            access_key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            session_token: None,
        };
        let host = "examplebucket.s3.amazonaws.com";
        let request = Signed { method, host, path, query, body_hash: NOTHING, headers };
        let now = UNIX_EPOCH + Duration::from_secs(EXAMPLE_TIME_S);
        let headers = super::headers(&request, &credentials, "us-east-1", now);
        let (_, authorization) = headers.into_iter().find(|(name, _)| *name == "authorization").unwrap();
        authorization.rsplit_once("Signature=").unwrap().1.to_owned()
    }

    #[test]
    fn requests_are_signed_as_in_the_examples_of_the_protocol() {
        let range = [("range", "bytes=0-9".to_owned())];
        let get = example("GET", "/test.txt", "", &range);
        assert_eq!(get, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
        let lifecycle = example("GET", "/", "lifecycle=", &[]);
        assert_eq!(lifecycle, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
        let list = example("GET", "/", "max-keys=2&prefix=J", &[]);
        assert_eq!(list, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(11_016), (2000, 2, 29));
        assert_eq!(date(11_017), (2000, 3, 1));
        assert_eq!(date(47_540), (2100, 2, 28));
        assert_eq!(date(47_541), (2100, 3, 1));
        assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(EXAMPLE_TIME_S + 86_399)), "20130524T235959Z");
    }

    #[test]
    fn a_secret_is_never_shown() {
        let credentials = Credentials {
            access_key: "name".to_owned(),
            secret_key: "hidden".to_owned(),
            session_token: Some("hidden".to_owned()),
        };
        assert_eq!(format!("{credentials:?}"), "Credentials(name)");
    }
}
