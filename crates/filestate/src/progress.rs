//! How far a restore got: the name of an empty file of the store, which costs one flush of the disk to make. See
//! [`crate::restore`] for its crash cases.

use rustix::fs::{Mode as Permissions, OFlags};

use crate::error::{Error, Result};
use crate::index::{self, Entry};
use crate::store::{self, DIRECTORY, Store};

const PREFIX: &str = "restoring.";

/// How far a restore got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The checkpoint to go back to.
    pub(crate) index: u64,
    /// Its position.
    pub(crate) target: u64,
    /// Where the log ended when the restore began.
    pub(crate) end: u64,
    /// Everything from here on that is about names is undone, and all contents with it.
    pub(crate) reached: u64,
}

impl Progress {
    /// The name of the file that says it.
    pub(crate) fn name(&self) -> String {
        format!("{PREFIX}{}.{}.{}.{}", self.reached, self.index, self.target, self.end)
    }

    /// A restore to `entry` that has not begun.
    pub(crate) fn new(store: &Store, entry: &Entry) -> Result<Self> {
        let end = store.log.len()?;
        Ok(Self { index: entry.index, target: entry.position, end, reached: end })
    }

    /// Writes down that it begins.
    pub(crate) fn begin(&self, store: &Store) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let created =
            rustix::fs::openat(store.directory(), self.name(), flags, Permissions::from_raw_mode(0o600));
        created.map_err(Error::system("create", store.path().join(self.name())))?;
        let durable =
            rustix::fs::fsync(store.directory()).map_err(Error::system("make durable", store.path()));
        if durable.is_err() {
            // Nothing is undone yet, and nothing will be.
            index::remove_file(store.directory(), &store.path(), &self.name())?;
        }
        durable
    }

    /// Writes down that all from `position` on is undone.
    pub(crate) fn advance(&mut self, store: &Store, position: u64) -> Result<()> {
        let before = self.name();
        self.reached = position;
        let renamed = rustix::fs::renameat(store.directory(), &before, store.directory(), self.name());
        renamed.map_err(Error::system("advance", store.path().join(before)))
    }

    /// That of a restore that was cut off.
    pub(crate) fn read(store: &Store) -> Result<Option<Self>> {
        let listed = store::names_in(store.root(), DIRECTORY.as_bytes());
        let names = listed.map_err(Error::system("list", store.path()))?;
        let Some(name) = names.iter().find(|name| name.starts_with(PREFIX.as_bytes())) else {
            return Ok(None);
        };
        let name = String::from_utf8_lossy(name);
        let damaged = || Error::Damaged {
            object: store.path().join(name.as_ref()),
            what: "unreadable position".into(),
        };
        Self::parse(&name).map(Some).ok_or_else(damaged)
    }

    fn parse(name: &str) -> Option<Self> {
        let mut fields = name.strip_prefix(PREFIX)?.split('.').map(str::parse);
        let mut number = || fields.next()?.ok();
        let (reached, index, target, end) = (number()?, number()?, number()?, number()?);
        fields.next().is_none().then_some(Self { index, target, end, reached })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_it_and_any_other_does_not() {
        let progress = Progress { index: 3, target: 40, end: 500, reached: 60 };
        assert_eq!(progress.name(), "restoring.60.3.40.500");
        assert_eq!(Progress::parse(&progress.name()), Some(progress));
        for name in [
            "restoring.",
            "restoring.60",
            "restoring.60.3.40",
            "restoring.60.3.40.500.1",
            "restoring.6x.3.40.500",
        ] {
            assert_eq!(Progress::parse(name), None, "{name}");
        }
    }
}
