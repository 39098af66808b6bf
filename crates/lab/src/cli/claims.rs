//! Claims of a paper beside our results, as the commands print and write them.

use crate::paper::{Claim, Figure};
use crate::table::Table;

/// `claims.csv`: one row for each claim.
pub(super) fn table(figures: &[Figure]) -> Table {
    let mut table = Table::new(["figure", "trace", "the paper says", "holds", "ours"]);
    for figure in figures {
        for claim in &figure.claims {
            table.row([
                figure.id.clone(),
                claim.trace.clone(),
                claim.says.clone(),
                claim.verdict().to_owned(),
                claim.ours.clone(),
            ]);
        }
    }
    table
}

/// The claims for people, one line each.
pub(super) fn text(figures: &[Figure]) -> String {
    let mut out = String::from("\nClaims of the paper, and our results\n");
    for figure in figures {
        for claim in &figure.claims {
            out += &format!(
                "  {}, {}: {} — {}: {}\n",
                figure.id,
                claim.trace,
                claim.says,
                verdict(claim),
                claim.ours
            );
        }
    }
    out
}

/// The verdict; in capitals if the claim does not hold.
pub(super) fn verdict(claim: &Claim) -> String {
    match claim.holds {
        Some(false) => claim.verdict().to_uppercase(),
        _ => claim.verdict().to_owned(),
    }
}
