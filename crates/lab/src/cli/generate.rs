//! `lab generate`: generates a synthetic trace.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use fairlead_workload::Standard;
use fairlead_workload::count::{count, sessions};

use super::convert::{Target, write};
use super::output::Written;
use super::{Context, output};
use crate::error::LabError;
use crate::load::{Loader, StreamSpec, Zipf};
use crate::table::grouped;

/// Arguments of `lab generate`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab generate standard --sessions 4000 --seconds 60 --out standard.lab
  lab generate zipf --ids 1M --accesses 20M --out zipf.oracleGeneral"
)]
pub struct GenerateArgs {
    /// Kind of workload.
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Clone, Debug, Subcommand)]
enum Kind {
    /// ON/OFF sessions: geometric burst lengths, log-normal pauses
    Standard(StandardArgs),
    /// Independent accesses with a Zipf distribution
    Zipf(ZipfArgs),
}

#[derive(Clone, Debug, Args)]
struct OutArgs {
    /// Random seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Output file; its extension selects the format (.lab, .oracleGeneral, .csv)
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
    /// Output format, if the extension does not determine it
    #[arg(long, value_name = "FORMAT", value_enum)]
    to: Option<Target>,
}

#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true)]
struct StandardArgs {
    /// Number of open sessions
    #[arg(long, value_name = "NUMBER", value_parser = sessions)]
    sessions: Option<u32>,
    /// Mean accesses per ON burst
    #[arg(long, value_name = "NUMBER")]
    burst_mean: Option<f64>,
    /// Duration in seconds
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    #[command(flatten)]
    out: OutArgs,
}

#[derive(Clone, Debug, Args)]
#[command(allow_negative_numbers = true)]
struct ZipfArgs {
    /// Number of sessions
    #[arg(long, value_name = "NUMBER", value_parser = sessions, default_value = "1M")]
    ids: u32,
    /// Zipf exponent
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0)]
    alpha: f64,
    /// Number of accesses
    #[arg(long, value_name = "NUMBER", value_parser = count, default_value = "20M")]
    accesses: u64,
    #[command(flatten)]
    out: OutArgs,
}

pub(super) fn run(args: &GenerateArgs, context: &Context<'_>) -> Result<(), LabError> {
    let (out, made) = match &args.kind {
        Kind::Standard(args) => {
            let mut standard = Standard::default();
            standard.sessions = args.sessions.unwrap_or(standard.sessions);
            standard.burst_mean = args.burst_mean.unwrap_or(standard.burst_mean);
            standard.seconds = args.seconds.unwrap_or(standard.seconds);
            (&args.out, StreamSpec::standard(standard, args.out.seed))
        }
        Kind::Zipf(args) => {
            let zipf = Zipf {
                ids: args.ids,
                alpha: args.alpha,
                accesses: args.accesses,
            };
            let made = StreamSpec {
                zipf: Some(zipf),
                seed: args.out.seed,
                ..StreamSpec::default()
            };
            (&args.out, made)
        }
    };
    let target = Target::of(out.to, &out.out)?;
    let stream = Loader::with_times().stream(&made, context.control)?;
    let text = format!(
        "{}: {} accesses of {} sessions, synthetic",
        out.out.display(),
        grouped(stream.ids.len() as u64),
        grouped(stream.note.sessions)
    );
    if write(stream, target, &out.out, context)? == Written::ReaderLeft {
        return Ok(());
    }
    output::report(&out.out, &text, context)
}
