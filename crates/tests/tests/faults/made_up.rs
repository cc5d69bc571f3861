//! Fragments that match their names and don't make their chunk: an adversary with a certificate of its own stores them beside somebody's copies,
//! or a writer whose memory fails stores them as its own. Real processes, over the network of this machine.

use std::fs;
use std::sync::Arc;

use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest};
use stdchk_model::message::handshake::Role;
use stdchk_model::message::manager::{ManagerReply, ManagerRequest, VersionState};
use stdchk_model::{
    BenefactorId, ChunkId, ChunkMap, ChunkRef, ClientId, Code, Encoding, Extent, MapRoot, Receipt, SessionId,
    Source,
};
use stdchk_net::{Bytes, Connection};
use stdchk_tests::{has_all_copies, random_bytes, wait_until};
use tokio::runtime::Runtime;

use crate::permissions::{ALICE, BOB, Hosts, LIMIT, ask};

/// A pool of five benefactors whose collection is quick, with folders of alice's, and hosts of alice and bob.
fn pool(policy: &str) -> Hosts {
    let hosts = Hosts::start_with(5, &[("STDCHK_GARBAGE_AGE_MS", "20000")]);
    hosts.join("alice", Some(ALICE));
    hosts.join("bob", Some(BOB));
    hosts.ok("manager", &["mkdir", "alice", "--owner", &format!("{ALICE}:{ALICE}"), "--mode", "700"]);
    hosts.ok("alice", &["policy", "set", "alice", policy, "ranks=1"]);
    hosts
}

fn put(hosts: &Hosts, content: &[u8], name: &str) {
    let file = hosts.path("alice", "content");
    fs::write(&file, content).unwrap();
    hosts.ok("alice", &["put", file.to_str().unwrap(), name]);
}

/// Puts fragments of bytes that have nothing to do with the content at three benefactors, under the name of its chunk.
async fn make_up(hosts: &Hosts, host: &str, content: &[u8]) -> (Encoding, Vec<(BenefactorId, Receipt)>) {
    let keys = hosts.keys(host);
    let length = u32::try_from(content.len()).unwrap();
    let (chunk, half) = (ChunkId::of(content), content.len().div_ceil(2));
    let made_up: Vec<Vec<u8>> = (0..3).map(|seed| random_bytes(half, 900 + seed)).collect();
    let hashes = made_up.iter().map(|bytes| ChunkId::of(bytes)).collect();
    let (code, maker) = (Code::erasure(2, 1).unwrap(), keys.member().maker());
    let plain = Encoding::plain(ChunkRef { id: chunk, length });
    let encoding = Encoding { code, hashes, maker, ..plain };
    let manager = hosts.connect(Role::Manager, &hosts.address, Role::Client, Arc::clone(&keys)).await;
    let Ok(ManagerReply::Benefactors(infos)) = ask(&manager, ManagerRequest::Benefactors, None).await else {
        panic!("the manager names no benefactors")
    };
    let mut receipts = Vec::new();
    for ((index, bytes), info) in (0u8..).zip(made_up).zip(&infos) {
        let (block, durable, insists) = (encoding.block(chunk, index), true, true);
        let request = BenefactorRequest::Put { block, encoding: encoding.clone(), durable, insists };
        let at = hosts.connect(Role::Benefactor, &info.address, Role::Client, Arc::clone(&keys)).await;
        match at.call(&request, Bytes::from(bytes), LIMIT).await.unwrap().0 {
            BenefactorReply::Stored { receipt: Some(receipt), .. } => receipts.push((info.id, receipt)),
            other => panic!("{other:?}"),
        }
    }
    (encoding, receipts)
}

