//! What the manager lets users do: each request against each kind of user, whoever sends it and however it names what it wants.

use std::collections::BTreeSet;

use crate::harness::{CLIENT, Pool, chunk, make, map_of, session};
use stdchk_manager::core::Asker;
use stdchk_model::message::handshake::{MemberId, Role};
use stdchk_model::message::manager::{
    Change, Existing, FileKind, Hold, ManagerReply, ManagerRequest as Q, PackedMembers, VersionInfo,
    VersionState,
};
use stdchk_model::{
    ClientId, Durability, EncodingId, ErrorCode, Failure, Ino, MachineId, Maker, MapRoot, OpId, User, cbor,
};

/// Owner, member of the group, others.
const OWNER: u32 = 1;
const MEMBER: u32 = 2;
const OTHER: u32 = 3;
const GROUP: u32 = 5;

fn asker(user: User) -> Asker {
    Asker { user: Some(user), ..Asker::default() }
}

fn owner() -> Asker {
    asker(User::new(OWNER, 9))
}

fn member() -> Asker {
    asker(User { uid: MEMBER, gid: 8, others: vec![GROUP] })
}

fn other() -> Asker {
    asker(User::new(OTHER, 8))
}

/// Who is let do something, of the four kinds of users: `o`wner, `g`roup, o`t`hers, who may do `a`ll.
fn kinds() -> [(char, Asker); 4] {
    [('o', owner()), ('g', member()), ('t', other()), ('a', Asker::default())]
}

/// What is in the pool, all of it `OWNER`'s and `GROUP`'s.
struct Tree {
    pool: Pool,
    /// `app`, a folder of the root.
    app: Ino,
    /// `app/run.N0.T1`, with a version.
    file: Ino,
    /// `app/sub`, an empty folder.
    sub: Ino,
    /// `app/link`, a symbolic link.
    link: Ino,
    /// `inbox`, a folder for all.
    inbox: Ino,
}

fn set(ino: Ino, mode: Option<u32>, owner: Option<(u32, u32)>) -> Change {
    let (uid, gid) = owner.unzip();
    Change::SetAttr { ino, mode, uid, gid, atime: None, mtime: None }
}

impl Tree {
    fn new(folder_mode: u32, file_mode: u32) -> Self {
        let mut pool = Pool::with_benefactors(2);
        let app = pool.make(Ino::ROOT, "app", FileKind::Directory);
        let inbox = pool.make(Ino::ROOT, "inbox", FileKind::Directory);
        let file = pool.make(app, "run.N0.T1", FileKind::File);
        let sub = pool.make(app, "sub", FileKind::Directory);
        let link = pool.make(app, "link", FileKind::Symlink);
        pool.write(1, file, &[1], &[0, 1]);
        pool.close(1);
        pool.write(2, file, &[2], &[0, 1]);
        pool.close(2);
        for (ino, mode) in [(app, folder_mode), (sub, folder_mode), (file, file_mode), (link, 0o777)] {
            pool.change(set(ino, Some(mode), Some((OWNER, GROUP)))).unwrap();
        }
        pool.change(set(inbox, Some(0o777), None)).unwrap();
        Self { pool, app, file, sub, link, inbox }
    }
}

/// A way to ask something of a tree.
type Asking = fn(&Tree) -> Q;

fn change(change: Change) -> Q {
    Q::Change { id: OpId([0xcc; 16]), change }
}

fn renamed(tree: &Tree, name: &str, to: Ino, existing: Existing) -> Q {
    let (name, new_name) = (name.to_owned(), "new".to_owned());
    change(Change::Rename { parent: tree.app, name, new_parent: to, new_name, existing })
}

fn create(tree: &Tree, again: Option<Ino>) -> Q {
    Q::Create {
        session: session(9),
        client: CLIENT,
        parent: tree.app,
        name: "new".to_owned(),
        mode: 0o644,
        uid: 77,
        gid: 77,
        exclusive: false,
        again,
        durability: None,
    }
}

