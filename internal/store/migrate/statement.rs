//! The statements of a migration: the end of each, its table, and the columns it adds.
//!
//! MySQL commits before and after each statement that changes a table, so a migration of several statements may end
//! between any two of them. Each statement is therefore run by itself and may be run again. This file knows just enough
//! SQL for that; the unit tests below hold every migration of this binary against it.

/// One statement, without comments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) text: String,
    pub(super) verb: Verb,
    /// The table that it changes.
    pub(super) table: String,
}

/// The effect of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    CreateTable,
    AlterTable,
    CreateIndex,
    /// Changes rows. Running it twice must have the same effect as once.
    Update,
    /// No migration should have another statement; it is run unchanged.
    Other,
}

/// Words that begin a clause of CREATE TABLE which is no column.
const NO_COLUMNS: [&str; 10] =
    ["PRIMARY", "UNIQUE", "KEY", "INDEX", "CONSTRAINT", "CHECK", "FOREIGN", "FULLTEXT", "SPATIAL", "PERIOD"];

/// Split a migration into its statements, in order.
pub(super) fn statements(sql: &str) -> Vec<Statement> {
    split(&without_comments(sql), ';').into_iter().map(Statement::new).collect()
}

impl Statement {
    fn new(text: String) -> Self {
        let words: Vec<&str> = text.split_whitespace().collect();
        let word = |at: usize| words.get(at).map(|word| word.to_ascii_uppercase()).unwrap_or_default();
        let name = |at: usize| {
            let word = words.get(at).copied().unwrap_or_default();
            word.split('(').next().unwrap_or_default().trim_matches('`').to_owned()
        };
        let after_on = || words.iter().position(|word| word.eq_ignore_ascii_case("ON")).map_or(0, |at| at + 1);
        let (verb, table) = match (word(0).as_str(), word(1).as_str()) {
            ("CREATE", "TABLE") => (Verb::CreateTable, name(if word(2) == "IF" { 5 } else { 2 })),
            ("ALTER", "TABLE") => (Verb::AlterTable, name(2)),
            ("CREATE", "INDEX") => (Verb::CreateIndex, name(after_on())),
            ("CREATE", "UNIQUE") if word(2) == "INDEX" => (Verb::CreateIndex, name(after_on())),
            ("UPDATE", _) => (Verb::Update, name(1)),
            _ => (Verb::Other, String::new()),
        };
        Self { text, verb, table }
    }

    /// The clauses of an ALTER TABLE.
    fn clauses(&self) -> Vec<String> {
        let rest = self.text.split_whitespace().skip(3).collect::<Vec<_>>().join(" ");
        if self.verb == Verb::AlterTable { split(&rest, ',') } else { Vec::new() }
    }

    /// An ALTER TABLE of several clauses as one statement for each.
    pub(super) fn by_clause(&self) -> Vec<Self> {
        let clauses = self.clauses();
        if clauses.len() < 2 {
            return Vec::new();
        }
        let alone = |clause: String| Self { text: format!("ALTER TABLE {} {clause}", self.table), ..self.clone() };
        clauses.into_iter().map(alone).collect()
    }

    /// The columns that a CREATE TABLE makes.
    pub(super) fn columns(&self) -> Vec<String> {
        if self.verb != Verb::CreateTable {
            return Vec::new();
        }
        let Some((open, close)) = self.text.find('(').zip(self.text.rfind(')')) else { return Vec::new() };
        let first = |clause: &String| clause.split_whitespace().next().unwrap_or_default().trim_matches('`').to_owned();
        let clauses = split(&self.text[open + 1..close], ',');
        clauses.iter().map(first).filter(|word| !NO_COLUMNS.contains(&word.to_ascii_uppercase().as_str())).collect()
    }

    /// Return the texts to try, the one that blocks the fewest writers first. A server that cannot do an ALTER in the
    /// requested way refuses it before it begins.
    pub(super) fn forms(&self) -> Vec<(Form, String)> {
        let asks = |word: &str| self.text.to_ascii_uppercase().contains(word);
        let mut forms = Vec::new();
        if self.verb == Verb::AlterTable && !asks("ALGORITHM") && !asks("LOCK=") && !asks("LOCK =") {
            forms.push((Form::Instant, format!("{}, ALGORITHM=INSTANT", self.text)));
            forms.push((Form::Online, format!("{}, ALGORITHM=INPLACE, LOCK=NONE", self.text)));
        }
        forms.push((Form::Plain, self.text.clone()));
        forms
    }
}

/// The traffic of a table that a statement blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// None beyond a moment: only the description of the table changes.
    Instant,
    /// None beyond a moment at its beginning and at its end.
    Online,
    /// Writes to the table may wait until it is done.
    Plain,
}

