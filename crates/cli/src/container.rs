//! What `pack` and `unpack` share: opening containers, and what their errors mean to a command.

use std::path::Path;
use std::sync::Arc;

use stdchk_aggregate::{AggregateError, BaseSet, Container};

use crate::exit::{CommandError, Exit, Outcome, from_io};

/// Opens a container, with the one that it was packed against: `base`, or else one beside it.
pub fn open(path: &Path, base: Option<&Path>) -> Outcome<Container> {
    let opened = match base {
        Some(base) => {
            BaseSet::open(base).and_then(|base| Container::open_with_base(path, Some(Arc::new(base))))
        }
        None => Container::open_beside_base(path),
    };
    opened.map_err(failed)
}

/// The error of a command for one of packing or unpacking.
pub fn failed(error: AggregateError) -> CommandError {
    let (exit, next) = match &error {
        AggregateError::Io { action, path, source } => {
            return from_io(source, format_args!("can't {action} {}", path.display()));
        }
        AggregateError::NoContainer { .. } => (Exit::Usage, "give a file that `stdchk pack` wrote"),
        AggregateError::Damaged { .. } | AggregateError::Codec { .. } => {
            (Exit::Integrity, "`stdchk unpack` gives back every file that is intact")
        }
        AggregateError::SomeDamaged { intact: 0, .. } => (Exit::Integrity, "use another copy"),
        AggregateError::SomeDamaged { .. } => {
            (Exit::Partial, "all others are intact; use another copy for these")
        }
        AggregateError::NotFound { .. } => (Exit::NotFound, "`stdchk pack --list` shows what it holds"),
        AggregateError::Changed { .. } => (Exit::Other, "pack it when nobody writes to it"),
        AggregateError::BaseMissing { .. } => {
            (Exit::Usage, "it is the container that was the base when packing")
        }
        AggregateError::Invalid(_) => (Exit::Usage, "check what is asked for"),
        AggregateError::Stopped => (Exit::Interrupted, "what had not ended did not happen; run it again"),
    };
    CommandError { exit, message: format!("{error}; {next}") }
}
