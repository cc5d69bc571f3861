//! The connections to the benefactors, and which of them just failed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest, BlockState, Form};
use stdchk_model::message::manager::{BenefactorInfo, ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, BlockId, ErrorCode, Failure, Incarnation};
use stdchk_net::{Buffer, BufferPool, Bytes, CallError, Connection};
use tokio::task::JoinSet;

use crate::manager::ManagerLink;
use crate::shared::Shared;

/// Time for a put to be answered; a benefactor that takes longer for a mebibyte is replaced by another.
pub(crate) const PUT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a sync: a busy disk may have a gigabyte to write.
const SYNC_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two questions to a benefactor that syncs, whether it is there at all.
const SYNC_LOOK: Duration = Duration::from_secs(2);
/// Time for the answer; one that takes longer is stopped or cut off, however long a sync may take.
const SILENT_AFTER: Duration = Duration::from_secs(8);
/// Time for a get to be answered before the attempt counts as failed.
const GET_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a verification of one batch of blocks, which reads them all.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a benefactor is avoided after it failed this client.
const SUSPICION: Duration = Duration::from_secs(5);
/// How long a benefactor that answered is taken to be there: a question a second costs nothing.
const TRUST: Duration = Duration::from_secs(1);
/// Time for a benefactor to say that it is there; one that takes longer is not relied on for content that is at hand.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(2);

struct Link {
    address: String,
    connection: Arc<Shared>,
    failed_at: Option<Instant>,
    answered_at: Option<Instant>,
}

/// All benefactors that this client has heard of.
pub(crate) struct Benefactors {
    manager: Arc<ManagerLink>,
    buffers: Arc<BufferPool>,
    links: Mutex<HashMap<BenefactorId, Link>>,
}

impl Benefactors {
    /// `buffers` takes the payloads of gets.
    pub(crate) fn new(manager: Arc<ManagerLink>, buffers: Arc<BufferPool>) -> Self {
        Self { manager, buffers, links: Mutex::default() }
    }

    /// Remembers addresses that the manager told.
    pub(crate) fn learn(&self, benefactors: &[BenefactorInfo]) {
        let mut links = self.links.lock();
        for info in benefactors {
            match links.get(&info.id) {
                Some(link) if link.address == info.address => {}
                _ => {
                    let (address, connection) = (info.address.clone(), Arc::default());
                    let link = Link { address, connection, failed_at: None, answered_at: None };
                    links.insert(info.id, link);
                }
            }
        }
    }

    /// Benefactors that failed this client moments ago.
    pub(crate) fn suspects(&self) -> Vec<BenefactorId> {
        let links = self.links.lock();
        let recent = |link: &Link| link.failed_at.is_some_and(|at| at.elapsed() < SUSPICION);
        links.iter().filter(|(_, link)| recent(link)).map(|(id, _)| *id).collect()
    }

    /// Notes that a benefactor failed, so that others are preferred for a while.
    pub(crate) fn suspect(&self, id: BenefactorId) {
        if let Some(link) = self.links.lock().get_mut(&id) {
            link.failed_at = Some(Instant::now());
        }
    }

    async fn link(&self, id: BenefactorId) -> Result<(String, Arc<Shared>), CallError> {
        let known = |links: &HashMap<_, Link>| {
            links.get(&id).map(|link| (link.address.clone(), Arc::clone(&link.connection)))
        };
        if let Some(found) = known(&self.links.lock()) {
            return Ok(found);
        }
        match self.manager.ask(&ManagerRequest::Benefactors).await? {
            ManagerReply::Benefactors(benefactors) => self.learn(&benefactors),
            _ => return Err(crate::unexpected("Benefactors").into()),
        }
        let missing =
            || Failure::new(ErrorCode::Unavailable, format!("the manager doesn't know benefactor {id}"));
        known(&self.links.lock()).ok_or_else(|| missing().into())
    }

    async fn connection(&self, id: BenefactorId) -> Result<Arc<Connection>, CallError> {
        let (address, connection) = self.link(id).await?;
        let open = || async {
            let identity = self.manager.identity();
            Connection::open(&address, &identity, &self.buffers).await
        };
        connection.get(open).await
    }

    async fn call(
        &self,
        id: BenefactorId,
        request: &BenefactorRequest,
        payload: Bytes,
        limit: Duration,
    ) -> Result<(BenefactorReply, Buffer), CallError> {
        let answer = match self.connection(id).await {
            Ok(connection) => connection.call(request, payload, limit).await,
            Err(error) => Err(error),
        };
        if answer.as_ref().is_err_and(CallError::is_transport) {
            self.suspect(id);
            // The address may have changed with a restart: ask the manager before the next attempt.
            self.relearn().await;
        } else if let Some(link) = self.links.lock().get_mut(&id) {
            link.answered_at = Some(Instant::now());
        }
        answer
    }

