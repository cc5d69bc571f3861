//! The disk of a benefactor: what is on it, what of that survives a loss of power, and what such a loss leaves of the rest.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stdchk_model::BlockId;
use tempfile::TempDir;

use super::content;
use super::segments::{self, Record};

/// Unit in which a store writes, bytes.
const UNIT: usize = 4096;
/// What a disk writes whole, bytes.
const SECTOR: usize = 512;
const SEGMENTS: &str = "segments";

/// Files of a benefactor, by their paths below its directory.
type Files = BTreeMap<PathBuf, Vec<u8>>;

/// A disk in memory.
pub struct Disk {
    place: TempDir,
    /// What a loss of power leaves at least.
    durable: Files,
    /// The records of durable segments, as far as they were read since these changed.
    records: RefCell<BTreeMap<PathBuf, Vec<Record>>>,
    /// The blocks that these records say are there.
    blocks: RefCell<Option<BTreeSet<BlockId>>>,
    /// What was there once.
    old: Files,
    /// Segments that there were when the present life of the store began; `None`: it has made one of its own.
    before: Option<BTreeSet<PathBuf>>,
}

fn place() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

/// Chance from numbers that don't change between lives of one seed.
fn mixed(seed: u64, path: &Path, unit: usize) -> u64 {
    let text = format!("{seed} {} {unit}", path.display());
    u64::from_le_bytes(*blake3::hash(text.as_bytes()).as_bytes().first_chunk().unwrap())
}

/// One unit of which some writes arrived and others didn't.
fn torn(old: &[u8], new: &[u8], chance: u64) -> Vec<u8> {
    match chance % 4 {
        0 => new.to_vec(),
        1 => {
            let sectors = old.chunks(SECTOR).zip(new.chunks(SECTOR)).enumerate();
            let arrived = |place: usize| chance >> (8 + place) & 1 == 0;
            sectors.flat_map(|(place, (old, new))| if arrived(place) { new } else { old }).copied().collect()
        }
        _ => old.to_vec(),
    }
}

