//! Streams of bytes between processes: sockets of the machine (Unix), TCP, or whatever network the present thread was given.
//!
//! An address is `unix:PATH` or `HOST:PORT`. On a socket of the machine the kernel says whose process the other side is; only those of
//! one's own user, and of the system's administrator, are talked to.
//!
//! A simulation runs a whole pool in one thread, on a network in memory whose delays and faults it decides ([`simulate`]). Everything
//! else in this crate is the same there.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, unix};
use tokio::sync::mpsc;

/// What comes in on a connection.
#[derive(Debug)]
pub enum Incoming {
    /// From a socket of the network.
    Tcp(OwnedReadHalf),
    /// From a socket of the machine.
    Unix(unix::OwnedReadHalf),
    /// From memory.
    Simulated(Box<tokio::io::DuplexStream>),
}

/// What goes out on a connection.
#[derive(Debug)]
pub enum Outgoing {
    /// To a socket of the network.
    Tcp(OwnedWriteHalf),
    /// To a socket of the machine.
    Unix(unix::OwnedWriteHalf),
    /// To memory.
    Simulated(Box<tokio::io::DuplexStream>),
}

/// Both directions.
pub type Stream = (Incoming, Outgoing);

/// Connections that come to one address of a simulated network, each with who calls.
pub type Arrivals = mpsc::UnboundedReceiver<(Stream, SocketAddr)>;

/// A network in memory.
pub trait Network {
    /// Connects to an address, or tells in time that nobody is there.
    fn connect(&self, address: &str) -> Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    /// Listens at an address; port 0: any.
    fn listen(&self, address: SocketAddr) -> io::Result<(Arrivals, SocketAddr)>;

    /// How long work waits that would be done on another thread ([`crate::elsewhere()`]).
    fn work_begins_after(&self) -> Duration {
        Duration::ZERO
    }
}

thread_local! {
    static SIMULATED: RefCell<Option<Rc<dyn Network>>> = const { RefCell::new(None) };
}

/// Lets everything that this thread connects or listens to from now on go through `network`; `None`: through sockets.
pub fn simulate(network: Option<Rc<dyn Network>>) {
    SIMULATED.set(network);
}

pub(crate) fn simulated() -> Option<Rc<dyn Network>> {
    SIMULATED.with_borrow(Option::clone)
}

/// Connects to an address.
pub(crate) async fn connect(address: &str) -> io::Result<Stream> {
    let connecting = simulated().map(|network| network.connect(address));
    match (connecting, socket_of(address)) {
        (Some(connecting), _) => connecting.await,
        (None, Some(path)) => {
            let stream = UnixStream::connect(short(path)?.path()).await?;
            let (server, own) = (stream.peer_cred()?.uid(), own_user());
            if ![own, ROOT].contains(&server) && own != ROOT {
                let cause = format!("a process of user {server} serves there, and this one is of user {own}");
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, cause));
            }
            Ok(of_unix(stream))
        }
        (None, None) => of_tcp(TcpStream::connect(address).await?),
    }
}

/// Sets what holds for every connection: small frames leave at once, and a host that vanished is noticed also while
/// nothing is under way.
fn of_tcp(stream: TcpStream) -> io::Result<Stream> {
    /// Silence after which the peer's host is asked whether it is there, and the time between two such questions.
    const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(10));
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE.0)?;
    sockopt::set_tcp_keepintvl(&stream, KEEPALIVE.1)?;
    let (reader, writer) = stream.into_split();
    Ok((Incoming::Tcp(reader), Outgoing::Tcp(writer)))
}

/// What stands before the path of a socket of the machine.
const UNIX: &str = "unix:";

/// The address of the socket of the machine at this path.
pub fn unix_address(path: &Path) -> String {
    format!("{UNIX}{}", path.display())
}

/// The path in `unix:PATH`; `None`: an address of the network.
pub fn socket_of(address: &str) -> Option<&Path> {
    address.strip_prefix(UNIX).map(Path::new)
}

/// A way to a socket that the system takes: its own path if that is short enough, else one through a descriptor of the folder.
struct Short {
    path: PathBuf,
    _folder: Option<std::fs::File>,
}

impl Short {
    fn path(&self) -> &Path {
        &self.path
    }
}

fn short(path: &Path) -> io::Result<Short> {
    /// Longest path in the address of a socket, bytes (unix(7)).
    const BYTES_MAX: usize = 107;
    if path.as_os_str().len() <= BYTES_MAX {
        return Ok(Short { path: path.to_owned(), _folder: None });
    }
    let (folder, name) = path.parent().zip(path.file_name()).ok_or(io::ErrorKind::InvalidInput)?;
    let folder = std::fs::File::open(folder)?;
    let path =
        Path::new("/proc/self/fd").join(std::os::fd::AsRawFd::as_raw_fd(&folder).to_string()).join(name);
    Ok(Short { path, _folder: Some(folder) })
}

