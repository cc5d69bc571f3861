//! The store in etcd: records under keys, changed in transactions that only the manager that leads can make.
//!
//! | key below the prefix | value |
//! |---|---|
//! | `sequence` | number of the last commit (8 bytes), and of how many parts of it are to be carried out (4 bytes); big-endian |
//! | `r/` and the record's key | check (16 bytes), then 0 and the record, or 1 and in how many pieces it lies (4 bytes, big-endian) |
//! | `p/`, length of the record's key (2 bytes), the key, number of the piece (4 bytes) | check, then the piece of a record |
//! | `j/` and number of the part (4 bytes) | a part of a commit that is too large for one transaction |
//! | `leader`, `managers/` | see [`super::election`] |
//!
//! A commit is one transaction if it fits: etcd takes 128 operations and 1.5 MiB. A larger one is written in parts, under `j/`; the
//! transaction that sets `sequence` to it makes it durable, and then its parts are carried out. Whoever opens the store next carries out what
//! is left.
//!
//! Each transaction demands that the key `leader` is still that of this manager, and that `sequence` is what this store believes. So nothing
//! of a manager that leads no more gets in, and what is asked twice, since an answer was lost or came late, is done once: if `sequence` is what
//! the transaction makes it, it was done.
//!
//! | event | `sequence` before | parts | outcome |
//! |---|---|---|---|
//! | the manager ends while it writes parts | n, 0 | some of n + 1 | the state before; the next commit writes over them |
//! | ... while they are carried out | n + 1, k | all | the opening carries them out, all of them again |
//! | an answer is lost | any | any | asked again: done once |
//! | etcd is away | any | any | asked again until the lease is over: then [`StoreError::Deposed`] |
//! | another manager leads | any | any | [`StoreError::Deposed`], nothing was changed |
//! | etcd's room is used up | any | any | [`StoreError::EtcdFull`], nothing was changed: the manager stands by until there is room |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use stdchk_model::exact::narrow;
use stdchk_model::message::manager::{EtcdInfo, ManagerInfo};
use stdchk_net::Repeats;

use super::Etcd;
use super::election::Leadership;
use super::gateway::{AskError, behind, bytes, list, number, range, text};
use crate::store::{Batch, Checker, Snapshot, Store, StoreError, Stored, Visitor, told};

/// Operations of one transaction: fewer than etcd's 128.
const OPERATIONS_MAX: usize = 120;
/// Keys and values of one transaction, bytes: fewer than etcd's 1.5 MiB.
const TRANSACTION_BYTES_MAX: usize = 768 << 10;
/// A record that is longer lies in pieces, so that a question for a thousand records has an answer of bounded length.
const INLINE_BYTES_MAX: usize = 2048;
/// Length of a piece of a record, and of a part of a commit, bytes.
const PIECE_BYTES: usize = 256 << 10;
/// Records that are read at once, and pieces.
const RECORDS_AT_ONCE: usize = 1000;
pub(super) const PIECES_AT_ONCE: usize = 8;
/// Time for one answer.
const ANSWER: Duration = Duration::from_secs(2);
/// Time for an answer with as many records as are read at once, 5 MB at worst, of all members together: each gets its part of it.
const RECORDS: Duration = Duration::from_secs(10);
/// Pause before a question is asked again.
const PAUSE: Duration = Duration::from_millis(100);
/// What the checks of records are made for.
pub(super) const CONTEXT: &str = "stdchk manager's store in etcd 1";

/// What `sequence` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct State {
    sequence: u64,
    /// Parts of the last commit that may not be carried out yet.
    parts: u32,
}

