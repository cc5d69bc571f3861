//! The manager's thinking, without I/O: one owner of all state that takes requests and returns answers.
//!
//! [`Core::handle`] answers one request at a given time; [`Core::take_changes`] then tells what must become durable before
//! the answers may leave. What is stored is the namespace with versions and policies, results of changes, and the numbers
//! of benefactors. Sessions, reservations and locations are soft state: clients and benefactors bring them again.

mod aggregates;
mod bandwidths;
mod bases;
mod benefactors;
mod checks;
mod chunk;
mod collection;
mod commit;
mod create;
mod cuts;
mod departures;
mod exposure;
mod forget;
mod history;
mod hold;
mod hosts;
mod inode;
mod lifetimes;
mod lineage;
mod locations;
mod look;
mod members;
mod memory;
mod namespace;
mod operations;
mod pace;
mod permissions;
mod persist;
mod placing;
mod policies;
mod proofs;
mod readers;
mod references;
mod registered;
mod relief;
mod rename;
mod replication;
mod reports;
mod sessions;
mod shut_out;
mod similar;
mod state;
mod surplus;
mod table;
mod terms;
mod thinning;
mod told;
mod twins;
mod versions;
mod walks;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use stdchk_model::limits::{
    BENEFACTOR_LEASE_MS, BENEFACTOR_LOST_MS, CHUNK_BYTES_DEFAULT, CLIENT_LEASE_MS, LIST_ENTRIES_MAX,
    MANAGER_ADDRESS_BYTES_MAX, MANAGERS_MAX,
};
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{
    BenefactorInfo, Change, ChunkLocations, Era, ManagerReply, ManagerRequest, TimeNs, VersionState,
};
use stdchk_model::shares::Payer;
use stdchk_model::user::Access;
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, ClientId, Durability, EncodingId, ErrorCode, Failure, Ino, Maker,
    MomentKey, OpId, PoolId, Receipt, SessionId, User, cbor,
};
use stdchk_placement::{RoundRobin, Select, Wish};

use self::bandwidths::Bandwidths;
use self::benefactors::Registry;
use self::chunk::Holder;
pub use self::collection::{Collected, Cursor};
pub use self::create::Leaves;
pub use self::history::Follows;
use self::history::History;
pub use self::hosts::HostKey;
use self::hosts::Hosts;
use self::locations::Locations;
pub use self::members::NewMember;
pub(crate) use self::members::{TOKENS_FROM_KEY, second, tokens_from};
use self::namespace::Namespace;
use self::operations::Operations;
use self::placing::Rankings;
use self::references::References;
use self::replication::Copies;
use self::sessions::{EarlyClose, Session, Sessions};
pub use self::state::Counts;
use self::walks::Walk;
use crate::record::{LAYOUT, POOL_KEY, PoolRecord, decode};
use crate::store::{Batch, Store, StoreError, Table};

/// Most space that one request reserves, bytes: a client comes back for more, so that none takes all of a pool at once.
const RESERVATION_BYTES_MAX: u64 = 1 << 30;
/// The part of the free space that one session may reserve, at most: others want some, too.
const RESERVATION_SHARE: u64 = 16;
/// Benefactors that a client has just seen fail which are left out of a stripe, of those that it names: each is looked for at each choice, and
/// whoever has seen more fail has lost the network.
const AVOIDED_MAX: usize = 1024;

/// The time of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// By the calendar.
    pub wall: TimeNs,
    /// For which the manager has listened since it started; never set back, milliseconds.
    pub ms: u64,
}

/// How long silence may last before something is concluded from it, milliseconds each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// A silent client loses its sessions.
    pub client_lease_ms: u64,
    /// A silent benefactor gets no new chunks.
    pub benefactor_lease_ms: u64,
    /// A silent benefactor's blocks count as lost.
    pub benefactor_lost_ms: u64,
    /// A chunk that nothing refers to is garbage once nobody brought it up for so long: a client may hold it in a
    /// session that isn't open (again) yet.
    pub garbage_age_ms: u64,
    /// The manager looks this often at most whether something may be collected.
    pub collect_every_ms: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            client_lease_ms: CLIENT_LEASE_MS,
            benefactor_lease_ms: BENEFACTOR_LEASE_MS,
            benefactor_lost_ms: BENEFACTOR_LOST_MS,
            garbage_age_ms: 2 * CLIENT_LEASE_MS,
            collect_every_ms: 1_000,
        }
    }
}

/// What a core needs to know that only its shell can.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setting {
    /// The pool of a store that is new; an existing store knows its own.
    pub new_pool: PoolId,
    /// Its key for what benefactors keep, random; an existing store has its own.
    pub new_key: MomentKey,
    /// Owner of a new pool's root directory, user and group.
    pub owner: (u32, u32),
    /// Process id of the manager.
    pub pid: u32,
    /// Identity of this start, random.
    pub start: u64,
    /// Leases.
    pub timing: Timing,
    /// How many chunks one step of a walk or a collection looks at: some thousand take a few milliseconds.
    pub steps: usize,
}

