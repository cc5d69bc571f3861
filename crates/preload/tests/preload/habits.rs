//! What people's jobs do with files, in two halves with a checkpoint between them: after each half the tree is the one that it
//! leaves without the library, and going back gives exactly the tree of the checkpoint: contents, permissions, modification
//! times of files, and which names are one file.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::support::{Protected, Tree, plain, succeed, tree};
use stdchk_filestate::store::Options;

/// A tree with, of each file, its modification time in nanoseconds and the first of its names.
type Exactly = (Tree, BTreeMap<PathBuf, (i64, PathBuf)>);

fn exactly(root: &Path) -> Exactly {
    let tree = tree(root);
    let (mut files, mut first_names) = (BTreeMap::new(), BTreeMap::new());
    for path in tree.keys() {
        let about = root.join(path).symlink_metadata().unwrap();
        if about.is_file() {
            let first = first_names.entry(about.ino()).or_insert_with(|| path.clone()).clone();
            files.insert(path.clone(), (about.mtime() * 1_000_000_000 + about.mtime_nsec(), first));
        }
    }
    (tree, files)
}

fn seed(root: &Path) {
    std::fs::create_dir_all(root.join("runs/1")).unwrap();
    std::fs::write(root.join("log"), (0..500).map(|line| format!("line {line}\n")).collect::<String>())
        .unwrap();
    std::fs::write(root.join("data"), vec![b'd'; 100_000]).unwrap();
    std::fs::write(root.join("runs/1/out"), "out\n").unwrap();
    std::fs::write(root.join("empty"), "").unwrap();
    std::fs::hard_link(root.join("data"), root.join("runs/data")).unwrap();
    std::os::unix::fs::symlink("runs/1", root.join("current")).unwrap();
}

/// Runs the halves of a job both ways, and goes back from its end to its middle and to its start.
fn there_and_back(halves: [&str; 2]) {
    let (without, with) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    seed(without.path());
    seed(with.path());
    let bash = Path::new("/bin/bash");
    let protected = Protected::new(with.path(), &Options::default());
    let mut states = vec![exactly(with.path())];
    for half in halves {
        let expected = succeed(plain(without.path(), bash).args(["-ec", half]));
        assert_eq!(succeed(protected.command(bash).args(["-ec", half])), expected);
        assert_eq!(tree(with.path()), tree(without.path()), "after {half}");
        protected.checkpoint();
        states.push(exactly(with.path()));
        assert_ne!(states.first().unwrap().0, states.last().unwrap().0, "{half} changes something");
    }
    for index in [1, 0] {
        protected.restore(index);
        assert_eq!(exactly(with.path()), states[usize::try_from(index).unwrap()], "back at {index}");
    }
}

fn python(script: &str) -> String {
    format!("python3 - <<'END'\nimport os, mmap, fcntl\n{script}\nEND\n")
}

#[test]
fn files_are_edited_in_place() {
    there_and_back([
        "perl -pi.bak -e 's/1/one/' log; perl -e 'open F, \"+<\", \"data\"; seek F, 5000, 0; print F \"perl\"; truncate F, 60000'
         touch -d 2001-02-03 empty",
        "perl -0pi -e 's/line/LINE/g' log log.bak; sed -i.old -e 5,9d log; truncate -s +1M data; truncate -s 10 runs/data
         fallocate -l 300000 data; fallocate -p -o 4096 -l 8192 data; shred -n 1 -u log.bak; touch -r log runs/1/out",
    ]);
}

#[test]
fn times_are_set_through_descriptors_that_only_read() {
    let script = |at: &str| {
        python(&format!(
            "import ctypes
libc = ctypes.CDLL(None)
times = (ctypes.c_long * 4)({at}, 0, {at}, 0)
for name in ['data', 'log', 'empty', 'runs/1/out']:
    fd = os.open(name, os.O_PATH if name == 'empty' else os.O_RDONLY)
    if name == 'data': os.utime(fd, ns=({at}, {at}))
    if name == 'log': assert libc.syscall({}, fd, None, times, 0) == 0
    if name == 'empty': assert libc.utimensat(fd, b'', times, 0x1000) == 0
    if name == 'runs/1/out': assert libc.futimesat(fd, None, times) == 0
    os.close(fd)
os.rename('log', 'log.{at}'); os.rename('log.{at}', 'log'); os.mkdir('made.{at}')",
            libc::SYS_utimensat
        ))
    };
    there_and_back([&script("5"), &script("7")]);
}

#[test]
fn logs_are_rotated_under_their_writers() {
    let rotate = "exec 5>> log; echo first >&5; cp log log.1; : > log; echo second >&5; gzip -nf log.1
         mv log log.2; echo third >&5; echo fourth >> log; exec 6> new.log; echo a >&6; exec 6>> log; echo b >&6
         exec > said; echo said; cat <<< here >> log; cat >> log <<END
document
END
         set -o noclobber; ! echo x > log 2> /dev/null; echo x >| empty";
    let handlers = python(
        "import logging, logging.handlers as h, gzip
handler = h.RotatingFileHandler('rotated', maxBytes=2000, backupCount=3)
for i in range(200): handler.emit(logging.makeLogRecord({'msg': 'message %d' % i}))
fd = os.open('log', os.O_RDWR | os.O_APPEND)
os.write(fd, b'appended'); os.ftruncate(fd, 20); os.write(fd, b'again')
os.pwritev(fd, [b'positioned'], 0)
plain = os.open('data', os.O_RDWR)
os.pwritev(plain, [b'at the end'], 0, os.RWF_APPEND)
with gzip.GzipFile('log.1.gz', 'ab', mtime=0) as out: out.write(b'more')",
    );
    there_and_back([rotate, &handlers]);
}

