//! `stdchk status`: manager, benefactors, space, savings, care, and one word for the pool's health.
//!
//! A local pool whose manager can't be asked is still reported on, from its run files, with exit code 5.

use std::io::ErrorKind;

use clap::Args;
use serde::Serialize;
use stdchk_model::message::manager::{self, BenefactorInfo, BenefactorState, PoolStatus, Space};
use stdchk_model::size;

use crate::context::Context;
use crate::exit::{CommandError, Exit, Outcome, from_io};
use crate::local::{Home, ProcessRecord, Role, mountpoint};
use crate::output::{self, Table};

/// Part of the donated space that should stay free, percent: below it new checkpoints may soon find no room.
const FREE_PERCENT_MIN: u64 = 5;

/// What `status` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Health is one of: healthy; degraded (all content can be read, and a benefactor is missing or copies can't be made); full
(hardly any space is left); starting (benefactors have yet to tell a manager that was just started what they have);
unavailable (content can't be read until benefactors that are away are back); damaged (content has no copy anywhere);
set-back (the manager's store is an older copy); down (the manager doesn't answer, exit code 5). Copies that are being made are no reason to be anything but healthy; what
lacks copies meanwhile stands under `exposed`.

Example:
  stdchk status
  stdchk status --json")]
pub struct Arguments {
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Manager {
    address: String,
    state: &'static str,
    pid: Option<u32>,
    uptime_seconds: Option<u64>,
}

#[derive(Serialize)]
struct Benefactor {
    id: u32,
    pid: u32,
    address: String,
    state: BenefactorState,
    donated_bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    blocks: u64,
    requests: u32,
    silent_ms: u64,
}

#[derive(Serialize)]
struct Mount {
    path: String,
    state: &'static str,
    /// What its process has been waiting for so long that something may be wrong.
    waits: Vec<String>,
}

/// Bytes on the three levels of saving: as readers see them, each chunk once, and as stored with all copies.
#[derive(Default, Serialize)]
struct Savings {
    logical_bytes: u64,
    unique_bytes: u64,
    stored_bytes: u64,
    /// Logical by unique bytes; absent while nothing is kept.
    ratio: Option<f64>,
}

/// What has fewer copies than its folder asks for.
#[derive(Default, Serialize)]
struct Exposures {
    chunks: u64,
    bytes: u64,
    /// The oldest of the sets to which it belongs.
    sets: Vec<ExposedSet>,
}

#[derive(Serialize)]
struct ExposedSet {
    folder: String,
    /// Absent: files that belong to no set.
    timestep: Option<u64>,
    chunks: u64,
    bytes: u64,
    since: Option<String>,
}

#[derive(Serialize)]
struct Report {
    health: &'static str,
    reasons: Vec<String>,
    manager: Manager,
    benefactors: Vec<Benefactor>,
    mount: Option<Mount>,
    space: Space,
    savings: Savings,
    sessions: u64,
    versions: u64,
    versions_lost: u64,
    commits: u64,
    chunks: u64,
    chunks_at_risk: u64,
    /// Chunks of which no copy can be made now.
    chunks_stuck: u64,
    /// Chunks whose copies are all at benefactors that are away.
    chunks_away: u64,
    chunks_lost: u64,
    exposed: Exposures,
    repairs_pending: u64,
    repairs_done: u64,
    damaged_found: u64,
    counting: bool,
    /// Benefactors that remember commits which the manager's store lacks.
    set_back: Vec<u32>,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let address = context.manager_address()?;
    let mount = mount(context)?;
    let status = match context.pool().await {
        Ok(pool) => pool.status().await.map_err(CommandError::from),
        Err(error) => Err(error),
    };
    match status {
        Ok(status) => show(arguments.json, &report(address, &status, mount)),
        Err(error) if error.exit == Exit::Unreachable => {
            show(arguments.json, &down(address, context, mount)?)?;
            Err(error)
        }
        Err(error) => Err(error),
    }
}

fn show(json: bool, report: &Report) -> Outcome {
    if json { output::json(report) } else { print(report) }
}

/// The mount of a local pool, if it has one.
fn mount(context: &Context) -> Outcome<Option<Mount>> {
    if context.settings.manager.is_some() {
        return Ok(None);
    }
    let Some(path) = context.home().record()?.and_then(|record| record.mount) else { return Ok(None) };
    let state = match mountpoint::is_mounted(&path)? {
        false => "not mounted",
        true if mountpoint::answers(&path) => "online",
        true => "not answering",
    };
    Ok(Some(Mount { path: path.display().to_string(), state, waits: waits_of(context, Role::Mount)? }))
}

/// The long waits of a role's process, if it is alive.
fn waits_of(context: &Context, role: Role) -> Outcome<Vec<String>> {
    let run_file = context.home().run_file(role);
    if !ProcessRecord::read(&run_file)?.is_some_and(|process| process.is_alive()) {
        return Ok(Vec::new());
    }
    let path = Home::waits_beside(&run_file);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(from_io(&error, path.display())),
    }
}

fn report(address: String, status: &PoolStatus, mount: Option<Mount>) -> Report {
    let (health, reasons) = health(status, mount.as_ref());
    let ratio = (status.unique_bytes > 0).then(|| status.logical_bytes as f64 / status.unique_bytes as f64);
    Report {
        health,
        reasons,
        manager: Manager {
            address,
            state: "online",
            pid: Some(status.manager_pid),
            uptime_seconds: Some(status.uptime_ms / 1000),
        },
        benefactors: status.benefactors.iter().map(benefactor).collect(),
        mount,
        space: status.space,
        savings: Savings {
            logical_bytes: status.logical_bytes,
            unique_bytes: status.unique_bytes,
            stored_bytes: status.stored_bytes,
            ratio,
        },
        sessions: status.sessions,
        versions: status.versions,
        versions_lost: status.versions_lost,
        commits: status.commits,
        chunks: status.chunks,
        chunks_at_risk: status.chunks_at_risk,
        chunks_stuck: status.chunks_stuck,
        chunks_away: status.chunks_away,
        chunks_lost: status.chunks_lost,
        exposed: Exposures {
            chunks: status.exposed_chunks,
            bytes: status.exposed_bytes,
            sets: status.exposed.iter().map(exposed_set).collect(),
        },
        repairs_pending: status.repairs_pending,
        repairs_done: status.repairs_done,
        damaged_found: status.damaged_found,
        counting: status.counting,
        set_back: status.set_back.iter().map(|id| id.0).collect(),
    }
}

fn exposed_set(set: &manager::ExposedSet) -> ExposedSet {
    ExposedSet {
        folder: set.folder.clone(),
        timestep: set.timestep,
        chunks: set.exposed.chunks,
        bytes: set.exposed.bytes,
        since: set.exposed.since.map(output::time_exact),
    }
}

fn benefactor(info: &BenefactorInfo) -> Benefactor {
    Benefactor {
        id: info.id.0,
        pid: info.pid,
        address: info.address.clone(),
        state: info.state,
        donated_bytes: info.load.donated_bytes,
        used_bytes: info.load.used_bytes,
        free_bytes: info.load.free_bytes,
        blocks: info.load.blocks,
        requests: info.load.requests,
        silent_ms: info.silent_ms,
    }
}

/// The worst thing that can be said of the pool, in one word, and all that there is to say.
fn health(status: &PoolStatus, mount: Option<&Mount>) -> (&'static str, Vec<String>) {
    let away = status.benefactors.iter().filter(|info| info.state != BenefactorState::Online).count();
    let online = status.benefactors.len() - away;
    let mounted = mount.is_none_or(|mount| mount.state == "online");
    let waits = mount.map(|mount| mount.waits.as_slice()).unwrap_or_default();
    let space = &status.space;
    // Those that are away altogether are told of already.
    let stuck = status.chunks_stuck.saturating_sub(status.chunks_lost + status.chunks_away);
    let tight = online > 0 && space.free_bytes < space.donated_bytes / 100 * FREE_PERCENT_MIN;
    // While benefactors have yet to report, what is missing may be with them.
    let missing = if status.counting { "starting" } else { "damaged" };
    let absent = if status.counting { "starting" } else { "unavailable" };
    let findings = [
        (
            !status.set_back.is_empty(),
            "set-back",
            format!(
                "the manager's store is an older copy: {} benefactors remember commits that it lacks, so nothing is written or \
                 collected; put the newer store back while the pool is down, or give up what was stored since with \
                 `stdchk accept-older-store`",
                status.set_back.len()
            ),
        ),
        (
            status.counting && (status.chunks_lost + status.chunks_away > 0 || online == 0),
            missing,
            "benefactors have yet to tell the manager what they have: look again in half a minute".to_owned(),
        ),
        (status.chunks_lost > 0, missing, format!("{} chunks have no copy anywhere", status.chunks_lost)),
        (
            status.chunks_away > 0,
            absent,
            format!("{} chunks are only at benefactors that are away", status.chunks_away),
        ),
        (online == 0, absent, "no benefactor is on-line: nothing can be read or written".to_owned()),
        (
            tight,
            "full",
            format!("{} of {} are free", size::human(space.free_bytes), size::human(space.donated_bytes)),
        ),
        (
            away > 0,
            "degraded",
            format!(
                "{away} of {} benefactors are not on-line: `stdchk up` starts those of a local pool, `stdchk forget` gives \
                 up those whose disk is gone",
                status.benefactors.len()
            ),
        ),
        (
            stuck > 0,
            "degraded",
            format!(
                "{stuck} chunks have fewer copies than their folder asks for, and no more can be made now: start more \
                 benefactors, make room, or ask for less `redundancy`"
            ),
        ),
        (
            status.versions_lost > 0,
            "degraded",
            format!(
                "{} files were closed early and lost: `stdchk ls FOLDER --versions` shows which",
                status.versions_lost
            ),
        ),
        (!mounted, "degraded", "the mount does not answer: `stdchk up` starts it again".to_owned()),
        (
            !waits.is_empty(),
            "degraded",
            format!("the mount has waited {}: the logs of the pool say more", waits.join(", and ")),
        ),
    ];
    let found: Vec<_> = findings.into_iter().filter(|(holds, ..)| *holds).collect();
    let word = found.first().map_or("healthy", |(_, word, _)| word);
    (word, found.into_iter().map(|(.., reason)| reason).collect())
}

/// What can be said without the manager.
fn down(address: String, context: &Context, mount: Option<Mount>) -> Outcome<Report> {
    let local = context.settings.manager.is_none();
    let process = if local { ProcessRecord::read(&context.home().run_file(Role::Manager))? } else { None };
    let pid = process.filter(ProcessRecord::is_alive).map(|process| process.pid);
    let mut report = report(address, &PoolStatus::default(), mount);
    report.health = "down";
    report.reasons = vec!["the manager does not answer".to_owned()];
    report.manager.state = "unreachable";
    report.manager.pid = pid;
    report.manager.uptime_seconds = None;
    Ok(report)
}

fn print(report: &Report) -> Outcome {
    output::line(format_args!("health    {}", report.health))?;
    report.reasons.iter().try_for_each(|reason| output::line(format_args!("          {reason}")))?;
    let manager = &report.manager;
    let process = manager.pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
    output::line(format_args!("manager   {} {}{process}", manager.address, manager.state))?;
    if let Some(mount) = &report.mount {
        output::line(format_args!("mount     {} {}", output::shown(&mount.path), mount.state))?;
    }
    if report.health == "down" {
        return Ok(());
    }
    print_figures(report)?;
    print_benefactors(report)
}

fn print_figures(report: &Report) -> Outcome {
    let (space, savings) = (&report.space, &report.savings);
    output::line(format_args!(
        "space     {} of {} used, {} free, {} reserved",
        size::human(space.used_bytes),
        size::human(space.donated_bytes),
        size::human(space.free_bytes),
        size::human(space.reserved_bytes)
    ))?;
    let ratio = savings.ratio.map(|ratio| format!(" (1/{ratio:.2})")).unwrap_or_default();
    output::line(format_args!(
        "content   {} in {} versions, {} distinct{ratio}, {} stored with all copies",
        size::human(savings.logical_bytes),
        report.versions,
        size::human(savings.unique_bytes),
        size::human(savings.stored_bytes)
    ))?;
    let counting = if report.counting { " (not final: the manager still counts)" } else { "" };
    output::line(format_args!(
        "chunks    {}, {} at risk, {} lost; copies: {} pending, {} made{counting}",
        report.chunks, report.chunks_at_risk, report.chunks_lost, report.repairs_pending, report.repairs_done
    ))?;
    print_exposed(report)?;
    output::line(format_args!("sessions  {} open", report.sessions))
}

/// What the loss of one more benefactor may cost.
fn print_exposed(report: &Report) -> Outcome {
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
        output::line(format_args!("          {what}: {} chunks ({size}){since}", set.chunks))?;
    }
    Ok(())
}

