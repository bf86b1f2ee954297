//! Traces: the context that a job carries from the client that enqueued it to its attempts, in W3C Trace Context
//! format.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::JobId;

/// Longest `tracestate` that is carried; the recommendation requires at least this length.
const MAX_STATE_BYTES: usize = 512;
/// Maximum number of members of a `tracestate`.
const MAX_STATE_MEMBERS: usize = 32;
/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;

/// The id of a span within its trace. Never all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

impl SpanId {
    /// Return a new random span id.
    #[must_use]
    pub fn random() -> Self {
        Self::from_bytes(rand::random())
    }

    /// Return the span id of one execution of a job. It is computed from the job and the number, so that the next
    /// execution can link to it although it is not stored.
    #[must_use]
    pub fn for_attempt(job: JobId, number: u32) -> Self {
        let mut digest = Sha256::new();
        digest.update(job.uuid().as_bytes());
        digest.update(number.to_be_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&digest.finalize()[..8]);
        Self::from_bytes(first)
    }

    fn from_bytes(mut bytes: [u8; 8]) -> Self {
        // All zeros means "none" on the wire.
        if bytes == [0; 8] {
            bytes[7] = 1;
        }
        Self(bytes)
    }

    /// Return the bytes, for the wire.
    #[must_use]
    pub const fn bytes(self) -> [u8; 8] {
        self.0
    }
}

/// A span context: the trace, the span, and whether the trace is recorded. The content of `traceparent`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SpanContext {
    trace: [u8; 16],
    span: SpanId,
    flags: u8,
}

impl SpanContext {
    /// Return the root of a new trace that is recorded.
    #[must_use]
    pub fn root() -> Self {
        let mut trace: [u8; 16] = rand::random();
        if trace == [0; 16] {
            trace[15] = 1;
        }
        Self { trace, span: SpanId::random(), flags: SAMPLED }
    }

    /// Return the context of another span of the same trace.
    #[must_use]
    pub const fn with_span(self, span: SpanId) -> Self {
        Self { span, ..self }
    }

    /// Return the trace id, for the wire.
    #[must_use]
    pub const fn trace(self) -> [u8; 16] {
        self.trace
    }

    /// Return the trace id in hex, as logs and tools show it.
    #[must_use]
    pub fn trace_id(self) -> String {
        hex(&self.trace)
    }

    /// Return the span id.
    #[must_use]
    pub const fn span(self) -> SpanId {
        self.span
    }

    /// Return true if this trace is recorded.
    #[must_use]
    pub const fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Parse a `traceparent`. Return `None` for anything that the recommendation forbids; the caller then continues
    /// without a trace.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let version = unhex::<1>(bytes.get(..2)?)?[0];
        // Later versions may have more content after a dash; this version may not.
        let whole = bytes.len() == 55 || (version > 0 && bytes.get(55) == Some(&b'-'));
        let dashes = [2, 35, 52].iter().all(|at| bytes.get(*at) == Some(&b'-'));
        if version == 0xff || !whole || !dashes {
            return None;
        }
        let trace = unhex::<16>(bytes.get(3..35)?)?;
        let span = unhex::<8>(bytes.get(36..52)?)?;
        let flags = unhex::<1>(bytes.get(53..55)?)?[0];
        (trace != [0; 16] && span != [0; 8]).then_some(Self { trace, span: SpanId(span), flags: flags & SAMPLED })
    }
}

impl fmt::Display for SpanContext {
    /// Write the context as a `traceparent`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", hex(&self.trace), hex(&self.span.0), self.flags)
    }
}

impl fmt::Debug for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| DIGITS[usize::from(nibble)] as char;
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Decode hex. Only lower-case digits are accepted, as the recommendation requires.
fn unhex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let nibble = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

/// The trace context that a job carries from its enqueue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Words", into = "Words")]
pub struct TraceContext {
    /// The span context of the enqueue.
    pub span_context: SpanContext,
    /// The `tracestate` of other tracing systems.
    pub state: Option<String>,
}

/// The stored and displayed form.
#[derive(Serialize, Deserialize)]
struct Words {
    traceparent: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tracestate: Option<String>,
}

impl From<TraceContext> for Words {
    fn from(context: TraceContext) -> Self {
        Self { traceparent: context.span_context.to_string(), tracestate: context.state }
    }
}

impl TryFrom<Words> for TraceContext {
    type Error = &'static str;

    fn try_from(words: Words) -> Result<Self, Self::Error> {
        Self::parse(&words.traceparent, words.tracestate.as_deref()).ok_or("not a traceparent")
    }
}

impl TraceContext {
    /// Parse the headers of a client. Without a valid `traceparent` there is no context; an invalid `tracestate` is
    /// left out.
    #[must_use]
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let span_context = SpanContext::parse(traceparent)?;
        Some(Self { span_context, state: tracestate.map(str::trim).filter(|state| is_state(state)).map(str::to_owned) })
    }
}

