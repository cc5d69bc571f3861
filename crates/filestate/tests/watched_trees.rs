//! Random programs of file calls, with checkpoints and restores anywhere, against the plainest model there is: a copy
//! of the tree taken at each checkpoint. Two processes take part (two watches over one store, each with its own
//! knowledge), and every restore may be cut off and continued.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use stdchk_filestate::control::Control;
use stdchk_filestate::record::Inode;
use stdchk_filestate::snapshot::{Kind, Snapshot};
use stdchk_filestate::store::{DIRECTORY, Options, Store};
use stdchk_filestate::watch::data::Change;
use stdchk_filestate::watch::names::Open;
use stdchk_filestate::watch::{Next, Watch};
use stdchk_filestate::{checkpoint, restore, store};

const NAMES: [&str; 7] = ["a", "b", "d/a", "d/b", "d/e/a", "d", "d/e"];
const DESCRIPTORS: usize = 4;

#[derive(Debug, Clone)]
enum Step {
    Open { slot: usize, name: usize, create: bool, cut: bool, append: bool, exclusive: bool },
    Close { slot: usize },
    Write { slot: usize, length: usize },
    WriteAt { slot: usize, offset: u64, length: usize },
    Cut { slot: usize, size: u64 },
    CutPath { name: usize, size: u64 },
    Unlink { name: usize },
    MakeDirectory { name: usize },
    RemoveDirectory { name: usize },
    Rename { from: usize, to: usize, exchange: bool },
    Link { from: usize, to: usize },
    Symlink { name: usize },
    Mode { name: usize, read_only: bool },
    Checkpoint,
    Look,
    Restore { back: usize, cut_off: Option<(usize, bool)> },
}

fn any_step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    let slot = 0..DESCRIPTORS;
    let size = 0u64..9000;
    prop_oneof![
        8 => (slot.clone(), name.clone(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            |(slot, name, create, cut, append, exclusive)| Step::Open { slot, name, create, cut, append, exclusive: create && exclusive }),
        2 => slot.clone().prop_map(|slot| Step::Close { slot }),
        6 => (slot.clone(), 0usize..6000).prop_map(|(slot, length)| Step::Write { slot, length }),
        6 => (slot.clone(), size.clone(), 0usize..6000).prop_map(|(slot, offset, length)| Step::WriteAt { slot, offset, length }),
        2 => (slot, size.clone()).prop_map(|(slot, size)| Step::Cut { slot, size }),
        2 => (name.clone(), size).prop_map(|(name, size)| Step::CutPath { name, size }),
        4 => name.clone().prop_map(|name| Step::Unlink { name }),
        4 => name.clone().prop_map(|name| Step::MakeDirectory { name }),
        2 => name.clone().prop_map(|name| Step::RemoveDirectory { name }),
        5 => (name.clone(), name.clone(), prop::bool::weighted(0.2)).prop_map(|(from, to, exchange)| Step::Rename { from, to, exchange }),
        2 => (name.clone(), name.clone()).prop_map(|(from, to)| Step::Link { from, to }),
        1 => name.clone().prop_map(|name| Step::Symlink { name }),
        1 => (name, any::<bool>()).prop_map(|(name, read_only)| Step::Mode { name, read_only }),
        4 => Just(Step::Checkpoint),
        2 => Just(Step::Look),
        3 => (0usize..4, prop::option::of((0usize..30, any::<bool>()))).prop_map(|(back, cut_off)| Step::Restore { back, cut_off }),
    ]
}

/// One process: a watch and its open descriptors.
struct Process {
    watch: Watch,
    open: Vec<Option<OwnedFd>>,
}

impl Process {
    fn new(root: &Path) -> Self {
        let control = Control::open(&Store::open(root).unwrap()).unwrap();
        let watch = Watch::new(Store::open(root).unwrap(), control).unwrap();
        Self { watch, open: (0..DESCRIPTORS).map(|_| None).collect() }
    }

    fn close(&mut self, slot: usize) {
        if let Some(fd) = self.open[slot].take() {
            self.watch.closed(fd.as_raw_fd());
        }
    }

