//! `stdchk manager backup`: a copy of the manager's store while it runs, checked, which takes its folder's place when that is lost.

use std::fs::{self, File};
use std::path::{Path, PathBuf, absolute};
use std::time::Duration;

use clap::Args;
use stdchk_manager::backup::{NewStore, check};
use stdchk_manager::core::Counts;
use stdchk_manager::store::StoreError;
use stdchk_model::duration;
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

The pool keeps all that the backup lists for a while, whatever is removed meanwhile: `stdchk status` says for how long and how much that
is. Without it, files that were removed after the backup can't be read when it is put back. `--release` takes the commit that
`stdchk status` shows; the folder of the backup stays.

Example:
  stdchk manager backup /backup/manager-monday
  stdchk manager backup /backup/manager-monday --keep 30d
  stdchk manager backup --release 1234")]
pub(super) struct Backup {
    /// Folder to be made
    #[arg(value_name = "DIR", required_unless_present = "release")]
    directory: Option<PathBuf>,
    /// How long the pool keeps what the backup lists, while the manager runs; 0: not at all
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = keep)]
    keep: Duration,
    /// Give up the backup of this commit instead of making one: what it alone holds is deleted
    #[arg(long, value_name = "COMMIT", conflicts_with_all = ["directory", "keep"])]
    release: Option<u64>,
}

fn keep(text: &str) -> Result<Duration, String> {
    let ms = if text == "0" { Some(0) } else { duration::parse(text) };
    ms.map(Duration::from_millis).ok_or("a number and a unit is needed: ms, s, min, h or d; or 0".to_owned())
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
    let Some(directory) = &arguments.directory else {
        let Some(commit) = arguments.release else { unreachable!("one of the two is there") };
        context.pool().await?.release_backup(commit).await?;
        return output::line(format_args!("the backup of commit {commit} is given up"));
    };
    let directory = absolute(directory).about(directory.display())?;
    let new = directory.with_added_extension("new");
    [&directory, &new].into_iter().try_for_each(|path| refuse_present(path))?;
    let pool = context.pool_to_move().await?;
    let backup = pool.begin_backup(arguments.keep).await?;
    let commit = backup.commit();
    let made = make(backup, &new, &directory).await;
    if made.is_err() && !arguments.keep.is_zero() {
        // Nobody can return to it.
        if let Err(error) = pool.release_backup(commit).await {
            output::note(format_args!(
                "the backup of commit {commit} that failed may be registered still: {error}"
            ));
        }
    }
    let Counts { inodes, versions, .. } = made?;
    output::line(format_args!(
        "{}: the manager's store after commit {commit}, with {inodes} files and folders and {versions} versions; read back and intact",
        output::shown(&directory.display().to_string())
    ))?;
    if arguments.keep.is_zero() {
        output::note(
            "the pool doesn't keep what the backup lists: what is removed from now on can't be read after it was put back",
        );
    }
    Ok(())
}

/// Makes the folder of a backup, under the name `new` until it is whole.
async fn make(mut backup: stdchk_operations::Backup, new: &Path, directory: &Path) -> Outcome<Counts> {
    let (pool, commit) = (backup.pool(), backup.commit());
    let mut begun = Begun(None);
    fs::create_dir(new).about(new.display())?;
    begun.0 = Some(new.to_owned());
    let mut folder = DataDir::open(new, Role::Manager).map_err(folder_failed)?;
    let mut store = NewStore::begin(new).map_err(store_failed)?;
    while let Some(bytes) = backup.next().await? {
        store = blocking(move || store.take(&bytes).map(|()| store)).await?;
    }
    blocking(move || store.finish(commit)).await?;
    folder.claim(pool, None).map_err(folder_failed)?;
    drop(folder);
    let read_back = new.to_owned();
    let counts = blocking(move || check(&read_back, pool)).await?;
    give_name(new, directory)?;
    begun.0 = None;
    Ok(counts)
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
