//! What the manager does by itself: replication and repair, and a collection that never takes what is needed (I4).

use crate::harness::{CHUNK_LENGTH, Pool, chunk, make, map_of, rename, session};
use stdchk_manager::store::Table;
use stdchk_model::message::benefactor::Command;
use stdchk_model::message::manager::{Change, Existing, FileKind, ManagerRequest, StoredBlock};
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, ChunkMap, ChunkRef, ErrorCode, Incarnation, Ino, MapRoot, OpId,
};

const HOUR_MS: u64 = 3_600_000;

fn pool_with_file(benefactors: u32) -> (Pool, Ino, Ino) {
    let mut pool = Pool::with_benefactors(benefactors);
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let file = pool.make(folder, "app.N0.T1", FileKind::File);
    (pool, folder, file)
}

/// Destinations of the copies in an answer, with their chunks.
fn copies(commands: &[Command]) -> Vec<(ChunkId, u32)> {
    let copies = |command: &Command| match command {
        Command::Make(make) => make.blocks.iter().map(|new| (make.chunk, new.to.0)).collect(),
        _ => Vec::new(),
    };
    commands.iter().flat_map(copies).collect()
}

fn deleted(commands: &[Command]) -> Vec<(ChunkId, u64)> {
    let delete = |command: &Command| match command {
        Command::Delete { blocks, put_sequence } => {
            blocks.iter().map(|block| (block.chunk, *put_sequence)).collect()
        }
        _ => Vec::new(),
    };
    commands.iter().flat_map(delete).collect()
}

/// Commits a version whose map of `chunks` lies in the pool, in one piece.
fn write_large(pool: &mut Pool, number: u8, ino: Ino, chunks: &[u32], at: u32) -> ChunkMap {
    let ids: Vec<ChunkId> = chunks.iter().map(|number| chunk(*number)).collect();
    let map = map_of(&ids);
    let encoded = map.encode();
    let length = u32::try_from(encoded.len()).unwrap();
    let piece = ChunkRef { id: ChunkId::of(&encoded), length };
    pool.open(number, ino);
    pool.secure(number, chunks, &[at]);
    let stored = StoredBlock { block: BlockId::plain(piece.id), plain_length: length, stored_length: length };
    let receipts = vec![pool.receipt_of(at, vec![stored])];
    pool.ask(ManagerRequest::Receipts { session: session(number), receipts }).unwrap();
    let root = MapRoot::Pieces { pieces: vec![piece], length: u64::from(length) };
    pool.commit_naming(number, root, map.size(), chunks).unwrap();
    pool.close(number);
    map
}

// --- replication

#[test]
fn a_commit_with_too_few_copies_is_completed_in_the_background() {
    let (mut pool, _, file) = pool_with_file(2);
    pool.write(1, file, &[1], &[0]);
    assert_eq!(pool.status().chunks_at_risk, 1);
    assert!(pool.beat(1, &[], &[]).is_empty(), "who doesn't have it can't copy it");
    assert_eq!(copies(&pool.beat(0, &[1], &[])), [(chunk(1), 1)]);
    assert!(pool.beat(0, &[], &[]).is_empty(), "a copy under way is not planned again");
    pool.beat(1, &[1], &[]);
    let status = pool.status();
    assert_eq!((status.chunks_at_risk, status.repairs_pending, status.repairs_done), (0, 0, 1));
    assert_eq!(pool.locate(1), [0, 1]);
}

#[test]
fn what_a_lost_benefactor_had_is_copied_to_another() {
    let (mut pool, _, file) = pool_with_file(3);
    pool.write(1, file, &[1, 2], &[0, 1]);
    pool.pass_alive(29_000, &[0, 2]);
    assert!(copies(&pool.beat(0, &[], &[])).is_empty(), "it may come back");
    assert_eq!(pool.locate(1), [0, 1], "and may still be asked, last");
    pool.pass_alive(1_000, &[2]);
    let mut planned = copies(&pool.beat(0, &[], &[]));
    planned.sort_unstable();
    let mut expected = vec![(chunk(1), 2), (chunk(2), 2)];
    expected.sort_unstable();
    assert_eq!(planned, expected);
    assert_eq!(pool.locate(1), [0]);
}

