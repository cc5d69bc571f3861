//! Local files, trees and streams become new versions in the pool.
//!
//! A file's new version appears when all of it is durable (I2); until then readers see the old one. What fails or is
//! dropped leaves nothing behind: neither a version nor the empty entry of a file that was new.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use stdchk_client::time::{now, time_ns};
use stdchk_model::message::manager::{FileKind, TimeNs};
use tokio::task::JoinSet;

use crate::error::{About, Code, Error, Result, Tally};
use crate::namespace;
use crate::pool::Pool;
use crate::target::Target;
use crate::text;
use crate::transfer::{Input, copy_in};
use crate::underway::{Opening, Underway};
use crate::watch::{Event, Stage, Watch, Work};

/// Files stored at the same time: enough to overlap the small ones; a large one fills the window alone.
const FILES_AT_ONCE: usize = 4;
/// Permission bits of what comes from a stream.
const STREAM_MODE: u32 = 0o644;

/// Where bytes come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A file, a named pipe or, with `recursive`, a folder.
    Path(PathBuf),
    /// This process's standard input.
    StandardInput,
}

/// What is to be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Put {
    /// Where the bytes come from.
    pub sources: Vec<Source>,
    /// The file, or the folder that keeps the sources' names.
    pub target: Target,
    /// Whether the target is a folder even if there is none yet, as `FOLDER/` says. It is one in any case if there is such a
    /// folder, with several sources, with `recursive`, and if it is directly in the root.
    pub into_folder: bool,
    /// Whether folders are stored with all that is in them.
    pub recursive: bool,
}

/// A file that was stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct StoredFile {
    /// Where its bytes came from.
    pub source: String,
    /// Where it is.
    pub path: String,
    /// Its new version.
    pub version: u64,
    /// Its size, bytes.
    pub bytes: u64,
    /// Bytes of its chunks that were new to the pool.
    pub stored_bytes: u64,
}

/// What was stored.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Stored {
    /// The files, in the order in which they were done.
    pub files: Vec<StoredFile>,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of their chunks that were new to the pool.
    pub stored_bytes: u64,
    /// The time that it took.
    pub seconds: f64,
    /// How many sources were stored, and how many failed.
    #[serde(skip)]
    pub tally: Tally,
}

/// What a job stores.
#[derive(Clone, Debug)]
enum Origin {
    Stream,
    File(PathBuf),
    /// A folder that holds nothing.
    Empty(PathBuf),
}

impl Origin {
    fn shown(&self) -> String {
        match self {
            Self::Stream => "standard input".to_owned(),
            Self::File(path) | Self::Empty(path) => text::shown(&path.display().to_string()),
        }
    }
}

/// A file to be stored.
#[derive(Clone, Debug)]
struct Job {
    source: Origin,
    target: Target,
    bytes: u64,
}

impl Pool {
    /// Stores files, each as a new version that appears when all of it is durable. Folders are made where they are missing.
    /// A source that fails is told to `watch` and counted; the others are stored.
    ///
    /// # Errors
    /// [`Code::Invalid`]: two sources would be stored under one name, or the target can't be a file's or a folder's; nothing
    /// was stored. What becomes of single sources stands in [`Stored::tally`].
    pub async fn put(&self, put: &Put, watch: &Watch) -> Result<Stored> {
        let started = Instant::now();
        let mut tally = Tally::default();
        let jobs = self.jobs(put, watch, &mut tally).await?;
        let stage = Arc::new(watch.begin(Work::Put, jobs.iter().map(|job| job.bytes).sum()));
        let files = self.store_all(jobs, &stage, watch, &mut tally).await?;
        let bytes = files.iter().map(|file| file.bytes).sum();
        let stored_bytes = files.iter().map(|file| file.stored_bytes).sum();
        let seconds = started.elapsed().as_secs_f64();
        Ok(Stored { files, bytes, stored_bytes, seconds, tally })
    }