/// The administrator of the system, who may talk to everybody.
const ROOT: u32 = 0;

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn of_unix(stream: UnixStream) -> Stream {
    let (reader, writer) = stream.into_split();
    (Incoming::Unix(reader), Outgoing::Unix(writer))
}

/// Listens at a path. A socket that an ended process left there is taken away first.
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let short = short(path)?;
    let is_left = || match std::os::unix::net::UnixStream::connect(short.path()) {
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        Ok(_) => false,
    };
    match UnixListener::bind(short.path()) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left() => {
            std::fs::remove_file(path)?;
            UnixListener::bind(short.path())
        }
        listening => listening,
    }
}

/// Takes connections at an address.
#[derive(Debug)]
pub struct Listener(Listening);

#[derive(Debug)]
enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
    Simulated(Arrivals, SocketAddr),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self(Listening::Tcp(listener))
    }
}

impl Listener {
    /// Listens at an address. In the network, a port of 0 is any; only loopback addresses are served.
    ///
    /// # Errors
    /// What the system said, or that others could call there.
    pub async fn bind(address: &str) -> io::Result<Self> {
        if let Some(network) = simulated() {
            let address = address.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
            let (arrivals, address) = network.listen(address)?;
            return Ok(Self(Listening::Simulated(arrivals, address)));
        }
        if let Some(path) = socket_of(address) {
            return Ok(Self(Listening::Unix(listen_at(path)?, path.to_owned())));
        }
        let found: Vec<SocketAddr> = tokio::net::lookup_host(address).await?.collect();
        if found.iter().any(|address| !address.ip().is_loopback()) {
            let cause =
                "connections are not encrypted yet, so only loopback addresses such as 127.0.0.1 are served";
            return Err(io::Error::new(io::ErrorKind::Unsupported, cause));
        }
        TcpListener::bind(found.as_slice()).await.map(Self::from)
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system doesn't say.
    pub fn address(&self) -> io::Result<String> {
        match &self.0 {
            Listening::Tcp(listener) => listener.local_addr().map(|address| address.to_string()),
            Listening::Unix(_, path) => Ok(unix_address(path)),
            Listening::Simulated(_, address) => Ok(address.to_string()),
        }
    }

    /// The next connection, and who calls. A caller that is given up loses none.
    pub(crate) async fn accept(&mut self) -> io::Result<(Stream, String)> {
        match &mut self.0 {
            Listening::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((of_tcp(stream)?, peer.to_string()))
            }
            Listening::Unix(listener, _) => loop {
                let (stream, _) = listener.accept().await?;
                let caller = stream.peer_cred()?;
                let process = format!("process {}", caller.pid().unwrap_or(0));
                if [own_user(), ROOT].contains(&caller.uid()) {
                    return Ok((of_unix(stream), process));
                }
                tracing::debug!(%process, user = caller.uid(), "a process of another user is not let in");
            },
            Listening::Simulated(arrivals, _) => {
                let (stream, peer) = arrivals.recv().await.ok_or(io::ErrorKind::NotConnected)?;
                Ok((stream, peer.to_string()))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listening::Unix(_, path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Outgoing {
    /// Writes what goes out here and now; an error if that is nothing.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write(bytes),
            Self::Unix(half) => half.try_write(bytes),
            Self::Simulated(half) => {
                let mut nobody = Context::from_waker(std::task::Waker::noop());
                match Pin::new(half).poll_write(&mut nobody, bytes) {
                    Poll::Ready(written) => written,
                    Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
                }
            }
        }
    }
}

impl AsyncRead for Incoming {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_read(context, into),
            Self::Unix(half) => Pin::new(half).poll_read(context, into),
            Self::Simulated(half) => Pin::new(half).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Outgoing {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_write(context, bytes),
            Self::Unix(half) => Pin::new(half).poll_write(context, bytes),
            Self::Simulated(half) => Pin::new(half).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_write_vectored(context, parts),
            Self::Unix(half) => Pin::new(half).poll_write_vectored(context, parts),
            Self::Simulated(half) => Pin::new(half).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        matches!(self, Self::Tcp(_) | Self::Unix(_))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_flush(context),
            Self::Unix(half) => Pin::new(half).poll_flush(context),
            Self::Simulated(half) => Pin::new(half).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_shutdown(context),
            Self::Unix(half) => Pin::new(half).poll_shutdown(context),
            Self::Simulated(half) => Pin::new(half).poll_shutdown(context),
        }
    }
}
