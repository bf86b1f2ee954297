//! The span of an attempt, in the trace in which its job was enqueued.

use std::borrow::Cow;
use std::time::SystemTime;

use tickr_job::{SpanId, TraceContext, Verdict};
use tickr_store::Claimed;
use tickr_telemetry::{Role, Span, Tracer, Value};

/// Span context of an attempt.
pub(super) struct AttemptTrace {
    /// Trace context for the handler and for follow-up jobs.
    carried: Option<TraceContext>,
    /// Span that enqueued the job, and the start of the attempt. None when the span is not recorded.
    recorded: Option<(SpanId, SystemTime)>,
}

impl AttemptTrace {
    pub(super) fn begin(tracer: &Tracer, claimed: &Claimed) -> Self {
        let Some(context) = &claimed.options.trace else { return Self { carried: None, recorded: None } };
        if !tracer.records(context) {
            return Self { carried: Some(context.clone()), recorded: None };
        }
        let own = context.span_context.with_span(SpanId::for_attempt(claimed.id, claimed.number));
        let carried = Some(TraceContext { span_context: own, state: context.state.clone() });
        Self { carried, recorded: Some((context.span_context.span(), SystemTime::now())) }
    }

    pub(super) fn trace_context(&self) -> Option<&TraceContext> {
        self.carried.as_ref()
    }

    /// Record the span of an attempt that ended. It has no error text, because that may quote the payload.
    pub(super) fn end(self, tracer: &Tracer, runner: &str, claimed: &Claimed, verdict: Verdict) {
        let (Some(TraceContext { span_context, state }), Some((parent, started))) = (self.carried, self.recorded)
        else {
            return;
        };
        // A stopped, returned or snoozed attempt is not a failure.
        let failed =
            !matches!(verdict, Verdict::Succeeded | Verdict::Cancelled | Verdict::Interrupted | Verdict::Snoozed);
        let (id, kind, queue) = (claimed.id.to_string(), claimed.kind.to_string(), claimed.queue.to_string());
        let mut attributes: Vec<(&'static str, Value)> = vec![
            ("messaging.system", "tickr".into()),
            ("messaging.operation.type", "process".into()),
            ("messaging.destination.name", queue.clone().into()),
            ("messaging.message.id", id.clone().into()),
            ("tickr.job", id.into()),
            ("tickr.kind", kind.clone().into()),
            ("tickr.queue", queue.into()),
            ("tickr.attempt", u64::from(claimed.attempt).into()),
            ("tickr.runner", runner.to_owned().into()),
            ("tickr.verdict", verdict.as_str().into()),
        ];
        if failed {
            attributes.push(("error.type", verdict.as_str().into()));
        }
        tracer.record(Span {
            name: Cow::Owned(format!("run {kind}")),
            role: Role::Consumer,
            span_context,
            parent: Some(parent),
            state,
            link: (claimed.number > 1).then(|| SpanId::for_attempt(claimed.id, claimed.number - 1)),
            started,
            ended: SystemTime::now(),
            attributes,
            failed,
        });
    }
}
