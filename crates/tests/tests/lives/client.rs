//! A client of a life: it writes a file of a few chunks, one request at a time, and commits, once or several times.

use std::collections::BTreeSet;

use stdchk_manager::core::Asker;
use stdchk_model::message::benefactor::OwnerWish;
use stdchk_model::message::manager::{Location, ManagerReply, ManagerRequest, VersionState};
use stdchk_model::policy::Semantics;
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, ClientId, EncodingId, ErrorCode, Failure, Ino, Maker, MapRoot, Policy,
    Receipt, Redundancy, SessionId, Tier, Trust,
};
use stdchk_protect::{Held, copies_in_memory, missing, suffices, taken};

use super::content::{
    self, LARGE_CHUNKS, LENGTH_MAX, MAKERS, Number, SMALL_CHUNKS, all_shown, encoding_of, id, lies, name,
    root_of, shown, stored,
};
use super::model::{Content, NAMES};
use super::node::Node;
use super::packing::Packing;
use super::plant::Plant;
use super::world::World;

/// What a client is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    Idle,
    Open,
    /// Ask where the chunks are.
    Ask,
    /// Say which encodings of others it would have made.
    Vouch,
    Put,
    Sync,
    Commit,
    /// Ask that the members of a set move into the container.
    Move,
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
    /// It compresses what can be compressed.
    pub compresses: bool,
    /// Once it commits without having asked or stored anything. What the manager then lets pass must be there.
    pub guesses: bool,
    /// How often it commits before the last time.
    pub commits_before: usize,
}

/// A block at a benefactor.
pub type Place = (BlockId, BenefactorId);

pub struct Client {
    pub id: ClientId,
    number: u8,
    pub session: SessionId,
    pub step: Step,
    pub ino: Ino,
    /// It writes a container for these.
    pub packing: Option<Packing>,
    /// The chunks of the file.
    pub list: Vec<Number>,
    manner: Manner,
    /// Chunks of the version on which it builds: it neither asks for them nor stores them.
    kept: BTreeSet<Number>,
    /// What its folder asked for when its session was opened.
    policy: Policy,
    /// Where blocks of the others are, as far as it knows.
    places: BTreeSet<Place>,
    /// Encodings of others that it would have made.
    vouched: Vec<(ChunkId, EncodingId)>,
    /// Those of which it has receipts.
    secured: BTreeSet<Place>,
    receipts: Vec<(BenefactorId, Receipt)>,
    /// What it has stored after its session asked for it: no collection may take that while the session is known.
    pub held: BTreeSet<Place>,
    /// Chunks of which it has put blocks, and will put more.
    begun: BTreeSet<Number>,
    /// Who keeps blocks in memory.
    in_memory: BTreeSet<BenefactorId>,
    /// Who refused blocks.
    refused: BTreeSet<BenefactorId>,
    /// Since all refused, those that are busy are asked to take blocks all the same, until one did.
    insists: bool,
    /// A request that the manager has not received, or whose answer is not there.
    pub sent: Option<ManagerRequest>,
    /// It gives no signs of life.
    pub is_silent: bool,
}

const PLAIN: Manner = Manner {
    is_careless: false,
    map_in_pool: false,
    updates: false,
    compresses: false,
    guesses: false,
    commits_before: 0,
};

impl Client {
    pub fn new(number: u8) -> Self {
        Self {
            id: ClientId([number; 16]),
            number,
            session: SessionId::default(),
            step: Step::Idle,
            ino: Ino(0),
            packing: None,
            list: Vec::new(),
            manner: PLAIN,
            kept: BTreeSet::new(),
            policy: Policy::default(),
            places: BTreeSet::new(),
            vouched: Vec::new(),
            secured: BTreeSet::new(),
            receipts: Vec::new(),
            held: BTreeSet::new(),
            begun: BTreeSet::new(),
            in_memory: BTreeSet::new(),
            refused: BTreeSet::new(),
            insists: false,
            sent: None,
            is_silent: false,
        }
    }

