//! What sessions promise: atomic commits of durable chunks (I1, I2), space that comes back, nothing lost in a restart.

use crate::harness::{CLIENT, GIB, Pool, chunk, make, map_of, rename, session};
use stdchk_model::limits::CLIENT_LEASE_MS;
use stdchk_model::message::manager::{
    BenefactorSecret, Change, FileKind, ManagerReply, ManagerRequest, StoredBlock, VersionState,
};
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, ChunkRef, Durability, ErrorCode, Incarnation, Ino, MapRoot, OpId,
    Redundancy,
};

const MIB: u64 = 1 << 20;
/// Less than the sixteenth of free space that a session may reserve.
const GRANT: u64 = 100 * MIB;

fn pool_with_file() -> (Pool, Ino, Ino) {
    let mut pool = Pool::with_benefactors(3);
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let file = pool.make(folder, "app.N0.T1", FileKind::File);
    (pool, folder, file)
}

#[test]
fn a_version_is_visible_only_once_its_chunks_are_at_a_benefactor() {
    let (mut pool, _, file) = pool_with_file();
    pool.open(1, file);
    let refused = pool.commit(1, &[1]).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unavailable, "{refused}");
    assert!(refused.message.contains(&chunk(1).to_string()), "{refused}");
    assert_eq!(pool.root(file, None), None);
    pool.secure(1, &[1], &[0]);
    assert_eq!(pool.commit(1, &[1]), Ok(1));
    assert!(pool.root(file, None).is_some());
}

#[test]
fn pessimistic_folders_demand_all_replicas_at_commit() {
    let (mut pool, folder, file) = pool_with_file();
    let pairs = vec![("semantics".to_owned(), "pessimistic".to_owned())];
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    pool.open(1, file);
    pool.secure(1, &[1], &[0]);
    assert_eq!(pool.commit(1, &[1]).unwrap_err().code, ErrorCode::Unavailable);
    pool.secure(1, &[1], &[2]);
    assert_eq!(pool.commit(1, &[1]), Ok(1));
}

#[test]
fn a_policy_that_asks_for_more_does_not_fail_those_who_write_by_the_one_of_before() {
    let (mut pool, folder, file) = pool_with_file();
    pool.open(1, file);
    pool.secure(1, &[1], &[0]);
    let pairs = vec![("semantics".to_owned(), "pessimistic".to_owned())];
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    assert_eq!(pool.commit(1, &[1]), Ok(1));
    assert_eq!(pool.status().chunks_at_risk, 1, "the other copies are made behind it");
    let other = pool.make(folder, "app.N1.T1", FileKind::File);
    pool.open(2, other);
    pool.secure(2, &[2], &[0]);
    assert_eq!(pool.commit(2, &[2]).unwrap_err().code, ErrorCode::Unavailable);
    // Nor does a restart of the manager: the client says by which it writes.
    pool.restart();
    pool.register(Some(0));
    let open = |distance| ManagerRequest::OpenSession {
        session: session(3),
        client: CLIENT,
        ino: other,
        durability: Some(Durability::on_disks(distance)),
    };
    assert_eq!(pool.ask(open(0)).unwrap_err().code, ErrorCode::Invalid);
    pool.ask(open(1)).unwrap();
    pool.secure(3, &[3], &[0]);
    assert_eq!(pool.commit(3, &[3]), Ok(1));
}

#[test]
fn a_session_builds_on_chunks_of_which_a_benefactor_said_that_they_are_durable() {
    let (mut pool, folder, file) = pool_with_file();
    let other = pool.make(folder, "app.N1.T1", FileKind::File);
    pool.open(1, file);
    pool.open(2, other);
    pool.known(1, 1);
    assert!(pool.known(2, 1).at.is_empty());
    assert_eq!(pool.commit(2, &[1]).unwrap_err().code, ErrorCode::Unavailable);
    pool.secure(1, &[1], &[0]);
    assert_eq!(pool.known(2, 1).at.len(), 1);
    assert_eq!(pool.commit(2, &[1]), Ok(1));
}

#[test]
fn what_a_session_stored_and_its_version_does_not_name_may_be_gone() {
    let (mut pool, _, file) = pool_with_file();
    pool.open(1, file);
    pool.secure(1, &[1, 3], &[0]);
    // Its place was written over before it was durable anywhere.
    pool.secure(1, &[2], &[]);
    let pieces = vec![ChunkRef { id: chunk(3), length: 1000 }];
    let root = MapRoot::Pieces { pieces, length: 1000 };
    assert_eq!(pool.commit_naming(1, root.clone(), 1000, &[1, 2]).unwrap_err().code, ErrorCode::Unavailable);
    assert_eq!(pool.commit_naming(1, root, 1000, &[1]), Ok(1));
}

