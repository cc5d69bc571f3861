//! The directory beside the files, where everything that a restore needs is kept.
//!
//! | name in `.stdchk-files/` | holds |
//! |---|---|
//! | `store` | version, key, the directory's inode, whether blocks are shared, mode and options: plain text, written once |
//! | `log` | the statements ([`crate::record`]) |
//! | `index` | the checkpoints ([`crate::index`]) |
//! | `control` | the shared page of a running job ([`crate::control`]) |
//! | `mapped` | which ranges of files its processes have mapped to write ([`crate::mapped`]) |
//! | `pieces.INODE` | which kept file holds which piece of a mapped file ([`crate::pieces`]) |
//! | `kept/` | files that the program deleted or replaced, under `interval.number` |
//! | `trash/` | what a restore took away, emptied when it is complete |
//! | `restoring.N…` | how far a restore got ([`crate::restore`]) |
//! | `reserve` | room for a restore on a full disk |
//! | `fired.N` | the trigger of this number took a checkpoint |
//! | `started/` | programs that were started and have not reported in ([`crate::unwatched`]) |
//! | `unwatched` | programs that are not watched, or not in all that they do: a line each |
//! | `notes` | what processes of the job have to tell its driver: a line each |
//! | `ended` | the job ended by itself; the next one starts afresh |
//! | `pinned` | the checkpoint that is being copied: it is kept until that is done |
//!
//! It lies on the protected tree's own file system, so that keeping a file is a rename and costs nothing. Everything
//! here goes through `rustix`: it also runs inside other people's processes.

use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Mode as Permissions, OFlags, RawDir, ResolveFlags, Stat};
use rustix::io::Errno;

use stdchk_model::Timestep;

use crate::clones;
use crate::error::{Error, Result};
use crate::index::{self, Entry};
use crate::log::Log;
use crate::record::{Inode, Key};
use crate::trigger::{Event, Trigger};
use crate::unwatched::STARTED;

/// The store's directory in the protected root.
pub const DIRECTORY: &str = ".stdchk-files";
/// Kept files, relative to the root.
pub const KEPT: &str = ".stdchk-files/kept";
/// Discarded files, relative to the root.
pub const TRASH: &str = ".stdchk-files/trash";
const LOG: &str = "log";
const MANIFEST: &str = "store";
const ENDED: &str = "ended";
const NOTES: &str = "notes";
const PINNED: &str = "pinned";
const VERSION_LINE: &str = "stdchk-files 1";

/// When data reaches the files, and how many checkpoints stay restorable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Data goes to the files at once; every index stays restorable.
    WriteThrough,
    /// Only the last checkpoint is kept; an abnormal end goes back to it (Metamori's single checkpoint mode).
    Single,
    /// Every index stays restorable; an abnormal end leaves the files as they were at the last commit, which is
    /// the start of the run or the last restore (Metamori's incremental mode).
    Incremental,
}

impl Mode {
    const NAMES: [(Self, &'static str); 3] =
        [(Self::WriteThrough, "write-through"), (Self::Single, "single"), (Self::Incremental, "incremental")];

    /// The name in commands and in the manifest.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(mode, _)| *mode == self).map_or("", |(_, name)| name)
    }

    /// The mode of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(mode, _)| *mode)
    }
}

/// What a store is created with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// When data reaches the files.
    pub mode: Mode,
    /// Make every record durable before the change that it precedes: protects against power loss between checkpoints
    /// too, at one synchronous write per first change.
    pub synced: bool,
    /// The events of files at which a checkpoint is taken.
    pub triggers: Vec<Trigger>,
    /// Checkpoints are taken together with the checkpoint sets that the application writes to a pool.
    pub sets: Option<Sets>,
    /// How many checkpoints stay restorable, the newest; all of them when `None`. One in [`Mode::Single`].
    pub keep: Option<NonZeroUsize>,
    /// Whether old contents are kept by sharing their blocks; found out when the store is created, where `None`.
    pub clones: Option<bool>,
}

/// Where an application writes its checkpoint sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sets {
    /// The folder where the pool is mounted: canonical.
    pub folder: PathBuf,
    /// The folder's path in the pool.
    pub app: String,
    /// The folder's patterns, which tell the timestep of a file by its name.
    pub naming: String,
}

