//! How much a store may take: the donation, and the owner's floor under the disk's free space (I9). Pure.
//!
//! When the owner's own files take what is to stay free, the store owes it back. Then it gives back some more than that, and takes
//! nothing until there is plenty: free space that goes up and down around the floor moves no blocks to and fro.
//!
//! | relief | the disk has less than the floor | at least the floor and a reserve | at least the floor and four reserves |
//! |---|---|---|---|
//! | none | gives | none | none |
//! | gives | gives | rests | none |
//! | rests | gives | rests | none |

use stdchk_model::size;

/// What the owner allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Donation {
    /// Space that the store may take, bytes.
    pub donated_bytes: u64,
    /// Free space that the file system keeps, bytes.
    pub floor_bytes: u64,
}

/// The part of the floor that is given back beyond it, so that the next small file of the owner isn't the next reason to give back.
const RESERVE_PARTS: u64 = 16;
/// Largest reserve, bytes: on a large disk the floor itself is plenty.
const RESERVE_BYTES_MAX: u64 = 1 << 30;
/// Reserves above the floor from which on blocks are taken again.
const REFILL_RESERVES: u64 = 4;

/// How a store stands to what the disk has free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Relief {
    /// It takes blocks.
    #[default]
    None,
    /// It gives space back.
    Gives,
    /// It has given enough, and takes nothing yet.
    Rests,
}

/// No room for a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoRoom {
    /// The donation is used up.
    #[error(
        "the donation is used up: {} of {} are taken, {} more are needed",
        size::human(*used), size::human(*donated), size::human(*needed)
    )]
    Donation {
        /// Taken, bytes.
        used: u64,
        /// Donated, bytes.
        donated: u64,
        /// Needed, bytes.
        needed: u64,
    },
    /// The file system would get too full.
    #[error(
        "the disk has {} left, the owner keeps {}, {} are needed",
        size::human(*available), size::human(*floor), size::human(*needed)
    )]
    Floor {
        /// Free on the file system, bytes.
        available: u64,
        /// Kept by the owner, bytes.
        floor: u64,
        /// Needed, bytes.
        needed: u64,
    },
}

impl NoRoom {
    /// What its owner can do.
    pub fn next(&self) -> &'static str {
        match self {
            Self::Donation { .. } => "donate more or remove versions",
            Self::Floor { .. } => "free some space or lower the floor",
        }
    }
}

impl Donation {
    fn reserve_bytes(&self) -> u64 {
        (self.floor_bytes / RESERVE_PARTS).min(RESERVE_BYTES_MAX)
    }

    /// How a store stands that stood so, now that the file system has `available` bytes.
    #[must_use]
    pub fn relief(&self, before: Relief, available: u64) -> Relief {
        let above = available.checked_sub(self.floor_bytes);
        match (before, above) {
            (_, None) => Relief::Gives,
            (Relief::None, Some(_)) => Relief::None,
            (_, Some(above)) if above >= REFILL_RESERVES * self.reserve_bytes() => Relief::None,
            (Relief::Gives, Some(above)) if above < self.reserve_bytes() => Relief::Gives,
            (Relief::Gives | Relief::Rests, Some(_)) => Relief::Rests,
        }
    }

    /// What holds for new blocks: a higher floor, unless there is no relief.
    #[must_use]
    pub fn during(&self, relief: Relief) -> Self {
        let beyond = if relief == Relief::None { 0 } else { REFILL_RESERVES * self.reserve_bytes() };
        Self { floor_bytes: self.floor_bytes.saturating_add(beyond), ..*self }
    }

    /// What holds for what gives way to everything else: a higher floor.
    #[must_use]
    pub fn with_reserve(&self) -> Self {
        Self { floor_bytes: self.floor_bytes.saturating_add(self.reserve_bytes()), ..*self }
    }

    /// Whether more is taken than is donated, or the file system has less than the floor.
    pub fn is_exceeded(&self, used: u64, available: u64) -> bool {
        used > self.donated_bytes || available < self.floor_bytes
    }

    /// Space that is to be given back when `used` bytes are taken and the file system has `available`, bytes.
    pub fn owed(&self, relief: Relief, used: u64, available: u64) -> u64 {
        let goal = match relief {
            Relief::Gives => self.floor_bytes.saturating_add(self.reserve_bytes()),
            Relief::None | Relief::Rests => 0,
        };
        used.saturating_sub(self.donated_bytes).max(goal.saturating_sub(available))
    }

    /// Space that new blocks can take when `used` bytes are taken and the file system has `available`, bytes.
    pub fn free(&self, used: u64, available: u64) -> u64 {
        self.donated_bytes.saturating_sub(used).min(available.saturating_sub(self.floor_bytes))
    }

    /// Whether `needed` more bytes may be taken.
    pub fn admit(&self, used: u64, available: u64, needed: u64) -> Result<(), NoRoom> {
        if self.donated_bytes.saturating_sub(used) < needed {
            return Err(NoRoom::Donation { used, donated: self.donated_bytes, needed });
        }
        if available.saturating_sub(self.floor_bytes) < needed {
            return Err(NoRoom::Floor { available, floor: self.floor_bytes, needed });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_floor_lacks_is_owed_with_a_reserve_and_nothing_is_taken_until_there_is_plenty() {
        use Relief::{Gives, None, Rests};
        let donation = Donation { donated_bytes: 1000, floor_bytes: 160 };
        // A floor of 160 has a reserve of 10, and is far away from 200 on.
        let expected = [
            (None, 160, None, 0),
            (None, 159, Gives, 11),
            (Gives, 160, Gives, 10),
            (Gives, 169, Gives, 1),
            (Gives, 170, Rests, 0),
            (Gives, 200, None, 0),
            (Rests, 160, Rests, 0),
            (Rests, 159, Gives, 11),
            (Rests, 199, Rests, 0),
            (Rests, 200, None, 0),
        ];
        for (before, available, after, owed) in expected {
            let relief = donation.relief(before, available);
            assert_eq!(
                (relief, donation.owed(relief, 500, available)),
                (after, owed),
                "{before:?} {available}"
            );
            let takes = donation.during(relief).free(500, available) > 0;
            assert_eq!(takes, relief == None && available > 160, "{before:?} {available}");
        }
        // What is beyond a donation that became smaller is owed, too.
        assert_eq!(donation.owed(None, 1030, 400), 30);
        let no_floor = Donation { floor_bytes: 0, ..donation };
        assert_eq!(no_floor.relief(None, 0), None);
    }

    #[test]
    fn the_tighter_of_donation_and_floor_holds() {
        let donation = Donation { donated_bytes: 100, floor_bytes: 50 };
        assert_eq!((donation.free(30, 1000), donation.free(30, 60), donation.free(200, 10)), (70, 10, 0));
        assert_eq!(donation.admit(30, 1000, 70), Ok(()));
        assert!(donation.admit(30, 1000, 71).unwrap_err().next().contains("donate more"));
        assert!(donation.admit(30, 60, 11).unwrap_err().to_string().contains("the owner keeps 50 B"));
    }
}