#[test]
fn a_restarted_benefactor_takes_back_the_claims_of_its_last_life() {
    let (mut pool, _, file) = pool_with_file();
    pool.open(1, file);
    pool.secure(1, &[1], &[2]);
    pool.register_only(Some(2));
    assert_eq!(pool.commit(1, &[1]).unwrap_err().code, ErrorCode::Unavailable);
    pool.inventory(2, &[1]);
    assert_eq!(pool.commit(1, &[1]), Ok(1));
}

#[test]
fn what_a_writer_committed_before_its_file_was_replaced_ends_with_its_next_commit() {
    let (mut pool, folder, file) = pool_with_file();
    pool.open(1, file);
    pool.secure(1, &[1, 2], &[0]);
    pool.commit(1, &[1]).unwrap();
    let other = pool.make(folder, "new", FileKind::File);
    pool.change(rename(folder, "new", folder, "app.N0.T1")).unwrap();
    let states = |pool: &mut Pool| -> Vec<VersionState> {
        pool.versions(other).iter().map(|version| version.state).collect()
    };
    assert_eq!(
        states(&mut pool),
        [VersionState::Open, VersionState::Closed],
        "it is in the history of the name"
    );
    pool.commit(1, &[1, 2]).unwrap();
    assert_eq!(
        states(&mut pool),
        [VersionState::Interrupted, VersionState::Closed],
        "the rest went to a file without a name"
    );
    pool.close(1);
    assert_eq!(states(&mut pool), [VersionState::Interrupted, VersionState::Closed]);
}

#[test]
fn commits_of_one_session_replace_each_other_and_close_makes_them_final() {
    let (mut pool, _, file) = pool_with_file();
    pool.open(1, file);
    pool.secure(1, &[1, 2], &[0]);
    let first = pool.commit(1, &[1]).unwrap();
    let second = pool.commit(1, &[1, 2]).unwrap();
    assert_eq!(pool.commit(1, &[1, 2]), Ok(second), "a repeated commit is answered, not done again");
    assert!(second > first);
    let versions = pool.versions(file);
    assert_eq!(versions.iter().map(|version| version.version).collect::<Vec<_>>(), [second]);
    assert_eq!(versions[0].state, VersionState::Open);
    pool.close(1);
    assert_eq!(pool.versions(file)[0].state, VersionState::Closed);
    assert_eq!(pool.attr("app/app.N0.T1").unwrap().size, 2_000);
}

#[test]
fn acknowledged_commits_and_changes_survive_a_killed_manager() {
    let (mut pool, folder, file) = pool_with_file();
    pool.write(1, file, &[1, 2], &[0]);
    pool.open(2, file);
    pool.secure(2, &[3], &[0]);
    let pairs = vec![("redundancy".to_owned(), "replicate:3".to_owned())];
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
    let before = (pool.attr("app/app.N0.T1").unwrap(), pool.versions(file), pool.root(file, None));
    pool.restart();
    let after = (pool.attr("app/app.N0.T1").unwrap(), pool.versions(file), pool.root(file, None));
    assert_eq!(after, before);
    let ManagerReply::Policy(policy) = pool.ask(ManagerRequest::GetPolicy(file)).unwrap() else { panic!() };
    assert_eq!(policy.redundancy, Redundancy::Replicate(3));
    let new = pool.make(folder, "new", FileKind::File);
    assert!(new > file, "inode numbers are never used twice");
}

#[test]
fn a_change_repeated_after_a_restart_is_answered_as_the_first_time() {
    let (mut pool, folder, _) = pool_with_file();
    let id = OpId([5; 16]);
    let request = ManagerRequest::Change { id, change: make(folder, "once", FileKind::File) };
    let first = pool.ask(request.clone()).unwrap();
    assert_eq!(pool.ask(request.clone()), Ok(first.clone()));
    pool.restart();
    assert_eq!(pool.ask(request), Ok(first));
}

