//! Versions of files that belong to no checkpoint set: how many stay by a folder's policy, and what keeps the others.

use crate::harness::{CLIENT, Pool, session};
use stdchk_model::message::manager::{Change, Existing, FileKind, ManagerRequest, VersionState};
use stdchk_model::{ErrorCode, Ino, SessionId};

/// A file whose versions have a chunk each, with copies at both benefactors.
struct Overwritten {
    pool: Pool,
    folder: Ino,
    file: Ino,
}

impl Overwritten {
    fn new(name: &str) -> Self {
        let mut pool = Pool::with_benefactors(2);
        let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
        let file = pool.make(folder, name, FileKind::File);
        Self { pool, folder, file }
    }

    /// Writes these versions.
    fn write(&mut self, numbers: std::ops::RangeInclusive<u8>, at: &[u32]) {
        for number in numbers {
            assert_eq!(self.pool.write(number, self.file, &[u32::from(number)], at), u64::from(number));
        }
    }

    fn set(&mut self, folder: Ino, versions: &str) {
        let pairs = vec![("versions".to_owned(), versions.to_owned())];
        self.pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    }

    fn settle(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.pool.pass_alive(1_000, &[0, 1]);
            while self.pool.core.work(self.pool.now) {}
        }
    }

    fn left(&mut self) -> Vec<u64> {
        self.pool.versions(self.file).iter().map(|info| info.version).collect()
    }

    fn reads(&mut self, sessions: Vec<SessionId>) {
        self.pool.ask(ManagerRequest::Reading { client: CLIENT, sessions }).unwrap();
    }
}

#[test]
fn the_newest_two_stay_and_what_was_replaced_goes_after_a_minute() {
    let mut file = Overwritten::new("state");
    file.write(1..=4, &[0, 1]);
    let before = file.pool.attr("app/state").unwrap();
    file.settle(50);
    assert_eq!(file.left(), [1, 2, 3, 4]);
    file.settle(20);
    assert_eq!(file.left(), [3, 4]);
    assert_eq!(file.pool.attr("app/state").unwrap(), before, "nothing else of it has changed");
    file.set(file.folder, "replace:1");
    file.settle(70);
    assert_eq!(file.left(), [4]);
    // After a start of the manager as well.
    file.set(file.folder, "keep");
    file.write(5..=7, &[0, 1]);
    file.settle(70);
    assert_eq!(file.left(), [4, 5, 6, 7]);
}

#[test]
fn a_writer_that_finds_no_room_waits_for_no_minute() {
    let mut file = Overwritten::new("state");
    file.write(1..=4, &[0, 1]);
    file.settle(3);
    assert_eq!(file.left(), [1, 2, 3, 4]);
    let over = file.pool.core.make_room(file.pool.now);
    file.settle(1);
    assert_eq!(file.left(), [3, 4]);
    for _ in 0..10 {
        file.settle(1);
    }
    assert_eq!(file.pool.core.efforts().0, over, "it comes to its end");
    assert_eq!((file.pool.locate(1).len(), file.pool.locate(4).len()), (0, 2), "its chunk went as well");
}

#[test]
fn what_belongs_to_a_set_or_has_a_name_in_a_folder_that_keeps_all_stays() {
    for name in ["app.N0.T1", "state"] {
        let mut file = Overwritten::new(name);
        if name == "state" {
            let keeps = file.pool.make(Ino::ROOT, "keeps", FileKind::Directory);
            file.set(keeps, "keep");
            let link = Change::Link { ino: file.file, parent: keeps, name: "link".to_owned() };
            file.pool.change(link).unwrap();
        }
        file.write(1..=4, &[0, 1]);
        file.settle(70);
        assert_eq!(file.left(), [1, 2, 3, 4], "{name}");
    }
}

#[test]
fn no_version_goes_for_others_that_lack_copies() {
    let mut file = Overwritten::new("state");
    file.write(1..=2, &[0, 1]);
    file.write(3..=5, &[0]);
    // No copies are made here.
    file.settle(70);
    assert_eq!(file.left(), [1, 2, 3, 4, 5]);
    file.write(6..=6, &[0, 1]);
    file.settle(70);
    assert_eq!(file.left(), [2, 3, 4, 5, 6], "2 and 6 are whole");
}

#[test]
fn what_is_read_stays_until_it_is_closed_or_the_reader_is_gone() {
    let mut file = Overwritten::new("state");
    file.write(1..=1, &[0, 1]);
    let open = ManagerRequest::OpenVersion { ino: file.file, version: None, client: Some(CLIENT) };
    file.pool.ask(open).unwrap();
    file.write(2..=4, &[0, 1]);
    for _ in 0..20 {
        file.reads(vec![session(1)]);
        file.settle(5);
    }
    assert_eq!(file.left(), [1, 3, 4]);
    // Also for a writer without room.
    file.pool.core.make_room(file.pool.now);
    file.settle(1);
    assert_eq!(file.left(), [1, 3, 4]);
    file.reads(Vec::new());
    file.settle(11);
    assert_eq!(file.left(), [3, 4], "it was closed");
    file.write(5..=6, &[0, 1]);
    let open = ManagerRequest::OpenVersion { ino: file.file, version: Some(3), client: Some(CLIENT) };
    file.pool.ask(open).unwrap();
    file.settle(20);
    assert_eq!(file.left(), [3, 4, 5, 6]);
    file.settle(60);
    assert_eq!(file.left(), [5, 6], "its reader has been silent for long");
}

