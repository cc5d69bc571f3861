//! Fetching one chunk: from as many benefactors as have enough of its blocks, verified, with others asked when the first are
//! slow, gone or lying.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use stdchk_model::exact::part;
use stdchk_model::limits::LIST_ENTRIES_MAX;
use stdchk_model::message::manager::{ChunkLocations, Location, ManagerReply, ManagerRequest};
use stdchk_model::{
    BenefactorId, BlockId, ChunkId, ChunkRef, Encoding, EncodingId, ErrorCode, Failure, Tier, Trust,
};
use stdchk_net::{Bytes, CallError};
use stdchk_protect::seal::Keys;
use stdchk_protect::{Assembly, BadFragments, Gathered, is_readable_at};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::benefactors::{Benefactors, Doubt};
use crate::keyring::KeyRing;
use crate::manager::ManagerLink;
use crate::near::Near;
use crate::receiving::Pace;

/// A benefactor that has not answered by then gets company, while nothing is known of what answers take: the same chunk is asked of
/// another one. If none is known, the manager is asked: copies may have been made since the holders were remembered.
const HEDGE_AFTER: Duration = Duration::from_millis(500);
/// Otherwise it gets company after so many times as long as blocks took lately. Many are under way at once: on a slow link each takes long,
/// and company would only make it slower.
const HEDGE_TIMES: u32 = 4;
/// However short that is, it is waited for so long, which a busy disk or machine may take; and less long once another block of the same
/// chunk has come.
const HEDGE_MIN: Duration = Duration::from_millis(250);
const HEDGE_MIN_OF_OTHERS: Duration = Duration::from_millis(100);
/// One that doesn't even greet gets company after so many times as long as it took to connect to others, and after so long at least.
const GREETING_MIN: Duration = HEDGE_MIN_OF_OTHERS;
/// However long that is, not longer.
const HEDGE_MAX: Duration = Duration::from_secs(4);
/// How often it is looked at whether a benefactor is late.
const LATE_LOOK: Duration = Duration::from_millis(50);
/// One block in so many is what blocks took lately.
const LATELY: u32 = 8;
/// Rounds of asking all holders before a chunk counts as unreadable; the manager is asked for holders before each.
const ROUNDS_MAX: u32 = 4;
/// Pause before a further round, while a benefactor may be coming back.
const ROUND_PAUSE: Duration = Duration::from_millis(400);
/// Rounds while the manager still waits for benefactors to report after its restart.
const PENDING_ROUNDS_MAX: u32 = 60;
/// Chunks whose locations are remembered; beyond, all are forgotten and asked for again. 45 MB at most with two copies of each.
const LOCATIONS_MAX: usize = 1 << 18;

/// Encodings that were reported as broken and are remembered, so that each is reported once; beyond, all are forgotten.
const TOLD_MAX: usize = 1 << 12;

/// Who has a chunk.
#[derive(Default)]
struct Holders {
    at: Vec<Location>,
    /// The manager was not asked just now: there may be others.
    remembered: bool,
    /// Some of them may have yet to report that they have it.
    pending: bool,
    /// They are not on-line, and have it or may have it.
    away: Vec<BenefactorId>,
}

/// A holder with what is held against its benefactor.
type Doubted = (Option<Doubt>, Location);

/// Why others are asked beside holders that were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Late {
    /// They don't even greet.
    Silent,
    /// They are far slower than the next one would be.
    Slow,
    /// Nothing more came from any of them for too long.
    All,
}

/// Fetches chunks and remembers where they are.
pub(crate) struct Fetcher {
    manager: Arc<ManagerLink>,
    benefactors: Arc<Benefactors>,
    near: Arc<Near>,
    keys: Arc<KeyRing>,
    locations: Mutex<HashMap<ChunkId, Vec<Location>>>,
    /// What blocks took lately, from the question to the last byte, the newest weighing most; `None`: none has come yet.
    lately: Mutex<Option<Duration>>,
    /// Encodings of which the manager was told that they don't make their chunks.
    told: Mutex<HashSet<(ChunkId, EncodingId)>>,
}

impl Fetcher {
    pub(crate) fn new(
        manager: Arc<ManagerLink>,
        benefactors: Arc<Benefactors>,
        near: Arc<Near>,
        keys: Arc<KeyRing>,
    ) -> Self {
        let (locations, lately, told) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { manager, benefactors, near, keys, locations, lately, told }
    }

