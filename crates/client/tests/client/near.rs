//! Near copies: what is written under `local=prefer` is kept by the benefactor of this machine as well, in whatever form, and read from there.
//! All of a test's pool is on one machine, of which one benefactor is the own one.

use std::path::PathBuf;

use crate::common::{Random, TestPool, make, wait_until};
use stdchk_client::{ClientConfig, Pool};
use stdchk_model::Ino;
use stdchk_model::message::manager::{Change, FileKind};

const LENGTH: usize = 3_000_000;

async fn folder(pool: &Pool, name: &str, policy: &[(&str, &str)]) -> Ino {
    let folder = make(pool, Ino::ROOT, name, FileKind::Directory).await.ino;
    let pairs = policy.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    pool.change(Change::SetPolicy { ino: folder, pairs }).await.unwrap();
    folder
}

async fn store(pool: &Pool, folder: Ino, name: &str, content: &[u8]) -> Ino {
    let file = make(pool, folder, name, FileKind::File).await.ino;
    let session = pool.write(file).await.unwrap();
    session.write_at(0, content).await.unwrap();
    session.commit(1).await.unwrap();
    session.close(false).await.unwrap();
    file
}

/// What a client that has nothing in memory reads, and how many bytes of it come from near copies.
async fn read(pools: &TestPool, keys: Option<PathBuf>, file: Ino) -> (Vec<u8>, u64) {
    let pool = connect(pools, keys).await;
    let reader = pool.read(file, None).await.unwrap();
    let bytes = reader.read_at(0, usize::try_from(reader.size()).unwrap()).await.unwrap().to_vec();
    (bytes, pool.near_read_bytes())
}

async fn connect(pools: &TestPool, encryption_keys: Option<PathBuf>) -> Pool {
    let config = ClientConfig { manager: pools.manager.clone(), encryption_keys, ..ClientConfig::default() };
    Pool::connect(config).await.unwrap()
}

/// Bytes of files of near copies, and where they are.
fn near(pools: &TestPool) -> (u64, Vec<PathBuf>) {
    let folders =
        std::fs::read_dir(pools.dir.path()).unwrap().map(|entry| entry.unwrap().path().join("near"));
    let all: Vec<PathBuf> = folders.filter(|folder| folder.is_dir()).collect();
    let files = all.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    (files.map(|file| file.unwrap().metadata().unwrap().len()).sum(), all)
}

/// How often content is stored until all of it is kept, and how often and when it is looked whether it is.
const ROUNDS_MAX: usize = 20;
const LOOKS: usize = 20;
const LOOK: std::time::Duration = std::time::Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_form_it_is_read_from_near_copies_and_only_with_the_policy() {
    let pools = TestPool::start(5).await;
    let keys = tempfile::TempDir::new().unwrap();
    let pool = connect(&pools, Some(keys.path().to_owned())).await;
    let key = pool.encryption_keys().create().unwrap().to_string();
    let forms = [
        ("replicate:1", "fsch:1MiB", "store", "none"),
        ("replicate:2", "fsch:64KiB", "zstd:3", "none"),
        ("erasure:3,2", "fsch:1MiB", "store", "none"),
        ("erasure:3,2", "cdc:256KiB", "zstd:1", "none"),
        ("erasure:2,1", "fsch:1MiB", "lz4", key.as_str()),
        ("replicate:2", "fsch:1MiB", "auto", key.as_str()),
    ];
    for (number, (redundancy, cutter, codec, encryption)) in (0..).zip(forms) {
        let what = format!("{redundancy} {cutter} {codec} {encryption}");
        let form =
            [("redundancy", redundancy), ("cutter", cutter), ("codec", codec), ("encryption", encryption)];
        let mut content = Random::new(number + 1).bytes(LENGTH);
        content[LENGTH / 2..].fill(7);
        content[LENGTH / 2..].chunks_mut(64).zip(0_u64..).for_each(|(part, at)| {
            part[..8].copy_from_slice(&(at + (number << 32)).to_le_bytes());
        });
        let (before, kept) = (near(&pools).0, pool.near_kept_bytes());
        let no = folder(&pool, &format!("no{number}"), &form).await;
        let file = store(&pool, no, "a", &Random::new(number + 100).bytes(LENGTH)).await;
        assert_eq!((near(&pools).0, pool.near_kept_bytes()), (before, kept), "{what}");
        let (bytes, from_near) = read(&pools, Some(keys.path().to_owned()), file).await;
        assert!(bytes == Random::new(number + 100).bytes(LENGTH) && from_near == 0, "{what}");
        let yes = folder(&pool, &format!("yes{number}"), &[&form[..], &[("local", "prefer")]].concat()).await;
        let file = store(&pool, yes, "a", &content).await;
        // A chunk that finds no turn is passed over; nearly all find one here.
        wait_until("most is kept", async || pool.near_kept_bytes() - kept >= LENGTH as u64 / 2).await;
        wait_until("the manager has heard", async || {
            let all = pool.status().await.unwrap().benefactors;
            all.iter().any(|one| one.load.near_bytes > 0)
        })
        .await;
        let (bytes, from_near) = read(&pools, Some(keys.path().to_owned()), file).await;
        assert!(bytes == content, "{what}");
        assert!(from_near >= LENGTH as u64 / 2, "{what}: {from_near} bytes from near copies");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_the_pool_has_already_is_kept_again_once_it_was_lost() {
    let pools = TestPool::start(3).await;
    let pool = connect(&pools, None).await;
    let app = folder(&pool, "app", &[("local", "prefer"), ("codec", "store")]).await;
    let content = Random::new(5).bytes(LENGTH);
    // A chunk that finds no turn is passed over, so the same content is stored until all of it is kept.
    let all_kept = async |name: &str| {
        for round in 0..ROUNDS_MAX {
            store(&pool, app, &format!("{name}.T{round}"), &content).await;
            for _ in 0..LOOKS {
                if near(&pools).0 >= LENGTH as u64 {
                    return;
                }
                tokio::time::sleep(LOOK).await;
            }
        }
        panic!("{ROUNDS_MAX} rounds, and {} of {LENGTH} bytes are kept", near(&pools).0);
    };
    all_kept("a.N0").await;
    // It is there: nothing is sent.
    let ((bytes, folders), kept) = (near(&pools), pool.near_kept_bytes());
    store(&pool, app, "b.N0.T1", &content).await;
    wait_until("it was asked for", async || pool.near_kept_bytes() > kept).await;
    assert_eq!(near(&pools).0, bytes);
    // It is lost, and the next checkpoint has the same content.
    folders.iter().for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
    let file = store(&pool, app, "c.N0.T1", b"nothing yet").await;
    all_kept("d.N0").await;
    let (bytes, _) = read(&pools, None, file).await;
    assert_eq!(bytes, b"nothing yet");
}
