//! Loading: read flag, environment, file and default in this order, and collect all problems.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::error::{ConfigError, ConfigErrors, ConfigWarning, Wrong};
use super::file::{self, Table};
use super::flags::Flags;
use super::origin::{Effective, Origins, SettingOrigin};
use super::outboxes::OUTBOX;
use super::reports::REPORTS;
use super::setting::{Reach, Setting};
use super::settings::SETTINGS;
use super::smtp::SMTP;
use super::sources::Sources;
use super::suggest::nearest;
use super::{Config, Loaded};

/// Variables that belong to no setting: those of `--config`, the client commands, the set-up script, the tests and
/// `tickr dev`.
const OTHER_VARIABLES: [&str; 7] =
    ["TICKR_CONFIG", "TICKR_MYSQLD", "TICKR_SERVERS", "TICKR_URL", "TICKR_TOKEN", "TICKR_OFFLINE", "TICKR_PYTHON"];
const TEST_VARIABLES: &str = "TICKR_TEST_";

pub(super) fn load(
    flags: &Flags,
    env: impl Iterator<Item = (String, String)>,
    fallback: Option<PathBuf>,
    defaults: &str,
) -> Result<Loaded, ConfigErrors> {
    // Compose files and CI use an empty variable for "not set".
    let env: BTreeMap<String, String> = env.filter(|(name, value)| is_ours(name) && !value.is_empty()).collect();
    let path = flags.config.clone().or_else(|| env.get("TICKR_CONFIG").map(PathBuf::from)).or(fallback);
    let text = path.as_ref().map(std::fs::read_to_string);
    make(flags, &env, path, text, defaults)
}

/// Load the configuration from stored sources.
pub(super) fn load_again(sources: &Sources) -> Result<Loaded, ConfigErrors> {
    let (path, text) = sources.file.clone().unzip();
    make(&sources.flags(), &sources.env, path, text.map(Ok), &sources.defaults)
}

fn make(
    flags: &Flags,
    env: &BTreeMap<String, String>,
    path: Option<PathBuf>,
    text: Option<std::io::Result<String>>,
    defaults: &str,
) -> Result<Loaded, ConfigErrors> {
    let mut loading = Loading::new(flags, env, path);
    let mut root = loading.read_file(text.as_ref());
    if !defaults.is_empty() {
        let own = file::parse(Path::new("its own defaults"), defaults).map_err(ConfigErrors)?;
        root.complete(own.without_lines());
    }

    let mut config = Config::blank();
    loading.settings("", SETTINGS, &root, &mut config);
    loading.unknown_keys(
        "",
        &root,
        SETTINGS,
        &["smtp", "kinds", "alerts", "reports", "schedules", "outboxes", "compat"],
    );
    loading.usual_redis_prefix(&mut config);
    config.smtp = loading.smtp(&root);
    config.kinds = loading.kinds(&root);
    config.alerts = loading.alerts(&root);
    config.reports = loading.reports(&root);
    config.schedules = loading.schedules(&root);
    config.outboxes = loading.outboxes(&root, config.mysql_url.as_ref());
    config.compat = loading.compat(&root);
    if !loading.broken_file {
        loading.require(&config);
        loading.cross_checks(&config);
    }
    loading.odd_variables(&config);

    if loading.errors.is_empty() {
        let file = loading.path.clone().zip(text.and_then(Result::ok));
        let sources = Sources::new(flags, env, file, defaults);
        Ok(Loaded { config, origins: loading.origins, warnings: loading.warnings, sources })
    } else {
        Err(ConfigErrors(loading.errors))
    }
}

/// Return the defaults of the settings table.
pub(super) fn defaults() -> Config {
    let (mut config, flags, env) = (Config::blank(), Flags::default(), BTreeMap::new());
    let mut loading = Loading::new(&flags, &env, None);
    loading.settings("", SETTINGS, &Table::default(), &mut config);
    config.reports = loading.reports(&Table::default());
    debug_assert!(loading.errors.is_empty(), "a default of the table is wrong: {:?}", loading.errors);
    config
}

