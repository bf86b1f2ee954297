//! The SQL of a report: one SELECT with `:name` placeholders, translated to `?` placeholders.
//!
//! The parser reads tokens, not grammar. It binds parameters in the right positions and finds mistakes at the start
//! instead of at the first report. It does not prevent writes: the MySQL account and the read-only transaction do.

/// A statement in the form that the driver accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// The SQL with a `?` for each placeholder, without a trailing semicolon.
    pub sql: String,
    /// The parameter of each `?` in order. A parameter that is used twice is listed twice.
    pub params: Vec<String>,
}

/// The reason why a text is not a valid report statement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StatementError {
    /// Only whitespace and comments.
    #[error("the statement is empty")]
    Empty,
    /// A string, a quoted name or a comment is not closed.
    #[error("a {0} is not closed")]
    Unclosed(&'static str),
    /// There is text after a semicolon.
    #[error("there is more than one statement")]
    Several,
    /// The statement, or the part after its WITH, begins with another word.
    #[error("it is not a SELECT")]
    NotSelect,
    /// A clause that writes or locks.
    #[error("it contains {0}, which writes or locks")]
    Forbidden(&'static str),
    /// A positional placeholder.
    #[error("it contains ?, which belongs to no named parameter")]
    QuestionMark,
    /// A comment that the server executes.
    #[error("it contains an executable comment")]
    ExecutableComment,
}

impl Statement {
    /// Translate `:name` placeholders to `?`.
    ///
    /// Strings, quoted names, comments, `::` and `:=` stay unchanged. The syntax is that of the store's sessions:
    /// backslash escapes in strings, `"` quotes a string, `--` needs a space after it.
    pub fn parse(text: &str) -> Result<Statement, StatementError> {
        let mut statement = Statement { sql: String::with_capacity(text.len()), params: Vec::new() };
        let mut verbs = Verbs::default();
        let mut ended = false;
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let (token, length) = Token::first(rest, first)?;
            let (source, after) = rest.split_at(length);
            rest = after;
            if matches!(token, Token::Semicolon) {
                ended = true;
                continue;
            }
            if ended && !matches!(token, Token::Blank) {
                return Err(StatementError::Several);
            }
            match token {
                Token::Placeholder(name) => {
                    statement.sql.push('?');
                    statement.params.push(name.to_owned());
                }
                Token::QuestionMark => return Err(StatementError::QuestionMark),
                Token::Blank | Token::Quoted | Token::Word | Token::Symbol | Token::Semicolon => {
                    statement.sql.push_str(source);
                }
            }
            verbs.see(&token, source)?;
        }
        verbs.finish()?;
        statement.sql.truncate(statement.sql.trim_end().len());
        Ok(statement)
    }
}

enum Token<'a> {
    /// Whitespace or a comment.
    Blank,
    Quoted,
    Word,
    Placeholder(&'a str),
    QuestionMark,
    Semicolon,
    Symbol,
}

