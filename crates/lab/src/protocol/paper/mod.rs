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
use std::path::{Path, PathBuf};

use fairlead_trace::references::{Event, Reader, Writer};
use serde::Serialize;

use super::layers::{LayerReport, Patterns, layers};
use super::machine::Machine;
use super::report::Report;
use super::stacks::{STACKS, Stack, StackRun};
use super::sweep::{SweepSpec, sweep};
use super::tracer::{TraceSpec, trace, trace_guest};
use super::{linux, lwip};
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

/// Stacks that do not come with the laboratory.
#[derive(Clone, Debug, Default)]
pub struct Others {
    /// A Linux kernel.
    pub kernel: Option<PathBuf>,
    /// A checkout of lwIP.
    pub lwip: Option<PathBuf>,
}

/// Traces and sweeps every stack. Traces are written to `folder` and stay there.
///
/// # Errors
/// No emulator, no workloads, a full disk, a stop.
pub fn study(
    asked: StudySpec,
    others: &Others,
    folder: &Path,
    threads: usize,
    control: &dyn Control,
) -> Result<Study, LabError> {
    fs::create_dir_all(folder).map_err(|error| LabError::file(folder, error))?;
    let mut all = All {
        asked: &asked,
        patterns: Patterns::known()?,
        folder,
        threads,
        control,
        scenarios: Vec::new(),
    };
    for run in runs(&asked) {
        let connections = if has_connections(&run.stack) {
            run.connections
        } else {
            1
        };
        if all.has(run.stack.name, run.size, connections) {
            continue;
        }
        let path = all.path(run.stack.name, run.size, run.connections);
        write_trace(&run.spec()?, &path, control)?;
        all.add(&path, run.stack.name, run.size, connections)?;
    }
    if let Some(checkout) = &others.lwip {
        let built = lwip::Built::new(checkout)?;
        for (stack, _) in lwip::STACKS {
            for &size in asked.sizes.iter().filter(|size| **size <= lwip::SIZE_MAX) {
                let path = all.path(stack, size, 1);
                let spec = built.spec(stack, size, asked.packets)?;
                write_trace(&spec, &path, control)?;
                all.add(&path, stack, size, 1)?;
            }
        }
    }
    if let Some(kernel) = &others.kernel {
        for (stack, _) in linux::STACKS {
            write_linux(stack, kernel, &all)?;
            for &size in &asked.sizes {
                let path = all.path(stack, size, 1);
                all.add(&path, stack, size, 1)?;
            }
        }
    }
    let scenarios = all.scenarios;
    Ok(Study::new(asked, scenarios))
}

/// The scenarios of a study, as they are finished.
struct All<'a> {
    asked: &'a StudySpec,
    patterns: Patterns,
    folder: &'a Path,
    threads: usize,
    control: &'a dyn Control,
    scenarios: Vec<Scenario>,
}

impl All<'_> {
    fn has(&self, stack: &str, size: u32, connections: u32) -> bool {
        let is_it = |one: &Scenario| {
            (&one.stack[..], one.size, one.connections) == (stack, size, connections)
        };
        self.scenarios.iter().any(is_it)
    }

    /// Of a trace.
    fn path(&self, stack: &str, size: u32, connections: u32) -> PathBuf {
        self.folder
            .join(format!("{stack}-{size}-{connections}.refs"))
    }

    /// Sweeps a trace.
    fn add(
        &mut self,
        path: &Path,
        stack: &str,
        size: u32,
        connections: u32,
    ) -> Result<(), LabError> {
        let mut reader = open(path)?;
        let report = sweep(&mut reader, &self.asked.sweep, self.threads, self.control)?;
        let is_usual = connections == CONNECTIONS || !stack.starts_with("datapath");
        let layers = if size == LAYERS_SIZE && is_usual {
            reader.rewind().map_err(super::unreadable)?;
            Some(layers(&mut reader, &self.patterns, self.control)?)
        } else {
            None
        };
        self.scenarios.push(Scenario {
            stack: stack.to_owned(),
            size,
            connections,
            report,
            layers,
        });
        Ok(())
    }
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

fn writer(path: &Path) -> Result<Writer<BufWriter<File>>, LabError> {
    let failed = |error| LabError::file(path, error);
    let file = File::create(path).map_err(failed)?;
    Writer::new(BufWriter::new(file)).map_err(failed)
}

fn write_trace(spec: &TraceSpec, path: &Path, control: &dyn Control) -> Result<(), LabError> {
    let failed = |error| LabError::file(path, error);
    let mut writer = writer(path)?;
    let outcome = trace(spec, control, &mut |events| {
        events
            .iter()
            .try_for_each(|event| writer.push(*event))
            .map_err(failed)
    })?;
    writer.finish(outcome.header).map_err(failed)?;
    outcome
        .trouble
        .map_or(Ok(()), |trouble| Err(LabError::Protocol(trouble)))
}

/// A machine takes longer to start than to send its messages, so one sends those of all sizes; each
/// size has a trace of its own.
fn write_linux(stack: &str, kernel: &Path, all: &All<'_>) -> Result<(), LabError> {
    let sizes = &all.asked.sizes;
    let spec = linux::spec(stack, sizes, all.asked.packets, kernel)?;
    let paths: Vec<PathBuf> = sizes.iter().map(|size| all.path(stack, *size, 1)).collect();
    let mut writers = paths
        .iter()
        .map(|path| writer(path))
        .collect::<Result<Vec<_>, _>>()?;
    // A message is sent and received.
    let packets_of_a_size = 2 * u64::from(all.asked.packets);
    let mut begun = 0;
    let outcome = trace_guest(&spec, all.control, &mut |events| {
        for event in events {
            begun += u64::from(matches!(event, Event::Begin { .. }));
            let at = (begun.saturating_sub(1) / packets_of_a_size) as usize;
            let at = at.min(paths.len() - 1);
            let failed = |error| LabError::file(&paths[at], error);
            writers[at].push(*event).map_err(failed)?;
        }
        Ok(())
    })?;
    if let Some(trouble) = outcome.trouble {
        return Err(LabError::Protocol(trouble));
    }
    for ((writer, path), size) in writers.into_iter().zip(&paths).zip(sizes) {
        let mut header = outcome.header.clone();
        header.command[1] = size.to_string();
        writer
            .finish(header)
            .map_err(|error| LabError::file(path, error))?;
    }
    Ok(())
}
