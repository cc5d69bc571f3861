//! Where new parts go: by the policy of a folder, the compute host and the labels of benefactors.
//!
//! Rankings come from a [`Ranker`](crate::ranking::Ranker) that works beside this thread, and may be ten seconds old. What has changed
//! since is looked at when a stripe is chosen: who is away, full, busy or to let go of what it has is passed over, and if too few are left,
//! benefactors take turns. So a ranking is a preference and never a reason to refuse. Of those that are busy (S2 of FALCON) there are in a stripe
//! no more than make it wide enough for the blocks of a chunk, and they come last.
//!
//! Benefactors of one rack share fate. At most so many of a stripe stand in one rack that the blocks of a chunk can lie in different
//! ones, as far as there are others; and neighbours in a stripe stand in different racks.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use stdchk_model::labels;
use stdchk_model::limits::CHUNK_BYTES_DEFAULT;
use stdchk_model::message::benefactor::StorageState;
use stdchk_model::message::manager::{ManagerReply, PlacedHost, Placement};
use stdchk_model::policy::Local;
use stdchk_model::{BenefactorId, ErrorCode, Failure, Ino, MachineId, Policy, Redundancy};
use stdchk_placement::pool::Policy as Way;
use stdchk_placement::random::Random;
use stdchk_placement::{HostState, RoundRobin, Select, Wish, in_turn};

use super::{Answer, Core, HostKey, Now};
use crate::ranking::{Ranking, ToRank, Wanted, seen};