fn print_benefactors(report: &Report) -> Outcome {
    let mut table = Table::new(&["benefactor", "state", "address", ">process", ">used", ">donated", ">free"]);
    for entry in &report.benefactors {
        table.row([
            format!("b{}", entry.id),
            state_word(entry.state).to_owned(),
            entry.address.clone(),
            entry.pid.to_string(),
            size::human(entry.used_bytes),
            size::human(entry.donated_bytes),
            size::human(entry.free_bytes),
        ]);
    }
    table.print()
}

fn state_word(state: BenefactorState) -> &'static str {
    match state {
        BenefactorState::Online => "online",
        BenefactorState::Expected => "expected",
        BenefactorState::Offline => "offline",
        BenefactorState::Lost => "lost",
    }
}

#[cfg(test)]
mod tests {
    use stdchk_model::BenefactorId;

    use super::*;

    fn pool(states: &[BenefactorState]) -> PoolStatus {
        let info = |(index, state): (usize, &BenefactorState)| BenefactorInfo {
            id: BenefactorId(u32::try_from(index).unwrap()),
            address: String::new(),
            state: *state,
            load: Default::default(),
            pid: 1,
            silent_ms: 0,
        };
        PoolStatus { benefactors: states.iter().enumerate().map(info).collect(), ..PoolStatus::default() }
    }

