//! What the README tells a new user to type works as it stands there.

use std::path::Path;

use sqlx::{AssertSqlSafe, Executor as _};
use tokio::process::Command;

use crate::support::program::{Program, command, on_servers, outcome, tickr};
use crate::support::{answer, connect, drop_database, http, servers, unique_name};

fn document(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The one block of a language.
fn block(language: &str) -> String {
    let text = document("README.md");
    let blocks: Vec<&str> = text.split(&format!("```{language}\n")).skip(1).collect();
    assert_eq!(blocks.len(), 1, "{language}");
    blocks[0].split("```").next().unwrap().to_owned()
}

async fn as_root(sql: String) {
    let mut conn = connect(&servers().mysql_url("information_schema")).await;
    conn.execute(sqlx::raw_sql(AssertSqlSafe(sql.clone()))).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_accounts_of_the_readme_can_migrate_serve_and_verify_and_need_no_more() {
    let name = unique_name();
    let sql = block("sql").replace("tickr", &name);
    as_root(sql).await;
    let dir = tempfile::tempdir().unwrap();
    let (_, place) = servers().mysql_url(&name).split_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let run = |args: &[&str]| -> Command {
        let mut command = command(&tickr(), dir.path(), args);
        let mysql = format!("mysql://{name}:a-long-password@{place}");
        on_servers(&mut command, &mysql, &servers().redis_url(), &name);
        command
    };
    let (code, said, log) = outcome(run(&["migrate"])).await;
    assert_eq!((code, said.as_str()), (0, "the tables are up to date\n"), "{log}");
    let mut program = Program::spawn(run(&["serve", "--http-addr", "127.0.0.1:0"]));
    program.runs_a_job().await;
    let (code, said, log) = outcome(run(&["verify"])).await;
    assert_eq!(code, 0, "{said}{log}");
    program.ends_well().await;
    // Those of `serve` alone, as the README says.
    as_root(format!("REVOKE CREATE, ALTER ON {name}.* FROM '{name}'@'%'")).await;
    let mut program = Program::spawn(run(&["serve", "--http-addr", "127.0.0.1:0"]));
    program.runs_a_job().await;
    program.ends_well().await;
    as_root(format!("DROP USER '{name}'@'%'")).await;
    drop_database(&servers().mysql_url(&name), &name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_of_the_readme_starts_and_a_wrong_payload_in_it_is_named() {
    let name = unique_name();
    let mysql = servers().mysql_url(&name);
    tickr::store::Store::create_database(&mysql).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let run = || {
        let mut command = command(&tickr(), dir.path(), &["serve", "--http-addr", "127.0.0.1:0"]);
        command
            .env("TICKR_MYSQL_URL", &mysql)
            .env("TICKR_REDIS_URL", servers().redis_url())
            .env("TICKR_REDIS_PREFIX", &name)
            .env("TICKR_LOG_FORMAT", "json")
            .env("TICKR_SMTP_PASSWORD", "x")
            // The README cannot show one: a published secret is refused.
            .env("TICKR_CALLBACK_SECRET", "whsec_QSBzZWNyZXQgb2YgdGhlIHRlc3RzLCAzMiBieXRlcyEhISE=");
        command
    };
    let toml = block("toml");
    std::fs::write(dir.path().join("tickr.toml"), &toml).unwrap();
    let mut program = Program::spawn(run());
    let url = program.url().await;
    let schedule = answer(http().get(format!("{url}/v1/schedules/orders"))).await;
    assert_eq!(schedule.status, 200, "{:#}", schedule.body);
    assert!(!program.said().contains("\"WARN\",\"target\":\"tickr::app::run\""), "{}", program.said());
    program.ends_well().await;

    let wrong = toml.replace("\"query\": \"orders_by_day\"", "\"report\": \"canary\"");
    assert_ne!(wrong, toml);
    std::fs::write(dir.path().join("tickr.toml"), wrong).unwrap();
    let (code, _, said) = outcome(run()).await;
    assert_ne!(code, 0, "{said}");
    for part in
        ["schedules.orders.payload", "'report' was unexpected", "\"query\" is a required property", "GET /v1/kinds"]
    {
        assert!(said.contains(part), "{part} is not in:\n{said}");
    }
    assert!(!said.contains("canary"), "{said}");
    drop_database(&mysql, &name).await;
}

/// What stands on a command line stands in the list of processes, for every account of the machine.
#[test]
fn no_command_line_of_the_documents_carries_a_secret() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.filter(|path| path.extension().is_some_and(|ext| ext == "md"));
    let others = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "compose.yaml", "examples/own_kind.rs"];
    let flags = ["--api-tokens ", "--token ", "--callback-secret ", "--otlp-headers "];
    for path in pages.chain(others.map(|name| root.join(name))) {
        let text = std::fs::read_to_string(&path).unwrap();
        // The table of settings names the flags.
        for line in text.lines().filter(|line| !line.starts_with("| `")) {
            let is_url_with_password = |word: &str| {
                let authority =
                    word.split_once("://").and_then(|(_, rest)| rest.split_once('@')).map(|(login, _)| login);
                authority.is_some_and(|login| login.contains(':'))
            };
            let after = ["--mysql-url", "--redis-url"].into_iter().filter_map(|flag| line.split_once(flag));
            let exposed = after
                .map(|(_, rest)| rest.trim_start_matches(['=', ' ']))
                .any(|rest| is_url_with_password(rest.split_whitespace().next().unwrap_or_default()));
            assert!(!exposed && !flags.iter().any(|flag| line.contains(flag)), "{}: {line}", path.display());
        }
    }
}
