//! Every kind of message, byte for byte as `docs/protocol-vectors.txt` has it: what another implementation is tested with.
//!
//! The text is made anew from the messages below and compared as a whole, so that neither can change without the other.
//! A kind that has no message below is noticed: the decoder is asked which numbers it knows.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fmt::{Debug, Write};

use minicbor::{Decode, Encode};
use stdchk_model::journal::{Piece, Reach};
use stdchk_model::message::Asked;
use stdchk_model::message::benefactor::{
    BenefactorLoad, BenefactorReply, BenefactorRequest, BlockState, Check, Command, Decoded, FailedCopy,
    Goes, Make, NewBlock, Notice, OwnerWish, Seen, SourceBlock, StorageState, Unreached,
};
use stdchk_model::message::handshake::{
    Grant, Greeted, Hello, Join, JoinKey, Joined, Leader, MemberId, PROTOCOL, Role, StandingBy, TokenId,
    Welcome,
};
use stdchk_model::message::manager::{
    Alone, Attr, BenefactorInfo, BenefactorSecret, BenefactorState, BrokenEncodings, Change, CheckpointSet,
    ChunkLocations, CollectionStopped, DirEntry, DiskFailure, Era, EtcdInfo, EtcdMember, EtcdTrouble,
    Existing, Exposed, ExposedSet, FileKind, HeldBack, Hold, KeeperInfo, KeptBase, Location, ManagerInfo,
    ManagerReply, ManagerRequest, MemberInfo, MemorySpace, Moment, Pace, PackedMembers, PlacedHost,
    Placement, PoolStatus, RegisteredBackup, Registration, Sent, SetFate, SetMember, SetState, Space,
    StoredBlock, Term, Twin, VersionInfo, VersionState,
};
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, ChunkRef, ClientId, Code, Durability, Encoding, EncodingId, ErrorCode,
    Failure, Incarnation, Ino, KeyId, MachineId, Maker, MapRoot, OpId, Permit, PermitKey, Policy, PoolId,
    Receipt, ReceiptKey, SessionId, Signed, Tier, Trust, User, cbor,
};

const VECTORS: &str = include_str!("../../../docs/protocol-vectors.txt");
const SESSION: SessionId = SessionId([3; 16]);
const CLIENT: ClientId = ClientId([4; 16]);
const BENEFACTOR: BenefactorId = BenefactorId(5);
const TERM: Term = Term { era: Era { number: 3, id: 0x3_0000_0009 }, number: 12, start: 0x2_0000_0007 };
/// As the manager signs it.
fn signed<T>(what: T) -> Signed<T> {
    Signed { what, proof: [4; 32] }
}

const MOMENT: Moment = Moment { start: 0x2_0000_0007, commit: 1000 };
const KEY: KeyId = KeyId([0xe7; 12]);
const LIFE: Incarnation = Incarnation(0x1_0000_0006);

/// Names that are easy to recognise in the bytes: 32 times the same byte.
fn chunk(byte: u8) -> ChunkId {
    ChunkId([byte; 32])
}

fn chunk_ref(byte: u8) -> ChunkRef {
    ChunkRef { id: chunk(byte), length: 1 << 20 }
}

fn block(byte: u8) -> BlockId {
    BlockId::plain(chunk(byte))
}

fn stored(byte: u8) -> StoredBlock {
    StoredBlock { block: block(byte), plain_length: 1 << 20, stored_length: 4096 }
}

fn load() -> BenefactorLoad {
    BenefactorLoad {
        donated_bytes: 1 << 40,
        used_bytes: 1 << 30,
        free_bytes: 1 << 39,
        blocks: 1000,
        requests: 2,
        disk_failed: true,
        wish: OwnerWish::Leave,
        owed_bytes: 1 << 20,
        notice: Some(Notice { in_ms: Some(90_000) }),
        state: StorageState::Refusing,
        busy_percent: Some(93),
        clients: 3,
        near_bytes: 1 << 28,
    }
}

const MACHINE: MachineId = MachineId([0x3a; 16]);

