//! Real programs on a real mount: what users run, unchanged.

use std::fs;
use std::path::Path;

use crate::common::{TestPool, noise, python, shell};

#[test]
fn h5py_writes_updates_and_reads_a_file_that_is_written_elsewhere_in_the_process_too() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let script = "
import h5py, numpy as np
a = np.random.default_rng(1).random((300, 4000))
with h5py.File('run.h5', 'w') as f:
    f.create_dataset('x', data=a, chunks=(10, 4000), compression='gzip'); f['t'] = 1
with h5py.File('run.h5', 'a') as f:
    f['x'][5] = 7; del f['t']; f['u'] = 2
with h5py.File('run.h5', 'r') as f:
    assert (f['x'][5] == 7).all() and (f['x'][6:] == a[6:]).all() and f['u'][()] == 2
with h5py.File('live.h5', 'w', libver='latest') as w:
    d = w.create_dataset('d', (0,), maxshape=(None,), chunks=(1024,))
    w.swmr_mode = True
    for n in range(1, 6):
        d.resize((n * 1000,)); d[-1000:] = n; d.flush()
        r = h5py.File('live.h5', 'r', libver='latest', swmr=True)
        assert r['d'].shape == (n * 1000,) and r['d'][-1] == n
        r.close()
print('ok')";
    assert_eq!(python(script, &mount.path), "ok\n");
    let other = "import h5py; f = h5py.File('run.h5'); assert (f['x'][5] == 7).all(); print('ok')";
    assert_eq!(python(other, &pool.mount().path), "ok\n");
}

#[test]
fn netcdf_files_of_both_kinds_are_written_appended_and_read() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let script = "
import netCDF4, numpy as np
for kind in ('NETCDF4', 'NETCDF3_64BIT_OFFSET', 'NETCDF3_64BIT_DATA'):
    with netCDF4.Dataset(kind + '.nc', 'w', format=kind) as d:
        d.createDimension('t', None); d.createDimension('x', 5000)
        d.createVariable('v', 'f8', ('t', 'x'))
        for n in range(4): d['v'][n] = np.arange(5000) + n; d.sync()
    with netCDF4.Dataset(kind + '.nc', 'a') as d: d['v'][4] = 9
    with netCDF4.Dataset(kind + '.nc') as d:
        assert d['v'].shape == (5, 5000) and (d['v'][3] == np.arange(5000) + 3).all() and (d['v'][4] == 9).all()
print('ok')";
    assert_eq!(python(script, &mount.path), "ok\n");
}

#[test]
fn copies_and_archives_come_back_equal() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let source = tempfile::tempdir().unwrap();
    fs::create_dir_all(source.path().join("tree/deep/er")).unwrap();
    fs::write(source.path().join("tree/deep/big"), noise(1, 6_000_000)).unwrap();
    let prepare = "cd tree; touch -d 2001-02-03T04:05:06.789 old; chmod 640 old; ln -s deep/big link; \
        for i in $(seq 200); do echo $i > deep/er/$i; done; truncate -s 3M sparse; mkdir empty";
    shell(prepare, source.path());
    let script = format!(
        "cp -a {0}/tree . && diff -r {0}/tree tree && tar cf a.tar tree && mkdir x && tar xf a.tar -C x && \
         diff -r {0}/tree x/tree && stat -c '%n %a %Y %F' tree/old x/tree/old tree/link",
        source.path().display()
    );
    let shown = shell(&script, &mount.path);
    assert_eq!(shown.matches("640 981173106").count(), 2, "{shown}");
    let compare = format!("diff -r {}/tree tree", source.path().display());
    shell(&compare, &pool.mount().path);
}

#[test]
fn dd_writes_blocks_of_any_size_with_and_without_syncing() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let script = "dd if=/dev/urandom of=one bs=1M count=20 conv=fsync status=none; \
        dd if=one of=two bs=4k status=none; dd if=two of=three bs=777 status=none; \
        dd if=one of=four bs=1M oflag=direct status=none; cmp one two; cmp one three; cmp one four; \
        dd if=one of=two bs=4k seek=100 skip=5 count=10 conv=notrunc status=none; ! cmp -s one two; stat -c %s two";
    assert_eq!(shell(script, &mount.path), "20971520\n");
}

#[test]
fn git_commits_clones_and_checks_a_repository() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let script = "git init -q origin; cd origin; git config user.email a@b; git config user.name n; \
        for i in $(seq 50); do echo $i > file$i; done; git add .; git commit -qm one; \
        for i in $(seq 50); do echo more >> file$i; git commit -qam step$i; done; cd ..; \
        git clone -q --no-local origin copy; cd copy; git fsck --strict 2>&1; git gc -q; git status --porcelain; \
        git log --oneline | wc -l";
    assert!(shell(script, &mount.path).ends_with("51\n"));
}

#[test]
fn sqlite_keeps_its_database_with_either_journal() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    for journal in ["delete", "wal"] {
        let script = format!(
            "sqlite3 {journal}.db 'pragma journal_mode={journal}; create table t(a integer primary key, b blob);\
             begin; with recursive c(x) as (select 1 union all select x+1 from c where x<2000) \
             insert into t select x, randomblob(500) from c; commit; update t set b=zeroblob(700) where a%3=0; \
             delete from t where a%5=0; pragma integrity_check; select count(*) from t;'; \
             sqlite3 {journal}.db 'vacuum; pragma integrity_check;'"
        );
        assert_eq!(shell(&script, &mount.path), format!("{journal}\nok\n1600\nok\n"));
    }
}

#[test]
fn mapped_files_read_privately_and_shared_and_are_written() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let bytes = noise(1, 5_000_001);
    fs::write(mount.at("data"), &bytes).unwrap();
    let script = "
