//! The configuration file as a tree of keys with their line numbers. It does not interpret the values.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Wrong};
use super::origin::SettingOrigin;
use super::setting::Shape;

/// A table: the file itself, a `[section]`, or one entry of a `[[list]]`.
#[derive(Default)]
pub(super) struct Table {
    pub(super) entries: BTreeMap<String, Entry>,
}

impl Table {
    /// Collect every value with its name. A name with dots and without quotes is parsed as nested tables, and is joined
    /// again here.
    fn pairs(&self, before: &str, pairs: &mut Vec<String>) -> Result<(), Wrong> {
        for (key, entry) in &self.entries {
            if key.contains([',', '=']) {
                return Err(Wrong::new("a name contains a comma or =", "write the name alone before its value"));
            }
            let name = if before.is_empty() { key.clone() } else { format!("{before}.{key}") };
            match &entry.node {
                Node::Table(table) => table.pairs(&name, pairs)?,
                Node::List(values) if values.is_empty() => {
                    return Err(Wrong::new("a name has an empty list", "write a value for it or remove the line"));
                }
                Node::List(values) => {
                    for value in values {
                        pairs.push(format!("{name}={}", value.node.list_entry()?));
                    }
                }
                Node::Scalar(_) => pairs.push(format!("{name}={}", entry.node.list_entry()?)),
            }
        }
        Ok(())
    }

    /// Add the entries of `other` that are missing here. A section with values of its own stays unchanged; in a section
    /// that contains only sections, the missing ones are added.
    pub(super) fn complete(&mut self, other: Table) {
        for (key, entry) in other.entries {
            match (self.entries.get_mut(&key).map(|own| &mut own.node), entry.node) {
                (None, node) => drop(self.entries.insert(key, Entry { line: entry.line, node })),
                (Some(Node::Table(own)), Node::Table(other)) if other.has_sections_alone() => own.complete(other),
                (Some(_), _) => {}
            }
        }
    }

    fn has_sections_alone(&self) -> bool {
        self.entries.values().all(|entry| matches!(entry.node, Node::Table(_)))
    }

    /// Mark every key as coming from no file.
    pub(super) fn without_lines(mut self) -> Self {
        for entry in self.entries.values_mut() {
            entry.line = 0;
            if let Node::Table(table) = &mut entry.node {
                *table = std::mem::take(table).without_lines();
            }
        }
        self
    }
}

/// The value of a key.
pub(super) struct Entry {
    /// Line number from 1; 0 if the key is in no file.
    pub(super) line: usize,
    pub(super) node: Node,
}

/// A value. Scalars stay text: the same parsers read flags, environment and file.
pub(super) enum Node {
    Scalar(String),
    List(Vec<Entry>),
    Table(Table),
}

impl Node {
    /// Return the value in the form of a flag. A list of scalars becomes a comma list where one is expected, and a
    /// table becomes a comma list of pairs.
    pub(super) fn text(&self, shape: Shape) -> Result<String, Wrong> {
        match self {
            Node::Scalar(text) => Ok(text.clone()),
            Node::List(entries) if matches!(shape, Shape::List | Shape::Pairs) => {
                let entries: Result<Vec<String>, Wrong> = entries.iter().map(|entry| entry.node.list_entry()).collect();
                Ok(entries?.join(","))
            }
            Node::Table(table) if shape == Shape::Pairs => {
                let mut pairs = Vec::new();
                table.pairs("", &mut pairs)?;
                Ok(pairs.join(","))
            }
            Node::List(_) => Err(Wrong::new("a list is given where one value is expected", "write one value")),
            Node::Table(_) => Err(Wrong::new("a section is given where a value is expected", "write name = value")),
        }
    }

    fn list_entry(&self) -> Result<String, Wrong> {
        match self {
            Node::Scalar(text) if !text.contains(',') => Ok(text.clone()),
            Node::Scalar(_) => Err(Wrong::new("an entry contains a comma", "write entries without commas")),
            Node::List(_) | Node::Table(_) => {
                Err(Wrong::new("an entry is not a plain value", "write a flat list of values"))
            }
        }
    }
}

/// Parse a file, or return all of its syntax errors.
///
/// The readable part of a broken file is not used: a missing quote may have swallowed the lines below it. A password
/// could then become the value of another setting, such as the log level, and be printed.
pub(super) fn parse(path: &Path, text: &str) -> Result<Table, Vec<ConfigError>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(table(text, root.get_ref()));
    }
    let start = |error: &toml::de::Error| error.span().map_or(0, |span| span.start);
    let mut errors = errors;
    errors.sort_by_key(start);
    let error = |error: &toml::de::Error| ConfigError {
        setting: "config".to_owned(),
        origin: SettingOrigin::File { path: path.to_owned(), line: line_of(text, start(error)) },
        value: None,
        // Use only the message: the error's Display quotes the line, which may contain a password.
        wrong: format!("not valid TOML: {}", error.message().replace('\n', ", ")),
        right: "correct the line; text needs quotes".to_owned(),
    };
    Err(errors.iter().map(error).collect())
}

