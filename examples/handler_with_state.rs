//! Handlers with state: a closure that owns a connection pool, and a type with its own check and defaults.
//!
//!     export TICKR_MYSQL_URL=mysql://… TICKR_REDIS_URL=redis://…
//!     cargo run --example handler_with_state
//!     curl localhost:7070/v1/jobs -H 'content-type: application/json' \
//!       -d '{"kind": "charge", "payload": {"customer": "ada", "cents": 1250}}'

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tickr::prelude::*;
use tickr::{KindDefaults, Problem};

/// In place of a pool of connections, or the client of a payment service.
#[derive(Default)]
struct Ledger(Mutex<BTreeMap<String, u64>>);

impl Ledger {
    /// Book an amount once per job: attempts may be repeated, and the job's id is the same in all of them.
    fn book(&self, job: tickr::JobId, cents: u64) -> u64 {
        let mut booked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        booked.insert(job.to_string(), cents);
        booked.values().sum()
    }
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Charge {
    customer: String,
    cents: u64,
}

impl Kind for Charge {
    const NAME: &'static str = "charge";
}

/// A type holds what a closure cannot say: the check of a payload, and the defaults of the kind.
struct Charges {
    ledger: Arc<Ledger>,
    most_cents: u64,
}

impl Handler for Charges {
    type Payload = Charge;

    fn check(&self, charge: &Charge) -> Vec<Problem> {
        if charge.cents > self.most_cents {
            return vec![Problem::at("/cents", format!("must be at most {}", self.most_cents))];
        }
        Vec::new()
    }

    fn defaults(&self) -> KindDefaults {
        KindDefaults { max_attempts: 3, timeout: Duration::from_secs(20), ..KindDefaults::default() }
    }

    async fn run(&self, charge: Charge, ctx: Context) -> Outcome {
        let total = self.ledger.book(ctx.job_id(), charge.cents);
        // A receipt with the client of this runner. Its idempotency key keeps a second attempt from a second receipt,
        // also when the first one has completed. The payload must be the same in each attempt, and the total is not.
        let receipt = Receipt { customer: charge.customer, cents: charge.cents };
        ctx.client().enqueue(&receipt).idempotency_key(format!("receipt:{}", ctx.job_id())).await?;
        Output::json(&json!({"total": total}))
    }
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Receipt {
    customer: String,
    cents: u64,
}

impl Kind for Receipt {
    const NAME: &'static str = "receipt";
}

async fn receipt(ledger: Arc<Ledger>, job: Receipt) -> Outcome {
    let owners = Arc::strong_count(&ledger);
    Output::json(&json!({"to": job.customer, "cents": job.cents, "owners_of_the_ledger": owners}))
}

fn main() -> std::process::ExitCode {
    let ledger = Arc::new(Ledger::default());
    let mut kinds = Registry::new();
    kinds.register_handler(Charges { ledger: Arc::clone(&ledger), most_cents: 100_000 });
    kinds.register(move |job: Receipt, _: Context| receipt(Arc::clone(&ledger), job));
    tickr::run(kinds)
}
