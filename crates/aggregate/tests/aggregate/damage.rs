//! Ranges and variables of a damaged container: right, or refused.
//!
//! Relies on a file whose variables lie in blocks of their own. The idea: the record of one block after the other is damaged, so
//! that nobody knows what stood in it.

use std::fs;

use stdchk_aggregate::container::{HEADER_LENGTH, Header, MAGIC, SectionKind};
use stdchk_aggregate::{AggregateError, Container, Packing, inputs_of, pack};
use stdchk_formats::Extent;
use tempfile::TempDir;

/// Names, types, elements and their bytes; what is shorter than 100 bytes stands in no block of its own.
const TENSORS: [(&str, &str, usize, usize); 4] =
    [("big", "F32", 32 << 10, 4), ("a", "F64", 15, 8), ("x", "U8", 90, 1), ("y", "U8", 90, 1)];

/// A safetensors file, and where each tensor stands in it.
fn file() -> (Vec<u8>, Vec<(&'static str, usize, usize)>) {
    let (mut header, mut end) = (Vec::new(), 0);
    for (name, kind, count, size) in TENSORS {
        let start = end;
        end += count * size;
        let place = format!(r#""shape":[{count}],"data_offsets":[{start},{end}]"#);
        header.push(format!(r#""{name}":{{"dtype":"{kind}",{place}}}"#));
    }
    let header = format!("{{{}}}", header.join(","));
    let mut bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    let mut places = Vec::new();
    let mut state = 1_u64;
    for (name, _, count, size) in TENSORS {
        places.push((name, bytes.len(), count * size));
        bytes.extend((0..count * size).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_le_bytes()[6]
        }));
    }
    (bytes, places)
}

/// Where each block's record stands in a container.
fn records(container: &[u8]) -> Vec<usize> {
    let (mut position, mut records) = (MAGIC.len(), Vec::new());
    while let Some(header) = container.get(position..).and_then(Header::from_bytes) {
        if header.kind == SectionKind::Block {
            records.push(position + HEADER_LENGTH);
        }
        position += usize::try_from(header.section_length().unwrap()).unwrap();
    }
    records
}

/// How many variables and short ranges a container gives, and what it says of the other variables; whatever it gives must
/// be right.
fn given(
    container: &Container,
    bytes: &[u8],
    places: &[(&str, usize, usize)],
) -> ((usize, usize), Vec<AggregateError>) {
    let (mut variables, mut errors) = (0, Vec::new());
    for (name, start, length) in places {
        match container.variable_npy("model.safetensors", name) {
            Ok(npy) => {
                let right = bytes.get(*start..start + length).unwrap();
                assert!(npy.ends_with(right), "'{name}' came back wrong");
                variables += 1;
            }
            Err(error) => errors.push(error),
        }
    }
    let mut ranges = 0;
    for start in (0..bytes.len() - 30).step_by(30) {
        let (mut read, range) = (Vec::new(), Extent { offset: start as u64, length: 30 });
        if container.read(0, range, &mut read).is_ok() {
            assert_eq!(Some(read.as_slice()), bytes.get(start..start + 30), "from byte {start} on");
            ranges += 1;
        }
    }
    ((variables, ranges), errors)
}

#[test]
fn what_a_lost_block_held_is_not_read_from_elsewhere() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (bytes, places) = file();
    fs::write(set.path().join("model.safetensors"), &bytes).unwrap();
    let path = out.path().join("set.pack");
    pack(&inputs_of(&[set.path().to_owned()]).unwrap().files, &path, &Packing::default()).unwrap();
    let good = fs::read(&path).unwrap();
    let (whole, _) = given(&Container::open(&path).unwrap(), &bytes, &places);
    assert_eq!(whole, (TENSORS.len(), (bytes.len() - 30).div_ceil(30)));
    let records = records(&good);
    assert!(records.len() >= 3);
    let mut errors = Vec::new();
    for record in records {
        let mut damaged = good.clone();
        damaged[record] ^= 1;
        fs::write(&path, damaged).unwrap();
        let (some, more) = given(&Container::open(&path).unwrap(), &bytes, &places);
        assert!(some < whole, "{some:?}");
        errors.extend(more);
    }
    // Damage is no reason to say that there is no such variable.
    let missing = errors.iter().find(|error| matches!(error, AggregateError::NotFound { .. }));
    assert!(missing.is_none(), "{missing:?}");
}
