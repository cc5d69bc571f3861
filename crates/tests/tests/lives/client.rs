//! A client of a life: it writes a file of a few chunks, one request at a time, and commits, once or several times.

use std::collections::{BTreeMap, BTreeSet};

use stdchk_model::message::manager::{ManagerReply, ManagerRequest, VersionState};
use stdchk_model::{BenefactorId, BlockId, ClientId, ErrorCode, Failure, Ino, MapRoot, Receipt, SessionId};

use super::content::{
    CHUNK_BYTES, CHUNKS, LENGTH_MAX, Number, block, content, id, list_of_root, name, named_by, root_of,
};
use super::files::NAMES;
use super::plant::Plant;
use super::world::World;

/// What a client is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    Idle,
    Open,
    /// Ask where the chunks are.
    Ask,
    Put,
    Sync,
    Commit,
    Close,
}

/// How a client goes about its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Manner {
    /// It believes that what it knew before its session was forgotten still holds, stores without asking first, and commits
    /// without receipts. The manager must be safe from that.
    pub is_careless: bool,
    /// Its chunk map lies in the pool.
    pub map_in_pool: bool,
    /// It changes one chunk of what the file holds, and keeps the others.
    pub updates: bool,
    /// Once it commits without having asked or stored anything. What the manager then lets pass must be there.
    pub guesses: bool,
    /// How often it commits before the last time.
    pub commits_before: usize,
}

pub struct Client {
    pub id: ClientId,
    pub session: SessionId,
    pub step: Step,
    pub ino: Ino,
    /// The chunks of the file.
    pub list: Vec<Number>,
    manner: Manner,
    /// Chunks of the version on which it builds: it neither asks for them nor stores them.
    kept: BTreeSet<Number>,
    /// Where each of the others is, as far as it knows.
    places: BTreeMap<Number, BTreeSet<BenefactorId>>,
    /// Of whom it has receipts.
    secured: BTreeMap<Number, BTreeSet<BenefactorId>>,
    receipts: Vec<(BenefactorId, Receipt)>,
    /// What it has stored after its session asked for it: no collection may take that while the session is known.
    pub held: BTreeSet<(Number, BenefactorId)>,
    /// A request that the manager has not received, or whose answer is not there.
    pub sent: Option<ManagerRequest>,
    /// It gives no signs of life.
    pub is_silent: bool,
}

const PLAIN: Manner =
    Manner { is_careless: false, map_in_pool: false, updates: false, guesses: false, commits_before: 0 };

impl Client {
    pub fn new(number: u8) -> Self {
        Self {
            id: ClientId([number; 16]),
            session: SessionId::default(),
            step: Step::Idle,
            ino: Ino(0),
            list: Vec::new(),
            manner: PLAIN,
            kept: BTreeSet::new(),
            places: BTreeMap::new(),
            secured: BTreeMap::new(),
            receipts: Vec::new(),
            held: BTreeSet::new(),
            sent: None,
            is_silent: false,
        }
    }

    /// Begins a file.
    fn begin(&mut self, session: SessionId, ino: Ino, list: Vec<Number>, manner: Manner) {
        *self = Self { id: self.id, is_silent: self.is_silent, manner, session, ino, list, ..Self::new(0) };
        self.step = Step::Open;
    }

    /// It ends without a word.
    fn die(&mut self) {
        *self = Self { id: self.id, is_silent: self.is_silent, ..Self::new(0) };
    }

    /// All that it has is to be looked at anew: its session was forgotten, or a receipt refused.
    fn forget_receipts(&mut self) {
        self.secured.clear();
        self.receipts.clear();
    }

    /// Its session is to be opened again.
    pub fn forgotten(&mut self) {
        if !self.manner.is_careless {
            self.forget_receipts();
            self.kept.clear();
        }
        self.held.clear();
        self.step = Step::Open;
    }

    fn root(&self) -> MapRoot {
        root_of(&self.list, self.manner.map_in_pool)
    }

