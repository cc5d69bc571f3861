//! Copies of file states in the pool: one is made of a run's newest checkpoint, they are listed, and a tree grows from one.
//!
//! All copies of an application are versions of one file, cut where their content says so: what did not change since the
//! last copy is in the pool already. A tree that is fetched grows under a hidden name beside its place and appears there when
//! it is whole and on disk, with a store whose first checkpoint it is.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Cursor, PipeReader, Write};
use std::path::{Path, absolute};
use std::sync::Arc;

use serde::Serialize;
use stdchk_client::{Pool as Client, Reader, Session};
use stdchk_filestate::control::Control;
use stdchk_filestate::snapshot::Snapshot;
use stdchk_filestate::store::{Options, Sets, Store};
use stdchk_model::message::manager::{Change, FileKind, TimeNs};
use stdchk_model::{ErrorCode, Failure, Ino, Policy};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::archive::{self, State};
use crate::error::{About, Code, Error, Result};
use crate::namespace;
use crate::pool::Pool;
use crate::target::Target;
use crate::text::in_time;
use crate::transfer::{Stream, copy_out};
use crate::watch::{Stage, Watch, Work};

/// How the copies are cut unless their folder says otherwise: files move in the stream when one before them grows.
const CUTTER: &str = "cdc:64KiB";
/// Written to the pool at once.
const PIECE_BYTES: usize = 1 << 20;
/// Permissions of the copies: what is in them may be secret.
const MODE: u32 = 0o600;

/// A file state in the pool.
#[derive(Clone, Serialize)]
pub struct FileState {
    /// The version of the file that holds it.
    pub version: u64,
    /// The checkpoint index.
    pub index: u64,
    /// When the checkpoint was taken.
    #[serde(serialize_with = "in_time")]
    pub time: TimeNs,
    /// What it was taken for.
    pub label: String,
    /// Its size, bytes.
    pub bytes: u64,
    /// Bytes of its chunks that were new to the pool.
    pub stored_bytes: u64,
    #[serde(skip)]
    state: State,
    #[serde(skip)]
    reader: Arc<Reader>,
}

impl std::fmt::Debug for FileState {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = to.debug_struct("FileState");
        shown.field("version", &self.version).field("index", &self.index).field("label", &self.label);
        shown.finish_non_exhaustive()
    }
}

impl FileState {
    /// The checkpoint sets to which the file states of its run belong, if it had some.
    pub fn sets(&self) -> Option<Sets> {
        self.state.options().and_then(|options| options.sets)
    }
}

/// A copy of a checkpoint that reached the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PushedState {
    /// The checkpoint index.
    pub index: u64,
    /// Names that could not be part of it: sockets and devices.
    pub left_out: u64,
}

impl Pool {
    /// The file states of an application that the pool has, oldest first. One that can't be read is passed over and told in the log.
    ///
    /// # Errors
    /// [`Code::NotFound`]: there are none. That of the newest one, if none can be read.
    pub async fn file_states(&self, app: &Target) -> Result<Vec<FileState>> {
        let (pool, target) = (&self.client, &archive::target(app)?);
        let shown = target.shown();
        let Some(attr) = namespace::resolve_if_there(pool, target).await? else { return Err(none(target)) };
        let (mut states, mut last) = (Vec::new(), None);
        for info in namespace::kept_versions(pool, attr.ino).await.about(&shown)? {
            let read = async {
                let reader = pool.read(attr.ino, Some(info.version)).await.about(&shown)?;
                let state = State::read(Cursor::new(head(&reader).await.about(&shown)?))?;
                Ok::<_, Error>((reader, state))
            };
            let (reader, state) = match read.await {
                Ok(read) => read,
                Err(error) => {
                    tracing::warn!(%error, version = info.version, "a file state is passed over");
                    last = Some(error);
                    continue;
                }
            };
            states.push(FileState {
                version: info.version,
                index: state.index,
                time: time_of(state.time_ns)?,
                label: state.label.clone(),
                bytes: info.size,
                stored_bytes: info.stored_bytes,
                state,
                reader,
            });
        }
        if states.is_empty() { Err(last.unwrap_or_else(|| none(target))) } else { Ok(states) }
    }

