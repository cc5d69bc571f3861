//! Lifetimes of checkpoint sets: what goes by a folder's policy, and that nothing goes that a job may need to restart.

use std::time::{Duration, Instant};

use crate::harness::{CLIENT, Pool, empty_load, number};
use stdchk_manager::store::Table;
use stdchk_model::message::benefactor::{BenefactorLoad, OwnerWish};
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest, SetFate, SetState};
use stdchk_model::{BenefactorId, ErrorCode, Ino};

/// A folder whose sets have one file for each rank, each of one chunk with two copies.
struct Job {
    pool: Pool,
    folder: Ino,
    ranks: u32,
    /// The chunk of the next file.
    chunk: u32,
}

impl Job {
    fn new(ranks: u32) -> Self {
        let mut pool = Pool::with_benefactors(2);
        let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
        Self { pool, folder, ranks, chunk: 0 }
    }

    fn with(ranks: u32, lifetime: &str) -> Self {
        let mut job = Self::new(ranks);
        job.set("lifetime", lifetime);
        job
    }

    fn set(&mut self, key: &str, value: &str) {
        let pairs = vec![(key.to_owned(), value.to_owned())];
        self.pool.change(Change::SetPolicy { ino: self.folder, pairs }).unwrap();
    }

    /// Writes a file of these chunks' holders; its chunk.
    fn write(&mut self, name: &str, at: &[u32]) -> u32 {
        let path = format!("app/{name}");
        let ino = match self.pool.attr(&path) {
            Ok(attr) => attr.ino,
            Err(_) => self.pool.make(self.folder, name, FileKind::File),
        };
        self.chunk += 1;
        self.pool.write(1, ino, &[self.chunk], at);
        self.chunk
    }

    /// Writes a whole set with copies at these benefactors; its chunks.
    fn checkpoint_at(&mut self, timestep: u64, at: &[u32]) -> Vec<u32> {
        (0..self.ranks).map(|rank| self.write(&format!("app.N{rank}.T{timestep}"), at)).collect()
    }

    fn checkpoint(&mut self, timestep: u64) -> Vec<u32> {
        self.checkpoint_at(timestep, &[0, 1])
    }

    /// Lets the manager do what is due, after the folder has rested.
    fn settle(&mut self) {
        self.settle_ms(20_000);
    }

    fn settle_ms(&mut self, ms: u64) {
        for _ in 0..ms / 1_000 {
            self.pool.pass_alive(1_000, &[0, 1]);
            while self.pool.core.work(self.pool.now) {}
            self.pool.ask(ManagerRequest::KeepAlive(CLIENT)).unwrap();
        }
    }