/// Return true for a list of `key=value` in printable ASCII, within the limits.
fn is_state(text: &str) -> bool {
    let key = |key: &str| {
        let legal =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-' | b'*' | b'/' | b'@');
        key.len() <= 256
            && key.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
            && key.bytes().all(legal)
    };
    let value = |value: &str| {
        let legal = |b: u8| (b' '..=b'~').contains(&b) && !matches!(b, b',' | b'=');
        (1..=256).contains(&value.len()) && value.bytes().all(legal)
    };
    let member = |member: &str| member.split_once('=').is_some_and(|(k, v)| key(k) && value(v));
    let members = text.split(',').map(str::trim).filter(|one| !one.is_empty());
    !text.is_empty()
        && text.len() <= MAX_STATE_BYTES
        && members.clone().count() <= MAX_STATE_MEMBERS
        && members.clone().all(member)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_strictly_and_written_as_it_was() {
        let span_context = SpanContext::parse(GOOD).unwrap();
        assert!(span_context.is_sampled());
        assert_eq!((span_context.to_string().as_str(), span_context.trace_id().as_str()), (GOOD, &GOOD[3..35]));
        // Unknown flags of later versions are not passed on, because their meaning is unknown here.
        let later = GOOD.replacen("00", "01", 1);
        assert_eq!(SpanContext::parse(&format!("{}ff-what-comes", &later[..53])), Some(span_context));
        assert!(!SpanContext::parse(&GOOD.replace("-01", "-00")).unwrap().is_sampled());
        for bad in [
            "",
            "00",
            &GOOD[..54],
            &format!("{GOOD}-more"),
            &format!("{GOOD} "),
            &format!(" {GOOD}"),
            &GOOD.to_uppercase(),
            &GOOD.replacen("00", "ff", 1),
            &GOOD.replacen('-', "_", 1),
            &GOOD.replace('4', "g"),
            &format!("{later}more"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-0",
        ] {
            assert_eq!(SpanContext::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_tracestate_is_bounded_and_left_out_when_it_is_no_good() {
        let state = |text: &str| TraceContext::parse(GOOD, Some(text)).unwrap().state;
        for good in ["rojo=00f067aa0ba902b7", "a=1,b=2", "a=1, b=2,,", "tenant@vendor=x y", "0=~"] {
            assert_eq!(state(good).as_deref(), Some(good));
        }
        let many = (0..33).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        for bad in
            ["", " ", "a", "=1", "a=", "A=1", "a=b=c", "a=é", "a=\u{7f}", &many, &format!("a={}", "v".repeat(511))]
        {
            assert_eq!(state(bad), None, "{bad:?}");
        }
        assert_eq!(TraceContext::parse("nonsense", Some("a=1")), None);
    }

    #[test]
    fn it_is_stored_in_the_words_of_the_recommendation() {
        let context = TraceContext::parse(GOOD, Some("a=1")).unwrap();
        let text = serde_json::to_string(&context).unwrap();
        assert_eq!(text, format!(r#"{{"traceparent":"{GOOD}","tracestate":"a=1"}}"#));
        assert_eq!(serde_json::from_str::<TraceContext>(&text).unwrap(), context);
        assert!(serde_json::from_str::<TraceContext>(r#"{"traceparent":"x"}"#).is_err());
    }

    #[test]
    fn the_span_of_an_attempt_is_known_without_asking() {
        let (one, other) = (JobId::new(), JobId::new());
        assert_eq!(SpanId::for_attempt(one, 1), SpanId::for_attempt(one, 1));
        assert_ne!(SpanId::for_attempt(one, 1), SpanId::for_attempt(one, 2));
        assert_ne!(SpanId::for_attempt(one, 1), SpanId::for_attempt(other, 1));
        assert_eq!(SpanId::from_bytes([0; 8]).bytes(), [0, 0, 0, 0, 0, 0, 0, 1]);
    }

    proptest! {
        #[test]
        fn nothing_a_caller_says_is_misread(text in "\\PC{0,80}", state in "\\PC{0,600}") {
            if let Some(context) = TraceContext::parse(&text, Some(&state)) {
                prop_assert_eq!(context.span_context.to_string().len(), 55);
                prop_assert!(context.state.is_none_or(|state| state.len() <= MAX_STATE_BYTES));
            }
        }

        #[test]
        fn what_is_written_is_read_again(trace in 1_u128.., span in 1_u64.., flags in 0_u8..=1) {
            let span_context = SpanContext { trace: trace.to_be_bytes(), span: SpanId(span.to_be_bytes()), flags };
            prop_assert_eq!(SpanContext::parse(&span_context.to_string()), Some(span_context));
        }
    }
}
