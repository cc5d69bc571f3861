//! Which pool, which keys, which window: flags before `STDCHK_*` variables before one configuration file.
//!
//! The three sources are layers of the same shape. The pool is a manager's address or a local pool's directory; the first
//! layer that names one of them decides, so that `--data DIR` is not overruled by an address in the file.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf, absolute};

use clap::Args;
use serde::Deserialize;
use stdchk_model::limits::{WINDOW_BYTES_DEFAULT, WINDOW_BYTES_MIN};
use stdchk_model::size;
use stdchk_net::Managers;
use stdchk_net::own;
use stdchk_net::transport::socket_of;

use crate::exit::{About, CommandError, Outcome};

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

/// What one source of settings says.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Layer {
    data: Option<PathBuf>,
    manager: Option<String>,
    keys: Option<PathBuf>,
    encryption_keys: Option<PathBuf>,
    window: Option<String>,
}

/// What holds for this run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Directory of the local pool, absolute.
    pub data: PathBuf,
    /// The manager's address if it was given, or those of several with commas between them; `None`: the local pool's.
    pub manager: Option<String>,
    /// Where the keys are if that was given, absolute; `None`: in [`Self::data`], if there are some.
    pub keys: Option<PathBuf>,
    /// Where the encryption keys are, absolute. The folder need not be there.
    pub encryption_keys: PathBuf,
    /// Memory for writes in flight, bytes.
    pub window_bytes: u64,
    /// Print no progress and no remarks.
    pub quiet: bool,
}

/// A lookup of environment variables, real or a test's.
type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

impl Settings {
    /// The settings of this process.
    pub fn load(flags: &PoolFlags) -> Outcome<Self> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self::from_sources(flags, &variable)
    }

    fn from_sources(flags: &PoolFlags, variable: Variable<'_>) -> Outcome<Self> {
        let layers = [of_flags(flags), of_variables(variable)?, of_file(flags, variable)?];
        let first = |pick: fn(&Layer) -> Option<&PathBuf>| layers.iter().find_map(pick);
        let data = match first(|layer| layer.data.as_ref()) {
            Some(data) => data.clone(),
            None => state_directory(variable)?,
        };
        let data = absolute(&data).about(data.display())?;
        let names_pool = layers.iter().find(|layer| layer.manager.is_some() || layer.data.is_some());
        let manager = names_pool.and_then(|layer| layer.manager.clone());
        manager.iter().try_for_each(|addresses| check_managers("manager", addresses))?;
        let keys =
            first(|layer| layer.keys.as_ref()).map(absolute).transpose().about("the folder of the keys")?;
        let below = || keys.clone().unwrap_or_else(|| data.join("keys")).join("encryption");
        let encryption_keys =
            first(|layer| layer.encryption_keys.as_ref()).map_or_else(|| Ok(below()), absolute);
        let window = layers.iter().find_map(|layer| layer.window.as_deref());
        Ok(Self {
            manager,
            encryption_keys: encryption_keys.about("the folder of the encryption keys")?,
            keys,
            window_bytes: window.map_or(Ok(WINDOW_BYTES_DEFAULT), window_bytes)?,
            quiet: flags.quiet,
            data,
        })
    }
}

fn of_flags(flags: &PoolFlags) -> Layer {
    Layer {
        data: flags.data.clone(),
        manager: flags.manager.clone(),
        keys: flags.keys.clone(),
        encryption_keys: flags.encryption_keys.clone(),
        window: flags.window.clone(),
    }
}

fn of_variables(variable: Variable<'_>) -> Outcome<Layer> {
    let text = |name: &str| {
        variable(name).map(OsString::into_string).transpose().map_err(|_| {
            CommandError::usage(name, "the variable is not valid UTF-8", "set it to an address or a size")
        })
    };
    Ok(Layer {
        data: variable("STDCHK_DATA").map(PathBuf::from),
        manager: text("STDCHK_MANAGER")?,
        keys: variable("STDCHK_KEYS").map(PathBuf::from),
        encryption_keys: variable("STDCHK_ENCRYPTION_KEYS").map(PathBuf::from),
        window: text("STDCHK_WINDOW")?,
    })
}

