//! Rest: nothing is in the way of anybody for some minutes. Then everything that was acknowledged can be read, the pool is as its
//! policies ask, and nothing is kept that nothing refers to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stdchk_client::Pool;
use stdchk_model::message::manager::{BenefactorState, PoolStatus};
use stdchk_model::policy::Semantics;
use stdchk_model::{ChunkId, ErrorCode, Failure, Ino, Tier};

use super::life::Life;
use super::model::{Content, Name, shown};
use super::plant::Plant;
use super::random::Random;
use super::work::{Deed, Worker};

/// Time in which all that clients have begun ends.
const DEEDS_END: Duration = Duration::from_secs(700);
/// Sessions of clients that were killed have expired, and so have requests that were lost.
const LEASES: Duration = Duration::from_secs(70);
/// Time in which a pool in which nobody does anything comes to be as its policies ask.
const REPAIR: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_secs(1);

impl Life {
    pub fn rest(&mut self) -> Result<(), String> {
        self.end_all();
        self.say("all is whole again");
        self.until("all that was begun has ended", DEEDS_END, |life| {
            Ok((!life.world.is_at_work()).then_some(()))
        })?;
        self.restart_clients();
        self.until("all clients are connected", DEEDS_END, |life| {
            let is_connected = |client: &super::world::Client| client.connected.lock().unwrap().is_some();
            Ok(life.world.clients.iter().all(is_connected).then_some(()))
        })?;
        self.world.pass(LEASES)?;
        self.settle()?;
        self.heal()?;
        self.check_space()?;
        if self.world.has_memory {
            self.lose_all_memory()?;
        }
        self.note_policies()
    }

    /// What has reached disks rests on no memory.
    fn lose_all_memory(&mut self) -> Result<(), String> {
        self.say("all memory is lost");
        for number in self.world.with_disks()..self.world.benefactors.len() {
            self.world.benefactors[number].process.kill();
            self.world.renew_disk(number);
            self.world.start_benefactor(number);
        }
        self.world.pass(LEASES)?;
        for name in self.names.all() {
            let client = self.world.random.below(self.world.clients.len());
            let read = self.read(client, name)?;
            read.map_err(|failure| format!("{name:?} was lost with memory, though disks had it: {failure}"))?;
        }
        self.heal()
    }

    /// What some could not push comes with their next start.
    fn restart_clients(&mut self) {
        for number in 1..self.world.clients.len() {
            self.world.kill_client(number);
            self.world.start_client(number);
        }
    }

    fn until<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, String>,
    ) -> Result<T, String> {
        let end = self.world.log.now() + limit;
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if self.world.log.now() > end {
                return Err(format!("not within {limit:?}: {what}"));
            }
            self.world.pass(LOOK)?;
        }
    }

    /// Reads every file: it is what was acknowledged, or asked for since.
    fn settle(&mut self) -> Result<(), String> {
        for name in self.names.all() {
            let client = self.world.random.below(self.world.clients.len());
            let content = match self.read(client, name)? {
                Ok(content) if !self.names.may_stay(name, &content) => {
                    return Err(format!("{name:?} is {} at rest", shown(&content)));
                }
                Ok(content) => content,
                Err(failure) if self.names.is_doubtful(name) => {
                    self.say(format_args!("{name:?} was lost with its disk or memory: {failure}"));
                    None
                }
                Err(failure) => return Err(format!("{name:?} can't be read: {failure}")),
            };
            if self.names.has_doubtful_versions(name) {
                self.begin_at(0, Deed::Remove(name));
                let is_removed = |life: &mut Self| Ok((!life.world.is_at_work()).then_some(()));
                self.until("a file with lost versions is removed", LEASES, is_removed)?;
                self.names.settle(name, None);
                continue;
            }
            self.names.settle(name, content);
        }
        Ok(())
    }

    fn read(&mut self, client: usize, name: Name) -> Result<Result<Content, Failure>, String> {
        let (names, folders, log) = (self.names.clone(), Arc::clone(&self.folders), self.world.log.clone());
        let random = Random::new(self.world.random.next());
        let read = move |pool: Pool| async move {
            let who = format!("client {client} at rest");
            let plant = Plant::Nothing;
            let mut worker =
                Worker { who, pool, spool: None, names, folders, has_memory: false, log, random, plant };
            Ok(worker.read(name).await)
        };
        self.ask_at(client, "read a file", read)
    }

    /// Waits until everything is as its policy asks.
    fn heal(&mut self) -> Result<(), String> {
        let mut last = None;
        let healed = self.until("the pool is as its policies ask", REPAIR, |life| {
            let status = life.ask("tell the status", |pool| async move { pool.status().await })?;
            if !life.forget_lost(&status)? {
                return Ok(None);
            }
            let missing = missing(&status);
            last.clone_from(&missing);
            Ok(missing.is_none().then_some(()))
        });
        healed.or_else(|failure| {
            let folders: Vec<Ino> = self.folders.iter().map(|folder| folder.ino).collect();
            let lost = self.ask("read all versions", move |pool| unreadable(pool, folders))?;
            Err(format!("{failure}: {}; these can't be read: {lost:?}", last.unwrap_or_default()))
        })
    }

    /// Takes benefactors out of the pool that lost their disks. Not yet while keepers of the manager's store may bring a version back that was
    /// removed moments ago, and of which one of those had all that there was.
    fn forget_lost(&mut self, status: &PoolStatus) -> Result<bool, String> {
        let running = self.world.benefactors.len();
        let gone = status.benefactors.iter().filter(|one| one.state == BenefactorState::Lost);
        let gone: Vec<_> = gone.map(|one| one.id).collect();
        if status.benefactors.len() - gone.len() < running || status.chunks_at_risk + status.chunks_lost > 0 {
            return Ok(true);
        }
        for id in gone {
            let forgotten = self.ask("forget a benefactor", move |pool| async move {
                match pool.forget(id, false).await {
                    Err(failure) if failure.code == ErrorCode::Denied => Ok(false),
                    forgotten => forgotten.map(|_| true),
                }
            })?;
            if !forgotten {
                return Ok(false);
            }
            self.say(format_args!("benefactor {id} is forgotten"));
        }
        Ok(true)
    }

    /// What nothing refers to goes.
    fn check_space(&mut self) -> Result<(), String> {
        let folders: Vec<Ino> = self.folders.iter().map(|folder| folder.ino).collect();
        let used = self.ask("tell what is referred to", move |pool| referred_to(pool, folders))?;
        let plain: u64 = used.values().sum();
        let mut last = String::new();
        let collected = self.until("what nothing refers to is collected", REPAIR, |life| {
            let status = life.ask("collect", |pool| async move {
                pool.collect(false).await?;
                pool.status().await
            })?;
            last = format!(
                "{} chunks of {} bytes, {} and {plain} are referred to; {} bytes are stored",
                status.chunks,
                status.unique_bytes,
                used.len(),
                status.stored_bytes
            );
            let is_all = status.chunks == used.len() as u64 && status.unique_bytes == plain;
            Ok((is_all && missing(&status).is_none()).then_some(()))
        });
        self.say(format_args!("at rest: {last}"));
        collected.map_err(|failure| format!("{failure}: {last}"))
    }

    fn note_policies(&mut self) -> Result<(), String> {
        for folder in 0..self.folders.len() {
            let ino = self.folders[folder].ino;
            let policy = self.ask("tell a policy", move |pool| async move { pool.policy(ino).await })?;
            let survives = policy.redundancy.distance() > 1;
            let is_safe = survives && policy.semantics == Semantics::Pessimistic;
            self.folders[folder].is_safe.store(is_safe, Ordering::Relaxed);
            self.names.have_redundancy(folder, survives);
            let memory = match policy.semantics {
                Semantics::Memory(copies) => Some(copies),
                Semantics::Optimistic | Semantics::Pessimistic => None,
            };
            self.names.rest_on_disks(folder, memory);
        }
        Ok(())
    }
}

