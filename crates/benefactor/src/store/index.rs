//! What is stored and where, in memory: blocks, the order of puts, what is durable, what the manager has not heard yet.
//!
//! Pure bookkeeping. Two counters carry it: the *put sequence* fences deletions (a block put again later than a deletion
//! was decided stays), the *ticket* says whether a finished put is covered by a finished sync.

use std::collections::{HashMap, hash_map};

use stdchk_model::exact::narrow;
use stdchk_model::message::manager::StoredBlock;
use stdchk_model::{BlockId, limits::LIST_ENTRIES_MAX};

use super::record::{Place, Record};

/// Bits of a put sequence that count the puts of one life; the life's number stands above them.
const LIFE_SHIFT: u32 = 40;
/// Changes kept for a manager that does not answer; beyond, a whole inventory is cheaper than the list.
const CHANGES_MAX: usize = 4 * LIST_ENTRIES_MAX;

/// Where a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its record.
    pub place: Place,
    /// Length of its stored bytes.
    pub stored_length: u32,
    /// Length of its plain chunk.
    pub plain_length: u32,
    /// Its last put.
    pub put_sequence: u64,
    /// Its place in the order of finished writes; 0: durable since before this life.
    ticket: u64,
}

/// What happened to a block since the manager last heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It became durable.
    Added,
    /// It was removed, or somebody asked for it in vain.
    Removed,
    /// It was found damaged and set aside.
    Damaged,
}

/// The changes for one heartbeat.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Blocks that became durable.
    pub added: Vec<StoredBlock>,
    /// Blocks that are gone.
    pub removed: Vec<BlockId>,
    /// How many of them were damaged.
    pub damaged: u32,
    damaged_blocks: Vec<BlockId>,
}

/// The index of a store.
#[derive(Debug)]
pub struct Index {
    blocks: HashMap<BlockId, Entry>,
    put_sequence: u64,
    ticket: u64,
    durable: u64,
    fresh: Vec<BlockId>,
    changes: HashMap<BlockId, Change>,
    overflown: bool,
}

impl Index {
    /// An empty index of life number `life`; sequences of later lives are higher than all of earlier ones.
    pub fn new(life: u32) -> Self {
        Self {
            blocks: HashMap::new(),
            put_sequence: u64::from(life) << LIFE_SHIFT,
            ticket: 0,
            durable: 0,
            fresh: Vec::new(),
            changes: HashMap::new(),
            overflown: false,
        }
    }

    /// Takes up a record that was found on the disk, durable. Of two records for one block the later put holds; returns place and
    /// stored length of the other one.
    pub fn restore(&mut self, record: &Record) -> Option<(Place, u32)> {
        let Record { place, stored_length, put_sequence, .. } = *record;
        let plain_length = record.encoding.plain_length;
        let entry = Entry { place, stored_length, plain_length, put_sequence, ticket: 0 };
        match self.blocks.entry(record.block) {
            hash_map::Entry::Occupied(known) if known.get().put_sequence >= put_sequence => {
                Some((place, stored_length))
            }
            hash_map::Entry::Occupied(mut known) => {
                let before = known.insert(entry);
                Some((before.place, before.stored_length))
            }
            hash_map::Entry::Vacant(unknown) => {
                unknown.insert(entry);
                None
            }
        }
    }

    /// The next put sequence.
    pub fn next_sequence(&mut self) -> u64 {
        self.put_sequence += 1;
        self.put_sequence
    }

    /// The last put sequence.
    pub fn put_sequence(&self) -> u64 {
        self.put_sequence
    }

