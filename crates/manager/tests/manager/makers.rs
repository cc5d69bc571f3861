//! Encodings that nobody but their maker has decoded: for whom they count, and what never goes in their favour.

use crate::harness::{CHUNK_LENGTH, Pool, chunk, empty_load, map_of, session};
use stdchk_model::message::benefactor::{Check, Command, Decoded, Make, OwnerWish};
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest, StoredBlock};
use stdchk_model::{BenefactorId, BlockId, ChunkId, Code, EncodingId, ErrorCode, Ino, Maker, Trust};

const VICTIM: Maker = Maker([1; 8]);
const OTHER: Maker = Maker([2; 8]);
/// Time after which nothing is young any more, milliseconds.
const AGE_MS: u64 = 61_000;
const ALL: [u32; 6] = [0, 1, 2, 3, 4, 5];

fn encoding(maker: Maker, tag: u8) -> EncodingId {
    EncodingId { code: Code::erasure(2, 1).unwrap(), tag: [tag; 16], maker }
}

fn fragment(number: u32, encoding: EncodingId, index: u8) -> StoredBlock {
    let block = BlockId { chunk: chunk(number), encoding, index };
    StoredBlock { block, plain_length: CHUNK_LENGTH, stored_length: CHUNK_LENGTH / 2 }
}

/// What a benefactor says with its next heartbeat.
#[derive(Default)]
struct Report {
    added: Vec<StoredBlock>,
    removed: Vec<BlockId>,
    decoded: Vec<Decoded>,
}

fn beat(pool: &mut Pool, at: u32, Report { added, removed, decoded }: Report) -> Vec<Command> {
    let wish = pool.wishes.get(&at).copied();
    let mut load = empty_load();
    if let Some(wish) = wish {
        (load.wish, load.free_bytes) = (wish, 0);
    }
    let report = ManagerRequest::Heartbeat {
        id: BenefactorId(at),
        registration: pool.first_registration(at),
        load,
        durable_sequence: pool.told,
        added,
        removed,
        damaged: 0,
        copies_failed: Vec::new(),
        put_sequence: pool.receipts,
        decoded,
        seen: Vec::new(),
        disk: None,
    };
    // Nobody decodes encodings here but where a test says so.
    let sees = |check: &Check| {
        let (own, favoured) = (check.own.unwrap().encoding, check.from[0].encoding);
        favoured.code.is_copy() || favoured == own
    };
    pool.beat_honestly(report, sees).unwrap()
}

/// All blocks of an encoding of the chunk come to lie at these benefactors.
fn put(pool: &mut Pool, number: u32, encoding: EncodingId, at: &[u32]) {
    for (index, at) in (0u8..).zip(at) {
        let added = vec![fragment(number, encoding, index)];
        beat(pool, *at, Report { added, ..Report::default() });
    }
}

/// A folder with this redundancy, and a file in it that the victim writes in session 1.
fn pool(redundancy: &str) -> (Pool, Ino) {
    let mut pool = Pool::with_benefactors(6);
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let pairs = [("redundancy", redundancy), ("semantics", "pessimistic")];
    let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    let file = pool.make(folder, "a", FileKind::File);
    pool.maker = VICTIM;
    pool.open(1, file);
    (pool, file)
}

/// How the blocks of the chunk count for a session.
fn known(pool: &mut Pool, number: u8, of: u32) -> Vec<Trust> {
    let request = ManagerRequest::Known { session: session(number), chunks: vec![chunk(of)], room_bytes: 0 };
    match pool.ask(request).unwrap() {
        ManagerReply::Known { found, .. } => found[0].at.iter().map(|at| at.trust).collect(),
        other => panic!("{other:?}"),
    }
}

fn vouch(pool: &mut Pool, number: u8, of: u32, encoding: EncodingId) {
    let encodings = vec![(chunk(of), encoding)];
    pool.ask(ManagerRequest::Vouch { session: session(number), encodings }).unwrap();
}

fn makes(commands: Vec<Command>) -> Vec<Make> {
    let make = |command| match command {
        Command::Make(make) => Some(make),
        _ => None,
    };
    commands.into_iter().filter_map(make).collect()
}

fn deleted(commands: &[Command]) -> Vec<BlockId> {
    let delete = |command: &Command| match command {
        Command::Delete { blocks, .. } => blocks.clone(),
        _ => Vec::new(),
    };
    commands.iter().flat_map(delete).collect()
}

