//! Names of directory entries: what may be one, and the error that says why not.
//!
//! A name is any UTF-8 text of 1 to 255 bytes without `/` and NUL that is not `.` or `..`. UTF-8 because names
//! appear in JSON, in patterns and in messages; every checkpointing code we know of writes such names.

use crate::error::{ErrorCode, Failure};
use crate::limits::{NAME_BYTES_MAX, PATH_BYTES_MAX};

/// Accepts `name` as the name of a directory entry, or says why it can't be one.
pub fn check(name: &str) -> Result<(), Failure> {
    let refuse = |code, why: &str| {
        let shown: String = name.chars().take(64).collect();
        Err(Failure::new(code, format!("the name `{}` can't be used: {why}", shown.escape_debug())))
    };
    if name.len() > NAME_BYTES_MAX {
        return refuse(ErrorCode::TooLong, "it is longer than 255 bytes");
    }
    match name {
        "" => refuse(ErrorCode::Invalid, "it is empty"),
        "." | ".." => refuse(ErrorCode::Invalid, "`.` and `..` have a meaning of their own"),
        _ if name.contains(['/', '\0']) => refuse(ErrorCode::Invalid, "it holds a `/` or a NUL"),
        _ => Ok(()),
    }
}

/// Splits a path such as `app/run1/restart.7` into checked names. Leading, trailing and doubled slashes are ignored;
/// the empty path is the root. `..` is refused: a path names one place only.
pub fn split(path: &str) -> Result<Vec<&str>, Failure> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Failure::new(ErrorCode::TooLong, "the path is longer than 4095 bytes".to_owned()));
    }
    path.split('/').filter(|name| !name.is_empty()).map(|name| check(name).map(|()| name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_break_a_file_system_are_refused() {
        for bad in ["", ".", "..", "a/b", "a\0b"] {
            assert_eq!(check(bad).unwrap_err().code, ErrorCode::Invalid, "{bad:?}");
        }
        assert_eq!(check(&"n".repeat(256)).unwrap_err().code, ErrorCode::TooLong);
        assert_eq!(check(&"n".repeat(255)), Ok(()));
    }

    #[test]
    fn a_path_is_its_names() {
        assert_eq!(split("/app//run/x.N0.T1/").unwrap(), ["app", "run", "x.N0.T1"]);
        assert!(split("").unwrap().is_empty());
        assert!(split("app/../etc").is_err());
    }
}
