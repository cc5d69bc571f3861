//! The machines of the testbed, and what is done on them: a file is stored from one client's machine and comes back on another's,
//! through the pool or through a dedicated server, while hosts die, fall silent or are slow.
//!
//! Every store and every recovery is a process of its own, as the job that starts again on another machine is.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use stdchk_model::limits::HEARTBEAT_MS;
use stdchk_tests::{Machines, Outcome, outcome};

use crate::Error;
use crate::bench::{BLOCK, Bench};
use crate::cpu;
use crate::ends::AtEnd;
use crate::stock::Stock;
use crate::transfer::{self, Content};

/// What each benefactor gives.
const DONATED: &str = "8GiB";
/// Mbit/s of the machines' links, and of the host behind a DSL line.
pub const LAN_MBIT: u32 = 100;
pub const DSL_MBIT: u32 = 2;
/// Port of the dedicated server.
const PORT: u16 = 7500;
/// The manager has ranked benefactors by then for whoever asked.
const RANKED_WITHIN: Duration = Duration::from_secs(60);
/// Heartbeats have told the manager by then what benefactors have.
const REPORTED_AFTER: Duration = Duration::from_millis(3 * HEARTBEAT_MS);

/// A pool of hosts, machines of clients, and a dedicated server beside them.
pub struct Bed {
    _ended: AtEnd,
    machines: Machines,
    own: PathBuf,
    hosts: usize,
    clients: usize,
    /// Whether rankings are waited for; without one, benefactors take turns.
    waits: bool,
    /// What no two images share.
    salt: AtomicU64,
    stock: Mutex<(f64, Stock)>,
    server: Child,
}

/// Where files are stored: a folder of the pool, or the dedicated server.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    Folder(&'a str),
    Dedicated,
}

/// A file of a program's image, on a client's machine.
pub struct Image {
    client: usize,
    name: String,
    bytes: u64,
    path: PathBuf,
}

