//! The operations of a file system, one by one, as `docs/SEMANTICS.md` lists them, and the errors of those that aren't there.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use crate::common::{TestPool, noise, open_both, shell};

fn errno(result: std::io::Result<impl Sized>) -> i32 {
    result.err().and_then(|error| error.raw_os_error()).unwrap_or(0)
}

#[test]
fn random_writes_and_truncations_leave_what_a_local_file_would_hold() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let local = tempfile::tempfile().unwrap();
    let file = open_both(&mount.at("random"));
    for step in 0..200_u64 {
        let random = u64::from_le_bytes(noise(step + 1, 8).try_into().unwrap());
        let offset = random % 5_000_000;
        if step % 10 == 9 {
            for one in [&file, &local] {
                one.set_len(offset).unwrap();
            }
        }
        let bytes = noise(step, usize::try_from(random >> 40).unwrap() % 70_000);
        for one in [&file, &local] {
            one.write_all_at(&bytes, offset).unwrap();
        }
    }
    let expected = content(&local);
    assert!(content(&file) == expected);
    drop(file);
    assert!(fs::read(pool.mount().at("random")).unwrap() == expected);
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn a_part_of_an_old_file_can_be_overwritten_and_the_rest_stays() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let mut bytes = noise(1, 4_000_000);
    fs::write(mount.at("file"), &bytes).unwrap();
    open_both(&mount.at("file")).write_all_at(b"changed", 2_000_001).unwrap();
    bytes[2_000_001..2_000_008].copy_from_slice(b"changed");
    assert!(fs::read(mount.at("file")).unwrap() == bytes);
    assert!(fs::read(pool.mount().at("file")).unwrap() == bytes);
}

#[test]
fn a_closed_file_can_be_truncated_and_extended_by_its_name() {
    let pool = TestPool::start(2);
    let (mount, other) = (pool.mount(), pool.mount());
    fs::write(mount.at("file"), "0123456789").unwrap();
    shell("truncate -s 4 file", &mount.path);
    assert_eq!(fs::read(other.at("file")).unwrap(), b"0123");
    shell("truncate -s 6 file", &mount.path);
    assert_eq!(fs::read(other.at("file")).unwrap(), b"0123\0\0");
}

#[test]
fn create_respects_mode_umask_and_exclusiveness() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    shell("umask 027; touch made; umask 0; mkdir -m 1777 shared", &mount.path);
    assert_eq!(fs::metadata(mount.at("made")).unwrap().mode() & 0o7777, 0o640);
    assert_eq!(fs::metadata(mount.at("shared")).unwrap().mode() & 0o7777, 0o1777);
    assert_eq!(errno(File::create_new(mount.at("made"))), libc::EEXIST);
    assert_eq!(
        File::options().append(true).mode(0o600).create(true).open(mount.at("made")).map(drop).ok(),
        Some(())
    );
}

#[test]
fn new_entries_of_a_directory_with_the_group_bit_take_its_group() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    shell("mkdir team; chown 0:1234 team; chmod 2775 team; touch team/file; mkdir team/sub", &mount.path);
    assert_eq!(fs::metadata(mount.at("team/file")).unwrap().gid(), 1234);
    let sub = fs::metadata(mount.at("team/sub")).unwrap();
    assert_eq!((sub.gid(), sub.mode() & 0o2000), (1234, 0o2000));
}

#[test]
fn mode_owner_and_times_can_be_set_and_stay() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    fs::write(mount.at("file"), "x").unwrap();
    fs::set_permissions(mount.at("file"), fs::Permissions::from_mode(0o601)).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    File::open(mount.at("file")).unwrap().set_modified(then).unwrap();
    shell("chown 12:34 file", &mount.path);
    for seen in [&mount, &pool.mount()] {
        let attr = fs::metadata(seen.at("file")).unwrap();
        assert_eq!((attr.mode() & 0o7777, attr.uid(), attr.gid()), (0o601, 12, 34));
        assert_eq!(attr.modified().unwrap(), then);
    }
}

#[test]
fn a_time_set_before_close_survives_the_close() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_234_567_890);
    let mut file = File::create(mount.at("file")).unwrap();
    file.write_all(&noise(1, 100_000)).unwrap();
    file.set_modified(then).unwrap();
    drop(file);
    for seen in [&mount, &pool.mount()] {
        assert_eq!(fs::metadata(seen.at("file")).unwrap().modified().unwrap(), then);
    }
}

