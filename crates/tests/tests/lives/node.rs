//! A benefactor of a life: its store and service, and a link to the manager in small steps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use stdchk_benefactor::journal::Kept;
use stdchk_benefactor::memory::Memory;
use stdchk_benefactor::service::Benefactor;
use stdchk_benefactor::store::{Donation, Store};
use stdchk_model::message::Asked;
use stdchk_model::message::benefactor::{
    BenefactorLoad, BenefactorReply, BenefactorRequest, BlockState, Check, Decoded, FailedCopy, Goes, Make,
    Notice, OwnerWish, Seen,
};
use stdchk_model::message::handshake::{MemberId, Role};
use stdchk_model::message::manager::{
    BenefactorSecret, ManagerRequest, Moment, Registration, StoredBlock, Term,
};
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, Encoding, ErrorCode, Failure, Incarnation, Maker, Receipt, ReceiptKey,
    Signed, Tier,
};
use stdchk_net::Caller;
use stdchk_net::{BufferPool, Bytes, Service};
use tokio::runtime::Runtime;

use super::content::{self, Number};
use super::disk::Disk;
use super::false_words::{Lies, Served};
use super::plant::Plant;

/// Segments are full soon, so that there are some.
const SEGMENT_BYTES: u64 = 6 * 4096;
const PLENTY_BYTES: u64 = 1 << 40;
/// What a small benefactor has: most of what there is doesn't fit.
const FEW_BYTES: u64 = 7 * 4096;

/// What owners want to stay free.
const FLOOR_BYTES: u64 = 4 * 4096;

/// What a benefactor was ordered to do for others, or will do for them.
pub enum Work {
    /// Blocks are to be made of others.
    Make(Make),
    /// An encoding is to be decoded.
    Check(Check),
    /// A copy that is here is to be put at another benefactor.
    Copy(BlockId, BenefactorId),
    /// A block that was made is to be put at another benefactor.
    Put(BlockId, Encoding, Bytes, BenefactorId),
}

pub struct Node {
    plant: Plant,
    /// Where it keeps blocks.
    pub tier: Tier,
    /// Where others reach it.
    pub address: String,
    pub disk: Disk,
    donated_bytes: u64,
    /// What the owner's own files leave of the disk for what is stored and what is to stay free.
    left_bytes: u64,
    pub id: Option<BenefactorId>,
    /// Number of its last registration.
    pub registration: u64,
    /// Of the manager with which it registered last.
    term: Option<Term>,
    /// Proves to the manager that it is this benefactor.
    secret: BenefactorSecret,
    service: Option<Arc<Benefactor>>,
    life: u64,
    /// It has registered with the present manager over the present connection.
    pub connected: bool,
    /// It has registered in this life with the present manager before.
    pub was_connected: bool,
    /// The present connection is the first of this life.
    pub is_new_life: bool,
    /// What its owner wishes: a file in its folder.
    pub wish: OwnerWish,
    /// Its machine is said to go soon.
    pub goes: bool,
    /// The pool has forgotten it, as its owner wished: it doesn't start until the owner wishes otherwise.
    pub has_left: bool,
    /// It is out of order and doesn't start.
    pub is_broken: bool,
    /// What it has sent and the manager has not received.
    pub sent: Vec<ManagerRequest>,
    /// Deletions that it was ordered to make: blocks, and the sequence on which the order rests.
    pub deletions: Vec<(Vec<BlockId>, u64)>,
    /// What it is to make, in this order.
    pub works: VecDeque<Work>,
    /// Blocks that it could not make, or not put at others.
    pub copies_failed: Vec<FailedCopy>,
    /// Encodings of which it gathered enough, and what they make.
    pub decoded: Vec<Decoded>,
    /// What it saw of others before blocks of its own may go.
    pub seen: Vec<Seen>,
    /// Blocks under whose names it serves the bytes of another.
    pub lies: BTreeMap<BlockId, BlockId>,
    /// What it says to the manager that isn't so.
    pub lies_to_manager: Lies,
    /// Blocks that it gave receipts for and hasn't, since somebody asked.
    pub not_stored: Vec<BlockId>,
    durable_sequence: u64,
    /// What it had when it stopped.
    had: BTreeSet<BlockId>,
    /// Blocks that it ever had.
    ever: BTreeSet<BlockId>,
    /// The inventory that it took for the connection before.
    stale: Vec<ManagerRequest>,
    /// Blocks that it hides from the manager to be gone.
    hidden: u64,
}