    /// Those of `benefactors` that answered moments ago, or do now when they are asked.
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
                let failed = of(&id).and_then(|link| link.failed_at);
                let answered = of(&id).and_then(|link| link.answered_at);
                match (failed, answered) {
                    (Some(failed), _) if failed.elapsed() < SUSPICION => {}
                    (_, Some(answered)) if answered.elapsed() < TRUST => {
                        alive.insert(id);
                    }
                    _ => {
                        let this = Arc::clone(self);
                        asked.spawn(async move { this.answers(id).await.then_some(id) });
                    }
                }
            }
        }
        alive.extend(asked.join_all().await.into_iter().flatten());
        alive
    }

    async fn answers(&self, id: BenefactorId) -> bool {
        let asked = tokio::time::timeout(ALIVE_TIMEOUT, self.has(id, Vec::new())).await;
        let answers = asked.is_ok_and(|answer| answer.is_ok());
        if !answers {
            self.suspect(id);
        }
        answers
    }

    async fn relearn(&self) {
        if let Ok(ManagerReply::Benefactors(benefactors)) =
            self.manager.ask(&ManagerRequest::Benefactors).await
        {
            self.learn(&benefactors);
        }
    }

    /// Stores a block; unless it is to be `durable` at once, it is durable once [`Benefactors::sync`] with the returned
    /// incarnation has succeeded.
    pub(crate) async fn put(
        &self,
        id: BenefactorId,
        block: BlockId,
        form: Form,
        payload: Bytes,
        durable: bool,
    ) -> Result<Incarnation, CallError> {
        let request = BenefactorRequest::Put { block, form, durable };
        let answer = match durable {
            true => self.call_to_sync(id, &request, payload).await?,
            false => self.call(id, &request, payload, PUT_TIMEOUT).await?,
        };
        match answer {
            (BenefactorReply::Stored { incarnation, .. }, _) => Ok(incarnation),
            _ => Err(crate::unexpected("Put").into()),
        }
    }

    /// Makes durable what a benefactor stored in this incarnation.
    pub(crate) async fn sync(&self, id: BenefactorId, incarnation: Incarnation) -> Result<(), CallError> {
        let request = BenefactorRequest::Sync { incarnation, tell: false };
        match self.call_to_sync(id, &request, Bytes::new()).await? {
            (BenefactorReply::Durable, _) => Ok(()),
            _ => Err(crate::unexpected("Sync").into()),
        }
    }

    /// A request whose answer waits for the disk. It may take long, as long as the benefactor answers other questions.
    async fn call_to_sync(
        &self,
        id: BenefactorId,
        request: &BenefactorRequest,
        payload: Bytes,
    ) -> Result<(BenefactorReply, Buffer), CallError> {
        let silent = async {
            loop {
                tokio::time::sleep(SYNC_LOOK).await;
                let asked = BenefactorRequest::Has { blocks: Vec::new() };
                if let Err(error) = self.call(id, &asked, Bytes::new(), SILENT_AFTER).await
                    && error.is_transport()
                {
                    return error;
                }
            }
        };
        tokio::select! {
            biased;
            answer = self.call(id, request, payload, SYNC_TIMEOUT) => answer,
            error = silent => Err(error),
        }
    }

    /// Fetches the stored bytes of a block; the caller verifies them.
    pub(crate) async fn get(&self, id: BenefactorId, block: BlockId) -> Result<(Form, Buffer), CallError> {
        match self.call(id, &BenefactorRequest::Get { block }, Bytes::new(), GET_TIMEOUT).await? {
            (BenefactorReply::Block { form }, payload) => Ok((form, payload)),
            _ => Err(crate::unexpected("Get").into()),
        }
    }

    /// Which of `blocks` a benefactor has, and its present incarnation.
    pub(crate) async fn has(
        &self,
        id: BenefactorId,
        blocks: Vec<BlockId>,
    ) -> Result<(Incarnation, Vec<bool>), CallError> {
        let asked = blocks.len();
        match self.call(id, &BenefactorRequest::Has { blocks }, Bytes::new(), GET_TIMEOUT).await? {
            (BenefactorReply::Present { incarnation, present }, _) if present.len() == asked => {
                Ok((incarnation, present))
            }
            _ => Err(crate::unexpected("Has").into()),
        }
    }

    /// Lets a benefactor compare `blocks` with their names.
    pub(crate) async fn verify(
        &self,
        id: BenefactorId,
        blocks: Vec<BlockId>,
    ) -> Result<Vec<BlockState>, CallError> {
        let asked = blocks.len();
        match self.call(id, &BenefactorRequest::Verify { blocks }, Bytes::new(), VERIFY_TIMEOUT).await? {
            (BenefactorReply::Verified { states }, _) if states.len() == asked => Ok(states),
            _ => Err(crate::unexpected("Verify").into()),
        }
    }
}
