//! The manager alone: a real one, with its store on the disk that is measured, and simulated benefactors ([`swarm`]) and clients on
//! the same machine, which take from its processors what they need.
//!
//! Three things are shown. How many small files a second are made and committed, each durable in the manager's store, by 1, 16 and
//! 256 clients. How long the manager of a large pool takes to start again after a kill, and what memory a chunk takes. And how
//! long it takes until a large pool has made all blocks anew that one in twenty of its benefactors had, all lost at once, and
//! whether the others' heartbeats come through meanwhile.

mod swarm;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use serde::Serialize;
use stdchk_model::chunk_map::{Extent, Source};
use stdchk_model::limits::LIST_ENTRIES_MAX;
use stdchk_model::message::Asked;
use stdchk_model::message::handshake::Role;
use stdchk_model::message::manager::{
    BenefactorState, Change, FileKind, ManagerReply, ManagerRequest, PoolStatus, VersionState,
};
use stdchk_model::user::User;
use stdchk_model::{ChunkId, ChunkMap, ChunkRef, ClientId, Ino, MapRoot, OpId, SessionId, size};
use stdchk_net::{BufferPool, Connection, Identity};

use self::swarm::{CHUNK_BYTES, LOST_IN, Shape, Swarm, ask, chunk};
use crate::bench::{Bench, Size};
use crate::ends::AtEnd;
use crate::row::median;
use crate::section::{Section, at_least, at_most};
use crate::{Error, cpu};

/// Clients that commit at once, and whether each asks for a user, whose permissions the manager checks.
const CLIENTS: [(usize, bool); 4] = [(1, false), (16, false), (16, true), (256, false)];
/// Their user.
const USER: u32 = 1000;
/// Chunks of each file of the large pool: 10 GiB.
const FILE_CHUNKS: u64 = 10_240;
/// Time between two looks at the pool's state.
const LOOK: Duration = Duration::from_millis(200);
/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(1800);
/// Descriptors for the manager of the largest pool.
const DESCRIPTORS: u64 = 65_536;
/// What a commit may take at the median, seconds.
const COMMIT_SECONDS: f64 = 0.002;
/// What a manager with ten million chunks may take to start, seconds.
const RESTART_SECONDS: f64 = 10.0;
/// What ARCHITECTURE states, bytes: a chunk, two blocks of it, and its name in a map.
const CHUNK_MEMORY: f64 = 204.0 + 2.0 * 50.0 + 4.0;

#[derive(Serialize)]
struct Commits {
    clients: usize,
    for_a_user: bool,
    commits_per_second: f64,
    median_seconds: f64,
    slowest_seconds: f64,
}

#[derive(Serialize)]
struct Large {
    benefactors: u64,
    chunks: u64,
    /// Until all benefactors had registered and told what they have.
    told_seconds: f64,
    /// Until all versions were committed.
    committed_seconds: f64,
    /// From the start of the process until it answered.
    restart_seconds: f64,
    /// Until all benefactors had told it again what they have.
    told_again_seconds: f64,
    memory_bytes: u64,
    memory_empty_bytes: u64,
    lost: u64,
    /// From when the manager counted the first chunk as at risk until it counted none.
    repair_seconds: f64,
    copies: u64,
    beats: u64,
    mean_beat_seconds: f64,
    slowest_beat_seconds: f64,
    /// Benefactors that were there and the manager took for off-line at some time meanwhile.
    missed: usize,
}

