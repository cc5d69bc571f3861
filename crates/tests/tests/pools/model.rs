//! What every name may lead to, by what clients were told.
//!
//! A change that was acknowledged holds. One whose answer was lost may have happened, or happen later, until all has come to rest. Only
//! one client at a time changes a name; any number may read it.

use std::sync::{Arc, Mutex, MutexGuard};

/// What a name leads to: nothing, or a file of these bytes.
pub type Content = Option<Arc<Vec<u8>>>;

/// Where a file is: a folder and a name in it, each by its number.
pub type Name = (usize, usize);

/// A change that was begun.
pub type Change = u64;

#[derive(Default)]
struct Entry {
    /// What it leads to if nothing happens that is still possible: one, unless it was made of something uncertain.
    certain: Vec<Content>,
    /// What changes that were not acknowledged may make of it.
    possible: Vec<(Change, Content)>,
    /// Names to which the file may yet move by renames that were not acknowledged, with all that is done to it until then.
    may_go_to: Vec<(Change, Name)>,
    /// What it leads to for readers until something is pushed that a client has in its spool.
    not_yet: Vec<Content>,
    /// All that it may have led to since all was at rest, in order.
    since: Vec<Content>,
    is_changed: bool,
    /// As many disks as the policy survives may go.
    is_safe: bool,
    /// A disk that it may have rested on is gone.
    is_doubtful: bool,
    /// The same of an earlier version of the file.
    has_doubtful_versions: bool,
}

struct Model {
    entries: Vec<Vec<Entry>>,
    /// Since the last rest.
    has_lost_disk: bool,
    /// Disks that were lost, ever.
    lost_disks: u64,
    changes: Change,
}

/// The names of one life, shared by all clients.
#[derive(Clone)]
pub struct Names(Arc<Mutex<Model>>);

/// Who may change a name.
pub struct Turn {
    names: Names,
    pub name: Name,
    pub change: Change,
    /// Disks that had been lost when it began.
    lost_disks: u64,
}

/// Somebody who reads a name.
pub struct Look {
    names: Names,
    name: Name,
    at_first: Vec<Content>,
    seen: usize,
}

impl Names {
    pub fn new(folders: usize, names: usize) -> Self {
        let absent = || Entry { certain: vec![None], ..Entry::default() };
        let entries = (0..folders).map(|_| (0..names).map(|_| absent()).collect()).collect();
        Self(Arc::new(Mutex::new(Model { entries, has_lost_disk: false, lost_disks: 0, changes: 0 })))
    }

    fn lock(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap()
    }

    fn on<T>(&self, (folder, name): Name, work: impl FnOnce(&mut Entry) -> T) -> T {
        work(&mut self.lock().entries[folder][name])
    }

    pub fn all(&self) -> Vec<Name> {
        let model = self.lock();
        let folders = model.entries.iter().enumerate();
        folders.flat_map(|(folder, names)| (0..names.len()).map(move |name| (folder, name))).collect()
    }

    /// The right to change a name, unless somebody has it.
    pub fn turn(&self, name: Name) -> Option<Turn> {
        let mut model = self.lock();
        model.changes += 1;
        let (change, lost_disks) = (model.changes, model.lost_disks);
        let entry = &mut model.entries[name.0][name.1];
        let is_free = !std::mem::replace(&mut entry.is_changed, true);
        drop(model);
        is_free.then(|| Turn { names: self.clone(), name, change, lost_disks })
    }

    pub fn look(&self, name: Name) -> Look {
        let (at_first, seen) = self.on(name, |entry| (entry.allowed(), entry.since.len()));
        Look { names: self.clone(), name, at_first, seen }
    }

    pub fn allowed(&self, name: Name) -> Vec<Content> {
        self.on(name, |entry| entry.allowed())
    }

    /// Whether the name may lead to this when all is at rest.
    pub fn may_stay(&self, name: Name, content: &Content) -> bool {
        self.on(name, |entry| entry.lasting().any(|lasting| lasting == content))
    }

    pub fn is_doubtful(&self, name: Name) -> bool {
        self.on(name, |entry| entry.is_doubtful)
    }

    pub fn has_doubtful_versions(&self, name: Name) -> bool {
        self.on(name, |entry| entry.has_doubtful_versions)
    }

    /// All is at rest, and this is what the name leads to.
    pub fn settle(&self, name: Name, content: Content) {
        let settled = Entry { certain: vec![content], ..Entry::default() };
        self.on(name, |entry| *entry = settled);
    }

    /// Everything in a folder has the redundancy that the folder asks for; whether a disk may go by that.
    pub fn have_redundancy(&self, folder: usize, is_safe: bool) {
        let mut model = self.lock();
        model.has_lost_disk = false;
        model.entries[folder].iter_mut().for_each(|entry| entry.is_safe = is_safe);
    }

    /// The names of a folder may rest on one disk each from now on, which may be one that was lost while it wasn't noticed yet.
    pub fn endanger(&self, folder: usize) {
        let mut model = self.lock();
        let has_lost_disk = model.has_lost_disk;
        model.entries[folder].iter_mut().for_each(|entry| entry.endanger(has_lost_disk));
    }

