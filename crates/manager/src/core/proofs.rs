//! Proofs: a block goes in favour of others once its own holder has seen these.
//!
//! A list of blocks is the word of its benefactor alone. So before a block goes that is too much ([`super::surplus`]), its holder asks those that have
//! the others to prove it: by a keyed hash of their stored bytes, which it compares with what it has itself; fragments of which it lacks the
//! bytes it decodes, and makes all of them anew. Whoever lies, nobody loses more than the liar holds: nothing is deleted by anybody's word but that
//! of the benefactor on whose disk it lies.
//!
//! | a question | what becomes of it | what becomes of the block |
//! |---|---|---|
//! | all others were seen, or enough | ends | it goes with the next collection, if it is still too much; that must come within a minute |
//! | too few were seen | ends | it stays; it is tried again after a while, ever more rarely |
//! | the same ones were not seen again | ends | the chunk is to be made as safe without them, as if they were to go: what nobody can show may not be there |
//! | the holder couldn't ask | ends | it stays; it is tried again after a while, ever more rarely |
//! | the holder is late | ends | as above |
//! | it is late with many | end, with all that wait for it | from the second time on it is asked nothing for a while, ever longer: others' blocks may go in place of its own |
//! | the holder is gone, or registered anew | ends | it stays |
//! | the chunk is gone | ends when it would be ordered | - |
//!
//! Each holder is asked in the order in which questions came, and one that does nothing that it is told is asked nothing for a while: it keeps no others from
//! leaving.
//!
//! All of this is in memory alone: a manager that starts anew asks anew.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use stdchk_model::message::benefactor::{Check, Command, Seen, SourceBlock};
use stdchk_model::{BenefactorId, BlockId, ChunkId, EncodingId, Trust};
use stdchk_protect::{Held, in_favour_of};

use super::chunk::{Holder, held};
use super::{Core, Now};

/// Questions that one benefactor has on order: it keeps the bytes of a chunk for each.
const AT_ONCE: usize = 16;
/// Questions that wait for one benefactor. Collections come back with others.
const WAITING_MAX: usize = 4_096;
/// Questions that wait for all benefactors.
const ALL_MAX: usize = 1 << 18;
/// Time after which a question is given up of which nothing was heard, milliseconds.
const LATE_MS: u64 = 60_000;
/// Orders that are late at one time of a holder that does nothing that it is told.
const MANY: usize = AT_ONCE / 2;
/// How often the time doubles for which a holder that was late is asked nothing: up to a quarter of an hour.
const LATE_DOUBLINGS: u32 = 4;
/// Time for which what was seen counts, milliseconds.
const COUNTS_MS: u64 = 60_000;
/// Time before a holder asks again that has seen too few, milliseconds. It doubles with each further failure.
const RETRY_MS: u64 = 1_000;
/// How often it doubles: up to some minutes.
const RETRY_DOUBLINGS: u32 = 8;
/// Time after that for which it is remembered how often it failed, milliseconds.
const FAILURES_KEPT_MS: u64 = 600_000;
/// Questions in vain after which the chunk is made safe without what was not seen: one may have met a connection that broke.
const TIMES_IN_VAIN: u32 = 2;
/// Blocks that one benefactor may say within a while that others don't show, and that while, milliseconds: each costs a copy of the chunk.
const DOUBTED_MAX: u32 = 256;
const DOUBTED_WITHIN_MS: u64 = 60_000;
/// Time for which a block that was not shown is doubted again whenever its benefactor says anew that it has it, milliseconds.
const MISSED_MS: u64 = 600_000;
/// Time between two looks at what can be forgotten, milliseconds.
const TIDY_MS: u64 = 30_000;

/// Where a block of some chunk is said to be.
type Place = (BenefactorId, EncodingId, u8);