#[test]
fn chunks_with_fewest_copies_are_repaired_first() {
    let (mut pool, folder, file) = pool_with_file(4);
    let pairs = vec![("redundancy".to_owned(), "replicate:3".to_owned())];
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    let many: Vec<u32> = (100..200).collect();
    pool.write(1, file, &many[..7], &[0, 1]);
    let other = pool.make(folder, "app.N1.T1", FileKind::File);
    pool.write(2, other, &[7], &[0]);
    assert_eq!(copies(&pool.beat(0, &[], &[])).first().map(|(id, _)| *id), Some(chunk(7)));
}

#[test]
fn a_damaged_block_is_no_copy_and_is_repaired() {
    let (mut pool, _, file) = pool_with_file(3);
    pool.write(1, file, &[1], &[0, 1]);
    assert_eq!(pool.status().chunks_at_risk, 0);
    pool.beat(1, &[], &[1]);
    assert_eq!(pool.locate(1), [0]);
    assert_eq!(copies(&pool.beat(0, &[], &[])).len(), 1);
}

#[test]
fn more_replicas_are_made_of_what_is_there_without_anybody_writing() {
    let (mut pool, folder, file) = pool_with_file(2);
    pool.change(Change::SetPolicy {
        ino: folder,
        pairs: vec![("redundancy".to_owned(), "replicate:1".to_owned())],
    })
    .unwrap();
    pool.write(1, file, &[1], &[0]);
    pool.pass_alive(HOUR_MS, &[0, 1]);
    pool.collect().unwrap();
    pool.pass_alive(HOUR_MS, &[0, 1]);
    pool.change(Change::SetPolicy {
        ino: folder,
        pairs: vec![("redundancy".to_owned(), "replicate:2".to_owned())],
    })
    .unwrap();
    assert_eq!(copies(&pool.beat(0, &[], &[])).len(), 1);
}

#[test]
fn copies_do_not_starve_while_files_are_written() {
    let (mut pool, folder, file) = pool_with_file(2);
    let chunks: Vec<u32> = (0..10).collect();
    pool.write(1, file, &chunks, &[0]);
    let other = pool.make(folder, "other", FileKind::File);
    pool.open(2, other);
    pool.secure(2, &[50], &[0]);
    assert_eq!(copies(&pool.beat(0, &[], &[])).len(), chunks.len());
}

#[test]
fn locations_come_back_with_the_benefactor_after_a_restart_of_the_manager() {
    let (mut pool, _, file) = pool_with_file(2);
    pool.write(1, file, &[1], &[0, 1]);
    pool.restart();
    let request = ManagerRequest::Locate { chunks: vec![chunk(1)] };
    let found = pool.one_location(request.clone());
    assert!(found.at.is_empty() && found.pending);
    assert_eq!(pool.beat_as(0, Incarnation(1), &[], &[]).unwrap_err().code, ErrorCode::Stale);
    assert_eq!(pool.register_only(Some(0)), BenefactorId(0));
    assert!(pool.one_location(request.clone()).pending, "registered, but not reported");
    pool.inventory(0, &[1]);
    let found = pool.one_location(request);
    assert_eq!((found.at.len(), found.pending), (1, false));
}

#[test]
fn an_inventory_is_the_truth_about_its_benefactor() {
    let (mut pool, _, file) = pool_with_file(2);
    pool.write(1, file, &[1, 2], &[0]);
    pool.register_only(Some(0));
    pool.inventory(0, &[2, 3]);
    assert!(pool.locate(1).is_empty());
    assert_eq!((pool.locate(2), pool.locate(3)), (vec![0], vec![0]));
    assert_eq!(pool.status().chunks_lost, 1);
}

// --- collection

