//! Chunks that were compressed on their way come back as they were, take less room, and what can't shrink is spared.

use crate::common::{Random, TestPool, file_with};

const FILE_BYTES: usize = 5 << 20;

/// Like numbers of a simulation's field: eight bytes each, the upper ones alike.
fn field() -> Vec<u8> {
    (0..FILE_BYTES as u64 / 8).flat_map(|at| (0x4050_0000_0000_0000 + (at / 7) * 3).to_le_bytes()).collect()
}

async fn comes_back(codec: &str, content: &[u8], stored_at_most: usize) {
    let tests = TestPool::start(2).await;
    let pool = tests.connect(16 << 20).await;
    let file = file_with(&pool, &[("redundancy", "replicate:2"), ("codec", codec)]).await;
    let session = pool.write(file).await.unwrap();
    session.write_at(0, content).await.unwrap();
    session.commit(0).await.unwrap();
    let stored = session.stored_bytes();
    // The map's own piece is a chunk as well.
    let most = stored_at_most as u64 + 4096;
    assert!(stored > 0 && stored <= most, "{codec}: {stored} of {}", content.len());
    session.close(false).await.unwrap();
    let fresh = tests.connect(16 << 20).await;
    let reader = fresh.read(file, None).await.unwrap();
    assert!(reader.read_at(0, content.len()).await.unwrap() == content, "{codec}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_shrinks_is_stored_compressed_and_comes_back() {
    for (codec, stored_at_most) in
        [("store", FILE_BYTES), ("lz4", FILE_BYTES / 2), ("zstd:9", FILE_BYTES / 2)]
    {
        comes_back(codec, &field(), stored_at_most).await;
    }
    comes_back("auto", &field(), FILE_BYTES).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_shrink_comes_back() {
    for codec in ["auto", "lz4", "zstd:1"] {
        comes_back(codec, &Random::new(7).bytes(FILE_BYTES), FILE_BYTES).await;
    }
}
