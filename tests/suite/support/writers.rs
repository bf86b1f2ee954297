//! Programs in other languages that write rows of the outbox: the frames of `tests/writers` around the INSERTs of
//! `docs/TRANSACTIONS.md`. A language that is not on this machine is left out.

use std::path::{Path, PathBuf};
use std::process::{Command as StdCommand, Stdio};

use tokio::process::Command;

use super::documents::{document, root};
use super::program::{Program, command};

/// The line of a frame that stands for the INSERT.
const MARK: &str = "THE INSERT OF docs/TRANSACTIONS.md";

/// A program that can be started, in a folder of its own.
pub(crate) struct Writer {
    pub(crate) language: &'static str,
    dir: tempfile::TempDir,
    program: PathBuf,
    args: Vec<String>,
    /// Variables by which the language finds its driver.
    env: Vec<(&'static str, String)>,
}

/// The server and the table to write to, as the programs take them.
pub(crate) struct Target {
    /// A URL with host, port, account and database.
    pub(crate) url: String,
    /// Most rows of one transaction.
    pub(crate) most_rows: u32,
}

/// Makes the program of a language, or says why there is none.
type Maker = fn() -> Result<Writer, String>;

/// Make the programs of all languages that are here. For each other one, tell why it is left out.
pub(crate) fn writers() -> Vec<Writer> {
    let languages: [(&'static str, Maker); 5] =
        [("python", python), ("js", node), ("perl", perl), ("java", java), ("php", php)];
    let made = languages.into_iter().filter_map(|(language, make)| match make() {
        Ok(writer) => Some(writer),
        Err(why) => {
            println!("no program in {language}: {why}");
            None
        }
    });
    made.collect()
}

impl Writer {
    /// Start it.
    pub(crate) fn start(&self, target: &Target) -> Program {
        let mut command: Command = command(&self.program, self.dir.path(), &self.args);
        let url: reqwest::Url = target.url.parse().unwrap();
        command
            .arg(url.host_str().unwrap())
            .arg(url.port().unwrap().to_string())
            .args([url.username(), url.password().unwrap_or_default(), url.path().trim_start_matches('/')])
            .arg(target.most_rows.to_string())
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        Program::spawn(command)
    }

    /// Ask it to end after its transaction.
    pub(crate) fn tell_to_stop(&self) {
        std::fs::write(self.dir.path().join("stop"), "").unwrap();
    }

    /// Put the INSERT of a language into its frame. All rows are jobs of the kind `noop`, and each program has an order
    /// of its own, so that programs do not wait for each other.
    fn of(language: &'static str, file: &str, program: &str, order: u32) -> Self {
        let document = document("docs/TRANSACTIONS.md");
        let block = document.blocks().into_iter().find(|block| block.language == language);
        let insert = block.unwrap_or_else(|| panic!("docs/TRANSACTIONS.md has no INSERT in {language}")).text;
        assert!(insert.contains("email"), "{insert}");
        let insert = insert.replace("1001", &order.to_string()).replace("email", "noop");
        let frame = std::fs::read_to_string(root().join("tests/writers").join(file)).unwrap();
        let mark = frame.lines().find(|line| line.contains(MARK)).unwrap();
        let indent = &mark[..mark.len() - mark.trim_start().len()];
        let inside: Vec<String> = insert.lines().map(|line| format!("{indent}{line}")).collect();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(file), frame.replace(mark, &inside.join("\n"))).unwrap();
        Self { language, dir, program: program.into(), args: vec![file.to_owned()], env: Vec::new() }
    }
}

fn python() -> Result<Writer, String> {
    let driver = driver("python")?;
    let env = vec![("PYTHONPATH", format!("{driver}/lib")), ("PYTHONDONTWRITEBYTECODE", "1".to_owned())];
    Ok(Writer { env, ..Writer::of("python", "writer.py", "python3", 1_001) })
}

fn node() -> Result<Writer, String> {
    let driver = driver("node")?;
    Ok(Writer {
        env: vec![("NODE_PATH", format!("{driver}/node_modules"))],
        ..Writer::of("js", "writer.mjs", "node", 1_002)
    })
}

fn perl() -> Result<Writer, String> {
    let driver = driver("perl")?;
    let libraries = only(&format!("{driver}/root/usr/lib"), "-linux-gnu")?;
    let modules = only(&format!("{libraries}/perl5"), "")?;
    let env = vec![
        ("PERL5LIB", modules),
        ("LD_LIBRARY_PATH", libraries.clone()),
        ("MARIADB_PLUGIN_DIR", format!("{libraries}/libmariadb3/plugin")),
    ];
    Ok(Writer { env, ..Writer::of("perl", "writer.pl", "perl", 1_003) })
}

fn java() -> Result<Writer, String> {
    let driver = driver("java")?;
    let writer = Writer::of("java", "Writer.java", "java", 1_004);
    let compiled = StdCommand::new("javac").arg("Writer.java").current_dir(writer.dir.path()).output();
    let compiled = compiled.map_err(|error| format!("javac: {error}"))?;
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let classes = format!(".:{driver}/root/usr/share/java/mariadb-java-client.jar");
    // A small program that is killed often: it need not become fast.
    let args = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp", &classes, "Writer"];
    Ok(Writer { args: args.map(str::to_owned).to_vec(), ..writer })
}

/// PHP is never fetched. Where it is installed with PDO for MySQL, it takes part.
fn php() -> Result<Writer, String> {
    let modules = StdCommand::new("php").arg("-m").stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if !String::from_utf8_lossy(&modules.stdout).lines().any(|module| module == "pdo_mysql") {
        return Err("it has no module pdo_mysql".to_owned());
    }
    Ok(Writer::of("php", "writer.php", "php", 1_005))
}

/// Return the folder of the driver of a language, or the reason why there is none.
fn driver(language: &str) -> Result<String, String> {
    let script = root().join("internal/services/install.sh");
    let mut fetch = StdCommand::new("sh");
    let output = fetch.arg(script).args(["--driver", language]).stdin(Stdio::null()).output().unwrap();
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout).unwrap().trim().to_owned());
    }
    Err(String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("install.sh fails").to_owned())
}

/// Return the only entry of a folder whose name ends like this.
fn only(folder: &str, end: &str) -> Result<String, String> {
    let entries = Path::new(folder).read_dir().map_err(|error| format!("{folder}: {error}"))?;
    let mut paths = entries.flatten().map(|entry| entry.path().display().to_string());
    paths.find(|path| path.ends_with(end)).ok_or_else(|| format!("{folder} is empty"))
}
