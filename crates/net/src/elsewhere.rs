//! Work that would keep a runtime's threads from moving bytes: it is done on threads of its own.
//!
//! In a simulation there are no such threads, since the order in which they end is nobody's choice: the work is a task that begins
//! when the network says ([`crate::transport::Network::work_begins_after`]).

use tokio::task::JoinHandle;

use crate::transport::simulated;

/// Begins `work`; it goes on when the handle is dropped. Must be called on a tokio runtime.
pub fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match simulated() {
        None => tokio::task::spawn_blocking(work),
        Some(network) => {
            let pause = network.work_begins_after();
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                work()
            })
        }
    }
}
