//! Managers that stand by, and callers that go where these point: to the one that leads, at once, and for a bounded time if they lie. On real
//! sockets, with certificates.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::limits::{MANAGER_ADDRESS_BYTES_MAX, MANAGERS_MAX};
use stdchk_model::message::handshake::{Leader, Role, StandingBy};
use stdchk_model::message::manager::Era;
use stdchk_model::{Failure, PoolId};
use stdchk_net::server::Host;
use stdchk_net::{
    Authority, Buffer, BufferPool, Bytes, CallError, Caller, Connection, Identity, Keys, Listener, Managers,
    Readiness, Service, serve,
};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::Instant;

const POOL: PoolId = PoolId([1; 16]);
const OTHER_POOL: PoolId = PoolId([2; 16]);
const ERA: Era = Era { number: 1, id: 7 };
/// A try takes three seconds, and three managers are followed one after the other.
const BOUND: Duration = Duration::from_secs(4 * 3 + 2);

/// A manager that leads or stands by.
struct Manager {
    address: String,
    readiness: Mutex<Readiness>,
    managers: Mutex<Vec<String>>,
    greeted: AtomicUsize,
}

struct Serving(Arc<Manager>);

impl Service for Serving {
    type Request = u64;
    type Reply = u64;

    fn readiness(&self) -> Readiness {
        self.0.greeted.fetch_add(1, Ordering::Relaxed);
        self.0.readiness.lock().clone()
    }

    fn era(&self) -> Option<Era> {
        Some(ERA)
    }

    fn leadership(&self) -> Option<u64> {
        Some(5)
    }

    fn managers(&self) -> Vec<String> {
        self.0.managers.lock().clone()
    }

    async fn handle(&self, _: Caller, asked: u64, _: Buffer) -> Result<(u64, Bytes), Failure> {
        Ok((asked, Bytes::new()))
    }
}

impl Manager {
    async fn start(authority: &Authority) -> Arc<Self> {
        Self::start_at("127.0.0.1:0", authority, Role::Manager).await
    }

    async fn start_at(address: &str, authority: &Authority, role: Role) -> Arc<Self> {
        let listener = Listener::bind(address).await.unwrap();
        let address = listener.addresses().unwrap().remove(0);
        let (readiness, managers) = (Mutex::new(Readiness::Serves), Mutex::default());
        let manager = Arc::new(Self { address, readiness, managers, greeted: AtomicUsize::new(0) });
        let host = Host::new(role, authority.pool(), Some(keys(authority, role)));
        let (service, buffers) = (Arc::new(Serving(Arc::clone(&manager))), BufferPool::new(1 << 20));
        tokio::spawn(serve(listener, host, service, buffers, std::future::pending()));
        manager
    }

    /// From now on it stands by, and points there.
    fn points(&self, leader: Option<&str>, managers: &[&str]) {
        self.points_in(ERA, leader, managers);
    }

    fn points_in(&self, era: Era, leader: Option<&str>, managers: &[&str]) {
        let leader = leader.map(|leader| Leader { addresses: vec![leader.to_owned()], leadership: 5 });
        let managers = managers.iter().map(|one| (*one).to_owned()).collect();
        *self.readiness.lock() = Readiness::StandsBy(StandingBy { pool: POOL, leader, managers, era });
    }

    fn greeted(&self) -> usize {
        self.greeted.load(Ordering::Relaxed)
    }
}

fn keys(authority: &Authority, role: Role) -> Arc<Keys> {
    Arc::new(authority.keys(&[role]).unwrap().keys(Path::new("test")).unwrap())
}

fn authority(folder: &TempDir, pool: PoolId) -> Authority {
    Authority::open_or_create(&folder.path().join("authority"), pool).unwrap()
}

fn client(authority: &Authority) -> Identity {
    Identity { role: Role::Client, pool: None, keys: Some(keys(authority, Role::Client)) }
}

