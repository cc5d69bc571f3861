//! Backups of the manager's store while it runs.

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
    /// Takes a copy of the manager's store as it is now. The manager keeps one at a time, for a minute after it was read last.
    ///
    /// # Errors
    /// [`Code::Denied`]: this member of the pool is no operator.
    pub async fn begin_backup(&self) -> Result<Backup> {
        let about = self.shown();
        let (id, moment) = self.client.begin_backup().await.about(&about)?;
        let pool = self.client.id().ok_or_else(|| {
            Error::new(Code::Unreachable, &about, "it didn't say which pool is its own", "try again")
        })?;
        Ok(Backup { client: self.client.clone(), about, pool, id, moment, next: Some(0) })
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