/// Who asks for something.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Asker {
    /// Which member of the pool; `None`: a process of the manager's machine.
    pub member: Option<MemberId>,
    /// For which user; `None`: who may do all with files that its role lets it.
    pub user: Option<User>,
    /// As whom it codes fragments.
    pub maker: Maker,
    /// By which connection it asks; 0: by none.
    pub connection: u64,
}

/// The manager's state.
pub struct Core {
    setting: Setting,
    /// Which member of the pool has asked for what is being answered.
    asking: Option<MemberId>,
    /// As whom it codes fragments.
    asking_maker: Maker,
    /// By which connection it asks.
    asking_by: u64,
    pool: PoolId,
    /// Signs what benefactors keep for the manager.
    key: MomentKey,
    pool_changed: bool,
    namespace: Namespace,
    operations: Operations,
    registry: Registry,
    history: History,
    hosts: Hosts,
    bandwidths: Bandwidths,
    rankings: Rankings,
    /// The store has room for more than what makes room again.
    has_room: bool,
    shut_out: shut_out::ShutOut,
    members: members::Members,
    /// The words of the log on benefactors so far.
    told: told::Told,
    terms: terms::Terms,
    /// Where the pool's managers serve; none: nobody has said.
    managers: Vec<String>,
    locations: Locations,
    sessions: Sessions,
    copies: Copies,
    checks: checks::Checks,
    /// Proofs that holders have asked of others, before their own blocks go.
    proofs: proofs::Proofs,
    reliefs: relief::Reliefs,
    departures: departures::Departures,
    begun: hold::Begun,
    /// Blocks to delete, each with the put sequence that the decision rests on.
    deletions: HashMap<BenefactorId, BTreeMap<BlockId, u64>>,
    references: References,
    backups: registered::RegisteredBackups,
    walks: walks::Walks,
    collecting: collection::ByItself,
    efforts: collection::Efforts,
    emptying: memory::Emptying,
    lifetimes: lifetimes::Lifetimes,
    thinning: thinning::Thinning,
    readers: readers::Readers,
    select: Box<dyn Select>,
    /// Sessions of before the manager's start were given their time to come back.
    settled: bool,
    /// Until then they have it, milliseconds of the manager's life.
    unsettled_until_ms: u64,
    damaged_found: u64,
    commits: u64,
}

type Answer = Result<ManagerReply, Failure>;

impl Core {
    /// The core over what `store` holds. [`Core::take_changes`] has the first records of a new pool.
    ///
    /// # Errors
    /// The store can't be read, or holds something else than a manager's records.
    pub fn load(store: &dyn Store, setting: Setting, now: Now) -> Result<Self, StoreError> {
        let mut core = Self::empty(setting);
        let mut found = false;
        store.load(&mut |key, bytes| {
            found = true;
            core.load_record(key, bytes)
        })?;
        core.namespace.check_tree()?;
        core.count_versions()?;
        core.lifetimes.begin(core.namespace.lived_ms);
        core.efforts.begin(!found, setting.timing.garbage_age_ms);
        core.members.begin(now);
        core.locations.is_counting = found;
        core.history.begin(store.sequence());
        core.locations.holdings.begin(store.sequence(), core.backups.begin());
        let registry = &core.registry;
        core.hosts.begin(|id| registry.get(id).is_some());
        if !found {
            core.pool_changed = true;
            core.settled = true;
            core.namespace = Namespace::new(setting.owner, now.wall);
        } else {
            core.namespace.unsettled = true;
        }
        if found && (core.namespace.attr(Ino::ROOT).is_err() || core.pool_changed) {
            return Err(StoreError::new(
                "reading the store",
                "the records of the pool or its root are missing",
            ));
        }
        core.terms.begin();
        core.pool_changed = true;
        Ok(core)
    }

    fn empty(setting: Setting) -> Self {
        Self {
            setting,
            asking: None,
            asking_maker: Maker::LOCAL,
            asking_by: 0,
            pool: setting.new_pool,
            key: setting.new_key,
            pool_changed: true,
            namespace: Namespace::empty(),
            operations: Operations::default(),
            registry: Registry::new(),
            history: History::new(setting.start),
            hosts: Hosts::default(),
            bandwidths: Bandwidths::default(),
            rankings: Rankings::default(),
            has_room: true,
            shut_out: shut_out::ShutOut::default(),
            members: members::Members::default(),
            told: told::Told::default(),
            terms: terms::Terms::new(setting.start),
            managers: Vec::new(),
            locations: Locations::default(),
            sessions: Sessions::default(),
            copies: Copies::default(),
            checks: checks::Checks::default(),
            proofs: proofs::Proofs::default(),
            reliefs: relief::Reliefs::default(),
            departures: departures::Departures::default(),
            begun: hold::Begun::default(),
            deletions: HashMap::new(),
            references: References::default(),
            backups: registered::RegisteredBackups::default(),
            walks: walks::Walks::default(),
            collecting: collection::ByItself::default(),
            efforts: collection::Efforts::default(),
            emptying: memory::Emptying::default(),
            lifetimes: lifetimes::Lifetimes::default(),
            thinning: thinning::Thinning::default(),
            readers: readers::Readers::default(),
            select: Box::new(RoundRobin),
            settled: false,
            unsettled_until_ms: setting.timing.client_lease_ms,
            damaged_found: 0,
            commits: 0,
        }
    }

