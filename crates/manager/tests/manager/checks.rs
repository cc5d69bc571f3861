//! Encodings that nobody has decoded: who is asked to, what follows from the answers, and that nothing genuine goes before.

use std::collections::BTreeSet;

use stdchk_model::message::benefactor::{Check, Command, Decoded, FailedCopy, Seen};
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest, StoredBlock};
use stdchk_model::{BenefactorId, BlockId, Code, EncodingId, Incarnation, Ino, Maker};

use crate::harness::{CHUNK_LENGTH, Pool, chunk, empty_load, stored};
use stdchk_manager::core::Asker;

const ALL: [u32; 6] = [0, 1, 2, 3, 4, 5];
/// A set of blocks is at rest after so long.
const REST_MS: u64 = 70_000;

fn encoding() -> EncodingId {
    EncodingId { code: Code::erasure(2, 1).unwrap(), tag: [7; 16], maker: Maker([9; 8]) }
}

fn fragment(index: u8) -> StoredBlock {
    let block = BlockId { chunk: chunk(1), encoding: encoding(), index };
    StoredBlock { block, plain_length: CHUNK_LENGTH, stored_length: CHUNK_LENGTH / 2 }
}

fn verdict(is_right: bool) -> Vec<Decoded> {
    vec![Decoded { chunk: chunk(1), encoding: encoding(), is_right }]
}

/// What a benefactor says with a heartbeat.
#[derive(Default)]
struct Said {
    added: Vec<StoredBlock>,
    removed: Vec<BlockId>,
    decoded: Vec<Decoded>,
    copies_failed: Vec<FailedCopy>,
    seen: Vec<Seen>,
}

fn heartbeat(pool: &Pool, at: u32, said: Said) -> ManagerRequest {
    let Said { added, removed, decoded, copies_failed, seen } = said;
    ManagerRequest::Heartbeat {
        id: BenefactorId(at),
        registration: pool.first_registration(at),
        load: empty_load(),
        durable_sequence: pool.told,
        added,
        removed,
        damaged: 0,
        copies_failed,
        put_sequence: pool.receipts,
        decoded,
        seen,
        disk: None,
    }
}

fn beat(pool: &mut Pool, at: u32, said: Said) -> Vec<Command> {
    let request = heartbeat(pool, at, said);
    // Copies are shown wherever they are said to be.
    pool.beat_honestly(request, |check| check.from[0].encoding.code.is_copy()).unwrap()
}

/// A benefactor has decoded the encoding. If it has a copy, it has seen the fragments, unless they don't make the chunk.
fn says(pool: &mut Pool, at: u32, is_right: bool) -> Vec<Command> {
    let lacks = if is_right { Vec::new() } else { vec![0, 1, 2] };
    let own = BlockId::plain(chunk(1));
    // Nothing, if it wasn't asked.
    let number = pool.looks.get(&(BenefactorId(at), own)).copied().unwrap_or(0);
    let seen = if at < 2 { vec![Seen { own, lacks, number }] } else { Vec::new() };
    beat(pool, at, Said { decoded: verdict(is_right), seen, ..Said::default() })
}

fn checks(commands: &[Command]) -> Vec<Check> {
    let check = |command: &Command| match command {
        Command::Check(check) => Some(check.clone()),
        _ => None,
    };
    commands.iter().filter_map(check).collect()
}

/// To whom checks go now.
fn checkers(pool: &mut Pool, among: &[u32]) -> Vec<u32> {
    let mut found = Vec::new();
    for at in among {
        let commands = beat(pool, *at, Said::default());
        found.extend(checks(&commands).iter().map(|_| *at));
    }
    found
}

/// The one to whom a check goes now, once the collection has looked.
fn checker(pool: &mut Pool) -> Option<u32> {
    pool.collect().unwrap();
    let found = checkers(pool, &ALL);
    assert!(found.len() <= 1, "a chunk is checked by one after the other: {found:?}");
    found.first().copied()
}

/// Benefactors that are told to delete something, once the collection has looked, and those with fragments at the copies.
fn deleting(pool: &mut Pool) -> Vec<u32> {
    let is_delete = |command: &Command| matches!(command, Command::Delete { .. });
    let mut all = BTreeSet::new();
    for _ in 0..4 {
        pool.collect().unwrap();
        all.extend(ALL.into_iter().filter(|at| beat(pool, *at, Said::default()).iter().any(is_delete)));
    }
    all.into_iter().collect()
}

/// Copies of a chunk at two benefactors, as many as are wanted, and three fragments at others that somebody says make it.
fn pool() -> Pool {
    let mut pool = Pool::with_benefactors(6);
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let file = pool.make(folder, "a", FileKind::File);
    pool.write(1, file, &[1], &[0, 1]);
    for (index, at) in (0u8..).zip([2, 3, 4]) {
        beat(&mut pool, at, Said { added: vec![fragment(index)], ..Said::default() });
    }
    pool.pass_alive(REST_MS, &ALL);
    pool
}

