//! The command line flags of the settings, made from the settings table, and their values.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::setting::{FLAG_NAMES, Reach, Setting, Shape};
use super::settings::SETTINGS;
use super::{Config, FILE_NAME};

/// The values of flags on the command line.
#[derive(Clone, Default)]
pub struct Flags {
    pub(super) config: Option<PathBuf>,
    pub(super) values: BTreeMap<&'static str, String>,
    pub(super) required: Vec<&'static str>,
}

/// The settings for which a subcommand has flags.
#[derive(Debug, Clone, Copy)]
pub enum Subset<'a> {
    /// All of them, as for `serve`.
    All,
    /// All but these, by name.
    AllBut(&'a [&'a str]),
    /// Only these, by name: `&["mysql_url"]` for `migrate`.
    Only(&'a [&'a str]),
}

impl Flags {
    /// Add `--config` and a flag for each setting of the subset.
    ///
    /// clap's own support for environment variables is not used: it could not report where a value came from, and it
    /// would print secrets in the help.
    pub fn args(command: Command, subset: Subset<'_>) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .help(format!("Configuration file [env: TICKR_CONFIG] [default: {FILE_NAME} if it exists]"))
            .value_parser(clap::value_parser!(PathBuf));
        let wanted = |setting: &&Setting<Config>| match subset {
            Subset::All => true,
            Subset::AllBut(names) => !names.contains(&setting.name),
            Subset::Only(names) => names.contains(&setting.name),
        };
        let flags = SETTINGS.iter().filter(|setting| setting.reach == Reach::Everywhere).filter(wanted);
        command.arg(config).args(flags.map(arg))
    }

    /// Read the values of a command with [`Flags::args`].
    pub fn from_matches(matches: &ArgMatches) -> Flags {
        // A subcommand has only some of the flags. clap returns an error for the others, which means "not given".
        let given = |setting: &Setting<Config>| {
            let values = matches.try_get_many::<String>(setting.name).ok()??;
            Some((setting.name, values.cloned().collect::<Vec<_>>().join(",")))
        };
        let config = matches.try_get_one::<PathBuf>("config").ok().flatten().cloned();
        Flags { config, values: SETTINGS.iter().filter_map(given).collect(), required: Vec::new() }
    }

    /// Require these settings. A missing one is reported together with all other problems.
    pub fn requiring(mut self, settings: &[&'static str]) -> Flags {
        self.required.extend(settings);
        self
    }

    /// Set a flag as if it were on the command line. An unknown name is a programming error and is ignored in release
    /// builds.
    pub fn with(mut self, setting: &'static str, value: impl Into<String>) -> Flags {
        debug_assert!(SETTINGS.iter().any(|known| known.name == setting), "no setting is called {setting}");
        self.values.insert(setting, value.into());
        self
    }

    /// Set the configuration file, as `--config` does.
    pub fn with_config(mut self, file: impl Into<PathBuf>) -> Flags {
        self.config = Some(file.into());
        self
    }
}

/// Shows only names, because a flag may contain a password.
impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given: Vec<&str> = self.values.keys().copied().collect();
        f.debug_struct("Flags")
            .field("config", &self.config)
            .field("given", &given)
            .field("required", &self.required)
            .finish()
    }
}

fn arg(setting: &Setting<Config>) -> Arg {
    let flag = FLAG_NAMES.get(setting.name).map_or(setting.name, String::as_str);
    let env = setting.env("").map(|env| format!(" [env: {env}]")).unwrap_or_default();
    let default = setting.default.map(|default| format!(" [default: {default}]")).unwrap_or_default();
    let arg =
        Arg::new(setting.name).long(flag).value_name(setting.value).help(format!("{}{env}{default}", setting.doc));
    match setting.shape {
        Shape::One => arg.action(ArgAction::Set),
        Shape::List | Shape::Pairs => arg.action(ArgAction::Append),
        Shape::Switch => arg.action(ArgAction::Set).num_args(0..=1).require_equals(true).default_missing_value("true"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(subset: Subset<'_>, args: &[&str]) -> Result<Flags, clap::Error> {
        let command = Flags::args(Command::new("tickr"), subset);
        Ok(Flags::from_matches(&command.try_get_matches_from([&["tickr"], args].concat())?))
    }

    #[test]
    fn every_setting_has_its_flag_with_help() {
        let mut command = Flags::args(Command::new("tickr"), Subset::All);
        command.clone().debug_assert();
        let help = command.render_long_help().to_string();
        for setting in SETTINGS {
            assert!(help.contains(&setting.flag().unwrap()), "{}", setting.name);
            assert!(help.contains(&setting.env("").unwrap()) && help.contains(setting.doc), "{}", setting.name);
        }
        assert!(help.contains("--config <FILE>"));
    }

    #[test]
    fn given_flags_are_kept_and_others_are_not() {
        let args = ["--workers", "8", "--queues=a,b", "--queues", "c", "--test-kinds", "--config", "x.toml"];
        let flags = flags(Subset::All, &args).unwrap();
        let given: Vec<(&str, &str)> = flags.values.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(given, [("queues", "a,b,c"), ("test_kinds", "true"), ("workers", "8")]);
        assert_eq!(flags.config, Some("x.toml".into()));
        assert_eq!(
            super::super::tests::load_flags(&Flags { config: None, ..flags }.with("workers", "9")).config.workers,
            9
        );
    }

    #[test]
    fn a_switch_can_be_turned_off_and_does_not_eat_the_next_word() {
        assert_eq!(flags(Subset::All, &["--test-kinds=false"]).unwrap().values["test_kinds"], "false");
        let matches = Flags::args(Command::new("tickr").arg(Arg::new("rest")), Subset::All)
            .try_get_matches_from(["tickr", "--test-kinds", "word"])
            .unwrap();
        assert_eq!(matches.get_one::<String>("rest").unwrap(), "word");
    }

    #[test]
    fn a_subset_refuses_the_other_flags() {
        let subset = Subset::Only(&["mysql_url"]);
        assert!(flags(subset, &["--mysql-url", "mysql://h/d"]).is_ok());
        assert!(flags(subset, &["--workers", "8"]).is_err());
    }

    #[test]
    fn the_others_of_a_subset_have_flags() {
        let subset = Subset::AllBut(&["mysql_url"]);
        assert!(flags(subset, &["--mysql-url", "mysql://h/d"]).is_err());
        assert!(flags(subset, &["--workers", "8"]).is_ok());
    }

    #[test]
    fn debug_shows_names_only() {
        let flags = Flags::default().with("mysql_url", "mysql://u:canary@h/d").with("api_tokens", "canary");
        let debug = format!("{flags:?}");
        assert!(debug.contains("mysql_url") && !debug.contains("canary"), "{debug}");
    }
}
