//! Going back: making the statements of the log true again, newest first, down to a checkpoint's position.
//!
//! Crash cases. How far the restore got is the *name* of the file `restoring.POSITION`, changed by a rename after every
//! record about names. A journaling file system keeps renames in order, so after a kill or a power loss the position is
//! never ahead of the names in the tree, and at most one record behind; making that one true twice is the same as once.
//! Records about contents lie between two positions; they are absolute, are gone through again from the last position,
//! and are made durable before the next one. Only when all is durable are the index and the log cut, then the position
//! removed; each of these steps may be repeated.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode as Permissions, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::astray::Astray;
use crate::clones;
use crate::control::Control;
use crate::durable;
use crate::error::{Error, Result};
use crate::index::{self, Entry};
use crate::log::{Located, Statement};
use crate::mapped::{self, write_all_at};
use crate::paths::Whereabouts;
use crate::reach::{link_to, nameless_files, rename};
use crate::record::{Inode, Record};
use crate::space::GONE;
use crate::store::{self, DIRECTORY, Store, TRASH};
pub use crate::summary::Summary;

const PREFIX: &str = "restoring.";
/// How many files are held open between two changes of names.
const OPEN_MAX: usize = 64;

/// Restores the tree to checkpoint `wanted` (the newest when `None`). Later checkpoints cease to exist. Nothing may
/// change the tree meanwhile: the caller holds the world still, or no process of the run is left.
pub fn to_index(store: &Store, wanted: Option<u64>) -> Result<Summary> {
    let before = finish_interrupted(store)?;
    let entry = store.entry(wanted)?;
    verify_after(store, &entry)?;
    let end = store.log.len()?;
    let progress = Progress { index: entry.index, target: entry.position, end, reached: end };
    store.with_reserve(|| progress.begin(store))?;
    let mut summary = run(store, progress)?;
    summary.astray.extend(before.into_iter().flat_map(|before| before.astray));
    summary.astray.sort();
    summary.astray.dedup();
    Ok(summary)
}

/// Restores as [`to_index`] while processes of the run live: they are held still, and know nothing afterwards. Where it
/// fails halfway, their later file calls fail, until a restore is completed.
pub fn in_run(store: &Store, control: &Control, wanted: Option<u64>) -> Result<Summary> {
    let world = control.freeze()?;
    world.depart();
    let summary = match to_index(store, wanted) {
        Ok(summary) => summary,
        Err(error) => {
            if !is_interrupted(store)? {
                world.arrive();
            }
            return Err(error);
        }
    };
    control.begin_interval(&world, summary.index);
    mapped::save_again(store)?;
    Ok(summary)
}

/// Completes a restore that was cut off; `None` when there was none.
pub fn finish_interrupted(store: &Store) -> Result<Option<Summary>> {
    Progress::read(store)?.map(|progress| run(store, progress)).transpose()
}

/// Whether a restore was cut off.
pub fn is_interrupted(store: &Store) -> Result<bool> {
    Ok(Progress::read(store)?.is_some())
}

/// Checks every increment that the restore will use against its digest: damaged statements are never made true.
fn verify_after(store: &Store, target: &Entry) -> Result<()> {
    let entries = store.entries()?;
    let mut from = target.position;
    for entry in entries.iter().filter(|entry| entry.index > target.index) {
        if store.log.digest(from, entry.position)? != entry.digest {
            let what = format!("the increment of checkpoint {} does not match its digest", entry.index);
            return Err(Error::Damaged { object: store.path().join("log"), what });
        }
        from = entry.position;
    }
    Ok(())
}

/// Undoes, from where `progress` stands, and finishes.
fn run(store: &Store, mut progress: Progress) -> Result<Summary> {
    let records = with_paths(store.log.scan(progress.target, progress.end)?);
    let mut undo = Undo::new(store, progress.index);
    let resume_at = progress.reached;
    for (located, path) in records.iter().rev().filter(|(located, _)| located.at < resume_at) {
        undo.make_true(&located.statement, path)?;
        if is_about_names(&located.statement) {
            progress.advance(store, located.at)?;
        }
    }
    durable::sync(store, &changed_paths(&records))?;
    let summary = undo.into_summary()?;
    finish(store, &progress)?;
    Ok(summary)
}

fn is_about_names(statement: &Statement) -> bool {
    matches!(statement, Statement::Small(Record::Absent { .. } | Record::Moved { .. }))
}