/// A ranking is made anew after this time, milliseconds (FALCON, section 3.2.4: every ten seconds).
const RANK_EVERY_MS: u64 = 10_000;
/// A ranking that nobody has used for so long is forgotten, milliseconds.
const UNUSED_MS: u64 = 600_000;
/// Time after which a ranking that was begun and never came is begun anew, milliseconds.
const LATE_MS: u64 = 60_000;
/// Most rankings that are kept: one for each way, width and compute host. The one that was used longest ago gives way to a new one.
const RANKINGS_MAX: usize = 1024;
/// Time for which machines that go soon take blocks if too few others can, milliseconds: longer than a client asks before it gives up.
pub(super) const BORROWED_MS: u64 = 60_000;
/// Room in memory without which nothing more is sent there: what is on its way to a benefactor from several clients fits.
const ROOM_IN_MEMORY_BYTES: u64 = 8 * CHUNK_BYTES_DEFAULT as u64;
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
        if !self.has_room(&wanted) {
            let oldest = self.all.iter().min_by_key(|(_, known)| known.used_ms).map(|(oldest, _)| *oldest);
            if let Some(oldest) = oldest {
                self.all.remove(&oldest);
            }
        }
        let known = self.all.entry(wanted).or_default();
        known.used_ms = now_ms;
        self.is_due |= known.begun_ms.is_none();
        known.ranking.clone()
    }

    /// Whether nobody else's ranking has to give way to this one.
    fn has_room(&self, wanted: &Wanted) -> bool {
        self.all.len() < RANKINGS_MAX || self.all.contains_key(wanted)
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

/// What a benefactor shares with others: the finest level on which it has a label, and its value there.
type RackName = (usize, String);

/// The racks of the pool. Each has a number while benefactors stand in it; then the number is free for another.
#[derive(Debug, Default)]
pub struct Racks {
    of: HashMap<BenefactorId, usize>,
    numbers: HashMap<RackName, usize>,
    /// By number: its name, and how many benefactors stand there.
    all: Vec<(RackName, usize)>,
    free: Vec<usize>,
}

impl Racks {
    /// Takes note of the labels of a benefactor; none for one that is gone.
    pub fn set(&mut self, id: BenefactorId, labels: &[(String, String)]) {
        let mut levels = 0..labels::LEVELS.len();
        let name = levels.find_map(|level| Some((level, labels::on_level(labels, level)?.to_owned())));
        let before = self.of.get(&id).and_then(|before| self.all.get(*before));
        if before.map(|(before, _)| before) == name.as_ref() {
            return;
        }
        if let Some(before) = self.of.remove(&id)
            && let Some((old, size)) = self.all.get_mut(before)
        {
            *size -= 1;
            if *size == 0 {
                self.numbers.remove(old);
                self.free.push(before);
            }
        }
        let Some(name) = name else { return };
        let number = self.numbers.get(&name).copied().or_else(|| self.free.pop()).unwrap_or(self.all.len());
        match self.all.get_mut(number) {
            Some((known, size)) => {
                known.clone_from(&name);
                *size += 1;
            }
            None => self.all.push((name.clone(), 1)),
        }
        self.numbers.insert(name, number);
        self.of.insert(id, number);
    }

    /// Whether no benefactor has a label that says what it shares with others.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    fn of(&self, id: BenefactorId) -> Option<usize> {
        self.of.get(&id).copied()
    }

    /// Of `candidates`, in the order of preference, at most `width`: first those by which no rack gets more than `most`, then others.
    /// `all`: benefactors of the pool. `there`: those that stand in racks already.
    fn pick(
        &self,
        candidates: impl IntoIterator<Item = BenefactorId>,
        (width, most, all): (usize, usize, usize),
        there: impl IntoIterator<Item = BenefactorId>,
    ) -> Vec<BenefactorId> {
        let mut counts = vec![0_usize; self.all.len()];
        for rack in there.into_iter().filter_map(|id| self.of(id)) {
            counts.get_mut(rack).into_iter().for_each(|count| *count += 1);
        }
        // No more than these are found, so that few large racks are no reason to look at all benefactors.
        let mut places = all.saturating_sub(self.of.len());
        for ((_, size), count) in self.all.iter().zip(&counts) {
            if places >= width {
                break;
            }
            places += most.min(*size).saturating_sub(*count);
        }
        let enough = width.min(places);
        let (mut chosen, mut left) = (Vec::new(), Vec::new());
        for candidate in candidates {
            if chosen.len() >= enough && chosen.len() + left.len() >= width {
                break;
            }
            match self.of(candidate).and_then(|rack| counts.get_mut(rack)) {
                Some(count) if *count >= most => left.push(candidate),
                Some(count) => {
                    *count += 1;
                    chosen.push(candidate);
                }
                None => chosen.push(candidate),
            }
        }
        let missing = width.saturating_sub(chosen.len());
        chosen.extend(left.into_iter().take(missing));
        chosen.truncate(width);
        chosen
    }

    /// Of `candidates`, in the order of preference, at most `width` such that `together` neighbours stand in different racks as far as
    /// there are others. `all`: benefactors of the pool.
    fn spread(
        &self,
        candidates: impl IntoIterator<Item = BenefactorId>,
        (width, together, all): (usize, usize, usize),
    ) -> Vec<BenefactorId> {
        let together = together.max(1);
        let most = (width / together).max(1);
        let chosen = self.pick(candidates, (width, most, all), []);
        // What stands in one rack, with its places in the order of preference; one without a label stands alone.
        let mut groups: Vec<VecDeque<(usize, BenefactorId)>> = Vec::new();
        let mut of_rack: HashMap<usize, usize> = HashMap::new();
        for (place, id) in chosen.into_iter().enumerate() {
            let new = groups.len();
            let group = self.of(id).map_or(new, |rack| *of_rack.entry(rack).or_insert(new));
            match groups.get_mut(group) {
                Some(group) => group.push_back((place, id)),
                None => groups.push(VecDeque::from([(place, id)])),
            }
        }
        // Neighbours: next comes the first of a rack that the last ones don't stand in, of those with the most that are left.
        let mut ordered: Vec<BenefactorId> = Vec::new();
        let mut near: VecDeque<usize> = VecDeque::new();
        loop {
            let far = |group: &usize| !near.contains(group);
            let Some(next) = fullest(&groups, far).or_else(|| fullest(&groups, |_| true)) else { break };
            let Some((_, id)) = groups.get_mut(next).and_then(VecDeque::pop_front) else { break };
            ordered.push(id);
            near.push_back(next);
            if near.len() >= together {
                near.pop_front();
            }
        }
        ordered
    }
}

/// The group with the most members, the first of which is preferred among equals.
fn fullest(groups: &[VecDeque<(usize, BenefactorId)>], may: impl Fn(&usize) -> bool) -> Option<usize> {
    let some = groups.iter().enumerate().filter(|(number, group)| !group.is_empty() && may(number));
    let best = some.max_by_key(|(_, group)| (group.len(), Reverse(group.front().map(|(place, _)| *place))));
    best.map(|(number, _)| number)
}

/// Whether it can be chosen; one that is busy only by who `insists`.
fn usable(hosts: &[HostState], id: BenefactorId, wish: &Wish<'_>, insists: bool) -> bool {
    let host = hosts.binary_search_by_key(&id, |host| host.id).ok().and_then(|place| hosts.get(place));
    host.is_some_and(|host| (host.accepts || insists) && host.is_usable(wish))
}

