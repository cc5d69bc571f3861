//! Checksums of what is stored: of each record, and of the store as a whole.
//!
//! A record is kept behind a check over its key and its bytes, so that no record stands in for another. The seal of the
//! store sums up the checks of all records, in no order, with their number and the number of the last commit: a record
//! that is missing, stale or too many doesn't go unnoticed either. The seal changes with every commit and is committed
//! with it; keeping it up costs the old and the new check of each record that changes, and nothing for the others. The
//! opponent is a disk that errs, not a person: whoever can write the store can also compute checks.

/// Length of a check, bytes: no two records that a disk makes of one another have the same one.
pub(super) const CHECK_BYTES: usize = 16;
/// Length of an encoded seal, bytes.
pub(super) const SEAL_BYTES: usize = 32;

/// Check of one record.
pub type Check = u128;

/// What all records of a store add up to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seal {
    /// Number of the last commit, counted from 1.
    pub sequence: u64,
    /// Number of records.
    pub records: u64,
    /// Sum of their checks, modulo 2^128.
    pub sum: u128,
}

impl Seal {
    /// Counts a record in.
    pub fn add(&mut self, check: Check) {
        self.records = self.records.wrapping_add(1);
        self.sum = self.sum.wrapping_add(check);
    }

    /// Counts a record out.
    pub fn subtract(&mut self, check: Check) {
        self.records = self.records.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(check);
    }

    /// Sequence, number and sum as bytes, little-endian.
    pub fn encode(&self) -> [u8; SEAL_BYTES] {
        let mut bytes = [0; SEAL_BYTES];
        let (sequence, rest) = bytes.split_at_mut(8);
        let (records, sum) = rest.split_at_mut(8);
        sequence.copy_from_slice(&self.sequence.to_le_bytes());
        records.copy_from_slice(&self.records.to_le_bytes());
        sum.copy_from_slice(&self.sum.to_le_bytes());
        bytes
    }

    /// The seal in `bytes`, if they are as long as one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (sequence, rest) = bytes.split_first_chunk::<8>()?;
        let (records, rest) = rest.split_first_chunk::<8>()?;
        let sum = <[u8; 16]>::try_from(rest).ok()?;
        Some(Self {
            sequence: u64::from_le_bytes(*sequence),
            records: u64::from_le_bytes(*records),
            sum: u128::from_le_bytes(sum),
        })
    }
}

/// Makes and compares checks.
#[derive(Clone)]
pub struct Checker(blake3::Hasher);

impl Checker {
    /// A checker whose checks are those of nothing else than what `context` says; making one costs as much as some checks.
    pub fn new(context: &str) -> Self {
        Self(blake3::Hasher::new_derive_key(context))
    }

    /// The check of a record.
    pub fn check(&self, key: &[u8], record: &[u8]) -> Check {
        let mut hasher = self.0.clone();
        hasher.update(&u64::try_from(key.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(key).update(record);
        let mut check = [0; CHECK_BYTES];
        hasher.finalize_xof().fill(&mut check);
        Check::from_le_bytes(check)
    }

    /// What is stored for a record, and its check.
    pub fn close(&self, key: &[u8], record: &[u8]) -> (Vec<u8>, Check) {
        let check = self.check(key, record);
        ([&check.to_le_bytes(), record].concat(), check)
    }

    /// The record in what was stored for it, and its check; `None`: it is not what was stored for this key.
    pub fn open<'b>(&self, key: &[u8], stored: &'b [u8]) -> Option<(&'b [u8], Check)> {
        let (check, record) = stored.split_first_chunk::<CHECK_BYTES>()?;
        let check = Check::from_le_bytes(*check);
        (self.check(key, record) == check).then_some((record, check))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_opens_under_its_own_key_only_and_every_flipped_bit_is_noticed() {
        let checker = Checker::new("test");
        let (stored, check) = checker.close(b"key", b"a record");
        assert_eq!(checker.open(b"key", &stored), Some((&b"a record"[..], check)));
        assert_eq!(checker.open(b"keya", &checker.close(b"key", b"a record").0), None);
        assert_eq!(checker.open(b"other", &stored), None);
        for bit in 0..stored.len() * 8 {
            let mut bad = stored.clone();
            if let Some(byte) = bad.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            assert_eq!(checker.open(b"key", &bad), None, "bit {bit}");
        }
        for length in 0..stored.len() {
            assert_eq!(checker.open(b"key", stored.get(..length).unwrap()), None, "{length} bytes");
        }
    }

    #[test]
    fn a_seal_depends_on_what_is_there_and_not_on_how_it_came() {
        let checker = Checker::new("test");
        let check = |key: &[u8], record: &[u8]| checker.close(key, record).1;
        let (mut one, mut other) = (Seal::default(), Seal::default());
        one.add(check(b"a", b"1"));
        one.add(check(b"b", b"2"));
        other.add(check(b"b", b"1"));
        other.add(check(b"a", b"1"));
        other.subtract(check(b"b", b"1"));
        assert_ne!(one, other);
        other.add(check(b"b", b"2"));
        assert_eq!(one, other);
        assert_eq!(Seal::decode(&one.encode()), Some(one));
        assert_eq!(Seal::decode(one.encode().get(1..).unwrap()), None);
    }

    /// Computed with the Python binding of the BLAKE3 project.
    #[test]
    fn checks_stay_what_they_are() {
        let (stored, _) =
            Checker::new("stdchk manager's store, checks of records, layout 2").close(b"\x00pool", b"x");
        let text: String = stored.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "91db29465c96bc136ca4c80e2593500d78");
    }
}