/// What a data directory that is made in this life draws.
fn secret(life: u64) -> BenefactorSecret {
    BenefactorSecret(ChunkId::of(&life.to_le_bytes()).0)
}

impl Node {
    pub fn new(life: u64, small: bool, tier: Tier, plant: Plant) -> Self {
        let mut node = Self {
            plant,
            tier,
            address: format!("127.0.0.1:{life}"),
            disk: Disk::new(),
            donated_bytes: if small { FEW_BYTES } else { PLENTY_BYTES },
            left_bytes: PLENTY_BYTES,
            id: None,
            registration: 0,
            term: None,
            secret: secret(life),
            service: None,
            life,
            connected: false,
            was_connected: false,
            is_new_life: true,
            wish: OwnerWish::Serve,
            goes: false,
            has_left: false,
            is_broken: false,
            sent: Vec::new(),
            deletions: Vec::new(),
            works: VecDeque::new(),
            copies_failed: Vec::new(),
            decoded: Vec::new(),
            seen: Vec::new(),
            lies: BTreeMap::new(),
            lies_to_manager: Lies::default(),
            not_stored: Vec::new(),
            durable_sequence: 0,
            had: BTreeSet::new(),
            ever: BTreeSet::new(),
            stale: Vec::new(),
            hidden: 0,
        };
        node.start(life);
        node
    }

    pub fn start(&mut self, life: u64) {
        self.life = life;
        self.open();
    }

    /// The manager has told it its number.
    pub fn is_registered(&mut self, id: BenefactorId) {
        self.id = Some(id);
        if let Some(service) = &self.service {
            service.kept().is_of(id);
        }
    }

    fn open(&mut self) {
        let beyond = if self.plant == Plant::DonationIgnored { PLENTY_BYTES } else { 0 };
        let donation = Donation { donated_bytes: self.donated_bytes + beyond, floor_bytes: FLOOR_BYTES };
        let store = Store::open(&self.disk.segments(), donation, SEGMENT_BYTES).unwrap().0;
        let memory = Arc::new(Memory::open(self.disk.path()));
        let kept = Arc::new(Kept::open(self.disk.path()));
        self.id.into_iter().for_each(|id| kept.is_of(id));
        let key = ReceiptKey([u8::try_from(self.life % 251).unwrap(); 32]);
        let buffers = BufferPool::new(1 << 20);
        self.service =
            Some(Benefactor::new(Arc::new(store), (memory, kept), buffers, Incarnation(self.life), key));
        self.decide(self.wish);
        self.set_going(self.goes);
        self.disk.opened();
        self.look_at_disk();
    }

    /// The files of its owner grow or go: so much room is left for blocks; `None`: all that was donated.
    pub fn leave_room(&mut self, bytes: Option<u64>) {
        self.left_bytes = bytes.map_or(PLENTY_BYTES, |bytes| bytes + FLOOR_BYTES);
        self.look_at_disk();
        if self.plant == Plant::GivesBackByItself && self.is_up() && self.owes() > 0 {
            let (gone, sequence) = (self.blocks(), self.put_sequence());
            self.remove(&gone.into_iter().collect::<Vec<_>>(), sequence);
        }
    }

    /// What is free on the disk is what the owner's files and the blocks leave.
    fn look_at_disk(&self) {
        if let Some(service) = &self.service {
            let free = self.left_bytes.saturating_sub(service.load().used_bytes);
            service.store().limit_free_bytes(free);
        }
    }

    /// Bytes of blocks that the owner's files have no room for.
    pub fn owes(&self) -> u64 {
        self.look_at_disk();
        self.service.as_ref().map_or(0, |service| service.load().owed_bytes)
    }

