//! `stdchk up`: a pool on this machine, in the background, ready when the command returns.
//!
//! What runs already is left alone; only what is missing is started. So the same command also mends a pool of which
//! processes were killed, or all of it after a reboot.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use stdchk_benefactor::is_in_memory;
use stdchk_client::Pool;
use stdchk_manager::AUTHORITY;
use stdchk_model::message::handshake;
use stdchk_model::message::manager::{BenefactorInfo, BenefactorState};
use stdchk_model::{PoolId, size};
use stdchk_net::data_dir::{self, DataDirError};
use stdchk_net::{Authority, Keys};
use tokio::runtime::Runtime;

use super::benefactor::serving::UpServingArguments;
use super::benefactor::terms::{Terms, TermsArguments, TierTerm};
use super::benefactor::{label, labels_over};
use super::pool::about_keys;
use crate::context::Context;
use crate::exit::{CommandError, Exit, Outcome};
use crate::local::disk::{self, Disk};
use crate::local::shared::{SharedArguments, other_managers};
use crate::local::start::{self, READY_TIMEOUT, Started, has_left, running};
use crate::local::{Answers, Home, PoolRecord, Role, WaitingFiles, mountpoint};
use crate::output;

/// Benefactors of a new pool unless told otherwise: a stripe to write on, and replicas on different ones.
const BENEFACTORS_DEFAULT: u16 = 4;
/// Most benefactors that one machine is asked to run: each is a process.
const BENEFACTORS_MAX: u16 = 64;
/// Time for which one look at the manager waits.
const LOOK_PATIENCE: Duration = Duration::from_millis(200);
/// Time for the answer of each manager, when none lets this host in.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);

/// Time within which a benefactor is on-line where nothing is wrong; then the pool is mounted, and others are waited for.
const SOON: Duration = Duration::from_secs(5);

/// What `up` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Run again, it starts what is missing: after a crash, after a reboot, or with a larger --benefactors.
Without --donate the benefactors share half of the disk's free space above the floor; without --floor, 5 % of the
disk, at least 1 GiB, always stay free.

Example:
  stdchk up
  stdchk up --benefactors 5 --data /scratch/pool --mount /scratch/mnt --donate 20GiB")]
pub struct Arguments {
    /// Number of benefactors [default: 4, or as many as the pool has]
    #[arg(long, value_name = "N", value_parser = benefactor_count)]
    benefactors: Option<u16>,
    /// Where to mount the pool; made if it is missing
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Have the mount wait for ever for a manager that is away, as `stdchk mount --hard` does; `--hard=false` takes that back
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    hard: Option<bool>,
    /// Most space that each benefactor takes, such as 20GiB
    #[arg(long, value_name = "SIZE")]
    donate: Option<String>,
    /// Space on the disk that always stays free, such as 5GiB
    #[arg(long, value_name = "SIZE")]
    floor: Option<String>,
    /// What benefactors share, such as rack=3 or site=b, several times; held until others are given
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    #[command(flatten)]
    serving: UpServingArguments,
    #[command(flatten)]
    shared: SharedArguments,
    #[command(flatten)]
    terms: TermsArguments,
}

fn benefactor_count(text: &str) -> Result<u16, String> {
    let count = text.parse().ok().filter(|count| (1..=BENEFACTORS_MAX).contains(count));
    count.ok_or_else(|| format!("give a number of benefactors from 1 to {BENEFACTORS_MAX}"))
}

/// Runs the command.
pub fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let home = context.home_to_run()?;
    let mount = arguments.mount.as_deref().map(mountpoint::real).transpose()?;
    home.prepare(mount.as_deref())?;
    let _lock = home.lock()?;
    let mut record = match home.record()? {
        Some(record) => {
            refuse_lost_manager(&home, &record)?;
            refuse_other_role(&record, arguments, context)?;
            changed(&home, record, arguments)?
        }
        None => {
            home.refuse_left_keys()?;
            match arguments.shared.new_record()? {
                Some(record) => record,
                None => new(&home, arguments)?,
            }
        }
    };
    arguments.shared.settle(&home, &mut record)?;
    set_mount(&home, &mut record, mount)?;
    set_hard(&home, &mut record, arguments.hard)?;
    if home.record()?.as_ref() != Some(&record) {
        home.write_record(&record)?;
    }
    start(&home, &record, context)
}

