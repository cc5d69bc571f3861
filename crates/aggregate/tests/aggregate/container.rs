//! Containers on disk: every byte comes back, whatever the mode, the scheme and the number of threads; and damage costs
//! only what it hit.
//!
//! Relies on the fixtures of `stdchk-formats`, which real libraries wrote, and on files made here. The idea: a set of
//! every known format, with copies and numbers in it, goes through every way of packing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use stdchk_aggregate::container::{HEADER_LENGTH, Header, MAGIC, SectionKind};
use stdchk_aggregate::{
    AggregateError, BaseSet, Container, Input, KeyRule, MergeScheme, Mode, Packed, Packing, PlanOptions,
    Unpacked, Unpacking, inputs_of, pack,
};
use tempfile::TempDir;

type Files = BTreeMap<String, Vec<u8>>;

fn fixture_set(folder: &Path) -> Files {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/fixtures");
    for entry in fs::read_dir(fixtures).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    fs::create_dir_all(folder.join("below/deeper")).unwrap();
    fs::write(folder.join("below/deeper/empty"), b"").unwrap();
    fs::copy(folder.join("new.h5"), folder.join("below/copy.h5")).unwrap();
    fs::write(folder.join("noise"), noise(200_000, 5)).unwrap();
    read_all(folder)
}

/// Ranks of a smooth field in `.npy`, with a replicated variable in every rank.
fn field_set(folder: &Path, time: f64) -> Files {
    for rank in 0..4 {
        let field = (0..64 * 64).map(|n| {
            let (x, y) = (f64::from(n % 64) / 20.0, f64::from(n / 64 + 64 * rank) / 30.0);
            (x + time).sin() * y.cos()
        });
        fs::write(folder.join(format!("step{time}.rank{rank}.npy")), npy_f64(64, field)).unwrap();
        let same = (0..64 * 16).map(|n| f64::from(n).sqrt());
        fs::write(folder.join(format!("table.rank{rank}.npy")), npy_f64(16, same)).unwrap();
    }
    read_all(folder)
}

fn npy_f64(rows: usize, values: impl Iterator<Item = f64>) -> Vec<u8> {
    let literal = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows}, 64), }}");
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{literal:<117}\n").into_bytes());
    bytes.extend(values.flat_map(f64::to_le_bytes));
    bytes
}

fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_le_bytes()[6]
    };
    (0..length).map(|_| next()).collect()
}

fn read_all(folder: &Path) -> Files {
    let inputs = inputs_of(&[folder.to_owned()]).unwrap();
    inputs.files.into_iter().map(|input| (input.name, fs::read(input.path).unwrap())).collect()
}

fn pack_folder(folder: &Path, output: &Path, options: &Packing<'_>) -> Packed {
    pack(&inputs_of(&[folder.to_owned()]).unwrap().files, output, options).unwrap()
}

fn unpacked(container: &Container, threads: usize) -> Files {
    let folder = TempDir::new().unwrap();
    container.unpack(folder.path(), &Unpacking { threads, ..Unpacking::default() }).unwrap();
    read_all(folder.path())
}

#[test]
fn every_mode_gives_every_byte_back() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let files = fixture_set(set.path());
    let container = out.path().join("set");
    for mode in [Mode::Fastest, Mode::Default, Mode::Paper, Mode::PaperOnce, Mode::Auto(1e8)] {
        let packed =
            pack_folder(set.path(), &container, &Packing { mode: mode.clone(), ..Packing::default() });
        assert_eq!(packed.files, files.len() as u64);
        assert!(!packed.spent.steps().iter().map(|(_, time)| *time).sum::<Duration>().is_zero());
        assert_eq!(packed.stored_bytes, fs::metadata(&container).unwrap().len());
        assert!(unpacked(&Container::open(&container).unwrap(), 2) == files, "{mode:?}");
    }
}

