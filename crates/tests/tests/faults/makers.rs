//! Users who share a pool and don't trust each other: fragments that one of them made up, of what another one is about to write.

use std::fs;
use std::time::Duration;

use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest};
use stdchk_model::message::handshake::Role;
use stdchk_model::{ChunkId, Code, Encoding, ErrorCode, Maker};
use stdchk_net::{Bytes, CallError};
use stdchk_tests::{random_bytes, wait_until};
use tokio::runtime::Runtime;

use crate::permissions::Hosts;

const ALICE: u32 = 4001;
const MALLORY: u32 = 4003;
const CAROL: u32 = 4004;
const LIMIT: Duration = Duration::from_secs(60);

/// An encoding of the chunk in fragments that have their hashes and make something else.
fn made_up(chunk: ChunkId, length: u32, maker: Maker) -> (Encoding, Vec<Vec<u8>>) {
    let code = Code::erasure(2, 1).unwrap();
    let fragments: Vec<Vec<u8>> = (0..3).map(|byte| vec![70 + byte; length.div_ceil(2) as usize]).collect();
    let hashes = fragments.iter().map(|fragment| ChunkId::of(fragment)).collect();
    (Encoding { code, hashes, maker, ..Encoding::copy(length, 0, length, chunk) }, fragments)
}

fn stored_bytes(hosts: &Hosts) -> u64 {
    hosts.ok("manager", &["status", "--json"]).json()["savings"]["stored_bytes"].as_u64().unwrap()
}

#[test]
fn what_one_user_makes_up_another_one_s_write_does_not_rest_on() {
    let hosts = Hosts::with_benefactors(3);
    for (host, user) in [("alice", ALICE), ("mallory", MALLORY), ("carol", CAROL)] {
        hosts.join(host, Some(user));
        hosts.ok("manager", &["mkdir", host, "--owner", &format!("{user}:{user}")]);
        let coded = ["redundancy=erasure:2,1", "semantics=pessimistic", "codec=store"];
        hosts.ok("manager", &[&["policy", "set", host][..], &coded].concat());
    }
    let content = random_bytes(200_000, 1);
    let (chunk, length) = (ChunkId::of(&content), 200_000);
    let keys = hosts.keys("mallory");
    let own = keys.member().maker();
    assert_ne!(own, hosts.keys("alice").member().maker());
    let status = hosts.ok("manager", &["status", "--json"]).json();
    let addresses: Vec<String> =
        (0..3).map(|at| status["benefactors"][at]["address"].as_str().unwrap().to_owned()).collect();
    Runtime::new().unwrap().block_on(async {
        for (index, address) in (0u8..).zip(&addresses) {
            let benefactor = hosts.connect(Role::Benefactor, address, Role::Client, keys.clone()).await;
            for maker in [hosts.keys("alice").member().maker(), Maker::LOCAL, own] {
                let (encoding, fragments) = made_up(chunk, length, maker);
                let block = encoding.block(chunk, index);
                let put = BenefactorRequest::Put { block, encoding, durable: true, insists: true };
                let stored = Bytes::from(fragments[usize::from(index)].clone());
                let answer = benefactor.call::<_, BenefactorReply>(&put, stored, LIMIT).await;
                match answer {
                    Ok(_) => assert_eq!(maker, own, "fragments in the name of another one"),
                    Err(CallError::Refused(failure)) => {
                        assert_eq!(failure.code, ErrorCode::Denied, "{failure}");
                        assert_ne!(maker, own);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
    wait_until("the manager knows what was made up", || stored_bytes(&hosts) >= 300_000);
    let file = hosts.path("alice", "x");
    fs::write(&file, &content).unwrap();
    let file = file.to_str().unwrap();
    hosts.ok("alice", &["put", file, "alice/x"]);
    for host in ["alice", "carol"] {
        assert!(hosts.ok(host, &["get", "alice/x", "-o", "-"]).stdout == content, "{host}");
    }
    wait_until("the manager knows her fragments", || stored_bytes(&hosts) >= 600_000);
    // Of who would have made the same nothing is stored.
    let before = stored_bytes(&hosts);
    hosts.ok("carol", &["put", file, "carol/y"]);
    assert!(hosts.ok("carol", &["get", "carol/y", "-o", "-"]).stdout == content);
    assert_eq!(stored_bytes(&hosts), before);
}