/// Starts what is missing of a pool, or of this host's part of one, and says so. The caller has the lock.
pub fn start(home: &Home, record: &PoolRecord, context: &Context) -> Outcome {
    let mut started = Started::new(home);
    start_all(home, record, context, &mut started)?;
    report(home, record, &started, context.settings.quiet)?;
    for waiting in WaitingFiles::left_alone(home)? {
        output::note(format_args!("stdchk up: {waiting}"));
    }
    started.refuse_failed()
}

/// A pool that wasn't there before.
fn new(home: &Home, arguments: &Arguments) -> Outcome<PoolRecord> {
    let benefactors = arguments.benefactors.unwrap_or(BENEFACTORS_DEFAULT);
    let (donate, floor) =
        disk::sizes(arguments.donate.as_deref(), arguments.floor.as_deref(), home.path(), benefactors)?;
    let terms = arguments.terms.over(&Terms::default())?;
    if arguments.serving.of_benefactors().is_any() {
        let cause = "all of a pool that `up` makes is on this machine, and its processes meet at sockets";
        return Err(CommandError::usage(
            "--benefactor-listen",
            cause,
            "`stdchk pool init` makes one of several machines",
        ));
    }
    let labels = labels_over(&arguments.labels, &[])?;
    Ok(PoolRecord { terms, labels, ..PoolRecord::new(benefactors, donate, floor) })
}

/// A manager that has lost its data would begin a new pool, which the benefactors of the old one can't join. A benefactor
/// whose folder can't be read says so when it is started, and counts here only where nobody else knows the pool.
fn refuse_lost_manager(home: &Home, record: &PoolRecord) -> Outcome {
    // In etcd it isn't lost with the folder.
    if record.manager.is_some() || record.store.is_some() {
        return Ok(());
    }
    let manager = home.directory(Role::Manager);
    let of_manager = pool_of(&manager, handshake::Role::Manager)?;
    let benefactors = (0..record.benefactors).map(|index| home.directory(Role::Benefactor(index)));
    let of_benefactors = benefactors.map(|directory| pool_of(&directory, handshake::Role::Benefactor));
    let (known, unreadable): (Vec<_>, Vec<_>) = of_benefactors.partition(Result::is_ok);
    let mut known: Vec<PoolId> = known.into_iter().flatten().flatten().collect();
    if record.listen.is_some() && Keys::are_in(&home.keys()) {
        known.push(Keys::load(&home.keys()).map_err(about_keys)?.pool());
    }
    if of_manager.is_none()
        && known.is_empty()
        && let Some(Err(error)) = unreadable.into_iter().next()
    {
        return Err(error);
    }
    let Some(pool) = known.first().filter(|_| !known.iter().any(|pool| of_manager == Some(*pool))) else {
        return Ok(());
    };
    let cause = format!("the manager's data of pool {pool} is gone, while its benefactors are there");
    let next = "put the folder back from a backup, or make it anew of what benefactors keep with `stdchk manager recover`; a new \
                pool needs another `--data DIR`";
    Err(CommandError::new(Exit::Integrity, manager.display(), cause, next))
}

/// A host that joined a pool starts only what it joined for.
fn refuse_other_role(record: &PoolRecord, arguments: &Arguments, context: &Context) -> Outcome {
    let Some(keys) = context.keys()?.filter(|_| record.manager.is_some()) else { return Ok(()) };
    let asked = [
        ("--mount", handshake::Role::Client, arguments.mount.is_some()),
        ("--benefactors", handshake::Role::Benefactor, arguments.benefactors.is_some()),
    ];
    match asked.into_iter().find(|(_, role, is_asked)| *is_asked && !keys.member().may_be(*role)) {
        None => Ok(()),
        Some((flag, role, _)) => {
            let role = role.name();
            let cause = format!("this host has not joined the pool as a {role}");
            let next =
                format!("join with a token of `stdchk pool token --for {role}`, in another `--data DIR`");
            Err(CommandError::usage(flag, cause, next))
        }
    }
}

