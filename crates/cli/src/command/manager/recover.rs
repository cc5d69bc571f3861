//! `stdchk manager recover`: makes the store of a manager that lost its disk anew, from what benefactors keep of it.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use stdchk_manager::backup::check;
use stdchk_manager::etcd::Place as EtcdPlace;
use stdchk_manager::journal::Sealer;
use stdchk_manager::recover::{Agreed, Vouched, agree, read, rebuild};
use stdchk_manager::{AUTHORITY, moved_to};
use stdchk_model::message::handshake::Role;
use stdchk_model::{BenefactorId, PoolId};
use stdchk_net::transport::socket_of;
use stdchk_net::{Authority, DataDir, Keys, data_dir};

use super::backup::{Begun, give_name};
use super::journals::{Source, fetch, local};
use super::{folder_failed, store_failed};
use crate::command::forget::benefactor_id;
use crate::command::pool::about_keys;
use crate::context::Context;
use crate::exit::{About, CommandError, Exit, Outcome};
use crate::local::shared::known_managers;
use crate::local::start::running;
use crate::local::{Home, PoolRecord, Role as LocalRole};
use crate::output;
use crate::settings::check_address;

/// Pause before benefactors are asked again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// What `manager recover` takes.
#[derive(Args, Debug)]
#[command(after_help = "\
For a pool whose folder DATA/manager is lost and that has no newer backup. Seven benefactors at most keep what the manager
commits; two thirds of them have to agree. What was committed in the last moments before the loss may be missing. Afterwards
`stdchk up` starts the pool. A pool of several machines needs the folder of its authority (--authority).

Example:
  stdchk manager recover
  stdchk manager recover --authority /backup/authority
  stdchk manager recover --authority /backup/authority --from b.example.org:40123")]
