//! The sections of the file, each parsed by its own table and then checked as a whole.

use std::collections::BTreeMap;

use super::alerts::{ALERTS, Alerts, THRESHOLD, Threshold};
use super::compat::{COMPAT, Compat, DELAYED, DelayedDraft, DelayedMessages, LATER};
use super::error::Wrong;
use super::file::{Entry, Node, Table};
use super::kinds::{KINDS, KindConfig};
use super::load::{Loading, full_name};
use super::outboxes::{MAX_OUTBOXES, OUTBOX, Outbox, OutboxDraft};
use super::param::ReportParam;
use super::param_draft::{PARAM, ParamDraft};
use super::parse;
use super::reports::{QUERY, QueryDraft, REPORTS, Reports};
use super::schedules::{SCHEDULES, ScheduleConfig, ScheduleKeys};
use super::smtp::{SMTP, Smtp, SmtpTls};
use super::url::ServerUrl;
use tickr_job::Name;

impl Loading<'_> {
    pub(super) fn smtp(&mut self, root: &Table) -> Option<Smtp> {
        let (line, table) = self.section("smtp", root.entries.get("smtp"))?;
        let mut smtp = Smtp::blank();
        self.settings("smtp", SMTP, table, &mut smtp);
        self.unknown_keys("smtp", table, SMTP, &[]);
        if smtp.port == 0 {
            smtp.port = smtp.tls.usual_port();
        }
        if smtp.host.is_empty() && !self.has_failed(&["smtp.host"]) {
            let wrong = Wrong::new("required but not set", "write host = \"mail.example.com\" in [smtp]");
            self.fail("smtp.host", self.at(line), None, wrong);
        }
        if smtp.username.is_some() != smtp.password.is_some() && !self.has_failed(&["smtp.username", "smtp.password"]) {
            let (missing, given) =
                if smtp.username.is_some() { ("password", "username") } else { ("username", "password") };
            let wrong = Wrong::new(format!("not set, while {given} is"), "set both or neither");
            self.fail(&full_name("smtp", missing), self.at(line), None, wrong);
        }
        if smtp.tls == SmtpTls::None && smtp.password.is_some() && !self.has_failed(&["smtp.tls"]) {
            self.warn(
                "smtp.tls",
                "none sends the password in clear; use starttls or tls unless the server is on this host",
            );
        }
        Some(smtp)
    }

    pub(super) fn kinds(&mut self, root: &Table) -> BTreeMap<String, KindConfig> {
        let mut kinds = BTreeMap::new();
        let Some((_, table)) = self.section("kinds", root.entries.get("kinds")) else { return kinds };
        for (name, line, table) in self.named_sections("kinds", table) {
            let section = full_name("kinds", name);
            let mut kind = KindConfig::default();
            self.settings(&section, KINDS, table, &mut kind);
            self.unknown_keys(&section, table, KINDS, &[]);
            if let (Some(base), Some(cap)) = (kind.retry_base, kind.retry_cap)
                && base > cap
            {
                let wrong = Wrong::new("retry_base is longer than retry_cap", "write a base that is at most the cap");
                self.fail(&section, self.at(line), None, wrong);
            }
            kinds.insert(name.to_owned(), kind);
        }
        kinds
    }

    pub(super) fn alerts(&mut self, root: &Table) -> Option<Alerts> {
        let (line, table) = self.section("alerts", root.entries.get("alerts"))?;
        let mut alerts = Alerts::blank();
        self.settings("alerts", ALERTS, table, &mut alerts);
        self.unknown_keys("alerts", table, ALERTS, &["kinds"]);
        if let Some((_, kinds)) = self.section("alerts.kinds", table.entries.get("kinds")) {
            for (name, line, table) in self.named_sections("alerts.kinds", kinds) {
                let section = full_name("alerts.kinds", name);
                let (mut threshold, errors_before) = (Threshold::default(), self.errors.len());
                self.settings(&section, THRESHOLD, table, &mut threshold);
                self.unknown_keys(&section, table, THRESHOLD, &[]);
                if !threshold.is_set() && self.errors.len() == errors_before {
                    self.fail(&section, self.at(line), None, no_threshold());
                }
                alerts.kinds.insert(name.to_owned(), threshold);
            }
        }
        if alerts.url.is_empty() && !self.has_failed(&["alerts.url"]) {
            let wrong = Wrong::new("required but not set", "write url = \"https://example.com/hook\" in [alerts]");
            self.fail("alerts.url", self.at(line), None, wrong);
        }
        let thresholds = ["alerts.dead_letters", "alerts.dead_letter_age"];
        if !alerts.all.is_set() && alerts.kinds.is_empty() && !self.has_failed(&thresholds) {
            self.fail("alerts", self.at(line), None, no_threshold());
        }
        Some(alerts)
    }

    pub(super) fn reports(&mut self, root: &Table) -> Reports {
        let mut reports = Reports::blank();
        let nothing = Table::default();
        let table = self.section("reports", root.entries.get("reports")).map_or(&nothing, |(_, table)| table);
        self.settings("reports", REPORTS, table, &mut reports);
        self.unknown_keys("reports", table, REPORTS, &["queries"]);
        if let Some((_, queries)) = self.section("reports.queries", table.entries.get("queries")) {
            for (name, line, table) in self.named_sections("reports.queries", queries) {
                let section = full_name("reports.queries", name);
                let mut draft = QueryDraft::default();
                self.settings(&section, QUERY, table, &mut draft);
                self.unknown_keys(&section, table, QUERY, &["params"]);
                let (params, complete) = self.params(&section, table);
                match draft.finish(params, complete) {
                    Ok(query) => drop(reports.queries.insert(name.to_owned(), query)),
                    Err(wrongs) => self.fail_keys(&section, line, table, wrongs),
                }
            }
        }
        reports
    }

    pub(super) fn schedules(&mut self, root: &Table) -> BTreeMap<Name, ScheduleConfig> {
        let mut schedules = BTreeMap::new();
        let Some((_, table)) = self.section("schedules", root.entries.get("schedules")) else { return schedules };
        // This host's clock decides only whether a cron expression has a future tick. The store's clock decides when it
        // ticks.
        let now = chrono::Utc::now();
        for (name, line, table) in self.named_sections("schedules", table) {
            let section = full_name("schedules", name);
            let (mut keys, errors_before) = (ScheduleKeys::default(), self.errors.len());
            self.settings(&section, SCHEDULES, table, &mut keys);
            self.unknown_keys(&section, table, SCHEDULES, &[]);
            if name == "preview" {
                let wrong = Wrong::new("not usable as the name of a schedule: the API uses it", "write another name");
                self.fail(&section, self.at(line), None, wrong);
            }
            keys.stand_in_for(|key| self.has_failed(&[&full_name(&section, key)]));
            let names_queue = keys.names_queue();
            match (keys.finish(now), name.parse()) {
                (Err(wrongs), _) => self.fail_keys(&section, line, table, wrongs),
                (Ok(schedule), Ok(name)) if self.errors.len() == errors_before => {
                    schedules.insert(name, ScheduleConfig { schedule, names_queue, origin: self.at(line) });
                }
                // A key has failed already. `named_sections` has checked the name.
                (Ok(_), _) => {}
            }
        }
        schedules
    }

    pub(super) fn outboxes(&mut self, root: &Table, store: Option<&ServerUrl>) -> BTreeMap<Name, Outbox> {
        let mut outboxes: BTreeMap<Name, Outbox> = BTreeMap::new();
        let Some((line, table)) = self.section("outboxes", root.entries.get("outboxes")) else { return outboxes };
        let named = self.named_sections("outboxes", table);
        if named.len() > MAX_OUTBOXES {
            let wrong = Wrong::new(format!("{} outboxes", named.len()), format!("write at most {MAX_OUTBOXES}"));
            self.fail("outboxes", self.at(line), None, wrong);
        }
        let mut variables: BTreeMap<String, String> = BTreeMap::new();
        for (name, line, table) in named {
            let section = full_name("outboxes", name);
            let setting = full_name(&section, "mysql_url");
            let mut draft = OutboxDraft::default();
            self.settings(&section, OUTBOX, table, &mut draft);
            self.unknown_keys(&section, table, OUTBOX, &[]);
            // A dot and a dash are both an underscore there.
            let variable = OUTBOX.iter().find_map(|setting| setting.env(&section)).unwrap_or_default();
            if let Some(other) = variables.insert(variable.clone(), section.clone()) {
                let wrong = Wrong::new(format!("has the variable {variable}, as {other} has"), "write another name");
                self.fail(&section, self.at(line), None, wrong);
            }
            let (Some(mysql_url), Ok(name)) = (draft.mysql_url, name.parse()) else {
                if !self.has_failed(&[&setting]) {
                    let wrong =
                        Wrong::new("required but not set", format!("write it in [{section}], or set {variable}"));
                    self.fail(&setting, self.at(line), None, wrong);
                }
                continue;
            };
            // The rows would be copied onto themselves and then deleted.
            if store.is_some_and(|store| store.same_database(&mysql_url)) {
                let right = "remove the section: the outbox in the database of tickr needs none";
                self.fail_effective(&setting, Wrong::new("is the database of tickr itself", right));
            }
            let same = |other: &&Name| outboxes[*other].mysql_url.same_database(&mysql_url);
            if let Some(other) = outboxes.keys().find(same) {
                let wrong = Wrong::new(format!("is the database of outboxes.{other} too"), "write one section for it");
                self.fail_effective(&setting, wrong);
            }
            outboxes.insert(name, Outbox { mysql_url });
        }
        outboxes
    }

    pub(super) fn compat(&mut self, root: &Table) -> Compat {
        let mut compat = Compat::default();
        let Some((_, table)) = self.section("compat", root.entries.get("compat")) else { return compat };
        self.unknown_keys("compat", table, COMPAT, &["delayed", "later"]);
        if let Some((line, table)) = self.section("compat.delayed", table.entries.get("delayed")) {
            let mut draft = DelayedDraft::default();
            self.settings("compat.delayed", DELAYED, table, &mut draft);
            self.unknown_keys("compat.delayed", table, DELAYED, &[]);
            compat.delayed = draft.url.map(|url| DelayedMessages { url });
            if compat.delayed.is_none() && !self.has_failed(&["compat.delayed.url"]) {
                let right = "write url = \"https://example.com/messages\" in [compat.delayed]";
                self.fail("compat.delayed.url", self.at(line), None, Wrong::new("required but not set", right));
            }
        }
        if let Some((_, table)) = self.section("compat.later", table.entries.get("later")) {
            self.settings("compat.later", LATER, table, &mut compat.later);
            self.unknown_keys("compat.later", table, LATER, &[]);
        }
        compat
    }

    /// Parse the parameters of a query. The second value is true if all of them are valid.
    fn params(&mut self, section: &str, table: &Table) -> (Vec<ReportParam>, bool) {
        let name = full_name(section, "params");
        let Some(entry) = table.entries.get("params") else { return (Vec::new(), true) };
        let Node::List(entries) = &entry.node else {
            let wrong = Wrong::new("not a list of parameters", "write params = [{ name = \"…\", type = \"…\" }]");
            self.fail(&name, self.at(entry.line), None, wrong);
            return (Vec::new(), false);
        };
        let errors_before = self.errors.len();
        let mut params = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let section = format!("{name}[{at}]");
            let Some((line, table)) = self.section(&section, Some(entry)) else { continue };
            let mut draft = ParamDraft::default();
            let errors = self.errors.len();
            self.settings(&section, PARAM, table, &mut draft);
            self.unknown_keys(&section, table, PARAM, &[]);
            match draft.finish() {
                Ok(param) if self.errors.len() == errors => params.push(param),
                Ok(_) => {}
                Err(wrongs) => self.fail_keys(&section, line, table, wrongs),
            }
        }
        (params, self.errors.len() == errors_before)
    }

    /// Return the section under a key.
    fn section<'t>(&mut self, name: &str, entry: Option<&'t Entry>) -> Option<(usize, &'t Table)> {
        let entry = entry?;
        match &entry.node {
            Node::Table(table) => Some((entry.line, table)),
            Node::Scalar(_) | Node::List(_) => {
                let wrong = Wrong::new(
                    "a value is given where a section is expected",
                    format!("write [{name}] with keys under it"),
                );
                self.fail(name, self.at(entry.line), None, wrong);
                None
            }
        }
    }

    /// Return the sections below a section whose keys are names, such as the kinds.
    fn named_sections<'t>(&mut self, parent: &str, table: &'t Table) -> Vec<(&'t str, usize, &'t Table)> {
        let mut sections = Vec::new();
        for (name, entry) in &table.entries {
            let full = full_name(parent, name);
            if let Err(wrong) = parse::name(name) {
                self.fail(&full, self.at(entry.line), None, wrong);
            } else if let Some((line, table)) = self.section(&full, Some(entry)) {
                sections.push((name.as_str(), line, table));
            }
        }
        sections
    }

    /// Report problems with keys of a section, each at the line of its key, or of the section if the key is missing. A
    /// key that has already failed is not reported again.
    fn fail_keys(&mut self, section: &str, line: usize, table: &Table, wrongs: Vec<(&'static str, Wrong)>) {
        let failed_before = self.failed.clone();
        for (key, wrong) in wrongs {
            let name = full_name(section, key);
            if !failed_before.contains(&name) {
                let line = table.entries.get(key).map_or(line, |entry| entry.line);
                self.fail(&name, self.at(line), None, wrong);
            }
        }
    }
}

fn no_threshold() -> Wrong {
    Wrong::new("no threshold is set", "write dead_letters = 100 or dead_letter_age = \"1h\"")
}