    /// Remembers holders of a chunk that a session stored itself.
    pub(crate) fn remember(&self, chunk: ChunkId, at: Vec<Location>) {
        let mut locations = self.locations.lock();
        if locations.len() >= LOCATIONS_MAX {
            locations.clear();
        }
        locations.insert(chunk, at);
    }

    /// Asks the manager for the holders of those `chunks` whose holders aren't known, in as few questions as possible.
    pub(crate) async fn locate(&self, chunks: impl IntoIterator<Item = ChunkId>) -> Result<(), Failure> {
        let unknown: Vec<ChunkId> = {
            let locations = self.locations.lock();
            chunks.into_iter().filter(|chunk| !locations.contains_key(chunk)).collect()
        };
        for part in unknown.chunks(LIST_ENTRIES_MAX) {
            for (chunk, found) in part.iter().zip(self.ask_locations(part).await?) {
                if !found.at.is_empty() {
                    self.remember(*chunk, found.at);
                }
            }
        }
        Ok(())
    }

    /// Where each of `chunks` is, all holders included that have not reported since the manager started: they are waited
    /// for, for a while.
    pub(crate) async fn holders_of(&self, chunks: &[ChunkId]) -> Result<Vec<ChunkLocations>, Failure> {
        for _ in 1..PENDING_ROUNDS_MAX {
            let found = self.ask_locations(chunks).await?;
            if !found.iter().any(|found| found.pending) {
                return Ok(found);
            }
            tokio::time::sleep(ROUND_PAUSE).await;
        }
        self.ask_locations(chunks).await
    }

    async fn ask_locations(&self, chunks: &[ChunkId]) -> Result<Vec<ChunkLocations>, Failure> {
        match self.manager.ask(&ManagerRequest::Locate { chunks: chunks.to_vec() }).await? {
            ManagerReply::Locations(found) if found.len() == chunks.len() => Ok(found),
            _ => Err(crate::unexpected("Locate")),
        }
    }

    /// The plain bytes of `chunk`, verified against its name.
    ///
    /// # Errors
    /// `Damaged` if holders answered and none had intact bytes; `Unavailable` if none could be reached; `NoKey` if it is encrypted
    /// with a key that this client lacks.
    pub(crate) async fn fetch(&self, chunk: ChunkRef) -> Result<Bytes, Failure> {
        // What no benefactor has any more was damaged, or lost with the benefactors that had it.
        let mut last = Failure::new(ErrorCode::Damaged, "no benefactor has an intact copy".to_owned());
        let (mut round, mut limit, mut away) = (0, ROUNDS_MAX, Vec::new());
        let mut asks_at_once = false;
        if let Some(bytes) = self.near.get(chunk, false).await {
            return Ok(bytes);
        }
        while round < limit {
            if round > 0 {
                self.locations.lock().remove(&chunk.id);
                // What was remembered is gone, as what was in memory goes: the manager knows where it is now.
                if !std::mem::take(&mut asks_at_once) {
                    tokio::time::sleep(ROUND_PAUSE).await;
                }
            }
            let Holders { at: holders, remembered, pending, away: absent } = self.holders(chunk.id).await?;
            away = absent;
            asks_at_once = remembered;
            limit = if pending { PENDING_ROUNDS_MAX } else { ROUNDS_MAX };
            match self.fetch_from(chunk, &holders, remembered).await {
                Ok(bytes) => return Ok(bytes),
                // Asking again doesn't bring the key.
                Err(Some(failure)) if failure.code == ErrorCode::NoKey => return Err(failure),
                Err(Some(failure)) => last = failure,
                // The manager knows of no holder and expects none back.
                Err(None) if !pending && round > 0 => break,
                Err(None) => {}
            }
            round += 1;
        }
        if let Some(bytes) = self.near.get(chunk, true).await {
            return Ok(bytes);
        }
        if !away.is_empty() {
            // What can come back is no damage.
            let names: Vec<String> = away.iter().map(ToString::to_string).collect();
            let what = format!("{} is away and has it or may have it", names.join(", "));
            last = Failure::new(ErrorCode::Unavailable, what).then("try again once it is back");
        }
        Err(crate::context(&last, format_args!("chunk {} can't be read", chunk.id)))
    }

