//! The search for the server binaries: on the path, in the usual folders of packages, and in the private cache that the
//! script `install.sh` fills for users who cannot install packages.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ServicesError;

/// The family of a MySQL server. The two differ in their flags and in their initialisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavour {
    /// MariaDB.
    Mariadb,
    /// Oracle's MySQL.
    Mysql,
}

/// The binaries to run.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) mysqld: PathBuf,
    pub(super) flavour: Flavour,
    /// A short name of the exact server version, such as `mariadb-10.11.19`.
    pub(super) version: String,
    /// MariaDB's initialiser. MySQL's server initialises itself.
    pub(super) install_db: Option<PathBuf>,
    pub(super) redis: PathBuf,
}

/// Usual folders of servers that are not on the path: Debian hides /usr/sbin from normal users, and Homebrew puts a
/// database version into its own folder.
const USUAL_PLACES: [&str; 8] = [
    "/usr/sbin",
    "/usr/bin",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/libexec",
    "/opt/homebrew/bin",
    "/opt/homebrew/opt/mariadb/bin",
    "/usr/local/opt/mariadb/bin",
];

const INSTALL: &str = if cfg!(target_os = "macos") { "brew install mariadb redis" } else { "make deps" };

impl Programs {
    /// Find all binaries. If `mysqld` is given, use it instead of searching for that one.
    pub(super) fn find(mysqld: Option<&Path>) -> Result<Self, ServicesError> {
        Self::find_in(&search_path(), mysqld)
    }

    fn find_in(dirs: &[PathBuf], mysqld: Option<&Path>) -> Result<Self, ServicesError> {
        let mysqld = match mysqld {
            Some(path) if executable(path) => path.to_owned(),
            Some(path) => {
                let named = path.parent().map(Path::to_owned).into_iter().collect::<Vec<_>>();
                return Err(missing("MySQL server", &[&path.to_string_lossy()], &named));
            }
            None => first(dirs, "MariaDB or MySQL server", &["mariadbd", "mysqld"])?,
        };
        // Debian's Redis is one binary with several names. The package without a system service provides it as
        // `redis-check-rdb`. The binary chooses its role by its own name, so the module `redis` links it under the
        // right one.
        let redis = first(dirs, "Redis server", &["redis-server", "valkey-server", "redis-check-rdb"])?;

        let (flavour, version) = identify(&mysqld)?;
        let install_db = match flavour {
            Flavour::Mysql => None,
            Flavour::Mariadb => {
                let beside =
                    [mysqld.with_file_name(""), mysqld.with_file_name("../bin"), mysqld.with_file_name("../scripts")];
                let dirs = [&beside, dirs].concat();
                Some(first(&dirs, "MariaDB initialiser", &["mariadb-install-db", "mysql_install_db"])?)
            }
        };
        Ok(Self { mysqld, flavour, version, install_db, redis })
    }
}

/// Return the folders to search, in order. `TICKR_SERVERS=cache` leaves only the private cache, to test that case on a
/// machine with installed servers.
fn search_path() -> Vec<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .filter(|dir| !dir.is_empty())
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .map(|cache| cache.join("tickr/servers/bin"));
    if env::var_os("TICKR_SERVERS").is_some_and(|choice| choice == "cache") {
        return cache.into_iter().collect();
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).chain(USUAL_PLACES.map(PathBuf::from)).chain(cache).collect()
}

/// Return the first executable file with one of the `names`. An earlier name in any folder has precedence over a later
/// one.
fn first(dirs: &[PathBuf], wanted: &'static str, names: &[&str]) -> Result<PathBuf, ServicesError> {
    names
        .iter()
        .flat_map(|name| dirs.iter().map(move |dir| dir.join(name)))
        .find(|path| executable(path))
        .ok_or_else(|| missing(wanted, names, dirs))
}

fn missing(wanted: &'static str, names: &[&str], dirs: &[PathBuf]) -> ServicesError {
    let mut searched = dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>();
    let mut seen = std::collections::HashSet::new();
    searched.retain(|dir| seen.insert(dir.clone()));
    ServicesError::MissingProgram { wanted, names: names.join(", "), searched: searched.join(":"), install: INSTALL }
}

fn executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Run the server with `--version` to identify it: `mysqld` may be either flavour. On Debian it is a link to MariaDB.
fn identify(mysqld: &Path) -> Result<(Flavour, String), ServicesError> {
    let output = Command::new(mysqld)
        .args(["--no-defaults", "--version"])
        .output()
        .map_err(ServicesError::io("asking for the version of", mysqld))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let tail = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        return Err(ServicesError::Initialise { program: mysqld.to_owned(), status: output.status, tail });
    }
    let flavour = if text.contains("MariaDB") { Flavour::Mariadb } else { Flavour::Mysql };
    let number = text
        .split_once(" Ver ")
        .map_or("", |(_, rest)| rest.trim_start())
        .split(|c: char| !c.is_ascii_digit() && c != '.')
        .next()
        .unwrap_or_default();
    let family = match flavour {
        Flavour::Mariadb => "mariadb",
        Flavour::Mysql => "mysql",
    };
    Ok((flavour, format!("{family}-{number}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_server_is_named_with_places_and_a_remedy() {
        let error = Programs::find_in(&["/nowhere".into(), "/nowhere/else".into()], None).unwrap_err().to_string();
        assert!(error.contains("mariadbd, mysqld"), "{error}");
        assert!(error.contains("/nowhere:/nowhere/else"), "{error}");
        assert!(error.contains(INSTALL), "{error}");
    }

    #[test]
    fn a_server_named_by_hand_is_not_replaced_by_another() {
        let error = Programs::find_in(&search_path(), Some(Path::new("/nowhere/mysqld"))).unwrap_err().to_string();
        assert!(error.contains("/nowhere/mysqld"), "{error}");
    }
}