fn labels() -> Vec<(String, String)> {
    vec![("rack".to_owned(), "3".to_owned())]
}

fn placement() -> Placement {
    let host = PlacedHost {
        id: BENEFACTOR,
        up_s: Some(3600),
        failures_week: 1,
        up_week_ppm: Some(990_000),
        score_ppm: Some(1_700_000),
        lost_ppm: Some(1_000),
        shares: vec!["rack=3".to_owned()],
        reasons: vec![("failures within a day".to_owned(), -250)],
        state: StorageState::Loaded,
        loaded_week_ppm: Some(120_000),
        bandwidth: Some(117_000_000),
    };
    Placement {
        policy: "learned".to_owned(),
        in_use: "falcon:7d".to_owned(),
        ranked: true,
        compute: Some(BENEFACTOR),
        mean_time_to_failure_s: Some(7200),
        proven: false,
        lessons: 100,
        losses: 7,
        recoverable_ppm: Some(999_000),
        width: 4,
        hosts: vec![host],
    }
}

fn registration() -> Registration {
    Registration {
        id: None,
        incarnation: LIFE,
        address: "127.0.0.1:7100".to_owned(),
        pid: 4711,
        load: load(),
        remembered: Some(signed(MOMENT)),
        put_sequence: 1 << 40,
        receipt_key: ReceiptKey([0xee; 32]),
        term: Some(signed(TERM)),
        machine: Some(MACHINE),
        labels: labels(),
        tier: Tier::Memory,
    }
}

fn attr() -> Attr {
    Attr {
        ino: Ino(7),
        kind: FileKind::File,
        mode: 0o644,
        uid: 1000,
        gid: 100,
        links: 1,
        size: 5_000_000_000,
        atime: -1,
        mtime: 1_700_000_000_000_000_000,
        ctime: 1_700_000_000_000_000_001,
        version: 2,
        named: 1_000_000_004,
        hole_bytes: 1_000_000,
    }
}

fn version() -> VersionInfo {
    let (mtime, committed_at) = (1_700_000_000_000_000_000, 1_700_000_000_000_000_002);
    let state = VersionState::Closed;
    VersionInfo {
        version: 2,
        size: 5_000_000_000,
        mtime,
        committed_at,
        state,
        stored_bytes: 1 << 20,
        session: SESSION,
        aggregated: false,
        key: Some(KEY),
        maker: Maker([0x3a; 8]),
    }
}

fn inline() -> MapRoot {
    MapRoot::Inline { map: b"SCMP\x84\x01\x00\x80\x80".to_vec() }
}

fn pieces() -> MapRoot {
    MapRoot::Pieces { pieces: vec![chunk_ref(0xc3)], length: 1 << 20 }
}

fn info() -> BenefactorInfo {
    BenefactorInfo {
        id: BENEFACTOR,
        address: "127.0.0.1:7100".to_owned(),
        state: BenefactorState::Online,
        load: load(),
        pid: 4711,
        silent_ms: 250,
        labels: labels(),
        tier: Tier::Memory,
        unreached: vec![BenefactorId(7)],
        unreached_ms: 12_000,
        is_cut_off: true,
        host: "lab-7".to_owned(),
        is_shut_out: true,
        disk: Some(DiskFailure { for_ms: 60_000, cause: "Read-only file system".to_owned() }),
        twin: Some(Twin { address: "127.0.0.1:7101".to_owned(), pid: 4712, for_ms: 12_000 }),
    }
}

fn space() -> Space {
    Space {
        donated_bytes: 1 << 40,
        used_bytes: 1 << 30,
        free_bytes: 1 << 39,
        reserved_bytes: 1 << 20,
        inodes: 3,
        is_full: true,
    }
}

fn set() -> CheckpointSet {
    let member = SetMember {
        name: "a.N0.T1".to_owned(),
        rank: Some(0),
        ino: Ino(7),
        version: 2,
        bytes: 10,
        aggregated: true,
    };
    let unranked = SetMember {
        name: "log".to_owned(),
        rank: None,
        ino: Ino(8),
        version: 1,
        bytes: 0,
        aggregated: false,
    };
    CheckpointSet {
        timestep: 1.into(),
        state: SetState::Incomplete,
        reason: "rank 1 is missing".to_owned(),
        members: vec![member, unranked],
        committed_at: 1_700_000_000_000_000_002,
        exposed: Some(exposure()),
        sealed: true,
    }
}