#[test]
fn every_merge_scheme_and_key_rule_gives_every_byte_back() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let files = fixture_set(set.path());
    let container = out.path().join("set");
    let schemes = [
        MergeScheme::Agnostic,
        MergeScheme::AgnosticBlock(4096),
        MergeScheme::Aware,
        MergeScheme::AwareBlock(1000),
    ];
    for scheme in schemes {
        for keys in [KeyRule::Numbers, KeyRule::pattern(".*").unwrap()] {
            let plan = PlanOptions { scheme, keys, group_size: 5, variable_min: 8 };
            pack_folder(set.path(), &container, &Packing { plan, ..Packing::default() });
            assert!(unpacked(&Container::open(&container).unwrap(), 3) == files, "{scheme:?}");
        }
    }
}

#[test]
fn threads_do_not_change_the_container() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fixture_set(set.path());
    let contents = [1, 4].map(|threads| {
        let container = out.path().join("set");
        pack_folder(set.path(), &container, &Packing { threads, ..Packing::default() });
        fs::read(&container).unwrap()
    });
    assert!(contents[0] == contents[1]);
}

#[test]
fn sets_larger_than_the_budget_are_streamed_in_pieces() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(set.path().join("large"), noise(9 << 20, 1)).unwrap();
    field_set(set.path(), 1.0);
    let files = read_all(set.path());
    let container = out.path().join("set");
    let packed =
        pack_folder(set.path(), &container, &Packing { budget: 1, threads: 2, ..Packing::default() });
    // Two blocks and all that coding them needs fit into the least budget, of 16 MiB.
    assert!(packed.blocks > 8, "{} blocks", packed.blocks);
    let folder = TempDir::new().unwrap();
    let small = Unpacking { budget: 1, threads: 2, ..Unpacking::default() };
    Container::open(&container).unwrap().unpack(folder.path(), &small).unwrap();
    assert!(read_all(folder.path()) == files);
}

#[test]
fn what_ranks_have_in_common_is_stored_once() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    field_set(set.path(), 1.0);
    let packed = pack_folder(set.path(), &out.path().join("set"), &Packing::default());
    assert_eq!(packed.repeated_bytes, 3 * 16 * 64 * 8);
}

#[test]
fn members_that_look_alike_at_first_are_told_apart() {
    let (folder, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Zeros wherever a few words are looked at, and one byte elsewhere.
    let with_byte = |at: usize| {
        let literal = "{'descr': '|u1', 'fortran_order': False, 'shape': (100001,), }";
        let mut bytes = [b"\x93NUMPY\x01\x00\x76\x00", format!("{literal:<117}\n").as_bytes()].concat();
        let start = bytes.len();
        bytes.resize(start + 100_001, 0);
        bytes[start + at] = 1;
        bytes
    };
    for (name, at) in [("a", 5000), ("b", 5001), ("c", 5000), ("d", 5002), ("e", 5001)] {
        fs::write(folder.path().join(format!("{name}.npy")), with_byte(at)).unwrap();
    }
    let container = scratch.path().join("container");
    let packed = pack_folder(folder.path(), &container, &Packing::default());
    assert_eq!(packed.repeated_bytes, 2 * 100_001);
    assert_eq!(unpacked(&Container::open(&container).unwrap(), 2), read_all(folder.path()));
}

#[test]
fn single_files_ranges_and_variables_come_out() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let files = fixture_set(set.path());
    let path = out.path().join("set");
    pack_folder(set.path(), &path, &Packing::default());
    let container = Container::open(&path).unwrap();
    let wanted = ["old.h5".to_owned(), "below/copy.h5".to_owned(), "below/deeper/empty".to_owned()];
    let folder = TempDir::new().unwrap();
    container.unpack(folder.path(), &Unpacking { names: &wanted, ..Unpacking::default() }).unwrap();
    let given = read_all(folder.path());
    assert_eq!(given.len(), wanted.len());
    assert!(given.iter().all(|(name, bytes)| files[name] == *bytes));
    assert_eq!(
        container.variable_npy("plain.npy", "array").unwrap()[128 - 48..],
        files["plain.npy"][128 - 48..]
    );
    let chunked = container.variable_npy("new.h5", "chunked").unwrap();
    let header = String::from_utf8_lossy(&chunked[..128]).into_owned();
    assert!(header.contains("'<f8'") && header.contains("(7,5,)"), "{header}");
    assert_eq!(chunked.len(), 128 + 7 * 5 * 8);
    let missing = ["old.h5".to_owned(), "missing".to_owned()];
    let folder = TempDir::new().unwrap();
    let outcome = container.unpack(folder.path(), &Unpacking { names: &missing, ..Unpacking::default() });
    assert!(matches!(outcome, Err(AggregateError::NotFound { .. })) && read_all(folder.path()).is_empty());
    assert!(matches!(container.variable_npy("new.h5", "missing"), Err(AggregateError::NotFound { .. })));
}

