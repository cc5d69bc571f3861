//! What the three role processes have in common: they log, belong to a local pool or not, and end in order when told to.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stdchk_net::transport::unix_address;
use stdchk_net::waits;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use crate::exit::{About, Outcome, task_failed};
use crate::local::{Home, ProcessRecord};
use crate::signals::Hangup;
use crate::{logging, signals};

/// How `up` starts roles.
#[derive(Args, Debug)]
pub struct RoleArguments {
    /// Run in a session of its own and be recorded in this file
    #[arg(long, hide = true, value_name = "FILE")]
    run_file: Option<PathBuf>,
    /// How long a wait is that is said. A variable for tests, so that it reaches the roles of `up`.
    #[arg(long, hide = true, env = "STDCHK_LONG_WAIT_MS", value_name = "MS")]
    long_wait_ms: Option<u64>,
}

impl RoleArguments {
    /// The meaning of SIGHUP to the role.
    fn hangup(&self) -> Hangup {
        if self.run_file.is_some() { Hangup::IsForTheLog } else { Hangup::Ends }
    }
}

/// Where a role serves that is started by hand and told nothing else: at a socket in its folder.
pub fn socket_in(directory: &Path) -> String {
    unix_address(&directory.join("socket"))
}

/// Ready when the process is told to stop.
pub type Stop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs a role on a runtime until it ends or is told to stop.
pub fn serve<F: Future<Output = Outcome> + Send + 'static>(
    arguments: &RoleArguments,
    runtime: &Runtime,
    role: impl FnOnce(Stop) -> F,
) -> Outcome {
    prepare(arguments)?;
    run(runtime, role(Box::pin(told_to_stop(arguments.hangup()))))
}

/// Runs a role as [`serve`] does, that is warned by the first SIGTERM and told to stop by the next one, or by SIGINT.
pub fn serve_warned<F: Future<Output = Outcome> + Send + 'static>(
    arguments: &RoleArguments,
    runtime: &Runtime,
    role: impl FnOnce(Stop, Stop) -> F,
) -> Outcome {
    prepare(arguments)?;
    let (warn, is_warned) = oneshot::channel();
    let warned = async {
        // Who is told to stop without a warning never hears of one.
        if is_warned.await.is_err() {
            std::future::pending().await
        }
    };
    let hangup = arguments.hangup();
    let stop = async move {
        let warn = || {
            tracing::info!("SIGTERM: going");
            // Nobody listens once the role has ended by itself.
            let _ = warn.send(());
        };
        say_stopping(signals::stop_after_warning(hangup, warn).await);
    };
    run(runtime, role(Box::pin(warned), Box::pin(stop)))
}

/// As a task: what `block_on` itself waits for takes a call of the system each time that it is woken.
fn run(runtime: &Runtime, role: impl Future<Output = Outcome> + Send + 'static) -> Outcome {
    let role = runtime.spawn(role);
    runtime.block_on(role).map_err(|error| task_failed(&error))?
}

/// A runtime with one thread, for a role whose work is handed over so often that a second one would cost more than it does.
pub fn single_thread() -> Outcome<Runtime> {
    Builder::new_current_thread().enable_all().build().about("threads")
}

/// Prepares a role that brings its own threads; the receiver hears when the process is told to stop, from now on.
pub fn begin(arguments: &RoleArguments) -> Outcome<Receiver<()>> {
    prepare(arguments)?;
    let runtime = single_thread()?;
    let ((send, receive), hangup) = (channel(), arguments.hangup());
    std::thread::spawn(move || {
        runtime.block_on(told_to_stop(hangup));
        // Nobody listens once the role has ended by itself.
        send.send(()).is_ok()
    });
    Ok(receive)
}

fn prepare(arguments: &RoleArguments) -> Outcome {
    if let Some(run_file) = &arguments.run_file {
        belong_to_pool(run_file)?;
    }
    logging::start();
    if let Some(log) = arguments.run_file.as_deref().and_then(Home::log_beside) {
        logging::keep(log.clone()).about(log.display())?;
    }
    take_descriptors();
    let long = arguments.long_wait_ms.map_or(waits::LONG, Duration::from_millis);
    waits::watch(long, arguments.run_file.as_deref().map(Home::waits_beside));
    Ok(())
}

/// Takes as many descriptors as the system lets this process have. The usual 1024 are a habit for the sake of `select()`, and a
/// benefactor needs one for each segment: they would end its store at 256 GiB.
fn take_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = raised {
        tracing::warn!(%error, ?limit, "no more descriptors can be had");
    }
}

/// Leaves the terminal's session and any mounted folder, and says where the process is found.
fn belong_to_pool(run_file: &Path) -> Outcome {
    // The one failure there is: the process leads a session already.
    let _already_leads_one = rustix::process::setsid();
    ProcessRecord::of_self()?.write(run_file)?;
    std::env::set_current_dir("/").about("/")
}

async fn told_to_stop(hangup: Hangup) {
    say_stopping(signals::stop(hangup).await);
}

fn say_stopping(told: Outcome<&'static str>) {
    match told {
        Ok(signal) => tracing::info!("{signal}: stopping"),
        Err(error) => tracing::error!("signals can't be received, stopping: {}", error.message),
    }
}
