//! Names that have several addresses, and hosts that may be reached again at any moment.
//!
//! A name may have addresses of both families, of which only some work from here. So they are tried one shortly after the other, families in turn, until
//! one has shaken hands (RFC 8305, "Happy Eyeballs"). And a packet that asks for a connection may be lost: the system asks again after
//! one second, three, seven. A caller of a link that has just come back shouldn't have to wait for that, so an address that says nothing is tried again
//! each second, beside the attempt before.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpListener, TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_rustls::{TlsConnector, client};

use crate::transport::{Buffered, of_tcp};

/// Time after which the next address is tried beside one that has not answered (RFC 8305, section 5).
const NEXT_AFTER: Duration = Duration::from_millis(250);
/// Time after which all addresses that said nothing are tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 16;

/// The addresses of a name, each once, families in turn as far as both are there.
async fn addresses_of(address: &str) -> io::Result<Vec<SocketAddr>> {
    let found = in_turns(lookup_host(address).await?);
    match found.is_empty() {
        true => Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address")),
        false => Ok(found),
    }
}

fn in_turns(found: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut all: Vec<SocketAddr> = Vec::new();
    for one in found {
        if !all.contains(&one) && all.len() < ADDRESSES_MAX {
            all.push(one);
        }
    }
    let is_ipv6 = all.first().is_some_and(SocketAddr::is_ipv6);
    let (like_first, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| one.is_ipv6() == is_ipv6);
    let (mut like_first, mut others) = (like_first.into_iter(), others.into_iter());
    let mut ordered = Vec::new();
    loop {
        let next = [like_first.next(), others.next()];
        if next.iter().all(Option::is_none) {
            return ordered;
        }
        ordered.extend(next.into_iter().flatten());
    }
}

