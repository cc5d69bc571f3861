//! When blocks were found damaged last: in the file `damages` of the benefactor's folder, so that they count together with those that are found
//! after a restart.
//!
//! The file holds fewer than are too many. Once so many were found, the wish `damaged` says it, and they have had their effect: whoever
//! lets the benefactor serve again knows of them, also if that is while it doesn't run.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use stdchk_net::own;

use crate::store::Store;

/// The file: for each of them a line with the seconds since 1970.
const FILE: &str = "damages";

/// What stands in the file; `None`: nobody has looked yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Damages(Option<Vec<u64>>);

impl Damages {
    /// At first takes in what the file says, then writes down what was found since. What can't be read or written counts as long as the
    /// process runs.
    pub(crate) fn settle(&mut self, folder: &Path, store: &Store) {
        let path = folder.join(FILE);
        let noted = self.0.take().unwrap_or_else(|| {
            let noted = read(&path).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), %error, "which blocks were found damaged before isn't known");
                Vec::new()
            });
            let times: Vec<SystemTime> = noted.iter().filter_map(|time| of_seconds(*time)).collect();
            store.remember_damages(&times);
            noted
        });
        let found = if store.is_often_damaged() { Vec::new() } else { store.damages() };
        let found: Vec<u64> = found.into_iter().filter_map(seconds).collect();
        if found != noted
            && let Err(error) = write(&path, &found)
        {
            tracing::warn!(path = %path.display(), %error, "that blocks were found damaged can't be noted");
        }
        self.0 = Some(found);
    }
}

/// `None`: by a calendar that isn't set.
fn seconds(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

fn of_seconds(seconds: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn read(path: &Path) -> io::Result<Vec<u64>> {
    match own::text(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        text => {
            let odd = |error| io::Error::new(ErrorKind::InvalidData, error);
            text?.lines().map(|line| line.parse().map_err(odd)).collect()
        }
    }
}

fn write(path: &Path, found: &[u64]) -> io::Result<()> {
    if found.is_empty() {
        return fs::remove_file(path);
    }
    own::replace(path, &found.iter().map(|time| format!("{time}\n")).collect::<String>(), crate::READABLE)
}
