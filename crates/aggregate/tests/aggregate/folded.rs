//! Files whose parts an application compressed: packed as if nobody had, and given back bit for bit.
//!
//! Relies on `fixtures/filtered.h5`, which h5py wrote, and on gzip and npz made here. The idea: every way out of a container is tried
//! (whole files, ranges, variables, comparing), and sizes are held against those of the plain bytes.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};
use stdchk_aggregate::{
    AggregateError, Container, FileEntry, Mode, Packing, SetFile, Unpacking, inputs_of, pack,
};
use stdchk_formats::Extent;
use tempfile::TempDir;

/// A smooth field with noise in its last bits.
fn field(count: u32) -> Vec<u8> {
    let noise = |n: u32| f64::from(n.wrapping_mul(2_654_435_761) >> 8) * 1e-12;
    (0..count).flat_map(|n| ((f64::from(n) / 800.0).sin() + noise(n)).to_le_bytes()).collect()
}

fn text(lines: u32) -> Vec<u8> {
    let line =
        |n: u32| format!("{n} step {} residual {:e}\n", n.wrapping_mul(40_503) % 977, f64::from(n).sqrt());
    (0..lines).map(line).collect::<String>().into_bytes()
}

fn gzip(plain: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// The file that `numpy.savez_compressed` writes of one array.
fn npz(plain: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({},), }}\n", plain.len() / 8);
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    let npy = [b"\x93NUMPY\x01\0", &length[..], header.as_bytes(), plain].concat();
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(6));
    encoder.write_all(&npy).unwrap();
    let stored = encoder.finish().unwrap();
    let number = |length: usize| u32::try_from(length).unwrap().to_le_bytes();
    let (stored_length, plain_length) = (number(stored.len()), number(npy.len()));
    let name = b"field.npy";
    let common = [&[0, 0, 8, 0][..], &[0; 8], &stored_length, &plain_length, &[9, 0]].concat();
    let local = [b"PK\x03\x04\x14\0", &common[..], &[0; 2], name, &stored].concat();
    let central = [b"PK\x01\x02\x14\0\x14\0", &common[..], &[0; 12], &[0; 4], name].concat();
    let end = [b"PK\x05\x06\0\0\0\0\x01\0\x01\0", &number(central.len())[..], &number(local.len()), &[0; 2]]
        .concat();
    [local, central, end].concat()
}

fn filtered_h5() -> Vec<u8> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/fixtures");
    fs::read(fixtures.join("filtered.h5")).unwrap()
}

/// A folder with these files.
fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = TempDir::new().unwrap();
    files.iter().for_each(|(name, bytes)| fs::write(folder.path().join(name), bytes).unwrap());
    folder
}

fn packed(set: &Path, packing: &Packing<'_>) -> (TempDir, Container, u64) {
    let out = TempDir::new().unwrap();
    let path = out.path().join("set");
    let inputs = inputs_of(&[set.to_owned()]).unwrap().files;
    let stored = pack(&inputs, &path, packing).unwrap().stored_bytes;
    (out, Container::open(&path).unwrap(), stored)
}

/// Bytes of the container of one file.
fn size_of(bytes: &[u8]) -> u64 {
    packed(folder(&[("rank0", bytes)]).path(), &Packing::default()).2
}

#[test]
fn compressed_files_take_what_their_plain_bytes_take() {
    let plain = field(200_000);
    let alone = size_of(&plain);
    for (name, compressed) in [
        ("gzip 4", gzip(&plain, 4)),
        ("gzip 6", gzip(&plain, 6)),
        ("gzip 9", gzip(&plain, 9)),
        ("npz", npz(&plain)),
    ] {
        let stored = size_of(&compressed);
        assert!(stored < compressed.len() as u64 * 9 / 10, "{name}: {stored} of {}", compressed.len());
        assert!(stored <= alone * 11 / 10, "{name}: {stored}, uncompressed {alone}");
    }
}

#[test]
fn what_packing_makes_no_less_of_stays_as_it_is() {
    let noise: Vec<u8> = (0..1_u32 << 18).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    for (name, compressed) in [("text", gzip(&text(60_000), 9)), ("noise", gzip(&noise, 6))] {
        let stored = size_of(&compressed);
        assert!(stored < compressed.len() as u64 + 1024, "{name}: {stored} of {}", compressed.len());
    }
}

