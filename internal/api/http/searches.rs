//! The limit on searches and counts that run at the same time.
//!
//! One of them may read a hundred thousand rows. A caller that gets no permit within a short wait gets 429 instead of a
//! position in a growing queue. So a flood of searches leaves connections for other reads, and leaves MySQL to the
//! runners.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::Api;
use crate::http::problem::{Code, Problem};
use tickr_store::StoreError;

/// Time for which a search waits for a permit.
const SHORT_WAIT: Duration = Duration::from_millis(300);

/// Run a search with a permit, or refuse it. The search keeps the permit until it ends, even if the client hangs up
/// earlier, because MySQL goes on with the query as well.
pub(crate) async fn run_with_seat<T: Send + 'static>(
    api: &Api,
    search: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, Problem> {
    let seat = tokio::time::timeout(SHORT_WAIT, Arc::clone(&api.searches).acquire_owned()).await;
    let Ok(Ok(seat)) = seat else {
        metrics::counter!("tickr_searches_refused_total").increment(1);
        let detail =
            "this runner is at its limit of concurrent searches and counts; try again later, or narrow the filter";
        return Err(Problem::new(Code::Overloaded, detail));
    };
    let search = tokio::spawn(async move {
        let found = search.await;
        drop(seat);
        found
    });
    let defect = |_| Problem::new(Code::Internal, "the search failed; the log of this runner has the details");
    Ok(search.await.map_err(defect)??)
}
