//! Asking the manager which chunks the pool has: one question at a time, with all the names that have come up meanwhile.

use std::sync::Arc;

use parking_lot::Mutex;
use stdchk_model::message::manager::{BenefactorInfo, ChunkLocations, ManagerReply, ManagerRequest};
use stdchk_model::{ChunkId, Failure, SessionId};
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::manager::ManagerLink;

/// Most names in one question: an answer then takes about a millisecond of the manager's time.
const NAMES_MAX: usize = 1024;
/// Space that is asked for with a question, bytes: most files are small.
const GRANT_FIRST_BYTES: u64 = 1 << 20;

type Waiting = (ChunkId, oneshot::Sender<Result<ChunkLocations, Failure>>);
type Answer = oneshot::Receiver<Result<ChunkLocations, Failure>>;

/// The questions of one session.
pub(super) struct Known {
    manager: Arc<ManagerLink>,
    session: SessionId,
    waiting: Mutex<Vec<Waiting>>,
    turn: tokio::sync::Mutex<()>,
    /// Space that was granted with an answer, and for what; taken by whoever needs it first.
    room: Mutex<Room>,
}

/// The first space of a session, and the first behind each of its commits, is asked for with a question: what isn't known will be stored. A
/// new file has got a little before that.
enum Room {
    Made(Grant),
    NotAsked,
    Granted(Grant),
    Taken,
}

/// Space and where it is.
pub(super) struct Grant {
    pub(super) benefactors: Vec<BenefactorInfo>,
    pub(super) bytes: u64,
    /// It came with the making of the file, before anything was asked for.
    pub(super) is_of_making: bool,
}

impl Known {
    /// `room`: benefactors and space that came with the making of the file.
    pub(super) fn new(
        manager: Arc<ManagerLink>,
        session: SessionId,
        (benefactors, bytes): (Vec<BenefactorInfo>, u64),
    ) -> Self {
        let room = match bytes {
            0 => Room::NotAsked,
            _ => Room::Made(Grant { benefactors, bytes, is_of_making: true }),
        };
        Self {
            manager,
            session,
            waiting: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            room: Mutex::new(room),
        }
    }

    /// Where each of `chunks` is, if the pool has it; from then on it stays for as long as the session.
    pub(super) async fn ask(&self, chunks: Vec<ChunkId>) -> Result<Vec<ChunkLocations>, Failure> {
        let answers: Vec<_> = chunks.into_iter().map(|chunk| (chunk, self.line_up(chunk))).collect();
        let mut found = Vec::with_capacity(answers.len());
        for (chunk, answer) in answers {
            found.push(self.wait_for(chunk, answer).await?);
        }
        Ok(found)
    }

    fn line_up(&self, chunk: ChunkId) -> Answer {
        let (sender, answer) = oneshot::channel();
        self.waiting.lock().push((chunk, sender));
        answer
    }

    async fn wait_for(&self, chunk: ChunkId, mut answer: Answer) -> Result<ChunkLocations, Failure> {
        if let Ok(answer) = answer.try_recv() {
            return answer;
        }
        // Whoever gets the turn asks for all who wait; the others find their answer when the turn comes to them.
        let _turn = self.turn.lock().await;
        loop {
            match answer.try_recv() {
                Ok(answer) => return answer,
                // Who asked for it was dropped before there was an answer.
                Err(TryRecvError::Closed) => answer = self.line_up(chunk),
                Err(TryRecvError::Empty) => self.ask_for_all().await,
            }
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
        let first = matches!(*self.room.lock(), Room::NotAsked | Room::Made(_));
        let room_bytes = if first { GRANT_FIRST_BYTES } else { 0 };
        match self.manager.ask(&ManagerRequest::Known { session: self.session, chunks, room_bytes }).await? {
            ManagerReply::Known { found, benefactors, room_bytes } => {
                if first {
                    let grant = Grant { benefactors, bytes: room_bytes, is_of_making: false };
                    *self.room.lock() = Room::Granted(grant);
                }
                Ok(found)
            }
            _ => Err(crate::unexpected("Known")),
        }
    }

    /// Whether `bytes` have room that came with the making of the file, and nothing was asked since.
    pub(super) fn has_room_of_making(&self, bytes: usize) -> bool {
        matches!(&*self.room.lock(), Room::Made(grant) if grant.bytes >= bytes as u64)
    }

    /// A commit gave back what was left.
    pub(super) fn returned(&self) {
        *self.room.lock() = Room::NotAsked;
    }

    /// The space that came with the making of the file, or with the first answer; each once.
    pub(super) fn take_room(&self) -> Option<Grant> {
        let mut room = self.room.lock();
        let (left, grant) = match std::mem::replace(&mut *room, Room::Taken) {
            Room::Made(grant) => (Room::NotAsked, Some(grant)),
            Room::Granted(grant) => (Room::Taken, Some(grant).filter(|grant| grant.bytes > 0)),
            nothing => (nothing, None),
        };
        *room = left;
        grant
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use stdchk_net::transport::unix_address;

    use super::*;

    fn has_ended(asked: std::pin::Pin<&mut impl Future>) -> bool {
        matches!(asked.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
    }

    #[tokio::test]
    async fn who_was_asked_for_by_one_that_gave_up_asks_again() {
        // It takes connections and says nothing.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _silent = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let manager = ManagerLink::new(&unix_address(&path), None, Duration::ZERO, false);
        let known = Known::new(Arc::new(manager), SessionId([1; 16]), (Vec::new(), 0));
        let ask = |number| known.ask(vec![ChunkId([number; 32])]);
        let (mut first, mut last) = (pin!(ask(1)), pin!(ask(3)));
        {
            let mut second = pin!(ask(2));
            assert!(!has_ended(first.as_mut()) && !has_ended(second.as_mut()) && !has_ended(last.as_mut()));
            assert!(first.await.is_err());
            assert!(!has_ended(second), "it asks for itself and the last");
        }
        let answer = tokio::time::timeout(Duration::from_secs(60), last).await;
        assert!(answer.is_ok_and(|answer| answer.is_err()));
    }
}