#[test]
fn chunks_of_an_extracted_variable_are_in_order() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fixture_set(set.path());
    let path = out.path().join("set");
    pack_folder(set.path(), &path, &Packing::default());
    let npy = Container::open(&path).unwrap().variable_npy("new.h5", "tree deep").unwrap();
    let expected = fs::read_to_string(set.path().join("expected.json")).unwrap();
    let after = expected.split("\"new.h5\"").nth(1).unwrap().split("\"path\": \"tree deep\"").nth(1).unwrap();
    let hex = after.split("\"bytes\": \"").nth(1).unwrap().split('"').next().unwrap();
    let found: String = npy[128..].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found, hex);
}

#[test]
fn listing_shows_variables_types_and_ratios() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    field_set(set.path(), 1.0);
    let path = out.path().join("set");
    pack_folder(set.path(), &path, &Packing::default());
    let listed = Container::open(&path).unwrap().list().unwrap();
    let field = listed.iter().find(|file| file.name == "step1.rank2.npy").unwrap();
    assert_eq!((field.variables[0].data_type.as_str(), &field.variables[0].shape), ("F64LE", &vec![64, 64]));
    assert!(field.variables[0].ratio > 1.1, "{}", field.variables[0].ratio);
}

#[test]
fn a_set_against_its_base_is_smaller_and_comes_back_only_with_it() {
    let (first, second, out) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    let original = noise(1 << 18, 9);
    let mut changed = original.clone();
    changed.iter_mut().step_by(997).for_each(|byte| *byte ^= 1);
    let npy = |bytes: &[u8]| {
        let literal =
            format!("{{'descr': '<u2', 'fortran_order': False, 'shape': ({},), }}", bytes.len() / 2);
        [b"\x93NUMPY\x01\x00\x76\x00", format!("{literal:<117}\n").as_bytes(), bytes].concat()
    };
    fs::write(first.path().join("weights100.npy"), npy(&original)).unwrap();
    fs::write(second.path().join("weights200.npy"), npy(&changed)).unwrap();
    let (base_path, path) = (out.path().join("base"), out.path().join("set"));
    pack_folder(first.path(), &base_path, &Packing::default());
    let base = BaseSet::open(&base_path).unwrap();
    let packed = pack_folder(second.path(), &path, &Packing { base: Some(&base), ..Packing::default() });
    assert!(packed.stored_bytes * 20 < packed.raw_bytes, "{packed:?}");
    assert!(matches!(Container::open(&path), Err(AggregateError::BaseMissing { .. })));
    assert!(matches!(BaseSet::open(&path), Err(AggregateError::BaseMissing { .. })));
    let container = Container::open_with_base(&path, Some(Arc::new(base))).unwrap();
    assert!(unpacked(&container, 2) == read_all(second.path()));
}

/// The files that a check names.
fn damaged(checked: Result<Unpacked, AggregateError>) -> Vec<String> {
    match checked {
        Err(AggregateError::Incomplete { damaged, .. }) => damaged,
        _ => Vec::new(),
    }
}

