//! Measures a benefactor on loopback with unique blocks: stored, durable, read cold; beside a plain file with fsync.
//!
//! `ingest [MIB] [DIRECTORY]` (256 MiB, a temporary directory). The benefactor runs as a process of its own
//! (this program again, with `serve`), so that its CPU time stands apart from the feeding client's.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that fails ends there")]

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stdchk_benefactor::store::{Donation, SEGMENT_BYTES, Store};
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest};
use stdchk_model::message::handshake::Role;
use stdchk_model::{BlockId, ChunkId, ChunkRef, Encoding, Incarnation, PoolId, ReceiptKey};
use stdchk_net::Listener;
use stdchk_net::server::Host;
use stdchk_net::transport::unix_address;
use stdchk_net::{BufferPool, Bytes, Connection, Identity, serve};

const BLOCK: usize = 1 << 20;
/// Calls in flight, as of a client with a small window.
const IN_FLIGHT: usize = 8;
const POOL: PoolId = PoolId([1; 16]);
const LIMIT: Duration = Duration::from_secs(60);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["serve", directory] => server(Path::new(directory)),
        [] => measure(256, tempfile::tempdir().unwrap().path()),
        [mib] => measure(mib.parse().unwrap(), tempfile::tempdir().unwrap().path()),
        [mib, directory] => measure(mib.parse().unwrap(), &PathBuf::from(directory)),
        _ => eprintln!("usage: ingest [MIB] [DIRECTORY]"),
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Serves a store without a manager until standard input ends.
fn server(directory: &Path) {
    let donation = Donation { donated_bytes: 1 << 40, floor_bytes: 0 };
    let (store, _) = Store::open(&directory.join("segments"), donation, SEGMENT_BYTES).unwrap();
    runtime().block_on(async {
        let address = unix_address(&std::path::absolute(directory.join("socket")).unwrap());
        let listener = Listener::bind(&address).await.unwrap();
        println!("{address}");
        let buffers = BufferPool::new(64 << 20);
        let service = stdchk_benefactor::service::Benefactor::new(
            Arc::new(store),
            (
                Arc::new(stdchk_benefactor::memory::Memory::open(directory)),
                Arc::new(stdchk_benefactor::journal::Kept::open(directory)),
            ),
            Arc::clone(&buffers),
            Incarnation(1),
            ReceiptKey([1; 32]),
        );
        let host = Host::new(Role::Benefactor, POOL, None);
        let end = tokio::task::spawn_blocking(|| {
            let _ = std::io::stdin().read(&mut [0]);
        });
        serve(listener, host, service, buffers, async {
            let _ = end.await;
        })
        .await;
    });
}

/// CPU seconds of a process, user and system.
fn cpu(pid: u32) -> (f64, f64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks = |index: usize| fields.get(index).unwrap().parse::<f64>().unwrap() / 100.0;
    (ticks(11), ticks(12))
}

fn measure(mib: usize, directory: &Path) {
    plain_file(mib, directory);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([std::ffi::OsStr::new("serve"), directory.as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut address = String::new();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut address).unwrap();
    runtime().block_on(feed(address.trim(), child.id(), mib));
    drop(child.stdin.take());
    child.wait().unwrap();
}

fn content(seed: usize) -> Bytes {
    // Unique and quick to make: one hash's output would cost more than everything that is measured.
    let mut block = vec![0u8; BLOCK];
    let mut state = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for word in block.chunks_exact_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.copy_from_slice(&state.to_le_bytes());
    }
    block.into()
}

fn plain_file(mib: usize, directory: &Path) {
    let path = directory.join("plain");
    let block = content(0);
    let start = Instant::now();
    let before = cpu(std::process::id());
    let mut file = File::create(&path).unwrap();
    for _ in 0..mib {
        file.write_all(&block).unwrap();
    }
    let written = start.elapsed();
    file.sync_all().unwrap();
    let after = cpu(std::process::id());
    println!("plain file, written    {}", rate(mib, written));
    println!("plain file, with fsync {}  {}", rate(mib, start.elapsed()), seconds(mib, before, after));
    std::fs::remove_file(path).unwrap();
}

fn rate(mib: usize, time: Duration) -> String {
    format!("{:7.0} MiB/s", mib as f64 / time.as_secs_f64())
}

fn seconds(mib: usize, before: (f64, f64), after: (f64, f64)) -> String {
    let per = |seconds: f64| seconds * 1024.0 / mib as f64;
    format!("CPU per GiB: {:.2} s user, {:.2} s system", per(after.0 - before.0), per(after.1 - before.1))
}

async fn feed(address: &str, pid: u32, mib: usize) {
    let identity = Identity { role: Role::Client, pool: Some(POOL), keys: None };
    let buffers = BufferPool::new(64 << 20);
    let connection =
        Arc::new(Connection::open(Role::Benefactor, address, &identity, &buffers).await.unwrap());
    let blocks: Vec<(BlockId, Bytes)> = (0..mib)
        .map(|seed| {
            let content = content(seed);
            (BlockId::plain(ChunkId::of(&content)), content)
        })
        .collect();
    let (own, start, before) = (cpu(std::process::id()), Instant::now(), cpu(pid));
    let puts = blocks.clone().into_iter().map(|(block, content)| {
        let chunk = ChunkRef { id: block.chunk, length: u32::try_from(content.len()).unwrap() };
        let encoding = Encoding::plain(chunk);
        (BenefactorRequest::Put { block, encoding, durable: false, insists: false }, content)
    });
    run_all(&connection, puts).await;
    let stored = start.elapsed();
    let names = blocks.iter().map(|(block, _)| *block).collect();
    let request = BenefactorRequest::Sync { blocks: names, tell: false };
    let _: (BenefactorReply, _) = connection.call(&request, Bytes::new(), LIMIT).await.unwrap();
    let durable = start.elapsed();
    println!("stored                 {}", rate(mib, stored));
    println!("durable                {}  {}", rate(mib, durable), seconds(mib, before, cpu(pid)));
    println!("  the client meanwhile                {}", seconds(mib, own, cpu(std::process::id())));
    let (start, before) = (Instant::now(), cpu(pid));
    let gets = blocks.into_iter().map(|(block, _)| (BenefactorRequest::Get { block }, Bytes::new()));
    run_all(&connection, gets).await;
    println!("read                   {}  {}", rate(mib, start.elapsed()), seconds(mib, before, cpu(pid)));
}

/// Makes all calls, [`IN_FLIGHT`] at a time.
async fn run_all(connection: &Arc<Connection>, calls: impl Iterator<Item = (BenefactorRequest, Bytes)>) {
    let mut running = tokio::task::JoinSet::new();
    for (request, payload) in calls {
        if running.len() == IN_FLIGHT {
            running.join_next().await.expect("calls are running").unwrap();
        }
        let connection = Arc::clone(connection);
        running.spawn(async move {
            let _: (BenefactorReply, _) = connection.call(&request, payload, LIMIT).await.unwrap();
        });
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
}
