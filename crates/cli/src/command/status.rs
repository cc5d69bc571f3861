//! `stdchk status`: manager, benefactors, space, savings, care, and one word for the pool's health.
//!
//! A pool whose manager can't be asked is still reported on, of a local pool from its run files, with the exit code of the cause.

use std::io::ErrorKind;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use stdchk_model::message::benefactor::{OwnerWish, StorageState};
use stdchk_model::message::manager::BenefactorState;
use stdchk_model::size;
use stdchk_net::own;
use stdchk_operations::{BenefactorStatus, Condition, HeldBack, Recovery, Status};

use crate::context::Context;
use crate::exit::{CommandError, Exit, Outcome, from_io};
use crate::local::start::running;
use crate::local::{Answers, Home, ProcessRecord, Role, WaitingFiles, mountpoint};
use crate::output::{self, Table};

/// Time in which a manager is reached.
const LOOK_MAX: Duration = Duration::from_secs(4);
/// Time for the answer of each manager, when none lets this host in.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);

/// What `status` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Health is one of: healthy; degraded (all content can be read, and a benefactor is missing, its disk fails, or copies
can't be made); full (hardly any space is left); starting (benefactors have yet to tell a manager that was just started
what they have); unavailable (content can't be read until benefactors that are away are back); damaged (content has no
copy anywhere); set-back (the manager's store is an older copy); down (no manager answers, exit code 5, or it refuses
this host, with the exit code of the cause). Copies
that are being made are no reason to be anything but healthy; what lacks copies meanwhile stands under `exposed`.

Example:
  stdchk status
  stdchk status --json")]
