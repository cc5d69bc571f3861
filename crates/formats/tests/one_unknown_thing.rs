//! One thing that is unknown, or wrong, in a file never costs the rest of it.
//!
//! Relies on files put together here, and on `fixtures/`. The idea: each file holds one thing that no parser understands beside things
//! that all do; these must be found as if it were not there.

#![expect(clippy::unwrap_used, reason = "a test that meets the unexpected fails here")]

use std::path::PathBuf;

use stdchk_formats::{Parsed, parse};

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

fn of(parsed: &Parsed, path: &str) -> Option<(String, Vec<u64>)> {
    let found = parsed.variables.iter().find(|variable| variable.path() == path)?;
    Some((found.data_type.to_string(), found.shape.clone()))
}

fn safetensors(entries: &str, bytes: usize) -> Vec<u8> {
    let header = format!("{{{entries}}}");
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![7; bytes]].concat()
}

#[test]
fn tensors_of_less_than_a_byte_and_of_unknown_types_are_bytes_beside_the_others() {
    let entry = |name: &str, kind: &str, shape: &str, start: u32, end: u32| {
        format!(r#""{name}":{{"dtype":"{kind}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
    };
    let entries = [
        entry("w", "F32", "[5,10]", 0, 200),
        entry("four", "F4", "[10,8]", 200, 240),
        entry("six", "F6_E2M3", "[5,8]", 240, 270),
        entry("odd", "F6_E3M2", "[40]", 270, 300),
        entry("uneven", "F4", "[4,5]", 300, 310),
        entry("later", "F3_E1M1", "[100]", 310, 348),
        entry("outside", "F32", "[100]", 348, 748),
        r#""__quantization__":"something else""#.to_owned(),
        r#""neither":{"scale":1}"#.to_owned(),
    ];
    let parsed = parse(&safetensors(&entries.join(","), 400));
    assert_eq!(of(&parsed, "w"), Some(("F32LE".to_owned(), vec![5, 10])), "{:?}", parsed.reason);
    let bytes = |path: &str| of(&parsed, path).map(|(kind, shape)| (kind == "V1", shape));
    assert_eq!(bytes("four"), Some((true, vec![10, 4])));
    assert_eq!(bytes("six"), Some((true, vec![5, 6])));
    assert_eq!(bytes("odd"), Some((true, vec![30])));
    assert_eq!(bytes("uneven"), Some((true, vec![10])));
    assert_eq!(bytes("later"), Some((true, vec![38])));
    assert_eq!((bytes("outside"), parsed.variables.len()), (None, 6));
}

#[test]
fn of_variables_that_share_bytes_the_first_stays() {
    let entry = |name: &str, start: u32| {
        format!(r#""{name}":{{"dtype":"U8","shape":[50],"data_offsets":[{start},{}]}}"#, start + 50)
    };
    let parsed = parse(&safetensors(&[entry("a", 0), entry("b", 40), entry("c", 100)].join(","), 150));
    let names: Vec<String> = parsed.variables.iter().map(|variable| variable.path()).collect();
    assert_eq!(names, ["a", "c"]);
}

/// A zip archive of stored members.
fn zip(members: &[(&str, u16, u16, &[u8])]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, flags, method, content) in members {
        let local = u32::try_from(bytes.len()).unwrap();
        let length = u32::try_from(content.len()).unwrap().to_le_bytes();
        let name_length = u16::try_from(name.len()).unwrap().to_le_bytes();
        let common =
            [&flags.to_le_bytes()[..], &method.to_le_bytes(), &[0; 8], &length, &length, &name_length]
                .concat();
        bytes.extend([b"PK\x03\x04\x14\0", &common[..], &[0; 2], name.as_bytes(), content].concat());
        directory.extend(
            [b"PK\x01\x02\x14\0\x14\0", &common[..], &[0; 12], &local.to_le_bytes(), name.as_bytes()]
                .concat(),
        );
    }
    let (count, start) =
        (u16::try_from(members.len()).unwrap().to_le_bytes(), u32::try_from(bytes.len()).unwrap());
    let length = u32::try_from(directory.len()).unwrap().to_le_bytes();
    let end = [b"PK\x05\x06\0\0\0\0", &count[..], &count, &length, &start.to_le_bytes(), &[0; 2]].concat();
    [bytes, directory, end].concat()
}

fn npy(descr: &str, shape: &str, bytes: usize) -> Vec<u8> {
    let header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n");
    let length = u16::try_from(header.len()).unwrap().to_le_bytes();
    [b"\x93NUMPY\x01\0", &length[..], header.as_bytes(), &vec![1; bytes]].concat()
}

#[test]
fn an_array_of_objects_and_an_encrypted_one_cost_themselves() {
    let (numbers, objects) = (npy("'<f8'", "(10,)", 80), npy("'|O'", "(10,)", 33));
    let dates = npy("'<M8[ns]'", "(5,)", 40);
    let archive = zip(&[
        ("first.npy", 0, 0, &numbers),
        ("objects.npy", 0, 0, &objects),
        ("secret.npy", 1, 0, &numbers),
        ("squeezed.npy", 0, 93, &numbers),
        ("dates.npy", 0, 0, &dates),
        ("last.npy", 0, 0, &numbers),
    ]);
    let parsed = parse(&archive);
    for name in ["first", "last"] {
        assert_eq!(of(&parsed, name), Some(("F64LE".to_owned(), vec![10])), "{name}: {:?}", parsed.reason);
    }
    assert_eq!(of(&parsed, "dates"), Some(("I64LE".to_owned(), vec![5])));
    assert_eq!(of(&parsed, "objects"), None);
}

/// Every byte of the structure of some datasets is damaged in turn; how many of the others are lost at most.
#[test]
fn a_damaged_dataset_of_hdf5_costs_no_other() {
    let bytes = fixture("new.h5");
    let whole = parse(&bytes);
    let paths: Vec<String> = whole.variables.iter().map(|variable| variable.path()).collect();
    let mut alone = 0;
    for at in (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"OHDR")) {
        let mut damaged = bytes.clone();
        damaged[at + 4] = 99;
        let left = parse(&damaged).variables.len();
        // The headers of groups cost what is in them.
        alone += usize::from(left + 1 == paths.len());
    }
    assert!(alone > 40, "{alone} of {} datasets are lost alone", paths.len());
}

