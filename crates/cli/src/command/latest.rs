//! `stdchk latest`: the newest checkpoint set that is complete and whose every chunk verifies (I5).
//!
//! Sets that are newer and can't be restarted from are passed over, each with the reason. Content whose benefactors are
//! away is no damage: it comes back with them, so what can't be reached and what is lost end with different exit codes.

use std::collections::BTreeSet;

use clap::Args;
use serde::Serialize;
use stdchk_client::Pool;
use stdchk_model::message::manager::{self, CheckpointSet, SetMember, SetState};
use stdchk_model::{BenefactorId, ErrorCode, Failure, Redundancy, size};

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
5: none can be reached now, because benefactors are away; 7: complete sets exist, and all of them are damaged.
A set is exposed while it has chunks with fewer copies than its folder asks for: losing one more benefactor may cost it.

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
    /// Whether it can be restarted from once benefactors that are away are back.
    unavailable: bool,
    exposed: Option<Exposed>,
    #[serde(skip)]
    exit: Exit,
    /// The benefactors that have what can't be reached, or may have it.
    #[serde(skip)]
    away: BTreeSet<BenefactorId>,
}

/// What of a set has fewer copies than its folder asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exposed {
    chunks: u64,
    bytes: u64,
    /// Since when at the most; absent: not known, or nothing lacks a copy.
    since: Option<String>,
}

impl From<manager::Exposed> for Exposed {
    fn from(exposed: manager::Exposed) -> Self {
        let since = exposed.since.map(output::time_exact);
        Self { chunks: exposed.chunks, bytes: exposed.bytes, since }
    }
}

/// What was found.
pub struct Found {
    /// The newest set that can be restarted from.
    pub set: Option<CheckpointSet>,
    /// What of it was found to have fewer copies than its folder asks for.
    exposed: Health,
    /// Copies that its folder asks for.
    redundancy: Redundancy,
    /// The newer ones that can't, newest first.
    pub passed_over: Vec<PassedOver>,
}

#[derive(Serialize)]
struct Report {
    app: String,
    timestep: u64,
    state: SetState,
    committed_at: String,
    exposed: Exposed,
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
            exposed: found.exposed(set),
            members: set.members.iter().map(Member::from).collect(),
            passed_over: found.passed_over.clone(),
        });
    }
    print(set, &found)
}

/// The newest set of a folder that is complete and verifies.
pub async fn newest(pool: &Pool, app: &Target, quiet: bool) -> Outcome<Found> {
    let attr = namespace::resolve_folder(pool, app).await?;
    let redundancy = pool.policy(attr.ino).await.about(app.shown())?.redundancy;
    let progress = Progress::start("verify", 0, quiet);
    let mut checker = Checker::new(pool, &progress);
    let mut looks = 1;
    let mut found = loop {
        let sets = pool.sets(attr.ino).await.about(app.shown())?;
        match newest_of(&mut checker, sets, redundancy).await {
            // A member was replaced or removed after the sets were listed.
            Err(failure) if failure.code == ErrorCode::NotFound && looks < namespace::LOOKS_MAX => looks += 1,
            found => break found.about(app.shown())?,
        }
    };
    tell_since(pool, &mut found.passed_over).await.about(app.shown())?;
    Ok(found)
}

async fn newest_of(
    checker: &mut Checker<'_>,
    sets: Vec<CheckpointSet>,
    redundancy: Redundancy,
) -> Result<Found, Failure> {
    let mut passed_over: Vec<PassedOver> = Vec::new();
    for set in sets {
        match verified(checker, &set, redundancy).await? {
            Verdict::Intact(exposed) => {
                return Ok(Found { set: Some(set), exposed, redundancy, passed_over });
            }
            Verdict::PassedOver(reason) => passed_over.push(reason),
        }
    }
    Ok(Found { set: None, exposed: Health::default(), redundancy, passed_over })
}

/// What a look at all chunks of a set says.
enum Verdict {
    /// It can be restarted from; how its chunks were found.
    Intact(Health),
    /// It can't.
    PassedOver(PassedOver),
}

