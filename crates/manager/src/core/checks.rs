//! Checks: benefactors find out whether an encoding in fragments makes its chunk, by decoding it and making all of its blocks anew.
//!
//! Nobody can tell from one fragment whether its encoding makes the chunk ([`Trust`]). The manager asks once somebody says that an encoding is
//! broken: a reader ([`ManagerRequest::Doubt`](stdchk_model::message::manager::ManagerRequest)), or a benefactor. Others are asked until two of
//! different members agree. Nobody's word alone makes anything go. Holders that see fragments before their own blocks go ([`super::proofs`])
//! decode them as well, and their verdicts count here.
//!
//! An encoding that a benefactor found good counts for everybody. One that two of different members found broken counts for nothing, and
//! [`super::surplus`] deletes its blocks once others are enough, or where the owner of a disk needs the space and its own benefactor has found the encoding
//! broken. All of this is in memory alone: a manager that starts anew asks anew.
//!
//! | a check | what becomes of it | what becomes of the chunk |
//! |---|---|---|
//! | the answer of its benefactor | ends | the verdict counts; a doubt goes on to the next benefactor until it is settled |
//! | its benefactor couldn't gather enough, or is late | ends | it is tried again after a while, ever more rarely |
//! | its benefactor is gone, or registered anew | ends | another one is asked |
//! | an answer that nobody asked for, or that comes late | - | nothing |
//! | the encoding is gone, or its chunk | ends when it would be ordered; a verdict then changes nothing | forgotten |

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use smallvec::SmallVec;
use stdchk_model::message::benefactor::{Check, Command, Decoded, SourceBlock};
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{BrokenEncodings, ManagerReply};
use stdchk_model::{BenefactorId, ChunkId, EncodingId, Maker, Trust};

use super::benefactors::Registry;
use super::chunk::{Chunk, Holder};
use super::members::Members;
use super::{Answer, Core, Now};

/// Checks that one benefactor has on order or is about to get: each reads a whole chunk from others.
const AT_ONCE: usize = 16;
/// Time after which a check is given up of which nothing was heard, milliseconds.
const LATE_MS: u64 = 60_000;
/// Time before a chunk is checked again after that failed, milliseconds. It doubles with each further failure.
const RETRY_MS: u64 = 1_000;
/// How often it doubles: up to some minutes.
const RETRY_DOUBLINGS: u32 = 8;
/// Time after that for which it is remembered how often it failed, milliseconds.
const FAILURES_KEPT_MS: u64 = 600_000;
/// Encodings that are doubted and not settled. Further doubts are dropped: readers come back with them.
const DOUBTS_MAX: usize = 4_096;
/// Those of one member of the pool: none takes the places of all.
const DOUBTS_OF_MEMBER_MAX: usize = 256;
/// Doubts that are looked at in one turn.
const LOOKED_AT: usize = 64;
/// Encodings of which it is remembered who decoded them. What is forgotten is found out again.
const FOUND_MAX: usize = 65_536;
/// Who decoded an encoding, of either opinion, as far as it is remembered: more say nothing new.
const OPINIONS_MAX: usize = 64;
/// Makers whose broken encodings are counted apart.
const MAKERS_MAX: usize = 256;
/// Time for which a maker is named, milliseconds: somebody should look into it within a day.
const NAMED_MS: u64 = 86_400_000;
/// Time between two looks at what can be forgotten, milliseconds.
const TIDY_MS: u64 = 30_000;

/// An encoding of a chunk.
type Encoded = (ChunkId, EncodingId);

/// All checks, and what they found.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// One for each chunk at a time.
    running: BTreeMap<ChunkId, Running>,
    /// The chunks that each benefactor is to check.
    at: BTreeMap<BenefactorId, BTreeSet<ChunkId>>,
    /// What was tried in vain, with the number of times and when it may be tried again, milliseconds of the manager's life.
    failing: BTreeMap<ChunkId, (u32, u64)>,
    /// What is doubted and not settled.
    doubts: BTreeMap<Encoded, Doubter>,
    found: BTreeMap<Encoded, Found>,
    /// Who made what was found broken, how many encodings, and when the last of them was found, milliseconds of the manager's life.
    makers: BTreeMap<Maker, (u64, u64)>,
    tidied_ms: u64,
    /// The doubt that was looked at last.
    looked_at: Option<Encoded>,
}

