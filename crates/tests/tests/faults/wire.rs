//! Whatever reaches the sockets of manager and benefactor: noise, frames of noise, well-made frames with mutated messages,
//! and callers that stop in the middle. Each gets an error or a closed connection; nobody else notices (I10).
//!
//! All cases follow from seeds: a failure can be repeated.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stdchk_model::limits::{BLOCK_BYTES_MAX, BODY_BYTES_MAX};
use stdchk_model::message::benefactor::{BenefactorLoad, BenefactorRequest, FailedCopy};
use stdchk_model::message::handshake::{Hello, PROTOCOL, Role};
use stdchk_model::message::manager::{
    BenefactorSecret, Change, Existing, FileKind, ManagerRequest, Registration, StoredBlock, VersionState,
};
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, ChunkRef, ClientId, Code, Encoding, ErrorCode, Failure, Incarnation, Ino,
    MapRoot, OpId, Receipt, ReceiptKey, SessionId, Tier, cbor,
};
use stdchk_net::frame::{HEAD_BYTES, Head, Kind, encode};
use stdchk_net::transport::socket_of;
use stdchk_tests::{PATIENCE, Pool, SetAtEnd, random_bytes};

/// Connections that send noise, per server.
const NOISY_CONNECTIONS: u64 = 300;
/// Mutated messages, per server.
const MUTATIONS: u64 = 4000;
/// Mutated messages that are sent before their answers are read: fewer than the server takes at once.
const BATCH: u64 = 32;

/// A source of numbers that depend on the seed alone.
struct Random(Vec<u8>, usize);

impl Random {
    fn new(seed: u64) -> Self {
        Self(random_bytes(4096, seed), 0)
    }

    fn below(&mut self, limit: usize) -> usize {
        let at = self.1 % (self.0.len() - 4);
        self.1 += 4;
        let number = u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]]);
        number as usize % limit.max(1)
    }
}

fn manager_of(pool: &Pool) -> String {
    pool.status()["manager"]["address"].as_str().unwrap().to_owned()
}

fn benefactor_of(pool: &Pool) -> String {
    pool.status()["benefactors"][0]["address"].as_str().unwrap().to_owned()
}

fn connect(address: &str) -> UnixStream {
    let stream = UnixStream::connect(socket_of(address).unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn frame(id: u64, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = encode(&Head { kind: Kind::Request, id }, body, payload.len()).unwrap();
    bytes.extend(payload);
    bytes
}

/// One answer: its kind and body; `None` when the server has closed the connection.
fn answer(stream: &mut UnixStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; HEAD_BYTES];
    match stream.read_exact(&mut head) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer in time"),
        Err(_) => return None,
    }
    let length =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
    let (mut body, mut payload) = (vec![0; length(16)], vec![0; length(20)]);
    stream.read_exact(&mut body).ok()?;
    stream.read_exact(&mut payload).ok()?;
    match head[4] {
        // That the server is there is no answer.
        kind if kind == Kind::Alive as u8 => answer(stream),
        kind => Some((kind, body)),
    }
}

/// A connection that was let in.
fn greet(address: &str) -> UnixStream {
    greet_as(Role::Client, address)
}

fn greet_as(role: Role, address: &str) -> UnixStream {
    let mut stream = connect(address);
    let hello = Hello { protocol: PROTOCOL, role, pool: None, maker: stdchk_model::Maker::LOCAL };
    stream.write_all(&frame(0, &cbor::encode(&hello), &[])).unwrap();
    assert_eq!(answer(&mut stream).unwrap().0, 1);
    stream
}

/// Noise of several kinds, from plain to nearly a frame.
fn noise(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let length = random.below(3000);
    let mut bytes = random_bytes(length, seed + 1);
    match seed % 5 {
        0 => bytes,
        1 => [&b"SCK1\0\0\0\0"[..], &bytes].concat(),
        2 => b"GET / HTTP/1.1\r\nHost: pool\r\n\r\n".to_vec(),
        // A well-made frame around noise, once cut short.
        3 => frame(seed, &bytes, &[]),
        _ => {
            bytes = frame(seed, &bytes, b"payload");
            bytes.truncate(random.below(bytes.len()));
            bytes
        }
    }
}