    /// Number of blocks.
    pub fn len(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Where a block is.
    pub fn get(&self, block: &BlockId) -> Option<&Entry> {
        self.blocks.get(block)
    }

    /// Whether a block is here and a finished sync covers it.
    pub fn is_durable(&self, block: &BlockId) -> bool {
        self.blocks.get(block).is_some_and(|entry| entry.ticket <= self.durable)
    }

    /// A block that is here is put again; false if it isn't here.
    pub fn put_again(&mut self, block: &BlockId) -> bool {
        let sequence = self.put_sequence + 1;
        let known = self.blocks.get_mut(block).map(|entry| entry.put_sequence = sequence).is_some();
        if known {
            self.put_sequence = sequence;
        }
        known
    }

    /// Those of `blocks` that are here count as put now; the sequence of that, and whether all of them are durable. The manager
    /// is told of those that aren't here: it may believe that they are.
    pub fn touch(&mut self, blocks: &[BlockId]) -> (u64, bool) {
        let sequence = self.next_sequence();
        let mut all_durable = true;
        for block in blocks {
            match self.blocks.get_mut(block) {
                Some(entry) => {
                    entry.put_sequence = sequence;
                    all_durable &= entry.ticket <= self.durable;
                }
                None => self.missed(*block),
            }
        }
        (sequence, all_durable)
    }

    /// Those of `blocks` that are here and durable.
    pub fn durable(&self, blocks: &[BlockId]) -> Vec<StoredBlock> {
        blocks.iter().filter(|block| self.is_durable(block)).filter_map(|block| self.stored(block)).collect()
    }

    /// Somebody asked for a block that isn't here. What the manager is to hear of it anyway says why.
    pub fn missed(&mut self, block: BlockId) {
        if !self.changes.contains_key(&block) {
            self.note(block, Change::Removed);
        }
    }

    /// A new block's bytes are written; false if it came to be here meanwhile, then it counts as put again.
    pub fn insert(&mut self, block: BlockId, place: Place, lengths: (u32, u32)) -> bool {
        if self.put_again(&block) {
            return false;
        }
        let (stored_length, plain_length) = lengths;
        self.ticket += 1;
        let (put_sequence, ticket) = (self.next_sequence(), self.ticket);
        self.blocks.insert(block, Entry { place, stored_length, plain_length, put_sequence, ticket });
        self.fresh.push(block);
        true
    }

    /// A block was written again at `to`; false if it isn't at `from` any more. It is as durable as it was, for as long as what
    /// is at `from` stays on the disk; the next sync covers it at `to`.
    pub fn relocate(&mut self, block: &BlockId, from: Place, to: Place) -> bool {
        let Some(entry) = self.blocks.get_mut(block).filter(|entry| entry.place == from) else {
            return false;
        };
        self.ticket += 1;
        entry.place = to;
        true
    }

    /// Takes a block out unless it was put after `put_sequence`; returns where it was. Whoever decided the deletion has
    /// forgotten the block, so one that stays is announced again.
    pub fn remove(&mut self, block: &BlockId, put_sequence: u64) -> Option<Entry> {
        let entry = *self.blocks.get(block)?;
        if entry.put_sequence > put_sequence {
            if self.is_durable(block) {
                self.note(*block, Change::Added);
            }
            return None;
        }
        self.blocks.remove(block);
        self.note(*block, Change::Removed);
        Some(entry)
    }

    /// Takes a damaged block out; false if it isn't at `place` any more.
    pub fn set_aside(&mut self, block: &BlockId, place: Place) -> bool {
        let here = self.blocks.get(block).is_some_and(|entry| entry.place == place);
        if here {
            self.blocks.remove(block);
            self.note(*block, Change::Damaged);
        }
        here
    }

    /// What a sync that starts now will cover: its ticket, and the blocks to announce after it.
    pub fn start_sync(&mut self) -> (u64, Vec<BlockId>) {
        (self.ticket, std::mem::take(&mut self.fresh))
    }

    /// A sync that was started is finished.
    pub fn finish_sync(&mut self, ticket: u64, fresh: Vec<BlockId>) {
        self.durable = self.durable.max(ticket);
        for block in fresh {
            if self.is_durable(&block) {
                self.note(block, Change::Added);
            }
        }
    }

    /// A sync that was started failed: its blocks stay unannounced.
    pub fn fail_sync(&mut self, mut fresh: Vec<BlockId>) {
        fresh.append(&mut self.fresh);
        self.fresh = fresh;
    }

    /// The ticket of the last finished write, and that up to which all is durable.
    pub fn tickets(&self) -> (u64, u64) {
        (self.ticket, self.durable)
    }

    fn note(&mut self, block: BlockId, change: Change) {
        if self.changes.len() >= CHANGES_MAX {
            self.changes = HashMap::new();
            self.overflown = true;
        }
        if !self.overflown {
            self.changes.insert(block, change);
        }
    }

    /// The changes since the last call, at most one message's worth; `None` if only an inventory tells them.
    pub fn take_changes(&mut self) -> Option<Changes> {
        if self.overflown {
            return None;
        }
        let taken: Vec<_> = self.changes.extract_if(|_, _| true).take(LIST_ENTRIES_MAX).collect();
        let mut changes = Changes::default();
        for (block, change) in taken {
            match change {
                Change::Added => changes.added.extend(self.stored(&block)),
                Change::Removed => changes.removed.push(block),
                Change::Damaged => {
                    changes.removed.push(block);
                    changes.damaged_blocks.push(block);
                }
            }
        }
        changes.damaged = narrow(changes.damaged_blocks.len());
        Some(changes)
    }

    /// Takes changes back that didn't reach the manager; what happened since goes first.
    pub fn return_changes(&mut self, changes: Changes) {
        let added = changes.added.into_iter().map(|stored| (stored.block, Change::Added));
        let damaged = changes.damaged_blocks.into_iter().map(|block| (block, Change::Damaged));
        let removed = changes.removed.into_iter().map(|block| (block, Change::Removed));
        for (block, change) in added.chain(damaged).chain(removed) {
            self.changes.entry(block).or_insert(change);
        }
    }

    /// All durable blocks. Changes up to now are contained, later ones follow by [`Index::take_changes`].
    pub fn inventory(&mut self) -> Vec<StoredBlock> {
        self.changes.clear();
        self.overflown = false;
        let durable = self.blocks.iter().filter(|(_, entry)| entry.ticket <= self.durable);
        durable.map(|(block, entry)| describe(*block, entry)).collect()
    }

    fn stored(&self, block: &BlockId) -> Option<StoredBlock> {
        self.blocks.get(block).map(|entry| describe(*block, entry))
    }
}

fn describe(block: BlockId, entry: &Entry) -> StoredBlock {
    StoredBlock { block, plain_length: entry.plain_length, stored_length: entry.stored_length }
}

#[cfg(test)]
mod tests {
    use stdchk_model::{ChunkId, ChunkRef, Encoding};

