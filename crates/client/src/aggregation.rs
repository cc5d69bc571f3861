//! Aggregation in the pool: the files of a complete checkpoint set are packed into containers of the same pool, compared
//! with them, and then lie there.
//!
//! Members are read as any reader does, a container is written as any file is; so it is cut, placed, replicated and verified
//! like one. Until the manager takes the one step that lets all members lie in containers, nothing has changed: whatever
//! ends this on the way leaves chunks that nothing refers to. The work waits for processors as much as for the pool, so it
//! runs on a thread that may block, not on the runtime.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_aggregate::limits::HOLE_MIN;
use stdchk_aggregate::{
    AggregateError, BlockCache, Container, FileEntry, Output, Packing, SetFile, in_parallel, pack_into,
};
use stdchk_formats::{Extent, Source};
use stdchk_model::message::manager::{CheckpointSet, ManagerRequest, PackedMembers};
use stdchk_model::{ErrorCode, Failure, Ino, exact, size};
use stdchk_net::Retry;
use tokio::runtime::Handle;

use crate::container::BLOCK_BYTES_MAX;
use crate::holes::Sought;
use crate::pool::Pool;
use crate::reader::Reader;
use crate::session::Session;
use crate::time::now;

/// Time that a container gets for its copies, and a manager that was restarted to hear from all its clients again.
const PATIENCE: Duration = Duration::from_secs(180);
/// The room that is left free beside the containers: this part of what they may take.
const ROOM_PART: u64 = 8;
/// The pause before the manager is asked again whether the containers are durable: the first and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// A set that lies in containers now, or why it doesn't.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedSet {
    /// Its files.
    pub files: u64,
    /// Their bytes.
    pub raw_bytes: u64,
    /// Bytes of the chunks that they lay in, each counted once.
    pub chunk_bytes: u64,
    /// Bytes of the containers.
    pub stored_bytes: u64,
    /// The containers; 0: they would not have been smaller than the chunks, so nothing was changed.
    pub containers: u64,
}

/// Why a set was not aggregated. It is as it was.
#[derive(Debug, thiserror::Error)]
pub enum AggregationError {
    /// Something of the pool: its code says what.
    #[error(transparent)]
    Pool(#[from] Failure),
    /// Packing itself.
    #[error(transparent)]
    Packing(AggregateError),
}

impl From<AggregateError> for AggregationError {
    fn from(error: AggregateError) -> Self {
        match crate::container::failure_within(&error) {
            Some(failure) => Self::Pool(failure.clone()),
            None => Self::Packing(error),
        }
    }
}

type Result<T> = std::result::Result<T, AggregationError>;

/// A version that belongs to the set.
type Member = (Ino, u64);

impl Pool {
    /// Packs the files of a complete set of a folder into so many containers and lets them lie there, unless that takes no
    /// less room. Of `packing` the length of blocks and the index are the pool's affair. Blocks: not for a thread of the
    /// runtime.
    ///
    /// # Errors
    /// The set changed meanwhile (`NotFound`) or was aggregated by somebody else (`Exists`); content can't be read or
    /// written; the watch ended it. The set is as it was.
    pub fn aggregate_set(
        &self,
        folder: Ino,
        set: &CheckpointSet,
        containers: usize,
        packing: Packing<'_>,
    ) -> Result<PackedSet> {
        let packing = Packing { index: true, block_max: BLOCK_BYTES_MAX, base: None, ..packing };
        let mut sessions = Vec::new();
        let packed = self.pack_set(folder, set, containers, &packing, &mut sessions);
        for session in sessions {
            // What became of the set is decided; a session that is left open ends with its lease.
            drop(self.wait_for(session.close(false)));
        }
        packed
    }

    fn wait_for<T>(&self, work: impl Future<Output = T>) -> T {
        self.inner.runtime.block_on(work)
    }

