//! Where new parts go: by the policy of a folder, the compute host and the labels of benefactors.
//!
//! Rankings come from a [`Ranker`](crate::ranking::Ranker) that works beside this thread, and may be ten seconds old. What has changed
//! since is looked at when a stripe is chosen: who is away, full or to let go of what it has is passed over, and if too few are left,
//! benefactors take turns. So a ranking is a preference and never a reason to refuse.
//!
//! Benefactors of one rack share fate. At most so many of a stripe stand in one rack that the blocks of a chunk can lie in different
//! ones, as far as there are others; and neighbours in a stripe stand in different racks.

use std::collections::HashMap;
use std::sync::Arc;

use stdchk_model::labels;
use stdchk_model::limits::CHUNK_BYTES_DEFAULT;
use stdchk_model::message::manager::{ManagerReply, Placement};
use stdchk_model::{BenefactorId, ErrorCode, Failure, Ino, MachineId, Policy, Redundancy};
use stdchk_placement::pool::Policy as Way;
use stdchk_placement::random::Random;
use stdchk_placement::{HostState, RoundRobin, Select, Wish};

use super::benefactors::Registry;
use super::{Answer, Core, HostKey, Now};
use crate::ranking::{Ranking, ToRank, Wanted, seen};

/// A ranking is made anew after this time, milliseconds (FALCON, section 3.2.4: every ten seconds).
const RANK_EVERY_MS: u64 = 10_000;
/// A ranking that nobody has used for so long is forgotten, milliseconds.
const UNUSED_MS: u64 = 600_000;
/// Time after which a ranking that was begun and never came is begun anew, milliseconds.
const LATE_MS: u64 = 60_000;
/// Most rankings that are kept: a new one for each folder's policy and compute host. Those beyond it take turns.
const RANKINGS_MAX: usize = 1024;
/// Rankings that are asked for at once: they take half a second at 10,000 benefactors, and come together.
const WANTED_AT_ONCE: usize = 8;

/// What is known of a ranking.
#[derive(Debug, Default)]
struct Known {
    ranking: Option<Arc<Ranking>>,
    used_ms: u64,
    /// When it was begun last, if it was, and whether it is still on its way.
    begun_ms: Option<u64>,
    under_way: bool,
}

/// All rankings that are in use.
#[derive(Debug, Default)]
pub struct Rankings {
    all: HashMap<Wanted, Known>,
    /// There is a ranking to be made.
    is_due: bool,
}

impl Rankings {
    /// The ranking, if it is made; else it will be.
    fn get(&mut self, wanted: Wanted, now_ms: u64) -> Option<Arc<Ranking>> {
        if !self.all.contains_key(&wanted) && self.all.len() >= RANKINGS_MAX {
            return None;
        }
        let known = self.all.entry(wanted).or_default();
        known.used_ms = now_ms;
        self.is_due |= known.begun_ms.is_none();
        known.ranking.clone()
    }

    /// Time goes on.
    pub fn tick(&mut self, now_ms: u64) {
        self.all.retain(|_, known| now_ms.saturating_sub(known.used_ms) < UNUSED_MS);
        self.is_due |= self.all.values().any(|known| known.is_due(now_ms));
    }

    /// Whether there is a ranking to be made.
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// The rankings to be made now; those that wait longest first.
    fn take(&mut self, now_ms: u64) -> Vec<Wanted> {
        let due = self.all.iter().filter(|(_, known)| known.is_due(now_ms));
        let mut due: Vec<(Option<u64>, Wanted)> =
            due.map(|(wanted, known)| (known.begun_ms, *wanted)).collect();
        due.sort_by_key(|(begun_ms, _)| *begun_ms);
        self.is_due = due.len() > WANTED_AT_ONCE;
        due.truncate(WANTED_AT_ONCE);
        for (_, wanted) in &due {
            if let Some(known) = self.all.get_mut(wanted) {
                (known.begun_ms, known.under_way) = (Some(now_ms), true);
            }
        }
        due.into_iter().map(|(_, wanted)| wanted).collect()
    }

