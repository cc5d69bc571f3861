//! The namespace against a model that is simple enough to be seen to be right: a map from paths to what is there.

use std::collections::{BTreeMap, BTreeSet};

use crate::harness::{Pool, make, rename, timing};
use proptest::prelude::*;
use stdchk_model::message::manager::{Attr, Change, DirEntry, FileKind, ManagerReply, ManagerRequest};
use stdchk_model::{ErrorCode, Failure, Ino};

/// What the model knows: every path with the inode that it should lead to.
#[derive(Default)]
struct Model {
    paths: BTreeMap<String, (Ino, FileKind)>,
}

#[derive(Clone, Debug)]
enum Step {
    Make(String, FileKind),
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String),
    Restart,
}

fn paths() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..4).prop_map(|names| names.join("/"))
}

fn steps() -> impl Strategy<Value = Step> {
    let kinds = prop::sample::select(vec![
        FileKind::File,
        FileKind::Directory,
        FileKind::Directory,
        FileKind::Symlink,
    ]);
    prop_oneof![
        6 => (paths(), kinds).prop_map(|(path, kind)| Step::Make(path, kind)),
        1 => (paths(), paths()).prop_map(|(from, to)| Step::Link(from, to)),
        2 => paths().prop_map(Step::Unlink),
        1 => paths().prop_map(Step::Rmdir),
        4 => (paths(), paths()).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => Just(Step::Restart),
    ]
}

fn parent_of(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

impl Model {
    fn kind(&self, path: &str) -> Option<FileKind> {
        if path.is_empty() { Some(FileKind::Directory) } else { self.paths.get(path).map(|(_, kind)| *kind) }
    }

    fn below<'a>(&'a self, path: &str) -> impl Iterator<Item = &'a String> {
        let prefix = format!("{path}/");
        self.paths.keys().filter(move |other| other.starts_with(&prefix))
    }

    fn has_parent(&self, path: &str) -> bool {
        self.kind(parent_of(path).0) == Some(FileKind::Directory)
    }

    /// Whether a rename should succeed.
    fn may_rename(&self, from: &str, to: &str) -> bool {
        let Some(moved) = self.paths.get(from) else { return false };
        if !self.has_parent(to) || format!("{}/", parent_of(to).0).starts_with(&format!("{from}/")) {
            return false;
        }
        match self.paths.get(to) {
            None => true,
            Some(there) if there == moved => true,
            Some((_, FileKind::Directory)) => {
                moved.1 == FileKind::Directory && self.below(to).next().is_none()
            }
            Some(_) => moved.1 != FileKind::Directory,
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        if self.paths.get(from) == self.paths.get(to) {
            return;
        }
        let below: Vec<String> = self.below(from).cloned().collect();
        for old in below.into_iter().chain([from.to_owned()]) {
            let moved = self.paths.remove(&old).unwrap();
            self.paths.insert(format!("{to}{}", &old[from.len()..]), moved);
        }
    }
}

fn directory(pool: &mut Pool, path: &str) -> Result<(Ino, String), Failure> {
    let (parent, name) = parent_of(path);
    Ok((pool.attr(parent)?.ino, name.to_owned()))
}

