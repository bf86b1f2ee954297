//! The names of the tables when the operator has set a `table_prefix`.
//!
//! Every statement in this crate names the tables as if there were no prefix. If there is one, the
//! [session](crate::sql::session::Session) puts it before these names on the way to the server. Without one, no
//! statement is looked at.
//!
//! A table is a name of [`TABLES`] in one of two places: directly behind a word that wants a table (FROM, JOIN,
//! STRAIGHT_JOIN, INTO, UPDATE, TABLE), or directly before the dot of a column. All other words stay as they are, so a
//! column or an alias may have the name of a table (`runners.queues`, `departures.jobs`, `COUNT(*) AS jobs`), and so may
//! a text in quotes. In return no statement may name a table anywhere else, such as behind a comma, and none may use
//! such an alias before a dot: a test below reads the statements of all sources.

use std::borrow::Cow;

use tickr_job::TablePrefix;

/// The ledger of migrations. The first binaries left it to their driver, hence the name.
pub(crate) const LEDGER: &str = "_sqlx_migrations";
/// The outbox. Its name is a promise to programs that insert rows.
pub(crate) const OUTBOX: &str = "tickr_outbox";

/// All tables in alphabetical order: the name without a prefix, and the part of the name behind a prefix. The ledger and
/// the outbox lose what distinguishes them from the tables of other programs, because the prefix does that. So with the
/// prefix `tickr_` the outbox has its usual name.
pub(crate) const TABLES: [(&str, &str); 52] = [
    (LEDGER, "migrations"),
    ("alerts", "alerts"),
    ("api_keys", "api_keys"),
    ("attempt_logs", "attempt_logs"),
    ("attempts", "attempts"),
    ("audit", "audit"),
    ("batch_cancels", "batch_cancels"),
    ("batch_changes", "batch_changes"),
    ("batch_jobs", "batch_jobs"),
    ("batches", "batches"),
    ("blocked_jobs", "blocked_jobs"),
    ("checkpoints", "checkpoints"),
    ("claim_batches", "claim_batches"),
    ("clock_steps", "clock_steps"),
    ("cluster_locks", "cluster_locks"),
    ("dead_letters", "dead_letters"),
    ("declared_kinds", "declared_kinds"),
    ("deferred_attempts", "deferred_attempts"),
    ("departures", "departures"),
    ("distant_ids", "distant_ids"),
    ("idempotency_keys", "idempotency_keys"),
    ("index_changes", "index_changes"),
    ("job_expiries", "job_expiries"),
    ("job_limit_keys", "job_limit_keys"),
    ("job_parents", "job_parents"),
    ("job_tags", "job_tags"),
    ("jobs", "jobs"),
    ("limit_holds", "limit_holds"),
    ("limit_keys", "limit_keys"),
    ("limit_slots", "limit_slots"),
    ("limit_waits", "limit_waits"),
    ("limits", "limits"),
    ("operations", "operations"),
    ("order_keys", "order_keys"),
    ("order_places", "order_places"),
    ("outbox_leader", "outbox_leader"),
    ("outbox_rejected", "outbox_rejected"),
    ("outbox_sources", "outbox_sources"),
    ("owed", "owed"),
    ("parent_ends", "parent_ends"),
    ("queue_permits", "queue_permits"),
    ("queues", "queues"),
    ("report_files", "report_files"),
    ("report_parts", "report_parts"),
    ("runners", "runners"),
    ("samples", "samples"),
    ("schedules", "schedules"),
    ("tallies", "tallies"),
    (OUTBOX, "outbox"),
    ("ticks", "ticks"),
    ("unique_keys", "unique_keys"),
    ("verifications", "verifications"),
];

/// The kind of name that a word wants behind it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Table,
    Constraint,
}

/// Return the part of a table's name that stands behind a prefix, if it is a table of tickr.
fn behind_prefix(table: &str) -> Option<&'static str> {
    let found = TABLES.binary_search_by_key(&table, |(name, _)| name).ok()?;
    TABLES.get(found).map(|(_, behind)| *behind)
}

/// Return the name of a table of tickr with this prefix. Other names stay as they are.
pub(crate) fn table_name(prefix: &TablePrefix, table: &str) -> String {
    match behind_prefix(table) {
        Some(behind) if !prefix.is_empty() => format!("{prefix}{behind}"),
        _ => table.to_owned(),
    }
}

