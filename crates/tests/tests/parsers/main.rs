//! Parsers of outside bytes take any bytes: no panic, no endless loop, nothing understood in two ways.
//!
//! The short form: from bytes that the parsers understand, and from inputs that a fuzzer has found (`corpus/`), others are made
//! in an order that is the same everywhere. The long form, guided by the code that inputs reach, is `scripts/fuzz`
//! (docs/design/0603).
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod seeds;
mod targets;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use targets::{TARGETS, Target};

/// Numbers that lie on the edges of what parsers compute with.
const EDGES: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count.max(1) as u64).unwrap()
    }
}

/// Changes some bytes in one way; `other` lends some of its own.
fn change(bytes: &mut Vec<u8>, other: &[u8], chance: &mut Chance) {
    let at = chance.below(bytes.len());
    let end = (at + 1 + chance.below(16)).min(bytes.len());
    match chance.below(7) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << chance.below(8),
        1 if !bytes.is_empty() => bytes[at] = u8::try_from(chance.next() % 256).unwrap(),
        2 => drop(bytes.drain(at..end)),
        3 => {
            let copied = bytes[at..end].to_vec();
            bytes.splice(at..at, copied);
        }
        4 => {
            let edge = EDGES[chance.below(EDGES.len())].to_le_bytes();
            let length = [1, 2, 4, 8][chance.below(4)];
            bytes.splice(at..(at + length).min(bytes.len()), edge[..length].iter().copied());
        }
        5 if !other.is_empty() => {
            let from = chance.below(other.len());
            let to = (from + 1 + chance.below(64)).min(other.len());
            bytes.splice(at..end, other[from..to].iter().copied());
        }
        _ => bytes.truncate(at),
    }
}

/// Inputs of a target: its seeds, and what the fuzzer has found.
fn known(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parsers/corpus").join(target.name);
    let mut paths: Vec<_> =
        fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    (target.seeds)().into_iter().chain(paths.iter().map(|path| fs::read(path).unwrap())).collect()
}

fn try_out(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let known = known(target);
    let mut chance = Chance(7);
    let read = |bytes: &[u8]| {
        if catch_unwind(AssertUnwindSafe(|| (target.read)(bytes))).is_err() {
            let digits: String = bytes.iter().take(4096).map(|byte| format!("{byte:02x}")).collect();
            panic!("{} can't take these {} bytes: {digits}", target.name, bytes.len());
        }
    };
    known.iter().for_each(|bytes| read(bytes));
    for _ in 0..target.inputs {
        let mut bytes = known[chance.below(known.len())].clone();
        let other = &known[chance.below(known.len())];
        for _ in 0..1 + chance.below(4) {
            change(&mut bytes, other, &mut chance);
        }
        read(&bytes);
    }
}

#[test]
fn frames() {
    try_out("frames");
}

#[test]
fn messages() {
    try_out("messages");
}

#[test]
fn maps() {
    try_out("maps");
}

#[test]
fn blocks() {
    try_out("blocks");
}

#[test]
fn sealed() {
    try_out("sealed");
}

#[test]
fn containers() {
    try_out("containers");
}

#[test]
fn formats() {
    try_out("formats");
}

#[test]
fn chunks() {
    try_out("chunks");
}

#[test]
fn logs() {
    try_out("logs");
}

#[test]
fn texts() {
    try_out("texts");
}

#[test]
fn segments() {
    try_out("segments");
}

#[test]
fn records() {
    try_out("records");
}

#[test]
fn journals() {
    try_out("journals");
}
