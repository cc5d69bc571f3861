//! Results of recent changes, kept with the changes themselves, so that a repeated request is answered as the first time.
//!
//! There is room for so many. When it is used up, the oldest result goes of the member that has most of them: who makes changes without
//! end forgets its own answers, and nobody else's.

use std::collections::{BTreeMap, HashMap, VecDeque};

use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{Attr, ManagerReply};
use stdchk_model::{OpId, cbor};

use crate::record::{LAYOUT, OperationRecord, decode, split_number};
use crate::store::{Batch, StoreError, Table};

/// How long a result is kept at least, milliseconds: twice as long as a client repeats a request.
const KEPT_MS: u64 = 120_000;
/// Results that are kept however old they are.
const OPERATIONS_KEPT: usize = 4096;
/// Most results: some thousand changes a second for as long as a client repeats a request, in about 100 MB.
const OPERATIONS_MAX: usize = 1 << 18;

/// A result that is kept.
#[derive(Clone, Copy, Debug)]
struct Kept {
    id: OpId,
    /// Whose change it was; `None`: of the manager's machine, or of before its start.
    member: Option<MemberId>,
    /// When it came, milliseconds of the manager's life; 0: before its start.
    at_ms: u64,
}

/// The results, in order of their coming.
#[derive(Debug, Default)]
pub struct Operations {
    results: HashMap<OpId, Option<Attr>>,
    /// By their numbers, which rise.
    order: BTreeMap<u64, Kept>,
    /// The numbers of each member's.
    members: HashMap<Option<MemberId>, VecDeque<u64>>,
    next: u64,
    added: Vec<(u64, OpId)>,
    trimmed: Vec<u64>,
}

impl Operations {
    /// What was answered to the change before.
    pub fn answer(&self, id: &OpId) -> Option<ManagerReply> {
        self.results.get(id).map(|entry| reply(entry.clone()))
    }

    /// Keeps the result of a change.
    pub fn keep(
        &mut self,
        (id, member): (OpId, Option<MemberId>),
        entry: Option<Attr>,
        now_ms: u64,
    ) -> ManagerReply {
        self.added.push((self.next, id));
        self.insert(self.next, Kept { id, member, at_ms: now_ms }, entry.clone());
        // Two for each that comes: there may be many of a busy time.
        for _ in 0..2 {
            let Some(number) = self.may_go(now_ms) else { break };
            self.forget(number);
        }
        debug_assert_eq!(self.order.len(), self.members.values().map(VecDeque::len).sum::<usize>());
        reply(entry)
    }

    /// The number of the result that goes next, if one may.
    fn may_go(&self, now_ms: u64) -> Option<u64> {
        if self.order.len() > OPERATIONS_MAX {
            let most = self.members.values().max_by_key(|numbers| numbers.len())?;
            return most.front().copied();
        }
        let (number, first) = self.order.first_key_value()?;
        let is_old = now_ms.saturating_sub(first.at_ms) >= KEPT_MS;
        (self.order.len() > OPERATIONS_KEPT && is_old).then_some(*number)
    }

    fn forget(&mut self, number: u64) {
        let Some(old) = self.order.remove(&number) else { return };
        self.results.remove(&old.id);
        self.trimmed.push(number);
        if let Some(numbers) = self.members.get_mut(&old.member) {
            // The oldest of all is the oldest of its member.
            let front = numbers.pop_front();
            assert_eq!(front, Some(number), "the results of a member stand in another order");
            if numbers.is_empty() {
                self.members.remove(&old.member);
            }
        }
    }

    fn insert(&mut self, number: u64, kept: Kept, entry: Option<Attr>) {
        self.results.insert(kept.id, entry);
        self.members.entry(kept.member).or_default().push_back(number);
        self.order.insert(number, kept);
        self.next = self.next.max(number.saturating_add(1));
    }

    /// Takes in a stored result. They come in order of their numbers.
    pub fn load(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), StoreError> {
        let (number, _) = split_number(key)?;
        let record: OperationRecord = decode(bytes, "a change's result")?;
        self.insert(number, Kept { id: record.id, member: None, at_ms: 0 }, record.entry);
        Ok(())
    }

