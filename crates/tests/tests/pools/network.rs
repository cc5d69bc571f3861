//! A network in memory: every connection has delays, writes arrive in parts, and what the test asks for happens to it.
//!
//! Each process has an address of its own, `127.1.0.N`, by which the network knows who connects. The bytes of a connection go through
//! two tasks, one for each direction, on a runtime that belongs to the network. All numbers are drawn from the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use stdchk_net::transport::{self, Arrivals, Incoming, Outgoing, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::sleep;

use super::host::Host;
use super::random::Random;

/// A process on the network: the last byte of its address.
pub type Place = u8;

/// Bytes that the system keeps of a connection in each direction, on each side.
const BUFFER_BYTES: usize = 64 << 10;
/// Most bytes that arrive at once.
const PART_BYTES: usize = 64 << 10;
/// The same on a slow line.
const SLOW_PART_BYTES: usize = 4 << 10;

/// Who listens takes connections here.
type Door = mpsc::UnboundedSender<(Stream, SocketAddr)>;

/// Somebody who connects.
struct Call {
    from: Place,
    to: SocketAddr,
    answer: oneshot::Sender<Stream>,
}

/// A connection.
struct Link {
    ends: (Place, Place),
    is_cut: AtomicBool,
    cut: Notify,
}

struct State {
    random: Random,
    /// Whose turn it is.
    here: Place,
    doors: BTreeMap<SocketAddr, Door>,
    port: u16,
    /// Between whom nothing passes.
    parted: BTreeSet<(Place, Place)>,
    slow: BTreeSet<Place>,
    refusing: BTreeSet<Place>,
    links: Vec<Weak<Link>>,
}

struct Shared {
    state: Mutex<State>,
    calls: mpsc::UnboundedSender<Call>,
    /// Told when something may pass again.
    healed: Notify,
}

/// The network of one life.
pub struct Network {
    shared: Arc<Shared>,
    host: Host,
}

/// What the processes see of it.
struct Sockets(Arc<Shared>);

impl Network {
    /// A network for all that the present thread connects from now on.
    pub fn new(seed: u64) -> Self {
        let (calls, mut called) = mpsc::unbounded_channel();
        let state = State {
            random: Random::new(seed),
            here: 0,
            doors: BTreeMap::new(),
            port: 9000,
            parted: BTreeSet::new(),
            slow: BTreeSet::new(),
            refusing: BTreeSet::new(),
            links: Vec::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), calls, healed: Notify::new() });
        transport::simulate(Some(Rc::new(Sockets(Arc::clone(&shared)))));
        let (host, connecting) = (Host::new(), Arc::clone(&shared));
        host.spawn(async move {
            while let Some(call) = called.recv().await {
                tokio::spawn(Arc::clone(&connecting).connect(call));
            }
        });
        Self { shared, host }
    }

    /// Lets so much time pass on the wires.
    pub fn step(&self, time: Duration) {
        self.host.step(time);
    }

    /// Says who runs from now on.
    pub fn is_at(&self, place: Place) {
        self.shared.lock().here = place;
    }

    /// Lets nothing pass between the two.
    pub fn part(&self, one: Place, other: Place) {
        let mut state = self.shared.lock();
        state.parted.extend([(one, other), (other, one)]);
    }

    pub fn join(&self, one: Place, other: Place) {
        let mut state = self.shared.lock();
        state.parted.retain(|parted| *parted != (one, other) && *parted != (other, one));
        drop(state);
        self.shared.healed.notify_waiters();
    }

    /// Lets nothing pass from the one to the other.
    pub fn part_way(&self, from: Place, to: Place) {
        self.shared.lock().parted.insert((from, to));
    }

    pub fn join_way(&self, from: Place, to: Place) {
        self.shared.lock().parted.remove(&(from, to));
        self.shared.healed.notify_waiters();
    }

    pub fn set_slow(&self, place: Place, is_slow: bool) {
        let slow = &mut self.shared.lock().slow;
        if is_slow {
            slow.insert(place)
        } else {
            slow.remove(&place)
        };
    }

    pub fn set_refusing(&self, place: Place, refuses: bool) {
        let refusing = &mut self.shared.lock().refusing;
        if refuses {
            refusing.insert(place)
        } else {
            refusing.remove(&place)
        };
    }

    /// Nothing is in the way of anybody any more.
    pub fn heal(&self) {
        let mut state = self.shared.lock();
        state.parted.clear();
        state.slow.clear();
        state.refusing.clear();
        drop(state);
        self.shared.healed.notify_waiters();
    }

    /// Ends one of the connections, wherever its bytes are; says whose.
    pub fn cut_one(&self) -> Option<(Place, Place)> {
        let mut state = self.shared.lock();
        let links: Vec<Arc<Link>> = state.links.iter().filter_map(Weak::upgrade).collect();
        state.links = links.iter().map(Arc::downgrade).collect();
        let link = (!links.is_empty()).then(|| Arc::clone(state.random.one_of(&links)))?;
        link.is_cut.store(true, Ordering::Relaxed);
        link.cut.notify_waiters();
        Some(link.ends)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        transport::simulate(None);
    }
}

