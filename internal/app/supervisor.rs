//! Messages to the supervisor of this process, such as systemd for a unit with `Type=notify`.
//!
//! The supervisor names a socket in `NOTIFY_SOCKET`, and each message is one datagram to it (sd_notify(3)). Without
//! that variable nothing is sent. A supervisor that does not listen costs a line in the log, never a start, a job or a
//! stop.
//!
//! Most settings that change while a process runs are in MySQL (queues, limits, API keys, schedules), and every runner
//! reads them by itself. `reload.rs` has what follows a change of the configuration, which a supervisor asks for with
//! SIGHUP.

use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// Time by which each message of a start moves the end of `TimeoutStartSec` away. A migration may take long.
const MORE_TIME_TO_START: Duration = Duration::from_secs(60);
/// Time between two such messages.
const SAY_STARTING_EVERY: Duration = Duration::from_secs(20);
/// Longest time that a message may wait for room in the supervisor's queue.
const PATIENCE: Duration = Duration::from_millis(200);
/// Shortest silence of the heartbeat after which the runner does not count as alive. While MySQL hangs, one turn of the
/// heartbeat takes 11 s.
const SHORTEST_SILENCE: Duration = Duration::from_secs(20);

/// The supervisor of this process, if it asked for messages.
#[derive(Debug, Default)]
pub struct Supervisor {
    line: Option<Line>,
    /// Time without a message after which the supervisor kills this process.
    watchdog: Option<Duration>,
    /// The process does not merely inherit the variables of the one that the supervisor started.
    is_own: bool,
}

impl Supervisor {
    /// Find the supervisor by `NOTIFY_SOCKET`, and its watchdog by `WATCHDOG_USEC` and `WATCHDOG_PID`.
    #[must_use]
    pub fn from_env() -> Self {
        Self::new(|name| std::env::var(name).ok())
    }

    fn new(variable: impl Fn(&str) -> Option<String>) -> Self {
        let Some(name) = variable("NOTIFY_SOCKET") else { return Self::default() };
        let line = match Line::to(&name) {
            Ok(line) => line,
            Err(error) => {
                tracing::warn!(%error, socket = name, "cannot use NOTIFY_SOCKET, the supervisor gets no messages");
                return Self::default();
            }
        };
        // A process that the main process of a unit started inherits the variables, and is not meant.
        let is_meant = |name: &str| variable(name).is_none_or(|pid| pid == std::process::id().to_string());
        let usec = variable("WATCHDOG_USEC").filter(|_| is_meant("WATCHDOG_PID")).and_then(|usec| usec.parse().ok());
        let watchdog = usec.filter(|usec| *usec > 0).map(Duration::from_micros);
        Self { line: Some(line), watchdog, is_own: is_meant("SYSTEMD_EXEC_PID") }
    }

    /// Return whether the supervisor may ask this process to read its configuration again. A process that only inherits
    /// the socket is not the one that is asked, and may have a terminal that it can lose.
    pub(super) const fn reloads(&self) -> bool {
        self.line.is_some() && self.is_own
    }

    /// Ask for time until `starting` has ended, so that a migration is not taken for a start that hangs.
    pub(super) async fn while_starting<T>(&self, starting: impl Future<Output = T>) -> T {
        self.asking_every(SAY_STARTING_EVERY, starting).await
    }

    async fn asking_every<T>(&self, pause: Duration, starting: impl Future<Output = T>) -> T {
        let ask = async {
            loop {
                self.send(&format!("STATUS=starting\nEXTEND_TIMEOUT_USEC={}", MORE_TIME_TO_START.as_micros()));
                tokio::time::sleep(pause).await;
            }
        };
        tokio::select! {
            started = starting => started,
            () = ask => unreachable!("the loop has no end"),
        }
    }

    /// Say that the runner takes jobs and requests.
    pub(super) fn say_ready(&self, addr: std::net::SocketAddr) {
        self.send(&format!("READY=1\nSTATUS=the API listens on {addr}"));
    }

