//! The connections to the benefactors, and which of them just failed.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::limits::SENT_ENTRIES_MAX;
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest, BlockState};
use stdchk_model::message::handshake::Role;
use stdchk_model::message::manager::{BenefactorInfo, BenefactorState, ManagerReply, ManagerRequest, Sent};
use stdchk_model::{BenefactorId, BlockId, Encoding, ErrorCode, Failure, Receipt};
use stdchk_net::{Buffer, BufferPool, Bytes, CallError, Connection, Progress, Retry};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::manager::ManagerLink;
use crate::receiving::{Pace, Receiving};
use crate::sending::{Sending, Usual};
use crate::shared::Shared;

/// Time without anything moving on the connection after which a put has failed.
pub(crate) const PUT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time from when a durable put has gone out until it is tried elsewhere: a disk that other work keeps busy takes seconds.
const DURABLE_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks at whether a put is slow.
const PUT_LOOK: Duration = Duration::from_millis(250);
/// Time for a sync: a busy disk may have a gigabyte to write.
pub(crate) const SYNC_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two questions to a benefactor that works for long, whether it is there at all.
const WORK_LOOK: Duration = Duration::from_secs(2);
/// Time for the answer; one that takes longer is stopped or cut off, however long a sync may take.
const SILENT_AFTER: Duration = Duration::from_secs(8);
/// Time for a get to be answered before the attempt counts as failed.
const GET_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a get is sent again that a benefactor has no time for: its owner lets it work no faster.
const BUSY_PAUSE: Duration = Duration::from_millis(300);
/// Time for which that is done.
const BUSY_PATIENCE: Duration = Duration::from_secs(60);
/// Time for a verification of one batch of blocks, which reads them all.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a benefactor is avoided that this client has doubts about; then it is asked whether it is there, again and again,
/// and avoided until it answers.
const DOUBT: Duration = Duration::from_secs(5);
/// Pause before it is asked once more: it may be back at any moment.
const DOUBTED_LOOK: Duration = Duration::from_millis(500);
/// The manager isn't asked for all benefactors more often.
const RELEARN_EVERY: Duration = Duration::from_secs(1);
/// How long a benefactor that answered is taken to be there: a question a second costs nothing.
const TRUST: Duration = Duration::from_secs(1);
/// Time for a benefactor to say that it is there; one that takes longer is not relied on for content that is at hand.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a benefactor is chosen behind all others that took no block, or was slow.
const PASSED_OVER_FOR: Duration = Duration::from_secs(5);
/// How long a benefactor is chosen behind all others that took blocks and doesn't vouch for them.
const UNKEPT_FOR: Duration = Duration::from_secs(60);

/// Why writers choose a benefactor behind all others for a while, the greater the less it helps to wait for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PassedOver {
    /// It takes longer for a block than is usual.
    Slow,
    /// It takes no new blocks unless somebody insists.
    Busy,
    /// It takes blocks, and then gives no receipt for them that counts, or none in time.
    Unkept,
}

/// Why a benefactor is not relied on, the worse the greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Doubt {
    /// It sends far more slowly than others do: seen anew for each question, and never noted.
    Slow,
    /// It let a reader wait, or gave it wrong bytes: readers ask others first.
    Poor,
    /// A call failed: writers pass it over as well.
    Failed,
}

struct Link {
    address: String,
    connection: Arc<Shared>,
    doubt: Option<Doubt>,
    answered_at: Option<Instant>,
    /// Until when writers choose all others first, and why.
    passed_over_until: Option<(Instant, PassedOver)>,
    /// Others can't get copies from it.
    is_cut_off: bool,
    sending: Sending,
    receiving: Receiving,
}

impl Link {
    fn passed_over(&self) -> Option<PassedOver> {
        self.passed_over_until.filter(|(until, _)| *until > Instant::now()).map(|(_, why)| why)
    }

    fn pass_over(&mut self, why: PassedOver) {
        // A lesser reason doesn't make a graver one last longer.
        if self.passed_over().is_none_or(|before| before <= why) {
            let time = if why == PassedOver::Unkept { UNKEPT_FOR } else { PASSED_OVER_FOR };
            self.passed_over_until = Some((Instant::now() + time, why));
        }
    }
}

