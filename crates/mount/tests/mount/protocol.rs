//! One open file by another write protocol than its folder's, as `docs/SEMANTICS.md` says; its examples are tests here.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::Command;

use crate::common::{TestMount, TestPool, noise, wait_until};
use rustix::fs::{XattrFlags, fsetxattr, setxattr};
use rustix::io::Errno;
use stdchk_model::message::manager::VersionState;
use stdchk_mount::SpoolConfig;
use tempfile::TempDir;

const PROTOCOL: &str = "user.stdchk.protocol";

fn mount_with_spool(pool: &TestPool) -> (TestMount, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("spool");
    let mount = pool.mount_with(|config| {
        config.spool = Some(SpoolConfig { directory, bytes_max: Some(1 << 30), required: true });
    });
    (mount, folder)
}

fn choose(file: &File, protocol: &str) -> Result<(), Errno> {
    fsetxattr(file, PROTOCOL, protocol.as_bytes(), XattrFlags::empty())
}

fn wait_for_version(pool: &TestPool, path: &str, size: u64) {
    wait_until("the file is one closed version", || {
        let versions = pool.versions(path);
        versions.len() == 1 && versions[0].state == VersionState::Closed && versions[0].size == size
    });
}

#[test]
fn a_file_that_asks_for_complete_local_writes_is_synced_to_the_spool_and_pushed_once_it_is_closed() {
    let pool = TestPool::start(1);
    let (mount, _spool) = mount_with_spool(&pool);
    let bytes = noise(1, 3 << 20);
    // The file is made, emptied and chosen for, in this order, as by a program that opens it with O_TRUNC.
    fs::write(mount.at("emptied"), "").unwrap();
    for path in ["new", "emptied"] {
        let mut file = File::create(mount.at(path)).unwrap();
        choose(&file, "clw").unwrap();
        file.write_all(&bytes).unwrap();
        file.sync_all().unwrap();
        assert_eq!(pool.versions(path).iter().filter(|version| version.size > 0).count(), 0, "{path}");
        drop(file);
        assert!(fs::read(mount.at(path)).unwrap() == bytes);
        wait_until("the file is pushed", || {
            pool.versions(path).last().is_some_and(|version| version.size == bytes.len() as u64)
        });
    }
    assert!(fs::read(pool.mount().at("emptied")).unwrap() == bytes);
}

#[test]
fn a_file_may_go_by_the_sliding_window_where_its_folder_goes_by_the_spool() {
    let pool = TestPool::start(1);
    let (mount, _spool) = mount_with_spool(&pool);
    fs::create_dir(mount.at("app")).unwrap();
    pool.set_policy("app", "protocol", "clw");
    let mut file = File::create(mount.at("app/file")).unwrap();
    choose(&file, "sw").unwrap();
    file.write_all(b"through memory").unwrap();
    file.sync_all().unwrap();
    assert_eq!(pool.versions("app/file").len(), 1, "a sync commits");
    drop(file);
    wait_for_version(&pool, "app/file", 14);
}

#[test]
fn an_incremental_write_can_be_asked_for_and_an_update_keeps_what_it_does_not_touch() {
    let pool = TestPool::start(1);
    let (mount, _spool) = mount_with_spool(&pool);
    let mut bytes = noise(1, 2 << 20);
    fs::write(mount.at("file"), &bytes).unwrap();
    for (round, protocol) in ["iw", "clw", "sw"].into_iter().enumerate() {
        let file = crate::common::open_both(&mount.at("file"));
        choose(&file, protocol).unwrap();
        let (place, new) = (100_000 * (round + 1), noise(9, 50_000));
        std::os::unix::fs::FileExt::write_all_at(&file, &new, place as u64).unwrap();
        bytes[place..place + new.len()].copy_from_slice(&new);
        drop(file);
        assert!(fs::read(mount.at("file")).unwrap() == bytes, "{protocol}");
    }
    wait_until("all are pushed", || pool.versions("file").len() == 4);
    assert!(fs::read(pool.mount().at("file")).unwrap() == bytes);
}

