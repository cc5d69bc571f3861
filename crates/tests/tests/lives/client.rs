//! A client of a life: it writes a file of a few chunks, one request at a time, and commits.

use std::collections::{BTreeMap, BTreeSet};

use stdchk_model::message::manager::{ManagerReply, ManagerRequest, VersionState};
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, ChunkMap, ChunkRef, ClientId, ErrorCode, Extent, Failure, Ino, MapRoot,
    Receipt, SessionId, Source,
};

use super::world::{CHUNK_BYTES, Plant, World, content};

/// What a client is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    Idle,
    Open,
    /// Ask where these chunks are, as many as were dealt with.
    Ask,
    Put,
    Sync,
    Commit,
    Close,
}

pub struct Client {
    pub id: ClientId,
    pub session: SessionId,
    pub step: Step,
    pub file: usize,
    pub ino: Ino,
    /// The chunks of the file, by number.
    pub chunks: Vec<u8>,
    /// Where each of them is, as far as it knows.
    places: BTreeMap<u8, BTreeSet<BenefactorId>>,
    /// Of whom it has receipts.
    secured: BTreeMap<u8, BTreeSet<BenefactorId>>,
    receipts: Vec<(BenefactorId, Receipt)>,
    /// What it has stored after its session asked for it: no collection may take that while the session is known.
    pub held: BTreeSet<(u8, BenefactorId)>,
    /// A request that the manager has not received, or whose answer is not there.
    pub sent: Option<ManagerRequest>,
    /// It gives no signs of life.
    pub silent: bool,
    /// It believes that what it knew before its session was forgotten still holds, stores without asking first, and commits without
    /// receipts. The manager must be safe from that.
    careless: bool,
}

impl Client {
    pub fn new(number: u8) -> Self {
        Self {
            id: ClientId([number; 16]),
            session: SessionId::default(),
            step: Step::Idle,
            file: 0,
            ino: Ino(0),
            chunks: Vec::new(),
            places: BTreeMap::new(),
            secured: BTreeMap::new(),
            receipts: Vec::new(),
            held: BTreeSet::new(),
            sent: None,
            silent: false,
            careless: false,
        }
    }

    /// Begins a file.
    pub fn begin(&mut self, session: SessionId, file: usize, ino: Ino, chunks: Vec<u8>, careless: bool) {
        *self = Self { id: self.id, silent: self.silent, careless, ..Self::new(0) };
        (self.session, self.step, self.file, self.ino, self.chunks) =
            (session, Step::Open, file, ino, chunks);
    }

    /// All that it has is to be looked at anew: its session was forgotten, or a receipt refused.
    fn forget_receipts(&mut self) {
        self.secured.clear();
        self.receipts.clear();
    }

    /// Its session is to be opened again.
    pub fn forgotten(&mut self) {
        if !self.careless {
            self.forget_receipts();
        }
        self.held.clear();
        self.step = Step::Open;
    }

    pub fn root(&self) -> MapRoot {
        root_of(&self.chunks)
    }

    /// The next request to the manager; `None`: the next thing is another.
    fn request(&self) -> Option<ManagerRequest> {
        let session = self.session;
        Some(match self.step {
            Step::Open => ManagerRequest::OpenSession { session, client: self.id, ino: self.ino },
            Step::Ask => {
                let chunks = self.chunks.iter().map(|number| ChunkId::of(&content(*number))).collect();
                ManagerRequest::Known { session, chunks, room_bytes: 0 }
            }
            Step::Commit => ManagerRequest::Commit {
                session,
                root: self.root(),
                size: self.chunks.len() as u64 * CHUNK_BYTES as u64,
                mtime: 1,
                stored_bytes: 0,
                named: Vec::new(),
                state: VersionState::Closed,
                hole_bytes: 0,
                receipts: self.receipts.clone(),
            },
            Step::Close => ManagerRequest::CloseSession { session, interrupted: false },
            Step::Idle | Step::Put | Step::Sync => return None,
        })
    }
}