    use super::super::record::Kind;
    use super::*;

    fn block(byte: u8) -> BlockId {
        BlockId::plain(ChunkId([byte; 32]))
    }

    fn record(number: u8, put_sequence: u64) -> Record {
        let block = block(number);
        let encoding = Encoding::plain(ChunkRef { id: block.chunk, length: 5 });
        Record { kind: Kind::Block, place: PLACE, block, encoding, stored_length: 5, put_sequence }
    }

    #[test]
    fn of_two_records_for_one_block_the_later_put_holds_in_whichever_order_they_are_found() {
        for order in [[3, 7], [7, 3]] {
            let mut index = Index::new(1);
            let found = order.map(|put| {
                let place = Place { unit: u32::try_from(put).unwrap(), ..PLACE };
                index.restore(&Record { place, ..record(1, put) })
            });
            assert_eq!(found.map(|loser| loser.map(|(place, _)| place.unit)), [None, Some(3)]);
            assert_eq!(index.get(&block(1)).unwrap().place.unit, 7);
        }
    }

    const PLACE: Place = Place { segment: 1, unit: 1 };

    #[test]
    fn a_deletion_spares_what_was_put_again_since() {
        let mut index = Index::new(1);
        index.insert(block(1), PLACE, (5, 5));
        let decided = index.put_sequence();
        assert!(index.put_again(&block(1)));
        assert_eq!(index.remove(&block(1), decided), None);
        assert!(index.remove(&block(1), index.put_sequence()).is_some());
        assert!(Index::new(2).put_sequence() > index.put_sequence() + (1 << 39));
    }

