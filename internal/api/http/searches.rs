//! The limit on searches, counts and other heavy reads that run at the same time.
//!
//! One of them may read a hundred thousand rows or more. A caller that gets no permit within a short wait gets 429 instead of a
//! position in a growing queue. So a flood of searches leaves connections for other reads, and leaves MySQL to the
//! runners.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::Api;
use crate::http::problem::{Code, Problem};
use tickr_store::heavy_read;

/// Time for which a heavy read waits for a permit.
const SHORT_WAIT: Duration = Duration::from_millis(300);

/// Run a heavy read with a permit, or refuse it. The read keeps the permit until it ends, even if the client hangs up
/// earlier, because MySQL goes on with the query as well.
pub(crate) async fn run_with_seat<T, E>(
    api: &Api,
    read: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, Problem>
where
    T: Send + 'static,
    E: Send + 'static,
    Problem: From<E>,
{
    let seat = tokio::time::timeout(SHORT_WAIT, Arc::clone(&api.searches).acquire_owned()).await;
    let Ok(Ok(seat)) = seat else {
        metrics::counter!("tickr_searches_refused_total").increment(1);
        let detail =
            "this runner is at its limit of concurrent searches, counts and other heavy reads; try again later";
        return Err(Problem::new(Code::Overloaded, detail));
    };
    let (answer, answered) = tokio::sync::oneshot::channel();
    // Without the type of the read, so that the compiler makes one task for all of them.
    let task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
        let found = heavy_read(read).await;
        drop(seat);
        // The client may have hung up.
        let _ = answer.send(found);
    });
    tokio::spawn(task);
    let defect = |_| Problem::new(Code::Internal, "the read failed; the log of this runner has the details");
    Ok(answered.await.map_err(defect)??)
}