/// Each request with the kinds of users that are let make it: with modes 750 and 640, 777 and 666, 701 and 604.
const TABLE: &[(&str, Asking, [&str; 3])] = &[
    ("look up", |t| Q::Lookup { parent: t.app, name: "link".to_owned() }, ["oga", "ogta", "ota"]),
    ("stat", |t| Q::GetAttr(t.file), ["oga", "ogta", "ota"]),
    ("find", |_| Q::Resolve { path: "app/run.N0.T1".to_owned() }, ["oga", "ogta", "ota"]),
    ("list", |t| Q::ReadDir { ino: t.app, after: None, limit: 9 }, ["oga", "ogta", "oa"]),
    ("read a link", |t| Q::ReadLink(t.link), ["oga", "ogta", "ota"]),
    ("make", |t| change(make(t.app, "new", FileKind::File)), ["oa", "ogta", "oa"]),
    ("make a folder", |t| change(make(t.app, "new", FileKind::Directory)), ["oa", "ogta", "oa"]),
    (
        "link",
        |t| change(Change::Link { ino: t.file, parent: t.app, name: "new".to_owned() }),
        ["oa", "ogta", "oa"],
    ),
    (
        "link elsewhere",
        |t| change(Change::Link { ino: t.file, parent: t.inbox, name: "new".to_owned() }),
        ["oa", "ogta", "oa"],
    ),
    (
        "unlink",
        |t| change(Change::Unlink { parent: t.app, name: "run.N0.T1".to_owned() }),
        ["oa", "ogta", "oa"],
    ),
    (
        "take back",
        |t| change(Change::UnlinkUnwritten { parent: t.app, name: "run.N0.T1".to_owned(), ino: t.file }),
        ["oa", "ogta", "oa"],
    ),
    (
        "remove a folder",
        |t| change(Change::Rmdir { parent: t.app, name: "sub".to_owned() }),
        ["oa", "ogta", "oa"],
    ),
    ("rename", |t| renamed(t, "run.N0.T1", t.app, Existing::Replace), ["oa", "ogta", "oa"]),
    ("move", |t| renamed(t, "run.N0.T1", t.inbox, Existing::Replace), ["oa", "ogta", "oa"]),
    ("move a folder", |t| renamed(t, "sub", t.inbox, Existing::Refuse), ["oa", "ogta", "oa"]),
    ("change a mode", |t| change(set(t.file, Some(0o600), None)), ["oa", "oa", "oa"]),
    ("give away", |t| change(set(t.file, None, Some((OTHER, GROUP)))), ["a", "a", "a"]),
    ("give to an own group", |t| change(set(t.file, None, Some((OWNER, 9)))), ["oa", "oa", "oa"]),
    ("give to another group", |t| change(set(t.file, None, Some((OWNER, 6)))), ["a", "a", "a"]),
    (
        "set times",
        |t| {
            let (mode, uid, gid) = (None, None, None);
            change(Change::SetAttr { ino: t.file, mode, uid, gid, atime: Some(1), mtime: Some(1) })
        },
        ["oa", "ogta", "oa"],
    ),
    ("drop a version", |t| change(Change::DropVersion { ino: t.file, version: 1 }), ["oa", "ogta", "oa"]),
    (
        "set a policy",
        |t| change(Change::SetPolicy { ino: t.app, pairs: vec![("ranks".to_owned(), "1".to_owned())] }),
        ["oa", "oa", "oa"],
    ),
    (
        "learn",
        |t| change(Change::Learn { ino: t.file, cutter: "fixed:1MiB".to_owned() }),
        ["oa", "ogta", "oa"],
    ),
    ("seal", |t| change(Change::Seal { ino: t.app, timestep: 1.into(), sealed: true }), ["oa", "ogta", "oa"]),
    ("finish", |t| change(Change::Finish { ino: t.app }), ["oa", "ogta", "oa"]),
    ("versions", |t| Q::Versions(t.file), ["oga", "ogta", "ota"]),
    ("read a map", |t| Q::OpenVersion { ino: t.file, version: None, client: None }, ["oga", "ogta", "ota"]),
    (
        "read an older map",
        |t| Q::OpenVersion { ino: t.file, version: Some(1), client: None },
        ["oga", "ogta", "ota"],
    ),
    (
        "the chunks of a version",
        |t| Q::ChunksOf { ino: t.file, version: 1, after: None },
        ["oga", "ogta", "ota"],
    ),
    ("may read", |t| Q::MayOpen { ino: t.file, writes: false }, ["oga", "ogta", "ota"]),
    ("may write", |t| Q::MayOpen { ino: t.file, writes: true }, ["oa", "ogta", "oa"]),
    (
        "may rename",
        |t| {
            let Q::Change { change, .. } = renamed(t, "run.N0.T1", t.inbox, Existing::Replace) else {
                unreachable!("a rename is a change")
            };
            Q::MayChange(change)
        },
        ["oa", "ogta", "oa"],
    ),
    ("what is similar", |t| Q::Similar(t.file), ["oa", "ogta", "oa"]),
    (
        "write",
        |t| Q::OpenSession { session: session(9), client: CLIENT, ino: t.file, durability: None },
        ["oa", "ogta", "oa"],
    ),
    (
        "write again",
        |t| Q::OpenSession {
            session: session(9),
            client: CLIENT,
            ino: t.file,
            durability: Some(Durability::on_disks(1)),
        },
        ["oa", "ogta", "oa"],
    ),
    (
        "take up",
        |t| Q::TakeUp {
            session: session(9),
            client: CLIENT,
            ino: t.file,
            kept_for: session(8),
            durability: None,
        },
        ["oa", "ogta", "oa"],
    ),
    ("let a base go", |t| Q::LetBaseGo { ino: t.file, kept_for: session(8) }, ["oa", "ogta", "oa"]),
    ("create", |t| create(t, None), ["oa", "ogta", "oa"]),
    ("create again", |t| create(t, Some(t.file)), ["oa", "ogta", "oa"]),
    (
        "make a container",
        |t| Q::OpenContainer { session: session(9), client: CLIENT, folder: t.app },
        ["oa", "ogta", "oa"],
    ),
    (
        "move into containers",
        |t| {
            let packed = PackedMembers { session: session(9), members: vec![(t.file, 2)] };
            Q::Aggregate { folder: t.app, timestep: 1.into(), containers: vec![packed] }
        },
        ["oa", "oa", "oa"],
    ),
    ("policy", |t| Q::GetPolicy(t.file), ["oga", "ogta", "ota"]),
    ("explain", |t| Q::Explain { ino: t.file, machine: MachineId([1; 16]) }, ["oga", "ogta", "ota"]),
    ("pace", |t| Q::Pace { ino: t.app, machine: MachineId([1; 16]) }, ["oga", "ogta", "oa"]),
    ("sets", |t| Q::Sets(t.app), ["oga", "ogta", "oa"]),
    ("fates", |t| Q::Fates { folder: t.app, lifetime: None, done: false }, ["oga", "ogta", "oa"]),
    // What is no file's, or known to whoever asks; and what goes on with something that another test has.
    ("space", |_| Q::Space, ["ogta", "ogta", "ogta"]),
    ("make room", |_| Q::MakeRoom, ["ogta", "ogta", "ogta"]),
    ("status", |_| Q::Status, ["ogta", "ogta", "ogta"]),
    ("benefactors", |_| Q::Benefactors, ["ogta", "ogta", "ogta"]),
    ("own benefactor", |_| Q::Own(MachineId([1; 16])), ["ogta", "ogta", "ogta"]),
    ("managers", |_| Q::Managers, ["ogta", "ogta", "ogta"]),
    ("locate", |_| Q::Locate { chunks: vec![chunk(1)] }, ["ogta", "ogta", "ogta"]),
    ("doubt", |_| Q::Doubt { chunk: chunk(1), encoding: EncodingId::PLAIN }, ["ogta", "ogta", "ogta"]),
    ("keep alive", |_| Q::KeepAlive(CLIENT), ["ogta", "ogta", "ogta"]),
    ("reading", |_| Q::Reading { client: CLIENT, sessions: Vec::new() }, ["ogta", "ogta", "ogta"]),
    (
        "attend",
        |_| Q::Attend { client: CLIENT, machine: MachineId([1; 16]), sent: Vec::new() },
        ["ogta", "ogta", "ogta"],
    ),
    ("leave", |_| Q::Leave(ClientId([8; 16])), ["ogta", "ogta", "ogta"]),
    (
        "wait for copies",
        |t| Q::AwaitCopies { ino: t.file, hold: Hold { from: 0, before: 0 } },
        ["ogta", "ogta", "ogta"],
    ),
];

