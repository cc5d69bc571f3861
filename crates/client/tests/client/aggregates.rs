//! Sets that lie in containers of the pool: read, written over and collected like any files (I2, I4, I11).

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Random, TestPool, make, wait_until};
use stdchk_aggregate::{AggregateError, Packing, Watch};
use stdchk_client::{AggregationError, PackedSet, Pool, Reader, Sought};
use stdchk_manager::core::Timing;
use stdchk_model::message::manager::{Change, CheckpointSet, FileKind, SetState};
use stdchk_model::{ErrorCode, Ino};

const WINDOW: u64 = 16 << 20;
const RANKS: usize = 4;
const LENGTH: usize = 3_000_000;

/// A pool that collects at once what nothing refers to, with a set of timestep 1 in a folder.
struct Set {
    _pools: TestPool,
    pool: Pool,
    folder: Ino,
    files: Vec<Ino>,
    contents: Vec<Vec<u8>>,
}

impl Set {
    /// Files that a compressor makes half as large, or can't.
    async fn written(compressible: bool) -> Self {
        let timing = Timing { garbage_age_ms: 0, collect_every_ms: 600_000, ..Timing::default() };
        let pools = TestPool::start_with(3, timing).await;
        let pool = pools.connect(WINDOW).await;
        let folder = make(&pool, Ino::ROOT, "app", FileKind::Directory).await.ino;
        let pairs = [("ranks", RANKS.to_string()), ("codec", "store".to_owned())];
        let pairs = pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        pool.change(Change::SetPolicy { ino: folder, pairs }).await.unwrap();
        let mut set = Self { _pools: pools, pool, folder, files: Vec::new(), contents: Vec::new() };
        for rank in 0..RANKS {
            let file = make(&set.pool, folder, &format!("a.N{rank}.T1"), FileKind::File).await.ino;
            let mut content = Random::new(rank as u64 + 1).bytes(LENGTH);
            if compressible {
                content.iter_mut().for_each(|byte| *byte &= 0x0f);
            }
            write(&set.pool, file, &[(0, &content)]).await;
            set.files.push(file);
            set.contents.push(content);
        }
        set
    }

    async fn set(&self) -> CheckpointSet {
        self.pool.sets(self.folder).await.unwrap().pop().unwrap()
    }

    async fn aggregate(&self) -> Result<PackedSet, AggregationError> {
        self.aggregate_as(self.set().await, 1, |_| true).await
    }

    async fn aggregate_as(
        &self,
        set: CheckpointSet,
        containers: usize,
        watch: impl Fn(u64) -> bool + Sync + Send + 'static,
    ) -> Result<PackedSet, AggregationError> {
        let (pool, folder) = (self.pool.clone(), self.folder);
        let work = move || {
            let watch: Watch<'_> = &watch;
            pool.aggregate_set(folder, &set, containers, Packing { threads: 2, watch, ..Packing::default() })
        };
        tokio::task::spawn_blocking(work).await.unwrap()
    }