    fn pack_set(
        &self,
        folder: Ino,
        set: &CheckpointSet,
        containers: usize,
        packing: &Packing<'_>,
        sessions: &mut Vec<Arc<Session>>,
    ) -> Result<PackedSet> {
        self.wait_for(self.check_encrypted(folder, set))?;
        let (members, files) = self.wait_for(self.open_members(set))?;
        let chunk_bytes = self.wait_for(self.chunk_bytes(&members))?;
        self.wait_for(self.check_room(folder, chunk_bytes))?;
        let mut done = PackedSet { files: 0, raw_bytes: 0, chunk_bytes, stored_bytes: 0, containers: 0 };
        let (mut packed, mut open) = (Vec::new(), Vec::new());
        let groups = files.len().clamp(1, containers.max(1));
        let parts: Vec<Range<usize>> =
            (0..groups).map(|n| files.len() * n / groups..files.len() * (n + 1) / groups).collect();
        let at_once = packing.at_once(groups);
        let share = packing.share(groups);
        let opened = Mutex::new(sessions);
        let written = in_parallel(&parts, at_once, |_, part| {
            let session = self.wait_for(Session::open_container(&self.inner, folder))?;
            opened.lock().push(Arc::clone(&session));
            let files = exact::part(&files, part.clone());
            let written = self.write_container(files, Arc::clone(&session), &share)?;
            Ok::<_, AggregationError>((session, written))
        })?;
        for (part, (session, written)) in parts.into_iter().zip(written) {
            let members = exact::part(&members, part).to_vec();
            packed.push(PackedMembers { session: session.id(), members });
            open.push(session);
            done.files += written.files;
            done.raw_bytes += written.raw_bytes;
            done.stored_bytes += written.stored_bytes;
        }
        if done.stored_bytes < chunk_bytes {
            done.containers = packed.len() as u64;
            let request = ManagerRequest::Aggregate { folder, timestep: set.timestep, containers: packed };
            self.wait_for(self.ask_to_aggregate(request, &open, packing))?;
        }
        Ok(done)
    }

    /// Refuses to write in the clear what is encrypted.
    async fn check_encrypted(&self, folder: Ino, set: &CheckpointSet) -> Result<()> {
        if self.policy(folder).await?.encryption.is_some() {
            return Ok(());
        }
        for member in &set.members {
            let (info, _) = self.map_root(member.ino, Some(member.version)).await?;
            if let Some(key) = info.and_then(|info| info.key) {
                let what = format!(
                    "{} is encrypted with key {key}, and its folder doesn't ask for that",
                    member.name
                );
                let next = "set `encryption` of the folder to the key, or leave its sets as they are";
                return Err(Failure::new(ErrorCode::NoKey, what).then(next).into());
            }
        }
        Ok(())
    }

