//! How a store is reached, from where all programs for object stores take it: the variables `AWS_*` and the file of
//! credentials.
//!
//! Relies on the environment and two files. The idea: what is wrong is said before the first request, with the name of the
//! setting; secrets are never part of it.

use std::path::PathBuf;
use std::{env, fs};

use ureq::http::Uri;

use crate::error::{ObjectError, Result, Trouble};
use crate::sign::Credentials;

/// The region that stores without regions expect.
const REGION_DEFAULT: &str = "us-east-1";
/// Tries of one request, unless `AWS_MAX_ATTEMPTS` says otherwise: with the waits between them some seconds, in which a
/// store that is restarted or has too much to do comes back.
const ATTEMPTS_DEFAULT: u32 = 5;
/// Most tries that are believed: the waits in between grow no further after six.
const ATTEMPTS_MAX: u32 = 100;

/// How to reach a store.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Scheme and authority of a store that is not Amazon's.
    pub(crate) endpoint: Option<(String, String)>,
    pub(crate) region: String,
    pub(crate) credentials: Credentials,
    pub(crate) attempts: u32,
    /// Certificates of authorities to trust, PEM.
    pub(crate) authorities: Option<PathBuf>,
}

impl Settings {
    /// What the environment says.
    ///
    /// # Errors
    /// A setting is missing or can't be used.
    pub fn from_environment() -> Result<Self> {
        Self::from(&|name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn from(get: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let endpoint =
            ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"].into_iter().find_map(|name| Some((name, get(name)?)));
        let endpoint = endpoint.map(|(name, url)| endpoint_of(name, &url)).transpose()?;
        let region = get("AWS_REGION").or_else(|| get("AWS_DEFAULT_REGION"));
        let region = region.unwrap_or_else(|| REGION_DEFAULT.to_owned());
        if !region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(wrong("AWS_REGION", "it is no name of a region"));
        }
        let attempts = match get("AWS_MAX_ATTEMPTS") {
            None => ATTEMPTS_DEFAULT,
            Some(text) => match text.parse() {
                Ok(attempts @ 1..=ATTEMPTS_MAX) => attempts,
                _ => return Err(wrong("AWS_MAX_ATTEMPTS", "it is no number from 1 to 100")),
            },
        };
        let authorities = get("AWS_CA_BUNDLE").or_else(|| get("SSL_CERT_FILE")).map(PathBuf::from);
        let credentials = credentials(get)?;
        Ok(Self { endpoint, region, credentials, attempts, authorities })
    }

    /// Scheme, host and the beginning of the path for objects of a bucket.
    pub(crate) fn address(&self, bucket: &str) -> (String, String, String) {
        match &self.endpoint {
            Some((scheme, host)) => (scheme.clone(), host.clone(), format!("/{bucket}/")),
            // A certificate for *.s3... covers no name with more dots.
            None if bucket.contains('.') => {
                ("https".to_owned(), format!("s3.{}.amazonaws.com", self.region), format!("/{bucket}/"))
            }
            None => {
                ("https".to_owned(), format!("{bucket}.s3.{}.amazonaws.com", self.region), "/".to_owned())
            }
        }
    }
}

fn wrong(setting: &str, cause: &str) -> ObjectError {
    ObjectError::new(Trouble::Settings, format!("{setting}: {cause}"))
}

fn endpoint_of(name: &str, url: &str) -> Result<(String, String)> {
    let no_url = || wrong(name, "it is no URL such as http://127.0.0.1:9000");
    let uri: Uri = url.parse().map_err(|_| no_url())?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(no_url()) };
    if !matches!(scheme, "http" | "https") || authority.as_str().contains('@') {
        return Err(no_url());
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(wrong(name, "it must end behind the host and the port"));
    }
    // As it stands in the header that is signed: without the port that goes without saying.
    let said = if scheme == "https" { ":443" } else { ":80" };
    let host = authority.as_str();
    Ok((scheme.to_owned(), host.strip_suffix(said).unwrap_or(host).to_owned()))
}

fn credentials(get: &dyn Fn(&str) -> Option<String>) -> Result<Credentials> {
    match (get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY")) {
        (Some(access_key), Some(secret_key)) => {
            checked(Credentials { access_key, secret_key, session_token: get("AWS_SESSION_TOKEN") })
        }
        (Some(_), None) => Err(wrong("AWS_SECRET_ACCESS_KEY", "it is not set, and AWS_ACCESS_KEY_ID is")),
        (None, Some(_)) => Err(wrong("AWS_ACCESS_KEY_ID", "it is not set, and AWS_SECRET_ACCESS_KEY is")),
        (None, None) => from_file(get),
    }
}

/// From the file that the stores' programs share; of the profile that is named, or `default`.
fn from_file(get: &dyn Fn(&str) -> Option<String>) -> Result<Credentials> {
    let missing = "neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY nor a file of credentials is there";
    let path = get("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
    let path = path.or_else(|| Some(PathBuf::from(get("HOME")?).join(".aws/credentials")));
    let path = path.ok_or_else(|| wrong("credentials", missing))?;
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(wrong("credentials", missing));
        }
        Err(error) => return Err(wrong(&path.display().to_string(), &error.to_string())),
    };
    let profile = get("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
    let found = of_profile(&text, &profile);
    let cause =
        || format!("it has no aws_access_key_id and aws_secret_access_key for the profile '{profile}'");
    checked(found.ok_or_else(|| wrong(&path.display().to_string(), &cause()))?)
}

