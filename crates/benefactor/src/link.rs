//! The tie to the manager: register, tell what is here, then a heartbeat with what changed; commands come back.
//!
//! The manager may be gone at any time: the benefactor keeps serving, tries again, and registers anew. What it reports is
//! durable; unsynced puts are synced for the report, so that none waits longer than one heartbeat. Of copies, both those that
//! arrived and those that failed, it hears at once, and it says at once what to copy: writers may wait for that.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::journal::Piece;
use stdchk_model::labels::Labels;
use stdchk_model::limits::LIST_ENTRIES_MAX;
use stdchk_model::message::benefactor::Command;
use stdchk_model::message::handshake::Role;
use stdchk_model::message::manager::{ManagerReply, ManagerRequest, Registration, Term};
use stdchk_model::{BenefactorId, ErrorCode, Failure, PoolId, Tier};
use stdchk_net::{
    BufferPool, Bytes, CallError, Connection, DataDir, Identity, Keys, Managers, Repeats, Retry, elsewhere,
    machine,
};

use tokio::time::Instant;

use crate::copy::Copies;
use crate::journal::Kept;
use crate::service::{Benefactor, blocking};
use crate::store::StoreError;
use crate::wish;

/// Time for the manager's answer. A manager that is gone closes the connection; one that stands still for a moment, on a busy
/// machine or for its disk, would only be told everything again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause between two heartbeats, however much news there is.
const BEAT_PAUSE: Duration = Duration::from_millis(5);
/// Longest interval of heartbeats, milliseconds: an owner's wish waits for no longer.
const BEAT_EVERY_MAX_MS: u64 = 60_000;
/// First and longest pause before the manager is tried again. Programs wait while benefactors have yet to report to a manager
/// that was started again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

/// Pause before the manager is asked again whether all may be told, while it lets others.
const TURN_PAUSE: Duration = Duration::from_millis(100);
/// Pause before one that is no keeper of the journal asks again whether it is.
const KEEPER_PAUSE: Duration = Duration::from_secs(30);
/// Pause before one that is refused since another process serves as this benefactor tries again.
const TWIN_PAUSE: Duration = Duration::from_millis(500);
/// Pause after what the manager refuses, or the disk.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);

/// What a benefactor needs to talk to its manager.
pub(crate) struct Link {
    /// Where managers serve.
    pub(crate) managers: Managers,
    pub(crate) keys: Option<Arc<Keys>>,
    /// Where the benefactor listens, or what its owner says that others reach. An address of the network may leave the host out: then it is the
    /// one by which the manager is reached.
    pub(crate) listens: String,
    /// What the owner says of where it stands.
    pub(crate) labels: Labels,
    /// Where its folder keeps blocks.
    pub(crate) tier: Tier,
    pub(crate) heartbeat: Duration,
    /// The benefactor's own.
    pub(crate) folder: Arc<Path>,
    pub(crate) benefactor: Arc<Benefactor>,
    pub(crate) copies: Copies,
    pub(crate) buffers: Arc<BufferPool>,
    /// Tries to inform the manager that came to nothing.
    pub(crate) missed: Repeats,
}

/// While it lives there is a manager whose journal can be followed.
struct Following(Arc<Kept>);

impl Following {
    fn new(kept: &Arc<Kept>) -> Self {
        kept.is_done(false);
        Self(Arc::clone(kept))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.0.is_done(true);
    }
}

/// What the manager answered to the registration over this connection.
#[derive(Clone, Copy)]
struct Registered {
    id: BenefactorId,
    registration: u64,
    term: Term,
    /// The term is written down here: orders may be carried out.
    noted: bool,
}

/// The address at which others reach who listens there, seen from the manager.
fn reachable(listens: &str, here: Option<IpAddr>) -> String {
    let unspecified = listens.parse().ok().filter(|address: &SocketAddr| address.ip().is_unspecified());
    match unspecified.zip(here) {
        Some((address, here)) => SocketAddr::new(here, address.port()).to_string(),
        None => listens.to_owned(),
    }
}

