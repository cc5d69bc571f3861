//! The bandwidth between compute hosts and benefactors (FALCON, section 3.2.2), from what clients say that their puts took.
//!
//! Nothing is sent to measure it: clients say it beside their signs of life. Soft state: after a restart of the manager all hosts count alike
//! until clients have written again. Pairs of which nothing was heard for an hour are forgotten, so that one that was slow gets another chance.

use std::collections::HashMap;

use stdchk_model::BenefactorId;
use stdchk_model::message::manager::Sent;

use super::HostKey;

/// What was sent longer ago than so many seconds of sending weighs half: a link that changes is seen within some ten seconds of writing.
const HALF_S: f64 = 4.0;
/// After so long without a word of a pair nothing is known of it, milliseconds.
const FORGOTTEN_MS: u64 = 3_600_000;
/// Pairs that are kept: 4 MiB. Those of the compute host of which nothing was heard for longest go first.
const PAIRS_MAX: usize = 65_536;

/// What was sent between two hosts, the newest weighing most.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    bytes: f64,
    seconds: f64,
    heard_ms: u64,
}

/// Faster than any link, bytes per second: who says more is mistaken, or lies.
const RATE_MAX: f64 = 1e12;

/// Of one compute host.
#[derive(Debug, Default)]
struct Host {
    pairs: HashMap<BenefactorId, Pair>,
    heard_ms: u64,
}

/// All that is known.
#[derive(Debug, Default)]
pub struct Bandwidths {
    hosts: HashMap<HostKey, Host>,
    /// Pairs of all of them.
    pairs: usize,
}

impl Bandwidths {
    /// A client on a compute host has sent this. Without bytes or time it says nothing.
    pub fn take(&mut self, host: HostKey, sent: &Sent, now_ms: u64) {
        if sent.ms == 0 || sent.bytes == 0 {
            return;
        }
        let of_host = self.hosts.entry(host).or_default();
        of_host.heard_ms = now_ms;
        let before = of_host.pairs.len();
        let pair = of_host.pairs.entry(sent.to).or_default();
        let seconds = f64::from(sent.ms) / 1000.0;
        let keeps = (-seconds / HALF_S).exp2();
        pair.bytes = pair.bytes.mul_add(keeps, (sent.bytes as f64).min(RATE_MAX * seconds));
        pair.seconds = pair.seconds.mul_add(keeps, seconds);
        pair.heard_ms = now_ms;
        self.pairs += of_host.pairs.len() - before;
        while self.pairs > PAIRS_MAX {
            let oldest = self.hosts.iter().min_by_key(|(_, host)| host.heard_ms).map(|(host, _)| *host);
            let Some(gone) = oldest.and_then(|host| self.hosts.remove(&host)) else { return };
            self.pairs -= gone.pairs.len();
        }
    }

    /// The bandwidths between a compute host and benefactors, bytes per second, as far as they are known.
    pub fn of(&mut self, host: HostKey, now_ms: u64) -> HashMap<BenefactorId, u64> {
        let Some(of_host) = self.hosts.get_mut(&host) else { return HashMap::new() };
        let before = of_host.pairs.len();
        of_host.pairs.retain(|_, pair| now_ms.saturating_sub(pair.heard_ms) < FORGOTTEN_MS);
        self.pairs -= before - of_host.pairs.len();
        if of_host.pairs.is_empty() {
            self.hosts.remove(&host);
            return HashMap::new();
        }
        let rate = |pair: &Pair| crate::ranking::whole((pair.bytes / pair.seconds).clamp(1.0, RATE_MAX));
        of_host.pairs.iter().map(|(id, pair)| (*id, rate(pair))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostKey = HostKey::Compute([1; 16]);

    fn sent(to: u32, bytes: u64, ms: u32) -> Sent {
        Sent { to: BenefactorId(to), bytes, ms }
    }

    fn rate(known: &mut Bandwidths, to: u32, now_ms: u64) -> Option<u64> {
        known.of(HOST, now_ms).get(&BenefactorId(to)).copied()
    }

    #[test]
    fn a_link_that_changes_is_seen_within_seconds_of_sending_and_forgotten_after_an_hour() {
        let mut known = Bandwidths::default();
        (0..10).for_each(|_| known.take(HOST, &sent(1, 100_000_000, 1000), 0));
        assert_eq!(rate(&mut known, 1, 0), Some(100_000_000));
        for second in 1..=20 {
            known.take(HOST, &sent(1, 10_000_000, 1000), second * 1000);
        }
        let rate_now = rate(&mut known, 1, 20_000).unwrap();
        assert!((10_000_000..14_000_000).contains(&rate_now), "{rate_now}");
        known.take(HOST, &sent(2, 1, 0), 20_000);
        known.take(HOST, &sent(3, u64::MAX, 1), 20_000);
        known.take(HOST, &sent(4, 0, 1000), 20_000);
        known.take(HOST, &sent(5, 1, u32::MAX), 20_000);
        assert_eq!((rate(&mut known, 2, 20_000), rate(&mut known, 4, 20_000)), (None, None));
        assert_eq!(rate(&mut known, 3, 20_000), Some(1_000_000_000_000));
        assert_eq!(rate(&mut known, 5, 20_000), Some(1), "it is slow, and not unknown");
        assert_eq!(known.of(HOST, 20_000 + FORGOTTEN_MS), HashMap::new());
        assert_eq!(known.pairs, 0);
    }

    #[test]
    fn no_more_pairs_are_kept_than_may() {
        let mut known = Bandwidths::default();
        for host in 0..300_u64 {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&host.to_be_bytes());
            (0..256).for_each(|to| known.take(HostKey::Compute(id), &sent(to, 1 << 20, 10), host));
        }
        let kept: usize = known.hosts.values().map(|host| host.pairs.len()).sum();
        assert!(kept == known.pairs && kept <= PAIRS_MAX && kept > PAIRS_MAX / 2, "{kept}");
        assert!(!known.hosts.contains_key(&HostKey::Compute([0; 16])));
    }
}