/// Writes a file with holes where there is nothing.
fn write_sparse(path: &Path, bytes: &[u8]) {
    let file = File::create(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    let units = bytes.chunks(UNIT).enumerate();
    for (unit, content) in units.filter(|(_, content)| content.iter().any(|byte| *byte != 0)) {
        file.write_all_at(content, (unit * UNIT) as u64).unwrap();
    }
}

impl Disk {
    pub fn new() -> Self {
        Self {
            place: place(),
            durable: Files::new(),
            records: RefCell::default(),
            blocks: RefCell::default(),
            old: Files::new(),
            before: None,
        }
    }

    /// The benefactor's directory.
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    pub fn segments(&self) -> PathBuf {
        self.path().join(SEGMENTS)
    }

    /// Paths of the files below `directory`.
    fn names(&self, directory: &str) -> BTreeSet<PathBuf> {
        let entries = fs::read_dir(self.path().join(directory)).into_iter().flatten();
        let files = entries.map(|entry| entry.unwrap()).filter(|entry| entry.file_type().unwrap().is_file());
        files.map(|entry| Path::new(directory).join(entry.file_name())).collect()
    }

    fn read(&self, directory: &str) -> Files {
        let names = self.names(directory).into_iter();
        names.map(|name| (name.clone(), fs::read(self.path().join(name)).unwrap())).collect()
    }

    fn read_all(&self) -> Files {
        let mut files = self.read("");
        files.extend(self.read(SEGMENTS));
        files
    }

    fn write(&self, files: &Files) {
        for name in self.names("").into_iter().chain(self.names(SEGMENTS)) {
            if !files.contains_key(&name) {
                fs::remove_file(self.path().join(name)).unwrap();
            }
        }
        for (name, bytes) in files {
            write_sparse(&self.path().join(name), bytes);
        }
    }

    /// A store was opened.
    pub fn opened(&mut self) {
        self.before = Some(self.names(SEGMENTS));
        self.keep_all();
    }

    /// A store has perhaps made the first segment of its life, which is durable at once, with nothing in it.
    pub fn keep_first_segment(&mut self) {
        let Some(before) = &self.before else { return };
        if let Some(first) = self.names(SEGMENTS).difference(before).next() {
            let mut head = vec![0; UNIT];
            File::open(self.path().join(first)).unwrap().read_exact_at(&mut head, 0).unwrap();
            self.records.get_mut().remove(first);
            self.blocks.take();
            self.durable.insert(first.clone(), head);
            self.before = None;
        }
    }

    /// All that is written is durable.
    pub fn keep_all(&mut self) {
        let all = self.read_all();
        self.records.get_mut().retain(|name, _| all.get(name) == self.durable.get(name));
        self.durable = all;
        self.blocks.take();
    }

    /// The blocks that survive a loss of power, by what is on the disk.
    pub fn blocks(&self) -> BTreeSet<BlockId> {
        self.blocks.borrow_mut().get_or_insert_with(|| self.read_blocks()).clone()
    }

    fn read_blocks(&self) -> BTreeSet<BlockId> {
        let mut known = self.records.borrow_mut();
        let names = self.durable.iter().filter(|(name, _)| name.starts_with(SEGMENTS));
        let mut unread = names.filter(|(name, _)| !known.contains_key(*name)).peekable();
        if unread.peek().is_some() {
            let heads = self.durable.values().filter_map(|bytes| segments::head(bytes));
            let any_key = heads.map(|(key, _)| key).next();
            for (name, bytes) in unread.collect::<Vec<_>>() {
                let number = name.file_stem().unwrap().to_str().unwrap().parse().unwrap();
                let key = segments::head(bytes).map(|(key, _)| key).or(any_key);
                let records = key.map(|key| segments::records(bytes, &key, number));
                known.insert(name.clone(), records.unwrap_or_default());
            }
        }
        segments::blocks(known.values().flatten()).into_values().map(content::seen).collect()
    }

    /// What the benefactor remembers is durable.
    pub fn keep_memory(&mut self) {
        let memory = self.read("");
        self.durable.extend(memory);
    }

    /// Power is lost: of what wasn't durable anything may be there.
    pub fn lose_power(&mut self, seed: u64) {
        let now = self.read(SEGMENTS);
        let mut left = Files::new();
        let names: BTreeSet<&PathBuf> = self.durable.keys().chain(now.keys()).collect();
        for name in names {
            if !name.starts_with(SEGMENTS) {
                left.extend(self.durable.get(name).map(|bytes| (name.clone(), bytes.clone())));
                continue;
            }
            let (old, new) = (self.durable.get(name), now.get(name));
            if mixed(seed, name, usize::MAX).is_multiple_of(2) && (old.is_none() || new.is_none()) {
                // Neither its making nor its removal need be durable.
                continue;
            }
            let padded = |bytes: Option<&Vec<u8>>, length: usize| {
                let mut bytes = bytes.cloned().unwrap_or_default();
                bytes.resize(length, 0);
                bytes
            };
            let length = old.map_or(0, Vec::len).max(new.map_or(0, Vec::len)).next_multiple_of(UNIT);
            let (old, new) = (padded(old, length), padded(new.or(old), length));
            let units = old.chunks(UNIT).zip(new.chunks(UNIT)).enumerate();
            let torn = units.flat_map(|(unit, (old, new))| torn(old, new, mixed(seed, name, unit)));
            left.insert(name.clone(), torn.collect());
        }
        self.write(&left);
    }

    /// The newest segment is gone.
    pub fn lose_newest_segment(&self) {
        if let Some(newest) = self.names(SEGMENTS).last() {
            fs::remove_file(self.path().join(newest)).unwrap();
        }
    }

    /// Flips a bit in the middle of `content` wherever that is; false if it is nowhere.
    pub fn flip(&mut self, content: &[u8]) -> bool {
        let mut found = false;
        for (name, bytes) in self.read(SEGMENTS) {
            let at = bytes.windows(content.len()).position(|window| window == content);
            if let Some(at) = at.map(|at| at + content.len() / 2) {
                let file = File::options().write(true).open(self.path().join(&name)).unwrap();
                file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
                if let Some(byte) = self.durable.get_mut(&name).and_then(|durable| durable.get_mut(at)) {
                    *byte = bytes[at] ^ 1;
                    self.records.get_mut().remove(&name);
                    self.blocks.take();
                }
                found = true;
            }
        }
        found
    }

    /// Keeps a copy of all that is there.
    pub fn remember(&mut self) {
        self.old = self.read_all();
    }

    /// What was there once is there again.
    pub fn set_back(&mut self) {
        self.write(&self.old);
    }

    /// Another disk, with nothing on it.
    pub fn wipe(&mut self) {
        *self = Self::new();
    }
}
