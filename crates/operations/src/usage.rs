//! How much the kept versions hold, and how much of it is distinct.

use std::collections::HashMap;

use serde::Serialize;
use stdchk_client::Pool as Client;
use stdchk_model::message::manager::{Attr, FileKind};
use stdchk_model::{ChunkId, ChunkRef, ErrorCode};

use crate::error::{About, Result};
use crate::namespace::{self, Found};
use crate::pool::Pool;
use crate::target::Target;

/// What an entry of a folder, or all of them together, hold.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct UsageEntry {
    /// Where it is.
    pub path: String,
    /// Files.
    pub files: u64,
    /// Their versions that are kept.
    pub versions: u64,
    /// What the readers of all these versions see, bytes.
    pub logical_bytes: u64,
    /// What is left of it when every chunk is counted once, bytes.
    pub distinct_bytes: u64,
    /// What of that only versions need that aren't their file's newest, bytes.
    pub older_bytes: u64,
}

/// What is held at and below a place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Usage {
    /// What is in the folder, each for itself.
    pub entries: Vec<UsageEntry>,
    /// All of it.
    pub total: UsageEntry,
}

/// Chunks with their lengths, and whether the newest version of a file needs them.
#[derive(Default)]
struct Chunks(HashMap<ChunkId, (u32, bool)>);

impl Chunks {
    fn add(&mut self, chunks: impl IntoIterator<Item = (ChunkId, (u32, bool))>) {
        for (chunk, (length, is_newest)) in chunks {
            self.0.entry(chunk).or_insert((length, false)).1 |= is_newest;
        }
    }

    /// Bytes of all, and of those that no newest version needs.
    fn bytes(&self) -> (u64, u64) {
        self.0.values().fold((0, 0), |(all, older), (length, is_newest)| {
            let length = u64::from(*length);
            (all + length, older + if *is_newest { 0 } else { length })
        })
    }
}

impl Pool {
    /// How much the versions hold that are kept of what is in a folder, or of a file. Copies for redundancy aren't counted.
    /// Entries share chunks, so the total is less than their sum.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::Code::NotFound): there is no such thing.
    pub async fn usage(&self, target: &Target) -> Result<Usage> {
        let pool = &self.client;
        let (mut entries, mut total, mut all) = (Vec::new(), UsageEntry::default(), Chunks::default());
        for place in places(pool, target).await? {
            let used = namespace::if_still_there(usage(pool, &place.target).await)?;
            let Some((usage, chunks)) = used else { continue };
            total.files += usage.files;
            total.versions += usage.versions;
            total.logical_bytes += usage.logical_bytes;
            all.add(chunks.0);
            entries.push(usage);
        }
        total.path = target.path();
        (total.distinct_bytes, total.older_bytes) = all.bytes();
        Ok(Usage { entries, total })
    }
}

/// What gets a line: the entries of a folder, or the file.
async fn places(pool: &Client, target: &Target) -> Result<Vec<Found>> {
    let attr = namespace::resolve(pool, target).await?;
    if attr.kind != FileKind::Directory {
        return Ok(vec![Found { target: target.clone(), attr }]);
    }
    let entries = namespace::entries(pool, attr.ino).await.about(target.shown())?;
    let found = |name: &str, attr| Ok(Found { target: target.join(name).about(target.shown())?, attr });
    entries.into_iter().map(|entry| found(&entry.name, entry.attr)).collect()
}

async fn usage(pool: &Client, target: &Target) -> Result<(UsageEntry, Chunks)> {
    let mut usage = UsageEntry { path: target.path(), ..UsageEntry::default() };
    let mut chunks = Chunks::default();
    for file in namespace::files(pool, target).await? {
        let used = usage_of(pool, &file.target);
        let Some((found, new)) = namespace::if_still_there(used.await)? else { continue };
        usage.files += found.files;
        usage.versions += found.versions;
        usage.logical_bytes += found.logical_bytes;
        chunks.add(new.0);
    }
    (usage.distinct_bytes, usage.older_bytes) = chunks.bytes();
    Ok((usage, chunks))
}

async fn usage_of(pool: &Client, target: &Target) -> Result<(UsageEntry, Chunks)> {
    let mut file = namespace::FileLooks::new(pool, target);
    loop {
        let attr = file.look().await?;
        match file_usage(pool, target, &attr).await {
            Err(error) if file.is_replaced(&error).await? => {}
            outcome => return outcome,
        }
    }
}

async fn file_usage(pool: &Client, target: &Target, attr: &Attr) -> Result<(UsageEntry, Chunks)> {
    let (mut usage, mut chunks) = (UsageEntry { files: 1, ..UsageEntry::default() }, Chunks::default());
    let versions = namespace::kept_versions(pool, attr.ino).await.about(target.shown())?;
    let newest = versions.iter().map(|info| info.version).max();
    for info in versions {
        let all: Vec<ChunkRef> = match pool.all_chunks(attr.ino, info.version).await {
            Err(failure)
                if failure.code == ErrorCode::NotFound
                    && !namespace::has_version(pool, attr.ino, info.version)
                        .await
                        .about(target.shown())? =>
            {
                continue;
            }
            found => found.about(target.shown())?,
        };
        usage.versions += 1;
        usage.logical_bytes += info.size;
        let is_newest = Some(info.version) == newest;
        chunks.add(all.into_iter().map(|chunk| (chunk.id, (chunk.length, is_newest))));
    }
    Ok((usage, chunks))
}
