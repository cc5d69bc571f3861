//! What every name may lead to, by what clients were told.
//!
//! A change that was acknowledged holds. One whose answer was lost may have happened, or happen later, until all has come to rest. Only
//! one client at a time changes a name; any number may read it.
//!
//! What was committed where R copies in memory suffice may be lost once memory was lost R times since all was at rest. At rest disks
//! have everything, and from then on it counts as any other. A loss may have come before the commit, if the manager didn't know of it.
//! What was committed elsewhere is lost with no memory, even if it was made of something that is.

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
    /// It may have been committed since all was at rest where so many copies in memory suffice.
    in_memory: Option<u8>,
    /// The same of an earlier version of the file; the fewest copies.
    has_versions_in_memory: Option<u8>,
}

#[derive(Default)]
struct Model {
    entries: Vec<Vec<Entry>>,
    /// How many copies in memory may have sufficed in each folder since all was at rest, the fewest; `None`: only disks counted.
    memory: Vec<Option<u8>>,
    /// Something was committed moments ago for which memory may have been enough.
    is_committed_in_memory: bool,
    /// How often a benefactor lost its memory since all was at rest.
    lost_memories: u64,
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
        let memory = vec![None; folders];
        Self(Arc::new(Mutex::new(Model { entries, memory, ..Model::default() })))
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
        self.on(name, |entry| entry.is_doubtful) || self.is_lost_in_memory(|entry| entry.in_memory, name)
    }

    pub fn has_doubtful_versions(&self, name: Name) -> bool {
        self.on(name, |entry| entry.has_doubtful_versions)
            || self.is_lost_in_memory(|entry| entry.has_versions_in_memory, name)
    }

    /// Whether memory was lost so often that what rested on so many copies there may be gone.
    fn is_lost_in_memory(&self, copies: impl Fn(&Entry) -> Option<u8>, (folder, name): Name) -> bool {
        let model = self.lock();
        copies(&model.entries[folder][name]).is_some_and(|copies| model.lost_memories >= u64::from(copies))
    }

    /// Whether something was committed since this was asked last for which memory may have been enough.
    pub fn take_committed_in_memory(&self) -> bool {
        std::mem::take(&mut self.lock().is_committed_in_memory)
    }

    /// A benefactor lost its memory.
    pub fn lose_memory(&self) {
        self.lock().lost_memories += 1;
    }

    /// From now on so many copies in memory suffice in a folder, perhaps.
    pub fn memory_suffices(&self, folder: usize, copies: u8) {
        let mut model = self.lock();
        model.memory[folder] = fewest(model.memory[folder], Some(copies));
        // What a client has in its spool, or has asked for, may come by this.
        let may_change = |entry: &&mut Entry| entry.is_changed || entry.may_change();
        model.entries[folder]
            .iter_mut()
            .filter(may_change)
            .for_each(|entry| entry.may_be_in_memory(Some(copies)));
    }

    /// How many copies in memory may have sufficed in a folder.
    fn memory(&self, folder: usize) -> Option<u8> {
        self.lock().memory[folder]
    }

    /// Everything is on disks, and from now on so many copies in memory suffice in a folder.
    pub fn rest_on_disks(&self, folder: usize, memory: Option<u8>) {
        let mut model = self.lock();
        (model.memory[folder], model.lost_memories) = (memory, 0);
        for entry in &mut model.entries[folder] {
            (entry.in_memory, entry.has_versions_in_memory) = (None, None);
        }
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
        let memory = model.entries[from.0][from.1].has_versions_in_memory;
        let (mut at, mut reached) = (vec![from], vec![from]);
        while let Some((folder, name)) = at.pop() {
            for (change, to) in model.entries[folder][name].may_go_to.clone() {
                if reached.contains(&to) {
                    continue;
                }
                let here = model.memory[to.0];
                let target = &mut model.entries[to.0][to.1];
                target.may_be_in_memory(fewest(memory, here));
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

    /// It may rest on so many copies in memory.
    fn may_be_in_memory(&mut self, copies: Option<u8>) {
        self.in_memory = fewest(self.in_memory, copies);
        self.has_versions_in_memory = fewest(self.has_versions_in_memory, copies);
    }

    /// Whether something may come that was asked for earlier, or that a client has in its spool.
    fn may_change(&self) -> bool {
        !(self.possible.is_empty() && self.not_yet.is_empty())
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
        let memory = content.as_ref().and(self.names.memory(self.name.0));
        self.names.on(self.name, |entry| {
            entry.may_be_in_memory(memory);
            entry.possible.push((self.change, content.clone()));
            entry.since.push(content.clone());
        });
        self.names.spread(self.name, std::slice::from_ref(content));
    }

    /// The change was acknowledged: this is what the name leads to. `is_safe`: a disk may go.
    pub fn is(&self, contents: Vec<Content>, is_safe: bool) {
        let memory = if contents == [None] { None } else { self.names.memory(self.name.0) };
        self.names.spread(self.name, &contents);
        self.names.on(self.name, |entry| {
            entry.possible.retain(|(change, _)| *change != self.change);
            entry.since.extend(contents.iter().cloned());
            // Unless something comes that was asked for earlier, it is as this change made it.
            entry.in_memory = entry.in_memory.filter(|_| !entry.possible.is_empty());
            entry.may_be_in_memory(memory);
            entry.certain = contents;
            entry.not_yet.clear();
            entry.is_safe = is_safe;
            // A change keeps parts of what was there, on the disk that is gone and counts until that is noticed.
            entry.is_doubtful &= !is_safe;
        });
        self.names.lock().is_committed_in_memory |= memory.is_some();
        // What it rests on may be a disk to which it was written before that went, unnoticed.
        if !is_safe && self.names.lock().lost_disks > self.lost_disks {
            self.names.endanger_one(self.name);
        }
    }

    /// This is what the name will lead to, whatever happens to the client that has it in its spool.
    pub fn will_be(&self, content: &Content) {
        let memory = self.names.memory(self.name.0);
        self.names.spread(self.name, std::slice::from_ref(content));
        self.names.on(self.name, |entry| {
            entry.may_be_in_memory(memory);
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
        let here = self.names.memory(self.name.0);
        let (possible, allowed, memory) = self.names.on(source.name, |entry| {
            entry.may_go_to.push((self.change, self.name));
            // What comes later to the file comes by the policy of where it is.
            let memory = fewest(entry.has_versions_in_memory, here.filter(|_| entry.may_change()));
            (entry.possible.clone(), entry.allowed(), memory)
        });
        self.names.on(self.name, |entry| {
            entry.may_be_in_memory(memory);
            entry.possible.extend(possible);
            entry.since.extend(allowed.iter().cloned());
            let files = allowed.into_iter().filter(Option::is_some);
            entry.possible.extend(files.map(|content| (self.change, content)));
        });
    }

    /// It came; to a folder by whose policy a disk may go, or not.
    pub fn took_over(&self, source: &Self, is_safe: bool) {
        let here = self.names.memory(self.name.0);
        let of = self.names.on(source.name, |entry| (entry.in_memory, entry.has_versions_in_memory));
        let (files, not_yet, is_doubtful, have) = self.names.on(source.name, |entry| {
            entry.may_go_to.retain(|(change, _)| *change != self.change);
            let files: Vec<Content> = entry.lasting().filter(|content| content.is_some()).cloned().collect();
            (files, entry.not_yet.clone(), entry.is_doubtful, entry.has_doubtful_versions)
        });
        // The versions of the file that was here stay with the one that came.
        let here_before = self.names.on(self.name, |entry| entry.has_versions_in_memory);
        // What it rests on was made under another policy.
        self.is(files, false);
        self.names.on(self.name, |entry| {
            (entry.not_yet, entry.is_doubtful) = (not_yet, is_doubtful);
            // A rename commits nothing. What comes later to the file comes by the policy of where it is.
            let later = here.filter(|_| entry.may_change());
            (entry.in_memory, entry.has_versions_in_memory) = (of.0, fewest(of.1, here_before));
            entry.may_be_in_memory(later);
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

/// The fewer of two numbers of copies.
fn fewest(one: Option<u8>, other: Option<u8>) -> Option<u8> {
    one.into_iter().chain(other).min()
}

/// The content in words.
pub fn shown(content: &Content) -> String {
    match content {
        None => "nothing".to_owned(),
        Some(bytes) => format!("{} bytes {}", bytes.len(), &blake3::hash(bytes).to_hex()[..8]),
    }
}
