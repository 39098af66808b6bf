//! `fairlead replay`: captures played to the switch.
//!
//! The captures of `tests/captures` are kept with the project. Further ones are played where they
//! are at hand: in `$FAIRLEAD_SHARED/data/captures`, or beside the project in
//! `../shared/data/captures`.

mod captures;
mod command;
mod decisions;
mod faults;
mod streams;
mod support;