/// The pool for which the folder of a role is marked.
fn pool_of(directory: &Path, role: handshake::Role) -> Outcome<Option<PoolId>> {
    data_dir::pool_of(directory, role).map_err(|error| {
        let (exit, next) = match &error {
            DataDirError::Io { .. } => {
                (Exit::Other, "see to its permissions and its disk, then run `stdchk up` again")
            }
            _ => (Exit::Integrity, "put the folder back from a backup, or use another `--data DIR`"),
        };
        CommandError::new(exit, directory.display(), error, next)
    })
}

/// A pool that was there, with what is asked for now.
fn changed(home: &Home, mut record: PoolRecord, arguments: &Arguments) -> Outcome<PoolRecord> {
    let benefactors = arguments.benefactors.unwrap_or(record.benefactors);
    if benefactors < record.benefactors {
        return Err(CommandError::usage(
            format!("--benefactors {benefactors}"),
            format_args!("the pool has {}, and what they hold would be missing", record.benefactors),
            "leave the number out, or give a larger one",
        ));
    }
    let before = record.clone();
    record.benefactors = benefactors;
    record.terms = arguments.terms.over(&before.terms)?;
    record.labels = labels_over(&arguments.labels, &before.labels)?;
    let serving = arguments.serving.of_benefactors();
    record.serving = serving.over(&before.serving, benefactors)?;
    if serving.is_any() && record.on_network().is_none() {
        let cause = "all of this pool is on this machine, and its processes meet at sockets";
        return Err(CommandError::usage(
            "--benefactor-listen",
            cause,
            "`stdchk pool init` makes one of several machines",
        ));
    }
    let (donate, floor) = (arguments.donate.as_deref(), arguments.floor.as_deref());
    if before.benefactors == 0 && benefactors > 0 {
        (record.donate_bytes, record.floor_bytes) = disk::sizes(donate, floor, home.path(), benefactors)?;
        return Ok(record);
    }
    let sizes = (before.donate_bytes, before.floor_bytes);
    (record.donate_bytes, record.floor_bytes) =
        disk::sizes_over((donate, floor), sizes, home.path(), benefactors)?;
    refuse_other_sizes_while_running(home, &before, &record)?;
    Ok(record)
}

/// Benefactors keep the sizes that they were started with, and the record tells the sizes that hold.
fn refuse_other_sizes_while_running(home: &Home, before: &PoolRecord, asked: &PoolRecord) -> Outcome {
    let flag = match (before.donate_bytes != asked.donate_bytes, before.floor_bytes != asked.floor_bytes) {
        (true, _) => format!("--donate {}", size::exact(asked.donate_bytes)),
        (_, true) => format!("--floor {}", size::exact(asked.floor_bytes)),
        _ if before.terms != asked.terms => "the terms".to_owned(),
        _ if before.labels != asked.labels => "--label".to_owned(),
        _ if before.serving != asked.serving => "--benefactor-listen".to_owned(),
        (false, false) => return Ok(()),
    };
    for index in 0..before.benefactors {
        if running(home, Role::Benefactor(index))?.is_some() {
            let labels = before.labels.iter().flat_map(|label| ["--label".to_owned(), label.clone()]);
            let terms = before.terms.arguments().into_iter().chain(labels).collect::<Vec<_>>().join(" ");
            let with = if terms.is_empty() { String::new() } else { format!(", `{terms}`") };
            let cause = format!(
                "benefactors run, each with a donation of {} and a floor of {}{with}",
                size::human(before.donate_bytes),
                size::human(before.floor_bytes)
            );
            return Err(CommandError::usage(
                flag,
                cause,
                "`stdchk down` first, then `stdchk up` with what is new",
            ));
        }
    }
    Ok(())
}

