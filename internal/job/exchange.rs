//! The HTTP exchange of an attempt: its request to another service and the response, kept to diagnose a failure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A request and its response, without secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// The HTTP method.
    pub method: String,
    /// The target URL, without the parts that must stay secret.
    pub url: String,
    /// Duration in milliseconds; absent while it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// The response, if one arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<ExchangeResponse>,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeResponse {
    /// The HTTP status.
    pub status: u16,
    /// Response headers that help to find a cause; others are not stored.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The beginning of the body, as text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
}
