//! The labels of a benefactor, in a file of its folder: a `NAME=VALUE` in each line. They hold until its owner gives others.

use std::io::{self, ErrorKind};
use std::path::Path;

use stdchk_model::labels::{self, Labels};
use stdchk_net::own;

/// The file, in the data directory.
const FILE: &str = "labels";

/// The labels that hold: those that are `given`, which are written down first, or else those of the folder.
///
/// # Errors
/// The file can't be read or written, or says something else.
pub fn settle(folder: &Path, given: &Labels) -> io::Result<Labels> {
    let path = folder.join(FILE);
    if given.is_empty() {
        return match own::text(&path) {
            Ok(text) => read(&text),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        };
    }
    let text: String = given.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    own::replace(&path, &text, crate::READABLE)?;
    Ok(given.clone())
}

fn read(text: &str) -> io::Result<Labels> {
    let odd = |failure: stdchk_model::Failure| {
        io::Error::new(ErrorKind::InvalidData, format!("the file `{FILE}`: {failure}"))
    };
    let read: Labels =
        text.lines().map(|line| labels::parse(line).map_err(odd)).collect::<io::Result<_>>()?;
    labels::check(&read).map_err(odd)?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn labels_hold_until_others_are_given_and_nothing_else_is_taken_for_some() {
        let folder = tempfile::tempdir().unwrap();
        let settle = |given: &[(&str, &str)]| {
            let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            settle(folder.path(), &given.collect())
        };
        assert_eq!(settle(&[]).unwrap(), []);
        let first = settle(&[("rack", "3"), ("site", "b")]).unwrap();
        assert_eq!((first.len(), settle(&[]).unwrap()), (2, first));
        let second = settle(&[("rack", "4")]).unwrap();
        assert_eq!(settle(&[]).unwrap(), second);
        fs::write(folder.path().join(FILE), "rack\n").unwrap();
        assert_eq!(settle(&[]).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