    /// Its owner decides.
    pub fn decide(&mut self, wish: OwnerWish) {
        (self.wish, self.has_left) = (wish, false);
        if let Some(service) = &self.service {
            service.set_wish(wish);
        }
    }

    /// Its machine is said to go soon, or no longer.
    pub fn set_going(&mut self, goes: bool) {
        self.goes = goes;
        if let Some(service) = &self.service {
            service.set_notice(goes.then(Notice::default));
        }
    }

    /// What the manager says of a machine that goes.
    pub fn is_told(&self, left_to_do: Goes) {
        if let Some(service) = &self.service {
            service.set_left_to_do(left_to_do);
        }
    }

    /// The pool has forgotten it: it ends. Its disk keeps its number, its secret and what a manager has signed for it, unless the
    /// owner takes the disk.
    pub fn leave(&mut self, without_disk: bool) {
        self.stop(None);
        if without_disk {
            self.replace_disk();
        }
        self.has_left = true;
    }

    pub fn is_small(&self) -> bool {
        self.donated_bytes < PLENTY_BYTES
    }

    /// The process ends, and leaves what it has written. With a loss of power, whose chances `power` decides, what was not
    /// durable may be gone.
    pub fn stop(&mut self, power: Option<u64>) {
        if let Some(seed) = power {
            self.service = None;
            self.disk.lose_power(seed);
            if self.plant == Plant::NamesNotSynced {
                self.disk.lose_newest_segment();
            }
            self.open();
        }
        self.had = self.all_blocks();
        self.service = None;
        self.hidden = 0;
        self.disconnect();
        self.deletions.clear();
        self.works.clear();
        self.lies.clear();
        self.copies_failed.clear();
        self.decoded.clear();
        self.seen.clear();
    }

    /// Its disk is another one: nothing is there.
    pub fn replace_disk(&mut self) {
        self.disk.wipe();
        self.left_bytes = PLENTY_BYTES;
        self.had.clear();
        (self.id, self.term) = (None, None);
        self.decide(OwnerWish::Serve);
        self.secret = secret(self.life + (1 << 32));
    }

    /// Its disk holds what it held once.
    pub fn set_back(&mut self) {
        self.disk.set_back();
        self.decide(OwnerWish::Serve);
        self.open();
        self.had = self.all_blocks();
        self.service = None;
    }

    fn all_blocks(&self) -> BTreeSet<BlockId> {
        let ever: Vec<BlockId> = self.ever.iter().copied().collect();
        // Not by an inventory, after which the store believes that the manager has heard all.
        self.store().durable(&ever).iter().map(|stored| stored.block).collect()
    }

    pub fn disconnect(&mut self) {
        self.connected = false;
        self.sent.clear();
    }

    fn store(&self) -> &Arc<Store> {
        self.service.as_ref().unwrap().store()
    }

    pub fn is_up(&self) -> bool {
        self.service.is_some()
    }

    fn sync(&mut self) {
        if self.store().is_unsynced() {
            self.store().sync().unwrap();
            self.disk.keep_all();
        }
    }

    /// The durable blocks that it has.
    pub fn blocks(&self) -> BTreeSet<BlockId> {
        if self.is_up() { self.all_blocks() } else { self.had.clone() }
    }

    /// Whether it takes no more than it was given.
    pub fn keeps_within_its_donation(&self) -> bool {
        self.service.as_ref().is_none_or(|service| service.load().used_bytes <= self.donated_bytes)
    }

    // --- the service

    fn ask(
        &mut self,
        request: BenefactorRequest,
        bytes: &[u8],
        runtime: &Runtime,
    ) -> Result<(BenefactorReply, Bytes), Failure> {
        self.asked_by(Caller::of_this_machine(Role::Client), request, bytes, runtime)
    }