fn fate() -> SetFate {
    let reason = "a newer set is complete".to_owned();
    SetFate {
        timestep: "0.5".parse().unwrap(),
        state: SetState::Complete,
        files: 2,
        bytes: 10,
        goes: true,
        reason,
    }
}

fn exposure() -> Exposed {
    Exposed { chunks: 14, bytes: 15 << 20, since: Some(1_700_000_000_000_000_003), in_memory: 21 }
}

fn hold() -> Hold {
    Hold { from: i64::MIN, before: 1_700_000_000_000_000_004 }
}

fn status() -> PoolStatus {
    PoolStatus {
        manager_pid: 4710,
        uptime_ms: 60_000,
        benefactors: vec![info()],
        space: space(),
        sessions: 1,
        versions: 2,
        logical_bytes: 3,
        older_versions: 33,
        older_bytes: 34,
        unique_bytes: 4,
        stored_bytes: 5,
        chunks: 6,
        chunks_at_risk: 7,
        chunks_lost: 8,
        repairs_pending: 9,
        repairs_done: 10,
        damaged_found: 11,
        commits: 12,
        versions_lost: 13,
        counting: true,
        set_back: vec![BENEFACTOR],
        exposed_chunks: 14,
        exposed_bytes: 15 << 20,
        chunks_stuck: 16,
        exposed: vec![ExposedSet { folder: "app".to_owned(), timestep: Some(1.into()), exposed: exposure() }],
        chunks_away: 17,
        store_is_full: true,
        keepers: vec![
            KeeperInfo { id: BENEFACTOR, lacks: Some(18) },
            KeeperInfo { id: BENEFACTOR, lacks: None },
        ],
        managers: vec![ManagerInfo {
            addresses: vec!["a.example.org:7400".to_owned()],
            host: "a".to_owned(),
            pid: 4711,
            leads: true,
        }],
        chunks_moving: 19,
        chunks_unmovable: 20,
        memory: MemorySpace {
            benefactors: 2,
            donated_bytes: 1 << 34,
            used_bytes: 1 << 33,
            free_bytes: 1 << 32,
            chunks_alone: 21,
        },
        held: HeldBack {
            backups: vec![RegisteredBackup { commit: 23, start: 24, ends_in_ms: 25, chunks: 26, bytes: 27 }],
            chunks: 28,
            bytes: 29,
            stopped: Some(CollectionStopped { for_ms: 30, why: "keepers are away".to_owned() }),
        },
        broken: vec![BrokenEncodings {
            maker: Maker([0x8a; 8]),
            count: 22,
            uid: Some(1000),
            hosts: vec!["lab-7".to_owned()],
        }],
        kept_bases: vec![KeptBase {
            kept_for: SESSION,
            ino: Ino(7),
            path: "app/a.N0.T1".to_owned(),
            version: 22,
            size: 23,
            host: "a".to_owned(),
            bytes: 24,
            since: 25,
        }],
        etcd: Some(EtcdInfo {
            members: vec!["e1.example.org:2379".to_owned()],
            trouble: Some(EtcdTrouble { for_ms: 31, cause: "no leader".to_owned() }),
            alone: Some(Alone { for_ms: 32, before: Vec::new() }),
            silent: vec![EtcdMember {
                member: "e1.example.org:2379".to_owned(),
                trouble: EtcdTrouble { for_ms: 33, cause: "Connection refused".to_owned() },
            }],
        }),
    }
}