impl Image {
    /// Its bytes.
    pub fn content(&self) -> Result<Vec<u8>, Error> {
        Ok(std::fs::read(&self.path)?)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // A folder that goes with the run.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Bed {
    /// Machine 1 has the manager, the next ones are hosts, then come clients, and last the dedicated server.
    pub fn start(bench: &Bench, hosts: usize, clients: usize) -> Result<Self, Error> {
        let machines = Machines::start_in(&bench.dir, 2 + hosts + clients);
        let home = machines.home().to_owned();
        let ended = AtEnd::new(move || Machines::kill_all(&home));
        machines.make_pool(hosts, clients, DONATED);
        let server = hosts + clients + 2;
        let address = format!("0.0.0.0:{PORT}");
        let kept = machines.path(server, "");
        let arguments = ["dedicated", "serve", &address, kept.to_str().unwrap_or_default()];
        let mut command = machines.program(server, &bench.own, &arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut said = String::new();
        child.stdout.take().map_or(Ok(0), |printed| BufReader::new(printed).read_line(&mut said))?;
        let (salt, stock) = (AtomicU64::new(1), Mutex::new((1.0, Stock::new())));
        let own = bench.own.clone();
        let bed =
            Self { _ended: ended, machines, own, hosts, clients, waits: true, salt, stock, server: child };
        bed.all_links(LAN_MBIT);
        if said.is_empty() {
            return Err(Error("the dedicated server did not start".to_owned()));
        }
        Ok(bed)
    }

    /// Waits for rankings from now on, or doesn't.
    pub fn waiting(mut self, waits: bool) -> Self {
        self.waits = waits;
        self
    }

    /// The machine of a client, counted from 0.
    pub fn client(&self, number: usize) -> usize {
        2 + self.hosts + number % self.clients
    }

    /// Machines with a benefactor.
    pub fn hosts(&self) -> std::ops::Range<usize> {
        2..2 + self.hosts
    }

    /// The last host, which may be behind a DSL line.
    pub fn last_host(&self) -> usize {
        1 + self.hosts
    }

    /// The machine with the dedicated server.
    pub fn server(&self) -> usize {
        2 + self.hosts + self.clients
    }

    /// Lets the link of a machine carry so many Mbit/s.
    pub fn link(&self, machine: usize, mbit: u32) {
        self.machines.shape(machine, mbit);
    }

    /// Lets the links of all machines carry so many Mbit/s.
    pub fn all_links(&self, mbit: u32) {
        (1..=self.server()).for_each(|machine| self.link(machine, mbit));
    }

    /// Sets the policy of folders. The manager has ranked benefactors for all clients when this returns.
    pub fn folders(&self, folders: &[(&str, &str)]) -> Result<(), Error> {
        for (folder, policy) in folders {
            let words = policy.split_whitespace();
            let set: Vec<&str> = ["policy", "set", folder].into_iter().chain(words).collect();
            self.machines.ok(self.client(0), &set);
        }
        let began = Instant::now();
        while self.waits && folders.iter().any(|(folder, _)| !self.is_ranked(folder)) {
            if began.elapsed() > RANKED_WITHIN {
                return Err(Error("benefactors are not ranked".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(HEARTBEAT_MS));
        }
        Ok(())
    }

    /// Whether the manager has ranked benefactors for all clients, if the folder's policy wants that. Asks for all of them: whoever is asked
    /// for is ranked next.
    fn is_ranked(&self, folder: &str) -> bool {
        let explain = |client| {
            let explain = ["placement", "explain", folder, "--json"];
            self.machines.ok(self.client(client), &explain).json()
        };
        let all: Vec<Value> = (0..self.clients).map(explain).collect();
        all.iter().all(|one| one.get("ranked").and_then(Value::as_bool) == Some(true))
    }

    /// An image on a client's machine that shrinks to this share; no two have a page in common.
    pub fn image(&self, client: usize, bytes: u64, shrinks_to: f64) -> Result<Image, Error> {
        let salt = self.salt.fetch_add(1, Ordering::Relaxed);
        let name = format!("image{salt}");
        let path = self.machines.path(self.client(client), &name);
        let mut stock = self.stock.lock().map_err(|_| Error("an image could not be made".to_owned()))?;
        if stock.0 != shrinks_to {
            *stock = (shrinks_to, Stock::shrinking_to(shrinks_to));
        }
        let content = Content { bytes, block: BLOCK, salt, repeated: None };
        transfer::write(&path, content, &mut stock.1, false)?;
        Ok(Image { client, name, bytes, path })
    }

    /// Stores an image in a folder; the seconds until it is durable, and the bytes that the pool keeps of it before it codes them.
    pub fn store(&self, image: &Image, folder: &str) -> Result<(f64, u64), Error> {
        let began = Instant::now();
        let put = self.store_command(Place::Folder(folder), image.client, &image.path, &image.name);
        let done = well(outcome(put), "put")?;
        let seconds = began.elapsed().as_secs_f64();
        let bytes = done.json().get("stored_bytes").and_then(Value::as_u64);
        Ok((seconds, bytes.ok_or_else(|| Error(format!("`put` says no bytes: {done:?}")))?))
    }

    /// Brings an image back on another client's machine; the seconds until it is on the disk.
    pub fn recover(&self, image: &Image, folder: &str) -> Result<f64, Error> {
        self.to_next_client(image, Place::Folder(folder))
    }

    /// Removes an image from the pool.
    pub fn remove(&self, image: &Image, folder: &str) {
        self.machines.ok(self.client(image.client), &["rm", &format!("{folder}/{}", image.name)]);
    }

    /// Stores an image at the dedicated server; the seconds.
    pub fn send(&self, image: &Image) -> Result<f64, Error> {
        let began = Instant::now();
        let send = self.store_command(Place::Dedicated, image.client, &image.path, &image.name);
        well(outcome(send), "send")?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Brings it back on another machine.
    pub fn fetch(&self, image: &Image) -> Result<f64, Error> {
        self.to_next_client(image, Place::Dedicated)
    }

    /// Removes an image from the dedicated server's disk.
    pub fn unsend(&self, image: &Image) -> Result<(), Error> {
        Ok(std::fs::remove_file(self.machines.path(self.server(), &image.name))?)
    }

    /// What stores a file from a client's machine.
    pub fn store_command(&self, place: Place<'_>, client: usize, path: &Path, name: &str) -> Command {
        let (machine, path) = (self.client(client), path.to_string_lossy());
        match place {
            Place::Folder(folder) => {
                self.machines.command(machine, &["put", &path, &format!("{folder}/{name}"), "--json"])
            }
            Place::Dedicated => {
                let send = ["dedicated", "send", &self.server_address(), &path, name];
                self.machines.program(machine, &self.own, &send)
            }
        }
    }

    /// What brings it back on a client's machine.
    pub fn recover_command(&self, place: Place<'_>, client: usize, name: &str, to: &Path) -> Command {
        let (machine, to) = (self.client(client), to.to_string_lossy());
        match place {
            Place::Folder(folder) => {
                self.machines.command(machine, &["get", &format!("{folder}/{name}"), "-o", &to, "--quiet"])
            }
            Place::Dedicated => {
                let fetch = ["dedicated", "fetch", &self.server_address(), name, &to];
                self.machines.program(machine, &self.own, &fetch)
            }
        }
    }

    fn server_address(&self) -> String {
        format!("10.77.0.{}:{PORT}", self.server())
    }

    /// The seconds that it takes until an image is on the machine of the next client.
    fn to_next_client(&self, image: &Image, place: Place<'_>) -> Result<f64, Error> {
        let next = image.client + 1;
        let to = self.machines.path(self.client(next), &format!("{}.back", image.name));
        let began = Instant::now();
        well(outcome(self.recover_command(place, next, &image.name, &to)), "recovery")?;
        let seconds = began.elapsed().as_secs_f64();
        let bytes = std::fs::metadata(&to)?.len();
        std::fs::remove_file(&to)?;
        match bytes == image.bytes {
            true => Ok(seconds),
            false => Err(Error(format!("{}: {bytes} of {} bytes came back", image.name, image.bytes))),
        }
    }

    /// Stores an image in a folder with a code of five blocks over five hosts; these hosts. Nothing that was removed may go meanwhile, so
    /// whoever asks for this removes nothing before.
    pub fn store_at_five(&self, image: &Image, folder: &str) -> Result<[usize; 5], Error> {
        std::thread::sleep(REPORTED_AFTER);
        let before = self.used()?;
        let (_, encoded) = self.store(image, folder)?;
        std::thread::sleep(REPORTED_AFTER);
        let half_of_a_fragment = encoded / 6;
        let is_holder = |after: u64, before: u64| after.saturating_sub(before) > half_of_a_fragment;
        let grown = self.used()?.into_iter().zip(before);
        let grown = grown.filter(|((_, after), (_, before))| is_holder(*after, *before));
        let holders: Vec<usize> = grown.map(|((machine, _), _)| machine).collect();
        holders
            .try_into()
            .map_err(|other| Error(format!("five hosts were to get something, and {other:?} did")))
    }

    /// Bytes of each host.
    fn used(&self) -> Result<Vec<(usize, u64)>, Error> {
        let status = self.machines.ok(self.client(0), &["status", "--json"]).json();
        let all = status.get("benefactors").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let of = |machine: usize| {
            let start = format!("10.77.0.{machine}:");
            let is_it = |one: &&Value| {
                one.get("address").and_then(Value::as_str).is_some_and(|at| at.starts_with(&start))
            };
            let used = all.iter().find(is_it).and_then(|one| one.get("used_bytes")?.as_u64());
            Ok((machine, used.ok_or_else(|| Error(format!("no benefactor is on machine {machine}")))?))
        };
        self.hosts().map(of).collect()
    }

    /// Ends the benefactors of these hosts.
    pub fn kill(&self, hosts: &[usize]) {
        hosts.iter().for_each(|host| self.machines.kill(*host));
    }

    /// Starts them again.
    pub fn revive(&self, hosts: &[usize]) {
        hosts.iter().for_each(|host| drop(self.machines.ok(*host, &["up"])));
    }

    /// Lets the benefactors of these hosts accept connections and never answer, or go on.
    pub fn freeze(&self, hosts: &[usize], is_frozen: bool) {
        hosts.iter().for_each(|host| self.machines.freeze(*host, is_frozen));
    }

    /// Waits until the pool has all its blocks again.
    pub fn settle(&self) -> Result<(), Error> {
        /// Repair of what a host had, over its link.
        const PATIENCE: Duration = Duration::from_secs(600);
        let began = Instant::now();
        loop {
            let status = self.machines.ok(self.client(0), &["status", "--json"]).json();
            let is_zero = |name| status.get(name).and_then(Value::as_u64) == Some(0);
            let is_there = |one: &Value| one.get("state").and_then(Value::as_str) == Some("online");
            let all = status.get("benefactors").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            if is_zero("chunks_at_risk") && is_zero("repairs_pending") && all.iter().all(is_there) {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err(Error(format!("the pool is not whole again: {status}")));
            }
            std::thread::sleep(Duration::from_millis(HEARTBEAT_MS));
        }
    }
}

/// What ended well.
fn well(outcome: Outcome, what: &str) -> Result<Outcome, Error> {
    if outcome.code == 0 { Ok(outcome) } else { Err(Error(format!("`{what}` failed: {outcome:?}"))) }
}

/// Does something with the share of the processors' time that was used meanwhile.
pub fn with_busy<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<(T, f64), Error> {
    let before = cpu::of_all()?;
    let done = work()?;
    Ok((done, cpu::busy(before, cpu::of_all()?)))
}
