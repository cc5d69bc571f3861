//! Holes of sparse files: where `SEEK_DATA` and `SEEK_HOLE` find them, and what programs make of them.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use crate::common::{TestPool, noise, open_both, shell, wait_until};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use stdchk_mount::SpoolConfig;

const MIB: u64 = 1 << 20;
/// Unit of `st_blocks`, bytes.
const BLOCK_BYTES: u64 = 512;

/// Begin and end of each run of data.
fn data(file: &File) -> Vec<(u64, u64)> {
    let (mut runs, mut at) = (Vec::new(), 0);
    loop {
        match seek(file, SeekFrom::Data(at)) {
            Ok(begin) => {
                at = seek(file, SeekFrom::Hole(begin)).unwrap();
                runs.push((begin, at));
            }
            Err(error) => {
                assert_eq!(error, rustix::io::Errno::NXIO);
                return runs;
            }
        }
    }
}

/// 64 MiB, of which a mebibyte and a hundred bytes were written.
fn write_sparse(file: &File) {
    file.set_len(64 * MIB).unwrap();
    file.write_all_at(&noise(1, 1 << 20), 8 * MIB).unwrap();
    file.write_all_at(&noise(2, 100), 40 * MIB).unwrap();
}

#[test]
fn holes_of_a_version_are_found_and_cost_no_space() {
    let pool = TestPool::start(2);
    let (mount, other) = (pool.mount(), pool.mount());
    write_sparse(&open_both(&mount.at("sparse")));
    for seen in [mount.at("sparse"), other.at("sparse")] {
        let file = File::open(&seen).unwrap();
        let runs = data(&file);
        assert_eq!((runs.len(), runs[0], runs[1].0), (2, (8 * MIB, 9 * MIB), 40 * MIB));
        assert!((40 * MIB + 100..=41 * MIB).contains(&runs[1].1), "{runs:?}");
        assert_eq!(seek(&file, SeekFrom::Hole(64 * MIB)), Err(rustix::io::Errno::NXIO));
        let taken = file.metadata().unwrap().blocks() * BLOCK_BYTES;
        assert!((MIB + 100..=2 * MIB).contains(&taken), "{taken}");
    }
}

#[test]
fn a_hole_is_punched_where_there_is_data_and_costs_nothing_where_there_is_none() {
    let pool = TestPool::start(2);
    let (mount, other) = (pool.mount(), pool.mount());
    let spool = tempfile::tempdir().unwrap();
    let directory = spool.path().join("spool");
    let spooling = pool.mount_with(|config| {
        config.spool = Some(SpoolConfig { directory, bytes_max: Some(1 << 30), required: true });
    });
    let begun = Instant::now();
    for (protocol, mount) in [("sw", &mount), ("clw", &spooling), ("iw", &spooling)] {
        fs::create_dir(mount.at(protocol)).unwrap();
        pool.set_policy(protocol, "protocol", protocol);
        let size = 256 << 30;
        let file = open_both(&mount.at(protocol).join("sparse"));
        write_sparse(&file);
        file.set_len(size).unwrap();
        file.sync_all().unwrap();
        file.write_all_at(&noise(3, 1 << 20), size - MIB - 7).unwrap();
        let punch = |offset, length| {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, how, offset, length).unwrap();
        };
        // All but the last mebibyte, which begins and ends within cells.
        punch(0, size - MIB - 7);
        punch(size - 7, 7);
        punch(size, 1 << 40);
        let runs = data(&file);
        assert!(runs.iter().all(|run| run.1 <= 42 * MIB || run.0 >= size - 3 * MIB), "{protocol}: {runs:?}");
        let mut bytes = vec![1; 1 << 20];
        file.read_exact_at(&mut bytes, 8 * MIB).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "{protocol}");
        drop(file);
        wait_until("the file is saved", || {
            let about = fs::metadata(other.at(protocol).join("sparse")).unwrap();
            about.len() == size && about.blocks() * BLOCK_BYTES < 3 * MIB
        });
        let file = File::open(other.at(protocol).join("sparse")).unwrap();
        let mut bytes = vec![0; (1 << 20) + 14];
        file.read_exact_at(&mut bytes, size - MIB - 14).unwrap();
        assert_eq!((&bytes[..7], &bytes[(1 << 20) + 7..]), (&[0; 7][..], &[0; 7][..]), "{protocol}");
        assert!(bytes[7..(1 << 20) + 7] == noise(3, 1 << 20), "{protocol}");
    }
    // 50 GiB of nothing took 12 s.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn copies_and_archives_of_a_sparse_file_are_sparse() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    write_sparse(&open_both(&mount.at("sparse")));
    let local = tempfile::tempdir().unwrap();
    let script = format!(
        "cp --sparse=auto sparse {0}/copy; tar -Scf {0}/archive sparse; cmp sparse {0}/copy; \
         tar -xOf {0}/archive sparse | cmp - sparse",
        local.path().display()
    );
    shell(&script, &mount.path);
    assert!(fs::metadata(local.path().join("copy")).unwrap().blocks() * BLOCK_BYTES < 8 * MIB);
    assert!(fs::metadata(local.path().join("archive")).unwrap().len() < 8 * MIB);
}

#[test]
fn what_the_kernel_has_not_handed_over_yet_is_no_hole() {
    let pool = TestPool::start(2);
    let spool = tempfile::tempdir().unwrap();
    let directory = spool.path().join("spool");
    let mount = pool.mount_with(|config| {
        config.spool = Some(SpoolConfig { directory, bytes_max: Some(1 << 30), required: true });
    });
    for protocol in ["sw", "clw", "iw"] {
        fs::create_dir(mount.at(protocol)).unwrap();
        pool.set_policy(protocol, "protocol", protocol);
        let file = open_both(&mount.at(protocol).join("sparse"));
        assert_eq!(data(&file), []);
        write_sparse(&file);
        let runs = data(&file);
        let holds = |begin, end| runs.iter().any(|run| run.0 <= begin && end <= run.1);
        assert!(holds(8 * MIB, 9 * MIB) && holds(40 * MIB, 40 * MIB + 100), "{protocol}: {runs:?}");
        assert!(runs.iter().map(|run| run.1 - run.0).sum::<u64>() <= 3 * MIB, "{protocol}: {runs:?}");
        // Behind the end that the pool knows of.
        file.write_all_at(b"more", 70 * MIB).unwrap();
        assert_eq!(data(&file).last().unwrap().1, 70 * MIB + 4, "{protocol}");
        // In the middle of what was saved already.
        file.sync_all().unwrap();
        file.write_all_at(b"inside", 50 * MIB).unwrap();
        assert_eq!(seek(&file, SeekFrom::Data(45 * MIB)), Ok(50 * MIB), "{protocol}");
        let mut bytes = [0; 6];
        file.read_exact_at(&mut bytes, 50 * MIB).unwrap();
        assert_eq!(&bytes, b"inside");
    }
}