/// What all benefactors are told to delete, once all that may go was found.
fn all_deleted(pool: &mut Pool) -> Vec<(u32, BlockId)> {
    let mut all = Vec::new();
    pool.pass_alive(AGE_MS, &[]);
    for _ in 0..80 {
        pool.pass(1_000);
        for at in ALL {
            let commands = beat(pool, at, Report::default());
            let removed = deleted(&commands);
            all.extend(removed.iter().map(|block| (at, *block)));
            beat(pool, at, Report { removed, ..Report::default() });
        }
        let _ = pool.collect();
    }
    all
}

#[test]
fn a_commit_rests_on_fragments_of_its_own_maker_and_not_on_those_of_others() {
    let (mut pool, file) = pool("erasure:2,1");
    put(&mut pool, 1, encoding(OTHER, 7), &[0, 1, 2]);
    assert_eq!(known(&mut pool, 1, 1), [Trust::Claimed; 3]);
    assert_eq!(pool.commit(1, &[1]).unwrap_err().code, ErrorCode::Unavailable);
    // Its own count at once, at the same benefactors.
    put(&mut pool, 1, encoding(VICTIM, 8), &[0, 1, 2]);
    pool.commit(1, &[1]).unwrap();
    // And the other's for whoever is one with it.
    let folder = pool.make(Ino::ROOT, "other", FileKind::Directory);
    pool.change(Change::SetPolicy {
        ino: folder,
        pairs: vec![("redundancy".to_owned(), "erasure:2,1".to_owned())],
    })
    .unwrap();
    let theirs = pool.make(folder, "b", FileKind::File);
    put(&mut pool, 2, encoding(OTHER, 9), &[0, 1, 2]);
    pool.maker = OTHER;
    pool.open(2, theirs);
    pool.commit(2, &[2]).unwrap();
    assert!(file != theirs);
}

#[test]
fn what_a_writer_would_have_made_just_so_counts_for_its_session_alone() {
    let (mut pool, file) = pool("erasure:2,1");
    let theirs = encoding(OTHER, 7);
    put(&mut pool, 1, theirs, &[0, 1, 2]);
    vouch(&mut pool, 1, 1, theirs);
    assert_eq!(known(&mut pool, 1, 1), [Trust::Claimed; 3], "the session had not asked for the chunk");
    vouch(&mut pool, 1, 1, encoding(OTHER, 6));
    assert_eq!(known(&mut pool, 1, 1), [Trust::Claimed; 3], "that is another encoding");
    pool.open(2, file);
    assert_eq!(known(&mut pool, 2, 1), [Trust::Claimed; 3]);
    vouch(&mut pool, 1, 1, theirs);
    assert_eq!(known(&mut pool, 1, 1), [Trust::Trusted; 3]);
    assert_eq!(known(&mut pool, 2, 1), [Trust::Claimed; 3], "nobody takes another client's word");
    pool.commit(1, &[1]).unwrap();
    // The version after it names the chunk, too, and its writer doesn't have the bytes.
    pool.close(2);
    pool.close(1);
    pool.maker = Maker([3; 8]);
    pool.open(3, file);
    assert_eq!(known(&mut pool, 3, 1), [Trust::Claimed; 3]);
    pool.commit(3, &[1]).unwrap();
}

#[test]
fn what_a_benefactor_decoded_counts_for_all_if_it_was_ordered_to() {
    let (mut pool, file) = pool("erasure:2,1");
    let (theirs, at) = (encoding(OTHER, 7), [0, 1, 2]);
    put(&mut pool, 1, theirs, &at);
    pool.maker = OTHER;
    let folder = pool.make(Ino::ROOT, "other", FileKind::Directory);
    let pairs = vec![("redundancy".to_owned(), "erasure:2,1".to_owned())];
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    let first = pool.make(folder, "b", FileKind::File);
    pool.open(2, first);
    pool.commit(2, &[1]).unwrap();
    let decoded = vec![Decoded { chunk: chunk(1), encoding: theirs, is_right: true }];
    let report = || Report { decoded: decoded.clone(), ..Report::default() };
    beat(&mut pool, 0, report());
    pool.maker = VICTIM;
    assert_eq!(known(&mut pool, 1, 1), [Trust::Claimed; 3], "nobody had asked it to");
    // A fragment is lost: the next one makes it anew.
    let lost = vec![fragment(1, theirs, 2).block];
    beat(&mut pool, 2, Report { removed: lost, ..Report::default() });
    let ordered = makes(beat(&mut pool, 0, Report::default()));
    assert_eq!(ordered.len(), 1);
    beat(&mut pool, 1, report());
    assert_eq!(known(&mut pool, 1, 1), [Trust::Claimed; 2], "another one was asked");
    beat(&mut pool, 0, report());
    assert_eq!(known(&mut pool, 1, 1), [Trust::Trusted; 2]);
    // What comes to lie elsewhere of it is of the same.
    beat(&mut pool, 4, Report { added: vec![fragment(1, theirs, 2)], ..Report::default() });
    assert_eq!(known(&mut pool, 1, 1), [Trust::Trusted; 3]);
    pool.commit(1, &[1]).unwrap();
    assert!(file != first);
}

