//! What owners do with the files of a life: they make, rename and remove them, drop versions, and say how long sets live.

use stdchk_model::message::manager::{Change, Existing, FileKind, ManagerReply, ManagerRequest};
use stdchk_model::{ErrorCode, Ino, OpId, Redundancy};

use super::model::NAMES;
use super::plant::Plant;
use super::world::World;

/// What the names of a life look like.
pub const NAMING: &str = "app.N{rank}.T{time}";

/// Names of two timesteps, of which the second is larger as a number and smaller as a text, with two ranks each, counted from 1.
pub fn name_of(place: usize) -> String {
    format!("app.N{}.T{}", 1 + place % 2, ["9.5", "10"][place / 2])
}

impl World {
    /// The file of a name, which is made if there is none.
    pub fn file(&mut self, place: usize) -> Ino {
        if let Some(ino) = self.files.names[place] {
            return ino;
        }
        let ino = self.make(self.folder, &name_of(place), FileKind::File);
        self.files.names[place] = Some(ino);
        self.files.named(ino);
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
        self.files.named(moved);
        match replaced {
            Some(replaced) if exchange => self.files.named(replaced),
            Some(replaced) => self.files.took_the_place_of(moved, replaced),
            None => {}
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
        let is_told = self.files.is_replaced && self.plant != Plant::SetsStay;
        let lifetime = if is_told { "replace:1" } else { "keep" };
        self.note(format!("the folder's lifetime is {lifetime}"));
        let pairs = vec![("lifetime".to_owned(), lifetime.to_owned())];
        self.change(&Change::SetPolicy { ino: self.folder, pairs });
    }

    /// An owner has an older version of a file dropped.
    pub fn drop_version(&mut self) {
        let place = self.below(NAMES);
        let Some(ino) = self.files.names[place] else { return };
        let shown = self.versions_of(ino).unwrap_or_default();
        let Some(version) = self.files.may_drop(ino, &shown) else { return };
        self.operations += 1;
        let id = OpId(self.operations.to_be_bytes());
        let answer = self.ask(ManagerRequest::Change { id, change: Change::DropVersion { ino, version } });
        self.note(format!("version {version} of {ino} is to be dropped: {}", answer.is_ok()));
        match answer {
            Ok(_) => {
                let session = shown.iter().find(|one| one.number == version).map(|one| one.session);
                self.files.dropped(ino, session.unwrap());
                let left = self.versions_of(ino).unwrap_or_default();
                assert!(left.iter().all(|one| one.number != version), "{version} of {ino} was dropped");
            }
            // Its session has not ended yet as far as the manager knows.
            Err(failure) => assert_eq!(failure.code, ErrorCode::Unavailable, "{failure:?}"),
        }
    }

    /// The manager may have removed files of the first timestep at this moment, if the second is complete and younger.
    pub fn note_expired(&mut self) {
        if !self.files.is_replaced {
            return;
        }
        let may_expire = self.files.may_expire();
        for place in 0..NAMES / 2 {
            let request = ManagerRequest::Lookup { parent: self.folder, name: name_of(place) };
            let Some(ino) = self.files.names[place].filter(|_| self.core.handle(request, self.now).is_err())
            else {
                continue;
            };
            self.note(format!("{} goes by its lifetime, {ino}", name_of(place)));
            self.files.names[place] = None;
            assert!(may_expire, "{} goes, and no complete set is younger", name_of(place));
        }
    }

    /// At rest nothing is left that goes by its lifetime.
    pub fn check_expired(&mut self) {
        let is_overdue = self.files.must_expire() && self.lost.is_empty();
        assert!(!is_overdue, "sets stay that should go: {:?}", self.files);
    }

    pub fn any_redundancy(&mut self) -> Redundancy {
        let at = self.below(self.redundancies.len());
        self.redundancies[at]
    }

    pub fn tell_redundancy(&mut self, redundancy: Redundancy) {
        self.redundancy = redundancy;
        self.nearer_may_do(self.distance());
        let pairs = vec![("redundancy".to_owned(), redundancy.to_string())];
        self.change(&Change::SetPolicy { ino: self.folder, pairs });
    }
}