fn holders(pool: &mut Pool) -> Vec<u32> {
    let mut holders = pool.locate(1);
    holders.sort_unstable();
    holders
}

#[test]
fn a_copy_goes_for_fragments_once_its_own_holder_has_decoded_them_and_no_earlier() {
    let mut pool = pool();
    assert_eq!(deleting(&mut pool), Vec::<u32>::new(), "nothing goes for what nobody has decoded");
    for holder in [0, 1] {
        says(&mut pool, holder, true);
        assert_eq!(deleting(&mut pool), [holder]);
    }
    assert_eq!(holders(&mut pool), [2, 3, 4]);
    assert_eq!((checker(&mut pool), pool.status().broken), (None, Vec::new()));
}

#[test]
fn an_order_to_check_names_enough_fragments_and_where_they_are() {
    let mut pool = pool();
    pool.collect().unwrap();
    let order = checks(&beat(&mut pool, 0, Said::default())).pop().unwrap();
    let indices: BTreeSet<u8> = order.from.iter().map(|source| source.index).collect();
    assert_eq!((order.chunk, indices), (chunk(1), BTreeSet::from([0, 1, 2])));
    assert!(order.from.iter().all(|source| source.encoding == encoding()));
}

#[test]
fn what_two_find_broken_counts_for_nothing_goes_as_a_whole_and_its_maker_is_named() {
    let mut pool = pool();
    assert_eq!(checker(&mut pool), Some(0));
    says(&mut pool, 0, false);
    assert_eq!((deleting(&mut pool), pool.status().broken), (vec![], Vec::new()), "one alone may lie");
    // The order was given with the heartbeats.
    says(&mut pool, 1, false);
    let broken = pool.status().broken;
    assert_eq!(
        broken.iter().map(|broken| (broken.maker, broken.count)).collect::<Vec<_>>(),
        [(Maker([9; 8]), 1)]
    );
    assert_eq!(deleting(&mut pool), [2, 3, 4]);
    assert_eq!(holders(&mut pool), [0, 1]);
    assert_eq!(checker(&mut pool), None);
}

#[test]
fn what_is_broken_is_known_when_it_is_put_again() {
    let mut pool = pool();
    checker(&mut pool);
    says(&mut pool, 0, false);
    checkers(&mut pool, &ALL);
    says(&mut pool, 1, false);
    assert_eq!(deleting(&mut pool), [2, 3, 4]);
    for (index, at) in (0u8..).zip([2, 3, 4]) {
        beat(&mut pool, at, Said { added: vec![fragment(index)], ..Said::default() });
    }
    pool.pass_alive(REST_MS, &ALL);
    assert_eq!(deleting(&mut pool), [2, 3, 4], "nobody has to look again");
    assert_eq!(checker(&mut pool), None);
}

#[test]
fn one_that_says_that_a_good_encoding_is_broken_is_outvoted_and_keeps_its_copy() {
    let mut pool = pool();
    assert_eq!(checker(&mut pool), Some(0));
    says(&mut pool, 0, false);
    for _ in 0..2 {
        let asked = checkers(&mut pool, &ALL);
        assert!(asked.len() == 1 && asked != [0], "{asked:?}");
        says(&mut pool, asked[0], true);
    }
    assert!(pool.status().broken.is_empty());
    assert_eq!(deleting(&mut pool), Vec::<u32>::new());
    says(&mut pool, 1, true);
    assert_eq!(deleting(&mut pool), [1], "it has decoded what its copy stood beside");
    assert_eq!((deleting(&mut pool), checker(&mut pool)), (vec![], None));
    assert_eq!(holders(&mut pool), [0, 2, 3, 4]);
}

#[test]
fn the_words_of_benefactors_of_one_member_are_one_word() {
    let mut pool = pool();
    let member = MemberId([7; 16]);
    for number in [0, 1] {
        pool.register_member(number, member);
        beat(&mut pool, number, Said { added: vec![stored(1)], ..Said::default() });
    }
    assert_eq!(checker(&mut pool), Some(0));
    says(&mut pool, 0, false);
    let asked = checkers(&mut pool, &ALL);
    assert!(asked.len() == 1 && asked[0] > 1, "the other one of the same member says nothing new: {asked:?}");
}

