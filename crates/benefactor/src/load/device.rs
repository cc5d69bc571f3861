//! The disk under a folder, and what the kernel counts of it: /proc/diskstats (iostats.rst of the kernel's documentation), and
//! /proc/pressure/io.
//!
//! A partition counts as its whole disk: who works on another partition waits for the same heads. File systems whose device number is no
//! disk's own, such as btrfs, are looked up in /proc/self/mountinfo by the number of the mount (Linux 5.8): a subvolume has another device number than what is
//! mounted.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags, major, minor, statx};

const DISKSTATS: &str = "/proc/diskstats";
const MOUNTS: &str = "/proc/self/mountinfo";
const PRESSURE: &str = "/proc/pressure/io";
/// Unit in which the kernel counts bytes, whatever the disk's own is.
const SECTOR_BYTES: u64 = 512;

/// A disk, by the numbers of its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    major: u32,
    minor: u32,
}

/// What the kernel has counted of a disk since it began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Time in which at least one request was in flight. Counted in ticks of the kernel: a short request takes a whole one.
    pub ticked: Duration,
    /// Time that reads, writes and flushes took, each counted by itself.
    pub waited: Duration,
    /// Bytes read and written.
    pub bytes: u64,
    /// Reads and writes.
    pub requests: u64,
}

impl Device {
    /// The disk under a folder; `None`: there is none that the kernel counts, as with memory, a network or an overlay.
    pub fn under(folder: &Path) -> io::Result<Option<Self>> {
        let number = fs::metadata(folder)?.dev();
        let own = Self { major: major(number), minor: minor(number) };
        let named = match own.major {
            0 => source_under(folder)?.and_then(|source| Self::named(Path::new(&source))),
            _ => Some(own),
        };
        let Some(device) = named.and_then(Self::whole) else { return Ok(None) };
        Ok(device.counters()?.map(|_| device))
    }

    /// The disk with this name in /dev.
    fn named(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok().filter(|metadata| metadata.file_type().is_block_device())?;
        Some(Self { major: major(metadata.rdev()), minor: minor(metadata.rdev()) })
    }

    /// The disk of which it is a partition, or itself. `None`: the disk of a partition isn't known.
    fn whole(self) -> Option<Self> {
        let own = format!("/sys/dev/block/{}:{}", self.major, self.minor);
        if !Path::new(&own).join("partition").exists() {
            return Some(self);
        }
        of_numbers(fs::read_to_string(Path::new(&own).join("../dev")).ok()?.trim())
    }

    /// What was counted until now; `None`: the disk is gone.
    pub fn counters(self) -> io::Result<Option<Counters>> {
        Ok(counters_in(&fs::read_to_string(DISKSTATS)?, self))
    }
}