pub fn root_of(chunks: &[u8]) -> MapRoot {
    let distinct: BTreeSet<u8> = chunks.iter().copied().collect();
    let distinct: Vec<u8> = distinct.into_iter().collect();
    let length = u32::try_from(CHUNK_BYTES).unwrap();
    let table =
        distinct.iter().map(|number| ChunkRef { id: ChunkId::of(&content(*number)), length }).collect();
    let extents = chunks.iter().map(|number| {
        let index = u32::try_from(distinct.binary_search(number).unwrap()).unwrap();
        Extent { length: CHUNK_BYTES as u64, source: Source::Chunk { index, offset: 0 } }
    });
    MapRoot::Inline { map: ChunkMap::new(table, extents).unwrap().encode() }
}

impl World {
    /// The client does the next thing: sends a request, or asks a benefactor.
    pub fn client_step(&mut self, number: usize) {
        if self.clients[number].sent.is_some() {
            return self.deliver_request(number);
        }
        let step = self.clients[number].step;
        match step {
            Step::Put => self.client_puts(number),
            Step::Sync if self.clients[number].careless && self.one_in(4) => {
                self.clients[number].step = Step::Commit
            }
            Step::Sync => self.client_syncs(number),
            _ => {
                let request = self.clients[number].request();
                if let Some(request) = &request {
                    self.note(format!("client {number} sends {}", short(request)));
                }
                if matches!(request, Some(ManagerRequest::Commit { .. })) {
                    let (file, chunks) = (self.clients[number].file, self.clients[number].chunks.clone());
                    self.files[file].possible.push(chunks);
                }
                self.clients[number].sent = request;
            }
        }
    }

    /// The manager receives what the client sent; its answer may be lost, then the client sends it again.
    fn deliver_request(&mut self, number: usize) {
        let Some(request) = self.clients[number].sent.clone() else { return };
        let crash = self.one_in(40);
        let answer = self.core.handle(request, self.now);
        if crash && self.plant == Plant::AnswerBeforeStore {
            if let Ok(reply) = answer {
                self.clients[number].sent = None;
                self.answered(number, reply);
            }
            return self.restart_manager();
        }
        if crash {
            // Nothing of it is durable, and nobody is told anything.
            return self.restart_manager();
        }
        self.commit_store();
        if self.one_in(10) {
            self.note(format!("the answer to client {number} is lost"));
            return;
        }
        self.clients[number].sent = None;
        match answer {
            Ok(reply) => self.answered(number, reply),
            Err(failure) => self.refused(number, &failure),
        }
    }

    fn answered(&mut self, number: usize, reply: ManagerReply) {
        let client = &mut self.clients[number];
        match (client.step, reply) {
            (Step::Open, _) if client.careless => client.step = Step::Put,
            (Step::Open, _) => client.step = Step::Ask,
            (Step::Ask, ManagerReply::Known { found, .. }) => {
                for (chunk, found) in client.chunks.iter().zip(&found) {
                    let places = client.places.entry(*chunk).or_default();
                    places.extend(found.at.iter().map(|location| location.benefactor));
                }
                client.step = Step::Put;
            }
            (Step::Commit, _) => {
                client.step = Step::Close;
                let (file, chunks) = (client.file, client.chunks.clone());
                self.note(format!("client {number} is told that file {file} is {chunks:?}"));
                // An earlier commit of another client may not be there any more, a later one may.
                let possible = &mut self.files[file].possible;
                if let Some(place) = possible.iter().position(|other| *other == chunks) {
                    possible.drain(..place);
                }
                self.files[file].acknowledged = true;
            }
            (Step::Close, _) => client.step = Step::Idle,
            (step, reply) => panic!("an answer to {step:?}: {reply:?}"),
        }
    }

    fn refused(&mut self, number: usize, failure: &Failure) {
        let note =
            format!("client {number} is refused {:?} at {:?}", failure.code, self.clients[number].step);
        self.note(note);
        let client = &mut self.clients[number];
        match failure.code {
            ErrorCode::Stale => client.forgotten(),
            ErrorCode::Outdated => {
                client.forget_receipts();
                client.step = Step::Sync;
            }
            ErrorCode::Unavailable => client.step = Step::Sync,
            // The file was removed.
            ErrorCode::NotFound => client.step = Step::Idle,
            code => panic!("{code:?}: {}", failure.message),
        }
    }

