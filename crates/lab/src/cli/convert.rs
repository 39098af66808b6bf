//! `lab convert`: a trace in another format.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use fairlead_trace::format::{self, oracle_general};
use fairlead_trace::Accesses;

use super::arguments::StreamArgs;
use super::{Context, output};
use crate::error::LabError;
use crate::load::{Loader, Stream};
use crate::table::grouped;

/// What `lab convert` takes.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  lab convert nasa.log.zst nasa.lab --concurrency 4000
  lab convert capture.pcap capture.oracleGeneral
  lab convert standard:4000 rows.csv
Logs are expanded to accesses first; --concurrency and --expand say how.")]
pub struct ConvertArgs {
    #[command(flatten)]
    stream: StreamArgs,
    /// The file to write
    #[arg(value_name = "OUT")]
    pub(super) out: PathBuf,
    /// Its format; told by the end of its name when left out (.lab, .oracleGeneral, .csv)
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub(super) to: Option<Target>,
}

/// What can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Target {
    /// The laboratory's own compact file
    Lab,
    /// libCacheSim's records of 24 bytes
    #[value(name = "oracleGeneral", alias = "oraclegeneral")]
    OracleGeneral,
    /// A table with header `time_us,ip,port`
    Csv,
}

impl Target {
    /// What was asked for, or what the file's name says.
    pub(super) fn of(asked: Option<Self>, path: &Path) -> Result<Self, LabError> {
        if let Some(target) = asked {
            return Ok(target);
        }
        let name = path.to_string_lossy().to_ascii_lowercase();
        let ends = [
            (".lab", Self::Lab),
            (".oraclegeneral", Self::OracleGeneral),
            (".oraclegeneral.bin", Self::OracleGeneral),
            (".csv", Self::Csv),
        ];
        ends.into_iter()
            .find(|(end, _)| name.ends_with(end))
            .map(|(_, target)| target)
            .ok_or_else(|| {
                let problem = "the name says no format: end it in .lab, .oracleGeneral or .csv, \
                               or write --to";
                LabError::option("OUT", path.display().to_string(), problem)
            })
    }
}

pub(super) fn run(args: &ConvertArgs, context: &Context<'_>) -> Result<(), LabError> {
    let target = Target::of(args.to, &args.out)?;
    let stream = Loader::with_times().stream(&args.stream.spec()?, context.control)?;
    for text in &stream.note.notes {
        context.note(&format!("note: {}: {text}", stream.note.trace));
    }
    if stream.counted_from > 0 {
        context.note(&format!(
            "note: the first {} accesses are warm-up; the file does not say so",
            grouped(stream.counted_from as u64)
        ));
    }
    let rows = stream.ids.len() as u64;
    let sessions = stream.keys.len() as u64;
    write(stream, target, &args.out, context)?;
    output::write_out(&format!(
        "{}: {} accesses of {} sessions\n",
        args.out.display(),
        grouped(rows),
        grouped(sessions)
    ))
}

/// Writes a stream that has its times: all of it or nothing.
pub(super) fn write(
    stream: Stream,
    target: Target,
    path: &Path,
    context: &Context<'_>,
) -> Result<(), LabError> {
    let accesses = Accesses {
        time_us: stream.time_us,
        id: stream.ids,
        keys: stream.keys,
        hint: stream.hints,
    };
    output::write_whole(path, context.control, |out| match target {
        Target::Lab => format::lab::write(&accesses, out),
        Target::OracleGeneral => oracle_general::write(&accesses, 0, out),
        Target::Csv => write_rows(&accesses, out),
    })
}

/// `time_us,ip,port`, a row an access. IPv4 addresses as such.
fn write_rows(accesses: &Accesses, out: &mut dyn Write) -> std::io::Result<()> {
    out.write_all(b"time_us,ip,port\n")?;
    for (at, id) in accesses.time_us.iter().zip(&accesses.id) {
        let key = accesses.keys[*id as usize];
        writeln!(out, "{at},{},{}", key.addr, key.port)?;
    }
    Ok(())
}
