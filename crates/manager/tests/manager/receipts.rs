//! Receipts: only what a benefactor says itself counts, and what it said before deletions were ordered there doesn't.

use crate::harness::{KEY, Pool, chunk, empty_load, session, stored};
use stdchk_model::message::benefactor::{BenefactorLoad, Command};
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, BlockId, ChunkId, ErrorCode, Incarnation, Ino, Receipt, ReceiptKey};

const HOUR_MS: u64 = 3_600_000;

fn pool_with_file(benefactors: u32) -> (Pool, Ino, Ino) {
    let mut pool = Pool::with_benefactors(benefactors);
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    pool.change(Change::SetPolicy {
        ino: folder,
        pairs: vec![("redundancy".to_owned(), "replicate:1".to_owned())],
    })
    .unwrap();
    let file = pool.make(folder, "app.N0.T1", FileKind::File);
    (pool, folder, file)
}

fn deleted(commands: &[Command]) -> Vec<ChunkId> {
    let delete = |command: &Command| match command {
        Command::Delete { blocks, .. } => blocks.iter().map(|block| block.chunk).collect(),
        _ => Vec::new(),
    };
    commands.iter().flat_map(delete).collect()
}

fn present(pool: &mut Pool, receipts: Vec<(BenefactorId, Receipt)>) -> Result<(), ErrorCode> {
    let told = pool.ask(ManagerRequest::Receipts { session: session(1), receipts });
    told.map(drop).map_err(|failure| failure.code)
}

/// Writes chunk 1 at benefactor 0 and lets it become garbage that is about to be deleted.
fn discard(pool: &mut Pool, folder: Ino, file: Ino) {
    pool.write(1, file, &[1], &[0]);
    pool.change(Change::Unlink { parent: folder, name: "app.N0.T1".to_owned() }).unwrap();
    pool.pass_alive(HOUR_MS, &[0, 1]);
    assert_eq!(pool.collect(), Ok(1));
}