/// Takes note of where the pool is to be mounted, if that can be: a record with a folder that can't be a mount point
/// would make every later `up` fail.
fn set_mount(home: &Home, record: &mut PoolRecord, mount: Option<PathBuf>) -> Outcome {
    let Some(mount) = mount else { return Ok(()) };
    if running(home, Role::Mount)?.is_none() {
        mountpoint::make_ready(&mount)?;
    } else if let Some(before) = record.mount.as_ref().filter(|before| **before != mount) {
        return Err(CommandError::usage(
            mount.display(),
            format_args!("the pool is mounted at {}", before.display()),
            "`stdchk down` first, or mount it a second time with `stdchk mount DIR`",
        ));
    }
    record.mount = Some(mount);
    Ok(())
}

/// Takes note of whether the mount waits for ever for the manager.
fn set_hard(home: &Home, record: &mut PoolRecord, hard: Option<bool>) -> Outcome {
    let Some(hard) = hard.filter(|hard| *hard != record.hard) else { return Ok(()) };
    if running(home, Role::Mount)?.is_some() {
        let cause = "the pool is mounted in the other way";
        return Err(CommandError::usage("--hard", cause, "`stdchk down` first, then `stdchk up --hard`"));
    }
    if record.mount.is_none() {
        return Err(CommandError::usage("--hard", "nothing is mounted here", "give `--mount DIR` as well"));
    }
    record.hard = hard;
    Ok(())
}

/// Starts all that is missing. The mount waits only for benefactors that come up soon: with one that stands still, or reads
/// a long inventory, jobs get at the rest meanwhile.
fn start_all(home: &Home, record: &PoolRecord, context: &Context, started: &mut Started<'_>) -> Outcome {
    let runtime = super::runtime()?;
    let authority = home.directory(Role::Manager).join(AUTHORITY);
    if record.store.is_some() && authority.exists() && !Keys::are_in(&home.keys()) {
        // Another manager may lead, and isn't reached without.
        make_keys(home)?;
    }
    let pool = match start_servers(&runtime, home, record, context, started)? {
        Some(pool) => pool,
        None => await_manager(&runtime, home, record, context, started)?,
    };
    if record.listen.is_some() && !Keys::are_in(&home.keys()) {
        make_keys(home)?;
    }
    if let Some(listen) = record.listen.as_ref().filter(|_| record.store.is_some()) {
        await_shared((&runtime, record, context), &pool, listen, started)?;
    }
    let begin = Instant::now();
    let mut all_settled = |started: &mut Started<'_>| {
        start_missing_servers(home, record, context, started)?;
        note_twins(&runtime, &pool, home, record, started)?;
        Ok(unsettled(&runtime, &pool, home, record, started)?.is_empty())
    };
    let are_settled = started.wait_at_most(SOON, &mut all_settled)?;
    if let Some(mount) = &record.mount {
        start_mount(home, record, mount, context, started)?;
    }
    if !are_settled && !started.wait_at_most(READY_TIMEOUT.saturating_sub(begin.elapsed()), all_settled)? {
        for role in unsettled(&runtime, &pool, home, record, started)? {
            let error = not_ready(home, role)?;
            started.note_failed(role, error);
        }
    }
    let status = runtime.block_on(pool.status()).ok();
    if status.is_some_and(|status| !status.set_back.is_empty()) {
        output::note(
            "stdchk up: the manager's store is an older copy and nothing is written; see `stdchk status`",
        );
    }
    Ok(())
}

/// Waits until the manager that leads knows this host's one: then it leads or stands by.
fn await_shared(
    (runtime, record, context): (&Runtime, &PoolRecord, &Context),
    pool: &Pool,
    listen: &String,
    started: &mut Started<'_>,
) -> Outcome {
    let mut is_known = |_: &mut Started<'_>| {
        let status = runtime.block_on(pool.status()).ok();
        Ok(status
            .is_some_and(|status| status.managers.iter().any(|manager| manager.addresses.contains(listen))))
    };
    if started.wait_at_most(SOON, &mut is_known)? {
        return Ok(());
    }
    say_what_is_awaited(runtime, record, context);
    match started.wait_at_most(READY_TIMEOUT.saturating_sub(SOON), is_known)? {
        true => Ok(()),
        false => Err(silent_etcd(runtime, record)
            .unwrap_or_else(|| started.not_ready(&format!("the manager at {listen}")))),
    }
}

