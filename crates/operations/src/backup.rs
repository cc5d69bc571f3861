//! Backups of the manager's store while it runs.

use std::time::Duration;

use stdchk_client::Pool as Client;
use stdchk_model::PoolId;
use stdchk_model::message::manager::Moment;

use crate::error::{About, Code, Error, Result};
use crate::pool::Pool;

/// A copy of the manager's store of one moment, which is read part by part.
pub struct Backup {
    client: Client,
    about: String,
    pool: PoolId,
    id: u64,
    moment: Moment,
    next: Option<u32>,
}

impl Pool {
    /// Takes a copy of the manager's store as it is now. The manager keeps one at a time, for a minute after it was read last. What it names isn't
    /// deleted for as long as the manager has run for `keep`, or until it is given up; zero: it may be deleted.
    ///
    /// # Errors
    /// [`Code::Denied`]: this member of the pool is no operator.
    pub async fn begin_backup(&self, keep: Duration) -> Result<Backup> {
        let about = self.shown();
        let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
        let (id, moment) = self.client.begin_backup(keep_ms).await.about(&about)?;
        let pool = self.client.id().ok_or_else(|| {
            Error::new(Code::Unreachable, &about, "it didn't say which pool is its own", "try again")
        })?;
        Ok(Backup { client: self.client.clone(), about, pool, id, moment, next: Some(0) })
    }
}

impl Pool {
    /// Gives up the registered backup that shows a commit: what it alone names is collected.
    ///
    /// # Errors
    /// [`Code::NotFound`]: none is registered. [`Code::Denied`]: this member of the pool is no operator.
    pub async fn release_backup(&self, commit: u64) -> Result<()> {
        self.client.release_backup(commit).await.about(self.shown())
    }
}

impl Backup {
    /// Whose store it is.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Number of the last commit in it.
    pub fn commit(&self) -> u64 {
        self.moment.commit
    }

    /// The next bytes; `None`: there are no more.
    ///
    /// # Errors
    /// [`Code::Unreachable`]: the manager doesn't answer. Another one: it let go of the copy, or its store is damaged.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        let Some(part) = self.next else { return Ok(None) };
        let (bytes, last) = self.client.read_backup(self.id, part).await.about(&self.about)?;
        self.next = (!last).then_some(part + 1);
        Ok(Some(bytes))
    }
}