    /// The timesteps that are there, oldest first.
    fn left(&mut self) -> Vec<u64> {
        match self.pool.ask(ManagerRequest::Sets(self.folder)).unwrap() {
            ManagerReply::Sets(sets) => sets.iter().rev().map(|set| number(set.timestep)).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn state(&mut self, timestep: u64) -> SetState {
        match self.pool.ask(ManagerRequest::Sets(self.folder)).unwrap() {
            ManagerReply::Sets(sets) => {
                sets.iter().find(|set| set.timestep == timestep.into()).unwrap().state
            }
            other => panic!("{other:?}"),
        }
    }

    fn fates(&mut self, lifetime: Option<&str>, done: bool) -> Vec<SetFate> {
        let lifetime = lifetime.map(str::to_owned);
        match self.pool.ask(ManagerRequest::Fates { folder: self.folder, lifetime, done }).unwrap() {
            ManagerReply::Fates(fates) => fates,
            other => panic!("{other:?}"),
        }
    }

    fn seal(&mut self, timestep: u64, sealed: bool) -> Result<ManagerReply, stdchk_model::Failure> {
        self.pool.change(Change::Seal { ino: self.folder, timestep: timestep.into(), sealed })
    }

    /// Restarts the manager; the benefactors come back with these chunks.
    fn restart_with(&mut self, chunks: &[u32]) {
        self.pool.restart();
        for number in [0, 1] {
            self.pool.register_only(Some(number));
            self.pool.inventory(number, chunks);
        }
    }

    /// Passes time after a restart, in which the benefactors are heard of in their new lives.
    fn settle_restarted(&mut self, ms: u64) {
        let last = self.pool.last_life().0;
        for _ in 0..ms / 1_000 {
            self.pool.pass(1_000);
            for number in [0, 1] {
                let life = stdchk_model::Incarnation(last - 1 + u64::from(number));
                self.pool.beat_as(number, life, &[], &[]).unwrap();
            }
            while self.pool.core.work(self.pool.now) {}
        }
        self.pool.status();
    }
}

#[test]
fn the_newest_complete_sets_stay_and_the_others_go_as_new_ones_come() {
    let mut job = Job::with(2, "replace:2");
    for timestep in 1..=5 {
        job.checkpoint(timestep);
    }
    job.settle();
    assert_eq!(job.left(), [4, 5]);
    job.write("app.N0.T6", &[0, 1]);
    job.settle();
    assert_eq!(job.left(), [4, 5, 6], "6 is not complete");
    job.write("app.N1.T6", &[0, 1]);
    job.settle();
    assert_eq!(job.left(), [5, 6]);
    assert_eq!(job.pool.records(Table::Version), 4);
}

#[test]
fn nothing_goes_before_the_newest_set_has_all_its_copies_and_they_are_on_line() {
    let mut job = Job::with(2, "replace:1");
    job.checkpoint(1);
    let chunks = job.checkpoint_at(2, &[0]);
    job.settle();
    assert_eq!(job.left(), [1, 2]);
    assert_eq!(job.fates(None, false)[1].reason, "the newest complete set");
    // One copy is missing still.
    job.pool.beat(1, &chunks[..1], &[]);
    job.settle();
    assert_eq!(job.left(), [1, 2]);
    job.pool.beat(1, &chunks, &[]);
    job.settle();
    assert_eq!(job.left(), [2]);
}

#[test]
fn damage_of_the_newest_set_keeps_the_one_before_it() {
    let mut job = Job::with(2, "keep");
    (1..=3).for_each(|timestep| drop(job.checkpoint(timestep)));
    let newest = job.checkpoint(4);
    job.pool.beat(0, &[], &newest[..1]);
    job.set("lifetime", "replace:1");
    job.settle();
    assert_eq!(job.left(), [3, 4]);
    job.pool.beat(0, &newest[..1], &[]);
    job.settle();
    assert_eq!(job.left(), [4]);
}

#[test]
fn what_is_lost_between_two_steps_stops_the_removal() {
    let mut job = Job::with(2, "keep");
    for timestep in 1..=100 {
        job.checkpoint(timestep);
    }
    let newest = job.checkpoint(101);
    job.set("lifetime", "replace:1");
    while job.left().len() > 60 {
        assert!(job.pool.core.work(job.pool.now));
    }
    let before = job.left();
    job.pool.beat(0, &[], &newest[..1]);
    job.settle();
    // The set before takes the place of what is damaged.
    assert_eq!(job.left(), [100, 101], "{before:?}");
    let mut job = Job::with(2, "keep");
    for timestep in 1..=100 {
        job.checkpoint(timestep);
    }
    job.set("lifetime", "replace:1");
    while job.left().len() > 60 {
        assert!(job.pool.core.work(job.pool.now));
    }
    job.pool.change(Change::Unlink { parent: job.folder, name: "app.N0.T100".to_owned() }).unwrap();
    job.settle();
    assert_eq!(job.left(), [99, 100], "its owner removed a file of the newest one");
}

/// What makes benefactor 0 one to which nobody trusts what is there.
const DOUBTS: [fn(&mut Pool); 3] = [
    |pool| pool.going.extend([0]),
    |pool| pool.failed.extend([0]),
    |pool| pool.wishes.extend([(0, OwnerWish::Damaged)]),
];

#[test]
fn a_set_where_it_is_not_to_stay_takes_the_place_of_none() {
    for doubt in DOUBTS {
        let mut job = Job::new(1);
        [("ranks", "1"), ("redundancy", "replicate:1"), ("lifetime", "replace:1")]
            .into_iter()
            .for_each(|(key, value)| job.set(key, value));
        job.checkpoint_at(1, &[1]);
        doubt(&mut job.pool);
        let newest = job.checkpoint_at(2, &[0]);
        job.pool.beat(0, &newest, &[]);
        job.settle();
        assert_eq!(job.left(), [1, 2], "the newest one lies where it is not to stay");
        job.pool.beat(1, &newest, &[]);
        job.settle();
        assert_eq!(job.left(), [2]);
    }
}

#[test]
fn where_sets_are_no_longer_to_stay_stops_the_removal_of_others() {
    for doubt in DOUBTS {
        let mut job = hundred_that_go();
        doubt(&mut job.pool);
        job.pool.beat(0, &[], &[]);
        let before = job.left();
        job.settle();
        assert_eq!(job.left(), before, "each has but one copy that stays");
    }
}

#[test]
fn a_set_that_is_left_alone_is_still_known_to_be_complete() {
    let mut job = Job::with(3, "replace:1");
    (1..=3).for_each(|timestep| drop(job.checkpoint(timestep)));
    job.settle();
    // Whether 3 is complete nothing tells but 1 and 2: nobody declared how many ranks there are.
    assert_eq!((job.left(), job.state(3)), (vec![3], SetState::Complete));
    job.write("app.N0.T4", &[0, 1]);
    job.settle();
    assert_eq!((job.left(), job.state(4)), (vec![3, 4], SetState::Incomplete));
    job.restart_with(&(0..100).collect::<Vec<_>>());
    assert_eq!((job.state(3), job.state(4)), (SetState::Complete, SetState::Incomplete));
    for rank in 1..3 {
        job.write(&format!("app.N{rank}.T4"), &[0, 1]);
    }
    job.settle_restarted(60_000);
    assert_eq!((job.left(), job.state(4)), (vec![4], SetState::Complete));
}

#[test]
fn sets_get_old_by_the_time_for_which_the_manager_lives_and_not_by_the_calendar() {
    let mut job = Job::with(1, "purge:100s");
    job.set("naming", "app.N{rank}.T{step}");
    job.set("ranks", "1");
    job.checkpoint(1);
    job.settle_ms(30_000);
    job.checkpoint(2);
    job.settle_ms(60_000);
    // A calendar that is years ahead.
    job.pool.now.wall += 400_000_000_000_000_000;
    job.settle_ms(5_000);
    assert_eq!(job.left(), [1, 2]);
    assert!(job.fates(None, false)[1].reason.starts_with("stays for "), "{:?}", job.fates(None, false));
    job.settle_ms(15_000);
    assert_eq!(job.left(), [2], "1 is old");
    job.settle_ms(200_000);
    assert_eq!(job.left(), [2], "2 is old, and the newest");
}

#[test]
fn the_time_for_which_the_manager_has_lived_survives_it_to_a_minute() {
    let mut job = Job::with(1, "purge:200s");
    job.set("ranks", "1");
    job.checkpoint(1);
    job.checkpoint(2);
    job.settle_ms(150_000);
    job.restart_with(&[1, 2]);
    job.settle_restarted(40_000);
    assert_eq!(job.left(), [1, 2], "at most a minute of the first life is missing");
    job.settle_restarted(80_000);
    assert_eq!(job.left(), [2]);
}

#[test]
fn every_so_many_timesteps_stay_and_so_do_sealed_sets() {
    let mut job = Job::with(2, "replace:1 every:4");
    (1..=3).for_each(|timestep| drop(job.checkpoint(timestep)));
    job.seal(2, true).unwrap();
    (4..=9).for_each(|timestep| drop(job.checkpoint(timestep)));
    job.settle();
    assert_eq!(job.left(), [2, 4, 8, 9]);
    let refused = job.seal(7, true).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotFound, "{refused}");
    let chunks: Vec<u32> = (0..100).collect();
    job.restart_with(&chunks);
    job.settle_restarted(60_000);
    assert_eq!(job.left(), [2, 4, 8, 9], "a seal survives the manager");
    job.seal(2, false).unwrap();
    job.settle_restarted(20_000);
    assert_eq!(job.left(), [4, 8, 9]);
}

#[test]
fn files_that_are_written_and_what_was_written_since_stay() {
    let mut job = Job::with(2, "keep");
    (1..=4).for_each(|timestep| drop(job.checkpoint(timestep)));
    let written = job.pool.attr("app/app.N0.T2").unwrap().ino;
    job.pool.open(9, written);
    // A run from the beginning writes timestep 1 anew.
    job.checkpoint(1);
    job.set("lifetime", "replace:1");
    job.settle();
    assert_eq!(job.left(), [1, 2, 4]);
    assert_eq!(job.state(2), SetState::Complete, "all its files stay, not only the one that is written");
    job.pool.close(9);
    job.settle();
    assert_eq!(job.left(), [1, 4]);
    job.checkpoint(5);
    job.settle();
    assert_eq!(job.left(), [5]);
}

#[test]
fn other_files_other_names_and_other_folders_stay() {
    let mut job = Job::with(2, "replace:1");
    job.write("notes.txt", &[0, 1]);
    (1..=2).for_each(|timestep| drop(job.checkpoint(timestep)));
    let first = job.pool.attr("app/app.N0.T1").unwrap().ino;
    let kept = job.pool.make(Ino::ROOT, "kept", FileKind::Directory);
    let (parent, name) = (kept, "golden".to_owned());
    job.pool.change(Change::Link { ino: first, parent, name }).unwrap();
    job.checkpoint(3);
    job.settle();
    assert_eq!(job.left(), [3]);
    assert_eq!(job.pool.attr("kept/golden").unwrap().ino, first);
    assert_eq!(job.pool.attr("kept/golden").unwrap().version, 1);
    job.pool.attr("app/notes.txt").unwrap();
}

/// An earlier run came to timestep 100, a run from the beginning to 3.
fn run_from_the_beginning(ranks: u32) -> Job {
    let mut job = Job::with(ranks, "replace:1");
    job.set("ranks", &ranks.to_string());
    job.checkpoint(100);
    (1..=3).for_each(|timestep| drop(job.checkpoint(timestep)));
    job
}

#[test]
fn a_torn_or_partly_written_set_of_an_earlier_run_takes_no_place_of_a_later_run() {
    let mut job = run_from_the_beginning(1);
    let last = job.pool.attr("app/app.N0.T100").unwrap().ino;
    job.pool.open(9, last);
    job.pool.secure(9, &[70], &[0, 1]);
    job.pool.commit(9, &[70]).unwrap();
    job.settle();
    assert_eq!(job.left(), [1, 2, 3, 100]);
    let request = ManagerRequest::CloseSession { session: crate::harness::session(9), interrupted: true };
    job.pool.ask(request).unwrap();
    job.settle();
    assert_eq!(job.left(), [1, 2, 3, 100], "the newest set is still that of the earlier run");
    let mut job = run_from_the_beginning(2);
    job.write("app.N0.T100", &[0, 1]);
    job.settle();
    assert_eq!(job.left(), [1, 2, 3, 100], "one rank of two is of this run");
    job.write("app.N1.T100", &[0, 1]);
    job.settle();
    assert_eq!(job.left(), [100]);
}

#[test]
fn another_name_for_a_set_of_an_earlier_run_takes_no_place_of_a_later_run() {
    let mut job = run_from_the_beginning(1);
    let (folder, last) = (job.folder, job.pool.attr("app/app.N0.T100").unwrap().ino);
    let kept = job.pool.make(Ino::ROOT, "kept", FileKind::Directory);
    job.pool.change(Change::Link { ino: last, parent: kept, name: "golden".to_owned() }).unwrap();
    job.settle();
    assert_eq!(job.left(), [1, 2, 3, 100]);
    job.pool.change(crate::harness::rename(folder, "app.N0.T100", kept, "away")).unwrap();
    job.pool.change(crate::harness::rename(kept, "away", folder, "app.N0.T100")).unwrap();
    job.settle();
    assert_eq!(job.left(), [1, 2, 3, 100]);
}

/// A folder of sets with another one in it; the naming of each, and the files of the inner one.
fn nested(naming: &str, inner: &str, files: &[&str]) -> Job {
    let mut job = Job::with(1, "replace:1");
    job.set("naming", naming);
    job.set("ranks", "1");
    let run = job.pool.make(job.folder, "run", FileKind::Directory);
    let pairs = vec![("naming".to_owned(), inner.to_owned())];
    job.pool.change(Change::SetPolicy { ino: run, pairs }).unwrap();
    for step in 1..=3 {
        let own = job.pool.make(job.folder, &format!("step{step}"), FileKind::Directory);
        let below = files.get(step - 1).map(|name| (run, *name));
        for (parent, name) in std::iter::once((own, "data")).chain(below) {
            let file = job.pool.make(parent, name, FileKind::File);
            job.chunk += 1;
            job.pool.write(1, file, &[job.chunk], &[0, 1]);
        }
    }
    job.settle();
    job
}

#[test]
fn a_folder_below_has_its_own_sets_and_empty_folders_go_with_theirs() {
    let mut job = nested("step{step}/data", "data.{step}", &["data.1", "data.2"]);
    for gone in ["app/step1", "app/step2", "app/run/data.1"] {
        assert_eq!(job.pool.attr(gone).unwrap_err().code, ErrorCode::NotFound, "{gone}");
    }
    for left in ["app/step3/data", "app/run/data.2"] {
        job.pool.attr(left).unwrap();
    }
}

#[test]
fn a_file_that_two_folders_count_on_stays() {
    let files = ["data.1", "data.2", "data.3"];
    let mut job = nested("step{step}/data run/data.{step}", "data.{step}", &files);
    for left in ["step1/data", "step2/data", "run/data.1", "run/data.2"] {
        job.pool.attr(&format!("app/{left}")).unwrap();
    }
    let fates = job.fates(None, false);
    assert!(fates[1..].iter().all(|fate| fate.reason.contains("another folder")), "{fates:?}");
}

#[test]
fn versions_are_the_timesteps_of_a_name_without_one() {
    let mut job = Job::with(1, "replace:2");
    job.set("naming", "state.cpt");
    for _ in 0..5 {
        job.write("state.cpt", &[0, 1]);
    }
    let ino = job.pool.attr("app/state.cpt").unwrap().ino;
    job.settle();
    let versions = |job: &mut Job| -> Vec<u64> {
        job.pool.versions(ino).iter().map(|version| version.version).collect()
    };
    assert_eq!(versions(&mut job), [4, 5]);
    // What is being written takes nobody's place.
    job.pool.open(7, ino);
    job.pool.secure(7, &[70], &[0, 1]);
    job.pool.commit(7, &[70]).unwrap();
    job.settle();
    assert_eq!(versions(&mut job), [4, 5, 6]);
    job.pool.close(7);
    job.settle();
    assert_eq!(versions(&mut job), [5, 6]);
}

#[test]
fn a_job_that_is_done_leaves_its_last_set_and_the_folder_goes_on_as_before() {
    let mut job = Job::new(2);
    let refused = job.pool.change(Change::Finish { ino: job.folder }).unwrap_err();
    assert_eq!(refused.code, ErrorCode::NotFound, "{refused}");
    (1..=5).for_each(|timestep| drop(job.checkpoint(timestep)));
    job.seal(2, true).unwrap();
    let fates = job.fates(None, true);
    let going: Vec<u64> = fates.iter().filter(|fate| fate.goes).map(|fate| number(fate.timestep)).collect();
    assert_eq!(going, [4, 3, 1]);
    assert_eq!((fates[1].files, fates[1].bytes), (2, 2000));
    job.settle();
    assert_eq!(job.left().len(), 5, "to ask changes nothing");
    // Its last set gets its copies later, and the manager is restarted before.
    let chunks = job.checkpoint_at(6, &[0]);
    job.pool.change(Change::Finish { ino: job.folder }).unwrap();
    job.settle();
    assert_eq!(job.left(), [2, 5, 6]);
    assert_eq!(job.pool.records(Table::Noted), 1);
    let all: Vec<u32> = (0..=chunks[1]).collect();
    job.restart_with(&all);
    job.settle_restarted(60_000);
    assert_eq!(job.left(), [2, 6]);
    (7..=9).for_each(|timestep| drop(job.checkpoint(timestep)));
    job.settle_restarted(20_000);
    assert_eq!(job.left(), [2, 6, 7, 8, 9], "what comes later stays");
}

#[test]
fn a_job_that_is_done_leaves_what_a_later_run_writes_while_sets_are_left_that_go() {
    let mut job = Job::new(2);
    job.set("ranks", "2");
    (4..=5).for_each(|timestep| drop(job.checkpoint_at(timestep, &[0])));
    let last = job.checkpoint_at(6, &[0]);
    job.pool.change(Change::Finish { ino: job.folder }).unwrap();
    job.settle();
    assert_eq!(job.left(), [4, 5, 6], "they have too few copies");
    // The store has that it is done, and when that was said.
    job.restart_with(&(0..=last[1]).collect::<Vec<_>>());
    for timestep in [1, 2, 8] {
        job.checkpoint(timestep);
    }
    job.settle_restarted(60_000);
    assert_eq!(job.left(), [1, 2, 6, 8], "1 and 2 are of another run");
}

/// A hundred sets and one more, of which all but the last begin to go.
fn hundred_that_go() -> Job {
    let mut job = Job::with(2, "keep");
    (1..=101).for_each(|timestep| drop(job.checkpoint(timestep)));
    job.set("lifetime", "replace:1");
    while job.left().len() > 60 {
        assert!(job.pool.core.work(job.pool.now), "there is more to do");
    }
    job
}

#[test]
fn an_owner_that_changes_its_mind_all_the_time_holds_up_no_lifetime() {
    let mut job = Job::with(2, "keep");
    (1..=101).for_each(|timestep| drop(job.checkpoint(timestep)));
    job.set("lifetime", "replace:1");
    let mut rounds = 0;
    while job.left().len() > 1 {
        let wish = if rounds % 2 == 0 { OwnerWish::Drain } else { OwnerWish::Serve };
        let request = ManagerRequest::Heartbeat {
            id: BenefactorId(1),
            registration: job.pool.first_registration(1),
            load: BenefactorLoad { wish, ..empty_load() },
            durable_sequence: job.pool.told,
            added: Vec::new(),
            removed: Vec::new(),
            damaged: 0,
            copies_failed: Vec::new(),
            put_sequence: job.pool.receipts,
            decoded: Vec::new(),
            seen: Vec::new(),
            disk: None,
        };
        // All that it has is to be gone through.
        job.pool.ask_in_memory(request).unwrap();
        assert!(job.pool.core.is_walking());
        job.pool.core.work(job.pool.now);
        rounds += 1;
        assert!(rounds < 1_000, "{} are left", job.left().len());
    }
}

#[test]
fn a_set_of_which_a_file_changes_before_its_turn_stays_whole() {
    let mut job = hundred_that_go();
    job.write("app.N1.T99", &[0, 1]);
    job.settle();
    assert_eq!(job.left(), [99, 101]);
    assert_eq!(job.state(99), SetState::Complete);
}

#[test]
fn all_sets_that_are_counted_on_must_be_there_while_others_go() {
    let mut job = hundred_that_go();
    job.set("lifetime", "replace:3");
    while job.left().len() > 30 {
        assert!(job.pool.core.work(job.pool.now), "there is more to do");
    }
    job.pool.change(Change::Unlink { parent: job.folder, name: "app.N0.T100".to_owned() }).unwrap();
    job.settle();
    assert_eq!(job.left(), [98, 99, 101], "two of three are left, and the next before");
}

#[test]
fn a_set_that_is_moved_into_the_folder_with_its_directory_stays() {
    let mut job = Job::with(1, "replace:1");
    job.set("naming", "step{step}/data");
    job.set("ranks", "1");
    let saved = job.pool.make(Ino::ROOT, "saved", FileKind::Directory);
    for (parent, step) in [(saved, 50), (job.folder, 90), (job.folder, 100)] {
        let way = job.pool.make(parent, &format!("step{step}"), FileKind::Directory);
        let file = job.pool.make(way, "data", FileKind::File);
        job.chunk += 1;
        job.pool.write(1, file, &[job.chunk], &[0, 1]);
    }
    job.pool.change(crate::harness::rename(saved, "step50", job.folder, "step50")).unwrap();
    job.settle();
    assert_eq!(job.left(), [50, 100]);
}

#[test]
fn a_directory_that_is_no_folder_of_sets_is_told_so() {
    let mut job = Job::new(1);
    job.set("ranks", "1");
    job.folder = job.pool.make(job.folder, "run1", FileKind::Directory);
    let file = job.pool.make(job.folder, "app.N0.T1", FileKind::File);
    job.pool.write(1, file, &[1], &[0, 1]);
    let finished = job.pool.change(Change::Finish { ino: job.folder });
    for refused in [job.seal(1, true), job.seal(1, false), finished] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code, ErrorCode::Invalid, "{refused}");
        assert!(refused.to_string().contains("no folder of checkpoint sets"), "{refused}");
    }
    job.set("naming", "app.N{rank}.T{step}");
    job.seal(1, true).unwrap();
}