impl State {
    fn encode(self) -> Vec<u8> {
        [&self.sequence.to_be_bytes()[..], &self.parts.to_be_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (sequence, parts) = bytes.split_first_chunk::<8>()?;
        let parts = <[u8; 4]>::try_from(parts).ok()?;
        Some(Self { sequence: u64::from_be_bytes(*sequence), parts: u32::from_be_bytes(parts) })
    }
}

/// One change of etcd's keys.
enum Operation {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

impl Operation {
    fn bytes(&self) -> usize {
        match self {
            Self::Put(key, value) => key.len() + value.len(),
            Self::Delete(key) => key.len(),
            Self::DeleteRange(from, to) => from.len() + to.len(),
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Put(key, value) => json!({"request_put": {"key": text(key), "value": text(value)}}),
            Self::Delete(key) => json!({"request_delete_range": {"key": text(key)}}),
            Self::DeleteRange(from, to) => {
                json!({"request_delete_range": {"key": text(from), "range_end": text(to)}})
            }
        }
    }
}

/// What reading and writing need.
#[derive(Clone)]
struct Way {
    leadership: Leadership,
    checker: Checker,
}

/// The store of the manager that leads.
pub struct EtcdStore {
    way: Way,
    state: State,
    /// Records that lie in pieces, and in how many.
    in_pieces: Arc<Mutex<BTreeMap<Vec<u8>, u32>>>,
    /// A commit failed: only reading anew tells what is there.
    failed: bool,
}

impl EtcdStore {
    /// Opens the store of a manager that leads, and carries out what its last commit left.
    ///
    /// # Errors
    /// etcd refuses, something else than a manager's records is there, or the manager leads no more.
    pub fn open(leadership: Leadership) -> Result<Self, StoreError> {
        let way = Way { leadership, checker: Checker::new(CONTEXT) };
        let asked = way.clone();
        let state = way.leadership.etcd().wait(async move { asked.state().await })?;
        let mut store = Self { way, state, in_pieces: Arc::default(), failed: false };
        if state.parts > 0 {
            store.carry_out_again()?;
        }
        Ok(store)
    }

    fn carry_out_again(&mut self) -> Result<(), StoreError> {
        // Which records lie in pieces shows when they are read.
        self.load(&mut |_, _| Ok(()))?;
        let (way, parts) = (self.way.clone(), self.state.parts);
        let encoded = self.way.leadership.etcd().wait(async move { way.read_parts(parts).await })?;
        let what = || StoreError::new("reading the last commit in etcd", "its parts are damaged");
        let batch = Batch::decode(&encoded).ok_or_else(what)?;
        let (operations, in_pieces) = self.operations(&last_changes(&batch));
        let (way, state) = (self.way.clone(), self.state);
        self.state =
            self.way.leadership.etcd().wait(async move { way.carry_out(state, operations).await })?;
        self.now_in_pieces(in_pieces);
        Ok(())
    }

    /// Takes the records of another store, whose last commit had the number `sequence`, all or none. Only where nothing is yet.
    ///
    /// # Errors
    /// etcd refuses, or the manager leads no more.
    pub fn import(&mut self, records: &Batch, sequence: u64) -> Result<(), StoreError> {
        assert_eq!(self.state, State::default(), "a store that has records takes no others");
        self.write(records, sequence)
    }

    /// Makes these changes the commit of this number.
    fn write(&mut self, batch: &Batch, sequence: u64) -> Result<(), StoreError> {
        self.failed = true;
        let changes = last_changes(batch);
        let (operations, in_pieces) = self.operations(&changes);
        let (way, before) = (self.way.clone(), self.state);
        let etcd = self.way.leadership.etcd();
        let small = operations.len() < OPERATIONS_MAX
            && operations.iter().map(Operation::bytes).sum::<usize>() < TRANSACTION_BYTES_MAX;
        self.state = match small {
            true => etcd.wait(async move { way.commit_at_once(before, operations, sequence).await })?,
            false => {
                let whole = Batch::of(changes).encode();
                etcd.wait(async move { way.commit_in_parts(before, &whole, operations, sequence).await })?
            }
        };
        self.now_in_pieces(in_pieces);
        self.failed = false;
        Ok(())
    }

    /// What etcd is to do for these changes, and which records lie in how many pieces then, 0: they don't.
    fn operations(&self, changes: &Changes) -> (Vec<Operation>, Vec<(Vec<u8>, u32)>) {
        let known = self.in_pieces.lock();
        let (mut operations, mut in_pieces) = (Vec::new(), Vec::new());
        for (key, record) in changes {
            let before = known.get(key).copied().unwrap_or(0);
            let pieces = match record {
                Some(record) if record.len() > INLINE_BYTES_MAX => {
                    self.put_pieces(key, record, &mut operations)
                }
                Some(record) => {
                    let value = [&[0], record.as_slice()].concat();
                    operations.push(self.way.put_record(key, &value));
                    0
                }
                None => {
                    operations.push(Operation::Delete(self.way.record_key(key)));
                    0
                }
            };
            if pieces < before {
                let rest = (self.way.piece_key(key, pieces), self.way.piece_key(key, u32::MAX));
                operations.push(Operation::DeleteRange(rest.0, rest.1));
            }
            if pieces != before {
                in_pieces.push((key.clone(), pieces));
            }
        }
        (operations, in_pieces)
    }

