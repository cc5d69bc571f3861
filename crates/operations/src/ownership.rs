//! To whom files and folders belong.

use stdchk_model::message::manager::Change;

use crate::error::{About, Result};
use crate::namespace;
use crate::pool::Pool;
use crate::target::Target;

impl Pool {
    /// Gives a file or folder to a user and its group, and sets its permission bits, as far as they are given.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::Code::NotFound): it is not there. [`Code::Denied`](crate::Code::Denied): only who runs the pool gives
    /// something to another user, and only the owner changes the bits.
    pub async fn set_ownership(
        &self,
        target: &Target,
        owner: Option<(u32, u32)>,
        mode: Option<u32>,
    ) -> Result {
        let ino = namespace::resolve(&self.client, target).await?.ino;
        let (uid, gid) = owner.unzip();
        let change = Change::SetAttr { ino, mode, uid, gid, atime: None, mtime: None };
        self.client.change(change).await.map(drop).about(target.shown())
    }
}