/// `sql` without comments, white space folded.
fn without_comments(sql: &str) -> String {
    let mut bare = String::with_capacity(sql.len());
    for line in sql.lines() {
        let mut quoted = None;
        let mut end = line.len();
        for (at, c) in line.char_indices() {
            match quoted {
                Some(quote) if c == quote => quoted = None,
                Some(_) => {}
                None if matches!(c, '\'' | '"' | '`') => quoted = Some(c),
                None if line[at..].starts_with("--") => {
                    end = at;
                    break;
                }
                None => {}
            }
        }
        bare.push_str(line[..end].trim());
        bare.push(' ');
    }
    bare
}

/// The parts of `text` between those `mark`s that stand in no quotes and no parentheses; empty parts are left out.
fn split(text: &str, mark: char) -> Vec<String> {
    let (mut parts, mut part) = (Vec::new(), String::new());
    let (mut depth, mut quoted) = (0_usize, None);
    for c in text.chars() {
        match (quoted, c) {
            (Some(quote), _) if c == quote => quoted = None,
            (Some(_), _) => {}
            (None, '\'' | '"' | '`') => quoted = Some(c),
            (None, '(') => depth += 1,
            (None, ')') => depth = depth.saturating_sub(1),
            (None, _) if c == mark && depth == 0 => {
                parts.push(std::mem::take(&mut part));
                continue;
            }
            (None, _) => {}
        }
        part.push(c);
    }
    parts.push(part);
    parts.into_iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::ledger::MIGRATIONS;
    use super::*;
    use crate::sql::table_names::with_prefix;

    #[test]
    fn every_migration_consists_of_statements_that_may_run_again() {
        for migration in MIGRATIONS.iter() {
            let found = statements(migration.sql.as_str());
            let prefixed = statements(&with_prefix(&"shop_".parse().unwrap(), migration.sql.as_str()));
            assert_eq!(found.len(), prefixed.len(), "{}", migration.version);
            assert!(prefixed.iter().all(|statement| statement.table.starts_with("shop_")), "{prefixed:#?}");
            assert!(!found.is_empty(), "{}", migration.version);
            for statement in found {
                let about = format!("{}: {}", migration.version, statement.text);
                assert_ne!(statement.verb, Verb::Other, "{about}");
                assert!(statement.table.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{about}");
                assert!(!statement.table.is_empty(), "{about}");
                match statement.verb {
                    Verb::CreateTable => {
                        let columns = statement.columns();
                        assert!(columns.len() >= 2 && !columns.contains(&String::new()), "{about}");
                        assert!(
                            columns.iter().all(|c| c.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')),
                            "{about}"
                        );
                    }
                    Verb::AlterTable => {
                        // Run a second time, these are refused in a way that says so. A rename is not, and would be lost.
                        let again = ["ADD ", "DROP ", "MODIFY ", "ALGORITHM", "LOCK"];
                        assert!(
                            statement.clauses().iter().all(|clause| again.iter().any(|word| clause.starts_with(word))),
                            "{about}"
                        );
                    }
                    Verb::CreateIndex | Verb::Update | Verb::Other => {}
                }
            }
        }
    }

    #[test]
    fn quotes_comments_and_parentheses_do_not_end_a_statement() {
        let found = statements(
            "-- A table; with a remark.\nCREATE TABLE a (\n  -- one, two\n  `b` ENUM('x;', '--y') NOT NULL, -- three\n  c INT,\n  \
             KEY a_b (b, c), CONSTRAINT a_c CHECK (c IN (1, 2)))\nENGINE = InnoDB;\n\nALTER TABLE a ADD COLUMN d DECIMAL(5,2) NULL,\n \
             ADD KEY a_d (d, c); UPDATE a SET d = 0;\n",
        );
        assert_eq!(found.len(), 3, "{found:#?}");
        assert_eq!((found[0].verb, found[0].table.as_str()), (Verb::CreateTable, "a"));
        assert_eq!(found[0].columns(), ["b", "c"]);
        assert!(found[0].text.contains("'x;', '--y'") && !found[0].text.contains("three"), "{}", found[0].text);
        assert_eq!(found[1].clauses(), ["ADD COLUMN d DECIMAL(5,2) NULL", "ADD KEY a_d (d, c)"]);
        assert_eq!(found[1].by_clause()[1].text, "ALTER TABLE a ADD KEY a_d (d, c)");
        assert_eq!((found[2].verb, found[2].table.as_str()), (Verb::Update, "a"));
        assert!(found[2].by_clause().is_empty());
    }
}