/// A put that is under way.
struct Put<'a> {
    benefactors: &'a Benefactors,
    id: BenefactorId,
    bytes: usize,
    /// It is answered once the block is on the disk.
    durable: bool,
    /// Why the benefactor was passed over before, if it was.
    before: Option<PassedOver>,
    /// Into how many parts this client's link was divided then.
    shares: usize,
    progress: Arc<Progress>,
    taken: bool,
}

impl Put<'_> {
    /// Why others are to be chosen, if it takes too long.
    fn lags(&self) -> Option<PassedOver> {
        match self.progress.written() {
            // Only the disk is waited for, if there is one.
            Some(written) if self.durable => {
                (written.elapsed() >= DURABLE_PATIENCE).then_some(PassedOver::Unkept)
            }
            _ => self.is_slow().then_some(PassedOver::Slow),
        }
    }

    /// Whether it takes far longer than is usual, or what goes out there before it does.
    fn is_slow(&self) -> bool {
        let limit = self.benefactors.all.lock().limit(self.bytes);
        let lasts = |since: Instant, limit| since.elapsed() >= limit;
        match (self.progress.began(), self.progress.written()) {
            (None, _) => {
                let writing = self.benefactors.writing_since(self.id);
                let is_late = writing.zip(limit).is_some_and(|(since, limit)| lasts(since, limit));
                is_late || self.before.is_none() && self.benefactors.why_passed_over(self.id).is_some()
            }
            (Some(began), written) => match limit {
                Some(limit) => lasts(began, limit),
                None => written.is_some_and(|written| lasts(written, PUT_TIMEOUT)),
            },
        }
    }
}

impl Drop for Put<'_> {
    fn drop(&mut self) {
        let counts = self.taken && !self.durable;
        let took = self.progress.began().filter(|_| counts).map(|began| began.elapsed());
        self.benefactors.all.lock().end(self.id, (self.bytes, self.shares), took);
        if let Some(link) = self.benefactors.links.lock().get_mut(&self.id) {
            link.sending.end(self.bytes, self.taken);
        }
    }
}

/// All benefactors that this client has heard of.
pub(crate) struct Benefactors {
    manager: Arc<ManagerLink>,
    buffers: Arc<BufferPool>,
    links: Mutex<HashMap<BenefactorId, Link>>,
    /// What puts take, at whichever benefactor.
    all: Mutex<Usual>,
    /// The last one of which the manager was told what was sent there.
    told_last: Mutex<Option<BenefactorId>>,
    /// When the manager answered last who there is, or didn't; held while it is asked.
    relearned: tokio::sync::Mutex<Option<(Instant, Result<(), Failure>)>>,
}

impl Benefactors {
    /// `buffers` takes the payloads of gets.
    pub(crate) fn new(manager: Arc<ManagerLink>, buffers: Arc<BufferPool>) -> Self {
        Self {
            manager,
            buffers,
            links: Mutex::default(),
            all: Mutex::default(),
            told_last: Mutex::default(),
            relearned: tokio::sync::Mutex::default(),
        }
    }

    /// Remembers addresses that the manager told.
    pub(crate) fn learn(&self, benefactors: &[BenefactorInfo]) {
        let mut links = self.links.lock();
        for info in benefactors {
            match links.get(&info.id) {
                Some(link) if link.address == info.address => {}
                _ => {
                    let (address, connection) = (info.address.clone(), Arc::default());
                    let link = Link {
                        address,
                        connection,
                        doubt: None,
                        answered_at: None,
                        passed_over_until: None,
                        is_cut_off: false,
                        sending: Sending::default(),
                        receiving: Receiving::default(),
                    };
                    links.insert(info.id, link);
                }
            }
            let Some(link) = links.get_mut(&info.id) else { continue };
            link.is_cut_off = info.is_cut_off;
            if !info.load.state.accepts() {
                link.pass_over(PassedOver::Busy);
            }
        }
    }

    /// Benefactors that failed this client and have not answered since.
    pub(crate) fn suspects(&self) -> Vec<BenefactorId> {
        let links = self.links.lock();
        links.iter().filter(|(_, link)| link.doubt == Some(Doubt::Failed)).map(|(id, _)| *id).collect()
    }

