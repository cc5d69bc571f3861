//! Sets that move into containers: all members in one step or none, never while that could lose something, and a container
//! lives as long as a member lies in it (I2, I4).

use crate::harness::{CLIENT, Pool, chunk, map_of, session};
use stdchk_model::message::manager::{
    Change, CheckpointSet, FileKind, ManagerReply, ManagerRequest, PackedMembers, SetState, VersionInfo,
};
use stdchk_model::{ErrorCode, Failure, Ino, KeyId, MapRoot};

/// The session that writes the container.
const PACKER: u8 = 50;
/// Chunks of the container.
const PACKED: [u32; 2] = [101, 102];

/// A folder of two ranks with the set of timestep 1: chunks 1 and 2.
struct Packed {
    pool: Pool,
    folder: Ino,
    files: [Ino; 2],
}

impl Packed {
    fn new() -> Self {
        let mut pool = Pool::with_benefactors(3);
        let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
        let pairs = vec![("ranks".to_owned(), "2".to_owned())];
        pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
        let files = ["app.N0.T1", "app.N1.T1"].map(|name| pool.make(folder, name, FileKind::File));
        pool.write(1, files[0], &[1], &[0, 1]);
        pool.write(2, files[1], &[2, 3], &[0, 1]);
        Self { pool, folder, files }
    }

    /// With a container of the set that is committed.
    fn with_container() -> Self {
        let mut packed = Self::new();
        packed.open_container().unwrap();
        packed.pool.secure(PACKER, &PACKED, &[1, 2]);
        packed.pool.commit(PACKER, &PACKED).unwrap();
        packed
    }

    fn aggregated() -> Self {
        let mut packed = Self::with_container();
        assert_eq!(packed.swap(), Ok(ManagerReply::Done));
        packed.pool.close(PACKER);
        packed
    }

    fn open_container(&mut self) -> Result<Ino, Failure> {
        let (session, client, folder) = (session(PACKER), CLIENT, self.folder);
        match self.pool.ask(ManagerRequest::OpenContainer { session, client, folder })? {
            ManagerReply::Session { attr, .. } => Ok(attr.ino),
            other => panic!("{other:?}"),
        }
    }

    fn swap_as(&mut self, members: Vec<(Ino, u64)>) -> Result<ManagerReply, Failure> {
        let containers = vec![PackedMembers { session: session(PACKER), members }];
        let folder = self.folder;
        self.pool.ask(ManagerRequest::Aggregate { folder, timestep: 1.into(), containers })
    }

    fn swap(&mut self) -> Result<ManagerReply, Failure> {
        self.swap_as(self.files.map(|file| (file, 1)).to_vec())
    }

