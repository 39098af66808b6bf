//! `lab convert`: converts a trace to another format.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use fairlead_trace::Accesses;
use fairlead_trace::format::{self, oracle_general};

use super::arguments::StreamArgs;
use super::output::Written;
use super::{Context, output};
use crate::error::LabError;
use crate::load::{Loader, Stream};
use crate::notes::{lost_hints, lost_in_oracle_general};
use crate::table::grouped;

/// Arguments of `lab convert`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab convert nasa.log.zst nasa.lab --concurrency 4000
  lab convert capture.pcap capture.oracleGeneral
  lab convert standard:4000 rows.csv
Logs are expanded to accesses first; --concurrency and --expand say how."
)]
pub struct ConvertArgs {
    #[command(flatten)]
    stream: StreamArgs,
    /// Output file
    #[arg(value_name = "OUT")]
    pub(super) out: PathBuf,
    /// Output format [default: by file extension: .lab, .oracleGeneral, .csv]
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub(super) to: Option<Target>,
}

/// Output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Target {
    /// The laboratory's own compact format
    Lab,
    /// libCacheSim's 24-byte records
    #[value(name = "oracleGeneral", alias = "oraclegeneral")]
    OracleGeneral,
    /// A table with the header `time_us,ip,port`
    Csv,
}

impl Target {
    /// The requested format, or that of the file extension.
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
                let problem = "unknown file extension: use .lab, .oracleGeneral or .csv, or give \
                               --to";
                LabError::option("OUT", path.display().to_string(), problem)
            })
    }
}

pub(super) fn run(args: &ConvertArgs, context: &Context<'_>) -> Result<(), LabError> {
    let target = Target::of(args.to, &args.out)?;
    apart(&args.stream.trace, &args.out)?;
    let stream = Loader::with_times().stream(&args.stream.spec()?, context.control)?;
    for text in &stream.note.notes {
        context.note(&format!("note: {}: {text}", stream.note.trace));
    }
    if stream.counted_from > 0 {
        context.note(&format!(
            "note: the first {} accesses are warm-up, which the file does not record",
            grouped(stream.counted_from as u64)
        ));
    }
    let rows = stream.ids.len() as u64;
    let sessions = stream.note.sessions;
    if write(stream, target, &args.out, context)? == Written::ReaderLeft {
        return Ok(());
    }
    let text = format!(
        "{}: {} accesses of {} sessions",
        args.out.display(),
        grouped(rows),
        grouped(sessions)
    );
    output::report(&args.out, &text, context)
}

/// Refuses to overwrite the trace: a log would be reduced to its expansion, a capture or table to
/// relative times, addresses and ports.
fn apart(trace: &OsStr, out: &Path) -> Result<(), LabError> {
    let real = |path: &Path| {
        let path = std::fs::canonicalize(path).ok()?;
        std::fs::metadata(&path).ok()?.is_file().then_some(path)
    };
    match (real(Path::new(trace)), real(out)) {
        (Some(from), Some(to)) if from == to => Err(LabError::option(
            "OUT",
            out.display().to_string(),
            "is the trace itself; choose another name",
        )),
        _ => Ok(()),
    }
}

/// Writes a stream with times, completely or not at all.
pub(super) fn write(
    stream: Stream,
    target: Target,
    path: &Path,
    context: &Context<'_>,
) -> Result<Written, LabError> {
    let accesses = Accesses {
        time_us: stream.time_us,
        id: stream.ids,
        keys: stream.keys,
        hint: stream.hints,
    };
    for text in losses(&accesses, target) {
        context.note(&format!("note: {}: {text}", path.display()));
    }
    output::write_whole(path, context.control, |out| match target {
        Target::Lab => format::lab::write(&accesses, out),
        Target::OracleGeneral => oracle_general::write(&accesses, 0, out),
        Target::Csv => write_rows(&accesses, out),
    })
}

/// Describes what a format cannot represent of these accesses, so that reading it back gives
/// different ones.
fn losses(accesses: &Accesses, target: Target) -> Vec<String> {
    match target {
        Target::Lab => Vec::new(),
        Target::OracleGeneral => lost_in_oracle_general(accesses),
        Target::Csv => lost_hints(accesses).into_iter().collect(),
    }
}

/// `time_us,ip,port`, one row per access. IPv4 addresses in dotted form.
fn write_rows(accesses: &Accesses, out: &mut dyn Write) -> std::io::Result<()> {
    out.write_all(b"time_us,ip,port\n")?;
    for (at, id) in accesses.time_us.iter().zip(&accesses.id) {
        let key = accesses.keys[*id as usize];
        writeln!(out, "{at},{},{}", key.addr, key.port)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use fairlead_base::{Address, Endpoint};

    use super::*;
    use fairlead_trace::HINT_NONE;

    #[test]
    fn losses_of_a_format_are_reported() {
        let v4 = Endpoint {
            addr: Address::v4([192, 0, 2, 1]),
            port: 1_024,
        };
        let mut octets = [0; 16];
        octets[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb9]);
        let v6 = Endpoint {
            addr: Address::v6(octets),
            port: 1_024,
        };
        let whole = Accesses {
            time_us: vec![0, 3_000_000],
            id: vec![0, 0],
            keys: vec![v4],
            hint: Vec::new(),
        };
        let between = Accesses {
            time_us: vec![0, 3_000_001],
            ..whole.clone()
        };
        let of_v6 = Accesses {
            keys: vec![v6],
            ..whole.clone()
        };
        let closing = Accesses {
            hint: vec![HINT_NONE, fairlead_trace::HINT_CLOSING],
            ..whole.clone()
        };
        // Data read from the format can be written to it again.
        let back = Accesses {
            keys: vec![oracle_general::endpoint_of(u64::MAX)],
            ..whole.clone()
        };
        for (accesses, oracle, csv) in [
            (whole, None, None),
            (back, None, None),
            (between, Some("1 of 2 accesses"), None),
            (of_v6, Some("1 of 1 sessions have IPv6"), None),
            (closing, Some("1 of 2 do"), Some("1 of 2 do")),
        ] {
            let wanted = [
                (Target::Lab, None),
                (Target::OracleGeneral, oracle),
                (Target::Csv, csv),
            ];
            for (target, word) in wanted {
                let notes = losses(&accesses, target);
                assert_eq!(notes.len(), usize::from(word.is_some()), "{notes:?}");
                let said = notes.concat();
                assert!(said.contains(word.unwrap_or_default()), "{said}");
            }
        }
    }
}
