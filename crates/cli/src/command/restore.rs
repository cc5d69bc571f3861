//! `stdchk restore`: all files of a checkpoint set come back below a local folder, in parallel and verified.
//!
//! Every file appears once it is whole and on disk, so a restore that was stopped can simply be run again: files that
//! are there already are compared with the names of the chunks and pieces of their version, or with its bytes where it lies in
//! a container, and only written if they differ.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use stdchk_client::{PieceNames, Pool, Reader};
use stdchk_model::limits::CHUNK_BYTES_MAX;
use stdchk_model::message::manager::{CheckpointSet, SetMember, SetState};
use stdchk_model::{ChunkId, ChunkMap, ErrorCode, Extent, Failure, Source, size};
use tokio::task::{JoinSet, block_in_place};

use super::get::fetch;
use super::latest::newest;
use super::ls::set_bytes;
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome, Parts};
use crate::paths::{Target, member_path};
use crate::progress::{Progress, rate};
use crate::transfer::task_failed;
use crate::{namespace, output};

/// Files fetched at the same time; each has several reads under way.
const FILES_AT_ONCE: usize = 4;
/// Bytes of zeros that are compared at once.
const ZERO_BYTES: usize = 64 << 10;
/// Bytes of a file in a container that are compared at once.
const COMPARED_BYTES: usize = 4 << 20;

/// What `restore` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Without --set it is the set that `stdchk latest` names. Folders below the application's folder are kept. Files that
are there and match are left alone; files that differ are replaced. Of a set that isn't complete comes back what is
there: exit code 3.

Example:
  stdchk restore climate -o restart/
  stdchk restore climate --set 120000 -o restart/")]
pub struct Arguments {
    /// The application's folder
    app: String,
    /// The set's timestep
    #[arg(long, value_name = "TIMESTEP", value_parser = timestep)]
    set: Option<u64>,
    /// Folder to restore to; made if it is missing
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Restored {
    name: String,
    version: u64,
    bytes: u64,
    /// Whether the file was there already and matched.
    kept: bool,
}

#[derive(Serialize)]
struct Report {
    app: String,
    timestep: u64,
    members: Vec<Restored>,
    bytes: u64,
    seconds: f64,
}

/// Reads the timestep of a set.
pub fn timestep(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "a timestep is a number; `stdchk ls APP --sets` lists the timesteps".to_owned())
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let started = Instant::now();
    let app = Target::parse_plain(&arguments.app)?;
    let pool = context.pool_to_move().await?;
    let quiet = context.settings.quiet;
    let mut parts = Parts::default();
    let set = choose(&pool, &app, arguments.set, quiet, &mut parts).await?;
    std::fs::create_dir_all(&arguments.output).about(arguments.output.display())?;
    let progress = Arc::new(Progress::start("restore", set_bytes(&set), quiet));
    let mut members = restore_all(&pool, &app, &set, &arguments.output, &progress, &mut parts).await?;
    drop(progress);
    members.sort_by(|a, b| a.name.cmp(&b.name));
    let bytes = members.iter().map(|member| member.bytes).sum();
    if arguments.json {
        let seconds = started.elapsed().as_secs_f64();
        output::json(&Report { app: app.path(), timestep: set.timestep, members, bytes, seconds })?;
    } else if !quiet {
        let kept = members.iter().filter(|member| member.kept).count();
        let (files, rate) =
            (output::count(members.len(), "file"), size::human(rate(bytes, started.elapsed())));
        let step = set.timestep;
        let size = size::human(bytes);
        output::note(format_args!(
            "restore: timestep {step}, {files} ({kept} there before), {size}, {rate}/s"
        ));
    }
    parts.outcome()
}

