//! `stdchk pool`: a pool of several machines. Making one, and letting hosts join it.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use stdchk_manager::AUTHORITY;
use stdchk_model::User;
use stdchk_model::message::handshake::{self, TOKEN_USES_MAX};
use stdchk_model::user::ROOT;
use stdchk_net::transport::socket_of;
use stdchk_net::{Authority, BufferPool, Identity, JoiningKey, Keys, KeysError, Managers, Token};
use stdchk_operations::JoinedHost;

use super::up;
use crate::accounts;
use crate::context::Context;
use crate::exit::{CommandError, Exit, Outcome};
use crate::local::start::running;
use crate::local::{Home, PoolRecord, Role};
use crate::output::{self, Table};
use crate::settings::{check_address, check_managers};

/// Memory for the answers of a manager that is only greeted, bytes.
const GREETING_BYTES: usize = 1 << 20;

/// What `pool` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  stdchk pool init --listen a.example.org:7400              on machine A: the manager, and the pool's authority
  stdchk pool token                                         there: a token, good for one host and an hour
  stdchk benefactor join a.example.org:7400 --token TOKEN   on a machine with a disk to spare
  stdchk pool join a.example.org:7400 --token TOKEN         on a login node, with a token for a client
  stdchk pool token --for client --user alice               one for a machine on which only alice uses the pool
  stdchk mount ~/pool                                       there
  stdchk pool members                                       who has joined
  stdchk pool revoke 3f21c0                                 shut one of them out
  stdchk pool set-managers a.example.org:7400,b.example.org:7400   several managers serve by now")]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Make a pool whose manager serves other machines, and start it in the background
    Init(Init),
    /// Print a token with which hosts join; at the manager's machine
    Token(MakeToken),
    /// Let this host use a pool of other machines, as a client
    Join(Join),
    /// List the hosts that have joined with a token
    Members(Members),
    /// Set where the pool's managers serve: benefactors, mounts and hosts follow, now and at their next start
    SetManagers(SetManagers),
    /// Accept a host's keys no more: it is shut out for good, unless it joins anew with a token
    Revoke(Revoke),
}

#[derive(Args, Debug)]
struct Members {
    /// Report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The manager that leads keeps the list and tells all members of the pool: within seconds they try these addresses in place of
those that they were given when they joined, also after their next start. One of them must lead now. A host that is off
learns the list when it next reaches one of the addresses that it knows.

Example:
  stdchk pool set-managers a.example.org:7400,b.example.org:7400,c.example.org:7400")]
struct SetManagers {
    /// Where all of the pool's managers serve, HOST:PORT with commas in between
    #[arg(value_name = "ADDRESS,...")]
    addresses: String,
}

#[derive(Args, Debug)]
#[command(after_help = "\
What a benefactor on the host has counts as lost at once and is made anew from what others have; where it has
the only copy of something, that is out of reach until the host joins anew with the same disk.

Example:
  stdchk pool members
  stdchk pool revoke 3f21c0")]
struct Revoke {
    /// The first digits of the member's id, as many as name no other one; all of them for one that this manager doesn't list
    #[arg(value_name = "MEMBER")]
    member: String,
}

#[derive(Args, Debug)]
struct Init {
    /// Address of this machine at which others reach the manager, HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    listen: String,
}

#[derive(Args, Debug)]
#[command(after_help = "\
A client without `--user` is a host that is trusted: it says for which user it asks, as a mount for all users of a machine does,
and its administrator may do all with files. With `--user` it may do what that user may, whoever uses it.

Example:
  stdchk pool token                                     a machine that gives a disk
  stdchk pool token --uses 20 --minutes 240             twenty of them, within four hours
  stdchk pool token --for client                        a login node, mounted with `--allow-other` for all of its users
  stdchk pool token --for client --user alice           a machine of alice's own
  stdchk pool token --for client --user 1007 --groups 100,4000")]
struct MakeToken {
    /// What the host may be
    #[arg(long = "for", value_enum, default_value_t = For::Benefactor, value_name = "ROLE")]
    role: For,
    /// The user for whom a client may act, by name or number; without it, for whom it says
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// The user's groups by name or number, its own first [default: those that this machine knows]
    #[arg(long, value_name = "GROUP", value_delimiter = ',', requires = "user")]
    groups: Vec<String>,
    /// How many hosts may join with it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(TOKEN_USES_MAX)))]
    uses: u32,
    /// Minutes for which it is good
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    minutes: u32,
    /// The manager's data folder [default: that of the local pool]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// What a host may be.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum For {
    /// Keep other people's blocks.
    Benefactor,
    /// Read and write files.
    Client,
    /// Do all that a client may, and what concerns the whole pool.
    Operator,
}

impl For {
    fn roles(self) -> &'static [handshake::Role] {
        match self {
            Self::Benefactor => &[handshake::Role::Benefactor],
            Self::Client => &[handshake::Role::Client],
            Self::Operator => &[handshake::Role::Operator],
        }
    }
}

