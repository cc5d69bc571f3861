//! `stdchk stat`: what is known of one object, and whether its content verifies.

use clap::Args;
use serde::Serialize;
use stdchk_client::Pool;
use stdchk_model::message::manager::{Attr, FileKind, VersionInfo};
use stdchk_model::{Redundancy, size};

use super::ls::Version;
use crate::check::{Checker, Health};
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::paths::Target;
use crate::progress::Progress;
use crate::{namespace, output};

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

#[derive(Serialize)]
struct Report {
    path: String,
    ino: u64,
    kind: FileKind,
    mode: String,
    uid: u32,
    gid: u32,
    links: u32,
    size: u64,
    mtime: String,
    link_target: Option<String>,
    version: Option<Version>,
    versions: u64,
    redundancy: Option<Redundancy>,
    health: Option<Health>,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let target = Target::parse(&arguments.target)?;
    let pool = context.pool().await?;
    let attr = namespace::resolve(&pool, &target).await?;
    let report = match attr.kind {
        FileKind::File => {
            let quiet = context.settings.quiet;
            namespace::of_file(&pool, &target, async |attr| content(&pool, &target, &attr, quiet).await)
                .await?
        }
        _ if target.version.is_some() => return namespace::resolve_file(&pool, &target).await.map(drop),
        FileKind::Symlink => {
            let link_target = Some(pool.read_link(attr.ino).await.about(target.shown())?);
            Report { link_target, ..report_of(&target, &attr) }
        }
        FileKind::Directory | FileKind::Pipe | FileKind::Socket => report_of(&target, &attr),
    };
    match arguments.json {
        true => output::json(&report)?,
        false => print(&report)?,
    }
    verdict(&target, report.health.as_ref())
}

fn report_of(target: &Target, attr: &Attr) -> Report {
    Report {
        path: target.path(),
        ino: attr.ino.0,
        kind: attr.kind,
        mode: format!("{:04o}", attr.mode & 0o7777),
        uid: attr.uid,
        gid: attr.gid,
        links: attr.links,
        size: attr.size,
        mtime: output::time_exact(attr.mtime),
        link_target: None,
        version: None,
        versions: 0,
        redundancy: None,
        health: None,
    }
}

async fn content(pool: &Pool, target: &Target, attr: &Attr, quiet: bool) -> Outcome<Report> {
    let (shown, mut report) = (target.shown(), report_of(target, attr));
    let versions = namespace::kept_versions(pool, attr.ino).await.about(&shown)?;
    let redundancy = pool.policy(attr.ino).await.about(&shown)?.redundancy;
    let progress = Progress::start("verify", 0, quiet);
    let mut checker = Checker::new(pool, &progress);
    let (info, health) =
        checker.version(attr.ino, target.version, redundancy.distance()).await.about(&shown)?;
    report.versions = versions.len() as u64;
    report.redundancy = Some(redundancy);
    if let Some(info) = info {
        describe(&mut report, &info);
    }
    report.health = Some(health);
    Ok(report)
}

fn describe(report: &mut Report, info: &VersionInfo) {
    report.size = info.size;
    report.mtime = output::time_exact(info.mtime);
    report.version = Some(Version::from(info));
}

/// Success if all content can be read now.
pub fn verdict(target: &Target, health: Option<&Health>) -> Outcome {
    let Some(health) = health.filter(|health| !health.is_readable()) else { return Ok(()) };
    let (exit, next) = match health.lost {
        0 => (
            Exit::Unreachable,
            "`stdchk status` shows which benefactors are missing; try again once they are back",
        ),
        _ => (Exit::Integrity, "use another version (`stdchk ls --versions`)"),
    };
    Err(CommandError::new(exit, target.shown(), health.reason(), next))
}

fn print(report: &Report) -> Outcome {
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
        "kind      {kind}, mode {}, owner {}:{}",
        report.mode, report.uid, report.gid
    ))?;
    output::line(format_args!("modified  {}", report.mtime))?;
    if let Some(target) = &report.link_target {
        output::line(format_args!("leads to  {}", output::shown(target)))?;
    }
    let Some(health) = &report.health else { return Ok(()) };
    output::line(format_args!("size      {} bytes ({})", report.size, size::human(report.size)))?;
    if let Some(version) = &report.version {
        output::line(format_args!("version   {}", version.summary(report.versions)))?;
    }
    output::line(format_args!("content   {}", summary(health, report.redundancy.unwrap_or_default())))
}

/// The state of content in one line.
pub fn summary(health: &Health, redundancy: Redundancy) -> String {
    let mut text = format!("{} chunks, {} intact", health.chunks, health.intact);
    for (count, what) in [
        (health.at_risk, format!("with {}", redundancy.shortage())),
        (health.damaged, "with a damaged copy".to_owned()),
        (health.unreachable, "out of reach".to_owned()),
        (health.lost, "lost".to_owned()),
    ] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    text
}
