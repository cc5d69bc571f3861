//! Where the next chunk goes, within the space that the manager granted: round robin over the stripe that it gave, but for a
//! small chunk to the benefactor that its name chooses. Equal ones meet there, also if nobody asks whether the pool has them.
//!
//! Disks and memory are chosen apart. What goes to memory takes space of the grant as well: disks are to have it in the end.

use std::collections::HashSet;
use std::time::Duration;

use stdchk_model::exact::first;
use stdchk_model::limits::SMALL_BYTES;
use stdchk_model::message::manager::{BenefactorInfo, ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, ChunkRef, ErrorCode, Failure, SessionId, Tier};
use tokio::time::Instant;

use super::known::Grant;
use crate::pool::Inner;

/// The manager isn't asked more often than that whether there are others than those that are busy.
const ASK_FOR_OTHERS_EVERY: Duration = Duration::from_secs(1);
/// Most space asked for at once, bytes: a question per this much data. Before, a session asks for as much as it has sent so far: of what
/// many files that stay small keep from others, most is used. What is left returns with a commit.
const GRANT_BYTES: u64 = 256 << 20;

#[derive(Default)]
struct Turn {
    benefactors: Vec<BenefactorId>,
    next: usize,
    /// Those that keep blocks in memory, and take turns on their own.
    in_memory: Vec<BenefactorId>,
    next_in_memory: usize,
    /// It was said that memory has no room.
    told_of_memory: bool,
    granted: u64,
    /// Bytes that were given places so far.
    sent: u64,
    asked: bool,
    /// When it was asked last.
    asked_at: Option<Instant>,
}

/// The stripe of one session.
pub(super) struct Stripe {
    session: SessionId,
    turn: tokio::sync::Mutex<Turn>,
}

impl Stripe {
    pub(super) fn new(session: SessionId) -> Self {
        Self { session, turn: tokio::sync::Mutex::default() }
    }

    /// The next `count` benefactors, distinct and none of `avoid`, for `chunk`, which takes `bytes` at each. Fewer if there
    /// aren't so many, at least one. Those that are busy, or were slow, come last. What was `granted` meanwhile in answer to another question is used first.
    pub(super) async fn next(
        &self,
        pool: &Inner,
        granted: impl FnOnce() -> Option<Grant>,
        chunk: ChunkRef,
        (count, bytes): (usize, u64),
        avoid: &[BenefactorId],
    ) -> Result<Vec<BenefactorId>, Failure> {
        let mut turn = self.turn.lock().await;
        turn.take(pool, granted);
        let need = bytes * count as u64;
        let mut avoided = pool.benefactors.suspects();
        avoided.extend(avoid);
        let mut targets = turn.pick_free(pool, chunk, count, &avoided);
        if turn.granted < need || targets.len() < count && turn.should_ask(chunk, count, &avoided) {
            self.reserve_free(pool, &mut turn, need, (chunk, count), &avoided).await?;
            targets = turn.pick_free(pool, chunk, count, &avoided);
        }
        if targets.len() < count {
            let others = [&avoided[..], &targets].concat();
            targets.extend(turn.pick(chunk, count - targets.len(), &others));
        }
        if targets.is_empty() {
            return Err(Failure::new(
                ErrorCode::Unavailable,
                "no benefactor that is on-line can take the chunk",
            ));
        }
        turn.used(bytes * targets.len() as u64);
        turn.next += targets.len();
        Ok(targets)
    }

    /// The next `count` benefactors that keep blocks in memory, distinct and none of `avoid`, for `chunk`, which takes `bytes`. None, if there
    /// aren't so many with room that aren't busy: then disks are to take it.
    pub(super) async fn next_in_memory(
        &self,
        pool: &Inner,
        granted: impl FnOnce() -> Option<Grant>,
        chunk: ChunkRef,
        (count, bytes): (usize, u64),
        avoid: &[BenefactorId],
    ) -> Result<Option<Vec<BenefactorId>>, Failure> {
        let mut turn = self.turn.lock().await;
        turn.take(pool, granted);
        let mut avoided = pool.benefactors.suspects();
        avoided.extend(avoid);
        avoided.extend(pool.benefactors.busy());
        let mut targets = turn.pick_in_memory(chunk, count, &avoided);
        if turn.granted < bytes || targets.len() < count && turn.may_ask_for_others() {
            self.reserve(pool, &mut turn, bytes, &avoided).await?;
            targets = turn.pick_in_memory(chunk, count, &avoided);
        }
        if targets.len() < count {
            if !std::mem::replace(&mut turn.told_of_memory, true) {
                tracing::info!(session = %self.session, hosts = count, "memory has no room: disks take what is written");
            }
            return Ok(None);
        }
        turn.told_of_memory = false;
        turn.used(bytes);
        turn.next_in_memory += targets.len();
        Ok(Some(targets))
    }

