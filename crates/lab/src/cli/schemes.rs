//! `lab schemes`: what there is to choose from.

use clap::Args;
use fairlead_cache::{Scheme, index, registry};

use super::output;
use crate::error::LabError;
use crate::table::Table;

/// What `lab schemes` takes.
#[derive(Clone, Debug, Args)]
pub struct SchemesArgs {
    /// Write JSON to standard output instead
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &SchemesArgs) -> Result<(), LabError> {
    let mut schemes = Table::new(["scheme", "banks", "index", "policy", "what it is"]);
    for (name, help) in Scheme::all() {
        let scheme = Scheme::parse(name).map_err(|error| LabError::Geometry(error.to_string()))?;
        let banks = scheme.banks.to_string();
        schemes.row([name, &banks, &scheme.index, &scheme.policy, help]);
    }
    let mut indexes = Table::new(["index", "what it is"]);
    for entry in index::INDEXES {
        indexes.row([entry.name, entry.help]);
    }
    let mut policies = Table::new(["policy", "bits a line", "what it is"]);
    for entry in registry::POLICIES {
        policies.row([entry.name, &entry.line_bits.to_string(), entry.help]);
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
         Settings: index, bits,\nbanks, policy, on_ticks, stamp_bits. Bits a line are those for \
         4 ways, beside tag and payload.\n",
        schemes.text(0),
        indexes.text(0),
        policies.text(0),
    ))?;
    Ok(())
}
