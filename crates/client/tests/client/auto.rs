//! `cutter=auto` on series of versions: after two of them the folder knows how the next ones are cut, and it pays.

use std::time::Duration;

use crate::common::{Random, TestPool, file_with};
use stdchk_client::Pool;
use stdchk_model::Ino;
use stdchk_model::message::manager::Change;

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
        let ino =
            file_with(&pool, &[("cutter", "auto"), ("codec", "store"), ("redundancy", "replicate:1")]).await;
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

    async fn set(&self, pairs: &[(&str, &str)]) {
        let folder = self.pool.resolve("app3").await.unwrap().ino;
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        self.pool.change(Change::SetPolicy { ino: folder, pairs }).await.unwrap();
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
async fn a_file_that_is_synced_again_and_again_is_compared_once_and_again_when_it_has_doubled() {
    let series = Series::start().await;
    let mut random = Random::new(9);
    series.write(&random.bytes(SIZE)).await;
    let session = series.pool.write(series.ino).await.unwrap();
    let mut sync = async |offset: usize, length: usize| {
        session.write_at(offset as u64, &random.bytes(length)).await.unwrap();
        session.commit(0).await.unwrap();
        series.pool.close().await;
        series.learned().await
    };
    assert_eq!(sync(0, SIZE).await, "fsch:1MiB");
    series.set(&[("learned", "")]).await;
    assert_eq!(sync(0, 5000).await, "");
    assert_eq!(sync(SIZE, SIZE).await, "fsch:1MiB");
    session.close(false).await.unwrap();
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
async fn a_file_that_grows_at_its_front_is_found_however_far_its_content_moves() {
    let series = Series::start().await;
    let mut random = Random::new(6);
    let mut content = random.bytes(10 * MIB);
    let mut stored = 0;
    for _ in 0..4 {
        content = [random.bytes(5 * MIB + 777), content].concat();
        stored = series.write(&content).await;
    }
    // Five of thirty mebibytes are new; pieces are lost at the ends of cells.
    assert!(stored < 8 * MIB, "{stored}, {}", series.learned().await);
    series.check(&content).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_inserted_here_and_there_far_from_where_it_was_is_found_by_its_content() {
    let series = Series::start().await;
    let mut random = Random::new(7);
    let mut content = random.bytes(12 * MIB);
    let mut stored = 0;
    for _ in 0..3 {
        for quarter in 0..4 {
            content.splice(quarter * 3 * MIB..quarter * 3 * MIB, random.bytes(300_001));
        }
        content = [random.bytes(5 * MIB + 1), content].concat();
        stored = series.write(&content).await;
    }
    assert_eq!(series.learned().await, "cdc:16KiB");
    // Six of twenty-nine mebibytes are new.
    assert!(stored < 10 * MIB, "{stored}");
    series.check(&content).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_are_written_in_another_order_are_found_by_their_content() {
    let series = Series::start().await;
    let mut random = Random::new(8);
    let mut records: Vec<Vec<u8>> = (0..40).map(|record| random.bytes(300_000 + 101 * record)).collect();
    let (mut size, mut stored) = (0, 0);
    for _ in 0..3 {
        for last in (1..records.len()).rev() {
            records.swap(last, usize::try_from(random.below(last as u64 + 1)).unwrap());
        }
        records[0] = random.bytes(300_000);
        let content = records.concat();
        (size, stored) = (content.len(), series.write(&content).await);
        series.check(&content).await;
    }
    assert_eq!(series.learned().await, "cdc:16KiB");
    // A cell refers to eight earlier chunks at most, and to no more than it reads twice its bytes.
    assert!(stored < size * 3 / 4, "{stored} of {size}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heap_that_moved_by_many_pages_is_found_page_by_page() {
    let series = Series::start().await;
    let mut random = Random::new(9);
    let program = random.bytes(2 * MIB);
    let mut heap = random.bytes(8 * MIB);
    let (mut mapped, mut stored) = (Vec::new(), 0);
    for _ in 0..4 {
        for page in (0..heap.len()).step_by(16 << 10) {
            let changed = random.bytes(4096);
            heap[page..page + 4096].copy_from_slice(&changed);
        }
        mapped.extend(random.bytes(5 * MIB + 3 * 4096));
        stored = series.write(&[&program[..], &mapped, &heap].concat()).await;
    }
    assert_eq!(series.learned().await, "fsch:4KiB");
    // A quarter of the heap, and what was mapped anew.
    assert!(stored < 5 * MIB + 4 * MIB, "{stored}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_that_begins_to_move_is_noticed_when_what_was_learned_is_looked_at_again() {
    let series = Series::start().await;
    series.set(&[("learned", "fsch:1MiB")]).await;
    let mut random = Random::new(10);
    let mut content = random.bytes(8 * MIB);
    for version in 1..=14 {
        series.write(&[version; 100]).await;
    }
    series.write(&content).await;
    for place in [512 << 10, 4300 << 10, 7480 << 10, 10_750 << 10] {
        content.splice(place..place, random.bytes(MIB + 12_345));
    }
    series.write(&content).await;
    assert_eq!(series.learned().await, "cdc:16KiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_files_teach_nothing() {
    let series = Series::start().await;
    for _ in 0..3 {
        series.write(&[1; MIB - 1]).await;
    }
    assert_eq!(series.learned().await, "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_learned_is_forgotten_when_the_cutter_is_set_anew_and_other_folders_learn_nothing() {
    let series = Series::start().await;
    let mut random = Random::new(4);
    for _ in 0..2 {
        series.write(&random.bytes(MIB)).await;
    }
    assert_eq!(series.learned().await, "fsch:1MiB");
    for cutter in ["fsch:64KiB", "auto"] {
        series.set(&[("cutter", cutter)]).await;
        assert_eq!(series.learned().await, "");
        if cutter != "auto" {
            series.write(&random.bytes(MIB)).await;
            series.write(&random.bytes(MIB)).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(series.learned().await, "");
        }
    }
}