    fn asked_by(
        &mut self,
        caller: Caller,
        request: BenefactorRequest,
        bytes: &[u8],
        runtime: &Runtime,
    ) -> Result<(BenefactorReply, Bytes), Failure> {
        self.look_at_disk();
        let service = self.service.as_ref().unwrap();
        let mut payload = BufferPool::new(1 << 20).try_take(bytes.len()).unwrap();
        payload.copy_from_slice(bytes);
        let remembered = service.memory().remembered();
        let request = Asked { request, with: None };
        let answer = runtime.block_on(service.handle(caller, request, payload));
        let is_changed = service.memory().remembered() != remembered;
        self.disk.keep_first_segment();
        if is_changed {
            self.disk.keep_memory();
        }
        answer
    }

    /// Others keep its disk busy for this share of time.
    pub fn is_loaded(&self, load: f64) {
        self.service.as_ref().unwrap().measured(Some(load), true);
    }

    /// Stores a block that a client brings over the network, which codes as this one, or that a process of the machine brings, or a benefactor
    /// that was ordered to. There may be no room, or it may be busy.
    pub fn put(
        &mut self,
        by: Option<Maker>,
        (block, encoding): (BlockId, Encoding),
        stored: &[u8],
        (durable, insists): (bool, bool),
        runtime: &Runtime,
    ) -> Result<Option<Receipt>, Failure> {
        let believed = match self.plant {
            Plant::DurablePutWithoutSync => durable,
            Plant::KnownPutIsBelieved => durable && self.store().find(block).is_ok(),
            _ => false,
        };
        if self.lies_to_manager.stores_nothing {
            return Ok(durable.then(|| self.receipt_for_nothing(&[block])));
        }
        self.ever.insert(block);
        let request = BenefactorRequest::Put { block, encoding, durable: durable && !believed, insists };
        let mut caller = Caller::of_this_machine(Role::Client);
        if let Some(maker) = by {
            (caller.member, caller.maker) = (Some(MemberId([maker.0[0]; 16])), maker);
        }
        let (BenefactorReply::Stored { receipt, .. }, _) = self.asked_by(caller, request, stored, runtime)?
        else {
            panic!("not an answer to a put")
        };
        if believed {
            return Ok(Some(self.receipt_without_sync(&[block])));
        }
        if durable {
            self.disk.keep_all();
        }
        Ok(receipt)
    }

    pub fn receipt(&mut self, blocks: Vec<BlockId>, runtime: &Runtime) -> Receipt {
        match self.plant {
            Plant::ReceiptWithoutSync => return self.receipt_without_sync(&blocks),
            Plant::ReceiptThatProtectsNothing => return self.receipt_that_protects_nothing(&blocks),
            _ if self.lies_to_manager.stores_nothing => return self.receipt_for_nothing(&blocks),
            _ => {}
        }
        let request = BenefactorRequest::Sync { blocks: blocks.clone(), tell: false };
        let was_unsynced = self.store().is_unsynced();
        let Ok((BenefactorReply::Synced(receipt), _)) = self.ask(request, &[], runtime) else {
            panic!("not an answer to a sync")
        };
        if was_unsynced && !self.store().is_unsynced() {
            self.disk.keep_all();
        }
        match self.plant {
            Plant::ReceiptOfAnotherEncoding => self.receipt_of_another_encoding(&receipt, &blocks),
            _ => receipt,
        }
    }

    /// A receipt that looks at the chunk of a block alone.
    fn receipt_of_another_encoding(&self, receipt: &Receipt, blocks: &[BlockId]) -> Receipt {
        let here = self.blocks();
        let is_here = |block: &&BlockId| here.iter().any(|own| own.chunk == block.chunk);
        let named = blocks.iter().filter(is_here).map(|block| stored(*block)).collect();
        let key = self.service.as_ref().unwrap().receipt_key();
        Receipt::new(key, receipt.incarnation, receipt.sequence, named)
    }

    /// A receipt for blocks that may not be here.
    fn receipt_for_nothing(&mut self, blocks: &[BlockId]) -> Receipt {
        self.not_stored.extend(blocks);
        self.receipt_without_sync(blocks)
    }

