//! `stdchk down`: the pool's processes end in order, and nothing of them is left behind.
//!
//! The mount goes first, so that its sessions end while the pool still runs; then the benefactors, then the manager.
//! An `up` that is at work, and perhaps waits for a manager elsewhere, ends first. Content stays where it is: `stdchk up` brings the pool back. Files that wait in the spools of mounts are told of.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use rustix::process::Signal;
use serde::Serialize;

use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::local::start::running;
use crate::local::{Home, PoolRecord, ProcessRecord, Role, WaitingFiles, mountpoint};
use crate::output;

/// Time that the manager or a benefactor gets to end by itself: what it acknowledged is durable already.
const END_PATIENCE: Duration = Duration::from_secs(15);
/// Time that the mount gets: it waits for requests under way and commits what is open.
const MOUNT_END_PATIENCE: Duration = Duration::from_secs(75);
/// Time in which a killed process is gone.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// What `down` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Content stays: `stdchk up` brings the pool back with all that was committed. Files that wait in the spool of a mount are
told of, with where the pool has to be mounted again for them.

Example:
  stdchk down
  stdchk down --data /scratch/pool
  stdchk down --remove-mountpoint")]
pub struct Arguments {
    /// Remove the folder on which the pool was mounted, too. Else it stays, and nobody can write to it: a job that goes on
    /// gets an error, and leaves no checkpoint in an ordinary folder
    #[arg(long)]
    remove_mountpoint: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    data: PathBuf,
    /// Processes that ran and were stopped.
    stopped: usize,
    /// The folder on which the pool was mounted, if it is still there.
    mount_point: Option<PathBuf>,
    waiting: Vec<WaitingFiles>,
}

/// Runs the command.
pub fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let home = context.home_to_run()?;
    let record = home.record_required()?;
    home.prepare(record.mount.as_deref())?;
    let wish = home.wish_down()?;
    let _lock = home.lock()?;
    drop(wish);
    let stopped = stop_all(&home, &record)?;
    if let Some(mount) = &record.mount
        && arguments.remove_mountpoint
    {
        mountpoint::remove(mount)?;
    }
    let mount_point = record.mount.filter(|mount| mount.exists());
    let (data, waiting) = (home.path().to_owned(), WaitingFiles::of(&home)?);
    let report = Report { data, stopped, mount_point, waiting };
    if arguments.json {
        return output::json(&report);
    }
    for waiting in &report.waiting {
        output::note(format_args!("stdchk down: {}", waiting.told("stdchk up --mount")));
    }
    if context.settings.quiet {
        return Ok(());
    }
    let data = report.data.display();
    match stopped {
        0 => output::line(format_args!("pool {data} was not running"))?,
        _ => {
            output::line(format_args!(
                "pool {data} is down: {stopped} processes stopped; its content stays"
            ))?;
        }
    }
    match &report.mount_point {
        None => Ok(()),
        Some(point) => output::line(format_args!(
            "nobody can write to {} until the pool is mounted there again; `stdchk down --remove-mountpoint` removes it",
            point.display()
        )),
    }
}

/// Stops the processes of a pool in order; how many ran.
pub fn stop_all(home: &Home, record: &PoolRecord) -> Outcome<usize> {
    let benefactors: Vec<Role> = (0..record.benefactors).map(Role::Benefactor).collect();
    let mut count = 0;
    if let Some(mount) = &record.mount {
        count += stop(home, &[Role::Mount])?;
        unmount(mount)?;
    }
    count += stop(home, &benefactors)?;
    count += stop(home, &[Role::Manager])?;
    Ok(count)
}

/// Stops processes that may end at the same time; how many ran.
fn stop(home: &Home, roles: &[Role]) -> Outcome<usize> {
    let mut processes = Vec::new();
    for role in roles {
        if let Some(process) = running(home, *role)? {
            process.signal(signal(*role))?;
            processes.push((*role, process));
        }
    }
    for (role, process) in &processes {
        let patience = if *role == Role::Mount { MOUNT_END_PATIENCE } else { END_PATIENCE };
        if !process.wait_for_end(patience) {
            kill(*role, process, patience)?;
        }
    }
    for role in roles {
        remove(&home.run_file(*role))?;
    }
    Ok(processes.len())
}

/// How a role is told to end. SIGTERM would give a benefactor the grace of its owner, as if the machine went.
fn signal(role: Role) -> Signal {
    if matches!(role, Role::Benefactor(_)) { Signal::INT } else { Signal::TERM }
}

fn kill(role: Role, process: &ProcessRecord, patience: Duration) -> Outcome {
    let name = role.name();
    let seconds = patience.as_secs();
    output::note(format_args!(
        "stdchk down: {name} (process {}) did not end in {seconds} s: killed",
        process.pid
    ));
    process.signal(Signal::KILL)?;
    match process.wait_for_end(KILL_PATIENCE) {
        true => Ok(()),
        false => Err(CommandError::new(
            Exit::Other,
            format_args!("{name} (process {})", process.pid),
            "it does not end even when killed: it waits for a disk or a mount",
            "look at that disk; `stdchk down` again once it answers",
        )),
    }
}

/// Takes off what the mount's process left, perhaps because it was killed.
fn unmount(mount: &Path) -> Outcome {
    match mountpoint::is_mounted(mount)? {
        true => mountpoint::detach(mount),
        false => Ok(()),
    }
}

fn remove(run_file: &Path) -> Outcome {
    match std::fs::remove_file(run_file) {
        // On a disk that turned read-only it stays, and names a process that has ended.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ReadOnlyFilesystem) => Ok(()),
        removed => removed.about(run_file.display()),
    }
}
