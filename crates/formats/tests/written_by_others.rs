//! The parsers against files that the formats' own libraries wrote: names, types, shapes and every value.
//!
//! Relies on `fixtures/`, which `fixtures/make.py` wrote together with `expected.json`. The idea: elements are read
//! back through the extents alone, as every user of this crate does.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that meets the unexpected fails here"
)]

use std::path::PathBuf;

use serde_json::Value;
use stdchk_formats::{Filter, Format, Parsed, Reason, Storage, Variable, parse};

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn stored(file: &[u8], variable: &Variable) -> Vec<Vec<u8>> {
    let ranges = variable
        .extents
        .iter()
        .map(|e| usize::try_from(e.offset).unwrap()..usize::try_from(e.end()).unwrap());
    ranges.map(|range| file[range].to_vec()).collect()
}

/// All elements in row-major order.
fn elements(file: &[u8], variable: &Variable) -> Vec<u8> {
    let pieces = stored(file, variable);
    match &variable.storage {
        Storage::Filtered(_) | Storage::DeflatedNpy | Storage::Encoded => pieces.concat(),
        Storage::Plain | Storage::ColumnMajor => pieces.concat(),
        Storage::Chunked(chunks) => {
            let size = variable.data_type.size as usize;
            let mut all = vec![0; usize::try_from(variable.element_bytes().unwrap()).unwrap()];
            for (origin, piece) in chunks.origins.iter().zip(&pieces) {
                for (number, element) in piece.chunks_exact(size).enumerate() {
                    if let Some(index) = position(number as u64, &chunks.shape, origin, &variable.shape) {
                        all[index * size..][..size].copy_from_slice(element);
                    }
                }
            }
            all
        }
    }
}

/// Where element `number` of a chunk lies in the array; `None` beyond its edge.
fn position(mut number: u64, chunk: &[u64], origin: &[u64], shape: &[u64]) -> Option<usize> {
    let (mut index, mut stride) = (0, 1);
    for dimension in (0..shape.len()).rev() {
        let coordinate = origin[dimension] + number % chunk[dimension];
        number /= chunk[dimension];
        if coordinate >= shape[dimension] {
            return None;
        }
        index += coordinate * stride;
        stride *= shape[dimension];
    }
    usize::try_from(index).ok()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn matches(file: &[u8], variable: &Variable, expected: &Value) -> bool {
    let shape: Vec<u64> = expected["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    let path = expected.get("path").is_none_or(|path| path == &variable.path());
    path && expected["type"] == variable.data_type.to_string()
        && shape == variable.shape
        && expected["bytes"] == hex(&elements(file, variable))
}

#[test]
fn every_variable_that_the_libraries_wrote_is_found_with_its_values() {
    let expected: Value = serde_json::from_slice(&fixture("expected.json")).unwrap();
    for (name, variables) in expected.as_object().unwrap() {
        let file = fixture(name);
        let parsed = parse(&file);
        assert_eq!(parsed.reason, None, "{name}");
        for variable in variables.as_array().unwrap() {
            let found = parsed.variables.iter().any(|candidate| matches(&file, candidate, variable));
            let named: Vec<_> = parsed.variables.iter().map(Variable::path).collect();
            assert!(found, "{name}: {variable} is not among {named:?}");
        }
    }
}

fn covered(parsed: &Parsed) -> Vec<(u64, u64)> {
    let variables = parsed.variables.iter().flat_map(|variable| variable.extents.clone());
    let mut all: Vec<_> =
        variables.chain(parsed.residue()).map(|extent| (extent.offset, extent.end())).collect();
    all.sort_unstable();
    all
}

#[test]
fn variables_and_residue_cover_every_byte_once() {
    let expected: Value = serde_json::from_slice(&fixture("expected.json")).unwrap();
    for name in expected.as_object().unwrap().keys() {
        let file = fixture(name);
        let mut position = 0;
        for (start, end) in covered(&parse(&file)) {
            assert_eq!(start, position, "{name}");
            position = end;
        }
        assert_eq!(position, file.len() as u64, "{name}");
    }
}

fn find<'parsed>(parsed: &'parsed Parsed, path: &str) -> Option<&'parsed Variable> {
    parsed.variables.iter().find(|variable| variable.path() == path)
}

#[test]
fn of_compressed_arrays_it_is_told_how_they_were_compressed() {
    let old = parse(&fixture("old.h5"));
    let squeezed = find(&old, "squeezed").unwrap();
    let Storage::Filtered(filtered) = &squeezed.storage else { panic!("{squeezed:?}") };
    assert_eq!((filtered.filters.as_slice(), squeezed.extents.len()), (&[Filter::Deflate(4)][..], 2));
    let npz = parse(&fixture("squeezed.npz"));
    assert_eq!(find(&npz, "first").unwrap().storage, Storage::DeflatedNpy);
    let filtered = parse(&fixture("filtered.h5"));
    let of = |path: &str, chunk: usize| match &find(&filtered, path).unwrap().storage {
        Storage::Filtered(filtered) => filtered.of_chunk(chunk),
        other => panic!("{path}: {other:?}"),
    };
    let (shuffle, deflate) = (Filter::Shuffle(8), Filter::Deflate(4));
    assert_eq!(of("deflated", 1), [deflate]);
    assert_eq!(of("shuffled", 0), [shuffle, deflate]);
    let mut checked = of("checked", 0);
    checked.sort_by_key(|filter| format!("{filter:?}"));
    assert_eq!(checked, [deflate, Filter::Fletcher32, shuffle]);
    assert_eq!(of("summed", 0), [Filter::Fletcher32]);
    assert_eq!((of("mixed", 0), of("mixed", 1)), (vec![], vec![deflate]));
    assert_eq!(of("other", 1), [Filter::Other(32000)]);
}

#[test]
fn links_to_the_same_object_and_unwritten_datasets_are_no_variables() {
    let old = parse(&fixture("old.h5"));
    let densities =
        old.variables.iter().filter(|variable| variable.shape == [6, 4] && variable.data_type.size == 8);
    assert_eq!(densities.count(), 1);
    assert!(find(&old, "never written").is_none() && find(&old, "soft").is_none());
}

#[test]
fn the_format_is_told_by_the_first_bytes() {
    let expected = [
        ("old.h5", Format::Hdf5),
        ("compact.h5", Format::Hdf5),
        ("classic.nc", Format::NetCdf),
        ("plain.npy", Format::Npy),
        ("several.npz", Format::Npz),
        ("part.restart", Format::Lammps),
        ("state.cpt", Format::Gromacs),
        ("model.safetensors", Format::Safetensors),
        ("model.pt", Format::Torch),
        ("model.distcp", Format::Torch),
    ];
    for (name, format) in expected {
        assert_eq!(parse(&fixture(name)).format, format, "{name}");
    }
}

#[test]
fn an_unknown_or_cut_file_is_all_residue_with_a_reason() {
    let unknown = parse(&b"just some text, nothing else".to_vec());
    assert_eq!((unknown.format, unknown.reason.as_ref()), (Format::Unknown, Some(&Reason::UnknownFormat)));
    assert_eq!(unknown.residue().len(), 1);
    let mut cut = fixture("old.h5");
    cut.truncate(cut.len() / 2);
    let cut = parse(&cut);
    assert!(cut.variables.is_empty());
    assert!(
        matches!(cut.reason, Some(Reason::Truncated { .. } | Reason::Invalid { .. })),
        "{:?}",
        cut.reason
    );
    assert!(parse(&Vec::new()).residue().is_empty());
}
