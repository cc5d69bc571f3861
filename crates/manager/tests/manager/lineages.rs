//! The versions of a name that is replaced again and again: what that costs the store, and which versions there are, against a model.

use std::collections::BTreeMap;

use crate::harness::{Pool, rename, session, timing};
use proptest::prelude::*;
use stdchk_manager::store::{Store, Table};
use stdchk_model::message::manager::{Change, Existing, FileKind, ManagerRequest, VersionState};
use stdchk_model::{ChunkMap, Extent, Ino, MapRoot, Source};

/// A map of zeros, which need no benefactor.
fn zeros(size: u64) -> MapRoot {
    let extents = (size > 0).then_some(Extent { length: size, source: Source::Hole });
    MapRoot::Inline { map: ChunkMap::new(Vec::new(), extents).unwrap().encode() }
}

/// A folder of files that are replaced.
struct Replaced {
    pool: Pool,
    folder: Ino,
    made: u64,
}

impl Replaced {
    fn new() -> Self {
        let mut pool = Pool::new();
        let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
        let pairs = vec![("versions".to_owned(), "keep".to_owned())];
        pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
        Self { pool, folder, made: 0 }
    }

    fn write(&mut self, ino: Ino) {
        self.made += 1;
        self.pool.open(1, ino);
        self.pool.commit_root(1, zeros(self.made), self.made).unwrap();
        self.pool.close(1);
    }

    /// Replaces a file by a new one that is written in a folder and renamed.
    fn replace(&mut self, from: Ino, name: &str) {
        let new = self.pool.make(from, "new", FileKind::File);
        self.write(new);
        self.pool.change(rename(from, "new", self.folder, name)).unwrap();
    }

    fn replace_often(&mut self, name: &str, times: u64) {
        (0..times).for_each(|_| self.replace(self.folder, name));
    }

    /// Bytes that `change` lets the manager commit to its store, and records.
    fn cost(&mut self, change: impl FnOnce(&mut Self)) -> (u64, u64) {
        let before = self.pool.written;
        change(self);
        (self.pool.written.0 - before.0, self.pool.written.1 - before.1)
    }

    fn sizes(&mut self, name: &str) -> Vec<(u64, u64)> {
        let ino = self.pool.attr(&format!("app/{name}")).unwrap().ino;
        self.pool.versions(ino).iter().map(|info| (info.version, info.size)).collect()
    }

    /// Length of the longest record of each table.
    fn longest(&self) -> BTreeMap<Table, usize> {
        let mut longest = BTreeMap::new();
        let mut look = |key: &[u8], record: &[u8]| {
            let most = longest.entry(Table::of(key[0]).unwrap()).or_insert(0);
            *most = record.len().max(*most);
            Ok(())
        };
        self.pool.store.load(&mut look).unwrap();
        longest
    }
}

#[test]
fn what_a_replacement_writes_does_not_grow_with_the_versions() {
    let mut file = Replaced::new();
    let other = file.pool.make(Ino::ROOT, "tmp", FileKind::Directory);
    file.replace_often("latest", 50);
    let few = file.cost(|file| file.replace_often("latest", 10));
    let few_from_elsewhere = file.cost(|file| (0..10).for_each(|_| file.replace(other, "latest")));
    let longest = file.longest();
    file.replace_often("latest", 3_000);
    let many = file.cost(|file| file.replace_often("latest", 10));
    let many_from_elsewhere = file.cost(|file| (0..10).for_each(|_| file.replace(other, "latest")));
    assert_eq!((many.1, many_from_elsewhere.1), (few.1, few_from_elsewhere.1), "records");
    // Numbers grow by some bytes each.
    assert!(many.0 < few.0 + few.0 / 8, "{many:?} instead of {few:?} bytes");
    assert!(many_from_elsewhere.0 < few_from_elsewhere.0 + few_from_elsewhere.0 / 8);
    for (table, length) in file.longest() {
        let before = longest.get(&table).copied().unwrap_or(0);
        assert!(length <= before + 24, "a record of {table} grew from {before} to {length} bytes");
    }
    let sizes: Vec<_> = (1..=3_090).map(|number| (number, number)).collect();
    assert!(file.sizes("latest") == sizes, "all versions are there");
    file.pool.restart();
    assert!(file.sizes("latest") == sizes, "all versions are there after a start");
}

