//! `stdchk manager backup`: a copy of the manager's store while it runs, checked, which takes its folder's place when that is lost.

use std::fs::{self, File};
use std::path::{Path, PathBuf, absolute};

use clap::Args;
use stdchk_manager::backup::{NewStore, check};
use stdchk_manager::core::Counts;
use stdchk_manager::store::StoreError;
use stdchk_model::message::handshake::Role;
use stdchk_net::{DataDir, elsewhere};

use super::{folder_failed, store_failed};
use crate::context::Context;
use crate::exit::{About, CommandError, Outcome, task_failed};
use crate::output;

/// What `manager backup` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
The manager goes on meanwhile. The backup holds all that was committed before it began; it is read back before the folder
gets its name. To go back to it: `stdchk down`, put the folder in the place of DATA/manager, `stdchk up`. In a pool of
several machines, put the folder `authority` of the manager's folder into it.

Example:
  stdchk manager backup /backup/manager-monday")]
pub(super) struct Backup {
    /// Folder to be made
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// A folder that is removed unless it gets its name.
pub(super) struct Begun(pub(super) Option<PathBuf>);

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            drop(fs::remove_dir_all(path));
        }
    }
}

/// Runs the command.
pub(super) async fn run(arguments: &Backup, context: &Context) -> Outcome {
    let directory = absolute(&arguments.directory).about(arguments.directory.display())?;
    let new = directory.with_added_extension("new");
    [&directory, &new].into_iter().try_for_each(|path| refuse_present(path))?;
    let mut begun = Begun(None);
    let mut backup = context.pool_to_move().await?.begin_backup().await?;
    let (pool, commit) = (backup.pool(), backup.commit());
    fs::create_dir(&new).about(new.display())?;
    begun.0 = Some(new.clone());
    let mut folder = DataDir::open(&new, Role::Manager).map_err(folder_failed)?;
    let mut store = NewStore::begin(&new).map_err(store_failed)?;
    while let Some(bytes) = backup.next().await? {
        store = blocking(move || store.take(&bytes).map(|()| store)).await?;
    }
    blocking(move || store.finish(commit)).await?;
    folder.claim(pool, None).map_err(folder_failed)?;
    drop(folder);
    let read_back = new.clone();
    let Counts { inodes, versions, .. } = blocking(move || check(&read_back, pool)).await?;
    give_name(&new, &directory)?;
    begun.0 = None;
    output::line(format_args!(
        "{}: the manager's store after commit {commit}, with {inodes} files and folders and {versions} versions; read back and intact",
        output::shown(&directory.display().to_string())
    ))
}

fn refuse_present(path: &Path) -> Outcome {
    match fs::symlink_metadata(path) {
        Ok(_) => {
            let next = "name a folder that isn't there; one that ends in `.new` was left by an earlier try and may be removed";
            Err(CommandError::usage(path.display(), "it is there already", next))
        }
        Err(_) => Ok(()),
    }
}

/// Durable on return.
pub(super) fn give_name(new: &Path, directory: &Path) -> Outcome {
    let synced = |path: &Path| File::open(path).and_then(|folder| folder.sync_all()).about(path.display());
    synced(new)?;
    fs::rename(new, directory).about(directory.display())?;
    directory.parent().map_or(Ok(()), synced)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Outcome<T> {
    elsewhere(work).await.map_err(|error| task_failed(&error))?.map_err(store_failed)
}