/// Put the prefix before the tables in a text of one or more statements. The names of constraints get it as well,
/// because MySQL wants them to differ within a database. Names of indexes need only differ within their table.
#[must_use]
pub fn with_prefix<'a>(prefix: &TablePrefix, sql: &'a str) -> Cow<'a, str> {
    if prefix.is_empty() {
        return Cow::Borrowed(sql);
    }
    let bytes = sql.as_bytes();
    let mut text = Changed { sql, copied: 0, text: None };
    let (mut at, mut wanted, mut previous) = (0, None, "");
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        if let Some(end) = end_of_gap(bytes, at) {
            at = end;
            continue;
        }
        if !is_of_word(byte) {
            at = if matches!(byte, b'\'' | b'"' | b'`') { end_of_quoted(bytes, at) } else { at + 1 };
            (wanted, previous) = (None, "");
            continue;
        }
        at = end_of_word(bytes, at);
        let word = &sql[start..at];
        match wanted {
            // The words of `CREATE TABLE IF NOT EXISTS name`.
            Some(Wanted::Table) if is_one_of(word, &["IF", "NOT", "EXISTS"]) => continue,
            Some(Wanted::Table) => text.rename(prefix, start, word),
            Some(Wanted::Constraint) => text.replace(start, prefix.as_str(), start),
            // A dot before the name would make it a column itself.
            None if bytes.get(at) == Some(&b'.') && (start == 0 || bytes[start - 1] != b'.') => {
                text.rename(prefix, start, word);
            }
            None => {}
        }
        wanted = wanted_behind(word, previous);
        previous = word;
    }
    text.finish()
}

/// A text, and its copy as far as something has changed.
struct Changed<'a> {
    sql: &'a str,
    /// Everything before this place is in the copy.
    copied: usize,
    text: Option<String>,
}

impl<'a> Changed<'a> {
    /// Put the prefix before this word if it is a table.
    fn rename(&mut self, prefix: &TablePrefix, start: usize, word: &str) {
        if let Some(behind) = behind_prefix(word) {
            self.replace(start, prefix.as_str(), start);
            self.replace(start, behind, start + word.len());
        }
    }

    /// Write `new` instead of the text from `start` to `end`.
    fn replace(&mut self, start: usize, new: &str, end: usize) {
        let text = self.text.get_or_insert_with(|| String::with_capacity(self.sql.len() + 128));
        text.push_str(&self.sql[self.copied..start]);
        text.push_str(new);
        self.copied = end;
    }

    fn finish(self) -> Cow<'a, str> {
        match self.text {
            Some(text) => Cow::Owned(text + &self.sql[self.copied..]),
            None => Cow::Borrowed(self.sql),
        }
    }
}

/// Return the kind of name that stands behind this word, if it is one.
fn wanted_behind(word: &str, previous: &str) -> Option<Wanted> {
    match word.len() {
        4 if is_one_of(word, &["FROM", "JOIN", "INTO"]) => Some(Wanted::Table),
        5 if word.eq_ignore_ascii_case("TABLE") => Some(Wanted::Table),
        // A column stands behind ON DUPLICATE KEY UPDATE.
        6 if word.eq_ignore_ascii_case("UPDATE") && !previous.eq_ignore_ascii_case("KEY") => Some(Wanted::Table),
        10 if word.eq_ignore_ascii_case("CONSTRAINT") => Some(Wanted::Constraint),
        13 if word.eq_ignore_ascii_case("STRAIGHT_JOIN") => Some(Wanted::Table),
        _ => None,
    }
}

fn is_one_of(word: &str, words: &[&str]) -> bool {
    words.iter().any(|one| word.eq_ignore_ascii_case(one))
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'@' | 0x80..)
}

fn end_of_word(bytes: &[u8], at: usize) -> usize {
    at + bytes[at..].iter().take_while(|byte| is_of_word(**byte)).count()
}

/// Return the end of a text in quotes or of a name in backticks. A doubled quote begins another one, which makes no
/// difference. A backslash in a text makes the next character part of it.
fn end_of_quoted(bytes: &[u8], start: usize) -> usize {
    let quote = bytes[start];
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        if byte == quote {
            return at;
        }
        if byte == b'\\' && quote != b'`' {
            at += 1;
        }
    }
    bytes.len()
}