    fn set(&mut self) -> CheckpointSet {
        match self.pool.ask(ManagerRequest::Sets(self.folder)).unwrap() {
            ManagerReply::Sets(mut sets) => sets.pop().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn roots(&mut self) -> [MapRoot; 2] {
        self.files.map(|file| self.pool.root(file, None).unwrap())
    }

    /// Which of these chunks a collection, some hours later, leaves.
    fn left(&mut self, chunks: &[u32]) -> Vec<u32> {
        self.pool.pass_alive(120_000, &[0, 1, 2]);
        self.pool.collect().unwrap();
        chunks.iter().copied().filter(|number| !self.pool.locate(*number).is_empty()).collect()
    }
}

fn seen(info: &VersionInfo) -> (u64, u64, i64, i64) {
    (info.version, info.size, info.mtime, info.committed_at)
}

#[test]
fn all_members_move_at_once_and_look_as_before() {
    let mut packed = Packed::with_container();
    let before: Vec<_> = packed.files.map(|file| seen(&packed.pool.versions(file)[0])).to_vec();
    let attrs = ["app/app.N0.T1", "app/app.N1.T1"].map(|path| packed.pool.attr(path).unwrap());
    assert_eq!(packed.swap(), Ok(ManagerReply::Done));
    let after: Vec<_> = packed.files.map(|file| seen(&packed.pool.versions(file)[0])).to_vec();
    assert_eq!(before, after);
    assert_eq!(attrs, ["app/app.N0.T1", "app/app.N1.T1"].map(|path| packed.pool.attr(path).unwrap()));
    let set = packed.set();
    assert_eq!(set.state, SetState::Complete);
    assert!(set.members.iter().all(|member| member.aggregated));
    let container = MapRoot::Inline { map: map_of(&PACKED.map(chunk)).encode() };
    for (root, (file, size)) in packed.roots().iter().zip([(0, 1000), (1, 2000)]) {
        let place = root.in_container().unwrap().unwrap();
        assert_eq!((place.file, place.size, place.container), (file, size, container.clone()));
    }
    let shares: Vec<u64> = packed.files.map(|file| packed.pool.versions(file)[0].stored_bytes).to_vec();
    assert_eq!(shares, [666, 1333], "of the container's 2000 bytes, by size");
}

#[test]
fn a_repeated_step_is_answered_as_the_first_and_one_for_another_container_refused() {
    let mut packed = Packed::with_container();
    packed.swap().unwrap();
    let roots = packed.roots();
    assert_eq!(packed.swap(), Ok(ManagerReply::Done));
    packed.pool.close(PACKER);
    packed.open_container().unwrap();
    packed.pool.secure(PACKER, &[103, 104], &[1, 2]);
    packed.pool.commit(PACKER, &[103, 104]).unwrap();
    assert_eq!(packed.swap().unwrap_err().code, ErrorCode::Exists);
    assert_eq!(packed.roots(), roots);
}

#[test]
fn a_container_replaces_exactly_the_members_of_the_complete_set() {
    let mut packed = Packed::with_container();
    let [first, second] = packed.files;
    let other = packed.pool.make(packed.folder, "remark", FileKind::File);
    packed.pool.write(9, other, &[9], &[0, 1]);
    let before = packed.roots();
    for wrong in [
        vec![(first, 1)],
        vec![(first, 1), (second, 1), (other, 1)],
        vec![(first, 1), (first, 1)],
        vec![(first, 1), (second, 2)],
        vec![(first, 1), (Ino(4711), 1)],
    ] {
        let refused = packed.swap_as(wrong.clone()).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NotFound, "{wrong:?}: {refused}");
    }
    packed.pool.write(3, first, &[4], &[0, 1]);
    assert_eq!(packed.swap().unwrap_err().code, ErrorCode::NotFound, "a member was written again");
    packed.pool.change(Change::DropVersion { ino: first, version: 2 }).unwrap();
    assert_eq!(packed.roots(), before, "nothing happened");
    assert_eq!(packed.swap(), Ok(ManagerReply::Done));
}

#[test]
fn nothing_moves_while_a_member_is_being_written() {
    let mut packed = Packed::with_container();
    packed.pool.open(3, packed.files[1]);
    assert_eq!(packed.swap().unwrap_err().code, ErrorCode::Unavailable);
    packed.pool.close(3);
    assert_eq!(packed.swap(), Ok(ManagerReply::Done));
}

#[test]
fn nothing_moves_before_the_container_has_all_its_copies() {
    let mut packed = Packed::new();
    packed.open_container().unwrap();
    assert_eq!(packed.swap().unwrap_err().code, ErrorCode::NotFound, "nothing is committed");
    packed.pool.secure(PACKER, &PACKED, &[1]);
    packed.pool.commit(PACKER, &PACKED).unwrap();
    let refused = packed.swap().unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unavailable, "{refused}");
    packed.pool.beat(0, &PACKED, &[]);
    assert_eq!(packed.swap(), Ok(ManagerReply::Done));
}

#[test]
fn copies_that_no_benefactor_is_there_for_are_not_waited_for() {
    let mut packed = Packed::new();
    packed.pool.pass_alive(6_000, &[1]);
    packed.open_container().unwrap();
    packed.pool.secure(PACKER, &PACKED, &[1]);
    packed.pool.commit(PACKER, &PACKED).unwrap();
    let refused = packed.swap().unwrap_err();
    assert_eq!(
        refused.code,
        ErrorCode::Unavailable,
        "those that are silent for some seconds come back: {refused}"
    );
    packed.pool.pass_alive(30_000, &[1]);
    assert_eq!(packed.swap(), Ok(ManagerReply::Done));
}

#[test]
fn copies_that_are_not_to_stay_where_they_are_count_for_no_container() {
    let mut packed = Packed::with_container();
    packed.pool.failed.insert(2);
    packed.pool.beat(2, &[], &[]);
    let refused = packed.swap().unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unavailable, "{refused}");
    packed.pool.beat(0, &PACKED, &[]);
    assert_eq!(packed.swap(), Ok(ManagerReply::Done));
}