    fn load_record(&mut self, key: &[u8], bytes: &[u8]) -> Result<(), StoreError> {
        let Some((table, rest)) = key.split_first() else {
            return Err(StoreError::new("reading a key", "it is empty"));
        };
        match Table::of(*table) {
            Some(Table::Pool) => self.load_pool(decode(bytes, "the pool")?),
            Some(Table::Benefactor) => self.registry.load(rest, bytes)?,
            Some(Table::Operation) => self.operations.load(rest, bytes)?,
            Some(Table::Start) => self.history.load(rest, bytes)?,
            Some(Table::Past) => self.hosts.load(rest, bytes),
            Some(Table::Backup) => self.backups.load(rest, bytes)?,
            Some(Table::ShutOut) => self.shut_out.load(rest, bytes)?,
            Some(Table::Member) => self.members.load_member(rest, bytes)?,
            Some(Table::Token) => self.members.load_token(rest, bytes)?,
            Some(Table::Names) => self.references.load(rest, bytes, &mut self.locations)?,
            Some(table) => self.namespace.load(table, rest, bytes)?,
            None => {
                let cause = format!("there is a table {table}, unknown to this stdchk: use a later one");
                return Err(StoreError::new("reading the store", cause));
            }
        }
        Ok(())
    }

    fn load_pool(&mut self, record: PoolRecord) {
        self.pool = record.pool;
        self.key = record.key;
        self.namespace.next_ino = record.ino_ceiling;
        self.namespace.ino_ceiling = record.ino_ceiling;
        self.registry.next = record.next_benefactor;
        self.namespace.lived_ms = record.lived_ms;
        self.terms.load(record.term, record.eras);
        self.managers = record.managers;
        self.pool_changed = false;
    }

    /// What must be durable before the answers since the last call may leave.
    pub fn take_changes(&mut self) -> Batch {
        let mut batch = Batch::default();
        let namespace = self.namespace.take_changes(&mut batch);
        if !batch.is_empty() {
            self.history.writes();
        }
        let registry = self.registry.take_changes(&mut batch);
        if namespace || registry || self.pool_changed {
            self.pool_changed = false;
            let record = PoolRecord {
                layout: LAYOUT,
                pool: self.pool,
                ino_ceiling: self.namespace.ino_ceiling,
                next_benefactor: self.registry.next,
                lived_ms: self.namespace.lived_ms,
                term: self.terms.own().number,
                key: self.key,
                managers: self.managers.clone(),
                eras: self.terms.eras().to_vec(),
            };
            batch.put(Table::Pool, POOL_KEY, cbor::encode(&record));
        }
        self.references.take_changes(&mut batch, &self.locations);
        self.operations.take_changes(&mut batch);
        self.history.take_changes(&mut batch);
        self.shut_out.take_changes(&mut batch);
        self.backups.take_changes(&mut batch);
        self.members.take_changes(&mut batch);
        self.hosts.take_changes(&mut batch);
        batch
    }

    /// What was taken is durable; `sequence` is the number of the last commit.
    pub fn committed(&mut self, sequence: u64) {
        self.history.committed(sequence);
        self.locations.holdings.committed(sequence);
    }

    /// A recovery from the keepers brings back the state of this commit or a later one; `None`: the pool has no keepers.
    pub fn keepers_have(&mut self, commit: Option<u64>) {
        self.locations.holdings.keepers_have(commit);
    }

    /// Sets how much memory sessions and the names that they hold may take, bytes.
    pub fn sessions_may_take(&mut self, bytes: u64) {
        self.sessions.may_take(bytes);
    }

    /// Identity of this start.
    pub fn start(&self) -> u64 {
        self.setting.start
    }

    /// The pool.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// That of the state.
    pub fn era(&self) -> Era {
        self.terms.own().era
    }

    /// Where the pool's managers serve.
    pub fn managers(&self) -> &[String] {
        &self.managers
    }