import mmap, hashlib, os
for seen in ('data', os.environ.get('OTHER', 'data')):
    f = open(seen, 'rb')
    for flags in (mmap.MAP_PRIVATE, mmap.MAP_SHARED):
        m = mmap.mmap(f.fileno(), 0, flags=flags, prot=mmap.PROT_READ)
        assert hashlib.sha1(m).hexdigest() == hashlib.sha1(open('data', 'rb').read()).hexdigest()
f = open('data', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[1000000:1000007] = b'written'; m.flush(); m.close(); f.close()
print(open('data', 'rb').read()[1000000:1000007].decode())";
    assert_eq!(crate::common::run("python3", &["-c", script], &mount.path), "written\n");
    assert_eq!(&fs::read(pool.mount().at("data")).unwrap()[1_000_000..1_000_007], b"written");
}

#[test]
fn safetensors_and_numpy_write_beside_and_rename_then_map() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let script = "
import os, numpy as np, safetensors.numpy
a = {'w': np.random.default_rng(1).random((500, 1000)), 'b': np.arange(7)}
for more in (0, 1):
    safetensors.numpy.save_file({**a, 'w': a['w'] + more}, 'model.safetensors', metadata={'step': str(more)})
np.save('a.npy', a['w'])
assert sorted(os.listdir('.')) == ['a.npy', 'model.safetensors']
print('ok')";
    assert_eq!(python(script, &mount.path), "ok\n");
    let read = "
import numpy as np, safetensors
w = np.random.default_rng(1).random((500, 1000))
with safetensors.safe_open('model.safetensors', framework='numpy') as f:
    assert f.metadata() == {'step': '1'} and (f.get_tensor('b') == np.arange(7)).all()
    assert (f.get_slice('w')[10:20, 5:9] == w[10:20, 5:9] + 1).all() and (f.get_tensor('w') == w + 1).all()
assert (np.load('a.npy', mmap_mode='r') == w).all()
print('ok')";
    assert_eq!(python(read, &mount.path), "ok\n");
    assert_eq!(python(read, &pool.mount().path), "ok\n");
}

#[test]
fn tensorstore_writes_changes_and_reads_arrays_of_each_of_its_formats() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let script = "
import os, numpy as np, tensorstore as ts
data = np.random.default_rng(2).random((700, 900))
for driver in ('zarr', 'zarr3', 'n5'):
    store = {'driver': 'file', 'path': os.path.abspath(driver)}
    # A database of its own in many files, as Orbax has it.
    store = {'driver': 'ocdbt', 'base': store} if driver == 'zarr3' else store
    spec = {'driver': driver, 'kvstore': store}
    if os.environ.get('WRITES'):
        a = ts.open(spec, create=True, dtype=ts.float64, shape=data.shape).result()
        a.write(data).result()
        a[100:200].write(3).result()
        with ts.Transaction() as together: a.with_transaction(together)[5:6] = 9
    seen = ts.open(spec).result().read().result()
    assert (seen[5] == 9).all() and (seen[100:200] == 3).all() and (seen[200:] == data[200:]).all()
print('ok')";
    let writes = format!("import os; os.environ['WRITES'] = 'yes'{script}");
    assert_eq!(python(&writes, &mount.path), "ok\n");
    assert_eq!(python(script, &pool.mount().path), "ok\n");
}

/// The two implementations of MPI-IO that Open MPI brings: its own, and the one of MPICH.
#[test]
fn four_ranks_write_one_file_through_mpi_io_in_every_way_it_has() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/collective.c");
    let built = tempfile::tempdir().unwrap();
    let program = built.path().join("collective");
    let (source, program) = (source.to_str().unwrap(), program.to_str().unwrap());
    crate::common::run("mpicc.openmpi", &["-O1", "-o", program, source], built.path());
    for implementation in ["ompio", "romio321"] {
        let script = format!(
            "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; \
             mpirun.openmpi --oversubscribe --mca io {implementation} -n 4 {program} {implementation}"
        );
        assert_eq!(shell(&script, &mount.path), "4002800 bytes by 4 ranks\n");
    }
    let expected: Vec<u8> =
        (0..4u32).flat_map(|part| (0..1_000_700).map(move |at: u32| ((at * 7 + part) % 251) as u8)).collect();
    let other = pool.mount();
    for implementation in ["ompio", "romio321"] {
        assert!(fs::read(other.at(implementation)).unwrap() == expected, "{implementation}");
    }
}

#[test]
fn processes_of_one_machine_meet_at_named_pipes_and_sockets() {
    let pool = TestPool::start(2);
    let mount = pool.mount();
    let piped =
        "mkfifo -m 640 pipe; cat pipe > got & echo through > pipe; wait; cat got; stat -c '%F %a' pipe";
    assert_eq!(shell(piped, &mount.path), "through\nfifo 640\n");
    let script = "
import os, socket, threading
server = socket.socket(socket.AF_UNIX); server.bind('socket'); server.listen()
def answer():
    one, _ = server.accept()
    one.sendall(one.recv(9)[::-1]); one.close()
thread = threading.Thread(target=answer); thread.start()
client = socket.socket(socket.AF_UNIX); client.connect('socket'); client.sendall(b'abc')
print(client.recv(9).decode()); thread.join()
os.rename('socket', 'moved')
client = socket.socket(socket.AF_UNIX); client.connect('moved'); print('still there')";
    assert_eq!(python(script, &mount.path), "cba\nstill there\n");
    let shown = shell("stat -c '%F' pipe moved; rm pipe moved; ls", &pool.mount().path);
    assert_eq!(shown, "fifo\nsocket\ngot\n");
}
