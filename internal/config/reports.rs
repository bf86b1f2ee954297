//! `[reports]`: the named queries that the report kind may run, and their limits.

use std::collections::BTreeMap;
use std::time::Duration;

use super::error::Wrong;
use super::param::ReportParam;
use super::setting::{Secrecy, Setting};
use super::statement::Statement;
use super::url::ServerUrl;
use super::{duration, parse, size};

/// Limits and queries of reports. A job names one of these queries and never brings its own SQL.
#[derive(Debug, Clone)]
pub struct Reports {
    /// A separate MySQL account, preferably read-only; the store's account if absent.
    pub mysql_url: Option<ServerUrl>,
    /// Number of MySQL connections, separate from those of jobs and the API.
    pub connections: u32,
    /// Time limit of one statement.
    pub time_limit: Duration,
    /// Maximum rows of one report.
    pub max_rows: u64,
    /// Maximum size of one report file, in bytes.
    pub max_bytes: u64,
    /// Maximum size of a report file that is also stored in MySQL for the other runners, in bytes.
    pub share_up_to: u64,
    /// Retention of finished reports, and of large results of every kind; that of completed jobs of the kind `report` if
    /// absent.
    pub keep: Option<Duration>,
    /// The queries by name.
    pub queries: BTreeMap<String, ReportQuery>,
}

/// A named query. Its placeholders and its declared parameters match exactly.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportQuery {
    /// Title of the report.
    pub title: String,
    /// Description, for people who choose a report.
    pub description: Option<String>,
    /// The statement as written, with `:name` placeholders.
    pub sql: String,
    /// The statement as executed, with the order of its parameters.
    pub statement: Statement,
    /// The declared parameters in the order of the file.
    pub params: Vec<ReportParam>,
}

impl ReportQuery {
    /// Return a declared parameter by name.
    pub fn param(&self, name: &str) -> Option<&ReportParam> {
        self.params.iter().find(|param| param.name == name)
    }
}

/// The settings of `[reports]`.
pub(super) static REPORTS: &[Setting<Reports>] = &[
    Setting::<Reports>::new("mysql_url", "URL", "Account for reports, best read-only; default: the store's", |r, t| {
        parse::some(&mut r.mysql_url, ServerUrl::mysql(t).map_err(Into::into))
    })
    .secrecy(Secrecy::Url)
    .file_and_environment(),
    Setting::<Reports>::new("connections", "N", "Reports at a time, each with a MySQL connection", |r, t| {
        parse::put(&mut r.connections, parse::number(t, 1..=64))
    })
    .default("2")
    .file_only(),
    Setting::<Reports>::new("time_limit", "DURATION", "Time limit of one statement", |r, t| {
        parse::put(&mut r.time_limit, duration::between(t, Duration::from_secs(1), Duration::from_secs(3_600)))
    })
    .default("60s")
    .file_only(),
    Setting::<Reports>::new("max_rows", "N", "Maximum rows of one report", |r, t| {
        parse::put(&mut r.max_rows, parse::number(t, 1..=100_000_000))
    })
    .default("1000000")
    .file_only(),
    Setting::<Reports>::new("max_bytes", "SIZE", "Maximum size of one report file", |r, t| {
        parse::put(&mut r.max_bytes, size::between(t, 1 << 10, 16 << 30))
    })
    .default("256MiB")
    .file_only(),
    Setting::<Reports>::new(
        "share_up_to",
        "SIZE",
        "Reports up to this size are also stored in MySQL, for all runners; 0 stores them only on their runner",
        |r, t| parse::put(&mut r.share_up_to, size::between(t, 0, 1 << 30)),
    )
    .default("32MiB")
    .file_only(),
    Setting::<Reports>::new(
        "keep",
        "DURATION",
        "Retention of finished reports, and of large results of every kind, on disk and in MySQL; default: that of \
         completed report jobs",
        |r, t| parse::some(&mut r.keep, duration::between(t, Duration::from_secs(3_600), MAX_KEPT)),
    )
    .file_only(),
];

const MAX_KEPT: Duration = Duration::from_secs(3_650 * 86_400);

impl Reports {
    pub(super) fn blank() -> Reports {
        Reports {
            mysql_url: None,
            connections: 0,
            time_limit: Duration::ZERO,
            max_rows: 0,
            max_bytes: 0,
            share_up_to: 0,
            keep: None,
            queries: BTreeMap::new(),
        }
    }
}

/// A query before its fields are checked together.
#[derive(Default)]
pub(super) struct QueryDraft {
    title: String,
    description: Option<String>,
    sql: String,
}

/// The settings of `[reports.queries.<name>]`.
pub(super) static QUERY: &[Setting<QueryDraft>] = &[
    Setting::<QueryDraft>::new("title", "TEXT", "Title of the report; required", |q, t| {
        parse::put(&mut q.title, parse::line(t))
    })
    .file_only(),
    Setting::<QueryDraft>::new("description", "TEXT", "Description of the report", |q, t| {
        parse::some(&mut q.description, Ok(t.trim().to_owned()))
    })
    .file_only(),
    Setting::<QueryDraft>::new("sql", "SQL", "One SELECT with :name placeholders; required", |q, t| {
        parse::put(&mut q.sql, Ok(t.to_owned()))
    })
    .file_only(),
];

impl QueryDraft {
    /// Check the statement and the parameters together. Each problem comes with its key.
    pub(super) fn finish(
        self,
        params: Vec<ReportParam>,
        complete: bool,
    ) -> Result<ReportQuery, Vec<(&'static str, Wrong)>> {
        let mut wrongs = Vec::new();
        if self.title.is_empty() {
            wrongs.push(("title", Wrong::new("required but not set", "write title = \"…\"")));
        }
        for (at, param) in params.iter().enumerate() {
            if params[..at].iter().any(|earlier| earlier.name == param.name) {
                let wrong = format!("declares {} twice", param.name);
                wrongs.push(("params", Wrong::new(wrong, "declare each parameter once")));
            }
        }
        let statement = match Statement::parse(&self.sql) {
            Ok(statement) => statement,
            Err(error) => {
                wrongs.push((
                    "sql",
                    Wrong::new(error.to_string(), "write one SELECT or WITH … SELECT with :name placeholders"),
                ));
                return Err(wrongs);
            }
        };
        // If a declaration is broken, the set of parameters is not known.
        if complete {
            wrongs.extend(mismatches(&statement, &params));
        }
        if !wrongs.is_empty() {
            return Err(wrongs);
        }
        Ok(ReportQuery { title: self.title, description: self.description, sql: self.sql, statement, params })
    }
}

fn mismatches(statement: &Statement, params: &[ReportParam]) -> Vec<(&'static str, Wrong)> {
    let mut wrongs = Vec::new();
    for (at, name) in statement.params.iter().enumerate() {
        let first = !statement.params[..at].contains(name);
        if first && !params.iter().any(|param| param.name == *name) {
            let right = format!("add {{ name = \"{name}\", type = \"…\" }} to params");
            wrongs.push(("sql", Wrong::new(format!("uses :{name}, which is not declared"), right)));
        }
    }
    for param in params.iter().filter(|param| !statement.params.contains(&param.name)) {
        let wrong = format!("declares {}, which the statement does not use", param.name);
        wrongs.push(("params", Wrong::new(wrong, format!("use :{} or remove the parameter", param.name))));
    }
    wrongs
}
