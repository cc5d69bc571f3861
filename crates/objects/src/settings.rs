//! How a store is reached and who asks, from where all programs for object stores take it: the variables `AWS_*`, `AZURE_*`
//! and `GOOGLE_*`, and the file of credentials of S3's programs.
//!
//! Relies on the environment and two files; `object_store` knows what the variables mean, and asks the machine for
//! credentials where they hold none. The idea: what is wrong is said before the first request, with the name of the setting;
//! secrets are never part of it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use std::{env, fmt, fs};

use object_store::signer::Url;
use object_store::{BackoffConfig, Certificate, ClientOptions, RetryConfig};

use crate::error::{ObjectError, Result, Trouble, root_of};
use crate::place::Service;

/// Tries of one request, unless `AWS_MAX_ATTEMPTS` says otherwise: with the waits between them some seconds, in which a
/// store that is restarted or has too much to do comes back.
const ATTEMPTS_DEFAULT: u16 = 5;
/// Most tries that are believed.
const ATTEMPTS_MAX: u16 = 100;
/// Waits between tries: the first one, by what each later one is multiplied at most, and the longest.
const BACKOFF: BackoffConfig = BackoffConfig {
    init_backoff: Duration::from_millis(200),
    base: 3.0,
    max_backoff: Duration::from_secs(6),
};
/// Longest time in which a request is tried again: stores believe its signature for a quarter of an hour.
const TRIES_MAX: Duration = Duration::from_secs(600);
/// Longest wait for a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Looks a variable up; none: it is not set, or empty.
type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

/// How to reach a store.
#[derive(Clone)]
pub struct Settings {
    /// What is set of what `object_store` may know, in its spelling; secrets are among it.
    variables: Vec<(String, String)>,
    attempts: u16,
    options: ClientOptions,
}

/// Secrets are not for logs.
impl fmt::Debug for Settings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Settings").field("attempts", &self.attempts).finish_non_exhaustive()
    }
}

impl Settings {
    /// What the environment says of stores of this service.
    ///
    /// # Errors
    /// A setting can't be used, or one is missing that belongs to another.
    pub fn from_environment(service: Service) -> Result<Self> {
        // Whatever has a name that is no text is none of those that are looked for.
        let named = env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let ours = named.filter(|(name, value)| {
            !value.is_empty()
                && (name == "HOME" || Service::ALL.iter().any(|of| name.starts_with(of.variables())))
        });
        let text = |(name, value): (String, OsString)| match value.into_string() {
            Ok(value) => Ok((name, value)),
            Err(_) => Err(wrong(&name, "it is no text")),
        };
        Self::from(service, &ours.map(text).collect::<Result<Vec<_>>>()?)
    }

    pub(crate) fn from(service: Service, pairs: &[(String, String)]) -> Result<Self> {
        let get = |name: &str| pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let attempts = match get("AWS_MAX_ATTEMPTS").map(|text| text.parse()) {
            None => ATTEMPTS_DEFAULT,
            Some(Ok(attempts @ 1..=ATTEMPTS_MAX)) => attempts,
            Some(_) => return Err(wrong("AWS_MAX_ATTEMPTS", "it is no number from 1 to 100")),
        };
        let mut variables: Vec<_> = pairs
            .iter()
            .filter(|(name, _)| name.starts_with(service.variables()))
            .map(|(name, value)| (name.to_lowercase(), value.clone()))
            .collect();
        let mut options = ClientOptions::new().with_timeout_disabled().with_connect_timeout(CONNECT_PATIENCE);
        if service == Service::S3 {
            variables.extend(credentials(&get)?);
            check_region(&get)?;
            options = options.with_allow_http(is_plain_http(&get)?);
        }
        let authorities = get("AWS_CA_BUNDLE").map(|path| authorities(&path)).transpose()?;
        options = authorities.into_iter().flatten().fold(options, ClientOptions::with_root_certificate);
        Ok(Self { variables, attempts, options })
    }

