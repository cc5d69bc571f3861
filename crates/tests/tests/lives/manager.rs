//! The shell of the manager in a life: its store, requests and answers, collections.

use std::collections::BTreeSet;

use stdchk_manager::core::{Core, MapToRead, Now, Setting, Timing};
use stdchk_manager::store::{MemoryStore, Store as _};
use stdchk_model::message::manager::{Change, ManagerReply, ManagerRequest};
use stdchk_model::{BlockId, ChunkId, ChunkMap, Failure, OpId, PoolId};

use super::content::{Number, name};
use super::plant::Plant;
use super::world::World;

/// A marking that was begun and not swept behind.
pub struct Begun {
    generation: u32,
    unread: Vec<MapToRead>,
    /// What versions named when it began.
    named: BTreeSet<Number>,
}

/// A copy of the manager's store.
pub struct Backup {
    store: MemoryStore,
    start: u64,
    sequence: u64,
}

pub fn load(disk: &MemoryStore, start: u64, now: Now) -> Core {
    let timing = Timing {
        client_lease_ms: 1_500,
        benefactor_lease_ms: 2_000,
        benefactor_lost_ms: 4_000,
        garbage_age_ms: 3_000,
        collect_every_ms: 0,
    };
    let setting = Setting { new_pool: PoolId([7; 16]), owner: (0, 0), pid: 1, start, timing };
    Core::load(disk, setting, now).unwrap()
}

impl World {
    pub fn commit_store(&mut self) {
        let batch = self.core.take_changes();
        if self.plant == Plant::StoreLosesItsTail && !batch.is_empty() {
            self.earlier = Some(self.disk.copy());
        }
        self.disk.commit(&batch).unwrap();
        self.core.committed(self.disk.sequence());
    }

    pub fn ask(&mut self, request: ManagerRequest) -> Result<ManagerReply, Failure> {
        let answer = self.core.handle(request, self.now);
        self.commit_store();
        answer
    }

    /// A change of the namespace, asked for until there is an answer.
    pub fn change(&mut self, change: &Change) -> ManagerReply {
        self.operations += 1;
        loop {
            let id = OpId(self.operations.to_be_bytes());
            let request = ManagerRequest::Change { id, change: change.clone() };
            if self.one_in(20) {
                let _nobody_hears_it = self.core.handle(request, self.now);
                self.crash_in_commit();
            } else {
                let answer = self.ask(request);
                if !self.one_in(20) {
                    return answer.unwrap_or_else(|failure| panic!("{change:?} is refused: {failure:?}"));
                }
                self.note("the answer to a change is lost".to_owned());
                if self.one_in(3) {
                    self.restart_manager();
                }
            }
            if self.plant == Plant::RepeatedUnderAnotherName {
                self.operations += 1;
            }
        }
    }

    /// The manager is killed while it commits: nothing of it is durable, and nobody is told anything.
    pub fn crash_in_commit(&mut self) {
        if self.plant == Plant::HalfABatch {
            let batch = self.core.take_changes();
            let half = batch.changes().len() / 2;
            let mut first = stdchk_manager::store::Batch::default();
            for (key, record) in batch.changes().iter().take(half) {
                let (table, rest) = key.split_first().unwrap();
                let table = stdchk_manager::store::Table::of(*table).unwrap();
                match record {
                    Some(record) => first.put(table, rest, record.clone()),
                    None => first.remove(table, rest),
                }
            }
            self.disk.commit(&first).unwrap();
        }
        self.restart_manager();
    }

    /// The manager is killed and started again: what is not in its store is lost, and all connections are.
    pub fn restart_manager(&mut self) {
        self.note("the manager is killed and started again".to_owned());
        if let Some(earlier) = self.earlier.take() {
            self.disk = earlier;
        }
        self.begin_manager();
    }

    fn begin_manager(&mut self) {
        self.starts += 1;
        self.now.ms = 0;
        self.core = load(&self.disk, self.starts, self.now);
        self.commit_store();
        self.markings.clear();
        self.strays.clear();
        for node in &mut self.nodes {
            node.disconnect();
            node.was_connected = false;
        }
        for client in &mut self.clients {
            client.held.clear();
        }
    }

    // --- copies of the store

    pub fn back_up(&mut self) {
        self.note("the manager's store is copied".to_owned());
        self.backup =
            Some(Backup { store: self.disk.copy(), start: self.starts, sequence: self.disk.sequence() });
    }

    /// Whether some benefactor remembers what the copy of the store lacks.
    fn is_backup_found_out(&self) -> bool {
        let Some(backup) = &self.backup else { return false };
        let lacks = |moment: stdchk_model::message::manager::Moment| {
            moment.start > backup.start || (moment.start == backup.start && moment.commit > backup.sequence)
        };
        self.nodes.iter().any(|node| node.remembered().is_some_and(lacks))
    }

