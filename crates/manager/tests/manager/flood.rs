//! One member asks for much without a pause, or holds much; what another one has of the manager meanwhile. On a real store and real sockets.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use stdchk_manager::{AUTHORITY, Config, Manager};
use stdchk_model::message::handshake::Role;
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest};
use stdchk_model::{ChunkId, ClientId, ErrorCode, Ino, OpId, PoolId, SessionId};
use stdchk_net::{Authority, BufferPool, Bytes, CallError, Connection, Identity, Keys};
use tokio::sync::oneshot;

const LIMIT: Duration = Duration::from_secs(120);
/// Memory for files that are being written.
const SESSIONS_BYTES: u64 = 32 << 20;
/// Entries of the folder that is listed again and again.
const ENTRIES: u128 = 8000;
/// Connections of the member that lists it, each with as many requests under way as one may have.
const CONNECTIONS: usize = 4;
const UNDER_WAY: usize = 64;
/// Changes of the other member.
const CHANGES: u128 = 30;

/// A manager with a thread of its own, as its process has.
struct Running {
    pool: PoolId,
    address: String,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

fn start(data: &Path) -> Running {
    let mut config = Config::new(data, "127.0.0.1:0");
    config.sessions_bytes = Some(SESSIONS_BYTES);
    let (stop, stopped) = oneshot::channel();
    let (told, opened) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let manager = Manager::open(config).await.unwrap();
            told.send((manager.pool(), manager.addresses()[0].clone())).unwrap();
            manager.serve(async move { stopped.await.unwrap() }).await.unwrap();
        });
    });
    let (pool, address) = opened.recv().unwrap();
    Running { pool, address, stop, thread }
}

impl Running {
    /// Keys of a new member.
    fn member(&self, data: &Path) -> Arc<Keys> {
        let authority = Authority::open_or_create(&data.join(AUTHORITY), self.pool).unwrap();
        Arc::new(authority.keys(&[Role::Client]).unwrap().keys(Path::new("test")).unwrap())
    }

    async fn open(&self, keys: &Arc<Keys>) -> Arc<Connection> {
        let identity = Identity { role: Role::Client, pool: Some(self.pool), keys: Some(Arc::clone(keys)) };
        let opened =
            Connection::open(Role::Manager, &self.address, &identity, &BufferPool::new(1 << 20)).await;
        Arc::new(opened.unwrap())
    }

    fn stop(self) {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

async fn ask(connection: &Connection, request: &ManagerRequest) -> ManagerReply {
    connection.call(request, Bytes::new(), LIMIT).await.unwrap().0
}

fn make(parent: Ino, number: u128) -> ManagerRequest {
    let (name, kind, target) = (format!("entry {number}"), FileKind::Directory, String::new());
    let change = Change::Make { parent, name, kind, mode: 0o755, uid: 0, gid: 0, target };
    ManagerRequest::Change { id: OpId(number.to_be_bytes()), change }
}

async fn entry(connection: &Connection, request: &ManagerRequest) -> Ino {
    match ask(connection, request).await {
        ManagerReply::Entry(attr) => attr.ino,
        other => panic!("{other:?}"),
    }
}

/// How long each change takes, in order of length.
async fn changes(connection: &Connection, from: u128) -> Vec<Duration> {
    let mut took = Vec::new();
    for number in from..from + CHANGES {
        let began = Instant::now();
        entry(connection, &make(Ino::ROOT, number)).await;
        took.push(began.elapsed());
    }
    took.sort();
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_expensive_requests_of_one_member_does_not_stop_the_changes_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("manager");
    let manager = start(&data);
    let (greedy, other) = (manager.member(&data), manager.member(&data));
    let own = manager.open(&other).await;
    let large = entry(&own, &make(Ino::ROOT, 0)).await;
    let requests: Vec<_> = (1..=ENTRIES).map(|number| make(large, number)).collect();
    for part in requests.chunks(UNDER_WAY) {
        let made = part.iter().map(|request| {
            let (own, request) = (Arc::clone(&own), request.clone());
            tokio::spawn(async move { entry(&own, &request).await })
        });
        for made in made.collect::<Vec<_>>() {
            made.await.unwrap();
        }
    }
    let list = ManagerRequest::ReadDir { ino: large, after: None, limit: 65_536 };
    let began = Instant::now();
    ask(&own, &list).await;
    let one = began.elapsed();
    let quiet = changes(&own, 1_000_000).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let mut flood = Vec::new();
    for _ in 0..CONNECTIONS {
        let connection = manager.open(&greedy).await;
        for _ in 0..UNDER_WAY {
            let (connection, list, is_over) = (Arc::clone(&connection), list.clone(), Arc::clone(&is_over));
            flood.push(tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    ask(&connection, &list).await;
                }
            }));
        }
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let busy = changes(&own, 2_000_000).await;
    is_over.store(true, Ordering::Relaxed);
    for asking in flood {
        asking.await.unwrap();
    }
    let middle = |took: &[Duration]| took[took.len() / 2];
    eprintln!(
        "a change takes {:?}, beside {} requests of {one:?} each {:?}, {:?} at most",
        middle(&quiet),
        CONNECTIONS * UNDER_WAY,
        middle(&busy),
        busy[busy.len() - 1]
    );
    manager.stop();
    // It passes several times through what is ready, and the disk; behind all others it would wait for each of them.
    let most = (one * 32).max(Duration::from_millis(100));
    assert!(middle(&busy) < most, "{:?}, and a listing takes {one:?}", middle(&busy));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_without_end_in_sessions_of_one_member_are_refused_and_another_one_writes_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("manager");
    let manager = start(&data);
    let (greedy, other) =
        (manager.open(&manager.member(&data)).await, manager.open(&manager.member(&data)).await);
    let session = |number: u8| SessionId([number; 16]);
    let create = |number: u8| ManagerRequest::Create {
        session: session(number),
        client: ClientId([number; 16]),
        parent: Ino::ROOT,
        name: format!("file {number}"),
        mode: 0o644,
        uid: 0,
        gid: 0,
        exclusive: false,
        again: None,
        durability: None,
    };
    let known = |of: u8, part: u32| ManagerRequest::Known {
        session: session(of),
        chunks: (0..40_000u32)
            .map(|number| ChunkId::of(&[u32::from(of), part, number].map(u32::to_le_bytes).concat()))
            .collect(),
        room_bytes: 0,
    };
    let (mut taken, mut refusal) = (0, None);
    for number in 1..=4 {
        if greedy.call::<_, ManagerReply>(&create(number), Bytes::new(), LIMIT).await.is_err() {
            break;
        }
        for part in 0..16 {
            match greedy.call::<_, ManagerReply>(&known(number, part), Bytes::new(), LIMIT).await {
                Ok(_) => taken += 1,
                Err(CallError::Refused(refused)) => {
                    refusal = Some(refused);
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    let refusal = refusal.expect("2.5 million names are taken");
    assert_eq!(refusal.code, ErrorCode::Unavailable, "{refusal}");
    assert!(refusal.message.contains("share") && refusal.next.is_some(), "{refusal}");
    assert!((2..=10).contains(&taken), "{taken} times 40,000 names in 16 MiB");
    ask(&other, &create(100)).await;
    ask(&other, &known(100, 0)).await;
    manager.stop();
}