    /// Stores what `source` gives as a new version of one file. It is read on a thread of its own, and is called
    /// `source_name` in messages. A source that blocks for ever keeps that thread, also when the future is dropped.
    ///
    /// # Errors
    /// [`Code::WrongKind`]: the name is a folder's. [`Code::NoSpace`]: the pool has no room. An error of the source. The file is
    /// as it was.
    pub async fn put_from(
        &self,
        source: impl Read + Send + 'static,
        source_name: &str,
        target: &Target,
        watch: &Watch,
    ) -> Result<StoredFile> {
        let opened = Opened { input: Input::Stream(Box::new(source)), mode: STREAM_MODE, mtime: now() };
        let stage = watch.begin(Work::Put, 0);
        self.store(opened, source_name, target, &stage).await
    }

    async fn store_all(
        &self,
        jobs: Vec<Job>,
        stage: &Arc<Stage>,
        watch: &Watch,
        tally: &mut Tally,
    ) -> Result<Vec<StoredFile>> {
        let mut stored = Vec::new();
        let mut running = JoinSet::new();
        let mut jobs = jobs.into_iter();
        loop {
            while running.len() < FILES_AT_ONCE
                && let Some(job) = jobs.next()
            {
                let (pool, stage) = (self.clone(), Arc::clone(stage));
                running.spawn(self.tracked(async move { pool.store_one(&job, &stage).await }));
            }
            match running.join_next().await {
                None => return Ok(stored),
                Some(Err(error)) => return Err(Error::of_task(&error)),
                Some(Ok(Ok(file))) => {
                    tally.succeed();
                    stored.extend(file);
                }
                Some(Ok(Err(error))) => refused(&error, watch, tally),
            }
        }
    }

    /// Stores one file; nothing is stored of an empty folder, which is made.
    async fn store_one(&self, job: &Job, stage: &Stage) -> Result<Option<StoredFile>> {
        let name = job.source.shown();
        let opened = match &job.source {
            Origin::Empty(_) => return self.make_folder(&job.target).await.map(|()| None),
            Origin::Stream => {
                let mtime = now();
                Opened { input: Input::Stream(Box::new(std::io::stdin())), mode: STREAM_MODE, mtime }
            }
            Origin::File(path) => open(path, &name)?,
        };
        self.store(opened, &name, &job.target, stage).await.map(Some)
    }

    async fn store(&self, opened: Opened, from: &str, target: &Target, stage: &Stage) -> Result<StoredFile> {
        let shown = target.shown();
        let underway = Underway::begin(self, target, opened.mode, Opening::Replace).await?;
        let session = underway.session()?;
        let written = async {
            let bytes = copy_in(opened.input, from, &shown, &session, stage).await?;
            let info = session.commit_last(opened.mtime).await.about(&shown)?;
            let info = info.ok_or_else(|| Error::defect(&shown, "a commit of a new version made none"))?;
            Ok((bytes, info.version))
        };
        let (bytes, version) = match written.await {
            Ok(written) => written,
            Err(error) => {
                underway.take_back().await;
                return Err(error);
            }
        };
        underway.commit().await.about(&shown)?;
        let (source, path, stored_bytes) = (from.to_owned(), target.path(), session.stored_bytes());
        Ok(StoredFile { source, path, version, bytes, stored_bytes })
    }

    /// What has to be stored where. Sources that can't be stored are told and left out.
    async fn jobs(&self, put: &Put, watch: &Watch, tally: &mut Tally) -> Result<Vec<Job>> {
        let folder = self.is_folder(put).await?;
        let mut jobs = Vec::new();
        for job in put.sources.iter().flat_map(|source| of_source(source, &put.target, folder, put.recursive))
        {
            match job {
                Ok(job) => jobs.push(job),
                Err(error) => refused(&error, watch, tally),
            }
        }
        refuse_same_targets(&jobs)?;
        Ok(jobs)
    }

    /// Whether the target is a folder that keeps the sources' names: it is meant so, or it can only be one, or it is one.
    async fn is_folder(&self, put: &Put) -> Result<bool> {
        let several = put.sources.len() > 1 || put.recursive;
        if put.into_folder || put.target.names.len() < 2 || several {
            return Ok(true);
        }
        let there = namespace::resolve_if_there(&self.client, &put.target).await?;
        Ok(there.is_some_and(|attr| attr.kind == FileKind::Directory))
    }
}