#[test]
fn modification_times_of_files_and_directories_are_true_and_rise() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    let begin = SystemTime::now() - Duration::from_millis(20);
    let mut last = begin;
    for round in 0..3 {
        fs::write(mount.at("file"), format!("{round}")).unwrap();
        let now = fs::metadata(mount.at("file")).unwrap().modified().unwrap();
        assert!(now > last && now <= SystemTime::now() + Duration::from_millis(20));
        assert_eq!(fs::metadata(pool.mount().at("file")).unwrap().modified().unwrap(), now);
        last = now;
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = fs::metadata(&mount.path).unwrap().modified().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    fs::rename(mount.at("file"), mount.at("other")).unwrap();
    assert!(fs::metadata(&mount.path).unwrap().modified().unwrap() > before);
}

#[test]
fn links_hard_and_symbolic_lead_to_the_file() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    fs::write(mount.at("file"), "content").unwrap();
    fs::hard_link(mount.at("file"), mount.at("hard")).unwrap();
    symlink("file", mount.at("soft")).unwrap();
    assert_eq!(fs::read_link(mount.at("soft")).unwrap().to_str(), Some("file"));
    let (file, hard) = (fs::metadata(mount.at("file")).unwrap(), fs::metadata(mount.at("hard")).unwrap());
    assert_eq!((file.ino(), file.nlink()), (hard.ino(), 2));
    fs::remove_file(mount.at("file")).unwrap();
    assert_eq!(fs::read_to_string(mount.at("hard")).unwrap(), "content");
    assert_eq!(errno(fs::read(mount.at("soft"))), libc::ENOENT);
}

#[test]
fn renames_move_whole_directories_exchange_and_refuse() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    shell("mkdir -p a/sub; echo one > a/sub/file; echo two > other; mv a b; cat b/sub/file", &mount.path);
    assert!(!mount.at("a").exists());
    let rename = |from: &str, to: &str, flags| {
        let path = |name| mount.at(name);
        rustix::fs::renameat_with(rustix::fs::CWD, path(from), rustix::fs::CWD, path(to), flags)
    };
    assert_eq!(rename("other", "b", rustix::fs::RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename("other", "b", rustix::fs::RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read_to_string(mount.at("b")).unwrap(), "two\n");
    assert_eq!(fs::read_to_string(mount.at("other/sub/file")).unwrap(), "one\n");
    assert_eq!(errno(fs::rename(mount.at("other"), mount.at("other/sub/deep"))), libc::EINVAL);
}

#[test]
fn a_listing_is_complete_and_each_entry_comes_once_while_others_come_and_go() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    let names: BTreeSet<String> = (0..3000).map(|number| format!("entry{number:05}")).collect();
    fs::create_dir(mount.at("many")).unwrap();
    for name in &names {
        File::create(mount.at("many").join(name)).unwrap();
    }
    let mut seen = Vec::new();
    for (at, entry) in fs::read_dir(mount.at("many")).unwrap().enumerate() {
        seen.push(entry.unwrap().file_name().into_string().unwrap());
        if at % 10 == 0 {
            fs::remove_file(mount.at("many").join(&seen[at])).unwrap();
        }
    }
    assert_eq!(seen.len(), names.len());
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), names);
    fs::remove_dir_all(mount.at("many")).unwrap();
    assert!(!mount.at("many").exists());
}

#[test]
fn a_directory_with_entries_stays_and_what_is_none_is_none() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    shell("mkdir d; touch d/f", &mount.path);
    assert_eq!(errno(fs::remove_dir(mount.at("d"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_dir(mount.at("d/f"))), libc::ENOTDIR);
    assert_eq!(errno(fs::remove_file(mount.at("d"))), libc::EISDIR);
    assert_eq!(errno(fs::create_dir(mount.at("d/f/g"))), libc::ENOTDIR);
    assert_eq!(errno(fs::metadata(mount.at("nothing"))), libc::ENOENT);
}

#[test]
fn names_that_cannot_be_stored_are_refused_with_their_errors() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    assert_eq!(errno(File::create(mount.at(&"n".repeat(256)))), libc::ENAMETOOLONG);
    assert_eq!(errno(File::create(mount.path.join(OsStr::from_bytes(b"bad\xff")))), libc::EILSEQ);
    File::create(mount.at(&"n".repeat(255))).unwrap();
    File::create(mount.at("名前 with spaces")).unwrap();
}

