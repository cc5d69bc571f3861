//! Streams of bytes between processes: TCP, or whatever network the present thread was given.
//!
//! A simulation runs a whole pool in one thread, on a network in memory whose delays and faults it decides ([`simulate`]). Everything
//! else in this crate is the same there. Without that a connection is a TCP connection.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// What comes in on a connection.
#[derive(Debug)]
pub enum Incoming {
    /// From a socket.
    Tcp(OwnedReadHalf),
    /// From memory.
    Simulated(Box<tokio::io::DuplexStream>),
}

/// What goes out on a connection.
#[derive(Debug)]
pub enum Outgoing {
    /// To a socket.
    Tcp(OwnedWriteHalf),
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

/// Connects to `host:port`.
pub(crate) async fn connect(address: &str) -> io::Result<Stream> {
    let connecting = simulated().map(|network| network.connect(address));
    match connecting {
        Some(connecting) => connecting.await,
        None => of_tcp(TcpStream::connect(address).await?),
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

/// Takes connections at an address.
#[derive(Debug)]
pub struct Listener(Listening);

#[derive(Debug)]
enum Listening {
    Tcp(TcpListener),
    Simulated(Arrivals, SocketAddr),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self(Listening::Tcp(listener))
    }
}

impl Listener {
    /// Listens at the first of these addresses where that is possible.
    ///
    /// # Errors
    /// It is possible at none: what the system said of the last.
    pub async fn bind(addresses: &[SocketAddr]) -> io::Result<Self> {
        let Some(network) = simulated() else {
            return TcpListener::bind(addresses).await.map(Self::from);
        };
        let address = addresses.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let (arrivals, address) = network.listen(*address)?;
        Ok(Self(Listening::Simulated(arrivals, address)))
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system doesn't say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        match &self.0 {
            Listening::Tcp(listener) => listener.local_addr(),
            Listening::Simulated(_, address) => Ok(*address),
        }
    }

    /// The next connection, and who calls. A caller that is given up loses none.
    pub(crate) async fn accept(&mut self) -> io::Result<(Stream, SocketAddr)> {
        match &mut self.0 {
            Listening::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((of_tcp(stream)?, peer))
            }
            Listening::Simulated(arrivals, _) => {
                arrivals.recv().await.ok_or_else(|| io::ErrorKind::NotConnected.into())
            }
        }
    }
}

impl Outgoing {
    /// Writes what goes out here and now; an error if that is nothing.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write(bytes),
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
            Self::Simulated(half) => Pin::new(half).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Outgoing {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_write(context, bytes),
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
            Self::Simulated(half) => Pin::new(half).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_flush(context),
            Self::Simulated(half) => Pin::new(half).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_shutdown(context),
            Self::Simulated(half) => Pin::new(half).poll_shutdown(context),
        }
    }
}
