//! A pool in this process: a real manager and real benefactors on loopback sockets and a temporary disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stdchk_benefactor::load::Thresholds;
use stdchk_client::{ClientConfig, Pool};
use stdchk_manager::Manager;
use stdchk_manager::core::Timing;
use stdchk_model::message::manager::{Attr, BenefactorState, Change, FileKind};
use stdchk_model::{Ino, Tier};
use stdchk_net::transport::{socket_of, unix_address};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const DONATED: u64 = 4 << 30;
/// Time in which whatever is waited for must have happened.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// How long clients wait for the manager.
const CLIENT_PATIENCE: Duration = Duration::from_secs(20);

pub struct TestPool {
    pub dir: TempDir,
    pub manager: String,
    timing: Timing,
    manager_task: JoinHandle<()>,
    benefactor_tasks: Vec<JoinHandle<()>>,
}

impl TestPool {
    pub async fn start(benefactors: usize) -> Self {
        Self::start_with(benefactors, Timing::default()).await
    }

    pub async fn start_with(benefactors: usize, timing: Timing) -> Self {
        let dir = TempDir::new().unwrap();
        let socket = unix_address(&dir.path().join("manager.sock"));
        let (manager, manager_task) = start_manager(&dir, &socket, timing).await;
        let mut pool = Self { dir, manager, timing, manager_task, benefactor_tasks: Vec::new() };
        (0..benefactors).for_each(|number| pool.start_benefactor(number));
        pool.wait_online(benefactors).await;
        pool
    }

    pub fn start_benefactor(&mut self, number: usize) {
        self.start_benefactor_beating(number, Duration::from_millis(50));
    }

    pub fn start_benefactor_beating(&mut self, number: usize, heartbeat: Duration) {
        self.start_benefactor_on(number, heartbeat, Thresholds::default());
    }

    /// One that counts as busy from these loads on.
    pub fn start_benefactor_with(&mut self, number: usize, thresholds: Thresholds) {
        self.start_benefactor_on(number, Duration::from_millis(50), thresholds);
    }

    fn start_benefactor_on(&mut self, number: usize, heartbeat: Duration, thresholds: Thresholds) {
        let data = data_of(&self.dir, number);
        let listen = unix_address(&data_of(&self.dir, number).join("socket"));
        let mut config = stdchk_benefactor::Config::new(data, self.manager.clone(), listen, DONATED);
        config.floor_bytes = 0;
        // The folder of a test may lie in memory.
        config.tier = Some(Tier::Disk);
        config.heartbeat = heartbeat;
        config.thresholds = thresholds;
        let run = stdchk_benefactor::run(config, std::future::pending());
        self.benefactor_tasks.push(tokio::spawn(async move { run.await.unwrap() }));
    }

    /// Ends a benefactor as if its process were killed, from the network's point of view.
    pub async fn stop_benefactor(&mut self, number: usize) {
        let task = &mut self.benefactor_tasks[number];
        task.abort();
        let _ = task.await;
    }

    pub async fn restart_manager(&mut self) {
        self.stop_manager().await;
        self.start_manager().await;
    }

    pub async fn stop_manager(&mut self) {
        self.manager_task.abort();
        let _ = (&mut self.manager_task).await;
    }

    pub async fn start_manager(&mut self) {
        let (_, task) = start_manager(&self.dir, &self.manager.to_string(), self.timing).await;
        self.manager_task = task;
    }

    pub async fn connect(&self, window_bytes: u64) -> Pool {
        self.connect_with_cache(window_bytes, 8 << 20).await
    }

    /// Connects a client that waits for the manager for so long.
    pub async fn connect_for(&self, window_bytes: u64, patience: Duration) -> Pool {
        connect(&self.manager, window_bytes, 8 << 20, patience).await
    }

    pub async fn connect_with_cache(&self, window_bytes: u64, read_cache_bytes: u64) -> Pool {
        connect(&self.manager, window_bytes, read_cache_bytes, CLIENT_PATIENCE).await
    }

