//! The kinds of this process: those that ship, made from the configuration, and the caller's own.

use std::sync::Arc;
use std::time::Duration;

use super::{StartError, report_source, smtp_login};
use crate::config::{self, Config};
use crate::handlers::email::{Delivery, EmailHandler, EmailSettings, SmtpLogin, SmtpSettings, SmtpTls};
use crate::handlers::http::{CallbackSettings, HttpHandler, SigningSecret};
use crate::handlers::report::{Absent, Parameter, ParameterKind, Query, ReportSettings, Reports};
use crate::handlers::{Registry, test_kinds};
use crate::table::Cell;

/// Register everything and apply what the configuration changes about kinds.
pub(super) fn register_all(config: &Config, own: Registry) -> Result<Registry, StartError> {
    let mut registry = own;
    registry.register_handler(http(config)?);
    if let Some(email) = email(config)? {
        registry.register_handler(email);
    }
    registry.register_handler(report(config)?);
    if config.test_kinds {
        test_kinds::register(&mut registry);
    }
    for (kind, changes) in &config.kinds {
        let known = registry.set_defaults(kind, |defaults| {
            defaults.max_attempts = changes.max_attempts.unwrap_or(defaults.max_attempts);
            defaults.timeout = changes.timeout.unwrap_or(defaults.timeout);
            let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
            let retry = &mut defaults.retry;
            retry.base_ms = changes.retry_base.map_or(retry.base_ms, ms);
            retry.cap_ms = changes.retry_cap.map_or(retry.cap_ms, ms).max(retry.base_ms);
            retry.factor = changes.retry_factor.unwrap_or(retry.factor);
        });
        if !known {
            let names: Vec<String> = registry.iter().map(|kind| kind.name().to_string()).collect();
            return Err(StartError::UnknownKind(kind.clone(), names.join(", ")));
        }
    }
    Ok(registry)
}

fn http(config: &Config) -> Result<HttpHandler, StartError> {
    let secrets = config.callback_secret.iter().map(|secret| SigningSecret::new(secret.expose())).collect();
    HttpHandler::new(CallbackSettings { secrets, allow_private: config.callback_allow_private })
        .map_err(|e| StartError::Kind { kind: "http", cause: e.to_string() })
}

/// The email kind, if there is somewhere to deliver to. An outbox wins over a server, so that a development machine
/// with a copy of the real configuration sends nothing.
fn email(config: &Config) -> Result<Option<EmailHandler>, StartError> {
    let delivery = match (&config.outbox_dir, &config.smtp) {
        (Some(outbox), _) => Delivery::Outbox(outbox.clone()),
        (None, Some(smtp)) => Delivery::Smtp(SmtpSettings {
            host: smtp.host.clone(),
            port: smtp.port,
            tls: match smtp.tls {
                config::SmtpTls::Starttls => SmtpTls::Starttls,
                config::SmtpTls::Tls => SmtpTls::Tls,
                config::SmtpTls::None => SmtpTls::None,
            },
            login: smtp_login(smtp).map(|(username, password)| SmtpLogin { username, password }),
            connections: smtp.connections as usize,
            timeout: smtp.timeout,
            ca_pem: None,
        }),
        (None, None) => return Ok(None),
    };
    let from = config.smtp.as_ref().and_then(|smtp| smtp.from.clone());
    let from = from.or_else(|| config.outbox_dir.as_ref().map(|_| "tickr <tickr@localhost>".to_owned()));
    let settings = EmailSettings { from, delivery, reports_dir: Some(config.reports_dir.clone()) };
    EmailHandler::new(settings).map(Some).map_err(|e| StartError::Kind { kind: "email", cause: e.to_string() })
}

fn report(config: &Config) -> Result<Reports, StartError> {
    let queries = config.reports.queries.iter().map(|(name, query)| (name.clone(), report_query(query))).collect();
    let settings = ReportSettings {
        dir: config.reports_dir.clone(),
        time_limit: config.reports.time_limit,
        max_rows: config.reports.max_rows,
        max_bytes: config.reports.max_bytes,
        queries,
    };
    Ok(Reports::new(settings, Arc::new(report_source(config)?)))
}

fn report_query(query: &config::ReportQuery) -> Query {
    Query {
        title: query.title.clone(),
        sql: query.statement.sql.as_str().into(),
        binds: query.statement.params.clone(),
        parameters: query.params.iter().map(|param| (param.name.clone(), parameter(param))).collect(),
    }
}

fn parameter(param: &config::ReportParam) -> Parameter {
    use config::{ParamType, ParamValue};
    let (min, max) = (param.min.as_ref(), param.max.as_ref());
    let integer = |value: Option<&ParamValue>| match value {
        Some(ParamValue::Integer(n)) => Some(*n),
        _ => None,
    };
    let number = |value: Option<&ParamValue>| match value {
        Some(ParamValue::Number(n)) => Some(*n),
        Some(ParamValue::Integer(n)) => Some(*n as f64),
        _ => None,
    };
    let length = |value| integer(value).and_then(|n| usize::try_from(n).ok());
    let date = |value: Option<&ParamValue>| match value {
        Some(ParamValue::Date(day)) => Some(*day),
        _ => None,
    };
    let moment = |value: Option<&ParamValue>| match value {
        Some(ParamValue::Timestamp(at)) => Some(*at),
        _ => None,
    };
    let kind = match &param.kind {
        ParamType::String => ParameterKind::String { min: length(min), max: length(max) },
        ParamType::Integer => ParameterKind::Integer { min: integer(min), max: integer(max) },
        ParamType::Number => ParameterKind::Number { min: number(min), max: number(max) },
        ParamType::Boolean => ParameterKind::Boolean,
        ParamType::Date => ParameterKind::Date { min: date(min), max: date(max) },
        ParamType::Timestamp => ParameterKind::Timestamp { min: moment(min), max: moment(max) },
        ParamType::Enum { values } => ParameterKind::Enum { values: values.clone() },
    };
    let absent = match (&param.default, param.required) {
        (_, true) => Absent::Refused,
        (None, false) => Absent::Bind(Cell::Null),
        (Some(value), false) => Absent::Bind(cell(value)),
    };
    Parameter { kind, absent }
}

fn cell(value: &config::ParamValue) -> Cell {
    use config::ParamValue;
    match value {
        ParamValue::Null => Cell::Null,
        ParamValue::String(text) => Cell::Text(text.clone()),
        ParamValue::Integer(n) => Cell::Integer(*n),
        ParamValue::Number(n) => Cell::Float(*n),
        ParamValue::Boolean(b) => Cell::Bool(*b),
        ParamValue::Date(day) => Cell::Date(*day),
        ParamValue::Timestamp(at) => Cell::Timestamp(*at),
    }
}