/// The file that was named must exist; the default one may.
fn of_file(flags: &PoolFlags, variable: Variable<'_>) -> Outcome<Layer> {
    let named = flags.config.clone().or_else(|| variable("STDCHK_CONFIG").map(PathBuf::from));
    let default = || {
        let directory = variable("XDG_CONFIG_HOME").map(PathBuf::from);
        directory.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".config")))
    };
    let Some(path) = named.clone().or_else(|| Some(default()?.join("stdchk/config.toml"))) else {
        return Ok(Layer::default());
    };
    // Who names a file means it, whosever it is.
    let text = if named.is_some() { fs::read_to_string(&path) } else { own::text_anywhere(&path) };
    match text {
        Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => Ok(Layer::default()),
        text => parse_file(&path, &text.about(path.display())?),
    }
}

fn parse_file(path: &Path, text: &str) -> Outcome<Layer> {
    let layer: Layer = toml::from_str(text).map_err(|error| {
        let cause = error.to_string().trim_end().replace('\n', "\n  ");
        CommandError::usage(
            path.display(),
            cause,
            "it may set data, manager, keys, encryption_keys and window",
        )
    })?;
    // Paths in the file are meant from where the file is, not from wherever the command runs.
    let from_here = |file: PathBuf| path.parent().map_or_else(|| file.clone(), |parent| parent.join(&file));
    let (data, keys) = (layer.data.map(from_here), layer.keys.map(from_here));
    Ok(Layer { data, keys, encryption_keys: layer.encryption_keys.map(from_here), ..layer })
}

