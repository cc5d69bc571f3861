//! How what is in the pool is named: `APP/NAME`, and `APP/NAME@VERSION` for one version.
//!
//! A trailing `@` with digits is a version. A file whose own name ends like that is meant by one more `@`:
//! `app/x@5` is version 5 of `app/x`, `app/x@5@` is the newest version of the file `x@5`.

use stdchk_model::{ErrorCode, Failure, name};

use crate::error::{About, Error, Result};

/// An object of the pool, perhaps at one version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// Names from the root, each checked; empty: the root itself.
    pub(crate) names: Vec<String>,
    /// The version; `None`: the newest.
    pub(crate) version: Option<u64>,
}

impl Target {
    /// Reads `APP/NAME[@VERSION]`; the empty text is the root.
    ///
    /// # Errors
    /// [`Code::Invalid`](crate::Code::Invalid): a name can't be one.
    pub fn parse(text: &str) -> Result<Self> {
        let (path, version) = split_version(text);
        let names = name::split(path).about(crate::text::shown(text))?;
        Ok(Self { names: names.into_iter().map(str::to_owned).collect(), version })
    }

    /// Reads a target that must be something in the pool, so not the root.
    ///
    /// # Errors
    /// Also if the root is meant.
    pub fn parse_entry(text: &str) -> Result<Self> {
        let target = Self::parse(text)?;
        match target.names.is_empty() {
            true => Err(Error::invalid(
                format!("`{text}`"),
                "the root of the pool is meant, not something in it",
                "write APP/NAME",
            )),
            false => Ok(target),
        }
    }

    /// Reads a path that must not name a version.
    ///
    /// # Errors
    /// Also if a version is named.
    pub fn parse_plain(text: &str) -> Result<Self> {
        let target = Self::parse(text)?;
        match target.version {
            Some(_) => Err(Error::invalid(
                text,
                "a version can't be named here",
                format!("leave the version out, or write `{text}@` if the name really ends like this"),
            )),
            None => Ok(target),
        }
    }

    /// The object of this name at one of its versions.
    #[must_use]
    pub fn at(&self, version: u64) -> Self {
        Self { version: Some(version), ..self.clone() }
    }

    /// The version that is named; `None`: the newest is meant.
    pub fn version(&self) -> Option<u64> {
        self.version
    }

    /// Names from the root to it; none for the root itself.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The path from the root, without the version.
    pub fn path(&self) -> String {
        self.names.join("/")
    }

    /// The last name; `None` for the root.
    pub fn name(&self) -> Option<&str> {
        self.names.last().map(String::as_str)
    }

    /// The names of the directory that holds it, and its own name; `None` for the root.
    pub fn split_last(&self) -> Option<(&str, &[String])> {
        self.names.split_last().map(|(name, parents)| (name.as_str(), parents))
    }

    /// This path with one more name.
    ///
    /// # Errors
    /// `Invalid` or `TooLong`: it can't be a name.
    pub fn join(&self, name: &str) -> Result<Self, Failure> {
        name::check(name)?;
        let names = self.names.iter().map(String::as_str).chain([name]).map(str::to_owned).collect();
        Ok(Self { names, version: None })
    }

    /// For messages: the path with its version; `/` for the root.
    pub fn shown(&self) -> String {
        let path = crate::text::shown(&self.path());
        match self.version {
            _ if self.names.is_empty() => "/".to_owned(),
            Some(version) => format!("{path}@{version}"),
            None => path,
        }
    }
}

fn split_version(text: &str) -> (&str, Option<u64>) {
    match text.rsplit_once('@') {
        Some((path, "")) => (path, None),
        Some((path, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => match digits.parse() {
            Ok(version) => (path, Some(version)),
            Err(_) => (text, None),
        },
        _ => (text, None),
    }
}

/// The relative path of a set's member, checked: it must stay below the directory that it is restored to.
pub fn member_path(member: &str) -> Result<std::path::PathBuf> {
    let names = name::split(member).about(crate::text::shown(member))?;
    if names.is_empty() {
        let failure = Failure::new(ErrorCode::Invalid, "a member of the set has no name");
        return Err(failure).about("set");
    }
    Ok(names.iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    fn parsed(text: &str) -> (String, Option<u64>) {
        let target = Target::parse(text).unwrap();
        (target.path(), target.version)
    }

    #[test]
    fn a_version_follows_the_last_at_sign() {
        assert_eq!(parsed("app/x"), ("app/x".into(), None));
        assert_eq!(parsed("app/x@12"), ("app/x".into(), Some(12)));
        assert_eq!(parsed("app/x@5@"), ("app/x@5".into(), None));
        assert_eq!(parsed("app/x@5@3"), ("app/x@5".into(), Some(3)));
        assert_eq!(parsed("app/me@home"), ("app/me@home".into(), None));
        assert_eq!(parsed("/app//x/"), ("app/x".into(), None));
        assert_eq!(parsed(""), (String::new(), None));
    }

    #[test]
    fn bad_names_are_usage_errors() {
        for bad in ["app/../x", "app/./x", "a\0b", &"n".repeat(300), &"d/".repeat(3000)] {
            assert_eq!(Target::parse(bad).unwrap_err().code, Code::Invalid, "{bad:?}");
        }
        assert_eq!(Target::parse_entry("/").unwrap_err().code, Code::Invalid);
        assert_eq!(Target::parse_plain("a/b@1").unwrap_err().code, Code::Invalid);
    }

    #[test]
    fn a_member_cannot_leave_the_directory_it_is_restored_to() {
        assert!(member_path("../etc/passwd").is_err());
        assert!(member_path("").is_err());
        assert_eq!(member_path("/run/a.N0.T1").unwrap(), std::path::Path::new("run/a.N0.T1"));
    }
}
