//! A benefactor of a life: its store and service, and a link to the manager in small steps.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use stdchk_benefactor::memory::Memory;
use stdchk_benefactor::service::Benefactor;
use stdchk_benefactor::store::{Donation, Store};
use stdchk_model::message::benefactor::{BenefactorLoad, BenefactorReply, BenefactorRequest};
use stdchk_model::message::manager::{BenefactorSecret, ManagerRequest, Registration};
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, ChunkRef, Encoding, Failure, Incarnation, Receipt, ReceiptKey,
};
use stdchk_net::{BufferPool, Bytes, Service};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const DONATED_BYTES: u64 = 1 << 40;

pub struct Node {
    place: TempDir,
    /// What a power loss leaves.
    durable: TempDir,
    pub id: Option<BenefactorId>,
    pub service: Option<Arc<Benefactor>>,
    /// It has registered with the present manager over the present connection and sent its inventory.
    pub connected: bool,
    /// What it has sent and the manager has not received.
    pub sent: Vec<ManagerRequest>,
    /// Deletions that it was ordered to make: blocks, and the sequence on which the order rests.
    pub deletions: Vec<(Vec<BlockId>, u64)>,
    /// Copies that it was ordered to make: block, and where to.
    pub copies: Vec<(BlockId, BenefactorId)>,
    pub durable_sequence: u64,
    /// What it had when it stopped.
    had: BTreeSet<BlockId>,
}

fn place() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

fn copy(from: &Path, to: &Path) {
    for name in ["segments", ""] {
        let (from, to) = (from.join(name), to.join(name));
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_file() {
                fs::remove_file(entry).unwrap();
            }
        }
        for entry in fs::read_dir(&from).into_iter().flatten().map(|entry| entry.unwrap().path()) {
            if entry.is_file() {
                fs::copy(&entry, to.join(entry.file_name().unwrap())).unwrap();
            }
        }
    }
}

impl Node {
    pub fn new(life: u64) -> Self {
        let (place, durable) = (place(), place());
        let mut node = Self {
            place,
            durable,
            id: None,
            service: None,
            connected: false,
            sent: Vec::new(),
            deletions: Vec::new(),
            copies: Vec::new(),
            durable_sequence: 0,
            had: BTreeSet::new(),
        };
        node.start(life);
        node
    }

    pub fn start(&mut self, life: u64) {
        let donation = Donation { donated_bytes: DONATED_BYTES, floor_bytes: 0 };
        let store = Store::open(&self.place.path().join("segments"), donation, 1 << 20).unwrap().0;
        let memory = Arc::new(Memory::open(self.place.path()));
        let key = ReceiptKey([u8::try_from(life % 251).unwrap(); 32]);
        self.service =
            Some(Benefactor::new(Arc::new(store), memory, BufferPool::new(1 << 20), Incarnation(life), key));
        self.keep_durable();
    }

    /// The process ends; with `power` so does what was not durable.
    pub fn stop(&mut self, power: bool) {
        if power {
            self.service = None;
            copy(self.durable.path(), self.place.path());
            self.start(0);
        }
        self.had = self.store().inventory().1.iter().map(|stored| stored.block).collect();
        // A process that is killed leaves what it has written, durable or not, and may be started again.
        self.service = None;
        self.disconnect();
        self.deletions.clear();
        self.copies.clear();
    }

    pub fn disconnect(&mut self) {
        self.connected = false;
        self.sent.clear();
    }

    pub fn store(&self) -> &Arc<Store> {
        self.service.as_ref().unwrap().store()
    }

    pub fn is_up(&self) -> bool {
        self.service.is_some()
    }

    /// What is on the disk now survives a loss of power.
    fn keep_durable(&self) {
        copy(self.place.path(), self.durable.path());
    }

    pub fn sync(&self) {
        if self.store().is_unsynced() {
            self.store().sync().unwrap();
            self.keep_durable();
        }
    }

    pub fn has_durable(&self, block: BlockId) -> bool {
        match &self.service {
            Some(service) => !service.store().durable(&[block]).is_empty(),
            None => self.had.contains(&block),
        }
    }

    pub fn blocks(&self) -> BTreeSet<BlockId> {
        match &self.service {
            Some(service) => service.store().inventory().1.iter().map(|stored| stored.block).collect(),
            None => self.had.clone(),
        }
    }

    fn ask(
        &self,
        request: BenefactorRequest,
        bytes: &[u8],
        runtime: &Runtime,
    ) -> Result<BenefactorReply, Failure> {
        let service = self.service.as_ref().unwrap();
        let mut payload = BufferPool::new(1 << 20).try_take(bytes.len()).unwrap();
        payload.copy_from_slice(bytes);
        let answer = runtime.block_on(service.handle(request, payload));
        answer.map(|(reply, _): (_, Bytes)| reply)
    }

