//! `stdchk benefactor`: runs a benefactor in the foreground, as a service or by `stdchk up`.

use std::path::{PathBuf, absolute};

use clap::Args;
use stdchk_benefactor::Config;
use stdchk_net::transport::{socket_of, unix_address};

use super::role::{RoleArguments, serve};
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::local::{disk, token};
use crate::settings::check_address;

/// Where the benefactor of a manager with an address of the network serves unless told otherwise: any free port, which it tells the
/// manager.
const LISTEN_DEFAULT: &str = "127.0.0.1:0";
/// Name of its socket in its data folder, where the manager serves at one as well.
const SOCKET: &str = "socket";

/// What `benefactor` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
The folder is made and marked at the first start; one with foreign files is refused. The benefactor never takes more
than it was donated, and leaves the floor free on its disk. It joins the pool of --manager, or the local pool.

Example:
  stdchk benefactor /disk2/stdchk --donate 100GiB --floor 10GiB")]
pub struct Arguments {
    /// The benefactor's data folder, on the donated disk
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Most space that it takes, such as 100GiB
    #[arg(long, value_name = "SIZE")]
    donate: String,
    /// Space on the disk that always stays free [default: 5 % of the disk, at least 1 GiB]
    #[arg(long, value_name = "SIZE")]
    floor: Option<String>,
    /// Where to serve, unix:PATH or HOST:PORT (loopback only) [default: as the manager does: a socket in DIR, or any port]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    #[command(flatten)]
    role: RoleArguments,
}

/// Runs the command.
pub fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let floor_bytes = match &arguments.floor {
        Some(floor) => disk::floor(floor, &arguments.directory)?,
        None => disk::Disk::of(&arguments.directory)?.floor_default(),
    };
    let donated_bytes = disk::donation(&arguments.donate)?;
    let token = token::read(&context.settings.token_file)?;
    let directory = absolute(&arguments.directory).about(arguments.directory.display())?;
    let manager = context.manager_address()?;
    let listen = match (&arguments.listen, socket_of(&manager)) {
        (Some(listen), _) => listen.clone(),
        (None, Some(_)) => unix_address(&directory.join(SOCKET)),
        (None, None) => LISTEN_DEFAULT.to_owned(),
    };
    check_address("--listen", &listen)?;
    let config = Config::new(directory, manager, token, donated_bytes);
    let config = Config { listen, floor_bytes, ..config };
    serve(&arguments.role, &super::runtime()?, |stop| async move {
        let ended = stdchk_benefactor::run(config, stop).await;
        ended.map_err(|error| CommandError::complete(Exit::Other, "benefactor", error))
    })
}
