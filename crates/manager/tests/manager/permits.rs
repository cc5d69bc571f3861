//! Permits that the manager gives with orders to make copies, and their keys.

use crate::harness::{Pool, chunk};
use stdchk_model::limits::PERMITS_MS;
use stdchk_model::message::benefactor::{Command, Make};
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::FileKind;
use stdchk_model::{EncodingId, Ino, PermitKey};

const MEMBERS: [MemberId; 2] = [MemberId([1; 16]), MemberId([2; 16])];

/// Writes a chunk that benefactor 0 has, and takes its order to copy it to benefactor 1.
fn order(pool: &mut Pool, number: u8) -> Make {
    let folder = pool.make(Ino::ROOT, &format!("app{number}"), FileKind::Directory);
    let file = pool.make(folder, "x", FileKind::File);
    pool.write(number, file, &[u32::from(number)], &[0]);
    pool.close(number);
    let is_it = |command| match command {
        Command::Make(make) if make.chunk == chunk(u32::from(number)) => Some(make),
        _ => None,
    };
    pool.beat(0, &[], &[]).into_iter().find_map(is_it).unwrap()
}

/// The next key that benefactor 1 is told with its heartbeat.
fn told(pool: &mut Pool) -> Option<PermitKey> {
    let is_key = |command| match command {
        Command::Permits(key) => Some(key),
        _ => None,
    };
    pool.beat_whole(1, &[], &[]).into_iter().find_map(is_key)
}

#[test]
fn an_order_carries_permits_for_whom_it_goes_to_and_keys_change_once_they_are_known() {
    let mut pool = Pool::with_benefactors(2);
    let keys = [pool.register_member(0, MEMBERS[0]), pool.register_member(1, MEMBERS[1])];
    assert_ne!(keys[0], keys[1]);
    let make = order(&mut pool, 1);
    let (source, new) = (make.from[0].permit, make.blocks[0].permit);
    assert!(
        new.holds(&keys[1], &chunk(1), EncodingId::PLAIN, Some(MEMBERS[0])),
        "the source asks the destination"
    );
    assert!(!new.holds(&keys[0], &chunk(1), EncodingId::PLAIN, Some(MEMBERS[0])));
    assert!(!new.holds(&keys[1], &chunk(2), EncodingId::PLAIN, Some(MEMBERS[0])));
    assert!(!new.holds(&keys[1], &chunk(1), EncodingId::PLAIN, Some(MEMBERS[1])));
    assert!(source.holds(&keys[0], &chunk(1), EncodingId::PLAIN, Some(MEMBERS[0])));
    // Time goes by: the destination is told the next key, and is believed to have it with its next heartbeat.
    let mut next = None;
    for _ in 0..PERMITS_MS / 1_000 {
        assert_eq!(next, None, "not before it is time");
        pool.pass(1_000);
        pool.beat(0, &[], &[]);
        next = told(&mut pool);
    }
    let next = next.unwrap();
    let permit = order(&mut pool, 2).blocks[0].permit;
    assert!(permit.holds(&keys[1], &chunk(2), EncodingId::PLAIN, Some(MEMBERS[0])), "it may not have heard");
    assert_eq!(told(&mut pool), None);
    let permit = order(&mut pool, 3).blocks[0].permit;
    assert!(permit.holds(&next, &chunk(3), EncodingId::PLAIN, Some(MEMBERS[0])), "now it has");
    // Another registration, another key.
    let anew = pool.register_member(1, MEMBERS[1]);
    assert!(![&keys[1], &next].contains(&&anew));
    let permit = order(&mut pool, 4).blocks[0].permit;
    assert!(permit.holds(&anew, &chunk(4), EncodingId::PLAIN, Some(MEMBERS[0])));
}