    /// Whether this client has heard of other benefactors.
    pub(crate) fn are_others(&self, id: BenefactorId) -> bool {
        self.links.lock().keys().any(|other| *other != id)
    }

    /// Benefactors that writers choose behind all others.
    pub(crate) fn passed_over(&self) -> Vec<BenefactorId> {
        let links = self.links.lock();
        links.iter().filter(|(_, link)| link.passed_over().is_some()).map(|(id, _)| *id).collect()
    }

    /// Benefactors that take no new blocks unless somebody insists.
    pub(crate) fn busy(&self) -> Vec<BenefactorId> {
        let links = self.links.lock();
        let is_busy = |link: &Link| link.passed_over() == Some(PassedOver::Busy);
        links.iter().filter(|(_, link)| is_busy(link)).map(|(id, _)| *id).collect()
    }

    /// Why it is one of these, if it is.
    pub(crate) fn why_passed_over(&self, id: BenefactorId) -> Option<PassedOver> {
        self.links.lock().get(&id).and_then(Link::passed_over)
    }

    /// Whether others can't get copies of what is stored there, by what the manager told last.
    pub(crate) fn is_cut_off(&self, id: BenefactorId) -> bool {
        self.links.lock().get(&id).is_some_and(|link| link.is_cut_off)
    }

    /// Has writers choose all others first for a while.
    pub(crate) fn pass_over(&self, id: BenefactorId, why: PassedOver) {
        if let Some(link) = self.links.lock().get_mut(&id) {
            link.pass_over(why);
        }
    }

    /// What was sent to benefactors since the last call, as much as a message holds; those come first that come behind the last one of
    /// that call.
    pub(crate) fn take_sent(&self) -> Vec<Sent> {
        let mut links = self.links.lock();
        let mut last = self.told_last.lock();
        let mut ids: Vec<BenefactorId> = links.keys().copied().collect();
        ids.sort_unstable_by_key(|id| (last.is_some_and(|last| *id <= last), *id));
        let sent = ids.into_iter().filter_map(|id| {
            let (bytes, ms) = links.get_mut(&id)?.sending.take_sent()?;
            Some(Sent { to: id, bytes, ms })
        });
        let sent: Vec<Sent> = sent.take(SENT_ENTRIES_MAX).collect();
        *last = sent.last().map(|sent| sent.to);
        sent
    }

    /// The manager wasn't told of it.
    pub(crate) fn take_back(&self, sent: &[Sent]) {
        let mut links = self.links.lock();
        for sent in sent {
            if let Some(link) = links.get_mut(&sent.to) {
                link.sending.take_back(sent.bytes, sent.ms);
            }
        }
    }

    /// What is held against a benefactor at present.
    pub(crate) fn doubt(&self, id: BenefactorId) -> Option<Doubt> {
        self.links.lock().get(&id)?.doubt
    }

    /// When a benefactor answered last.
    pub(crate) fn answered_at(&self, id: BenefactorId) -> Option<Instant> {
        self.links.lock().get(&id)?.answered_at
    }

    /// Notes that a benefactor failed, so that others are preferred until it answers.
    fn suspect(self: &Arc<Self>, id: BenefactorId) {
        self.note(id, Doubt::Failed);
    }

    /// Notes that a benefactor has let a reader wait for so long, so that others are preferred; one that answered somebody
    /// else meanwhile is busy and not silent.
    pub(crate) fn late(self: &Arc<Self>, id: BenefactorId, waited: Duration) {
        let answered = self.links.lock().get(&id).and_then(|link| link.answered_at);
        if answered.is_none_or(|at| at.elapsed() >= waited) {
            self.note(id, Doubt::Poor);
        }
    }

    /// Notes a doubt about a benefactor, which lasts until it answers a question that is asked some seconds later.
    pub(crate) fn note(self: &Arc<Self>, id: BenefactorId, doubt: Doubt) {
        if let Some(link) = self.links.lock().get_mut(&id) {
            if link.doubt.is_none() {
                tokio::spawn(ask_again(Arc::downgrade(self), id, Arc::clone(&link.connection)));
            }
            link.doubt = link.doubt.max(Some(doubt));
        }
    }