    /// Bytes of all distinct chunks once nothing has been left to collect for as long as keepers of the manager's store may hold something.
    async fn collected(&self) -> u64 {
        let mut left = 0;
        for _ in 0..400 {
            left = match self.pool.collect(false).await.unwrap().chunks {
                0 => left + 1,
                _ => 0,
            };
            if left == 200 {
                return self.pool.status().await.unwrap().unique_bytes;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("something is always left to collect");
    }

    async fn check_all(&self) {
        for (file, content) in self.files.iter().zip(&self.contents) {
            check(&self.pool.read(*file, None).await.unwrap(), content).await;
        }
    }
}

async fn write(pool: &Pool, file: Ino, parts: &[(u64, &[u8])]) {
    let session = pool.write(file).await.unwrap();
    for (offset, bytes) in parts {
        session.write_at(*offset, bytes).await.unwrap();
    }
    session.commit(77).await.unwrap();
    session.close(false).await.unwrap();
}

/// Reads all of it, front to back, and then here and there.
async fn check(reader: &Arc<Reader>, content: &[u8]) {
    assert_eq!(reader.size(), content.len() as u64);
    assert!(reader.read_at(0, content.len() + 5).await.unwrap() == content);
    let mut random = Random::new(3);
    for _ in 0..50 {
        let offset = usize::try_from(random.below(content.len() as u64)).unwrap();
        let length = usize::try_from(random.below(200_000)).unwrap();
        let expected = content.get(offset..content.len().min(offset + length)).unwrap();
        assert!(reader.read_at(offset as u64, length).await.unwrap() == expected, "{length} at {offset}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_read_as_before_and_take_less_room() {
    for containers in [1, 3] {
        let set = Set::written(true).await;
        let before: Vec<_> = set.set().await.members;
        let raw = set.collected().await;
        let packed = set.aggregate_as(set.set().await, containers, |_| true).await.unwrap();
        assert_eq!((packed.files, packed.containers), (RANKS as u64, containers as u64));
        assert_eq!(packed.raw_bytes, (RANKS * LENGTH) as u64);
        let left = set.collected().await;
        assert!(left < raw * 6 / 10, "{left} of {raw}");
        assert!(left >= packed.stored_bytes && left < packed.stored_bytes + 100_000, "{left}: {packed:?}");
        set.check_all().await;
        let now = set.set().await;
        assert_eq!(now.state, SetState::Complete);
        assert!(now.members.iter().all(|member| member.aggregated));
        let known = |member: &stdchk_model::message::manager::SetMember| {
            (member.name.clone(), member.ino, member.version, member.bytes)
        };
        assert!(now.members.iter().map(known).eq(before.iter().map(known)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_was_open_before_goes_on_when_the_chunks_are_gone() {
    let set = Set::written(true).await;
    let reader = set.pool.read(set.files[1], None).await.unwrap();
    assert!(reader.read_at(0, 1000).await.unwrap() == set.contents[1][..1000]);
    set.aggregate().await.unwrap();
    set.collected().await;
    // Another client than the one that packed, so that no chunk is in its cache.
    let fresh = set._pools.connect(WINDOW).await;
    check(&fresh.read(set.files[1], None).await.unwrap(), &set.contents[1]).await;
    check(&reader, &set.contents[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_in_a_container_is_written_over_in_part_like_any_other() {
    let mut set = Set::written(true).await;
    set.aggregate().await.unwrap();
    set.collected().await;
    let patch = Random::new(9).bytes(100_000);
    write(&set.pool, set.files[0], &[(1_500_000, &patch)]).await;
    set.contents[0][1_500_000..1_600_000].copy_from_slice(&patch);
    write(&set.pool, set.files[1], &[(LENGTH as u64, &patch)]).await;
    set.contents[1].extend_from_slice(&patch);
    let session = set.pool.write(set.files[2]).await.unwrap();
    session.truncate(1_234_567).await.unwrap();
    session.commit(78).await.unwrap();
    session.write_at(5, &patch).await.unwrap();
    let read = session.read_at(0, 200_000).await.unwrap();
    session.commit(79).await.unwrap();
    session.close(false).await.unwrap();
    set.contents[2].truncate(1_234_567);
    set.contents[2][5..100_005].copy_from_slice(&patch);
    assert!(read == set.contents[2][..200_000]);
    set.collected().await;
    set.check_all().await;
    // The versions before are what they were.
    let reader = set.pool.read(set.files[2], Some(1)).await.unwrap();
    assert_eq!(reader.size(), LENGTH as u64);
    assert!(
        reader.read_at(2_000_000, 10).await.unwrap() == {
            let mut content = Random::new(3).bytes(LENGTH);
            content.iter_mut().for_each(|byte| *byte &= 0x0f);
            content[2_000_000..2_000_010].to_vec()
        }
    );
    // And all of them can be packed once more, some from the old container.
    set.aggregate().await.unwrap();
    set.collected().await;
    set.check_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_file_in_a_container_counts_as_a_hole_for_readers_nor_for_writers_before_they_commit() {
    let set = Set::written(true).await;
    set.aggregate().await.unwrap();
    let (file, length) = (set.files[0], LENGTH as u64);
    let reader = set.pool.read(file, None).await.unwrap();
    for at in [0, 1_000_000, length - 1] {
        assert_eq!(reader.seek(at, Sought::Data), Some(at));
        assert_eq!(reader.seek(at, Sought::Hole), Some(length));
    }
    assert_eq!(reader.seek(length, Sought::Data), None);
    let writer = set.pool.writer(file, None).await.unwrap();
    let ends_of_data = |at| (writer.seek(at, Sought::Data), writer.seek(at, Sought::Hole));
    assert_eq!(ends_of_data(0), (Some(0), Some(length)));
    writer.truncate(length + 5_000_000).await.unwrap();
    assert_eq!(ends_of_data(7), (Some(7), Some(length)));
    assert_eq!(ends_of_data(length), (None, Some(length)));
    writer.truncate(1_000_000).await.unwrap();
    writer.truncate(length).await.unwrap();
    assert_eq!(ends_of_data(999_999), (Some(999_999), Some(1_000_000)));
    writer.write_at(2_000_000, b"in the middle").await.unwrap();
    assert_eq!(ends_of_data(5).0, Some(5));
    assert!(ends_of_data(1_900_000).0.is_some_and(|data| data <= 2_000_000));
    let mut content = set.contents[0].clone();
    content[1_000_000..].fill(0);
    content[2_000_000..2_000_013].copy_from_slice(b"in the middle");
    assert!(writer.read_at(0, LENGTH).await.unwrap() == content);
    writer.close(false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holes_of_a_file_in_a_container_stay_holes_when_a_part_is_written_anew() {
    let mut set = Set::written(true).await;
    let (file, hole_end) = (set.files[0], 16 << 20);
    let tail = Random::new(8).bytes(200_000);
    write(&set.pool, file, &[(hole_end, &tail)]).await;
    let content = &mut set.contents[0];
    content.resize(usize::try_from(hole_end).unwrap(), 0);
    content.extend_from_slice(&tail);
    set.aggregate().await.unwrap();
    set.collected().await;
    let is_hole_within = |reader: &Reader| {
        let hole = reader.seek(5, Sought::Hole).unwrap();
        let data = reader.seek(hole, Sought::Data).unwrap();
        assert!(hole >= LENGTH as u64 && hole + (8 << 20) < data && data <= hole_end, "{hole} to {data}");
    };
    is_hole_within(&set.pool.read(file, None).await.unwrap());
    let patch = Random::new(9).bytes(100_000);
    write(&set.pool, file, &[(1_500_000, &patch)]).await;
    set.contents[0][1_500_000..1_600_000].copy_from_slice(&patch);
    is_hole_within(&set.pool.read(file, None).await.unwrap());
    set.check_all().await;
    // What is written into a hole, and cut off and grown again behind it, is what it became.
    set.aggregate().await.unwrap();
    write(&set.pool, file, &[(8_000_003, &patch)]).await;
    set.contents[0][8_000_003..8_100_003].copy_from_slice(&patch);
    let session = set.pool.write(file).await.unwrap();
    session.truncate(10_000_000).await.unwrap();
    session.truncate(hole_end).await.unwrap();
    session.commit(80).await.unwrap();
    session.close(false).await.unwrap();
    set.contents[0].truncate(usize::try_from(hole_end).unwrap());
    set.check_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_pieces_are_looked_for_elsewhere_than_in_containers() {
    let mut set = Set::written(true).await;
    set.aggregate().await.unwrap();
    set.collected().await;
    let pairs = vec![("cutter".to_owned(), "fsch:4KiB".to_owned())];
    set.pool.change(Change::SetPolicy { ino: set.folder, pairs }).await.unwrap();
    let patch = Random::new(11).bytes(10_000);
    for offset in [5_000_usize, 2_000_000] {
        write(&set.pool, set.files[1], &[(offset as u64, &patch)]).await;
        set.contents[1][offset..offset + patch.len()].copy_from_slice(&patch);
    }
    let versions = set.pool.versions(set.files[1]).await.unwrap();
    let stored: Vec<u64> = versions.iter().map(|version| version.stored_bytes).collect();
    assert!(stored[1] > LENGTH as u64 / 2, "all of it anew: {stored:?}");
    assert!(stored[2] < 100_000, "only what is new: {stored:?}");
    set.collected().await;
    set.check_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_shrink_stays_as_it_is() {
    let set = Set::written(false).await;
    let raw = set.collected().await;
    let packed = set.aggregate().await.unwrap();
    assert_eq!(packed.containers, 0, "{packed:?}");
    // What was on its way to a container that nobody wants comes after a collection, too.
    wait_until("all of the container goes", async || set.collected().await == raw).await;
    assert!(set.set().await.members.iter().all(|member| !member.aggregated));
    set.check_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aggregation_that_is_stopped_or_overtaken_leaves_everything_as_it_was() {
    let set = Set::written(true).await;
    let raw = set.collected().await;
    let stopped = set.aggregate_as(set.set().await, 2, |bytes| bytes == 0).await;
    assert!(matches!(stopped, Err(AggregationError::Packing(AggregateError::Stopped))), "{stopped:?}");
    assert_eq!(set.pool.status().await.unwrap().sessions, 0);
    assert_eq!(set.collected().await, raw);
    let old = set.set().await;
    write(&set.pool, set.files[3], &[(0, b"another version")]).await;
    let overtaken = set.aggregate_as(old, 1, |_| true).await;
    let is_gone = |error: &AggregationError| matches!(error, AggregationError::Pool(failure) if failure.code == ErrorCode::NotFound);
    assert!(overtaken.as_ref().is_err_and(is_gone), "{overtaken:?}");
    assert!(set.set().await.members.iter().all(|member| !member.aggregated));
    set.check_first_bytes(3, b"another version").await;
}

impl Set {
    async fn check_first_bytes(&self, rank: usize, bytes: &[u8]) {
        let reader = self.pool.read(self.files[rank], None).await.unwrap();
        assert!(reader.read_at(0, bytes.len()).await.unwrap() == bytes);
        let rest = &self.contents[rank][bytes.len()..];
        assert!(reader.read_at(bytes.len() as u64, LENGTH).await.unwrap() == rest);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_files_and_files_of_one_byte_lie_in_containers_too() {
    let mut set = Set::written(true).await;
    for (rank, content) in [(0, &b""[..]), (1, b"x")] {
        let session = set.pool.write(set.files[rank]).await.unwrap();
        session.truncate(0).await.unwrap();
        session.write_at(0, content).await.unwrap();
        session.commit(80).await.unwrap();
        session.close(false).await.unwrap();
        set.contents[rank] = content.to_vec();
    }
    let packed = set.aggregate().await.unwrap();
    assert_eq!(packed.containers, 1, "{packed:?}");
    set.collected().await;
    for (file, content) in set.files.iter().zip(&set.contents).take(2) {
        let reader = set.pool.read(*file, None).await.unwrap();
        assert!(reader.read_at(0, 10).await.unwrap() == *content);
    }
    let (info, _, _) = set.pool.chunk_map(set.files[0], None).await.unwrap();
    assert!(info.unwrap().aggregated);
}