    /// Nothing more goes to these benefactors until the manager names them again.
    pub(super) async fn leave(&self, gone: &HashSet<BenefactorId>) {
        let mut turn = self.turn.lock().await;
        turn.benefactors.retain(|id| !gone.contains(id));
        turn.in_memory.retain(|id| !gone.contains(id));
    }

    /// A benefactor's memory is full: nothing more goes there until the manager names it again.
    pub(super) async fn note_full(&self, benefactor: BenefactorId) {
        self.turn.lock().await.in_memory.retain(|id| *id != benefactor);
    }

    /// Asks for a stripe without those that are busy or were slow, and for one with them if else too few are left.
    async fn reserve_free(
        &self,
        pool: &Inner,
        turn: &mut Turn,
        need: u64,
        (chunk, count): (ChunkRef, usize),
        avoided: &[BenefactorId],
    ) -> Result<(), Failure> {
        let passed_over = pool.benefactors.passed_over();
        if !passed_over.is_empty() {
            let answer = self.reserve(pool, turn, need, &[avoided, &passed_over].concat()).await;
            match answer {
                Ok(()) if turn.pick(chunk, count, avoided).len() >= count => return Ok(()),
                Err(failure) if !matches!(failure.code, ErrorCode::Unavailable | ErrorCode::NoSpace) => {
                    return Err(failure);
                }
                _ => {}
            }
        }
        self.reserve(pool, turn, need, avoided).await
    }

    async fn reserve(
        &self,
        pool: &Inner,
        turn: &mut Turn,
        need: u64,
        avoid: &[BenefactorId],
    ) -> Result<(), Failure> {
        (turn.asked, turn.asked_at) = (true, Some(Instant::now()));
        let ask =
            ManagerRequest::Reserve { session: self.session, bytes: turn.wants(need), avoid: avoid.to_vec() };
        let ManagerReply::Stripe { benefactors, bytes } = pool.manager.ask(&ask).await? else {
            return Err(crate::unexpected("Reserve"));
        };
        turn.grant(pool, &benefactors, bytes);
        Ok(())
    }

    /// A commit gave back what was left.
    pub(super) fn returned(&self) {
        // Who asks for space at this moment gets it behind the commit.
        if let Ok(mut turn) = self.turn.try_lock() {
            (turn.granted, turn.asked) = (0, false);
        }
    }
}

impl Turn {
    /// How much space to ask for: as much as was sent so far, or is left.
    fn wants(&self, need: u64) -> u64 {
        self.sent.min(GRANT_BYTES).max(self.granted).max(need)
    }

    /// What was left of the grant before is given back with this one.
    fn grant(&mut self, pool: &Inner, benefactors: &[BenefactorInfo], bytes: u64) {
        pool.benefactors.learn(benefactors);
        let of_tier = |tier| {
            let those = benefactors.iter().filter(move |benefactor| benefactor.tier == tier);
            those.map(|benefactor| benefactor.id).collect()
        };
        (self.benefactors, self.in_memory) = (of_tier(Tier::Disk), of_tier(Tier::Memory));
        self.granted = bytes;
    }

    /// Takes what was granted in answer to another question, if nothing was asked for since.
    fn take(&mut self, pool: &Inner, granted: impl FnOnce() -> Option<Grant>) {
        if !self.asked
            && let Some(Grant { benefactors, bytes, is_of_making }) = granted()
        {
            self.asked = !is_of_making;
            self.grant(pool, &benefactors, bytes);
        }
    }

    /// So much of the grant is used. A nearly full pool grants less than is needed.
    fn used(&mut self, bytes: u64) {
        self.granted = self.granted.saturating_sub(bytes);
        self.sent = self.sent.saturating_add(bytes);
    }

    /// As [`Self::pick`], without those that are busy or were slow, or can't send to others.
    fn pick_free(
        &self,
        pool: &Inner,
        chunk: ChunkRef,
        count: usize,
        avoid: &[BenefactorId],
    ) -> Vec<BenefactorId> {
        let benefactors = &pool.benefactors;
        let is_passed_over =
            |id: &&BenefactorId| benefactors.why_passed_over(**id).is_some() || benefactors.is_cut_off(**id);
        let passed_over: Vec<_> = self.benefactors.iter().filter(is_passed_over).copied().collect();
        self.pick(chunk, count, &[avoid, &passed_over].concat())
    }

