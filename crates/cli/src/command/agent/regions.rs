//! All regions of an agent: each request and each event, for each state of a region.
//!
//! | state   | begin      | staged     | stored  | its trainer goes | read             |
//! |---------|------------|------------|---------|------------------|------------------|
//! | empty   | filling    | refused    | -       | empty            | refused          |
//! | filling | filling    | storing    | -       | empty            | refused          |
//! | storing | refused    | refused    | durable | storing          | refused          |
//! | durable | filling    | refused    | -       | durable          | counted as reader |
//! | failed  | filling    | refused    | -       | failed           | refused          |
//!
//! A region that somebody reads is neither filled nor replaced. Only its owner fills it.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use stdchk_operations::{Error, Target};
use tokio::sync::Notify;

use super::protocol::{Answer, Piece, RegionStatus, word};
use super::region::{Content, Memory, Peer, Region, Save};

/// Longest name of a region.
const KEY_BYTES_MAX: usize = 1024;

/// All regions.
#[derive(Default)]
pub struct Regions {
    known: Mutex<Known>,
    changed: Notify,
    /// Numbers of fillings and of saves.
    numbers: AtomicU64,
}

#[derive(Default)]
struct Known {
    regions: BTreeMap<String, Region>,
    /// The agent ends: nothing is staged any more.
    is_closed: bool,
}

/// A save that is to be stored.
pub struct ToStore {
    /// The region.
    pub key: String,
    /// Its memory.
    pub memory: Arc<Memory>,
    /// The save.
    pub save: Save,
}

/// A request's refusal, or what it gives.
type Asked<T> = Result<T, Box<Answer>>;

fn refuse<T>(code: &str, key: &str, cause: impl ToString, next: &str) -> Asked<T> {
    Err(Box::new(Answer::refused(code, key, cause, next)))
}