fn changes() -> Vec<Change> {
    let (parent, ino, name) = (Ino::ROOT, Ino(7), "a.N0.T1".to_owned());
    let (kind, target) = (FileKind::Symlink, "elsewhere".to_owned());
    let (new_parent, new_name) = (Ino(9), "b.N0.T1".to_owned());
    vec![
        Change::Make { parent, name: name.clone(), kind, mode: 0o777, uid: 1000, gid: 100, target },
        Change::Link { ino, parent, name: name.clone() },
        Change::Unlink { parent, name: name.clone() },
        Change::Rmdir { parent, name: name.clone() },
        Change::UnlinkUnwritten { parent, name: name.clone(), ino },
        Change::Rename { parent, name, new_parent, new_name, existing: Existing::Exchange },
        Change::SetAttr { ino, mode: Some(0o600), uid: None, gid: Some(100), atime: None, mtime: Some(-1) },
        Change::DropVersion { ino, version: 2 },
        Change::Learn { ino, cutter: "fsch:4KiB".to_owned() },
        Change::Seal { ino, timestep: 100.into(), sealed: true },
        Change::Finish { ino },
        Change::SetPolicy { ino, pairs: vec![("redundancy".to_owned(), "replicate:3".to_owned())] },
    ]
}

fn manager_requests() -> Vec<ManagerRequest> {
    use ManagerRequest as Q;
    let ino = Ino(7);
    let mut requests = vec![
        Q::Lookup { parent: Ino::ROOT, name: "app".to_owned() },
        Q::GetAttr(ino),
        Q::Resolve { path: "app/a.N0.T1".to_owned() },
        Q::ReadDir { ino: Ino::ROOT, after: Some("app".to_owned()), limit: 1000 },
        Q::ReadDir { ino: Ino::ROOT, after: None, limit: 1000 },
        Q::ReadLink(ino),
        Q::Space,
        Q::MakeRoom,
    ];
    requests.extend(changes().into_iter().map(|change| Q::Change { id: OpId([2; 16]), change }));
    requests.extend(requests_of_sessions());
    requests.extend(requests_of_the_pool());
    requests
}

fn receipt() -> Receipt {
    Receipt::new(&ReceiptKey([0xee; 32]), LIFE, (1 << 40) + 1, vec![stored(0xc1)])
}

fn requests_of_sessions() -> Vec<ManagerRequest> {
    use ManagerRequest as Q;
    let (ino, session, client, benefactor) = (Ino(7), SESSION, CLIENT, BENEFACTOR);
    vec![
        Q::Versions(ino),
        Q::MayOpen { ino, writes: true },
        Q::MayChange(Change::Finish { ino }),
        Q::OpenVersion { ino, version: Some(2), client: None },
        Q::OpenVersion { ino, version: None, client: Some(client) },
        Q::Reading { client, sessions: vec![session] },
        Q::ChunksOf { ino, version: 2, after: Some(chunk(0xc1)) },
        Q::Locate { chunks: vec![chunk(0xc1), chunk(0xc2)] },
        Q::Benefactors,
        Q::Similar(ino),
        Q::OpenSession { session, client, ino, durability: Some(Durability::on_disks(2)) },
        Q::KeepBase { session, base: version(), host: "a".to_owned(), bytes: 25 },
        Q::LetBaseGo { ino, kept_for: session },
        Q::TakeUp { session, client, ino, kept_for: SESSION, durability: None },
        Q::Reserve { session, bytes: 64 << 20, avoid: vec![benefactor] },
        Q::Known { session, chunks: vec![chunk(0xc1)], room_bytes: 16 << 20 },
        Q::Receipts { session, receipts: vec![(benefactor, receipt())] },
        Q::Commit {
            session,
            root: inline(),
            size: 0,
            mtime: -1,
            stored_bytes: 0,
            named: Vec::new(),
            named_before: 0,
            state: VersionState::Open,
            hole_bytes: 0,
            receipts: vec![(benefactor, receipt())],
            key: None,
            changes: 0,
        },
        Q::Commit {
            session,
            root: pieces(),
            size: 9,
            mtime: 1,
            stored_bytes: 8,
            named: vec![chunk(0xc1)],
            named_before: 65_536,
            state: VersionState::Closed,
            hole_bytes: 4,
            receipts: Vec::new(),
            key: Some(KEY),
            changes: 0,
        },
        Q::Names { session, first: true, chunks: vec![chunk(0xc2)] },
        Q::CloseSession { session, interrupted: true },
        Q::Closing { session, size: 5_000_000_000, changes: 9 },
        Q::Vouch { session, encodings: vec![(chunk(0xc1), coded().id(chunk(0xc1)))] },
        Q::OpenContainer { session, client, folder: Ino(9) },
        Q::Create {
            session,
            client,
            parent: Ino(9),
            name: "a.N0.T1".to_owned(),
            mode: 0o644,
            uid: 1000,
            gid: 100,
            exclusive: false,
            again: Some(ino),
            durability: Some(Durability { distance: 1, in_memory: Some(2) }),
        },
        Q::Settle(session),
        Q::AwaitCopies { ino, hold: hold() },
        Q::KeepAlive(client),
        Q::Attend {
            client,
            machine: MACHINE,
            sent: vec![Sent { to: BenefactorId(3), bytes: 1 << 20, ms: 17 }],
        },
        Q::Leave(client),
        Q::Explain { ino, machine: MACHINE },
        Q::Pace { ino, machine: MACHINE },
        Q::Own(MACHINE),
    ]
}

