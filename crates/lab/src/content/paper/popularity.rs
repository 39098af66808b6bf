//! Figure 12: how requests are distributed over files.

use super::measure::Measured;
use super::{against, claim, figure, published, row};
use crate::content::{Cell, Row as CellRow, simulate, zipf};
use crate::control::Silent;
use crate::paper::Figure;
use crate::table::percent;

/// Of the synthetic requests.
const SEED: u64 = 1;

pub(super) fn figures(measured: &[Measured]) -> Vec<Figure> {
    let (mut rows, mut claims) = (Vec::new(), Vec::new());
    for one in measured {
        let name = &one.log.name;
        let Some(fit) = zipf::fit(&one.log.responses.file_requests) else {
            continue;
        };
        let mut exponent = row(name, "Zipf exponent", "fit", fit.exponent);
        exponent.spread = Some((fit.high - fit.low) / 2.0);
        rows.push(exponent);
        rows.push(row(
            name,
            "requests to the first tenth",
            "share",
            fit.top_tenth,
        ));
        let steeper = match one.log.paper_log() {
            Some("NASA" | "World Cup") => Some(fit.low > 0.9),
            _ => None,
        };
        claims.push(claim(
            name,
            "Rice and SPEC are like Zipf(0.9); the others are steeper",
            steeper,
            format!("{:.3} ({:.3} to {:.3})", fit.exponent, fit.low, fit.high),
        ));
        let own = one.removed(&Cell::default());
        let mut removed = Vec::new();
        for exponent in published::ZIPF {
            let drawn = zipf::drawn(&one.log.responses, exponent, SEED);
            let results = simulate(&drawn, &[Cell::default()], 1, &Silent);
            let share = results.map_or(0.0, |results| {
                CellRow::new(&drawn, &results[0]).removed_ratio
            });
            let mut value = row(
                name,
                "removed at 16 MiB",
                format!("Zipf({exponent})"),
                share,
            );
            value.synthetic = true;
            rows.push(against(value, None, false));
            removed.push(share);
        }
        rows.push(row(name, "removed at 16 MiB", "the log", own));
        claims.push(claim(
            name,
            "caches may be less effective where Zipf's exponent is lower (0.7 against 0.9)",
            removed[1] < removed[0],
            format!("{} against {}", percent(removed[1]), percent(removed[0])),
        ));
    }
    let title = "Figure 12: requests by rank";
    let mut figure = figure("figure-12", title, "as named", "", rows);
    figure.claims = claims;
    figure.notes = vec![
        "The exponent is that of maximum likelihood over all ranks, with half the width of its \
         95 % interval. Ranks are by the counts themselves, which makes a law look slightly \
         steeper."
            .to_owned(),
        "Zipf(0.9) and Zipf(0.7) are synthetic: independent requests to the log's files in their \
         order of popularity, each sent whole."
            .to_owned(),
    ];
    vec![figure]
}