#[test]
fn a_seal_or_another_policy_holds_at_once_while_sets_go() {
    let mut job = hundred_that_go();
    job.seal(90, true).unwrap();
    job.settle();
    assert_eq!(job.left(), [90, 101]);
    assert_eq!(job.state(90), SetState::Complete);
    let mut job = hundred_that_go();
    let before = job.left();
    job.set("lifetime", "keep");
    job.settle();
    assert_eq!(job.left(), before);
    job.set("lifetime", "replace:3");
    job.settle();
    assert_eq!(job.left(), [99, 100, 101]);
}

#[test]
fn a_folder_that_is_moved_while_its_sets_go_has_its_new_lifetime_at_once() {
    for exchanged in [false, true] {
        let mut job = Job::new(2);
        let (outer, inner) = ("app".to_owned(), job.folder);
        let kept = job.pool.make(Ino::ROOT, "kept", FileKind::Directory);
        let going = job.pool.make(Ino::ROOT, "going", FileKind::Directory);
        let pairs = vec![("lifetime".to_owned(), "replace:1".to_owned())];
        job.pool.change(Change::SetPolicy { ino: going, pairs }).unwrap();
        job.set("ranks", "2");
        job.set("naming", "app.N{rank}.T{step}");
        (1..=101).for_each(|timestep| drop(job.checkpoint(timestep)));
        // Its lifetime is that of the directory above.
        job.pool.change(crate::harness::rename(Ino::ROOT, &outer, going, &outer)).unwrap();
        while job.left().len() > 60 {
            assert!(job.pool.core.work(job.pool.now), "there is more to do");
        }
        let before = job.left();
        let change = match exchanged {
            false => crate::harness::rename(going, &outer, kept, "here"),
            true => {
                job.pool.make(kept, "here", FileKind::Directory);
                let existing = stdchk_model::message::manager::Existing::Exchange;
                let (name, new_name) = ("here".to_owned(), outer.clone());
                Change::Rename { parent: kept, name, new_parent: going, new_name, existing }
            }
        };
        job.pool.change(change).unwrap();
        assert_eq!(job.pool.attr("kept/here").unwrap().ino, inner);
        job.settle();
        assert_eq!(job.left(), before, "exchanged: {exchanged}");
    }
}

