//! Which other benefactors this one can't send to: found by orders that failed, and by trying.
//!
//! The manager and clients may reach a benefactor that others don't, over a link that drops what comes, or behind a firewall. It says so itself
//! ([`crate::link`]), so that others make the copies.
//!
//! | event | what is said of the other one |
//! |---|---|
//! | a connection for an order fails, or a try does | it isn't reached |
//! | nothing moves on a connection for some time | a try decides |
//! | a block is under way for very long | it is slow |
//! | it takes a block in time | nothing any more |
//! | a try of one that isn't reached succeeds; one that is slow was not tried for minutes | nothing any more |
//!
//! A benefactor that isn't reached is tried every few seconds, on a connection of its own; ever more rarely where that changes all the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::BenefactorId;
use stdchk_model::limits::UNREACHED_MAX;
use stdchk_model::message::benefactor::Unreached;
use stdchk_model::message::handshake::Role;
use stdchk_net::{BufferPool, CallError, Connection, Identity};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// Time for a try: a packet may be lost once.
const TRY_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two tries of those that aren't reached.
const TRY_PAUSE: Duration = Duration::from_secs(3);
/// Time after which one that was slow counts as any other: writers may wait ten seconds to find out that it still is.
const SLOW_FOR: Duration = Duration::from_secs(300);
/// A way that was cut, and is again within this time after it worked, is tried after twice the pause: over one that is full a try gets through now and then, and blocks
/// don't.
const FLAPS_WITHIN: Duration = Duration::from_secs(300);
/// How often that pause doubles: up to a minute and a half.
const FLAPS_MAX: u32 = 5;
/// So many that aren't reached, while no other one was since, mean that none is.
const NONE_FROM: usize = 3;

/// The state of the way to another benefactor that isn't reached, or is slow.
#[derive(Clone, Debug)]
struct Way {
    address: String,
    since: Instant,
    is_slow: bool,
    /// How often it worked in between.
    flaps: u32,
}

#[derive(Debug, Default)]
struct State {
    ways: BTreeMap<BenefactorId, Way>,
    /// When ways that were cut worked again, and how often they have been cut.
    worked: BTreeMap<BenefactorId, (Instant, u32)>,
    /// When another benefactor was reached last.
    reached: Option<Instant>,
}

/// The ways to other benefactors.
pub(crate) struct Reach {
    identity: Identity,
    buffers: Arc<BufferPool>,
    state: Mutex<State>,
    /// Told when another word is to be said.
    news: watch::Sender<()>,
}

impl Reach {
    pub(crate) fn new(identity: Identity, buffers: Arc<BufferPool>) -> Self {
        Self { identity, buffers, state: Mutex::default(), news: watch::Sender::new(()) }
    }

    /// Becomes ready with each change of what is to be said.
    pub(crate) fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    /// The word of this benefactor: all that it can't send to, and whether it reaches none.
    pub(crate) fn said(&self) -> (Vec<Unreached>, bool) {
        let state = self.state.lock();
        let said = |(to, way): (&BenefactorId, &Way)| {
            let for_ms = u64::try_from(way.since.elapsed().as_millis()).unwrap_or(u64::MAX);
            Unreached { to: *to, address: way.address.clone(), for_ms, is_slow: way.is_slow }
        };
        (state.ways.iter().map(said).collect(), state.reaches_none())
    }

    /// Whether it isn't reached.
    pub(crate) fn is_cut(&self, to: BenefactorId, address: &str) -> bool {
        self.state.lock().ways.get(&to).is_some_and(|way| way.address == address && !way.is_slow)
    }

    /// It took a block, or answered.
    pub(crate) fn reached(&self, to: BenefactorId) {
        let mut state = self.state.lock();
        let before = state.reaches_none();
        state.reached = Some(Instant::now());
        let way = state.ways.remove(&to);
        if let Some(way) = way.as_ref().filter(|way| !way.is_slow) {
            state.worked.retain(|_, (at, _)| at.elapsed() < FLAPS_WITHIN);
            if state.worked.len() < UNREACHED_MAX {
                state.worked.insert(to, (Instant::now(), way.flaps + 1));
            }
        }
        if way.is_some() || before {
            drop(state);
            tracing::info!(%to, "another benefactor is reached again");
            self.news.send_replace(());
        }
    }

    /// It isn't reached.
    pub(crate) fn unreached(&self, to: BenefactorId, address: &str) {
        self.note(to, address, false);
    }

    /// A block was under way to it for very long.
    pub(crate) fn slow(&self, to: BenefactorId, address: &str) {
        self.note(to, address, true);
    }

    fn note(&self, to: BenefactorId, address: &str, is_slow: bool) {
        let mut state = self.state.lock();
        let is_known = |way: &Way| way.address == address && (way.is_slow == is_slow || is_slow);
        if state.ways.get(&to).is_some_and(is_known) {
            return;
        }
        if state.ways.len() >= UNREACHED_MAX && !state.ways.contains_key(&to) {
            // The flag that it reaches none, which goes with the list, says enough.
            return;
        }
        let flaps = state
            .worked
            .get(&to)
            .filter(|(at, _)| at.elapsed() < FLAPS_WITHIN)
            .map_or(0, |(_, flaps)| *flaps);
        state.ways.insert(to, Way { address: address.to_owned(), since: Instant::now(), is_slow, flaps });
        drop(state);
        tracing::warn!(%to, address, is_slow, "this benefactor can't send to another one");
        self.news.send_replace(());
    }

