//! The mark of a manager's folder whose state is in etcd: the file `moved`, which says where.
//!
//! It is durable before the state leaves the disk. So whoever finds the folder without its store, or with a store that was put back, is told
//! where the pool's state is, and begins nothing with what is old.
//!
//! | mark | `store.redb` | etcd | a manager with `--store` | one without |
//! |---|---|---|---|---|
//! | none | there | empty | marks, moves, sets the store aside | serves |
//! | the same place | there | empty | the move was cut off before it began: moves | refuses: it says where |
//! | another place | there | empty | refuses: the state may be in that place | refuses |
//! | any | there | the state of the same commit | the move was cut off at its end: sets the store aside | refuses |
//! | any | there | another commit | refuses: one of the two is old | refuses |
//! | any | gone | the pool's state | stands by, and leads | refuses |
//! | any | gone | empty | refuses, once the folder is that of a pool: etcd has lost it, or is another one | refuses |
//! | any | any | another pool's | refuses | refuses |

use std::io::{self, ErrorKind};
use std::path::Path;

use stdchk_net::own;

use crate::etcd::Place;

/// The file in the manager's folder.
pub const MOVED_FILE: &str = "moved";

/// Where in etcd the state of the manager's folder is, or is being moved to; `None`: it isn't in etcd.
///
/// # Errors
/// The file can't be read, or says something else.
pub fn moved_to(directory: &Path) -> io::Result<Option<Place>> {
    let text = match own::text(&directory.join(MOVED_FILE)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let place = text.trim().parse();
    place.map(Some).map_err(|error| io::Error::new(ErrorKind::InvalidData, format!("{MOVED_FILE}: {error}")))
}

/// Marks the folder: its state is in this place, or will be in a moment. Durable on return.
///
/// # Errors
/// The disk refuses.
pub(crate) fn mark(directory: &Path, place: &Place) -> io::Result<()> {
    match moved_to(directory)?.as_ref() == Some(place) {
        true => Ok(()),
        false => own::replace(&directory.join(MOVED_FILE), &format!("{place}\n"), 0o600),
    }
}
