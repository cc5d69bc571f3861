//! `cutter=auto` on series of versions: after two of them the folder knows how the next ones are cut, and it pays.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{Random, TestPool, file_with};
use stdchk_client::Pool;
use stdchk_model::Ino;

const MIB: usize = 1 << 20;
const SIZE: usize = 6 * MIB;

struct Series {
    tests: TestPool,
    pool: Pool,
    ino: Ino,
}

impl Series {
    async fn start() -> Self {
        let tests = TestPool::start(2).await;
        let pool = tests.connect(16 << 20).await;
        let ino = file_with(&pool, &[("cutter", "auto"), ("codec", "store"), ("replicas", "1")]).await;
        Self { tests, pool, ino }
    }

    /// Writes the next version; how many bytes of it were new to the pool.
    async fn write(&self, content: &[u8]) -> usize {
        let session = self.pool.write(self.ino).await.unwrap();
        session.truncate(0).await.unwrap();
        session.write_at(0, content).await.unwrap();
        session.commit(0).await.unwrap();
        let stored = session.stored_bytes();
        session.close(false).await.unwrap();
        // What is learned from it is learned in the background.
        self.pool.close().await;
        usize::try_from(stored).unwrap()
    }

    async fn learned(&self) -> String {
        self.pool.policy(self.ino).await.unwrap().learned
    }

    async fn check(&self, content: &[u8]) {
        let other = self.tests.connect(16 << 20).await;
        let reader = other.read(self.ino, None).await.unwrap();
        assert!(reader.read_at(0, content.len() + 1).await.unwrap() == content);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nothing_ever_repeats_the_search_is_given_up_after_two_versions() {
    let series = Series::start().await;
    let mut random = Random::new(1);
    series.write(&random.bytes(SIZE)).await;
    assert_eq!(series.learned().await, "", "one version says nothing");
    series.write(&random.bytes(SIZE)).await;
    assert_eq!(series.learned().await, "fsch:1MiB");
    let content = random.bytes(SIZE);
    assert_eq!(series.write(&content).await, SIZE);
    let (_, map, _) = series.pool.chunk_map(series.ino, None).await.unwrap();
    assert!(map.pieces().is_empty(), "no names of pieces are kept for a search");
    series.check(&content).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scattered_changes_of_pages_are_found_page_by_page() {
    let series = Series::start().await;
    let mut random = Random::new(2);
    let mut content = random.bytes(SIZE);
    let mut stored = 0;
    for _ in 0..4 {
        for page in (0..SIZE).step_by(32 << 10) {
            let changed = random.bytes(4096);
            content.get_mut(page..page + 4096).unwrap().copy_from_slice(&changed);
        }
        stored = series.write(&content).await;
    }
    assert_eq!(series.learned().await, "fsch:4KiB");
    // An eighth has changed; the names of the pieces come on top.
    assert!(stored < SIZE / 4, "{stored}");
    series.check(&content).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_found_behind_a_header_that_changes_its_length() {
    let series = Series::start().await;
    let mut random = Random::new(5);
    let mut content = random.bytes(SIZE);
    // As the first page of a mapped program.
    content.get_mut(..16).unwrap().copy_from_slice(b"\x7fELF\x02\x01\x01\x03\0\0\0\0\0\0\0\0");
    let mut stored = 0;
    for version in 0..5 {
        for page in (4096..SIZE).step_by(32 << 10) {
            let changed = random.bytes(4096);
            content.get_mut(page..page + 4096).unwrap().copy_from_slice(&changed);
        }
        let header = random.bytes(314 + 112 * version);
        stored = series.write(&[header, content.clone()].concat()).await;
    }
    assert_eq!(series.learned().await, "fsch:4KiB");
    assert!(stored < SIZE / 4, "{stored}");
    let header = random.bytes(5000);
    content = [header, content].concat();
    series.write(&content).await;
    series.check(&content).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_move_are_found_by_their_content() {
    let series = Series::start().await;
    let mut random = Random::new(3);
    let mut content = random.bytes(SIZE);
    let mut stored = 0;
    for _ in 0..4 {
        for _ in 0..40 {
            let place = usize::try_from(random.below(content.len() as u64)).unwrap();
            content.splice(place..place, random.bytes(101));
        }
        stored = series.write(&content).await;
    }
    assert_eq!(series.learned().await, "cdc:16KiB");
    assert!(stored < SIZE / 3, "{stored}");
    series.check(&content).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_learned_is_forgotten_when_the_cutter_is_set_anew_and_other_folders_learn_nothing() {
    let series = Series::start().await;
    let mut random = Random::new(4);
    for _ in 0..2 {
        series.write(&random.bytes(MIB)).await;
    }
    assert_eq!(series.learned().await, "fsch:1MiB");
    let folder = series.pool.resolve("app3").await.unwrap().ino;
    for cutter in ["fsch:64KiB", "auto"] {
        let pairs = vec![("cutter".to_owned(), cutter.to_owned())];
        let change = stdchk_model::message::manager::Change::SetPolicy { ino: folder, pairs };
        series.pool.change(change).await.unwrap();
        assert_eq!(series.learned().await, "");
        if cutter != "auto" {
            series.write(&random.bytes(MIB)).await;
            series.write(&random.bytes(MIB)).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(series.learned().await, "");
        }
    }
}
