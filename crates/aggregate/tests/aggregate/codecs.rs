//! Every step gives every bit pattern back, and refuses damaged input without a panic.
//!
//! Relies on seeded data of many kinds and lengths. The idea: the same list of steps and inputs runs through both
//! properties, so that a new step is covered by adding one line.

use stdchk_aggregate::codec::{Lane, Shape, Side, Step, decode, encode};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ (self.0 >> 29)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[5]
    }
}

fn chains() -> Vec<Vec<Step>> {
    let lanes = [Lane::U16, Lane::U32, Lane::U64, Lane::F32, Lane::F64, Lane::F16];
    let mut chains =
        vec![vec![], vec![Step::Lz4], vec![Step::Zstd(3)], vec![Step::Zstd(19)], vec![Step::Gzip(6)]];
    chains.extend([
        vec![Step::Fpc(10)],
        vec![Step::Fpc(16), Step::Gzip(6)],
        vec![Step::XorBase],
        vec![Step::Changed(2)],
        vec![Step::Changed(7)],
        vec![Step::Changed(8)],
        vec![Step::Ragged],
    ]);
    for size in [1, 2, 3, 4, 7, 8, 16, 88] {
        chains.push(vec![Step::Swap(size), Step::Shuffle(size)]);
        chains.push(vec![Step::BitShuffle(size), Step::Lz4]);
        chains.push(vec![Step::Planes(size, 1)]);
    }
    for size in [4, 8] {
        chains.push(vec![Step::Distinct(size)]);
    }
    for lane in lanes {
        chains.push(vec![Step::Lorenzo(lane), Step::Zstd(1)]);
        chains.push(vec![Step::Difference(lane)]);
        chains.push(vec![Step::DifferenceBase(lane), Step::Planes(2, 1)]);
        chains.push(vec![Step::Pco(lane, 4)]);
    }
    chains
}

/// Bytes of many kinds, with a base of the same length.
fn inputs() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut random = Random(3);
    let special =
        [f64::NAN, -f64::NAN, -0.0, 0.0, 5e-324, -5e-324, f64::INFINITY, f64::NEG_INFINITY, 1.0, f64::MAX];
    let mut inputs: Vec<Vec<u8>> = vec![vec![], vec![1], vec![0; 1000], vec![7; 4099]];
    inputs.push((0..3001).map(|_| random.byte()).collect());
    inputs.push((0..40 * 41).flat_map(|n| (f64::from(n) / 50.0).sin().to_le_bytes()).collect());
    inputs.push((0..2000_u16).flat_map(|n| (f32::from(n) / 50.0).cos().to_le_bytes()).collect());
    inputs.push((0..700).flat_map(|n| special[n % special.len()].to_le_bytes()).collect());
    inputs.push((0..700).flat_map(|_| (0x7ff0_0000_0000_0000 | random.next() >> 12).to_le_bytes()).collect());
    let record = |length: u16| {
        (0..length).flat_map(move |n| f64::from(if n == 0 { length } else { n * 3 }).to_le_bytes())
    };
    inputs.push((0..50).flat_map(|n| record([11, 12, 25][n % 3])).collect());
    let based = |bytes: Vec<u8>| {
        let base =
            bytes.iter().enumerate().map(|(n, byte)| if n % 50 == 0 { byte ^ 3 } else { *byte }).collect();
        (bytes, base)
    };
    inputs.into_iter().map(based).collect()
}

fn shape_lists() -> Vec<Vec<Shape>> {
    vec![
        vec![],
        vec![Shape(vec![40, 41])],
        vec![Shape(vec![3, 7, 5]), Shape(vec![11]), Shape(vec![2, 2, 3, 5])],
        vec![Shape(vec![0, 4]), Shape(vec![u64::MAX, 2])],
    ]
}

#[test]
fn every_chain_gives_every_byte_back() {
    for (raw, base) in inputs() {
        for (list, shapes) in shape_lists().into_iter().enumerate() {
            let side = Side { shapes: &shapes, base: &base };
            let once = |steps: &Vec<Step>| steps.iter().any(Step::needs_shapes) || list == 0;
            for steps in chains().into_iter().filter(once) {
                let stored = encode(&steps, &raw, side).unwrap();
                let back = decode(&steps, &stored, raw.len(), side);
                assert!(
                    back.as_ref().is_ok_and(|back| *back == raw),
                    "{steps:?} on {} bytes: {back:?}",
                    raw.len()
                );
            }
        }
    }
}