    /// Begins a file.
    fn begin(&mut self, session: SessionId, ino: Ino, list: Vec<Number>, manner: Manner) {
        *self = Self {
            id: self.id,
            is_silent: self.is_silent,
            manner,
            session,
            ino,
            list,
            ..Self::new(self.number)
        };
        self.step = Step::Open;
    }

    /// It ends without a word, and another one with the identity `id` takes its place.
    fn die(&mut self, id: ClientId) {
        *self = Self { id, is_silent: self.is_silent, ..Self::new(self.number) };
    }

    /// All that it has is to be looked at anew: its session was forgotten, or a receipt refused.
    fn forget_receipts(&mut self) {
        self.secured.clear();
        self.receipts.clear();
    }

    /// What the manager told it to count of others' encodings, a manager that was started since may not know to be right.
    fn forget_what_others_made(&mut self) {
        let maker = self.maker();
        let is_sure = |(block, _): &Place| block.encoding.code.is_copy() || block.encoding.maker == maker;
        self.places.retain(is_sure);
        self.secured.retain(is_sure);
        self.vouched.clear();
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

    /// What it writes.
    pub fn content(&self) -> Content {
        Content { list: self.list.clone(), map_in_pool: self.manner.map_in_pool }
    }

    /// What it has to see to: all chunks that its version names and the one before didn't.
    fn needed(&self) -> Vec<Number> {
        self.content().needs().difference(&self.kept).copied().collect()
    }

    fn state(&self) -> VersionState {
        match self.manner.commits_before > 0 || self.packing.is_some() {
            true => VersionState::Open,
            false => VersionState::Closed,
        }
    }

    /// The next request to the manager; `None`: the next thing is another.
    fn request(&self, folder: Ino, plant: Plant) -> Option<ManagerRequest> {
        let session = self.session;
        Some(match self.step {
            Step::Open if self.ino == Ino(0) => {
                ManagerRequest::OpenContainer { session, client: self.id, folder }
            }
            Step::Open => {
                ManagerRequest::OpenSession { session, client: self.id, ino: self.ino, durability: None }
            }
            Step::Ask => {
                let chunks = self.needed().into_iter().map(id).collect();
                ManagerRequest::Known { session, chunks, room_bytes: 0 }
            }
            Step::Vouch => ManagerRequest::Vouch { session, encodings: self.vouched.clone() },
            Step::Commit => self.commit(plant, self.receipts.clone()),
            Step::Move => self.packing.as_ref()?.step(session, folder),
            Step::Close => ManagerRequest::CloseSession { session, interrupted: false },
            Step::Idle | Step::Put | Step::Sync => return None,
        })
    }

    /// The commit of what it writes, by these receipts.
    pub fn commit(&self, plant: Plant, receipts: Vec<(BenefactorId, Receipt)>) -> ManagerRequest {
        let root = root_of(&self.content());
        ManagerRequest::Commit {
            session: self.session,
            size: content::size(&self.list),
            mtime: 1,
            stored_bytes: 0,
            named_before: 0,
            key: None,
            changes: 0,
            named: match &root {
                MapRoot::Inline { .. } => Vec::new(),
                MapRoot::Pieces { .. } if plant == Plant::NameLeftOut => {
                    self.content().needs().into_iter().skip(1).map(id).collect()
                }
                MapRoot::Pieces { .. } => self.content().needs().into_iter().map(id).collect(),
            },
            root,
            state: self.state(),
            hole_bytes: 0,
            receipts,
        }
    }

    /// Whether its next commit is the last one of its session.
    pub fn is_last(&self) -> bool {
        self.state() == VersionState::Closed
    }

    /// The benefactors that it needs, by the policy of when it began.
    pub fn hosts(&self) -> u8 {
        self.policy.redundancy.hosts()
    }

    /// As whom it codes: the first and the third client are of one user.
    pub fn maker(&self) -> Maker {
        MAKERS[usize::from(self.number % 2)]
    }

    /// How it encodes a chunk.
    fn encoding(&self, number: Number) -> EncodingId {
        self.encoding_as(number, self.maker())
    }

    /// How it would encode a chunk if it were this maker.
    fn encoding_as(&self, number: Number, maker: Maker) -> EncodingId {
        encoding_of(number, self.policy.redundancy, self.manner.compresses, maker)
    }

    /// The manager says where blocks of a chunk are. Of others' fragments that nobody has decoded those count that it would have made.
    fn found(&mut self, number: Number, at: &[Location]) {
        for location in at {
            let (chunk, encoding) = (id(number), location.encoding);
            let vouches =
                location.trust == Trust::Claimed && self.encoding_as(number, encoding.maker) == encoding;
            if vouches && !self.vouched.contains(&(chunk, encoding)) {
                self.vouched.push((chunk, encoding));
            }
            if vouches || location.trust == Trust::Trusted {
                self.places.insert((location.block(chunk), location.benefactor));
            }
        }
    }

    /// The next block of a chunk to put, and who can't take it; `None`: there are enough, or nobody can take more.
    fn next_block(&self, number: Number, hosts: &[BenefactorId]) -> Next {
        let (mut held, encoding) = (held_of(&self.places, number, &self.in_memory), self.encoding(number));
        // Who can't take a block is paired with a fragment first, so that those who can are left over.
        held.sort_by_key(|held| hosts.contains(&held.benefactor) && !self.refused.contains(&held.benefactor));
        let enough = suffices(held.iter().copied(), self.policy.at_commit());
        if enough && !self.begun.contains(&number) {
            return Next::Nothing;
        }
        let (memory, hosts): (Vec<BenefactorId>, Vec<BenefactorId>) =
            hosts.iter().copied().partition(|host| self.in_memory.contains(host));
        if let Some(wanted) = self.policy.at_commit().in_memory {
            let copies = usize::from(copies_in_memory(held.iter().copied()));
            let has_one = |host: &BenefactorId| held.iter().any(|held| held.benefactor == *host);
            let is_free = |host: &BenefactorId| !has_one(host) && !self.refused.contains(host);
            let usable: Vec<BenefactorId> = memory.into_iter().filter(is_free).collect();
            if copies >= usize::from(wanted) {
                return Next::Nothing;
            }
            if copies + usable.len() >= usize::from(wanted) {
                let encoding =
                    encoding_of(number, Redundancy::Replicate(1), self.manner.compresses, self.maker());
                return Next::Put(BlockId { chunk: id(number), encoding, index: 0 }, usable);
            }
        }
        let wanted = match encoding.code.is_copy() {
            true => self.policy.at_commit().distance,
            false => self.policy.redundancy.distance(),
        };
        let Some(index) = missing(&held, encoding, wanted).first().copied() else { return Next::Nothing };
        let mut taken = taken(&held, encoding);
        let others = hosts.iter().any(|host| !taken.contains(host) && !self.refused.contains(host));
        if self.manner.is_careless && others {
            taken.clear();
        }
        let usable = hosts.iter().filter(|host| !taken.contains(host) && !self.refused.contains(host));
        match usable.copied().collect::<Vec<_>>() {
            usable if !usable.is_empty() => Next::Put(BlockId { chunk: id(number), encoding, index }, usable),
            _ if enough => Next::Nothing,
            _ => Next::Wait,
        }
    }
}

/// What a client does about a chunk.
enum Next {
    Nothing,
    /// Nobody takes a block now.
    Wait,
    /// It puts this block at one of these benefactors.
    Put(BlockId, Vec<BenefactorId>),
}

/// Blocks of a chunk among `places`.
fn held_of(places: &BTreeSet<Place>, number: Number, in_memory: &BTreeSet<BenefactorId>) -> Vec<Held> {
    let own = places.iter().filter(|(block, _)| block.chunk == id(number));
    let held = |(block, at): &Place| {
        let BlockId { encoding, index, .. } = *block;
        let tier = if in_memory.contains(at) { Tier::Memory } else { Tier::Disk };
        Held { benefactor: *at, encoding, index, tier, trust: Trust::Trusted }
    };
    own.map(held).collect()
}

impl World {
    pub fn client_event(&mut self, number: usize) {
        if self.clients[number].step != Step::Idle {
            return self.client_step(number);
        }
        if self.below(3) == 0 && self.begin_packing(number) {
            return;
        }
        let place = self.below(NAMES);
        let count = 1 + self.below(LENGTH_MAX - 1);
        let list: Vec<Number> = (0..count).map(|_| self.any_chunk()).collect();
        let ino = self.file(place);
        self.begin_client(number, ino, list, None);
    }

