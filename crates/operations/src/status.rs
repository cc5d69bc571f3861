//! The state of a pool: manager, benefactors, space, savings, what lacks copies, and one word for all of it.

mod benefactors;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use stdchk_model::message::benefactor::{OwnerWish, StorageState};
use stdchk_model::message::manager::{
    self, Alone, BenefactorInfo, BenefactorState, BrokenEncodings, EtcdInfo, EtcdMember, EtcdTrouble,
    KeeperInfo, ManagerInfo, MemorySpace, PoolStatus, Space, Twin,
};
use stdchk_model::{Maker, SessionId, Tier, Timestep, size};

use self::benefactors::{NAMED_MAX, cannot_send_since, lasting};
use crate::error::{About, Code, Error, Result};
use crate::pool::Pool;
use crate::text::{self, time_exact};

/// Part of the donated space that should stay free, percent: below it new checkpoints may soon find no room.
const FREE_PERCENT_MIN: u64 = 5;

/// Time for a look whether a second manager with another state of the pool serves at one of the managers' addresses.
const OTHERS_LOOK: Duration = Duration::from_secs(1);

/// How a pool is, the worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// No manager answers, or it refuses this host.
    Down,
    /// The manager's store is an older copy: nothing is written or collected.
    SetBack,
    /// Benefactors have yet to tell a manager that was just started what they have.
    Starting,
    /// Content has no copy anywhere.
    Damaged,
    /// Content can't be read until benefactors that are away are back.
    Unavailable,
    /// Hardly any space is left.
    Full,
    /// All content can be read, and a benefactor is missing or copies can't be made.
    Degraded,
    /// Nothing of the above. Copies that are being made are no reason to worry.
    Healthy,
}

impl Condition {
    /// The word for it, as in JSON.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::SetBack => "set-back",
            Self::Starting => "starting",
            Self::Damaged => "damaged",
            Self::Unavailable => "unavailable",
            Self::Full => "full",
            Self::Degraded => "degraded",
            Self::Healthy => "healthy",
        }
    }
}

/// The process of the manager.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ManagerState {
    /// HOST:PORT.
    pub address: String,
    /// `online`, `unreachable`, or `refuses`: it lets this host not in.
    pub state: &'static str,
    /// Its process, on its own machine.
    pub pid: Option<u32>,
    /// Seconds since it started, without those in which it stood still.
    pub uptime_seconds: Option<u64>,
}

/// A benefactor, as the manager knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct BenefactorStatus {
    /// Its number.
    pub id: u32,
    /// Its process, on its own machine.
    pub pid: u32,
    /// HOST:PORT.
    pub address: String,
    /// Whether it is there.
    pub state: BenefactorState,
    /// Space that it gives, bytes.
    pub donated_bytes: u64,
    /// Space that blocks take, bytes.
    pub used_bytes: u64,
    /// Space for more, bytes.
    pub free_bytes: u64,
    /// Blocks that it has.
    pub blocks: u64,
    /// Requests that it works on.
    pub requests: u32,
    /// Its disk has failed, or can't be asked for its space: it serves what it has and takes nothing more.
    pub disk_failed: bool,
    /// What its owner wishes of it.
    pub wish: OwnerWish,
    /// Its machine is said to go soon; absent: nobody says so.
    pub going: Option<Going>,
    /// Space of blocks that it is to give back: the disk has less free than the floor, or more is taken than is donated, bytes.
    pub owed_bytes: u64,
    /// Space that near copies take, bytes: free for all else.
    pub near_bytes: u64,
    /// Whether it takes new blocks: `full` while as many clients send as may, `refusing` while its owner's work needs the disk.
    pub load: StorageState,
    /// Share of time for which its owner's work keeps the disk busy, percent; absent where that can't be measured.
    pub busy_percent: Option<u8>,
    /// Clients that send blocks.
    pub clients: u32,
    /// Time since it was last heard of, milliseconds.
    pub silent_ms: u64,
    /// What its owner says of where it stands.
    pub labels: BTreeMap<String, String>,
    /// Where it keeps blocks: what is in memory is lost with the machine and counts for nothing.
    pub tier: Tier,
    /// The name of its host; empty: it is one of the manager's machine.
    pub host: String,
    /// Its host was shut out of the pool: nothing counts of what it has.
    pub shut_out: bool,
    /// The error of its disk, if it has failed.
    pub disk_failure: Option<String>,
    /// Another process that has its number and is refused: its folder is a copy of this one's.
    pub twin: Option<RefusedTwin>,
    /// Other benefactors that it can't send to, by their numbers.
    pub cannot_send_to: Vec<u32>,
    /// Since when; absent: there are none.
    pub cannot_send_since: Option<String>,
}

