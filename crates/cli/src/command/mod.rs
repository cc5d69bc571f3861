//! The commands, one module each, and how they are run.
//!
//! User commands run as one future that SIGINT and SIGTERM drop; roles stop in order when told to; `up` and `down` need
//! no runtime of their own until they talk to the pool.

pub mod accept_older_store;
pub mod advise;
pub mod agent;
pub mod aggregate;
mod away;
pub mod benefactor;
pub mod completions;
pub mod diff;
pub mod done;
pub mod down;
pub mod du;
pub mod files;
pub mod forget;
pub mod gc;
pub mod get;
pub mod key;
pub mod latest;
pub mod ls;
pub mod manager;
pub mod mkdir;
pub mod mount;
pub mod mv;
pub mod pack;
pub mod placement;
pub mod policy;
pub mod pool;
pub mod put;
pub mod restore;
pub mod rm;
pub mod role;
pub mod run;
pub mod seal;
pub mod stat;
pub mod status;
pub mod unpack;
pub mod up;
pub mod verify;

use std::process::ExitCode;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::arguments::{Command, Line};
use crate::context::Context;
use crate::exit::{About, Outcome};
use crate::settings::{PoolFlags, Settings};
use crate::signals::or_interrupted;

/// Time that tasks get to end once their command has: enough to remove temporary files.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs one command line; the exit code after success.
pub fn run(line: Line) -> Outcome<ExitCode> {
    match line.command {
        // These two need a pool, and so settings, only where they are told of one.
        Command::Run(arguments) => run::run(arguments, &line.pool),
        Command::Files(arguments) => files::run(&arguments, &line.pool).map(|()| ExitCode::SUCCESS),
        command => on_pool(command, &line.pool).map(|()| ExitCode::SUCCESS),
    }
}

fn on_pool(command: Command, flags: &PoolFlags) -> Outcome {
    let context = Context { settings: Settings::load(flags)? };
    let c = &context;
    match command {
        Command::Run(_) | Command::Files(_) => Ok(()),
        Command::Up(arguments) => up::run(&arguments, c),
        Command::Down(arguments) => down::run(&arguments, c),
        Command::Pool(arguments) => pool::run(&arguments, c),
        Command::Manager(arguments) => manager::run(&arguments, c),
        Command::Benefactor(arguments) => benefactor::run(&arguments, c),
        Command::Mount(arguments) => mount::run(&arguments, c),
        Command::Agent(arguments) => agent::run(&arguments, c),
        Command::Pack(arguments) => to_the_end(pack::run(arguments, c)),
        Command::Unpack(arguments) => to_the_end(unpack::run(arguments, c)),
        Command::Aggregate(arguments) => to_the_end(aggregate::run(arguments, c)),
        Command::Put(arguments) => to_the_end(put::run(arguments, c)),
        Command::Status(arguments) => user("status", status::run(&arguments, c)),
        Command::Get(arguments) => user("get", get::run(&arguments, c)),
        Command::Ls(arguments) => user("ls", ls::run(&arguments, c)),
        Command::Stat(arguments) => user("stat", stat::run(&arguments, c)),
        Command::Rm(arguments) => user("rm", rm::run(&arguments, c)),
        Command::Mv(arguments) => user("mv", mv::run(&arguments, c)),
        Command::Mkdir(arguments) => user("mkdir", mkdir::run(&arguments, c)),
        Command::Du(arguments) => user("du", du::run(&arguments, c)),
        Command::Diff(arguments) => user("diff", diff::run(&arguments, c)),
        Command::Latest(arguments) => user("latest", latest::run(&arguments, c)),
        Command::Restore(arguments) => user("restore", restore::run(&arguments, c)),
        Command::Policy(arguments) => user("policy", policy::run(&arguments, c)),
        Command::Placement(arguments) => user("placement", placement::run(&arguments, c)),
        Command::Advise(arguments) => user("advise", advise::run(&arguments, c)),
        Command::Key(arguments) => user("key", key::run(&arguments, c)),
        Command::Seal(arguments) => user("seal", seal::run(&arguments, c)),
        Command::Done(arguments) => user("done", done::run(&arguments, c)),
        Command::Verify(arguments) => user("verify", verify::run(&arguments, c)),
        Command::Forget(arguments) => user("forget", forget::run(&arguments, c)),
        Command::AcceptOlderStore(arguments) => {
            user("accept-older-store", accept_older_store::run(&arguments, c))
        }
        Command::Gc(arguments) => user("gc", gc::run(&arguments, c)),
        Command::Completions(arguments) => completions::run(&arguments),
    }
}

/// A runtime of this process.
pub fn runtime() -> Outcome<Runtime> {
    Builder::new_multi_thread().enable_all().build().about("threads")
}

/// Runs a user's command until it ends or is interrupted.
fn user(what: &str, work: impl Future<Output = Outcome>) -> Outcome {
    to_the_end(or_interrupted(what, work))
}

/// Runs a command that sees to interruptions itself.
fn to_the_end(work: impl Future<Output = Outcome>) -> Outcome {
    let runtime = runtime()?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_timeout(END_TIMEOUT);
    outcome
}
