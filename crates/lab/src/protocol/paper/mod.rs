//! The claims of "Cache Behavior of Network Protocols" (Nahum and others, 1997), held against the
//! stacks at hand.
//!
//! Only the paper's abstract and introduction are stored, so only what they say is compared; its
//! tables and figures are not. The paper's stack is not at hand either: the question is the same,
//! the code is other code.
//!
//! | file | |
//! |---|---|
//! | `claims.rs` | what the paper says, held against ours |
//! | `tables.rs` | our numbers, as tables |
//! | `page.rs` | all of it as one page of HTML |
//! | `drawing.rs` | curves as SVG |

pub mod claims;
mod drawing;
pub mod page;
pub mod tables;

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;

use fairlead_trace::references::{Reader, Writer};
use serde::Serialize;

use super::layers::{LayerReport, Patterns, layers};
use super::machine::Machine;
use super::report::Report;
use super::stacks::{STACKS, Stack, StackRun};
use super::sweep::{SweepSpec, sweep};
use super::tracer::trace;
use crate::control::Control;
use crate::error::LabError;
use crate::paper::Claim;

/// What is run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StudySpec {
    /// Payloads of messages, bytes; those that a stack does not support are left out.
    pub sizes: Vec<u32>,
    /// Numbers of connections, for the stacks that have several.
    pub connections: Vec<u32>,
    /// Packets of each kind.
    pub packets: u32,
    /// Caches and machines.
    pub sweep: SweepSpec,
}

/// Packets of each kind that warm up.
const WARM_UP: u64 = 20;
/// Connections where their number is not what is varied.
pub const CONNECTIONS: u32 = 100;
/// The message whose layers are shown.
const LAYERS_SIZE: u32 = 1024;

impl StudySpec {
    /// The whole study, or a quick look.
    ///
    /// # Errors
    /// Never, as a test shows.
    pub fn new(is_quick: bool) -> Result<Self, LabError> {
        let sweep = SweepSpec {
            lines: vec![32],
            machines: Machine::known()?,
            warm_up: WARM_UP,
            ..SweepSpec::default()
        };
        let (sizes, connections, packets): (&[u32], &[u32], u32) = match is_quick {
            true => (&[1, 1024], &[1, 1000], 60),
            false => (
                &[1, 64, 512, 1024, 4096, 8192],
                &[1, 1000, 10_000, 100_000],
                200,
            ),
        };
        Ok(Self {
            sizes: sizes.to_vec(),
            connections: connections.to_vec(),
            packets,
            sweep,
        })
    }
}

/// A workload with one size of messages and one number of connections.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scenario {
    /// The stack.
    pub stack: String,
    /// Payload, bytes.
    pub size: u32,
    /// Connections.
    pub connections: u32,
    /// Caches and machines.
    pub report: Report,
    /// Instructions by layer, for one size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayerReport>,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Study {
    /// Of the program.
    pub version: &'static str,
    /// What was run.
    pub asked: StudySpec,
    /// What came out.
    pub scenarios: Vec<Scenario>,
    /// The paper's claims.
    pub claims: Vec<Claim>,
}

/// Whether a stack has connections to choose among.
fn has_connections(stack: &Stack) -> bool {
    stack.name.starts_with("datapath")
}

/// The runs of a study: stack, size, connections.
fn runs(spec: &StudySpec) -> Vec<StackRun> {
    let mut runs = Vec::new();
    for stack in STACKS {
        let run = StackRun {
            stack,
            size: 1,
            packets: spec.packets,
            connections: CONNECTIONS,
        };
        let sizes = spec.sizes.iter().filter(|size| **size <= stack.size_max);
        runs.extend(sizes.map(|&size| StackRun { size, ..run }));
        if stack.name == "datapath" {
            runs.extend(spec.connections.iter().map(|&connections| {
                // Enough packets that most of the connections are met.
                let packets = spec.packets.max(connections.min(spec.packets * 20));
                StackRun {
                    connections,
                    size: LAYERS_SIZE,
                    packets,
                    ..run
                }
            }));
        }
    }
    runs
}

/// Traces and sweeps every stack. Traces are written to `folder` and stay there.
///
/// # Errors
/// No emulator, no workloads, a full disk, a stop.
pub fn study(
    asked: StudySpec,
    folder: &Path,
    threads: usize,
    control: &dyn Control,
) -> Result<Study, LabError> {
    fs::create_dir_all(folder).map_err(|error| LabError::file(folder, error))?;
    let patterns = Patterns::known()?;
    let mut scenarios: Vec<Scenario> = Vec::new();
    for run in runs(&asked) {
        let known = |one: &Scenario| {
            (&one.stack[..], one.size, one.connections)
                == (run.stack.name, run.size, run.connections)
        };
        if scenarios.iter().any(known) {
            continue;
        }
        let name = format!("{}-{}-{}.refs", run.stack.name, run.size, run.connections);
        let path = folder.join(name);
        write_trace(&run, &path, control)?;
        let mut reader = open(&path)?;
        let report = sweep(&mut reader, &asked.sweep, threads, control)?;
        let layers = if run.size == LAYERS_SIZE && run.connections == CONNECTIONS {
            reader.rewind().map_err(super::unreadable)?;
            Some(layers(&mut reader, &patterns, control)?)
        } else {
            None
        };
        scenarios.push(Scenario {
            stack: run.stack.name.to_owned(),
            size: run.size,
            connections: if has_connections(&run.stack) {
                run.connections
            } else {
                1
            },
            report,
            layers,
        });
    }
    Ok(Study::new(asked, scenarios))
}

impl Study {
    /// Holds the claims against these scenarios.
    pub fn new(asked: StudySpec, scenarios: Vec<Scenario>) -> Self {
        Self {
            version: crate::sweep::VERSION,
            claims: claims::claims(&scenarios),
            asked,
            scenarios,
        }
    }
}

fn open(path: &Path) -> Result<Reader<File>, LabError> {
    let file = File::open(path).map_err(|error| LabError::file(path, error))?;
    Reader::new(path.display().to_string(), file).map_err(super::unreadable)
}

fn write_trace(run: &StackRun, path: &Path, control: &dyn Control) -> Result<(), LabError> {
    let failed = |error| LabError::file(path, error);
    let file = File::create(path).map_err(failed)?;
    let mut writer = Writer::new(BufWriter::new(file)).map_err(failed)?;
    let outcome = trace(&run.spec()?, control, &mut |events| {
        events
            .iter()
            .try_for_each(|event| writer.push(*event))
            .map_err(failed)
    })?;
    writer.finish(outcome.header).map_err(failed)?;
    match outcome.trouble {
        Some(trouble) => Err(LabError::Protocol(format!("{}: {trouble}", run.stack.name))),
        None => Ok(()),
    }
}