impl<'a> Token<'a> {
    /// Return the first token of a text that begins with `first`, and its length in bytes.
    fn first(text: &'a str, first: char) -> Result<(Token<'a>, usize), StatementError> {
        let word = |text: &str| text.find(|c: char| !is_word(c)).unwrap_or(text.len());
        Ok(match first {
            '\'' | '"' => (Token::Quoted, quoted(text, first, true, "string")?),
            '`' => (Token::Quoted, quoted(text, first, false, "quoted name")?),
            '#' => (Token::Blank, line(text)),
            '-' if is_dash_comment(text) => (Token::Blank, line(text)),
            '/' if text.starts_with("/*!") || text.starts_with("/*M!") => {
                return Err(StatementError::ExecutableComment);
            }
            '/' if text.starts_with("/*") => {
                (Token::Blank, text[2..].find("*/").ok_or(StatementError::Unclosed("comment"))? + 4)
            }
            ':' if text.starts_with("::") => (Token::Symbol, 2 + word(&text[2..])),
            ':' if text[1..].starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') => {
                let length = 1 + word(&text[1..]);
                (Token::Placeholder(&text[1..length]), length)
            }
            '?' => (Token::QuestionMark, 1),
            ';' => (Token::Semicolon, 1),
            c if c.is_whitespace() => (Token::Blank, c.len_utf8()),
            c if is_word(c) => (Token::Word, word(text)),
            c => (Token::Symbol, c.len_utf8()),
        })
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// MySQL treats `--` as a comment only before a space, a control character or the end: `5--3` is 8.
fn is_dash_comment(text: &str) -> bool {
    let Some(after) = text.strip_prefix("--") else { return false };
    after.chars().next().is_none_or(|c| c.is_whitespace() || c.is_control())
}

fn line(text: &str) -> usize {
    text.find('\n').map_or(text.len(), |newline| newline + 1)
}

/// Return the length of a quoted text. A doubled quote is read as two adjacent texts, with the same result.
fn quoted(text: &str, quote: char, escapes: bool, what: &'static str) -> Result<usize, StatementError> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' if escapes => escaped = true,
            c if c == quote => return Ok(at + 1),
            _ => {}
        }
    }
    Err(StatementError::Unclosed(what))
}

/// Checks the words of the statement one by one, to make sure that it only reads.
#[derive(Default)]
struct Verbs {
    first: Option<String>,
    main: Option<String>,
    depth: usize,
    previous: String,
}