    /// A client begins to write a file, or a container.
    pub fn begin_client(&mut self, number: usize, ino: Ino, list: Vec<Number>, packing: Option<Packing>) {
        let manner = Manner {
            is_careless: self.below(3) == 0,
            map_in_pool: self.below(3) == 0,
            updates: self.below(3) == 0,
            compresses: self.is_coded() && self.below(3) == 0,
            guesses: self.below(3) == 0,
            commits_before: [0, 0, 1, 2][self.below(4)],
        };
        let list = if manner.guesses { list[..1].to_vec() } else { list };
        self.sessions += 1;
        let session = SessionId(u128::from(self.sessions).to_be_bytes());
        self.note(format!("client {number} begins to write {list:?} to {ino}: {manner:?}"));
        self.clients[number].begin(session, ino, list, manner);
        self.clients[number].packing = packing;
    }

    pub fn any_chunk(&mut self) -> Number {
        let all = if self.is_coded() { SMALL_CHUNKS + LARGE_CHUNKS } else { SMALL_CHUNKS };
        // In lives that know codes most are large.
        let first = if self.is_coded() { SMALL_CHUNKS - 2 } else { 0 };
        first + Number::try_from(self.below(usize::from(all - first))).unwrap()
    }

    /// A client is killed.
    pub fn kill_client(&mut self, number: usize) {
        if self.clients[number].step != Step::Idle {
            self.note(format!("client {number} is killed"));
            self.files.given_up(self.clients[number].ino, number);
            self.sessions += 1;
            let id = ClientId((u128::from(self.sessions) << 64).to_be_bytes());
            self.clients[number].die(id);
        }
    }