#[test]
fn sessions_of_a_silent_client_expire_and_their_space_comes_back() {
    let (mut pool, _, file) = pool_with_file();
    pool.open(1, file);
    let reserve = ManagerRequest::Reserve { session: session(1), bytes: GRANT, avoid: Vec::new() };
    pool.ask(reserve.clone()).unwrap();
    pool.secure(1, &[1], &[0]);
    assert_eq!(pool.status().space.reserved_bytes, GRANT - 1_000);
    pool.commit(1, &[1]).unwrap();
    assert_eq!(pool.status().space.reserved_bytes, 0, "a file may stay open for long behind its commit");
    pool.ask(reserve).unwrap();
    pool.pass_alive(60_000, &[0]);
    assert_eq!(pool.status().space.reserved_bytes, GRANT);
    assert_eq!(pool.status().sessions, 1, "signs of life keep a session");
    pool.pass(29_999);
    assert_eq!(pool.status().sessions, 1);
    pool.pass(1);
    assert_eq!((pool.status().sessions, pool.status().space.reserved_bytes), (0, 0));
    assert_eq!(pool.versions(file)[0].state, VersionState::Interrupted);
    assert_eq!(pool.commit(1, &[1]).unwrap_err().code, ErrorCode::Stale);
}

#[test]
fn sessions_may_come_back_after_a_restart_and_those_that_do_not_are_interrupted() {
    let (mut pool, folder, file) = pool_with_file();
    let lost = pool.make(folder, "app.N1.T1", FileKind::File);
    for (number, ino) in [(1, file), (2, lost)] {
        pool.open(number, ino);
        pool.secure(number, &[1], &[0]);
        pool.commit(number, &[1]).unwrap();
    }
    pool.restart();
    pool.open(1, file);
    pool.register_only(Some(0));
    pool.inventory(0, &[1]);
    for _ in 0..35 {
        pool.pass(1_000);
        pool.ask(ManagerRequest::KeepAlive(CLIENT)).unwrap();
    }
    pool.beat_as(0, Incarnation(4), &[], &[]).unwrap();
    pool.secure(1, &[2], &[0]);
    pool.commit(1, &[1, 2]).unwrap();
    pool.close(1);
    let states = |versions: Vec<stdchk_model::message::manager::VersionInfo>| {
        versions.iter().map(|version| version.state).collect::<Vec<_>>()
    };
    assert_eq!(states(pool.versions(file)), [VersionState::Closed], "its earlier commit was replaced");
    assert_eq!(states(pool.versions(lost)), [VersionState::Interrupted]);
}

#[test]
fn a_session_that_reserves_again_has_used_what_it_was_granted() {
    let (mut pool, folder, file) = pool_with_file();
    let other = pool.make(folder, "other", FileKind::File);
    pool.open(1, file);
    pool.open(2, other);
    let mut reserve = |number, bytes| {
        let request = ManagerRequest::Reserve { session: session(number), bytes, avoid: Vec::new() };
        let Ok(ManagerReply::Stripe { bytes: granted, .. }) = pool.ask(request) else { panic!("refused") };
        (granted, pool.status().space.reserved_bytes)
    };
    assert_eq!(reserve(2, GRANT), (GRANT, GRANT));
    // The first grants are at the benefactors by now, and lower what those report as free.
    for _ in 0..4 {
        assert_eq!(reserve(1, GRANT), (GRANT, 2 * GRANT));
    }
}

#[test]
fn reservations_never_exceed_the_free_space_and_leave_room_for_others() {
    let (mut pool, folder, file) = pool_with_file();
    let mut granted = 0;
    let refused = (1..=u8::MAX).find(|number| {
        let other = if *number == 1 { file } else { pool.make(folder, &number.to_string(), FileKind::File) };
        pool.open(*number, other);
        let request = ManagerRequest::Reserve { session: session(*number), bytes: GIB, avoid: Vec::new() };
        match pool.ask(request) {
            Ok(ManagerReply::Stripe { bytes, .. }) => {
                assert!(bytes <= ((3 * GIB - granted) / 16).max(MIB), "a sixteenth, or a chunk: {bytes}");
                granted += bytes;
                false
            }
            Err(failure) => {
                assert_eq!(failure.code, ErrorCode::NoSpace);
                assert!(failure.message.contains("of 3.00 GiB donated"), "{failure}");
                true
            }
            other => panic!("{other:?}"),
        }
    });
    assert!(refused.is_some_and(|number| number > 90), "{refused:?} sessions");
    assert_eq!(granted, 3 * GIB);
    pool.close(1);
    let request = ManagerRequest::Reserve { session: session(refused.unwrap()), bytes: 5, avoid: Vec::new() };
    assert!(pool.ask(request).is_ok(), "the space of a closed session can be reserved again");
}