    #[test]
    fn a_block_that_a_deletion_spares_is_announced_again() {
        let mut index = Index::new(1);
        index.insert(block(1), PLACE, (5, 5));
        let (ticket, fresh) = index.start_sync();
        index.finish_sync(ticket, fresh);
        assert_eq!(index.take_changes().unwrap().added.len(), 1);
        let decided = index.put_sequence();
        index.put_again(&block(1));
        assert_eq!(index.take_changes(), Some(Changes::default()), "the manager knows that it is here");
        index.remove(&block(1), decided);
        let added = index.take_changes().unwrap().added;
        assert_eq!(added.iter().map(|stored| stored.block).collect::<Vec<_>>(), [block(1)]);
    }

    #[test]
    fn what_a_receipt_is_given_for_outlives_older_deletions_and_what_is_missing_is_told() {
        let mut index = Index::new(1);
        assert_eq!(index.restore(&record(1, 0)), None);
        index.insert(block(2), PLACE, (5, 5));
        let decided = index.put_sequence();
        let (sequence, all_durable) = index.touch(&[block(1), block(2), block(3)]);
        assert!(sequence > decided && !all_durable);
        assert_eq!(index.durable(&[block(1), block(2), block(3)]).len(), 1);
        let (ticket, fresh) = index.start_sync();
        index.finish_sync(ticket, fresh);
        assert_eq!(index.take_changes().unwrap().removed, [block(3)]);
        assert!(index.remove(&block(1), decided).is_none() && index.remove(&block(2), decided).is_none());
        assert!(index.touch(&[block(1), block(2)]).1);
        assert_eq!(index.durable(&[block(1), block(2), block(3)]).len(), 2);
        assert!(
            index.remove(&block(2), sequence).is_none() && index.remove(&block(2), sequence + 1).is_some()
        );
    }

    #[test]
    fn a_block_is_announced_once_it_is_durable_and_not_before() {
        let mut index = Index::new(1);
        index.insert(block(1), PLACE, (5, 5));
        let (ticket, fresh) = index.start_sync();
        index.insert(block(2), PLACE, (5, 5));
        assert_eq!(index.take_changes(), Some(Changes::default()));
        index.finish_sync(ticket, fresh);
        assert!(index.is_durable(&block(1)) && !index.is_durable(&block(2)));
        let changes = index.take_changes().unwrap();
        assert_eq!(changes.added.iter().map(|stored| stored.block).collect::<Vec<_>>(), [block(1)]);
        index.return_changes(changes);
        index.remove(&block(1), u64::MAX);
        let changes = index.take_changes().unwrap();
        assert_eq!((changes.added.len(), changes.removed), (0, vec![block(1)]));
    }

    #[test]
    fn a_removal_that_was_not_heard_gives_way_to_a_later_put() {
        let mut index = Index::new(1);
        assert_eq!(index.restore(&record(1, 0)), None);
        index.set_aside(&block(1), PLACE);
        let lost = index.take_changes().unwrap();
        assert_eq!((lost.removed.len(), lost.damaged), (1, 1));
        index.insert(block(1), PLACE, (5, 5));
        let (ticket, fresh) = index.start_sync();
        index.finish_sync(ticket, fresh);
        index.return_changes(lost);
        let changes = index.take_changes().unwrap();
        assert_eq!((changes.added.len(), changes.removed.len()), (1, 0));
    }
}