/// A check that a benefactor is to do.
#[derive(Clone, Copy, Debug)]
struct Running {
    at: BenefactorId,
    encoding: EncodingId,
    /// Whether it was told.
    is_ordered: bool,
    until_ms: u64,
}

/// Who said first that an encoding is broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doubter {
    /// A reader of this member of the pool; `None`: of the manager's machine.
    Reader(Option<MemberId>),
    Benefactor,
}

/// Who has decoded an encoding, and found what.
#[derive(Clone, Debug, Default)]
struct Found {
    good: SmallVec<[BenefactorId; 2]>,
    broken: SmallVec<[BenefactorId; 2]>,
}

/// What is to be thought of an encoding, by those who decoded it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Opinion {
    /// Nobody has decoded it, or another one has to.
    Open,
    Good,
    Broken,
}

impl Found {
    fn note(&mut self, by: BenefactorId, is_right: bool) {
        // Whoever changes its mind has one opinion, the last.
        self.good.retain(|other| *other != by);
        self.broken.retain(|other| *other != by);
        let list = if is_right { &mut self.good } else { &mut self.broken };
        if list.len() < OPINIONS_MAX {
            list.push(by);
        }
    }

    fn has_said(&self, by: BenefactorId) -> bool {
        self.good.contains(&by) || self.broken.contains(&by)
    }
}

/// Different members among benefactors; those without one are each their own: they are all of the manager's machine, whose owner runs the pool.
fn voices(of: &[BenefactorId], registry: &Registry) -> usize {
    let mut members = BTreeSet::new();
    of.iter()
        .filter(|id| {
            registry.get(**id).is_none_or(|one| one.member.is_none_or(|member| members.insert(member)))
        })
        .count()
}

impl Checks {
    /// Whether something of the chunk is being checked, or that failed a moment ago.
    fn is_busy(&self, chunk: &ChunkId, now_ms: u64) -> bool {
        let waits = self.failing.get(chunk).is_some_and(|(_, retry_ms)| *retry_ms > now_ms);
        waits || self.running.contains_key(chunk)
    }

    /// Has a benefactor check an encoding, unless it has enough to do. Nothing else of its chunk is checked.
    fn start(&mut self, (chunk, encoding): Encoded, at: BenefactorId, now_ms: u64) {
        let own = self.at.entry(at).or_default();
        if own.len() < AT_ONCE && own.insert(chunk) {
            let running = Running { at, encoding, is_ordered: false, until_ms: now_ms + LATE_MS };
            assert!(self.running.insert(chunk, running).is_none(), "a chunk is checked once at a time");
        }
    }

    fn end(&mut self, chunk: &ChunkId) -> Option<Running> {
        let running = self.running.remove(chunk)?;
        if let Some(own) = self.at.get_mut(&running.at) {
            own.remove(chunk);
            if own.is_empty() {
                self.at.remove(&running.at);
            }
        }
        Some(running)
    }

    /// The benefactor couldn't find out, or said nothing.
    pub fn failed(&mut self, chunk: &ChunkId, at: BenefactorId, now_ms: u64) {
        if self.running.get(chunk).is_none_or(|running| running.at != at || !running.is_ordered) {
            return;
        }
        self.end(chunk);
        let (times, retry_ms) = self.failing.entry(*chunk).or_default();
        *retry_ms = now_ms + (RETRY_MS << (*times).min(RETRY_DOUBLINGS));
        *times += 1;
    }