#[test]
fn a_stripe_leaves_out_who_failed_and_who_is_silent() {
    let (mut pool, _, file) = pool_with_file();
    pool.open(1, file);
    let mut stripe = |avoid: &[u32]| {
        let avoid = avoid.iter().map(|number| BenefactorId(*number)).collect();
        pool.pass_alive(6_000, &[0, 1]);
        match pool.ask(ManagerRequest::Reserve { session: session(1), bytes: 1, avoid }) {
            Ok(ManagerReply::Stripe { benefactors, .. }) => {
                Ok(benefactors.iter().map(|info| info.id.0).collect::<Vec<_>>())
            }
            Ok(other) => panic!("{other:?}"),
            Err(failure) => Err(failure.code),
        }
    };
    assert_eq!(stripe(&[0]), Ok(vec![1]));
    assert_eq!(stripe(&[0, 1]), Err(ErrorCode::Unavailable));
}

#[test]
fn an_unlinked_file_stays_until_its_session_ends() {
    let (mut pool, folder, file) = pool_with_file();
    pool.write(1, file, &[1], &[0]);
    pool.open(2, file);
    pool.change(Change::Unlink { parent: folder, name: "app.N0.T1".to_owned() }).unwrap();
    assert_eq!(pool.attr("app/app.N0.T1").unwrap_err().code, ErrorCode::NotFound);
    assert!(pool.root(file, None).is_some());
    pool.restart();
    pool.open(2, file);
    assert!(pool.root(file, None).is_some(), "also over a restart");
    pool.close(2);
    // In the first lease after a start somebody may yet come back who had the file open.
    pool.pass_alive(CLIENT_LEASE_MS + 1_000, &[]);
    assert_eq!(pool.ask(ManagerRequest::GetAttr(file)).unwrap_err().code, ErrorCode::NotFound);
    assert_eq!((pool.status().versions, pool.status().logical_bytes), (0, 0));
    pool.restart();
    assert_eq!(pool.status().versions, 0);
}

#[test]
fn a_renamed_file_inherits_the_versions_of_the_one_it_replaces() {
    let (mut pool, folder, file) = pool_with_file();
    pool.write(1, file, &[1], &[0]);
    pool.write(2, file, &[2, 3], &[0]);
    let temporary = pool.make(folder, "tmp", FileKind::File);
    pool.write(3, temporary, &[4, 5, 6], &[0]);
    pool.change(rename(folder, "tmp", folder, "app.N0.T1")).unwrap();
    let sizes = |pool: &mut Pool| {
        let versions = pool.versions(temporary);
        versions.iter().map(|version| (version.version, version.size)).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&mut pool), [(1, 1_000), (2, 2_000), (3, 3_000)]);
    assert_eq!(pool.attr("app/app.N0.T1").unwrap().ino, temporary);
    pool.restart();
    assert_eq!(sizes(&mut pool), [(1, 1_000), (2, 2_000), (3, 3_000)]);
    pool.register_only(Some(0));
    pool.inventory(0, &[7]);
    assert_eq!(pool.write(4, temporary, &[7], &[0]), 4, "numbers keep rising");
}

#[test]
fn a_file_without_content_that_replaces_one_reads_as_empty() {
    let (mut pool, folder, file) = pool_with_file();
    pool.write(1, file, &[1], &[0]);
    pool.make(folder, "empty", FileKind::File);
    pool.change(rename(folder, "empty", folder, "app.N0.T1")).unwrap();
    let attr = pool.attr("app/app.N0.T1").unwrap();
    assert_eq!((attr.size, attr.version), (0, 2));
}

#[test]
fn commits_that_contradict_themselves_are_refused() {
    let (mut pool, _, file) = pool_with_file();
    pool.open(1, file);
    pool.secure(1, &[1], &[0]);
    let inline = |map: Vec<u8>| MapRoot::Inline { map };
    let good = map_of(&[chunk(1)]).encode();
    assert_eq!(pool.commit_root(1, inline(b"junk".to_vec()), 4).unwrap_err().code, ErrorCode::Invalid);
    assert_eq!(pool.commit_root(1, inline(good.clone()), 999).unwrap_err().code, ErrorCode::Invalid);
    assert_eq!(pool.commit_root(1, inline(vec![0; 600]), 1).unwrap_err().code, ErrorCode::TooLong);
    assert_eq!(pool.commit_root(1, inline(good), u64::MAX).unwrap_err().code, ErrorCode::TooLong);
    let pieces = vec![ChunkRef { id: chunk(1), length: 1_000 }];
    let pieces = MapRoot::Pieces { pieces, length: 999 };
    assert_eq!(pool.commit_root(1, pieces, 1).unwrap_err().code, ErrorCode::Invalid);
    assert!(pool.versions(file).is_empty());
}

