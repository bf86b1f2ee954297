//! Calls of the API with an API key, and the creation of such keys.

use reqwest::Method;
use serde_json::Value;

use super::{Answer, answer, http};

/// Call the tickr at this address with this API key, or without one if it is empty.
pub(crate) async fn call(url: &str, method: Method, path: &str, key: &str, body: Option<Value>) -> Answer {
    let mut request = http().request(method, format!("{url}{path}"));
    if !key.is_empty() {
        request = request.bearer_auth(key);
    }
    answer(match body {
        Some(body) => request.json(&body),
        None => request,
    })
    .await
}

/// Make an API key, such as `{"scope": "read"}`, as the holder of another one. The first API key needs none.
pub(crate) async fn make_api_key(url: &str, by: &str, name: &str, key: Value) -> String {
    let made = call(url, Method::PUT, &format!("/v1/api-keys/{name}"), by, Some(key)).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    made.body["token"].as_str().unwrap().to_owned()
}
