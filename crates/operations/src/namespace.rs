//! Walking the pool's namespace: paths to inodes, folders with all their entries, trees with all their files.

use std::sync::Arc;

use stdchk_client::{Pool as Client, Reader};
use stdchk_model::message::manager::{Attr, Change, DirEntry, FileKind, VersionInfo, VersionState};
use stdchk_model::{ErrorCode, Failure, Ino};

use crate::error::{About, Code, Error, Result};
use crate::target::Target;

/// Entries of a folder that are asked for at once: a few hundred kilobytes of message.
const ENTRIES_PER_PAGE: u32 = 4096;
/// How often a name is looked at whose file is replaced between the look and the opening: each time somebody else has been
/// faster by a fraction of a millisecond.
pub const LOOKS_MAX: u32 = 16;
/// Permission bits of a folder that a command makes.
const FOLDER_MODE: u32 = 0o755;

/// A file found below a folder.
#[derive(Clone, Debug)]
pub struct Found {
    /// Where it is.
    pub target: Target,
    /// What it is.
    pub attr: Attr,
}

/// The inode that `target` names.
pub async fn resolve(pool: &Client, target: &Target) -> Result<Attr> {
    resolve_if_there(pool, target).await?.ok_or_else(|| {
        let next = "`stdchk ls` shows the folders of the pool, `stdchk ls APP` what is in one";
        Error::new(Code::NotFound, target.shown(), "no such file or folder in the pool", next)
    })
}

/// The inode that `target` names; `None` if there is none.
pub async fn resolve_if_there(pool: &Client, target: &Target) -> Result<Option<Attr>> {
    match pool.resolve(&target.path()).await {
        Err(failure) if failure.code == ErrorCode::NotFound => Ok(None),
        attr => attr.map(Some).about(target.shown()),
    }
}

/// The inode that `target` names, which must be a file's, and of which the version must be there if one is named.
pub async fn resolve_file(pool: &Client, target: &Target) -> Result<Attr> {
    FileLooks::new(pool, target).look().await
}

/// Opens the version that `target` names.
pub async fn open(pool: &Client, target: &Target) -> Result<Arc<Reader>> {
    let mut file = FileLooks::new(pool, target);
    loop {
        let attr = file.look().await?;
        match opened(pool, target, &attr).await {
            Err(error) if file.is_replaced(&error).await? => {}
            reader => return reader,
        }
    }
}

async fn opened(pool: &Client, target: &Target, attr: &Attr) -> Result<Arc<Reader>> {
    let reader = pool.read(attr.ino, target.version).await.about(target.shown())?;
    match reader.opened().links {
        0 => Err(Error::new(Code::NotFound, target.shown(), "it was removed just now", "try again")),
        _ => Ok(reader),
    }
}

/// The file that a target names, looked at again when it is gone. A file that another one replaces after the look at its name hands
/// its versions on and is gone: what the name leads to then is meant.
pub struct FileLooks<'a> {
    pool: &'a Client,
    target: &'a Target,
    /// The file that was looked at last.
    seen: Option<Ino>,
    /// The file that took its place.
    next: Option<Attr>,
    looks: u32,
}

impl<'a> FileLooks<'a> {
    /// No look yet.
    pub fn new(pool: &'a Client, target: &'a Target) -> Self {
        Self { pool, target, seen: None, next: None, looks: 1 }
    }

    /// The file, of which the version must be there if one is named.
    pub async fn look(&mut self) -> Result<Attr> {
        loop {
            let attr = match self.next.take() {
                Some(attr) => attr,
                None => resolve_kind(self.pool, self.target).await?,
            };
            self.seen = Some(attr.ino);
            match with_version(self.pool, self.target, attr).await {
                Err(error) if self.is_replaced(&error).await? => {}
                attr => return attr,
            }
        }
    }

    /// Whether the file was not found because another one has taken its place since the look: then it is to be looked at again.
    pub async fn is_replaced(&mut self, error: &Error) -> Result<bool> {
        if error.code != Code::NotFound || self.looks == LOOKS_MAX {
            return Ok(false);
        }
        let attr = resolve_kind(self.pool, self.target).await?;
        if Some(attr.ino) == self.seen {
            return Ok(false);
        }
        (self.looks, self.next) = (self.looks + 1, Some(attr));
        Ok(true)
    }
}

/// What came of a file from a list; nothing if it was removed after the list was made.
pub fn if_still_there<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Err(error) if error.code == Code::NotFound => Ok(None),
        outcome => outcome.map(Some),
    }
}

async fn resolve_kind(pool: &Client, target: &Target) -> Result<Attr> {
    let attr = resolve(pool, target).await?;
    match attr.kind {
        FileKind::File => Ok(attr),
        FileKind::Directory => Err(not_a_file(target, "it is a folder", "`stdchk ls` shows what is in it")),
        FileKind::Symlink => {
            Err(not_a_file(target, "it is a symbolic link", "`stdchk stat` shows where it leads"))
        }
        FileKind::Pipe | FileKind::Socket => {
            Err(not_a_file(target, "it is a named pipe or a socket", "it has no content: use it in a mount"))
        }
    }
}

async fn with_version(pool: &Client, target: &Target, attr: Attr) -> Result<Attr> {
    let Some(version) = target.version else { return Ok(attr) };
    let versions = pool.versions(attr.ino).await.about(target.shown())?;
    if versions.iter().any(|info| info.version == version) {
        return Ok(attr);
    }
    let path = crate::text::shown(&target.path());
    let next = format!("`stdchk ls {path} --versions` lists those that are kept");
    Err(Error::new(Code::NotFound, target.shown(), "there is no such version", next))
}

