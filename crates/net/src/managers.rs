//! The addresses at which a pool's managers serve: one leads, and the others stand by and say who does.
//!
//! All addresses are tried at once, and the first manager that lets the caller in is the one ([`Search`]). A manager that is stopped, or whose host is
//! gone, keeps nobody from the one that leads now.
//!
//! Where managers serve, the pool's operator tells a manager (`stdchk pool set-managers`), and managers tell all members: with each
//! greeting, benefactors with the answers to heartbeats, clients when they ask. Nobody but a manager is believed, which has shown a certificate
//! of the pool's authority. A process takes such a list in place of what it was given at its start, at once and at its next start.
//!
//! A second manager may have the authority's key, and an older copy of the state, or another one. Each greeting says of which [`Era`] the state
//! is. A process that has heard of a later era, or of another one, refuses the manager, in words that name both.
//!
//! | a manager's era | none is known | an earlier one is known | the same one | a later one, or another of that number |
//! |---|---|---|---|---|
//! | when it greets | taken, and known from now on | taken, and known from now on | taken | refused; with `or_older` taken if no other one greets, and left as soon as one does |

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::limits::{MANAGER_ADDRESS_BYTES_MAX, MANAGERS_MAX};
use stdchk_model::message::handshake::Role;
use stdchk_model::message::manager::Era;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::buffer::BufferPool;
use crate::connection::{CallError, Connection, Identity};
use crate::keys::Keys;
use crate::own;
use crate::search::Search;
use crate::transport::socket_of;

/// Where addresses of managers are kept that were learned, in the folder of the keys.
const FILE: &str = "managers";
/// Most addresses of which it is kept that others count in their place.
const FORMER_MAX: usize = 64;
/// Silence of a manager after which another one is looked for.
const SILENT: Duration = Duration::from_secs(2);
/// Pause before that is done again, if there is none.
pub(crate) const LOOK: Duration = Duration::from_millis(500);

/// Where the managers of a pool serve: one address or several. Clones learn together.
#[derive(Clone, Debug)]
pub struct Managers {
    shared: Arc<Shared>,
    /// A manager with an older state is better than none.
    takes_older: bool,
    /// Where managers point that stand by is tried as well.
    follows: bool,
}

#[derive(Debug)]
struct Shared {
    /// Those that this process was told at its start.
    given: Vec<String>,
    /// Those that count.
    now: Mutex<Vec<String>>,
    /// The newest manager that was heard.
    newest: Mutex<Option<Newest>>,
    /// With these what is learned is kept for the next start, and for other processes that use them.
    keys: Option<Arc<Keys>>,
}

/// A host's knowledge of its pool's managers, in a file beside its keys, a line each: where they serve, in place of which other addresses
/// these count, both with commas in between; and number, identity and address of the newest manager.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Learned {
    addresses: Vec<String>,
    former: Vec<String>,
    newest: Option<Newest>,
}

/// The latest era of the pool's state that was heard of, and where the manager serves that said so.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Newest {
    era: Era,
    address: String,
}

impl Newest {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(3, ' ');
        let (number, id) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { era: Era { number, id }, address: words.next()?.to_owned() })
    }

    /// Why the manager at `address`, which has the state of this era, is not the pool's; `None`: it is, for all that is known.
    fn objection(&self, address: &str, era: Era) -> Option<String> {
        let Self { era: newest, address: other } = self;
        if era == *newest || era.number > newest.number {
            return None;
        }
        let has = if era.number < newest.number { "an older state" } else { "another state" };
        let other = if other.is_empty() { "another manager" } else { other };
        Some(format!(
            "the manager at {address} has {has} of this pool than {other}, which was heard before, and is refused; stop it, or, if that one and \
             its state are lost for good, run `stdchk accept-older-store` on its machine"
        ))
    }
}