    /// A receipt that nothing stands behind: the disk was not asked.
    fn receipt_without_sync(&self, blocks: &[BlockId]) -> Receipt {
        let service = self.service.as_ref().unwrap();
        let (sequence, _) = self.store().touch(blocks);
        let stored = blocks.iter().map(|block| stored(*block));
        Receipt::new(service.receipt_key(), service.incarnation(), sequence, stored.collect())
    }

    /// A receipt that is younger than every deletion, of blocks that are not touched.
    fn receipt_that_protects_nothing(&mut self, blocks: &[BlockId]) -> Receipt {
        self.sync();
        let service = self.service.as_ref().unwrap();
        Receipt::new(service.receipt_key(), service.incarnation(), u64::MAX, self.store().durable(blocks))
    }

    /// Serves a block; the reader compares it with its name.
    pub fn serve(&mut self, block: BlockId, runtime: &Runtime) -> Option<(Encoding, Bytes)> {
        let (reply, bytes) = self.ask(BenefactorRequest::Get { block }, &[], runtime).ok()?;
        let BenefactorReply::Block { encoding } = reply else { panic!("not an answer to a get") };
        self.serves(block, encoding, bytes)
    }

    /// What it serves for a block that it has read.
    fn serves(&self, block: BlockId, mut encoding: Encoding, bytes: Bytes) -> Option<(Encoding, Bytes)> {
        let bytes = match self.lies_to_manager.serves {
            None => match self.lies.get(&block) {
                Some(other) => Bytes::from_static(content::stored(other)),
                None => bytes,
            },
            Some(Served::Nothing) => return None,
            Some(Served::Noise) => Bytes::from(vec![0xa5; bytes.len()]),
            Some(Served::Empty) => Bytes::new(),
            Some(Served::AnotherEncoding) => {
                encoding.plain_length ^= 1;
                bytes
            }
        };
        Some((encoding, bytes))
    }

    /// Its answer to the question whether it has a block.
    pub fn proof(&mut self, block: BlockId, key: [u8; 32], runtime: &Runtime) -> Option<[u8; 32]> {
        match self.ask(BenefactorRequest::Prove { block, key }, &[], runtime) {
            Ok((BenefactorReply::Proof(told), _)) => Some(told),
            _ => None,
        }
    }

    /// Reads a block for the benefactor itself, which sets it aside if it is damaged.
    pub fn read(&mut self, block: BlockId, runtime: &Runtime) -> Option<(Encoding, Bytes)> {
        let service = Arc::clone(self.service.as_ref().unwrap());
        match runtime.block_on(service.get(block)) {
            Ok((encoding, bytes)) => self.serves(block, encoding, bytes),
            Err(failure) => {
                if failure.code == ErrorCode::Damaged {
                    self.disk.keep_all();
                }
                None
            }
        }
    }

    /// Looks at a block, and sets it aside if it is damaged.
    pub fn verify(&mut self, block: BlockId, runtime: &Runtime) -> BlockState {
        let request = BenefactorRequest::Verify { blocks: vec![block] };
        let Ok((BenefactorReply::Verified { states }, _)) = self.ask(request, &[], runtime) else {
            panic!("not an answer to a verification")
        };
        if states[0] == BlockState::Damaged {
            self.disk.keep_all();
        }
        states[0]
    }

    /// The disk fails to read once. A store looks twice, so nothing comes of it.
    pub fn read_fails_once(&mut self, number: Number, runtime: &Runtime) {
        let here = self.blocks().into_iter().find(|block| content::name(block) == number);
        if self.plant == Plant::OneBadReadSetsAside
            && let Some(block) = here
            && self.disk.flip(content::stored(&block))
        {
            self.verify(block, runtime);
        }
    }

    /// Removes what of `blocks` was not put since `sequence`.
    pub fn remove(&mut self, blocks: &[BlockId], sequence: u64) {
        let sequence = if self.plant == Plant::DeletionOfWhatWasPutAgain { u64::MAX } else { sequence };
        self.store().remove(blocks, sequence).unwrap();
        // The marks of removal are durable before the space is free.
        self.disk.keep_all();
    }

    pub fn put_sequence(&self) -> u64 {
        self.store().put_sequence()
    }

    // --- the link