impl Options {
    /// How many checkpoints stay restorable in this mode.
    pub fn kept(&self) -> usize {
        let kept = self.keep.map_or(usize::MAX, NonZeroUsize::get);
        if self.mode == Mode::Single { 1 } else { kept }
    }

    /// The options as lines of text.
    pub fn to_lines(&self) -> String {
        let (mode, synced) = (self.mode.name(), self.synced);
        let line =
            |trigger: &Trigger| format!("trigger {} {}\n", trigger.event.word(), hex(&trigger.pattern));
        let triggers: String = self.triggers.iter().map(line).collect();
        let keep = self.keep.map_or(0, NonZeroUsize::get);
        let sets = self.sets.as_ref().map_or_else(String::new, sets_line);
        format!("mode {mode}\nsynced {synced}\n{triggers}keep {keep}\n{sets}")
    }

    /// Reads what [`Options::to_lines`] wrote, perhaps among other lines.
    pub fn from_lines(text: &str) -> Option<Self> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let triggers = text.lines().filter_map(|line| line.strip_prefix("trigger "));
        let sets = match field("sets ") {
            Some(line) => Some(parse_sets(line)?),
            None => None,
        };
        Some(Self {
            mode: Mode::parse(field("mode ")?)?,
            synced: field("synced ")?.parse().ok()?,
            keep: NonZeroUsize::new(field("keep ")?.parse().ok()?),
            sets,
            clones: None,
            triggers: triggers.map(parse_trigger).collect::<Option<_>>()?,
        })
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: Mode::WriteThrough,
            synced: false,
            triggers: Vec::new(),
            sets: None,
            keep: None,
            clones: None,
        }
    }
}

/// An open store.
#[derive(Debug)]
pub struct Store {
    root: OwnedFd,
    directory: OwnedFd,
    root_path: PathBuf,
    /// The inode that the directory had when it was made.
    made_as: u64,
    /// What it was created with.
    pub options: Options,
    /// The undo log.
    pub log: Log,
    /// The time of the newest line of the index that this process made durable.
    newest_durable: AtomicU64,
}

impl Store {
    /// Notes that this process made the index durable up to `entry`.
    pub(crate) fn note_durable(&self, entry: &Entry) {
        self.newest_durable.store(entry.time_ns, Ordering::Relaxed);
    }

    /// Whether this process made the index durable up to `entry`.
    pub(crate) fn is_known_durable(&self, entry: &Entry) -> bool {
        self.newest_durable.load(Ordering::Relaxed) == entry.time_ns
    }

    /// Opens the store of the protected tree `root`.
    pub fn open(root: &Path) -> Result<Self> {
        let directory = open_directory(root.join(DIRECTORY))?;
        let shown = root.join(DIRECTORY);
        let manifest = open_file(&directory, &shown, MANIFEST, OFlags::RDONLY)?;
        let text = index::read_whole(&manifest).map_err(Error::system("read", shown.join(MANIFEST)))?;
        let (key, made_as, options) = parse_manifest(&text).ok_or_else(|| Error::Damaged {
            object: shown.join(MANIFEST),
            what: "unknown or cut contents".into(),
        })?;
        let log_file = open_file(&directory, &shown, LOG, OFlags::RDWR | OFlags::APPEND)?;
        let log = Log::new(log_file, key, shown.join(LOG), options.synced);
        Ok(Self {
            root: open_directory(root.to_owned())?,
            directory,
            root_path: root.to_owned(),
            made_as,
            options,
            log,
            newest_durable: AtomicU64::new(0),
        })
    }