/// Asks the manager for its pool until it answers.
pub(crate) async fn learn_pool(
    managers: &Managers,
    keys: Option<Arc<Keys>>,
    buffers: &Arc<BufferPool>,
) -> PoolId {
    let identity = Identity { role: Role::Benefactor, pool: None, keys };
    let (mut retry, mut missed) = (Retry::endless(PAUSES), Repeats::default());
    loop {
        match managers.open(&identity, buffers).await {
            Ok(connection) => return connection.pool(),
            Err(error) => {
                if let Some(row) = missed.failed(&error.to_string()) {
                    let (seconds, tries) = (row.seconds, row.times);
                    tracing::warn!(%managers, seconds, tries, %error, "this benefactor waits for the manager, to ask for its pool");
                }
            }
        }
        retry.pause().await;
    }
}

impl Link {
    /// Keeps the manager informed for ever.
    pub(crate) async fn keep(mut self, mut directory: DataDir) {
        let mut retry = Retry::endless(PAUSES);
        let mut twin = None;
        loop {
            match self.life(&mut directory, &mut retry).await {
                Err(error) if is_stale(&error) => tracing::info!("the manager wants a new registration"),
                // Said once: it goes on for as long as the other process does.
                Err(CallError::Refused(failure)) if failure.code == ErrorCode::Exists => {
                    if twin.as_ref() != Some(&failure) {
                        tracing::error!(%failure, "this benefactor is not let in");
                    }
                    twin = Some(failure);
                    tokio::time::sleep(TWIN_PAUSE).await;
                }
                Err(error) => self.note_missed(&error),
                // Nothing else ends it so.
                Ok(()) => {
                    if let Err(error) = self.note_left().await {
                        tracing::warn!(%error, "it can't be written down that the pool has forgotten this benefactor");
                        tokio::time::sleep(REFUSED_PAUSE).await;
                    }
                }
            }
            if self.benefactor.is_left() {
                // The directory is held until the process ends.
                return std::future::pending().await;
            }
            retry.pause().await;
        }
    }

    fn note_missed(&mut self, error: &CallError) {
        if let Some(row) = self.missed.failed(&error.to_string()) {
            let (managers, seconds, tries) = (&self.managers, row.seconds, row.times);
            tracing::warn!(%managers, seconds, tries, %error, "the manager can't be informed: this benefactor waits for it, and serves what it has");
        }
    }

    /// A manager has heard all that is here.
    fn note_found(&mut self, manager: &str, own: Registered) {
        let (id, term) = (own.id, own.term.number);
        match self.missed.is_well() {
            Some(row) => {
                let seconds = row.seconds;
                tracing::info!(manager, seconds, %id, term, "the manager is there again");
            }
            None => tracing::info!(manager, %id, term, "the manager is informed"),
        }
    }

    /// One connection: ends with the error that ended it, or when the pool has forgotten the benefactor as its owner wishes.
    async fn life(&mut self, directory: &mut DataDir, retry: &mut Retry) -> Result<(), CallError> {
        let identity = Identity { role: Role::Benefactor, pool: directory.pool(), keys: self.keys.clone() };
        let connection = Heard::new(self.managers.open(&identity, &self.buffers).await?);
        let (managers, buffers) = (self.managers.clone(), Arc::clone(&self.buffers));
        tokio::select! {
            ended = self.live(&connection, directory, retry) => ended,
            other = managers.another(&connection.connection, &identity, &buffers, || connection.heard()) => {
                tracing::warn!(manager = %other.address(), "another manager leads");
                Err(CallError::Closed { address: connection.connection.address().to_owned() })
            }
        }
    }