    #[test]
    fn the_worst_finding_names_the_health_and_all_are_told() {
        let mut status = pool(&[BenefactorState::Online, BenefactorState::Lost]);
        assert_eq!(health(&pool(&[BenefactorState::Online]), None), ("healthy", vec![]));
        assert_eq!(health(&status, None).0, "degraded");
        status.space = Space { donated_bytes: 1000, free_bytes: 10, ..Space::default() };
        assert_eq!(health(&status, None).0, "full");
        status.chunks_lost = 1;
        let (word, reasons) = health(&status, None);
        assert_eq!((word, reasons.len()), ("damaged", 3));
        status.counting = true;
        let (word, reasons) = health(&status, None);
        assert_eq!((word, reasons.len()), ("starting", 4));
        assert_eq!(health(&pool(&[BenefactorState::Expected]), None).0, "unavailable");
    }

    #[test]
    fn copies_that_are_being_made_are_no_reason_to_worry_and_those_that_cannot_be_made_are() {
        let mut status = pool(&[BenefactorState::Online; 2]);
        (status.chunks_at_risk, status.exposed_chunks, status.repairs_pending) = (7, 7, 7);
        assert_eq!(health(&status, None), ("healthy", vec![]));
        status.chunks_stuck = 7;
        assert_eq!(health(&status, None).0, "degraded");
    }

