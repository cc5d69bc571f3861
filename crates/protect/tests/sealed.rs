//! Sealed chunks in every form that blocks have: made, verified and made anew without the key, put together with it.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

use std::sync::Arc;

use bytes::Bytes;
use stdchk_model::block::BadBlock;
use stdchk_model::{ChunkRef, Code, Encoding, KeyId, Maker};
use stdchk_protect::seal::{Key, Keys, NoKeys};
use stdchk_protect::{Assembly, BadFragments, Blocks, Gathered, Remaking, genuine};
use stdchk_reduce::{Compressor, Effort};

const MAKER: Maker = Maker([7; 8]);

#[derive(Debug)]
struct Own(Arc<Key>);

impl Keys for Own {
    fn key(&self, id: KeyId) -> Option<Arc<Key>> {
        (id == self.0.id()).then(|| Arc::clone(&self.0))
    }
}

fn key(byte: u8) -> Arc<Key> {
    Arc::new(Key::new([byte; 32]))
}

fn content(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at / 7) as u8 ^ (at >> 9) as u8 ^ seed).collect()
}

fn chunk_of(content: &[u8], key: &Key) -> ChunkRef {
    ChunkRef { id: key.name(content), length: content.len() as u32 }
}

fn sealed(content: &[u8], effort: Effort, code: Code, key: &Key) -> Blocks {
    let (codec, encoded) = {
        let mut compressor = Compressor::new(effort).unwrap();
        let (codec, encoded) = compressor.compress(content);
        (codec, encoded.into_owned())
    };
    Blocks::sealed(chunk_of(content, key), codec.number(), &encoded, (code, MAKER), key)
}

