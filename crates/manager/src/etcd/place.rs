//! Where the manager's state is kept in etcd, as users write it.

use std::fmt;
use std::str::FromStr;

/// Port at which etcd serves unless it is told otherwise.
const PORT: &str = "2379";

/// A place in etcd: `etcd://HOST:PORT[,HOST:PORT…]/PREFIX`, or `etcds://…` with TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    endpoints: Vec<String>,
    prefix: String,
}

/// Why a text names no place in etcd.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is no place for a manager's state: it is etcd://HOST:PORT[,HOST:PORT...]/PREFIX, or etcds:// with TLS"
)]
pub struct PlaceError(String);

/// A name and a password that etcd knows.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    pub(super) name: String,
    pub(super) password: String,
}

/// Why a text is no login.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a login at etcd is NAME:PASSWORD")]
pub struct LoginError;

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({})", self.name)
    }
}

impl FromStr for Login {
    type Err = LoginError;

    fn from_str(text: &str) -> Result<Self, LoginError> {
        let (name, password) = text.split_once(':').filter(|(name, _)| !name.is_empty()).ok_or(LoginError)?;
        Ok(Self { name: name.to_owned(), password: password.to_owned() })
    }
}

impl Place {
    /// Where etcd's members serve, as URLs.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Its members, `host:port`.
    pub fn members(&self) -> Vec<String> {
        self.endpoints.iter().map(|endpoint| member(endpoint).to_owned()).collect()
    }

    /// What all keys begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// A member of etcd as people write it, of its URL.
pub(super) fn member(endpoint: &str) -> &str {
    endpoint.split_once("://").map_or(endpoint, |(_, member)| member)
}

/// As `--store` takes it.
impl fmt::Display for Place {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.endpoints.iter().filter_map(|endpoint| endpoint.split_once("://"));
        let scheme = if self.endpoints.iter().any(|endpoint| endpoint.starts_with("https:")) {
            "etcds"
        } else {
            "etcd"
        };
        let hosts = Vec::from_iter(hosts.map(|(_, host)| host)).join(",");
        write!(to, "{scheme}://{hosts}/{}", self.prefix)
    }
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let wrong = || PlaceError(text.to_owned());
        let (scheme, rest) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(rest), _) => ("http", rest),
            (None, Some(rest)) => ("https", rest),
            (None, None) => return Err(wrong()),
        };
        let (hosts, prefix) = rest.split_once('/').ok_or_else(wrong)?;
        let prefix = prefix.trim_end_matches('/');
        if prefix.is_empty() || prefix.contains(char::is_control) {
            return Err(wrong());
        }
        let endpoint = |host: &str| {
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            let is_host = !host.is_empty() && !host.contains(['@', '?', '#', ' ']) && !host.starts_with(':');
            is_host.then(|| match has_port {
                true => format!("{scheme}://{host}"),
                false => format!("{scheme}://{host}:{PORT}"),
            })
        };
        let endpoints = hosts.split(',').map(endpoint).collect::<Option<_>>().ok_or_else(wrong)?;
        Ok(Self { endpoints, prefix: prefix.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_has_a_name_and_is_shown_without_its_password() {
        let login: Login = "stdchk:a:b".parse().unwrap();
        assert_eq!((login.name.as_str(), login.password.as_str()), ("stdchk", "a:b"));
        assert_eq!(format!("{login:?}"), "Login(stdchk)");
        assert_eq!([":b", "stdchk", ""].map(str::parse::<Login>), [const { Err(LoginError) }; 3]);
    }

    #[test]
    fn a_place_has_hosts_and_a_prefix() {
        let place: Place = "etcd://a:1,b/pool/one/".parse().unwrap();
        assert_eq!(place.endpoints(), ["http://a:1", "http://b:2379"]);
        assert_eq!(place.prefix(), "pool/one");
        assert_eq!(place.to_string(), "etcd://a:1,b:2379/pool/one");
        let place: Place = "etcds://[::1]:7/x".parse().unwrap();
        assert_eq!(place.endpoints(), ["https://[::1]:7"]);
        assert_eq!(place.to_string(), "etcds://[::1]:7/x");
        for wrong in
            ["", "etcd://a:1", "etcd://a:1/", "etcd:///x", "http://a:1/x", "etcd://a:1,,b/x", "etcd://u@a/x"]
        {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