impl transport::Network for Sockets {
    fn connect(&self, address: &str) -> Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>> {
        let (answer, answered) = oneshot::channel();
        let call = Call { from: self.0.lock().here, to: address.parse().unwrap(), answer };
        self.0.calls.send(call).unwrap();
        Box::pin(async move { answered.await.map_err(|_| io::ErrorKind::ConnectionRefused.into()) })
    }

    fn listen(&self, mut address: SocketAddr) -> io::Result<(Arrivals, SocketAddr)> {
        let (door, arrivals) = mpsc::unbounded_channel();
        let mut state = self.0.lock();
        if address.port() == 0 {
            state.port += 1;
            address.set_port(state.port);
        }
        state.doors.insert(address, door);
        Ok((arrivals, address))
    }

    fn work_begins_after(&self) -> Duration {
        let random = &mut self.0.lock().random;
        match random.below(200) {
            0 => random.ms(100..3000),
            1..20 => random.ms(5..50),
            _ => Duration::ZERO,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    async fn connect(self: Arc<Self>, mut call: Call) {
        let IpAddr::V4(to) = call.to.ip() else { return };
        let to = to.octets()[3];
        let (delay, _) = self.lock().next_part(call.from, to);
        sleep(delay).await;
        tokio::select! {
            biased;
            () = call.answer.closed() => return,
            () = self.passes(call.from, to) => {}
        }
        let door = {
            let mut state = self.lock();
            if state.refusing.contains(&to) || state.random.once_in(100) {
                return;
            }
            state.doors.get(&call.to).cloned()
        };
        let Some(door) = door else { return };
        let link =
            Arc::new(Link { ends: (call.from, to), is_cut: AtomicBool::new(false), cut: Notify::new() });
        let (out, far_in) = self.wire(&link, call.from, to);
        let (far_out, back) = self.wire(&link, to, call.from);
        let peer = SocketAddr::from((address(call.from), 1));
        self.lock().links.push(Arc::downgrade(&link));
        if door.send(((far_in, far_out), peer)).is_ok() {
            // Whoever called may have given up; then the other one finds out.
            let _ = call.answer.send((back, out));
        }
    }

    /// One direction of a connection.
    fn wire(self: &Arc<Self>, link: &Arc<Link>, from: Place, to: Place) -> (Outgoing, Incoming) {
        let (out, entry) = tokio::io::duplex(BUFFER_BYTES);
        let (exit, far) = tokio::io::duplex(BUFFER_BYTES);
        let (shared, link) = (Arc::clone(self), Arc::clone(link));
        tokio::spawn(async move {
            tokio::select! {
                biased;
                () = link.is_cut() => {}
                () = shared.carry(from, to, entry, exit) => {}
            }
        });
        (Outgoing::Simulated(Box::new(out)), Incoming::Simulated(Box::new(far)))
    }

    /// Takes bytes from one end to the other until one of them is gone.
    async fn carry(&self, from: Place, to: Place, mut entry: DuplexStream, mut exit: DuplexStream) {
        let mut bytes = vec![0; PART_BYTES];
        loop {
            let (delay, limit) = self.lock().next_part(from, to);
            let length = entry.read(&mut bytes[..limit]).await.unwrap_or(0);
            sleep(delay).await;
            self.passes(from, to).await;
            if length == 0 || exit.write_all(&bytes[..length]).await.is_err() {
                return;
            }
        }
    }

    /// Waits until bytes pass from the one to the other.
    async fn passes(&self, from: Place, to: Place) {
        loop {
            let healed = self.healed.notified();
            if !self.lock().parted.contains(&(from, to)) {
                return;
            }
            healed.await;
        }
    }
}

impl State {
    /// How long the next part is under way, and how long it is at most.
    fn next_part(&mut self, from: Place, to: Place) -> (Duration, usize) {
        let is_slow = self.slow.contains(&from) || self.slow.contains(&to);
        let delay = match self.random.below(60) {
            _ if is_slow => self.random.ms(5..80),
            0 => self.random.ms(5..100),
            _ => self.random.ms(0..3),
        };
        let limit = match self.random.below(8) {
            0 => self.random.within(1..2000),
            _ if is_slow => SLOW_PART_BYTES,
            _ => PART_BYTES,
        };
        (delay, limit)
    }
}

impl Link {
    async fn is_cut(&self) {
        let cut = self.cut.notified();
        if !self.is_cut.load(Ordering::Relaxed) {
            cut.await;
        }
    }
}

/// The address of a process.
pub fn address(place: Place) -> Ipv4Addr {
    Ipv4Addr::new(127, 1, 0, place)
}