    fn set_managers(&mut self, addresses: Vec<String>) -> Answer {
        self.history.check()?;
        let is_address = |address: &String| {
            address.len() <= MANAGER_ADDRESS_BYTES_MAX
                && !address.contains(|c: char| c.is_control() || c.is_whitespace() || c == ',')
                && address
                    .rsplit_once(':')
                    .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        if addresses.is_empty() || addresses.len() > MANAGERS_MAX || !addresses.iter().all(is_address) {
            let message =
                format!("a pool has from 1 to {MANAGERS_MAX} addresses of managers, HOST:PORT each");
            return Err(Failure::new(ErrorCode::Invalid, message));
        }
        self.managers = addresses;
        self.pool_changed = true;
        Ok(ManagerReply::Done)
    }

    /// What the manager signs with that benefactors keep for it.
    pub fn key(&self) -> MomentKey {
        self.key
    }

    /// Answers a request of who may do all.
    pub fn handle(&mut self, request: ManagerRequest, now: Now) -> Answer {
        self.handle_for(Asker::default(), request, now)
    }

    /// Answers a request. `Collect` is not for the core alone: its shell reads maps for it.
    pub fn handle_for(&mut self, asker: Asker, mut request: ManagerRequest, now: Now) -> Answer {
        self.set_clock(now);
        self.check_not_set_back(&request)?;
        (self.asking, self.asking_maker, self.namespace.user) = (asker.member, asker.maker, asker.user);
        self.asking_by = asker.connection;
        let allowed = self.permit(&mut request);
        let answer = allowed.and_then(|()| self.answer(request, now));
        (self.asking, self.asking_maker, self.namespace.user) = (None, Maker::LOCAL, None);
        self.asking_by = 0;
        let answer = answer.map_err(|failure| self.history.doubt(failure));
        self.settle_references();
        answer
    }

    fn answer(&mut self, request: ManagerRequest, now: Now) -> Answer {
        use ManagerRequest as Q;
        match request {
            Q::Change { id, change } => self.change(id, &change),
            Q::OpenSession { session, client, ino, durability } => {
                self.open_session(session, client, (ino, durability), None, now)
            }
            Q::TakeUp { session, client, ino, kept_for, durability } => {
                self.open_session(session, client, (ino, durability), Some(kept_for), now)
            }
            Q::KeepBase { session, base, host, bytes } => self.keep_base(session, base, (host, bytes), now),
            Q::LetBaseGo { ino, kept_for } => {
                self.namespace.let_base_go(ino, kept_for);
                Ok(ManagerReply::Done)
            }
            Q::Create { .. } => self.create(request, now),
            Q::OpenContainer { session, client, folder } => self.open_container(session, client, folder, now),
            Q::Reserve { session, bytes, avoid } => self.reserve(session, bytes, &avoid, now),
            Q::Known { session, chunks, room_bytes } => self.known(session, &chunks, room_bytes, now),
            Q::Receipts { session, receipts } => self.take_receipts(session, &receipts, now),
            Q::Vouch { session, encodings } => self.vouch(session, encodings, now),
            Q::Names { session, first, chunks } => self.take_names(session, first, chunks, now),
            Q::Commit { .. } => self.commit(request, now),
            Q::CloseSession { session, interrupted } => self.close_session(session, interrupted),
            Q::Closing { session, size, changes } => self.closing(session, EarlyClose { size, changes }, now),
            Q::AwaitCopies { ino, hold } => self.await_copies(ino, &hold),
            Q::Aggregate { folder, timestep, containers } => {
                self.aggregate(folder, timestep, &containers, now)
            }
            Q::KeepAlive(client) => {
                self.hosts.hear(client, now.ms);
                Ok(ManagerReply::Sessions(self.sessions.hear(client, now.ms)))
            }
            Q::OpenVersion { ino, version, client } => self.open_version(ino, version, client, now),
            Q::Reading { client, sessions } => {
                check_length("versions that are read", sessions.len())?;
                self.readers.reads((self.asking, client), sessions, now.ms);
                Ok(ManagerReply::Done)
            }
            Q::Attend { client, machine, sent } => self.attend(client, machine, &sent, now),
            Q::Leave(client) => {
                self.readers.leave((self.asking, client));
                self.leave(client)
            }
            Q::Explain { ino, machine } => self.explain(ino, machine, now),
            Q::Register { .. } => self.register(request, now),
            Q::BeginInventory { id, registration } => self.begin_inventory(id, registration, now),
            Q::Inventory { .. } => self.inventory(request, now),
            Q::Heartbeat { .. } => self.heartbeat(request, now),
            Q::Orders { id, registration } => self.orders(id, registration, now),
            Q::Unreached { id, registration, unreached, reaches_none } => {
                self.take_unreached(id, registration, (unreached, reaches_none), now)
            }
            Q::Doubt { chunk, encoding } => self.doubt(chunk, encoding, now),
            Q::Forget { id, force } => self.forget(id, force, now),
            Q::Fates { folder, lifetime, done } => self.fates(folder, lifetime.as_deref(), done),
            Q::Revoke { member } => self.revoke(member, now),
            Q::AcceptOlderStore => self.accept_older_store(),
            Q::SetManagers(addresses) => self.set_managers(addresses),
            Q::ReleaseBackup { commit } => self.release_backup(commit),
            Q::Settle(session) => self.sessions.get_mut(session, now.ms).map(|_| ManagerReply::Done),
            _ => self.read(request, now),
        }
    }

    /// Answers the requests that change nothing.
    fn read(&self, request: ManagerRequest, now: Now) -> Answer {
        use ManagerRequest as Q;
        let namespace = &self.namespace;
        Ok(match request {
            Q::Lookup { parent, name } => ManagerReply::Entry(namespace.lookup(parent, &name)?),
            Q::GetAttr(ino) => ManagerReply::Entry(namespace.attr(ino)?),
            // What the user needs was looked at before.
            Q::MayOpen { ino, .. } => ManagerReply::Entry(namespace.attr(ino)?),
            Q::MayChange(_) => ManagerReply::Done,
            Q::Resolve { path } => ManagerReply::Entry(namespace.resolve(&path)?),
            Q::ReadDir { ino, after, limit } => {
                ManagerReply::Entries(namespace.read_dir(ino, after.as_deref(), limit)?)
            }
            Q::ReadLink(ino) => ManagerReply::Target(namespace.read_link(ino)?),
            // Its shell waits for the room that is made.
            Q::Space | Q::MakeRoom => ManagerReply::Space(self.space()),
            Q::Versions(ino) => ManagerReply::Versions(namespace.versions_of(ino)?),
            Q::Similar(ino) => {
                let (info, root) = namespace.similar(ino, self.asking_maker)?.unzip();
                ManagerReply::Version { info, root, attr: namespace.attr(ino)?, hold: None }
            }
            Q::ChunksOf { ino, version, after } => ManagerReply::Chunks(self.chunks_of(ino, version, after)?),
            Q::Locate { chunks } => ManagerReply::Locations(self.locate(&chunks)?),
            Q::Benefactors => ManagerReply::Benefactors(self.registry.infos(now.ms)),
            Q::Own(machine) => {
                let own = self.registry.own(machine);
                ManagerReply::Own(own.and_then(|own| self.registry.info(own, now.ms)))
            }
            Q::GetPolicy(ino) => ManagerReply::Policy(namespace.policy(ino)?),
            Q::Pace { ino, machine } => self.pace(ino, machine)?,
            Q::Sets(ino) => ManagerReply::Sets(self.sets(ino)?),
            Q::Members => ManagerReply::Members(self.list_members()),
            Q::Managers => ManagerReply::Managers(self.managers.clone()),
            Q::Status => {
                let mut status = self.status(now);
                let may_list = |folder: &str| {
                    namespace.resolve(folder).is_ok_and(|attr| namespace.lets(attr.ino, Access::LIST))
                };
                status.exposed.retain(|set| may_list(&set.folder));
                ManagerReply::Status(status)
            }
            _ => {
                return Err(Failure::new(ErrorCode::Unsupported, "the manager's core has no answer to this"));
            }
        })
    }

    fn change(&mut self, id: OpId, change: &Change) -> Answer {
        if let Some(answer) = self.operations.answer(&id) {
            return Ok(answer);
        }
        self.check_sealed(change)?;
        let done = self.done_with(change)?;
        let moved_versions = self.versions_to_place(change);
        let entry = self.namespace.change(change)?;
        if let (Change::Finish { ino }, Some(done)) = (change, done) {
            self.namespace.note(*ino).done = Some(done);
        }
        self.sets_changed_by(change, entry.as_ref());
        self.commits += 1;
        match (change, &entry) {
            (Change::SetPolicy { ino, pairs }, _) if pairs.iter().any(|(key, _)| key == "redundancy") => {
                self.walk(Walk::Grade(*ino, usize::MAX));
            }
            // Names of a file in other folders may want more for it, or wanted more.
            (Change::Link { .. } | Change::Unlink { .. }, Some(named))
                if self.namespace.wants_other(named.ino) =>
            {
                self.walk(Walk::Grade(named.ino, usize::MAX));
            }
            (Change::Rename { parent, name, new_parent, .. }, Some(moved)) if parent != new_parent => {
                self.walk(Walk::Grade(moved.ino, moved_versions));
                // Something is where it was only if they changed places.
                if let Some(other) = self.namespace.find(*parent, name)? {
                    self.walk(Walk::Grade(other, usize::MAX));
                }
            }
            _ => {}
        }
        let renamed = match change {
            Change::Rename { .. } => entry.as_ref().map(|attr| attr.ino),
            _ => None,
        };
        let answer = self.operations.keep((id, self.asking), entry, self.locations.now_ms);
        match (renamed.and_then(|ino| self.hold_renamed(ino)), answer) {
            (Some(hold), ManagerReply::Entry(attr)) => Ok(ManagerReply::Held { attr, hold }),
            (_, answer) => Ok(answer),
        }
    }

    /// Sets the time of what happens now.
    fn set_clock(&mut self, now: Now) {
        self.namespace.advance(now.wall);
        self.namespace.lived_ms = self.lifetimes.lived_ms(now.ms);
        (self.locations.clock, self.locations.now_ms) = (self.namespace.clock, now.ms);
        self.look_at_clocks(now);
    }

    /// Benefactors that should ask again if they wait for orders, since this was asked last.
    pub fn take_called(&mut self) -> BTreeSet<BenefactorId> {
        let mut called = self.locations.take_called();
        called.extend(self.copies.take_called());
        called
    }

    /// Rises whenever somebody who waits for copies should ask again.
    pub fn copies_made(&self) -> u64 {
        self.locations.exposure().changes()
    }

    fn open_version(&mut self, ino: Ino, version: Option<u64>, client: Option<ClientId>, now: Now) -> Answer {
        let (info, root) = self.namespace.version(ino, version)?.unzip();
        if let (Some(client), Some(info)) = (client, &info) {
            self.readers.opens((self.asking, client), info.session, now.ms);
        }
        Ok(ManagerReply::Version { info, root, attr: self.namespace.attr(ino)?, hold: None })
    }

    fn locate(&self, chunks: &[ChunkId]) -> Result<Vec<ChunkLocations>, Failure> {
        check_length("chunks", chunks.len())?;
        Ok(chunks.iter().map(|id| self.locations.locate(id, &self.registry)).collect())
    }

    // --- sessions

    fn open_session(
        &mut self,
        id: SessionId,
        client: ClientId,
        (ino, durability): (Ino, Option<Durability>),
        taken_up: Option<SessionId>,
        now: Now,
    ) -> Answer {
        if durability.is_some_and(|needed| needed.distance == 0 || needed.in_memory == Some(0)) {
            return Err(commit::invalid("a version that is at distance 0 is lost"));
        }
        let kept = taken_up.and_then(|kept_for| self.namespace.kept_base(ino, kept_for));
        let (base, base_root) = match kept {
            Some(kept) => Some(kept),
            None => self.namespace.version(ino, None)?,
        }
        .unzip();
        let policy = self.namespace.policy(ino)?;
        let base_at = self.namespace.position(ino)?;
        let is_new = durability.is_none();
        let durability = durability.unwrap_or_else(|| policy.at_commit());
        let payer = Payer { member: self.asking, user: self.namespace.user.as_ref().map(|user| user.uid) };
        let holder = (payer, self.asking_maker, client);
        if self.sessions.open(id, holder, ino, (base_root.clone(), base_at), (durability, is_new), now.ms)? {
            self.namespace.hold(ino);
            self.build_on(base_root.as_ref(), None);
            let session = self.sessions.get_mut(id, now.ms)?;
            (session.begun_with, session.taken_up) = (base.clone(), taken_up);
        }
        let (benefactors, room_bytes) = (Vec::new(), 0);
        Ok(ManagerReply::Session {
            policy,
            base,
            base_root,
            attr: self.namespace.attr(ino)?,
            benefactors,
            room_bytes,
        })
    }

    fn reserve(&mut self, id: SessionId, bytes: u64, avoid: &[BenefactorId], now: Now) -> Answer {
        check_length("benefactors to avoid", avoid.len())?;
        let avoid = avoid.get(..AVOIDED_MAX).unwrap_or(avoid);
        let session = self.sessions.get_mut(id, now.ms)?;
        let (turn, ino, own, client) = (session.turn, session.ino, session.reserved, session.client);
        let policy = self.namespace.policy(ino)?;
        let mut stripe = self.place(&policy, self.host_of(client), (avoid, turn), now)?;
        stripe.extend(self.place_in_memory(&policy, avoid, turn));
        self.registry.borrow(&stripe, now.ms + placing::BORROWED_MS);
        let free = self.free_beside(own, now);
        // All sessions of a member reserve no more than is then still free, but for a chunk each: the last bytes of a pool are somebody's, too.
        let left = free.saturating_sub(self.sessions.reserved_beside(self.sessions.get(id)?));
        let share = (left / RESERVATION_SHARE).max(CHUNK_BYTES_DEFAULT as u64).min(free);
        let granted = bytes.min(share).min(RESERVATION_BYTES_MAX);
        if granted == 0 && bytes > 0 {
            return Err(self.no_space(bytes));
        }
        self.sessions.reserve(id, granted);
        let mut benefactors: Vec<BenefactorInfo> =
            stripe.into_iter().filter_map(|id| self.registry.info(id, now.ms)).collect();
        let copies = usize::from(policy.redundancy.distance().saturating_sub(1));
        for info in benefactors.iter_mut().filter(|info| !info.unreached.is_empty()) {
            info.is_cut_off |= self.registry.lacks_ways(info.id, copies);
        }
        Ok(ManagerReply::Stripe { benefactors, bytes: granted })
    }

    /// Why no benefactor can be used.
    fn none_usable(&self, wish: &Wish<'_>, now: Now) -> Failure {
        let hosts = self.registry.hosts();
        let online = hosts.iter().filter(|host| host.online);
        match online.clone().count() {
            0 => unavailable("no benefactor is on-line: start one, or wait for one to come back"),
            _ if online.clone().all(|host| wish.avoid.contains(&host.id)) => {
                unavailable("every benefactor that is on-line has just failed the client: try again")
            }
            _ if wish.avoid.iter().any(|id| self.registry.is_borrowed(*id, now.ms)) => {
                unavailable("one whose machine goes soon has yet to hear that it is needed: try again")
            }
            _ => self.no_space(wish.room_bytes),
        }
    }

    fn known(&mut self, id: SessionId, chunks: &[ChunkId], room_bytes: u64, now: Now) -> Answer {
        check_length("chunks", chunks.len())?;
        let session = self.sessions.get(id)?;
        let is_held = |chunk: &&ChunkId| session.pinned.contains(*chunk) || session.asked.contains(*chunk);
        self.sessions.check_room(session, chunks.len() - chunks.iter().filter(is_held).count())?;
        let session = self.sessions.get_mut(id, now.ms)?;
        let mut found = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let at = self.locations.locate_durable(chunk, &self.registry, session);
            self.locations.touch(chunk, now.ms);
            match at.at.is_empty() {
                true => session.asked.insert(*chunk),
                false => session.pinned.insert(*chunk),
            };
            found.push(at);
        }
        self.sessions.charge(id);
        let (benefactors, room_bytes) = self.room(id, room_bytes, now);
        Ok(ManagerReply::Known { found, benefactors, room_bytes })
    }

