//! The stdchk binary: roles, local pools and user commands.
//!
//! A command line becomes a [`arguments::Command`], which one module of [`command`] runs; whatever went wrong ends here
//! as a message on standard error and an exit code (`docs/OPERATIONS.md` lists them).

mod accounts;
mod arguments;
mod command;
mod container;
mod context;
mod exit;
mod local;
mod logging;
mod output;
mod progress;
mod settings;
mod signals;
mod wake;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let line = arguments::Line::parse();
    match command::run(line) {
        Ok(code) => code,
        Err(error) => error.report(),
    }
}