fn state_directory(variable: Variable<'_>) -> Outcome<PathBuf> {
    let home = || variable("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let state = variable("XDG_STATE_HOME").map(PathBuf::from).or_else(home);
    state.map(|state| state.join("stdchk")).ok_or_else(|| {
        CommandError::usage(
            "the pool's directory",
            "neither STDCHK_DATA, XDG_STATE_HOME nor HOME is set",
            "give it with `--data DIR`",
        )
    })
}

/// Refuses what can't be the addresses of one manager or several.
pub fn check_managers(object: &str, text: &str) -> Outcome {
    Managers::new(text).addresses().iter().try_for_each(|address| check_address(object, address))
}

/// Refuses what can't be an address. Whether its host is known shows when it is connected to.
pub fn check_address(object: &str, text: &str) -> Outcome {
    if socket_of(text).is_some_and(Path::is_absolute) {
        return Ok(());
    }
    let parts = text.rsplit_once(':').filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    let refuse = || {
        CommandError::usage(
            format_args!("{object} {text}"),
            "an address is HOST:PORT or unix:PATH",
            "such as 127.0.0.1:7400 or unix:/srv/stdchk/socket",
        )
    };
    parts.map(drop).ok_or_else(refuse)
}

fn window_bytes(text: &str) -> Outcome<u64> {
    let bytes = size_of("the window", text)?;
    if bytes < WINDOW_BYTES_MIN {
        let least = size::exact(WINDOW_BYTES_MIN);
        let next = format!("give at least {least}, which is what overlapping transfers need");
        return Err(CommandError::usage("the window", format!("{text} is too small"), next));
    }
    Ok(bytes)
}

/// A size from a flag or a setting.
pub fn size_of(object: &str, text: &str) -> Outcome<u64> {
    size::parse(text).map_err(|error| CommandError::usage(object, error, "such as 64MiB"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::exit::Exit;

    fn settings(flags: &PoolFlags, variables: &[(&str, &str)]) -> Outcome<Settings> {
        let known: HashMap<&str, &str> = variables.iter().copied().collect();
        Settings::from_sources(flags, &|name| known.get(name).map(OsString::from))
    }

    fn file(text: &str) -> (tempfile::TempDir, PoolFlags) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.toml");
        fs::write(&path, text).unwrap();
        (directory, PoolFlags { config: Some(path), ..PoolFlags::default() })
    }

    #[test]
    fn flags_beat_variables_and_variables_beat_the_file() {
        let (_directory, mut flags) = file("manager = \"file:1\"\nwindow = \"5MiB\"\n");
        let home = ("HOME", "/home/x");
        assert_eq!(settings(&flags, &[home]).unwrap().manager.as_deref(), Some("file:1"));
        let variables = [home, ("STDCHK_MANAGER", "variable:1"), ("STDCHK_WINDOW", "6MiB")];
        let both = settings(&flags, &variables).unwrap();
        assert_eq!((both.manager.as_deref(), both.window_bytes), (Some("variable:1"), 6 << 20));
        flags.manager = Some("flag:1".into());
        assert_eq!(settings(&flags, &variables).unwrap().manager.as_deref(), Some("flag:1"));
    }

    #[test]
    fn a_directory_named_in_front_overrules_an_address_named_behind() {
        let (_directory, mut flags) = file("manager = \"file:1\"\n");
        flags.data = Some("/pool".into());
        let local = settings(&flags, &[("STDCHK_MANAGER", "variable:1")]).unwrap();
        assert_eq!((local.manager, local.keys), (None, None));
    }

    #[test]
    fn encryption_keys_are_below_the_keys_unless_told_otherwise() {
        let flags = PoolFlags { data: Some("/pool".into()), ..PoolFlags::default() };
        let folder = |variables: &[(&str, &str)]| settings(&flags, variables).unwrap().encryption_keys;
        assert_eq!(folder(&[]), Path::new("/pool/keys/encryption"));
        assert_eq!(folder(&[("STDCHK_KEYS", "/host")]), Path::new("/host/encryption"));
        let both = [("STDCHK_KEYS", "/host"), ("STDCHK_ENCRYPTION_KEYS", "/own")];
        assert_eq!(folder(&both), Path::new("/own"));
    }

    #[test]
    fn the_pool_is_in_the_users_state_directory_by_default() {
        let flags = PoolFlags::default();
        let data = |variables: &[(&str, &str)]| settings(&flags, variables).unwrap().data;
        assert_eq!(data(&[("HOME", "/home/x")]), Path::new("/home/x/.local/state/stdchk"));
        assert_eq!(data(&[("HOME", "/home/x"), ("XDG_STATE_HOME", "/s")]), Path::new("/s/stdchk"));
        assert_eq!(data(&[("STDCHK_DATA", "/d")]), Path::new("/d"));
        assert_eq!(settings(&flags, &[]).unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn paths_in_the_file_are_relative_to_it() {
        let (directory, flags) = file("data = \"pool\"\n");
        assert_eq!(settings(&flags, &[]).unwrap().data, directory.path().join("pool"));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_refused_with_its_path() {
        for text in ["window = 7", "colour = \"red\"", "data ="] {
            let (directory, flags) = file(text);
            let error = settings(&flags, &[("HOME", "/h")]).unwrap_err();
            assert_eq!(error.exit, Exit::Usage);
            assert!(error.message.contains(directory.path().to_str().unwrap()), "{}", error.message);
        }
        let missing = PoolFlags { config: Some("/no/such/file".into()), ..PoolFlags::default() };
        assert_eq!(settings(&missing, &[("HOME", "/h")]).unwrap_err().exit, Exit::NotFound);
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for good in ["unix:/tmp/x", "127.0.0.1:7400", "localhost:0", "[::1]:7400"] {
            check_address("manager", good).unwrap();
        }
        for bad in ["", "unix:", "unix:x", "localhost", "7400", ":7400", "host:", "host:http", "host:99999"] {
            let flags = PoolFlags { manager: Some(bad.into()), ..PoolFlags::default() };
            let error = settings(&flags, &[("HOME", "/h")]).unwrap_err();
            assert!(
                error.exit == Exit::Usage && error.message.contains("HOST:PORT"),
                "{bad}: {}",
                error.message
            );
        }
    }

    #[test]
    fn a_window_that_cannot_work_is_refused() {
        for bad in ["1KiB", "much"] {
            let flags = PoolFlags { window: Some(bad.into()), ..PoolFlags::default() };
            assert_eq!(settings(&flags, &[("HOME", "/h")]).unwrap_err().exit, Exit::Usage);
        }
    }

    proptest! {
        #[test]
        fn any_file_is_understood_or_refused_with_its_path(
            lines in proptest::collection::vec(
                ("(data|manager|keys|window|\\PC{0,9})", " ?=? ?", "(\"\\PC{0,12}\"|'\\PC{0,12}'|[0-9]{1,25}|\\[|\\PC{0,9})"),
                0..5,
            ),
        ) {
            let text: String = lines.iter().map(|(key, sign, value)| format!("{key}{sign}{value}\n")).collect();
            let (directory, flags) = file(&text);
            match settings(&flags, &[("HOME", "/h")]) {
                Ok(settings) => prop_assert!(settings.window_bytes >= WINDOW_BYTES_MIN && settings.data.is_absolute()),
                Err(error) => prop_assert!(error.exit == Exit::Usage, "{}: {}", directory.path().display(), error.message),
            }
        }
    }
}
