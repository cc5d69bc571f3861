//! The journals that benefactors keep, of this machine and of others, as files.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stdchk_benefactor::journal::JOURNAL_FILE;
use stdchk_model::message::benefactor::{BenefactorReply, BenefactorRequest};
use stdchk_model::message::handshake::Role;
use stdchk_model::{BenefactorId, PoolId};
use stdchk_net::own::{self, Access};
use stdchk_net::{BufferPool, Bytes, Connection, Identity, Keys, data_dir};

use crate::local::{Home, PoolRecord, Role as LocalRole};

/// Time for a benefactor's answer.
const LIMIT: Duration = Duration::from_secs(20);

const NO_NUMBER: &str = "it has never been in the pool";

/// A place where a journal may be.
pub(super) struct Source {
    /// As people know it.
    pub(super) name: String,
    /// Whose journal, and where; or why there is none.
    pub(super) journal: Result<(BenefactorId, PathBuf), String>,
}

/// The journals of the benefactors of this machine.
pub(super) fn local(home: &Home, record: &PoolRecord) -> Vec<Source> {
    let source = |index| {
        let directory = home.directory(LocalRole::Benefactor(index));
        let number = data_dir::benefactor_of(&directory).map_err(|error| error.to_string());
        let journal = number.and_then(|number| {
            let number = number.ok_or_else(|| NO_NUMBER.to_owned())?;
            Ok((number, directory.join(JOURNAL_FILE)))
        });
        Source { name: directory.display().to_string(), journal }
    };
    (0..record.benefactors).map(source).collect()
}

/// Fetches the journal of the benefactor at `address` into `folder`.
pub(super) async fn fetch(
    address: &str,
    pool: PoolId,
    keys: Option<Arc<Keys>>,
    folder: &Path,
    number: usize,
) -> Source {
    let journal = fetch_to(address, pool, keys, &folder.join(number.to_string())).await;
    Source { name: address.to_owned(), journal }
}

async fn fetch_to(
    address: &str,
    pool: PoolId,
    keys: Option<Arc<Keys>>,
    path: &Path,
) -> Result<(BenefactorId, PathBuf), String> {
    let identity = Identity { role: Role::Operator, pool: Some(pool), keys };
    let connection = Connection::open(Role::Benefactor, address, &identity, &BufferPool::new(1 << 20)).await;
    let connection = connection.map_err(|error| error.to_string())?;
    let made = own::file(path, Access::Make).and_then(|file| file.set_len(0).map(|()| file));
    let mut file = made.map_err(|error| error.to_string())?;
    let free = rustix::fs::fstatvfs(&file).map_err(|error| error.to_string())?;
    let free = free.f_bavail.saturating_mul(free.f_frsize);
    let mut offset = 0;
    loop {
        let request = BenefactorRequest::Journal { offset };
        let answer = connection.call(&request, Bytes::new(), LIMIT).await;
        let (reply, _) = answer.map_err(|error| error.to_string())?;
        let BenefactorReply::Journal { benefactor, length, bytes } = reply else {
            return Err("it answers with something else than its journal".to_owned());
        };
        if length.max(offset + bytes.len() as u64) > free {
            return Err(format!(
                "it says that its journal has {length} bytes, and this disk has {free} free"
            ));
        }
        file.write_all(&bytes).map_err(|error| error.to_string())?;
        offset += bytes.len() as u64;
        if bytes.is_empty() || offset >= length {
            let benefactor = benefactor.ok_or_else(|| NO_NUMBER.to_owned())?;
            return Ok((benefactor, path.to_owned()));
        }
    }
}