    async fn holders(&self, chunk: ChunkId) -> Result<Holders, Failure> {
        let known = self.locations.lock().get(&chunk).cloned();
        let Some(known) = known else { return self.find(chunk).await };
        let remembered = Holders { at: known, remembered: true, ..Holders::default() };
        let trusted = remembered.at.iter().filter(|at| self.benefactors.doubt(at.benefactor).is_none());
        if is_readable_at(trusted) {
            return Ok(remembered);
        }
        match tokio::time::timeout(HEDGE_AFTER, self.find(chunk)).await {
            Ok(Ok(found)) if is_readable_at(&found.at) => Ok(found),
            _ => Ok(remembered),
        }
    }

    /// Asks the manager for the holders of a chunk.
    async fn find(&self, chunk: ChunkId) -> Result<Holders, Failure> {
        let found = self.ask_locations(&[chunk]).await?.swap_remove(0);
        let at = found.at;
        if !at.is_empty() {
            self.remember(chunk, at.clone());
        }
        Ok(Holders { at, remembered: false, pending: found.pending, away: found.away })
    }

    /// Gathers blocks from holders, those without doubts first, as many at a time as are still needed; if they are `remembered` and
    /// let it wait, also from others that the manager knows. `Err(None)`: there are none.
    async fn fetch_from(
        &self,
        chunk: ChunkRef,
        holders: &[Location],
        mut remembered: bool,
    ) -> Result<Bytes, Option<Failure>> {
        let mut waiting = VecDeque::from(self.order(chunk, holders));
        let (mut asked, mut unanswered) = (HashSet::new(), HashSet::new());
        let gathering = Arc::new(Mutex::new(Gathering::new(chunk, &self.keys)));
        let mut attempts = JoinSet::new();
        let (mut others, mut are_others_sought) = (pin!(self.find(chunk.id)), false);
        let mut last: Option<Failure> = None;
        // Holders that are to be asked beside those that were.
        let mut due = 0;
        let mut quickest: Option<Duration> = None;
        loop {
            if attempts.is_empty() && due == 0 {
                due = waiting.front().map_or(0, |next| {
                    let gathered = gathering.lock().assembly.gathered(&next.encoding);
                    usize::from(next.encoding.code.data().saturating_sub(gathered).max(1))
                });
            }
            while due > 0
                && let Some(next) = self.next(&waiting, chunk.length)
                && let Some(holder) = waiting.remove(next)
            {
                let (benefactors, gathering) = (Arc::clone(&self.benefactors), Arc::clone(&gathering));
                let keys = Arc::clone(&self.keys);
                attempts.spawn(async move {
                    let began = Instant::now();
                    let got = attempt(&benefactors, holder, chunk, &gathering, &keys).await;
                    (holder, got.map(|gathered| (gathered, began.elapsed())))
                });
                asked.insert(holder);
                unanswered.insert(holder);
                due -= 1;
            }
            due = 0;
            if attempts.is_empty() {
                return Err(last);
            }
            tokio::select! {
                finished = attempts.join_next() => match finished {
                    Some(Ok((_, Ok((Gathered::Whole(bytes), took))))) => {
                        self.took(took);
                        return Ok(bytes);
                    }
                    Some(Ok((holder, Ok((Gathered::Lacks(_), took))))) => {
                        unanswered.remove(&holder);
                        self.took(took);
                        quickest.get_or_insert(took);
                    }
                    Some(Ok((holder, Err(refusal)))) => {
                        unanswered.remove(&holder);
                        if refusal.is_broken {
                            self.tell_broken(chunk.id, holder.encoding);
                        }
                        last = Some(worse(last, refusal.failure));
                        due = 1;
                    }
                    _ => {}
                },
                found = &mut others, if are_others_sought => {
                    are_others_sought = false;
                    let found = found.map(|found| found.at).unwrap_or_default();
                    let is_asked = |holder: &Location| asked.iter().any(|asked| holder.is_same(asked));
                    let new: Vec<_> = found.into_iter().filter(|holder| !is_asked(holder)).collect();
                    waiting.extend(self.order(chunk, &new));
                    due = 1;
                }
                (waited, why, late) = self.wait(quickest, &unanswered, &waiting, chunk.length) => {
                    if why != Late::Slow {
                        late.iter().for_each(|holder| self.benefactors.late(holder.benefactor, waited));
                    }
                    if waiting.is_empty() {
                        are_others_sought |= std::mem::take(&mut remembered);
                    }
                    // All that are late get company, if others weren't; and one more is asked where nobody is waited for any more.
                    due = if quickest.is_some() || why != Late::All { late.len().max(1) } else { 1 };
                    unanswered.retain(|holder| why == Late::All || !late.contains(holder));
                }
            }
        }
    }