    pub fn put(&self, bytes: &[u8], durable: bool, runtime: &Runtime) -> Option<Receipt> {
        let chunk = stdchk_model::ChunkId::of(bytes);
        let length = u32::try_from(bytes.len()).unwrap();
        let encoding = Encoding::plain(ChunkRef { id: chunk, length });
        let request = BenefactorRequest::Put { block: BlockId::plain(chunk), encoding, durable };
        let BenefactorReply::Stored { receipt, .. } = self.ask(request, bytes, runtime).unwrap() else {
            panic!("not an answer to a put")
        };
        if durable {
            self.keep_durable();
        }
        receipt
    }

    pub fn receipt(&self, blocks: Vec<BlockId>, runtime: &Runtime) -> Receipt {
        let request = BenefactorRequest::Sync { blocks, tell: false };
        let was_unsynced = self.store().is_unsynced();
        let BenefactorReply::Synced(receipt) = self.ask(request, &[], runtime).unwrap() else {
            panic!("not an answer to a sync")
        };
        if was_unsynced && !self.store().is_unsynced() {
            self.keep_durable();
        }
        receipt
    }

    /// A receipt that nothing stands behind: the disk was not asked.
    pub fn receipt_without_sync(&self, blocks: &[BlockId]) -> Receipt {
        let service = self.service.as_ref().unwrap();
        let (sequence, _) = self.store().touch(blocks);
        let stored = blocks.iter().map(|block| {
            let length = u32::try_from(super::world::CHUNK_BYTES).unwrap();
            stdchk_model::message::manager::StoredBlock {
                block: *block,
                plain_length: length,
                stored_length: length,
            }
        });
        Receipt::new(service.receipt_key(), service.incarnation(), sequence, stored.collect())
    }

    /// A receipt that is younger than every deletion, of blocks that are not touched.
    pub fn receipt_that_protects_nothing(&self, blocks: &[BlockId]) -> Receipt {
        let service = self.service.as_ref().unwrap();
        self.sync();
        Receipt::new(service.receipt_key(), service.incarnation(), u64::MAX, self.store().durable(blocks))
    }

    /// Tells the manager of blocks as durable that are not.
    pub fn announce_all(&mut self) {
        self.store().sync().unwrap(); // The index believes it, and a power loss takes them all the same.
    }

    pub fn remove(&self, blocks: &[BlockId], sequence: u64) {
        self.store().remove(blocks, sequence).unwrap();
    }

    // --- the link

    /// What it reports. The memory that others leave free differs from run to run, and the manager chooses by it.
    fn load(&self) -> BenefactorLoad {
        let load = self.service.as_ref().unwrap().load();
        BenefactorLoad { free_bytes: DONATED_BYTES - load.used_bytes, ..load }
    }

    pub fn registration(&self) -> ManagerRequest {
        let service = self.service.as_ref().unwrap();
        let registration = Registration {
            id: self.id,
            incarnation: service.incarnation(),
            address: "127.0.0.1:1".to_owned(),
            pid: 1,
            load: self.load(),
            remembered: None,
            put_sequence: self.store().put_sequence(),
            receipt_key: service.receipt_key().clone(),
        };
        // Each has a place of its own.
        let secret = ChunkId::of(self.place.path().as_os_str().as_encoded_bytes());
        registration.introduced(&BenefactorSecret(secret.0))
    }

    /// The inventory in parts of two blocks.
    pub fn inventory(&self) -> Vec<ManagerRequest> {
        self.sync();
        let (put_sequence, mut all) = self.store().inventory();
        // In an order that each life of a seed has.
        all.sort_by_key(|stored| stored.block);
        let mut parts: Vec<Vec<_>> = all.chunks(2).map(<[_]>::to_vec).collect();
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        let count = parts.len();
        let incarnation = self.service.as_ref().unwrap().incarnation();
        let part = |(index, blocks)| ManagerRequest::Inventory {
            id: self.id.unwrap(),
            incarnation,
            first: index == 0,
            last: index + 1 == count,
            blocks,
            put_sequence,
        };
        parts.into_iter().enumerate().map(part).collect()
    }

    /// A heartbeat, after a sync if one is due.
    pub fn heartbeat(&mut self, sync: bool) -> Option<ManagerRequest> {
        if sync {
            self.sync();
        }
        let service = self.service.as_ref().unwrap();
        let (put_sequence, changes) = service.store().take_changes();
        if sync {
            self.durable_sequence = put_sequence;
        }
        let mut changes = changes?;
        changes.added.sort_by_key(|stored| stored.block);
        changes.removed.sort();
        Some(ManagerRequest::Heartbeat {
            id: self.id.unwrap(),
            incarnation: service.incarnation(),
            load: self.load(),
            durable_sequence: self.durable_sequence,
            added: changes.added,
            removed: changes.removed,
            damaged: changes.damaged,
            copies_failed: Vec::new(),
            put_sequence,
        })
    }
}
