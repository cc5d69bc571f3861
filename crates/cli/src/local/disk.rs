//! The disk under a pool: how much is there, how much is free, and how much a new pool takes of it by default.

use std::path::Path;

use stdchk_model::size;

use crate::exit::{About, CommandError, Exit, Outcome};
use crate::settings::size_of;

/// Least share of a disk that stays free unless told otherwise: one part of so many.
const FLOOR_PARTS: u64 = 20;
/// Least space of a disk that stays free unless told otherwise, bytes.
const FLOOR_BYTES_MIN: u64 = 1 << 30;
/// Of what is free above the floor, a new pool takes at most one part of so many.
const DONATED_PARTS: u64 = 2;
/// Least donation that is chosen without being asked for, bytes: a few chunks of a few files.
const DONATION_BYTES_MIN: u64 = 64 << 20;

/// Least donation that is taken, bytes: a small block and its header. Less is most likely a size without its unit.
const DONATION_BYTES_LEAST: u64 = 64 << 10;

/// Space of a disk.
pub struct Disk {
    /// All of it, bytes.
    pub total_bytes: u64,
    /// What unprivileged users may still take, bytes.
    pub free_bytes: u64,
}

impl Disk {
    /// The disk that holds `path`, or will.
    pub fn of(path: &Path) -> Outcome<Self> {
        let exists = path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
        let disk = rustix::fs::statvfs(exists).about(exists.display())?;
        Ok(Self { total_bytes: disk.f_blocks * disk.f_frsize, free_bytes: disk.f_bavail * disk.f_frsize })
    }

    /// What stays free unless told otherwise: 5 % of the disk, at least a gibibyte.
    pub fn floor_default(&self) -> u64 {
        (self.total_bytes / FLOOR_PARTS).max(FLOOR_BYTES_MIN)
    }

    /// What each of so many benefactors may take if nothing else is said, whole mebibytes. `path` is for messages.
    pub fn share(&self, path: &Path, floor_bytes: u64, benefactors: u16) -> Outcome<u64> {
        let free = self.free_bytes.saturating_sub(floor_bytes);
        let share = free / DONATED_PARTS / u64::from(benefactors.max(1));
        if share >= DONATION_BYTES_MIN {
            return Ok(share >> 20 << 20);
        }
        let (free, floor) = (size::human(self.free_bytes), size::human(floor_bytes));
        Err(CommandError::new(
            Exit::NoSpace,
            path.display(),
            format_args!("the disk has {free} free, of which {floor} stay free"),
            "make room, choose another disk with `--data`, or give `--donate` and `--floor`",
        ))
    }
}

/// What each of so many benefactors on the disk that holds `path` may take, and what stays free there, bytes: as `--donate` and
/// `--floor` say, or as is usual.
pub fn sizes(
    donate: Option<&str>,
    floor_text: Option<&str>,
    path: &Path,
    benefactors: u16,
) -> Outcome<(u64, u64)> {
    let disk = Disk::of(path)?;
    let floor_bytes = floor_text.map_or(Ok(disk.floor_default()), |text| floor(text, path))?;
    let Some(text) = donate else { return Ok((disk.share(path, floor_bytes, benefactors)?, floor_bytes)) };
    let donated_bytes = donation(text)?;
    refuse_impossible(text, donated_bytes, floor_bytes, &disk, benefactors)?;
    Ok((donated_bytes, floor_bytes))
}

/// Those sizes where they are given anew, and as they were where they aren't.
pub fn sizes_over(
    (donate, floor_text): (Option<&str>, Option<&str>),
    (mut donated_bytes, mut floor_bytes): (u64, u64),
    path: &Path,
    benefactors: u16,
) -> Outcome<(u64, u64)> {
    if let Some(text) = floor_text {
        floor_bytes = floor(text, path)?;
    }
    if let Some(text) = donate {
        donated_bytes = donation(text)?;
        refuse_impossible(text, donated_bytes, floor_bytes, &Disk::of(path)?, benefactors)?;
    }
    Ok((donated_bytes, floor_bytes))
}

/// A donation that was asked for must fit the disk. What is on the disk today may go, so more than is free is taken.
fn refuse_impossible(
    text: &str,
    donated_bytes: u64,
    floor_bytes: u64,
    disk: &Disk,
    benefactors: u16,
) -> Outcome {
    let all = donated_bytes.saturating_mul(u64::from(benefactors));
    let most = disk.total_bytes.saturating_sub(floor_bytes);
    if all <= most {
        return Ok(());
    }
    let cause = format!(
        "{benefactors} benefactors would take {}, the disk has {} in all, of which {} stay free",
        size::human(all),
        size::human(disk.total_bytes),
        size::human(floor_bytes)
    );
    let next = format!("give at most {}", size::human(most / u64::from(benefactors.max(1))));
    Err(CommandError::usage(format_args!("--donate {text}"), cause, next))
}

/// What `--donate` says.
pub fn donation(text: &str) -> Outcome<u64> {
    let bytes = size_of("--donate", text)?;
    match bytes < DONATION_BYTES_LEAST {
        true => {
            let next =
                format!("give at least {}, with its unit, such as 20GiB", size::exact(DONATION_BYTES_LEAST));
            Err(CommandError::usage(
                format_args!("--donate {text}"),
                "nothing can be stored in so little",
                next,
            ))
        }
        false => Ok(bytes),
    }
}

/// What `--floor` says of the disk that holds `path`.
pub fn floor(text: &str, path: &Path) -> Outcome<u64> {
    let (bytes, total_bytes) = (size_of("--floor", text)?, Disk::of(path)?.total_bytes);
    match bytes >= total_bytes {
        true => {
            let cause = format!("the whole disk of {} has {}", path.display(), size::human(total_bytes));
            Err(CommandError::usage(
                format_args!("--floor {text}"),
                cause,
                "give less, or choose another disk",
            ))
        }
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_pool_takes_half_of_what_is_free_above_the_floor() {
        let disk = Disk { total_bytes: 100 << 30, free_bytes: 45 << 30 };
        assert_eq!(disk.floor_default(), 5 << 30);
        assert_eq!(disk.share(Path::new("/x"), 5 << 30, 4).unwrap(), 5 << 30);
        let full = Disk { total_bytes: 10 << 30, free_bytes: 1 << 30 };
        assert_eq!(full.floor_default(), 1 << 30);
        assert_eq!(full.share(Path::new("/x"), 1 << 30, 4).unwrap_err().exit, Exit::NoSpace);
    }

    #[test]
    fn a_donation_and_a_floor_that_leave_nothing_to_store_in_are_refused() {
        assert_eq!(donation("64MiB").unwrap(), 64 << 20);
        assert_eq!(floor("0", Path::new("/tmp")).unwrap(), 0);
        for refused in [donation("1KiB"), donation("much"), floor("8000000TiB", Path::new("/tmp"))] {
            assert_eq!(refused.unwrap_err().exit, Exit::Usage);
        }
    }

    #[test]
    fn a_path_that_does_not_exist_yet_is_on_the_disk_of_its_parent() {
        assert!(Disk::of(Path::new("/tmp/not/there/yet")).unwrap().total_bytes > 0);
    }
}