#[derive(Args, Debug)]
struct Join {
    /// Where the pool's manager serves, HOST:PORT, or where several do, with commas in between
    #[arg(value_name = "ADDRESS")]
    address: String,
    /// What `stdchk pool token` printed; where others may see command lines, set the variable instead
    #[arg(long, env = "STDCHK_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: String,
}

/// Runs the command.
pub fn run(arguments: &Arguments, context: &Context) -> Outcome {
    match &arguments.action {
        Action::Init(init) => make(init, context),
        Action::Token(token) => print_token(token, context),
        Action::Members(members) => super::runtime()?.block_on(list_members(members, context)),
        Action::SetManagers(set) => super::runtime()?.block_on(set_managers(set, context)),
        Action::Revoke(revoke) => super::runtime()?.block_on(shut_out(revoke, context)),
        Action::Join(join) => {
            let way = (join.address.as_str(), join.token.as_str());
            let record =
                |_: &Home, before: Option<PoolRecord>| Ok(before.unwrap_or_else(|| PoolRecord::new(0, 0, 0)));
            let _joined = join_as(handshake::Role::Client, way, context, record)?;
            say(
                context,
                format_args!("this host is a client of the pool at {}: try `stdchk status`", join.address),
            )?;
            Ok(())
        }
    }
}

fn say(context: &Context, text: std::fmt::Arguments<'_>) -> Outcome {
    if context.settings.quiet { Ok(()) } else { output::line(text) }
}

fn make(init: &Init, context: &Context) -> Outcome {
    let home = context.home_to_run()?;
    refuse_unreachable(&init.listen)?;
    home.prepare(None)?;
    let _lock = home.lock()?;
    refuse_member(&home)?;
    home.refuse_left_keys()?;
    // Without benefactors it has no sizes: `up --benefactors` sets them.
    let record = PoolRecord { listen: Some(init.listen.clone()), ..PoolRecord::new(0, 0, 0) };
    home.write_record(&record)?;
    up::start(&home, &record, context)?;
    let listen = &init.listen;
    say(
        context,
        format_args!(
            "  hosts join with a token of `stdchk pool token`:\n  \
             stdchk benefactor join {listen} --token TOKEN     keeps blocks on its disk\n  \
             stdchk pool join {listen} --token TOKEN           uses the pool, with a token of `stdchk pool token --for client`"
        ),
    )
}

/// Others must reach the address, and the port must be known before.
fn refuse_unreachable(address: &str) -> Outcome {
    check_address("--listen", address)?;
    let refuse = |cause: &str| {
        let next = "give an address of this machine that others reach, such as a.example.org:7400";
        Err(CommandError::usage(format_args!("--listen {address}"), cause, next))
    };
    let found: Vec<SocketAddr> = match address.to_socket_addrs() {
        Ok(found) => found.collect(),
        Err(error) => return refuse(&error.to_string()),
    };
    if found.iter().any(|one| one.ip().is_unspecified()) {
        return refuse("it names no machine");
    }
    if found.iter().any(|one| one.port() == 0) {
        return refuse("it names no port");
    }
    // Of those that a name has, those of this machine are served.
    if let Err(error) = TcpListener::bind(found.as_slice()) {
        return refuse(&format!("nothing can be served there: {error}"));
    }
    if found.iter().all(|one| one.ip().is_loopback()) {
        output::note(format_args!(
            "stdchk pool init: {address} leads to this machine from itself alone: no other one can join"
        ));
    }
    Ok(())
}

