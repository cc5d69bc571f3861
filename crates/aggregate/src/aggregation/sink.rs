//! Where containers are kept under names: a folder, or anything else that keeps bytes under names.
//!
//! Relies on nothing. The idea: a container is packed into a draft, a local file that was compared with the raw files; to
//! publish it makes it visible under its name, whole, after the sink has shown that it gives back what it was given.

use std::path::{Path, PathBuf};

use stdchk_formats::Source;

use crate::error::Result;
use crate::pack::Watch;

/// A name in a sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name.
    pub name: String,
    /// Changes when what it names does.
    pub stamp: String,
}

/// Keeps containers.
pub trait Sink: Send + Sync {
    /// The names of all containers; there may be others among them.
    ///
    /// # Errors
    /// The sink can't be read.
    fn names(&self) -> Result<Vec<Named>>;

    /// The bytes under a name.
    ///
    /// # Errors
    /// They can't be read, or there are none. With [`std::io::ErrorKind::ResourceBusy`] they are withheld for now, and those
    /// under other names may be had.
    fn open(&self, name: &str) -> Result<Box<dyn Source + Send + Sync>>;

    /// The path of a file in which what will have this name is packed.
    fn draft(&self, name: &str) -> PathBuf;

    /// Gives a draft its name, in place of what had it; the file is gone then. What has the name is whole at any time.
    ///
    /// # Errors
    /// The sink doesn't take it or gives other bytes back, or the watch ends it.
    fn publish(&self, draft: &Path, name: &str, watch: Watch<'_>) -> Result<()>;

    /// Gives what `name` names the name `other`; whether it keeps the old one is left open. What has the name then is whole, and
    /// was shown to be the same if it is a copy.
    ///
    /// # Errors
    /// The sink refuses, or gives other bytes back.
    fn keep_as(&self, name: &str, other: &str) -> Result<()>;

    /// Removes a name.
    ///
    /// # Errors
    /// The sink refuses; not, when there is none.
    fn remove(&self, name: &str) -> Result<()>;

    /// Makes names that came and went durable.
    ///
    /// # Errors
    /// The sink refuses.
    fn settle(&self) -> Result<()>;

    /// A name as users write it.
    fn shown(&self, name: &str) -> String;
}
