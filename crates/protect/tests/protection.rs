//! Properties of protection: any blocks that suffice make the chunk, no liar gets through, and distances are never too large.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::prelude::*;
use stdchk_model::limits::CODE_BLOCKS_MAX;
use stdchk_model::{BenefactorId, ChunkId, ChunkRef, Code, Durability, EncodingId, Maker, Tier, Trust};
use stdchk_protect::{
    Assembly, BadFragments, Blocks, Gathered, Held, Plan, Remaking, copies_in_memory, distance,
    distance_among, distance_at_best, genuine, in_favour_of, missing, plan, plan_at, suffices, surplus,
    taken,
};
use stdchk_reduce::{Compressor, Effort};

const MAKER: Maker = Maker([7; 8]);

fn content(length: usize, seed: u8) -> Vec<u8> {
    // Compressible, and different for each seed.
    (0..length).map(|at| (at / 7) as u8 ^ (at >> 9) as u8 ^ seed).collect()
}

fn chunk_of(content: &[u8]) -> ChunkRef {
    ChunkRef { id: ChunkId::of(content), length: u32::try_from(content.len()).unwrap() }
}

/// The blocks of `content` under a codec and a code.
fn blocks(content: &[u8], effort: Effort, code: Code) -> Blocks {
    let mut compressor = Compressor::new(effort).unwrap();
    let (codec, encoded) = compressor.compress(content);
    Blocks::of(chunk_of(content), codec.number(), Bytes::from(encoded.into_owned()), code, MAKER)
}

/// Blocks of another chunk under the name of `content`.
fn said_to_be(content: &[u8], mut blocks: Blocks) -> Blocks {
    blocks.chunk = ChunkId::of(content);
    blocks
}

fn code() -> impl Strategy<Value = Code> {
    let erasure =
        (2..=20u8, 1..=12u8).prop_filter_map("too many", |(data, parity)| Code::erasure(data, parity));
    prop_oneof![1 => Just(Code::COPY), 4 => erasure]
}

