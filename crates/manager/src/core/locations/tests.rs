//! Counts and lists of the index against a look at every chunk.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use stdchk_model::message::benefactor::{BenefactorLoad, Notice, OwnerWish};
use stdchk_model::message::manager::BenefactorState;
use stdchk_model::{Code, EncodingId, Ino, Maker, Tier};

use super::*;
use crate::core::Timing;

const BENEFACTORS: u32 = 5;
/// It keeps blocks in memory.
const IN_MEMORY: BenefactorId = BenefactorId(4);
const CHUNKS: u8 = 6;

#[derive(Clone, Debug)]
enum Event {
    Confirm(u8, u8, u32),
    Remove(u8, u8, u32),
    Refer(u8, u8, TimeNs),
    Unname(u8),
    Forget(u8),
    Take(u32, bool),
    TakeBlocked(u32),
    Unblock(u32),
    Care(u8, Care),
    Silent(u32),
    Heard(u32),
    NewLife(u32),
    Decide(u32, OwnerWish, bool),
    LetGo(u32, u64),
    LetStay(u32, u64),
}

fn event() -> impl Strategy<Value = Event> {
    let (chunk, benefactor) = (0..CHUNKS, 0..BENEFACTORS);
    let wish = prop_oneof![Just(OwnerWish::Serve), Just(OwnerWish::Pause), Just(OwnerWish::Drain)];
    let care =
        prop_oneof![Just(Care::Waits), Just(Care::Copied), Just(Care::CopiedSlowly), Just(Care::Failed)];
    prop_oneof![
        (chunk.clone(), 0..4u8, benefactor.clone())
            .prop_map(|(chunk, number, at)| Event::Confirm(chunk, number, at)),
        (chunk.clone(), 0..4u8, benefactor.clone())
            .prop_map(|(chunk, number, at)| Event::Remove(chunk, number, at)),
        (chunk.clone(), 1..4u8, 1..9i64).prop_map(|(chunk, wanted, at)| Event::Refer(chunk, wanted, at)),
        chunk.clone().prop_map(Event::Unname),
        chunk.clone().prop_map(Event::Forget),
        (benefactor.clone(), any::<bool>()).prop_map(|(at, soon)| Event::Take(at, soon)),
        benefactor.clone().prop_map(Event::TakeBlocked),
        benefactor.clone().prop_map(Event::Unblock),
        (chunk, care).prop_map(|(chunk, care)| Event::Care(chunk, care)),
        benefactor.clone().prop_map(Event::Silent),
        benefactor.clone().prop_map(Event::Heard),
        benefactor.clone().prop_map(Event::NewLife),
        (benefactor.clone(), wish, any::<bool>()).prop_map(|(at, wish, goes)| Event::Decide(at, wish, goes)),
        (benefactor.clone(), 0..40u64).prop_map(|(at, bytes)| Event::LetGo(at, bytes)),
        (benefactor, 0..40u64).prop_map(|(at, bytes)| Event::LetStay(at, bytes)),
    ]
}

fn id(chunk: u8) -> ChunkId {
    ChunkId([chunk; 32])
}

/// A block of a chunk: the chunk as it is, or a fragment.
fn block(chunk: u8, number: u8) -> BlockId {
    let encoding = EncodingId { code: Code::erasure(2, 1).unwrap(), tag: [1; 16], maker: Maker::LOCAL };
    match number.checked_sub(1) {
        None => BlockId::plain(id(chunk)),
        Some(index) => BlockId { chunk: id(chunk), encoding, index },
    }
}

fn registry() -> Registry {
    let mut registry = Registry::new();
    for number in 0..BENEFACTORS {
        let id = registry.add_for_test();
        assert_eq!(id, BenefactorId(number));
    }
    registry.get_mut(IN_MEMORY).unwrap().tier = Tier::Memory;
    registry.update_states(0, &Timing::default());
    registry
}

