//! The owner's pause: a file in the benefactor's folder, made by `stdchk benefactor pause` and removed by `resume`.
//!
//! The file is all of the state. So it holds whether the benefactor runs or not, after each restart, and whatever is killed; who may
//! pause is who may write into the folder. The benefactor looks for the file before it serves, and then twice a second.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::service::{Benefactor, blocking};

/// The file, in the data directory.
const PAUSED: &str = "paused";
/// Pause between two looks: an owner who waits for it hardly notices.
const LOOK: Duration = Duration::from_millis(500);

/// Pauses the benefactor of this folder, running or not, or resumes it. Done by the time it returns, also if the machine fails then.
///
/// # Errors
/// The folder can't be written to. Then it is as before.
pub fn set_paused(folder: &Path, paused: bool) -> io::Result<()> {
    let path = folder.join(PAUSED);
    let done = if paused { File::create(path).map(drop) } else { fs::remove_file(path) };
    match done {
        Err(error) if error.kind() != ErrorKind::NotFound || paused => Err(error),
        _ => File::open(folder)?.sync_all(),
    }
}

/// Whether the benefactor of this folder is paused.
///
/// # Errors
/// The folder can't be looked into.
pub fn is_paused(folder: &Path) -> io::Result<bool> {
    folder.join(PAUSED).try_exists()
}

/// Does for ever what the owner decides. While the folder can't be looked into, that is what the owner decided last.
pub(crate) async fn obey(benefactor: Arc<Benefactor>, folder: Arc<Path>) {
    loop {
        sleep(LOOK).await;
        let looked_into = Arc::clone(&folder);
        if let Ok(Ok(paused)) = blocking(move || is_paused(&looked_into)).await {
            benefactor.set_paused(paused);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_can_be_gone_twice_and_a_folder_that_is_not_there_is_told() {
        let folder = tempfile::tempdir().unwrap();
        for paused in [false, true, true, false, false] {
            set_paused(folder.path(), paused).unwrap();
            assert_eq!(is_paused(folder.path()).unwrap(), paused);
        }
        let nowhere = folder.path().join("nowhere");
        assert!(set_paused(&nowhere, true).is_err() && set_paused(&nowhere, false).is_err());
    }
}
