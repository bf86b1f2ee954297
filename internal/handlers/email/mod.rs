//! Kind `email`: a mail, sent to an SMTP server or written into an outbox folder.
//!
//! SMTP cannot accept a mail exactly once: when the connection breaks after the message, the client cannot know whether
//! the server has accepted it. So every attempt of a job uses the same `Message-ID`, made of the job's id, by which
//! servers and mail readers recognise a repetition. In the outbox all attempts write the same file.
//!
//! The code of the server's answer decides: 5xx rejects the job. 4xx, connection errors and login errors are retried. An
//! answer to the message that cannot be read rejects the job, because the server may have taken the mail. A mail is sent
//! to all of its recipients or to none.
//!
//! - `address.rs`: mailboxes of senders and recipients
//! - `allowed.rs`: addresses that the operator allows
//! - `attachment.rs`: files and reports that travel with a mail
//! - `check.rs`: checks of a payload beyond its schema
//! - `message.rs`: the bytes of a mail
//! - `smtp.rs`: the connections to the mail server, and the conversation on them
//! - `wire.rs`: the streams below that conversation
//! - `outbox.rs`: mails as files in a folder
//! - `tests.rs`: tests against an SMTP server on this machine

mod address;
mod allowed;
mod attachment;
mod check;
mod message;
mod outbox;
#[cfg(feature = "smtp")]
mod smtp;
#[cfg(test)]
#[path = "../../../tests/suite/support/smtp_sink.rs"]
mod smtp_sink;
#[cfg(test)]
mod tests;
#[cfg(feature = "smtp")]
mod wire;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use lettre::message::Mailbox;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use self::address::mailbox;
pub use self::address::{Addresses, InvalidMailbox};
pub use self::allowed::AllowedAddresses;
pub use self::attachment::Attachment;
use self::attachment::{Enclosure, LoadError};
use self::message::Mail;
use self::outbox::Outbox;
#[cfg(feature = "smtp")]
use self::smtp::SmtpPool;
#[cfg(feature = "smtp")]
pub use self::smtp::{SmtpLogin, SmtpSettings, SmtpSetupError, SmtpTls};
use super::report::{FindError, FinishedReports};
use super::{Context, Failure, Handler, Kind, KindDefaults, Outcome, Output, Problem, Room};

/// Names of the settings that list the addresses which mails may name.
const SENDERS: &str = "TICKR_EMAIL_SENDERS";
pub(super) const RECIPIENTS: &str = "TICKR_EMAIL_RECIPIENTS";
/// Least time limit of an attempt.
const LEAST_TIMEOUT: Duration = Duration::from_secs(120);

/// A mail to send. At most 50 recipients in `to`, `cc` and `bcc` together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Email {
    /// Recipients, at least one.
    pub to: Addresses,
    /// Recipients of a copy.
    #[serde(default, skip_serializing_if = "Addresses::is_empty")]
    pub cc: Addresses,
    /// Recipients of a copy that the other recipients do not see.
    #[serde(default, skip_serializing_if = "Addresses::is_empty")]
    pub bcc: Addresses,
    /// Address for replies. Default: the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// Sender. Default: the configured sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Subject, in any script.
    #[schemars(length(max = 500))]
    pub subject: String,
    /// Body as plain text. When `html` is given as well, mail readers choose the form that they can show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Body as HTML.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub html: Option<String>,
    /// Files to attach, at most 10.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// Extra headers: `List-Unsubscribe`, `List-Unsubscribe-Post` and `X-*`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 10))]
    pub headers: BTreeMap<String, String>,
}

impl Kind for Email {
    const NAME: &'static str = "email";
}

impl Email {
    /// Add a line at the end, in each form of the body.
    fn add_line(&mut self, line: &str) {
        if let Some(html) = &mut self.html {
            html.push_str(&maud::html! { p { (line) } }.into_string());
        }
        if self.text.is_some() || self.html.is_none() {
            let text = self.text.take().unwrap_or_default();
            self.text = Some(format!("{}\n\n{line}\n", text.trim_end()));
        }
    }
}

/// The operator's settings for mail.
#[derive(Clone, Debug)]
pub struct EmailSettings {
    /// Sender of mails that name none.
    pub from: Option<String>,
    /// Destination of mails.
    pub delivery: Delivery,
    /// Finished reports, for mails that attach one.
    pub reports: Option<FinishedReports>,
}

/// Destination of mails.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// A mail server.
    #[cfg(feature = "smtp")]
    Smtp(SmtpSettings),
    /// A folder with one file `<job id>.eml` for each mail. It is created if it is missing.
    Outbox(PathBuf),
}

