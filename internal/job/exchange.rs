//! What an attempt said to another service, and what that answered, for whoever looks for the cause of a failure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A request and its answer, without anything secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// The request's method.
    pub method: String,
    /// Where to, as far as it may be shown.
    pub url: String,
    /// How long it took, in milliseconds; absent while nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// The answer, if one came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<ExchangeResponse>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeResponse {
    /// The HTTP status.
    pub status: u16,
    /// Headers that help to find a cause; others are not kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The beginning of the body, as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
}
