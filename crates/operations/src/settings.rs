//! Which pool, which keys, which window: what the caller says before `STDCHK_*` variables before one configuration file.
//!
//! The three sources are layers of the same shape. The pool is a manager's address or a local pool's directory; the first
//! layer that names one of them decides, so that `--data DIR` is not overruled by an address in the file.

use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::path::{Path, PathBuf, absolute};
use std::sync::Arc;

use serde::Deserialize;
use stdchk_model::limits::{WINDOW_BYTES_DEFAULT, WINDOW_BYTES_MIN};
use stdchk_model::size;
use stdchk_net::own;
use stdchk_net::transport::socket_of;
use stdchk_net::{Keys, Managers};

use crate::error::{About, Code, Error, Result};
use crate::local_pool;
use crate::pool::Options;

/// The caller's own settings, such as a command's flags. Variables and the configuration file fill in the rest.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Directory of the local pool.
    pub data: Option<PathBuf>,
    /// Address of the manager, or those of several with commas between them.
    pub manager: Option<String>,
    /// Folder with this host's keys.
    pub keys: Option<PathBuf>,
    /// Folder with this user's encryption keys.
    pub encryption_keys: Option<PathBuf>,
    /// Memory for writes in flight.
    pub window: Option<String>,
    /// Configuration file.
    pub config: Option<PathBuf>,
}

/// The settings of one source.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Layer {
    data: Option<PathBuf>,
    manager: Option<String>,
    keys: Option<PathBuf>,
    encryption_keys: Option<PathBuf>,
    window: Option<String>,
}

/// The settings that hold for this run.
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
}

/// A lookup of environment variables, real or a test's.
type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

impl Settings {
    /// The settings of this process.
    ///
    /// # Errors
    /// [`Code::Invalid`](Code::Invalid): a value or the file can't be used. [`Code::NotFound`](Code::NotFound): the file that
    /// was named isn't there.
    pub fn load(sources: &Sources) -> Result<Self> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self::from_sources(sources, &variable)
    }

    /// Where the manager is: as given, or as the local pool has it.
    ///
    /// # Errors
    /// [`Code::NotFound`](Code::NotFound): there is no local pool. [`Code::Invalid`](Code::Invalid): its record can't be used.
    pub fn manager_address(&self) -> Result<String> {
        match &self.manager {
            Some(address) => Ok(address.clone()),
            None => local_pool::manager(&self.data),
        }
    }

    /// The keys of this host, if it has some.
    ///
    /// # Errors
    /// They can't be read.
    pub fn load_keys(&self) -> Result<Option<Arc<Keys>>> {
        let usual = self.data.join(local_pool::KEYS);
        let folder = match &self.keys {
            Some(given) => given,
            None if Keys::are_in(&usual) => &usual,
            None => return Ok(None),
        };
        let keys = Keys::load(folder).map_err(|error| {
            Error::new(Code::Other, "keys", error, "mend that, or join the pool anew, with a token")
        })?;
        Ok(Some(Arc::new(keys)))
    }

    /// How to reach the pool, with a minute of patience.
    ///
    /// # Errors
    /// Those of [`Self::manager_address`] and [`Self::load_keys`].
    pub fn options(&self) -> Result<Options> {
        Ok(Options {
            keys: self.load_keys()?,
            window_bytes: self.window_bytes,
            encryption_keys: Some(self.encryption_keys.clone()),
            ..Options::new(self.manager_address()?)
        })
    }

    /// The socket of the agent that stores this user's checkpoints in this pool, one for each set of keys.
    ///
    /// # Errors
    /// Those of [`Self::manager_address`].
    pub fn agent_socket(&self) -> Result<PathBuf> {
        let mut hasher = DefaultHasher::new();
        (self.manager_address()?, &self.keys, &self.encryption_keys).hash(&mut hasher);
        let below = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
        let below = below.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
        let user = rustix::process::geteuid().as_raw();
        Ok(below.join(format!("stdchk-{user}")).join(format!("agent-{:016x}.sock", hasher.finish())))
    }

    fn from_sources(sources: &Sources, variable: Variable<'_>) -> Result<Self> {
        let layers = [of_caller(sources), of_variables(variable)?, of_file(sources, variable)?];
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
            data,
        })
    }
}

fn of_caller(sources: &Sources) -> Layer {
    Layer {
        data: sources.data.clone(),
        manager: sources.manager.clone(),
        keys: sources.keys.clone(),
        encryption_keys: sources.encryption_keys.clone(),
        window: sources.window.clone(),
    }
}

