//! What mounts of this host have closed and not pushed yet. Each waits in the spool of its mount point, and only a mount at the
//! same place finds it there.

use std::fmt::{Display, Formatter};
use std::path::PathBuf;

use serde::Serialize;
use stdchk_client::{Spool, Waiting};
use stdchk_model::size;

use super::{Home, mountpoint};
use crate::exit::Outcome;
use crate::output;

/// The files that wait in one spool.
#[derive(Serialize)]
pub struct WaitingFiles {
    /// Where the pool has to be mounted for them to be pushed.
    mount: PathBuf,
    /// Where they are.
    spool: PathBuf,
    files: u64,
    /// What the spool holds of them, bytes.
    bytes: u64,
    /// Whether something is mounted there, which pushes them.
    pub mounted: bool,
}

impl WaitingFiles {
    /// What waits in the spools of a data directory.
    pub fn of(home: &Home) -> Outcome<Vec<Self>> {
        let mut all = Vec::new();
        for (mount, spool) in home.spools() {
            let Waiting { files, bytes } = Spool::waiting(&spool);
            if files > 0 {
                let mounted = mountpoint::is_mounted(&mount)?;
                all.push(Self { mount, spool, files, bytes, mounted });
            }
        }
        Ok(all)
    }

    /// Those that no mount pushes, in words.
    pub fn left_alone(home: &Home) -> Outcome<Vec<String>> {
        let all = Self::of(home)?;
        let left = all.iter().filter(|waiting| !waiting.mounted);
        Ok(left.map(|waiting| waiting.told("stdchk mount")).collect())
    }

    /// What waits, and the command that mounts the pool where it is pushed.
    pub fn told(&self, command: &str) -> String {
        let place = self.place();
        format!(
            "{self}, in {}: nothing but a mount there has them. `{command} {place}` pushes them",
            output::shown(&self.spool.to_string_lossy())
        )
    }

    fn place(&self) -> String {
        output::shown(&self.mount.to_string_lossy())
    }
}

impl Display for WaitingFiles {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        let (files, bytes) = (output::count(self.files, "file"), size::human(self.bytes));
        write!(formatter, "{files} ({bytes}) of the mount at {} not pushed to the pool yet", self.place())
    }
}
