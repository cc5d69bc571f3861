//! What the owner of a disk decides: `stdchk benefactor pause`, `drain`, `leave` and `resume`.
//!
//! The wish is written into the benefactor's folder, whether that runs or not. How far the pool is with it says the manager.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use stdchk_benefactor::wish::{self, Decision};
use stdchk_model::message::benefactor::OwnerWish;
use stdchk_model::message::manager::BenefactorState;
use stdchk_model::{BenefactorId, size};
use stdchk_net::data_dir;
use stdchk_operations::{BenefactorStatus, Pool, Status};

use crate::context::Context;
use crate::exit::{CommandError, Exit, Outcome, from_io};
use crate::local::Role;
use crate::output;
use crate::progress::Progress;

/// Interval between two looks of who waits.
const LOOK: Duration = Duration::from_millis(500);
/// Time after which who waits is told that nothing moves: longer than a copy takes that fails and is tried elsewhere.
const STUCK: Duration = Duration::from_secs(20);
/// Time for which a benefactor may be away, or not know of the wish, while somebody waits.
const AWAY: Duration = Duration::from_secs(30);

/// What `pause` and `resume` take.
#[derive(Args, Debug)]
#[command(after_help = "\
A benefactor that is paused takes no new blocks and searches for no damage. It serves what it has, and makes copies of
that alone of which nobody else can. It stays paused after restarts, and obeys within a second. Whoever may write into
its folder may pause it. Without DIR: all benefactors of the local pool. `resume` also ends a `drain` or a `leave`.

Example:
  stdchk benefactor pause /disk2/stdchk
  stdchk benefactor resume /disk2/stdchk")]
pub struct Pause {
    /// The benefactor's data folder
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Below the help of `drain`.
pub const DRAIN_HELP: &str = "\
What lies in the folder is copied to other benefactors until these have all copies that are wanted, and only then it
goes, block by block. Meanwhile the benefactor serves what it has. Then it stays on-line, drained, until `resume`. What
was written in the last minute, and what files hold that are being written, goes last. Where the others have no room,
or are too few, the blocks stay, and this command and `stdchk status` say so. Whoever may write into the folder may
drain it.

Example:
  stdchk benefactor drain /disk2/stdchk --wait
  stdchk benefactor resume /disk2/stdchk";

/// Below the help of `leave`.
pub const LEAVE_HELP: &str = "\
As `drain`; when nothing is left, the pool forgets the benefactor and its process ends. Then the folder can be removed.
`stdchk benefactor resume` takes it back as long as it has not left; afterwards it lets the benefactor join again at its
next start.

Example:
  stdchk benefactor leave /disk2/stdchk --wait
  stdchk benefactor resume /disk2/stdchk";

/// What `drain` and `leave` take.
#[derive(Args, Debug)]
pub struct Drain {
    /// The benefactor's data folder
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Wait until nothing is left there; what was begun goes on if this is cut off
    #[arg(long)]
    wait: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Writes down what the owner wishes of one benefactor, or of all on this machine.
pub fn decide(arguments: &Pause, wish: OwnerWish, context: &Context) -> Outcome {
    let folders = match &arguments.directory {
        Some(folder) => vec![folder.clone()],
        None => local_benefactors(context)?,
    };
    // First all are looked at, so that a wrong one changes nothing.
    let found = folders.iter().map(|folder| number_of(folder).and_then(|_| decision(folder)));
    let before: Vec<Decision> = found.collect::<Outcome<_>>()?;
    for folder in &folders {
        wish::decide(folder, wish).map_err(|error| from_io(&error, folder.display()))?;
    }
    if context.settings.quiet {
        return Ok(());
    }
    folders.iter().zip(before).try_for_each(|(folder, before)| {
        let (folder, now) = (folder.display(), if wish == OwnerWish::Pause { "paused" } else { "resumed" });
        let next = match before {
            Decision::Left => "; it had left the pool, and joins it again when it is started",
            Decision::Wish(_) => "",
        };
        output::line(format_args!("{now} {folder}{next}"))
    })
}

fn local_benefactors(context: &Context) -> Outcome<Vec<PathBuf>> {
    let (home, record) = (context.home(), context.home().record_required()?);
    let roles = record.roles().into_iter().filter(|role| matches!(role, Role::Benefactor(_)));
    let folders: Vec<PathBuf> = roles.map(|role| home.directory(role)).collect();
    if folders.is_empty() {
        let next = "name the benefactor's folder";
        return Err(CommandError::new(
            Exit::NotFound,
            home.path().display(),
            "no benefactor runs here",
            next,
        ));
    }
    Ok(folders)
}

/// The number of the benefactor whose folder this is.
fn number_of(folder: &Path) -> Outcome<BenefactorId> {
    let refuse = |cause: &dyn std::fmt::Display| {
        let next = "name the folder that the benefactor was started with";
        CommandError::new(Exit::NotFound, folder.display(), cause, next)
    };
    match data_dir::benefactor_of(folder) {
        Ok(Some(id)) => Ok(id),
        Ok(None) => Err(refuse(&"no benefactor of a pool has its data here")),
        Err(error) => Err(refuse(&error)),
    }
}

fn decision(folder: &Path) -> Outcome<Decision> {
    wish::decision(folder).map_err(|error| from_io(&error, folder.display()))
}

/// Drains a benefactor; with [`OwnerWish::Leave`] the pool forgets it then.
pub async fn drain(arguments: &Drain, wish: OwnerWish, context: &Context) -> Outcome {
    let folder = &arguments.directory;
    let drained = Drained { folder, id: number_of(folder)?, wish, json: arguments.json };
    match (decision(folder)?, wish) {
        (Decision::Left, OwnerWish::Leave) => return drained.tell(&drained.report(None, true), context),
        (Decision::Left, _) => {
            let next = "`stdchk benefactor resume` first, if it is to join again";
            let cause = "the benefactor has left its pool and holds nothing";
            return Err(CommandError::usage(folder.display(), cause, next));
        }
        (Decision::Wish(_), _) => {}
    }
    wish::decide(folder, wish).map_err(|error| from_io(&error, folder.display()))?;
    let pool = context.pool().await.map_err(|error| {
        let told = format!(
            "the wish is written down, and the benefactor does it when it runs and reaches the manager; how far it is can't be \
             asked: {}",
            error.message
        );
        CommandError::complete(error.exit, folder.display(), told)
    })?;
    match arguments.wait {
        true => drained.wait(&pool, context).await,
        false => drained.tell(&drained.look(&pool).await?.0, context),
    }
}

/// A benefactor that is to let go of what it has.
struct Drained<'a> {
    folder: &'a Path,
    id: BenefactorId,
    wish: OwnerWish,
    json: bool,
}

/// How far it is.
#[derive(Serialize)]
struct Report {
    folder: String,
    benefactor: u32,
    /// What its owner wishes.
    wish: OwnerWish,
    /// Nothing is left there; with `leave`, the pool has forgotten it, too.
    done: bool,
    /// Absent: the manager doesn't know the benefactor, or can't be asked.
    state: Option<BenefactorState>,
    /// Blocks that are still there.
    blocks: Option<u64>,
    /// Bytes that they take.
    used_bytes: Option<u64>,
    /// Why blocks can't be copied elsewhere now.
    unmovable: Option<String>,
}

impl Drained<'_> {
    fn report(&self, entry: Option<&BenefactorStatus>, done: bool) -> Report {
        Report {
            folder: self.folder.display().to_string(),
            benefactor: self.id.0,
            wish: self.wish,
            done,
            state: entry.map(|entry| entry.state),
            blocks: if done { Some(0) } else { entry.map(|entry| entry.blocks) },
            used_bytes: entry.map(|entry| entry.used_bytes),
            unmovable: None,
        }
    }

