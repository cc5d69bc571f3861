//! `stdchk mount`: serves the pool as a file system, in the foreground.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use clap::Args;
use stdchk_mount::{Error, MountConfig, Mounted};

use super::role::{RoleArguments, begin};
use crate::context::{Context, PATIENCE_TO_MOVE};
use crate::exit::{CommandError, Exit, Outcome, exit_of};
use crate::local::mountpoint;

/// What `mount` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
The pool must be up. Ctrl-C, or `fusermount3 -u DIR`, takes the mount off. `stdchk up --mount DIR` does this in the
background.

Example:
  stdchk mount ~/pool")]
pub struct Arguments {
    /// An empty folder; made if it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Let other users in; permissions hold for all of them
    #[arg(long)]
    allow_other: bool,
    /// Refuse everything that would change the pool
    #[arg(long)]
    read_only: bool,
    /// How long calls wait for a manager that is away. A variable for tests, so that it reaches the mount of `up`.
    #[arg(long, hide = true, env = "STDCHK_PATIENCE_MS", value_name = "MS")]
    patience_ms: Option<u64>,
    #[command(flatten)]
    role: RoleArguments,
}

/// Runs the command.
pub fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let directory = mountpoint::real(&arguments.directory)?;
    let about = format!("mount {}", directory.display());
    let told_to_stop = begin(&arguments.role)?;
    mountpoint::make_ready(&directory)?;
    let patience = arguments.patience_ms.map_or(PATIENCE_TO_MOVE, Duration::from_millis);
    let config = MountConfig {
        allow_other: arguments.allow_other,
        read_only: arguments.read_only,
        ..MountConfig::new(directory, context.client_config(patience)?)
    };
    let mounted = stdchk_mount::mount(config).map(Arc::new).map_err(|error| failed(&about, &error))?;
    tracing::info!("the pool is mounted at {}", mounted.mount_point().display());
    let watched = Arc::clone(&mounted);
    std::thread::spawn(move || unmount_when_told(&told_to_stop, &watched));
    mounted.join().map_err(|error| failed(&about, &error))
}

fn unmount_when_told(told_to_stop: &Receiver<()>, mounted: &Mounted) {
    if told_to_stop.recv().is_ok()
        && let Err(error) = mounted.unmount()
    {
        tracing::error!("{error}");
    }
}

fn failed(about: &str, error: &Error) -> CommandError {
    let exit = match error {
        Error::Pool(failure) => exit_of(failure.code),
        _ => Exit::Other,
    };
    match error {
        Error::System { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            CommandError::new(exit, about, error, "choose an empty folder of your own, such as ~/pool")
        }
        _ => CommandError::complete(exit, about, error),
    }
}