#[test]
fn after_the_step_a_collection_takes_the_members_chunks_and_leaves_the_container() {
    let mut packed = Packed::aggregated();
    assert_eq!(packed.left(&[1, 2, 3, 101, 102]), [101, 102]);
}

#[test]
fn without_the_step_a_collection_takes_the_container_and_leaves_the_members_chunks() {
    let mut packed = Packed::with_container();
    packed.pool.close(PACKER);
    assert_eq!(packed.left(&[1, 2, 3, 101, 102]), [1, 2, 3]);
    assert_eq!(packed.pool.status().versions, 2, "the container is no version of anything");
}

#[test]
fn a_packer_that_is_killed_leaves_the_members_as_they_are() {
    let mut packed = Packed::with_container();
    let inodes = packed.pool.status().space.inodes;
    for _ in 0..40 {
        packed.pool.pass(1_000);
        (0..3).for_each(|number| drop(packed.pool.beat(number, &[], &[])));
    }
    assert_eq!(packed.pool.status().space.inodes, inodes - 1);
    assert_eq!(packed.left(&[1, 2, 3, 101, 102]), [1, 2, 3]);
}

#[test]
fn a_container_goes_with_the_last_member_that_lies_in_it() {
    let mut packed = Packed::aggregated();
    let name = |rank: u32| format!("app.N{rank}.T1");
    let rewritten = packed.files[0];
    packed.pool.write(3, rewritten, &[4], &[0, 1]);
    packed.pool.change(Change::DropVersion { ino: rewritten, version: 1 }).unwrap();
    assert_eq!(packed.left(&[101, 102, 4]), [101, 102, 4]);
    packed.pool.change(Change::Unlink { parent: packed.folder, name: name(1) }).unwrap();
    assert_eq!(packed.left(&[101, 102, 4]), [4]);
}

#[test]
fn a_set_with_a_member_that_was_written_again_can_be_packed_anew() {
    let mut packed = Packed::aggregated();
    let [first, second] = packed.files;
    packed.pool.write(3, first, &[4], &[0, 1]);
    packed.open_container().unwrap();
    packed.pool.secure(PACKER, &[103, 104], &[1, 2]);
    packed.pool.commit(PACKER, &[103, 104]).unwrap();
    assert_eq!(packed.swap_as(vec![(first, 2), (second, 1)]), Ok(ManagerReply::Done));
    packed.pool.close(PACKER);
    assert_eq!(packed.left(&[101, 103]), [101, 103], "the older version lies in the older container");
    packed.pool.change(Change::DropVersion { ino: first, version: 1 }).unwrap();
    assert_eq!(packed.left(&[101, 103]), [103]);
}

#[test]
fn a_new_version_looks_for_its_pieces_in_versions_with_chunks_of_their_own() {
    let mut packed = Packed::with_container();
    let next = packed.pool.make(packed.folder, "app.N1.T2", FileKind::File);
    let similar = |pool: &mut Pool| match pool.ask(ManagerRequest::Similar(next)).unwrap() {
        ManagerReply::Version { root, .. } => root,
        other => panic!("{other:?}"),
    };
    let [_, before] = packed.roots();
    assert_eq!(similar(&mut packed.pool), Some(before));
    packed.swap().unwrap();
    assert_eq!(similar(&mut packed.pool), None);
}

#[test]
fn what_was_answered_survives_a_killed_manager() {
    let mut packed = Packed::aggregated();
    let roots = packed.roots();
    packed.pool.restart();
    assert_eq!(packed.roots(), roots);
    for (number, chunks) in [(0, &[1, 2, 3][..]), (1, &[1, 2, 3, 101, 102]), (2, &[101, 102])] {
        packed.pool.register(Some(number));
        packed.pool.inventory(number, chunks);
    }
    assert!(!packed.pool.locate(101).is_empty());
}

#[test]
fn a_manager_that_was_killed_before_the_step_takes_it_once_sessions_had_time_to_come_back() {
    let mut packed = Packed::with_container();
    packed.pool.restart();
    for number in 0..3 {
        packed.pool.register(Some(number));
        packed.pool.inventory(number, &[1, 2, 3, 101, 102]);
    }
    assert_eq!(packed.swap().unwrap_err().code, ErrorCode::Stale, "the session must come back");
    let container = packed.pool.status().space.inodes;
    packed.open_container_again();
    assert_eq!(packed.pool.status().space.inodes, container, "it is the same file");
    assert_eq!(packed.swap().unwrap_err().code, ErrorCode::Unavailable, "others may come back, too");
    for _ in 0..31 {
        packed.pool.pass(1_000);
        packed.pool.ask(ManagerRequest::KeepAlive(CLIENT)).unwrap();
    }
    for number in 0..3 {
        packed.pool.register(Some(number));
        packed.pool.inventory(number, &[1, 2, 3, 101, 102]);
    }
    assert_eq!(packed.swap(), Ok(ManagerReply::Done));
}