    pub async fn wait_online(&self, count: usize) {
        let pool = self.connect(4 << 20).await;
        for _ in 0..400 {
            let status = pool.status().await.unwrap();
            let online = status.benefactors.iter().filter(|one| one.state == BenefactorState::Online).count();
            if online >= count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{count} benefactors did not come on-line");
    }
}

fn data_of(dir: &TempDir, number: usize) -> PathBuf {
    dir.path().join(format!("benefactor{number}"))
}

async fn connect(manager: &str, window_bytes: u64, read_cache_bytes: u64, patience: Duration) -> Pool {
    let config = ClientConfig {
        manager: manager.to_string(),
        window_bytes,
        read_cache_bytes,
        patience,
        ..ClientConfig::default()
    };
    Pool::connect(config).await.unwrap()
}

/// A way to the manager that can be shut for a while: then it takes its client for gone.
pub struct Gate {
    folder: TempDir,
    is_open: watch::Sender<bool>,
    /// Number of the last request that came this way.
    last_request: Arc<AtomicU64>,
}

impl Gate {
    pub async fn to(manager: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let listener = UnixListener::bind(folder.path().join("gate")).unwrap();
        let (manager, is_open) = (socket_of(manager).unwrap().to_owned(), watch::Sender::new(true));
        let (opened, last_request) = (is_open.subscribe(), Arc::new(AtomicU64::new(0)));
        let number = Arc::clone(&last_request);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (requests, answers) = client.into_split();
                let (from, to) = UnixStream::connect(&manager).await.unwrap().into_split();
                tokio::spawn(pass(requests, to, opened.clone(), Some(Arc::clone(&number))));
                tokio::spawn(pass(from, answers, opened.clone(), None));
            }
        });
        Self { folder, is_open, last_request }
    }

    /// How many requests a client has sent this way that waits for the answer to each.
    pub fn requests(&self) -> u64 {
        self.last_request.load(Ordering::SeqCst)
    }

    pub fn set_open(&self, is_open: bool) {
        self.is_open.send_replace(is_open);
    }

    pub async fn connect(&self, window_bytes: u64) -> Pool {
        connect(&unix_address(&self.folder.path().join("gate")), window_bytes, 8 << 20, CLIENT_PATIENCE).await
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut is_open: watch::Receiver<bool>,
    number: Option<Arc<AtomicU64>>,
) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        if let (Some(number), b"SCK1") = (&number, &bytes[..4]) {
            number.store(u64::from_le_bytes(bytes[8..16].try_into().unwrap()), Ordering::SeqCst);
        }
        let opened = is_open.wait_for(|is_open| *is_open).await.is_ok();
        if !opened || to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}

/// Waits for something that has to come.
pub async fn wait_until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done().await {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn start_manager(dir: &TempDir, listen: &str, timing: Timing) -> (String, JoinHandle<()>) {
    let mut last = None;
    for _ in 0..200 {
        let config = stdchk_manager::Config::new(dir.path().join("manager"), listen);
        let config = stdchk_manager::Config { timing, ..config };
        match Manager::open(config).await {
            Ok(manager) => {
                let address = manager.addresses()[0].clone();
                let task = tokio::spawn(async move { manager.serve(std::future::pending()).await.unwrap() });
                return (address, task);
            }
            // The one before is still letting go of its directory and port.
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("the manager doesn't start: {}", last.unwrap());
}

pub async fn make(pool: &Pool, parent: Ino, name: &str, kind: FileKind) -> Attr {
    let (name, target) = (name.to_owned(), String::new());
    let change = Change::Make { parent, name, kind, mode: 0o755, uid: 0, gid: 0, target };
    pool.change(change).await.unwrap().unwrap()
}

/// A folder with a policy and one empty file in it.
pub async fn file_with(pool: &Pool, policy: &[(&str, &str)]) -> Ino {
    let folder = make(pool, Ino::ROOT, &format!("app{}", policy.len()), FileKind::Directory).await.ino;
    let pairs = policy.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    pool.change(Change::SetPolicy { ino: folder, pairs }).await.unwrap();
    make(pool, folder, "a.N0.T1", FileKind::File).await.ino
}

/// Numbers from a seed; the same on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(length).collect()
    }
}