    /// The copy of the store takes the place of the store for a while; then somebody notices, and puts the newer one back.
    pub fn set_manager_back(&mut self) {
        let tampered = matches!(self.plant, Plant::SetBackUnnoticed | Plant::MomentsAreForgotten);
        if self.backup.is_none() || !(self.is_backup_found_out() || tampered) {
            return;
        }
        self.note("an older copy takes the place of the manager's store".to_owned());
        let Some(backup) = self.backup.take() else { return };
        let newer = std::mem::replace(&mut self.disk, backup.store);
        self.begin_manager();
        for node in 0..self.nodes.len() {
            self.connect(node);
        }
        for _ in 0..8 {
            self.long_time();
            self.collect();
        }
        let refused = self.core.begin_marking(self.now).is_err();
        self.note("the newer store is put back".to_owned());
        self.disk = newer;
        self.begin_manager();
        self.check();
        assert!(refused, "nobody notices that the manager's store is an older copy");
    }

    // --- collection

    /// Begins a marking, also beside another as `stdchk gc` does, or sweeps behind one.
    pub fn collect(&mut self) {
        let wanted = self.core.marking_is_due(self.now) || self.one_in(8);
        if wanted && (self.markings.is_empty() || self.one_in(3)) {
            let named =
                if self.plant == Plant::SweepOfWhatIsYounger { self.named() } else { BTreeSet::new() };
            let Ok(marking) = self.core.begin_marking(self.now) else { return };
            let mut maps = marking.maps;
            maps.sort_by_key(|map| map.key);
            let generation = marking.generation;
            self.note(format!("marking {generation} begins, to read {} maps", maps.len()));
            let unread = maps.into_iter().filter(|map| self.below(2) == 0 || !self.read(generation, map));
            let unread = unread.collect::<Vec<_>>();
            self.markings.push(Begun { generation, unread, named });
        } else if !self.markings.is_empty() {
            let place = self.below(self.markings.len());
            let begun = self.markings.remove(place);
            self.sweep(&begun);
        }
    }

    fn sweep(&mut self, begun: &Begun) {
        for map in &begun.unread {
            let read = self.read(begun.generation, map);
            if !read && self.plant == Plant::UnreadMapIsEmpty {
                self.core.marked(begun.generation, map, &[]);
            }
        }
        match self.plant {
            Plant::SweepIgnoresSessions => {
                let named = self.named();
                self.delete_all_but(&named);
            }
            Plant::SweepOfWhatIsYounger => self.delete_all_but(&begun.named),
            Plant::SweepIgnoresContainers => self.let_containers_go(),
            Plant::EncodingsAddUp | Plant::FragmentsCountAsCopies => self.trim_too_much(),
            _ => {}
        }
        let swept = self.core.sweep(begun.generation, false, self.now).map_err(|failure| failure.code);
        self.commit_store();
        self.note(format!("a sweep behind marking {}: {swept:?}", begun.generation));
    }

    /// Reads a chunk map for a marking; false if nobody has it now.
    fn read(&mut self, generation: u32, map: &MapToRead) -> bool {
        let mut encoded = Vec::new();
        for (piece, at) in &map.pieces {
            let holders = self.nodes.iter_mut().filter(|node| node.is_up());
            let mut holders = holders.filter(|node| at.iter().any(|(_, at)| node.id == Some(at.id)));
            let runtime = &self.runtime;
            let found = holders.find_map(|node| {
                let bytes = node.get(BlockId::plain(piece.id), runtime)?;
                (ChunkId::of(&bytes) == piece.id).then_some(bytes)
            });
            let Some(found) = found else { return false };
            encoded.extend(found);
        }
        let chunks: Vec<ChunkId> =
            ChunkMap::decode(&encoded).unwrap().chunks().iter().map(|chunk| chunk.id).collect();
        self.core.marked(generation, map, &chunks);
        true
    }

    /// A collection that knows better than the manager.
    pub fn delete_all_but(&mut self, named: &BTreeSet<Number>) {
        for node in self.nodes.iter_mut().filter(|node| node.is_up()) {
            let gone: Vec<_> =
                node.blocks().into_iter().filter(|block| !named.contains(&name(block))).collect();
            let sequence = node.put_sequence();
            node.remove(&gone, sequence);
        }
    }

    /// The manager believes that blocks are where a client says, though no benefactor has said so.
    pub fn believe(&mut self, claims: &[(BlockId, usize)]) {
        for (block, node) in claims {
            if self.nodes[*node].is_up() && self.nodes[*node].connected {
                let report = self.nodes[*node].false_report(&[*block]);
                let _commands_are_lost = self.ask(report);
            }
        }
    }
}