fn is_refused(answer: &Result<ManagerReply, Failure>) -> bool {
    answer.as_ref().is_err_and(|failure| matches!(failure.code, ErrorCode::Denied | ErrorCode::NotOwner))
}

/// The number of a request's kind.
fn kind(request: &Q) -> u8 {
    let bytes = cbor::encode(request);
    let mut decoder = minicbor::Decoder::new(&bytes);
    match decoder.array() {
        Ok(_) => decoder.u8().unwrap(),
        Err(_) => decoder.u8().unwrap_or(bytes[0]),
    }
}

#[test]
fn each_request_is_let_through_for_whom_the_modes_say_and_leaves_no_trace_of_a_refusal() {
    for (row, (folder_mode, file_mode)) in
        [(0o750, 0o640), (0o777, 0o666), (0o701, 0o604)].into_iter().enumerate()
    {
        for (name, asking, expected) in TABLE {
            for (kind, asker) in kinds() {
                let mut tree = Tree::new(folder_mode, file_mode);
                let before = tree.pool.ask(Q::Resolve { path: "app".to_owned() });
                let request = asking(&tree);
                let answer = tree.pool.ask_as(&asker, request);
                let is_let = expected[row].contains(kind);
                assert_eq!(is_refused(&answer), !is_let, "{name} as {kind} with {folder_mode:o}: {answer:?}");
                if !is_let {
                    let message = answer.unwrap_err().to_string();
                    assert!(
                        message.starts_with("permission denied: ") && message.contains("belongs to user")
                    );
                    assert_eq!(tree.pool.ask(Q::Resolve { path: "app".to_owned() }), before, "{name}");
                    assert_eq!(tree.pool.versions(tree.file).len(), 2, "{name}");
                }
            }
        }
    }
}

