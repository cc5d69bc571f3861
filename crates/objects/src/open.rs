//! Opening a container that is an object, and the base that it may need.
//!
//! Relies on [`ObjectSource`]. The idea: a base is looked for among the containers beside, nearest name first, since the
//! aggregator codes a set against the one just before.

use std::path::PathBuf;

use stdchk_aggregate::{AggregateError, BaseSet, Container};

use crate::place::Place;
use crate::settings::Settings;
use crate::sink::about;
use crate::source::ObjectSource;
use crate::store::Bucket;

/// Opens the container at a place; `base` is the one that it was packed against, unless that one lies beside it.
///
/// # Errors
/// The store can't be reached, there is no such object, it is no container, or its base isn't found.
pub fn open(place: &Place, settings: &Settings, base: Option<BaseSet>) -> Result<Container, AggregateError> {
    let bucket = Bucket::open(place, settings).map_err(about("reach", place))?;
    let source = Box::new(source_of(&bucket, place)?);
    Container::open_source_with_base(&path(place), source, |identity| match base {
        Some(base) => Ok(Some(base)),
        None => beside(&bucket, place, identity),
    })
}

/// Opens a container that may be a base.
///
/// # Errors
/// Those of [`open`].
pub fn open_base(place: &Place, settings: &Settings) -> Result<BaseSet, AggregateError> {
    let bucket = Bucket::open(place, settings).map_err(about("reach", place))?;
    base_at(&bucket, place)
}

fn base_at(bucket: &Bucket, place: &Place) -> Result<BaseSet, AggregateError> {
    BaseSet::open_source(&path(place), Box::new(source_of(bucket, place)?))
}

fn source_of(bucket: &Bucket, place: &Place) -> Result<ObjectSource, AggregateError> {
    ObjectSource::of(bucket.clone(), &place.key).map_err(about("read", place))
}

fn path(place: &Place) -> PathBuf {
    PathBuf::from(place.to_string())
}

fn beside(bucket: &Bucket, place: &Place, identity: [u8; 16]) -> Result<Option<BaseSet>, AggregateError> {
    let (folder, own) = place.split();
    let listed = bucket.list(&folder.prefix()).map_err(about("list", &folder))?;
    let mut keys: Vec<String> =
        listed.into_iter().map(|one| one.key).filter(|key| key.ends_with(".pack")).collect();
    keys.retain(|key| *key != place.key);
    // Names of the same length that come just before, in the order of the listing, are those of the sets just before.
    let own = folder.below(own).key;
    keys.sort_by_key(|key| (key.len() != own.len() || *key > own, std::cmp::Reverse(key.clone())));
    for key in keys {
        let other = place.with_key(key);
        match base_at(bucket, &other) {
            Ok(base) if base.identity() == identity => return Ok(Some(base)),
            Err(error @ (AggregateError::Io { .. } | AggregateError::Stopped)) => return Err(error),
            // What can't be opened, or needs a base itself, is none.
            Ok(_) | Err(_) => {}
        }
    }
    Ok(None)
}
