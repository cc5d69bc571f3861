//! Names that can't be: through the mount by error number, through commands by exit code and words.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use stdchk_tests::{Pool, outcome};

/// What commands exit with when an argument can't be used.
const USAGE: i32 = 2;

fn refused<T: std::fmt::Debug>(result: io::Result<T>, errno: Errno) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(errno.raw_os_error()));
}

#[test]
fn names_that_can_not_be_are_refused_and_leave_nothing_behind() {
    let pool = Pool::mounted(1);
    let folder = pool.at("app");
    fs::create_dir(&folder).unwrap();

    let (longest, too_long) = ("n".repeat(255), "n".repeat(256));
    fs::write(folder.join(&longest), "x").unwrap();
    assert_eq!(fs::read(folder.join(&longest)).unwrap(), b"x");
    fs::remove_file(folder.join(&longest)).unwrap();
    refused(fs::write(folder.join(&too_long), "x"), Errno::NAMETOOLONG);
    refused(fs::create_dir(folder.join(&too_long)), Errno::NAMETOOLONG);
    refused(fs::metadata(folder.join(&too_long)), Errno::NAMETOOLONG);
    // 200 characters, 400 bytes: the limit counts bytes.
    refused(fs::write(folder.join("ä".repeat(200)), "x"), Errno::NAMETOOLONG);
    let not_text = folder.join(OsStr::from_bytes(b"caf\xe9"));
    refused(fs::write(&not_text, "x"), Errno::ILSEQ);
    refused(fs::create_dir(&not_text), Errno::ILSEQ);
    refused(fs::metadata(&not_text), Errno::NOENT);
    fs::write(folder.join("from"), "x").unwrap();
    refused(fs::rename(folder.join("from"), &not_text), Errno::ILSEQ);
    refused(fs::rename(folder.join("from"), folder.join(&too_long)), Errno::NAMETOOLONG);
    refused(std::os::unix::fs::symlink("from", &not_text), Errno::ILSEQ);
    fs::remove_file(folder.join("from")).unwrap();

    let source = pool.file("x", b"x");
    let deep = "d/".repeat(2500);
    for bad in ["app/../etc/x", "app/./x", "../x", &format!("app/{too_long}"), &format!("app/{deep}x")] {
        let outcome = pool.fails(&["put", &source, bad], USAGE, &[]);
        assert!(outcome.stderr.len() < 6000, "{outcome:?}");
        pool.fails(&["get", bad, "-o", "-"], USAGE, &[]);
        pool.fails(&["rm", bad], USAGE, &[]);
        pool.fails(&["mv", bad, "app/y"], USAGE, &[]);
        pool.fails(&["policy", "set", bad, "redundancy=replicate:1"], USAGE, &[]);
    }
    let mut command = pool.command(&["put", &source]);
    command.arg(OsStr::from_bytes(b"app/caf\xe9"));
    assert_eq!(outcome(command).code, USAGE);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn a_tree_deeper_than_a_path_can_say_does_no_harm() {
    let pool = Pool::mounted(1);
    let (mut path, mut made) = (pool.mount_point(), 0);
    // The kernel takes paths of up to 4095 bytes.
    while path.as_os_str().len() + 201 < 4096 {
        path.push("d".repeat(200));
        fs::create_dir(&path).unwrap();
        made += 1;
    }
    refused(fs::create_dir(path.join("d".repeat(200))), Errno::NAMETOOLONG);
    assert!(made > 15);
    fs::write(pool.at("after"), "works").unwrap();
    assert_eq!(pool.get("after"), b"works");
    let top = pool.mount_point().join("d".repeat(200));
    fs::remove_dir_all(&top).unwrap();
    assert!(!top.exists());
}