/// Unpacks what a damaged container still gives, as the check foresees; whatever comes out must be right.
fn salvage(path: &Path, files: &Files) -> Option<usize> {
    let container = Container::open(path).ok()?;
    let folder = TempDir::new().unwrap();
    let foreseen = container.check(&Unpacking::default());
    match container.unpack(folder.path(), &Unpacking { threads: 1, ..Unpacking::default() }) {
        Ok(unpacked) => assert_eq!(foreseen.ok(), Some(unpacked)),
        Err(AggregateError::Incomplete { damaged: files, .. }) => assert_eq!(damaged(foreseen), files),
        Err(error) => assert!(matches!(error, AggregateError::Invalid(_)), "{error}"),
    }
    let given = read_all(folder.path());
    for (name, bytes) in &given {
        assert!(files.get(name) == Some(bytes), "'{name}' came back wrong");
    }
    Some(given.len())
}

#[test]
fn a_damaged_container_gives_back_every_intact_file_and_never_a_wrong_one() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let files = field_set(set.path(), 1.0);
    fs::write(set.path().join("lonely"), noise(50_000, 3)).unwrap();
    let files: Files = files.into_iter().chain([("lonely".to_owned(), noise(50_000, 3))]).collect();
    let path = out.path().join("set");
    pack_folder(set.path(), &path, &Packing { mode: Mode::Default, ..Packing::default() });
    let good = fs::read(&path).unwrap();
    let damaged = out.path().join("damaged");
    let (mut some, mut all, mut rounds) = (0, 0, 0);
    for position in (0..good.len()).step_by(good.len() / 100) {
        let mut bytes = good.clone();
        bytes[position] ^= 0x41;
        fs::write(&damaged, &bytes).unwrap();
        let given = salvage(&damaged, &files).unwrap_or(0);
        some += usize::from(given > 0);
        all += usize::from(given == files.len());
        rounds += 1;
    }
    // One byte hits one block or one table: the files of the other blocks come back, and tables are kept twice.
    assert_eq!(some, rounds);
    assert!(all < rounds / 10, "damage went unnoticed in {all} of {rounds} rounds");
}

#[test]
fn damage_in_a_table_of_many_tiny_files_costs_none_of_them() {
    const COUNT: u64 = 3000;
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for number in 0..COUNT {
        let length = 50 + usize::try_from(number % 7).unwrap();
        fs::write(set.path().join(format!("note-{:x}", number * number)), vec![b'x'; length]).unwrap();
    }
    let path = out.path().join("set");
    pack_folder(set.path(), &path, &Packing::default());
    let good = fs::read(&path).unwrap();
    let (mut position, mut tables) = (MAGIC.len(), Vec::new());
    while let Some(header) = good.get(position..).and_then(Header::from_bytes) {
        let end = position + usize::try_from(header.section_length().unwrap()).unwrap();
        if header.kind == SectionKind::Files {
            tables.push(position..end);
        }
        position = end;
    }
    assert_eq!(tables.len(), 2);
    assert!(tables.iter().map(ExactSizeIterator::len).sum::<usize>() * 4 > good.len(), "they matter");
    for table in tables {
        for at in [table.start, table.start + HEADER_LENGTH, table.end - 1] {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            fs::write(&path, &bytes).unwrap();
            let found = Container::open(&path).unwrap().check(&Unpacking::default()).unwrap();
            assert_eq!(found.files, COUNT);
        }
    }
}

#[test]
fn a_cut_container_gives_back_what_lies_before_the_cut() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut files = Files::new();
    for number in 0..10 {
        let name = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"][number];
        files.insert(name.to_owned(), noise(300_000, number as u64));
        fs::write(set.path().join(name), &files[name]).unwrap();
    }
    let path = out.path().join("set");
    pack_folder(set.path(), &path, &Packing::default());
    let good = fs::read(&path).unwrap();
    fs::write(&path, &good[..good.len() / 2 - 2000]).unwrap();
    assert_eq!(salvage(&path, &files), Some(4));
    let container = Container::open(&path).unwrap();
    let listed = container.list().unwrap().into_iter().filter(|file| file.damaged).count();
    assert_eq!(listed, 6, "a list says which files have no blocks");
    let named =
        |name: &str| container.check(&Unpacking { names: &[name.to_owned()], ..Unpacking::default() });
    assert_eq!(named("b").unwrap(), Unpacked { files: 1, bytes: 300_000 });
    assert_eq!(damaged(named("i")), ["i"]);
    assert!(matches!(named("z"), Err(AggregateError::NotFound { .. })));
}