fn table(text: &str, table: &DeTable<'_>) -> Table {
    let entry = |(key, value): (&Spanned<std::borrow::Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
        let entry = Entry { line: line_of(text, key.span().start), node: node(text, value.get_ref()) };
        (key.get_ref().to_string(), entry)
    };
    Table { entries: table.iter().map(entry).collect() }
}

fn node(text: &str, value: &DeValue<'_>) -> Node {
    match value {
        DeValue::String(string) => Node::Scalar(string.to_string()),
        DeValue::Integer(integer) => Node::Scalar(match i64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) => number.to_string(),
            Err(_) => integer.to_string(),
        }),
        DeValue::Float(float) => Node::Scalar(float.as_str().to_owned()),
        DeValue::Boolean(boolean) => Node::Scalar(boolean.to_string()),
        DeValue::Datetime(datetime) => Node::Scalar(datetime.to_string()),
        DeValue::Array(values) => {
            let entry = |value: &Spanned<DeValue<'_>>| Entry {
                line: line_of(text, value.span().start),
                node: node(text, value.get_ref()),
            };
            Node::List(values.iter().map(entry).collect())
        }
        DeValue::Table(inner) => Node::Table(table(text, inner)),
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|b| *b == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(table: &Table, key: &str, shape: Shape) -> Result<String, Wrong> {
        table.entries[key].node.text(shape)
    }

    #[test]
    fn values_read_as_a_flag_would_spell_them() {
        let text = "a = 1_000\nb = true\nc = \"x\"\nd = [\"p\", \"q\"]\ne = 2.5\nf = 0x10\ng = 2026-01-31\n";
        let table = parse(Path::new("tickr.toml"), text).ok().unwrap();
        for (key, expected) in
            [("a", "1000"), ("b", "true"), ("c", "x"), ("d", "p,q"), ("e", "2.5"), ("f", "16"), ("g", "2026-01-31")]
        {
            assert_eq!(text_of(&table, key, Shape::List).unwrap(), expected);
        }
        assert!(text_of(&table, "d", Shape::One).is_err());
        assert_eq!(table.entries["d"].line, 4);
    }

    #[test]
    fn a_table_of_names_reads_as_pairs() {
        let text = "[a]\n\"x.example\" = \"1\"\ny.example = [\"2\", \"3\"]\n[b]\nx = []\n[c]\n\"x=y\" = \"1\"\n[d]\nx = \"1,y=2\"\n[e]\n";
        let table = parse(Path::new("tickr.toml"), text).ok().unwrap();
        assert_eq!(text_of(&table, "a", Shape::Pairs).unwrap(), "x.example=1,y.example=2,y.example=3");
        assert_eq!(text_of(&table, "e", Shape::Pairs).unwrap(), "");
        for bad in ["b", "c", "d"] {
            assert!(text_of(&table, bad, Shape::Pairs).is_err(), "{bad}");
        }
        assert!(text_of(&table, "a", Shape::List).is_err());
    }

    #[test]
    fn what_completes_a_file_changes_nothing_in_it() {
        let read = |text| parse(Path::new("tickr.toml"), text).ok().unwrap();
        let mut own = read("a = 1\n[s.q.mine]\nx = 1\n[s.q.both]\nx = 1\n[t]\nx = 1\n");
        own.complete(read("a = 2\nb = 2\n[s.q.both]\ny = 2\n[s.q.theirs]\ny = 2\n[t]\ny = 2\n").without_lines());
        let section = |path: &[&str]| {
            path.iter().fold(&own, |table, key| match &table.entries[*key].node {
                Node::Table(table) => table,
                Node::Scalar(_) | Node::List(_) => panic!("{key} is no section"),
            })
        };
        let keys = |path: &[&str]| section(path).entries.keys().cloned().collect::<Vec<_>>();
        assert_eq!(text_of(&own, "a", Shape::One).unwrap(), "1");
        assert_eq!((own.entries["a"].line, own.entries["b"].line), (1, 0));
        assert_eq!(keys(&["s", "q"]), ["both", "mine", "theirs"]);
        assert_eq!((keys(&["s", "q", "both"]), keys(&["t"])), (vec!["x".to_owned()], vec!["x".to_owned()]));
    }

    #[test]
    fn syntax_errors_name_the_line_and_quote_nothing() {
        for (text, line) in [
            ("workers = 4\nmysql_url = canary://canary:canary\nlease = \"canary\nqueues = [", 2),
            ("workers = 4\nlog = \"\"\"\nmysql_url = \"mysql://u:canary@h/d\"\n", 4),
            ("workers = 4\nmysql_url mysql://u:canary@h/d\n", 2),
            ("workers = 4\nworkers = \"canary\"\n", 2),
        ] {
            let errors = parse(Path::new("tickr.toml"), text).err().unwrap();
            let lines: Vec<&SettingOrigin> = errors.iter().map(|error| &error.origin).collect();
            assert!(
                lines.iter().any(|at| **at == SettingOrigin::File { path: "tickr.toml".into(), line }),
                "{text}: {lines:?}"
            );
            assert!(errors.iter().all(|error| !format!("{error} {error:?}").contains("canary")), "{errors:?}");
        }
    }
}
