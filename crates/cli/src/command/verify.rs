//! `stdchk verify`: every kept version's chunks are read and compared where they lie; with `--repair`, redundancy that
//! is found missing is waited for and verified again.
//!
//! A benefactor sets a damaged block aside as soon as it is found, and the manager then has it copied anew from an
//! intact one; so repairing is waiting until that is done.

use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use stdchk_client::Pool;
use stdchk_model::message::manager::Attr;
use stdchk_model::{ErrorCode, Redundancy};

use super::stat::summary;
use crate::check::{Checker, Health, is_about_content};
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::namespace;
use crate::output;
use crate::paths::Target;
use crate::progress::Progress;

/// Time without any progress after which a repair is given up: longer than a benefactor takes to count as lost.
const REPAIR_PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which the state of repairs is asked for.
const REPAIR_POLL: Duration = Duration::from_millis(250);
/// Time that a finding takes to reach the manager: two heartbeats of a benefactor.
const REPORT_DELAY: Duration = Duration::from_millis(2 * stdchk_model::limits::HEARTBEAT_MS);

/// What `verify` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit code 7: content has no intact copy. 5: content can't be reached now. 3: damaged copies were found, and an
intact one of each.

Example:
  stdchk verify
  stdchk verify climate --repair")]
pub struct Arguments {
    /// A folder or file, APP[/NAME]; without it everything
    #[arg(default_value = "", hide_default_value = true, value_name = "APP[/NAME]")]
    target: String,
    /// Wait until missing and damaged copies are made anew, then verify again
    #[arg(long)]
    repair: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Bad {
    path: String,
    version: u64,
    reason: String,
    /// What `verify` ends with if nothing else is worse.
    #[serde(skip)]
    exit: Exit,
}

#[derive(Default, Serialize)]
struct Report {
    path: String,
    files: u64,
    versions: u64,
    damaged_copies: u64,
    lost_chunks: u64,
    unreachable_chunks: u64,
    at_risk_chunks: u64,
    bad: Vec<Bad>,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let target = Target::parse_plain(&arguments.target)?;
    let pool = context.pool().await?;
    let quiet = context.settings.quiet;
    let mut report = verify(&pool, &target, quiet).await?;
    if arguments.repair && !report.is_clean() {
        repair(&pool, quiet).await?;
        report = verify(&pool, &target, quiet).await?;
    }
    match arguments.json {
        true => output::json(&report)?,
        false => report.print()?,
    }
    report.verdict(&target)
}

async fn verify(pool: &Pool, target: &Target, quiet: bool) -> Outcome<Report> {
    let files = namespace::files(pool, target).await?;
    let progress = Progress::start("verify", 0, quiet);
    let mut checker = Checker::new(pool, &progress);
    let mut report = Report { path: target.path(), ..Report::default() };
    for file in &files {
        let verified = namespace::of_file(pool, &file.target, async |attr| {
            verify_file(pool, &mut checker, &file.target, &attr).await
        });
        if let Some(found) = namespace::if_still_there(verified.await)? {
            report.add(found);
        }
    }
    Ok(report)
}

/// What is found of one file.
async fn verify_file(
    pool: &Pool,
    checker: &mut Checker<'_>,
    target: &Target,
    attr: &Attr,
) -> Outcome<Report> {
    let shown = target.shown();
    let mut report = Report { files: 1, ..Report::default() };
    let redundancy = pool.policy(attr.ino).await.about(&shown)?.redundancy;
    for info in namespace::kept_versions(pool, attr.ino).await.about(&shown)? {
        report.versions += 1;
        match checker.version(attr.ino, Some(info.version), redundancy.distance()).await {
            Ok((_, health)) => report.add_version(target, info.version, &health, redundancy),
            Err(failure) if is_about_content(&failure) => {
                report.lost_chunks += 1;
                report.bad.push(Bad {
                    path: target.path(),
                    version: info.version,
                    reason: failure.message,
                    exit: Exit::Integrity,
                });
            }
            // It was removed, or its writer committed again: what is left of the file counts.
            Err(failure)
                if failure.code == ErrorCode::NotFound
                    && !namespace::has_version(pool, attr.ino, info.version).await.about(&shown)? =>
            {
                report.versions -= 1;
            }
            Err(failure) => return Err(failure).about(shown),
        }
    }
    Ok(report)
}

/// Waits until the manager has nothing left to copy.
async fn repair(pool: &Pool, quiet: bool) -> Outcome {
    tokio::time::sleep(REPORT_DELAY).await;
    let mut last = (u64::MAX, u64::MAX);
    let mut progressed = Instant::now();
    loop {
        let status = pool.status().await.about("repair")?;
        // A manager that has just started finds nothing at risk before the benefactors have told what they have.
        if !status.counting && status.chunks_at_risk == 0 && status.repairs_pending == 0 {
            return Ok(());
        }
        let now = (status.chunks_at_risk, status.repairs_done);
        if now != last {
            (last, progressed) = (now, Instant::now());
        }
        if progressed.elapsed() > REPAIR_PATIENCE {
            if !quiet {
                output::note(format_args!(
                    "verify: {} chunks can't get all their copies now",
                    status.chunks_at_risk
                ));
            }
            return Ok(());
        }
        tokio::time::sleep(REPAIR_POLL).await;
    }
}

impl Report {
    /// Adds what was found of one file.
    fn add(&mut self, found: Self) {
        self.files += found.files;
        self.versions += found.versions;
        self.damaged_copies += found.damaged_copies;
        self.lost_chunks += found.lost_chunks;
        self.unreachable_chunks += found.unreachable_chunks;
        self.at_risk_chunks += found.at_risk_chunks;
        self.bad.extend(found.bad);
    }

