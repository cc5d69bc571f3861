//! A run of several processes on one tree, and the models that it is compared with.

use std::sync::Arc;

use stdchk_filestate::control::Control;
use stdchk_filestate::snapshot::{Kind, Snapshot};
use stdchk_filestate::store::{Options, Store};
use stdchk_filestate::{checkpoint, restore, store};

use crate::model::{Tree, files_of, read_all, tree};
use crate::process::Process;
use crate::steps::{DESCRIPTORS, NAMES, PROCESSES, Step, TARGETS};

/// A run on a tree.
pub struct World {
    /// What is looked at, with the number of checkpoints there were, and who looks. First: dropped before its tree.
    looked_at: Vec<(Snapshot, usize)>,
    looker: (Arc<Store>, Arc<Control>),
    directory: tempfile::TempDir,
    processes: [Process; PROCESSES],
    /// The tree at each checkpoint index.
    models: Vec<Tree>,
    written: u8,
}

impl World {
    /// A run that keeps old contents by sharing their blocks, or by copying them.
    pub fn new(clones: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("d")).unwrap();
        std::fs::write(directory.path().join("a"), vec![b'A'; 70_000]).unwrap();
        std::fs::write(directory.path().join("d/b"), vec![b'B'; 3]).unwrap();
        std::os::unix::fs::symlink("d", directory.path().join("l")).unwrap();
        let options = Options { clones: Some(clones), ..Options::default() };
        Store::create(directory.path(), &options).unwrap();
        let processes = std::array::from_fn(|_| Process::new(directory.path()));
        let store = Store::open(directory.path()).unwrap();
        let control = Control::open(&store).unwrap();
        let looker = (Arc::new(store), Arc::new(control));
        let mut world =
            Self { looked_at: Vec::new(), looker, directory, processes, models: Vec::new(), written: 0 };
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

    pub fn restore(&mut self, back: usize, cut_off: Option<(usize, bool)>) {
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

    /// How many files the store keeps.
    pub fn count_kept(&self) -> usize {
        std::fs::read_dir(self.directory.path().join(store::KEPT)).unwrap().count()
    }

    /// Bytes that were never written before.
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        self.written = self.written.wrapping_add(1);
        vec![self.written; length]
    }

    /// Takes one step in the process `who`.
    pub fn step(&mut self, who: usize, step: &Step) {
        let bytes = self.bytes(match step {
            Step::Write { length, .. } | Step::WriteAt { length, .. } => *length,
            _ => 0,
        });
        let process = &mut self.processes[who];
        match *step {
            Step::Open { slot, name, how } => process.open(slot, NAMES[name], how),
            Step::OpenUnnamed { slot, directory } => process.open_unnamed(slot, NAMES[directory]),
            Step::NameOpened { slot, name } => process.name_opened(slot, NAMES[name]),
            Step::Close { slot } => process.close(slot),
            Step::Duplicate { from, to } => process.duplicate(from, to),
            Step::Inherit { parent, slot } => {
                let inherited = self.processes[parent].copy(slot);
                inherited.into_iter().for_each(|fd| self.processes[who].inherit(slot, fd));
            }
            Step::Append { slot, append } => process.set_append(slot, append),
            Step::Write { slot, .. } => process.write(slot, &bytes),
            Step::WriteAt { slot, offset, .. } => process.write_at(slot, offset, &bytes),
            Step::Punch { slot, offset, length } => process.punch(slot, offset, length),
            Step::Cut { slot, size } => process.cut(slot, size),
            Step::CutPath { name, size } => process.cut_path(NAMES[name], size),
            Step::Touch { name } => process.touch(NAMES[name]),
            Step::Unlink { name } => process.unlink(NAMES[name]),
            Step::MakeDirectory { name } => process.make_directory(NAMES[name]),
            Step::RemoveDirectory { name } => process.remove_directory(NAMES[name]),
            Step::Rename { from, to, how } => process.rename(NAMES[from], NAMES[to], how),
            Step::Link { from, to } => process.link(NAMES[from], NAMES[to]),
            Step::Symlink { name, target } => process.symlink(NAMES[name], TARGETS[target]),
            Step::Mode { name, read_only } => process.set_mode(NAMES[name], read_only),
            Step::ModeOpened { slot, read_only } => process.set_mode_opened(slot, read_only),
            Step::Die => *process = Process::new(self.directory.path()),
            Step::Checkpoint => self.checkpoint(),
            Step::Look => self.look(),
            Step::Restore { back, cut_off } => self.restore(back, cut_off),
        }
    }

    /// Goes back to the newest checkpoint, then to the oldest.
    pub fn restore_newest_and_oldest(&mut self) {
        self.restore(0, None);
        self.restore(self.models.len() - 1, None);
    }
}
