//! A real object store on loopback, and a gate in front of it that sees every request.
//!
//! The store is `s3s-fs`, which `scripts/setup test` builds: it keeps each object in a file, so that a test can look at what
//! is there and damage it. The gate passes requests on one by one; before each of them the test may do something, such as
//! ending a process, or have it refused.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tempfile::TempDir;

use crate::wait::{PATIENCE, wait_until};

/// The bucket that is there.
pub const BUCKET: &str = "ckpt";
/// Names the one key that the store knows.
pub const ACCESS_KEY: &str = "someone";
/// Must never be seen.
pub const SECRET_KEY: &str = "never-to-be-shown";
/// Longest head of a request, bytes.
const HEAD_MAX: usize = 64 << 10;

/// A store that is ended with its test.
pub struct ObjectStore {
    folder: TempDir,
    running: Mutex<Option<(Child, u16)>>,
}

impl ObjectStore {
    /// Starts one with an empty bucket.
    pub fn start() -> Self {
        let store = Self { folder: tempfile::tempdir().unwrap(), running: Mutex::default() };
        fs::create_dir(store.folder.path().join(BUCKET)).unwrap();
        store.restart();
        store
    }

    /// Starts it again, with the objects that it has.
    pub fn restart(&self) {
        self.kill();
        let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/bin/s3s-fs");
        assert!(binary.is_file(), "{} is missing: `scripts/setup test` builds it", binary.display());
        wait_until("the object store runs", || {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut command = Command::new(&binary);
            command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
            command.args(["--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY]).arg(self.folder.path());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut server = command.spawn().unwrap();
            // Someone else may have taken the port meanwhile: then it ends, and another is tried.
            wait_until("it answers or ends", || {
                server.try_wait().unwrap().is_some() || TcpStream::connect(("127.0.0.1", port)).is_ok()
            });
            let runs = server.try_wait().unwrap().is_none();
            if runs {
                *self.running.lock().unwrap() = Some((server, port));
            }
            runs
        });
    }

    /// SIGKILL, as the end of a machine.
    pub fn kill(&self) {
        if let Some((mut server, _)) = self.running.lock().unwrap().take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }

    /// Where it listens; none: it was killed.
    fn port(&self) -> Option<u16> {
        self.running.lock().unwrap().as_ref().map(|(_, port)| *port)
    }

    /// The URL for programs.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port().unwrap())
    }

    /// The file that holds an object.
    pub fn object(&self, key: &str) -> PathBuf {
        self.folder.path().join(BUCKET).join(key)
    }

    /// The variables with which a program reaches it at `endpoint`.
    pub fn variables(endpoint: &str) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", endpoint.to_owned()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
        ]
    }
}

impl Drop for ObjectStore {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A request on its way.
#[derive(Clone, Debug)]
pub struct Asked {
    /// How many came before it.
    pub number: u64,
    /// `GET`, `PUT`, …
    pub method: String,
    /// Path and query.
    pub target: String,
}

/// What becomes of a request.
pub enum Deed {
    /// It is passed on.
    Pass,
    /// It is answered with this status and the store's word for it.
    Refuse(u16, &'static str),
    /// It is answered with this body, as if the store had.
    Answer(String),
    /// The connection ends.
    HangUp,
}

type Hook = Box<dyn Fn(&Asked) -> Deed + Send + Sync>;

struct Shared {
    store: Arc<ObjectStore>,
    hook: Hook,
    /// Held while requests are to wait.
    closed: Mutex<()>,
    asked: Mutex<Vec<Asked>>,
    answered: AtomicU64,
    ended: AtomicBool,
}

/// The gate: programs reach the store through it.
pub struct Gate {
    shared: Arc<Shared>,
    port: u16,
}

impl Gate {
    /// Opens a gate in front of a store; `hook` decides on every request.
    pub fn open(store: &Arc<ObjectStore>, hook: impl Fn(&Asked) -> Deed + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Shared {
            store: Arc::clone(store),
            hook: Box::new(hook),
            closed: Mutex::default(),
            asked: Mutex::default(),
            answered: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        };
        let shared = Arc::new(shared);
        let for_clients = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if for_clients.ended.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&for_clients);
                // A client that goes away is no failure of the gate.
                std::thread::spawn(move || client.and_then(|client| shared.pass(client)));
            }
        });
        Self { shared, port }
    }

    /// The URL for programs.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// Bytes that came back so far.
    pub fn answered_bytes(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// Requests that come wait until what it returns is dropped.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.shared.closed.lock().unwrap()
    }

    /// Begins to count anew.
    pub fn reset(&self) {
        self.shared.asked.lock().unwrap().clear();
        self.shared.answered.store(0, Ordering::Relaxed);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for clients.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    /// One request and its answer.
    fn pass(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_read_timeout(Some(PATIENCE))?;
        let head = head_of(&mut client)?;
        let mut words = head.split_whitespace();
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        drop(self.closed.lock().unwrap());
        let asked = {
            let mut all = self.asked.lock().unwrap();
            let asked =
                Asked { number: all.len() as u64, method: method.to_owned(), target: target.to_owned() };
            all.push(asked.clone());
            asked
        };
        let port = match (self.hook)(&asked) {
            Deed::Pass => self.store.port(),
            Deed::HangUp => None,
            Deed::Refuse(status, code) => {
                let body = format!("<Error><Code>{code}</Code></Error>");
                return answer(&mut client, &head, status, &body);
            }
            Deed::Answer(body) => return answer(&mut client, &head, 200, &body),
        };
        let Some(port) = port else { return client.shutdown(Shutdown::Both) };
        let mut store = TcpStream::connect(("127.0.0.1", port))?;
        store.set_read_timeout(Some(PATIENCE))?;
        store.write_all(head.replacen("\r\n", "\r\nconnection: close\r\n", 1).as_bytes())?;
        io::copy(&mut (&client).take(length_of(&head)), &mut store)?;
        let mut piece = vec![0; 64 << 10];
        loop {
            let read = store.read(&mut piece)?;
            if read == 0 {
                return client.shutdown(Shutdown::Both);
            }
            self.answered.fetch_add(read as u64, Ordering::Relaxed);
            client.write_all(&piece[..read])?;
        }
    }
}

/// Answers a request of which only the head was read.
fn answer(client: &mut TcpStream, head: &str, status: u16, body: &str) -> io::Result<()> {
    io::copy(&mut (&*client).take(length_of(head)), &mut io::sink())?;
    let length = body.len();
    write!(client, "HTTP/1.1 {status} So\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
}

/// The head of a request, with the empty line behind it.
fn head_of(client: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
        if head.len() > HEAD_MAX {
            return Err(io::Error::other("the head of a request doesn't end"));
        }
    }
    String::from_utf8(head).map_err(io::Error::other)
}

fn length_of(head: &str) -> u64 {
    let line = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then_some(value)
    });
    line.map_or(0, |value| value.trim().parse().unwrap())
}
