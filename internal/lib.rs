//! tickr: a durable job runner for teams on MySQL.

pub mod handlers;
pub mod job;