/// Carries out the step in both, and compares whether they accept it.
fn apply(pool: &mut Pool, model: &mut Model, step: &Step) {
    match step {
        Step::Make(path, kind) => {
            let may = model.has_parent(path) && model.kind(path).is_none();
            let made =
                directory(pool, path).and_then(|(parent, name)| pool.change(make(parent, &name, *kind)));
            assert_eq!(made.is_ok(), may, "{step:?}: {made:?}");
            if let Ok(ManagerReply::Entry(attr)) = made {
                let numbers: BTreeSet<Ino> = model.paths.values().map(|(ino, _)| *ino).collect();
                assert!(!numbers.contains(&attr.ino));
                model.paths.insert(path.clone(), (attr.ino, *kind));
            }
        }
        Step::Link(from, to) => {
            let known = model.paths.get(from).copied().filter(|(_, kind)| *kind != FileKind::Directory);
            let may = known.is_some() && model.has_parent(to) && model.kind(to).is_none();
            let linked = pool.attr(from).and_then(|attr| {
                let (parent, name) = directory(pool, to)?;
                pool.change(Change::Link { ino: attr.ino, parent, name })
            });
            assert_eq!(linked.is_ok(), may, "{step:?}: {linked:?}");
            if let (true, Some(known)) = (may, known) {
                model.paths.insert(to.clone(), known);
            }
        }
        Step::Unlink(path) => {
            let may = model.kind(path).is_some_and(|kind| kind != FileKind::Directory);
            let gone =
                directory(pool, path).and_then(|(parent, name)| pool.change(Change::Unlink { parent, name }));
            assert_eq!(gone.is_ok(), may, "{step:?}: {gone:?}");
            if may {
                model.paths.remove(path);
            }
        }
        Step::Rmdir(path) => {
            let may = model.kind(path) == Some(FileKind::Directory) && model.below(path).next().is_none();
            let gone =
                directory(pool, path).and_then(|(parent, name)| pool.change(Change::Rmdir { parent, name }));
            assert_eq!(gone.is_ok(), may, "{step:?}: {gone:?}");
            if may {
                model.paths.remove(path);
            }
        }
        Step::Rename(from, to) => {
            let may = model.may_rename(from, to);
            let renamed = directory(pool, from).and_then(|(parent, name)| {
                let (new_parent, new_name) = directory(pool, to)?;
                pool.change(rename(parent, &name, new_parent, &new_name))
            });
            assert_eq!(renamed.is_ok(), may, "{step:?}: {renamed:?}");
            if may {
                model.rename(from, to);
            }
        }
        Step::Restart => pool.restart(),
    }
}

fn list(pool: &mut Pool, attr: &Attr) -> Vec<DirEntry> {
    match pool.ask(ManagerRequest::ReadDir { ino: attr.ino, after: None, limit: 100 }).unwrap() {
        ManagerReply::Entries(entries) => entries,
        other => panic!("{other:?}"),
    }
}