#[test]
fn containers_damaged_anywhere_never_give_a_wrong_byte() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/fixtures");
    for name in ["old.h5", "classic.nc", "model.safetensors", "part.restart"] {
        fs::copy(fixtures.join(name), set.path().join(name)).unwrap();
    }
    let files = read_all(set.path());
    let path = out.path().join("set");
    pack_folder(set.path(), &path, &Packing::default());
    let good = fs::read(&path).unwrap();
    let random = noise(4 * 1000, 77);
    for choice in random.chunks_exact(4) {
        let mut bytes = good.clone();
        let position = (usize::from(choice[0]) << 8 | usize::from(choice[1])) * good.len() / 65_536;
        match choice[2] % 3 {
            0 => bytes[position] = choice[3],
            1 => bytes.truncate(position),
            _ => drop(bytes.splice(position..position, [choice[3]; 3])),
        }
        fs::write(&path, &bytes).unwrap();
        salvage(&path, &files);
    }
}

#[test]
fn permissions_and_times_come_back_and_no_temporary_file_stays() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    // Names that temporary files might have had.
    for name in ["x", "x.partial", ".x.partial", "x.stdchk-part"] {
        fs::write(set.path().join(name), name).unwrap();
    }
    let x = fs::File::options().write(true).open(set.path().join("x")).unwrap();
    let time = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    x.set_permissions(fs::Permissions::from_mode(0o1640)).unwrap();
    x.set_modified(time).unwrap();
    let path = out.path().join("set");
    pack_folder(set.path(), &path, &Packing::default());
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1);
    let back = TempDir::new().unwrap();
    Container::open(&path).unwrap().unpack(back.path(), &Unpacking::default()).unwrap();
    assert!(read_all(back.path()) == read_all(set.path()));
    let metadata = fs::metadata(back.path().join("x")).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.modified().unwrap()), (0o1640, time));
}

/// The owner, the group and the permission bits.
fn owner_and_bits(path: &Path) -> (u32, u32, u32) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
}

#[test]
fn set_id_bits_come_back_with_their_owner() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let is_root = fs::metadata(set.path()).unwrap().uid() == 0;
    // Large and small, and of a stranger, whom only root can give a file to.
    let all =
        [("own", 0o4755, 10), ("group", 0o2755, 300_000), ("strange", 0o6711, 300_000), ("none", 0o4600, 0)];
    for (name, bits, length) in all {
        let path = set.path().join(name);
        fs::write(&path, noise(length, 3)).unwrap();
        if is_root && name == "strange" {
            chown(&path, Some(4321), Some(1234)).unwrap();
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
        assert_eq!(owner_and_bits(&path).2, bits);
    }
    let path = out.path().join("set");
    pack_folder(set.path(), &path, &Packing::default());
    let back = TempDir::new().unwrap();
    Container::open(&path).unwrap().unpack(back.path(), &Unpacking::default()).unwrap();
    assert!(read_all(back.path()) == read_all(set.path()));
    for (name, ..) in all {
        assert_eq!(owner_and_bits(&back.path().join(name)), owner_and_bits(&set.path().join(name)), "{name}");
    }
}