#[test]
fn it_is_refused_once_bytes_were_written_and_where_it_cannot_be() {
    let pool = TestPool::start(1);
    let (mount, _spool) = mount_with_spool(&pool);
    let mut file = File::create(mount.at("file")).unwrap();
    assert_eq!(choose(&file, "nfs"), Err(Errno::INVAL));
    assert_eq!(fsetxattr(&file, "user.other", b"clw", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    choose(&file, "iw").unwrap();
    choose(&file, "clw").unwrap();
    // The kernel still has this byte to itself.
    file.write_all(b"x").unwrap();
    assert_eq!(choose(&file, "sw"), Err(Errno::BUSY));
    choose(&file, "clw").unwrap();
    drop(file);
    wait_for_version(&pool, "file", 1);
    let mut reader = File::open(mount.at("file")).unwrap();
    assert_eq!(choose(&reader, "clw"), Err(Errno::BADF));
    assert_eq!(setxattr(mount.at("file"), PROTOCOL, b"clw", XattrFlags::empty()), Err(Errno::BADF));
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "x");
    let without = pool.mount();
    let file = File::create(without.at("other")).unwrap();
    assert_eq!(choose(&file, "clw"), Err(Errno::OPNOTSUPP));
    assert_eq!(choose(&file, "sw"), Ok(()));
}

#[test]
fn a_shell_asks_for_the_file_that_it_redirects_to() {
    let pool = TestPool::start(1);
    let (mount, _spool) = mount_with_spool(&pool);
    let script = "exec 3> restart.N0.T1
        python3 -c 'import os; os.setxattr(\"restart.N0.T1\", \"user.stdchk.protocol\", b\"clw\")'
        head -c 2000000 /dev/zero >&3
        python3 -c 'import os; os.fsync(3)'
        exec 3>&-";
    crate::common::shell(script, &mount.path);
    wait_for_version(&pool, "restart.N0.T1", 2_000_000);
}

#[test]
fn a_child_that_ends_with_an_empty_file_that_it_inherited_leaves_the_choice_and_the_close_to_its_parent() {
    let pool = TestPool::start(1);
    let (mount, _spool) = mount_with_spool(&pool);
    let script = "exec 3> file 4> empty
        /bin/true
        /bin/false || true
        python3 -c 'import os; os.setxattr(\"file\", \"user.stdchk.protocol\", b\"clw\")'
        head -c 2000000 /dev/zero >&3
        exec 3>&- 4>&-";
    crate::common::shell(script, &mount.path);
    wait_for_version(&pool, "file", 2_000_000);
    wait_for_version(&pool, "empty", 0);
    // A parent that is killed has finished nothing.
    let mut killed = Command::new("bash");
    killed.args(["-c", "exec 3> left; /bin/true; kill -9 $$"]).current_dir(&mount.path);
    assert!(!killed.status().unwrap().success());
    wait_until("what it left is a version", || {
        pool.versions("left").iter().map(|version| version.state).eq([VersionState::Interrupted])
    });
}

#[test]
fn programs_that_copy_attributes_find_none_and_copy_the_files() {
    let pool = TestPool::start(1);
    let (mount, _spool) = mount_with_spool(&pool);
    let script = "mkdir from && head -c 100000 /dev/urandom > from/file
        cp -a from copied && cmp from/file copied/file
        tar --xattrs -cf archive.tar from && mkdir unpacked && tar --xattrs -xf archive.tar -C unpacked
        cmp from/file unpacked/from/file";
    crate::common::shell(script, &mount.path);
    let names = python_says(&mount, "import os; print(os.listxattr('from/file'))");
    assert_eq!(names, "Operation not supported");
    let value = python_says(&mount, "import os; print(os.getxattr('from/file', 'user.stdchk.protocol'))");
    assert_eq!(value, "Operation not supported");
}

/// What the system says to a line of Python that fails.
fn python_says(mount: &TestMount, line: &str) -> String {
    let script = format!("try:\n {line}\nexcept OSError as error:\n print(error.strerror)\n");
    crate::common::run("python3", &["-c", &script], &mount.path).trim().to_owned()
}
