//! `stdchk mkdir`: makes a folder, or gives one to a user.

use clap::Args;
use stdchk_operations::Target;

use crate::accounts;
use crate::context::Context;
use crate::exit::{CommandError, Outcome};

/// What `mkdir` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
A folder that is there already stays, and gets the owner and the mode that are given. Only whoever runs the pool gives folders to
other users: the user of the manager's process, at its machine, and hosts that joined as operators or as clients without `--user`.

Example:
  stdchk mkdir climate
  stdchk mkdir alice --owner alice --mode 700
  stdchk mkdir shared --owner 1007:4000 --mode 2770")]
pub struct Arguments {
    /// The folder, APP or APP/NAME
    folder: String,
    /// To whom it belongs, USER or USER:GROUP, by name or number [default: to the user who makes it]
    #[arg(long, value_name = "USER[:GROUP]")]
    owner: Option<String>,
    /// Its permission bits in octal digits [default: 755]
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<u32>,
}

fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("give up to four octal digits, such as 750".to_owned()),
    }
}

/// The owner and group that were asked for.
fn owner(text: &str) -> Outcome<(u32, u32)> {
    let (user, groups) = match text.split_once(':') {
        Some((user, group)) => (user, vec![group.to_owned()]),
        None => (text, Vec::new()),
    };
    let found = accounts::user(user, &groups);
    let found = found.map_err(|unknown| {
        CommandError::usage(format_args!("--owner {text}"), unknown, "give numbers: `--owner UID:GID`")
    })?;
    Ok((found.uid, found.gid))
}

/// Runs the command.
pub async fn run(arguments: &Arguments, context: &Context) -> Outcome {
    let folder = Target::parse_plain(&arguments.folder)?;
    let owner = arguments.owner.as_deref().map(owner).transpose()?;
    let pool = context.pool().await?;
    pool.make_folder(&folder).await?;
    match (owner, arguments.mode) {
        (None, None) => Ok(()),
        (owner, mode) => Ok(pool.set_ownership(&folder, owner, mode).await?),
    }
}
