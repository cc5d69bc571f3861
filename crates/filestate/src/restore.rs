//! Going back: making the statements of the log true again, newest first, down to a checkpoint's position.
//!
//! Crash cases. How far the restore got is the *name* of the file `restoring.POSITION…`, changed by a rename after every
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

use rustix::fs::{AtFlags, FileType, Mode as Permissions, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

use stdchk_model::exact::to_usize;

use crate::clones;
use crate::control::Control;
use crate::durable;
use crate::error::{Error, Result};
use crate::index::{self, Entry};
use crate::log::{Located, Statement};
use crate::mapped::{self, write_all_at};
use crate::outside::{self, Outside};
use crate::paths::Whereabouts;
use crate::pieces;
use crate::progress::Progress;
use crate::reach::{Lifting, link_to, nameless_files, rename};
use crate::record::{Inode, Record};
use crate::space::GONE;
use crate::store::{self, Store, TRASH};
pub use crate::summary::Summary;

/// How many files are held open between two changes of names.
const OPEN_MAX: usize = 64;

/// Restores the tree to checkpoint `wanted` (the newest when `None`). Later checkpoints cease to exist. Nothing may
/// change the tree meanwhile: the caller holds the world still, or no process of the run is left.
pub fn to_index(store: &Store, wanted: Option<u64>) -> Result<Summary> {
    // An interrupted restore is completed first. What it could not take back is not taken back by this one either.
    let before =
        Progress::read(store)?.map(|progress| run(store, progress, Outside::default())).transpose()?;
    let entry = store.entry(wanted)?;
    verify_after(store, &entry)?;
    let progress = Progress::new(store, &entry)?;
    store.with_reserve(|| progress.begin(store))?;
    let outside = match before {
        Some((_, outside)) => outside,
        None => Outside::default(),
    };
    run(store, progress, outside).map(|(summary, _)| summary)
}

/// Restores the tree to a checkpoint while processes of the run live. They are held still meanwhile, and what they know of the
/// interval is void afterwards. If it fails halfway, or mapped files can't be saved afterwards, their later file calls fail until a
/// restore is completed.
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
    // Without this no later restore could take mapped files back. If it fails, file calls fail from now on.
    mapped::save_again(store, control, summary.index)?;
    control.begin_interval(&world, summary.index);
    Ok(summary)
}

