//! Fetching one chunk: from any benefactor that has it, verified, with another one asked when the first is slow, gone
//! or lying.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::limits::{CHUNK_BYTES_MAX, LIST_ENTRIES_MAX};
use stdchk_model::message::benefactor::Form;
use stdchk_model::message::manager::{ChunkLocations, ManagerReply, ManagerRequest};
use stdchk_model::{BenefactorId, BlockId, ChunkId, ChunkRef, ErrorCode, Failure};
use stdchk_net::{Buffer, Bytes, CallError};
use stdchk_reduce::codec::{Codec, decompress};
use tokio::task::JoinSet;

use crate::benefactors::{Benefactors, Doubt};
use crate::manager::ManagerLink;

/// A benefactor that has not answered by then gets company: the same chunk is asked of another one. If none is known, the
/// manager is asked: copies may have been made since the holders were remembered.
const HEDGE_AFTER: Duration = Duration::from_millis(500);
/// Rounds of asking all holders before a chunk counts as unreadable; the manager is asked for holders before each.
const ROUNDS_MAX: u32 = 4;
/// Pause before a further round, while a benefactor may be coming back.
const ROUND_PAUSE: Duration = Duration::from_millis(400);
/// Rounds while the manager still waits for benefactors to report after its restart.
const PENDING_ROUNDS_MAX: u32 = 60;
/// Locations remembered; beyond, all are forgotten and asked for again. 40 MB at most.
const LOCATIONS_MAX: usize = 1 << 18;

/// Who has a chunk.
#[derive(Default)]
struct Holders {
    at: Vec<BenefactorId>,
    /// The manager was not asked just now: there may be others.
    remembered: bool,
    /// Some of them may have yet to report that they have it.
    pending: bool,
    /// They are not on-line, and have it or may have it.
    away: Vec<BenefactorId>,
}

/// Fetches chunks and remembers where they are.
pub(crate) struct Fetcher {
    manager: Arc<ManagerLink>,
    benefactors: Arc<Benefactors>,
    locations: Mutex<HashMap<ChunkId, Vec<BenefactorId>>>,
}

impl Fetcher {
    pub(crate) fn new(manager: Arc<ManagerLink>, benefactors: Arc<Benefactors>) -> Self {
        Self { manager, benefactors, locations: Mutex::default() }
    }

    /// Remembers holders of a chunk that a session stored itself.
    pub(crate) fn remember(&self, chunk: ChunkId, at: Vec<BenefactorId>) {
        let mut locations = self.locations.lock();
        if locations.len() >= LOCATIONS_MAX {
            locations.clear();
        }
        locations.insert(chunk, at);
    }

    /// Asks the manager for the holders of those `chunks` whose holders aren't known, in as few questions as possible.
    pub(crate) async fn locate(&self, chunks: impl IntoIterator<Item = ChunkId>) -> Result<(), Failure> {
        let unknown: Vec<ChunkId> = {
            let locations = self.locations.lock();
            chunks.into_iter().filter(|chunk| !locations.contains_key(chunk)).collect()
        };
        for part in unknown.chunks(LIST_ENTRIES_MAX) {
            for (chunk, found) in part.iter().zip(self.ask_locations(part).await?) {
                if !found.at.is_empty() {
                    self.remember(*chunk, holders(&found));
                }
            }
        }
        Ok(())
    }

    /// Where each of `chunks` is, all holders included that have not reported since the manager started: they are waited
    /// for, for a while.
    pub(crate) async fn holders_of(&self, chunks: &[ChunkId]) -> Result<Vec<ChunkLocations>, Failure> {
        for _ in 1..PENDING_ROUNDS_MAX {
            let found = self.ask_locations(chunks).await?;
            if !found.iter().any(|found| found.pending) {
                return Ok(found);
            }
            tokio::time::sleep(ROUND_PAUSE).await;
        }
        self.ask_locations(chunks).await
    }

    async fn ask_locations(&self, chunks: &[ChunkId]) -> Result<Vec<ChunkLocations>, Failure> {
        match self.manager.ask(&ManagerRequest::Locate { chunks: chunks.to_vec() }).await? {
            ManagerReply::Locations(found) if found.len() == chunks.len() => Ok(found),
            _ => Err(crate::unexpected("Locate")),
        }
    }