#[test]
fn only_what_nothing_refers_to_is_collected_and_only_after_a_while() {
    let (mut pool, _, file) = pool_with_file(1);
    pool.write(1, file, &[1, 2], &[0]);
    pool.open(2, file);
    pool.secure(2, &[3], &[0]);
    pool.ask(ManagerRequest::CloseSession { session: session(2), interrupted: true }).unwrap();
    assert_eq!(pool.collect().unwrap_err().code, ErrorCode::Unavailable, "too early after the start");
    pool.pass_alive(59_000, &[0]);
    assert!(pool.collect().is_err());
    pool.pass_alive(1_000, &[0]);
    assert_eq!(pool.collect(), Ok(1));
    assert_eq!(deleted(&pool.beat(0, &[], &[])), [(chunk(3), 77)]);
    assert_eq!((pool.locate(1), pool.locate(2), pool.locate(3)), (vec![0], vec![0], vec![]));
}

#[test]
fn every_version_keeps_its_chunks_until_the_file_is_removed() {
    let (mut pool, folder, file) = pool_with_file(1);
    pool.write(1, file, &[1], &[0]);
    pool.write(2, file, &[2], &[0]);
    let temporary = pool.make(folder, "tmp", FileKind::File);
    pool.write(3, temporary, &[3], &[0]);
    pool.change(rename(folder, "tmp", folder, "app.N0.T1")).unwrap();
    pool.pass_alive(HOUR_MS, &[0]);
    assert_eq!(pool.collect(), Ok(0), "also versions that were handed on");
    pool.change(Change::DropVersion { ino: temporary, version: 2 }).unwrap();
    assert_eq!(pool.collect(), Ok(1));
    pool.change(Change::Unlink { parent: folder, name: "app.N0.T1".to_owned() }).unwrap();
    assert_eq!(pool.collect(), Ok(2));
}

#[test]
fn a_live_session_keeps_its_chunks_and_the_version_it_builds_on() {
    let (mut pool, folder, file) = pool_with_file(1);
    let other = pool.make(folder, "app.N1.T1", FileKind::File);
    pool.write(1, file, &[1, 2], &[0]);
    pool.write(2, other, &[4], &[0]);
    pool.open(3, file);
    pool.secure(3, &[3], &[0]);
    pool.beat(0, &[4], &[]);
    assert_eq!(pool.known(3, 4).at.len(), 1);
    for name in ["app.N0.T1", "app.N1.T1"] {
        pool.change(Change::Unlink { parent: folder, name: name.to_owned() }).unwrap();
    }
    pool.pass_alive(HOUR_MS, &[0]);
    assert_eq!(pool.collect(), Ok(0));
    pool.close(3);
    pool.pass_alive(HOUR_MS, &[0]);
    assert_eq!(pool.collect(), Ok(4));
}

#[test]
fn a_session_that_commits_again_and_again_does_not_keep_what_it_wrote_over() {
    let (mut pool, _, file) = pool_with_file(1);
    pool.open(1, file);
    for number in 1..=3 {
        pool.known(1, number);
        pool.secure(1, &[number], &[0]);
        pool.commit(1, &[number]).unwrap();
    }
    pool.pass_alive(HOUR_MS, &[0]);
    assert_eq!(pool.collect(), Ok(2));
    assert_eq!(pool.locate(3), [0]);
    // What comes between two commits is kept, and so is the version that the session builds on.
    pool.known(1, 4);
    pool.secure(1, &[4], &[0]);
    pool.write(2, file, &[5], &[0]);
    pool.pass_alive(HOUR_MS, &[0]);
    assert_eq!(pool.collect(), Ok(0));
    assert_eq!((pool.locate(3), pool.locate(4)), (vec![0], vec![0]));
}

#[test]
fn what_a_session_asked_for_in_vain_is_not_ordered_to_go_before_it_can_store_it() {
    let (mut pool, folder, file) = pool_with_file(2);
    pool.write(1, file, &[1], &[0]);
    pool.change(Change::Unlink { parent: folder, name: "app.N0.T1".to_owned() }).unwrap();
    pool.pass_alive(HOUR_MS, &[1]);
    let other = pool.make(folder, "app.N1.T1", FileKind::File);
    pool.open(2, other);
    assert!(pool.known(2, 1).at.is_empty(), "its holder is away");
    assert_eq!(pool.collect(), Ok(0), "the holder may be back and be given it again before this is ordered");
    pool.close(2);
    pool.pass_alive(HOUR_MS, &[1]);
    assert_eq!(pool.collect(), Ok(1));
}

