//! The parts of the `fairlead` binary, for the binary and its tests: configuration file, command
//! line, admin pages, log.

pub mod access;
pub mod admin;
pub mod announce;
mod api;
pub mod cache;
pub mod capture;
pub mod check;
mod checks;
pub mod cli;
pub mod config;
pub mod connections;
pub mod content;
pub mod control;
pub mod demo;
pub mod doctor;
pub mod down;
pub mod drain;
mod front;
pub mod handoff;
pub mod instance;
pub mod lab;
pub mod log;
pub mod manual;
mod number;
pub mod offload;
pub mod reload;
pub mod replay;
mod screen;
pub mod serve;
pub mod server;
pub mod sleepers;
pub mod status;
pub mod top;
