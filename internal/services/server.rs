//! One running server, and methods that make it fail.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::ServicesError;
use super::address::{Address, Transport};
use super::folder::{Folder, remove};
use super::guard::Guard;
use super::poll::poll;

/// Enough time for the recovery of a crashed database on a slow disk.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Enough time for a database to write its memory to disk.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of ports to try if other processes take them first.
const PORT_ATTEMPTS: u32 = 5;

/// The command that starts a server, and the probe that detects when it answers.
pub(super) struct Plan {
    /// The program and its arguments.
    pub(super) command: Vec<OsString>,
    /// Function that tests over a new connection if the server is ready.
    pub(super) probe: Probe,
    /// Text in the log when the server listens. On a port the probe alone is not enough: another process could answer.
    pub(super) listening: &'static str,
}

pub(super) type Probe = Box<dyn Fn(&mut dyn Connection) -> io::Result<bool> + Send + Sync>;

/// A stream to a server, over a socket or a port.
pub(super) trait Connection: Read + Write {}
impl<T: Read + Write> Connection for T {}

/// A private server. Its methods take `&self`, so that a test can make a server fail while others use it.
pub struct Server {
    name: &'static str,
    plan: Plan,
    address: Address,
    log: PathBuf,
    pid_file: PathBuf,
    guard: Mutex<Option<Guard>>,
    // Last, because it must outlive the guard.
    folder: Arc<Folder>,
}

