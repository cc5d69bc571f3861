//! The system's random numbers, which are drawn from a seed in the thread of a life: identities, and the order of hash maps.
//!
//! The standard library and `getrandom` ask the C library for them. This file has a function of that name, which comes before the
//! C library's in everything that is linked into this test.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;

use super::random::Random;

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Does something in a thread of its own whose random numbers come from a seed.
pub fn with_seed<T: Send>(seed: u64, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            SEED.set(Some(seed));
            work()
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn fill(bytes: &mut [u8]) -> isize {
    match SEED.get() {
        Some(seed) => {
            let mut random = Random::new(seed);
            bytes
                .chunks_mut(8)
                .for_each(|part| part.copy_from_slice(&random.next().to_le_bytes()[..part.len()]));
            SEED.set(Some(random.next()));
        }
        None => {
            let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes));
            if read.is_err() {
                return -1;
            }
        }
    }
    isize::try_from(bytes.len()).unwrap_or(-1)
}

/// As `getrandom(2)`.
#[expect(unsafe_code, reason = "the function that it stands for has raw pointers")]
// SAFETY: it does what the C library's function of this name promises.
#[unsafe(no_mangle)]
extern "C" fn getrandom(bytes: *mut u8, length: usize, _flags: u32) -> isize {
    if length == 0 {
        return 0;
    }
    // SAFETY: whoever asks for random numbers gives room for so many bytes.
    fill(unsafe { std::slice::from_raw_parts_mut(bytes, length) })
}
