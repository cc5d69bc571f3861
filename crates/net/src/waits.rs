//! What this process waits for. A wait that lasts long is said in its log, once, with what is waited for and what is known of
//! those who have it; and once more when it ends.
//!
//! A wait that never ends is a defect, whatever the cause: without this a mount that hangs looks like one that is idle. Waits
//! that are over at once cost nothing here.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Once};
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::own::{self, Access};

/// How long a wait is that is said, as a rule: a put or a get of a benefactor that doesn't answer takes less.
pub const LONG: Duration = Duration::from_secs(15);
/// Longest time between two looks at the waits.
const LOOK: Duration = Duration::from_secs(5);
/// Waits that are said together: those that began first have the cause among them.
const SAID_MAX: usize = 8;

struct Wait {
    what: Box<dyn Fn() -> String + Send>,
    since: Instant,
    said: bool,
}

struct Waits {
    /// By number, so that those that began first stand in front.
    all: BTreeMap<u64, Wait>,
    begun: u64,
}

static WAITS: Mutex<Waits> = Mutex::new(Waits { all: BTreeMap::new(), begun: 0 });

/// One wait under way; over when dropped.
struct Entry(u64);

impl Entry {
    fn begin(what: Box<dyn Fn() -> String + Send>) -> Self {
        let mut waits = WAITS.lock();
        waits.begun += 1;
        let number = waits.begun;
        waits.all.insert(number, Wait { what, since: Instant::now(), said: false });
        Self(number)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let ended = WAITS.lock().all.remove(&self.0);
        if let Some(wait) = ended.filter(|wait| wait.said) {
            let seconds = wait.since.elapsed().as_secs();
            tracing::info!(seconds, "the wait for {} is over", (wait.what)());
        }
    }
}

/// Waits for `future`. `what` says what for; it is asked when the wait has lasted long, and must not wait itself.
pub async fn on<T>(what: impl Fn() -> String + Send + 'static, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let (mut what, mut entry) = (Some(what), None);
    let output = poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        if let (Poll::Pending, Some(what)) = (&polled, what.take()) {
            entry = Some(Entry::begin(Box::new(what)));
        }
        polled
    })
    .await;
    drop(entry);
    output
}

/// Waits for permits of a semaphore that is never closed.
pub async fn permits(semaphore: &Arc<Semaphore>, count: u32) -> OwnedSemaphorePermit {
    let permits = Arc::clone(semaphore).acquire_many_owned(count).await;
    permits.unwrap_or_else(|closed| unreachable!("{closed}, which nobody does"))
}

/// Looks at the waits of this process from now on, and says those that last for `long`. What lasts so long at present also
/// stands in the file `shown_in`, one wait a line; the file is there as long as there are such waits. Calling this again changes
/// nothing.
pub fn watch(long: Duration, shown_in: Option<PathBuf>) {
    static STARTED: Once = Once::new();
    // A thread of its own: the runtime's may all be among those who wait.
    STARTED.call_once(|| {
        let started = std::thread::Builder::new().name("stdchk-waits".to_owned()).spawn(move || {
            let (mut shown, pause) = (shown_in.is_some(), LOOK.min(long));
            loop {
                let found = look(long);
                found.iter().filter(|found| found.is_new).for_each(|Long { what, seconds, .. }| {
                    tracing::warn!(seconds, "this process waits for {what}");
                });
                if let Some(path) = &shown_in {
                    shown = show(&found, path, shown);
                }
                std::thread::sleep(pause);
            }
        });
        if let Err(error) = started {
            tracing::warn!(%error, "long waits are not said");
        }
    });
}

/// A wait that lasts long.
struct Long {
    what: String,
    seconds: u64,
    /// It was not said before.
    is_new: bool,
}

/// The waits that last for so long; from now on they are said.
fn look(long: Duration) -> Vec<Long> {
    let mut waits = WAITS.lock();
    let lasting = waits.all.values_mut().filter(|wait| wait.since.elapsed() >= long);
    let say = |wait: &mut Wait| Long {
        what: (wait.what)(),
        seconds: wait.since.elapsed().as_secs(),
        is_new: !std::mem::replace(&mut wait.said, true),
    };
    lasting.take(SAID_MAX).map(say).collect()
}

/// Writes what nobody needs once the machine is down.
fn write(path: &Path, lines: &str) -> std::io::Result<()> {
    let mut file = own::file(path, Access::Make)?;
    file.set_len(0)?;
    file.write_all(lines.as_bytes())
}

/// Writes the file that shows these waits, or removes it if there are none and one is there; whether one is there now.
fn show(found: &[Long], path: &Path, is_there: bool) -> bool {
    let line = |found: &Long| format!("{} s for {}\n", found.seconds, found.what);
    let lines: String = found.iter().map(line).collect();
    let shown = match (lines.is_empty(), is_there) {
        (true, false) => Ok(()),
        (true, true) => std::fs::remove_file(path),
        (false, _) => write(path, &lines),
    };
    if let Err(error) = shown
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "long waits can't be shown there");
    }
    !found.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_is_known_while_it_lasts_and_said_once_and_one_that_is_over_at_once_never_is() {
        let mine = || WAITS.lock().all.values().filter(|wait| (wait.what)() == "a test").count();
        on(|| "a test".to_owned(), async {}).await;
        let room = Semaphore::new(0);
        let waiting = on(|| "a test".to_owned(), async { drop(room.acquire().await) });
        let looking = async {
            assert_eq!(mine(), 1);
            let said =
                |long| look(long).iter().find(|found| found.what == "a test").map(|found| found.is_new);
            assert_eq!(said(Duration::from_secs(3600)), None);
            // Other tests of this process wait as well: so many of theirs may stand in front.
            while said(Duration::ZERO).is_none() {
                tokio::task::yield_now().await;
            }
            assert_ne!(said(Duration::ZERO), Some(true));
            room.add_permits(1);
        };
        tokio::join!(waiting, looking);
        assert_eq!(mine(), 0);
    }

    #[test]
    fn long_waits_stand_in_the_file_as_long_as_there_are_some() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("waits");
        let long = Long { what: "room".to_owned(), seconds: 20, is_new: true };
        assert!(show(&[long], &path, false));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "20 s for room\n");
        assert!(!show(&[], &path, true) && !path.exists());
        assert!(!show(&[], &path, true), "what is gone already is no failure");
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_is_over() {
        let mine = || WAITS.lock().all.values().filter(|wait| (wait.what)() == "given up").count();
        let never = on(|| "given up".to_owned(), std::future::pending::<()>());
        assert!(tokio::time::timeout(Duration::from_millis(5), never).await.is_err());
        assert_eq!(mine(), 0);
    }
}
