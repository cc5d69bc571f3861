//! All files of a checkpoint set come back below a local folder, in parallel and verified.
//!
//! The newest set is the one that is intact as far as the manager knows, or as its holders find where the folder has files already. Should
//! it turn out to be damaged, the one before comes back in its place.
//!
//! Every file appears once it is whole and on disk, so a restore that was stopped can simply be run again: files that
//! are there already are compared with the names of the chunks and pieces of their version, or with its bytes where it lies in
//! a container, and only written if they differ.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use stdchk_client::{Depth, PieceNames, Pool as Client, Reader};
use stdchk_model::message::manager::{CheckpointSet, SetMember, SetState};
use stdchk_model::{ChunkMap, ErrorCode, Extent, Failure, Source, Timestep};
use tokio::task::{JoinSet, block_in_place};

use crate::error::{About, Code, Error, Result, Tally};
use crate::get::fetch;
use crate::latest::{WhenAway, newest};
use crate::list::bytes_of;
use crate::namespace;
use crate::pool::Pool;
use crate::target::{Target, member_path};
use crate::text;
use crate::watch::{Event, Stage, Watch, Work};

/// Files fetched at the same time; each has several reads under way.
const FILES_AT_ONCE: usize = 4;
/// Bytes of zeros that are compared at once.
const ZERO_BYTES: usize = 64 << 10;
/// Bytes of a file in a container that are compared at once.
const COMPARED_BYTES: usize = 4 << 20;

/// What is to be restored, and where to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restore {
    /// The application's folder.
    pub app: Target,
    /// The set's timestep; `None`: the newest set that can be restarted from.
    pub timestep: Option<Timestep>,
    /// What to do when the newest complete set is away; says nothing where a timestep is named.
    pub when_away: WhenAway,
    /// The folder to restore to, made if it is missing.
    pub output: PathBuf,
}

/// A file that came back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RestoredFile {
    /// Its path below the application's folder, and below the output.
    pub name: String,
    /// Its version.
    pub version: u64,
    /// Its size, bytes.
    pub bytes: u64,
    /// Whether the file was there already and matched.
    pub kept: bool,
}

/// What came back.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Restored {
    /// The application's folder.
    pub app: String,
    /// The set's timestep.
    pub timestep: Timestep,
    /// Its files, by name.
    pub members: Vec<RestoredFile>,
    /// Their bytes.
    pub bytes: u64,
    /// The time that it took.
    pub seconds: f64,
    /// How many files came back, and how many failed. A set that isn't complete counts as one failure more.
    #[serde(skip)]
    pub tally: Tally,
}

impl Pool {
    /// Fetches all files of a set. Files that are there and match are left alone; files that differ are replaced. A file that
    /// fails is told to `watch` and counted; the others come back. Of a set that isn't complete comes back what is there.
    ///
    /// # Errors
    /// There is no such set, or none that can be restarted from: the codes of [`Latest::required`](crate::Latest::required).
    /// What becomes of single files stands in [`Restored::tally`].
    pub async fn restore(&self, restore: &Restore, watch: &Watch) -> Result<Restored> {
        let started = Instant::now();
        let (app, output) = (&restore.app, &restore.output);
        // What is there may be all that is left of an older set: it is replaced only by what its holders have read.
        let nothing_there = block_in_place(|| is_missing_or_empty(output));
        let mut depth = if nothing_there { Depth::Known } else { Depth::Read };
        let mut before: Option<(Timestep, Vec<RestoredFile>)> = None;
        let (set, mut members, tally) = loop {
            let mut tally = Tally::default();
            let set = self.choose(restore, depth, watch, &mut tally).await?;
            if let Some((timestep, members)) = before.take()
                && timestep != set.timestep
            {
                remove(output, &members)?;
            }
            block_in_place(|| std::fs::create_dir_all(output)).about(output.display())?;
            let stage = Arc::new(watch.begin(Work::Restore, bytes_of(&set)));
            let (members, failures) = self.restore_all(restore, &set, &stage).await?;
            let is_content = |error: &Error| matches!(error.code, Code::Damaged | Code::Unreachable);
            if restore.timestep.is_none() && depth == Depth::Known && failures.iter().any(is_content) {
                // Its holders say what is damaged, and those that are away are waited for.
                (before, depth) = (Some((set.timestep, members)), Depth::Read);
                continue;
            }
            tally.succeeded = members.len() as u64;
            failures.iter().for_each(|error| failed(error, watch, &mut tally));
            break (set, members, tally);
        };
        members.sort_by(|a, b| a.name.cmp(&b.name));
        let bytes = members.iter().map(|member| member.bytes).sum();
        let (app, timestep, seconds) = (app.path(), set.timestep, started.elapsed().as_secs_f64());
        Ok(Restored { app, timestep, members, bytes, seconds, tally })
    }