pub(super) struct Recover {
    /// Address of a benefactor on another machine, HOST:PORT; may be given several times. Those of this machine, those that the authority's folder
    /// names and those that are named by what these keep are asked anyway
    #[arg(long, value_name = "ADDRESS")]
    from: Vec<String>,
    /// The folder `authority` of the lost manager's folder, in a pool of several machines
    #[arg(long, value_name = "DIR")]
    authority: Option<PathBuf>,
    /// Seconds for which benefactors that don't answer yet are waited for
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
    /// Take what is there if fewer than two thirds of the keepers agree: it may be old
    #[arg(long)]
    trust_fewer: bool,
    /// Take what this benefactor has kept, whatever the others say
    #[arg(long, value_name = "BENEFACTOR", value_parser = benefactor_id, conflicts_with = "trust_fewer")]
    take: Option<BenefactorId>,
    /// If all of DATA is lost, not the manager's folder alone: the address at which the manager served other machines
    #[arg(long, value_name = "ADDRESS", requires = "authority")]
    listen: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What became of one benefactor's journal.
#[derive(Serialize)]
struct Journal {
    source: String,
    benefactor: Option<String>,
    /// The last commit in it.
    commit: Option<u64>,
    /// Why it says nothing.
    silent: Option<String>,
}

/// All journals that can be had.
struct Journals {
    told: Vec<Journal>,
    /// Those that say something, and where they are.
    vouched: Vec<(Vouched, PathBuf)>,
}

/// What came back.
#[derive(Serialize)]
struct Report {
    journals: Vec<Journal>,
    keepers: Vec<String>,
    /// The last commit on which two thirds of the keepers agree.
    agreed: Option<u64>,
    /// The last commit that came back.
    commit: u64,
    folders: Vec<Folder>,
    /// It has an authority, which was brought back from a copy.
    #[serde(skip)]
    has_members: bool,
}

/// What came back of a folder of the root.
#[derive(Serialize)]
struct Folder {
    name: String,
    files: u64,
    versions: u64,
}

/// Where the manager's store shall be made, and what it is made with.
struct Place {
    home: Home,
    record: PoolRecord,
    pool: PoolId,
    sealer: Sealer,
    manager: PathBuf,
    /// With which benefactors of other machines are asked.
    keys: Option<Arc<Keys>>,
    /// The benefactors that kept the journal when the authority was copied, and where they served.
    keepers: Vec<(BenefactorId, String)>,
}

/// Runs the command.
pub(super) fn run(arguments: &Recover, context: &Context) -> Outcome {
    let home = context.home_to_run()?;
    let known = home.record()?;
    if let Some(listen) = arguments.listen.as_ref().filter(|_| known.is_none()) {
        check_address("--listen", listen)?;
        home.prepare(None)?;
    } else if known.is_none() {
        let next = "name the folder with `--data DIR`; if all of it is lost, name what is left: `--authority DIR --listen HOST:PORT`";
        return Err(CommandError::new(Exit::NotFound, home.path().display(), "there is no pool here", next));
    }
    let _lock = home.lock()?;
    let place = Place::of(home, arguments, context)?;
    let folder = tempfile::tempdir_in(place.home.path()).about(place.home.path().display())?;
    let deadline = Instant::now() + Duration::from_secs(arguments.wait);
    loop {
        let journals = place.read_all(arguments, folder.path())?;
        let vouched: Vec<Vouched> = journals.vouched.iter().map(|(vouched, _)| vouched.clone()).collect();
        let is_late = Instant::now() >= deadline;
        let agreed = match arguments.take {
            Some(id) => alone(&vouched, id),
            None => agree(&vouched),
        };
        let is_taken = |agreed: &Agreed| match agreed.agreed {
            Some(_) => further(&vouched, agreed).is_none(),
            None => arguments.take.is_some() || (arguments.trust_fewer && is_late),
        };
        match agreed {
            Some(agreed) if is_taken(&agreed) => return place.make(journals, &agreed, arguments),
            agreed if is_late => {
                journals.told.iter().for_each(|journal| output::note(journal.told()));
                return Err(undecided(&place, &vouched, agreed.as_ref(), arguments.take));
            }
            _ => std::thread::sleep(RETRY_PAUSE),
        }
    }
}

/// One journal, whatever the others say.
fn alone(all: &[Vouched], id: BenefactorId) -> Option<Agreed> {
    let one = all.iter().find(|one| one.benefactor == id)?;
    let end = one.journal.reach()?.moment.what;
    Some(Agreed { from: id, end, agreed: None, keepers: one.keepers.clone(), supporters: vec![id] })
}

/// A journal that goes further than the one that is agreed on. It may be newer, or a future that was given up: nobody but who runs
/// the pool can know.
fn further<'a>(all: &'a [Vouched], agreed: &Agreed) -> Option<&'a Vouched> {
    let commit = |one: &Vouched| one.journal.reach().map(|reach| reach.moment.commit);
    all.iter().filter(|one| commit(one) > Some(agreed.end.commit)).max_by_key(|one| commit(one))
}

/// Why nothing is made of what there is.
fn undecided(
    place: &Place,
    all: &[Vouched],
    agreed: Option<&Agreed>,
    take: Option<BenefactorId>,
) -> CommandError {
    let object = place.manager.display();
    let Some(agreed) = agreed else {
        let cause = match take {
            Some(id) => format!("{id} has kept nothing of the manager's store that can be had"),
            None => "no benefactor that answers has kept the manager's store".to_owned(),
        };
        let next = "put the folder back from a backup, or bring benefactors back and name them with `--from ADDRESS`";
        return CommandError::new(Exit::NotFound, object, cause, next);
    };
    let (cause, next) = match further(all, agreed).filter(|_| agreed.agreed.is_some()) {
        Some(Vouched { benefactor: other, .. }) => (
            format!(
                "two thirds of the keepers agree on a journal up to commit {}, and {other} has another one that goes further",
                agreed.end.commit
            ),
            format!(
                "if the manager had ended badly, {other} may have what came last: `--take {other}`. If an older store was accepted at \
                 some time, or {other} is new to this pool, what the others agree on is right: `--take {}`",
                agreed.from
            ),
        ),
        None => {
            let names =
                |all: &[BenefactorId]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let cause = format!(
                "fewer than two thirds of the benefactors that kept the manager's store ({}) agree: commit {} is known to {}",
                names(&agreed.keepers),
                agreed.end.commit,
                names(&agreed.supporters)
            );
            let next = "bring the others back (`--from ADDRESS`, `--wait SECONDS`), or take that, which may be old, with \
                        `--trust-fewer`";
            (cause, next.to_owned())
        }
    };
    CommandError::new(Exit::Unreachable, object, cause, next)
}