#[test]
fn what_is_not_supported_says_so() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    let file = open_both(&mount.at("file"));
    let refused = |script: &str| crate::common::shell(&format!("! {script} 2>&1"), &mount.path);
    assert!(refused("mknod device c 1 3").contains("not permitted"));
    assert!(refused("python3 -c \"import os; os.setxattr('file','user.a',b'1')\"").contains("not supported"));
    // Programs that would have an unnamed file make a named one and remove it.
    let unnamed = "import os; os.open('.', os.O_TMPFILE | os.O_RDWR)";
    assert!(refused(&format!("python3 -c \"{unnamed}\"")).contains("not supported"));
    let temporary = "import tempfile; f = tempfile.TemporaryFile(dir='.'); f.write(b'x' * 9000); f.seek(0); print(len(f.read()))";
    assert_eq!(crate::common::run("python3", &["-c", temporary], &mount.path), "9000\n");
    let collapse = rustix::fs::FallocateFlags::COLLAPSE_RANGE;
    assert_eq!(rustix::fs::fallocate(&file, collapse, 0, 4096), Err(rustix::io::Errno::OPNOTSUPP));
}

#[test]
fn space_can_be_allocated_and_holes_can_be_punched() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    let file = open_both(&mount.at("file"));
    let bytes = noise(1, 3_000_000);
    file.write_all_at(&bytes, 0).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 4_000_000).unwrap();
    let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 1_000_000, 1_500_000).unwrap();
    let mut expected = bytes;
    expected.resize(4_000_000, 0);
    expected[1_000_000..2_500_000].fill(0);
    assert!(content(&file) == expected);
    drop(file);
    assert!(fs::read(pool.mount().at("file")).unwrap() == expected);
}

#[test]
fn locks_do_not_reach_other_mounts() {
    let pool = TestPool::start(1);
    let (one, other) = (pool.mount(), pool.mount());
    let file = open_both(&one.at("file"));
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(shell("flock -n file true && echo got || echo busy", &other.path), "got\n");
}

#[test]
fn locks_hold_between_processes_of_the_mount() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    let file = open_both(&mount.at("file"));
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let taken = shell("flock -n file true && echo got || echo busy", &mount.path);
    assert_eq!(taken, "busy\n");
    assert!(file.as_raw_fd() > 0);
    let posix =
        "import fcntl\nf=open('file','r+')\nfcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB,10,5)\nprint('got')\n";
    assert_eq!(crate::common::run("python3", &["-c", posix], &mount.path), "got\n");
}

#[test]
fn a_read_only_mount_refuses_every_change() {
    let pool = TestPool::start(1);
    fs::write(pool.mount().at("file"), "x").unwrap();
    let mount = pool.mount_with(|config| config.read_only = true);
    assert_eq!(fs::read(mount.at("file")).unwrap(), b"x");
    assert_eq!(File::create(mount.at("file")).unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(errno(fs::remove_file(mount.at("file"))), libc::EROFS);
}

#[test]
fn the_mount_shows_its_name_and_the_space_of_the_pool() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let shown = shell("df -T . | tail -n 1", &mount.path);
    assert!(shown.starts_with("stdchk") && shown.contains("fuse.stdchk"), "{shown}");
    let space = rustix::fs::statvfs(&mount.path).unwrap();
    assert!(space.f_blocks * space.f_frsize > 1 << 30 && space.f_namemax == 255);
}

#[test]
fn a_directory_that_is_removed_or_replaced_while_somebody_works_in_it_is_an_empty_one_without_a_name() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    let local = tempfile::tempdir().unwrap();
    let script = "mkdir gone kept new over; cd gone; rmdir ../gone; sleep 0.3; stat -c '%h %F' . /proc/self/cwd/; ls -a; ls /proc/self/cwd
         touch x; mkdir y; ln -s z z; cd ../over; mv -T ../new ../over; stat -c %h .; ls; touch x; mkdir ../gone; ls ../gone
         stat -c %F ../gone; cd ../kept; stat -c %F .";
    let said = |folder: &std::path::Path| {
        let output =
            std::process::Command::new("sh").arg("-c").arg(script).current_dir(folder).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (text(&output.stdout), text(&output.stderr))
    };
    let plain = said(local.path());
    assert_eq!(said(&mount.at("")), plain);
    assert!(plain.0.starts_with("0 directory"), "{plain:?}");
}

#[test]
fn a_removed_file_outlives_its_folder_while_it_is_open() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    fs::create_dir_all(mount.at("app/scratch")).unwrap();
    let file = open_both(&mount.at("app/scratch/file"));
    fs::remove_file(mount.at("app/scratch/file")).unwrap();
    fs::remove_dir(mount.at("app/scratch")).unwrap();
    file.write_all_at(b"still here", 100_000).unwrap();
    file.sync_all().unwrap();
    assert!(content(&file).ends_with(b"still here"));
}