fn effort() -> impl Strategy<Value = Effort> {
    prop_oneof![Just(Effort::Store), Just(Effort::Lz4), Just(Effort::Zstd(1))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_blocks_that_suffice_make_the_chunk_in_any_order(
        length in 100_000..300_000usize,
        (code, effort) in (code(), effort()),
        order in Just((0..CODE_BLOCKS_MAX).collect::<Vec<_>>()).prop_shuffle(),
        lie in proptest::option::of(0..CODE_BLOCKS_MAX),
    ) {
        let content = content(length, 0);
        let made = blocks(&content, effort, code);
        prop_assume!(made.encoding.block_length() >= 4096 || code.is_copy());
        let all: Vec<_> = made.iter().map(|(block, stored)| (block, stored.clone())).collect();
        prop_assert_eq!(all.len(), usize::from(code.blocks()));
        let mut assembly = Assembly::new(chunk_of(&content));
        let (mut good, mut lies, mut whole) = (0, 0, None);
        for at in order.into_iter().filter(|at| *at < all.len()) {
            let (block, stored) = &all[at];
            prop_assert!(genuine(block, &made.encoding, stored).is_ok());
            let (mut served, is_lie) = (stored.to_vec(), lie == Some(at));
            if is_lie {
                served[stored.len() / 2] ^= 4;
                prop_assert!(genuine(block, &made.encoding, &served).is_err());
            }
            good += u8::from(!is_lie);
            lies += u8::from(is_lie);
            match assembly.add(*block, made.encoding.clone(), served.into()) {
                Ok(Gathered::Lacks(count)) => prop_assert_eq!(count, code.data() - good - lies),
                Ok(Gathered::Whole(bytes)) => { whole = Some(bytes); break; }
                Err(BadFragments::Fragments(wrong)) => {
                    prop_assert_eq!(wrong.into_iter().map(usize::from).collect::<Vec<_>>(), Vec::from_iter(lie));
                    prop_assert_eq!(good + lies, code.data(), "they seemed to suffice");
                    lies = 0;
                }
                Err(_) => prop_assert!(is_lie && code.is_copy(), "what is good is taken"),
            }
        }
        let sufficed = whole.is_some();
        prop_assert_eq!(sufficed, good >= code.data());
        prop_assert!(whole.is_none_or(|whole| *whole == content[..]));
    }

    #[test]
    fn a_copy_of_any_blocks_is_genuine_and_makes_the_chunk(
        length in 1..300_000usize,
        (code, effort) in (code(), effort()),
    ) {
        let content = content(length, 5);
        let copy = blocks(&content, effort, code).to_copy();
        prop_assert!(copy.encoding.code.is_copy());
        let block = copy.encoding.block(copy.chunk, 0);
        let stored = copy.stored(0).unwrap().clone();
        prop_assert_eq!(genuine(&block, &copy.encoding, &stored), Ok(()));
        let whole = Assembly::new(chunk_of(&content)).add(block, copy.encoding, stored);
        prop_assert_eq!(whole, Ok(Gathered::Whole(Bytes::from(content))));
    }

    #[test]
    fn lost_blocks_are_made_anew_exactly_from_any_that_suffice(
        (data, parity) in (2..8u8, 1..6u8),
        chosen in Just((0..13u8).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let code = Code::erasure(data, parity).unwrap();
        let content = content(200_001, 3);
        let made = blocks(&content, Effort::Zstd(1), code);
        prop_assume!(made.encoding.block_length() >= 4096);
        let mut remaking = Remaking::new(made.chunk, made.encoding.id(made.chunk));
        let mut lacks = data;
        for index in chosen.into_iter().filter(|index| *index < code.blocks()).take(usize::from(data)) {
            lacks = remaking.add(index, made.encoding.clone(), made.stored(index).unwrap().clone()).unwrap();
        }
        prop_assert_eq!(lacks, 0);
        let again = remaking.remake(false).unwrap();
        prop_assert_eq!(&again.encoding, &made.encoding);
        prop_assert!(again.iter().zip(made.iter()).all(|(again, made)| again == made));
    }
}

/// Parity fragments are in the names of blocks: a library that computed others could make no lost fragment anew.
#[test]
fn parity_fragments_are_those_that_stored_blocks_have() {
    let made = blocks(&content(200_001, 3), Effort::Store, Code::erasure(3, 2).unwrap());
    let [.., first, second] = &made.encoding.hashes[..] else { panic!("two parity fragments") };
    assert_eq!(first.to_string(), "694ae7dee91ebabd232338645743f0fa6cfa9a81c74af32e4b9038a9891699f0");
    assert_eq!(second.to_string(), "8b75ea730dafa4cae1406caed1d712d3fe419bb3e3db1259fd40fa09de536bb5");
}

#[test]
fn fragments_of_another_encoding_are_not_mixed_in() {
    let (content, code) = (content(200_000, 0), Code::erasure(3, 2).unwrap());
    let (one, other) = (blocks(&content, Effort::Store, code), blocks(&content, Effort::Lz4, code));
    let mut assembly = Assembly::new(chunk_of(&content));
    let mut add = |blocks: &Blocks, index: u8| {
        let block = blocks.encoding.block(blocks.chunk, index);
        assembly.add(block, blocks.encoding.clone(), blocks.stored(index).unwrap().clone()).unwrap()
    };
    assert_eq!(add(&one, 0), Gathered::Lacks(2));
    assert_eq!(add(&other, 1), Gathered::Lacks(2), "it begins a count of its own");
    assert_eq!(add(&one, 4), Gathered::Lacks(1));
    assert_eq!(add(&one, 4), Gathered::Lacks(1), "the same block twice is one");
    assert_eq!(add(&other, 2), Gathered::Lacks(1));
    assert!(matches!(add(&one, 2), Gathered::Whole(bytes) if bytes[..] == content[..]));
}

#[test]
fn an_encoding_whose_blocks_match_and_make_another_chunk_is_found_out() {
    let (content, other) = (content(200_000, 0), content(200_000, 9));
    let code = Code::erasure(3, 2).unwrap();
    let lie = said_to_be(&content, blocks(&other, Effort::Store, code));
    let mut assembly = Assembly::new(chunk_of(&content));
    let added: Vec<_> = lie
        .iter()
        .take(3)
        .map(|(block, stored)| assembly.add(block, lie.encoding.clone(), stored.clone()))
        .collect();
    assert_eq!(added, [Ok(Gathered::Lacks(2)), Ok(Gathered::Lacks(1)), Err(BadFragments::Encoding)]);
    let good = blocks(&content, Effort::Store, code);
    let last = good
        .iter()
        .take(3)
        .map(|(block, stored)| assembly.add(block, good.encoding.clone(), stored.clone()).unwrap());
    assert!(matches!(last.last(), Some(Gathered::Whole(_))), "the others are enough");
}

/// Repair must not spread what doesn't make the chunk, whatever the codec, nor call it good.
#[test]
fn nothing_is_made_anew_of_blocks_that_make_another_chunk() {
    let (content, other) = (content(200_000, 0), content(200_000, 9));
    for effort in [Effort::Store, Effort::Lz4, Effort::Zstd(1)] {
        let lie = said_to_be(&content, blocks(&other, effort, Code::erasure(3, 2).unwrap()));
        for as_copies in [false, true] {
            let mut remaking = Remaking::new(lie.chunk, lie.encoding.id(lie.chunk));
            for (block, stored) in lie.iter().skip(1).take(3) {
                remaking.add(block.index, lie.encoding.clone(), stored.clone()).unwrap();
            }
            assert_eq!(
                remaking.remake(as_copies).err(),
                Some(BadFragments::Encoding),
                "{effort:?} {as_copies}"
            );
        }
    }
}

#[test]
fn a_copy_that_decodes_to_another_chunk_is_not_genuine() {
    let (content, other) = (content(50_000, 0), content(50_000, 9));
    let lie = said_to_be(&content, blocks(&other, Effort::Lz4, Code::COPY));
    let (block, stored) = lie.iter().next().unwrap();
    assert!(genuine(&block, &lie.encoding, stored).is_err());
    let plain = said_to_be(&content, blocks(&other, Effort::Store, Code::COPY));
    let (block, stored) = plain.iter().next().unwrap();
    assert!(genuine(&block, &plain.encoding, stored).is_err(), "a copy that is stored as it is is the chunk");
}

// --- holders

fn encoding(code: Code, number: u8) -> EncodingId {
    EncodingId { code, tag: [number; 16], maker: Maker::LOCAL }
}

/// Benefactors that keep blocks in memory.
const IN_MEMORY: std::ops::Range<u32> = 50..53;

fn held_at(benefactor: u32, encoding: EncodingId, index: u8) -> Held {
    let tier = if IN_MEMORY.contains(&benefactor) { Tier::Memory } else { Tier::Disk };
    Held { benefactor: BenefactorId(benefactor), encoding, index, tier, trust: Trust::Trusted }
}

fn on_disks(held: &[Held]) -> Vec<Held> {
    held.iter().filter(|block| block.tier == Tier::Disk).copied().collect()
}

fn held() -> impl Strategy<Value = Vec<Held>> {
    let codes = [Code::COPY, Code::COPY, Code::erasure(2, 1).unwrap(), Code::erasure(3, 2).unwrap()];
    let benefactor = prop_oneof![4 => 0..7u32, 1 => IN_MEMORY];
    let one = (benefactor, 0..codes.len(), 0..5u8).prop_map(move |(benefactor, of, index)| {
        let code = codes[of];
        held_at(benefactor, encoding(code, u8::try_from(of).unwrap()), index % code.blocks())
    });
    proptest::collection::vec(one, 0..9)
}

/// Whether blocks suffice to read the chunk.
fn is_readable(held: &[Held]) -> bool {
    held.iter().any(|block| {
        let own = held.iter().filter(|other| other.encoding == block.encoding);
        own.map(|block| block.index).collect::<BTreeSet<_>>().len() >= usize::from(block.encoding.code.data())
    })
}

/// The true distance, by trying all losses.
fn true_distance(held: &[Held]) -> u8 {
    let hosts: Vec<BenefactorId> =
        held.iter().map(|block| block.benefactor).collect::<BTreeSet<_>>().into_iter().collect();
    let is_lost = |left: &[Held]| !is_readable(left);
    let lost = (0..1u32 << hosts.len()).filter(|bits| {
        let is_left = |block: &&Held| {
            let at = hosts.iter().position(|host| *host == block.benefactor).unwrap();
            bits & 1 << at == 0
        };
        is_lost(&held.iter().filter(is_left).copied().collect::<Vec<_>>())
    });
    u8::try_from(lost.map(u32::count_ones).min().unwrap()).unwrap()
}

fn distance_of(held: &[Held]) -> u8 {
    distance(held.iter().copied())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_distance_is_never_larger_than_the_losses_that_it_takes(held in held()) {
        let (told, truth) = (distance_of(&held), true_distance(&on_disks(&held)));
        prop_assert!(told <= truth, "{told} > {truth}");
        prop_assert_eq!(told > 0, truth > 0, "what can be read is not called lost, nor the other way round");
        prop_assert_eq!(stdchk_protect::is_readable(held.iter().copied()), is_readable(&held));
    }

    #[test]
    fn what_lies_in_memory_changes_nothing_of_what_is_counted_missing_or_kept(
        held in held(),
        wanted in 0..5u8,
        away in 0..8u32,
    ) {
        let disks = on_disks(&held);
        prop_assert_eq!(distance_of(&held), distance_of(&disks));
        for encoding in held.iter().map(|block| block.encoding).chain([EncodingId::PLAIN]) {
            prop_assert_eq!(missing(&held, encoding, wanted), missing(&disks, encoding, wanted));
            prop_assert_eq!(taken(&held, encoding), taken(&disks, encoding));
        }
        let readable: Vec<Held> = held.iter().filter(|block| block.benefactor.0 != away).copied().collect();
        prop_assert_eq!(plan(&readable, &held, wanted), plan(&readable, &disks, wanted));
        let gone = surplus(&held, wanted);
        let is_enough = wanted > 0 && distance_of(&disks) >= wanted;
        prop_assert!(held.iter().all(|block| block.tier == Tier::Disk || gone.contains(block) == is_enough));
        prop_assert_eq!(on_disks(&gone), surplus(&disks, wanted));
    }

    #[test]
    fn a_commit_is_content_with_memory_only_if_it_says_so(held in held(), distance in 1..4u8, hosts in 1..4u8) {
        let copies = held.iter().filter(|block| block.tier == Tier::Memory && block.encoding.code.is_copy());
        let in_memory = copies.map(|block| block.benefactor).collect::<BTreeSet<_>>().len();
        prop_assert_eq!(usize::from(copies_in_memory(held.iter().copied())), in_memory);
        let suffices = |needed| suffices(held.iter().copied(), needed);
        let on_disks = distance_of(&held) >= distance;
        prop_assert_eq!(suffices(Durability::on_disks(distance)), on_disks);
        let either = Durability { distance, in_memory: Some(hosts) };
        prop_assert_eq!(suffices(either), on_disks || in_memory >= usize::from(hosts));
    }

    #[test]
    fn what_is_surplus_leaves_enough(held in held(), wanted in 0..5u8) {
        let gone = surplus(&held, wanted);
        let kept: Vec<Held> = held.iter().filter(|block| !gone.contains(block)).copied().collect();
        prop_assert!(gone.is_empty() || distance_of(&kept) >= wanted);
        prop_assert!(wanted > 0 || gone.is_empty());
    }

    #[test]
    fn a_plan_that_is_carried_out_reaches_what_is_wanted(held in held(), wanted in 1..5u8, away in 0..8u32) {
        let readable: Vec<Held> = held.iter().filter(|block| block.benefactor.0 != away).copied().collect();
        let Some(plan) = plan(&readable, &held, wanted) else {
            prop_assert!(distance_of(&held) >= wanted || !is_readable(&readable));
            return Ok(());
        };
        prop_assert!(distance_of(&held) < wanted && plan.from.iter().all(|block| readable.contains(block)));
        prop_assert!(is_readable(&plan.from));
        // At others than those that are taken, also where blocks of other encodings are.
        let after = carried_out(&plan, &held, (0..7).chain(100..));
        prop_assert!(distance_of(&after) >= wanted, "{plan:?} leads to {after:?}");
    }

    #[test]
    fn a_plan_leads_as_near_to_what_is_wanted_as_the_benefactors_with_room_allow(
        held in held(),
        wanted in 1..5u8,
        away in 0..8u32,
        hosts in proptest::sample::subsequence((0..9u32).collect::<Vec<_>>(), 0..=3),
    ) {
        let readable: Vec<Held> = held.iter().filter(|block| block.benefactor.0 != away).copied().collect();
        let with_room: Vec<BenefactorId> = hosts.iter().copied().map(BenefactorId).collect();
        let (now, best) = (distance_of(&held), best_distance(&readable, &held, &hosts).min(wanted));
        let plan = plan_at(&readable, &held, wanted, Some(&with_room));
        prop_assert_eq!(plan.is_some(), now < wanted && is_readable(&readable));
        if let Some(plan) = plan {
            let after = carried_out(&plan, &held, hosts.into_iter());
            prop_assert!(distance_of(&after) >= best, "{plan:?} leads to {after:?}, not as far as {best}");
        }
    }
}

/// Blocks of which some are made up: each with whether its encoding makes the chunk. Copies do; what is trusted does, what is broken doesn't; of what
/// is claimed nobody knows.
fn doubtful() -> impl Strategy<Value = Vec<(Held, bool)>> {
    let kinds = proptest::collection::vec(0..3u8, 4);
    (held(), kinds).prop_map(|(held, kinds)| {
        let with_trust = |block: Held| {
            let kind = kinds[usize::from(block.encoding.tag[0])];
            let (trust, is_right) = match (block.encoding.code.is_copy(), kind) {
                (true, _) | (_, 0) => (Trust::Trusted, true),
                (_, 1) => (Trust::Claimed, block.encoding.tag[0] == 2),
                _ => (Trust::Broken, false),
            };
            (Held { trust, ..block }, is_right)
        };
        held.into_iter().map(with_trust).collect()
    })
}

fn all_of(doubtful: &[(Held, bool)]) -> Vec<Held> {
    doubtful.iter().map(|(block, _)| *block).collect()
}

fn right_of(doubtful: &[(Held, bool)]) -> Vec<Held> {
    doubtful.iter().filter(|(_, is_right)| *is_right).map(|(block, _)| *block).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn what_is_made_up_makes_no_chunk_look_safer_than_it_is(doubtful in doubtful(), wanted in 1..4u8) {
        let (all, right) = (all_of(&doubtful), right_of(&doubtful));
        let truth = true_distance(&on_disks(&right));
        // Where nothing that is right is left, only decoding tells.
        if is_readable(&right) {
            prop_assert!(distance_of(&all) <= truth, "{} > {truth}", distance_of(&all));
        }
        prop_assert!(distance_at_best(all.iter().copied()) >= distance_of(&all));
        let needed = Durability::on_disks(wanted);
        prop_assert!(!suffices(all.iter().copied(), needed) || truth >= wanted);
        let honest = right.iter().map(|block| Held { trust: Trust::Trusted, ..*block });
        let trusted = all.iter().filter(|block| block.trust == Trust::Trusted).copied();
        prop_assert_eq!(suffices(all.iter().copied(), needed), distance(trusted) >= wanted);
        prop_assert!(distance(honest) <= truth);
    }

    #[test]
    fn nothing_that_may_be_needed_goes_in_favour_of_what_is_made_up(doubtful in doubtful(), wanted in 1..4u8) {
        let all = all_of(&doubtful);
        let gone = surplus(&all, wanted);
        let right = right_of(&doubtful);
        let kept: Vec<Held> = right.iter().filter(|block| !gone.contains(block)).copied().collect();
        let (before, after) = (true_distance(&on_disks(&right)), true_distance(&on_disks(&kept)));
        prop_assert!(after >= before.min(wanted), "{before} before, {after} without {gone:?}");
    }

    #[test]
    fn blocks_that_are_to_go_go_only_once_what_stays_has_what_is_wanted(
        doubtful in doubtful(),
        wanted in 1..4u8,
        leaving in proptest::collection::btree_set(0..7u32, 0..4),
    ) {
        let leaves = |block: &Held| leaving.contains(&block.benefactor.0);
        let all = all_of(&doubtful);
        let staying: Vec<Held> = all.iter().filter(|block| !leaves(block)).copied().collect();
        let right = right_of(&doubtful);
        // What is of another encoding its holder has decoded, and then it is trusted.
        let is_known = |block: &Held, encoding: EncodingId| {
            let mut of_it = staying.iter().filter(|other| other.encoding == encoding);
            encoding == block.encoding || of_it.all(|other| other.trust == Trust::Trusted)
        };
        let spared = |block: &Held| {
            leaves(block) && in_favour_of(block, &staying, wanted).is_some_and(|one| is_known(block, one))
        };
        let kept: Vec<Held> = right.iter().filter(|block| !spared(block)).copied().collect();
        let (before, after) = (true_distance(&on_disks(&right)), true_distance(&on_disks(&kept)));
        prop_assert!(after >= before.min(wanted), "{before} before, {after} after");
        // As long as what stays is told to have what is wanted, it has, if anything has.
        let told = distance_among(staying.iter().copied(), all.iter().copied());
        let stays: Vec<Held> = right.iter().filter(|block| !leaves(block)).copied().collect();
        prop_assert!(!is_readable(&right) || told <= true_distance(&on_disks(&stays)));
    }

    #[test]
    fn a_plan_leads_to_what_is_wanted_whatever_is_made_up(doubtful in doubtful(), wanted in 1..5u8) {
        let all = all_of(&doubtful);
        let Some(plan) = plan(&all, &all, wanted) else {
            prop_assert!(distance_of(&all) >= wanted || !stdchk_protect::is_readable(all.iter().copied()));
            return Ok(());
        };
        prop_assert!(plan.from.iter().all(|block| block.trust != Trust::Broken));
        let after = carried_out(&plan, &all, (0..7).chain(100..));
        prop_assert!(distance_of(&after) >= wanted, "{plan:?} leads to {after:?}");
    }
}

/// What is held once a plan was carried out, as far as `hosts` suffice.
fn carried_out(plan: &Plan, held: &[Held], hosts: impl Iterator<Item = u32>) -> Vec<Held> {
    let made = |(benefactor, index): (BenefactorId, &Option<u8>)| {
        let (encoding, index) = match index {
            Some(index) => (plan.from[0].encoding, *index),
            None => (encoding(Code::COPY, 77), 0),
        };
        held_at(benefactor.0, encoding, index)
    };
    let free = hosts.map(BenefactorId).filter(|host| !plan.taken.contains(host));
    // What was made was decoded before.
    let trusted = |block: &Held| match block.encoding == plan.from[0].encoding {
        true => Held { trust: Trust::Trusted, ..*block },
        false => *block,
    };
    held.iter().map(trusted).chain(free.zip(&plan.make).map(made)).collect()
}

/// The largest distance that blocks at `hosts` lead to, made in any way of what is readable, found by trying all ways.
fn best_distance(readable: &[Held], held: &[Held], hosts: &[u32]) -> u8 {
    let encodings: BTreeSet<EncodingId> = readable.iter().map(|block| block.encoding).collect();
    let of = |encoding| readable.iter().filter(move |block| block.encoding == encoding).copied();
    let made_of = encodings.into_iter().filter(|encoding| is_readable(&of(*encoding).collect::<Vec<_>>()));
    let mut best = distance_of(held);
    for encoding in made_of.flat_map(|encoding| [encoding, EncodingId::PLAIN]) {
        // A digit for each host: no block, or which one.
        let choices = usize::from(encoding.code.blocks()) + 1;
        for number in 0..choices.pow(hosts.len() as u32) {
            let digit = |at: usize| number / choices.pow(at as u32) % choices;
            let block = |(at, host): (usize, &u32)| {
                let index = digit(at).checked_sub(1)? as u8;
                Some(held_at(*host, encoding, index))
            };
            let after: Vec<Held> =
                held.iter().copied().chain(hosts.iter().enumerate().filter_map(block)).collect();
            best = best.max(distance_of(&after));
        }
    }
    best
}

/// Three benefactors can't have six fragments each at another one; that each has a copy is as good.
#[test]
fn copies_stand_in_for_fragments_that_there_are_too_few_benefactors_for() {
    let wide = encoding(Code::erasure(6, 2).unwrap(), 5);
    let at = |benefactor: u32, index| held_at(benefactor, wide, index);
    let held: Vec<Held> = (0..8u8).map(|index| at(u32::from(index) % 3, index)).collect();
    let all: Vec<BenefactorId> = (0..20).map(BenefactorId).collect();
    assert_eq!(distance_of(&held), 1);
    let few = plan_at(&held, &held, 3, Some(&all[..3])).unwrap();
    assert_eq!((&few.make[..], &few.taken[..]), (&[None; 3][..], &[][..]));
    let many = plan_at(&held, &held, 3, Some(&all)).unwrap();
    assert!(many.make.iter().all(Option::is_some), "fragments take less space: {many:?}");
}

/// Benefactors came back, and the copies that stood in for their fragments are not needed any more. Whether the fragments make the chunk, the
/// holders of the copies have to see first.
#[test]
fn copies_stay_beside_fragments_that_are_enough_and_fragments_that_are_not_go() {
    let code = encoding(Code::erasure(3, 2).unwrap(), 5);
    let block = held_at;
    let fragments: Vec<Held> = (0..5u8).map(|index| block(u32::from(index), code, index)).collect();
    let copies: Vec<Held> = (0..3).map(|benefactor| block(benefactor, EncodingId::PLAIN, 0)).collect();
    let all = |fragments: &[Held]| [fragments, &copies].concat();
    assert_eq!(surplus(&all(&fragments), 3), []);
    assert_eq!(surplus(&all(&fragments[..4]), 3), &fragments[..4]);
    let kept = |wanted| -> Vec<Held> {
        let all = all(&fragments);
        let gone = surplus(&all, wanted);
        all.into_iter().filter(|block| !gone.contains(block)).collect()
    };
    assert_eq!(kept(2), [&fragments[1..], &copies[1..]].concat());
    assert_eq!(
        kept(1),
        &copies[2..],
        "three fragments are as large as a copy, and any of three losses takes them"
    );
}

/// A benefactor came back whose fragment had been made anew elsewhere; then another fragment was lost.
#[test]
fn a_benefactor_whose_fragment_another_one_has_too_can_take_one_that_is_lost() {
    let code = encoding(Code::erasure(3, 2).unwrap(), 5);
    let at = |benefactor: u32, index| held_at(benefactor, code, index);
    let held = [at(1, 1), at(2, 2), at(3, 3), at(4, 4), at(5, 4)];
    let hosts: Vec<BenefactorId> = (1..6).map(BenefactorId).collect();
    let plan = plan_at(&held, &held, 3, Some(&hosts)).unwrap();
    assert_eq!(plan.make, [Some(0)]);
    assert_eq!(distance_of(&carried_out(&plan, &held, 1..6)), 3);
}