pub(super) struct Loading<'a> {
    flags: &'a Flags,
    env: &'a BTreeMap<String, String>,
    path: Option<PathBuf>,
    origins: Origins,
    pub(super) errors: Vec<ConfigError>,
    warnings: Vec<ConfigWarning>,
    /// Settings that already have an error. A check across settings would only repeat it.
    pub(super) failed: BTreeSet<String>,
    /// True if the file could not be used, so that missing settings cannot be determined.
    broken_file: bool,
}

impl<'a> Loading<'a> {
    fn new(flags: &'a Flags, env: &'a BTreeMap<String, String>, path: Option<PathBuf>) -> Loading<'a> {
        let (errors, warnings) = (Vec::new(), Vec::new());
        let (origins, failed) = (Origins::default(), BTreeSet::new());
        Loading { flags, env, path, origins, errors, warnings, failed, broken_file: false }
    }

    fn read_file(&mut self, text: Option<&std::io::Result<String>>) -> Table {
        let (Some(path), Some(text)) = (self.path.clone(), text) else { return Table::default() };
        match text {
            Ok(text) => file::parse(&path, text).unwrap_or_else(|errors| {
                self.errors.extend(errors);
                self.broken_file = true;
                Table::default()
            }),
            Err(error) => {
                let origin = if self.flags.config.is_some() {
                    SettingOrigin::Flag("--config".to_owned())
                } else if self.env.contains_key("TICKR_CONFIG") {
                    SettingOrigin::Environment("TICKR_CONFIG".to_owned())
                } else {
                    SettingOrigin::Default
                };
                let wrong = Wrong::new(format!("the file cannot be read: {error}"), "name a readable TOML file");
                self.fail("config", origin, Some(path.display().to_string()), wrong);
                self.broken_file = true;
                Table::default()
            }
        }
    }

    /// Parse one table of settings into its target.
    pub(super) fn settings<T>(&mut self, section: &str, settings: &[Setting<T>], table: &Table, target: &mut T) {
        for setting in settings {
            let name = full_name(section, setting.name);
            let (origin, text) = match self.find(section, setting, table) {
                (origin, Ok(text)) => (origin, text),
                (origin, Err(wrong)) => {
                    self.fail(&name, origin, None, wrong);
                    continue;
                }
            };
            let shown = text.as_deref().map(|text| setting.shown(text));
            if let Some(text) = &text
                && let Err(wrong) = (setting.set)(target, text)
            {
                self.fail(&name, origin, shown, wrong);
            } else {
                self.origins.add(Effective { setting: name, value: shown, origin }, text.as_deref());
            }
        }
    }

    /// Return the origin that decides a setting, and its value.
    fn find<T>(
        &self,
        section: &str,
        setting: &Setting<T>,
        table: &Table,
    ) -> (SettingOrigin, Result<Option<String>, Wrong>) {
        if setting.reach == Reach::Everywhere
            && let Some(text) = self.flags.values.get(setting.name)
        {
            return (SettingOrigin::Flag(setting.flag().unwrap_or_default()), Ok(Some(text.clone())));
        }
        let of_variable = |variable: String| {
            let text = self.env.get(&variable)?.clone();
            Some((SettingOrigin::Environment(variable), Ok(Some(text))))
        };
        if let Some(found) = setting.env(section).and_then(of_variable) {
            return found;
        }
        let entry = table.entries.get(setting.name);
        match entry.map(|entry| (self.at(entry.line), entry.node.text(setting.shape).map(Some))) {
            Some(of_file) if of_file.0 != SettingOrigin::Default => of_file,
            // The host sets this variable for all programs, so it decides only where tickr was not told otherwise.
            of_program => {
                let of_host = setting.also.map(str::to_owned).and_then(of_variable);
                let usual = || (SettingOrigin::Default, Ok(setting.default.map(str::to_owned)));
                of_host.or(of_program).unwrap_or_else(usual)
            }
        }
    }

    /// Make the default of `redis_prefix` follow `table_prefix`.
    fn usual_redis_prefix(&mut self, config: &mut Config) {
        let effective = self.origins.list.iter_mut().find(|effective| effective.setting == "redis_prefix");
        if let Some(effective) = effective.filter(|effective| effective.origin == SettingOrigin::Default) {
            config.redis_prefix = Config::usual_redis_prefix(&config.table_prefix);
            effective.value = Some(config.redis_prefix.clone());
        }
    }

    pub(super) fn unknown_keys<T>(&mut self, section: &str, table: &Table, settings: &[Setting<T>], sections: &[&str]) {
        let known: Vec<&str> = settings.iter().map(|setting| setting.name).chain(sections.iter().copied()).collect();
        for (key, entry) in &table.entries {
            if known.contains(&key.as_str()) {
                continue;
            }
            let right = match nearest(key, known.iter().copied()) {
                Some(near) => format!("did you mean {}?", full_name(section, near)),
                None => format!("the keys here are {}", known.join(", ")),
            };
            // Never include the value: a misspelt password is still a password.
            self.fail(&full_name(section, key), self.at(entry.line), None, Wrong::new("unknown key", right));
        }
    }

    fn require(&mut self, config: &Config) {
        let unknown = self.unknown_variables(config);
        for setting in SETTINGS.iter().filter(|setting| self.flags.required.contains(&setting.name)) {
            let given = self.origins.get(setting.name).is_none_or(|effective| effective.value.is_some());
            if !given {
                let (flag, env) = (setting.flag().unwrap_or_default(), setting.env("").unwrap_or_default());
                let mut right = format!("give {flag}, {env} or {} in the file", setting.name);
                if let Some((variable, _)) = unknown.iter().find(|(_, near)| near.as_ref() == Some(&env)) {
                    right.push_str(&format!("; no setting has the variable {variable}: did you mean {env}?"));
                }
                self.fail(setting.name, SettingOrigin::Default, None, Wrong::new("required but not set", right));
            }
        }
    }

    /// Check combinations of settings.
    fn cross_checks(&mut self, config: &Config) {
        let water = ["ready_low_water", "ready_high_water"];
        if !self.has_failed(&water) && config.ready_low_water >= config.ready_high_water {
            let right = format!("write a low water below the high water, which is {}", config.ready_high_water);
            self.fail_effective("ready_low_water", Wrong::new("not below ready_high_water", right));
        }
        self.check_redis_files(config);
        let servers = [("mysql_url", &config.mysql_url), ("reports.mysql_url", &config.reports.mysql_url)];
        let servers = servers.into_iter().filter_map(|(setting, url)| Some((setting.to_owned(), url.as_ref()?)));
        let outboxes = config.outboxes.iter();
        let outboxes = outboxes.map(|(name, outbox)| (format!("outboxes.{name}.mysql_url"), &outbox.mysql_url));
        for (setting, url) in servers.chain(outboxes) {
            // Reports may have a character set of their own. All other sessions are utf8mb4.
            if setting != "reports.mysql_url" && url.has_foreign_collation() {
                let right = "write one of utf8mb4, such as collation=utf8mb4_bin, or leave it out";
                self.fail_effective(&setting, Wrong::new("the collation is not one of utf8mb4", right));
            }
            if url.is_unverified() {
                self.warn(
                    &setting,
                    "connects to another machine without a check of the server's certificate, so that an attacker on \
                     the network could read and change the traffic; add ssl-mode=VERIFY_IDENTITY, and ssl-ca=FILE for a \
                     CA of your own, as in mysql://user:password@host/tickr?ssl-mode=VERIFY_IDENTITY",
                );
            }
        }
    }

    /// Check the files for TLS against each other and against the URL.
    fn check_redis_files(&mut self, config: &Config) {
        let Some(url) = &config.redis_url else { return };
        let files = [
            ("redis_ca_file", &config.redis_ca_file),
            ("redis_cert_file", &config.redis_cert_file),
            ("redis_key_file", &config.redis_key_file),
        ];
        for (setting, _) in files.into_iter().filter(|(_, file)| file.is_some() && !url.is_redis_with_tls()) {
            self.warn(
                setting,
                "has no effect, because redis_url has no TLS; for TLS begin it with rediss://, rediss+sentinel:// or \
                 rediss+cluster://",
            );
        }
        let (given, missing) = match (&config.redis_cert_file, &config.redis_key_file) {
            (Some(_), None) => ("redis_cert_file", "redis_key_file"),
            (None, Some(_)) => ("redis_key_file", "redis_cert_file"),
            _ => return,
        };
        if !self.has_failed(&[given, missing]) {
            self.fail_effective(given, Wrong::new(format!("{missing} is missing"), "set both files or neither"));
        }
    }

    /// Return the variables that no setting has, each with the variable of a setting with a similar name.
    fn unknown_variables(&self, config: &Config) -> Vec<(String, Option<String>)> {
        let flat = SETTINGS.iter().filter_map(|setting| setting.env(""));
        let smtp = SMTP.iter().filter_map(|setting| setting.env("smtp"));
        let reports = REPORTS.iter().filter_map(|setting| setting.env("reports"));
        let outboxes = config.outboxes.keys().flat_map(|name| {
            let section = full_name("outboxes", name.as_str());
            OUTBOX.iter().filter_map(move |setting| setting.env(&section))
        });
        let others = OTHER_VARIABLES.map(str::to_owned);
        let known: Vec<String> = flat.chain(smtp).chain(reports).chain(outboxes).chain(others).collect();
        let is_known = |variable: &String| {
            let is_of_others = SETTINGS.iter().any(|setting| setting.also == Some(variable.as_str()));
            known.contains(variable) || is_of_others || variable.starts_with(TEST_VARIABLES)
        };
        let near = |variable: &String| nearest(variable, known.iter().map(String::as_str)).map(str::to_owned);
        let unknown = self.env.keys().filter(|variable| !is_known(variable));
        unknown.map(|variable| (variable.clone(), near(variable))).collect()
    }

    fn odd_variables(&mut self, config: &Config) {
        for (variable, near) in self.unknown_variables(config) {
            let hint = near.map_or_else(|| "remove it".to_owned(), |near| format!("did you mean {near}?"));
            self.warn(&variable, &format!("no setting has this environment variable; {hint}"));
        }
        let has_smtp = config.smtp.is_some();
        let smtp = SMTP.iter().filter_map(|setting| setting.env("smtp"));
        for variable in smtp.filter(|variable| !has_smtp && self.env.contains_key(variable)).collect::<Vec<_>>() {
            self.warn(&variable, "has no effect without [smtp] in the file");
        }
    }

    pub(super) fn at(&self, line: usize) -> SettingOrigin {
        if line == 0 {
            return SettingOrigin::Default;
        }
        SettingOrigin::File { path: self.path.clone().unwrap_or_default(), line }
    }

    pub(super) fn has_failed(&self, settings: &[&str]) -> bool {
        settings.iter().any(|setting| self.failed.contains(*setting))
    }

    pub(super) fn warn(&mut self, setting: &str, message: &str) {
        self.warnings.push(ConfigWarning { setting: setting.to_owned(), message: message.to_owned() });
    }

    pub(super) fn fail(&mut self, setting: &str, origin: SettingOrigin, value: Option<String>, wrong: Wrong) {
        self.failed.insert(setting.to_owned());
        let Wrong { wrong, right } = wrong;
        self.errors.push(ConfigError { setting: setting.to_owned(), origin, value, wrong, right });
    }

    /// Report a problem of a setting that is valid on its own.
    pub(super) fn fail_effective(&mut self, setting: &str, wrong: Wrong) {
        let effective = self.origins.get(setting).cloned();
        let (value, origin) =
            effective.map_or((None, SettingOrigin::Default), |effective| (effective.value, effective.origin));
        self.fail(setting, origin, value, wrong);
    }
}

/// Return true if the variable belongs to a setting, or is a likely misspelling of one.
fn is_ours(variable: &str) -> bool {
    variable.starts_with("TICKR_") || SETTINGS.iter().any(|setting| setting.also == Some(variable))
}

pub(super) fn full_name(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}