/// Return the end of the white space or of the comment that begins here, if there is one.
fn end_of_gap(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    let behind = |mark: &[u8], from: usize| {
        let found = rest.get(from..)?.windows(mark.len()).position(|part| part == mark)?;
        Some(at + from + found + mark.len())
    };
    match rest {
        [b'/', b'*', ..] => Some(behind(b"*/", 2).unwrap_or(bytes.len())),
        [b'#', ..] | [b'-', b'-', b' ' | b'\t' | b'\n', ..] => Some(behind(b"\n", 0).unwrap_or(bytes.len())),
        [byte, ..] if byte.is_ascii_whitespace() => Some(at + 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::{Path, PathBuf};

    use super::*;

    /// Columns and aliases that have the name of a table. Add a name only after a look at every statement with it.
    const ALSO_COLUMNS: [&str; 6] = ["attempts", "claim_batches", "jobs", "owed", "queues", "ticks"];

    fn shop(sql: &str) -> String {
        with_prefix(&"shop_".parse().unwrap(), sql).into_owned()
    }

    #[test]
    fn the_tables_are_those_of_the_migrations() {
        let sql: String = migrations().iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
        let made = sql.lines().filter_map(|line| line.strip_prefix("CREATE TABLE ")?.split_whitespace().next());
        let made: BTreeSet<&str> = made.chain([LEDGER]).collect();
        let named: Vec<&str> = TABLES.iter().map(|(name, _)| *name).collect();
        assert_eq!(named, made.into_iter().collect::<Vec<_>>());
        assert_eq!(TABLES.iter().map(|(_, behind)| behind).collect::<BTreeSet<_>>().len(), TABLES.len());
    }

    #[test]
    fn the_longest_name_behind_the_longest_prefix_is_a_name() {
        let longest = "a".repeat(TablePrefix::MAX_LEN).parse().unwrap();
        for path in migrations() {
            let sql = with_prefix(&longest, &std::fs::read_to_string(path).unwrap()).into_owned();
            let names = sql.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let named = names.filter(|name| name.starts_with(longest.as_str()));
            named.for_each(|name| assert!(name.len() <= 64, "{name}"));
        }
    }

    #[test]
    fn only_names_of_tables_in_the_place_of_a_table_get_the_prefix() {
        for (plain, prefixed) in [
            ("SELECT 1 FROM jobs", "SELECT 1 FROM shop_jobs"),
            (
                "select j.id from jobs j join owed as o on o.id = j.id",
                "select j.id from shop_jobs j join shop_owed as o on o.id = j.id",
            ),
            (
                "SELECT COUNT(*) AS jobs FROM (SELECT jobs FROM departures) owed",
                "SELECT COUNT(*) AS jobs FROM (SELECT jobs FROM shop_departures) owed",
            ),
            (
                "INSERT INTO departures (id, jobs) VALUES (?, ?) ON DUPLICATE KEY UPDATE jobs = jobs + VALUES(jobs)",
                "INSERT INTO shop_departures (id, jobs) VALUES (?, ?) ON DUPLICATE KEY UPDATE jobs = jobs + VALUES(jobs)",
            ),
            ("SELECT id FROM tickr_outbox FOR UPDATE SKIP LOCKED", "SELECT id FROM shop_outbox FOR UPDATE SKIP LOCKED"),
            ("UPDATE\n\towed SET x = 1;DELETE FROM ticks", "UPDATE\n\tshop_owed SET x = 1;DELETE FROM shop_ticks"),
            (
                "DELETE FROM report_parts WHERE f.id = report_parts.job_id",
                "DELETE FROM shop_report_parts WHERE f.id = shop_report_parts.job_id",
            ),
            ("SELECT h.jobs, r.queues.x FROM runners r", "SELECT h.jobs, r.queues.x FROM shop_runners r"),
            (
                "SELECT 'FROM jobs', \"FROM \\\" FROM jobs\", `FROM jobs` FROM jobs",
                "SELECT 'FROM jobs', \"FROM \\\" FROM jobs\", `FROM jobs` FROM shop_jobs",
            ),
            ("SELECT 'it''s FROM jobs' FROM owed", "SELECT 'it''s FROM jobs' FROM shop_owed"),
            (
                "SELECT 1 -- FROM jobs\nFROM /* FROM jobs */ owed # FROM jobs",
                "SELECT 1 -- FROM jobs\nFROM /* FROM jobs */ shop_owed # FROM jobs",
            ),
            ("SELECT 5--1 FROM jobs", "SELECT 5--1 FROM shop_jobs"),
            (
                "CREATE TABLE IF NOT EXISTS _sqlx_migrations (version BIGINT)",
                "CREATE TABLE IF NOT EXISTS shop_migrations (version BIGINT)",
            ),
            (
                "ALTER TABLE jobs ADD CONSTRAINT jobs_x CHECK (queues > 0), ADD KEY owed (id)",
                "ALTER TABLE shop_jobs ADD CONSTRAINT shop_jobs_x CHECK (queues > 0), ADD KEY owed (id)",
            ),
            (
                "SELECT 1 FROM owed FORCE INDEX (owed_line) STRAIGHT_JOIN jobs j",
                "SELECT 1 FROM shop_owed FORCE INDEX (owed_line) STRAIGHT_JOIN shop_jobs j",
            ),
            ("SELECT 1 FROM information_schema.tables", "SELECT 1 FROM information_schema.tables"),
            ("SELECT 1 FROM failed_jobs, jobsx, `jobs`", "SELECT 1 FROM failed_jobs, jobsx, `jobs`"),
            (
                "SELECT 'öffnet FROM jobs' FROM jobs WHERE a = 'FROM jobs",
                "SELECT 'öffnet FROM jobs' FROM shop_jobs WHERE a = 'FROM jobs",
            ),
            ("/* FROM jobs", "/* FROM jobs"),
        ] {
            assert_eq!(shop(plain), prefixed);
            assert!(matches!(with_prefix(&TablePrefix::default(), plain), Cow::Borrowed(same) if same == plain));
        }
        assert_eq!(table_name(&"tickr_".parse().unwrap(), OUTBOX), OUTBOX);
        assert_eq!(table_name(&"tickr_".parse().unwrap(), "users"), "users");
        assert_eq!(table_name(&TablePrefix::default(), LEDGER), LEDGER);
    }

    #[test]
    fn every_statement_of_the_sources_names_its_tables_where_they_get_the_prefix() {
        let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
        for path in sources(Path::new(env!("CARGO_MANIFEST_DIR"))) {
            // Its table is in the database of an application, where it has its usual name.
            if path.ends_with("outbox/source.rs") {
                continue;
            }
            for sql in statements_in(&std::fs::read_to_string(&path).unwrap()) {
                let about = format!("{}: {sql}", path.display());
                let marked = with_prefix(&"prefix_".parse().unwrap(), &sql).into_owned();
                for (name, behind) in TABLES {
                    *seen.entry(name).or_default() +=
                        u32::try_from(words(&marked, &format!("prefix_{behind}")).count()).unwrap();
                    for place in words(&marked, name) {
                        let (before, after) = (marked[..place].trim_end(), &marked[place + name.len()..]);
                        let last = before.rsplit(|c: char| c.is_whitespace() || c == '(').next().unwrap_or_default();
                        // A piece of a statement may begin with the table, behind a word of another piece.
                        let is_column = ALSO_COLUMNS.contains(&name) || before.is_empty();
                        assert!(is_column, "{name} is in no place of a table in {about}");
                        assert!(!after.starts_with('.'), "{name} names a column's table in {about}");
                        for word in ["FROM", "JOIN", "STRAIGHT_JOIN", "INTO", "TABLE"] {
                            assert!(!last.eq_ignore_ascii_case(word), "{name} behind {word} in {about}");
                        }
                    }
                }
            }
        }
        let unseen: Vec<_> = seen.iter().filter(|(_, count)| **count == 0).collect();
        assert!(unseen.is_empty(), "the test reads no statement of {unseen:?}");
    }

    fn migrations() -> Vec<PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|end| end == "sql")).collect()
    }

    /// Return the Rust files of a folder and of those in it, except this one.
    fn sources(folder: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() && !entry.ends_with("migrations") {
                found.extend(sources(&entry));
            } else if entry.extension().is_some_and(|end| end == "rs") && !entry.ends_with("table_names.rs") {
                found.push(entry);
            }
        }
        found
    }

    /// Return the string constants of a source that look like SQL, without the tests of the file.
    fn statements_in(source: &str) -> Vec<String> {
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        let code: String =
            code.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| [line, "\n"]).collect();
        let mut found = Vec::new();
        let mut rest = code.as_str();
        while let Some(start) = rest.find('"') {
            let text = &rest[start + 1..];
            let mut end = 0;
            while let Some(byte) = text.as_bytes().get(end).filter(|byte| **byte != b'"') {
                end += if *byte == b'\\' { 2 } else { 1 };
            }
            let constant = text.get(..end).unwrap_or_default().replace("\\\n", " ");
            if ["SELECT ", "INSERT ", "UPDATE ", "DELETE ", "FROM ", "JOIN ", "WHERE ", "INTO "]
                .iter()
                .any(|word| constant.contains(word))
            {
                found.push(constant);
            }
            rest = text.get(end + 1..).unwrap_or_default();
        }
        found
    }

    /// Return the places at which `word` stands as a whole word.
    fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        text.match_indices(word).map(|(at, _)| at).filter(move |at| {
            let before = text[..*at].chars().next_back();
            let after = text[at + word.len()..].chars().next();
            [before, after]
                .into_iter()
                .flatten()
                .all(|c| !c.is_ascii_alphanumeric() && c != '_' && c != '{' && c != '}')
        })
    }
}
