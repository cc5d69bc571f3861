//! One version of one file comes back, every chunk verified before a byte of it is written.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stdchk_client::Reader;
use tokio::task::block_in_place;

use crate::error::{About, Result};
use crate::namespace;
use crate::pool::Pool;
use crate::target::Target;
use crate::text::shown;
use crate::transfer::{NewFile, Stream, copy_out};
use crate::watch::{Stage, Watch, Work};

/// A file that came back.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Fetched {
    /// Where it is.
    pub path: PathBuf,
    /// Its version; `None`: the file has none, and is empty.
    pub version: Option<u64>,
    /// Its size, bytes.
    pub bytes: u64,
}

impl Pool {
    /// Fetches a version into a local file, which appears once it is whole, verified and on disk, with the permissions of the
    /// file and the time of the version. A file that is there is replaced; into a folder it goes under its own name.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::Code::NotFound): there is no such file or version, or no folder for the new file.
    /// [`Code::Damaged`](crate::Code::Damaged), [`Code::Unreachable`](crate::Code::Unreachable): content can't be had. What
    /// was at the path is as it was.
    pub async fn get(&self, target: &Target, path: &Path, watch: &Watch) -> Result<Fetched> {
        let reader = namespace::open(&self.client, target).await?;
        let path = match target.name() {
            Some(name) if path.is_dir() => path.join(name),
            _ => path.to_owned(),
        };
        let stage = watch.begin(Work::Get, reader.size());
        fetch(&reader, &target.shown(), &path, &stage).await?;
        Ok(Fetched { path, version: reader.version(), bytes: reader.size() })
    }

    /// Writes a version, verified, to `sink`, which is called `sink_name` in messages. The number of bytes. Writing may
    /// block; when this fails or is dropped, a part may be written.
    ///
    /// # Errors
    /// As those of [`Pool::get`]; [`Code::BrokenPipe`](crate::Code::BrokenPipe): the reader of `sink` went away.
    pub async fn get_to(
        &self,
        target: &Target,
        sink: &mut (dyn Write + Send),
        sink_name: &str,
        watch: &Watch,
    ) -> Result<u64> {
        let reader = namespace::open(&self.client, target).await?;
        let stage = watch.begin(Work::Get, reader.size());
        copy_out(&reader, &target.shown(), &mut Stream(&mut *sink), sink_name, &stage).await?;
        block_in_place(|| sink.flush()).about(sink_name)?;
        Ok(reader.size())
    }
}

/// Fetches a version into a local file, which appears once it is whole.
pub(crate) async fn fetch(reader: &Arc<Reader>, name: &str, path: &Path, stage: &Stage) -> Result {
    let mut file = NewFile::start(path)?;
    copy_out(reader, name, &mut file, &shown(&path.display().to_string()), stage).await?;
    block_in_place(|| file.finish(reader.opened().mode, reader.mtime()))
}