    /// Say that the configuration is read again. The end of it is another [`say_ready`](Self::say_ready). systemd tells
    /// the two apart from an older reload by the time, for which it takes its own clock.
    pub(super) fn say_reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let usec = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={usec}\nSTATUS=reading the configuration again"));
    }

    /// Say that the stop has begun, and how long it may take. So `TimeoutStopSec` need not follow `shutdown_grace`.
    pub(super) fn say_stopping(&self, longest: Duration) {
        let (usec, s) = (longest.as_micros(), longest.as_secs());
        self.send(&format!("STOPPING=1\nSTATUS=stopping, for at most {s} s\nEXTEND_TIMEOUT_USEC={usec}"));
    }

    /// Feed the watchdog until the returned handle is dropped, from a task of its own: a process whose threads all hang
    /// sends nothing. `has_beaten` tells whether the heartbeat made a turn within this time. It is not asked any more
    /// when the runner stops: the heartbeat ends before the stop does, and the supervisor bounds the stop itself.
    pub(super) fn feed_watchdog(
        &self,
        stopping: watch::Receiver<bool>,
        has_beaten: impl Fn(Duration) -> bool + Send + 'static,
    ) -> Option<AbortOnDropHandle<()>> {
        let (line, watchdog) = (self.line.clone()?, self.watchdog?);
        let silence = (watchdog / 2).max(SHORTEST_SILENCE);
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                if *stopping.borrow() || has_beaten(silence) {
                    line.send("WATCHDOG=1");
                } else {
                    tracing::error!("the heartbeat hangs, the watchdog gets no message");
                }
                tokio::time::sleep(watchdog / 4).await;
            }
        })))
    }

    fn send(&self, message: &str) {
        if let Some(line) = &self.line {
            line.send(message);
        }
    }
}

/// The socket of the supervisor.
#[derive(Clone, Debug)]
struct Line {
    socket: std::sync::Arc<UnixDatagram>,
    to: SocketAddr,
}

impl Line {
    fn to(name: &str) -> std::io::Result<Self> {
        let to = address(name)?;
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { socket: std::sync::Arc::new(socket), to })
    }

    fn send(&self, message: &str) {
        if let Err(error) = self.socket.send_to_addr(message.as_bytes(), &self.to) {
            tracing::warn!(%error, "the supervisor did not take a message");
        }
    }
}

