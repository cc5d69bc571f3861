//! Benefactors that take blocks and don't vouch for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stdchk_client::Pool;

use crate::common::{Random, TestPool, file_with};
use stdchk_model::ErrorCode;
use stdchk_model::message::Asked;
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest};
use stdchk_model::message::handshake::Role;
use stdchk_model::receipt::ReceiptKey;
use stdchk_model::{Failure, Incarnation, Ino, Permit, Receipt};
use stdchk_net::server::Host;
use stdchk_net::transport::unix_address;
use stdchk_net::{Buffer, BufferPool, Bytes, Caller, Connection, Identity, Listener, Service, serve};

/// How long a request to the benefactor may take.
const LIMIT: Duration = Duration::from_secs(20);
/// A commit that waits once for a benefactor that never answers takes longer.
const SYNC_ELSEWHERE: Duration = Duration::from_secs(25);
/// Ten commits that find out, one after the other, which benefactors never answer.
const PUTS_ELSEWHERE: Duration = Duration::from_secs(45);
/// A commit must have given up by then.
const GIVEN_UP: Duration = Duration::from_secs(90);

/// In which way a benefactor doesn't vouch for blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lie {
    /// Its receipts name no blocks.
    LeavesOut,
    /// Its receipts bear a proof that is none.
    Forges,
    /// Its receipts are of another life.
    OfAnotherLife,
    /// It answers something else.
    AnswersElse,
    /// It never answers.
    NeverAnswers,
    /// It never says that a block is on its disk which is to be there at once.
    NeverStores,
}

/// Stands in front of a benefactor, and lies about receipts.
struct Liar {
    behind: Connection,
    lie: Lie,
}

impl Liar {
    fn receipt(&self, mut receipt: Receipt) -> Receipt {
        match self.lie {
            Lie::LeavesOut => receipt.blocks.clear(),
            Lie::Forges => {
                let Receipt { incarnation, sequence, blocks, .. } = receipt;
                return Receipt::new(&ReceiptKey([7; 32]), incarnation, sequence, blocks);
            }
            Lie::OfAnotherLife => receipt.incarnation = Incarnation(receipt.incarnation.0 ^ 1),
            Lie::AnswersElse | Lie::NeverAnswers | Lie::NeverStores => {}
        }
        receipt
    }
}

impl Service for Liar {
    type Request = Asked<BenefactorRequest, Vec<Permit>>;
    type Reply = BenefactorReply;

    async fn handle(
        &self,
        _: Caller,
        Asked { request, .. }: Self::Request,
        payload: Buffer,
    ) -> Result<(BenefactorReply, Bytes), Failure> {
        let payload = Bytes::copy_from_slice(&payload);
        if self.lie == Lie::NeverStores && matches!(request, BenefactorRequest::Put { durable: true, .. }) {
            return std::future::pending().await;
        }
        let answer = self.behind.call::<_, BenefactorReply>(&request, payload, LIMIT).await;
        let (reply, bytes) =
            answer.map_err(|error| Failure::new(ErrorCode::Unavailable, error.to_string()))?;
        let reply = match reply {
            BenefactorReply::Synced(_) if self.lie == Lie::AnswersElse => {
                BenefactorReply::Stored { receipt: None, known: true }
            }
            BenefactorReply::Synced(_) if self.lie == Lie::NeverAnswers => std::future::pending().await,
            BenefactorReply::Synced(receipt) => BenefactorReply::Synced(self.receipt(receipt)),
            BenefactorReply::Stored { known, receipt: Some(receipt) }
                if matches!(self.lie, Lie::Forges | Lie::OfAnotherLife) =>
            {
                BenefactorReply::Stored { receipt: Some(self.receipt(receipt)), known }
            }
            BenefactorReply::Stored { known, .. } => BenefactorReply::Stored { receipt: None, known },
            other => other,
        };
        Ok((reply, Bytes::copy_from_slice(&bytes)))
    }
}

