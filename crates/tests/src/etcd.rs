//! A real etcd on loopback, which a test kills, stops and starts again, and a gate in front of it that delays or loses answers.
//!
//! `scripts/setup test` unpacks etcd into `.tools`. It runs as a child of the test, never as a service.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::wait::wait_until;

/// An etcd of one member that is ended with its test.
pub struct EtcdServer {
    folder: TempDir,
    ports: Mutex<(u16, u16)>,
    running: Mutex<Option<Child>>,
}

impl EtcdServer {
    /// Starts an empty one.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Self { folder, ports: Mutex::default(), running: Mutex::default() };
        wait_until("etcd runs", || {
            *server.ports.lock().unwrap() = (free_port(), free_port());
            // Someone else may have taken a port meanwhile: then it ends, and others are tried.
            server.try_run()
        });
        server
    }

    fn try_run(&self) -> bool {
        let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/etcd/usr/bin/etcd");
        assert!(binary.is_file(), "{} is missing: `scripts/setup test` unpacks it", binary.display());
        let (client, peer) = *self.ports.lock().unwrap();
        let [client_url, peer_url] = [client, peer].map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = Command::new(binary);
        command.arg("--data-dir").arg(self.folder.path().join("data"));
        command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
        command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
        command.args(["--initial-cluster", &format!("default={peer_url}")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        wait_until("etcd answers or ends", || child.try_wait().unwrap().is_some() || self.answers(client));
        let runs = child.try_wait().unwrap().is_none();
        *self.running.lock().unwrap() = runs.then_some(child);
        runs
    }

    fn answers(&self, port: u16) -> bool {
        let asked = post(port, "kv/range", r#"{"key":"AA=="}"#);
        asked.is_some_and(|answer| answer.contains("cluster_id"))
    }

    /// Starts it again with what it has, at the same address.
    pub fn restart(&self) {
        self.kill();
        wait_until("etcd runs again", || self.try_run());
    }

    /// SIGKILL, as the end of its machine.
    pub fn kill(&self) {
        if let Some(mut child) = self.running.lock().unwrap().take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Lets it stand still, or go on.
    pub fn signal(&self, signal: Signal) {
        let pid = self.running.lock().unwrap().as_ref().map(Child::id).unwrap();
        kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
    }

    /// Forgets all that was written over.
    pub fn compact(&self) {
        let port = self.port();
        let answer = post(port, "kv/range", r#"{"key":"AA=="}"#).unwrap();
        let revision: String = answer
            .split("\"revision\":\"")
            .nth(1)
            .unwrap()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        let answer =
            post(port, "kv/compaction", &format!(r#"{{"revision":"{revision}","physical":true}}"#)).unwrap();
        assert!(answer.contains("200 OK"), "{answer}");
    }

    /// Writes a key past whoever leads, as nobody should.
    pub fn put(&self, key: &str, value: &[u8]) {
        let encoded = |bytes: &[u8]| base64(bytes);
        let body = format!(r#"{{"key":"{}","value":"{}"}}"#, encoded(key.as_bytes()), encoded(value));
        let answer = post(self.port(), "kv/put", &body).unwrap();
        assert!(answer.contains("200 OK"), "{answer}");
    }

    /// Lets nobody ask from now on but `root` with this password.
    pub fn protect(&self, password: &str) {
        let calls = [
            ("auth/user/add", format!(r#"{{"name":"root","password":"{password}"}}"#)),
            ("auth/role/add", r#"{"name":"root"}"#.to_owned()),
            ("auth/user/grant", r#"{"user":"root","role":"root"}"#.to_owned()),
            ("auth/enable", "{}".to_owned()),
        ];
        for (call, body) in calls {
            let answer = post(self.port(), call, &body).unwrap();
            assert!(answer.contains("200 OK"), "{call}: {answer}");
        }
    }

    /// The port at which it serves.
    pub fn port(&self) -> u16 {
        self.ports.lock().unwrap().0
    }

    /// What `--store` takes.
    pub fn place(&self) -> String {
        format!("etcd://127.0.0.1:{}/stdchk", self.port())
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Asks etcd's gateway for JSON; the whole answer, if one came.
fn post(port: u16, call: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let head = format!(
        "POST /v3/{call} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let number =
            group.iter().fold(0u32, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for digit in 0..4 {
            let index = (number >> (18 - 6 * digit)) & 63;
            text.push(if digit <= group.len() { char::from(DIGITS[index as usize]) } else { '=' });
        }
    }
    text
}

/// A gate in front of etcd.
pub struct EtcdGate {
    port: u16,
    shared: Arc<GateState>,
}

#[derive(Default)]
struct GateState {
    /// Milliseconds by which each answer comes later.
    delay_ms: AtomicU64,
    /// Milliseconds by which each question comes later.
    delay_questions_ms: AtomicU64,
    late: AtomicU64,
    /// Answers to transactions that are still to be lost.
    lose: AtomicU64,
    lost: AtomicU64,
    closed: AtomicBool,
}

impl EtcdGate {
    /// Opens a gate to etcd at this port.
    pub fn open(etcd: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(GateState::default());
        let state = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if state.closed.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", etcd))) else {
                    continue;
                };
                let state = Arc::clone(&state);
                // What goes away is no failure of the gate.
                std::thread::spawn(move || state.pass(client, server));
            }
        });
        Self { port, shared }
    }

    /// What `--store` takes.
    pub fn place(&self) -> String {
        format!("etcd://127.0.0.1:{}/stdchk", self.port)
    }

    /// Lets every answer come later.
    pub fn delay(&self, by: Duration) {
        self.shared.delay_ms.store(u64::try_from(by.as_millis()).unwrap(), Ordering::Relaxed);
    }

    /// Lets every question come later to etcd, also if the asker has given up by then.
    pub fn delay_questions(&self, by: Duration) {
        self.shared.delay_questions_ms.store(u64::try_from(by.as_millis()).unwrap(), Ordering::Relaxed);
    }

    /// How many transactions have come late to etcd.
    pub fn late(&self) -> u64 {
        self.shared.late.load(Ordering::Relaxed)
    }

    /// Loses the answers to the next transactions, which are carried out.
    pub fn lose(&self, count: u64) {
        self.shared.lose.store(count, Ordering::Relaxed);
    }

    /// How many answers were lost.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

impl Drop for EtcdGate {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        // Wakes who waits for clients.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

impl GateState {
    fn pass(self: Arc<Self>, client: TcpStream, server: TcpStream) {
        let is_change = Arc::new(AtomicBool::new(false));
        let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let (seen, state) = (Arc::clone(&is_change), Arc::clone(&self));
        std::thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(read @ 1..) = from.read(&mut bytes) {
                if bytes.starts_with(b"POST ") {
                    seen.store(bytes[..read].starts_with(b"POST /v3/kv/txn"), Ordering::Relaxed);
                }
                let delay = state.delay_questions_ms.load(Ordering::Relaxed);
                if bytes.starts_with(b"POST ") && delay > 0 {
                    std::thread::sleep(Duration::from_millis(delay));
                    state.late.fetch_add(u64::from(seen.load(Ordering::Relaxed)), Ordering::Relaxed);
                }
                if to.write_all(&bytes[..read]).is_err() {
                    break;
                }
            }
            // What was asked last is answered before the connection ends.
            std::thread::sleep(Duration::from_millis(100));
            let _ = to.shutdown(Shutdown::Both);
        });
        let (mut from, mut to) = (server, client);
        let mut bytes = vec![0; 1 << 16];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            let is_answer = bytes.starts_with(b"HTTP/");
            if is_answer {
                std::thread::sleep(Duration::from_millis(self.delay_ms.load(Ordering::Relaxed)));
            }
            let lose = |left: u64| left.checked_sub(1);
            if is_answer
                && is_change.load(Ordering::Relaxed)
                && self.lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lose).is_ok()
            {
                self.lost.fetch_add(1, Ordering::Relaxed);
                break;
            }
            if to.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}
