//! Calls of the API with a key, and the keys.

use reqwest::Method;
use serde_json::Value;

use super::{Answer, answer, http};

/// A call of the tickr at this address with this key, or without one.
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

/// Make a key, such as `{"scope": "read"}`, in the name of another; the first one needs none.
pub(crate) async fn make_key(url: &str, by: &str, name: &str, key: Value) -> String {
    let made = call(url, Method::PUT, &format!("/v1/keys/{name}"), by, Some(key)).await;
    assert_eq!(made.status, 201, "{:#}", made.body);
    made.body["token"].as_str().unwrap().to_owned()
}
