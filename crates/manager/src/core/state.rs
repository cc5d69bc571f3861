//! What the manager tells about the pool as a whole: space, state, checkpoint sets.

use std::collections::BTreeMap;

use stdchk_model::limits::{CHUNK_BYTES_DEFAULT, LIST_ENTRIES_MAX};
use stdchk_model::message::benefactor::OwnerWish;
use stdchk_model::message::manager::{
    BenefactorInfo, BenefactorState, CheckpointSet, HeldBack, MemorySpace, PoolStatus, Space,
};
use stdchk_model::naming::Naming;
use stdchk_model::sets::{FileVersions, checkpoint_sets};
use stdchk_model::user::Access;
use stdchk_model::{BenefactorId, ErrorCode, Failure, Ino, Tier, size};

use super::benefactors::Benefactor;
use super::inode::{Body, Inode};
use super::locations::HeldSum;
use super::{Core, Now};

/// What a store holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Files, folders and other inodes.
    pub inodes: u64,
    /// Versions that were committed and are kept.
    pub versions: u64,
    /// Of each folder of the root its name, files and versions, in the order of names; files of the root itself are under no name.
    pub folders: Vec<(String, u64, u64)>,
}

impl Core {
    /// What the namespace holds.
    pub fn counts(&self) -> Counts {
        let mut folders = BTreeMap::<String, (u64, u64)>::new();
        for inode in self.namespace.inodes.values().filter(|inode| inode.links > 0) {
            let Body::File(file) = &inode.body else { continue };
            let (files, versions) = folders.entry(self.folder_of_root(inode)).or_default();
            *files += 1;
            *versions += count(file.versions.len());
        }
        let folders = folders.into_iter().map(|(name, (files, versions))| (name, files, versions));
        Counts {
            inodes: count(self.namespace.len()),
            versions: self.namespace.versions,
            folders: folders.collect(),
        }
    }

    /// The folder of the root in which something lies; empty: in the root itself.
    fn folder_of_root(&self, inode: &Inode) -> String {
        let (mut name, mut at) = ("", inode.parent);
        while at != Ino::ROOT
            && let Some(folder) = self.namespace.inodes.get(&at)
        {
            (name, at) = (&folder.name, folder.parent);
        }
        name.to_owned()
    }

    pub(super) fn space(&self) -> Space {
        let mut space = Space { inodes: count(self.namespace.len()), ..Space::default() };
        let (mut online, mut most_free) = (false, 0);
        for (id, benefactor) in self.registry.iter().filter(|(_, one)| one.tier == Tier::Disk) {
            if benefactor.state == BenefactorState::Online {
                let load = &benefactor.load;
                space.donated_bytes = space.donated_bytes.saturating_add(load.donated_bytes);
                space.used_bytes = space.used_bytes.saturating_add(load.used_bytes);
                let free_bytes = if self.registry.goes(id) { 0 } else { load.free_bytes };
                space.free_bytes = space.free_bytes.saturating_add(free_bytes);
                online = true;
            }
            // One that is away for a while has its room still.
            if benefactor.state != BenefactorState::Lost {
                most_free = benefactor.load.free_bytes.max(most_free);
            }
        }
        space.reserved_bytes = self.sessions.reserved();
        let promised = space.reserved_bytes.saturating_add(self.locations.in_memory_alone_bytes());
        space.free_bytes = space.free_bytes.saturating_sub(promised);
        // What is only reserved may come back.
        space.is_full = online && most_free < CHUNK_BYTES_DEFAULT as u64;
        space
    }