impl Journals {
    /// Takes what a place has; `expected`: whose it should be.
    fn take(&mut self, source: Source, expected: Option<BenefactorId>, sealer: &Sealer) {
        let Source { name, journal } = source;
        let read = journal.and_then(|(benefactor, path)| {
            let vouched = read(&path, sealer, benefactor).map_err(|error| error.to_string())?;
            Ok((vouched, path))
        });
        self.told.push(match &read {
            Ok((vouched, _)) => Journal {
                source: name,
                benefactor: Some(vouched.benefactor.to_string()),
                commit: vouched.journal.reach().map(|reach| reach.moment.commit),
                silent: None,
            },
            Err(why) => Journal {
                source: name,
                benefactor: expected.map(|id| id.to_string()),
                commit: None,
                silent: Some(why.clone()),
            },
        });
        self.vouched.extend(read);
    }

    fn has(&self, id: BenefactorId) -> bool {
        self.vouched.iter().any(|(vouched, _)| vouched.benefactor == id)
    }

    /// The keepers that journals name, with where they served.
    fn keepers_named(&self) -> Vec<(BenefactorId, String)> {
        self.vouched.iter().flat_map(|(vouched, _)| vouched.addresses.clone()).collect()
    }

    /// That nobody answers where a keeper served once says nothing if it was found elsewhere.
    fn leave_out_older_addresses(&mut self) {
        let found: Vec<String> = self.vouched.iter().map(|(one, _)| one.benefactor.to_string()).collect();
        let is_older = |told: &Journal| {
            told.silent.is_some() && told.benefactor.as_ref().is_some_and(|id| found.contains(id))
        };
        self.told.retain(|told| !is_older(told));
    }
}

impl Journal {
    fn told(&self) -> String {
        let name = self.benefactor.as_ref().map_or_else(String::new, |benefactor| format!("{benefactor} "));
        match (&self.commit, &self.silent) {
            (Some(commit), _) => format!("{name}({}): up to commit {commit}", self.source),
            (None, Some(why)) => format!("{name}({}): {why}", self.source),
            (None, None) => format!("{name}({}): nothing", self.source),
        }
    }
}