/// The chunk of a version has copies, and somebody stores fragments of an encoding that he made up.
fn with_made_up(redundancy: &str, copies: &[u32]) -> Pool {
    let (mut pool, _) = pool(redundancy);
    pool.secure(1, &[1], copies);
    pool.commit(1, &[1]).unwrap();
    pool.close(1);
    copies.iter().for_each(|at| drop(pool.beat(*at, &[1], &[])));
    put(&mut pool, 1, encoding(OTHER, 7), &[3, 4, 5]);
    pool
}

#[test]
fn genuine_copies_stay_whatever_fragments_come_beside_them() {
    for (redundancy, copies) in
        [("replicate:1", &[0][..]), ("replicate:2", &[0, 1]), ("erasure:2,1", &[0, 1])]
    {
        let mut pool = with_made_up(redundancy, copies);
        let gone = all_deleted(&mut pool);
        assert!(gone.iter().all(|(_, block)| *block != BlockId::plain(chunk(1))), "{redundancy}: {gone:?}");
        assert_eq!(pool.status().chunks_at_risk, 0, "{redundancy}");
    }
}

#[test]
fn a_chunk_is_as_far_from_loss_as_its_copies_make_it_whatever_fragments_come_beside_them() {
    let mut pool = with_made_up("replicate:2", &[0, 1]);
    pool.beat(1, &[], &[1]);
    assert_eq!(pool.status().chunks_at_risk, 1);
    let made = makes(beat(&mut pool, 0, Report::default()));
    assert!(made.len() == 1 && made[0].from[0].encoding == EncodingId::PLAIN, "{made:?}");
}

#[test]
fn a_benefactor_that_drains_keeps_its_copy_until_there_are_others() {
    let mut pool = with_made_up("replicate:1", &[0]);
    pool.wishes.insert(0, OwnerWish::Drain);
    beat(&mut pool, 0, Report::default());
    let made = makes(beat(&mut pool, 0, Report::default()));
    assert!(
        made.len() == 1 && made[0].from[0].encoding == EncodingId::PLAIN,
        "it is to be elsewhere: {made:?}"
    );
    let gone = all_deleted(&mut pool);
    assert!(gone.iter().all(|(_, block)| *block != BlockId::plain(chunk(1))), "{gone:?}");
    let to = made[0].blocks[0].to.0;
    pool.beat(to, &[1], &[]);
    let gone = all_deleted(&mut pool);
    assert!(gone.contains(&(0, BlockId::plain(chunk(1)))), "{gone:?}");
    assert!(!gone.contains(&(to, BlockId::plain(chunk(1)))), "{gone:?}");
}

/// Two makers have coded the chunk, and nobody knows who of them was right.
#[test]
fn of_two_encodings_that_nobody_has_decoded_both_stay() {
    let (mut pool, _) = pool("erasure:2,1");
    put(&mut pool, 1, encoding(VICTIM, 8), &[0, 1, 2]);
    pool.commit(1, &[1]).unwrap();
    pool.close(1);
    put(&mut pool, 1, encoding(OTHER, 7), &[3, 4, 5]);
    assert_eq!(all_deleted(&mut pool), []);
    // Each is made anew where it was lost: the chunk is no further from loss than the one that is worse off.
    let lost = vec![fragment(1, encoding(VICTIM, 8), 2).block];
    beat(&mut pool, 2, Report { removed: lost, ..Report::default() });
    assert_eq!(pool.status().chunks_at_risk, 1);
}

#[test]
fn chunks_that_a_version_carries_over_count_as_they_did_and_new_ones_don_t() {
    let (mut pool, file) = pool("erasure:2,1");
    put(&mut pool, 1, encoding(VICTIM, 8), &[0, 1, 2]);
    pool.commit(1, &[1]).unwrap();
    pool.close(1);
    pool.maker = OTHER;
    pool.open(2, file);
    let ids: Vec<ChunkId> = vec![chunk(1)];
    assert_eq!(map_of(&ids).chunks().len(), 1);
    pool.commit(2, &[1]).unwrap();
    put(&mut pool, 2, encoding(VICTIM, 9), &[0, 1, 2]);
    assert_eq!(pool.commit(2, &[1, 2]).unwrap_err().code, ErrorCode::Unavailable);
    // One copy beside the fragments makes what is carried over no worse.
    pool.beat(3, &[1], &[]);
    pool.commit(2, &[1]).unwrap();
}
