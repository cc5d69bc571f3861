//! `stdchk benefactor`: the disk of this host for a pool. Runs one in the foreground, as a service or by `stdchk up`, or joins a pool
//! of other machines. Its owner pauses it, drains it, takes it out of the pool, and resumes it ([`owner`]).

mod owner;
pub mod serving;
pub mod terms;

use std::path::{PathBuf, absolute};

use clap::{Args, Subcommand};
use stdchk_benefactor::Config;
use stdchk_model::message::benefactor::OwnerWish;
use stdchk_model::message::handshake;
use stdchk_net::transport::socket_of;

use self::serving::{ServingArguments, check_advertised};
use self::terms::{Terms, TermsArguments};
use super::pool::join_as;
use super::role::{RoleArguments, serve_warned, socket_in};
use super::up;
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::local::{PoolRecord, disk};
use crate::settings::check_address;

/// Where the benefactor of a manager with an address of the network serves unless told otherwise: on any free port, by the address at
/// which it reaches the manager.
const LISTEN_DEFAULT: &str = "[::]:0";

/// What `benefactor` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  stdchk benefactor join a.example.org:7400 --token TOKEN --donate 100GiB
  stdchk benefactor run /disk2/stdchk --donate 100GiB --floor 10GiB --io-limit 50MiB --hours 18:00-08:00
  stdchk benefactor pause /disk2/stdchk
  stdchk benefactor leave /disk2/stdchk --wait")]
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
    Pause(owner::Pause),
    /// Give back what is stored: copies elsewhere first, then it goes; nothing new until `resume`
    #[command(after_help = owner::DRAIN_HELP)]
    Drain(owner::Drain),
    /// Drain, then leave the pool and end
    #[command(after_help = owner::LEAVE_HELP)]
    Leave(owner::Drain),
    /// Take new blocks again, after `pause`, `drain` or `leave`
    Resume(owner::Pause),
}

#[derive(Args, Debug)]
#[command(after_help = "\
The folder is made and marked at the first start; one with foreign files is refused. The benefactor never takes more
than it was donated, and leaves the floor free on its disk. It joins the pool of --manager, or the local pool.

Example:
  stdchk benefactor run /disk2/stdchk --donate 100GiB --floor 10GiB --label rack=3 --label site=b")]
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
    /// Where others reach it, HOST:PORT, if that is not where it serves: behind a gateway that passes the port on
    #[arg(long, value_name = "ADDRESS", requires = "listen")]
    advertise: Option<String>,
    /// What benefactors share, such as rack=3 or site=b, several times; held until others are given
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    #[command(flatten)]
    terms: TermsArguments,
    #[command(flatten)]
    role: RoleArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The token comes from `stdchk pool token` at the manager's machine. What the benefactor keeps lies in the directory of
--data. After a reboot, `stdchk up` starts it again. A host whose keys are accepted no more joins again after `stdchk down`,
once `keys/key.pem` in --data is removed: what was set before stays unless it is given anew.

Example:
  stdchk benefactor join a.example.org:7400 --token TOKEN --donate 100GiB --floor 10GiB
  stdchk benefactor join a.example.org:7400 --token TOKEN --listen 0.0.0.0:7401 --advertise gate.example.org:7401")]
struct Join {
    /// Where the pool's manager serves, HOST:PORT, or where several do, with commas in between
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
    #[command(flatten)]
    serving: ServingArguments,
    #[command(flatten)]
    terms: TermsArguments,
    /// What benefactors share, such as rack=3 or site=b, several times; held until others are given
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

/// Reads a label.
pub fn label(text: &str) -> Result<(String, String), String> {
    stdchk_model::labels::parse(text).map_err(|failure| failure.to_string())
}

/// Refuses labels that don't fit together.
fn check_labels(labels: &[(String, String)]) -> Outcome {
    stdchk_model::labels::check(labels).map_err(|failure| {
        CommandError::usage("--label", failure, "`stdchk help benefactor run` has an example")
    })
}

/// The labels that hold once these are given: in place of those before, unless none is.
///
/// # Errors
/// They don't fit together.
pub fn labels_over(given: &[(String, String)], before: &[String]) -> Outcome<Vec<String>> {
    check_labels(given)?;
    let labels = given.iter().map(|(name, value)| format!("{name}={value}"));
    Ok(if given.is_empty() { before.to_vec() } else { labels.collect() })
}

/// Runs the command.
pub fn run(arguments: &Arguments, context: &Context) -> Outcome {
    match &arguments.action {
        Action::Run(run) => run_here(run, context),
        Action::Join(join) => join_pool(join, context),
        Action::Pause(pause) => owner::decide(pause, OwnerWish::Pause, context),
        Action::Drain(drain) => super::runtime()?.block_on(owner::drain(drain, OwnerWish::Drain, context)),
        Action::Leave(drain) => super::runtime()?.block_on(owner::drain(drain, OwnerWish::Leave, context)),
        Action::Resume(pause) => owner::decide(pause, OwnerWish::Serve, context),
    }
}

fn join_pool(join: &Join, context: &Context) -> Outcome {
    let way = (join.address.as_str(), join.token.as_str());
    let (home, _lock, record) = join_as(handshake::Role::Benefactor, way, context, |home, before| {
        let given = (join.donate.as_deref(), join.floor.as_deref());
        let (donate_bytes, floor_bytes) = match &before {
            Some(before) => disk::sizes_over(
                given,
                (before.donate_bytes, before.floor_bytes),
                home.path(),
                before.benefactors,
            )?,
            None => disk::sizes(given.0, given.1, home.path(), 1)?,
        };
        let before = before.unwrap_or_else(|| PoolRecord::new(1, donate_bytes, floor_bytes));
        Ok(PoolRecord {
            donate_bytes,
            floor_bytes,
            labels: labels_over(&join.labels, &before.labels)?,
            terms: join.terms.over(&before.terms)?,
            serving: join.serving.over(&before.serving, before.benefactors)?,
            ..before
        })
    })?;
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
    if let Some(advertise) = &arguments.advertise {
        check_address("--advertise", advertise)?;
        check_advertised(advertise, true)?;
    }
    let config = Config::new(directory, manager, listen, donated_bytes);
    check_labels(&arguments.labels)?;
    let labels = arguments.labels.clone();
    let advertise = arguments.advertise.clone();
    let config = Config { keys: context.keys()?, advertise, floor_bytes, labels, ..config };
    let config = arguments.terms.over(&Terms::default())?.applied_to(config)?;
    serve_warned(&arguments.role, &super::runtime()?, |warned, stop| async move {
        let ended = stdchk_benefactor::run_warned(config, warned, stop).await;
        ended.map_err(|error| CommandError::complete(Exit::Other, "benefactor", error))
    })
}
