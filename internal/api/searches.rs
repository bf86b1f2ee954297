//! Searches and counts: bounded each, and only so many at the same time.
//!
//! One of them may look at a hundred thousand rows. Callers who find no seat within a moment get 429 instead of a place in a
//! line that grows, so that a flood of them leaves connections for other reads, and MySQL for the runners.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::Api;
use super::problem::{Code, Problem};
use crate::store::StoreError;

/// How long a search waits for a seat.
const SHORT_WAIT: Duration = Duration::from_millis(300);

/// Carry out a search on a seat of its own, or refuse it. It keeps the seat until it has ended, also if its caller hangs up
/// before: the database goes on with it as well.
pub(super) async fn seated<T: Send + 'static>(
    api: &Api,
    search: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, Problem> {
    let seat = tokio::time::timeout(SHORT_WAIT, Arc::clone(&api.searches).acquire_owned()).await;
    let Ok(Ok(seat)) = seat else {
        metrics::counter!("tickr_searches_refused_total").increment(1);
        let detail =
            "as many searches and counts as this runner takes are under way; come back later, or narrow the filter";
        return Err(Problem::new(Code::Overloaded, detail));
    };
    let search = tokio::spawn(async move {
        let found = search.await;
        drop(seat);
        found
    });
    let defect = |_| Problem::new(Code::Internal, "the search broke off; the log of this runner has the details");
    Ok(search.await.map_err(defect)??)
}