    /// Creates an empty store in the protected tree `root`, replacing one that is there.
    pub fn create(root: &Path, options: &Options) -> Result<Self> {
        Self::remove(root)?;
        let root_fd = open_directory(root.to_owned())?;
        for name in [DIRECTORY, KEPT, TRASH, STARTED] {
            let made = rustix::fs::mkdirat(&root_fd, name, Permissions::from_raw_mode(0o700));
            made.map_err(Error::system("create", root.join(name)))?;
        }
        let shown = root.join(DIRECTORY);
        let directory = open_directory(shown.clone())?;
        open_file(&directory, &shown, LOG, OFlags::RDWR | OFlags::CREATE)?;
        let clones = options.clones.unwrap_or_else(|| clones::can_share(&directory));
        let made_as = rustix::fs::fstat(&directory).map_err(Error::system("inspect", &shown))?.st_ino;
        let manifest = write_manifest(options, clones, made_as)?;
        index::replace_file(&directory, &shown, "store.new", MANIFEST, manifest.as_bytes())?;
        rustix::fs::fsync(&root_fd).map_err(Error::system("make durable", root))?;
        let store = Self::open(root)?;
        store.set_reserve_aside();
        Ok(store)
    }

    /// Removes the store of the tree `root`. Its manifest goes first: what a kill leaves is no store.
    pub fn remove(root: &Path) -> Result<()> {
        let root_fd = open_directory(root.to_owned())?;
        let shown = root.join(DIRECTORY);
        let manifest = format!("{DIRECTORY}/{MANIFEST}");
        match rustix::fs::unlinkat(&root_fd, manifest.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(cause) => return Err(Error::system("remove", root.join(manifest))(cause)),
        }
        remove_tree(root_fd.as_fd(), DIRECTORY.as_bytes()).map_err(Error::system("remove", shown))
    }

    /// Creates a store in a tree that was made elsewhere as it was at a checkpoint: its first one here, of the same index.
    pub fn create_at(
        root: &Path,
        options: &Options,
        index: u64,
        time_ns: u64,
        label: String,
    ) -> Result<Self> {
        let store = Self::create(root, options)?;
        let entry = Entry { index, position: 0, time_ns, digest: store.log.digest(0, 0)?, label };
        index::replace(&store.directory, &store.path(), &[entry])?;
        Ok(store)
    }

    /// Whether the tree `root` has a store.
    pub fn exists(root: &Path) -> bool {
        rustix::fs::stat(root.join(DIRECTORY).join(MANIFEST).as_path()).is_ok()
    }

    /// Refuses a store that was copied together with its tree. Its statements speak of inodes, and other files have those
    /// here.
    pub fn refuse_if_copied(&self) -> Result<()> {
        let directory = rustix::fs::fstat(&self.directory).map_err(Error::system("inspect", self.path()))?;
        if self.made_as == directory.st_ino || self.log.len()? == 0 {
            return Ok(());
        }
        Err(Error::Refused(format!(
            "the checkpoints in {} are of the tree that this one was copied from, and can be gone back to only there (or this \
             file system numbers its directories anew, as overlays may); here, `stdchk files discard` removes them",
            self.path().display()
        )))
    }

    /// Moves the store's own descriptors to numbers from `least` on, out of the way of a host program.
    pub fn raise_descriptors(&mut self, least: i32) -> Result<()> {
        let failed =
            |cause| Error::system("renumber the descriptors of", self.root_path.join(DIRECTORY))(cause);
        self.root = rustix::io::fcntl_dupfd_cloexec(&self.root, least).map_err(failed)?;
        self.directory = rustix::io::fcntl_dupfd_cloexec(&self.directory, least).map_err(failed)?;
        self.log.raise_descriptor(least).map_err(failed)
    }

    /// The protected tree.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The protected tree's path, absolute.
    pub fn root_path(&self) -> &Path {
        &self.root_path
    }

    /// The store's own directory.
    pub fn directory(&self) -> &OwnedFd {
        &self.directory
    }

    /// The store's path, for messages.
    pub fn path(&self) -> PathBuf {
        self.root_path.join(DIRECTORY)
    }

    /// A path of the tree, for messages.
    pub fn shown(&self, relative: &[u8]) -> PathBuf {
        self.root_path.join(OsStr::from_bytes(relative))
    }

