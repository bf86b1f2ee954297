//! The kinds of this process: the built-in ones, set up from the configuration, and those of the embedding program.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{StartError, report_source};
use crate::config::{CallbackSecret, Config, Smtp};
use crate::handlers::email::{AllowedAddresses, Delivery, Email, EmailHandler, EmailSettings};
use crate::handlers::http::{CallbackSecrets, CallbackSettings, HttpCallback, HttpHandler, SigningSecret};
use crate::handlers::later::{LaterHandler, LaterTask};
use crate::handlers::report::{FinishedReports, Report, ReportSettings, Reports, can_mail};
use crate::handlers::{Kind as _, Registry, test_kinds};
use crate::job::Name;
use crate::job::suggest::nearest;

/// Register all kinds, and apply the kind settings of the configuration.
pub(super) fn register_all(config: &Config, own: Registry, finished: &FinishedReports) -> Result<Registry, StartError> {
    let mut registry = own;
    let http = Arc::new(http(config)?);
    if config.compat.later {
        registry.register_handler(LaterHandler::new(Arc::clone(&http)));
    }
    registry.push_with(Arc::clone(&http));
    registry.register_handler(http);
    if let Some(email) = email(config, finished.clone())? {
        registry.register_handler(email);
    }
    // The program itself may have a kind of that name, with other fields. And `[smtp]` need not have a sender.
    let mails = registry.get(Email::NAME).is_some_and(can_mail);
    registry.register_handler(report(config, finished.clone(), mails)?);
    registry.keep_large_results(finished.clone());
    if config.test_kinds {
        test_kinds::register(&mut registry);
    }
    let mut unknown = Vec::new();
    for (kind, changes) in &config.kinds {
        if !registry.set_defaults(kind, |defaults| defaults.change(changes)) {
            unknown.push(kind.clone());
        }
    }
    if unknown.is_empty() {
        return Ok(registry);
    }
    let names: Vec<String> = registry.iter().map(|kind| kind.name().to_string()).collect();
    Err(StartError::UnknownKinds { unknown, has: names.join(", ") })
}

/// Find what no start with these settings and the kinds in `own` can work with, without a call to a server: files that
/// cannot be used, URLs that can never be called, and sections of kinds that this process does not have.
pub(super) fn mistakes(config: &Config, own: &Registry) -> Vec<StartError> {
    // The client of callbacks takes time to build, and only this file makes it fail.
    let http = config.callback_ca_file.as_ref().and_then(|_| http(config).err());
    let email = email(config, FinishedReports::in_folder(&config.reports_dir)).err();
    let mut found: Vec<StartError> = http.into_iter().chain(email).collect();
    let calls = callbacks(config);
    let alerts = config.alerts.as_ref().and_then(|alerts| calls.problem_of_text(&alerts.url));
    found.extend(alerts.map(StartError::Alerts));
    let delayed = config.compat.delayed.as_ref().and_then(|delayed| calls.problem_of_text(&delayed.url));
    found.extend(delayed.map(StartError::DelayedMessages));
    let names = names(config, own);
    let unknown: Vec<String> = config.kinds.keys().filter(|kind| !names.contains(*kind)).cloned().collect();
    if !unknown.is_empty() {
        let has = names.into_iter().collect::<Vec<_>>().join(", ");
        found.push(StartError::UnknownKinds { unknown, has });
    }
    found
}

/// Warn of alerts for kinds that this runner does not know, now that it knows the declared ones: a misspelt name would
/// never alert. It is no mistake, because another program may have the kind, and an operator may declare it later.
pub(super) fn warn_of_unknown_alerts(config: &Config, registry: &Registry) {
    let Some(alerts) = &config.alerts else { return };
    let known = registry.known_names();
    for kind in alerts.kinds.keys().filter(|kind| known.iter().all(|name| name.as_str() != kind.as_str())) {
        let near = nearest(kind, known.iter().map(Name::as_str));
        let hint = match near {
            Some(near) => format!("did you mean alerts.kinds.{near}?"),
            None => "`tickr kinds list` shows those that it knows".to_owned(),
        };
        tracing::warn!("alerts.kinds.{kind}: this runner knows no kind of this name; {hint}");
    }
}

/// Return the names of the kinds that [`register_all`] registers.
fn names(config: &Config, own: &Registry) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = own.names().iter().map(ToString::to_string).collect();
    names.extend([HttpCallback::NAME, Report::NAME].map(str::to_owned));
    if config.compat.later {
        names.insert(LaterTask::NAME.to_owned());
    }
    if config.outbox_dir.is_some() || config.smtp.is_some() {
        names.insert(Email::NAME.to_owned());
    }
    if config.test_kinds {
        let mut tests = Registry::new();
        test_kinds::register(&mut tests);
        names.extend(tests.names().iter().map(ToString::to_string));
    }
    names
}