fn finish(store: &Store, progress: &Progress) -> Result<()> {
    // First: the disk may be full of it. Everything is at its place again, nothing is looked for there.
    store.empty_trash()?;
    let mut entries = store.entries()?;
    let before = entries.len();
    entries.retain(|entry| entry.index <= progress.index);
    match entries.len() < before {
        true => store.with_reserve(|| index::replace(store.directory(), &store.path(), &entries))?,
        // Its last line may be that of a process that was killed before it was durable.
        false => index::sync(store.directory(), &store.path())?,
    }
    store.log.truncate(progress.target)?;
    store.log.sync()?;
    store.remove_kept(|interval| interval >= progress.index)?;
    index::remove_file(store.directory(), &store.path(), &progress.name())?;
    store.set_reserve_aside();
    Ok(())
}

/// What a restore changed: every file that a record speaks of, and the directories in which names went back.
fn changed_paths(records: &[(Located, Vec<Arc<[u8]>>)]) -> BTreeSet<Arc<[u8]>> {
    let mut paths = BTreeSet::new();
    for (located, places) in records {
        match &located.statement {
            Statement::Small(Record::Moved { from, to, .. }) => {
                paths.extend([from, to].map(|path| path.as_slice().into()));
                paths.extend([from, to].map(|path| durable::parent(path)));
            }
            Statement::Small(Record::Absent { path }) => {
                paths.extend([path.as_slice().into(), durable::parent(path)]);
            }
            Statement::Small(Record::Cloned { .. }) => paths.extend(places.iter().cloned()),
            Statement::Small(record) => drop(paths.insert(path_of(record).into())),
            Statement::Contents { .. } | Statement::Hole { .. } => paths.extend(places.iter().cloned()),
        }
    }
    paths
}

/// Each record of contents with the places where its file may stand at that record.
fn with_paths(records: Vec<Located>) -> Vec<(Located, Vec<Arc<[u8]>>)> {
    let mut whereabouts = Whereabouts::default();
    let mut found = Vec::with_capacity(records.len());
    for located in records {
        let path = match &located.statement {
            Statement::Contents { inode, .. }
            | Statement::Hole { inode, .. }
            | Statement::Small(Record::Cloned { inode, .. }) => whereabouts.places(*inode),
            Statement::Small(record) => {
                whereabouts.follow(record);
                Vec::new()
            }
        };
        found.push((located, path));
    }
    found
}

/// Begins a restore and stops it after `budget` records, as a kill or a power loss does; with `lagging`, before the
/// position tells of the last record. For crash tests.
pub fn cut_off(store: &Store, wanted: u64, budget: usize, lagging: bool) -> Result<()> {
    let entry = store.entry(Some(wanted))?;
    let end = store.log.len()?;
    let mut progress = Progress { index: entry.index, target: entry.position, end, reached: end };
    progress.begin(store)?;
    let records = with_paths(store.log.scan(progress.target, progress.end)?);
    let mut undo = Undo::new(store, progress.index);
    for (done, (located, path)) in records.iter().rev().take(budget).enumerate() {
        undo.make_true(&located.statement, path)?;
        if is_about_names(&located.statement) && !(lagging && done + 1 == budget) {
            progress.advance(store, located.at)?;
        }
    }
    Ok(())
}

/// How far a restore got.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Progress {
    index: u64,
    /// The position to go back to.
    target: u64,
    /// Where the log ended when the restore began.
    end: u64,
    /// Everything from here on that is about names is undone, and all contents with it.
    reached: u64,
}

impl Progress {
    fn name(&self) -> String {
        format!("{PREFIX}{}", self.reached)
    }

    fn begin(&self, store: &Store) -> Result<()> {
        let text = format!("{} {} {}\n", self.index, self.target, self.end);
        index::replace_file(store.directory(), &store.path(), "restoring-new", &self.name(), text.as_bytes())
    }

    fn advance(&mut self, store: &Store, position: u64) -> Result<()> {
        let before = self.name();
        self.reached = position;
        let renamed = rustix::fs::renameat(store.directory(), &before, store.directory(), self.name());
        renamed.map_err(Error::system("advance", store.path().join(before)))
    }