fn requests_of_the_pool() -> Vec<ManagerRequest> {
    use ManagerRequest as Q;
    let (ino, session, benefactor) = (Ino(7), SESSION, BENEFACTOR);
    let (number, load) = (70_000, load());
    vec![
        Q::GetPolicy(ino),
        Q::Sets(ino),
        Q::Fates { folder: ino, lifetime: Some("replace:3".to_owned()), done: true },
        Q::Aggregate {
            folder: Ino(9),
            timestep: 100.into(),
            containers: vec![PackedMembers { session, members: vec![(ino, 2), (Ino(8), 1)] }],
        },
        Q::Status,
        Q::Doubt { chunk: chunk(0xc2), encoding: coded().id(chunk(0xc2)) },
        Q::Collect { dry_run: true },
        Q::Forget { id: benefactor, force: false },
        Q::AcceptOlderStore,
        Q::Members,
        Q::Managers,
        Q::SetManagers(vec!["a.example.org:7400".to_owned(), "b.example.org:7400".to_owned()]),
        Q::Revoke { member: MemberId([0x4d; 16]) },
        Q::BeginBackup { keep_ms: 604_800_000 },
        Q::ReleaseBackup { commit: number },
        Q::ReadBackup { id: number, part: 3 },
        registration().proved(&BenefactorSecret([0x5e; 32])),
        registration().introduced(&BenefactorSecret([0x5e; 32])),
        Q::BeginInventory { id: benefactor, registration: number },
        Q::Inventory {
            id: benefactor,
            registration: number,
            last: false,
            blocks: vec![stored(0xc1)],
            put_sequence: 1 << 40,
        },
        Q::Heartbeat {
            id: benefactor,
            registration: number,
            load,
            durable_sequence: 1 << 40,
            added: vec![stored(0xc1)],
            removed: vec![block(0xc2)],
            damaged: 1,
            copies_failed: vec![
                FailedCopy { chunk: chunk(0xc3), to: Some(benefactor) },
                FailedCopy { chunk: chunk(0xc4), to: None },
            ],
            put_sequence: (1 << 40) + 1,
            decoded: vec![
                Decoded { chunk: chunk(0xc5), encoding: coded().id(chunk(0xc5)), is_right: true },
                Decoded { chunk: chunk(0xc6), encoding: coded().id(chunk(0xc6)), is_right: false },
            ],
            seen: vec![
                Seen { own: block(0xc7), lacks: vec![1], number: 1 << 40 },
                Seen { own: block(0xc8), lacks: Vec::new(), number: 7 },
            ],
            disk: Some("Read-only file system".to_owned()),
        },
        Q::Orders { id: benefactor, registration: number },
        Q::Unreached {
            id: benefactor,
            registration: number,
            unreached: vec![Unreached {
                to: BenefactorId(7),
                address: "127.0.0.1:7101".to_owned(),
                for_ms: 3_000,
                is_slow: true,
            }],
            reaches_none: true,
        },
        Q::Journal {
            id: benefactor,
            registration: number,
            has: Some(Reach { moment: signed(MOMENT), key: 9 }),
            part: 2,
            now: true,
            durable: Some(signed(MOMENT)),
        },
    ]
}