#[test]
fn after_a_restart_the_container_still_needs_the_copies_that_the_members_folder_asks_for() {
    let mut packed = Packed::new();
    let pairs = vec![("redundancy".to_owned(), "replicate:3".to_owned())];
    packed.pool.change(Change::SetPolicy { ino: packed.folder, pairs }).unwrap();
    packed.open_container().unwrap();
    packed.pool.secure(PACKER, &PACKED, &[1, 2]);
    packed.pool.commit(PACKER, &PACKED).unwrap();
    packed.pool.restart();
    for number in 0..3 {
        packed.pool.register(Some(number));
    }
    packed.open_container_again();
    for _ in 0..31 {
        packed.pool.pass(1_000);
        packed.pool.ask(ManagerRequest::KeepAlive(CLIENT)).unwrap();
    }
    for (number, chunks) in [(0, &[1, 2, 3][..]), (1, &[1, 2, 3, 101, 102]), (2, &[101, 102])] {
        packed.pool.register(Some(number));
        packed.pool.inventory(number, chunks);
    }
    let refused = packed.swap().unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unavailable, "{refused}");
    assert!(refused.message.contains("would not survive the loss of 2 benefactors"), "{refused}");
    assert!(packed.pool.status().chunks_at_risk >= 2, "a third copy is wanted");
    packed.pool.register(Some(0));
    packed.pool.inventory(0, &[1, 2, 3, 101, 102]);
    assert_eq!(packed.swap(), Ok(ManagerReply::Done));
}

#[test]
fn containers_are_opened_in_folders_and_once_for_a_session() {
    let mut packed = Packed::new();
    let ino = packed.open_container().unwrap();
    assert_eq!(packed.open_container(), Ok(ino), "the first answer was lost");
    let folder = packed.files[0];
    let request = ManagerRequest::OpenContainer { session: session(51), client: CLIENT, folder };
    assert_eq!(packed.pool.ask(request).unwrap_err().code, ErrorCode::NotADirectory);
    let entries = ManagerRequest::ReadDir { ino: packed.folder, after: None, limit: 10 };
    match packed.pool.ask(entries).unwrap() {
        ManagerReply::Entries(entries) => assert_eq!(entries.len(), 2, "a container has no name"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_can_not_claim_to_lie_in_a_container() {
    let mut packed = Packed::aggregated();
    let [root, _] = packed.roots();
    packed.pool.open(3, packed.files[1]);
    assert_eq!(packed.pool.commit_root(3, root, 1000).unwrap_err().code, ErrorCode::Invalid);
}

impl Packed {
    /// As a client does whose manager was restarted: it knows the container's inode.
    fn open_container_again(&mut self) {
        let ino = Ino(self.files[1].0 + 1);
        self.pool.open(PACKER, ino);
    }
}

#[test]
fn encrypted_members_move_into_encrypted_containers_alone() {
    let key = KeyId([0xa1; 12]);
    for key_of_container in [None, Some(key)] {
        let mut packed = Packed::new();
        packed.pool.key = Some(key);
        packed.pool.write(3, packed.files[0], &[1], &[0, 1]);
        packed.pool.key = key_of_container;
        packed.open_container().unwrap();
        packed.pool.secure(PACKER, &PACKED, &[1, 2]);
        packed.pool.commit(PACKER, &PACKED).unwrap();
        let swapped = packed.swap_as(vec![(packed.files[0], 2), (packed.files[1], 1)]);
        let keys = packed.files.map(|file| packed.pool.versions(file).pop().unwrap().key);
        match key_of_container {
            None => {
                let failure = swapped.unwrap_err();
                assert!(
                    failure.code == ErrorCode::NoKey && failure.message.contains("app/app.N0.T1"),
                    "{failure}"
                );
                assert_eq!(keys, [Some(key), None]);
            }
            Some(_) => {
                assert_eq!(swapped, Ok(ManagerReply::Done));
                assert_eq!(keys, [Some(key); 2], "both lie in the container");
            }
        }
    }
}