    /// The set with this timestep, or the newest that can be restarted from.
    async fn choose(
        &self,
        restore: &Restore,
        depth: Depth,
        watch: &Watch,
        tally: &mut Tally,
    ) -> Result<CheckpointSet> {
        let app = &restore.app;
        let Some(timestep) = restore.timestep else {
            return newest(&self.client, app, restore.when_away, depth, watch).await?.required(app);
        };
        let folder = self.folder(app).await?;
        let sets = self.client.sets(folder.ino).await.about(app.shown())?;
        let set = sets.into_iter().find(|set| set.timestep == timestep).ok_or_else(|| {
            let cause = format!("there is no set with timestep {timestep}");
            Error::new(Code::NotFound, app.shown(), cause, "`stdchk ls --sets` shows those that are there")
        })?;
        if set.state != SetState::Complete {
            let cause = format!("timestep {timestep} is not complete: {}", text::shown(&set.reason));
            let next = "only what is there of it comes back";
            failed(&Error::new(Code::NotFound, app.shown(), cause, next), watch, tally);
        }
        Ok(set)
    }

    async fn restore_all(
        &self,
        restore: &Restore,
        set: &CheckpointSet,
        stage: &Arc<Stage>,
    ) -> Result<(Vec<RestoredFile>, Vec<Error>)> {
        let mut running = JoinSet::new();
        let mut members = set.members.iter();
        let (mut restored, mut failures) = (Vec::new(), Vec::new());
        loop {
            while running.len() < FILES_AT_ONCE
                && let Some(member) = members.next()
            {
                let path = restore.output.join(member_path(&member.name)?);
                let (pool, app) = (self.client.clone(), restore.app.clone());
                let (member, stage) = (member.clone(), Arc::clone(stage));
                running.spawn(
                    self.tracked(async move { restore_one(&pool, &app, &member, &path, &stage).await }),
                );
            }
            match running.join_next().await {
                None => return Ok((restored, failures)),
                Some(Err(error)) => return Err(Error::of_task(&error)),
                Some(Ok(Ok(file))) => restored.push(file),
                Some(Ok(Err(error))) => failures.push(error),
            }
        }
    }
}

fn failed(error: &Error, watch: &Watch, tally: &mut Tally) {
    tally.fail(error);
    watch.tell(&Event::Failed(error));
}

/// Removes what came back of a set that can't be restored after all.
fn remove(output: &Path, members: &[RestoredFile]) -> Result<()> {
    for member in members.iter().filter(|member| !member.kept) {
        let path = output.join(member_path(&member.name)?);
        block_in_place(|| std::fs::remove_file(&path)).about(path.display())?;
    }
    Ok(())
}