    fn read(store: &Store) -> Result<Option<Self>> {
        let listed = crate::store::names_in(store.root(), DIRECTORY.as_bytes());
        let names = listed.map_err(Error::system("list", store.path()))?;
        let Some(name) = names.iter().find(|name| name.starts_with(PREFIX.as_bytes())) else {
            return Ok(None);
        };
        let name = String::from_utf8_lossy(name).into_owned();
        let shown = store.path().join(&name);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(store.directory(), &name, flags, Permissions::empty());
        let bytes = file.and_then(|file| index::read_whole(&file)).map_err(Error::system("read", &shown))?;
        let parsed = Self::parse(&name, &String::from_utf8_lossy(&bytes));
        parsed.map(Some).ok_or_else(|| Error::Damaged { object: shown, what: "unreadable position".into() })
    }

    fn parse(name: &str, text: &str) -> Option<Self> {
        let mut fields = text.split_whitespace().map(str::parse);
        let mut number = || fields.next()?.ok();
        let (index, target, end) = (number()?, number()?, number()?);
        Some(Self { index, target, end, reached: name.strip_prefix(PREFIX)?.parse().ok()? })
    }
}

/// Makes statements true.
struct Undo<'store> {
    store: &'store Store,
    /// Files taken away.
    gone: u64,
    /// The files written to since the last change of names: old contents of one file often follow each other.
    opened: HashMap<Inode, Option<OwnedFd>>,
    /// Whether more files were written to since then than are held open.
    let_go: bool,
    /// The files without a name that this process has open, once one was looked for.
    nameless: OnceCell<HashMap<Inode, RawFd>>,
    astray: Astray,
    summary: Summary,
}

impl<'store> Undo<'store> {
    fn new(store: &'store Store, index: u64) -> Self {
        Self {
            store,
            gone: 0,
            opened: HashMap::new(),
            let_go: false,
            nameless: OnceCell::new(),
            astray: Astray::default(),
            summary: Summary { index, ..Summary::default() },
        }
    }

    fn make_true(&mut self, statement: &Statement, places: &[Arc<[u8]>]) -> Result<()> {
        self.summary.records += 1;
        if is_about_names(statement) {
            // Once: an error of these files is told once, and must end the restore here.
            self.settle_contents()?;
        }
        match self.try_to_make_true(statement, places) {
            Err(error) if error.is_no_space() && self.make_room()? => {
                self.try_to_make_true(statement, places)
            }
            other => other,
        }
    }

    /// Removes now what the restore would remove in the end; false if there was nothing.
    fn make_room(&mut self) -> Result<bool> {
        self.settle_contents()?;
        Ok(self.store.remove_gone()? | self.store.give_reserve())
    }

    fn try_to_make_true(&mut self, statement: &Statement, places: &[Arc<[u8]>]) -> Result<()> {
        match statement {
            Statement::Small(Record::Cloned { inode, offset, length, kept }) => {
                self.make_clone_true(*inode, places, *offset..offset.saturating_add(*length), kept)
            }
            Statement::Small(record) => {
                let path = path_of(record);
                let found = self.make_small_true(record);
                let found = found.map_err(Error::system("restore", self.store.shown(path)))?;
                self.astray.follow(record, found);
                Ok(())
            }
            Statement::Contents { inode, offset, length, payload_at } => {
                self.make_contents_true(*inode, places, *offset, *length, *payload_at)
            }
            Statement::Hole { inode, offset, length } => {
                self.make_hole_true(*inode, places, *offset, *length)
            }
        }
    }

    /// Makes contents durable before a name changes: the position behind that name speaks for them too.
    fn settle_contents(&mut self) -> Result<()> {
        let opened = std::mem::take(&mut self.opened);
        let settled = if std::mem::take(&mut self.let_go) {
            rustix::fs::syncfs(self.store.root())
        } else {
            opened.values().flatten().try_for_each(rustix::fs::fsync)
        };
        settled.map_err(Error::system("make durable", self.store.root_path()))
    }

