//! What `docs/SEMANTICS.md` promises about sessions, visibility and crashes; every example there is a test here.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::common::{TestPool, noise, open_both, start_python, wait_until};
use stdchk_model::message::manager::VersionState;

#[test]
fn a_file_that_is_closed_is_one_closed_version_and_reads_back() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let bytes = noise(1, 5_000_000);
    fs::create_dir(mount.at("app")).unwrap();
    fs::write(mount.at("app/a.N0.T1"), &bytes).unwrap();
    assert_eq!(fs::read(mount.at("app/a.N0.T1")).unwrap(), bytes);
    wait_until("the version is closed", || {
        let versions = pool.versions("app/a.N0.T1");
        versions.len() == 1 && versions[0].state == VersionState::Closed
    });
    assert_eq!(pool.versions("app/a.N0.T1")[0].size, bytes.len() as u64);
    mount.unmount();
    assert_eq!(fs::read(pool.mount().at("app/a.N0.T1")).unwrap(), bytes);
}

#[test]
fn writing_a_name_again_makes_a_new_version_and_keeps_the_old_one() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    for round in 0..3 {
        fs::write(mount.at("file"), noise(round, 100_000)).unwrap();
    }
    wait_until("three versions are closed", || {
        let versions = pool.versions("file");
        versions.len() == 3 && versions.iter().all(|version| version.state == VersionState::Closed)
    });
}

#[test]
fn a_write_is_seen_at_once_by_every_process_of_the_mount() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let mut writer = open_both(&mount.at("shared"));
    writer.write_all(b"first").unwrap();
    assert_eq!(crate::common::shell("cat shared", &mount.path), "first");
    crate::common::shell("printf SECOND >> shared", &mount.path);
    assert_eq!(fs::metadata(mount.at("shared")).unwrap().len(), 11);
    let mut all = String::new();
    writer.seek(SeekFrom::Start(0)).unwrap();
    writer.read_to_string(&mut all).unwrap();
    assert_eq!(all, "firstSECOND");
}

#[test]
fn two_processes_write_their_halves_of_one_file() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let half = "import os,sys\nfd=os.open('n1',os.O_CREAT|os.O_RDWR)\nrank=int(sys.argv[1])\n\
        for i in range(64): os.pwrite(fd,bytes([rank+1])*65536,(2*i+rank)*65536)\nos.close(fd)\n";
    fs::write(mount.at("half.py"), half).unwrap();
    crate::common::shell(
        "python3 half.py 0 & first=$!; python3 half.py 1 & second=$!; wait $first; wait $second",
        &mount.path,
    );
    let bytes = fs::read(mount.at("n1")).unwrap();
    assert_eq!(bytes.len(), 128 * 65536);
    assert!(
        bytes.chunks(65536).enumerate().all(|(at, part)| part.iter().all(|b| usize::from(*b) == at % 2 + 1))
    );
}

#[test]
fn another_mount_sees_the_old_version_until_the_new_one_is_closed() {
    let pool = TestPool::start(2);
    let (one, other) = (pool.mount(), pool.mount());
    fs::write(one.at("file"), "old").unwrap();
    assert_eq!(fs::read_to_string(other.at("file")).unwrap(), "old");
    let mut writer = File::create(one.at("file")).unwrap();
    writer.write_all(b"newer").unwrap();
    assert_eq!(fs::read_to_string(other.at("file")).unwrap(), "old");
    drop(writer);
    assert_eq!(fs::read_to_string(other.at("file")).unwrap(), "newer");
}

#[test]
fn a_reader_keeps_the_version_that_it_opened() {
    let pool = TestPool::start(2);
    let (one, other) = (pool.mount(), pool.mount());
    let (old, new) = (noise(1, 3_000_000), noise(2, 2_000_000));
    fs::write(one.at("file"), &old).unwrap();
    let reader = File::open(other.at("file")).unwrap();
    fs::write(one.at("file"), &new).unwrap();
    let mut seen = vec![0; old.len()];
    reader.read_exact_at(&mut seen, 0).unwrap();
    assert!(seen == old);
    assert!(fs::read(other.at("file")).unwrap() == new);
    assert_eq!(reader.metadata().unwrap().len(), old.len() as u64);
}