impl Server {
    /// Start the server that `plan` returns for an address, and wait until it answers. `name` is used for its files in
    /// the folder.
    pub(super) fn start(
        folder: &Arc<Folder>,
        name: &'static str,
        transport: Transport,
        plan: impl Fn(&Address) -> Result<Plan, ServicesError>,
    ) -> Result<Self, ServicesError> {
        let log = folder.join(&format!("{name}.log"));
        if log.exists() {
            let previous = log.with_extension("log.1");
            fs::rename(&log, &previous).map_err(ServicesError::io("setting aside", &log))?;
        }
        let mut attempts = 1;
        loop {
            let address = match transport {
                Transport::Socket => Address::Socket(folder.socket(name)),
                Transport::Tcp => Address::free_port().map_err(ServicesError::io("finding a port for", &log))?,
            };
            let server = Self {
                name,
                plan: plan(&address)?,
                address,
                log: log.clone(),
                pid_file: folder.join(&format!("{name}.pid")),
                guard: Mutex::new(None),
                folder: Arc::clone(folder),
            };
            match server.start_again() {
                Ok(()) => return Ok(server),
                // Most likely another process took the port between the check and the bind.
                Err(ServicesError::EarlyExit { .. }) if transport == Transport::Tcp && attempts < PORT_ATTEMPTS => {
                    attempts += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Return the process id of the server while it runs.
    pub fn pid(&self) -> Option<u32> {
        alive(&mut self.guard()).map(|guard| guard.pid())
    }

    /// Return true if the server's process exists, paused or not.
    pub fn is_running(&self) -> bool {
        self.pid().is_some()
    }

    /// Return the address of the server. It stays the same for the life of this value.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Return the server's log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Start a stopped or killed server on the same address and data, and wait until it answers.
    pub fn start_again(&self) -> Result<(), ServicesError> {
        let mut running = self.guard();
        if alive(&mut running).is_some() {
            return Err(ServicesError::AlreadyRunning { name: self.name });
        }
        if let Address::Socket(path) = &self.address {
            remove(path)?;
            // MySQL's own lock file beside the socket. After a crash it may have the id of an unrelated process.
            remove(&path.with_extension("sock.lock"))?;
        }
        let logged = fs::metadata(&self.log).map_or(0, |log| log.len());
        let (lock, sweeper) = (self.folder.lock(), self.folder.sweeper());
        let mut guard = Guard::spawn(&self.plan.command, &self.pid_file, &self.log, lock, sweeper)
            .map_err(ServicesError::io("starting", Path::new(&self.plan.command[0])))?;
        let answer = poll(READY_LIMIT, || match guard.ended() {
            Some(status) => Some(Err(ServicesError::EarlyExit {
                name: self.name,
                status,
                log: self.log.clone(),
                tail: tail(&self.log, logged),
            })),
            None => self.answers(logged).unwrap_or(false).then_some(Ok(())),
        });
        match answer {
            Some(Ok(())) => *running = Some(guard),
            Some(Err(error)) => return Err(error),
            None => {
                guard.kill9();
                return Err(ServicesError::NotReady {
                    name: self.name,
                    seconds: READY_LIMIT.as_secs(),
                    log: self.log.clone(),
                    tail: tail(&self.log, logged),
                });
            }
        }
        Ok(())
    }

    /// Stop the server gracefully and wait until it is gone. A server that does not stop is killed.
    pub fn stop(&self) -> Result<(), ServicesError> {
        let mut running = self.guard();
        let Some(mut guard) = running.take() else {
            return Err(ServicesError::NotRunning { name: self.name });
        };
        guard.ask_to_stop();
        match guard.wait(STOP_LIMIT).or_else(|| guard.kill9()) {
            Some(_) => Ok(()),
            None => Err(ServicesError::StillRunning { name: self.name, seconds: STOP_LIMIT.as_secs() }),
        }
    }

    /// Kill the server with SIGKILL, paused or not, and wait until it is gone. Its data remain for
    /// [`start_again`](Self::start_again).
    pub fn kill9(&self) -> Result<(), ServicesError> {
        let mut running = self.guard();
        let Some(mut guard) = running.take() else {
            return Err(ServicesError::NotRunning { name: self.name });
        };
        match guard.kill9() {
            Some(_) => Ok(()),
            None => Err(ServicesError::StillRunning { name: self.name, seconds: 10 }),
        }
    }

    /// Freeze the server with SIGSTOP: connections stay open but get no answer, as with a broken network.
    pub fn pause(&self) -> Result<(), ServicesError> {
        self.signal("STOP")
    }

    /// Let a paused server continue.
    pub fn resume(&self) -> Result<(), ServicesError> {
        self.signal("CONT")
    }

    /// Begin a graceful stop without waiting for it.
    pub(super) fn ask_to_stop(&self) {
        if let Some(guard) = self.guard().as_mut() {
            guard.ask_to_stop();
        }
    }

    fn signal(&self, signal: &str) -> Result<(), ServicesError> {
        let mut running = self.guard();
        let Some(guard) = alive(&mut running) else {
            return Err(ServicesError::NotRunning { name: self.name });
        };
        guard.signal(signal).map_err(ServicesError::io("signalling", Path::new(&self.plan.command[0])))
    }

    /// Return true if the server answers on a new connection. On a port, its log must show that it is this server.
    fn answers(&self, logged: u64) -> io::Result<bool> {
        let limit = Duration::from_secs(1);
        match &self.address {
            Address::Socket(path) => {
                let mut stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(limit))?;
                (self.plan.probe)(&mut stream)
            }
            Address::Tcp(port) => {
                if !String::from_utf8_lossy(&read_from(&self.log, logged)?).contains(self.plan.listening) {
                    return Ok(false);
                }
                let mut stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, *port)), limit)?;
                stream.set_read_timeout(Some(limit))?;
                (self.plan.probe)(&mut stream)
            }
        }
    }

    /// Lock the guard. A panic in another thread leaves the guard intact, so a poisoned lock must not prevent the stop
    /// of a server.
    fn guard(&self) -> MutexGuard<'_, Option<Guard>> {
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that the server was not running, or that it survived SIGKILL; neither can be handled here.
        let _ = self.stop();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("name", &self.name)
            .field("address", &self.address)
            .field("pid", &self.pid())
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

/// Return the guard, unless its server has ended.
fn alive(guard: &mut Option<Guard>) -> Option<&mut Guard> {
    guard.as_mut().and_then(|guard| guard.ended().is_none().then_some(guard))
}

/// Return the last lines of a log after its first `from` bytes.
fn tail(log: &Path, from: u64) -> String {
    last_lines(&String::from_utf8_lossy(&read_from(log, from).unwrap_or_default()))
}

/// Return the end of a program's output, short enough for an error message.
pub(super) fn last_lines(text: &str) -> String {
    let lines = text.trim_end().lines().collect::<Vec<_>>();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

fn read_from(log: &Path, from: u64) -> io::Result<Vec<u8>> {
    let mut bytes = fs::read(log)?;
    bytes.drain(..bytes.len().min(usize::try_from(from).unwrap_or(usize::MAX)));
    Ok(bytes)
}
