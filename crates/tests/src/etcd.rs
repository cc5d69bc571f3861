//! A real etcd on loopback, which a test kills, stops and starts again, and a gate in front of it that delays or loses answers.
//!
//! `scripts/setup test` unpacks etcd into `.tools`. It runs as a child of the test, never as a service.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::send_signal;
use crate::wait::wait_until;

/// An etcd of one member or several that is ended with its test.
pub struct EtcdServer {
    folder: TempDir,
    members: Vec<Member>,
    /// Its room, bytes; none: as much as it takes unless it is told otherwise.
    quota_bytes: Option<u64>,
}

#[derive(Default)]
struct Member {
    /// Where it serves, and where other members reach it.
    ports: Mutex<(u16, u16)>,
    running: Mutex<Option<Child>>,
}

impl EtcdServer {
    /// Starts an empty one of one member.
    pub fn start() -> Self {
        Self::start_members(1)
    }

    /// Starts an empty one of so many members. It goes on as long as more than half of them run.
    pub fn start_members(count: usize) -> Self {
        Self::start_with(count, None)
    }

    /// Starts an empty one of one member that has room for so many bytes.
    pub fn start_small(quota_bytes: u64) -> Self {
        Self::start_with(1, Some(quota_bytes))
    }

    fn start_with(count: usize, quota_bytes: Option<u64>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let members = (0..count).map(|_| Member::default()).collect();
        let server = Self { folder, members, quota_bytes };
        wait_until("etcd runs", || {
            // Someone else may have taken a port meanwhile: then a member ends, and others are tried.
            server.kill();
            for (number, member) in server.members.iter().enumerate() {
                *member.ports.lock().unwrap() = (free_port(), free_port());
                let _ = std::fs::remove_dir_all(server.data(number));
            }
            server.try_run()
        });
        server
    }

    fn data(&self, member: usize) -> PathBuf {
        self.folder.path().join(format!("data-{member}"))
    }