/// Measures all of it.
pub fn run(bench: &Bench) -> Result<Section, Error> {
    take_descriptors()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (seconds, shape) = match bench.size {
        Size::Tiny => (1, Shape { members: 40, rounds: 50 }),
        Size::Small => (5, Shape { members: 1_000, rounds: 1_000 }),
        Size::Full => (10, Shape { members: 10_000, rounds: 1_000 }),
    };
    let commits = runtime.block_on(commits(bench, Duration::from_secs(seconds)))?;
    let large = runtime.block_on(large(bench, shape))?;
    let chunks = large.chunks as f64;
    let memory = large.memory_bytes.saturating_sub(large.memory_empty_bytes) as f64;
    let mut targets: Vec<_> = commits
        .iter()
        .filter(|row| row.clients == 1)
        .map(|row| at_most("seconds of a commit, median, one client", row.median_seconds, COMMIT_SECONDS))
        .collect();
    targets.extend([
        at_most(
            "seconds from the manager's start to its first answer",
            large.restart_seconds,
            RESTART_SECONDS,
        ),
        at_most("bytes of memory a chunk", memory / chunks, CHUNK_MEMORY),
        at_most("benefactors taken for off-line that were not", large.missed as f64, 0.0),
        at_least(
            "blocks made anew / blocks lost",
            large.copies as f64 / (2.0 * chunks / LOST_IN as f64),
            0.95,
        ),
    ]);
    let table = table(&commits, &large);
    let rows = serde_json::json!({ "commits": commits, "large": large });
    Ok(Section { rows, table, targets })
}

fn table(commits: &[Commits], large: &Large) -> String {
    let mut text = "clients   for a user   commits/s   median ms   slowest ms\n".to_owned();
    for row in commits {
        let Commits { clients, for_a_user, commits_per_second, median_seconds, slowest_seconds } = row;
        let user = if *for_a_user { "yes" } else { "no" };
        let (median, slowest) = (1e3 * median_seconds, 1e3 * slowest_seconds);
        let _ = writeln!(
            text,
            "{clients:>7} {user:>12} {commits_per_second:>11.0} {median:>11.2} {slowest:>12.1}"
        );
    }
    let per_second = large.copies as f64 / large.repair_seconds;
    let _ = write!(
        text,
        "\n{} benefactors, {} chunks with two copies\n\
         told after                {:>9.1} s, committed after another {:.1} s\n\
         restart: first answer     {:>9.1} s, all told again after {:.1} s\n\
         memory                    {:>9} of {} without chunks\n\
         {:>5} benefactors lost     {:>9} copies made in {:.1} s: {per_second:.0} a second\n\
         heartbeats meanwhile      {:>9}, mean {:.2} ms, slowest {:.0} ms; {} benefactors missed\n",
        large.benefactors,
        large.chunks,
        large.told_seconds,
        large.committed_seconds,
        large.restart_seconds,
        large.told_again_seconds,
        size::human(large.memory_bytes),
        size::human(large.memory_empty_bytes),
        large.lost,
        large.copies,
        large.repair_seconds,
        large.beats,
        1e3 * large.mean_beat_seconds,
        1e3 * large.slowest_beat_seconds,
        large.missed,
    );
    text
}

/// A connection for each simulated benefactor at both of its ends.
fn take_descriptors() -> Result<(), Error> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let most = maximum.map_or(DESCRIPTORS, |maximum| maximum.max(DESCRIPTORS));
    let raised = Rlimit { current: Some(most), maximum: Some(most) };
    // Who may not raise the limit beyond what was set for them takes what there is.
    setrlimit(Resource::Nofile, raised)
        .or_else(|_| setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }))
        .map_err(|error| Error(format!("descriptors beyond {current:?} can't be had: {error}")))
}

// --- the process

/// A manager. Ends when dropped.
struct Manager {
    child: Arc<Mutex<Child>>,
    address: String,
    _end: AtEnd,
}

impl Manager {
    fn start(bench: &Bench, directory: &Path) -> Result<Self, Error> {
        let mut command = Command::new(&bench.stdchk);
        command.args(["manager", "run"]).arg(directory);
        // The blocks of a large inventory wait for the versions that refer to them.
        command.env("STDCHK_GARBAGE_AGE_MS", "3600000").env("STDCHK_LOG", "warn");
        let child = Arc::new(Mutex::new(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?));
        let ends = Arc::clone(&child);
        let end = AtEnd::new(move || {
            let mut child = ends.lock();
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        });
        let socket: PathBuf = directory.join("socket");
        Ok(Self { child, address: format!("unix:{}", socket.display()), _end: end })
    }

