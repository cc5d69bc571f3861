//! Checkpoint sets whose files lie in containers: a container is committed like any file, then takes the place of all
//! members' own chunks in one step.
//!
//! A container has no name. While it is written its session keeps it; once the step is done, the members' versions say
//! where its map is, and it lives as long as one of them does. The step asks for all that makes it safe to let the members'
//! own chunks go, so whatever dies whenever, the members have their own chunks or the container.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;

use stdchk_model::message::manager::{ManagerReply, PackedMembers, SetState};
use stdchk_model::{
    ChunkId, ClientId, Durability, ErrorCode, Failure, InContainer, Ino, KeyId, MapRoot, SessionId, Timestep,
};

use super::{Answer, Core, Now, check_length, unavailable};

/// A version, and what it becomes.
pub(super) struct Replaced {
    pub ino: Ino,
    pub version: u64,
    pub root: MapRoot,
    /// Its share of what the container took, by size, bytes.
    pub stored_bytes: u64,
    /// The key with which the container is encrypted.
    pub key: Option<KeyId>,
}

impl Core {
    pub(super) fn open_container(
        &mut self,
        id: SessionId,
        client: ClientId,
        folder: Ino,
        now: Now,
    ) -> Answer {
        let ino = match self.sessions.get(id) {
            Ok(session) => session.ino,
            Err(_) => self.namespace.make_unnamed(folder)?,
        };
        // Without its session nobody would ever remove it.
        self.open_session(id, client, (ino, None), None, now).inspect_err(|_| self.namespace.drop_unused(ino))
    }

    pub(super) fn aggregate(
        &mut self,
        folder: Ino,
        timestep: Timestep,
        containers: &[PackedMembers],
        now: Now,
    ) -> Answer {
        check_length("containers", containers.len())?;
        check_length("members", containers.iter().map(|packed| packed.members.len()).sum())?;
        let mut replaced = Vec::new();
        for packed in containers {
            self.sessions.get_mut(packed.session, now.ms)?;
            replaced.extend(self.replaced(packed)?);
        }
        if replaced.iter().all(|member| self.namespace.is_replaced(member)) {
            return Ok(ManagerReply::Done); // The first answer was lost.
        }
        self.check_encrypted(&replaced)?;
        self.check_unwritten(&replaced)?;
        let wanted = self.redundancy_wanted(folder, &replaced)?;
        for packed in containers {
            self.check_redundant(packed.session, wanted)?;
        }
        // Last, as it looks through the whole folder.
        self.check_set(folder, timestep, &replaced)?;
        replaced.into_iter().try_for_each(|member| self.namespace.replace(member))?;
        self.commits += 1;
        Ok(ManagerReply::Done)
    }