/// Heads that announce more than comes, as much as a frame may have.
fn boast(body: usize, payload: usize) -> Vec<u8> {
    let bytes = encode(&Head { kind: Kind::Request, id: 0 }, &vec![0; body], payload).unwrap();
    bytes[..HEAD_BYTES + body / 2].to_vec()
}

/// Stores and fetches files as long as the others make trouble, one at least.
fn work(pool: &Pool, done: &AtomicBool) {
    for turn in 0.. {
        let content = random_bytes(1_200_000, 7000 + turn);
        pool.put(&content, "app/work");
        assert!(pool.get("app/work") == content);
        if done.load(Ordering::Acquire) {
            return;
        }
    }
}

/// Makes trouble while files are stored and fetched; all processes must live through it.
fn disturbed(pool: &Pool, trouble: impl FnOnce()) {
    pool.put(b"from before", "app/before");
    let before = pool.pids();
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let _end = SetAtEnd(&done);
        threads.spawn(|| work(pool, &done));
        trouble();
    });
    assert_eq!(pool.pids(), before);
    assert_eq!(pool.get("app/before"), b"from before");
    for role in before.iter().map(|(role, _)| role) {
        assert!(!pool.log(role).contains("panicked"), "{role}: {}", pool.log(role));
    }
    pool.wait_for_state("online", pool.status()["benefactors"].as_array().unwrap().len());
}

#[test]
fn noise_on_the_ports_disturbs_nobody() {
    let pool = Pool::up(2, &[]);
    let addresses = [manager_of(&pool), benefactor_of(&pool)];
    disturbed(&pool, || {
        for seed in 0..NOISY_CONNECTIONS {
            for address in &addresses {
                let mut stream = connect(address);
                // The server may close before it has read everything.
                let _ = stream.write_all(&noise(seed));
                if seed % 3 == 0 {
                    let mut stream = greet(address);
                    let _ = stream.write_all(&noise(seed + 1_000_000));
                }
            }
        }
    });
}

