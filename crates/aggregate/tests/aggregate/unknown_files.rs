//! Files that no parser understands: what `--level` promises against general compressors holds for them, too.
//!
//! Relies on the `zstd` crate as the compressor to be held against. The idea: sets as codes write them that use no library,
//! small enough to be made here; each is compared with what `zstd` makes of all files in a row.

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

/// Whether a container is at most a hundredth larger than what `zstd` makes of the same.
fn is_at_most_a_hundredth_larger(ours: u64, theirs: u64) -> bool {
    ours <= theirs + theirs / 100
}

#[test]
fn sets_of_unknown_formats_are_as_small_as_zstd_makes_them() {
    let sets: [(&str, File); 5] =
        [("fortran", fortran), ("table", table), ("log", log), ("image", image), ("particles", particles)];
    for (name, file) in sets {
        let folder = TempDir::new().unwrap();
        let all = write_set(folder.path(), file);
        for (mode, long) in [(Mode::Fastest, false), (Mode::Default, true)] {
            let (ours, theirs) = (packed(folder.path(), mode.clone()), by_zstd(&all, 3, long));
            assert!(ours <= theirs + OWN_RECORDS, "{name}, {mode:?}: {ours} bytes, {theirs} by zstd");
        }
    }
}

/// A member of a `tar` archive, as far as its bytes count.
fn tarred(name: &str, bytes: &[u8]) -> Vec<u8> {
    let mut header = vec![0_u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    let size = format!("0000644\x000001000\x000001000\x00{:011o}\x0014701234567\x00", bytes.len());
    header[100..100 + size.len()].copy_from_slice(size.as_bytes());
    let sum: u32 = header.iter().copied().map(u32::from).sum::<u32>() + 8 * 32;
    header[148..156].copy_from_slice(format!("{sum:06o}\x00 ").as_bytes());
    header[257..265].copy_from_slice(b"ustar  \0");
    [header.as_slice(), bytes, &vec![0; bytes.len().next_multiple_of(512) - bytes.len()]].concat()
}

#[test]
fn a_set_of_many_tiny_files_is_as_small_as_zstd_makes_their_archive() {
    let folder = TempDir::new().unwrap();
    let (mut random, mut archive) = (Random(5), Vec::new());
    for number in 0..3000 {
        let name = format!("part{:02}/walker-{number:05}.txt", number / 100);
        let line = |step: u64, random: &mut Random| {
            let state = ["ok", "retry", "moved"][usize::try_from(random.next() % 3).unwrap()];
            format!("step {step} energy -{}.{} state {state}\n", random.next() % 99, random.next() % 100_000)
        };
        let lines = 2 + random.next() % 12;
        let text: String = (0..lines).map(|step| line(step, &mut random)).collect();
        let path = folder.path().join(&name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
        archive.extend(tarred(&name, text.as_bytes()));
    }
    let (ours, theirs) = (packed(folder.path(), Mode::Default), by_zstd(&archive, 3, true));
    assert!(is_at_most_a_hundredth_larger(ours, theirs), "{ours} bytes, {theirs} by zstd");
}

/// Memory of a process that changed here and there since, and of which a part moved.
fn images() -> [Vec<u8>; 2] {
    let mut random = Random(11);
    let mut words = String::new();
    while words.len() < 6 << 20 {
        words += &format!("object {:x} refers to {:x}\0", random.next() % 100_000, random.next() % 4096);
    }
    let one = [words.as_bytes(), &vec![0; 1 << 20], &random.bytes(2 << 20)].concat();
    let mut two = [&one[3 << 20..], &random.bytes(100_001), &one[..3 << 20]].concat();
    for _ in 0..1500 {
        let at = usize::try_from(random.next()).unwrap() % (two.len() - 8);
        two[at..at + 8].copy_from_slice(&random.next().to_le_bytes());
    }
    [one, two]
}

#[test]
fn what_repeats_far_apart_is_left_out_as_with_a_long_window() {
    let (folder, images) = (TempDir::new().unwrap(), images());
    for (number, image) in images.iter().enumerate() {
        fs::write(folder.path().join(format!("core.{number}")), image).unwrap();
    }
    let (ours, theirs) = (packed(folder.path(), Mode::Default), by_zstd(&images.concat(), 3, true));
    assert!(is_at_most_a_hundredth_larger(ours, theirs), "{ours} bytes, {theirs} by zstd");
}

/// A program: code of which pieces return, and between it tables of pointers, of floats and of names that stand elsewhere in the file, too.
fn executable() -> Vec<u8> {
    let mut random = Random(23);
    let words: Vec<Vec<u8>> = (0..400).map(|_| random.bytes(4 + 9)).collect();
    let mut pick = move |most: usize| usize::try_from(random.next()).unwrap() % most;
    let mut file = Vec::new();
    for section in 0..6_u64 {
        for _ in 0..12_000 {
            file.extend_from_slice(&words[pick(400)][..3 + pick(10)]);
        }
        let table: Vec<u8> = (0..10 << 10)
            .flat_map(|n| {
                let name = (pick(1500) as u64 * 24 + 0x40_0000).to_le_bytes();
                let kind = (8 + section % 2 + 16 * u64::from(n % 7 == 0)).to_le_bytes();
                [name, kind].concat()
            })
            .collect();
        file.extend_from_slice(&table);
        let from = pick(file.len() - (96 << 10));
        file.extend_from_within(from..from + (96 << 10));
    }
    file
}

/// Sentences of one language in two files, of which one holds much of the other.
fn text() -> Vec<u8> {
    let mut random = Random(31);
    let mut sentence = || {
        let word =
            |word: u64| format!("{}{}", ["node", "set", "rank", "block"][(word % 4) as usize], word % 211);
        (0..9).map(|_| word(random.next()) + " ").collect::<String>() + "\n"
    };
    let first: String = (0..12_000).map(|_| sentence()).collect();
    let second: String = (0..4000).map(|_| sentence()).collect();
    [first.clone(), second, first[200_003..500_007].to_owned()].concat().into_bytes()
}

/// Columns of doubles of which some are those of others, beside what is no array.
fn columns() -> Vec<u8> {
    let mut random = Random(37);
    let mut file = Vec::new();
    let mut column: Vec<u8> = Vec::new();
    for number in 0..8 {
        if number % 3 != 2 {
            column = (0..24 << 10)
                .flat_map(|n| (value(number, n) + 1e-9 * random.next() as f64).to_le_bytes())
                .collect();
        }
        file.extend_from_slice(&column);
        file.extend_from_slice(format!("column {number} of the state\n").repeat(700).as_bytes());
    }
    file
}

/// Each byte counts here: nothing is allowed for records.
#[test]
fn no_file_of_an_unknown_format_is_larger_than_zstd_makes_it_with_a_long_window() {
    for (name, bytes) in [("executable", executable()), ("text", text()), ("columns", columns())] {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("state"), &bytes).unwrap();
        let (ours, theirs) = (packed(folder.path(), Mode::Default), by_zstd(&bytes, 3, true));
        assert!(ours <= theirs, "{name}: {ours} bytes, {theirs} by zstd");
    }
}

/// The shell is there on every machine that runs these tests. Its tables look like arrays, place by place, and repeat as text does.
#[test]
fn a_program_is_as_small_as_zstd_makes_it_with_a_long_window() {
    let program = fs::read("/bin/bash").unwrap();
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("program"), &program).unwrap();
    let (stored, zstd) = (packed(folder.path(), Mode::Default), by_zstd(&program, 3, true));
    assert!(stored <= zstd + OWN_RECORDS, "{stored}, zstd {zstd}");
}