    /// The plain bytes of `chunk`, verified against its name.
    ///
    /// # Errors
    /// `Damaged` if holders answered and none had intact bytes; `Unavailable` if none could be reached.
    pub(crate) async fn fetch(&self, chunk: ChunkRef) -> Result<Bytes, Failure> {
        // What no benefactor has any more was damaged, or lost with the benefactors that had it.
        let mut last = Failure::new(ErrorCode::Damaged, "no benefactor has an intact copy".to_owned());
        let (mut round, mut limit, mut away) = (0, ROUNDS_MAX, Vec::new());
        while round < limit {
            if round > 0 {
                self.locations.lock().remove(&chunk.id);
                tokio::time::sleep(ROUND_PAUSE).await;
            }
            let Holders { at: holders, remembered, pending, away: absent } = self.holders(chunk.id).await?;
            away = absent;
            limit = if pending { PENDING_ROUNDS_MAX } else { ROUNDS_MAX };
            match self.fetch_from(chunk, &holders, remembered).await {
                Ok(bytes) => return Ok(bytes),
                Err(Some(failure)) => last = failure,
                // The manager knows of no holder and expects none back.
                Err(None) if !pending && round > 0 => break,
                Err(None) => {}
            }
            round += 1;
        }
        if !away.is_empty() {
            // What can come back is no damage.
            let names: Vec<String> = away.iter().map(ToString::to_string).collect();
            let what = format!("{} is away and has it or may have it", names.join(", "));
            last = Failure::new(ErrorCode::Unavailable, what).then("try again once it is back");
        }
        Err(crate::context(&last, format_args!("chunk {} can't be read", chunk.id)))
    }

    async fn holders(&self, chunk: ChunkId) -> Result<Holders, Failure> {
        let known = self.locations.lock().get(&chunk).cloned();
        let Some(known) = known else { return self.find(chunk).await };
        let remembered = Holders { at: known, remembered: true, ..Holders::default() };
        if remembered.at.iter().any(|holder| self.benefactors.doubt(*holder).is_none()) {
            return Ok(remembered);
        }
        match tokio::time::timeout(HEDGE_AFTER, self.find(chunk)).await {
            Ok(Ok(found)) if !found.at.is_empty() => Ok(found),
            _ => Ok(remembered),
        }
    }

    /// Asks the manager for the holders of a chunk.
    async fn find(&self, chunk: ChunkId) -> Result<Holders, Failure> {
        let found = self.ask_locations(&[chunk]).await?.pop().unwrap_or_default();
        let at = holders(&found);
        if !at.is_empty() {
            self.remember(chunk, at.clone());
        }
        Ok(Holders { at, remembered: false, pending: found.pending, away: found.away })
    }

    /// Tries all holders, those without doubts first; if they are `remembered` and let it wait, also others that the manager
    /// knows. `Err(None)`: there are none.
    async fn fetch_from(
        &self,
        chunk: ChunkRef,
        holders: &[BenefactorId],
        mut remembered: bool,
    ) -> Result<Bytes, Option<Failure>> {
        let mut waiting = VecDeque::from(self.order(chunk.id, holders));
        let (mut asked, mut unanswered) = (HashSet::new(), HashSet::new());
        let mut attempts = JoinSet::new();
        let (mut others, mut are_others_sought) = (pin!(self.find(chunk.id)), false);
        let mut last: Option<Failure> = None;
        loop {
            if let Some(holder) = waiting.pop_front() {
                let benefactors = Arc::clone(&self.benefactors);
                attempts.spawn(async move { (holder, attempt(&benefactors, holder, chunk).await) });
                asked.insert(holder);
                unanswered.insert(holder);
            } else if attempts.is_empty() {
                return Err(last);
            }
            tokio::select! {
                finished = attempts.join_next() => match finished {
                    Some(Ok((_, Ok(bytes)))) => return Ok(bytes),
                    Some(Ok((holder, Err(failure)))) => {
                        unanswered.remove(&holder);
                        last = Some(worse(last, failure));
                    }
                    _ => {}
                },
                found = &mut others, if are_others_sought => {
                    are_others_sought = false;
                    let found = found.map(|found| found.at).unwrap_or_default();
                    let new: Vec<_> = found.into_iter().filter(|holder| !asked.contains(holder)).collect();
                    waiting.extend(self.order(chunk.id, &new));
                }
                () = tokio::time::sleep(HEDGE_AFTER) => {
                    unanswered.iter().for_each(|holder| self.benefactors.late(*holder, HEDGE_AFTER));
                    if waiting.is_empty() {
                        are_others_sought |= std::mem::take(&mut remembered);
                    }
                }
            }
        }
    }

