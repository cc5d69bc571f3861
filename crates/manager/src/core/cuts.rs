//! Which benefactors can't send to which others: the manager and clients may reach a benefactor that its peers don't.
//!
//! A benefactor tells all others that it can't send to, as it found by trying, and tells anew when that changes. Its word counts for what it
//! sends, and for nothing else: no copies are ordered over such a way, and nothing is stored first at one that can't send it on. So one that lies gets fewer blocks.
//! Nobody's word keeps blocks of others from a third one.
//!
//! | event | what becomes of the word |
//! |---|---|
//! | the benefactor tells anew | takes the place of what it said before |
//! | it registers, or is taken out | forgotten |
//! | it is off-line | kept, and counts again with its next heartbeat |
//! | the other one is off-line, or serves at another address | kept, and counts for nothing meanwhile |
//!
//! All of this is soft state. A benefactor has at most [`UNREACHED_MAX`] entries, so it doesn't grow with pairs.

use std::collections::{BTreeMap, BTreeSet};

use stdchk_model::limits::UNREACHED_MAX;
use stdchk_model::message::benefactor::Unreached;
use stdchk_model::message::manager::{BenefactorInfo, BenefactorState, ManagerReply};
use stdchk_model::{BenefactorId, ErrorCode, Failure};
use stdchk_placement::HostState;

use super::benefactors::{ADDRESS_BYTES_MAX, Registry};
use super::walks::Walk;
use super::{Answer, Core, Now};

/// Others that a benefactor is asked to try when it doesn't reach one: enough to know whether it reaches any.
const TRIED_BESIDE: usize = 8;

/// A way over which nothing, or too little, comes through.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Way {
    address: String,
    since_ms: u64,
    is_slow: bool,
}

/// The word of one benefactor.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Word {
    ways: BTreeMap<BenefactorId, Way>,
    reaches_none: bool,
}

/// The words of all benefactors.
#[derive(Debug, Default)]
pub struct Cuts {
    by: BTreeMap<BenefactorId, Word>,
    /// Those that can send to none that is there.
    off: BTreeSet<BenefactorId>,
    /// Chunks have not been counted anew since that, or a way, was another.
    is_news: bool,
}

impl Cuts {
    /// Whether anybody says that a way doesn't work.
    pub fn is_any(&self) -> bool {
        !self.by.is_empty()
    }

    /// Whether somebody's word is another one than when ways were looked at last.
    pub fn is_news(&self) -> bool {
        self.is_news
    }

    /// Whether a benefactor can send to none that is there.
    pub fn is_off(&self, id: BenefactorId) -> bool {
        self.off.contains(&id)
    }

    /// The word of a benefactor counts no longer.
    pub fn forget(&mut self, id: BenefactorId) {
        self.is_news |= self.by.remove(&id).is_some() | self.off.remove(&id);
    }
}

