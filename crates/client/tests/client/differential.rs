//! A session does what a plain array of bytes does, whatever is done to it, and a commit keeps exactly that.

use std::sync::Arc;

use crate::common::{Random, TestPool, file_with};
use stdchk_client::{Pool, Session};
use stdchk_model::Ino;

const FILE_MAX: u64 = 5 << 20;

struct Twin {
    pool: Pool,
    ino: Ino,
    session: Arc<Session>,
    model: Vec<u8>,
    committed: Vec<u8>,
}

impl Twin {
    async fn step(&mut self, random: &mut Random) {
        match random.below(100) {
            0..=39 => self.write(random).await,
            40..=49 => self.write_room(random).await,
            50..=74 => self.read(random).await,
            75..=84 => self.truncate(random).await,
            85..=94 => self.commit().await,
            _ => self.reopen().await,
        }
    }

    async fn write(&mut self, random: &mut Random) {
        let length = match random.below(4) {
            0 => random.below(40) + 1,
            1 => random.below(5000) + 1,
            2 => random.below(200_000) + 1,
            _ => random.below(2 << 20) + 1,
        };
        let offset = if random.below(3) == 0 { self.model.len() as u64 } else { random.below(FILE_MAX) };
        let (offset, length) = (usize::try_from(offset).unwrap(), usize::try_from(length).unwrap());
        let data = match random.below(5) {
            0 => vec![0; length],
            // What the file had elsewhere: a grid of pieces is then found at another phase.
            1 if !self.committed.is_empty() => self.committed.iter().copied().cycle().take(length).collect(),
            _ => random.bytes(length),
        };
        self.session.write_at(offset as u64, &data).await.unwrap();
        self.expect(offset, &data);
    }

    /// Most often where a cell begins.
    async fn write_room(&mut self, random: &mut Random) {
        let mut room = self.session.room().await.unwrap();
        let offset = match random.below(4) {
            0 => random.below(FILE_MAX),
            _ => random.below(FILE_MAX >> 20) << 20,
        };
        let all = room.bytes().len() as u64;
        let length = if random.below(2) == 0 { all } else { random.below(all + 1) };
        let data = random.bytes(usize::try_from(length).unwrap());
        room.bytes()[..data.len()].copy_from_slice(&data);
        self.session.write_room(offset, room, data.len()).await.unwrap();
        self.expect(usize::try_from(offset).unwrap(), &data);
    }

    fn expect(&mut self, offset: usize, data: &[u8]) {
        if !data.is_empty() {
            self.model.resize(self.model.len().max(offset + data.len()), 0);
            self.model[offset..offset + data.len()].copy_from_slice(data);
        }
    }

    async fn read(&mut self, random: &mut Random) {
        let offset = usize::try_from(random.below(FILE_MAX)).unwrap();
        let length = usize::try_from(random.below(3 << 20)).unwrap();
        let got = self.session.read_at(offset as u64, length).await.unwrap();
        let end = self.model.len().min(offset + length);
        assert!(got == self.model[offset.min(end)..end], "read of {length} at {offset}");
    }

    async fn truncate(&mut self, random: &mut Random) {
        let size = random.below(FILE_MAX);
        self.session.truncate(size).await.unwrap();
        self.model.resize(usize::try_from(size).unwrap(), 0);
        assert_eq!(self.session.size(), size);
    }

    async fn commit(&mut self) {
        self.session.commit(0).await.unwrap();
        self.committed = self.model.clone();
        self.check_committed().await;
    }

    async fn check_committed(&self) {
        let reader = self.pool.read(self.ino, None).await.unwrap();
        assert_eq!(reader.size(), self.committed.len() as u64);
        let got = reader.read_at(0, self.committed.len()).await.unwrap();
        assert!(got == self.committed, "the committed version differs");
    }

    async fn reopen(&mut self) {
        self.session.close(false).await.unwrap();
        self.session = self.pool.write(self.ino).await.unwrap();
        self.model = self.committed.clone();
        assert_eq!(self.session.size(), self.model.len() as u64);
    }
}

async fn run(policy: (&str, &str), seed: u64, steps: u32) {
    let pools = TestPool::start(3).await;
    let pool = pools.connect(6 << 20).await;
    let ino = file_with(&pool, &[("redundancy", "replicate:1"), policy]).await;
    let session = pool.write(ino).await.unwrap();
    let mut twin = Twin { pool, ino, session, model: Vec::new(), committed: Vec::new() };
    let mut random = Random::new(seed);
    for _ in 0..steps {
        twin.step(&mut random).await;
    }
    twin.commit().await;
    twin.reopen().await;
    twin.check_committed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_mebibytes() {
    for seed in 1..=3 {
        run(("cutter", "fsch:1MiB"), seed, 150).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bursts_that_are_held_back() {
    for seed in 31..=33 {
        run(("close", "early"), seed, 150).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_chunks() {
    run(("cutter", "fsch:64KiB"), 11, 150).await;
    run(("cutter", "fsch:4KiB"), 12, 60).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_defined_pieces() {
    run(("cutter", "cdc:64KiB"), 21, 150).await;
}