    /// The checkpoints that can be restored, oldest first.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        index::read(&self.directory, &self.path())
    }

    /// The checkpoint `wanted`, or the newest.
    pub fn entry(&self, wanted: Option<u64>) -> Result<Entry> {
        let entries = self.entries()?;
        let found = match wanted {
            Some(index) => entries.iter().find(|entry| entry.index == index),
            None => entries.last(),
        };
        found.cloned().ok_or_else(|| match wanted {
            Some(wanted) => Error::NoSuchIndex { wanted, store: self.path() },
            None => Error::NoStore { root: self.root_path().to_owned() },
        })
    }

    /// The file state of the checkpoint set of timestep `step`.
    pub fn entry_of_set(&self, step: Timestep) -> Result<Option<Entry>> {
        Ok(self.entries()?.into_iter().rfind(|entry| entry.set() == Some(step)))
    }

    /// A name under which a file can be kept, relative to the root: `kept/interval.number`.
    pub fn kept_name(interval: u64, number: u64) -> Vec<u8> {
        format!("{KEPT}/{interval}.{number}").into_bytes()
    }

    /// The interval in which the kept file `name` was kept.
    pub(crate) fn interval_of_kept(name: &[u8]) -> Option<u64> {
        let digits = name.split(|byte| *byte == b'.').next()?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// A name of the file with this inode and device, of the tree or of what is kept. Asked where the name is gone that a file
    /// was opened by and another one is there: it was opened without one (`O_TMPFILE`), and then given one. The kernel does
    /// not tell which.
    pub(crate) fn find(&self, file: (u64, u64)) -> Option<Vec<u8>> {
        find_below(self.root(), file, b"").or_else(|| find_below(self.root(), file, KEPT.as_bytes()))
    }

    /// Removes the kept files whose interval is `unwanted`.
    pub fn remove_kept(&self, unwanted: impl Fn(u64) -> bool) -> Result<()> {
        let failed = |cause| Error::system("clean", self.root_path.join(KEPT))(cause);
        for name in names_in(self.root(), KEPT.as_bytes()).map_err(failed)? {
            if Self::interval_of_kept(&name).is_some_and(&unwanted) {
                let path = [KEPT.as_bytes(), b"/", &name].concat();
                remove_tree(self.root(), &path).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Removes what restores took away.
    pub fn empty_trash(&self) -> Result<()> {
        let failed = |cause| Error::system("clean", self.root_path.join(TRASH))(cause);
        for name in names_in(self.root(), TRASH.as_bytes()).map_err(failed)? {
            remove_tree(self.root(), &[TRASH.as_bytes(), b"/", &name].concat()).map_err(failed)?;
        }
        Ok(())
    }

    /// Keeps the checkpoint `index` and all later ones, whatever [`Options::keep`] says. The caller holds the world still.
    pub fn pin(&self, index: u64) -> Result<()> {
        let shown = self.path();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let file = open_file(&self.directory, &shown, PINNED, flags)?;
        let text = format!("{index}\n");
        rustix::io::write(&file, text.as_bytes())
            .map(drop)
            .map_err(Error::system("write", shown.join(PINNED)))
    }

    /// Ends [`Store::pin`].
    pub fn unpin(&self) -> Result<()> {
        index::remove_file(&self.directory, &self.path(), PINNED)
    }

    /// The checkpoint that is pinned.
    pub fn pinned(&self) -> Option<u64> {
        let file = open_file(&self.directory, Path::new(DIRECTORY), PINNED, OFlags::RDONLY).ok()?;
        std::str::from_utf8(&index::read_whole(&file).ok()?).ok()?.strip_suffix('\n')?.parse().ok()
    }

    /// Leaves a line for the driver. One that cannot be written is lost: nobody else is there to be told.
    pub fn note(&self, text: &str) {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        if let Ok(file) = open_file(&self.directory, Path::new(DIRECTORY), NOTES, flags) {
            let line = format!("{}\n", text.replace('\n', " "));
            let _ = rustix::io::write(&file, line.as_bytes());
        }
    }

    /// Takes the notes, each once.
    pub fn take_notes(&self) -> Result<Vec<String>> {
        let notes = self.notes()?;
        index::remove_file(&self.directory, &self.path(), NOTES)?;
        Ok(notes)
    }

    /// The notes, each once, that no driver has taken.
    pub fn notes(&self) -> Result<Vec<String>> {
        let shown = self.path();
        if rustix::fs::statat(&self.directory, NOTES, AtFlags::empty()).is_err() {
            return Ok(Vec::new());
        }
        let file = open_file(&self.directory, &shown, NOTES, OFlags::RDONLY)?;
        let text = index::read_whole(&file).map_err(Error::system("read", shown.join(NOTES)))?;
        let mut notes: Vec<String> = String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
        let mut seen = std::collections::HashSet::new();
        notes.retain(|note| seen.insert(note.clone()));
        Ok(notes)
    }

    /// Writes down that the job ended by itself.
    pub fn mark_ended(&self) -> Result<()> {
        index::replace_file(&self.directory, &self.path(), "ended.new", ENDED, b"")
    }

    /// Whether the job ended by itself.
    pub fn has_ended(&self) -> bool {
        rustix::fs::statat(&self.directory, ENDED, AtFlags::empty()).is_ok()
    }

    /// Takes [`Store::mark_ended`] back: the job goes on.
    pub fn unmark_ended(&self) -> Result<()> {
        index::remove_file(&self.directory, &self.path(), ENDED)
    }
}

fn find_below(root: BorrowedFd<'_>, file: (u64, u64), directory: &[u8]) -> Option<Vec<u8>> {
    let listed = if directory.is_empty() { b".".as_slice() } else { directory };
    for name in names_in(root, listed).ok()? {
        let path = if directory.is_empty() { name } else { [directory, b"/", &name].concat() };
        let found = rustix::fs::statat(root, path.as_slice(), AtFlags::SYMLINK_NOFOLLOW).ok();
        let is_directory = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        match found {
            Some(stat) if (stat.st_ino, stat.st_dev) == file => return Some(path),
            Some(stat) if is_directory(&stat) && path != DIRECTORY.as_bytes() => {
                if let Some(below) = find_below(root, file, &path) {
                    return Some(below);
                }
            }
            _ => {}
        }
    }
    None
}

fn open_directory(path: PathBuf) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(&path, flags, Permissions::empty()).map_err(Error::system("open", path))
}

fn open_file(directory: &OwnedFd, shown: &Path, name: &str, flags: OFlags) -> Result<OwnedFd> {
    let file =
        rustix::fs::openat(directory, name, flags | OFlags::CLOEXEC, Permissions::from_raw_mode(0o600));
    file.map_err(Error::system("open", shown.join(name)))
}

fn write_manifest(options: &Options, clones: bool, made_as: u64) -> Result<String> {
    let mut key: Key = [0; 32];
    getrandom::fill(&mut key)
        .map_err(|error| Error::Refused(format!("cannot draw a key for the store: {error}")))?;
    let key = blake3::Hash::from_bytes(key).to_hex();
    Ok(format!("{VERSION_LINE}\nkey {key}\ninode {made_as}\nclones {clones}\n{}end\n", options.to_lines()))
}

fn sets_line(sets: &Sets) -> String {
    let folder = hex(sets.folder.as_os_str().as_bytes());
    format!("sets {folder} {} {}\n", hex(sets.app.as_bytes()), hex(sets.naming.as_bytes()))
}

fn parse_trigger(line: &str) -> Option<Trigger> {
    let (event, pattern) = line.split_once(' ')?;
    let event = [Event::Renamed, Event::Closed].into_iter().find(|known| known.word() == event)?;
    Some(Trigger { event, pattern: unhex(pattern)? })
}

fn parse_sets(line: &str) -> Option<Sets> {
    let mut fields = line.split(' ').map(unhex);
    let folder = PathBuf::from(OsStr::from_bytes(&fields.next()??));
    let mut text = || String::from_utf8(fields.next()??).ok();
    Some(Sets { folder, app: text()?, naming: text()? })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
}

/// The key, the inode that the store's directory had when it was made, the options.
fn parse_manifest(bytes: &[u8]) -> Option<(Key, u64, Options)> {
    let text = std::str::from_utf8(bytes).ok()?.strip_prefix(VERSION_LINE)?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    field("end")?;
    let options = Options { clones: Some(field("clones ")?.parse().ok()?), ..Options::from_lines(text)? };
    let made_as = field("inode ")?.parse().ok()?;
    Some((*blake3::Hash::from_hex(field("key ")?).ok()?.as_bytes(), made_as, options))
}

/// Where a file lies that a restore has taken away and may put back: it is found there by its inode.
pub(crate) fn trash_path(inode: Inode) -> Vec<u8> {
    format!("{TRASH}/{}", inode.0).into_bytes()
}

/// Whether `path`, relative to the root, is the store's directory or lies in it.
pub(crate) fn is_own(path: &[u8]) -> bool {
    let rest = path.strip_prefix(DIRECTORY.as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// The names in the directory `path` below `root`.
pub(crate) fn names_in(root: BorrowedFd<'_>, path: &[u8]) -> std::result::Result<Vec<Vec<u8>>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let directory = rustix::fs::openat(root, path, flags, Permissions::empty())?;
    let mut buffer = Vec::with_capacity(32 * 1024);
    let mut reader = RawDir::new(directory, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = reader.next() {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Removes a file or a whole directory, whatever its permissions; that it is not there is no error.
pub(crate) fn remove_tree(root: BorrowedFd<'_>, path: &[u8]) -> std::result::Result<(), Errno> {
    match rustix::fs::unlinkat(root, path, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(cause) => return Err(cause),
    }
    // What is mounted there is another disk's.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat2(root, path, flags, Permissions::empty(), ResolveFlags::NO_XDEV);
    // Kernels before 5.6 can't tell.
    if let Err(Errno::XDEV) = opened {
        return Err(Errno::XDEV);
    }
    // A directory that its owner may not change, or not even list: what is in it goes all the same.
    let _ = rustix::fs::chmodat(root, path, Permissions::from_raw_mode(0o700), AtFlags::empty());
    for name in names_in(root, path)? {
        remove_tree(root, &[path, b"/", &name].concat())?;
    }
    rustix::fs::unlinkat(root, path, AtFlags::REMOVEDIR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_opens_with_the_options_it_was_created_with() {
        let root = tempfile::tempdir().unwrap();
        let triggers = vec![
            Trigger { event: Event::Renamed, pattern: b"out/ck.done".to_vec() },
            Trigger { event: Event::Closed, pattern: b"out/*".to_vec() },
        ];
        let sets = Sets { folder: "/mnt/a b".into(), app: "a b".into(), naming: String::new() };
        let (sets, keep) = (Some(sets), NonZeroUsize::new(3));
        let options = Options { mode: Mode::Single, synced: true, triggers, sets, keep, clones: Some(true) };
        Store::create(root.path(), &options).unwrap();
        let store = Store::open(root.path()).unwrap();
        assert_eq!(store.options, options);
        assert!(store.entries().unwrap().is_empty());
        assert!(!store.has_ended());
    }

    #[test]
    fn notes_are_taken_once_and_repeated_ones_are_one() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::create(root.path(), &Options::default()).unwrap();
        for text in ["a\nb", "c", "c"] {
            store.note(text);
        }
        assert_eq!(store.take_notes().unwrap(), ["a b", "c"]);
        assert!(store.take_notes().unwrap().is_empty());
    }

    #[test]
    fn a_cut_manifest_is_called_damaged() {
        let root = tempfile::tempdir().unwrap();
        Store::create(root.path(), &Options::default()).unwrap();
        let manifest = root.path().join(DIRECTORY).join(MANIFEST);
        let text = std::fs::read(&manifest).unwrap();
        std::fs::write(&manifest, &text[..text.len() - 4]).unwrap();
        assert!(matches!(Store::open(root.path()), Err(Error::Damaged { .. })));
    }

    #[test]
    fn kept_files_of_unwanted_intervals_are_removed_with_what_is_in_them() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::create(root.path(), &Options::default()).unwrap();
        let kept = root.path().join(KEPT);
        std::fs::create_dir_all(kept.join("3.1/below")).unwrap();
        std::fs::write(kept.join("4.1"), "x").unwrap();
        store.remove_kept(|interval| interval < 4).unwrap();
        assert!(!kept.join("3.1").exists() && kept.join("4.1").exists());
    }
}
