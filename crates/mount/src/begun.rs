//! A task that begins in the thread of its caller, and that the runtime takes over once there is more to do.
//!
//! Most of what the kernel asks for is one question to the pool: it leaves from the thread that received the request, and no
//! other thread is woken before the answer is there.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use parking_lot::Mutex;
use tokio::runtime::Handle as Runtime;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A task that waits for the first time.
struct Begun {
    runtime: Runtime,
    /// None while it begins, and once the runtime has it.
    task: Mutex<Option<Task>>,
    is_woken: AtomicBool,
}

impl Begun {
    fn go_on(&self) {
        // The lock ends here: a runtime that is gone drops the task, which may wake it.
        let task = self.task.lock().take();
        task.map(|task| self.runtime.spawn(task));
    }
}

impl Wake for Begun {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        self.go_on();
    }
}

/// Begins a task here, as far as it comes without waiting.
pub(crate) fn begin(runtime: &Runtime, task: impl Future<Output = ()> + Send + 'static) {
    let (mut task, is_woken): (Task, _) = (Box::pin(task), AtomicBool::new(false));
    let begun = Arc::new(Begun { runtime: runtime.clone(), task: Mutex::default(), is_woken });
    let waker = Waker::from(Arc::clone(&begun));
    let _entered = runtime.enter();
    let mut poll = || task.as_mut().poll(&mut Context::from_waker(&waker));
    // A task that panics ends alone; this thread must not.
    if catch_unwind(AssertUnwindSafe(&mut poll)).is_ok_and(|polled| polled.is_pending()) {
        *begun.task.lock() = Some(task);
        // It may have been woken before it was there to go on.
        if begun.is_woken.load(Ordering::SeqCst) {
            begun.go_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_task_comes_to_its_end_whenever_it_is_woken() {
        let ended = Arc::new(AtomicUsize::new(0));
        let count = |waits: usize| {
            let (ended, (wakes, mut woken)) = (Arc::clone(&ended), oneshot::channel::<()>());
            begin(&Runtime::current(), async move {
                for _ in 0..waits {
                    tokio::task::yield_now().await; // Wakes itself while it begins.
                }
                let _ = (&mut woken).await;
                ended.fetch_add(1, Ordering::SeqCst);
            });
            wakes
        };
        let wakes: Vec<_> = (0..1000).map(|number| count(number % 3)).collect();
        assert_eq!(ended.load(Ordering::SeqCst), 0);
        wakes.into_iter().for_each(|wakes| wakes.send(()).unwrap());
        begin(&Runtime::current(), async { panic!("it ends alone") });
        let all = async {
            while ended.load(Ordering::SeqCst) < 1000 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
    }
}
