//! `stdchk stat`: what is known of one object, and whether its content verifies.

use clap::Args;
use stdchk_model::message::manager::FileKind;
use stdchk_model::size;
use stdchk_operations::{Stat, Target, Version};

use super::ls::state_word;
use crate::context::Context;
use crate::exit::Outcome;
use crate::output;

/// What `stat` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
The content of a file is verified at every benefactor that holds a part of it; exit code 7 if a part has no
intact copy, 5 if it can't be reached now.

Example:
  stdchk stat climate/restart.120000
  stdchk stat climate/restart.120000@3 --json")]
pub struct Arguments {
    /// A file, a folder or a version, APP/NAME[@VERSION]
    target: String,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let target = Target::parse(&arguments.target)?;
    let pool = context.pool().await?;
    let stat = pool.stat(&target, &context.watch()).await?;
    match arguments.json {
        true => output::json(&stat)?,
        false => print(&stat)?,
    }
    Ok(stat.verdict(&target)?)
}

/// A version, one of `of`, in one line.
fn summary(version: &Version, of: u64) -> String {
    let state = state_word(version.state);
    let place = if version.aggregated { ", in a container with others of its set" } else { "" };
    let committed_at = output::time_exact(version.committed_at);
    format!("{} (one of {of} kept), {state}, committed {committed_at}{place}", version.version)
}

fn print(report: &Stat) -> Outcome {
    let path = output::shown(&report.path);
    output::line(format_args!("path      /{path}"))?;
    let kind = match report.kind {
        FileKind::File => "file",
        FileKind::Directory => "folder",
        FileKind::Symlink => "symbolic link",
        FileKind::Pipe => "named pipe",
        FileKind::Socket => "socket",
    };
    output::line(format_args!(
        "kind      {kind}, mode {:04o}, owner {}:{}",
        report.mode, report.uid, report.gid
    ))?;
    output::line(format_args!("modified  {}", output::time_exact(report.mtime)))?;
    if let Some(target) = &report.link_target {
        output::line(format_args!("leads to  {}", output::shown(target)))?;
    }
    let (Some(health), Some(redundancy)) = (&report.health, report.redundancy) else { return Ok(()) };
    output::line(format_args!("size      {} bytes ({})", report.size, size::human(report.size)))?;
    if let Some(key) = report.version.as_ref().and_then(|version| version.key) {
        let lacking =
            if report.lacks_key { ", which this host lacks: it needs the key to be read" } else { "" };
        output::line(format_args!("encrypted with key {key}{lacking}"))?;
    }
    if let Some(version) = &report.version {
        output::line(format_args!("version   {}", summary(version, report.versions)))?;
    }
    output::line(format_args!("content   {}", health.summary(redundancy)))
}
