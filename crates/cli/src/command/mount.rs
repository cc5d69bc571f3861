//! `stdchk mount`: serves the pool as a file system, in the foreground.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use clap::Args;
use stdchk_client::{ClientConfig, Pool, SPOOL_BYTES_MIN, Spool, Waiting};
use stdchk_model::policy::Protocol;
use stdchk_model::{ErrorCode, size};
use stdchk_mount::{Error, MountConfig, Mounted, SpoolConfig};
use stdchk_net::{Repeats, waits};
use stdchk_operations::code_of;

use super::benefactor::terms::NoticeArgument;
use super::role::{RoleArguments, begin, single_thread};
use crate::context::{Context, PATIENCE_TO_MOVE};
use crate::exit::{About, CommandError, Exit, Outcome, exit_of};
use crate::local::{WaitingFiles, mountpoint};
use crate::output;

/// What `mount` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
While the manager doesn't answer it waits, and says so. Ctrl-C, or `fusermount3 -u DIR`, takes the mount off; only the latter leaves a folder that can be
written to and removed. `stdchk up --mount DIR` does this in the background.

Example:
  stdchk mount ~/pool
  stdchk mount ~/pool --protocol clw --spool /local/spool")]
pub struct Arguments {
    /// An empty folder; made if it is missing. Nobody can write to it while the pool isn't mounted there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Let other users in; permissions hold for all of them
    #[arg(long)]
    allow_other: bool,
    /// Refuse everything that would change the pool
    #[arg(long)]
    read_only: bool,
    /// How all files are written here, whatever their folders say: `sw` through memory; `clw` into the spool, pushed after
    /// close(); `iw` through temporary files in the spool
    #[arg(long, value_name = "PROTOCOL")]
    protocol: Option<Protocol>,
    /// Where files of folders with `protocol=clw` or `iw` go first; a directory of this mount alone [default: in the data
    /// directory, by the mount point]
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
    /// Most that the spool takes, such as 10GiB [default: half of what is free on its disk]
    #[arg(long, value_name = "SIZE")]
    spool_size: Option<String>,
    /// Wait for ever for a manager that is away, rather than fail after a minute; a signal that ends the program ends the wait
    #[arg(long)]
    hard: bool,
    /// How long calls wait for a manager that is away. A variable for tests, so that it reaches the mount of `up`.
    #[arg(long, hide = true, env = "STDCHK_PATIENCE_MS", value_name = "MS")]
    patience_ms: Option<u64>,
    #[command(flatten)]
    notice: NoticeArgument,
    #[command(flatten)]
    role: RoleArguments,
}

/// Time for which one look at a manager that is away waits, and the pause after it.
const LOOK_PATIENCE: Duration = Duration::from_secs(2);
const MANAGER_PAUSE: Duration = Duration::from_millis(500);

/// Runs the command.
pub fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let directory = mountpoint::real(&arguments.directory)?;
    let about = format!("mount {}", directory.display());
    let told_to_stop = begin(&arguments.role)?;
    mountpoint::make_ready(&directory)?;
    let covered = mountpoint::Covered::open(&directory)?;
    let patience = match arguments.hard {
        true => Duration::MAX,
        false => arguments.patience_ms.map_or(PATIENCE_TO_MOVE, Duration::from_millis),
    };
    let spool = spool(arguments, &directory, context)?;
    if await_manager(context, &told_to_stop)? {
        return Ok(());
    }
    let spool_directory = spool.as_ref().map(|spool| spool.directory.clone());
    let config = MountConfig {
        spool,
        allow_other: arguments.allow_other,
        read_only: arguments.read_only,
        notice: arguments.notice.source()?,
        ..MountConfig::new(
            directory,
            ClientConfig { protocol: arguments.protocol, ..context.client_config(patience)? },
        )
    };
    let mounted = stdchk_mount::mount(config).map(Arc::new).map_err(|error| failed(&about, &error))?;
    drop(covered);
    tracing::info!("the pool is mounted at {}", mounted.mount_point().display());
    for waiting in WaitingFiles::left_alone(&context.home())? {
        tracing::warn!("{waiting}");
    }
    let (watched, told) = (Arc::clone(&mounted), Arc::new(AtomicBool::new(false)));
    let is_told = Arc::clone(&told);
    std::thread::spawn(move || unmount_when_told(&told_to_stop, &is_told, &watched));
    let served = mounted.wait();
    if !told.load(Ordering::Acquire) {
        unmounted_by_hand(mounted.mount_point());
    }
    let ended = served.and(mounted.join());
    spool_directory.iter().for_each(|spool| tell_of_waiting(&mounted, spool));
    ended.map_err(|error| failed(&about, &error))
}