    /// Tells the manager, which lets benefactors look for themselves, that the fragments of an encoding don't make their chunk. Nobody waits for
    /// that; what it doesn't hear, another reader tells.
    pub(crate) fn tell_broken(&self, chunk: ChunkId, encoding: EncodingId) {
        {
            let mut told = self.told.lock();
            if told.len() >= TOLD_MAX {
                told.clear();
            }
            if !told.insert((chunk, encoding)) {
                return;
            }
        }
        tracing::warn!(%chunk, ?encoding, maker = %encoding.maker, "the fragments of an encoding match their names and don't make the chunk");
        let manager = Arc::clone(&self.manager);
        tokio::spawn(async move {
            if let Err(error) = manager.ask(&ManagerRequest::Doubt { chunk, encoding }).await {
                tracing::debug!(%chunk, %error, "the manager can't be told of a broken encoding");
            }
        });
    }

    /// A block took so long.
    fn took(&self, took: Duration) {
        let mut lately = self.lately.lock();
        *lately = Some(lately.map_or(took, |lately| (lately * (LATELY - 1) + took) / LATELY));
    }

    /// Waits until others should be asked beside the `unanswered` holders; tells for how long that was, why, and beside which.
    async fn wait(
        &self,
        quickest: Option<Duration>,
        unanswered: &HashSet<Location>,
        waiting: &VecDeque<Location>,
        length: u32,
    ) -> (Duration, Late, Vec<Location>) {
        let patience = patience(quickest, *self.lately.lock());
        let for_greeting = (self.benefactors.connecting() * HEDGE_TIMES).clamp(GREETING_MIN, patience);
        let began = Instant::now();
        loop {
            // What is seen of them begins with the first look at the latest.
            let slow = self.slow(unanswered, waiting, length);
            let waited = began.elapsed();
            if waited >= HEDGE_MIN_OF_OTHERS && !slow.is_empty() {
                return (waited, Late::Slow, slow);
            }
            if waited >= for_greeting {
                let is_silent = |holder: &&Location| !self.benefactors.is_connected(holder.benefactor);
                let silent: Vec<Location> = unanswered.iter().filter(is_silent).copied().collect();
                if !silent.is_empty() {
                    return (waited, Late::Silent, silent);
                }
            }
            if waited >= patience {
                return (waited, Late::All, unanswered.iter().copied().collect());
            }
            tokio::time::sleep(LATE_LOOK.min(patience.saturating_sub(waited))).await;
        }
    }

    /// Those of `asked` that are far slower than the next of those that wait to be asked. If nothing is known of that one, it is taken to be
    /// as fast as benefactors usually are.
    fn slow(&self, asked: &HashSet<Location>, waiting: &VecDeque<Location>, length: u32) -> Vec<Location> {
        let pace = |at: &Location| self.benefactors.pace(at.benefactor);
        let known: Vec<_> = asked.iter().filter_map(|at| Some((*at, pace(at)?))).collect();
        let Some(next) = self.next(waiting, length).and_then(|at| waiting.get(at)) else { return Vec::new() };
        let Some(other) = pace(next).or_else(|| self.benefactors.usual_pace()) else { return Vec::new() };
        let is_slow = |(at, pace): &(Location, Pace)| {
            pace.is_slow_beside(0, other, length / u32::from(at.encoding.code.data()))
        };
        known.into_iter().filter(is_slow).map(|(at, _)| at).collect()
    }

    /// Which of those that wait to be asked comes next: the first one, unless others of its encoding are far faster as it turns out.
    fn next(&self, waiting: &VecDeque<Location>, length: u32) -> Option<usize> {
        let first = waiting.front()?.encoding;
        let alike = || waiting.iter().filter(|at| at.encoding == first);
        let slow = self.slow_to_ask(alike(), length);
        waiting.iter().position(|at| at.encoding == first && !slow.contains(at))
    }

