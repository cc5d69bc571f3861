//! Files of a folder with `encryption`: they come back to who has the key and to nobody else, whatever way they were written, and
//! nothing of them lies at benefactors in the clear (I3, docs/design/0702-encryption-at-the-client.md).

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Random, TestPool, make};
use stdchk_aggregate::Packing;
use stdchk_client::{ClientConfig, Depth, KeyRing, NewFile, Pool};
use stdchk_model::message::manager::{Change, Existing, FileKind};
use stdchk_model::{ErrorCode, Failure, Ino, KeyId};
use tempfile::TempDir;

const LENGTH: usize = 1_500_000;
/// Length of what must not be found at benefactors, bytes.
const WINDOW: usize = 32;

/// A pool, and a client with keys of its own.
struct Sealed {
    pools: TestPool,
    keys: TempDir,
    pool: Pool,
}

impl Sealed {
    async fn start(benefactors: usize) -> Self {
        let (pools, keys) = (TestPool::start(benefactors).await, TempDir::new().unwrap());
        let pool = connect(&pools, Some(keys.path().to_owned())).await;
        Self { pools, keys, pool }
    }

    fn new_key(&self) -> KeyId {
        self.pool.encryption_keys().create().unwrap()
    }

    /// A folder under the root with this policy.
    async fn folder(&self, name: &str, policy: &[(&str, &str)]) -> Ino {
        let folder = make(&self.pool, Ino::ROOT, name, FileKind::Directory).await.ino;
        set(&self.pool, folder, policy).await;
        folder
    }

    /// Another client with the same keys, which has nothing in memory.
    async fn fresh(&self) -> Pool {
        connect(&self.pools, Some(self.keys.path().to_owned())).await
    }

    /// A client without any key.
    async fn stranger(&self) -> Pool {
        connect(&self.pools, None).await
    }

    /// Checks that no window of the content lies in any file of a benefactor.
    fn assert_hidden(&self, content: &[u8], what: &str) {
        let found = clear_windows(self.pools.dir.path(), content);
        assert_eq!(found, 0, "{what}: parts of the content lie in the clear");
    }
}

async fn connect(pools: &TestPool, keys: Option<PathBuf>) -> Pool {
    let config = ClientConfig {
        manager: pools.manager.clone(),
        window_bytes: 16 << 20,
        read_cache_bytes: 8 << 20,
        encryption_keys: keys,
        ..ClientConfig::default()
    };
    Pool::connect(config).await.unwrap()
}

async fn set(pool: &Pool, ino: Ino, policy: &[(&str, &str)]) {
    let pairs = policy.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    pool.change(Change::SetPolicy { ino, pairs }).await.unwrap();
}

async fn file(pool: &Pool, folder: Ino, name: &str) -> Ino {
    make(pool, folder, name, FileKind::File).await.ino
}

/// Writes at an offset and commits; the bytes that were new to the pool.
async fn write(pool: &Pool, file: Ino, offset: u64, content: &[u8]) -> Result<u64, Failure> {
    let session = pool.write(file).await?;
    session.write_at(offset, content).await?;
    session.commit(7).await?;
    let stored = session.stored_bytes();
    session.close(false).await?;
    Ok(stored)
}

async fn read(pool: &Pool, file: Ino, version: Option<u64>) -> Result<Vec<u8>, Failure> {
    let reader = pool.read(file, version).await?;
    Ok(reader.read_at(0, usize::try_from(reader.size()).unwrap()).await?.to_vec())
}

/// Text of random words: it shrinks, and no part of it comes twice.
fn text(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let words = std::iter::repeat_with(move || format!("{:016x} of a checkpoint, ", random.next()));
    words.flat_map(String::into_bytes).take(length).collect()
}