fn place() -> Location {
    let (encoding, tier, trust) = (EncodingId::PLAIN, Tier::Memory, Trust::Claimed);
    Location { benefactor: BENEFACTOR, encoding, index: 0, tier, trust }
}

/// Orders to a benefactor.
fn orders() -> Vec<Command> {
    let revoke = Command::Revoke(vec![MemberId([0x4d; 16])]);
    let deletion = Command::Delete { blocks: vec![block(0xc1)], put_sequence: 1 << 40 };
    let address = "127.0.0.1:7101".to_owned();
    let permit = Permit::new(&permits(), &chunk(0xc2), coded().id(chunk(0xc2)), None);
    let source = |index| {
        let encoding = coded().id(chunk(0xc2));
        SourceBlock {
            encoding,
            index,
            address: address.clone(),
            permit,
            at: BenefactorId(0x0a00 + u32::from(index)),
        }
    };
    let new = |index| NewBlock { index, to: BenefactorId(6), address: address.clone(), permit };
    let (from, blocks) = ((0..3).map(source).collect(), vec![new(Some(4)), new(None)]);
    let make = Command::Make(Make { chunk: chunk(0xc2), from, blocks });
    vec![
        deletion,
        make,
        Command::SendInventory,
        Command::Remember(signed(MOMENT)),
        revoke,
        Command::Permits(permits()),
        Command::Managers(vec!["a.example.org:7400".to_owned()]),
        Command::BeatEvery(2000),
        Command::Goes(Goes { may_end: true, takes: true }),
        Command::Check(Check {
            chunk: chunk(0xc2),
            from: (0..3).map(source).collect(),
            own: None,
            number: 0,
        }),
        Command::Check(Check {
            chunk: chunk(0xc2),
            from: vec![source(1)],
            own: Some(block(0xc2)),
            number: 1 << 40,
        }),
    ]
}

fn manager_replies() -> Vec<ManagerReply> {
    use ManagerReply as R;
    let place = place();
    vec![
        R::Done,
        R::Entry(attr()),
        R::Entries(vec![DirEntry { name: "a.N0.T1".to_owned(), attr: attr() }]),
        R::Target("elsewhere".to_owned()),
        R::Space(space()),
        R::Versions(vec![version()]),
        R::Version { info: Some(version()), root: Some(inline()), attr: attr(), hold: Some(hold()) },
        R::Version { info: None, root: None, attr: attr(), hold: None },
        R::Locations(vec![
            ChunkLocations { at: vec![place], pending: false, away: vec![BenefactorId(6)] },
            ChunkLocations::default(),
        ]),
        R::Benefactors(vec![info()]),
        R::Own(Some(info())),
        R::Session {
            policy: Policy::default(),
            base: Some(version()),
            base_root: Some(pieces()),
            attr: attr(),
            benefactors: vec![info()],
            room_bytes: 64 << 10,
        },
        R::Stripe { benefactors: vec![info()], bytes: 64 << 20 },
        R::Sessions(vec![SESSION]),
        R::Policy(Policy::default()),
        R::Sets(vec![set()]),
        R::Status(status()),
        R::Collected { chunks: 1, blocks: 2, bytes: 2 << 20 },
        R::Registered {
            id: BENEFACTOR,
            moment: Some(signed(MOMENT)),
            registration: 70_000,
            term: signed(TERM),
            permits: permits(),
        },
        R::Commands(orders()),
        R::Known { found: vec![ChunkLocations::default()], benefactors: vec![info()], room_bytes: 16 << 20 },
        R::Held { attr: attr(), hold: hold() },
        R::Waiting { progress: 3 },
        R::Members(vec![member()]),
        R::Managers(vec!["a.example.org:7400".to_owned()]),
        R::Fates(vec![fate()]),
        R::Placement(placement()),
        R::Pace(Pace { sets: 3, cost_ms: Some(1500), interval_ms: Some(60_000), failures: 2, up_s: 86_400 }),
        R::Backup { id: 2, moment: MOMENT },
        R::Chunks(vec![chunk_ref(0xc1), chunk_ref(0xc2)]),
        R::BackupPart { bytes: vec![1, 2, 3], last: true },
        R::Journal(vec![
            Piece::Base { moment: signed(MOMENT), key: 9, part: 2, last: true, sealed: vec![1] },
            Piece::Commit { moment: signed(MOMENT), before: 7, sealed: vec![2] },
        ]),
    ]
}

