//! The commit of a session: a version becomes visible only after every chunk it may name has enough copies (I1).
//!
//! The manager doesn't carry maps, so it checks what it is told: the chunks that the client lists, which are all of the map's.
//! What the session stored or found beside them was written over meanwhile, and may be gone. A small map comes along in the
//! commit and is looked into.

use std::collections::HashSet;

use stdchk_model::limits::{
    CHUNK_BYTES_MAX, FILE_BYTES_MAX, LIST_ENTRIES_MAX, MAP_BYTES_MAX, MAP_INLINE_BYTES_MAX,
};
use stdchk_model::message::manager::{ManagerReply, ManagerRequest, VersionState};
use stdchk_model::{ChunkId, ChunkMap, ChunkRef, ErrorCode, Failure, MapRoot, SessionId};

use super::inode::Version;
use super::{Answer, Core, Now, check_length, unavailable};

impl Core {
    pub(super) fn commit(&mut self, request: ManagerRequest, now: Now) -> Answer {
        let ManagerRequest::Commit {
            session,
            root,
            size,
            mtime,
            stored_bytes,
            named,
            state,
            hole_bytes,
            receipts,
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
        let ino = self.sessions.get_mut(session, now.ms)?.ino;
        let referred = self.referred(session, &root, size, &named)?;
        let policy = self.namespace.policy(ino)?;
        self.check_durable(&referred, policy.distance_at_commit())?;
        let committed_at = self.namespace.clock;
        let hole_bytes = hole_bytes.min(size);
        let version = Version {
            size,
            mtime,
            committed_at,
            state,
            stored_bytes,
            session,
            root: root.clone(),
            hole_bytes,
        };
        let info = self.namespace.commit(ino, version)?;
        let milestone = self.milestone(ino, info.version, info.committed_at, &policy);
        self.sessions.get_mut(session, now.ms)?.closing = None;
        self.commits += 1;
        for chunk in &referred {
            let marking = self.marking.generation();
            let wanted = policy.redundancy.distance();
            // With one copy nothing ever lacks one.
            let span = (wanted > 1).then(|| milestone.span());
            self.locations.refer(chunk, wanted, span, marking, &self.registry);
            self.locations.touch(chunk, now.ms);
        }
        // What of the session's earlier chunks the version doesn't name, no version of this session will; those that were stored
        // while it was committed, the client asks for again.
        if named.len() < LIST_ENTRIES_MAX {
            let let_go = self.sessions.rebase(session, &root, &referred);
            let_go.iter().for_each(|chunk| self.locations.touch(chunk, now.ms));
            self.namespace.removals += u64::from(!let_go.is_empty());
        }
        let hold = self.hold(milestone, self.sessions.get(session)?.base_at, &policy);
        let attr = self.namespace.attr(ino)?;
        Ok(ManagerReply::Version { info: Some(info), root: Some(root), attr, hold })
    }

    /// The chunks that the new version names.
    fn referred(
        &self,
        session: SessionId,
        root: &MapRoot,
        size: u64,
        named: &[ChunkId],
    ) -> Result<HashSet<ChunkId>, Failure> {
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
                let mut referred: HashSet<ChunkId> = named.iter().copied().collect();
                referred.extend(pieces.iter().map(|piece| piece.id));
                // What didn't fit into the list is held by the session.
                if named.len() == LIST_ENTRIES_MAX {
                    referred.extend(self.sessions.get(session)?.held());
                }
                Ok(referred)
            }
        }
    }

    /// Refuses chunks that are nearer to loss than `wanted`, by what benefactors have said that they have.
    pub(super) fn check_durable(&self, chunks: &HashSet<ChunkId>, wanted: u8) -> Result<(), Failure> {
        let near = |chunk: &&ChunkId| self.locations.distance(chunk, &self.registry) < wanted;
        let missing: Vec<&ChunkId> = chunks.iter().filter(near).collect();
        let Some(example) = missing.iter().min() else { return Ok(()) };
        let next = match self.registry.is_pending() {
            true => "benefactors are still reporting what they have: try again",
            false => "store them again",
        };
        let what = match wanted {
            0 | 1 => "are not known to be durable anywhere".to_owned(),
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
