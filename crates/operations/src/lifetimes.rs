//! How long checkpoint sets live: what goes and why, the end of a job, and seals.

use serde::Serialize;
use stdchk_model::message::manager::{Change, SetFate};
use stdchk_model::{Ino, Timestep};

use crate::error::{About, Result};
use crate::namespace;
use crate::pool::Pool;
use crate::target::Target;

/// What becomes of the checkpoint sets of a folder.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Fates {
    /// The folder.
    pub app: String,
    /// Newest timestep first.
    pub sets: Vec<SetFate>,
}

impl Fates {
    /// The sets that go.
    pub fn going(&self) -> impl Iterator<Item = &SetFate> {
        self.sets.iter().filter(|set| set.goes)
    }

    /// Bytes of the sets that go.
    pub fn going_bytes(&self) -> u64 {
        self.going().map(|set| set.bytes).sum()
    }
}

impl Pool {
    /// What would become of the sets of a folder now, under a `lifetime` as a policy has it, or under that of the folder. Changes nothing.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::Code::NotFound): there is no such folder. [`Code::Invalid`](crate::Code::Invalid): it can't be read so.
    pub async fn fates(&self, app: &Target, lifetime: Option<&str>) -> Result<Fates> {
        let folder = namespace::resolve_folder(&self.client, app).await?.ino;
        self.fates_of(app, folder, lifetime, false).await
    }

    /// The job of a folder has succeeded: all sets but the newest complete one go, except what is sealed or kept by `every` of the
    /// folder's lifetime. They go once that one has all its copies, and not before. Tells what becomes of each.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::Code::NotFound): there is no such folder, or no complete set in it.
    pub async fn done(&self, app: &Target, dry_run: bool) -> Result<Fates> {
        let ino = namespace::resolve_folder(&self.client, app).await?.ino;
        let fates = self.fates_of(app, ino, None, true).await?;
        if !dry_run {
            self.client.change(Change::Finish { ino }).await.map(drop).about(app.shown())?;
        }
        Ok(fates)
    }

    /// Lets no lifetime remove a set, nor the end of a job; or takes that back.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::Code::NotFound): there is no such folder, or no such set in it.
    pub async fn seal(&self, app: &Target, timestep: Timestep, sealed: bool) -> Result {
        let ino = namespace::resolve_folder(&self.client, app).await?.ino;
        self.client.change(Change::Seal { ino, timestep, sealed }).await.map(drop).about(app.shown())
    }

    async fn fates_of(&self, app: &Target, folder: Ino, lifetime: Option<&str>, done: bool) -> Result<Fates> {
        let sets = self.client.fates(folder, lifetime, done).await.about(app.shown())?;
        Ok(Fates { app: app.path(), sets })
    }
}