/// A process that is refused since another one is the benefactor whose number it has.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RefusedTwin {
    /// HOST:PORT.
    pub address: String,
    /// Its process, on its own machine.
    pub pid: u32,
    /// Seconds for which it has been refused.
    pub seconds: u64,
}

/// A machine is said to go soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Going {
    /// In so many seconds; absent: nobody says when.
    pub in_seconds: Option<u64>,
}

/// Bytes on the three levels of saving: as readers see them, each chunk once, and as stored with all copies.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Savings {
    /// Bytes of all versions.
    pub logical_bytes: u64,
    /// Of these the bytes of versions that aren't their file's newest, as their readers see them: chunks that a newer version
    /// has as well are counted, too.
    pub older_bytes: u64,
    /// How many such versions there are.
    pub older_versions: u64,
    /// Bytes of all chunks, each once.
    pub unique_bytes: u64,
    /// Bytes of all blocks.
    pub stored_bytes: u64,
    /// Logical by unique bytes; absent while nothing is kept.
    pub ratio: Option<f64>,
}

/// What has fewer copies than its folder asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Exposures {
    /// Chunks.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The oldest of the sets to which they belong.
    pub sets: Vec<ExposedSet>,
}

/// A set of which chunks have fewer copies than its folder asks for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ExposedSet {
    /// Its folder.
    pub folder: String,
    /// Absent: files that belong to no set.
    pub timestep: Option<Timestep>,
    /// Chunks.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When the oldest of them was committed.
    pub since: Option<String>,
    /// Those chunks that can be read from memory alone.
    pub in_memory: u64,
}

/// A version that is kept because a file in the spool of a mount has parts of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct KeptBase {
    /// Which of all.
    #[serde(serialize_with = "shown")]
    pub id: SessionId,
    /// The file.
    pub path: String,
    /// The version.
    pub version: u64,
    /// Its size, bytes.
    pub version_bytes: u64,
    /// What the host calls itself on whose disk the spool is.
    pub host: String,
    /// What the spool holds of the file, bytes.
    pub spooled_bytes: u64,
    /// Since when.
    pub since: String,
}

fn shown<S: serde::Serializer>(id: &SessionId, out: S) -> Result<S::Ok, S::Error> {
    out.collect_str(id)
}

/// All that is known of a pool's state.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Status {
    /// The worst thing that can be said of the pool.
    pub health: Condition,
    /// All that is wrong, the worst first, and what to do about it.
    pub reasons: Vec<String>,
    /// The same for people: of many benefactors that are in the same trouble a few, and how many there are.
    #[serde(skip)]
    pub few_reasons: Vec<String>,
    /// The manager.
    pub manager: ManagerState,
    /// All benefactors that have not been given up.
    pub benefactors: Vec<BenefactorStatus>,
    /// Space on the disks of those that are on-line.
    pub space: Space,
    /// What there is in memory, which is no part of the space.
    pub memory: MemorySpace,
    /// Bytes before and after deduplication and coding.
    pub savings: Savings,
    /// Open sessions.
    pub sessions: u64,
    /// Versions of all files.
    pub versions: u64,
    /// Versions that were closed early and lost.
    pub versions_lost: u64,
    /// Commits since the manager's start.
    pub commits: u64,
    /// Chunks of which there are blocks.
    pub chunks: u64,
    /// Chunks that are nearer to loss than their folders ask for, and not lost.
    pub chunks_at_risk: u64,
    /// Chunks of which no copy can be made now.
    pub chunks_stuck: u64,
    /// Chunks whose copies are all at benefactors that are away.
    pub chunks_away: u64,
    /// Chunks that have no copy anywhere.
    pub chunks_lost: u64,
    /// Chunks that have all copies that are wanted, some of them at benefactors that are to let go of them: others are being made
    /// elsewhere.
    pub chunks_moving: u64,
    /// Those of them of which no copy can be made elsewhere now.
    pub chunks_unmovable: u64,
    /// Why that is so, and what to do about it.
    pub unmovable: Option<String>,
    /// What the loss of one more benefactor may cost.
    pub exposed: Exposures,
    /// Copies that are to be made.
    pub repairs_pending: u64,
    /// Copies that were made since the manager's start.
    pub repairs_done: u64,
    /// Damaged blocks that were found since the manager's start.
    pub damaged_found: u64,
    /// Who made encodings that benefactors found broken, within a day.
    pub broken_encodings: Vec<BrokenBy>,
    /// Benefactors have yet to say what they have, or chunks are still looked at: the figures are not final.
    pub counting: bool,
    /// Benefactors that remember commits which the manager's store lacks.
    pub set_back: Vec<u32>,
    /// What would come back if the manager's disk were lost.
    pub recovery: Recovery,
    /// What is kept of removed files, for states that somebody may return to.
    pub held_back: HeldBack,
    /// The managers that share the pool's state, the one that leads first; none if it is on one manager's disk.
    pub managers: Vec<ManagerStatus>,
    /// The etcd in which the pool's state is; absent: it is on the manager's disk.
    pub etcd: Option<EtcdStatus>,
    /// Versions that are kept for files in spools, the oldest first.
    pub kept_bases: Vec<KeptBase>,
}