    async fn live(
        &mut self,
        connection: &Heard,
        directory: &mut DataDir,
        retry: &mut Retry,
    ) -> Result<(), CallError> {
        let own = self.register(connection, directory).await?;
        self.send_inventory(connection, own).await?;
        retry.progressed();
        self.note_found(connection.connection.address(), own);
        let _followed = Following::new(self.benefactor.kept());
        tokio::select! {
            ended = self.beat_for_ever(connection, own) => ended,
            ended = self.take_orders(connection, own) => ended,
            ended = self.tell_unreached(connection, own) => ended,
            ended = self.follow(connection, own) => ended,
        }
    }

    async fn beat_for_ever(&self, connection: &Heard, own: Registered) -> Result<(), CallError> {
        let mut every = self.heartbeat;
        let mut next = Instant::now();
        let mut settled = None;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(next) => {
                    self.sync().await;
                    (settled, next) = (None, Instant::now() + every);
                }
                // What is news is durable already.
                () = self.benefactor.news() => {}
            }
            let commands = self.beat(connection, own, &mut settled).await?;
            // Written down when this life has ended: here the end of another question could cut that off half way.
            if commands.contains(&Command::Forgotten) && self.obeys(own) {
                return Ok(());
            }
            if let Some(ms) = commands.iter().find_map(Command::beat_every) {
                every = self.heartbeat.max(Duration::from_millis(ms.min(BEAT_EVERY_MAX_MS)));
                next = Instant::now() + every;
            }
            if self.obey(own, commands) {
                self.send_inventory(connection, own).await?;
            }
            tokio::time::sleep(BEAT_PAUSE).await;
        }
    }

    /// The pool has forgotten this benefactor: notes that it has left, unless its owner wishes otherwise by now.
    async fn note_left(&self) -> Result<(), CallError> {
        let folder = Arc::clone(&self.folder);
        let left = blocking(move || wish::note_left(&folder)).await?;
        let left = left.map_err(|error| {
            let message = format!("what became of the owner's wish can't be written down: {error}");
            Failure::new(ErrorCode::Internal, message)
        })?;
        if left {
            tracing::info!(
                "the pool has forgotten this benefactor, which has nothing more, as its owner wished"
            );
            self.benefactor.has_left();
        }
        Ok(())
    }

    /// Asks for copies to make, for ever: the manager answers when there are some.
    async fn take_orders(&self, connection: &Heard, own: Registered) -> Result<(), CallError> {
        loop {
            let request = ManagerRequest::Orders { id: own.id, registration: own.registration };
            match ask(connection, &request).await? {
                ManagerReply::Commands(commands) => {
                    self.obey(own, commands);
                }
                _ => return Err(unexpected("orders")),
            }
        }
    }

    /// Tells which others this benefactor can't send to, for ever, and tries those that the manager names.
    async fn tell_unreached(&self, connection: &Heard, own: Registered) -> Result<(), CallError> {
        let Registered { id, registration, .. } = own;
        let reach = self.copies.reach();
        let mut news = reach.news();
        // A registration says that there are none.
        let mut is_any = false;
        loop {
            news.borrow_and_update();
            let (unreached, reaches_none) = reach.said();
            if is_any || !unreached.is_empty() {
                is_any = !unreached.is_empty();
                let request = ManagerRequest::Unreached { id, registration, unreached, reaches_none };
                let ManagerReply::Benefactors(others) = ask(connection, &request).await? else {
                    return Err(unexpected("others to try"));
                };
                reach.try_others(others.into_iter().map(|other| (other.id, other.address)));
            }
            tokio::time::sleep(BEAT_PAUSE).await;
            if news.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Takes what the manager commits, for ever: it answers when there is something. When the benefactor leaves, it takes what is there.
    async fn follow(&self, connection: &Heard, own: Registered) -> Result<(), CallError> {
        let kept = self.benefactor.kept();
        let (mut leaving, mut missed) = (kept.leaving(), Repeats::default());
        loop {
            let now = *leaving.borrow_and_update();
            let Registered { id, registration, .. } = own;
            self.sync_journal().await?;
            let (has, part, durable) = (kept.reach(), kept.part(), kept.durable());
            let request = ManagerRequest::Journal { id, registration, has, part, now, durable };
            let answer = tokio::select! {
                answer = ask(connection, &request) => answer,
                _ = leaving.changed() => continue,
            };
            let pieces = match answer {
                Ok(ManagerReply::Journal(pieces)) => pieces,
                // It is no keeper, and may become one when others are forgotten.
                Ok(ManagerReply::Done) if !now => {
                    tokio::select! {
                        () = tokio::time::sleep(KEEPER_PAUSE) => {}
                        _ = leaving.changed() => {}
                    }
                    continue;
                }
                Ok(ManagerReply::Done) => Vec::new(),
                Ok(_) => return Err(unexpected("the journal")),
                // The manager can't read its store, say: that is no reason not to be a benefactor.
                Err(CallError::Refused(failure)) if failure.code != ErrorCode::Stale => {
                    if let Some(row) = missed.failed(&failure.message) {
                        tracing::warn!(tries = row.times, %failure, "the manager's journal can't be followed");
                    }
                    tokio::time::sleep(REFUSED_PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            if pieces.is_empty() && now {
                kept.is_done(true);
                return std::future::pending().await;
            }
            match self.keep_pieces(pieces).await {
                Ok(()) => drop(missed.is_well()),
                Err(failure) => {
                    if let Some(row) = missed.failed(&failure.message) {
                        tracing::warn!(tries = row.times, %failure, "what the manager commits can't be kept here");
                    }
                    tokio::time::sleep(REFUSED_PAUSE).await;
                }
            }
        }
    }

    /// Makes what is kept of the journal durable if it is time. A disk that refuses is told of in the log.
    async fn sync_journal(&self) -> Result<(), CallError> {
        let kept = Arc::clone(self.benefactor.kept());
        if let Err(error) = blocking(move || kept.sync_due()).await.map_err(CallError::Refused)? {
            tracing::warn!(%error, "what the manager commits can't be made durable here");
        }
        Ok(())
    }

    /// Keeps pieces of the journal, if there is room for them.
    async fn keep_pieces(&self, pieces: Vec<Piece>) -> Result<(), Failure> {
        if pieces.is_empty() {
            return Ok(());
        }
        let (store, kept) = (Arc::clone(self.benefactor.store()), Arc::clone(self.benefactor.kept()));
        blocking(move || {
            let load = store.load();
            let pieces = kept.fitting(&pieces, load.free_bytes);
            if pieces.is_empty() {
                kept.give_up_base();
                kept.go_ahead(load.free_bytes, load.used_bytes);
                store.keeps_beside(kept.bytes());
                let message = "the donation is used up, or the disk is as full as its owner lets it be";
                return Err(Failure::new(ErrorCode::NoSpace, message));
            }
            let needed = pieces.iter().map(|piece| piece.sealed().len() as u64).sum();
            let working = store.own_work().begin(needed);
            let taken = kept.take(pieces);
            drop(working);
            kept.go_ahead(load.free_bytes, load.used_bytes);
            store.keeps_beside(kept.bytes());
            taken.map_err(|cause| {
                StoreError::Io { action: "write", path: kept.path().to_owned(), cause }.into()
            })
        })
        .await?
    }

    async fn register(&self, connection: &Heard, directory: &mut DataDir) -> Result<Registered, CallError> {
        let registration = Registration {
            id: directory.benefactor(),
            incarnation: self.benefactor.incarnation(),
            address: reachable(&self.listens, connection.connection.here()),
            pid: std::process::id(),
            load: self.benefactor.load(),
            remembered: self.benefactor.memory().remembered(),
            put_sequence: self.benefactor.store().put_sequence(),
            receipt_key: self.benefactor.receipt_key().clone(),
            term: self.benefactor.memory().term(),
            machine: Some(machine()),
            labels: self.labels.clone(),
            tier: self.tier,
        };
        let secret = directory.secret();
        let secret =
            secret.ok_or_else(|| Failure::new(ErrorCode::Internal, "the data directory has no secret"))?;
        let introduced = registration.clone().introduced(secret);
        let answer = match registration.id {
            Some(_) => match ask(connection, &registration.proved(secret)).await {
                // A manager that has forgotten this benefactor, or has an older store, doesn't know its secret.
                Err(CallError::Refused(failure)) if failure.code == ErrorCode::NotFound => {
                    ask(connection, &introduced).await
                }
                answer => answer,
            },
            None => ask(connection, &introduced).await,
        };
        let ManagerReply::Registered { id, moment, registration, term, permits } = answer? else {
            return Err(unexpected("a registration"));
        };
        let memory = Arc::clone(self.benefactor.memory());
        let noted = blocking(move || memory.led_by(term)).await?;
        if let Err(error) = &noted {
            // What is here is served all the same, from a disk that takes no writes.
            tracing::error!(%error, "the manager's term can't be written down: its orders are not obeyed");
        }
        let (noted, term) = (noted.is_ok(), term.what);
        self.benefactor.permits().begin(permits);
        self.benefactor.memory().registered(moment);
        self.benefactor.kept().is_of(id);
        if directory.benefactor() != Some(id) {
            let claimed = directory.claim(connection.connection.pool(), Some(id));
            claimed.map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
            tracing::info!(%id, "registered");
        }
        Ok(Registered { id, registration, term, noted })
    }

    /// Tells all that is here. What was ordered to go before is out of use by then: what the inventory names stays until an order
    /// that comes later.
    async fn send_inventory(&self, connection: &Heard, own: Registered) -> Result<(), CallError> {
        let Registered { id, registration, .. } = own;
        loop {
            match ask(connection, &ManagerRequest::BeginInventory { id, registration }).await {
                // Many tell at once after a start of the manager: they take turns.
                Err(CallError::Refused(failure)) if failure.code == ErrorCode::Unavailable => {
                    tokio::time::sleep(TURN_PAUSE).await;
                }
                answer => break drop(answer?),
            }
        }
        self.sync().await;
        let store = Arc::clone(self.benefactor.store());
        let (put_sequence, all) = blocking(move || store.inventory()).await?;
        let parts: Vec<&[_]> = match all.is_empty() {
            true => vec![&[]],
            false => all.chunks(LIST_ENTRIES_MAX).collect(),
        };
        let count = parts.len();
        for (index, part) in parts.into_iter().enumerate() {
            let request = ManagerRequest::Inventory {
                id,
                registration,
                last: index + 1 == count,
                blocks: part.to_vec(),
                put_sequence,
            };
            ask(connection, &request).await?;
        }
        Ok(())
    }

    /// Makes durable what is stored. A disk that fails has said so in the log; the load that is reported next has no free
    /// space any more, and blocks that are not durable are not reported.
    async fn sync(&self) {
        if self.benefactor.store().is_unsynced()
            && let Err(error) = self.benefactor.sync().await
        {
            tracing::debug!(%error, "stored blocks can't be made durable");
        }
    }

    /// `settled`: number of the last put when all puts were made durable last; `None`: just now. The manager decides deletions
    /// by it, and knows nothing of puts that aren't durable.
    async fn beat(
        &self,
        connection: &Heard,
        own: Registered,
        settled: &mut Option<u64>,
    ) -> Result<Vec<Command>, CallError> {
        let store = self.benefactor.store();
        let (put_sequence, changes) = store.take_changes();
        let durable_sequence = *settled.get_or_insert(put_sequence);
        let Some(changes) = changes else {
            return Ok(vec![Command::SendInventory]);
        };
        let copies_failed = self.copies.take_failed();
        let found = self.copies.remaker().take_found();
        let load = self.benefactor.load();
        let disk = if load.disk_failed { store.disk_failure() } else { None };
        let request = ManagerRequest::Heartbeat {
            id: own.id,
            registration: own.registration,
            load,
            durable_sequence,
            added: changes.added.clone(),
            removed: changes.removed.clone(),
            damaged: changes.damaged,
            copies_failed: copies_failed.clone(),
            put_sequence,
            decoded: found.0.clone(),
            seen: found.1.clone(),
            disk,
        };
        match ask(connection, &request).await {
            Ok(ManagerReply::Commands(commands)) => Ok(commands),
            answer => {
                store.return_changes(changes);
                self.copies.return_failed(copies_failed);
                self.copies.remaker().return_found(found);
                Err(answer.err().unwrap_or_else(|| unexpected("commands")))
            }
        }
    }

    /// Whether orders over this connection are carried out.
    fn obeys(&self, own: Registered) -> bool {
        own.noted && self.benefactor.memory().obeys(own.term)
    }

    /// Starts what the manager asks for; returns whether it wants the inventory.
    fn obey(&self, own: Registered, commands: Vec<Command>) -> bool {
        let mut inventory = false;
        let obeys = self.obeys(own);
        for command in commands {
            let is_order = !matches!(
                command,
                Command::SendInventory | Command::Revoke(_) | Command::Permits(_) | Command::BeatEvery(_)
            );
            if !obeys && is_order {
                tracing::warn!(term = own.term.number, "an order of an earlier manager is refused");
                continue;
            }
            match command {
                Command::Delete { blocks, put_sequence } => {
                    let store = Arc::clone(self.benefactor.store());
                    let removed = store.take_out(&blocks, put_sequence);
                    elsewhere(move || {
                        if let Err(error) = store.free(&removed) {
                            tracing::error!(%error, "the space of removed blocks can't be freed");
                        }
                    });
                }
                Command::Make(make) => self.copies.order(make),
                Command::Check(check) => self.copies.order_check(check),
                Command::SendInventory => inventory = true,
                Command::Permits(key) => self.benefactor.permits().go_on(key),
                Command::Managers(addresses) => {
                    let managers = self.managers.clone();
                    elsewhere(move || managers.learn(&addresses));
                }
                Command::Goes(left_to_do) => self.benefactor.set_left_to_do(left_to_do),
                // `beat_for_ever` sees to both.
                Command::Forgotten | Command::BeatEvery(_) => {}
                Command::Revoke(members) => {
                    let Some(keys) = self.keys.clone() else { continue };
                    elsewhere(move || {
                        if let Err(error) = keys.revoke(&members) {
                            tracing::warn!(%error, "whose keys are revoked can't be written down for the next start");
                        }
                    });
                }
                Command::Remember(moment) => {
                    let memory = Arc::clone(self.benefactor.memory());
                    elsewhere(move || {
                        if let Err(error) = memory.remember(moment) {
                            let path = memory.path().display();
                            tracing::warn!(%path, %error, "the manager's history can't be written down yet");
                        }
                    });
                }
            }
        }
        inventory
    }
}

/// A connection, and when its manager was heard last.
struct Heard {
    connection: Connection,
    heard: Mutex<Instant>,
}

impl Heard {
    fn new(connection: Connection) -> Self {
        Self { connection, heard: Mutex::new(Instant::now()) }
    }

    fn heard(&self) -> Instant {
        *self.heard.lock()
    }
}

async fn ask(connection: &Heard, request: &ManagerRequest) -> Result<ManagerReply, CallError> {
    let answer = connection.connection.call(request, Bytes::new(), ANSWER_TIMEOUT).await;
    *connection.heard.lock() = Instant::now();
    answer.map(|(reply, _)| reply)
}

fn is_stale(error: &CallError) -> bool {
    matches!(error, CallError::Refused(failure) if failure.code == ErrorCode::Stale)
}

fn unexpected(wanted: &str) -> CallError {
    Failure::new(ErrorCode::Malformed, format!("the manager answered with something else than {wanted}"))
        .into()
}
