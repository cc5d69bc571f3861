//! The token of a pool: 32 random bytes, kept as 64 hexadecimal digits in a file that others can't read.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::exit::{About, CommandError, Exit, Outcome};

/// Length of a token, bytes: beyond guessing.
const TOKEN_BYTES: usize = 32;
/// Permissions that a token file must not give: any to others. A group may share a pool.
const OTHERS: u32 = 0o007;

/// Reads the token in `path`.
pub fn read(path: &Path) -> Outcome<Vec<u8>> {
    let object = || format!("token file {}", path.display());
    let metadata = fs::metadata(path).map_err(|error| missing(&error, object()))?;
    if metadata.mode() & OTHERS != 0 {
        return Err(CommandError::usage(
            object(),
            "other users can read it",
            "`chmod 600` it, and make a new one",
        ));
    }
    let text = fs::read_to_string(path).about(object())?;
    from_hex(text.trim()).ok_or_else(|| {
        CommandError::usage(
            object(),
            "64 hexadecimal digits are expected in it",
            "copy it from the manager's machine",
        )
    })
}

fn missing(error: &std::io::Error, object: String) -> CommandError {
    match error.kind() {
        ErrorKind::NotFound => CommandError::new(
            Exit::Unreachable,
            object,
            "it doesn't exist",
            "`stdchk up` makes one for a local pool; for another pool, copy its token and name it with `--token-file`",
        ),
        _ => CommandError::new(Exit::Other, object, error, "check the permissions"),
    }
}

/// Makes a token in `path` unless there is one.
pub fn make(path: &Path) -> Outcome {
    // Only of a path at which nothing is: another one in its place would cut the pool off.
    if path.try_exists().about(path.display())? {
        return read(path).map(drop);
    }
    let mut token = [0; TOKEN_BYTES];
    getrandom::fill(&mut token)
        .map_err(|error| std::io::Error::other(error.to_string()))
        .about("random bytes")?;
    let digits: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    write(path, &digits).about(format_args!("token file {}", path.display()))
}

/// Through a temporary name, so that a crash never leaves half a token.
fn write(path: &Path, digits: &str) -> std::io::Result<()> {
    let new = path.with_added_extension("new");
    drop(fs::remove_file(&new));
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    writeln!(file, "{digits}")?;
    file.sync_all()?;
    fs::rename(&new, path)
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() != 2 * TOKEN_BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn no_token_takes_the_place_of_what_cannot_be_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        std::os::unix::fs::symlink("token", &path).unwrap();
        assert!(make(&path).is_err());
        assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
    }

    #[test]
    fn a_token_is_made_once_and_reads_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        make(&path).unwrap();
        let token = read(&path).unwrap();
        make(&path).unwrap();
        assert_eq!((read(&path).unwrap(), token.len()), (token, TOKEN_BYTES));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_token_that_is_open_to_others_missing_or_not_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        assert_eq!(read(&path).unwrap_err().exit, Exit::Unreachable);
        fs::write(&path, "+".repeat(64)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(read(&path).unwrap_err().message.contains("64 hexadecimal digits"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read(&path).unwrap_err().message.contains("other users"));
    }
}