impl Learned {
    fn read(keys: &Keys) -> Option<Self> {
        let path = keys.folder()?.join(FILE);
        match own::text(&path) {
            Ok(text) => {
                let list = |line: Option<&str>| {
                    Vec::from_iter(
                        line.unwrap_or_default().split(',').filter(|one| !one.is_empty()).map(str::to_owned),
                    )
                };
                let mut lines = text.lines();
                let (addresses, former) = (list(lines.next()), list(lines.next()));
                Some(Self { addresses, former, newest: lines.next().and_then(Newest::parse) })
            }
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "where managers serve can't be read: what is given counts");
                None
            }
        }
    }

    /// The addresses that count for a process that is given others. Sockets lead to a manager of its own machine, and stay. A user who gives an
    /// address that was never known means it.
    fn in_place_of(&self, given: &[String]) -> Vec<String> {
        let is_known = |address: &&String| self.addresses.contains(address) || self.former.contains(address);
        let (sockets, others): (Vec<_>, Vec<_>) =
            given.iter().partition(|address| socket_of(address).is_some());
        match !self.addresses.is_empty() && others.iter().all(is_known) {
            true => sockets.into_iter().chain(&self.addresses).cloned().collect(),
            false => given.to_vec(),
        }
    }

    fn write(&self, keys: &Keys) -> io::Result<()> {
        let Some(folder) = keys.folder() else { return Ok(()) };
        let newest = self
            .newest
            .as_ref()
            .map(|Newest { era, address }| format!("{} {} {address}\n", era.number, era.id));
        let text = format!(
            "{}\n{}\n{}",
            self.addresses.join(","),
            self.former.join(","),
            newest.unwrap_or_default()
        );
        own::replace(&folder.join(FILE), &text, 0o644)
    }
}

impl Managers {
    /// The addresses in a text, with commas between them. The path of a socket may hold commas, too, as long as no `unix:` follows.
    pub fn new(text: &str) -> Self {
        Self::known(text, None)
    }

    /// The addresses in a text, or those that a manager has told a process with these keys since.
    pub fn known(text: &str, keys: Option<Arc<Keys>>) -> Self {
        let given = Self::parse(text);
        let learned = keys.as_ref().and_then(|keys| Learned::read(keys));
        let now = learned.as_ref().map_or_else(|| given.clone(), |learned| learned.in_place_of(&given));
        let newest = Mutex::new(learned.and_then(|learned| learned.newest));
        let shared = Arc::new(Shared { given, now: Mutex::new(now), newest, keys });
        Self { shared, takes_older: false, follows: true }
    }

    /// Takes a manager with an older state of the pool if no other one greets: for who has to tell it so, or to decide that it is to go on.
    #[must_use]
    pub fn or_older(mut self) -> Self {
        self.takes_older = true;
        self
    }

    /// Goes nowhere else: for who asks whether one of these addresses leads.
    #[must_use]
    pub fn as_given(mut self) -> Self {
        self.follows = false;
        self
    }

    /// Whether a manager with an older state is better than none.
    pub(crate) fn takes_older(&self) -> bool {
        self.takes_older
    }

    /// Whether it is gone where managers point that stand by.
    pub(crate) fn follows(&self) -> bool {
        self.follows
    }

    /// Takes in an era of which this process knows from before.
    pub fn hear(&self, era: Era) {
        let mut newest = self.shared.newest.lock();
        if newest.as_ref().is_none_or(|newest| newest.era.number < era.number) {
            *newest = Some(Newest { era, address: String::new() });
        }
    }

    /// Why a manager that has greeted is not the pool's, though it has its keys; `None`: it is, for all that is known.
    pub fn objection(&self, connection: &Connection) -> Option<String> {
        self.objection_to(connection.address(), connection.era()?)
    }

    /// Why the manager at `address`, which has the state of this era or stands by for it, is not the pool's.
    pub(crate) fn objection_to(&self, address: &str, era: Era) -> Option<String> {
        self.shared.newest.lock().as_ref()?.objection(address, era)
    }

