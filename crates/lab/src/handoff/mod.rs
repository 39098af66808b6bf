//! Connection handoff as in Kim and Rixner's paper, measured on this machine: where the host's time
//! for a packet goes with and without cards, which messages pass, and what the card does.
//!
//! | file | contents |
//! |---|---|
//! | `bench.rs` | namespaces and cards, and what is counted there |
//! | `programs.rs` | the programs of a measurement |
//! | `load.rs`, `message.rs` | the paper's microbenchmark |
//! | `web/` | a web server under SPECweb99's mix |
//! | `totals.rs` | what clients have read |
//! | `samples.rs` | time by layer |
//! | `traced.rs` | instructions and cache lines by layer |
//! | `published.rs` | what the paper prints |
//! | `report.rs` | the tables |
//! | `page.rs` | the page of HTML |

pub mod bench;
pub mod load;
mod message;
pub mod page;
mod programs;
pub mod published;
pub mod report;
pub mod samples;
pub mod totals;
pub mod traced;
pub mod web;

use std::path::Path;

use bench::{Bench, Carried, Load, Seen};
use published::{MESSAGES, Published, WEB};
use report::{Report, Row, Side};

use crate::control::Control;
use crate::error::LabError;

/// Connections of a card, as the paper's prototype.
pub const ROOM: u32 = 256;
/// Connections of a card that has room for all of them and for those that end.
const WEB_ROOM: u32 = 4_096;
/// A card has a connection for messages after its second answer.
const AFTER: u32 = 2;
/// One of the web server at once, as the paper's: most connections have one request.
const WEB_AFTER: u32 = 0;

/// A part of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Messages of one segment, and what is traced of them
    Messages,
    /// A web server under SPECweb99's mix of requests
    Web,
}

/// What to measure.
#[derive(Clone, Copy, Debug)]
pub struct HandoffSpec {
    /// How long each measurement looks.
    pub seconds: u64,
    /// How often each is made, host and cards by turns; medians are shown.
    pub rounds: u32,
    /// Only this part.
    pub only: Option<Part>,
}

/// One row that is measured.
struct Asked {
    connections: u32,
    cards: u32,
    after: u32,
    load: Load,
    published: Published,
}

/// Measures every row of figures 7 and 9, and with it all the rest; `kernel` is a file whose `send`
/// is traced, unless one is at hand.
///
/// # Errors
/// What the machine lacks; a stop.
pub fn paper(
    spec: HandoffSpec,
    kernel: Option<&Path>,
    control: &dyn Control,
) -> Result<Report, LabError> {
    let mut report = Report::new(spec);
    if spec.only != Some(Part::Web) {
        let cards = MESSAGES.iter().map(|(_, cards, _)| *cards).max();
        let bench = Bench::new(cards.unwrap_or(1), ROOM)?;
        let rows = MESSAGES
            .iter()
            .flat_map(|&(connections, cards, published)| {
                Load::MESSAGES.map(|load| Asked {
                    connections,
                    cards,
                    after: AFTER,
                    load,
                    published,
                })
            });
        let rows = rows.collect::<Vec<_>>();
        report.rows.extend(measure(&bench, spec, &rows, control)?);
        let (traced, notes) = traced::traced(&bench, kernel, control)?;
        report.traced = traced;
        report.notes.extend(notes);
    }
    if spec.only != Some(Part::Messages) {
        match bench::web_server() {
            Err(error) if spec.only.is_none() => {
                report.notes.push(format!("web: not measured: {error}"));
            }
            found => {
                found?;
                report.rows.extend(web(spec, control)?);
            }
        }
    }
    Ok(report)
}

fn web(spec: HandoffSpec, control: &dyn Control) -> Result<Vec<Row>, LabError> {
    let mut bench = Bench::new(1, WEB_ROOM)?;
    bench.add_site()?;
    let rows = WEB.map(|(connections, load, published)| Asked {
        connections,
        cards: 1,
        after: WEB_AFTER,
        load,
        published,
    });
    measure(&bench, spec, &rows, control)
}

fn measure(
    bench: &Bench,
    spec: HandoffSpec,
    rows: &[Asked],
    control: &dyn Control,
) -> Result<Vec<Row>, LabError> {
    control.begin("measuring", 2 * u64::from(spec.rounds) * rows.len() as u64);
    let mut done = 0;
    let rows = rows.iter().map(|asked| {
        let &Asked {
            connections,
            cards,
            after,
            load,
            published,
        } = asked;
        let ways = [Carried::ByHost, Carried::ByCards { cards, after }];
        let mut seen: [Vec<Seen>; 2] = Default::default();
        for _ in 0..spec.rounds {
            for (carried, all) in ways.into_iter().zip(&mut seen) {
                if control.stopped() {
                    return Err(LabError::Stopped);
                }
                all.push(bench.measure(connections, carried, load, spec.seconds)?);
                done += 1;
                control.reached(done);
            }
        }
        let [host, offloaded] = seen.map(|seen| Side::of(&seen, spec.seconds));
        Ok(Row {
            connections,
            cards,
            load,
            host,
            offloaded,
            published,
        })
    });
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    control.end();
    Ok(rows)
}
