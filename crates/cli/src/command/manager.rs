//! `stdchk manager`: runs a manager in the foreground, as a service or by `stdchk up`.

use std::path::PathBuf;

use clap::Args;
use stdchk_manager::ManagerError;
use stdchk_manager::core::Timing;
use stdchk_manager::store::StoreError;

use super::role::{RoleArguments, serve, single_thread};
use crate::context::Context;
use crate::exit::{CommandError, Exit, Outcome};
use crate::local::token;
use crate::settings::check_address;

/// Where a manager serves unless told otherwise.
const LISTEN_DEFAULT: &str = "127.0.0.1:7400";

/// What `manager` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
The folder is made and marked at the first start; one with foreign files is refused. The token file is made if it is
missing: benefactors and clients need a copy. Logs go to standard error, filtered by STDCHK_LOG (info, debug, ...).

Example:
  stdchk manager /srv/stdchk/manager --listen 127.0.0.1:7400 --token-file /srv/stdchk/token")]
pub struct Arguments {
    /// The manager's data folder
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Where to serve, unix:PATH or HOST:PORT (loopback only)
    #[arg(long, default_value = LISTEN_DEFAULT, value_name = "ADDRESS")]
    listen: String,
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
    check_address("--listen", &arguments.listen)?;
    token::make(&context.settings.token_file)?;
    let token = token::read(&context.settings.token_file)?;
    let config = stdchk_manager::Config::new(&arguments.directory, &arguments.listen, token);
    let config = stdchk_manager::Config { timing: arguments.timing.timing(), ..config };
    serve(&arguments.role, &single_thread()?, |stop| async move {
        let ended = stdchk_manager::run(config, stop).await;
        ended.map_err(|error| CommandError::complete(exit_of(&error), "manager", error))
    })
}
