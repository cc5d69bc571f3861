//! For whom the manager is asked: a mount serves all users of its machine, and each request of the kernel is one user's.
//!
//! The user goes along with the task that works for it, so that no operation between the kernel's request and the manager's has to
//! pass it on, or could forget to. Tasks that were spawned beside it, and all others, ask for nobody: as the host, which may do all with
//! files, or as the user to whom the host's certificate is bound. Those keep promises that were made to users before: they
//! commit, push from the spool, and keep chunks of open files.

use std::future::Future;

use stdchk_model::User;

tokio::task_local! {
    static USER: Option<User>;
}

/// Does work for a user; `None`: for the host itself.
pub fn acting_for<F: Future>(user: Option<User>, work: F) -> impl Future<Output = F::Output> {
    USER.scope(user, work)
}

/// The user for whom the present task works.
pub fn user() -> Option<User> {
    USER.try_with(Option::clone).ok().flatten()
}
