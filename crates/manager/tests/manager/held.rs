//! States that somebody may return to: what they name stays, and nothing else does (I4).

use stdchk_manager::store::{MemoryStore, Table};
use stdchk_model::message::benefactor::Command;
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, ErrorCode, Ino};

use crate::harness::{CHUNK_LENGTH, Pool};

/// Time after which nothing is young any more, milliseconds.
const AGE_MS: u64 = 62_000;
const HOUR_MS: u64 = 3_600_000;
const BOTH: [u32; 2] = [0, 1];

struct World {
    pool: Pool,
    files: u8,
}

impl World {
    fn new() -> Self {
        Self { pool: Pool::with_benefactors(2), files: 0 }
    }

    /// A file of these chunks at both benefactors.
    fn write(&mut self, name: &str, chunks: &[u32]) -> Ino {
        let ino = self.pool.make(Ino::ROOT, name, FileKind::File);
        self.files += 1;
        self.pool.write(self.files, ino, chunks, &BOTH);
        ino
    }

    fn remove(&mut self, name: &str) {
        self.pool.change(Change::Unlink { parent: Ino::ROOT, name: name.to_owned() }).unwrap();
    }

    /// Registers a backup; the commit that it shows, and the store at that commit.
    fn back_up(&mut self, keep_ms: u64) -> (u64, MemoryStore) {
        let commit = self.pool.core.register_backup(keep_ms).unwrap();
        self.pool.status();
        let copy = self.pool.store.copy();
        assert_eq!(stdchk_manager::store::Store::sequence(&copy), commit, "the copy knows of itself");
        (commit, copy)
    }

    fn release(&mut self, commit: u64) {
        assert_eq!(self.pool.ask(ManagerRequest::ReleaseBackup { commit }), Ok(ManagerReply::Done));
    }

    /// Chunks of 1 to 9 that can be read, after all went that may go.
    fn left(&mut self) -> Vec<u32> {
        self.pool.pass_alive(AGE_MS, &BOTH);
        self.pool.collect().unwrap();
        self.there()
    }

    fn there(&mut self) -> Vec<u32> {
        (1..10).filter(|number| !self.pool.locate(*number).is_empty()).collect()
    }

    /// The manager is started again, and benefactors say what they have, in the lives that heartbeats come from.
    fn restart(&mut self, chunks: &[u32]) {
        self.pool.restart();
        self.report(chunks);
    }

    fn report(&mut self, chunks: &[u32]) {
        for number in BOTH {
            let life = stdchk_model::Incarnation(u64::from(number) + 1);
            self.pool.register_as(Some(number), life, None);
            self.pool.inventory_as(number, life, chunks).unwrap();
        }
    }

    /// What each registered backup holds, chunks.
    fn held(&mut self) -> Vec<u64> {
        self.pool.status().held.backups.iter().map(|backup| backup.chunks).collect()
    }
}

#[test]
fn what_a_registered_backup_names_stays_until_it_is_given_up_and_nothing_else_does() {
    let mut world = World::new();
    world.write("before", &[1, 2]);
    let (commit, _) = world.back_up(HOUR_MS);
    world.write("after", &[3]);
    world.write("both", &[2, 4]);
    ["before", "after"].into_iter().for_each(|name| world.remove(name));
    assert_eq!(world.left(), [1, 2, 4], "3 was written behind the backup");
    assert_eq!(world.held(), [1], "2 is referred to");
    world.remove("both");
    assert_eq!(world.left(), [1, 2]);
    let held = world.pool.status().held;
    assert_eq!((held.chunks, held.bytes), (2, 4 * u64::from(CHUNK_LENGTH)), "both copies count");
    // What is written again is no longer held for the backup alone.
    world.write("again", &[1]);
    assert_eq!((world.held(), world.left()), (vec![1], vec![1, 2]));
    world.remove("again");
    assert_eq!((world.held(), world.left()), (vec![2], vec![1, 2]), "the backup names it still");
    let again = ManagerRequest::ReleaseBackup { commit };
    world.release(commit);
    assert_eq!(world.left(), [0; 0]);
    assert_eq!(world.pool.ask(again).unwrap_err().code, ErrorCode::NotFound);
    assert_eq!(world.pool.records(Table::Backup), 0);
}

#[test]
fn what_a_backup_names_stays_though_it_goes_before_any_benefactor_says_that_it_has_it() {
    let mut world = World::new();
    world.write("before", &[1]);
    world.pool.restart();
    let (commit, _) = world.back_up(HOUR_MS);
    world.remove("before");
    world.report(&[1]);
    assert_eq!(world.left(), [1]);
    world.release(commit);
    assert_eq!(world.left(), [0; 0]);
}

#[test]
fn of_several_backups_each_keeps_what_it_names() {
    let mut world = World::new();
    world.write("a", &[1]);
    let (first, _) = world.back_up(HOUR_MS);
    world.write("b", &[2]);
    let (second, _) = world.back_up(HOUR_MS);
    world.write("c", &[3]);
    let (third, _) = world.back_up(HOUR_MS);
    world.remove("a");
    world.remove("b");
    let (fourth, _) = world.back_up(HOUR_MS);
    world.remove("c");
    assert_eq!(world.left(), [1, 2, 3]);
    assert_eq!(world.held(), [1, 2, 3, 1]);
    world.release(third);
    assert_eq!((world.left(), world.held()), (vec![1, 2, 3], vec![1, 2, 1]));
    world.release(fourth);
    assert_eq!((world.left(), world.held()), (vec![1, 2], vec![1, 2]), "only the third and fourth named 3");
    world.release(first);
    world.release(second);
    assert_eq!((world.left(), world.held()), (vec![], vec![]), "the list of the first was empty");
}

