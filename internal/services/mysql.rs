//! The private MySQL or MariaDB: initialisation of its data folder, and its flags.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::address::{Address, Password};
use super::folder::{Folder, lock_within};
use super::guard;
use super::programs::{Flavour, Programs};
use super::server::{Connection, Plan, last_lines};
use super::{Options, ServicesError};

/// Time for two initialisations in a row on a slow disk.
const TEMPLATE_LIMIT: Duration = Duration::from_secs(120);

/// Return the data folder of a flavour. Each flavour has its own, because they cannot read each other's.
fn data_dir(programs: &Programs, folder: &Folder) -> PathBuf {
    folder.join(match programs.flavour {
        Flavour::Mariadb => "mariadb",
        Flavour::Mysql => "mysql",
    })
}

/// Make sure that an initialised data folder exists. It is created under another name and renamed, so that an existing
/// one is always complete.
pub(super) fn prepare(programs: &Programs, folder: &Folder, options: &Options) -> Result<(), ServicesError> {
    let data = data_dir(programs, folder);
    if data.exists() {
        return Ok(());
    }
    let aside = data.with_extension("new");
    remove_all(&aside)?;
    match &options.template_dir {
        Some(dir) => {
            let template = template(programs, dir)?;
            copy(&template, &aside)?;
        }
        None => initialise(programs, &aside, folder.lock())?,
    }
    fs::rename(&aside, &data).map_err(ServicesError::io("renaming", &aside))
}

/// Return the template for this exact server version in `dir`. The first call creates it.
fn template(programs: &Programs, dir: &Path) -> Result<PathBuf, ServicesError> {
    let dir = std::path::absolute(dir).map_err(ServicesError::io("finding", dir))?;
    let template = dir.join(&programs.version);
    if template.exists() {
        return Ok(template);
    }
    fs::create_dir_all(&dir).map_err(ServicesError::io("making", &dir))?;
    let path = dir.join("lock");
    let lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(ServicesError::io("opening", &path))?;
    if !lock_within(TEMPLATE_LIMIT, &lock, || true).map_err(ServicesError::io("locking", &path))? {
        return Err(ServicesError::TemplateBusy { dir, seconds: TEMPLATE_LIMIT.as_secs() });
    }
    if !template.exists() {
        let aside = dir.join(format!("{}.new", programs.version));
        remove_all(&aside)?;
        initialise(programs, &aside, &lock)?;
        fs::rename(&aside, &template).map_err(ServicesError::io("renaming", &aside))?;
    }
    Ok(template)
}

/// Create a data folder that contains only the server's own tables and a `root` without a password. [`plan`] makes that
/// account reachable through a private socket only.
fn initialise(programs: &Programs, data: &Path, lock: &File) -> Result<(), ServicesError> {
    DirBuilder::new().mode(0o700).create(data).map_err(ServicesError::io("making", data))?;
    let program = programs.install_db.as_ref().unwrap_or(&programs.mysqld);
    // Temporary tables are named by process id. In a shared /tmp, two initialisers have already used the same name.
    let tmp = data.with_extension("tmp");
    remove_all(&tmp)?;
    DirBuilder::new().mode(0o700).create(&tmp).map_err(ServicesError::io("making", &tmp))?;
    let mut command = Command::new(program);
    command.arg("--no-defaults").arg(flag("--datadir=", data));
    match programs.flavour {
        // MariaDB's is a shell script. It cuts the options that it does not know at their spaces, so the folder is in the
        // environment. With `--user` it also changes the owner of a folder of the system's MariaDB.
        Flavour::Mariadb => command.env("TMPDIR", &tmp).args([
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
            "--innodb-log-file-size=10M",
            "--innodb-flush-log-at-trx-commit=0",
        ]),
        Flavour::Mysql => command
            .arg(flag("--tmpdir=", &tmp))
            .args(as_root())
            .args(["--initialize-insecure", "--innodb-redo-log-capacity=16M"]),
    };
    // Standard input only carries the lock: if this process is killed, the next one waits for the initialiser.
    let failed = |error| ServicesError::io("running", program)(error);
    let lock = lock.try_clone().map_err(failed)?;
    let output = command.stdin(Stdio::from(lock)).output().map_err(failed)?;
    remove_all(&tmp)?;
    if !output.status.success() {
        let text = [output.stdout, output.stderr].concat();
        let tail = last_lines(&String::from_utf8_lossy(&text));
        return Err(ServicesError::Initialise { program: program.clone(), status: output.status, tail });
    }
    // This file has the server's identity, which copies must not share. The server creates a new one.
    match fs::remove_file(data.join("auto.cnf")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(ServicesError::io("removing", data)(error)),
        _ => Ok(()),
    }
}

