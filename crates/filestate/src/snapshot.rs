//! The tree as it was at a checkpoint, read while the job goes on changing it.
//!
//! The one idea: the log that leads *back* to a checkpoint also lets one *look* back. The world is held still for a list
//! of the names only. What the log says of the little that happened since the checkpoint is undone in that list. Contents
//! are read later from the live files, and over what was read come the oldest old contents that the log has for it by
//! then: a change follows its statement, so whatever was read too late is in the log already.
//!
//! Nothing of a checkpoint is ever destroyed while it is kept: files are deleted by moving them into the store, and their
//! moves are in the log. So a file is found again by its inode; the checkpoint is pinned as long as it is read.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use stdchk_model::exact::part;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::index::Entry;
use crate::log::{Located, Statement};
use crate::mapped::modified_ns;
use crate::overlay::Overlay;
use crate::record::{Inode, Record, RelativePath};
use crate::store::{self, KEPT, Store};

/// How often a file is looked for where it was and where it was said to be moved to: a move follows its statement within
/// microseconds, or by seconds on a busy disk.
const LOOKS: u32 = 1000;
/// Between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What stands under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, with where it leads.
    Link(Vec<u8>),
    /// A named pipe.
    Pipe,
    /// Anything else: a socket, a device. It means nothing elsewhere.
    Other,
}

/// A file, a directory or a link as it was at the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// What it is.
    pub kind: Kind,
    /// Permission bits, as in `chmod`.
    pub bits: u32,
    /// Its length in bytes.
    pub size: u64,
    /// When it was last modified, in nanoseconds since the epoch.
    pub modified_ns: i64,
}

/// A checkpoint that is being looked at. Pinned until it is dropped.
#[derive(Debug)]
pub struct Snapshot {
    store: Arc<Store>,
    control: Arc<Control>,
    entry: Entry,
    names: Names,
    about: HashMap<Inode, About>,
    /// Where each file stood when the names were listed.
    listed: HashMap<Inode, Arc<[u8]>>,
    overlay: Overlay,
    restores: u64,
}

/// A file of a snapshot, open.
#[derive(Debug)]
pub struct Opened {
    file: OwnedFd,
    inode: Inode,
}

impl Snapshot {
    /// Looks at the newest checkpoint. The job is held still while the names of the tree are listed.
    pub fn of_newest(store: &Arc<Store>, control: &Arc<Control>) -> Result<Self> {
        let world = control.hold()?;
        if world.is_between_states() {
            return Err(Error::Refused(
                "a restore was cut off: the files are between two checkpoints".into(),
            ));
        }
        let entry = store.entry(None)?;
        store.pin(entry.index)?;
        let mut listing = Listing::default();
        let listed = listing.list(store, entry.index);
        let end = store.log.len()?;
        let restores = control.restores();
        drop(world);
        listed?;
        let Listing { mut names, mut about } = listing;
        let listed = names.0.iter().map(|(path, inode)| (*inode, Arc::from(path.as_slice()))).collect();
        let since = store.log.scan(entry.position, end)?;
        since.iter().rev().for_each(|located| undo(located, &mut names, &mut about));
        names.0.retain(|path, _| !store::is_own(path));
        let overlay = Overlay::new(entry.position);
        let (store, control) = (Arc::clone(store), Arc::clone(control));
        Ok(Self { store, control, entry, names, about, listed, overlay, restores })
    }

    /// The checkpoint.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Every name of the tree, a directory before what is in it; two names of one inode are one file.
    pub fn names(&self) -> impl Iterator<Item = (&[u8], Inode, &About)> {
        let names = self.names.0.iter();
        names.filter_map(|(path, inode)| Some((path.as_slice(), *inode, self.about.get(inode)?)))
    }