/// All questions, and what was seen.
#[derive(Debug, Default)]
pub(super) struct Proofs {
    /// One for each chunk at a time.
    running: BTreeMap<ChunkId, Question>,
    /// The chunks of which each benefactor is to see blocks, in the order in which it was to.
    at: BTreeMap<BenefactorId, BTreeSet<(u64, ChunkId)>>,
    /// How many questions there were.
    started: u64,
    /// Benefactors that were late, how often, and until when each is asked nothing, milliseconds of the manager's life.
    late: BTreeMap<BenefactorId, (u32, u64)>,
    /// How many of them it was told.
    ordered: HashMap<BenefactorId, usize>,
    /// Holders that asked in vain, with the number of times and when each may ask again, milliseconds of the manager's life.
    failing: BTreeMap<(ChunkId, BenefactorId), (u32, u64)>,
    /// Blocks that holders have seen, before their own may go.
    seen: BTreeMap<ChunkId, Sight>,
    /// Since when each benefactor has doubted what others have, milliseconds of the manager's life, and how many blocks.
    doubted: BTreeMap<BenefactorId, (u64, u32)>,
    /// Blocks that holders did not show, and until when whoever says again that it has one is doubted, milliseconds of the manager's life.
    missed: BTreeMap<(BlockId, BenefactorId), u64>,
    /// The number of the last order.
    orders: u64,
    given_up_ms: u64,
    tidied_ms: u64,
}

/// A question that a benefactor is to ask others.
#[derive(Debug)]
struct Question {
    at: BenefactorId,
    /// Which one of all questions it is.
    turn: u64,
    /// The block that may go.
    own: BlockId,
    /// How far from loss the others are to keep the chunk.
    wanted: u8,
    /// The blocks that it was told to see; none: it wasn't told yet.
    others: Vec<Place>,
    /// The order's number.
    number: u64,
    until_ms: u64,
}

/// The blocks that a holder has seen.
#[derive(Debug)]
struct Sight {
    by: BenefactorId,
    others: Vec<Place>,
    until_ms: u64,
}

fn place(holder: &Holder) -> Place {
    (holder.benefactor, holder.encoding, holder.index)
}

impl Proofs {
    /// Whether this holder asked in vain a moment ago.
    fn waits(&self, chunk: ChunkId, at: BenefactorId, now_ms: u64) -> bool {
        self.failing.get(&(chunk, at)).is_some_and(|(_, retry_ms)| *retry_ms > now_ms)
    }

    /// Whether a benefactor is asked nothing, since it was late.
    fn is_late(&self, at: BenefactorId, now_ms: u64) -> bool {
        self.late.get(&at).is_some_and(|(_, until_ms)| *until_ms > now_ms)
    }

    fn start(&mut self, mut question: Question) {
        self.started += 1;
        question.turn = self.started;
        let own = self.at.entry(question.at).or_default();
        if self.running.len() < ALL_MAX && own.len() < WAITING_MAX {
            own.insert((question.turn, question.own.chunk));
            let before = self.running.insert(question.own.chunk, question);
            assert!(before.is_none(), "one at a time asks for a chunk");
        }
    }

    fn end(&mut self, chunk: &ChunkId) -> Option<Question> {
        let question = self.running.remove(chunk)?;
        if let Some(own) = self.at.get_mut(&question.at) {
            let was_there = own.remove(&(question.turn, *chunk));
            assert!(was_there, "a question stands at its holder");
            if own.is_empty() {
                self.at.remove(&question.at);
            }
        }
        if !question.others.is_empty()
            && let Some(ordered) = self.ordered.get_mut(&question.at)
        {
            *ordered -= 1;
            if *ordered == 0 {
                self.ordered.remove(&question.at);
            }
        }
        Some(question)
    }

    /// Ends what a benefactor was told to ask of a chunk.
    fn end_of(&mut self, chunk: &ChunkId, at: BenefactorId) -> Option<Question> {
        let is_it = |question: &Question| question.at == at && !question.others.is_empty();
        if self.running.get(chunk).is_some_and(is_it) { self.end(chunk) } else { None }
    }

    /// It was in vain; how often so far.
    fn in_vain(&mut self, chunk: ChunkId, at: BenefactorId, now_ms: u64) -> u32 {
        let (times, retry_ms) = self.failing.entry((chunk, at)).or_default();
        *retry_ms = now_ms + (RETRY_MS << (*times).min(RETRY_DOUBLINGS));
        *times += 1;
        *times
    }

