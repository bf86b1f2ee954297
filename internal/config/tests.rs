//! Tests of the whole configuration: precedence, all problems at once, and no secret in printable output.

use std::path::{Path, PathBuf};

use tickr_job::{OnFailure, Tag};

use super::*;

fn env(pairs: &[(&str, &str)]) -> impl Iterator<Item = (String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>().into_iter()
}

/// Write a file that exists until the test ends.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tickr.toml");
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

fn load_file(text: &str) -> Result<Loaded, ConfigErrors> {
    let (_dir, path) = file(text);
    Config::load(&Flags::default(), env(&[]), Some(path))
}

pub(super) fn load_flags(flags: &Flags) -> Loaded {
    Config::load(flags, env(&[]), None).unwrap()
}

/// Return the settings with errors, in order.
fn at_fault(result: Result<Loaded, ConfigErrors>) -> Vec<String> {
    result.unwrap_err().0.into_iter().map(|error| error.setting).collect()
}

const KEY_A: &str = "whsec_QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB";
const KEY_B: &str = "whsec_QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJC";
const KEY_C: &str = "whsec_Q0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0ND";

/// Return three valid values for each setting that differ in the typed configuration.
fn samples(name: &str) -> [&'static str; 3] {
    match name {
        "mysql_url" => ["mysql://a@localhost/d", "mysql://b@localhost/d", "mysql://c@localhost/d"],
        "redis_url" => ["redis://a", "redis://b", "redis://c"],
        "http_addr" => ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"],
        "queues" | "table_prefix" | "redis_prefix" | "outbox_dir" | "reports_dir" | "callback_ca_file"
        | "redis_ca_file" | "redis_cert_file" | "redis_key_file" => ["qa", "qb", "qc"],
        "lease"
        | "shutdown_grace"
        | "shutdown_notice"
        | "horizon"
        | "retention_completed"
        | "retention_failed"
        | "retention_discarded"
        | "retention_cancelled"
        | "retention_audit"
        | "retention_ticks"
        | "http_header_timeout"
        | "http_body_timeout"
        | "http_write_timeout"
        | "http_idle_timeout"
        | "callback_timeout"
        | "retention_idempotency" => ["11s", "12s", "13s"],
        "purge_hours" => ["01:00-02:00", "01:00-03:00", "22:00-04:00"],
        "body_limit" => ["11KiB", "12KiB", "13KiB"],
        "workers" | "mysql_connections" | "index_partitions" | "http_connections" | "http_streams" | "http_polls" => {
            ["11", "12", "13"]
        }
        "http_hosts" => ["a.internal", "a.internal,b", "c"],
        "ready_high_water" => ["20001", "20002", "20003"],
        "ready_low_water" => ["101", "102", "103"],
        "log" => ["debug", "warn", "error"],
        "log_format" => ["json", "text", "json"],
        "attempt_log" => ["debug", "warn", "off"],
        "attempt_log_keep" => ["failed", "all", "failed"],
        "otlp_endpoint" => ["http://a:1", "https://b", "http://c/d"],
        "otlp_headers" => ["a=1", "a=1,b=2", "c=3"],
        "otlp_sample" => ["0.25", "0.5", "0.75"],
        "otlp_service" => ["sa", "sb", "sc"],
        "api_tokens" => [
            "token-of-the-first-one",
            "token-of-the-first-one,token-of-the-second-one",
            "token-of-the-first-one,token-of-the-second-one,token-of-the-third-one",
        ],
        "email_senders" | "email_recipients" => ["a.example", "a.example,b@c.example", "c.example"],
        "callback_secret" => [KEY_A, KEY_B, KEY_C],
        "callback_host_secrets" => [
            "a.example=whsec_QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB",
            "b.example=whsec_QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJC",
            "c.example=whsec_Q0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0NDQ0ND",
        ],
        "callback_allow" => ["10.0.0.0/8", "10.0.0.0/8,a.internal", "*.b"],
        "held" | "strict_durability" | "callback_allow_private" | "test_kinds" => ["true", "false", "true"],
        other => panic!("add samples for {other}"),
    }
}

