//! Panics of the store's engine as errors: it takes damaged bytes for its own mistakes, and says so by panicking.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Whether this thread is within [`without_panic`], where the error says what happened.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// What `work` returns, or what it panicked with. Whatever `work` had in its hands must not be used after a panic.
pub fn without_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !EXPECTED.get() {
                usual(info);
            }
        }));
    });
    EXPECTED.set(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    EXPECTED.set(false);
    result.map_err(|payload| format!("its structure makes no sense ({})", words(&*payload)))
}

fn words(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_else(|| "no reason given".to_owned());
    // One line of an assertion's several says enough.
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_words_and_the_next_call_works() {
        let panicked = without_panic(|| -> u8 { std::panic::panic_any("page 7\nis gone".to_owned()) });
        assert_eq!(panicked.unwrap_err(), "its structure makes no sense (page 7)");
        assert_eq!(without_panic(|| 5), Ok(5));
    }
}
