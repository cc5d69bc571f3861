//! Asking the manager which chunks the pool has: one question at a time, with all the names that have come up meanwhile.

use std::sync::Arc;

use parking_lot::Mutex;
use stdchk_model::message::manager::{ChunkLocations, ManagerReply, ManagerRequest};
use stdchk_model::{ChunkId, Failure, SessionId};
use tokio::sync::oneshot;

use crate::manager::ManagerLink;

/// Most names in one question: an answer then takes about a millisecond of the manager's time.
const NAMES_MAX: usize = 1024;

type Waiting = (ChunkId, oneshot::Sender<Result<ChunkLocations, Failure>>);

/// The questions of one session.
pub(super) struct Known {
    manager: Arc<ManagerLink>,
    session: SessionId,
    waiting: Mutex<Vec<Waiting>>,
    turn: tokio::sync::Mutex<()>,
}

impl Known {
    pub(super) fn new(manager: Arc<ManagerLink>, session: SessionId) -> Self {
        Self { manager, session, waiting: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }

    /// Where each of `chunks` is, if the pool has it; from then on it stays for as long as the session.
    pub(super) async fn ask(&self, chunks: Vec<ChunkId>) -> Result<Vec<ChunkLocations>, Failure> {
        let mut answers = Vec::with_capacity(chunks.len());
        {
            let mut waiting = self.waiting.lock();
            for chunk in chunks {
                let (sender, answer) = oneshot::channel();
                waiting.push((chunk, sender));
                answers.push(answer);
            }
        }
        let mut found = Vec::with_capacity(answers.len());
        for answer in answers {
            found.push(self.wait_for(answer).await?);
        }
        Ok(found)
    }

    async fn wait_for(
        &self,
        mut answer: oneshot::Receiver<Result<ChunkLocations, Failure>>,
    ) -> Result<ChunkLocations, Failure> {
        if let Ok(answer) = answer.try_recv() {
            return answer;
        }
        // Whoever gets the turn asks for all who wait; the others find their answer when the turn comes to them.
        let _turn = self.turn.lock().await;
        loop {
            if let Ok(answer) = answer.try_recv() {
                return answer;
            }
            self.ask_for_all().await;
        }
    }

    async fn ask_for_all(&self) {
        let batch: Vec<Waiting> = {
            let mut waiting = self.waiting.lock();
            let count = waiting.len().min(NAMES_MAX);
            waiting.drain(..count).collect()
        };
        let chunks: Vec<ChunkId> = batch.iter().map(|(chunk, _)| *chunk).collect();
        let answered = self.question(chunks).await;
        for (place, (_, sender)) in batch.into_iter().enumerate() {
            let answer = match &answered {
                Ok(found) => found.get(place).cloned().ok_or_else(|| crate::unexpected("Known")),
                Err(failure) => Err(failure.clone()),
            };
            // Nobody waits any more if the session was dropped.
            let _ = sender.send(answer);
        }
    }

    async fn question(&self, chunks: Vec<ChunkId>) -> Result<Vec<ChunkLocations>, Failure> {
        match self.manager.ask(&ManagerRequest::Known { session: self.session, chunks }).await? {
            ManagerReply::Locations(found) => Ok(found),
            _ => Err(crate::unexpected("Known")),
        }
    }
}