/// What a pool at rest has not.
fn missing(status: &PoolStatus) -> Option<String> {
    let away = status.benefactors.iter().filter(|one| one.state != BenefactorState::Online).count() as u64;
    let memories = status.benefactors.iter().filter(|one| one.tier == Tier::Memory);
    let in_memory = memories.map(|one| one.load.blocks).sum();
    let cut = status.benefactors.iter().filter(|one| !one.unreached.is_empty()).count() as u64;
    let counts = [
        ("benefactors are away", away),
        ("chunks lack blocks", status.chunks_at_risk),
        ("chunks are lost", status.chunks_lost),
        ("repairs are pending", status.repairs_pending),
        ("sessions are open", status.sessions),
        ("benefactors are set back", status.set_back.len() as u64),
        ("chunks are in memory alone", status.memory.chunks_alone),
        ("blocks are in memory", in_memory),
        ("benefactors can't send to others", cut),
    ];
    let wrong: Vec<String> = counts
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(what, count)| format!("{count} {what}"))
        .collect();
    (!wrong.is_empty()).then(|| wrong.join(", "))
}

/// The versions that can't be read, and why.
async fn unreadable(pool: Pool, folders: Vec<Ino>) -> Result<Vec<String>, Failure> {
    let mut lost = Vec::new();
    for (number, folder) in folders.into_iter().enumerate() {
        for entry in pool.read_dir(folder, None, 1000).await? {
            for version in pool.versions(entry.attr.ino).await? {
                let reader = pool.read(entry.attr.ino, Some(version.version)).await?;
                if let Err(failure) = reader.read_at(0, usize::try_from(reader.size()).unwrap()).await {
                    let (name, version) = (&entry.name, version.version);
                    lost.push(format!("version {version} of {name} in folder {number}: {failure}"));
                }
            }
        }
    }
    Ok(lost)
}

/// All chunks that versions refer to, with their lengths.
async fn referred_to(pool: Pool, folders: Vec<Ino>) -> Result<BTreeMap<ChunkId, u64>, Failure> {
    let mut chunks = BTreeMap::new();
    for folder in folders {
        for entry in pool.read_dir(folder, None, 1000).await? {
            for version in pool.versions(entry.attr.ino).await? {
                let (_, map, pieces) = pool.chunk_map(entry.attr.ino, Some(version.version)).await?;
                chunks.extend(
                    map.chunks()
                        .iter()
                        .copied()
                        .chain(map.lists())
                        .chain(pieces)
                        .map(|chunk| (chunk.id, u64::from(chunk.length))),
                );
            }
        }
    }
    Ok(chunks)
}