#[test]
fn what_is_written_or_lost_is_no_version_that_another_goes_for() {
    let mut file = Overwritten::new("state");
    file.write(1..=2, &[0, 1]);
    file.pool.open(3, file.file);
    file.pool.secure(3, &[3], &[0, 1]);
    file.pool.commit(3, &[3]).unwrap();
    for number in [4, 5] {
        file.pool.open(number, file.file);
        file.pool.secure(number, &[u32::from(number)], &[0, 1]);
        file.pool.commit(number, &[u32::from(number)]).unwrap();
        file.pool.interrupt(number);
    }
    file.settle(70);
    assert_eq!(file.left(), [1, 2, 3, 4, 5]);
    assert_eq!(file.pool.versions(file.file)[2].state, VersionState::Open);
    file.pool.close(3);
    file.settle(70);
    assert_eq!(file.left(), [2, 3, 4, 5], "the newest two that are closed, and all behind them");
}

#[test]
fn a_file_of_many_names_keeps_all() {
    for (names, left) in [(63, vec![3, 4]), (64, vec![1, 2, 3, 4])] {
        let mut file = Overwritten::new("state");
        for number in 0..names {
            let (parent, name) = (file.folder, format!("name {number}"));
            file.pool.change(Change::Link { ino: file.file, parent, name }).unwrap();
        }
        file.write(1..=4, &[0, 1]);
        file.settle(70);
        assert_eq!(file.left(), left, "{names} more names");
    }
}

#[test]
fn a_file_that_another_is_moved_onto_by_mistake_stays_for_a_minute() {
    let mut file = Overwritten::new("x");
    let target = file.pool.make(file.folder, "cur", FileKind::File);
    file.pool.write(10, target, &[10], &[0, 1]);
    file.write(1..=2, &[0, 1]);
    file.settle(90);
    let (parent, name) = (file.folder, "x".to_owned());
    let (new_parent, new_name) = (file.folder, "cur".to_owned());
    file.pool
        .change(Change::Rename { parent, name, new_parent, new_name, existing: Existing::Replace })
        .unwrap();
    file.settle(50);
    assert_eq!(file.left().len(), 3, "what was there before can still be had");
    file.settle(20);
    assert_eq!(file.left().len(), 2);
}

#[test]
fn nothing_goes_within_a_minute_of_a_new_rule() {
    let mut file = Overwritten::new("state");
    file.set(file.folder, "keep");
    file.write(1..=4, &[0, 1]);
    file.settle(90);
    assert_eq!(file.left(), [1, 2, 3, 4]);
    file.set(file.folder, "replace:1");
    file.settle(50);
    assert_eq!(file.left(), [1, 2, 3, 4]);
    file.settle(20);
    assert_eq!(file.left(), [4]);
}

#[test]
fn empty_versions_take_the_place_of_no_content() {
    let mut file = Overwritten::new("state");
    file.write(1..=1, &[0, 1]);
    for number in 2..=5 {
        file.pool.write(number, file.file, &[], &[0, 1]);
    }
    file.settle(90);
    assert!(file.left().contains(&1), "{:?}", file.left());
}

#[test]
fn a_writer_without_room_is_told_what_older_versions_hold() {
    let mut file = Overwritten::new("state");
    file.set(file.folder, "keep");
    let reserve = |pool: &mut Pool| {
        [0, 1].into_iter().for_each(|number| drop(pool.beat_with_free(number, 0)));
        let request = ManagerRequest::Reserve { session: session(9), bytes: 1, avoid: Vec::new() };
        pool.ask(request).unwrap_err()
    };
    file.write(1..=1, &[0, 1]);
    file.pool.open(9, file.file);
    let failure = reserve(&mut file.pool);
    assert_eq!(failure.code, ErrorCode::NoSpace);
    assert!(!failure.to_string().contains("versions"), "{failure}");
    file.pool.close(9);
    let newest = file.pool.attr("app/state").unwrap().size;
    file.write(2..=3, &[0, 1]);
    let status = file.pool.status();
    assert_eq!((status.versions, status.older_versions, status.older_bytes), (3, 2, 2 * newest));
    file.pool.open(9, file.file);
    let failure = reserve(&mut file.pool).to_string();
    assert!(failure.contains("2 older versions of files are kept"), "{failure}");
    assert!(failure.contains("stdchk rm NAME@VERSION"), "{failure}");
}
