//! The packages for teams without Rust: what is in them, and a completed job with each, installed in a system of its own.
//!
//! The short tests make packages of a program that stands for the binary, so they take no time. The long ones take those
//! of `make package`, need root, and are run by `make test-packages`.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::Value;
use tickr::config::{Config, Flags, markdown_table};
use tickr::services::{Services, Transport};
use tickr::store::Store;
use tokio::process::Command;
use yaml_rust2::{Yaml, YamlLoader};

use crate::support::documents::{Block, document, root};
use crate::support::program::{Program, command, outcome};
use crate::support::{DEADLINE, answer, eventually, http, lasting_addr, server_options};

/// Run a command to its end, and return its output. Panic when it fails.
async fn ok(mut command: Command) -> String {
    let output = command.stdin(Stdio::null()).output().await.unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Return a command of the repository, without the settings of the user who runs the tests.
fn tool(program: &str, args: &[&str]) -> Command {
    command(Path::new(program), root(), args)
}

/// Make the packages of a program that stands for the binary, by an account with this umask.
async fn packages_of_a_stand_in(dir: &Path, name: &str, umask: &str) -> Option<PathBuf> {
    for needed in ["dpkg-deb", "python3"] {
        if tool(needed, &["--version"]).output().await.is_err() {
            println!("{needed} is missing, so no package is made");
            return None;
        }
    }
    let out = dir.join(name);
    let mut package = tool("sh", &["-c", &format!("umask {umask}; exec sh tools/package.sh")]);
    package.env("TICKR_BINARY", fs::canonicalize("/bin/true").unwrap()).env("OUT", &out);
    package.env("TICKR_VERSION", "0.9.1").env("TARGET", "x86_64-unknown-linux-gnu");
    ok(package).await;
    Some(out)
}

/// Return a folder with packages of such a program, and its parent. The tests that only read them share one folder. It
/// goes with the last of these tests.
async fn shared_packages() -> Option<(Arc<tempfile::TempDir>, PathBuf)> {
    static SHARED: tokio::sync::Mutex<Weak<tempfile::TempDir>> = tokio::sync::Mutex::const_new(Weak::new());
    let mut shared = SHARED.lock().await;
    let known = shared.upgrade();
    let dir = if let Some(dir) = known {
        dir
    } else {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        packages_of_a_stand_in(dir.path(), "a", "022").await?;
        *shared = Arc::downgrade(&dir);
        dir
    };
    let out = dir.path().join("a");
    Some((dir, out))
}

fn file(dir: &Path, end: &str) -> PathBuf {
    let mut found = fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}; run `make package`", dir.display()));
    let found = found.find_map(|entry| {
        let path = entry.unwrap().path();
        path.to_str().unwrap().ends_with(end).then_some(path)
    });
    found.unwrap_or_else(|| panic!("there is no {end} in {}; run `make package`", dir.display()))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_debian_package_has_the_program_its_unit_and_no_secret_that_all_can_read() {
    let Some((_dir, out)) = shared_packages().await else { return };
    let deb = file(&out, ".deb");
    let listed = ok(tool("dpkg-deb", &["--contents", deb.to_str().unwrap()])).await;
    for (mode, path) in [
        ("-rwxr-xr-x", "./usr/bin/tickr"),
        ("-rwxr-xr-x", "./usr/bin/tickr-as-service"),
        ("-rw-r--r--", "./lib/systemd/system/tickr.service"),
        ("-rw-r--r--", "./etc/tickr/tickr.toml"),
        ("-rw-r-----", "./etc/tickr/env"),
        ("-rw-r--r--", "./usr/share/doc/tickr/copyright"),
        ("-rw-r--r--", "./usr/share/doc/tickr/changelog.gz"),
        ("-rw-r--r--", "./usr/share/doc/tickr/LICENSE-MIT"),
        ("-rw-r--r--", "./usr/share/doc/tickr/LICENSE-APACHE"),
        ("-rw-r--r--", "./usr/share/doc/tickr/sbom.cdx.json"),
    ] {
        let line = listed.lines().find(|line| line.ends_with(&format!(" {path}")));
        let line = line.unwrap_or_else(|| panic!("no {path} in\n{listed}"));
        assert!(line.starts_with(mode) && line.contains(" root/root "), "{line}");
    }
    let fields = ok(tool("dpkg-deb", &["--field", deb.to_str().unwrap()])).await;
    assert!(fields.contains("Version: 0.9.1\n"), "{fields}");
    // The program that stands for the binary needs the C library.
    assert!(fields.contains("Depends: libc6 (>= 2."), "{fields}");
    let mut sums = tool("sha256sum", &["--check", "SHA256SUMS"]);
    sums.current_dir(&out);
    assert_eq!(ok(sums).await.lines().count(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_sources_and_binary_make_the_same_packages() {
    let Some((dir, first)) = shared_packages().await else { return };
    // Another second, another folder, and an account that lets no other one read its files.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let second = packages_of_a_stand_in(dir.path(), "another", "077").await.unwrap();
    let sums = |dir: &Path| fs::read_to_string(dir.join("SHA256SUMS")).unwrap();
    assert_eq!(sums(&first), sums(&second));
    let archive = file(&second, ".tar.gz");
    let listed = ok(tool("tar", &["--list", "--verbose", "--file", archive.to_str().unwrap()])).await;
    let is_for_all = |line: &&str| {
        line.starts_with("drwxr-xr-x") || line.starts_with("-rwxr-xr-x") || line.starts_with("-rw-r--r--")
    };
    assert_eq!(listed.lines().find(|line| !is_for_all(line)), None, "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_what_is_inside_has_what_the_program_uses_and_nothing_of_the_tests() {
    let Some((_dir, out)) = shared_packages().await else { return };
    let list: Value = serde_json::from_str(&fs::read_to_string(file(&out, "-sbom.cdx.json")).unwrap()).unwrap();
    assert_eq!((&list["bomFormat"], &list["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    assert_eq!(list["metadata"]["component"]["name"], "tickr");
    let components = list["components"].as_array().unwrap();
    let named = |name: &str| components.iter().any(|one| one["name"] == name);
    for name in ["tickr-store", "sqlx-mysql", "redis", "tokio", "rustls", "ring", "libc"] {
        assert!(named(name), "{name} is missing among {}", components.len());
    }
    for name in ["proptest", "rcgen", "libsqlite3-sys", "tungstenite", "windows-sys"] {
        assert!(!named(name), "{name} is not in the program");
    }
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    for one in components {
        let (name, version) = (one["name"].as_str().unwrap(), one["version"].as_str().unwrap());
        assert!(lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"\n")), "{name} {version}");
        assert!(one["licenses"][0]["expression"].is_string(), "{name} has no licence");
    }
    // Each dependency is listed itself.
    let references: Vec<&str> = components.iter().map(|one| one["bom-ref"].as_str().unwrap()).collect();
    for one in list["dependencies"].as_array().unwrap().iter().flat_map(|one| one["dependsOn"].as_array().unwrap()) {
        assert!(references.contains(&one.as_str().unwrap()), "{one}");
    }
}

/// The programs that the scripts of the package call, in place of real ones. This systemd can neither start nor stop a
/// service.
const STAND_INS: &str = "
    systemctl() { echo \"$@\" >>calls; return 1; }
    getent() { :; }
    install() { :; }
    stat() { :; }
";

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_does_not_start_or_stop_keeps_no_package_from_its_installation_and_removal() {
    let dir = tempfile::tempdir().unwrap();
    let calls = dir.path().join("calls");
    for (script, args, asked) in [
        ("postinst", &["configure", "0.1.0"][..], "daemon-reload\ntry-restart tickr.service\n"),
        ("prerm", &["remove"][..], "disable --now tickr.service\n"),
        ("postrm", &["remove"][..], "daemon-reload\n"),
    ] {
        let text = fs::read_to_string(root().join("deploy/debian").join(script)).unwrap();
        // A folder that exists also where systemd does not run.
        let text = format!("{STAND_INS}{}", text.replace("/run/systemd/system", "."));
        let mut run = command(Path::new("/bin/sh"), dir.path(), &["-c", &text, script]);
        run.args(args).env("PATH", dir.path());
        let (code, said, log) = outcome(run).await;
        assert_eq!(code, 0, "{script}: {said}{log}");
        assert_eq!(fs::read_to_string(&calls).unwrap(), asked, "{script}");
        assert_eq!(log.contains("journalctl --unit tickr"), script != "postrm", "{script}: {log}");
        fs::remove_file(&calls).unwrap();
    }
}

/// `userdel` refuses while a process of the account runs. The data is removed before.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_in_use_keeps_no_package_from_its_purge() {
    let dir = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(root().join("deploy/debian/postrm")).unwrap();
    // The folders of the machine stay as they are.
    let text = text.replace("/var/lib/tickr", "data").replace("/etc/tickr", "settings");
    let stand_ins = "
        getent() { :; }
        rm() { echo rm \"$@\" >>calls; }
        userdel() { echo userdel \"$@\" >>calls; return 8; }
        groupdel() { echo groupdel \"$@\" >>calls; return 8; }
    ";
    let mut run = command(Path::new("/bin/sh"), dir.path(), &["-c", &format!("{stand_ins}{text}"), "postrm", "purge"]);
    run.env("PATH", dir.path());
    let (code, said, log) = outcome(run).await;
    assert_eq!(code, 0, "{said}{log}");
    let calls = fs::read_to_string(dir.path().join("calls")).unwrap();
    assert_eq!(calls, "rm -rf data\nuserdel tickr\ngroupdel tickr\n");
    assert!(
        log.contains("the account tickr is still in use") && log.contains("the group tickr is still in use"),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_as_the_service_has_its_settings_also_where_a_shell_would_cut_them() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("home")).unwrap();
    let url = "mysql://tickr:a#b$c@db/tickr?ssl-mode=VERIFY_IDENTITY&ssl-ca=/etc/ca.pem";
    let env = format!(
        "# The store.\nTICKR_MYSQL_URL={url}\n#TICKR_QUEUES=mail\n\n  TICKR_REDIS_URL='redis://cache' \nTICKR_LOG=a b"
    );
    fs::write(dir.path().join("env"), env).unwrap();
    let script = fs::read_to_string(root().join("deploy/debian/tickr-as-service")).unwrap();
    assert!(script.contains("</etc/tickr/env\n") && script.contains("cd /var/lib/tickr\n"), "{script}");
    let script = script.replace("</etc/tickr/env\n", "<env\n").replace("cd /var/lib/tickr\n", "cd home\n");
    let run = async |account: &str, args: &[&str]| {
        let script = format!("id() {{ echo {account}; }}\n{script}");
        let mut run = command(Path::new("/bin/sh"), dir.path(), &["-c", &script, "tickr-as-service"]);
        run.args(args);
        outcome(run).await
    };
    let show = "printf '%s\n' \"$TICKR_MYSQL_URL\" \"$TICKR_REDIS_URL\" \"$TICKR_LOG\" \"${TICKR_QUEUES-unset}\" \
                \"$TICKR_CONFIG\" \"${PWD##*/}\"; exit 5";
    let (code, said, log) = run("tickr", &["sh", "-c", show]).await;
    assert_eq!(said, format!("{url}\nredis://cache\na b\nunset\n/etc/tickr/tickr.toml\nhome\n"), "{log}");
    assert_eq!(code, 5, "{log}");
    // Blanks and the ends of lines of another system count for systemd as little.
    let env = "; The store.\r\nTICKR_MYSQL_URL = mysql://a/b \r\n\r\nTICKR_REDIS_URL =\t\"redis://a b\"\r\n\
               TICKR_LOG='a\\b '\r\n";
    fs::write(dir.path().join("env"), env).unwrap();
    let (code, said, log) = run("tickr", &["sh", "-c", show]).await;
    assert_eq!(said, "mysql://a/b\nredis://a b\na\\b \nunset\n/etc/tickr/tickr.toml\nhome\n", "{log}");
    assert_eq!(code, 5, "{log}");
    // systemd ignores a line that is no variable, and the service works without it. A secret is not repeated.
    for line in ["export TICKR_QUEUES=secret", "TICKR_QUEUES secret", "=secret", "\u{feff}TICKR_QUEUES=secret"] {
        fs::write(dir.path().join("env"), format!("{line}\nTICKR_LOG=a b\n")).unwrap();
        let (code, said, log) = run("tickr", &["sh", "-c", show]).await;
        assert_eq!((code, said.as_str()), (5, "\n\na b\nunset\n/etc/tickr/tickr.toml\nhome\n"), "{line}: {log}");
        assert_eq!(log, "tickr-as-service: line 1 of /etc/tickr/env is ignored, as systemd does\n", "{line}");
    }
    // With another value than the service has, a command would work with other settings.
    for line in ["TICKR_X='secret", "export TICKR_X='secret", "TICKR_X=\"secret\"t\"", "TICKR_X=s\\ecret"] {
        fs::write(dir.path().join("env"), format!("TICKR_LOG=info\n{line}\n")).unwrap();
        let (code, said, log) = run("tickr", &["echo", "ran"]).await;
        assert!(
            code == 1 && said.is_empty() && log.contains("cannot read line 2 of /etc/tickr/env"),
            "{line}: {said}{log}"
        );
        assert!(log.lines().count() == 1 && !log.contains("secret"), "{line}: {log}");
    }
    let (code, said, log) = run("ada", &["echo", "ran"]).await;
    assert!(code == 1 && said.is_empty() && log.contains("only root and the account tickr"), "{said}{log}");
    let (code, _, log) = run("tickr", &[]).await;
    assert!(code == 2 && log.contains("usage: tickr-as-service COMMAND"), "{log}");
}

#[test]
fn the_guide_checks_an_upgrade_with_the_program_of_the_new_package_before_it_is_installed() {
    let commands: Vec<Vec<String>> =
        document("docs/INSTALL.md").blocks_of("sh").iter().flat_map(Block::commands).collect();
    let place = |wanted: &[&str]| {
        let found = commands.iter().position(|words| words == wanted);
        found.unwrap_or_else(|| panic!("there is no {wanted:?} in {commands:?}"))
    };
    let unpacked = place(&["dpkg-deb", "-x", "tickr_0.2.0_amd64.deb", "/var/lib/tickr-new"]);
    let migrated = place(&["tickr-as-service", "/var/lib/tickr-new/usr/bin/tickr", "migrate"]);
    let checked = place(&["tickr-as-service", "/var/lib/tickr-new/usr/bin/tickr", "check", "--pending"]);
    let installed = place(&["apt-get", "install", "./tickr_0.2.0_amd64.deb"]);
    // The check reads the tables of the new program.
    assert!(unpacked < migrated && migrated < checked && checked < installed, "{commands:?}");
}

#[test]
fn the_configuration_of_the_package_is_read_with_its_comments_and_without() {
    let text = fs::read_to_string(root().join("deploy/debian/tickr.toml")).unwrap();
    // A setting behind a comment has ` = `, and a sentence has not.
    let settings = text.lines().map(|line| match line.strip_prefix("# ") {
        Some(setting) if setting.contains(" = ") => setting,
        _ => line,
    });
    let all = settings.collect::<Vec<_>>().join("\n");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tickr.toml");
    for text in [text, all] {
        fs::write(&path, text).unwrap();
        let loaded = Config::load(&Flags::default(), std::iter::empty(), Some(path.clone())).unwrap();
        let usual = Config::load(&Flags::default(), std::iter::empty(), None).unwrap();
        // What the comments show are the defaults.
        assert_eq!(loaded.config.workers, usual.config.workers);
        assert_eq!(loaded.config.shutdown_grace, usual.config.shutdown_grace);
        assert_eq!(loaded.config.retention_completed, usual.config.retention_completed);
        assert_eq!(loaded.config.http_addr, usual.config.http_addr);
    }
}

/// Every variable of tickr in the unit, the image, the manifests and the chart is one that the program reads.
#[test]
fn every_variable_of_the_deployments_is_read_by_the_program() {
    let settings = markdown_table();
    let mut count = 0;
    for path in files_of_deployments() {
        let text = fs::read_to_string(&path).unwrap();
        for (at, _) in text.match_indices("TICKR_") {
            let rest = &text[at..];
            let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(rest.len());
            let name = &rest[..end];
            let known = ["TICKR_CONFIG", "TICKR_TOKEN", "TICKR_URL"].contains(&name);
            assert!(known || settings.contains(&format!("`{name}`")), "{}: {name}", path.display());
            count += 1;
        }
    }
    assert!(count > 30, "only {count} variables were read");
}

fn files_of_deployments() -> Vec<PathBuf> {
    let mut found = vec![root().join("compose.yaml")];
    let mut folders = vec![root().join("deploy")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}

/// The stop of a container must outlast the stop of tickr, in every place that has a limit for it. Other deployments
/// follow the guide.
#[test]
fn every_deployment_gives_a_stop_more_time_than_tickr_takes() {
    const AFTER_THE_GRACE: u64 = 35;
    let source = fs::read_to_string(root().join("internal/app/mod.rs")).unwrap();
    assert!(source.contains(&format!("const AFTER_THE_GRACE: Duration = Duration::from_secs({AFTER_THE_GRACE});")));
    let guide = document("docs/OPERATIONS.md").text.split_whitespace().collect::<Vec<_>>().join(" ");
    let advice = format!("more patience than the longer of the two and {AFTER_THE_GRACE} s.");
    assert!(guide.contains(&advice), "{advice}");
    let number = |path: &str, mark: &str| -> Vec<u64> {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let after = text.match_indices(mark).map(|(at, _)| &text[at + mark.len()..]);
        let digits = after.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap());
        digits.map(|digits| digits.parse().unwrap()).collect()
    };
    let usual = Config::load(&Flags::default(), std::iter::empty(), None).unwrap().config;
    let least = usual.shutdown_grace.max(usual.shutdown_notice).as_secs() + AFTER_THE_GRACE;
    for (path, mark, places) in [
        ("deploy/debian/tickr.service", "\nTimeoutStopSec=", 1),
        ("deploy/kubernetes/tickr.yaml", "\n      terminationGracePeriodSeconds: ", 2),
        ("deploy/kubernetes/tickr-keda.yaml", "\n      terminationGracePeriodSeconds: ", 2),
        ("compose.yaml", "\n    stop_grace_period: ", 1),
    ] {
        let seconds = number(path, mark);
        assert!(seconds.len() == places && seconds.iter().all(|one| *one >= least), "{path}: {seconds:?}");
    }
}

#[test]
fn the_guide_removes_the_finished_migration_before_the_manifests_are_applied_again() {
    let blocks = document("docs/INSTALL.md").blocks_of("sh");
    let block = blocks.iter().find(|block| block.text.contains("kubectl apply")).unwrap();
    let lines: Vec<&str> = block.text.lines().collect();
    assert_eq!(lines[0], "kubectl delete job tickr-migrate --ignore-not-found");
    assert!(lines[1].starts_with("kubectl apply -f deploy/kubernetes/"), "{}", block.place);
}

/// Helm makes its hooks before all other objects, so the migration cannot read the ConfigMap of the runners. `make
/// check-deploy` holds the text of both against the values.
#[test]
fn the_migration_of_the_manifests_reads_its_settings_from_a_hook_before_it() {
    for name in ["tickr.yaml", "tickr-keda.yaml"] {
        let text = fs::read_to_string(root().join("deploy/kubernetes").join(name)).unwrap();
        let objects = YamlLoader::load_from_str(&text).unwrap();
        let named = |kind: &str, name: &str| {
            let is_it =
                |one: &&Yaml| one["kind"].as_str() == Some(kind) && one["metadata"]["name"].as_str() == Some(name);
            objects.iter().find(is_it).unwrap_or_else(|| panic!("there is no {kind} {name}")).clone()
        };
        let job = named("Job", "tickr-migrate");
        // `kubectl apply` of a changed Job fails while the finished one is there.
        assert!(job["spec"]["ttlSecondsAfterFinished"].as_i64().is_some_and(|seconds| seconds >= 600), "{name}");
        let pod = &job["spec"]["template"]["spec"];
        let (container, volume) = (&pod["containers"][0], &pod["volumes"][0]);
        let (variable, mount) = (&container["env"][0], &container["volumeMounts"][0]);
        assert_eq!(variable["name"].as_str(), Some("TICKR_CONFIG"), "{name}");
        assert_eq!(variable["value"].as_str(), Some("/etc/tickr/tickr.toml"), "{name}");
        assert_eq!((mount["mountPath"].as_str(), &mount["name"]), (Some("/etc/tickr"), &volume["name"]), "{name}");

        let settings = named("ConfigMap", volume["configMap"]["name"].as_str().unwrap());
        let of_runners = named("ConfigMap", "tickr");
        assert!(settings["data"]["tickr.toml"].as_str().is_some(), "{name}");
        assert_eq!(settings["data"], of_runners["data"], "{name}");
        let hook = |of: &Yaml| of["metadata"]["annotations"]["helm.sh/hook"].clone();
        let weight = |of: &Yaml| {
            let weight = of["metadata"]["annotations"]["helm.sh/hook-weight"].as_str();
            weight.map_or(0, |weight| weight.parse::<i32>().unwrap())
        };
        assert_eq!(hook(&job).as_str(), Some("pre-install,pre-upgrade"), "{name}");
        assert_eq!(hook(&settings), hook(&job), "{name}");
        assert!(weight(&settings) < weight(&job), "{name}");
    }
}

/// A system in a folder, in which programs run as in one of their own, with the network of this machine.
struct System {
    dir: tempfile::TempDir,
}

impl Drop for System {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(self.path("proc")).output();
    }
}

impl System {
    /// Make the smallest system of Debian.
    async fn debian() -> Self {
        let base = ok(tool("sh", &["internal/services/install.sh", "--chroot"])).await;
        let system = Self { dir: tempfile::tempdir().unwrap() };
        ok(tool("tar", &["-xpf", base.trim(), "-C", system.dir.path().to_str().unwrap()])).await;
        fs::write(system.path("etc/hosts"), "127.0.0.1 localhost\n").unwrap();
        system.mount_proc().await;
        system
    }

    /// Mount `/proc`, which every container has: a runner finds its own program there.
    async fn mount_proc(&self) {
        fs::create_dir_all(self.path("proc")).unwrap();
        ok(tool("mount", &["-t", "proc", "proc", self.path("proc").to_str().unwrap()])).await;
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    /// Return a command within the system, as `user:group`.
    fn command(&self, user: &str, args: &[&str]) -> Command {
        let spec = format!("--userspec={user}");
        let dir = self.dir.path().to_str().unwrap();
        let args: Vec<&str> = [spec.as_str(), dir].into_iter().chain(args.iter().copied()).collect();
        let mut command = command(Path::new("/usr/sbin/chroot"), root(), &args);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").env("LANG", "C.UTF-8");
        command
    }

    /// Run a command of root within the system.
    async fn run(&self, args: &[&str]) -> String {
        ok(self.command("root:root", args)).await
    }

    /// Return a command with the environment that the unit of the package gives it, as its account.
    fn as_the_unit(&self, args: &[&str]) -> Command {
        let args: Vec<&str> = ["tickr-as-service"].into_iter().chain(args.iter().copied()).collect();
        self.command("tickr:tickr", &args)
    }
}

/// `apt-get install ./`, without the network that apt-get needs.
const DPKG: &str = "dpkg --force-confold --install ./";

/// The folder of `make package`.
fn made() -> PathBuf {
    std::env::var_os("TICKR_TEST_PACKAGES").map_or_else(|| root().join("target/packages"), PathBuf::from)
}

/// Servers on ports of this machine, with a database.
async fn servers_on_ports() -> (Services, String, String) {
    let options = server_options().transport(Transport::Tcp);
    let services = Services::start(&options).unwrap();
    // By name, so that the resolver of the program is used.
    let [mysql, redis] =
        [services.mysql_url("tickr"), services.redis_url()].map(|url| url.replace("127.0.0.1", "localhost"));
    Store::create_database(&services.mysql_url("tickr")).await.unwrap();
    (services, mysql, redis)
}

/// Return the block of docs/INSTALL.md that has this text.
fn block(part: &str) -> Block {
    let blocks = document("docs/INSTALL.md").blocks_of("sh");
    blocks.into_iter().find(|block| block.text.contains(part)).unwrap_or_else(|| panic!("no block has {part}"))
}

/// Return the words of the first job in docs/INSTALL.md, behind `tickr`.
fn first_job() -> Vec<String> {
    let commands = block("tickr enqueue").commands();
    let words = commands.into_iter().find(|words| words.get(1).is_some_and(|word| word == "enqueue"));
    words.expect("a job").split_off(1)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "makes a chroot, to be run as root by `make test-packages`"]
async fn the_debian_package_reaches_a_job_is_upgraded_rolled_back_and_leaves_nothing() {
    let deb = file(&made(), ".deb");
    let (services, mysql, redis) = servers_on_ports().await;
    let system = System::debian().await;
    fs::copy(&deb, system.path("tmp/tickr.deb")).unwrap();
    let said = system.run(&["dpkg", "--install", "/tmp/tickr.deb"]).await;
    println!("{said}");
    let owner = |path: &str| {
        let found = fs::metadata(system.path(path)).unwrap();
        let user = system_name(&system, "etc/passwd", found.uid());
        let group = system_name(&system, "etc/group", found.gid());
        format!("{user}:{group} {:o}", found.permissions().mode() & 0o777)
    };
    assert_eq!(owner("etc/tickr/env"), "root:tickr 640");
    assert_eq!(owner("etc/tickr/tickr.toml"), "root:root 644");
    assert_eq!(owner("var/lib/tickr"), "tickr:tickr 750");
    assert!(system.run(&["tickr", "--version"]).await.starts_with("tickr "));

    let env = format!(
        "TICKR_MYSQL_URL={mysql}\nTICKR_REDIS_URL={redis}\nTICKR_HTTP_ADDR=127.0.0.1:0\nTICKR_OUTBOX_DIR=mails\n"
    );
    fs::write(system.path("etc/tickr/env"), env).unwrap();
    assert_eq!(ok(system.as_the_unit(&["tickr", "migrate"])).await, "the tables are up to date\n");
    run_a_job(&system, 1).await;

    // The same program as a later version: files that the operator changed stay, and the tables do as well.
    fs::write(system.path("etc/tickr/tickr.toml"), "log_format = \"json\"\nworkers = 7\n").unwrap();
    let newer = system.path("tmp/newer.deb");
    let mut make = tool("sh", &["tools/deb.sh"]);
    let architecture = ok(tool("dpkg-deb", &["--field", deb.to_str().unwrap(), "Architecture"])).await;
    make.arg(system.path("usr/bin/tickr")).args(["99.0.0", architecture.trim()]);
    make.arg(system.path("usr/share/doc/tickr")).arg(&newer);
    fs::copy(root().join("CHANGELOG.md"), system.path("usr/share/doc/tickr/CHANGELOG.md")).unwrap();
    ok(make).await;
    for (name, version) in [("newer", "99.0.0"), ("tickr", "0.")] {
        let install = if name == "newer" {
            let guide = block("dpkg-deb -x").text + &block("apt-get install ./tickr_0.2.0").text;
            guide.replace("tickr_0.2.0_amd64.deb", "newer.deb").replace("apt-get install ./", DPKG)
        } else {
            format!("{DPKG}{name}.deb")
        };
        system.run(&["sh", "-c", &format!("set -e; cd /tmp; {install}")]).await;
        let shown = system.run(&["dpkg-query", "--show", "--showformat", "${Version}", "tickr"]).await;
        assert!(shown.starts_with(version), "{shown}");
        assert!(fs::read_to_string(system.path("etc/tickr/tickr.toml")).unwrap().contains("workers = 7"));
        assert_eq!(owner("etc/tickr/env"), "root:tickr 640");
        run_a_job(&system, if name == "newer" { 2 } else { 3 }).await;
    }

    system.run(&["dpkg", "--purge", "tickr"]).await;
    for gone in ["usr/bin/tickr", "etc/tickr", "var/lib/tickr", "lib/systemd/system/tickr.service"] {
        assert!(!system.path(gone).exists(), "{gone} was left");
    }
    let accounts = fs::read_to_string(system.path("etc/passwd")).unwrap();
    assert!(!accounts.contains("tickr"), "{accounts}");
    drop(services);
}

/// What an operator does after the installation, as systemd in a container of its own carries it out.
const SESSION: &str = r#"#!/bin/sh
exec >/root/said 2>&1
export TICKR_URL=http://127.0.0.1:7070
ask() { systemctl show tickr --value --property "$1"; }
systemctl enable --now tickr; echo "enabled: $?"
echo "state: $(ask ActiveState), $(ask StatusText)"
echo "health: $(tickr health)"
eval "tickr $(cat /root/first-job)" >/dev/null; echo "job: $?"
systemctl reload tickr; echo "reload: $?"
kill -KILL "$(ask MainPID)"
until [ "$(ask NRestarts)" = 1 ] && [ "$(ask ActiveState)" = active ]; do sleep 0.2; done
echo "after a kill: $(tickr health)"
tickr enqueue sleep '{"ms": 3000}' --quiet >/root/job
until tickr jobs show "$(cat /root/job)" | grep -q executing; do sleep 0.1; done
systemctl stop tickr; echo "stopped: $(ask ActiveState), $(ask Result), $(ask ExecMainStatus)"
# MySQL is out, as far as this machine can tell.
systemctl start tickr
sed -i 's,^TICKR_MYSQL_URL=.*,TICKR_MYSQL_URL=mysql://root@127.0.0.1:1/tickr,' /etc/tickr/env
dpkg --force-confold --install /root/tickr.deb
echo "upgrade without MySQL: $?, $(dpkg-query --show --showformat '${db:Status-Status}' tickr)"
systemctl stop tickr
# Exit code 2 is not tried again.
echo TICKR_WORKERS=none >>/etc/tickr/env
systemctl start tickr; echo "wrong: $?, $(ask ActiveState), $(ask ExecMainStatus)"
echo end
systemctl poweroff
"#;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "boots systemd in a container, to be run as root by `make test-packages`"]
async fn systemd_waits_for_the_runner_starts_it_again_after_a_kill_and_stops_it_in_peace() {
    let deb = file(&made(), ".deb");
    let (services, mysql, redis) = servers_on_ports().await;
    let system = System::debian().await;
    fs::copy(&deb, system.path("tmp/tickr.deb")).unwrap();
    system.run(&["dpkg", "--install", "/tmp/tickr.deb"]).await;
    // systemd mounts a folder of its own on /tmp.
    fs::copy(&deb, system.path("root/tickr.deb")).unwrap();
    let port = lasting_addr().port();
    let env = format!(
        "TICKR_MYSQL_URL={mysql}\nTICKR_REDIS_URL={redis}\nTICKR_HTTP_ADDR=127.0.0.1:{port}\nTICKR_OUTBOX_DIR=mails\n\
         TICKR_TEST_KINDS=1\n"
    );
    fs::write(system.path("etc/tickr/env"), env).unwrap();
    let job: Vec<String> = first_job().iter().map(|word| format!("'{word}'")).collect();
    fs::write(system.path("root/first-job"), job.join(" ")).unwrap();
    fs::write(system.path("root/session"), SESSION.replace("7070", &port.to_string())).unwrap();
    fs::set_permissions(system.path("root/session"), fs::Permissions::from_mode(0o755)).unwrap();
    let unit = "[Unit]\nAfter=multi-user.target\n[Service]\nExecStart=/root/session\n";
    fs::write(system.path("etc/systemd/system/session.service"), unit).unwrap();
    let wants = system.path("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).unwrap();
    std::os::unix::fs::symlink("/etc/systemd/system/session.service", wants.join("session.service")).unwrap();
    // systemd mounts its own.
    ok(tool("umount", &[system.path("proc").to_str().unwrap()])).await;
    let dir = system.dir.path().to_str().unwrap();
    let args = ["--quiet", "--directory", dir, "--boot", "--console=pipe", "--register=no", "--keep-unit"];
    let mut container = tool("systemd-nspawn", &args);
    let mut child = container.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let said = || fs::read_to_string(system.path("root/said")).unwrap_or_default();
    let ended = tokio::time::timeout(Duration::from_secs(180), child.wait()).await;
    if ended.is_err() {
        // The container goes with its first process.
        child.kill().await.unwrap();
    }
    let lines: Vec<String> = said().lines().filter(|line| line.contains(": ")).map(str::to_owned).collect();
    let wanted = [
        "enabled: 0".to_owned(),
        format!("state: active, the API listens on 127.0.0.1:{port}"),
        "health: ready".to_owned(),
        "job: 0".to_owned(),
        // The unit has no reload.
        "reload: 3".to_owned(),
        "after a kill: ready".to_owned(),
        "stopped: inactive, success, 0".to_owned(),
        "upgrade without MySQL: 0, installed".to_owned(),
        "wrong: 1, failed, 2".to_owned(),
    ];
    let lines: Vec<&String> =
        lines.iter().filter(|line| wanted.iter().any(|one| prefix(one) == prefix(line))).collect();
    assert_eq!(lines, wanted.iter().collect::<Vec<_>>(), "{}", said());
    drop(services);
}

/// Return the part of a line of the session before its colon.
fn prefix(line: &str) -> &str {
    line.split(": ").next().unwrap_or_default()
}

fn system_name(system: &System, list: &str, id: u32) -> String {
    let text = fs::read_to_string(system.path(list)).unwrap();
    let line = text.lines().find(|line| line.split(':').nth(2) == Some(&id.to_string())).map(str::to_owned);
    line.unwrap_or_else(|| panic!("{id} has no name")).split(':').next().unwrap().to_owned()
}

/// Start the installed runner as its unit does, run a job, and stop it. `mails` is the number of mails afterwards.
async fn run_a_job(system: &System, mails: usize) {
    let unit = fs::read_to_string(system.path("lib/systemd/system/tickr.service")).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words: Vec<&str> = start.split(' ').collect();
    // The supervisor of `Type=notify`, within the system.
    let file = system.path("tmp/notify");
    let _ = fs::remove_file(&file);
    let ear = UnixDatagram::bind(&file).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o777)).unwrap();
    ear.set_nonblocking(true).unwrap();
    let mut serve = system.as_the_unit(&words);
    serve.env("NOTIFY_SOCKET", "/tmp/notify");
    let mut program = Program::spawn(serve);
    let url = program.url().await;
    eventually("the runner says that it is ready", async || {
        let mut buffer = [0; 500];
        let length = ear.recv(&mut buffer).ok()?;
        buffer[..length].starts_with(b"READY=1\n").then_some(())
    })
    .await;
    let mut enqueue = system.as_the_unit(&["tickr"]);
    enqueue.args(first_job());
    enqueue.env("TICKR_URL", &url);
    let (code, said, log) = outcome(enqueue).await;
    assert_eq!(code, 0, "{said}{log}");
    let written = fs::read_dir(system.path("var/lib/tickr/mails")).unwrap().count();
    assert_eq!(written, mails, "{}", program.said());
    program.ends_well().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "makes a chroot, to be run as root by `make test-packages`"]
async fn the_archive_runs_where_it_is_unpacked() {
    let (services, mysql, redis) = servers_on_ports().await;
    let system = System::debian().await;
    for entry in fs::read_dir(made()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), system.path("root").join(entry.file_name())).unwrap();
    }
    let script = format!("set -e; cd /root; {}", block("tar -xzf").text);
    println!("{}", system.run(&["sh", "-c", &script]).await);
    let program = "/usr/local/bin/tickr";
    let serve = || {
        let mut command = system.command("nobody:nogroup", &[program, "serve", "--http-addr", "127.0.0.1:0"]);
        command.env("TICKR_MYSQL_URL", &mysql).env("TICKR_REDIS_URL", &redis).env("TICKR_LOG_FORMAT", "json");
        command.env("TICKR_TEST_KINDS", "1");
        command
    };
    let mut runner = Program::spawn(serve());
    runner.runs_a_job().await;
    runner.ends_well().await;
    drop(services);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs the file system of the image, to be run as root by `make test-packages`"]
async fn the_image_has_nothing_but_tickr_and_reaches_a_job_as_its_own_user() {
    let (services, mysql, redis) = servers_on_ports().await;
    let system = System { dir: tempfile::tempdir().unwrap() };
    fs::set_permissions(system.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let image = tempfile::tempdir().unwrap();
    let of_image = |below: &str| image.path().join(below);
    let json = |path: PathBuf| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let blob = |part: &Value| of_image(&format!("blobs/{}", part["digest"].as_str().unwrap().replace(':', "/")));
    let packed = file(&made(), ".oci.tar");
    ok(tool("tar", &["-xf", packed.to_str().unwrap(), "-C", image.path().to_str().unwrap()])).await;
    let manifest = json(blob(&json(of_image("index.json"))["manifests"][0]));
    let config = json(blob(&manifest["config"]))["config"].clone();
    for layer in manifest["layers"].as_array().unwrap() {
        ok(tool("tar", &["-xpzf", blob(layer).to_str().unwrap(), "-C", system.dir.path().to_str().unwrap()])).await;
    }
    system.mount_proc().await;
    let programs: Vec<_> =
        fs::read_dir(system.path("usr/bin")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(programs, ["tickr"]);
    assert!(!system.path("bin").exists() && !system.path("lib").exists() && !system.path("lib64").exists());
    assert_eq!((&config["User"], &config["StopSignal"]), (&"10001:10001".into(), &"SIGTERM".into()));
    assert_eq!(config["ExposedPorts"], serde_json::json!({"7070/tcp": {}}));

    // What the image says is how it is run, but for the port, which is one of this machine.
    let words = ["Entrypoint", "Cmd"].iter().flat_map(|part| config[*part].as_array().unwrap());
    let words: Vec<&str> = words.map(|word| word.as_str().unwrap()).collect();
    let within = |args: &[&str]| {
        let mut command = system.command(config["User"].as_str().unwrap(), args);
        command.env_clear();
        for pair in config["Env"].as_array().unwrap() {
            let (name, value) = pair.as_str().unwrap().split_once('=').unwrap();
            command.env(name, value);
        }
        command.env("TICKR_HTTP_ADDR", "127.0.0.1:0").env("TICKR_OUTBOX_DIR", "/var/lib/tickr/mails");
        command.env("TICKR_MYSQL_URL", &mysql).env("TICKR_REDIS_URL", &redis);
        command
    };
    let mut runner = Program::spawn(within(&words));
    let url = runner.url().await;
    let ask = |args: &[&str]| {
        let args: Vec<&str> = std::iter::once("/usr/bin/tickr").chain(args.iter().copied()).collect();
        let mut command = within(&args);
        command.env("TICKR_URL", &url);
        command
    };
    assert_eq!(ok(ask(&["health"])).await, "ready\n");
    let mut enqueue = ask(&[]);
    enqueue.args(first_job());
    ok(enqueue).await;
    assert_eq!(fs::read_dir(system.path("var/lib/tickr/mails")).unwrap().count(), 1);
    let probed = tokio::time::timeout(DEADLINE, answer(http().get(format!("{url}/livez")))).await.unwrap();
    assert_eq!(probed.status, 200);
    runner.ends_well().await;
    drop(services);
}