    /// Ends what these benefactors were to check: they are gone, or may never have heard of it.
    pub fn forget_orders(&mut self, of: &[BenefactorId]) {
        for id in of {
            for chunk in self.at.remove(id).into_iter().flatten() {
                self.running.remove(&chunk);
            }
        }
    }

    /// Ends the order if this answers it.
    fn answered(&mut self, by: BenefactorId, (chunk, encoding): Encoded) -> bool {
        let is_it =
            |running: &Running| running.is_ordered && (running.at, running.encoding) == (by, encoding);
        let is_answer = self.running.get(&chunk).is_some_and(is_it);
        if is_answer {
            self.end(&chunk);
            self.failing.remove(&chunk);
        }
        is_answer
    }

    fn opinion(&self, encoded: &Encoded, registry: &Registry) -> Opinion {
        let Some(found) = self.found.get(encoded) else { return Opinion::Open };
        let (good, broken) = (voices(&found.good, registry), voices(&found.broken, registry));
        match good.cmp(&broken) {
            std::cmp::Ordering::Greater if broken == 0 || good > 1 => Opinion::Good,
            std::cmp::Ordering::Less if broken > 1 => Opinion::Broken,
            _ => Opinion::Open,
        }
    }

    /// Forgets what was found of another encoding if there are as many as there may be: one that is neither doubted nor checked, so that one
    /// benefactor's verdicts never leave no place for those of others.
    fn make_room_for(&mut self, encoded: &Encoded) {
        if self.found.len() < FOUND_MAX || self.found.contains_key(encoded) {
            return;
        }
        let is_idle =
            |other: &&Encoded| !self.doubts.contains_key(*other) && !self.running.contains_key(&other.0);
        let behind = self.found.range((Bound::Excluded(*encoded), Bound::Unbounded)).map(|(other, _)| other);
        let one = behind.chain(self.found.keys()).find(is_idle).copied();
        one.and_then(|one| self.found.remove(&one));
    }

    /// Gives up late checks.
    fn give_up_late(&mut self, now_ms: u64) {
        let late = self.running.iter().filter(|(_, running)| running.until_ms <= now_ms);
        let late: Vec<(ChunkId, Running)> = late.map(|(chunk, running)| (*chunk, *running)).collect();
        for (chunk, Running { at, is_ordered, .. }) in late {
            match is_ordered {
                true => self.failed(&chunk, at, now_ms),
                false => drop(self.end(&chunk)),
            }
        }
    }

    /// Some of the doubts, all of them in turn.
    fn next_doubts(&mut self) -> Vec<Encoded> {
        let after = self.looked_at.take().map_or(Bound::Unbounded, Bound::Excluded);
        let next: Vec<Encoded> = self
            .doubts
            .range((after, Bound::Unbounded))
            .take(LOOKED_AT)
            .map(|(encoded, _)| *encoded)
            .collect();
        self.looked_at = next.last().copied().filter(|_| next.len() == LOOKED_AT);
        next
    }

    fn count_broken(&mut self, maker: Maker, now_ms: u64) {
        if self.makers.len() >= MAKERS_MAX && !self.makers.contains_key(&maker) {
            let oldest = self.makers.iter().min_by_key(|(_, (_, last_ms))| *last_ms).map(|(maker, _)| *maker);
            oldest.and_then(|oldest| self.makers.remove(&oldest));
        }
        let (count, last_ms) = self.makers.entry(maker).or_default();
        (*count, *last_ms) = (count.saturating_add(1), now_ms);
    }

    /// Who made encodings that were found broken lately.
    pub fn broken(&self, members: &Members) -> Vec<BrokenEncodings> {
        let broken = |(maker, (count, _)): (&Maker, &(u64, u64))| {
            let (uid, hosts) = members.of_maker(*maker);
            BrokenEncodings { maker: *maker, count: *count, uid, hosts }
        };
        self.makers.iter().map(broken).collect()
    }
}