/// How many windows of `content` lie in files of the benefactors below `folder`.
fn clear_windows(folder: &Path, content: &[u8]) -> usize {
    let start = |window: &[u8]| u64::from_le_bytes(window[..8].try_into().unwrap());
    let windows: HashSet<u64> = content.windows(WINDOW).map(start).collect();
    let all: HashSet<&[u8]> = content.windows(WINDOW).collect();
    let mut found = 0;
    let mut folders: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| {
        path.is_dir() && path.file_name().unwrap().to_str().unwrap().starts_with("benefactor")
    });
    assert!(!folders.is_empty());
    while let Some(path) = folders.pop() {
        if path.is_dir() {
            folders.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if let Ok(bytes) = fs::read(&path) {
            let hits = bytes.windows(WINDOW).filter(|window| windows.contains(&start(window)));
            found += hits.filter(|window| all.contains(window)).count();
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_written_comes_back_with_the_key_and_lies_nowhere_in_the_clear() {
    let sealed = Sealed::start(5).await;
    let key = sealed.new_key().to_string();
    let ways = [
        ("replicate:2", "fsch:1MiB", "store"),
        ("replicate:2", "fsch:64KiB", "zstd:3"),
        ("replicate:1", "cdc:4KiB", "lz4"),
        ("erasure:3,2", "fsch:1MiB", "store"),
        ("erasure:3,2", "cdc:256KiB", "zstd:1"),
        ("replicate:1", "fsch:1MiB", "auto"),
    ];
    for (number, (redundancy, cutter, codec)) in ways.into_iter().enumerate() {
        let what = format!("{redundancy} {cutter} {codec}");
        let policy =
            [("encryption", &*key), ("redundancy", redundancy), ("cutter", cutter), ("codec", codec)];
        let folder = sealed.folder(&format!("app{number}"), &policy).await;
        let (large, small) = (text(number as u64, LENGTH), text(100 + number as u64, 300));
        let (of_large, of_small) =
            (file(&sealed.pool, folder, "large").await, file(&sealed.pool, folder, "small").await);
        write(&sealed.pool, of_large, 0, &large).await.unwrap();
        write(&sealed.pool, of_small, 0, &small).await.unwrap();
        let fresh = sealed.fresh().await;
        assert!(read(&fresh, of_large, None).await.unwrap() == large, "{what}");
        assert!(read(&fresh, of_small, None).await.unwrap() == small, "{what}");
        sealed.assert_hidden(&large[..200_000], &what);
        sealed.assert_hidden(&small, &what);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_encrypted_is_found_by_the_search_for_it() {
    let sealed = Sealed::start(1).await;
    let folder = sealed.folder("app", &[("codec", "store")]).await;
    let content = text(1, 100_000);
    let of = file(&sealed.pool, folder, "x").await;
    write(&sealed.pool, of, 0, &content).await.unwrap();
    assert!(clear_windows(sealed.pools.dir.path(), &content) > 90_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_content_is_stored_once_under_a_key_and_again_under_another_and_in_the_clear() {
    let sealed = Sealed::start(2).await;
    let (one, other) = (sealed.new_key().to_string(), sealed.new_key().to_string());
    let content = text(5, LENGTH);
    let (first, second, clear) = (
        sealed.folder("first", &[("encryption", &one)]).await,
        sealed.folder("second", &[("encryption", &other)]).await,
        sealed.folder("clear", &[]).await,
    );
    let mut stored = Vec::new();
    for (folder, name) in [(first, "a"), (first, "b"), (second, "a"), (clear, "a"), (clear, "b")] {
        let of = file(&sealed.pool, folder, name).await;
        stored.push(write(&sealed.pool, of, 0, &content).await.unwrap());
    }
    let is_new: Vec<bool> = stored.iter().map(|stored| *stored > 1000).collect();
    assert_eq!(is_new, [true, false, true, true, false], "{stored:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_lacks_the_key_reads_nothing_writes_nothing_and_can_still_see_whether_all_is_there() {
    let sealed = Sealed::start(2).await;
    let key = sealed.new_key();
    let folder = sealed.folder("app", &[("encryption", &key.to_string()), ("cutter", "fsch:512KiB")]).await;
    let of = file(&sealed.pool, folder, "x").await;
    write(&sealed.pool, of, 0, &text(6, 7 * LENGTH)).await.unwrap();
    let stranger = sealed.stranger().await;
    let failure = read(&stranger, of, None).await.unwrap_err();
    assert!(failure.code == ErrorCode::NoKey && failure.message.contains(&key.to_string()), "{failure}");
    let failure = write(&stranger, of, 0, b"clear").await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::NoKey, "{failure}");
    let failure = stranger.replace(of).await.err().unwrap();
    assert_eq!(failure.code, ErrorCode::NoKey, "{failure}");
    let new =
        NewFile { parent: folder, name: "new".to_owned(), mode: 0o644, uid: 0, gid: 0, exclusive: false };
    let failure = stranger.create(new, None).await.err().unwrap();
    assert_eq!(failure.code, ErrorCode::NoKey, "{failure}");
    assert_eq!(stranger.lookup(folder, "new").await.unwrap_err().code, ErrorCode::NotFound, "an empty file");
    // The map lies in the pool, encrypted like the rest; the manager knows the chunks.
    let info = stranger.versions(of).await.unwrap().pop().unwrap();
    assert_eq!(info.key, Some(key));
    let known = stranger.all_chunks(of, info.version).await.unwrap();
    let own = sealed.pool.all_chunks(of, info.version).await.unwrap();
    let names = |chunks: &[stdchk_model::ChunkRef]| {
        let mut names: Vec<_> = chunks.iter().map(|chunk| (chunk.id, chunk.length)).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(&known), names(&own));
    assert!(own.len() > 20, "{}", own.len());
    let healths = stranger.verify_chunks(&known, Depth::Read).await.unwrap();
    assert!(healths.iter().all(|health| health.distance > 0 && health.damaged == 0), "{healths:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_comes_later_opens_what_a_running_client_could_not_read() {
    let sealed = Sealed::start(1).await;
    let key = sealed.new_key();
    let folder = sealed.folder("app", &[("encryption", &key.to_string())]).await;
    let of = file(&sealed.pool, folder, "x").await;
    write(&sealed.pool, of, 0, b"content").await.unwrap();
    let own = TempDir::new().unwrap();
    let other = connect(&sealed.pools, Some(own.path().to_owned())).await;
    assert_eq!(read(&other, of, None).await.unwrap_err().code, ErrorCode::NoKey);
    let text = sealed.pool.encryption_keys().export(key).unwrap();
    KeyRing::new(Some(own.path().to_owned())).import(&text).unwrap();
    assert_eq!(read(&other, of, None).await.unwrap(), b"content");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_change_of_the_key_each_version_needs_the_key_that_it_names_and_no_other() {
    let sealed = Sealed::start(2).await;
    let (old, new) = (sealed.new_key(), sealed.new_key());
    // What is stored is as long as what is encrypted.
    let policy = [("encryption", &*old.to_string()), ("cutter", "fsch:512KiB"), ("codec", "store")];
    let folder = sealed.folder("app", &policy).await;
    let of = file(&sealed.pool, folder, "x").await;
    let mut content = text(8, 3 * LENGTH);
    write(&sealed.pool, of, 0, &content).await.unwrap();
    set(&sealed.pool, folder, &[("encryption", &new.to_string())]).await;
    let first = content.clone();
    let part = text(9, 100_000);
    content[200_000..300_000].copy_from_slice(&part);
    let stored = write(&sealed.pool, of, 200_000, &part).await.unwrap();
    assert!(stored > 2 * LENGTH as u64, "what did not change is encrypted anew: {stored}");
    let again = write(&sealed.pool, of, 200_000, &part).await.unwrap();
    assert!(again < LENGTH as u64 / 2, "once: {again}");
    let fresh = sealed.fresh().await;
    let versions = fresh.versions(of).await.unwrap();
    assert_eq!(versions.iter().map(|info| info.key).collect::<Vec<_>>(), [Some(old), Some(new), Some(new)]);
    assert!(read(&fresh, of, Some(versions[0].version)).await.unwrap() == first);
    assert!(read(&fresh, of, None).await.unwrap() == content);
    // The old key is lost: what names it is out of reach, and so the failure says.
    fs::remove_file(sealed.keys.path().join(format!("{old}.key"))).unwrap();
    let later = sealed.fresh().await;
    let failure = read(&later, of, Some(versions[0].version)).await.unwrap_err();
    assert!(failure.code == ErrorCode::NoKey && failure.message.contains(&old.to_string()), "{failure}");
    assert!(read(&later, of, None).await.unwrap() == content);
    // The file can be replaced as ever.
    let session = later.replace(of).await.unwrap();
    session.write_at(0, b"anew").await.unwrap();
    session.commit(9).await.unwrap();
    session.close(false).await.unwrap();
    assert_eq!(read(&later, of, None).await.unwrap(), b"anew");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_from_before_the_change_commits_nothing_in_the_clear() {
    let sealed = Sealed::start(2).await;
    let folder = sealed.folder("app", &[]).await;
    let of = file(&sealed.pool, folder, "x").await;
    write(&sealed.pool, of, 0, b"clear, as it was to be").await.unwrap();
    let session = sealed.pool.write(of).await.unwrap();
    session.write_at(0, &text(4, LENGTH)).await.unwrap();
    let key = sealed.new_key();
    set(&sealed.pool, folder, &[("encryption", &key.to_string())]).await;
    let failure = session.commit(1).await.unwrap_err();
    assert!(failure.code == ErrorCode::NoKey && failure.message.contains("app/x"), "{failure}");
    let _ = session.close(false).await;
    assert_eq!(read(&sealed.pool, of, None).await.unwrap(), b"clear, as it was to be");
    write(&sealed.pool, of, 0, &text(4, LENGTH)).await.unwrap();
    assert!(read(&sealed.fresh().await, of, None).await.unwrap() == text(4, LENGTH));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_hears_of_the_change_after_a_restart_of_the_manager_sends_nothing_more() {
    let mut sealed = Sealed::start(1).await;
    let folder = sealed.folder("app", &[]).await;
    let of = file(&sealed.pool, folder, "x").await;
    let session = sealed.pool.write(of).await.unwrap();
    let key = sealed.new_key();
    set(&sealed.pool, folder, &[("encryption", &key.to_string())]).await;
    sealed.pools.restart_manager().await;
    sealed.pools.wait_online(1).await;
    let content = text(3, LENGTH);
    session.write_at(0, &content).await.unwrap();
    let failure = session.commit(1).await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::NoKey, "{failure}");
    assert!(sealed.pool.versions(of).await.unwrap().is_empty());
    let _ = session.close(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_moves_out_of_an_encrypted_folder_stays_encrypted_when_it_is_written() {
    let sealed = Sealed::start(2).await;
    let key = sealed.new_key();
    let (from, to) = (
        sealed.folder("from", &[("encryption", &key.to_string()), ("codec", "store")]).await,
        sealed.folder("to", &[("codec", "store")]).await,
    );
    let of = file(&sealed.pool, from, "x").await;
    let mut content = text(11, LENGTH);
    write(&sealed.pool, of, 0, &content).await.unwrap();
    let (name, existing) = ("x".to_owned(), Existing::Replace);
    let moved = Change::Rename { parent: from, name: name.clone(), new_parent: to, new_name: name, existing };
    sealed.pool.change(moved).await.unwrap();
    assert!(read(&sealed.fresh().await, of, None).await.unwrap() == content);
    assert_eq!(read(&sealed.stranger().await, of, None).await.unwrap_err().code, ErrorCode::NoKey);
    // A write of few bytes completes its part of the file with what was there.
    write(&sealed.pool, of, 70_000, b"a few bytes").await.unwrap();
    content[70_000..70_011].copy_from_slice(b"a few bytes");
    assert!(read(&sealed.fresh().await, of, None).await.unwrap() == content);
    assert_eq!(sealed.pool.versions(of).await.unwrap().pop().unwrap().key, Some(key));
    sealed.assert_hidden(&content[..200_000], "written where nothing is to be encrypted");
    // What is written anew there is as the folder wants it.
    let session = sealed.pool.replace(of).await.unwrap();
    session.write_at(0, b"in the clear").await.unwrap();
    session.commit(9).await.unwrap();
    session.close(false).await.unwrap();
    assert_eq!(read(&sealed.stranger().await, of, None).await.unwrap(), b"in the clear");
}

#[tokio::test(flavor = "multi_thread")]
async fn sets_are_packed_by_who_has_the_key_and_never_into_the_clear() {
    let sealed = Sealed::start(2).await;
    let key = sealed.new_key();
    let policy = [
        ("encryption", &*key.to_string()),
        ("ranks", "3"),
        ("codec", "store"),
        ("redundancy", "replicate:1"),
    ];
    let folder = sealed.folder("app", &policy).await;
    let mut files = Vec::new();
    for rank in 0..3u64 {
        let content = text(20 + rank, 400_000);
        let of = file(&sealed.pool, folder, &format!("a.N{rank}.T1")).await;
        write(&sealed.pool, of, 0, &content).await.unwrap();
        files.push((of, content));
    }
    let pack = async |pool: &Pool| {
        let (pool, set) = (pool.clone(), pool.sets(folder).await.unwrap().pop().unwrap());
        let work = move || pool.aggregate_set(folder, &set, 1, Packing { threads: 1, ..Packing::default() });
        tokio::task::spawn_blocking(work).await.unwrap()
    };
    let refused = pack(&sealed.stranger().await).await.unwrap_err().to_string();
    assert!(refused.contains(&key.to_string()), "{refused}");
    // A folder that doesn't ask for encryption any more gets no container of what is encrypted.
    set(&sealed.pool, folder, &[("encryption", "none")]).await;
    let refused = pack(&sealed.pool).await.unwrap_err().to_string();
    assert!(refused.contains(&key.to_string()), "{refused}");
    set(&sealed.pool, folder, &[("encryption", &key.to_string())]).await;
    let packed = pack(&sealed.pool).await.unwrap();
    assert_eq!((packed.files, packed.containers), (3, 1));
    let fresh = sealed.fresh().await;
    for (of, content) in &files {
        assert!(read(&fresh, *of, None).await.unwrap() == *content);
        let info = fresh.versions(*of).await.unwrap().pop().unwrap();
        assert!(info.aggregated && info.key == Some(key), "{info:?}");
        assert_eq!(read(&sealed.stranger().await, *of, None).await.unwrap_err().code, ErrorCode::NoKey);
        sealed.assert_hidden(&content[..100_000], "a container");
    }
    // What a writer keeps of a container it stores anew, encrypted.
    let (of, mut content) = files.swap_remove(1);
    write(&sealed.pool, of, 10, b"other").await.unwrap();
    content[10..15].copy_from_slice(b"other");
    assert!(read(&sealed.fresh().await, of, None).await.unwrap() == content);
    sealed.assert_hidden(&content[..100_000], "a member that was written over");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_two_folders_is_encrypted_if_one_of_them_wants_it() {
    let sealed = Sealed::start(1).await;
    let key = sealed.new_key();
    let (clear, secret) = (
        sealed.folder("clear", &[("redundancy", "replicate:3")]).await,
        sealed.folder("secret", &[("encryption", &key.to_string())]).await,
    );
    let of = file(&sealed.pool, clear, "x").await;
    sealed.pool.change(Change::Link { ino: of, parent: secret, name: "y".to_owned() }).await.unwrap();
    write(&sealed.pool, of, 0, &text(2, 10_000)).await.unwrap();
    sealed.assert_hidden(&text(2, 10_000), "a file with two names");
}

#[tokio::test(flavor = "multi_thread")]
async fn pieces_of_earlier_versions_are_found_again_under_the_key() {
    let sealed = Sealed::start(2).await;
    let key = sealed.new_key();
    let policy = [("encryption", &*key.to_string()), ("cutter", "cdc:4KiB"), ("codec", "store")];
    let folder = sealed.folder("app", &policy).await;
    let content = text(31, LENGTH);
    let first = file(&sealed.pool, folder, "a.N0.T1").await;
    write(&sealed.pool, first, 0, &content).await.unwrap();
    // Everything lies elsewhere than before.
    let shifted = [b"something in front", &content[..]].concat();
    let second = file(&sealed.pool, folder, "a.N0.T2").await;
    let stored = write(&sealed.pool, second, 0, &shifted).await.unwrap();
    assert!(stored < (LENGTH / 4) as u64, "{stored}");
    assert!(read(&sealed.fresh().await, second, None).await.unwrap() == shifted);
    sealed.assert_hidden(&content[..200_000], "pieces");
}
