//! `stdchk manager`: runs a manager in the foreground, as a service or by `stdchk up`.

use std::path::{PathBuf, absolute};

use clap::Args;
use stdchk_manager::ManagerError;
use stdchk_manager::core::Timing;
use stdchk_manager::store::StoreError;

use super::role::{RoleArguments, serve, single_thread, socket_in};
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::settings::check_address;

/// What `manager` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
The folder is made and marked at the first start; one with foreign files is refused. A manager that serves at an address
of the network has the pool's authority in its folder: `stdchk pool token --folder DIR` gives tokens to hosts that join.
Logs go to standard error, filtered by STDCHK_LOG (info, debug, ...).

Example:
  stdchk manager /srv/stdchk/manager --listen unix:/srv/stdchk/socket --listen a.example.org:7400")]
pub struct Arguments {
    /// The manager's data folder
    #[arg(value_name = "DIR")]
    directory: PathBuf,
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
pub fn run(arguments: &Arguments) -> Outcome {
    arguments.listen.iter().try_for_each(|address| check_address("--listen", address))?;
    let directory = absolute(&arguments.directory).about(arguments.directory.display())?;
    let config = stdchk_manager::Config::new(&directory, socket_in(&directory));
    let listen = if arguments.listen.is_empty() { config.listen } else { arguments.listen.clone() };
    let config = stdchk_manager::Config { listen, timing: arguments.timing.timing(), ..config };
    serve(&arguments.role, &single_thread()?, |stop| async move {
        let ended = stdchk_manager::run(config, stop).await;
        ended.map_err(|error| CommandError::complete(exit_of(&error), "manager", error))
    })
}