    #[test]
    fn what_can_come_back_is_not_damaged() {
        let mut status = pool(&[BenefactorState::Online, BenefactorState::Lost]);
        (status.chunks_away, status.chunks_stuck) = (3, 3);
        assert_eq!(health(&status, None).0, "unavailable");
        status.chunks_lost = 1;
        assert_eq!(health(&status, None).0, "damaged");
    }

    #[test]
    fn a_mount_that_does_not_answer_or_waits_for_long_degrades_the_pool() {
        let status = pool(&[BenefactorState::Online]);
        let mut mount = Mount { path: "/x".into(), state: "not answering", waits: Vec::new() };
        assert_eq!(health(&status, Some(&mount)).0, "degraded");
        mount.state = "online";
        assert_eq!(health(&status, Some(&mount)).0, "healthy");
        mount.waits.push("20 s for room".to_owned());
        let (word, reasons) = health(&status, Some(&mount));
        assert!(word == "degraded" && reasons[0].contains("has waited 20 s for room"), "{reasons:?}");
    }

    #[test]
    fn a_store_that_is_an_older_copy_is_said_before_all_else() {
        let mut status = pool(&[BenefactorState::Online, BenefactorState::Lost]);
        (status.chunks_lost, status.set_back) = (1, vec![BenefactorId(0)]);
        assert_eq!(health(&status, None).0, "set-back");
    }
}
