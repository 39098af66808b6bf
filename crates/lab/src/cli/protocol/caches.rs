//! `lab protocol caches`: one pair of caches over a second level, counted as cachegrind counts.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use fairlead_cache::memory::{Geometry, Hierarchy};

use super::open;
use crate::cli::{Context, output};
use crate::error::LabError;
use crate::protocol::caches::{CacheCounts, count};
use crate::protocol::machine::ratio;
use crate::size::Size;
use crate::table::{Table, grouped, percent};

/// Arguments of `lab protocol caches`.
#[derive(Clone, Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  lab protocol caches T.refs
  lab protocol caches T.refs --i1 16K,1,32 --d1 16K,1,32 --ll 1M,1,128 --json
A cache is written as bytes, ways, and bytes of a line. All references of the trace are counted,
between packets, too, with the rules of cachegrind: LRU, a modification is a read, an access that
straddles lines misses at most once, and each round of a repeated instruction is an instruction."
)]
pub(super) struct CachesArgs {
    /// A trace of `lab protocol run`
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Instruction cache: size, ways, line
    #[arg(
        long,
        value_name = "CACHE",
        default_value = "32K,8,64",
        allow_hyphen_values = true
    )]
    i1: Written,
    /// Data cache: size, ways, line
    #[arg(
        long,
        value_name = "CACHE",
        default_value = "32K,8,64",
        allow_hyphen_values = true
    )]
    d1: Written,
    /// Second level, for instructions and data: size, ways, line
    #[arg(
        long,
        value_name = "CACHE",
        default_value = "1M,16,64",
        allow_hyphen_values = true
    )]
    ll: Written,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `32K,8,64`.
#[derive(Clone, Copy, Debug)]
struct Written(Geometry);

impl FromStr for Written {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "write size, ways and bytes of a line: 32K,8,64";
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let [size, ways, line] = parts[..] else {
            return Err(FORM.to_owned());
        };
        let size: Size = size.parse()?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| FORM.to_owned());
        Geometry::new(size.0, number(ways)?, number(line)?)
            .map(Self)
            .map_err(|error| error.to_string())
    }
}

pub(super) fn run(args: &CachesArgs, context: &Context<'_>) -> Result<(), LabError> {
    let mut reader = open(&args.trace)?;
    let mut caches = Hierarchy::new(args.i1.0, args.d1.0, args.ll.0);
    let counts = count(&mut reader, &mut caches, context.control)?;
    if args.json {
        return output::print_json(&counts);
    }
    output::print(&text(args, &counts))
}

fn text(args: &CachesArgs, counts: &CacheCounts) -> String {
    let mut table = Table::new(["cache", "", "references", "misses", "miss ratio"]);
    let name = |Written(geometry): &Written| {
        format!(
            "{}, {} ways, {} B",
            Size(geometry.capacity_bytes()),
            geometry.ways(),
            geometry.line_bytes()
        )
    };
    let (i1, d1, ll) = (&counts.i1, &counts.d1, &counts.ll);
    let data = format!("D1 {}", name(&args.d1));
    let last = format!("LL {}", name(&args.ll));
    for (cache, what, references, misses) in [
        (
            format!("I1 {}", name(&args.i1)),
            "instructions",
            i1.references,
            i1.misses,
        ),
        (data.clone(), "reads", d1.reads, d1.read_misses),
        (data, "writes", d1.writes, d1.write_misses),
        (
            last.clone(),
            "instructions",
            i1.misses,
            ll.instruction_misses,
        ),
        (last.clone(), "reads", d1.read_misses, ll.read_misses),
        (last, "writes", d1.write_misses, ll.write_misses),
    ] {
        table.row([
            cache,
            what.to_owned(),
            grouped(references),
            grouped(misses),
            percent(ratio(misses as f64, references as f64)),
        ]);
    }
    table.text(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_written_as_size_ways_and_line() {
        let Written(geometry) = "48K,12,64".parse().unwrap();
        assert_eq!((geometry.sets(), geometry.ways()), (64, 12));
        let said = |text: &str| text.parse::<Written>().unwrap_err();
        assert!(said("32K,8").contains("32K,8,64"));
        assert!(said("32K,x,64").contains("32K,8,64"));
        assert!(said("40K,8,64").contains("32768 or 65536"));
        assert!(said("32Q,8,64").contains("unknown unit"));
    }
}