/// Compares everything that can be seen.
fn compare(pool: &mut Pool, model: &Model) {
    let mut seen = BTreeMap::new();
    let mut below = vec![String::new()];
    while let Some(path) = below.pop() {
        let attr = pool.attr(&path).unwrap();
        let entries = list(pool, &attr);
        let directories = entries.iter().filter(|entry| entry.attr.kind == FileKind::Directory).count();
        assert_eq!(usize::try_from(attr.links).unwrap(), directories + 2, "links of `{path}`");
        for entry in entries {
            let child = if path.is_empty() { entry.name } else { format!("{path}/{}", entry.name) };
            if entry.attr.kind == FileKind::Directory {
                below.push(child.clone());
            }
            seen.insert(child, (entry.attr.ino, entry.attr.kind));
        }
    }
    assert_eq!(seen, model.paths);
    // What writers from before a restart may still hold is kept as long as they may come back.
    pool.pass(timing().client_lease_ms);
    let inodes: BTreeSet<Ino> = model.paths.values().map(|(ino, _)| *ino).collect();
    assert_eq!(
        pool.status().space.inodes,
        u64::try_from(inodes.len() + 1).unwrap(),
        "no inode is left behind"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_changes_does_what_the_model_says(steps in prop::collection::vec(steps(), 1..60)) {
        let mut pool = Pool::new();
        let mut model = Model::default();
        for step in &steps {
            apply(&mut pool, &mut model, step);
        }
        compare(&mut pool, &model);
        pool.restart();
        compare(&mut pool, &model);
    }
}

#[test]
fn refusals_tell_what_is_wrong() {
    let mut pool = Pool::new();
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let file = pool.make(folder, "file", FileKind::File);
    let mut code = |change| pool.change(change).unwrap_err().code;
    let place = |parent, name: &str| (parent, name.to_owned());
    let (parent, name) = place(Ino::ROOT, "app");
    assert_eq!(code(Change::Rmdir { parent, name }), ErrorCode::NotEmpty);
    let (parent, name) = place(Ino::ROOT, "app");
    assert_eq!(code(Change::Unlink { parent, name }), ErrorCode::IsADirectory);
    let (parent, name) = place(folder, "file");
    assert_eq!(code(Change::Rmdir { parent, name }), ErrorCode::NotADirectory);
    assert_eq!(code(make(folder, "file", FileKind::File)), ErrorCode::Exists);
    assert_eq!(code(make(file, "x", FileKind::File)), ErrorCode::NotADirectory);
    assert_eq!(code(make(folder, "..", FileKind::File)), ErrorCode::Invalid);
    assert_eq!(code(make(folder, &"n".repeat(256), FileKind::File)), ErrorCode::TooLong);
    assert_eq!(code(make(Ino(999), "x", FileKind::File)), ErrorCode::NotFound);
    assert_eq!(code(rename(Ino::ROOT, "app", folder, "app")), ErrorCode::Loop);
    assert_eq!(code(rename(folder, "file", Ino::ROOT, "app")), ErrorCode::IsADirectory);
    let (parent, name) = place(folder, "again");
    assert_eq!(code(Change::Link { ino: folder, parent, name }), ErrorCode::IsADirectory);
}

#[test]
fn a_directory_changes_its_times_with_its_entries_and_never_backwards() {
    let mut pool = Pool::new();
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let mut last = pool.attr("app").unwrap().mtime;
    let unlink = Change::Unlink { parent: folder, name: "b".to_owned() };
    pool.now.wall = 0; // The machine's clock is set back.
    for change in [make(folder, "a", FileKind::File), rename(folder, "a", folder, "b"), unlink] {
        pool.change(change).unwrap();
        let attr = pool.attr("app").unwrap();
        assert!(attr.mtime > last && attr.ctime == attr.mtime, "{attr:?}");
        last = attr.mtime;
    }
}

#[test]
fn long_directories_are_listed_in_parts() {
    let mut pool = Pool::new();
    for number in 0..25 {
        pool.make(Ino::ROOT, &format!("{number:02}"), FileKind::File);
    }
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let request = ManagerRequest::ReadDir { ino: Ino::ROOT, after: after.clone(), limit: 10 };
        let ManagerReply::Entries(entries) = pool.ask(request).unwrap() else { panic!() };
        names.extend(entries.iter().map(|entry| entry.name.clone()));
        if entries.len() < 10 {
            break;
        }
        after = names.last().cloned();
    }
    assert_eq!(names, (0..25).map(|number| format!("{number:02}")).collect::<Vec<_>>());
}

#[test]
fn an_exchange_swaps_two_names_of_any_kind() {
    let mut pool = Pool::new();
    let folder = pool.make(Ino::ROOT, "d", FileKind::Directory);
    let inner = pool.make(folder, "inner", FileKind::File);
    let file = pool.make(Ino::ROOT, "f", FileKind::File);
    let exchange = |name: &str, new_parent, new_name: &str| Change::Rename {
        parent: Ino::ROOT,
        name: name.to_owned(),
        new_parent,
        new_name: new_name.to_owned(),
        existing: stdchk_model::message::manager::Existing::Exchange,
    };
    pool.change(exchange("d", Ino::ROOT, "f")).unwrap();
    assert_eq!((pool.attr("d").unwrap().ino, pool.attr("f/inner").unwrap().ino), (file, inner));
    assert_eq!(pool.change(exchange("f", folder, "inner")).unwrap_err().code, ErrorCode::Loop);
    assert_eq!(pool.change(exchange("d", Ino::ROOT, "no")).unwrap_err().code, ErrorCode::NotFound);
}
