//! `stdchk benefactor`: the disk of this host for a pool. Runs one in the foreground, as a service or by `stdchk up`, or joins a pool
//! of other machines. Its owner pauses and resumes it.

use std::path::{Path, PathBuf, absolute};

use clap::{Args, Subcommand};
use stdchk_benefactor::Config;
use stdchk_model::message::handshake;
use stdchk_net::data_dir;
use stdchk_net::transport::socket_of;

use super::pool::join_as;
use super::role::{RoleArguments, serve, socket_in};
use super::up;
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome, from_io};
use crate::local::{PoolRecord, Role, disk};
use crate::output;
use crate::settings::check_address;

/// Where the benefactor of a manager with an address of the network serves unless told otherwise: on any free port, by the address at
/// which it reaches the manager.
pub const LISTEN_DEFAULT: &str = "[::]:0";

/// What `benefactor` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  stdchk benefactor join a.example.org:7400 --token TOKEN --donate 100GiB
  stdchk benefactor run /disk2/stdchk --donate 100GiB --floor 10GiB
  stdchk benefactor pause /disk2/stdchk")]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Run a benefactor, in the foreground
    Run(Run),
    /// Join a pool of other machines with a token, and start in the background
    Join(Join),
    /// Take nothing new until `resume`; what is stored is still served
    Pause(Paused),
    /// Take new blocks again
    Resume(Paused),
}

#[derive(Args, Debug)]
#[command(after_help = "\
The folder is made and marked at the first start; one with foreign files is refused. The benefactor never takes more
than it was donated, and leaves the floor free on its disk. It joins the pool of --manager, or the local pool.

Example:
  stdchk benefactor run /disk2/stdchk --donate 100GiB --floor 10GiB")]
struct Run {
    /// The benefactor's data folder, on the donated disk
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Most space that it takes, such as 100GiB
    #[arg(long, value_name = "SIZE")]
    donate: String,
    /// Space on the disk that always stays free [default: 5 % of the disk, at least 1 GiB]
    #[arg(long, value_name = "SIZE")]
    floor: Option<String>,
    /// Where to serve, unix:PATH or HOST:PORT [default: as the manager does: at a socket in DIR, or on any port]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    #[command(flatten)]
    role: RoleArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
A benefactor that is paused takes no new blocks and searches for no damage. It serves what it has, and makes copies of
that alone of which nobody else can. It stays paused after restarts, and obeys within a second. Whoever may write into
its folder may pause it. Without DIR: all benefactors of the local pool.

Example:
  stdchk benefactor pause /disk2/stdchk
  stdchk benefactor resume /disk2/stdchk")]
struct Paused {
    /// The benefactor's data folder
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The token comes from `stdchk pool token` at the manager's machine. What the benefactor keeps lies in the directory of
--data. After a reboot, `stdchk up` starts it again.

Example:
  stdchk benefactor join a.example.org:7400 --token TOKEN --donate 100GiB --floor 10GiB")]
struct Join {
    /// Where the pool's manager serves, HOST:PORT
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// What `stdchk pool token` printed; where others may see command lines, set the variable instead
    #[arg(long, env = "STDCHK_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: String,
    /// Most space that it takes, such as 100GiB [default: half of what is free above the floor]
    #[arg(long, value_name = "SIZE")]
    donate: Option<String>,
    /// Space on the disk that always stays free [default: 5 % of the disk, at least 1 GiB]
    #[arg(long, value_name = "SIZE")]
    floor: Option<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments, context: &Context) -> Outcome {
    match &arguments.action {
        Action::Run(run) => run_here(run, context),
        Action::Join(join) => join_pool(join, context),
        Action::Pause(paused) => set_paused(paused, true, context),
        Action::Resume(paused) => set_paused(paused, false, context),
    }
}

fn set_paused(arguments: &Paused, paused: bool, context: &Context) -> Outcome {
    let folders = match &arguments.directory {
        Some(folder) => vec![folder.clone()],
        None => local_benefactors(context)?,
    };
    // First all are looked at, so that a wrong one changes nothing.
    folders.iter().try_for_each(|folder| refuse_other(folder))?;
    for folder in &folders {
        stdchk_benefactor::set_paused(folder, paused).map_err(|error| from_io(&error, folder.display()))?;
    }
    if context.settings.quiet {
        return Ok(());
    }
    folders.iter().try_for_each(|folder| {
        let (folder, now) = (folder.display(), if paused { "paused" } else { "resumed" });
        output::line(format_args!("{now} {folder}"))
    })
}

fn local_benefactors(context: &Context) -> Outcome<Vec<PathBuf>> {
    let (home, record) = (context.home(), context.home().record_required()?);
    let roles = record.roles().into_iter().filter(|role| matches!(role, Role::Benefactor(_)));
    let folders: Vec<PathBuf> = roles.map(|role| home.directory(role)).collect();
    if folders.is_empty() {
        let next = "name the benefactor's folder";
        return Err(CommandError::new(
            Exit::NotFound,
            home.path().display(),
            "no benefactor runs here",
            next,
        ));
    }
    Ok(folders)
}

/// Refuses what is not the folder of a benefactor.
fn refuse_other(folder: &Path) -> Outcome {
    let refuse = |cause: &dyn std::fmt::Display| {
        let next = "name the folder that the benefactor was started with";
        Err(CommandError::new(Exit::NotFound, folder.display(), cause, next))
    };
    match data_dir::benefactor_of(folder) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => refuse(&"no benefactor of a pool has its data here"),
        Err(error) => refuse(&error),
    }
}

fn join_pool(join: &Join, context: &Context) -> Outcome {
    let home = context.home_to_run()?;
    let (donate, floor) = disk::sizes(join.donate.as_deref(), join.floor.as_deref(), home.path(), 1)?;
    let record = PoolRecord { manager: Some(join.address.clone()), ..PoolRecord::new(1, donate, floor) };
    let (home, _lock) = join_as(handshake::Role::Benefactor, &record, &join.token, context)?;
    up::start(&home, &record, context)
}

fn run_here(arguments: &Run, context: &Context) -> Outcome {
    let floor_bytes = match &arguments.floor {
        Some(floor) => disk::floor(floor, &arguments.directory)?,
        None => disk::Disk::of(&arguments.directory)?.floor_default(),
    };
    let donated_bytes = disk::donation(&arguments.donate)?;
    let directory = absolute(&arguments.directory).about(arguments.directory.display())?;
    // Of a pool of several machines it serves all of them, also where the manager is on this one.
    let on_network = match &context.settings.manager {
        Some(_) => None,
        None => context.home().record_required()?.on_network().cloned(),
    };
    let manager = on_network.map_or_else(|| context.manager_address(), Ok)?;
    let listen = match (&arguments.listen, socket_of(&manager)) {
        (Some(listen), _) => listen.clone(),
        (None, Some(_)) => socket_in(&directory),
        (None, None) => LISTEN_DEFAULT.to_owned(),
    };
    check_address("--listen", &listen)?;
    let config = Config::new(directory, manager, listen, donated_bytes);
    let config = Config { keys: context.keys()?, floor_bytes, ..config };
    serve(&arguments.role, &super::runtime()?, |stop| async move {
        let ended = stdchk_benefactor::run(config, stop).await;
        ended.map_err(|error| CommandError::complete(Exit::Other, "benefactor", error))
    })
}
