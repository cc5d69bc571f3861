//! `stdchk latest`: the newest checkpoint set that is complete and whose every chunk verifies (I5).
//!
//! Sets that are newer and can't be restarted from are passed over, each with the reason.

use clap::Args;
use serde::Serialize;
use stdchk_client::Pool;
use stdchk_model::message::manager::{CheckpointSet, SetMember, SetState};
use stdchk_model::{Failure, size};

use super::ls::{Member, set_bytes};
use crate::check::{Checker, Health, is_about_content};
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::paths::Target;
use crate::progress::Progress;
use crate::{namespace, output};

/// What `latest` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
A set is complete when the files of all ranks of a timestep are committed. Exit code 4: there is no complete set;
7: complete sets exist, and none of them is intact; 5: one might be, but benefactors are missing.

Example:
  stdchk latest climate
  stdchk latest climate --json")]
pub struct Arguments {
    /// The application's folder
    app: String,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// A set that can't be restarted from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PassedOver {
    timestep: u64,
    reason: String,
    #[serde(skip)]
    exit: Exit,
}

/// What was found.
pub struct Found {
    /// The newest set that can be restarted from.
    pub set: Option<CheckpointSet>,
    /// The newer ones that can't, newest first.
    pub passed_over: Vec<PassedOver>,
}

#[derive(Serialize)]
struct Report {
    app: String,
    timestep: u64,
    state: SetState,
    committed_at: String,
    members: Vec<Member>,
    passed_over: Vec<PassedOver>,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let target = Target::parse_plain(&arguments.app)?;
    let pool = context.pool().await?;
    let found = newest(&pool, &target, context.settings.quiet).await?;
    if !arguments.json {
        found.note(&target);
    }
    let set = found.required(&target)?;
    if arguments.json {
        return output::json(&Report {
            app: target.path(),
            timestep: set.timestep,
            state: set.state,
            committed_at: output::time_exact(set.committed_at),
            members: set.members.iter().map(Member::from).collect(),
            passed_over: found.passed_over.clone(),
        });
    }
    print(set)
}

/// The newest set of a folder that is complete and verifies.
pub async fn newest(pool: &Pool, app: &Target, quiet: bool) -> Outcome<Found> {
    let attr = namespace::resolve_folder(pool, app).await?;
    let sets = pool.sets(attr.ino).await.about(app.shown())?;
    let progress = Progress::start("verify", 0, quiet);
    let mut checker = Checker::new(pool, &progress);
    let mut passed_over = Vec::new();
    for set in sets {
        match refusal(&mut checker, &set).await.about(app.shown())? {
            None => return Ok(Found { set: Some(set), passed_over }),
            Some(reason) => passed_over.push(reason),
        }
    }
    Ok(Found { set: None, passed_over })
}

/// Why a set can't be restarted from; `None` if it can.
async fn refusal(checker: &mut Checker<'_>, set: &CheckpointSet) -> Result<Option<PassedOver>, Failure> {
    let refuse = |exit, reason| Some(PassedOver { timestep: set.timestep, reason, exit });
    if set.state != SetState::Complete {
        return Ok(refuse(Exit::NotFound, set.reason.clone()));
    }
    for member in &set.members {
        match checker.version(member.ino, Some(member.version), 1).await {
            Ok((_, health)) if health.is_readable() => {}
            Ok((_, health)) => return Ok(refuse(exit_of(&health), damage(member, &health.reason()))),
            Err(failure) if is_about_content(&failure) => {
                return Ok(refuse(Exit::Integrity, damage(member, &failure.message)));
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(None)
}

fn exit_of(health: &Health) -> Exit {
    if health.lost > 0 { Exit::Integrity } else { Exit::Unreachable }
}

fn damage(member: &SetMember, reason: &str) -> String {
    format!("{}@{}: {reason}", member.name, member.version)
}

impl Found {
    /// The set, or why there is none.
    pub fn required(&self, app: &Target) -> Outcome<&CheckpointSet> {
        self.set.as_ref().ok_or_else(|| {
            let shown = app.shown();
            let found = |exit| self.passed_over.iter().any(|set| set.exit == exit);
            if found(Exit::Integrity) {
                let next = "`stdchk verify` shows the damage; `stdchk get` fetches the files that are left";
                return CommandError::new(Exit::Integrity, shown, "no complete set is intact", next);
            }
            if found(Exit::Unreachable) {
                let next =
                    "`stdchk status` shows which benefactors are missing; try again once they are back";
                return CommandError::new(
                    Exit::Unreachable,
                    shown,
                    "no complete set can be reached now",
                    next,
                );
            }
            if self.passed_over.is_empty() {
                let next = format!("`stdchk ls {shown} --sets` says what is missing");
                return CommandError::new(Exit::NotFound, shown, "it holds no checkpoint sets", next);
            }
            let next = format!(
                "`stdchk ls {shown} --sets` shows what is missing, `stdchk policy get {shown}` which names and how many \
                 ranks are expected"
            );
            CommandError::new(Exit::NotFound, shown, "there is no complete checkpoint set", next)
        })
    }

    /// Says on standard error what was passed over.
    pub fn note(&self, app: &Target) {
        for set in &self.passed_over {
            let reason = output::shown(&set.reason);
            output::note(format_args!(
                "stdchk: {}: passed over timestep {}: {reason}",
                app.shown(),
                set.timestep
            ));
        }
    }
}

fn print(set: &CheckpointSet) -> Outcome {
    let (files, size) = (output::count(set.members.len(), "file"), size::human(set_bytes(set)));
    let when = output::time(set.committed_at);
    output::line(format_args!("timestep {}: complete and intact, {files}, {size}, {when}", set.timestep))?;
    for member in &set.members {
        output::line(format_args!("  {}@{}", output::shown(&member.name), member.version))?;
    }
    Ok(())
}