#[test]
fn senseless_reports_are_refused_and_change_nothing() {
    let (mut pool, _, file) = pool_with_file();
    pool.open(1, file);
    let mut report = |at, plain_length| {
        let stored = StoredBlock { block: BlockId::plain(chunk(1)), plain_length, stored_length: 9 };
        let receipts = vec![pool.receipt_of(at, vec![stored])];
        pool.ask(ManagerRequest::Receipts { session: session(1), receipts }).unwrap_err().code
    };
    assert_eq!(report(99, 10), ErrorCode::Outdated);
    assert_eq!(report(0, 0), ErrorCode::Invalid);
    assert_eq!(report(0, u32::MAX), ErrorCode::Invalid);
    let many = vec![ChunkId([0; 32]); 65_537];
    assert_eq!(pool.ask(ManagerRequest::Locate { chunks: many }).unwrap_err().code, ErrorCode::TooLong);
    let life = Incarnation(1);
    assert_eq!(pool.inventory_as(44, life, &[1]).unwrap_err().code, ErrorCode::Stale);
    let request = pool.registration(Some(u32::MAX), life, None).introduced(&BenefactorSecret([1; 32]));
    assert_eq!(pool.ask(request).unwrap_err().code, ErrorCode::Invalid);
    assert!(pool.locate(1).is_empty());
}

#[test]
fn a_file_with_names_in_several_folders_wants_what_the_strictest_of_them_asks_for() {
    let (mut pool, folder, file) = pool_with_file();
    let strict = pool.make(Ino::ROOT, "strict", FileKind::Directory);
    for (ino, redundancy) in [(folder, "replicate:1"), (strict, "replicate:3")] {
        let pairs = vec![("redundancy".to_owned(), redundancy.to_owned())];
        pool.change(Change::SetPolicy { ino, pairs }).unwrap();
    }
    pool.write(1, file, &[1], &[0]);
    let wanted = |pool: &mut Pool| {
        pool.pass(1);
        let ManagerReply::Policy(policy) = pool.ask(ManagerRequest::GetPolicy(file)).unwrap() else {
            panic!()
        };
        (policy.redundancy.distance(), pool.status().chunks_at_risk)
    };
    assert_eq!(wanted(&mut pool), (1, 0));
    // In whatever order names come and go.
    for (parent, name) in [(strict, "z"), (strict, "a"), (folder, "b")] {
        pool.change(Change::Link { ino: file, parent, name: name.to_owned() }).unwrap();
        assert_eq!(wanted(&mut pool), (3, 1));
    }
    pool.restart();
    pool.register(Some(0));
    pool.inventory(0, &[1]);
    assert_eq!(wanted(&mut pool), (3, 0), "others may have it, too");
    (1..3).for_each(|number| assert_eq!(pool.register(Some(number)), BenefactorId(number)));
    assert_eq!(wanted(&mut pool), (3, 1), "also after a restart");
    for (parent, name, left) in [(folder, "app.N0.T1", 3), (strict, "a", 3), (strict, "z", 1)] {
        pool.change(Change::Unlink { parent, name: name.to_owned() }).unwrap();
        assert_eq!(wanted(&mut pool).0, left, "without {name}");
    }
    assert_eq!(wanted(&mut pool), (1, 0));
}

#[test]
fn a_policy_is_inherited_from_the_nearest_directory_that_sets_a_key() {
    let (mut pool, folder, _) = pool_with_file();
    let run = pool.make(folder, "run", FileKind::Directory);
    let deep = pool.make(run, "x", FileKind::File);
    set(&mut pool, folder, "redundancy", "replicate:3").unwrap();
    set(&mut pool, folder, "stripe", "4").unwrap();
    set(&mut pool, run, "redundancy", "replicate:1").unwrap();
    let policy = |pool: &mut Pool| match pool.ask(ManagerRequest::GetPolicy(deep)).unwrap() {
        ManagerReply::Policy(policy) => (policy.redundancy.distance(), policy.stripe),
        other => panic!("{other:?}"),
    };
    assert_eq!(policy(&mut pool), (1, 4));
    set(&mut pool, run, "redundancy", "").unwrap();
    assert_eq!(policy(&mut pool), (3, 4));
    for (key, value) in
        [("naming", "{when}"), ("cutter", "saw:1"), ("colour", "red"), ("redundancy", "replicate:0")]
    {
        assert_eq!(set(&mut pool, run, key, value).unwrap_err().code, ErrorCode::Invalid, "{key}");
    }
    assert_eq!(set(&mut pool, Ino::ROOT, "redundancy", "replicate:1").unwrap_err().code, ErrorCode::Invalid);
}

