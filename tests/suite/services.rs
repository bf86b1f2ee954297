//! The private servers: they start in any folder, refuse other users, and never outlive their owner.
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use sqlx::mysql::{MySqlConnection, MySqlPool};
use sqlx::{Connection, Executor};
use tickr::services::{Address, Options, Services, ServicesError, Transport, signal};

/// Set for the copies of this program that [`helper`] starts.
const HELPER: &str = "TICKR_TEST_SERVICES_HELPER";

fn root() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn start() -> Services {
    Services::start(&Options::ephemeral_under(root())).unwrap()
}

#[test]
fn both_servers_answer_and_dropping_them_leaves_no_process_and_no_file() {
    let services = start();
    assert!(matches!(services.mysql().address(), Address::Socket(_)));
    assert_eq!(mysql_version(&services).split('.').count(), 3);
    assert_eq!(redis_ping(&services), "PONG");
    assert_eq!(fs::metadata(services.folder()).unwrap().permissions().mode() & 0o777, 0o700);

    let folder = services.folder().to_owned();
    assert!(!processes_naming(&folder).is_empty());
    drop(services);
    assert!(!folder.exists());
    wait_until("the servers and guards are gone", || processes_naming(&folder).is_empty());
}

#[test]
fn killing_the_owner_leaves_no_process_and_no_file() {
    for paused in [false, true] {
        let dir = root().join(format!("killed-{paused}-{}", std::process::id()));
        let mut owner = helper("ephemeral", &dir);
        if paused {
            let pid = fs::read_to_string(dir.join("mysql.pid")).unwrap();
            signal("STOP", pid.trim().parse().unwrap()).unwrap();
        }
        owner.kill().unwrap();
        owner.wait().unwrap();
        wait_until("the servers, guards and files are gone", || processes_naming(&dir).is_empty() && !dir.exists());
    }
}

#[test]
fn an_owner_that_ends_without_dropping_leaves_nothing_either() {
    let dir = root().join(format!("ended-{}", std::process::id()));
    let mut owner = helper("ephemeral", &dir);
    // The helper ends when its input ends, by `exit`, which runs no destructor.
    drop(owner.stdin.take());
    assert!(owner.wait().unwrap().success());
    wait_until("the servers, guards and files are gone", || processes_naming(&dir).is_empty() && !dir.exists());
}

#[test]
fn a_folder_whose_owner_was_killed_starts_again_with_its_data() {
    let dir = Scratch::new("kept");
    let mut owner = helper("persistent", &dir.0);
    execute(&format!("mysql://root@localhost/?socket={}/mysql.sock", dir.0.display()), "CREATE DATABASE kept");
    owner.kill().unwrap();
    owner.wait().unwrap();

    // The test does not wait: the servers of the killed owner are still stopping, and the start must wait for them.
    let services = Services::start(&persistent(&dir.0)).unwrap();
    execute(&services.mysql_url("kept"), "CREATE TABLE t (id INT PRIMARY KEY)");
    drop(services);
    assert!(dir.0.join("mysql.log").exists());
    let services = Services::start(&persistent(&dir.0)).unwrap();
    execute(&services.mysql_url("kept"), "INSERT INTO t VALUES (1)");
}

