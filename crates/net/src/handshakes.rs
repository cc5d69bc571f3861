//! The greetings of TLS: a signature and three checks of one each, for everybody who calls. They are made on one thread of their own, which gives way.
//!
//! A manager answers all requests on one thread, and strangers may call as often as they like. So that what they make it compute takes
//! nothing from members who are served, it takes one processor at most, and a third of that while others need it
//! (docs/design/0703). How many may wait is the server's affair ([`crate::server`]).

use std::future::Future;
use std::io;
use std::sync::OnceLock;

use rustix::process::{getpriority_process, setpriority_process};
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;

/// By how much the thread is nicer than the one that begins it: about a third of what that gets.
const NICER: i32 = 5;

static THREAD: OnceLock<Handle> = OnceLock::new();

/// A handshake under way; it ends when this is dropped.
struct UnderWay<T>(JoinHandle<T>);

impl<T> Drop for UnderWay<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Shakes hands on the thread for that.
///
/// # Errors
/// There is no such thread, and the system makes none.
pub(crate) async fn shake<T: Send + 'static>(
    hands: impl Future<Output = io::Result<T>> + Send + 'static,
) -> io::Result<T> {
    let mut under_way = UnderWay(thread()?.spawn(hands));
    (&mut under_way.0).await.map_err(io::Error::other)?
}

fn thread() -> io::Result<&'static Handle> {
    if let Some(handle) = THREAD.get() {
        return Ok(handle);
    }
    let runtime = Builder::new_current_thread().build()?;
    let handle = runtime.handle().clone();
    // Of two that begin at once, the thread of the one that is late has nothing to do.
    std::thread::Builder::new().name("handshakes".to_owned()).spawn(move || {
        let own = getpriority_process(None);
        if let Err(error) = own.and_then(|own| setpriority_process(None, own.saturating_add(NICER))) {
            tracing::warn!(%error, "handshakes don't give way to other work");
        }
        runtime.block_on(std::future::pending::<()>());
    })?;
    Ok(THREAD.get_or_init(|| handle))
}
