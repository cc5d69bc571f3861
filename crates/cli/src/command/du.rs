//! `stdchk du`: how much the kept versions hold, and how much of it is distinct.

use clap::Args;
use stdchk_model::size;
use stdchk_operations::{Target, Usage, UsageEntry};

use crate::context::Context;
use crate::exit::Outcome;
use crate::output::{self, Table};

/// What `du` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
`logical` is what the readers of all kept versions see, `distinct` what is left of it when every chunk is counted
once, `older` what of that only older versions need; copies for redundancy are not counted. Lines share chunks: the total is less than their sum.

Example:
  stdchk du
  stdchk du climate --json")]
pub struct Arguments {
    /// A folder or file, APP[/NAME]; without it all applications
    #[arg(default_value = "", hide_default_value = true, value_name = "APP[/NAME]")]
    target: String,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let target = Target::parse_plain(&arguments.target)?;
    let usage = context.pool().await?.usage(&target).await?;
    match arguments.json {
        true => output::json(&usage),
        false => print(&usage),
    }
}

fn print(usage: &Usage) -> Outcome {
    let mut table = Table::new(&[">logical", ">distinct", ">older", ">files", ">versions", "name"]);
    let mut row = |usage: &UsageEntry, name: String| {
        let (logical, distinct) = (size::human(usage.logical_bytes), size::human(usage.distinct_bytes));
        let older = size::human(usage.older_bytes);
        table.row([logical, distinct, older, usage.files.to_string(), usage.versions.to_string(), name]);
    };
    usage.entries.iter().for_each(|usage| row(usage, output::shown(&usage.path)));
    row(&usage.total, "total".to_owned());
    table.print()
}
