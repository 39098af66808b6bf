//! Connection handoff as in Kim and Rixner's paper, measured on this machine: where the host's time
//! for a packet goes with and without cards, which messages pass, and what the card does.
//!
//! | file | contents |
//! |---|---|
//! | `bench.rs` | namespaces, cards and processes |
//! | `load.rs`, `message.rs` | the paper's microbenchmark |
//! | `samples.rs` | time by layer |
//! | `traced.rs` | instructions and cache lines by layer |
//! | `published.rs` | what the paper prints |
//! | `report.rs` | the tables |
//! | `page.rs` | the page of HTML |

pub mod bench;
pub mod load;
mod message;
pub mod page;
pub mod published;
pub mod report;
pub mod samples;
pub mod traced;

use std::path::Path;

use bench::{Bench, Carried, Seen, Source};
use published::FIGURE_7;
use report::{Report, Row, Side};

use crate::control::Control;
use crate::error::LabError;

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct HandoffSpec {
    /// How long each measurement looks.
    pub seconds: u64,
    /// How often each is made, host and cards by turns; medians are shown.
    pub rounds: u32,
}

/// Measures every row of figure 7, and with it all the rest; `kernel` is a file whose `send` is
/// traced, unless one is at hand.
///
/// # Errors
/// What the machine lacks; a stop.
pub fn paper(
    spec: HandoffSpec,
    kernel: Option<&Path>,
    control: &dyn Control,
) -> Result<Report, LabError> {
    let cards = FIGURE_7.iter().map(|one| one.cards).max().unwrap_or(1);
    let bench = Bench::new(cards)?;
    let steps = 4 * u64::from(spec.rounds) * FIGURE_7.len() as u64;
    control.begin("measuring", steps);
    let mut done = 0;
    let mut rows = Vec::new();
    let asked = FIGURE_7
        .into_iter()
        .flat_map(|one| Source::BOTH.map(|source| (one, source)));
    for (asked, source) in asked {
        let ways = [Carried::ByHost, Carried::ByCards(asked.cards)];
        let mut seen: [Vec<Seen>; 2] = Default::default();
        for _ in 0..spec.rounds {
            for (carried, all) in ways.into_iter().zip(&mut seen) {
                if control.stopped() {
                    return Err(LabError::Stopped);
                }
                all.push(bench.measure(asked.connections, carried, source, spec.seconds)?);
                done += 1;
                control.reached(done);
            }
        }
        let [host, offloaded] = seen.map(|seen| Side::of(&seen, spec.seconds));
        rows.push(Row {
            connections: asked.connections,
            cards: asked.cards,
            source,
            host,
            offloaded,
            published: asked.change,
        });
    }
    control.end();
    let (traced, notes) = traced::traced(&bench, kernel, control)?;
    Ok(Report::new(spec, rows, traced, notes))
}