impl Regions {
    /// A region of this size for its owner; what the one of this name holds stays if it has that size already.
    ///
    /// The memory is taken without the lock, since that takes its time.
    pub fn region(&self, peer: Peer, key: &str, bytes: u64) -> Asked<Arc<Memory>> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX || bytes == 0 {
            return refuse("invalid", key, "a region has a name and a size", "report this as a defect");
        }
        {
            let mut known = self.known.lock();
            if let Some(region) = known.regions.get_mut(key) {
                take_over(region, peer, key)?;
                if region.memory.bytes() == bytes {
                    return Ok(Arc::clone(&region.memory));
                }
                at_rest(region, key)?;
                region.memory.give_up();
                known.regions.remove(key);
            }
        }
        let memory = self.take(key, bytes)?;
        let mut known = self.known.lock();
        if known.regions.contains_key(key) {
            return refuse("conflict", key, "another connection asked for it at the same time", "try again");
        }
        let region = Region {
            memory: Arc::clone(&memory),
            owner: Some(peer),
            left: None,
            readers: BTreeSet::new(),
            content: Content::Empty,
        };
        known.regions.insert(key.to_owned(), region);
        Ok(memory)
    }

    /// Takes memory; if there is too little, those regions go that only a new trainer of theirs would load from.
    fn take(&self, key: &str, bytes: u64) -> Asked<Arc<Memory>> {
        let taken = Memory::take(bytes).or_else(|_| {
            self.let_go(Duration::ZERO);
            Memory::take(bytes)
        });
        match taken {
            Ok(memory) => Ok(Arc::new(memory)),
            Err(error) => {
                let next = "use a host with more memory, or save less of the state";
                refuse("no-space", key, format!("memory for the checkpoint: {error}"), next)
            }
        }
    }

    /// Gives up regions whose trainers have been gone for so long.
    pub fn let_go(&self, long: Duration) {
        self.known.lock().regions.retain(|key, region| {
            let stays = !region.is_left_for(long);
            if !stays {
                tracing::info!(region = key, bytes = region.memory.bytes(), "its memory is given back");
                region.memory.give_up();
            }
            stays
        });
    }

    /// The owner is going to fill it; the number of this filling.
    pub fn begin(&self, peer: Peer, key: &str) -> Asked<u64> {
        let mut known = self.known.lock();
        let region = owned(&mut known.regions, peer, key)?;
        at_rest(region, key)?;
        let filling = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        region.content = Content::Filling(filling);
        Ok(filling)
    }

    /// It is whole.
    pub fn staged(
        &self,
        peer: Peer,
        (key, filling): (&str, u64),
        file: String,
        length: u64,
        pieces: Vec<Piece>,
    ) -> Asked<ToStore> {
        let mut known = self.known.lock();
        if known.is_closed {
            return refuse("unreachable", &file, "the agent is ending", "save again with a new Checkpointer");
        }
        let region = owned(&mut known.regions, peer, key)?;
        if !matches!(region.content, Content::Filling(now) if now == filling) {
            return refuse(
                "conflict",
                &file,
                "its memory was filled with something else meanwhile",
                "save again",
            );
        }
        match Target::parse_plain(&file) {
            Ok(target) if target.split_last().is_some() => {}
            Ok(_) => return refuse("invalid", &file, "the root is no file", "report this as a defect"),
            Err(error) => return refuse(&word(error.code), &file, error.cause, &error.next),
        }
        if let Err(cause) = check(&pieces, length, region.memory.bytes()) {
            return refuse("invalid", key, cause, "report this as a defect");
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let save = Save { number, file, length, pieces: pieces.into(), done: Arc::default() };
        region.content = Content::Storing(save.clone());
        Ok(ToStore { key: key.to_owned(), memory: Arc::clone(&region.memory), save })
    }

    /// It was stored, or can't be.
    pub fn ended(&self, key: &str, save: Save, seconds: f64, outcome: Result<u64, Error>) {
        if let Some(region) = self.known.lock().regions.get_mut(key) {
            region.content = match outcome {
                Ok(version) => Content::Durable(save, version, seconds),
                Err(error) => Content::Failed(save, Answer::failed(&error)),
            };
        }
        self.changed.notify_waiters();
    }

    /// How a save is, after waiting for its end for so long.
    pub async fn wait(&self, key: &str, number: u64, patience: Duration) -> Answer {
        let until = Instant::now() + patience;
        loop {
            let changed = self.changed.notified();
            let state = self.known.lock().regions.get(key).and_then(|region| region.state_of(number));
            let left = until.saturating_duration_since(Instant::now());
            match state {
                Some(Answer::Storing { .. }) if !left.is_zero() => {
                    // The end of the time is seen by the next turn.
                    let _ = tokio::time::timeout(left, changed).await;
                }
                Some(state) => return state,
                None => {
                    return Answer::refused("not-found", key, "the agent knows no such save", "save again");
                }
            }
        }
    }

    /// The region that holds this version of a file, for a reader.
    pub fn held(&self, peer: Peer, file: &str, version: u64) -> Asked<(Arc<Memory>, Save)> {
        let mut known = self.known.lock();
        for region in known.regions.values_mut() {
            if let Content::Durable(save, stored, _) = &region.content
                && (save.file.as_str(), *stored) == (file, version)
            {
                region.readers.insert(peer.connection);
                return Ok((Arc::clone(&region.memory), save.clone()));
            }
        }
        refuse("not-found", file, "no region holds it", "read it from the pool")
    }

    /// This connection reads nothing any more.
    pub fn release(&self, peer: Peer) {
        for region in self.known.lock().regions.values_mut() {
            region.readers.remove(&peer.connection);
        }
    }

    /// A connection has ended: what it was filling counts no longer.
    pub fn left(&self, peer: Peer) {
        for (key, region) in &mut self.known.lock().regions {
            region.readers.remove(&peer.connection);
            if region.owner == Some(peer) {
                region.owner = None;
                region.left = Some(Instant::now());
                match &region.content {
                    Content::Filling(_) => {
                        tracing::info!(
                            region = key,
                            process = peer.process,
                            "its process ended before the region was whole"
                        );
                        region.content = Content::Empty;
                    }
                    Content::Storing(save) => {
                        tracing::info!(
                            file = save.file,
                            process = peer.process,
                            "its process has ended, it is stored all the same"
                        );
                    }
                    _ => {}
                }
            }
        }
        self.changed.notify_waiters();
    }

    /// Whether anything is still to be stored.
    pub fn is_storing(&self) -> bool {
        self.known.lock().regions.values().any(|region| matches!(region.content, Content::Storing(_)))
    }

    /// Waits until nothing is to be stored, and for regions that are being filled so long at most. From then on nothing is staged any more.
    pub async fn close(&self, patience: Duration) {
        let until = Instant::now() + patience;
        loop {
            let changed = self.changed.notified();
            if self.try_close(Instant::now() < until) {
                return;
            }
            // It looks again once the patience is over.
            let _ = tokio::time::timeout(patience, changed).await;
        }
    }

    fn try_close(&self, awaits_filling: bool) -> bool {
        let mut known = self.known.lock();
        let is_busy = |region: &Region| match region.content {
            Content::Storing(_) => true,
            Content::Filling(_) => awaits_filling,
            _ => false,
        };
        known.is_closed = !known.regions.values().any(is_busy);
        known.is_closed
    }

    /// For `agent status`.
    pub fn status(&self) -> Vec<RegionStatus> {
        self.known.lock().regions.iter().map(|(key, region)| region.status(key)).collect()
    }
}

