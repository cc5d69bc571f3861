//! Budgets: whatever the order of sizes, small and large, written and read, nobody waits for ever, and every byte comes back.

use crate::common::{PATIENCE, Random, TestPool, make};
use stdchk_client::Pool;
use stdchk_model::Ino;
use stdchk_model::message::manager::{Change, FileKind};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The smallest window, and a cache of the size of a chunk.
const WINDOW: u64 = 4 << 20;
const CACHE: u64 = 1 << 20;
/// Files of a round. The small ones alone are more than the units of all memory for answers of benefactors.
const SMALL_FILES: usize = 480;
const FILES_OF_ANY_SIZE: usize = 32;
/// Files are of less than two to this power bytes.
const SIZE_POWER_MAX: u64 = 22;
const SMALL_POWER_MAX: u64 = 10;
/// Tasks that write, and that read.
const WRITERS: usize = 12;
const READERS: usize = 24;

#[derive(Clone, Copy)]
struct Twin {
    ino: Ino,
    seed: u64,
    length: usize,
}

impl Twin {
    fn content(&self) -> Vec<u8> {
        Random::new(self.seed).bytes(self.length)
    }

    /// Writes the file in pieces of any size, in any order of halves.
    async fn write(&self, pool: &Pool) {
        let (content, mut random) = (self.content(), Random::new(self.seed + 1));
        let session = pool.write(self.ino).await.unwrap();
        let middle = below(&mut random, content.len() + 1);
        for part in [middle..content.len(), 0..middle] {
            let mut at = part.start;
            while at < part.end {
                let length = (1 + below(&mut random, 300_000)).min(part.end - at);
                session.write_at(at as u64, &content[at..at + length]).await.unwrap();
                at += length;
            }
        }
        session.commit(0).await.unwrap();
        session.close(false).await.unwrap();
    }

    /// Reads the file in pieces of any size.
    async fn read(&self, pool: &Pool, random: &mut Random) {
        let (content, reader) = (self.content(), pool.read(self.ino, None).await.unwrap());
        assert_eq!(reader.size(), content.len() as u64);
        let mut at = 0;
        while at < content.len() {
            let bytes = reader.read_at(at as u64, 1 + below(random, 1 << 20)).await.unwrap();
            assert!(!bytes.is_empty() && content[at..at + bytes.len()] == bytes, "file {}", self.ino);
            at += bytes.len();
        }
    }
}

fn below(random: &mut Random, limit: usize) -> usize {
    usize::try_from(random.below(limit.max(1) as u64)).unwrap()
}

/// So many tasks do something with each of the files, in this order.
async fn each<F>(tasks: usize, files: &[Twin], work: impl Fn(Twin, u64) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut running = JoinSet::new();
    for (number, file) in files.iter().enumerate() {
        while running.len() >= tasks {
            running.join_next().await.unwrap().unwrap();
        }
        running.spawn(work(*file, number as u64));
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
}

async fn round(pool: &Pool, folder: Ino, seed: u64) {
    let mut random = Random::new(seed);
    let powers =
        (0..SMALL_FILES).map(|_| SMALL_POWER_MAX).chain((0..FILES_OF_ANY_SIZE).map(|_| SIZE_POWER_MAX));
    let mut files = Vec::new();
    for (number, power_max) in powers.enumerate() {
        let power = 1 + random.below(power_max);
        let length = below(&mut random, 1 << power);
        let ino = make(pool, folder, &format!("{seed}.{number}"), FileKind::File).await.ino;
        files.push(Twin { ino, seed: seed << 32 | (number as u64) << 1, length });
    }
    // Small ones first and large ones last, as they stand; then in any order.
    for pass in 0..3 {
        let tasks = if pass == 0 { WRITERS } else { READERS };
        each(tasks, &files, |file, number| {
            let (pool, mut random) = (pool.clone(), Random::new(seed + number));
            async move {
                if pass == 0 {
                    file.write(&pool).await;
                } else {
                    file.read(&pool, &mut random).await;
                }
            }
        })
        .await;
        for place in (1..files.len()).rev() {
            files.swap(place, below(&mut random, place + 1));
        }
    }
    // Half of the files are written anew while all others are read.
    let (written, read) = files.split_at(files.len() / 2);
    let rewrite = each(WRITERS, written, |file, _| {
        let pool = pool.clone();
        async move { Twin { length: file.length / 2, ..file }.rewrite(&pool).await }
    });
    let reread = each(READERS, read, |file, number| {
        let (pool, mut random) = (pool.clone(), Random::new(seed + number));
        async move { file.read(&pool, &mut random).await }
    });
    tokio::join!(rewrite, reread);
}

impl Twin {
    /// Cuts the file off, and appends to it.
    async fn rewrite(&self, pool: &Pool) {
        let content = self.content();
        let session = pool.write(self.ino).await.unwrap();
        session.truncate(content.len() as u64).await.unwrap();
        session.write_at(content.len() as u64, b"appended").await.unwrap();
        session.commit(0).await.unwrap();
        session.close(false).await.unwrap();
        let reader = pool.read(self.ino, None).await.unwrap();
        let bytes = reader.read_at(content.len() as u64, 100).await.unwrap();
        assert_eq!(bytes, &b"appended"[..]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_all_sizes_are_written_and_read_in_any_order_within_the_smallest_budgets() {
    let rounds = std::env::var("STDCHK_BUDGET_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    let pools = TestPool::start(2).await;
    let pool = pools.connect_with_cache(WINDOW, CACHE).await;
    let folder = make(&pool, Ino::ROOT, "app", FileKind::Directory).await.ino;
    let pairs = vec![("redundancy".to_owned(), "replicate:1".to_owned())];
    pool.change(Change::SetPolicy { ino: folder, pairs }).await.unwrap();
    for seed in 1..=rounds {
        let ended = timeout(PATIENCE, round(&pool, folder, seed)).await;
        ended.unwrap_or_else(|_| panic!("round {seed}: somebody waits for ever"));
    }
}