    /// Makes the tree of a file state at `to`, which appears when it is whole and on disk. `sets`: where the pool is mounted
    /// here the folder to whose checkpoint sets the states of the run belong; otherwise it is where it was.
    ///
    /// # Errors
    /// [`Code::Invalid`]: there is something at `to`. [`Code::Damaged`] or [`Code::Unreachable`]: content can't be had. Nothing
    /// was made.
    pub async fn fetch_file_state(
        &self,
        state: &FileState,
        app: &Target,
        to: &Path,
        sets: Option<Sets>,
        watch: &Watch,
    ) -> Result {
        let (shown, target) = (to.display(), archive::target(app)?);
        let to = absolute(to).about(&shown)?;
        refuse_what_is_there(&to)?;
        let mut options = state.state.options().ok_or_else(|| {
            let next = "it was written by a later version of stdchk";
            Error::new(Code::Damaged, target.shown(), "the options of its run can't be read", next)
        })?;
        options.sets = sets.or(options.sets);
        let Some(parent) = to.parent() else {
            return Err(Error::invalid(shown, "it is the root of the file system", "name a new directory"));
        };
        let part = tempfile::Builder::new().prefix(".").suffix(".stdchk-part").tempdir_in(parent);
        let part = part.about(parent.display())?;
        let stage = watch.begin(Work::Fetch, state.reader.size());
        unpack(state, &target, part.path(), &stage).await?;
        block_in_place(|| {
            make_store(part.path(), &options, &state.state)?;
            let synced = File::open(part.path()).and_then(|directory| Ok(rustix::fs::syncfs(directory)?));
            synced.about(&shown)?;
            std::fs::rename(part.path(), &to).about(&shown)?;
            File::open(parent).and_then(|parent| parent.sync_all()).about(&shown)
        })
    }

    /// Copies the newest checkpoint of a run to the pool as a file state of `app`; as many are kept there as the run keeps.
    /// Reads files and waits for the pool: not for a thread of a runtime.
    ///
    /// # Errors
    /// The snapshot can't be read, or the pool can't take it. The file states that the pool has are as they were.
    pub fn push_file_state(
        &self,
        app: &Target,
        store: &Arc<Store>,
        control: &Arc<Control>,
    ) -> Result<PushedState> {
        let (target, runtime) = (archive::target(app)?, self.runtime());
        let shown = target.shown();
        let ino = runtime.block_on(entry(&self.client, &target))?;
        let mut snapshot = Snapshot::of_newest(store, control).map_err(|error| failed(&shown, error))?;
        let session = runtime.block_on(self.client.write(ino)).about(&shown)?;
        let copied = copy(runtime, &session, &mut snapshot, store, &shown);
        let closed = runtime.block_on(session.close(false)).about(&shown);
        let pushed = copied?;
        closed?;
        runtime.block_on(forget_surplus(&self.client, ino, store.options.kept())).about(&shown)?;
        Ok(pushed)
    }
}

fn none(target: &Target) -> Error {
    let next = "`stdchk run --push APP` makes copies of file states";
    Error::new(Code::NotFound, target.shown(), "the pool has no file state there", next)
}

async fn head(reader: &Arc<Reader>) -> Result<Vec<u8>, Failure> {
    let mut head = Vec::new();
    while head.len() < archive::HEAD_BYTES {
        let part = reader.read_at(head.len() as u64, archive::HEAD_BYTES - head.len()).await?;
        if part.is_empty() {
            break;
        }
        head.extend_from_slice(&part);
    }
    Ok(head)
}

/// A time of a checkpoint as the pool has times.
fn time_of(time_ns: u64) -> Result<TimeNs> {
    TimeNs::try_from(time_ns).map_err(|_| {
        let next = "take a new one, with the clock set right";
        Error::new(Code::Damaged, "a file state", "it was taken after the year 2262", next)
    })
}

