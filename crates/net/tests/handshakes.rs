//! What strangers make a server compute takes nothing from the thread on which it answers members. On real sockets.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use stdchk_model::message::handshake::Role;
use stdchk_model::{Failure, PoolId};
use stdchk_net::server::Host;
use stdchk_net::{
    Authority, Buffer, BufferPool, Bytes, Caller, Connection, Identity, Keys, Listener, Service, serve,
};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const STRANGERS: u64 = 300;

/// Answers with the processor time that its thread has taken, nanoseconds.
struct Clock;

impl Service for Clock {
    type Request = u64;
    type Reply = u64;

    async fn handle(&self, _: Caller, _: u64, _: Buffer) -> Result<(u64, Bytes), Failure> {
        let taken = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
        Ok((u64::try_from(taken.as_nanos()).unwrap(), Bytes::new()))
    }
}

fn authority(folder: &Path, pool: PoolId) -> Authority {
    Authority::open_or_create(folder, pool).unwrap()
}

fn keys(authority: &Authority, role: Role) -> Option<Arc<Keys>> {
    Some(Arc::new(authority.keys(&[role]).unwrap().keys(Path::new("test")).unwrap()))
}

async fn open(address: &str, keys: Option<Arc<Keys>>) -> Result<Connection, stdchk_net::CallError> {
    let identity = Identity { role: Role::Client, pool: None, keys };
    Connection::open(Role::Manager, address, &identity, &BufferPool::new(1 << 20)).await
}

/// Processor time of the thread for handshakes, nanoseconds, and how nice it is.
fn of_handshakes() -> Option<(u64, i32)> {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let is_it = |thread: &std::path::PathBuf| {
        fs::read_to_string(thread.join("comm")).is_ok_and(|name| name == "handshakes\n")
    };
    let thread = threads.map(|thread| thread.unwrap().path()).find(is_it)?;
    let taken = fs::read_to_string(thread.join("schedstat")).unwrap();
    let about = fs::read_to_string(thread.join("stat")).unwrap();
    let nice = about.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap();
    Some((taken.split_whitespace().next().unwrap().parse().unwrap(), nice.parse().unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_of_strangers_take_no_time_of_the_thread_that_answers_members() {
    let folder = TempDir::new().unwrap();
    let own = authority(&folder.path().join("own"), PoolId([1; 16]));
    let other = authority(&folder.path().join("other"), PoolId([1; 16]));
    let host = Host::new(Role::Manager, PoolId([1; 16]), keys(&own, Role::Manager));
    let (tell, address) = std::sync::mpsc::channel();
    // As a manager runs: one thread.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = Listener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.addresses().unwrap().remove(0)).unwrap();
            serve(listener, host, Arc::new(Clock), BufferPool::new(1 << 20), std::future::pending()).await;
        });
    });
    let address = address.recv().unwrap();
    let member = open(&address, keys(&own, Role::Client)).await.unwrap();
    let taken = async || member.call::<u64, u64>(&0, Bytes::new(), LIMIT).await.unwrap().0;
    let nice_of_all = rustix::process::getpriority_process(None).unwrap();
    let (before, before_there) = (taken().await, of_handshakes().unwrap_or_default().0);
    let stranger = keys(&other, Role::Client);
    for _ in 0..STRANGERS {
        assert!(open(&address, stranger.clone()).await.is_err());
    }
    let of_server = taken().await - before;
    let (there, nice) = of_handshakes().unwrap_or_default();
    let there = there - before_there;
    println!(
        "for each of {STRANGERS} strangers: {} us of the server's thread, {} us elsewhere",
        of_server / STRANGERS / 1_000,
        there / STRANGERS / 1_000
    );
    assert!(there > of_server, "{of_server} ns of the server's thread, and {there} ns elsewhere");
    assert_eq!(nice, nice_of_all + 5);
}