    fn open(&mut self, root: &OwnedFd, slot: usize, name: &str, flags: OFlags) {
        self.close(slot);
        if let Open::CallReal(opening) = self.watch.before_open(root.as_fd(), name.as_bytes(), flags)
            && let Ok(fd) = rustix::fs::openat(root, name, flags, Mode::from_raw_mode(0o644))
        {
            self.watch.opened(fd.as_fd(), fd.as_raw_fd(), opening);
            self.open[slot] = Some(fd);
        }
    }

    fn change(&self, slot: usize, change: Change, real: impl FnOnce(&OwnedFd)) {
        let Some(fd) = &self.open[slot] else { return };
        assert!(self.watch.is_watched(fd.as_raw_fd()));
        if self.watch.is_free(fd.as_fd(), change) {
            return real(fd);
        }
        match self.watch.before(fd.as_fd(), change) {
            Next::CallReal(_inside) => real(fd),
            other => panic!("{other:?}"),
        }
    }
}

/// Carries out what the watch decided.
fn answer(next: Next<'_>, real: impl FnOnce() -> rustix::io::Result<()>) {
    match next {
        Next::CallReal(_inside) => drop(real()),
        // The kernel's own answer to a name that leads nowhere.
        Next::Done | Next::Fail(Errno::NOENT | Errno::NOTDIR) => {}
        Next::Fail(cause) => panic!("the watch failed: {cause}"),
    }
}

/// What a tree holds: kind, permissions, modification time and contents by path; equal inodes share a number.
type Tree = BTreeMap<PathBuf, (u32, i64, String, usize)>;

fn tree(root: &Path) -> Tree {
    let (mut tree, mut seen, mut to_visit) = (Tree::new(), Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = to_visit.pop() {
        let mut entries: Vec<_> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for path in entries.into_iter().filter(|path| !path.ends_with(DIRECTORY)) {
            let about = path.symlink_metadata().unwrap();
            let is_file = about.is_file();
            let contents = if about.is_symlink() {
                std::fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
            } else if is_file {
                std::fs::read(&path).unwrap()
            } else {
                to_visit.push(path.clone());
                Vec::new()
            };
            let number = seen.iter().position(|inode| *inode == about.ino()).unwrap_or(seen.len());
            seen.push(about.ino());
            let modified = if is_file { about.mtime() * 1_000_000_000 + about.mtime_nsec() } else { 0 };
            let shown = format!("{} bytes, {}", contents.len(), &blake3::hash(&contents).to_hex()[..8]);
            tree.insert(
                path.strip_prefix(root).unwrap().into(),
                (about.permissions().mode(), modified, shown, number),
            );
        }
    }
    tree
}

/// Files by path, with the first name of the same file instead of a number.
type Files = BTreeMap<PathBuf, (u32, i64, String, PathBuf)>;

/// The files of a tree.
fn files_of(tree: &Tree) -> Files {
    let first = |number: usize| tree.iter().find(|(_, what)| what.3 == number).unwrap().0.clone();
    let files = tree.iter().map(|(path, (bits, modified, shown, number))| {
        (path.clone(), (bits & 0o7777, *modified, shown.clone(), first(*number)))
    });
    files.collect()
}

/// The files of a snapshot, each read in pieces that begin and end within blocks.
fn read_all(snapshot: &mut Snapshot) -> stdchk_filestate::Result<Files> {
    let mut first: BTreeMap<Inode, PathBuf> = BTreeMap::new();
    let names: Vec<_> =
        snapshot.names().map(|(path, inode, about)| (path.to_vec(), inode, about.clone())).collect();
    let mut files = Files::new();
    for (path, inode, about) in names {
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(&path));
        let contents = match &about.kind {
            Kind::Link(target) => target.clone(),
            Kind::File => {
                let opened = snapshot.open(inode)?;
                let mut bytes = vec![0xff; usize::try_from(about.size).unwrap()];
                let mut at = 0;
                for piece in bytes.chunks_mut(1500) {
                    snapshot.read_at(&opened, at, piece)?;
                    at += piece.len() as u64;
                }
                bytes
            }
            _ => Vec::new(),
        };
        let shown = format!("{} bytes, {}", contents.len(), &blake3::hash(&contents).to_hex()[..8]);
        let modified = if about.kind == Kind::File { about.modified_ns } else { 0 };
        let same = first.entry(inode).or_insert_with(|| path.clone()).clone();
        files.insert(path, (about.bits, modified, shown, same));
    }
    Ok(files)
}