    /// The managers that have the pool's keys and are refused, as [`Self::objection`] says it.
    pub async fn refused(&self, identity: &Identity, buffers: &Arc<BufferPool>) -> Vec<String> {
        let mut tries = JoinSet::new();
        for address in self.addresses() {
            let (managers, identity, buffers) = (self.clone(), identity.clone(), Arc::clone(buffers));
            tries.spawn(async move {
                let opened = Connection::open(Role::Manager, &address, &identity, &buffers).await;
                managers.objection(&opened.ok()?)
            });
        }
        let mut refused: Vec<String> = tries.join_all().await.into_iter().flatten().collect();
        refused.sort();
        refused
    }

    /// Takes in what a manager said when it greeted, or says why it is refused.
    pub(crate) fn take(&self, connection: Connection) -> Result<Connection, Box<(Connection, String)>> {
        if let Some(objection) = self.objection(&connection) {
            return Err(Box::new((connection, objection)));
        }
        if let Some(era) = connection.era() {
            let newest = Newest { era, address: connection.address().to_owned() };
            let mut known = self.shared.newest.lock();
            // The first era says nothing of other managers.
            let is_news = era != Era::FIRST && known.as_ref().is_none_or(|known| known.era != era);
            if is_news {
                *known = Some(newest.clone());
                drop(known);
                self.keep(|learned| learned.newest = Some(newest));
            }
        }
        self.learn(connection.managers());
        Ok(connection)
    }

    /// Changes what is kept for the next start.
    fn keep(&self, change: impl FnOnce(&mut Learned)) {
        let Some(keys) = &self.shared.keys else { return };
        let before = Learned::read(keys).unwrap_or_default();
        let mut learned = before.clone();
        change(&mut learned);
        if learned != before
            && let Err(error) = learned.write(keys)
        {
            tracing::warn!(%error, "what is known of the pool's managers can't be written down for the next start");
        }
    }

    /// Takes in where a manager says that all of them serve; none: it doesn't know. Kept for the next start beside the keys of this process, if
    /// it has some.
    pub fn learn(&self, told: &[String]) {
        let is_bounded =
            |address: &String| address.len() <= MANAGER_ADDRESS_BYTES_MAX && !address.contains([',', '\n']);
        if told.is_empty() || told.len() > MANAGERS_MAX || !told.iter().all(is_bounded) {
            return;
        }
        let Shared { given, now, .. } = &*self.shared;
        let mut now = now.lock();
        let sockets = given.iter().filter(|address| socket_of(address).is_some());
        let next: Vec<String> = sockets.chain(told).cloned().collect();
        if *now == next {
            return;
        }
        tracing::info!(managers = next.join(","), "the pool's managers serve at other addresses than before");
        *now = next;
        drop(now);
        self.keep(|learned| {
            let others = given.iter().filter(|address| socket_of(address).is_none());
            let known = others.chain(&learned.addresses).chain(&learned.former);
            let mut former: Vec<String> = known.filter(|one| !told.contains(one)).cloned().collect();
            former.sort();
            former.dedup();
            former.truncate(FORMER_MAX);
            (learned.addresses, learned.former) = (told.to_vec(), former);
        });
    }

    fn parse(text: &str) -> Vec<String> {
        let mut addresses: Vec<String> = Vec::new();
        for part in text.split(',') {
            match addresses.last_mut() {
                // The comma belongs to a path.
                Some(last) if last.starts_with("unix:") && !part.starts_with("unix:") => {
                    last.push(',');
                    last.push_str(part);
                }
                _ => addresses.push(part.to_owned()),
            }
        }
        addresses
    }

    /// The addresses.
    pub fn addresses(&self) -> Vec<String> {
        self.shared.now.lock().clone()
    }

    /// Connects to the one that leads.
    ///
    /// # Errors
    /// None does; that of one that refuses, if there is one.
    pub async fn open(
        &self,
        identity: &Identity,
        buffers: &Arc<BufferPool>,
    ) -> Result<Connection, CallError> {
        // In a box, since all that asks a manager holds this within itself.
        Box::pin(Search::new(self, (identity, buffers), None).first_of(self.addresses())).await
    }

