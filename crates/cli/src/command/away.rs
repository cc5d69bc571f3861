//! What commands that take the newest set do while it is away.

use std::time::Duration;

use clap::Args;
use stdchk_operations::WhenAway;

use super::run::parse_time;

/// What is done while benefactors of the newest complete set are away.
#[derive(Args, Debug)]
pub struct Away {
    /// Wait while the newest complete set can't be reached; at most TIME if one is given: 30s, 10m, 2h
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = parse_time)]
    wait: Option<Option<Duration>>,
    /// Take an older set if the newest complete one can't be reached
    #[arg(long, conflicts_with = "wait")]
    or_older: bool,
}

impl Away {
    /// As the operations take it.
    pub fn when(&self) -> WhenAway {
        match self.wait {
            Some(limit) => WhenAway::Wait(limit.unwrap_or(Duration::MAX)),
            None if self.or_older => WhenAway::PassOver,
            None => WhenAway::Fail,
        }
    }
}