#[test]
fn chunks_that_another_file_shares_stay() {
    let (mut pool, folder, file) = pool_with_file(1);
    let other = pool.make(folder, "app.N1.T1", FileKind::File);
    pool.write(1, file, &[1, 2], &[0]);
    pool.write(2, other, &[2, 3], &[0]);
    pool.change(Change::Unlink { parent: folder, name: "app.N0.T1".to_owned() }).unwrap();
    pool.pass_alive(HOUR_MS, &[0]);
    assert_eq!(pool.collect(), Ok(1));
    assert_eq!(pool.locate(2), [0]);
}

#[test]
fn a_map_that_cannot_be_read_keeps_what_it_names_and_stops_no_collection() {
    let (mut pool, folder, file) = pool_with_file(1);
    let map = write_large(&mut pool, 1, file, &[1, 2, 3], 0);
    let other = pool.make(folder, "other", FileKind::File);
    pool.write(2, other, &[9], &[0]);
    // Nobody has the map any more.
    let piece = BlockId::plain(ChunkId::of(&map.encode()));
    let life = pool.last_life();
    pool.beat_without(0, life, &[piece]);
    pool.change(Change::Unlink { parent: folder, name: "other".to_owned() }).unwrap();
    pool.pass_alive(HOUR_MS, &[0]);
    assert_eq!(pool.collect(), Ok(1));
    assert_eq!((pool.locate(1), pool.locate(3), pool.locate(9)), (vec![0], vec![0], vec![]));
    // A manager that was started again knows as much.
    pool.restart();
    pool.register_only(Some(0));
    pool.inventory(0, &[1, 2, 3, 8]);
    for _ in 0..HOUR_MS / 1_000 {
        pool.pass(1_000);
        pool.beat_last(0, &[]);
    }
    assert_eq!(pool.collect(), Ok(1), "chunk 8");
    assert_eq!((pool.locate(1), pool.locate(3)), (vec![0], vec![0]));
    pool.change(Change::Unlink { parent: folder, name: "app.N0.T1".to_owned() }).unwrap();
    assert_eq!(pool.collect(), Ok(3));
}

#[test]
fn versions_that_get_another_file_while_a_policy_is_carried_out_are_wanted_as_it_says() {
    let (mut pool, folder, file) = pool_with_file(2);
    let replicas = |count: u8| {
        let pairs = vec![("redundancy".to_owned(), format!("replicate:{count}"))];
        Change::SetPolicy { ino: folder, pairs }
    };
    pool.change(replicas(1)).unwrap();
    pool.write(1, file, &[1], &[0]);
    // All of these are looked at before it.
    for number in 1..10 {
        pool.make(folder, &format!("app.N{number}.T1"), FileKind::File);
    }
    let fresh = [make(folder, "fresh", FileKind::File), rename(folder, "fresh", folder, "app.N0.T1")];
    for (number, change) in (1..).zip([replicas(2)].into_iter().chain(fresh)) {
        pool.ask_in_memory(ManagerRequest::Change { id: OpId([number; 16]), change }).unwrap();
        // A part of the folder is looked at, no more.
        assert!(number > 1 || pool.core.walk_on());
    }
    pool.pass(1);
    assert_eq!(copies(&pool.beat(0, &[], &[])), [(chunk(1), 1)]);
}

#[test]
fn files_that_change_places_are_wanted_as_their_new_folders_say() {
    let mut pool = Pool::with_benefactors(2);
    let folders = ["one", "two"].map(|name| pool.make(Ino::ROOT, name, FileKind::Directory));
    for (folder, count) in folders.into_iter().zip(1..) {
        let pairs = vec![("redundancy".to_owned(), format!("replicate:{count}"))];
        pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    }
    let [one, two] = folders.map(|folder| pool.make(folder, "file", FileKind::File));
    pool.write(1, one, &[1], &[0]);
    pool.write(2, two, &[2], &[0]);
    pool.beat(0, &[], &[]);
    let Change::Rename { parent, name, new_parent, new_name, .. } =
        rename(folders[1], "file", folders[0], "file")
    else {
        unreachable!()
    };
    let existing = Existing::Exchange;
    pool.change(Change::Rename { parent, name, new_parent, new_name, existing }).unwrap();
    assert_eq!(copies(&pool.beat(0, &[], &[])), [(chunk(1), 1)]);
}