impl Place {
    fn of(home: Home, arguments: &Recover, context: &Context) -> Outcome<Self> {
        let again = || PoolRecord { listen: arguments.listen.clone(), ..PoolRecord::new(0, 0, 0) };
        let record = home.record()?.unwrap_or_else(again);
        let manager = home.directory(LocalRole::Manager);
        if let Some(elsewhere) = &record.manager {
            let next = "run the command there";
            return Err(CommandError::usage(
                home.path().display(),
                format_args!("the pool's manager is that of {elsewhere}"),
                next,
            ));
        }
        if running(&home, LocalRole::Manager)?.is_some() {
            return Err(CommandError::usage(
                manager.display(),
                "the manager is running",
                "there is nothing to recover",
            ));
        }
        if let Some(place) = moved_to(&manager).about(manager.display())? {
            refuse_moved(&manager, &place)?;
        }
        if fs::symlink_metadata(&manager).is_ok() {
            let next =
                "move it away first, and keep it: what it holds may be newer than what benefactors keep";
            return Err(CommandError::usage(manager.display(), "the folder is there", next));
        }
        let authority = match (&arguments.authority, record.on_network()) {
            (Some(folder), _) => {
                Some(Authority::open(folder).map_err(|error| CommandError::plain(Exit::Other, error))?)
            }
            (None, None) => None,
            (None, Some(_)) => {
                let next = "give a copy of that folder with `--authority DIR`";
                let cause = "what benefactors keep opens with the key of the pool's authority, which was in this folder";
                return Err(CommandError::usage(manager.join(AUTHORITY).display(), cause, next));
            }
        };
        let pool = match &authority {
            Some(authority) => authority.pool(),
            None => pool_of_benefactors(&home, &record)?,
        };
        let sealer = Sealer::new(pool, authority.as_ref());
        // The authority can make keys for whoever asks in its name.
        let keys = match &authority {
            Some(authority) => Some(Arc::new(
                authority
                    .keys(&[Role::Operator])
                    .and_then(|parts| parts.keys(&manager))
                    .map_err(about_keys)?,
            )),
            None => context.keys()?,
        };
        let keepers = authority.as_ref().map(Authority::keepers).transpose().map_err(about_keys)?;
        Ok(Self { home, record, pool, sealer, manager, keys, keepers: keepers.unwrap_or_default() })
    }

    /// What all journals that can be had say.
    fn read_all(&self, arguments: &Recover, folder: &Path) -> Outcome<Journals> {
        let mut journals = Journals { told: Vec::new(), vouched: Vec::new() };
        for source in local(&self.home, &self.record) {
            journals.take(source, None, &self.sealer);
        }
        let runtime = crate::command::runtime()?;
        let mut asked: Vec<String> = Vec::new();
        let mut ask = |address: &String, expected: Option<BenefactorId>, journals: &mut Journals| {
            let has_it = expected.is_some_and(|id| journals.has(id));
            // Those that are found at sockets of this machine were looked at in their folders.
            let is_here = expected.is_some() && socket_of(address).is_some();
            if has_it || is_here || asked.contains(address) {
                return;
            }
            asked.push(address.clone());
            let number = asked.len();
            let source = runtime.block_on(fetch(address, self.pool, self.keys.clone(), folder, number));
            journals.take(source, expected, &self.sealer);
        };
        arguments.from.iter().for_each(|address| ask(address, None, &mut journals));
        // Where a keeper served last, the copy of the authority may not know, and the journals of others do.
        let mut found = self.keepers.clone();
        while !found.is_empty() {
            found.iter().for_each(|(id, address)| ask(address, Some(*id), &mut journals));
            found = journals.keepers_named();
            let is_new = |(id, address): &(BenefactorId, String)| {
                !journals.has(*id) && !journals.told.iter().any(|told| told.source == *address)
            };
            found.retain(|keeper| is_new(keeper) && socket_of(&keeper.1).is_none());
        }
        journals.leave_out_older_addresses();
        Ok(journals)
    }