    /// There is nothing to ask now; that is not in vain.
    fn put_off(&mut self, chunk: ChunkId, at: BenefactorId, now_ms: u64) {
        let (_, retry_ms) = self.failing.entry((chunk, at)).or_default();
        *retry_ms = (*retry_ms).max(now_ms + RETRY_MS);
    }

    /// The benefactor couldn't ask.
    pub fn failed(&mut self, chunk: &ChunkId, at: BenefactorId, now_ms: u64) {
        if self.end_of(chunk, at).is_some() {
            self.in_vain(*chunk, at, now_ms);
        }
    }

    fn give_up_late(&mut self, now_ms: u64) {
        let late = self.running.iter().filter(|(_, question)| question.until_ms <= now_ms);
        let late: Vec<ChunkId> = late.map(|(chunk, _)| *chunk).collect();
        let mut holders: BTreeMap<BenefactorId, usize> = BTreeMap::new();
        for chunk in late {
            let Some(Question { at, others, .. }) = self.end(&chunk) else { continue };
            if !others.is_empty() {
                self.in_vain(chunk, at, now_ms);
                *holders.entry(at).or_default() += 1;
            }
        }
        for (at, _) in holders.into_iter().filter(|(_, count)| *count >= MANY) {
            let (times, until_ms) = self.late.entry(at).or_default();
            // An order may have been lost once.
            let pause_ms = times.checked_sub(1).map_or(0, |more| LATE_MS << more.min(LATE_DOUBLINGS));
            (*times, *until_ms) = (*times + 1, now_ms + pause_ms);
            let waiting: Vec<ChunkId> =
                self.at.get(&at).into_iter().flatten().map(|(_, chunk)| *chunk).collect();
            for chunk in waiting {
                self.end(&chunk);
            }
        }
    }

    /// Whether the benefactor was ordered to see blocks of this encoding.
    pub fn was_asked(&self, chunk: &ChunkId, at: BenefactorId, encoding: EncodingId) -> bool {
        let is_one = |(_, of, _): &Place| *of == encoding;
        self.running
            .get(chunk)
            .is_some_and(|question| question.at == at && question.others.iter().any(is_one))
    }

    /// Ends what these benefactors were to ask: they are gone, or may never have heard of it. What they have seen counts no longer.
    pub fn forget_orders(&mut self, of: &[BenefactorId]) {
        for id in of {
            for (_, chunk) in self.at.remove(id).into_iter().flatten() {
                self.running.remove(&chunk);
            }
            self.ordered.remove(id);
        }
        self.seen.retain(|_, sight| !of.contains(&sight.by));
    }

    /// Whether the benefactor did not show this block a while ago, though it said that it had it.
    pub fn was_missed(&self, block: &BlockId, at: BenefactorId, now_ms: u64) -> bool {
        self.missed.get(&(*block, at)).is_some_and(|until_ms| *until_ms > now_ms)
    }

    /// The benefactor gets the block anew.
    pub fn no_longer_missed(&mut self, block: &BlockId, at: BenefactorId) {
        self.missed.remove(&(*block, at));
    }

    /// The number of the next order: above those of managers before this one.
    fn next_number(&mut self, now: Now) -> u64 {
        let now = u64::try_from(now.wall).unwrap_or(0);
        self.orders = (self.orders + 1).max(now);
        self.orders
    }

    /// A block of the chunk went: what stays counts anew.
    pub fn forget(&mut self, chunk: &ChunkId) {
        self.seen.remove(chunk);
    }

    /// There are more blocks of the chunk: what was in vain may not be now.
    pub fn holders_changed(&mut self, chunk: &ChunkId) {
        let all = (*chunk, BenefactorId(0))..=(*chunk, BenefactorId(u32::MAX));
        // A block that was missed before, and is again, counts on.
        self.failing.range_mut(all).for_each(|(_, (_, retry_ms))| *retry_ms = 0);
    }

    /// Whether a benefactor may doubt what another one has; each time counts.
    fn may_doubt(&mut self, by: BenefactorId, now_ms: u64) -> bool {
        let (since_ms, count) = self.doubted.entry(by).or_insert((now_ms, 0));
        if now_ms.saturating_sub(*since_ms) >= DOUBTED_WITHIN_MS {
            (*since_ms, *count) = (now_ms, 0);
        }
        *count += 1;
        *count <= DOUBTED_MAX
    }
}

