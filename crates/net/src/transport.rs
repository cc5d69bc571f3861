//! Streams of bytes between processes: sockets of the machine (Unix), TCP, or whatever network the present thread was given.
//!
//! An address is `unix:PATH` or `HOST:PORT`. Connections of the network are encrypted, and both sides show certificates of their pool
//! ([`crate::keys`]). On a socket of the machine the kernel says whose process the other side is; only those of
//! one's own user, and of the system's administrator, are talked to.
//!
//! A simulation runs a whole pool in one thread, on a network in memory whose delays and faults it decides ([`simulate`]). Everything
//! else in this crate is the same there.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::sockopt;
use rustls::ConnectionCommon;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, unix};
use tokio::sync::mpsc;
use tokio_rustls::{TlsAcceptor, TlsStream};

use crate::eyeballs;
use crate::handshakes;
use crate::keys::{Keys, Member};
use crate::own::{Folder, own_user};

/// What comes in on a connection.
#[derive(Debug)]
pub enum Incoming {
    /// From a socket of the network.
    Tls(ReadHalf<Box<TlsStream<Buffered>>>),
    /// From a socket of the machine.
    Unix(unix::OwnedReadHalf),
    /// From memory.
    Simulated(Box<tokio::io::DuplexStream>),
}

/// What goes out on a connection.
#[derive(Debug)]
pub enum Outgoing {
    /// To a socket of the network.
    Tls(WriteHalf<Box<TlsStream<Buffered>>>),
    /// To a socket of the machine.
    Unix(unix::OwnedWriteHalf),
    /// To memory.
    Simulated(Box<tokio::io::DuplexStream>),
}

/// A socket under TLS, whose records are at most 16 KiB: several are taken from the system at once.
pub(crate) type Buffered = BufReader<TcpStream>;

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

/// Who is at the other end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Peer {
    /// A process of this machine that may be all that this user may be.
    Own,
    /// Who has shown this in a certificate of the pool.
    Member(Member),
    /// Who has shown nothing, on a connection that is bound to these bytes.
    Stranger([u8; 32]),
}

/// A connection to a server.
pub(crate) struct Connected {
    pub(crate) stream: Stream,
    pub(crate) peer: Peer,
    /// The address of this machine on the way there; `None`: it doesn't lead over the network.
    pub(crate) here: Option<IpAddr>,
    /// The socket of the network once more, to end it whoever else uses it.
    pub(crate) socket: Option<OwnedFd>,
}

/// Connects to an address.
pub(crate) async fn connect(address: &str, keys: Option<&Keys>) -> io::Result<Connected> {
    let connecting = simulated().map(|network| network.connect(address));
    let own = |stream| Connected { stream, peer: Peer::Own, here: None, socket: None };
    match (connecting, socket_of(address)) {
        (Some(connecting), _) => Ok(own(connecting.await?)),
        (None, Some(path)) => {
            let stream = UnixStream::connect(short(path)?.path()).await?;
            refuse_other_server(path, stream.peer_cred()?.uid())?;
            Ok(own(of_unix(stream)))
        }
        (None, None) => {
            let keys = keys.ok_or_else(no_keys)?;
            let stream = eyeballs::connect(address, keys.client(), keys.server_name()).await?;
            let tcp = stream.get_ref().0.get_ref();
            let (here, socket) = (Some(tcp.local_addr()?.ip()), Some(tcp.as_fd().try_clone_to_owned()?));
            let member = keys.member_of(stream.get_ref().1.peer_certificates())?;
            let member = member.ok_or(io::ErrorKind::InvalidData)?;
            if keys.is_revoked(member.id) {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, "its keys were revoked"));
            }
            let peer = Peer::Member(member);
            Ok(Connected { stream: of_tls(stream.into()), peer, here, socket })
        }
    }
}

/// Refuses a socket at which another user serves than one's own or root. To root it may be the user whose folder it is in: who names the
/// socket of a pool names whose pool it is, and root may use the pools of all users.
fn refuse_other_server(path: &Path, server: u32) -> io::Result<()> {
    let user = own_user();
    if [user, ROOT].contains(&server) {
        return Ok(());
    }
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    if user == ROOT && Folder::look_into(folder)?.owner() == server {
        return Ok(());
    }
    let cause = format!("a process of user {server} serves there, which is no pool of user {user}");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, cause))
}

fn no_keys() -> io::Error {
    let cause = "an address of the network takes keys of the pool, which this host has not: join the pool with a token";
    io::Error::new(io::ErrorKind::PermissionDenied, cause)
}