fn permits() -> PermitKey {
    PermitKey::new(&ReceiptKey([0xee; 32]), 1, 2, 3)
}

fn member() -> MemberInfo {
    let (id, host, roles) = (MemberId([0x4d; 16]), "lab-7".to_owned(), vec![Role::Benefactor]);
    MemberInfo {
        id,
        host,
        roles,
        joined: 1_700_000_000_000_000_000,
        benefactors: vec![BENEFACTOR],
        revoked: true,
        user: Some(user()),
    }
}

fn user() -> User {
    User { uid: 1000, gid: 100, others: vec![27] }
}

/// An encoding with everything that one can have.
fn coded() -> Encoding {
    let hashes = (0xd0..0xd6).map(chunk).collect();
    let (code, maker) = (Code::erasure(4, 2).unwrap(), Maker([0x3a; 8]));
    Encoding {
        codec: 1,
        plain_length: 1 << 20,
        cipher: Some(1),
        code,
        encoded_length: 900_000,
        hashes,
        maker,
    }
}

fn benefactor_requests() -> Vec<BenefactorRequest> {
    use BenefactorRequest as Q;
    let fragment = coded().block(chunk(0xc1), 3);
    vec![
        Q::Put {
            block: block(0xc1),
            encoding: Encoding::plain(chunk_ref(0xc1)),
            durable: true,
            insists: false,
        },
        Q::Put { block: fragment, encoding: coded(), durable: false, insists: true },
        Q::Sync { blocks: vec![block(0xc1), fragment], tell: true },
        Q::Get { block: block(0xc1) },
        Q::Verify { blocks: vec![block(0xc1)] },
        Q::Status,
        Q::Journal { offset: 4096 },
        Q::PutNear { chunk: chunk(0xc1), encoding: Encoding::plain(chunk_ref(0xc1)) },
        Q::HasNear { chunk: chunk(0xc1) },
        Q::GetNear { chunk: chunk(0xc1) },
        Q::Prove { block: fragment, key: [0x4b; 32] },
    ]
}

fn benefactor_replies() -> Vec<BenefactorReply> {
    use BenefactorReply as R;
    vec![
        R::Stored { receipt: None, known: false },
        R::Stored { receipt: Some(receipt()), known: true },
        R::Synced(receipt()),
        R::Block { encoding: Encoding::plain(chunk_ref(0xc1)) },
        R::Verified { states: vec![BlockState::Intact, BlockState::Damaged, BlockState::Missing] },
        R::Status(load()),
        R::Journal { benefactor: Some(BENEFACTOR), length: 5_000_000_000, bytes: vec![1, 2] },
        R::Near(true),
        R::Proof([0x9f; 32]),
    ]
}

/// The vectors of one type: each value as Rust prints it, and its bytes.
fn vectors<T>(title: &str, messages: &[T]) -> String
where
    T: Encode<()> + for<'b> Decode<'b, ()> + PartialEq + Debug,
{
    let mut text = format!("## {title}\n");
    for message in messages {
        let bytes = cbor::encode(message);
        assert_eq!(cbor::decode::<T>(&bytes).as_ref().ok(), Some(message));
        let digits = bytes.iter().fold(String::new(), |mut digits, byte| {
            write!(digits, "{byte:02x}").unwrap();
            digits
        });
        write!(text, "\n{message:?}\n{digits}\n").unwrap();
    }
    text
}