    /// What it has to see to: all chunks that its version names and the one before didn't.
    fn needed(&self) -> Vec<Number> {
        named_by(&self.root()).difference(&self.kept).copied().collect()
    }

    fn state(&self) -> VersionState {
        if self.manner.commits_before > 0 { VersionState::Open } else { VersionState::Closed }
    }

    /// The next request to the manager; `None`: the next thing is another.
    fn request(&self, plant: Plant) -> Option<ManagerRequest> {
        let session = self.session;
        let root = self.root();
        Some(match self.step {
            Step::Open => ManagerRequest::OpenSession { session, client: self.id, ino: self.ino },
            Step::Ask => {
                let chunks = self.needed().into_iter().map(id).collect();
                ManagerRequest::Known { session, chunks, room_bytes: 0 }
            }
            Step::Commit => ManagerRequest::Commit {
                session,
                size: self.list.len() as u64 * CHUNK_BYTES as u64,
                mtime: 1,
                stored_bytes: 0,
                named_before: 0,
                named: match &root {
                    MapRoot::Inline { .. } => Vec::new(),
                    MapRoot::Pieces { .. } if plant == Plant::NameLeftOut => {
                        named_by(&root).into_iter().skip(1).map(id).collect()
                    }
                    MapRoot::Pieces { .. } => named_by(&root).into_iter().map(id).collect(),
                },
                root,
                state: self.state(),
                hole_bytes: 0,
                receipts: self.receipts.clone(),
            },
            Step::Close => ManagerRequest::CloseSession { session, interrupted: false },
            Step::Idle | Step::Put | Step::Sync => return None,
        })
    }

    /// Where it believes chunks to be.
    fn claims(&self) -> Vec<(Number, BenefactorId)> {
        let places = self.places.iter();
        places.flat_map(|(number, places)| places.iter().map(|place| (*number, *place))).collect()
    }
}

impl World {
    pub fn client_event(&mut self, number: usize) {
        if self.clients[number].step != Step::Idle {
            return self.client_step(number);
        }
        let place = self.below(NAMES);
        let count = 1 + self.below(LENGTH_MAX - 1);
        let list: Vec<Number> = (0..count).map(|_| self.any_chunk()).collect();
        let manner = Manner {
            is_careless: self.below(3) == 0,
            map_in_pool: self.below(3) == 0,
            updates: self.below(3) == 0,
            guesses: self.below(3) == 0,
            commits_before: [0, 0, 1, 2][self.below(4)],
        };
        let list = if manner.guesses { list[..1].to_vec() } else { list };
        let ino = self.file(place);
        self.sessions += 1;
        let session = SessionId(u128::from(self.sessions).to_be_bytes());
        self.note(format!("client {number} begins to write {list:?} to {ino}: {manner:?}"));
        self.clients[number].begin(session, ino, list, manner);
    }

    pub fn any_chunk(&mut self) -> Number {
        Number::try_from(self.below(usize::from(CHUNKS))).unwrap()
    }

    /// A client is killed.
    pub fn kill_client(&mut self, number: usize) {
        if self.clients[number].step != Step::Idle {
            self.note(format!("client {number} is killed"));
            self.files.get(self.clients[number].ino).given_up(number);
            self.clients[number].die();
        }
    }

    /// The client does the next thing: sends a request, or asks a benefactor.
    pub fn client_step(&mut self, number: usize) {
        if self.clients[number].sent.is_some() {
            return self.deliver_request(number);
        }
        let step = self.clients[number].step;
        match step {
            Step::Put => self.client_puts(number),
            Step::Sync if self.clients[number].manner.is_careless && self.one_in(4) => {
                self.clients[number].step = Step::Commit;
            }
            Step::Sync => self.client_syncs(number),
            _ => self.client_sends(number),
        }
    }