#[test]
fn other_changes_of_a_file_with_many_versions_cost_as_much_as_of_one_with_few() {
    let mut file = Replaced::new();
    let other = file.pool.make(Ino::ROOT, "other", FileKind::Directory);
    let mut costs = Vec::new();
    for times in [30, 2_000] {
        file.replace_often("latest", times);
        let ino = file.pool.attr("app/latest").unwrap().ino;
        let folder = file.folder;
        let overwritten = file.cost(|file| file.write(ino));
        let linked = file.cost(|file| {
            let (parent, name) = (other, "link".to_owned());
            file.pool.change(Change::Link { ino, parent, name }).unwrap();
        });
        let unlinked = file.cost(|file| {
            let (parent, name) = (other, "link".to_owned());
            file.pool.change(Change::Unlink { parent, name }).unwrap();
        });
        let moved = file.cost(|file| {
            file.pool.change(rename(folder, "latest", other, "moved")).unwrap();
            file.pool.change(rename(other, "moved", folder, "latest")).unwrap();
        });
        let dropped = file.cost(|file| {
            file.pool.change(Change::DropVersion { ino, version: 7 + times / 1_000 }).unwrap();
        });
        // The file with many versions takes the place of one with few.
        file.replace_often("small", 3);
        let onto = file.cost(|file| {
            file.pool.change(rename(folder, "latest", folder, "small")).unwrap();
        });
        file.pool.change(rename(folder, "small", folder, "latest")).unwrap();
        costs.push([overwritten, linked, unlinked, moved, dropped, onto]);
    }
    for (few, many) in costs[0].iter().zip(&costs[1]) {
        assert_eq!(few.1, many.1, "records");
        assert!(many.0 < few.0 + few.0 / 4, "{many:?} instead of {few:?} bytes");
    }
}

#[test]
fn a_version_moves_at_most_once_for_each_doubling_of_its_lineage() {
    let mut file = Replaced::new();
    let mut count = 0;
    // A tournament: equally long lineages are joined in pairs.
    let names: Vec<String> = (0..64).map(|number| number.to_string()).collect();
    for name in &names {
        file.replace(file.folder, name);
        count += 1;
    }
    let folder = file.folder;
    let (_, records) = file.cost(|file| {
        let mut left = names.clone();
        while left.len() > 1 {
            for pair in left.chunks(2) {
                file.pool.change(rename(folder, &pair[0], folder, &pair[1])).unwrap();
            }
            left = left.iter().skip(1).step_by(2).cloned().collect();
        }
    });
    // Six rounds, in each of which one version of two moves: a record goes, and one comes. Each rename has a few records of its own.
    assert!(records <= 6 * 64 + 63 * 8, "{records} records");
    assert_eq!(file.pool.records(Table::Version), count);
    let last = file.sizes("63");
    assert_eq!(last.len(), count);
    file.pool.restart();
    assert_eq!(file.sizes("63"), last);
}

#[test]
fn old_versions_of_a_file_that_is_replaced_all_the_time_go_in_parts_a_minute_behind() {
    let mut file = Replaced::new();
    let pairs = vec![("versions".to_owned(), "replace:2".to_owned())];
    file.pool.change(Change::SetPolicy { ino: file.folder, pairs }).unwrap();
    file.replace_often("latest", 500);
    let mut most = 0;
    for _ in 0..70 {
        file.pool.pass(1_000);
        while file.pool.core.work(file.pool.now) {
            let (_, records) = file.cost(|file| file.pool.pass(0));
            most = records.max(most);
        }
    }
    assert_eq!(file.sizes("latest"), [(499, 499), (500, 500)]);
    assert!(most < 150, "{most} records in one commit");
}

// --- against a model

#[derive(Clone, Debug)]
enum Step {
    /// Opens a file, makes it if need be, and commits this often.
    Write(usize, usize),
    Close(usize),
    /// Closes early, and never comes back.
    Lose(usize),
    CommitAgain(usize),
    Rename(usize, usize, Existing),
    Link(usize, usize),
    Unlink(usize),
    Drop(usize, usize),
    Restart,
}

/// Names of the model: two in one folder, two in another.
const NAMES: [(&str, &str); 4] = [("one", "a"), ("one", "b"), ("two", "a"), ("two", "b")];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || 0..NAMES.len();
    let existing =
        prop::sample::select(vec![Existing::Replace, Existing::ReplaceOnCommit, Existing::Exchange]);
    let step = prop_oneof![
        8 => (name(), 0_usize..4).prop_map(|(name, times)| Step::Write(name, times)),
        5 => (0_usize..8).prop_map(Step::Close),
        1 => (0_usize..8).prop_map(Step::Lose),
        2 => (0_usize..8).prop_map(Step::CommitAgain),
        8 => (name(), name(), existing).prop_map(|(from, to, existing)| Step::Rename(from, to, existing)),
        1 => (name(), name()).prop_map(|(from, to)| Step::Link(from, to)),
        1 => name().prop_map(Step::Unlink),
        2 => (name(), 0_usize..6).prop_map(|(name, which)| Step::Drop(name, which)),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..60)
}

