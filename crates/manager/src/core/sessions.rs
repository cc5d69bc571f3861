//! Sessions and their reservations: soft state that a client keeps alive and can open again.
//!
//! A session is one file being written. It holds what the collection must leave alone (the chunks that it stored or
//! found, and the version that it builds on) and a share of the free space, reserved in steps because nobody knows how
//! large a file becomes (paper, section IV.A). A client that falls silent for a lease loses its sessions.
//!
//! Sessions and the names that they hold take memory, of which each member has its share ([`stdchk_model::shares`]).

use std::collections::{BTreeSet, HashMap, HashSet};

use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{TimeNs, VersionInfo};
use stdchk_model::shares::{Payer, Shares};
use stdchk_model::{
    ChunkId, ClientId, Durability, EncodingId, ErrorCode, Failure, Ino, Maker, MapRoot, SessionId, size,
};

/// Most sessions at a time: bounds the manager's memory and the answer to a sign of life.
const SESSIONS_MAX: u64 = 65_536;
/// Memory for all sessions and the names that they hold, unless the manager is told how much there is, bytes.
const MEMORY_BYTES_DEFAULT: u64 = 1 << 30;
/// What a session takes, with its places in tables and its client, bytes.
const SESSION_BYTES: u64 = 2 << 10;
/// What a name is taken for before a session holds it, bytes: 32, in tables that double as they grow. Afterwards the tables count.
const NAME_BYTES: u64 = 64;

/// One file being written.
#[derive(Debug)]
pub struct Session {
    /// As whom its writer codes fragments.
    pub maker: Maker,
    /// Who opened it: no other member goes on with it.
    pub payer: Payer,
    /// What it is known to take, bytes.
    charged: u64,
    pub client: ClientId,
    pub ino: Ino,
    /// The version that it builds on: that of when it began, then its own last one.
    pub base: Option<MapRoot>,
    /// That of when it began, until it commits.
    pub begun_with: Option<VersionInfo>,
    /// The session that was first to commit the file, of one that was taken up from a spool: what is kept is kept for that.
    pub taken_up: Option<SessionId>,
    /// Position of the version that the file had when the session began.
    pub base_at: Option<TimeNs>,
    /// How safe its chunks must be when they are committed, by the policy of when the session began.
    pub durability: Durability,
    /// Chunks of which it brought receipts.
    pub secured: HashSet<ChunkId>,
    /// Chunks of others that it asked for.
    pub pinned: HashSet<ChunkId>,
    /// Chunks that it asked for in vain. It is about to store them, perhaps where an older copy lies that nobody else wants.
    pub asked: HashSet<ChunkId>,
    /// Encodings of other makers that its writer would have made just so, of chunks that it found.
    pub vouched: HashSet<(ChunkId, EncodingId)>,
    /// Names of chunks for its next commit, as far as they came before it.
    pub names: Vec<ChunkId>,
    /// Space of the last grant that isn't known to be used, bytes.
    pub reserved: u64,
    /// When it was opened, milliseconds of the manager's life; `None`: at a manager before this one.
    pub opened_ms: Option<u64>,
    /// Where its next stripe starts.
    pub turn: u64,
    /// The last time at which its application was told that the file is closed before it was committed.
    pub closing: Option<EarlyClose>,
    /// How many of its changes its last commit had; `None`: there was none.
    pub committed: Option<u64>,
}

/// A file that its application takes for closed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EarlyClose {
    /// How many of its session's changes were closed.
    pub changes: u64,
    /// Its size, bytes.
    pub size: u64,
}

impl Session {
    /// Whether an encoding of which only its maker says that it makes the chunk counts for this session.
    pub fn trusts(&self, chunk: &ChunkId, encoding: EncodingId) -> bool {
        encoding.maker == self.maker || self.vouched.contains(&(*chunk, encoding))
    }

    /// The close that its application was told of and no commit has: one that began before the close says nothing of that.
    pub fn lost(&self) -> Option<EarlyClose> {
        self.closing.filter(|closing| Some(closing.changes) > self.committed)
    }

    /// Its writer would have made these encodings of chunks that it found: others are of no use to it.
    pub fn vouch(&mut self, encodings: Vec<(ChunkId, EncodingId)>) {
        let pinned = &self.pinned;
        self.vouched.extend(encodings.into_iter().filter(|(chunk, _)| pinned.contains(chunk)));
    }

    /// Chunks that it found, or of which it brought receipts.
    pub fn held(&self) -> impl Iterator<Item = &ChunkId> {
        self.secured.iter().chain(&self.pinned)
    }

    /// What it takes, bytes.
    fn bytes(&self) -> u64 {
        let sets = [&self.secured, &self.pinned, &self.asked].map(|names| table_bytes(names.capacity()));
        SESSION_BYTES + sets.iter().sum::<u64>() + (self.names.capacity() * size_of::<ChunkId>()) as u64
    }

