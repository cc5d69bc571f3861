//! Chunks under an erasure code: what suffices for a commit, what is made anew from whom, what is given up.

use crate::harness::{Pool, chunk, session};
use stdchk_model::message::benefactor::{Command, Make};
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest, StoredBlock};
use stdchk_model::{BenefactorId, BlockId, Code, EncodingId, ErrorCode, Failure, Ino, Maker};

const WRITER: u8 = 1;

fn encoding(tag: u8) -> EncodingId {
    EncodingId { code: Code::erasure(3, 2).unwrap(), tag: [tag; 16], maker: Maker::LOCAL }
}

fn fragment(number: u32, index: u8) -> StoredBlock {
    let block = BlockId { chunk: chunk(number), encoding: encoding(7), index };
    StoredBlock { block, plain_length: 1 << 20, stored_length: 350_000 }
}

/// A pool of seven with an open file in a folder that is coded (3, 2).
fn pool(semantics: &str) -> Pool {
    let mut pool = Pool::with_benefactors(7);
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let pairs = [("redundancy", "erasure:3,2"), ("semantics", semantics)];
    let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    let file = pool.make(folder, "app.N0.T1", FileKind::File);
    pool.open(WRITER, file);
    pool
}

/// The benefactor number `index` of these gave a receipt for the fragment `index`.
fn secure(pool: &mut Pool, at: &[u32]) {
    for (index, at) in (0u8..).zip(at) {
        let receipts = vec![pool.receipt_of(*at, vec![fragment(1, index)])];
        pool.ask(ManagerRequest::Receipts { session: session(WRITER), receipts }).unwrap();
    }
}

fn makes(commands: Vec<Command>) -> Vec<Make> {
    let make = |command| match command {
        Command::Make(make) => Some(make),
        _ => None,
    };
    commands.into_iter().filter_map(make).collect()
}

fn forget(pool: &mut Pool, number: u32) -> Result<ManagerReply, Failure> {
    pool.ask(ManagerRequest::Forget { id: BenefactorId(number), force: false })
}

#[test]
fn a_commit_needs_as_many_fragments_as_read_it_and_with_pessimistic_semantics_all() {
    for (semantics, needed) in [("optimistic", 3), ("pessimistic", 5)] {
        let mut pool = pool(semantics);
        for count in 1..=needed {
            assert_eq!(pool.commit(WRITER, &[1]).unwrap_err().code, ErrorCode::Unavailable);
            secure(&mut pool, &[0, 1, 2, 3, 4][..count]);
        }
        pool.commit(WRITER, &[1]).unwrap();
    }
}

#[test]
fn fragments_at_one_benefactor_survive_no_loss() {
    let mut pool = pool("pessimistic");
    secure(&mut pool, &[0, 0, 0, 0, 0]);
    assert_eq!(pool.commit(WRITER, &[1]).unwrap_err().code, ErrorCode::Unavailable);
}

#[test]
fn what_is_lost_is_made_anew_at_others_by_one_that_has_a_fragment() {
    let mut pool = pool("optimistic");
    secure(&mut pool, &[0, 1, 2, 3, 4]);
    pool.commit(WRITER, &[1]).unwrap();
    pool.close(WRITER);
    assert_eq!(pool.status().chunks_at_risk, 0);
    pool.pass_alive(29_000, &[0, 1, 2, 5, 6]);
    pool.pass(1_500);
    assert_eq!(pool.status().chunks_at_risk, 1);
    assert!(makes(pool.beat(5, &[], &[])).is_empty(), "it has nothing to make it from");
    let made = makes(pool.beat(1, &[], &[]));
    assert_eq!(made.len(), 1);
    let (from, blocks) = (&made[0].from, &made[0].blocks);
    assert!(
        from.len() == 3 && from[0].index == 1 && from.iter().all(|source| source.encoding == encoding(7))
    );
    let mut indices: Vec<_> = blocks.iter().map(|block| (block.index, block.to.0)).collect();
    indices.sort_unstable();
    assert!(
        matches!(indices[..], [(Some(3), 5 | 6), (Some(4), 5 | 6)]) && indices[0].1 != indices[1].1,
        "{indices:?}"
    );
    assert!(makes(pool.beat(0, &[], &[])).is_empty(), "it is on order");
}

#[test]
fn benefactors_without_which_fragments_do_not_suffice_are_not_forgotten() {
    let mut pool = pool("optimistic");
    secure(&mut pool, &[0, 1, 2, 3, 4]);
    pool.commit(WRITER, &[1]).unwrap();
    pool.close(WRITER);
    assert!(pool.collect().is_err(), "it finds out what versions need");
    pool.pass_alive(6_000, &[3, 4, 5, 6]);
    for number in [0, 1] {
        forget(&mut pool, number).unwrap();
    }
    let refused = forget(&mut pool, 2).unwrap_err();
    assert!(refused.code == ErrorCode::Denied && refused.message.contains("1 chunks"), "{refused}");
}