/// Return the command that runs the server at `address`.
pub(super) fn plan(
    programs: &Programs,
    folder: &Folder,
    options: &Options,
    address: &Address,
    password: Option<&Password>,
) -> Result<Plan, ServicesError> {
    let data = data_dir(programs, folder);
    // Sorts and temporary tables stay inside the folder too.
    let tmp = data.with_extension("tmp");
    fs::create_dir_all(&tmp).map_err(ServicesError::io("making", &tmp))?;
    let mut args = vec![OsString::from("--no-defaults"), flag("--datadir=", &data), flag("--tmpdir=", &tmp)];
    args.extend(as_root());
    args.extend(flags(programs.flavour, options).into_iter().map(OsString::from));
    args.extend(commit_delay_flags(programs.flavour, options.commit_delay).into_iter().map(OsString::from));
    match address {
        Address::Socket(path) => args.extend([flag("--socket=", path), "--skip-networking".into()]),
        Address::Tcp(port) => {
            // The server requires a socket too. A bare name puts it into the data folder, where no other user can reach
            // it and where no path is too long.
            args.extend(["--socket=unused.sock", "--bind-address=127.0.0.1"].map(OsString::from));
            args.push(format!("--port={port}").into());
        }
    }
    if let Some(password) = password {
        args.push(flag("--init-file=", &folder.write_private("mysql-init.sql", &set_password(password))?));
    }
    args.extend(options.mysql_flags.iter().map(OsString::from));
    let command = guard::command(programs.mysqld.clone(), args);
    Ok(Plan {
        command: in_environment(&options.mysql_environment, command),
        probe: Box::new(probe),
        listening: "ready for connections",
    })
}

/// Return the command with these environment variables. `env` replaces itself with the server, so the guard has the
/// right process id.
fn in_environment(variables: &[(String, PathBuf)], command: Vec<OsString>) -> Vec<OsString> {
    if variables.is_empty() {
        return command;
    }
    let variable = |(name, value): &(String, PathBuf)| flag(&format!("{name}="), value);
    std::iter::once("env".into()).chain(variables.iter().map(variable)).chain(command).collect()
}

fn flags(flavour: Flavour, options: &Options) -> Vec<&'static str> {
    let mut flags = vec![
        "--pid-file=server.pid",
        "--skip-name-resolve",
        "--max-connections=500",
        "--character-set-server=utf8mb4",
        "--collation-server=utf8mb4_bin",
        "--default-time-zone=+00:00",
    ];
    if options.commit_delay.is_zero() {
        flags.push("--skip-log-bin");
    }
    if options.durable {
        flags.push("--innodb-flush-log-at-trx-commit=1");
        flags.push(if options.large { "--innodb-buffer-pool-size=1G" } else { "--innodb-buffer-pool-size=256M" });
    } else {
        // The log is written at every commit but never synced: commits survive a killed server, as the chaos tests
        // expect, and are lost only in a crash of the machine. The doublewrite buffer stays on, because SIGKILL can
        // tear a page too.
        flags.extend([
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-flush-method=nosync",
            "--innodb-buffer-pool-size=256M",
            "--innodb-buffer-pool-dump-at-shutdown=0",
        ]);
    }
    flags.extend(match (flavour, options.durable, options.large) {
        (Flavour::Mariadb, true, false) => &["--innodb-log-file-size=256M"][..],
        (Flavour::Mariadb, true, true) => &["--innodb-log-file-size=1G"],
        (Flavour::Mariadb, false, _) => &["--innodb-log-file-size=48M", "--debug-no-sync"],
        (Flavour::Mysql, true, false) => &["--innodb-redo-log-capacity=256M"],
        (Flavour::Mysql, true, true) => &["--innodb-redo-log-capacity=1G"],
        (Flavour::Mysql, false, _) => &["--innodb-redo-log-capacity=16M"],
    });
    if flavour == Flavour::Mysql {
        // Without these flags MySQL needs a system folder, a second fixed port, and 300 MB more memory.
        flags.extend(["--secure-file-priv=NULL", "--mysqlx=OFF", "--performance-schema=OFF"]);
    }
    flags
}

