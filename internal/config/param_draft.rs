//! `[[reports.queries.<name>.params]]`: the declaration of a parameter in the file.

use super::error::Wrong;
use super::param::{ParamType, ReportParam};
use super::parse;
use super::setting::Setting;

/// A declared parameter before its fields are checked together.
#[derive(Default)]
pub(super) struct ParamDraft {
    pub(super) name: String,
    kind: Option<ParamType>,
    values: Vec<String>,
    required: Option<bool>,
    default: Option<String>,
    min: Option<String>,
    max: Option<String>,
}

type Row = Setting<ParamDraft>;

/// The settings of a parameter.
pub(super) static PARAM: &[Setting<ParamDraft>] = &[
    Row::new("name", "NAME", "Name after the colon; required", |p, t| parse::put(&mut p.name, param_name(t)))
        .file_only(),
    Row::new("type", "TYPE", "string, integer, number, boolean, date, timestamp or enum; required", |p, t| {
        parse::some(&mut p.kind, parse::one_of(t, &param_types()))
    })
    .file_only(),
    Row::new("values", "LIST", "Permitted words of an enum", |p, t| {
        parse::put(&mut p.values, parse::list(t, parse::line))
    })
    .list()
    .file_only(),
    Row::new(
        "required",
        "BOOL",
        "True if a job must give a value; default: true, unless there is a default value",
        |p, t| parse::some(&mut p.required, parse::switch(t)),
    )
    .file_only(),
    Row::new("default", "VALUE", "Value if a job gives none", |p, t| parse::some(&mut p.default, Ok(t.to_owned())))
        .file_only(),
    Row::new("min", "VALUE", "Minimum value; for a string, its minimum length", |p, t| {
        parse::some(&mut p.min, Ok(t.to_owned()))
    })
    .file_only(),
    Row::new("max", "VALUE", "Maximum value; for a string, its maximum length", |p, t| {
        parse::some(&mut p.max, Ok(t.to_owned()))
    })
    .file_only(),
];

fn param_types() -> [(&'static str, ParamType); 7] {
    [
        ("string", ParamType::String),
        ("integer", ParamType::Integer),
        ("number", ParamType::Number),
        ("boolean", ParamType::Boolean),
        ("date", ParamType::Date),
        ("timestamp", ParamType::Timestamp),
        ("enum", ParamType::Enum { values: Vec::new() }),
    ]
}

fn param_name(text: &str) -> Result<String, Wrong> {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if begins && text.len() <= 64 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Ok(text.to_owned());
    }
    Err(Wrong::new("not a usable name", "write letters, digits and _, beginning with a letter or _"))
}

impl ParamDraft {
    /// Check the fields together. Each problem comes with its key.
    pub(super) fn finish(self) -> Result<ReportParam, Vec<(&'static str, Wrong)>> {
        let mut wrongs = Vec::new();
        let is_typed = self.kind.is_some();
        let kind = match self.kind {
            None => {
                wrongs.push(("type", Wrong::new("required but not set", "write type = \"string\" or another type")));
                // A stand-in, so that the other fields are checked as far as they do not depend on the type.
                ParamType::String
            }
            Some(ParamType::Enum { .. }) => {
                if self.values.is_empty() {
                    wrongs.push(("values", Wrong::new("an enum without values", "write values = [\"a\", \"b\"]")));
                }
                ParamType::Enum { values: self.values }
            }
            Some(kind) => {
                if !self.values.is_empty() {
                    wrongs.push((
                        "values",
                        Wrong::new("only an enum has values", "write type = \"enum\" or leave them out"),
                    ));
                }
                kind
            }
        };
        if self.name.is_empty() {
            wrongs.push(("name", Wrong::new("required but not set", "write the name after the colon")));
        }
        if self.required == Some(true) && self.default.is_some() {
            wrongs.push(("required", Wrong::new("a required parameter has a default", "leave one of the two out")));
        }
        let mut limit = |key, text: Option<String>| {
            let text = text.filter(|_| is_typed)?;
            let Some(limit_type) = kind.limit_type() else {
                wrongs.push((key, Wrong::new("this type has no limits", "leave it out")));
                return None;
            };
            let value = limit_type.parse_text(&text);
            if value.is_none() {
                wrongs.push((key, Wrong::new("not a limit of this type", format!("write {}", limit_type.describe()))));
            }
            value
        };
        let (min, max) = (limit("min", self.min), limit("max", self.max));
        if let (Some(min), Some(max)) = (&min, &max)
            && min.partial_cmp_same(max).is_some_and(std::cmp::Ordering::is_gt)
        {
            wrongs.push(("min", Wrong::new("greater than max", "write a min that is at most max")));
        }
        let required = self.required.unwrap_or(self.default.is_none());
        let mut param = ReportParam { name: self.name, kind, required, default: None, min, max };
        if let Some(text) = self.default.filter(|_| is_typed) {
            match param.kind.parse_text(&text) {
                None => {
                    let right = format!("write {}", param.kind.describe());
                    wrongs.push(("default", Wrong::new("not a value of this type", right)));
                }
                Some(value) => {
                    if let Err(error) = param.check_limits(&value) {
                        wrongs.push(("default", Wrong::new("outside min and max", format!("it {error}"))));
                    }
                    param.default = Some(value);
                }
            }
        }
        if wrongs.is_empty() { Ok(param) } else { Err(wrongs) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_a_declaration_is_named() {
        let draft = ParamDraft {
            kind: Some(ParamType::Integer),
            values: vec!["a".to_owned()],
            required: Some(true),
            default: Some("99".to_owned()),
            min: Some("10".to_owned()),
            max: Some("1".to_owned()),
            ..ParamDraft::default()
        };
        let keys: Vec<&str> = draft.finish().unwrap_err().into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["values", "name", "required", "min", "default"]);
        // Without its type, the rest is checked as far as possible.
        let draft = ParamDraft {
            values: vec!["a".to_owned()],
            required: Some(true),
            default: Some("99".to_owned()),
            min: Some("x".to_owned()),
            ..ParamDraft::default()
        };
        let keys: Vec<&str> = draft.finish().unwrap_err().into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["type", "name", "required"]);
    }
}
