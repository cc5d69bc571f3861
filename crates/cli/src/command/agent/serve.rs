//! The agent at work: its socket, its connections, and the saves that it stores.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use stdchk_net::Repeats;
use stdchk_net::own::{Access, Folder};
use stdchk_operations::{Code, Error, Opening, Options, Pool, Target, now};
use tokio::io::unix::AsyncFd;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, Notify};

use super::connection::Connection;
use super::protocol::{Answer, Request, Status, WAIT_S_MAX, word};
use super::region::{Memory, Peer, Save};
use super::regions::{Regions, ToStore};
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::signals::{self, Hangup};

/// Bytes that are taken out of a region at once.
const PIECE_BYTES: usize = 4 << 20;
/// Pauses between tries to store a checkpoint while the pool can't be reached.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long an agent that ends waits for regions that are being filled.
const FILLING_PATIENCE: Duration = Duration::from_secs(20);
/// How often an agent looks whether anybody needs it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Connections at once: some for each rank of a host.
const CONNECTIONS_MAX: usize = 4096;

/// How an agent is set up.
pub struct Config {
    /// How to reach its pool.
    pub options: Options,
    /// How long it stays with nobody connected.
    pub keep: Duration,
    /// Where it serves.
    pub socket: PathBuf,
    /// The folder of the socket, its user's own.
    pub folder: Folder,
    /// The meaning of SIGHUP.
    pub hangup: Hangup,
}

struct Agent {
    options: Options,
    pool: Mutex<Option<Pool>>,
    regions: Regions,
    connections: AtomicUsize,
    numbers: AtomicU64,
    stopping: AtomicBool,
    stop: Notify,
}

/// Serves until told to stop, or until nobody has needed the agent for its time.
pub async fn serve(config: Config) -> Outcome {
    let Some((_lock, listener)) = listen(&config)? else {
        tracing::info!(socket = %config.socket.display(), "an agent serves there already");
        return Ok(());
    };
    tracing::info!(socket = %config.socket.display(), process = std::process::id(), "the agent serves");
    let agent = Arc::new(Agent {
        options: config.options,
        pool: Mutex::default(),
        regions: Regions::default(),
        connections: AtomicUsize::new(0),
        numbers: AtomicU64::new(0),
        stopping: AtomicBool::new(false),
        stop: Notify::new(),
    });
    let accepting = tokio::spawn(Arc::clone(&agent).accept(listener));
    let signal = signals::stop_after_warning(config.hangup, || {
        tracing::info!("SIGTERM: the agent ends once all is stored");
        agent.end();
    });
    let ended = tokio::select! {
        signal = signal => Some(signal?),
        () = agent.unneeded(config.keep) => None,
    };
    accepting.abort();
    // A new agent may be there by now only if this one's lock is gone, so the name is this one's.
    let _ = config.folder.remove(name_of(&config.socket)?);
    match ended {
        Some(signal) if agent.regions.is_storing() => {
            let next = "what was staged and not stored is lost; the set before is the newest";
            Err(CommandError::new(Exit::Interrupted, "the agent", format_args!("{signal} ended it"), next))
        }
        _ => {
            tracing::info!("the agent has ended");
            Ok(())
        }
    }
}

fn name_of(socket: &Path) -> Outcome<&std::ffi::OsStr> {
    let no_name =
        || CommandError::usage(socket.display(), "it is no name of a socket", "give `--socket PATH`");
    socket.file_name().ok_or_else(no_name)
}

/// The socket and the lock on it; `None`: another agent has it.
fn listen(config: &Config) -> Outcome<Option<(std::fs::File, UnixListener)>> {
    let name = name_of(&config.socket)?;
    let mut lock_name = name.to_owned();
    lock_name.push(".lock");
    let lock = config.folder.file(&lock_name, Access::Make).about(config.socket.display())?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error).about(config.socket.display()),
    }
    match config.folder.remove(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).about(config.socket.display());
        }
        _ => {}
    }
    let listener = UnixListener::bind(&config.socket).about(config.socket.display())?;
    Ok(Some((lock, listener)))
}