#[test]
fn a_watch_that_ends_it_leaves_nothing_behind() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(set.path().join("large"), noise(9 << 20, 1)).unwrap();
    let path = out.path().join("set");
    let inputs = inputs_of(&[set.path().to_owned()]).unwrap().files;
    let seen = AtomicU64::new(0);
    let until = |end: u64| {
        let seen = &seen;
        seen.store(0, Ordering::Relaxed);
        move |bytes| seen.fetch_add(bytes, Ordering::Relaxed) + bytes < end
    };
    let watch = until(5 << 20);
    let outcome = pack(&inputs, &path, &Packing { watch: &watch, budget: 1, ..Packing::default() });
    assert!(matches!(outcome, Err(AggregateError::Stopped)), "{outcome:?}");
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    let watch = until(u64::MAX);
    pack(&inputs, &path, &Packing { watch: &watch, budget: 1, ..Packing::default() }).unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 9 << 20);
    let back = TempDir::new().unwrap();
    let watch = until(5 << 20);
    let stopped = Unpacking { watch: &watch, budget: 1, threads: 1, ..Unpacking::default() };
    let outcome = Container::open(&path).unwrap().unpack(back.path(), &stopped);
    assert!(matches!(outcome, Err(AggregateError::Stopped)), "{outcome:?}");
    assert_eq!(fs::read_dir(back.path()).unwrap().count(), 0);
}

#[test]
fn what_a_killed_process_left_of_the_same_files_goes() {
    let (set, out, aside) = (TempDir::new().unwrap(), TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(set.path().join("large"), noise(9 << 20, 1)).unwrap();
    let path = out.path().join("set");
    pack_folder(set.path(), &path, &Packing { budget: 1, ..Packing::default() });
    let back = TempDir::new().unwrap();
    // What is there while it works is what stays when it is killed.
    let keep = |_| {
        for entry in fs::read_dir(back.path()).unwrap() {
            let entry = entry.unwrap();
            fs::hard_link(entry.path(), aside.path().join(entry.file_name())).unwrap();
        }
        false
    };
    let killed = Unpacking { watch: &keep, budget: 1, threads: 1, ..Unpacking::default() };
    Container::open(&path).unwrap().unpack(back.path(), &killed).unwrap_err();
    for entry in fs::read_dir(aside.path()).unwrap() {
        let entry = entry.unwrap();
        fs::rename(entry.path(), back.path().join(entry.file_name())).unwrap();
    }
    assert_eq!(fs::read_dir(back.path()).unwrap().count(), 1);
    assert!(inputs_of(&[back.path().to_owned()]).unwrap().files.is_empty(), "it is no content");
    Container::open(&path).unwrap().unpack(back.path(), &Unpacking::default()).unwrap();
    let names: Vec<_> = fs::read_dir(back.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["large"]);
}

#[test]
fn a_file_that_changes_meanwhile_is_noticed() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let file = set.path().join("x");
    fs::write(&file, noise(100_000, 1)).unwrap();
    let inputs = inputs_of(&[set.path().to_owned()]).unwrap().files;
    let change = |_| fs::write(&file, noise(100_000, 2)).is_ok();
    let outcome = pack(&inputs, &out.path().join("set"), &Packing { watch: &change, ..Packing::default() });
    assert!(matches!(outcome, Err(AggregateError::Changed { .. })), "{outcome:?}");
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
}

#[test]
fn more_files_than_may_be_open_come_back() {
    let (set, out) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for number in 0..300 {
        fs::write(set.path().join(format!("rank{number}.npy")), noise(20_000, number)).unwrap();
    }
    let files = read_all(set.path());
    let path = out.path().join("set");
    pack_folder(set.path(), &path, &Packing { budget: 1, ..Packing::default() });
    let back = TempDir::new().unwrap();
    let small = Unpacking { budget: 1, ..Unpacking::default() };
    Container::open(&path).unwrap().unpack(back.path(), &small).unwrap();
    assert!(read_all(back.path()) == files);
}