#[test]
fn what_nobody_ordered_and_what_comes_late_changes_nothing() {
    let mut pool = pool();
    says(&mut pool, 5, true);
    says(&mut pool, 5, false);
    says(&mut pool, 4, false);
    assert_eq!((pool.status().broken, deleting(&mut pool)), (Vec::new(), vec![]));
    // The collection had a check ordered at 0. Another one answers in its place; and it does when its time is over.
    says(&mut pool, 1, true);
    pool.pass_alive(61_000, &ALL);
    says(&mut pool, 0, true);
    assert_eq!(deleting(&mut pool), Vec::<u32>::new());
}

#[test]
fn who_could_not_see_the_fragments_asks_again_ever_more_rarely_and_others_do_at_once() {
    let mut pool = pool();
    let fails = |pool: &mut Pool, at| {
        let copies_failed = vec![FailedCopy { chunk: chunk(1), to: None }];
        beat(pool, at, Said { copies_failed, ..Said::default() });
    };
    assert_eq!(checker(&mut pool), Some(0));
    fails(&mut pool, 0);
    assert_eq!(checker(&mut pool), Some(1), "the other one at once");
    pool.pass_alive(59_000, &ALL);
    assert_eq!(checker(&mut pool), None, "it is under way");
    pool.pass_alive(1_000, &ALL);
    assert_eq!(checker(&mut pool), Some(0), "that is late");
    fails(&mut pool, 0);
    assert_eq!(checker(&mut pool), None, "not at once");
    pool.pass_alive(1_000, &ALL);
    assert_eq!(checker(&mut pool), Some(1));
    fails(&mut pool, 1);
    assert_eq!(checker(&mut pool), None);
    pool.pass_alive(1_000, &ALL);
    assert_eq!(checker(&mut pool), Some(0), "after twice the time");
}

#[test]
fn an_answer_to_another_order_is_none() {
    let mut pool = pool();
    assert_eq!(checker(&mut pool), Some(0));
    let own = (BenefactorId(0), BlockId::plain(chunk(1)));
    let number = pool.looks[&own];
    for other in [0, number - 1, number + 1] {
        pool.looks.insert(own, other);
        says(&mut pool, 0, true);
    }
    assert_eq!(deleting(&mut pool), Vec::<u32>::new());
    pool.looks.insert(own, number);
    says(&mut pool, 0, true);
    assert_eq!(deleting(&mut pool), [0]);
}

#[test]
fn fragments_of_one_member_take_the_place_of_no_copies_of_others() {
    let mut pool = pool();
    for at in [2, 3, 4] {
        pool.register_member(at, MemberId([7; 16]));
        let added = vec![fragment(u8::try_from(at - 2).unwrap())];
        beat(&mut pool, at, Said { added, ..Said::default() });
    }
    let mut deleted = BTreeSet::new();
    for _ in 0..8 {
        pool.collect().unwrap();
        for at in ALL {
            let mut commands = beat(&mut pool, at, Said::default());
            if commands.iter().any(|command| matches!(command, Command::Check(_))) {
                commands.extend(says(&mut pool, at, true));
            }
            if commands.iter().any(|command| matches!(command, Command::Delete { .. })) {
                deleted.insert(at);
            }
        }
    }
    assert_eq!(deleted, BTreeSet::new(), "that member alone would keep the chunk");
}

#[test]
fn an_order_of_one_that_starts_again_is_given_anew() {
    let mut pool = pool();
    assert_eq!(checker(&mut pool), Some(0));
    pool.register_as(Some(0), Incarnation(1), None);
    pool.inventory_as(0, Incarnation(1), &[1]).unwrap();
    assert_eq!(checker(&mut pool), Some(0));
    says(&mut pool, 0, true);
    assert_eq!(deleting(&mut pool), [0]);
}

#[test]
fn a_manager_that_starts_again_knows_of_no_verdict_and_asks_anew() {
    let mut pool = pool();
    assert_eq!(checker(&mut pool), Some(0));
    says(&mut pool, 0, true);
    pool.restart();
    for number in ALL {
        let life = Incarnation(u64::from(number) + 1);
        pool.register_as(Some(number), life, None);
        pool.inventory_as(number, life, if number < 2 { &[1] } else { &[] }).unwrap();
    }
    for (index, at) in (0u8..).zip([2, 3, 4]) {
        beat(&mut pool, at, Said { added: vec![fragment(index)], ..Said::default() });
    }
    pool.pass_alive(REST_MS, &ALL);
    assert_eq!(checker(&mut pool), Some(0));
}

#[test]
fn an_encoding_that_is_gone_is_not_checked_and_a_verdict_about_it_changes_nothing() {
    let mut pool = pool();
    pool.collect().unwrap();
    for (index, at) in (0u8..).zip([2, 3]) {
        beat(&mut pool, at, Said { removed: vec![fragment(index).block], ..Said::default() });
    }
    assert_eq!(checkers(&mut pool, &[0, 1]), Vec::<u32>::new(), "too few are left");
    beat(&mut pool, 4, Said { removed: vec![fragment(2).block], ..Said::default() });
    says(&mut pool, 0, true);
    assert_eq!((checker(&mut pool), holders(&mut pool)), (None, vec![0, 1]));
}