fn refuse_what_is_there(to: &Path) -> Result {
    match std::fs::read_dir(to).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(false) => Err(Error::invalid(to.display(), "it is not empty", "name a new directory")),
        Err(error) => Err(Error::of_io(&error, to.display())),
    }
}

async fn unpack(state: &FileState, target: &Target, to: &Path, stage: &Stage) -> Result {
    let shown = to.display().to_string();
    let (source, mut sink): (PipeReader, _) = io::pipe().about("a pipe")?;
    let directory = to.to_owned();
    let extracting =
        tokio::task::spawn_blocking(move || archive::extract(BufReader::new(source), &directory));
    let copied = copy_out(&state.reader, &target.shown(), &mut Stream(&mut sink), &shown, stage).await;
    drop(sink);
    let extracted = extracting.await.map_err(|error| Error::of_task(&error))?;
    match copied {
        // The stream broke off because its reader gave up: that one knows why.
        Err(_) if extracted.is_err() && is_about_the_files(&extracted) => extracted.about(shown),
        Err(error) => Err(error),
        Ok(()) => extracted.about(shown),
    }
}

/// Whether the files could not be made, rather than the stream not be read.
fn is_about_the_files(extracted: &io::Result<()>) -> bool {
    extracted.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::UnexpectedEof)
}

/// Makes the store of the tree: what is there is its first checkpoint.
fn make_store(root: &Path, options: &Options, state: &State) -> Result {
    let store = Store::create_at(root, options, state.index, state.time_ns, state.label.clone())?;
    if state.ended {
        store.mark_ended()?;
    }
    Ok(())
}

fn copy(
    runtime: &Handle,
    session: &Arc<Session>,
    snapshot: &mut Snapshot,
    store: &Arc<Store>,
    shown: &str,
) -> Result<PushedState> {
    let entry = snapshot.entry().clone();
    runtime.block_on(session.truncate(0)).about(shown)?;
    let sink = Sink { session, runtime, at: 0 };
    let state = State::new(&entry, &store.options);
    let written =
        archive::write(snapshot, store.root_path(), &state, BufWriter::with_capacity(PIECE_BYTES, sink));
    let left_out = written.map_err(|error| failed(shown, error))?;
    runtime.block_on(session.commit(time_of(entry.time_ns)?)).about(shown)?;
    Ok(PushedState { index: entry.index, left_out })
}

/// The file whose versions the copies are, made where it is missing.
async fn entry(pool: &Client, target: &Target) -> Result<Ino> {
    let shown = target.shown();
    let Some((name, folders)) = target.split_last() else { return Err(failed(&shown, "no name")) };
    let folder = namespace::make_folders(pool, folders).await?;
    if pool.policy(folder).await.about(&shown)?.cutter == Policy::default().cutter {
        let pairs = vec![("cutter".to_owned(), CUTTER.to_owned())];
        pool.change(Change::SetPolicy { ino: folder, pairs }).await.about(&shown)?;
    }
    let found = match pool.lookup(folder, name).await {
        Err(failure) if failure.code == ErrorCode::NotFound => {
            namespace::make(pool, folder, name, FileKind::File, MODE).await
        }
        found => found,
    };
    found.map(|attr| attr.ino).about(shown)
}

/// Removes the oldest file states but for so many.
async fn forget_surplus(pool: &Client, ino: Ino, kept: usize) -> Result<(), Failure> {
    let versions = namespace::kept_versions(pool, ino).await?;
    let surplus = versions.len().saturating_sub(kept);
    for version in versions.iter().take(surplus).map(|info| info.version) {
        pool.change(Change::DropVersion { ino, version }).await?;
    }
    Ok(())
}

fn failed(shown: &str, cause: impl std::fmt::Display) -> Error {
    Error::new(Code::Other, shown, cause, "the next checkpoint is tried again")
}

/// The stream into the pool.
struct Sink<'work> {
    session: &'work Arc<Session>,
    runtime: &'work Handle,
    at: u64,
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.runtime.block_on(self.session.write_at(self.at, bytes));
        written.map_err(io::Error::other)?;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