/// Completes a restore that was cut off; `None` when there was none.
pub fn finish_interrupted(store: &Store) -> Result<Option<Summary>> {
    let run = |progress| run(store, progress, Outside::default()).map(|(summary, _)| summary);
    Progress::read(store)?.map(run).transpose()
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
fn run(store: &Store, mut progress: Progress, outside: Outside) -> Result<(Summary, Outside)> {
    let records = with_paths(store.log.scan(progress.target, progress.end)?);
    let mut undo = Undo::new(store, &records, outside)?;
    let resume_at = progress.reached;
    for (located, path) in records.iter().rev() {
        if located.at >= resume_at {
            undo.pass_over(&located.statement);
            continue;
        }
        undo.make_true(located, path)?;
        if is_about_names(&located.statement) {
            progress.advance(store, located.at)?;
        }
    }
    durable::sync(store, &changed_paths(&records))?;
    let done = undo.into_summary(progress.index)?;
    finish(store, &progress)?;
    Ok(done)
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
    if entries.len() < before {
        store.with_reserve(|| index::replace(store.directory(), &store.path(), &entries))?;
    } else if !entries.last().is_some_and(|newest| store.is_known_durable(newest)) {
        // Its last line may be that of a process that was killed before it was durable.
        index::sync(store.directory(), &store.path())?;
    }
    store.log.truncate(progress.target)?;
    store.log.sync()?;
    store.remove_kept(|interval| interval >= progress.index)?;
    pieces::forget(store)?;
    index::remove_file(store.directory(), &store.path(), &progress.name())?;
    store.set_reserve_aside();
    Ok(())
}

/// What a restore changed: every file that a record speaks of, and the directories in which names went back.
fn changed_paths(records: &[Placed]) -> BTreeSet<Arc<[u8]>> {
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

/// A record, and if it is one of contents, the places where its file may stand at that record.
type Placed = (Located, Vec<Arc<[u8]>>);

fn with_paths(records: Vec<Located>) -> Vec<Placed> {
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
    let mut progress = Progress::new(store, &entry)?;
    progress.begin(store)?;
    let records = with_paths(store.log.scan(progress.target, progress.end)?);
    let mut undo = Undo::new(store, &records, Outside::default())?;
    for (done, (located, path)) in records.iter().rev().take(budget).enumerate() {
        undo.make_true(located, path)?;
        if is_about_names(&located.statement) && !(lagging && done + 1 == budget) {
            progress.advance(store, located.at)?;
        }
    }
    Ok(())
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
    outside: Outside,
    summary: Summary,
    /// The file system of the tree: inodes of others mean other files.
    device: u64,
    /// For each file that was moved, the position of the oldest statement about that.
    moved_at: HashMap<Inode, u64>,
    /// The position of the statement that is made true.
    at: u64,
}

impl<'store> Undo<'store> {
    fn new(store: &'store Store, records: &[Placed], outside: Outside) -> Result<Self> {
        let about = rustix::fs::fstat(store.root()).map_err(Error::system("inspect", store.root_path()))?;
        let moves = records.iter().rev().filter_map(|(located, _)| match &located.statement {
            Statement::Small(Record::Moved { inode, .. }) => Some((*inode, located.at)),
            _ => None,
        });
        Ok(Self {
            store,
            gone: 0,
            opened: HashMap::new(),
            let_go: false,
            nameless: OnceCell::new(),
            outside,
            summary: Summary::default(),
            device: about.st_dev,
            moved_at: moves.collect(),
            at: 0,
        })
    }

    /// Takes a statement into account that a restore which was cut off has made true.
    fn pass_over(&mut self, statement: &Statement) {
        if let Statement::Small(record) = statement {
            self.outside.follow_again(record);
        }
    }

    fn make_true(&mut self, located: &Located, places: &[Arc<[u8]>]) -> Result<()> {
        let statement = &located.statement;
        self.at = located.at;
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
                self.outside.follow(record, found);
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
            Ok(stat) => Ok(self.is_of_tree(&stat, path).then_some(Inode(stat.st_ino))),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    /// Inodes of other file systems, mounted since, mean other files. An overlay gives its files other devices than its
    /// directories.
    fn is_of_tree(&self, stat: &Stat, path: &[u8]) -> bool {
        let is_of_tree = |stat: &Stat| stat.st_dev == self.device;
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let directory = || rustix::fs::statat(self.store.root(), &*durable::parent(path), AtFlags::empty());
        is_of_tree(stat) || !is_directory && directory().is_ok_and(|stat| is_of_tree(&stat))
    }

    /// Whether anything stands at `path`, of whatever file system.
    fn stands(&self, path: &[u8]) -> bool {
        rustix::fs::statat(self.store.root(), path, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// What stands at `path` was created after this record: it goes. All that the run made in a directory is gone by now:
    /// one that is not empty holds what it did not make, and stays.
    fn take_away(&mut self, path: &[u8]) -> std::result::Result<(), Errno> {
        if store::is_own(path) {
            return Ok(());
        }
        let root = self.store.root();
        let directory = rustix::fs::statat(root, &*durable::parent(path), AtFlags::empty());
        if directory.is_ok_and(|stat| stat.st_dev != self.device) {
            // Another disk hides the place.
            if self.stands(path) {
                self.outside.leave(path);
            }
            return Ok(());
        }
        match rustix::fs::unlinkat(root, path, AtFlags::REMOVEDIR) {
            Err(Errno::NOTDIR) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY) => {
                self.outside.leave(path);
                return Ok(());
            }
            Err(Errno::NOENT | Errno::LOOP) => return Ok(()),
            other => return other,
        }
        let mut gone = Vec::new();
        // A restore that was cut off may have left some.
        while gone.is_empty() || self.inode_at(&gone)?.is_some() {
            self.gone += 1;
            gone = [TRASH.as_bytes(), b"/", GONE, self.gone.to_string().as_bytes()].concat();
        }
        match rename(root, path, &gone) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            // A part of the tree lies elsewhere by now.
            Err(Errno::XDEV | Errno::BUSY) => {
                self.outside.leave(path);
                Ok(())
            }
            other => other,
        }
    }

    /// Takes whatever stands at `path` away. What the run moved there is found again by its inode; the rest is not the run's.
    fn make_free(&mut self, path: &[u8]) -> std::result::Result<(), Errno> {
        match self.inode_at(path)? {
            Some(inode) if !store::is_own(path) => {
                if self.moved_at.get(&inode).is_none_or(|at| *at >= self.at) {
                    return self.set_aside(path);
                }
                let trash = store::trash_path(inode);
                self.clear_trash(&trash)?;
                rename(self.store.root(), path, &trash)?;
                // Two names of one file: renaming one onto the other does nothing, so the name is still there.
                self.remove_if_same(path, inode)
            }
            _ => Ok(()),
        }
    }

    /// Gives what stands at `path` another name beside it, so that the file of the checkpoint has its own again.
    fn set_aside(&mut self, path: &[u8]) -> std::result::Result<(), Errno> {
        let Some(aside) = outside::asides(path).find(|name| !self.stands(name)) else { return Ok(()) };
        rename(self.store.root(), path, &aside)?;
        self.outside.leave(&aside);
        Ok(())
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

    fn move_back(&mut self, inode: Inode, from: &[u8], to: &[u8]) -> std::result::Result<bool, Errno> {
        let trash = store::trash_path(inode);
        let stands_at = |path: &[u8]| Ok::<_, Errno>(self.inode_at(path)? == Some(inode));
        let source = if stands_at(to)? {
            to
        } else if stands_at(&trash)? {
            &trash
        } else {
            return stands_at(from);
        };
        if !stands_at(from)? {
            self.make_free(from)?;
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
        // Also where the length is right: space that was allocated behind the end is given back.
        rustix::fs::ftruncate(file, size)?;
        let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let modified = Timespec {
            tv_sec: modified_ns.div_euclid(1_000_000_000),
            tv_nsec: modified_ns.rem_euclid(1_000_000_000),
        };
        let times = Timestamps { last_access: now, last_modification: modified };
        rustix::fs::futimens(file, &times).map(|()| true)
    }

    /// What was done, and what could not be.
    fn into_summary(self, index: u64) -> Result<(Summary, Outside)> {
        let look = |path: &[u8]| {
            let found = self.inode_at(path);
            found.map_err(Error::system("look at", self.store.shown(path)))
        };
        let unwatched = self.store.unwatched()?;
        let mut summary = Summary { index, unwatched, ..self.summary.clone() };
        for (inode, path) in self.outside.missing() {
            if look(path)? != Some(inode) {
                summary.astray.push(path.clone());
            }
        }
        summary.astray.sort();
        summary.astray.dedup();
        summary.left.extend(self.outside.left().filter(|path| self.stands(path)).cloned());
        Ok((summary, self.outside))
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
        let mut bytes = vec![0; to_usize(length)];
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
            // Made read-only by its owner, who we are.
            Err(Errno::ACCESS) => {
                let probe = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let probe = rustix::fs::openat(root, path, probe, Permissions::empty())?;
                let lifting = Lifting::begin(self.store)?;
                lifting.open(probe.as_fd(), OFlags::WRONLY, Permissions::WUSR).map(Some)
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

fn path_of(record: &Record) -> &[u8] {
    match record {
        Record::Absent { path } | Record::Size { path, .. } | Record::Mode { path, .. } => path,
        Record::Moved { from, .. } => from,
        Record::Data { .. } | Record::Hole { .. } | Record::Cloned { .. } => b"",
    }
}