fn is_missing_or_empty(folder: &Path) -> bool {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

async fn restore_one(
    pool: &Client,
    app: &Target,
    member: &SetMember,
    path: &Path,
    stage: &Stage,
) -> Result<RestoredFile> {
    let shown = format!("{}/{}@{}", app.shown(), text::shown(&member.name), member.version);
    let kept = match is_there(pool, member, path).await {
        Err(failure) if failure.code == ErrorCode::NotFound => false,
        compared => compared.about(&shown)?,
    };
    if kept {
        stage.moved(member.bytes);
    } else {
        if let Some(parent) = path.parent() {
            block_in_place(|| std::fs::create_dir_all(parent)).about(parent.display())?;
        }
        let reader = open(pool, app, member).await?;
        fetch(&reader, &shown, path, stage).await?;
    }
    Ok(RestoredFile { name: member.name.clone(), version: member.version, bytes: member.bytes, kept })
}

/// Opens a member. A file that has taken its place since the set was listed has taken its versions over, with their numbers.
async fn open(pool: &Client, app: &Target, member: &SetMember) -> Result<Arc<Reader>> {
    let mut ino = member.ino;
    let mut looks = 0;
    let named = member.name.split('/').try_fold(app.clone(), |folder, name| folder.join(name));
    let named = named.about(app.shown())?;
    loop {
        let opened = pool.read(ino, Some(member.version)).await;
        let is_gone = opened.as_ref().is_err_and(|failure| failure.code == ErrorCode::NotFound);
        if !is_gone || looks == namespace::LOOKS_MAX {
            return opened.about(named.shown());
        }
        looks += 1;
        ino = namespace::resolve(pool, &named).await?.ino;
    }
}

/// Whether the local file is the member.
async fn is_there(pool: &Client, member: &SetMember, path: &Path) -> Result<bool, Failure> {
    let Ok(Some(mut file)) = block_in_place(|| open_of_size(path, member.bytes)) else { return Ok(false) };
    if !member.aggregated {
        let (info, map, _) = pool.chunk_map(member.ino, Some(member.version)).await?;
        if !info.as_ref().is_some_and(|info| info.aggregated) {
            // Names can be compared with the key at hand.
            if let Some(key) = info.and_then(|info| info.key) {
                pool.encryption_keys().require(key)?;
            }
            let names = pool.piece_names(&map).await;
            return Ok(block_in_place(|| matches(path, &map, &names)));
        }
    }
    let reader = pool.read(member.ino, Some(member.version)).await?;
    reads_equal(&mut file, &reader).await
}

/// The file, if there is one of this size.
fn open_of_size(path: &Path, size: u64) -> std::io::Result<Option<File>> {
    if !std::fs::symlink_metadata(path)?.is_file() {
        return Ok(None);
    }
    let file = File::open(path)?;
    Ok((file.metadata()?.len() == size).then_some(file))
}

/// Whether the local file, of the same size, has the bytes of the version.
async fn reads_equal(file: &mut File, reader: &Reader) -> Result<bool, Failure> {
    let (mut offset, mut there) = (0, vec![0; COMPARED_BYTES]);
    while offset < reader.size() {
        let bytes = reader.read_at(offset, COMPARED_BYTES).await?;
        let Some(part) = there.get_mut(..bytes.len()).filter(|part| !part.is_empty()) else {
            let what = format!("a read at byte {offset} gave {} bytes", bytes.len());
            return Err(Failure::new(ErrorCode::Internal, what));
        };
        let read = block_in_place(|| file.read_exact(part));
        if read.is_err() || *part != *bytes {
            return Ok(false);
        }
        offset += bytes.len() as u64;
    }
    Ok(true)
}

/// Whether the local file is what the map says. Only what can be told from names counts: a file with a part of a chunk that is
/// not made up of whole pieces is fetched again.
fn matches(path: &Path, map: &ChunkMap, names: &PieceNames) -> bool {
    let compare = || -> std::io::Result<bool> {
        let Some(mut file) = open_of_size(path, map.size())? else { return Ok(false) };
        for extent in map.extents() {
            if !extent_matches(&mut file, map, names, extent)? {
                return Ok(false);
            }
        }
        Ok(true)
    };
    compare().unwrap_or(false)
}

fn extent_matches(
    file: &mut File,
    map: &ChunkMap,
    names: &PieceNames,
    extent: &Extent,
) -> std::io::Result<bool> {
    let (Source::Chunk { offset, .. }, Some(chunk)) = (extent.source, map.chunk_of(extent)) else {
        return is_zero(file, extent.length);
    };
    // A chunk is a few mebibytes at most, and an extent lies within one.
    let length = usize::try_from(extent.length).map_err(std::io::Error::other)?;
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes)?;
    let is_whole = extent.length == u64::from(chunk.length);
    Ok(if is_whole { names.are_all_of(chunk.id, &bytes) } else { names.are_at(chunk.id, offset, &bytes) })
}

fn is_zero(file: &mut File, length: u64) -> std::io::Result<bool> {
    let mut buffer = vec![0; ZERO_BYTES];
    let mut left = length;
    while left > 0 {
        let wanted = usize::try_from(left).map_or(ZERO_BYTES, |left| left.min(ZERO_BYTES));
        let part = buffer.get_mut(..wanted).ok_or(std::io::ErrorKind::InvalidInput)?;
        file.read_exact(part)?;
        if !stdchk_reduce::is_zero(part) {
            return Ok(false);
        }
        left -= wanted as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use stdchk_model::{ChunkId, ChunkRef};

    use super::*;

    #[test]
    fn a_file_matches_its_map_and_no_other_file_does() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        let chunk = ChunkRef { id: ChunkId::of(b"abcd"), length: 4 };
        let extents = [
            Extent { length: 100_000, source: Source::Hole },
            Extent { length: 4, source: Source::Chunk { index: 0, offset: 0 } },
        ];
        let map = ChunkMap::new(vec![chunk], extents).unwrap();
        assert!(!matches(&path, &map, &PieceNames::default()));
        let mut content = vec![0; 100_000];
        content.extend(b"abcd");
        std::fs::write(&path, &content).unwrap();
        assert!(matches(&path, &map, &PieceNames::default()));
        for position in [0, 99_999, 100_003] {
            let mut other = content.clone();
            other[position] ^= 1;
            std::fs::write(&path, other).unwrap();
            assert!(!matches(&path, &map, &PieceNames::default()));
        }
        content.push(0);
        std::fs::write(&path, &content).unwrap();
        assert!(!matches(&path, &map, &PieceNames::default()));
    }
}