    /// Rankings were made.
    pub fn made(&mut self, made: Vec<(Wanted, Ranking)>) {
        for (wanted, ranking) in made {
            if let Some(known) = self.all.get_mut(&wanted) {
                (known.ranking, known.under_way) = (Some(Arc::new(ranking)), false);
            }
        }
    }
}

impl Known {
    fn is_due(&self, now_ms: u64) -> bool {
        let pause_ms = if self.under_way { LATE_MS } else { RANK_EVERY_MS };
        self.begun_ms.is_none_or(|begun_ms| now_ms.saturating_sub(begun_ms) >= pause_ms)
    }
}

/// Of `candidates`, in the order of preference, at most `width` such that `together` neighbours stand in different racks as far as there
/// are others. `rack` gives what a candidate shares with others; `None`: nothing.
fn spread<R: PartialEq + Copy>(
    candidates: &[BenefactorId],
    width: usize,
    together: usize,
    rack: impl Fn(BenefactorId) -> Option<R>,
) -> Vec<BenefactorId> {
    let most = (width / together.max(1)).max(1);
    let same = |one: BenefactorId, other: BenefactorId| rack(one).is_some_and(|of| rack(other) == Some(of));
    let mut chosen: Vec<BenefactorId> = Vec::new();
    let mut left: Vec<BenefactorId> = Vec::new();
    for candidate in candidates {
        if chosen.len() >= width {
            break;
        }
        match chosen.iter().filter(|other| same(**other, *candidate)).count() < most {
            true => chosen.push(*candidate),
            false => left.push(*candidate),
        }
    }
    let missing = width.saturating_sub(chosen.len());
    chosen.extend(left.into_iter().take(missing));
    // Neighbours: next comes the first of a rack that the last ones don't stand in, of those with the most that are left.
    let mut ordered: Vec<BenefactorId> = Vec::new();
    while !chosen.is_empty() {
        let before = ordered.len().saturating_sub(together.saturating_sub(1));
        let is_near = |one: BenefactorId| ordered.iter().skip(before).any(|other| same(*other, one));
        let alike = |one: BenefactorId| chosen.iter().filter(|other| same(**other, one)).count().max(1);
        let places = || chosen.iter().copied().enumerate().rev();
        let far = places().filter(|(_, one)| !is_near(*one)).max_by_key(|(_, one)| alike(*one));
        let next = far.or_else(|| places().max_by_key(|(_, one)| alike(*one)));
        let Some((place, _)) = next else { break };
        ordered.push(chosen.remove(place));
    }
    ordered
}

/// What a benefactor shares with others on the finest level on which it has a label.
fn rack(registry: &Registry, id: BenefactorId) -> Option<(usize, &str)> {
    let labels = &registry.get(id)?.labels;
    (0..labels::LEVELS.len()).find_map(|level| Some((level, labels::on_level(labels, level)?)))
}

fn usable(hosts: &[HostState], id: BenefactorId, wish: &Wish<'_>) -> bool {
    let host = hosts.binary_search_by_key(&id, |host| host.id).ok().and_then(|place| hosts.get(place));
    host.is_some_and(|host| host.is_usable(wish))
}

fn way(policy: &Policy) -> Result<Way, Failure> {
    let way = policy.placement.parse::<Way>();
    way.map_err(|error| Failure::new(ErrorCode::Invalid, format!("`placement`: {error}")))
}

/// How many blocks of a chunk are enough to read it.
fn enough(redundancy: Redundancy) -> u16 {
    match redundancy {
        Redundancy::Replicate(_) => 1,
        Redundancy::Erasure(code) => u16::from(code.data()),
    }
}

/// Hosts of a file under a policy.
fn width(policy: &Policy) -> u16 {
    policy.stripe.max(u16::from(policy.redundancy.hosts()))
}