fn of_profile(text: &str, profile: &str) -> Option<Credentials> {
    let mut inside = false;
    let (mut access_key, mut secret_key, mut session_token) = (None, None, None);
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            inside = name.trim() == profile;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| inside) else { continue };
        let value = Some(value.trim().to_owned());
        match key.trim() {
            "aws_access_key_id" => access_key = value,
            "aws_secret_access_key" => secret_key = value,
            "aws_session_token" => session_token = value,
            _ => {}
        }
    }
    Some(Credentials { access_key: access_key?, secret_key: secret_key?, session_token })
}

/// Refuses what can't stand in a header.
fn checked(credentials: Credentials) -> Result<Credentials> {
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    let token = credentials.session_token.as_deref().unwrap_or_default();
    if [&credentials.access_key, &credentials.secret_key, token].iter().all(|text| is_plain(text)) {
        Ok(credentials)
    } else {
        Err(wrong("credentials", "the key, the secret or the token has characters that none has"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Result<Settings> {
        let pairs: Vec<(String, String)> =
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Settings::from(&|name| pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()))
    }

    const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "name"), ("AWS_SECRET_ACCESS_KEY", "secret")];

    fn with(more: &[(&str, &str)]) -> Result<Settings> {
        settings(&[&KEYS, more].concat())
    }

    #[test]
    fn without_an_endpoint_it_is_amazons_and_buckets_are_hosts() {
        let plain = with(&[("AWS_DEFAULT_REGION", "eu-central-1")]).unwrap();
        let (scheme, host, path) = plain.address("ckpt");
        assert_eq!(
            (scheme.as_str(), host.as_str(), path.as_str()),
            ("https", "ckpt.s3.eu-central-1.amazonaws.com", "/")
        );
        assert_eq!(plain.address("a.b").1, "s3.eu-central-1.amazonaws.com");
        assert_eq!(plain.address("a.b").2, "/a.b/");
    }

    #[test]
    fn with_an_endpoint_buckets_are_paths() {
        let other = [
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:9000/"),
            ("AWS_ENDPOINT_URL_S3", "https://s3.example:443"),
        ];
        assert_eq!(with(&other).unwrap().address("b"), ("https".into(), "s3.example".into(), "/b/".into()));
        let address = with(&other[..1]).unwrap().address("b");
        assert_eq!(address, ("http".into(), "127.0.0.1:9000".into(), "/b/".into()));
    }

    #[test]
    fn a_setting_that_can_not_be_used_is_named_and_no_secret_with_it() {
        for (pair, says) in [
            (("AWS_ENDPOINT_URL", "127.0.0.1:9000"), "AWS_ENDPOINT_URL"),
            (("AWS_ENDPOINT_URL", "ftp://x"), "AWS_ENDPOINT_URL"),
            (("AWS_ENDPOINT_URL", "http://x/base"), "AWS_ENDPOINT_URL"),
            (("AWS_ENDPOINT_URL", "http://user:word@x"), "AWS_ENDPOINT_URL"),
            (("AWS_REGION", "a b"), "AWS_REGION"),
            (("AWS_MAX_ATTEMPTS", "0"), "AWS_MAX_ATTEMPTS"),
            (("AWS_SESSION_TOKEN", "a\nb"), "credentials"),
        ] {
            let error = with(&[pair]).unwrap_err();
            assert!(error.detail.starts_with(says) && error.trouble == Trouble::Settings, "{error}");
        }
        let half = settings(&KEYS[1..]).unwrap_err().to_string();
        assert!(half.contains("AWS_ACCESS_KEY_ID") && !half.contains(KEYS[1].1), "{half}");
        assert!(settings(&[]).is_err());
    }

    #[test]
    fn credentials_come_from_the_file_where_no_variables_name_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "# keys\n[default]\naws_access_key_id = a\naws_secret_access_key=b\n\n[ spot ]\n\
                    aws_access_key_id=c\naws_secret_access_key=d=\naws_session_token=e\nregion=x\n[half]\naws_access_key_id=f\n";
        fs::write(file.path(), text).unwrap();
        let path = ("AWS_SHARED_CREDENTIALS_FILE", file.path().to_str().unwrap());
        let keys =
            |more: &[(&str, &str)]| settings(&[&[path], more].concat()).map(|settings| settings.credentials);
        let plain = keys(&[]).unwrap();
        assert_eq!(
            (plain.access_key.as_str(), plain.secret_key.as_str(), plain.session_token),
            ("a", "b", None)
        );
        let spot = keys(&[("AWS_PROFILE", "spot")]).unwrap();
        assert_eq!((spot.secret_key.as_str(), spot.session_token.as_deref()), ("d=", Some("e")));
        assert!(keys(&[("AWS_PROFILE", "half")]).unwrap_err().detail.contains("'half'"));
        assert_eq!(keys(&KEYS).unwrap().access_key, "name", "variables come first");
    }
}