/// Return the flags that hold each group of commits for this long: those of a binary log, and of the wait before its
/// sync. A server without a delay has no binary log.
fn commit_delay_flags(flavour: Flavour, delay: Duration) -> Vec<String> {
    if delay.is_zero() {
        return Vec::new();
    }
    let microseconds = delay.as_micros();
    let waits = match flavour {
        // The wait also ends when so many transactions are in the group, which never happens.
        Flavour::Mariadb => {
            ["--binlog-commit-wait-count=1000000".to_owned(), format!("--binlog-commit-wait-usec={microseconds}")]
        }
        Flavour::Mysql => [
            "--binlog-group-commit-sync-no-delay-count=0".to_owned(),
            format!("--binlog-group-commit-sync-delay={microseconds}"),
        ],
    };
    // tickr's transactions read what is committed, and a binary log of statements cannot record those.
    let log = ["--log-bin=binlog", "--server-id=1", "--sync-binlog=1", "--binlog-format=ROW"].map(str::to_owned);
    log.into_iter().chain(waits).collect()
}

/// Return the SQL that sets a password, at every start, for the one account that can log in through the port. With name
/// resolution off, `root@localhost` and accounts with the host's name match sockets only.
fn set_password(password: &Password) -> String {
    let password = password.reveal();
    format!(
        "DROP USER IF EXISTS 'root'@'::1';\n\
         CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';\n\
         ALTER USER 'root'@'127.0.0.1' IDENTIFIED BY '{password}';\n\
         GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"
    )
}

/// MySQL sends the first packet. The fifth byte of its greeting is the protocol version 10; in an error it is 255.
fn probe(stream: &mut dyn Connection) -> io::Result<bool> {
    let mut greeting = [0; 5];
    stream.read_exact(&mut greeting)?;
    Ok(greeting[4] == 10)
}

/// Return the flag that root needs: the server refuses to run as root without it.
fn as_root() -> Option<OsString> {
    let output = Command::new("id").arg("-u").output().ok()?;
    (output.stdout.trim_ascii() == b"0").then(|| "--user=root".into())
}

fn flag(name: &str, path: &Path) -> OsString {
    let mut flag = OsString::from(name);
    flag.push(path);
    flag
}

fn copy(from: &Path, to: &Path) -> Result<(), ServicesError> {
    DirBuilder::new().mode(0o700).create(to).map_err(ServicesError::io("making", to))?;
    for entry in fs::read_dir(from).map_err(ServicesError::io("reading", from))? {
        let entry = entry.map_err(ServicesError::io("reading", from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy(&source, &target)?;
        } else {
            fs::copy(&source, &target).map_err(ServicesError::io("copying", &source))?;
        }
    }
    Ok(())
}

fn remove_all(path: &Path) -> Result<(), ServicesError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(ServicesError::io("removing", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_of_commits_comes_with_a_binary_log_and_there_is_none_without() {
        let all = |flavour, ms| {
            let delay = Duration::from_millis(ms);
            let built_in = flags(flavour, &Options::ephemeral("/nowhere").commit_delay(delay));
            let built_in = built_in.into_iter().map(str::to_owned);
            built_in.chain(commit_delay_flags(flavour, delay)).collect::<Vec<_>>()
        };
        for (flavour, wait) in [
            (Flavour::Mariadb, "--binlog-commit-wait-usec=20000"),
            (Flavour::Mysql, "--binlog-group-commit-sync-delay=20000"),
        ] {
            let (with, without) = (all(flavour, 20), all(flavour, 0));
            let has = |flags: &[String], wanted: &str| flags.iter().any(|flag| flag == wanted);
            assert!(has(&with, wait) && has(&with, "--log-bin=binlog") && has(&with, "--sync-binlog=1"), "{with:?}");
            assert!(!has(&with, "--skip-log-bin"), "{with:?}");
            assert!(has(&without, "--skip-log-bin"), "{without:?}");
            assert!(!without.iter().any(|flag| flag.contains("binlog")), "{without:?}");
        }
    }
}
