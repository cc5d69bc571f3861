//! Fragments that lie where nobody would put them: a put that was not answered was done all the same, and its fragment went to
//! another benefactor as well.

use crate::common::{Random, TestPool, file_with, wait_until};
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest};
use stdchk_model::message::handshake::Role;
use stdchk_model::{ChunkId, ChunkRef, Code, Maker};
use stdchk_net::{BufferPool, Bytes, Connection, Identity};
use stdchk_protect::Blocks;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fragment_goes_to_a_benefactor_whose_own_another_one_has_too() {
    let pools = TestPool::start(3).await;
    let pool = pools.connect(8 << 20).await;
    let policy = [("redundancy", "erasure:2,1"), ("semantics", "pessimistic"), ("codec", "store")];
    let ino = file_with(&pool, &policy).await;
    let content = Random::new(5).bytes(100_000);
    let chunk = ChunkRef { id: ChunkId::of(&content), length: 100_000 };
    let blocks =
        Blocks::of(chunk, 0, Bytes::from(content.clone()), Code::erasure(2, 1).unwrap(), Maker::LOCAL);
    let hosts = pool.benefactors().await.unwrap();
    let identity = Identity { role: Role::Client, pool: pool.id(), keys: None };
    for (host, index) in hosts.iter().zip([0, 0, 1]) {
        let connection =
            Connection::open(Role::Benefactor, &host.address, &identity, &BufferPool::new(8 << 20))
                .await
                .unwrap();
        let (block, encoding) = (blocks.encoding.block(chunk.id, index), blocks.encoding.clone());
        let put = BenefactorRequest::Put { block, encoding, durable: true, insists: false };
        let stored = blocks.stored(index).unwrap().clone();
        let answer = connection.call(&put, stored, crate::common::PATIENCE).await;
        assert!(matches!(answer.unwrap().0, BenefactorReply::Stored { receipt: Some(_), .. }));
    }
    wait_until("the manager knows the fragments", async || {
        let status = pool.status().await.unwrap();
        status.benefactors.iter().all(|one| one.load.blocks == 1) && status.chunks == 1
    })
    .await;
    let session = pool.write(ino).await.unwrap();
    session.write_at(0, &content).await.unwrap();
    session.commit(0).await.unwrap();
    session.close(false).await.unwrap();
    let reader = pool.read(ino, None).await.unwrap();
    assert!(reader.read_at(0, content.len() + 1).await.unwrap() == content);
}