impl Registry {
    /// Those that `from` can't send to now; `is_slow`: among them those to which it sends far too slowly.
    pub fn unreached(&self, from: BenefactorId, is_slow: bool) -> impl Iterator<Item = BenefactorId> + '_ {
        let ways = self.cuts.by.get(&from).into_iter().flat_map(|word| &word.ways);
        let holds = move |(to, way): &(&BenefactorId, &Way)| {
            let is_there = |other: &super::benefactors::Benefactor| {
                other.state == BenefactorState::Online && other.address == way.address
            };
            (is_slow || !way.is_slow) && self.get(**to).is_some_and(is_there)
        };
        ways.filter(holds).map(|(to, _)| *to)
    }

    /// Since when it can't send to the first one of them, milliseconds of the manager's life.
    fn unreached_since(&self, from: BenefactorId) -> Option<u64> {
        let word = self.cuts.by.get(&from)?;
        self.unreached(from, true).filter_map(|to| word.ways.get(&to)).map(|way| way.since_ms).min()
    }

    /// Whether a benefactor can't send to so many of those that take blocks, or not to all of them if they are fewer.
    pub fn lacks_ways(&self, from: BenefactorId, wanted: usize) -> bool {
        let Some(word) = self.cuts.by.get(&from) else { return false };
        let unreached: BTreeSet<BenefactorId> = self.unreached(from, true).collect();
        if unreached.is_empty() {
            return false;
        }
        let takes = |host: &&HostState| host.online && host.free_bytes > 0 && host.id != from;
        let hosts = self.hosts();
        let (mut all, mut reached) = (0, 0);
        for host in hosts.iter().filter(takes) {
            all += 1;
            reached += usize::from(!unreached.contains(&host.id));
        }
        word.reaches_none || reached < wanted.min(all)
    }

    /// Takes what a benefactor says of the others that it can't send to.
    fn take_unreached(
        &mut self,
        id: BenefactorId,
        unreached: Vec<Unreached>,
        reaches_none: bool,
        now_ms: u64,
    ) {
        let way = |told: Unreached| {
            let Unreached { to, address, for_ms, is_slow } = told;
            (to, Way { address, since_ms: now_ms.saturating_sub(for_ms), is_slow })
        };
        let ways: BTreeMap<BenefactorId, Way> =
            unreached.into_iter().filter(|told| told.to != id).map(way).collect();
        assert!(ways.len() <= UNREACHED_MAX, "more was refused");
        let is_like = |before: &Word| {
            let key = |ways: &BTreeMap<BenefactorId, Way>| -> Vec<_> {
                ways.iter().map(|(to, way)| (*to, way.address.clone(), way.is_slow)).collect()
            };
            before.reaches_none == reaches_none && key(&before.ways) == key(&ways)
        };
        if self.cuts.by.get(&id).is_some_and(is_like) {
            return;
        }
        match ways.is_empty() {
            true => self.cuts.forget(id),
            false => {
                self.cuts.by.insert(id, Word { ways, reaches_none });
                self.cuts.is_news = true;
            }
        }
        self.note(id);
    }

    /// Looks anew who can send to none that is there. Returns whether any way, or that, is another than when this was asked last.
    pub fn look_at_cuts(&mut self) -> bool {
        let off: BTreeSet<BenefactorId> = self
            .cuts
            .by
            .keys()
            .copied()
            .filter(|id| self.is_online(*id) && self.lacks_ways(*id, 1))
            .collect();
        let changed: Vec<BenefactorId> = off.symmetric_difference(&self.cuts.off).copied().collect();
        self.cuts.off = off;
        changed.iter().for_each(|id| self.note(*id));
        std::mem::take(&mut self.cuts.is_news) || !changed.is_empty()
    }

    /// Adds to what is told of a benefactor which others it can't send to.
    pub(super) fn tell_unreached(&self, info: &mut BenefactorInfo, now_ms: u64) {
        info.unreached = self.unreached(info.id, true).collect();
        info.unreached_ms =
            self.unreached_since(info.id).map_or(0, |since_ms| now_ms.saturating_sub(since_ms));
        info.is_cut_off = self.cuts.is_off(info.id);
    }
}

impl Core {
    /// A benefactor says which others it can't send to. It is told some others that it should try, too.
    pub(super) fn take_unreached(
        &mut self,
        id: BenefactorId,
        registration: u64,
        (unreached, reaches_none): (Vec<Unreached>, bool),
        now: Now,
    ) -> Answer {
        if unreached.len() > UNREACHED_MAX {
            let message = format!("a benefactor names at most {UNREACHED_MAX} others that it can't send to");
            return Err(Failure::new(ErrorCode::Invalid, message));
        }
        if unreached.iter().any(|one| one.address.len() > ADDRESS_BYTES_MAX) {
            let message = format!("an address has at most {ADDRESS_BYTES_MAX} characters");
            return Err(Failure::new(ErrorCode::Invalid, message));
        }
        self.registry.registered(id, registration)?;
        let is_any = !unreached.is_empty();
        self.registry.take_unreached(id, unreached, reaches_none, now.ms);
        self.look_at_cuts();
        let known: BTreeSet<BenefactorId> = self.registry.unreached(id, true).collect();
        let hosts = self.registry.hosts();
        // Those behind it, so that not all try the same ones.
        let (before, behind) = hosts.split_at(hosts.partition_point(|host| host.id <= id));
        let others = behind.iter().chain(before).filter(|host| is_any && host.online && host.id != id);
        let others = others.filter(|host| !known.contains(&host.id)).take(TRIED_BESIDE);
        let infos = others.filter_map(|host| self.registry.info(host.id, now.ms)).collect();
        Ok(ManagerReply::Benefactors(infos))
    }

    /// Chunks are counted anew if other ways work than before: copies can be made now that couldn't, or the other way round.
    pub(super) fn look_at_cuts(&mut self) {
        if self.registry.look_at_cuts() {
            self.walk(Walk::AtRisk(None));
        }
    }
}