    /// How long an answer of a benefactor is waited for that is due within `limit`: one that failed and has not answered since
    /// isn't waited for as long again.
    fn patience(&self, id: BenefactorId, limit: Duration) -> Duration {
        match self.doubt(id) {
            Some(Doubt::Failed) => limit.min(ALIVE_TIMEOUT),
            _ => limit,
        }
    }

    /// Whether there is a connection to a benefactor.
    pub(crate) fn is_connected(&self, id: BenefactorId) -> bool {
        self.links.lock().get(&id).is_some_and(|link| link.connection.carried().is_some())
    }

    /// How fast a benefactor sends, as far as that is known.
    pub(crate) fn pace(&self, id: BenefactorId) -> Option<Pace> {
        let mut links = self.links.lock();
        let link = links.get_mut(&id)?;
        let now = Instant::now();
        link.receiving.look(now, link.connection.carried()?);
        link.receiving.pace(now)
    }

    /// How fast the benefactor in the middle sends of those that send, one of an even number above it; none of them has anything to send.
    pub(crate) fn usual_pace(&self) -> Option<Pace> {
        let (links, now) = (self.links.lock(), Instant::now());
        let mut known: Vec<Pace> = links.values().filter_map(|link| link.receiving.pace(now)).collect();
        known.sort_unstable_by(|one, other| one.per_second.total_cmp(&other.per_second));
        known.get(known.len() / 2).map(|pace| Pace { unanswered: 0, ..*pace })
    }

    /// What it took this client to connect to anybody of the pool, at most.
    pub(crate) fn connecting(&self) -> Duration {
        self.manager.connecting.get()
    }

    async fn link(&self, id: BenefactorId) -> Result<(String, Arc<Shared>), CallError> {
        let known = |links: &HashMap<_, Link>| {
            links.get(&id).map(|link| (link.address.clone(), Arc::clone(&link.connection)))
        };
        if let Some(found) = known(&self.links.lock()) {
            return Ok(found);
        }
        self.relearn().await?;
        let missing =
            || Failure::new(ErrorCode::Unavailable, format!("the manager doesn't know benefactor {id}"));
        known(&self.links.lock()).ok_or_else(|| missing().into())
    }

    async fn connection(&self, id: BenefactorId) -> Result<Arc<Connection>, CallError> {
        let (address, connection) = self.link(id).await?;
        let open = || async {
            let identity = self.manager.identity();
            Connection::open(Role::Benefactor, &address, &identity, &self.buffers).await
        };
        connection.get(&self.manager.connecting, open).await
    }

    pub(crate) async fn call(
        self: &Arc<Self>,
        id: BenefactorId,
        request: &BenefactorRequest,
        payload: Bytes,
        limit: Duration,
    ) -> Result<(BenefactorReply, Buffer), CallError> {
        self.call_watched(id, request, payload, limit, Arc::default()).await
    }

    async fn call_watched(
        self: &Arc<Self>,
        id: BenefactorId,
        request: &BenefactorRequest,
        payload: Bytes,
        limit: Duration,
        progress: Arc<Progress>,
    ) -> Result<(BenefactorReply, Buffer), CallError> {
        let answer = self.exchange(id, request, payload, limit, progress).await;
        self.heard(id, answer).await
    }

    /// Sends a request and waits for the answer; nobody takes note of it.
    async fn exchange(
        &self,
        id: BenefactorId,
        request: &BenefactorRequest,
        payload: Bytes,
        limit: Duration,
        progress: Arc<Progress>,
    ) -> Result<(BenefactorReply, Buffer), CallError> {
        let connection = self.connection(id).await?;
        match connection.call_watched(request, payload.clone(), limit, progress).await {
            // Every request to a benefactor can be repeated.
            Err(CallError::Closed { .. }) if connection.is_superseded() => {
                self.connection(id).await?.call(request, payload, limit).await
            }
            answer => answer,
        }
    }

    /// Takes note of whether a benefactor answered; true: it didn't.
    fn has_failed<T>(self: &Arc<Self>, id: BenefactorId, answer: &Result<T, CallError>) -> bool {
        let has_failed = answer.as_ref().is_err_and(CallError::is_transport);
        if has_failed {
            self.suspect(id);
        } else if let Some(link) = self.links.lock().get_mut(&id) {
            link.answered_at = Some(Instant::now());
        }
        has_failed
    }

