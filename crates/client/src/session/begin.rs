//! How a session begins: at the manager, and with what the file has.

use std::sync::Arc;

use stdchk_model::message::manager::{ManagerReply, ManagerRequest};
use stdchk_model::{Failure, Ino, SessionId};

use super::Session;
use crate::map_view::MapView;
use crate::pool::Inner;

impl Session {
    pub(crate) async fn open(pool: &Arc<Inner>, ino: Ino) -> Result<Arc<Self>, Failure> {
        let (session, client) = (SessionId(crate::random()?), pool.client);
        Self::open_as(pool, session, ManagerRequest::OpenSession { session, client, ino }, false).await
    }

    /// A session on a file of which nothing is kept. What it had is read as far as it can be, to be found again.
    pub(crate) async fn replace(pool: &Arc<Inner>, ino: Ino) -> Result<Arc<Self>, Failure> {
        let (session, client) = (SessionId(crate::random()?), pool.client);
        let request = ManagerRequest::OpenSession { session, client, ino };
        let session = Self::open_as(pool, session, request, true).await?;
        session.truncate(0).await?;
        Ok(session)
    }

    /// A session on a new file without a name, under the policy of a folder.
    pub(crate) async fn open_container(pool: &Arc<Inner>, folder: Ino) -> Result<Arc<Self>, Failure> {
        let (session, client) = (SessionId(crate::random()?), pool.client);
        Self::open_as(pool, session, ManagerRequest::OpenContainer { session, client, folder }, false).await
    }

    async fn open_as(
        pool: &Arc<Inner>,
        id: SessionId,
        request: ManagerRequest,
        is_replaced: bool,
    ) -> Result<Arc<Self>, Failure> {
        let opened = pool.manager.ask(&request).await?;
        let ManagerReply::Session { policy, base, base_root, attr } = opened else {
            return Err(crate::unexpected("OpenSession"));
        };
        let view = match pool.load_view(base_root.as_ref()).await {
            Err(failure) if is_replaced => {
                tracing::warn!(ino = %attr.ino, %failure, "the version that is replaced can't be read");
                Ok(MapView::empty())
            }
            view => view,
        };
        let session = view.and_then(|view| {
            let base = base.filter(|base| base.size == view.size());
            Self::new(pool, id, attr, policy, view, base).map(Arc::new)
        });
        match &session {
            Ok(session) => drop(pool.sessions.lock().insert(id, Arc::downgrade(session))),
            Err(_) => end(pool, id),
        }
        session
    }
}

/// Ends a session that came to nothing: the manager would keep it for as long as this client lives.
fn end(pool: &Arc<Inner>, session: SessionId) {
    let manager = Arc::clone(&pool.manager);
    let ended = ManagerRequest::CloseSession { session, interrupted: false };
    pool.background(async move { drop(manager.ask(&ended).await) });
}
