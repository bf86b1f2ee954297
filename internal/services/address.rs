//! Addresses of the servers, the password that protects ports, and the URLs made from both.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Kind of address on which the servers listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Unix sockets in the data folder, which only its owner can enter.
    Socket,
    /// Free ports on the loopback interface. Every user of the machine can reach them, so they need a password.
    Tcp,
}

/// Address of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Socket(PathBuf),
    /// A port on 127.0.0.1.
    Tcp(u16),
}

/// Maximum length of a socket path: the kernel's field without the terminating zero.
const MAX_SOCKET_PATH: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

impl Address {
    /// Return true if the path is short enough for a socket.
    pub(super) fn fits(path: &Path) -> bool {
        path.as_os_str().len() <= MAX_SOCKET_PATH
    }

    /// Return a port that was free a moment ago. Another process may take it before the server does, so the caller must
    /// retry.
    pub(super) fn free_port() -> io::Result<Self> {
        Ok(Self::Tcp(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port()))
    }

    pub(super) fn mysql_url(&self, password: Option<&Password>, database: &str) -> String {
        let database = encode(database.as_bytes(), "");
        match self {
            Self::Socket(path) => {
                format!("mysql://root@localhost/{database}?socket={}", encode(path.as_os_str().as_bytes(), "/"))
            }
            Self::Tcp(port) => {
                let password = password.map_or("", Password::reveal);
                format!("mysql://root:{password}@127.0.0.1:{port}/{database}")
            }
        }
    }

    pub(super) fn redis_url(&self, password: Option<&Password>) -> String {
        match self {
            Self::Socket(path) => format!("redis+unix://{}", encode(path.as_os_str().as_bytes(), "/")),
            Self::Tcp(port) => {
                let password = password.map_or("", Password::reveal);
                format!("redis://:{password}@127.0.0.1:{port}/")
            }
        }
    }
}

/// A random password of letters and digits. Its `Debug` form does not show it.
#[derive(Clone)]
pub(super) struct Password(String);

impl Password {
    pub(super) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Return the password itself, for URLs and for the servers' own files.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

/// Percent-encode everything except plain characters and those in `keep`.
fn encode(bytes: &[u8], keep: &str) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || keep.as_bytes().contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_survive_unusual_folder_names() {
        let address = Address::Socket("/a b/50%+x?/mysql.sock".into());
        assert_eq!(
            address.mysql_url(None, "tickr_1"),
            "mysql://root@localhost/tickr_1?socket=/a%20b/50%25%2Bx%3F/mysql.sock"
        );
        assert_eq!(address.redis_url(None), "redis+unix:///a%20b/50%25%2Bx%3F/mysql.sock");
    }

    #[test]
    fn the_password_is_not_in_the_debug_form() {
        assert!(!format!("{:?}", Password::new("hush")).contains("hush"));
    }
}
