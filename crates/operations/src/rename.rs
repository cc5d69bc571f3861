//! Renaming and moving, atomically and without touching content.

use stdchk_client::Pool as Client;
use stdchk_model::Ino;
use stdchk_model::message::manager::{Change, Existing, FileKind};

use crate::error::{About, Error, Result};
use crate::namespace;
use crate::pool::Pool;
use crate::target::Target;

/// What is to be renamed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rename {
    /// The file or folder.
    pub source: Target,
    /// Its new name, or the folder that takes it in under its own name.
    pub target: Target,
    /// Whether the target is a folder even if there is none yet, as `FOLDER/` says.
    pub into_folder: bool,
    /// Whether it fails if the new name is taken. Otherwise a file becomes the newest version of the file there.
    pub no_replace: bool,
}

impl Pool {
    /// Renames or moves a file or folder, in one step.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::Code::NotFound): the source or the target's folder is not there.
    /// [`Code::Exists`](crate::Code::Exists): the name is taken, and was not to be replaced.
    pub async fn rename(&self, rename: &Rename) -> Result {
        let (pool, source) = (&self.client, &rename.source);
        let target = destination(pool, rename).await?;
        let (parent, name) = place(pool, source).await?;
        let (new_parent, new_name) = place(pool, &target).await?;
        let existing = if rename.no_replace { Existing::Refuse } else { Existing::Replace };
        let change = Change::Rename { parent, name, new_parent, new_name, existing };
        let about = format!("{} to {}", source.shown(), target.shown());
        pool.change(change).await.map(drop).about(about)
    }
}

async fn destination(pool: &Client, rename: &Rename) -> Result<Target> {
    let target = &rename.target;
    let there = namespace::resolve_if_there(pool, target).await?;
    let is_folder = there.is_some_and(|attr| attr.kind == FileKind::Directory);
    match rename.source.name() {
        Some(name) if is_folder || rename.into_folder => target.join(name).about(target.shown()),
        _ => Ok(target.clone()),
    }
}

/// The folder that holds the name, and the name.
async fn place(pool: &Client, target: &Target) -> Result<(Ino, String)> {
    let Some((name, parents)) = target.split_last() else {
        return Err(Error::invalid("/", "the root can't be moved", "name something in it"));
    };
    let folder = Target { names: parents.to_vec(), version: None };
    Ok((namespace::resolve_folder(pool, &folder).await?.ino, name.to_owned()))
}
