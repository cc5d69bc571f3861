//! `stdchk put`: local files, trees and standard input become new versions in the pool.
//!
//! A file's new version appears when all of it is durable (I2); until then readers see the old one. What fails or is
//! interrupted leaves nothing behind: neither a version nor the empty entry of a file that was new.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use clap::Args;
use parking_lot::Mutex;
use serde::Serialize;
use stdchk_client::{Pool, Session};
use stdchk_model::message::manager::{Attr, Change, FileKind, TimeNs};
use stdchk_model::{ErrorCode, Failure, Ino, size};
use tokio::task::JoinSet;

use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome, Parts};
use crate::paths::Target;
use crate::progress::{Progress, rate};
use crate::signals::or_interrupted;
use crate::transfer::{copy_in, task_failed, time_ns};
use crate::{namespace, output};

/// Files stored at the same time: enough to overlap the small ones; a large one fills the window alone.
const FILES_AT_ONCE: usize = 4;
/// Permission bits of what comes from standard input.
const STREAM_MODE: u32 = 0o644;

/// What `put` takes.
#[derive(Args, Debug)]
#[command(
    override_usage = "stdchk put [OPTIONS] FILE... APP/[NAME]",
    after_help = "\
The last argument says where to: `APP/` or `APP/FOLDER/` keeps the files' names, `APP/NAME` names one file.
Folders are made where they are missing. Writing a name again makes a new version; two files for one name are refused.
With several files, some may fail while others are stored: exit code 3.