/// The etcd in which the pool's state is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct EtcdStatus {
    /// Its members, as the manager that leads reaches them.
    pub members: Vec<String>,
    /// Its trouble, for people; absent: it has none.
    pub trouble: Option<String>,
    /// For how long, seconds.
    pub trouble_seconds: Option<u64>,
    /// For how long no other manager has stood by, seconds; absent: one does, or none has since this one leads.
    pub alone_seconds: Option<u64>,
    /// Those of its members that don't answer the manager that leads.
    pub silent: Vec<SilentMember>,
}

/// A member of etcd that doesn't answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SilentMember {
    /// HOST:PORT.
    pub member: String,
    /// For how long, seconds.
    pub seconds: u64,
    /// The cause, for people.
    pub cause: String,
}

/// Who made encodings whose fragments don't make their chunks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct BrokenBy {
    /// Its identity in the names of blocks, 16 hexadecimal digits.
    pub maker: String,
    /// Encodings.
    pub encodings: u64,
    /// The user for whom its certificates are, if they are for one.
    pub uid: Option<u32>,
    /// What the hosts call themselves that have such certificates.
    pub hosts: Vec<String>,
}

impl From<&BrokenEncodings> for BrokenBy {
    fn from(broken: &BrokenEncodings) -> Self {
        let BrokenEncodings { maker, count, uid, hosts } = broken.clone();
        Self { maker: maker.to_string(), encodings: count, uid, hosts }
    }
}

impl BrokenBy {
    /// Who that is, for people.
    fn shown(&self) -> String {
        let hosts = self.hosts.join(", ");
        match (self.uid, self.hosts.is_empty()) {
            (Some(uid), true) => format!("user {uid}"),
            (Some(uid), false) => format!("user {uid} at {hosts}"),
            (None, false) => hosts,
            (None, true) if self.maker == Maker::LOCAL.to_string() => {
                "a process of the pool's own user".to_owned()
            }
            (None, true) => format!("maker {}, whose member the pool doesn't know", self.maker),
        }
    }
}

/// A manager that leads or stands by.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ManagerStatus {
    /// Where it serves while it leads.
    pub addresses: Vec<String>,
    /// What its host calls itself.
    pub host: String,
    /// Its process there.
    pub pid: u32,
    /// Whether it leads.
    pub leads: bool,
}

/// What is kept of removed files, for states that somebody may return to.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct HeldBack {
    /// The backups of the manager's store that are registered, the oldest first.
    pub backups: Vec<RegisteredBackup>,
    /// Chunks that they hold, all together.
    pub chunks: u64,
    /// Bytes of these chunks with all copies.
    pub bytes: u64,
    /// Seconds for which nothing could be collected; absent: it can, or could a minute ago.
    pub stopped_seconds: Option<u64>,
    /// Why nothing can be collected.
    pub stopped_because: Option<String>,
}

/// A backup of the manager's store that is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct RegisteredBackup {
    /// The commit that it shows, by which it is given up.
    pub commit: u64,
    /// Identity of the manager's start that made the commit.
    pub start: u64,
    /// Seconds that the manager has still to run until it is given up.
    pub ends_in_seconds: u64,
    /// Chunks of removed files that it holds; other backups may hold them as well.
    pub chunks: u64,
    /// Bytes of these chunks with all copies.
    pub bytes: u64,
}