/// Requests that go on with a session; the next test has them.
fn of_session() -> Vec<Q> {
    let (session, root) = (session(1), MapRoot::Inline { map: map_of(&[chunk(1)]).encode() });
    vec![
        Q::Reserve { session, bytes: 1, avoid: Vec::new() },
        Q::Known { session, chunks: Vec::new(), room_bytes: 0 },
        Q::Receipts { session, receipts: Vec::new() },
        Q::Vouch { session, encodings: Vec::new() },
        Q::Names { session, first: true, chunks: Vec::new() },
        Q::Commit {
            session,
            root,
            size: u64::from(crate::harness::CHUNK_LENGTH),
            mtime: 1,
            stored_bytes: 0,
            named: Vec::new(),
            named_before: 0,
            state: VersionState::Open,
            hole_bytes: 0,
            receipts: Vec::new(),
            key: None,
            changes: 0,
        },
        Q::Closing { session, size: 1, changes: 1 },
        Q::KeepBase {
            session,
            base: VersionInfo {
                version: 1,
                size: 1,
                mtime: 1,
                committed_at: 1,
                state: VersionState::Closed,
                stored_bytes: 1,
                session,
                aggregated: false,
                key: None,
                maker: Maker::LOCAL,
            },
            host: "a".to_owned(),
            bytes: 1,
        },
        Q::Settle(session),
        Q::CloseSession { session, interrupted: true },
    ]
}