/// The keys of the host on which the manager of a pool of several machines runs: who may start it may do everything.
fn make_keys(home: &Home) -> Outcome {
    let roles = [handshake::Role::Operator, handshake::Role::Benefactor];
    let authority = Authority::open(&home.directory(Role::Manager).join(AUTHORITY));
    let made = authority.and_then(|authority| authority.keys(&roles)?.save(&home.keys()));
    made.map_err(about_keys)
}

/// A benefactor that runs, and isn't on-line after all that time.
fn not_ready(home: &Home, role: Role) -> Outcome<CommandError> {
    let log = home.log_file(role);
    let process = running(home, role)?;
    let cause = match &process {
        Some(process) if process.is_stopped() => {
            format!("process {} stands still: a signal stopped it", process.pid)
        }
        Some(process) => {
            format!("process {} was not on-line within {} s", process.pid, READY_TIMEOUT.as_secs())
        }
        None => "it does not run".to_owned(),
    };
    let next = match &process {
        Some(process) if process.is_stopped() => format!("`kill -CONT {}` lets it go on", process.pid),
        _ => format!("its log {} may say why, and `stdchk status` shows when it is there", log.display()),
    };
    Ok(CommandError::new(Exit::Unreachable, role.name(), cause, next))
}

/// Starts a role unless it runs. Asked for again while `up` waits: what ran may have been killed a moment ago, and end
/// only now.
fn start_missing(
    home: &Home,
    record: &PoolRecord,
    role: Role,
    context: &Context,
    started: &mut Started<'_>,
) -> Outcome {
    if started.includes(role) || has_left(home, role) || running(home, role)?.is_some() {
        return Ok(());
    }
    if let (Role::Mount, Some(mount)) = (role, &record.mount) {
        mountpoint::make_ready(mount)?;
    }
    started.start(role, start::arguments(home, record, role, &context.settings))
}

/// Starts manager and benefactors, and waits until the manager answers; `None`: it is elsewhere, and doesn't yet.
fn start_servers(
    runtime: &Runtime,
    home: &Home,
    record: &PoolRecord,
    context: &Context,
    started: &mut Started<'_>,
) -> Outcome<Option<Pool>> {
    let mut pool = None;
    let is_elsewhere = record.manager.is_some();
    let mut answers = |started: &mut Started<'_>| {
        // A host that is shut out starts nothing.
        if is_elsewhere {
            pool = connect(runtime, home, record, context)?;
        }
        start_missing_servers(home, record, context, started)?;
        if pool.is_none() {
            pool = connect(runtime, home, record, context)?;
        }
        Ok(pool.is_some())
    };
    if started.wait_at_most(SOON, &mut answers)? || is_elsewhere {
        return Ok(pool);
    }
    say_what_is_awaited(runtime, record, context);
    if !started.wait_at_most(READY_TIMEOUT.saturating_sub(SOON), &mut answers)? {
        let what = format!("pool {}", home.path().display());
        return Err(silent_etcd(runtime, record).unwrap_or_else(|| started.not_ready(&what)));
    }
    Ok(pool)
}

/// Says that etcd doesn't answer, if that is why nobody leads.
fn say_what_is_awaited(runtime: &Runtime, record: &PoolRecord, context: &Context) {
    if let Err(silent) = runtime.block_on(other_managers(record))
        && !context.settings.quiet
    {
        output::note(format_args!("stdchk up: waits for {silent}"));
    }
}

/// The error of a pool that isn't there since its etcd doesn't answer.
fn silent_etcd(runtime: &Runtime, record: &PoolRecord) -> Option<CommandError> {
    let next = "start its members, or mend the way to them; what was started here goes on waiting, and comes by itself once they answer";
    runtime.block_on(other_managers(record)).err().map(|silent| silent.error(next))
}

