//! A test of handlers, as it would stand under `#[tokio::test]`: one handler alone, then a whole runner on a private
//! MySQL (or MariaDB) and Redis, which end with this program.
//!
//!     cargo run --example testing

use std::time::Duration;

use tickr::prelude::*;
use tickr::testing::{self, assert_enqueued};
use tickr::{Conflict, OnConflict, State};

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Invoice {
    number: u64,
    cents: i64,
}

impl Kind for Invoice {
    const NAME: &'static str = "invoice";
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Reminder {
    invoice: u64,
}

impl Kind for Reminder {
    const NAME: &'static str = "reminder";
}

async fn invoice(job: Invoice, ctx: Context) -> Outcome {
    if job.cents <= 0 {
        return Err(Failure::reject("an invoice needs an amount"));
    }
    let reminder = Reminder { invoice: job.number };
    let month = Duration::from_secs(30 * 24 * 3_600);
    ctx.client().enqueue(&reminder).delay(month).unique_key(format!("invoice:{}", job.number)).await?;
    Output::json(&json!({"sent": job.number}))
}

async fn reminder(job: Reminder, _ctx: Context) -> Outcome {
    Output::json(&format!("invoice {} is overdue", job.invoice))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // The handler alone, without servers.
    let refused = testing::run(invoice, Invoice { number: 1, cents: 0 }).await;
    assert_eq!(refused.err(), Some(Failure::reject("an invoice needs an amount")));

    // A whole runner.
    let mut kinds = Registry::new();
    kinds.register(invoice).register(reminder);
    let runner = testing::start(kinds).await?;
    let client = runner.client();

    let sent = client.enqueue(&Invoice { number: 7, cents: 1_250 }).await?;
    let ended = runner.wait(sent.id).await?;
    assert_eq!((ended.state, ended.attempt), (State::Completed, 1));

    // The reminder is due in a month. Its test does not wait that long.
    let due_later = assert_enqueued::<Reminder>(&runner, |reminder| reminder.invoice == 7).await;
    assert_eq!(client.status(due_later).await?.map(|job| job.state), Some(State::Waiting));
    let again = client.enqueue(&Reminder { invoice: 7 }).unique_key("invoice:7").on_conflict(OnConflict::Reject).await;
    assert!(matches!(again, Err(tickr::Error::Conflict(Conflict::UniqueKey { holder, .. })) if holder == due_later));
    // A job behind another one has no time yet that a test could change.
    let behind = client.enqueue(&Reminder { invoice: 8 }).after([due_later]).await?;
    assert!(runner.make_due(behind.id).await.is_err());
    runner.make_due(due_later).await?;
    let reminded = runner.wait(due_later).await?;
    assert_eq!(reminded.result_as::<String>().as_deref(), Some("invoice 7 is overdue"));
    assert_eq!(runner.wait(behind.id).await?.state, State::Completed);

    runner.stop().await;
    println!("all checks passed");
    Ok(())
}