/// Makes `peer` the owner, unless another live connection is.
fn take_over(region: &mut Region, peer: Peer, key: &str) -> Asked<()> {
    match region.owner {
        Some(owner) if owner != peer => {
            let cause = format!("process {} puts its checkpoints there", owner.process);
            refuse("conflict", key, cause, "end it, or use another folder or rank")
        }
        _ => {
            (region.owner, region.left) = (Some(peer), None);
            Ok(())
        }
    }
}

/// The region of this name, of which `peer` is the owner.
fn owned<'a>(regions: &'a mut BTreeMap<String, Region>, peer: Peer, key: &str) -> Asked<&'a mut Region> {
    match regions.get_mut(key) {
        Some(region) if region.owner == Some(peer) => Ok(region),
        _ => refuse("invalid", key, "it is no region of this connection", "ask for it first"),
    }
}

/// That nobody reads the region, and that it isn't being stored.
fn at_rest(region: &Region, key: &str) -> Asked<()> {
    if matches!(region.content, Content::Storing(_)) {
        return refuse("busy", key, "the checkpoint before is being stored", "wait for it");
    }
    if !region.readers.is_empty() {
        return refuse("busy", key, "somebody loads from it", "try again");
    }
    Ok(())
}

/// That the pieces lie in the region and in the file, one behind the other.
fn check(pieces: &[Piece], length: u64, bytes: u64) -> Result<(), String> {
    let mut end = 0;
    for Piece(at, from, count) in pieces {
        let in_file = at.checked_add(*count).filter(|last| *at >= end && *last <= length);
        let in_region = from.checked_add(*count).filter(|last| *last <= bytes);
        match (in_file, in_region) {
            (Some(last), Some(_)) => end = last,
            _ => return Err(format!("piece ({at}, {from}, {count}) lies outside of the file or the region")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAINER: Peer = Peer { connection: 1, process: 10 };
    const LONG: Duration = Duration::from_secs(60);
    const OTHER: Peer = Peer { connection: 2, process: 20 };

    fn staged(regions: &Regions, file: &str) -> Asked<ToStore> {
        let filling = regions.begin(TRAINER, "run")?;
        regions.staged(TRAINER, ("run", filling), file.to_owned(), 10, vec![Piece(0, 0, 4), Piece(8, 4, 2)])
    }

    fn code<T>(asked: Asked<T>) -> String {
        match asked.map(drop).map_err(|answer| *answer) {
            Err(Answer::Refused { code, .. }) => code,
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn what_is_staged_is_stored_though_its_trainer_goes() {
        let regions = Regions::default();
        regions.region(TRAINER, "run", 100).unwrap();
        let to_store = staged(&regions, "app/1").unwrap();
        regions.left(TRAINER);
        assert!(regions.is_storing());
        regions.ended("run", to_store.save, 1.0, Ok(7));
        assert_eq!(regions.status()[0].state, "durable");
        regions.held(OTHER, "app/1", 7).unwrap();
        assert_eq!(code(regions.held(OTHER, "app/1", 8)), "not-found");
    }

    #[test]
    fn what_was_half_filled_counts_for_nothing() {
        let regions = Regions::default();
        regions.region(TRAINER, "run", 100).unwrap();
        let to_store = staged(&regions, "app/1").unwrap();
        regions.ended("run", to_store.save, 1.0, Ok(7));
        regions.begin(TRAINER, "run").unwrap();
        assert_eq!(code(regions.held(OTHER, "app/1", 7)), "not-found");
        regions.left(TRAINER);
        assert_eq!(regions.status()[0].state, "empty");
    }

    #[test]
    fn nobody_writes_to_what_is_stored_or_read() {
        let regions = Regions::default();
        regions.region(TRAINER, "run", 100).unwrap();
        let to_store = staged(&regions, "app/1").unwrap();
        assert_eq!(code(regions.begin(TRAINER, "run")), "busy");
        assert_eq!(code(regions.region(TRAINER, "run", 200)), "busy");
        regions.ended("run", to_store.save, 1.0, Ok(1));
        regions.held(OTHER, "app/1", 1).unwrap();
        assert_eq!(code(regions.begin(TRAINER, "run")), "busy");
        regions.release(OTHER);
        regions.begin(TRAINER, "run").unwrap();
    }

    #[test]
    fn a_region_has_one_owner() {
        let regions = Regions::default();
        regions.region(TRAINER, "run", 100).unwrap();
        assert_eq!(code(regions.region(OTHER, "run", 100)), "conflict");
        assert_eq!(code(regions.begin(OTHER, "run")), "invalid");
        regions.left(TRAINER);
        regions.region(OTHER, "run", 100).unwrap();
    }

    #[test]
    fn pieces_that_lie_elsewhere_are_refused() {
        let regions = Regions::default();
        regions.region(TRAINER, "run", 100).unwrap();
        let bad = [
            vec![Piece(0, 90, 11)],
            vec![Piece(5, 0, 6)],
            vec![Piece(4, 0, 2), Piece(5, 2, 1)],
            vec![Piece(u64::MAX, 0, 2)],
            vec![Piece(0, u64::MAX, 2)],
        ];
        for pieces in bad {
            let filling = regions.begin(TRAINER, "run").unwrap();
            assert_eq!(
                code(regions.staged(TRAINER, ("run", filling), "app/1".to_owned(), 10, pieces)),
                "invalid"
            );
        }
        let filling = regions.begin(TRAINER, "run").unwrap();
        let outside = regions.staged(TRAINER, ("run", filling), "app/../x@3".to_owned(), 10, Vec::new());
        assert_eq!(code(outside), "invalid");
    }

    #[test]
    fn a_filling_that_was_given_up_can_not_be_staged() {
        let regions = Regions::default();
        regions.region(TRAINER, "run", 100).unwrap();
        let first = regions.begin(TRAINER, "run").unwrap();
        let second = regions.begin(TRAINER, "run").unwrap();
        let pieces = vec![Piece(0, 0, 4)];
        let late = regions.staged(TRAINER, ("run", first), "app/1".to_owned(), 4, pieces.clone());
        assert_eq!(code(late), "conflict");
        regions.staged(TRAINER, ("run", second), "app/2".to_owned(), 4, pieces).unwrap();
    }

    #[tokio::test]
    async fn nothing_is_staged_once_the_agent_ends() {
        let regions = Regions::default();
        regions.region(TRAINER, "run", 100).unwrap();
        let to_store = staged(&regions, "app/1").unwrap();
        let patience = Duration::from_millis(50);
        assert!(tokio::time::timeout(patience, regions.close(LONG)).await.is_err(), "one is being stored");
        regions.ended("run", to_store.save, 1.0, Ok(1));
        regions.begin(TRAINER, "run").unwrap();
        assert!(tokio::time::timeout(patience, regions.close(LONG)).await.is_err(), "one is being filled");
        regions.left(TRAINER);
        regions.close(LONG).await;
        regions.region(TRAINER, "run", 100).unwrap();
        assert_eq!(code(staged(&regions, "app/2")), "unreachable");
    }

    #[test]
    fn memory_of_trainers_that_are_gone_is_given_back() {
        let regions = Regions::default();
        for key in ["left", "owned"] {
            regions.region(TRAINER, key, 100).unwrap();
        }
        regions.left(TRAINER);
        regions.region(OTHER, "owned", 100).unwrap();
        regions.let_go(Duration::from_secs(60));
        assert_eq!(regions.status().len(), 2);
        regions.let_go(Duration::ZERO);
        assert_eq!(regions.status().len(), 1);
    }
}