#[test]
fn a_variable_of_netcdf_with_an_unknown_type_costs_itself() {
    let bytes = fixture("classic.nc");
    let whole = parse(&bytes);
    let names: Vec<String> = whole.variables.iter().map(|variable| variable.path()).collect();
    let mut kept = Vec::new();
    for at in (0..bytes.len().min(2000)).step_by(4) {
        if bytes[at..].starts_with(&[0, 0, 0, 6]) || bytes[at..].starts_with(&[0, 0, 0, 5]) {
            let mut changed = bytes.clone();
            changed[at + 3] = 77;
            kept.push(parse(&changed).variables.len());
        }
    }
    assert!(kept.contains(&(names.len() - 1)), "{kept:?} of {}", names.len());
}

/// A classic file with two variables of ten doubles, and attributes of a type that is nobody's, with values of so many bytes.
fn netcdf_with_attributes(size: usize) -> Vec<u8> {
    let word = |number: usize| u32::try_from(number).unwrap().to_be_bytes().to_vec();
    let name = |text: &str| {
        [word(text.len()), text.as_bytes().to_vec(), vec![0; text.len().wrapping_neg() % 4]].concat()
    };
    let padded = (3 * size).next_multiple_of(4);
    let attributes = [word(12), word(1), name("odd"), word(77), word(3), vec![9; padded]].concat();
    let variable = |text: &str, begin: usize| {
        [name(text), word(1), word(0), attributes.clone(), word(6), word(80), word(begin)].concat()
    };
    let of = |begin: usize| {
        let head = [b"CDF\x01".to_vec(), word(0), word(10), word(1), name("n"), word(10), attributes.clone()]
            .concat();
        [head, word(11), word(2), variable("first", begin), variable("second", begin + 80)].concat()
    };
    [of(of(0).len()), vec![1; 160]].concat()
}

#[test]
fn an_attribute_of_netcdf_of_an_unknown_type_costs_nothing() {
    for size in [1, 2, 4, 8, 16] {
        let parsed = parse(&netcdf_with_attributes(size));
        for name in ["first", "second"] {
            let expected = Some(("F64BE".to_owned(), vec![10]));
            assert_eq!(of(&parsed, name), expected, "values of {size} bytes: {:?}", parsed.reason);
        }
    }
}