impl Core {
    /// A reader had enough blocks of an encoding, and they didn't make the chunk.
    pub(super) fn doubt(&mut self, chunk: ChunkId, encoding: EncodingId, now: Now) -> Answer {
        let encoded = (chunk, encoding);
        let reader = Doubter::Reader(self.asking);
        let trust = self.locations.get(&chunk).and_then(|chunk| trust_of(chunk, encoding));
        let is_new =
            trust.is_some_and(|trust| trust != Trust::Broken) && !self.checks.doubts.contains_key(&encoded);
        let of_member = || self.checks.doubts.values().filter(|other| **other == reader).count();
        // What two have found good needs no third look whenever somebody says so.
        let is_settled = || {
            let found = self.checks.found.get(&encoded);
            found.is_some_and(|found| found.broken.is_empty() && voices(&found.good, &self.registry) > 1)
        };
        if is_new
            && self.checks.doubts.len() < DOUBTS_MAX
            && of_member() < DOUBTS_OF_MEMBER_MAX
            && !is_settled()
        {
            tracing::info!(%chunk, ?encoding, maker = %encoding.maker, "a reader says that an encoding doesn't make its chunk");
            self.checks.doubts.insert(encoded, reader);
            // It may be known already, of blocks that were put anew.
            self.apply_opinion(encoded, now);
            self.look_at_doubt(encoded, now);
        }
        Ok(ManagerReply::Done)
    }

    /// What benefactors found that were ordered to decode. That they were is what makes it more than the word of somebody: nobody chooses
    /// which encodings it is asked about.
    pub(super) fn take_decoded(&mut self, by: BenefactorId, decoded: &[Decoded], now: Now) {
        for Decoded { chunk, encoding, is_right } in decoded {
            let encoded = (*chunk, *encoding);
            let is_answer = self.checks.answered(by, encoded);
            if is_answer
                || self.copies.was_asked(chunk, by, *encoding)
                || self.proofs.was_asked(chunk, by, *encoding)
            {
                self.take_verdict(encoded, by, *is_right, now);
            }
        }
    }

    fn take_verdict(&mut self, encoded: Encoded, by: BenefactorId, is_right: bool, now: Now) {
        let (chunk, encoding) = encoded;
        if self.trust(&encoded).is_none() {
            return;
        }
        self.checks.make_room_for(&encoded);
        self.checks.found.entry(encoded).or_default().note(by, is_right);
        if !is_right {
            tracing::warn!(%by, %chunk, ?encoding, maker = %encoding.maker, "a benefactor says that an encoding doesn't make its chunk");
            if self.checks.doubts.len() < DOUBTS_MAX {
                self.checks.doubts.entry(encoded).or_insert(Doubter::Benefactor);
            }
        }
        self.apply_opinion(encoded, now);
        self.look_at_doubt(encoded, now);
    }

    /// What is known of an encoding of which there are blocks.
    fn trust(&self, (chunk, encoding): &Encoded) -> Option<Trust> {
        self.locations.get(chunk).and_then(|chunk| trust_of(chunk, *encoding))
    }

    /// Lets an encoding count as those say who decoded it. As long as they don't agree it counts as before.
    pub(super) fn apply_opinion(&mut self, encoded: Encoded, now: Now) {
        if !self.checks.found.contains_key(&encoded) {
            return;
        }
        let (chunk, encoding) = encoded;
        let trust = match self.checks.opinion(&encoded, &self.registry) {
            Opinion::Good => Trust::Trusted,
            Opinion::Broken => Trust::Broken,
            Opinion::Open if self.is_last_word(encoded) => Trust::Broken,
            Opinion::Open => return,
        };
        if self.trust(&encoded).is_none_or(|before| before == trust) {
            return;
        }
        if trust == Trust::Broken {
            self.checks.count_broken(encoding.maker, now.ms);
            tracing::error!(
                %chunk, ?encoding, maker = %encoding.maker,
                "the fragments of an encoding match their names and don't make the chunk: they count for nothing"
            );
        }
        self.locations.judge(&chunk, encoding, trust, &self.registry);
    }