Example:
  stdchk put restart.120000 climate/
  stdchk put -r output climate/run7/
  tar c state | stdchk put - climate/state.tar"
)]
pub struct Arguments {
    /// Files, folders with -r, or `-` for standard input; last of all where to, APP/[NAME]
    #[arg(required = true, value_name = "FILE")]
    paths: Vec<PathBuf>,
    /// Store folders with all that is in them
    #[arg(short, long)]
    recursive: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Where the bytes of a file come from.
#[derive(Clone, Debug)]
enum Source {
    Stream,
    File(PathBuf),
    /// A folder that holds nothing.
    Empty(PathBuf),
}

impl Source {
    fn shown(&self) -> String {
        match self {
            Self::Stream => "standard input".to_owned(),
            Self::File(path) | Self::Empty(path) => output::shown(&path.display().to_string()),
        }
    }
}

/// A file to be stored.
#[derive(Clone, Debug)]
struct Job {
    source: Source,
    target: Target,
    bytes: u64,
}

#[derive(Serialize)]
struct Stored {
    source: String,
    path: String,
    version: u64,
    bytes: u64,
    stored_bytes: u64,
}

#[derive(Serialize)]
struct Report {
    files: Vec<Stored>,
    bytes: u64,
    stored_bytes: u64,
    seconds: f64,
}

/// What has to be undone if the command is interrupted.
#[derive(Default)]
struct Underway {
    /// New files that this command has made no version of yet: folder, name, file.
    entries: Vec<(Ino, String, Ino)>,
    /// Sessions that hold reservations.
    sessions: Vec<Arc<Session>>,
}

type Unfinished = Arc<Mutex<Underway>>;

/// Runs the command.
pub async fn run(arguments: Arguments, context: &Context) -> Outcome {
    if let [only] = arguments.paths.as_slice() {
        let next = format!("name the files first, then where to: `stdchk put {} APP/`", only.display());
        return Err(CommandError::usage(only.display(), "one of file and target is missing", next));
    }
    let pool = context.pool_to_move().await?;
    let unfinished = Unfinished::default();
    let outcome = or_interrupted("put", store(&arguments, context, &pool, &unfinished)).await;
    let left = std::mem::take(&mut *unfinished.lock());
    for session in left.sessions {
        // What it reserved comes back at once; else it would when the lease of this client ends.
        drop(session.close(false).await);
    }
    for (parent, name, ino) in left.entries {
        // If the manager is away they stay as empty entries.
        drop(take_back(&pool, parent, name, ino).await);
    }
    if outcome.is_ok() {
        // `cutter=auto` learns once a version is committed; who can't wait for that loses nothing.
        let learned = async {
            pool.close().await;
            Ok(())
        };
        drop(or_interrupted("put", learned).await);
    }
    outcome
}

/// Removes a file that was made for a version that never came, unless somebody else has stored one under the name.
async fn take_back(pool: &Pool, parent: Ino, name: String, ino: Ino) -> Result<(), Failure> {
    let there = pool.lookup(parent, &name).await?;
    if (there.ino, there.version) == (ino, 0) {
        pool.change(Change::Unlink { parent, name }).await?;
    }
    Ok(())
}

async fn store(arguments: &Arguments, context: &Context, pool: &Pool, unfinished: &Unfinished) -> Outcome {
    let started = Instant::now();
    let mut parts = Parts::default();
    let jobs = jobs(arguments, pool, &mut parts).await?;
    let total = jobs.iter().map(|job| job.bytes).sum();
    let progress = Arc::new(Progress::start("put", total, context.settings.quiet));
    let files = store_all(pool, jobs, &progress, unfinished, &mut parts).await?;
    drop(progress);
    let bytes = files.iter().map(|file| file.bytes).sum();
    let stored_bytes = files.iter().map(|file| file.stored_bytes).sum();
    let elapsed = started.elapsed();
    if arguments.json {
        output::json(&Report { files, bytes, stored_bytes, seconds: elapsed.as_secs_f64() })?;
    } else if !context.settings.quiet && !files.is_empty() {
        let count = output::count(files.len(), "file");
        let (size, new, rate) =
            (size::human(bytes), size::human(stored_bytes), size::human(rate(bytes, elapsed)));
        output::note(format_args!("put: {count}, {size}, of which {new} new to the pool, {rate}/s"));
    }
    parts.outcome()
}

async fn store_all(
    pool: &Pool,
    jobs: Vec<Job>,
    progress: &Arc<Progress>,
    unfinished: &Unfinished,
    parts: &mut Parts,
) -> Outcome<Vec<Stored>> {
    let mut stored = Vec::new();
    let mut running = JoinSet::new();
    let mut jobs = jobs.into_iter();
    loop {
        while running.len() < FILES_AT_ONCE
            && let Some(job) = jobs.next()
        {
            let (pool, progress, unfinished) = (pool.clone(), progress.clone(), unfinished.clone());
            running.spawn(async move { store_one(&pool, &job, &progress, &unfinished).await });
        }
        match running.join_next().await {
            None => return Ok(stored),
            Some(Err(error)) => return Err(task_failed(&error)),
            Some(Ok(outcome)) => stored.extend(parts.add(outcome)?.flatten()),
        }
    }
}

/// What is known of a source once it is open.
struct Opened {
    reader: Box<dyn Read + Send>,
    mode: u32,
    mtime: TimeNs,
}

fn open(path: &Path, shown: &str) -> Outcome<Opened> {
    let file = File::open(path).about(shown)?;
    let metadata = file.metadata().about(shown)?;
    let mtime = time_ns(metadata.modified().about(shown)?);
    Ok(Opened { reader: Box::new(file), mode: metadata.mode() & 0o777, mtime })
}

/// Stores one file; nothing is stored of an empty folder, which is made.
async fn store_one(
    pool: &Pool,
    job: &Job,
    progress: &Progress,
    unfinished: &Unfinished,
) -> Outcome<Option<Stored>> {
    let opened = match &job.source {
        Source::Empty(_) => {
            namespace::make_folders(pool, &job.target.names).await?;
            return Ok(None);
        }
        Source::Stream => {
            let mtime = time_ns(SystemTime::now());
            Opened { reader: Box::new(std::io::stdin()), mode: STREAM_MODE, mtime }
        }
        Source::File(path) => open(path, &job.source.shown())?,
    };
    let shown = job.target.shown();
    let Some((name, parents)) = job.target.split_last() else {
        return Err(CommandError::usage("/", "the root can't be a file", "write APP/NAME"));
    };
    let parent = namespace::make_folders(pool, parents).await?;
    let mut looks = 1;
    let (attr, session) = loop {
        let attr = entry(pool, parent, name, opened.mode, unfinished).await.about(&shown)?;
        if attr.kind != FileKind::File {
            return Err(CommandError::usage(
                shown,
                "it is not a file",
                "choose another name, or `APP/FOLDER/`",
            ));
        }
        match pool.replace(attr.ino).await {
            // Somebody removed it, or gave its name to another one: what has the name now is replaced.
            Err(failure) if failure.code == ErrorCode::NotFound && looks < namespace::LOOKS_MAX => looks += 1,
            session => break (attr, session.about(&shown)?),
        }
    };
    unfinished.lock().sessions.push(Arc::clone(&session));
    let written = write(&session, opened, job, progress).await;
    let ended = session.close(false).await.about(&shown);
    unfinished.lock().sessions.retain(|other| !Arc::ptr_eq(other, &session));
    let (bytes, version) = written?;
    unfinished.lock().entries.retain(|(_, _, ino)| *ino != attr.ino);
    ended?;
    let stored_bytes = session.stored_bytes();
    Ok(Some(Stored { source: job.source.shown(), path: job.target.path(), version, bytes, stored_bytes }))
}

async fn write(
    session: &Arc<Session>,
    opened: Opened,
    job: &Job,
    progress: &Progress,
) -> Outcome<(u64, u64)> {
    let shown = job.target.shown();
    let bytes = copy_in(opened.reader, &job.source.shown(), &shown, session, progress).await?;
    let info = session.commit_last(opened.mtime).await.about(&shown)?;
    Ok((bytes, info.map_or(0, |info| info.version)))
}

/// The file's entry, made if it is missing.
async fn entry(
    pool: &Pool,
    parent: Ino,
    name: &str,
    mode: u32,
    unfinished: &Unfinished,
) -> Result<Attr, Failure> {
    match pool.lookup(parent, name).await {
        Err(failure) if failure.code == ErrorCode::NotFound => {}
        found => return found,
    }
    match namespace::make(pool, parent, name, FileKind::File, mode).await {
        Err(failure) if failure.code == ErrorCode::Exists => pool.lookup(parent, name).await,
        Ok(attr) => {
            unfinished.lock().entries.push((parent, name.to_owned(), attr.ino));
            Ok(attr)
        }
        failed => failed,
    }
}

/// What has to be stored where. Sources that can't be stored are reported and left out.
async fn jobs(arguments: &Arguments, pool: &Pool, parts: &mut Parts) -> Outcome<Vec<Job>> {
    let Some((target, sources)) = arguments.paths.split_last() else {
        return Err(CommandError::usage("put", "nothing to store", "see `stdchk put --help`"));
    };
    let text = target.to_str().ok_or_else(|| {
        CommandError::usage(target.display(), "names in the pool are UTF-8", "choose another name")
    })?;
    let target = Target::parse_plain(text)?;
    let folder = is_folder(&target, text, sources, arguments.recursive, pool).await?;
    let mut jobs = Vec::new();
    for source in sources {
        let found = of_source(source, &target, folder, arguments.recursive);
        let refused = found.iter().filter_map(|job| job.as_ref().err().cloned()).collect::<Vec<_>>();
        for error in refused {
            parts.add::<()>(Err(error))?;
        }
        jobs.extend(found.into_iter().flatten());
    }
    refuse_same_targets(&jobs)?;
    Ok(jobs)
}

/// Files of one name from different folders would replace each other, and only the last would be found again.
fn refuse_same_targets(jobs: &[Job]) -> Outcome {
    let mut sources = HashMap::new();
    for job in jobs {
        if let Some(other) = sources.insert(job.target.path(), &job.source) {
            let cause =
                format_args!("both {} and {} would be stored there", other.shown(), job.source.shown());
            let next = "store them into folders of their own, or under other names";
            return Err(CommandError::usage(job.target.shown(), cause, next));
        }
    }
    Ok(())
}

/// Whether the target is a folder that keeps the sources' names: written so, or it can only be one, or it is one.
async fn is_folder(
    target: &Target,
    text: &str,
    sources: &[PathBuf],
    recursive: bool,
    pool: &Pool,
) -> Outcome<bool> {
    if text.ends_with('/') || target.names.len() < 2 || sources.len() > 1 || recursive {
        return Ok(true);
    }
    let there = namespace::resolve_if_there(pool, target).await?;
    Ok(there.is_some_and(|attr| attr.kind == FileKind::Directory))
}

fn of_source(source: &Path, target: &Target, folder: bool, recursive: bool) -> Vec<Outcome<Job>> {
    if target.names.is_empty() {
        return vec![Err(CommandError::usage(
            "/",
            "files live in an application's folder",
            "write APP/ or APP/NAME",
        ))];
    }
    if source == Path::new("-") {
        return vec![stream(target, folder)];
    }
    let below = match folder {
        true => named_below(source, target),
        false => Ok(target.clone()),
    };
    match below {
        Ok(target) => of_path(source, &target, recursive),
        Err(error) => vec![Err(error)],
    }
}

fn stream(target: &Target, folder: bool) -> Outcome<Job> {
    match folder {
        true => Err(CommandError::usage(target.shown(), "standard input has no name", "write APP/NAME")),
        false => Ok(Job { source: Source::Stream, target: target.clone(), bytes: 0 }),
    }
}

fn named_below(source: &Path, target: &Target) -> Outcome<Target> {
    let shown = output::shown(&source.display().to_string());
    // `.` and `..` have a name too, once the path is resolved.
    let absolute = source.canonicalize().about(&shown)?;
    let name =
        source.file_name().or(absolute.file_name()).and_then(|name| name.to_str()).ok_or_else(|| {
            CommandError::usage(&shown, "it has no name that is UTF-8", "store it under a name: APP/NAME")
        })?;
    target.join(name).about(shown)
}

/// The jobs for a path: one for a file, one for every file below a folder.
fn of_path(source: &Path, target: &Target, recursive: bool) -> Vec<Outcome<Job>> {
    let shown = output::shown(&source.display().to_string());
    let refuse = |cause: &str, next: &str| vec![Err(CommandError::usage(&shown, cause, next))];
    let metadata = match std::fs::metadata(source).about(&shown) {
        Ok(metadata) => metadata,
        Err(error) => return vec![Err(error)],
    };
    if metadata.is_dir() {
        return match recursive {
            true => of_folder(source, target),
            false => refuse("it is a folder", "add -r to store it with all that is in it"),
        };
    }
    if metadata.file_type().is_socket() || metadata.file_type().is_block_device() {
        return refuse("it is neither a file nor a stream", "leave it out");
    }
    vec![Ok(Job { source: Source::File(source.to_owned()), target: target.clone(), bytes: metadata.len() })]
}

fn of_folder(source: &Path, target: &Target) -> Vec<Outcome<Job>> {
    let shown = output::shown(&source.display().to_string());
    let entries =
        match std::fs::read_dir(source).and_then(Iterator::collect::<Result<Vec<_>, _>>).about(shown) {
            Ok(entries) => entries,
            Err(error) => return vec![Err(error)],
        };
    if entries.is_empty() {
        return vec![Ok(Job { source: Source::Empty(source.to_owned()), target: target.clone(), bytes: 0 })];
    }
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().flat_map(|path| below_folder(path, target)).collect()
}

fn below_folder(path: &Path, target: &Target) -> Vec<Outcome<Job>> {
    let kind = match std::fs::symlink_metadata(path).about(path.display()) {
        Ok(metadata) => metadata.file_type(),
        Err(error) => return vec![Err(error)],
    };
    if !kind.is_file() && !kind.is_dir() {
        let next = "name it on the command line to store what it leads to, or use `tar`";
        let shown = output::shown(&path.display().to_string());
        return vec![Err(CommandError::new(
            Exit::Other,
            shown,
            "only files and folders are stored of a tree",
            next,
        ))];
    }
    match named_below(path, target) {
        Ok(target) => of_path(path, &target, true),
        Err(error) => vec![Err(error)],
    }
}