#[test]
fn the_times_of_versions_follow_the_calendar_also_when_it_is_set_back() {
    let (mut pool, _, file) = pool_with_file();
    let written = |pool: &mut Pool, number: u8| {
        pool.open(number, file);
        pool.secure(number, &[u32::from(number)], &[0]);
        pool.commit(number, &[u32::from(number)]).unwrap();
        pool.ask(ManagerRequest::CloseSession { session: session(number), interrupted: false }).unwrap();
    };
    let hour = 3_600_000_000_000;
    pool.now.wall += hour;
    written(&mut pool, 1);
    pool.now.wall -= hour;
    written(&mut pool, 2);
    pool.restart();
    pool.register(Some(0));
    written(&mut pool, 3);
    let times: Vec<_> = pool.versions(file).iter().map(|info| info.committed_at).collect();
    assert!(times[0] > hour && times[1] < hour && times[2] < hour, "{times:?}");
}

fn set(pool: &mut Pool, ino: Ino, key: &str, value: &str) -> Result<ManagerReply, stdchk_model::Failure> {
    let pairs = vec![(key.to_owned(), value.to_owned())];
    pool.change(Change::SetPolicy { ino, pairs })
}

/// A new file, with a version of one chunk if it has content.
fn stored(pool: &mut Pool, folder: Ino, name: &str, content: Option<u8>) -> Ino {
    let ino = pool.make(folder, name, FileKind::File);
    if let Some(content) = content {
        let (session, chunk) = (10 + content, u32::from(content));
        pool.open(session, ino);
        pool.secure(session, &[chunk], &[0]);
        pool.commit(session, &[chunk]).unwrap();
        pool.pass(1);
    }
    ino
}

