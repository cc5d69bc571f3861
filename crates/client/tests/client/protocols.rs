//! Each write protocol does what a plain array of bytes does, and what the application was told is closed outlives the
//! process that was told to keep it, byte for byte.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Random, TestPool, file_with, wait_until};
use stdchk_client::{Pool, Sought, Spool, Unpushed, Writer};
use stdchk_model::Ino;
use stdchk_model::message::manager::{Change, VersionState};
use stdchk_model::policy::Protocol;

const MIB: u64 = 1 << 20;
const FILE_MAX: u64 = 9 * MIB;
const BOOT: &str = "the first boot";

async fn spool_in(directory: &Path, bytes_max: u64, pool: &Pool, boot: &str) -> Arc<Spool> {
    // The process before is still letting go of it.
    for _ in 0..400 {
        if let Ok(spool) = Spool::open_in_boot(directory, bytes_max, pool, boot.to_owned()).await {
            return spool;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    Spool::open_in_boot(directory, bytes_max, pool, boot.to_owned()).await.unwrap()
}

struct Twin {
    pool: Pool,
    ino: Ino,
    directory: PathBuf,
    spool_bytes: u64,
    spool: Option<Arc<Spool>>,
    writer: Arc<Writer>,
    model: Vec<u8>,
}

impl Twin {
    async fn start(tests: &TestPool, protocol: &str, spool_bytes: u64) -> Self {
        Self::start_with(tests, protocol, spool_bytes, &[]).await
    }

    async fn start_with(
        tests: &TestPool,
        protocol: &str,
        spool_bytes: u64,
        further: &[(&str, &str)],
    ) -> Self {
        Self::over(tests.connect(8 * MIB).await, tests, (protocol, further), spool_bytes).await
    }

    async fn over(
        pool: Pool,
        tests: &TestPool,
        (protocol, further): (&str, &[(&str, &str)]),
        spool_bytes: u64,
    ) -> Self {
        let policy =
            [("redundancy", "replicate:1"), ("protocol", protocol), ("segment", "4MiB"), ("codec", "store")];
        let policy = [&policy[..], further].concat();
        let ino = file_with(&pool, &policy).await;
        let directory = tests.dir.path().join(format!("spool-{protocol}"));
        let spool = spool_in(&directory, spool_bytes, &pool, BOOT).await;
        let writer = pool.writer(ino, Some(&spool)).await.unwrap();
        Self { pool, ino, directory, spool_bytes, spool: Some(spool), writer, model: Vec::new() }
    }

    fn files(&self) -> usize {
        let entries = std::fs::read_dir(&self.directory).unwrap();
        let ours = |name: &str| name.ends_with(".image") || name.ends_with(".record");
        entries.filter(|entry| ours(entry.as_ref().unwrap().file_name().to_str().unwrap())).count()
    }

    async fn step(&mut self, random: &mut Random) {
        match random.below(100) {
            0..=54 => {
                let offset =
                    if random.below(3) == 0 { self.model.len() as u64 } else { random.below(FILE_MAX) };
                let length = [40, 5000, 200_000, MIB][usize::try_from(random.below(4)).unwrap()];
                let length = usize::try_from(random.below(length) + 1).unwrap();
                let data = random.bytes(length);
                self.write(offset, &data).await;
            }
            55..=79 => self.read(random.below(FILE_MAX), random.below(3 * MIB)).await,
            80..=89 => self.truncate(random.below(FILE_MAX)).await,
            90..=92 => self.writer.sync(1).await.unwrap(),
            93..=94 => self.writer.flush(1, true).await.unwrap(),
            95..=96 => drop(self.writer.commit(1).await.unwrap()),
            _ => self.close_and_open(random.below(2) == 0).await,
        }
    }

    async fn write(&mut self, offset: u64, data: &[u8]) {
        self.writer.write_at(offset, data).await.unwrap();
        let offset = usize::try_from(offset).unwrap();
        self.model.resize(self.model.len().max(offset + data.len()), 0);
        self.model[offset..offset + data.len()].copy_from_slice(data);
    }

    async fn read(&self, offset: u64, length: u64) {
        let (offset, length) = (usize::try_from(offset).unwrap(), usize::try_from(length).unwrap());
        let got = self.writer.read_at(offset as u64, length).await.unwrap();
        let end = self.model.len().min(offset + length);
        assert!(got == self.model[offset.min(end)..end], "read of {length} at {offset}");
        assert_eq!(self.writer.size(), self.model.len() as u64);
    }

    async fn truncate(&mut self, size: u64) {
        self.writer.truncate(size).await.unwrap();
        self.model.resize(usize::try_from(size).unwrap(), 0);
    }

    /// Closes the file, and opens it again once it is pushed; `crash`: by a process that found it in the spool.
    async fn close_and_open(&mut self, crash: bool) {
        self.writer.flush(1, true).await.unwrap();
        if self.writer.is_spooled() {
            match crash {
                true => self.crash(BOOT).await,
                false => drop(self.writer.push(1, VersionState::Closed).await.unwrap()),
            }
        }
        self.writer.close(false).await.unwrap();
        assert_eq!(self.files(), 0, "nothing is left in the spool");
        self.check_committed().await;
        self.writer = self.pool.writer(self.ino, self.spool.as_ref()).await.unwrap();
        self.read(0, FILE_MAX).await;
    }

    async fn check_committed(&self) {
        let reader = self.pool.read(self.ino, None).await.unwrap();
        assert_eq!(reader.size(), self.model.len() as u64);
        assert!(
            reader.read_at(0, self.model.len()).await.unwrap() == self.model,
            "the committed version differs"
        );
    }

    /// The process dies and another one takes up the spool.
    async fn crash(&mut self, boot: &str) {
        let left = self.take_up(boot).await;
        let [Unpushed { writer, mtime, state }] = left.as_slice() else {
            panic!("{} files are left", left.len())
        };
        self.writer = Arc::clone(writer);
        self.read(0, FILE_MAX).await;
        assert_eq!((*mtime, *state), (1, VersionState::Closed));
        writer.push(*mtime, *state).await.unwrap();
    }

    async fn take_up(&mut self, boot: &str) -> Vec<Unpushed> {
        self.let_go().await;
        let spool = spool_in(&self.directory, self.spool_bytes, &self.pool, boot).await;
        let (left, _) = self.pool.take_up(&spool).await.unwrap();
        self.spool = Some(spool);
        left
    }

    /// As a process that is killed does: nothing is said to anyone.
    async fn let_go(&mut self) {
        self.spool = None;
        self.writer = self.pool.writer(self.ino, None).await.unwrap();
    }

    /// Pushes it, now that it can be.
    async fn push_at_last(&self, state: VersionState) {
        for _ in 0..50 {
            if self.writer.push(1, state).await.is_ok() {
                break;
            }
        }
        self.check_committed().await;
        assert_eq!((self.states().await, self.files()), (vec![state], 0));
    }

    async fn states(&self) -> Vec<VersionState> {
        self.pool.versions(self.ino).await.unwrap().iter().map(|info| info.state).collect()
    }
}

async fn run(protocol: &str, spool_bytes: u64, seed: u64, steps: u32) {
    let tests = TestPool::start(2).await;
    let mut twin = Twin::start(&tests, protocol, spool_bytes).await;
    let mut random = Random::new(seed);
    for _ in 0..steps {
        twin.step(&mut random).await;
    }
    twin.close_and_open(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_complete_local_write_behaves_like_an_array_of_bytes() {
    for seed in 1..=3 {
        run("clw", 64 * MIB, seed, 120).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incremental_write_behaves_like_an_array_of_bytes() {
    for seed in 4..=6 {
        run("iw", 64 * MIB, seed, 120).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spool_that_is_full_makes_a_file_go_on_through_memory() {
    for protocol in ["clw", "iw"] {
        let tests = TestPool::start(2).await;
        let mut twin = Twin::start(&tests, protocol, 16 * MIB).await;
        let other = Arc::clone(&twin.writer);
        // Incremental writes never hold more than two segments: somebody else fills the spool.
        let hog = file_hog(&twin, &tests).await;
        let data = Random::new(7).bytes(12 << 20);
        for (at, part) in data.chunks(1 << 20).enumerate() {
            twin.write(at as u64 * MIB, part).await;
        }
        assert!(!other.is_spooled(), "{protocol}");
        twin.read(0, 12 * MIB).await;
        twin.writer.flush(1, true).await.unwrap();
        twin.check_committed().await;
        twin.writer.close(false).await.unwrap();
        hog.discard(&twin.pool).await.unwrap();
        assert_eq!(twin.files(), 0);
    }
}

/// A file that takes most of the spool and stays.
async fn file_hog(twin: &Twin, tests: &TestPool) -> Arc<Writer> {
    let pool = tests.connect(8 * MIB).await;
    let policy = [
        ("protocol", "clw"),
        ("redundancy", "replicate:1"),
        ("ranks", "1"),
        ("codec", "store"),
        ("stripe", "1"),
    ];
    let ino = file_with(&pool, &policy).await;
    let hog = pool.writer(ino, twin.spool.as_ref()).await.unwrap();
    for at in 0..14 {
        hog.write_at(at * MIB, &[1; 1 << 20]).await.unwrap();
    }
    hog
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_closed_but_not_synced_when_the_machine_went_down_is_lost_on_record_and_what_was_synced_is_kept()
 {
    let tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 64 * MIB).await;
    twin.write(0, b"the first version").await;
    twin.close_and_open(false).await;
    twin.write(0, b"never synced").await;
    twin.writer.flush(1, true).await.unwrap();
    assert_eq!(twin.take_up("another boot").await.len(), 0);
    assert_eq!(twin.states().await, [VersionState::Closed, VersionState::Lost]);
    twin.check_first_version().await;
    twin.writer = twin.pool.writer(twin.ino, twin.spool.as_ref()).await.unwrap();
    twin.write(0, b"synced and closed").await;
    twin.writer.sync(1).await.unwrap();
    twin.writer.flush(1, true).await.unwrap();
    twin.crash("a third boot").await;
    twin.check_committed().await;
    assert_eq!(twin.states().await, [VersionState::Closed, VersionState::Lost, VersionState::Closed]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_file_whose_record_the_machine_took_with_it_is_lost_on_record() {
    let tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 64 * MIB).await;
    twin.write(0, b"the first version").await;
    twin.close_and_open(false).await;
    twin.write(0, b"never synced").await;
    twin.writer.flush(1, true).await.unwrap();
    let is_record = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "record");
    let (record, _) = copies_of(&twin.directory).into_iter().find(|(path, _)| is_record(path)).unwrap();
    std::fs::write(record, b"").unwrap();
    assert_eq!(twin.take_up("another boot").await.len(), 0);
    assert_eq!((twin.states().await, twin.files()), (vec![VersionState::Closed, VersionState::Lost], 0));
    twin.check_first_version().await;
}

impl Twin {
    async fn check_first_version(&self) {
        let reader = self.pool.read(self.ino, None).await.unwrap();
        assert_eq!(reader.read_at(0, 100).await.unwrap(), b"the first version".as_slice());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_after_a_close_makes_the_version_an_interrupted_one() {
    let tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 64 * MIB).await;
    twin.write(0, b"closed").await;
    twin.writer.flush(1, true).await.unwrap();
    twin.write(3, b"and more").await;
    let left = twin.take_up(BOOT).await;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].state, VersionState::Interrupted);
    left[0].writer.push(1, left[0].state).await.unwrap();
    assert_eq!(twin.states().await, [VersionState::Interrupted]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_never_closed_nor_synced_leaves_nothing_in_the_spool() {
    let tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 64 * MIB).await;
    twin.write(0, b"never closed").await;
    assert_eq!(twin.files(), 1);
    assert_eq!(twin.take_up(BOOT).await.len(), 0);
    assert_eq!(twin.files(), 0);
    assert_eq!(twin.states().await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_file_whose_image_cannot_be_opened_now_is_left_in_the_spool_and_pushed_later() {
    let tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 64 * MIB).await;
    twin.write(0, b"closed").await;
    twin.writer.flush(1, true).await.unwrap();
    let is_image = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "image");
    let (image, content) = copies_of(&twin.directory).into_iter().find(|(path, _)| is_image(path)).unwrap();
    // A folder in its place can't be opened as a file, whoever asks.
    std::fs::remove_file(&image).unwrap();
    std::fs::create_dir(&image).unwrap();
    assert_eq!(twin.take_up(BOOT).await.len(), 0);
    assert_eq!((twin.states().await, twin.files()), (vec![], 2), "it does not count as lost");
    std::fs::remove_dir(&image).unwrap();
    std::fs::write(&image, content).unwrap();
    twin.crash(BOOT).await;
    twin.check_committed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_in_the_spool_keeps_to_the_version_that_it_was_written_over() {
    let tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 64 * MIB).await;
    twin.write(0, &[1; 3_000_000]).await;
    twin.close_and_open(false).await;
    twin.write(1_000_000, &[2; 1_000_000]).await;
    twin.writer.flush(1, true).await.unwrap();
    // Meanwhile another mount makes a version of its own.
    twin.let_go().await;
    let elsewhere = twin.pool.write(twin.ino).await.unwrap();
    elsewhere.write_at(0, &[3; 4_000_000]).await.unwrap();
    elsewhere.commit(5).await.unwrap();
    elsewhere.close(false).await.unwrap();
    twin.crash(BOOT).await;
    twin.check_committed().await;
    assert_eq!(twin.states().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_was_committed_before_the_crash_is_not_pushed_again() {
    let tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 64 * MIB).await;
    twin.write(0, b"committed").await;
    twin.writer.flush(1, true).await.unwrap();
    let kept = copies_of(&twin.directory);
    twin.writer.push(1, VersionState::Closed).await.unwrap();
    // The process died before it could clean up.
    for (path, content) in kept {
        std::fs::write(path, content).unwrap();
    }
    assert_eq!(twin.take_up(BOOT).await.len(), 0);
    assert_eq!((twin.states().await, twin.files()), (vec![VersionState::Closed], 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_from_before_what_is_in_the_spool_does_not_stand_for_it() {
    let tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "sw", 64 * MIB).await;
    // A program cuts the file, chooses its protocol and saves it, and writes then.
    twin.truncate(5).await;
    assert!(twin.writer.choose(Protocol::Clw).await.unwrap());
    twin.writer.sync(1).await.unwrap();
    assert_eq!(twin.states().await.len(), 1);
    twin.write(0, b"written afterwards").await;
    twin.writer.sync(1).await.unwrap();
    twin.writer.flush(1, true).await.unwrap();
    for file in twin.take_up(BOOT).await {
        file.writer.push(file.mtime, file.state).await.unwrap();
    }
    twin.check_committed().await;
    assert_eq!(twin.files(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_a_version_of_what_was_emptied_chooses_no_protocol_any_more() {
    let tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 64 * MIB).await;
    twin.truncate(5).await;
    twin.writer.commit(1).await.unwrap();
    assert!(!twin.writer.choose(Protocol::Clw).await.unwrap());
    twin.close_and_open(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_synced_and_cut_afterwards_is_an_interrupted_version() {
    let tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 64 * MIB).await;
    twin.write(0, &Random::new(5).bytes(3_000_000)).await;
    twin.writer.sync(1).await.unwrap();
    twin.truncate(2_000_000).await;
    let left = twin.take_up(BOOT).await;
    let [Unpushed { writer, mtime, state }] = left.as_slice() else { panic!("{} are left", left.len()) };
    writer.push(*mtime, *state).await.unwrap();
    let reader = twin.pool.read(twin.ino, None).await.unwrap();
    assert!(reader.read_at(0, 2_000_000).await.unwrap() == twin.model);
    assert_eq!(twin.states().await, [VersionState::Interrupted]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_cut_before_a_protocol_was_chosen_stays_cut() {
    let tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "sw", 64 * MIB).await;
    twin.write(0, &[1; 1_000_000]).await;
    twin.close_and_open(false).await;
    twin.truncate(0).await;
    twin.truncate(1_000_000).await;
    assert!(twin.writer.choose(Protocol::Clw).await.unwrap());
    twin.write(500_000, b"some").await;
    twin.writer.flush(1, true).await.unwrap();
    twin.crash(BOOT).await;
    twin.check_committed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_synced_into_the_spool_is_pushed_though_its_session_is_on_record_as_lost() {
    let mut tests = TestPool::start(1).await;
    let killed = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let lived = async {
        let close_early = [("close", "early"), ("stripe", "1")];
        let mut twin = Twin::start_with(&tests, "clw", 16 * MIB, &close_early).await;
        let _hog = file_hog(&twin, &tests).await;
        twin.write(0, b"synced").await;
        twin.writer.sync(1).await.unwrap();
        let synced = twin.model.clone();
        tests.stop_benefactor(0).await;
        twin.write(MIB, &[7; 3 << 20]).await;
        assert!(!twin.writer.is_spooled(), "the spool is full");
        twin.writer.flush(1, true).await.unwrap();
        (twin, synced)
    };
    let (mut twin, synced) = tokio::task::block_in_place(|| {
        std::thread::scope(|scope| scope.spawn(|| killed.block_on(lived)).join().unwrap())
    });
    // What its session still does would be done by nobody.
    killed.shutdown_background();
    twin.pool = tests.connect(8 * MIB).await;
    let left = twin.take_up(BOOT).await;
    assert_eq!(twin.states().await, [VersionState::Lost], "its close was told to the manager");
    let [Unpushed { writer, mtime, state }] = left.as_slice() else { panic!("{} are left", left.len()) };
    tests.start_benefactor(0);
    tests.wait_online(1).await;
    (twin.writer, twin.model) = (Arc::clone(writer), synced);
    for _ in 0..50 {
        if writer.push(*mtime, *state).await.is_ok() {
            break;
        }
    }
    twin.check_committed().await;
    assert_eq!(twin.states().await.last(), Some(&VersionState::Interrupted));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_of_another_name_keeps_its_image() {
    let tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 64 * MIB).await;
    twin.write(0, b"closed").await;
    twin.writer.flush(1, true).await.unwrap();
    let is_record = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "record");
    let (record, _) = copies_of(&twin.directory).into_iter().find(|(path, _)| is_record(path)).unwrap();
    let id = record.file_stem().unwrap().to_str().unwrap().split_once('-').unwrap().0;
    let other = record.with_file_name(format!("{id}.record"));
    std::fs::rename(&record, &other).unwrap();
    assert_eq!((twin.take_up(BOOT).await.len(), twin.files()), (0, 2));
    assert!(Spool::has_files(&twin.directory));
    std::fs::rename(&other, &record).unwrap();
    twin.crash(BOOT).await;
    twin.check_committed().await;
}

#[test]
fn a_folder_that_cannot_be_looked_into_may_have_files() {
    let folder = tempfile::tempdir().unwrap();
    let (none, around) = (folder.path().join("none"), folder.path().join("around"));
    std::os::unix::fs::symlink("around", &around).unwrap();
    assert!(!Spool::has_files(folder.path()) && !Spool::has_files(&none) && Spool::has_files(&around));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_whose_base_was_let_go_is_on_record_as_lost_once() {
    let tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 64 * MIB).await;
    twin.write(0, &[1; 3_000_000]).await;
    twin.close_and_open(false).await;
    twin.write(1_000_000, &[2; 1_000_000]).await;
    twin.writer.flush(1, true).await.unwrap();
    twin.let_go().await;
    let elsewhere = twin.pool.write(twin.ino).await.unwrap();
    elsewhere.write_at(0, b"newer").await.unwrap();
    elsewhere.commit(5).await.unwrap();
    elsewhere.close(false).await.unwrap();
    let first = twin.pool.versions(twin.ino).await.unwrap()[0].version;
    twin.pool.change(Change::DropVersion { ino: twin.ino, version: first }).await.unwrap();
    for base in twin.pool.status().await.unwrap().kept_bases {
        twin.pool.let_base_go(base.ino, base.kept_for).await.unwrap();
    }
    assert_eq!(twin.take_up(BOOT).await.len(), 0);
    let states = twin.states().await;
    assert_eq!(states.iter().filter(|state| **state == VersionState::Lost).count(), 1, "{states:?}");
    assert_eq!(twin.files(), 0);
}

fn copies_of(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let ours = paths.filter(|path| path.extension().is_some());
    ours.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_that_fails_keeps_the_file_and_succeeds_later() {
    let mut tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 64 * MIB).await;
    twin.write(0, &Random::new(3).bytes(2_000_000)).await;
    twin.writer.flush(1, true).await.unwrap();
    // Removed at the pool's side, its chunks have no place: the only benefactor is gone for longer than patience lasts.
    tests.stop_benefactor(0).await;
    assert!(twin.writer.push(1, VersionState::Closed).await.is_err());
    assert!(twin.writer.is_spooled());
    twin.read(0, FILE_MAX).await;
    tests.start_benefactor(0);
    tests.wait_online(1).await;
    twin.push_at_last(VersionState::Closed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_file_whose_image_was_cut_short_is_lost_on_record() {
    let tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 64 * MIB).await;
    twin.write(0, b"the first version").await;
    twin.close_and_open(false).await;
    twin.write(0, &[1; 100_000]).await;
    twin.writer.flush(1, true).await.unwrap();
    // The disk went down by itself and came back: the machine is in the same boot.
    let image =
        copies_of(&twin.directory).into_iter().find(|(_, content)| content.len() == 100_000).unwrap().0;
    std::fs::File::options().write(true).open(image).unwrap().set_len(4096).unwrap();
    assert_eq!(twin.take_up(BOOT).await.len(), 0);
    assert_eq!((twin.states().await, twin.files()), (vec![VersionState::Closed, VersionState::Lost], 0));
    twin.check_first_version().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loss_that_cannot_be_put_on_record_stays_in_the_spool_until_it_can() {
    let mut tests = TestPool::start(1).await;
    let pool = tests.connect_for(8 * MIB, Duration::from_secs(1)).await;
    let mut twin = Twin::over(pool, &tests, ("clw", &[]), 64 * MIB).await;
    twin.write(0, b"closed").await;
    twin.writer.flush(1, true).await.unwrap();
    tests.stop_manager().await;
    assert!(twin.writer.discard(&twin.pool).await.is_err());
    assert_eq!(twin.files(), 2);
    // The manager that comes back knows nothing of the session.
    tests.start_manager().await;
    wait_until("it is given up", async || twin.writer.discard(&twin.pool).await.is_ok()).await;
    assert_eq!((twin.states().await, twin.files()), (vec![VersionState::Lost], 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_failed_session_took_beyond_what_was_promised_is_not_read_any_more() {
    let mut tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 16 * MIB).await;
    twin.write(0, &Random::new(1).bytes(6_000_000)).await;
    twin.close_and_open(false).await;
    twin.write(1_000_000, &Random::new(2).bytes(1_500_000)).await;
    twin.writer.sync(1).await.unwrap();
    let promised = twin.model.clone();
    let hog = file_hog(&twin, &tests).await;
    twin.write(2_000_000, &Random::new(3).bytes(5_000_000)).await;
    assert!(!twin.writer.is_spooled(), "it goes on through memory");
    tests.stop_benefactor(0).await;
    assert!(twin.writer.commit(1).await.is_err());
    twin.writer.take_back().unwrap();
    twin.model = promised;
    tests.start_benefactor(0);
    tests.wait_online(1).await;
    twin.read(0, FILE_MAX).await;
    assert_eq!(twin.writer.seek(7_000_000, Sought::Data), None);
    hog.discard(&twin.pool).await.unwrap();
    for _ in 0..50 {
        if twin.writer.push(1, VersionState::Interrupted).await.is_ok() {
            break;
        }
    }
    twin.check_committed().await;
    assert_eq!(twin.states().await, [VersionState::Closed, VersionState::Interrupted]);
}

/// What was promised and can't be committed stays in the spool, and is pushed later.
async fn promised(bytes: usize) {
    let mut tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 64 * MIB).await;
    twin.write(0, &Random::new(3).bytes(bytes)).await;
    twin.writer.sync(1).await.unwrap();
    assert!(twin.writer.take_back().is_none(), "it is in the spool as it is");
    tests.stop_benefactor(0).await;
    assert!(twin.writer.commit(1).await.is_err());
    let promised = twin.writer.take_back().unwrap();
    assert_eq!(
        (promised.mtime, promised.state),
        (1, VersionState::Interrupted),
        "it was synced and not closed"
    );
    assert!(twin.writer.is_spooled() && twin.files() == 2, "{bytes} bytes");
    tests.start_benefactor(0);
    tests.wait_online(1).await;
    twin.push_at_last(VersionState::Interrupted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_promised_is_pushed_later_if_the_session_cannot_commit_it() {
    // The window takes it.
    promised(2_000_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_promised_is_pushed_later_if_the_session_cannot_take_it() {
    promised(12_000_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_was_promised_leaves_nothing_in_the_spool_if_it_cannot_be_committed() {
    let mut tests = TestPool::start(1).await;
    let mut twin = Twin::start(&tests, "clw", 64 * MIB).await;
    twin.write(0, &Random::new(3).bytes(12_000_000)).await;
    tests.stop_benefactor(0).await;
    assert!(twin.writer.commit(1).await.is_err());
    assert!(twin.writer.take_back().is_none() && twin.files() == 0);
}

#[tokio::test]
async fn a_protocol_without_a_spool_goes_through_memory() {
    let tests = TestPool::start(1).await;
    let pool = tests.connect(8 * MIB).await;
    let ino = file_with(&pool, &[("protocol", "clw")]).await;
    let writer = pool.writer(ino, None).await.unwrap();
    assert_eq!(writer.policy().protocol, Protocol::Clw);
    writer.write_at(0, b"content").await.unwrap();
    assert!(!writer.is_spooled());
    writer.flush(1, true).await.unwrap();
    assert_eq!(pool.versions(ino).await.unwrap().len(), 1);
}
