//! This host's manager among several that share the pool's state in etcd.
//!
//! Its folder may be that of a manager whose state was on its disk and moves into etcd, or a new one with a copy of the pool's authority.

use std::fmt::{Display, Formatter};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::Args;
use stdchk_manager::etcd::{AskError, Login, Place, managers_in};
use stdchk_manager::{AUTHORITY, moved_to};
use stdchk_model::message::manager::ManagerInfo;
use stdchk_net::transport::socket_of;

use super::home::{Home, PoolRecord, Role};
use super::start::running;
use crate::command::manager::recover::copy_authority;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::output;
use crate::settings::check_address;

/// The arguments of `up` that run one of several managers.
#[derive(Args, Debug)]
pub struct SharedArguments {
    /// Keep the pool's state in etcd, where several managers share it: etcd://HOST:PORT[,...]/PREFIX. The state on this machine's disk moves there
    #[arg(long, value_name = "PLACE")]
    pub store: Option<Place>,
    /// Run one of the pool's managers here, which serves other machines at this address; with `--store`
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// A copy of the folder `authority` of another manager of the pool
    #[arg(long, value_name = "DIR", requires = "listen")]
    pub authority: Option<PathBuf>,
}

impl SharedArguments {
    /// The record of a host on which nothing of a pool is yet; `None`: it isn't to run one of several managers.
    pub fn new_record(&self) -> Outcome<Option<PoolRecord>> {
        match (&self.listen, &self.store) {
            (Some(_), Some(_)) => Ok(Some(PoolRecord::new(0, 0, 0))),
            (Some(listen), None) => Err(CommandError::usage(
                format_args!("--listen {listen}"),
                "there is no pool here",
                "`stdchk pool init --listen ADDRESS` makes one; to run one more manager of a pool, say where its state is with `--store`",
            )),
            (None, _) => Ok(None),
        }
    }

    /// Has the record of a host say where the pool's state is, and puts the authority in its place.
    pub fn settle(&self, home: &Home, record: &mut PoolRecord) -> Outcome {
        let manager = home.directory(Role::Manager);
        let before = (record.store.clone(), record.listen.clone());
        let moved = moved_to(&manager).about(manager.display())?;
        if let Some(place) = &self.store {
            record.store = Some(place.to_string());
        } else if let Some(place) = moved.filter(|_| record.store.is_none()) {
            output::note(format_args!(
                "stdchk up: the pool's state was moved into {place}: the manager here is started with it"
            ));
            record.store = Some(place.to_string());
        }
        if let Some(listen) = &self.listen {
            check_address("--listen", listen)?;
            if record.store.is_none() {
                let cause = "the pool's state is on one machine's disk, so one manager serves it";
                return Err(CommandError::usage(
                    format_args!("--listen {listen}"),
                    cause,
                    "say where in etcd it is with `--store`",
                ));
            }
            record.listen = Some(listen.clone());
        }
        if before != (record.store.clone(), record.listen.clone()) && running(home, Role::Manager)?.is_some()
        {
            let cause = "the manager here runs, and was started otherwise";
            return Err(CommandError::usage(
                home.path().display(),
                cause,
                "`stdchk down` first, then this again",
            ));
        }
        self.authority.as_deref().map_or(Ok(()), |from| take_authority(from, &manager))
    }
}

/// Copies another manager's authority into this one's folder.
fn take_authority(from: &Path, manager: &Path) -> Outcome {
    let own = manager.join(AUTHORITY);
    if fs::symlink_metadata(&own).is_ok() {
        let next = "leave `--authority` out; if that is not the authority of this pool, move it away first";
        return Err(CommandError::usage(own.display(), "there is an authority", next));
    }
    DirBuilder::new().mode(0o700).recursive(true).create(manager).about(manager.display())?;
    let new = manager.join("authority.new");
    if fs::symlink_metadata(&new).is_ok() {
        fs::remove_dir_all(&new).about(new.display())?;
    }
    copy_authority(from, &new)?;
    fs::rename(&new, &own).about(own.display())
}

/// An etcd with the pool's state that is of no use now.
pub struct SilentEtcd {
    members: Vec<String>,
    cause: AskError,
}

impl SilentEtcd {
    /// It as the error of a command, with what to do.
    pub fn error(&self, next: &str) -> CommandError {
        CommandError::plain(Exit::Unreachable, format_args!("{self}; {next}"))
    }
}

impl Display for SilentEtcd {
    fn fmt(&self, to: &mut Formatter<'_>) -> std::fmt::Result {
        let members = self.members.join(", ");
        match &self.cause {
            AskError::Away(cause) => write!(to, "etcd at {members}, which does not answer: {cause}"),
            cause => write!(to, "etcd at {members}: {cause}"),
        }
    }
}

/// Where the managers serve on the network that share the state, as etcd says; none where the state isn't in etcd.
///
/// # Errors
/// etcd doesn't answer, or refuses.
pub async fn other_managers(record: &PoolRecord) -> Result<Vec<String>, SilentEtcd> {
    let Some(place) = record.store.as_ref().and_then(|place| place.parse::<Place>().ok()) else {
        return Ok(Vec::new());
    };
    let addresses = known_managers(&place).await?.into_iter().flat_map(|manager| manager.addresses);
    Ok(addresses.filter(|address| socket_of(address).is_none()).collect())
}

/// The managers that etcd knows at this place.
///
/// # Errors
/// It doesn't answer, or refuses.
pub async fn known_managers(place: &Place) -> Result<Vec<ManagerInfo>, SilentEtcd> {
    // As for the manager that is started here.
    let login = std::env::var("STDCHK_STORE_LOGIN").ok().and_then(|login| login.parse::<Login>().ok());
    let found = managers_in(place, login.as_ref()).await;
    found.map_err(|cause| SilentEtcd { members: place.members(), cause })
}
