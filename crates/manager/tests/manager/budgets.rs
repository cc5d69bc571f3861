//! What one member of the pool may make the manager hold: its share, and nobody else goes without.

use std::time::{Duration, Instant};

use crate::harness::{CLIENT, Pool, chunk, make};
use stdchk_manager::core::Asker;
use stdchk_model::limits::LIST_ENTRIES_MAX;
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest};
use stdchk_model::{ChunkId, ErrorCode, Failure, Ino, OpId, SessionId, User};

const MIB: u64 = 1 << 20;

fn member(number: u8) -> Asker {
    Asker { member: Some(MemberId([number; 16])), ..Asker::default() }
}

fn of_user(asker: &Asker, uid: u32) -> Asker {
    Asker { user: Some(User::new(uid, uid)), ..asker.clone() }
}

/// A pool with a file that everybody may write.
fn pool_with_file() -> (Pool, Ino) {
    let mut pool = Pool::with_benefactors(3);
    let file = pool.make(Ino::ROOT, "file", FileKind::File);
    pool.change(open_to_all(file)).unwrap();
    (pool, file)
}

fn open_to_all(ino: Ino) -> Change {
    Change::SetAttr { ino, mode: Some(0o666), uid: None, gid: None, atime: None, mtime: None }
}

fn open(pool: &mut Pool, asker: &Asker, number: u128, ino: Ino) -> Result<SessionId, Failure> {
    let session = SessionId(number.to_be_bytes());
    let request = ManagerRequest::OpenSession { session, client: CLIENT, ino, durability: None };
    pool.ask_as(asker, request).map(|_| session)
}

/// Names that nobody else asks for.
fn names(seed: u32, count: usize) -> Vec<ChunkId> {
    (0..u32::try_from(count).unwrap()).map(|number| chunk(seed << 20 | number)).collect()
}

/// Asks for names, in messages as long as they may be, until that is refused; how many were taken, and the refusal.
fn ask_until_refused(pool: &mut Pool, asker: &Asker, session: SessionId, seed: u32) -> (usize, Failure) {
    const PART: usize = 4096;
    for part in 0..256 {
        let chunks = names(seed * 256 + part, PART);
        let request = ManagerRequest::Known { session, chunks, room_bytes: 0 };
        if let Err(refused) = pool.ask_as(asker, request) {
            return (part as usize * PART, refused);
        }
    }
    panic!("a million names and no refusal");
}

#[test]
fn names_asked_for_in_a_session_end_with_the_share_of_the_member_and_cost_others_nothing() {
    let (mut pool, file) = pool_with_file();
    pool.core.sessions_may_take(16 * MIB);
    let first = open(&mut pool, &member(1), 1, file).unwrap();
    let (taken, refused) = ask_until_refused(&mut pool, &member(1), first, 0);
    assert_eq!(refused.code, ErrorCode::Unavailable, "{refused}");
    assert!(refused.message.contains("share") && refused.next.is_some(), "{refused}");
    assert!((64 * 1024..256 * 1024).contains(&taken), "{taken} names in 8 MiB");
    // It takes neither names in another way nor in another session.
    let others = ManagerRequest::Names { session: first, first: true, chunks: names(4000, LIST_ENTRIES_MAX) };
    assert_eq!(pool.ask_as(&member(1), others).unwrap_err().code, ErrorCode::Unavailable);
    let second = open(&mut pool, &member(1), 2, file);
    assert!(second.is_err() || ask_until_refused(&mut pool, &member(1), second.unwrap(), 1).0 == 0);
    // Others go on as if nothing had happened.
    let other = open(&mut pool, &member(2), 3, file).unwrap();
    assert!(ask_until_refused(&mut pool, &member(2), other, 2).0 >= 16 * 1024);
    // What was asked for before is asked for again, and what ends is given back.
    let again = ManagerRequest::Known { session: first, chunks: names(0, 4096), room_bytes: 0 };
    pool.ask_as(&member(1), again).unwrap();
    for (asker, session) in [(member(1), first), (member(2), other)] {
        pool.ask_as(&asker, ManagerRequest::CloseSession { session, interrupted: true }).unwrap();
    }
    let third = open(&mut pool, &member(1), 4, file).unwrap();
    assert!(ask_until_refused(&mut pool, &member(1), third, 3).0 >= taken);
}

#[test]
fn names_for_the_next_commit_count_and_are_given_back_when_they_are_told_anew() {
    let (mut pool, file) = pool_with_file();
    pool.core.sessions_may_take(16 * MIB);
    let session = open(&mut pool, &member(1), 1, file).unwrap();
    let tell = |pool: &mut Pool, first| {
        let chunks = names(9, LIST_ENTRIES_MAX);
        pool.ask_as(&member(1), ManagerRequest::Names { session, first, chunks })
    };
    let told = (0..10).take_while(|_| tell(&mut pool, false).is_ok()).count();
    assert!((1..4).contains(&told), "{told} times 2 MiB in 8 MiB");
    for _ in 0..10 {
        tell(&mut pool, true).unwrap();
    }
}