/// What refers to each chunk, as the test knows.
type Named = HashMap<u8, Vec<u8>>;

fn apply(locations: &mut Locations, registry: &mut Registry, named: &mut Named, event: Event, now_ms: u64) {
    match event {
        Event::Confirm(chunk, number, at) => {
            let block = block(chunk, number);
            let stored = StoredBlock { block, plain_length: 10, stored_length: 10 };
            let inventory = registry.get(BenefactorId(at)).unwrap().inventory;
            locations.confirm(&stored, BenefactorId(at), inventory, BlockAge::New, now_ms);
            locations.requeue(&id(chunk), registry);
        }
        Event::Remove(chunk, number, at) => {
            locations.remove(&block(chunk, number), BenefactorId(at));
            locations.requeue(&id(chunk), registry);
        }
        Event::Refer(chunk, wanted, at) => {
            named.entry(chunk).or_default().push(wanted);
            let slot = locations.name(&id(chunk), wanted);
            locations.extend(slot, Some(Span::at(Ino(2), at)));
            locations.count(slot, registry);
        }
        Event::Unname(chunk) => {
            if let Some(wanted) = named.get_mut(&chunk).and_then(Vec::pop) {
                locations.unname(locations.named(&id(chunk)), wanted, registry);
            }
        }
        Event::Forget(chunk) => {
            if let Some(slot) = locations.slot(&id(chunk)).filter(|slot| locations.at(*slot).wanted() == 0) {
                assert!(!locations.forget(slot).is_empty(), "what nothing refers to has blocks");
                assert!(locations.get(&id(chunk)).is_none());
            }
        }
        Event::Take(at, soon) => {
            let care = if soon { Care::Postponed } else { Care::Blocked };
            if let Some(chunk) = locations.take_ready(BenefactorId(at)) {
                locations.block(&chunk, BenefactorId(at), care, registry);
            }
        }
        Event::TakeBlocked(at) => {
            if let Some(chunk) = locations.take_blocked(BenefactorId(at)) {
                locations.block(&chunk, BenefactorId(at), Care::Blocked, registry);
            }
        }
        Event::Unblock(at) => locations.unblock(BenefactorId(at)),
        Event::Care(chunk, care) => locations.care_for(&id(chunk), care, registry),
        Event::Silent(at) => registry.get_mut(BenefactorId(at)).unwrap().heard_ms = 0,
        Event::Heard(at) => registry.get_mut(BenefactorId(at)).unwrap().heard_ms = now_ms,
        Event::Decide(at, wish, goes) => {
            let notice = goes.then(Notice::default);
            let load = BenefactorLoad { wish, notice, ..BenefactorLoad::default() };
            if registry.take_load(BenefactorId(at), load) {
                walk(locations, registry, BenefactorId(at));
            }
        }
        Event::LetGo(at, bytes) => {
            let at = BenefactorId(at);
            let listed = locations.blocks_at(at);
            for _ in 0..=listed {
                locations.let_go(at, bytes, 1, registry);
            }
            let here = locations.held_at.get(&at).into_iter().flatten();
            let wanted = here.filter(|slot| locations.at(**slot).wanted() > 0).count() as u64;
            assert!(locations.owed_at(at) >= bytes.min(wanted * 10), "all were looked at");
        }
        Event::LetStay(at, bytes) => {
            let at = BenefactorId(at);
            let before = locations.owed_at(at);
            while locations.let_stay(at, bytes, 1, registry) {}
            let after = locations.owed_at(at);
            assert!(after >= bytes.min(before) && (after == 0 || bytes > 0), "{before} {after} {bytes}");
        }
        Event::NewLife(at) => {
            let inventory = registry.next_inventory();
            let benefactor = registry.get_mut(BenefactorId(at)).unwrap();
            (benefactor.inventory, benefactor.valid_inventory) = (inventory, inventory);
            walk(locations, registry, BenefactorId(at));
        }
    }
    follow(locations, registry, now_ms);
}