#[test]
fn a_second_owner_is_told_who_has_the_folder() {
    let services = start();
    let error = Services::start(&Options::ephemeral(services.folder())).unwrap_err();
    assert!(matches!(error, ServicesError::InUse { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
    assert!(error.contains(&services.folder().display().to_string()), "{error}");
    assert_eq!(redis_ping(&services), "PONG");
}

#[test]
fn a_folder_with_files_of_others_is_never_ephemeral() {
    let dir = Scratch::new("others");
    fs::create_dir_all(&dir.0).unwrap();
    fs::write(dir.0.join("thesis.txt"), "years of work").unwrap();
    let error = Services::start(&Options::ephemeral(&dir.0)).unwrap_err();
    assert!(matches!(error, ServicesError::NotOurs { .. }), "{error}");
    assert!(dir.0.join("thesis.txt").exists());
}

#[test]
fn the_usual_ports_may_be_taken() {
    // The ports are taken either by this test or by other programs.
    let _taken = [3306, 6379].map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
    let services = Services::start(&Options::ephemeral_under(root()).transport(Transport::Tcp)).unwrap();
    mysql_version(&services);
    assert_eq!(redis_ping(&services), "PONG");
}

#[test]
fn a_path_too_long_for_sockets_means_ports_with_a_password() {
    let long = Scratch::new(&"long".repeat(25));
    let dir = long.0.join("servers");
    let services = Services::start(&Options::ephemeral(&dir).template_dir(root().join("template"))).unwrap();
    let Address::Tcp(mysql) = *services.mysql().address() else { panic!("mysql is not on a port") };
    let Address::Tcp(redis) = *services.redis().address() else { panic!("redis is not on a port") };
    mysql_version(&services);
    assert_eq!(redis_ping(&services), "PONG");

    let password = fs::read_to_string(dir.join("password")).unwrap();
    assert!(services.mysql_url("x").contains(&password) && services.redis_url().contains(&password));
    assert!(!format!("{services:?}").contains(&password));
    for private in ["password", "redis.conf", "mysql-init.sql"] {
        assert_eq!(fs::metadata(dir.join(private)).unwrap().permissions().mode() & 0o777, 0o600, "{private}");
    }
    let lines = processes_naming(&dir);
    assert!(lines.iter().all(|line| !line.contains(&password)), "the password is in a command line");

    for user in ["root", "mariadb.sys", "anybody"] {
        let url = format!("mysql://{user}@127.0.0.1:{mysql}/");
        assert!(block_on(MySqlConnection::connect(&url)).is_err(), "{user} came in without a password");
    }
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, redis)).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert!(answer.starts_with("-NOAUTH"), "{answer}");
}

#[test]
fn a_killed_server_starts_again_where_it_was_with_what_was_committed() {
    let services = start();
    execute(&services.mysql_url(""), "CREATE DATABASE chaos");
    execute(&services.mysql_url("chaos"), "CREATE TABLE t (id INT PRIMARY KEY)");
    execute(&services.mysql_url("chaos"), "INSERT INTO t VALUES (1)");
    let (before, url) = (services.mysql().pid().unwrap(), services.mysql_url("chaos"));

    services.mysql().kill9().unwrap();
    assert!(!services.mysql().is_running());
    assert!(matches!(services.mysql().kill9(), Err(ServicesError::NotRunning { .. })));
    services.mysql().start_again().unwrap();
    assert!(matches!(services.mysql().start_again(), Err(ServicesError::AlreadyRunning { .. })));
    assert_ne!(services.mysql().pid().unwrap(), before);
    assert_eq!(services.mysql_url("chaos"), url);
    let rows: i64 = block_on(async {
        let pool = MySqlPool::connect(&url).await.unwrap();
        sqlx::query_scalar("SELECT COUNT(*) FROM t").fetch_one(&pool).await.unwrap()
    });
    assert_eq!(rows, 1);

    services.redis().stop().unwrap();
    assert!(!services.redis().is_running());
    services.redis().start_again().unwrap();
    assert_eq!(redis_ping(&services), "PONG");
}

#[test]
fn a_delay_of_commits_holds_each_commit_of_a_lone_session() {
    let (delay, commits) = (Duration::from_millis(20), 10);
    let services = Services::start(&Options::ephemeral_under(root()).commit_delay(delay)).unwrap();
    execute(&services.mysql_url(""), "CREATE DATABASE slow");
    execute(&services.mysql_url("slow"), "CREATE TABLE t (id INT PRIMARY KEY)");
    let elapsed = block_on(async {
        let mut connection = MySqlConnection::connect(&services.mysql_url("slow")).await.unwrap();
        let began = Instant::now();
        for id in 0..commits {
            sqlx::query("INSERT INTO t VALUES (?)").bind(id).execute(&mut connection).await.unwrap();
        }
        began.elapsed()
    });
    assert!(elapsed >= delay * commits, "{elapsed:?}");
}

#[test]
fn a_paused_server_is_silent_until_it_is_resumed() {
    let services = start();
    services.redis().pause().unwrap();
    let url = services.redis_url();
    let (sender, receiver) = std::sync::mpsc::channel();
    let asker = thread::spawn(move || sender.send(ping(&url)).unwrap());
    assert!(receiver.recv_timeout(Duration::from_millis(200)).is_err(), "a paused server answered");
    services.redis().resume().unwrap();
    assert_eq!(receiver.recv_timeout(Duration::from_secs(5)).unwrap(), "PONG");
    asker.join().unwrap();

    services.mysql().pause().unwrap();
    let folder = services.folder().to_owned();
    drop(services);
    assert!(!folder.exists(), "a paused server kept its folder");
}

#[test]
fn many_may_start_at_once_without_a_template() {
    // A space in the path, because MariaDB's initialiser is a shell script.
    let dir = Scratch::new("many at once");
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| mysql_version(&Services::start(&Options::ephemeral_under(&dir.0)).unwrap()));
        }
    });
}