fn of_numbers(text: &str) -> Option<Device> {
    let (major, minor) = text.split_once(':')?;
    Some(Device { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

/// What is mounted where a folder lies.
fn source_under(folder: &Path) -> io::Result<Option<String>> {
    let found = statx(CWD, folder, AtFlags::empty(), StatxFlags::MNT_ID)?;
    let says = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
    if !says {
        return Ok(None);
    }
    Ok(source_of(&fs::read_to_string(MOUNTS)?, found.stx_mnt_id))
}

/// What is mounted with this number.
fn source_of(mounts: &str, mount: u64) -> Option<String> {
    let number = |line: &str| line.split(' ').next().and_then(|number| number.parse().ok());
    let line = mounts.lines().find(|line| number(line) == Some(mount))?;
    let (_, behind) = line.split_once(" - ")?;
    behind.split(' ').nth(1).map(str::to_owned)
}

/// The line of a disk in /proc/diskstats.
fn counters_in(text: &str, device: Device) -> Option<Counters> {
    let of_device = |line: &&str| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse);
        numbers.next() == Some(Ok(device.major)) && numbers.next() == Some(Ok(device.minor))
    };
    let line = text.lines().find(of_device)?;
    let fields: Vec<u64> =
        line.split_ascii_whitespace().skip(3).map_while(|field| field.parse().ok()).collect();
    let field = |number: usize| fields.get(number - 1).copied();
    let sectors = field(3)?.saturating_add(field(7)?);
    // Flushes are counted from Linux 5.5 on.
    let waited_ms = field(4)?.saturating_add(field(8)?).saturating_add(field(17).unwrap_or(0));
    Some(Counters {
        ticked: Duration::from_millis(field(10)?),
        waited: Duration::from_millis(waited_ms),
        bytes: sectors.saturating_mul(SECTOR_BYTES),
        requests: field(1)?.saturating_add(field(5)?),
    })
}

/// For how long some program of the machine has waited for a disk since the start; `None`: the kernel doesn't count that.
pub fn stalled() -> Option<Duration> {
    stalled_in(&fs::read_to_string(PRESSURE).ok()?)
}

fn stalled_in(text: &str) -> Option<Duration> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split(' ').find_map(|field| field.strip_prefix("total="))?;
    total.parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATS: &str = "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n \
        254       0 vda 32451 6210 2944482 11265 7911 28541 3744992 13561 0 6040 25556 4671 15 299080 713 276 16\n   \
        8       1 sda1 10 0 20 30 40 0 50 60 0 70 80\n";
    const VDA: Device = Device { major: 254, minor: 0 };

    #[test]
    fn the_line_of_a_disk_is_found_also_in_the_form_of_older_kernels() {
        let vda = counters_in(STATS, VDA).unwrap();
        assert_eq!(
            (vda.ticked, vda.waited),
            (Duration::from_millis(6040), Duration::from_millis(11265 + 13561 + 16))
        );
        assert_eq!((vda.bytes, vda.requests), ((2_944_482 + 3_744_992) * 512, 32451 + 7911));
        let old = counters_in(STATS, Device { major: 8, minor: 1 }).unwrap();
        assert_eq!((old.ticked, old.waited), (Duration::from_millis(70), Duration::from_millis(90)));
        assert_eq!(counters_in(STATS, Device { major: 8, minor: 0 }), None);
    }

    #[test]
    fn texts_that_are_cut_or_odd_are_no_counters_and_panic_nowhere() {
        for length in 0..STATS.len() {
            counters_in(&STATS[..length], VDA);
        }
        for text in ["", "254 0", "254 0 vda x", "254 0 vda 1 2 3 -4 5 6 7 8 9 10", "\u{fffd}\n\n254"] {
            assert_eq!(counters_in(text, VDA), None, "{text:?}");
        }
        let most = format!("254 0 vda {}", "18446744073709551615 ".repeat(17));
        assert!(counters_in(&most, VDA).is_some());
        let pressure =
            "some avg10=0.00 avg60=0.04 avg300=0.25 total=3149223\nfull avg10=0.00 total=2630767\n";
        assert_eq!(stalled_in(pressure), Some(Duration::from_micros(3_149_223)));
        for text in ["", "full total=1", "some total=", "some avg10=0.00"] {
            assert_eq!(stalled_in(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_file_system_with_a_number_of_its_own_is_found_by_what_is_mounted() {
        let mounts = "24 27 0:6 / /dev rw - devtmpfs devtmpfs rw\n40 27 0:55 /x /data rw,noatime shared:1 - btrfs /dev/sdb2 rw\n";
        assert_eq!(source_of(mounts, 40).as_deref(), Some("/dev/sdb2"));
        assert_eq!(source_of(mounts, 24).as_deref(), Some("devtmpfs"));
        assert_eq!(source_of(mounts, 27), None);
        assert_eq!(source_of("40 27 0:55", 40), None);
        // This kernel's numbers of mounts are those of its list.
        assert_eq!(source_under(Path::new("/proc")).unwrap().as_deref(), Some("proc"));
    }

    #[test]
    fn memory_is_no_disk() {
        assert_eq!(Device::under(Path::new("/proc")).unwrap(), None);
        assert_eq!(Device::under(Path::new("/dev/shm")).unwrap(), None);
    }
}