#[test]
fn stat_on_another_mount_follows_within_the_time_to_live() {
    let pool = TestPool::start(2);
    let (one, other) = (pool.mount(), pool.mount());
    fs::write(one.at("file"), "12345").unwrap();
    assert_eq!(fs::metadata(other.at("file")).unwrap().len(), 5);
    fs::write(one.at("file"), "123456789").unwrap();
    std::thread::sleep(2 * crate::common::TTL);
    assert_eq!(fs::metadata(other.at("file")).unwrap().len(), 9);
}

#[test]
fn fsync_makes_a_version_that_counts_as_open_until_the_file_is_closed() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let mut file = File::create(mount.at("file")).unwrap();
    file.write_all(&noise(3, 300_000)).unwrap();
    file.sync_all().unwrap();
    let versions = pool.versions("file");
    assert_eq!((versions.len(), versions[0].state), (1, VersionState::Open));
    file.write_all(b"more").unwrap();
    drop(file);
    wait_until("the one version is closed", || {
        let versions = pool.versions("file");
        versions.len() == 1 && versions[0].state == VersionState::Closed && versions[0].size == 300_004
    });
}

#[test]
fn a_rename_onto_an_existing_name_replaces_it_whole_and_keeps_its_versions() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    fs::write(mount.at("state"), "old").unwrap();
    fs::write(mount.at("state.tmp"), "new state").unwrap();
    fs::rename(mount.at("state.tmp"), mount.at("state")).unwrap();
    assert_eq!(fs::read_to_string(mount.at("state")).unwrap(), "new state");
    assert!(!mount.at("state.tmp").exists());
    assert_eq!(pool.versions("state").len(), 2);
}

#[test]
fn a_rename_commits_what_was_written_even_if_close_did_not_wait_for_it() {
    let pool = TestPool::start(2);
    let (mount, other) = (pool.mount(), pool.mount());
    fs::create_dir(mount.at("app")).unwrap();
    pool.set_policy("app", "close", "stored");
    let bytes = noise(4, 8_000_000);
    fs::write(mount.at("app/tmp"), &bytes).unwrap();
    fs::rename(mount.at("app/tmp"), mount.at("app/final")).unwrap();
    assert!(fs::read(other.at("app/final")).unwrap() == bytes);
}

#[test]
fn a_removed_file_stays_readable_for_those_who_have_it_open() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let bytes = noise(5, 4_000_000);
    fs::write(mount.at("file"), &bytes).unwrap();
    let reader = File::open(mount.at("file")).unwrap();
    fs::remove_file(mount.at("file")).unwrap();
    std::thread::sleep(2 * crate::common::TTL);
    let mut seen = vec![0; bytes.len()];
    reader.read_exact_at(&mut seen, 0).unwrap();
    assert!(seen == bytes && !mount.at("file").exists());
    assert_eq!(reader.metadata().unwrap().nlink(), 0);
}

#[test]
fn a_removed_file_can_be_written_and_read_until_it_is_closed() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let file = open_both(&mount.at("scratch"));
    fs::remove_file(mount.at("scratch")).unwrap();
    file.write_all_at(b"scratch", 100_000).unwrap();
    let mut seen = [0; 7];
    file.read_exact_at(&mut seen, 100_000).unwrap();
    assert_eq!(&seen, b"scratch");
}

/// Writes, says so, and then does what `ending` says.
fn writer(ending: &str) -> String {
    format!(
        "import os,sys,signal,threading,time\nf=open('victim','wb',buffering=0)\nf.write(b'x'*3000000)\n\
         print('ready',flush=True)\n{ending}\n"
    )
}

/// The state of the only version that a process leaves which ends in this way with its file open.
fn state_after(ending: &str) -> VersionState {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    let mut child = start_python(&writer(ending), &mount.path);
    drop(child.stdin.take());
    child.wait().unwrap();
    wait_until("the session ends", || {
        pool.versions("victim").first().is_some_and(|version| version.state != VersionState::Open)
    });
    assert_eq!(pool.versions("victim").len(), 1);
    assert_eq!(fs::metadata(mount.at("victim")).unwrap().len(), 3_000_000);
    pool.versions("victim")[0].state
}