    /// Makes the store, and tells what came back.
    fn make(&self, journals: Journals, agreed: &Agreed, arguments: &Recover) -> Outcome {
        let is_it = |vouched: &Vouched| {
            let end = vouched.journal.reach().map(|reach| reach.moment.what);
            vouched.benefactor == agreed.from && end == Some(agreed.end)
        };
        let taken = journals.vouched.iter().find(|(vouched, _)| is_it(vouched));
        let Some((_, path)) = taken else { unreachable!("what was agreed on is one of them") };
        let new = self.manager.with_added_extension("new");
        // An earlier try may have left some of it.
        if fs::symlink_metadata(&new).is_ok() {
            fs::remove_dir_all(&new).about(new.display())?;
        }
        fs::create_dir(&new).about(new.display())?;
        let mut begun = Begun(Some(new.clone()));
        let mut folder = DataDir::open(&new, Role::Manager).map_err(folder_failed)?;
        rebuild(path, &self.sealer, &new, agreed.end).map_err(store_failed)?;
        folder.claim(self.pool, None).map_err(folder_failed)?;
        drop(folder);
        if let Some(authority) = &arguments.authority {
            copy_authority(authority, &new.join(AUTHORITY))?;
        }
        let counts = check(&new, self.pool).map_err(store_failed)?;
        // The new store is on this disk.
        let record = PoolRecord { store: None, ..self.record.clone() };
        if self.home.record()?.as_ref() != Some(&record) {
            self.home.write_record(&record)?;
        }
        give_name(&new, &self.manager)?;
        begun.0 = None;
        let folders =
            counts.folders.into_iter().map(|(name, files, versions)| Folder { name, files, versions });
        let report = Report {
            journals: journals.told,
            keepers: agreed.keepers.iter().map(ToString::to_string).collect(),
            agreed: agreed.agreed.map(|moment| moment.commit),
            commit: agreed.end.commit,
            folders: folders.collect(),
            has_members: arguments.authority.is_some(),
        };
        report.print(arguments.json)
    }
}

impl Report {
    fn print(&self, json: bool) -> Outcome {
        if json {
            return output::json(self);
        }
        self.journals.iter().try_for_each(|journal| output::line(journal.told()))?;
        for Folder { name, files, versions } in &self.folders {
            output::line(format_args!("{}: {files} files, {versions} versions", output::shown(name)))?;
        }
        let agreed = match self.agreed {
            Some(_) => "two thirds of those that kept it agree",
            None => "not what two thirds of those that kept it agree on: it may be old",
        };
        output::line(format_args!(
            "the manager's store is there again up to commit {}; {agreed}",
            self.commit
        ))?;
        if self.has_members {
            output::line(
                "who was shut out after the copy of the authority was made must be again: `stdchk pool members`, `revoke`",
            )?;
        }
        output::line(
            "`stdchk up` starts the pool; what was committed after that is missing, and `stdchk status` says if there was more",
        )
    }
}

/// The state of the pool is in etcd, and lost only if that is.
fn refuse_moved(manager: &Path, place: &EtcdPlace) -> Outcome {
    let is_lost = "if that etcd is lost for good, move this folder away first, and keep it";
    crate::command::runtime()?.block_on(known_managers(place)).map_err(|silent| {
        let next = format!(
            "start its members, or mend the way to them: the pool's state was moved there; {is_lost}"
        );
        silent.error(&next)
    })?;
    Err(CommandError::usage(
        manager.display(),
        format_args!("nothing is lost here: the pool's state was moved into {place}"),
        format_args!("`stdchk up` starts the manager with it; {is_lost}"),
    ))
}

fn pool_of_benefactors(home: &Home, record: &PoolRecord) -> Outcome<PoolId> {
    for index in 0..record.benefactors {
        let directory = home.directory(LocalRole::Benefactor(index));
        if let Some(pool) = data_dir::pool_of(&directory, Role::Benefactor).map_err(folder_failed)? {
            return Ok(pool);
        }
    }
    let next = "there is nothing to recover from: put the manager's folder back from a backup";
    Err(CommandError::new(
        Exit::NotFound,
        home.path().display(),
        "no benefactor of this machine has been in a pool",
        next,
    ))
}

/// Copies the authority with the members that it knows, and who of them is shut out.
pub fn copy_authority(from: &Path, to: &Path) -> Outcome {
    fs::DirBuilder::new().mode(0o700).create(to).about(to.display())?;
    for entry in fs::read_dir(from).about(from.display())? {
        let entry = entry.about(from.display())?;
        let (kind, new) = (entry.file_type().about(from.display())?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy_authority(&entry.path(), &new)?;
        } else if kind.is_file() {
            fs::copy(entry.path(), &new).about(new.display())?;
            fs::File::open(&new).and_then(|file| file.sync_all()).about(new.display())?;
        }
    }
    fs::File::open(to).and_then(|folder| folder.sync_all()).about(to.display())
}
