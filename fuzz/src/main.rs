//! The parsers of `crates/tests/tests/parsers`, fuzzed: `STDCHK_FUZZ` names one. What the parser understands is written into the
//! first folder given, so that the fuzzer begins with it.
#![no_main]

#[path = "../../crates/tests/tests/parsers/seeds.rs"]
mod seeds;
#[path = "../../crates/tests/tests/parsers/targets.rs"]
mod targets;

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use targets::{TARGETS, Target};

fn target() -> &'static Target {
    static TARGET: OnceLock<&'static Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let names = TARGETS.each_ref().map(|target| target.name);
        let wanted = std::env::var("STDCHK_FUZZ").unwrap_or_default();
        let found = TARGETS.iter().find(|target| target.name == wanted);
        let target = found.unwrap_or_else(|| panic!("STDCHK_FUZZ is `{wanted}`, not one of {names:?}"));
        if let Some(folder) = std::env::args().skip(1).find(|argument| !argument.starts_with('-')) {
            for (number, seed) in (target.seeds)().iter().enumerate() {
                fs::write(Path::new(&folder).join(format!("seed-{number:03}")), seed).unwrap();
            }
        }
        target
    })
}

fuzz_target!(
    init: {
        target();
    },
    |bytes: &[u8]| (target().read)(bytes)
);