#[test]
fn entries_of_safetensors_of_any_form_cost_themselves() {
    let good = r#""w":{"dtype":"F32","shape":[5,10],"data_offsets":[0,200]}"#;
    for odd in [
        r#""odd":7"#,
        r#""odd":"text""#,
        r#""odd":[1,2]"#,
        r#""odd":null"#,
        r#""odd":{"dtype":5,"shape":[1],"data_offsets":[0,4]}"#,
        r#""odd":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#,
        r#""odd":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}"#,
        r#""odd":{"dtype":"F32","shape":"1","data_offsets":{"begin":0}}"#,
    ] {
        for entries in [format!("{odd},{good}"), format!("{good},{odd}")] {
            let parsed = parse(&safetensors(&entries, 200));
            assert_eq!(
                of(&parsed, "w"),
                Some(("F32LE".to_owned(), vec![5, 10])),
                "{odd}: {:?}",
                parsed.reason
            );
        }
    }
}

#[test]
fn a_member_of_an_archive_that_is_not_understood_costs_no_other() {
    let numbers = npy("'<f8'", "(10,)", 80);
    let whole = zip(&[("a.npy", 0, 0, &numbers), ("b.npy", 0, 0, &numbers), ("c.npy", 0, 0, &numbers)]);
    let directory = whole.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    // An extra field that says it is longer than it is: the name becomes one letter, what is left of it the field.
    let mut changed = whole.clone();
    changed[directory + 28] = 1;
    changed[directory + 30] = 4;
    let parsed = parse(&changed);
    for name in ["b", "c"] {
        assert!(of(&parsed, name).is_some(), "{name}: {:?}", parsed.reason);
    }
    // A record of another kind in the directory.
    let last = whole.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
    let mut changed = whole.clone();
    changed[last + 3] = 5;
    let parsed = parse(&changed);
    for name in ["a", "b"] {
        assert!(of(&parsed, name).is_some(), "{name}: {:?}", parsed.reason);
    }
}

#[test]
fn operations_of_a_pickle_that_are_seldom_or_unknown_cost_no_tensor_before_them() {
    let bytes = fixture("model.pt");
    let whole = parse(&bytes);
    let count = whole.variables.len();
    assert!(count > 1, "{:?}", whole.reason);
    let start = bytes.windows(2).position(|window| window == [0x80, 2]).unwrap();
    let end = bytes.windows(2).rposition(|window| window == b".P").unwrap_or(bytes.len());
    let end = bytes[..end + 1]
        .windows(4)
        .rposition(|window| window.ends_with(b"u.") || window.ends_with(b"b."))
        .map_or(end, |at| at + 3);
    let stop = (start..end + 1).rev().find(|at| bytes[*at] == b'.').unwrap();
    let mut changed = bytes.clone();
    changed[stop] = 0xff;
    let parsed = parse(&changed);
    assert_eq!(parsed.variables.len(), count, "{:?}", parsed.reason);
}

/// A file of a multi-file restart of LAMMPS with these arrays.
fn restart(arrays: &[usize]) -> Vec<u8> {
    let mut bytes = [46_i32.to_le_bytes(), 1_i32.to_le_bytes()].concat();
    for count in arrays {
        bytes.extend([47_i32.to_le_bytes(), i32::try_from(*count).unwrap().to_le_bytes()].concat());
        bytes.extend(vec![1; 8 * count]);
    }
    bytes
}

#[test]
fn what_stands_behind_the_arrays_of_a_restart_costs_none_of_them() {
    let whole = parse(&restart(&[10, 20]));
    assert_eq!(whole.variables.len(), 2, "{:?}", whole.reason);
    let longer = [restart(&[10, 20]), vec![99; 50]].concat();
    assert_eq!(parse(&longer).variables, whole.variables);
    let cut = restart(&[10, 20]);
    assert_eq!(parse(&cut[..cut.len() - 8].to_vec()).variables.len(), 1);
}

#[test]
fn an_entry_and_a_node_of_an_old_group_that_are_damaged_cost_no_other() {
    let bytes = fixture("old.h5");
    let whole = parse(&bytes).variables.len();
    let nodes: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"SNOD")).collect();
    let mut kept = Vec::new();
    for node in nodes {
        // The name of the first entry leaves the heap.
        let mut changed = bytes.clone();
        changed[node + 8 + 7] = 0x7f;
        kept.push(parse(&changed).variables.len());
    }
    assert!(kept.iter().any(|left| left + 1 == whole), "{kept:?} of {whole}");
    assert!(kept.iter().all(|left| *left > 0), "{kept:?} of {whole}");
}