/// Many variables of a few hundred bytes, next to each other and behind ones of another kind.
#[test]
fn small_variables_by_the_thousand_come_back_one_by_one_and_cost_few_bytes() {
    let set = TempDir::new().unwrap();
    let mut entries = Vec::new();
    for number in 0..4000 {
        let (name, length) = if number % 5 == 4 { ("scale", 104) } else { ("bias", 200) };
        entries.push((format!("layer.{number}.{name}"), length));
    }
    let mut end = 0;
    let described = entries.iter().map(|(name, length)| {
        let start = end;
        end += length;
        format!(
            "\"{name}\":{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[{start},{end}]}}",
            length / 4
        )
    });
    let header = format!("{{{}}}", described.collect::<Vec<_>>().join(","));
    let values = noise(end, 3);
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &values].concat();
    fs::write(set.path().join("model.safetensors"), &bytes).unwrap();
    let path = set.path().join("container");
    let inputs = inputs_of(&[set.path().to_owned()]).unwrap().files;
    let packed = pack(&inputs, &path, &Packing::default()).unwrap();
    // Two numbers of three bytes at most say where a variable lies, and the header takes less than ten for each.
    assert!(packed.stored_bytes < (values.len() + 4000 * 16) as u64, "{packed:?}");
    let container = Container::open(&path).unwrap();
    let mut buffer = Vec::new();
    container.read(0, stdchk_formats::Extent { offset: 0, length: bytes.len() as u64 }, &mut buffer).unwrap();
    assert!(buffer == bytes);
    let variables: usize = container.list().unwrap().iter().map(|file| file.variables.len()).sum();
    assert_eq!(variables, entries.len());
}

#[test]
fn links_in_a_folder_are_left_out_and_told() {
    let set = TempDir::new().unwrap();
    fs::write(set.path().join("x"), "1").unwrap();
    std::os::unix::fs::symlink("x", set.path().join("link")).unwrap();
    let inputs = inputs_of(&[set.path().to_owned()]).unwrap();
    assert_eq!((inputs.files.len(), inputs.left_out), (1, vec![set.path().join("link")]));
}

#[test]
fn headers_that_all_claim_the_rest_of_the_file_do_not_keep_a_reader_for_ever() {
    const COUNT: u64 = 100_000;
    let mut bytes = MAGIC.to_vec();
    for left in (0..COUNT).rev() {
        let record_length = left * HEADER_LENGTH as u64;
        let (kind, payload_length) = (SectionKind::Block, 0);
        let record_hash = [1; 16];
        bytes.extend(Header { kind, record_length, payload_length, record_hash }.to_bytes());
    }
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("hostile");
    fs::write(&path, bytes).unwrap();
    // Hashing all that is claimed would take minutes; what is done instead takes a second or two.
    let opened = Container::open(&path);
    assert!(matches!(opened.err(), Some(AggregateError::NoContainer { .. })));
}

#[test]
fn names_that_leave_the_folder_and_names_that_clash_are_refused() {
    let set = TempDir::new().unwrap();
    fs::create_dir(set.path().join("a")).unwrap();
    fs::create_dir(set.path().join("b")).unwrap();
    fs::write(set.path().join("a/same"), b"1").unwrap();
    fs::write(set.path().join("b/same"), b"2").unwrap();
    let clash = inputs_of(&[set.path().join("a/same"), set.path().join("b/same")]);
    assert!(matches!(clash, Err(AggregateError::Invalid(_))));
    let path = set.path().join("container");
    let mut input = inputs_of(&[set.path().join("a/same")]).unwrap().files;
    input[0].name = "../outside".to_owned();
    pack(&input, &path, &Packing::default()).unwrap();
    let outcome = Container::open(&path).unwrap().unpack(&set.path().join("out"), &Unpacking::default());
    assert!(matches!(outcome, Err(AggregateError::Invalid(_))));
    let name = "same".to_owned();
    let twice = ["a/same", "b/same"].map(|path| Input { name: name.clone(), path: set.path().join(path) });
    pack(&twice, &path, &Packing::default()).unwrap();
    let outcome = Container::open(&path).unwrap().unpack(&set.path().join("out"), &Unpacking::default());
    assert!(matches!(outcome, Err(AggregateError::Invalid(_))));
}
