//! What a fine search finds again is referred to, what is new is packed, and everything reads back as it was written.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::common::{Random, TestPool, make};
use stdchk_client::Pool;
use stdchk_model::message::manager::{Change, FileKind};
use stdchk_model::{ChunkId, Ino};

const MIB: usize = 1 << 20;

async fn folder(pool: &Pool, cutter: &str) -> Ino {
    let folder = make(pool, Ino::ROOT, "app", FileKind::Directory).await.ino;
    let pairs = [("cutter", cutter), ("redundancy", "replicate:1"), ("codec", "store")];
    let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    pool.change(Change::SetPolicy { ino: folder, pairs }).await.unwrap();
    folder
}

/// Writes a version, checks that a fresh client reads it back, and returns the bytes that were sent.
async fn write(tests: &TestPool, pool: &Pool, file: Ino, content: &[u8]) -> usize {
    let session = pool.write(file).await.unwrap();
    session.truncate(0).await.unwrap();
    for (place, block) in content.chunks(MIB).enumerate() {
        session.write_at((place * MIB) as u64, block).await.unwrap();
    }
    session.commit(0).await.unwrap();
    let stored = session.stored_bytes();
    session.close(false).await.unwrap();
    let reader = tests.connect(16 << 20).await.read(file, None).await.unwrap();
    assert_eq!(reader.size(), content.len() as u64);
    assert!(reader.read_at(0, content.len()).await.unwrap() == content);
    usize::try_from(stored).unwrap()
}

/// Names of pieces in the map: twenty bytes for each of `grain`.
fn names(content: &[u8], grain: usize) -> usize {
    content.len() / grain * 24 + 4096
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_that_changed_here_and_there_are_all_that_is_stored() {
    let tests = TestPool::start(2).await;
    let pool = tests.connect(32 << 20).await;
    let folder = folder(&pool, "fsch:4KiB").await;
    let mut random = Random::new(3);
    let mut content = random.bytes(9 * MIB + 1234);
    let names = names(&content, 4096);
    let stored =
        write(&tests, &pool, make(&pool, folder, "core.1", FileKind::File).await.ino, &content).await;
    assert!((content.len()..content.len() + names).contains(&stored), "{stored}");
    let mut all = (0, 0);
    for step in 2..36 {
        // One page in forty changes, in a new file of the next timestep.
        let mut changed = 0;
        for page in (0..content.len() / 4096).filter(|page| (page * 7 + step) % 40 == 0) {
            content[page * 4096 + 99] ^= 1;
            changed += 4096;
        }
        let file = make(&pool, folder, &format!("core.{step}"), FileKind::File).await.ino;
        let stored = write(&tests, &pool, file, &content).await;
        // Names of what changed, in some versions of what changed since the last list, and the extents.
        let most = if step < 6 { changed + 40_000 } else { content.len() / 2 };
        assert!((changed..=most).contains(&stored), "step {step}: {stored} bytes stored, {changed} changed");
        all = (all.0 + stored, all.1 + changed);
        let (_, map, _) = pool.chunk_map(file, None).await.unwrap();
        let lists = map.lists().count();
        assert!((1..=16).contains(&lists) && map.pieces().len() <= 1024, "step {step}: {lists} lists");
    }
    assert!(all.0 < 4 * all.1, "{} bytes stored, {} changed", all.0, all.1);
}

/// Memory of this process, page behind page: what a dumper of process images writes behind its header.
fn memory_of_this_process(bytes_max: usize) -> Vec<u8> {
    let memory = File::open("/proc/self/mem").unwrap();
    let mut image = Vec::new();
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).unwrap());
        let mut bytes = vec![0; usize::try_from(end - start).unwrap().min(bytes_max - image.len())];
        if rest.starts_with('r') && memory.read_exact_at(&mut bytes, start).is_ok() {
            image.extend(bytes);
        }
    }
    image
}

