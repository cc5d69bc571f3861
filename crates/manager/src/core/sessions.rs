//! Sessions and their reservations: soft state that a client keeps alive and can open again.
//!
//! A session is one file being written. It holds what the collection must leave alone (the chunks that it stored or
//! found, and the version that it builds on) and a share of the free space, reserved in steps because nobody knows how
//! large a file becomes (paper, section IV.A). A client that falls silent for a lease loses its sessions.

use std::collections::{BTreeSet, HashMap, HashSet};

use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{TimeNs, VersionInfo};
use stdchk_model::{ChunkId, ClientId, Durability, ErrorCode, Failure, Ino, MapRoot, SessionId};

/// Most sessions at a time: bounds the manager's memory and the answer to a sign of life.
const SESSIONS_MAX: usize = 65_536;

/// One file being written.
#[derive(Debug)]
pub struct Session {
    /// Which member of the pool opened it: nobody else goes on with it.
    pub member: Option<MemberId>,
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
    /// Names of chunks for its next commit, as far as they came before it.
    pub names: Vec<ChunkId>,
    /// Space of the last grant that isn't known to be used, bytes.
    pub reserved: u64,
    /// When it was opened, milliseconds of the manager's life; `None`: at a manager before this one.
    pub opened_ms: Option<u64>,
    /// Where its next stripe starts.
    pub turn: u64,
    /// Its application was told that the file, of so many bytes, is closed; the commit has not come yet.
    pub closing: Option<u64>,
}

impl Session {
    /// Chunks that it found, or of which it brought receipts.
    pub fn held(&self) -> impl Iterator<Item = &ChunkId> {
        self.secured.iter().chain(&self.pinned)
    }

    /// Chunks that the collection must leave alone.
    pub fn spared(&self) -> impl Iterator<Item = &ChunkId> {
        self.held().chain(&self.asked)
    }
}

/// All sessions, by themselves and by client.
#[derive(Debug, Default)]
pub struct Sessions {
    sessions: HashMap<SessionId, Session>,
    clients: HashMap<ClientId, Client>,
    reserved: u64,
    opened: u64,
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
        (member, client): (Option<MemberId>, ClientId),
        ino: Ino,
        (base, base_at): (Option<MapRoot>, Option<TimeNs>),
        (durability, is_new): (Durability, bool),
        now_ms: u64,
    ) -> Result<bool, Failure> {
        if let Some(known) = self.sessions.get(&id) {
            if (known.member, known.client, known.ino) != (member, client, ino) {
                let message = format!("session {id} is open already, for another file or client");
                return Err(Failure::new(ErrorCode::Invalid, message));
            }
            self.hear(client, now_ms);
            return Ok(false);
        }
        if self.sessions.len() >= SESSIONS_MAX {
            let message = format!("{SESSIONS_MAX} files are being written already: close some first");
            return Err(Failure::new(ErrorCode::Unavailable, message));
        }
        let (secured, pinned, asked, turn) = (HashSet::new(), HashSet::new(), HashSet::new(), self.opened);
        self.opened += 1;
        let (names, reserved, closing) = (Vec::new(), 0, None);
        let (begun_with, taken_up) = (None, None);
        let session = Session {
            member,
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
            names,
            reserved,
            opened_ms: is_new.then_some(now_ms),
            turn,
            closing,
        };
        self.sessions.insert(id, session);
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
        session.begun_with = None;
        let held = [&mut session.secured, &mut session.pinned, &mut session.asked];
        let let_go =
            held.into_iter().flat_map(|held| held.extract_if(|chunk| !named.contains(chunk))).collect();
        Ok((base, let_go))
    }

    /// Ends a session; its reservation returns.
    pub fn close(&mut self, id: SessionId) -> Option<Session> {
        let session = self.sessions.remove(&id)?;
        self.reserved = self.reserved.saturating_sub(session.reserved);
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

    /// Sessions of clients that were silent for `lease_ms`.
    pub fn expired(&self, now_ms: u64, lease_ms: u64) -> Vec<SessionId> {
        let silent = |client: &&Client| now_ms.saturating_sub(client.heard_ms) >= lease_ms;
        self.clients.values().filter(silent).flat_map(|client| client.sessions.iter().copied()).collect()
    }

    /// Makes `bytes` what the session has reserved. It asks once it has sent what it was granted before: that counts as
    /// used at the benefactors by now, and must not be counted twice.
    pub fn reserve(&mut self, id: SessionId, bytes: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            self.reserved = self.reserved.saturating_sub(session.reserved).saturating_add(bytes);
            session.reserved = bytes;
        }
    }

    /// The session used `bytes` of its reservation.
    pub fn used(&mut self, id: SessionId, bytes: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            let returned = bytes.min(session.reserved);
            session.reserved -= returned;
            self.reserved = self.reserved.saturating_sub(returned);
        }
    }
}

fn unknown(id: SessionId) -> Failure {
    let message =
        format!("session {id} is not known (any more): it ended, expired, or the manager restarted");
    Failure::new(ErrorCode::Stale, message)
}
