//! Requests and responses: what every resource needs from HTTP.
//!
//! - `answers.rs`: small parts of many answers
//! - `auth.rs`: authentication and scopes
//! - `awaited_queues.rs`: the number of different queues for which requests of remote workers wait
//! - `body.rs`: bodies, paths and query strings, read with precise errors
//! - `caller.rs`: the jobs that a caller may see and the kinds that it may enqueue
//! - `cursor.rs`: the cursors of listings
//! - `etag.rs`: ETags and conditional requests
//! - `failed_logins.rs`: delay and log of requests with unknown API keys
//! - `filter.rs`: the filter parameters that several routes share
//! - `follow_ups.rs`: the jobs that follow the successes of other programs, and the right to enqueue them
//! - `idempotency.rs`: `Idempotency-Key`
//! - `observe.rs`: the duration and the id of each request
//! - `origin.rs`: protection of an open API against web pages, proxies and foreign host names
//! - `pages.rs`: the routes beside the API
//! - `problem.rs`: problem documents and their codes
//! - `problem_table.rs`: the meaning of each problem code and its remedy
//! - `range.rs`: ranges of time in query strings
//! - `revocation.rs`: the end of long requests when their API key is revoked
//! - `searches.rs`: the limit on searches, counts and other heavy reads that run at the same time
//! - `shares.rs`: permits for streams, imports and downloads, shared between API keys
//! - `trace.rs`: the W3C trace context of a request

pub(super) mod answers;
pub(super) mod auth;
pub(super) mod awaited_queues;
pub(super) mod body;
pub(super) mod caller;
pub(super) mod cursor;
pub(super) mod etag;
pub(super) mod failed_logins;
pub(super) mod filter;
pub(super) mod follow_ups;
pub(super) mod idempotency;
pub(super) mod observe;
pub(super) mod origin;
pub(super) mod pages;
pub(super) mod problem;
pub(super) mod problem_table;
pub(super) mod range;
pub(super) mod revocation;
pub(super) mod searches;
pub(super) mod shares;
pub(super) mod trace;
