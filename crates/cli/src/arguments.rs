//! The command line: which commands there are. What each takes stands in its own module.

use clap::{Parser, Subcommand};

use crate::command;
use crate::settings::PoolFlags;

const AFTER_HELP: &str = "\
Names: APP/NAME is a file in an application's folder, APP/NAME@VERSION one of its versions.
Settings: flags come before STDCHK_* variables, these before the configuration file.
Exit codes: 0 success, 1 other, 2 usage, 3 partial, 4 not found, 5 unreachable (try again), 6 no space,
            7 damaged, 8 another pool or other keys, 125 not run, 130 interrupted,
            141 the reader of standard output went away.

Example:
  stdchk up --mount ~/pool            start a pool; jobs write their checkpoints below ~/pool/climate
  stdchk status                       is it well?
  stdchk latest climate               the newest timestep that is complete and intact
  stdchk restore climate -o restart/  all its files, verified
  stdchk down                         stop; all content stays

`stdchk help COMMAND` says all of one command, with examples.";

/// Checkpoint storage for long jobs on unreliable machines.
#[derive(Parser, Debug)]
#[command(name = "stdchk", version, after_help = AFTER_HELP, infer_subcommands = false)]
pub struct Line {
    /// The flags that every command takes.
    #[command(flatten)]
    pub pool: PoolFlags,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Start a pool on this machine, in the background; ready when it returns
    Up(command::up::Arguments),
    /// Stop the pool on this machine
    Down(command::down::Arguments),
    /// Make a pool of several machines, let hosts join it, or join one
    Pool(command::pool::Arguments),
    /// Show manager, benefactors, space, savings and health
    Status(command::status::Arguments),
    /// Store files; `-` is standard input
    Put(command::put::Arguments),
    /// Fetch one file, verified; `-o -` is standard output
    Get(command::get::Arguments),
    /// List folders, files, versions or checkpoint sets
    Ls(command::ls::Arguments),
    /// Show one file or folder and verify its content
    Stat(command::stat::Arguments),
    /// Remove files, versions or, with -r, folders
    Rm(command::rm::Arguments),
    /// Rename or move a file or folder
    Mv(command::mv::Arguments),
    /// Make a folder, or give one to a user
    Mkdir(command::mkdir::Arguments),
    /// Show how much is kept, and how much of it is distinct
    Du(command::du::Arguments),
    /// Show which byte ranges of two versions differ
    Diff(command::diff::Arguments),
    /// Show the newest checkpoint set that is complete and verifies
    Latest(command::latest::Arguments),
    /// Fetch all files of a checkpoint set, verified, in parallel
    Restore(command::restore::Arguments),
    /// Show or change how an application's files are treated
    Policy(command::policy::Arguments),
    /// Make, list, copy and change the keys that files are encrypted with
    Key(command::key::Arguments),
    /// Show which benefactors files go to, and why
    Placement(command::placement::Arguments),
    /// Say how often a job should take checkpoints
    Advise(command::advise::Arguments),
    /// Keep a checkpoint set whatever the folder's lifetime says
    Seal(command::seal::Arguments),
    /// Let all checkpoint sets but the newest complete one go: the job has succeeded
    Done(command::done::Arguments),
    /// Verify stored content at the benefactors
    Verify(command::verify::Arguments),
    /// Remove chunks that nothing refers to
    Gc(command::gc::Arguments),
    /// Take a benefactor out of the pool whose disk is gone for ever
    Forget(command::forget::Arguments),
    /// Go on with a manager's store that is an older copy, without what was stored since
    AcceptOlderStore(command::accept_older_store::Arguments),
    /// Pack checkpoint files into one container, data-aware; needs no pool
    Pack(command::pack::Arguments),
    /// Unpack a container, or some of its files; needs no pool
    Unpack(command::unpack::Arguments),
    /// Pack complete checkpoint sets as they come: in the pool or, with -o and without a pool, from a folder
    Aggregate(command::aggregate::Arguments),
    /// Serve the pool as a file system, in the foreground
    Mount(command::mount::Arguments),
    /// Hold the memory of training jobs' checkpoints and store these while the jobs go on
    Agent(command::agent::Arguments),
    /// Run a program under file-state checkpoints
    Run(command::run::Arguments),
    /// List, compare and go back to file-state checkpoints
    Files(command::files::Arguments),
    /// Run a manager in the foreground, and back up its store
    Manager(command::manager::Arguments),
    /// Give this host's disk to a pool: join one, or run a benefactor in the foreground
    Benefactor(command::benefactor::Arguments),
    /// Print what a shell needs to complete command lines
    Completions(command::completions::Arguments),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Line::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        for command in Line::command().get_subcommands() {
            let name = command.get_name();
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(after.contains(&format!("stdchk {name}")), "{name}");
        }
    }
}