    /// Opens a file, wherever it stands by now.
    pub fn open(&mut self, inode: Inode) -> Result<Opened> {
        let listed = match self.listed.get(&inode) {
            Some(path) => Arc::clone(path),
            // It had no name when the tree was listed, and none that could be followed.
            None => Arc::from([]),
        };
        for look in 0..LOOKS {
            if look > 0 {
                std::thread::sleep(LOOK_AGAIN);
            }
            self.follow()?;
            // Most files stand still; to follow the moves of a busy tree takes longer than a look.
            let file = match self.open_first(inode, std::iter::once(&listed))? {
                None => self.open_first(inode, self.overlay.places(inode, &listed).iter().rev())?,
                found => found,
            };
            if let Some(file) = file {
                return Ok(Opened { file, inode });
            }
        }
        let shown = self.store.shown(&listed);
        Err(Error::Refused(format!("{} is not where the log says that it is", shown.display())))
    }

    fn open_first<'path>(
        &self,
        inode: Inode,
        places: impl Iterator<Item = &'path Arc<[u8]>>,
    ) -> Result<Option<OwnedFd>> {
        for place in places {
            if let Some(file) = self.open_at(inode, place)? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    fn open_at(&self, inode: Inode, path: &[u8]) -> Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = || {
            // Looked at first: another file's opening may have effects, such as a pipe's.
            let stat = rustix::fs::statat(self.store.root(), path, AtFlags::SYMLINK_NOFOLLOW)?;
            if stat.st_ino != inode.0 {
                return Ok(None);
            }
            let file = rustix::fs::openat(self.store.root(), path, flags, Mode::empty())?;
            Ok((rustix::fs::fstat(&file)?.st_ino == inode.0).then_some(file))
        };
        match open() {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            other => other.map_err(Error::system("open", self.store.shown(path))),
        }
    }

    /// Fills `buffer` with what `file` held at `offset`; beyond its length then, with zeros.
    pub fn read_at(&mut self, file: &Opened, offset: u64, buffer: &mut [u8]) -> Result<()> {
        buffer.fill(0);
        let failed = || Error::system("read", self.store.root_path());
        let mut at = 0;
        while let Some(rest) = buffer.get_mut(at..).filter(|rest| !rest.is_empty()) {
            let got =
                rustix::io::retry_on_intr(|| rustix::io::pread(&file.file, &mut *rest, offset + at as u64));
            match got.map_err(failed())? {
                0 => break,
                count => at += count,
            }
        }
        self.follow()?;
        self.overlay.lay_over(&self.store, file.inode, offset, buffer)?;
        self.refuse_after_a_restore()
    }

    /// Takes into account what the log says by now.
    fn follow(&mut self) -> Result<()> {
        let about = &self.about;
        self.overlay.follow(&self.store.log, |inode| about.contains_key(&inode))?;
        self.refuse_after_a_restore()
    }

    /// A restore takes the files back and cuts the log: what was read before and what is read now may not fit.
    fn refuse_after_a_restore(&self) -> Result<()> {
        if self.control.restores() == self.restores {
            return Ok(());
        }
        let index = self.entry.index;
        Err(Error::Refused(format!("the files went back to a checkpoint while {index} was copied")))
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // One that stays keeps checkpoints longer than asked for, and goes with the next snapshot or run.
        let _ = self.store.unpin();
    }
}

impl AsFd for Opened {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Names and what they stand for.
#[derive(Debug, Default)]
struct Listing {
    names: Names,
    about: HashMap<Inode, About>,
}

impl Listing {
    /// Lists the tree, and of the store what was kept since the checkpoint `index`.
    fn list(&mut self, store: &Store, index: u64) -> Result<()> {
        let failed = |cause| Error::system("list", store.root_path())(cause);
        let device = rustix::fs::fstat(store.root()).map_err(failed)?.st_dev;
        for name in store::names_in(store.root(), b".").map_err(failed)? {
            if !store::is_own(&name) {
                self.add(store, device, name)?;
            }
        }
        for name in store::names_in(store.root(), KEPT.as_bytes()).map_err(failed)? {
            if Store::interval_of_kept(&name).is_some_and(|interval| interval >= index) {
                self.add(store, device, [KEPT.as_bytes(), b"/", &name].concat())?;
            }
        }
        Ok(())
    }