    /// Chunks that the collection must leave alone.
    pub fn spared(&self) -> impl Iterator<Item = &ChunkId> {
        self.held().chain(&self.asked)
    }

    /// How many these are, if none is counted once more.
    pub fn spared_count(&self) -> usize {
        self.secured.len() + self.pinned.len() + self.asked.len()
    }

    /// Whether the collection must leave a chunk alone.
    pub fn spares(&self, chunk: &ChunkId) -> bool {
        [&self.secured, &self.pinned, &self.asked].iter().any(|names| names.contains(chunk))
    }
}

/// What a set of names takes with room for so many, bytes: a byte beside each name, and an eighth of the places free.
fn table_bytes(capacity: usize) -> u64 {
    match capacity {
        0 => 0,
        _ => ((capacity * 8 / 7).next_power_of_two() * (size_of::<ChunkId>() + 1)) as u64,
    }
}

/// All sessions, by themselves and by client.
#[derive(Debug)]
pub struct Sessions {
    sessions: HashMap<SessionId, Session>,
    clients: HashMap<ClientId, Client>,
    reserved: u64,
    /// The part of it that each member has, bytes.
    reserved_by: HashMap<MemberId, u64>,
    opened: u64,
    /// Sessions.
    places: Shares,
    /// Bytes.
    memory: Shares,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            sessions: HashMap::new(),
            clients: HashMap::new(),
            reserved: 0,
            reserved_by: HashMap::new(),
            opened: 0,
            places: Shares::new(SESSIONS_MAX),
            memory: Shares::new(MEMORY_BYTES_DEFAULT),
        }
    }
}

#[derive(Debug, Default)]
struct Client {
    heard_ms: u64,
    sessions: BTreeSet<SessionId>,
}

impl Sessions {
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Space reserved by all sessions and not used, bytes.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Space that the other sessions of its member have reserved and not used, bytes; 0 on the manager's own machine, whose owner runs the pool.
    pub fn reserved_beside(&self, session: &Session) -> u64 {
        let member = session.payer.member;
        let of_member = member.and_then(|member| self.reserved_by.get(&member)).copied().unwrap_or(0);
        of_member.saturating_sub(session.reserved)
    }