/// What follows from who is seen in another way than before.
fn follow(locations: &mut Locations, registry: &mut Registry, now_ms: u64) {
    let changes = registry.update_states(now_ms, &Timing::default());
    changes.seen.iter().for_each(|at| walk(locations, registry, *at));
    if changes.seen.is_empty() {
        return;
    }
    let mut after = None;
    while let Some(next) = locations.walk_at_risk(after, 1, registry) {
        after = Some(next);
    }
}

fn walk(locations: &mut Locations, registry: &Registry, at: BenefactorId) {
    let mut from = None;
    while let Some(next) = locations.walk_benefactor(at, from, 2, registry) {
        from = Some(next);
    }
}

proptest! {
    #[test]
    fn the_counts_are_always_those_that_a_look_at_every_chunk_gives(
        events in proptest::collection::vec(event(), 1..80),
    ) {
        let (mut locations, mut registry, mut named) = (Locations::default(), registry(), Named::new());
        // All are heard for as long as they are not silent; who is silent counts as lost at once.
        for (step, event) in (1..).zip(events) {
            let now_ms = 40_000 * step;
            for number in 0..BENEFACTORS {
                let benefactor = registry.get_mut(BenefactorId(number)).unwrap();
                if benefactor.heard_ms > 0 || step == 1 {
                    benefactor.heard_ms = now_ms;
                }
            }
            apply(&mut locations, &mut registry, &mut named, event, now_ms);
            let is_cared_for = |chunk: &&Chunk| {
                let slot = locations.slot(&chunk.id).unwrap();
                !locations.holdings.is_for_keepers(slot)
            };
            let lacking: Vec<&Chunk> =
                locations.iter().filter(is_cared_for).filter(|chunk| chunk.distance(&registry) < chunk.wanted()).collect();
            let is_movable = |chunk: &&&Chunk| match chunk.care {
                Care::Copied => chunk.is_there(&registry),
                Care::Waits => !chunk.sources(&registry).is_empty(),
                Care::Blocked | Care::Postponed | Care::CopiedSlowly | Care::Failed => false,
            };
            let total = locations.exposure.total();
            prop_assert_eq!(total.chunks, lacking.len() as u64);
            let is_alone = |chunk: &&Chunk| chunk.distance(&registry) == 0 && chunk.is_there(&registry);
            prop_assert_eq!(total.in_memory, lacking.iter().copied().filter(is_alone).count() as u64);
            let alone = locations.iter().filter(is_alone);
            let bytes: u64 = alone.map(|chunk| u64::from(chunk.length)).sum();
            prop_assert_eq!(locations.in_memory_alone_bytes(), bytes);
            let movable = lacking.iter().filter(is_movable).count() as u64;
            prop_assert_eq!(total.chunks - locations.exposure.stuck().chunks, movable);
            let is_moving = |chunk: &&Chunk| {
                let staying = chunk.distance_by(chunk.staying(&registry), &registry);
                let risk = chunk.risk.as_ref();
                assert!(risk.is_none_or(|risk| risk.lasting == chunk.distance_lasting(&registry)));
                chunk.distance(&registry) >= chunk.wanted() && staying < chunk.wanted()
            };
            let moving: Vec<&Chunk> = locations.iter().filter(is_cared_for).filter(is_moving).collect();
            let stuck = moving.iter().filter(|chunk| !is_movable(chunk)).count() as u64;
            prop_assert_eq!(locations.moving(), Moving { chunks: moving.len() as u64, stuck });
            let covers = |chunk: &&&Chunk| chunk.span.is_some_and(|span| span.first <= 5 && span.last >= 5);
            let exposed = locations.exposure.exposed(Ino(2), &(5..=5)).count;
            prop_assert_eq!(exposed.chunks, lacking.iter().filter(covers).count() as u64);
            let at_risk = lacking.iter().filter(|chunk| chunk.is_there(&registry)).count();
            prop_assert_eq!(locations.unfinished_count(), at_risk + moving.len());
            for chunk in locations.iter() {
                let queued = chunk.risk.is_some() && chunk.care == Care::Waits;
                for source in chunk.sources(&registry).into_iter().filter(|_| queued) {
                    let queue = locations.queues.get(&source);
                    let slot = locations.named(&chunk.id);
                    prop_assert!(queue.is_some_and(|queue| queue.ready.iter().any(|(_, _, other)| *other == slot)));
                }
                let is_blocked = matches!(chunk.care, Care::Blocked | Care::Postponed) && chunk.risk.is_some();
                prop_assert!(!is_blocked || !chunk.sources(&registry).is_empty(), "somebody looks at it again");
            }
            check_sums(&locations, &registry, &named)?;
        }
    }
}