impl HeldBack {
    fn new(held: &manager::HeldBack) -> Self {
        let stopped = held.stopped.as_ref();
        Self {
            backups: held.backups.iter().map(registered).collect(),
            chunks: held.chunks,
            bytes: held.bytes,
            stopped_seconds: stopped.map(|stopped| stopped.for_ms / 1000),
            stopped_because: stopped.map(|stopped| stopped.why.clone()),
        }
    }
}

fn registered(backup: &manager::RegisteredBackup) -> RegisteredBackup {
    let manager::RegisteredBackup { commit, start, ends_in_ms, chunks, bytes } = *backup;
    RegisteredBackup { commit, start, ends_in_seconds: ends_in_ms / 1000, chunks, bytes }
}

/// What would come back if the manager's disk were lost: what two thirds of the keepers have.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Recovery {
    /// The last commits that would be missing; absent: fewer than two thirds of the keepers have anything.
    pub lacks_commits: Option<u64>,
    /// The benefactors that keep the manager's store.
    pub keepers: Vec<Keeper>,
}

/// A benefactor that keeps the manager's store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Keeper {
    /// The benefactor's number.
    pub benefactor: u32,
    /// The last commits, which it lacks; absent: it has said nothing since the manager started, has nothing yet, or takes all anew.
    pub lacks_commits: Option<u64>,
}

impl Pool {
    /// Keeps the version no longer that is kept for a file in a spool, which `id` begins the number of: what waits there may be lost.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::Code::NotFound): none is kept under such a number, or several are.
    pub async fn forget_spooled(&self, id: &str) -> Result<KeptBase> {
        let status = self.client.status().await.about(self.shown())?;
        let mut found = status.kept_bases.iter().filter(|base| base.kept_for.to_string().starts_with(id));
        let (Some(base), None) = (found.next(), found.next()) else {
            let next = "`stdchk status` lists the files in spools that keep a version, with their numbers";
            return Err(Error::new(
                Code::NotFound,
                id,
                "not one file in a spool has a number that begins so",
                next,
            ));
        };
        self.client.let_base_go(base.ino, base.kept_for).await.about(&base.path)?;
        Ok(kept_base(base))
    }

    /// How the pool is.
    ///
    /// # Errors
    /// [`Code::Unreachable`](crate::Code::Unreachable): the manager doesn't answer.
    pub async fn status(&self) -> Result<Status> {
        let status = self.client.status().await.about(self.shown())?;
        let mut status = Status::new(self.manager.clone(), &status);
        // Behind an address whose host is gone there is no second manager.
        let refused = tokio::time::timeout(OTHERS_LOOK, self.client.refused_managers()).await;
        refused.unwrap_or_default().into_iter().for_each(|refused| status.add_reason(refused));
        Ok(status)
    }
}

impl Status {
    /// The state of a pool of which no manager at these addresses can be asked, and why.
    #[must_use]
    pub fn down(address: String, reasons: Vec<String>) -> Self {
        let mut status = Self::new(address, &PoolStatus::default());
        status.health = Condition::Down;
        status.few_reasons.clone_from(&reasons);
        status.reasons = reasons;
        (status.manager.state, status.manager.pid, status.manager.uptime_seconds) =
            ("unreachable", None, None);
        status
    }