impl Verbs {
    fn see(&mut self, token: &Token<'_>, source: &str) -> Result<(), StatementError> {
        if matches!(token, Token::Blank) {
            return Ok(());
        }
        match source {
            "(" => self.depth += 1,
            ")" => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        // After a dot even a reserved word is a column, and after an @ a variable.
        let named = self.previous == "." || self.previous == "@";
        let previous = std::mem::replace(&mut self.previous, source.to_ascii_uppercase());
        if !matches!(token, Token::Word) || named {
            return match (&self.first, source) {
                (None, "(") | (Some(_), _) => Ok(()),
                (None, _) => Err(StatementError::NotSelect),
            };
        }
        let word = self.previous.as_str();
        match word {
            "INTO" => return Err(StatementError::Forbidden("INTO")),
            "UPDATE" => return Err(StatementError::Forbidden("UPDATE")),
            "DELETE" => return Err(StatementError::Forbidden("DELETE")),
            "LOCK" => return Err(StatementError::Forbidden("LOCK")),
            "SHARE" if previous == "FOR" => return Err(StatementError::Forbidden("FOR SHARE")),
            _ => {}
        }
        if self.first.is_none() {
            self.first = Some(word.to_owned());
        }
        // The bodies of a WITH are in parentheses, so the first verb outside parentheses decides what the statement
        // does. INSERT and REPLACE are functions too, but no function comes before the verb.
        if self.depth == 0
            && self.main.is_none()
            && matches!(word, "SELECT" | "INSERT" | "REPLACE" | "VALUES" | "TABLE")
        {
            self.main = Some(word.to_owned());
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), StatementError> {
        match (self.first.as_deref(), self.main.as_deref()) {
            (None, _) => Err(StatementError::Empty),
            (Some("SELECT"), _) | (Some("WITH"), Some("SELECT")) => Ok(()),
            (Some(_), _) => Err(StatementError::NotSelect),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(text: &str) -> (String, Vec<String>) {
        let statement = Statement::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        (statement.sql, statement.params)
    }

    #[test]
    fn placeholders_become_question_marks_in_order() {
        let (sql, params) =
            translated("SELECT * FROM t WHERE a >= :since AND b IN (:x,:y) AND c < :since;\n-- the end :no\n");
        assert_eq!(sql, "SELECT * FROM t WHERE a >= ? AND b IN (?,?) AND c < ?\n-- the end :no");
        assert_eq!(params, ["since", "x", "y", "since"]);
    }

    #[test]
    fn strings_names_and_comments_are_left_alone() {
        for text in [
            "SELECT ':no ? ;' FROM t",
            "SELECT 'it''s :no' FROM t",
            r"SELECT 'it\'s :no' FROM t",
            r"SELECT '\\', 'x' FROM t",
            "SELECT \"a \"\" :no\" FROM t",
            "SELECT `a:no``b?` FROM t",
            r"SELECT `a\`, 1 FROM t",
            "SELECT 1 -- :no ? ; it's\nFROM t",
            "SELECT 1 # :no ? ; it's\nFROM t",
            "SELECT /* :no ? ; it's */ 1 FROM t",
            "/* a */ -- b\n SELECT 1",
            "SELECT 1 --",
            "SELECT 'späť :no' FROM t",
        ] {
            assert_eq!(translated(text), (text.to_owned(), Vec::new()));
        }
    }

    #[test]
    fn colons_that_are_no_placeholders_stay() {
        let text = "SELECT a::text, @n := 1, '12:30', b::c FROM t";
        assert_eq!(translated(text), (text.to_owned(), Vec::new()));
        assert_eq!(
            translated("SELECT :a::char, 5--:b"),
            ("SELECT ?::char, 5--?".to_owned(), vec!["a".into(), "b".into()])
        );
        assert_eq!(translated("SELECT (:a)+:a_1"), ("SELECT (?)+?".to_owned(), vec!["a".into(), "a_1".into()]));
    }

    #[test]
    fn one_select_or_with_is_taken() {
        for text in [
            "select 1",
            "(SELECT 1) UNION (SELECT 2)",
            "WITH x AS (SELECT 1) SELECT * FROM x",
            "with recursive x(n) as (select 1 union all select n + 1 from x) select REPLACE(n, 'a', 'b') from x ;  ",
            "SELECT INSERT('a', 1, 1, 'b'), t.update, `delete` FROM t",
            "SELECT @@in_transaction, @update",
            "SELECT 1;;",
        ] {
            assert!(Statement::parse(text).is_ok(), "{text}: {:?}", Statement::parse(text));
        }
    }

    #[test]
    fn everything_else_is_refused_with_its_reason() {
        use StatementError::*;
        for (text, expected) in [
            ("", Empty),
            (" -- nothing\n", Empty),
            (";", Empty),
            ("DROP TABLE t", NotSelect),
            ("TABLE t", NotSelect),
            ("WITH x AS (SELECT 1) INSERT t SELECT * FROM x", NotSelect),
            ("WITH x AS (SELECT 1) DELETE FROM t", Forbidden("DELETE")),
            ("UPDATE t SET a = 1", Forbidden("UPDATE")),
            ("SELECT 1; DROP TABLE t", Several),
            ("SELECT 1; SELECT 2;", Several),
            ("SELECT * FROM t FOR UPDATE", Forbidden("UPDATE")),
            ("SELECT * FROM t FOR  SHARE", Forbidden("FOR SHARE")),
            ("SELECT * FROM t LOCK IN SHARE MODE", Forbidden("LOCK")),
            ("SELECT 1 INTO OUTFILE '/tmp/x'", Forbidden("INTO")),
            ("SELECT * FROM t WHERE a = ?", QuestionMark),
            ("SELECT 1 /*!50000 , 2 */", ExecutableComment),
            ("SELECT 1 /*M! , 2 */", ExecutableComment),
            ("SELECT 'a", Unclosed("string")),
            ("SELECT `a", Unclosed("quoted name")),
            ("SELECT 1 /* a", Unclosed("comment")),
            (":a SELECT 1", NotSelect),
            ("'SELECT' 1", NotSelect),
        ] {
            assert_eq!(Statement::parse(text).unwrap_err(), expected, "{text}");
        }
    }
}
