//! Benefactors that take blocks and don't say that they have them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Random, TestPool, file_with};
use stdchk_model::ErrorCode;
use stdchk_model::message::Asked;
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest};
use stdchk_model::message::handshake::Role;
use stdchk_model::{Failure, Permit};
use stdchk_net::server::Host;
use stdchk_net::transport::unix_address;
use stdchk_net::{Buffer, BufferPool, Bytes, Caller, Connection, Identity, Listener, Service, serve};

/// How long a request to the benefactor may take.
const LIMIT: Duration = Duration::from_secs(20);
/// A commit must have given up by then.
const GIVEN_UP: Duration = Duration::from_secs(90);

/// Stands in front of a benefactor, and leaves all blocks out of its receipts.
struct Forgetful {
    behind: Connection,
}

impl Service for Forgetful {
    type Request = Asked<BenefactorRequest, Vec<Permit>>;
    type Reply = BenefactorReply;

    async fn handle(
        &self,
        _: Caller,
        Asked { request, .. }: Self::Request,
        payload: Buffer,
    ) -> Result<(BenefactorReply, Bytes), Failure> {
        let payload = Bytes::copy_from_slice(&payload);
        let answer = self.behind.call::<_, BenefactorReply>(&request, payload, LIMIT).await;
        let (reply, bytes) =
            answer.map_err(|error| Failure::new(ErrorCode::Unavailable, error.to_string()))?;
        let reply = match reply {
            BenefactorReply::Synced(mut receipt) => {
                receipt.blocks.clear();
                BenefactorReply::Synced(receipt)
            }
            BenefactorReply::Stored { known, .. } => BenefactorReply::Stored { receipt: None, known },
            other => other,
        };
        Ok((reply, Bytes::copy_from_slice(&bytes)))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_ends_with_an_error_where_the_only_benefactor_leaves_blocks_out_of_its_receipts() {
    let pools = TestPool::start(1).await;
    let pool = pools.connect(8 << 20).await;
    let ino = file_with(&pool, &[("redundancy", "replicate:1")]).await;
    let (socket, behind) =
        (pools.dir.path().join("benefactor0/socket"), pools.dir.path().join("benefactor0/behind"));
    std::fs::rename(&socket, &behind).unwrap();
    let buffers = BufferPool::new(64 << 20);
    let identity = Identity { role: Role::Client, pool: None, keys: None };
    let behind =
        Connection::open(Role::Benefactor, &unix_address(&behind), &identity, &buffers).await.unwrap();
    let listener = Listener::bind(&unix_address(&socket)).await.unwrap();
    let host = Host::new(Role::Benefactor, pool.id().unwrap(), None);
    let forgetful = Arc::new(Forgetful { behind });
    tokio::spawn(serve(listener, host, forgetful, buffers, std::future::pending()));

    let session = pool.write(ino).await.unwrap();
    session.write_at(0, &Random::new(9).bytes(3 << 20)).await.unwrap();
    let began = Instant::now();
    let ended = tokio::time::timeout(GIVEN_UP, session.commit(0)).await;
    let failure = ended.unwrap_or_else(|_| panic!("the commit goes on for ever")).unwrap_err();
    assert!(failure.message.contains("receipts leave them out"), "{failure} after {:?}", began.elapsed());
    assert_eq!(pool.versions(ino).await.unwrap().len(), 0);
}