    fn pid(&self) -> u32 {
        self.child.lock().id()
    }

    /// Ends it as a loss of power would.
    fn kill(self) -> Result<(), Error> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.ok_or_else(|| Error("a process has a number".to_owned()))?, Signal::KILL)?;
        Ok(())
    }

    /// A client, as soon as it answers.
    async fn client(&self) -> Result<Connection, Error> {
        let identity = Identity { role: Role::Operator, pool: None, keys: None };
        let give_up = Instant::now() + PATIENCE;
        loop {
            match Connection::open(Role::Manager, &self.address, &identity, &BufferPool::new(1 << 20)).await {
                Ok(connection) => return Ok(connection),
                Err(error) if Instant::now() > give_up => return Err(error.into()),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
            if let Some(status) = self.child.lock().try_wait()? {
                return Err(Error(format!("the manager ended: {status}")));
            }
        }
    }
}

async fn status(client: &Connection) -> Result<PoolStatus, Error> {
    match ask(client, &ManagerRequest::Status).await? {
        ManagerReply::Status(status) => Ok(status),
        _ => Err(Error("the manager answered something else than its state".to_owned())),
    }
}

/// Looks at the pool's state until it is as wanted; the seconds until then.
async fn until(
    client: &Connection,
    what: &str,
    mut is_so: impl FnMut(&PoolStatus) -> bool,
) -> Result<f64, Error> {
    let began = Instant::now();
    loop {
        if is_so(&status(client).await?) {
            return Ok(began.elapsed().as_secs_f64());
        }
        if began.elapsed() > PATIENCE {
            return Err(Error(format!("after {} s not yet: {what}", PATIENCE.as_secs())));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn resident(pid: u32) -> u64 {
    cpu::peak_memory(pid).unwrap_or(0)
}

// --- commits

async fn commits(bench: &Bench, during: Duration) -> Result<Vec<Commits>, Error> {
    let directory = tempfile::Builder::new().prefix("manager-").tempdir_in(&bench.dir)?;
    let manager = Manager::start(bench, directory.path())?;
    let client = manager.client().await?;
    let swarm = Swarm::start(Shape { members: 4, rounds: 1 }, &manager.address);
    until(&client, "4 benefactors", |status| status.benefactors.len() == 4 && !status.counting).await?;
    let mut rows = Vec::new();
    for (clients, for_a_user) in CLIENTS {
        let folder = make_folder(&client, &format!("app{clients}-{for_a_user}")).await?;
        let user = for_a_user.then(|| User::new(USER, USER));
        rows.push(commits_of(&manager, &swarm, folder, (clients, user), during).await?);
    }
    Ok(rows)
}

async fn make_folder(client: &Connection, name: &str) -> Result<Ino, Error> {
    let change = Change::Make {
        parent: Ino::ROOT,
        name: name.to_owned(),
        kind: FileKind::Directory,
        mode: 0o755,
        uid: USER,
        gid: USER,
        target: String::new(),
    };
    let id = OpId(*blake3::hash(name.as_bytes()).as_bytes().first_chunk().unwrap_or(&[0; 16]));
    match ask(client, &ManagerRequest::Change { id, change }).await? {
        ManagerReply::Entry(attr) => Ok(attr.ino),
        _ => Err(Error("no folder was made".to_owned())),
    }
}

async fn commits_of(
    manager: &Manager,
    swarm: &Arc<Swarm>,
    folder: Ino,
    (clients, user): (usize, Option<User>),
    during: Duration,
) -> Result<Commits, Error> {
    let mut running = Vec::new();
    let until = Instant::now() + during;
    for number in 0..clients {
        let (connection, swarm) = (manager.client().await?, Arc::clone(swarm));
        let client = Client { connection, number, user: user.clone() };
        running.push(tokio::spawn(async move { client.commit_until(&swarm, folder, until).await }));
    }
    let mut seconds = Vec::new();
    for one in running {
        seconds.extend(one.await??);
    }
    Ok(Commits {
        clients,
        for_a_user: user.is_some(),
        commits_per_second: seconds.len() as f64 / during.as_secs_f64(),
        median_seconds: median(&seconds),
        slowest_seconds: seconds.iter().copied().fold(0.0, f64::max),
    })
}

fn session_of(folder: Ino, client: usize, file: u64) -> SessionId {
    let name = [folder.0.to_le_bytes(), (client as u64).to_le_bytes(), file.to_le_bytes()].concat();
    SessionId(*blake3::hash(&name).as_bytes().first_chunk().unwrap_or(&[0; 16]))
}

/// A client that makes files.
struct Client {
    connection: Connection,
    number: usize,
    user: Option<User>,
}

impl Client {
    async fn ask(&self, request: ManagerRequest) -> Result<ManagerReply, Error> {
        Ok(ask(&self.connection, &Asked { request, with: self.user.clone() }).await?)
    }

    /// Makes small files, one after the other; the seconds that each commit took.
    async fn commit_until(&self, swarm: &Swarm, folder: Ino, until: Instant) -> Result<Vec<f64>, Error> {
        let mut seconds = Vec::new();
        for file in 0.. {
            if Instant::now() >= until {
                break;
            }
            let session = session_of(folder, self.number, file);
            self.create(session, folder, &format!("run.N{}.T{file}", self.number)).await?;
            let content = ChunkId::of(&session.0);
            let extent =
                Extent { length: u64::from(CHUNK_BYTES), source: Source::Chunk { index: 0, offset: 0 } };
            let map = ChunkMap::new(vec![ChunkRef { id: content, length: CHUNK_BYTES }], [extent])
                .map_err(|error| Error(format!("a map: {error}")))?;
            let request = ManagerRequest::Commit {
                session,
                root: MapRoot::Inline { map: map.encode() },
                size: u64::from(CHUNK_BYTES),
                mtime: 0,
                stored_bytes: u64::from(CHUNK_BYTES),
                named: Vec::new(),
                named_before: 0,
                state: VersionState::Closed,
                hole_bytes: 0,
                receipts: swarm.receipts(content, self.number),
                key: None,
                changes: 0,
            };
            let began = Instant::now();
            self.ask(request).await?;
            seconds.push(began.elapsed().as_secs_f64());
            self.ask(ManagerRequest::CloseSession { session, interrupted: false }).await?;
        }
        Ok(seconds)
    }

    async fn create(&self, session: SessionId, parent: Ino, name: &str) -> Result<(), Error> {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(self.number as u64).to_le_bytes());
        let owner = self.user.as_ref().map_or(0, |user| user.uid);
        let request = ManagerRequest::Create {
            session,
            client: ClientId(id),
            parent,
            name: name.to_owned(),
            mode: 0o644,
            uid: owner,
            gid: owner,
            exclusive: false,
            again: None,
            durability: None,
        };
        match self.ask(request).await? {
            ManagerReply::Session { .. } => Ok(()),
            _ => Err(Error("no file was made".to_owned())),
        }
    }
}

// --- a large pool

async fn large(bench: &Bench, shape: Shape) -> Result<Large, Error> {
    let directory = tempfile::Builder::new().prefix("manager-").tempdir_in(&bench.dir)?;
    let manager = Manager::start(bench, directory.path())?;
    let client = manager.client().await?;
    let memory_empty_bytes = resident(manager.pid());
    let swarm = Swarm::start(shape, &manager.address);
    let all_told = |swarm: &Swarm| swarm.told.load(Ordering::Relaxed) == shape.members;
    let told_seconds = until(&client, "all benefactors have told", |_| all_told(&swarm)).await?;
    let began = Instant::now();
    commit_all(manager.client().await?, shape).await?;
    let committed_seconds = began.elapsed().as_secs_f64();
    let is_settled = |status: &PoolStatus| !status.counting && status.chunks_at_risk == 0;
    until(&client, "all chunks have two copies", is_settled).await?;
    drop(client);

    manager.kill()?;
    let began = Instant::now();
    let manager = Manager::start(bench, directory.path())?;
    let client = manager.client().await?;
    ask(&client, &ManagerRequest::GetAttr(Ino::ROOT)).await?;
    let restart_seconds = began.elapsed().as_secs_f64();
    until(&client, "all benefactors have told again", |status| all_told(&swarm) && is_settled(status))
        .await?;
    let told_again_seconds = began.elapsed().as_secs_f64();
    let memory_bytes = resident(manager.pid());

    let lost = shape.members / LOST_IN;
    let before = swarm.copies.load(Ordering::Relaxed);
    for counter in [&swarm.beats, &swarm.beats_us, &swarm.slowest_beat_us] {
        counter.store(0, Ordering::Relaxed);
    }
    let repairs_before = status(&client).await?.repairs_done;
    swarm.lose();
    let mut missed = std::collections::BTreeSet::new();
    let mut look = |status: &PoolStatus| {
        let away = status.benefactors.iter().filter(|one| one.state != BenefactorState::Online);
        let away: Vec<_> = away.map(|one| one.id).collect();
        missed.extend(away.into_iter().filter(|id| !swarm.is_lost(*id)));
    };
    until(&client, "the manager notices the loss", |status| {
        look(status);
        status.chunks_at_risk > 0 || status.repairs_done > repairs_before
    })
    .await?;
    let repair_seconds = until(&client, "all is repaired", |status| {
        look(status);
        is_settled(status)
    })
    .await?;
    let beats = swarm.beats.load(Ordering::Relaxed);
    Ok(Large {
        benefactors: shape.members,
        chunks: shape.chunks(),
        told_seconds,
        committed_seconds,
        restart_seconds,
        told_again_seconds,
        memory_bytes,
        memory_empty_bytes,
        lost,
        repair_seconds,
        copies: swarm.copies.load(Ordering::Relaxed) - before,
        beats,
        mean_beat_seconds: swarm.beats_us.load(Ordering::Relaxed) as f64 / 1e6 / beats.max(1) as f64,
        slowest_beat_seconds: swarm.slowest_beat_us.load(Ordering::Relaxed) as f64 / 1e6,
        missed: missed.len(),
    })
}

/// Commits files that name all chunks of the pool.
async fn commit_all(connection: Connection, shape: Shape) -> Result<(), Error> {
    let folder = make_folder(&connection, "large").await?;
    let client = Client { connection, number: 0, user: None };
    let mut from = 0;
    while from < shape.chunks() {
        let until = (from + FILE_CHUNKS).min(shape.chunks());
        let session = session_of(folder, 0, from);
        client.create(session, folder, &format!("run.N0.T{from}")).await?;
        let names: Vec<ChunkId> = (from..until).map(chunk).collect();
        let parts: Vec<&[ChunkId]> = names.chunks(LIST_ENTRIES_MAX).collect();
        for (index, part) in parts.iter().enumerate() {
            let request = ManagerRequest::Names { session, first: index == 0, chunks: part.to_vec() };
            client.ask(request).await?;
        }
        let bytes = (until - from) * u64::from(CHUNK_BYTES);
        // The manager reads no maps: any chunk serves as the piece that has it.
        let piece = ChunkRef { id: chunk(from), length: CHUNK_BYTES };
        let request = ManagerRequest::Commit {
            session,
            root: MapRoot::Pieces { pieces: vec![piece], length: u64::from(CHUNK_BYTES) },
            size: bytes,
            mtime: 0,
            stored_bytes: bytes,
            named: Vec::new(),
            named_before: names.len() as u64,
            state: VersionState::Closed,
            hole_bytes: 0,
            receipts: Vec::new(),
            key: None,
            changes: 0,
        };
        client.ask(request).await?;
        client.ask(ManagerRequest::CloseSession { session, interrupted: false }).await?;
        from = until;
    }
    Ok(())
}