pub(crate) fn of_tls(stream: TlsStream<Buffered>) -> Stream {
    let (reader, writer) = tokio::io::split(Box::new(stream));
    (Incoming::Tls(reader), Outgoing::Tls(writer))
}

/// What ties a proof to a connection: the exporter value of RFC 9266.
pub(crate) fn channel_of<D>(connection: &ConnectionCommon<D>) -> io::Result<[u8; 32]> {
    let exported = connection.export_keying_material([0; 32], b"EXPORTER-Channel-Binding", Some(&[]));
    exported.map_err(io::Error::other)
}

/// A connection that a listener took.
pub(crate) enum Arrival {
    /// The other side is known.
    Open(Stream),
    /// It has yet to show who it is.
    Network(TcpStream),
}

impl Arrival {
    /// Who it is, and the way to it.
    pub(crate) async fn open(self, keys: Option<Arc<Keys>>) -> io::Result<(Stream, Peer)> {
        let stream = match self {
            Self::Open(stream) => return Ok((stream, Peer::Own)),
            Self::Network(stream) => of_tcp(stream)?,
        };
        let keys = keys.ok_or_else(no_keys)?;
        let stream = handshakes::shake(TlsAcceptor::from(keys.server()).accept(stream)).await?;
        let (_, connection) = stream.get_ref();
        let peer = match keys.member_of(connection.peer_certificates())? {
            Some(member) => Peer::Member(member),
            None => Peer::Stranger(channel_of(connection)?),
        };
        Ok((of_tls(stream.into()), peer))
    }
}

/// Sets what holds for every connection: small frames leave at once, and a host that vanished is noticed also while
/// nothing is under way.
pub(crate) fn of_tcp(stream: TcpStream) -> io::Result<Buffered> {
    /// Bytes that are taken at once.
    const BUFFER_BYTES: usize = 128 << 10;
    /// Silence after which the peer's host is asked whether it is there, and the time between two such questions.
    const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(10));
    /// Bytes that wait in the system and have not been sent: as few as keep a fast link busy, so that on a slow one something moves
    /// again and again, and little stands before what is sent next.
    const UNSENT_BYTES: u32 = 128 << 10;
    stream.set_nodelay(true)?;
    // Not every kernel of a sandbox knows it, and connections work without.
    let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES);
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE.0)?;
    sockopt::set_tcp_keepintvl(&stream, KEEPALIVE.1)?;
    Ok(BufReader::with_capacity(BUFFER_BYTES, stream))
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

fn of_unix(stream: UnixStream) -> Stream {
    let (reader, writer) = stream.into_split();
    (Incoming::Unix(reader), Outgoing::Unix(writer))
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket())
}

/// Whether no process has the socket at this path. One that stands still has it, and isn't waited for.
fn connects_to_nobody(path: &Path) -> bool {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let asked = SocketAddrUnix::new(path).and_then(|address| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &address)
    });
    asked == Err(rustix::io::Errno::CONNREFUSED)
}

/// Listens at a path. A socket that an ended process left there is taken away first. Nobody else may be able to put another socket in
/// its place: the folder is one's own, or one where names are their owners' (sticky).
fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let folder = Folder::look_into(path.parent().ok_or(io::ErrorKind::InvalidInput)?)?;
    if ![own_user(), ROOT].contains(&folder.owner()) {
        let cause = format!("the folder belongs to user {}, who may serve there instead", folder.owner());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, cause));
    }
    let short = short(path)?;
    let is_left = || is_socket(path) && connects_to_nobody(short.path());
    match UnixListener::bind(short.path()) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left() => {
            std::fs::remove_file(path)?;
            UnixListener::bind(short.path())
        }
        listening => listening,
    }
}

/// Takes connections at one address or several.
#[derive(Debug)]
pub struct Listener(Vec<Listening>);

#[derive(Debug)]
enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
    Simulated(Arrivals, SocketAddr),
}

impl Listener {
    /// Listens at an address; at a name, at all addresses that it has here. In the network, a port of 0 is any, the same one for all of them.
    ///
    /// # Errors
    /// The system's message. Of several addresses of a name, those are left out that this machine doesn't have.
    pub async fn bind(address: &str) -> io::Result<Self> {
        if simulated().is_none() && socket_of(address).is_none() {
            let all = eyeballs::listen(address).await?;
            return Ok(Self(all.into_iter().map(Listening::Tcp).collect()));
        }
        let listening = if let Some(network) = simulated() {
            let address = address.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
            let (arrivals, address) = network.listen(address)?;
            Listening::Simulated(arrivals, address)
        } else {
            let path = socket_of(address).ok_or(io::ErrorKind::InvalidInput)?;
            Listening::Unix(listen_at(path)?, path.to_owned())
        };
        Ok(Self(vec![listening]))
    }

