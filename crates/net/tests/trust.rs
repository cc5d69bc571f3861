//! Connections of the network: members with certificates of one authority, strangers, and hosts that join. On real sockets.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stdchk_model::message::handshake::{Join, Joined, MemberId, Role};
use stdchk_model::{ErrorCode, Failure, PoolId};
use stdchk_net::server::Host;
use stdchk_net::{
    Authority, Buffer, BufferPool, Bytes, CallError, Caller, Connection, Identity, JoiningKey, Keys,
    Listener, Parts, Service, Token, serve,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LIMIT: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const POOL: PoolId = PoolId([1; 16]);

/// Answers with the length of what it was sent, and lets hosts join: each that proves a token, as often as it likes.
struct Gate(Arc<Authority>);

impl Service for Gate {
    type Request = u64;
    type Reply = (u64, String);

    async fn handle(
        &self,
        caller: Caller,
        request: u64,
        payload: Buffer,
    ) -> Result<((u64, String), Bytes), Failure> {
        assert!(caller.member.is_some(), "a caller of the network is a member");
        Ok(((request, caller.role.name().to_owned()), payload.into_bytes()))
    }

    async fn join(&self, join: Join, channel: [u8; 32], _: &str) -> Result<Joined, Failure> {
        self.0.admit(&join, &channel).map(|admission| Joined { certificate: admission.certificate })
    }
}

/// A server of the pool and its authority.
struct Pool {
    folder: TempDir,
    authority: Arc<Authority>,
    address: String,
    gate: Arc<Gate>,
}

impl Pool {
    async fn start(pool: PoolId, role: Role) -> Self {
        let folder = TempDir::new().unwrap();
        let authority = Arc::new(Authority::open_or_create(&folder.path().join("authority"), pool).unwrap());
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.addresses().unwrap().remove(0);
        let host = Host::new(role, pool, Some(keys(&authority, &[role])));
        let gate = Arc::new(Gate(Arc::clone(&authority)));
        tokio::spawn(serve(
            listener,
            host,
            Arc::clone(&gate),
            BufferPool::new(64 << 20),
            std::future::pending(),
        ));
        Self { folder, authority, address, gate }
    }

    fn keys(&self, roles: &[Role]) -> Option<Arc<Keys>> {
        Some(keys(&self.authority, roles))
    }

    fn token(&self, roles: &[Role]) -> String {
        self.authority.make_token(roles, 1, HOUR).unwrap()
    }
}

fn keys(authority: &Authority, roles: &[Role]) -> Arc<Keys> {
    Arc::new(authority.keys(roles).unwrap().keys(Path::new("test")).unwrap())
}

async fn open(
    address: &str,
    server: Role,
    role: Role,
    keys: Option<Arc<Keys>>,
) -> Result<Connection, CallError> {
    let identity = Identity { role, pool: None, keys };
    Connection::open(server, address, &identity, &BufferPool::new(64 << 20)).await
}

/// Joins from a host that has no keys yet.
async fn join(address: &str, token: &str, role: Role) -> Result<Parts, Failure> {
    let folder = TempDir::new().unwrap();
    let token = Token::read(token, role)?;
    stdchk_net::join(address, &token, &JoiningKey::of(folder.path(), &token).unwrap()).await
}

async fn role_of(connection: &Connection) -> String {
    let ((_, role), _) = connection.call::<u64, (u64, String)>(&7, Bytes::new(), LIMIT).await.unwrap();
    role
}

#[tokio::test(flavor = "multi_thread")]
async fn members_speak_encrypted_and_are_what_their_certificates_say() {
    let pool = Pool::start(POOL, Role::Manager).await;
    let client = open(&pool.address, Role::Manager, Role::Client, pool.keys(&[Role::Client])).await.unwrap();
    assert_eq!((role_of(&client).await.as_str(), client.pool()), ("client", POOL));
    assert!(client.here().is_some_and(|address| address.is_loopback()));
    let sent = vec![7; 3 << 20];
    let client = Arc::new(client);
    let calls = (0..20u64).map(|number| {
        let (client, sent) = (Arc::clone(&client), sent.clone());
        tokio::spawn(async move {
            let answer = client.call::<u64, (u64, String)>(&number, sent.clone().into(), LIMIT).await;
            assert!(answer.unwrap().1[..] == sent[..]);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    let operator =
        open(&pool.address, Role::Manager, Role::Client, pool.keys(&[Role::Operator])).await.unwrap();
    assert_eq!(role_of(&operator).await, "operator");
    // What a certificate doesn't say its owner may not be.
    for (role, roles) in [
        (Role::Benefactor, [Role::Client]),
        (Role::Operator, [Role::Client]),
        (Role::Client, [Role::Benefactor]),
    ] {
        let refused = open(&pool.address, Role::Manager, role, pool.keys(&roles)).await.unwrap_err();
        assert!(
            matches!(&refused, CallError::Refused(failure) if failure.code == ErrorCode::Denied),
            "{refused}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_dropped_is_over_for_both_sides() {
    let pool = Pool::start(POOL, Role::Manager).await;
    let keys = pool.keys(&[Role::Client]);
    // The server, and who looks at it here.
    let without = Arc::strong_count(&pool.gate);
    let mut connections = Vec::new();
    for _ in 0..20 {
        let connection = open(&pool.address, Role::Manager, Role::Client, keys.clone()).await.unwrap();
        assert_eq!(role_of(&connection).await, "client");
        connections.push(connection);
    }
    assert!(Arc::strong_count(&pool.gate) >= without + connections.len());
    drop(connections);
    let begun = std::time::Instant::now();
    while Arc::strong_count(&pool.gate) > without {
        assert!(begun.elapsed() < LIMIT, "{} connections are kept", Arc::strong_count(&pool.gate) - without);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_and_members_of_other_pools_get_nothing() {
    let (pool, other) =
        (Pool::start(POOL, Role::Benefactor).await, Pool::start(PoolId([2; 16]), Role::Benefactor).await);
    let twin = Pool::start(POOL, Role::Manager).await;
    for keys in [other.keys(&[Role::Client]), twin.keys(&[Role::Client]), None] {
        let error = open(&pool.address, Role::Benefactor, Role::Client, keys).await.unwrap_err();
        assert!(error.is_transport(), "{error}");
    }
    // Bytes that are no TLS end their own connection alone.
    let mut noise = TcpStream::connect(&pool.address).await.unwrap();
    noise.write_all(b"SCK1 and whatever").await.unwrap();
    let mut answer = Vec::new();
    let _ = noise.read_to_end(&mut answer).await;
    assert!(!answer.windows(4).any(|bytes| bytes == b"SCK1"));
    let member =
        open(&pool.address, Role::Benefactor, Role::Client, pool.keys(&[Role::Client])).await.unwrap();
    assert_eq!(role_of(&member).await, "client");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_benefactor_that_took_the_managers_address_is_found_out() {
    let pool = Pool::start(POOL, Role::Benefactor).await;
    let error =
        open(&pool.address, Role::Manager, Role::Client, pool.keys(&[Role::Client])).await.unwrap_err();
    assert!(error.is_transport() && error.to_string().contains("no manager"), "{error}");
    // Also one that says that it is the manager.
    let host = Host::new(Role::Manager, POOL, pool.keys(&[Role::Benefactor]));
    let listener = Listener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.addresses().unwrap().remove(0);
    let gate = Arc::new(Gate(Arc::clone(&pool.authority)));
    tokio::spawn(serve(listener, host, gate, BufferPool::new(1 << 20), std::future::pending()));
    let error = open(&address, Role::Manager, Role::Client, pool.keys(&[Role::Client])).await.unwrap_err();
    assert!(error.is_transport() && error.to_string().contains("no manager"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_joins_with_a_token_of_the_pool_and_with_nothing_else() {
    let pool = Pool::start(POOL, Role::Manager).await;
    let token = pool.token(&[Role::Benefactor]);
    let parts = join(&pool.address, &token, Role::Benefactor).await.unwrap();
    let folder = pool.folder.path().join("keys");
    parts.save(&folder).unwrap();
    let keys = Arc::new(Keys::load(&folder).unwrap());
    assert_eq!((keys.pool(), keys.member().roles.as_slice()), (POOL, &[Role::Benefactor][..]));
    let connection = open(&pool.address, Role::Manager, Role::Benefactor, Some(keys)).await.unwrap();
    assert_eq!(role_of(&connection).await, "benefactor");
    // One for another role isn't even shown.
    let client = pool.token(&[Role::Client]);
    let error = join(&pool.address, &client, Role::Benefactor).await.err().unwrap();
    assert!(
        error.code == ErrorCode::Invalid && error.message.contains("for a client, not for a benefactor"),
        "{error}"
    );
    let operator = pool.token(&[Role::Operator]);
    join(&pool.address, &operator, Role::Client).await.unwrap();
    // A token that was changed on its way, and what is none.
    let token = pool.token(&[Role::Client]);
    let mut changed = token.clone().into_bytes();
    let last = changed.len() - 2;
    changed[last] = if changed[last] == b'A' { b'B' } else { b'A' };
    assert!(join(&pool.address, &String::from_utf8(changed).unwrap(), Role::Client).await.is_err());
    for none in ["", "stdchk1-", "stdchk1-!!", &token[..40], "hello"] {
        assert_eq!(
            join(&pool.address, none, Role::Client).await.err().unwrap().code,
            ErrorCode::Invalid,
            "{none}"
        );
    }
    // The host that was meant joins all the same.
    join(&pool.address, &format!("  {token}\n"), Role::Client).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_was_interrupted_joins_again_as_the_same_member_and_with_another_token_as_another() {
    let pool = Pool::start(POOL, Role::Manager).await;
    let folder = pool.folder.path().join("keys");
    let join = async |token: &str| {
        let token = Token::read(token, Role::Client).unwrap();
        let key = JoiningKey::of(&folder, &token).unwrap();
        let parts = stdchk_net::join(&pool.address, &token, &key).await.unwrap();
        (parts.keys(&folder).unwrap().member().id, key)
    };
    let token = pool.token(&[Role::Client]);
    let (first, _) = join(&token).await;
    let (again, key) = join(&format!(" {token}\n")).await;
    assert_eq!(first, again);
    assert_ne!(join(&pool.token(&[Role::Client])).await.0, first, "that one may be shut out by now");
    key.forget().unwrap();
    assert_ne!(join(&token).await.0, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_holder_of_the_authority_knows_its_tokens_and_nobody_else_can_make_one() {
    let (pool, other) = (Pool::start(POOL, Role::Manager).await, TempDir::new().unwrap());
    let copy = Authority::open(&pool.folder.path().join("authority")).unwrap();
    join(&pool.address, &copy.make_token(&[Role::Client], 1, HOUR).unwrap(), Role::Client).await.unwrap();
    let twin = Authority::open_or_create(other.path(), POOL).unwrap();
    let foreign = twin.make_token(&[Role::Client], 1, HOUR).unwrap();
    let error = join(&pool.address, &foreign, Role::Client).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::Denied, "it is of another authority: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_shows_a_token_to_an_impostor_tells_it_nothing_that_it_could_use() {
    let pool = Pool::start(POOL, Role::Manager).await;
    let impostor = Pool::start(POOL, Role::Manager).await;
    let token = pool.token(&[Role::Client]);
    let error = join(&impostor.address, &token, Role::Client).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::Denied, "{error}");
    join(&pool.address, &token, Role::Client).await.unwrap();
}

#[test]
fn keys_that_others_can_read_or_that_do_not_fit_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    let authority = Authority::open_or_create(&folder.path().join("authority"), POOL).unwrap();
    assert!(Authority::open_or_create(&folder.path().join("authority"), PoolId([2; 16])).is_err());
    let (one, two) = (folder.path().join("one"), folder.path().join("two"));
    authority.keys(&[Role::Client]).unwrap().save(&one).unwrap();
    authority.keys(&[Role::Client]).unwrap().save(&two).unwrap();
    assert!(Keys::load(&one).is_ok());
    std::fs::copy(two.join("key.pem"), one.join("key.pem")).unwrap();
    assert!(Keys::load(&one).is_err(), "the key of another certificate");
    std::fs::set_permissions(two.join("key.pem"), PermissionsExt::from_mode(0o644)).unwrap();
    assert!(Keys::load(&two).unwrap_err().to_string().contains("other users"));
    std::fs::write(two.join("certificate.pem"), "nonsense").unwrap();
    assert!(Keys::load(&two).is_err());
    assert!(Keys::load(&folder.path().join("none")).is_err());
}

#[test]
fn an_authority_that_lost_its_key_is_not_begun_anew_and_one_that_lost_its_certificate_is_the_same() {
    let folder = TempDir::new().unwrap();
    let member = Authority::open_or_create(folder.path(), POOL).unwrap().keys(&[Role::Client]).unwrap();
    let (key, certificate) = (folder.path().join("key.pem"), folder.path().join("certificate.pem"));
    let kept = folder.path().join("kept");
    std::fs::rename(&key, &kept).unwrap();
    let error = Authority::open_or_create(folder.path(), POOL).err().unwrap().to_string();
    assert!(error.contains("key.pem") && error.contains("backup"), "{error}");
    std::fs::rename(&kept, &key).unwrap();
    std::fs::remove_file(&certificate).unwrap();
    let again = Authority::open_or_create(folder.path(), POOL).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.addresses().unwrap().remove(0);
        let host = Host::new(Role::Manager, POOL, Some(keys(&again, &[Role::Manager])));
        let gate = Arc::new(Gate(Arc::new(again)));
        tokio::spawn(serve(listener, host, gate, BufferPool::new(1 << 20), std::future::pending()));
        let member = Arc::new(member.keys(folder.path()).unwrap());
        open(&address, Role::Manager, Role::Client, Some(member)).await.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_that_begin_to_greet_hold_nobody_up() {
    let pool = Pool::start(POOL, Role::Manager).await;
    let address: SocketAddr = pool.address.parse().unwrap();
    let mut strangers = Vec::new();
    for _ in 0..600 {
        let mut stranger = TcpStream::connect(address).await.unwrap();
        // The begin of a greeting of TLS that announces more than comes.
        let _ = stranger.write_all(&[22, 3, 1, 2, 0, 1, 0, 1]).await;
        strangers.push(stranger);
    }
    let member = open(&pool.address, Role::Manager, Role::Client, pool.keys(&[Role::Client])).await.unwrap();
    assert_eq!(role_of(&member).await, "client");
}

#[test]
fn what_several_processes_of_a_host_write_of_those_who_are_shut_out_adds_up() {
    let folder = TempDir::new().unwrap();
    let authority = Authority::open_or_create(&folder.path().join("authority"), POOL).unwrap();
    let own = folder.path().join("keys");
    authority.keys(&[Role::Benefactor]).unwrap().save(&own).unwrap();
    let member = |number: u8| MemberId([number; 16]);
    std::thread::scope(|threads| {
        for process in 0..4 {
            let keys = Keys::load(&own).unwrap();
            threads.spawn(move || {
                for number in 0..10 {
                    keys.revoke(&[member(process * 10 + number)]).unwrap();
                }
            });
        }
    });
    let all: Vec<MemberId> = (0..40).map(member).collect();
    assert_eq!(Keys::load(&own).unwrap().revoked_members(), all);
    // The authority's own list holds through a start, and is not read from the members.
    assert!(authority.revoked().unwrap().is_empty());
    authority.shut_out(&[member(1)]).unwrap();
    assert_eq!(Vec::from_iter(authority.revoked().unwrap()), [member(1)]);
}

#[test]
fn a_certificate_for_a_user_says_so_and_is_no_other_client() {
    use stdchk_model::User;
    let folder = TempDir::new().unwrap();
    let authority = Authority::open_or_create(&folder.path().join("authority"), POOL).unwrap();
    let most: Vec<u32> = (0..16).map(|number| u32::MAX - number).collect();
    let user = User::of_groups(u32::MAX, &most).unwrap();
    let keys = authority.user_keys(&user).unwrap().keys(folder.path()).unwrap();
    assert_eq!((keys.member().roles.as_slice(), &keys.member().user), (&[Role::Client][..], &Some(user)));
    let more: Vec<u32> = (0..17).collect();
    let user = User::of_groups(1, &more).unwrap();
    assert!(authority.make_user_token(user, 1, HOUR).unwrap_err().to_string().contains("groups"));
    let keys = authority.keys(&[Role::Client]).unwrap().keys(folder.path()).unwrap();
    assert_eq!(keys.member().user, None);
}