impl Core {
    /// Whether the holder of a block has seen enough of these others that stay, which may be at the same benefactor, for the distance `wanted`.
    pub(super) fn has_seen_enough(
        &self,
        chunk: &ChunkId,
        block: &Holder,
        others: &[Holder],
        wanted: u8,
    ) -> bool {
        let sight = self.proofs.seen.get(chunk).filter(|sight| sight.by == block.benefactor);
        let is_seen = |other: &&Holder| {
            other.benefactor == block.benefactor
                || sight.is_some_and(|sight| sight.others.contains(&place(other)))
        };
        let shown: Vec<Held> = held(others.iter().filter(is_seen), &self.registry).collect();
        // Its own encoding may be one that only its maker vouches for; no other one.
        in_favour_of(&block.held(&self.registry), &shown, wanted).is_some_and(|encoding| {
            encoding.code.is_copy() || encoding == block.encoding || {
                let mut of_it = shown.iter().filter(|other| other.encoding == encoding);
                of_it.all(|other| other.trust == Trust::Trusted)
            }
        })
    }

    /// Has the holder of one of these blocks, any of which may go while others keep the distance `wanted`, see those: one after the other.
    pub(super) fn ask_for_proofs(&mut self, chunk: ChunkId, blocks: &[Holder], wanted: u8, now: Now) {
        let may_ask = |block: &&Holder| {
            self.registry.is_online(block.benefactor)
                && !self.proofs.is_late(block.benefactor, now.ms)
                && !self.proofs.waits(chunk, block.benefactor, now.ms)
        };
        let Some(block) = blocks.iter().find(may_ask) else { return };
        if self.proofs.running.contains_key(&chunk) {
            return;
        }
        let (at, own) = (block.benefactor, block.block(chunk));
        self.proofs.start(Question {
            at,
            turn: 0,
            own,
            wanted,
            others: Vec::new(),
            number: 0,
            until_ms: now.ms + LATE_MS,
        });
    }

    /// The questions that a benefactor should ask others now.
    pub(super) fn plan_proofs(&mut self, at: BenefactorId, now: Now) -> Vec<Command> {
        let ordered = self.proofs.ordered.get(&at).copied().unwrap_or(0);
        let is_new = |chunk: &&ChunkId| {
            self.proofs.running.get(*chunk).is_some_and(|question| question.others.is_empty())
        };
        let waiting = self.proofs.at.get(&at).into_iter().flatten().map(|(_, chunk)| chunk).filter(is_new);
        let waiting: Vec<ChunkId> = waiting.take(AT_ONCE.saturating_sub(ordered)).copied().collect();
        let mut commands = Vec::new();
        for chunk in waiting {
            match self.proof_order(chunk) {
                Some((mut check, others)) => {
                    check.number = self.proofs.next_number(now);
                    if let Some(question) = self.proofs.running.get_mut(&chunk) {
                        (question.others, question.number) = (others, check.number);
                        question.until_ms = now.ms + LATE_MS;
                        *self.proofs.ordered.entry(at).or_default() += 1;
                    }
                    commands.push(Command::Check(check));
                }
                None => {
                    // Another holder may be able to.
                    self.proofs.end(&chunk);
                    self.proofs.put_off(chunk, at, now.ms);
                }
            }
        }
        commands
    }