/// Chunks that lack a copy, at benefactor 0.
fn lacking(chunks: &[u8]) -> (Locations, Registry) {
    let (mut locations, registry) = (Locations::default(), registry());
    for chunk in chunks {
        let slot = locations.name(&id(*chunk), 2);
        locations.extend(slot, Some(Span::at(Ino(2), 1)));
        let stored = StoredBlock { block: block(*chunk, 0), plain_length: 10, stored_length: 10 };
        locations.confirm(&stored, BenefactorId(0), 0, BlockAge::New, 0);
        locations.count(slot, &registry);
    }
    (locations, registry)
}

#[test]
fn a_chunk_that_is_blocked_again_and_again_stands_in_the_queue_once() {
    let (mut locations, registry) = lacking(&[1]);
    let source = BenefactorId(0);
    for _ in 0..100 {
        assert_eq!(locations.take_ready(source), Some(id(1)));
        locations.block(&id(1), source, Care::Blocked, &registry);
        assert_eq!((locations.blocked(source), locations.take_ready(source)), (1, None));
        // A benefactor comes or goes.
        locations.walk_at_risk(None, 10, &registry);
    }
}

#[test]
fn all_that_is_blocked_is_looked_at_in_turn_however_much_that_is() {
    let (mut locations, registry) = lacking(&[1, 2, 3]);
    let source = BenefactorId(0);
    while let Some(chunk) = locations.take_ready(source) {
        locations.block(&chunk, source, Care::Blocked, &registry);
    }
    let mut looked_at = Vec::new();
    for _ in 0..6 {
        let chunk = locations.take_blocked(source).unwrap();
        looked_at.push(chunk);
        locations.block(&chunk, source, Care::Blocked, &registry);
    }
    assert_eq!(looked_at, [1, 2, 3, 1, 2, 3].map(id));
}

#[test]
fn nothing_is_kept_of_a_benefactor_that_is_taken_out_and_no_queue_of_one_that_is_lost() {
    let (mut locations, mut registry) = lacking(&[1, 2, 3]);
    let at = BenefactorId(0);
    locations.let_go(at, 20, 10, &registry);
    assert!(locations.owed_at(at) == 20 && locations.queues.contains_key(&at));
    let lost_ms = Timing::default().benefactor_lost_ms;
    registry.get_mut(at).unwrap().heard_ms = 0;
    registry.update_states(lost_ms, &Timing::default());
    walk(&mut locations, &registry, at);
    assert!(!locations.queues.contains_key(&at) && locations.owed_at(at) == 20);
    registry.get_mut(at).unwrap().heard_ms = lost_ms;
    registry.update_states(lost_ms, &Timing::default());
    walk(&mut locations, &registry, at);
    assert!(locations.take_ready(at).is_some(), "it is back");
    registry.remove(at);
    walk(&mut locations, &registry, at);
    locations.let_go(at, 0, 10, &registry);
    assert!(!locations.queues.contains_key(&at) && !locations.owed.contains_key(&at));
}