/// Has the benefactor and the mount of this host wait for a manager elsewhere that doesn't answer, perhaps since its machine starts later:
/// they come by themselves once it is there. This command waits for a while to see that.
fn await_manager(
    runtime: &Runtime,
    home: &Home,
    record: &PoolRecord,
    context: &Context,
    started: &mut Started<'_>,
) -> Outcome<Pool> {
    let manager = home.manager_address(record);
    if !context.settings.quiet {
        output::note(format_args!("stdchk up: waits for the manager at {manager}, which does not answer"));
    }
    say_what_is_awaited(runtime, record, context);
    if record.mount.is_some() {
        start_missing(home, record, Role::Mount, context, started)?;
    }
    let mut pool = None;
    started.wait_at_most(READY_TIMEOUT.saturating_sub(SOON), |_| {
        pool = connect(runtime, home, record, context)?;
        Ok(pool.is_some())
    })?;
    if let Some(pool) = pool {
        return Ok(pool);
    }
    Err(silent_etcd(runtime, record).unwrap_or_else(|| {
        let cause = format!("it did not answer within {} s", READY_TIMEOUT.as_secs());
        let next = "what was started here goes on waiting for it, and comes by itself once it is there; `stdchk status` shows it";
        CommandError::new(Exit::Unreachable, format_args!("manager {manager}"), cause, next)
    }))
}

fn start_missing_servers(
    home: &Home,
    record: &PoolRecord,
    context: &Context,
    started: &mut Started<'_>,
) -> Outcome {
    let mut servers = record.roles().into_iter().filter(|role| *role != Role::Mount);
    servers.try_for_each(|role| start_missing(home, record, role, context, started))
}

fn start_mount(
    home: &Home,
    record: &PoolRecord,
    mount: &Path,
    context: &Context,
    started: &mut Started<'_>,
) -> Outcome {
    started.wait(&format!("mount {}", mount.display()), |started| {
        start_missing(home, record, Role::Mount, context, started)?;
        // The folder itself isn't asked: whoever waits in it for the manager is waiting for this command.
        Ok(running(home, Role::Mount)?.is_some() && mountpoint::is_mounted(mount)?)
    })
}

/// A connection to the pool; `None`: no manager answers yet.
///
/// # Errors
/// One answers that refuses this host.
fn connect(runtime: &Runtime, home: &Home, record: &PoolRecord, context: &Context) -> Outcome<Option<Pool>> {
    let mut all = home.manager_address(record);
    if let Some(pool) = connect_to(&all, runtime, context)? {
        return Ok(Some(pool));
    }
    // Of an etcd that doesn't answer those tell that wait.
    let others = runtime.block_on(other_managers(record)).unwrap_or_default();
    if !others.is_empty() {
        // An address behind a socket would be taken for a part of its path.
        all = format!("{},{all}", others.join(","));
        if let Some(pool) = connect_to(&all, runtime, context)? {
            return Ok(Some(pool));
        }
    }
    let answers = runtime.block_on(Answers::of(&all, context.keys()?, ANSWER_PATIENCE));
    // It won't be otherwise in a moment.
    answers.refusal().map_or(Ok(None), Err)
}

fn connect_to(manager: &str, runtime: &Runtime, context: &Context) -> Outcome<Option<Pool>> {
    let config = stdchk_client::ClientConfig {
        manager: manager.to_owned(),
        keys: context.keys()?,
        window_bytes: context.settings.window_bytes,
        patience: LOOK_PATIENCE,
        // It is told of.
        or_older: true,
        ..Default::default()
    };
    // Why there is none is asked of each manager.
    Ok(runtime.block_on(Pool::connect(config)).ok())
}