    /// How far it is by now, and whether nothing can be copied any more of what is to be.
    async fn look(&self, pool: &Pool) -> Outcome<(Report, bool)> {
        let status: Status = pool.status().await?;
        let entry = status.benefactors.iter().find(|entry| entry.id == self.id.0);
        let is_empty = entry.is_some_and(|entry| {
            entry.state == BenefactorState::Online && entry.wish == self.wish && entry.blocks == 0
        });
        let done = match self.wish {
            OwnerWish::Leave => decision(self.folder)? == Decision::Left,
            _ => is_empty,
        };
        let is_stuck = status.chunks_unmovable > 0 && status.chunks_unmovable == status.chunks_moving;
        let unmovable = status.unmovable.filter(|_| !done);
        Ok((Report { unmovable, ..self.report(entry, done) }, is_stuck))
    }

    async fn wait(&self, pool: &Pool, context: &Context) -> Outcome {
        let (mut progress, mut last) = (None, (None, Instant::now()));
        let mut there = Instant::now();
        loop {
            let (report, is_stuck) = self.look(pool).await?;
            if report.done {
                drop(progress);
                return self.tell(&report, context);
            }
            let decided = decision(self.folder)?;
            if decided != Decision::Wish(self.wish) && decided != Decision::Left {
                let next = "give the command again if it is to be done after all";
                let cause = "somebody has decided otherwise meanwhile";
                return Err(CommandError::new(Exit::Other, self.folder.display(), cause, next));
            }
            let used = report.used_bytes.unwrap_or_default();
            let (drawn, before) = progress
                .get_or_insert_with(|| (Progress::start("gave back", used, context.settings.quiet), used));
            drawn.add(before.saturating_sub(used));
            *before = used.min(*before);
            if report.blocks != last.0 || !is_stuck {
                last = (report.blocks, Instant::now());
            }
            if report.state == Some(BenefactorState::Online) {
                there = Instant::now();
            }
            if let Some(why) = report.unmovable.as_ref().filter(|_| last.1.elapsed() >= STUCK) {
                drop(progress);
                let blocks = report.blocks.unwrap_or_default();
                let told = format!("{blocks} blocks are still there: {why}. The wish stays until `resume`");
                return Err(CommandError::complete(Exit::NoSpace, self.folder.display(), told));
            }
            if there.elapsed() >= AWAY {
                let next = "start it (`stdchk up`, of a local pool): the wish is written down";
                return Err(CommandError::new(
                    Exit::Unreachable,
                    self.folder.display(),
                    "the benefactor is not on-line, so nothing is copied from it",
                    next,
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn tell(&self, report: &Report, context: &Context) -> Outcome {
        if self.json {
            return output::json(report);
        }
        if context.settings.quiet {
            return Ok(());
        }
        let folder = self.folder.display();
        match (report.done, self.wish) {
            (true, OwnerWish::Leave) => {
                output::line(format_args!("{folder} has left the pool and can be removed"))
            }
            (true, _) => output::line(format_args!(
                "{folder} is drained: nothing is stored there until `stdchk benefactor resume`"
            )),
            (false, _) => {
                let left = match (report.blocks, report.used_bytes) {
                    (Some(blocks), Some(bytes)) => format!("{blocks} blocks, {}", size::human(bytes)),
                    _ => "the manager doesn't know how much".to_owned(),
                };
                let why = report.unmovable.as_ref().map(|why| format!(". {why}")).unwrap_or_default();
                output::line(format_args!("{folder} gives back what it has: {left}, are still there{why}"))
            }
        }
    }
}
