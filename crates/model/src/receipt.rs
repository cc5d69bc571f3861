//! Receipts: evidence of a benefactor that it holds blocks, which it gives to a client and the client to the manager.
//!
//! A client's word that a block is durable is worth nothing: the client may be mistaken (the block was collected while the
//! client was cut off) or lie. So the benefactor says it, in a form that a client can only pass on: with a keyed hash, whose
//! key the benefactor shares with the manager alone, for as long as the benefactor lives (docs/design/0601).

use std::fmt;

use minicbor::{Decode, Encode};

use crate::id::Incarnation;
use crate::message::manager::StoredBlock;

/// What receipts of one life of a benefactor are made and checked with: random, known to it and to the manager.
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(transparent)]
pub struct ReceiptKey(#[cbor(n(0), with = "minicbor::bytes")] pub [u8; 32]);

impl fmt::Debug for ReceiptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReceiptKey(secret)")
    }
}

/// Says that blocks are durable at a benefactor, and stay there unless they are deleted by an order of the manager that
/// is younger than `sequence`.
#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode)]
pub struct Receipt {
    /// The life of the benefactor that gave it.
    #[n(0)]
    pub incarnation: Incarnation,
    /// The put sequence as which all of the blocks count: an order to delete them that names an earlier one leaves them.
    #[n(1)]
    pub sequence: u64,
    /// The blocks.
    #[n(2)]
    pub blocks: Vec<StoredBlock>,
    /// Keyed hash of all of the above.
    #[cbor(n(3), with = "minicbor::bytes")]
    proof: [u8; 32],
}

impl Receipt {
    /// A receipt for `blocks`, made with the key of the life `incarnation`.
    pub fn new(key: &ReceiptKey, incarnation: Incarnation, sequence: u64, blocks: Vec<StoredBlock>) -> Self {
        let proof = *proof(key, incarnation, sequence, &blocks).as_bytes();
        Self { incarnation, sequence, blocks, proof }
    }

    /// Whether it was made with `key` and says what it said then.
    pub fn is_genuine(&self, key: &ReceiptKey) -> bool {
        // The comparison of `blake3::Hash` takes the same time wherever the bytes differ.
        proof(key, self.incarnation, self.sequence, &self.blocks) == blake3::Hash::from_bytes(self.proof)
    }
}

fn proof(key: &ReceiptKey, incarnation: Incarnation, sequence: u64, blocks: &[StoredBlock]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(&key.0);
    hasher.update(&incarnation.0.to_le_bytes());
    hasher.update(&sequence.to_le_bytes());
    for StoredBlock { block, plain_length, stored_length } in blocks {
        // Each block takes the same number of bytes, so no two lists look alike.
        hasher.update(&block.chunk.0);
        hasher.update(&block.encoding.code.number().to_le_bytes());
        hasher.update(&block.encoding.tag);
        hasher.update(&block.encoding.maker.0);
        hasher.update(&[block.index]);
        hasher.update(&plain_length.to_le_bytes());
        hasher.update(&stored_length.to_le_bytes());
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockId;
    use crate::id::ChunkId;

    fn stored(number: u8) -> StoredBlock {
        let block = BlockId::plain(ChunkId([number; 32]));
        StoredBlock { block, plain_length: 7, stored_length: 5 }
    }

    #[test]
    fn a_receipt_holds_for_what_its_benefactor_said_and_nothing_else() {
        let (key, other) = (ReceiptKey([1; 32]), ReceiptKey([2; 32]));
        let given = Receipt::new(&key, Incarnation(3), 9, vec![stored(1), stored(2)]);
        assert!(given.is_genuine(&key) && !given.is_genuine(&other));
        let forged = [
            Receipt { sequence: 10, ..given.clone() },
            Receipt { incarnation: Incarnation(4), ..given.clone() },
            Receipt { blocks: vec![stored(1), stored(3)], ..given.clone() },
            Receipt { blocks: vec![stored(1)], ..given.clone() },
            Receipt {
                blocks: vec![StoredBlock { plain_length: 8, ..stored(1) }, stored(2)],
                ..given.clone()
            },
            Receipt { blocks: vec![StoredBlock { stored_length: 6, ..stored(1) }, stored(2)], ..given },
        ];
        assert!(forged.iter().all(|forged| !forged.is_genuine(&key)));
    }
}