#[test]
fn all_requests_are_in_the_tables() {
    let tree = Tree::new(0o755, 0o644);
    let tried: BTreeSet<u8> = TABLE
        .iter()
        .map(|(_, asking, _)| kind(&asking(&tree)))
        .chain(of_session().iter().map(kind))
        .collect();
    let knows = |number: &u8| {
        let message = [0x82, 0x18, *number, 0x80];
        !cbor::decode::<Q>(&message).is_err_and(|error| error.is_unknown_variant())
    };
    let known: BTreeSet<u8> = (0..=u8::MAX).filter(knows).collect();
    // Those of benefactors and operators: model's own test has whom they are refused to.
    let others: BTreeSet<u8> = (51..=57).chain(60..=66).chain([74, 76]).collect();
    assert_eq!(tried.union(&others).copied().collect::<BTreeSet<_>>(), known);
    assert!(tried.is_disjoint(&others));
    for request in [
        Q::Collect { dry_run: true },
        Q::Members,
        Q::SetManagers(vec!["a:1".to_owned()]),
        Q::AcceptOlderStore,
        Q::BeginBackup { keep_ms: 1 },
        Q::ReleaseBackup { commit: 1 },
    ] {
        assert!(!request.may_be_asked_by(Role::Client));
    }
}

#[test]
fn a_session_is_for_the_member_that_opened_it() {
    let mut tree = Tree::new(0o777, 0o666);
    let of = |number: u8, user: u32| Asker {
        member: Some(MemberId([number; 16])),
        user: Some(User::new(user, 8)),
        ..Asker::default()
    };
    let (victim, adversary) = (of(1, OWNER), of(2, OTHER));
    let open = Q::OpenSession { session: session(1), client: CLIENT, ino: tree.file, durability: None };
    tree.pool.ask_as(&victim, open.clone()).unwrap();
    for request in of_session() {
        let refused = tree.pool.ask_as(&adversary, request.clone());
        assert!(is_refused(&refused), "{request:?}: {refused:?}");
    }
    assert!(tree.pool.ask_as(&adversary, open).is_err());
    for request in of_session() {
        let answer = tree.pool.ask_as(&victim, request.clone());
        assert!(!is_refused(&answer), "{request:?}: {answer:?}");
    }
}