#[test]
fn sessions_end_with_the_share_of_the_member_and_a_node_that_writes_ten_thousand_files_is_not_hurt() {
    let (mut pool, file) = pool_with_file();
    let mut number = 0;
    let mut open_until_refused = |pool: &mut Pool, asker: &Asker, most: usize| {
        (0..most)
            .take_while(|_| {
                number += 1;
                open(pool, asker, number, file).is_ok()
            })
            .count()
    };
    // Of a host that acts for many users none gets all that the host may have.
    let user = open_until_refused(&mut pool, &of_user(&member(1), 7), 40_000);
    assert!((10_000..20_000).contains(&user), "{user}");
    assert!(open_until_refused(&mut pool, &of_user(&member(1), 8), 4000) == 4000);
    let rest = open_until_refused(&mut pool, &member(1), 40_000);
    assert!(rest > 4000 && user + 4000 + rest <= 32_768, "{rest}");
    assert!(open_until_refused(&mut pool, &member(2), 10_000) == 10_000);
}

#[test]
fn a_member_that_changes_without_end_takes_nobody_the_answer_to_a_repeated_change() {
    let mut pool = Pool::new();
    let change = |id: u128, name: &str| ManagerRequest::Change {
        id: OpId((id << 100).to_be_bytes()),
        change: make(Ino::ROOT, name, FileKind::Directory),
    };
    let made = pool.ask_as(&member(1), change(1, "mine")).unwrap();
    let file = pool.make(Ino::ROOT, "file", FileKind::File);
    for number in 0..(1 << 18) + 1000 {
        let request = ManagerRequest::Change {
            id: OpId((1000 + number as u128).to_be_bytes()),
            change: open_to_all(file),
        };
        pool.ask_as(&member(2), request).unwrap();
    }
    assert_eq!(pool.ask_as(&member(1), change(1, "mine")), Ok(made), "it is told that the name is taken");
    let another = pool.ask_as(&member(1), change(2, "mine")).unwrap_err();
    assert_eq!(another.code, ErrorCode::Exists);
}

#[test]
fn one_member_reserves_no_more_than_is_left_and_others_find_room() {
    const CHUNK: u64 = 1 << 20;
    let (mut pool, file) = pool_with_file();
    let free = pool.status().space.free_bytes;
    let reserve = |pool: &mut Pool, asker: &Asker, session| {
        let request = ManagerRequest::Reserve { session, bytes: 1 << 40, avoid: Vec::new() };
        match pool.ask_as(asker, request).unwrap() {
            ManagerReply::Stripe { bytes, .. } => bytes,
            other => panic!("{other:?}"),
        }
    };
    let mut all = 0;
    for number in 1..=100 {
        let session = open(&mut pool, &member(1), number, file).unwrap();
        all += reserve(&mut pool, &member(1), session);
    }
    assert!(all <= free / 2 + 100 * CHUNK, "{all} of {free}");
    let session = open(&mut pool, &member(2), 1000, file).unwrap();
    assert!(reserve(&mut pool, &member(2), session) >= free / 64);
}

#[test]
fn a_file_with_thousands_of_names_far_down_stops_nobody() {
    let (mut pool, file) = pool_with_file();
    let mut top = pool.make(Ino::ROOT, "deep", FileKind::Directory);
    let folder = top;
    for _ in 0..200 {
        top = pool.make(top, "d", FileKind::Directory);
    }
    pool.write(1, file, &[1], &[0, 1]);
    for number in 0..3_000 {
        let parent = pool.make(top, &number.to_string(), FileKind::Directory);
        pool.change(Change::Link { ino: file, parent, name: "name".to_owned() }).unwrap();
    }
    let began = Instant::now();
    let pairs = vec![("redundancy".to_owned(), "replicate:3".to_owned())];
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    while pool.core.work(pool.now) {}
    // Each name would look at all others, and from each at all folders above: 1.8 billion.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(pool.status().exposed_chunks, 1, "the file wants a third copy now");
}

#[test]
fn what_a_benefactor_makes_up_takes_no_more_than_its_share_and_others_store_on() {
    let (mut pool, file) = pool_with_file();
    pool.core.sessions_may_take(4 * MIB);
    pool.register_member(2, MemberId([2; 16]));
    let known = |pool: &mut Pool| pool.status().chunks;
    for part in 0..10 {
        let made_up: Vec<u32> = (0..4_000).map(|number| (1 << 20) | (part * 4_000 + number)).collect();
        pool.beat(2, &made_up, &[]);
    }
    let made_up = known(&mut pool);
    assert!((6_000..7_000).contains(&made_up), "{made_up} of 40,000");
    pool.write(1, file, &[1, 2, 3], &[0, 1]);
    pool.beat(0, &[4], &[]);
    assert_eq!(known(&mut pool), made_up + 4, "another one's are taken in");
    pool.beat(2, &[1], &[]);
    assert_eq!(pool.locate(1), [0, 1, 2], "and its own of what somebody needs");
}
