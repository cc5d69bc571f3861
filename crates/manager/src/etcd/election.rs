//! Who leads: the manager whose lease holds the key `leader`.
//!
//! | state | the lease is renewed | it isn't in time, or etcd knows it no more | told to stop |
//! |---|---|---|---|
//! | stands by | stands by; leads once there is no key `leader` | begins anew with another lease | gives up the lease |
//! | leads | leads | leads no more, for ever: what was read is thrown away, and it begins anew | gives up the lease: another one leads at once |
//!
//! The holder counts the lease from before it asked for it, on a clock that goes on while the machine sleeps; etcd counts later. So the
//! holder knows that it leads no more before etcd lets another one lead. What it does between looking at the clock and etcd's answer is
//! fenced: each transaction of the store demands the very key that this lease holds.
//!
//! In a virtual machine that its host pauses, that clock stands still. So the lease is counted by the calendar as well, which hosts set when
//! the machine goes on. A calendar that is set ahead ends a lease, and another one is asked for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use stdchk_model::cbor;
use stdchk_model::message::handshake::Leader;
use stdchk_model::message::manager::{Alone, EtcdInfo, EtcdMember, EtcdTrouble, ManagerInfo};
use stdchk_net::{Repeats, Retry};

use super::gateway::{self, AskError, behind, bytes, list, number, range, text};
use super::{Etcd, Login, Place, Running, Trouble, standing};
use crate::store::StoreError;

/// A lease holds for so long without being renewed, seconds: a manager that is killed is followed within ten.
const LEASE_SECONDS: u64 = 4;
/// By so much earlier its holder takes it for over, since clocks don't all go at the same pace.
const MARGIN: Duration = Duration::from_millis(500);
/// How often it is renewed.
const RENEW: Duration = Duration::from_secs(1);
/// Pause after an attempt that failed.
const PAUSE: Duration = Duration::from_millis(200);
/// How often a manager that stands by looks whether somebody leads.
const LOOK: Duration = Duration::from_millis(250);
/// Time for an answer.
const ANSWER: Duration = Duration::from_millis(1500);
/// Time for a member of etcd to say how it is.
const MEMBER_ANSWER: Duration = Duration::from_secs(1);
/// Most managers that are told.
const MANAGERS_MAX: usize = 64;

/// A time by two clocks, nanoseconds each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Time {
    /// Since the machine was started, sleep counted.
    up: u64,
    /// Since 1970.
    calendar: u64,
}

impl Time {
    fn now() -> Self {
        let Ok(up) = Duration::try_from(clock_gettime(ClockId::Boottime)) else {
            unreachable!("no machine was started in the future");
        };
        // A calendar from before 1970 says nothing.
        let calendar = Duration::try_from(clock_gettime(ClockId::Realtime)).unwrap_or_default();
        Self { up: nanoseconds(up), calendar: nanoseconds(calendar) }
    }

