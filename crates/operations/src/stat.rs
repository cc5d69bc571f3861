//! What is known of one object, and whether its content verifies.

use serde::Serialize;
use stdchk_client::{Depth, Pool as Client};
use stdchk_model::Redundancy;
use stdchk_model::message::manager::{Attr, FileKind, TimeNs, VersionInfo};

use crate::check::{Checker, Health};
use crate::error::{About, Code, Error, Result};
use crate::list::Version;
use crate::namespace;
use crate::pool::Pool;
use crate::target::Target;
use crate::text::{in_octal, in_time};
use crate::watch::{Watch, Work};

/// What is known of an object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Stat {
    /// Where it is.
    pub path: String,
    /// The number of its inode.
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
    /// Its permission bits.
    #[serde(serialize_with = "in_octal")]
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// How many names it has.
    pub links: u32,
    /// The size of the version, bytes.
    pub size: u64,
    /// When the version, or the folder, was changed.
    #[serde(serialize_with = "in_time")]
    pub mtime: TimeNs,
    /// Where a symbolic link leads to.
    pub link_target: Option<String>,
    /// Of a file: the version that was asked for, if it has one.
    pub version: Option<Version>,
    /// Of a file: how many versions are kept.
    pub versions: u64,
    /// Of a file: whether the version is encrypted with a key that this client lacks.
    pub lacks_key: bool,
    /// Of a file: how many copies each chunk should have.
    pub redundancy: Option<Redundancy>,
    /// Of a file: what a look at its content found.
    pub health: Option<Health>,
}

impl Stat {
    /// Success if all content can be read now.
    ///
    /// # Errors
    /// [`Code::Damaged`]: a part of it has no intact copy. [`Code::Unreachable`]: a part of it can't be reached now.
    pub fn verdict(&self, target: &Target) -> Result {
        let Some(health) = self.health.as_ref().filter(|health| !health.is_readable()) else { return Ok(()) };
        let (code, next) = match health.lost {
            0 => (
                Code::Unreachable,
                "`stdchk status` shows which benefactors are missing; try again once they are back",
            ),
            _ => (Code::Damaged, "use another version (`stdchk ls --versions`)"),
        };
        Err(Error::new(code, target.shown(), health.reason(), next))
    }
}

impl Pool {
    /// What is known of an object. The content of a file is verified at every benefactor that holds a part of it;
    /// [`Stat::verdict`] says whether it can be read.
    ///
    /// # Errors
    /// [`Code::NotFound`]: there is no such object or version. [`Code::WrongKind`]: a version was asked for of something
    /// that has none.
    pub async fn stat(&self, target: &Target, watch: &Watch) -> Result<Stat> {
        let pool = &self.client;
        let attr = namespace::resolve(pool, target).await?;
        match attr.kind {
            FileKind::File => file(pool, target, watch).await,
            _ if target.version.is_some() => {
                let file = namespace::resolve_file(pool, target).await?;
                Ok(of_attr(target, &file))
            }
            FileKind::Symlink => {
                let link_target = Some(pool.read_link(attr.ino).await.about(target.shown())?);
                Ok(Stat { link_target, ..of_attr(target, &attr) })
            }
            FileKind::Directory | FileKind::Pipe | FileKind::Socket => Ok(of_attr(target, &attr)),
        }
    }
}

fn of_attr(target: &Target, attr: &Attr) -> Stat {
    Stat {
        path: target.path(),
        ino: attr.ino.0,
        kind: attr.kind,
        mode: attr.mode & 0o7777,
        uid: attr.uid,
        gid: attr.gid,
        links: attr.links,
        size: attr.size,
        mtime: attr.mtime,
        link_target: None,
        version: None,
        versions: 0,
        lacks_key: false,
        redundancy: None,
        health: None,
    }
}

async fn file(pool: &Client, target: &Target, watch: &Watch) -> Result<Stat> {
    let mut file = namespace::FileLooks::new(pool, target);
    loop {
        let attr = file.look().await?;
        match content(pool, target, &attr, watch).await {
            Err(error) if file.is_replaced(&error).await? => {}
            outcome => return outcome,
        }
    }
}

async fn content(pool: &Client, target: &Target, attr: &Attr, watch: &Watch) -> Result<Stat> {
    let (shown, mut stat) = (target.shown(), of_attr(target, attr));
    let versions = namespace::kept_versions(pool, attr.ino).await.about(&shown)?;
    let redundancy = pool.policy(attr.ino).await.about(&shown)?.redundancy;
    let stage = watch.begin(Work::Verify, 0);
    let mut checker = Checker::new(pool, &stage, Depth::Read);
    let (info, health) =
        checker.version(attr.ino, target.version, redundancy.distance()).await.about(&shown)?;
    stat.versions = versions.len() as u64;
    stat.redundancy = Some(redundancy);
    if let Some(info) = info {
        stat.lacks_key = info.key.is_some_and(|key| pool.encryption_keys().require(key).is_err());
        describe(&mut stat, &info);
    }
    stat.health = Some(health);
    Ok(stat)
}

fn describe(stat: &mut Stat, info: &VersionInfo) {
    (stat.size, stat.mtime) = (info.size, info.mtime);
    stat.version = Some(Version::from(info));
}