    /// Adds what was found of one version. Chunks that versions share are counted with each of them.
    fn add_version(&mut self, target: &Target, version: u64, health: &Health, redundancy: Redundancy) {
        self.damaged_copies += health.damaged;
        self.lost_chunks += health.lost;
        self.unreachable_chunks += health.unreachable;
        self.at_risk_chunks += health.at_risk;
        if !health.is_readable() || health.damaged > 0 {
            let exit = match (health.lost, health.unreachable) {
                (0, 0) => Exit::Partial,
                (0, _) => Exit::Unreachable,
                _ => Exit::Integrity,
            };
            let reason = summary(health, redundancy);
            self.bad.push(Bad { path: target.path(), version, reason, exit });
        }
    }

    fn is_clean(&self) -> bool {
        self.bad.is_empty() && self.at_risk_chunks == 0
    }

    fn print(&self) -> Outcome {
        for bad in &self.bad {
            output::line(format_args!("{}@{}: {}", output::shown(&bad.path), bad.version, bad.reason))?;
        }
        let verdict = match (self.bad.len(), self.at_risk_chunks) {
            _ if self.versions == 0 => "nothing to verify".to_owned(),
            (0, 0) => "all intact".to_owned(),
            (0, at_risk) => {
                format!("all intact, {at_risk} chunks with fewer copies than their folder asks for")
            }
            (bad, _) => format!("{bad} versions damaged or out of reach"),
        };
        output::line(format_args!("{} files, {} versions: {verdict}", self.files, self.versions))
    }

    fn verdict(&self, target: &Target) -> Outcome {
        let findings = [
            (
                Exit::Integrity,
                "have content without an intact copy",
                "`stdchk latest` names a set that is intact",
            ),
            (
                Exit::Unreachable,
                "have content that can't be reached now",
                "`stdchk status` shows who is missing",
            ),
            (
                Exit::Partial,
                "had damaged copies, each with an intact one beside it",
                "they are made anew; `--repair` waits for it",
            ),
        ];
        let counted = findings.map(|(exit, what, next)| {
            (self.bad.iter().filter(|bad| bad.exit == exit).count(), exit, what, next)
        });
        let worst = counted.into_iter().find(|(count, ..)| *count > 0);
        worst.map_or(Ok(()), |(count, exit, what, next)| {
            let cause = format!("{count} of {} versions {what}", self.versions);
            Err(CommandError::new(exit, target.shown(), cause, next))
        })
    }
}