    /// Takes note of how a benefactor answered.
    async fn heard<T>(
        self: &Arc<Self>,
        id: BenefactorId,
        answer: Result<T, CallError>,
    ) -> Result<T, CallError> {
        if self.has_failed(id, &answer) {
            // The address may have changed with a restart: ask the manager before the next attempt.
            drop(self.relearn().await);
        }
        answer
    }

    /// Since when a request goes out to a benefactor, if one does.
    fn writing_since(&self, id: BenefactorId) -> Option<Instant> {
        self.links.lock().get(&id)?.connection.writing_since()
    }

    /// Those of `benefactors` that answered moments ago, or do now when they are asked: not who has much to take before.
    pub(crate) async fn alive(
        self: &Arc<Self>,
        benefactors: impl IntoIterator<Item = BenefactorId>,
    ) -> HashSet<BenefactorId> {
        let mut alive = HashSet::new();
        let mut asked = JoinSet::new();
        {
            let links = self.links.lock();
            let of = |id: &BenefactorId| links.get(id);
            for id in benefactors.into_iter().collect::<HashSet<_>>() {
                let doubt = of(&id).and_then(|link| link.doubt);
                let answered = of(&id).and_then(|link| link.answered_at);
                match (doubt, answered) {
                    (Some(Doubt::Failed), _) => {}
                    (_, Some(answered)) if answered.elapsed() < TRUST => {
                        alive.insert(id);
                    }
                    _ => {
                        let this = Arc::clone(self);
                        asked.spawn(async move {
                            let answers = timeout(ALIVE_TIMEOUT, this.answers(id)).await;
                            answers.unwrap_or(false).then_some(id)
                        });
                    }
                }
            }
        }
        alive.extend(asked.join_all().await.into_iter().flatten());
        alive
    }

    async fn answers(self: &Arc<Self>, id: BenefactorId) -> bool {
        let asked = self.call(id, &BenefactorRequest::Status, Bytes::new(), ALIVE_TIMEOUT).await;
        let answers = asked.is_ok();
        if !answers {
            self.suspect(id);
        }
        answers
    }

    /// Learns from the manager which benefactors there are; one that it doesn't name any more is forgotten. Who asks while another one
    /// does, or right after, is content with what that one learned.
    async fn relearn(&self) -> Result<(), Failure> {
        let began = Instant::now();
        let mut relearned = self.relearned.lock().await;
        if let Some((at, outcome)) = &*relearned
            && (*at >= began || outcome.is_ok() && at.elapsed() < RELEARN_EVERY)
        {
            return outcome.clone();
        }
        let outcome = match self.manager.ask(&ManagerRequest::Benefactors).await {
            Ok(ManagerReply::Benefactors(benefactors)) => {
                let named: HashSet<BenefactorId> = benefactors.iter().map(|info| info.id).collect();
                self.links.lock().retain(|id, _| named.contains(id));
                self.learn(&benefactors);
                Ok(())
            }
            Ok(_) => Err(crate::unexpected("Benefactors")),
            Err(failure) => Err(failure),
        };
        *relearned = Some((Instant::now(), outcome.clone()));
        outcome
    }

    /// Those of which the manager hears no more. Another benefactor may answer at the address of one, as does one whose folder was emptied.
    pub(crate) async fn gone(&self) -> Result<HashSet<BenefactorId>, Failure> {
        match self.manager.ask(&ManagerRequest::Benefactors).await? {
            ManagerReply::Benefactors(benefactors) => {
                let is_gone = |info: &&BenefactorInfo| {
                    matches!(info.state, BenefactorState::Offline | BenefactorState::Lost)
                };
                Ok(benefactors.iter().filter(is_gone).map(|info| info.id).collect())
            }
            _ => Err(crate::unexpected("Benefactors")),
        }
    }

