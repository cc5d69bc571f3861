//! Results of recent changes, kept with the changes themselves, so that a repeated request is answered as the first time.

use std::collections::{HashMap, VecDeque};

use stdchk_model::message::manager::{Attr, ManagerReply};
use stdchk_model::{OpId, cbor};

use crate::record::{LAYOUT, OperationRecord, decode, split_number};
use crate::store::{Batch, StoreError, Table};

/// Results that are kept: a client repeats within seconds, and the manager makes some thousand changes a second.
pub const OPERATIONS_KEPT: usize = 4096;

/// The results, in order of their coming.
#[derive(Debug, Default)]
pub struct Operations {
    results: HashMap<OpId, Option<Attr>>,
    order: VecDeque<(u64, OpId)>,
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
    pub fn keep(&mut self, id: OpId, entry: Option<Attr>) -> ManagerReply {
        self.added.push((self.next, id));
        self.insert(self.next, id, entry.clone());
        while self.order.len() > OPERATIONS_KEPT {
            if let Some((number, old)) = self.order.pop_front() {
                self.results.remove(&old);
                self.trimmed.push(number);
            }
        }
        reply(entry)
    }

    fn insert(&mut self, number: u64, id: OpId, entry: Option<Attr>) {
        self.results.insert(id, entry);
        self.order.push_back((number, id));
        self.next = self.next.max(number.saturating_add(1));
    }

    /// Takes in a stored result. They come in order of their numbers.
    pub fn load(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), StoreError> {
        let (number, _) = split_number(key)?;
        let record: OperationRecord = decode(bytes, "a change's result")?;
        self.insert(number, record.id, record.entry);
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
