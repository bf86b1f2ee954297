//! tickr: a durable job runner for teams on MySQL.

pub mod config;
pub mod handlers;
pub mod index;
pub mod job;
pub mod store;