async fn open(managers: &Managers, identity: &Identity) -> (Result<Connection, CallError>, Duration) {
    let begun = Instant::now();
    let opened = managers.open(identity, &BufferPool::new(1 << 20)).await;
    (opened, begun.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_knows_one_that_stands_by_follows_to_the_leader_and_learns_from_that_one_alone() {
    let folder = TempDir::new().unwrap();
    let authority = authority(&folder, POOL);
    let (first, second, leader) = (
        Manager::start(&authority).await,
        Manager::start(&authority).await,
        Manager::start(&authority).await,
    );
    // It has heard of the one that led before, which stands by as well.
    first.points(Some(&second.address), &["127.0.0.1:1"]);
    second.points(None, &[&first.address, &leader.address]);
    *leader.managers.lock() = vec![first.address.clone(), leader.address.clone()];
    let managers = Managers::new(&first.address);
    let (opened, took) = open(&managers, &client(&authority)).await;
    assert_eq!(opened.unwrap().address(), leader.address);
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!(
        managers.addresses(),
        [first.address.as_str(), &leader.address],
        "nothing of what the others said"
    );
    // A caller that asks whether one of these leads isn't led away.
    let given = Managers::new(&first.address).as_given();
    let (refused, _) = open(&given, &client(&authority)).await;
    let refused = refused.unwrap_err();
    assert!(matches!(refused, CallError::StandsBy { .. }), "{refused}");
    let said = refused.to_string();
    assert!(said.contains("stands by") && said.contains(&second.address), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn managers_that_point_to_themselves_and_in_circles_cost_one_greeting_each() {
    let folder = TempDir::new().unwrap();
    let authority = authority(&folder, POOL);
    let (first, second) = (Manager::start(&authority).await, Manager::start(&authority).await);
    first.points(Some(&first.address), &[&first.address, &second.address]);
    second.points(Some(&first.address), &[&second.address]);
    let managers = Managers::new(&first.address);
    let (opened, took) = open(&managers, &client(&authority)).await;
    let refused = opened.unwrap_err();
    assert!(refused.is_transport() && matches!(refused, CallError::NoManager { .. }), "{refused}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!((first.greeted(), second.greeted()), (1, 1));
    assert_eq!(managers.addresses(), [first.address.as_str()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_liars_and_many_addresses_that_say_nothing_end_within_a_bound() {
    let folder = TempDir::new().unwrap();
    let authority = authority(&folder, POOL);
    let mut chain = Vec::new();
    for _ in 0..8 {
        chain.push(Manager::start(&authority).await);
    }
    // These take connections and never say anything.
    let mut silent = Vec::new();
    for _ in 0..3 * MANAGERS_MAX {
        silent.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let silent: Vec<String> = silent.iter().map(|one| one.local_addr().unwrap().to_string()).collect();
    let silent: Vec<&str> = silent.iter().map(String::as_str).collect();
    for (steps, (one, next)) in chain.iter().zip(chain.iter().skip(1)).enumerate() {
        one.points(Some(&next.address), if steps == 2 { &silent } else { &[] });
    }
    let (opened, took) = open(&Managers::new(&chain[0].address), &client(&authority)).await;
    assert!(opened.unwrap_err().is_transport());
    assert!(took < BOUND, "{took:?}");
    let asked: Vec<bool> = chain.iter().map(|one| one.greeted() > 0).collect();
    assert_eq!(asked, [true, true, true, true, false, false, false, false], "it is followed for three steps");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_pointed_to_another_pool_or_to_a_benefactor_goes_on_trying_its_own() {
    let (folder, others) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (authority, other) = (authority(&folder, POOL), authority(&others, OTHER_POOL));
    let (liar, stranger) = (Manager::start(&authority).await, Manager::start(&other).await);
    let benefactor = Manager::start_at("127.0.0.1:0", &authority, Role::Benefactor).await;
    liar.points(Some(&stranger.address), &[&benefactor.address]);
    let (opened, took) = open(&Managers::new(&liar.address), &client(&authority)).await;
    let refused = opened.unwrap_err();
    assert!(refused.is_transport() && !matches!(refused, CallError::Stranger { .. }), "{refused}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!(stranger.greeted(), 0, "it is shown no word of this pool");
    // A benefactor that takes the address of a manager leads nobody anywhere.
    let leader = Manager::start(&authority).await;
    benefactor.points(Some(&leader.address), &[]);
    let (opened, _) = open(&Managers::new(&benefactor.address), &client(&authority)).await;
    opened.unwrap_err();
    assert_eq!(leader.greeted(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_stands_by_for_an_older_state_is_not_followed() {
    let folder = TempDir::new().unwrap();
    let authority = authority(&folder, POOL);
    let (standing, leader) = (Manager::start(&authority).await, Manager::start(&authority).await);
    standing.points_in(Era::FIRST, Some(&leader.address), &[]);
    let managers = Managers::new(&standing.address);
    managers.hear(ERA);
    let (opened, _) = open(&managers, &client(&authority)).await;
    let refused = opened.unwrap_err().to_string();
    assert!(refused.contains("an older state"), "{refused}");
    assert_eq!(leader.greeted(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_slow_is_not_left_for_itself_under_another_name() {
    let folder = TempDir::new().unwrap();
    let authority = authority(&folder, POOL);
    let leader = Manager::start(&authority).await;
    let standing = Manager::start(&authority).await;
    let port = leader.address.rsplit_once(':').unwrap().1;
    let by_name = format!("localhost:{port}");
    standing.points(Some(&by_name), &[&by_name]);
    let managers = Managers::new(&format!("{},{}", leader.address, standing.address));
    let (identity, buffers) = (client(&authority), BufferPool::new(1 << 20));
    let connection = managers.open(&identity, &buffers).await.unwrap();
    assert_eq!(connection.address(), leader.address);
    let (begun, greeted) = (Instant::now(), leader.greeted());
    let another = managers.another(&connection, &identity, &buffers, || begun);
    assert!(tokio::time::timeout(Duration::from_secs(5), another).await.is_err());
    assert!(standing.greeted() > 1, "it is asked whether another one leads");
    assert_eq!(leader.greeted(), greeted, "one that has much to do isn't greeted again and again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_greeting_has_room_for_as_many_addresses_as_a_pool_may_have() {
    let folder = TempDir::new().unwrap();
    let authority = authority(&folder, POOL);
    let leader = Manager::start(&authority).await;
    let list = vec!["n".repeat(MANAGER_ADDRESS_BYTES_MAX); MANAGERS_MAX];
    leader.managers.lock().clone_from(&list);
    let managers = Managers::new(&leader.address);
    assert!(open(&managers, &client(&authority)).await.0.is_ok());
    assert_eq!(managers.addresses(), list);
    let standing = Manager::start(&authority).await;
    let list: Vec<&str> = list.iter().map(String::as_str).collect();
    standing.points(Some(&leader.address), &list);
    assert!(open(&Managers::new(&standing.address), &client(&authority)).await.0.is_ok());
}