/// Return the typed value of a setting, without masks.
fn typed(config: &Config, name: &str) -> String {
    use secrecy::ExposeSecret;
    match name {
        "mysql_url" => config.mysql_url.as_ref().map(|url| url.expose().to_owned()).unwrap_or_default(),
        "redis_url" => config.redis_url.as_ref().map(|url| url.expose().to_owned()).unwrap_or_default(),
        "http_addr" => config.http_addr.to_string(),
        "queues" => config.queues.join(","),
        "table_prefix" => config.table_prefix.to_string(),
        "redis_prefix" => config.redis_prefix.clone(),
        "index_partitions" => config.index_partitions.to_string(),
        "outbox_dir" => config.outbox_dir.as_deref().map(|dir| dir.display().to_string()).unwrap_or_default(),
        "callback_ca_file" => {
            config.callback_ca_file.as_deref().map(|file| file.display().to_string()).unwrap_or_default()
        }
        "redis_ca_file" => config.redis_ca_file.as_deref().map(|file| file.display().to_string()).unwrap_or_default(),
        "redis_cert_file" => {
            config.redis_cert_file.as_deref().map(|file| file.display().to_string()).unwrap_or_default()
        }
        "redis_key_file" => config.redis_key_file.as_deref().map(|file| file.display().to_string()).unwrap_or_default(),
        "callback_timeout" => duration::show(config.callback_timeout),
        "reports_dir" => config.reports_dir.display().to_string(),
        "lease" => duration::show(config.lease),
        "shutdown_grace" => duration::show(config.shutdown_grace),
        "shutdown_notice" => duration::show(config.shutdown_notice),
        "horizon" => duration::show(config.horizon),
        "retention_completed" => duration::show(config.retention_completed),
        "retention_failed" => duration::show(config.retention_failed),
        "retention_discarded" => duration::show(config.retention_discarded),
        "retention_cancelled" => config.retention_cancelled.map(duration::show).unwrap_or_default(),
        "purge_hours" => config.purge_hours.map(|hours| hours.to_string()).unwrap_or_default(),
        "retention_idempotency" => duration::show(config.retention_idempotency),
        "retention_audit" => duration::show(config.retention_audit),
        "retention_ticks" => duration::show(config.retention_ticks),
        "http_hosts" => config.http_hosts.join(","),
        "email_senders" => config.email_senders.join(","),
        "email_recipients" => config.email_recipients.join(","),
        "http_connections" => config.http_connections.to_string(),
        "http_streams" => config.http_streams.to_string(),
        "http_polls" => config.http_polls.to_string(),
        "http_header_timeout" => duration::show(config.http_header_timeout),
        "http_body_timeout" => duration::show(config.http_body_timeout),
        "http_write_timeout" => duration::show(config.http_write_timeout),
        "http_idle_timeout" => duration::show(config.http_idle_timeout),
        "body_limit" => size::show(config.body_limit_bytes as u64),
        "workers" => config.workers.to_string(),
        "mysql_connections" => config.mysql_connections.to_string(),
        "ready_high_water" => config.ready_high_water.to_string(),
        "ready_low_water" => config.ready_low_water.to_string(),
        "log" => config.log.clone(),
        "log_format" => if config.log_format == LogFormat::Json { "json" } else { "text" }.to_owned(),
        "attempt_log" => config.attempt_log.to_string(),
        "attempt_log_keep" => if config.attempt_log_keep == KeptLogs::All { "all" } else { "failed" }.to_owned(),
        "otlp_endpoint" => config.otlp_endpoint.clone().unwrap_or_default(),
        "otlp_headers" => {
            let pair = |(name, value): &(String, SecretString)| format!("{name}={}", value.expose_secret());
            config.otlp_headers.iter().map(pair).collect::<Vec<_>>().join(",")
        }
        "otlp_sample" => config.otlp_sample.to_string(),
        "otlp_service" => config.otlp_service.clone(),
        "api_tokens" => config.api_tokens.iter().map(ExposeSecret::expose_secret).collect::<Vec<_>>().join(","),
        "callback_secret" => {
            use base64::Engine as _;
            let encode = |key: &CallbackSecret| base64::engine::general_purpose::STANDARD.encode(key.expose());
            config.callback_secret.iter().map(|key| format!("whsec_{}", encode(key))).collect::<Vec<_>>().join(",")
        }
        "callback_host_secrets" => {
            let pair = |one: &HostSecrets| format!("{}={}", one.host, one.secrets[0].show());
            config.callback_host_secrets.iter().map(pair).collect::<Vec<_>>().join(",")
        }
        "held" => config.held.to_string(),
        "strict_durability" => config.strict_durability.to_string(),
        "callback_allow" => config.callback_allow.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        "callback_allow_private" => config.callback_allow_private.to_string(),
        "test_kinds" => config.test_kinds.to_string(),
        other => panic!("add {other}"),
    }
}