pub struct Arguments {
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Mount {
    path: String,
    state: &'static str,
    /// Whether its process runs.
    #[serde(skip)]
    is_running: bool,
    /// What its process has been waiting for so long that something may be wrong.
    waits: Vec<String>,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    pool: Status,
    mount: Option<Mount>,
    /// What waits in spools of this host.
    waiting: Vec<WaitingFiles>,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let address = context.manager_address()?;
    let mount = mount(context)?;
    let waiting = match context.settings.manager {
        None => WaitingFiles::of(&context.home())?,
        Some(_) => Vec::new(),
    };
    match ask(context, &address).await {
        Ok(status) => show(arguments.json, &Report::new(status, mount, waiting)),
        Err(error) => {
            let (lines, error) = why(context, &address, error).await?;
            let mut status = Status::down(address, lines);
            match error.exit {
                Exit::Unreachable => status.manager.pid = process_of_manager(context)?,
                _ => status.manager.state = "refuses",
            }
            show(arguments.json, &Report::new(status, mount, waiting))?;
            Err(error)
        }
    }
}

async fn ask(context: &Context, address: &str) -> Outcome<Status> {
    // A try to reach a host that is gone would last longer.
    let late = |_| {
        let (cause, next) = ("it is not reached", "see to its machine, and to the way to it");
        CommandError::new(Exit::Unreachable, format_args!("manager {address}"), cause, next)
    };
    let pool = tokio::time::timeout(LOOK_MAX, context.pool_to_look()).await.map_err(late)??;
    // Once it is reached, it may take its time.
    Ok(pool.status().await?)
}

/// Why no manager can be asked, in a line for each, and the error with the next step.
async fn why(context: &Context, address: &str, error: CommandError) -> Outcome<(Vec<String>, CommandError)> {
    if error.exit != Exit::Unreachable {
        return Ok((vec![error.message.clone()], error));
    }
    let answers = Answers::of(address, context.keys()?, ANSWER_PATIENCE).await;
    if let Some(refusal) = answers.refusal() {
        return Ok((vec![refusal.message.clone()], refusal));
    }
    let away = answers.away();
    let (count, waits) = (away.len(), away.iter().any(|line| line.contains("waits for etcd")));
    let (cause, next) = match count {
        _ if waits => (
            "no manager leads, since etcd does not answer",
            "start the members of etcd, or mend the way to them: managers, mounts and benefactors go on by themselves",
        ),
        // There is one, or they were back a moment later.
        0 | 1 => return Ok((vec![format!("the manager does not answer: {}", error.message)], error)),
        _ => (
            "no manager leads",
            "after the end of one another one leads within ten seconds; `stdchk up` on their machines starts those that are off",
        ),
    };
    Ok((away, CommandError::new(Exit::Unreachable, "the pool", cause, next)))
}

fn show(json: bool, report: &Report) -> Outcome {
    if json { output::json(report) } else { print(report) }
}

impl Report {
    fn new(pool: Status, mount: Option<Mount>, waiting: Vec<WaitingFiles>) -> Self {
        let mut report = Self { pool, mount, waiting };
        if let Some(mount) = report.mount.as_mut().filter(|mount| mount.is_running)
            && report.pool.health == Condition::Down
        {
            mount.state = "waiting";
        }
        for left in report.waiting.iter().filter(|waiting| !waiting.mounted) {
            report.pool.add_reason(left.told("stdchk mount"));
        }
        if let Some(mount) = &report.mount {
            // A mount waits for a manager that is away, and is not at fault.
            let is_at_fault = report.pool.health != Condition::Down || !mount.is_running;
            if is_at_fault && mount.state != "online" {
                report.pool.add_reason("the mount does not answer: `stdchk up` starts it again".to_owned());
            }
            if is_at_fault && !mount.waits.is_empty() {
                let waits = mount.waits.join(", and ");
                report
                    .pool
                    .add_reason(format!("the mount has waited {waits}: the logs of the pool say more"));
            }
        }
        report
    }
}

/// The mount of a local pool, if it has one.
fn mount(context: &Context) -> Outcome<Option<Mount>> {
    if context.settings.manager.is_some() {
        return Ok(None);
    }
    let Some(path) = context.home().record()?.and_then(|record| record.mount) else { return Ok(None) };
    let state = match mountpoint::is_mounted(&path)? {
        false if running(&context.home(), Role::Mount)?.is_some() => "waiting",
        false => "not mounted",
        true if mountpoint::answers(&path) => "online",
        true => "not answering",
    };
    let is_running = running(&context.home(), Role::Mount)?.is_some();
    let (path, waits) = (path.display().to_string(), waits_of(context, Role::Mount)?);
    Ok(Some(Mount { path, state, is_running, waits }))
}

/// The long waits of a role's process, if it is alive.
fn waits_of(context: &Context, role: Role) -> Outcome<Vec<String>> {
    let run_file = context.home().run_file(role);
    if !ProcessRecord::read(&run_file)?.is_some_and(|process| process.is_alive()) {
        return Ok(Vec::new());
    }
    let path = Home::waits_beside(&run_file);
    match own::text(&path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(from_io(&error, path.display())),
    }
}

/// The process of a local pool's manager, which may be alive and not answer.
fn process_of_manager(context: &Context) -> Outcome<Option<u32>> {
    if context.settings.manager.is_some() {
        return Ok(None);
    }
    let process = ProcessRecord::read(&context.home().run_file(Role::Manager))?;
    Ok(process.filter(ProcessRecord::is_alive).map(|process| process.pid))
}

fn print(report: &Report) -> Outcome {
    output::line(format_args!("health    {}", report.pool.health.word()))?;
    report.pool.few_reasons.iter().try_for_each(|reason| output::line(format_args!("          {reason}")))?;
    let manager = &report.pool.manager;
    let process = manager.pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
    output::line(format_args!("manager   {} {}{process}", manager.address, manager.state))?;
    print_managers(&report.pool)?;
    if let Some(mount) = &report.mount {
        output::line(format_args!("mount     {} {}", output::shown(&mount.path), mount.state))?;
    }
    report.waiting.iter().try_for_each(|waiting| output::line(format_args!("spool     {waiting}")))?;
    if report.pool.health == Condition::Down {
        return Ok(());
    }
    print_figures(&report.pool)?;
    print_benefactors(&report.pool)
}

/// Who leads and who stands by, if several managers may.
fn print_managers(report: &Status) -> Outcome {
    for manager in &report.managers {
        let does = if manager.leads { "leads" } else { "stands by" };
        let (host, at) = (output::shown(&manager.host), output::shown(&manager.addresses.join(", ")));
        output::line(format_args!("          {host}, process {}, at {at} {does}", manager.pid))?;
    }
    if report.managers.len() == 1 {
        output::line(format_args!("          no other manager stands by"))?;
    }
    if let Some(etcd) = &report.etcd {
        let is = if etcd.trouble.is_some() { "in trouble" } else { "answers" };
        output::line(format_args!("etcd      {} {is}", output::shown(&etcd.members.join(", "))))?;
    }
    Ok(())
}

fn print_figures(report: &Status) -> Outcome {
    let (space, savings) = (&report.space, &report.savings);
    output::line(format_args!(
        "space     {} of {} used, {} free, {} reserved",
        size::human(space.used_bytes),
        size::human(space.donated_bytes),
        size::human(space.free_bytes),
        size::human(space.reserved_bytes)
    ))?;
    print_memory(report)?;
    let ratio = savings.ratio.map(|ratio| format!(" (1/{ratio:.2})")).unwrap_or_default();
    output::line(format_args!(
        "content   {} in {} versions, {} distinct{ratio}, {} stored with all copies",
        size::human(savings.logical_bytes),
        report.versions,
        size::human(savings.unique_bytes),
        size::human(savings.stored_bytes)
    ))?;
    if savings.older_versions > 0 {
        output::line(format_args!(
            "older     {} of it in {}; `stdchk du` shows what only they need",
            size::human(savings.older_bytes),
            output::count(savings.older_versions, "older version")
        ))?;
    }
    let counting = if report.counting { " (not final: the manager still counts)" } else { "" };
    output::line(format_args!(
        "chunks    {}, {} at risk, {} lost; copies: {} pending, {} made{counting}",
        report.chunks, report.chunks_at_risk, report.chunks_lost, report.repairs_pending, report.repairs_done
    ))?;
    print_exposed(report)?;
    print_kept_bases(report)?;
    print_recovery(&report.recovery)?;
    print_held(&report.held_back)?;
    output::line(format_args!("sessions  {} open", report.sessions))
}

/// What there is in memory, if any benefactor keeps blocks there.
fn print_memory(report: &Status) -> Outcome {
    let memory = &report.memory;
    if memory.benefactors == 0 && memory.chunks_alone == 0 {
        return Ok(());
    }
    output::line(format_args!(
        "memory    {} of {} used at {}, {} free; {} chunks are in memory alone",
        size::human(memory.used_bytes),
        size::human(memory.donated_bytes),
        output::count(memory.benefactors, "benefactor"),
        size::human(memory.free_bytes),
        memory.chunks_alone
    ))
}

/// What would come back if the manager's disk were lost.
fn print_recovery(recovery: &Recovery) -> Outcome {
    let all = recovery.keepers.len();
    if all == 0 {
        return Ok(());
    }
    let have = recovery.keepers.iter().filter(|keeper| keeper.lacks_commits.is_some()).count();
    let what = match recovery.lacks_commits {
        None => "too few for a recovery".to_owned(),
        Some(0) => "all commits can be recovered".to_owned(),
        Some(lacks) => format!("all commits but the last {lacks} can be recovered"),
    };
    output::line(format_args!("keepers   {have} of {all} have the manager's store: {what}"))
}

/// What is kept of removed files, and why nothing can be collected if that is so.
fn print_held(held: &HeldBack) -> Outcome {
    for backup in &held.backups {
        output::line(format_args!(
            "backup    of commit {}, for {} more: holds {} of removed files",
            backup.commit,
            days_or_less(backup.ends_in_seconds),
            size::human(backup.bytes)
        ))?;
    }
    if held.bytes > 0 {
        output::line(format_args!(
            "          all of them hold {}; `stdchk manager backup --release COMMIT` gives one up",
            size::human(held.bytes)
        ))?;
    }
    if let (Some(seconds), Some(why)) = (held.stopped_seconds, &held.stopped_because) {
        output::line(format_args!("collects  nothing since {} ago: {why}", days_or_less(seconds)))?;
    }
    Ok(())
}

/// A duration in the largest unit of which it has two or more.
fn days_or_less(seconds: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "min")];
    let found = units.iter().find(|(unit, _)| seconds >= 2 * unit);
    found.map_or_else(|| format!("{seconds} s"), |(unit, name)| format!("{} {name}", seconds / unit))
}

