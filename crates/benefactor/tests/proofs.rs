//! Before a block of a benefactor may go, it sees those that stay: their holders prove that they have them.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests need more of it")]
mod common;

use common::*;
use stdchk_model::message::benefactor::{
    BenefactorReply, BenefactorRequest, Check, Command, FailedCopy, Seen, SourceBlock, proof,
};
use stdchk_model::message::manager::ManagerRequest;
use stdchk_model::{BenefactorId, BlockId, ChunkId, ChunkRef, Code, EncodingId, ErrorCode, Maker, Permit};
use stdchk_net::Bytes;
use stdchk_protect::Blocks;
use stdchk_reduce::{Codec, Compressor, Effort};

/// A block, and where it is said to be.
type Other = (BlockId, String, BenefactorId);

/// The order to see these blocks before `own` may go.
fn look(number: u64, own: BlockId, others: &[Other]) -> Command {
    let source = |(block, address, at): &Other| SourceBlock {
        encoding: block.encoding,
        index: block.index,
        address: address.clone(),
        permit: Permit::new(&permits(), &block.chunk, block.encoding, None),
        at: *at,
    };
    let from = others.iter().map(source).collect();
    Command::Check(Check { chunk: own.chunk, from, own: Some(own), number })
}

/// Which benefactor the one at this place is.
fn id(place: usize) -> BenefactorId {
    BenefactorId(u32::try_from(place).unwrap() + 1)
}

fn seen(told: &Told) -> Vec<Seen> {
    let seen = told.requests.iter().filter_map(|request| match request {
        ManagerRequest::Heartbeat { seen, .. } => Some(seen.clone()),
        _ => None,
    });
    seen.flatten().collect()
}

/// Benefactors that have registered, with numbers from 1 on.
async fn benefactors(manager: &Manager, places: &[tempfile::TempDir]) -> Vec<Running> {
    let mut running = Vec::new();
    for (number, place) in places.iter().enumerate() {
        running.push(Running::start(config(place.path(), &manager.address())).await);
        manager.wait("its inventory", |told| told.inventories() == number + 1).await;
    }
    running
}

async fn store(at: &Running, made: &Blocks, index: u8) -> BlockId {
    let block = made.encoding.block(made.chunk, index);
    put_block(&at.connection, block, made.encoding.clone(), made.stored(index).unwrap()).await.unwrap();
    assert_eq!(sync(&at.connection, &[block]).await.blocks.len(), 1);
    block
}

fn blocks(content: &[u8], code: Code) -> Blocks {
    let chunk = ChunkRef { id: ChunkId::of(content), length: u32::try_from(content.len()).unwrap() };
    Blocks::of(chunk, 0, Bytes::copy_from_slice(content), code, Maker::LOCAL)
}

fn places(count: usize) -> Vec<tempfile::TempDir> {
    (0..count).map(|_| tempfile::tempdir().unwrap()).collect()
}