    /// The file `inode`, open for writing; `None` when it does not stand at `path`.
    fn opened(&mut self, inode: Inode, path: &[u8]) -> std::result::Result<Option<BorrowedFd<'_>>, Errno> {
        if self.opened.len() >= OPEN_MAX && !self.opened.contains_key(&inode) {
            self.opened.clear();
            self.let_go = true;
        }
        if !self.opened.contains_key(&inode) {
            let file = self.open(inode, path)?;
            self.opened.insert(inode, file);
        }
        Ok(self.opened.get(&inode).and_then(Option::as_ref).map(AsFd::as_fd))
    }

    /// Whether the file that it speaks of is there.
    fn make_small_true(&mut self, record: &Record) -> std::result::Result<bool, Errno> {
        match record {
            Record::Absent { path } => self.take_away(path).map(|()| true),
            Record::Moved { inode, from, to, .. } => self.move_back(*inode, from, to),
            Record::Size { inode, path, size, modified_ns } => self.resize(*inode, path, *size, *modified_ns),
            Record::Mode { inode, path, bits } => match self.inode_at(path)? {
                Some(found) if found == *inode => {
                    let bits = Permissions::from_raw_mode(*bits);
                    rustix::fs::chmodat(self.store.root(), path.as_slice(), bits, AtFlags::empty())
                        .map(|()| true)
                }
                _ => Ok(false),
            },
            Record::Data { .. } | Record::Hole { .. } | Record::Cloned { .. } => Ok(true),
        }
    }

    fn inode_at(&self, path: &[u8]) -> std::result::Result<Option<Inode>, Errno> {
        match rustix::fs::statat(self.store.root(), path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Inode(stat.st_ino))),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    /// What stands at `path` was created after this record: it goes.
    fn take_away(&mut self, path: &[u8]) -> std::result::Result<(), Errno> {
        if store::is_own(path) {
            return Ok(());
        }
        let root = self.store.root();
        let mut gone = Vec::new();
        // A restore that was cut off may have left some.
        while gone.is_empty() || self.inode_at(&gone)?.is_some() {
            self.gone += 1;
            gone = [TRASH.as_bytes(), b"/", GONE, self.gone.to_string().as_bytes()].concat();
        }
        match rename(root, path, &gone) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            other => other,
        }
    }

    /// Takes whatever stands at `path` away, to where it is found again by its inode.
    fn discard(&self, path: &[u8]) -> std::result::Result<(), Errno> {
        match self.inode_at(path)? {
            Some(inode) if !store::is_own(path) => {
                let trash = trash_path(inode);
                self.clear_trash(&trash)?;
                rename(self.store.root(), path, &trash)?;
                // Two names of one file: renaming one onto the other does nothing, so the name is still there.
                self.remove_if_same(path, inode)
            }
            _ => Ok(()),
        }
    }

    fn clear_trash(&self, trash: &[u8]) -> std::result::Result<(), Errno> {
        crate::store::remove_tree(self.store.root(), trash)
    }

    fn remove_if_same(&self, path: &[u8], inode: Inode) -> std::result::Result<(), Errno> {
        if self.inode_at(path)? == Some(inode) {
            rustix::fs::unlinkat(self.store.root(), path, AtFlags::empty())?;
        }
        Ok(())
    }

    fn move_back(&self, inode: Inode, from: &[u8], to: &[u8]) -> std::result::Result<bool, Errno> {
        let trash = trash_path(inode);
        let stands_at = |path: &[u8]| Ok::<_, Errno>(self.inode_at(path)? == Some(inode));
        let source = if stands_at(to)? {
            to
        } else if stands_at(&trash)? {
            &trash
        } else {
            return stands_at(from);
        };
        if !stands_at(from)? {
            self.discard(from)?;
        }
        rename(self.store.root(), source, from)?;
        self.remove_if_same(source, inode).map(|()| true)
    }

    fn resize(
        &mut self,
        inode: Inode,
        path: &[u8],
        size: u64,
        modified_ns: i64,
    ) -> std::result::Result<bool, Errno> {
        let Some(file) = self.opened(inode, path)? else { return Ok(false) };
        if rustix::fs::fstat(file)?.st_size.cast_unsigned() != size {
            rustix::fs::ftruncate(file, size)?;
        }
        let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let modified = Timespec {
            tv_sec: modified_ns.div_euclid(1_000_000_000),
            tv_nsec: modified_ns.rem_euclid(1_000_000_000),
        };
        let times = Timestamps { last_access: now, last_modification: modified };
        rustix::fs::futimens(file, &times).map(|()| true)
    }

    /// What was done, and what could not be.
    fn into_summary(mut self) -> Result<Summary> {
        for (inode, path) in std::mem::take(&mut self.astray).into_names() {
            let found = self.inode_at(&path).map_err(Error::system("look at", self.store.shown(&path)))?;
            if found != Some(inode) {
                self.summary.astray.push(path);
            }
        }
        Ok(self.summary)
    }

    fn make_contents_true(
        &mut self,
        inode: Inode,
        places: &[Arc<[u8]>],
        offset: u64,
        length: u64,
        payload_at: u64,
    ) -> Result<()> {
        let path = self.place_of(inode, places)?;
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        if !self.store.log.read_exact_at(payload_at, &mut bytes)? {
            let what = "old contents are cut off".to_owned();
            return Err(Error::Damaged { object: self.store.path().join("log"), what });
        }
        let file = self.opened(inode, path);
        let written = file
            .and_then(|file| file.map_or(Ok(0), |file| write_all_at(file, &bytes, offset).map(|()| length)));
        self.summary.bytes += written.map_err(Error::system("restore", self.store.shown(path)))?;
        Ok(())
    }

    fn make_hole_true(&mut self, inode: Inode, places: &[Arc<[u8]>], offset: u64, length: u64) -> Result<()> {
        let path = self.place_of(inode, places)?;
        let file = self.opened(inode, path);
        let emptied =
            file.and_then(|file| file.map_or(Ok(()), |file| mapped::empty_range(file, offset, length)));
        emptied.map_err(Error::system("restore", self.store.shown(path)))
    }

    fn make_clone_true(
        &mut self,
        inode: Inode,
        places: &[Arc<[u8]>],
        range: Range<u64>,
        kept: &[u8],
    ) -> Result<()> {
        let path = self.place_of(inode, places)?;
        let store = self.store;
        let clone = clones::open(store, kept)?;
        let failed = || Error::system("restore", store.shown(path));
        let Some(file) = self.opened(inode, path).map_err(failed())? else { return Ok(()) };
        if clones::share(clone.as_fd(), file, range.clone()).map_err(failed())? < range.end {
            return Err(clones::is_cut_off(store, kept));
        }
        self.summary.bytes += range.end - range.start;
        Ok(())
    }

    /// Where the file stands: the last of its possible places at which it is found.
    fn place_of<'path>(&self, inode: Inode, places: &'path [Arc<[u8]>]) -> Result<&'path [u8]> {
        let mut path: &[u8] = places.first().map_or(b"", AsRef::as_ref);
        for place in places.iter().rev() {
            let found = self.inode_at(place).map_err(Error::system("look at", self.store.shown(place)))?;
            path = if found == Some(inode) { place } else { path };
        }
        Ok(path)
    }

    /// Opens the file `inode` at `path` for writing, or without a name if this process has it; `None` when it is gone.
    fn open(&self, inode: Inode, path: &[u8]) -> std::result::Result<Option<OwnedFd>, Errno> {
        let root = self.store.root();
        if self.inode_at(path)? != Some(inode) {
            return self.open_nameless(inode);
        }
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(root, path, flags, Permissions::empty()) {
            Err(Errno::ACCESS) => {
                // Made read-only by its owner, who we are: lift that for the moment of opening.
                let bits = rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW)?.st_mode & 0o7777;
                let lifted = Permissions::from_raw_mode(bits | 0o200);
                rustix::fs::chmodat(root, path, lifted, AtFlags::empty())?;
                let file = rustix::fs::openat(root, path, flags, Permissions::empty());
                rustix::fs::chmodat(root, path, Permissions::from_raw_mode(bits), AtFlags::empty())?;
                file.map(Some)
            }
            other => other.map(Some),
        }
    }

    /// A file that was deleted while open, or never had a name, lives on in descriptors alone. Those of the process that goes
    /// back are the ones that count; nobody else can reach it through the tree.
    fn open_nameless(&self, inode: Inode) -> std::result::Result<Option<OwnedFd>, Errno> {
        let nameless = match self.nameless.get() {
            Some(nameless) => nameless,
            None => {
                let found = nameless_files(self.store)?;
                self.nameless.get_or_init(|| found)
            }
        };
        let Some(number) = nameless.get(&inode) else { return Ok(None) };
        let opened =
            rustix::fs::open(link_to(*number), OFlags::WRONLY | OFlags::CLOEXEC, Permissions::empty());
        // Its number may be another file's by now.
        let is_it = |file: &OwnedFd| rustix::fs::fstat(file).is_ok_and(|stat| stat.st_ino == inode.0);
        Ok(opened.ok().filter(is_it))
    }
}

fn trash_path(inode: Inode) -> Vec<u8> {
    format!("{TRASH}/{}", inode.0).into_bytes()
}

fn path_of(record: &Record) -> &[u8] {
    match record {
        Record::Absent { path } | Record::Size { path, .. } | Record::Mode { path, .. } => path,
        Record::Moved { from, .. } => from,
        Record::Data { .. } | Record::Hole { .. } | Record::Cloned { .. } => b"",
    }
}
