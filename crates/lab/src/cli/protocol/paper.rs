//! `lab protocol paper`: the claims of the paper on the stacks at hand, as one page.

use std::path::PathBuf;

use clap::Args;

use crate::cli::arguments::ThreadArgs;
use crate::cli::{Context, claims, output};
use crate::error::LabError;
use crate::protocol::linux;
use crate::protocol::paper::page::page;
use crate::protocol::paper::{Others, Study, StudySpec, study};

/// Arguments of `lab protocol paper`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab protocol paper
  lab protocol paper --quick --out protocol-results
Traces every stack that comes with the laboratory under QEMU, with messages of several sizes, and
sweeps each trace. The paper is \"Cache Behavior of Network Protocols\" (Nahum and others, 1997); of
it only the abstract and the introduction were at hand. The folder has index.html, claims.csv,
packet.csv, misses.csv, fits.csv, clock.csv, connections.csv, layers.csv, paper.json, and the
traces."
)]
pub(super) struct PaperArgs {
    /// Output directory
    #[arg(long, short, value_name = "FOLDER", default_value = "protocol-results")]
    out: PathBuf,
    /// Faster: fewer sizes, connections and packets
    #[arg(long)]
    quick: bool,
    /// A Linux kernel (vmlinuz) as a further stack [default: one that scripts/vm has got; with
    /// --quick none]
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// A checkout of lwIP as a further stack
    #[arg(long, value_name = "FOLDER")]
    checkout: Option<PathBuf>,
    #[command(flatten)]
    threads: ThreadArgs,
    /// Print everything as JSON; only traces are written
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &PaperArgs, context: &Context<'_>) -> Result<(), LabError> {
    let spec = StudySpec::new(args.quick)?;
    let folder = args.out.join("traces");
    let kernel = match &args.kernel {
        Some(named) => Some(named.clone()),
        None if args.quick => None,
        None => linux::available(),
    };
    if kernel.is_none() && !args.quick {
        context.note("note: Linux is left out: no kernel or no qemu-system-x86_64 (--kernel)");
    }
    let others = Others {
        kernel,
        lwip: args.checkout.clone(),
    };
    let study = study(
        spec,
        &others,
        &folder,
        args.threads.threads,
        context.control,
    )?;
    if args.json {
        return output::print_json(&study);
    }
    let write = |name: &str, text: &str| output::write_file(&args.out.join(name), text);
    for (name, table) in study.tables() {
        write(name, &table.csv())?;
    }
    write("paper.json", &output::json(&study)?)?;
    write("index.html", &page(&study))?;
    output::print(&text(&study))?;
    let index = args.out.join("index.html");
    output::print(&format!("\nThe page: {}\n", index.display()))
}

fn text(study: &Study) -> String {
    let mut out = String::from("Claims of the paper, and our results\n");
    for group in study.claims.chunk_by(|a, b| a.says == b.says) {
        out += &format!("\n  {}\n", group[0].says);
        for claim in group {
            let verdict = claims::verdict(claim);
            out += &format!("    {}: {verdict}: {}\n", claim.trace, claim.ours);
        }
    }
    out
}