    /// Whether the manager should be asked, since too few are free: not again and again if those that are busy are enough.
    fn should_ask(&self, chunk: ChunkRef, count: usize, avoid: &[BenefactorId]) -> bool {
        self.pick(chunk, count, avoid).len() < count || self.may_ask_for_others()
    }

    /// Whether the manager was not asked for a while.
    fn may_ask_for_others(&self) -> bool {
        self.asked_at.is_none_or(|at| at.elapsed() >= ASK_FOR_OTHERS_EVERY)
    }

    fn pick(&self, chunk: ChunkRef, count: usize, avoid: &[BenefactorId]) -> Vec<BenefactorId> {
        pick((&self.benefactors, self.next), chunk, count, avoid)
    }

    fn pick_in_memory(&self, chunk: ChunkRef, count: usize, avoid: &[BenefactorId]) -> Vec<BenefactorId> {
        pick((&self.in_memory, self.next_in_memory), chunk, count, avoid)
    }
}

/// Of benefactors that take turns, and of which the `next` one has its turn, the next `count` for a chunk.
fn pick(
    (benefactors, next): (&[BenefactorId], usize),
    chunk: ChunkRef,
    count: usize,
    avoid: &[BenefactorId],
) -> Vec<BenefactorId> {
    if chunk.length as usize <= SMALL_BYTES {
        let mut usable = benefactors.to_vec();
        usable.retain(|benefactor| !avoid.contains(benefactor));
        usable.sort_by_key(|benefactor| std::cmp::Reverse(rank(chunk, *benefactor)));
        usable.truncate(count);
        return usable;
    }
    let all = benefactors.len().max(1);
    let from = benefactors.iter().cycle().skip(next % all).take(benefactors.len());
    from.filter(|benefactor| !avoid.contains(benefactor)).take(count).copied().collect()
}

/// How much a small chunk is for a benefactor: rendezvous hashing. Whoever has the chunk's name and this benefactor in its stripe comes to
/// the same number.
fn rank(chunk: ChunkRef, benefactor: BenefactorId) -> u64 {
    let name = u64::from_le_bytes(first(&chunk.id.0));
    // The last steps of SplitMix64: names are random, numbers of benefactors aren't.
    let mut mixed = name ^ u64::from(benefactor.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use stdchk_model::ChunkId;

    use super::*;

    const LARGE: ChunkRef = ChunkRef { id: ChunkId([1; 32]), length: 1 << 20 };

    #[test]
    fn as_much_space_is_asked_for_as_was_used_and_at_most_so_much() {
        let wants = |sent, granted, need| Turn { sent, granted, ..Turn::default() }.wants(need);
        assert_eq!(wants(0, 0, 70_000), 70_000);
        assert_eq!(wants(3 << 20, 1 << 19, 1 << 20), 3 << 20);
        assert_eq!(wants(1 << 20, 8 << 20, 1 << 20), 8 << 20, "one more benefactor, not more space");
        assert_eq!(wants(1 << 40, 0, 1 << 20), GRANT_BYTES);
        assert_eq!(wants(0, 0, GRANT_BYTES + 1), GRANT_BYTES + 1);
    }

    #[test]
    fn benefactors_take_turns_and_avoided_ones_are_passed_over() {
        let benefactors = (0..4).map(BenefactorId).collect();
        let turn = Turn { benefactors, next: 3, asked: true, ..Turn::default() };
        assert_eq!(turn.pick(LARGE, 2, &[]), [BenefactorId(3), BenefactorId(0)]);
        assert_eq!(turn.pick(LARGE, 2, &[BenefactorId(0)]), [BenefactorId(3), BenefactorId(1)]);
        assert_eq!(turn.pick(LARGE, 9, &[]).len(), 4);
        assert!(Turn::default().pick(LARGE, 1, &[]).is_empty());
    }

    #[test]
    fn a_small_chunk_meets_its_equals_and_small_chunks_spread() {
        let stripe = |first| Turn {
            benefactors: (0..8u32).map(|number| BenefactorId((number + first) % 8)).collect(),
            ..Turn::default()
        };
        let mut load = [0; 8];
        for number in 0..800u32 {
            let chunk = ChunkRef { id: ChunkId::of(&number.to_le_bytes()), length: 4096 };
            let chosen = stripe(0).pick(chunk, 2, &[]);
            assert_eq!(stripe(5).pick(chunk, 2, &[]), chosen, "in whichever order they come");
            assert_eq!(stripe(0).pick(chunk, 1, &chosen[..1]), chosen[1..], "the next if the first is gone");
            load[chosen[0].0 as usize] += 1;
        }
        assert!(load.iter().all(|chunks| (60..140).contains(chunks)), "{load:?}");
    }
}