/// What the blocks of these numbers make for who has these keys.
fn put_together(
    blocks: &Blocks,
    chunk: ChunkRef,
    numbers: &[u8],
    keys: Arc<dyn Keys>,
) -> Result<Option<Bytes>, BadFragments> {
    let mut assembly = Assembly::with_keys(chunk, keys);
    for (block, stored) in blocks.iter().filter(|(block, _)| numbers.contains(&block.index)) {
        if let Gathered::Whole(bytes) = assembly.add(block, blocks.encoding.clone(), stored.clone())? {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

fn forms() -> Vec<(Effort, Code)> {
    let codes = [Code::COPY, Code::erasure(3, 2).unwrap()];
    let efforts = [Effort::Store, Effort::Lz4, Effort::Zstd(1)];
    efforts.into_iter().flat_map(|effort| codes.map(|code| (effort, code))).collect()
}

#[test]
fn blocks_that_suffice_make_the_chunk_for_who_has_the_key_and_name_it_to_others() {
    let (own, plain) = (key(1), content(200_000, 0));
    for (effort, code) in forms() {
        let blocks = sealed(&plain, effort, code, &own);
        let chunk = chunk_of(&plain, &own);
        assert_eq!(blocks.encoding, sealed(&plain, effort, code, &own).encoding, "always the same blocks");
        for (block, stored) in blocks.iter() {
            assert_eq!(genuine(&block, &blocks.encoding, stored), Ok(()), "{effort:?} {code:?}");
            assert!(!stored.windows(32).any(|window| plain.windows(32).take(50).any(|part| part == window)));
        }
        for numbers in [[0, 1, 2], [2, 3, 4]] {
            let numbers = if code.is_copy() { [0, 0, 0] } else { numbers };
            let made = put_together(&blocks, chunk, &numbers, Arc::new(Own(Arc::clone(&own)))).unwrap();
            assert!(made.is_some_and(|made| made == plain), "{effort:?} {code:?}");
            for keys in [Arc::new(NoKeys) as Arc<dyn Keys>, Arc::new(Own(key(2)))] {
                let refused = put_together(&blocks, chunk, &numbers, keys).unwrap_err();
                assert_eq!(refused, BadFragments::NeedsKey(own.id()));
            }
        }
    }
}

#[test]
fn sealed_blocks_that_are_swapped_or_made_by_others_are_found_out_without_the_key() {
    let (own, other) = (key(1), key(2));
    let (one, two) = (content(50_000, 1), content(50_000, 2));
    let (first, second) =
        (sealed(&one, Effort::Store, Code::COPY, &own), sealed(&two, Effort::Store, Code::COPY, &own));
    let block = first.encoding.block(first.chunk, 0);
    // The bytes of another block that is just as good.
    let swapped = second.stored(0).unwrap();
    assert_eq!(genuine(&block, &first.encoding, swapped), Err(BadBlock::Bytes));
    // And with the name of a block that follows from them, as a benefactor could announce it.
    let block = second.encoding.block(first.chunk, 0);
    assert_eq!(genuine(&block, &second.encoding, swapped), Err(BadBlock::Name));
    // A block of the other key for the same content under the first one's name.
    let theirs = sealed(&one, Effort::Store, Code::COPY, &other);
    let block = theirs.encoding.block(first.chunk, 0);
    assert_eq!(genuine(&block, &theirs.encoding, theirs.stored(0).unwrap()), Err(BadBlock::Name));
    // Clear bytes under a sealed name.
    let clear = Encoding::plain(chunk_of(&one, &own));
    assert!(genuine(&clear.block(first.chunk, 0), &clear, &one).is_err());
    // What a reader is given of all that is refused, too.
    let keys = || Arc::new(Own(Arc::clone(&own)));
    let mut assembly = Assembly::with_keys(chunk_of(&one, &own), keys());
    let refused =
        assembly.add(second.encoding.block(first.chunk, 0), second.encoding.clone(), swapped.clone());
    assert_eq!(refused, Err(BadFragments::Encoding));
    let refused = assembly.add(clear.block(first.chunk, 0), clear, one.clone().into());
    assert!(refused.is_err(), "{refused:?}");
    let good = first.encoding.block(first.chunk, 0);
    let made = assembly.add(good, first.encoding.clone(), first.stored(0).unwrap().clone());
    assert_eq!(made, Ok(Gathered::Whole(one.into())));
}

#[test]
fn who_has_the_key_and_lies_about_content_is_found_out_by_readers() {
    let own = key(1);
    let (one, two) = (content(50_000, 1), content(50_000, 2));
    let chunk = chunk_of(&one, &own);
    // Signed for the name of one content, and holds the other.
    let lie = Blocks::sealed(chunk, 0, &two, (Code::COPY, MAKER), &own);
    assert_eq!(genuine(&lie.encoding.block(chunk.id, 0), &lie.encoding, lie.stored(0).unwrap()), Ok(()));
    let refused = put_together(&lie, chunk, &[0], Arc::new(Own(own))).unwrap_err();
    assert_eq!(refused, BadFragments::Encoding);
}

#[test]
fn blocks_are_made_anew_without_the_key_as_fragments_and_as_copies() {
    let (own, plain) = (key(1), content(200_000, 0));
    for effort in [Effort::Store, Effort::Zstd(1)] {
        let blocks = sealed(&plain, effort, Code::erasure(3, 2).unwrap(), &own);
        let chunk = chunk_of(&plain, &own);
        let gathered = |numbers: [u8; 3]| {
            let mut remaking = Remaking::new(chunk.id, blocks.encoding.id(chunk.id));
            for number in numbers {
                let stored = blocks.stored(number).unwrap().clone();
                remaking.add(number, blocks.encoding.clone(), stored).unwrap();
            }
            remaking
        };
        let again = gathered([1, 3, 4]).remake(false).unwrap();
        assert_eq!(again.encoding, blocks.encoding);
        assert_eq!(again.stored(0), blocks.stored(0));
        let copy = gathered([0, 2, 4]).remake(true).unwrap();
        let block = copy.encoding.block(chunk.id, 0);
        assert_eq!(genuine(&block, &copy.encoding, copy.stored(0).unwrap()), Ok(()));
        assert_eq!(
            copy.encoding,
            sealed(&plain, effort, Code::COPY, &own).encoding,
            "as its client makes it"
        );
        let made = put_together(&copy, chunk, &[0], Arc::new(Own(Arc::clone(&own)))).unwrap();
        assert!(made.is_some_and(|made| made == plain));
    }
}

#[test]
fn fragments_that_nobody_signed_make_no_copy() {
    let own = key(1);
    let plain = content(200_000, 0);
    let chunk = chunk_of(&plain, &own);
    let code = Code::erasure(3, 2).unwrap();
    // Fragments are told by their hashes alone, so somebody without the key can make some that agree with each other.
    let forged =
        Blocks::sealed(ChunkRef { id: key(2).name(&plain), ..chunk }, 0, &plain, (code, MAKER), &key(2));
    let id = forged.encoding.id(chunk.id);
    let mut remaking = Remaking::new(chunk.id, id);
    for number in 0..3 {
        remaking.add(number, forged.encoding.clone(), forged.stored(number).unwrap().clone()).unwrap();
    }
    assert_eq!(remaking.remake(true).err(), Some(BadFragments::Encoding));
    let mut remaking = Remaking::new(chunk.id, id);
    for number in 0..3 {
        remaking.add(number, forged.encoding.clone(), forged.stored(number).unwrap().clone()).unwrap();
    }
    assert_eq!(remaking.remake(false).err(), Some(BadFragments::Encoding), "nor fragments");
}