impl Agent {
    fn end(&self) {
        self.stopping.store(true, Ordering::Release);
        self.stop.notify_one();
    }

    /// Ready once the agent was told to end, or nobody was connected for `keep`; and all is stored.
    async fn unneeded(&self, keep: Duration) {
        let mut last_needed = Instant::now();
        while !self.stopping.load(Ordering::Acquire) && last_needed.elapsed() < keep {
            // Either wakes it, and it looks.
            let _ = tokio::time::timeout(LOOK_EVERY, self.stop.notified()).await;
            if self.connections.load(Ordering::Acquire) > 0 || self.regions.is_storing() {
                last_needed = Instant::now();
            }
            self.regions.let_go(keep);
        }
        self.stopping.store(true, Ordering::Release);
        self.regions.close(FILLING_PATIENCE).await;
    }

    async fn accept(self: Arc<Self>, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) if self.connections.load(Ordering::Acquire) < CONNECTIONS_MAX => {
                    self.connections.fetch_add(1, Ordering::AcqRel);
                    let agent = Arc::clone(&self);
                    tokio::spawn(async move {
                        let outcome = Arc::clone(&agent).attend(stream).await;
                        outcome.unwrap_or_else(|error| tracing::warn!(%error, "a connection failed"));
                        agent.connections.fetch_sub(1, Ordering::AcqRel);
                    });
                }
                Ok((stream, _)) => drop(stream),
                Err(error) => {
                    tracing::warn!(%error, "no connection can be taken");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Answers one connection until it or the process at its other end goes: children of that process have its descriptors.
    async fn attend(self: Arc<Self>, stream: UnixStream) -> io::Result<()> {
        let Some((peer, process)) = self.peer(&stream)? else { return Ok(()) };
        let mut connection = Connection::new(stream);
        let outcome = loop {
            let request = tokio::select! {
                request = connection.next() => request,
                gone = process.readable() => match gone {
                    Ok(_) => Ok(None),
                    Err(error) => Err(error),
                },
            };
            match request {
                Ok(Some(Ok(request))) => {
                    let (answer, memory) = self.answer(peer, request).await;
                    let descriptor = memory.as_ref().map(|memory| memory.descriptor().as_fd());
                    if let Err(error) = connection.send(&answer, descriptor).await {
                        break Err(error);
                    }
                }
                Ok(Some(Err(error))) => {
                    let next = "use the package and the command of one version";
                    let answer = Answer::refused("invalid", "request", error, next);
                    if let Err(error) = connection.send(&answer, None).await {
                        break Err(error);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.regions.left(peer);
        outcome
    }

    /// The process at the other end; `None`: another user's.
    fn peer(&self, stream: &UnixStream) -> io::Result<Option<(Peer, AsyncFd<OwnedFd>)>> {
        let credentials = stream.peer_cred()?;
        let own = rustix::process::geteuid().as_raw();
        if credentials.uid() != own {
            tracing::warn!(user = credentials.uid(), "another user is refused");
            return Ok(None);
        }
        let pid = credentials.pid().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        #[expect(deprecated, reason = "an OwnedFd stays open for as long as the AsyncFd owns it")]
        let process = AsyncFd::new(pidfd_open(pid, PidfdFlags::empty())?)?;
        let connection = self.numbers.fetch_add(1, Ordering::Relaxed);
        Ok(Some((Peer { connection, process: pid.as_raw_nonzero().get().unsigned_abs() }, process)))
    }

    async fn answer(self: &Arc<Self>, peer: Peer, request: Request) -> (Answer, Option<Arc<Memory>>) {
        let refused = |why: Box<Answer>| (*why, None);
        match request {
            Request::Region { .. } | Request::Begin { .. } if self.stopping.load(Ordering::Acquire) => {
                (Answer::refused("unreachable", "the agent", "it is ending", "try again"), None)
            }
            Request::Region { key, bytes } => match self.regions.region(peer, &key, bytes) {
                Ok(memory) => (Answer::Region { bytes: memory.bytes() }, Some(memory)),
                Err(why) => refused(why),
            },
            Request::Begin { key } => {
                let begun = self.regions.begin(peer, &key);
                begun.map_or_else(refused, |filling| (Answer::Filling { filling }, None))
            }
            Request::Staged { key, filling, file, length, pieces } => {
                match self.regions.staged(peer, (&key, filling), file, length, pieces) {
                    Ok(to_store) => {
                        let save = to_store.save.number;
                        tokio::spawn(Arc::clone(self).store(to_store));
                        (Answer::Saving { save }, None)
                    }
                    Err(why) => refused(why),
                }
            }
            Request::Wait { key, save, seconds } => {
                let patience = Duration::from_secs_f64(seconds.clamp(0.0, WAIT_S_MAX));
                (self.regions.wait(&key, save, patience).await, None)
            }
            Request::Held { file, version } => match self.regions.held(peer, &file, version) {
                Ok((memory, save)) => {
                    let (bytes, pieces) = (memory.bytes(), save.pieces.to_vec());
                    (Answer::Held { bytes, length: save.length, pieces }, Some(memory))
                }
                Err(why) => refused(why),
            },
            Request::Release {} => {
                self.regions.release(peer);
                (Answer::Done {}, None)
            }
            Request::Status {} => (Answer::Status(self.status()), None),
            Request::Stop {} => {
                self.end();
                (Answer::Done {}, None)
            }
        }
    }

    fn status(&self) -> Status {
        Status {
            process: std::process::id(),
            connections: self.connections.load(Ordering::Acquire),
            stopping: self.stopping.load(Ordering::Acquire),
            regions: self.regions.status(),
        }
    }

    /// Stores a save, and tries again while the pool can't be reached.
    async fn store(self: Arc<Self>, to_store: ToStore) {
        let ToStore { key, memory, save } = to_store;
        let (began, mut missed, mut pause) = (Instant::now(), Repeats::default(), PAUSE);
        let outcome = loop {
            save.done.store(0, Ordering::Relaxed);
            match self.try_store(&memory, &save).await {
                Err(error) if error.code == Code::Unreachable => {
                    if let Some(row) = missed.failed(&error.cause) {
                        let (file, seconds, cause) = (&save.file, row.seconds, &error.cause);
                        tracing::warn!(file, seconds, cause, "it can't be stored yet");
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                outcome => break outcome,
            }
        };
        let seconds = began.elapsed().as_secs_f64();
        let (file, bytes) = (save.file.as_str(), save.bytes());
        match &outcome {
            Ok(version) => tracing::info!(file, version, bytes, seconds, "stored"),
            Err(error) => {
                tracing::error!(
                    file,
                    code = word(error.code),
                    object = error.object,
                    cause = error.cause,
                    "it can't be stored"
                );
            }
        }
        self.regions.ended(&key, save.clone(), seconds, outcome);
    }

    async fn try_store(&self, memory: &Memory, save: &Save) -> Result<u64, Error> {
        let pool = self.pool().await?;
        let target = Target::parse_plain(&save.file)?;
        let mut version = pool.create(&target, 0o644, Opening::Replace).await?;
        let mut buffer = vec![0; PIECE_BYTES];
        for piece in save.pieces.iter() {
            let mut moved = 0;
            while moved < piece.2 {
                let count =
                    usize::try_from(piece.2 - moved).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
                let (bytes, _) = buffer.split_at_mut(count);
                memory.read(piece.1 + moved, bytes).map_err(|error| Error::of_io(&error, &save.file))?;
                version.write_at(piece.0 + moved, bytes).await?;
                moved += count as u64;
                save.done.fetch_add(count as u64, Ordering::Relaxed);
            }
        }
        version.truncate(save.length).await?;
        version.commit(now()).await
    }

    async fn pool(&self) -> Result<Pool, Error> {
        let mut known = self.pool.lock().await;
        match &*known {
            Some(pool) => Ok(pool.clone()),
            None => Ok(known.insert(Pool::connect(self.options.clone()).await?).clone()),
        }
    }
}
