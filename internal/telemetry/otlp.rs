//! Spans in the OTLP wire format: the protobuf message `ExportTraceServiceRequest`, encoded by hand.
//!
//! Nine kinds of fields do not justify a code generator, a second HTTP client and the OpenTelemetry SDK. A test decodes
//! the output with the official types.

use std::time::{SystemTime, UNIX_EPOCH};

use super::traces::{Span, Value};

/// The sender of the spans.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    pub(super) service: String,
    pub(super) instance: String,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// `STATUS_CODE_ERROR`.
const ERROR: u64 = 2;
/// Flag of spans and links: the parent, or the linked span, may belong to another process.
const IS_REMOTE: u32 = 0x300;

/// Encode one request with these spans.
pub(super) fn request(resource: &Resource, spans: &[Span]) -> Vec<u8> {
    let mut out = Message::default();
    out.message(1, |resource_spans| {
        resource_spans.message(1, |message| {
            for (name, text) in [
                ("service.name", resource.service.as_str()),
                ("service.version", VERSION),
                ("service.instance.id", resource.instance.as_str()),
            ] {
                message.message(1, |pair| {
                    pair.text(1, name);
                    pair.message(2, |any| any.bytes(1, text.as_bytes()));
                });
            }
        });
        resource_spans.message(2, |scope_spans| {
            scope_spans.message(1, |scope| {
                scope.text(1, "tickr");
                scope.text(2, VERSION);
            });
            for one in spans {
                scope_spans.message(2, |message| span(message, one));
            }
        });
    });
    out.0
}

fn span(out: &mut Message, span: &Span) {
    let trace = span.span_context.trace();
    let state = span.state.as_deref().unwrap_or("");
    let sampled = u32::from(span.span_context.is_sampled());
    out.bytes(1, &trace);
    out.bytes(2, &span.span_context.span().bytes());
    out.text(3, state);
    if let Some(parent) = span.parent {
        out.bytes(4, &parent.bytes());
    }
    out.text(5, &span.name);
    out.number(6, span.role as u64);
    out.fixed64(7, nanos(span.started));
    out.fixed64(8, nanos(span.ended));
    for (name, value) in &span.attributes {
        out.message(9, |pair| attribute(pair, name, value));
    }
    if let Some(link) = span.link {
        out.message(13, |message| {
            message.bytes(1, &trace);
            message.bytes(2, &link.bytes());
            message.fixed32(6, sampled | IS_REMOTE);
        });
    }
    if span.failed {
        out.message(15, |status| status.number(3, ERROR));
    }
    out.fixed32(16, if span.parent.is_some() { sampled | IS_REMOTE } else { sampled });
}

fn attribute(out: &mut Message, name: &str, value: &Value) {
    out.text(1, name);
    out.message(2, |any| match value {
        Value::Text(text) => any.bytes(1, text.as_bytes()),
        // Two's complement, at most ten bytes, as the format requires. The values here are small and positive.
        Value::Number(number) => any.number(3, *number),
    });
}

fn nanos(moment: SystemTime) -> u64 {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// A protobuf message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn tag(&mut self, field: u32, wire: u32) {
        self.varint(u64::from(field << 3 | wire));
    }

    fn number(&mut self, field: u32, value: u64) {
        self.tag(field, 0);
        self.varint(value);
    }

    fn fixed64(&mut self, field: u32, value: u64) {
        self.tag(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    fn fixed32(&mut self, field: u32, value: u32) {
        self.tag(field, 5);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    /// Write text unless it is empty: an absent field means the same.
    fn text(&mut self, field: u32, text: &str) {
        if !text.is_empty() {
            self.bytes(field, text.as_bytes());
        }
    }

    fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }
}