#[test]
fn flag_beats_environment_beats_file_beats_default_for_every_setting() {
    for setting in SETTINGS {
        let name = setting.name;
        let [flag, variable, line] = samples(name);
        let (_dir, path) = file(&format!("# the first line\n{name} = \"{line}\"\n"));
        let variable_name = setting.env("").unwrap();
        let loaded = |flags: Flags, variables: &[(&str, &str)], file: Option<&Path>| {
            let loaded =
                Config::load(&flags, env(variables), file.map(Into::into)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
            let origin = loaded.origins.get(name).unwrap().origin.clone();
            (typed(&loaded.config, name), origin)
        };
        let environment: &[(&str, &str)] = &[(&variable_name, variable)];

        let (value, origin) = loaded(Flags::default().with(name, flag), environment, Some(&path));
        assert_eq!((value.as_str(), origin), (flag, SettingOrigin::Flag(setting.flag().unwrap())), "{name}");
        let (value, origin) = loaded(Flags::default(), environment, Some(&path));
        assert_eq!((value.as_str(), origin), (variable, SettingOrigin::Environment(variable_name.clone())), "{name}");
        let (value, origin) = loaded(Flags::default(), &[(&variable_name, "")], Some(&path));
        assert_eq!((value.as_str(), origin), (line, SettingOrigin::File { path: path.clone(), line: 2 }), "{name}");
        let (value, origin) = loaded(Flags::default(), &[], None);
        assert_eq!((value.as_str(), origin), (setting.default.unwrap_or(""), SettingOrigin::Default), "{name}");
    }
}

#[test]
fn the_file_is_named_by_flag_then_environment_then_the_caller() {
    let (_a, flag) = file("workers = 1");
    let (_b, variable) = file("workers = 2");
    let (_c, usual) = file("workers = 3");
    let named: &[(&str, &str)] = &[("TICKR_CONFIG", variable.to_str().unwrap())];
    let workers = |flags: Flags, variables: &[(&str, &str)], file: Option<PathBuf>| {
        Config::load(&flags, env(variables), file).unwrap().config.workers
    };
    assert_eq!(workers(Flags::default().with_config(&flag), named, Some(usual.clone())), 1);
    assert_eq!(workers(Flags::default(), named, Some(usual.clone())), 2);
    assert_eq!(workers(Flags::default(), &[], Some(usual)), 3);
    assert_eq!(workers(Flags::default(), &[], None), 64);

    let error = Config::load(&Flags::default().with_config("/nowhere/t.toml"), env(&[]), None).unwrap_err();
    assert_eq!(error.0[0].origin, SettingOrigin::Flag("--config".to_owned()));
}

#[test]
fn numbers_switches_and_lists_have_their_own_spelling_in_the_file() {
    let loaded =
        load_file("workers = 8\ntest_kinds = true\nqueues = [\"mail\", \"reports\"]\nbody_limit = 65536").unwrap();
    let config = loaded.config;
    assert_eq!((config.workers, config.test_kinds, config.body_limit_bytes), (8, true, 65_536));
    assert_eq!(config.queues, ["mail", "reports"]);
}

#[test]
fn a_file_with_six_mistakes_yields_six_messages() {
    let (_dir, path) = file(
        "workers = 5000\nlease = 30\nqueues = [\"mail\", \"Mail!\"]\nworker = 4\nlog_format = \"xml\"\nmysql_url = \"mysql://u:canary\"\n",
    );
    let errors = Config::load(&Flags::default(), env(&[]), Some(path.clone())).unwrap_err();
    let text = errors.to_string().replace(path.to_str().unwrap(), "tickr.toml");
    let expected = [
        "the configuration has 6 problems:",
        "  mysql_url = \"mysql://***\" (tickr.toml line 6): the port is not a port number; percent-encode / ? # @ : % in a password, for example # as %23",
        "  workers = \"5000\" (tickr.toml line 1): out of range; write a number from 0 to 4096",
        "  queues = \"mail,Mail!\" (tickr.toml line 3): entry 2: not a usable name; write 1 to 64 of a-z, 0-9, _, . and -, beginning with a letter or digit",
        "  lease = \"30\" (tickr.toml line 2): the unit is missing, which is one of ms, s, m, h, d; write a duration from 2s to 1h, like 250ms, 30s, 15m, 24h or 7d",
        "  log_format = \"xml\" (tickr.toml line 5): not a permitted value; write one of text, json",
        "  worker (tickr.toml line 4): unknown key; did you mean workers?",
    ];
    assert_eq!(text, expected.join("\n"));
}

#[test]
fn problems_of_all_layers_are_reported_together() {
    let (_dir, path) = file("lease = \"1ms\"");
    let flags = Flags::default().with("workers", "many").requiring(&["mysql_url", "redis_url"]);
    let errors =
        Config::load(&flags, env(&[("TICKR_HORIZON", "5s"), ("TICKR_MYSQL_URL", "")]), Some(path)).unwrap_err();
    let text = errors.to_string();
    for part in [
        "workers = \"many\" (flag --workers)",
        "horizon = \"5s\" (environment TICKR_HORIZON): out of range; write a duration from 10s to 1d",
        "lease = \"1ms\"",
        "mysql_url (default): required but not set; give --mysql-url, TICKR_MYSQL_URL or mysql_url in the file",
        "redis_url (default): required but not set",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn a_broken_file_hides_nothing_of_the_other_layers_and_causes_no_guesses() {
    let (_dir, path) = file("mysql_url = \"mysql://h/d\nready_low_water = [");
    let flags = Flags::default().with("workers", "many").requiring(&["mysql_url"]);
    let errors = Config::load(&flags, env(&[("TICKR_READY_LOW_WATER", "20000")]), Some(path)).unwrap_err();
    assert!(errors.0.iter().any(|error| error.wrong.starts_with("not valid TOML")), "{errors}");
    let others: Vec<&str> = errors.0.iter().map(|e| e.setting.as_str()).filter(|name| *name != "config").collect();
    assert_eq!(others, ["workers"]);
}

#[test]
fn a_required_setting_that_is_broken_is_reported_once() {
    let flags = Flags::default().with("mysql_url", "nonsense").requiring(&["mysql_url"]);
    assert_eq!(at_fault(Config::load(&flags, env(&[]), None)), ["mysql_url"]);
}

#[test]
fn checks_across_settings_wait_for_both_to_be_right_alone() {
    assert_eq!(at_fault(load_file("ready_low_water = 10000")), ["ready_low_water"]);
    assert_eq!(at_fault(load_file("ready_low_water = 20000\nready_high_water = \"x\"")), ["ready_high_water"]);
    assert!(load_file("ready_low_water = 20000\nready_high_water = 20001").is_ok());
}

#[test]
fn the_files_for_redis_need_tls_and_the_key_belongs_to_a_certificate() {
    let load = |url: &str, files: &str| load_file(&format!("redis_url = \"{url}\"\n{files}"));
    let with = |url: &str, files: &str| at_fault(load(url, files));
    let all = "redis_ca_file = \"a\"\nredis_cert_file = \"b\"\nredis_key_file = \"c\"\n";
    let warned = |url: &str| {
        let warnings = load(url, all).unwrap().warnings.into_iter();
        warnings.map(|warning| warning.setting).collect::<Vec<_>>()
    };
    assert_eq!(warned("redis://h"), ["redis_ca_file", "redis_cert_file", "redis_key_file"]);
    assert_eq!(warned("redis+sentinel://h/main"), ["redis_ca_file", "redis_cert_file", "redis_key_file"]);
    assert_eq!(with("rediss://h", "redis_cert_file = \"b\""), ["redis_cert_file"]);
    assert_eq!(with("rediss+cluster://h", "redis_key_file = \"c\""), ["redis_key_file"]);
    assert_eq!(with("redis+cluster://h/1", all), ["redis_url"]);
    for url in ["rediss://h", "rediss+sentinel://h/main", "rediss+cluster://h"] {
        assert!(warned(url).is_empty(), "{url}");
    }
}

#[test]
fn unknown_variables_warn_and_known_others_do_not() {
    let known = [("TICKR_CONFIG", ""), ("TICKR_MYSQLD", "/x"), ("TICKR_SERVERS", "x"), ("TICKR_TEST_MYSQL_URL", "x")];
    let odd = [("TICKR_WORKER", "8"), ("TICKR_ZEBRA", "1"), ("HOME", "/"), ("TICKR_SMTP_PASSWORD", "canary")];
    let loaded = Config::load(&Flags::default(), env(&[&known[..], &odd[..]].concat()), None).unwrap();
    let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "TICKR_WORKER: no setting has this environment variable; did you mean TICKR_WORKERS?",
            "TICKR_ZEBRA: no setting has this environment variable; remove it",
            "TICKR_SMTP_PASSWORD: has no effect without [smtp] in the file",
        ]
    );
}

const CANARIES: &str = r#"
mysql_url = "mysql://app:canary1@db/tickr?ssl-mode=DISABLED&ssl-key=canary2"
redis_url = "rediss://:canary3@cache/0"
api_tokens = ["canary4-canary4-canary4", "canary5-canary5-canary5"]
callback_secret = "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5"

[callback_host_secrets]
"shop.example" = "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ6"
partner.example = ["whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ7", "whsec_Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ8"]

[smtp]
host = "mail.example.com"
username = "app"
password = "canary6"

[reports]
mysql_url = "mysql://reader:canary7@db/tickr"

[outboxes.shop]
mysql_url = "mysql://mover:canary8@shop/shop"
"#;

fn assert_no_canary(text: &str) {
    assert!(!text.contains("canary") && !text.contains("Y2FuYXJ5") && !text.contains("99, 97, 110"), "{text}");
}

#[test]
fn secrets_never_show_in_what_was_loaded() {
    let loaded = load_file(CANARIES).unwrap();
    assert_no_canary(&format!("{loaded:?} {:#?} {}", loaded.config, loaded.origins));
    assert_eq!(loaded.origins.get("smtp.password").unwrap().value.as_deref(), Some("***"));
    let shown = loaded.origins.get("mysql_url").unwrap().value.clone().unwrap();
    assert_eq!(shown, "mysql://app:***@db/tickr?ssl-mode=DISABLED&ssl-key=***");
    let used = "mysql://app:canary1@db/tickr?ssl-mode=DISABLED&ssl-key=canary2";
    assert_eq!(loaded.config.mysql_url().unwrap().expose(), used);
    assert_eq!(loaded.config.callback_secret[0].expose(), b"canarycanarycanarycanary");
    assert_eq!(loaded.origins.get("callback_host_secrets").unwrap().value.as_deref(), Some("***"));
    let hosts = &loaded.config.callback_host_secrets;
    let hosts: Vec<_> = hosts.iter().map(|one| (one.host.to_string(), one.secrets.len())).collect();
    assert_eq!(hosts, [("partner.example".to_owned(), 2), ("shop.example".to_owned(), 1)]);
}

#[test]
fn secrets_never_show_in_errors() {
    let broken = CANARIES
        .replace("mysql://app:canary1", "mysql://app:can/canary1")
        .replace("rediss://:", "redis:/")
        .replace("canary4-", "canary 4")
        .replace("whsec_", "")
        .replace("canary6", "canary\\u00006")
        .replace("mysql://reader", "http://reader")
        .replace("mysql://mover:", "mysql://mover:/");
    let errors = load_file(&broken).unwrap_err();
    assert_eq!(errors.0.len(), 8, "{errors}");
    assert_no_canary(&format!("{errors} {errors:?}"));
    // Neither a misspelt name nor a value in the wrong position may print the value.
    let errors =
        load_file("mysql_ulr = \"mysql://u:canary@h/d\"\nsmtp = \"canary\"\nlog = [\"canary\", \"b\"]").unwrap_err();
    assert_eq!(errors.0.len(), 3, "{errors}");
    assert_no_canary(&format!("{errors} {errors:?}"));
}

#[test]
fn smtp_has_usual_ports_and_its_password_may_come_from_the_environment() {
    let (_dir, path) =
        file("[smtp]\nhost = \"mail\"\nusername = \"app\"\ntls = \"tls\"\nfrom = \"Jobs <jobs@example.com>\"\n");
    let loaded = Config::load(&Flags::default(), env(&[("TICKR_SMTP_PASSWORD", "secret")]), Some(path)).unwrap();
    let smtp = loaded.config.smtp.unwrap();
    assert_eq!((smtp.port, smtp.tls, smtp.connections), (465, SmtpTls::Tls, 4));
    assert!(smtp.password.is_some() && loaded.warnings.is_empty());
    assert_eq!(smtp.timeout, Duration::from_secs(30));
    assert_eq!(load_file("[smtp]\nhost = \"mail\"").unwrap().config.smtp.unwrap().port, 587);
    assert!(load_file("").unwrap().config.smtp.is_none());
}

#[test]
fn smtp_mistakes_are_named() {
    assert_eq!(at_fault(load_file("[smtp]\nport = 25")), ["smtp.host"]);
    assert_eq!(at_fault(load_file("[smtp]\nhost = \"mail\"\nusername = \"app\"")), ["smtp.password"]);
    assert_eq!(
        at_fault(load_file("[smtp]\nhost = \"mail:25\\n\"\ntls = \"ssl\"\nuser = \"x\"")),
        ["smtp.host", "smtp.tls", "smtp.user"]
    );
    for (host, is_host) in [
        ("mail.example.com", true),
        ("127.0.0.1", true),
        ("fd00::7", true),
        ("[fd00::7]", true),
        ("mail.example.com:587", false),
        ("127.0.0.1:25", false),
        ("[fd00::7]:25", false),
        ("[mail]", false),
        ("fd00::7::1", false),
    ] {
        let loaded = load_file(&format!("[smtp]\nhost = \"{host}\""));
        assert_eq!(loaded.is_ok(), is_host, "{host}");
    }
    let clear = "[smtp]\nhost = \"mail\"\nusername = \"a\"\npassword = \"b\"\ntls = \"none\"";
    assert_eq!(load_file(clear).unwrap().warnings[0].setting, "smtp.tls");
}

#[test]
fn each_section_of_alerts_has_a_threshold() {
    let alerts = "[alerts]\nurl = \"https://example.com/hook\"\n";
    assert_eq!(at_fault(load_file(alerts)), ["alerts"]);
    for all in ["", "dead_letters = 9\n"] {
        let one = |keys: &str| load_file(&format!("{alerts}{all}[alerts.kinds.email]\n{keys}"));
        assert_eq!(at_fault(one("")), ["alerts.kinds.email"]);
        assert_eq!(at_fault(one("dead_letters = 0")), ["alerts.kinds.email.dead_letters"]);
        assert_eq!(at_fault(one("dead_leters = 1")), ["alerts.kinds.email.dead_leters"]);
        assert!(one("dead_letter_age = \"1h\"").is_ok());
    }
}

#[test]
fn kinds_override_what_they_name() {
    let config =
        load_file("[kinds.email]\nmax_attempts = 8\nretry_base = \"2s\"\nretry_factor = 1.5\n").unwrap().config;
    let email = &config.kinds["email"];
    assert_eq!((email.max_attempts, email.retry_base), (Some(8), Some(Duration::from_secs(2))));
    assert_eq!((email.retry_factor, email.timeout), (Some(1.5), None));
    let mistakes = "[kinds]\nx = 1\n[kinds.Bad]\n[kinds.http]\nretry_base = \"2m\"\nretry_cap = \"1m\"\nretries = 4\n";
    assert_eq!(at_fault(load_file(mistakes)), ["kinds.Bad", "kinds.x", "kinds.http.retries", "kinds.http"]);
}

const REPORT: &str = r#"
[reports]
max_rows = 5000

[reports.queries.by_state]
title = "Jobs by state"
sql = """
SELECT state, COUNT(*) FROM jobs -- since :when?
WHERE created_at >= :since AND queue = :queue AND created_at >= :since
GROUP BY state;
"""
params = [{ name = "queue", type = "enum", values = ["mail", "default"], default = "default" }]

[[reports.queries.by_state.params]]
"#;

#[test]
fn reports_come_translated_with_checked_parameters() {
    let inline = REPORT.replace("\n[[reports.queries.by_state.params]]\n", "");
    let text = inline.replace(
        "default = \"default\" }]",
        "default = \"default\" }, { name = \"since\", type = \"timestamp\", min = 2020-01-01T00:00:00Z }]",
    );
    let reports = load_file(&text).unwrap().config.reports;
    assert_eq!((reports.max_rows, reports.connections, reports.max_bytes), (5_000, 2, 256 << 20));
    assert_eq!((reports.share_up_to, reports.keep), (32 << 20, None));
    let query = &reports.queries["by_state"];
    assert_eq!(query.statement.params, ["since", "queue", "since"]);
    assert!(query.statement.sql.contains("-- since :when?") && query.statement.sql.ends_with("GROUP BY state"));
    assert_eq!(query.param("queue").unwrap().default, Some(ParamValue::String("default".to_owned())));
    assert!(query.param("since").unwrap().required && query.param("since").unwrap().min.is_some());
}

#[test]
fn parameters_may_be_written_as_tables() {
    let text = "[reports.queries.q]\ntitle = \"Q\"\nsql = \"SELECT :n\"\n[[reports.queries.q.params]]\nname = \"n\"\ntype = \"integer\"\ndefault = 7\n";
    let query = load_file(text).unwrap().config.reports.queries.remove("q").unwrap();
    assert_eq!(query.param("n").unwrap().value(None), Ok(ParamValue::Integer(7)));
}

#[test]
fn report_mistakes_are_named_with_their_key() {
    for (text, expected) in [
        ("", vec!["reports.queries.q.title", "reports.queries.q.sql"]),
        ("title = \"Q\"\nsql = \"DELETE FROM jobs\"", vec!["reports.queries.q.sql"]),
        ("title = \"Q\"\nsql = \"SELECT :a, :a, :b\"", vec!["reports.queries.q.sql", "reports.queries.q.sql"]),
        (
            "title = \"Q\"\nsql = \"SELECT 1\"\nparams = [{ name = \"n\", type = \"date\" }]",
            vec!["reports.queries.q.params"],
        ),
        (
            "title = \"Q\"\nsql = \"SELECT :n\"\nparams = [{ name = \"n\", type = \"data\" }]",
            vec!["reports.queries.q.params[0].type"],
        ),
        (
            "title = \"Q\"\nsql = \"SELECT :n\"\nparams = [{ name = \"n\", type = \"integer\", default = \"x\" }]",
            vec!["reports.queries.q.params[0].default"],
        ),
        (
            "title = \"Q\"\nsql = \"SELECT :n\"\nparam = [{ name = \"n\", type = \"date\" }]",
            vec!["reports.queries.q.param", "reports.queries.q.sql"],
        ),
    ] {
        assert_eq!(at_fault(load_file(&format!("[reports.queries.q]\n{text}\n"))), expected, "{text}");
    }
}

#[test]
fn defaults_of_a_program_stand_below_everything_else_and_are_handed_on() {
    let own = "workers = 7\nlease = \"7s\"\nhorizon = \"7m\"\noutbox_dir = \"canary\"\n[reports.queries.q]\ntitle = \"Own\"\n\
               sql = \"SELECT 1\"\n[reports.queries.other]\ntitle = \"Own\"\nsql = \"SELECT 1\"\n";
    let (_dir, path) = file("horizon = \"3m\"\n[reports.queries.q]\ntitle = \"Q\"\nsql = \"SELECT 2\"\n");
    let flags = Flags::default().with("workers", "1");
    let environment: &[(&str, &str)] = &[("TICKR_LEASE", "2s")];
    let loaded = Config::load_with_defaults(&flags, env(environment), Some(path.clone()), own).unwrap();
    let check = |config: &Config| {
        let typed = ["workers", "lease", "horizon", "outbox_dir"].map(|name| typed(config, name));
        assert_eq!(typed, ["1", "2s", "3m", "canary"]);
        let titles: Vec<&str> = config.reports.queries.values().map(|query| query.title.as_str()).collect();
        assert_eq!(titles, ["Own", "Q"]);
    };
    check(&loaded.config);
    let origin = |name: &str| loaded.origins.get(name).unwrap().origin.clone();
    assert_eq!(origin("outbox_dir"), SettingOrigin::Default);
    assert_eq!(origin("horizon"), SettingOrigin::File { path, line: 1 });
    // A process that receives the sources loads the same configuration, and their Debug form shows no values.
    let handed: Sources = serde_json::from_str(&serde_json::to_string(&loaded.sources).unwrap()).unwrap();
    check(&Config::load_again(&handed).unwrap().config);
    assert_no_canary(&format!("{:?}", loaded.sources));
    assert!(Config::load_with_defaults(&flags, env(&[]), None, "workers = ").is_err());
}

#[test]
fn schedules_are_read_and_every_mistake_in_them_is_named_with_its_key() {
    let loaded = load_file(
        "[schedules.nightly]\ncron = \"30 2 * * *\"\nzone = \"Europe/Warsaw\"\ndst = \"skip\"\nkind = \"sleep\"\n\
         payload = '{\"canary\": 1}'\nmisfire_grace = \"1m\"\nretry_base = \"2s\"\n\
         order_key = \"customer:42\"\non_failure = \"skip\"\nlimit_key = \"tenant:7\"\nexpires_in = \"1h\"\n\
         tags = [\"nightly\", \"tenant:7\"]\n\
         [schedules.often]\nevery = \"90s\"\nkind = \"noop\"\n",
    )
    .unwrap();
    let schedules = &loaded.config.schedules;
    let nightly = &schedules.get("nightly").unwrap().schedule;
    assert_eq!(nightly.cadence.describe(), "At 02:30 (Europe/Warsaw)");
    assert_eq!((nightly.grace, nightly.template.payload.get()), (Duration::from_secs(60), "{\"canary\": 1}"));
    assert_eq!(nightly.template.retry.clone().and_then(|retry| retry.base_ms), Some(2_000));
    let template = &nightly.template;
    let order = template.order.clone().map(|order| (order.key, order.on_failure));
    assert_eq!(order, Some(("customer:42".to_owned(), OnFailure::Skip)));
    assert_eq!((template.limit_key.as_deref(), template.expires_in_ms), (Some("tenant:7"), Some(3_600_000)));
    assert_eq!(template.tags.iter().map(Tag::as_str).collect::<Vec<_>>(), ["nightly", "tenant:7"]);
    assert!(schedules.get("often").unwrap().schedule.unanchored);
    assert_no_canary(&format!("{} {:?}", loaded.origins, loaded.config));

    let mistakes = load_file(
        "[schedules.a]\nkind = \"noop\"\n[schedules.b]\ncron = \"0 0 30 2 *\"\nzone = \"Warsaw\"\nkind = \"noop\"\n\
         [schedules.c]\nevery = \"1ms\"\ncrom = \"x\"\n[schedules.d]\nevery = \"1m\"\ndst = \"skip\"\nkind = \"noop\"\n\
         [schedules.e]\nevery = \"1m\"\npayload = 'canary'\n[schedules.preview]\nevery = \"1m\"\nkind = \"noop\"\n\
         [schedules.f]\ncron = \"0 0 30 2 *\"\nkind = \"noop\"\n[schedules.g]\ncron = \"61 * * * *\"\nzone = \"Warsaw\"\n\
         [schedules.h]\nevery = \"1m\"\n[schedules.i]\nevery = \"1m\"\nkind = \"noop\"\non_failure = \"skip\"\n\
         tags = [\"two words\"]\n[schedules.j]\nevery = \"1m\"\nkind = \"noop\"\nexpires_in = \"0s\"\n",
    );
    assert_no_canary(&mistakes.as_ref().unwrap_err().to_string());
    let named = [
        "schedules.a.cron",
        "schedules.b.zone",
        "schedules.c.every",
        "schedules.c.crom",
        "schedules.c.kind",
        "schedules.d.dst",
        "schedules.e.payload",
        "schedules.e.kind",
        "schedules.f.cron",
        "schedules.g.kind",
        "schedules.g.zone",
        "schedules.g.cron",
        "schedules.h.kind",
        "schedules.i.on_failure",
        "schedules.i.tags",
        "schedules.j.expires_in",
        "schedules.preview",
    ];
    assert_eq!(at_fault(mistakes), named);

    // A wrong key hides no other one, and a key that needs it is not at fault.
    let mistakes = load_file(
        "[schedules.a]\npriority = 99\ncron = \"99 * * * *\"\n[schedules.b]\nevery = \"1x\"\nzone = \"Mars/Base\"\n\
         anchor = \"2026-01-01T00:00:00Z\"\n[schedules.c]\nevery = \"1m\"\nkind = \"noop\"\norder_key = \" \"\n\
         on_failure = \"skip\"\n[schedules.d]\nevery = \"1x\"\ncron = \"99 * * * *\"\nkind = \"noop\"\n\
         [reports.queries.q]\ntitle = \"Q\"\nsql = \"SELECT 1 AS one\"\n\
         params = [{ name = \"a b\", type = \"what\", required = true, default = \"1\" }]\n",
    );
    let named = [
        "schedules.a.priority",
        "schedules.a.kind",
        "schedules.a.cron",
        "schedules.b.every",
        "schedules.b.kind",
        "schedules.b.zone",
        "schedules.c.order_key",
        "schedules.d.every",
        "schedules.d.cron",
    ];
    let mut at_fault = at_fault(mistakes);
    let of_schedules = at_fault.split_off(at_fault.len() - named.len());
    assert_eq!(of_schedules, named);
    for key in ["name", "type", "required"] {
        let named = format!("reports.queries.q.params[0].{key}");
        assert!(at_fault.contains(&named), "{named} is not in {at_fault:?}");
    }
}

#[test]
fn defaults_and_test_values_hold_together() {
    let defaults = Config::defaults();
    assert_eq!((defaults.workers, defaults.lease, defaults.body_limit_bytes), (64, Duration::from_secs(30), 262_144));
    assert_eq!(defaults.retention_failed, Duration::from_secs(90 * 86_400));
    assert_eq!(defaults.retention_idempotency, Duration::from_secs(7 * 86_400));
    assert_eq!(defaults.reports.time_limit, Duration::from_secs(60));
    assert_eq!(defaults.mysql_url().unwrap_err().0[0].setting, "mysql_url");
    let config = Config::for_tests("mysql://root@localhost/t", "redis://localhost");
    assert!(config.test_kinds && config.http_addr.port() == 0 && config.redis_url().is_ok());
    assert!(config.lease >= Duration::from_secs(15), "a machine that stands still must not end an attempt of a test");
}

#[test]
fn effective_settings_are_listed_once_each_with_origin() {
    let loaded = load_flags(&Flags::default().with("workers", "8"));
    for setting in SETTINGS {
        assert_eq!(loaded.origins.iter().filter(|effective| effective.setting == setting.name).count(), 1);
    }
    let listing = loaded.origins.to_string();
    let line = |name: &str| {
        listing.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(line("workers"), ["workers", "8", "flag", "--workers"]);
    assert_eq!(line("mysql_url"), ["mysql_url", "-", "default"]);
}

proptest::proptest! {
    // Without a file of past failures: each failure found becomes an example above, with its reason.
    #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..Default::default() })]

    /// Loading any file returns a result and never panics.
    #[test]
    fn any_file_is_answered(text in "([a-z_]{1,8}( = |=)?[\\[\\]\"'{}0-9a-z,.:\n -]{0,20}){0,8}") {
        let _ = file::parse(Path::new("tickr.toml"), &text);
    }

    /// Translating any statement returns a result and never panics.
    #[test]
    fn any_statement_is_answered(text in "(SELECT|WITH)?[ ()'\"`:;?a-z\\\\#*/\n-]{0,40}\\PC{0,10}") {
        let _ = Statement::parse(&text);
        let _ = ServerUrl::mysql(&text).or_else(|_| ServerUrl::redis(&text));
    }

    /// No printed text contains a password, wherever it breaks the URL. A host always follows it: without one, a
    /// password that begins with @ would be read as a host.
    #[test]
    fn any_password_stays_hidden(before in "[!-~]{0,6}", after in "[!-~]{0,6}", tail in "@h(:33)?(/d)?(\\?s?slca=b)?") {
        let text = format!("mysql://u:{before}canary{after}{tail}");
        let shown = match ServerUrl::mysql(&text) {
            Ok(url) => format!("{url} {url:?}"),
            Err(error) => format!("{error} {error:?} {}", url::masked(&text)),
        };
        proptest::prop_assert!(!shown.contains("canary"), "{}", shown);
    }
}

#[test]
fn a_callback_may_take_a_day_and_no_longer() {
    let load = |value: &str| Config::load(&Flags::default(), env(&[("TICKR_CALLBACK_TIMEOUT", value)]), None);
    for (value, seconds) in [("1s", 1), ("24h", 86_400)] {
        let loaded = load(value).unwrap();
        assert_eq!(loaded.config.callback_timeout, std::time::Duration::from_secs(seconds), "{value}");
    }
    for value in ["999ms", "86401s", "25h"] {
        assert_eq!(at_fault(load(value)), ["callback_timeout"], "{value}");
    }
}

#[test]
fn a_variable_that_other_programs_know_is_asked_after_our_own() {
    let load = |vars: &[(&str, &str)]| Config::load(&Flags::default(), env(vars), None);
    let otel = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
    let loaded = load(&[otel, ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20eA")]).unwrap();
    assert_eq!(typed(&loaded.config, "otlp_endpoint"), otel.1);
    assert_eq!(typed(&loaded.config, "otlp_headers"), "authorization=Basic eA");
    assert!(loaded.warnings.is_empty());
    let loaded = load(&[otel, ("TICKR_OTLP_ENDPOINT", "http://own")]).unwrap();
    assert_eq!(typed(&loaded.config, "otlp_endpoint"), "http://own");
    // The file is of tickr, and the variable is of the host: a foreign one neither decides nor stops the start.
    let with_file = |text: &str| {
        let (_dir, path) = file(text);
        let vars = [("OTEL_EXPORTER_OTLP_ENDPOINT", "grpc://theirs"), ("OTEL_SERVICE_NAME", "theirs")];
        Config::load(&Flags::default(), env(&vars), Some(path))
    };
    let loaded = with_file("otlp_endpoint = \"http://mine\"\notlp_service = \"mine\"\n").unwrap();
    assert_eq!(typed(&loaded.config, "otlp_endpoint"), "http://mine");
    assert_eq!(typed(&loaded.config, "otlp_service"), "mine");
    let errors = with_file("otlp_service = \"mine\"\n").unwrap_err();
    assert!(errors.to_string().contains("OTEL_EXPORTER_OTLP_ENDPOINT"), "{errors}");
    let loaded = load(&[("OTEL_SERVICE_NAME", "theirs")]).unwrap();
    assert_eq!(typed(&loaded.config, "otlp_service"), "theirs");
    let wrong_places = ["http://[bad", "http://a:99999999", "http://a:b:1", "http://:4318", "http://[::1]x:1"];
    let wrong_texts = ["collector:4318", "ftp://c", "http://", "http://user:canary@c", "http://c?k=canary"];
    assert!(load(&[("TICKR_OTLP_ENDPOINT", "https://[::1]:4318/v1")]).is_ok());
    for bad in wrong_places.into_iter().chain(wrong_texts) {
        let errors = load(&[("TICKR_OTLP_ENDPOINT", bad)]).unwrap_err();
        assert!(!errors.to_string().contains("canary@"), "{errors}");
    }
}

#[test]
fn each_outbox_has_a_database_of_its_own_and_its_url_may_come_from_the_environment() {
    let text =
        "mysql_url = \"mysql://u@h/tickr\"\n[outboxes.shop]\n[outboxes.\"a.b\"]\nmysql_url = \"mysql://u@h/a\"\n";
    let (_dir, path) = file(text);
    let named = [("TICKR_OUTBOXES_SHOP_MYSQL_URL", "mysql://u:secret@shop/shop"), ("TICKR_OUTBOXES_A_B_MYSQL_URL", "")];
    let loaded = Config::load(&Flags::default(), env(&named), Some(path)).unwrap();
    let outboxes: Vec<(&str, &str)> =
        loaded.config.outboxes.iter().map(|(name, outbox)| (name.as_str(), outbox.mysql_url.expose())).collect();
    assert_eq!(outboxes, [("a.b", "mysql://u@h/a"), ("shop", "mysql://u:secret@shop/shop")]);
    let shown = loaded.origins.get("outboxes.shop.mysql_url").unwrap();
    assert_eq!(shown.value.as_deref(), Some("mysql://u:***@shop/shop"));
    let warnings: Vec<&str> = loaded.warnings.iter().map(|warning| warning.setting.as_str()).collect();
    assert_eq!(warnings, ["mysql_url", "outboxes.a.b.mysql_url", "outboxes.shop.mysql_url"]);

    let wrong = "mysql_url = \"mysql://u@h/tickr\"\n[outboxes.own]\nmysql_url = \"mysql://x@h:3306/tickr\"\n\
                 [outboxes.twice]\nmysql_url = \"mysql://x@h/shop\"\n[outboxes.shop]\nmysql_url = \"mysql://y@h/shop\"\n\
                 [outboxes.none]\n[outboxes.Bad]\n[outboxes.broken]\nmysql_url = \"mysql://h\"\nenabled = 1\n\
                 [outboxes.\"a.b\"]\nmysql_url = \"mysql://u@h/a\"\n[outboxes.a-b]\nmysql_url = \"mysql://u@h/b\"\n";
    let mut settings = at_fault(load_file(wrong));
    settings.sort_unstable();
    assert_eq!(
        settings,
        [
            "outboxes.Bad",
            "outboxes.a.b",
            "outboxes.broken.enabled",
            "outboxes.broken.mysql_url",
            "outboxes.none.mysql_url",
            "outboxes.own.mysql_url",
            "outboxes.twice.mysql_url",
        ]
    );
    let many: String = (0..17).map(|n| format!("[outboxes.o{n}]\nmysql_url = \"mysql://u@h/d{n}\"\n")).collect();
    assert_eq!(at_fault(load_file(&many)), ["outboxes"]);
}

#[test]
fn interfaces_of_other_services_are_off_unless_the_file_turns_them_on() {
    assert_eq!(load_file("mysql_url = \"mysql://u@h/tickr\"\n").unwrap().config.compat, Compat::default());
    let on = "mysql_url = \"mysql://u@h/tickr\"\n[compat.delayed]\nurl = \"https://example.com/messages?v=2\"\n\
              [compat.later]\nenabled = true\n";
    let compat = load_file(on).unwrap().config.compat;
    assert_eq!(compat.delayed.unwrap().url, "https://example.com/messages?v=2");
    assert!(compat.later);

    let wrong = "mysql_url = \"mysql://u@h/tickr\"\n[compat.delayed]\n[compat.later]\nenabled = \"maybe\"\nport = 1\n\
                 [compat.resque]\n";
    assert_eq!(
        at_fault(load_file(wrong)),
        ["compat.resque", "compat.delayed.url", "compat.later.enabled", "compat.later.port"]
    );
    let bad = "mysql_url = \"mysql://u@h/tickr\"\n[compat.delayed]\nurl = \"ftp://example.com\"\n";
    assert_eq!(at_fault(load_file(bad)), ["compat.delayed.url"]);
}
