//! Real programs under the library: the tree that they leave is the one that they leave without it, and a restore to
//! the start gives the tree from before. Needs coreutils, tar, sqlite3, git, gcc, Open MPI, an awk,
//! python3 and the project's own Python environment (`scripts/setup test`).

use std::path::Path;

use crate::support::{Protected, plain, succeed, tree};
use stdchk_filestate::store::Options;

fn seed(root: &Path) {
    std::fs::create_dir_all(root.join("src/deep")).unwrap();
    std::fs::write(
        root.join("src/lines"),
        (0..2000).map(|i| format!("{}\n", i * 7919 % 1000)).collect::<String>(),
    )
    .unwrap();
    std::fs::write(root.join("src/deep/data"), vec![b'd'; 300_000]).unwrap();
    std::fs::write(root.join("main.c"), "#include \"part.h\"\nint main(void) { return part() - 42; }\n")
        .unwrap();
    std::fs::write(root.join("part.h"), "int part(void);\n").unwrap();
    std::fs::write(root.join("part.c"), "#include \"part.h\"\nint part(void) { return 42; }\n").unwrap();
}

/// Runs the shell script both ways.
fn same_both_ways(script: &str) {
    let (without, with) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    seed(without.path());
    seed(with.path());
    let before = tree(with.path());
    let sh = Path::new("/bin/sh");
    let expected = succeed(plain(without.path(), sh).args(["-ec", script]));
    let protected = Protected::new(with.path(), &Options::default());
    let printed = succeed(protected.command(sh).args(["-ec", script]));
    assert_eq!(printed, expected);
    let after = tree(with.path());
    assert_eq!(after, tree(without.path()));
    assert_ne!(after, before, "the script changes something");
    let end = protected.checkpoint();
    protected.restore(0);
    assert_eq!(tree(with.path()), before);
    assert_eq!(end, 1);
}

#[test]
fn coreutils() {
    same_both_ways(
        "cp -r src copy; mv copy/lines copy/moved; ln copy/moved hard; ln -s src soft; sort -n -o src/lines src/lines
         dd if=/dev/zero of=src/deep/data bs=1000 seek=50 count=20 conv=notrunc 2>/dev/null; truncate -s 1234 main.c
         split -l 100 src/lines part.; cat part.a* | tee whole > /dev/null; rm part.a*; install -m 600 whole installed
         mkdir -p x/y/z; rmdir x/y/z; rm -r copy; touch new; chmod 640 part.c; cut -c1 whole | uniq -c >> part.h
         head -c 10 src/deep/data >> soft/lines; sed -i s/0/X/ whole; cp --sparse=always src/deep/data sparse",
    );
}

#[test]
fn tar_and_gzip() {
    same_both_ways(
        "tar --sort=name --mtime=@0 --owner=0 --group=0 -cf all.tar src main.c; rm -r src; tar xf all.tar; gzip -n all.tar
         gzip -dk all.tar.gz; cmp all.tar all.tar",
    );
}

#[test]
fn sqlite_in_both_journal_modes() {
    same_both_ways(
        "for mode in delete wal; do sqlite3 $mode.db \"
           pragma journal_mode=$mode; create table t(a integer primary key, b text);
           with recursive n(i) as (select 1 union all select i+1 from n where i<3000) insert into t select i, 'row '||i from n;
           update t set b = b || '!' where a % 3 = 0; delete from t where a % 5 = 0; begin; delete from t; rollback;
           vacuum; pragma integrity_check; select count(*), sum(a) from t\"
           sqlite3 $mode.db .dump > $mode.dump; rm $mode.db; done",
    );
}

#[test]
fn git() {
    same_both_ways(
        "export GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z GIT_CONFIG_NOSYSTEM=1
         git init -q -b main .; git config user.name n; git config user.email e@x; git add main.c part.c src
         git commit -qm one; git checkout -qb side; echo more >> part.c; git commit -qam two; git checkout -q main
         git merge -q side; git gc -q; git fsck 2>/dev/null; git rev-parse HEAD; git ls-tree -r HEAD > tree.txt; rm -rf .git",
    );
}

#[test]
fn gcc_builds_and_rebuilds() {
    same_both_ways(
        "gcc -c main.c; gcc -c part.c; gcc -o program main.o part.o; ./program; ar Drc libpart.a part.o
         gcc -o again main.c -L. -lpart; ./again; rm *.o",
    );
}

