//! What is watched while a world runs, by means that share no code with the switch: every stream
//! byte (ledger), every packet at every host (taps), every packet through the switch (translation)
//! and the switch's own numbers (gauges).

mod gauges;
mod ledger;
mod taps;
mod translation;

pub(crate) use gauges::{Gauges, summary};
pub(crate) use ledger::{Ledger, Role};
pub(crate) use taps::Taps;
pub(crate) use translation::Translation;