    /// Those of `holders` that are far slower than the fastest of them, if each is asked now.
    fn slow_to_ask<'a>(&self, holders: impl Iterator<Item = &'a Location>, length: u32) -> HashSet<Location> {
        let known: Vec<(Location, Pace)> =
            holders.filter_map(|at| Some((*at, self.benefactors.pace(at.benefactor)?))).collect();
        let pace = |(_, pace): &&(Location, Pace)| pace.per_second;
        let Some((_, fastest)) = known.iter().max_by(|one, other| pace(one).total_cmp(&pace(other))) else {
            return HashSet::new();
        };
        let is_slow = |(at, pace): &&(Location, Pace)| {
            pace.is_slow_beside(1, *fastest, length / u32::from(at.encoding.code.data()))
        };
        known.iter().filter(is_slow).map(|(at, _)| *at).collect()
    }

    /// Holders in the order in which they are asked. Blocks of one encoding stand together, those first of which enough are at
    /// benefactors without doubts. Within an encoding holders in doubt come last, memory before disks, and data fragments before parity,
    /// which costs computing; copies are rotated by the chunk's name, so that all holders get work.
    fn order(&self, ChunkRef { id: chunk, length }: ChunkRef, holders: &[Location]) -> Vec<Location> {
        let mut rotated = holders.to_vec();
        let turn = usize::from(*part(&chunk.0, 0)) % rotated.len().max(1);
        rotated.rotate_left(turn);
        let slow = self.slow_to_ask(holders.iter(), length);
        let mut groups: BTreeMap<EncodingId, Vec<Doubted>> = BTreeMap::new();
        for at in rotated {
            // Copies are one group, however they were compressed.
            let group = if at.encoding.code.is_copy() { EncodingId::PLAIN } else { at.encoding };
            let doubt = self.benefactors.doubt(at.benefactor).max(slow.contains(&at).then_some(Doubt::Slow));
            groups.entry(group).or_default().push((doubt, at));
        }
        let mut groups: Vec<(EncodingId, Vec<Doubted>)> = groups.into_iter().collect();
        for (encoding, group) in &mut groups {
            let data = encoding.code.data();
            group.sort_by_key(|(doubt, at)| (*doubt, at.tier != Tier::Memory, at.index >= data));
        }
        // How much the last of those that are needed is doubted; none is worse than any doubt, and so is what doesn't make the chunk.
        let doubt = |(encoding, group): &(EncodingId, Vec<Doubted>)| {
            let last = group.get(usize::from(encoding.code.data()) - 1);
            let trust = last.map(|(_, at)| at.trust);
            let is_vain = trust.is_none_or(|trust| trust == Trust::Broken);
            (is_vain, last.and_then(|(doubt, _)| *doubt), trust, !encoding.code.is_copy())
        };
        groups.sort_by_key(doubt);
        groups.into_iter().flat_map(|(_, group)| group.into_iter().map(|(_, at)| at)).collect()
    }
}

/// How long a block is waited for before others are asked as well: after the `quickest` of its chunk came, and where blocks took so long lately.
fn patience(quickest: Option<Duration>, lately: Option<Duration>) -> Duration {
    let least = if quickest.is_some() { HEDGE_MIN_OF_OTHERS } else { HEDGE_MIN };
    quickest.max(lately).map_or(HEDGE_AFTER, |known| (known * HEDGE_TIMES).clamp(least, HEDGE_MAX))
}

/// Of two failures the one that says more: bytes that were there and wrong, or of use to others, over a benefactor that wasn't there.
fn worse(last: Option<Failure>, next: Failure) -> Failure {
    last.filter(|last| matches!(last.code, ErrorCode::Damaged | ErrorCode::NoKey)).unwrap_or(next)
}

/// Blocks of a chunk, and who served those that may yet turn out wrong.
struct Gathering {
    assembly: Assembly,
    served: Vec<Location>,
}

impl Gathering {
    fn new(chunk: ChunkRef, keys: &Arc<KeyRing>) -> Self {
        let assembly = Assembly::with_keys(chunk, Arc::clone(keys) as Arc<dyn Keys>);
        Self { assembly, served: Vec::new() }
    }

