//! Where the next chunk goes: round robin over the stripe that the manager gave, within the space that it granted.

use stdchk_model::message::manager::{BenefactorInfo, ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, ErrorCode, Failure, SessionId};

use crate::pool::Inner;

/// Space asked for at once, bytes: a question per this much data. What is left returns when the session ends.
const GRANT_BYTES: u64 = 256 << 20;
/// Space asked for first: most files are small.
pub(super) const GRANT_FIRST_BYTES: u64 = 16 << 20;

#[derive(Default)]
struct Turn {
    benefactors: Vec<BenefactorId>,
    next: usize,
    granted: u64,
    asked: bool,
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

    /// The next `count` benefactors, distinct and none of `avoid`, for a chunk of `bytes` each. Fewer if there aren't so
    /// many, at least one. What was `granted` meanwhile in answer to another question is used first.
    pub(super) async fn next(
        &self,
        pool: &Inner,
        granted: impl FnOnce() -> Option<(Vec<BenefactorInfo>, u64)>,
        count: usize,
        bytes: u64,
        avoid: &[BenefactorId],
    ) -> Result<Vec<BenefactorId>, Failure> {
        let mut turn = self.turn.lock().await;
        if !turn.asked
            && let Some((benefactors, bytes)) = granted()
        {
            turn.asked = true;
            turn.grant(pool, &benefactors, bytes);
        }
        let need = bytes * count as u64;
        let mut avoided = pool.benefactors.suspects();
        avoided.extend(avoid);
        let mut targets = turn.pick(count, &avoided);
        if turn.granted < need || targets.len() < count {
            self.reserve(pool, &mut turn, need, &avoided).await?;
            targets = turn.pick(count, &avoided);
        }
        if targets.is_empty() {
            return Err(Failure::new(
                ErrorCode::Unavailable,
                "no benefactor that is on-line can take the chunk",
            ));
        }
        turn.granted = turn.granted.saturating_sub(bytes * targets.len() as u64);
        turn.next = turn.next.wrapping_add(targets.len());
        Ok(targets)
    }

    async fn reserve(
        &self,
        pool: &Inner,
        turn: &mut Turn,
        need: u64,
        avoid: &[BenefactorId],
    ) -> Result<(), Failure> {
        let eager = turn.wants(need);
        turn.asked = true;
        let ask = |bytes| ManagerRequest::Reserve { session: self.session, bytes, avoid: avoid.to_vec() };
        let answer = match pool.manager.ask(&ask(eager.max(need))).await {
            // A pool that is nearly full may still have room for just this.
            Err(failure) if failure.code == ErrorCode::NoSpace => pool.manager.ask(&ask(need)).await?,
            answer => answer?,
        };
        let ManagerReply::Stripe { benefactors, bytes } = answer else {
            return Err(crate::unexpected("Reserve"));
        };
        turn.grant(pool, &benefactors, bytes);
        Ok(())
    }
}

impl Turn {
    /// How much space to ask for: much once some was used up, little at first, or when it is only asked elsewhere.
    fn wants(&self, need: u64) -> u64 {
        let used_up = self.asked && self.granted < need;
        if used_up { GRANT_BYTES } else { GRANT_FIRST_BYTES }
    }

    /// What was left of the grant before is given back with this one.
    fn grant(&mut self, pool: &Inner, benefactors: &[BenefactorInfo], bytes: u64) {
        pool.benefactors.learn(benefactors);
        self.benefactors = benefactors.iter().map(|benefactor| benefactor.id).collect();
        self.granted = bytes;
    }

    fn pick(&self, count: usize, avoid: &[BenefactorId]) -> Vec<BenefactorId> {
        let all = self.benefactors.len().max(1);
        let from = self.benefactors.iter().cycle().skip(self.next % all).take(self.benefactors.len());
        from.filter(|benefactor| !avoid.contains(benefactor)).take(count).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_space_is_asked_for_only_by_who_has_used_up_some() {
        let turn = |asked, granted| Turn { asked, granted, ..Turn::default() };
        assert_eq!(turn(false, 0).wants(1 << 20), GRANT_FIRST_BYTES);
        assert_eq!(turn(true, 1 << 19).wants(1 << 20), GRANT_BYTES);
        assert_eq!(
            turn(true, 8 << 20).wants(1 << 20),
            GRANT_FIRST_BYTES,
            "one more benefactor, not more space"
        );
    }

    #[test]
    fn benefactors_take_turns_and_avoided_ones_are_passed_over() {
        let benefactors = (0..4).map(BenefactorId).collect();
        let turn = Turn { benefactors, next: 3, granted: 0, asked: true };
        assert_eq!(turn.pick(2, &[]), [BenefactorId(3), BenefactorId(0)]);
        assert_eq!(turn.pick(2, &[BenefactorId(0)]), [BenefactorId(3), BenefactorId(1)]);
        assert_eq!(turn.pick(9, &[]).len(), 4);
        assert!(Turn::default().pick(1, &[]).is_empty());
    }
}
