//! The flags that every command takes, and the settings that hold for its run.

use std::ops::Deref;
use std::path::PathBuf;

use clap::Args;
use stdchk_operations::Sources;

use crate::exit::Outcome;

/// The flags that every command takes.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Pool")]
pub struct PoolFlags {
    /// Directory of the local pool [STDCHK_DATA; default: ~/.local/state/stdchk]
    #[arg(long, global = true, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Address of the manager, HOST:PORT or unix:PATH, or of all managers, with commas [STDCHK_MANAGER; default: the local pool's]
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub manager: Option<String>,
    /// Folder with this host's keys in a pool of several machines [STDCHK_KEYS; default: DATA/keys]
    #[arg(long, global = true, value_name = "DIR")]
    pub keys: Option<PathBuf>,
    /// Folder with this user's encryption keys [STDCHK_ENCRYPTION_KEYS; default: `encryption` in the folder of `--keys`]
    #[arg(long, global = true, value_name = "DIR")]
    pub encryption_keys: Option<PathBuf>,
    /// Memory for writes in flight [STDCHK_WINDOW; default: 64MiB]
    #[arg(long, global = true, value_name = "SIZE")]
    pub window: Option<String>,
    /// Configuration file [STDCHK_CONFIG; default: ~/.config/stdchk/config.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print no progress and no remarks
    #[arg(long, short, global = true)]
    pub quiet: bool,
}

/// What holds for this run: of the pool, and of what the command says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pool: stdchk_operations::Settings,
    /// Print no progress and no remarks.
    pub quiet: bool,
}

impl Deref for Settings {
    type Target = stdchk_operations::Settings;

    fn deref(&self) -> &Self::Target {
        &self.pool
    }
}

impl Settings {
    /// The settings of this process.
    pub fn load(flags: &PoolFlags) -> Outcome<Self> {
        let PoolFlags { data, manager, keys, encryption_keys, window, config, quiet } = flags.clone();
        let sources = Sources { data, manager, keys, encryption_keys, window, config };
        Ok(Self { pool: stdchk_operations::Settings::load(&sources)?, quiet })
    }
}

/// Refuses what can't be the addresses of one manager or several.
pub fn check_managers(object: &str, text: &str) -> Outcome {
    Ok(stdchk_operations::check_managers(object, text)?)
}

/// Refuses what can't be an address. Whether its host is known shows when it is connected to.
pub fn check_address(object: &str, text: &str) -> Outcome {
    Ok(stdchk_operations::check_address(object, text)?)
}

/// A size from a flag or a setting.
pub fn size_of(object: &str, text: &str) -> Outcome<u64> {
    Ok(stdchk_operations::size_of(object, text)?)
}
