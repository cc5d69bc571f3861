//! What `pack`, `unpack` and `aggregate` share: where containers are, how they are opened, and what their errors mean to a
//! command.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stdchk_aggregate::{AggregateError, BaseSet, Container};
use stdchk_objects::{ObjectError, Place, Service, Settings, Trouble};

use crate::exit::{CommandError, Exit, Outcome};
use crate::output::shown;

const WHO_ASKS: &str =
    "set AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY as the store demands";
const NOT_HAPPENED: &str = "what had not ended did not happen; run it again";

/// Where a container is, or a folder of them.
pub enum Location {
    /// In a file system.
    Path(PathBuf),
    /// In an object store.
    Object(Place, Box<Settings>),
}

impl Location {
    /// What an argument means; how the store is reached is known then.
    pub fn of(argument: &Path) -> Outcome<Self> {
        let text = argument.to_string_lossy();
        if !Place::is_meant(&text) {
            return Ok(Self::Path(argument.to_owned()));
        }
        let wrong =
            |error: ObjectError| CommandError::usage(&text, error, "`stdchk aggregate --help` says more");
        let place: Place = text.parse().map_err(wrong)?;
        let settings = Settings::from_environment(place.service);
        let settings = settings.map_err(|error| CommandError::usage(&text, error, WHO_ASKS))?;
        Ok(Self::Object(place, Box::new(settings)))
    }
}

/// Opens a container, with the one that it was packed against: `base`, or else one beside it.
pub fn open(path: &Path, base: Option<&Path>) -> Outcome<Container> {
    let base = base.map(open_base).transpose()?;
    let opened = match (Location::of(path)?, base) {
        (Location::Object(place, settings), base) => stdchk_objects::open(&place, &settings, base),
        (Location::Path(path), Some(base)) => Container::open_with_base(&path, Some(Arc::new(base))),
        (Location::Path(path), None) => Container::open_beside_base(&path),
    };
    opened.map_err(failed)
}

/// Opens a container against which others are coded.
pub fn open_base(path: &Path) -> Outcome<BaseSet> {
    let opened = match Location::of(path)? {
        Location::Path(path) => BaseSet::open(&path),
        Location::Object(place, settings) => stdchk_objects::open_base(&place, &settings),
    };
    opened.map_err(failed)
}

/// The error of a command for one of packing or unpacking.
pub fn failed(error: AggregateError) -> CommandError {
    let trouble = match &error {
        AggregateError::Io { source, path, .. } => {
            ObjectError::within(source).map(|trouble| of_store(trouble.trouble, path))
        }
        _ => None,
    };
    match trouble {
        Some((exit, next)) => CommandError::plain(exit, shown(&format!("{error}; {next}"))),
        None => stdchk_operations::Error::from(error).into(),
    }
}

/// What trouble with an object store means, and what to do.
fn of_store(trouble: Trouble, object: &Path) -> (Exit, &'static str) {
    let (exit, next) = match trouble {
        Trouble::NoCredentials => (Exit::Usage, WHO_ASKS),
        Trouble::Settings => (Exit::Usage, "check AWS_ENDPOINT_URL and AWS_REGION"),
        Trouble::Unreachable => (Exit::Unreachable, "check AWS_ENDPOINT_URL and the network, then try again"),
        Trouble::Denied => {
            (Exit::Other, "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and what they are allowed")
        }
        Trouble::Archived => (Exit::Unreachable, "restore it from the store's archive first, then try again"),
        Trouble::Stopped => (Exit::Interrupted, NOT_HAPPENED),
        Trouble::NoBucket => (Exit::NotFound, "make the bucket, or check its name"),
        Trouble::NoObject => (Exit::NotFound, "check the name"),
        Trouble::Damaged => (Exit::Integrity, "look after the store, then run it again"),
        Trouble::NoUpload | Trouble::NoRange | Trouble::Other => {
            (Exit::Other, "look after the store, then run it again")
        }
    };
    let is_setting = matches!(
        trouble,
        Trouble::Settings | Trouble::NoCredentials | Trouble::Unreachable | Trouble::Denied
    );
    match object.to_string_lossy().parse() {
        Ok(Place { service: Service::Azure, .. }) if is_setting => {
            (exit, "check the variables AZURE_*, what they are allowed and the network, then try again")
        }
        Ok(Place { service: Service::Google, .. }) if is_setting => {
            (exit, "check the variables GOOGLE_*, what they are allowed and the network, then try again")
        }
        _ => (exit, next),
    }
}
