//! The address of the manager of a local pool, from the record `pool.json` in the pool's directory.
//!
//! `stdchk up` writes that record, with more fields than are read here.

use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;
use stdchk_net::own;
use stdchk_net::transport::unix_address;

use crate::error::{About, Code, Error, Result};

/// Layout of the record that this code reads.
///
/// History: 1, with the address of the manager of this machine; 2, with that of a manager elsewhere.
pub const LAYOUT: u32 = 2;
/// The record, in the pool's directory.
pub const RECORD: &str = "pool.json";
/// Where the keys of this host are, in a pool of several machines.
pub const KEYS: &str = "keys";
/// Where the manager serves this host.
const SOCKET: &str = "run/manager.sock";

/// The fields of the record that concern the manager.
#[derive(Deserialize)]
struct Record {
    layout: u32,
    #[serde(default)]
    manager: Option<String>,
    #[serde(default)]
    store: Option<String>,
}

/// The address of the manager of the pool in `data`, or the addresses of several with commas between them.
pub(crate) fn manager(data: &Path) -> Result<String> {
    let path = data.join(RECORD);
    let text = match own::text(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let next = "start one with `stdchk up`, or name one with `--data DIR` or `--manager HOST:PORT`";
            return Err(Error::new(Code::NotFound, data.display(), "there is no local pool here", next));
        }
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(Error::invalid(
                data.display(),
                "it is not a folder",
                "give a folder with `--data DIR`",
            ));
        }
        text => text.about(path.display())?,
    };
    let unusable = |cause: String| {
        Error::invalid(path.display(), cause, "use the stdchk that wrote it, or another `--data DIR`")
    };
    let record: Record = serde_json::from_str(&text)
        .map_err(|error| unusable(format!("it is not the record of a pool ({error})")))?;
    match record.layout {
        LAYOUT => Ok(address(data, record.manager.as_deref(), record.store.is_some())),
        other => Err(unusable(format!("it has layout {other}, this stdchk reads layout {LAYOUT}"))),
    }
}

/// The address at which this host reaches the manager, `elsewhere` or here. A manager that shares the pool's state with others may stand by:
/// then another one leads.
pub fn address(data: &Path, elsewhere: Option<&str>, shares_state: bool) -> String {
    let here = unix_address(&data.join(SOCKET));
    match elsewhere {
        None => here,
        // An address behind a socket would be taken for a part of its path.
        Some(elsewhere) if shares_state => format!("{elsewhere},{here}"),
        Some(elsewhere) => elsewhere.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_tells_where_the_manager_is_and_a_later_layout_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path();
        assert_eq!(manager(data).unwrap_err().code, Code::NotFound);
        std::fs::write(data.join("file"), "").unwrap();
        assert_eq!(manager(&data.join("file")).unwrap_err().code, Code::Invalid);
        let socket = format!("unix:{}/run/manager.sock", data.display());
        for (record, wanted) in [
            (r#"{"layout":2,"benefactors":4}"#, socket.clone()),
            (r#"{"layout":2,"manager":"a:1"}"#, "a:1".to_owned()),
            (r#"{"layout":2,"manager":"a:1","store":"etcd://e:1/p"}"#, format!("a:1,{socket}")),
        ] {
            std::fs::write(data.join(RECORD), record).unwrap();
            assert_eq!(manager(data).unwrap(), wanted);
        }
        for record in [r#"{"layout":3}"#, "{", "[]"] {
            std::fs::write(data.join(RECORD), record).unwrap();
            assert_eq!(manager(data).unwrap_err().code, Code::Invalid, "{record}");
        }
    }
}