#[test]
fn python_rewrites_files() {
    same_both_ways(
        "python3 -c \"
import os, mmap, shutil, tempfile
with open('src/lines', 'r+b') as f:
    f.seek(100); f.write(b'PATCHED'); f.truncate(5000)
with open('out.txt', 'w') as f:
    for i in range(1000): print(i, file=f)
os.replace('out.txt', 'main.c')
with open('src/deep/data', 'r+b') as f, mmap.mmap(f.fileno(), 0) as m:
    m[1000:1010] = b'0123456789'
with tempfile.NamedTemporaryFile(dir='.', delete=False) as f: f.write(b'x')
os.rename(f.name, 'named')
shutil.copytree('src', 'copied'); shutil.rmtree('src')
import subprocess
subprocess.run(['sh', '-c', 'echo child >> named'], check=True)
subprocess.run(['sh', '-c', 'echo bare >> named'], check=True, env={})
os.environ.clear()
os.system('echo system >> part.h'); os.popen('echo popen >> part.c').close()
\"",
    );
}

#[test]
fn an_mpi_program_whose_ranks_write_into_one_file() {
    // Where Open MPI keeps its own files is no part of the tree; as root it must be told that this is meant.
    let beside = tempfile::tempdir().unwrap();
    same_both_ways(&format!(
        "export TMPDIR={} OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm=isolated
         export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl=self,vader
         mpirun -n 4 sh -c 'yes rank$OMPI_COMM_WORLD_RANK | head -c 30000 |
             dd of=src/deep/data bs=10000 seek=$((OMPI_COMM_WORLD_RANK * 5)) conv=notrunc status=none
             echo $OMPI_COMM_WORLD_SIZE > rank.$OMPI_COMM_WORLD_RANK'",
        beside.path().display()
    ));
}

#[test]
fn h5py_rewrites_part_of_a_data_set() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    assert!(python.is_file(), "{} is needed: `scripts/setup test`", python.display());
    same_both_ways(&format!(
        "{} -c \"
import h5py, numpy
with h5py.File('data.h5', 'w', libver='latest') as f:
    f.create_dataset('field', data=numpy.arange(100000.0), chunks=(5000,))
for step in range(3):
    with h5py.File('data.h5', 'r+') as f:
        f['field'][step * 7000:step * 7000 + 9000] = -step
        f['field'].attrs['step'] = step
        f.create_dataset('step%d' % step, data=numpy.full(1000, step), compression='gzip')
        if step: del f['step%d' % (step - 1)]
with h5py.File('data.h5', 'r') as f: print(sorted(f), f['field'][:].sum(), dict(f['field'].attrs))
\"",
        python.display()
    ));
}

#[test]
fn awk_writes_several_files() {
    same_both_ways(
        "awk '{ print $1 > (\"mod\" ($1 % 5)); printf \"%d \", $1 >> \"all\" }' src/lines; awk '{ s += $1 } END { print s }' all",
    );
}

#[test]
fn the_python_wrapper_checkpoints_and_restores_and_is_harmless_without_the_library() {
    let root = tempfile::tempdir().unwrap();
    let script = format!(
        "import sys; sys.path.insert(0, '{}/../../python/stdchk')\nimport _files as s\n\
         f = open('data', 'w+b', buffering=0); f.write(b'one')\nhere = s.checkpoint()\nf.write(b'two')\n\
         open('other', 'w').close()\ns.restore(here)\nimport os\n\
         print(s.active(), f.tell(), os.path.getsize('data'), os.path.exists('other'))\n",
        env!("CARGO_MANIFEST_DIR")
    );
    let python = Path::new("python3");
    let alone = succeed(plain(root.path(), python).env("PYTHONDONTWRITEBYTECODE", "1").args(["-c", &script]));
    assert_eq!(alone, "False 6 6 True\n");
    std::fs::remove_file(root.path().join("other")).unwrap();
    let protected = Protected::new(root.path(), &Options::default());
    let watched =
        succeed(protected.command(python).env("PYTHONDONTWRITEBYTECODE", "1").args(["-c", &script]));
    assert_eq!(watched, "True 3 3 False\n");
}