    /// Whether all who could decode the encoding say that it is broken, though these are one member alone.
    fn is_last_word(&self, encoded: Encoded) -> bool {
        let found = self.checks.found.get(&encoded);
        found.is_some_and(|found| found.good.is_empty() && !found.broken.is_empty())
            && !self.has_other_checker(encoded)
    }

    /// Whether somebody might decode it who hasn't: then its word is waited for.
    fn has_other_checker(&self, encoded: Encoded) -> bool {
        self.registry.iter().any(|(id, _)| self.registry.counts(id) && self.is_another_voice(encoded, id))
    }

    /// Whether this benefactor has not said what it thinks of the encoding, and nobody of the same member has said that it is broken.
    fn is_another_voice(&self, encoded: Encoded, id: BenefactorId) -> bool {
        let Some(found) = self.checks.found.get(&encoded) else { return true };
        let member = self.registry.get(id).and_then(|one| one.member);
        let is_alike = |other: &BenefactorId| {
            member.is_some() && self.registry.get(*other).and_then(|one| one.member) == member
        };
        !found.has_said(id) && !found.broken.iter().any(is_alike)
    }

    /// Has the next benefactor look at what is doubted, or forgets the doubt.
    fn look_at_doubt(&mut self, encoded: Encoded, now: Now) {
        let Some(doubter) = self.checks.doubts.get(&encoded).copied() else { return };
        let is_settled = match self.checks.opinion(&encoded, &self.registry) {
            // A reader's word is worth two looks where one found it good.
            Opinion::Good => {
                let found = self.checks.found.get(&encoded);
                doubter == Doubter::Benefactor
                    || found.is_some_and(|found| voices(&found.good, &self.registry) > 1)
            }
            Opinion::Broken => true,
            Opinion::Open => false,
        };
        if is_settled || self.trust(&encoded).is_none_or(|trust| trust == Trust::Broken) {
            self.checks.doubts.remove(&encoded);
        } else if !self.checks.is_busy(&encoded.0, now.ms)
            && let Some(next) = self.next_checker(encoded)
        {
            self.checks.start(encoded, next, now.ms);
        }
    }

    /// Who is asked next about an encoding: who has other blocks of its chunk, then who has some of it, then anybody.
    fn next_checker(&self, encoded: Encoded) -> Option<BenefactorId> {
        let (id, encoding) = encoded;
        let chunk = self.locations.get(&id)?;
        let times = self.checks.failing.get(&id).map_or(0, |(times, _)| *times as usize);
        let holds = |benefactor, own: bool| {
            let mut online = chunk.online(&self.registry);
            online.any(|holder| holder.benefactor == benefactor && (holder.encoding == encoding) == own)
        };
        let mut all: Vec<(bool, bool, BenefactorId)> = self
            .registry
            .iter()
            .filter(|(id, _)| self.registry.is_online(*id) && self.is_another_voice(encoded, *id))
            .map(|(id, _)| (!holds(id, false), !holds(id, true), id))
            .collect();
        all.sort_unstable();
        // One that couldn't find out isn't asked again and again while others might.
        all.get(times % all.len().max(1)).map(|(_, _, id)| *id)
    }

    /// Whether a block is to go that its own holder has found to be of no use, and others as well.
    pub(super) fn is_worthless(&self, chunk: &ChunkId, block: &Holder) -> bool {
        let found = self.checks.found.get(&(*chunk, block.encoding));
        block.leaves(&self.registry)
            && block.trust() == Trust::Broken
            && found.is_some_and(|found| found.broken.contains(&block.benefactor))
    }

    /// Has the holders of blocks that are to go decode those encodings that others have found broken.
    pub(super) fn check_broken(&mut self, chunk: ChunkId, blocks: &[Holder], now: Now) {
        let is_one = |block: &&Holder| block.leaves(&self.registry) && block.trust() == Trust::Broken;
        if let Some(block) = blocks.iter().find(is_one)
            && !self.checks.is_busy(&chunk, now.ms)
        {
            self.checks.start((chunk, block.encoding), block.benefactor, now.ms);
        }
    }