    /// Tells a builder of the library what is set; what the library doesn't know is for other programs.
    pub(crate) fn told<B, Key: FromStr>(&self, builder: B, with: impl Fn(B, Key, &str) -> B) -> B {
        let known = self.variables.iter().filter_map(|(name, value)| Some((name.parse().ok()?, value)));
        known.fold(builder, |builder, (key, value)| with(builder, key, value))
    }

    /// Whether a variable of the library is set.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.variables.iter().any(|(known, _)| known == name)
    }

    /// How the library makes connections.
    pub(crate) fn connections(&self) -> ClientOptions {
        self.options.clone()
    }

    /// How the library tries requests again.
    pub(crate) fn tries(&self) -> RetryConfig {
        RetryConfig {
            backoff: BACKOFF,
            max_retries: usize::from(self.attempts) - 1,
            retry_timeout: TRIES_MAX,
        }
    }
}

fn wrong(setting: &str, cause: &str) -> ObjectError {
    ObjectError::new(Trouble::Settings, format!("{setting}: {cause}"))
}

/// The certificates of a file, which are trusted besides the system's.
fn authorities(path: &str) -> Result<Vec<Certificate>> {
    let wrong = |cause: &str| wrong("AWS_CA_BUNDLE", &format!("{path}: {cause}"));
    let bytes = fs::read(path).map_err(|error| wrong(&error.to_string()))?;
    let found = Certificate::from_pem_bundle(&bytes).map_err(|error| wrong(&root_of(&error)))?;
    if found.is_empty() { Err(wrong("there are no certificates in it")) } else { Ok(found) }
}

/// Whether the store is reached without TLS: then its address says so.
fn is_plain_http(get: Get<'_>) -> Result<bool> {
    let found =
        ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"].into_iter().find_map(|name| Some((name, get(name)?)));
    let Some((name, text)) = found else { return Ok(false) };
    let no_url = || wrong(name, "it is no URL such as http://127.0.0.1:9000");
    let url: Url = text.parse().map_err(|_| no_url())?;
    let names_user = !url.username().is_empty() || url.password().is_some();
    if !matches!(url.scheme(), "http" | "https") || names_user {
        return Err(no_url());
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err(wrong(name, "it must end behind the host and the port"));
    }
    Ok(url.scheme() == "http")
}

fn check_region(get: Get<'_>) -> Result<()> {
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    match ["AWS_REGION", "AWS_DEFAULT_REGION"]
        .iter()
        .find(|name| get(name).is_some_and(|text| !is_plain(&text)))
    {
        Some(name) => Err(wrong(name, "it is no name of a region")),
        None => Ok(()),
    }
}

/// What the library doesn't find itself of who asks: the credentials of the file. None: the variables say it, or the machine.
fn credentials(get: Get<'_>) -> Result<Vec<(String, String)>> {
    match (get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY")) {
        (Some(access_key), Some(secret_key)) => {
            check_credentials([Some(&access_key), Some(&secret_key), get("AWS_SESSION_TOKEN").as_ref()])?;
            Ok(Vec::new())
        }
        (Some(_), None) => Err(wrong("AWS_SECRET_ACCESS_KEY", "it is not set, and AWS_ACCESS_KEY_ID is")),
        (None, Some(_)) => Err(wrong("AWS_ACCESS_KEY_ID", "it is not set, and AWS_SECRET_ACCESS_KEY is")),
        (None, None) if get("AWS_WEB_IDENTITY_TOKEN_FILE").is_some() => Ok(Vec::new()),
        (None, None) => from_file(get),
    }
}