    fn client_puts(&mut self, number: usize) {
        let client = &self.clients[number];
        let lacking =
            client.chunks.iter().find(|chunk| client.places.get(chunk).is_none_or(BTreeSet::is_empty));
        let Some(chunk) = lacking.copied() else {
            self.clients[number].step = Step::Sync;
            return;
        };
        let up: Vec<usize> = (0..self.nodes.len()).filter(|node| self.nodes[*node].is_up()).collect();
        if up.is_empty() {
            return;
        }
        let node = up[self.below(up.len())];
        let durable = self.one_in(3);
        let Some(id) = self.nodes[node].id else { return };
        let receipt = self.nodes[node].put(&content(chunk), durable, &self.runtime);
        self.note(format!("client {number} puts {chunk} at {id}, durable: {durable}"));
        if self.one_in(10) {
            return; // The answer is lost: it is put again, perhaps elsewhere.
        }
        let client = &mut self.clients[number];
        client.places.entry(chunk).or_default().insert(id);
        if !client.careless {
            client.held.insert((chunk, id));
        }
        if let Some(receipt) = receipt {
            client.secured.entry(chunk).or_default().insert(id);
            client.receipts.push((id, receipt));
        }
    }

    fn client_syncs(&mut self, number: usize) {
        let client = &self.clients[number];
        let unsecured = |chunk: &&u8| client.secured.get(chunk).is_none_or(BTreeSet::is_empty);
        let Some(chunk) = client.chunks.iter().find(unsecured).copied() else {
            self.clients[number].step = Step::Commit;
            return;
        };
        let Some(id) = client.places.get(&chunk).and_then(|places| places.first()).copied() else {
            self.clients[number].step = Step::Ask;
            return;
        };
        let node = self.nodes.iter().position(|node| node.id == Some(id) && node.is_up());
        let asked: Vec<u8> = client
            .chunks
            .iter()
            .filter(|chunk| client.places.get(chunk).is_some_and(|places| places.contains(&id)))
            .copied()
            .collect();
        let Some(node) = node else {
            // It doesn't answer.
            for chunk in asked {
                self.clients[number].places.entry(chunk).or_default().remove(&id);
            }
            self.clients[number].step = Step::Ask;
            return;
        };
        let blocks: Vec<BlockId> =
            asked.iter().map(|chunk| BlockId::plain(ChunkId::of(&content(*chunk)))).collect();
        let receipt = match self.plant {
            Plant::ReceiptWithoutSync => self.nodes[node].receipt_without_sync(&blocks),
            Plant::ReceiptThatProtectsNothing => self.nodes[node].receipt_that_protects_nothing(&blocks),
            _ => self.nodes[node].receipt(blocks.clone(), &self.runtime),
        };
        let named: BTreeSet<BlockId> = receipt.blocks.iter().map(|stored| stored.block).collect();
        self.note(format!("client {number} has a receipt of {id} for {} of {asked:?}", named.len()));
        let client = &mut self.clients[number];
        let mut missing = Vec::new();
        for (chunk, block) in asked.into_iter().zip(blocks) {
            if named.contains(&block) {
                client.secured.entry(chunk).or_default().insert(id);
            } else {
                client.places.entry(chunk).or_default().remove(&id);
                missing.push(chunk);
            }
        }
        client.receipts.push((id, receipt));
        // A manager that has forgotten the session may have collected what it held.
        let session = client.session;
        let lost = missing.into_iter().filter(|chunk| client.held.remove(&(*chunk, id))).collect::<Vec<_>>();
        let is_known = self.core.handle(ManagerRequest::Settle(session), self.now).is_ok();
        assert!(
            lost.is_empty() || !is_known,
            "{lost:?}, which client {number} stored and holds, are gone from {id}"
        );
    }
}

fn short(request: &ManagerRequest) -> String {
    let text = format!("{request:?}");
    text.split_once(' ').map_or(text.clone(), |(name, _)| name.to_owned())
}