/// Whether a version of a file is still there.
pub async fn has_version(pool: &Client, ino: Ino, version: u64) -> Result<bool, Failure> {
    Ok(pool.versions(ino).await?.iter().any(|info| info.version == version))
}

/// The versions of a file that can be read, oldest first.
pub async fn kept_versions(pool: &Client, ino: Ino) -> Result<Vec<VersionInfo>, Failure> {
    let mut versions = pool.versions(ino).await?;
    versions.retain(|info| info.state != VersionState::Lost);
    Ok(versions)
}

fn not_a_file(target: &Target, cause: &str, next: &str) -> Error {
    Error::wrong_kind(target.shown(), cause, next)
}

/// The folder that `target` names.
pub async fn resolve_folder(pool: &Client, target: &Target) -> Result<Attr> {
    let attr = resolve(pool, target).await?;
    match attr.kind {
        FileKind::Directory => Ok(attr),
        _ => Err(Error::wrong_kind(target.shown(), "it is not a folder", "name the application's folder")),
    }
}

/// The folder that these names lead to, made where it is missing.
pub async fn make_folders(pool: &Client, names: &[String]) -> Result<Ino> {
    let mut ino = Ino::ROOT;
    let mut path = String::new();
    for name in names {
        path.push_str(if path.is_empty() { "" } else { "/" });
        path.push_str(name);
        let attr = folder(pool, ino, name).await.about(&path)?;
        if attr.kind != FileKind::Directory {
            return Err(Error::wrong_kind(path, "it is not a folder", "choose another name"));
        }
        ino = attr.ino;
    }
    Ok(ino)
}

/// The entry of a folder; a folder that was removed meanwhile has none.
pub(crate) async fn entry(pool: &Client, parent: Ino, name: &str) -> Result<Attr, Failure> {
    pool.lookup(parent, name).await.map_err(|failure| match failure.code {
        ErrorCode::Stale => Failure { code: ErrorCode::NotFound, ..failure },
        _ => failure,
    })
}

async fn folder(pool: &Client, parent: Ino, name: &str) -> Result<Attr, Failure> {
    match entry(pool, parent, name).await {
        Err(failure) if failure.code == ErrorCode::NotFound => {}
        found => return found,
    }
    let made = make(pool, parent, name, FileKind::Directory, FOLDER_MODE).await;
    match made {
        // Somebody else was faster.
        Err(failure) if failure.code == ErrorCode::Exists => entry(pool, parent, name).await,
        made => made,
    }
}

/// Makes a file or a folder that belongs to the user of this process.
pub async fn make(
    pool: &Client,
    parent: Ino,
    name: &str,
    kind: FileKind,
    mode: u32,
) -> Result<Attr, Failure> {
    let change = Change::Make {
        parent,
        name: name.to_owned(),
        kind,
        mode,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        target: String::new(),
    };
    pool.change(change).await?.ok_or_else(|| {
        Failure::new(
            ErrorCode::Malformed,
            "the manager made it and did not say what; use the same stdchk everywhere",
        )
    })
}

/// All entries of a folder, in name order.
pub async fn entries(pool: &Client, folder: Ino) -> Result<Vec<DirEntry>, Failure> {
    let mut all: Vec<DirEntry> = Vec::new();
    loop {
        let after = all.last().map(|entry| entry.name.clone());
        let page = pool.read_dir(folder, after.as_deref(), ENTRIES_PER_PAGE).await?;
        let last = page.len() < ENTRIES_PER_PAGE as usize;
        all.extend(page);
        if last {
            return Ok(all);
        }
    }
}

/// Everything at and below `target`: folders before what is in them, names in order.
pub async fn tree(pool: &Client, target: &Target) -> Result<Vec<Found>> {
    let attr = resolve(pool, target).await?;
    let mut pending = vec![Found { target: Target { version: None, ..target.clone() }, attr }];
    let mut all = Vec::new();
    while let Some(found) = pending.pop() {
        if found.attr.kind == FileKind::Directory {
            let children = if_still_there(children(pool, &found).await)?;
            pending.extend(children.into_iter().flatten().rev());
        }
        all.push(found);
    }
    Ok(all)
}

async fn children(pool: &Client, folder: &Found) -> Result<Vec<Found>> {
    let entries = entries(pool, folder.attr.ino).await.about(folder.target.shown())?;
    let found = |entry: DirEntry| Ok(Found { target: folder.target.join(&entry.name)?, attr: entry.attr });
    entries.into_iter().map(found).collect::<Result<_, Failure>>().about(folder.target.shown())
}

/// The files at and below `target`.
pub async fn files(pool: &Client, target: &Target) -> Result<Vec<Found>> {
    let mut all = tree(pool, target).await?;
    all.retain(|found| found.attr.kind == FileKind::File);
    Ok(all)
}

/// Paths of all files below a folder, from it on.
pub async fn paths_below(pool: &Client, folder: &Target) -> Result<Vec<String>> {
    Ok(files(pool, folder).await?.iter().map(|found| path_below(folder, found)).collect())
}

/// The path of something below a folder, from it on.
pub fn path_below(folder: &Target, found: &Found) -> String {
    let names = found.target.names().iter().skip(folder.names().len());
    names.map(String::as_str).collect::<Vec<_>>().join("/")
}