#[test]
fn a_server_that_cannot_start_shows_its_last_words() {
    let error = Services::start(&Options::ephemeral_under(root()).mysql_flag("--no-such-flag")).unwrap_err();
    assert!(matches!(error, ServicesError::EarlyExit { .. }), "{error}");
    assert!(error.to_string().contains("no-such-flag"), "{error}");
}

/// Not a test of its own: the process that [`helper`] starts and that the tests above kill.
#[test]
fn the_helper_process() {
    let Some(kind) = env::var_os(HELPER) else { return };
    let dir = PathBuf::from(env::var_os("TICKR_TEST_SERVICES_DIR").unwrap());
    let options = match kind.to_str() {
        Some("ephemeral") => Options::ephemeral(dir).template_dir(root().join("template")),
        _ => persistent(&dir),
    };
    let services = Services::start(&options).unwrap();
    println!("\nstarted");
    std::mem::forget(services);
    let _ = std::io::stdin().read_line(&mut String::new());
    std::process::exit(0);
}

/// Start another process that owns servers in `dir`. Return when they run.
fn helper(kind: &str, dir: &Path) -> std::process::Child {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "services::the_helper_process", "--nocapture"])
        .env(HELPER, kind)
        .env("TICKR_TEST_SERVICES_DIR", dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "started"), "the helper did not start its servers");
    child
}

fn persistent(dir: &Path) -> Options {
    Options::persistent(dir).template_dir(root().join("template"))
}

/// A folder that the test itself removes.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(root().join(format!("{name}-{}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Return the command lines of all processes that mention `dir`, apart from this program and its helpers.
fn processes_naming(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().unwrap();
    let lines: Vec<String> = match fs::read_dir("/proc") {
        Ok(entries) => entries
            .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok())
            .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
            .collect(),
        Err(_) => {
            let output = Command::new("ps").args(["-A", "-o", "args"]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
        }
    };
    lines.into_iter().filter(|line| line.contains(&format!("{dir}/")) || line.trim_end().ends_with(dir)).collect()
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap().block_on(future)
}

fn execute(url: &str, sql: &'static str) {
    block_on(async {
        let mut connection = MySqlConnection::connect(url).await.unwrap();
        connection.execute(sql).await.unwrap();
    });
}

fn mysql_version(services: &Services) -> String {
    block_on(async {
        let mut connection = MySqlConnection::connect(&services.mysql_url("mysql")).await.unwrap();
        sqlx::query_scalar("SELECT VERSION()").fetch_one(&mut connection).await.unwrap()
    })
}

fn redis_ping(services: &Services) -> String {
    ping(&services.redis_url())
}

fn ping(url: &str) -> String {
    block_on(async {
        // By default the client gives up after half a second, which is too short for a paused server.
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.unwrap();
        redis::cmd("PING").query_async(&mut connection).await.unwrap()
    })
}
