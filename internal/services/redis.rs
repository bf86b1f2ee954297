//! The private Redis. It stores nothing on disk, not even in a persistent folder: the index is disposable, and the
//! reconciler rebuilds it after a start.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::ServicesError;
use super::address::{Address, Password};
use super::folder::{Folder, remove};
use super::guard;
use super::programs::Programs;
use super::server::{Connection, Plan};

/// Return the command that runs Redis at `address`.
pub(super) fn plan(
    programs: &Programs,
    folder: &Folder,
    address: &Address,
    password: Option<&Password>,
) -> Result<Plan, ServicesError> {
    // The password is in a file, because every user of the machine can read the command line.
    let config = folder.write_private("redis.conf", &config(folder.path(), address, password))?;
    let hello = match password {
        Some(password) => format!("AUTH {}\r\nPING\r\n", password.reveal()),
        None => "PING\r\n".to_owned(),
    };
    Ok(Plan {
        command: guard::command(program(programs, folder)?, vec![config.into_os_string()]),
        probe: Box::new(move |stream| probe(stream, &hello)),
        listening: "Ready to accept connections",
    })
}

/// Return the binary under a name that makes it run as a server.
pub(super) fn program(programs: &Programs, folder: &Folder) -> Result<PathBuf, ServicesError> {
    if !programs.redis.ends_with("redis-check-rdb") {
        return Ok(programs.redis.clone());
    }
    let link = folder.join("redis-server");
    remove(&link)?;
    symlink(&programs.redis, &link).map_err(ServicesError::io("linking", &link))?;
    Ok(link)
}

fn config(dir: &Path, address: &Address, password: Option<&Password>) -> String {
    let listen = match address {
        Address::Socket(path) => format!("port 0\nunixsocket {}\nunixsocketperm 700\n", quote(path)),
        Address::Tcp(port) => format!("port {port}\nbind 127.0.0.1\n"),
    };
    let protect = password.map(|password| format!("requirepass {}\n", password.reveal())).unwrap_or_default();
    format!("{listen}{protect}dir {}\nsave \"\"\nappendonly no\ndaemonize no\n", quote(dir))
}

pub(super) fn quote(path: &Path) -> String {
    format!("\"{}\"", path.display().to_string().replace('\\', "\\\\").replace('"', "\\\""))
}

/// Redis answers `+PONG`, after an `+OK` for the password. While it is not ready it answers `-LOADING` or another
/// error.
fn probe(stream: &mut dyn Connection, hello: &str) -> io::Result<bool> {
    stream.write_all(hello.as_bytes())?;
    let mut answer = String::new();
    let mut bytes = [0; 64];
    while answer.matches("\r\n").count() < hello.matches("\r\n").count() {
        match stream.read(&mut bytes)? {
            0 => return Ok(false),
            count => answer.push_str(&String::from_utf8_lossy(&bytes[..count])),
        }
    }
    Ok(answer.ends_with("+PONG\r\n"))
}