    /// Stores a block; unless it is to be `durable` at once, which a receipt then says, it is durable once
    /// [`Benefactors::sync`] says so. Also whether it was there before. A benefactor is chosen behind all others for a while if it is busy,
    /// takes far longer than is usual, or doesn't say in time that the block is on its disk. Where it was that `before` and was chosen all
    /// the same, a busy one has to take the block, and either has as long as something moves.
    pub(crate) async fn put(
        self: &Arc<Self>,
        id: BenefactorId,
        (block, encoding): (BlockId, Encoding),
        payload: Bytes,
        durable: bool,
        before: Option<PassedOver>,
    ) -> Result<(Option<Receipt>, bool), CallError> {
        let insists = before.is_some_and(|why| why >= PassedOver::Busy);
        let request = BenefactorRequest::Put { block, encoding, durable, insists };
        let mut put = self.begin_put(id, payload.len(), durable, before);
        let answer = {
            let progress = Arc::clone(&put.progress);
            let call = async {
                match durable {
                    true => self.call_patiently(id, &request, payload, SYNC_TIMEOUT, progress).await,
                    false => self.call_put(id, &request, payload, progress).await,
                }
            };
            let mut answer = pin!(call);
            loop {
                if let Ok(answer) = timeout(PUT_LOOK, &mut answer).await {
                    break answer;
                }
                let Some(why) = put.lags() else { continue };
                let lags = self.found_lagging(id, why);
                if before.is_none() {
                    break Err(lags.into());
                }
            }
        };
        let is_busy = |error: &CallError| matches!(error, CallError::Refused(failure) if failure.code == ErrorCode::Busy);
        put.taken = answer.is_ok();
        if answer.as_ref().is_err_and(is_busy) {
            self.pass_over(id, PassedOver::Busy);
        }
        match answer? {
            (BenefactorReply::Stored { receipt, known }, _) => Ok((receipt, known)),
            _ => Err(crate::unexpected("Put").into()),
        }
    }

    /// As [`Self::call`], but for who goes elsewhere if it fails, and doesn't wait until the manager says where the benefactor is now.
    async fn call_put(
        self: &Arc<Self>,
        id: BenefactorId,
        request: &BenefactorRequest,
        payload: Bytes,
        progress: Arc<Progress>,
    ) -> Result<(BenefactorReply, Buffer), CallError> {
        let answer = self.exchange(id, request, payload, PUT_TIMEOUT, progress).await;
        if self.has_failed(id, &answer) {
            let this = Arc::clone(self);
            tokio::spawn(async move { this.relearn().await });
        }
        answer
    }

    /// Has writers choose others than one that takes long for a block, and asks it whether it is there: one that doesn't even say that has
    /// failed.
    fn found_lagging(self: &Arc<Self>, id: BenefactorId, why: PassedOver) -> Failure {
        if self.why_passed_over(id) < Some(why) {
            let this = Arc::clone(self);
            tokio::spawn(async move { this.answers(id).await });
        }
        self.pass_over(id, why);
        let message = match why {
            PassedOver::Unkept => format!(
                "benefactor {id} has not said within {} s that a block is on its disk",
                DURABLE_PATIENCE.as_secs()
            ),
            _ => format!("benefactor {id} takes longer for a block than is usual"),
        };
        Failure::new(ErrorCode::Unavailable, message)
    }

