//! In whose favour a block of a chunk goes.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use stdchk_model::{EncodingId, Trust};

use crate::holders::{Held, copies, group_distance, on_disks};

/// The encoding in fragments of which these blocks alone keep the distance `wanted`, so that all else could go: fragments take less space
/// than copies that are as far from loss. A trusted one comes before those that their makers alone vouch for, then the one that takes the least
/// space. None where a single copy is enough, and there.
pub fn favoured(held: &[Held], wanted: u8) -> Option<EncodingId> {
    let is_copy_enough = wanted <= 1 && copies(held.iter().copied()) > 0;
    if is_copy_enough { None } else { sufficient(held, wanted) }
}

/// The encoding that keeps a chunk at the distance `wanted` alone, so that a block may go that isn't among those that stay: copies, which have the name of
/// a plain one here; or blocks of the block's own encoding; or those of another one, trusted ones first.
pub fn in_favour_of(block: &Held, staying: &[Held], wanted: u8) -> Option<EncodingId> {
    let (own, staying) = (block.encoding, &on_disks(staying)[..]);
    let is_own_enough = || {
        let held = staying.iter().copied();
        !own.code.is_copy() && block.trust != Trust::Broken && group_distance(held, own) >= wanted
    };
    match copies(staying.iter().copied()) >= wanted {
        true => Some(EncodingId::PLAIN),
        false if is_own_enough() => Some(own),
        false => sufficient(staying, wanted),
    }
}

/// The encoding in fragments of which there are enough for the distance `wanted`: trusted ones first, then the one that takes the least space.
fn sufficient(held: &[Held], wanted: u8) -> Option<EncodingId> {
    let fragments =
        held.iter().filter(|block| !block.encoding.code.is_copy() && block.trust != Trust::Broken);
    let all: BTreeSet<(Reverse<bool>, u32, EncodingId)> = fragments
        .map(|block| {
            let code = block.encoding.code;
            let size = 1000 * u32::from(code.blocks()) / u32::from(code.data());
            (Reverse(block.trust == Trust::Trusted), size, block.encoding)
        })
        .collect();
    let suffices = |encoding: &EncodingId| group_distance(held.iter().copied(), *encoding) >= wanted;
    all.into_iter().map(|(_, _, encoding)| encoding).find(suffices)
}

#[cfg(test)]
mod tests {
    use stdchk_model::{BenefactorId, Code, Maker, Tier};

    use super::*;

    fn blocks(code: (u8, u8), tag: u8, trust: Trust, count: u8) -> impl Iterator<Item = Held> {
        let code = Code::erasure(code.0, code.1).unwrap();
        let encoding = EncodingId { code, tag: [tag; 16], maker: Maker::LOCAL };
        (0..count).map(move |index| {
            let benefactor = BenefactorId(u32::from(index));
            Held { benefactor, encoding, index, tier: Tier::Disk, trust }
        })
    }

    fn copies(count: u8) -> impl Iterator<Item = Held> {
        let block = |held: Held| Held { encoding: EncodingId::PLAIN, index: 0, ..held };
        blocks((2, 1), 0, Trust::Trusted, count).map(block)
    }

    #[test]
    fn fragments_that_suffice_alone_are_favoured_the_trusted_ones_first_and_never_broken_ones() {
        let (small, large) = (blocks((4, 2), 1, Trust::Claimed, 6), blocks((2, 2), 2, Trust::Trusted, 4));
        let all: Vec<Held> = copies(3).chain(small).chain(large).collect();
        let tag = |held: &[Held], wanted| favoured(held, wanted).map(|encoding| encoding.tag[0]);
        assert_eq!(tag(&all, 3), Some(2));
        assert_eq!(tag(&all, 4), None, "neither suffices");
        assert_eq!(tag(&all, 1), None, "a copy does");
        let claimed: Vec<Held> = all.iter().map(|held| Held { trust: Trust::Claimed, ..*held }).collect();
        assert_eq!(tag(&claimed, 3), Some(1), "the smaller one");
        let broken: Vec<Held> = all.iter().map(|held| Held { trust: Trust::Broken, ..*held }).collect();
        assert_eq!(tag(&broken, 2), None);
        let some: Vec<Held> = copies(3).chain(blocks((4, 2), 1, Trust::Trusted, 5)).collect();
        assert_eq!((tag(&some, 3), tag(&some, 2)), (None, Some(1)));
    }
}