    /// What the members of one container become.
    fn replaced(&self, packed: &PackedMembers) -> Result<Vec<Replaced>, Failure> {
        let (container, stored_bytes, key) = self.namespace.committed_by(packed.session)?;
        let sizes: Vec<u64> = packed
            .members
            .iter()
            .map(|(ino, version)| self.namespace.size_of(*ino, *version))
            .collect::<Result<_, Failure>>()?;
        let total = sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size));
        let members = packed.members.iter().zip(&sizes);
        (0..)
            .zip(members)
            .map(|(file, ((ino, version), size))| {
                let place = InContainer { size: *size, file, container: container.clone() };
                let map = place.encode().map_err(invalid)?;
                let stored_bytes = share(stored_bytes, *size, total);
                Ok(Replaced {
                    ino: *ino,
                    version: *version,
                    root: MapRoot::Inline { map },
                    stored_bytes,
                    key,
                })
            })
            .collect()
    }

    /// Refuses members that are not all of a complete set, or lie in containers already.
    fn check_set(&self, folder: Ino, timestep: Timestep, replaced: &[Replaced]) -> Result<(), Failure> {
        let sets = self.all_sets(folder)?;
        let set = sets.iter().find(|set| set.timestep == timestep && set.state == SetState::Complete);
        let gone = || {
            let message = format!("timestep {timestep} is not (any more) the complete set that was packed");
            Failure::new(ErrorCode::NotFound, message)
        };
        let members = &set.ok_or_else(gone)?.members;
        let there: HashSet<(Ino, u64)> = members.iter().map(|member| (member.ino, member.version)).collect();
        let packed: HashSet<(Ino, u64)> =
            replaced.iter().map(|member| (member.ino, member.version)).collect();
        if there != packed || packed.len() != replaced.len() {
            return Err(gone());
        }
        if members.iter().all(|member| member.aggregated) {
            let message = format!("timestep {timestep} lies in containers already");
            return Err(Failure::new(ErrorCode::Exists, message));
        }
        Ok(())
    }

    /// Refuses a container in the clear for members that are encrypted, or are to be.
    fn check_encrypted(&self, replaced: &[Replaced]) -> Result<(), Failure> {
        for member in replaced.iter().filter(|member| member.key.is_none()) {
            let asked = self.namespace.policy(member.ino)?.encryption;
            let has = self.namespace.key_of(member.ino, member.version)?;
            if let Some(key) = asked.or(has) {
                let path = self.namespace.path(member.ino);
                let what =
                    format!("`{path}` is encrypted with key {key}, or is to be, and its container isn't");
                let next = "set `encryption` of the folder to that key, or leave the set as it is";
                return Err(Failure::new(ErrorCode::NoKey, what).then(next));
            }
        }
        Ok(())
    }

    /// Refuses members on whose chunks a session may build.
    fn check_unwritten(&self, replaced: &[Replaced]) -> Result<(), Failure> {
        if !self.settled {
            return Err(unavailable(
                "the manager started a short while ago and files of the set may be written by sessions that it doesn't \
                 know of yet: try again",
            ));
        }
        let written: HashSet<Ino> = self.sessions.values().map(|session| session.ino).collect();
        match replaced.iter().find(|member| written.contains(&member.ino)) {
            None => Ok(()),
            Some(member) => {
                let path = self.namespace.path(member.ino);
                Err(unavailable(format!("`{path}` is being written: try again once it is closed")))
            }
        }
    }

    /// The most that the folders of the members ask for: how far from loss the chunks of a container have to be in the end, and before it
    /// replaces anything. The container itself has no folder any more once the manager was restarted.
    fn redundancy_wanted(&self, folder: Ino, replaced: &[Replaced]) -> Result<(u8, u8), Failure> {
        let mut by_folder = HashMap::from([(folder, folder)]);
        for member in replaced {
            by_folder.insert(self.namespace.inode(member.ino)?.parent, member.ino);
        }
        let remaining = self.registry.remaining();
        let (mut in_the_end, mut before) = (0, 0);
        for ino in by_folder.into_values().chain([folder]) {
            let policy = self.namespace.policy(ino)?;
            in_the_end = policy.redundancy.distance().max(in_the_end);
            before = policy.redundancy.distance_with(remaining).max(policy.at_commit().distance).max(before);
        }
        Ok((in_the_end, before))
    }

    /// Refuses a container that would be less safe than what it replaces: its chunks have to be as far from loss as is wanted, as far as
    /// there are benefactors for that which are not lost, by what can be read now and stays where it is. From now on they are, whatever the container's own folder asks for.
    fn check_redundant(&mut self, session: SessionId, (in_the_end, before): (u8, u8)) -> Result<(), Failure> {
        self.namespace.want(session, in_the_end)?;
        self.settle_references();
        let (root, ..) = self.namespace.committed_by(session)?;
        let chunks = self.references.chunks_of(&root, &self.locations);
        let is_safe = |chunk: &ChunkId| {
            self.locations.get(chunk).is_some_and(|chunk| chunk.distance_reliable(&self.registry) >= before)
        };
        self.check_each(&chunks, is_safe, &[Durability::on_disks(before)])
    }
}

/// The part of `whole` that `size` is of `total`.
fn share(whole: u64, size: u64, total: u64) -> u64 {
    let part = u128::from(whole) * u128::from(size) / u128::from(total.max(1));
    u64::try_from(part).unwrap_or(u64::MAX)
}

fn invalid(error: impl Display) -> Failure {
    Failure::new(ErrorCode::Invalid, error.to_string())
}
