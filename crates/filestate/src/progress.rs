//! How far a restore got: the name of a file of the store, and what it holds. See [`crate::restore`] for its crash cases.

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
        format!("{PREFIX}{}", self.reached)
    }

    /// A restore to `entry` that has not begun.
    pub(crate) fn new(store: &Store, entry: &Entry) -> Result<Self> {
        let end = store.log.len()?;
        Ok(Self { index: entry.index, target: entry.position, end, reached: end })
    }

    /// Writes down that it begins.
    pub(crate) fn begin(&self, store: &Store) -> Result<()> {
        let text = format!("{} {} {}\n", self.index, self.target, self.end);
        index::replace_file(store.directory(), &store.path(), "restoring-new", &self.name(), text.as_bytes())
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
        let name = String::from_utf8_lossy(name).into_owned();
        let shown = store.path().join(&name);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(store.directory(), &name, flags, Permissions::empty());
        let bytes = file.and_then(|file| index::read_whole(&file)).map_err(Error::system("read", &shown))?;
        let parsed = Self::parse(&name, &String::from_utf8_lossy(&bytes));
        parsed.map(Some).ok_or_else(|| Error::Damaged { object: shown, what: "unreadable position".into() })
    }

    fn parse(name: &str, text: &str) -> Option<Self> {
        let mut fields = text.split_whitespace().map(str::parse);
        let mut number = || fields.next()?.ok();
        let (index, target, end) = (number()?, number()?, number()?);
        Some(Self { index, target, end, reached: name.strip_prefix(PREFIX)?.parse().ok()? })
    }
}