    /// Runs the members that don't run; whether all do then, and answer.
    fn try_run(&self) -> bool {
        for (number, member) in self.members.iter().enumerate() {
            let mut running = member.running.lock().unwrap();
            if running.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some()) {
                *running = Some(self.command(number).spawn().unwrap());
            }
        }
        self.members.iter().all(|member| {
            let (client, _) = *member.ports.lock().unwrap();
            let ended = || member.running.lock().unwrap().as_mut().unwrap().try_wait().unwrap().is_some();
            wait_until("a member of etcd answers or ends", || ended() || self.answers(client));
            !ended()
        })
    }

    fn command(&self, number: usize) -> Command {
        let at = |port: u16| format!("127.0.0.1:{port}");
        let members: Vec<[String; 2]> = self
            .members
            .iter()
            .map(|member| {
                let (client, peer) = *member.ports.lock().unwrap();
                [at(client), at(peer)]
            })
            .collect();
        let mut command = Command::new(etcd());
        command.args(etcd_arguments(number, &members, &self.data(number)));
        command.args(self.quota_bytes.map(|bytes| format!("--quota-backend-bytes={bytes}")));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn answers(&self, port: u16) -> bool {
        let asked = post(port, "kv/range", r#"{"key":"AA=="}"#);
        asked.is_some_and(|answer| answer.contains("cluster_id") && !answer.contains("error"))
    }

    /// Starts it again with what it has, at the same addresses.
    pub fn restart(&self) {
        self.kill();
        self.go_on();
    }

    /// Starts the members that were killed, with what they have.
    pub fn go_on(&self) {
        wait_until("etcd runs again", || self.try_run());
    }

    /// SIGKILL to all members, as the end of their machines.
    pub fn kill(&self) {
        (0..self.members.len()).for_each(|member| self.kill_member(member));
    }

    /// SIGKILL to one member.
    pub fn kill_member(&self, member: usize) {
        if let Some(mut child) = self.members[member].running.lock().unwrap().take() {
            // It may have ended.
            let _ = child.kill();
            child.wait().unwrap();
        }
    }

    /// Lets it stand still, or go on.
    pub fn signal(&self, signal: Signal) {
        for member in &self.members {
            send_signal(member.running.lock().unwrap().as_ref().unwrap().id(), signal);
        }
    }

    /// The record of a manager's store under this key, as etcd has it for JSON; none: there is none.
    pub fn record(&self, key: &[u8]) -> Option<String> {
        let key = base64(&[b"stdchk/r/", key].concat());
        let answer = post(self.port(), "kv/range", &format!(r#"{{"key":"{key}"}}"#)).unwrap();
        let (_, value) = answer.split_once(r#""value":""#)?;
        Some(value.split('"').next().unwrap().to_owned())
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

    /// Writes keys of somebody else until its room is used up.
    pub fn fill(&self) {
        for number in 0.. {
            let (key, value) = (base64(format!("others/{number}").as_bytes()), base64(&[7; 200_000]));
            let answer =
                post(self.port(), "kv/put", &format!(r#"{{"key":"{key}","value":"{value}"}}"#)).unwrap();
            if !answer.contains("200 OK") {
                assert!(answer.contains("space exceeded"), "{answer}");
                return;
            }
        }
    }

    /// Takes what [`Self::fill`] has written away, and ends the alarm.
    pub fn make_room(&self) {
        let range = format!(r#"{{"key":"{}","range_end":"{}"}}"#, base64(b"others/"), base64(b"others0"));
        assert!(post(self.port(), "kv/deleterange", &range).unwrap().contains("200 OK"));
        self.compact();
        assert!(post(self.port(), "maintenance/defragment", "{}").unwrap().contains("200 OK"));
        let alarms = post(self.port(), "maintenance/alarm", r#"{"action":"GET"}"#).unwrap();
        let (_, alarms) = alarms.split_once("\"alarms\"").unwrap();
        let member = alarms.split("\"memberID\":\"").nth(1).unwrap().split('"').next().unwrap();
        let disarm = format!(r#"{{"action":"DEACTIVATE","memberID":"{member}","alarm":"NOSPACE"}}"#);
        assert!(post(self.port(), "maintenance/alarm", &disarm).unwrap().contains("200 OK"));
    }

    /// Where its members serve, as messages name them.
    pub fn names(&self) -> String {
        let names = self.ports().into_iter().map(|port| format!("127.0.0.1:{port}"));
        Vec::from_iter(names).join(", ")
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

    /// The port at which the first member serves.
    pub fn port(&self) -> u16 {
        self.ports()[0]
    }

    /// The ports at which its members serve.
    pub fn ports(&self) -> Vec<u16> {
        self.members.iter().map(|member| member.ports.lock().unwrap().0).collect()
    }

    /// What `--store` takes.
    pub fn place(&self) -> String {
        place_at(&self.ports())
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// etcd's program.
pub fn etcd() -> PathBuf {
    let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/etcd/usr/bin/etcd");
    assert!(binary.is_file(), "{} is missing: `scripts/setup test` unpacks it", binary.display());
    binary
}

/// What a member of etcd is started with. `members`: where each serves, and where the others reach it, `HOST:PORT`.
pub fn etcd_arguments(number: usize, members: &[[String; 2]], data: &Path) -> Vec<String> {
    let [client, peer] = members[number].each_ref().map(|at| format!("http://{at}"));
    let all = members.iter().enumerate().map(|(number, [_, peer])| format!("m{number}=http://{peer}"));
    let arguments = [
        ["--name", &format!("m{number}")],
        ["--data-dir", data.to_str().unwrap()],
        ["--listen-client-urls", &client],
        ["--advertise-client-urls", &client],
        ["--listen-peer-urls", &peer],
        ["--initial-advertise-peer-urls", &peer],
        ["--initial-cluster", &all.collect::<Vec<_>>().join(",")],
    ];
    arguments.as_flattened().iter().copied().map(str::to_owned).collect()
}

/// What `--store` takes for members, or gates to them, at these ports.
fn place_at(ports: &[u16]) -> String {
    let endpoints: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    format!("etcd://{}/stdchk", endpoints.join(","))
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
    /// Nothing comes through; what was on its way comes once it isn't any more, as behind a link that was cut.
    cut: AtomicBool,
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
        place_at(&[self.port])
    }

    /// What `--store` takes for a way through all of these.
    pub fn place_of(gates: &[Self]) -> String {
        place_at(&gates.iter().map(|gate| gate.port).collect::<Vec<_>>())
    }

    /// Cuts the link to etcd, or mends it.
    pub fn cut(&self, is_cut: bool) {
        self.shared.cut.store(is_cut, Ordering::Relaxed);
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
        self.cut(false);
        // Wakes who waits for clients.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

impl GateState {
    fn wait_for_link(&self) {
        while self.cut.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

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
                state.wait_for_link();
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
            self.wait_for_link();
            if to.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}
