//! The commit of a session: a version becomes visible only after every chunk it may name has enough copies (I1).
//!
//! The manager doesn't read maps, so it checks what it is told: the names of all chunks of the map, which come with the commit and
//! are kept with the version ([`super::references`]). What the session stored or found beside them was written over meanwhile, and
//! may be gone. A small map comes along in the commit and is looked into.

use std::collections::HashSet;

use stdchk_model::limits::{CHUNK_BYTES_MAX, FILE_BYTES_MAX, MAP_BYTES_MAX, MAP_INLINE_BYTES_MAX};
use stdchk_model::message::manager::{ManagerReply, ManagerRequest, VersionState};
use stdchk_model::{
    ChunkId, ChunkMap, ChunkRef, Durability, ErrorCode, Failure, Ino, KeyId, MapRoot, SessionId,
};

use super::inode::Version;
use super::sessions::Session;
use super::{Answer, Core, Now, check_length, unavailable};

/// Most chunks that a map can name: each takes some 40 bytes of it.
const NAMES_MAX: usize = (MAP_BYTES_MAX / 32) as usize;

impl Core {
    /// Takes names of chunks for the next commit of a session, whose message would be too long with them.
    pub(super) fn take_names(
        &mut self,
        id: SessionId,
        first: bool,
        chunks: Vec<ChunkId>,
        now: Now,
    ) -> Answer {
        check_length("named chunks", chunks.len())?;
        let session = self.sessions.get_mut(id, now.ms)?;
        if first {
            session.names = Vec::new();
        }
        if session.names.len() + chunks.len() > NAMES_MAX {
            return Err(Failure::new(ErrorCode::TooLong, format!("a file has at most {NAMES_MAX} chunks")));
        }
        self.sessions.charge(id);
        self.sessions.check_room(self.sessions.get(id)?, chunks.len())?;
        self.sessions.get_mut(id, now.ms)?.names.extend(chunks);
        self.sessions.charge(id);
        Ok(ManagerReply::Done)
    }

    /// The session that commits. Fewer changes than it has committed are refused: a request that was asked anew on another connection may
    /// arrive after those that followed.
    fn committing(&mut self, id: SessionId, changes: u64, now: Now) -> Result<&mut Session, Failure> {
        let session = self.sessions.get_mut(id, now.ms)?;
        match session.committed {
            Some(committed) if changes < committed => {
                Err(invalid("what the session has committed since holds later changes"))
            }
            _ => Ok(session),
        }
    }

    pub(super) fn commit(&mut self, request: ManagerRequest, now: Now) -> Answer {
        let ManagerRequest::Commit {
            session,
            root,
            size,
            mtime,
            stored_bytes,
            mut named,
            named_before,
            state,
            hole_bytes,
            receipts,
            key,
            changes,
        } = request
        else {
            return Err(invalid("not a commit"));
        };
        check_length("named chunks", named.len())?;
        if state == VersionState::Lost {
            return Err(invalid("what is committed isn't lost"));
        }
        if !receipts.is_empty() {
            self.take_receipts(session, &receipts, now)?;
        }
        let open = self.committing(session, changes, now)?;
        let (ino, begun_with, before) = (open.ino, open.durability, std::mem::take(&mut open.names));
        let maker = open.maker;
        let written_ms = open.opened_ms.map(|opened_ms| now.ms.saturating_sub(opened_ms));
        self.sessions.charge(session);
        if before.len() as u64 != named_before {
            let message =
                format!("{named_before} names were to come before the commit, and {} came", before.len());
            return Err(Failure::new(ErrorCode::Outdated, message).then("tell all of them again"));
        }
        named.extend(before);
        let referred = referred(&root, size, &named)?;
        let policy = self.namespace.policy(ino)?;
        if let (Some(asked), None) = (policy.encryption, key) {
            return Err(self.unencrypted(ino, asked));
        }
        // A policy that asks for more since the session began is carried out behind the commit: the client wrote by that of before.
        self.check_durable(session, &referred, &[policy.at_commit(), begun_with])?;
        let version = Version {
            size,
            mtime,
            committed_at: self.namespace.clock,
            position: self.namespace.position,
            state,
            stored_bytes,
            session,
            root: root.clone(),
            hole_bytes: hole_bytes.min(size),
            wanted: policy.redundancy.distance(),
            lived_ms: self.namespace.lived_ms,
            written_ms,
            key,
            maker,
        };
        self.references.introduce(&root, &referred);
        let (info, position) = self.namespace.commit(ino, version)?;
        // What was kept for the file in a spool is in this version.
        let kept_for = self.sessions.get(session)?.taken_up.unwrap_or(session);
        self.namespace.let_base_go(ino, kept_for);
        self.settle_references();
        let milestone = self.milestone(ino, info.version, position, &policy);
        // Where the only copy is on a disk from the beginning nothing ever lacks one.
        if policy.may_lack() || begun_with.in_memory.is_some() {
            self.references.extend(&root, milestone.span(), &mut self.locations, &self.registry);
        }
        let open = self.sessions.get_mut(session, now.ms)?;
        open.committed = open.committed.max(Some(changes));
        if state != VersionState::Open {
            self.sets_changed(ino);
        }
        self.commits += 1;
        referred.iter().for_each(|chunk| self.locations.touch(chunk, now.ms));
        // What of the session's earlier chunks the version doesn't name, no version of this session will; those that were stored
        // while it was committed, the client asks for again.
        let (base, let_go) = self.sessions.rebase(session, &root, &referred)?;
        // A file may stay open for long, and nobody knows whether more is written.
        self.sessions.reserve(session, 0);
        self.build_on(Some(&root), base.as_ref());
        let_go.iter().for_each(|chunk| self.locations.touch(chunk, now.ms));
        let hold = self.hold(milestone, self.sessions.get(session)?.base_at, &policy);
        let attr = self.namespace.attr(ino)?;
        Ok(ManagerReply::Version { info: Some(info), root: Some(root), attr, hold })
    }

