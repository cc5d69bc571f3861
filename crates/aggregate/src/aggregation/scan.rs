//! The raw files of a source folder, as the rules of checkpoint sets want to see them.
//!
//! Relies on the standard library and `stdchk-model`. The idea: a plain folder doesn't say when a file is closed, so a file
//! counts as closed when it has not changed for a while; packing notices the one that changes later all the same.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use stdchk_model::message::manager::{VersionInfo, VersionState};
use stdchk_model::naming::Naming;
use stdchk_model::sets::FileVersions;
use stdchk_model::{Ino, SessionId};

use super::names::{is_container, is_draft};
use crate::container::FileEntry;
use crate::error::{AggregateError, Result};
use crate::source::inputs_of;

/// A file of the source that belongs to a timestep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RawFile {
    /// Its path below the source.
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) size: u64,
    /// Nanoseconds since 1970.
    pub(super) modified_ns: i64,
    /// Nanoseconds since 1970: the earlier of the times of modification and of the last change of status, as programs may set
    /// the former to a time that is yet to come.
    pub(super) changed_ns: i64,
    pub(super) settled: bool,
}

/// The files that a pattern gives a timestep.
pub(super) fn files(source: &Path, naming: &Naming, settle: Duration) -> Result<Vec<RawFile>> {
    let mut found = Vec::new();
    for input in inputs_of(&[source.to_owned()])?.files {
        let belongs = naming.read(&input.name).is_some_and(|reading| reading.step.is_some());
        if !belongs || is_of_sink(&input.name) {
            continue;
        }
        let Some(mut file) = look_at(&input.path, &input.name)? else { continue };
        // What changed before 1970 is as old as what changed then.
        let changed = Duration::from_nanos(file.changed_ns.max(0).unsigned_abs());
        let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + changed);
        file.settled = age.is_ok_and(|age| age >= settle);
        found.push(file);
    }
    Ok(found)
}

/// Whether the sink keeps something under such a name: it may be the source, too, or lie in it.
fn is_of_sink(name: &str) -> bool {
    let name = name.rsplit_once('/').map_or(name, |(_, last)| last);
    is_container(name) || is_draft(name)
}

/// A file as it is now; none if it is gone.
pub(super) fn look_at(path: &Path, name: &str) -> Result<Option<RawFile>> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(AggregateError::io("look at", path))?,
    };
    let in_ns = |seconds: i64, ns| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
    let modified_ns = in_ns(metadata.mtime(), metadata.mtime_nsec());
    let changed_ns = in_ns(metadata.ctime(), metadata.ctime_nsec()).min(modified_ns);
    let (name, path) = (name.to_owned(), path.to_owned());
    Ok(Some(RawFile { name, path, size: metadata.len(), modified_ns, changed_ns, settled: true }))
}

/// Raw files, and those that only containers hold: how many ranks there are is learned from both, and no raw file stands for
/// one that isn't there.
pub(super) fn versions<'a>(raw: &[RawFile], kept: impl Iterator<Item = &'a FileEntry>) -> Vec<FileVersions> {
    let mut seen: HashSet<&str> = raw.iter().map(|file| file.name.as_str()).collect();
    let kept = kept.filter(move |entry| seen.insert(entry.name.as_str()));
    let state = |settled| if settled { VersionState::Closed } else { VersionState::Open };
    let of_raw = raw.iter().map(|file| (&file.name, file.size, file.modified_ns, state(file.settled)));
    let of_kept = kept.map(|entry| (&entry.name, entry.size, entry.modified_ns, VersionState::Closed));
    let all = of_raw.chain(of_kept);
    all.map(|(name, size, mtime, state)| FileVersions {
        path: name.clone(),
        ino: Ino::ROOT,
        versions: vec![VersionInfo {
            version: 1,
            size,
            mtime,
            committed_at: mtime,
            state,
            stored_bytes: size,
            session: SessionId::default(),
            aggregated: false,
            key: None,
            maker: stdchk_model::Maker::LOCAL,
        }],
    })
    .collect()
}