#[test]
fn every_file_and_every_range_comes_back() {
    let (plain, odd) = (field(100_000), field(30_000));
    let (gzipped, archive, filtered) = (gzip(&plain, 6), npz(&plain), filtered_h5());
    let behind = [gzip(&odd, 6).as_slice(), b"behind the stream"].concat();
    let cut = gzip(&odd, 6)[..9000].to_vec();
    let files: [(&str, &[u8]); 6] = [
        ("a.gz", &gzipped),
        ("b.npz", &archive),
        ("c.h5", &filtered),
        ("d.gz", &behind),
        ("e.gz", &cut),
        ("f", &plain),
    ];
    let set = folder(&files);
    for (budget, threads) in [(16 << 20, 1), (256 << 20, 3)] {
        let (_out, container, _) = packed(set.path(), &Packing { budget, threads, ..Packing::default() });
        let back = TempDir::new().unwrap();
        let unpacking = Unpacking { budget, threads, ..Unpacking::default() };
        assert_eq!(container.check(&unpacking).unwrap().files, files.len() as u64);
        assert_eq!(container.unpack(back.path(), &unpacking).unwrap().files, files.len() as u64);
        let entry = |name: &str, bytes: &[u8]| FileEntry {
            name: name.to_owned(),
            size: bytes.len() as u64,
            mode: 0,
            modified_ns: 0,
        };
        let of = |(name, bytes): &(&str, &[u8])| SetFile {
            entry: entry(name, bytes),
            source: Arc::new(bytes.to_vec()),
        };
        let mut sources: Vec<SetFile> = files.iter().map(of).collect();
        container.compare_with(&sources, &Packing::default()).unwrap();
        for (number, (name, bytes)) in files.iter().enumerate() {
            assert!(fs::read(back.path().join(name)).unwrap() == *bytes, "{name}");
            for (start, length) in
                [(0, bytes.len()), (1, 5000), (bytes.len() / 2, 3000), (bytes.len() - 1, 1)]
            {
                let mut range = Vec::new();
                let wanted = Extent { offset: start as u64, length: length as u64 };
                container.read(number, wanted, &mut range).unwrap();
                assert!(range == bytes[start..start + length], "{name}, {length} bytes from {start}");
            }
            let mut other = bytes.to_vec();
            other[bytes.len() / 2] ^= 1;
            let right = std::mem::replace(&mut sources[number].source, Arc::new(other));
            let outcome = container.compare_with(&sources, &Packing::default());
            assert!(matches!(outcome, Err(AggregateError::Changed { .. })), "{name}: {outcome:?}");
            sources[number].source = right;
        }
    }
}

#[test]
fn variables_of_filtered_datasets_are_their_values_or_are_refused() {
    let archive = npz(&field(20_000));
    let set = folder(&[("c.h5", &filtered_h5()), ("b.npz", &archive)]);
    let expected: Vec<u8> =
        (0..30 * 25_u32).flat_map(|n| (f64::from(n) / 300.0).sin().to_le_bytes()).collect();
    for mode in [Mode::Default, Mode::Fastest] {
        let (_out, container, _) = packed(set.path(), &Packing { mode, ..Packing::default() });
        let plain = container.variable_npy("c.h5", "deflated").unwrap();
        assert!(String::from_utf8_lossy(&plain[..128]).contains("'<f8'"));
        assert_eq!(plain.len(), 128 + expected.len());
        let close = plain[128..].as_chunks::<8>().0.iter().zip(expected.as_chunks::<8>().0);
        assert!(
            close.into_iter().all(|(one, other)| {
                (f64::from_le_bytes(*one) - f64::from_le_bytes(*other)).abs() < 1e-12
            })
        );
        for path in ["shuffled", "checked", "summed", "mixed"] {
            assert!(container.variable_npy("c.h5", path).unwrap() == plain, "{path}");
        }
        let refused = container.variable_npy("c.h5", "other");
        assert!(
            matches!(&refused, Err(AggregateError::Invalid(why)) if why.contains("other")),
            "{refused:?}"
        );
        let array = container.variable_npy("b.npz", "field").unwrap();
        assert!(array.ends_with(&field(20_000)));
    }
}