#[test]
fn callers_that_stop_in_the_middle_hold_nobody_up() {
    let pool = Pool::up(1, &[]);
    let addresses = [manager_of(&pool), benefactor_of(&pool)];
    disturbed(&pool, || {
        let mut held = Vec::new();
        for _ in 0..4 {
            for address in addresses.iter().cycle().take(80) {
                for bytes in [boast(64, BLOCK_BYTES_MAX), boast(64, 0), b"SCK1".to_vec(), Vec::new()] {
                    let mut stream = connect(address);
                    stream.write_all(&bytes).unwrap();
                    held.push(stream);
                }
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        // Who was let in may stop in the middle as well.
        for address in &addresses {
            let mut stream = greet(address);
            stream.write_all(&boast(BODY_BYTES_MAX, 0)).unwrap();
            held.push(stream);
        }
    });
}

fn some_chunk(number: u8) -> ChunkRef {
    ChunkRef { id: ChunkId([number; 32]), length: 1000 }
}

/// One of each kind of change.
fn changes() -> Vec<Change> {
    let (parent, ino, name) = (Ino::ROOT, Ino(77), "fuzz".to_owned());
    let make = Change::Make {
        parent,
        name: name.clone(),
        kind: FileKind::File,
        mode: 0o644,
        uid: 0,
        gid: 0,
        target: String::new(),
    };
    let (new_parent, new_name, existing) = (parent, "fuzz2".to_owned(), Existing::Exchange);
    let rename = Change::Rename { parent, name: name.clone(), new_parent, new_name, existing };
    let attr = Change::SetAttr { ino, mode: Some(1), uid: None, gid: Some(2), atime: Some(-1), mtime: None };
    let policy = Change::SetPolicy { ino, pairs: vec![("redundancy".to_owned(), "replicate:3".to_owned())] };
    vec![
        make,
        rename,
        attr,
        policy,
        Change::Link { ino, parent, name: "fuzz3".to_owned() },
        Change::Unlink { parent, name: name.clone() },
        Change::Rmdir { parent, name: name.clone() },
        Change::DropVersion { ino, version: 1 },
    ]
}

/// One of each kind of request that a manager knows.
fn manager_requests() -> Vec<Vec<u8>> {
    use ManagerRequest as Q;
    let (parent, ino, name) = (Ino::ROOT, Ino(77), "fuzz".to_owned());
    let (session, client, id) = (SessionId([9; 16]), ClientId([8; 16]), OpId([7; 16]));
    let (benefactor, incarnation, load) = (BenefactorId(40_000), Incarnation(5), BenefactorLoad::default());
    let block = BlockId::plain(some_chunk(1).id);
    let stored = StoredBlock { block, stored_length: 1000, plain_length: 1000 };
    let root = MapRoot::Pieces { pieces: vec![some_chunk(2)], length: 1000 };
    let receipts =
        vec![(BenefactorId(0), Receipt::new(&ReceiptKey([1; 32]), incarnation, 1 << 40, vec![stored]))];
    let mut requests: Vec<Q> = changes().into_iter().map(|change| Q::Change { id, change }).collect();
    requests.extend([Q::Space, Q::MakeRoom, Q::Benefactors, Q::Status]);
    requests.extend([
        Q::Lookup { parent, name },
        Q::GetAttr(ino),
        Q::Resolve { path: "app/work".to_owned() },
        Q::ReadDir { ino: parent, after: Some("a".to_owned()), limit: 10 },
        Q::ReadLink(ino),
        Q::Versions(ino),
        Q::OpenVersion { ino, version: Some(1), client: None },
        Q::Locate { chunks: vec![some_chunk(1).id] },
        Q::Similar(ino),
        Q::OpenSession { session, client, ino, durability: None },
        Q::Reserve { session, bytes: 1 << 20, avoid: vec![BenefactorId(0)] },
        Q::Known { session, chunks: vec![some_chunk(1).id], room_bytes: 1 << 20 },
        Q::Receipts { session, receipts: receipts.clone() },
        Q::Vouch { session, encodings: vec![(block.chunk, block.encoding)] },
        Q::Commit {
            session,
            root,
            size: 1000,
            mtime: 1,
            stored_bytes: 1000,
            named: vec![some_chunk(1).id],
            named_before: 0,
            state: VersionState::Open,
            hole_bytes: 0,
            receipts,
            key: None,
            changes: 0,
        },
        Q::Closing { session, size: 1000, changes: 1 },
        Q::CloseSession { session, interrupted: true },
        Q::KeepAlive(client),
        Q::Reading { client, sessions: vec![session] },
        Q::GetPolicy(ino),
        Q::Sets(parent),
        Registration {
            id: Some(benefactor),
            incarnation,
            address: "127.0.0.1:9".to_owned(),
            pid: 1,
            load,
            remembered: None,
            put_sequence: 1,
            receipt_key: ReceiptKey([1; 32]),
            term: None,
            machine: None,
            labels: Vec::new(),
            tier: Tier::Disk,
        }
        .introduced(&BenefactorSecret([1; 32])),
        Q::BeginInventory { id: benefactor, registration: 5 },
        Q::Inventory { id: benefactor, registration: 5, last: true, blocks: vec![stored], put_sequence: 1 },
        Q::Heartbeat {
            id: benefactor,
            registration: 5,
            load,
            durable_sequence: 1,
            added: Vec::new(),
            removed: vec![block],
            damaged: 1,
            copies_failed: vec![FailedCopy { chunk: block.chunk, to: Some(benefactor) }],
            put_sequence: 1,
            decoded: Vec::new(),
            seen: Vec::new(),
            disk: None,
        },
    ]);
    requests.iter().map(cbor::encode).collect()
}

/// One of each kind of request that a benefactor knows.
fn benefactor_requests() -> Vec<Vec<u8>> {
    use BenefactorRequest as Q;
    let chunk = some_chunk(1);
    let block = BlockId::plain(chunk.id);
    let code = Code::erasure(3, 2).unwrap();
    let coded = Encoding { code, hashes: vec![chunk.id; 5], ..Encoding::plain(chunk) };
    let requests = [
        Q::Put { block, encoding: Encoding::plain(chunk), durable: true, insists: false },
        Q::Put { block: coded.block(chunk.id, 3), encoding: coded.clone(), durable: false, insists: true },
        Q::Sync { blocks: vec![block, coded.block(chunk.id, 3)], tell: false },
        Q::Get { block },
        Q::Verify { blocks: vec![block] },
        Q::Status,
    ];
    requests.iter().map(cbor::encode).collect()
}

/// The message with a few bytes changed, cut off, doubled or put in.
fn mutated(message: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = message.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = u8::try_from(random.below(256)).unwrap(),
            // The largest lengths that CBOR can announce, for an array, a text and bytes.
            2 => bytes[at] = [0x9b, 0x7b, 0x5b, 0x9f, 0xff][random.below(5)],
            3 => bytes.truncate(at.max(1)),
            4 => bytes.insert(at, u8::try_from(random.below(256)).unwrap()),
            _ => bytes.extend_from_within(at..),
        }
    }
    bytes
}

