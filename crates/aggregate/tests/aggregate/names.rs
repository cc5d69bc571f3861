//! Names are bytes: files whose names are no UTF-8 are packed, come back, and end nothing.
//!
//! Relies on real folders with such names.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stdchk_aggregate::{
    AggregateError, Aggregation, Aggregator, Container, FolderSink, Packing, Unpacking, inputs_of, pack,
    text_of_name,
};
use tempfile::TempDir;

/// Two names of the same characters as most programs show them, one of a folder and a file in it, and one of UTF-8.
const NAMES: [&[u8]; 5] = [
    b"state\xff.1",
    b"state\xfe.1",
    b"ran\xc3k/state\xff.2",
    "zust\u{e4}nde".as_bytes(),
    "\u{10ffff}".as_bytes(),
];

fn path_of(folder: &Path, name: &[u8]) -> PathBuf {
    folder.join(OsStr::from_bytes(name))
}

fn write(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// All files below a folder.
fn all_in(folder: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let mut all = BTreeMap::new();
    for input in inputs_of(&[folder.to_owned()]).unwrap().files {
        let name = input.path.strip_prefix(folder).unwrap().as_os_str().to_owned();
        all.insert(name, fs::read(input.path).unwrap());
    }
    all
}

#[test]
fn files_whose_names_are_no_utf_8_come_back_under_these_names() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for (number, name) in NAMES.iter().enumerate() {
        write(&path_of(set.path(), name), format!("{number} ").repeat(1000).as_bytes());
    }
    let container = out.path().join("set");
    let packed =
        pack(&inputs_of(&[set.path().to_owned()]).unwrap().files, &container, &Packing::default()).unwrap();
    assert_eq!(packed.files, NAMES.len() as u64);
    let (container, back) = (Container::open(&container).unwrap(), out.path().join("back"));
    container.unpack(&back, &Unpacking::default()).unwrap();
    let expected = NAMES.map(|name| OsString::from_vec(name.to_vec()));
    let came = all_in(&back);
    assert_eq!(came.keys().cloned().collect::<Vec<_>>(), {
        let mut expected = expected.to_vec();
        expected.sort();
        expected
    });
    assert!(came == all_in(set.path()));
    let one = out.path().join("one");
    let names = [text_of_name(OsStr::from_bytes(NAMES[0]))];
    container.unpack(&one, &Unpacking { names: &names, ..Unpacking::default() }).unwrap();
    assert_eq!(all_in(&one).into_keys().collect::<Vec<_>>(), [OsStr::from_bytes(NAMES[0])]);
}

#[test]
fn a_file_is_given_by_its_path_whatever_its_name() {
    let set = TempDir::new().unwrap();
    let path = path_of(set.path(), NAMES[0]);
    write(&path, b"state");
    let inputs = inputs_of(std::slice::from_ref(&path)).unwrap().files;
    assert_eq!(inputs.iter().map(|input| &input.path).collect::<Vec<_>>(), [&path]);
}

#[test]
fn a_set_is_aggregated_beside_and_of_files_whose_names_are_no_utf_8() {
    let scratch = TempDir::new().unwrap();
    let (source, sink) = (scratch.path().join("source"), scratch.path().join("sink"));
    write(&path_of(&source, b"sp\xffam"), b"of no set");
    write(&path_of(&source, b"fol\xffder/sp\xfeam"), b"of no set");
    for rank in 0..2 {
        write(&path_of(&source, format!("state.5.{rank}").as_bytes()), &[7; 5000]);
    }
    let aggregation = Aggregation {
        source: source.clone(),
        naming: "state.{step}.{rank}".parse().unwrap(),
        ranks: 2,
        containers: 1,
        remove_raw: true,
        settle: Duration::ZERO,
        across_time: 0,
        packing: Packing::default(),
    };
    let mut aggregator = Aggregator::start(aggregation, Box::new(FolderSink::open(&sink).unwrap())).unwrap();
    let round = aggregator.round().unwrap();
    assert_eq!((round.aggregated.len(), round.removed), (1, 2), "{round:?}");
    write(&path_of(&source, b"state\xff.6.0"), &[8; 5000]);
    for rank in 0..2 {
        write(&path_of(&source, format!("state.6.{rank}").as_bytes()), &[8; 5000]);
    }
    let round = aggregator.round().unwrap();
    assert_eq!((round.aggregated.len(), round.removed), (1, 2), "{round:?}");
    let left = all_in(&source).len();
    assert_eq!(left, 3, "what is of no set stays");
}

#[test]
fn empty_folders_come_back_with_their_permissions() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    write(&set.path().join("full/file"), b"state");
    for (name, mode) in [("empty", 0o750), ("full/below/deep", 0o555)] {
        let folder = set.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let path = out.path().join("set.pack");
    let packed =
        pack(&inputs_of(&[set.path().to_owned()]).unwrap().files, &path, &Packing::default()).unwrap();
    assert_eq!(packed.files, 1);
    let container = Container::open(&path).unwrap();
    assert_eq!(container.check(&Unpacking::default()).unwrap().files, 1);
    // A folder that is there already gets them as well, and a file in its place is named.
    for there in [false, true] {
        let back = out.path().join("back");
        if there {
            std::fs::set_permissions(back.join("empty"), std::fs::Permissions::from_mode(0o700)).unwrap();
        }
        assert_eq!(container.unpack(&back, &Unpacking::default()).unwrap().files, 1);
        for (name, mode) in [("empty", 0o750), ("full/below/deep", 0o555)] {
            let found = std::fs::metadata(back.join(name)).unwrap();
            assert!(found.is_dir(), "{name}");
            assert_eq!(found.permissions().mode() & 0o7777, mode, "{name}");
        }
    }
    let taken = out.path().join("taken");
    write(&taken.join("empty"), b"a file");
    let outcome = container.unpack(&taken, &Unpacking::default());
    let named = |blocked: &[String]| blocked == ["empty/"];
    assert!(
        matches!(&outcome, Err(AggregateError::Incomplete { blocked, intact: 1, .. }) if named(blocked)),
        "{outcome:?}"
    );
}
