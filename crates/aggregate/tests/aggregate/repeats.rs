//! Runs of elements that stood in the set before are found in variables, at the grain of rows.
//!
//! Relies on safetensors made here, and on the `zstd` crate as the compressor to be held against.

use std::fs;
use std::path::Path;

use stdchk_aggregate::{Container, Packing, Unpacking, inputs_of, pack};
use tempfile::TempDir;
use zstd::zstd_safe::CParameter;

/// Single-precision weights: signs, exponents that are all alike, random mantissas.
fn weights(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    (0..count).flat_map(|_| (next() & 0x80ff_ffff | 0x3c00_0000 | (next() & 1) << 31).to_le_bytes()).collect()
}

type Tensor = (String, [usize; 2], Vec<u8>);

fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let (mut entries, mut end) = (Vec::new(), 0);
    for (name, [rows, columns], bytes) in tensors {
        let (start, shape) = (end, format!("[{rows},{columns}]"));
        end += bytes.len();
        entries.push(format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#));
    }
    let header = format!("{{{}}}", entries.join(","));
    let all: Vec<u8> = tensors.iter().flat_map(|(.., bytes)| bytes.clone()).collect();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &all].concat()
}

fn model() -> Vec<Tensor> {
    let tensor = |name: &str, rows: usize, seed| (name.to_owned(), [rows, 512], weights(rows * 512, seed));
    vec![tensor("a.q.weight", 512, 1), tensor("a.up.weight", 1024, 2), tensor("b.q.weight", 512, 3)]
}

/// A part of the rows of each tensor.
fn rows(model: &[Tensor], part: usize) -> Vec<Tensor> {
    let of = |(name, [rows, columns], bytes): &Tensor| {
        let half = bytes.len() / 2;
        (name.clone(), [rows / 2, *columns], bytes[part * half..][..half].to_vec())
    };
    model.iter().map(of).collect()
}

/// A part of the columns of each tensor.
fn columns(model: &[Tensor], part: usize) -> Vec<Tensor> {
    let of = |(name, [rows, columns], bytes): &Tensor| {
        let half = columns * 2;
        let cut = bytes.chunks(2 * half).flat_map(|row| row[part * half..][..half].to_vec()).collect();
        (name.clone(), [*rows, columns / 2], cut)
    };
    model.iter().map(of).collect()
}

fn zstd_of(bytes: &[u8]) -> usize {
    let mut compressor = zstd::bulk::Compressor::new(3).unwrap();
    compressor.set_parameter(CParameter::EnableLongDistanceMatching(true)).unwrap();
    compressor.set_parameter(CParameter::WindowLog(27)).unwrap();
    compressor.compress(bytes).unwrap().len()
}

/// Bytes of a container of these files, which come back from it.
fn container_of(files: &[Vec<u8>]) -> usize {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for (number, bytes) in files.iter().enumerate() {
        fs::write(set.path().join(format!("{number}.safetensors")), bytes).unwrap();
    }
    let path = out.path().join("set");
    pack(&inputs_of(&[set.path().to_owned()]).unwrap().files, &path, &Packing::default()).unwrap();
    let back = TempDir::new().unwrap();
    Container::open(&path).unwrap().unpack(back.path(), &Unpacking::default()).unwrap();
    for (number, bytes) in files.iter().enumerate() {
        let name = format!("{number}.safetensors");
        assert!(fs::read(Path::new(back.path()).join(&name)).unwrap() == *bytes, "{name}");
    }
    usize::try_from(fs::metadata(&path).unwrap().len()).unwrap()
}

#[test]
fn a_model_beside_its_slices_takes_no_more_than_zstd_makes_of_it() {
    let model = model();
    let alone = container_of(&[safetensors(&model)]);
    for (name, parts) in
        [("rows", [rows(&model, 0), rows(&model, 1)]), ("columns", [columns(&model, 0), columns(&model, 1)])]
    {
        let files: Vec<Vec<u8>> =
            std::iter::once(&model).chain(&parts).map(|tensors| safetensors(tensors)).collect();
        let (ours, theirs) = (container_of(&files), zstd_of(&files.concat()));
        assert!(ours <= theirs + theirs / 100, "{name}: {ours}, zstd {theirs}");
        assert!(ours < alone * 11 / 10, "{name}: {ours}, the model alone {alone}");
    }
}

#[test]
fn what_compresses_well_is_not_cut_into_runs() {
    let row: Vec<u8> = (0..256_u32).flat_map(|n| f64::from(n / 16).to_le_bytes()).collect();
    let tensor = |name: &str| (name.to_owned(), [1024, 512], row.repeat(1024));
    let (one, two) = (container_of(&[safetensors(&[tensor("x")])]), safetensors(&[tensor("x"), tensor("y")]));
    assert!(one < 25_000, "{one} bytes of {}", row.len() * 1024);
    assert!(container_of(&[two]) < one + 2000);
}