#[test]
fn a_registered_backup_survives_starts_and_ends_by_the_managers_life() {
    let mut world = World::new();
    world.write("a", &[1]);
    let (commit, _) = world.back_up(10 * AGE_MS);
    world.remove("a");
    world.write("b", &[2]);
    assert_eq!(world.left(), [1, 2]);
    // Its past is unknown to the next start.
    world.restart(&[1, 2]);
    world.pool.now.wall += 365 * 24 * 3_600_000_000_000;
    assert_eq!(world.left(), [1, 2]);
    world.remove("b");
    assert_eq!(world.left(), [1, 2], "2 may have been there before the start, as far as is known");
    assert_eq!(world.pool.status().held.backups[0].commit, commit);
    (0..10).for_each(|_| drop(world.left()));
    assert_eq!(world.left(), [0; 0]);
    assert_eq!((world.held(), world.pool.records(Table::Backup)), (vec![], 0));
}

#[test]
fn a_backup_that_was_put_back_finds_all_that_it_lists_and_what_is_newer_goes() {
    let mut world = World::new();
    world.write("a", &[1]);
    world.write("b", &[2]);
    let (_, copy) = world.back_up(HOUR_MS);
    world.remove("a");
    world.write("c", &[3]);
    assert_eq!(world.left(), [1, 2, 3]);
    for _ in 0..2 {
        world.pool.store = copy.copy();
        world.restart(&[1, 2, 3]);
        assert_eq!(world.left(), [1, 2], "the backup names them, and not 3");
        // It knows of itself, so it can be put back once more.
        world.remove("b");
        assert_eq!(world.left(), [1, 2]);
    }
}

#[test]
fn what_an_inventory_brings_up_may_be_named_by_a_backup_even_where_it_was_stored_anew() {
    let mut world = World::new();
    world.write("a", &[1]);
    world.back_up(HOUR_MS);
    world.remove("a");
    // Nobody has it any more, as far as is known; then it is written again at one, and the other is back with what it had.
    BOTH.into_iter().for_each(|number| drop(world.pool.beat(number, &[], &[1])));
    assert_eq!(world.there(), [0; 0]);
    let ino = world.pool.make(Ino::ROOT, "again", FileKind::File);
    world.pool.write(77, ino, &[1], &[0]);
    world.pool.inventory_as(1, stdchk_model::Incarnation(2), &[1]).unwrap();
    world.remove("again");
    assert_eq!(world.left(), [1]);
}

#[test]
fn what_was_never_committed_is_not_held() {
    let mut world = World::new();
    world.write("a", &[1]);
    world.back_up(HOUR_MS);
    let ino = world.pool.make(Ino::ROOT, "never", FileKind::File);
    world.pool.open(88, ino);
    world.pool.secure(88, &[2], &BOTH);
    world.pool.close(88);
    assert_eq!(world.left(), [1]);
}

#[test]
fn nothing_goes_that_a_recovery_from_keepers_may_bring_back() {
    let mut world = World::new();
    world.write("a", &[1]);
    world.pool.core.keepers_have(Some(0));
    world.remove("a");
    assert_eq!((world.left(), world.left()), (vec![1], vec![1]));
    let before = stdchk_manager::store::Store::sequence(&world.pool.store);
    let stopped = world.pool.status().held.stopped.unwrap();
    assert!(stopped.for_ms >= 60_000 && stopped.why.contains("keep the manager's store"), "{stopped:?}");
    world.pool.core.keepers_have(Some(before));
    assert_eq!(world.left(), [0; 0]);
    assert_eq!(world.pool.status().held.stopped, None);
    world.pool.core.keepers_have(None);
    world.write("b", &[2]);
    world.remove("b");
    assert_eq!(world.left(), [0; 0]);
}

#[test]
fn what_a_backup_names_is_copied_when_a_benefactor_is_lost() {
    let mut world = World { pool: Pool::with_benefactors(3), files: 0 };
    world.write("a", &[1]);
    BOTH.into_iter().for_each(|number| drop(world.pool.beat(number, &[1], &[])));
    world.back_up(HOUR_MS);
    world.remove("a");
    assert_eq!(world.left(), [1]);
    let is_told = |world: &mut World| {
        world.pool.pass(1_000);
        drop(world.pool.beat(2, &[], &[]));
        world.pool.beat(0, &[], &[]).iter().any(|command| matches!(command, Command::Make(_)))
    };
    assert!((0..32).any(|_| is_told(&mut world)), "nobody is told to make a copy");
    world.pool.beat(2, &[1], &[]);
    assert_eq!(world.pool.locate(1), [0, 2]);
    // A benefactor that has the only copy isn't given up unasked.
    let lone = ManagerRequest::Forget { id: BenefactorId(1), force: false };
    assert_eq!(world.pool.ask(lone), Ok(ManagerReply::Done));
}