fn way(policy: &Policy) -> Result<Way, Failure> {
    let way = policy.placement.parse::<Way>();
    way.map_err(|error| Failure::new(ErrorCode::Invalid, format!("`placement`: {error}")))
}

/// Whether this way needs a ranking.
fn is_ranked(way: Way) -> bool {
    matches!(way, Way::Pessimistic | Way::Falcon { .. } | Way::Learned)
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
        let needed = usize::from(policy.redundancy.hosts());
        let wish = Wish { width: usize::from(width), avoid, room_bytes, turn, insist_until: needed };
        let hosts = self.registry.hosts();
        let way = way(policy)?;
        // A ranking leaves out the benefactor beside who computes; so do those that stand in for it, while there are others. Where near
        // copies lie there, all ways do, while others suffice for the blocks of a chunk.
        let is_near = policy.local == Local::Prefer;
        let own = compute.filter(|_| is_near || is_ranked(way)).and_then(HostKey::benefactor);
        let others_wanted = if is_near { needed } else { wish.width };
        let avoid_own = [avoid, own.as_slice()].concat();
        let preferred: Vec<BenefactorId> = match way {
            Way::RoundRobin => Vec::new(),
            Way::Random => {
                let all = Wish { width: usize::MAX, avoid: &avoid_own, ..wish };
                shuffled(RoundRobin.select(&hosts, &all), wish.width, turn ^ self.setting.start)
            }
            Way::Dedicated => {
                let mut dedicated: Vec<BenefactorId> = self.registry.dedicated().collect();
                in_turn(&mut dedicated, turn);
                dedicated
            }
            Way::Pessimistic | Way::Falcon { .. } | Way::Learned => {
                let enough = enough(policy.redundancy);
                let wanted = Wanted { policy: way, width, enough, compute };
                let ranking = self.rankings.get(wanted, now.ms);
                ranking.map(|ranking| ranking.order.clone()).unwrap_or_default()
            }
        };
        let is_other = |id: &BenefactorId| Some(*id) != own && usable(&hosts, *id, &wish, false);
        let mut candidates: Vec<BenefactorId> = preferred.into_iter().filter(is_other).collect();
        let racks = self.registry.racks();
        if racks.is_empty() {
            candidates.truncate(wish.width);
            if candidates.len() < wish.width {
                let avoid = [&avoid_own[..], &candidates].concat();
                let (width, insist_until) =
                    (wish.width - candidates.len(), needed.saturating_sub(candidates.len()));
                let others = Wish { width, avoid: &avoid, insist_until, ..wish };
                candidates.extend(self.select.select(&hosts, &others));
            }
        } else {
            let first: HashSet<BenefactorId> = candidates.iter().copied().collect();
            let others = self.select.select(&hosts, &Wish { width: usize::MAX, avoid: &avoid_own, ..wish });
            let all = candidates.into_iter().chain(others.into_iter().filter(|id| !first.contains(id)));
            candidates = racks.spread(all, (wish.width, needed, hosts.len()));
        }
        if candidates.len() < others_wanted {
            let insists = candidates.len() < needed;
            let is_left =
                |own: &BenefactorId| usable(&hosts, *own, &wish, insists) && !candidates.contains(own);
            candidates.extend(own.filter(is_left));
        }
        let for_commit =
            usize::from(enough(policy.redundancy)) + usize::from(policy.at_commit().distance) - 1;
        if candidates.len() < for_commit {
            candidates.extend(self.registry.lendable(for_commit - candidates.len(), &wish));
        }
        match candidates.is_empty() {
            true => Err(self.none_usable(&wish, now)),
            false => Ok(candidates),
        }
    }

    /// What a stripe has in memory beside: as many as a commit needs, at least, or none. Of those on one machine one suffices, while there
    /// are enough on others: they are lost together.
    pub(super) fn place_in_memory(
        &self,
        policy: &Policy,
        avoid: &[BenefactorId],
        turn: u64,
    ) -> Vec<BenefactorId> {
        let Some(needed) = policy.at_commit().in_memory.map(usize::from) else { return Vec::new() };
        // Some on one machine are left to choose from, and no work grows with all of them beyond a look.
        let most = needed.max(usize::from(policy.stripe));
        let width = 4 * most;
        let wish = Wish { width, avoid, room_bytes: ROOM_IN_MEMORY_BYTES, turn, insist_until: 0 };
        let mut all = self.select.select(&self.registry.hosts_in_memory(), &wish);
        let mut machines = HashSet::new();
        let is_first =
            |id: &BenefactorId| self.registry.machine(*id).is_none_or(|machine| machines.insert(machine));
        let apart: Vec<BenefactorId> = all.iter().copied().filter(is_first).collect();
        if apart.len() >= needed {
            all = apart;
        }
        all.truncate(most);
        if all.len() < needed { Vec::new() } else { all }
    }

    /// Where new blocks of a chunk go: to racks in which none of it lies, as far as there are some.
    pub(super) fn destinations(
        &self,
        hosts: &[HostState],
        wish: &Wish<'_>,
        holders: &[BenefactorId],
    ) -> Vec<BenefactorId> {
        let racks = self.registry.racks();
        if racks.is_empty() {
            return self.select.select(hosts, wish);
        }
        let all = self.select.select(hosts, &Wish { width: usize::MAX, ..*wish });
        racks.pick(all, (wish.width, 1, hosts.len()), holders.iter().copied())
    }

    /// Whether somebody should ask [`Core::take_to_rank`].
    pub fn has_to_rank(&self) -> bool {
        self.rankings.is_due()
    }

    /// What is to be ranked, and what is to be known for that.
    pub fn take_to_rank(&mut self, now: Now) -> ToRank {
        let (hosts, more) = self.hosts.take_untold(&self.registry);
        let wanted = if more { Vec::new() } else { self.rankings.take(now.ms) };
        let computes: BTreeSet<HostKey> = wanted.iter().filter_map(|wanted| wanted.compute).collect();
        let bandwidths = computes.into_iter().map(|host| (host, self.bandwidths.of(host, now.ms))).collect();
        ToRank { hosts, until: self.hosts.until(), more, wanted, bandwidths }
    }

    /// Rankings were made.
    pub fn ranked(&mut self, made: Vec<(Wanted, Ranking)>) {
        self.rankings.made(made);
    }

    /// Who ranked has failed: benefactors take turns, and the next one who ranks has to be told everything.
    pub fn ranker_failed(&mut self) {
        self.rankings = Rankings::default();
        self.hosts.nobody_was_told();
    }

    fn storage_state(&self, id: BenefactorId) -> StorageState {
        self.registry.get(id).map(|benefactor| benefactor.load.state).unwrap_or_default()
    }

    /// How benefactors are chosen for a file or folder, for clients on a machine.
    pub(super) fn explain(&mut self, ino: Ino, machine: MachineId, now: Now) -> Answer {
        let policy = self.namespace.policy(ino)?;
        let (width, compute) = (width(&policy), self.host_on(machine));
        let way = way(&policy)?;
        if is_ranked(way) {
            // A machine that was never seen to compute or store is one of which nothing is known.
            let compute = self.hosts.knows(compute).then_some(compute);
            let wanted = Wanted { policy: way, width, enough: enough(policy.redundancy), compute };
            if !self.rankings.has_room(&wanted) {
                let message = format!("{RANKINGS_MAX} rankings are in use, and none gives way to a question");
                let next = "ask again when a file was written here within ten minutes";
                return Err(Failure::new(ErrorCode::Unavailable, message).then(next));
            }
            if let Some(ranking) = self.rankings.get(wanted, now.ms) {
                let mut why = ranking.why.clone();
                why.hosts.iter_mut().for_each(|host| host.state = self.storage_state(host.id));
                return Ok(ManagerReply::Placement(why));
            }
            let (policy, in_use) = (policy.placement, "round-robin".to_owned());
            let compute = compute.and_then(HostKey::benefactor);
            let waits = Placement { policy, in_use, width, compute, ..Placement::default() };
            return Ok(ManagerReply::Placement(waits));
        }
        // The next stripe that somebody gets may begin with any of them.
        let stripe = self.place(&policy, Some(compute), (&[], 0), now)?;
        let until = self.hosts.until();
        let bandwidths = self.bandwidths.of(compute, now.ms);
        let told = |id: &BenefactorId| {
            let past = self.hosts.past(HostKey::Benefactor(*id)).unwrap_or_default();
            let (state, bandwidth) = (self.storage_state(*id), bandwidths.get(id).copied());
            PlacedHost { state, bandwidth, ..seen(*id, &past, until) }
        };
        let past = self.hosts.past(compute);
        let failure = past.as_ref().and_then(stdchk_placement::history::History::mean_time_to_failure);
        Ok(ManagerReply::Placement(Placement {
            in_use: policy.placement.clone(),
            policy: policy.placement,
            ranked: true,
            compute: compute.benefactor(),
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

    /// A pool of `count`, each in the rack that `rack` gives.
    fn racks(count: u32, rack: impl Fn(u32) -> Option<u32>) -> Racks {
        let mut racks = Racks::default();
        for number in 0..count {
            let label = rack(number).map(|rack| ("rack".to_owned(), rack.to_string()));
            racks.set(BenefactorId(number), label.as_slice());
        }
        racks
    }

    #[test]
    fn neighbours_of_a_stripe_stand_in_different_racks_where_there_are_others() {
        let by_tens = racks(40, |number| Some(number / 10));
        for together in 1..=4 {
            let stripe = by_tens.spread(ids(0..40), (8, together, 40));
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
        assert_eq!(numbers(&racks(6, |_| None).spread(ids([5, 3, 4]), (2, 2, 6))), [5, 3]);
    }

    #[test]
    fn too_few_racks_are_no_reason_to_have_fewer_hosts() {
        let one_rack = racks(10, |_| Some(1)).spread(ids(0..10), (4, 2, 10));
        assert_eq!(numbers(&one_rack), [0, 1, 2, 3]);
        let two = racks(20, |number| Some(number / 10)).spread(ids([0, 1, 2, 10]), (4, 2, 20));
        assert_eq!(two.len(), 4);
        assert_eq!(racks(10, |_| Some(1)).spread(ids([]), (4, 2, 10)), []);
    }

    #[test]
    fn no_more_benefactors_are_looked_at_than_the_racks_have_places_for() {
        // Two sites, and three copies: no more than a third of a stripe may stand in each, and the others come after.
        let sites = racks(10_000, |number| Some(number % 2));
        let mut looked_at = 0;
        let all = ids(0..10_000).into_iter().inspect(|_| looked_at += 1);
        let stripe = sites.spread(all, (256, 3, 10_000));
        assert_eq!((stripe.len(), looked_at), (256, 257));
        // A new block: one of the racks is taken, the other is not; or both are.
        for (holders, expected) in [(vec![0], vec![1, 2]), (vec![0, 1], vec![2, 3])] {
            let mut looked_at = 0;
            let all = ids(0..10_000).into_iter().filter(|id| !holders.contains(&id.0));
            let all = all.inspect(|_| looked_at += 1);
            let chosen = sites.pick(all, (2, 1, 10_000), ids(holders.clone()));
            assert_eq!(numbers(&chosen), expected);
            assert!(looked_at <= 3, "{looked_at}");
        }
    }

    #[test]
    fn racks_follow_the_labels_and_numbers_of_empty_ones_are_used_again() {
        let mut racks = racks(4, |number| Some(number / 2));
        for name in 0..100 {
            for number in 0..2 {
                racks.set(BenefactorId(number), &[("rack".to_owned(), format!("new-{name}"))]);
            }
        }
        assert!(racks.all.len() <= 3, "{racks:?}");
        let of = |racks: &Racks| [0, 1, 2, 3].map(|number| racks.of(BenefactorId(number)));
        let now = of(&racks);
        assert!(now[0].is_some() && now[0] == now[1] && now[2] == now[3] && now[0] != now[2], "{now:?}");
        (0..4).for_each(|number| racks.set(BenefactorId(number), &[]));
        assert!(racks.is_empty() && racks.numbers.is_empty());
        assert!(racks.all.iter().all(|(_, size)| *size == 0));
    }

    #[test]
    fn the_ranking_that_was_used_longest_ago_gives_way() {
        let wanted = |width: u16| Wanted { policy: Way::Learned, width, enough: 1, compute: None };
        let mut rankings = Rankings::default();
        let most = u16::try_from(RANKINGS_MAX).unwrap();
        for width in 0..most {
            rankings.get(wanted(width), u64::from(width));
        }
        rankings.get(wanted(0), 5_000);
        assert!(rankings.has_room(&wanted(0)) && !rankings.has_room(&wanted(most)));
        rankings.get(wanted(most), 5_001);
        assert_eq!(rankings.all.len(), RANKINGS_MAX);
        assert!([0, most].iter().all(|width| rankings.all.contains_key(&wanted(*width))));
        assert!(!rankings.all.contains_key(&wanted(1)));
    }
}