/// Sums and lists, as looking at every chunk gives them.
fn check_sums(locations: &Locations, registry: &Registry, named: &Named) -> Result<(), TestCaseError> {
    let mut totals = Totals::default();
    for chunk in locations.iter() {
        let wants =
            named.iter().find(|(number, _)| id(**number) == chunk.id).map(|(_, wants)| wants.as_slice());
        prop_assert_eq!(chunk.wanted(), wants.and_then(|wants| wants.iter().max().copied()).unwrap_or(0));
        prop_assert!(chunk.wanted() > 0 || !chunk.holders.is_empty(), "what is gone has left the index");
        let tells = |holder: &Holder| registry.get(holder.benefactor).is_some_and(|one| !one.reported);
        prop_assert!(
            chunk.holders.iter().all(|holder| holder.is_known(registry) || tells(holder)),
            "the walks were to the end, but for those who are yet to tell what they have"
        );
        totals.chunks += u64::from(!chunk.holders.is_empty());
        totals.unique_bytes += if chunk.holders.is_empty() { 0 } else { u64::from(chunk.length) };
        totals.stored_bytes +=
            chunk.holders.iter().map(|holder| u64::from(holder.stored_length)).sum::<u64>();
        let readable = is_readable(held(chunk.online(registry), registry));
        if chunk.wanted() > 0 && !readable {
            let is_lost = |holder: &&Holder| {
                holder.benefactor == IN_MEMORY
                    && registry.get(IN_MEMORY).unwrap().state == BenefactorState::Lost
            };
            let returning: Vec<Holder> =
                chunk.known(registry).filter(|holder| !is_lost(holder)).copied().collect();
            let may_come_back = is_readable(held(returning.iter(), registry));
            totals.away += u64::from(may_come_back);
            totals.gone += u64::from(!may_come_back);
        }
        let slot = locations.named(&chunk.id);
        let has_memory = chunk.holders.iter().any(|holder| holder.benefactor == IN_MEMORY);
        let is_spare = chunk.wanted() > 0 && has_memory && chunk.distance(registry) > 0;
        prop_assert_eq!(locations.spare_in_memory.contains(&slot), is_spare);
        let listed = chunk.wanted() == 0;
        prop_assert_eq!(chunk.unnamed_ms.is_some(), listed);
        prop_assert!(chunk.unnamed_ms.is_none_or(|ms| locations.unnamed.contains(&(ms, slot))));
        for holder in &chunk.holders {
            prop_assert_eq!(locations.held_at[&holder.benefactor][holder.listed as usize], slot);
        }
    }
    for number in 0..BENEFACTORS {
        let at = BenefactorId(number);
        let is_owed = |holder: &&Holder| holder.is_owed() && holder.benefactor == at;
        let holders = locations.iter().flat_map(|chunk| &chunk.holders).filter(is_owed);
        let bytes: u64 = holders.map(|holder| u64::from(holder.stored_length)).sum();
        prop_assert_eq!(locations.owed_at(at), bytes);
        let owing = locations.iter().filter(|chunk| chunk.owing().any(|owing| owing == at)).count();
        let brought = locations.iter().filter(|chunk| chunk.is_brought()).flat_map(|chunk| &chunk.holders);
        let brought = brought.filter(|holder| holder.benefactor == at).count();
        prop_assert_eq!(locations.brought_by(at), brought as u64);
        prop_assert_eq!(locations.owed.get(&at).map_or(0, |owed| owed.slots.len()), owing);
    }
    prop_assert_eq!(locations.totals, totals);
    prop_assert_eq!(locations.unnamed.len(), locations.iter().filter(|chunk| chunk.wanted() == 0).count());
    let blocks: usize = locations.iter().map(|chunk| chunk.holders.len()).sum();
    prop_assert_eq!(locations.held_at.values().map(Vec::len).sum::<usize>(), blocks);
    prop_assert_eq!(locations.slots.len() + locations.free.len(), locations.chunks.len());
    Ok(())
}