    /// How much memory all of them may take, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.all()
    }

    /// Sets how much memory all of them may take, bytes.
    pub fn may_take(&mut self, bytes: u64) {
        self.memory.resize(bytes);
    }

    /// Refuses names beyond the share of whoever opened the session. [`Sessions::charge`] notes what was added.
    pub fn check_room(&self, session: &Session, names: usize) -> Result<(), Failure> {
        self.refuse_beyond(session.payer, names as u64 * NAME_BYTES)
    }

    fn refuse_beyond(&self, payer: Payer, bytes: u64) -> Result<(), Failure> {
        // Who has more than its share since others came keeps it, and may ask for it again.
        if bytes == 0 || self.memory.may_take(payer, bytes) {
            return Ok(());
        }
        let held = size::human(self.memory.held_by(payer));
        let message = format!(
            "what this {} is writing takes {held} of the manager's memory already, which is its share at present",
            if payer.user.is_some() { "user" } else { "member" }
        );
        Err(Failure::new(ErrorCode::Unavailable, message)
            .then("close files that are being written, or write larger chunks"))
    }

    /// Takes note of what a session holds by now.
    pub fn charge(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let (before, now) = (session.charged, session.bytes());
        session.charged = now;
        let payer = session.payer;
        self.memory.take(payer, now.saturating_sub(before));
        self.memory.give_back(payer, before.saturating_sub(now));
    }

    pub fn values(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values()
    }

    pub fn contains(&self, id: &SessionId) -> bool {
        self.sessions.contains_key(id)
    }

    pub fn get(&self, id: SessionId) -> Result<&Session, Failure> {
        self.sessions.get(&id).ok_or_else(|| unknown(id))
    }

    /// The session, for a request of its client, which is a sign of life.
    pub fn get_mut(&mut self, id: SessionId, now_ms: u64) -> Result<&mut Session, Failure> {
        let session = self.sessions.get_mut(&id).ok_or_else(|| unknown(id))?;
        if let Some(client) = self.clients.get_mut(&session.client) {
            client.heard_ms = now_ms;
        }
        Ok(session)
    }

    /// Opens a session; false if it was open already, with the same file.
    pub fn open(
        &mut self,
        id: SessionId,
        (payer, maker, client): (Payer, Maker, ClientId),
        ino: Ino,
        (base, base_at): (Option<MapRoot>, Option<TimeNs>),
        (durability, is_new): (Durability, bool),
        now_ms: u64,
    ) -> Result<bool, Failure> {
        if let Some(known) = self.sessions.get(&id) {
            if (known.payer.member, known.maker, known.client, known.ino)
                != (payer.member, maker, client, ino)
            {
                let message = format!("session {id} is open already, for another file or client");
                return Err(Failure::new(ErrorCode::Invalid, message));
            }
            self.hear(client, now_ms);
            return Ok(false);
        }
        if !self.places.may_take(payer, 1) {
            let (own, all) = (self.places.held_by(payer), self.sessions.len());
            let message = format!(
                "{own} of the {all} files that are being written are those of this member or user: close some first"
            );
            return Err(Failure::new(ErrorCode::Unavailable, message));
        }
        self.refuse_beyond(payer, SESSION_BYTES)?;
        self.places.take(payer, 1);
        let (secured, pinned, asked, turn) = (HashSet::new(), HashSet::new(), HashSet::new(), self.opened);
        self.opened += 1;
        let (names, reserved, closing, vouched) = (Vec::new(), 0, None, HashSet::new());
        let (begun_with, taken_up) = (None, None);
        let session = Session {
            maker,
            payer,
            charged: 0,
            client,
            ino,
            base,
            begun_with,
            taken_up,
            base_at,
            durability,
            secured,
            pinned,
            asked,
            vouched,
            names,
            reserved,
            opened_ms: is_new.then_some(now_ms),
            turn,
            closing,
            committed: None,
        };
        self.sessions.insert(id, session);
        self.charge(id);
        let client = self.clients.entry(client).or_default();
        client.heard_ms = now_ms;
        client.sessions.insert(id);
        Ok(true)
    }

    /// The session committed a version, on which it builds from now on, and holds no other chunks than those that this names. On what
    /// it built before, and the chunks that it held beside them.
    pub fn rebase(
        &mut self,
        id: SessionId,
        root: &MapRoot,
        named: &HashSet<ChunkId>,
    ) -> Result<(Option<MapRoot>, Vec<ChunkId>), Failure> {
        let session = self.sessions.get_mut(&id).ok_or_else(|| unknown(id))?;
        let base = session.base.replace(root.clone());
        session.vouched.retain(|(chunk, _)| named.contains(chunk));
        session.begun_with = None;
        let held = [&mut session.secured, &mut session.pinned, &mut session.asked];
        let mut let_go = Vec::new();
        for held in held {
            let_go.extend(held.extract_if(|chunk| !named.contains(chunk)));
            held.shrink_to_fit();
        }
        self.charge(id);
        Ok((base, let_go))
    }

    /// Ends a session; its reservation returns.
    pub fn close(&mut self, id: SessionId) -> Option<Session> {
        self.reserve(id, 0);
        let session = self.sessions.remove(&id)?;
        self.places.give_back(session.payer, 1);
        self.memory.give_back(session.payer, session.charged);
        if let Some(client) = self.clients.get_mut(&session.client) {
            client.sessions.remove(&id);
            if client.sessions.is_empty() {
                self.clients.remove(&session.client);
            }
        }
        Some(session)
    }

    /// A sign of life of a client; its sessions.
    pub fn hear(&mut self, client: ClientId, now_ms: u64) -> Vec<SessionId> {
        let Some(client) = self.clients.get_mut(&client) else { return Vec::new() };
        client.heard_ms = now_ms;
        client.sessions.iter().copied().collect()
    }

    /// Nobody's silence means anything until now.
    pub fn hear_all(&mut self, now_ms: u64) {
        self.clients.values_mut().for_each(|client| client.heard_ms = now_ms);
    }

    /// Sessions of clients that were silent for `lease_ms`, in an order of their own: a chunk that is held stays as far from loss as the last of
    /// them wanted it.
    pub fn expired(&self, now_ms: u64, lease_ms: u64) -> Vec<SessionId> {
        let silent = |client: &&Client| now_ms.saturating_sub(client.heard_ms) >= lease_ms;
        let clients = self.clients.values().filter(silent);
        let mut expired: Vec<SessionId> =
            clients.flat_map(|client| client.sessions.iter().copied()).collect();
        expired.sort_unstable();
        expired
    }

    /// Makes `bytes` what the session has reserved. It asks once it has sent what it was granted before: that counts as
    /// used at the benefactors by now, and must not be counted twice.
    pub fn reserve(&mut self, id: SessionId, bytes: u64) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let before = std::mem::replace(&mut session.reserved, bytes);
        self.reserved = self.reserved.saturating_sub(before).saturating_add(bytes);
        if let Some(member) = session.payer.member {
            let of_member = self.reserved_by.entry(member).or_default();
            *of_member = of_member.saturating_sub(before).saturating_add(bytes);
            if *of_member == 0 {
                self.reserved_by.remove(&member);
            }
        }
    }

    /// The session used `bytes` of its reservation.
    pub fn used(&mut self, id: SessionId, bytes: u64) {
        if let Some(session) = self.sessions.get(&id) {
            self.reserve(id, session.reserved.saturating_sub(bytes));
        }
    }
}

fn unknown(id: SessionId) -> Failure {
    let message =
        format!("session {id} is not known (any more): it ended, expired, or the manager restarted");
    Failure::new(ErrorCode::Stale, message)
}