    fn new(address: String, status: &PoolStatus) -> Self {
        let sorted = |most| {
            let mut found = findings(status, most);
            found.sort_by_key(|(condition, _)| *condition);
            found
        };
        let (found, few) = (sorted(usize::MAX), sorted(NAMED_MAX));
        let pid = Some(status.manager_pid);
        let (logical_bytes, unique_bytes) = (status.logical_bytes, status.unique_bytes);
        let ratio = (unique_bytes > 0).then(|| logical_bytes as f64 / unique_bytes as f64);
        Self {
            health: found.first().map_or(Condition::Healthy, |(condition, _)| *condition),
            reasons: found.into_iter().map(|(_, reason)| reason).collect(),
            few_reasons: few.into_iter().map(|(_, reason)| reason).collect(),
            manager: ManagerState {
                address,
                state: "online",
                pid,
                uptime_seconds: Some(status.uptime_ms / 1000),
            },
            benefactors: status.benefactors.iter().map(benefactor).collect(),
            space: status.space,
            memory: status.memory,
            savings: Savings {
                logical_bytes,
                older_bytes: status.older_bytes,
                older_versions: status.older_versions,
                unique_bytes,
                stored_bytes: status.stored_bytes,
                ratio,
            },
            sessions: status.sessions,
            versions: status.versions,
            versions_lost: status.versions_lost,
            commits: status.commits,
            chunks: status.chunks,
            chunks_at_risk: status.chunks_at_risk,
            chunks_stuck: status.chunks_stuck,
            chunks_away: status.chunks_away,
            chunks_lost: status.chunks_lost,
            chunks_moving: status.chunks_moving,
            chunks_unmovable: status.chunks_unmovable,
            unmovable: unmovable(status),
            exposed: Exposures {
                chunks: status.exposed_chunks,
                bytes: status.exposed_bytes,
                sets: status.exposed.iter().map(exposed_set).collect(),
            },
            repairs_pending: status.repairs_pending,
            repairs_done: status.repairs_done,
            damaged_found: status.damaged_found,
            broken_encodings: status.broken.iter().map(BrokenBy::from).collect(),
            counting: status.counting,
            set_back: status.set_back.iter().map(|id| id.0).collect(),
            recovery: Recovery::new(&status.keepers),
            held_back: HeldBack::new(&status.held),
            managers: status.managers.iter().map(manager).collect(),
            etcd: status.etcd.as_ref().map(etcd),
            kept_bases: status.kept_bases.iter().map(kept_base).collect(),
        }
    }

    /// Adds something that is wrong beside the pool itself, such as with a mount of it.
    pub fn add_reason(&mut self, reason: String) {
        self.health = self.health.min(Condition::Degraded);
        self.few_reasons.push(reason.clone());
        self.reasons.push(reason);
    }
}

impl Recovery {
    fn new(infos: &[KeeperInfo]) -> Self {
        let mut lacks: Vec<u64> = infos.iter().filter_map(|keeper| keeper.lacks).collect();
        lacks.sort_unstable();
        let needed = (infos.len() * 2).div_ceil(3);
        let lacks_commits = needed.checked_sub(1).and_then(|last| lacks.get(last).copied());
        let keeper = |info: &KeeperInfo| Keeper { benefactor: info.id.0, lacks_commits: info.lacks };
        Self { lacks_commits, keepers: infos.iter().map(keeper).collect() }
    }
}

fn exposed_set(set: &manager::ExposedSet) -> ExposedSet {
    ExposedSet {
        folder: set.folder.clone(),
        timestep: set.timestep,
        chunks: set.exposed.chunks,
        bytes: set.exposed.bytes,
        since: set.exposed.since.map(time_exact),
        in_memory: set.exposed.in_memory,
    }
}

fn kept_base(base: &manager::KeptBase) -> KeptBase {
    KeptBase {
        id: base.kept_for,
        path: base.path.clone(),
        version: base.version,
        version_bytes: base.size,
        host: base.host.clone(),
        spooled_bytes: base.bytes,
        since: time_exact(base.since),
    }
}

fn manager(info: &ManagerInfo) -> ManagerStatus {
    let ManagerInfo { addresses, host, pid, leads } = info.clone();
    ManagerStatus { addresses, host, pid, leads }
}

fn etcd(info: &EtcdInfo) -> EtcdStatus {
    let EtcdInfo { members, trouble, alone, silent } = info.clone();
    let silent = silent.into_iter().map(|EtcdMember { member, trouble }| SilentMember {
        member,
        seconds: trouble.for_ms / 1000,
        cause: trouble.cause,
    });
    EtcdStatus {
        silent: silent.collect(),
        members,
        trouble_seconds: trouble.as_ref().map(|trouble| trouble.for_ms / 1000),
        trouble: trouble.map(|trouble| trouble.cause),
        alone_seconds: alone.map(|alone| alone.for_ms / 1000),
    }
}