impl Core {
    /// The stripe of a file whose client computes on a host.
    pub(super) fn place(
        &mut self,
        policy: &Policy,
        compute: Option<HostKey>,
        (avoid, turn): (&[BenefactorId], u64),
        now: Now,
    ) -> Result<Vec<BenefactorId>, Failure> {
        let width = width(policy);
        let room_bytes = CHUNK_BYTES_DEFAULT as u64;
        let wish = Wish { width: usize::from(width), avoid, room_bytes, turn };
        let hosts = self.registry.hosts();
        let preferred: Vec<BenefactorId> = match way(policy)? {
            Way::RoundRobin => Vec::new(),
            Way::Random => {
                let all = Wish { width: usize::MAX, ..wish };
                shuffled(RoundRobin.select(&hosts, &all), wish.width, turn ^ self.setting.start)
            }
            Way::Dedicated => {
                let mut dedicated: Vec<BenefactorId> = self.registry.dedicated().collect();
                let first = turn.checked_rem(dedicated.len() as u64).unwrap_or(0);
                dedicated.rotate_left(stdchk_model::exact::to_usize(first));
                dedicated
            }
            policy_way @ (Way::Pessimistic | Way::Falcon { .. } | Way::Learned) => {
                let enough = enough(policy.redundancy);
                let wanted = Wanted { policy: policy_way, width, enough, compute };
                let ranking = self.rankings.get(wanted, now.ms);
                ranking.map(|ranking| ranking.order.clone()).unwrap_or_default()
            }
        };
        let mut candidates: Vec<BenefactorId> =
            preferred.into_iter().filter(|id| usable(&hosts, *id, &wish)).collect();
        if !self.registry.has_racks() {
            candidates.truncate(wish.width);
            if candidates.len() < wish.width {
                let avoid = [avoid, &candidates].concat();
                let others = Wish { width: wish.width - candidates.len(), avoid: &avoid, ..wish };
                candidates.extend(self.select.select(&hosts, &others));
            }
        } else {
            let avoid = [avoid, &candidates].concat();
            let others = Wish { width: usize::MAX, avoid: &avoid, ..wish };
            candidates.extend(self.select.select(&hosts, &others));
            let together = usize::from(policy.redundancy.hosts());
            let registry = &self.registry;
            candidates = spread(&candidates, wish.width, together, |id| rack(registry, id));
        }
        match candidates.is_empty() {
            true => Err(self.none_usable(&wish)),
            false => Ok(candidates),
        }
    }

    /// Where new blocks of a chunk go: to racks in which none of it lies, as far as there are some.
    pub(super) fn destinations(
        &self,
        hosts: &[HostState],
        wish: &Wish<'_>,
        holders: &[BenefactorId],
    ) -> Vec<BenefactorId> {
        if !self.registry.has_racks() {
            return self.select.select(hosts, wish);
        }
        let mut left = self.select.select(hosts, &Wish { width: usize::MAX, ..*wish });
        let mut taken: Vec<_> = holders.iter().filter_map(|id| rack(&self.registry, *id)).collect();
        let mut chosen = Vec::new();
        while chosen.len() < wish.width && !left.is_empty() {
            let is_new =
                |id: &BenefactorId| rack(&self.registry, *id).is_none_or(|rack| !taken.contains(&rack));
            let id = left.remove(left.iter().position(is_new).unwrap_or(0));
            taken.extend(rack(&self.registry, id));
            chosen.push(id);
        }
        chosen
    }

    /// Whether somebody should ask [`Core::take_to_rank`].
    pub fn has_to_rank(&self) -> bool {
        self.rankings.is_due()
    }

    /// What is to be ranked, and what is to be known for that.
    pub fn take_to_rank(&mut self, now: Now) -> ToRank {
        let (hosts, more) = self.hosts.take_untold(&self.registry);
        let wanted = if more { Vec::new() } else { self.rankings.take(now.ms) };
        ToRank { hosts, until: self.hosts.until(), more, wanted }
    }

    /// Rankings were made.
    pub fn ranked(&mut self, made: Vec<(Wanted, Ranking)>) {
        self.rankings.made(made);
    }