#[test]
fn damaged_input_is_refused_or_decoded_to_something_but_never_panics() {
    let mut random = Random(11);
    for (raw, base) in inputs() {
        let shapes = [Shape(vec![8, 9])];
        let side = Side { shapes: &shapes, base: &base };
        for steps in chains() {
            let stored = encode(&steps, &raw, side).unwrap();
            for _ in 0..10 {
                let mut damaged = stored.clone();
                let position = usize::try_from(random.next() % (damaged.len().max(1) as u64)).unwrap();
                match random.next() % 3 {
                    0 => damaged.truncate(position),
                    1 if !damaged.is_empty() => damaged[position] = random.byte(),
                    _ => damaged.insert(position.min(damaged.len()), random.byte()),
                }
                if let Ok(bytes) = decode(&steps, &damaged, raw.len(), side) {
                    assert_eq!(bytes.len(), raw.len());
                }
            }
        }
    }
}

#[test]
fn smooth_fields_shrink_under_their_predictor() {
    let wave = |n: i32| (f64::from(n % 100) / 30.0).sin() + (f64::from(n / 100) / 40.0).cos();
    let raw: Vec<u8> = (0..100 * 100).flat_map(|n| wave(n).to_le_bytes()).collect();
    let side = Side { shapes: &[Shape(vec![100, 100])], base: &[] };
    let plain = encode(&[Step::Zstd(19)], &raw, side).unwrap().len();
    let predicted = encode(&[Step::Lorenzo(Lane::F64), Step::Pco(Lane::U64, 8)], &raw, side).unwrap().len();
    assert!(predicted * 3 < plain * 2, "{predicted} against {plain}");
}

#[test]
fn a_field_that_repeats_transposed_and_rounded_otherwise_shrinks_to_its_half() {
    let mut random = Random(11);
    let side = 200_usize;
    let values: Vec<u64> = (0..side * side).map(|_| random.next() | 0x3ff0 << 48).collect();
    let field: Vec<u8> = (0..side * side)
        .flat_map(|place| {
            let (row, column) = (place / side, place % side);
            let value = values[row.min(column) * side + row.max(column)];
            // The lower half is rounded otherwise.
            (if row > column { value ^ 1 } else { value }).to_le_bytes()
        })
        .collect();
    let steps = [Step::Distinct(8)];
    let coded = encode(&steps, &field, Side::default()).unwrap();
    assert!(coded.len() * 100 < field.len() * 60, "{} of {}", coded.len(), field.len());
    assert_eq!(decode(&steps, &coded, field.len(), Side::default()).unwrap(), field);
}

#[test]
fn a_scattered_change_of_two_percent_takes_a_fortieth_of_a_bf16_tensor() {
    let mut random = Random(17);
    // Sums of twelve bytes are close to normally distributed, as weights are.
    let mut weight = || {
        let sum: i32 = (0..12).map(|_| i32::from(random.byte())).sum();
        let [.., low, high] = ((sum - 1530) as f32 / 20_000.0).to_le_bytes();
        [low, high]
    };
    let base: Vec<[u8; 2]> = (0..500_000).map(|_| weight()).collect();
    let mut later = base.clone();
    for place in (0..later.len()).step_by(50) {
        let shifted = (place + usize::from(weight()[0]) % 50).min(later.len() - 1);
        later[shifted] = weight();
    }
    let (base, later) = (base.into_flattened(), later.into_flattened());
    let (steps, side) = ([Step::Changed(2)], Side { shapes: &[], base: &base });
    let coded = encode(&steps, &later, side).unwrap();
    // 6 MiB of 256 MiB is one in 42.
    assert!(coded.len() * 42 < later.len(), "{} of {}", coded.len(), later.len());
    assert_eq!(decode(&steps, &coded, later.len(), side).unwrap(), later);
}