    /// What it reports. The memory that others leave free differs from run to run, and the manager chooses by it.
    fn load(&self) -> BenefactorLoad {
        self.look_at_disk();
        let load = self.service.as_ref().unwrap().load();
        let room = self.donated_bytes.min(self.left_bytes - FLOOR_BYTES);
        let has_plenty = room >= PLENTY_BYTES - FLOOR_BYTES && load.free_bytes > 0;
        let free_bytes = if has_plenty { room.saturating_sub(load.used_bytes) } else { load.free_bytes };
        let owed_bytes = if self.plant == Plant::OwesNothing { 0 } else { load.owed_bytes };
        // What it claims, it counts.
        let blocks = load.blocks + self.hidden + self.lies_to_manager.claims.len() as u64;
        if let Some((free_bytes, blocks)) = self.lies_to_manager.load {
            return BenefactorLoad { free_bytes, blocks, ..load };
        }
        BenefactorLoad { donated_bytes: self.donated_bytes, free_bytes, blocks, owed_bytes, ..load }
    }

    /// The moment of the manager's history that it remembers.
    pub fn remembered(&self) -> Option<Signed<Moment>> {
        self.service.as_ref().and_then(|service| service.memory().remembered())
    }

    /// The manager says what moment is to be remembered.
    pub fn told(&mut self, moment: Option<Signed<Moment>>, at_once: bool) {
        if self.plant == Plant::MomentsAreForgotten {
            return;
        }
        let memory = Arc::clone(self.service.as_ref().unwrap().memory());
        memory.registered(moment);
        if at_once {
            memory.make_current().unwrap();
            self.disk.keep_memory();
        }
    }

    /// The manager that it registered with has this term.
    pub fn led_by(&mut self, term: Signed<Term>) {
        self.term = Some(term.what);
        self.service.as_ref().unwrap().memory().led_by(term).unwrap();
        self.disk.keep_memory();
    }

    /// The term of the manager that it registered with last.
    pub fn term(&self) -> Term {
        self.term.unwrap()
    }

    /// Whether it obeys a manager of this term.
    pub fn obeys(&self, term: Term) -> bool {
        self.service.as_ref().unwrap().memory().obeys(term)
    }

    /// Number of its life.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// What it answers another benefactor that shows no permit.
    pub fn asked_without_permit(
        &self,
        request: BenefactorRequest,
        runtime: &Runtime,
    ) -> Result<(BenefactorReply, Bytes), Failure> {
        let role = match self.plant {
            Plant::PermitsAreNotAsked => Role::Client,
            _ => Role::Benefactor,
        };
        let service = self.service.as_ref().unwrap();
        let (request, payload) =
            (Asked { request, with: None }, BufferPool::new(1 << 20).try_take(0).unwrap());
        runtime.block_on(service.handle(Caller::of_this_machine(role), request, payload))
    }

    pub fn registration(&self) -> ManagerRequest {
        let service = self.service.as_ref().unwrap();
        let remembered = self.remembered().filter(|_| self.plant != Plant::SetBackUnnoticed);
        let lies = &self.lies_to_manager;
        let term = service.memory().term();
        // It can't sign what no manager has told it.
        let moment = lies.moment.map(Signed::not_yet);
        let beyond = |term: Signed<Term>| match lies.term_beyond {
            0 => term,
            more => Signed::not_yet(Term { number: term.number.saturating_add(more), ..term.what }),
        };
        let registration = Registration {
            id: self.id,
            incarnation: service.incarnation(),
            address: self.address.clone(),
            pid: 1,
            load: self.load(),
            remembered: moment.or(remembered),
            put_sequence: self.store().put_sequence(),
            receipt_key: service.receipt_key().clone(),
            term: term.map(beyond),
            machine: None,
            labels: Vec::new(),
            tier: if self.plant == Plant::MemoryIsCalledDisk { Tier::Disk } else { self.tier },
        };
        registration.introduced(&self.secret)
    }

    /// It sends that it takes its inventory now, and takes it when that is answered.
    pub fn begin_inventory(&mut self) {
        let (id, registration) = (self.id.unwrap(), self.registration);
        self.sent = vec![ManagerRequest::BeginInventory { id, registration }];
    }