/// A liar takes the place of this benefactor.
async fn lie(pools: &TestPool, pool: &Pool, number: usize, lie: Lie) {
    let folder = pools.dir.path().join(format!("benefactor{number}"));
    let (socket, behind) = (folder.join("socket"), folder.join("behind"));
    std::fs::rename(&socket, &behind).unwrap();
    let buffers = BufferPool::new(64 << 20);
    let identity = Identity { role: Role::Client, pool: None, keys: None };
    let behind =
        Connection::open(Role::Benefactor, &unix_address(&behind), &identity, &buffers).await.unwrap();
    let listener = Listener::bind(&unix_address(&socket)).await.unwrap();
    let host = Host::new(Role::Benefactor, pool.id().unwrap(), None);
    tokio::spawn(serve(listener, host, Arc::new(Liar { behind, lie }), buffers, std::future::pending()));
}

/// Writes a file and commits it; how the commit ended.
async fn commit(pool: &Pool, ino: Ino, bytes: &[u8]) -> Result<(), Failure> {
    let session = pool.write(ino).await.unwrap();
    session.write_at(0, bytes).await.unwrap();
    let ended = tokio::time::timeout(GIVEN_UP, session.commit(0)).await;
    ended.unwrap_or_else(|_| panic!("the commit goes on for ever")).map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_ends_with_an_error_where_the_only_benefactor_does_not_vouch_for_blocks() {
    let one = async |of, why| {
        let pools = TestPool::start(1).await;
        let pool = pools.connect(8 << 20).await;
        let ino = file_with(&pool, &[("redundancy", "replicate:1")]).await;
        lie(&pools, &pool, 0, of).await;
        let failure = commit(&pool, ino, &Random::new(9).bytes(3 << 20)).await.unwrap_err();
        assert!(failure.message.contains(why), "{of:?}: {failure}");
        assert_eq!(pool.versions(ino).await.unwrap().len(), 0);
    };
    tokio::join!(
        one(Lie::LeavesOut, "receipts leave them out"),
        one(Lie::Forges, "receipts don't count"),
        one(Lie::AnswersElse, "can't make them durable"),
    );
}

/// Most of the benefactors lie; what the others take is enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_passes_over_benefactors_that_do_not_vouch_for_blocks() {
    let one = async |of| {
        let pools = TestPool::start(5).await;
        let pool = pools.connect(8 << 20).await;
        let ino = file_with(&pool, &[("redundancy", "replicate:2"), ("semantics", "pessimistic")]).await;
        for number in 0..3 {
            lie(&pools, &pool, number, of).await;
        }
        let bytes = Random::new(9).bytes(3 << 20);
        commit(&pool, ino, &bytes).await.unwrap_or_else(|failure| panic!("{of:?}: {failure}"));
        // The next one knows whom to leave.
        let began = Instant::now();
        commit(&pool, ino, &Random::new(10).bytes(3 << 20)).await.unwrap();
        assert!(began.elapsed() < SYNC_ELSEWHERE, "{of:?}: {:?}", began.elapsed());
    };
    tokio::join!(one(Lie::Forges), one(Lie::OfAnotherLife), one(Lie::AnswersElse), one(Lie::NeverAnswers));
}

/// Small files are durable with their only put: one that is never answered is made elsewhere, and its benefactor left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_files_do_not_wait_for_a_benefactor_that_never_answers_their_put() {
    let pools = TestPool::start(5).await;
    let pool = pools.connect(8 << 20).await;
    let ino = file_with(&pool, &[("redundancy", "replicate:2"), ("semantics", "pessimistic")]).await;
    for number in 0..3 {
        lie(&pools, &pool, number, Lie::NeverStores).await;
    }
    let mut took = Vec::new();
    for seed in 0..10 {
        let began = Instant::now();
        commit(&pool, ino, &Random::new(seed).bytes(20_000)).await.unwrap();
        took.push(began.elapsed());
    }
    let all: Duration = took.iter().sum();
    assert!(all < PUTS_ELSEWHERE, "{took:?}");
}
