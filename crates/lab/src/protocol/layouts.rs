//! The same workload in several builds: how much of a result is the layout of the code.

use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use fairlead_trace::references::{Reader, Writer};
use serde::Serialize;

use super::report::Report;
use super::stacks::StackRun;
use super::sweep::{SweepSpec, sweep};
use super::tally::State;
use super::tracer::trace;
use crate::control::Control;
use crate::error::LabError;

/// Values of one kind of packet over the builds: least, most, and that of the first build.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayoutRow {
    /// The kind of packet.
    pub kind: String,
    /// What is compared.
    pub what: String,
    /// The machine whose caches these are; empty for what needs no cache.
    pub machine: String,
    /// In the first program.
    pub first: f64,
    /// The smallest over all programs.
    pub least: f64,
    /// The largest over all programs.
    pub most: f64,
}

/// Traces a workload in each program and compares the packets: means for misses, medians else.
///
/// # Errors
/// A program that cannot be traced, a stop.
pub fn layouts(
    run: &StackRun,
    programs: &[PathBuf],
    spec: &SweepSpec,
    threads: usize,
    control: &dyn Control,
) -> Result<Vec<LayoutRow>, LabError> {
    let reports = programs
        .iter()
        .map(|program| one(run, program, spec, threads, control));
    Ok(compare(&reports.collect::<Result<Vec<_>, _>>()?))
}

/// Compares sweeps of the same packets in several builds.
pub fn compare(reports: &[Report]) -> Vec<LayoutRow> {
    let mut rows: Vec<LayoutRow> = Vec::new();
    for report in reports {
        for (kind, what, machine, value) in values(report) {
            let same = |row: &&mut LayoutRow| {
                (&row.kind, &row.machine, &row.what[..]) == (&kind, &machine, what)
            };
            match rows.iter_mut().find(same) {
                Some(row) => {
                    row.least = row.least.min(value);
                    row.most = row.most.max(value);
                }
                None => rows.push(LayoutRow {
                    kind,
                    what: what.to_owned(),
                    machine,
                    first: value,
                    least: value,
                    most: value,
                }),
            }
        }
    }
    rows
}

fn values(report: &Report) -> Vec<(String, &'static str, String, f64)> {
    let mut values = Vec::new();
    for row in &report.packets {
        let mut add = |what, value: u64| {
            values.push((row.kind.clone(), what, String::new(), value as f64));
        };
        add("instructions", row.instructions.median);
        add("I lines (64 B)", row.instruction_lines_64.median);
        add("D lines (64 B)", row.data_lines_64.median);
    }
    for row in report
        .machines
        .iter()
        .filter(|row| row.state == State::Warm)
    {
        let mut add = |what, value| {
            values.push((row.kind.clone(), what, row.machine.clone(), value));
        };
        add("I misses, warm", row.i1_misses.mean);
        add("D misses, warm", row.d1_misses.mean);
        add("cycles, warm", row.cycles.mean);
    }
    values
}

/// A trace file that is removed on drop.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn one(
    run: &StackRun,
    program: &Path,
    spec: &SweepSpec,
    threads: usize,
    control: &dyn Control,
) -> Result<Report, LabError> {
    let name = format!("fairlead-layout-{}.refs", std::process::id());
    let scratch = Scratch(std::env::temp_dir().join(name));
    let failed = |error| LabError::file(&scratch.0, error);
    let file = File::create(&scratch.0).map_err(failed)?;
    let mut writer = Writer::new(BufWriter::new(file)).map_err(failed)?;
    let traced = run.spec_of(program.to_owned())?;
    let outcome = trace(&traced, control, &mut |events| {
        let mut all = events.iter();
        all.try_for_each(|event| writer.push(*event))
            .map_err(failed)
    })?;
    writer.finish(outcome.header).map_err(failed)?;
    if let Some(trouble) = outcome.trouble {
        return Err(LabError::Protocol(trouble));
    }
    let file = File::open(&scratch.0).map_err(failed)?;
    let mut reader = Reader::new(program.display().to_string(), file).map_err(super::unreadable)?;
    sweep(&mut reader, spec, threads, control)
}
