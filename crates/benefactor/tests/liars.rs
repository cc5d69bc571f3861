//! Callers that say anything: every field of every message absurd, another's or huge. What others have put stays, and is served.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests need more of it")]
mod common;
#[path = "../../tests/src/lies.rs"]
mod lies;

use common::*;
use lies::{Item, at, places, vectors, write};
use stdchk_model::cbor;
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest, BlockState};
use stdchk_net::{Bytes, CallError};

fn decoded(item: &Item) -> Option<BenefactorRequest> {
    let mut bytes = Vec::new();
    write(item, &mut bytes);
    cbor::decode(&bytes).ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_lie_in_any_field_of_any_message_changes_what_others_have_put() {
    let (place, manager) = (tempfile::tempdir().unwrap(), Manager::start().await);
    let running = Running::start(config(place.path(), &manager.address())).await;
    let content = bytes(1, 100_000);
    let (block, encoding) = whole(&content);
    put(&running.connection, &content).await.unwrap();
    sync(&running.connection, &[block]).await;
    let known = [block.chunk.0.to_vec(), encoding.block(block.chunk, 0).encoding.tag.to_vec()];
    let mut told = 0;
    for request in vectors("BenefactorRequest") {
        assert!(decoded(&request).is_some(), "{request:?}");
        for place in places(&request) {
            for lie in lies::lies(at(&mut request.clone(), &place), &known) {
                let mut item = request.clone();
                *at(&mut item, &place) = lie;
                let Some(lie) = decoded(&item) else { continue };
                let payload = match lie {
                    BenefactorRequest::Put { .. } | BenefactorRequest::PutNear { .. } => vec![7; 1_000],
                    _ => Vec::new(),
                };
                let answer =
                    running.connection.call::<_, BenefactorReply>(&lie, Bytes::from(payload), LIMIT).await;
                assert!(matches!(answer, Ok(_) | Err(CallError::Refused(_))), "{lie:?}: {answer:?}");
                told += 1;
            }
        }
        assert!(get(&running.connection, block).await.unwrap()[..] == content[..], "{request:?}");
    }
    assert!(told > 300, "{told} lies could be told");
    let verify = BenefactorRequest::Verify { blocks: vec![block] };
    let answer = running.connection.call::<_, BenefactorReply>(&verify, Bytes::new(), LIMIT).await;
    let (answer, _) = answer.unwrap();
    assert_eq!(answer, BenefactorReply::Verified { states: vec![BlockState::Intact] });
    running.stop().await;
    let running = Running::start(config(place.path(), &manager.address())).await;
    assert!(get(&running.connection, block).await.unwrap()[..] == content[..], "after a start");
    running.stop().await;
}