    /// How benefactors are chosen for a file or folder, for clients on a machine.
    pub(super) fn explain(&mut self, ino: Ino, machine: MachineId, now: Now) -> Answer {
        let policy = self.namespace.policy(ino)?;
        let (width, compute) = (width(&policy), self.host_on(machine));
        let way = way(&policy)?;
        if let Way::Pessimistic | Way::Falcon { .. } | Way::Learned = way {
            // A machine that was never seen to compute or store is one of which nothing is known.
            let compute = self.hosts.past(compute).map(|_| compute);
            let wanted = Wanted { policy: way, width, enough: enough(policy.redundancy), compute };
            if let Some(ranking) = self.rankings.get(wanted, now.ms) {
                return Ok(ManagerReply::Placement(ranking.why.clone()));
            }
            let (policy, in_use) = (policy.placement, "round-robin".to_owned());
            let waits = Placement { policy, in_use, width, ..Placement::default() };
            return Ok(ManagerReply::Placement(waits));
        }
        let compute_id = match compute {
            HostKey::Benefactor(id) => Some(id),
            HostKey::Compute(_) => None,
        };
        // The next stripe that somebody gets may begin with any of them.
        let stripe = self.place(&policy, Some(compute), (&[], 0), now)?;
        let until = self.hosts.until();
        let told = |id: &BenefactorId| {
            let past = self.hosts.past(HostKey::Benefactor(*id)).unwrap_or_default();
            seen(*id, &past, until)
        };
        let past = self.hosts.past(compute);
        let failure = past.as_ref().and_then(stdchk_placement::history::History::mean_time_to_failure);
        Ok(ManagerReply::Placement(Placement {
            in_use: policy.placement.clone(),
            policy: policy.placement,
            ranked: true,
            compute: compute_id,
            mean_time_to_failure_s: failure.map(crate::ranking::whole),
            width,
            hosts: stripe.iter().map(told).collect(),
            ..Placement::default()
        }))
    }
}

/// The first of them in an order that follows from a seed.
fn shuffled(mut all: Vec<BenefactorId>, count: usize, seed: u64) -> Vec<BenefactorId> {
    let mut random = Random::new(seed);
    let count = count.min(all.len());
    for place in 0..count {
        let other = place + random.below(all.len() - place);
        all.swap(place, other);
    }
    all.truncate(count);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: impl IntoIterator<Item = u32>) -> Vec<BenefactorId> {
        numbers.into_iter().map(BenefactorId).collect()
    }

    fn numbers(ids: &[BenefactorId]) -> Vec<u32> {
        ids.iter().map(|id| id.0).collect()
    }

    #[test]
    fn neighbours_of_a_stripe_stand_in_different_racks_where_there_are_others() {
        // Ten benefactors in each rack.
        let by_tens = |id: BenefactorId| Some(id.0 / 10);
        for together in 1..=4 {
            let stripe = spread(&ids(0..40), 8, together, by_tens);
            assert_eq!(stripe.len(), 8);
            for place in 0..8 {
                let near = (0..together).map(|next| stripe[(place + next) % 8].0 / 10);
                let mut racks: Vec<u32> = near.collect();
                racks.sort_unstable();
                racks.dedup();
                assert_eq!(racks.len(), together, "{together} of {:?}", numbers(&stripe));
            }
        }
        // Without labels the order of preference stays.
        assert_eq!(numbers(&spread(&ids([5, 3, 4]), 2, 2, |_| None::<u32>)), [5, 3]);
    }

    #[test]
    fn too_few_racks_are_no_reason_to_have_fewer_hosts() {
        let one_rack = spread(&ids(0..10), 4, 2, |_| Some(1));
        assert_eq!(numbers(&one_rack), [0, 1, 2, 3]);
        let two = spread(&ids([0, 1, 2, 10]), 4, 2, |id| Some(id.0 / 10));
        assert_eq!(two.len(), 4);
        assert_eq!(spread(&ids([]), 4, 2, |_| Some(1)), []);
    }
}