#[test]
fn a_chunk_that_nothing_refers_to_any_more_is_not_checked() {
    let mut pool = pool();
    assert_eq!(checker(&mut pool), Some(0));
    let folder = pool.attr("app").unwrap().ino;
    pool.change(Change::Unlink { parent: folder, name: "a".to_owned() }).unwrap();
    says(&mut pool, 0, true);
    pool.pass_alive(REST_MS, &ALL);
    let deleted: BTreeSet<u32> = deleting(&mut pool).into_iter().collect();
    assert_eq!((deleted, checker(&mut pool)), (BTreeSet::from([0, 1, 2, 3, 4]), None));
}

fn doubt(pool: &mut Pool, member: u8, number: u32, encoding: EncodingId) {
    let asker = Asker { member: Some(MemberId([member; 16])), ..Asker::default() };
    pool.ask_as(&asker, ManagerRequest::Doubt { chunk: chunk(number), encoding }).unwrap();
}

#[test]
fn a_reader_s_doubt_has_two_look_and_then_needs_no_further_look() {
    let mut pool = pool();
    doubt(&mut pool, 1, 1, encoding());
    for _ in 0..2 {
        let asked = checkers(&mut pool, &ALL);
        assert_eq!(asked.len(), 1, "{asked:?}");
        says(&mut pool, asked[0], true);
    }
    doubt(&mut pool, 2, 1, encoding());
    assert_eq!(checkers(&mut pool, &ALL), Vec::<u32>::new());
    assert!(pool.status().broken.is_empty());
}

#[test]
fn a_doubt_that_is_right_is_found_out_though_nothing_stands_beside() {
    let mut pool = pool();
    for at in [0, 1] {
        beat(&mut pool, at, Said { removed: vec![BlockId::plain(chunk(1))], ..Said::default() });
    }
    assert_eq!(pool.status().chunks_lost, 0, "its maker says that it makes the chunk");
    doubt(&mut pool, 1, 1, encoding());
    for _ in 0..2 {
        let asked = checkers(&mut pool, &ALL);
        says(&mut pool, asked[0], false);
    }
    assert_eq!((pool.status().chunks_lost, pool.status().broken.len()), (1, 1));
    assert_eq!(deleting(&mut pool), Vec::<u32>::new(), "it is all that there is");
}

#[test]
fn doubts_about_what_is_not_there_or_is_a_copy_cost_nothing() {
    let mut pool = pool();
    doubt(&mut pool, 1, 1, EncodingId::PLAIN);
    doubt(&mut pool, 1, 2, encoding());
    doubt(&mut pool, 1, 1, EncodingId { tag: [8; 16], ..encoding() });
    assert_eq!(checkers(&mut pool, &ALL), Vec::<u32>::new());
}

/// A heartbeat of a benefactor that leaves all undone that it is told; how many looks at others are among that.
fn looks_left_undone(pool: &mut Pool, at: u32) -> usize {
    let request = heartbeat(pool, at, Said::default());
    let Ok(ManagerReply::Commands(commands)) = pool.ask(request) else {
        panic!("not an answer to a heartbeat")
    };
    checks(&commands).len()
}

#[test]
fn a_holder_that_leaves_all_looks_undone_is_asked_nothing_for_a_while() {
    let mut pool = Pool::with_benefactors(3);
    let all: Vec<u32> = (1..=40).collect();
    for (number, chunks) in (1u8..).zip(all.chunks(8)) {
        let file = pool.make(Ino::ROOT, &format!("f{number}"), FileKind::File);
        pool.write(number, file, chunks, &[0, 1]);
    }
    pool.pass_alive(REST_MS, &[0, 1, 2]);
    pool.beat(2, &all, &[]);
    let rest = |pool: &mut Pool, ms| {
        for _ in 0..ms / 1_000 {
            pool.pass(1_000);
            (0..3).for_each(|at| _ = looks_left_undone(pool, at));
        }
        pool.collect().unwrap();
    };
    rest(&mut pool, REST_MS);
    // The block that came last goes first. An order may be lost once, and then it is given again.
    for expected in [16, 16, 0, 16, 0, 0] {
        assert_eq!(looks_left_undone(&mut pool, 2), expected);
        rest(&mut pool, 62_000);
    }
    let mut holders = pool.locate(40);
    holders.sort_unstable();
    assert_eq!(holders, [0, 1, 2], "nothing has gone unseen");
}
