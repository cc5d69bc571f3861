//! Small files of a benefactor's folder, of which nobody reads half: a wish, labels, an address.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Gives a file this text. It is written beside it, under its name and `.new`, and renamed: a crash leaves what was there or all of it.
/// Durable on return.
///
/// # Errors
/// The system refuses; what was there before is there.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_added_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(path.parent().ok_or(ErrorKind::InvalidInput)?)?.sync_all()
}