/// Which versions stay for files that wait in spools.
fn print_kept_bases(report: &Status) -> Outcome {
    for base in &report.kept_bases {
        let (path, host) = (output::shown(&base.path), output::shown(&base.host));
        output::line(format_args!(
            "kept      {path}@{} ({}), since {}, for {} in a spool of {host} (s{})",
            base.version,
            size::human(base.version_bytes),
            base.since,
            size::human(base.spooled_bytes),
            base.id
        ))?;
    }
    Ok(())
}

/// What the loss of one more benefactor may cost.
fn print_exposed(report: &Status) -> Outcome {
    let exposed = &report.exposed;
    if exposed.chunks == 0 {
        return Ok(());
    }
    output::line(format_args!(
        "exposed   {} chunks ({}) have fewer copies than their folders ask for",
        exposed.chunks,
        size::human(exposed.bytes)
    ))?;
    for set in &exposed.sets {
        let what = match set.timestep {
            Some(timestep) => format!("{} timestep {timestep}", output::shown(&set.folder)),
            None => format!("{} files of no set", output::shown(&set.folder)),
        };
        let since = set.since.as_ref().map(|since| format!(", since {since}")).unwrap_or_default();
        let size = size::human(set.bytes);
        let in_memory = match set.in_memory {
            0 => String::new(),
            chunks => format!(", {chunks} of them in memory alone"),
        };
        output::line(format_args!("          {what}: {} chunks ({size}){in_memory}{since}", set.chunks))?;
    }
    Ok(())
}

