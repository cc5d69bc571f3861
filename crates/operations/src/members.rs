//! The members of a pool of several machines: who has joined, and who is shut out.

use serde::Serialize;
use stdchk_model::BenefactorId;
use stdchk_model::message::handshake::MemberId;
use stdchk_model::message::manager::{MemberInfo, TimeNs};

use crate::error::{About, Result};
use crate::pool::Pool;
use crate::text::in_time;

/// A host that joined with a token.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct JoinedHost {
    /// Which of all.
    #[serde(serialize_with = "shown")]
    pub id: MemberId,
    /// What its host called itself then.
    pub host: String,
    /// What it may be: `client`, `benefactor`, `operator`.
    pub roles: Vec<&'static str>,
    /// When it joined.
    #[serde(serialize_with = "in_time")]
    pub joined: TimeNs,
    /// The benefactors that it has registered as since the manager's start.
    #[serde(serialize_with = "numbers")]
    pub benefactors: Vec<BenefactorId>,
    /// Its keys are accepted no more.
    pub revoked: bool,
    /// The number of the user for whom it acts as a client; `None`: as whom it says.
    pub user: Option<u32>,
}

impl From<MemberInfo> for JoinedHost {
    fn from(info: MemberInfo) -> Self {
        let MemberInfo { id, host, roles, joined, benefactors, revoked, user } = info;
        let (roles, user) = (roles.iter().map(|role| role.name()).collect(), user.map(|user| user.uid));
        Self { id, host, roles, joined, benefactors, revoked, user }
    }
}

impl Pool {
    /// Who has joined a pool of several machines with a token, in the order in which they did.
    ///
    /// # Errors
    /// [`Code::Denied`](crate::Code::Denied): all of the pool is on one machine, or the caller is no operator.
    pub async fn members(&self) -> Result<Vec<JoinedHost>> {
        let members = self.client.members().await.about(self.shown())?;
        Ok(members.into_iter().map(JoinedHost::from).collect())
    }

    /// Sets where the pool's managers serve, `HOST:PORT`: all members learn it within seconds, and at their next start.
    ///
    /// # Errors
    /// [`Code::Denied`](crate::Code::Denied): the caller is no operator. [`Code::Invalid`](crate::Code::Invalid): these are no addresses.
    pub async fn set_managers(&self, addresses: Vec<String>) -> Result {
        self.client.set_managers(addresses).await.about(self.shown())
    }

    /// Accepts the keys of a member no more, for ever: its connections end, at benefactors within a heartbeat.
    ///
    /// # Errors
    /// [`Code::Denied`](crate::Code::Denied): the caller is no operator.
    pub async fn revoke(&self, member: MemberId) -> Result {
        self.client.revoke(member).await.about(format_args!("member {member}"))
    }
}

fn shown<S: serde::Serializer>(id: &MemberId, out: S) -> Result<S::Ok, S::Error> {
    out.collect_str(id)
}

fn numbers<S: serde::Serializer>(ids: &[BenefactorId], out: S) -> Result<S::Ok, S::Error> {
    out.collect_seq(ids.iter().map(|id| id.0))
}