/// A version: its number, its size, and how far its writer got.
type Shown = (u64, u64, VersionState);

#[derive(Clone, Debug)]
struct FileOfModel {
    /// With the identity of each, its size: sizes are all different.
    versions: Vec<Shown>,
    next: u64,
}

struct Model {
    pool: Pool,
    folders: [Ino; 2],
    files: Vec<FileOfModel>,
    inos: Vec<Ino>,
    names: BTreeMap<usize, usize>,
    /// Sessions that are open: number, file, size of the version that it committed last.
    sessions: Vec<(u8, usize, Option<u64>)>,
    next_session: u8,
    next_size: u64,
}

impl Model {
    fn new() -> Self {
        let mut pool = Pool::new();
        let folders = ["one", "two"].map(|name| pool.make(Ino::ROOT, name, FileKind::Directory));
        for ino in folders {
            let pairs = vec![("versions".to_owned(), "keep".to_owned())];
            pool.change(Change::SetPolicy { ino, pairs }).unwrap();
        }
        let (files, inos, names, sessions) = (Vec::new(), Vec::new(), BTreeMap::new(), Vec::new());
        Self { pool, folders, files, inos, names, sessions, next_session: 1, next_size: 1 }
    }

    fn place(&self, name: usize) -> (Ino, &'static str) {
        (self.folders[name / 2], NAMES[name].1)
    }

    fn links(&self, file: usize) -> usize {
        self.names.values().filter(|other| **other == file).count()
    }

    /// The version of this size gets another state, wherever it is by now.
    fn end(&mut self, size: Option<u64>, state: VersionState) {
        let all = self.files.iter_mut().flat_map(|file| &mut file.versions);
        all.filter(|version| Some(version.1) == size).for_each(|version| version.2 = state);
    }