fn labels(entry: &BenefactorStatus) -> String {
    let labels: Vec<String> = entry.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    labels.join(" ")
}

fn print_benefactors(report: &Status) -> Outcome {
    let columns = [
        "benefactor",
        "state",
        "tier",
        ">load",
        "address",
        ">process",
        ">used",
        ">donated",
        ">free",
        "labels",
    ];
    let mut table = Table::new(&columns);
    for entry in &report.benefactors {
        table.row([
            format!("b{}", entry.id),
            state_word(entry),
            entry.tier.to_string(),
            entry.busy_percent.map_or("-".to_owned(), |percent| format!("{percent} %")),
            entry.address.clone(),
            entry.pid.to_string(),
            used(entry),
            size::human(entry.donated_bytes),
            size::human(entry.free_bytes),
            labels(entry),
        ]);
    }
    table.print()
}

/// What blocks take, and near copies where there are some.
fn used(entry: &BenefactorStatus) -> String {
    let used = size::human(entry.used_bytes);
    match entry.near_bytes {
        0 => used,
        near => format!("{used} + {} near", size::human(near)),
    }
}

fn state_word(entry: &BenefactorStatus) -> String {
    if let (BenefactorState::Online, Some(going)) = (entry.state, &entry.going) {
        let when = going.in_seconds.map(|seconds| format!(" in {seconds} s")).unwrap_or_default();
        return format!("going{when}");
    }
    if entry.shut_out {
        return "shut out".to_owned();
    }
    let word = match entry.state {
        BenefactorState::Online if entry.disk_failed => "disk failed",
        BenefactorState::Online => match entry.wish {
            OwnerWish::Serve if entry.owed_bytes > 0 => "giving back",
            OwnerWish::Serve => match entry.load {
                StorageState::Running => "online",
                StorageState::Full => "online, full",
                StorageState::Loaded => "online, loaded",
                StorageState::Refusing => "online, busy",
            },
            OwnerWish::Pause => "paused",
            OwnerWish::Drain if entry.blocks == 0 => "drained",
            OwnerWish::Drain => "draining",
            OwnerWish::Damaged => "damaged",
            OwnerWish::Leave => "leaving",
        },
        BenefactorState::Expected => "expected",
        BenefactorState::Offline => "offline",
        BenefactorState::Lost => "lost",
    };
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(state: &'static str, is_running: bool, waits: &[&str]) -> Vec<String> {
        let waits = waits.iter().map(|wait| (*wait).to_owned()).collect();
        let mount = Mount { path: "/x".to_owned(), state, is_running, waits };
        let down = Status::down("127.0.0.1:1".to_owned(), vec!["etcd is away".to_owned()]);
        let report = Report::new(down, Some(mount), Vec::new());
        report.pool.reasons.into_iter().skip(1).collect()
    }

    #[test]
    fn a_mount_that_does_not_answer_or_waits_for_long_is_told_of() {
        assert_eq!(reasons("online", false, &[]), [""; 0]);
        assert!(reasons("not answering", false, &[])[0].contains("does not answer"));
        assert!(reasons("online", false, &["20 s for room"])[0].contains("has waited 20 s for room"));
        let away = ["20 s for an answer of the manager at 127.0.0.1:1"];
        assert_eq!(reasons("not answering", true, &away), [""; 0], "it waits for the manager, as all do");
    }
}
