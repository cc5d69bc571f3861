//! Before a block of a benefactor may go, it sees those that stay: their holders prove that they have them.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests need more of it")]
mod common;

use common::*;
use stdchk_model::message::benefactor::{
    BenefactorReply, BenefactorRequest, Check, Command, FailedCopy, Seen, SourceBlock, proof,
};
use stdchk_model::message::manager::ManagerRequest;
use stdchk_model::{BlockId, ChunkId, ChunkRef, Code, EncodingId, ErrorCode, Maker, Permit};
use stdchk_net::Bytes;
use stdchk_protect::Blocks;
use stdchk_reduce::{Codec, Compressor, Effort};

/// The order to see these blocks before `own` may go.
fn look(own: BlockId, others: &[(BlockId, String)]) -> Command {
    let source = |(block, address): &(BlockId, String)| SourceBlock {
        encoding: block.encoding,
        index: block.index,
        address: address.clone(),
        permit: Permit::new(&permits(), &block.chunk, block.encoding, None),
    };
    Command::Check(Check { chunk: own.chunk, from: others.iter().map(source).collect(), own: Some(own) })
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

/// What benefactor 1 says after this order, the `count`th.
async fn answer(manager: &Manager, count: usize, order: Command) -> Vec<u32> {
    manager.order(1, order);
    manager.wait("what it has seen", |told| seen(told).len() == count).await;
    seen(&manager.told.lock()).pop().unwrap().lacks
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
    let with =
        |block, numbers: &[usize]| numbers.iter().map(|number| (block, at(*number))).collect::<Vec<_>>();
    assert_eq!(answer(&manager, 1, look(own, &with(own, &[1]))).await, Vec::<u32>::new());
    assert_eq!(answer(&manager, 2, look(own, &with(own, &[2, 1, 3]))).await, [0, 2]);
    assert_eq!(answer(&manager, 3, look(own_large, &with(other_small, &[1]))).await, Vec::<u32>::new());
    assert_eq!(answer(&manager, 4, look(own_large, &with(other_small, &[1, 2]))).await, [1]);
    // What isn't there is shown by nobody.
    let away = [(own, at(1)), (own, "127.0.0.1:1".to_owned())];
    assert_eq!(answer(&manager, 5, look(own, &away)).await, [1]);
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
        others.push((store(at, &coded, index).await, at.address()));
    }
    assert_eq!(answer(&manager, 1, look(copy, &others)).await, Vec::<u32>::new(), "a copy for fragments");
    let own = store(&all[0], &coded, 2).await;
    assert_eq!(
        answer(&manager, 2, look(own, &others)).await,
        Vec::<u32>::new(),
        "a fragment that is there twice"
    );
    // One that was never stored there.
    let mut claimed = others.clone();
    claimed[4].1 = all[1].address();
    assert_eq!(answer(&manager, 3, look(copy, &claimed)).await, [4]);
    // Too few to decode: those that are there are seen all the same.
    let few: Vec<_> = [(others[0].0, others[0].1.clone()), (others[1].0, all[1].address())].into();
    assert_eq!(answer(&manager, 4, look(copy, &few)).await, [1]);
    // All of them are there, and they make something else.
    let hashes = (0..5u8).map(|index| ChunkId::of(&bytes(90 + u64::from(index), 100_000))).collect();
    let made_up = stdchk_model::Encoding { hashes, ..coded.encoding.clone() };
    let mut false_ones = Vec::new();
    for index in 0..5u8 {
        let (block, at) = (made_up.block(coded.chunk, index), &all[usize::from(index) + 1]);
        let stored = bytes(90 + u64::from(index), 100_000);
        put_block(&at.connection, block, made_up.clone(), &stored).await.unwrap();
        sync(&at.connection, &[block]).await;
        false_ones.push((block, at.address()));
    }
    assert_eq!(answer(&manager, 5, look(copy, &false_ones)).await, [0, 1, 2, 3, 4]);
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
    assert_eq!(ask(1).await, Ok(proof(&[1; 32], &content)));
    assert_eq!(ask(2).await, Ok(proof(&[2; 32], &content)));
    assert_ne!(ask(1).await, ask(2).await);
    flip(&places[0].path().join("segments"), &content[5_000..5_064]);
    assert_eq!(ask(1).await, Err(ErrorCode::Damaged));
    manager.wait("that it is gone", |told| told.removed(block)).await;
    // It has nothing that could go.
    manager.order(1, look(block, &[(block, all[0].address())]));
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
