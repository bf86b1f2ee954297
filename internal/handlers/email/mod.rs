//! Kind `email`: a mail, handed to an SMTP server or written into an outbox folder.
//!
//! SMTP cannot promise to take a mail exactly once: when the connection breaks after the message, nobody knows. So
//! every attempt of a job carries the same `Message-ID`, made of the job's id, by which servers and readers recognise
//! a repetition; in the outbox it is the same file.
//!
//! What the server answers decides: 5xx rejects the job, 4xx and everything that is wrong with the connection or the
//! login is retried. A mail goes to all of its recipients or to none of them.

mod address;
mod allowed;
mod attachment;
mod check;
mod message;
mod outbox;
mod smtp;
#[cfg(test)]
#[path = "../../../tests/suite/support/smtp_sink.rs"]
mod smtp_sink;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use lettre::message::Mailbox;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::address::{Addresses, InvalidMailbox};
pub use self::allowed::AllowedAddresses;
pub use self::attachment::Attachment;
use self::attachment::{Enclosure, LoadError};
use self::message::Mail;
use self::outbox::Outbox;
use self::smtp::SmtpPool;
pub use self::smtp::{SmtpLogin, SmtpSettings, SmtpSetupError, SmtpTls};
use super::report::FinishedReports;
use super::{Context, Failure, Handler, Kind, KindDefaults, Outcome, Output, Problem};

/// The settings that say which addresses mails may name.
const SENDERS: &str = "TICKR_EMAIL_SENDERS";
pub(super) const RECIPIENTS: &str = "TICKR_EMAIL_RECIPIENTS";

/// A mail to send. At most 50 recipients in `to`, `cc` and `bcc` together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Email {
    /// The recipients: at least one.
    pub to: Addresses,
    /// Who gets a copy.
    #[serde(default, skip_serializing_if = "Addresses::is_empty")]
    pub cc: Addresses,
    /// Who gets a copy without the others knowing.
    #[serde(default, skip_serializing_if = "Addresses::is_empty")]
    pub bcc: Addresses,
    /// Where answers go, if not to the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// The sender; the configured one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The subject, in any script.
    #[schemars(length(max = 500))]
    pub subject: String,
    /// The mail as plain text. With `html` given too, readers show the one they can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The mail as HTML.
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

/// What the operator decides about mail.
#[derive(Clone, Debug)]
pub struct EmailSettings {
    /// The sender of mails that name none.
    pub from: Option<String>,
    /// Where mails go.
    pub delivery: Delivery,
    /// Finished reports, for mails that attach one.
    pub reports: Option<FinishedReports>,
}

/// Where mails go.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// To a mail server.
    Smtp(SmtpSettings),
    /// Into a folder, one `<job id>.eml` for each; created if missing.
    Outbox(PathBuf),
}

/// The settings for mail cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EmailSetupError {
    /// The default sender is not a mailbox.
    #[error("set up mail: the default sender {0}")]
    From(#[from] InvalidMailbox),
    /// The default sender is not among the allowed ones, so no mail could be sent that names none.
    #[error("set up mail: the default sender {0}")]
    Refused(String),
    /// The mail server's settings.
    #[error(transparent)]
    Smtp(#[from] SmtpSetupError),
}

/// Sends mails.
pub struct EmailHandler {
    from: Option<Mailbox>,
    route: Route,
    reports: Option<FinishedReports>,
    senders: AllowedAddresses,
    recipients: AllowedAddresses,
}

enum Route {
    Smtp(Box<SmtpPool>),
    Outbox(Outbox),
}

/// The result of a mail that was handed over.
#[derive(Debug, Serialize)]
struct Success {
    message_id: String,
    /// How many recipients the server took the mail for.
    accepted: usize,
    /// What the mail server said.
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<String>,
    /// Where the mail lies, in an outbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
}

impl EmailHandler {
    /// A handler with connections of its own.
    ///
    /// # Errors
    /// When the settings cannot be used. Nothing is connected yet.
    pub fn new(settings: EmailSettings) -> Result<Self, EmailSetupError> {
        let from = settings.from.as_deref().map(address::mailbox).transpose()?;
        let route = match settings.delivery {
            Delivery::Smtp(smtp) => Route::Smtp(Box::new(SmtpPool::new(smtp)?)),
            Delivery::Outbox(dir) => Route::Outbox(Outbox::new(dir)),
        };
        let (senders, recipients) = Default::default();
        Ok(Self { from, route, reports: settings.reports, senders, recipients })
    }

    /// Let mails name only these addresses as sender and as recipients. Answers may go to either.
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

    async fn enclosures(&self, email: &Email) -> Result<Vec<Enclosure>, Failure> {
        let mut budget = attachment::MAX_REPORT_BYTES;
        let mut enclosures = Vec::with_capacity(email.attachments.len());
        for attachment in &email.attachments {
            let loaded = attachment.load(self.reports.as_ref(), &mut budget).await;
            enclosures.push(loaded.map_err(|error| match error {
                // Another attempt may find MySQL back, or run on the runner that has the report.
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
        // Room for a busy server's connections to come free before the delivery itself begins.
        KindDefaults { timeout: Duration::from_secs(120), ..KindDefaults::default() }
    }

    async fn run(&self, email: Email, ctx: Context) -> Outcome {
        // Again, and not only at enqueue: rows may come from elsewhere, and an injection must not.
        if let Some(problem) = self.check(&email).into_iter().next() {
            return Err(Failure::reject(format!("send the mail: {} {}", problem.pointer, problem.detail)));
        }
        let enclosures = self.enclosures(&email).await?;
        let mail = message::build(&email, self.from.as_ref(), ctx.job_id(), enclosures)
            .map_err(|error| Failure::reject(error.to_string()))?;
        self.hand_over(mail, &ctx).await
    }
}