    /// Reserves space for a session, if there is any, beside the answer to something else; why there is none, `Reserve` says.
    fn room(&mut self, id: SessionId, bytes: u64, now: Now) -> (Vec<BenefactorInfo>, u64) {
        let reserved = if bytes > 0 { self.reserve(id, bytes, &[], now).ok() } else { None };
        match reserved {
            Some(ManagerReply::Stripe { benefactors, bytes }) => (benefactors, bytes),
            _ => (Vec::new(), 0),
        }
    }

    /// Takes receipts for chunks that a session is about to commit. They may be given again.
    fn take_receipts(&mut self, id: SessionId, receipts: &[(BenefactorId, Receipt)], now: Now) -> Answer {
        check_length("receipts", receipts.len())?;
        check_length("blocks", receipts.iter().map(|(_, receipt)| receipt.blocks.len()).sum())?;
        // First, since a client that is told that its session is forgotten asks for new receipts anyway.
        self.sessions.get_mut(id, now.ms)?;
        receipts.iter().try_for_each(|(at, receipt)| self.check_receipt(*at, receipt))?;
        let session = self.sessions.get(id)?;
        let blocks =
            receipts.iter().flat_map(|(_, receipt)| &receipt.blocks).map(|stored| stored.block.chunk);
        let is_new = |chunk: &ChunkId| !session.secured.contains(chunk) && !session.asked.contains(chunk);
        self.sessions.check_room(session, blocks.filter(is_new).count())?;
        let mut used: u64 = 0;
        for (at, receipt) in receipts {
            let inventory = self.registry.get(*at).map_or(0, |benefactor| benefactor.inventory);
            let age = self.age_of_news(*at);
            for stored in &receipt.blocks {
                let chunk = stored.block.chunk;
                let session = self.sessions.get_mut(id, now.ms)?;
                session.asked.remove(&chunk);
                if session.secured.insert(chunk) && !session.pinned.contains(&chunk) {
                    used = used.saturating_add(u64::from(stored.stored_length));
                }
                self.confirm_one(*at, (inventory, age), stored, now);
                self.locations.touch(&chunk, now.ms);
                self.locations.requeue(&chunk, &self.registry);
            }
        }
        self.sessions.used(id, used);
        self.sessions.charge(id);
        Ok(ManagerReply::Done)
    }