/// The set with this timestep, or the newest that can be restarted from.
async fn choose(
    pool: &Pool,
    app: &Target,
    timestep: Option<u64>,
    quiet: bool,
    parts: &mut Parts,
) -> Outcome<CheckpointSet> {
    let Some(timestep) = timestep else {
        let found = newest(pool, app, quiet).await?;
        found.note(app);
        return found.required(app).cloned();
    };
    let attr = namespace::resolve_folder(pool, app).await?;
    let sets = pool.sets(attr.ino).await.about(app.shown())?;
    let set = sets.into_iter().find(|set| set.timestep == timestep).ok_or_else(|| {
        let cause = format!("there is no set with timestep {timestep}");
        CommandError::new(Exit::NotFound, app.shown(), cause, "`stdchk ls --sets` shows those that are there")
    })?;
    if set.state != SetState::Complete {
        let cause = format!("timestep {timestep} is not complete: {}", output::shown(&set.reason));
        let next = "only what is there of it comes back";
        parts.add::<()>(Err(CommandError::new(Exit::NotFound, app.shown(), cause, next)))?;
    }
    Ok(set)
}

async fn restore_all(
    pool: &Pool,
    app: &Target,
    set: &CheckpointSet,
    directory: &Path,
    progress: &Arc<Progress>,
    parts: &mut Parts,
) -> Outcome<Vec<Restored>> {
    let mut running = JoinSet::new();
    let mut members = set.members.iter();
    let mut restored = Vec::new();
    loop {
        while running.len() < FILES_AT_ONCE
            && let Some(member) = members.next()
        {
            let path = directory.join(member_path(&member.name)?);
            let (pool, app, member, progress) = (pool.clone(), app.clone(), member.clone(), progress.clone());
            running.spawn(async move { restore_one(&pool, &app, &member, &path, &progress).await });
        }
        match running.join_next().await {
            None => return Ok(restored),
            Some(Err(error)) => return Err(task_failed(&error)),
            Some(Ok(outcome)) => restored.extend(parts.add(outcome)?),
        }
    }
}

async fn restore_one(
    pool: &Pool,
    app: &Target,
    member: &SetMember,
    path: &Path,
    progress: &Progress,
) -> Outcome<Restored> {
    let shown = format!("{}/{}@{}", app.shown(), output::shown(&member.name), member.version);
    let kept = match is_there(pool, member, path).await {
        Err(failure) if failure.code == ErrorCode::NotFound => false,
        compared => compared.about(&shown)?,
    };
    if kept {
        progress.add(member.bytes);
    } else {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).about(parent.display())?;
        }
        let reader = open(pool, app, member).await?;
        fetch(&reader, &shown, path, progress).await?;
    }
    Ok(Restored { name: member.name.clone(), version: member.version, bytes: member.bytes, kept })
}

/// Opens a member. A file that has taken its place since the set was listed has taken its versions over, with their numbers.
async fn open(pool: &Pool, app: &Target, member: &SetMember) -> Outcome<Arc<Reader>> {
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
async fn is_there(pool: &Pool, member: &SetMember, path: &Path) -> Result<bool, Failure> {
    let Ok(Some(mut file)) = block_in_place(|| open_of_size(path, member.bytes)) else { return Ok(false) };
    if !member.aggregated {
        let (info, map, _) = pool.chunk_map(member.ino, Some(member.version)).await?;
        if !info.is_some_and(|info| info.aggregated) {
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
        let part = there.get_mut(..bytes.len()).unwrap_or_default();
        let read = block_in_place(|| file.read_exact(part));
        if read.is_err() || part.is_empty() || *part != *bytes {
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
    let mut bytes = vec![0; usize::try_from(extent.length).unwrap_or(CHUNK_BYTES_MAX)];
    file.read_exact(&mut bytes)?;
    let is_whole = extent.length == u64::from(chunk.length);
    Ok(if is_whole { ChunkId::of(&bytes) == chunk.id } else { names.are_at(chunk.id, offset, &bytes) })
}

fn is_zero(file: &mut File, length: u64) -> std::io::Result<bool> {
    let mut buffer = vec![0; ZERO_BYTES];
    let mut left = length;
    while left > 0 {
        let wanted = usize::try_from(left).unwrap_or(ZERO_BYTES).min(ZERO_BYTES);
        let part = buffer.get_mut(..wanted).unwrap_or_default();
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
    use stdchk_model::ChunkRef;

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