/// Sends mutated messages, some with a payload, and reads an answer to each; the connection must bear them all.
fn send_mutations(role: Role, address: &str, messages: &[Vec<u8>], seeds: std::ops::Range<u64>) {
    let mut stream = greet_as(role, address);
    let mut refused = 0;
    let mut seeds = seeds.peekable();
    while seeds.peek().is_some() {
        let batch: Vec<u64> = seeds.by_ref().take(BATCH as usize).collect();
        for seed in &batch {
            let message = &messages[*seed as usize % messages.len()];
            let payload = random_bytes(if seed % 4 == 0 { 1000 } else { 0 }, *seed);
            stream.write_all(&frame(*seed, &mutated(message, *seed), &payload)).unwrap();
        }
        for _ in &batch {
            let (kind, body) = answer(&mut stream).expect("a message that can't be read ends no connection");
            if kind == 2 {
                let failure: Failure = cbor::decode(&body).unwrap();
                assert!(!failure.message.is_empty() && failure.code != ErrorCode::Internal, "{failure:?}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
}

#[test]
fn mutated_messages_get_an_answer_each_and_disturb_nobody() {
    let pool = Pool::up(2, &[]);
    let (manager, benefactor) = (manager_of(&pool), benefactor_of(&pool));
    let (to_manager, to_benefactor) = (manager_requests(), benefactor_requests());
    disturbed(&pool, || {
        send_mutations(Role::Client, &manager, &to_manager, 0..MUTATIONS);
        send_mutations(Role::Benefactor, &manager, &to_manager, MUTATIONS..2 * MUTATIONS);
        send_mutations(Role::Client, &benefactor, &to_benefactor, 0..MUTATIONS);
    });
}

#[test]
fn names_that_no_kernel_would_send_are_refused_by_the_manager_itself() {
    let pool = Pool::up(1, &[]);
    let mut stream = greet(&manager_of(&pool));
    for (number, name) in ["", ".", "..", "a/b", "/", "a\0b", &"n".repeat(256)].into_iter().enumerate() {
        let change = Change::Make {
            parent: Ino::ROOT,
            name: name.to_owned(),
            kind: FileKind::Directory,
            mode: 0o755,
            uid: 0,
            gid: 0,
            target: String::new(),
        };
        let id = OpId([u8::try_from(number).unwrap(); 16]);
        let request = cbor::encode(&ManagerRequest::Change { id, change });
        stream.write_all(&frame(1, &request, &[])).unwrap();
        let (kind, body) = answer(&mut stream).unwrap();
        let failure: Failure = cbor::decode(&body).unwrap();
        let expected = if name.len() > 255 { ErrorCode::TooLong } else { ErrorCode::Invalid };
        assert_eq!((kind, failure.code), (2, expected), "{name:?}: {failure}");
    }
    assert!(pool.ok(&["ls"]).is_empty());
}