/// What two images of a process, behind headers of these lengths, take in a pool of their own: bytes of the second one.
async fn stored_behind(headers: [usize; 2], images: &[Vec<u8>; 2]) -> usize {
    let tests = TestPool::start(1).await;
    let pool = tests.connect(32 << 20).await;
    let folder = folder(&pool, "fsch:4KiB").await;
    let file = make(&pool, folder, "image", FileKind::File).await.ino;
    let mut stored = 0;
    for (length, image) in headers.into_iter().zip(images) {
        let header = Random::new(length as u64).bytes(length);
        stored = write(&tests, &pool, file, &[&header, image.as_slice()].concat()).await;
    }
    stored
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pages_of_a_process_are_found_wherever_a_header_puts_them() {
    let mut before = memory_of_this_process(24 * MIB);
    // Some of its pages change, and some are new.
    let mut random = Random::new(314);
    let mut now = [random.bytes(16 * 4096), before.clone()].concat();
    for page in (0..now.len() / 4096).step_by(30) {
        now[page * 4096] ^= 1;
    }
    before.truncate(before.len() / 4096 * 4096);
    let images = [before, now];
    let bare = stored_behind([0, 0], &images).await;
    for headers in [[314, 314], [314, 426], [0, 8968]] {
        let stored = stored_behind(headers, &images).await;
        assert!(
            stored.abs_diff(bare) < images[1].len() / 100,
            "{stored} bytes behind {headers:?}, {bare} without, of {}",
            images[1].len()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_moved_is_found_again() {
    let tests = TestPool::start(2).await;
    let pool = tests.connect(32 << 20).await;
    let folder = folder(&pool, "cdc:16KiB").await;
    let mut content = Random::new(5).bytes(12 * MIB);
    let file = make(&pool, folder, "state", FileKind::File).await.ino;
    write(&tests, &pool, file, &content).await;
    content.splice(5 * MIB..5 * MIB, b"five bytes are inserted".iter().copied());
    content.drain(MIB..MIB + 777);
    let stored = write(&tests, &pool, file, &content).await;
    let lost = content.len() / 20 + names(&content, 16 << 10);
    assert!(stored < lost, "{stored} bytes stored for a shift, {lost} are too many");
}

#[tokio::test(flavor = "multi_thread")]
async fn repeats_and_zeros_within_a_file_are_stored_once_or_never() {
    let tests = TestPool::start(2).await;
    let pool = tests.connect(32 << 20).await;
    let folder = folder(&pool, "fsch:8KiB").await;
    let block = Random::new(8).bytes(64 << 10);
    let mut content = block.repeat(100);
    content.extend(vec![0; 5 * MIB]);
    content.extend(&block);
    let file = make(&pool, folder, "tables", FileKind::File).await.ino;
    let stored = write(&tests, &pool, file, &content).await;
    // Cells are stored side by side, so each of the first may store the block before it hears of the others.
    assert!(stored < 4 * block.len() + names(&block, 8 << 10), "{stored}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_in_place_keeps_the_untouched_parts_whatever_was_written_between() {
    update_in_place("cdc:32KiB", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_does_one_of_a_file_whose_pieces_lie_behind_a_header() {
    update_in_place("fsch:4KiB", &[7; 314]).await;
}

/// Updates a file of a folder with this cutter that was written twice before, the second time with a header.
async fn update_in_place(cutter: &str, header: &[u8]) {
    let tests = TestPool::start(3).await;
    let pool = tests.connect(32 << 20).await;
    let folder = folder(&pool, cutter).await;
    let file = make(&pool, folder, "log", FileKind::File).await.ino;
    let mut random = Random::new(11);
    let mut content = random.bytes(10 * MIB);
    write(&tests, &pool, file, &content).await;
    content.splice(0..0, header.iter().copied());
    let stored = write(&tests, &pool, file, &content).await;
    assert!(stored < MIB, "{stored} bytes stored for a header");
    for round in 0..12 {
        let session = pool.write(file).await.unwrap();
        for _ in 0..3 {
            let at = usize::try_from(random.below(content.len() as u64 + 50_000)).unwrap();
            let length = usize::try_from(random.below(40_000)).unwrap() + 1;
            let bytes = random.bytes(length);
            content.resize(content.len().max(at + length), 0);
            content[at..at + length].copy_from_slice(&bytes);
            session.write_at(at as u64, &bytes).await.unwrap();
        }
        if round % 4 == 3 {
            content.truncate(content.len() - 100_000);
            session.truncate(content.len() as u64).await.unwrap();
        }
        session.commit(0).await.unwrap();
        let stored = usize::try_from(session.stored_bytes()).unwrap();
        assert!(stored < (3 << 20) + names(&content, 32 << 10), "round {round}: {stored}");
        session.close(false).await.unwrap();
        let reader = tests.connect(16 << 20).await.read(file, None).await.unwrap();
        assert!(reader.read_at(0, content.len() + 1).await.unwrap() == content, "round {round}");
    }
}

/// A cell of a file that is cut into small pieces, bytes.
const CELL: u64 = 4 << 20;
/// Earlier chunks that a cell may refer to, and chunks that its own bytes can fill.
const EARLIER_CHUNKS_MAX: usize = 8;
const OWN_CHUNKS_MAX: usize = 5;

/// How many chunks a reader has to fetch for each cell of a version.
async fn fetches(pool: &Pool, file: Ino, version: u64) -> Vec<usize> {
    let (_, map, _) = pool.chunk_map(file, Some(version)).await.unwrap();
    let mut cells: BTreeMap<u64, HashSet<ChunkId>> = BTreeMap::new();
    let mut at = 0;
    for extent in map.extents() {
        let chunk = map.chunk_of(extent).unwrap().id;
        for cell in at / CELL..=(at + extent.length - 1) / CELL {
            cells.entry(cell).or_default().insert(chunk);
        }
        at += extent.length;
    }
    cells.into_values().map(|chunks| chunks.len()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_of_fifty_versions_is_read_from_as_few_chunks_as_the_bound_says() {
    let tests = TestPool::start(2).await;
    let pool = tests.connect(32 << 20).await;
    let folder = folder(&pool, "fsch:4KiB").await;
    let file = make(&pool, folder, "state", FileKind::File).await.ino;
    let mut random = Random::new(50);
    let mut content = random.bytes(8 * MIB);
    let mut stored = Vec::new();
    for version in 0..50 {
        // Scattered pages, others in each version: without a bound a cell would end up with pieces of all fifty.
        for page in (0..content.len() / 4096).filter(|page| (page * 31 + version * 17) % 64 == 0) {
            content[page * 4096..][..4096].copy_from_slice(&random.bytes(4096));
        }
        let session = pool.write(file).await.unwrap();
        session.truncate(0).await.unwrap();
        session.write_at(0, &content).await.unwrap();
        session.commit(0).await.unwrap();
        stored.push(usize::try_from(session.stored_bytes()).unwrap());
        session.close(false).await.unwrap();
    }
    let most = EARLIER_CHUNKS_MAX + OWN_CHUNKS_MAX;
    for version in 1..=50 {
        let cells = fetches(&pool, file, version).await;
        assert!(
            cells.len() == 2 && cells.iter().all(|chunks| *chunks <= most),
            "version {version}: {cells:?}"
        );
    }
    // The bound is reached, or this test would say nothing; and what it costs in space is little.
    assert!(fetches(&pool, file, 50).await.iter().any(|chunks| *chunks > EARLIER_CHUNKS_MAX));
    let added: usize = stored[1..].iter().sum();
    assert!(added < 49 * content.len() / 4, "{added} bytes for 49 versions of which a 64th is new");
    let reader = tests.connect(16 << 20).await.read(file, None).await.unwrap();
    assert!(reader.read_at(0, content.len() + 1).await.unwrap() == content);
}

/// A file of so many bytes in small pieces, after twenty versions of which each changed a tenth of its pages.
async fn scattered(tests: &TestPool, bytes: usize) -> (Ino, Vec<u8>) {
    let pool = tests.connect(32 << 20).await;
    let folder = folder(&pool, "fsch:4KiB").await;
    let file = make(&pool, folder, "state", FileKind::File).await.ino;
    let mut random = Random::new(20);
    let mut content = random.bytes(bytes);
    for _ in 0..20 {
        for _ in 0..bytes / 4096 / 10 {
            let page = usize::try_from(random.below(bytes as u64 / 4096)).unwrap();
            content[page * 4096..][..4096].copy_from_slice(&random.bytes(4096));
        }
        write(tests, &pool, file, &content).await;
    }
    (file, content)
}

/// Bytes of the chunks that hold a file.
async fn chunk_bytes(pool: &Pool, file: Ino) -> u64 {
    let (_, map, _) = pool.chunk_map(file, None).await.unwrap();
    let chunks = map.extents().iter().filter_map(|extent| map.chunk_of(extent));
    let lengths: BTreeMap<ChunkId, u32> = chunks.map(|chunk| (chunk.id, chunk.length)).collect();
    lengths.into_values().map(u64::from).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_has_each_of_its_chunks_fetched_once_however_small_the_cache() {
    let tests = TestPool::start(2).await;
    let (file, content) = scattered(&tests, 4 * MIB).await;
    let pool = tests.connect_with_cache(4 << 20, 1 << 20).await;
    let reader = pool.read(file, None).await.unwrap();
    assert!(reader.read_at(0, content.len()).await.unwrap() == content);
    assert_eq!(pool.fetched_bytes(), chunk_bytes(&pool, file).await);
    let spare = pool.fetched_bytes() - content.len() as u64;
    assert!(spare > MIB as u64, "its pieces lie among others: {spare}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_read_front_to_back_has_each_chunk_fetched_once() {
    let tests = TestPool::start(2).await;
    let (file, content) = scattered(&tests, 32 * MIB).await;
    // Room for what is read ahead, which is half of it, and for the chunks of one cell.
    let pool = tests.connect_with_cache(4 << 20, 24 << 20).await;
    let reader = pool.read(file, None).await.unwrap();
    for (place, expected) in content.chunks(MIB).enumerate() {
        assert!(reader.read_at((place * MIB) as u64, MIB).await.unwrap() == expected, "mebibyte {place}");
    }
    assert_eq!(pool.fetched_bytes(), chunk_bytes(&pool, file).await);
}