#[test]
fn a_damaged_container_gives_the_file_or_nothing() {
    let bytes = gzip(&field(20_000), 6);
    let set = folder(&[("a.gz", &bytes)]);
    let out = TempDir::new().unwrap();
    let path = out.path().join("set");
    pack(&inputs_of(&[set.path().to_owned()]).unwrap().files, &path, &Packing::default()).unwrap();
    let whole = fs::read(&path).unwrap();
    let mut refused = 0;
    for at in (0..whole.len()).step_by(whole.len() / 150) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        let Ok(container) = Container::open(&path) else { continue };
        let mut read = Vec::new();
        let range = Extent { offset: 0, length: bytes.len() as u64 };
        match container.read(0, range, &mut read) {
            Ok(()) => assert!(read == bytes, "byte {at}"),
            Err(_) => refused += 1,
        }
        let back = TempDir::new().unwrap();
        if container.unpack(back.path(), &Unpacking::default()).is_ok() {
            assert!(fs::read(back.path().join("a.gz")).unwrap() == bytes, "byte {at}");
        }
    }
    assert!(refused > 50, "{refused}");
}

/// Copies a folder with all that is below it.
fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, target) = {
            let entry = entry.unwrap();
            (entry.path(), to.join(entry.file_name()))
        };
        if path.is_dir() {
            copy_all(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

#[test]
fn arrays_of_zarr_come_back_and_are_coded_by_their_type() {
    let set = TempDir::new().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/zarr");
    copy_all(&fixtures, &set.path().join("zarr"));
    // A chunk that no setting makes, and one that is cut: they stay as they are.
    let lz4 = set.path().join("zarr/v2lz4");
    let mut other = fs::read(lz4.join("0.0")).unwrap();
    let last = other.len() - 1;
    other[last] ^= 1;
    fs::write(lz4.join("7.0"), &other).unwrap();
    fs::write(lz4.join("8.0"), &other[..5000]).unwrap();
    let (_out, container, stored) = packed(set.path(), &Packing::default());
    let as_it_is = packed(set.path(), &Packing { mode: Mode::Fastest, ..Packing::default() }).2;
    assert!(stored * 10 < as_it_is * 9, "{stored} of {as_it_is}");
    let back = TempDir::new().unwrap();
    container.unpack(back.path(), &Unpacking::default()).unwrap();
    for (name, size) in container.files() {
        let file = fs::read(set.path().join(name)).unwrap();
        assert_eq!(file.len() as u64, size);
        assert!(fs::read(back.path().join(name)).unwrap() == file, "{name}");
    }
    container.check(&Unpacking::default()).unwrap();
}

/// `tests/fixtures/chunked.h5`, as h5py writes arrays of 29 x 29 x 29 in chunks of 8 x 8 x 15.
#[test]
fn chunks_of_an_array_take_what_the_array_takes() {
    let bytes = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chunked.h5")).unwrap();
    let set = folder(&[("a.h5", &bytes)]);
    let (_out, container, stored) = packed(set.path(), &Packing::default());
    let arrays = ["zeros", "filled", "missing"].map(|name| container.variable_npy("a.h5", name).unwrap());
    let plain: u64 = arrays.iter().map(|array| size_of(array)).sum();
    // A file of HDF5 has structure of its own, and each chunk a recipe.
    let chunks = 2 * 4 * 4 * 2 + 4;
    assert!(stored < plain + 4000 + 20 * chunks, "{stored}, the arrays alone {plain}");
    for block_max in [0, 128 << 10] {
        let (_out, container, _) = packed(set.path(), &Packing { block_max, ..Packing::default() });
        let mut read = Vec::new();
        for offset in (0..bytes.len() as u64).step_by(777) {
            let length = 777.min(bytes.len() as u64 - offset);
            container.read(0, Extent { offset, length }, &mut read).unwrap();
        }
        assert!(read == bytes);
        let back = TempDir::new().unwrap();
        container.unpack(back.path(), &Unpacking::default()).unwrap();
        assert!(fs::read(back.path().join("a.h5")).unwrap() == bytes);
    }
}
