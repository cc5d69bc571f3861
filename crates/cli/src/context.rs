//! What a user's command has at hand: its settings, and from them a connection to the pool.

use std::sync::Arc;
use std::time::Duration;

use stdchk_client::ClientConfig;
use stdchk_net::{Keys, Managers};
use stdchk_operations::{Options, Pool, Watch};

use crate::exit::{CommandError, Exit, Outcome};
use crate::local::{Home, ProcessRecord, Role};
use crate::progress::Told;
use crate::settings::Settings;

/// Time for which commands that only ask wait for a manager that is away.
pub const PATIENCE_TO_ASK: Duration = Duration::from_secs(5);
/// Time for which a look at the pool waits for a manager: who looks wants to know that none is there.
const PATIENCE_TO_LOOK: Duration = Duration::from_secs(3);
/// Time for which they wait where several managers stand by for each other: covers the change from one to another.
pub const PATIENCE_TO_FOLLOW: Duration = Duration::from_secs(15);
/// Time for which commands that move data wait for a manager that is away: covers its restart.
pub const PATIENCE_TO_MOVE: Duration = Duration::from_secs(60);

/// The settings of a command.
#[derive(Clone, Debug)]
pub struct Context {
    /// What holds for this run.
    pub settings: Settings,
}

impl Context {
    /// The local pool that is meant unless a manager's address was given.
    pub fn home(&self) -> Home {
        Home::new(&self.settings.data)
    }

    /// The local pool, for commands that start or stop it.
    ///
    /// # Errors
    /// Another pool was named, by its manager: to act on the local one then would be a surprise.
    pub fn home_to_run(&self) -> Outcome<Home> {
        let Some(address) = &self.settings.manager else { return Ok(self.home()) };
        Err(CommandError::usage(
            format_args!("manager {address}"),
            "only a pool of this machine is started and stopped, and it is named by its directory",
            "leave `--manager`, STDCHK_MANAGER and `manager` in the configuration file out, or give `--data DIR` instead",
        ))
    }

    /// Where the manager is: as given, or as the local pool has it.
    pub fn manager_address(&self) -> Outcome<String> {
        Ok(self.settings.manager_address()?)
    }

    /// A connection for a command that only asks.
    pub async fn pool(&self) -> Outcome<Pool> {
        self.connect(self.patience_to_ask()?, false).await
    }

    /// A connection for a command that looks how a manager is, or decides: one with an older state is better than none.
    pub async fn pool_or_older(&self) -> Outcome<Pool> {
        self.connect(self.patience_to_ask()?, true).await
    }

    /// A connection for a command that says how the pool is, whatever that is: it soon says that nobody leads.
    pub async fn pool_to_look(&self) -> Outcome<Pool> {
        self.connect(PATIENCE_TO_LOOK, true).await
    }

    fn patience_to_ask(&self) -> Outcome<Duration> {
        let managers = Managers::known(&self.manager_address()?, self.keys()?);
        let is_one = managers.addresses().len() == 1;
        Ok(if is_one { PATIENCE_TO_ASK } else { PATIENCE_TO_FOLLOW })
    }

    /// A connection for a command that moves data.
    pub async fn pool_to_move(&self) -> Outcome<Pool> {
        self.connect(PATIENCE_TO_MOVE, false).await
    }

    async fn connect(&self, patience: Duration, or_older: bool) -> Outcome<Pool> {
        let options = self.settings.options()?;
        self.refuse_stopped()?;
        Ok(Pool::connect(Options { patience, or_older, ..options }).await?)
    }

    /// The keys of this host, if it has some.
    pub fn keys(&self) -> Outcome<Option<Arc<Keys>>> {
        Ok(self.settings.load_keys()?)
    }

    /// What operations tell, as lines on standard error.
    pub fn watch(&self) -> Watch {
        self.told().watch()
    }

    /// What to do with what operations tell; to be changed by a command that says some of it itself.
    pub fn told(&self) -> Told {
        Told { quiet: self.settings.quiet, ..Told::default() }
    }

    /// How a client of this pool is set up.
    pub fn client_config(&self, patience: Duration) -> Outcome<ClientConfig> {
        Ok(ClientConfig {
            manager: self.manager_address()?,
            keys: self.keys()?,
            window_bytes: self.settings.window_bytes,
            patience,
            encryption_keys: Some(self.settings.encryption_keys.clone()),
            ..ClientConfig::default()
        })
    }

    /// A local pool whose manager doesn't run needs no waiting.
    fn refuse_stopped(&self) -> Outcome {
        if self.settings.manager.is_some() {
            return Ok(());
        }
        let home = self.home();
        let record = home.record_required()?;
        // Another one may lead.
        if record.manager.is_some() || record.store.is_some() {
            return Ok(());
        }
        let running =
            ProcessRecord::read(&home.run_file(Role::Manager))?.is_some_and(|process| process.is_alive());
        match running {
            true => Ok(()),
            false => Err(CommandError::new(
                Exit::Unreachable,
                format_args!("pool {}", home.path().display()),
                "its manager is not running",
                format_args!("`stdchk up --data {}` starts what is missing", home.path().display()),
            )),
        }
    }
}