    /// Takes the inventory, to be sent now.
    pub fn take_inventory(&mut self) {
        let fresh = self.inventory();
        self.sent = match self.plant {
            Plant::StaleInventory => {
                let mut stale = std::mem::replace(&mut self.stale, fresh.clone());
                for part in &mut stale {
                    let ManagerRequest::Inventory { registration, .. } = part else { unreachable!() };
                    *registration = self.registration;
                }
                if self.is_new_life || stale.is_empty() { fresh } else { stale }
            }
            _ => fresh,
        };
    }

    /// The inventory in parts of two blocks.
    fn inventory(&mut self) -> Vec<ManagerRequest> {
        self.sync();
        let (put_sequence, mut all) = self.store().inventory();
        self.mix_up(&mut all);
        all.extend(self.lies_to_manager.claims.iter().cloned());
        // In an order that each life of a seed has.
        all.sort_by_key(|stored| stored.block);
        let mut parts: Vec<Vec<_>> = all.chunks(2).map(<[_]>::to_vec).collect();
        if parts.is_empty() {
            parts.push(Vec::new());
        }
        let count = parts.len();
        let registration = self.registration;
        let part = |(index, blocks)| ManagerRequest::Inventory {
            id: self.id.unwrap(),
            registration,
            last: index + 1 == count,
            blocks,
            put_sequence,
        };
        parts.into_iter().enumerate().map(part).collect()
    }

    fn mix_up(&self, reported: &mut [StoredBlock]) {
        for stored in reported.iter_mut().filter(|_| self.plant == Plant::FragmentsMixedUp) {
            stored.block.index = (stored.block.index + 1) % stored.block.encoding.code.blocks();
        }
    }

    /// A heartbeat, after a sync if one is due.
    pub fn heartbeat(&mut self, sync: bool) -> Option<ManagerRequest> {
        if sync {
            self.sync();
        } else if self.plant == Plant::AnnouncedBeforeDurable {
            // The index believes it, and a power loss takes them all the same.
            self.store().sync().unwrap();
        }
        let service = Arc::clone(self.service.as_ref().unwrap());
        let (put_sequence, changes) = service.store().take_changes();
        if sync {
            self.durable_sequence = put_sequence;
        }
        let mut changes = changes?;
        self.mix_up(&mut changes.added);
        changes.added.extend(self.lies_to_manager.claims.iter().cloned());
        self.copies_failed.extend(self.lies_to_manager.failures.iter().cloned());
        changes.added.sort_by_key(|stored| stored.block);
        changes.removed.sort();
        if self.plant == Plant::PhantomsAreKept {
            self.hidden += changes.removed.len() as u64;
            changes.removed.clear();
        }
        Some(self.report(changes.added, changes.removed, changes.damaged, put_sequence))
    }

    fn report(
        &mut self,
        added: Vec<StoredBlock>,
        removed: Vec<BlockId>,
        damaged: u32,
        put_sequence: u64,
    ) -> ManagerRequest {
        ManagerRequest::Heartbeat {
            id: self.id.unwrap(),
            registration: self.registration,
            load: self.load(),
            durable_sequence: self.durable_sequence,
            added,
            removed,
            damaged,
            copies_failed: std::mem::take(&mut self.copies_failed),
            decoded: std::mem::take(&mut self.decoded),
            seen: std::mem::take(&mut self.seen),
            disk: None,
            put_sequence,
        }
    }

    /// A report of blocks that it may not have.
    pub fn false_report(&mut self, blocks: &[BlockId]) -> ManagerRequest {
        let sequence = self.put_sequence();
        let added = blocks.iter().map(|block| stored(*block)).collect();
        self.report(added, Vec::new(), 0, sequence)
    }
}

pub fn stored(block: BlockId) -> StoredBlock {
    let stored_length = u32::try_from(content::stored(&block).len()).unwrap();
    StoredBlock { block, plain_length: content::encoding(&block).plain_length, stored_length }
}