#[test]
fn a_process_killed_with_the_file_open_leaves_an_interrupted_version() {
    for signal in ["SIGKILL", "SIGSEGV", "SIGTERM"] {
        let ending = format!("os.kill(os.getpid(),signal.{signal})\ntime.sleep(60)");
        assert_eq!(state_after(&ending), VersionState::Interrupted, "{signal}");
    }
}

#[test]
fn a_process_of_many_threads_killed_with_the_file_open_leaves_an_interrupted_version() {
    let threads = "for _ in range(8): threading.Thread(target=time.sleep,args=(60,),daemon=True).start()\n";
    let ending = format!("{threads}time.sleep(.1)\nos.kill(os.getpid(),signal.SIGKILL)\ntime.sleep(60)");
    assert_eq!(state_after(&ending), VersionState::Interrupted);
}

#[test]
fn a_process_that_exits_without_closing_has_closed_its_file() {
    assert_eq!(state_after("os._exit(0)"), VersionState::Closed);
    let threads = "for _ in range(8): threading.Thread(target=time.sleep,args=(60,),daemon=True).start()\n";
    assert_eq!(state_after(&format!("{threads}time.sleep(.1)\nos._exit(0)")), VersionState::Closed);
}

#[test]
fn a_process_that_fails_without_closing_leaves_an_interrupted_version() {
    assert_eq!(state_after("os._exit(3)"), VersionState::Interrupted);
    // As Open MPI ends its ranks: one thread ends the process while another is at work on the file.
    let thread = "threading.Thread(target=os._exit,args=(195,)).start()\ntime.sleep(60)";
    assert_eq!(state_after(thread), VersionState::Interrupted);
    assert_eq!(state_after("f.close()\nos._exit(3)"), VersionState::Closed);
}

#[test]
fn a_child_that_fails_with_an_inherited_descriptor_does_not_taint_what_its_parent_closes() {
    let child = "pid=os.fork()\nif pid==0: time.sleep({})\nif pid==0: os._exit(3)\n";
    for (seconds, ending) in [(0.0, "os.waitpid(pid,0)\nf.close()"), (0.3, "f.close()\nos.waitpid(pid,0)")] {
        let script = format!("{}{ending}\nos._exit(0)", child.replace("{}", &seconds.to_string()));
        assert_eq!(state_after(&script), VersionState::Closed, "{script}");
    }
}

#[test]
fn a_killed_child_that_only_inherited_the_descriptor_does_not_taint_what_its_parent_closed() {
    let ending = "pid=os.fork()\nif pid==0: time.sleep(60)\nf.close()\n\
        os.kill(pid,signal.SIGKILL)\nos.waitpid(pid,0)\nos._exit(0)";
    assert_eq!(state_after(ending), VersionState::Closed);
}

#[test]
fn a_program_that_starts_another_with_files_open_goes_on() {
    let pool = TestPool::start(1);
    let mount = pool.mount();
    let script = "import subprocess\nf=open('log','w')\nf.write('one')\nf.flush()\n\
        subprocess.run(['true'],check=True)\nsubprocess.run(['true'],check=True,close_fds=False)\n\
        f.write(' two')\nf.close()\nprint(open('log').read())";
    assert_eq!(
        crate::common::run("timeout", &["-s", "KILL", "30", "python3", "-c", script], &mount.path),
        "one two\n"
    );
}

#[test]
fn a_mount_that_is_taken_away_keeps_what_was_written_as_interrupted() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let bytes = noise(6, 2_000_000);
    let mut file = File::create(mount.at("cut")).unwrap();
    file.write_all(&bytes).unwrap();
    file.sync_data().unwrap();
    mount.unmount();
    drop(file);
    let versions = pool.versions("cut");
    assert_eq!((versions.len(), versions[0].state), (1, VersionState::Interrupted));
    assert!(fs::read(pool.mount().at("cut")).unwrap() == bytes);
}