    /// The failure to find room for so many bytes, with what takes it.
    pub(super) fn no_space(&self, wanted: u64) -> Failure {
        let space = self.space();
        let message = format!(
            "no space for {}: of {} donated {} are used, {} are reserved by files being written and {} are free",
            size::human(wanted),
            size::human(space.donated_bytes),
            size::human(space.used_bytes),
            size::human(space.reserved_bytes),
            size::human(space.free_bytes)
        );
        let message = match self.namespace.older_versions() {
            (0, _) => message,
            (versions, bytes) => format!(
                "{message}; {versions} older versions of files are kept ({} of {} of content)",
                size::human(bytes),
                size::human(self.namespace.logical_bytes)
            ),
        };
        let held = self.locations.holdings.sum_of_backups();
        let message = match held.bytes {
            0 => message,
            bytes => format!("{message}; registered backups hold {} of removed files", size::human(bytes)),
        };
        let waits = self.registry.iter().any(|(_, benefactor)| benefactor.load.wish != OwnerWish::Serve);
        let next = match waits {
            _ if held.bytes > 0 => {
                "give backups up that `stdchk status` lists (`stdchk manager backup --release COMMIT`), remove files, or add \
                 benefactors"
            }
            true => {
                "have benefactors resumed that are paused or drained (`stdchk benefactor resume`), or add some"
            }
            false if self.namespace.older_versions().0 > 0 => {
                "remove files, or older versions (`stdchk du` shows what they take; `stdchk rm NAME@VERSION` removes one, \
                 `stdchk policy set APP versions=replace:1` those of files that belong to no set), or add benefactors"
            }
            false => "remove files, or add benefactors",
        };
        Failure::new(ErrorCode::NoSpace, message).then(next)
    }

    /// What those have that keep blocks in memory.
    fn memory(&self) -> MemorySpace {
        let chunks_alone = self.locations.exposure().total().in_memory;
        let mut memory = MemorySpace { chunks_alone, ..MemorySpace::default() };
        let those = self.registry.iter().filter(|(_, one)| one.tier == Tier::Memory);
        for (_, one) in those.filter(|(_, one)| one.state == BenefactorState::Online) {
            memory.benefactors += 1;
            memory.donated_bytes = memory.donated_bytes.saturating_add(one.load.donated_bytes);
            memory.used_bytes = memory.used_bytes.saturating_add(one.load.used_bytes);
            memory.free_bytes = memory.free_bytes.saturating_add(one.load.free_bytes);
        }
        memory
    }

    /// Free space if one reservation of `reserved` bytes didn't count, bytes. What lies in memory alone is to come to disks, so it has its place there.
    pub(super) fn free_beside(&self, reserved: u64, now: Now) -> u64 {
        let hosts = self.registry.hosts();
        let online = hosts.iter().filter(|host| host.online);
        let borrowed = self.registry.borrowed_bytes(now.ms);
        let free = online.map(|host| host.free_bytes).fold(borrowed, u64::saturating_add);
        let promised = self.sessions.reserved().saturating_sub(reserved);
        free.saturating_sub(promised).saturating_sub(self.locations.in_memory_alone_bytes())
    }

    pub(super) fn status(&self, now: Now) -> PoolStatus {
        let (totals, moving) = (self.locations.totals(), self.locations.moving());
        // What nobody is known to have, somebody may have who has not reported yet.
        let may_come = self.registry.unreported().next().is_some();
        let (older_versions, older_bytes) = self.namespace.older_versions();
        PoolStatus {
            manager_pid: self.setting.pid,
            uptime_ms: now.ms,
            benefactors: self.infos(now),
            space: self.space(),
            sessions: count(self.sessions.len()),
            versions: self.namespace.versions,
            logical_bytes: self.namespace.logical_bytes,
            older_versions,
            older_bytes,
            versions_lost: count(self.namespace.lost.len()),
            chunks: totals.chunks,
            unique_bytes: totals.unique_bytes,
            stored_bytes: totals.stored_bytes,
            chunks_away: totals.away + if may_come { totals.gone } else { 0 },
            chunks_lost: if may_come { 0 } else { totals.gone },
            chunks_at_risk: count(self.locations.unfinished_count()) - moving.chunks,
            repairs_pending: count(self.locations.unfinished_count().max(self.copies.len())),
            repairs_done: self.copies.done,
            damaged_found: self.damaged_found,
            commits: self.commits,
            set_back: self.history.witnesses(),
            counting: self.is_counting(),
            chunks_stuck: self.locations.exposure().stuck().chunks,
            exposed_chunks: self.locations.exposure().total().chunks,
            exposed_bytes: self.locations.exposure().total().bytes,
            exposed: self.exposed_sets(),
            // Who has the store and the journal says so.
            store_is_full: false,
            keepers: Vec::new(),
            managers: Vec::new(),
            etcd: None,
            chunks_moving: moving.chunks,
            chunks_unmovable: moving.stuck,
            memory: self.memory(),
            held: self.held(now),
            broken: self.checks.broken(&self.members),
            kept_bases: self.kept_bases(),
        }
    }

