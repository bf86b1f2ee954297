//! The data folder: private, locked against a second tickr, and removed at the end if it is ephemeral.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::time::Duration;

use super::address::{Address, Password, Transport};
use super::guard::Sweeper;
use super::poll::poll;
use super::{Options, ServicesError};

/// Time that the servers of a killed owner get to stop before the folder counts as in use. Their guards kill them after
/// a minute.
const LEAVING_LIMIT: Duration = Duration::from_secs(70);

/// A locked data folder.
#[derive(Debug)]
pub(super) struct Folder {
    // The sweeper drops first: it removes the folder while the lock is still held.
    sweeper: Option<Sweeper>,
    lock: File,
    path: PathBuf,
}

impl Folder {
    /// Create the folder if needed and lock it. Wait for servers of a killed owner that are still stopping.
    pub(super) fn open(options: &Options) -> Result<Self, ServicesError> {
        let path = std::path::absolute(&options.dir).map_err(ServicesError::io("finding", &options.dir))?;
        let lock = loop {
            make_private(&path, options.ephemeral)?;
            let lock = take_lock(&path)?;
            // The sweeper of an earlier owner may have removed the file that was just locked.
            let same = |now: fs::Metadata| lock.metadata().is_ok_and(|ours| ours.ino() == now.ino());
            if fs::metadata(path.join("lock")).is_ok_and(same) {
                break lock;
            }
        };
        let sweeper = match options.ephemeral {
            true => Some(Sweeper::spawn(&path, &lock).map_err(ServicesError::io("starting a shell to remove", &path))?),
            false => None,
        };
        Ok(Self { sweeper, lock, path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn lock(&self) -> &File {
        &self.lock
    }

    pub(super) fn sweeper(&self) -> Option<&Sweeper> {
        self.sweeper.as_ref()
    }

    /// Return the socket path of the server called `name`.
    pub(super) fn socket(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.sock"))
    }

    /// Return the requested transport, or ports if the socket paths would be too long.
    pub(super) fn transport(&self, wanted: Transport) -> Transport {
        if Address::fits(&self.socket("mysql")) { wanted } else { Transport::Tcp }
    }

    /// Return the password of this folder's servers. The first call creates it.
    pub(super) fn password(&self) -> Result<Password, ServicesError> {
        let path = self.path.join("password");
        match fs::read_to_string(&path) {
            Ok(text) if text.trim().len() == 32 => return Ok(Password::new(text.trim())),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(ServicesError::io("reading", &path)(error));
            }
            _ => {}
        }
        let mut bytes = [0; 16];
        let random = Path::new("/dev/urandom");
        File::open(random)
            .and_then(|mut file| file.read_exact(&mut bytes))
            .map_err(ServicesError::io("reading", random))?;
        let text = bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        self.write_private("password", &text)?;
        Ok(Password::new(&text))
    }

    /// Write a file that only the owner can read, even while it is being written.
    pub(super) fn write_private(&self, name: &str, text: &str) -> Result<PathBuf, ServicesError> {
        let path = self.path.join(name);
        remove(&path)?;
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(ServicesError::io("writing", &path))?;
        Ok(path)
    }
}

/// Remove a file that may not exist.
pub(super) fn remove(path: &Path) -> Result<(), ServicesError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(ServicesError::io("removing", path)(error)),
        _ => Ok(()),
    }
}

/// Take `lock`. Wait for its holder up to `limit` and for as long as `patient` returns true. Return true if the lock
/// was taken.
pub(super) fn lock_within(limit: Duration, lock: &File, patient: impl Fn() -> bool) -> io::Result<bool> {
    let mut refusal = None;
    let locked = poll(limit, || match lock.try_lock() {
        Ok(()) => Some(true),
        Err(TryLockError::WouldBlock) => (!patient()).then_some(false),
        Err(TryLockError::Error(error)) => {
            refusal = Some(error);
            Some(false)
        }
    });
    refusal.map_or(Ok(locked.unwrap_or(false)), Err)
}

fn make_private(path: &Path, ephemeral: bool) -> Result<(), ServicesError> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(ServicesError::io("making", parent))?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(ServicesError::io("making", path)(error)),
    }
    // An ephemeral folder is removed with its content, so a folder with files of other programs must not become one.
    if ephemeral && !path.join("lock").exists() {
        let mut entries = fs::read_dir(path).map_err(ServicesError::io("reading", path))?;
        if entries.next().is_some() {
            return Err(ServicesError::NotOurs { dir: path.to_owned() });
        }
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(ServicesError::io("closing to others", path))
}

/// Take the folder's lock. The file contains the owner's process id. A living owner keeps the lock; the guards of a
/// dead owner release it soon.
fn take_lock(dir: &Path) -> Result<File, ServicesError> {
    let path = dir.join("lock");
    let failed = |error| ServicesError::io("locking", &path)(error);
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    let owner = || fs::read_to_string(&path).unwrap_or_default().trim().to_owned();
    if !lock_within(LEAVING_LIMIT, &lock, || !alive(&owner())).map_err(failed)? {
        return Err(ServicesError::InUse { dir: dir.to_owned(), owner: owner() });
    }
    lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", process::id())).map_err(failed)?;
    Ok(lock)
}

/// Return true if a process with that id exists. If the signal is refused for lack of permission, the process exists.
fn alive(pid: &str) -> bool {
    if pid.is_empty() || !pid.bytes().all(|byte| byte.is_ascii_digit()) {
        return false;
    }
    let output = Command::new("sh")
        .args(["-c", r#"kill -0 "$1""#, "kill", pid])
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output();
    output.is_ok_and(|output| {
        output.status.success() || String::from_utf8_lossy(&output.stderr).contains("not permitted")
    })
}