/// The troubles of etcd, and of the managers that share it.
fn of_etcd(status: &PoolStatus) -> Vec<(Condition, String)> {
    let Some(EtcdInfo { members, trouble, alone, silent }) = &status.etcd else { return Vec::new() };
    let count = members.len();
    let members = members.join(", ");
    let mut found = Vec::new();
    // Of an etcd that is of no use all is said already.
    for EtcdMember { member, trouble } in silent.iter().filter(|_| trouble.is_none()) {
        let (member, cause) = (text::shown(member), text::shown(&trouble.cause));
        found.push((
            Condition::Degraded,
            format!(
                "the member of etcd at {member} has not answered for {}: {cause}; etcd goes on while more than half of its {count} members do: start it again",
                lasting(trouble.for_ms)
            ),
        ));
    }
    if let Some(EtcdTrouble { for_ms, cause }) = trouble {
        let (condition, means) = match status.store_is_full {
            true => (Condition::Full, "nothing new can be written"),
            false => (Condition::Degraded, "the manager will stop to lead"),
        };
        let cause = text::shown(cause);
        let lasts = lasting(*for_ms);
        found.push((
            condition,
            format!("etcd at {members}, for {lasts} so far: {cause}; until that is mended {means}"),
        ));
    }
    if let Some(Alone { for_ms, before }) = alone {
        let before = before
            .iter()
            .map(|info| format!("{} ({})", text::shown(&info.host), text::shown(&info.addresses.join(", "))));
        let before = Vec::from_iter(before).join("; ");
        found.push((
            Condition::Degraded,
            format!(
                "no other manager has stood by for {}, so the pool stands still when this one ends: {before} did; start it again, and \
                 see to it that it reaches etcd at {members}",
                lasting(*for_ms)
            ),
        ));
    }
    found
}

fn benefactor(info: &BenefactorInfo) -> BenefactorStatus {
    BenefactorStatus {
        id: info.id.0,
        pid: info.pid,
        address: info.address.clone(),
        state: info.state,
        donated_bytes: info.load.donated_bytes,
        used_bytes: info.load.used_bytes,
        free_bytes: info.load.free_bytes,
        blocks: info.load.blocks,
        requests: info.load.requests,
        disk_failed: info.load.disk_failed,
        wish: info.load.wish,
        going: info.load.notice.map(|notice| Going { in_seconds: notice.in_ms.map(|ms| ms.div_ceil(1000)) }),
        owed_bytes: info.load.owed_bytes,
        near_bytes: info.load.near_bytes,
        load: info.load.state,
        busy_percent: info.load.busy_percent,
        clients: info.load.clients,
        silent_ms: info.silent_ms,
        labels: info.labels.iter().cloned().collect(),
        tier: info.tier,
        host: info.host.clone(),
        shut_out: info.is_shut_out,
        disk_failure: info.disk.as_ref().map(|failure| failure.cause.clone()),
        twin: info.twin.as_ref().map(|twin| {
            let Twin { address, pid, for_ms } = twin.clone();
            RefusedTwin { address, pid, seconds: for_ms / 1000 }
        }),
        cannot_send_to: info.unreached.iter().map(|id| id.0).collect(),
        cannot_send_since: cannot_send_since(info).map(time_exact),
    }
}

/// Why benefactors can't let go of what they are to let go of.
fn unmovable(status: &PoolStatus) -> Option<String> {
    let chunks = status.chunks_unmovable;
    let online = |info: &&BenefactorInfo| info.state == BenefactorState::Online;
    let owes = |info: &&BenefactorInfo| info.load.owed_bytes > 0;
    let owing = status.benefactors.iter().filter(online).filter(owes);
    let owing =
        owing.map(|info| format!("; b{} owes its owner {}", info.id.0, size::human(info.load.owed_bytes)));
    let owing: String = owing.collect();
    let takes = |info: &&BenefactorInfo| {
        online(info) && info.load.wish == OwnerWish::Serve && info.load.notice.is_none() && !owes(info)
    };
    let others: Vec<&BenefactorInfo> = status.benefactors.iter().filter(takes).collect();
    let free = size::human(others.iter().map(|info| info.load.free_bytes).sum());
    (chunks > 0).then(|| {
        format!(
            "{chunks} chunks can't be copied elsewhere, so the benefactors that are to let go of them keep them: {} others take \
             blocks, with {free} free, and a chunk takes as many of them, each with room for it, as its folder's `redundancy` asks \
             for; start more, make room, or `stdchk benefactor resume` those that are drained{owing}",
            others.len()
        )
    })
}

/// Who stored fragments that don't make their chunks.
fn broken_encodings(status: &PoolStatus) -> Option<String> {
    let count: u64 = status.broken.iter().map(|broken| broken.count).sum();
    let makers: Vec<String> = status.broken.iter().map(|broken| BrokenBy::from(broken).shown()).collect();
    (count > 0).then(|| {
        format!(
            "{count} chunks had fragments that match their names and don't make the chunk, within a day; they count for nothing. Made by {}: \
             look after the memory of those hosts, or after who uses them, and shut out who means ill with `stdchk pool revoke`; \
             `stdchk verify` shows which files are hit",
            makers.join("; ")
        )
    })
}

