//! Small files that describe far more than they hold: parsing one costs little time and memory.
//!
//! Relies on files put together here by hand. The idea: a test process with an allocator that counts; what is found may
//! take a few times the length of the file, never a multiple that the file chooses.

#![expect(clippy::unwrap_used, reason = "a test that meets the unexpected fails here")]
#![expect(unsafe_code, reason = "an allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stdchk_formats::{Reason, parse};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Held by the test that runs, since all count alike.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Parses `file`; why it has no variables, and the most bytes that were held meanwhile.
#[expect(clippy::ptr_arg, reason = "a source has a size, which a slice as a trait object has not")]
fn parsed(file: &Vec<u8>) -> (Option<Reason>, usize) {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let reason = parse(file).reason;
    (reason, PEAK.load(Ordering::Relaxed) - before)
}

/// A zip archive with one stored member.
fn archive(name: &str, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap().to_le_bytes();
    let name_length = u16::try_from(name.len()).unwrap().to_le_bytes();
    let mut file = b"PK\x03\x04".to_vec();
    file.extend([0; 14]);
    file.extend([length, length].concat());
    file.extend([name_length, [0; 2]].concat());
    file.extend([name.as_bytes(), content].concat());
    let directory = u32::try_from(file.len()).unwrap();
    file.extend(b"PK\x01\x02");
    file.extend([0; 16]);
    file.extend([length, length].concat());
    file.extend(name_length);
    file.extend([0; 16]);
    file.extend(name.as_bytes());
    let directory_length = u32::try_from(file.len()).unwrap() - directory;
    file.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
    file.extend([directory_length.to_le_bytes(), directory.to_le_bytes()].concat());
    file.extend([0; 2]);
    file
}

fn text(content: &str) -> Vec<u8> {
    [b"X".as_slice(), &u32::try_from(content.len()).unwrap().to_le_bytes(), content.as_bytes()].concat()
}

#[test]
fn a_long_key_that_thousands_of_entries_share_is_not_copied_for_each() {
    let _alone = alone();
    let mut pickle = b"\x80\x02".to_vec();
    pickle.extend(text(&"k".repeat(1 << 20)));
    pickle.extend(b"q\x000}");
    for _ in 0..50_000 {
        // The key from the memo, a new empty list, set as an item.
        pickle.extend(b"h\x00]s");
    }
    pickle.push(b'.');
    let file = archive("model/data.pkl", &pickle);
    let (reason, peak) = parsed(&file);
    assert_eq!(reason, None);
    assert!(peak < 40 * file.len(), "{peak} bytes for a file of {}", file.len());
}

#[test]
fn a_pickle_without_end_is_given_up() {
    let _alone = alone();
    let file = archive("model/data.pkl", &vec![b'N'; 32 << 20]);
    let (reason, peak) = parsed(&file);
    assert!(matches!(reason, Some(Reason::Invalid { what: "pickle", .. })), "{reason:?}");
    assert!(peak < 700 << 20, "{peak} bytes");
}

#[test]
fn records_without_number_are_given_up() {
    let _alone = alone();
    // Two record variables of one byte each, in so many records that their ranges would take gigabytes.
    let file_bytes: u32 = 160 << 20;
    let mut file = b"CDF\x01".to_vec();
    let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_be_bytes());
    [file_bytes / 8, 10, 1, 1].iter().for_each(|value| word(&mut file, *value));
    file.extend(b"t\0\0\0");
    [0, 0, 0, 11, 2].iter().for_each(|value| word(&mut file, *value));
    for (name, begin) in [(b"a\0\0\0", 1024), (b"b\0\0\0", 1028)] {
        word(&mut file, 1);
        file.extend(name);
        [1, 0, 0, 0, 1, 4, begin].iter().for_each(|value| word(&mut file, *value));
    }
    file.resize(file_bytes as usize + 2048, 0);
    let (reason, peak) = parsed(&file);
    assert!(matches!(reason, Some(Reason::TooMuchFound { .. } | Reason::TooMuchWork { .. })), "{reason:?}");
    assert!(peak < 1 << 30, "{peak} bytes");
}