    /// The order to see the blocks in whose favour another one may go; `None`: there are too few now.
    fn proof_order(&self, id: ChunkId) -> Option<(Check, Vec<Place>)> {
        let Question { at, own, wanted, .. } = *self.proofs.running.get(&id)?;
        let chunk = self.locations.get(&id)?;
        let block = chunk.holders.iter().find(|holder| holder.benefactor == at && holder.block(id) == own)?;
        // A holder that it can't ask would count as one that shows nothing.
        let unreached: Vec<BenefactorId> = self.registry.unreached(at, false).collect();
        let stays = |holder: &&Holder| {
            !holder.leaves(&self.registry)
                && place(holder) != place(block)
                && !unreached.contains(&holder.benefactor)
        };
        let others: Vec<Holder> = self.surely_there(chunk).filter(stays).copied().collect();
        let staying: Vec<Held> = held(others.iter(), &self.registry).collect();
        let favoured = in_favour_of(&block.held(&self.registry), &staying, wanted)?;
        let is_one = |other: &&Holder| {
            other.encoding == favoured || other.encoding.code.is_copy() && favoured.code.is_copy()
        };
        // It knows what it has itself, unless that is all that there is: then it has to decode it.
        let is_elsewhere = others.iter().filter(is_one).any(|other| other.benefactor != at);
        let is_asked = |other: &&Holder| is_one(other) && (other.benefactor != at || !is_elsewhere);
        let source = |other: &Holder| {
            let address = self.registry.get(other.benefactor)?.address.clone();
            let permit = self.registry.permit(other.benefactor, (&id, other.encoding), at)?;
            let (encoding, index, at) = (other.encoding, other.index, other.benefactor);
            Some((SourceBlock { encoding, index, address, permit, at }, place(other)))
        };
        let (from, places): (Vec<SourceBlock>, Vec<Place>) =
            others.iter().filter(is_asked).filter_map(source).unzip();
        (!from.is_empty()).then_some((Check { chunk: id, from, own: Some(own), number: 0 }, places))
    }

    /// Takes note of the blocks that a benefactor saw, if it was ordered to ask for them.
    pub(super) fn take_seen(&mut self, by: BenefactorId, seen: &[Seen], now: Now) {
        for Seen { own, lacks, number } in seen {
            let is_it = |question: &Question| question.own == *own && question.number == *number;
            if !self.proofs.running.get(&own.chunk).is_some_and(is_it) {
                continue;
            }
            let Some(question) = self.proofs.end_of(&own.chunk, by) else { continue };
            self.proofs.late.remove(&by);
            let lacks: BTreeSet<u32> = lacks.iter().copied().collect();
            let (missed, others): (Vec<_>, Vec<_>) =
                (0u32..).zip(question.others).partition(|(at, _)| lacks.contains(at));
            let others = others.into_iter().map(|(_, place)| place).collect();
            self.proofs.seen.insert(own.chunk, Sight { by, others, until_ms: now.ms + COUNTS_MS });
            match missed.is_empty() {
                true => drop(self.proofs.failing.remove(&(own.chunk, by))),
                false if self.proofs.in_vain(own.chunk, by, now.ms) >= TIMES_IN_VAIN => {
                    for (_, (at, encoding, index)) in missed {
                        let block = BlockId { chunk: own.chunk, encoding, index };
                        if self.proofs.may_doubt(by, now.ms) {
                            tracing::warn!(%by, %at, ?block, "a benefactor doesn't show a block that it says it has: the chunk is made safe without it");
                            // It may have said meanwhile that the block is gone.
                            if self.locations.doubt(&block, at, &self.registry) {
                                self.proofs.missed.insert((block, at), now.ms + MISSED_MS);
                            }
                        }
                    }
                }
                false => {}
            }
        }
    }

    /// Gives up what is late, and forgets what is of no use any more.
    pub(super) fn tend_proofs(&mut self, now: Now) {
        let Self { proofs, locations, .. } = self;
        if now.ms.saturating_sub(proofs.given_up_ms) >= RETRY_MS {
            proofs.given_up_ms = now.ms;
            proofs.give_up_late(now.ms);
        }
        if now.ms.saturating_sub(proofs.tidied_ms) < TIDY_MS {
            return;
        }
        proofs.tidied_ms = now.ms;
        proofs.seen.retain(|_, sight| sight.until_ms > now.ms);
        proofs.failing.retain(|(id, _), (_, retry_ms)| {
            *retry_ms + FAILURES_KEPT_MS > now.ms && locations.get(id).is_some()
        });
        proofs.missed.retain(|_, until_ms| *until_ms > now.ms);
        proofs.late.retain(|_, (_, until_ms)| *until_ms + FAILURES_KEPT_MS > now.ms);
        proofs.doubted.retain(|_, (since_ms, _)| now.ms.saturating_sub(*since_ms) < DOUBTED_WITHIN_MS);
    }
}