    fn client_sends(&mut self, number: usize) {
        let client = &self.clients[number];
        let (ino, root, request) = (client.ino, client.root(), client.request(self.plant));
        let Some(request) = request else { return };
        self.note(format!("client {number} sends {}", short(&request)));
        if matches!(request, ManagerRequest::Commit { .. }) {
            self.files.get(ino).asked_for(root.clone(), number);
            if self.plant == Plant::ToldBeforeCommitted {
                self.files.get(ino).acknowledged(root, number);
            }
        }
        self.clients[number].sent = Some(request);
    }

    /// The manager receives what the client sent; its answer may be lost, then the client sends it again.
    fn deliver_request(&mut self, number: usize) {
        let Some(request) = self.clients[number].sent.clone() else { return };
        if matches!(request, ManagerRequest::Commit { .. }) && self.plant == Plant::ClaimIsBelieved {
            self.believe_client(number);
        }
        let crash = self.one_in(if matches!(request, ManagerRequest::Commit { .. }) { 12 } else { 40 });
        let mut answer = self.core.handle(request.clone(), self.now);
        if crash {
            if let (Plant::AnswerBeforeStore, Ok(reply)) = (self.plant, answer) {
                self.clients[number].sent = None;
                self.answered(number, reply);
            }
            return self.crash_in_commit();
        }
        let is_pending = answer.as_ref().is_err_and(|failure| failure.message.contains("still reporting"));
        if is_pending && self.plant == Plant::PendingCountsAsPresent {
            self.believe_client(number);
            answer = self.core.handle(request, self.now);
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

    fn believe_client(&mut self, number: usize) {
        let nodes = &self.nodes;
        let at = |id| nodes.iter().position(|node| node.id == Some(id));
        let claims = self.clients[number].claims();
        let claims: Vec<_> = claims.into_iter().filter_map(|(chunk, id)| Some((chunk, at(id)?))).collect();
        self.believe(&claims);
    }

    fn answered(&mut self, number: usize, reply: ManagerReply) {
        let client = &mut self.clients[number];
        match (client.step, reply) {
            (Step::Open, ManagerReply::Session { base_root, .. }) => {
                client.step = match client.manner {
                    Manner { guesses: true, .. } => Step::Commit,
                    Manner { is_careless: true, .. } => Step::Put,
                    _ => Step::Ask,
                };
                client.manner.guesses = false;
                let base = base_root.filter(|_| std::mem::take(&mut client.manner.updates));
                if let Some(base) = base {
                    self.build_on(number, &base);
                }
            }
            (Step::Ask, ManagerReply::Known { found, .. }) => {
                for (chunk, found) in client.needed().into_iter().zip(&found) {
                    let places = client.places.entry(chunk).or_default();
                    places.extend(found.at.iter().map(|location| location.benefactor));
                }
                client.step = Step::Put;
            }
            (Step::Commit, _) => self.committed(number),
            (Step::Close, _) => client.step = Step::Idle,
            (step, reply) => panic!("an answer to {step:?}: {reply:?}"),
        }
    }

    /// The client writes the first of its chunks over one of those that the file has.
    fn build_on(&mut self, number: usize, base: &MapRoot) {
        let mut list = list_of_root(base).0;
        self.clients[number].kept = named_by(base);
        let chunk = self.clients[number].list[0];
        match self.below(LENGTH_MAX) {
            place if place < list.len() => list[place] = chunk,
            _ if list.len() < LENGTH_MAX => list.push(chunk),
            _ => list[0] = chunk,
        }
        self.note(format!("client {number} makes {list:?} of what the file has"));
        self.clients[number].list = list;
    }

    fn committed(&mut self, number: usize) {
        let client = &mut self.clients[number];
        let (ino, root, list) = (client.ino, client.root(), client.list.clone());
        client.step = Step::Close;
        self.note(format!("client {number} is told that {ino} is {list:?}"));
        self.files.get(ino).acknowledged(root.clone(), number);
        if self.one_in(8) {
            // What was promised just now must be true already.
            let node = self.below(self.nodes.len());
            self.stop(node, true);
        }
        if self.clients[number].manner.commits_before > 0 {
            self.clients[number].manner.commits_before -= 1;
            self.clients[number].step = Step::Ask;
            self.clients[number].list[0] = self.any_chunk();
            self.build_on(number, &root);
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
            ErrorCode::Unavailable => {
                // What it kept may be gone, if its session was forgotten since.
                client.kept.clear();
                client.step = Step::Ask;
            }
            // The file was removed.
            ErrorCode::NotFound => client.step = Step::Idle,
            code => panic!("{code:?}: {}", failure.message),
        }
        let ino = client.ino;
        self.files.get(ino).given_up(number);
    }

    fn client_puts(&mut self, number: usize) {
        let client = &self.clients[number];
        let needed = client.needed();
        let lacking = needed.iter().find(|chunk| client.places.get(chunk).is_none_or(BTreeSet::is_empty));
        let Some(chunk) = lacking.copied() else {
            self.clients[number].step = Step::Sync;
            return;
        };
        let up: Vec<usize> = (0..self.nodes.len()).filter(|node| self.nodes[*node].is_up()).collect();
        if up.is_empty() {
            return;
        }
        // Often where the last one went, so that blocks are put again.
        let node = if self.below(2) == 0 { up[0] } else { up[self.below(up.len())] };
        let durable = self.below(3) == 0;
        let Some(id) = self.nodes[node].id else { return };
        let Ok(receipt) = self.nodes[node].put(content(chunk), durable, &self.runtime) else {
            return self.note(format!("client {number} can't put {chunk} at {id}"));
        };
        self.note(format!("client {number} puts {chunk} at {id}, durable: {durable}"));
        if self.one_in(10) {
            return; // The answer is lost: it is put again, perhaps elsewhere.
        }
        let client = &mut self.clients[number];
        client.places.entry(chunk).or_default().insert(id);
        if !client.manner.is_careless {
            client.held.insert((chunk, id));
        }
        if let Some(receipt) = receipt {
            client.secured.entry(chunk).or_default().insert(id);
            client.receipts.push((id, receipt));
        }
    }

    fn client_syncs(&mut self, number: usize) {
        let client = &self.clients[number];
        let needed = client.needed();
        let unsecured = |chunk: &&Number| client.secured.get(chunk).is_none_or(BTreeSet::is_empty);
        let is_believed = matches!(self.plant, Plant::ClaimIsBelieved | Plant::PendingCountsAsPresent);
        let Some(chunk) = needed.iter().find(unsecured).copied().filter(|_| !is_believed) else {
            self.clients[number].step = Step::Commit;
            return;
        };
        let Some(id) = client.places.get(&chunk).and_then(|places| places.first()).copied() else {
            self.clients[number].step = Step::Ask;
            return;
        };
        let node = self.nodes.iter().position(|node| node.id == Some(id) && node.is_up());
        let at = |chunk: &&Number| client.places.get(chunk).is_some_and(|places| places.contains(&id));
        let asked: Vec<Number> = needed.iter().filter(at).copied().collect();
        let Some(node) = node else {
            // It doesn't answer.
            for chunk in asked {
                self.clients[number].places.entry(chunk).or_default().remove(&id);
            }
            self.clients[number].step = Step::Ask;
            return;
        };
        let blocks: Vec<BlockId> = asked.iter().map(|chunk| block(*chunk)).collect();
        let receipt = self.nodes[node].receipt(blocks, &self.runtime);
        let named: BTreeSet<Number> = receipt.blocks.iter().map(|stored| name(&stored.block)).collect();
        self.note(format!("client {number} has a receipt of {id} for {named:?} of {asked:?}"));
        let client = &mut self.clients[number];
        client.receipts.push((id, receipt));
        let mut lost = Vec::new();
        for chunk in asked {
            if named.contains(&chunk) {
                client.secured.entry(chunk).or_default().insert(id);
            } else {
                client.places.entry(chunk).or_default().remove(&id);
                lost.extend(client.held.remove(&(chunk, id)).then_some(chunk));
            }
        }
        // A manager that has forgotten the session may have collected what it held.
        let session = client.session;
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