/// Looks at all chunks of a set.
async fn verified(
    checker: &mut Checker<'_>,
    set: &CheckpointSet,
    redundancy: Redundancy,
) -> Result<Verdict, Failure> {
    let refuse = |exit, reason, away| {
        let exposed = set.exposed.map(Exposed::from);
        let (timestep, unavailable) = (set.timestep, exit == Exit::Unreachable);
        Verdict::PassedOver(PassedOver { timestep, reason, unavailable, exposed, exit, away })
    };
    if set.state != SetState::Complete {
        return Ok(refuse(Exit::NotFound, set.reason.clone(), BTreeSet::new()));
    }
    let mut all = Health::default();
    for member in &set.members {
        match checker.version(member.ino, Some(member.version), redundancy.distance()).await {
            Ok((_, health)) if health.is_readable() => {
                all.chunks += health.chunks;
                all.at_risk += health.at_risk;
                all.at_risk_bytes += health.at_risk_bytes;
            }
            Ok((_, health)) => {
                return Ok(refuse(exit_of(&health), damage(member, &health.reason()), health.away));
            }
            Err(failure) if is_about_content(&failure) => {
                return Ok(refuse(Exit::Integrity, damage(member, &failure.message), BTreeSet::new()));
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(Verdict::Intact(all))
}

/// Adds to the reasons since when the benefactors have been away.
async fn tell_since(pool: &Pool, passed_over: &mut [PassedOver]) -> Result<(), Failure> {
    if passed_over.iter().all(|set| set.away.is_empty()) {
        return Ok(());
    }
    let infos = pool.benefactors().await?;
    for set in passed_over {
        let away = infos.iter().filter(|info| set.away.contains(&info.id));
        let since: Vec<String> =
            away.map(|info| format!("{} for {} s", info.id, info.silent_ms / 1000)).collect();
        if !since.is_empty() {
            set.reason.push_str(&format!(" (not heard of: {})", since.join(", ")));
        }
    }
    Ok(())
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
            // What can come back is no damage.
            if let Some(newest) = self.passed_over.iter().find(|set| set.exit == Exit::Unreachable) {
                let cause = format!(
                    "no complete set can be reached now; of timestep {}, {}",
                    newest.timestep, newest.reason
                );
                let next = "`stdchk status` shows which benefactors are away; try again once they are back";
                return CommandError::new(Exit::Unreachable, shown, cause, next);
            }
            if found(Exit::Integrity) {
                let next = "`stdchk verify` shows the damage; `stdchk get` fetches the files that are left";
                return CommandError::new(Exit::Integrity, shown, "no complete set is intact", next);
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

    /// What of the set that was found has fewer copies than its folder asks for.
    fn exposed(&self, set: &CheckpointSet) -> Exposed {
        let since = set.exposed.and_then(|exposed| exposed.since).filter(|_| self.exposed.at_risk > 0);
        let (chunks, bytes) = (self.exposed.at_risk, self.exposed.at_risk_bytes);
        Exposed { chunks, bytes, since: since.map(output::time_exact) }
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

fn print(set: &CheckpointSet, found: &Found) -> Outcome {
    let (files, size) = (output::count(set.members.len(), "file"), size::human(set_bytes(set)));
    let when = output::time(set.committed_at);
    output::line(format_args!("timestep {}: complete and intact, {files}, {size}, {when}", set.timestep))?;
    let exposed = found.exposed(set);
    if exposed.chunks > 0 {
        let since = set.exposed.and_then(|exposed| exposed.since);
        let since = since.map(|since| format!(", since {}", output::time(since))).unwrap_or_default();
        output::line(format_args!(
            "  exposed: {} of {} chunks ({}) have {}{since}",
            exposed.chunks,
            found.exposed.chunks,
            size::human(exposed.bytes),
            found.redundancy.shortage()
        ))?;
    }
    for member in &set.members {
        output::line(format_args!("  {}@{}", output::shown(&member.name), member.version))?;
    }
    Ok(())
}
