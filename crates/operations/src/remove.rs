//! Removing files, single versions and folders.
//!
//! Space comes back with the next collection; chunks that other versions use stay.

use stdchk_client::Pool as Client;
use stdchk_model::Ino;
use stdchk_model::message::manager::{Change, FileKind};

use crate::error::{About, Error, Result};
use crate::namespace;
use crate::pool::Pool;
use crate::target::Target;

/// What is to be removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remove {
    /// A file, a version or a folder.
    pub target: Target,
    /// Whether a folder goes with all that is in it.
    pub recursive: bool,
    /// Whether nothing is removed.
    pub dry_run: bool,
}

impl Pool {
    /// Removes a file, a version or a folder. What it removed, or would remove, in order: what is in a folder before the
    /// folder.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::Code::NotFound): there is no such thing. [`Code::WrongKind`](crate::Code::WrongKind): it is
    /// a folder, and `recursive` is not set.
    pub async fn remove(&self, remove: &Remove) -> Result<Vec<Target>> {
        let (pool, target) = (&self.client, &remove.target);
        let attr = namespace::resolve(pool, target).await?;
        if let Some(version) = target.version {
            namespace::resolve_file(pool, target).await?;
            apply(pool, target, Change::DropVersion { ino: attr.ino, version }, remove.dry_run).await?;
            return Ok(vec![target.clone()]);
        }
        if attr.kind == FileKind::Directory && !remove.recursive {
            let next = "add -r to remove it with all in it";
            return Err(Error::wrong_kind(target.shown(), "it is a folder", next));
        }
        let mut removed = Vec::new();
        for found in namespace::tree(pool, target).await?.into_iter().rev() {
            let change = removal(pool, &found.target, found.attr.kind).await?;
            apply(pool, &found.target, change, remove.dry_run).await?;
            removed.push(found.target);
        }
        Ok(removed)
    }

    /// Removes a folder in which nothing is.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::Code::NotFound): there is no such folder. [`Code::WrongKind`](crate::Code::WrongKind): it is no folder.
    /// [`Code::Conflict`](crate::Code::Conflict): it is not empty.
    pub async fn remove_folder(&self, target: &Target) -> Result {
        let pool = &self.client;
        let attr = namespace::resolve_folder(pool, target).await?;
        let change = removal(pool, target, attr.kind).await?;
        apply(pool, target, change, false).await
    }
}

async fn removal(pool: &Client, target: &Target, kind: FileKind) -> Result<Change> {
    let Some((name, parents)) = target.split_last() else {
        return Err(Error::invalid("/", "the root can't be removed", "name a folder in it"));
    };
    let parent = match parents {
        [] => Ino::ROOT,
        parents => pool.resolve(&parents.join("/")).await.about(target.shown())?.ino,
    };
    let name = name.to_owned();
    Ok(match kind {
        FileKind::Directory => Change::Rmdir { parent, name },
        _ => Change::Unlink { parent, name },
    })
}

async fn apply(pool: &Client, target: &Target, change: Change, dry_run: bool) -> Result {
    match dry_run {
        true => Ok(()),
        false => pool.change(change).await.map(drop).about(target.shown()),
    }
}