    /// What was done to the file of a name may come to other names with it.
    fn spread(&self, from: Name, contents: &[Content]) {
        let mut model = self.lock();
        let (mut at, mut reached) = (vec![from], vec![from]);
        while let Some((folder, name)) = at.pop() {
            for (change, to) in model.entries[folder][name].may_go_to.clone() {
                if reached.contains(&to) {
                    continue;
                }
                let target = &mut model.entries[to.0][to.1];
                let files = contents.iter().filter(|content| content.is_some());
                target.since.extend(files.clone().cloned());
                target.possible.extend(files.map(|content| (change, content.clone())));
                reached.push(to);
                at.push(to);
            }
        }
    }

    fn endanger_one(&self, (folder, name): Name) {
        let mut model = self.lock();
        let has_lost_disk = model.has_lost_disk;
        model.entries[folder][name].endanger(has_lost_disk);
    }

    /// A disk is gone.
    pub fn lose_disk(&self) {
        let mut model = self.lock();
        model.has_lost_disk = true;
        model.lost_disks += 1;
        for entry in model.entries.iter_mut().flatten().filter(|entry| !entry.is_safe) {
            entry.endanger(true);
        }
    }
}

impl Entry {
    fn endanger(&mut self, has_lost_disk: bool) {
        self.is_safe = false;
        self.is_doubtful |= has_lost_disk;
        self.has_doubtful_versions |= has_lost_disk;
    }

    fn allowed(&self) -> Vec<Content> {
        self.lasting().chain(&self.not_yet).cloned().collect()
    }

    fn lasting(&self) -> impl Iterator<Item = &Content> {
        self.certain.iter().chain(self.possible.iter().map(|(_, content)| content))
    }
}

impl Turn {
    /// From now on the name may lead to this, too.
    pub fn may_be(&self, content: &Content) {
        self.names.on(self.name, |entry| {
            entry.possible.push((self.change, content.clone()));
            entry.since.push(content.clone());
        });
        self.names.spread(self.name, std::slice::from_ref(content));
    }

    /// The change was acknowledged: this is what the name leads to. `is_safe`: a disk may go.
    pub fn is(&self, contents: Vec<Content>, is_safe: bool) {
        self.names.spread(self.name, &contents);
        self.names.on(self.name, |entry| {
            entry.possible.retain(|(change, _)| *change != self.change);
            entry.since.extend(contents.iter().cloned());
            entry.certain = contents;
            entry.not_yet.clear();
            entry.is_safe = is_safe;
            // A change keeps parts of what was there, on the disk that is gone and counts until that is noticed.
            entry.is_doubtful &= !is_safe;
        });
        // What it rests on may be a disk to which it was written before that went, unnoticed.
        if !is_safe && self.names.lock().lost_disks > self.lost_disks {
            self.names.endanger_one(self.name);
        }
    }

    /// This is what the name will lead to, whatever happens to the client that has it in its spool.
    pub fn will_be(&self, content: &Content) {
        self.names.spread(self.name, std::slice::from_ref(content));
        self.names.on(self.name, |entry| {
            entry.not_yet = entry.allowed();
            entry.possible.retain(|(change, _)| *change != self.change);
            // It may also come after what another client does to the file.
            entry.possible.push((self.change, content.clone()));
            entry.certain = vec![content.clone()];
            entry.is_safe = false;
        });
    }

    /// The file of another name may come here, and with it what may still become of that.
    pub fn may_take_over(&self, source: &Self) {
        let (possible, allowed) = self.names.on(source.name, |entry| {
            entry.may_go_to.push((self.change, self.name));
            (entry.possible.clone(), entry.allowed())
        });
        self.names.on(self.name, |entry| {
            entry.possible.extend(possible);
            entry.since.extend(allowed.iter().cloned());
            let files = allowed.into_iter().filter(Option::is_some);
            entry.possible.extend(files.map(|content| (self.change, content)));
        });
    }

    /// It came; to a folder by whose policy a disk may go, or not.
    pub fn took_over(&self, source: &Self, is_safe: bool) {
        let (files, not_yet, is_doubtful, have) = self.names.on(source.name, |entry| {
            entry.may_go_to.retain(|(change, _)| *change != self.change);
            let files: Vec<Content> = entry.lasting().filter(|content| content.is_some()).cloned().collect();
            (files, entry.not_yet.clone(), entry.is_doubtful, entry.has_doubtful_versions)
        });
        // What it rests on was made under another policy.
        self.is(files, false);
        self.names.on(self.name, |entry| {
            (entry.not_yet, entry.is_doubtful) = (not_yet, is_doubtful);
            entry.has_doubtful_versions |= have;
        });
        if !is_safe {
            self.names.endanger_one(self.name);
        }
        source.is(vec![None], true);
    }

    /// What was begun can't happen any more.
    pub fn came_to_nothing(&self) {
        self.names.on(self.name, |entry| entry.possible.retain(|(change, _)| *change != self.change));
    }

    pub fn allowed(&self) -> Vec<Content> {
        self.names.allowed(self.name)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.names.on(self.name, |entry| entry.is_changed = false);
    }
}

impl Look {
    /// Whether the name may have led to this since the look began.
    pub fn may_have_been(&self, content: &Content) -> bool {
        self.at_first.contains(content)
            || self
                .names
                .on(self.name, |entry| entry.since[self.seen.min(entry.since.len())..].contains(content))
    }
}

/// The content in words.
pub fn shown(content: &Content) -> String {
    match content {
        None => "nothing".to_owned(),
        Some(bytes) => format!("{} bytes {}", bytes.len(), &blake3::hash(bytes).to_hex()[..8]),
    }
}