    /// Adds the block that `from` served. If it is of no use, or others are, also who served what is wrong.
    fn add(
        &mut self,
        from: Location,
        block: BlockId,
        encoding: Encoding,
        stored: Bytes,
    ) -> Result<Gathered, (BadFragments, Vec<Location>)> {
        // The newest of one number is the one that is gathered.
        self.served.retain(|served| (served.encoding, served.index) != (from.encoding, from.index));
        self.served.push(from);
        self.assembly.add(block, encoding, stored).map_err(|bad| {
            let is_wrong = |served: &Location| match &bad {
                BadFragments::Block(_) => *served == from,
                BadFragments::Fragments(wrong) => {
                    served.encoding == from.encoding && wrong.contains(&served.index)
                }
                _ => false,
            };
            let liars = self.served.extract_if(.., |served| is_wrong(served)).collect();
            (bad, liars)
        })
    }
}

/// Why a block was of no use.
struct Refusal {
    failure: Failure,
    /// It is what it is named after, and so are others of its encoding: together they don't make the chunk.
    is_broken: bool,
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self { failure, is_broken: false }
    }
}

/// Fetches the block at `holder` and adds it to those that were gathered: verified there (I3), and kept from here on outside of the
/// memory for answers.
async fn attempt(
    benefactors: &Arc<Benefactors>,
    holder: Location,
    chunk: ChunkRef,
    gathering: &Mutex<Gathering>,
    keys: &KeyRing,
) -> Result<Gathered, Refusal> {
    let (id, block) = (holder.benefactor, holder.block(chunk.id));
    let blame = |failure: Failure| crate::context(&failure, format_args!("benefactor {id}"));
    let fetched = benefactors.get(id, block).await;
    let (encoding, stored) = fetched.map_err(|error: CallError| match blame(error.failure()) {
        // The file is there; it is a copy of its content that isn't, or not any more.
        failure if failure.code == ErrorCode::NotFound => Failure { code: ErrorCode::Damaged, ..failure },
        failure => failure,
    })?;
    let (bad, liars) = match gathering.lock().add(holder, block, encoding, stored.keep()) {
        Ok(gathered) => return Ok(gathered),
        Err(bad) => bad,
    };
    let code = match bad {
        // Whoever looks for the key now says best why it isn't there.
        BadFragments::NeedsKey(id) => match keys.require(id) {
            Err(failure) => return Err(failure.into()),
            Ok(_) => ErrorCode::Unavailable,
        },
        BadFragments::Unsupported => ErrorCode::Unsupported,
        BadFragments::Block(_) | BadFragments::Fragments(_) | BadFragments::Encoding => ErrorCode::Damaged,
    };
    for liar in liars {
        let id = liar.benefactor;
        tracing::warn!(%id, chunk = %chunk.id, "a benefactor served bytes that don't match their name");
        benefactors.note(id, Doubt::Poor);
        // It did not look itself when it served them; now it does, and reports what is damaged, so that it is repaired.
        if let Err(error) = benefactors.verify(id, vec![liar.block(chunk.id)]).await {
            tracing::warn!(%id, chunk = %chunk.id, %error, "the benefactor can't be told of the damage");
        }
    }
    let is_broken = bad == BadFragments::Encoding && !holder.encoding.code.is_copy();
    let failure = match is_broken {
        // No benefactor is to blame for what its maker made.
        true => Failure::new(code, format!("fragments made by {}: {bad}", holder.encoding.maker)),
        false => blame(Failure::new(code, bad.to_string())),
    };
    Err(Refusal { failure, is_broken })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_waited_for_by_what_others_took() {
        let ms = Duration::from_millis;
        assert_eq!(patience(None, None), HEDGE_AFTER);
        assert_eq!(patience(None, Some(ms(1))), HEDGE_MIN);
        assert_eq!(patience(Some(ms(1)), Some(ms(1))), HEDGE_MIN_OF_OTHERS);
        assert_eq!(patience(Some(ms(50)), None), ms(200));
        assert_eq!(patience(Some(ms(50)), Some(ms(700))), ms(2800), "many are under way on a slow link");
        assert_eq!(patience(None, Some(ms(9000))), HEDGE_MAX);
    }
}
