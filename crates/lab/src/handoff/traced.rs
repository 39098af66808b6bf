//! Instructions and cache lines of a message, counted by the tracer of the protocol study: what the
//! program and the bypass library do, and what the kernel does where there is no card.

use std::fs::File;
use std::io::{Cursor, Read, Seek};
use std::path::Path;

use fairlead_trace::references::Reader;
use serde::Serialize;

use super::bench::{Bench, Load};
use super::message::MESSAGE_BYTES;
use crate::control::Control;
use crate::error::LabError;
use crate::protocol::layers::{LayerRow, Patterns, layers};
use crate::protocol::{bpf_paths, linux};

/// Messages of each kind.
const MESSAGES: u32 = 1_000;
const KERNEL_MESSAGES: u32 = 100;
/// The kind of packet of the kernel's workload that is of the sender.
const SEND: &str = "send";

/// What one message costs in one way to send it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Traced {
    /// Which way.
    pub way: String,
    /// By layer.
    pub layers: Vec<LayerRow>,
}

/// All that can be traced here. What cannot is a note.
///
/// # Errors
/// A stop.
pub fn traced(
    bench: &Bench,
    named: Option<&Path>,
    control: &dyn Control,
) -> Result<(Vec<Traced>, Vec<String>), LabError> {
    let (mut all, mut notes) = (Vec::new(), Vec::new());
    let mut keep = |way: String, outcome: Result<Vec<LayerRow>, LabError>| match outcome {
        Ok(layers) => {
            all.push(Traced { way, layers });
            Ok(())
        }
        Err(LabError::Stopped) => Err(LabError::Stopped),
        Err(error) => {
            notes.push(format!("{way}: not traced: {error}"));
            Ok(())
        }
    };
    keep("host's kernel".to_owned(), kernel(named, control))?;
    for load in Load::MESSAGES {
        for connections in [1, 256] {
            let way = format!("card, {connections}, {}", load.name());
            keep(way, library(bench, connections, load, control))?;
        }
    }
    Ok((all, notes))
}

/// `send` of the host's kernel: TCP over lo, so what the receiving half does until the socket is in
/// it, too.
fn kernel(named: Option<&Path>, control: &dyn Control) -> Result<Vec<LayerRow>, LabError> {
    let kernel = linux::kernel(named)?;
    let size = MESSAGE_BYTES as u32;
    let spec = linux::spec("linux-tcp", &[size], KERNEL_MESSAGES, &kernel)?;
    let trace = bpf_paths::traced(&spec, control)?;
    let mut rows = rows("the kernel's trace", Cursor::new(trace), control)?;
    rows.retain(|row| row.kind.contains(SEND));
    Ok(rows)
}

fn library(
    bench: &Bench,
    connections: u32,
    load: Load,
    control: &dyn Control,
) -> Result<Vec<LayerRow>, LabError> {
    let path = bench.trace(connections, load, MESSAGES)?;
    let file = File::open(&path).map_err(|error| LabError::file(&path, error))?;
    rows("the library's trace", file, control)
}

fn rows<R: Read + Seek>(
    name: &str,
    trace: R,
    control: &dyn Control,
) -> Result<Vec<LayerRow>, LabError> {
    let mut reader = Reader::new(name, trace).map_err(crate::protocol::unreadable)?;
    Ok(layers(&mut reader, &Patterns::known()?, control)?.rows)
}