/// How many benefactors have copies of a chunk, and how many have fragments.
async fn holders(manager: &Connection, content: &[u8]) -> (usize, usize) {
    let request = ManagerRequest::Locate { chunks: vec![ChunkId::of(content)] };
    match ask(manager, request, None).await {
        Ok(ManagerReply::Locations(found)) => {
            let copies = found[0].at.iter().filter(|location| location.encoding.code.is_copy()).count();
            (copies, found[0].at.len() - copies)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn made_up_fragments_beside_copies_are_found_out_and_go_and_who_stored_them_is_named() {
    let (hosts, content) = (pool("redundancy=replicate:2"), random_bytes(500_000, 1));
    put(&hosts, &content, "alice/x.N0.T1");
    wait_until("there are two copies", || has_all_copies(&hosts.ok("manager", &["status", "--json"]).json()));
    Runtime::new().unwrap().block_on(async {
        make_up(&hosts, "bob", &content).await;
        let keys = hosts.keys("bob");
        let manager = hosts.connect(Role::Manager, &hosts.address, Role::Client, keys).await;
        while holders(&manager, &content).await.1 < 3 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    // Whoever verifies finds it out at once, and nothing is lost.
    let verified = hosts.run("alice", &["verify", "alice", "--json"]);
    let found = verified.json();
    assert!(verified.code == 3 && found["broken_chunks"] == 1, "{verified:?}");
    assert_eq!(found["bad"][0]["path"], "alice/x.N0.T1", "{found}");
    let maker = hosts.keys("bob").member().maker().to_string();
    assert_eq!(found["makers"][maker.as_str()], 1, "{found}");
    assert!(hosts.ok("alice", &["get", "alice/x.N0.T1", "-o", "-"]).stdout == content);
    wait_until("the fragments are found out and gone", || {
        let status = hosts.ok("manager", &["status", "--json"]).json();
        let named = &status["broken_encodings"];
        let is_named =
            named[0]["uid"] == BOB && named[0]["maker"] == maker.as_str() && named[0]["encodings"] == 1;
        let gone = Runtime::new().unwrap().block_on(async {
            let manager = hosts.connect(Role::Manager, &hosts.address, Role::Client, hosts.keys("bob")).await;
            let (copies, fragments) = holders(&manager, &content).await;
            assert!(copies >= 2, "a genuine copy went");
            fragments == 0
        });
        is_named && gone
    });
    assert!(hosts.run("manager", &["status"]).text().contains(&format!("user {BOB}")));
    let verified = hosts.ok("alice", &["verify", "alice"]);
    assert!(verified.text().contains("all intact"), "{verified:?}");
    assert!(hosts.ok("alice", &["get", "alice/x.N0.T1", "-o", "-"]).stdout == content);
}

/// What a client whose memory fails between naming and coding does: it stores fragments that it made, and they aren't its chunk's.
async fn write_broken(hosts: &Hosts, content: &[u8]) {
    let (encoding, receipts) = make_up(hosts, "alice", content).await;
    let keys = hosts.keys("alice");
    assert_eq!(encoding.maker, keys.member().maker());
    let manager = hosts.connect(Role::Manager, &hosts.address, Role::Client, keys).await;
    let ask = async |request| ask(&manager, request, None).await.unwrap();
    let ManagerReply::Entry(folder) = ask(ManagerRequest::Resolve { path: "alice".to_owned() }).await else {
        panic!("alice has no folder")
    };
    let session = SessionId([3; 16]);
    ask(ManagerRequest::Create {
        session,
        client: ClientId([4; 16]),
        parent: folder.ino,
        name: "y.N0.T2".to_owned(),
        mode: 0o644,
        uid: ALICE,
        gid: ALICE,
        exclusive: false,
        again: None,
        durability: None,
    })
    .await;
    let chunk = ChunkRef { id: ChunkId::of(content), length: u32::try_from(content.len()).unwrap() };
    let size = u64::from(chunk.length);
    let extent = Extent { length: size, source: Source::Chunk { index: 0, offset: 0 } };
    let map = ChunkMap::new(vec![chunk], [extent]).unwrap();
    ask(ManagerRequest::Commit {
        session,
        root: MapRoot::Inline { map: map.encode() },
        size,
        mtime: 5,
        stored_bytes: size,
        named: Vec::new(),
        named_before: 0,
        state: VersionState::Closed,
        hole_bytes: 0,
        receipts,
        key: None,
        changes: 0,
    })
    .await;
}

#[test]
fn what_only_a_broken_encoding_has_is_told_as_lost_by_all_who_look() {
    let (hosts, content) = (pool("redundancy=erasure:2,1"), random_bytes(500_000, 3));
    put(&hosts, &random_bytes(500_000, 4), "alice/y.N0.T1");
    Runtime::new().unwrap().block_on(write_broken(&hosts, &content));
    let maker = hosts.keys("alice").member().maker().to_string();
    let got = hosts.run("alice", &["get", "alice/y.N0.T2", "-o", "-"]);
    assert!(got.code == 7 && got.stderr.contains(&maker), "{got:?}");
    let stat = hosts.run("alice", &["stat", "alice/y.N0.T2"]);
    assert!(stat.code == 7 && stat.stderr.contains(&maker), "{stat:?}");
    let verified = hosts.run("alice", &["verify", "alice", "--json"]);
    assert!(verified.code == 7 && verified.json()["lost_chunks"] == 1, "{verified:?}");
    // The reader's word had benefactors look, and the manager knows by now.
    wait_until("the manager knows", || {
        let status = hosts.ok("manager", &["status", "--json"]).json();
        status["chunks_lost"] == 1 && status["broken_encodings"][0]["uid"] == ALICE
    });
    let latest = hosts.ok("alice", &["latest", "alice", "--json"]).json();
    assert!(latest["timestep"] == 1 && latest["passed_over"][0]["timestep"] == 2, "{latest}");
}