/// What benefactor 1 says after the `count`th order, of this block and these others.
async fn answer(manager: &Manager, count: usize, own: BlockId, others: &[Other]) -> Vec<u32> {
    let number = 1000 + count as u64;
    manager.order(1, look(number, own, others));
    manager.wait("what it has seen", |told| seen(told).len() == count).await;
    let seen = seen(&manager.told.lock()).pop().unwrap();
    assert_eq!((seen.own, seen.number), (own, number));
    seen.lacks
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_of_a_copy_sees_who_has_one_and_who_only_says_so() {
    let (places, manager) = (places(4), Manager::start().await);
    let all = benefactors(&manager, &places).await;
    let content = bytes(1, 300_000);
    let plain = blocks(&content, Code::COPY);
    let own = store(&all[0], &plain, 0).await;
    store(&all[1], &plain, 0).await;
    // Another one has it in another form.
    let compressible = b"stdchk ".repeat(40_000);
    let chunk = ChunkRef { id: ChunkId::of(&compressible), length: 280_000 };
    let (codec, encoded) = Compressor::new(Effort::Lz4).unwrap().compress(&compressible);
    let encoded = Bytes::from(encoded.to_vec());
    assert_ne!(codec, Codec::Store);
    let small = Blocks::of(chunk, codec.number(), encoded, Code::COPY, Maker::LOCAL);
    let large = blocks(&compressible, Code::COPY);
    let (own_large, other_small) = (store(&all[0], &large, 0).await, store(&all[1], &small, 0).await);
    let at = |number: usize| all[number].address();
    let with = |block, numbers: &[usize]| -> Vec<Other> {
        numbers.iter().map(|number| (block, at(*number), id(*number))).collect()
    };
    assert_eq!(answer(&manager, 1, own, &with(own, &[1])).await, Vec::<u32>::new());
    assert_eq!(answer(&manager, 2, own, &with(own, &[2, 1, 3])).await, [0, 2]);
    assert_eq!(answer(&manager, 3, own_large, &with(other_small, &[1])).await, Vec::<u32>::new());
    assert_eq!(answer(&manager, 4, own_large, &with(other_small, &[1, 2])).await, [1]);
    // What isn't there is shown by nobody.
    let away = [(own, at(1), id(1)), (own, "127.0.0.1:1".to_owned(), id(2))];
    assert_eq!(answer(&manager, 5, own, &away).await, [1]);
    // The answer of another one, which has it, is no proof of this one.
    let passed_on = [(own, at(1), id(3)), (own, at(1), id(1))];
    assert_eq!(answer(&manager, 6, own, &passed_on).await, [0]);
    for one in all {
        one.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_sees_all_fragments_that_it_goes_for_and_what_they_make() {
    let code = Code::erasure(3, 2).unwrap();
    let (places, manager) = (places(6), Manager::start().await);
    let all = benefactors(&manager, &places).await;
    let content = bytes(2, 300_000);
    let (coded, plain) = (blocks(&content, code), blocks(&content, Code::COPY));
    let copy = store(&all[0], &plain, 0).await;
    let mut others = Vec::new();
    for index in 0..5 {
        let at = &all[usize::from(index) + 1];
        others.push((store(at, &coded, index).await, at.address(), id(usize::from(index) + 1)));
    }
    assert_eq!(answer(&manager, 1, copy, &others).await, Vec::<u32>::new(), "a copy for fragments");
    let own = store(&all[0], &coded, 2).await;
    assert_eq!(answer(&manager, 2, own, &others).await, Vec::<u32>::new(), "a fragment that is there twice");
    // One that was never stored there.
    let mut claimed = others.clone();
    (claimed[4].1, claimed[4].2) = (all[1].address(), id(1));
    assert_eq!(answer(&manager, 3, copy, &claimed).await, [4]);
    // Too few to decode: those that are there are seen all the same.
    let few: Vec<_> = [others[0].clone(), (others[1].0, all[1].address(), id(1))].into();
    assert_eq!(answer(&manager, 4, copy, &few).await, [1]);
    // All of them are there, and they make something else.
    let hashes = (0..5u8).map(|index| ChunkId::of(&bytes(90 + u64::from(index), 100_000))).collect();
    let made_up = stdchk_model::Encoding { hashes, ..coded.encoding.clone() };
    let mut false_ones = Vec::new();
    for index in 0..5u8 {
        let (block, at) = (made_up.block(coded.chunk, index), &all[usize::from(index) + 1]);
        let stored = bytes(90 + u64::from(index), 100_000);
        put_block(&at.connection, block, made_up.clone(), &stored).await.unwrap();
        sync(&at.connection, &[block]).await;
        false_ones.push((block, at.address(), id(usize::from(index) + 1)));
    }
    assert_eq!(answer(&manager, 5, copy, &false_ones).await, [0, 1, 2, 3, 4]);
    for one in all {
        one.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fragments_that_nobody_can_decode_are_not_seen() {
    let (places, manager) = (places(6), Manager::start().await);
    let all = benefactors(&manager, &places).await;
    let content = bytes(4, 300_000);
    let copy = store(&all[0], &blocks(&content, Code::COPY), 0).await;
    // Of a codec that is not known here.
    let chunk = ChunkRef { id: copy.chunk, length: 300_000 };
    let code = Code::erasure(3, 2).unwrap();
    let unknown = Blocks::of(chunk, 200, Bytes::copy_from_slice(&content), code, Maker::LOCAL);
    let mut others = Vec::new();
    for index in 0..5 {
        let place = usize::from(index) + 1;
        others.push((store(&all[place], &unknown, index).await, all[place].address(), id(place)));
    }
    manager.order(1, look(9, copy, &others));
    let failed = |told: &Told| {
        told.requests.iter().any(|request| match request {
            ManagerRequest::Heartbeat { copies_failed, .. } => {
                copies_failed.contains(&FailedCopy { chunk: copy.chunk, to: None })
            }
            _ => false,
        })
    };
    manager.wait("the failure", failed).await;
    assert!(seen(&manager.told.lock()).is_empty());
    for one in all {
        one.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_needs_the_bytes_under_each_key_and_durable_ones() {
    let (places, manager) = (places(1), Manager::start().await);
    let all = benefactors(&manager, &places).await;
    let content = bytes(3, 100_000);
    let block = whole(&content).0;
    let ask = async |key: u8| {
        let request = BenefactorRequest::Prove { block, key: [key; 32] };
        match all[0].connection.call(&request, Bytes::new(), LIMIT).await {
            Ok((BenefactorReply::Proof(told), _)) => Ok(told),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(code(&error)),
        }
    };
    assert_eq!(ask(1).await, Err(ErrorCode::NotFound));
    put(&all[0].connection, &content).await.unwrap();
    sync(&all[0].connection, &[block]).await;
    assert_eq!(ask(1).await, Ok(proof(&[1; 32], id(0), &content)));
    assert_eq!(ask(2).await, Ok(proof(&[2; 32], id(0), &content)));
    assert_ne!(ask(1).await, ask(2).await);
    flip(&places[0].path().join("segments"), &content[5_000..5_064]);
    assert_eq!(ask(1).await, Err(ErrorCode::Damaged));
    manager.wait("that it is gone", |told| told.removed(block)).await;
    // It has nothing that could go.
    manager.order(1, look(7, block, &[(block, all[0].address(), id(0))]));
    let failed = |told: &Told| {
        told.requests.iter().any(|request| match request {
            ManagerRequest::Heartbeat { copies_failed, .. } => {
                copies_failed.contains(&FailedCopy { chunk: block.chunk, to: None })
            }
            _ => false,
        })
    };
    manager.wait("the failure", failed).await;
    assert!(seen(&manager.told.lock()).is_empty());
    assert_eq!(EncodingId::PLAIN, block.encoding);
    for one in all {
        one.stop().await;
    }
}