/// All that is wrong; of what is wrong with single benefactors so much of each kind at most.
fn findings(status: &PoolStatus, most: usize) -> Vec<(Condition, String)> {
    let online = status.benefactors.iter().filter(|info| info.state == BenefactorState::Online).count();
    let space = &status.space;
    // Those that are away altogether are told of already.
    let stuck = status.chunks_stuck.saturating_sub(status.chunks_lost + status.chunks_away);
    let lost = status.versions_lost;
    // While benefactors have yet to report, what is missing may be with them.
    let unless_starting = |condition| if status.counting { Condition::Starting } else { condition };
    let mut found = Vec::new();
    if !status.set_back.is_empty() {
        let reason = format!(
            "the manager's store is an older copy: {} benefactors remember commits that it lacks, or have heard of a manager with a newer \
             state, so nothing is written or collected; put the newer store back while the pool is down, stop this manager if that one is \
             there, or give up what was stored since with `stdchk accept-older-store`",
            status.set_back.len()
        );
        found.push((Condition::SetBack, reason));
    }
    if status.counting && (status.chunks_lost + status.chunks_away > 0 || online == 0) {
        let reason = "benefactors have yet to tell the manager what they have: look again in half a minute";
        found.push((Condition::Starting, reason.to_owned()));
    }
    if status.chunks_lost > 0 {
        let reason = format!("{} chunks have no copy anywhere", status.chunks_lost);
        found.push((unless_starting(Condition::Damaged), reason));
    }
    if status.chunks_away > 0 {
        let reason = format!("{} chunks are only at benefactors that are away", status.chunks_away);
        found.push((unless_starting(Condition::Unavailable), reason));
    }
    if online == 0 {
        let reason = "no benefactor is on-line: nothing can be read or written".to_owned();
        found.push((unless_starting(Condition::Unavailable), reason));
    }
    found.extend(of_etcd(status));
    if status.store_is_full && status.etcd.is_none() {
        let reason = "the disk on which the manager keeps its store is full, so nothing new can be written: make room on that disk, or \
                      remove files from the pool";
        found.push((Condition::Full, reason.to_owned()));
    }
    let takes_nothing =
        |info: &&BenefactorInfo| info.state == BenefactorState::Online && info.load.wish != OwnerWish::Serve;
    let is_going =
        |info: &&BenefactorInfo| info.state == BenefactorState::Online && info.load.notice.is_some();
    if online > 0 && status.benefactors.iter().filter(takes_nothing).count() == online {
        let reason = "the owners of all benefactors that are on-line have paused or drained them, or their `--hours` do now, so nothing new can be written: \
                      `stdchk benefactor resume` takes them up again";
        found.push((Condition::Full, reason.to_owned()));
    } else if online > 0 && status.benefactors.iter().filter(is_going).count() == online {
        let reason = "the machines of all benefactors that are on-line are said to go soon: what is written now lies there alone";
        found.push((Condition::Degraded, reason.to_owned()));
    } else if online > 0 && space.free_bytes < space.donated_bytes / 100 * FREE_PERCENT_MIN {
        let (free, donated) = (size::human(space.free_bytes), size::human(space.donated_bytes));
        found.push((Condition::Full, format!("{free} of {donated} are free")));
    }
    let of_benefactors = benefactors::reasons(status, most);
    found.extend(of_benefactors.into_iter().map(|reason| (Condition::Degraded, reason)));
    if stuck > 0 {
        let reason = format!(
            "{stuck} chunks have fewer copies than their folder asks for, and no more can be made now: start more benefactors, \
             resume those that are paused, make room, or ask for less `redundancy`"
        );
        found.push((Condition::Degraded, reason));
    }
    found.extend(unmovable(status).map(|reason| (Condition::Degraded, reason)));
    found.extend(broken_encodings(status).map(|reason| (Condition::Degraded, reason)));
    if lost > 0 {
        let reason =
            format!("{lost} files were closed early and lost: `stdchk ls FOLDER --versions` shows which");
        found.push((Condition::Degraded, reason));
    }
    found
}

#[cfg(test)]
mod tests;
