//! `lab schemes`: lists schemes, indexes and policies.

use clap::Args;
use fairlead_cache::policy::Parameters;
use fairlead_cache::registry::PolicyEntry;
use fairlead_cache::{Geometry, Scheme, index, registry};

use super::output;
use crate::error::LabError;
use crate::table::Table;

/// Arguments of `lab schemes`.
#[derive(Clone, Debug, Args)]
pub struct SchemesArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &SchemesArgs) -> Result<(), LabError> {
    let mut schemes = Table::new(["scheme", "banks", "index", "policy", "description"]);
    for (name, help) in Scheme::all() {
        let scheme = Scheme::parse(name).map_err(|error| LabError::Geometry(error.to_string()))?;
        let banks = scheme.banks.to_string();
        schemes.row([name, &banks, &scheme.index, &scheme.policy, help]);
    }
    let mut indexes = Table::new(["index", "description"]);
    for entry in index::INDEXES {
        indexes.row([entry.name, entry.help]);
    }
    let mut policies = Table::new(["policy", "one bank", "two banks", "description"]);
    for entry in registry::POLICIES {
        let [one, two] = [1, 2].map(|banks| bits_a_line(entry, banks));
        policies.row([entry.name, &one?, &two?, entry.help]);
    }
    if args.json {
        let list = |table: &Table| -> Vec<serde_json::Value> {
            let cells = |row: &Vec<String>| {
                let pairs = table.heads.iter().zip(row);
                pairs
                    .map(|(head, cell)| (head.clone(), cell.clone().into()))
                    .collect()
            };
            table
                .rows
                .iter()
                .map(|row| serde_json::Value::Object(cells(row)))
                .collect()
        };
        return output::print_json(&serde_json::json!({
            "schemes": list(&schemes),
            "indexes": list(&indexes),
            "policies": list(&policies),
        }));
    }
    output::print(&format!(
        "{}\n{}\n{}\nAny of these can be put together: `spec,index=crc,bits=16,on_ticks=8`. \
         Settings: index, bits,\nbanks, policy, on_ticks, stamp_bits. Of policies: bits a line \
         beside tag and payload, 4 ways, one bank or two.\n\
         `lab cost --scheme NAME` counts them for any design, with those of sets and of the whole \
         cache.\n",
        schemes.text(0),
        indexes.text(0),
        policies.text(0),
    ))?;
    Ok(())
}

/// Bits per line of a policy in caches of the paper's size.
fn bits_a_line(entry: &PolicyEntry, banks: u32) -> Result<String, LabError> {
    let paper = Geometry::paper();
    let shape = Geometry::new(
        paper.capacity_bytes(),
        paper.line_bytes(),
        banks,
        paper.ways(),
    )
    .map_err(|error| LabError::Geometry(error.to_string()))?;
    let state = (entry.state)(&shape, &Parameters::default());
    Ok(state.line.to_string())
}