/// Waits until the pool's manager answers, as long as it takes: a mount may be started before the manager's machine. Whether it was told to
/// stop meanwhile.
fn await_manager(context: &Context, told_to_stop: &Receiver<()>) -> Outcome<bool> {
    let runtime = single_thread()?;
    let manager = context.manager_address()?;
    let shown = manager.clone();
    let answer = async {
        let mut missed = Repeats::default();
        loop {
            match Pool::connect(context.client_config(LOOK_PATIENCE)?).await {
                Ok(_) => return Ok(false),
                Err(failure) if failure.code != ErrorCode::Unavailable => {
                    return Err(CommandError::complete(
                        exit_of(code_of(failure.code)),
                        format!("manager {manager}"),
                        failure,
                    ));
                }
                Err(failure) => {
                    if let Some(row) = missed.failed(&failure.message) {
                        tracing::warn!(%manager, seconds = row.seconds, %failure, "the mount waits for the manager");
                    }
                    tokio::time::sleep(MANAGER_PAUSE).await;
                }
            }
            if told_to_stop.try_recv().is_ok() {
                return Ok(true);
            }
        }
    };
    runtime.block_on(waits::on(move || format!("the manager at {shown}, which does not answer"), answer))
}

/// Says what a mount leaves in its spool.
fn tell_of_waiting(mounted: &Mounted, spool: &Path) {
    let Waiting { files, bytes } = Spool::waiting(spool);
    if files > 0 {
        let (files, bytes) = (output::count(files, "file"), size::human(bytes));
        let (spool, point) = (spool.display(), mounted.mount_point().display());
        tracing::warn!(
            "{files} ({bytes}) of this mount not pushed to the pool yet, in {spool}: mount it at {point} with this spool again"
        );
    }
}

/// The spool of a mount that may write.
fn spool(arguments: &Arguments, mount_point: &Path, context: &Context) -> Outcome<Option<SpoolConfig>> {
    if arguments.read_only {
        return Ok(None);
    }
    let bytes_max = arguments.spool_size.as_deref().map(spool_bytes).transpose()?;
    let directory = match &arguments.spool {
        Some(directory) => std::path::absolute(directory).about(directory.display())?,
        None => context.home().spool(mount_point),
    };
    if directory.starts_with(mount_point) {
        let cause = "it lies below the mount point, and would wait for itself";
        return Err(CommandError::usage(directory.display(), cause, "choose a directory on a local disk"));
    }
    let is_asked_for = matches!(arguments.protocol, Some(Protocol::Clw | Protocol::Iw));
    let required = is_asked_for || arguments.spool.is_some() || bytes_max.is_some();
    Ok(Some(SpoolConfig { directory, bytes_max, required }))
}

fn spool_bytes(text: &str) -> Outcome<u64> {
    let bytes = size::parse(text);
    let bytes = bytes.map_err(|error| CommandError::usage(text, error, "such as 10GiB"))?;
    if bytes < SPOOL_BYTES_MIN {
        let least = size::exact(SPOOL_BYTES_MIN);
        return Err(CommandError::usage(text, format_args!("a spool has at least {least}"), "such as 10GiB"));
    }
    Ok(bytes)
}

fn unmount_when_told(told_to_stop: &Receiver<()>, told: &AtomicBool, mounted: &Mounted) {
    if told_to_stop.recv().is_err() {
        return;
    }
    told.store(true, Ordering::Release);
    if let Err(error) = mounted.unmount() {
        tracing::error!("{error}");
    }
}

/// A user has unmounted it, and gets an ordinary folder back.
fn unmounted_by_hand(point: &Path) {
    if let Ok(false) = mountpoint::is_mounted(point)
        && let Err(error) = mountpoint::uncover(point)
    {
        tracing::debug!("the folder below the mount stays as it is: {}", error.message);
    }
}

fn failed(about: &str, error: &Error) -> CommandError {
    let exit = match error {
        Error::Pool(failure) => exit_of(code_of(failure.code)),
        _ => Exit::Other,
    };
    match error {
        Error::System { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            CommandError::new(exit, about, error, "choose an empty folder of your own, such as ~/pool")
        }
        _ => CommandError::complete(exit, about, error),
    }
}
