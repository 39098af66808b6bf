//! Commands for operators, the pages that they ask, and what is installed with them.

mod admin;
mod alerts;
mod capture;
mod command;
mod doctor;
mod install;
mod metrics;
mod top;