struct World {
    /// What is looked at, with the number of checkpoints there were, and who looks. First: dropped before its tree.
    looked_at: Vec<(Snapshot, usize)>,
    looker: (Arc<Store>, Arc<Control>),
    directory: tempfile::TempDir,
    root: OwnedFd,
    processes: [Process; 2],
    /// The tree at each checkpoint index.
    models: Vec<Tree>,
    written: u8,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("d")).unwrap();
        std::fs::write(directory.path().join("a"), vec![b'A'; 7000]).unwrap();
        std::fs::write(directory.path().join("d/b"), vec![b'B'; 3]).unwrap();
        Store::create(directory.path(), &Options::default()).unwrap();
        let processes = [Process::new(directory.path()), Process::new(directory.path())];
        let root =
            rustix::fs::open(directory.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let store = Store::open(directory.path()).unwrap();
        let control = Control::open(&store).unwrap();
        let looker = (Arc::new(store), Arc::new(control));
        let mut world = Self {
            looked_at: Vec::new(),
            looker,
            directory,
            root,
            processes,
            models: Vec::new(),
            written: 0,
        };
        world.checkpoint();
        world
    }

    fn checkpoint(&mut self) {
        let watch = &self.processes[0].watch;
        let index = checkpoint::take(&watch.store, &watch.control, "test").unwrap();
        assert_eq!(index, self.models.len() as u64);
        self.models.push(tree(self.directory.path()));
    }

    fn look(&mut self) {
        let (store, control) = &self.looker;
        self.looked_at.push((Snapshot::of_newest(store, control).unwrap(), self.models.len() - 1));
    }

    fn check_looks(&mut self) {
        for (mut snapshot, index) in self.looked_at.drain(..) {
            assert_eq!(snapshot.entry().index, index as u64);
            assert_eq!(read_all(&mut snapshot).unwrap(), files_of(&self.models[index]), "at index {index}");
        }
    }

    fn restore(&mut self, back: usize, cut_off: Option<(usize, bool)>) {
        self.check_looks();
        self.look();
        let index = self.models.len() - 1 - back.min(self.models.len() - 1);
        // As after a restart: no process of the run is left (a process that goes back itself is tested with the hooks).
        for slot in 0..DESCRIPTORS {
            self.processes.iter_mut().for_each(|process| process.close(slot));
        }
        let watch = &self.processes[0].watch;
        if let Some((budget, lagging)) = cut_off {
            restore::cut_off(&watch.store, index as u64, budget, lagging).unwrap();
        }
        restore::in_run(&watch.store, &watch.control, Some(index as u64)).unwrap();
        self.models.truncate(index + 1);
        let (mut overtaken, _) = self.looked_at.pop().unwrap();
        let has_files = overtaken.names().any(|(_, _, about)| about.kind == Kind::File && about.size > 0);
        assert!(!has_files || read_all(&mut overtaken).is_err(), "a restore went unnoticed");
        assert_eq!(tree(self.directory.path()), self.models[index], "at index {index}");
        let trash = self.directory.path().join(store::TRASH);
        assert_eq!(std::fs::read_dir(trash).unwrap().count(), 0);
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        self.written = self.written.wrapping_add(1);
        vec![self.written; length]
    }

    fn step(&mut self, who: usize, step: &Step) {
        let bytes = self.bytes(match step {
            Step::Write { length, .. } | Step::WriteAt { length, .. } => *length,
            _ => 0,
        });
        let root = self.root.as_fd();
        let process = &mut self.processes[who];
        let watch = &process.watch;
        let length = bytes.len() as u64;
        match *step {
            Step::Open { slot, name, create, cut, append, exclusive } => {
                let mut flags = OFlags::WRONLY | OFlags::CLOEXEC;
                flags.set(OFlags::CREATE, create);
                flags.set(OFlags::TRUNC, cut);
                flags.set(OFlags::APPEND, append);
                flags.set(OFlags::EXCL, exclusive);
                process.open(&self.root, slot, NAMES[name], flags);
            }
            Step::Close { slot } => process.close(slot),
            Step::Write { slot, .. } => process.change(slot, Change::Here { length }, |fd| {
                rustix::io::write(fd, &bytes).unwrap();
            }),
            Step::WriteAt { slot, offset, .. } => process.change(slot, Change::At { offset, length }, |fd| {
                rustix::io::pwrite(fd, &bytes, offset).unwrap();
            }),
            Step::Cut { slot, size } => process.change(slot, Change::Resize { size }, |fd| {
                rustix::fs::ftruncate(fd, size).unwrap();
            }),
            Step::CutPath { name, size } => {
                let next = watch.before_path_change(root, NAMES[name].as_bytes(), Change::Resize { size });
                let path = self.directory.path().join(NAMES[name]);
                answer(next, || {
                    std::fs::OpenOptions::new()
                        .write(true)
                        .open(&path)
                        .and_then(|file| file.set_len(size))
                        .map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap())
                });
            }
            Step::Unlink { name } => answer(watch.before_unlink(root, NAMES[name].as_bytes()), || {
                rustix::fs::unlinkat(root, NAMES[name], AtFlags::empty())
            }),
            Step::MakeDirectory { name } => {
                answer(watch.before_create(root, NAMES[name].as_bytes()), || {
                    rustix::fs::mkdirat(root, NAMES[name], Mode::from_raw_mode(0o755))
                });
            }
            Step::RemoveDirectory { name } => {
                answer(watch.before_rmdir(root, NAMES[name].as_bytes()), || {
                    rustix::fs::unlinkat(root, NAMES[name], AtFlags::REMOVEDIR)
                })
            }
            Step::Rename { from, to, exchange } => {
                let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
                let next =
                    watch.before_rename((root, NAMES[from].as_bytes()), (root, NAMES[to].as_bytes()), flags);
                answer(next, || rustix::fs::renameat_with(root, NAMES[from], root, NAMES[to], flags));
            }
            Step::Link { from, to } => answer(watch.before_create(root, NAMES[to].as_bytes()), || {
                rustix::fs::linkat(root, NAMES[from], root, NAMES[to], AtFlags::empty())
            }),
            Step::Symlink { name } => answer(watch.before_create(root, NAMES[name].as_bytes()), || {
                rustix::fs::symlinkat("nowhere", root, NAMES[name])
            }),
            Step::Mode { name, read_only } => {
                let bits = Mode::from_raw_mode(if read_only { 0o444 } else { 0o755 });
                answer(watch.before_mode(root, Some(NAMES[name].as_bytes())), || {
                    rustix::fs::chmodat(root, NAMES[name], bits, AtFlags::empty())
                });
            }
            Step::Checkpoint => self.checkpoint(),
            Step::Look => self.look(),
            Step::Restore { back, cut_off } => self.restore(back, cut_off),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_restore_and_every_look_back_gives_the_tree_of_its_checkpoint(steps in prop::collection::vec((0usize..2, any_step()), 1..60)) {
        let mut world = World::new();
        for (who, step) in &steps {
            world.step(*who, step);
        }
        world.restore(0, None);
        let oldest = world.models.len() - 1;
        world.restore(oldest, None);
    }
}

#[test]
fn a_file_comes_back_that_was_deleted_from_within_a_directory_that_is_gone_too() {
    let mut world = World::new();
    world.step(1, &Step::MakeDirectory { name: 6 });
    world.step(0, &Step::Rename { from: 3, to: 4, exchange: false });
    world.step(0, &Step::Unlink { name: 4 });
    world.step(1, &Step::RemoveDirectory { name: 6 });
    world.restore(0, None);
}