fn refuse_member(home: &Home) -> Outcome {
    if home.record()?.is_none() {
        return Ok(());
    }
    Err(CommandError::usage(
        home.path().display(),
        "there is a pool here, or this host has joined one",
        "`stdchk up` starts it; for another one, name another directory with `--data DIR`; to join again with new keys, `stdchk down` and \
         remove `keys/key.pem` there first",
    ))
}

fn print_token(token: &MakeToken, context: &Context) -> Outcome {
    let folder = token.folder.clone().unwrap_or_else(|| context.home().directory(Role::Manager));
    let lifetime = Duration::from_secs(u64::from(token.minutes) * 60);
    let user = user_of(token)?;
    let text = Authority::open(&folder.join(AUTHORITY)).and_then(|own| match user {
        Some(user) => own.make_user_token(user, token.uses, lifetime),
        None => own.make_token(token.role.roles(), token.uses, lifetime),
    });
    let text = text.map_err(|error| match &error {
        KeysError::Io { cause, .. } if cause.kind() == std::io::ErrorKind::NotFound => CommandError::new(
            Exit::NotFound,
            folder.display(),
            "no pool of several machines has its manager here",
            "run this where `stdchk pool init` was run, or name the manager's folder with `--folder DIR`",
        ),
        _ => about_keys(error),
    })?;
    output::line(text)
}

/// The user for whom a token is, with its groups.
fn user_of(token: &MakeToken) -> Outcome<Option<User>> {
    let Some(name) = &token.user else { return Ok(None) };
    let object = format!("--user {name}");
    if token.role != For::Client {
        let next = format!("give `--for client` as well, or leave out `--user {name}`");
        return Err(CommandError::usage(object, "only a client acts for a user", next));
    }
    let user = accounts::user(name, &token.groups).map_err(|unknown| {
        CommandError::usage(&object, unknown, "give numbers: `--user UID --groups GID,GID`")
    })?;
    if user.uid == ROOT {
        let next = "leave out `--user`: a host that is trusted may do all with files";
        return Err(CommandError::usage(object, "nobody's permissions bind the administrator", next));
    }
    Ok(Some(user))
}

async fn list_members(members: &Members, context: &Context) -> Outcome {
    let found = context.pool().await?.members().await?;
    if members.json {
        return output::json(&found);
    }
    let mut table = Table::new(&["MEMBER", "HOST", "MAY BE", "USER", "JOINED", "BENEFACTORS", "STATE"]);
    for member in &found {
        let benefactors: Vec<String> = member.benefactors.iter().map(ToString::to_string).collect();
        table.row([
            member.id.to_string(),
            output::shown(&member.host),
            member.roles.join(", "),
            member.user.map(|user| user.to_string()).unwrap_or_default(),
            output::time(member.joined),
            benefactors.join(", "),
            if member.revoked { "revoked" } else { "" }.to_owned(),
        ]);
    }
    table.print()
}

async fn set_managers(set: &SetManagers, context: &Context) -> Outcome {
    let addresses = &set.addresses;
    check_managers("the managers' addresses", addresses)?;
    let managers = Managers::new(addresses).as_given();
    let all = managers.addresses();
    if let Some(socket) = all.iter().find(|address| socket_of(address).is_some()) {
        let next = "give addresses of the network, HOST:PORT";
        return Err(CommandError::usage(socket, "other machines don't reach a socket of this one", next));
    }
    // A list in which nobody leads would lead all members away from the manager.
    let identity = Identity { role: handshake::Role::Client, pool: None, keys: context.keys()? };
    let leads = managers.open(&identity, &BufferPool::new(GREETING_BYTES)).await;
    let leads = leads.map_err(|error| error.failure());
    stdchk_operations::About::about(leads, format_args!("managers {addresses}"))?;
    context.pool().await?.set_managers(all).await?;
    say(
        context,
        format_args!("the pool's managers serve at {addresses}: all members learn it within seconds"),
    )
}