/// Connects to whichever address of a name shakes hands first.
///
/// # Errors
/// All failed; of an address at which somebody answered, if there is one.
pub(crate) async fn connect(
    address: &str,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> io::Result<client::TlsStream<Buffered>> {
    connect_to_any(addresses_of(address).await?, config, name).await
}

/// As [`connect`], to one of these addresses.
async fn connect_to_any(
    mut silent: Vec<SocketAddr>,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
) -> io::Result<client::TlsStream<Buffered>> {
    let mut waiting: VecDeque<SocketAddr> = silent.iter().copied().collect();
    let is_through = Arc::new(AtomicBool::new(false));
    let (mut attempts, mut failed, mut next) = (JoinSet::new(), None, Instant::now());
    loop {
        tokio::select! {
            biased;
            Some(ended) = attempts.join_next() => {
                let (to, ended) = ended.map_err(io::Error::other)?;
                match ended {
                    Ok(stream) => return Ok(stream),
                    Err(error) => {
                        silent.retain(|other| *other != to);
                        waiting.retain(|other| *other != to);
                        failed = Some(failed.filter(|before| says_more(before, &error)).unwrap_or(error));
                        next = Instant::now();
                    }
                }
            }
            () = sleep_until(next), if !waiting.is_empty() => {
                let Some(to) = waiting.pop_front() else { continue };
                attempts.spawn(attempt(to, (Arc::clone(&config), name.clone()), Arc::clone(&is_through)));
                next = Instant::now() + if waiting.is_empty() { AGAIN_AFTER } else { NEXT_AFTER };
            }
            // A server that was reached is busy with the handshake: asking again would only make that longer.
            () = sleep_until(next), if waiting.is_empty() && !silent.is_empty() => {
                if !is_through.load(Ordering::Relaxed) {
                    waiting.extend(silent.iter().copied());
                }
                next = Instant::now() + if waiting.is_empty() { AGAIN_AFTER } else { Duration::ZERO };
            }
            else => {
                let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                return Err(failed.unwrap_or_else(none));
            }
        }
    }
}

/// Whether an error says more than another one: somebody answered.
fn says_more(one: &io::Error, other: &io::Error) -> bool {
    let is_unreached = |error: &io::Error| {
        use io::ErrorKind as Kind;
        matches!(
            error.kind(),
            Kind::ConnectionRefused | Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::TimedOut
        )
    };
    !is_unreached(one) || is_unreached(other)
}

async fn attempt(
    to: SocketAddr,
    (config, name): (Arc<ClientConfig>, ServerName<'static>),
    is_through: Arc<AtomicBool>,
) -> (SocketAddr, io::Result<client::TlsStream<Buffered>>) {
    let connected = async {
        let stream = TcpStream::connect(to).await?;
        is_through.store(true, Ordering::Relaxed);
        TlsConnector::from(config).connect(name, of_tcp(stream)?).await
    };
    (to, connected.await)
}

/// Listens at all addresses of a name that this machine has.
pub(crate) async fn listen(address: &str) -> io::Result<Vec<TcpListener>> {
    /// How often another port is taken, if one that is free at an address isn't at another.
    const PORTS_TRIED: usize = 8;
    let addresses = addresses_of(address).await?;
    let is_any_port = addresses.iter().all(|one| one.port() == 0);
    for _ in 0..PORTS_TRIED {
        match bind_each(&addresses).await {
            Err(error) if is_any_port && error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound,
        }
    }
    bind_each(&addresses).await
}

async fn bind_each(addresses: &[SocketAddr]) -> io::Result<Vec<TcpListener>> {
    let (mut all, mut port, mut missing) = (Vec::new(), None, None);
    for address in addresses {
        let mut address = *address;
        if let Some(port) = port.filter(|_| address.port() == 0) {
            address.set_port(port);
        }
        match TcpListener::bind(address).await {
            Ok(listener) => {
                port = Some(listener.local_addr()?.port());
                all.push(listener);
            }
            // An address of another machine, or of a family that this one doesn't speak.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported)
                    || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) =>
            {
                missing = Some((address, error));
            }
            Err(error) => return Err(error),
        }
    }
    match missing {
        Some((_, error)) if all.is_empty() => Err(error),
        Some((address, error)) => {
            tracing::warn!(%address, %error, "this address of the name is none of this machine");
            Ok(all)
        }
        None => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use stdchk_model::message::handshake::Role;
    use stdchk_model::{Failure, PoolId};
    use tempfile::TempDir;

    use super::*;
    use crate::server::{Caller, Host, Service, serve};
    use crate::{Authority, Buffer, BufferPool, Bytes, Keys, Listener};

    const POOL: PoolId = PoolId([1; 16]);
    /// Far less than a host is waited for that says nothing.
    const SOON: Duration = Duration::from_secs(2);

    struct Nothing;

    impl Service for Nothing {
        type Request = u64;
        type Reply = u64;

        async fn handle(&self, _: Caller, asked: u64, _: Buffer) -> Result<(u64, Bytes), Failure> {
            Ok((asked, Bytes::new()))
        }
    }

    /// A server at an address of this machine, and the keys of its pool.
    async fn server(folder: &TempDir) -> (SocketAddr, Keys) {
        let authority = Authority::open_or_create(&folder.path().join("authority"), POOL).unwrap();
        let keys = || authority.keys(&[Role::Manager]).unwrap().keys(Path::new("test")).unwrap();
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.addresses().unwrap().remove(0).parse().unwrap();
        let host = Host::new(Role::Manager, POOL, Some(Arc::new(keys())));
        tokio::spawn(serve(
            listener,
            host,
            Arc::new(Nothing),
            BufferPool::new(1 << 20),
            std::future::pending(),
        ));
        (address, keys())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_several_addresses_one_that_hangs_or_refuses_or_is_another_servers_keeps_nobody_from_the_others()
     {
        let folder = TempDir::new().unwrap();
        let (address, keys) = server(&folder).await;
        // The system takes the connection, and nobody ever shakes hands.
        let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (hangs, elsewhere) =
            (hangs.local_addr().map(|at| (at, hangs)).unwrap(), other.local_addr().unwrap());
        tokio::spawn(async move { while other.accept().await.is_ok() {} });
        let refuses = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let connect = |addresses: &[SocketAddr]| {
            let (addresses, keys) = (addresses.to_vec(), (keys.client(), keys.server_name()));
            connect_to_any(addresses, keys.0, keys.1)
        };
        for before in [hangs.0, elsewhere, refuses] {
            let begun = Instant::now();
            let stream = connect(&[before, address]).await.unwrap();
            assert_eq!(stream.get_ref().0.get_ref().peer_addr().unwrap(), address);
            assert!(begun.elapsed() < SOON, "{before}: {:?}", begun.elapsed());
        }
        let refused = connect(&[refuses, refuses]).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let closed = connect(&[elsewhere, refuses]).await.unwrap_err();
        assert_ne!(closed.kind(), io::ErrorKind::ConnectionRefused, "somebody was there: {closed}");
    }

    #[tokio::test]
    async fn all_addresses_of_a_name_are_listened_at_on_one_port_but_for_those_of_other_machines() {
        let addresses = |texts: &[&str]| -> Vec<SocketAddr> {
            texts.iter().map(|text| format!("{text}:0").parse().unwrap()).collect()
        };
        let (one, other, none) = ("127.0.0.1", "127.0.0.2", "192.0.2.1");
        let all = bind_each(&addresses(&[one, none, other])).await.unwrap();
        let bound: Vec<SocketAddr> = all.iter().map(|listener| listener.local_addr().unwrap()).collect();
        assert_eq!(bound.iter().map(|at| at.ip().to_string()).collect::<Vec<_>>(), [one, other]);
        assert_eq!(bound[0].port(), bound[1].port());
        assert!(bind_each(&addresses(&[none])).await.is_err());
        assert_eq!(bind_each(&bound[1..]).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test]
    async fn the_families_of_a_name_take_turns() {
        let of = |text: &str| text.parse::<SocketAddr>().unwrap();
        let ordered =
            in_turns(["[::1]:7", "[::2]:7", "1.1.1.1:7", "[::1]:7", "2.2.2.2:7", "3.3.3.3:7"].map(of));
        let expected = ["[::1]:7", "1.1.1.1:7", "[::2]:7", "2.2.2.2:7", "3.3.3.3:7"].map(of);
        assert_eq!(ordered, expected);
    }
}