    /// A writer says which encodings of others it would have made. Nobody else takes its word for it.
    fn vouch(&mut self, id: SessionId, mut encodings: Vec<(ChunkId, EncodingId)>, now: Now) -> Answer {
        check_length("encodings", encodings.len())?;
        // No more is kept than there are encodings in the pool.
        encodings.retain(|(chunk, encoding)| {
            let chunk = self.locations.get(chunk);
            chunk.is_some_and(|chunk| chunk.holders.iter().any(|holder| holder.encoding == *encoding))
        });
        self.sessions.get_mut(id, now.ms)?.vouch(encodings);
        Ok(ManagerReply::Done)
    }

    /// Refuses a receipt that the benefactor didn't give, and one of which it may have deleted something since.
    fn check_receipt(&self, at: BenefactorId, receipt: &Receipt) -> Result<(), Failure> {
        let outdated = |why: &str| {
            let message = format!("a receipt of {at} doesn't count: {why}");
            Err(Failure::new(ErrorCode::Outdated, message).then("ask it for a new one"))
        };
        let benefactor = self.registry.get(at);
        let Some((benefactor, key)) = benefactor.and_then(|known| Some((known, known.receipt_key.as_ref()?)))
        else {
            return outdated("it has not registered since the manager started");
        };
        if benefactor.incarnation != Some(receipt.incarnation) {
            return outdated("it was given in another life");
        }
        if !receipt.is_genuine(key) {
            let message = format!("{at} didn't give the receipt that a client presents as its own");
            return Err(Failure::new(ErrorCode::Denied, message));
        }
        // What the benefactor itself has told meanwhile is no news: while memory is emptied, a receipt is seldom newer than the last order.
        let is_known = |block: &BlockId| {
            let chunk = self.locations.get(&block.chunk);
            let is_it = |holder: &Holder| holder.benefactor == at && holder.block(block.chunk) == *block;
            chunk.is_some_and(|chunk| chunk.known(&self.registry).any(is_it))
        };
        if receipt.sequence <= benefactor.fence
            && !receipt.blocks.iter().all(|stored| is_known(&stored.block))
        {
            return outdated("blocks may have been deleted since");
        }
        match receipt.blocks.iter().all(reports::can_be) {
            true => Ok(()),
            false => Err(commit::invalid(format!("a receipt of {at} names a block that can't be"))),
        }
    }