    fn commit(&mut self, at: usize) {
        let (number, file, before) = self.sessions[at];
        let size = self.next_size;
        self.next_size += 1;
        self.pool.commit_root(number, zeros(size), size).unwrap();
        let own = &mut self.files[file];
        let was_here = own.versions.iter().position(|version| Some(version.1) == before);
        match was_here {
            Some(index) => drop(own.versions.remove(index)),
            None => self.end(before, VersionState::Interrupted),
        }
        let own = &mut self.files[file];
        own.versions.push((own.next, size, VersionState::Open));
        own.next += 1;
        self.sessions[at].2 = Some(size);
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Write(name, times) => self.write(name, times),
            Step::Close(at) if at < self.sessions.len() => {
                let (number, _, size) = self.sessions.remove(at);
                self.pool.close(number);
                self.end(size, VersionState::Closed);
            }
            Step::Lose(at) if at < self.sessions.len() => {
                let (number, file, size) = self.sessions.remove(at);
                let lost = self.next_size;
                self.next_size += 1;
                let changes = self.pool.changes + 1;
                let closing = ManagerRequest::Closing { session: session(number), size: lost, changes };
                self.pool.ask(closing).unwrap();
                self.pool.interrupt(number);
                self.end(size, VersionState::Interrupted);
                let own = &mut self.files[file];
                own.versions.push((own.next, lost, VersionState::Lost));
                own.next += 1;
            }
            Step::CommitAgain(at) if at < self.sessions.len() => self.commit(at),
            Step::Rename(from, to, existing) => self.rename(from, to, existing),
            Step::Link(from, to) => {
                let (Some(file), None) = (self.names.get(&from).copied(), self.names.get(&to)) else {
                    return;
                };
                let (parent, name) = self.place(to);
                let (ino, name) = (self.inos[file], name.to_owned());
                self.pool.change(Change::Link { ino, parent, name }).unwrap();
                self.names.insert(to, file);
            }
            Step::Unlink(name) if self.names.remove(&name).is_some() => {
                let (parent, name) = self.place(name);
                self.pool.change(Change::Unlink { parent, name: name.to_owned() }).unwrap();
            }
            Step::Drop(name, which) => self.drop_version(name, which),
            Step::Restart => self.restart(),
            _ => {}
        }
    }

    fn write(&mut self, name: usize, times: usize) {
        if self.next_session == u8::MAX {
            return;
        }
        let file = self.names.get(&name).copied().unwrap_or_else(|| {
            let (parent, called) = self.place(name);
            self.inos.push(self.pool.make(parent, called, FileKind::File));
            self.files.push(FileOfModel { versions: Vec::new(), next: 1 });
            self.names.insert(name, self.files.len() - 1);
            self.files.len() - 1
        });
        self.pool.open(self.next_session, self.inos[file]);
        self.sessions.push((self.next_session, file, None));
        self.next_session += 1;
        (0..times).for_each(|_| self.commit(self.sessions.len() - 1));
    }

    fn rename(&mut self, from: usize, to: usize, existing: Existing) {
        let Some(moved) = self.names.get(&from).copied() else { return };
        let target = self.names.get(&to).copied();
        if existing == Existing::Exchange && target.is_none() {
            return;
        }
        let ((parent, name), (new_parent, new_name)) = (self.place(from), self.place(to));
        let (name, new_name) = (name.to_owned(), new_name.to_owned());
        self.pool.change(Change::Rename { parent, name, new_parent, new_name, existing }).unwrap();
        match target {
            Some(target) if target == moved => return,
            Some(target) if existing == Existing::Exchange => {
                self.names.insert(from, target);
                self.names.insert(to, moved);
                return;
            }
            Some(target) if self.links(target) == 1 && shows(&self.files[target]) => {
                let old = std::mem::take(&mut self.files[target].versions);
                let next = self.files[target].next;
                let new = &mut self.files[moved];
                if !shows(new) && existing == Existing::Replace {
                    new.versions.push((new.next, 0, VersionState::Closed));
                    new.next += 1;
                }
                new.versions.iter_mut().for_each(|version| version.0 += next - 1);
                new.versions.splice(0..0, old);
                new.next += next - 1;
            }
            _ => {}
        }
        self.names.remove(&from);
        self.names.insert(to, moved);
    }

    fn drop_version(&mut self, name: usize, which: usize) {
        let Some(file) = self.names.get(&name).copied() else { return };
        let Some((number, _, state)) = self.files[file].versions.get(which).copied() else { return };
        let kept = self.files[file].versions.iter().filter(|version| version.2 != VersionState::Lost).count();
        let may = state == VersionState::Lost || state != VersionState::Open && kept > 1;
        let dropped = self.pool.change(Change::DropVersion { ino: self.inos[file], version: number });
        assert_eq!(dropped.is_ok(), may, "{dropped:?}");
        if may {
            self.files[file].versions.remove(which);
        }
    }

    /// All clients are gone, and so is the manager for a while.
    fn restart(&mut self) {
        self.pool.restart();
        self.pool.pass(timing().client_lease_ms);
        for (_, _, size) in std::mem::take(&mut self.sessions) {
            self.end(size, VersionState::Interrupted);
        }
    }

    fn compare(&mut self) {
        for (name, file) in self.names.clone() {
            let seen = self.pool.versions(self.inos[file]);
            let seen: Vec<Shown> = seen.iter().map(|info| (info.version, info.size, info.state)).collect();
            assert_eq!(seen, self.files[file].versions, "{name}");
            let newest = seen.iter().rev().find(|version| version.2 != VersionState::Lost);
            let attr = self.pool.attr(&format!("{}/{}", NAMES[name].0, NAMES[name].1)).unwrap();
            assert_eq!((attr.version, attr.size), newest.map_or((0, 0), |version| (version.0, version.1)));
        }
    }

    /// No record is left of what is gone, and what is counted is there.
    fn compare_stored(&mut self) {
        let files: std::collections::BTreeSet<usize> = self.names.values().copied().collect();
        let versions: Vec<&Shown> = files.iter().flat_map(|file| &self.files[*file].versions).collect();
        let lost = versions.iter().filter(|version| version.2 == VersionState::Lost).count();
        assert_eq!(self.pool.records(Table::Version), versions.len());
        let sizes =
            versions.iter().filter(|version| version.2 != VersionState::Lost).map(|version| version.1);
        let (bytes, all): (u64, usize) = (sizes.sum(), versions.len() - lost);
        let status = self.pool.status();
        assert_eq!(status.logical_bytes, bytes);
        let shown = files.iter().filter_map(|file| {
            self.files[*file].versions.iter().rev().find(|version| version.2 != VersionState::Lost)
        });
        let shown: Vec<u64> = shown.map(|version| version.1).collect();
        let older = (number_of(all - shown.len()), bytes - shown.iter().sum::<u64>());
        assert_eq!((status.older_versions, status.older_bytes), older);
        assert_eq!((status.versions, status.versions_lost), (number_of(all), number_of(lost)));
    }
}

fn number_of(count: usize) -> u64 {
    u64::try_from(count).unwrap()
}

/// Whether readers see a version.
fn shows(file: &FileOfModel) -> bool {
    file.versions.iter().any(|version| version.2 != VersionState::Lost)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_writes_and_renames_leaves_the_versions_that_the_model_has(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.apply(step);
            model.compare();
        }
        model.restart();
        model.compare();
        model.compare_stored();
        model.restart();
        model.compare();
        model.compare_stored();
    }
}