/// Error: the settings for mail cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EmailSetupError {
    /// The default sender is not a mailbox.
    #[error("set up mail: the default sender {0}")]
    From(#[from] InvalidMailbox),
    /// The default sender is not among the allowed senders, so mails without a sender could not be sent.
    #[error("set up mail: the default sender {0}")]
    Refused(String),
    /// The settings of the mail server are wrong.
    #[cfg(feature = "smtp")]
    #[error(transparent)]
    Smtp(#[from] SmtpSetupError),
}

/// The handler that sends mails.
pub struct EmailHandler {
    from: Option<Mailbox>,
    route: Route,
    reports: Option<FinishedReports>,
    senders: AllowedAddresses,
    recipients: AllowedAddresses,
    /// A place for each connection to the mail server. None: mails go to the outbox.
    room: Option<Room>,
}

enum Route {
    #[cfg(feature = "smtp")]
    Smtp(Box<SmtpPool>),
    Outbox(Outbox),
}

/// The result of a mail that was handed over.
#[derive(Debug, Serialize)]
struct Success {
    message_id: String,
    /// Number of recipients for which the server accepted the mail.
    accepted: usize,
    /// Answer of the mail server.
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<String>,
    /// Path of the mail in the outbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
}

impl EmailHandler {
    /// Make a handler with its own connections.
    ///
    /// # Errors
    /// When the settings cannot be used. No connection is opened yet.
    pub fn new(settings: EmailSettings) -> Result<Self, EmailSetupError> {
        let from = settings.from.as_deref().map(address::mailbox).transpose()?;
        let (route, room) = match settings.delivery {
            #[cfg(feature = "smtp")]
            Delivery::Smtp(smtp) => {
                let room = Room::new(Email::NAME, u32::try_from(smtp.connections.max(1)).unwrap_or(u32::MAX));
                (Route::Smtp(Box::new(SmtpPool::new(smtp)?)), Some(room))
            }
            Delivery::Outbox(dir) => (Route::Outbox(Outbox::new(dir)), None),
        };
        let (senders, recipients) = Default::default();
        Ok(Self { from, route, reports: settings.reports, senders, recipients, room })
    }

    /// Allow only these addresses as sender and as recipients. The address for replies may be in either list.
    ///
    /// # Errors
    /// When the default sender is not among them.
    pub fn limited_to(
        mut self,
        senders: AllowedAddresses,
        recipients: AllowedAddresses,
    ) -> Result<Self, EmailSetupError> {
        if self.from.as_ref().is_some_and(|from| !senders.allows(from)) {
            return Err(EmailSetupError::Refused(senders.refusal(SENDERS)));
        }
        (self.senders, self.recipients) = (senders, recipients);
        Ok(self)
    }

    /// Load the attachments. The mail names the address of a report that another runner alone has, if it has one.
    async fn enclosures(&self, email: &mut Email) -> Result<Vec<Enclosure>, Failure> {
        let mut budget = attachment::MAX_REPORT_BYTES;
        let mut enclosures = Vec::with_capacity(email.attachments.len());
        for attachment in std::mem::take(&mut email.attachments) {
            let loaded = attachment.load(self.reports.as_ref(), &mut budget).await;
            let is_elsewhere = matches!(loaded, Err(LoadError::Read(_, FindError::Elsewhere { .. })));
            if let (true, Some(link)) = (is_elsewhere, &attachment.or_link) {
                let name = attachment.report.as_deref().unwrap_or_default();
                email.add_line(&format!("The file {name} is not in this mail. It is kept as {link}"));
                continue;
            }
            enclosures.push(loaded.map_err(|error| match error {
                // A retry may help: MySQL may be back, or the job may run on the runner that has the report.
                LoadError::Read(..) => Failure::from(error),
                LoadError::NotBase64
                | LoadError::Empty
                | LoadError::MediaType
                | LoadError::NoReportsDir(_)
                | LoadError::NoSuchReport(_)
                | LoadError::TooLarge(_) => Failure::reject(error.to_string()),
            })?);
        }
        Ok(enclosures)
    }

    async fn hand_over(&self, mail: Mail, ctx: &Context) -> Outcome {
        let accepted = mail.recipients.len();
        let (response, file) = match &self.route {
            #[cfg(feature = "smtp")]
            Route::Smtp(pool) => {
                let response = pool.deliver(&mail, ctx).await.map_err(|error| {
                    if error.is_permanent() { Failure::reject(error.to_string()) } else { Failure::from(error) }
                })?;
                (Some(response), None)
            }
            Route::Outbox(outbox) => (None, Some(outbox.put(ctx.job_id(), ctx.token(), mail.bytes).await?)),
        };
        Output::json(&Success { message_id: mail.message_id, accepted, response, file })
    }
}

impl Handler for EmailHandler {
    type Payload = Email;

    fn check(&self, email: &Email) -> Vec<Problem> {
        let mut problems = check::problems(email, self.from.is_some(), self.reports.is_some());
        problems.extend(check::not_allowed(email, &self.senders, &self.recipients));
        problems
    }

    fn defaults(&self) -> KindDefaults {
        let timeout = match &self.route {
            #[cfg(feature = "smtp")]
            Route::Smtp(pool) => LEAST_TIMEOUT.max(pool.attempt_timeout()),
            Route::Outbox(_) => LEAST_TIMEOUT,
        };
        KindDefaults { timeout, ..KindDefaults::default() }
    }

    fn room(&self) -> Option<&Room> {
        self.room.as_ref()
    }

    async fn run(&self, mut email: Email, ctx: Context) -> Outcome {
        // The runner that accepted the job has a default sender.
        if email.from.is_none() && self.from.is_none() {
            return Err(Failure::other_settings("send the mail: this runner has no default sender"));
        }
        // Check again, not only at enqueue: a row may have been written by another program, and must not inject
        // headers.
        if let Some(problem) = self.check(&email).into_iter().next() {
            return Err(Failure::reject(format!("send the mail: {} {}", problem.pointer, problem.detail)));
        }
        let enclosures = self.enclosures(&mut email).await?;
        let names_hidden = matches!(self.route, Route::Outbox(_));
        let mail = message::build(&email, self.from.as_ref(), ctx.job_id(), enclosures, names_hidden)
            .map_err(|error| Failure::reject(error.to_string()))?;
        self.hand_over(mail, &ctx).await
    }
}