#[test]
fn a_set_that_goes_in_several_steps_is_never_taken_for_complete() {
    let mut job = Job::with(100, "keep");
    (1..=3).for_each(|timestep| drop(job.checkpoint(timestep)));
    job.set("lifetime", "replace:2");
    while job.state(1) == SetState::Complete {
        assert!(job.pool.core.work(job.pool.now), "it goes");
    }
    assert_eq!((job.left(), job.state(1)), (vec![1, 2, 3], SetState::Incomplete));
    let all: Vec<u32> = (0..=300).collect();
    job.restart_with(&all);
    assert_eq!(job.state(2), SetState::Complete);
    job.settle_restarted(60_000);
    assert_eq!(job.left(), [2, 3]);
}

#[test]
fn after_a_restart_nothing_goes_before_those_who_have_files_open_had_their_time() {
    let mut job = Job::with(2, "keep");
    (1..=3).for_each(|timestep| drop(job.checkpoint(timestep)));
    let written = job.pool.attr("app/app.N0.T1").unwrap().ino;
    job.pool.open(9, written);
    job.set("lifetime", "replace:1");
    job.restart_with(&(0..=10).collect::<Vec<_>>());
    job.checkpoint(4);
    job.settle_restarted(20_000);
    assert_eq!(job.left(), [1, 2, 3, 4]);
    job.pool.open(9, written);
    job.settle_restarted(15_000);
    assert_eq!(job.left(), [1, 4], "its client came back");
    job.pool.close(9);
    job.settle_restarted(20_000);
    assert_eq!(job.left(), [4]);
}

#[test]
fn ten_thousand_sets_go_in_steps_that_let_requests_in_between_also_after_a_restart() {
    let mut job = Job::with(1, "keep");
    job.set("ranks", "1");
    for timestep in 1..=10_000 {
        job.checkpoint(timestep);
    }
    job.set("lifetime", "replace:1");
    let begun = Instant::now();
    let mut longest = Duration::ZERO;
    while job.pool.records(Table::Version) > 5_000 {
        for _ in 0..50 {
            let step = Instant::now();
            assert!(job.pool.core.work(job.pool.now), "there is more to do");
            longest = longest.max(step.elapsed());
        }
        job.pool.status();
    }
    let all: Vec<u32> = (0..=10_000).collect();
    job.restart_with(&all);
    let between = job.pool.records(Table::Version);
    assert!((2..=5_000).contains(&between));
    job.settle_restarted(60_000);
    assert_eq!(job.left(), [10_000]);
    eprintln!("{:?} in all, the longest step {longest:?}", begun.elapsed());
    assert!(longest < Duration::from_millis(250), "a step took {longest:?}");
    let versions = job.pool.records(Table::Version);
    assert_eq!(versions, 1);
}
