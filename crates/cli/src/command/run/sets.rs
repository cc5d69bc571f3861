//! `--with-sets`: file states that belong to the checkpoint sets which the program writes to a pool.
//!
//! The states are taken by the program's own calls (`stdchk_filestate::watch::sets`); here is what surrounds that: which
//! folder of which pool it is, and which set a resumed run goes back to, the one that `stdchk latest` names.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use stdchk_filestate::store::{Sets, Store};
use stdchk_model::Timestep;
use stdchk_model::naming::Naming;
use stdchk_operations::{Code, Depth, Target, WhenAway};

use crate::command::runtime;
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::settings::{PoolFlags, Settings};

/// What `statfs` says of FUSE file systems (`FUSE_SUPER_MAGIC`).
const FUSE: u64 = 0x6573_5546;

/// Where a run begins that goes back to a set.
pub struct Point {
    /// The checkpoint index.
    pub index: u64,
    /// The timestep; `None`: no set is complete yet, and the index is the start of the run.
    pub step: Option<Timestep>,
}

/// What there is to know about the folder, which lies where the pool is mounted.
pub fn of_folder(folder: &Path, flags: &PoolFlags) -> Outcome<Sets> {
    let shown = folder.display();
    let folder = folder.canonicalize().about(&shown)?;
    let app = path_in_pool(&folder)?;
    let context = Context { settings: Settings::load(flags)? };
    let naming = runtime()?.block_on(naming(&context, &app, folder.metadata().about(&shown)?.ino()))?;
    Ok(Sets { folder, app, naming })
}

/// The path below the mount point.
fn path_in_pool(folder: &Path) -> Outcome<String> {
    let shown = folder.display();
    let next = "name the application's folder where the pool is mounted, such as /mnt/pool/climate";
    let kind = rustix::fs::statfs(folder).map_err(std::io::Error::from).about(&shown)?.f_type;
    if u64::try_from(kind) != Ok(FUSE) {
        return Err(CommandError::usage(shown, "no pool is mounted there", next));
    }
    let device = folder.metadata().about(&shown)?.dev();
    let is_inside = |above: &&Path| above.metadata().is_ok_and(|about| about.dev() == device);
    let mount = folder.ancestors().take_while(is_inside).last().unwrap_or(folder);
    let below = folder.strip_prefix(mount).ok().and_then(Path::to_str).filter(|below| !below.is_empty());
    below
        .map(str::to_owned)
        .ok_or_else(|| CommandError::usage(shown, "it is no folder of an application", next))
}

/// The folder's patterns. `ino`: what the mount has there, so that one pool isn't taken for another.
async fn naming(context: &Context, app: &str, ino: u64) -> Outcome<String> {
    let target = Target::parse_plain(app)?;
    let pool = context.pool().await?;
    if pool.folder(&target).await?.ino.0 != ino {
        let cause = "the pool that is mounted there is another one";
        return Err(CommandError::usage(target.shown(), cause, "name its pool with --data or --manager"));
    }
    let naming = pool.policy(&target).await?.naming;
    let patterns: Naming = naming.parse().map_err(|error| {
        CommandError::usage(
            target.shown(),
            error,
            format!("set them with `stdchk policy set {app} naming=...`"),
        )
    })?;
    if patterns.patterns().iter().any(|pattern| !pattern.has_timestep()) {
        let cause =
            "its patterns have one without {step}, {time} or {date}: a file's name must tell its timestep";
        let next = format!("set them with `stdchk policy set {app} naming=...`");
        return Err(CommandError::usage(target.shown(), cause, next));
    }
    Ok(naming)
}

/// The checkpoint of the newest set that can be restarted from; of the run's start while there is none.
pub fn newest(store: &Store, sets: &Sets, flags: &PoolFlags) -> Outcome<Point> {
    let context = Context { settings: Settings::load(flags)? };
    let step = runtime()?.block_on(newest_step(&context, sets))?;
    let entry = match step {
        Some(step) => store.entry_of_set(step),
        None => store.entries().map(|entries| entries.into_iter().next().filter(|first| first.index == 0)),
    };
    match entry.map_err(super::not_run)? {
        Some(entry) => Ok(Point { index: entry.index, step }),
        None => Err(no_state(&sets.app, step)),
    }
}

/// The timestep of the newest set that can be restarted from.
pub async fn newest_step(context: &Context, sets: &Sets) -> Outcome<Option<Timestep>> {
    let target = Target::parse_plain(&sets.app)?;
    let pool = context.pool().await?;
    let found = pool.latest(&target, WhenAway::Fail, Depth::Read, &context.watch()).await?;
    match found.required(&target) {
        Ok(set) => Ok(Some(set.timestep)),
        Err(error) if error.code == Code::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn no_state(app: &str, step: Option<Timestep>) -> CommandError {
    let (what, cause) = match step {
        Some(step) => (format!("set {step} of {app}"), "its file state was not taken, or not kept"),
        None => (format!("the start of {app}"), "no set is complete, and the first file state was not kept"),
    };
    let next = "`stdchk files log` lists the states that there are; `--resume=INDEX` goes back to one, \
                and the program must be restarted from the set of that state";
    CommandError::new(Exit::NotFound, what, cause, next)
}