    /// All benefactors, with all that is known of them.
    fn infos(&self, now: Now) -> Vec<BenefactorInfo> {
        let timing = &self.setting.timing;
        let info = |(id, benefactor): (BenefactorId, &Benefactor)| {
            let host = benefactor.member.map(|member| self.members.host(&member)).unwrap_or_default();
            Some(BenefactorInfo { host, ..self.registry.info_in_full(id, now.ms, timing)? })
        };
        self.registry.iter().filter_map(info).collect()
    }

    /// What is kept for states that somebody may return to.
    fn held(&self, now: Now) -> HeldBack {
        let HeldSum { chunks, bytes } = self.locations.holdings.sum_of_backups();
        HeldBack { backups: self.registered_backups(), chunks, bytes, stopped: self.stopped(now) }
    }

    /// The sets of a folder that fit a message.
    pub(super) fn sets(&self, ino: Ino) -> Result<Vec<CheckpointSet>, Failure> {
        self.sets_of(ino, &|folder| self.namespace.lets(folder, Access::LIST)).map(within_a_message)
    }

    pub(super) fn all_sets(&self, ino: Ino) -> Result<Vec<CheckpointSet>, Failure> {
        self.sets_of(ino, &|_| true)
    }

    fn sets_of(&self, ino: Ino, is_seen: &dyn Fn(Ino) -> bool) -> Result<Vec<CheckpointSet>, Failure> {
        let policy = self.namespace.policy(ino)?;
        let naming: Naming = policy.naming.parse().map_err(|error| {
            Failure::new(ErrorCode::Invalid, format!("`naming` of directory {ino}: {error}"))
        })?;
        let mut files = Vec::new();
        self.collect_files(ino, "", is_seen, &mut files)?;
        let app = self.namespace.path(ino);
        let noted = self.namespace.noted.get(&ino);
        let taught = noted.and_then(|noted| noted.taught.as_ref());
        let mut sets = checkpoint_sets(&app, &files, &naming, policy.ranks, taught);
        for set in &mut sets {
            set.sealed = noted.is_some_and(|noted| noted.sealed.contains(&set.timestep));
        }
        self.tell_exposure(&mut sets);
        Ok(sets)
    }

    pub(super) fn collect_files(
        &self,
        ino: Ino,
        path: &str,
        is_seen: &dyn Fn(Ino) -> bool,
        files: &mut Vec<FileVersions>,
    ) -> Result<(), Failure> {
        let mut below = vec![(ino, path.to_owned())];
        while let Some((ino, path)) = below.pop() {
            for (name, child) in &self.namespace.directory(ino)?.entries {
                let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                match &self.namespace.inode(*child)?.body {
                    Body::Directory(_) if !is_seen(*child) => {}
                    Body::Directory(_) => below.push((*child, path)),
                    Body::File(file) => {
                        let versions = file.versions.iter();
                        let versions = versions.map(|(number, version)| version.info(number)).collect();
                        files.push(FileVersions { path, ino: *child, versions });
                    }
                    Body::Symlink(_) | Body::Meeting(_) => {}
                }
            }
        }
        Ok(())
    }
}

/// The newest sets whose members fit one message.
fn within_a_message(mut sets: Vec<CheckpointSet>) -> Vec<CheckpointSet> {
    let mut members = 0usize;
    let fit = sets.iter().take_while(|set| {
        members = members.saturating_add(set.members.len().max(1));
        members <= LIST_ENTRIES_MAX
    });
    let fit = fit.count().max(1);
    sets.truncate(fit);
    sets
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