/// The benefactors that the manager doesn't see on-line, and that have not failed.
fn unsettled(
    runtime: &Runtime,
    pool: &Pool,
    home: &Home,
    record: &PoolRecord,
    started: &Started<'_>,
) -> Outcome<Vec<Role>> {
    let known = runtime.block_on(pool.status()).map(|status| status.benefactors).unwrap_or_default();
    // Another machine's may have the same process number.
    let is_online = |id, pid| {
        let is_it = |info: &&BenefactorInfo| Some(info.id) == id && info.pid == pid;
        known.iter().find(is_it).is_some_and(|info| info.state == BenefactorState::Online)
    };
    let mut unsettled = Vec::new();
    let is_awaited = |role: &Role| !started.has_failed(*role) && !has_left(home, *role);
    for role in (0..record.benefactors).map(Role::Benefactor).filter(is_awaited) {
        let id = data_dir::benefactor_of(&home.directory(role)).unwrap_or(None);
        if !running(home, role)?.is_some_and(|process| is_online(id, process.pid)) {
            unsettled.push(role);
        }
    }
    Ok(unsettled)
}

/// Takes note of benefactors that are refused, since other processes serve under their numbers.
fn note_twins(
    runtime: &Runtime,
    pool: &Pool,
    home: &Home,
    record: &PoolRecord,
    started: &mut Started<'_>,
) -> Outcome {
    let known = runtime.block_on(pool.status()).map(|status| status.benefactors).unwrap_or_default();
    for role in (0..record.benefactors).map(Role::Benefactor) {
        let id = data_dir::benefactor_of(&home.directory(role)).unwrap_or(None);
        let Some(process) = running(home, role)? else { continue };
        let Some(info) = known.iter().find(|info| Some(info.id) == id) else { continue };
        if let Some(twin) = info.twin.as_ref().filter(|twin| twin.pid == process.pid) {
            let cause = format!(
                "it is refused at {}: a process at {} serves as {} of this pool from another copy of the same folder",
                twin.address, info.address, info.id
            );
            let next = "stop the one that is not meant with `stdchk down` on its machine, and this one gets in by itself; if this machine was cloned, \
                        let it join anew with an empty data folder";
            started.note_failed(role, CommandError::new(Exit::Other, role.name(), cause, next));
        }
    }
    Ok(())
}

fn report(home: &Home, record: &PoolRecord, started: &Started<'_>, quiet: bool) -> Outcome {
    if quiet {
        return Ok(());
    }
    let disk = Disk::of(home.path())?;
    let each = record.donate_bytes;
    let (left, count): (Vec<Role>, Vec<Role>) =
        (0..record.benefactors).map(Role::Benefactor).partition(|role| has_left(home, *role));
    let (left, count) = (left.len(), count.len());
    let failed = record.roles().into_iter().filter(|role| started.has_failed(*role)).count();
    let (all, new) = (record.roles().len() - left, started.count());
    let (data, running) = (home.path().display(), all - failed - new);
    let without =
        if failed > 0 { format!(", WITHOUT {}", output::count(failed, "benefactor")) } else { String::new() };
    output::line(format_args!(
        "pool {data} is up{without}: {new} processes started, {running} were running"
    ))?;
    output::line(format_args!("  manager     {}", home.manager_address(record)))?;
    if count > 0 {
        output::line(format_args!(
            "  benefactors {count}, each takes up to {}: {} in all; the disk has {} free, {} of it stay free",
            size::human(each),
            size::human(each.saturating_mul(count as u64)),
            size::human(disk.free_bytes),
            size::human(record.floor_bytes)
        ))?;
    }
    let is_trial = record.manager.is_none() && record.terms.tier != TierTerm::Memory;
    if count > 0 && is_trial && is_in_memory(home.path()).unwrap_or(false) {
        output::line(format_args!(
            "  memory      {data} lies in memory: all that is stored there is lost with this machine"
        ))?;
    }
    if left > 0 {
        output::line(format_args!(
            "  {} left the pool and stayed out: `stdchk benefactor resume` lets one join again",
            output::count(left, "benefactor")
        ))?;
    }
    match &record.mount {
        Some(mount) => output::line(format_args!("  mount       {}", mount.display())),
        None => Ok(()),
    }
}