    /// Tries one to which nothing moves, beside whoever waits for it.
    pub(crate) fn doubt(self: &Arc<Self>, to: BenefactorId, address: &str) {
        let (this, address) = (Arc::clone(self), address.to_owned());
        tokio::spawn(async move {
            if this.answers(&address).await.is_err() {
                this.unreached(to, &address);
            }
        });
    }

    /// Tries some others, which the manager names to one that doesn't reach another.
    pub(crate) fn try_others(self: &Arc<Self>, others: impl IntoIterator<Item = (BenefactorId, String)>) {
        for (to, address) in others {
            let this = Arc::clone(self);
            tokio::spawn(async move {
                match this.answers(&address).await {
                    Ok(()) => this.reached(to),
                    Err(error) => {
                        tracing::debug!(%to, %error, "another benefactor was tried in vain");
                        this.unreached(to, &address);
                    }
                }
            });
        }
    }

    /// Tries those that aren't reached again and again, for ever.
    pub(crate) async fn keep_trying(self: Arc<Self>) {
        loop {
            tokio::time::sleep(TRY_PAUSE).await;
            let ways: Vec<(BenefactorId, Way)> =
                self.state.lock().ways.iter().map(|(to, way)| (*to, way.clone())).collect();
            let mut tries = JoinSet::new();
            for (to, way) in ways {
                let this = Arc::clone(&self);
                match way.is_slow {
                    true if way.since.elapsed() < SLOW_FOR => {}
                    true => this.reached(to),
                    false if way.since.elapsed() < TRY_PAUSE * ((1 << way.flaps.min(FLAPS_MAX)) - 1) => {}
                    false => drop(tries.spawn(async move {
                        if this.answers(&way.address).await.is_ok() {
                            this.reached(to);
                        }
                    })),
                }
            }
            while tries.join_next().await.is_some() {}
        }
    }

    /// Whether the way to it works: it greets. One whose disk is busy answers nothing else for long.
    async fn answers(&self, address: &str) -> Result<(), CallError> {
        let open = Connection::open(Role::Benefactor, address, &self.identity, &self.buffers);
        let late = |_| CallError::Timeout { address: address.to_owned(), seconds: TRY_TIMEOUT.as_secs() };
        match timeout(TRY_TIMEOUT, open).await.map_err(late)? {
            // A refusal came over the way, too.
            Ok(_) | Err(CallError::Refused(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl State {
    fn reaches_none(&self) -> bool {
        let unreached = self.ways.values().filter(|way| !way.is_slow);
        let since = unreached.clone().map(|way| way.since).min();
        unreached.count() >= NONE_FROM && self.reached.is_none_or(|at| since.is_none_or(|since| at < since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: &str = "unix:/nowhere/at/all";

    fn reach() -> Reach {
        Reach::new(Identity { role: Role::Benefactor, pool: None, keys: None }, BufferPool::new(1 << 20))
    }

    fn said(reach: &Reach) -> (Vec<(u32, bool)>, bool) {
        let (ways, none) = reach.said();
        (ways.iter().map(|way| (way.to.0, way.is_slow)).collect(), none)
    }

    #[tokio::test]
    async fn what_is_said_follows_what_happens_and_is_bounded() {
        let reach = reach();
        (1..=2).for_each(|to| reach.unreached(BenefactorId(to), NOWHERE));
        reach.slow(BenefactorId(3), NOWHERE);
        assert_eq!(
            said(&reach),
            (vec![(1, false), (2, false), (3, true)], false),
            "one that is slow is reached"
        );
        reach.slow(BenefactorId(2), NOWHERE);
        assert_eq!(said(&reach).0[1], (2, false), "one that isn't reached is no better");
        reach.unreached(BenefactorId(3), NOWHERE);
        assert_eq!(said(&reach), (vec![(1, false), (2, false), (3, false)], true), "none of three");
        reach.reached(BenefactorId(9));
        assert!(!said(&reach).1, "one is");
        reach.reached(BenefactorId(1));
        assert_eq!(said(&reach).0, [(2, false), (3, false)]);
        (0..1_000).for_each(|to| reach.unreached(BenefactorId(to), NOWHERE));
        assert_eq!(said(&reach).0.len(), UNREACHED_MAX);
        (0..1_000).for_each(|to| reach.reached(BenefactorId(to)));
        assert!(said(&reach).0.is_empty() && reach.state.lock().worked.len() <= UNREACHED_MAX);
    }

    #[tokio::test]
    async fn a_way_that_comes_and_goes_is_remembered() {
        let (reach, to) = (reach(), BenefactorId(1));
        let flaps = || reach.state.lock().ways.get(&to).map(|way| way.flaps);
        for times in 0..4 {
            reach.unreached(to, NOWHERE);
            assert_eq!(flaps(), Some(times));
            reach.reached(to);
        }
        // Nor is it forgotten because the other one moved.
        reach.unreached(to, "unix:/elsewhere");
        assert_eq!(flaps(), Some(4));
    }
}