#[test]
fn links_are_farmed_and_swapped() {
    there_and_back([
        "cp -al runs copy; echo more >> copy/1/out; mkdir runs/2; echo two > runs/2/out; ln -sfn runs/2 current
         ln -s 2 runs/new; mv -T runs/new runs/latest; ln -f data hard; ln -sf /nowhere dangling; cp -a current/. 3",
        "ln -sfn runs/1 current; echo through >> current/out; ln -sfn 1 runs/latest; rm hard; ln -f log data; echo x >> data
         mv --backup=numbered empty log; cp --backup=existing data log; rm -rf copy; mkdir copy; mv runs/2 copy/two
         mv -T copy/two runs/latest2; find runs -type l -delete; install -b -m 700 log runs/1/out",
    ]);
}

#[test]
fn names_are_any_bytes_and_files_may_be_empty() {
    let names = r"names = [b'new\nline', b'\xff\xfe', b' lead', b'-rf', b'*', b'a' * 255, '\u00e9'.encode(), b'\\012', b'x (deleted)']";
    let make = python(&format!(
        "{names}
for n in names:
    open(n, 'wb').close(); os.mkdir(b'runs/' + n); open(b'runs/' + n + b'/' + n, 'wb').write(n)
with open(b'new\\nline', 'w+b') as f:
    f.truncate(9000); m = mmap.mmap(f.fileno(), 0); m[5000:5003] = b'map'; m.flush()
os.truncate('empty', 0); os.chmod(b'\\xff\\xfe', 0o604); os.utime(b'*', (5, 7))"
    ));
    let change = python(&format!(
        "{names}
for n, m in zip(names, names[1:]):
    os.replace(b'runs/' + n + b'/' + n, b'runs/' + m + b'/' + n)
for n in names[:4]:
    os.unlink(n)
    open(n, 'xb').write(b'again')
for n in names[4:]: os.rename(n, b'runs/1/' + n)
with open(b'runs/1/x (deleted)', 'ab') as f: f.write(b'more')
open('empty', 'w').write('x'); os.unlink('empty'); open('empty', 'w').close()"
    ));
    there_and_back([&make, &change]);
}

#[test]
fn processes_share_files_by_forks_maps_and_locks() {
    let pool = python(
        "import multiprocessing as mp, sqlite3
def piece(n):
    fd = os.open('data', os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX, 100, n * 100)
    os.pwrite(fd, b'%04d' % n, n * 4096)
    with open('log', 'a') as log:
        fcntl.flock(log, fcntl.LOCK_EX); log.write('piece\\n')
    with mmap.mmap(fd, 0) as m: m[n * 4096 + 50] = n
    return n
if __name__ == '__main__':
    with mp.get_context('fork').Pool(3) as pool: print(sorted(pool.map(piece, range(20))))
    db = sqlite3.connect('wal.db'); db.execute('pragma journal_mode=wal'); db.execute('create table t(a)')
    db.commit(); db.close()",
    );
    let wal = "for i in 1 2 3; do sqlite3 -cmd '.timeout 60000' wal.db \"with recursive n(i) as (select 1 union all select i+1 from n where i<500)
           insert into t select i from n\" & done; wait; sqlite3 wal.db 'select count(*), sum(a) from t; pragma wal_checkpoint(truncate)' > sums
         sqlite3 wal.db 'vacuum; pragma journal_mode=delete' > /dev/null; sqlite3 wal.db 'select count(*) from t'; rm wal.db";
    there_and_back([&pool, wal]);
}

#[test]
fn archives_are_updated_and_trees_closed_and_removed() {
    there_and_back([
        "tar --sort=name --mtime=@0 --owner=0 --group=0 -cf all.tar runs; tar --mtime=@0 --owner=0 --group=0 -rf all.tar log; ar Drc lib.a log
         python3 -c \"import zipfile as z
with z.ZipFile('all.zip', 'w') as f: f.writestr(z.ZipInfo('one'), 'one')\"; mkdir -m 700 shut; cp -p log shut; chmod -R a-w shut; mkfifo pipe; rm pipe; touch pipe",
        "python3 -c \"import zipfile as z
with z.ZipFile('all.zip', 'a') as f: f.writestr(z.ZipInfo('two'), 'two' * 10000)\"; tar --delete -f all.tar log; ar Dd lib.a log; ar Dr lib.a data
         chmod -R u+w shut; rm -r shut pipe; mkdir pipe; tar -C pipe -xf all.tar; tar --overwrite -xf all.tar; find . -name out -exec chmod 400 {} +
         cp -r runs again; rm -rf runs; mv again runs; split -b 30000 data part.; cat part.?? > data; rm part.*",
    ]);
}