    /// Connects to another one than that of `connection`, once that has said nothing for a while; `heard` tells when it did last. Never
    /// ready while no other one leads.
    pub async fn another(
        &self,
        connection: &Connection,
        identity: &Identity,
        buffers: &Arc<BufferPool>,
        heard: impl Fn() -> Instant,
    ) -> Connection {
        loop {
            let mut others = self.addresses();
            others.retain(|address| address != connection.address());
            if others.is_empty() {
                // Some may be learned.
                tokio::time::sleep(SILENT).await;
                continue;
            }
            // One with an older state is left as soon as there is another one.
            let silent = if self.objection(connection).is_some() { SILENT } else { heard().elapsed() };
            if silent < SILENT {
                tokio::time::sleep(SILENT.saturating_sub(silent)).await;
                continue;
            }
            let search = Search::new(self, (identity, buffers), Some(connection));
            match Box::pin(search.first_of(others)).await {
                Ok(other) => return other,
                Err(error) => tracing::debug!(%error, "no other manager leads"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl std::fmt::Display for Managers {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&self.addresses().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stand_between_commas_and_paths_may_hold_some() {
        let of = |text: &str| Managers::new(text).addresses();
        assert_eq!(of("a:1"), ["a:1"]);
        assert_eq!(of("a:1,b:2,[::1]:3"), ["a:1", "b:2", "[::1]:3"]);
        assert_eq!(of("unix:/a,b/socket"), ["unix:/a,b/socket"]);
        assert_eq!(of("unix:/a,b/socket,unix:/c"), ["unix:/a,b/socket", "unix:/c"]);
        assert_eq!(of("a:1,unix:/c"), ["a:1", "unix:/c"]);
        assert_eq!(Managers::new("a:1,b:2").to_string(), "a:1,b:2");
    }

    #[test]
    fn what_was_learned_counts_in_place_of_addresses_that_were_known_and_of_no_others() {
        let list = |text: &str| Managers::parse(text);
        let learned = Learned { addresses: list("b:1,c:1"), former: list("a:1"), newest: None };
        let counts = |given: &str| learned.in_place_of(&list(given)).join(",");
        assert_eq!(counts("a:1"), "b:1,c:1");
        assert_eq!(counts("b:1,a:1"), "b:1,c:1");
        assert_eq!(counts("unix:/s"), "unix:/s,b:1,c:1", "a manager of this machine may lead");
        assert_eq!(counts("a:1,unix:/s"), "unix:/s,b:1,c:1");
        for meant in ["d:1", "a:1,d:1"] {
            assert_eq!(counts(meant), meant);
        }
        assert_eq!(Learned::default().in_place_of(&list("a:1")), ["a:1"]);
    }

    #[test]
    fn a_process_learns_bounded_lists_and_keeps_sockets() {
        let managers = Managers::new("a:1,unix:/s");
        managers.learn(&[]);
        managers.learn(&vec!["b:1".to_owned(); MANAGERS_MAX + 1]);
        managers.learn(&["b".repeat(MANAGER_ADDRESS_BYTES_MAX + 1)]);
        assert_eq!(managers.to_string(), "a:1,unix:/s");
        let clone = managers.clone();
        managers.learn(&["b:1".to_owned(), "c:1".to_owned()]);
        assert_eq!(clone.to_string(), "unix:/s,b:1,c:1");
    }

    #[test]
    fn a_manager_of_an_earlier_era_or_of_another_one_is_refused_with_both_addresses() {
        let newest = Newest { era: Era { number: 2, id: 7 }, address: "b:1".to_owned() };
        let objection = |number, id| newest.objection("a:1", Era { number, id });
        assert_eq!((objection(2, 7), objection(3, 1)), (None, None));
        for (told, has) in [(objection(1, 7), "an older state"), (objection(2, 8), "another state")] {
            let told = told.unwrap();
            assert!(told.contains("a:1") && told.contains("b:1") && told.contains(has), "{told}");
        }
        assert_eq!(Newest::parse("2 7 b:1"), Some(newest));
        assert_eq!(Newest::parse("2 b:1"), None);
    }
}
