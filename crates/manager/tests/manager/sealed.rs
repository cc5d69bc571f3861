//! What the manager does about encrypted folders, of whose content and maps it can read nothing
//! (docs/design/0702-encryption-at-the-client.md).

use crate::harness::{Pool, chunk};
use stdchk_model::message::manager::{Change, FileKind, ManagerReply, ManagerRequest};
use stdchk_model::{ChunkId, ChunkRef, ErrorCode, Ino, KeyId, MapRoot};

const KEY: KeyId = KeyId([0xa1; 12]);

fn encrypt(pool: &mut Pool, folder: Ino, value: &str) {
    let pairs = vec![("encryption".to_owned(), value.to_owned())];
    pool.change(Change::SetPolicy { ino: folder, pairs }).unwrap();
}

fn pool_with_file() -> (Pool, Ino, Ino) {
    let mut pool = Pool::with_benefactors(2);
    let folder = pool.make(Ino::ROOT, "app", FileKind::Directory);
    let file = pool.make(folder, "app.N0.T1", FileKind::File);
    (pool, folder, file)
}

#[test]
fn what_was_written_in_the_clear_is_not_committed_once_the_folder_is_to_be_encrypted() {
    let (mut pool, folder, file) = pool_with_file();
    pool.open(1, file);
    pool.secure(1, &[1], &[0]);
    encrypt(&mut pool, folder, &KEY.to_string());
    let refused = pool.commit(1, &[1]).unwrap_err();
    assert!(refused.code == ErrorCode::NoKey && refused.message.contains("app/app.N0.T1"), "{refused}");
    assert_eq!(pool.root(file, None), None);
    // Below the folder, too.
    let below = pool.make(folder, "below", FileKind::Directory);
    let other = pool.make(below, "x", FileKind::File);
    pool.open(2, other);
    pool.secure(2, &[1], &[0]);
    assert_eq!(pool.commit(2, &[1]).unwrap_err().code, ErrorCode::NoKey);
    // Another key than the folder's is one: who began under it may end.
    pool.key = Some(KeyId([0xb2; 12]));
    assert_eq!(pool.commit(2, &[1]), Ok(1));
    pool.key = None;
    encrypt(&mut pool, folder, "none");
    assert_eq!(pool.commit(1, &[1]), Ok(1));
}

#[test]
fn the_key_of_a_version_is_told_and_survives_a_restart() {
    let (mut pool, folder, file) = pool_with_file();
    pool.write(1, file, &[1], &[0]);
    encrypt(&mut pool, folder, &KEY.to_string());
    pool.key = Some(KEY);
    pool.write(2, file, &[2], &[0]);
    let keys = |pool: &mut Pool| pool.versions(file).iter().map(|info| info.key).collect::<Vec<_>>();
    assert_eq!(keys(&mut pool), [None, Some(KEY)]);
    pool.restart();
    assert_eq!(keys(&mut pool), [None, Some(KEY)]);
}

#[test]
fn the_chunks_of_a_version_are_told_without_its_map() {
    let (mut pool, _, file) = pool_with_file();
    // The map is a chunk that nobody here can read.
    let piece = ChunkRef { id: chunk(9), length: 1000 };
    let root = MapRoot::Pieces { pieces: vec![piece], length: 1000 };
    pool.open(1, file);
    pool.secure(1, &[1, 2, 3, 9], &[0]);
    pool.commit_naming(1, root, 3000, &[1, 2, 3]).unwrap();
    pool.close(1);
    let told = |pool: &mut Pool, after: Option<ChunkId>| match pool
        .ask(ManagerRequest::ChunksOf { ino: file, version: 1, after })
        .unwrap()
    {
        ManagerReply::Chunks(chunks) => chunks,
        other => panic!("{other:?}"),
    };
    let mut all: Vec<ChunkRef> =
        [1, 2, 3, 9].map(|number| ChunkRef { id: chunk(number), length: 1000 }).to_vec();
    all.sort_unstable_by_key(|chunk| chunk.id);
    for _ in 0..2 {
        assert_eq!(told(&mut pool, None), all);
        assert_eq!(told(&mut pool, Some(all[1].id)), all[2..]);
        assert_eq!(told(&mut pool, Some(all[3].id)), []);
        pool.restart();
        // Lengths are what benefactors tell.
        all.iter_mut().for_each(|chunk| chunk.length = 0);
    }
    let gone = pool.ask(ManagerRequest::ChunksOf { ino: file, version: 7, after: None }).unwrap_err();
    assert_eq!(gone.code, ErrorCode::NotFound);
}
