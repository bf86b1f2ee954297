//! Requests of tests that would have tickr call another machine. A test of the guard of callbacks names addresses of
//! others. If the guard that it tests is broken, nothing but the delay of the job keeps tickr from calling them.

use std::net::IpAddr;

use serde_json::Value;

/// Shortest delay of a job that no test waits for.
const NOT_DURING_A_TEST_MS: u64 = 600_000;

/// Top-level names that no machine has, and the name of this one.
const NAMES_OF_NO_OTHER: [&str; 4] = ["localhost", "example", "test", "invalid"];

/// Return the URL of a callback in the body of a request that would go to another machine during the test. The body may
/// be a job, a list of jobs, or whatever else has jobs in it.
pub(crate) fn call_to_another_machine(body: &Value) -> Option<String> {
    match body {
        Value::Array(items) => items.iter().find_map(call_to_another_machine),
        Value::Object(fields) => {
            let url = body["payload"]["url"].as_str().filter(|_| body["kind"] == "http");
            let is_due = body["delay_ms"].as_u64().unwrap_or(0) < NOT_DURING_A_TEST_MS;
            let own = url.filter(|url| is_due && is_elsewhere(url)).map(str::to_owned);
            own.or_else(|| fields.values().find_map(call_to_another_machine))
        }
        _ => None,
    }
}

/// Return whether a URL leads to another machine.
fn is_elsewhere(url: &str) -> bool {
    let Ok(url) = url.parse::<reqwest::Url>() else { return false };
    let Some(host) = url.host_str() else { return false };
    match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(address) => {
            let address = address.to_canonical();
            !address.is_loopback() && !address.is_unspecified()
        }
        Err(_) => {
            let name = host.trim_end_matches('.');
            !NAMES_OF_NO_OTHER.contains(&name.rsplit('.').next().unwrap_or(name))
        }
    }
}
