//! Our numbers of the study, as tables.

use super::{CONNECTIONS, Scenario, Study};
use crate::table::Table;

/// Prepends stack, size and connections to the rows of a table of each scenario.
fn together(scenarios: &[Scenario], of: impl Fn(&Scenario) -> Option<Table>) -> Table {
    let mut all = Table::default();
    for one in scenarios {
        let Some(table) = of(one) else { continue };
        if all.heads.is_empty() {
            all.heads = ["stack", "size_bytes", "connections"]
                .map(Into::into)
                .into();
            all.heads.extend(table.heads);
        }
        for row in table.rows {
            let mut cells = vec![
                one.stack.clone(),
                one.size.to_string(),
                one.connections.to_string(),
            ];
            cells.extend(row);
            all.rows.push(cells);
        }
    }
    all
}

impl Study {
    /// `claims.csv`.
    pub fn claim_table(&self) -> Table {
        let mut table = Table::new(["stack", "the paper says", "holds", "ours"]);
        for claim in &self.claims {
            table.row([
                claim.trace.clone(),
                claim.says.clone(),
                claim.verdict().to_owned(),
                claim.ours.clone(),
            ]);
        }
        table
    }

    /// Every table, by the name of its file.
    pub fn tables(&self) -> Vec<(&'static str, Table)> {
        let all = &self.scenarios;
        let many = |one: &Scenario| one.connections != 1 && one.connections != CONNECTIONS;
        let varied = |one: &Scenario| {
            let others = all
                .iter()
                .any(|other| other.stack == one.stack && many(other));
            (others && one.size == super::LAYERS_SIZE).then(|| one.report.packet_table())
        };
        vec![
            ("claims.csv", self.claim_table()),
            (
                "packet.csv",
                together(all, |one| Some(one.report.packet_table())),
            ),
            (
                "misses.csv",
                together(all, |one| Some(one.report.miss_table())),
            ),
            (
                "fits.csv",
                together(all, |one| Some(one.report.fit_table())),
            ),
            (
                "clock.csv",
                together(all, |one| Some(one.report.clock_table())),
            ),
            ("connections.csv", together(all, varied)),
            (
                "layers.csv",
                together(all, |one| Some(one.layers.as_ref()?.table())),
            ),
        ]
    }
}