/// Return the address of a socket file, or of an abstract socket, whose name begins with `@`.
fn address(name: &str) -> std::io::Result<SocketAddr> {
    match name.strip_prefix('@') {
        #[cfg(target_os = "linux")]
        Some(name) => <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name),
        _ => SocketAddr::from_pathname(name),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Return a socket that hears what a supervisor would, and the name of its file.
    fn ear(dir: &std::path::Path) -> (UnixDatagram, String) {
        let name = dir.join("notify");
        let ear = UnixDatagram::bind(&name).unwrap();
        ear.set_nonblocking(true).unwrap();
        (ear, name.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_reload_tells_the_time_of_the_clock_that_systemd_compares() {
        let dir = tempfile::tempdir().unwrap();
        let (ear, name) = ear(dir.path());
        let supervisor = supervisor(&[("NOTIFY_SOCKET", &name)]);
        let usec = || {
            supervisor.say_reloading();
            let message = heard(&ear).pop().unwrap();
            let rest = message.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap_or_else(|| panic!("{message}"));
            rest.split_once('\n').unwrap().0.parse::<u64>().unwrap()
        };
        let began = std::time::Instant::now();
        let first = usec();
        std::thread::sleep(Duration::from_millis(20));
        let second = usec();
        let passed = u64::try_from(began.elapsed().as_micros()).unwrap();
        assert!(second >= first + 20_000 && second <= first + passed, "{first} {second} {passed}");
    }

    #[test]
    fn a_process_that_inherits_the_socket_of_another_one_does_not_reload() {
        let dir = tempfile::tempdir().unwrap();
        let (_ear, name) = ear(dir.path());
        let own = std::process::id().to_string();
        assert!(supervisor(&[("NOTIFY_SOCKET", &name)]).reloads(), "a supervisor that tells no process id");
        for (pid, reloads) in [(own.as_str(), true), ("1", false)] {
            let supervisor = supervisor(&[("NOTIFY_SOCKET", &name), ("SYSTEMD_EXEC_PID", pid)]);
            assert_eq!(supervisor.reloads(), reloads, "{pid}");
            assert!(supervisor.line.is_some(), "it goes on to send messages");
        }
        assert!(!supervisor(&[("SYSTEMD_EXEC_PID", &own)]).reloads() && !Supervisor::default().reloads());
    }

    /// Return the messages that have come.
    fn heard(ear: &UnixDatagram) -> Vec<String> {
        let mut messages = Vec::new();
        let mut buffer = [0; 500];
        while let Ok(length) = ear.recv(&mut buffer) {
            messages.push(String::from_utf8(buffer[..length].to_vec()).unwrap());
        }
        messages
    }

    /// Wait until the watchdog was fed three times.
    async fn is_fed_three_times(ear: &UnixDatagram) {
        let (mut fed, deadline) = (0, std::time::Instant::now() + Duration::from_secs(30));
        while fed < 3 {
            assert!(std::time::Instant::now() < deadline, "fed {fed} times");
            tokio::time::sleep(Duration::from_millis(5)).await;
            let messages = heard(ear);
            assert!(messages.iter().all(|message| message == "WATCHDOG=1"), "{messages:?}");
            fed += messages.len();
        }
    }

    fn supervisor(variables: &[(&str, &str)]) -> Supervisor {
        Supervisor::new(|name| variables.iter().find(|(is, _)| *is == name).map(|(_, value)| (*value).to_owned()))
    }

    #[tokio::test]
    async fn the_watchdog_is_fed_while_the_heartbeat_turns_and_starves_when_it_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let (ear, name) = ear(dir.path());
        let supervisor = supervisor(&[("NOTIFY_SOCKET", &name), ("WATCHDOG_USEC", "40000")]);
        let beats = Arc::new(AtomicBool::new(true));
        let beating = Arc::clone(&beats);
        let (_running, stopping) = watch::channel(false);
        let _feeding = supervisor.feed_watchdog(stopping, move |within| {
            assert_eq!(within, SHORTEST_SILENCE);
            beating.load(Ordering::Relaxed)
        });
        is_fed_three_times(&ear).await;
        beats.store(false, Ordering::Relaxed);
        // One message may have been under way. After it there is none for ten periods.
        tokio::time::sleep(Duration::from_millis(20)).await;
        heard(&ear);
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(heard(&ear), [""; 0]);
    }

    #[tokio::test]
    async fn the_watchdog_is_fed_during_a_stop_whose_heartbeat_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let (ear, name) = ear(dir.path());
        let supervisor = supervisor(&[("NOTIFY_SOCKET", &name), ("WATCHDOG_USEC", "40000")]);
        let (_stop, stopping) = watch::channel(true);
        let _feeding = supervisor.feed_watchdog(stopping, |_| false);
        is_fed_three_times(&ear).await;
    }

    #[test]
    fn the_watchdog_of_another_process_is_not_fed() {
        let dir = tempfile::tempdir().unwrap();
        let (_ear, name) = ear(dir.path());
        let own = std::process::id().to_string();
        for (pid, fed) in [(own.as_str(), true), ("1", false)] {
            let supervisor =
                supervisor(&[("NOTIFY_SOCKET", &name), ("WATCHDOG_USEC", "1000000"), ("WATCHDOG_PID", pid)]);
            assert_eq!(supervisor.watchdog.is_some(), fed, "{pid}");
        }
        assert!(supervisor(&[("NOTIFY_SOCKET", &name)]).watchdog.is_none());
        assert!(supervisor(&[("WATCHDOG_USEC", "1000000")]).line.is_none());
    }

    #[tokio::test]
    async fn a_start_that_takes_long_asks_for_more_time_again_and_again() {
        let dir = tempfile::tempdir().unwrap();
        let (ear, name) = ear(dir.path());
        let supervisor = supervisor(&[("NOTIFY_SOCKET", &name)]);
        let starting = tokio::time::sleep(Duration::from_millis(100));
        supervisor.asking_every(Duration::from_millis(10), starting).await;
        let messages = heard(&ear);
        assert!(messages.len() > 1, "{messages:?}");
        assert!(
            messages.iter().all(|message| message == "STATUS=starting\nEXTEND_TIMEOUT_USEC=60000000"),
            "{messages:?}"
        );
    }

    #[test]
    fn a_supervisor_that_is_gone_or_full_holds_up_no_message() {
        let dir = tempfile::tempdir().unwrap();
        let (ear, name) = ear(dir.path());
        let supervisor = supervisor(&[("NOTIFY_SOCKET", &name)]);
        let began = std::time::Instant::now();
        // The queue of a socket has room for some messages, and nothing reads these.
        for _ in 0..20 {
            supervisor.say_stopping(Duration::from_secs(1));
        }
        drop(ear);
        supervisor.say_stopping(Duration::from_secs(1));
        assert!(began.elapsed() < 20 * PATIENCE, "{:?}", began.elapsed());
    }
}
