//! `stdchk verify`: every kept version's chunks are read and compared where they lie, and fragments are decoded; with `--repair`, redundancy that
//! is found missing is waited for and verified again.

use clap::Args;
use stdchk_operations::{Target, Verified, Verify};

use crate::context::Context;
use crate::exit::Outcome;
use crate::output;

/// What `verify` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit code 7: content has no intact copy. 5: content can't be reached now. 3: damaged copies, or fragments that don't
make their chunks, were found, and an intact copy beside each.

Example:
  stdchk verify
  stdchk verify climate --repair")]
pub struct Arguments {
    /// A folder or file, APP[/NAME]; without it everything
    #[arg(default_value = "", hide_default_value = true, value_name = "APP[/NAME]")]
    target: String,
    /// Wait until missing and damaged copies are made anew, then verify again
    #[arg(long)]
    repair: bool,
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let target = Target::parse_plain(&arguments.target)?;
    let pool = context.pool().await?;
    let verify = Verify { target, repair: arguments.repair };
    let verified = pool.verify(&verify, &context.watch()).await?;
    match arguments.json {
        true => output::json(&verified)?,
        false => print(&verified)?,
    }
    Ok(verified.verdict(&verify.target)?)
}

fn print(verified: &Verified) -> Outcome {
    for bad in &verified.bad {
        output::line(format_args!("{}@{}: {}", output::shown(&bad.path), bad.version, bad.reason))?;
    }
    for (key, versions) in &verified.lacking_keys {
        let versions = output::count(*versions, "version");
        output::line(format_args!("{versions} encrypted: needs key {key}, which this host lacks"))?;
    }
    for (maker, chunks) in &verified.makers {
        let chunks = output::count(*chunks, "chunk");
        output::line(format_args!("{chunks} with fragments made by {maker} that don't make them: `stdchk status` names its hosts"))?;
    }
    let verdict = match (verified.bad.len(), verified.at_risk_chunks) {
        _ if verified.versions == 0 => "nothing to verify".to_owned(),
        (0, 0) => "all intact".to_owned(),
        (0, at_risk) => format!("all intact, {at_risk} chunks with fewer copies than their folder asks for"),
        (bad, _) => format!("{bad} versions damaged or out of reach"),
    };
    output::line(format_args!("{} files, {} versions: {verdict}", verified.files, verified.versions))
}