#[test]
fn what_was_removed_stays_for_its_readers_for_a_while_unless_somebody_collects() {
    let (mut pool, folder, file) = pool_with_file(1);
    let other = pool.make(folder, "app.N1.T1", FileKind::File);
    pool.write(1, file, &[1], &[0]);
    pool.write(2, other, &[2], &[0]);
    pool.pass_alive(HOUR_MS, &[0]);
    let work = |pool: &mut Pool| while pool.core.work(pool.now) {};
    pool.change(Change::Unlink { parent: folder, name: "app.N0.T1".to_owned() }).unwrap();
    pool.pass_alive(59_000, &[0]);
    work(&mut pool);
    assert_eq!(pool.locate(1), [0]);
    pool.pass_alive(2_000, &[0]);
    work(&mut pool);
    assert_eq!(pool.locate(1).len(), 0);
    pool.change(Change::Unlink { parent: folder, name: "app.N1.T1".to_owned() }).unwrap();
    assert_eq!(pool.collect(), Ok(1));
}

#[test]
fn a_map_that_several_versions_have_keeps_its_chunks_until_the_last_of_them_goes() {
    let (mut pool, folder, file) = pool_with_file(1);
    let other = pool.make(folder, "app.N1.T1", FileKind::File);
    write_large(&mut pool, 1, file, &[1, 2, 3], 0);
    write_large(&mut pool, 2, other, &[1, 2, 3], 0);
    pool.restart();
    pool.register_only(Some(0));
    let names = pool.records(Table::Names);
    assert_eq!(names, 1, "they share the list");
    pool.inventory(0, &[1, 2, 3]);
    for name in ["app.N0.T1", "app.N1.T1"] {
        for _ in 0..HOUR_MS / 1_000 {
            pool.pass(1_000);
            pool.beat_last(0, &[]);
        }
        assert_eq!(pool.collect(), Ok(0));
        pool.change(Change::Unlink { parent: folder, name: name.to_owned() }).unwrap();
    }
    assert_eq!((pool.collect(), pool.records(Table::Names)), (Ok(3), 0));
}

#[test]
fn a_client_that_leaves_out_names_of_a_map_costs_no_other_version_of_it_a_chunk() {
    let (mut pool, folder, file) = pool_with_file(1);
    let other = pool.make(folder, "app.N1.T1", FileKind::File);
    let map = map_of(&[1, 2].map(chunk));
    let piece = ChunkRef { id: chunk(7), length: CHUNK_LENGTH };
    let root = MapRoot::Pieces { pieces: vec![piece], length: u64::from(CHUNK_LENGTH) };
    for (number, ino, named) in [(1, file, &[1][..]), (2, other, &[1, 2])] {
        pool.open(number, ino);
        pool.secure(number, &[1, 2, 7], &[0]);
        pool.commit_naming(number, root.clone(), map.size(), named).unwrap();
        pool.close(number);
    }
    pool.pass_alive(HOUR_MS, &[0]);
    assert_eq!(pool.collect(), Ok(0));
    pool.restart();
    pool.register_only(Some(0));
    pool.inventory(0, &[1, 2, 7]);
    for _ in 0..HOUR_MS / 1_000 {
        pool.pass(1_000);
        pool.beat_last(0, &[]);
    }
    assert_eq!((pool.collect(), pool.locate(2)), (Ok(0), vec![0]));
}

