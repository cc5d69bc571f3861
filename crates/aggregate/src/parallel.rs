//! Pieces of work on several threads, until all are done or one fails.
//!
//! Relies on the standard library. The idea: threads take the next piece, in order; none is begun after a failure.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Does all pieces on so many threads, the caller's among them. The results stand in the order of the pieces.
///
/// # Errors
/// The first failure.
pub fn in_parallel<Item: Sync, Done: Send, Failure: Send>(
    pieces: &[Item],
    threads: usize,
    each: impl Fn(usize, &Item) -> Result<Done, Failure> + Sync,
) -> Result<Vec<Done>, Failure> {
    let (next, all) = (AtomicUsize::new(0), Mutex::new(Ok(Vec::with_capacity(pieces.len()))));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(number) else { return };
            let outcome = each(number, piece);
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            match (outcome, &mut *all) {
                (Ok(done), Ok(all)) => all.push((number, done)),
                (Err(error), Ok(_)) => {
                    next.store(pieces.len(), Ordering::Relaxed);
                    *all = Err(error);
                }
                (_, Err(_)) => {}
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(pieces.len()) {
            scope.spawn(work);
        }
        work();
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner)?;
    all.sort_unstable_by_key(|(number, _)| *number);
    Ok(all.into_iter().map(|(_, done)| done).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stand_in_the_order_of_the_pieces_whatever_the_number_of_threads() {
        let pieces: Vec<usize> = (0..100).collect();
        for threads in [0, 1, 3, 200] {
            let squares = in_parallel(&pieces, threads, |number, piece| Ok::<_, ()>(number * piece));
            assert_eq!(squares, Ok(pieces.iter().map(|piece| piece * piece).collect()));
        }
        assert_eq!(in_parallel(&[], 4, |_, (): &()| Ok::<_, ()>(())), Ok(Vec::new()));
    }

    #[test]
    fn after_a_failure_no_piece_is_begun() {
        let begun = AtomicUsize::new(0);
        let outcome = in_parallel(&[(); 1000], 1, |number, ()| {
            begun.fetch_add(1, Ordering::Relaxed);
            if number == 10 { Err("full") } else { Ok(()) }
        });
        assert_eq!(outcome, Err("full"));
        assert_eq!(begun.into_inner(), 11);
    }
}