fn http(config: &Config) -> Result<HttpHandler, StartError> {
    let failed = |cause: Box<dyn std::error::Error + Send + Sync>| StartError::Kind { kind: "http", cause };
    let mut settings = callbacks(config);
    if let Some(file) = &config.callback_ca_file {
        let read = std::fs::read(file);
        settings.authorities =
            read.map_err(|error| failed(format!("cannot read callback_ca_file {}: {error}", file.display()).into()))?;
    }
    HttpHandler::new(settings).map_err(|error| failed(error.into()))
}

/// Build the settings of callbacks from the configuration.
pub(super) fn callbacks(config: &Config) -> CallbackSettings {
    let signing = |secrets: &[CallbackSecret]| secrets.iter().map(|key| SigningSecret::new(key.expose())).collect();
    let secrets = CallbackSecrets::usual(signing(&config.callback_secret));
    let secrets = config
        .callback_host_secrets
        .iter()
        .fold(secrets, |secrets, one| secrets.with_host(one.host.clone(), signing(&one.secrets)));
    CallbackSettings {
        secrets,
        allow_private: config.callback_allow_private,
        allow: config.callback_allow.clone(),
        idle: config.workers,
        longest: config.callback_timeout,
        authorities: Vec::new(),
    }
}

/// Create the email kind, if a delivery is configured. An outbox takes precedence over an SMTP server, so that a
/// development machine with a copy of the production configuration sends nothing.
fn email(config: &Config, finished: FinishedReports) -> Result<Option<EmailHandler>, StartError> {
    let delivery = match (&config.outbox_dir, &config.smtp) {
        (Some(outbox), _) => Delivery::Outbox(outbox.clone()),
        (None, Some(smtp)) => over_smtp(smtp)?,
        (None, None) => return Ok(None),
    };
    let from = config.smtp.as_ref().and_then(|smtp| smtp.from.clone());
    let from = from.or_else(|| config.outbox_dir.as_ref().map(|_| "tickr <tickr@localhost>".to_owned()));
    let settings = EmailSettings { from, delivery, reports: Some(finished) };
    let (senders, recipients) =
        (AllowedAddresses::new(&config.email_senders), AllowedAddresses::new(&config.email_recipients));
    let handler = EmailHandler::new(settings).and_then(|handler| handler.limited_to(senders, recipients));
    handler.map(Some).map_err(|e| StartError::Kind { kind: "email", cause: e.into() })
}

#[cfg(feature = "smtp")]
#[expect(clippy::unnecessary_wraps, reason = "it fails in a program without SMTP")]
fn over_smtp(smtp: &Smtp) -> Result<Delivery, StartError> {
    use crate::config;
    use crate::handlers::email::{SmtpLogin, SmtpSettings, SmtpTls};

    Ok(Delivery::Smtp(SmtpSettings {
        host: smtp.host.clone(),
        port: smtp.port,
        tls: match smtp.tls {
            config::SmtpTls::Starttls => SmtpTls::Starttls,
            config::SmtpTls::Tls => SmtpTls::Tls,
            config::SmtpTls::None => SmtpTls::None,
        },
        login: super::smtp_login(smtp).map(|(username, password)| SmtpLogin { username, password }),
        connections: smtp.connections as usize,
        timeout: smtp.timeout,
        ca_pem: None,
    }))
}

#[cfg(not(feature = "smtp"))]
fn over_smtp(_: &Smtp) -> Result<Delivery, StartError> {
    let cause = "[smtp] is set, and this program was built without the feature `smtp` of tickr";
    Err(StartError::Kind { kind: "email", cause: cause.into() })
}

fn report(config: &Config, finished: FinishedReports, mails: bool) -> Result<Reports, StartError> {
    let settings = ReportSettings {
        dir: config.reports_dir.clone(),
        time_limit: config.reports.time_limit,
        max_rows: config.reports.max_rows,
        max_bytes: config.reports.max_bytes,
        queries: config.reports.queries.clone(),
    };
    let recipients = AllowedAddresses::new(&config.email_recipients);
    let source = Arc::new(report_source(config)?);
    let reports = Reports::new(settings, source).with_connections(config.reports.connections).keeping(finished);
    Ok(if mails { reports.mailing_only_to(recipients) } else { reports.without_mails() })
}