/// A heartbeat of benefactor 0, which has so many blocks; what it is told to do.
fn beat_with_blocks(pool: &mut Pool, blocks: u64) -> Vec<Command> {
    let beat = ManagerRequest::Heartbeat {
        id: BenefactorId(0),
        registration: pool.first_registration(0),
        load: BenefactorLoad { blocks, ..empty_load() },
        durable_sequence: pool.told,
        added: Vec::new(),
        removed: Vec::new(),
        damaged: 0,
        copies_failed: Vec::new(),
        put_sequence: pool.receipts,
        decoded: Vec::new(),
        seen: Vec::new(),
        disk: None,
    };
    match pool.ask(beat).unwrap() {
        ManagerReply::Commands(commands) => commands,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_receipt_counts_only_if_the_benefactor_gave_it_in_its_present_life() {
    let (mut pool, _, file) = pool_with_file(2);
    pool.open(1, file);
    let (at, given) = pool.receipt(0, &[1]);
    let forged = Receipt::new(&ReceiptKey([6; 32]), given.incarnation, given.sequence, given.blocks.clone());
    assert_eq!(present(&mut pool, vec![(at, forged)]), Err(ErrorCode::Denied));
    let mut altered = given.clone();
    altered.blocks = vec![stored(2)];
    assert_eq!(present(&mut pool, vec![(at, altered)]), Err(ErrorCode::Denied));
    let of_another_life = Receipt::new(&KEY, Incarnation(99), given.sequence, given.blocks.clone());
    assert_eq!(present(&mut pool, vec![(at, of_another_life)]), Err(ErrorCode::Outdated));
    assert_eq!(present(&mut pool, vec![(BenefactorId(1), given.clone())]), Err(ErrorCode::Outdated));
    assert!(pool.locate(1).is_empty());
    assert_eq!(present(&mut pool, vec![(at, given)]), Ok(()));
    assert_eq!(pool.locate(1), [0]);
    assert_eq!(pool.commit(1, &[1]), Ok(1));
}

#[test]
fn what_was_collected_while_a_client_was_silent_is_not_believed_to_be_there() {
    let (mut pool, _, file) = pool_with_file(1);
    pool.open(1, file);
    let kept = pool.receipt(0, &[1]);
    pool.beat(0, &[1], &[]);
    pool.told = pool.receipts;
    // The client is silent for longer than its lease.
    (0..HOUR_MS / 1000).for_each(|_| {
        pool.pass(1_000);
        pool.beat(0, &[], &[]);
    });
    assert_eq!(pool.collect(), Ok(1));
    pool.open(1, file);
    assert_eq!(present(&mut pool, vec![kept]), Err(ErrorCode::Outdated));
    assert_eq!(deleted(&pool.beat(0, &[], &[])), [chunk(1)]);
    assert_eq!(pool.commit(1, &[1]).unwrap_err().code, ErrorCode::Unavailable);
    // Put again it is another matter: the benefactor keeps it from that order.
    pool.secure(1, &[1], &[0]);
    assert_eq!(pool.commit(1, &[1]), Ok(1));
}

#[test]
fn a_manager_that_was_started_again_believes_no_receipt_of_before() {
    let (mut pool, _, file) = pool_with_file(1);
    let kept = pool.receipt(0, &[1]);
    pool.restart();
    pool.open(1, file);
    assert_eq!(present(&mut pool, vec![kept.clone()]), Err(ErrorCode::Outdated), "it isn't there yet");
    pool.register_as(Some(0), Incarnation(1), None);
    pool.inventory_as(0, Incarnation(1), &[]).unwrap();
    assert_eq!(present(&mut pool, vec![kept]), Err(ErrorCode::Outdated), "deleted by the one before");
    let fresh = pool.receipt(0, &[1]);
    assert_eq!(present(&mut pool, vec![fresh]), Ok(()));
    assert_eq!(pool.commit(1, &[1]), Ok(1));
}

#[test]
fn what_a_benefactor_said_before_it_registered_anew_counts_no_longer() {
    let (mut pool, folder, file) = pool_with_file(2);
    let (id, registration) = (BenefactorId(0), pool.first_registration(0));
    let blocks = vec![stored(1)];
    let late = [
        ManagerRequest::BeginInventory { id, registration },
        ManagerRequest::Inventory {
            id,
            registration,
            last: true,
            blocks: blocks.clone(),
            put_sequence: pool.receipts,
        },
        ManagerRequest::Heartbeat {
            id,
            registration,
            load: empty_load(),
            durable_sequence: pool.told,
            added: blocks,
            removed: Vec::new(),
            damaged: 0,
            copies_failed: Vec::new(),
            put_sequence: pool.receipts,
            decoded: Vec::new(),
            seen: Vec::new(),
            disk: None,
        },
        ManagerRequest::Orders { id, registration },
    ];
    pool.register_as(Some(0), Incarnation(1), None);
    pool.inventory_as(0, Incarnation(1), &[1]).unwrap();
    discard(&mut pool, folder, file);
    assert_eq!(deleted(&pool.beat(0, &[], &[])), [chunk(1)]);
    let other = pool.make(folder, "app.N1.T1", FileKind::File);
    pool.open(2, other);
    for request in late {
        assert_eq!(pool.ask(request).unwrap_err().code, ErrorCode::Stale);
        assert_eq!(pool.known(2, 1).at, [], "a writer may not build on what is gone");
    }
}

/// It became durable when the inventory had been taken; the next heartbeat tells of it.
#[test]
fn an_inventory_does_not_unlearn_what_a_receipt_said_while_it_was_told() {
    let (mut pool, _, file) = pool_with_file(2);
    pool.register_as(Some(0), Incarnation(1), None);
    let (id, registration) = (BenefactorId(0), pool.registration_in(0, Incarnation(1)));
    let inventory = ManagerRequest::Inventory {
        id,
        registration,
        last: true,
        blocks: Vec::new(),
        put_sequence: pool.receipts,
    };
    assert_eq!(pool.ask(inventory.clone()).unwrap_err().code, ErrorCode::Invalid, "it was not begun");
    pool.ask(ManagerRequest::BeginInventory { id, registration }).unwrap();
    pool.open(1, file);
    let receipt = pool.receipt(0, &[1]);
    assert_eq!(present(&mut pool, vec![receipt]), Ok(()));
    pool.ask(inventory.clone()).unwrap();
    assert_eq!(pool.commit(1, &[1]), Ok(1));
    assert_eq!(pool.status().chunks_lost, 0);
    assert_eq!(pool.ask(inventory).unwrap_err().code, ErrorCode::Invalid, "it is complete");
}

#[test]
fn what_an_inventory_names_is_not_deleted_by_an_order_of_before() {
    let (mut pool, folder, file) = pool_with_file(2);
    discard(&mut pool, folder, file);
    pool.register_as(Some(0), Incarnation(1), None);
    pool.inventory_as(0, Incarnation(1), &[1]).unwrap();
    let other = pool.make(folder, "app.N1.T1", FileKind::File);
    pool.open(2, other);
    assert_eq!(pool.known(2, 1).at.len(), 1, "a writer may build on it now");
    assert!(deleted(&pool.beat(0, &[], &[])).is_empty());
    assert_eq!(pool.commit(2, &[1]), Ok(1));
}

#[test]
fn what_a_heartbeat_adds_or_an_inventory_that_was_asked_for_names_is_not_deleted_either() {
    for by_inventory in [false, true] {
        let (mut pool, folder, file) = pool_with_file(2);
        discard(&mut pool, folder, file);
        let commands = match by_inventory {
            true => {
                pool.inventory_as(0, Incarnation(1), &[1]).unwrap();
                pool.beat(0, &[], &[])
            }
            false => pool.beat(0, &[1], &[]),
        };
        assert!(deleted(&commands).is_empty());
        assert_eq!(pool.locate(1), [0]);
    }
}

#[test]
fn a_receipt_from_before_a_block_was_found_damaged_says_nothing() {
    let (mut pool, _, file) = pool_with_file(1);
    pool.open(1, file);
    pool.known(1, 1);
    let kept = pool.receipt(0, &[1]);
    let damaged = ManagerRequest::Heartbeat {
        id: BenefactorId(0),
        registration: pool.first_registration(0),
        load: empty_load(),
        durable_sequence: pool.told,
        added: Vec::new(),
        removed: vec![BlockId::plain(chunk(1))],
        damaged: 1,
        copies_failed: Vec::new(),
        put_sequence: pool.receipts,
        decoded: Vec::new(),
        seen: Vec::new(),
        disk: None,
    };
    pool.ask(damaged).unwrap();
    assert_eq!(present(&mut pool, vec![kept.clone()]), Err(ErrorCode::Outdated));
    let fresh = pool.receipt(0, &[1]);
    assert_eq!(present(&mut pool, vec![fresh.clone()]), Ok(()));
    pool.inventory_as(0, Incarnation(1), &[]).unwrap();
    assert_eq!(
        present(&mut pool, vec![fresh]),
        Err(ErrorCode::Outdated),
        "an inventory says what is not there"
    );
    assert!(pool.locate(1).is_empty());
}

#[test]
fn who_is_forgotten_is_told_that_and_not_that_its_receipts_are_old() {
    let (mut pool, _, file) = pool_with_file(1);
    pool.open(1, file);
    let kept = pool.receipt(0, &[1]);
    pool.restart();
    assert_eq!(present(&mut pool, vec![kept]), Err(ErrorCode::Stale));
}

#[test]
fn a_benefactor_with_fewer_blocks_than_the_manager_believes_is_asked_and_nothing_is_trimmed_for_it() {
    let (mut pool, _, file) = pool_with_file(2);
    pool.write(1, file, &[1], &[0, 1]);
    for _ in 0..590 {
        pool.pass_alive(1_000, &[1]);
        assert!(!beat_with_blocks(&mut pool, 0).contains(&Command::SendInventory));
    }
    assert_eq!(pool.collect(), Ok(0));
    assert_eq!(pool.locate(1), [0, 1], "the copy at the other may be the only one");
    let mut asked = 0;
    for _ in 0..20 {
        pool.pass_alive(1_000, &[1]);
        let commands = beat_with_blocks(&mut pool, 0);
        asked += commands.iter().filter(|command| matches!(command, Command::SendInventory)).count();
    }
    assert_eq!(asked, 1);
    pool.inventory_as(0, Incarnation(1), &[]).unwrap();
    assert_eq!(pool.locate(1), [1]);
}