    fn put_pieces(&self, key: &[u8], record: &[u8], operations: &mut Vec<Operation>) -> u32 {
        let mut count = 0;
        for piece in record.chunks(PIECE_BYTES) {
            let at = self.way.piece_key(key, count);
            let (value, _) = self.way.checker.close(&at, piece);
            operations.push(Operation::Put(at, value));
            count += 1;
        }
        let value = [&[1], &count.to_be_bytes()[..]].concat();
        operations.push(self.way.put_record(key, &value));
        count
    }

    fn now_in_pieces(&self, changed: Vec<(Vec<u8>, u32)>) {
        let mut known = self.in_pieces.lock();
        for (key, pieces) in changed {
            match pieces {
                0 => known.remove(&key),
                pieces => known.insert(key, pieces),
            };
        }
    }
}

/// The last change of each key.
type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

fn last_changes(batch: &Batch) -> Changes {
    batch.changes().iter().cloned().collect()
}

impl Store for EtcdStore {
    fn load(&self, visit: &mut Visitor<'_>) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let (way, from) = (self.way.clone(), after.clone());
            let read = self
                .way
                .leadership
                .etcd()
                .wait(async move { way.read(from.as_deref(), RECORDS_AT_ONCE, 0).await })?;
            let Some(last) = read.last() else { return Ok(()) };
            after = Some(last.key.clone());
            for Read { key, record, pieces } in read {
                if pieces > 0 {
                    self.in_pieces.lock().insert(key.clone(), pieces);
                }
                visit(&key, &record)?;
            }
        }
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        if self.failed {
            return Err(StoreError::new("writing to etcd", "an earlier write failed"));
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.write(batch, self.state.sequence + 1)
    }

    fn sequence(&self) -> u64 {
        self.state.sequence
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        let way = self.way.clone();
        let revision = self.way.leadership.etcd().wait(async move { way.revision().await })?;
        Ok(Box::new(EtcdSnapshot { way: self.way.clone(), revision, sequence: self.state.sequence }))
    }

    fn is_held(&self) -> bool {
        self.way.leadership.holds()
    }

    fn has_room(&self, _bytes: u64) -> bool {
        self.way.leadership.has_room()
    }

    fn leadership(&self) -> Option<u64> {
        Some(self.way.leadership.number())
    }

    fn managers(&self) -> Vec<ManagerInfo> {
        self.way.leadership.managers()
    }

    fn etcd(&self) -> Option<EtcdInfo> {
        Some(self.way.leadership.info())
    }
}

/// All records at one of etcd's revisions.
struct EtcdSnapshot {
    way: Way,
    revision: u64,
    sequence: u64,
}

impl Snapshot for EtcdSnapshot {
    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn read(&self, after: &[u8], bytes: usize) -> Result<Vec<Stored>, StoreError> {
        let (mut taken, mut found) = (0, Vec::new());
        let mut after = after.to_vec();
        // One record at a time would take a question each: short ones come together.
        let at_once = (bytes / 256).clamp(1, RECORDS_AT_ONCE);
        while taken < bytes {
            let (way, from, revision) = (self.way.clone(), after.clone(), self.revision);
            let read = self
                .way
                .leadership
                .etcd()
                .wait(async move { way.read(Some(&from), at_once, revision).await })?;
            let Some(last) = read.last() else { break };
            after = last.key.clone();
            for Read { key, record, .. } in read {
                if taken < bytes {
                    taken += key.len() + record.len();
                    found.push((key, record));
                }
            }
        }
        Ok(found)
    }
}

/// A record as it was read.
struct Read {
    key: Vec<u8>,
    record: Vec<u8>,
    /// In how many pieces it lies; 0: in none.
    pieces: u32,
}

pub(super) fn record_key(etcd: &Etcd, key: &[u8]) -> Vec<u8> {
    [&etcd.key("r/"), key].concat()
}

pub(super) fn piece_key(etcd: &Etcd, key: &[u8], piece: u32) -> Vec<u8> {
    let length = narrow::<u16, _>(key.len()).to_be_bytes();
    [&etcd.key("p/")[..], &length, key, &piece.to_be_bytes()].concat()
}

impl Way {
    fn key(&self, name: &str) -> Vec<u8> {
        self.leadership.etcd().key(name)
    }

    fn record_key(&self, key: &[u8]) -> Vec<u8> {
        record_key(self.leadership.etcd(), key)
    }

    fn piece_key(&self, key: &[u8], piece: u32) -> Vec<u8> {
        piece_key(self.leadership.etcd(), key, piece)
    }

    fn part_key(&self, part: u32) -> Vec<u8> {
        [&self.key("j/")[..], &part.to_be_bytes()].concat()
    }