#[test]
fn numbers_that_are_guessed_lead_nowhere_through_a_closed_folder() {
    let mut tree = Tree::new(0o755, 0o644);
    let stranger = other();
    tree.pool.change(set(tree.sub, Some(0o777), None)).unwrap();
    let deep = tree.pool.make(tree.sub, "deep", FileKind::File);
    tree.pool.change(set(tree.app, Some(0o700), None)).unwrap();
    for request in [
        Q::GetAttr(deep),
        Q::OpenVersion { ino: deep, version: None, client: None },
        Q::Lookup { parent: tree.sub, name: "deep".to_owned() },
        Q::ReadDir { ino: tree.sub, after: None, limit: 9 },
        Q::Resolve { path: "app/sub/deep".to_owned() },
        Q::Resolve { path: "app/none".to_owned() },
        change(Change::Link { ino: deep, parent: tree.inbox, name: "mine".to_owned() }),
    ] {
        let failure = tree.pool.ask_as(&stranger, request.clone()).unwrap_err();
        assert_eq!(failure.code, ErrorCode::Denied, "{request:?}: {failure}");
        assert!(failure.message.contains("`app`") && !failure.message.contains("sub"), "{failure}");
    }
    // By another name it is in the open.
    tree.pool.change(Change::Link { ino: deep, parent: tree.inbox, name: "shared".to_owned() }).unwrap();
    tree.pool.ask_as(&stranger, Q::GetAttr(deep)).unwrap();
    // A set shows nothing of closed folders.
    let pairs = vec![("naming".to_owned(), "run/x.{step}.{rank}".to_owned())];
    tree.pool.change(Change::SetPolicy { ino: tree.inbox, pairs }).unwrap();
    let inner = tree.pool.make(tree.inbox, "run", FileKind::Directory);
    let hidden = tree.pool.make(inner, "x.7.0", FileKind::File);
    tree.pool.write(3, hidden, &[3], &[0, 1]);
    tree.pool.close(3);
    let count = |pool: &mut Pool, asker: &Asker| match pool.ask_as(asker, Q::Sets(tree.inbox)).unwrap() {
        ManagerReply::Sets(sets) => sets.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(count(&mut tree.pool, &stranger), 1);
    tree.pool.change(set(inner, Some(0o700), None)).unwrap();
    assert_eq!((count(&mut tree.pool, &stranger), count(&mut tree.pool, &Asker::default())), (0, 1));
}

#[test]
fn in_a_sticky_folder_names_go_only_by_their_owners() {
    let mut tree = Tree::new(0o1777, 0o666);
    let stranger = other();
    for name in ["theirs", "theirs2"] {
        tree.pool.change_as(&stranger, make(tree.app, name, FileKind::File)).unwrap();
    }
    let unlink = |name: &str| Change::Unlink { parent: tree.app, name: name.to_owned() };
    let onto = |new_name: &str| Change::Rename {
        parent: tree.app,
        name: "theirs".to_owned(),
        new_parent: tree.app,
        new_name: new_name.to_owned(),
        existing: Existing::Replace,
    };
    for refused in [unlink("run.N0.T1"), onto("run.N0.T1")] {
        let failure = tree.pool.change_as(&stranger, refused).unwrap_err();
        assert_eq!(failure.code, ErrorCode::NotOwner, "{failure}");
    }
    let failure = tree.pool.change_as(&member(), unlink("theirs")).unwrap_err();
    assert_eq!(failure.code, ErrorCode::NotOwner, "{failure}");
    tree.pool.change_as(&stranger, onto("theirs2")).unwrap();
    tree.pool.change_as(&owner(), unlink("theirs2")).unwrap();
}

#[test]
fn what_a_user_makes_is_its_own_whatever_it_says() {
    let mut tree = Tree::new(0o777, 0o666);
    let claimed = |name: &str, gid: u32| Change::Make {
        parent: tree.app,
        name: name.to_owned(),
        kind: FileKind::File,
        mode: 0o644,
        uid: OWNER,
        gid,
        target: String::new(),
    };
    let owner_of = |pool: &mut Pool, change: Change| match pool.change_as(&member(), change).unwrap() {
        ManagerReply::Entry(attr) => (attr.uid, attr.gid),
        other => panic!("{other:?}"),
    };
    assert_eq!(owner_of(&mut tree.pool, claimed("a", 8)), (MEMBER, 8));
    assert_eq!(owner_of(&mut tree.pool, claimed("b", GROUP)), (MEMBER, GROUP));
    assert_eq!(owner_of(&mut tree.pool, claimed("c", 77)), (MEMBER, 8));
    tree.pool.change(set(tree.app, Some(0o2777), Some((OWNER, 77)))).unwrap();
    assert_eq!(owner_of(&mut tree.pool, claimed("d", 77)), (MEMBER, 77));
    let ManagerReply::Session { attr, .. } = tree.pool.ask_as(&other(), create(&tree, None)).unwrap() else {
        panic!("a session")
    };
    assert_eq!((attr.uid, attr.gid), (OTHER, 77), "the folder hands its group on");
}

#[test]
fn nobody_comes_to_the_content_of_another_ones_file_by_a_detour() {
    let mut tree = Tree::new(0o777, 0o600);
    let adversary =
        Asker { member: Some(MemberId([2; 16])), user: Some(User::new(OTHER, 8)), ..Asker::default() };
    let refused = |pool: &mut Pool, request: Q| {
        let answer = pool.ask_as(&adversary, request.clone());
        assert!(is_refused(&answer), "{request:?}: {answer:?}");
    };
    // A file that is made anew under a number that it has.
    let ino = tree.file;
    let made_again = Q::Create {
        session: session(9),
        client: CLIENT,
        parent: tree.inbox,
        name: "mine".to_owned(),
        mode: 0o644,
        uid: OTHER,
        gid: 8,
        exclusive: false,
        again: Some(ino),
        durability: Some(Durability::on_disks(1)),
    };
    refused(&mut tree.pool, made_again);
    // The session that made it, whose number those may know who see its versions.
    let exclusive = |number: u8, name: &str, parent: Ino| Q::Create {
        session: session(number),
        client: CLIENT,
        parent,
        name: name.to_owned(),
        mode: 0o600,
        uid: OWNER,
        gid: 9,
        exclusive: true,
        again: None,
        durability: None,
    };
    tree.pool.ask_as(&owner(), exclusive(20, "theirs", tree.app)).unwrap();
    tree.pool.ask_as(&owner(), Q::CloseSession { session: session(20), interrupted: false }).unwrap();
    refused(&mut tree.pool, exclusive(20, "theirs", tree.app));
    // What is written in a file of like name.
    let like = tree.pool.change_as(&adversary, make(tree.app, "run.N0.T2", FileKind::File)).unwrap();
    let ManagerReply::Entry(like) = like else { panic!("{like:?}") };
    match tree.pool.ask_as(&adversary, Q::Similar(like.ino)).unwrap() {
        ManagerReply::Version { root: None, .. } => {}
        other => panic!("{other:?}"),
    }
    assert!(matches!(tree.pool.ask(Q::Similar(like.ino)), Ok(ManagerReply::Version { root: Some(_), .. })));
    // A file of one's own in its place: it may go, as the folder lets all remove names, but hands nothing on.
    let over = Change::Rename {
        parent: tree.app,
        name: "run.N0.T2".to_owned(),
        new_parent: tree.app,
        new_name: "run.N0.T1".to_owned(),
        existing: Existing::Replace,
    };
    tree.pool.change_as(&adversary, over.clone()).unwrap();
    assert_eq!(tree.pool.versions(like.ino), []);
    // Who may read what it replaces keeps the history.
    let mut tree = Tree::new(0o777, 0o644);
    let like = tree.pool.change_as(&adversary, make(tree.app, "run.N0.T2", FileKind::File)).unwrap();
    let ManagerReply::Entry(like) = like else { panic!("{like:?}") };
    tree.pool.change_as(&adversary, over_in(&tree)).unwrap();
    assert_eq!(tree.pool.versions(like.ino).len(), 3, "two that were there, and the empty one");
}

fn over_in(tree: &Tree) -> Change {
    crate::harness::rename(tree.app, "run.N0.T2", tree.app, "run.N0.T1")
}

#[test]
fn an_owner_goes_on_writing_what_it_made_unwritable_also_after_a_restart() {
    let mut tree = Tree::new(0o777, 0o666);
    let made = Q::Create {
        session: session(9),
        client: CLIENT,
        parent: tree.app,
        name: "object".to_owned(),
        mode: 0o444,
        uid: OWNER,
        gid: 9,
        exclusive: true,
        again: None,
        durability: None,
    };
    let ManagerReply::Session { attr, .. } = tree.pool.ask_as(&owner(), made).unwrap() else {
        panic!("a session")
    };
    tree.pool.restart();
    (0..2).for_each(|benefactor| {
        tree.pool.register(Some(benefactor));
    });
    let again = Q::OpenSession {
        session: session(9),
        client: CLIENT,
        ino: attr.ino,
        durability: Some(Durability::on_disks(2)),
    };
    assert!(is_refused(&tree.pool.ask_as(&other(), again.clone())));
    tree.pool.ask_as(&owner(), again).unwrap();
    // Set-id bits go with whoever writes; more of a mode is its owner's.
    tree.pool.change(set(tree.file, Some(0o6666), None)).unwrap();
    tree.pool.change_as(&other(), set(tree.file, Some(0o666), None)).unwrap();
    assert!(is_refused(&tree.pool.change_as(&other(), set(tree.file, Some(0o4666), None))));
    assert!(is_refused(&tree.pool.change_as(&other(), set(tree.file, Some(0o664), None))));
}
