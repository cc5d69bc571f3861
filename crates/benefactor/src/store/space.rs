//! How much a store may take: the donation, and the owner's floor under the disk's free space (I9). Pure.

use stdchk_model::size;

/// What the owner allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Donation {
    /// Space that the store may take, bytes.
    pub donated_bytes: u64,
    /// Free space that the file system keeps, bytes.
    pub floor_bytes: u64,
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
    fn the_tighter_of_donation_and_floor_holds() {
        let donation = Donation { donated_bytes: 100, floor_bytes: 50 };
        assert_eq!((donation.free(30, 1000), donation.free(30, 60), donation.free(200, 10)), (70, 10, 0));
        assert_eq!(donation.admit(30, 1000, 70), Ok(()));
        assert!(donation.admit(30, 1000, 71).unwrap_err().next().contains("donate more"));
        assert!(donation.admit(30, 60, 11).unwrap_err().to_string().contains("the owner keeps 50 B"));
    }
}