    fn put_record(&self, key: &[u8], value: &[u8]) -> Operation {
        Operation::Put(self.record_key(key), self.checker.close(key, value).0)
    }

    /// Asks until etcd answers, as long as this manager leads.
    async fn ask(&self, doing: &str, call: &str, question: &Value) -> Result<Value, StoreError> {
        self.ask_within(ANSWER, doing, call, question).await
    }

    async fn ask_within(
        &self,
        limit: Duration,
        doing: &str,
        call: &str,
        question: &Value,
    ) -> Result<Value, StoreError> {
        let mut missed = Repeats::default();
        while self.leadership.holds() {
            match self.leadership.etcd().gateway().ask(call, question, limit).await {
                Ok(answer) => return Ok(answer),
                Err(AskError::Away(error)) => {
                    if missed.failed(&error).is_some() {
                        tracing::warn!(%error, doing, "etcd is asked again, until it answers or this manager's lease is over");
                    }
                }
                Err(AskError::Full(cause)) => {
                    return Err(StoreError::EtcdFull { doing: doing.to_owned(), cause });
                }
                Err(AskError::Refused(cause) | AskError::Unknown(cause)) => {
                    return Err(StoreError::new(doing, cause));
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(self.leadership.deposed())
    }

    /// Does all of this, if this manager leads and `sequence` is as it was before; whatever the answer to an earlier attempt was.
    async fn transact(
        &self,
        before: State,
        operations: &[Operation],
        after: State,
    ) -> Result<(), StoreError> {
        let doing = "writing to etcd";
        let sequence = text(&self.key("sequence"));
        let unchanged = match before == State::default() {
            true => json!({"target": "VERSION", "result": "EQUAL", "key": sequence, "version": "0"}),
            false => {
                json!({"target": "VALUE", "result": "EQUAL", "key": sequence, "value": text(&before.encode())})
            }
        };
        let mut success: Vec<Value> = operations.iter().map(Operation::to_json).collect();
        if after != before {
            success.push(json!({"request_put": {"key": sequence, "value": text(&after.encode())}}));
        }
        let question = json!({
            "compare": [self.leadership.condition(), unchanged],
            "success": success,
            "failure": [{"request_range": self.leadership.question()}, {"request_range": {"key": sequence}}],
        });
        let answer = self.ask(doing, "kv/txn", &question).await?;
        if answer.get("succeeded").and_then(Value::as_bool) == Some(true) {
            return Ok(());
        }
        let odd = |error: AskError| StoreError::new(doing, error);
        let [leader, found] = list(&answer, "responses") else {
            return Err(StoreError::new(doing, "its answer lacks what was asked for"));
        };
        let range = |response: &Value| response.get("response_range").cloned().unwrap_or(Value::Null);
        if !self.leadership.is_own(&range(leader)).map_err(odd)? {
            return Err(self.leadership.deposed());
        }
        let found = match list(&range(found), "kvs") {
            [found] => State::decode(&bytes(found, "value").map_err(odd)?),
            _ => Some(State::default()),
        };
        match found == Some(after) {
            // An earlier attempt did it, and its answer was lost.
            true => Ok(()),
            false => {
                let cause = format!(
                    "it has {found:?} where this manager, which leads, left {before:?}: somebody else writes there"
                );
                Err(StoreError::new(doing, cause))
            }
        }
    }

    async fn commit_at_once(
        &self,
        before: State,
        operations: Vec<Operation>,
        sequence: u64,
    ) -> Result<State, StoreError> {
        let after = State { sequence, parts: 0 };
        self.transact(before, &operations, after).await?;
        Ok(after)
    }

    async fn commit_in_parts(
        &self,
        before: State,
        encoded: &[u8],
        operations: Vec<Operation>,
        sequence: u64,
    ) -> Result<State, StoreError> {
        let mut parts = 0;
        for part in encoded.chunks(PIECE_BYTES) {
            let key = self.part_key(parts);
            let (value, _) = self.checker.close(&key, part);
            self.transact(before, &[Operation::Put(key, value)], before).await?;
            parts += 1;
        }
        let whole = State { sequence, parts };
        self.transact(before, &[], whole).await?;
        self.carry_out(whole, operations).await
    }

    /// Carries out a commit whose parts are all there.
    async fn carry_out(&self, whole: State, operations: Vec<Operation>) -> Result<State, StoreError> {
        let (mut some, mut bytes) = (Vec::new(), 0);
        for operation in operations {
            if some.len() >= OPERATIONS_MAX || bytes + operation.bytes() > TRANSACTION_BYTES_MAX {
                self.transact(whole, &std::mem::take(&mut some), whole).await?;
                bytes = 0;
            }
            bytes += operation.bytes();
            some.push(operation);
        }
        self.transact(whole, &some, whole).await?;
        let done = State { parts: 0, ..whole };
        let parts = self.key("j/");
        self.transact(whole, &[Operation::DeleteRange(parts.clone(), behind(&parts))], done).await?;
        Ok(done)
    }

    async fn state(&self) -> Result<State, StoreError> {
        let doing = "reading the number of the last commit in etcd";
        let answer = self.ask(doing, "kv/range", &json!({"key": text(&self.key("sequence"))})).await?;
        let [found] = list(&answer, "kvs") else { return Ok(State::default()) };
        let value = bytes(found, "value").map_err(|error| StoreError::new(doing, error))?;
        State::decode(&value).ok_or_else(|| StoreError::new(doing, "it is no such number"))
    }

    /// etcd's present revision.
    async fn revision(&self) -> Result<u64, StoreError> {
        let doing = "asking etcd for its revision";
        let answer = self.ask(doing, "kv/range", &json!({"key": text(&self.key("sequence"))})).await?;
        let revision = number(answer.get("header").unwrap_or(&Value::Null), "revision");
        revision.map_err(|error| StoreError::new(doing, error))
    }

    async fn read_parts(&self, parts: u32) -> Result<Vec<u8>, StoreError> {
        let mut whole = Vec::new();
        for part in 0..parts {
            let (doing, key) = ("reading the last commit in etcd", self.part_key(part));
            let answer = self.ask(doing, "kv/range", &json!({"key": text(&key)})).await?;
            let [found] = list(&answer, "kvs") else {
                return Err(StoreError::new(doing, format!("part {part} of {parts} is missing")));
            };
            let value = bytes(found, "value").map_err(|error| StoreError::new(doing, error))?;
            let (part, _) =
                self.checker.open(&key, &value).ok_or_else(|| StoreError::new(doing, "a part is damaged"))?;
            whole.extend(part);
        }
        Ok(whole)
    }

    /// So many records behind the key `after`, at a revision; 0: now.
    async fn read(&self, after: Option<&[u8]>, count: usize, revision: u64) -> Result<Vec<Read>, StoreError> {
        let doing = "reading records in etcd";
        let odd = |error: AskError| StoreError::new(doing, error);
        let all = self.key("r/");
        let from = after.map_or_else(|| all.clone(), |after| [&all[..], after, &[0]].concat());
        let question = range(&from, &behind(&all), count, revision);
        let answer = self.ask_within(RECORDS, doing, "kv/range", &question).await?;
        let mut read = Vec::new();
        for found in list(&answer, "kvs") {
            let (key, value) = (bytes(found, "key").map_err(odd)?, bytes(found, "value").map_err(odd)?);
            let key = key.strip_prefix(&all[..]).unwrap_or_default().to_vec();
            let damaged = || StoreError::new(doing, format!("the record {} is damaged", told(&key)));
            let (content, _) = self.checker.open(&key, &value).ok_or_else(damaged)?;
            let (record, pieces) = match content.split_first() {
                Some((0, record)) => (record.to_vec(), 0),
                Some((1, pieces)) => {
                    let pieces = <[u8; 4]>::try_from(pieces).map_err(|_| damaged())?;
                    let pieces = u32::from_be_bytes(pieces);
                    (self.read_pieces(&key, pieces, revision).await?.ok_or_else(damaged)?, pieces)
                }
                _ => return Err(damaged()),
            };
            read.push(Read { key, record, pieces });
        }
        Ok(read)
    }

    /// The record that lies in so many pieces; `None`: some are missing or damaged.
    async fn read_pieces(
        &self,
        key: &[u8],
        pieces: u32,
        revision: u64,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let doing = "reading a large record in etcd";
        let mut record = Vec::new();
        let mut next = 0;
        while next < pieces {
            let (from, to) = (self.piece_key(key, next), self.piece_key(key, pieces));
            let question = range(&from, &to, PIECES_AT_ONCE, revision);
            let answer = self.ask_within(RECORDS, doing, "kv/range", &question).await?;
            let found = list(&answer, "kvs");
            if found.is_empty() {
                return Ok(None);
            }
            for piece in found {
                let value = bytes(piece, "value").map_err(|error| StoreError::new(doing, error))?;
                let Some((piece, _)) = self.checker.open(&self.piece_key(key, next), &value) else {
                    return Ok(None);
                };
                record.extend(piece);
                next += 1;
            }
        }
        Ok(Some(record))
    }
}