    /// Adds what changed since the last call to `batch`.
    pub fn take_changes(&mut self, batch: &mut Batch) {
        for (number, id) in std::mem::take(&mut self.added) {
            if let Some(entry) = self.results.get(&id) {
                let record = OperationRecord { layout: LAYOUT, id, entry: entry.clone() };
                batch.put(Table::Operation, &number.to_be_bytes(), cbor::encode(&record));
            }
        }
        for number in std::mem::take(&mut self.trimmed) {
            batch.remove(Table::Operation, &number.to_be_bytes());
        }
    }
}

fn reply(entry: Option<Attr>) -> ManagerReply {
    entry.map_or(ManagerReply::Done, ManagerReply::Entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> OpId {
        OpId(u128::from(number).to_be_bytes())
    }

    fn keep(operations: &mut Operations, numbers: std::ops::Range<u64>, now_ms: u64) {
        numbers.for_each(|number| drop(operations.keep((id(number), None), None, now_ms)));
    }

    #[test]
    fn a_result_stays_for_as_long_as_its_change_may_be_repeated_however_many_follow() {
        let mut operations = Operations::default();
        keep(&mut operations, 0..20_000, 0);
        keep(&mut operations, 20_000..40_000, KEPT_MS - 1);
        assert!(operations.answer(&id(0)).is_some());
        keep(&mut operations, 40_000..60_000, KEPT_MS);
        assert!(operations.answer(&id(19_999)).is_none() && operations.answer(&id(20_000)).is_some());
        assert_eq!((operations.order.len(), operations.results.len()), (40_000, 40_000));
        let mut batch = Batch::default();
        operations.take_changes(&mut batch);
        let mut loaded = Operations::default();
        let mut stored = std::collections::BTreeMap::new();
        for (key, record) in batch.changes() {
            match record {
                Some(record) => stored.insert(key.clone(), record.clone()),
                None => stored.remove(key),
            };
        }
        stored.iter().for_each(|(key, record)| loaded.load(&key[1..], record).unwrap());
        assert!(loaded.answer(&id(20_000)).is_some() && loaded.answer(&id(19_999)).is_none());
        // Of before the start, they have their time from then on; few of a quiet time stay longer.
        keep(&mut loaded, 60_000..60_001, KEPT_MS - 1);
        assert_eq!(loaded.order.len(), 40_001);
        keep(&mut loaded, 60_001..80_001, 10 * KEPT_MS);
        keep(&mut loaded, 80_001..100_001, 20 * KEPT_MS);
        keep(&mut loaded, 100_001..100_002, 30 * KEPT_MS);
        assert!(loaded.order.len() > OPERATIONS_KEPT);
        (100_002..120_000).for_each(|number| keep(&mut loaded, number..number + 1, number * KEPT_MS));
        assert_eq!(loaded.order.len(), OPERATIONS_KEPT);
    }

    #[test]
    fn who_makes_changes_without_end_forgets_its_own_answers_and_nobody_elses() {
        let (mut operations, all) = (Operations::default(), OPERATIONS_MAX as u64);
        let member = |number| Some(MemberId([number; 16]));
        let mut keep = |member, numbers: std::ops::Range<u64>| {
            numbers.for_each(|number| drop(operations.keep((id(number), member), None, 0)));
        };
        keep(member(1), 0..1000);
        keep(member(2), 1000..1000 + 3 * all);
        keep(None, 4 * all..4 * all + 1000);
        assert!(
            (0..1000).chain(4 * all..4 * all + 1000).all(|number| operations.answer(&id(number)).is_some())
        );
        assert!(operations.answer(&id(1000)).is_none());
        assert_eq!((operations.order.len(), operations.results.len()), (OPERATIONS_MAX, OPERATIONS_MAX));
    }

    #[test]
    fn results_are_bounded_however_fast_they_come() {
        let mut operations = Operations::default();
        keep(&mut operations, 0..OPERATIONS_MAX as u64 + 10, 0);
        assert_eq!((operations.order.len(), operations.results.len()), (OPERATIONS_MAX, OPERATIONS_MAX));
    }
}