fn of_variables(variable: Variable<'_>) -> Result<Layer> {
    let text = |name: &str| {
        variable(name).map(OsString::into_string).transpose().map_err(|_| {
            Error::invalid(name, "the variable is not valid UTF-8", "set it to an address or a size")
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
fn of_file(sources: &Sources, variable: Variable<'_>) -> Result<Layer> {
    let named = sources.config.clone().or_else(|| variable("STDCHK_CONFIG").map(PathBuf::from));
    let default = || {
        let directory = variable("XDG_CONFIG_HOME").map(PathBuf::from);
        directory.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".config")))
    };
    let Some(path) = named.clone().or_else(|| Some(default()?.join("stdchk/config.toml"))) else {
        return Ok(Layer::default());
    };
    // A file that the caller names is read, whoever owns it.
    let text = if named.is_some() { fs::read_to_string(&path) } else { own::text_anywhere(&path) };
    match text {
        Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => Ok(Layer::default()),
        text => parse_file(&path, &text.about(path.display())?),
    }
}

fn parse_file(path: &Path, text: &str) -> Result<Layer> {
    let layer: Layer = toml::from_str(text).map_err(|error| {
        let cause = error.to_string().trim_end().replace('\n', "\n  ");
        Error::invalid(path.display(), cause, "it may set data, manager, keys, encryption_keys and window")
    })?;
    // Paths in the file are meant from where the file is, not from wherever the command runs.
    let from_here = |file: PathBuf| path.parent().map_or_else(|| file.clone(), |parent| parent.join(&file));
    let (data, keys) = (layer.data.map(from_here), layer.keys.map(from_here));
    Ok(Layer { data, keys, encryption_keys: layer.encryption_keys.map(from_here), ..layer })
}

fn state_directory(variable: Variable<'_>) -> Result<PathBuf> {
    let home = || variable("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let state = variable("XDG_STATE_HOME").map(PathBuf::from).or_else(home);
    state.map(|state| state.join("stdchk")).ok_or_else(|| {
        Error::invalid(
            "the pool's directory",
            "neither STDCHK_DATA, XDG_STATE_HOME nor HOME is set",
            "give it with `--data DIR`",
        )
    })
}

/// Refuses what can't be the addresses of one manager or several.
///
/// # Errors
/// [`Code::Invalid`](Code::Invalid): it is none.
pub fn check_managers(object: &str, text: &str) -> Result {
    Managers::new(text).addresses().iter().try_for_each(|address| check_address(object, address))
}

/// Refuses what can't be an address. Whether its host is known shows when it is connected to.
///
/// # Errors
/// [`Code::Invalid`](Code::Invalid): it is none.
pub fn check_address(object: &str, text: &str) -> Result {
    if socket_of(text).is_some_and(Path::is_absolute) {
        return Ok(());
    }
    let parts = text.rsplit_once(':').filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    let refuse = || {
        Error::invalid(
            format_args!("{object} {text}"),
            "an address is HOST:PORT or unix:PATH",
            "such as 127.0.0.1:7400 or unix:/srv/stdchk/socket",
        )
    };
    parts.map(drop).ok_or_else(refuse)
}

fn window_bytes(text: &str) -> Result<u64> {
    let bytes = size_of("the window", text)?;
    if bytes < WINDOW_BYTES_MIN {
        let least = size::exact(WINDOW_BYTES_MIN);
        let next = format!("give at least {least}, which is what overlapping transfers need");
        return Err(Error::invalid("the window", format!("{text} is too small"), next));
    }
    Ok(bytes)
}

/// A size from a flag or a setting.
///
/// # Errors
/// [`Code::Invalid`](Code::Invalid): it is none.
pub fn size_of(object: &str, text: &str) -> Result<u64> {
    size::parse(text).map_err(|error| Error::invalid(object, error, "such as 64MiB"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn settings(flags: &Sources, variables: &[(&str, &str)]) -> Result<Settings> {
        let known: HashMap<&str, &str> = variables.iter().copied().collect();
        Settings::from_sources(flags, &|name| known.get(name).map(OsString::from))
    }

    fn file(text: &str) -> (tempfile::TempDir, Sources) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.toml");
        fs::write(&path, text).unwrap();
        (directory, Sources { config: Some(path), ..Sources::default() })
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
        let flags = Sources { data: Some("/pool".into()), ..Sources::default() };
        let folder = |variables: &[(&str, &str)]| settings(&flags, variables).unwrap().encryption_keys;
        assert_eq!(folder(&[]), Path::new("/pool/keys/encryption"));
        assert_eq!(folder(&[("STDCHK_KEYS", "/host")]), Path::new("/host/encryption"));
        let both = [("STDCHK_KEYS", "/host"), ("STDCHK_ENCRYPTION_KEYS", "/own")];
        assert_eq!(folder(&both), Path::new("/own"));
    }

    #[test]
    fn the_pool_is_in_the_users_state_directory_by_default() {
        let flags = Sources::default();
        let data = |variables: &[(&str, &str)]| settings(&flags, variables).unwrap().data;
        assert_eq!(data(&[("HOME", "/home/x")]), Path::new("/home/x/.local/state/stdchk"));
        assert_eq!(data(&[("HOME", "/home/x"), ("XDG_STATE_HOME", "/s")]), Path::new("/s/stdchk"));
        assert_eq!(data(&[("STDCHK_DATA", "/d")]), Path::new("/d"));
        assert_eq!(settings(&flags, &[]).unwrap_err().code, Code::Invalid);
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
            assert_eq!(error.code, Code::Invalid);
            assert!(error.to_string().contains(directory.path().to_str().unwrap()), "{}", error);
        }
        let missing = Sources { config: Some("/no/such/file".into()), ..Sources::default() };
        assert_eq!(settings(&missing, &[("HOME", "/h")]).unwrap_err().code, Code::NotFound);
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for good in ["unix:/tmp/x", "127.0.0.1:7400", "localhost:0", "[::1]:7400"] {
            check_address("manager", good).unwrap();
        }
        for bad in ["", "unix:", "unix:x", "localhost", "7400", ":7400", "host:", "host:http", "host:99999"] {
            let flags = Sources { manager: Some(bad.into()), ..Sources::default() };
            let error = settings(&flags, &[("HOME", "/h")]).unwrap_err();
            assert!(
                error.code == Code::Invalid && error.to_string().contains("HOST:PORT"),
                "{bad}: {}",
                error
            );
        }
    }

    #[test]
    fn a_window_that_cannot_work_is_refused() {
        for bad in ["1KiB", "much"] {
            let flags = Sources { window: Some(bad.into()), ..Sources::default() };
            assert_eq!(settings(&flags, &[("HOME", "/h")]).unwrap_err().code, Code::Invalid);
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
                Err(error) => prop_assert!(error.code == Code::Invalid, "{}: {}", directory.path().display(), error),
            }
        }
    }
}