    /// The failure of a session that began before its folder asked for encryption.
    fn unencrypted(&self, ino: Ino, asked: KeyId) -> Failure {
        let path = self.namespace.path(ino);
        let what = format!(
            "`{path}` was opened before its folder was to be encrypted with key {asked}: what was written isn't kept"
        );
        Failure::new(ErrorCode::NoKey, what).then("open the file again and write it anew")
    }

    /// Refuses chunks that are as safe as none of `needed` says, by what benefactors have said that they have. Of fragments those count that
    /// the session's writer can be sure of; of chunks that the version before has, whatever that rests on: the writer carries them over without
    /// having their bytes, and what it does with them makes nothing worse.
    fn check_durable(
        &self,
        session: SessionId,
        chunks: &HashSet<ChunkId>,
        needed: &[Durability],
    ) -> Result<(), Failure> {
        let session = self.sessions.get(session)?;
        let is_sure = |chunk: &ChunkId, needed: &Durability| {
            self.locations.suffices(chunk, &self.registry, *needed, session)
        };
        let is_sure = |chunk: &ChunkId| needed.iter().any(|needed| is_sure(chunk, needed));
        let doubted: HashSet<ChunkId> = chunks.iter().filter(|chunk| !is_sure(chunk)).copied().collect();
        if doubted.is_empty() {
            return Ok(());
        }
        let before = session.base.as_ref().map(|base| self.references.chunks_of(base, &self.locations));
        let may_be = |chunk: &ChunkId, needed: &Durability| {
            before.as_ref().is_some_and(|before| before.contains(chunk))
                && self.locations.may_suffice(chunk, &self.registry, *needed)
        };
        let is_safe =
            |chunk: &ChunkId| !doubted.contains(chunk) || needed.iter().any(|needed| may_be(chunk, needed));
        self.check_each(chunks, is_safe, needed)
    }

    /// Refuses chunks of which one isn't safe; `needed`: what would be.
    pub(super) fn check_each(
        &self,
        chunks: &HashSet<ChunkId>,
        is_safe: impl Fn(&ChunkId) -> bool,
        needed: &[Durability],
    ) -> Result<(), Failure> {
        let missing: Vec<&ChunkId> = chunks.iter().filter(|chunk| !is_safe(chunk)).collect();
        let Some(example) = missing.iter().min() else { return Ok(()) };
        let next = match self.registry.is_pending() {
            true => "benefactors are still reporting what they have: try again",
            false => "store them again",
        };
        let wanted = needed.iter().map(|needed| needed.distance).min().unwrap_or(1);
        let in_memory = needed.iter().filter_map(|needed| needed.in_memory).min();
        let what = match (wanted, in_memory) {
            (0 | 1, None) => "are not known to be durable anywhere".to_owned(),
            (0 | 1, Some(hosts)) => {
                format!("are not known to be on a disk, nor in the memory of {hosts} benefactors")
            }
            _ => format!(
                "would not survive the loss of {} benefactors as far as the manager knows",
                wanted - 1
            ),
        };
        Err(unavailable(format!(
            "{} of {} chunks {what}, for instance {example}",
            missing.len(),
            chunks.len()
        ))
        .then(next))
    }
}

/// The chunks that a new version names.
fn referred(root: &MapRoot, size: u64, named: &[ChunkId]) -> Result<HashSet<ChunkId>, Failure> {
    if size > FILE_BYTES_MAX {
        return Err(Failure::new(ErrorCode::TooLong, "a file has at most 2^63-1 bytes"));
    }
    match root {
        MapRoot::Inline { map } => {
            let map = inline_map(map)?;
            if map.size() != size {
                return Err(invalid("the chunk map and the commit disagree about the size of the file"));
            }
            Ok(map.chunks().iter().map(|chunk| chunk.id).collect())
        }
        MapRoot::Pieces { pieces, length } => {
            check_pieces(pieces, *length)?;
            Ok(named.iter().copied().chain(pieces.iter().map(|piece| piece.id)).collect())
        }
    }
}

/// Decodes a map that came inside a root.
pub(super) fn inline_map(bytes: &[u8]) -> Result<ChunkMap, Failure> {
    if bytes.len() > MAP_INLINE_BYTES_MAX {
        let message =
            format!("a chunk map over {MAP_INLINE_BYTES_MAX} bytes is stored in the pool, in pieces");
        return Err(Failure::new(ErrorCode::TooLong, message));
    }
    ChunkMap::decode(bytes).map_err(|error| invalid(error.to_string()))
}

fn check_pieces(pieces: &[ChunkRef], length: u64) -> Result<(), Failure> {
    check_length("pieces of a chunk map", pieces.len())?;
    pieces.iter().try_for_each(check_chunk)?;
    let total: u64 = pieces.iter().map(|piece| u64::from(piece.length)).sum();
    if pieces.is_empty() || total != length || length > MAP_BYTES_MAX {
        return Err(invalid(
            "the pieces of the chunk map don't add up to its length, or it is over its limit",
        ));
    }
    Ok(())
}

/// Refuses chunks of impossible length.
pub(super) fn check_chunk(chunk: &ChunkRef) -> Result<(), Failure> {
    let fits = usize::try_from(chunk.length).is_ok_and(|length| (1..=CHUNK_BYTES_MAX).contains(&length));
    match fits {
        true => Ok(()),
        false => Err(invalid(format!(
            "chunk {} can't have {} bytes: 1 to {CHUNK_BYTES_MAX} are allowed",
            chunk.id, chunk.length
        ))),
    }
}

pub(super) fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::Invalid, message)
}
