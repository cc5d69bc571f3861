//! `stdchk manager`: runs a manager in the foreground, as a service or by `stdchk up`, and keeps its store from being lost.

mod backup;
mod journals;
pub mod recover;

use std::path::{PathBuf, absolute};

use clap::{Args, Subcommand};
use stdchk_manager::ManagerError;
use stdchk_manager::core::Timing;
use stdchk_manager::etcd::{Login, Place};
use stdchk_manager::store::StoreError;
use stdchk_net::DataDirError;

use super::role::{RoleArguments, serve, single_thread, socket_in};
use super::user;
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::settings::check_address;

/// What `manager` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  stdchk manager run /srv/stdchk/manager --listen a.example.org:7400
  stdchk manager backup /backup/manager-monday
  stdchk manager recover")]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Run a manager, in the foreground
    Run(Run),
    /// Copy the manager's store while it runs, or give a copy up
    Backup(backup::Backup),
    /// Make a manager's store anew that is lost, from what benefactors keep of it
    Recover(recover::Recover),
}

#[derive(Args, Debug)]
#[command(after_help = "\
With `--store etcd://...` several managers share the pool's state. One leads and serves; the others stand by, and one of them leads within
ten seconds of the end of the first. Clients and benefactors are told the addresses of all: `--manager a:7400,b:7400`.

The folder is made and marked at the first start; one with foreign files is refused. A manager that serves at an address
of the network has the pool's authority in its folder: `stdchk pool token --folder DIR` gives tokens to hosts that join.
Logs go to standard error, filtered by STDCHK_LOG (info, debug, ...).

Example:
  stdchk manager run /srv/stdchk/manager --listen unix:/srv/stdchk/socket --listen a.example.org:7400
  stdchk manager run /srv/stdchk/manager --listen a.example.org:7400 --store etcd://e1:2379,e2:2379,e3:2379/stdchk")]
struct Run {
    /// The manager's data folder
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Keep the pool's state in etcd, so that several managers stand by for each other: etcd://HOST:PORT[,...]/PREFIX, or etcds:// with TLS
    /// [default: in DIR]
    #[arg(long, value_name = "PLACE")]
    store: Option<Place>,
    /// Name and password for etcd; where others may see command lines, set the variable instead
    #[arg(long, env = "STDCHK_STORE_LOGIN", hide_env_values = true, value_name = "NAME:PASSWORD")]
    store_login: Option<Login>,
    /// Where to serve, unix:PATH or HOST:PORT; may be given several times [default: a socket in DIR]
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,
    #[command(flatten)]
    timing: TimingArguments,
    #[command(flatten)]
    role: RoleArguments,
}

/// How long silence may last. The defaults suit pools; tests of what follows silence can't wait for them. Variables,
/// so that they reach the manager that `up` starts.
#[derive(Args, Debug)]
struct TimingArguments {
    #[arg(long, hide = true, env = "STDCHK_CLIENT_LEASE_MS", value_name = "MS")]
    client_lease_ms: Option<u64>,
    #[arg(long, hide = true, env = "STDCHK_BENEFACTOR_LEASE_MS", value_name = "MS")]
    benefactor_lease_ms: Option<u64>,
    #[arg(long, hide = true, env = "STDCHK_BENEFACTOR_LOST_MS", value_name = "MS")]
    benefactor_lost_ms: Option<u64>,
    #[arg(long, hide = true, env = "STDCHK_GARBAGE_AGE_MS", value_name = "MS")]
    garbage_age_ms: Option<u64>,
}

impl TimingArguments {
    fn timing(&self) -> Timing {
        let usual = Timing::default();
        Timing {
            client_lease_ms: self.client_lease_ms.unwrap_or(usual.client_lease_ms),
            benefactor_lease_ms: self.benefactor_lease_ms.unwrap_or(usual.benefactor_lease_ms),
            benefactor_lost_ms: self.benefactor_lost_ms.unwrap_or(usual.benefactor_lost_ms),
            garbage_age_ms: self.garbage_age_ms.unwrap_or(usual.garbage_age_ms),
            ..usual
        }
    }
}

fn exit_of(error: &ManagerError) -> Exit {
    match error {
        ManagerError::Store(StoreError::Damaged { .. }) => Exit::Integrity,
        _ => Exit::Other,
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, context: &Context) -> Outcome {
    match &arguments.action {
        Action::Run(run) => run_here(run),
        Action::Recover(recover) => recover::run(recover, context),
        Action::Backup(backup) => user("manager backup", backup::run(backup, context)),
    }
}

fn run_here(arguments: &Run) -> Outcome {
    arguments.listen.iter().try_for_each(|address| check_address("--listen", address))?;
    let directory = absolute(&arguments.directory).about(arguments.directory.display())?;
    let config = stdchk_manager::Config::new(&directory, socket_in(&directory));
    let listen = if arguments.listen.is_empty() { config.listen } else { arguments.listen.clone() };
    let (store, store_login) = (arguments.store.clone(), arguments.store_login.clone());
    let config =
        stdchk_manager::Config { listen, store, store_login, timing: arguments.timing.timing(), ..config };
    serve(&arguments.role, &single_thread()?, |stop| async move {
        let ended = stdchk_manager::run(config, stop).await;
        ended.map_err(|error| CommandError::complete(exit_of(&error), "manager", error))
    })
}

/// The error of a store that this command makes.
fn store_failed(error: StoreError) -> CommandError {
    let error = ManagerError::from(error);
    CommandError::plain(exit_of(&error), error)
}

fn folder_failed(error: DataDirError) -> CommandError {
    CommandError::plain(Exit::Other, error)
}