    fn closing(&mut self, id: SessionId, close: EarlyClose, now: Now) -> Answer {
        let session = self.sessions.get_mut(id, now.ms)?;
        session.closing = session.closing.max(Some(close));
        let ino = session.ino;
        Ok(match self.hold_closing(id, ino)? {
            Some(hold) => ManagerReply::Held { attr: self.namespace.attr(ino)?, hold },
            None => ManagerReply::Done,
        })
    }

    fn close_session(&mut self, id: SessionId, interrupted: bool) -> Answer {
        if let Err(refused) = self.history.check() {
            // Its client has it no more. What it committed is ended with that of those who don't come back.
            self.let_go_of(id);
            return Err(refused);
        }
        let state = if interrupted { VersionState::Interrupted } else { VersionState::Closed };
        self.end_session(id, state);
        Ok(ManagerReply::Done)
    }

    fn end_session(&mut self, id: SessionId, state: VersionState) {
        let finished = self.namespace.finish(id, state);
        if let Some(session) = self.let_go_of(id) {
            // A session that ends without an interruption has committed all of it.
            let lost = session.lost().filter(|_| state != VersionState::Closed);
            if let Some(EarlyClose { size, .. }) = lost {
                self.namespace.note_lost(session.ino, id, size);
            }
            self.sets_changed(session.ino);
        }
        finished.into_iter().for_each(|ino| self.sets_changed(ino));
    }

