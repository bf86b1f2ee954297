//! tickr: a durable job runner for teams on MySQL.

pub mod api;
pub mod app;
pub mod broker;
pub mod config;
pub mod engine;
pub mod event;
pub mod handlers;
pub mod index;
pub mod job;
pub mod services;
pub mod store;
pub mod table;
pub mod telemetry;