    /// When a lease ends that was asked for at this time.
    fn end_of_lease(self) -> Self {
        let lease = nanoseconds(Duration::from_secs(LEASE_SECONDS) - MARGIN);
        Self { up: self.up.saturating_add(lease), calendar: self.calendar.saturating_add(lease) }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Until when a lease is held.
#[derive(Debug)]
struct Until {
    up: AtomicU64,
    calendar: AtomicU64,
    lost: AtomicBool,
}

impl Until {
    /// The end of a lease that was asked for at this time.
    fn of(asked: Time) -> Self {
        let Time { up, calendar } = asked.end_of_lease();
        Self { up: up.into(), calendar: calendar.into(), lost: false.into() }
    }

    /// Whether the lease is held. Once it isn't, it never is again.
    fn holds(&self, now: Time) -> bool {
        let (up, calendar) = (self.up.load(Ordering::Acquire), self.calendar.load(Ordering::Acquire));
        if now.up >= up || now.calendar >= calendar {
            self.lose();
        }
        !self.lost.load(Ordering::Acquire)
    }

    fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// It was renewed by a question that was asked at `asked`, and answered by now.
    fn renew(&self, asked: Time, now: Time) {
        if self.holds(now) {
            let Time { up, calendar } = asked.end_of_lease();
            self.up.fetch_max(up, Ordering::AcqRel);
            // It may have been set back.
            self.calendar.store(calendar, Ordering::Release);
        }
    }
}

/// A manager that stands by or leads: a lease, which a task renews.
pub struct Candidacy {
    etcd: Etcd,
    lease: u64,
    until: Arc<Until>,
    seen: Arc<Mutex<Seen>>,
    own: ManagerInfo,
    _renewing: Running<()>,
}

/// The state of etcd and of the other managers at the last look.
#[derive(Debug, Default)]
struct Seen {
    /// The other managers.
    others: Vec<ManagerInfo>,
    /// Those that were there last, while there are none, and since when there are none.
    gone: Option<(Vec<ManagerInfo>, Instant)>,
    /// The lease can't be renewed.
    unanswered: Option<Trouble>,
    /// etcd's room is used up.
    full: Option<Trouble>,
    /// Members that don't answer, with the cause.
    silent: Vec<(String, Trouble)>,
}

impl Seen {
    /// Takes in which managers there are. A key of `own` from before it was started again is there for some seconds.
    fn see(&mut self, own: &ManagerInfo, all: Vec<ManagerInfo>) {
        let is_own = |info: &ManagerInfo| {
            info.host == own.host && info.addresses.iter().any(|address| own.addresses.contains(address))
        };
        let others: Vec<ManagerInfo> = all.into_iter().filter(|info| !is_own(info)).collect();
        let before = std::mem::replace(&mut self.others, others);
        match (self.others.is_empty(), before.is_empty()) {
            (false, _) => self.gone = None,
            (true, false) => self.gone = Some((before, Instant::now())),
            (true, true) => {}
        }
    }
}

impl Seen {
    /// Takes in which members of etcd don't answer, and why.
    fn hear_of_members(&mut self, silent: Vec<(String, String)>) {
        let before = std::mem::take(&mut self.silent);
        let since =
            |member: &str| before.iter().find(|(known, _)| known == member).map(|(_, trouble)| trouble);
        let going_on = |(member, cause): (String, String)| {
            let trouble = Trouble::going_on(since(&member), cause);
            (member, trouble)
        };
        self.silent = silent.into_iter().map(going_on).collect();
    }
}

fn ms_since(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The outcome of an attempt to lead.
enum Attempt {
    /// This manager leads, with this number of the key `leader`.
    Leads(u64),
    /// Another one does, or did a moment ago.
    StandsBy(Option<Leader>),
}

/// A candidate that leads.
#[derive(Clone)]
pub struct Leadership {
    candidacy: Arc<Candidacy>,
    /// etcd's number for the making of the key `leader`: no other leader has the same one.
    fence: u64,
}

impl Candidacy {
    /// Gets a lease, as soon as etcd gives one, and says that this manager is there.
    pub async fn begin(etcd: &Etcd, own: ManagerInfo) -> Self {
        let (mut retry, mut missed) = (Retry::endless((PAUSE, RENEW)), Repeats::default());
        loop {
            let begun = Self::try_begin(etcd, own.clone()).await;
            etcd.note(&begun);
            match begun {
                Ok(candidacy) => return candidacy,
                Err(error) => tell(&mut missed, &error, "this manager can't stand by yet"),
            }
            retry.pause().await;
        }
    }

    async fn try_begin(etcd: &Etcd, own: ManagerInfo) -> Result<Self, AskError> {
        let asked = Time::now();
        let lease = ask(etcd, "lease/grant", json!({"TTL": LEASE_SECONDS.to_string()})).await?;
        let lease = number(&lease, "ID")?;
        let until = Arc::new(Until::of(asked));
        let key = etcd.key(&format!("managers/{lease:016x}"));
        let said = json!({"key": text(&key), "value": text(&cbor::encode(&own)), "lease": lease.to_string()});
        ask(etcd, "kv/put", said).await?;
        let seen = Arc::<Mutex<Seen>>::default();
        let renewing = renew(etcd.clone(), (lease, own.clone()), Arc::clone(&until), Arc::clone(&seen));
        let renewing = etcd.spawn(renewing);
        Ok(Self { etcd: etcd.clone(), lease, until, seen, own, _renewing: renewing })
    }

    /// Whether the lease is held.
    pub fn holds(&self) -> bool {
        self.until.holds(Time::now())
    }

    /// Whether there is a pool here already; asks until etcd answers.
    pub async fn has_pool(&self) -> bool {
        let key = self.etcd.key("sequence");
        let mut missed = Repeats::default();
        loop {
            let asked = ask(&self.etcd, "kv/range", json!({"key": text(&key)})).await;
            self.etcd.note(&asked);
            match asked {
                Ok(found) => return !list(&found, "kvs").is_empty(),
                Err(error) => tell(&mut missed, &error, "whether there is a pool isn't known"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until this manager leads; `None`: its lease is lost.
    pub async fn elected(self: &Arc<Self>) -> Option<Leadership> {
        let mut missed = Repeats::default();
        while self.holds() {
            let tried = self.try_to_lead().await;
            self.etcd.note(&tried);
            match tried {
                Ok(Attempt::Leads(fence)) => {
                    self.etcd.0.standing.send_replace(None);
                    // With its lease the key of the one that led before is gone: it stands by no more.
                    match self.etcd.look().await {
                        Ok(found) => self.seen.lock().see(&self.own, found),
                        Err(error) => tracing::debug!(%error, "which managers are there can't be asked"),
                    }
                    return Some(Leadership { candidacy: Arc::clone(self), fence });
                }
                Ok(Attempt::StandsBy(leader)) => match standing::read(&self.etcd, leader).await {
                    Ok(standing) => drop(self.etcd.0.standing.send_replace(standing)),
                    Err(error) => tell(&mut missed, &error, "where managers serve isn't known"),
                },
                Err(error) => tell(&mut missed, &error, "who leads isn't known"),
            }
            tokio::time::sleep(LOOK).await;
        }
        None
    }

    async fn try_to_lead(&self) -> Result<Attempt, AskError> {
        let key = self.etcd.key("leader");
        let leader = ask(&self.etcd, "kv/range", json!({"key": text(&key)})).await?;
        if let [leader] = list(&leader, "kvs") {
            // The answer to an earlier attempt may have been lost.
            let (own, number) = (number(leader, "lease")? == self.lease, number(leader, "create_revision")?);
            return Ok(match own {
                true => Attempt::Leads(number),
                false => Attempt::StandsBy(Some(standing::leader(said_by(leader)?, number))),
            });
        }
        let value = text(&cbor::encode(&self.own));
        let attempt = json!({
            "compare": [{"target": "CREATE", "result": "EQUAL", "key": text(&key), "create_revision": "0"}],
            "success": [{"request_put": {"key": text(&key), "value": value, "lease": self.lease.to_string()}}],
        });
        let answer = ask(&self.etcd, "kv/txn", attempt).await?;
        match answer.get("succeeded").and_then(Value::as_bool) {
            Some(true) => {
                Ok(Attempt::Leads(number(answer.get("header").unwrap_or(&Value::Null), "revision")?))
            }
            _ => Ok(Attempt::StandsBy(None)),
        }
    }

    /// Gives up the lease: another manager leads at once.
    pub async fn resign(&self) {
        self.until.lose();
        let revoke = ask(&self.etcd, "lease/revoke", json!({"ID": self.lease.to_string()}));
        if let Err(error) = revoke.await {
            tracing::warn!(%error, "the lease of this manager ends by itself, in some seconds");
        }
    }
}

impl Leadership {
    /// Whether this manager leads, for all that it knows.
    pub fn holds(&self) -> bool {
        self.candidacy.holds()
    }

    /// Which time of leading it is, of all that etcd has seen.
    pub fn number(&self) -> u64 {
        self.fence
    }

    /// The managers that lead or stand by.
    pub fn managers(&self) -> Vec<ManagerInfo> {
        let others = self.candidacy.seen.lock().others.clone();
        [ManagerInfo { leads: true, ..self.candidacy.own.clone() }].into_iter().chain(others).collect()
    }

    /// How etcd is.
    pub fn info(&self) -> EtcdInfo {
        let seen = self.candidacy.seen.lock();
        let trouble = seen.unanswered.clone().or_else(|| seen.full.clone());
        let told = |trouble: Trouble| EtcdTrouble { for_ms: ms_since(trouble.since), cause: trouble.cause };
        let alone = seen
            .gone
            .as_ref()
            .map(|(before, since)| Alone { for_ms: ms_since(*since), before: before.clone() });
        let silent = seen
            .silent
            .iter()
            .map(|(member, trouble)| EtcdMember { member: member.clone(), trouble: told(trouble.clone()) });
        EtcdInfo {
            members: self.etcd().members(),
            trouble: trouble.map(told),
            alone,
            silent: silent.collect(),
        }
    }

    /// Whether etcd takes something new.
    pub fn has_room(&self) -> bool {
        self.candidacy.seen.lock().full.is_none()
    }

    pub(super) fn etcd(&self) -> &Etcd {
        &self.candidacy.etcd
    }

    /// The condition of whatever only the one that leads may do.
    pub(super) fn condition(&self) -> Value {
        let key = text(&self.etcd().key("leader"));
        json!({"target": "CREATE", "result": "EQUAL", "key": key, "create_revision": self.fence.to_string()})
    }

    /// The question which condition failed.
    pub(super) fn question(&self) -> Value {
        json!({"key": text(&self.etcd().key("leader"))})
    }

    /// Whether the answer to that question is the key that this manager holds.
    pub(super) fn is_own(&self, answer: &Value) -> Result<bool, AskError> {
        match list(answer, "kvs") {
            [leader] => Ok(number(leader, "create_revision")? == self.fence),
            _ => Ok(false),
        }
    }

    /// The error of a manager that leads no more.
    pub(super) fn deposed(&self) -> StoreError {
        self.candidacy.until.lose();
        StoreError::Deposed
    }

    /// Gives up the lease.
    pub async fn resign(&self) {
        self.candidacy.resign().await;
    }
}

pub(super) async fn ask(etcd: &Etcd, call: &'static str, question: Value) -> Result<Value, AskError> {
    let asker = etcd.clone();
    etcd.run(async move { asker.gateway().ask(call, &question, ANSWER).await }).await
}

/// Says that etcd gave no answer, unless it was said lately.
fn tell(missed: &mut Repeats, error: &AskError, what: &str) {
    if let Some(row) = missed.failed(&error.to_string()) {
        tracing::warn!(seconds = row.seconds, tries = row.times, %error, "{what}");
    }
}

/// Renews a lease until it is lost, and looks which managers are there, and whether etcd has room.
async fn renew(etcd: Etcd, (lease, own): (u64, ManagerInfo), until: Arc<Until>, seen: Arc<Mutex<Seen>>) {
    let question = json!({"ID": lease.to_string()});
    let mut missed = Repeats::default();
    while until.holds(Time::now()) {
        let asked = Time::now();
        let answer = etcd.gateway().ask("lease/keepalive", &question, ANSWER).await;
        let left = answer.and_then(|answer| number(answer.get("result").unwrap_or(&Value::Null), "TTL"));
        let pause = match left {
            Ok(0) => {
                tracing::warn!("etcd knows the lease of this manager no more");
                return until.lose();
            }
            Ok(_) => {
                until.renew(asked, Time::now());
                if let Some(row) = missed.is_well() {
                    tracing::info!(tries = row.times, "the lease of this manager is renewed again");
                }
                seen.lock().unanswered = None;
                RENEW
            }
            Err(error) => {
                tell(&mut missed, &error, "the lease of this manager can't be renewed");
                let mut seen = seen.lock();
                seen.unanswered = Some(Trouble::going_on(seen.unanswered.as_ref(), error.to_string()));
                PAUSE
            }
        };
        // A slow answer to this question doesn't delay the next renewal by more than its limit.
        let gateway = etcd.gateway();
        let (found, full, silent, ()) = tokio::join!(
            look(&etcd),
            gateway.is_full(ANSWER),
            gateway.silent_members(MEMBER_ANSWER),
            tokio::time::sleep(pause)
        );
        seen.lock().hear_of_members(silent);
        match found {
            Ok(found) => seen.lock().see(&own, found),
            Err(error) => tracing::debug!(%error, "which managers are there can't be asked"),
        }
        match full {
            Ok(is_full) => {
                let mut seen = seen.lock();
                let cause = format!("etcd's room is used up; {}", gateway::MAKE_ROOM);
                seen.full = is_full.then(|| Trouble::going_on(seen.full.as_ref(), cause));
            }
            // A user of etcd who has rights to the pool's keys alone may not ask.
            Err(error) => tracing::debug!(%error, "whether etcd has room can't be asked"),
        }
    }
}

/// The managers that lead or stand by, as etcd knows them. The process that asks is none of them.
///
/// # Errors
/// etcd doesn't answer, or refuses.
pub async fn managers_in(place: &Place, login: Option<&Login>) -> Result<Vec<ManagerInfo>, AskError> {
    let etcd = Etcd::new(place, login).map_err(|error| AskError::Away(error.to_string()))?;
    etcd.look().await
}

impl Etcd {
    /// The managers that lead or stand by.
    async fn look(&self) -> Result<Vec<ManagerInfo>, AskError> {
        let asker = self.clone();
        self.run(async move { look(&asker).await }).await
    }
}

async fn look(etcd: &Etcd) -> Result<Vec<ManagerInfo>, AskError> {
    let from = etcd.key("managers/");
    let found =
        etcd.gateway().ask("kv/range", &range(&from, &behind(&from), MANAGERS_MAX, 0), ANSWER).await?;
    list(&found, "kvs").iter().map(said_by).collect()
}

/// A manager's record of itself, under a key.
fn said_by(found: &Value) -> Result<ManagerInfo, AskError> {
    cbor::decode(&bytes(found, "value")?).map_err(|error| AskError::Refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By both clocks, in a machine that was started a thousand seconds after 1970.
    fn at(second: u64) -> Time {
        Time { up: second * SECOND, calendar: (second + 1_000) * SECOND }
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_lease_ends_earlier_for_its_holder_than_for_etcd() {
        assert!(at(7).end_of_lease().up < at(7 + LEASE_SECONDS).up);
    }

    #[test]
    fn a_lease_is_over_for_a_machine_that_was_paused_once_its_calendar_is_set() {
        let paused = Time { calendar: at(3 + LEASE_SECONDS).calendar, ..at(3) };
        assert!(Until::of(at(2)).holds(at(3)));
        assert!(!Until::of(at(2)).holds(paused));
        let set_back = Time { calendar: 0, ..at(3) };
        let lease = Until::of(at(2));
        lease.renew(set_back, set_back);
        assert!(lease.holds(Time { calendar: SECOND, ..at(4) }));
        assert!(
            !lease.holds(Time { calendar: LEASE_SECONDS * SECOND, ..at(4) }),
            "by the calendar as it is now"
        );
    }

    #[test]
    fn a_lease_that_was_over_once_is_never_held_again() {
        let lease = Until::of(at(1));
        assert!(lease.holds(at(2)));
        lease.renew(at(2), at(3));
        assert!(lease.holds(at(5)), "it counts from when it was asked for");
        lease.renew(at(5), at(6));
        assert!(!lease.holds(at(6)), "the answer came after its end");
        assert!(!lease.holds(at(5)));
        let given_up = Until::of(at(1));
        given_up.lose();
        given_up.renew(at(2), at(3));
        assert!(!given_up.holds(at(3)));
    }
}
