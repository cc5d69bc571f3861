//! Files that no parser understands: what `--level` promises against general compressors holds for them, too.
//!
//! Relies on the `zstd` crate as the compressor to be held against. The idea: sets as codes write them that use no library,
//! small enough to be made here; each is compared with what `zstd` makes of all files in a row.
#![expect(clippy::unwrap_used, reason = "a test that meets the unexpected fails here")]

use std::fs;
use std::path::Path;

use stdchk_aggregate::{Container, Mode, Packing, Unpacking, inputs_of, pack};
use tempfile::TempDir;
use zstd::zstd_safe::CParameter;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 20
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next().to_le_bytes()[2]).collect()
    }
}

fn value(rank: u32, n: u32) -> f64 {
    let (x, y) = (f64::from(n % 128) / 40.0, f64::from(n / 128 + 64 * rank) / 60.0);
    (x + y).sin() * y.cos() + 0.1 * (x * y).cos()
}

const RANKS: u32 = 4;

/// Bytes in which a container says which files it holds, which `zstd` of all files in a row doesn't: they count for small sets.
const OWN_RECORDS: u64 = 1024;

/// Big-endian doubles as a Fortran code writes them, between the lengths of their records.
fn fortran(rank: u32) -> Vec<u8> {
    let record = |bytes: Vec<u8>| {
        let mark = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        [&mark[..], &bytes, &mark].concat()
    };
    let field = |shift| (0..16 << 10).flat_map(|n| value(rank + shift, n).to_be_bytes()).collect();
    [record(vec![0; 20]), record(field(0)), record(field(7))].concat()
}

/// A table of numbers in columns of one width.
fn table(rank: u32) -> Vec<u8> {
    (0..8 << 10)
        .flat_map(|n| format!("{:19.11e}{:19.11e}\n", value(rank, n), value(rank + 9, n)).into_bytes())
        .collect()
}

/// Lines of different lengths.
fn log(rank: u32) -> Vec<u8> {
    let mut random = Random(u64::from(rank));
    let line = |n: u32| {
        let (seconds, rounds) = (random.next() % 100_000, random.next() % 30);
        format!(
            "[{n}] rank {rank} took {}.{seconds} s, {rounds} rounds, residual {:.6}\n",
            n / 7,
            value(rank, n)
        )
    };
    (0..5000).map(line).collect::<String>().into_bytes()
}

/// Memory of which every rank has its own and the same, at other places.
fn image(rank: u32) -> Vec<u8> {
    let shared = Random(1).bytes(150 << 10);
    let own = Random(100 + u64::from(rank)).bytes(20_000 + 999 * rank as usize);
    [own.as_slice(), &shared, &[0; 8192]].concat()
}

/// Particles, each a record of positions, a number and flags.
fn particles(rank: u32) -> Vec<u8> {
    let mut random = Random(u64::from(rank));
    let one = |n: u32| {
        let places = [value(rank, n), value(rank, n + 1), random.next() as f64];
        let flags = [n % 3, 7, 0, rank].map(u32::to_le_bytes).concat();
        [places.map(f64::to_le_bytes).concat(), (n + 5).to_le_bytes().to_vec(), flags].concat()
    };
    (0..5000).flat_map(one).collect()
}

/// What a rank writes.
type File = fn(u32) -> Vec<u8>;

fn write_set(folder: &Path, file: File) -> Vec<u8> {
    let files: Vec<Vec<u8>> = (0..RANKS).map(file).collect();
    for (rank, bytes) in files.iter().enumerate() {
        fs::write(folder.join(format!("state.{rank}.dat")), bytes).unwrap();
    }
    files.concat()
}

/// Bytes that `zstd LEVEL --long=27` makes.
fn by_zstd(bytes: &[u8], level: i32, long: bool) -> u64 {
    let mut compressor = zstd::bulk::Compressor::new(level).unwrap();
    if long {
        compressor.set_parameter(CParameter::WindowLog(27)).unwrap();
        compressor.set_parameter(CParameter::EnableLongDistanceMatching(true)).unwrap();
    }
    compressor.compress(bytes).unwrap().len() as u64
}

/// Packs the folder and sees that it comes back; says how many bytes the container has.
fn packed(folder: &Path, mode: Mode) -> u64 {
    let scratch = TempDir::new().unwrap();
    let path = scratch.path().join("container");
    let inputs = inputs_of(&[folder.to_owned()]).unwrap().files;
    let done = pack(&inputs, &path, &Packing { mode, ..Packing::default() }).unwrap();
    let back = scratch.path().join("back");
    Container::open(&path).unwrap().unpack(&back, &Unpacking::default()).unwrap();
    for input in inputs {
        assert!(
            fs::read(&input.path).unwrap() == fs::read(back.join(&input.name)).unwrap(),
            "{}",
            input.name
        );
    }
    done.stored_bytes
}

#[test]
fn sets_of_unknown_formats_are_smaller_than_zstd_makes_them() {
    let sets: [(&str, File); 5] =
        [("fortran", fortran), ("table", table), ("log", log), ("image", image), ("particles", particles)];
    for (name, file) in sets {
        let folder = TempDir::new().unwrap();
        let all = write_set(folder.path(), file);
        for (mode, level, long) in [(Mode::Fastest, 3, false), (Mode::Default, 19, true)] {
            let (ours, theirs) = (packed(folder.path(), mode.clone()), by_zstd(&all, level, long));
            assert!(ours <= theirs + OWN_RECORDS, "{name}, {mode:?}: {ours} bytes, {theirs} by zstd");
        }
    }
}