    /// The client does the next thing: sends a request, or asks a benefactor.
    pub fn client_step(&mut self, number: usize) {
        if self.clients[number].sent.is_some() {
            return self.deliver_request(number);
        }
        let step = self.clients[number].step;
        self.clients[number].in_memory.clone_from(&self.in_memory);
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
        let (ino, content) = (client.ino, client.content());
        let (request, whose) = (client.request(self.folder, self.plant), (client.session, number));
        let is_last = client.is_last();
        if let (Step::Move, Some(packing)) = (client.step, client.packing.clone()) {
            self.asks_to_move(&packing, &content);
        }
        let Some(request) = request else { return };
        self.note(format!("client {number} sends {}", short(&request)));
        if matches!(request, ManagerRequest::Commit { .. }) {
            self.files.asked_for(ino, whose, content.clone(), is_last);
            if self.plant == Plant::ToldBeforeCommitted {
                self.files.told(ino, whose, &content);
            }
        }
        if matches!(request, ManagerRequest::CloseSession { .. }) {
            self.files.closes(ino, whose.0);
        }
        self.clients[number].sent = Some(request);
    }

    /// The manager receives what the client sent; its answer may be lost, then the client sends it again.
    fn deliver_request(&mut self, number: usize) {
        let Some(request) = self.clients[number].sent.clone() else { return };
        if self.stale.is_some() && self.one_in(3) {
            return self.deliver_to_stale(number, request);
        }
        let is_commit = matches!(request, ManagerRequest::Commit { .. });
        if is_commit && self.plant == Plant::ClaimIsBelieved {
            self.believe_client(number);
        }
        let is_step = is_commit || matches!(request, ManagerRequest::Aggregate { .. });
        let crash = self.one_in(if is_step { 12 } else { 40 });
        let moves = matches!(request, ManagerRequest::Aggregate { .. }) && !self.has_moved(number);
        if let ManagerRequest::OpenSession { session, .. } = &request
            && self.core.handle(ManagerRequest::Settle(*session), self.now).is_err()
        {
            // It ended unnoticed, and what it held may have been collected since.
            self.clients[number].held.clear();
        }
        let maker = self.clients[number].maker();
        let asker = Asker { maker, ..Asker::default() };
        let mut answer = self.core.handle_for(asker, request.clone(), self.now);
        if moves && answer.is_ok() {
            self.check_container(number);
        }
        if crash {
            if let (Plant::AnswerBeforeStore, Ok(reply)) = (self.plant, answer) {
                self.clients[number].sent = None;
                self.answered(number, reply);
            }
            return self.crash_in_commit();
        }
        if self.plant == Plant::OneFragmentTooFew
            && let (ManagerRequest::Commit { .. }, Err(_)) = (&request, &answer)
        {
            self.believe_one_more(&self.clients[number].needed());
            answer = self.core.handle(request.clone(), self.now);
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
        let claims = self.clients[number].places.iter();
        let claims: Vec<_> = claims.filter_map(|(block, id)| Some((*block, at(*id)?))).collect();
        self.believe(&claims);
    }

    pub fn answered(&mut self, number: usize, reply: ManagerReply) {
        let client = &mut self.clients[number];
        match (client.step, reply) {
            (Step::Open, ManagerReply::Session { policy, base_root, attr, .. }) => {
                (client.policy, client.ino) = (policy, attr.ino);
                let is_careless = client.manner.is_careless;
                if is_careless && self.one_in(2) {
                    self.clients[number].policy.redundancy = self.any_redundancy();
                }
                let client = &mut self.clients[number];
                let is_packed = client.packing.as_ref().is_some_and(|packing| packing.is_committed);
                client.step = match client.manner {
                    _ if is_packed => Step::Move,
                    Manner { guesses: true, .. } => Step::Commit,
                    Manner { is_careless: true, .. } => Step::Put,
                    _ => Step::Ask,
                };
                client.manner.guesses = false;
                let may_update = std::mem::take(&mut client.manner.updates) && client.packing.is_none();
                if let Some(base) = base_root.filter(|_| may_update) {
                    self.build_on(number, &base);
                }
            }
            (Step::Ask, ManagerReply::Known { found, .. }) => {
                for (chunk, found) in client.needed().into_iter().zip(&found) {
                    client.found(chunk, &found.at);
                }
                client.step = if client.vouched.is_empty() { Step::Put } else { Step::Vouch };
            }
            (Step::Vouch, ManagerReply::Done) => client.step = Step::Put,
            (Step::Move, ManagerReply::Done) => {
                client.step = Step::Close;
                let (packing, content) = (client.packing.clone().unwrap(), client.content());
                self.members_moved(number, &packing, &content);
            }
            (Step::Commit, _) => self.committed(number),
            (Step::Close, _) => client.step = Step::Idle,
            (step, reply) => panic!("an answer to {step:?}: {reply:?}"),
        }
    }

    /// The client writes the first of its chunks over one of those that the file has.
    fn build_on(&mut self, number: usize, base: &MapRoot) {
        let (mut list, is_kept) = self.base_list(self.clients[number].ino, base);
        self.clients[number].kept = if is_kept { lies(base).needs() } else { BTreeSet::new() };
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
        let (ino, content, session) = (client.ino, client.content(), client.session);
        client.step = Step::Close;
        self.note(format!("client {number} is told that {ino} is {:?}", content.list));
        self.files.told(ino, (session, number), &content);
        self.rests_on_memory_anew(&content);
        if self.one_in(8) {
            // What was promised just now must be true already.
            let promised = &self.clients[number].secured;
            let at = |node: &usize| promised.iter().any(|(_, at)| self.nodes[*node].id == Some(*at));
            let all: Vec<usize> = (0..self.nodes.len()).filter(at).collect();
            let one = self.below(self.nodes.len());
            match self.below(2) {
                0 => self.stop(one, true),
                _ => all.into_iter().for_each(|node| self.stop(node, true)),
            }
        }
        if let Some(packing) = &mut self.clients[number].packing {
            packing.is_committed = true;
            self.clients[number].step = Step::Move;
        } else if self.clients[number].manner.commits_before > 0 {
            self.clients[number].manner.commits_before -= 1;
            self.clients[number].step = Step::Ask;
            self.clients[number].list[0] = self.any_chunk();
            self.build_on(number, &root_of(&content));
        }
    }

    fn refused(&mut self, number: usize, failure: &Failure) {
        let note =
            format!("client {number} is refused at {:?}: {}", self.clients[number].step, failure.message);
        self.note(note);
        // A liar was believed to have what the container needs, and says now that it hasn't.
        let gives_up = self.calm && !self.can_be_read(&self.clients[number].content().needs());
        let client = &mut self.clients[number];
        match failure.code {
            ErrorCode::Stale => client.forgotten(),
            ErrorCode::Outdated => {
                client.forget_receipts();
                client.step = Step::Sync;
            }
            // Copies of the container are still made, or a member is being written.
            ErrorCode::Unavailable if client.step == Step::Move && gives_up => client.step = Step::Close,
            ErrorCode::Unavailable if client.step == Step::Move => client.step = Step::Open,
            // The set is another, or lies in a container.
            ErrorCode::NotFound | ErrorCode::Exists if client.step == Step::Move => client.step = Step::Close,
            ErrorCode::Unavailable => {
                // What it kept may be gone, if its session was forgotten since.
                client.kept.clear();
                client.forget_what_others_made();
                if asks_for_no_receipts(self.plant) {
                    client.places.clear();
                }
                // So may be what was in memory: its machine comes back as another one.
                let is_there = |at: &BenefactorId| self.nodes.iter().any(|node| node.id == Some(*at));
                client.places.retain(|(_, at)| is_there(at));
                client.secured.retain(|(_, at)| is_there(at));
                client.receipts.retain(|(at, _)| is_there(at));
                // The folder may ask for more than it did when the session was opened.
                let is_strict = client.policy.semantics == Semantics::Pessimistic;
                client.step = if is_strict { Step::Open } else { Step::Ask };
            }
            // The file was removed.
            ErrorCode::NotFound => client.step = Step::Idle,
            code => panic!("{code:?}: {}", failure.message),
        }
        let ino = client.ino;
        self.files.given_up(ino, number);
    }

    fn client_puts(&mut self, number: usize) {
        // The manager names those that serve; an owner may have decided otherwise since.
        let are_all_tried = self.one_in(2);
        let serves =
            |node: &&Node| node.is_up() && (are_all_tried || node.wish == OwnerWish::Serve && !node.goes);
        let up = self.nodes.iter().filter(serves);
        let hosts: Vec<BenefactorId> = up.filter_map(|node| node.id).collect();
        for chunk in self.clients[number].needed() {
            match self.clients[number].next_block(chunk, &hosts) {
                Next::Put(block, usable) => return self.client_puts_block(number, block, &usable),
                Next::Wait => {
                    // Those that are busy take it all the same, if there is nobody else.
                    self.clients[number].insists = true;
                    return self.clients[number].refused.clear();
                }
                Next::Nothing => _ = self.clients[number].begun.remove(&chunk),
            }
        }
        self.clients[number].step = Step::Sync;
    }

    fn client_puts_block(&mut self, number: usize, block: BlockId, usable: &[BenefactorId]) {
        // Often where the last one went, so that blocks are put again.
        let id = if self.below(2) == 0 { usable[0] } else { usable[self.below(usable.len())] };
        let durable = self.below(3) == 0;
        let insists = self.clients[number].insists;
        let Some(node) = self.nodes.iter_mut().find(|node| node.id == Some(id)) else { return };
        let stores_nothing = node.lies_to_manager.stores_nothing;
        let (encoding, maker) = (content::encoding(&block), self.clients[number].maker());
        let put = node.put(Some(maker), (block, encoding), stored(&block), (durable, insists), &self.runtime);
        let Ok(receipt) = put else {
            self.clients[number].refused.insert(id);
            return self.note(format!("client {number} can't put {} at {id}", shown(&block)));
        };
        self.note(format!("client {number} puts {} at {id}, durable: {durable}", shown(&block)));
        // Of blocks that are put again a planted mistake makes something.
        if self.one_in(if self.plant == Plant::KnownPutIsBelieved { 2 } else { 10 }) {
            // The answer is lost: it is put again, there or elsewhere.
            if self.below(2) == 0 {
                self.client_puts_block(number, block, &[id]);
            }
            return;
        }
        let client = &mut self.clients[number];
        client.insists = false;
        let place = (block, id);
        client.places.insert(place);
        client.begun.insert(name(&block));
        if stores_nothing {
            client.held.remove(&place);
        } else if !client.manner.is_careless && !client.in_memory.contains(&id) {
            // What is in memory goes once disks have it, whoever holds it.
            client.held.insert(place);
        }
        if let Some(receipt) = receipt {
            client.secured.insert(place);
            client.receipts.push((id, receipt));
        }
    }

    fn client_syncs(&mut self, number: usize) {
        let client = &self.clients[number];
        let (needed, wanted) = (client.needed(), client.policy.at_commit());
        let unsecured = |chunk: &&Number| {
            let held = held_of(&client.secured, **chunk, &client.in_memory);
            !suffices(held.iter().copied(), wanted)
        };
        let is_asked = !asks_for_no_receipts(self.plant);
        let Some(chunk) = needed.iter().find(unsecured).copied().filter(|_| is_asked) else {
            self.clients[number].step = Step::Commit;
            return;
        };
        let mut open =
            client.places.difference(&client.secured).filter(|(block, _)| block.chunk == id(chunk));
        let Some((_, id)) = open.next().copied() else {
            self.clients[number].step = Step::Ask;
            return;
        };
        let is_needed = |block: &BlockId| needed.contains(&name(block));
        let asked = client.places.iter().filter(|(block, at)| *at == id && is_needed(block));
        let asked: Vec<BlockId> = asked.map(|(block, _)| *block).collect();
        let node = self.nodes.iter().position(|node| node.id == Some(id) && node.is_up());
        let Some(node) = node else {
            // It doesn't answer.
            let client = &mut self.clients[number];
            client.places.retain(|place| place.1 != id || client.secured.contains(place));
            client.step = Step::Ask;
            return;
        };
        let receipt = self.nodes[node].receipt(asked.clone(), &self.runtime);
        let named: BTreeSet<BlockId> = receipt.blocks.iter().map(|stored| stored.block).collect();
        let (all, shown) = (all_shown(&asked), all_shown(&named));
        self.note(format!("client {number} has a receipt of {id} for {shown} of {all}"));
        let client = &mut self.clients[number];
        client.receipts.push((id, receipt));
        let mut lost = Vec::new();
        for block in asked {
            let place = (block, id);
            if named.contains(&block) {
                client.secured.insert(place);
            } else {
                client.places.remove(&place);
                client.secured.remove(&place);
                lost.extend(client.held.remove(&place).then_some(block));
            }
        }
        // A manager that has forgotten the session may have collected what it held.
        let session = client.session;
        let is_known = self.core.handle(ManagerRequest::Settle(session), self.now).is_ok();
        assert!(
            lost.is_empty() || !is_known,
            "{}, which client {number} stored and holds, are gone from {id}",
            all_shown(&lost)
        );
    }
}

/// Whether clients commit without having asked who has what, so that there is something to believe.
fn asks_for_no_receipts(plant: Plant) -> bool {
    matches!(plant, Plant::ClaimIsBelieved | Plant::OneFragmentTooFew)
}

fn short(request: &ManagerRequest) -> String {
    let text = format!("{request:?}");
    text.split_once(' ').map_or(text.clone(), |(name, _)| name.to_owned())
}