/// The numbers of an enum's variants that the decoder knows, of those below 256.
fn known_kinds<T: for<'b> Decode<'b, ()> + Debug>() -> BTreeSet<u8> {
    let knows = |number: &u8| {
        let message = [0x82, 0x18, *number, 0x80];
        !cbor::decode::<T>(&message).is_err_and(|error| error.is_unknown_variant())
    };
    (0..=u8::MAX).filter(knows).collect()
}

fn kinds<T: Encode<()>>(messages: &[T]) -> BTreeSet<u8> {
    let kind = |message: &T| {
        let bytes = cbor::encode(message);
        let mut decoder = minicbor::Decoder::new(&bytes);
        decoder.array().unwrap();
        decoder.u8().unwrap()
    };
    messages.iter().map(kind).collect()
}

fn greeted(pool: PoolId) -> [Greeted; 3] {
    let managers = vec!["a.example.org:7400".to_owned()];
    let leader = Leader { addresses: managers.clone(), leadership: 12 };
    let (role, era) = (Role::Manager, Some(TERM.era));
    let welcome = Welcome { role, pool, managers: managers.clone(), era, leadership: Some(12) };
    let standing = StandingBy { pool, leader: Some(leader), managers, era: TERM.era };
    let nobody = StandingBy { leader: None, managers: Vec::new(), ..standing.clone() };
    [Greeted::Welcome(welcome), Greeted::StandsBy(standing), Greeted::StandsBy(nobody)]
}

#[test]
fn messages_are_byte_for_byte_as_documented() {
    let (role, pool) = (Role::Client, PoolId([1; 16]));
    let hello = Hello { protocol: PROTOCOL, role, pool: None, maker: Maker::LOCAL };
    let (token, roles) = (TokenId([5; 8]), vec![Role::Client]);
    let grant = Grant { token, roles, made: 1_700_000_000, end: 1_700_003_600, user: Some(user()), uses: 20 };
    let join = Join::new(grant, vec![6; 3], "lab-7".to_owned(), &JoinKey::of(&[0xaa; 16]), &[0xc0; 32]);
    let text = [
        vectors("Hello", &[hello.clone(), Hello { pool: Some(pool), maker: Maker([0x3a; 8]), ..hello }]),
        vectors("Greeted", &greeted(pool)),
        vectors("Join", &[join]),
        vectors("Joined", &[Joined { certificate: vec![7; 3] }]),
        vectors(
            "Failure",
            &[
                Failure::new(ErrorCode::NotFound, "no `x`"),
                Failure::new(ErrorCode::NotFound, "no `x`").then("look"),
            ],
        ),
        vectors("ManagerRequest", &manager_requests()),
        vectors("ManagerReply", &manager_replies()),
        vectors("BenefactorRequest", &benefactor_requests()),
        vectors("BenefactorReply", &benefactor_replies()),
        vectors(
            "A request to the manager for a user",
            &[Asked { request: ManagerRequest::GetAttr(Ino(7)), with: Some(user()) }],
        ),
        vectors(
            "A request of a benefactor to another one",
            &[Asked {
                request: BenefactorRequest::Get { block: block(0xc1) },
                with: Some(vec![Permit::new(&permits(), &chunk(0xc1), EncodingId::PLAIN, None)]),
            }],
        ),
    ]
    .join("\n");
    let (_, documented) = VECTORS.split_once("\n\n").unwrap();
    if text != documented {
        let place = std::env::temp_dir().join("protocol-vectors.txt");
        std::fs::write(&place, &text).unwrap();
        let differing = text.lines().zip(documented.lines()).find(|(made, written)| made != written);
        panic!("the messages differ from the document, first in {differing:?}; all: {}", place.display());
    }
}

#[test]
fn every_kind_of_message_has_a_vector() {
    assert_eq!(kinds(&manager_requests()), known_kinds::<ManagerRequest>());
    assert_eq!(kinds(&changes()), known_kinds::<Change>());
    assert_eq!(kinds(&manager_replies()), known_kinds::<ManagerReply>());
    assert_eq!(kinds(&benefactor_requests()), known_kinds::<BenefactorRequest>());
    assert_eq!(kinds(&benefactor_replies()), known_kinds::<BenefactorReply>());
}