    fn add(&mut self, store: &Store, device: u64, path: RelativePath) -> Result<()> {
        let failed = |cause| Error::system("list", store.shown(&path))(cause);
        let stat = match rustix::fs::statat(store.root(), path.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
            // Deleted by a process that is not watched.
            Err(Errno::NOENT) => return Ok(()),
            other => other.map_err(failed)?,
        };
        if stat.st_dev != device {
            return Ok(());
        }
        let about = About::of(store, &path, &stat).map_err(failed)?;
        let below = match about.kind {
            Kind::Directory => store::names_in(store.root(), &path).map_err(failed)?,
            _ => Vec::new(),
        };
        self.about.insert(Inode(stat.st_ino), about);
        self.names.0.insert(path.clone(), Inode(stat.st_ino));
        below.iter().try_for_each(|name| self.add(store, device, [&path, b"/".as_slice(), name].concat()))
    }
}

impl About {
    fn of(store: &Store, path: &[u8], stat: &Stat) -> std::result::Result<Self, Errno> {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => {
                Kind::Link(rustix::fs::readlinkat(store.root(), path, Vec::new())?.into_bytes())
            }
            FileType::Fifo => Kind::Pipe,
            _ => Kind::Other,
        };
        let size = if kind == Kind::File { stat.st_size.cast_unsigned() } else { 0 };
        Ok(Self { kind, bits: stat.st_mode & 0o7777, size, modified_ns: modified_ns(stat) })
    }
}

/// Which inode stands under which name.
#[derive(Debug, Default)]
struct Names(BTreeMap<RelativePath, Inode>);

impl Names {
    /// Takes `path` and all below it away; each with what follows `path` in its name.
    fn take(&mut self, path: &[u8]) -> Vec<(Vec<u8>, Inode)> {
        let below = [path, b"/"].concat();
        let range = self.0.range(below.clone()..).take_while(|(name, _)| name.starts_with(&below));
        let mut taken: Vec<RelativePath> = range.map(|(name, _)| name.clone()).collect();
        taken.push(path.to_vec());
        let rest = |name: &[u8]| part(name, path.len()..).to_vec();
        taken.iter().filter_map(|name| self.0.remove(name).map(|inode| (rest(name), inode))).collect()
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) {
        for (rest, inode) in self.take(from) {
            self.0.insert([to, &rest].concat(), inode);
        }
    }

    fn holds(&self, path: &[u8], inode: Inode) -> bool {
        self.0.get(path) == Some(&inode)
    }

    /// As a restore does: see `Undo::move_back` in `restore`.
    fn move_back(&mut self, inode: Inode, from: &[u8], to: &[u8]) {
        let trash = store::trash_path(inode);
        let Some(source) = [to, &trash].into_iter().find(|place| self.holds(place, inode)) else { return };
        match self.0.get(from).copied() {
            Some(other) if other != inode => self.rename(from, &store::trash_path(other)),
            _ => {}
        }
        self.rename(source, from);
    }
}

/// Makes a statement true in the list.
fn undo(located: &Located, names: &mut Names, about: &mut HashMap<Inode, About>) {
    let Statement::Small(record) = &located.statement else { return };
    match record {
        Record::Absent { path } => drop(names.take(path)),
        Record::Moved { inode, from, to, .. } => names.move_back(*inode, from, to),
        Record::Size { inode, size, modified_ns, .. } => {
            if let Some(about) = about.get_mut(inode) {
                (about.size, about.modified_ns) = (*size, *modified_ns);
            }
        }
        Record::Mode { inode, bits, .. } => {
            if let Some(about) = about.get_mut(inode) {
                about.bits = *bits;
            }
        }
        Record::Data { .. } | Record::Hole { .. } | Record::Cloned { .. } => {}
    }
}
