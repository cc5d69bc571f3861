//! `stdchk agent`: holds the memory that jobs put their checkpoints into, and stores these while the jobs go on.
//!
//! ```text
//! trainer ── copies its state ──▶ region (shared memory of the agent) ── pieces ──▶ a file of the pool
//! ```
//!
//! A trainer connects to a Unix socket, gets a region, fills it and says which pieces of it make which file. From then on the agent
//! alone is needed: it stores and commits the file though the trainer is killed. Loading asks for what a region still holds.

mod connection;
mod protocol;
mod region;
mod regions;
mod serve;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use rustix::stdio::dup2_stderr;
use stdchk_model::duration;
use stdchk_net::own::Folder;

use self::protocol::{Answer, Request, Status};
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::signals::Hangup;
use crate::{logging, output};

/// The command line of `agent`.
#[derive(Args, Debug)]
#[command(after_help = "\
`stdchk.torch` starts the agent of its host by itself, one for each user and pool. It ends when no job has been connected for the
time of `--keep` and all is stored; until then the last checkpoints stay in memory, so that a job that starts again loads them from there.
SIGTERM lets it store what it was given and then ends it; a second signal ends it at once, and what isn't stored is lost.

Example:
  stdchk agent                 in the foreground, at the usual socket
  stdchk agent status          what it holds, stores, and has failed to store
  stdchk agent stop            ends once all is stored")]
pub struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    /// The socket that it serves [default: one of this user and pool below $XDG_RUNTIME_DIR or /tmp]
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// How long it stays with nobody connected
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = time)]
    keep: Duration,
    /// Where its messages go [default: standard error]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Show what the agent holds and stores
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Let the agent store what it was given, and end
    Stop,
}

fn time(text: &str) -> Result<Duration, String> {
    duration::parse(text)
        .map(Duration::from_millis)
        .ok_or_else(|| "give a time such as 10min or 2h".to_owned())
}

/// Runs the command.
pub fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let socket = match &arguments.socket {
        Some(socket) => socket.clone(),
        None => context.settings.agent_socket()?,
    };
    match arguments.action {
        Some(Action::Status { json }) => status(&socket, json),
        Some(Action::Stop) => stop(&socket),
        None => start(arguments, context, &socket),
    }
}

fn start(arguments: &Arguments, context: &Context, socket: &Path) -> Outcome {
    let folder = socket.parent().unwrap_or_else(|| Path::new("/"));
    let folder = Folder::make(folder).about(folder.display())?;
    logging::start();
    if let Some(log) = &arguments.log {
        let file = logging::open(log).about(log.display())?;
        dup2_stderr(&file).about(log.display())?;
        logging::keep(log.clone()).about(log.display())?;
    }
    let options = context.settings.options()?;
    let runtime = super::runtime()?;
    // In the background SIGHUP has the log opened anew.
    let hangup = if arguments.log.is_some() { Hangup::IsForTheLog } else { Hangup::Ends };
    let config = serve::Config { options, keep: arguments.keep, socket: socket.to_owned(), folder, hangup };
    runtime.block_on(serve::serve(config))
}

/// One request to the agent, and its answer.
fn ask(socket: &Path, request: &Request) -> Outcome<Answer> {
    let away = |error| {
        let next = "a job that uses `stdchk.torch` starts one, or run `stdchk agent`";
        CommandError::new(
            Exit::Unreachable,
            socket.display(),
            format_args!("no agent answers: {error}"),
            next,
        )
    };
    let mut stream = UnixStream::connect(socket).map_err(away)?;
    // In a folder of all users somebody else could have been faster.
    let theirs = rustix::net::sockopt::socket_peercred(&stream).about(socket.display())?.uid;
    if theirs != rustix::process::geteuid() {
        let next = "end that process, or give a socket of your own with `--socket`";
        let cause = format_args!("user {} serves there", theirs.as_raw());
        return Err(CommandError::new(Exit::Other, socket.display(), cause, next));
    }
    let mut line = serde_json::to_string(request).map_err(std::io::Error::from).about("a request")?;
    line.push('\n');
    stream.write_all(line.as_bytes()).about(socket.display())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).about(socket.display())?;
    serde_json::from_str(&answer).map_err(std::io::Error::from).about(socket.display())
}

fn stop(socket: &Path) -> Outcome {
    match ask(socket, &Request::Stop {})? {
        Answer::Done {} => output::line("the agent ends once all that it was given is stored"),
        answer => Err(unexpected(socket, &answer)),
    }
}

fn status(socket: &Path, json: bool) -> Outcome {
    let status = match ask(socket, &Request::Status {})? {
        Answer::Status(status) => status,
        answer => return Err(unexpected(socket, &answer)),
    };
    if json { output::json(&status) } else { print(&status) }
}

fn print(status: &Status) -> Outcome {
    let Status { process, regions, connections, stopping } = status;
    let end = if *stopping { ", ending" } else { "" };
    let count = regions.len();
    output::line(format_args!("agent {process}: {count} regions, {connections} connections{end}"))?;
    let mut table = output::Table::new(&["REGION", ">BYTES", "STATE", "FILE", "CAUSE"]);
    for region in regions {
        let or_none = |text: &Option<String>| text.as_deref().map_or_else(|| "-".to_owned(), output::shown);
        let (file, cause) = (or_none(&region.file), or_none(&region.cause));
        table.row([output::shown(&region.key), region.bytes.to_string(), region.state.clone(), file, cause]);
    }
    table.print()
}

fn unexpected(socket: &Path, answer: &Answer) -> CommandError {
    let next = "end it with `kill`, and start it from this version of stdchk";
    CommandError::new(Exit::Other, socket.display(), format_args!("the agent answered {answer:?}"), next)
}