#[test]
fn names_that_come_before_a_commit_are_told_once_and_all() {
    let (mut pool, _, file) = pool_with_file(1);
    let ids = [1, 2].map(chunk);
    let map = map_of(&ids);
    let piece = ChunkRef { id: chunk(7), length: CHUNK_LENGTH };
    let root = MapRoot::Pieces { pieces: vec![piece], length: u64::from(CHUNK_LENGTH) };
    pool.open(1, file);
    pool.secure(1, &[1, 2, 7], &[0]);
    let tell =
        |first, number| ManagerRequest::Names { session: session(1), first, chunks: vec![chunk(number)] };
    pool.ask(tell(true, 9)).unwrap();
    pool.ask(tell(true, 1)).unwrap();
    let refused = pool.commit_told(1, root.clone(), map.size(), &[2], 2).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Outdated, "{refused}");
    let refused = pool.commit_told(1, root.clone(), map.size(), &[2], 1).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Outdated, "they are told anew: {refused}");
    pool.ask(tell(true, 1)).unwrap();
    pool.commit_told(1, root, map.size(), &[2], 1).unwrap();
    pool.close(1);
    pool.pass_alive(HOUR_MS, &[0]);
    assert_eq!(pool.collect(), Ok(0));
    assert_eq!([1, 2, 7].map(|number| pool.locate(number)), [[0], [0], [0]]);
}

#[test]
fn a_copy_that_comes_after_its_chunk_was_collected_is_collected_without_anything_else_being_removed() {
    let (mut pool, folder, file) = pool_with_file(2);
    pool.write(1, file, &[1], &[0]);
    assert_eq!(copies(&pool.beat(0, &[1], &[])), [(chunk(1), 1)]);
    pool.change(Change::Unlink { parent: folder, name: "app.N0.T1".to_owned() }).unwrap();
    pool.pass_alive(HOUR_MS, &[0, 1]);
    assert_eq!(pool.collect(), Ok(1));
    pool.beat(0, &[], &[1]);
    pool.pass_alive(HOUR_MS, &[0, 1]);
    pool.beat(1, &[1], &[]);
    pool.pass_alive(HOUR_MS, &[0, 1]);
    assert_eq!(pool.collect(), Ok(1));
}

#[test]
fn after_a_restart_it_is_known_how_many_copies_are_wanted() {
    let (mut pool, _, file) = pool_with_file(2);
    let map = write_large(&mut pool, 1, file, &[1], 0);
    let piece = ChunkId::of(&map.encode());
    pool.restart();
    for number in [0, 1] {
        pool.register_only(Some(number));
        pool.inventory(number, if number == 0 { &[1] } else { &[] });
    }
    let status = pool.status();
    assert_eq!((status.chunks_at_risk, status.chunks_lost), (1, 1), "the piece {piece} was never reported");
    assert_eq!(u64::from(CHUNK_LENGTH), status.unique_bytes);
}

#[test]
fn an_effort_to_make_room_takes_nothing_that_a_session_holds_or_one_that_is_forgotten_may_hold() {
    let mut pool = Pool::with_benefactors(1);
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let (removed, written) =
        (pool.make(folder, "removed", FileKind::File), pool.make(folder, "written", FileKind::File));
    let effort = |pool: &mut Pool| {
        let over = pool.core.make_room(pool.now);
        for _ in 0..5 {
            pool.pass_alive(1_000, &[0]);
            while pool.core.work(pool.now) {}
        }
        assert_eq!(pool.core.efforts().0, over, "it comes to its end");
    };
    pool.write(1, removed, &[1], &[0]);
    pool.open(2, written);
    pool.secure(2, &[2], &[0]);
    pool.change(Change::Unlink { parent: folder, name: "removed".to_owned() }).unwrap();
    pool.pass_alive(3_000, &[0]);
    effort(&mut pool);
    assert!(pool.locate(1).is_empty() && pool.locate(2) == [0]);
    // Its client falls silent, and may come back.
    for _ in 0..40 {
        pool.pass(1_000);
        pool.beat(0, &[], &[]);
    }
    assert_eq!(pool.status().sessions, 0);
    effort(&mut pool);
    assert_eq!(pool.locate(2), [0]);
    pool.pass_alive(60_000, &[0]);
    effort(&mut pool);
    assert!(pool.locate(2).is_empty());
}
