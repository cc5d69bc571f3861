//! The probability that at least m of some hosts are there when they are needed, where hosts that share fate fail together.
//!
//! Relies on marginal probabilities and on how strongly hosts of one group fail together, both learned elsewhere. The one idea is a mixture of common
//! shocks: a group with several of the hosts is hit as a whole with a small probability, and apart from that its hosts
//! fail independently, such that every host keeps its own probability. Five hosts have few such groups, so all
//! combinations of shocks are summed exactly.

/// Levels of grouping, finest first: for example the rack or the /24 network, the building or the /16, the site.
pub const LEVELS: usize = 3;

/// A host belongs to no group of a level.
pub const NO_GROUP: u32 = u32::MAX;

/// Groups of a host, one on each level; numbers from 0 on each level, or [`NO_GROUP`].
pub type Groups = [u32; LEVELS];

/// How strongly hosts of one group fail together, on each level: the intra-class correlation, 0 to 1, of what the marginal
/// probabilities don't explain.
pub type Correlations = [f64; LEVELS];

/// Groups whose shocks are summed exactly; beyond them, correlation is left out. Five hosts have at most two groups of two on a level.
const SHOCKS_MAX: usize = 6;

/// A host that holds a part of a checkpoint, or may.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Holder {
    /// Probability that its part is gone when the compute host fails.
    pub lost: f64,
    /// Its groups.
    pub groups: Groups,
}

/// The probability that at least `m` of the holders' parts are there when the compute host fails.
#[must_use]
pub fn recoverable(m: usize, holders: &[Holder], correlations: &Correlations) -> f64 {
    let mut shocks: Vec<(usize, u32, f64)> = Vec::new();
    for (level, correlation) in correlations.iter().enumerate() {
        for (place, holder) in holders.iter().enumerate() {
            let Some(group) = holder.groups.get(level).copied().filter(|group| *group != NO_GROUP) else {
                continue;
            };
            let alike = |other: &&Holder| other.groups.get(level) == Some(&group);
            let known = shocks.iter().any(|shock| (shock.0, shock.1) == (level, group));
            if known || *correlation <= 0.0 || !holders.iter().skip(place + 1).any(|other| alike(&other)) {
                continue;
            }
            let least = holders.iter().filter(alike).map(|member| member.lost).fold(1.0, f64::min);
            if shocks.len() < SHOCKS_MAX {
                shocks.push((level, group, correlation * least));
            }
        }
    }
    let hit = |holder: &Holder, shock: &(usize, u32, f64)| holder.groups.get(shock.0) == Some(&shock.1);
    let lost_alone = |holder: &Holder| {
        let spared: f64 =
            shocks.iter().filter(|shock| hit(holder, shock)).map(|shock| 1.0 - shock.2).product();
        (1.0 - (1.0 - holder.lost) / spared).max(0.0)
    };
    let alone: Vec<f64> = holders.iter().map(lost_alone).collect();
    let mut sum = 0.0;
    for combination in 0..1_u32 << shocks.len() {
        let happens = |number: usize| combination >> number & 1 == 1;
        let weight: f64 = shocks
            .iter()
            .enumerate()
            .map(|(number, shock)| if happens(number) { shock.2 } else { 1.0 - shock.2 })
            .product();
        let spared = holders.iter().zip(&alone).filter(|(holder, _)| {
            !shocks.iter().enumerate().any(|(number, shock)| happens(number) && hit(holder, shock))
        });
        sum += weight * at_least(m, spared.map(|(_, lost)| *lost));
    }
    sum
}

/// The probability that at least `m` of independent hosts are there, each of which is lost with its own probability.
fn at_least(m: usize, lost: impl Iterator<Item = f64>) -> f64 {
    // there[n]: probability that exactly n are there; the last entry is m and more.
    let mut there = vec![0.0; m + 1];
    if let Some(none) = there.first_mut() {
        *none = 1.0;
    }
    for lost in lost {
        let mut fewer = 0.0;
        let last = there.len() - 1;
        for (number, probability) in there.iter_mut().enumerate() {
            let before = *probability;
            *probability = if number == last {
                before + fewer * (1.0 - lost)
            } else {
                before * lost + fewer * (1.0 - lost)
            };
            fewer = before;
        }
    }
    there.last().copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(lost: f64) -> Holder {
        Holder { lost, groups: [NO_GROUP; LEVELS] }
    }

    #[test]
    fn independent_hosts_follow_the_binomial() {
        let five = [alone(0.1); 5];
        // P(at most 2 of 5 lost), n choose k by hand.
        let (q, p) = (0.1_f64, 0.9_f64);
        let wanted = p.powi(5) + 5.0 * q * p.powi(4) + 10.0 * q * q * p.powi(3);
        assert!((recoverable(3, &five, &[0.3; 3]) - wanted).abs() < 1e-12);
        assert_eq!(recoverable(3, &five[..2], &[0.0; 3]), 0.0);
        assert!((recoverable(0, &[], &[0.0; 3]) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn hosts_that_share_fate_are_worth_less_than_hosts_that_do_not() {
        let together = [Holder { lost: 0.05, groups: [1, NO_GROUP, NO_GROUP] }; 5];
        let mut apart = together;
        apart.iter_mut().zip(10..).for_each(|(holder, group)| holder.groups[0] = group);
        let (near, far) =
            (recoverable(3, &together, &[0.4, 0.0, 0.0]), recoverable(3, &apart, &[0.4, 0.0, 0.0]));
        assert!((far - recoverable(3, &[alone(0.05); 5], &[0.0; 3])).abs() < 1e-12);
        assert!(near < 1.0 - 0.4 * 0.05 + 1e-9 && near < far, "{near} {far}");
    }

    /// Draws the mixture many times and counts.
    #[test]
    fn the_sum_is_what_drawing_gives_and_keeps_every_hosts_own_probability() {
        let holders = [
            Holder { lost: 0.3, groups: [0, 0, NO_GROUP] },
            Holder { lost: 0.2, groups: [0, 0, NO_GROUP] },
            Holder { lost: 0.25, groups: [1, 0, NO_GROUP] },
            Holder { lost: 0.1, groups: [NO_GROUP, NO_GROUP, 7] },
        ];
        let correlations = [0.5, 0.2, 0.9];
        let mut random = crate::random::Random::new(11);
        let (small, large) = (0.5 * 0.2, 0.2 * 0.2);
        let (mut enough, mut lost) = (0, [0; 4]);
        let rounds = 400_000;
        for _ in 0..rounds {
            let (small_hits, large_hits) = (random.unit() < small, random.unit() < large);
            let mut there = 0;
            for (place, holder) in holders.iter().enumerate() {
                let (in_small, in_large) = (holder.groups[0] == 0, holder.groups[1] == 0);
                let spared =
                    (if in_small { 1.0 - small } else { 1.0 }) * (if in_large { 1.0 - large } else { 1.0 });
                let alone = 1.0 - (1.0 - holder.lost) / spared;
                let gone = in_small && small_hits || in_large && large_hits || random.unit() < alone;
                lost[place] += i32::from(gone);
                there += usize::from(!gone);
            }
            enough += i32::from(there >= 2);
        }
        let share = |count: i32| f64::from(count) / f64::from(rounds);
        assert!((recoverable(2, &holders, &correlations) - share(enough)).abs() < 0.003);
        for (place, holder) in holders.iter().enumerate() {
            assert!((share(lost[place]) - holder.lost).abs() < 0.003);
        }
    }
}