fn refused(error: &Error, watch: &Watch, tally: &mut Tally) {
    tally.fail(error);
    watch.tell(&Event::Failed(error));
}

/// What is known of a source once it is open.
struct Opened {
    input: Input,
    mode: u32,
    mtime: TimeNs,
}

fn open(path: &Path, shown: &str) -> Result<Opened> {
    let file = File::open(path).about(shown)?;
    let metadata = file.metadata().about(shown)?;
    let mtime = time_ns(metadata.modified().about(shown)?);
    Ok(Opened { input: Input::of_file(file, &metadata), mode: metadata.mode() & 0o777, mtime })
}

/// Files of one name from different folders would replace each other, and only the last would be found again.
fn refuse_same_targets(jobs: &[Job]) -> Result {
    let mut sources = HashMap::new();
    for job in jobs {
        if let Some(other) = sources.insert(job.target.path(), &job.source) {
            let cause =
                format_args!("both {} and {} would be stored there", other.shown(), job.source.shown());
            let next = "store them into folders of their own, or under other names";
            return Err(Error::invalid(job.target.shown(), cause, next));
        }
    }
    Ok(())
}

fn of_source(source: &Source, target: &Target, folder: bool, recursive: bool) -> Vec<Result<Job>> {
    if target.names.is_empty() {
        return vec![Err(Error::invalid(
            "/",
            "files live in an application's folder",
            "write APP/ or APP/NAME",
        ))];
    }
    let Source::Path(source) = source else { return vec![stream(target, folder)] };
    let below = match folder {
        true => named_below(source, target),
        false => Ok(target.clone()),
    };
    match below {
        Ok(target) => of_path(source, &target, recursive),
        Err(error) => vec![Err(error)],
    }
}

fn stream(target: &Target, folder: bool) -> Result<Job> {
    match folder {
        true => Err(Error::invalid(target.shown(), "standard input has no name", "write APP/NAME")),
        false => Ok(Job { source: Origin::Stream, target: target.clone(), bytes: 0 }),
    }
}

fn named_below(source: &Path, target: &Target) -> Result<Target> {
    let shown = text::shown(&source.display().to_string());
    // `.` and `..` have a name too, once the path is resolved.
    let absolute = source.canonicalize().about(&shown)?;
    let name =
        source.file_name().or(absolute.file_name()).and_then(|name| name.to_str()).ok_or_else(|| {
            Error::invalid(&shown, "it has no name that is UTF-8", "store it under a name: APP/NAME")
        })?;
    target.join(name).about(shown)
}

/// The jobs for a path: one for a file, one for every file below a folder.
fn of_path(source: &Path, target: &Target, recursive: bool) -> Vec<Result<Job>> {
    let shown = text::shown(&source.display().to_string());
    let refuse = |cause: &str, next: &str| vec![Err(Error::wrong_kind(&shown, cause, next))];
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
    vec![Ok(Job { source: Origin::File(source.to_owned()), target: target.clone(), bytes: metadata.len() })]
}

fn of_folder(source: &Path, target: &Target) -> Vec<Result<Job>> {
    let shown = text::shown(&source.display().to_string());
    let entries =
        match std::fs::read_dir(source).and_then(Iterator::collect::<Result<Vec<_>, _>>).about(shown) {
            Ok(entries) => entries,
            Err(error) => return vec![Err(error)],
        };
    if entries.is_empty() {
        return vec![Ok(Job { source: Origin::Empty(source.to_owned()), target: target.clone(), bytes: 0 })];
    }
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().flat_map(|path| below_folder(path, target)).collect()
}

fn below_folder(path: &Path, target: &Target) -> Vec<Result<Job>> {
    let kind = match std::fs::symlink_metadata(path).about(path.display()) {
        Ok(metadata) => metadata.file_type(),
        Err(error) => return vec![Err(error)],
    };
    if !kind.is_file() && !kind.is_dir() {
        let next = "name it on the command line to store what it leads to, or use `tar`";
        let shown = text::shown(&path.display().to_string());
        return vec![Err(Error::new(
            Code::Other,
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
