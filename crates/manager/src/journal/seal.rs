//! Pieces of the journal are sealed: benefactors keep names and secrets of the pool that they may not read, and none makes a piece.
//!
//! The cipher is AES-256-GCM. Its key comes from the key of the pool's authority, so whoever recovers a pool needs that; in a pool of
//! one machine, where all processes are of one user, from the pool's identity. Each start of the manager has a key of its own, and
//! no two pieces of a start have the same commit and part, so no nonce is used for two texts. What stands beside the sealed bytes is
//! checked with them.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use stdchk_model::journal::Piece;
use stdchk_model::message::manager::Moment;
use stdchk_model::{PoolId, Signed};
use stdchk_net::Authority;

const OF_AUTHORITY: &str = "stdchk journal, key of an authority 1";
const OF_POOL: &str = "stdchk journal, pool of one machine 1";
/// In place of a part's number.
const COMMIT: u32 = u32::MAX;

/// Seals and opens pieces.
pub struct Sealer {
    secret: [u8; 32],
    /// Which key it is.
    id: u64,
}

impl Sealer {
    /// For a pool with this authority; without one all of it is on one machine.
    pub fn new(pool: PoolId, authority: Option<&Authority>) -> Self {
        let secret = authority
            .map_or_else(|| blake3::derive_key(OF_POOL, &pool.0), |authority| authority.derive(OF_AUTHORITY));
        let [a, b, c, d, e, f, g, h, ..] = *blake3::keyed_hash(&secret, b"id").as_bytes();
        Self { secret, id: u64::from_le_bytes([a, b, c, d, e, f, g, h]) }
    }

    /// Which key it seals with.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Seals a part of a base.
    pub fn base(&self, moment: Moment, part: u32, last: bool, mut bytes: Vec<u8>) -> Piece {
        self.seal(moment, part, [u64::from(last)], &mut bytes);
        Piece::Base { moment: Signed::not_yet(moment), key: self.id, part, last, sealed: bytes }
    }

    /// Seals the changes of a commit; `before` made the one before it.
    pub fn commit(&self, moment: Moment, before: u64, mut bytes: Vec<u8>) -> Piece {
        self.seal(moment, COMMIT, [before], &mut bytes);
        Piece::Commit { moment: Signed::not_yet(moment), before, sealed: bytes }
    }

    fn seal(&self, moment: Moment, part: u32, beside: [u64; 1], bytes: &mut Vec<u8>) {
        let (key, nonce, beside) = self.parts(moment, part, beside);
        let Ok(()) = key.seal_in_place_append_tag(nonce, Aad::from(beside), bytes) else {
            unreachable!("only what is longer than any piece is refused");
        };
    }

    /// What was sealed; `None`: somebody else made the piece, or changed it.
    pub fn open(&self, piece: Piece) -> Option<Vec<u8>> {
        let (moment, part, beside, mut sealed) = match piece {
            Piece::Base { moment, part, last, sealed, .. } if part != COMMIT => {
                (moment.what, part, u64::from(last), sealed)
            }
            Piece::Base { .. } => return None,
            Piece::Commit { moment, before, sealed } => (moment.what, COMMIT, before, sealed),
        };
        let (key, nonce, beside) = self.parts(moment, part, [beside]);
        let length = key.open_in_place(nonce, Aad::from(beside), &mut sealed).ok()?.len();
        sealed.truncate(length);
        Some(sealed)
    }

    fn parts(&self, moment: Moment, part: u32, [beside]: [u64; 1]) -> (LessSafeKey, Nonce, [u8; 8]) {
        let key = blake3::keyed_hash(&self.secret, &moment.start.to_le_bytes());
        let Ok(key) = UnboundKey::new(&AES_256_GCM, key.as_bytes()) else {
            unreachable!("a hash is as long as a key");
        };
        let mut nonce = [0; NONCE_LEN];
        let places = moment.commit.to_le_bytes().into_iter().chain(part.to_le_bytes());
        nonce.iter_mut().zip(places).for_each(|(to, from)| *to = from);
        (LessSafeKey::new(key), Nonce::assume_unique_for_key(nonce), beside.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_with_its_key_and_beside_what_it_was_sealed_with() {
        let (own, other) = (Sealer::new(PoolId([1; 16]), None), Sealer::new(PoolId([2; 16]), None));
        assert_ne!(own.id(), other.id());
        let moment = Moment { start: 7, commit: 3 };
        let pieces = [own.base(moment, 0, true, vec![1, 2]), own.commit(moment, 5, vec![1, 2])];
        for piece in pieces {
            assert_eq!(own.open(piece.clone()), Some(vec![1, 2]));
            assert_eq!(other.open(piece.clone()), None);
            for changed in changes(piece) {
                assert_eq!(own.open(changed.clone()), None, "{changed:?}");
            }
        }
    }

    fn changes(piece: Piece) -> Vec<Piece> {
        let moments = [Moment { start: 8, commit: 3 }, Moment { start: 7, commit: 4 }].map(Signed::not_yet);
        match piece {
            Piece::Base { moment, key, part, last, sealed } => {
                let with =
                    |moment, part, last, sealed: Vec<u8>| Piece::Base { moment, key, part, last, sealed };
                let [one, two] = moments.map(|moment| with(moment, part, last, sealed.clone()));
                let flipped = sealed.iter().map(|byte| byte ^ 1).collect();
                let as_commit = Piece::Commit { moment, before: u64::from(last), sealed: sealed.clone() };
                vec![
                    one,
                    two,
                    with(moment, 1, last, sealed.clone()),
                    with(moment, u32::MAX, last, sealed.clone()),
                    with(moment, part, !last, sealed),
                    with(moment, part, last, flipped),
                    as_commit,
                ]
            }
            Piece::Commit { moment, before, sealed } => {
                let with = |moment, before, sealed: Vec<u8>| Piece::Commit { moment, before, sealed };
                let [one, two] = moments.map(|moment| with(moment, before, sealed.clone()));
                let short = sealed[1..].to_vec();
                vec![one, two, with(moment, before + 1, sealed), with(moment, before, short)]
            }
        }
    }
}