    /// A session is there no longer; what it committed stays as it is.
    fn let_go_of(&mut self, id: SessionId) -> Option<Session> {
        let session = self.sessions.close(id)?;
        self.build_on(None, session.base.as_ref());
        self.namespace.release(session.ino);
        Some(session)
    }

    // --- time

    /// Draws the conclusions from silence: leases that ran out, benefactors that went or came.
    pub fn tick(&mut self, now: Now) {
        self.set_clock(now);
        let is_set_back = self.history.is_set_back();
        if !is_set_back {
            for id in self.sessions.expired(now.ms, self.setting.timing.client_lease_ms) {
                self.end_session(id, VersionState::Interrupted);
                self.efforts.sessions_forgotten(now.ms, self.setting.timing.garbage_age_ms);
            }
        }
        if !is_set_back {
            self.namespace.let_old_bases_go();
        }
        self.update_states(now);
        let may_store = self.has_room && !is_set_back;
        self.readers.tick(now.ms, self.setting.timing.client_lease_ms);
        self.rankings.tick(now.ms);
        self.hosts.tick(now.ms, self.setting.timing.client_lease_ms, may_store);
        if may_store {
            self.take_out_gone_memory(now);
        }
        if !is_set_back {
            self.end_backups();
        }
        if !self.settled && !is_set_back && now.ms >= self.unsettled_until_ms {
            self.settle();
        }
        let ended = self.copies.give_up_late(now.ms);
        self.copies_ended(&ended);
        if !is_set_back {
            self.tend_checks(now);
            self.tend_proofs(now);
        }
        self.settle_references();
        self.pool_changed |=
            !is_set_back && self.lifetimes.must_save_time(self.namespace.lived_ms, !self.backups.is_empty());
    }

    /// Ends what sessions of before the start left, once their clients had a lease to come back.
    fn settle(&mut self) {
        self.settled = true;
        self.namespace.unsettled = false;
        for id in self.namespace.unfinished() {
            if !self.sessions.contains(&id) {
                self.namespace.finish(id, VersionState::Interrupted);
            }
        }
        self.namespace.drop_all_unused();
        self.lifetimes.search(Ino::ROOT);
        self.thinning.search(Ino::ROOT, self.locations.now_ms);
    }
}

fn unavailable(message: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::Unavailable, message)
}

/// Refuses lists that are longer than the protocol allows.
fn check_length(what: &str, length: usize) -> Result<(), Failure> {
    if length <= LIST_ENTRIES_MAX {
        return Ok(());
    }
    let message = format!("{length} {what} in one message: send them in parts of {LIST_ENTRIES_MAX}");
    Err(Failure::new(ErrorCode::TooLong, message))
}
