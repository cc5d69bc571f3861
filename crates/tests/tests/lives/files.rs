//! The files of a life as those who write them know them: what each may hold.

use std::collections::BTreeMap;

use stdchk_model::message::manager::{Change, Existing, FileKind, ManagerReply, ManagerRequest, SetState};
use stdchk_model::{Ino, MapRoot, Redundancy};

use super::content::{Number, list_of_root, root_of};
use super::world::World;

/// Names that there are.
pub const NAMES: usize = 4;

/// Something that a file may hold.
#[derive(Clone, Debug)]
struct Possible {
    root: MapRoot,
    client: usize,
    /// The client goes on asking for the commit.
    is_asked_for: bool,
}

/// A file.
#[derive(Clone, Default, Debug)]
pub struct File {
    possible: Vec<Possible>,
    /// Somebody was told that it is stored.
    pub is_acknowledged: bool,
}

impl File {
    /// Whether the newest version may be this one.
    pub fn may_be(&self, root: &MapRoot) -> bool {
        self.possible.iter().any(|possible| possible.root == *root)
    }

    /// The chunks that maps of what it may be are, where these lie in the pool.
    pub fn maps(&self) -> Vec<Number> {
        self.possible.iter().filter_map(|possible| list_of_root(&possible.root).1).collect()
    }

    fn push(&mut self, root: MapRoot, client: usize, is_asked_for: bool) {
        self.possible.push(Possible { root, client, is_asked_for });
    }

    /// The client asks for the commit of this.
    pub fn asked_for(&mut self, root: MapRoot, client: usize) {
        self.push(root, client, true);
    }

    /// The client gives up what it asked for, which may have been done all the same.
    pub fn given_up(&mut self, client: usize) {
        let own = self.possible.iter_mut().filter(|possible| possible.client == client);
        own.for_each(|possible| possible.is_asked_for = false);
    }

    /// The client is told that the file holds this now. What others still ask for may come later.
    pub fn acknowledged(&mut self, root: MapRoot, client: usize) {
        self.possible.retain(|possible| possible.client != client && possible.is_asked_for);
        self.push(root, client, false);
        self.is_acknowledged = true;
    }

    /// Another file of which versions may be there got its place: if this one was never written, it is empty.
    fn took_the_place_of_another(&mut self) {
        if !self.is_acknowledged {
            self.push(root_of(&[], false), usize::MAX, false);
        }
    }
}

/// All files.
#[derive(Clone, Default, Debug)]
pub struct Files {
    pub files: BTreeMap<Ino, File>,
    pub names: [Option<Ino>; NAMES],
    /// The folder keeps its newest complete set only.
    pub is_replaced: bool,
}

impl Files {
    pub fn has_name(&self, ino: Ino) -> bool {
        self.names.contains(&Some(ino))
    }

    pub fn get(&mut self, ino: Ino) -> &mut File {
        self.files.entry(ino).or_default()
    }
}

/// Names of two timesteps with two ranks each.
pub fn name_of(place: usize) -> String {
    format!("app.N{}.T{}", place % 2, 1 + place / 2)
}

impl World {
    /// The file of a name, which is made if there is none.
    pub fn file(&mut self, place: usize) -> Ino {
        if let Some(ino) = self.files.names[place] {
            return ino;
        }
        let ino = self.make(self.folder, &name_of(place), FileKind::File);
        self.files.names[place] = Some(ino);
        self.files.get(ino);
        self.note(format!("{} is made, {ino}", name_of(place)));
        ino
    }

    pub fn make(&mut self, parent: Ino, name: &str, kind: FileKind) -> Ino {
        let (name, target) = (name.to_owned(), String::new());
        let change = Change::Make { parent, name, kind, mode: 0o755, uid: 0, gid: 0, target };
        match self.change(&change) {
            ManagerReply::Entry(attr) => attr.ino,
            other => panic!("an answer to the making of a file: {other:?}"),
        }
    }

    pub fn unlink(&mut self) {
        let place = self.below(NAMES);
        if let Some(ino) = self.files.names[place].take() {
            self.note(format!("{} is removed, {ino}", name_of(place)));
            self.change(&Change::Unlink { parent: self.folder, name: name_of(place) });
        }
    }

    pub fn rename(&mut self) {
        let (from, to) = (self.below(NAMES), self.below(NAMES));
        let exchange = self.below(4) == 0;
        let (Some(moved), replaced) = (self.files.names[from], self.files.names[to]) else { return };
        if from == to || (exchange && replaced.is_none()) {
            return;
        }
        self.note(format!("{} becomes {}, exchanged: {exchange}", name_of(from), name_of(to)));
        let existing = if exchange { Existing::Exchange } else { Existing::Replace };
        let (parent, new_parent) = (self.folder, self.folder);
        self.change(&Change::Rename {
            parent,
            name: name_of(from),
            new_parent,
            new_name: name_of(to),
            existing,
        });
        self.files.names[to] = Some(moved);
        self.files.names[from] = replaced.filter(|_| exchange);
        if replaced.is_some() && !exchange {
            self.files.get(moved).took_the_place_of_another();
        }
    }

    /// The folder asks for another redundancy.
    pub fn set_redundancy(&mut self) {
        let redundancy = self.any_redundancy();
        self.note(format!("{redundancy} is wanted"));
        self.tell_redundancy(redundancy);
    }

    /// The folder keeps its newest complete set only, or all again.
    pub fn set_lifetime(&mut self) {
        self.files.is_replaced ^= true;
        let lifetime = if self.files.is_replaced { "replace:1" } else { "keep" };
        self.note(format!("the folder's lifetime is {lifetime}"));
        let pairs = vec![("lifetime".to_owned(), lifetime.to_owned())];
        self.change(&Change::SetPolicy { ino: self.folder, pairs });
    }

    /// The manager may have removed files of the first timestep, at this moment, if the second is complete.
    pub fn note_expired(&mut self) {
        if !self.files.is_replaced {
            return;
        }
        for place in 0..NAMES / 2 {
            let request = ManagerRequest::Lookup { parent: self.folder, name: name_of(place) };
            let Some(ino) = self.files.names[place].filter(|_| self.core.handle(request, self.now).is_err())
            else {
                continue;
            };
            self.note(format!("{} goes by its lifetime, {ino}", name_of(place)));
            self.files.names[place] = None;
            let Ok(ManagerReply::Sets(sets)) = self.ask(ManagerRequest::Sets(self.folder)) else {
                panic!("not an answer to a question for sets")
            };
            let is_there = sets.iter().any(|set| set.timestep == 2 && set.state == SetState::Complete);
            assert!(is_there, "{} goes, and no newer set is complete", name_of(place));
        }
    }

    /// At rest nothing is left that goes by its lifetime.
    pub fn check_expired(&mut self) {
        let request = ManagerRequest::Fates { folder: self.folder, lifetime: None, done: false };
        let Ok(ManagerReply::Fates(fates)) = self.ask(request) else {
            panic!("not an answer to a question for the fates of sets")
        };
        assert!(fates.iter().all(|set| !set.goes), "sets stay that should go: {fates:?}");
    }

    pub fn any_redundancy(&mut self) -> Redundancy {
        let at = self.below(self.redundancies.len());
        self.redundancies[at]
    }

    pub fn tell_redundancy(&mut self, redundancy: Redundancy) {
        self.redundancy = redundancy;
        let pairs = vec![("redundancy".to_owned(), redundancy.to_string())];
        self.change(&Change::SetPolicy { ino: self.folder, pairs });
    }
}