fn similar(pool: &mut Pool, ino: Ino) -> Option<MapRoot> {
    match pool.ask(ManagerRequest::Similar(ino)).unwrap() {
        ManagerReply::Version { root, .. } => root,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_new_file_resembles_the_one_whose_name_differs_in_the_fewest_numbers() {
    let (mut pool, folder, _) = pool_with_file();
    let root = |pool: &mut Pool, ino| pool.root(ino, None);
    let of_other_rank = stored(&mut pool, folder, "run.N1.T1", Some(1));
    let first = stored(&mut pool, folder, "run.N0.T2", Some(2));
    let newest_of_other_rank = stored(&mut pool, folder, "run.N1.T3", Some(3));
    stored(&mut pool, folder, "other.N0.T9", Some(4));
    let new = stored(&mut pool, folder, "run.N0.T4", None);
    assert_eq!(similar(&mut pool, new), root(&mut pool, first), "same rank");
    let of_third = stored(&mut pool, folder, "run.N7.T9", None);
    assert_eq!(similar(&mut pool, of_third), root(&mut pool, newest_of_other_rank), "the newest");
    assert_eq!(similar(&mut pool, of_other_rank), root(&mut pool, newest_of_other_rank), "never itself");
    let alone = stored(&mut pool, folder, "notes", Some(5));
    assert_eq!(similar(&mut pool, alone), None);
    // Where every timestep has a folder.
    let (one, two) =
        (pool.make(folder, "DD0001", FileKind::Directory), pool.make(folder, "DD0002", FileKind::Directory));
    let before = stored(&mut pool, one, "data.cpu3", Some(6));
    stored(&mut pool, one, "data.cpu4", Some(7));
    let after = stored(&mut pool, two, "data.cpu3", None);
    assert_eq!(similar(&mut pool, after), root(&mut pool, before));
}

#[test]
fn a_new_file_resembles_that_of_its_rank_and_not_that_of_another_rank_which_was_just_written() {
    let (mut pool, folder, _) = pool_with_file();
    stored(&mut pool, folder, "run.N0.T1", Some(5));
    let of_rank = stored(&mut pool, folder, "run.N1.T1", Some(1));
    stored(&mut pool, folder, "run.N0.T2", Some(2));
    let new = stored(&mut pool, folder, "run.N1.T2", None);
    assert_eq!(similar(&mut pool, new), pool.root(of_rank, None));
    // The same where timestep and rank stand in another order, and in the names of folders.
    set(&mut pool, folder, "naming", "DD{step}/data{step}.cpu{rank}").unwrap();
    let [one, two] = ["DD0001", "DD0002"].map(|name| pool.make(folder, name, FileKind::Directory));
    let before = stored(&mut pool, one, "data0001.cpu1", Some(3));
    stored(&mut pool, two, "data0002.cpu0", Some(4));
    let new = stored(&mut pool, two, "data0002.cpu1", None);
    assert_eq!(similar(&mut pool, new), pool.root(before, None));
}

fn closing(pool: &mut Pool, number: u8, size: u64) {
    assert_eq!(
        pool.ask(ManagerRequest::Closing { session: session(number), size, changes: 1 }),
        Ok(ManagerReply::Done)
    );
}

fn states(pool: &mut Pool, file: Ino) -> Vec<(u64, u64, VersionState)> {
    pool.versions(file).iter().map(|info| (info.version, info.size, info.state)).collect()
}

#[test]
fn what_comes_after_all_is_no_longer_on_record_as_lost() {
    let (mut pool, _, file) = pool_with_file();
    pool.open(1, file);
    for _ in 0..2 {
        closing(&mut pool, 1, 77);
        pool.pass(31_000);
        assert_eq!(states(&mut pool, file).last().unwrap().2, VersionState::Lost);
        for number in 0..3 {
            pool.register(Some(number));
        }
        pool.open(1, file);
    }
    assert_eq!(pool.status().versions_lost, 2);
    pool.secure(1, &[1], &[0]);
    pool.commit(1, &[1]).unwrap();
    assert_eq!(pool.status().versions_lost, 0);
    assert_eq!(states(&mut pool, file).len(), 1);
}

#[test]
fn what_was_closed_early_and_never_committed_stays_on_record_and_readers_pass_it_over() {
    let (mut pool, _, file) = pool_with_file();
    pool.write(1, file, &[1], &[0]);
    for (number, ends) in [(2, true), (3, false)] {
        pool.open(number, file);
        closing(&mut pool, number, 77);
        match ends {
            true => pool.interrupt(number),
            // Its mount falls silent.
            false => pool.pass(31_000),
        }
    }
    let recorded = [
        (1, map_of(&[chunk(1)]).size(), VersionState::Closed),
        (2, 77, VersionState::Lost),
        (3, 77, VersionState::Lost),
    ];
    assert_eq!((states(&mut pool, file), pool.status().versions_lost), (recorded.to_vec(), 2));
    pool.restart();
    assert_eq!((states(&mut pool, file), pool.status().versions_lost), (recorded.to_vec(), 2));
    assert_eq!(pool.root(file, None), pool.root(file, Some(1)));
    let refused =
        pool.ask(ManagerRequest::OpenVersion { ino: file, version: Some(3), client: None }).unwrap_err();
    assert!(refused.code == ErrorCode::NotFound && refused.message.contains("closed early"), "{refused}");
    assert!(pool.change(Change::DropVersion { ino: file, version: 1 }).is_err(), "the only one with content");
    for version in [2, 3] {
        pool.change(Change::DropVersion { ino: file, version }).unwrap();
    }
    assert_eq!((states(&mut pool, file).len(), pool.status().versions_lost), (1, 0));
}

#[test]
fn a_commit_after_an_early_close_leaves_no_loss_and_a_further_close_counts_anew() {
    let (mut pool, _, file) = pool_with_file();
    pool.open(1, file);
    closing(&mut pool, 1, 5);
    pool.secure(1, &[1], &[0]);
    pool.commit(1, &[1]).unwrap();
    pool.close(1);
    assert_eq!(pool.status().versions_lost, 0);
    pool.open(2, file);
    pool.secure(2, &[2], &[0]);
    pool.commit(2, &[2]).unwrap();
    // More was written since.
    pool.ask(ManagerRequest::Closing { session: session(2), size: 6, changes: 2 }).unwrap();
    pool.interrupt(2);
    assert_eq!(pool.status().versions_lost, 1);
}

#[test]
fn a_word_of_an_early_close_that_comes_again_after_the_commit_leaves_no_loss() {
    let (mut pool, _, file) = pool_with_file();
    pool.open(1, file);
    closing(&mut pool, 1, 5);
    pool.secure(1, &[1], &[0]);
    pool.commit(1, &[1]).unwrap();
    // Its first answer was lost; then the mount falls silent.
    closing(&mut pool, 1, 5);
    pool.interrupt(1);
    assert_eq!(pool.status().versions_lost, 0);
}

#[test]
fn a_close_of_which_the_manager_hears_after_the_commit_leaves_no_loss() {
    let (mut pool, _, file) = pool_with_file();
    pool.open(1, file);
    // Two descriptors are closed at the same time; the commit after the first word takes in all that was written.
    closing(&mut pool, 1, 1000);
    pool.secure(1, &[1], &[0]);
    pool.commit(1, &[1]).unwrap();
    closing(&mut pool, 1, 1000);
    pool.close(1);
    assert_eq!(pool.status().versions_lost, 0);
    assert_eq!(states(&mut pool, file), [(1, 1000, VersionState::Closed)]);
}

#[test]
fn a_lost_file_that_is_renamed_onto_another_is_empty_and_does_not_show_what_it_replaced() {
    let (mut pool, folder, file) = pool_with_file();
    pool.write(1, file, &[1], &[0]);
    let other = pool.make(folder, "tmp", FileKind::File);
    pool.open(2, other);
    closing(&mut pool, 2, 77);
    pool.interrupt(2);
    pool.change(rename(folder, "tmp", folder, "app.N0.T1")).unwrap();
    assert_eq!(
        states(&mut pool, other).last().map(|(_, size, state)| (*size, *state)),
        Some((0, VersionState::Closed))
    );
}

#[test]
fn a_commit_that_is_the_last_one_finishes_its_version_in_the_same_step() {
    let (mut pool, _, file) = pool_with_file();
    pool.open(1, file);
    pool.secure(1, &[1], &[0]);
    let map = map_of(&[chunk(1)]);
    let commit = ManagerRequest::Commit {
        session: session(1),
        root: MapRoot::Inline { map: map.encode() },
        size: map.size(),
        mtime: 5,
        stored_bytes: 0,
        named: Vec::new(),
        named_before: 0,
        state: VersionState::Closed,
        hole_bytes: 0,
        receipts: Vec::new(),
        key: None,
        changes: 1,
    };
    let first = pool.ask(commit.clone()).unwrap();
    assert_eq!(pool.ask(commit).unwrap(), first, "its answer was lost");
    pool.pass(31_000);
    assert_eq!(states(&mut pool, file), [(1, map.size(), VersionState::Closed)]);
}

#[test]
fn a_commit_whose_answer_was_lost_is_done_once_though_others_have_committed_since() {
    for state in [VersionState::Open, VersionState::Closed] {
        let (mut pool, _, file) = pool_with_file();
        let commit = |pool: &mut Pool, number: u8| {
            let map = map_of(&[chunk(u32::from(number))]);
            let request = ManagerRequest::Commit {
                session: session(number),
                root: MapRoot::Inline { map: map.encode() },
                size: map.size(),
                mtime: 5,
                stored_bytes: 0,
                named: Vec::new(),
                named_before: 0,
                state,
                hole_bytes: 0,
                receipts: Vec::new(),
                key: None,
                changes: 1,
            };
            match pool.ask(request).unwrap() {
                ManagerReply::Version { info: Some(info), .. } => info.version,
                other => panic!("{other:?}"),
            }
        };
        for number in [1, 2] {
            pool.open(number, file);
            pool.secure(number, &[u32::from(number)], &[0]);
        }
        assert_eq!((commit(&mut pool, 1), commit(&mut pool, 2)), (1, 2));
        let again = commit(&mut pool, 1);
        let numbers: Vec<u64> = pool.versions(file).iter().map(|info| info.version).collect();
        let expected = match state {
            // It may be meant to be the newest one.
            VersionState::Open => (3, vec![2, 3]),
            _ => (1, vec![1, 2]),
        };
        assert_eq!((again, numbers), expected, "each session leaves one version");
    }
}

#[test]
fn a_commit_that_began_before_the_file_was_closed_early_does_not_clear_the_record() {
    let (mut pool, _, file) = pool_with_file();
    for (number, commit_has, lost) in [(1, 1, 1), (2, 2, 1)] {
        pool.open(number, file);
        let closed = ManagerRequest::Closing { session: session(number), size: 77, changes: 2 };
        assert_eq!(pool.ask(closed), Ok(ManagerReply::Done));
        pool.secure(number, &[1], &[0]);
        pool.changes = commit_has;
        pool.commit(number, &[1]).unwrap();
        pool.interrupt(number);
        assert_eq!(pool.status().versions_lost, lost, "the commit has {commit_has} changes of 2");
    }
}

#[test]
fn a_commit_that_arrives_after_a_later_one_of_its_session_is_refused() {
    let mut pool = Pool::with_benefactors(1);
    let ino = pool.make(Ino::ROOT, "file", FileKind::File);
    pool.open(1, ino);
    pool.secure(1, &[1, 2], &[0]);
    pool.changes = 7;
    pool.commit(1, &[1]).unwrap();
    pool.changes = 8;
    let newest = pool.commit(1, &[2]).unwrap();
    pool.secure(1, &[1], &[0]);
    pool.changes = 7;
    let refused = pool.commit(1, &[1]).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Invalid, "{refused}");
    assert_eq!(pool.attr("file").unwrap().version, newest);
}