    fn begin_put(
        &self,
        id: BenefactorId,
        bytes: usize,
        durable: bool,
        before: Option<PassedOver>,
    ) -> Put<'_> {
        if let Some(link) = self.links.lock().get_mut(&id) {
            link.sending.begin(bytes);
        }
        let shares = self.all.lock().begin(id);
        Put { benefactors: self, id, bytes, durable, before, shares, progress: Arc::default(), taken: false }
    }

    /// Lets a benefactor make `blocks` durable, for at most `limit`; the receipt names those that it has.
    pub(crate) async fn sync(
        self: &Arc<Self>,
        id: BenefactorId,
        blocks: Vec<BlockId>,
        limit: Duration,
    ) -> Result<Receipt, CallError> {
        let request = BenefactorRequest::Sync { blocks, tell: false };
        match self.call_patiently(id, &request, Bytes::new(), limit, Arc::default()).await? {
            (BenefactorReply::Synced(receipt), _) => Ok(receipt),
            _ => Err(crate::unexpected("Sync").into()),
        }
    }

    /// A request whose answer waits for the disk, for at most `limit`. It may take long, as long as the benefactor answers
    /// other questions.
    async fn call_patiently(
        self: &Arc<Self>,
        id: BenefactorId,
        request: &BenefactorRequest,
        payload: Bytes,
        limit: Duration,
        progress: Arc<Progress>,
    ) -> Result<(BenefactorReply, Buffer), CallError> {
        let silent = async {
            // One that failed is asked at once.
            let has_failed = self.doubt(id) == Some(Doubt::Failed);
            let mut pause = if has_failed { Duration::ZERO } else { WORK_LOOK };
            loop {
                tokio::time::sleep(pause).await;
                let limit = self.patience(id, SILENT_AFTER);
                if let Err(error) = self.call(id, &BenefactorRequest::Status, Bytes::new(), limit).await
                    && error.is_transport()
                {
                    return error;
                }
                pause = WORK_LOOK;
            }
        };
        tokio::select! {
            biased;
            answer = self.call_watched(id, request, payload, limit, progress) => answer,
            error = silent => Err(error),
        }
    }

    /// Fetches the stored bytes of a block; the caller verifies them.
    pub(crate) async fn get(
        self: &Arc<Self>,
        id: BenefactorId,
        block: BlockId,
    ) -> Result<(Encoding, Buffer), CallError> {
        let mut retry = Retry::every(BUSY_PAUSE, BUSY_PATIENCE);
        let answer = loop {
            let answer = match self.connection(id).await {
                Ok(connection) => {
                    // What comes from now on is counted from now on.
                    self.pace(id);
                    let answer = self.fetch(id, &connection, block).await;
                    self.pace(id);
                    answer
                }
                // Nobody is there who could have much to do, also where the manager says so.
                Err(error) => break self.heard(id, Err(error)).await,
            };
            let answer = self.heard(id, answer).await;
            match &answer {
                // It is there, and has much to do for others.
                Err(CallError::Refused(failure)) if failure.code == ErrorCode::Unavailable => {
                    if !retry.pause().await {
                        break answer;
                    }
                }
                _ => break answer,
            }
        };
        match answer? {
            (BenefactorReply::Block { encoding }, payload) => Ok((encoding, payload)),
            _ => Err(crate::unexpected("Get").into()),
        }
    }

    async fn fetch(
        &self,
        id: BenefactorId,
        connection: &Connection,
        block: BlockId,
    ) -> Result<(BenefactorReply, Buffer), CallError> {
        let request = BenefactorRequest::Get { block };
        match connection.fetch(&request, GET_TIMEOUT).await {
            Err(CallError::Closed { .. }) if connection.is_superseded() => {
                self.connection(id).await?.fetch(&request, GET_TIMEOUT).await
            }
            answer => answer,
        }
    }

    /// Lets a benefactor compare `blocks` with their names.
    pub(crate) async fn verify(
        self: &Arc<Self>,
        id: BenefactorId,
        blocks: Vec<BlockId>,
    ) -> Result<Vec<BlockState>, CallError> {
        let asked = blocks.len();
        let request = BenefactorRequest::Verify { blocks };
        match self.call_patiently(id, &request, Bytes::new(), VERIFY_TIMEOUT, Arc::default()).await? {
            (BenefactorReply::Verified { states }, _) if states.len() == asked => Ok(states),
            _ => Err(crate::unexpected("Verify").into()),
        }
    }
}

/// Asks a benefactor whether it is there until it says so, or has another address and with that a fresh start.
async fn ask_again(benefactors: Weak<Benefactors>, id: BenefactorId, doubted: Arc<Shared>) {
    let mut pause = DOUBT;
    loop {
        tokio::time::sleep(pause).await;
        pause = DOUBTED_LOOK;
        let Some(benefactors) = benefactors.upgrade() else { return };
        let answer = benefactors.call(id, &BenefactorRequest::Status, Bytes::new(), GET_TIMEOUT).await;
        let mut links = benefactors.links.lock();
        let link = links.get_mut(&id).filter(|link| Arc::ptr_eq(&link.connection, &doubted));
        match (link, answer) {
            (Some(_), Err(error)) if error.is_transport() => {}
            (Some(link), _) => {
                link.doubt = None;
                return;
            }
            (None, _) => return,
        }
    }
}