    /// Takes what the other one takes as well.
    #[must_use]
    pub fn and(mut self, mut other: Self) -> Self {
        self.0.append(&mut other.0);
        self
    }

    /// Whether callers of the network reach it, who must show keys.
    #[must_use]
    pub fn is_on_network(&self) -> bool {
        self.0.iter().any(|listening| matches!(listening, Listening::Tcp(_)))
    }

    /// Where it listens, in the order in which that was asked for.
    ///
    /// # Errors
    /// The system doesn't say.
    pub fn addresses(&self) -> io::Result<Vec<String>> {
        let address = |listening: &Listening| match listening {
            Listening::Tcp(listener) => listener.local_addr().map(|address| address.to_string()),
            Listening::Unix(_, path) => Ok(unix_address(path)),
            Listening::Simulated(_, address) => Ok(address.to_string()),
        };
        self.0.iter().map(address).collect()
    }

    /// The next connection, and who calls. A caller that is given up loses none.
    pub(crate) async fn accept(&mut self) -> io::Result<(Arrival, String)> {
        std::future::poll_fn(|context| self.poll_accept(context)).await
    }

    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<(Arrival, String)>> {
        for listening in &mut self.0 {
            if let Poll::Ready(accepted) = listening.poll_accept(context) {
                return Poll::Ready(accepted);
            }
        }
        Poll::Pending
    }
}

impl Listening {
    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<(Arrival, String)>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = ready!(listener.poll_accept(context))?;
                Poll::Ready(Ok((Arrival::Network(stream), peer.to_string())))
            }
            Self::Unix(listener, _) => loop {
                let (stream, _) = ready!(listener.poll_accept(context))?;
                let caller = stream.peer_cred()?;
                let process = format!("process {}", caller.pid().unwrap_or(0));
                if [own_user(), ROOT].contains(&caller.uid()) {
                    return Poll::Ready(Ok((Arrival::Open(of_unix(stream)), process)));
                }
                tracing::debug!(%process, user = caller.uid(), "a process of another user is not let in");
            },
            Self::Simulated(arrivals, _) => {
                let (stream, peer) =
                    ready!(arrivals.poll_recv(context)).ok_or(io::ErrorKind::NotConnected)?;
                Poll::Ready(Ok((Arrival::Open(stream), peer.to_string())))
            }
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Outgoing {
    /// Writes what goes out here and now; an error if that is nothing.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tls(half) => at_once(Pin::new(half).poll_write(&mut nobody(), bytes)),
            Self::Unix(half) => half.try_write(bytes),
            Self::Simulated(half) => at_once(Pin::new(half).poll_write(&mut nobody(), bytes)),
        }
    }

    /// Whether nothing of what was written waits here to go out.
    pub(crate) fn is_flushed(&mut self) -> bool {
        match self {
            Self::Tls(half) => matches!(Pin::new(half).poll_flush(&mut nobody()), Poll::Ready(Ok(()))),
            Self::Unix(_) | Self::Simulated(_) => true,
        }
    }
}

fn nobody() -> Context<'static> {
    Context::from_waker(std::task::Waker::noop())
}

fn at_once<T>(done: Poll<io::Result<T>>) -> io::Result<T> {
    match done {
        Poll::Ready(done) => done,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl AsyncRead for Incoming {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(half) => Pin::new(half).poll_read(context, into),
            Self::Unix(half) => Pin::new(half).poll_read(context, into),
            Self::Simulated(half) => Pin::new(half).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Outgoing {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tls(half) => Pin::new(half).poll_write(context, bytes),
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
            Self::Tls(half) => Pin::new(half).poll_write_vectored(context, parts),
            Self::Unix(half) => Pin::new(half).poll_write_vectored(context, parts),
            Self::Simulated(half) => Pin::new(half).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tls(half) => half.is_write_vectored(),
            Self::Unix(_) => true,
            Self::Simulated(_) => false,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(half) => Pin::new(half).poll_flush(context),
            Self::Unix(half) => Pin::new(half).poll_flush(context),
            Self::Simulated(half) => Pin::new(half).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tls(half) => Pin::new(half).poll_shutdown(context),
            Self::Unix(half) => Pin::new(half).poll_shutdown(context),
            Self::Simulated(half) => Pin::new(half).poll_shutdown(context),
        }
    }
}