    /// The checks that a benefactor should do now.
    pub(super) fn plan_checks(&mut self, at: BenefactorId, now: Now) -> Vec<Command> {
        let own = self.checks.at.get(&at);
        let own: Vec<ChunkId> = own.into_iter().flatten().copied().collect();
        let mut commands = Vec::new();
        for chunk in own {
            let Some(Running { encoding, is_ordered: false, .. }) = self.checks.running.get(&chunk).copied()
            else {
                continue;
            };
            match self.check_order((chunk, encoding), at) {
                Some(check) => {
                    if let Some(running) = self.checks.running.get_mut(&chunk) {
                        (running.is_ordered, running.until_ms) = (true, now.ms + LATE_MS);
                    }
                    commands.push(Command::Check(check));
                }
                None => drop(self.checks.end(&chunk)),
            }
        }
        commands
    }

    /// The order to decode an encoding; `None` if too few of its blocks can be read now.
    fn check_order(&self, (id, encoding): Encoded, at: BenefactorId) -> Option<Check> {
        let chunk = self.locations.get(&id)?;
        let mut own: Vec<_> =
            chunk.online(&self.registry).filter(|holder| holder.encoding == encoding).collect();
        own.sort_by_key(|holder| (holder.benefactor != at, holder.index));
        let source = |index, benefactor: BenefactorId| {
            let address = self.registry.get(benefactor)?.address.clone();
            let permit = self.registry.permit(benefactor, (&id, encoding), at)?;
            Some(SourceBlock { encoding, index, address, permit, at: benefactor })
        };
        let from: Vec<SourceBlock> =
            own.iter().filter_map(|holder| source(holder.index, holder.benefactor)).collect();
        let different: BTreeSet<u8> = from.iter().map(|source| source.index).collect();
        (different.len() >= usize::from(encoding.code.data())).then_some(Check {
            chunk: id,
            from,
            own: None,
            number: 0,
        })
    }

    /// Gives up what is late, goes on with what is doubted, and forgets what is of no use any more.
    pub(super) fn tend_checks(&mut self, now: Now) {
        self.checks.give_up_late(now.ms);
        for encoded in self.checks.next_doubts() {
            self.look_at_doubt(encoded, now);
        }
        if now.ms.saturating_sub(self.checks.tidied_ms) >= TIDY_MS {
            self.checks.tidied_ms = now.ms;
            self.tidy_checks(now);
        }
    }

    fn tidy_checks(&mut self, now: Now) {
        let Self { checks, locations, .. } = self;
        let Checks { running, failing, doubts, found, makers, .. } = checks;
        let has_room = found.len() < FOUND_MAX / 2;
        found.retain(|encoded, found| {
            let (id, encoding) = encoded;
            let chunk = locations.get(id).filter(|chunk| trust_of(chunk, *encoding).is_some());
            // What was found broken may be put again; what was found good is doubted again.
            let is_news = has_room && (chunk.is_some() || !found.broken.is_empty());
            let stands_beside =
                |chunk: &Chunk| chunk.holders.iter().any(|holder| holder.encoding != *encoding);
            is_news
                || chunk.is_some_and(stands_beside)
                || running.contains_key(id)
                || doubts.contains_key(encoded)
        });
        failing
            .retain(|id, (_, retry_ms)| *retry_ms + FAILURES_KEPT_MS > now.ms && locations.get(id).is_some());
        makers.retain(|_, (_, last_ms)| now.ms.saturating_sub(*last_ms) < NAMED_MS);
    }
}

/// What is known of an encoding of which there are blocks; `None`: there are none, or they are copies.
fn trust_of(chunk: &Chunk, encoding: EncodingId) -> Option<Trust> {
    let is_one = |holder: &&Holder| holder.encoding == encoding && !encoding.code.is_copy();
    chunk.holders.iter().find(is_one).map(Holder::trust)
}