    /// The members, each once however many names it has, and what is to be packed of them.
    async fn open_members(&self, set: &CheckpointSet) -> Result<(Vec<Member>, Vec<SetFile>)> {
        let (mut members, mut files, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for member in &set.members {
            if !seen.insert((member.ino, member.version)) {
                continue;
            }
            let reader = self.read(member.ino, Some(member.version)).await?;
            let opened = reader.opened();
            let entry = FileEntry {
                name: member.name.clone(),
                size: reader.size(),
                mode: opened.mode & 0o777,
                modified_ns: opened.mtime,
            };
            let source = VersionSource { reader, runtime: self.inner.runtime.clone() };
            members.push((member.ino, member.version));
            files.push(SetFile { entry, source: Arc::new(source) });
        }
        Ok((members, files))
    }

    async fn chunk_bytes(&self, members: &[Member]) -> Result<u64> {
        let mut chunks = HashMap::new();
        for (ino, version) in members {
            let (_, map, pieces) = self.chunk_map(*ino, Some(*version)).await?;
            chunks.extend(map.chunks().iter().chain(&pieces).map(|chunk| (chunk.id, chunk.length)));
        }
        Ok(chunks.values().map(|length| u64::from(*length)).sum())
    }

    /// Refuses a set whose containers might fill the pool: they lie beside its chunks until these are collected.
    async fn check_room(&self, folder: Ino, chunk_bytes: u64) -> Result<()> {
        let redundancy = self.policy(folder).await?.redundancy;
        let wanted = redundancy.stored_bytes(chunk_bytes + chunk_bytes / ROOM_PART);
        let free = self.space().await?.free_bytes;
        if free >= wanted {
            return Ok(());
        }
        let (wanted, free) = (size::human(wanted), size::human(free));
        let message = format!(
            "the set's containers may take {wanted} beside its chunks while they are written, and {free} are free in the \
             pool: remove files, or add benefactors"
        );
        Err(Failure::new(ErrorCode::NoSpace, message).into())
    }

    /// Writes one container, commits it, and compares what the pool has of it with the files.
    fn write_container(
        &self,
        files: &[SetFile],
        session: Arc<Session>,
        packing: &Packing<'_>,
    ) -> Result<stdchk_aggregate::Packed> {
        let runtime = self.inner.runtime.clone();
        let mut written = Written { session, runtime };
        let packed = pack_into(files, &mut written, packing)?;
        self.wait_for(written.session.commit(now()))?;
        let cache = Arc::new(BlockCache::new(0));
        let name = Path::new("the container that was written");
        let container = Container::open_source(name, Box::new(written), cache, [0; 16])?;
        container.compare_with(files, packing)?;
        Ok(packed)
    }

    /// Waits until the containers have their copies, and while a member is being written.
    async fn ask_to_aggregate(
        &self,
        request: ManagerRequest,
        open: &[Arc<Session>],
        packing: &Packing<'_>,
    ) -> Result<()> {
        let mut retry = Retry::new(PATIENCE, PAUSE);
        loop {
            if !(packing.watch)(0) {
                return Err(AggregateError::Stopped.into());
            }
            // A manager that was restarted hears of the sessions again.
            for session in open {
                session.introduce().await.map_err(ended)?;
            }
            match self.ask(request.clone()).await {
                Err(failure) if is_to_come(&failure) => {
                    tracing::debug!(%failure, "a set can't be aggregated yet");
                    if !retry.pause().await {
                        return Err(failure.into());
                    }
                }
                answer => return Ok(answer.map(drop)?),
            }
        }
    }
}

/// The session's file went with its lease, which says nothing of the set.
fn ended(failure: Failure) -> Failure {
    match failure.code {
        ErrorCode::NotFound => {
            let message = "the pool could not be reached for so long that it gave the container up";
            Failure::new(ErrorCode::Stale, message)
        }
        _ => failure,
    }
}

fn is_to_come(failure: &Failure) -> bool {
    matches!(failure.code, ErrorCode::Stale | ErrorCode::Unavailable)
}

/// A version as packing reads it.
struct VersionSource {
    reader: Arc<Reader>,
    runtime: Handle,
}

impl Source for VersionSource {
    fn size(&self) -> u64 {
        self.reader.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let read = self.runtime.block_on(self.reader.read_at(offset, buffer.len()));
        fill(buffer, &read.map_err(io::Error::other)?)
    }

    fn holes(&self) -> io::Result<Vec<Extent>> {
        let (mut holes, mut at, size) = (Vec::new(), 0, self.reader.size());
        while let Some(offset) = self.reader.seek(at, Sought::Hole).filter(|hole| *hole < size) {
            at = self.reader.seek(offset, Sought::Data).unwrap_or(size);
            if at - offset >= HOLE_MIN {
                holes.push(Extent { offset, length: at - offset });
            }
        }
        Ok(holes)
    }
}

/// A container that goes into the pool, and comes back from there.
struct Written {
    session: Arc<Session>,
    runtime: Handle,
}

impl Output for Written {
    fn write(&mut self, bytes: &[u8], offset: u64) -> std::result::Result<(), AggregateError> {
        let written = self.runtime.block_on(self.session.write_at(offset, bytes));
        let cause = |failure| AggregateError::Io {
            action: "write",
            path: PathBuf::from("the container"),
            source: io::Error::other(failure),
        };
        written.map_err(cause)
    }
}

impl Source for Written {
    fn size(&self) -> u64 {
        self.session.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let read = self.runtime.block_on(self.session.read_at(offset, buffer.len()));
        fill(buffer, &read.map_err(io::Error::other)?)
    }
}

/// Fills a buffer with bytes that were read for it, if they are as many.
pub(crate) fn fill(buffer: &mut [u8], bytes: &[u8]) -> io::Result<()> {
    if bytes.len() != buffer.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    buffer.copy_from_slice(bytes);
    Ok(())
}