async fn shut_out(revoke: &Revoke, context: &Context) -> Outcome {
    let pool = context.pool().await?;
    let members = pool.members().await?;
    let wanted = revoke.member.to_ascii_lowercase();
    let named: Vec<&JoinedHost> =
        members.iter().filter(|member| member.id.to_string().starts_with(&wanted)).collect();
    let next = "`stdchk pool members` lists the ids";
    let (id, host) = match (&named[..], wanted.parse()) {
        ([member], _) => (member.id, member.host.as_str()),
        // One that joined at another manager, which may be gone, is in that one's folder alone.
        ([], Ok(id)) => (id, "it joined at another manager, or never"),
        ([], Err(_)) => {
            return Err(CommandError::new(Exit::NotFound, &revoke.member, "no member's id begins so", next));
        }
        _ => {
            let cause = format_args!("the ids of {} members begin so", named.len());
            return Err(CommandError::usage(&revoke.member, cause, "give more digits"));
        }
    };
    pool.revoke(id).await?;
    say(context, format_args!("{id} ({}) is shut out", output::shown(host)))
}

/// Gets keys of a role with a token from the managers at `manager`, and makes the record of this host's part in the pool: `record` makes it of the
/// one from before, if the host joins again.
pub fn join_as(
    role: handshake::Role,
    (manager, token): (&str, &str),
    context: &Context,
    record: impl FnOnce(&Home, Option<PoolRecord>) -> Outcome<PoolRecord>,
) -> Outcome<(Home, File, PoolRecord)> {
    let home = context.home_to_run()?;
    check_managers("the manager's address", manager)?;
    home.prepare(None)?;
    let lock = home.lock()?;
    let before = before_joining(&home, role)?;
    let record = PoolRecord { manager: Some(manager.to_owned()), ..record(&home, before)? };
    let about = format!("manager {manager}");
    let token = stdchk_operations::About::about(Token::read(token, role), &about)?;
    let key = JoiningKey::of(&home.keys(), &token).map_err(about_keys)?;
    let keys = super::runtime()?.block_on(stdchk_net::join(manager, &token, &key));
    let keys = stdchk_operations::About::about(keys, about)?;
    keys.save(&home.keys()).map_err(about_keys)?;
    home.write_record(&record)?;
    // Only now is it the host's: interrupted before, it joins again with the same key.
    key.forget().map_err(about_keys)?;
    Ok((home, lock, record))
}

/// The record of a host that joins again in the same role, since its keys were taken away; `None`: it was in no pool.
///
/// # Errors
/// It is in a pool, or was in another role, or its processes run.
fn before_joining(home: &Home, role: handshake::Role) -> Outcome<Option<PoolRecord>> {
    let Some(record) = home.record()? else { return Ok(None) };
    if record.manager.is_none() || Keys::are_in(&home.keys()) {
        refuse_member(home)?;
    }
    let was = if record.benefactors > 0 { handshake::Role::Benefactor } else { handshake::Role::Client };
    if was != role {
        let cause = format!("this host has joined the pool as a {} before", was.name());
        let next = format!(
            "join with a token of `stdchk pool token --for {}`, or in another `--data DIR`",
            was.name()
        );
        return Err(CommandError::usage(home.path().display(), cause, next));
    }
    for one in record.roles() {
        if running(home, one)?.is_some() {
            let cause = format!("its {} runs with the keys from before", one.name());
            return Err(CommandError::usage(
                home.path().display(),
                cause,
                "`stdchk down` first, then this again",
            ));
        }
    }
    Ok(Some(record))
}

/// An error with keys, of which the object stands in it.
pub fn about_keys(error: KeysError) -> CommandError {
    CommandError::new(Exit::Other, "keys", error, "mend that, or join the pool anew, with a token")
}
