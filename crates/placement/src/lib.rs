//! Which benefactors receive the next chunks: host states in, a stripe out; and which hosts to trust with checkpoints.
//!
//! [`Select`] and [`RoundRobin`] let hosts take turns. Beside them: histories of hosts ([`history`]), FALCON's
//! selection ([`falcon`]), a predictor that learns from every failure ([`predictor`]), selection and repair by it
//! ([`learned`], [`shocks`]), all of these for one pool and every policy by its name ([`pool`]), and how often to take
//! checkpoints ([`interval`]). docs/design/0800-placement.md says why.
//!
//! Pure: whoever asks brings the states of the hosts and the turn. The same selection serves new writes and shadow maps
//! (paper, section IV.A: "similar to the process of selecting a set of benefactors for a new write operation"); for a
//! shadow map the hosts that hold the chunk already stand in `avoid`.

pub mod falcon;
pub mod history;
pub mod interval;
pub mod learned;
pub mod pool;
pub mod predictor;
pub mod random;
pub mod shocks;

use stdchk_model::BenefactorId;
use stdchk_model::exact::to_usize;

/// What is known of a host at the moment of choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostState {
    /// The benefactor.
    pub id: BenefactorId,
    /// Whether its heartbeats arrive.
    pub online: bool,
    /// Space that new blocks can take, bytes.
    pub free_bytes: u64,
    /// Requests under way there.
    pub requests: u32,
    /// Whether it takes new blocks, by its own measure: all but S2 of FALCON. One in S0' takes those of the clients that send there already.
    pub accepts: bool,
}

impl HostState {
    /// Whether it can be chosen.
    #[must_use]
    pub fn is_usable(&self, wish: &Wish<'_>) -> bool {
        self.online && self.free_bytes >= wish.room_bytes && !wish.avoid.contains(&self.id)
    }
}

/// What is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish<'a> {
    /// Hosts wanted, the paper's stripe width; fewer are returned if fewer can be used.
    pub width: usize,
    /// Hosts that must not be chosen.
    pub avoid: &'a [BenefactorId],
    /// Free space that a host must have at least, bytes.
    pub room_bytes: u64,
    /// The asker's turn; successive turns start at successive hosts.
    pub turn: u64,
    /// Hosts that take no new blocks unless somebody insists are chosen behind all others, until there are so many.
    pub insist_until: usize,
}

/// A way to select hosts.
pub trait Select: Send {
    /// At most `wish.width` distinct hosts of `hosts`, in the order in which they take turns. Empty if none can be used.
    fn select(&self, hosts: &[HostState], wish: &Wish<'_>) -> Vec<BenefactorId>;
}

/// The paper's policy: on-line hosts with room, one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin;

impl Select for RoundRobin {
    fn select(&self, hosts: &[HostState], wish: &Wish<'_>) -> Vec<BenefactorId> {
        let usable = hosts.iter().filter(|host| host.is_usable(wish));
        let (accepting, busy): (Vec<&HostState>, Vec<&HostState>) = usable.partition(|host| host.accepts);
        let ids_in_turn = |hosts: Vec<&HostState>| {
            let mut ids: Vec<BenefactorId> = hosts.into_iter().map(|host| host.id).collect();
            in_turn(&mut ids, wish.turn);
            ids
        };
        let mut chosen = ids_in_turn(accepting);
        chosen.truncate(wish.width);
        let missing = wish.insist_until.min(wish.width).saturating_sub(chosen.len());
        if missing > 0 {
            chosen.extend(ids_in_turn(busy).into_iter().take(missing));
        }
        assert!(chosen.len() <= wish.width, "no more hosts than were wished for");
        chosen
    }
}

/// Begins a list of hosts at the one whose turn it is.
pub fn in_turn(hosts: &mut [BenefactorId], turn: u64) {
    let first = turn.checked_rem(hosts.len() as u64).unwrap_or(0);
    hosts.rotate_left(to_usize(first));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(count: u32) -> Vec<HostState> {
        let host = |id| HostState {
            id: BenefactorId(id),
            online: true,
            free_bytes: 100,
            requests: 0,
            accepts: true,
        };
        (0..count).map(host).collect()
    }

    fn select(hosts: &[HostState], width: usize, avoid: &[BenefactorId], turn: u64) -> Vec<u32> {
        let wish = Wish { width, avoid, room_bytes: 10, turn, insist_until: 2 };
        RoundRobin.select(hosts, &wish).iter().map(|id| id.0).collect()
    }

    #[test]
    fn successive_turns_load_all_hosts_equally() {
        let hosts = hosts(5);
        let mut load = [0; 5];
        for turn in 0..50 {
            for id in select(&hosts, 3, &[], turn) {
                load[id as usize] += 1;
            }
        }
        assert_eq!(load, [30; 5]);
    }

    #[test]
    fn off_line_full_and_avoided_hosts_are_never_chosen() {
        let mut hosts = hosts(4);
        hosts[0].online = false;
        hosts[1].free_bytes = 9;
        assert_eq!(select(&hosts, 4, &[BenefactorId(2)], 7), [3]);
    }

    #[test]
    fn busy_hosts_come_last_and_only_until_there_are_enough() {
        let mut hosts = hosts(5);
        for busy in [0, 2, 3, 4] {
            hosts[busy].accepts = false;
        }
        assert_eq!(select(&hosts, 4, &[], 1), [1, 2]);
        assert_eq!(select(&hosts, 1, &[], 0), [1]);
        hosts[3].accepts = true;
        assert_eq!(select(&hosts, 4, &[], 0), [1, 3]);
        assert_eq!(select(&hosts, 4, &[BenefactorId(1), BenefactorId(3)], 0), [0, 2]);
    }

    #[test]
    fn nobody_left_is_an_empty_stripe() {
        assert!(select(&hosts(1), 4, &[BenefactorId(0)], u64::MAX).is_empty());
        assert!(select(&[], 4, &[], 3).is_empty());
    }
}