    /// Holders in the order in which they are asked: rotated by the chunk's name, so that all of them get work, and
    /// those in doubt last.
    fn order(&self, chunk: ChunkId, holders: &[BenefactorId]) -> Vec<BenefactorId> {
        let mut order = holders.to_vec();
        let turn = usize::from(chunk.0.first().copied().unwrap_or(0)).checked_rem(order.len()).unwrap_or(0);
        order.rotate_left(turn);
        order.sort_by_cached_key(|holder| self.benefactors.doubt(*holder));
        order
    }
}

/// Of two failures the one that says more: bytes that were there and wrong, over a benefactor that wasn't there.
fn worse(last: Option<Failure>, next: Failure) -> Failure {
    last.filter(|last| last.code == ErrorCode::Damaged).unwrap_or(next)
}

fn holders(found: &ChunkLocations) -> Vec<BenefactorId> {
    let whole = found.at.iter().filter(|location| location.fragment == BlockId::WHOLE);
    whole.map(|location| location.benefactor).collect()
}

async fn attempt(
    benefactors: &Arc<Benefactors>,
    holder: BenefactorId,
    chunk: ChunkRef,
) -> Result<Bytes, Failure> {
    let blame = |failure: Failure| crate::context(&failure, format_args!("benefactor {holder}"));
    let fetched = benefactors.get(holder, BlockId::whole(chunk.id)).await;
    let (form, stored) = fetched.map_err(|error: CallError| match blame(error.failure()) {
        // The file is there; it is a copy of its content that isn't, or not any more.
        failure if failure.code == ErrorCode::NotFound => Failure { code: ErrorCode::Damaged, ..failure },
        failure => failure,
    })?;
    let damaged = match plain(&form, stored, chunk) {
        Ok(bytes) => return Ok(bytes),
        Err(failure) => blame(failure),
    };
    tracing::warn!(%holder, chunk = %chunk.id, "a benefactor served bytes that don't match their name");
    benefactors.note(holder, Doubt::Poor);
    // It did not look itself when it served them; now it does, and reports what is damaged, so that it is repaired.
    if let Err(error) = benefactors.verify(holder, vec![BlockId::whole(chunk.id)]).await {
        tracing::warn!(%holder, chunk = %chunk.id, %error, "the benefactor can't be told of the damage");
    }
    Err(damaged)
}

/// Undoes `form` and verifies the result (I3), which is kept: from here on it takes nothing of the memory for answers.
fn plain(form: &Form, stored: Buffer, chunk: ChunkRef) -> Result<Bytes, Failure> {
    if form.cipher.is_some() || form.erasure.is_some() {
        return Err(Failure::new(ErrorCode::Unsupported, "its form needs a later stdchk".to_owned()));
    }
    let length = chunk.length as usize;
    let damaged =
        |error: stdchk_reduce::codec::BadStored| Failure::new(ErrorCode::Damaged, error.to_string());
    let plain = match Codec::from_number(form.codec).map_err(damaged)? {
        Codec::Store => stored.keep(),
        codec => {
            decompress(codec, &stored, length.min(CHUNK_BYTES_MAX)).map_err(damaged)?.into_owned().into()
        }
    };
    if plain.len() != length || ChunkId::of(&plain) != chunk.id {
        return Err(Failure::new(ErrorCode::Damaged, "the bytes don't match their name".to_owned()));
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use stdchk_net::BufferPool;
    use stdchk_reduce::codec::{Compressor, Effort};

    use super::*;

    fn received(bytes: &[u8]) -> Buffer {
        let mut buffer = BufferPool::new(1 << 20).try_take(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        buffer
    }

    #[test]
    fn bytes_that_do_not_match_their_name_are_damage_in_whatever_form_they_come() {
        let (content, other) = ([7u8; 5000], [8u8; 5000]);
        let chunk = ChunkRef { id: ChunkId::of(&content), length: 5000 };
        let mut compressor = Compressor::new(Effort::Lz4).unwrap();
        let (_, packed) = compressor.compress(&content);
        let (_, other_packed) = compressor.compress(&other);
        let stored = Form::plain(chunk.id, chunk.length);
        let compressed = Form { codec: Codec::Lz4.number(), ..stored.clone() };
        assert_eq!(*plain(&stored, received(&content), chunk).unwrap(), content);
        assert_eq!(*plain(&compressed, received(&packed), chunk).unwrap(), content);
        for (form, lie) in [
            (&stored, &other[..]),
            (&stored, &content[..4999]),
            (&compressed, &other_packed[..]),
            (&compressed, &content[..]),
        ] {
            assert_eq!(plain(form, received(lie), chunk).unwrap_err().code, ErrorCode::Damaged);
        }
    }
}