/// From the file that the stores' programs share; of the profile that is named, or `default`.
fn from_file(get: Get<'_>) -> Result<Vec<(String, String)>> {
    let path = get("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
    let path = path.or_else(|| Some(PathBuf::from(get("HOME")?).join(".aws/credentials")));
    let Some(path) = path else { return Ok(Vec::new()) };
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(wrong(&path.display().to_string(), &error.to_string())),
    };
    let profile = get("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
    let found = of_profile(&text, &profile);
    let value = |name: &str| found.iter().find(|(known, _)| known == name).map(|(_, value)| value);
    let [access_key, secret_key, token] =
        ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"].map(value);
    if access_key.is_none() || secret_key.is_none() {
        let cause =
            format!("it has no aws_access_key_id and aws_secret_access_key for the profile '{profile}'");
        return Err(wrong(&path.display().to_string(), &cause));
    }
    check_credentials([access_key, secret_key, token])?;
    Ok(found)
}

/// What the file says of a profile, of what the library knows.
fn of_profile(text: &str, profile: &str) -> Vec<(String, String)> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            inside = name.trim() == profile;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| inside) else { continue };
        if matches!(key.trim(), "aws_access_key_id" | "aws_secret_access_key" | "aws_session_token") {
            found.push((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    found
}

/// Refuses what can't stand in a header.
fn check_credentials(credentials: [Option<&String>; 3]) -> Result<()> {
    match credentials.into_iter().flatten().all(|text| text.bytes().all(|byte| byte.is_ascii_graphic())) {
        true => Ok(()),
        false => Err(wrong("credentials", "the key, the secret or the token has characters that none has")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Result<Settings> {
        let pairs: Vec<(String, String)> =
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Settings::from(Service::S3, &pairs)
    }

    const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "name"), ("AWS_SECRET_ACCESS_KEY", "secret")];

    fn with(more: &[(&str, &str)]) -> Result<Settings> {
        settings(&[&KEYS, more].concat())
    }

    /// What the library is told under this name.
    fn told<'a>(settings: &'a Settings, name: &str) -> Option<&'a str> {
        settings.variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
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
            (("AWS_CA_BUNDLE", "/dev/null"), "AWS_CA_BUNDLE"),
            (("AWS_CA_BUNDLE", "/none"), "AWS_CA_BUNDLE"),
        ] {
            let error = with(&[pair]).unwrap_err();
            assert!(error.detail.starts_with(says) && error.trouble == Trouble::Settings, "{error}");
        }
        let half = settings(&KEYS[1..]).unwrap_err().to_string();
        assert!(half.contains("AWS_ACCESS_KEY_ID") && !half.contains(KEYS[1].1), "{half}");
        assert!(!format!("{:?}", with(&[]).unwrap()).contains(KEYS[1].1));
    }

    #[test]
    fn credentials_come_from_the_file_where_no_variables_name_them() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "# keys\n[default]\naws_access_key_id = a\naws_secret_access_key=b\n\n[ spot ]\n\
                    aws_access_key_id=c\naws_secret_access_key=d=\naws_session_token=e\nregion=x\n[half]\naws_access_key_id=f\n";
        fs::write(file.path(), text).unwrap();
        let path = ("AWS_SHARED_CREDENTIALS_FILE", file.path().to_str().unwrap());
        let keys = |more: &[(&str, &str)]| settings(&[&[path], more].concat());
        let plain = keys(&[]).unwrap();
        let names = ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"];
        assert_eq!(names.map(|name| told(&plain, name)), [Some("a"), Some("b"), None]);
        let spot = keys(&[("AWS_PROFILE", "spot")]).unwrap();
        assert_eq!(names.map(|name| told(&spot, name)), [Some("c"), Some("d="), Some("e")]);
        assert!(keys(&[("AWS_PROFILE", "half")]).unwrap_err().detail.contains("'half'"));
        assert_eq!(told(&keys(&KEYS).unwrap(), names[0]), Some("name"), "variables come first");
        let identity = keys(&[("AWS_WEB_IDENTITY_TOKEN_FILE", "/token")]).unwrap();
        assert_eq!(told(&identity, names[0]), None, "so does the identity of a web service");
    }
}
